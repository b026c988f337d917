/* SPDX-License-Identifier: MIT
 *
 * Streams that are retired while others are at work on them, or retire them, too: a call that has
 * found the stream's record before finds another one, and no block is lost or handed out early. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum {
  MIB = 1 << 20,
  N_MINE = 100,
  N_RETIRES = 40000,
  N_TWICE = 2000,
  N_STEPS = 60,
  MAX_SECONDS = 8
};

#define PER_THREAD ((tarn_stream)2)

/* ---- A thread that ends late ---- */

typedef struct late {
  rig r;
  pthread_key_t key;
  sem_t is_there, may_go;
  rig_block blocks[40];
} late;

/* The program's own end of a thread, when the thread has no name any more, but still its caches. */
static void late_end(void *user) {
  late *l = user;
  CHECK_EQ(sem_post(&l->is_there), 0);
  CHECK_EQ(sem_wait(&l->may_go), 0);
  for (int i = 0; i < 40; i++) {
    rig_touch(&l->r, &l->blocks[i], PER_THREAD, true);
    CHECK_OK(rig_free(&l->r, &l->blocks[i], PER_THREAD));
  }
}

static void *late_work(void *user) {
  late *l = user;
  for (int i = 0; i < 40; i++) {
    CHECK_OK(rig_alloc(&l->r, 300, PER_THREAD, &l->blocks[i]));
  }
  CHECK_OK(tarn_use(l->r.heap, l->blocks[0].address, l->r.streams[0]));
  CHECK_EQ(pthread_setspecific(l->key, l), 0);
  return NULL;
}

/* Keys are destroyed in the order in which they were made: that of threads' names, the program's,
 * that of caches. pre: no cache was made in this process before. */
static void names_go_first(late *l) {
  tarn_heap *plain;
  tarn_ptr block = 0;
  const tarn_heap_config config = {
      .size = sizeof(config), .device = "sim:256M", .backing = TARN_BACKING_PLAIN};
  REQUIRE_OK(tarn_heap_create(&config, &plain));
  CHECK_OK(tarn_alloc(plain, 100, PER_THREAD, &block));
  CHECK_OK(tarn_free(plain, block, PER_THREAD));
  CHECK_OK(tarn_heap_destroy(plain, NULL));
  CHECK_EQ(pthread_key_create(&l->key, late_end), 0);
}

/* Streams until there is no record for another; how many. */
static int records_take(late *l, tarn_stream *streams) {
  for (int n = 0; n < 1023; n++) {
    rig_block block;
    CHECK_OK(tarn_stream_create(l->r.device, &streams[n]));
    if (rig_alloc(&l->r, 300, streams[n], &block) != TARN_OK) {
      return n + 1;
    }
    CHECK_OK(rig_free(&l->r, &block, streams[n]));
  }
  return 1023;
}

/* The record of its default stream is not another's before its caches are gone. */
static void late_thread(void) {
  static late l;
  static tarn_stream streams[1023];
  pthread_t thread;
  names_go_first(&l);
  REQUIRE(rig_open(&l.r, "sim:256M,order=lazy", NULL, 1));
  CHECK(sem_init(&l.is_there, 0, 0) == 0 && sem_init(&l.may_go, 0, 0) == 0);
  REQUIRE(pthread_create(&thread, NULL, late_work, &l) == 0);
  CHECK_EQ(sem_wait(&l.is_there), 0);
  const int n = records_take(&l, streams);
  CHECK_EQ(l.r.heap->n_lanes, 1024);
  CHECK_EQ(sem_post(&l.may_go), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  for (int i = 0; i < 40; i++) { /* it is gone now, and its record to be had */
    CHECK_OK(rig_alloc(&l.r, 300, streams[n - 1], &l.blocks[i]));
  }
  for (int i = 0; i < 40; i++) {
    CHECK_OK(rig_free(&l.r, &l.blocks[i], streams[n - 1]));
  }
  for (int i = 0; i < n; i++) {
    CHECK_OK(tarn_stream_retire(l.r.heap, streams[i]));
    CHECK_OK(tarn_stream_destroy(l.r.device, streams[i]));
  }
  rig_close(&l.r);
}

/* ---- Streams in use ---- */

typedef struct race {
  rig r;
  atomic_bool is_over;
  tarn_stream twice; /* that two threads retire */
  pthread_barrier_t barrier;
  time_t end; /* where threads run one at a time, and whoever can, it would take long */
} race;

static bool is_on(race *c) {
  return !atomic_load(&c->is_over) && time(NULL) < c->end;
}

static uint64_t bytes_next(tarni_rng *rng) {
  return tarni_rng_below(rng, 4) == 0 ? 2 * MIB : 40000 + tarni_rng_below(rng, 8) * 10000;
}

static void steps_do(race *c, tarni_rng *rng, tarn_stream stream, rig_block *blocks, int *n) {
  if (*n < N_MINE && tarni_rng_below(rng, 2) != 0) {
    *n += CHECK_OK(rig_alloc(&c->r, bytes_next(rng), stream, &blocks[*n]));
  } else if (*n != 0) {
    CHECK_OK(rig_free(&c->r, &blocks[--*n], stream));
  }
}

static void *use_first(void *user) {
  race *c = user;
  rig_block blocks[N_MINE];
  tarni_rng rng = {(uintptr_t)&rng};
  int n = 0;
  while (is_on(c)) {
    steps_do(c, &rng, c->r.streams[0], blocks, &n);
  }
  while (n != 0) {
    CHECK_OK(rig_free(&c->r, &blocks[--n], c->r.streams[0]));
  }
  return NULL;
}

/* Streams of its own, one after the other: they get the records of those that were retired. */
static void *use_own(void *user) {
  race *c = user;
  rig_block blocks[N_MINE];
  tarni_rng rng = {3};
  while (is_on(c)) {
    tarn_stream own;
    int n = 0;
    CHECK_OK(tarn_stream_create(c->r.device, &own));
    for (int i = 0; i < N_STEPS; i++) {
      steps_do(c, &rng, own, blocks, &n);
    }
    while (n != 0) {
      CHECK_OK(rig_free(&c->r, &blocks[--n], own));
    }
    CHECK_OK(tarn_stream_retire(c->r.heap, own));
    CHECK_OK(tarn_stream_synchronize(c->r.device, own));
    CHECK_OK(tarn_stream_destroy(c->r.device, own));
  }
  return NULL;
}

/* All of it comes back, in order. */
static void race_end(race *c) {
  CHECK_OK(tarn_heap_check(c->r.heap));
  CHECK_OK(tarn_heap_trim(c->r.heap, 0));
  CHECK_EQ(rig_stats(&c->r).reserved_bytes, 0);
  CHECK(rig_is_sound(&c->r));
  rig_close(&c->r);
}

static void retired_in_use_with(const tarn_heap_config *config, int n_retires) {
  static race c;
  pthread_t threads[3];
  c = (race){.end = time(NULL) + MAX_SECONDS};
  REQUIRE(rig_open(&c.r, "sim:4G", config, 1));
  REQUIRE(pthread_create(&threads[0], NULL, use_first, &c) == 0);
  REQUIRE(pthread_create(&threads[1], NULL, use_first, &c) == 0);
  REQUIRE(pthread_create(&threads[2], NULL, use_own, &c) == 0);
  for (int i = 0; i < n_retires && is_on(&c); i++) {
    CHECK_OK(tarn_stream_retire(c.r.heap, c.r.streams[0]));
  }
  atomic_store(&c.is_over, true);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  race_end(&c);
}

static void retired_in_use(void) {
  retired_in_use_with(NULL, N_RETIRES);
}

static void retired_in_use_pool(void) {
  const tarn_heap_config config = {.size = sizeof(config), .backing = TARN_BACKING_POOL};
  retired_in_use_with(&config, N_RETIRES / 4);
}

static void retired_in_use_verified(void) {
  const tarn_heap_config config = {.size = sizeof(config), .is_verifying_streams = true};
  retired_in_use_with(&config, N_RETIRES);
}

static void retired_in_use_quarantined(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .quarantine_bytes = MIB, .fill_free = 0x5a};
  retired_in_use_with(&config, N_RETIRES / 4);
}

/* A try that failed has left two records of the stream, since it was used meanwhile. */
static void two_records(void) {
  rig r;
  tarni_index first, second;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(tarni_lane_find(r.heap, r.streams[0], &first));
  r.heap->lanes[first].is_leaving = true;
  CHECK_OK(tarni_lane_find(r.heap, r.streams[0], &second));
  r.heap->lanes[first].is_leaving = false;
  CHECK(first != second);
  CHECK(!r.heap->lanes[first].is_lost); /* it is no namesake */
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK(r.heap->lanes[first].is_retired && r.heap->lanes[second].is_retired);
  rig_close(&r);
}

static void *retire_too(void *user) {
  race *c = user;
  for (;;) {
    (void)pthread_barrier_wait(&c->barrier);
    if (atomic_load(&c->is_over)) {
      return NULL;
    }
    CHECK_OK(tarn_stream_retire(c->r.heap, c->twice));
    (void)pthread_barrier_wait(&c->barrier);
  }
}

/* Has the driver at work most of the time, so that others wait for their turn. */
static void *grow_and_trim(void *user) {
  race *c = user;
  while (is_on(c)) {
    tarn_ptr blocks[8];
    for (uint64_t i = 0; i < 8; i++) {
      CHECK_OK(tarn_alloc(c->r.heap, (40 + i) * MIB, c->r.streams[0], &blocks[i]));
    }
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarn_free(c->r.heap, blocks[i], c->r.streams[0]));
    }
    CHECK_OK(tarn_heap_trim(c->r.heap, 0));
    (void)sched_yield();
  }
  return NULL;
}

/* Nobody uses the stream, but two threads retire it: the second must not meet another's record. */
static void retired_twice(void) {
  static race c;
  pthread_t threads[3];
  c = (race){.end = time(NULL) + MAX_SECONDS};
  REQUIRE(rig_open(&c.r, "sim:4G", NULL, 1));
  CHECK_EQ(pthread_barrier_init(&c.barrier, NULL, 2), 0);
  REQUIRE(pthread_create(&threads[0], NULL, use_own, &c) == 0);
  REQUIRE(pthread_create(&threads[1], NULL, retire_too, &c) == 0);
  REQUIRE(pthread_create(&threads[2], NULL, grow_and_trim, &c) == 0);
  for (int i = 0; i < N_TWICE && is_on(&c); i++) {
    rig_block block;
    CHECK_OK(tarn_stream_create(c.r.device, &c.twice));
    CHECK_OK(rig_alloc(&c.r, 50000, c.twice, &block));
    CHECK_OK(rig_free(&c.r, &block, c.twice));
    (void)pthread_barrier_wait(&c.barrier);
    CHECK_OK(tarn_stream_retire(c.r.heap, c.twice));
    (void)pthread_barrier_wait(&c.barrier);
    CHECK_OK(tarn_stream_destroy(c.r.device, c.twice));
  }
  atomic_store(&c.is_over, true);
  (void)pthread_barrier_wait(&c.barrier);
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK_EQ(pthread_barrier_destroy(&c.barrier), 0);
  race_end(&c);
}

/* ---- Within an allocation ---- */

typedef struct ask {
  rig r;
  rig_block large;
  sem_t is_asked, is_retired;
  int n_asked;
} ask;

/* Gives memory back on a stream that is new to the thread, which has a cache that is done. */
static bool help(tarn_heap *heap, uint64_t bytes, void *user) {
  ask *a = user;
  CHECK(heap == a->r.heap && bytes != 0);
  if (a->n_asked++ != 0) {
    return false;
  }
  CHECK_EQ(sem_post(&a->is_asked), 0);
  CHECK_EQ(sem_wait(&a->is_retired), 0);
  CHECK_OK(rig_free(&a->r, &a->large, a->r.streams[1]));
  return true;
}

static void *ask_for_more(void *user) {
  ask *a = user;
  rig_block block;
  CHECK_OK(rig_alloc(&a->r, 8 * MIB, a->r.streams[0], &a->large));
  rig_order(&a->r, a->r.streams[0], a->r.streams[1]);
  CHECK_OK(rig_alloc(&a->r, 6 * MIB, a->r.streams[0], &block));
  CHECK_EQ(a->n_asked, 1);
  CHECK_OK(rig_free(&a->r, &block, a->r.streams[0]));
  return NULL;
}

/* The stream is retired while its allocation asks the program for memory. */
static void retired_while_asking(void) {
  static ask a;
  pthread_t thread;
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 12 * MIB, .on_shortage = help, .on_shortage_user = &a};
  REQUIRE(rig_open(&a.r, "sim:64M", &config, 2));
  CHECK(sem_init(&a.is_asked, 0, 0) == 0 && sem_init(&a.is_retired, 0, 0) == 0);
  REQUIRE(pthread_create(&thread, NULL, ask_for_more, &a) == 0);
  CHECK_EQ(sem_wait(&a.is_asked), 0);
  CHECK_OK(tarn_stream_retire(a.r.heap, a.r.streams[0]));
  CHECK_EQ(sem_post(&a.is_retired), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_OK(tarn_heap_check(a.r.heap));
  rig_close(&a.r);
}

/* The program retires the stream itself, and has nothing to give: it is asked once. */
static bool retire_only(tarn_heap *heap, uint64_t bytes, void *user) {
  ask *a = user;
  CHECK(bytes != 0);
  a->n_asked++;
  CHECK_OK(tarn_stream_retire(heap, a->r.streams[0]));
  const bool is_endless = a->n_asked > 100;
  CHECK_OK(is_endless ? tarn_heap_set_limit(heap, 64 * MIB) : TARN_OK);
  return is_endless;
}

static void retired_by_asked(void) {
  static ask a;
  a = (ask){0};
  const tarn_heap_config config = {.size = sizeof(config),
                                   .limit_bytes = 4 * MIB,
                                   .on_shortage = retire_only,
                                   .on_shortage_user = &a};
  rig_block blocks[8];
  int n = 0;
  REQUIRE(rig_open(&a.r, "sim:64M", &config, 1));
  CHECK_STATUS(rig_alloc(&a.r, 6 * MIB, a.r.streams[0], &blocks[0]), TARN_LIMIT);
  CHECK_EQ(a.n_asked, 1);
  while (n < 8 && rig_alloc(&a.r, MIB, a.r.streams[0], &blocks[n]) == TARN_OK) {
    n++;
  }
  CHECK_EQ(n, 4);
  CHECK_EQ(a.n_asked, 2);
  while (n != 0) {
    CHECK_OK(rig_free(&a.r, &blocks[--n], a.r.streams[0]));
  }
  rig_close(&a.r);
}

/* The same where it has: also in a heap with a limit of what is live, which was reached before. */
static bool retire_and_free(tarn_heap *heap, uint64_t bytes, void *user) {
  ask *a = user;
  CHECK(bytes != 0);
  CHECK_OK(rig_free(&a->r, &a->large, a->r.streams[0]));
  CHECK_OK(tarn_stream_retire(heap, a->r.streams[0]));
  return a->n_asked++ == 0;
}

static void retired_and_freed(void) {
  static ask a;
  a = (ask){0};
  const tarn_heap_config config = {.size = sizeof(config),
                                   .backing = TARN_BACKING_PLAIN,
                                   .live_limit_bytes = 8 * MIB,
                                   .on_shortage = retire_and_free,
                                   .on_shortage_user = &a};
  rig_block block;
  REQUIRE(rig_open(&a.r, "sim:64M", &config, 1));
  CHECK_OK(rig_alloc(&a.r, 6 * MIB, a.r.streams[0], &a.large));
  CHECK_OK(rig_alloc(&a.r, 4 * MIB, a.r.streams[0], &block));
  CHECK_EQ(a.n_asked, 1);
  CHECK_OK(rig_free(&a.r, &block, a.r.streams[0]));
  rig_close(&a.r);
}

static const test_case cases[] = {
    {"a thread that is at work after its name is gone", late_thread}, /* the first cache */
    {"a stream that others use", retired_in_use},
    {"the same with a pool of the driver's", retired_in_use_pool},
    {"the same with verified streams", retired_in_use_verified},
    {"the same with a quarantine", retired_in_use_quarantined},
    {"a stream with two records", two_records},
    {"a stream that another thread retires, too", retired_twice},
    {"a stream whose allocation asks for memory", retired_while_asking},
    {"by the program that is asked", retired_by_asked},
    {"and that gives some", retired_and_freed},
};

TEST_MAIN(cases)
