/* SPDX-License-Identifier: MIT
 *
 * Pinned pools used by many: threads that allocate, free and trim at once, limits that hold
 * meanwhile, work that completes in any order, and a child made by fork. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "room.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/pinned.h"

enum { N_THREADS = 4, N_LIVE = 12, N_ROUNDS = 3000, MIB = 1 << 20 };
#define DEVICE "sim:1G,seed=11"

typedef struct shared_pool {
  rig rig;
  tarn_pinned *pool;
  _Atomic bool is_over;
  _Atomic int failed_line; /* of this file, where a thread has last found something wrong */
  _Atomic uint64_t n_refused;
  uint64_t live_limit, cached_limit;
  _Atomic uint64_t live; /* of callers, at least */
} shared_pool;

/* For threads, which must not fail a check of their own. */
#define MUST(at, is_good)                                                                          \
  do {                                                                                             \
    if (!(is_good)) {                                                                              \
      atomic_store(&(at)->failed_line, __LINE__);                                                  \
    }                                                                                              \
  } while (0)

typedef struct pool_worker {
  shared_pool *at;
  int number;
} pool_worker;

static bool pool_open(shared_pool *at, tarn_pinned_rounding rounding, uint64_t live_limit,
                      uint64_t cached_limit) {
  memset(at, 0, sizeof(*at));
  at->live_limit = live_limit;
  at->cached_limit = cached_limit;
  const tarn_pinned_config config = {.size = sizeof(config),
                                     .device = DEVICE,
                                     .limit_bytes = 256 * (uint64_t)MIB,
                                     .region_bytes = 2 * MIB,
                                     .rounding = rounding,
                                     .live_limit_bytes = live_limit,
                                     .cached_limit_bytes = cached_limit};
  return rig_open_device(&at->rig, DEVICE, N_THREADS) &&
         CHECK_OK(tarn_pinned_create(&config, &at->pool));
}

static void pool_close(shared_pool *at) {
  CHECK_EQ(at->failed_line, 0);
  CHECK_OK(tarn_pinned_check(at->pool));
  CHECK_OK(tarn_pinned_trim(at->pool, 0));
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_pinned_get_stats(at->pool, &stats));
  CHECK_EQ(stats.live_bytes, 0);
  CHECK_EQ(stats.live_blocks, 0);
  CHECK_EQ(stats.pending_bytes, 0);
  CHECK_EQ(stats.reserved_bytes, 0); /* a release that a trim lost would keep its region */
  CHECK_EQ(stats.allocations, stats.frees);
  uint64_t n_live = 1;
  CHECK_OK(tarn_pinned_destroy(at->pool, &n_live));
  CHECK_EQ(n_live, 0);
  rig_close(&at->rig);
}

/* A block full of its owner's mark. */
typedef struct marked {
  unsigned char *block;
  uint64_t bytes;
  unsigned char mark;
} marked;

static void marked_take(shared_pool *at, marked *m, uint64_t bytes, unsigned char mark) {
  void *block = NULL;
  const tarn_status status = tarn_pinned_alloc(at->pool, bytes, &block);
  if (status != TARN_OK) {
    MUST(at, status == TARN_LIMIT);
    at->n_refused++;
    return;
  }
  const uint64_t live = atomic_fetch_add(&at->live, bytes) + bytes;
  MUST(at, at->live_limit == 0 || live <= at->live_limit);
  *m = (marked){.block = block, .bytes = bytes, .mark = mark};
  rig_host_fill(block, mark, bytes);
}

static void marked_give(shared_pool *at, marked *m, tarn_stream stream, bool is_on_stream) {
  MUST(at, rig_host_is(m->block, m->mark, m->bytes));
  atomic_fetch_sub(&at->live, m->bytes);
  const tarn_status status = is_on_stream ? tarn_pinned_free_on(at->pool, m->block, stream)
                                          : tarn_pinned_free(at->pool, m->block);
  MUST(at, status == TARN_OK);
  *m = (marked){0};
}

static void *churn(void *user) {
  const pool_worker *self = user;
  shared_pool *at = self->at;
  tarn_stream stream = at->rig.streams[self->number];
  tarni_rng rng = {.state = (uint64_t)self->number};
  marked live[N_LIVE];
  memset(live, 0, sizeof(live));
  for (int round = 0; round < N_ROUNDS; round++) {
    marked *m = &live[tarni_rng_below(&rng, N_LIVE)];
    if (m->block != NULL) {
      marked_give(at, m, stream, tarni_rng_below(&rng, 4) == 0);
    } else {
      const uint64_t shift = tarni_rng_below(&rng, 14);
      marked_take(at, m, tarni_rng_below(&rng, (uint64_t)256 << shift) + 1,
                  (unsigned char)(self->number * 50 + round % 50));
    }
  }
  for (int i = 0; i < N_LIVE; i++) {
    if (live[i].block != NULL) {
      marked_give(at, &live[i], stream, false);
    }
  }
  return NULL;
}

static void *trim_again_and_again(void *user) {
  shared_pool *at = user;
  while (!atomic_load(&at->is_over)) {
    MUST(at, tarn_pinned_trim(at->pool, 0) == TARN_OK);
    (void)usleep(2000); /* so that something is kept again */
    tarn_heap_stats stats = {.size = sizeof(stats)};
    MUST(at, tarn_pinned_get_stats(at->pool, &stats) == TARN_OK);
    MUST(at, stats.live_bytes + stats.cached_bytes + stats.pending_bytes + stats.free_bytes ==
                 stats.reserved_bytes);
    MUST(at, at->live_limit == 0 || stats.live_bytes <= at->live_limit);
    MUST(at,
         at->live_limit == 0 || at->cached_limit == 0 || stats.cached_bytes <= at->cached_limit);
  }
  return NULL;
}

static void run_threads(shared_pool *at, bool is_trimming) {
  pthread_t threads[N_THREADS], trimmer;
  pool_worker workers[N_THREADS];
  if (is_trimming) {
    REQUIRE(pthread_create(&trimmer, NULL, trim_again_and_again, at) == 0);
  }
  for (int i = 0; i < N_THREADS; i++) {
    workers[i] = (pool_worker){.at = at, .number = i};
    REQUIRE(pthread_create(&threads[i], NULL, churn, &workers[i]) == 0);
  }
  for (int i = 0; i < N_THREADS; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  atomic_store(&at->is_over, true);
  if (is_trimming) {
    CHECK_EQ(pthread_join(trimmer, NULL), 0);
  }
}

static void trim_loses_nothing(void) {
  static shared_pool at;
  REQUIRE(pool_open(&at, TARN_PINNED_CLASSES, 0, 0));
  run_threads(&at, true);
  pool_close(&at);
}

static void live_limit_holds(void) {
  static shared_pool at;
  REQUIRE(pool_open(&at, TARN_PINNED_CLASSES, 4 * MIB, 0));
  run_threads(&at, true);
  CHECK(at.n_refused > 0);
  pool_close(&at);
}

/* The same of a pool of the driver's own allocations: what is kept there is exact at any time. */
static void buckets(void) {
  static shared_pool at;
  REQUIRE(pool_open(&at, TARN_PINNED_POWER_OF_TWO, 4 * MIB, 2 * MIB));
  run_threads(&at, true);
  CHECK(at.n_refused > 0);
  pool_close(&at);
}

/* Bytes of regions with no block in use. */
static uint64_t idle_bytes(tarn_pinned *pool) {
  tarn_heap *heap = tarni_pinned_heap(pool);
  uint64_t bytes = 0;
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_slab_collect_all_locked(heap);
  for (tarni_index i = tarni_idle_highest_locked(heap); i != 0;
       i = tarni_idle_below_locked(heap, heap->chunks[i].first_unit)) {
    bytes += tarni_chunk_bytes(heap, &heap->chunks[i]);
  }
  tarni_lock_release(&heap->lock);
  return bytes;
}

static void cached_limit_holds(void) {
  static shared_pool at;
  REQUIRE(pool_open(&at, TARN_PINNED_CLASSES, 0, 4 * MIB));
  run_threads(&at, false);
  void *block = NULL; /* the last free sees what the threads have left, pending ones included */
  for (int i = 0; i < N_THREADS; i++) {
    CHECK_OK(tarn_stream_synchronize(at.rig.device, at.rig.streams[i]));
  }
  CHECK_OK(tarn_pinned_alloc(at.pool, 100, &block));
  CHECK_OK(tarn_pinned_free(at.pool, block));
  CHECK(idle_bytes(at.pool) <= 4 * MIB);
  pool_close(&at);
}

/* ---- Work that completes in any order ---- */

static void any_order(const char *device) {
  rig r;
  REQUIRE(rig_open_device(&r, device, 3));
  const tarn_pinned_config config = {
      .size = sizeof(config), .device = device, .limit_bytes = 16 * MIB, .region_bytes = 2 * MIB};
  tarn_pinned *pool = NULL;
  REQUIRE_OK(tarn_pinned_create(&config, &pool));
  tarni_rng rng = {.state = 42};
  rig_block blocks[8] = {{0}};
  for (int round = 0; round < 400; round++) {
    rig_block *block = &blocks[tarni_rng_below(&rng, 8)];
    if (block->address != 0) {
      CHECK_OK(tarn_sim_disown(r.device, block->address, block->bytes));
      CHECK_OK(tarn_pinned_free_on(pool, (void *)(uintptr_t)block->address,
                                   r.streams[block->owner % 3]));
      *block = (rig_block){0};
      continue;
    }
    const uint64_t bytes = tarni_rng_below(&rng, (uint64_t)1 << tarni_rng_below(&rng, 21)) + 1;
    void *memory = NULL;
    REQUIRE_OK(tarn_pinned_alloc(pool, bytes, &memory));
    rig_host_fill(memory, (uint8_t)round, bytes); /* the host may, at once */
    rig_own(&r, (uintptr_t)memory, bytes, block);
    rig_touch(&r, block, r.streams[block->owner % 3], true);
    CHECK_OK(tarn_sim_progress(r.device, tarni_rng_below(&rng, 3)));
  }
  for (int i = 0; i < 8; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(tarn_pinned_free_on(pool, (void *)(uintptr_t)blocks[i].address,
                                   r.streams[blocks[i].owner % 3]));
    }
  }
  CHECK_OK(tarn_pinned_check(pool));
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
  rig_close(&r);
}

static void completion(void) {
  any_order("sim:1G,seed=1");
  any_order("sim:1G,seed=2,order=lazy");
  any_order("sim:1G,seed=3,order=eager");
  any_order("sim:1G,seed=4");
}

/* ---- Fork ---- */

static int child_calls(shared_pool *at, void *block) {
  void *more = at;
  tarn_heap_stats stats = {.size = sizeof(stats)};
  int n = tarn_pinned_alloc(at->pool, 100, &more) != TARN_FORKED || more != NULL;
  n += tarn_pinned_alloc(at->pool, 3 * MIB, &more) != TARN_FORKED;
  n += tarn_pinned_free(at->pool, block) != TARN_FORKED;
  n += tarn_pinned_free_on(at->pool, block, at->rig.streams[0]) != TARN_FORKED;
  n += tarn_pinned_trim(at->pool, 0) != TARN_FORKED;
  n += tarn_pinned_reserve(at->pool, 1) != TARN_FORKED;
  n += tarn_pinned_get_stats(at->pool, &stats) != TARN_FORKED;
  n += tarn_pinned_check(at->pool) != TARN_FORKED;
  n += tarn_pinned_destroy(at->pool, NULL) != TARN_FORKED;
  n += tarn_pinned_owns(at->pool, block, 1);
  n += tarn_host_is_pinned(at->rig.device, block, 1);
  return n;
}

static void forked(void) {
  static shared_pool at;
  REQUIRE(pool_open(&at, TARN_PINNED_CLASSES, 0, 0));
  void *block = NULL;
  REQUIRE_OK(tarn_pinned_alloc(at.pool, 5000, &block));
  rig_host_fill(block, 9, 5000);
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(20);
    _exit(child_calls(&at, block));
  }
  int status = 0;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(rig_host_is(block, 9, 5000));
  CHECK_OK(tarn_pinned_free(at.pool, block));
  pool_close(&at);
}

static const test_case cases[] = {
    {"trim_loses_nothing", trim_loses_nothing},
    {"live_limit_holds", live_limit_holds},
    {"cached_limit_holds", cached_limit_holds},
    {"buckets", buckets},
    {"completion", completion},
    {"forked", forked},
};

TEST_MAIN(cases)
