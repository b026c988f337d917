/* SPDX-License-Identifier: MIT
 *
 * Orders that learn, for scenes that are large for the exact search, or too large. All buffers are
 * placed first fit in an order, below a ceiling somewhat lower than the best plan of that order.
 * The first one that does not fit goes to the front of the order, and everything is placed anew:
 * what is hard to place comes first after a while. Where a ceiling cannot be reached in many tries
 * the next one is less ambitious. Several orders take turns, each with its own history. Pure, no
 * locks. */
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"

enum {
  PROMOTE_TRIES = 40, /* at a ceiling */
  PROMOTE_TURN = 4,   /* placements of all buffers before another order has its turn */
};

/* A ceiling is below the best plan by the gap to the bound, shifted. */
enum { PROMOTE_SHIFT_MIN = 2, PROMOTE_SHIFT = 3, PROMOTE_SHIFT_MAX = 40 };

static const tarni_sort promote_sorts[] = {
    {{TARNI_SORT_LOAD, TARNI_SORT_LATE_END, TARNI_SORT_SIZE}},
    {{TARNI_SORT_WIDTH_CLASS, TARNI_SORT_LOAD, TARNI_SORT_SIZE}},
    {{TARNI_SORT_LOAD, TARNI_SORT_SPAN, TARNI_SORT_SIZE}},
    {{TARNI_SORT_LOAD, TARNI_SORT_SIZE, TARNI_SORT_LATE_END}},
};
enum { PROMOTE_LINES = sizeof(promote_sorts) / sizeof(promote_sorts[0]) };

typedef struct promote_line {
  uint32_t *order;
  uint64_t height; /* the best plan of this order; UINT64_MAX: none yet */
  unsigned shift;
  uint32_t n_tries; /* at this ceiling */
  uint64_t n_stale; /* buffers placed since there was a lower plan */
} promote_line;

static uint64_t ceiling_of(const promote_line *line, uint64_t bound) {
  if (line->height == UINT64_MAX) {
    return UINT64_MAX;
  }
  const uint64_t gap = line->height - bound;
  return tarni_max(bound + 1, line->height - (gap >> line->shift));
}

static void promote(promote_line *line, uint32_t position) {
  const uint32_t buffer = line->order[position];
  memmove(line->order + 1, line->order, position * sizeof(*line->order));
  line->order[0] = buffer;
}

/* The first of those at the top. */
static uint32_t find_top(const tarni_scene *scene, const tarni_placing *placing) {
  uint32_t position = 0;
  while (placing->offsets[placing->order[position]] + scene->bytes[placing->order[position]] !=
         placing->height) {
    position++;
    tarn_assert(position < scene->count && "something is at the top");
  }
  return position;
}

static void note_lower(promote_line *line, uint64_t height) {
  line->height = height;
  line->n_tries = 0;
  line->n_stale = 0;
  line->shift -= line->shift > PROMOTE_SHIFT_MIN;
}

static void note_failed(promote_line *line, uint32_t n_placed) {
  line->n_stale += n_placed + 1;
  if (++line->n_tries == PROMOTE_TRIES) {
    line->n_tries = 0;
    line->shift = line->shift < PROMOTE_SHIFT_MAX ? line->shift + 1 : PROMOTE_SHIFT;
  }
}

/* One placement of everything, or of as much as fits. */
static tarn_status try_line(tarni_run *run, promote_line *line, uint64_t *offsets) {
  const tarni_scene *scene = run->scene;
  tarni_placing placing = {.order = line->order,
                           .fit = TARNI_FIT_FIRST,
                           .ceiling = ceiling_of(line, run->bound),
                           .offsets = offsets};
  TARN_TRY(tarni_greedy_place(scene, &placing));
  (void)tarni_run_step(run, (uint64_t)placing.n_placed + 1);
  if (placing.height == UINT64_MAX) {
    note_failed(line, placing.n_placed);
    promote(line, placing.n_placed);
    return TARN_OK;
  }
  note_lower(line, placing.height);
  tarni_run_offer(run, offsets, placing.height);
  promote(line, find_top(scene, &placing));
  return TARN_OK;
}

static bool is_over(const tarni_run *run) {
  return tarni_run_is_done(run) || run->is_stopped;
}

/* Tries of one line, until others have their turn, or it gets nowhere: *is_alive is left alone
 * where there was none. n_stale counts placed buffers. */
static tarn_status take_turn(tarni_run *run, promote_line *line, uint64_t *offsets,
                             uint64_t n_stale, bool *is_alive) {
  const uint64_t end = run->steps + (uint64_t)run->scene->count * PROMOTE_TURN;
  while (run->steps < end && line->n_stale < n_stale && !is_over(run)) {
    TARN_TRY(try_line(run, line, offsets));
    *is_alive = true;
  }
  return TARN_OK;
}

/* Turns of all lines until none of them gets anywhere. */
static tarn_status run_lines(tarni_run *run, promote_line lines[PROMOTE_LINES], uint64_t *offsets,
                             uint64_t n_stale) {
  bool is_alive = true;
  while (is_alive && !is_over(run)) {
    is_alive = false;
    for (int k = 0; k < PROMOTE_LINES; k++) {
      TARN_TRY(take_turn(run, &lines[k], offsets, n_stale, &is_alive));
    }
  }
  return TARN_OK;
}

tarn_status tarni_promote_run(tarni_run *run, tarni_sorter *sorter, uint32_t n_stale) {
  const size_t n = run->scene->count;
  promote_line lines[PROMOTE_LINES] = {{0}};
  uint64_t *offsets = calloc(n + 1, sizeof(*offsets));
  bool has_room = offsets != NULL;
  for (int k = 0; k < PROMOTE_LINES; k++) {
    lines[k] = (promote_line){.order = calloc(n + 1, sizeof(*lines[k].order)),
                              .height = UINT64_MAX,
                              .shift = PROMOTE_SHIFT};
    has_room = has_room && lines[k].order != NULL;
  }
  tarn_status status = TARN_OK;
  if (has_room) {
    for (int k = 0; k < PROMOTE_LINES; k++) {
      tarni_sorter_run(sorter, &promote_sorts[k], 0.0, 0, lines[k].order);
    }
    status = run_lines(run, lines, offsets, (uint64_t)n * n_stale);
  } else {
    status = tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                        "no memory for the orders of %zu buffers", n);
  }
  for (int k = 0; k < PROMOTE_LINES; k++) {
    free(lines[k].order);
  }
  free(offsets);
  return status;
}
