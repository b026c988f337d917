/* SPDX-License-Identifier: MIT
 *
 * The planner against brute force, its checker against plans that were damaged on purpose, its
 * limits, and what it refuses. */
#include "algo/plan.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bits.h"
#include "base/rng.h"
#include "support/test.h"

enum { BRUTE_MAX = 8, BRUTE_PROBLEMS = 100000 };

/* ---- Brute force ---------------------------------------------------------------------------- */

typedef struct brute {
  const tarni_plan_buffer *buffers;
  uint32_t count;
  uint64_t offsets[BRUTE_MAX];
  uint64_t best;
  uint64_t load; /* nothing can be lower */
} brute;

static bool brute_overlap(const tarni_plan_buffer *a, const tarni_plan_buffer *b) {
  return a->begin < b->end && b->begin < a->end;
}

/* Every order, each buffer on top of those placed before it: the lowest plan is among them. */
static void brute_try(brute *all, uint32_t placed, uint64_t height) {
  if (height >= all->best || all->best == all->load) {
    return;
  }
  if (placed == (1u << all->count) - 1) {
    all->best = height;
    return;
  }
  for (uint32_t i = 0; i < all->count; i++) {
    const tarni_plan_buffer *buffer = &all->buffers[i];
    uint64_t offset = 0;
    if ((placed >> i & 1) != 0) {
      continue;
    }
    for (uint32_t k = 0; k < all->count; k++) {
      if ((placed >> k & 1) != 0 && brute_overlap(buffer, &all->buffers[k])) {
        offset = tarni_max(offset, all->offsets[k] + all->buffers[k].bytes);
      }
    }
    all->offsets[i] = tarni_align_up(offset, buffer->alignment == 0 ? 1 : buffer->alignment);
    brute_try(all, placed | 1u << i, tarni_max(height, all->offsets[i] + buffer->bytes));
  }
}

static uint64_t brute_height(const tarni_plan_buffer *buffers, uint32_t count) {
  brute all = {.buffers = buffers, .count = count, .best = UINT64_MAX};
  for (uint32_t i = 0; i < count; i++) { /* the peak is where some buffer begins */
    uint64_t live = 0;
    for (uint32_t k = 0; k < count; k++) {
      const bool is_live =
          buffers[k].begin <= buffers[i].begin && buffers[i].begin < buffers[k].end;
      live += is_live ? buffers[k].bytes : 0;
    }
    all.load = tarni_max(all.load, live);
  }
  brute_try(&all, 0, 0);
  return all.best;
}

/* A random problem; `kind` chooses equal or various alignments and sizes. */
static uint32_t random_problem(tarni_rng *rng, int kind, tarni_plan_buffer *buffers) {
  const uint32_t count = 1 + (uint32_t)tarni_rng_below(rng, BRUTE_MAX);
  const uint64_t n_times = 2 + tarni_rng_below(rng, 9);
  const uint64_t n_sizes = 1 + tarni_rng_below(rng, 12);
  for (uint32_t i = 0; i < count; i++) {
    const uint64_t begin = tarni_rng_below(rng, n_times);
    buffers[i] = (tarni_plan_buffer){.bytes = 1 + tarni_rng_below(rng, n_sizes),
                                     .begin = begin,
                                     .end = begin + 1 + tarni_rng_below(rng, n_times)};
    buffers[i].alignment = kind == 1 ? 4 : kind == 2 ? UINT64_C(1) << tarni_rng_below(rng, 4) : 0;
  }
  return count;
}

static void check_against_brute(int kind, int n_problems) {
  tarni_rng rng = {(uint64_t)kind + 1};
  int n_wrong = 0;
  int n_searched = 0;
  for (int k = 0; k < n_problems && n_wrong == 0; k++) {
    tarni_plan_buffer buffers[BRUTE_MAX];
    tarni_plan plan;
    const uint32_t count = random_problem(&rng, kind, buffers);
    const tarni_plan_problem problem = {.buffers = buffers, .count = count};
    const uint64_t want = brute_height(buffers, count);
    REQUIRE_OK(tarni_plan_solve(&problem, NULL, &plan));
    if (plan.height != want || !plan.is_proven || plan.bound != want) {
      n_wrong++;
      test_note("problem %d of kind %d: height %llu, bound %llu, brute force %llu", k, kind,
                (unsigned long long)plan.height, (unsigned long long)plan.bound,
                (unsigned long long)want);
    }
    n_searched += plan.steps > 28 * (uint64_t)count;
    tarni_plan_release(&plan);
  }
  CHECK_EQ(n_wrong, 0);
  CHECK(n_searched > 0); /* some needed the search, not only the fast placements */
}

static void equals_brute_force(void) {
  check_against_brute(0, BRUTE_PROBLEMS);
}

static void equals_brute_force_aligned(void) {
  check_against_brute(1, BRUTE_PROBLEMS / 10);
  check_against_brute(2, BRUTE_PROBLEMS / 10);
}

/* ---- Limits --------------------------------------------------------------------------------- */

enum { MANY = 120 };

/* A rectangle cut into pieces: the bound can be reached and is hard to reach. */
static void cut_rectangle(uint64_t seed, tarni_plan_buffer *buffers, uint32_t count) {
  tarni_rng rng = {seed};
  uint64_t low[MANY] = {0};
  uint64_t high[MANY] = {1024};
  buffers[0] = (tarni_plan_buffer){.begin = 0, .end = 1024};
  for (uint32_t n = 1; n < count;) {
    const uint32_t i = (uint32_t)tarni_rng_below(&rng, n);
    const uint64_t span = buffers[i].end - buffers[i].begin;
    const uint64_t bytes = high[i] - low[i];
    buffers[n] = buffers[i];
    low[n] = low[i];
    high[n] = high[i];
    if (tarni_rng_below(&rng, 2) == 0 && span > 1) {
      buffers[i].end = buffers[n].begin = buffers[i].begin + 1 + tarni_rng_below(&rng, span - 1);
      n++;
    } else if (bytes > 1) {
      high[i] = low[n] = low[i] + 1 + tarni_rng_below(&rng, bytes - 1);
      n++;
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    buffers[i].bytes = high[i] - low[i];
  }
}

static void stops_after_steps(void) {
  tarni_plan_buffer buffers[MANY] = {0};
  cut_rectangle(3, buffers, MANY);
  const tarni_plan_problem problem = {.buffers = buffers, .count = MANY};
  uint64_t height_before = UINT64_MAX;
  for (uint64_t steps = 1; steps < 100000; steps *= 10) {
    const tarni_plan_limits limits = {.max_steps = steps};
    tarni_plan first;
    tarni_plan second;
    REQUIRE_OK(tarni_plan_solve(&problem, &limits, &first));
    REQUIRE_OK(tarni_plan_solve(&problem, &limits, &second));
    CHECK_EQ(first.height, second.height);
    CHECK(memcmp(first.offsets, second.offsets, MANY * sizeof(*first.offsets)) == 0);
    CHECK(first.height >= first.bound && first.height <= height_before);
    CHECK(first.is_proven == (first.height == first.bound));
    height_before = first.height;
    tarni_plan_release(&first);
    tarni_plan_release(&second);
  }
}

typedef struct watch {
  int n_asked;
  int n_progress;
  uint64_t height;
} watch;

static bool stop_at_once(void *context) {
  ((watch *)context)->n_asked++;
  return true;
}

static void note_progress(void *context, uint64_t height, uint64_t bound) {
  watch *seen = context;
  CHECK(height < seen->height && height >= bound);
  seen->height = height;
  seen->n_progress++;
}

static void stops_when_asked(void) {
  tarni_plan_buffer buffers[MANY] = {0};
  watch seen = {.height = UINT64_MAX};
  tarni_plan plan;
  cut_rectangle(5, buffers, MANY);
  const tarni_plan_problem problem = {.buffers = buffers, .count = MANY};
  const tarni_plan_limits limits = {
      .should_stop = stop_at_once, .progress = note_progress, .context = &seen};
  REQUIRE_OK(tarni_plan_solve(&problem, &limits, &plan));
  CHECK_EQ(seen.n_asked, 1);
  CHECK(seen.n_progress >= 1);
  CHECK_EQ(seen.height, plan.height);
  CHECK(!plan.is_proven);
  tarni_plan_release(&plan);
}

enum { VERY_MANY = 40000, LONGEST = 60 };

/* The lowest place for a buffer that begins when those before it have begun. */
static uint64_t first_fit(const tarni_plan_buffer *buffers, const uint64_t *offsets, uint32_t i) {
  const uint32_t first = i < LONGEST ? 0 : i - LONGEST;
  uint64_t offset = 0;
  for (uint32_t k = first; k < i; k++) {
    const bool is_in_the_way = buffers[k].end > buffers[i].begin &&
                               offsets[k] < offset + buffers[i].bytes &&
                               offset < offsets[k] + buffers[k].bytes;
    if (is_in_the_way) {
      offset = offsets[k] + buffers[k].bytes;
      k = first - 1; /* once more with all of them */
    }
  }
  return offset;
}

static bool stop_after_the_sweep(void *context) {
  return ++((watch *)context)->n_asked > VERY_MANY / 256;
}

/* The orders take long for so many buffers. Where there is no time there is a plan all the same:
 * the first fit in the order of time, and no more; without any time, a valid one. */
static void stops_among_very_many(void) {
  static tarni_plan_buffer buffers[VERY_MANY];
  static uint64_t offsets[VERY_MANY];
  tarni_rng rng = {7};
  watch seen = {.height = UINT64_MAX};
  tarni_plan plan;
  uint32_t n_alike = 0;
  for (uint32_t i = 0; i < VERY_MANY; i++) {
    buffers[i] = (tarni_plan_buffer){.bytes = 16 * (1 + tarni_rng_below(&rng, 1000)),
                                     .alignment = 16,
                                     .begin = i,
                                     .end = i + 1 + tarni_rng_below(&rng, LONGEST)};
    offsets[i] = first_fit(buffers, offsets, i);
  }
  const tarni_plan_problem problem = {.buffers = buffers, .count = VERY_MANY};
  tarni_plan_limits limits = {
      .should_stop = stop_after_the_sweep, .progress = note_progress, .context = &seen};
  REQUIRE_OK(tarni_plan_solve(&problem, &limits, &plan));
  for (uint32_t i = 0; i < VERY_MANY; i++) {
    n_alike += plan.offsets[i] == offsets[i];
  }
  CHECK_EQ(n_alike, VERY_MANY);
  CHECK_EQ(seen.n_asked, VERY_MANY / 256 + 1);
  CHECK_EQ(seen.n_progress, 1);
  const uint64_t height = plan.height;
  tarni_plan_release(&plan);
  seen = (watch){.height = UINT64_MAX};
  limits.should_stop = stop_at_once;
  REQUIRE_OK(tarni_plan_solve(&problem, &limits, &plan)); /* which has looked at it */
  CHECK_EQ(seen.n_asked, 1);
  CHECK(plan.height > height);
  tarni_plan_release(&plan);
}

enum { LONG_LIVED = 80000 };

/* CPU seconds for a plan of buffers that all live at once, without time to look for a better one.
 */
static double seconds_to_stop(uint64_t alignment) {
  static tarni_plan_buffer buffers[LONG_LIVED];
  watch seen = {.height = UINT64_MAX};
  tarni_plan plan;
  for (uint32_t i = 0; i < LONG_LIVED; i++) {
    buffers[i] = (tarni_plan_buffer){
        .bytes = 1 + i % 255, .alignment = alignment, .begin = i, .end = LONG_LIVED + i};
  }
  const tarni_plan_problem problem = {.buffers = buffers, .count = LONG_LIVED};
  const tarni_plan_limits limits = {.should_stop = stop_at_once, .context = &seen};
  const clock_t start = clock();
  if (CHECK_OK(tarni_plan_solve(&problem, &limits, &plan))) {
    tarni_plan_release(&plan);
  }
  return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* Sizes that leave gaps behind them take hardly longer to prepare than others. */
static void stops_with_padding(void) {
  const double plain = seconds_to_stop(1), padded = seconds_to_stop(256);
  test_note("%.2f s without, %.2f s with padding", plain, padded);
  CHECK(padded < 3 * plain + 0.5);
}

/* A capacity is enough; one below the bound is proven to be out of reach. */
static void respects_capacity(void) {
  tarni_plan_buffer buffers[MANY] = {0};
  tarni_plan plan;
  cut_rectangle(7, buffers, MANY);
  const tarni_plan_problem problem = {.buffers = buffers, .count = MANY};
  REQUIRE_OK(tarni_plan_solve(&problem, &(tarni_plan_limits){.capacity = 1500}, &plan));
  CHECK(plan.height <= 1500 && !plan.is_over);
  tarni_plan_release(&plan);
  REQUIRE_OK(tarni_plan_solve(&problem, &(tarni_plan_limits){.capacity = 1000, .max_steps = 20000},
                              &plan));
  CHECK(plan.is_over);
  CHECK_EQ(plan.bound, 1024);
  tarni_plan_release(&plan);
}

/* ---- Where the bound binds, and edges ------------------------------------------------------- */

static void says_where_it_binds(void) {
  const tarni_plan_buffer buffers[] = {
      {.bytes = 10, .begin = 0, .end = 30}, {.bytes = 5, .begin = 7, .end = 9},
      {.bytes = 7, .begin = 8, .end = 20},  {.bytes = 0, .begin = 0, .end = 30},
      {.bytes = 99, .begin = 4, .end = 4},
  };
  const tarni_plan_problem problem = {.buffers = buffers, .count = 5};
  tarni_plan plan;
  REQUIRE_OK(tarni_plan_solve(&problem, NULL, &plan));
  CHECK_EQ(plan.bound, 22);
  CHECK_EQ(plan.height, 22);
  CHECK(plan.is_proven);
  CHECK_EQ(plan.bind_begin, 8);
  CHECK_EQ(plan.bind_end, 9);
  CHECK_EQ(plan.offsets[3], 0);
  CHECK_EQ(plan.offsets[4], 0);
  tarni_plan_release(&plan);
}

static void plans_nothing(void) {
  const tarni_plan_problem problem = {.count = 0};
  tarni_plan plan;
  REQUIRE_OK(tarni_plan_solve(&problem, NULL, &plan));
  CHECK_EQ(plan.height, 0);
  CHECK(plan.is_proven);
  tarni_plan_release(&plan);
}

static void refuses_nonsense(void) {
  tarni_plan_buffer buffers[] = {{.bytes = 8, .begin = 0, .end = 1},
                                 {.bytes = 8, .begin = 0, .end = 1, .alignment = 12}};
  const tarni_plan_problem problem = {.buffers = buffers, .count = 2};
  tarni_plan plan;
  CHECK_STATUS(tarni_plan_solve(&problem, NULL, &plan), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "buffer 1");
  CHECK(plan.offsets == NULL);
  buffers[1] = (tarni_plan_buffer){.bytes = 8, .begin = 3, .end = 1};
  CHECK_STATUS(tarni_plan_solve(&problem, NULL, &plan), TARN_INVALID);
  buffers[1] = (tarni_plan_buffer){.bytes = UINT64_MAX, .begin = 0, .end = 1};
  CHECK_STATUS(tarni_plan_solve(&problem, NULL, &plan), TARN_OVERFLOWED);
  buffers[1] = (tarni_plan_buffer){.bytes = 8, .begin = 0, .end = 1, .alignment = 1ull << 63};
  CHECK_STATUS(tarni_plan_solve(&problem, NULL, &plan), TARN_OVERFLOWED);
}

/* ---- The checker ---------------------------------------------------------------------------- */

static void checker_finds_damage(void) {
  tarni_plan_buffer buffers[MANY] = {0};
  tarni_plan plan;
  uint64_t height = 0;
  int n_damaged = 0;
  int n_found = 0;
  cut_rectangle(9, buffers, MANY);
  for (uint32_t i = 0; i < MANY; i++) {
    buffers[i].bytes *= 16;
    buffers[i].alignment = 16;
  }
  const tarni_plan_problem problem = {.buffers = buffers, .count = MANY};
  REQUIRE_OK(tarni_plan_solve(&problem, &(tarni_plan_limits){.max_steps = 10000}, &plan));
  CHECK_OK(tarni_plan_check(&problem, plan.offsets, &height));
  CHECK_EQ(height, plan.height);
  for (uint32_t i = 0; i < MANY; i++) { /* onto another one that lives at the same time */
    for (uint32_t k = 0; k < MANY; k++) {
      if (k != i && brute_overlap(&buffers[i], &buffers[k])) {
        const uint64_t before = plan.offsets[i];
        plan.offsets[i] = plan.offsets[k] + buffers[k].bytes - 16;
        n_found += tarni_plan_check(&problem, plan.offsets, &height) == TARN_CORRUPT;
        plan.offsets[i] = before;
        n_damaged++;
        break;
      }
    }
  }
  CHECK(n_damaged > MANY / 2);
  CHECK_EQ(n_found, n_damaged);
  plan.offsets[0] += 8;
  CHECK_STATUS(tarni_plan_check(&problem, plan.offsets, &height), TARN_CORRUPT);
  CHECK_HAS(tarn_last_message(), "not a multiple of 16");
  plan.offsets[0] = UINT64_MAX - 15;
  CHECK_STATUS(tarni_plan_check(&problem, plan.offsets, &height), TARN_CORRUPT);
  tarni_plan_release(&plan);
}

/* Very many buffers that all live at once, in no order: the one that overlaps is found. */
static void checker_of_very_many(void) {
  enum { AT_ONCE = 20000 };
  static tarni_plan_buffer buffers[AT_ONCE];
  static uint64_t offsets[AT_ONCE];
  const tarni_plan_problem problem = {.buffers = buffers, .count = AT_ONCE};
  uint64_t height = 0;
  for (uint32_t i = 0; i < AT_ONCE; i++) {
    buffers[i] = (tarni_plan_buffer){.bytes = 8, .end = 1};
    offsets[i] = 8 * ((uint64_t)i * 7919 % AT_ONCE); /* a prime: each place once */
  }
  CHECK_OK(tarni_plan_check(&problem, offsets, &height));
  CHECK_EQ(height, UINT64_C(8) * AT_ONCE);
  offsets[0] = offsets[AT_ONCE / 2] + 1;
  CHECK_STATUS(tarni_plan_check(&problem, offsets, &height), TARN_CORRUPT);
}

static const test_case cases[] = {
    {"equals_brute_force", equals_brute_force},
    {"equals_brute_force_aligned", equals_brute_force_aligned},
    {"stops_after_steps", stops_after_steps},
    {"stops_when_asked", stops_when_asked},
    {"stops_among_very_many", stops_among_very_many},
    {"stops_with_padding", stops_with_padding},
    {"respects_capacity", respects_capacity},
    {"says_where_it_binds", says_where_it_binds},
    {"plans_nothing", plans_nothing},
    {"refuses_nonsense", refuses_nonsense},
    {"checker_finds_damage", checker_finds_damage},
    {"checker_of_very_many", checker_of_very_many},
};

TEST_MAIN(cases)
