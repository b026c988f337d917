/* SPDX-License-Identifier: MIT
 *
 * Pinned pools: blocks, sizes, limits, regions, streams that still use a block, wrong use. */
#include "tarn/pinned.h"

#include "base/bits.h"
#include "bucket.h"
#include "port/host/host.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

#define MIB ((uint64_t)1 << 20)
#define DEVICE "sim:1G,seed=5"

/* A pool with small regions on a watched device. */
static tarn_pinned *pool_open(rig *r, const tarn_pinned_config *config, int n_streams) {
  tarn_pinned_config known = {.size = sizeof(known)};
  if (config != NULL) {
    known = *config;
  }
  known.device = DEVICE;
  known.region_bytes = known.region_bytes != 0 ? known.region_bytes : 2 * MIB;
  tarn_pinned *pool = NULL;
  CHECK(rig_open_device(r, DEVICE, n_streams));
  CHECK_OK(tarn_pinned_create(&known, &pool));
  return pool;
}

static void pool_close(rig *r, tarn_pinned *pool) {
  uint64_t n_live = 1;
  CHECK_OK(tarn_pinned_check(pool));
  CHECK_OK(tarn_pinned_destroy(pool, &n_live));
  CHECK_EQ(n_live, 0);
  rig_close(r);
}

static tarn_heap_stats stats_of(tarn_pinned *pool) {
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_pinned_get_stats(pool, &stats));
  return stats;
}

/* ---- Blocks ---- */

static void sizes(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 1);
  REQUIRE(pool != NULL);
  CHECK(tarn_pinned_device(pool) == r.device);
  static const uint64_t bytes[] = {1,       256,           257,     4096,          65537,
                                   1 << 20, (1 << 20) + 1, 3 << 20, (5u << 20) + 3};
  enum { N = sizeof(bytes) / sizeof(bytes[0]) };
  unsigned char *blocks[N];
  for (int i = 0; i < N; i++) {
    void *block = NULL;
    REQUIRE_OK(tarn_pinned_alloc(pool, bytes[i], &block));
    blocks[i] = block;
    CHECK_EQ((uintptr_t)block % 256, 0);
    rig_host_fill(block, (uint8_t)(i + 1), bytes[i]);
    CHECK(tarn_pinned_owns(pool, block, bytes[i]));
    CHECK(tarn_host_is_pinned(r.device, blocks[i] + bytes[i] - 1, 1));
    tarn_block_info info = {.size = sizeof(info)};
    CHECK_OK(tarn_pinned_get_info(pool, blocks[i] + bytes[i] / 2, &info));
    CHECK_EQ(info.address, (uintptr_t)block);
    CHECK(info.usable_bytes >= bytes[i]);
    CHECK(bytes[i] <= 2048 || info.usable_bytes <= bytes[i] + bytes[i] / 8 + TARNI_GRANULE);
    CHECK(!tarn_pinned_owns(pool, block, info.usable_bytes + 1));
  }
  for (int i = 0; i < N; i++) { /* nobody has written into another's */
    CHECK(rig_host_is(blocks[i], (uint8_t)(i + 1), bytes[i]));
    CHECK_OK(tarn_pinned_free(pool, blocks[i]));
    CHECK(!tarn_pinned_owns(pool, blocks[i], 1));
  }
  CHECK_EQ(stats_of(pool).live_bytes, 0);
  pool_close(&r, pool);
}

/* A device reads and writes it: contents go to the device and back. */
static void contents(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 1);
  REQUIRE(pool != NULL);
  tarn_heap *heap = NULL;
  REQUIRE_OK(tarn_heap_create(
      &(tarn_heap_config){.size = sizeof(tarn_heap_config), .device = DEVICE}, &heap));
  const uint64_t bytes = 3 * MIB + 17; /* over the border of two regions, if blocks could */
  void *up, *down;
  tarn_ptr block;
  REQUIRE_OK(tarn_pinned_alloc(pool, bytes, &up));
  REQUIRE_OK(tarn_pinned_alloc(pool, bytes, &down));
  REQUIRE_OK(tarn_alloc(heap, bytes, r.streams[0], &block));
  for (uint64_t i = 0; i < bytes; i += 1000) { /* no two thousands alike */
    rig_host_fill((char *)up + i, (uint8_t)(i / 1000 * 7), tarni_min(1000, bytes - i));
  }
  CHECK_OK(tarn_device_copy(r.device, block, (uintptr_t)up, bytes, r.streams[0]));
  CHECK_OK(tarn_device_copy(r.device, (uintptr_t)down, block, bytes, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  for (uint64_t i = 0; i < bytes; i += 1000) {
    CHECK(rig_host_is((char *)down + i, (uint8_t)(i / 1000 * 7), tarni_min(1000, bytes - i)));
  }
  CHECK_OK(tarn_free(heap, block, r.streams[0]));
  CHECK_OK(tarn_pinned_free(pool, up));
  CHECK_OK(tarn_pinned_free(pool, down));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
  pool_close(&r, pool);
}

static void aligned(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 0);
  REQUIRE(pool != NULL);
  for (uint64_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
    void *block = NULL;
    REQUIRE_OK(tarn_pinned_alloc_aligned(pool, 1000, alignment, &block));
    CHECK_EQ((uintptr_t)block % alignment, 0);
    rig_host_fill(block, 1, 1000);
    CHECK_OK(tarn_pinned_free(pool, block));
  }
  void *block = &r;
  CHECK_STATUS(tarn_pinned_alloc_aligned(pool, 1000, 3, &block), TARN_INVALID);
  CHECK(block == NULL);
  CHECK_STATUS(tarn_pinned_alloc_aligned(pool, 1000, 4 * MIB, &block), TARN_INVALID);
  pool_close(&r, pool);
}

static void nothing(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 1);
  REQUIRE(pool != NULL);
  void *block = &r;
  CHECK_OK(tarn_pinned_alloc(pool, 0, &block));
  CHECK(block == NULL);
  CHECK_OK(tarn_pinned_free(pool, NULL));
  CHECK_OK(tarn_pinned_free_on(pool, NULL, r.streams[0]));
  CHECK_EQ(stats_of(pool).reserved_bytes, 0);
  CHECK_OK(tarn_pinned_destroy(NULL, NULL));
  CHECK_STATUS(tarn_pinned_alloc(NULL, 1, &block), TARN_INVALID);
  CHECK_STATUS(tarn_pinned_alloc(pool, 1, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_pinned_free(NULL, &r), TARN_INVALID);
  CHECK_STATUS(tarn_pinned_trim(NULL, 0), TARN_INVALID);
  CHECK_STATUS(tarn_pinned_create(NULL, NULL), TARN_INVALID);
  CHECK(tarn_pinned_device(NULL) == NULL);
  pool_close(&r, pool);
}

static void misuse(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 1);
  REQUIRE(pool != NULL);
  char *block = NULL, *other = NULL;
  REQUIRE_OK(tarn_pinned_alloc(pool, 5000, (void **)&block));
  REQUIRE_OK(tarn_pinned_alloc(pool, 5 * MIB, (void **)&other));
  CHECK_STATUS(tarn_pinned_free(pool, block + 256), TARN_INTERIOR);
  CHECK_STATUS(tarn_pinned_free(pool, other + 4096), TARN_INTERIOR);
  CHECK_STATUS(tarn_pinned_free(pool, &r), TARN_FOREIGN);
  CHECK_STATUS(tarn_pinned_free_on(pool, &r, r.streams[0]), TARN_FOREIGN);
  CHECK_STATUS(tarn_pinned_free_on(pool, block + 256, r.streams[0]), TARN_INTERIOR);
  CHECK_OK(tarn_pinned_free(pool, block));
  CHECK_STATUS(tarn_pinned_free(pool, block), TARN_DOUBLE_FREE);
  CHECK_STATUS(tarn_pinned_free_on(pool, block, r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_OK(tarn_pinned_free(pool, other));
  CHECK_STATUS(tarn_pinned_free(pool, other), TARN_DOUBLE_FREE);
  pool_close(&r, pool);
}

static void configs(void) {
  tarn_pinned *pool = (tarn_pinned *)&pool;
  tarn_pinned_config config = {.size = sizeof(config), .device = DEVICE, .region_bytes = 3 * MIB};
  CHECK_STATUS(tarn_pinned_create(&config, &pool), TARN_INVALID);
  CHECK(pool == NULL);
  CHECK_HAS(tarn_last_message(), "3145728");
  config.region_bytes = MIB;
  CHECK_STATUS(tarn_pinned_create(&config, &pool), TARN_INVALID);
  config.region_bytes = 0;
  config.flags = 1u << 20;
  CHECK_STATUS(tarn_pinned_create(&config, &pool), TARN_INVALID);
  config.flags = TARN_PINNED_NODE;
  config.numa_node = 999;
  CHECK_STATUS(tarn_pinned_create(&config, &pool), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "999");
  config.flags = 0;
  config.device = "sim:nonsense";
  CHECK(tarn_pinned_create(&config, &pool) != TARN_OK);
  CHECK(pool == NULL);
}

/* ---- Regions ---- */

static void trimmed(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 0);
  REQUIRE(pool != NULL);
  void *small, *large;
  REQUIRE_OK(tarn_pinned_alloc(pool, 100, &small));
  REQUIRE_OK(tarn_pinned_alloc(pool, 3 * MIB, &large));
  CHECK_EQ(stats_of(pool).reserved_bytes, 6 * MIB);
  CHECK_OK(tarn_pinned_free(pool, large));
  CHECK_OK(tarn_pinned_trim(pool, 0));
  CHECK_EQ(stats_of(pool).reserved_bytes, 2 * MIB);
  CHECK_OK(tarn_pinned_free(pool, small));
  CHECK_OK(tarn_pinned_trim(pool, 0));
  CHECK_EQ(stats_of(pool).reserved_bytes, 0);
  CHECK_OK(tarn_pinned_reserve(pool, 8 * MIB));
  CHECK_EQ(stats_of(pool).reserved_bytes, 8 * MIB);
  const uint64_t calls = rig_calls(&r);
  REQUIRE_OK(tarn_pinned_alloc(pool, 7 * MIB, &large));
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_OK(tarn_pinned_free(pool, large));
  pool_close(&r, pool);
}

/* No block lies on two registrations, and free memory of two regions is never one extent. */
static void one_registration(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 0);
  REQUIRE(pool != NULL);
  void *blocks[8];
  for (int i = 0; i < 8; i++) { /* each fills a region of its own, all side by side */
    REQUIRE_OK(tarn_pinned_alloc(pool, 2 * MIB, &blocks[i]));
  }
  for (int i = 0; i < 8; i++) {
    CHECK_OK(tarn_pinned_free(pool, blocks[i]));
  }
  CHECK_OK(tarn_pinned_check(pool));
  void *large;
  REQUIRE_OK(tarn_pinned_alloc(pool, 5 * MIB, &large));
  const tarn_heap *heap = tarni_pinned_heap(pool);
  const uint64_t offset = (uintptr_t)large - heap->base;
  CHECK_EQ(heap->units[offset / heap->unit], heap->units[(offset + 5 * MIB - 1) / heap->unit]);
  CHECK_OK(tarn_pinned_free(pool, large));
  pool_close(&r, pool);
}

/* ---- Streams ---- */

/* What a stream still reads is not handed out. */
static void free_on(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, &(tarn_pinned_config){.size = sizeof(tarn_pinned_config)}, 2);
  REQUIRE(pool != NULL);
  for (uint64_t bytes = 4096; bytes <= 4 * MIB; bytes *= 32) {
    rig_block block;
    void *first = NULL, *second = NULL;
    REQUIRE_OK(tarn_pinned_alloc(pool, bytes, &first));
    rig_own(&r, (uintptr_t)first, bytes, &block);
    rig_touch(&r, &block, r.streams[0], true);
    CHECK_OK(tarn_sim_disown(r.device, block.address, block.bytes));
    CHECK_OK(tarn_pinned_free_on(pool, first, r.streams[0]));
    REQUIRE_OK(tarn_pinned_alloc(pool, bytes, &second));
    rig_own(&r, (uintptr_t)second, bytes, &block); /* the oracle judges its use */
    rig_touch(&r, &block, r.streams[1], true);
    CHECK_OK(tarn_sim_disown(r.device, block.address, block.bytes));
    CHECK_OK(tarn_pinned_free_on(pool, second, r.streams[1]));
  }
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  CHECK_OK(tarn_pinned_stream_retire(pool, r.streams[1]));
  CHECK_OK(tarn_pinned_trim(pool, 0));
  CHECK_EQ(stats_of(pool).pending_bytes, 0);
  CHECK_EQ(stats_of(pool).reserved_bytes, 0);
  pool_close(&r, pool);
}

/* A block that waited for a fence serves the next miss once the fence is complete. */
static void polled(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 1);
  REQUIRE(pool != NULL);
  void *first, *second;
  REQUIRE_OK(tarn_pinned_alloc(pool, MIB, &first));
  CHECK_OK(tarn_pinned_free_on(pool, first, r.streams[0]));
  CHECK_EQ(stats_of(pool).pending_bytes, MIB);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  REQUIRE_OK(tarn_pinned_alloc(pool, MIB, &second));
  CHECK(first == second);
  CHECK_EQ(stats_of(pool).pending_bytes, 0);
  CHECK_OK(tarn_pinned_free(pool, second));
  pool_close(&r, pool);
}

/* ---- Limits ---- */

static void limit(void) {
  rig r;
  tarn_pinned *pool = pool_open(
      &r, &(tarn_pinned_config){.size = sizeof(tarn_pinned_config), .limit_bytes = 8 * MIB}, 1);
  REQUIRE(pool != NULL);
  void *block, *other = &r;
  REQUIRE_OK(tarn_pinned_alloc(pool, 6 * MIB, &block));
  CHECK_STATUS(tarn_pinned_alloc(pool, 4 * MIB, &other), TARN_LIMIT);
  CHECK(other == NULL);
  CHECK_HAS(tarn_last_message(), "limit_bytes");
  CHECK_STATUS(tarn_pinned_alloc(pool, 100 * MIB, &other), TARN_LIMIT);
  CHECK_STATUS(tarn_pinned_alloc(pool, UINT64_MAX, &other), TARN_LIMIT);
  CHECK_STATUS(tarn_pinned_reserve(pool, 9 * MIB), TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "tarn_pinned_reserve");
  /* What waits for a stream is waited for before the pool gives up. */
  CHECK_OK(tarn_pinned_free_on(pool, block, r.streams[0]));
  REQUIRE_OK(tarn_pinned_alloc(pool, 8 * MIB, &other));
  CHECK_OK(tarn_pinned_free(pool, other));
  pool_close(&r, pool);
}

/* A pool takes addresses for what it may hold, not for all that the machine has. */
static void addresses(void) {
  rig r;
  CHECK(rig_open_device(&r, DEVICE, 1));
  const tarn_pinned_config config = {
      .size = sizeof(config), .device = DEVICE, .limit_bytes = 8 * MIB, .region_bytes = 2 * MIB};
  const uint64_t before = test_addresses_taken();
  tarn_pinned *pool = NULL;
  REQUIRE_OK(tarn_pinned_create(&config, &pool));
  CHECK(test_addresses_taken() - before < 4096 * MIB);
  pool_close(&r, pool);
}

/* The system has not so much: nobody is ended for asking. */
static void more_than_there_is(void) {
  const uint64_t total = tarni_host_room_total() & ~(2 * MIB - 1);
  rig r;
  tarn_pinned *pool = pool_open(
      &r, &(tarn_pinned_config){.size = sizeof(tarn_pinned_config), .limit_bytes = total}, 1);
  REQUIRE(pool != NULL);
  void *block = &r;
  CHECK(tarni_host_room_free() < total);
  CHECK_STATUS(tarn_pinned_alloc(pool, total, &block), TARN_HOST_MEMORY);
  CHECK(block == NULL);
  REQUIRE_OK(tarn_pinned_alloc(pool, MIB, &block));
  CHECK_OK(tarn_pinned_free(pool, block));
  pool_close(&r, pool);
}

static void live_limit(void) {
  rig r;
  tarn_pinned *pool = pool_open(
      &r, &(tarn_pinned_config){.size = sizeof(tarn_pinned_config), .live_limit_bytes = 10 * 4096},
      1);
  REQUIRE(pool != NULL);
  void *blocks[10], *more = &r;
  for (int i = 0; i < 10; i++) {
    REQUIRE_OK(tarn_pinned_alloc(pool, 4096, &blocks[i]));
  }
  CHECK_STATUS(tarn_pinned_alloc(pool, 1, &more), TARN_LIMIT);
  CHECK(more == NULL);
  CHECK_HAS(tarn_last_message(), "40960 of 40960");
  CHECK_STATUS(tarn_pinned_free(pool, (char *)blocks[0] + 256), TARN_INTERIOR);
  CHECK_STATUS(tarn_pinned_alloc(pool, 1, &more), TARN_LIMIT); /* a refused free counts nothing */
  CHECK_OK(tarn_pinned_free(pool, blocks[0]));
  CHECK_STATUS(tarn_pinned_free(pool, blocks[0]), TARN_DOUBLE_FREE);
  CHECK_STATUS(tarn_pinned_alloc(pool, 4097, &more), TARN_LIMIT);
  CHECK_OK(tarn_pinned_alloc_aligned(pool, 1000, 4096, &blocks[0]));
  CHECK_OK(tarn_pinned_check(pool));
  CHECK_OK(tarn_pinned_free_on(pool, blocks[1], r.streams[0]));
  CHECK_OK(tarn_pinned_alloc(pool, 4096, &blocks[1])); /* pending is not live */
  for (int i = 0; i < 10; i++) {
    CHECK_OK(tarn_pinned_free(pool, blocks[i]));
  }
  pool_close(&r, pool);
}

static void cached_limit(void) {
  rig r;
  tarn_pinned *pool = pool_open(
      &r, &(tarn_pinned_config){.size = sizeof(tarn_pinned_config), .cached_limit_bytes = 4 * MIB},
      1);
  REQUIRE(pool != NULL);
  void *blocks[6];
  for (int i = 0; i < 6; i++) {
    REQUIRE_OK(tarn_pinned_alloc(pool, 2 * MIB, &blocks[i]));
  }
  CHECK_EQ(stats_of(pool).reserved_bytes, 12 * MIB);
  for (uint64_t i = 0; i < 6; i++) {
    CHECK_OK(tarn_pinned_free(pool, blocks[i]));
    const tarn_heap_stats stats = stats_of(pool);
    CHECK(stats.reserved_bytes - stats.live_bytes <= 4 * MIB);
  }
  CHECK_EQ(stats_of(pool).reserved_bytes, 4 * MIB);
  CHECK_STATUS(tarn_pinned_reserve(pool, 6 * MIB), TARN_LIMIT);
  CHECK_OK(tarn_pinned_reserve(pool, 4 * MIB));
  pool_close(&r, pool);
}

static void zeroed(void) {
  rig r;
  tarn_pinned *pool = pool_open(
      &r, &(tarn_pinned_config){.size = sizeof(tarn_pinned_config), .flags = TARN_PINNED_ZEROED},
      0);
  REQUIRE(pool != NULL);
  static const uint64_t bytes[] = {100, 5000, 1500000};
  for (int i = 0; i < 3; i++) {
    unsigned char *block = NULL;
    for (int round = 0; round < 2; round++) { /* the second time it is a block that was used */
      REQUIRE_OK(tarn_pinned_alloc(pool, bytes[i], (void **)&block));
      tarn_block_info info = {.size = sizeof(info)};
      CHECK_OK(tarn_pinned_get_info(pool, block, &info));
      CHECK(rig_host_is(block, 0, info.usable_bytes));
      rig_host_fill(block, 255, info.usable_bytes);
      CHECK_OK(tarn_pinned_free(pool, block));
    }
  }
  pool_close(&r, pool);
}

/* ---- Captures ---- */

/* While a capture goes on that forbids it, a pool neither pins nor unpins, and the capture stays
 * whole. */
static void captured(tarn_pinned_rounding rounding) {
  rig r;
  tarn_pinned *pool = pool_open(
      &r, &(tarn_pinned_config){.size = sizeof(tarn_pinned_config), .rounding = rounding}, 2);
  REQUIRE(pool != NULL);
  const tarn_heap_config heap_config = {.size = sizeof(heap_config), .device = DEVICE};
  REQUIRE_OK(tarn_heap_create(&heap_config, &r.heap));
  void *block = NULL, *other = NULL, *more = &r;
  REQUIRE_OK(tarn_pinned_alloc(pool, 5000, &block));
  REQUIRE_OK(tarn_pinned_alloc(pool, 300000, &other));
  CHECK_OK(tarn_pinned_free(pool, block));
  const tarn_capture_config config = {.size = sizeof(config), .mode = TARN_CAPTURE_GLOBAL};
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE_OK(tarn_capture_begin(r.heap, &config, r.streams[0], &capture));
  CHECK_OK(tarn_pinned_alloc(pool, 5000, &block)); /* it is there */
  CHECK_STATUS(tarn_pinned_alloc(pool, 5 * MIB, &more), TARN_CAPTURE);
  CHECK(more == NULL);
  CHECK_STATUS(tarn_pinned_trim(pool, 0), TARN_CAPTURE);
  CHECK_STATUS(tarn_pinned_free_on(pool, block, r.streams[0]), TARN_CAPTURE);
  CHECK(tarn_pinned_owns(pool, block, 5000));
  CHECK_OK(tarn_pinned_free_on(pool, other, r.streams[1]));
  CHECK_OK(tarn_pinned_free(pool, block));
  CHECK_STATUS(tarn_pinned_alloc(pool, 5 * MIB, &more), TARN_CAPTURE);
  CHECK_OK(tarn_capture_end(&capture, &graph)); /* nothing has broken it */
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_pinned_alloc(pool, 5 * MIB, &more));
  CHECK_OK(tarn_pinned_free(pool, more));
  CHECK_OK(tarn_pinned_trim(pool, 0));
  CHECK_EQ(stats_of(pool).reserved_bytes, 0);
  pool_close(&r, pool);
}

static void captured_regions(void) {
  captured(TARN_PINNED_CLASSES);
}

static void captured_buckets(void) {
  captured(TARN_PINNED_POWER_OF_TWO);
}

/* ---- The driver's own allocations ---- */

/* What every pool does, whatever it is made of. */
static void use_pool(tarn_pinned *pool, const rig *r) {
  static const uint64_t bytes[] = {1, 300, 5000, 70000, 3 << 20};
  char *blocks[5];
  for (int i = 0; i < 5; i++) {
    REQUIRE_OK(tarn_pinned_alloc(pool, bytes[i], (void **)&blocks[i]));
    CHECK_EQ((uintptr_t)blocks[i] % 256, 0);
    rig_host_fill(blocks[i], (uint8_t)(i + 7), bytes[i]);
    CHECK(tarn_host_is_pinned(r->device, blocks[i], bytes[i]));
    CHECK_STATUS(tarn_host_register(r->device, blocks[i], bytes[i]), TARN_STATE);
  }
  void *aligned_block = NULL;
  REQUIRE_OK(tarn_pinned_alloc_aligned(pool, 100, 1 << 16, &aligned_block));
  CHECK_EQ((uintptr_t)aligned_block % (1 << 16), 0);
  CHECK_OK(tarn_pinned_free(pool, aligned_block));
  CHECK_STATUS(tarn_pinned_free(pool, blocks[3] + 256), TARN_INTERIOR);
  for (int i = 0; i < 5; i++) {
    CHECK(rig_host_is(blocks[i], (uint8_t)(i + 7), bytes[i]));
    CHECK_OK(i % 2 == 0 ? tarn_pinned_free(pool, blocks[i])
                        : tarn_pinned_free_on(pool, blocks[i], r->streams[0]));
    CHECK(tarn_pinned_free(pool, blocks[i]) != TARN_OK);
    CHECK(!tarn_host_is_pinned(r->device, blocks[i], 1));
  }
  CHECK_OK(tarn_pinned_check(pool));
  CHECK_OK(tarn_pinned_trim(pool, 0));
  CHECK_EQ(stats_of(pool).reserved_bytes, 0);
}

static void power_of_two(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r,
                                &(tarn_pinned_config){.size = sizeof(tarn_pinned_config),
                                                      .rounding = TARN_PINNED_POWER_OF_TWO},
                                1);
  REQUIRE(pool != NULL);
  use_pool(pool, &r);
  void *block = NULL, *again = NULL;
  REQUIRE_OK(tarn_pinned_alloc(pool, 5000, &block));
  tarn_block_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_pinned_get_info(pool, block, &info));
  CHECK_EQ(info.usable_bytes, 8192);
  CHECK_OK(tarn_pinned_free(pool, block));
  CHECK_EQ(stats_of(pool).cached_bytes, 8192);
  const uint64_t calls = rig_calls(&r);
  REQUIRE_OK(tarn_pinned_alloc(pool, 8000, &again));
  CHECK(again == block);
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_OK(tarn_pinned_free(pool, again));
  /* 128 MiB are kept, and of each size as many as fit into that: one of 128 MiB, none above. */
  REQUIRE_OK(tarn_pinned_alloc(pool, 200 * MIB, &block));
  CHECK_OK(tarn_pinned_free(pool, block));
  CHECK_EQ(stats_of(pool).reserved_bytes, 8192);
  CHECK_EQ(tarni_bucket_slots(tarni_pinned_heap(pool), 128 * MIB), 1);
  CHECK_EQ(tarni_bucket_slots(tarni_pinned_heap(pool), 256), 1024);
  CHECK_EQ(tarni_bucket_slots(tarni_pinned_heap(pool), MIB), 128);
  pool_close(&r, pool);
}

/* Limits of such a pool hold, too. */
static void power_of_two_limits(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r,
                                &(tarn_pinned_config){.size = sizeof(tarn_pinned_config),
                                                      .rounding = TARN_PINNED_POWER_OF_TWO,
                                                      .live_limit_bytes = 4 * 8192,
                                                      .cached_limit_bytes = 2 * 8192},
                                1);
  REQUIRE(pool != NULL);
  void *blocks[4], *more = &r;
  for (int i = 0; i < 4; i++) {
    REQUIRE_OK(tarn_pinned_alloc(pool, 8000, &blocks[i]));
  }
  CHECK_STATUS(tarn_pinned_alloc(pool, 1, &more), TARN_LIMIT);
  CHECK(more == NULL);
  CHECK_HAS(tarn_last_message(), "raise live_limit_bytes");
  /* Bytes of no known sizes cannot be kept, whatever the limits say. */
  CHECK_STATUS(tarn_pinned_reserve(pool, 3 * 8192), TARN_UNSUPPORTED);
  CHECK_HAS(tarn_last_message(), "tarn_pinned_reserve");
  for (int i = 0; i < 4; i++) {
    CHECK_OK(tarn_pinned_free(pool, blocks[i]));
    CHECK(stats_of(pool).cached_bytes <= 2 * 8192);
  }
  CHECK_EQ(stats_of(pool).reserved_bytes, 2 * 8192);
  pool_close(&r, pool);
}

static void write_combined(void) {
  rig r;
  tarn_pinned *pool =
      pool_open(&r,
                &(tarn_pinned_config){.size = sizeof(tarn_pinned_config),
                                      .flags = TARN_PINNED_WRITE_COMBINED | TARN_PINNED_ZEROED},
                1);
  REQUIRE(pool != NULL);
  CHECK(tarni_pinned_heap(pool)->buckets != NULL);
  use_pool(pool, &r);
  pool_close(&r, pool);
  const tarn_pinned_config both = {.size = sizeof(both),
                                   .device = DEVICE,
                                   .flags = TARN_PINNED_WRITE_COMBINED | TARN_PINNED_NODE};
  CHECK_STATUS(tarn_pinned_create(&both, &pool), TARN_UNSUPPORTED);
}

/* A device or a driver that pins no memory of the host: the pool does without. */
static void no_registration(void) {
  static const char *const devices[] = {"sim:1G,register=off", "sim:1G,id=3"};
  for (int i = 0; i < 2; i++) {
    rig r;
    REQUIRE(rig_open_device(&r, devices[i], 1));
    if (i == 1) {
      CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_HOST_REGISTER, 1, 0, 801));
    }
    const tarn_pinned_config config = {.size = sizeof(config), .device = devices[i]};
    tarn_pinned *pool = NULL;
    REQUIRE_OK(tarn_pinned_create(&config, &pool));
    CHECK(tarni_pinned_heap(pool)->buckets != NULL);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    void *block = NULL;
    REQUIRE_OK(tarn_pinned_alloc(pool, 100000, &block));
    rig_host_fill(block, 1, 100000);
    CHECK(tarn_host_is_pinned(r.device, block, 100000));
    CHECK_OK(tarn_pinned_free(pool, block));
    pool_close(&r, pool);
  }
}

static void node(void) {
  tarn_pinned *pool = NULL;
  const tarn_pinned_config config = {.size = sizeof(config),
                                     .device = DEVICE,
                                     .region_bytes = 2 * MIB,
                                     .flags = TARN_PINNED_NODE | TARN_PINNED_SMALL_PAGES};
  const tarn_status status = tarn_pinned_create(&config, &pool);
  if (status == TARN_UNSUPPORTED) {
    test_skip("this process may not choose a node of memory");
    return;
  }
  REQUIRE_OK(status);
  void *block;
  CHECK_OK(tarn_pinned_alloc(pool, 1000, &block));
  rig_host_fill(block, 7, 1000);
  CHECK(rig_host_is(block, 7, 1000));
  CHECK_OK(tarn_pinned_free(pool, block));
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
}

/* A pool that the driver does not let go stays what it was, and goes the next time. */
static void destroyed_at_the_second_try(void) {
  rig r;
  tarn_pinned *pool = pool_open(&r, NULL, 0);
  void *block = NULL;
  REQUIRE(pool != NULL);
  CHECK_OK(tarn_pinned_alloc(pool, 4096, &block));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_HOST_UNREGISTER, 1, 0, 801));
  CHECK(tarn_pinned_destroy(pool, NULL) != TARN_OK);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK(tarn_host_is_pinned(r.device, block, 4096));
  CHECK_OK(tarn_pinned_free(pool, block));
  pool_close(&r, pool);
}

static const test_case cases[] = {
    {"destroyed at the second try", destroyed_at_the_second_try},
    {"sizes", sizes},
    {"contents", contents},
    {"aligned", aligned},
    {"nothing", nothing},
    {"misuse", misuse},
    {"more_than_there_is", more_than_there_is},
    {"configs", configs},
    {"trimmed", trimmed},
    {"one_registration", one_registration},
    {"free_on", free_on},
    {"polled", polled},
    {"limit", limit},
    {"addresses", addresses},
    {"live_limit", live_limit},
    {"cached_limit", cached_limit},
    {"zeroed", zeroed},
    {"node", node},
    {"power_of_two", power_of_two},
    {"power_of_two_limits", power_of_two_limits},
    {"write_combined", write_combined},
    {"no_registration", no_registration},
    {"captured_regions", captured_regions},
    {"captured_buckets", captured_buckets},
};

TEST_MAIN(cases)
