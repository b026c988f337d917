/* SPDX-License-Identifier: MIT
 *
 * The public face of the planner: structs of any version in, the algorithm with a clock, a plan
 * out. A plan is immutable once made; no locks. */
#include "tarn/plan.h"

#include <stdlib.h>
#include <time.h>

#include "algo/plan.h"
#include "base/bits.h"

struct tarn_plan {
  tarni_plan plan;
  uint64_t fingerprint;
};

/* The two buffers are the same struct under two names, so arrays need no copy. */
_Static_assert(sizeof(tarn_plan_buffer) == sizeof(tarni_plan_buffer), "one layout");
_Static_assert(offsetof(tarn_plan_buffer, bytes) == offsetof(tarni_plan_buffer, bytes), "bytes");
_Static_assert(offsetof(tarn_plan_buffer, begin) == offsetof(tarni_plan_buffer, begin), "begin");
_Static_assert(offsetof(tarn_plan_buffer, end) == offsetof(tarni_plan_buffer, end), "end");
_Static_assert(offsetof(tarn_plan_buffer, alignment) == offsetof(tarni_plan_buffer, alignment),
               "alignment");

/* ---- Problems ------------------------------------------------------------------------------- */

typedef struct plan_view {
  tarni_plan_problem problem;
  tarni_plan_order order;
} plan_view;

static tarn_status check_predecessors(const tarn_plan_problem *given, const char *operation) {
  const uint32_t *starts = given->predecessor_starts;
  for (uint64_t i = 0; i < given->count; i++) {
    if (starts[0] != 0 || starts[i + 1] < starts[i] ||
        (given->predecessors == NULL && starts[i + 1] != 0)) {
      return tarni_fail(TARN_INVALID, operation, NULL,
                        "Start at 0, never fall, and give the list that they point into.",
                        "predecessor_starts is wrong at buffer %llu", (unsigned long long)i);
    }
    for (uint32_t k = starts[i]; k < starts[i + 1]; k++) {
      if (given->predecessors[k] >= given->count) {
        return tarni_fail(TARN_INVALID, operation, NULL, "Name buffers by their index.",
                          "buffer %llu has the predecessor %u and there are %llu buffers",
                          (unsigned long long)i, given->predecessors[k],
                          (unsigned long long)given->count);
      }
    }
  }
  return TARN_OK;
}

static tarn_status view_problem(const tarn_plan_problem *problem, const char *operation,
                                plan_view *view) {
  tarn_plan_problem given = {.size = sizeof(given)};
  TARN_TRY(tarni_struct_in(problem, &given, sizeof(given), operation));
  if ((given.buffers == NULL && given.count != 0) || given.count >= UINT32_MAX) {
    return tarni_fail(TARN_INVALID, operation, NULL,
                      "Pass an array and the number of its elements.",
                      "the problem has %llu buffers%s", (unsigned long long)given.count,
                      given.buffers == NULL ? " and no array of them" : "");
  }
  *view = (plan_view){0};
  view->problem.buffers = (const tarni_plan_buffer *)(const void *)given.buffers;
  view->problem.count = (uint32_t)given.count;
  if (given.predecessor_starts != NULL) {
    TARN_TRY(check_predecessors(&given, operation));
    view->order = (tarni_plan_order){given.predecessor_starts, given.predecessors};
    view->problem.order = &view->order;
  }
  return TARN_OK;
}

/* ---- The clock ------------------------------------------------------------------------------ */

typedef struct plan_clock {
  uint64_t deadline_ns;
  void (*progress)(void *context, uint64_t height, uint64_t bound);
  void *context;
} plan_clock;

static const uint64_t default_ns = UINT64_C(10000000000);

static uint64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static bool is_late(void *context) {
  return now_ns() >= ((const plan_clock *)context)->deadline_ns;
}

static void pass_progress(void *context, uint64_t height, uint64_t bound) {
  const plan_clock *clock = context;
  if (clock->progress != NULL) {
    clock->progress(clock->context, height, bound);
  }
}

/* ---- Plans ---------------------------------------------------------------------------------- */

static tarn_status fail_null(const char *operation, const char *what) {
  return tarni_fail(TARN_INVALID, operation, NULL, "Pass a valid pointer.", "%s is NULL", what);
}

/* Wraps a finished plan; takes it over in every case. */
static tarn_status wrap_plan(const plan_view *view, tarni_plan *made, const char *operation,
                             tarn_plan **plan) {
  *plan = calloc(1, sizeof(**plan));
  if (*plan == NULL) {
    tarni_plan_release(made);
    return tarni_fail(TARN_HOST_MEMORY, operation, NULL, "Free host memory.",
                      "no memory for the plan");
  }
  (*plan)->plan = *made;
  (*plan)->fingerprint = tarni_plan_fingerprint(&view->problem);
  return TARN_OK;
}

tarn_status tarn_plan_create(const tarn_plan_problem *problem, const tarn_plan_options *options,
                             tarn_plan **plan) {
  static const char operation[] = "tarn_plan_create";
  tarn_plan_options given = {.size = sizeof(given)};
  plan_view view;
  tarni_plan made;
  if (plan == NULL || problem == NULL) {
    return fail_null(operation, plan == NULL ? "the plan's address" : "the problem");
  }
  *plan = NULL;
  if (options != NULL) {
    TARN_TRY(tarni_struct_in(options, &given, sizeof(given), operation));
  }
  TARN_TRY(view_problem(problem, operation, &view));
  plan_clock clock = {.progress = given.progress, .context = given.context};
  if (!tarni_add(now_ns(), given.max_ns == 0 ? default_ns : given.max_ns, &clock.deadline_ns)) {
    clock.deadline_ns = UINT64_MAX;
  }
  const tarni_plan_limits limits = {.should_stop = is_late,
                                    .progress = pass_progress,
                                    .context = &clock,
                                    .max_steps = given.max_steps,
                                    .capacity = given.capacity};
  TARN_TRY(tarni_plan_solve(&view.problem, &limits, &made));
  return wrap_plan(&view, &made, operation, plan);
}

void tarn_plan_destroy(tarn_plan *plan) {
  if (plan != NULL) {
    tarni_plan_release(&plan->plan);
    free(plan);
  }
}

tarn_status tarn_plan_get_info(const tarn_plan *plan, tarn_plan_info *info) {
  if (plan == NULL || info == NULL) {
    return fail_null("tarn_plan_get_info", plan == NULL ? "the plan" : "the info's address");
  }
  const tarn_plan_info full = {.size = sizeof(full),
                               .count = plan->plan.count,
                               .height = plan->plan.height,
                               .bound = plan->plan.bound,
                               .bind_begin = plan->plan.bind_begin,
                               .bind_end = plan->plan.bind_end,
                               .steps = plan->plan.steps,
                               .fingerprint = plan->fingerprint,
                               .is_proven = plan->plan.is_proven,
                               .is_over = plan->plan.is_over};
  return tarni_struct_out(info, &full, sizeof(full), "tarn_plan_get_info");
}

const uint64_t *tarn_plan_offsets(const tarn_plan *plan) {
  return plan == NULL ? NULL : plan->plan.offsets;
}

tarn_status tarn_plan_check(const tarn_plan_problem *problem, const uint64_t *offsets,
                            uint64_t *height) {
  plan_view view;
  if (height != NULL) {
    *height = 0;
  }
  if (problem == NULL || offsets == NULL || height == NULL) {
    return fail_null("tarn_plan_check", "the problem, the offsets or the height's address");
  }
  TARN_TRY(view_problem(problem, "tarn_plan_check", &view));
  return tarni_plan_check(&view.problem, offsets, height);
}

tarn_status tarn_plan_save(const tarn_plan *plan, char **text, size_t *length) {
  if (plan == NULL || text == NULL || length == NULL) {
    return fail_null("tarn_plan_save", "the plan, the text's or the length's address");
  }
  return tarni_plan_save(&plan->plan, plan->fingerprint, text, length);
}

tarn_status tarn_plan_load(const tarn_plan_problem *problem, const char *text, size_t length,
                           tarn_plan **plan) {
  plan_view view;
  tarni_plan made;
  if (plan == NULL || problem == NULL || text == NULL) {
    return fail_null("tarn_plan_load", "the problem, the text or the plan's address");
  }
  *plan = NULL;
  TARN_TRY(view_problem(problem, "tarn_plan_load", &view));
  TARN_TRY(tarni_plan_load(&view.problem, text, length, &made));
  return wrap_plan(&view, &made, "tarn_plan_load", plan);
}

tarn_status tarn_plan_read(const char *text, size_t length, tarn_plan_buffer **buffers,
                           uint64_t **ids, uint64_t *count) {
  tarni_plan_table table;
  if (text == NULL || buffers == NULL || ids == NULL || count == NULL) {
    return fail_null("tarn_plan_read", "the text or an output's address");
  }
  *buffers = NULL;
  *ids = NULL;
  *count = 0;
  TARN_TRY(tarni_plan_read(text, length, &table));
  *buffers = (tarn_plan_buffer *)(void *)table.buffers;
  *ids = table.ids;
  *count = table.count;
  return TARN_OK;
}
