/* SPDX-License-Identifier: MIT
 *
 * Slabs and bins: how large slabs are, that a slab goes when its last block is free, whoever freed
 * its blocks, and that collecting loses none. */
#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, N = 64 };

static void sizes_of_slabs(void) {
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    const uint64_t block = tarni_class_size(i), slab = tarni_slab_bytes(i);
    CHECK_EQ(slab % TARNI_GRANULE, 0);
    CHECK(slab >= block);
    if (block <= TARNI_SHARED_BLOCK_MAX) {
      CHECK(slab / block >= TARNI_SLAB_MIN_BLOCKS);
      CHECK(slab % block < block && (slab % block) * 8 < slab);
    } else {
      CHECK_EQ(slab / block, 1);
      CHECK(slab - block < TARNI_GRANULE);
    }
  }
}

static uint64_t n_slabs(const tarn_heap *heap) {
  uint64_t n = 0;
  for (tarni_index i = heap->zones[0].head; i != 0; i = heap->extents[i].next) {
    n += heap->extents[i].kind == TARNI_EXTENT_SLAB;
  }
  return n;
}

static void collect(rig *r) {
  tarni_lock_acquire(&r->heap->lock);
  tarni_cache_empty_all_locked(r->heap, 0, false);
  tarni_slab_collect_all_locked(r->heap);
  tarni_lock_release(&r->heap->lock);
}

/* A slab stays while one block of it is live, and goes with the last. */
static void last_block_of_a_slab(void) {
  rig r;
  rig_block blocks[N];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  for (int i = 0; i < N; i++) { /* 16 a slab */
    CHECK_OK(rig_alloc(&r, 4 * KIB, r.streams[0], &blocks[i]));
  }
  CHECK_EQ(n_slabs(r.heap), 4);
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
    collect(&r);
    CHECK(rig_is_sound(&r));
  }
  CHECK_EQ(n_slabs(r.heap), 0);
  rig_close(&r);
}

/* Blocks of one slab freed by several lanes: by up to four it goes, by more it stays whole. */
static void freed_by_several_lanes(void) {
  for (int n_lanes = 1; n_lanes <= 6; n_lanes++) {
    rig r;
    rig_block blocks[16];
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 6));
    for (int i = 0; i < 16; i++) {
      CHECK_OK(rig_alloc(&r, 4 * KIB, r.streams[0], &blocks[i]));
    }
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    for (int i = 0; i < 16; i++) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % n_lanes]));
    }
    collect(&r);
    CHECK_EQ(n_slabs(r.heap), n_lanes <= TARNI_ORDER_MAX ? 0 : 1);
    CHECK(rig_is_sound(&r));
    collect(&r); /* what stays can be looked at again */
    CHECK(rig_is_sound(&r));
    CHECK_OK(tarn_heap_trim(r.heap, 0)); /* waits for all of them: then it goes anyway */
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    rig_close(&r);
  }
}

/* Any pattern of live, cached and free blocks of several classes and lanes, collected again and
 * again: the check counts every block. */
static void collected_at_random(void) {
  rig r;
  rig_block blocks[3 * N] = {{.address = 0}};
  int streams[3 * N] = {0};
  tarni_rng rng = {.state = 7};
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 5));
  for (int round = 0; round < 4000 && !test_case_failed(); round++) {
    const uint64_t at = tarni_rng_below(&rng, 3 * N);
    if (blocks[at].address != 0) {
      CHECK_OK(rig_free(&r, &blocks[at], r.streams[streams[at]]));
    } else {
      streams[at] = (int)tarni_rng_below(&rng, 5);
      const uint64_t bytes =
          tarni_rng_below(&rng, 10) == 0 ? 100 * KIB : 256 + 3000 * tarni_rng_below(&rng, 3);
      CHECK_OK(rig_alloc(&r, bytes, r.streams[streams[at]], &blocks[at]));
    }
    if (round % 20 == 0) {
      collect(&r);
      CHECK(rig_is_sound(&r));
    }
  }
  for (int i = 0; i < 3 * N; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[streams[i]]));
    }
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* Out of sight and back: each bin where it was, or all in the common one. */
static void bins_detached_and_attached(void) {
  rig r;
  rig_block blocks[N];
  static tarni_bin bins[8][TARNI_CLASS_COUNT];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&r, 5 * KIB, r.streams[i % 2], &blocks[i]));
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 2]));
  }
  const uint32_t class_index = tarni_class_of(5 * KIB);
  tarni_lock_acquire(&r.heap->lock);
  tarni_cache_empty_all_locked(r.heap, 0, false);
  const uint32_t first = r.heap->lanes[1].bins[class_index].n;
  const uint32_t second = r.heap->lanes[2].bins[class_index].n;
  CHECK(first != 0 && second != 0);
  tarni_bins_detach_locked(r.heap, r.heap->n_lanes, bins);
  CHECK_EQ(r.heap->lanes[1].bins[class_index].n, 0);
  uint32_t item;
  CHECK_EQ(tarni_bin_take_locked(r.heap, 1, class_index, &item, 1), 0);
  tarni_bins_attach_locked(r.heap, r.heap->n_lanes, bins, false);
  CHECK_EQ(r.heap->lanes[1].bins[class_index].n, first);
  CHECK_EQ(r.heap->lanes[2].bins[class_index].n, second);
  tarni_bins_detach_locked(r.heap, r.heap->n_lanes, bins);
  tarni_bins_attach_locked(r.heap, r.heap->n_lanes, bins, true);
  CHECK_EQ(r.heap->lanes[TARNI_LANE_COMMON].bins[class_index].n, first + second);
  tarni_lock_release(&r.heap->lock);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static uint32_t collect_own(rig *r) {
  tarni_cache *cache = NULL;
  CHECK_OK(tarni_cache_find(r->heap, r->streams[0], &cache));
  tarni_lock_acquire(&r->heap->lock);
  const uint32_t n = tarni_cache_collect_locked(r->heap, cache, false);
  tarni_lock_release(&r->heap->lock);
  return n;
}

/* Many free blocks on slabs that stay are not looked at again and again: only once a part of them
 * was freed since, or where memory is short. */
static void looked_at_in_vain(void) {
  enum { SLAB_BLOCKS = 256, N_SLABS = 32, MANY = N_SLABS * SLAB_BLOCKS, PART = MANY / 3 };
  static tarn_ptr blocks[MANY], others[PART];
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  for (int i = 0; i < MANY; i++) {
    CHECK_OK(tarn_alloc(r.heap, 256, r.streams[0], &blocks[i]));
  }
  for (int i = 0; i < MANY; i++) {
    if (i % SLAB_BLOCKS != 0) {
      CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
    }
  }
  CHECK_EQ(collect_own(&r), 0);
  CHECK_OK(tarn_free(r.heap, blocks[0], r.streams[0]));
  CHECK_EQ(collect_own(&r), 0); /* one slab has no live block, and is worth no look */
  CHECK_EQ(n_slabs(r.heap), N_SLABS);
  CHECK(rig_is_sound(&r));
  for (int i = 0; i < PART; i++) {
    CHECK_OK(tarn_alloc(r.heap, 256, r.streams[0], &others[i]));
  }
  for (int i = 0; i < PART; i++) {
    CHECK_OK(tarn_free(r.heap, others[i], r.streams[0]));
  }
  CHECK_EQ(collect_own(&r), 1); /* by now it is */
  CHECK_OK(tarn_free(r.heap, blocks[SLAB_BLOCKS], r.streams[0]));
  CHECK_EQ(collect_own(&r), 0);
  collect(&r); /* thoroughly */
  CHECK_EQ(n_slabs(r.heap), N_SLABS - 2);
  CHECK(rig_is_sound(&r));
  for (int i = 2; i < N_SLABS; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i * SLAB_BLOCKS], r.streams[0]));
  }
  rig_close(&r);
}

/* What is worth no look is looked at where memory is short for good. */
static void looked_at_under_shortage(void) {
  enum { SLAB_BLOCKS = 256, N_SLABS = 224, MANY = N_SLABS * SLAB_BLOCKS };
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 16 * MIB};
  static tarn_ptr blocks[MANY];
  tarn_ptr large = 0;
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  for (int i = 0; i < MANY; i++) {
    CHECK_OK(tarn_alloc(r.heap, 256, r.streams[0], &blocks[i]));
  }
  for (int i = 0; i < MANY; i++) {
    if (i % SLAB_BLOCKS != 0) {
      CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
    }
  }
  CHECK_STATUS(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &large), TARN_LIMIT);
  for (int i = 0; i < N_SLABS / 2; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i * SLAB_BLOCKS], r.streams[0]));
  }
  CHECK_EQ(collect_own(&r), 0);
  CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &large));
  CHECK_OK(tarn_free(r.heap, large, r.streams[0]));
  for (int i = N_SLABS / 2; i < N_SLABS; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i * SLAB_BLOCKS], r.streams[0]));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static const test_case cases[] = {
    {"sizes of slabs", sizes_of_slabs},
    {"the last block of a slab", last_block_of_a_slab},
    {"freed by several lanes", freed_by_several_lanes},
    {"collected at random", collected_at_random},
    {"bins detached and attached", bins_detached_and_attached},
    {"looked at in vain", looked_at_in_vain},
    {"looked at under shortage", looked_at_under_shortage},
};

TEST_MAIN(cases)
