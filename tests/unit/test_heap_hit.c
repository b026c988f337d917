/* SPDX-License-Identifier: MIT
 *
 * The hit: once it is warm, a pair of an allocation and a free makes no driver call and is served
 * by the thread's own cache, for every class of sizes. TARN_TEST_OPERATIONS changes how many pairs
 * there are of each. */
#include <pthread.h>
#include <stdlib.h>

#include "algo/sizeclass.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, N_THREADS = 4 };

static uint64_t n_pairs(uint64_t n) {
  const char *text = getenv("TARN_TEST_OPERATIONS");
  return text != NULL ? strtoull(text, NULL, 10) : n;
}

static uint64_t run_pairs(tarn_heap *heap, uint64_t bytes, tarn_stream stream, uint64_t n) {
  uint64_t n_failed = 0;
  tarn_ptr block;
  for (uint64_t i = 0; i < n; i++) {
    n_failed += tarn_alloc(heap, bytes, stream, &block) != TARN_OK;
    n_failed += tarn_free(heap, block, stream) != TARN_OK;
  }
  return n_failed;
}

/* Pairs of the size after one that warms it up. */
static void check_pairs(const rig *r, uint64_t bytes, uint64_t n) {
  CHECK_EQ(run_pairs(r->heap, bytes, r->streams[0], 1), 0);
  const uint64_t calls = rig_calls(r);
  const tarn_heap_stats before = rig_stats(r);
  CHECK_EQ(run_pairs(r->heap, bytes, r->streams[0], n), 0);
  const tarn_heap_stats after = rig_stats(r);
  CHECK_EQ(rig_calls(r), calls);
  CHECK_EQ(after.misses, before.misses);
  CHECK_EQ(after.allocations - before.allocations, n);
  CHECK_EQ(after.frees - before.frees, n);
  CHECK_EQ(after.reserved_bytes, before.reserved_bytes);
}

static void every_class(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    check_pairs(&r, tarni_class_size(i), n_pairs(100000));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void large_blocks(void) {
  static const uint64_t sizes[] = {MIB + 1, 2 * MIB, 5 * MIB, 32 * MIB, 64 * MIB};
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    check_pairs(&r, sizes[i], n_pairs(100000) / 10);
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Several of each at once, freed in another order than they came. */
static void several_live(void) {
  static const uint64_t sizes[] = {256, 3000, 17 << 10, 60 << 10, 500 << 10};
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_ptr blocks[5][4];
  uint64_t calls = 0, misses = 0;
  for (int round = 0; round < 2000; round++) {
    for (int i = 0; i < 20; i++) {
      CHECK_OK(tarn_alloc(r.heap, sizes[i % 5], r.streams[0], &blocks[i % 5][i / 5]));
    }
    for (int i = 0; i < 20; i++) {
      const int at = (i * 7 + round) % 20;
      CHECK_OK(tarn_free(r.heap, blocks[at % 5][at / 5], r.streams[0]));
    }
    if (round == 1) {
      calls = rig_calls(&r);
      misses = rig_stats(&r).misses;
    }
  }
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_EQ(rig_stats(&r).misses, misses);
  rig_close(&r);
}

/* More large blocks than a cache keeps: misses, but in the end no driver call. */
static void several_large_live(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_ptr blocks[12];
  uint64_t calls = 0;
  for (int round = 0; round < 500; round++) {
    for (int i = 0; i < 12; i++) {
      CHECK_OK(tarn_alloc(r.heap, (uint64_t)(i % 4 + 1) * 3 * MIB, r.streams[0], &blocks[i]));
    }
    for (int i = 0; i < 12; i++) {
      CHECK_OK(tarn_free(r.heap, blocks[(i * 5 + round) % 12], r.streams[0]));
    }
    calls = round == 200 ? rig_calls(&r) : calls; /* the room that it takes is found by then */
  }
  CHECK_EQ(rig_calls(&r), calls);
  rig_close(&r);
}

/* A thread that goes from stream to stream is served by its caches, too. */
static void stream_after_stream(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 4));
  uint64_t calls = 0, misses = 0;
  for (int round = 0; round < 2000; round++) {
    for (int i = 0; i < 4; i++) {
      CHECK_EQ(run_pairs(r.heap, 5000, r.streams[i], 1), 0);
      CHECK_EQ(run_pairs(r.heap, 2 * MIB, r.streams[i], 1), 0);
    }
    if (round == 2) { /* a miss that looks through the thread's cache empties it */
      calls = rig_calls(&r);
      misses = rig_stats(&r).misses;
    }
  }
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_EQ(rig_stats(&r).misses, misses);
  rig_close(&r);
}

typedef struct worker {
  rig *rig;
  pthread_barrier_t *barrier;
  const bool *is_warm; /* written between two barriers */
  int number;
} worker;

static void *pairs_of_a_thread(void *user) {
  const worker *self = user;
  static const uint64_t sizes[] = {256, 4 << 10, 64 << 10, MIB, 2 * MIB};
  tarn_stream stream = self->rig->streams[self->number];
  do { /* a miss may empty the caches of others, so all warm up until nobody misses */
    (void)pthread_barrier_wait(self->barrier);
    for (int i = 0; i < 5; i++) {
      CHECK_EQ(run_pairs(self->rig->heap, sizes[i], stream, 1), 0);
    }
    (void)pthread_barrier_wait(self->barrier); /* looked at */
    (void)pthread_barrier_wait(self->barrier);
  } while (!*self->is_warm);
  for (int i = 0; i < 5; i++) {
    CHECK_EQ(run_pairs(self->rig->heap, sizes[i], stream, n_pairs(100000) / 5), 0);
  }
  (void)pthread_barrier_wait(self->barrier);
  (void)pthread_barrier_wait(self->barrier); /* a thread that ends gives back what it keeps */
  return NULL;
}

static void threads_with_their_streams(void) {
  rig r;
  pthread_barrier_t barrier;
  pthread_t threads[N_THREADS];
  worker workers[N_THREADS];
  bool is_warm = false;
  uint64_t calls = 0;
  REQUIRE(rig_open(&r, "sim:256M", NULL, N_THREADS));
  REQUIRE(pthread_barrier_init(&barrier, NULL, N_THREADS + 1) == 0);
  for (int i = 0; i < N_THREADS; i++) {
    workers[i] = (worker){.rig = &r, .barrier = &barrier, .is_warm = &is_warm, .number = i};
    REQUIRE(pthread_create(&threads[i], NULL, pairs_of_a_thread, &workers[i]) == 0);
  }
  uint64_t misses = rig_stats(&r).misses;
  for (int round = 0; !is_warm && round < 100; round++) {
    (void)pthread_barrier_wait(&barrier);
    (void)pthread_barrier_wait(&barrier);
    is_warm = rig_stats(&r).misses == misses || round == 99;
    misses = rig_stats(&r).misses;
    calls = rig_calls(&r);
    (void)pthread_barrier_wait(&barrier);
  }
  (void)pthread_barrier_wait(&barrier);
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_EQ(rig_stats(&r).misses, misses);
  (void)pthread_barrier_wait(&barrier);
  for (int i = 0; i < N_THREADS; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK_EQ(pthread_barrier_destroy(&barrier), 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static const test_case cases[] = {
    {"every class", every_class},
    {"large blocks", large_blocks},
    {"several live at once", several_live},
    {"several large ones live at once", several_large_live},
    {"a thread that goes from stream to stream", stream_after_stream},
    {"threads with their own streams", threads_with_their_streams},
};

TEST_MAIN(cases)
