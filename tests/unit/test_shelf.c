/* SPDX-License-Identifier: MIT
 *
 * Shelves: a heap that is eased keeps large blocks for the next ones that are about as large, no
 * more of them than it may, and gives them up to whoever needs the memory. */
#include <pthread.h>
#include <time.h>

#include "base/bits.h"
#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MAX_BLOCKS = 16 };

typedef struct store {
  rig r;
  rig_block base; /* what is used besides */
  rig_block blocks[MAX_BLOCKS];
  tarni_cache *cache;
  tarn_ptr taken[MAX_BLOCKS]; /* by another thread */
  uint32_t n_taken;
  pthread_barrier_t barrier;
} store;

/* From here on the heap is as eased as one that has collected enough. */
static void ease(tarn_heap *heap, uint64_t lean_peak) {
  tarni_lock_acquire(&heap->lock);
  heap->rest = (tarni_rest){.n_collected = lean_peak != 0 ? TARNI_EASE_COLLECTED : 0,
                            .peak_next = lean_peak,
                            .lean_peak = lean_peak};
  tarni_lock_release(&heap->lock);
}

/* A heap of 200 MiB of which 160 are used, and a cache that may keep all of the rest. */
static bool store_open(store *s, const tarn_heap_config *config) {
  *s = (store){0};
  if (!rig_open(&s->r, "sim:16G", config, 2)) {
    return false;
  }
  CHECK_OK(rig_alloc(&s->r, (uint64_t)160 * MIB, s->r.streams[0], &s->base));
  CHECK_OK(tarn_heap_reserve(s->r.heap, (uint64_t)200 * MIB));
  ease(s->r.heap, (uint64_t)160 * MIB);
  return CHECK_OK(tarni_cache_find(s->r.heap, s->r.streams[0], &s->cache));
}

static void get(store *s, int i, uint64_t bytes) {
  CHECK_OK(rig_alloc(&s->r, bytes, s->r.streams[0], &s->blocks[i]));
}

static void put(store *s, int i) {
  CHECK_OK(rig_free(&s->r, &s->blocks[i], s->r.streams[0]));
  s->blocks[i] = (rig_block){0};
}

static void caches_empty(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_lock_release(&heap->lock);
}

static uint64_t on_shelf(const store *s) {
  return atomic_load(&s->cache->shelf.bytes);
}

static void store_close(store *s) {
  for (int i = 0; i < MAX_BLOCKS; i++) {
    if (s->blocks[i].address != 0) {
      put(s, i);
    }
  }
  CHECK_OK(rig_free(&s->r, &s->base, s->r.streams[0]));
  CHECK(rig_is_sound(&s->r));
  rig_close(&s->r);
}

/* A block with 160 KiB to spare. */
static tarn_ptr spare_get(store *s) {
  get(s, 0, 3 * MIB);
  put(s, 0);
  get(s, 0, 2900 * KIB);
  CHECK_EQ(on_shelf(s), 0);
  return s->blocks[0].address;
}

/* 14 MiB on the shelf, in four blocks that lie below one that is live. */
static void shelf_fill(store *s) {
  for (int i = 0; i < 5; i++) {
    get(s, i, (uint64_t)(i + 2) * MIB);
  }
  for (int i = 0; i < 4; i++) {
    put(s, i);
  }
  CHECK_EQ(on_shelf(s), 14 * MIB);
}

/* ---- What is kept ---- */

/* A block comes back for what is a little smaller, or as large, and for nothing else. */
static void about_as_large(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  get(&s, 0, 3 * MIB);
  get(&s, 1, 1536 * KIB);
  const tarn_ptr address = s.blocks[0].address;
  const uint64_t sizes[] = {3 * MIB, 2900 * KIB, 2368 * KIB};
  for (int i = 0; i < 3; i++) {
    put(&s, 0);
    CHECK_EQ(on_shelf(&s), 3 * MIB);
    CHECK(rig_is_sound(&s.r));
    const uint64_t misses = rig_stats(&s.r).misses;
    get(&s, 0, sizes[i]);
    CHECK_EQ(s.blocks[0].address, address);
    CHECK_EQ(rig_stats(&s.r).misses, misses);
    CHECK_EQ(on_shelf(&s), 0);
    tarn_block_info info = {.size = sizeof(info)};
    CHECK_OK(tarn_block_get_info(s.r.heap, address, &info));
    CHECK_EQ(info.usable_bytes, tarni_align_up(sizes[i], TARNI_GRANULE));
    CHECK_EQ(rig_stats(&s.r).live_bytes, s.base.bytes + 1536 * KIB + info.usable_bytes);
  }
  put(&s, 0);
  get(&s, 2, 3 * MIB + 16 * KIB); /* as large, nearly, but not enough */
  get(&s, 3, 2352 * KIB);         /* twelve 32nds of 2 MiB less */
  CHECK(s.blocks[2].address != address && s.blocks[3].address != address);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  store_close(&s);
}

/* Eight of each size, and no more bytes than it may. */
static void within_limits(void) {
  enum { N_SMALLER = 9 };
  static store s;
  REQUIRE(store_open(&s, NULL));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (uint64_t)340 * MIB));
  for (int i = 0; i < MAX_BLOCKS; i++) {
    get(&s, i, (uint64_t)(i < N_SMALLER ? 2 : 15) * MIB);
  }
  uint64_t kept = 0; /* MiB: four fifths of a half of 283 */
  for (int i = 0; i < MAX_BLOCKS; i++) {
    kept += i < N_SMALLER - 1 ? 2 : i >= N_SMALLER && i < MAX_BLOCKS - 1 ? 15 : 0;
    put(&s, i);
    CHECK_EQ(on_shelf(&s), kept * MIB);
  }
  CHECK(rig_is_sound(&s.r));
  get(&s, 0, 18 * MIB); /* too large for any row */
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), kept * MIB);
  store_close(&s);
}

/* What was asked for counts where a size is named. */
static void sizes_are_known(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  const tarn_ptr block = spare_get(&s);
  CHECK_STATUS(tarn_free_sized(s.r.heap, block, 3 * MIB, s.r.streams[0]), TARN_WRONG_SIZE);
  CHECK_STATUS(tarn_free_sized(s.r.heap, block, 2000 * KIB, s.r.streams[0]), TARN_WRONG_SIZE);
  CHECK_OK(tarn_free_sized(s.r.heap, block, 2900 * KIB, s.r.streams[0]));
  s.blocks[0] = (rig_block){0};
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  store_close(&s);
}

/* A block that was taken from the shelf and is kept as the youngest comes back with its size. */
static void youngest_has_none_to_spare(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  const tarn_ptr block = spare_get(&s);
  caches_empty(s.r.heap); /* the shelf is closed */
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 0);
  get(&s, 0, 3 * MIB);
  CHECK_EQ(s.blocks[0].address, block);
  CHECK_OK(tarn_free_sized(s.r.heap, block, 3 * MIB, s.r.streams[0]));
  s.blocks[0] = (rig_block){0};
  store_close(&s);
}

/* They are nobody's: not the block's, and not counted, whichever way it goes. */
static void spare_is_nobodys(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  const tarn_ptr block = spare_get(&s);
  tarn_block_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_block_get_info(s.r.heap, block + 2912 * KIB - 1, &info));
  CHECK_STATUS(tarn_block_get_info(s.r.heap, block + 2912 * KIB, &info), TARN_FOREIGN);
  CHECK_STATUS(tarn_free(s.r.heap, block + 2912 * KIB, s.r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_OK(tarn_use(s.r.heap, block, s.r.streams[1])); /* used by another stream */
  put(&s, 0);
  CHECK_EQ(rig_stats(&s.r).pending_bytes, 2912 * KIB);
  CHECK(rig_is_sound(&s.r));
  caches_empty(s.r.heap);
  get(&s, 1, 9 * MIB);
  (void)spare_get(&s);
  tarn_capture *capture = rig_capture_begin(&s.r, NULL); /* freed inside a capture */
  put(&s, 0);
  CHECK(rig_is_sound(&s.r));
  CHECK_EQ(rig_stats(&s.r).live_bytes, (uint64_t)169 * MIB);
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK(rig_is_sound(&s.r));
  store_close(&s);
}

static uint64_t histogram_sum(const store *s) {
  static tarn_heap_histogram histogram;
  histogram = (tarn_heap_histogram){.size = sizeof(histogram)};
  CHECK_OK(tarn_heap_get_histogram(s->r.heap, &histogram));
  uint64_t cached = 0;
  for (uint64_t i = 0; i < histogram.n_rows; i++) {
    CHECK(histogram.rows[i].cached_blocks < 100);
    cached += histogram.rows[i].cached_blocks;
  }
  return cached;
}

/* A block whose slab is above a power of two and whose size is below: one row has both. */
static void histogram_agrees(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  get(&s, 0, 2112 * KIB);
  get(&s, 1, 9 * MIB);
  put(&s, 0);
  CHECK_EQ(histogram_sum(&s), 1);
  get(&s, 0, 2000 * KIB);
  CHECK_EQ(on_shelf(&s), 0);
  CHECK_EQ(histogram_sum(&s), 0);
  CHECK(rig_is_sound(&s.r));
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 2112 * KIB);
  CHECK_EQ(histogram_sum(&s), 1);
  store_close(&s);
}

/* Free is free: no second time, not from within. */
static void freed_is_free(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  get(&s, 0, 3 * MIB);
  const tarn_ptr address = s.blocks[0].address;
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  CHECK_STATUS(tarn_free(s.r.heap, address, s.r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_STATUS(tarn_free(s.r.heap, address + 256, s.r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_STATUS(tarn_use(s.r.heap, address, s.r.streams[1]), TARN_DOUBLE_FREE);
  CHECK_EQ(rig_stats(&s.r).live_bytes, (uint64_t)160 * MIB);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  store_close(&s);
}

/* ---- Whose it is ---- */

/* Only an eased heap has shelves, and one that is not any more gives them up. */
static void only_when_eased(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  ease(s.r.heap, 0);
  get(&s, 0, 3 * MIB);
  get(&s, 1, 2 * MIB);
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 0);
  ease(s.r.heap, (uint64_t)160 * MIB);
  get(&s, 0, 3 * MIB);
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  s.r.heap->refused_bytes = (uint64_t)200 * MIB; /* and the device has no more */
  get(&s, 2, 7 * MIB);
  CHECK_EQ(on_shelf(&s), 0);
  s.r.heap->refused_bytes = 0;
  put(&s, 2); /* this opens it */
  get(&s, 0, 3 * MIB);
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  CHECK_OK(
      tarn_heap_set_limit(s.r.heap, (uint64_t)799 * MIB)); /* it holds a quarter of its limit */
  get(&s, 2, 7 * MIB);
  CHECK_EQ(on_shelf(&s), 0);
  CHECK_OK(tarn_heap_set_limit(s.r.heap, (uint64_t)800 * MIB));
  put(&s, 2);
  get(&s, 0, 3 * MIB);
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  ease(s.r.heap, (uint64_t)195 * MIB); /* it holds no more than it needs */
  get(&s, 2, 7 * MIB);
  CHECK_EQ(on_shelf(&s), 0);
  store_close(&s);
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  REQUIRE(store_open(&s, &config));
  get(&s, 0, 3 * MIB);
  get(&s, 1, 2 * MIB);
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 0);
  store_close(&s);
}

/* A shelf that has become too large for the heap is emptied. */
static void fits_again(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  shelf_fill(&s);
  ease(s.r.heap, (uint64_t)30 * MIB);
  get(&s, 5, 9 * MIB);
  CHECK_EQ(on_shelf(&s), 0);
  CHECK(s.cache->shelf.limit != 0);
  store_close(&s);
}

/* While somebody watches nobody takes from it: it is empty then. */
static void not_when_watched(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  get(&s, 0, 3 * MIB);
  get(&s, 1, 2 * MIB);
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  const tarn_stats_scope_config exact = {.size = sizeof(exact), .is_exact = true};
  tarn_stats_scope *scope = NULL;
  CHECK_OK(tarn_stats_scope_begin(s.r.heap, &exact, &scope));
  CHECK_EQ(on_shelf(&s), 0);
  put(&s, 1);
  CHECK_EQ(on_shelf(&s), 0);
  CHECK_EQ(s.cache->shelf.limit, 0);
  CHECK_OK(tarn_stats_scope_end(scope, NULL));
  store_close(&s);
}

/* All shelves together have a half of the peak, however many threads come and then do nothing, and
 * one that comes later has its part of it. */
static void all_together(void) {
  static store s;
  uint64_t before = 0;
  REQUIRE(store_open(&s, NULL));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (uint64_t)1000 * MIB));
  for (int i = 0; i < 2; i++) { /* caches of one thread, for two streams */
    for (int j = 0; j < MAX_BLOCKS; j++) {
      CHECK_OK(rig_alloc(&s.r, (uint64_t)(j + 2) * MIB / 2 + MIB, s.r.streams[i], &s.blocks[j]));
    }
    for (int j = 0; j < MAX_BLOCKS; j++) {
      CHECK_OK(rig_free(&s.r, &s.blocks[j], s.r.streams[i]));
      s.blocks[j] = (rig_block){0};
    }
    CHECK(rig_is_sound(&s.r));
    tarni_lock_acquire(&s.r.heap->lock);
    const uint64_t sum = tarni_shelves_bytes_locked(s.r.heap), peak = s.r.heap->rest.lean_peak;
    CHECK(sum <= s.r.heap->shelf_limits && s.r.heap->shelf_limits <= peak / 2);
    CHECK(sum >= before + peak / 16);
    before = sum;
    tarni_lock_release(&s.r.heap->lock);
  }
  store_close(&s);
}

/* Five blocks side by side, of which one of 16 MiB is free, given back on this stream, and two are
 * on the shelf, in this order: all else is used, or another stream's. */
static void five_make(store *s, const uint64_t mib[5], tarn_stream stream, const int shelved[2]) {
  rig_block other;
  CHECK_OK(tarn_heap_reserve(s->r.heap, (uint64_t)266 * MIB));
  CHECK_OK(rig_alloc(&s->r, 66 * MIB, s->r.streams[1], &other));
  CHECK_OK(rig_free(&s->r, &other, s->r.streams[1]));
  for (int i = 0; i < 5; i++) {
    get(s, i, mib[i] * MIB);
    CHECK(i == 0 || s->blocks[i].address == s->blocks[i - 1].address + mib[i - 1] * MIB);
  }
  CHECK_EQ(rig_stats(&s->r).reserved_bytes, (uint64_t)266 * MIB);
  put(s, shelved[0]);
  put(s, shelved[1]);
  for (int i = 0; i < 5; i++) {
    if (mib[i] == 16) { /* too large to be kept */
      rig_order(&s->r, s->r.streams[0], stream);
      CHECK_OK(rig_free(&s->r, &s->blocks[i], stream));
      s->blocks[i] = (rig_block){0};
    }
  }
  CHECK_EQ(on_shelf(s), (mib[shelved[0]] + mib[shelved[1]]) * MIB);
}

/* How many MiB are on the shelf once it is to make so much room. */
static uint64_t left_for(const uint64_t mib[5], int stream, const int shelved[2], uint64_t wanted) {
  static store s;
  if (!store_open(&s, NULL)) {
    return UINT64_MAX;
  }
  five_make(&s, mib, s.r.streams[stream], shelved);
  const uint64_t before = on_shelf(&s);
  tarni_lock_acquire(&s.r.heap->lock);
  const bool has_yielded = tarni_shelf_yield_locked(s.r.heap, s.cache, wanted * MIB);
  tarni_lock_release(&s.r.heap->lock);
  CHECK_EQ(has_yielded, on_shelf(&s) != before);
  CHECK(rig_is_sound(&s.r));
  const uint64_t left = on_shelf(&s) / MIB;
  store_close(&s);
  return left;
}

/* One block of the shelf makes room with what is free beside it: it goes, and no other. */
static void one_makes_room(void) {
  static const uint64_t below[] = {16, 3, 9, 5, 7}, above[] = {4, 16, 9, 5, 6};
  static const uint64_t twins[] = {16, 3, 9, 3, 7}, second[] = {2, 8, 4, 16, 10};
  CHECK_EQ(left_for(below, 0, (const int[]){1, 3}, 19), 5);
  CHECK_EQ(left_for(below, 0, (const int[]){1, 3}, 20), 8); /* none does */
  CHECK_EQ(left_for(above, 0, (const int[]){0, 3}, 20), 5);
  CHECK_EQ(left_for(twins, 0, (const int[]){1, 3}, 19), 3); /* whichever of a row it is */
  CHECK_EQ(left_for(twins, 0, (const int[]){3, 1}, 19), 3);
  CHECK_EQ(left_for(second, 0, (const int[]){0, 2}, 20), 2); /* and of the rows */
  CHECK_EQ(left_for(second, 0, (const int[]){0, 2}, 2), 4);  /* the smallest, if there are two */
  CHECK_EQ(left_for(below, 1, (const int[]){1, 3}, 19), 8);  /* another stream's is not beside it */
  CHECK_EQ(left_for(below, 1, (const int[]){1, 3}, 4), 3);   /* but it may do alone */
}

/* So does an allocation, with nothing moved and nothing made. */
static void one_is_enough(void) {
  static const uint64_t mib[] = {16, 3, 9, 5, 7};
  static store s;
  REQUIRE(store_open(&s, NULL));
  five_make(&s, mib, s.r.streams[0], (const int[]){3, 1});
  get(&s, 5, 18 * MIB);
  CHECK_EQ(on_shelf(&s), 5 * MIB);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, (uint64_t)266 * MIB);
  CHECK_EQ(s.r.heap->moved_chunks, 0);
  store_close(&s);
}

/* Where the heap may not grow the memory goes to whoever needs it: to another size, */
static void needed_elsewhere(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  shelf_fill(&s);
  CHECK_OK(tarn_heap_set_limit(s.r.heap, (uint64_t)200 * MIB));
  get(&s, 5, 30 * MIB);
  CHECK_EQ(on_shelf(&s), 0);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, (uint64_t)200 * MIB);
  store_close(&s);
}

static void *other_thread(void *argument) {
  store *s = argument;
  CHECK_OK(rig_alloc(&s->r, 30 * MIB, s->r.streams[1], &s->blocks[5]));
  return NULL;
}

/* and to another thread, on another stream. */
static void needed_by_others(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  shelf_fill(&s);
  CHECK_OK(tarn_heap_set_limit(s.r.heap, (uint64_t)200 * MIB));
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, other_thread, &s) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
  CHECK(s.blocks[5].address != 0);
  CHECK_EQ(on_shelf(&s), 0);
  store_close(&s);
}

/* Knows the stream before it is captured, and then takes as many blocks of 2 MiB as there are. */
static void *take_all(void *argument) {
  store *s = argument;
  tarn_ptr block = 0;
  CHECK_OK(tarn_alloc(s->r.heap, KIB, s->r.streams[0], &block));
  CHECK_OK(tarn_free(s->r.heap, block, s->r.streams[0]));
  (void)pthread_barrier_wait(&s->barrier);
  (void)pthread_barrier_wait(&s->barrier);
  while (s->n_taken < MAX_BLOCKS &&
         tarn_alloc(s->r.heap, 2 * MIB, s->r.streams[0], &block) == TARN_OK) {
    s->taken[s->n_taken++] = block;
  }
  return NULL;
}

/* Where a capture of which nobody told forbids everything else, too: the stream has freed it. */
static void needed_in_a_capture(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  for (int i = 0; i < 5; i++) {
    get(&s, i, (uint64_t)(i + 2) * MIB);
  }
  CHECK_OK(rig_alloc(&s.r, 20 * MIB, s.r.streams[0], &s.blocks[5])); /* all that is left */
  ease(s.r.heap, (uint64_t)160 * MIB);
  for (int i = 0; i < 4; i++) {
    put(&s, i);
  }
  CHECK_EQ(on_shelf(&s), 14 * MIB);
  tarni_port *port = (tarni_port *)s.r.device;
  pthread_t thread;
  REQUIRE(pthread_barrier_init(&s.barrier, NULL, 2) == 0);
  REQUIRE(pthread_create(&thread, NULL, take_all, &s) == 0);
  (void)pthread_barrier_wait(&s.barrier);
  CHECK_OK(tarni_port_capture_begin(port, s.r.streams[0], TARNI_CAPTURE_RELAXED));
  (void)pthread_barrier_wait(&s.barrier);
  REQUIRE(pthread_join(thread, NULL) == 0);
  (void)pthread_barrier_destroy(&s.barrier);
  tarni_graph graph;
  CHECK_OK(tarni_port_capture_end(port, s.r.streams[0], &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  CHECK(s.n_taken >= 6); /* one of each that has 2 or 3 MiB, and two of each that has more */
  CHECK_EQ(on_shelf(&s), 0);
  for (uint32_t i = 0; i < s.n_taken; i++) {
    CHECK_OK(tarn_free(s.r.heap, s.taken[i], s.r.streams[0]));
  }
  store_close(&s);
}

/* Trims and resets give it back, and the shelf is closed then. */
static void given_back(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  get(&s, 0, 3 * MIB);
  get(&s, 1, 2 * MIB);
  get(&s, 2, 4 * MIB);
  get(&s, 3, 6 * MIB);
  put(&s, 0);
  put(&s, 1);
  CHECK_EQ(on_shelf(&s), 5 * MIB);
  CHECK_OK(tarn_heap_trim(s.r.heap, 0));
  CHECK_EQ(on_shelf(&s), 0);
  put(&s, 2);
  CHECK_EQ(on_shelf(&s), 0); /* it is closed, until the heap is asked */
  put(&s, 3);
  CHECK_OK(tarn_heap_trim(s.r.heap, 0));
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, (uint64_t)160 * MIB);
  CHECK_OK(tarn_heap_reserve(s.r.heap, (uint64_t)200 * MIB));
  get(&s, 0, 3 * MIB);
  put(&s, 0);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  CHECK_OK(rig_free(&s.r, &s.base, s.r.streams[0]));
  CHECK_OK(tarn_heap_reset(s.r.heap));
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, 0);
  CHECK_OK(rig_alloc(&s.r, 4 * MIB, s.r.streams[0], &s.base));
  get(&s, 0, 3 * MIB);
  store_close(&s);
}

/* What is on shelves is not used: else it would make room for more of it. */
static void does_not_count(void) {
  static store s;
  REQUIRE(store_open(&s, NULL));
  get(&s, 0, 3 * MIB);
  get(&s, 1, 2 * MIB);
  put(&s, 0);
  ease(s.r.heap, (uint64_t)160 * MIB);
  get(&s, 2, 5 * MIB);
  CHECK_EQ(on_shelf(&s), 3 * MIB);
  CHECK_EQ(rig_stats(&s.r).used_bytes, (uint64_t)170 * MIB);
  CHECK_EQ(s.r.heap->rest.lean_peak, (uint64_t)167 * MIB);
  store_close(&s);
}

/* ---- Threads ---- */

typedef struct worker {
  store *s;
  int number;
  uint64_t n_shelved; /* how often there was something on its shelf */
  _Atomic bool *is_over;
} worker;

static void shelf_look(worker *w) {
  tarni_cache *cache;
  if (CHECK_OK(tarni_cache_find(w->s->r.heap, w->s->r.streams[w->number], &cache))) {
    w->n_shelved += atomic_load(&cache->shelf.bytes) != 0;
  }
}

/* Random blocks of all sizes on a stream of its own. */
static void *work(void *argument) {
  enum { N_BLOCKS = 24, N_STEPS = 3000 };
  worker *w = argument;
  rig *r = &w->s->r;
  rig_block blocks[N_BLOCKS] = {0};
  tarni_rng rng = {(uint64_t)w->number + 3};
  for (int step = 0; step < N_STEPS + N_BLOCKS; step++) {
    const uint64_t i =
        step < N_STEPS ? tarni_rng_below(&rng, N_BLOCKS) : (uint64_t)(step - N_STEPS);
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(r, &blocks[i], r->streams[w->number]));
      blocks[i] = (rig_block){0};
      shelf_look(w);
    }
    if (step < N_STEPS) {
      const uint64_t low = (uint64_t)512 << tarni_rng_below(&rng, 14);
      CHECK_OK(rig_alloc(r, low + tarni_rng_below(&rng, low), r->streams[w->number], &blocks[i]));
    }
  }
  atomic_store(w->is_over, true);
  return NULL;
}

/* Two threads use their shelves while a third reaches into them. */
static void beside_trims(void) {
  static store s;
  _Atomic bool are_over[2] = {false, false};
  REQUIRE(store_open(&s, NULL));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (uint64_t)600 * MIB));
  worker workers[2];
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    workers[i] = (worker){.s = &s, .number = i, .is_over = &are_over[i]};
    REQUIRE(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
  }
  while (!atomic_load(&are_over[0]) || !atomic_load(&are_over[1])) {
    CHECK_OK(tarn_heap_trim(s.r.heap, (uint64_t)600 * MIB));
    const struct timespec while_they_work = {.tv_nsec = 1000000};
    (void)nanosleep(&while_they_work, NULL);
  }
  for (int i = 0; i < 2; i++) {
    REQUIRE(pthread_join(threads[i], NULL) == 0);
    CHECK(workers[i].n_shelved > 10);
  }
  CHECK_EQ(s.r.heap->n_caches, 1); /* those of the threads are gone, and what they kept is not */
  store_close(&s);
}

static const test_case cases[] = {
    {"blocks come back for what is about as large", about_as_large},
    {"eight of each size, within limits", within_limits},
    {"what was asked for is known", sizes_are_known},
    {"also where it is kept otherwise", youngest_has_none_to_spare},
    {"what is spare is nobody's", spare_is_nobodys},
    {"the histogram agrees", histogram_agrees},
    {"what is kept is free", freed_is_free},
    {"only in an eased heap", only_when_eased},
    {"and no larger than it may be", fits_again},
    {"nor where somebody watches", not_when_watched},
    {"all shelves together", all_together},
    {"one makes room", one_makes_room},
    {"one is enough", one_is_enough},
    {"another size has it when it is needed", needed_elsewhere},
    {"so has another thread", needed_by_others},
    {"also in a capture", needed_in_a_capture},
    {"trims and resets have it", given_back},
    {"it does not count as used", does_not_count},
    {"beside trims", beside_trims},
};

TEST_MAIN(cases)
