/* SPDX-License-Identifier: MIT
 *
 * Order in a graph that grows: which nodes are complete before others begin. The graph is cut into
 * chains, nodes that follow each other one by one; a stamp says for each chain how far it goes.
 *   past   all that comes before a place, whatever the edges: what may still be at work there
 *   done   what is known to be complete there: full edges only
 * Memory whose users are in one place's past may be used at another when that place's done covers
 * it. Asking takes time in the number of chains, not of nodes. Zeroed is empty; no locks. */
#ifndef TARNI_REACH_H
#define TARNI_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include "algo/table.h"

typedef struct tarni_reach_edge {
  uint64_t node;
  bool is_full; /* the node is complete before what follows by this edge begins */
} tarni_reach_edge;

typedef struct tarni_reach_node {
  uint32_t chain;
  uint32_t position;   /* in its chain; 1 is the first */
  uint32_t past, done; /* stamps of what comes before; of its own chain, its position says it */
} tarni_reach_node;

typedef struct tarni_reach_stamp {
  uint64_t first; /* of its words: for each chain the position up to which it goes */
  uint32_t n;     /* chains beyond are at 0 */
} tarni_reach_stamp;

typedef struct tarni_reach {
  tarni_table numbers; /* node -> index */
  tarni_reach_node *nodes;
  uint32_t n_nodes, nodes_capacity;
  uint32_t *chains; /* how many nodes each has */
  uint32_t n_chains, chains_capacity;
  tarni_reach_stamp *stamps; /* the first is nothing at all */
  uint32_t n_stamps, stamps_capacity;
  uint32_t *words;
  uint64_t n_words, words_capacity;
} tarni_reach;

enum { TARNI_REACH_ALWAYS = 0 };     /* the stamp of nothing: every place covers it */
#define TARNI_REACH_NEVER UINT32_MAX /* no stamp: no place covers it; also: no host memory */

void tarni_reach_close(tarni_reach *reach);

bool tarni_reach_knows(const tarni_reach *reach, uint64_t node);

/* Adds a node that follows others. pre: it is not known, all of those are. False: no host memory,
 * and nothing has changed. */
bool tarni_reach_add(tarni_reach *reach, uint64_t node, const tarni_reach_edge *before, uint32_t n);

/* The stamps of the place that follows all of these nodes. TARNI_REACH_NEVER: no host memory. */
uint32_t tarni_reach_past(tarni_reach *reach, const tarni_reach_edge *before, uint32_t n);
uint32_t tarni_reach_done(tarni_reach *reach, const tarni_reach_edge *before, uint32_t n);

/* What is in either of two stamps. TARNI_REACH_NEVER: one of them is that, or no host memory. */
uint32_t tarni_reach_unite(tarni_reach *reach, uint32_t a, uint32_t b);

/* Whether all of `past` is complete where `done` is. */
bool tarni_reach_covers(const tarni_reach *reach, uint32_t done, uint32_t past);

#endif
