/* SPDX-License-Identifier: MIT
 *
 * Plans for partial orders: the antichain bound and the plan against brute force, time lines given
 * as orders, and orders that are refused. */
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"
#include "base/rng.h"
#include "support/test.h"

enum { FEW = 8, PROBLEMS = 20000 };

typedef struct case_order {
  uint32_t count;
  tarni_plan_buffer buffers[FEW];
  uint32_t starts[FEW + 1];
  uint32_t predecessors[FEW * FEW];
  bool is_before[FEW][FEW]; /* closed by transitivity */
} case_order;

/* A random order: an edge from i to k only where i comes first in a hidden sequence. */
static void random_order(tarni_rng *rng, case_order *one) {
  const uint64_t density = 1 + tarni_rng_below(rng, 8);
  uint32_t n_edges = 0;
  *one = (case_order){.count = 1 + (uint32_t)tarni_rng_below(rng, FEW)};
  for (uint32_t i = 0; i < one->count; i++) {
    one->buffers[i].bytes = tarni_rng_below(rng, 10);
    one->buffers[i].alignment = tarni_rng_below(rng, 3) == 0 ? 4 : 0;
    one->starts[i] = n_edges;
    /* The hidden sequence runs downwards, so that indices do not happen to be sorted. */
    for (uint32_t k = i + 1; k < one->count; k++) {
      if (tarni_rng_below(rng, 8) < density) {
        one->predecessors[n_edges++] = k;
        one->is_before[k][i] = true;
      }
    }
  }
  one->starts[one->count] = n_edges;
  for (uint32_t m = 0; m < one->count; m++) {
    for (uint32_t i = 0; i < one->count; i++) {
      for (uint32_t k = 0; k < one->count; k++) {
        one->is_before[i][k] |= one->is_before[i][m] && one->is_before[m][k];
      }
    }
  }
}

static bool is_ordered(const case_order *one, uint32_t a, uint32_t b) {
  return one->is_before[a][b] || one->is_before[b][a];
}

/* The heaviest subset without an ordered pair. */
static uint64_t heaviest_antichain(const case_order *one) {
  uint64_t heaviest = 0;
  for (uint32_t set = 0; set < 1u << one->count; set++) {
    uint64_t weight = 0;
    bool is_antichain = true;
    for (uint32_t a = 0; a < one->count && is_antichain; a++) {
      if ((set >> a & 1) == 0) {
        continue;
      }
      weight += one->buffers[a].bytes;
      for (uint32_t b = 0; b < a; b++) {
        is_antichain = is_antichain && ((set >> b & 1) == 0 || !is_ordered(one, a, b));
      }
    }
    heaviest = is_antichain ? tarni_max(heaviest, weight) : heaviest;
  }
  return heaviest;
}

static void lowest_of_all(const case_order *one, uint32_t placed, uint64_t *offsets,
                          uint64_t height, uint64_t *lowest) {
  if (height >= *lowest) {
    return;
  }
  if (placed == (1u << one->count) - 1) {
    *lowest = height;
    return;
  }
  for (uint32_t i = 0; i < one->count; i++) {
    uint64_t offset = 0;
    if ((placed >> i & 1) != 0) {
      continue;
    }
    for (uint32_t k = 0; k < one->count; k++) {
      if ((placed >> k & 1) != 0 && one->buffers[k].bytes != 0 && !is_ordered(one, i, k)) {
        offset = tarni_max(offset, offsets[k] + one->buffers[k].bytes);
      }
    }
    const uint64_t alignment = one->buffers[i].alignment == 0 ? 1 : one->buffers[i].alignment;
    const uint64_t bytes = one->buffers[i].bytes;
    offsets[i] = bytes == 0 ? 0 : tarni_align_up(offset, alignment);
    lowest_of_all(one, placed | 1u << i, offsets, tarni_max(height, offsets[i] + bytes), lowest);
  }
}

static void equals_brute_force(void) {
  tarni_rng rng = {11};
  int n_above = 0;
  for (int p = 0; p < PROBLEMS && !test_case_failed(); p++) {
    case_order one;
    uint64_t offsets[FEW] = {0};
    uint64_t lowest = UINT64_MAX;
    tarni_plan plan;
    random_order(&rng, &one);
    const tarni_plan_order order = {one.starts, one.predecessors};
    const tarni_plan_problem problem = {one.buffers, one.count, &order};
    tarni_run run = {.limits = &(tarni_plan_limits){0}};
    uint64_t bound = 0;
    REQUIRE_OK(tarni_antichain_bound(&problem, &run, &bound));
    CHECK_EQ(bound, heaviest_antichain(&one));
    REQUIRE_OK(tarni_plan_solve(&problem, NULL, &plan));
    lowest_of_all(&one, 0, offsets, 0, &lowest);
    CHECK_EQ(plan.height, lowest);
    CHECK(plan.is_proven);
    n_above += plan.height > bound;
    tarni_plan_release(&plan);
  }
  CHECK(n_above > 0);
}

enum { LINE = 200 };

/* Lifetimes on a time line, given as an order: the bound is the same, the plan not far from it. */
static void agrees_with_a_time_line(void) {
  tarni_rng rng = {5};
  static tarni_plan_buffer buffers[LINE];
  static uint32_t starts[LINE + 1];
  static uint32_t predecessors[LINE * LINE];
  uint32_t n_edges = 0;
  tarni_plan line;
  tarni_plan partial;
  for (uint32_t i = 0; i < LINE; i++) {
    buffers[i].bytes = 1 + tarni_rng_below(&rng, 1000);
    buffers[i].begin = tarni_rng_below(&rng, 300);
    buffers[i].end = buffers[i].begin + 1 + tarni_rng_below(&rng, 40);
  }
  for (uint32_t i = 0; i < LINE; i++) {
    starts[i] = n_edges;
    for (uint32_t k = 0; k < LINE; k++) {
      if (buffers[k].end <= buffers[i].begin) {
        predecessors[n_edges++] = k;
      }
    }
  }
  starts[LINE] = n_edges;
  const tarni_plan_order order = {starts, predecessors};
  const tarni_plan_limits limits = {.max_steps = 1000000};
  REQUIRE_OK(tarni_plan_solve(&(tarni_plan_problem){buffers, LINE, NULL}, &limits, &line));
  REQUIRE_OK(tarni_plan_solve(&(tarni_plan_problem){buffers, LINE, &order}, &limits, &partial));
  CHECK_EQ(line.bound, partial.bound);
  CHECK(partial.height <= line.height + line.height / 10);
  test_note("bound %llu, on the line %llu, as an order %llu", (unsigned long long)line.bound,
            (unsigned long long)line.height, (unsigned long long)partial.height);
  uint64_t height = 0; /* a plan of the order is a plan of the line, and the other way round */
  CHECK_OK(tarni_plan_check(&(tarni_plan_problem){buffers, LINE, NULL}, partial.offsets, &height));
  CHECK_OK(tarni_plan_check(&(tarni_plan_problem){buffers, LINE, &order}, line.offsets, &height));
  tarni_plan_release(&line);
  tarni_plan_release(&partial);
}

static void refuses_cycles(void) {
  const tarni_plan_buffer buffers[3] = {{.bytes = 1}, {.bytes = 2}, {.bytes = 3}};
  const uint32_t starts[] = {0, 1, 2, 3};
  const uint32_t around[] = {2, 0, 1};
  const tarni_plan_order order = {starts, around};
  tarni_plan plan;
  CHECK_STATUS(tarni_plan_solve(&(tarni_plan_problem){buffers, 3, &order}, NULL, &plan),
               TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "cycle");
  CHECK(plan.offsets == NULL);
}

static void checker_knows_orders(void) {
  const tarni_plan_buffer buffers[3] = {{.bytes = 8}, {.bytes = 8}, {.bytes = 8}};
  const uint32_t starts[] = {0, 0, 1, 1}; /* 0 before 1; 2 beside both */
  const uint32_t before[] = {0};
  const tarni_plan_order order = {starts, before};
  const tarni_plan_problem problem = {buffers, 3, &order};
  uint64_t height = 0;
  CHECK_OK(tarni_plan_check(&problem, (const uint64_t[]){0, 0, 8}, &height));
  CHECK_EQ(height, 16);
  CHECK_STATUS(tarni_plan_check(&problem, (const uint64_t[]){0, 8, 8}, &height), TARN_CORRUPT);
  CHECK_STATUS(tarni_plan_check(&problem, (const uint64_t[]){0, 0, 7}, &height), TARN_CORRUPT);
}

enum { MANY = 200 };

typedef struct large_order {
  uint32_t count;
  uint32_t starts[MANY + 1];
  uint32_t predecessors[MANY * MANY];
  bool is_before[MANY][MANY]; /* closed by transitivity */
} large_order;

static void large_order_fill(tarni_rng *rng, large_order *one, uint32_t count) {
  uint32_t n_edges = 0;
  *one = (large_order){.count = count};
  for (uint32_t k = 0; k < count; k++) {
    for (uint32_t i = 0; i < k; i++) {
      const bool is_edge = tarni_rng_below(rng, 40) == 0;
      for (uint32_t m = 0; m < count && is_edge; m++) {
        one->is_before[m][k] |= m == i || one->is_before[m][i];
      }
      one->predecessors[n_edges] = i;
      n_edges += is_edge;
    }
    one->starts[k + 1] = n_edges;
  }
}

/* Conflicts of more buffers than a word has bits, against the closure of all pairs. */
static void conflicts_of_many(void) {
  static large_order one;
  static const tarni_plan_buffer buffers[MANY];
  tarni_rng rng = {11};
  for (uint32_t n = 60; n <= MANY; n += 7) {
    large_order_fill(&rng, &one, n);
    const tarni_plan_order order = {one.starts, one.predecessors};
    const tarni_plan_problem problem = {.buffers = buffers, .count = n, .order = &order};
    uint64_t *conflicts = NULL, n_wrong = 0;
    size_t words = 0;
    REQUIRE_OK(tarni_order_conflicts(&problem, &conflicts, &words));
    for (uint32_t i = 0; i < n; i++) {
      for (uint32_t k = 0; k < n; k++) {
        const bool is_conflict = (conflicts[i * words + k / 64] >> (k % 64) & 1) != 0;
        n_wrong += is_conflict != (i != k && !one.is_before[i][k] && !one.is_before[k][i]);
      }
    }
    CHECK_EQ(n_wrong, 0);
    free(conflicts);
  }
}

/* All of a chain are ordered, in the order of their numbers or against it. */
static void chain_check(bool is_down) {
  enum { CHAIN = 2000 };
  static tarni_plan_buffer buffers[CHAIN];
  static uint32_t starts[CHAIN + 1], predecessors[CHAIN];
  uint64_t *conflicts = NULL;
  size_t words = 0;
  uint32_t n_edges = 0;
  for (uint32_t i = 0; i < CHAIN; i++) {
    starts[i] = n_edges;
    if (is_down ? i + 1 < CHAIN : i != 0) {
      predecessors[n_edges++] = is_down ? i + 1 : i - 1;
    }
  }
  starts[CHAIN] = n_edges;
  const tarni_plan_order order = {starts, predecessors};
  const tarni_plan_problem problem = {.buffers = buffers, .count = CHAIN, .order = &order};
  CHECK_OK(tarni_order_conflicts(&problem, &conflicts, &words));
  bool is_ordered = conflicts != NULL;
  for (size_t i = 0; i < CHAIN && is_ordered; i++) {
    for (size_t word = 0; word < CHAIN / 64; word++) {
      is_ordered = is_ordered && conflicts[i * words + word] == 0;
    }
  }
  CHECK(is_ordered);
  free(conflicts);
}

static void a_chain_against_its_numbers(void) {
  chain_check(false);
  chain_check(true);
}

static bool always(void *context) {
  (void)context;
  return true;
}

/* A chain needs the bytes of one. When the time is up after the first few, the others are on top.
 */
static void stops_when_asked(void) {
  enum { LINKS = 2000, PLACED = 255 };
  static tarni_plan_buffer buffers[LINKS];
  static uint32_t starts[LINKS + 1], predecessors[LINKS];
  const tarni_plan_order order = {starts, predecessors};
  const tarni_plan_problem problem = {.buffers = buffers, .count = LINKS, .order = &order};
  tarni_plan plan;
  for (uint32_t i = 0; i < LINKS; i++) {
    buffers[i].bytes = 8;
    starts[i + 1] = i;
    predecessors[i] = i;
  }
  starts[LINKS] = LINKS - 1;
  REQUIRE_OK(tarni_plan_solve(&problem, NULL, &plan));
  CHECK_EQ(plan.height, 8);
  tarni_plan_release(&plan);
  REQUIRE_OK(tarni_plan_solve(&problem, &(tarni_plan_limits){.should_stop = always}, &plan));
  CHECK_EQ(plan.height, 8 * (1 + LINKS - PLACED));
  CHECK_EQ(plan.bound, 8);
  tarni_plan_release(&plan);
}

static const test_case cases[] = {
    {"conflicts of many", conflicts_of_many},
    {"equals_brute_force", equals_brute_force},
    {"agrees_with_a_time_line", agrees_with_a_time_line},
    {"refuses_cycles", refuses_cycles},
    {"checker_knows_orders", checker_knows_orders},
    {"stops_when_asked", stops_when_asked},
    {"a chain against its numbers", a_chain_against_its_numbers},
};

TEST_MAIN(cases)
