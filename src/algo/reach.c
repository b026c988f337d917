/* SPDX-License-Identifier: MIT
 *
 * Order in a graph that grows. A node that follows the end of a chain by a full edge, and nothing
 * else, needs no stamps of its own: it shares those of the node before it. So a line of any length
 * costs a few words, and only forks and joins cost a word for each chain. */
#include "algo/reach.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"

/* ---- Room ---- */

static bool array_room(void **array, uint32_t *capacity, uint32_t n, size_t size) {
  if (n < *capacity) {
    return true;
  }
  if (*capacity > UINT32_MAX / 4) {
    return false;
  }
  const uint32_t wide = *capacity * 2 + 16;
  void *grown = realloc(*array, wide * size);
  if (grown == NULL) {
    return false;
  }
  *array = grown;
  *capacity = wide;
  return true;
}

static bool words_room(tarni_reach *reach, uint64_t n) {
  if (n <= reach->words_capacity - reach->n_words) {
    return true;
  }
  const uint64_t wide = reach->words_capacity * 2 + n + 64;
  uint32_t *words = realloc(reach->words, wide * sizeof(*words));
  if (words == NULL) {
    return false;
  }
  reach->words = words;
  reach->words_capacity = wide;
  return true;
}

/* ---- Stamps ---- */

static uint32_t stamp_at(const tarni_reach *reach, uint32_t stamp, uint32_t chain) {
  const tarni_reach_stamp *at = &reach->stamps[stamp];
  return chain < at->n ? reach->words[at->first + chain] : 0;
}

/* A new stamp that goes nowhere yet. TARNI_REACH_NEVER: no host memory. */
static uint32_t stamp_make(tarni_reach *reach, uint32_t n) {
  void *stamps = reach->stamps;
  const bool has_room =
      array_room(&stamps, &reach->stamps_capacity, reach->n_stamps, sizeof(*reach->stamps));
  reach->stamps = stamps;
  if (!has_room || !words_room(reach, n)) {
    return TARNI_REACH_NEVER;
  }
  if (n != 0) {
    memset(reach->words + reach->n_words, 0, n * sizeof(*reach->words));
  }
  reach->stamps[reach->n_stamps] = (tarni_reach_stamp){.first = reach->n_words, .n = n};
  reach->n_words += n;
  return reach->n_stamps++;
}

/* Takes back the newest stamp. */
static void stamp_drop(tarni_reach *reach) {
  reach->n_words = reach->stamps[--reach->n_stamps].first;
}

static void stamp_raise(tarni_reach *reach, uint32_t stamp, uint32_t chain, uint32_t position) {
  uint32_t *word = &reach->words[reach->stamps[stamp].first + chain];
  *word = *word < position ? position : *word;
}

static void stamp_join(tarni_reach *reach, uint32_t stamp, uint32_t other) {
  for (uint32_t chain = 0; chain < reach->stamps[other].n; chain++) {
    stamp_raise(reach, stamp, chain, stamp_at(reach, other, chain));
  }
}

/* The first stamp is nothing. */
static bool stamps_begin(tarni_reach *reach) {
  return reach->n_stamps != 0 || stamp_make(reach, 0) == TARNI_REACH_ALWAYS;
}

static const tarni_reach_node *node_get(const tarni_reach *reach, uint64_t node) {
  const uint32_t index = tarni_table_find(&reach->numbers, node);
  tarn_assert(index != TARNI_TABLE_NONE && "what a node follows is known");
  return &reach->nodes[index];
}

/* A stamp of what comes before the place that follows the nodes. */
static uint32_t stamp_of(tarni_reach *reach, const tarni_reach_edge *before, uint32_t n,
                         bool is_past) {
  if (!stamps_begin(reach)) {
    return TARNI_REACH_NEVER;
  }
  if (n == 0) {
    return TARNI_REACH_ALWAYS;
  }
  const uint32_t stamp = stamp_make(reach, reach->n_chains);
  for (uint32_t i = 0; i < n && stamp != TARNI_REACH_NEVER; i++) {
    if (is_past || before[i].is_full) {
      const tarni_reach_node *node = node_get(reach, before[i].node);
      stamp_join(reach, stamp, is_past ? node->past : node->done);
      stamp_raise(reach, stamp, node->chain, node->position);
    }
  }
  return stamp;
}

uint32_t tarni_reach_past(tarni_reach *reach, const tarni_reach_edge *before, uint32_t n) {
  return stamp_of(reach, before, n, true);
}

uint32_t tarni_reach_done(tarni_reach *reach, const tarni_reach_edge *before, uint32_t n) {
  return stamp_of(reach, before, n, false);
}

uint32_t tarni_reach_unite(tarni_reach *reach, uint32_t a, uint32_t b) {
  if (a == TARNI_REACH_NEVER || b == TARNI_REACH_NEVER || a == b) {
    return a == b ? a : TARNI_REACH_NEVER;
  }
  const uint32_t stamp = stamp_make(reach, reach->n_chains);
  if (stamp != TARNI_REACH_NEVER) {
    stamp_join(reach, stamp, a);
    stamp_join(reach, stamp, b);
  }
  return stamp;
}

bool tarni_reach_covers(const tarni_reach *reach, uint32_t done, uint32_t past) {
  if (past == TARNI_REACH_ALWAYS || done == TARNI_REACH_NEVER || past == TARNI_REACH_NEVER) {
    return past == TARNI_REACH_ALWAYS;
  }
  for (uint32_t chain = 0; chain < reach->stamps[past].n; chain++) {
    if (stamp_at(reach, past, chain) > stamp_at(reach, done, chain)) {
      return false;
    }
  }
  return true;
}

/* ---- Nodes ---- */

bool tarni_reach_knows(const tarni_reach *reach, uint64_t node) {
  return tarni_table_find(&reach->numbers, node) != TARNI_TABLE_NONE;
}

static bool nodes_room(tarni_reach *reach) {
  void *nodes = reach->nodes, *chains = reach->chains;
  const bool has_nodes =
      array_room(&nodes, &reach->nodes_capacity, reach->n_nodes, sizeof(*reach->nodes));
  const bool has_chains =
      array_room(&chains, &reach->chains_capacity, reach->n_chains, sizeof(*reach->chains));
  reach->nodes = nodes;
  reach->chains = chains;
  return has_nodes && has_chains && tarni_table_room(&reach->numbers);
}

/* The node whose chain goes on with what follows these; NULL: a new chain begins. */
static const tarni_reach_node *chain_to_go_on(const tarni_reach *reach,
                                              const tarni_reach_edge *before, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    const tarni_reach_node *node = node_get(reach, before[i].node);
    if (before[i].is_full && reach->chains[node->chain] == node->position) {
      return node;
    }
  }
  return NULL;
}

/* Gives a node its stamps: its only predecessor's, or new ones. */
static bool node_stamp(tarni_reach *reach, tarni_reach_node *node, const tarni_reach_edge *before,
                       uint32_t n, const tarni_reach_node *goes_on) {
  if (n == 1 && goes_on != NULL) {
    node->past = goes_on->past;
    node->done = goes_on->done;
    return true;
  }
  node->past = tarni_reach_past(reach, before, n);
  if (node->past == TARNI_REACH_NEVER) {
    return false;
  }
  bool is_same = true;
  for (uint32_t i = 0; i < n; i++) {
    const tarni_reach_node *other = node_get(reach, before[i].node);
    is_same = is_same && before[i].is_full && other->past == other->done;
  }
  node->done = is_same ? node->past : tarni_reach_done(reach, before, n);
  if (node->done == TARNI_REACH_NEVER) {
    stamp_drop(reach);
    return false;
  }
  return true;
}

bool tarni_reach_add(tarni_reach *reach, uint64_t node, const tarni_reach_edge *before,
                     uint32_t n) {
  tarn_assert(!tarni_reach_knows(reach, node));
  if (!stamps_begin(reach) || !nodes_room(reach)) {
    return false;
  }
  const tarni_reach_node *goes_on = chain_to_go_on(reach, before, n);
  tarni_reach_node made = {.chain = goes_on != NULL ? goes_on->chain : reach->n_chains};
  if (!node_stamp(reach, &made, before, n, goes_on)) {
    return false;
  }
  if (goes_on == NULL) {
    reach->chains[reach->n_chains++] = 0;
  }
  made.position = ++reach->chains[made.chain];
  tarni_table_put(&reach->numbers, node, reach->n_nodes);
  reach->nodes[reach->n_nodes++] = made;
  return true;
}

void tarni_reach_close(tarni_reach *reach) {
  tarni_table_clear(&reach->numbers);
  free(reach->nodes);
  free(reach->chains);
  free(reach->stamps);
  free(reach->words);
  *reach = (tarni_reach){0};
}
