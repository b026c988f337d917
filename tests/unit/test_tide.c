/* SPDX-License-Identifier: MIT
 *
 * Tides: at low water what caches keep is collected, so that the rounds of a program come to the
 * same places; not while use rises, not in a small heap, and not so often that it costs much. Where
 * hardly anything is used any more that is done before a small block, too. */
#include <pthread.h>

#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum {
  MIB = 1 << 20,
  N_SMALL = 20,
  SMALL = 256 << 10,
  N_BLOCKS = 64,
  MOST_SMALL = 40000,
  N_LARGE = 80
};

/* Blocks of one slab each come and go, and stay in the cache. */
static void keep_small(rig *r, int n) {
  rig_block blocks[N_BLOCKS];
  REQUIRE(n <= N_BLOCKS);
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_alloc(r, SMALL, r->streams[0], &blocks[i]));
  }
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
}

/* What the caches keep when a large block of this size was just found. */
static uint64_t cached_beside(rig *r, uint64_t bytes) {
  rig_block block;
  CHECK_OK(rig_alloc(r, bytes, r->streams[0], &block));
  const uint64_t cached = rig_stats(r).cached_bytes;
  CHECK_OK(rig_free(r, &block, r->streams[0]));
  return cached;
}

/* High water: what is kept at its highest. */
static uint64_t flood(rig *r) {
  rig_block blocks[4];
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_alloc(r, (uint64_t)50 * MIB, r->streams[0], &blocks[i]));
  }
  keep_small(r, N_SMALL);
  const uint64_t cached = cached_beside(r, (uint64_t)12 * MIB);
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
  return cached;
}

static void collects_at_low_water(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  rig_block base;
  CHECK_OK(tarn_heap_reserve(r.heap, (uint64_t)400 * MIB)); /* a heap that grows collects, too */
  keep_small(&r, N_SMALL);
  CHECK_OK(rig_alloc(&r, (uint64_t)64 * MIB, r.streams[0], &base));
  const uint64_t kept = (uint64_t)N_SMALL * SMALL;
  CHECK_EQ(flood(&r), kept);
  CHECK_EQ(cached_beside(&r, (uint64_t)10 * MIB), kept); /* how low it goes is not known yet */
  CHECK_EQ(flood(&r), kept);
  CHECK(!r.heap->caches->is_beached); /* the base is more than hardly anything */
  CHECK_EQ(cached_beside(&r, (uint64_t)10 * MIB), 0);
  keep_small(&r, N_SMALL);
  for (uint64_t i = 0; i < N_SMALL; i++) {                /* as many large blocks as it costs */
    CHECK_EQ(cached_beside(&r, (9 - i % 2) * MIB), kept); /* but once in an ebb, */
  }
  CHECK(rig_is_sound(&r));
  CHECK_OK(rig_free(&r, &base, r.streams[0]));
  CHECK_EQ(cached_beside(&r, (uint64_t)10 * MIB), 0); /* unless it goes lower */
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* What lay below all low waters goes, too, and is less than a wave. */
static void collects_on_the_ground(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  rig_block base;
  CHECK_OK(tarn_heap_reserve(r.heap, (uint64_t)400 * MIB));
  CHECK_OK(rig_alloc(&r, (uint64_t)12 * MIB, r.streams[0], &base));
  const uint64_t kept = (uint64_t)N_SMALL * SMALL;
  CHECK_EQ(flood(&r), kept);
  CHECK_EQ(cached_beside(&r, (uint64_t)8 * MIB), kept);
  CHECK_EQ(flood(&r), kept);
  CHECK_EQ(cached_beside(&r, (uint64_t)8 * MIB), 0);
  keep_small(&r, N_SMALL);
  for (uint64_t i = 0; i < N_SMALL; i++) { /* as many large blocks as it costs */
    CHECK_EQ(cached_beside(&r, (7 - i % 2) * MIB), kept);
  }
  CHECK_OK(rig_free(&r, &base, r.streams[0]));
  CHECK_EQ(cached_beside(&r, (uint64_t)8 * MIB), 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Large blocks, which pay for what is slow at a job's end. */
static void pay(rig *r) {
  for (uint64_t i = 0; i < N_LARGE; i++) {
    (void)cached_beside(r, (30 + i % 2) * MIB);
  }
}

/* High water, and hardly anything behind it. */
static void ebb(rig *r) {
  rig_block base;
  CHECK_OK(rig_alloc(r, (uint64_t)12 * MIB, r->streams[0], &base));
  CHECK_EQ(flood(r), (uint64_t)N_SMALL * SMALL);
  CHECK_OK(rig_free(r, &base, r->streams[0]));
  CHECK(r->heap->caches->is_beached);
}

/* A job has ended: what it frees last are small blocks, behind its last large one. */
static bool job_end(rig *r) {
  if (!rig_open(r, "sim:1G", NULL, 2)) {
    return false;
  }
  CHECK_OK(tarn_heap_reserve(r->heap, (uint64_t)400 * MIB));
  pay(r);
  ebb(r);
  CHECK_EQ(rig_stats(r).cached_bytes, (uint64_t)N_SMALL * SMALL);
  return true;
}

static void frees_small(rig *r, rig_block blocks[2], const tarn_stream streams[2]) {
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_free(r, &blocks[i], streams[i]));
  }
  CHECK(rig_is_sound(r));
}

/* What the next one asks for first is a small block: no hit, but the first of a slab. */
static void collects_before_a_job(void) {
  rig r;
  rig_block blocks[2];
  REQUIRE(job_end(&r));
  const tarn_stream streams[2] = {r.streams[0], r.streams[0]};
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &blocks[0]));
  CHECK(!r.heap->caches->is_beached);
  CHECK_EQ(rig_stats(&r).cached_bytes, 0);
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &blocks[1]));
  frees_small(&r, blocks, streams);
  const uint64_t kept = rig_stats(&r).cached_bytes;
  CHECK_EQ(kept, 2 * SMALL); /* and hits from here on */
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &blocks[0]));
  CHECK_EQ(rig_stats(&r).cached_bytes, SMALL);
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  rig_close(&r);
}

/* However much is kept: that is not used, though it is in slabs. */
static void keeps_more_than_a_wave(void) {
  rig r;
  rig_block base, block;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  CHECK_OK(tarn_heap_reserve(r.heap, (uint64_t)400 * MIB));
  pay(&r);
  CHECK_OK(rig_alloc(&r, (uint64_t)12 * MIB, r.streams[0], &base));
  CHECK_EQ(flood(&r), (uint64_t)N_SMALL * SMALL);
  keep_small(&r, N_BLOCKS);
  CHECK(rig_stats(&r).cached_bytes > rig_stats(&r).used_peak_bytes / 16);
  CHECK_OK(rig_free(&r, &base, r.streams[0]));
  CHECK(r.heap->caches->is_beached);
  CHECK_EQ(r.heap->tide.job_peak, rig_stats(&r).used_peak_bytes);
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &block));
  CHECK_EQ(rig_stats(&r).cached_bytes, 0);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* The last large blocks of a stream: the youngest would stay with the cache if it went first. */
static void last_large(rig *r, uint64_t bytes, tarn_stream stream) {
  rig_block blocks[2];
  CHECK_OK(rig_alloc(r, bytes, stream, &blocks[0]));
  CHECK_OK(rig_alloc(r, (uint64_t)2 * MIB, stream, &blocks[1]));
  keep_small(r, N_SMALL);
  CHECK_OK(rig_free(r, &blocks[0], stream));
  CHECK_OK(rig_free(r, &blocks[1], stream));
}

/* What collecting has given is made again: large blocks pay for that first, job's end or not. */
static void pays_for_a_job(void) {
  rig r;
  rig_block block;
  REQUIRE(job_end(&r));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(r.heap->tide.job_price > 2);
  last_large(&r, (uint64_t)60 * MIB, r.streams[0]);
  CHECK(r.heap->caches->is_beached);
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &block));
  CHECK_EQ(rig_stats(&r).cached_bytes, (uint64_t)(N_SMALL - 1) * SMALL);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* How many small blocks a stream takes and gives until none of the caches is beached any more. */
static uint64_t slow_until_afloat(rig *r, tarn_stream stream) {
  uint64_t n = 0;
  for (bool is_beached = true; is_beached && n < (1 << 11); n += 2) {
    rig_block block;
    CHECK_OK(rig_alloc(r, SMALL, stream, &block));
    CHECK_OK(rig_free(r, &block, stream));
    is_beached = false;
    for (const tarni_cache *cache = r->heap->caches; cache != NULL; cache = cache->next_in_heap) {
      is_beached = is_beached || cache->is_beached;
    }
  }
  return n;
}

/* A block stays in use, so it is not all back: large blocks pay for two slow ones each. */
static void kept_beside_beached(void) {
  rig r;
  rig_block held;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  CHECK_OK(tarn_heap_reserve(r.heap, (uint64_t)400 * MIB));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &held));
  pay(&r);
  ebb(&r);
  const uint64_t n = slow_until_afloat(&r, r.streams[0]);
  CHECK(n > 2);
  CHECK(n <= (uint64_t)2 * (N_LARGE + 6) + 2);
  for (int i = 0; i < 4; i++) { /* a few large blocks hold it there for a few small ones */
    last_large(&r, (uint64_t)60 * MIB, r.streams[0]);
  }
  CHECK(slow_until_afloat(&r, r.streams[0]) <= 16 + 2);
  CHECK_OK(rig_free(&r, &held, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* What came from it goes to another cache: never all of it is back. */
static void freed_beside_beached(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  CHECK_OK(tarn_heap_reserve(r.heap, (uint64_t)400 * MIB));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  pay(&r);
  last_large(&r, (uint64_t)200 * MIB, r.streams[0]);
  const uint64_t n = slow_until_afloat(&r, r.streams[0]);
  CHECK(n > 2);
  CHECK(n <= (uint64_t)2 * (N_LARGE + 2) + 2);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Two caches are beached: neither goes the slow way for long, whichever comes last. */
static void two_are_beached(void) {
  rig r;
  rig_block held[2];
  REQUIRE(job_end(&r));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[1], &held[0])); /* so that it is not all back */
  last_large(&r, (uint64_t)2 * MIB, r.streams[1]);
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &held[1]));
  last_large(&r, (uint64_t)2 * MIB, r.streams[0]);
  const tarni_cache *one = r.heap->caches, *other = one->next_in_heap;
  CHECK(one->is_beached && other->is_beached);
  while (r.heap->tide.slow_left != 0) {
    keep_small(&r, 1);
  }
  CHECK_OK(rig_free(&r, &held[0], r.streams[1]));
  CHECK_OK(rig_free(&r, &held[1], r.streams[0]));
  CHECK(!one->is_beached && !other->is_beached);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A large block sets it afloat, and so does a reset, when all is back. */
static void afloat_again(void) {
  rig r;
  rig_block block;
  REQUIRE(job_end(&r));
  CHECK_OK(rig_alloc(&r, (uint64_t)40 * MIB, r.streams[0], &block));
  CHECK(!r.heap->caches->is_beached);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  last_large(&r, (uint64_t)60 * MIB, r.streams[0]);
  CHECK(r.heap->caches->is_beached);
  CHECK_OK(tarn_heap_reset(r.heap));
  CHECK(!r.heap->caches->is_beached);
  CHECK_EQ(atomic_load(&r.heap->caches->is_revoked), 0);
  keep_small(&r, 1);
  CHECK_EQ(rig_stats(&r).cached_bytes, SMALL);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* What large blocks pay for is saved up, but not for ever. */
static void saves_up_little(void) {
  rig r;
  rig_block held;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  CHECK_OK(tarn_heap_reserve(r.heap, (uint64_t)400 * MIB));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &held));
  for (int i = 0; i < 10; i++) {
    pay(&r);
  }
  ebb(&r);
  const uint64_t n = slow_until_afloat(&r, r.streams[0]);
  CHECK(n > (uint64_t)2 * N_LARGE);
  CHECK(n <= (1 << 10) + 2);
  CHECK_OK(rig_free(&r, &held, r.streams[0]));
  rig_close(&r);
}

/* Use rises, if only by another stream's blocks: then no job is about to begin. */
static void flood_sets_afloat(void) {
  rig r;
  rig_block large, block;
  REQUIRE(job_end(&r));
  CHECK_OK(rig_alloc(&r, (uint64_t)60 * MIB, r.streams[1], &large));
  CHECK(r.heap->caches->is_beached || r.heap->caches->next_in_heap->is_beached);
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &block));
  CHECK(!r.heap->caches->is_beached && !r.heap->caches->next_in_heap->is_beached);
  CHECK_EQ(rig_stats(&r).cached_bytes, (uint64_t)(N_SMALL - 1) * SMALL); /* a hit */
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(rig_free(&r, &large, r.streams[1]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* However little was collected at a job's end: the next one has a few large blocks at least. */
static void jobs_are_not_small(void) {
  rig r;
  rig_block blocks[2];
  REQUIRE(job_end(&r));
  const tarn_stream streams[2] = {r.streams[0], r.streams[0]};
  CHECK_OK(tarn_heap_trim(r.heap, (uint64_t)100 * MIB));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &blocks[0]));
  CHECK_EQ(r.heap->tide.job_blocks, 0);
  CHECK_EQ(r.heap->tide.price, 0);
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &blocks[1]));
  frees_small(&r, blocks, streams);
  last_large(&r, (uint64_t)60 * MIB, r.streams[0]);
  CHECK(r.heap->caches->is_beached);
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &blocks[0]));
  CHECK_EQ(rig_stats(&r).cached_bytes, (uint64_t)(N_SMALL - 1) * SMALL);
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  rig_close(&r);
}

/* Another thread comes to the stream: that keeps all owners out for a moment, and lets them in. */
static void *visit(void *rig_of) {
  rig *r = rig_of;
  keep_small(r, 1);
  return NULL;
}

static void beached_beside_others(void) {
  rig r;
  rig_block block;
  pthread_t thread;
  REQUIRE(job_end(&r));
  REQUIRE(pthread_create(&thread, NULL, visit, &r) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
  CHECK(r.heap->caches->is_beached); /* as before: its owner has not allocated */
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &block));
  CHECK_EQ(rig_stats(&r).cached_bytes, 0);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* It is emptied by others, another stream's is hit as ever, and a large block sets it afloat. */
static void beached_all_the_same(void) {
  rig r;
  rig_block blocks[2], large;
  REQUIRE(job_end(&r));
  const tarn_stream streams[2] = {r.streams[1], r.streams[1]};
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[1], &blocks[0]));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[1], &blocks[1]));
  frees_small(&r, blocks, streams);
  CHECK_OK(tarn_heap_trim(r.heap, (uint64_t)100 * MIB));
  CHECK_EQ(rig_stats(&r).cached_bytes, 0);
  CHECK_OK(rig_alloc(&r, (uint64_t)30 * MIB, r.streams[0], &large));
  keep_small(&r, 1);
  CHECK_EQ(rig_stats(&r).cached_bytes, SMALL);
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* The stream of a beached cache goes: what comes then is another cache's. */
static void retired_beached(void) {
  rig r;
  rig_block block;
  REQUIRE(job_end(&r));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(rig_alloc(&r, SMALL, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void leaves_small_heaps_alone(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  for (int round = 0; round < 4; round++) {
    rig_block block;
    keep_small(&r, N_SMALL);
    CHECK_OK(rig_alloc(&r, (uint64_t)(16 - round) * MIB, r.streams[0], &block));
    CHECK_EQ(rig_stats(&r).cached_bytes, (uint64_t)N_SMALL * SMALL);
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
  }
  CHECK(rig_stats(&r).reserved_bytes <= (uint64_t)32 * MIB);
  rig_close(&r);
}

/* Rounds of one large block and many slabs: making those again must stay rare. */
static void costs_little(void) {
  enum { N_ROUNDS = 100, N_SLABS = 40 };
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  int n_collected = 0;
  for (int round = 0; round < N_ROUNDS; round++) {
    rig_block block;
    CHECK_OK(rig_alloc(&r, (uint64_t)(100 + round % 2) * MIB, r.streams[0], &block));
    n_collected += round != 0 && rig_stats(&r).cached_bytes == 0;
    keep_small(&r, N_SLABS);
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
  }
  CHECK(n_collected >= 2);
  CHECK(n_collected <= 1 + N_ROUNDS / (N_SLABS / 2));
  rig_close(&r);
}

/* Small blocks, of which one in each slab stays: collecting looks at all the others in vain.
 * *n_collected: how often it did in so many rounds of a large block. */
static void collect_in_vain(int n_small, int n_rounds, int *n_collected) {
  rig r;
  *n_collected = 0;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  static tarn_ptr blocks[MOST_SMALL];
  REQUIRE(n_small <= MOST_SMALL);
  for (int i = 0; i < n_small; i++) {
    CHECK_OK(tarn_alloc(r.heap, 256, r.streams[0], &blocks[i]));
  }
  for (int i = 0; i < n_small; i++) {
    if (i % 256 != 0) {
      CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
    }
  }
  for (int round = 0; round < n_rounds; round++) {
    tarn_ptr block;
    CHECK_OK(tarn_alloc(r.heap, (uint64_t)(65 + round % 2) * MIB, r.streams[0], &block));
    *n_collected += r.heap->tide.n_blocks == 0;
    CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  }
  for (int i = 0; i < n_small; i += 256) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_reset(r.heap)); /* and it knows no more of any tide */
  CHECK_EQ(r.heap->tide.turn, 0);
  CHECK_EQ(r.heap->tide.n_blocks, 0);
  rig_close(&r);
}

static void looks_at_little(void) {
  int n;
  collect_in_vain(500, 100, &n);
  CHECK(n > 50);
  collect_in_vain(4000, 220, &n); /* a large block for each 32 beyond 512 */
  CHECK(n >= 1);
  CHECK(n <= 1 + 220 / ((4000 - 4000 / 256 - 512) / 32));
  collect_in_vain(MOST_SMALL, 100, &n);
  CHECK_EQ(n, 0);
}

/* A round of a program whose base stays: blocks of all sizes, the same ones in every round. */
static void run_round(rig *r, uint64_t seed) {
  tarni_rng rng = {seed};
  rig_block blocks[N_BLOCKS] = {{0}};
  uint64_t sum = 0;
  for (int step = 0; step < 1500; step++) {
    rig_block *block = &blocks[tarni_rng_below(&rng, N_BLOCKS)];
    const bool is_large = tarni_rng_below(&rng, 3) == 0;
    const uint64_t bytes = is_large ? (1 + tarni_rng_below(&rng, 60)) * (MIB / 4) * 5
                                    : (1 + tarni_rng_below(&rng, 200)) * 4096;
    if (block->address != 0) {
      sum -= block->bytes;
      CHECK_OK(rig_free(r, block, r->streams[0]));
    } else if (sum + bytes <= (uint64_t)400 * MIB) {
      CHECK_OK(rig_alloc(r, bytes, r->streams[0], block));
      sum += block->bytes;
    }
  }
  for (int i = 0; i < N_BLOCKS; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
    }
  }
}

static void rounds_without_calls(void) {
  uint64_t n_first = 0, n_fourth = 0;
  for (uint64_t seed = 1; seed <= 32; seed++) {
    rig r;
    REQUIRE(rig_open(&r, "sim:2G", NULL, 1));
    rig_block base;
    CHECK_OK(rig_alloc(&r, (uint64_t)90 * MIB, r.streams[0], &base));
    for (int round = 0; round < 4; round++) {
      const uint64_t calls = rig_calls(&r);
      run_round(&r, seed);
      n_first += round == 0 ? rig_calls(&r) - calls : 0;
      n_fourth += round == 3 ? rig_calls(&r) - calls : 0;
    }
    CHECK(rig_is_sound(&r));
    CHECK_OK(rig_free(&r, &base, r.streams[0]));
    rig_close(&r);
  }
  CHECK(n_fourth * 3 <= n_first); /* without tides it is more */
}

static const test_case cases[] = {
    {"at low water what caches keep is collected", collects_at_low_water},
    {"and again where next to nothing is used any more", collects_on_the_ground},
    {"before the small blocks that a job begins with, too", collects_before_a_job},
    {"what caches keep is not used", keeps_more_than_a_wave},
    {"large blocks pay for a job's end", pays_for_a_job},
    {"a block that stays in use holds a cache for no longer than is paid for", kept_beside_beached},
    {"nor does one that is freed on another stream", freed_beside_beached},
    {"what large blocks pay for is saved up, but not for ever", saves_up_little},
    {"a flood sets a cache afloat", flood_sets_afloat},
    {"a job has a few large blocks", jobs_are_not_small},
    {"two caches are beached", two_are_beached},
    {"a large block sets a cache afloat, and a reset", afloat_again},
    {"a beached cache stays so beside others", beached_beside_others},
    {"a beached cache is emptied by others", beached_all_the_same},
    {"the stream of a beached cache is retired", retired_beached},
    {"a small heap is left alone", leaves_small_heaps_alone},
    {"collecting stays rare where it costs more than what it is for", costs_little},
    {"few blocks are looked at in vain", looks_at_little},
    {"the fourth round of a program makes few driver calls", rounds_without_calls},
};

TEST_MAIN(cases)
