/* SPDX-License-Identifier: MIT
 *
 * Windows of very large scenes: where the whole is too large for the exact search, a buffer at the
 * very top is taken out together with some of those that live near it, and all are put back in
 * another order, below the top. What does not fit is undone. When nobody is left at the top, the
 * plan is lower. Now and then a window without a top buffer is shuffled, so that the next try finds
 * another neighbourhood. Pure, no locks.
 *
 * Invariants between two windows: offsets are a valid plan; by_offset lists all buffers by rising
 * offset; is_out is false everywhere. */
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"
#include "base/rng.h"

enum { WINDOW_BUFFERS = 48, WINDOW_STALE = 200000 };

typedef struct window_item {
  uint32_t begin;
  uint32_t end;
  uint64_t offset;
  uint64_t top;
} window_item;

typedef struct window_state {
  const tarni_scene *scene;
  tarni_run *run;
  tarni_rng rng;
  uint64_t *offsets;
  uint32_t *by_offset;
  bool *is_out;
  window_item *items; /* the placed buffers near the window, by offset */
  uint32_t n_items;
  uint32_t out[WINDOW_BUFFERS]; /* what is taken out */
  uint64_t was[WINDOW_BUFFERS];
  uint32_t n_out;
} window_state;

static uint64_t window_top(const window_state *state, uint32_t i) {
  return state->offsets[i] + state->scene->bytes[i];
}

/* ---- Taking out ----------------------------------------------------------------------------- */

/* A random buffer of those at the top. */
static uint32_t pick_highest(window_state *state) {
  uint32_t picked = 0;
  uint64_t n_seen = 0;
  for (uint32_t i = 0; i < state->scene->count; i++) {
    if (window_top(state, i) == state->run->height && tarni_rng_below(&state->rng, ++n_seen) == 0) {
      picked = i;
    }
  }
  return picked;
}

static void take_out(window_state *state, uint32_t i) {
  state->is_out[i] = true;
  state->was[state->n_out] = state->offsets[i];
  state->out[state->n_out++] = i;
}

/* Takes out the centre and a random choice of those that live at the same time and not much longer:
 * long ones have too many neighbours to find another place. */
static void open_window(window_state *state, uint32_t centre) {
  const tarni_scene *scene = state->scene;
  const uint32_t wanted = 2 + (uint32_t)tarni_rng_below(&state->rng, WINDOW_BUFFERS - 2);
  const uint64_t width = scene->end[centre] - scene->begin[centre];
  const uint64_t widest = width << tarni_rng_below(&state->rng, 8);
  uint32_t chosen[WINDOW_BUFFERS];
  uint64_t n_seen = 0;
  for (uint32_t i = 0; i < scene->count; i++) {
    if (i == centre || scene->begin[i] >= scene->end[centre] ||
        scene->end[i] <= scene->begin[centre] || scene->end[i] - scene->begin[i] > widest) {
      continue;
    }
    const uint64_t slot = n_seen < wanted ? n_seen : tarni_rng_below(&state->rng, n_seen + 1);
    n_seen++;
    if (slot < wanted) {
      chosen[slot] = i;
    }
  }
  state->n_out = 0;
  take_out(state, centre);
  for (uint64_t k = 0; k < n_seen && k + 1 < wanted; k++) {
    take_out(state, chosen[k]);
  }
}

/* Collects what stays and lives at the time of anything that was taken out. */
static void find_items(window_state *state) {
  const tarni_scene *scene = state->scene;
  uint32_t begin = UINT32_MAX;
  uint32_t end = 0;
  for (uint32_t k = 0; k < state->n_out; k++) {
    begin = scene->begin[state->out[k]] < begin ? scene->begin[state->out[k]] : begin;
    end = scene->end[state->out[k]] > end ? scene->end[state->out[k]] : end;
  }
  state->n_items = 0;
  for (uint32_t k = 0; k < scene->count; k++) {
    const uint32_t i = state->by_offset[k];
    if (!state->is_out[i] && scene->begin[i] < end && scene->end[i] > begin) {
      state->items[state->n_items++] =
          (window_item){scene->begin[i], scene->end[i], state->offsets[i], window_top(state, i)};
    }
  }
}

/* ---- Putting back --------------------------------------------------------------------------- */

/* Sorts what was taken out by size or by width, each changed at random by up to a half. */
static void shuffle_out(window_state *state) {
  const tarni_scene *scene = state->scene;
  const bool is_by_size = tarni_rng_below(&state->rng, 2) == 0;
  double keys[WINDOW_BUFFERS];
  for (uint32_t k = 0; k < state->n_out; k++) {
    const uint32_t i = state->out[k];
    const double key =
        is_by_size ? (double)scene->bytes[i] : (double)(scene->end[i] - scene->begin[i]);
    const double noise = (double)tarni_rng_below(&state->rng, 1024) / 1024.0;
    const double mine = key * (0.5 + noise);
    const uint64_t was = state->was[k];
    uint32_t at = k;
    while (at > 0 && keys[at - 1] < mine) {
      keys[at] = keys[at - 1];
      state->out[at] = state->out[at - 1];
      state->was[at] = state->was[at - 1];
      at--;
    }
    keys[at] = mine;
    state->out[at] = i;
    state->was[at] = was;
  }
}

/* The lowest or the smallest gap; UINT64_MAX when the buffer would reach the ceiling. */
static uint64_t find_window_gap(const window_state *state, uint32_t i, tarni_fit fit,
                                uint64_t ceiling) {
  const tarni_scene *scene = state->scene;
  const uint64_t mask = scene->alignment[i] - 1;
  uint64_t floor = 0;
  uint64_t best = UINT64_MAX;
  uint64_t best_gap = UINT64_MAX;
  for (uint32_t k = 0; k < state->n_items; k++) {
    const window_item *item = &state->items[k];
    if (item->begin >= scene->end[i] || item->end <= scene->begin[i]) {
      continue;
    }
    if (item->offset >= floor + scene->bytes[i] && item->offset - floor < best_gap) {
      best = floor;
      best_gap = item->offset - floor;
      if (fit == TARNI_FIT_FIRST) {
        return best;
      }
    }
    floor = item->top > floor ? (item->top + mask) & ~mask : floor;
  }
  if (best == UINT64_MAX && floor + scene->bytes[i] < ceiling) {
    best = floor;
  }
  return best;
}

static void add_item(window_state *state, uint32_t i) {
  const tarni_scene *scene = state->scene;
  uint32_t at = state->n_items++;
  while (at > 0 && state->items[at - 1].offset > state->offsets[i]) {
    state->items[at] = state->items[at - 1];
    at--;
  }
  state->items[at] =
      (window_item){scene->begin[i], scene->end[i], state->offsets[i], window_top(state, i)};
}

/* Puts all back below the ceiling; false when one does not fit. */
static bool put_back(window_state *state, uint64_t ceiling) {
  const tarni_fit fit = tarni_rng_below(&state->rng, 2) == 0 ? TARNI_FIT_FIRST : TARNI_FIT_BEST;
  for (uint32_t k = 0; k < state->n_out; k++) {
    const uint32_t i = state->out[k];
    const uint64_t offset = find_window_gap(state, i, fit, ceiling);
    if (offset == UINT64_MAX) {
      return false;
    }
    state->offsets[i] = offset;
    add_item(state, i);
  }
  return true;
}

/* ---- Closing -------------------------------------------------------------------------------- */

static void undo_window(window_state *state) {
  for (uint32_t k = 0; k < state->n_out; k++) {
    state->offsets[state->out[k]] = state->was[k];
    state->is_out[state->out[k]] = false;
  }
}

/* Moves what has a new offset to its place in by_offset: the others are packed, then these are
 * merged in from the top. */
static void keep_window(window_state *state) {
  const uint32_t n = state->scene->count;
  uint32_t n_kept = 0;
  for (uint32_t k = 0; k < n; k++) {
    if (!state->is_out[state->by_offset[k]]) {
      state->by_offset[n_kept++] = state->by_offset[k];
    }
  }
  for (uint32_t k = 0; k < state->n_out; k++) {
    const uint32_t i = state->out[k];
    uint32_t low = 0;
    uint32_t high = n_kept;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (state->offsets[state->by_offset[middle]] <= state->offsets[i]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    memmove(state->by_offset + low + 1, state->by_offset + low,
            (n_kept - low) * sizeof(*state->by_offset));
    state->by_offset[low] = i;
    n_kept++;
    state->is_out[i] = false;
  }
}

static uint64_t highest_top(const window_state *state) {
  uint64_t height = 0;
  for (uint32_t i = 0; i < state->scene->count; i++) {
    height = tarni_max(height, window_top(state, i));
  }
  return height;
}

/* One window; true when the plan as a whole became lower. */
static bool try_window(window_state *state, uint64_t round) {
  const uint64_t height = state->run->height;
  const bool is_shuffle = round % 4 == 3;
  tarn_assert(state->scene->count != 0);
  const uint32_t centre = is_shuffle ? (uint32_t)tarni_rng_below(&state->rng, state->scene->count)
                                     : pick_highest(state);
  open_window(state, centre);
  find_items(state);
  shuffle_out(state);
  if (!put_back(state, height + (is_shuffle && window_top(state, centre) == height))) {
    undo_window(state);
    return false;
  }
  keep_window(state);
  const uint64_t lower = highest_top(state);
  if (lower >= height) {
    return false;
  }
  tarni_run_offer(state->run, state->offsets, lower);
  return true;
}

static bool window_allocate(window_state *state) {
  const size_t n = state->scene->count;
  state->offsets = calloc(n, sizeof(*state->offsets));
  state->by_offset = calloc(n, sizeof(*state->by_offset));
  state->is_out = calloc(n, sizeof(*state->is_out));
  state->items = calloc(n + WINDOW_BUFFERS, sizeof(*state->items));
  return state->offsets != NULL && state->by_offset != NULL && state->is_out != NULL &&
         state->items != NULL;
}

static int compare_offsets(const void *a, const void *b, void *data) {
  const uint64_t *offsets = data;
  const uint32_t x = *(const uint32_t *)a;
  const uint32_t y = *(const uint32_t *)b;
  if (offsets[x] != offsets[y]) {
    return offsets[x] < offsets[y] ? -1 : 1;
  }
  return (x > y) - (x < y);
}

tarn_status tarni_window_run(tarni_run *run) {
  window_state state = {.scene = run->scene, .run = run, .rng = {1}};
  tarn_status status = TARN_OK;
  if (!window_allocate(&state)) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                        "no memory for windows of %u buffers", run->scene->count);
  } else {
    memcpy(state.offsets, run->best, run->scene->count * sizeof(*state.offsets));
    for (uint32_t i = 0; i < run->scene->count; i++) {
      state.by_offset[i] = i;
    }
    qsort_r(state.by_offset, run->scene->count, sizeof(*state.by_offset), compare_offsets,
            state.offsets);
    uint64_t stale = 0;
    for (uint64_t round = 0; stale < WINDOW_STALE && !tarni_run_is_done(run); round++) {
      stale = try_window(&state, round) ? 0 : stale + 1;
      if (tarni_run_step(run, WINDOW_BUFFERS)) {
        break;
      }
    }
  }
  free(state.offsets);
  free(state.by_offset);
  free(state.is_out);
  free(state.items);
  return status;
}
