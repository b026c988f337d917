/* SPDX-License-Identifier: MIT
 *
 * The search for a window jumps over what is in use, and over what is mapped but nobody's home: it
 * finds the next extent that is free or void, as a walk over all of them does, and where it passes
 * over what is too short, the same window. */
#include "base/bits.h"
#include "base/rng.h"
#include "room.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, N_BASE = 80, N_BLOCKS = 120, N_STEPS = 3000 };

static bool is_open(const tarni_extent *extent) {
  return extent->kind == TARNI_EXTENT_FREE || extent->kind == TARNI_EXTENT_VOID;
}

/* The next extent that is open; one that is free the search may pass over, if its lane cannot use
 * it, and has come to `found` so. */
static tarni_index next_open(const tarn_heap *heap, tarni_index index, tarni_index found,
                             uint32_t *n) {
  tarni_index walked = heap->extents[index].next;
  for (*n = 1; walked != 0 && walked != found; ++*n) {
    const tarni_extent *extent = &heap->extents[walked];
    if (is_open(extent) &&
        (extent->kind != TARNI_EXTENT_FREE || tarni_order_is_met_locked(heap, &extent->order, 0))) {
      break;
    }
    walked = extent->next;
  }
  return walked;
}

/* From each extent of a zone. Counts those that are far from the next one, and of them those where
 * there are aliases in between. */
static void look_from_all(tarn_heap *heap, uint32_t zone, uint64_t n_far[2]) {
  tarni_search search = {0};
  const uint32_t far = 2 + heap->n_lanes;
  for (tarni_index i = heap->zones[zone].head; i != 0; i = heap->extents[i].next) {
    const tarni_index found = tarni_window_next_locked(heap, &search, zone, i);
    uint32_t n;
    const tarni_index walked = next_open(heap, i, found, &n);
    CHECK_EQ(found, walked);
    CHECK(found == 0 || is_open(&heap->extents[found]));
    n_far[0] += n > far;
    bool has_alias = false;
    for (tarni_index k = heap->extents[i].next; n > far && k != walked && !has_alias;) {
      has_alias = heap->extents[k].kind == TARNI_EXTENT_ALIAS;
      k = heap->extents[k].next;
    }
    n_far[1] += has_alias;
  }
}

/* Windows of all sizes, found with barred units and as if there were none. Counts those that took
 * fewer steps. */
static void find_all(tarn_heap *heap, uint64_t *n_fewer) {
  const tarni_bitset barred = heap->barred, placed = heap->placed;
  const uint64_t n_units = tarni_unit_of(heap, heap->size);
  tarni_bitset none, all;
  REQUIRE(tarni_bitset_open(&none, n_units) && tarni_bitset_open(&all, n_units));
  for (uint64_t i = 0; i < n_units; i++) {
    tarni_bitset_add(&all, i);
  }
  for (uint32_t i = 0; i < 2 * 2 * 2 * 8; i++) {
    const tarni_need need = {.lane = 1 + i % 2,
                             .zone = 1,
                             .size = tarni_align_up((uint64_t)MIB << i / 8, TARNI_GRANULE) +
                                     i % 5 * (MIB / 4) / TARNI_GRANULE * TARNI_GRANULE,
                             .alignment = i % 3 == 0 ? heap->unit : TARNI_GRANULE,
                             .least = TARNI_GRANULE};
    const tarni_search blank = {.lane = need.lane,
                                .may_steal = i % 7 == 0,
                                .max_pieces = 4096,
                                .may_map = (i & 2) != 0,
                                .is_lean = (i & 4) != 0,
                                .number = ++heap->n_searches};
    tarni_search search = blank, slow = blank;
    const tarni_window found = tarni_window_find_locked(heap, &search, &need);
    heap->barred = none;
    heap->placed = all;
    const tarni_window walked = tarni_window_find_locked(heap, &slow, &need);
    heap->barred = barred;
    heap->placed = placed;
    CHECK_EQ(found.first, walked.first);
    CHECK_EQ(found.start, walked.start);
    CHECK_EQ(found.missing, walked.missing);
    CHECK(search.n_steps <= slow.n_steps);
    *n_fewer += search.n_steps < slow.n_steps;
  }
  tarni_bitset_close(&none);
  tarni_bitset_close(&all);
}

/* Whether a window can have the extent. */
static bool is_usable(const tarn_heap *heap, const tarni_search *search,
                      const tarni_extent *extent) {
  return extent->kind == TARNI_EXTENT_FREE
             ? tarni_order_is_met_locked(heap, &extent->order, search->lane)
             : extent->kind == TARNI_EXTENT_VOID && search->may_map;
}

/* Whether a window from this extent up to an offset can be had. */
static bool is_window(const tarn_heap *heap, const tarni_search *search, tarni_index first,
                      uint64_t end) {
  for (tarni_index i = first; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    if (!is_usable(heap, search, extent)) {
      return false;
    }
    if (extent->offset + extent->size >= end) {
      return true;
    }
  }
  return false;
}

/* The lowest window that begins where an extent does, or in it, aligned. Returns its offset;
 * UINT64_MAX: there is none. *is_alone: it is all in one free extent. */
static uint64_t lowest_window(const tarn_heap *heap, const tarni_search *search,
                              const tarni_need *need, bool *is_alone) {
  for (tarni_index i = heap->zones[need->zone].head; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    const uint64_t start = tarni_align_up(extent->offset, need->alignment);
    const uint64_t end = start + need->size;
    if (start < extent->offset + extent->size && is_window(heap, search, i, end)) {
      *is_alone = extent->kind == TARNI_EXTENT_FREE && end <= extent->offset + extent->size;
      return start;
    }
  }
  return UINT64_MAX;
}

/* Windows of less than a unit: the search is for those that are not in one free extent. Counts
 * those that have no void part, and that it passed over others for. */
static void find_small(tarn_heap *heap, uint64_t n_found[2]) {
  for (uint32_t i = 0; i < 2 * 2 * 2 * 12; i++) {
    const tarni_need need = {.lane = 1 + i % 2,
                             .zone = (i & 4) != 0,
                             .size = (1 + i / 8 * 10) * (uint64_t)TARNI_GRANULE,
                             .alignment = i % 5 == 0 ? heap->unit / 4 : TARNI_GRANULE,
                             .least = TARNI_GRANULE};
    tarni_search search = {.lane = need.lane,
                           .may_steal = i % 7 == 0,
                           .max_pieces = 4096,
                           .may_map = (i & 2) != 0,
                           .number = ++heap->n_searches};
    bool is_alone = false;
    const uint64_t lowest = lowest_window(heap, &search, &need, &is_alone);
    if (is_alone) {
      continue;
    }
    const tarni_window found = tarni_window_find_locked(heap, &search, &need);
    CHECK_EQ(found.first != 0 ? found.start : UINT64_MAX, lowest);
    n_found[0] += found.first != 0 && found.missing == 0;
    n_found[1] += found.first != 0 && search.n_steps < 8;
  }
}

/* Above a base that stays, blocks of all sizes on two streams, in so little room that memory is
 * lent. Windows of less than a unit without a part that is void are found if there are seams. */
static void look_all_the_time(tarn_stealing stealing, bool has_seams) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = stealing};
  static rig_block base[N_BASE], blocks[N_BLOCKS];
  tarni_rng rng = {7};
  uint64_t n_far[2] = {0, 0}, n_fewer = 0, n_found[2] = {0, 0};
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", &config, 2));
  for (int i = 0; i < N_BASE; i++) {
    CHECK_OK(rig_alloc(&r, MIB + MIB / 4, r.streams[0], &base[i]));
  }
  for (int step = 0; step < N_STEPS; step++) {
    const uint64_t which = tarni_rng_below(&rng, N_BLOCKS);
    rig_block *block = &blocks[which];
    tarn_stream stream = r.streams[which % 2];
    const bool is_large = tarni_rng_below(&rng, 2) == 0;
    const uint64_t bytes = (1 + tarni_rng_below(&rng, 200)) * (is_large ? 40000 : 3000);
    if (block->address != 0) {
      CHECK_OK(rig_free(&r, block, stream));
    } else if (rig_alloc(&r, bytes, stream, block) != TARN_OK) {
      block->address = 0;
    }
    look_from_all(r.heap, 0, n_far);
    look_from_all(r.heap, 1, n_far);
    if (step % 8 == 0) { /* which takes long */
      find_all(r.heap, &n_fewer);
    }
    find_small(r.heap, n_found);
  }
  CHECK(n_far[0] > N_STEPS); /* it has jumped, */
  CHECK(n_fewer > N_STEPS);  /* and passed over */
  CHECK(n_far[1] > N_STEPS); /* aliases as well */
  CHECK(has_seams ? n_found[0] > N_STEPS : n_found[0] == 0);
  CHECK(n_found[1] > N_STEPS);
  for (int i = 0; i < N_BASE; i++) {
    CHECK_OK(rig_free(&r, &base[i], r.streams[0]));
  }
  for (int i = 0; i < N_BLOCKS; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 2]));
    }
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* What is free is united, whoever has freed it. */
static void as_a_walk_finds_it(void) {
  look_all_the_time(TARN_STEAL_ALWAYS, false);
}

/* What the streams have freed is not united: there are many seams. */
static void over_seams(void) {
  look_all_the_time(TARN_STEAL_WHEN_SHORT, true);
}

/* Behind many blocks in use a window begins in what is free there, or right behind them. */
static void behind_many_blocks(void) {
  static rig_block blocks[N_BLOCKS];
  rig_block last, beside;
  uint64_t n_far[2] = {0, 0};
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(rig_alloc(&r, (uint64_t)3 * MIB, r.streams[0], &blocks[i]));
    look_from_all(r.heap, 1, n_far);
  }
  CHECK(n_far[0] > N_BLOCKS);
  CHECK_OK(rig_alloc(&r, (uint64_t)2 * MIB, r.streams[0], &last));
  const tarn_ptr end = last.address;
  CHECK_EQ(end, blocks[N_BLOCKS - 1].address + (uint64_t)3 * MIB);
  CHECK_OK(rig_free(&r, &last, r.streams[0]));
  CHECK_OK(rig_alloc(&r, (uint64_t)5 * MIB, r.streams[0], &beside)); /* free, then void */
  CHECK_EQ(beside.address, end);
  CHECK_OK(rig_free(&r, &beside, r.streams[0]));
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  rig_close(&r);
}

/* Among small blocks, all of the same size, there is a place of a chunk of large ones that nobody
 * uses any more. Its memory is free, at home: no window of small blocks can have it, and a view has
 * it at once. */
static void past_an_alias(void) {
  static rig_block blocks[N_BASE];
  rig_block large, low;
  uint64_t n_far[2] = {0, 0};
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  CHECK_OK(rig_alloc(&r, (uint64_t)16 * MIB, r.streams[0], &large));
  for (int i = 0; i < N_BASE; i++) {
    CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &blocks[i]));
  }
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  CHECK_OK(tarn_heap_set_limit(r.heap, rig_stats(&r).reserved_bytes));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &low)); /* there is no other memory */
  CHECK_EQ(r.heap->n_aliases, 1);
  const tarn_ptr borrowed = low.address;
  CHECK_OK(rig_free(&r, &low, r.streams[0]));
  tarni_lock_acquire(&r.heap->lock);
  tarni_cache_empty_all_locked(r.heap, 0, false);
  tarni_slab_collect_all_locked(r.heap);
  look_from_all(r.heap, TARNI_ZONE_SMALL, n_far);
  CHECK(n_far[1] != 0);
  const tarni_need need = {
      .lane = 1, .zone = TARNI_ZONE_SMALL, .size = MIB, .alignment = 16384, .least = 16384};
  tarni_search search = {.lane = 1, .max_pieces = 4096};
  CHECK_EQ(tarni_window_find_locked(r.heap, &search, &need).first, 0);
  tarni_lock_release(&r.heap->lock);
  const uint64_t calls = rig_calls(&r);
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &low));
  CHECK_EQ(low.address, borrowed);
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_OK(rig_free(&r, &low, r.streams[0]));
  for (int i = 0; i < N_BASE; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* What another stream has freed and is not known to be complete no window can have: whoever looks
 * does not even come by its tree. */
static void past_other_streams(void) {
  rig r;
  rig_block blocks[3], last;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 3));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, (uint64_t)4 * MIB, r.streams[i], &blocks[i]));
  }
  CHECK_OK(rig_alloc(&r, (uint64_t)4 * MIB, r.streams[0], &last)); /* so that none is kept */
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[i]));
  }
  tarn_heap *heap = r.heap;
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  for (tarni_index lane = 1; lane <= 3; lane++) {
    const tarni_index found = tarni_extent_from_locked(heap, 1, heap->small_end, lane);
    CHECK_EQ(heap->extents[found].kind, TARNI_EXTENT_FREE);
    CHECK_EQ(heap->extents[found].tree, 1 + lane);
  }
  tarni_lock_release(&heap->lock);
  CHECK_OK(tarn_heap_check(heap));
  CHECK_OK(rig_free(&r, &last, r.streams[0]));
  rig_close(&r);
}

static const test_case cases[] = {
    {"as a walk finds it", as_a_walk_finds_it},
    {"over seams", over_seams},
    {"behind many blocks", behind_many_blocks},
    {"past an alias", past_an_alias},
    {"past what other streams have freed", past_other_streams},
};

TEST_MAIN(cases)
