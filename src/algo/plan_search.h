/* SPDX-License-Identifier: MIT
 *
 * The state of the exact search, shared by plan_search.c (how it branches and backs out) and
 * plan_prune.c (what it can rule out). Buffers are numbered by rank in the order of the attempt.
 *
 * A partial plan is built upwards. minimum[b] is the lowest offset that b can have on top of what
 * is placed. A branch either puts b exactly there, or rules that out ("skips" b) until something
 * placed later raises its minimum: skipped_at[b] remembers the minimum that was ruled out. So each
 * plan in which no buffer can be moved down is reached once.
 *
 * Why a skipped buffer must rise, and by how much: among all valid plans look at the one whose
 * offsets, widest buffer first, are the lexicographically smallest. There a skipped buffer b
 * (1) stands above some neighbour that starts below minimum[b] + stack[b], else b could be lowered;
 * (2) stands above some neighbour that reaches outside b's lifetime (or has the same lifetime and a
 *     lower rank), else b could go down and all that is under it, which lies within its lifetime,
 *     up by b's size. Only in plain scenes: the exchange must keep alignments.
 * low[b] is the bound that follows. Then in every section, the buffers sorted by low and stacked
 * with gaps where they must have some may not reach above the target.
 *
 * Every failure names the unplaced buffers that it rests on (conflict). A decision about a buffer
 * that is neither one of them nor a neighbour of one had no part in it, so its other branch would
 * fail in the same way and is not tried. */
#ifndef TARNI_PLAN_SEARCH_H
#define TARNI_PLAN_SEARCH_H

#include "algo/plan_scene.h"

typedef enum tarni_choice {
  TARNI_CHOICE_LOWEST,   /* the lowest buffer, the first in the order among equals */
  TARNI_CHOICE_FORCED,   /* the one of a section where no other can come next, else the lowest */
  TARNI_CHOICE_TIGHTEST, /* the section with the fewest buffers that can come next */
  TARNI_CHOICE_COUNT
} tarni_choice;

/* How two buffers meet. */
enum { TARNI_MEETS_NOT = 0, TARNI_MEETS = 1, TARNI_MEETS_BEYOND = 2 };

#define TARNI_NOBODY UINT32_MAX

typedef struct tarni_change {
  uint64_t *cell;
  uint64_t was;
} tarni_change;

typedef struct tarni_search {
  /* Fixed for an attempt, by rank. */
  uint32_t count;
  uint32_t sections;
  size_t words; /* of a set of buffers */
  uint64_t unit;
  uint64_t target; /* tops stay at or below it, rounded up to the unit */
  tarni_choice choice;
  bool is_aligned; /* some buffer needs more than the unit */
  uint32_t *order; /* rank -> scene index */
  uint32_t *begin;
  uint32_t *end;
  uint64_t *stack;
  uint64_t *alignment;
  uint64_t *highest;   /* the highest offset that keeps to the target */
  uint32_t *twin;      /* the previous buffer of equal lifetime and size, which goes first */
  uint8_t *meets;      /* count x count */
  uint64_t *neighbour; /* count sets: itself and all that it meets */

  /* The state of the partial plan. */
  uint64_t *minimum;
  uint64_t *skipped_at;
  bool *is_placed;

  /* What the last evaluation found; valid until the next. */
  uint64_t *low;
  bool *is_skipped;
  uint32_t *skipped;
  uint32_t n_skipped;
  uint64_t *reach;    /* by section: the lowest top of the stack; then the latest next offset */
  uint64_t *floor;    /* by section: the lowest low */
  uint32_t *rivals;   /* by section: how many buffers can come next */
  uint64_t *conflict; /* a set */
  uint32_t *waiting;  /* for conflict_add */

  /* Room for the levels of the recursion. */
  uint32_t *lists;
  size_t lists_used;
  uint64_t *sets;
  uint32_t *cover;       /* by section */
  tarni_change *changes; /* the trail of minimum and skipped_at */
  size_t n_changed;
  size_t changed_size;

  uint64_t nodes;
  uint64_t max_nodes;
  bool has_given_up;
  bool is_out_of_memory;
  tarni_run *run;
} tarni_search;

/* The unplaced buffers of a part of the problem that is independent of the others. */
typedef struct tarni_part {
  uint32_t *buffers;
  uint32_t count;
} tarni_part;

/* Evaluates a part and picks the buffer to branch on; TARNI_NOBODY, with the conflict set, when no
 * plan below the target continues from here. Keeps the part sorted by low. */
uint32_t tarni_search_evaluate(tarni_search *search, tarni_part *part);

static inline void tarni_set_add(uint64_t *set, uint32_t member) {
  set[member >> 6] |= UINT64_C(1) << (member & 63);
}

static inline bool tarni_set_has(const uint64_t *set, uint32_t member) {
  return ((set[member >> 6] >> (member & 63)) & 1) != 0;
}

#endif
