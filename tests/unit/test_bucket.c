/* SPDX-License-Identifier: MIT
 *
 * Heaps whose blocks are the driver's own allocations: what requests are rounded to, what is kept
 * and what goes first, in which order blocks are used again, limits, and what is asked of the
 * driver for all of it. */
#include <string.h>

#include "bucket.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const tarn_backing backings[] = {TARN_BACKING_PLAIN, TARN_BACKING_POOL, TARN_BACKING_VMM};

#define EACH_BACKING(name)                                                                         \
  for (size_t name = 0; name < sizeof(backings) / sizeof(backings[0]) && !test_case_failed();      \
       name++)

static tarn_heap_config config_of(tarn_backing backing, tarn_rounding rounding) {
  return (tarn_heap_config){
      .size = sizeof(tarn_heap_config), .backing = backing, .rounding = rounding};
}

static uint64_t calls_of(const rig *r, tarn_call call) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(r->device, &counts));
  return counts.calls[call];
}

/* What the driver was asked for: new allocations of any backing. */
static uint64_t n_made(const rig *r) {
  return calls_of(r, TARN_CALL_PLAIN_ALLOC) + calls_of(r, TARN_CALL_POOL_ALLOC) +
         calls_of(r, TARN_CALL_CREATE);
}

static uint64_t n_given_back(const rig *r) {
  return calls_of(r, TARN_CALL_PLAIN_FREE) + calls_of(r, TARN_CALL_POOL_FREE) +
         calls_of(r, TARN_CALL_RELEASE);
}

static uint64_t usable(const rig *r, tarn_ptr block) {
  tarn_block_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_block_get_info(r->heap, block, &info));
  CHECK_EQ(info.address, block);
  return info.usable_bytes;
}

/* ---- Sizes ---- */

static void check_rounding(const rig *r, uint64_t bytes, uint64_t want) {
  tarn_ptr block;
  CHECK_OK(tarn_alloc(r->heap, bytes, r->streams[0], &block));
  CHECK_EQ(usable(r, block), want);
  CHECK_EQ(rig_stats(r).live_bytes, want);
  CHECK_STATUS(tarn_free_sized(r->heap, block, want + 1, r->streams[0]), TARN_WRONG_SIZE);
  CHECK_STATUS(tarn_free_sized(r->heap, block, 0, r->streams[0]), TARN_WRONG_SIZE);
  CHECK_OK(tarn_free_sized(r->heap, block, bytes, r->streams[0]));
}

static void roundings(void) {
  static const struct {
    tarn_rounding rounding;
    uint64_t bytes, want;
  } sizes[] = {{TARN_ROUNDING_EXACT, 1, 1},
               {TARN_ROUNDING_EXACT, 1000, 1000},
               {TARN_ROUNDING_EXACT, 3 * MIB + 1, 3 * MIB + 1},
               {TARN_ROUNDING_POWER_OF_TWO, 1, 1},
               {TARN_ROUNDING_POWER_OF_TWO, 2, 2},
               {TARN_ROUNDING_POWER_OF_TWO, 3, 4},
               {TARN_ROUNDING_POWER_OF_TWO, 1024, 1024},
               {TARN_ROUNDING_POWER_OF_TWO, 1025, 2048},
               {TARN_ROUNDING_POWER_OF_TWO, 5 * MIB, 8 * MIB},
               {TARN_ROUNDING_CLASSES, 1, 256},
               {TARN_ROUNDING_CLASSES, 1000, 1024},
               {TARN_ROUNDING_CLASSES, MIB + 1, MIB + 16 * KIB}};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    for (int backing = TARN_BACKING_VMM; backing <= TARN_BACKING_PLAIN; backing++) {
      if (backing == TARN_BACKING_VMM && sizes[i].rounding == TARN_ROUNDING_CLASSES) {
        continue; /* no heap of this kind */
      }
      const tarn_heap_config config = config_of((tarn_backing)backing, sizes[i].rounding);
      const uint64_t unit = backing == TARN_BACKING_VMM ? 2 * MIB : 1; /* chunks are whole pages */
      rig r;
      REQUIRE(rig_open(&r, "sim:64M", &config, 1));
      check_rounding(&r, sizes[i].bytes, (sizes[i].want + unit - 1) / unit * unit);
      rig_close(&r);
    }
  }
}

static void nothing_and_too_much(void) {
  for (int rounding = TARN_ROUNDING_CLASSES; rounding <= TARN_ROUNDING_POWER_OF_TWO; rounding++) {
    const tarn_heap_config config = config_of(TARN_BACKING_PLAIN, (tarn_rounding)rounding);
    rig r;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    tarn_ptr block = 1;
    CHECK_OK(tarn_alloc(r.heap, 0, r.streams[0], &block));
    CHECK_EQ(block, 0);
    CHECK_OK(tarn_free(r.heap, 0, r.streams[0]));
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 255, (UINT64_C(1) << 63) + 1,
                                     UINT64_C(1) << 63, 65 * MIB};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
      block = 1;
      const tarn_status status = tarn_alloc(r.heap, sizes[i], r.streams[0], &block);
      CHECK(status == TARN_DEVICE_MEMORY || status == TARN_LIMIT);
      CHECK_EQ(block, 0);
      block = 1;
      CHECK(tarn_alloc_aligned(r.heap, sizes[i], 2 * MIB, r.streams[0], &block) != TARN_OK);
      CHECK_EQ(block, 0);
    }
    CHECK_EQ(n_made(&r), 0);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static void alignments(void) {
  EACH_BACKING(i) {
    const tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    rig r;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    for (uint64_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
      tarn_ptr block, inner = 0;
      CHECK_OK(tarn_alloc_aligned(r.heap, 1000, alignment, r.streams[0], &block));
      CHECK_EQ(block % alignment, 0);
      CHECK(usable(&r, block) >= 1000);
      tarn_block_info info = {.size = sizeof(info)};
      CHECK_OK(tarn_block_get_info(r.heap, block + 999, &info));
      inner = info.address;
      CHECK_EQ(inner, block);
      CHECK_STATUS(tarn_free(r.heap, block + 256, r.streams[0]), TARN_INTERIOR);
      CHECK_STATUS(tarn_free_sized(r.heap, block, 4 * MIB, r.streams[0]), TARN_WRONG_SIZE);
      CHECK_OK(tarn_free_sized(r.heap, block, 1000, r.streams[0]));
    }
    CHECK_STATUS(tarn_alloc_aligned(r.heap, 1, 3, r.streams[0], &(tarn_ptr){0}), TARN_INVALID);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* ---- What is kept ---- */

static void newest_first(void) {
  EACH_BACKING(i) {
    const tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    rig r;
    rig_block blocks[4];
    REQUIRE(rig_open(&r, "sim:256M,order=lazy", &config, 1));
    tarn_ptr addresses[4];
    for (int j = 0; j < 4; j++) {
      CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &blocks[j]));
      addresses[j] = blocks[j].address;
    }
    for (int j = 0; j < 4; j++) {
      CHECK_OK(rig_free(&r, &blocks[j], r.streams[0]));
    }
    const uint64_t n = rig_calls(&r);
    for (int j = 4; j-- != 0;) {
      CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &blocks[j]));
      CHECK_EQ(blocks[j].address, addresses[j]);
    }
    CHECK_EQ(rig_calls(&r), n); /* a hit asks the driver nothing */
    CHECK_EQ(rig_stats(&r).misses, 4);
    for (int j = 0; j < 4; j++) {
      CHECK_OK(rig_free(&r, &blocks[j], r.streams[0]));
    }
    rig_close(&r);
  }
}

static void hold(rig *r, uint64_t bytes, tarn_ptr *block) {
  CHECK_OK(tarn_alloc(r->heap, bytes, r->streams[0], block));
}

static void let_go(rig *r, tarn_ptr block) {
  CHECK_OK(tarn_free(r->heap, block, r->streams[0]));
}

/* Gives back what is to go, and nothing else. */
static void settle(const rig *r) {
  CHECK_OK(tarn_stream_synchronize(r->device, r->streams[0]));
  CHECK_OK(tarn_heap_trim(r->heap, UINT64_MAX));
}

/* Of one size the oldest goes when there are too many. */
static void slots(void) {
  EACH_BACKING(i) {
    tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    config.cached_blocks_per_size = 2;
    rig r;
    tarn_ptr blocks[4], again[3];
    REQUIRE(rig_open(&r, "sim:256M", &config, 1));
    for (int j = 0; j < 4; j++) {
      hold(&r, 2 * MIB, &blocks[j]);
    }
    for (int j = 0; j < 4; j++) {
      let_go(&r, blocks[j]);
    }
    CHECK_EQ(rig_stats(&r).cached_bytes, 4 * MIB);
    settle(&r);
    CHECK_EQ(rig_stats(&r).reserved_bytes, 4 * MIB);
    CHECK_EQ(n_given_back(&r), 2);
    hold(&r, 2 * MIB, &again[0]);
    hold(&r, 2 * MIB, &again[1]);
    CHECK(again[0] == blocks[3] && again[1] == blocks[2]);
    CHECK_EQ(n_made(&r), 4);
    hold(&r, 2 * MIB, &again[2]);
    CHECK_EQ(n_made(&r), 5);
    for (int j = 0; j < 3; j++) {
      let_go(&r, again[j]);
    }
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* Of all sizes the oldest goes when there is too much, whatever its size; what alone is too much
 * makes nobody else go. */
static void budget(void) {
  EACH_BACKING(i) {
    tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    config.cached_limit_bytes = 16 * MIB;
    rig r;
    tarn_ptr a, b, c, d;
    REQUIRE(rig_open(&r, "sim:256M", &config, 1));
    hold(&r, 2 * MIB, &a);
    hold(&r, 6 * MIB, &b);
    hold(&r, 10 * MIB, &c);
    let_go(&r, a);
    let_go(&r, b);
    CHECK_EQ(rig_stats(&r).cached_bytes, 8 * MIB);
    let_go(&r, c); /* 2 too much: the oldest goes, not the largest */
    CHECK_EQ(rig_stats(&r).cached_bytes, 16 * MIB);
    settle(&r);
    CHECK_EQ(n_given_back(&r), 1);
    const uint64_t n = n_made(&r);
    hold(&r, 6 * MIB, &b);
    hold(&r, 10 * MIB, &c);
    CHECK_EQ(n_made(&r), n);
    let_go(&r, b);
    let_go(&r, c);
    hold(&r, 18 * MIB, &d);
    let_go(&r, d);
    settle(&r);
    CHECK_EQ(rig_stats(&r).cached_bytes, 16 * MIB);
    CHECK_EQ(rig_stats(&r).reserved_bytes, 16 * MIB);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static void nothing_kept(void) {
  EACH_BACKING(i) {
    tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    config.cached_limit_bytes = 1;
    rig r;
    tarn_ptr block;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    for (uint64_t n = 1; n < 5; n++) {
      hold(&r, 3 * MIB, &block);
      let_go(&r, block);
      settle(&r);
      CHECK_EQ(n_made(&r), n);
      CHECK_EQ(n_given_back(&r), n);
      CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    }
    rig_close(&r);
  }
}

/* Blocks that go out of turn: of a full size, since there is too much, and by themselves. All of
 * them wait for their stream, and a request for one of them still finds it. */
static void going_out_of_turn(void) {
  tarn_heap_config config = config_of(TARN_BACKING_PLAIN, TARN_ROUNDING_EXACT);
  config.cached_blocks_per_size = 2;
  config.cached_limit_bytes = 16 * MIB;
  static const uint64_t sizes[] = {3, 1, 1, 1, 20, 1, 7, 6, 20, 5, 1};
  enum { N = sizeof(sizes) / sizeof(sizes[0]) };
  rig r;
  rig_block blocks[N];
  REQUIRE(rig_open(&r, "sim:256M,order=lazy", &config, 2));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&r, sizes[i] * MIB, r.streams[i % 2], &blocks[i]));
  }
  const tarn_sim_kernel kernel = {.size = sizeof(kernel)};
  for (int i = 0; i < 400; i++) { /* more than is done while the heap asks for it */
    CHECK_OK(tarn_sim_launch(r.device, &kernel, r.streams[i % 2]));
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 2]));
    CHECK(rig_is_sound(&r));
  }
  CHECK(r.heap->buckets->n_doomed > 5);
  const uint64_t n = n_made(&r);
  CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[0], &blocks[0]));
  CHECK_EQ(n_made(&r), n);
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK(rig_is_sound(&r));
  settle(&r);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* As many slots as fit into the budget, at least one and at most 1024. */
static void slots_by_budget(void) {
  const tarn_heap_config config = {.size = sizeof(config), .preset = TARN_PRESET_POWER_BUCKETS};
  rig r;
  REQUIRE(rig_open(&r, "sim:4G", &config, 1));
  CHECK_EQ(tarni_bucket_slots(r.heap, 1), 1024);
  CHECK_EQ(tarni_bucket_slots(r.heap, 256 * KIB), 1024);
  CHECK_EQ(tarni_bucket_slots(r.heap, 512 * KIB), 512);
  CHECK_EQ(tarni_bucket_slots(r.heap, 256 * MIB), 1);
  CHECK_EQ(tarni_bucket_slots(r.heap, UINT64_C(1) << 40), 1);
  static tarn_ptr blocks[1030];
  for (int i = 0; i < 1030; i++) {
    hold(&r, 100, &blocks[i]);
  }
  for (int i = 0; i < 1030; i++) {
    let_go(&r, blocks[i]);
  }
  CHECK_EQ(rig_stats(&r).cached_bytes, 1024 * 128);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Sizes that nobody has any more leave nothing behind. */
static void many_sizes(void) {
  EACH_BACKING(i) {
    tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    config.cached_limit_bytes = 32 * MIB;
    rig r;
    REQUIRE(rig_open(&r, "sim:256M", &config, 1));
    for (uint64_t n = 1; n < 2000; n++) {
      tarn_ptr block;
      hold(&r, n * 4099, &block);
      let_go(&r, block);
    }
    CHECK(r.heap->buckets->n_sizes < 2000);
    settle(&r);
    CHECK(rig_stats(&r).reserved_bytes <= 32 * MIB);
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    for (tarni_index size = 1; size < r.heap->buckets->n_sizes; size++) {
      CHECK_EQ(r.heap->buckets->sizes[size].n_grants, 0);
    }
    CHECK_EQ(r.heap->buckets->root, 0);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* ---- Order ---- */

/* Frees on one stream, asks on another: what the policy says about memory whose work is pending. */
static void between_streams(void) {
  EACH_BACKING(i) {
    for (int policy = TARN_STEAL_WHEN_SHORT; policy <= TARN_STEAL_ALWAYS; policy++) {
      tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
      config.stealing = (tarn_stealing)policy;
      rig r;
      rig_block a, b;
      REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
      CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &a));
      const tarn_ptr first = a.address;
      CHECK_OK(rig_free(&r, &a, r.streams[0]));
      CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[1], &b));
      CHECK_EQ(b.address == first, policy == TARN_STEAL_ALWAYS);
      CHECK_EQ(rig_stats(&r).waits, policy == TARN_STEAL_ALWAYS);
      CHECK_OK(rig_free(&r, &b, r.streams[1]));
      CHECK(rig_is_sound(&r));
      rig_close(&r);
    }
  }
}

/* Under shortage another stream's block is taken behind a wait before anything is given back. */
static void stealing_when_short(void) {
  EACH_BACKING(i) {
    const tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    rig r;
    rig_block a, b;
    REQUIRE(rig_open(&r, "sim:16M,order=lazy", &config, 2));
    CHECK_OK(rig_alloc(&r, 10 * MIB, r.streams[0], &a));
    const tarn_ptr first = a.address;
    CHECK_OK(rig_free(&r, &a, r.streams[0]));
    CHECK_OK(rig_alloc(&r, 10 * MIB, r.streams[1], &b));
    CHECK_EQ(b.address, first);
    CHECK_EQ(rig_stats(&r).waits, 1);
    CHECK_EQ(n_given_back(&r), 0);
    CHECK_OK(rig_free(&r, &b, r.streams[1]));
    rig_close(&r);
  }
}

static void blocks_of_several_streams(void) {
  EACH_BACKING(i) {
    const tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    rig r;
    rig_block a, b;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 3));
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &a));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    const tarn_ptr first = a.address;
    CHECK_OK(tarn_use(r.heap, a.address, r.streams[1]));
    CHECK_OK(tarn_use(r.heap, a.address, r.streams[2]));
    rig_touch(&r, &a, r.streams[1], false);
    rig_touch(&r, &a, r.streams[2], false);
    CHECK_OK(rig_free(&r, &a, r.streams[0]));
    CHECK_EQ(rig_stats(&r).pending_bytes, 4 * MIB);
    CHECK_STATUS(tarn_free(r.heap, first, r.streams[0]), TARN_DOUBLE_FREE);
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &b)); /* not yet: others still read it */
    CHECK(b.address != first);
    CHECK_OK(rig_free(&r, &b, r.streams[0]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[2]));
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &a));
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &b));
    CHECK(a.address == first || b.address == first);
    CHECK_EQ(rig_stats(&r).pending_bytes, 0);
    CHECK_OK(rig_free(&r, &a, r.streams[0]));
    CHECK_OK(rig_free(&r, &b, r.streams[0]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static void streams_that_go(void) {
  EACH_BACKING(i) {
    tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    config.cached_blocks_per_size = 1;
    rig r;
    rig_block blocks[4];
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
    for (int j = 0; j < 4; j++) {
      CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &blocks[j]));
    }
    for (int j = 0; j < 3; j++) {
      CHECK_OK(rig_free(&r, &blocks[j], r.streams[0]));
    }
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0])); /* the last is freed on another */
    CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
    CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
    r.streams[0] = NULL;
    CHECK_OK(rig_free(&r, &blocks[3], r.streams[1]));
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* ---- The driver ---- */

/* Plain memory is given back by a call that waits for all work: never while work may use it. */
static void plain_memory_waits_for_nobody(void) {
  tarn_heap_config config = config_of(TARN_BACKING_PLAIN, TARN_ROUNDING_EXACT);
  config.cached_limit_bytes = 1;
  rig r;
  rig_block a, b;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &a));
  CHECK_OK(rig_free(&r, &a, r.streams[0]));
  CHECK_EQ(n_given_back(&r), 0);
  CHECK_EQ(rig_stats(&r).pending_bytes, 4 * MIB);
  CHECK_EQ(calls_of(&r, TARN_CALL_EVENT_SYNC) + calls_of(&r, TARN_CALL_STREAM_SYNC), 0);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[1], &b)); /* a miss: whatever is complete goes */
  CHECK_EQ(n_given_back(&r), 1);
  CHECK_EQ(rig_stats(&r).pending_bytes, 0);
  CHECK_OK(rig_free(&r, &b, r.streams[1]));
  rig_close(&r);
}

/* Memory that was to go is used again where it is still there. */
static void spared(void) {
  tarn_heap_config config = config_of(TARN_BACKING_PLAIN, TARN_ROUNDING_EXACT);
  config.cached_limit_bytes = 1;
  rig r;
  rig_block a;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &a));
    CHECK_OK(rig_free(&r, &a, r.streams[0]));
  }
  CHECK_EQ(n_made(&r), 1);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A pool's memory goes back in the order of its stream, at once, and only its own pool is used. */
static void pools_free_in_order(void) {
  tarn_heap_config config = config_of(TARN_BACKING_POOL, TARN_ROUNDING_EXACT);
  config.cached_limit_bytes = 1;
  config.pool_threshold_bytes = 8 * MIB;
  rig r;
  rig_block a;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  CHECK_EQ(calls_of(&r, TARN_CALL_POOL_CREATE), 1);
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &a));
  CHECK_OK(rig_free(&r, &a, r.streams[0]));
  CHECK_EQ(n_given_back(&r), 1);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_EQ(calls_of(&r, TARN_CALL_EVENT_RECORD) + calls_of(&r, TARN_CALL_STREAM_SYNC), 0);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_EQ(rig_state(&r).created_bytes, 4 * MIB); /* below the threshold: the pool keeps it */
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  rig_close(&r);
}

static void drained_when_short(void) {
  EACH_BACKING(i) {
    const tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    rig r;
    rig_block blocks[4];
    REQUIRE(rig_open(&r, "sim:32M,order=lazy", &config, 2));
    for (int j = 0; j < 4; j++) {
      CHECK_OK(rig_alloc(&r, (uint64_t)(2 + 2 * j) * MIB, r.streams[j % 2], &blocks[j]));
    }
    for (int j = 0; j < 4; j++) {
      CHECK_OK(rig_free(&r, &blocks[j], r.streams[j % 2]));
    }
    CHECK_OK(rig_alloc(&r, 30 * MIB, r.streams[0], &blocks[0])); /* all that is kept must go */
    CHECK_EQ(rig_stats(&r).cached_bytes, 0);
    CHECK_STATUS(rig_alloc(&r, 4 * MIB, r.streams[1], &blocks[1]), TARN_DEVICE_MEMORY);
    tarn_error error = {.size = sizeof(error)};
    CHECK_EQ(tarn_last_error(&error), TARN_DEVICE_MEMORY);
    CHECK_EQ(error.driver_code, 2);
    CHECK_EQ(error.requested_bytes, 4 * MIB);
    CHECK_HAS(error.message, "live 31457280");
    CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* Under shortage no more goes than is needed, oldest first. */
static void just_enough(void) {
  EACH_BACKING(i) {
    tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    config.limit_bytes = 32 * MIB;
    rig r;
    tarn_ptr a, b, c, d;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    hold(&r, 4 * MIB, &a);
    hold(&r, 8 * MIB, &b);
    hold(&r, 18 * MIB, &c);
    let_go(&r, a);
    let_go(&r, b);
    let_go(&r, c);
    hold(&r, 6 * MIB, &d); /* 4 are missing: the two oldest hold 12 */
    CHECK_EQ(rig_stats(&r).cached_bytes, 18 * MIB);
    CHECK_EQ(n_given_back(&r), 2);
    let_go(&r, d);
    rig_close(&r);
  }
}

/* ---- Limits ---- */

static void limits(void) {
  EACH_BACKING(i) {
    const tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    rig r;
    tarn_ptr a, b;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    hold(&r, 8 * MIB, &a);
    hold(&r, 6 * MIB, &b);
    let_go(&r, b);
    CHECK_OK(tarn_heap_set_limit(r.heap, 10 * MIB));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 8 * MIB);
    CHECK_STATUS(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &b), TARN_LIMIT);
    CHECK_EQ(b, 0);
    CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &b));
    let_go(&r, a);
    let_go(&r, b);
    CHECK_STATUS(tarn_heap_reserve(r.heap, MIB), TARN_UNSUPPORTED);
    CHECK_HAS(tarn_last_message(), "1048576");
    rig_close(&r);
  }
}

static bool free_one(tarn_heap *heap, uint64_t bytes, void *user) {
  tarn_ptr *block = user;
  CHECK_EQ(bytes, 4 * MIB);
  const bool is_there = *block != 0;
  CHECK_OK(tarn_free(heap, *block, NULL));
  *block = 0;
  return is_there;
}

static void live_limit(void) {
  EACH_BACKING(i) {
    tarn_ptr spare = 0, b = 0, c = 1;
    tarn_heap_config config = config_of(backings[i], TARN_ROUNDING_EXACT);
    config.live_limit_bytes = 8 * MIB;
    config.on_shortage = free_one;
    config.on_shortage_user = &spare;
    rig r;
    REQUIRE(rig_open(&r, "sim:64M", &config, 0));
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, NULL, &spare));
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, NULL, &b));
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, NULL, &c)); /* the callback makes room */
    CHECK_EQ(spare, 0);
    CHECK_EQ(rig_stats(&r).live_bytes, 8 * MIB);
    tarn_ptr d = 1;
    CHECK_STATUS(tarn_alloc(r.heap, 4 * MIB, NULL, &d), TARN_LIMIT);
    CHECK_EQ(d, 0);
    CHECK_HAS(tarn_last_message(), "limit of 8388608");
    CHECK_OK(tarn_free(r.heap, b, NULL));
    CHECK_OK(tarn_free(r.heap, c, NULL));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* ---- The check ---- */

static void spoil(rig *r, uint64_t *counter) {
  ++*counter;
  CHECK_STATUS(tarn_heap_check(r->heap), TARN_CORRUPT);
  --*counter;
  CHECK_OK(tarn_heap_check(r->heap));
}

/* The check of such a heap is not empty: whatever does not agree is found. */
static void the_check_finds(void) {
  tarn_heap_config config = config_of(TARN_BACKING_PLAIN, TARN_ROUNDING_EXACT);
  config.cached_blocks_per_size = 2;
  rig r;
  tarn_ptr live, kept[3];
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  hold(&r, MIB, &live);
  for (int i = 0; i < 3; i++) {
    hold(&r, 2 * MIB, &kept[i]);
  }
  rig_block used;
  rig_own(&r, kept[0], 2 * MIB, &used);
  rig_touch(&r, &used, r.streams[0], true);
  CHECK_OK(tarn_sim_disown(r.device, kept[0], 2 * MIB));
  for (int i = 0; i < 3; i++) {
    let_go(&r, kept[i]); /* two are kept, one is to go */
  }
  tarni_buckets *buckets = r.heap->buckets;
  CHECK_OK(tarn_heap_check(r.heap));
  CHECK_EQ(buckets->n_doomed, 1);
  spoil(&r, &buckets->cached_bytes);
  spoil(&r, &buckets->doomed_bytes);
  spoil(&r, &buckets->promised_bytes);
  spoil(&r, &r.heap->pending_bytes);
  spoil(&r, &r.heap->reserved_bytes);
  const tarni_index root = buckets->root;
  buckets->root = 0;
  CHECK_STATUS(tarn_heap_check(r.heap), TARN_CORRUPT);
  buckets->root = root;
  const tarni_index oldest = buckets->cached.oldest;
  buckets->cached.oldest = buckets->cached.newest;
  CHECK_STATUS(tarn_heap_check(r.heap), TARN_CORRUPT);
  buckets->cached.oldest = oldest;
  tarni_grant *grant = &buckets->grants[tarni_grant_find_locked(r.heap, live)];
  grant->state = TARNI_GRANT_CACHED;
  CHECK_STATUS(tarn_heap_check(r.heap), TARN_CORRUPT);
  grant->state = TARNI_GRANT_LIVE;
  CHECK_OK(tarn_heap_check(r.heap));
  let_go(&r, live);
  rig_close(&r);
}

/* A limit of one byte means none, also for a block of one. */
static void keeps_none(void) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .backing = TARN_BACKING_PLAIN,
                                   .rounding = TARN_ROUNDING_EXACT,
                                   .cached_limit_bytes = 1};
  rig r;
  tarn_ptr block;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_OK(tarn_alloc(r.heap, 1, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK_EQ(rig_stats(&r).cached_bytes, 0);
  rig_close(&r);
}

/* What another stream keeps is looked at once, and again when more of it is known to be complete:
 * how far it was looked at is noted. */
static void seen_once(void) {
  enum { N = 100 };
  const tarn_heap_config config = config_of(TARN_BACKING_PLAIN, TARN_ROUNDING_EXACT);
  rig r;
  tarn_ptr blocks[N], others[2];
  REQUIRE(rig_open(&r, "sim:256M", &config, 2));
  for (int i = 0; i < N; i++) {
    hold(&r, 4096, &blocks[i]);
  }
  for (int i = 0; i < N; i++) {
    let_go(&r, blocks[i]);
  }
  const tarni_bucket *bucket = &r.heap->buckets->sizes[1];
  CHECK_EQ(bucket->n_cached, N);
  CHECK_EQ(bucket->vain.newest, 0);
  CHECK_OK(tarn_alloc(r.heap, 4096, r.streams[1], &others[0])); /* new */
  CHECK_EQ(bucket->n_cached, N);
  CHECK_EQ(bucket->vain.newest, bucket->cached.newest);
  hold(&r, 4096, &blocks[0]); /* the newest: what is noted goes on to the next */
  CHECK_EQ(bucket->vain.newest, bucket->cached.newest);
  let_go(&r, blocks[0]);
  CHECK(bucket->vain.newest != bucket->cached.newest);
  CHECK_OK(tarn_heap_trim(r.heap, (uint64_t)(N - 1) * 4096)); /* all is complete then */
  const uint32_t n = bucket->n_cached;
  CHECK(n != 0);
  CHECK_OK(tarn_alloc(r.heap, 4096, r.streams[1], &others[1]));
  CHECK_EQ(bucket->n_cached, n - 1);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(tarn_free(r.heap, others[i], r.streams[1]));
  }
  CHECK_OK(tarn_heap_check(r.heap));
  rig_close(&r);
}

static const test_case cases[] = {
    {"what others keep is looked at once", seen_once},
    {"going out of turn", going_out_of_turn},
    {"none is kept", keeps_none},
    {"what requests are rounded to", roundings},
    {"nothing, and too much", nothing_and_too_much},
    {"alignments", alignments},
    {"the newest block is used first", newest_first},
    {"slots of a size", slots},
    {"a budget of bytes", budget},
    {"nothing is kept", nothing_kept},
    {"slots by the budget", slots_by_budget},
    {"many sizes", many_sizes},
    {"between streams", between_streams},
    {"stealing when short", stealing_when_short},
    {"blocks of several streams", blocks_of_several_streams},
    {"streams that go", streams_that_go},
    {"plain memory waits for nobody", plain_memory_waits_for_nobody},
    {"what was to go is spared", spared},
    {"pools free in order", pools_free_in_order},
    {"everything kept goes when memory is short", drained_when_short},
    {"no more goes than is needed", just_enough},
    {"limits", limits},
    {"a limit on live bytes", live_limit},
    {"the check finds what does not agree", the_check_finds},
};

TEST_MAIN(cases)
