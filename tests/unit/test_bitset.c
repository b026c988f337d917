/* SPDX-License-Identifier: MIT
 *
 * The set of numbers (algo/bitset.h), against an array of flags. */
#include "algo/bitset.h"

#include <string.h>

#include "base/rng.h"
#include "support/test.h"

enum { N = 64 * 64 * 2 + 17 }; /* more than two groups of words */

static uint64_t flags_below(const bool *flags, uint64_t limit) {
  while (limit != 0) {
    if (flags[--limit]) {
      return limit;
    }
  }
  return TARNI_BITSET_NONE;
}

static uint64_t flags_from(const bool *flags, uint64_t start) {
  for (; start < N; start++) {
    if (flags[start]) {
      return start;
    }
  }
  return TARNI_BITSET_NONE;
}

static uint64_t flags_gap(const bool *flags, uint64_t start, uint64_t length) {
  uint64_t n = 0;
  for (; start + n < N && n < length; n++) {
    if (flags[start + n]) {
      start += n + 1;
      n = UINT64_MAX; /* and one more */
    }
  }
  return start;
}

static uint64_t flags_run(const bool *in, const bool *out, uint64_t start, uint64_t length) {
  uint64_t n = 0;
  for (uint64_t i = start; i < N; i++) {
    n = in[i] && !out[i] ? n + 1 : 0;
    if (n == length) {
      return i + 1 - n;
    }
  }
  return TARNI_BITSET_NONE;
}

static void an_empty_set(void) {
  tarni_bitset set;
  REQUIRE(tarni_bitset_open(&set, N));
  CHECK_EQ(tarni_bitset_below(&set, N), TARNI_BITSET_NONE);
  CHECK_EQ(tarni_bitset_below(&set, 0), TARNI_BITSET_NONE);
  CHECK_EQ(tarni_bitset_from(&set, 0), TARNI_BITSET_NONE);
  CHECK_EQ(tarni_bitset_from(&set, N), TARNI_BITSET_NONE);
  CHECK_EQ(tarni_bitset_gap(&set, 0, N), 0);
  CHECK_EQ(tarni_bitset_gap(&set, N, 1), N);
  CHECK_EQ(tarni_bitset_run(&set, &set, 0, 1), TARNI_BITSET_NONE);
  CHECK(!tarni_bitset_has(&set, N - 1));
  tarni_bitset_close(&set);
  tarni_bitset_close(&set); /* again: nothing to do */
}

static void every_single_member(void) {
  tarni_bitset set;
  REQUIRE(tarni_bitset_open(&set, N));
  for (uint64_t i = 0; i < N; i++) {
    tarni_bitset_add(&set, i);
    tarni_bitset_add(&set, i); /* again: the same set */
    CHECK_EQ(tarni_bitset_below(&set, N), i);
    CHECK_EQ(tarni_bitset_below(&set, i + 1), i);
    CHECK_EQ(tarni_bitset_below(&set, i), TARNI_BITSET_NONE);
    CHECK_EQ(tarni_bitset_from(&set, 0), i);
    CHECK_EQ(tarni_bitset_from(&set, i), i);
    CHECK_EQ(tarni_bitset_from(&set, i + 1), TARNI_BITSET_NONE);
    tarni_bitset_remove(&set, i);
    tarni_bitset_remove(&set, i);
    CHECK_EQ(tarni_bitset_below(&set, N), TARNI_BITSET_NONE);
  }
  tarni_bitset_close(&set);
}

/* Sets that are thin, dense and in between. */
static void as_an_array_of_flags(void) {
  static bool flags[N];
  for (uint64_t share = 1; share <= 4096; share *= 16) {
    tarni_bitset set;
    tarni_rng rng = {.state = share};
    REQUIRE(tarni_bitset_open(&set, N));
    memset(flags, 0, sizeof(flags));
    for (int i = 0; i < 20000; i++) {
      const uint64_t at = tarni_rng_below(&rng, N);
      if (tarni_rng_below(&rng, share + 1) == 0) {
        tarni_bitset_add(&set, at);
        flags[at] = true;
      } else {
        tarni_bitset_remove(&set, at);
        flags[at] = false;
      }
      const uint64_t limit = tarni_rng_below(&rng, N + 1);
      CHECK_EQ(tarni_bitset_below(&set, limit), flags_below(flags, limit));
      CHECK_EQ(tarni_bitset_from(&set, limit), flags_from(flags, limit));
      CHECK_EQ(tarni_bitset_has(&set, at), flags[at]);
      const uint64_t length = 1 + tarni_rng_below(&rng, (uint64_t)1 << (i % 10));
      CHECK_EQ(tarni_bitset_gap(&set, limit, length), flags_gap(flags, limit, length));
    }
    tarni_bitset_close(&set);
  }
}

/* Runs of one set without another, both with long runs and short ones. */
static void ranges(void) {
  static bool flags[N];
  tarni_rng rng = {.state = 3};
  tarni_bitset set;
  REQUIRE(tarni_bitset_open(&set, N));
  memset(flags, 0, sizeof(flags));
  for (int i = 0; i < 2000; i++) {
    const uint64_t start = tarni_rng_below(&rng, N);
    const uint64_t most = i % 2 == 0 ? 8 : N; /* within a word, and over groups */
    const uint64_t length = tarni_rng_below(&rng, (N - start < most ? N - start : most) + 1);
    const bool is = tarni_rng_below(&rng, 2) != 0;
    tarni_bitset_fill(&set, start, length, is);
    memset(&flags[start], is, length);
    const uint64_t at = tarni_rng_below(&rng, N + 1);
    CHECK_EQ(tarni_bitset_from(&set, at), flags_from(flags, at));
    CHECK_EQ(tarni_bitset_below(&set, at), flags_below(flags, at));
    CHECK_EQ(tarni_bitset_gap(&set, at, 40), flags_gap(flags, at, 40));
  }
  tarni_bitset_close(&set);
}

static void runs_of_one_without_another(void) {
  static bool flags[2][N];
  tarni_rng rng = {.state = 5};
  for (uint64_t share = 1; share <= 1000; share *= 10) {
    tarni_bitset sets[2];
    for (int k = 0; k < 2; k++) {
      REQUIRE(tarni_bitset_open(&sets[k], N));
      memset(flags[k], 0, sizeof(flags[k]));
      for (uint64_t i = 0; i < N; i++) {
        const bool is_turn = i == 0 || tarni_rng_below(&rng, share) == 0;
        flags[k][i] = is_turn ? tarni_rng_below(&rng, 2) == 0 : flags[k][i - 1];
        if (flags[k][i]) {
          tarni_bitset_add(&sets[k], i);
        }
      }
    }
    for (int i = 0; i < 3000; i++) {
      const uint64_t start = tarni_rng_below(&rng, N + 1);
      const uint64_t length = 1 + tarni_rng_below(&rng, (uint64_t)1 << (i % 10));
      CHECK_EQ(tarni_bitset_run(&sets[0], &sets[1], start, length),
               flags_run(flags[0], flags[1], start, length));
    }
    tarni_bitset_close(&sets[0]);
    tarni_bitset_close(&sets[1]);
  }
}

/* Full sets: the first number beyond them, and the first that is taken out. */
static void a_gap_in_a_full_set(void) {
  tarni_bitset set;
  REQUIRE(tarni_bitset_open(&set, N));
  for (uint64_t i = 0; i < N; i++) {
    tarni_bitset_add(&set, i);
  }
  CHECK_EQ(tarni_bitset_gap(&set, 0, 1), N);
  for (uint64_t i = 0; i + 1 < N; i += 61) {
    tarni_bitset_remove(&set, i);
    CHECK_EQ(tarni_bitset_gap(&set, 0, 1), i);
    CHECK_EQ(tarni_bitset_gap(&set, i + 1, 1), N);
    tarni_bitset_remove(&set, i + 1);
    CHECK_EQ(tarni_bitset_gap(&set, 0, 2), i);
    CHECK_EQ(tarni_bitset_gap(&set, 0, 3), N);
    tarni_bitset_add(&set, i);
    tarni_bitset_add(&set, i + 1);
  }
  tarni_bitset_close(&set);
}

static const test_case cases[] = {
    {"an empty set", an_empty_set},
    {"every single member", every_single_member},
    {"as an array of flags", as_an_array_of_flags},
    {"ranges", ranges},
    {"runs of one set without another", runs_of_one_without_another},
    {"a gap in a full set", a_gap_in_a_full_set},
};

TEST_MAIN(cases)
