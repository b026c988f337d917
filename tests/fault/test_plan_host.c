/* SPDX-License-Identifier: MIT
 *
 * The planner while host memory fails: the n-th allocation, for every n, once and for good. A call
 * that has not got what it needs says so and gives nothing; what it gives is a valid plan. */
#include <stdlib.h>

#include "base/rng.h"
#include "fault/fault_memory.h"
#include "support/test.h"
#include "tarn/plan.h"

enum { BUFFERS = 60, MAX_FAULTS = 4000 };

static tarn_plan_buffer buffers[BUFFERS];
static uint32_t starts[BUFFERS + 1], predecessors[BUFFERS * BUFFERS];

static tarn_plan_problem problem_of(bool is_ordered) {
  tarni_rng rng = {.state = 5};
  uint32_t n = 0;
  for (uint32_t i = 0; i < BUFFERS; i++) {
    const uint64_t begin = tarni_rng_below(&rng, 40);
    buffers[i] = (tarn_plan_buffer){.bytes = 1 + tarni_rng_below(&rng, 1000),
                                    .begin = begin,
                                    .end = begin + 1 + tarni_rng_below(&rng, 12),
                                    .alignment = (uint64_t)1 << tarni_rng_below(&rng, 5)};
    for (uint32_t k = 0; k < i; k++) {
      if (tarni_rng_below(&rng, 4) == 0) {
        predecessors[n++] = k;
      }
    }
    starts[i + 1] = n;
  }
  return (tarn_plan_problem){.size = sizeof(tarn_plan_problem),
                             .buffers = buffers,
                             .count = BUFFERS,
                             .predecessor_starts = is_ordered ? starts : NULL,
                             .predecessors = is_ordered ? predecessors : NULL};
}

static void check_plan(const tarn_plan_problem *problem, tarn_status status, tarn_plan *plan) {
  if (status != TARN_OK) {
    CHECK_STATUS(status, TARN_HOST_MEMORY);
    CHECK(plan == NULL);
    return;
  }
  tarn_plan_info info = {.size = sizeof(info)};
  uint64_t height = 0;
  CHECK_OK(tarn_plan_get_info(plan, &info));
  CHECK_OK(tarn_plan_check(problem, tarn_plan_offsets(plan), &height));
  CHECK_EQ(height, info.height);
  tarn_plan_destroy(plan);
}

/* Every allocation of making a plan and, with text, of loading one. */
static void every_need_fails(const tarn_plan_problem *problem, const char *text, size_t length) {
  const tarn_plan_options options = {.size = sizeof(options), .max_steps = 2000};
  uint64_t n_struck = 1, n_faults = 0;
  for (uint64_t nth = 1; n_struck != 0 && nth < MAX_FAULTS && !test_case_failed(); nth++) {
    tarn_plan *plan = (tarn_plan *)(void *)buffers;
    fault_memory_arm(nth, nth % 2 == 0);
    fault_memory_inside(true);
    const tarn_status status = text != NULL ? tarn_plan_load(problem, text, length, &plan)
                                            : tarn_plan_create(problem, &options, &plan);
    fault_memory_inside(false);
    n_struck = fault_memory_disarm();
    n_faults += n_struck != 0;
    check_plan(problem, status, plan);
  }
  CHECK(n_faults != 0);
}

static void making_plans(void) {
  if (!fault_memory_can_fail()) {
    test_skip("another allocator is at work here");
    return;
  }
  for (int is_ordered = 0; is_ordered < 2; is_ordered++) {
    const tarn_plan_problem problem = problem_of(is_ordered != 0);
    every_need_fails(&problem, NULL, 0);
  }
}

static void loading_plans(void) {
  if (!fault_memory_can_fail()) {
    test_skip("another allocator is at work here");
    return;
  }
  const tarn_plan_problem problem = problem_of(false);
  const tarn_plan_options options = {.size = sizeof(options), .max_steps = 2000};
  tarn_plan *plan = NULL;
  char *text = NULL;
  size_t length = 0;
  REQUIRE_OK(tarn_plan_create(&problem, &options, &plan));
  REQUIRE_OK(tarn_plan_save(plan, &text, &length));
  tarn_plan_destroy(plan);
  every_need_fails(&problem, text, length);
  free(text);
}

static const test_case cases[] = {
    {"making plans", making_plans},
    {"loading plans", loading_plans},
};

TEST_MAIN(cases)
