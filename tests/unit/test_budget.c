/* SPDX-License-Identifier: MIT
 *
 * Budgets: what is promised is held against everybody, what cannot be promised is told with the
 * numbers and leaves nothing behind. */
#include "tarn/budget.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "support/rig.h"
#include "support/test.h"

#define MIB ((uint64_t)1 << 20)

static tarn_budget_info info_of(tarn_budget *budget) {
  tarn_budget_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_budget_get_info(budget, &info));
  return info;
}

/* ---- One budget ---- */

static void drawn(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  static const uint64_t bytes[] = {1000, 3 << 20, 0, 300, 1000};
  tarn_budget *budget = NULL;
  tarn_budget_info info = {.size = sizeof(info)};
  REQUIRE_OK(tarn_budget_create(r.heap, bytes, 5, r.streams[0], &info, &budget));
  CHECK_EQ(info.required_bytes, 1024 + 3 * MIB + 512 + 1024);
  CHECK_EQ(info.held_bytes, info.required_bytes);
  CHECK_EQ(info.held_blocks, 4);
  CHECK_EQ(rig_stats(&r).live_bytes, info.required_bytes);
  tarn_ptr small, other, large, none = 1;
  CHECK_OK(tarn_budget_alloc(budget, 0, &none));
  CHECK_EQ(none, 0);
  CHECK_OK(tarn_budget_alloc(budget, 400, &small)); /* the smallest that fits */
  CHECK_EQ(info_of(budget).held_bytes, 1024 + 3 * MIB + 1024);
  CHECK_OK(tarn_budget_alloc(budget, 3 << 20, &large));
  CHECK_OK(tarn_budget_alloc(budget, 513, &other));
  none = 1;
  CHECK_STATUS(tarn_budget_alloc(budget, 1025, &none), TARN_LIMIT);
  CHECK_EQ(none, 0);
  CHECK_EQ(info_of(budget).held_blocks, 1);
  CHECK_OK(tarn_budget_destroy(budget));
  CHECK_EQ(rig_stats(&r).live_blocks, 3); /* what was drawn is the caller's */
  CHECK_OK(tarn_free(r.heap, small, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, other, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, large, r.streams[0]));
  CHECK_EQ(rig_stats(&r).live_bytes, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Guards lie behind what was asked for, and count: a block is freed with the size that was. */
static void of_a_heap_with_guards(void) {
  enum { GUARD = 1 << 16 };
  const tarn_heap_config config = {.size = sizeof(config), .guard_bytes = GUARD};
  static const uint64_t bytes[] = {1000, 1 << 20, 2000, 100000};
  rig r;
  tarn_budget *budget = NULL;
  tarn_budget_info info = {.size = sizeof(info)};
  tarn_ptr blocks[4] = {0}, none = 1;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  REQUIRE_OK(tarn_budget_create(r.heap, bytes, 4, r.streams[0], &info, &budget));
  CHECK_EQ(info.required_bytes, rig_stats(&r).live_bytes);
  CHECK_EQ(info.held_bytes, rig_stats(&r).live_bytes);
  for (int i = 0; i < 4; i++) {
    CHECK_OK(tarn_budget_alloc(budget, bytes[i], &blocks[i]));
    tarn_block_info block = {.size = sizeof(block)};
    CHECK_OK(tarn_block_get_info(r.heap, blocks[i], &block));
    CHECK_EQ(block.requested_bytes, bytes[i]);
    if (i == 0) { /* what is left is larger, and not by its guard */
      CHECK_STATUS(tarn_budget_alloc(budget, (1 << 20) + 1, &none), TARN_LIMIT);
    }
  }
  for (int i = 0; i < 4; i++) {
    CHECK_OK(tarn_free_sized(r.heap, blocks[i], bytes[i], r.streams[0]));
  }
  CHECK_OK(tarn_budget_destroy(budget));
  rig_close(&r);
}

static void missing(void) {
  rig r;
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 32 * MIB};
  REQUIRE(rig_open(&r, "sim:256M", &config, 1));
  tarn_ptr block;
  REQUIRE_OK(tarn_alloc(r.heap, 20 * MIB, r.streams[0], &block));
  const tarn_heap_stats before = rig_stats(&r);
  const uint64_t bytes[] = {4 * MIB, 4 * MIB, 8 * MIB};
  tarn_budget *budget = (tarn_budget *)&r;
  tarn_budget_info info = {.size = sizeof(info)};
  CHECK_STATUS(tarn_budget_create(r.heap, bytes, 3, r.streams[0], &info, &budget), TARN_LIMIT);
  CHECK(budget == NULL);
  CHECK_EQ(info.required_bytes, 16 * MIB);
  CHECK_EQ(info.available_bytes, 12 * MIB);
  CHECK_EQ(info.limit_bytes, 32 * MIB);
  CHECK_EQ(info.held_bytes, 0);
  CHECK_HAS(tarn_last_message(), "16777216 bytes are required and 12582912 available");
  CHECK_HAS(tarn_last_message(), "4194304 are missing");
  CHECK_EQ(rig_stats(&r).live_bytes, before.live_bytes);
  /* More than there can ever be: nothing is even tried. */
  const uint64_t calls = rig_calls(&r), huge = 40 * MIB;
  CHECK_STATUS(tarn_budget_create(r.heap, &huge, 1, r.streams[0], &info, &budget), TARN_LIMIT);
  CHECK(rig_calls(&r) <= calls + 1); /* the question what the device has */
  CHECK_STATUS(
      tarn_budget_create(r.heap, (uint64_t[]){MIB, UINT64_MAX}, 2, r.streams[0], &info, &budget),
      TARN_OVERFLOWED);
  CHECK_STATUS(tarn_budget_create(r.heap, (uint64_t[]){UINT64_MAX / 2, UINT64_MAX / 2, MIB}, 3,
                                  r.streams[0], NULL, &budget),
               TARN_OVERFLOWED);
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Memory that the heap keeps counts as available, whichever thread, size or stream freed it. */
static void kept_counts(void) {
  rig r;
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 32 * MIB};
  REQUIRE(rig_open(&r, "sim:256M", &config, 2));
  tarn_ptr blocks[512];
  for (int i = 0; i < 512; i++) {
    REQUIRE_OK(tarn_alloc(r.heap, 60000, r.streams[1], &blocks[i]));
  }
  for (int i = 0; i < 512; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[1]));
  }
  CHECK(rig_stats(&r).cached_bytes > 28 * MIB);
  tarn_budget *budget = NULL;
  const uint64_t bytes[] = {30 * MIB};
  REQUIRE_OK(tarn_budget_create(r.heap, bytes, 1, r.streams[0], NULL, &budget));
  CHECK_EQ(info_of(budget).held_bytes, 30 * MIB);
  CHECK_OK(tarn_budget_destroy(budget));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void pinned(void) {
  rig r;
  REQUIRE(rig_open_device(&r, "sim:256M", 1));
  const tarn_pinned_config config = {.size = sizeof(config),
                                     .device = "sim:256M",
                                     .limit_bytes = 16 * MIB,
                                     .live_limit_bytes = 8 * MIB,
                                     .region_bytes = 2 * MIB};
  tarn_pinned *pool = NULL;
  REQUIRE_OK(tarn_pinned_create(&config, &pool));
  tarn_budget *budget = NULL;
  tarn_budget_info info = {.size = sizeof(info)};
  const uint64_t bytes[] = {100, 4 * MIB, 5000};
  REQUIRE_OK(tarn_budget_create_pinned(pool, bytes, 3, &info, &budget));
  CHECK_EQ(info.required_bytes, 256 + 4 * MIB + 5120);
  tarn_budget *second = NULL;
  const uint64_t more = 4 * MIB;
  CHECK_STATUS(tarn_budget_create_pinned(pool, &more, 1, &info, &second), TARN_LIMIT);
  CHECK_EQ(info.available_bytes, 4 * MIB - 256 - 5120); /* by the limit on live memory */
  tarn_ptr block;
  CHECK_OK(tarn_budget_alloc(budget, 5000, &block));
  rig_host_fill((void *)(uintptr_t)block, 3, 5000);
  CHECK(tarn_pinned_owns(pool, (void *)(uintptr_t)block, 5000));
  CHECK_OK(tarn_budget_destroy(budget));
  CHECK_OK(tarn_pinned_free(pool, (void *)(uintptr_t)block));
  const uint64_t huge = 17 * MIB;
  CHECK_STATUS(tarn_budget_create_pinned(pool, &huge, 1, &info, &second), TARN_LIMIT);
  CHECK_OK(tarn_pinned_check(pool));
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
  rig_close(&r);
}

static tarn_status nested_status;

static bool make_another(tarn_heap *heap, uint64_t bytes, void *user) {
  tarn_budget *budget = NULL;
  (void)user;
  nested_status = tarn_budget_create(heap, &bytes, 1, NULL, NULL, &budget);
  return false;
}

static void wrong_use(void) {
  rig r;
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 8 * MIB, .on_shortage = make_another};
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  const uint64_t bytes[] = {4 * MIB, 4 * MIB};
  tarn_budget *budget = (tarn_budget *)&r;
  tarn_ptr block = 1;
  CHECK_STATUS(tarn_budget_create(NULL, bytes, 1, r.streams[0], NULL, &budget), TARN_INVALID);
  CHECK(budget == NULL);
  CHECK_STATUS(tarn_budget_create(r.heap, NULL, 1, r.streams[0], NULL, &budget), TARN_INVALID);
  CHECK_STATUS(tarn_budget_create(r.heap, bytes, 1, r.streams[0], NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_budget_create_pinned(NULL, bytes, 1, NULL, &budget), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "pool is NULL");
  tarn_budget_info forgotten = {0};
  CHECK_STATUS(tarn_budget_create(r.heap, bytes, 1, r.streams[0], &forgotten, &budget),
               TARN_INVALID);
  CHECK_EQ(rig_stats(&r).live_bytes, 0);
  CHECK_STATUS(tarn_budget_alloc(NULL, 1, &block), TARN_INVALID);
  CHECK_EQ(block, 0);
  CHECK_OK(tarn_budget_destroy(NULL));
  CHECK_OK(tarn_budget_create(r.heap, NULL, 0, r.streams[0], NULL, &budget)); /* of nothing */
  CHECK_STATUS(tarn_budget_alloc(budget, 1, &block), TARN_LIMIT);
  CHECK_OK(tarn_budget_destroy(budget));
  REQUIRE_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &block));
  CHECK_STATUS(tarn_budget_create(r.heap, bytes, 2, r.streams[0], NULL, &budget), TARN_LIMIT);
  CHECK_EQ(nested_status, TARN_STATE); /* told, not waited for */
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  rig_close(&r);
}

/* ---- Many at once ---- */

enum { N_THREADS = 4, N_ROUNDS = 300 };

typedef struct contest {
  rig rig;
  _Atomic int n_holding;
  _Atomic uint64_t n_held, n_refused, n_failed;
  _Atomic int next;
} contest;

/* Each needs more than half of the heap: at most one can have it, and what it has it has. */
static void *compete(void *user) {
  contest *at = user;
  tarn_stream stream = at->rig.streams[atomic_fetch_add(&at->next, 1)];
  const uint64_t bytes[] = {3 * MIB, 5 * MIB, 100000, 700, 10 * MIB};
  for (int round = 0; round < N_ROUNDS; round++) {
    tarn_budget *budget = NULL;
    const tarn_status status = tarn_budget_create(at->rig.heap, bytes, 5, stream, NULL, &budget);
    tarn_ptr other = 0; /* takes what it can get meanwhile */
    if (tarn_alloc(at->rig.heap, 4 * MIB, stream, &other) == TARN_OK) {
      at->n_failed += tarn_free(at->rig.heap, other, stream) != TARN_OK;
    }
    if (status != TARN_OK) {
      at->n_failed += status != TARN_LIMIT || budget != NULL;
      at->n_refused++;
      continue;
    }
    at->n_held++;
    at->n_failed += atomic_fetch_add(&at->n_holding, 1) != 0;
    tarn_ptr blocks[4] = {0};
    for (int i = 0; i < 4; i++) { /* the last one stays with the budget */
      at->n_failed += tarn_budget_alloc(budget, bytes[i], &blocks[i]) != TARN_OK || blocks[i] == 0;
    }
    atomic_fetch_sub(&at->n_holding, 1); /* what is freed others may have */
    for (int i = 0; i < 4; i++) {
      at->n_failed += tarn_free(at->rig.heap, blocks[i], stream) != TARN_OK;
    }
    at->n_failed += tarn_budget_destroy(budget) != TARN_OK;
  }
  return NULL;
}

static void competing(void) {
  static contest at;
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 34 * MIB};
  REQUIRE(rig_open(&at.rig, "sim:256M", &config, N_THREADS));
  pthread_t threads[N_THREADS];
  for (int i = 0; i < N_THREADS; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, compete, &at) == 0);
  }
  for (int i = 0; i < N_THREADS; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK_EQ(at.n_failed, 0);
  CHECK(at.n_held > 0);
  CHECK_EQ(at.n_held + at.n_refused, N_THREADS * N_ROUNDS);
  CHECK_EQ(rig_stats(&at.rig).live_bytes, 0);
  CHECK(rig_is_sound(&at.rig));
  rig_close(&at.rig);
}

/* ---- Faults ---- */

static uint64_t fault_once(uint64_t nth, uint64_t times) {
  rig r;
  if (!rig_open(&r, "sim:64M", NULL, 1)) {
    return 0;
  }
  const uint64_t bytes[] = {3 * MIB, 700, 5 * MIB, 60000};
  tarn_budget *budget = (tarn_budget *)&r;
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, nth, times, 801));
  const tarn_status status = tarn_budget_create(r.heap, bytes, 4, r.streams[0], NULL, &budget);
  uint64_t n = 0;
  CHECK_OK(tarn_sim_failed(r.device, &n));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  if (status != TARN_OK) {
    CHECK_STATUS(status, TARN_UNSUPPORTED);
    CHECK(budget == NULL);
    CHECK_EQ(rig_stats(&r).live_blocks, 0);
    CHECK(rig_is_sound(&r));
    CHECK_OK(tarn_budget_create(r.heap, bytes, 4, r.streams[0], NULL, &budget));
  }
  CHECK_OK(tarn_budget_destroy(budget));
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
  return n;
}

static void faults(void) {
  uint64_t n_runs = 0;
  for (uint64_t times = 0; times < 2; times++) {
    for (uint64_t nth = 1; nth < 1000 && fault_once(nth, times) != 0; nth++) {
      n_runs++;
    }
  }
  CHECK(n_runs > 8);
}

/* The driver does not answer once while what was taken goes back: nothing of it stays live. */
static void faults_while_it_goes_back(void) {
  const tarn_heap_config verifying = {.size = sizeof(verifying), .is_verifying_streams = true};
  static const uint64_t sizes[3] = {20 << 20, 20 << 20, 8 << 20};
  for (uint64_t nth = 1; nth < 7; nth++) {
    rig r;
    rig_block block;
    tarn_budget *budget = NULL;
    REQUIRE(rig_open(&r, "sim:64M", &verifying, 1));
    CHECK_OK(rig_alloc(&r, 20 << 20, r.streams[0], &block));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_STREAM_ID, nth, 1, 999));
    CHECK(tarn_budget_create(r.heap, sizes, 3, r.streams[0], NULL, &budget) != TARN_OK);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    CHECK(budget == NULL);
    CHECK_EQ(rig_stats(&r).live_blocks, 1);
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    rig_close(&r);
  }
}

/* It does not answer at all for a while: what is live then goes back when the next budget is made,
 * when the heap is trimmed or reset, or with the heap. */
static void faults_that_last(void) {
  const tarn_heap_config verifying = {.size = sizeof(verifying), .is_verifying_streams = true};
  static const uint64_t sizes[3] = {20 << 20, 20 << 20, 20 << 20};
  for (int way = 0; way < 4; way++) {
    rig r;
    tarn_budget *budget = NULL;
    REQUIRE(rig_open(&r, "sim:64M", &verifying, 1));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_STREAM_ID, 3, 0, 999));
    CHECK(tarn_budget_create(r.heap, sizes, 3, r.streams[0], NULL, &budget) != TARN_OK);
    CHECK(budget == NULL);
    CHECK(rig_stats(&r).live_blocks != 0);
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK(rig_stats(&r).live_blocks != 0);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    if (way == 0) {
      CHECK_OK(tarn_budget_create(r.heap, sizes, 3, r.streams[0], NULL, &budget));
      CHECK_OK(tarn_budget_destroy(budget));
    } else if (way < 3) {
      CHECK_OK(way == 1 ? tarn_heap_trim(r.heap, 0) : tarn_heap_reset(r.heap));
    }
    CHECK_EQ(rig_stats(&r).live_blocks != 0, way == 3);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* What could not be given back goes before its stream does, or the stream stays. */
static void stream_goes(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 8 * MIB, .fill_free = 0x5a};
  const uint64_t bytes[2] = {4 * MIB, 3 * MIB};
  tarn_budget *budget = NULL;
  tarn_ptr other;
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &config, 2));
  CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[1], &other));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_FILL, 1, 0, 999));
  CHECK(tarn_budget_create(r.heap, bytes, 2, r.streams[0], NULL, &budget) != TARN_OK);
  CHECK_EQ(rig_stats(&r).live_blocks, 2);
  CHECK(tarn_stream_retire(r.heap, r.streams[0]) != TARN_OK);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_EQ(rig_stats(&r).live_blocks, 1);
  CHECK_OK(tarn_free(r.heap, other, r.streams[1]));
  rig_close(&r);
}

/* What captures hold cannot be had. */
static void beside_captures(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 64 * MIB};
  const uint64_t bytes = 40 * MIB;
  tarn_budget_info info = {.size = sizeof(info)};
  tarn_budget *budget = NULL;
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:256M", &config, 1));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 40 * MIB, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_STATUS(tarn_budget_create(r.heap, &bytes, 1, r.streams[0], &info, &budget), TARN_LIMIT);
  CHECK_EQ(info.available_bytes, 24 * MIB);
  CHECK_HAS(tarn_last_message(), "16777216 are missing");
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* In any order, each draw gives the smallest that is held and large enough; as a walk over all
 * finds it. */
static void smallest_of_many(void) {
  enum { N = 400, N_SIZES = 40 };
  rig r;
  tarn_budget *budget;
  uint64_t sizes[N], n_held[N_SIZES] = {0};
  tarni_rng rng = {5};
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  for (int i = 0; i < N; i++) {
    const uint64_t size = tarni_rng_below(&rng, N_SIZES);
    n_held[size]++;
    sizes[i] = ((uint64_t)2 << 20) + (size << 14);
  }
  REQUIRE(CHECK_OK(tarn_budget_create(r.heap, sizes, N, r.streams[0], NULL, &budget)));
  for (int i = 0; i < 3 * N; i++) {
    const uint64_t least = tarni_rng_below(&rng, N_SIZES);
    uint64_t want = least;
    while (want < N_SIZES && n_held[want] == 0) {
      want++;
    }
    tarn_ptr block;
    const tarn_status status =
        tarn_budget_alloc(budget, ((uint64_t)2 << 20) + (least << 14), &block);
    CHECK_STATUS(status, want < N_SIZES ? TARN_OK : TARN_LIMIT);
    if (status == TARN_OK && want < N_SIZES) {
      tarn_block_info info = {.size = sizeof(info)};
      CHECK_OK(tarn_block_get_info(r.heap, block, &info));
      CHECK_EQ(info.usable_bytes, ((uint64_t)2 << 20) + (want << 14));
      CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
      n_held[want]--;
    }
  }
  CHECK_OK(tarn_budget_destroy(budget));
  rig_close(&r);
}

static const test_case cases[] = {
    {"its stream goes", stream_goes},
    {"beside captures", beside_captures},
    {"faults while it goes back", faults_while_it_goes_back},
    {"faults that last", faults_that_last},
    {"drawn", drawn},
    {"the smallest of many", smallest_of_many},
    {"of a heap with guards", of_a_heap_with_guards},
    {"missing", missing},
    {"kept_counts", kept_counts},
    {"pinned", pinned},
    {"wrong_use", wrong_use},
    {"competing", competing},
    {"faults", faults},
};

TEST_MAIN(cases)
