/* SPDX-License-Identifier: MIT
 *
 * Chunks: few and large, in ever smaller parts of what is missing; what is free on them comes
 * together before new ones are made, with no wait of the host; given back from the top. */
#include "base/bits.h"
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

/* A large block takes the memory of the holes, which comes together in a view: nothing is made, and
 * the host waits for nothing. */
static void joined_instead_of_made(void) {
  rig r;
  rig_block blocks[N], large;
  REQUIRE(open_with_holes(&r, "sim:1G,order=lazy", NULL, blocks)); /* for chunks of 4 MiB */
  const uint64_t made = calls_of(&r, TARN_CALL_CREATE), waits = calls_of(&r, TARN_CALL_EVENT_SYNC);
  CHECK_OK(rig_alloc(&r, 24 * MIB, r.streams[0], &large));
  CHECK_EQ(calls_of(&r, TARN_CALL_CREATE), made);
  CHECK_EQ(rig_stats(&r).moved_chunks, 6); /* each hole is a chunk */
  CHECK_EQ(rig_stats(&r).reserved_bytes, 64 * MIB);
  CHECK(large.address - r.heap->base >= r.heap->large_end);
  CHECK_EQ(calls_of(&r, TARN_CALL_EVENT_SYNC), waits);
  CHECK_EQ(calls_of(&r, TARN_CALL_STREAM_SYNC), 0);
  CHECK_EQ(calls_of(&r, TARN_CALL_UNMAP), 0); /* chunks stay mapped at home */
  CHECK_EQ(rig_state(&r).mapped_bytes, rig_state(&r).created_bytes + 24 * MIB);
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
 * memory can be part of a view. */
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

/* Memory that another stream has freed comes together behind a wait of the GPU, if the policy lets
 * it. */
static void joined_from_another_stream(void) {
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

/* From one zone to the other: small blocks get the memory of large ones, and back. Each chunk is
 * mapped in both once: a single one that was made before the limit was low, or one for each unit,
 * since chunks are a small part of the limit. */
static void lend_between_zones(bool is_single) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = is_single ? 0 : 8 * MIB};
  rig r;
  static rig_block blocks[128];
  REQUIRE(rig_open(&r, "sim:16G,order=lazy", &config, 1));
  for (int round = 0; round < 10; round++) {
    rig_block large;
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &large));
    CHECK_OK(tarn_heap_set_limit(r.heap, 8 * MIB));
    CHECK_OK(rig_free(&r, &large, r.streams[0]));
    for (int i = 0; i < 128; i++) {
      CHECK_OK(rig_alloc(&r, 60 * KIB, r.streams[0], &blocks[i]));
    }
    CHECK(rig_is_sound(&r));
    for (int i = 0; i < 128; i++) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
    }
  }
  const uint64_t n_chunks = is_single ? 1 : 8 * MIB / r.heap->unit;
  CHECK_EQ(rig_stats(&r).reserved_peak_bytes, 8 * MIB);
  CHECK_EQ(calls_of(&r, TARN_CALL_CREATE), n_chunks);
  CHECK_EQ(calls_of(&r, TARN_CALL_MAP), 2 * n_chunks);
  rig_close(&r);
}

static void lent_between_zones(void) {
  lend_between_zones(true);
  lend_between_zones(false);
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

/* A heap that is trimmed to any size holds no more than that, and no chunk less than it might. */
static void chunks_of_several_sizes(void) {
  rig r;
  tarn_ptr blocks[40];
  REQUIRE(rig_open(&r, "sim:4G,granularity=16K", NULL, 1)); /* for chunks of 16 MiB */
  for (int i = 0; i < 40; i++) {
    CHECK_OK(tarn_alloc(r.heap, (uint64_t)(1 + i % 7) * 3 * MIB, r.streams[0], &blocks[i]));
  }
  uint32_t least = UINT32_MAX, most = 0;
  for (tarni_index i = 1; i < r.heap->n_chunks; i++) {
    const uint32_t n = r.heap->chunks[i].n_units;
    least = n != 0 && n < least ? n : least;
    most = n > most ? n : most;
  }
  CHECK(least != most && most <= 16 * MIB / r.heap->unit);
  for (int i = 0; i < 40; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  for (uint64_t keep = 400 * MIB; keep != 0; keep /= 3) {
    const uint64_t before = rig_stats(&r).reserved_bytes;
    CHECK_OK(tarn_heap_trim(r.heap, keep));
    const uint64_t held = rig_stats(&r).reserved_bytes;
    CHECK(held <= keep);
    CHECK(held + most * r.heap->unit > keep || held == before);
    CHECK(rig_is_sound(&r));
  }
  rig_close(&r);
}

enum { N_LOADED = 200 }; /* blocks of 3 MiB: 300 units */

/* Blocks of 3 MiB until the heap holds so many units. Returns the chunks that are made for them. */
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

/* What is missing for one block is made in ever smaller chunks, side by side: few, and none is a
 * large part of what the heap holds. */
static void ever_smaller(void) {
  static const struct {
    uint64_t bytes, most_chunks, share; /* share: no chunk is more than this part */
  } heaps[] = {{(uint64_t)384 * MIB, 32, 6}, {(uint64_t)4096 * MIB, 160, 64}};
  for (int i = 0; i < 2; i++) {
    rig r;
    rig_block block;
    REQUIRE(rig_open(&r, "sim:16G", NULL, 1)); /* a 256th is no less than these shares */
    CHECK_OK(rig_alloc(&r, heaps[i].bytes, r.streams[0], &block));
    const uint64_t n = calls_of(&r, TARN_CALL_CREATE);
    CHECK_EQ(rig_stats(&r).reserved_bytes, heaps[i].bytes);
    CHECK(n > heaps[i].share && n <= heaps[i].most_chunks);
    CHECK_EQ(calls_of(&r, TARN_CALL_MAP), n);
    CHECK_EQ(calls_of(&r, TARN_CALL_ACCESS), 1);
    uint32_t at = (uint32_t)((block.address - r.heap->base) / r.heap->unit);
    for (uint64_t bytes = heaps[i].bytes / heaps[i].share, k = 0; k < n; k++) {
      const tarni_phys *chunk = &r.heap->chunks[r.heap->units[at]];
      CHECK_EQ(chunk->first_unit, at);
      CHECK(chunk->n_units * r.heap->unit <= bytes);
      bytes = chunk->n_units * r.heap->unit;
      at += chunk->n_units;
    }
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static uint64_t largest_chunk(const rig *r) {
  uint64_t most = 0;
  for (tarni_index i = 1; i < r->heap->n_chunks; i++) {
    most = tarni_max(most, r->heap->chunks[i].n_units * r->heap->unit);
  }
  return most;
}

/* While a program loads a chunk is made for a block, and no more than is soon used; up to all that
 * there may be. None is larger than a 256th of that: here, two units or one. */
static void made_as_it_is_used(void) {
  static rig_block blocks[N_LOADED];
  const uint64_t held = (uint64_t)580 * MIB, limits[2] = {1024 * MIB, held};
  for (int i = 0; i < 2; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = limits[i]};
    const uint64_t most_units = limits[i] / 256 / (2 * MIB);
    rig r;
    rig_block more;
    int n = 0;
    REQUIRE(rig_open(&r, "sim:16G", &config, 1));
    for (uint64_t n_units = 10; n_units <= 290; n_units += 10) {
      const int before = n;
      const uint64_t had = rig_stats(&r).reserved_bytes;
      const uint64_t n_made = load(&r, blocks, &n, n_units);
      const uint64_t made = rig_stats(&r).reserved_bytes - had;
      CHECK(n_made <= (most_units == 1 ? made / (2 * MIB) : (uint64_t)(n - before)));
      CHECK(rig_stats(&r).reserved_bytes - rig_stats(&r).used_bytes <= 4 * MIB);
    }
    CHECK_EQ(largest_chunk(&r), most_units * 2 * MIB);
    CHECK_EQ(rig_stats(&r).reserved_bytes, held);
    CHECK_OK(tarn_heap_set_limit(r.heap, held));
    CHECK_STATUS(rig_alloc(&r, 4 * MIB, r.streams[0], &more), TARN_LIMIT);
    unload(&r, blocks, n);
  }
}

/* A young program that loads gets chunks of several blocks, in turn larger and smaller ones; a
 * sixteenth of what it holds at most. */
static void larger_while_it_loads(void) {
  static rig_block blocks[N_LOADED];
  rig r;
  rig_block small[4];
  int n = 0;
  REQUIRE(rig_open(&r, "sim:16G", NULL, 1));
  for (uint64_t n_units = 8; n_units < 256; n_units += 8) {
    const uint64_t had = rig_stats(&r).reserved_bytes;
    const uint64_t most = tarni_max(had / 16, 4 * MIB); /* what one block needs */
    (void)load(&r, blocks, &n, n_units);
    CHECK(largest_chunk(&r) <= tarni_max(rig_stats(&r).reserved_bytes / 16, 4 * MIB));
    CHECK(rig_stats(&r).reserved_bytes - rig_stats(&r).used_bytes <= most);
  }
  CHECK_EQ(largest_chunk(&r), 16 * MIB);
  CHECK(calls_of(&r, TARN_CALL_CREATE) < 256 / 3); /* a unit or two for each block otherwise */
  const uint64_t held = rig_stats(&r).reserved_bytes, made = calls_of(&r, TARN_CALL_CREATE);
  for (int i = 0; i < 4; i++) { /* small blocks are not what it loads */
    CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &small[i]));
    CHECK(rig_stats(&r).reserved_bytes <= held + (uint64_t)(i + 1) * 2 * MIB);
  }
  CHECK(calls_of(&r, TARN_CALL_CREATE) >= made + 2);
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_free(&r, &small[i], r.streams[0]));
  }
  unload(&r, blocks, n);
}

/* What is made at most for one of the next blocks, when a program has loaded so many units; or for
 * the very next one, where the device refuses the first try. */
static uint64_t made_for_block(uint64_t limit, uint64_t n_units, bool is_refused) {
  static rig_block blocks[N_LOADED];
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = limit};
  rig r;
  uint64_t most = 0;
  int n = 0;
  if (!rig_open(&r, "sim:16G", &config, 1)) {
    return 0;
  }
  (void)load(&r, blocks, &n, n_units);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CREATE, is_refused, 1, 2));
  for (int i = 0; i < (is_refused ? 1 : 8); i++) {
    const uint64_t had = rig_stats(&r).reserved_bytes;
    (void)load(&r, blocks, &n, had / (2 * MIB) + 1);
    most = tarni_max(most, rig_stats(&r).reserved_bytes - had);
  }
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  unload(&r, blocks, n);
  return most;
}

static void loading_has_bounds(void) {
  const uint64_t all = (uint64_t)16 << 30;
  CHECK_EQ(made_for_block(all, 128, false), 16 * MIB);
  CHECK_EQ(made_for_block(all, 32, false), 4 * MIB);  /* a sixteenth of what is held */
  CHECK_EQ(made_for_block(all, 260, false), 4 * MIB); /* it is not young any more */
  CHECK(made_for_block(all, 128, true) <= 4 * MIB);
  CHECK_EQ(made_for_block(all / 8, 100, false), 8 * MIB); /* a 256th of the limit */
  CHECK_EQ(made_for_block(all / 8, 130, false), 4 * MIB); /* an eighth of it is held */
}

/* A window begins in what is free below the void, and only the rest of it is made. */
static void made_behind_what_is_free(void) {
  static rig_block blocks[N_LOADED];
  rig r;
  rig_block large = {0};
  int n = 0;
  REQUIRE(rig_open(&r, "sim:16G", NULL, 1));
  (void)load(&r, blocks, &n, 128);
  const tarn_ptr start = blocks[n - 3].address;
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_free(&r, &blocks[--n], r.streams[0]));
  }
  const uint64_t made = calls_of(&r, TARN_CALL_CREATE), held = rig_stats(&r).reserved_bytes;
  const uint64_t end = r.heap->zones[TARNI_ZONE_LARGE].first + held;
  CHECK(r.heap->idle_bytes != 0);
  const uint64_t bytes = r.heap->base + end - start + 12 * MIB;
  CHECK_OK(rig_alloc(&r, bytes, r.streams[0], &large));
  const uint64_t offset = large.address - r.heap->base;
  CHECK(large.address >= start && offset < end);
  CHECK_EQ(calls_of(&r, TARN_CALL_CREATE), made + 1);
  CHECK_EQ(rig_stats(&r).reserved_bytes, held + tarni_align_up(offset + bytes - end, 2 * MIB));
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  unload(&r, blocks, n);
}

/* What a heap that is eased makes for a block, where the device refuses the first try or not. */
static uint64_t made_ahead(bool is_refused) {
  static rig_block blocks[N_LOADED];
  rig r;
  rig_block small;
  uint64_t n_failed = 0;
  int n = 0;
  if (!rig_open(&r, "sim:16G", NULL, 2)) {
    return 0;
  }
  CHECK_OK(rig_alloc(&r, 4 * KIB, r.streams[1], &small));
  CHECK_OK(rig_free(&r, &small, r.streams[1]));
  (void)load(&r, blocks, &n, 128);
  const tarni_rest eased = {
      .n_collected = TARNI_EASE_COLLECTED, .peak_next = 1024 * MIB, .lean_peak = 200 * MIB};
  tarni_lock_acquire(&r.heap->lock);
  r.heap->rest = eased;
  tarni_lock_release(&r.heap->lock);
  const uint64_t cached = rig_stats(&r).cached_bytes, held = rig_stats(&r).reserved_bytes;
  CHECK(cached != 0);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CREATE, is_refused, 1, 2));
  (void)load(&r, blocks, &n, held / (2 * MIB) + 1);
  CHECK_OK(tarn_sim_failed(r.device, &n_failed));
  CHECK_EQ(n_failed, is_refused);
  CHECK_EQ(rig_stats(&r).cached_bytes, cached);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  const uint64_t made = rig_stats(&r).reserved_bytes - held;
  unload(&r, blocks, n);
  return made;
}

/* What the device refuses was more than is needed: that is no shortage, and other streams' caches
 * stay as they are. */
static void refused_ahead(void) {
  CHECK_EQ(made_ahead(false), 8 * MIB);
  CHECK(made_ahead(true) <= 4 * MIB);
}

static const test_case cases[] = {
    {"made in ever smaller chunks", ever_smaller},
    {"made as it is used", made_as_it_is_used},
    {"made behind what is free", made_behind_what_is_free},
    {"larger ones while a program loads", larger_while_it_loads},
    {"and not beyond bounds", loading_has_bounds},
    {"less is made where the device refuses what is ahead", refused_ahead},
    {"joined instead of made", joined_instead_of_made},
    {"blocks of whole units lie on chunks of their own", whole_units_go_whole},
    {"gaps before blocks of whole units are bounded", gaps_are_bounded},
    {"blocks of whole units lie anywhere when the driver refuses memory", whole_units_anywhere},
    {"a stream's own room comes before another's", own_room_before_another_streams},
    {"joined from another stream", joined_from_another_stream},
    {"what is lost is passed by", passed_by_what_is_lost},
    {"lent between zones", lent_between_zones},
    {"given back from the top", given_back_from_the_top},
    {"chunks of several sizes", chunks_of_several_sizes},
};

TEST_MAIN(cases)
