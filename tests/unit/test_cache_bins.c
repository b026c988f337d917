/* SPDX-License-Identifier: MIT
 *
 * Bins of caches: what a thread's stacks have no room for stays with it as long as it is the only
 * one that uses the stream, is shared when another comes, and is nobody's loss. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, BIG = 500 << 10, N_BIG = 61 }; /* stacks have four of these */

typedef struct party {
  rig r;
  tarn_stream stream; /* that they share */
  rig_block own[N_BIG], others[N_BIG];
  sem_t has_come, may_go;
} party;

static party p;

static void bigs_get(rig_block *blocks, tarn_stream stream) {
  for (int i = 0; i < N_BIG; i++) {
    CHECK_OK(rig_alloc(&p.r, BIG, stream, &blocks[i]));
  }
}

static void bigs_put(rig_block *blocks, tarn_stream stream) {
  for (int i = 0; i < N_BIG; i++) {
    CHECK_OK(rig_free(&p.r, &blocks[i], stream));
  }
}

static bool party_open(const char *device, int n_streams) {
  p = (party){0};
  CHECK(sem_init(&p.has_come, 0, 0) == 0 && sem_init(&p.may_go, 0, 0) == 0);
  const bool is_open = rig_open(&p.r, device, NULL, n_streams);
  p.stream = p.r.streams[0];
  return is_open;
}

static void party_close(void) {
  CHECK(rig_is_sound(&p.r));
  rig_close(&p.r);
  CHECK(sem_destroy(&p.has_come) == 0 && sem_destroy(&p.may_go) == 0);
}

static tarni_cache *own_cache(void) {
  tarni_cache *cache = NULL;
  CHECK_OK(tarni_cache_find(p.r.heap, p.stream, &cache));
  return cache;
}

static void come(void *(*work)(void *), pthread_t *thread) {
  CHECK_EQ(pthread_create(thread, NULL, work, NULL), 0);
}

/* ---- What is shared ---- */

static void *get_and_put(void *user) {
  bigs_get(p.others, p.stream);
  bigs_put(p.others, p.stream);
  return user;
}

/* What a thread has freed, another that comes to use the stream has, with no memory more. */
static void shared_when_another_comes(void) {
  pthread_t thread;
  REQUIRE(party_open("sim:256M", 1));
  for (int i = 0; i < 2; i++) { /* and once the other is gone it is alone again */
    bigs_get(p.own, p.stream);
    bigs_put(p.own, p.stream);
    CHECK(tarni_cache_binned(own_cache()) >= (uint64_t)(N_BIG - 8) * BIG);
    CHECK(rig_is_sound(&p.r));
    const uint64_t used = rig_stats(&p.r).used_bytes;
    come(get_and_put, &thread);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(tarni_cache_binned(own_cache()), 0);
    CHECK(rig_stats(&p.r).used_bytes <= used + (uint64_t)4 * (BIG + BIG / 8)); /* but for a stack */
    CHECK(rig_is_sound(&p.r));
  }
  party_close();
}

static void *come_and_wait(void *user) {
  rig_block block;
  CHECK_OK(rig_alloc(&p.r, BIG, p.stream, &block));
  CHECK_OK(rig_free(&p.r, &block, p.stream));
  CHECK_EQ(sem_post(&p.has_come), 0);
  CHECK_EQ(sem_wait(&p.may_go), 0);
  return get_and_put(user);
}

/* So it is while both are there. */
static void shared_by_both(void) {
  pthread_t thread;
  REQUIRE(party_open("sim:256M", 1));
  bigs_get(p.own, p.stream);
  come(come_and_wait, &thread);
  CHECK_EQ(sem_wait(&p.has_come), 0);
  bigs_put(p.own, p.stream);
  CHECK_EQ(tarni_cache_binned(own_cache()), 0);
  CHECK(rig_is_sound(&p.r));
  const uint64_t used = rig_stats(&p.r).used_bytes;
  CHECK_EQ(sem_post(&p.may_go), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK(rig_stats(&p.r).used_peak_bytes <= used + (uint64_t)4 * (BIG + BIG / 8));
  party_close();
}

/* Threads that come and go while one works. */
static void beside_threads_that_come(void) {
  pthread_t thread;
  REQUIRE(party_open("sim:256M", 1));
  for (int i = 0; i < 40; i++) {
    come(get_and_put, &thread);
    bigs_get(p.own, p.stream);
    bigs_put(p.own, p.stream);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(rig_is_sound(&p.r));
    CHECK_EQ(atomic_load(&p.r.heap->lanes[own_cache()->lane].n_caches), 1);
  }
  CHECK(rig_stats(&p.r).reserved_peak_bytes <= 80 * MIB);
  party_close();
}

/* ---- What is not lost ---- */

/* What they give up when slabs are collected is still in the order of the stream. */
static void in_order(void) {
  REQUIRE(party_open("sim:1G,order=lazy", 2));
  bigs_get(p.own, p.stream);
  bigs_put(p.own, p.stream);
  tarni_cache *cache = own_cache();
  tarni_lock_acquire(&p.r.heap->lock);
  CHECK(tarni_cache_collect_locked(p.r.heap, cache, true) >= N_BIG - 4);
  tarni_lock_release(&p.r.heap->lock);
  bigs_get(p.others, p.r.streams[1]);
  bigs_put(p.others, p.r.streams[1]);
  party_close();
}

/* Puts the blocks of a bin together with those of the lane, be these fewer or more. */
static void joined(uint32_t n_own, uint32_t n_lane) {
  REQUIRE(party_open("sim:256M", 1));
  bigs_get(p.own, p.stream);
  tarn_heap *heap = p.r.heap;
  tarni_cache *cache = own_cache();
  const uint32_t class_index = tarni_class_of(BIG);
  const tarni_bin *bin = &heap->lanes[cache->lane].bins[class_index];
  for (uint32_t i = 0; i < n_own + n_lane; i++) {
    if (i == n_lane) { /* these were freed where others could take them */
      tarni_lock_acquire(&heap->lock);
      tarni_cache_empty_locked(heap, cache);
      CHECK_EQ(bin->n, n_lane);
      tarni_lock_release(&heap->lock);
    }
    CHECK_OK(rig_free(&p.r, &p.own[i], p.stream));
  }
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_locked(heap, cache);
  CHECK_EQ(bin->n, n_own + n_lane);
  CHECK_EQ(tarni_cache_binned(cache), 0);
  tarni_lock_release(&heap->lock);
  CHECK(rig_is_sound(&p.r)); /* each is there once */
  for (uint32_t i = n_own + n_lane; i < N_BIG; i++) {
    CHECK_OK(rig_free(&p.r, &p.own[i], p.stream));
  }
  party_close();
}

static void joined_with_the_lanes(void) {
  joined(40, 8);
  joined(8, 40);
  joined(20, 20);
  joined(50, 0);
  joined(0, 50);
}

static void *use_stream(void *user) {
  tarn_ptr block = 0;
  CHECK_OK(tarn_alloc(p.r.heap, 1000, p.stream, &block));
  CHECK_OK(tarn_free(p.r.heap, block, p.stream));
  return user;
}

enum { MOST_STREAMS = 64 };

/* A stream that will be lost, with so much that was freed on it, and perhaps one that keeps as much
 * and stays. */
static bool lost_open(bool has_other) {
  if (!party_open("sim:4G", 1) || !CHECK_OK(tarn_stream_create(p.r.device, &p.stream))) {
    return false;
  }
  if (has_other) {
    bigs_get(p.others, p.r.streams[0]);
    bigs_put(p.others, p.r.streams[0]);
  }
  bigs_get(p.own, p.stream);
  bigs_put(p.own, p.stream);
  return true;
}

/* The stream goes, and its handle comes again, in another thread. Returns how many were made. */
static int stream_lose(tarn_stream again[MOST_STREAMS]) {
  pthread_t thread;
  int n = 0;
  CHECK_OK(tarn_stream_destroy(p.r.device, p.stream));
  do {
    CHECK_OK(tarn_stream_create(p.r.device, &again[n]));
  } while (again[n++] != p.stream && n < MOST_STREAMS);
  CHECK(again[n - 1] == p.stream);
  come(use_stream, &thread);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  return n;
}

static void lost_close(const tarn_stream *again, int n) {
  CHECK(rig_is_sound(&p.r));
  for (int i = 0; i < n; i++) {
    CHECK_OK(tarn_stream_retire(p.r.heap, again[i]));
    CHECK_OK(tarn_stream_destroy(p.r.device, again[i]));
  }
  party_close();
}

/* What waits for a stream that is gone is counted, and what is live is not. */
static void counted_where_lost(void) {
  tarn_stream again[MOST_STREAMS];
  REQUIRE(lost_open(true));
  int n = stream_lose(again);
  const uint64_t bytes = rig_stats(&p.r).quarantined_bytes;
  CHECK(bytes >= (uint64_t)(N_BIG - 8) * BIG && bytes <= (uint64_t)N_BIG * BIG / 8 * 9);
  lost_close(again, n);
  REQUIRE(lost_open(true));
  bigs_get(p.own, p.stream);
  n = stream_lose(again);
  CHECK_EQ(rig_stats(&p.r).quarantined_bytes, 0);
  bigs_put(p.own, p.r.streams[0]);
  lost_close(again, n);
}

static atomic_bool is_read;

static void *read_often(void *user) {
  for (int i = 0; i < 40000; i++) {
    const tarn_heap_stats stats = rig_stats(&p.r);
    CHECK(stats.live_bytes + stats.quarantined_bytes <= stats.used_bytes);
  }
  atomic_store(&is_read, true);
  return user;
}

/* At one moment, while a thread goes on with the stream that is gone. */
static void counted_at_one_moment(void) {
  tarn_stream again[MOST_STREAMS];
  tarn_ptr blocks[N_BIG];
  pthread_t thread;
  REQUIRE(lost_open(false));
  const int n = stream_lose(again);
  atomic_store(&is_read, false);
  come(read_often, &thread);
  while (!atomic_load(&is_read)) {
    for (int i = 0; i < N_BIG; i++) {
      CHECK_OK(tarn_alloc(p.r.heap, BIG, p.stream, &blocks[i]));
    }
    for (int i = 0; i < N_BIG; i++) {
      CHECK_OK(tarn_free(p.r.heap, blocks[i], p.stream));
    }
  }
  CHECK_EQ(pthread_join(thread, NULL), 0);
  lost_close(again, n);
}

/* ---- What is used ---- */

/* Two sizes in turn: each makes a slab. */
static void make_slabs(void) {
  rig_block block;
  for (int i = 0; i < TARNI_PEAK_SLABS; i++) {
    CHECK_OK(rig_alloc(&p.r, (uint64_t)(3 + i % 2) * MIB, p.r.streams[1], &block));
    CHECK_OK(rig_free(&p.r, &block, p.r.streams[1]));
  }
}

static void *live_and_make(void *user) {
  bigs_get(p.others, p.r.streams[1]);
  make_slabs(); /* looked at while the other has nothing, too */
  CHECK_EQ(sem_post(&p.has_come), 0);
  CHECK_EQ(sem_wait(&p.may_go), 0);
  make_slabs();
  bigs_put(p.others, p.r.streams[1]);
  return user;
}

/* What a thread takes out of its bins raises what is used, and is seen though nobody is told, and
 * though the heap came to use more with what was in them. */
static void peak_is_seen(void) {
  pthread_t thread;
  REQUIRE(party_open("sim:4G", 2));
  bigs_get(p.own, p.stream);
  bigs_put(p.own, p.stream);
  come(live_and_make, &thread);
  CHECK_EQ(sem_wait(&p.has_come), 0);
  bigs_get(p.own, p.stream);
  tarni_lock_acquire(&p.r.heap->lock);
  p.r.heap->rest.peak_next = (uint64_t)4 * N_BIG * BIG;
  tarni_lock_release(&p.r.heap->lock);
  CHECK_EQ(sem_post(&p.may_go), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK(p.r.heap->rest.lean_peak >= (uint64_t)2 * N_BIG * BIG);
  CHECK(p.r.heap->rest.lean_peak <= (uint64_t)2 * N_BIG * BIG / 8 * 9 + 8 * MIB);
  CHECK(p.r.heap->rest.peak_next <= (uint64_t)4 * N_BIG * BIG);
  bigs_put(p.own, p.stream);
  party_close();
}

static const test_case cases[] = {
    {"shared when another comes", shared_when_another_comes},
    {"shared by both", shared_by_both},
    {"beside threads that come", beside_threads_that_come},
    {"in the order of the stream", in_order},
    {"joined with the lane's", joined_with_the_lanes},
    {"counted where the stream is lost", counted_where_lost},
    {"and at one moment", counted_at_one_moment},
    {"a peak of two threads is seen", peak_is_seen},
};

TEST_MAIN(cases)
