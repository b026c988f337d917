/* SPDX-License-Identifier: MIT
 *
 * Counters of the heap are exact after every step of a script, and are what the check finds. */
#include <pthread.h>
#include <stdatomic.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

typedef struct expectation {
  uint64_t live, blocks, cached, pending, free, allocations, frees, misses;
} expectation;

/* What is held is the sum of the four kinds. */
static void check_stats(const rig *r, const expectation *want, int line) {
  const tarn_heap_stats got = rig_stats(r);
  const uint64_t reserved = want->live + want->cached + want->pending + want->free;
  const bool is_right = got.live_bytes == want->live && got.live_blocks == want->blocks &&
                        got.cached_bytes == want->cached && got.pending_bytes == want->pending &&
                        got.free_bytes == want->free && got.reserved_bytes == reserved &&
                        got.allocations == want->allocations && got.frees == want->frees &&
                        got.misses == want->misses && got.quarantined_bytes == 0;
  if (!CHECK(is_right)) {
    test_note("line %d: live %llu in %llu, cached %llu, pending %llu, free %llu, held %llu; "
              "%llu allocations, %llu frees, %llu misses",
              line, (unsigned long long)got.live_bytes, (unsigned long long)got.live_blocks,
              (unsigned long long)got.cached_bytes, (unsigned long long)got.pending_bytes,
              (unsigned long long)got.free_bytes, (unsigned long long)got.reserved_bytes,
              (unsigned long long)got.allocations, (unsigned long long)got.frees,
              (unsigned long long)got.misses);
  }
  CHECK(rig_is_sound(r));
}

#define STATS(...) check_stats(&r, &(expectation){__VA_ARGS__}, __LINE__)

static void a_script(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
  rig_block a, b, c, d;
  STATS(.live = 0);
  /* A block of 1 KiB: a slab of 64 KiB in a chunk of 2 MiB. */
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &a));
  STATS(.live = KIB, .blocks = 1, .cached = 63 * KIB, .free = 2 * MIB - 64 * KIB, .allocations = 1,
        .misses = 1);
  CHECK_OK(rig_alloc(&r, 1024, r.streams[0], &b)); /* a hit */
  STATS(.live = 2 * KIB, .blocks = 2, .cached = 62 * KIB, .free = 2 * MIB - 64 * KIB,
        .allocations = 2, .misses = 1);
  CHECK_OK(rig_free(&r, &a, r.streams[0]));
  STATS(.live = KIB, .blocks = 1, .cached = 63 * KIB, .free = 2 * MIB - 64 * KIB, .allocations = 2,
        .frees = 1, .misses = 1);
  /* A large block of 3 MiB: two chunks, of which a mebibyte is left over. */
  CHECK_OK(rig_alloc(&r, 3 * MIB - 5, r.streams[0], &c));
  STATS(.live = 3 * MIB + KIB, .blocks = 2, .cached = 63 * KIB, .free = 2 * MIB - 64 * KIB + MIB,
        .allocations = 3, .frees = 1, .misses = 2);
  CHECK_OK(rig_free(&r, &c, r.streams[0]));
  STATS(.live = KIB, .blocks = 1, .cached = 3 * MIB + 63 * KIB, .free = 2 * MIB - 64 * KIB + MIB,
        .allocations = 3, .frees = 2, .misses = 2);
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &c)); /* a hit of the same size */
  STATS(.live = 3 * MIB + KIB, .blocks = 2, .cached = 63 * KIB, .free = 2 * MIB - 64 * KIB + MIB,
        .allocations = 4, .frees = 2, .misses = 2);
  /* Used by another stream, then freed: pending until that stream is done. */
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarn_use(r.heap, c.address, r.streams[1]));
  rig_touch(&r, &c, r.streams[1], false);
  STATS(.live = 3 * MIB + KIB, .blocks = 2, .cached = 63 * KIB, .free = 2 * MIB - 64 * KIB + MIB,
        .allocations = 4, .frees = 2, .misses = 2);
  CHECK_OK(rig_free(&r, &c, r.streams[0]));
  STATS(.live = KIB, .blocks = 1, .cached = 63 * KIB, .pending = 3 * MIB,
        .free = 2 * MIB - 64 * KIB + MIB, .allocations = 4, .frees = 3, .misses = 2);
  /* A class that is used up is filled anew: one miss for many. */
  CHECK_OK(rig_alloc(&r, 100 * KIB, r.streams[0], &d));
  STATS(.live = KIB + 104 * KIB, .blocks = 2, .cached = 63 * KIB + 8 * KIB, .pending = 3 * MIB,
        .free = 2 * MIB - 64 * KIB - 112 * KIB + MIB, .allocations = 5, .frees = 3, .misses = 3);
  /* Trimming waits for what is pending, and leaves what is live. */
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  STATS(.live = KIB + 104 * KIB, .blocks = 2, .cached = 63 * KIB + 8 * KIB,
        .free = 2 * MIB - 64 * KIB - 112 * KIB, .allocations = 5, .frees = 3, .misses = 3);
  CHECK_OK(rig_free(&r, &b, r.streams[0]));
  CHECK_OK(rig_free(&r, &d, r.streams[0]));
  STATS(.live = 0, .cached = 64 * KIB + 112 * KIB, .free = 2 * MIB - 64 * KIB - 112 * KIB,
        .allocations = 5, .frees = 5, .misses = 3);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  STATS(.allocations = 5, .frees = 5, .misses = 3);
  CHECK_EQ(rig_stats(&r).reserved_peak_bytes, 6 * MIB);
  rig_close(&r);
}

/* What wrong calls are told about is not counted. */
static void failures_do_not_count(void) {
  rig r;
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 4 * MIB};
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  rig_block block, none;
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &block));
  CHECK_STATUS(rig_alloc(&r, 3 * MIB, r.streams[0], &none), TARN_LIMIT);
  CHECK_STATUS(rig_alloc(&r, 30 * MIB, r.streams[0], &none), TARN_LIMIT);
  CHECK_STATUS(tarn_free(r.heap, block.address + 256, r.streams[0]), TARN_INTERIOR);
  CHECK_STATUS(tarn_free_sized(r.heap, block.address, 5, r.streams[0]), TARN_WRONG_SIZE);
  STATS(.live = 2 * MIB, .blocks = 1, .allocations = 1, .misses = 1);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

static void *pairs(void *user) {
  rig *r = user;
  for (int i = 0; i < 1000; i++) {
    tarn_ptr block = 0;
    CHECK_OK(tarn_alloc(r->heap, (uint64_t)(i % 7 + 1) * 1000, r->streams[0], &block));
    CHECK_OK(tarn_free(r->heap, block, r->streams[0]));
  }
  tarn_ptr kept;
  CHECK_OK(tarn_alloc(r->heap, 2 * MIB, r->streams[0], &kept));
  return NULL;
}

/* The counts of threads that are gone stay. */
static void threads_that_are_gone(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  for (int i = 0; i < 3; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, pairs, &r) == 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
  }
  const tarn_heap_stats stats = rig_stats(&r);
  CHECK_EQ(stats.allocations, 3003);
  CHECK_EQ(stats.frees, 3000);
  CHECK_EQ(stats.live_blocks, 3);
  CHECK_EQ(stats.live_bytes, 6 * MIB);
  CHECK(rig_is_sound(&r));
  rig_close_live(&r, 3);
}

typedef struct readers {
  rig *rig;
  atomic_int n_done;
} readers;

static void *work(void *user) {
  readers *shared = user;
  for (int i = 0; i < 50000; i++) {
    tarn_ptr blocks[4] = {0};
    for (int j = 0; j < 4; j++) {
      CHECK_OK(tarn_alloc(shared->rig->heap, (uint64_t)(j + 1) * 3000, shared->rig->streams[0],
                          &blocks[j]));
    }
    for (int j = 0; j < 4; j++) {
      CHECK_OK(tarn_free(shared->rig->heap, blocks[j], shared->rig->streams[0]));
    }
  }
  atomic_fetch_add(&shared->n_done, 1);
  return NULL;
}

/* Read while others work, no counter is nonsense: none is more than the heap holds. */
static void read_while_others_work(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  readers shared = {.rig = &r};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, work, &shared) == 0);
  }
  uint64_t n_wrong = 0, n_reads = 0, last = 0;
  while (atomic_load(&shared.n_done) < 2) {
    const tarn_heap_stats stats = rig_stats(&r);
    n_reads++;
    n_wrong += stats.live_bytes > stats.reserved_bytes || stats.live_blocks > 8 ||
               stats.cached_bytes > stats.reserved_bytes || stats.allocations < last ||
               stats.frees > stats.allocations;
    last = stats.allocations;
  }
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK(n_reads > 0);
  CHECK_EQ(n_wrong, 0);
  CHECK_EQ(rig_stats(&r).live_bytes, 0);
  rig_close(&r);
}

static struct {
  tarni_port_table table;
  const tarni_port_table *real;
  rig *rig;
  tarn_ptr block; /* freed when a stream is made to wait */
  tarn_heap_stats stats;
} meddler;

static tarn_status meddled_wait(tarni_port *port, tarn_stream stream, tarni_event event) {
  if (meddler.block != 0) {
    CHECK_OK(tarn_free(meddler.rig->heap, meddler.block, meddler.rig->streams[0]));
    meddler.block = 0;
    meddler.stats = rig_stats(meddler.rig);
  }
  return meddler.real->event_wait(port, stream, event);
}

/* Heaps whose blocks are the driver's own. A block on its way from one stream to another is not
 * among those that are kept: others take its room meanwhile, and no more is told than the limit
 * lets be kept. */
static void told_at_any_time(void) {
  static const tarn_backing backings[] = {TARN_BACKING_PLAIN, TARN_BACKING_POOL, TARN_BACKING_VMM};
  for (size_t i = 0; i < sizeof(backings) / sizeof(backings[0]) && !test_case_failed(); i++) {
    const tarn_heap_config config = {.size = sizeof(config),
                                     .backing = backings[i],
                                     .rounding = TARN_ROUNDING_EXACT,
                                     .stealing = TARN_STEAL_ALWAYS,
                                     .cached_limit_bytes = 8 * MIB};
    rig r;
    rig_block a, b;
    tarn_ptr c;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
    tarni_port *port = (tarni_port *)r.device;
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &a));
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &b));
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &meddler.block));
    CHECK_OK(rig_free(&r, &a, r.streams[0]));
    CHECK_OK(rig_free(&r, &b, r.streams[0]));
    meddler.rig = &r;
    meddler.real = port->table;
    meddler.table = *port->table;
    meddler.table.event_wait = meddled_wait;
    port->table = &meddler.table;
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[1], &c));
    port->table = meddler.real;
    const tarn_heap_stats *told = &meddler.stats;
    CHECK_EQ(meddler.block, 0);
    CHECK_EQ(told->cached_bytes, 8 * MIB);
    CHECK_EQ(told->pending_bytes, 4 * MIB);
    CHECK_EQ(told->live_bytes + told->cached_bytes + told->pending_bytes + told->free_bytes,
             told->reserved_bytes);
    CHECK_OK(tarn_free(r.heap, c, r.streams[1]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static const test_case cases[] = {
    {"a script", a_script},
    {"failures do not count", failures_do_not_count},
    {"threads that are gone", threads_that_are_gone},
    {"read while others work", read_while_others_work},
    {"what is kept is told at any time", told_at_any_time},
};

TEST_MAIN(cases)
