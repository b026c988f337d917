/* SPDX-License-Identifier: MIT
 *
 * A thread's caches: what they keep, and what they hand on when they are full. How others reach
 * into them is in test_cache_revoke.c. */
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MAX_BLOCKS = 300 };

static tarni_cache *cache_of(rig *r, int stream) {
  tarni_cache *cache = NULL;
  CHECK_OK(tarni_cache_find(r->heap, r->streams[stream], &cache));
  return cache;
}

static void one_for_each_stream_and_heap(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M"};
  tarn_heap *other;
  REQUIRE_OK(tarn_heap_create(&config, &other));
  tarni_cache *first = cache_of(&r, 0), *second = cache_of(&r, 1), *third = NULL;
  CHECK_OK(tarni_cache_find(other, r.streams[0], &third));
  CHECK(first != second && second != third && first != third);
  CHECK(tarni_hot_cache == third);
  CHECK(cache_of(&r, 0) == first);
  CHECK(tarni_hot_cache == first);
  CHECK(first->lane != second->lane);
  CHECK_OK(tarn_heap_destroy(other, NULL));
  rig_close(&r);
}

static uint32_t caches_of(const tarn_heap *heap) {
  uint32_t n = 0;
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    n++;
  }
  return n;
}

/* Each is found again, and gone once its stream is retired and the thread makes another. */
static void one_for_each_of_many_streams(void) {
  enum { MANY = 300 };
  static tarn_stream streams[MANY];
  static tarni_cache *caches[MANY];
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  tarn_device *device = tarn_heap_device(r.heap);
  for (int i = 0; i < MANY; i++) {
    REQUIRE_OK(tarn_stream_create(device, &streams[i]));
    CHECK_OK(tarni_cache_find(r.heap, streams[i], &caches[i]));
  }
  for (int i = 0; i < MANY; i++) {
    tarni_cache *again = NULL;
    CHECK_OK(tarni_cache_find(r.heap, streams[i], &again));
    CHECK(again == caches[i] && again->stream == streams[i]);
  }
  CHECK_EQ(caches_of(r.heap), MANY);
  for (int i = 0; i < MANY; i++) {
    CHECK_OK(tarn_stream_retire(r.heap, streams[i]));
    CHECK_OK(tarn_stream_destroy(device, streams[i]));
  }
  (void)cache_of(&r, 0);
  CHECK_EQ(caches_of(r.heap), 1);
  rig_close(&r);
}

/* The stack of a class never outgrows its capacity; what does not fit goes to the cache's bin. */
static void full_stack_hands_on(void) {
  static const uint64_t sizes[] = {256, 4 * KIB, 5 * KIB, 64 * KIB, 65 * KIB, 500 * KIB};
  rig r;
  static rig_block blocks[MAX_BLOCKS];
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
    const uint32_t class_index = tarni_class_of(sizes[s]);
    const tarni_stack *stack = &cache_of(&r, 0)->stacks[class_index];
    const tarni_bin *bin = &cache_of(&r, 0)->bins[class_index];
    const int n = 2 * stack->capacity + 3;
    CHECK(stack->capacity >= 4 && n <= MAX_BLOCKS);
    for (int i = 0; i < n; i++) {
      CHECK_OK(rig_alloc(&r, sizes[s], r.streams[0], &blocks[i]));
    }
    for (int i = 0; i < n; i++) {
      const tarn_ptr address = blocks[i].address;
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
      CHECK(stack->n != 0 && stack->n <= stack->capacity);
      CHECK_EQ(stack->items[stack->n - 1],
               (address - r.heap->base) >> 8); /* the newest is on top */
    }
    CHECK(bin->n != 0);
    CHECK(rig_is_sound(&r));
  }
  rig_close(&r);
}

static void emptied_and_filled(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  tarni_cache *cache = cache_of(&r, 0);
  const uint32_t class_index = tarni_class_of(1000);
  tarni_stack *stack = &cache->stacks[class_index];
  const tarni_bin *bin = &r.heap->lanes[cache->lane].bins[class_index];
  tarni_lock_acquire(&r.heap->lock);
  tarni_cache_empty_locked(r.heap, cache);
  CHECK_EQ(stack->n, 0);
  CHECK_EQ(bin->n, 64); /* all blocks of the slab */
  tarni_cache_fill_locked(r.heap, cache, class_index);
  CHECK_EQ(stack->n, stack->capacity / 2 + 1);
  CHECK_EQ(bin->n + stack->n, 64);
  tarni_cache_fill_locked(r.heap, cache, class_index); /* no more than that */
  CHECK_EQ(stack->n, stack->capacity / 2 + 1);
  const uint16_t before = stack->n;
  const uint32_t newest = stack->items[stack->n - 1];
  tarni_cache_spill_locked(r.heap, cache, class_index);
  CHECK_EQ(stack->n, before - before / 2);
  CHECK_EQ(stack->items[stack->n - 1], newest); /* the older half has gone */
  while (stack->n > 1) {
    tarni_cache_spill_locked(r.heap, cache, class_index);
  }
  tarni_cache_spill_locked(r.heap, cache, class_index);
  CHECK_EQ(stack->n, 0);
  tarni_lock_release(&r.heap->lock);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A large block is kept for an allocation of exactly its size, if it is the youngest. */
static void large_blocks(void) {
  rig r;
  rig_block blocks[3], block;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, (uint64_t)(i + 2) * MIB, r.streams[0], &blocks[i]));
  }
  const tarni_cache *cache = cache_of(&r, 0);
  CHECK_OK(rig_free(&r, &blocks[2], r.streams[0]));
  CHECK_EQ((uint64_t)cache->large.granules << TARNI_GRANULE_LOG2, 4u * MIB);
  CHECK(cache->large.extent != 0);
  const uint64_t misses = rig_stats(&r).misses;
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_EQ(rig_stats(&r).misses, misses);
  CHECK_EQ(cache->large.extent, 0);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(cache->large.extent != 0); /* still the youngest */
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK_EQ(cache->large.extent, 0); /* another was given back: all that is free is to be had */
  CHECK_OK(rig_alloc(&r, 65 * MIB, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_EQ(cache->large.extent, 0); /* too large to be kept */
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Where a block comes to lie does not depend on what was kept: the lowest room there is. */
static void large_blocks_lie_low(void) {
  rig r;
  rig_block blocks[3], block;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 65 * MIB, r.streams[0], &blocks[0]));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[1]));
  const tarn_ptr first = blocks[0].address;
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0])); /* the youngest, but no longer the lowest */
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[i]));
    CHECK(i != 0 || blocks[i].address == first);
    CHECK(i == 0 || blocks[i].address > blocks[i - 1].address);
  }
  const tarn_ptr lowest = blocks[0].address, highest = blocks[2].address;
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  rig_block other;
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &other)); /* the youngest now */
  CHECK_OK(rig_free(&r, &blocks[2], r.streams[0]));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_EQ(block.address, lowest);
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[0]));
  CHECK_EQ(blocks[0].address, highest);
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0])); /* kept, and then one below it is freed */
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_EQ(block.address, lowest);
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[0]));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0])); /* placed last, but one was freed since */
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_EQ(block.address, lowest);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK_OK(rig_free(&r, &other, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Each block is freed once the next is there, as layers do: it lies lowest, and is kept. */
static void large_blocks_in_a_chain(void) {
  rig r;
  rig_block blocks[2];
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 6 * MIB, r.streams[0], &blocks[0]));
  uint64_t misses = 0;
  for (int i = 1; i < 20; i++) {
    CHECK_OK(rig_alloc(&r, 6 * MIB, r.streams[0], &blocks[i % 2]));
    CHECK_OK(rig_free(&r, &blocks[(i + 1) % 2], r.streams[0]));
    misses = i == 2 ? rig_stats(&r).misses : misses;
  }
  CHECK_EQ(rig_stats(&r).misses, misses);
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* The next of its size is there, but there is room below, or room in front that joins it. */
static void large_blocks_above_room(void) {
  rig r;
  rig_block blocks[4], next;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[i]));
  }
  const tarn_ptr second = blocks[1].address;
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[0]));
  CHECK_OK(rig_free(&r, &blocks[3], r.streams[0])); /* above the second, which is free */
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[1]));
  CHECK_EQ(blocks[1].address, second);
  CHECK_OK(rig_free(&r, &blocks[2], r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &blocks[1])); /* 10 MiB are free behind it */
  CHECK_OK(rig_alloc(&r, 5 * MIB, r.streams[0], &blocks[2]));
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK_OK(rig_alloc(&r, 5 * MIB, r.streams[0], &next));
  CHECK_OK(rig_free(&r, &blocks[2], r.streams[0])); /* behind 2 MiB that are free */
  CHECK_OK(rig_alloc(&r, 5 * MIB, r.streams[0], &blocks[2]));
  CHECK_EQ(blocks[2].address, second);
  CHECK_OK(rig_free(&r, &next, r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[2], r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A block begun at an alignment is not where another of its size would begin. */
static void aligned_blocks_are_not_kept(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 6 * MIB, r.streams[0], &block)); /* room that the stream has freed */
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(rig_alloc(&r, MIB + MIB / 4, r.streams[0], &block));
  const tarn_ptr front = block.address;
  tarn_ptr aligned = 0;
  CHECK_OK(tarn_alloc_aligned(r.heap, MIB + MIB / 4, 2 * MIB, r.streams[0], &aligned));
  CHECK_OK(tarn_free(r.heap, aligned, r.streams[0]));
  rig_block other;
  CHECK_OK(rig_alloc(&r, MIB + MIB / 4, r.streams[0], &other));
  CHECK_EQ(other.address, front + MIB + MIB / 4);
  CHECK_OK(rig_free(&r, &other, r.streams[0]));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static bool limit_raise(tarn_heap *heap, uint64_t bytes, void *user) {
  (void)user;
  return bytes != 0 && tarn_heap_set_limit(heap, 64 * MIB) == TARN_OK;
}

/* One is kept and the next was more than the heap might have, until its owner let it: that one is
 * the youngest then, and the cache has no room for it. */
static void one_large_block_is_kept(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 8 * MIB, .on_shortage = limit_raise};
  rig r;
  rig_block blocks[2];
  REQUIRE(rig_open(&r, "sim:256M", &config, 1));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[0]));
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  const tarni_cache *cache = cache_of(&r, 0);
  CHECK(cache->large.extent != 0);
  CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[0], &blocks[1]));
  CHECK(cache->large.extent != 0);
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK(rig_is_sound(&r));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[0]));
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK(cache->large.extent != 0);
  CHECK_OK(rig_alloc(&r, 6 * MIB, r.streams[0], &blocks[1]));
  CHECK_EQ(cache->large.extent, 0); /* another size was asked for */
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static const test_case cases[] = {
    {"one for each stream and heap", one_for_each_stream_and_heap},
    {"one for each of many streams", one_for_each_of_many_streams},
    {"a full stack hands on", full_stack_hands_on},
    {"emptied and filled", emptied_and_filled},
    {"large blocks", large_blocks},
    {"large blocks lie low", large_blocks_lie_low},
    {"large blocks in a chain", large_blocks_in_a_chain},
    {"large blocks above room", large_blocks_above_room},
    {"aligned blocks are not kept", aligned_blocks_are_not_kept},
    {"one large block is kept", one_large_block_is_kept},
};

TEST_MAIN(cases)
