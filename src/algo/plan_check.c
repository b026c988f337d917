/* SPDX-License-Identifier: MIT
 *
 * The independent checker: it looks at a problem and at offsets and at nothing that the planner
 * computed on its way. Time lines are swept; partial orders are compared pair by pair. No locks. */
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"

static bool takes_memory(const tarni_plan_problem *problem, uint32_t i) {
  const tarni_plan_buffer *buffer = &problem->buffers[i];
  return buffer->bytes != 0 && (problem->order != NULL || buffer->begin < buffer->end);
}

static tarn_status fail_overlap(const tarni_plan_problem *problem, const uint64_t *offsets,
                                uint32_t a, uint32_t b) {
  return tarni_fail(TARN_CORRUPT, "plan_check", NULL, "Do not use this plan.",
                    "buffers %u (%llu bytes at %llu) and %u (%llu bytes at %llu) live at the same "
                    "time and share memory",
                    a, (unsigned long long)problem->buffers[a].bytes,
                    (unsigned long long)offsets[a], b,
                    (unsigned long long)problem->buffers[b].bytes, (unsigned long long)offsets[b]);
}

static tarn_status check_each(const tarni_plan_problem *problem, const uint64_t *offsets,
                              uint64_t *height) {
  for (uint32_t i = 0; i < problem->count; i++) {
    const tarni_plan_buffer *buffer = &problem->buffers[i];
    uint64_t top = 0;
    if (!takes_memory(problem, i)) {
      continue;
    }
    if (buffer->alignment > 1 && offsets[i] % buffer->alignment != 0) {
      return tarni_fail(TARN_CORRUPT, "plan_check", NULL, "Do not use this plan.",
                        "the offset %llu of buffer %u is not a multiple of %llu",
                        (unsigned long long)offsets[i], i, (unsigned long long)buffer->alignment);
    }
    if (!tarni_add(offsets[i], buffer->bytes, &top)) {
      return tarni_fail(TARN_CORRUPT, "plan_check", NULL, "Do not use this plan.",
                        "buffer %u at %llu ends beyond 2^64", i, (unsigned long long)offsets[i]);
    }
    *height = tarni_max(*height, top);
  }
  return TARN_OK;
}

/* ---- Time lines: a sweep with the live buffers sorted by offset ----------------------------- */

typedef struct check_event {
  uint64_t time;
  uint32_t buffer;
  bool is_begin;
} check_event;

/* Ends come before begins of the same time: lifetimes are half open. */
static int compare_events(const void *a, const void *b) {
  const check_event *x = a;
  const check_event *y = b;
  if (x->time != y->time) {
    return x->time < y->time ? -1 : 1;
  }
  if (x->is_begin != y->is_begin) {
    return x->is_begin ? 1 : -1;
  }
  return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* The index of the first live buffer at or above an offset. */
static uint32_t live_at(const uint64_t *offsets, const uint32_t *live, uint32_t n_live,
                        uint64_t offset) {
  uint32_t low = 0;
  uint32_t high = n_live;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (offsets[live[middle]] < offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static tarn_status sweep(const tarni_plan_problem *problem, const uint64_t *offsets,
                         const check_event *events, size_t n_events, uint32_t *live) {
  uint32_t n_live = 0;
  for (size_t e = 0; e < n_events; e++) {
    const uint32_t i = events[e].buffer;
    const uint32_t at = live_at(offsets, live, n_live, offsets[i]);
    if (!events[e].is_begin) {
      tarn_assert(at < n_live && live[at] == i);
      memmove(live + at, live + at + 1, (n_live - at - 1) * sizeof(*live));
      n_live--;
      continue;
    }
    if (at < n_live && offsets[live[at]] - offsets[i] < problem->buffers[i].bytes) {
      return fail_overlap(problem, offsets, live[at], i);
    }
    if (at > 0 && offsets[i] - offsets[live[at - 1]] < problem->buffers[live[at - 1]].bytes) {
      return fail_overlap(problem, offsets, live[at - 1], i);
    }
    memmove(live + at + 1, live + at, (n_live - at) * sizeof(*live));
    live[at] = i;
    n_live++;
  }
  return TARN_OK;
}

static tarn_status check_times(const tarni_plan_problem *problem, const uint64_t *offsets) {
  check_event *events = calloc(2 * (size_t)problem->count + 1, sizeof(*events));
  uint32_t *live = calloc((size_t)problem->count + 1, sizeof(*live));
  tarn_status status = TARN_OK;
  size_t n_events = 0;
  if (events == NULL || live == NULL) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan_check", NULL, "Free host memory.",
                        "no memory to check %u buffers", problem->count);
  } else {
    for (uint32_t i = 0; i < problem->count; i++) {
      if (takes_memory(problem, i)) {
        events[n_events++] = (check_event){problem->buffers[i].begin, i, true};
        events[n_events++] = (check_event){problem->buffers[i].end, i, false};
      }
    }
    qsort(events, n_events, sizeof(*events), compare_events);
    status = sweep(problem, offsets, events, n_events, live);
  }
  free(events);
  free(live);
  return status;
}

/* ---- Partial orders ------------------------------------------------------------------------- */

static tarn_status check_order(const tarni_plan_problem *problem, const uint64_t *offsets) {
  uint64_t *conflicts = NULL;
  size_t words = 0;
  tarn_status status = TARN_OK;
  TARN_TRY(tarni_order_conflicts(problem, &conflicts, &words));
  for (uint32_t a = 0; a < problem->count && status == TARN_OK; a++) {
    for (uint32_t b = 0; b < a && status == TARN_OK; b++) {
      const bool is_conflict = (conflicts[a * words + b / 64] >> (b % 64) & 1) != 0;
      if (is_conflict && takes_memory(problem, a) && takes_memory(problem, b) &&
          offsets[a] < offsets[b] + problem->buffers[b].bytes &&
          offsets[b] < offsets[a] + problem->buffers[a].bytes) {
        status = fail_overlap(problem, offsets, b, a);
      }
    }
  }
  free(conflicts);
  return status;
}

tarn_status tarni_plan_check(const tarni_plan_problem *problem, const uint64_t *offsets,
                             uint64_t *height) {
  *height = 0;
  TARN_TRY(check_each(problem, offsets, height));
  return problem->order == NULL ? check_times(problem, offsets) : check_order(problem, offsets);
}
