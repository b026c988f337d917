/* SPDX-License-Identifier: MIT
 *
 * The portfolio of fast placements: buffers are taken in one of several orders and put into the
 * lowest gap that holds them (first fit) or into the smallest one (best fit). No order wins
 * everywhere, so all are tried and the lowest plan is kept. Pure, no locks.
 *
 * Placed buffers lie in shelves, sorted by offset. The first shelf holds all; each other one holds
 * those of one stretch of time, so that a short-lived buffer, and most are, meets its neighbours
 * only. Invariant: a buffer is in the first shelf and in each shelf whose stretch it touches. */
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"

typedef struct shelf_item {
  uint32_t begin;
  uint32_t end;
  uint64_t offset;
  uint64_t top;
} shelf_item;

typedef struct shelf {
  shelf_item *items;
  uint32_t count;
} shelf;

enum {
  SHELF_SECTIONS = 512,
  SHELF_MAX = 64,
  PLACE_POLL = 256,    /* buffers that are placed between two looks at the clock */
  SWEEP_LEAST = 32768, /* buffers: the orders take long then, and their first plan is swept */
};

typedef struct shelves {
  shelf list[1 + SHELF_MAX];
  uint32_t stretch;  /* sections a shelf */
  shelf_item *items; /* the room of all shelves */
} shelves;

/* Each shelf gets room for all that will come into it. */
static bool shelves_create(const tarni_scene *scene, shelves *all) {
  size_t room[1 + SHELF_MAX] = {scene->count};
  size_t total = scene->count;
  *all = (shelves){0};
  all->stretch = (uint32_t)tarni_max(SHELF_SECTIONS, scene->sections / SHELF_MAX + 1);
  for (uint32_t i = 0; i < scene->count; i++) {
    const uint32_t last = (scene->end[i] - 1) / all->stretch;
    for (uint32_t k = scene->begin[i] / all->stretch; k <= last; k++) {
      tarn_assert(k < SHELF_MAX);
      room[1 + k]++;
      total++;
    }
  }
  all->items = calloc(total + 1, sizeof(*all->items));
  total = 0;
  for (int k = 0; k <= SHELF_MAX && all->items != NULL; k++) {
    all->list[k].items = all->items + total;
    total += room[k];
  }
  return all->items != NULL;
}

static void shelf_insert(shelf *one, const shelf_item *item) {
  uint32_t low = 0;
  uint32_t high = one->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (one->items[middle].offset <= item->offset) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  memmove(one->items + low + 1, one->items + low, (one->count - low) * sizeof(*item));
  one->items[low] = *item;
  one->count++;
}

static void shelves_insert(shelves *all, const shelf_item *item) {
  shelf_insert(&all->list[0], item);
  for (uint32_t k = item->begin / all->stretch; k <= (item->end - 1) / all->stretch; k++) {
    shelf_insert(&all->list[1 + k], item);
  }
}

/* The shelf that has every neighbour of a lifetime. */
static const shelf *shelves_of(const shelves *all, uint32_t begin, uint32_t end) {
  const uint32_t first = begin / all->stretch;
  return first == (end - 1) / all->stretch ? &all->list[1 + first] : &all->list[0];
}

/* The offset for a buffer among what is placed. */
static uint64_t find_gap(const tarni_scene *scene, const shelf *one, uint32_t buffer,
                         tarni_fit fit) {
  const uint32_t begin = scene->begin[buffer];
  const uint32_t end = scene->end[buffer];
  const uint64_t bytes = scene->bytes[buffer];
  const uint64_t mask = scene->alignment[buffer] - 1;
  uint64_t floor = 0; /* the lowest aligned offset above all neighbours so far */
  uint64_t best = 0;
  uint64_t best_gap = UINT64_MAX;
  for (uint32_t i = 0; i < one->count; i++) {
    const shelf_item *item = &one->items[i];
    if (item->begin >= end || item->end <= begin) {
      continue;
    }
    if (item->offset >= floor + bytes && item->offset - floor < best_gap) {
      best = floor;
      best_gap = item->offset - floor;
      if (fit == TARNI_FIT_FIRST) {
        return best;
      }
    }
    if (item->top > floor) {
      floor = (item->top + mask) & ~mask;
    }
  }
  return best_gap == UINT64_MAX ? floor : best;
}

/* Whether the placing of one more has to end here: now and then the clock is looked at. */
static bool placing_is_late(const tarni_placing *placing, uint32_t k) {
  return placing->run != NULL && k % PLACE_POLL == PLACE_POLL - 1 && tarni_run_poll(placing->run);
}

tarn_status tarni_greedy_place(const tarni_scene *scene, tarni_placing *placing) {
  shelves all;
  placing->height = 0;
  placing->n_placed = 0;
  if (!shelves_create(scene, &all)) {
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for the placement of %u buffers", scene->count);
  }
  for (uint32_t k = 0; k < scene->count; k++) {
    const uint32_t i = placing->order[k];
    const shelf *near = shelves_of(&all, scene->begin[i], scene->end[i]);
    const uint64_t offset = find_gap(scene, near, i, placing->fit);
    const shelf_item item = {scene->begin[i], scene->end[i], offset, offset + scene->bytes[i]};
    if (item.top >= placing->ceiling || placing_is_late(placing, k)) {
      placing->height = UINT64_MAX;
      break;
    }
    placing->offsets[i] = offset;
    placing->height = tarni_max(placing->height, item.top);
    placing->n_placed++;
    shelves_insert(&all, &item);
  }
  free(all.items);
  return TARN_OK;
}

/* ---- The sweep ---- */

/* Takes what has ended by `now` off the list of what is live, and finds the lowest gap; *at is
 * where the new one belongs. */
static uint64_t sweep_gap(const tarni_scene *scene, uint32_t buffer, shelf *live, uint32_t *at) {
  const uint32_t now = scene->begin[buffer];
  const uint64_t bytes = scene->bytes[buffer], mask = scene->alignment[buffer] - 1;
  uint64_t floor = 0;
  uint32_t n = 0;
  bool is_found = false;
  *at = 0;
  for (uint32_t i = 0; i < live->count; i++) {
    const shelf_item item = live->items[i];
    if (item.end <= now) {
      continue;
    }
    is_found = is_found || item.offset >= floor + bytes;
    if (!is_found) {
      floor = item.top > floor ? (item.top + mask) & ~mask : floor;
      *at = n + 1;
    }
    live->items[n++] = item;
  }
  live->count = n;
  return floor;
}

/* First fit in the order of time: only what is live is in the way, so it is quick. Where very many
 * are live at once it is not: what has no place when the time is up goes on top. */
static tarn_status sweep_run(tarni_run *run, const uint32_t *order, uint64_t *offsets) {
  const tarni_scene *scene = run->scene;
  shelf live = {.items = calloc((size_t)scene->count + 1, sizeof(*live.items))};
  uint64_t height = 0;
  if (live.items == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for the placement of %u buffers", scene->count);
  }
  bool is_late = false;
  for (uint32_t k = 0; k < scene->count; k++) {
    const uint32_t i = order[k];
    uint32_t at = 0;
    is_late = is_late || (k % PLACE_POLL == PLACE_POLL - 1 && tarni_run_poll(run));
    offsets[i] =
        is_late ? tarni_align_up(height, scene->alignment[i]) : sweep_gap(scene, i, &live, &at);
    height = tarni_max(height, offsets[i] + scene->bytes[i]);
    if (!is_late) {
      memmove(live.items + at + 1, live.items + at, (live.count - at) * sizeof(*live.items));
      live.items[at] =
          (shelf_item){scene->begin[i], scene->end[i], offsets[i], offsets[i] + scene->bytes[i]};
      live.count++;
    }
  }
  free(live.items);
  tarni_run_offer(run, offsets, height);
  return TARN_OK;
}

/* ---- All of them ---- */

static const tarni_sort sweep_sort = {{TARNI_SORT_EARLY, TARNI_SORT_SIZE}};
static const tarni_sort greedy_sorts[] = {
    {{TARNI_SORT_SIZE, TARNI_SORT_EARLY}},
    {{TARNI_SORT_WIDTH, TARNI_SORT_SIZE}},
    {{TARNI_SORT_SIZE, TARNI_SORT_WIDTH}},
    {{TARNI_SORT_WIDTH_CLASS, TARNI_SORT_LOAD, TARNI_SORT_SIZE}},
    {{TARNI_SORT_CONFLICTS, TARNI_SORT_SIZE}},
    {{TARNI_SORT_LOAD, TARNI_SORT_WIDTH, TARNI_SORT_SIZE}},
    {{TARNI_SORT_AREA, TARNI_SORT_SIZE}},
    {{TARNI_SORT_EARLY, TARNI_SORT_SIZE}},
    {{TARNI_SORT_WIDTH_CLASS, TARNI_SORT_SIZE}},
    {{TARNI_SORT_LOAD, TARNI_SORT_WIDTH_CLASS, TARNI_SORT_SIZE}},
    {{TARNI_SORT_SIZE, TARNI_SORT_LATE}},
    {{TARNI_SORT_LATE_END, TARNI_SORT_SIZE}},
    {{TARNI_SORT_EARLY, TARNI_SORT_LATE_END}},
    {{TARNI_SORT_SIZE, TARNI_SORT_LATE_END}},
};

tarn_status tarni_greedy_run(tarni_run *run, tarni_sorter *sorter) {
  const tarni_scene *scene = run->scene;
  uint32_t *order = calloc((size_t)scene->count + 1, sizeof(*order));
  uint64_t *offsets = calloc((size_t)scene->count + 1, sizeof(*offsets));
  tarn_status status = TARN_OK;
  if (order == NULL || offsets == NULL) {
    status = tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                        "no memory for the orders of %u buffers", scene->count);
  }
  if (status == TARN_OK && scene->count >= SWEEP_LEAST) {
    tarni_sorter_run(sorter, &sweep_sort, 0.0, 0, order);
    status = sweep_run(run, order, offsets);
  }
  for (size_t k = 0; k < sizeof(greedy_sorts) / sizeof(greedy_sorts[0]); k++) {
    for (int fit = TARNI_FIT_FIRST; fit <= TARNI_FIT_BEST && status == TARN_OK; fit++) {
      if (tarni_run_is_done(run) || (run->height != UINT64_MAX && run->is_stopped)) {
        break;
      }
      tarni_sorter_run(sorter, &greedy_sorts[k], 0.0, 0, order);
      tarni_placing placing = {
          .order = order, .fit = (tarni_fit)fit, .ceiling = run->height, .offsets = offsets};
      placing.run = run->height != UINT64_MAX ? run : NULL; /* there has to be one plan */
      status = tarni_greedy_place(scene, &placing);
      if (status == TARN_OK) {
        tarni_run_offer(run, offsets, placing.height);
        (void)tarni_run_step(run, scene->count);
      }
    }
  }
  free(order);
  free(offsets);
  return status;
}
