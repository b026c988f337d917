/* SPDX-License-Identifier: MIT
 *
 * Plans for partial orders: two buffers share memory only where one is known to be over before the
 * other begins. The order is closed once into sets of conflicts; placements take buffers in an
 * order and put each into the lowest gap among its conflicts. Few buffers are tried in every way,
 * many are improved by moving the highest ones forward. Pure, no locks. */
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"
#include "base/rng.h"

enum {
  ORDER_EXACT = 10,
  ORDER_STALE = 2000,
  ORDER_POLL = 256, /* buffers that are placed between two looks at the clock */
};

/* ---- The relation --------------------------------------------------------------------------- */

static bool has_bit(const uint64_t *set, uint32_t member) {
  return ((set[member / 64] >> (member % 64)) & 1) != 0;
}

/* What a walk has still to do at a buffer: its next predecessor, or one of these. */
#define WALK_NEW UINT32_MAX
#define WALK_DONE (UINT32_MAX - 1)

/* Buffers in an order in which predecessors come first; false when there is a cycle. Walks to the
 * predecessors of each and takes it after them. The path of the walk lies at the end of `sorted`:
 * nothing on it is sorted yet, so there is room for both. */
static bool sort_topologically(const tarni_plan_problem *problem, uint32_t *sorted,
                               uint32_t *next) {
  const tarni_plan_order *order = problem->order;
  const uint32_t n = problem->count;
  uint32_t n_sorted = 0;
  memset(next, 0xff, n * sizeof(*next));
  for (uint32_t i = 0; i < n; i++) {
    uint32_t top = n;
    if (next[i] == WALK_NEW) {
      next[i] = order->starts[i];
      sorted[--top] = i;
    }
    while (top < n) {
      const uint32_t at = sorted[top];
      if (next[at] == order->starts[at + 1]) {
        next[at] = WALK_DONE;
        top++;
        sorted[n_sorted++] = at;
        continue;
      }
      const uint32_t before = order->predecessors[next[at]++];
      if (next[before] == WALK_NEW) {
        next[before] = order->starts[before];
        sorted[--top] = before;
      } else if (next[before] != WALK_DONE) {
        return false; /* it is on the path itself */
      }
    }
  }
  return true;
}

enum { TILE = 64 }; /* rows of a word each: relations are turned around tile by tile */

/* Bit k of row i becomes bit i of row k: halves change places, then halves of halves. */
static void tile_turn(uint64_t rows[TILE]) {
  uint64_t low = UINT32_MAX;
  for (uint32_t half = TILE / 2; half != 0; half /= 2, low ^= low << half) {
    for (uint32_t i = 0; i < TILE; i = ((i | half) + 1) & ~half) {
      const uint64_t moved = ((rows[i] >> half) ^ rows[i | half]) & low;
      rows[i | half] ^= moved;
      rows[i] ^= moved << half;
    }
  }
}

typedef struct order_tile {
  uint64_t rows[TILE];
} order_tile;

static order_tile tile_get(const uint64_t *sets, uint32_t count, size_t words, uint32_t row,
                           uint32_t column) {
  order_tile tile = {{0}};
  for (uint32_t i = 0; i < TILE && row * TILE + i < count; i++) {
    tile.rows[i] = sets[(row * TILE + i) * words + column];
  }
  return tile;
}

/* From "all that comes before i" to "all that may live at the same time as i". */
static void invert(uint64_t *before, uint32_t count, size_t words) {
  for (uint32_t i = 0; i < count; i++) {
    before[i * words + i / TILE] |= UINT64_C(1) << (i % TILE);
  }
  for (uint32_t row = 0; row * TILE < count; row++) {
    for (uint32_t column = 0; column <= row; column++) {
      order_tile here = tile_get(before, count, words, row, column);
      order_tile there = tile_get(before, count, words, column, row);
      tile_turn(there.rows);
      for (uint32_t i = 0; i < TILE; i++) {
        here.rows[i] = there.rows[i] = ~(here.rows[i] | there.rows[i]);
      }
      tile_turn(there.rows);
      for (uint32_t i = 0; i < TILE && row * TILE + i < count; i++) {
        before[(row * TILE + i) * words + column] = here.rows[i];
      }
      for (uint32_t i = 0; i < TILE && column != row; i++) {
        before[(column * TILE + i) * words + row] = there.rows[i];
      }
    }
  }
}

tarn_status tarni_order_conflicts(const tarni_plan_problem *problem, uint64_t **conflicts,
                                  size_t *words) {
  const uint32_t n = problem->count;
  *words = ((size_t)n + 63) / 64 + 1;
  uint64_t *before = calloc((size_t)n * *words + 1, sizeof(*before));
  uint32_t *sorted = calloc((size_t)n + 1, sizeof(*sorted));
  uint32_t *next = calloc((size_t)n + 1, sizeof(*next));
  tarn_status status = TARN_OK;
  *conflicts = NULL;
  if (before == NULL || sorted == NULL || next == NULL) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                        "no memory for the order of %u buffers", n);
  } else if (!sort_topologically(problem, sorted, next)) {
    status = tarni_fail(TARN_INVALID, "plan", NULL, "Remove the cycle.",
                        "the predecessors of %u buffers form a cycle", n);
  }
  for (uint32_t i = 0; i < n && status == TARN_OK; i++) {
    uint64_t *mine = before + sorted[i] * *words;
    for (uint32_t k = problem->order->starts[sorted[i]]; k < problem->order->starts[sorted[i] + 1];
         k++) {
      const uint32_t p = problem->order->predecessors[k];
      mine[p / 64] |= UINT64_C(1) << (p % 64);
      for (size_t w = 0; w < *words; w++) {
        mine[w] |= before[p * *words + w];
      }
    }
  }
  free(sorted);
  free(next);
  if (status != TARN_OK) {
    free(before);
    return status;
  }
  invert(before, n, *words);
  *conflicts = before;
  return TARN_OK;
}

/* ---- Placement ------------------------------------------------------------------------------ */

typedef struct order_scene {
  const tarni_plan_problem *problem;
  tarni_run *run;
  uint64_t *conflicts;
  size_t words;
  uint32_t *order;
  uint32_t *trial;
  uint32_t *placed; /* sorted by offset */
  uint64_t *offsets;
  uint64_t *best;
} order_scene;

static uint64_t align_offset(const tarni_plan_buffer *buffer, uint64_t offset) {
  const uint64_t mask = buffer->alignment == 0 ? 0 : buffer->alignment - 1;
  return (offset + mask) & ~mask;
}

/* The lowest gap among the placed conflicts. */
static uint64_t find_order_gap(const order_scene *scene, uint32_t i, uint32_t n_placed) {
  const tarni_plan_buffer *buffers = scene->problem->buffers;
  const uint64_t *conflicts = scene->conflicts + i * scene->words;
  uint64_t floor = 0;
  for (uint32_t k = 0; k < n_placed; k++) {
    const uint32_t other = scene->placed[k];
    if (!has_bit(conflicts, other)) {
      continue;
    }
    if (scene->offsets[other] >= floor + buffers[i].bytes) {
      break;
    }
    const uint64_t top = scene->offsets[other] + buffers[other].bytes;
    floor = top > floor ? align_offset(&buffers[i], top) : floor;
  }
  return floor;
}

/* Whether the clock says that it is time to stop. Steps that are spent are no matter here: there
 * has to be one plan, and it must not depend on who asked for how many. */
static bool is_late(const tarni_run *run) {
  return run->limits->should_stop != NULL && run->limits->should_stop(run->limits->context);
}

/* Places in the order of the trial; the height, or UINT64_MAX once it reaches the ceiling. When the
 * time is up a trial is given up; the first one, since there has to be a plan, puts what is left on
 * top. */
static uint64_t place_trial(order_scene *scene, uint64_t ceiling) {
  const tarni_plan_problem *problem = scene->problem;
  uint64_t height = 0;
  uint32_t n_placed = 0;
  bool has_ended = false;
  for (uint32_t k = 0; k < problem->count; k++) {
    const uint32_t i = scene->trial[k];
    uint32_t at = n_placed;
    scene->offsets[i] = 0;
    if (problem->buffers[i].bytes == 0) {
      continue;
    }
    has_ended = has_ended || (k % ORDER_POLL == ORDER_POLL - 1 && is_late(scene->run));
    if (has_ended && ceiling != UINT64_MAX) {
      return UINT64_MAX;
    }
    scene->offsets[i] =
        has_ended ? align_offset(&problem->buffers[i], height) : find_order_gap(scene, i, n_placed);
    height = tarni_max(height, scene->offsets[i] + problem->buffers[i].bytes);
    if (height >= ceiling) {
      return UINT64_MAX;
    }
    while (at > 0 && scene->offsets[scene->placed[at - 1]] > scene->offsets[i]) {
      scene->placed[at] = scene->placed[at - 1];
      at--;
    }
    scene->placed[at] = i;
    n_placed++;
  }
  return height;
}

/* Tries the order in scene->trial and keeps it when it is lower. */
static bool try_trial(order_scene *scene) {
  tarni_run *run = scene->run;
  const uint64_t height = place_trial(scene, run->height);
  (void)tarni_run_step(run, scene->problem->count);
  if (height >= run->height) {
    return false;
  }
  run->height = height;
  memcpy(scene->best, scene->offsets, scene->problem->count * sizeof(*scene->best));
  memcpy(scene->order, scene->trial, scene->problem->count * sizeof(*scene->order));
  if (run->limits->progress != NULL) {
    run->limits->progress(run->limits->context, height, run->bound);
  }
  return true;
}

/* ---- Orders --------------------------------------------------------------------------------- */

typedef struct order_rank {
  uint64_t key;
  uint32_t buffer;
} order_rank;

static int compare_order_ranks(const void *a, const void *b) {
  const order_rank *x = a;
  const order_rank *y = b;
  if (x->key != y->key) {
    return x->key > y->key ? -1 : 1;
  }
  return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

/* By size, by the bytes in conflict, and by both multiplied (in halves of the bits). */
static uint64_t order_key(const order_scene *scene, uint32_t i, int kind) {
  const tarni_plan_buffer *buffers = scene->problem->buffers;
  uint64_t rivals = 0;
  for (uint32_t k = 0; k < scene->problem->count && kind != 0; k++) {
    rivals += has_bit(scene->conflicts + i * scene->words, k) ? buffers[k].bytes : 0;
  }
  return kind == 0 ? buffers[i].bytes : kind == 1 ? rivals : (buffers[i].bytes >> 1) + rivals / 2;
}

static tarn_status try_orders(order_scene *scene) {
  const uint32_t n = scene->problem->count;
  order_rank *ranks = calloc((size_t)n + 1, sizeof(*ranks));
  if (ranks == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory to sort %u buffers", n);
  }
  for (int kind = 0; kind < 3 && !tarni_run_is_done(scene->run); kind++) {
    if (kind != 0 && tarni_run_poll(scene->run)) {
      break;
    }
    for (uint32_t i = 0; i < n; i++) {
      ranks[i] = (order_rank){order_key(scene, i, kind), i};
    }
    qsort(ranks, n, sizeof(*ranks), compare_order_ranks);
    for (uint32_t i = 0; i < n; i++) {
      scene->trial[i] = ranks[i].buffer;
    }
    (void)try_trial(scene);
  }
  free(ranks);
  return TARN_OK;
}

/* Every order of few buffers, each on top of its conflicts: the lowest plan is among them. Returns
 * whether all were tried. */
static bool try_all(order_scene *scene, uint32_t n_placed, uint64_t height) {
  const tarni_plan_problem *problem = scene->problem;
  if (height >= scene->run->height || tarni_run_is_done(scene->run)) {
    return true;
  }
  if (tarni_run_step(scene->run, 1)) {
    return false;
  }
  if (n_placed == problem->count) {
    scene->run->height = height;
    memcpy(scene->best, scene->offsets, problem->count * sizeof(*scene->best));
    return true;
  }
  bool is_complete = true;
  for (uint32_t k = n_placed; k < problem->count && is_complete; k++) {
    const uint32_t i = scene->trial[k];
    uint64_t offset = 0;
    for (uint32_t m = 0; m < n_placed; m++) {
      const uint32_t other = scene->trial[m];
      if (has_bit(scene->conflicts + i * scene->words, other)) {
        offset = tarni_max(offset, scene->offsets[other] + problem->buffers[other].bytes);
      }
    }
    scene->trial[k] = scene->trial[n_placed];
    scene->trial[n_placed] = i;
    scene->offsets[i] =
        problem->buffers[i].bytes == 0 ? 0 : align_offset(&problem->buffers[i], offset);
    is_complete = try_all(scene, n_placed + 1,
                          tarni_max(height, scene->offsets[i] + problem->buffers[i].bytes));
    scene->trial[n_placed] = scene->trial[k];
    scene->trial[k] = i;
  }
  return is_complete;
}

/* Moves one of the highest buffers forward in the order, again and again. */
static void improve_order(order_scene *scene) {
  const uint32_t n = scene->problem->count;
  tarni_rng rng = {1};
  for (uint32_t stale = 0; stale < ORDER_STALE && !scene->run->is_stopped; stale++) {
    if (tarni_run_is_done(scene->run)) {
      return;
    }
    uint32_t from = 0;
    for (uint32_t k = 0; k < n; k++) {
      const uint32_t i = scene->order[k];
      if (scene->best[i] + scene->problem->buffers[i].bytes == scene->run->height) {
        from = k;
      }
    }
    if (stale % 2 != 0) {
      from = (uint32_t)tarni_rng_below(&rng, n);
    }
    const uint32_t to = (uint32_t)tarni_rng_below(&rng, (uint64_t)from + 1);
    memcpy(scene->trial, scene->order, n * sizeof(*scene->trial));
    memmove(scene->trial + to + 1, scene->trial + to, (from - to) * sizeof(*scene->trial));
    scene->trial[to] = scene->order[from];
    stale = try_trial(scene) ? 0 : stale;
  }
}

/* ---- The whole ------------------------------------------------------------------------------ */

static tarn_status solve_order(order_scene *scene, tarni_plan *plan) {
  tarni_run *run = scene->run;
  const uint32_t n = scene->problem->count;
  TARN_TRY(tarni_antichain_bound(scene->problem, run, &run->bound));
  TARN_TRY(try_orders(scene));
  if (n <= ORDER_EXACT && !tarni_run_is_done(run)) {
    for (uint32_t i = 0; i < n; i++) {
      scene->trial[i] = i;
    }
    if (try_all(scene, 0, 0) && !tarni_run_is_done(run)) {
      run->bound = run->height;
    }
  } else {
    improve_order(scene);
  }
  memcpy(plan->offsets, scene->best, n * sizeof(*plan->offsets));
  plan->height = run->height;
  plan->bound = run->bound;
  plan->steps = run->steps;
  plan->is_proven = plan->height == run->bound;
  plan->is_over = run->limits->capacity != 0 && run->bound > run->limits->capacity;
  return TARN_OK;
}

static tarn_status check_order_sizes(const tarni_plan_problem *problem) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < problem->count; i++) {
    const tarni_plan_buffer *buffer = &problem->buffers[i];
    uint64_t rounded = 0;
    if (buffer->alignment != 0 && !tarni_is_pow2(buffer->alignment)) {
      return tarni_fail(TARN_INVALID, "plan", NULL, "Use a power of two.",
                        "the alignment of buffer %u is %llu", i,
                        (unsigned long long)buffer->alignment);
    }
    if (!tarni_align_up_checked(buffer->bytes, buffer->alignment == 0 ? 1 : buffer->alignment,
                                &rounded) ||
        !tarni_add(total, rounded, &total) || total > UINT64_C(1) << 62) {
      return tarni_fail(TARN_OVERFLOWED, "plan", NULL, "Check the sizes.",
                        "the sizes up to buffer %u add up to more than 2^62 bytes", i);
    }
  }
  return TARN_OK;
}

tarn_status tarni_order_solve(const tarni_plan_problem *problem, const tarni_plan_limits *limits,
                              tarni_plan *plan) {
  const size_t n = (size_t)problem->count + 1;
  tarni_run run = {.limits = limits, .problem = problem, .height = UINT64_MAX};
  order_scene scene = {.problem = problem, .run = &run};
  TARN_TRY(check_order_sizes(problem));
  TARN_TRY(tarni_order_conflicts(problem, &scene.conflicts, &scene.words));
  scene.order = calloc(n, sizeof(*scene.order));
  scene.trial = calloc(n, sizeof(*scene.trial));
  scene.placed = calloc(n, sizeof(*scene.placed));
  scene.offsets = calloc(n, sizeof(*scene.offsets));
  scene.best = calloc(n, sizeof(*scene.best));
  tarn_status status = TARN_OK;
  if (scene.order == NULL || scene.trial == NULL || scene.placed == NULL || scene.offsets == NULL ||
      scene.best == NULL) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                        "no memory for a plan of %u ordered buffers", problem->count);
  } else if (problem->count != 0) {
    status = solve_order(&scene, plan);
  } else {
    plan->is_proven = true;
  }
  free(scene.conflicts);
  free(scene.order);
  free(scene.trial);
  free(scene.placed);
  free(scene.offsets);
  free(scene.best);
  return status;
}
