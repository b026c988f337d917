/* SPDX-License-Identifier: MIT
 *
 * Integer arithmetic at its edges. */
#include "base/bits.h"

#include "support/test.h"

static void powers_of_two(void) {
  CHECK(!tarni_is_pow2(0));
  for (unsigned shift = 0; shift < 64; shift++) {
    const uint64_t power = UINT64_C(1) << shift;
    CHECK(tarni_is_pow2(power));
    CHECK_EQ(tarni_log2(power), shift);
    CHECK_EQ(tarni_low_bit(power), shift);
    CHECK_EQ(tarni_log2(power | 1), shift);
    CHECK_EQ(tarni_low_bit(power | UINT64_C(1) << 63), shift);
    CHECK(shift < 2 || !tarni_is_pow2(power - 1));
  }
}

static void alignment(void) {
  CHECK_EQ(tarni_align_down(4097, 4096), 4096);
  CHECK_EQ(tarni_align_down(4095, 4096), 0);
  CHECK_EQ(tarni_align_up(1, 4096), 4096);
  CHECK_EQ(tarni_align_up(4096, 4096), 4096);
  CHECK_EQ(tarni_align_up(0, 4096), 0);
  CHECK_EQ(tarni_align_up(UINT64_MAX - 4095, 4096), UINT64_MAX - 4095);
  CHECK(tarni_is_aligned(0, 8) && tarni_is_aligned(8, 8) && !tarni_is_aligned(9, 8));
  CHECK(tarni_is_aligned(7, 1));
}

static void overflow(void) {
  uint64_t result = 77;
  CHECK(!tarni_add(UINT64_MAX, 1, &result));
  CHECK_EQ(result, 77);
  CHECK(tarni_add(UINT64_MAX, 0, &result));
  CHECK_EQ(result, UINT64_MAX);
  CHECK_EQ(tarni_add_capped(UINT64_MAX - 1, 1), UINT64_MAX);
  CHECK_EQ(tarni_add_capped(UINT64_MAX, 2), UINT64_MAX);
  result = 77;
  CHECK(!tarni_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &result));
  CHECK_EQ(result, 77);
  CHECK(tarni_mul(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &result));
  CHECK_EQ(result, UINT64_MAX - UINT32_MAX);
  result = 77;
  CHECK(!tarni_align_up_checked(UINT64_MAX - 4094, 4096, &result));
  CHECK_EQ(result, 77);
  CHECK(tarni_align_up_checked(UINT64_MAX - 4095, 4096, &result));
  CHECK_EQ(result, UINT64_MAX - 4095);
}

static void smaller_and_larger(void) {
  CHECK_EQ(tarni_min(1, 2), 1);
  CHECK_EQ(tarni_min(UINT64_MAX, 0), 0);
  CHECK_EQ(tarni_max(1, 2), 2);
  CHECK_EQ(tarni_max(UINT64_MAX, 0), UINT64_MAX);
}

static const test_case cases[] = {
    {"bits: powers of two", powers_of_two},
    {"bits: alignment", alignment},
    {"bits: overflow is told", overflow},
    {"bits: smaller and larger", smaller_and_larger},
};
TEST_MAIN(cases)
