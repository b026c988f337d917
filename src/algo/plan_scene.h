/* SPDX-License-Identifier: MIT
 *
 * What the files of the planner share: the prepared problem (a scene), the run that spends steps
 * and keeps the best plan, and who owns which step of the way. Not for use outside src/algo/plan*.
 *
 * A scene holds only buffers that need memory, with their times replaced by sections: the
 * stretches between one begin or end and the next, in which the set of live buffers is constant.
 * Invariants: begin < end <= sections; bytes >= 1; stack is bytes rounded up to `unit`, the
 * smallest alignment of all buffers, because every offset is a multiple of that; load[s] is the sum
 * of stack over the buffers of section s. */
#ifndef TARNI_PLAN_SCENE_H
#define TARNI_PLAN_SCENE_H

#include "algo/plan.h"
#include "base/bits.h"

typedef struct tarni_scene {
  uint32_t count;
  uint32_t sections;
  uint32_t *ids; /* index in the caller's array */
  uint32_t *begin;
  uint32_t *end;
  uint64_t *bytes;
  uint64_t *stack;
  uint64_t *alignment;
  uint64_t *times; /* section s is [times[s], times[s + 1]) */
  uint64_t *load;
  uint64_t unit;
  uint64_t grain; /* heights of plans where nothing can be moved down are multiples of this */
  uint64_t bound;
  uint32_t bind_section;
  bool is_plain; /* every alignment is the unit and stack equals bytes: buffers can be exchanged */
} tarni_scene;

/* One call of the planner: its budget and the best plan so far. */
typedef struct tarni_run {
  const tarni_scene *scene;
  const tarni_plan_problem *problem;
  const tarni_plan_limits *limits;
  uint64_t *best;  /* offsets by scene index */
  uint64_t height; /* of best; UINT64_MAX before there is one */
  uint64_t bound;  /* grows where a search proves more than the load does */
  uint64_t steps;
  uint64_t next_poll;
  bool is_stopped;
} tarni_run;

/* Counts steps; true when the run is over: budget spent or the caller wants to stop. */
bool tarni_run_step(tarni_run *run, uint64_t steps);
/* The same without a step. */
bool tarni_run_poll(tarni_run *run);
/* True when nothing is left to gain: the bound or the capacity is reached. */
bool tarni_run_is_done(const tarni_run *run);
/* Takes over the offsets when they are lower than the best. */
void tarni_run_offer(tarni_run *run, const uint64_t *offsets, uint64_t height);

/* ---- plan_bound.c: the scene, the lower bound and where it binds ---------------------------- */
tarn_status tarni_scene_create(const tarni_plan_problem *problem, tarni_scene *scene);
void tarni_scene_destroy(tarni_scene *scene);

/* ---- plan_sort.c: orders of buffers --------------------------------------------------------- */
typedef enum tarni_sort_key {
  TARNI_SORT_NONE,
  TARNI_SORT_SIZE,
  TARNI_SORT_WIDTH,       /* sections */
  TARNI_SORT_WIDTH_CLASS, /* its logarithm */
  TARNI_SORT_SPAN,        /* time */
  TARNI_SORT_AREA,        /* size times time */
  TARNI_SORT_LOAD,        /* the highest load of its sections */
  TARNI_SORT_CONFLICTS,   /* how many others live at the same time */
  TARNI_SORT_EARLY,       /* first the earliest begin */
  TARNI_SORT_LATE,        /* first the latest begin */
  TARNI_SORT_LATE_END,
  TARNI_SORT_COUNT
} tarni_sort_key;

enum { TARNI_SORT_KEYS = 3 };

/* A sort by up to three keys, largest first, ties by index. */
typedef struct tarni_sort {
  tarni_sort_key keys[TARNI_SORT_KEYS];
} tarni_sort;

typedef struct tarni_sorter {
  uint32_t count;
  double *values[TARNI_SORT_COUNT];
  double *noise; /* in [-0.5, 0.5): what is multiplied into the first key of a disturbed sort */
} tarni_sorter;

tarn_status tarni_sorter_create(const tarni_scene *scene, tarni_sorter *sorter);
void tarni_sorter_destroy(tarni_sorter *sorter);
/* Fills order[count]; `amplitude` 0 is undisturbed, else the first key of every buffer is changed
 * by up to half of it, by the seed. */
void tarni_sorter_run(tarni_sorter *sorter, const tarni_sort *sort, double amplitude, uint64_t seed,
                      uint32_t *order);

/* ---- plan_greedy.c: the portfolio of fast placements ---------------------------------------- */
typedef enum tarni_fit { TARNI_FIT_FIRST, TARNI_FIT_BEST } tarni_fit;

typedef struct tarni_placing {
  const uint32_t *order;
  tarni_fit fit;
  uint64_t ceiling;
  tarni_run *run;    /* that may stop it half way; NULL: nothing does */
  uint64_t *offsets; /* of what is placed */
  uint64_t height;   /* UINT64_MAX: given up, or a top would reach the ceiling */
  uint32_t n_placed; /* below the ceiling; the next one in the order is the first that is not */
} tarni_placing;

/* Places in the given order. */
tarn_status tarni_greedy_place(const tarni_scene *scene, tarni_placing *placing);
tarn_status tarni_greedy_run(tarni_run *run, tarni_sorter *sorter);

/* ---- plan_promote.c: orders that learn ------------------------------------------------------ */
/* Until the run is done or stopped, or no order has learned anything for as long as it takes to
 * place all buffers n_stale times. */
tarn_status tarni_promote_run(tarni_run *run, tarni_sorter *sorter, uint32_t n_stale);

/* ---- plan_search.c: exact search ------------------------------------------------------------ */
/* Spends its share of the run on searches for lower plans, until the run is done or stopped. */
tarn_status tarni_search_run(tarni_run *run, tarni_sorter *sorter);
/* Whether a scene is small enough for it. */
bool tarni_search_fits(const tarni_scene *scene);

/* ---- plan_window.c: windows of very large scenes -------------------------------------------- */
tarn_status tarni_window_run(tarni_run *run);

/* ---- plan_order.c: partial orders ----------------------------------------------------------- */
tarn_status tarni_order_solve(const tarni_plan_problem *problem, const tarni_plan_limits *limits,
                              tarni_plan *plan);
/* conflicts[i * words ...]: bit j is set when i and j may live at once. TARN_INVALID on a cycle.
 * The caller frees it. */
tarn_status tarni_order_conflicts(const tarni_plan_problem *problem, uint64_t **conflicts,
                                  size_t *words);

/* ---- plan_antichain.c: the bound for partial orders ----------------------------------------- */
/* The heaviest set of buffers of which no two are ordered. pre: the order has no cycle and the
 * sizes add up to at most 2^62. When the run stops first, only the largest buffer. */
tarn_status tarni_antichain_bound(const tarni_plan_problem *problem, tarni_run *run,
                                  uint64_t *bound);

#endif
