/* SPDX-License-Identifier: MIT
 *
 * Order in a growing graph against plain search: random graphs with full and programmatic edges,
 * every pair of places; long lines and wide forks cost what they should; and the table of numbers
 * against a model. */
#include "algo/reach.h"

#include <string.h>

#include "base/rng.h"
#include "support/test.h"

enum { MOST = 40, GRAPHS = 3000, NAMES = 1000003 };

typedef struct model {
  uint32_t n;
  bool is_done[MOST][MOST]; /* [a][b]: a is complete when b begins, or a is b */
  bool is_past[MOST][MOST]; /* a comes before b by any edges, or a is b */
} model;

static uint64_t name_of(uint32_t node) {
  return (uint64_t)node * NAMES + 7;
}

static void model_add(model *m, const tarni_reach_edge *edges, uint32_t n) {
  const uint32_t node = m->n++;
  m->is_done[node][node] = m->is_past[node][node] = true;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t before = (uint32_t)((edges[i].node - 7) / NAMES);
    for (uint32_t a = 0; a < m->n; a++) {
      m->is_past[a][node] |= m->is_past[a][before];
      m->is_done[a][node] |= edges[i].is_full && m->is_done[a][before];
    }
  }
}

static uint32_t random_edges(tarni_rng *rng, uint32_t n_nodes, uint64_t early, uint32_t most,
                             tarni_reach_edge *edges) {
  const uint32_t n = n_nodes != 0 ? (uint32_t)tarni_rng_below(rng, most + 1) : 0;
  for (uint32_t i = 0; i < n; i++) {
    /* Mostly the newest, as streams do. */
    const uint64_t back = 1 + tarni_rng_below(rng, 1 + tarni_rng_below(rng, n_nodes));
    edges[i] = (tarni_reach_edge){.node = name_of(n_nodes - (uint32_t)back),
                                  .is_full = tarni_rng_below(rng, 8) >= early};
  }
  return n;
}

/* Whether all that comes before the first place is complete at the second. */
static bool model_covers(const model *m, const tarni_reach_edge *past, uint32_t n_past,
                         const tarni_reach_edge *done, uint32_t n_done) {
  for (uint32_t a = 0; a < m->n; a++) {
    bool is_past = false, is_done = false;
    for (uint32_t i = 0; i < n_past; i++) {
      is_past |= m->is_past[a][(past[i].node - 7) / NAMES];
    }
    for (uint32_t i = 0; i < n_done; i++) {
      is_done |= done[i].is_full && m->is_done[a][(done[i].node - 7) / NAMES];
    }
    if (is_past && !is_done) {
      return false;
    }
  }
  return true;
}

static void graphs_against_search(void) {
  tarni_rng rng = {.state = 11};
  uint64_t n_covered = 0, n_asked = 0;
  for (int round = 0; round < GRAPHS; round++) {
    static model m;
    memset(&m, 0, sizeof(m));
    tarni_reach reach = {0};
    const uint64_t early = tarni_rng_below(&rng, 3);
    const uint32_t n = 1 + (uint32_t)tarni_rng_below(&rng, MOST);
    tarni_reach_edge edges[4], other[4];
    for (uint32_t i = 0; i < n; i++) {
      const uint32_t n_edges = random_edges(&rng, i, early, 3, edges);
      CHECK(!tarni_reach_knows(&reach, name_of(i)));
      CHECK(tarni_reach_add(&reach, name_of(i), edges, n_edges));
      model_add(&m, edges, n_edges);
    }
    for (int i = 0; i < 20; i++) {
      const uint32_t n_past = random_edges(&rng, n, early, 3, edges);
      const uint32_t n_done = random_edges(&rng, n, early, 4, other);
      const uint32_t past = tarni_reach_past(&reach, edges, n_past);
      const uint32_t done = tarni_reach_done(&reach, other, n_done);
      const bool covers = tarni_reach_covers(&reach, done, past);
      CHECK_EQ(covers, model_covers(&m, edges, n_past, other, n_done));
      n_covered += covers;
      n_asked++;
      const uint32_t both =
          tarni_reach_unite(&reach, past, tarni_reach_past(&reach, other, n_done));
      CHECK(!tarni_reach_covers(&reach, done, both) || covers);
    }
    tarni_reach_close(&reach);
  }
  CHECK(n_covered > n_asked / 50 && n_covered < n_asked / 50 * 49); /* both answers were tried */
}

/* A line is one chain, and its nodes share their stamps. */
static void lines_are_cheap(void) {
  tarni_reach reach = {0};
  for (uint32_t i = 0; i < 100000; i++) {
    const tarni_reach_edge edge = {.node = name_of(i - 1), .is_full = true};
    CHECK(tarni_reach_add(&reach, name_of(i), &edge, i != 0));
  }
  CHECK_EQ(reach.n_chains, 1);
  CHECK_EQ(reach.n_stamps, 1);
  const tarni_reach_edge first = {.node = name_of(5), .is_full = true};
  const tarni_reach_edge last = {.node = name_of(99999), .is_full = true};
  const uint32_t early = tarni_reach_past(&reach, &first, 1);
  const uint32_t late = tarni_reach_done(&reach, &last, 1);
  CHECK(tarni_reach_covers(&reach, late, early));
  CHECK(!tarni_reach_covers(&reach, tarni_reach_done(&reach, &first, 1),
                            tarni_reach_past(&reach, &last, 1)));
  tarni_reach_close(&reach);
}

/* Nothing is covered by everything, and what has no stamp by nothing. */
static void special_stamps(void) {
  tarni_reach reach = {0};
  CHECK_EQ(tarni_reach_past(&reach, NULL, 0), TARNI_REACH_ALWAYS);
  CHECK(tarni_reach_covers(&reach, TARNI_REACH_ALWAYS, TARNI_REACH_ALWAYS));
  CHECK(tarni_reach_covers(&reach, TARNI_REACH_NEVER, TARNI_REACH_ALWAYS));
  CHECK(!tarni_reach_covers(&reach, TARNI_REACH_ALWAYS, TARNI_REACH_NEVER));
  CHECK(!tarni_reach_covers(&reach, TARNI_REACH_NEVER, TARNI_REACH_NEVER));
  CHECK_EQ(tarni_reach_unite(&reach, TARNI_REACH_NEVER, TARNI_REACH_ALWAYS), TARNI_REACH_NEVER);
  CHECK_EQ(tarni_reach_unite(&reach, TARNI_REACH_ALWAYS, TARNI_REACH_ALWAYS), TARNI_REACH_ALWAYS);
  tarni_reach_close(&reach);
}

/* A programmatic edge is in the past, and is not done; what follows it by a full edge knows of its
 * end, and not of what was before it. */
static void programmatic_edges(void) {
  tarni_reach reach = {0};
  const tarni_reach_edge early = {.node = name_of(0), .is_full = false};
  const tarni_reach_edge then = {.node = name_of(1), .is_full = true};
  const tarni_reach_edge last = {.node = name_of(2), .is_full = true};
  CHECK(tarni_reach_add(&reach, name_of(0), NULL, 0));
  CHECK(tarni_reach_add(&reach, name_of(1), &early, 1));
  CHECK(tarni_reach_add(&reach, name_of(2), &then, 1));
  const uint32_t past = tarni_reach_past(&reach, &then, 1);
  const uint32_t done = tarni_reach_done(&reach, &last, 1);
  CHECK(!tarni_reach_covers(&reach, done, past));
  const tarni_reach_edge both[2] = {last, {.node = name_of(0), .is_full = true}};
  CHECK(tarni_reach_covers(&reach, tarni_reach_done(&reach, both, 2), past));
  tarni_reach_close(&reach);
}

static void tables_against_a_model(void) {
  enum { KEYS = 500 };
  static uint32_t values[KEYS];
  tarni_rng rng = {.state = 3};
  tarni_table table = {0};
  memset(values, 0xff, sizeof(values));
  CHECK_EQ(tarni_table_find(&table, 1), TARNI_TABLE_NONE);
  for (int i = 0; i < 200000; i++) {
    const uint32_t key = (uint32_t)tarni_rng_below(&rng, KEYS);
    const uint64_t wide = (uint64_t)key << 8; /* as addresses are: few bits differ */
    CHECK_EQ(tarni_table_find(&table, wide), values[key]);
    if (values[key] != TARNI_TABLE_NONE) {
      tarni_table_remove(&table, wide);
      values[key] = TARNI_TABLE_NONE;
    } else if (tarni_rng_below(&rng, 3) != 0) {
      CHECK(tarni_table_room(&table));
      tarni_table_put(&table, wide, values[key] = (uint32_t)i);
    }
  }
  tarni_table_clear(&table);
  CHECK_EQ(table.n, 0);
}

static const test_case cases[] = {
    {"graphs against search", graphs_against_search},
    {"lines are cheap", lines_are_cheap},
    {"special stamps", special_stamps},
    {"programmatic edges", programmatic_edges},
    {"tables against a model", tables_against_a_model},
};

TEST_MAIN(cases)
