/* SPDX-License-Identifier: MIT
 *
 * Pinned pools when calls fail: the n-th driver call and the n-th allocation of host memory, for
 * every n, once and for good. The call says so and changes nothing, the pool agrees with itself,
 * nothing is handed out too early, and once the fault is over the same calls succeed and nothing
 * leaks. */
#include "fault/fault_memory.h"
#include "fault/fault_step.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/pinned.h"

enum { MAX_CALLS = 20000, MAX_BLOCKS = 32, MIB = 1 << 20 };

typedef enum pool_kind { REGIONS, REGIONS_WITH_LIMITS, BUCKETS } pool_kind;

#define DEVICE "sim:256M,seed=3"

typedef struct pinned_world {
  rig rig;
  tarn_pinned *pool;
  pool_kind kind;
  bool is_armed;
  tarn_status expected;
  int n_blocks;
  rig_block blocks[MAX_BLOCKS];
} pinned_world;

/* Whether the call succeeded; if not, it failed as the fault lets it, and the pool is sound. */
static bool end_call(pinned_world *w, tarn_status status) {
  fault_memory_inside(false);
  if (status == TARN_OK) {
    return true;
  }
  if (!w->is_armed) {
    CHECK_STATUS(status, TARN_OK);
    return false;
  }
  if (status != TARN_LIMIT && status != TARN_HOST_MEMORY && status != TARN_STATE) {
    CHECK_STATUS(status, w->expected);
  }
  tarn_error error = {.size = sizeof(error)};
  CHECK_EQ(tarn_last_error(&error), status);
  CHECK(error.message[0] != '\0');
  if (w->expected != TARN_DEVICE_LOST) {
    CHECK_OK(tarn_pinned_check(w->pool));
  }
  return false;
}

#define PASSED(w, call) (fault_memory_inside(true), end_call((w), (call)))

static void take(pinned_world *w, uint64_t bytes, int stream) {
  void *block = w;
  if (!PASSED(w, tarn_pinned_alloc(w->pool, bytes, &block))) {
    CHECK(block == NULL);
    return;
  }
  rig_own(&w->rig, (uintptr_t)block, bytes, &w->blocks[w->n_blocks]);
  rig_host_fill(block, 0x5a, 1);
  rig_host_fill((char *)block + bytes - 1, 0x5a, 1);
  rig_touch(&w->rig, &w->blocks[w->n_blocks], w->rig.streams[stream], true);
  w->n_blocks++;
}

/* In the order of the stream that used it, or after waiting for it. */
static void give(pinned_world *w, int index, int stream, bool is_waiting) {
  rig_block *block = &w->blocks[index];
  if (index >= w->n_blocks ||
      (is_waiting && !PASSED(w, tarn_stream_synchronize(w->rig.device, w->rig.streams[stream])))) {
    return;
  }
  void *pointer = (void *)(uintptr_t)block->address;
  CHECK_OK(tarn_sim_disown(w->rig.device, block->address, block->bytes));
  const bool is_given =
      is_waiting ? PASSED(w, tarn_pinned_free(w->pool, pointer))
                 : PASSED(w, tarn_pinned_free_on(w->pool, pointer, w->rig.streams[stream]));
  if (is_given) {
    *block = w->blocks[--w->n_blocks];
  } else {
    CHECK_OK(tarn_sim_own(w->rig.device, block->address, block->bytes, block->owner));
  }
}

static void give_all(pinned_world *w) {
  for (int stream = 0; stream < 2; stream++) { /* so that nothing is under way */
    (void)PASSED(w, tarn_stream_synchronize(w->rig.device, w->rig.streams[stream]));
  }
  for (int i = w->n_blocks; i-- != 0;) {
    give(w, i, i % 2, false);
  }
}

static void play(pinned_world *w) {
  take(w, 700, 0);
  take(w, 3 * MIB, 0);
  take(w, 60000, 0);
  give(w, 2, 0, false);
  give(w, 1, 0, false);
  take(w, 60000, 1);
  take(w, 2 * MIB, 1);
  (void)PASSED(w, tarn_pinned_trim(w->pool, 0));
  give(w, 0, 0, true);
  if (w->kind != BUCKETS) {
    (void)PASSED(w, tarn_pinned_reserve(w->pool, 10 * MIB));
  }
  take(w, 7 * MIB, 0); /* near the limit: the ladder */
  take(w, 3 * MIB, 0);
  give_all(w);
  (void)PASSED(w, tarn_pinned_stream_retire(w->pool, w->rig.streams[0]));
  (void)PASSED(w, tarn_pinned_trim(w->pool, 2 * MIB));
}

static tarn_pinned_config config_of(pool_kind kind) {
  const bool is_counted = kind == REGIONS_WITH_LIMITS;
  if (kind == BUCKETS) {
    return (tarn_pinned_config){.size = sizeof(tarn_pinned_config),
                                .device = DEVICE,
                                .limit_bytes = 18 * MIB,
                                .cached_limit_bytes = 8 * MIB,
                                .rounding = TARN_PINNED_POWER_OF_TWO};
  }
  return (tarn_pinned_config){.size = sizeof(tarn_pinned_config),
                              .device = DEVICE,
                              .limit_bytes = 18 * MIB,
                              .region_bytes = 2 * MIB,
                              .live_limit_bytes = is_counted ? 14 * MIB : 0,
                              .cached_limit_bytes = is_counted ? 10 * MIB : 0};
}

static bool world_open(pinned_world *w, pool_kind kind) {
  *w = (pinned_world){.kind = kind};
  const tarn_pinned_config config = config_of(kind);
  return rig_open_device(&w->rig, DEVICE, 2) && CHECK_OK(tarn_pinned_create(&config, &w->pool));
}

/* The fault is over: all works, nothing is lost. */
static void world_close(pinned_world *w) {
  w->is_armed = false;
  CHECK_OK(tarn_pinned_check(w->pool));
  for (int i = 0; i < 2; i++) { /* shows streams that the driver seemed not to know */
    CHECK_OK(tarn_pinned_stream_retire(w->pool, w->rig.streams[i]));
  }
  give_all(w);
  CHECK_EQ(w->n_blocks, 0);
  play(w);
  CHECK_EQ(w->n_blocks, 0);
  CHECK_OK(tarn_pinned_trim(w->pool, 0));
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_pinned_get_stats(w->pool, &stats));
  CHECK_EQ(stats.reserved_bytes, 0);
  CHECK_OK(tarn_pinned_check(w->pool));
  CHECK_OK(tarn_pinned_destroy(w->pool, NULL));
  rig_close(&w->rig);
}

/* ---- Driver calls ---- */

static uint64_t driver_once(uint64_t nth, uint64_t times, int code, pool_kind kind) {
  static const struct {
    int code;
    tarn_status status;
  } meanings[] = {
      {1, TARN_INVALID}, {2, TARN_DEVICE_MEMORY}, {801, TARN_UNSUPPORTED}, {700, TARN_DEVICE_LOST}};
  static pinned_world w;
  if (!world_open(&w, kind)) {
    return 0;
  }
  for (unsigned i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
    w.expected = meanings[i].code == code ? meanings[i].status : w.expected;
  }
  CHECK_OK(tarn_sim_fail(w.rig.device, TARN_CALL_COUNT, nth, times, code));
  w.is_armed = true;
  play(&w);
  uint64_t n = 0;
  CHECK_OK(tarn_sim_failed(w.rig.device, &n));
  CHECK_OK(tarn_sim_fail(w.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  if (n == 0 || code != 700) {
    world_close(&w);
    return n;
  }
  CHECK_OK(tarn_pinned_destroy(w.pool, NULL)); /* nothing can be given back, and nothing hangs */
  tarn_device_close(w.rig.device);
  CHECK_EQ(w.rig.n_findings, 0);
  return n;
}

static void driver_all(pool_kind kind) {
  static const int codes[] = {2, 1, 801, 700};
  uint64_t n_runs = 0;
  for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
    for (uint64_t times = 0; times < 2; times++) {
      for (uint64_t nth = 1 + i % FAULT_STEP;
           nth < MAX_CALLS && driver_once(nth, times, codes[i], kind) != 0; nth += FAULT_STEP) {
        n_runs++;
        if (test_case_failed()) {
          test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                    times == 0 ? "for good" : "once", codes[i]);
          return;
        }
      }
    }
  }
  CHECK(n_runs > 8);
  test_note("%llu faults", (unsigned long long)n_runs);
}

static void driver_calls(void) {
  driver_all(REGIONS);
}

static void driver_calls_counted(void) {
  driver_all(REGIONS_WITH_LIMITS);
}

static void driver_calls_buckets(void) {
  driver_all(BUCKETS);
}

/* ---- Host memory ---- */

static uint64_t memory_once(uint64_t nth, bool for_good, pool_kind kind) {
  static pinned_world w;
  if (!world_open(&w, kind)) {
    return 0;
  }
  fault_memory_arm(nth, for_good);
  w.is_armed = true;
  w.expected = TARN_HOST_MEMORY;
  play(&w);
  give_all(&w);
  CHECK_EQ(w.n_blocks, 0); /* a free never fails for lack of memory */
  const uint64_t n = fault_memory_disarm();
  world_close(&w);
  return n;
}

static void memory_all(pool_kind kind) {
  if (!fault_memory_can_fail()) {
    test_skip("this build's allocator cannot be made to fail");
    return;
  }
  uint64_t n_runs = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    for (uint64_t nth = 1; nth < MAX_CALLS && memory_once(nth, for_good != 0, kind) != 0; nth++) {
      n_runs++;
      if (test_case_failed()) {
        test_note("the fault was: allocation %llu, %s", (unsigned long long)nth,
                  for_good != 0 ? "for good" : "once");
        return;
      }
    }
  }
  CHECK(n_runs > 2);
  test_note("%llu faults", (unsigned long long)n_runs);
}

static void host_memory(void) {
  memory_all(REGIONS);
}

static void host_memory_buckets(void) {
  memory_all(BUCKETS);
}

static void creating(void) {
  if (!fault_memory_can_fail()) {
    test_skip("this build's allocator cannot be made to fail");
    return;
  }
  const tarn_pinned_config config = config_of(REGIONS);
  rig r;
  REQUIRE(rig_open_device(&r, DEVICE, 1));
  tarn_pinned *pool = NULL;
  uint64_t nth = 1;
  for (bool is_over = false; !is_over && !test_case_failed(); nth++) {
    fault_memory_arm(nth, false);
    fault_memory_inside(true);
    const tarn_status status = tarn_pinned_create(&config, &pool);
    fault_memory_inside(false);
    is_over = fault_memory_disarm() == 0;
    CHECK((status == TARN_OK) == (pool != NULL));
    if (status != TARN_OK) { /* a trial that fails for lack of memory keeps nobody from a pool */
      CHECK(!is_over);
      CHECK_STATUS(status, TARN_HOST_MEMORY);
    }
    CHECK_OK(tarn_pinned_destroy(pool, NULL));
  }
  CHECK(nth > 4);
  rig_close(&r);
}

/* The system has no such memory, or the driver does not pin it: the pool says whose it is. */
static void refused(void) {
  static pinned_world w;
  REQUIRE(world_open(&w, REGIONS));
  void *block = &w;
  CHECK_OK(tarn_sim_fail(w.rig.device, TARN_CALL_HOST_REGISTER, 1, 0, 2));
  CHECK_STATUS(tarn_pinned_alloc(w.pool, 1000, &block), TARN_HOST_MEMORY);
  CHECK(block == NULL);
  CHECK_HAS(tarn_last_message(), "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_OK(tarn_sim_fail(w.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  world_close(&w);
}

static const test_case cases[] = {
    {"driver calls", driver_calls},
    {"driver calls, with limits", driver_calls_counted},
    {"driver calls, of a pool of buckets", driver_calls_buckets},
    {"host memory", host_memory},
    {"host memory, of a pool of buckets", host_memory_buckets},
    {"creating a pool", creating},
    {"refused", refused},
};

TEST_MAIN(cases)
