/* SPDX-License-Identifier: MIT
 *
 * Extents: the partition of addresses and its trees, against a list of granules that knows which
 * order each of them needs. What a split copies and a merge unites is never less. */
#include <string.h>

#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { N = 384, MAX_BUSY = 32, MIB = 1 << 20 };

typedef struct model {
  rig rig;
  tarn_heap *heap;
  tarni_rng rng;
  uint64_t first;           /* offset of the granules that are played with */
  tarni_order_entry due[N]; /* what must be complete before a granule is used; lane 0: nothing */
  uint8_t kinds[N];         /* as it was given back */
  tarni_index busy[MAX_BUSY];
  int n_busy;
  uint64_t n_met; /* searches that have found something */
  uint64_t n_given_up;
  uint64_t n_tight; /* and of those for tight room, something else than the lowest */
} model;

static uint32_t below(model *m, uint32_t n) {
  return (uint32_t)tarni_rng_below(&m->rng, n);
}

static uint32_t granule_of(const model *m, uint64_t offset) {
  return (uint32_t)((offset - m->first) >> TARNI_GRANULE_LOG2);
}

static bool model_open(model *m, tarn_stealing stealing, uint32_t n_lanes, uint64_t seed) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = stealing};
  memset(m, 0, sizeof(*m));
  if (!rig_open(&m->rig, "sim:64M", &config, 0)) {
    return false;
  }
  m->heap = m->rig.heap;
  m->heap->n_lanes = n_lanes; /* that nobody has opened: only their numbers are played with */
  m->rng.state = seed;
  m->first = m->heap->small_end + 4 * MIB;
  tarni_lock_acquire(&m->heap->lock);
  const tarni_index all = m->heap->zones[1].head;
  tarni_extent_take_locked(m->heap, all);
  const bool is_cut =
      tarni_extent_cut_locked(m->heap, all, m->first, (uint64_t)N << TARNI_GRANULE_LOG2);
  m->busy[m->n_busy++] = all;
  memset(m->kinds, TARNI_EXTENT_VOID, sizeof(m->kinds));
  return CHECK(is_cut);
}

/* Everything becomes void again, and with it one extent. */
static void model_close(model *m) {
  tarn_heap *heap = m->heap;
  while (m->n_busy != 0) {
    tarni_extent_give_locked(heap, m->busy[--m->n_busy], TARNI_EXTENT_VOID, NULL);
  }
  for (uint32_t tree = 1; tree <= tarni_tree_alias(heap); tree++) {
    while (heap->zones[1].trees[tree] != 0) {
      const tarni_index index = heap->zones[1].trees[tree];
      tarni_extent_take_locked(heap, index);
      tarni_extent_give_locked(heap, index, TARNI_EXTENT_VOID, NULL);
    }
  }
  const tarni_extent *only = tarni_extent_at(heap, heap->zones[1].head);
  CHECK_EQ(only->kind, TARNI_EXTENT_VOID);
  CHECK_EQ(only->size, heap->large_end - heap->small_end);
  CHECK_EQ(only->next, 0);
  heap->n_lanes = 1;
  tarni_lock_release(&heap->lock);
  CHECK(rig_is_sound(&m->rig));
  rig_close(&m->rig);
}

/* ---- Steps ---- */

static void give(model *m) {
  const uint32_t at = below(m, (uint32_t)m->n_busy);
  const tarni_index index = m->busy[at];
  const tarni_extent *extent = tarni_extent_at(m->heap, index);
  const uint32_t from = granule_of(m, extent->offset);
  const uint32_t to = from + (uint32_t)(extent->size >> TARNI_GRANULE_LOG2);
  const uint32_t dice = to - from == N ? 1 : below(m, 6); /* with nothing but void it would end */
  const tarni_extent_kind kind = dice == 0   ? TARNI_EXTENT_VOID
                                 : dice == 1 ? TARNI_EXTENT_ALIAS
                                             : TARNI_EXTENT_FREE;
  const bool is_free = kind == TARNI_EXTENT_FREE;
  const tarni_order_entry due = {.lane = is_free ? below(m, m->heap->n_lanes) : TARNI_LANE_COMMON,
                                 .ticket = 1 + below(m, 50)};
  tarni_order order = {0};
  (void)tarni_order_add(&order, due.lane, due.ticket);
  for (uint32_t i = from; i < to; i++) {
    m->kinds[i] = (uint8_t)kind;
    m->due[i] = due;
  }
  m->busy[at] = m->busy[--m->n_busy];
  tarni_extent_give_locked(m->heap, index, kind, &order);
}

/* The lowest extent in address order that is of the tree and fits: what a search must find. */
static tarni_index first_by_list(const tarn_heap *heap, uint32_t tree, uint64_t size,
                                 uint64_t alignment) {
  for (tarni_index i = heap->zones[1].head; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    const uint64_t start = (extent->offset + alignment - 1) / alignment * alignment;
    if (extent->kind != TARNI_EXTENT_BUSY && extent->tree == tree &&
        start + size <= extent->offset + extent->size) {
      return i;
    }
  }
  return 0;
}

static void take(model *m) {
  tarn_heap *heap = m->heap;
  const uint32_t dice = below(m, 10);
  const uint32_t tree = dice < 8 ? dice : dice == 8 ? 1 + heap->max_lanes : tarni_tree_alias(heap);
  const uint64_t size = (uint64_t)(1 + below(m, 20)) << TARNI_GRANULE_LOG2;
  const uint64_t alignment = (uint64_t)TARNI_GRANULE << below(m, 4);
  const tarni_index found = tarni_extent_first_locked(heap, 1, tree, size, alignment, UINT32_MAX);
  CHECK_EQ(found, first_by_list(heap, tree, size, alignment));
  if (found == 0 || m->n_busy == MAX_BUSY) {
    return;
  }
  const uint64_t start = tarni_align_up(heap->extents[found].offset, alignment);
  if (start < m->first || start + size > m->first + ((uint64_t)N << TARNI_GRANULE_LOG2)) {
    return; /* void addresses beside the granules */
  }
  tarni_index taken = found;
  if (heap->extents[found].kind == TARNI_EXTENT_FREE && below(m, 2) == 0) {
    taken = tarni_extent_carve_locked(heap, found, start, size);
  } else {
    tarni_extent_take_locked(heap, found);
    CHECK(tarni_extent_cut_locked(heap, found, start, size));
  }
  CHECK_EQ(heap->extents[taken].offset, start);
  CHECK_EQ(heap->extents[taken].size, size);
  m->busy[m->n_busy++] = taken;
}

/* The lowest extent in address order that is of the tree, fits, and can be used by the lane. */
static tarni_index met_by_list(const tarn_heap *heap, uint32_t tree, const tarni_need *need) {
  for (tarni_index i = heap->zones[1].head; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    if (extent->kind == TARNI_EXTENT_FREE && extent->tree == tree &&
        tarni_extent_fits(extent, need->size, need->alignment) &&
        tarni_order_is_met_locked(heap, &extent->order, need->lane)) {
      return i;
    }
  }
  return 0;
}

/* A lane looks for what another one has freed, of which so much is complete. */
static void seek(model *m) {
  tarn_heap *heap = m->heap;
  const tarni_index lane = 1 + below(m, heap->n_lanes - 1);
  const tarni_index other = 1 + below(m, heap->n_lanes - 1);
  const tarni_need need = {.lane = lane,
                           .zone = 1,
                           .size = (uint64_t)(1 + below(m, 12)) << TARNI_GRANULE_LOG2,
                           .alignment = (uint64_t)TARNI_GRANULE << below(m, 2)};
  heap->complete[other] = below(m, 51);
  const uint32_t tree = other != lane ? 1 + other : 1 + heap->max_lanes;
  const uint64_t ticket =
      other != lane ? tarni_order_met_locked(heap, other, lane) : UINT64_MAX; /* of any lanes */
  const tarni_index expected = met_by_list(heap, tree, &need);
  if (heap->zones[1].oldest[tree] > ticket) {
    CHECK_EQ(expected, 0);
    return;
  }
  const tarni_bound all = {.below = heap->zones[1].end, .ticket = ticket};
  const tarni_bound before = {.below = heap->extents[expected].offset, .ticket = ticket};
  uint32_t few = below(m, 3), many = UINT32_MAX;
  const tarni_index soon = tarni_extent_find_met_locked(heap, tree, &need, &all, &few);
  CHECK(soon == expected || (soon == 0 && few == 0)); /* given up, which spoils nothing */
  CHECK_EQ(tarni_extent_find_met_locked(heap, tree, &need, &all, &many), expected);
  CHECK_EQ(tarni_extent_find_met_locked(heap, tree, &need, &before, &many), 0);
  m->n_given_up += soon != expected;
  m->n_met += expected != 0;
}

/* The smallest that fits of the first n in address order that are of the tree and large enough. */
static tarni_index tightest_by_list(const tarn_heap *heap, uint32_t tree, const tarni_need *need,
                                    uint32_t n) {
  tarni_index best = 0;
  for (tarni_index i = heap->zones[1].head; i != 0 && n != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    if (extent->kind == TARNI_EXTENT_FREE && extent->tree == tree && extent->size >= need->size) {
      const bool fits = tarni_extent_fits(extent, need->size, need->alignment);
      best = fits && (best == 0 || extent->size < heap->extents[best].size) ? i : best;
      n--;
    }
  }
  return best;
}

static void seek_tightest(model *m) {
  const uint32_t tree = 1 + below(m, m->heap->n_lanes);
  const uint32_t n = 1 + below(m, 6);
  const tarni_need need = {.zone = 1,
                           .size = (uint64_t)(1 + below(m, 12)) << TARNI_GRANULE_LOG2,
                           .alignment = (uint64_t)TARNI_GRANULE << below(m, 3)};
  const tarni_index expected = tightest_by_list(m->heap, tree, &need, n);
  CHECK_EQ(tarni_extent_tightest_locked(m->heap, tree, &need, n), expected);
  m->n_tight += expected != 0 && expected != met_by_list(m->heap, tree, &need);
}

/* ---- Checks ---- */

static bool order_covers(const tarni_order *order, const tarni_order_entry *due) {
  for (uint32_t i = 0; i < order->n; i++) {
    if (order->lanes[i] == due->lane) {
      return order->tickets[i] >= due->ticket;
    }
  }
  return due->lane == TARNI_LANE_COMMON;
}

/* Granules of an extent that were not given back like this. */
static uint64_t n_unlike(const model *m, const tarni_extent *extent) {
  uint64_t n = 0;
  for (uint64_t at = extent->offset; at < extent->offset + extent->size; at += TARNI_GRANULE) {
    const uint32_t granule = granule_of(m, at);
    n += m->kinds[granule] != extent->kind ||
         (extent->kind == TARNI_EXTENT_FREE && !order_covers(&extent->order, &m->due[granule]));
  }
  return n;
}

static void check_partition(const model *m) {
  const tarn_heap *heap = m->heap;
  uint64_t at = heap->zones[1].first;
  uint64_t n_wrong = 0;
  for (tarni_index i = heap->zones[1].head; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    n_wrong += extent->offset != at;
    at += extent->size;
    const tarni_extent *next = &heap->extents[extent->next];
    n_wrong += extent->next != 0 && extent->kind == next->kind &&
               extent->kind != TARNI_EXTENT_BUSY && extent->tree == next->tree &&
               extent->order.n <= 1; /* they should be one */
    n_wrong += extent->kind != TARNI_EXTENT_BUSY && extent->kind != TARNI_EXTENT_VOID &&
               n_unlike(m, extent) != 0;
  }
  CHECK_EQ(at, heap->zones[1].end);
  CHECK_EQ(n_wrong, 0);
}

static void play(tarn_stealing stealing, uint32_t n_lanes) {
  for (uint64_t seed = 1; seed <= 10; seed++) {
    static model m;
    REQUIRE(model_open(&m, stealing, n_lanes, seed));
    for (int i = 0; i < 3000 && !test_case_failed(); i++) {
      if (m.n_busy != 0 && below(&m, 2) == 0) {
        give(&m);
      } else {
        take(&m);
      }
      seek(&m);
      seek_tightest(&m);
      check_partition(&m);
    }
    CHECK(n_lanes == 2 || (m.n_met > 10 && m.n_given_up != 0));
    CHECK(m.n_tight > 10);
    model_close(&m);
  }
}

static void each_lane_for_itself(void) {
  play(TARN_STEAL_WHEN_SHORT, 7);
}

static void one_lane(void) {
  play(TARN_STEAL_WHEN_SHORT, 2);
  play(TARN_STEAL_NEVER, 2);
}

static void lanes_united(void) {
  play(TARN_STEAL_ALWAYS, 7);
}

/* ---- Records ---- */

static uint64_t play_short(rig *r, uint32_t n_records) {
  rig_block blocks[40];
  int streams[40]; /* of each */
  uint64_t n_refused = 0;
  int n = 0;
  const uint32_t max_extents = r->heap->max_extents;
  r->heap->max_extents = r->heap->n_extents + n_records;
  for (int i = 0; i < 40; i++) {
    const uint64_t bytes = i % 3 == 0 ? (uint64_t)(i + 1) * 700 : (uint64_t)(i % 5 + 1) * MIB + 1;
    const tarn_status status = rig_alloc(r, bytes, r->streams[i % 2], &blocks[n]);
    if (status == TARN_OK) {
      streams[n++] = i % 2;
    } else {
      CHECK_STATUS(status, TARN_HOST_MEMORY);
      CHECK_HAS(tarn_last_message(), "no records left");
      CHECK_OK(tarn_heap_check(r->heap));
      n_refused++;
    }
    if (i % 4 == 3 && n != 0) { /* so that there are holes */
      const int at = (i * 7) % n;
      CHECK_OK(rig_free(r, &blocks[at], r->streams[streams[at]]));
      blocks[at] = blocks[--n];
      streams[at] = streams[n];
    }
  }
  CHECK_OK(tarn_heap_trim(r->heap, 0));
  CHECK(rig_is_sound(r));
  r->heap->max_extents = max_extents;
  while (n != 0) {
    n--;
    CHECK_OK(rig_free(r, &blocks[n], r->streams[streams[n]]));
  }
  return n_refused;
}

/* Without a record for what is left over, an allocation is refused and nothing is lost. */
static void records_run_out(void) {
  uint64_t n_refused = 0;
  for (int policy = 0; policy < 3; policy++) {
    for (uint32_t n_records = 0; n_records < 24; n_records++) {
      const tarn_heap_config config = {.size = sizeof(config), .stealing = (tarn_stealing)policy};
      rig r;
      REQUIRE(rig_open(&r, "sim:256M,order=lazy", &config, 2));
      n_refused += play_short(&r, n_records);
      CHECK_EQ(play_short(&r, 1000), 0);
      CHECK_OK(tarn_heap_trim(r.heap, 0));
      CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
      CHECK(rig_is_sound(&r));
      rig_close(&r);
    }
  }
  CHECK(n_refused > 100);
}

/* ---- Leftovers ---- */

static uint64_t n_free(const tarn_heap *heap, uint32_t zone) {
  uint64_t n = 0;
  for (tarni_index i = heap->zones[zone].head; i != 0; i = heap->extents[i].next) {
    n += heap->extents[i].kind == TARNI_EXTENT_FREE;
  }
  return n;
}

/* Free extents of a heap in which a block of one and a half chunks, or of half of one, has come and
 * gone, beside so many other streams. */
static uint64_t n_free_after(uint64_t bytes, int n_others) {
  rig r;
  rig_block block, others[2];
  if (!CHECK(rig_open(&r, "sim:64M", NULL, 3))) {
    return 0;
  }
  CHECK_OK(rig_alloc(&r, bytes, r.streams[0], &block));
  for (int i = 0; i < n_others; i++) { /* in the other zone */
    CHECK_OK(rig_alloc(&r, bytes < MIB ? 2 * MIB : 1000, r.streams[1 + i], &others[i]));
  }
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  tarni_lock_acquire(&r.heap->lock);
  tarni_cache_empty_all_locked(r.heap, 0, false);
  tarni_slab_collect_all_locked(r.heap);
  const uint64_t n = n_free(r.heap, bytes < MIB ? 0 : 1);
  tarni_lock_release(&r.heap->lock);
  CHECK(rig_is_sound(&r));
  for (int i = 0; i < n_others; i++) {
    CHECK_OK(rig_free(&r, &others[i], r.streams[1 + i]));
  }
  rig_close(&r);
  return n;
}

/* What is left over of a new chunk goes with the block that is freed beside it; not where another
 * stream may want it, nor in the zone of small blocks, where it is of use to all. */
static void leftovers(void) {
  CHECK_EQ(n_free_after(3 * MIB, 0), 1);
  CHECK_EQ(n_free_after(3 * MIB, 1), 2);
  CHECK_EQ(n_free_after(MIB / 2, 0), 2);
}

static tarni_index carve(model *m, tarni_index from, uint64_t granule, uint64_t granules) {
  return tarni_extent_carve_locked(m->heap, from, m->first + (granule << TARNI_GRANULE_LOG2),
                                   granules << TARNI_GRANULE_LOG2);
}

/* Behind a leftover lies what is like the block that it goes with: all three are one. */
static void beyond_a_leftover(void) {
  static model m;
  const tarni_order complete = {0};
  REQUIRE(model_open(&m, TARN_STEAL_WHEN_SHORT, 2, 1));
  const tarni_index all = m.busy[--m.n_busy];
  tarni_extent_give_locked(m.heap, all, TARNI_EXTENT_FREE, &complete);
  const tarni_index last = carve(&m, all, 200, 20);
  const tarni_order first_freed = tarni_order_of((tarni_order_entry){.lane = 1, .ticket = 1});
  tarni_extent_give_locked(m.heap, last, TARNI_EXTENT_FREE, &first_freed);
  const tarni_index front =
      tarni_extent_first_locked(m.heap, 1, 1 + TARNI_LANE_COMMON, TARNI_GRANULE, TARNI_GRANULE, 1);
  CHECK_EQ(n_free(m.heap, 1), 3); /* more than a chunk on both sides: nothing is left over */
  const tarni_index block = carve(&m, front, 0, 100);
  const tarni_order then_freed = tarni_order_of((tarni_order_entry){.lane = 1, .ticket = 2});
  tarni_extent_give_locked(m.heap, block, TARNI_EXTENT_FREE, &then_freed);
  CHECK_EQ(n_free(m.heap, 1), 2);
  const tarni_index whole =
      tarni_extent_first_locked(m.heap, 1, 2, TARNI_GRANULE, TARNI_GRANULE, 1);
  CHECK_EQ(m.heap->extents[whole].size >> TARNI_GRANULE_LOG2, 220);
  model_close(&m);
}

static const test_case cases[] = {
    {"a model of granules, each lane for itself", each_lane_for_itself},
    {"a model of granules, one lane", one_lane},
    {"a model of granules, lanes united", lanes_united},
    {"records run out", records_run_out},
    {"what is left over", leftovers},
    {"beyond what is left over", beyond_a_leftover},
};

TEST_MAIN(cases)
