/* SPDX-License-Identifier: MIT
 *
 * Chunks: moved to where they are needed before new ones are made, with no wait of the host; their
 * old places dropped once they are seen to be complete; given back from the top. */
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, N = 16 };

static uint64_t calls_of(const rig *r, tarn_call call) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(r->device, &counts));
  return counts.calls[call];
}

/* N blocks of 4 MiB, of which every second one is freed: half of it is free, in pieces. */
static bool open_with_holes(rig *r, const char *device, const tarn_heap_config *config,
                            rig_block blocks[N]) {
  for (int i = 0; i < N; i++) {
    blocks[i] = (rig_block){0};
  }
  if (!rig_open(r, device, config, 2)) {
    return false;
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(r, 4 * MIB, r->streams[0], &blocks[i]));
  }
  for (int i = 0; i < N; i += 2) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
  return true;
}

static void close_with_holes(rig *r, rig_block blocks[N]) {
  for (int i = 0; i < N; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
    }
  }
  CHECK(rig_is_sound(r));
  rig_close(r);
}

/* A large block takes the memory of the holes: nothing is made, and the host waits for nothing. */
static void moved_instead_of_made(void) {
  rig r;
  rig_block blocks[N], large;
  REQUIRE(open_with_holes(&r, "sim:256M,order=lazy", NULL, blocks));
  const uint64_t made = calls_of(&r, TARN_CALL_CREATE), waits = calls_of(&r, TARN_CALL_EVENT_SYNC);
  CHECK_OK(rig_alloc(&r, 24 * MIB, r.streams[0], &large));
  CHECK(calls_of(&r, TARN_CALL_CREATE) - made <= 2); /* but for a little slack */
  CHECK(rig_stats(&r).moved_chunks >= 10);
  CHECK(rig_stats(&r).reserved_bytes <= 68 * MIB);
  CHECK_EQ(calls_of(&r, TARN_CALL_EVENT_SYNC), waits);
  CHECK_EQ(calls_of(&r, TARN_CALL_STREAM_SYNC), 0);
  CHECK_EQ(calls_of(&r, TARN_CALL_UNMAP), 0); /* chunks stay mapped at their old places */
  CHECK(rig_state(&r).mapped_bytes > rig_state(&r).created_bytes);
  CHECK(rig_is_sound(&r));
  const tarn_ptr first = large.address;
  const uint64_t calls = rig_calls(&r);
  for (int i = 0; i < 10; i++) { /* what was mapped once is found again */
    CHECK_OK(rig_free(&r, &large, r.streams[0]));
    tarni_lock_acquire(&r.heap->lock);
    tarni_cache_empty_all_locked(r.heap, 0, false);
    tarni_lock_release(&r.heap->lock);
    CHECK(rig_is_sound(&r));
    CHECK_OK(rig_alloc(&r, 24 * MIB, r.streams[0], &large));
    CHECK_EQ(large.address, first);
  }
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  close_with_holes(&r, blocks);
}

/* Blocks of whole units lie on chunks of their own, whatever lies between them: freed, all of their
 * memory goes to where it is needed. */
static void whole_units_go_whole(void) {
  rig r;
  rig_block whole[N], between[N], large;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 1));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&r, 2 * MIB - 64 * KIB, r.streams[0], &between[i]));
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &whole[i]));
    CHECK_EQ((whole[i].address - r.heap->base) % r.heap->unit, 0);
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_free(&r, &whole[i], r.streams[0]));
  }
  const uint64_t held = rig_stats(&r).reserved_bytes;
  CHECK_OK(rig_alloc(&r, (uint64_t)N * 4 * MIB, r.streams[0], &large));
  CHECK(rig_stats(&r).reserved_bytes <= held + 3 * r.heap->unit); /* but for a little slack */
  CHECK(rig_is_sound(&r));
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_free(&r, &between[i], r.streams[0]));
  }
  rig_close(&r);
}

/* The gaps before them stay few, also where there was more in use before, and where memory is
 * little there are none. */
static void gaps_are_bounded(void) {
  static const struct {
    uint64_t limit, before, most_lost;
  } heaps[] = {{1024 * MIB, MIB, 16 * MIB}, {1024 * MIB, 512 * MIB, 18 * MIB}, {22 * MIB, MIB, 0}};
  for (int i = 0; i < 3; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = heaps[i].limit};
    rig r;
    static rig_block blocks[1024];
    int n = 0;
    REQUIRE(rig_open(&r, "sim:2G", &config, 1));
    CHECK_OK(rig_alloc(&r, heaps[i].before, r.streams[0], &blocks[0]));
    CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
    while (rig_alloc(&r, n % 2 == 0 ? MIB + 16 * KIB : 2 * MIB, r.streams[0], &blocks[n]) ==
           TARN_OK) {
      REQUIRE(++n < 1024);
    }
    CHECK(rig_stats(&r).live_bytes + heaps[i].most_lost + 2 * MIB >= heaps[i].limit);
    while (n > 0) {
      CHECK_OK(rig_free(&r, &blocks[--n], r.streams[0]));
    }
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* Room that is there, but not at a unit, is good enough when the driver refuses other. */
static void whole_units_anywhere(void) {
  static const tarn_call calls[] = {TARN_CALL_CREATE, TARN_CALL_MAP, TARN_CALL_CAPTURE_STATE};
  for (int i = 0; i < 3; i++) {
    rig r;
    rig_block odd, hole, last, whole;
    REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
    CHECK_OK(rig_alloc(&r, 85 * MIB / 2, r.streams[0], &odd)); /* a heap that is not small */
    CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &hole));
    CHECK_OK(rig_alloc(&r, 5 * MIB / 2, r.streams[0], &last));
    const tarn_ptr start = hole.address;
    CHECK_OK(rig_free(&r, &hole, r.streams[0]));
    CHECK_OK(tarn_sim_fail(r.device, calls[i], 1, 0, 999));
    CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &whole));
    CHECK_EQ(whole.address, start);
    CHECK_OK(tarn_sim_fail(r.device, calls[i], 0, 0, 0));
    CHECK_OK(rig_free(&r, &odd, r.streams[0]));
    CHECK_OK(rig_free(&r, &last, r.streams[0]));
    CHECK_OK(rig_free(&r, &whole, r.streams[0]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* A stream's own room comes before another's that begins at a unit: that would be to wait for. */
static void own_room_before_another_streams(void) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  rig r;
  rig_block odd, hole, between, others, last, whole;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", &config, 2));
  CHECK_OK(rig_alloc(&r, 85 * MIB / 2, r.streams[0], &odd));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &hole));
  CHECK_OK(rig_alloc(&r, 5 * MIB / 2, r.streams[0], &between));
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[1], &others));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &last));
  const tarn_ptr start = hole.address;
  CHECK_OK(rig_free(&r, &others, r.streams[1]));
  CHECK_OK(rig_free(&r, &hole, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &whole));
  CHECK_EQ(whole.address, start);
  CHECK_EQ(rig_stats(&r).waits, 0);
  CHECK_OK(rig_free(&r, &odd, r.streams[0]));
  CHECK_OK(rig_free(&r, &between, r.streams[0]));
  CHECK_OK(rig_free(&r, &last, r.streams[0]));
  CHECK_OK(rig_free(&r, &whole, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Memory that another stream has freed moves behind a wait of the GPU, if the policy lets it. */
static void moved_from_another_stream(void) {
  for (int policy = 0; policy < 3; policy++) {
    const tarn_heap_config config = {
        .size = sizeof(config), .limit_bytes = 64 * MIB, .stealing = (tarn_stealing)policy};
    rig r;
    rig_block blocks[N], large;
    REQUIRE(open_with_holes(&r, "sim:256M,order=lazy", &config, blocks));
    CHECK_OK(rig_alloc(&r, 24 * MIB, r.streams[1], &large)); /* there is nothing else left */
    CHECK_EQ(rig_stats(&r).waits != 0, policy != TARN_STEAL_NEVER);
    CHECK_EQ(rig_stats(&r).reserved_peak_bytes, 64 * MIB);
    CHECK_OK(rig_free(&r, &large, r.streams[1]));
    close_with_holes(&r, blocks);
  }
}

/* Of what several streams have freed the lowest waits for one that is gone: the next is taken. */
static void passed_by_what_is_lost(void) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  static const int by[6] = {0, 1, 0, 0, 2, 0}; /* the third and the last stay */
  rig r;
  rig_block blocks[6], large;
  REQUIRE(rig_open(&r, "sim:256M,order=lazy", &config, 4));
  for (int i = 0; i < 6; i++) {
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[by[i]], &blocks[i]));
  }
  const tarn_ptr next = blocks[3].address;
  for (int i = 0; i < 6; i++) {
    if (i % 3 != 2) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[by[i]]));
    }
  }
  tarni_index lost = 0;
  CHECK_OK(tarni_lane_find(r.heap, r.streams[1], &lost));
  r.heap->lanes[lost].is_lost = true;
  CHECK_OK(rig_alloc(&r, 16 * MIB, r.streams[3], &large));
  CHECK_EQ(large.address, next);
  r.heap->lanes[lost].is_lost = false;
  CHECK_OK(rig_free(&r, &large, r.streams[3]));
  CHECK_OK(rig_free(&r, &blocks[2], r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[5], r.streams[0]));
  rig_close(&r);
}

/* From one zone to the other: small blocks get the memory of large ones, and back. */
static void moved_between_zones(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 8 * MIB};
  rig r;
  static rig_block blocks[128];
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  for (int round = 0; round < 10; round++) {
    rig_block large;
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &large));
    CHECK_OK(rig_free(&r, &large, r.streams[0]));
    for (int i = 0; i < 128; i++) {
      CHECK_OK(rig_alloc(&r, 60 * KIB, r.streams[0], &blocks[i]));
    }
    CHECK(rig_is_sound(&r));
    for (int i = 0; i < 128; i++) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
    }
  }
  CHECK_EQ(rig_stats(&r).reserved_peak_bytes, 8 * MIB);
  CHECK_EQ(calls_of(&r, TARN_CALL_CREATE), 4);
  rig_close(&r);
}

/* Trimming takes what lies highest, whatever was freed first: what is left is in one piece. */
static void given_back_from_the_top(void) {
  rig r;
  rig_block blocks[4];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &blocks[i]));
  }
  const tarn_ptr lowest = blocks[0].address;
  static const int order[4] = {2, 0, 3, 1};
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_free(&r, &blocks[order[i]], r.streams[0]));
    tarni_lock_acquire(&r.heap->lock);
    tarni_cache_empty_all_locked(r.heap, 0, false); /* it is idle from now on */
    tarni_lock_release(&r.heap->lock);
  }
  for (int i = 0; i < 4; i++) {
    CHECK_OK(tarn_heap_trim(r.heap, (uint64_t)(3 - i) * 2 * MIB));
    for (int j = 0; j < 4; j++) {
      const uint64_t unit = (lowest - r.heap->base) / r.heap->unit + (uint64_t)j;
      CHECK_EQ(r.heap->units[unit] != 0, j < 3 - i);
    }
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Chunks grow with the heap, and a heap that is trimmed to any size holds no more than that. */
static void chunks_of_several_sizes(void) {
  rig r;
  tarn_ptr blocks[40];
  REQUIRE(rig_open(&r, "sim:1G,granularity=16K", NULL, 1));
  for (int i = 0; i < 40; i++) {
    CHECK_OK(tarn_alloc(r.heap, (uint64_t)(1 + i % 7) * 3 * MIB, r.streams[0], &blocks[i]));
  }
  uint32_t least = UINT32_MAX, most = 0;
  for (tarni_index i = 1; i < r.heap->n_chunks; i++) {
    const uint32_t n = r.heap->chunks[i].n_units;
    least = n != 0 && n < least ? n : least;
    most = n > most ? n : most;
  }
  CHECK_EQ(least, 1);
  CHECK(most >= 4);
  for (int i = 0; i < 40; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  for (uint64_t keep = 400 * MIB; keep != 0; keep /= 3) {
    const uint64_t before = rig_stats(&r).reserved_bytes;
    CHECK_OK(tarn_heap_trim(r.heap, keep));
    const uint64_t held = rig_stats(&r).reserved_bytes;
    CHECK(held <= keep);
    CHECK(held + MIB > keep || held == before); /* and not much less */
    CHECK(rig_is_sound(&r));
  }
  rig_close(&r);
}

enum { N_LOADED = 200 }; /* blocks of 3 MiB: 300 units */

/* Chunks that are made until the heap holds so many units, in blocks of 3 MiB. */
static uint64_t load(rig *r, rig_block blocks[N_LOADED], int *n, uint64_t n_units) {
  const uint64_t made = calls_of(r, TARN_CALL_CREATE);
  while (*n < N_LOADED && rig_stats(r).reserved_bytes < n_units * 2 * MIB) {
    CHECK_OK(rig_alloc(r, 3 * MIB - 64 * KIB, r->streams[0], &blocks[(*n)++]));
  }
  return calls_of(r, TARN_CALL_CREATE) - made;
}

static void unload(rig *r, rig_block blocks[N_LOADED], int n) {
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
  CHECK(rig_is_sound(r));
  rig_close(r);
}

/* While nothing is given back two units are made at a time, and no more than is soon used. */
static void made_ahead(void) {
  static rig_block blocks[N_LOADED];
  rig r;
  int n = 0;
  REQUIRE(rig_open(&r, "sim:16G", NULL, 1));
  CHECK_EQ(load(&r, blocks, &n, 128), 128);
  CHECK_EQ(load(&r, blocks, &n, 256), 64);
  CHECK_EQ(load(&r, blocks, &n, 290), 34);
  CHECK(rig_stats(&r).reserved_bytes - rig_stats(&r).used_bytes <= 4 * MIB);
  CHECK(rig_is_sound(&r));
  unload(&r, blocks, n);
}

/* Not where all that there is may be needed: halves of chunks would be out of reach. */
static void not_made_ahead_of_limits(void) {
  static rig_block blocks[N_LOADED];
  const tarn_heap_config limited = {.size = sizeof(limited),
                                    .limit_bytes = (uint64_t)(128 + 4095) * 2 * MIB};
  rig r;
  int n = 0;
  REQUIRE(rig_open(&r, "sim:16G", &limited, 1));
  CHECK_EQ(load(&r, blocks, &n, 150), 150);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 300 * MIB);
  unload(&r, blocks, n);
}

static void not_made_ahead_beside_idle_chunks(void) {
  static rig_block blocks[N_LOADED];
  rig r;
  rig_block large = {0};
  int n = 0;
  REQUIRE(rig_open(&r, "sim:16G", NULL, 1));
  (void)load(&r, blocks, &n, 128);
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_free(&r, &blocks[--n], r.streams[0]));
  }
  const uint64_t made = calls_of(&r, TARN_CALL_CREATE), held = rig_stats(&r).reserved_bytes;
  CHECK(r.heap->idle_bytes != 0);
  CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[0], &large));
  CHECK_EQ((calls_of(&r, TARN_CALL_CREATE) - made) * 2 * MIB, rig_stats(&r).reserved_bytes - held);
  CHECK(calls_of(&r, TARN_CALL_CREATE) > made);
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  unload(&r, blocks, n);
}

/* What the device refuses was more than is needed: that is no shortage, and other streams'
 * caches stay as they are. */
static void refused_ahead(void) {
  static rig_block blocks[N_LOADED];
  rig r;
  rig_block small;
  int n = 0;
  REQUIRE(rig_open(&r, "sim:16G", NULL, 2));
  CHECK_OK(rig_alloc(&r, 4 * KIB, r.streams[1], &small));
  CHECK_OK(rig_free(&r, &small, r.streams[1]));
  (void)load(&r, blocks, &n, 128);
  const uint64_t cached = rig_stats(&r).cached_bytes;
  CHECK(cached != 0);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CREATE, 1, 1, 2));
  CHECK_OK(rig_alloc(&r, 3 * MIB - 64 * KIB, r.streams[0], &blocks[n++]));
  uint64_t n_failed = 0;
  CHECK_OK(tarn_sim_failed(r.device, &n_failed));
  CHECK_EQ(n_failed, 1);
  CHECK_EQ(rig_stats(&r).cached_bytes, cached);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  unload(&r, blocks, n);
}

static const test_case cases[] = {
    {"made ahead while a program loads", made_ahead},
    {"not made ahead where that may be missed", not_made_ahead_of_limits},
    {"not made ahead where chunks lie idle", not_made_ahead_beside_idle_chunks},
    {"less is made where the device refuses what is ahead", refused_ahead},
    {"moved instead of made", moved_instead_of_made},
    {"blocks of whole units lie on chunks of their own", whole_units_go_whole},
    {"gaps before blocks of whole units are bounded", gaps_are_bounded},
    {"blocks of whole units lie anywhere when the driver refuses memory", whole_units_anywhere},
    {"a stream's own room comes before another's", own_room_before_another_streams},
    {"moved from another stream", moved_from_another_stream},
    {"what is lost is passed by", passed_by_what_is_lost},
    {"moved between zones", moved_between_zones},
    {"given back from the top", given_back_from_the_top},
    {"chunks of several sizes", chunks_of_several_sizes},
};

TEST_MAIN(cases)
