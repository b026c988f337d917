/* SPDX-License-Identifier: MIT
 *
 * The way through the planner: prepare, place fast, search, improve, check. Keeps the budget and
 * the best plan of a call. Knows no clock and holds no state between calls; no locks. */
#include "algo/plan.h"

#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"

enum { RUN_POLL_STEPS = 16 };

bool tarni_run_poll(tarni_run *run) {
  const tarni_plan_limits *limits = run->limits;
  if (!run->is_stopped && limits->should_stop != NULL) {
    run->is_stopped = limits->should_stop(limits->context);
  }
  return run->is_stopped;
}

bool tarni_run_step(tarni_run *run, uint64_t steps) {
  const tarni_plan_limits *limits = run->limits;
  run->steps += steps;
  if (limits->max_steps != 0 && run->steps >= limits->max_steps) {
    run->is_stopped = true;
  }
  if (run->steps >= run->next_poll) {
    run->next_poll = run->steps + RUN_POLL_STEPS;
    (void)tarni_run_poll(run);
  }
  return run->is_stopped;
}

bool tarni_run_is_done(const tarni_run *run) {
  return run->height <= tarni_max(run->bound, run->limits->capacity);
}

void tarni_run_offer(tarni_run *run, const uint64_t *offsets, uint64_t height) {
  if (height >= run->height) {
    return;
  }
  memcpy(run->best, offsets, run->scene->count * sizeof(*offsets));
  run->height = height;
  if (run->limits->progress != NULL) {
    run->limits->progress(run->limits->context, height, run->bound);
  }
}

/* Fewer buffers are the search's alone; up to its own limit it has most of the time. */
enum { PROMOTE_COUNT = 512, PROMOTE_SHORT = 20, PROMOTE_LONG = 100 };

/* Everything between the prepared scene and the finished offsets. */
static tarn_status run_all(tarni_run *run) {
  tarni_sorter sorter;
  TARN_TRY(tarni_sorter_create(run->scene, &sorter));
  tarn_status status = tarni_greedy_run(run, &sorter);
  const bool is_small = tarni_search_fits(run->scene);
  if (status == TARN_OK && run->scene->count >= PROMOTE_COUNT && !tarni_run_is_done(run) &&
      !run->is_stopped) {
    status = tarni_promote_run(run, &sorter, is_small ? PROMOTE_SHORT : PROMOTE_LONG);
  }
  if (status == TARN_OK && is_small && !tarni_run_is_done(run) && !run->is_stopped) {
    status = tarni_search_run(run, &sorter);
  }
  if (status == TARN_OK && !is_small && !tarni_run_is_done(run) && !run->is_stopped) {
    status = tarni_window_run(run);
  }
  tarni_sorter_destroy(&sorter);
  return status;
}

static void fill_plan(const tarni_run *run, tarni_plan *plan) {
  const tarni_scene *scene = run->scene;
  for (uint32_t i = 0; i < scene->count; i++) {
    plan->offsets[scene->ids[i]] = run->best[i];
  }
  plan->height = scene->count == 0 ? 0 : run->height;
  plan->bound = run->bound;
  plan->steps = run->steps;
  plan->is_proven = plan->height == run->bound;
  plan->is_over = run->limits->capacity != 0 && run->bound > run->limits->capacity;
  if (scene->sections != 0) {
    plan->bind_begin = scene->times[scene->bind_section];
    plan->bind_end = scene->times[scene->bind_section + 1];
  }
}

static tarn_status solve_times(const tarni_plan_problem *problem, const tarni_plan_limits *limits,
                               tarni_plan *plan) {
  tarni_scene scene;
  TARN_TRY(tarni_scene_create(problem, &scene));
  tarni_run run = {.scene = &scene, .limits = limits, .bound = scene.bound, .height = UINT64_MAX};
  tarn_status status = TARN_OK;
  run.best = calloc((size_t)scene.count + 1, sizeof(*run.best));
  if (run.best == NULL) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                        "no memory for a plan of %u buffers", scene.count);
  }
  if (status == TARN_OK && scene.count != 0) {
    status = run_all(&run);
  }
  if (status == TARN_OK) {
    fill_plan(&run, plan);
  }
  free(run.best);
  tarni_scene_destroy(&scene);
  return status;
}

tarn_status tarni_plan_solve(const tarni_plan_problem *problem, const tarni_plan_limits *limits,
                             tarni_plan *plan) {
  static const tarni_plan_limits no_limits = {0};
  uint64_t height = 0;
  *plan = (tarni_plan){.count = problem->count};
  plan->offsets = calloc((size_t)problem->count + 1, sizeof(*plan->offsets));
  if (plan->offsets == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for the offsets of %u buffers", problem->count);
  }
  const tarni_plan_limits *given = limits == NULL ? &no_limits : limits;
  tarn_status status = problem->order == NULL ? solve_times(problem, given, plan)
                                              : tarni_order_solve(problem, given, plan);
  if (status == TARN_OK) {
    status = tarni_plan_check(problem, plan->offsets, &height);
  }
  if (status == TARN_OK && height != plan->height) {
    status = tarni_fail(TARN_CORRUPT, "plan", NULL, "Report this with the problem's file.",
                        "the plan says it is %llu bytes high and is %llu",
                        (unsigned long long)plan->height, (unsigned long long)height);
  }
  if (status != TARN_OK) {
    tarni_plan_release(plan);
  }
  return status;
}

void tarni_plan_release(tarni_plan *plan) {
  free(plan->offsets);
  *plan = (tarni_plan){0};
}
