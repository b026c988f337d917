/* SPDX-License-Identifier: MIT
 *
 * Size classes: every size up to the largest is looked at. */
#include "algo/sizeclass.h"

#include "support/test.h"

static void every_size_fits(void) {
  uint32_t last = 0;
  for (uint64_t size = 1; size <= TARNI_SMALL_MAX; size++) {
    const uint32_t at = tarni_class_of(size);
    const uint64_t block = tarni_class_size(at);
    const bool is_least = at == 0 || tarni_class_size(at - 1) < size;
    if (at >= TARNI_CLASS_COUNT || block < size || !is_least || at < last) {
      CHECK_EQ(size, 0);
      return;
    }
    last = at;
  }
  CHECK_EQ(last, TARNI_CLASS_COUNT - 1);
}

static void slack_is_at_most_an_eighth(void) {
  CHECK_EQ(tarni_class_size(0), 256);
  CHECK_EQ(tarni_class_size(TARNI_CLASS_COUNT - 1), TARNI_SMALL_MAX);
  for (uint32_t at = 1; at < TARNI_CLASS_COUNT; at++) {
    const uint64_t least = tarni_class_size(at - 1) + 1; /* that gets a block of this class */
    const uint64_t block = tarni_class_size(at);
    CHECK_EQ(block % TARNI_ALIGNMENT, 0);
    CHECK(block - least < TARNI_ALIGNMENT || (block - least) * 8 <= least);
  }
}

static void powers_of_two_are_classes(void) {
  for (uint64_t size = 256; size <= TARNI_SMALL_MAX; size *= 2) {
    CHECK_EQ(tarni_class_size(tarni_class_of(size)), size);
  }
}

static const test_case cases[] = {
    {"every size fits the least class that holds it", every_size_fits},
    {"slack is at most an eighth", slack_is_at_most_an_eighth},
    {"powers of two are classes", powers_of_two_are_classes},
};

TEST_MAIN(cases)
