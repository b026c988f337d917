/* SPDX-License-Identifier: MIT
 *
 * The exact search: branches, backs out, and is started again and again with other orders, choices
 * and targets while there are steps to spend. What it rules out is in plan_prune.c, why that loses
 * nothing in plan_search.h. An attempt that ends without giving up has proven that no plan keeps to
 * its target. Pure, no locks. */
#include "algo/plan_search.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

enum {
  SEARCH_MAX_BUFFERS = 4096,
  SEARCH_POLL_NODES = 16,
};

bool tarni_search_fits(const tarni_scene *scene) {
  return scene->count <= SEARCH_MAX_BUFFERS;
}

/* ---- Undo ----------------------------------------------------------------------------------- */

static void search_set(tarni_search *search, uint64_t *cell, uint64_t value) {
  if (search->n_changed == search->changed_size) {
    const size_t size = 2 * search->changed_size + 1024;
    tarni_change *changes = realloc(search->changes, size * sizeof(*changes));
    if (changes == NULL) {
      search->is_out_of_memory = true; /* the attempt ends; the value could not be undone */
      return;
    }
    search->changes = changes;
    search->changed_size = size;
  }
  search->changes[search->n_changed++] = (tarni_change){cell, *cell};
  *cell = value;
}

static void search_undo(tarni_search *search, size_t n_changed) {
  while (search->n_changed > n_changed) {
    const tarni_change *change = &search->changes[--search->n_changed];
    *change->cell = change->was;
  }
}

/* ---- Branching ------------------------------------------------------------------------------ */

static bool search_part(tarni_search *search, tarni_part *part, uint32_t depth);

static bool search_should_end(tarni_search *search) {
  search->nodes++;
  if (search->nodes % SEARCH_POLL_NODES == 0 && tarni_run_step(search->run, SEARCH_POLL_NODES)) {
    search->has_given_up = true;
  }
  if (search->nodes > search->max_nodes || search->is_out_of_memory) {
    search->has_given_up = true;
  }
  return search->has_given_up;
}

/* Puts a buffer at its minimum and lifts its neighbours onto it. The rest of the part goes to
 * `rest`. */
static void search_place(tarni_search *search, const tarni_part *part, uint32_t buffer,
                         tarni_part *rest) {
  const uint8_t *meets = search->meets + (size_t)buffer * search->count;
  const uint64_t top = search->minimum[buffer] + search->stack[buffer];
  search->is_placed[buffer] = true;
  rest->buffers = search->lists + search->lists_used;
  rest->count = 0;
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t other = part->buffers[i];
    if (other == buffer) {
      continue;
    }
    rest->buffers[rest->count++] = other;
    if (meets[other] != TARNI_MEETS_NOT && search->minimum[other] < top) {
      const uint64_t mask = search->alignment[other] - 1;
      search_set(search, &search->minimum[other], (top + mask) & ~mask);
    }
  }
  search->lists_used += rest->count;
}

/* Numbers the sections by independent stretch: no buffer of the part reaches from one stretch into
 * another. Returns how many there are. */
static uint32_t number_stretches(tarni_search *search, const tarni_part *part) {
  uint32_t first = UINT32_MAX;
  uint32_t last = 0;
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    first = search->begin[b] < first ? search->begin[b] : first;
    last = search->end[b] > last ? search->end[b] : last;
  }
  memset(search->cover + first, 0, (last - first + 1) * sizeof(*search->cover));
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    search->cover[search->begin[b] + 1]++; /* the boundaries inside its lifetime */
    search->cover[search->end[b]]--;
  }
  uint32_t covered = 0;
  uint32_t stretch = 0;
  for (uint32_t s = first; s < last; s++) {
    covered += s == first ? 0 : search->cover[s];
    stretch += s != first && covered == 0;
    search->cover[s] = stretch;
  }
  return stretch + 1;
}

/* Searches the independent stretches of what is left, one after the other. */
static bool search_rest(tarni_search *search, tarni_part *rest, uint32_t depth) {
  if (rest->count == 0) {
    return true;
  }
  const uint32_t n_stretches = number_stretches(search, rest);
  if (n_stretches == 1) {
    return search_part(search, rest, depth);
  }
  /* cover is used again below, so the stretches are first told apart: by runs in one list. */
  uint32_t *lists = search->lists + search->lists_used;
  tarni_part part = {lists, 0};
  bool is_found = true;
  uint32_t used = 0;
  search->lists_used += rest->count;
  for (uint32_t k = 0; k < n_stretches; k++) {
    for (uint32_t i = 0; i < rest->count; i++) {
      if (search->cover[search->begin[rest->buffers[i]]] == k) {
        lists[used++] = rest->buffers[i];
      }
    }
  }
  for (uint32_t i = 0; i < rest->count; i++) { /* cut the list where the stretch changes */
    rest->buffers[i] = search->cover[search->begin[lists[i]]];
  }
  for (uint32_t i = 0; i < rest->count && is_found; i += part.count) {
    part = (tarni_part){lists + i, 1};
    while (i + part.count < rest->count && rest->buffers[i + part.count] == rest->buffers[i]) {
      part.count++;
    }
    is_found = search_part(search, &part, depth);
  }
  search->lists_used -= rest->count;
  return is_found;
}

static bool has_part_in(const tarni_search *search, uint32_t buffer) {
  const uint64_t *neighbours = search->neighbour + (size_t)buffer * search->words;
  for (size_t w = 0; w < search->words; w++) {
    if ((neighbours[w] & search->conflict[w]) != 0) {
      return true;
    }
  }
  return false;
}

static void unite(uint64_t *into, const uint64_t *from, size_t words) {
  for (size_t w = 0; w < words; w++) {
    into[w] |= from[w];
  }
}

/* Tries the branch that has the buffer at its minimum. */
static bool search_with(tarni_search *search, const tarni_part *part, uint32_t buffer,
                        uint32_t depth) {
  const size_t n_changed = search->n_changed;
  const size_t lists_used = search->lists_used;
  tarni_part rest;
  search_place(search, part, buffer, &rest);
  const bool is_found = search_rest(search, &rest, depth + 1);
  search->lists_used = lists_used;
  if (!is_found) {
    search_undo(search, n_changed);
    for (uint32_t i = 0; i < part->count; i++) {
      search->is_placed[part->buffers[i]] = false;
    }
  }
  return is_found;
}

/* True when all of the part is placed; else everything is as before and the conflict says why. */
static bool search_part(tarni_search *search, tarni_part *part, uint32_t depth) {
  const size_t words = search->words;
  const size_t n_changed = search->n_changed;
  uint64_t *reasons = search->sets + 2 * (size_t)depth * words; /* of the branches tried so far */
  uint64_t *ground = reasons + words; /* why nothing can come under the chosen buffer */
  memset(reasons, 0, words * sizeof(*reasons));
  while (!search_should_end(search)) {
    const uint32_t buffer = tarni_search_evaluate(search, part);
    if (buffer == TARNI_NOBODY) {
      break;
    }
    memcpy(ground, search->conflict, words * sizeof(*ground));
    if (search_with(search, part, buffer, depth)) {
      return true;
    }
    if (search->has_given_up || !has_part_in(search, buffer)) {
      break;
    }
    unite(reasons, search->conflict, words);
    unite(reasons, ground, words);
    tarni_set_add(reasons, buffer);
    search_set(search, &search->skipped_at[buffer], search->minimum[buffer]);
  }
  unite(search->conflict, reasons, words);
  search_undo(search, n_changed);
  return false;
}

/* ---- An attempt ----------------------------------------------------------------------------- */

static void search_destroy(tarni_search *search) {
  free(search->order);
  free(search->begin);
  free(search->end);
  free(search->stack);
  free(search->alignment);
  free(search->highest);
  free(search->twin);
  free(search->meets);
  free(search->neighbour);
  free(search->minimum);
  free(search->skipped_at);
  free(search->is_placed);
  free(search->low);
  free(search->is_skipped);
  free(search->skipped);
  free(search->reach);
  free(search->floor);
  free(search->rivals);
  free(search->conflict);
  free(search->waiting);
  free(search->lists);
  free(search->sets);
  free(search->cover);
  free(search->changes);
}

static bool search_allocate(tarni_search *search) {
  const size_t n = search->count;
  const size_t sections = (size_t)search->sections + 2;
  search->order = calloc(n, sizeof(*search->order));
  search->begin = calloc(n, sizeof(*search->begin));
  search->end = calloc(n, sizeof(*search->end));
  search->stack = calloc(n, sizeof(*search->stack));
  search->alignment = calloc(n, sizeof(*search->alignment));
  search->highest = calloc(n, sizeof(*search->highest));
  search->twin = calloc(n, sizeof(*search->twin));
  search->meets = calloc(n, n);
  search->neighbour = calloc(n * search->words, sizeof(*search->neighbour));
  search->minimum = calloc(n, sizeof(*search->minimum));
  search->skipped_at = calloc(n, sizeof(*search->skipped_at));
  search->is_placed = calloc(n, sizeof(*search->is_placed));
  search->low = calloc(n, sizeof(*search->low));
  search->is_skipped = calloc(n, sizeof(*search->is_skipped));
  search->skipped = calloc(n, sizeof(*search->skipped));
  search->reach = calloc(sections, sizeof(*search->reach));
  search->floor = calloc(sections, sizeof(*search->floor));
  search->rivals = calloc(sections, sizeof(*search->rivals));
  search->conflict = calloc(search->words, sizeof(*search->conflict));
  search->waiting = calloc(n, sizeof(*search->waiting));
  search->lists = calloc(n * (n + 3), sizeof(*search->lists));
  search->sets = calloc(2 * (n + 2) * search->words, sizeof(*search->sets));
  search->cover = calloc(sections, sizeof(*search->cover));
  return search->order != NULL && search->begin != NULL && search->end != NULL &&
         search->stack != NULL && search->alignment != NULL && search->highest != NULL &&
         search->twin != NULL && search->meets != NULL && search->neighbour != NULL &&
         search->minimum != NULL && search->skipped_at != NULL && search->is_placed != NULL &&
         search->low != NULL && search->is_skipped != NULL && search->skipped != NULL &&
         search->reach != NULL && search->floor != NULL && search->rivals != NULL &&
         search->conflict != NULL && search->waiting != NULL && search->lists != NULL &&
         search->sets != NULL && search->cover != NULL;
}

static tarn_status search_create(tarni_run *run, tarni_search *search) {
  const tarni_scene *scene = run->scene;
  *search = (tarni_search){.count = scene->count, .sections = scene->sections, .run = run};
  search->words = (scene->count + 63) / 64;
  search->unit = scene->unit;
  if (!search_allocate(search)) {
    search_destroy(search);
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for a search over %u buffers", scene->count);
  }
  return TARN_OK;
}

static uint8_t meeting_of(const tarni_search *search, bool is_plain, uint32_t a, uint32_t b) {
  if (search->begin[b] >= search->end[a] || search->begin[a] >= search->end[b]) {
    return TARNI_MEETS_NOT;
  }
  const bool is_within = search->begin[b] >= search->begin[a] && search->end[b] <= search->end[a];
  const bool is_same = search->begin[b] == search->begin[a] && search->end[b] == search->end[a];
  return is_plain && is_within && (!is_same || b > a) ? TARNI_MEETS : TARNI_MEETS_BEYOND;
}

static bool is_twin(const tarni_search *search, const tarni_scene *scene, uint32_t a, uint32_t b) {
  return search->begin[a] == search->begin[b] && search->end[a] == search->end[b] &&
         scene->bytes[search->order[a]] == scene->bytes[search->order[b]] &&
         search->alignment[a] == search->alignment[b];
}

static void fill_relations(tarni_search *search, const tarni_scene *scene) {
  memset(search->neighbour, 0, search->count * search->words * sizeof(*search->neighbour));
  for (uint32_t a = 0; a < search->count; a++) {
    search->twin[a] = TARNI_NOBODY;
    for (uint32_t b = 0; b < search->count; b++) {
      const uint8_t meeting = meeting_of(search, scene->is_plain, a, b);
      search->meets[(size_t)a * search->count + b] = meeting;
      if (meeting != TARNI_MEETS_NOT) {
        tarni_set_add(search->neighbour + (size_t)a * search->words, b);
      }
      if (b < a && is_twin(search, scene, a, b)) {
        search->twin[a] = b;
      }
    }
  }
}

/* One attempt to keep to `target` with the order in search->order. */
static bool search_attempt(tarni_search *search, uint64_t target) {
  const tarni_scene *scene = search->run->scene;
  search->target = tarni_align_up(target, search->unit);
  search->is_aligned = false;
  for (uint32_t a = 0; a < search->count; a++) {
    const uint32_t i = search->order[a];
    search->begin[a] = scene->begin[i];
    search->end[a] = scene->end[i];
    search->stack[a] = scene->stack[i];
    search->alignment[a] = scene->alignment[i];
    search->is_aligned = search->is_aligned || scene->alignment[i] != scene->unit;
    search->highest[a] = target - scene->bytes[i];
    search->minimum[a] = 0;
    search->skipped_at[a] = UINT64_MAX;
    search->is_placed[a] = false;
  }
  fill_relations(search, scene);
  search->nodes = 0;
  search->has_given_up = false;
  search->n_changed = 0;
  search->lists_used = search->count;
  tarni_part all = {search->lists, search->count};
  for (uint32_t a = 0; a < search->count; a++) {
    all.buffers[a] = a;
  }
  return search_rest(search, &all, 0);
}

/* ---- The sequence of attempts --------------------------------------------------------------- */

/* W, A, T: wide, large and highly loaded buffers first, in various mixtures. */
static const tarni_sort search_sorts[] = {
    {{TARNI_SORT_SPAN, TARNI_SORT_AREA, TARNI_SORT_LOAD}},
    {{TARNI_SORT_LOAD, TARNI_SORT_AREA, TARNI_SORT_SPAN}},
    {{TARNI_SORT_LOAD, TARNI_SORT_SPAN, TARNI_SORT_AREA}},
    {{TARNI_SORT_AREA, TARNI_SORT_SPAN, TARNI_SORT_LOAD}},
    {{TARNI_SORT_SIZE, TARNI_SORT_SPAN, TARNI_SORT_LOAD}},
    {{TARNI_SORT_AREA, TARNI_SORT_LOAD, TARNI_SORT_SPAN}},
};

enum { SEARCH_SORTS = sizeof(search_sorts) / sizeof(search_sorts[0]) };

/* Where between the best plan (0) and the bound or the capacity (1) an attempt aims. The first
 * attempts all go for the bound; then the aims rotate, so that whatever can be reached is soon
 * aimed at: a hard aim prunes well, an easy one brings the others nearer. */
static uint64_t next_target(const tarni_run *run, uint64_t attempt) {
  static const double aims[] = {1.0, 0.25, 1.0, 0.5, 0.125, 1.0, 0.75};
  const uint64_t goal = tarni_max(run->limits->capacity, run->bound);
  const uint64_t top = run->height - 1;
  const double aim = attempt < SEARCH_SORTS ? 1.0 : aims[attempt % 7];
  if (aim == 1.0 || goal >= top) {
    return tarni_min(goal, top);
  }
  return top - (uint64_t)((double)(top - goal) * aim);
}

/* 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ...: short attempts mostly, since an attempt that succeeds often
 * does so soon, and now and then a long one. */
static uint64_t luby(uint64_t index) {
  uint64_t i = index + 1;
  while (!tarni_is_pow2(i + 1)) {
    i -= (UINT64_C(1) << tarni_log2(i)) - 1;
  }
  return (i + 1) / 2;
}

static void search_keep(tarni_search *search, uint64_t *offsets) {
  const tarni_scene *scene = search->run->scene;
  uint64_t height = 0;
  for (uint32_t a = 0; a < search->count; a++) {
    const uint32_t i = search->order[a];
    offsets[i] = search->minimum[a];
    height = tarni_max(height, offsets[i] + scene->bytes[i]);
  }
  tarni_run_offer(search->run, offsets, height);
}

/* How an attempt goes about it. */
typedef struct search_way {
  uint64_t sort;
  double amplitude;
  tarni_choice choice;
} search_way;

/* One undisturbed rotation through sorts and choices; then all at random, because no mixture is
 * best everywhere, with the choices that look at sections before the simple one. Every other
 * attempt goes the way of the last that succeeded, with other random numbers; fewer do the longer
 * that brings nothing. */
static search_way next_way(uint64_t attempt, uint64_t n_misses, const search_way *favourite) {
  static const double amplitudes[] = {0.1, 0.5, 1.5};
  static const tarni_choice choices[] = {TARNI_CHOICE_FORCED, TARNI_CHOICE_TIGHTEST,
                                         TARNI_CHOICE_FORCED, TARNI_CHOICE_TIGHTEST,
                                         TARNI_CHOICE_LOWEST};
  tarni_rng rng = {attempt};
  search_way way = {.sort = attempt % SEARCH_SORTS};
  way.choice = (tarni_choice)((attempt + attempt / SEARCH_SORTS) % TARNI_CHOICE_COUNT);
  if (attempt >= (uint64_t)SEARCH_SORTS * TARNI_CHOICE_COUNT) {
    way.sort = tarni_rng_below(&rng, SEARCH_SORTS);
    way.choice = choices[tarni_rng_below(&rng, 5)];
    way.amplitude = amplitudes[tarni_rng_below(&rng, 3)];
    if (attempt % (2 + n_misses / 32) == 0) {
      way.sort = favourite->sort;
      way.choice = favourite->choice;
      way.amplitude = favourite->amplitude > 0.0 ? favourite->amplitude : 0.1;
    }
  }
  return way;
}

/* What the sequence of attempts has spent and learned. */
typedef struct search_course {
  uint64_t attempt;
  uint64_t nodes;      /* spent by all */
  uint64_t long_nodes; /* of those, by long attempts */
  uint64_t long_limit;
  uint64_t n_misses; /* attempts since the last success */
  search_way favourite;
} search_course;

/* Prepares an attempt; returns its target. A quarter of all nodes goes to long attempts, each twice
 * as long as the one before: the sequence ends with a proof, however late. */
static uint64_t search_prepare(tarni_search *search, tarni_sorter *sorter, search_course *course,
                               search_way *way) {
  uint64_t target = next_target(search->run, course->attempt);
  *way = next_way(course->attempt, course->n_misses, &course->favourite);
  search->max_nodes = (300 + 2 * (uint64_t)search->count) * luby(course->attempt / SEARCH_SORTS);
  if (course->attempt > SEARCH_SORTS && course->long_nodes < course->nodes / 4) {
    const uint64_t goal = tarni_max(search->run->limits->capacity, search->run->bound);
    target = tarni_min(goal, search->run->height - 1);
    course->long_limit *= 2;
    search->max_nodes = course->long_limit;
  }
  tarni_sorter_run(sorter, &search_sorts[way->sort], way->amplitude, course->attempt,
                   search->order);
  search->choice = way->choice;
  return target;
}

static void search_once(tarni_search *search, tarni_sorter *sorter, search_course *course,
                        uint64_t *offsets) {
  tarni_run *run = search->run;
  search_way way;
  const uint64_t target = search_prepare(search, sorter, course, &way);
  course->n_misses++;
  if (search_attempt(search, target)) {
    search_keep(search, offsets);
    course->favourite = way;
    course->n_misses = 0;
  } else if (!search->has_given_up) {
    const uint64_t grain = run->scene->grain;
    run->bound = tarni_max(run->bound, target / grain * grain + grain);
  }
  course->attempt++;
  course->nodes += search->nodes;
  course->long_nodes += search->max_nodes == course->long_limit ? search->nodes : 0;
  (void)tarni_run_step(run, search->nodes % SEARCH_POLL_NODES);
}

tarn_status tarni_search_run(tarni_run *run, tarni_sorter *sorter) {
  tarni_search search;
  search_course course = {.long_limit = 1000 + 8 * (uint64_t)run->scene->count,
                          .favourite = {.choice = TARNI_CHOICE_FORCED}};
  TARN_TRY(search_create(run, &search));
  uint64_t *offsets = calloc(run->scene->count, sizeof(*offsets));
  if (offsets == NULL) {
    search.is_out_of_memory = true;
  }
  while (!run->is_stopped && !tarni_run_is_done(run) && !search.is_out_of_memory) {
    search_once(&search, sorter, &course, offsets);
  }
  const bool is_out_of_memory = search.is_out_of_memory;
  search_destroy(&search);
  free(offsets);
  if (is_out_of_memory) {
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for a search over %u buffers", run->scene->count);
  }
  return TARN_OK;
}
