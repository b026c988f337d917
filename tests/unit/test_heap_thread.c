/* SPDX-License-Identifier: MIT
 *
 * Threads and the heap: what a thread keeps goes to others when it ends or when they are short, a
 * block may be freed by another thread, and heaps may go before threads do. */
#include <pthread.h>
#include <semaphore.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MAX_BLOCKS = 64 };

typedef struct hands {
  rig *rig;
  sem_t go, done;
  rig_block blocks[MAX_BLOCKS];
  int n_blocks;
  tarn_heap *second;
} hands;

static bool hands_open(hands *h, rig *r) {
  *h = (hands){.rig = r};
  return CHECK_EQ(sem_init(&h->go, 0, 0), 0) && CHECK_EQ(sem_init(&h->done, 0, 0), 0);
}

static void hands_close(hands *h) {
  CHECK_EQ(sem_destroy(&h->go), 0);
  CHECK_EQ(sem_destroy(&h->done), 0);
}

/* Fills the thread's cache with small and large blocks. */
static void fill_cache(rig *r) {
  rig_block blocks[12];
  for (int i = 0; i < 12; i++) {
    CHECK_OK(rig_alloc(r, i < 8 ? 60 * KIB : 3 * MIB, r->streams[0], &blocks[i]));
  }
  for (int i = 0; i < 12; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
}

static void *fill_and_end(void *user) {
  fill_cache(((hands *)user)->rig);
  return NULL;
}

static void *fill_and_wait(void *user) {
  hands *h = user;
  fill_cache(h->rig);
  CHECK_EQ(sem_post(&h->done), 0);
  CHECK_EQ(sem_wait(&h->go), 0);
  rig_block block; /* and goes on as if nothing had happened */
  CHECK_OK(rig_alloc(h->rig, 60 * KIB, h->rig->streams[0], &block));
  CHECK_OK(rig_free(h->rig, &block, h->rig->streams[0]));
  return NULL;
}

static uint64_t n_caches(const tarn_heap *heap) {
  uint64_t n = 0;
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    n++;
  }
  return n;
}

/* Another thread on the same stream gets what the thread kept, with no driver call. */
static void thread_that_ends(void) {
  rig r;
  hands h;
  rig_block blocks[4];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  REQUIRE(hands_open(&h, &r));
  CHECK_OK(rig_alloc(&r, 256, r.streams[0], &blocks[0])); /* this thread has its cache, too */
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, fill_and_end, &h) == 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(n_caches(r.heap), 1);
  }
  const uint64_t calls = rig_calls(&r), held = rig_stats(&r).reserved_bytes;
  CHECK_EQ(held, 14 * MIB); /* one thread's, not twenty's */
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &blocks[i]));
  }
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_EQ(rig_stats(&r).reserved_bytes, held);
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK(rig_is_sound(&r));
  hands_close(&h);
  rig_close(&r);
}

/* A thread that is idle but alive does not keep its memory from others that are short. */
static void idle_thread(void) {
  static const tarn_stealing all[] = {TARN_STEAL_WHEN_SHORT, TARN_STEAL_ALWAYS, TARN_STEAL_NEVER};
  for (int i = 0; i < 3; i++) {
    const tarn_heap_config config = {
        .size = sizeof(config), .limit_bytes = 16 * MIB, .stealing = all[i]};
    rig r;
    hands h;
    rig_block block;
    pthread_t thread;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
    REQUIRE(hands_open(&h, &r));
    REQUIRE(pthread_create(&thread, NULL, fill_and_wait, &h) == 0);
    CHECK_EQ(sem_wait(&h.done), 0);
    CHECK(rig_stats(&r).cached_bytes > 0);
    CHECK_OK(rig_alloc(&r, 14 * MIB, r.streams[1], &block)); /* on another stream */
    CHECK_OK(rig_free(&r, &block, r.streams[1]));
    CHECK_OK(rig_alloc(&r, 14 * MIB, r.streams[0], &block)); /* on the thread's */
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK(rig_is_sound(&r));
    CHECK_EQ(sem_post(&h.go), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    hands_close(&h);
    rig_close(&r);
  }
}

static void *free_all(void *user) {
  hands *h = user;
  for (int i = 0; i < h->n_blocks; i++) {
    CHECK_OK(rig_free(h->rig, &h->blocks[i], h->rig->streams[0]));
  }
  return NULL;
}

/* Made by one thread, freed by another: producer and consumer, and nothing piles up. */
static void freed_by_another_thread(void) {
  rig r;
  hands h;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  REQUIRE(hands_open(&h, &r));
  uint64_t held = 0;
  for (int round = 0; round < 30; round++) {
    for (h.n_blocks = 0; h.n_blocks < MAX_BLOCKS; h.n_blocks++) {
      const uint64_t bytes = (uint64_t)(h.n_blocks % 16 + 1) * 5000;
      CHECK_OK(rig_alloc(&r, bytes, r.streams[0], &h.blocks[h.n_blocks]));
    }
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, free_all, &h) == 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    held = round == 2 ? rig_stats(&r).reserved_bytes : held;
  }
  CHECK_EQ(rig_stats(&r).live_bytes, 0);
  CHECK_EQ(rig_stats(&r).reserved_bytes, held);
  CHECK(rig_is_sound(&r));
  hands_close(&h);
  rig_close(&r);
}

static void *outlive(void *user) {
  hands *h = user;
  fill_cache(h->rig);
  CHECK_EQ(sem_post(&h->done), 0);
  CHECK_EQ(sem_wait(&h->go), 0); /* now the heap is gone */
  tarn_ptr block = 1;
  CHECK_STATUS(tarn_alloc(NULL, 256, NULL, &block), TARN_INVALID);
  CHECK_OK(tarn_alloc(h->second, 256, NULL, &block)); /* at the old heap's address, perhaps */
  CHECK_OK(tarn_free(h->second, block, NULL));
  return NULL;
}

static void thread_that_outlives_its_heap(void) {
  for (int i = 0; i < 10; i++) {
    rig r;
    hands h;
    pthread_t thread;
    REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
    REQUIRE(hands_open(&h, &r));
    REQUIRE(pthread_create(&thread, NULL, outlive, &h) == 0);
    CHECK_EQ(sem_wait(&h.done), 0);
    rig_close(&r);
    REQUIRE(rig_open(&r, "sim:64M", NULL, 0));
    h.second = r.heap;
    CHECK_EQ(sem_post(&h.go), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(rig_is_sound(&r));
    hands_close(&h);
    rig_close(&r);
  }
}

/* Caches of retired streams do not pile up in a thread that lives long. */
static void caches_of_retired_streams(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 0));
  for (int i = 0; i < 200; i++) {
    tarn_stream stream;
    rig_block block;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    CHECK_OK(rig_alloc(&r, 700, stream, &block));
    CHECK_OK(rig_free(&r, &block, stream));
    CHECK_OK(tarn_stream_retire(r.heap, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    CHECK(n_caches(r.heap) <= 2);
  }
  CHECK_EQ(rig_stats(&r).allocations, 200);
  CHECK_EQ(rig_stats(&r).frees, 200);
  rig_close(&r);
}

/* ---- Revoking ---- */

typedef struct race {
  rig *rig;
  atomic_bool is_over;
  int number;
} race;

static void *hit_all_the_time(void *user) {
  race *at = user;
  tarn_stream stream = at->rig->streams[at->number % 2];
  uint64_t n_failed = 0;
  while (!atomic_load_explicit(&at->is_over, memory_order_relaxed)) {
    for (int i = 0; i < 100; i++) {
      tarn_ptr small = 0, large = 0;
      n_failed += tarn_alloc(at->rig->heap, 1000, stream, &small) != TARN_OK;
      n_failed += tarn_alloc(at->rig->heap, 2 * MIB, stream, &large) != TARN_OK;
      n_failed += tarn_free(at->rig->heap, small, stream) != TARN_OK;
      n_failed += tarn_free(at->rig->heap, large, stream) != TARN_OK;
    }
  }
  CHECK_EQ(n_failed, 0);
  return NULL;
}

/* Owners that never rest, and others that reach into their caches again and again. */
static void revoked_again_and_again(void) {
  enum { N = 3 };
  rig r;
  race races[N];
  pthread_t threads[N];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
  for (int i = 0; i < N; i++) {
    races[i] = (race){.rig = &r, .number = i};
    REQUIRE(pthread_create(&threads[i], NULL, hit_all_the_time, &races[i]) == 0);
  }
  for (int i = 0; i < 300; i++) {
    tarn_heap_stats stats = {.size = sizeof(stats)};
    CHECK_OK(i % 3 == 0 ? tarn_heap_trim(r.heap, 0) : tarn_heap_get_stats(r.heap, &stats));
  }
  for (int i = 0; i < N; i++) {
    atomic_store(&races[i].is_over, true);
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK(rig_is_sound(&r));
  CHECK_EQ(rig_stats(&r).live_bytes, 0);
  rig_close(&r);
}

/* ---- A thread that goes while the heap goes ---- */

typedef struct leaver {
  rig rig;
  pthread_barrier_t turn;
} leaver;

/* Leaves a large block in its cache. */
static void *keep_and_leave(void *user) {
  leaver *l = user;
  rig_block first, second;
  CHECK_OK(rig_alloc(&l->rig, 64 << 20, l->rig.streams[0], &first));
  CHECK_OK(rig_alloc(&l->rig, 4 << 20, l->rig.streams[0], &second));
  CHECK_OK(rig_free(&l->rig, &first, l->rig.streams[0]));
  CHECK_OK(rig_free(&l->rig, &second, l->rig.streams[0]));
  CHECK_OK(rig_alloc(&l->rig, 4 << 20, l->rig.streams[0], &second));
  CHECK_OK(rig_free(&l->rig, &second, l->rig.streams[0]));
  (void)pthread_barrier_wait(&l->turn);
  (void)pthread_barrier_wait(&l->turn);
  return NULL;
}

/* Half of the heap has gone when a thread exits that kept blocks of it. */
static void exits_while_the_heap_goes(void) {
  static leaver l;
  pthread_t thread;
  REQUIRE(rig_open(&l.rig, "sim:256M", NULL, 1));
  REQUIRE(pthread_barrier_init(&l.turn, NULL, 2) == 0);
  REQUIRE(pthread_create(&thread, NULL, keep_and_leave, &l) == 0);
  (void)pthread_barrier_wait(&l.turn);
  CHECK_OK(tarn_sim_fail(l.rig.device, TARN_CALL_UNRESERVE, 1, 1, 999));
  CHECK(tarn_heap_destroy(l.rig.heap, NULL) != TARN_OK);
  (void)pthread_barrier_wait(&l.turn);
  CHECK(pthread_join(thread, NULL) == 0);
  (void)pthread_barrier_destroy(&l.turn);
  rig_close(&l.rig); /* the second time it goes */
}

static const test_case cases[] = {
    {"exits while the heap goes", exits_while_the_heap_goes},
    {"a thread that ends", thread_that_ends},
    {"a thread that is idle", idle_thread},
    {"freed by another thread", freed_by_another_thread},
    {"a thread that outlives its heap", thread_that_outlives_its_heap},
    {"caches of retired streams", caches_of_retired_streams},
    {"caches revoked again and again", revoked_again_and_again},
};

TEST_MAIN(cases)
