/* SPDX-License-Identifier: MIT
 *
 * Scopes of statistics: churn and peaks of a region, nested, overlapping, from several threads, and
 * the exact peak of live bytes where it is asked for. */
#include <pthread.h>
#include <stdatomic.h>

#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const tarn_stats_scope_config exact = {.size = sizeof(exact), .is_exact = true};

static tarn_stats_scope *begin(const rig *r, const tarn_stats_scope_config *config) {
  tarn_stats_scope *scope = NULL;
  CHECK_OK(tarn_stats_scope_begin(r->heap, config, &scope));
  CHECK(scope != NULL);
  return scope;
}

static tarn_stats_scope_result end(tarn_stats_scope *scope) {
  tarn_stats_scope_result result = {.size = sizeof(result)};
  CHECK_OK(tarn_stats_scope_end(scope, &result));
  return result;
}

static void pairs(const rig *r, uint64_t bytes, int n) {
  for (int i = 0; i < n; i++) {
    tarn_ptr block = 0;
    CHECK_OK(tarn_alloc(r->heap, bytes, r->streams[0], &block));
    CHECK_OK(tarn_free(r->heap, block, r->streams[0]));
  }
}

static void churn_of_a_region(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  rig_block kept;
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &kept));
  tarn_stats_scope *scope = begin(&r, NULL);
  pairs(&r, 1000, 5);
  pairs(&r, 3 * MIB, 2);
  const tarn_stats_scope_result result = end(scope);
  CHECK_EQ(result.allocations, 7);
  CHECK_EQ(result.frees, 7);
  CHECK_EQ(result.allocated_bytes, 5 * KIB + 6 * MIB);
  CHECK_EQ(result.freed_bytes, 5 * KIB + 6 * MIB);
  CHECK_EQ(result.misses, 1);
  CHECK(result.driver_calls >= 3); /* a chunk made, mapped and made accessible */
  CHECK(result.driver_ns > 0);
  CHECK_EQ(result.reserved_begin_bytes, 2 * MIB);
  CHECK_EQ(result.reserved_end_bytes, 6 * MIB);
  CHECK_EQ(result.reserved_peak_bytes, 6 * MIB);
  CHECK_EQ(result.used_peak_bytes, 3 * MIB + 64 * KIB);
  CHECK(!result.is_exact);
  CHECK_EQ(result.live_peak_bytes, KIB); /* no more is known than what is live at both ends */
  CHECK_OK(rig_free(&r, &kept, r.streams[0]));
  /* Nothing happens in the next one: the peaks before it are not its own. */
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  const tarn_stats_scope_result nothing = end(begin(&r, NULL));
  CHECK_EQ(nothing.allocations + nothing.frees + nothing.misses + nothing.driver_calls, 0);
  CHECK_EQ(nothing.reserved_peak_bytes, 0);
  CHECK_EQ(nothing.used_peak_bytes, 0);
  rig_close(&r);
}

static void exact_peak_of(const tarn_heap_config *config) {
  rig r;
  rig_block kept, a, b;
  REQUIRE(rig_open(&r, "sim:64M", config, 1));
  CHECK_OK(rig_alloc(&r, 10 * KIB, r.streams[0], &kept));
  CHECK_OK(rig_alloc(&r, 20 * KIB, r.streams[0], &a));
  tarn_stats_scope *scope = begin(&r, &exact);
  CHECK_OK(rig_free(&r, &a, r.streams[0]));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &a));
    CHECK_OK(rig_alloc(&r, 512, r.streams[0], &b));
    CHECK(rig_is_sound(&r));
    CHECK_OK(rig_free(&r, &a, r.streams[0]));
    CHECK_OK(rig_free(&r, &b, r.streams[0]));
  }
  tarn_stats_scope_result result = end(scope);
  CHECK(result.is_exact);
  CHECK_EQ(result.live_peak_bytes, 10 * KIB + 2 * MIB + 512);
  CHECK_EQ(result.live_begin_bytes, 30 * KIB);
  CHECK_EQ(result.live_end_bytes, 10 * KIB);
  /* The peak is what was live at the beginning when nothing is added. */
  scope = begin(&r, &exact);
  CHECK_OK(rig_free(&r, &kept, r.streams[0]));
  CHECK_EQ(end(scope).live_peak_bytes, 10 * KIB);
  rig_close(&r);
}

static void exact_peak(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .backing = TARN_BACKING_POOL, .rounding = TARN_ROUNDING_EXACT};
  exact_peak_of(NULL);
  exact_peak_of(&config);
}

/* Hits are hits again once the exact scope has ended. */
static void hits_come_back(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  pairs(&r, 2000, 1);
  tarn_stats_scope *scope = begin(&r, &exact);
  pairs(&r, 2000, 10);
  pairs(&r, 5 * MIB, 10);
  CHECK_EQ(end(scope).allocations, 20);
  pairs(&r, 2000, 1);
  pairs(&r, 5 * MIB, 1);
  const uint64_t calls = rig_calls(&r);
  const tarn_heap_stats before = rig_stats(&r);
  pairs(&r, 2000, 100);
  pairs(&r, 5 * MIB, 100);
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_EQ(rig_stats(&r).misses, before.misses);
  rig_close(&r);
}

static void nested_and_overlapping(void) {
  rig r;
  rig_block a, b, c;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  tarn_stats_scope *outer = begin(&r, &exact);
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &a));
  tarn_stats_scope *inner = begin(&r, &exact);
  tarn_stats_scope *plain = begin(&r, NULL);
  CHECK_OK(rig_free(&r, &a, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &b));
  tarn_stats_scope_result result = end(inner); /* overlaps with `plain` */
  CHECK_EQ(result.live_peak_bytes, 8 * MIB);   /* as it began */
  CHECK_EQ(result.allocations, 1);
  tarn_stats_scope *late = begin(&r, &exact);
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &c));
  CHECK_OK(rig_free(&r, &b, r.streams[0]));
  CHECK_EQ(end(late).live_peak_bytes, 6 * MIB);
  result = end(plain);
  CHECK_EQ(result.allocations, 2);
  CHECK_EQ(result.frees, 2);
  CHECK_EQ(result.live_begin_bytes, 8 * MIB);
  CHECK_EQ(result.live_end_bytes, 4 * MIB);
  CHECK_OK(rig_free(&r, &c, r.streams[0]));
  result = end(outer);
  CHECK_EQ(result.live_peak_bytes, 8 * MIB);
  CHECK_EQ(result.allocations, 3);
  CHECK_EQ(result.frees, 3);
  CHECK_EQ(result.reserved_peak_bytes, rig_stats(&r).reserved_peak_bytes);
  rig_close(&r);
}

typedef struct crew {
  rig rig;
  atomic_int n_threads;
} crew;

static void *work(void *user) {
  crew *shared = user;
  rig *r = &shared->rig;
  const tarn_stream stream = r->streams[atomic_fetch_add(&shared->n_threads, 1)];
  for (int i = 0; i < 300; i++) {
    tarn_stats_scope *scope = begin(r, i % 3 == 0 ? &exact : NULL);
    tarn_ptr blocks[4] = {0};
    for (int j = 0; j < 4; j++) {
      CHECK_OK(tarn_alloc(r->heap, (uint64_t)(j + 1) * 5000, stream, &blocks[j]));
    }
    for (int j = 0; j < 4; j++) {
      CHECK_OK(tarn_free(r->heap, blocks[j], stream));
    }
    const tarn_stats_scope_result result = end(scope);
    CHECK(result.allocations >= 4 && result.frees >= 4);
    CHECK(!result.is_exact || result.live_peak_bytes >= 50000);
    CHECK(result.used_peak_bytes >= 50000);
  }
  return NULL;
}

typedef struct turn {
  rig *rig;
  _Atomic int go, done; /* rounds */
} turn;

enum { N_ROUNDS = 200 };

static void *other_blocks(void *user) {
  turn *t = user;
  for (int i = 1; i <= N_ROUNDS; i++) {
    while (atomic_load(&t->go) != i) {
    }
    pairs(t->rig, 4 * MIB, 1);
    atomic_store(&t->done, i);
  }
  return NULL;
}

/* A block that was live for a moment counts, also where its caller did not get it. */
static void exact_peak_for_a_moment(void) {
  const tarn_heap_config config = {.size = sizeof(config), .fill_alloc = 0xaa};
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  tarn_stats_scope *scope = begin(&r, &exact);
  tarn_ptr block = 0;
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_FILL, 1, 1, 1));
  CHECK_STATUS(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &block), TARN_INVALID);
  CHECK_EQ(rig_stats(&r).live_bytes, 0);
  CHECK_EQ(end(scope).live_peak_bytes, 4 * MIB);
  rig_close(&r);
}

/* What another thread could see to be live the exact peak has seen, too: also where a block is
 * freed before an allocation that overlaps with it has returned. */
static void exact_peak_of_threads(void) {
  static const tarn_heap_config configs[] = {
      {.size = sizeof(tarn_heap_config), .fill_alloc = 0xaa},
      {.size = sizeof(tarn_heap_config), .backing = TARN_BACKING_PLAIN}};
  for (int k = 0; k < 2; k++) {
    rig r;
    pthread_t thread;
    REQUIRE(rig_open(&r, "sim:64M", &configs[k], 2));
    turn t = {.rig = &r};
    REQUIRE(pthread_create(&thread, NULL, other_blocks, &t) == 0);
    for (int i = 1; i <= N_ROUNDS; i++) {
      tarn_ptr block = 0;
      CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[1], &block));
      tarn_stats_scope *scope = begin(&r, &exact);
      uint64_t seen = 0;
      atomic_store(&t.go, i);
      while (atomic_load(&t.done) != i && seen <= 4 * MIB) {
        tarn_heap_stats stats = {.size = sizeof(stats)};
        (void)tarn_heap_get_stats(r.heap, &stats);
        seen = stats.live_bytes;
      }
      CHECK_OK(tarn_free(r.heap, block, r.streams[1]));
      while (atomic_load(&t.done) != i) {
      }
      CHECK(end(scope).live_peak_bytes >= seen);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    rig_close(&r);
  }
}

/* Scopes of several threads over one another; their exact peaks are at least their own. */
static void of_several_threads(void) {
  static crew shared;
  REQUIRE(rig_open(&shared.rig, "sim:64M", NULL, 4));
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, work, &shared) == 0);
  }
  for (int i = 0; i < 4; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK_EQ(rig_stats(&shared.rig).allocations, 4 * 300 * 4);
  CHECK_EQ(rig_stats(&shared.rig).live_bytes, 0);
  CHECK(rig_is_sound(&shared.rig));
  rig_close(&shared.rig);
}

static void wrong_calls(void) {
  tarn_stats_scope *scope = (tarn_stats_scope *)(uintptr_t)1;
  CHECK_STATUS(tarn_stats_scope_begin(NULL, NULL, &scope), TARN_INVALID);
  CHECK(scope == NULL);
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 0));
  CHECK_STATUS(tarn_stats_scope_begin(r.heap, NULL, NULL), TARN_INVALID);
  const tarn_stats_scope_config no_size = {.is_exact = true};
  CHECK_STATUS(tarn_stats_scope_begin(r.heap, &no_size, &scope), TARN_INVALID);
  CHECK(scope == NULL);
  tarn_stats_scope_result result = {.size = sizeof(result), .allocations = 5};
  CHECK_OK(tarn_stats_scope_end(NULL, &result));
  CHECK_EQ(result.allocations, 0);
  CHECK_OK(tarn_stats_scope_end(NULL, NULL));
  scope = begin(&r, &exact);
  result.size = 0;
  CHECK_STATUS(tarn_stats_scope_end(scope, &result), TARN_INVALID); /* it is still open */
  CHECK_OK(tarn_stats_scope_end(scope, NULL));
  /* The heap goes first: the scope says so, and is gone. */
  scope = begin(&r, &exact);
  tarn_stats_scope *second = begin(&r, NULL);
  rig_close(&r);
  result.size = sizeof(result);
  CHECK_STATUS(tarn_stats_scope_end(scope, &result), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "destroyed");
  CHECK_EQ(result.driver_calls, 0);
  CHECK_STATUS(tarn_stats_scope_end(second, NULL), TARN_STATE);
}

/* Of an aligned block of the driver's own allocations all that was granted counts. */
static void aligned_grants(void) {
  const tarn_heap_config plain = {.size = sizeof(plain), .backing = TARN_BACKING_PLAIN};
  rig r;
  tarn_ptr block = 0;
  REQUIRE(rig_open(&r, "sim:64M", &plain, 1));
  tarn_stats_scope *scope = begin(&r, &exact);
  CHECK_OK(tarn_alloc_aligned(r.heap, 1000, 2 * MIB, r.streams[0], &block));
  const uint64_t live = rig_stats(&r).live_bytes;
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  const tarn_stats_scope_result result = end(scope);
  CHECK(live >= 2 * MIB);
  CHECK_EQ(result.live_peak_bytes, live);
  rig_close(&r);
}

/* What captures hold and have the driver do counts, too. */
static void arenas_count(void) {
  rig r;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_stats_scope *scope = begin(&r, NULL);
  const uint64_t before = rig_calls(&r);
  const tarn_arena_config config = {.size = sizeof(config), .reserve_bytes = 64 * MIB};
  CHECK_OK(tarn_arena_create(r.heap, &config, &arena));
  CHECK_OK(tarn_arena_sleep(arena, true));
  CHECK_OK(tarn_arena_wake(arena));
  CHECK_OK(tarn_arena_destroy(arena));
  const tarn_stats_scope_result result = end(scope);
  CHECK_EQ(result.driver_calls, rig_calls(&r) - before);
  CHECK(result.driver_calls >= 8);
  CHECK_EQ(result.reserved_peak_bytes, 64 * MIB);
  rig_close(&r);
}

static const test_case cases[] = {
    {"aligned grants", aligned_grants},
    {"arenas count", arenas_count},
    {"churn of a region", churn_of_a_region},
    {"the exact peak of live bytes", exact_peak},
    {"an exact peak for a moment", exact_peak_for_a_moment},
    {"the exact peak of threads", exact_peak_of_threads},
    {"hits come back", hits_come_back},
    {"nested and overlapping", nested_and_overlapping},
    {"of several threads", of_several_threads},
    {"wrong calls", wrong_calls},
};

TEST_MAIN(cases)
