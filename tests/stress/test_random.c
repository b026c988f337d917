/* SPDX-License-Identifier: MIT
 *
 * RMM's random_allocations: the generator against its known values, and the programs through a heap
 * on the simulated GPU with the oracle watching every block. TARN_TEST_ALLOCATIONS: programs of up
 * to so many allocations run, of any size; else those that do not take minutes. */
#include <stdlib.h>

#include "support/test.h"
#include "tools/replay.h"
#include "tools/workload.h"

static void known_values(void) {
  for (int i = 0; i < WORKLOAD_N_RANDOM; i++) {
    const workload_random_case *c = &workload_random_cases[i];
    uint64_t total_bytes, hash;
    trace t;
    REQUIRE(workload_random(c->n_allocations, c->max_mib, &t));
    workload_sum(&t, &total_bytes, &hash);
    CHECK_EQ(hash, c->hash);
    CHECK_EQ(total_bytes, c->total_bytes);
    CHECK_EQ(t.live_peak_bytes, c->live_peak_bytes);
    CHECK_EQ(t.live_peak_blocks, c->live_peak_blocks);
    CHECK_EQ(t.n_events, 2 * (uint64_t)c->n_allocations);
    trace_close(&t);
  }
}

/* The first steps, written out: sizes below and above what one draw of the generator reaches. */
static void first_steps(void) {
  static const uint64_t small[] = {9, 0,     558920, 229708, 712189, 980576,
                                   0, 56086, 704095, 402237, 437980, 0};
  static const uint64_t large[] = {282475249,  2617694918, 3931968138,
                                   1137522503, 823378840,  3622316815};
  trace t;
  REQUIRE(workload_random(1000, 1, &t));
  for (size_t i = 0; i < sizeof(small) / sizeof(small[0]); i++) {
    CHECK_EQ(t.events[i].kind, small[i] != 0 ? TRACE_ALLOC : TRACE_FREE);
    CHECK(small[i] == 0 || t.events[i].bytes == small[i]);
  }
  CHECK_EQ(t.events[6].block, 3);
  CHECK_EQ(t.events[11].block, 8);
  trace_close(&t);
  REQUIRE(workload_random(1000, 4096, &t));
  for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
    CHECK_EQ(t.events[i].bytes, large[i]);
  }
  trace_close(&t);
}

/* Megabytes that a program may ask for in all, about: large blocks take a sanitizer minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MOST_MIB = 20000 };
#else
enum { MOST_MIB = 300000 };
#endif

static bool is_wanted(const workload_random_case *c) {
  const char *text = getenv("TARN_TEST_ALLOCATIONS");
  if (text != NULL) {
    return c->n_allocations <= strtoull(text, NULL, 10);
  }
  return (uint64_t)c->n_allocations * c->max_mib <= MOST_MIB && c->n_allocations <= 10000;
}

static void through_the_heap(void) {
  static replay_result result;
  for (int i = 0; i < WORKLOAD_N_RANDOM; i++) {
    const workload_random_case *c = &workload_random_cases[i];
    const replay_plan plan = {.device = "sim", .seed = (uint64_t)i, .n_passes = 1};
    trace t;
    if (!is_wanted(c)) {
      continue;
    }
    REQUIRE(workload_random(c->n_allocations, c->max_mib, &t));
    CHECK(replay_run("random", &t, &plan, &result));
    if (!CHECK_STATUS(result.status, TARN_OK) || !CHECK_EQ(result.violations, 0)) {
      test_note("%u allocations of up to %u MiB: %s%s", c->n_allocations, c->max_mib,
                result.message, result.finding);
    }
    CHECK(result.reserved_peak_bytes >= t.live_peak_bytes);
    CHECK_EQ(result.stats.live_blocks, 0);
    trace_close(&t);
  }
}

static const test_case cases[] = {
    {"random: known values", known_values},
    {"random: first steps", first_steps},
    {"random: through the heap", through_the_heap},
};
TEST_MAIN(cases)
