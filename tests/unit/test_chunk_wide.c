/* SPDX-License-Identifier: MIT
 *
 * Chunks that are larger than what is needed: they move all the same, and what is left over of them
 * is there for the next blocks. What was reserved serves blocks of all sizes so. */
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, N = 4096 };

static const uint64_t reserved = (uint64_t)1024 * MIB;

typedef struct store {
  rig r;
  rig_block blocks[N];
  int n;
} store;

static bool store_open(store *s, tarn_stealing stealing) {
  *s = (store){0};
  const tarn_heap_config config = {.size = sizeof(config), .stealing = stealing};
  if (!rig_open(&s->r, "sim:8G,order=lazy", &config, 2)) {
    return false;
  }
  CHECK_OK(tarn_heap_reserve(s->r.heap, reserved));
  CHECK_EQ(rig_stats(&s->r).reserved_bytes, reserved);
  return true;
}

static void blocks_take(store *s, uint64_t bytes, uint64_t total, tarn_stream stream) {
  for (uint64_t sum = 0; sum + bytes <= total && s->n < N; sum += bytes) {
    CHECK_OK(rig_alloc(&s->r, bytes, stream, &s->blocks[s->n]));
    s->n += s->blocks[s->n].address != 0;
  }
}

static void blocks_free(store *s, tarn_stream stream) {
  while (s->n != 0) {
    CHECK_OK(rig_free(&s->r, &s->blocks[--s->n], stream));
  }
}

static void store_close(store *s) {
  blocks_free(s, s->r.streams[0]);
  CHECK(rig_is_sound(&s->r));
  rig_close(&s->r);
}

/* Nothing is made for small blocks as long as some of it is idle. */
static void serves_small_blocks(void) {
  static store s;
  REQUIRE(store_open(&s, TARN_STEAL_WHEN_SHORT));
  CHECK(s.r.heap->chunks[1].n_units > 1);
  blocks_take(&s, 64 * KIB, (uint64_t)100 * MIB, s.r.streams[0]);
  blocks_take(&s, 512 * KIB, (uint64_t)300 * MIB, s.r.streams[0]);
  blocks_take(&s, 8 * MIB, (uint64_t)400 * MIB, s.r.streams[0]);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, reserved);
  const uint64_t n_moved = rig_stats(&s.r).moved_chunks;
  CHECK(n_moved >= 20 && n_moved <= 200); /* one for many blocks */
  store_close(&s);
}

/* What small blocks have given back serves blocks that are smaller than its chunks. */
static void serves_large_blocks(void) {
  static store s;
  REQUIRE(store_open(&s, TARN_STEAL_WHEN_SHORT));
  blocks_take(&s, 512 * KIB, (uint64_t)900 * MIB, s.r.streams[0]);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, reserved);
  blocks_free(&s, s.r.streams[0]);
  blocks_take(&s, 3 * MIB, (uint64_t)900 * MIB, s.r.streams[0]);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, reserved);
  store_close(&s);
}

/* Where it cannot be had, no more is made than what is needed. */
static void makes_what_is_needed(void) {
  static store s;
  REQUIRE(store_open(&s, TARN_STEAL_NEVER));
  blocks_take(&s, 8 * MIB, reserved, s.r.streams[0]);
  blocks_free(&s, s.r.streams[0]);                /* the other stream may not have it */
  s.r.heap->used_peak_bytes = (uint64_t)64 * MIB; /* as if it had been used bit by bit */
  const uint64_t before = rig_stats(&s.r).reserved_bytes;
  rig_block block;
  CHECK_OK(rig_alloc(&s.r, 64 * KIB, s.r.streams[1], &block));
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, before + s.r.heap->unit);
  CHECK_EQ(rig_stats(&s.r).moved_chunks, 0);
  CHECK_OK(rig_free(&s.r, &block, s.r.streams[1]));
  store_close(&s);
}

/* The driver refuses to map it, once and for good: nothing is lost, and the next one is served. */
static void refused(void) {
  for (uint64_t times = 0; times < 2; times++) {
    static store s;
    REQUIRE(store_open(&s, TARN_STEAL_WHEN_SHORT));
    rig_block block = {0};
    CHECK_OK(tarn_sim_fail(s.r.device, TARN_CALL_MAP, 1, times, 0));
    const tarn_status expected = times == 0 ? TARN_DEVICE_MEMORY : TARN_OK;
    CHECK_STATUS(rig_alloc(&s.r, 64 * KIB, s.r.streams[0], &block), expected);
    CHECK_EQ(rig_stats(&s.r).used_bytes != 0, times != 0);
    CHECK(rig_is_sound(&s.r));
    CHECK_OK(tarn_sim_fail(s.r.device, TARN_CALL_COUNT, 0, 0, 0));
    rig_block next;
    CHECK_OK(rig_alloc(&s.r, 64 * KIB, s.r.streams[0], &next));
    CHECK(rig_stats(&s.r).reserved_bytes <= reserved);
    CHECK_OK(rig_free(&s.r, &next, s.r.streams[0]));
    if (block.address != 0) {
      CHECK_OK(rig_free(&s.r, &block, s.r.streams[0]));
    }
    store_close(&s);
  }
}

static const test_case cases[] = {
    {"what is reserved serves small blocks", serves_small_blocks},
    {"and large ones again", serves_large_blocks},
    {"no more is made than what is needed", makes_what_is_needed},
    {"a move that is refused costs nothing", refused},
};

TEST_MAIN(cases)
