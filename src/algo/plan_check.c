/* SPDX-License-Identifier: MIT
 *
 * The independent checker: it looks at a problem and at offsets and at nothing that the planner
 * computed on its way. Time lines are swept; partial orders are compared pair by pair. No locks. */
#include <stdlib.h>

#include "algo/bitset.h"
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

/* ---- Time lines: a sweep with the live buffers as a set of ranks ---------------------------- */

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

typedef struct check_place {
  uint64_t offset;
  uint32_t buffer;
} check_place;

static int compare_places(const void *a, const void *b) {
  const check_place *x = a;
  const check_place *y = b;
  if (x->offset != y->offset) {
    return x->offset < y->offset ? -1 : 1;
  }
  return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* What a sweep works with. A buffer's rank is its place by offset among all. */
typedef struct check_sweep {
  check_event *events;
  size_t n_events;
  check_place *places; /* by rank */
  uint32_t *ranks;     /* by buffer */
  tarni_bitset live;   /* ranks */
} check_sweep;

static void rank_all(const tarni_plan_problem *problem, const uint64_t *offsets,
                     check_sweep *sweep) {
  for (uint32_t i = 0; i < problem->count; i++) {
    sweep->places[i] = (check_place){offsets[i], i};
  }
  qsort(sweep->places, problem->count, sizeof(*sweep->places), compare_places);
  for (uint32_t rank = 0; rank < problem->count; rank++) {
    sweep->ranks[sweep->places[rank].buffer] = rank;
  }
}

/* Live buffers do not overlap, so a new one meets any only if it meets the next below or above. */
static tarn_status check_begin(const tarni_plan_problem *problem, const uint64_t *offsets,
                               const check_sweep *sweep, uint32_t i) {
  const uint64_t above = tarni_bitset_from(&sweep->live, sweep->ranks[i]);
  const uint64_t below = tarni_bitset_below(&sweep->live, sweep->ranks[i]);
  if (above != TARNI_BITSET_NONE) {
    const uint32_t other = sweep->places[above].buffer;
    if (offsets[other] - offsets[i] < problem->buffers[i].bytes) {
      return fail_overlap(problem, offsets, other, i);
    }
  }
  if (below != TARNI_BITSET_NONE) {
    const uint32_t other = sweep->places[below].buffer;
    if (offsets[i] - offsets[other] < problem->buffers[other].bytes) {
      return fail_overlap(problem, offsets, other, i);
    }
  }
  return TARN_OK;
}

static tarn_status run_sweep(const tarni_plan_problem *problem, const uint64_t *offsets,
                             check_sweep *sweep) {
  rank_all(problem, offsets, sweep);
  qsort(sweep->events, sweep->n_events, sizeof(*sweep->events), compare_events);
  for (size_t e = 0; e < sweep->n_events; e++) {
    const uint32_t i = sweep->events[e].buffer;
    if (sweep->events[e].is_begin) {
      TARN_TRY(check_begin(problem, offsets, sweep, i));
      tarni_bitset_add(&sweep->live, sweep->ranks[i]);
    } else {
      tarni_bitset_remove(&sweep->live, sweep->ranks[i]);
    }
  }
  return TARN_OK;
}

static tarn_status check_times(const tarni_plan_problem *problem, const uint64_t *offsets) {
  const size_t n = (size_t)problem->count + 1;
  check_sweep sweep = {.events = calloc(2 * n, sizeof(*sweep.events)),
                       .places = calloc(n, sizeof(*sweep.places)),
                       .ranks = calloc(n, sizeof(*sweep.ranks))};
  tarn_status status = TARN_OK;
  const bool has_set = tarni_bitset_open(&sweep.live, n);
  if (sweep.events == NULL || sweep.places == NULL || sweep.ranks == NULL || !has_set) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan_check", NULL, "Free host memory.",
                        "no memory to check %u buffers", problem->count);
  } else {
    for (uint32_t i = 0; i < problem->count; i++) {
      if (takes_memory(problem, i)) {
        sweep.events[sweep.n_events++] = (check_event){problem->buffers[i].begin, i, true};
        sweep.events[sweep.n_events++] = (check_event){problem->buffers[i].end, i, false};
      }
    }
    status = run_sweep(problem, offsets, &sweep);
  }
  free(sweep.events);
  free(sweep.places);
  free(sweep.ranks);
  tarni_bitset_close(&sweep.live);
  return status;
}

/* ---- Partial orders ------------------------------------------------------------------------- */

/* One buffer against those before it that it may live with: 64 of the others at a time. */
static tarn_status check_row(const tarni_plan_problem *problem, const uint64_t *offsets,
                             const uint64_t *conflicts, uint32_t a) {
  const uint64_t bottom = offsets[a], top = offsets[a] + problem->buffers[a].bytes;
  for (uint32_t word = 0; word <= a / 64 && takes_memory(problem, a); word++) {
    for (uint64_t left = conflicts[word]; left != 0; left &= left - 1) {
      const uint32_t b = word * 64 + (uint32_t)tarni_low_bit(left);
      if (b >= a) {
        break;
      }
      if (bottom < offsets[b] + problem->buffers[b].bytes && offsets[b] < top &&
          takes_memory(problem, b)) {
        return fail_overlap(problem, offsets, b, a);
      }
    }
  }
  return TARN_OK;
}

static tarn_status check_order(const tarni_plan_problem *problem, const uint64_t *offsets) {
  uint64_t *conflicts = NULL;
  size_t words = 0;
  tarn_status status = TARN_OK;
  TARN_TRY(tarni_order_conflicts(problem, &conflicts, &words));
  for (uint32_t a = 0; a < problem->count && status == TARN_OK; a++) {
    status = check_row(problem, offsets, conflicts + a * words, a);
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
