/* SPDX-License-Identifier: MIT
 *
 * Defects that memory managers like this one have had, each shown to be absent: in the heap of
 * chunks and in those whose blocks are the driver's own allocations. A case is named by the numbers
 * of docs/parity.md. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, KINDS = 5 };

/* Every kind of heap that there is. */
static tarn_heap_config kind_of(int kind) {
  static const tarn_heap_config kinds[KINDS] = {
      {.size = sizeof(tarn_heap_config)},
      {.size = sizeof(tarn_heap_config), .preset = TARN_PRESET_POWER_BUCKETS},
      {.size = sizeof(tarn_heap_config), .preset = TARN_PRESET_EXACT_POOL},
      {.size = sizeof(tarn_heap_config),
       .backing = TARN_BACKING_PLAIN,
       .rounding = TARN_ROUNDING_CLASSES},
      {.size = sizeof(tarn_heap_config),
       .backing = TARN_BACKING_VMM,
       .rounding = TARN_ROUNDING_EXACT}};
  return kinds[kind];
}

#define EACH_KIND(kind) for (int kind = 0; kind < KINDS && !test_case_failed(); kind++)

static bool open_kind(rig *r, int kind, const char *device, int n_streams) {
  const tarn_heap_config config = kind_of(kind);
  return rig_open(r, device, &config, n_streams);
}

static uint64_t count_calls(const rig *r, tarn_call call) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(r->device, &counts));
  return counts.calls[call];
}

/* ---- Order ---- */

/* A block on one stream, now and then read by the next one, and given back. */
static void use_and_give_back(rig *r, int i) {
  rig_block block;
  tarn_stream stream = r->streams[i % 3], other = r->streams[(i + 1) % 3];
  REQUIRE_OK(rig_alloc(r, 8 * MIB, stream, &block));
  if (i % 4 == 1) {
    CHECK_OK(tarn_stream_synchronize(r->device, stream));
    CHECK_OK(tarn_use(r->heap, block.address, other));
    rig_touch(r, &block, other, false);
  }
  CHECK_OK(rig_free(r, &block, stream));
}

/* V1, N7: a block that was given back is another stream's only once its work is done, also when
 * a third stream had a part in it. The oracle of the simulated GPU judges every use. */
static void reuse_is_ordered(void) {
  EACH_KIND(kind) {
    for (int policy = TARN_STEAL_WHEN_SHORT; policy <= TARN_STEAL_ALWAYS; policy++) {
      tarn_heap_config config = kind_of(kind);
      config.stealing = (tarn_stealing)policy;
      rig r;
      REQUIRE(rig_open(&r, "sim:16M,order=lazy", &config, 3));
      for (int i = 0; i < 12; i++) {
        use_and_give_back(&r, i);
      }
      CHECK(rig_is_sound(&r));
      rig_close(&r);
    }
  }
}

/* V14: within a stream a block is used again at once; the host waits for nothing. */
static void pipelined(void) {
  EACH_KIND(kind) {
    rig r;
    rig_block block;
    REQUIRE(open_kind(&r, kind, "sim:64M,order=lazy", 1));
    for (int i = 0; i < 20; i++) {
      CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
      CHECK_OK(rig_free(&r, &block, r.streams[0]));
    }
    CHECK_EQ(rig_stats(&r).reserved_peak_bytes, 4 * MIB);
    CHECK_EQ(count_calls(&r, TARN_CALL_EVENT_SYNC) + count_calls(&r, TARN_CALL_STREAM_SYNC), 0);
    rig_close(&r);
  }
}

/* ---- Wrong use ---- */

/* V5, N15: a block given back twice has no second owner; pointers from elsewhere and wrong sizes
 * are refused. */
static void given_back_twice(void) {
  EACH_KIND(kind) {
    rig r;
    tarn_ptr a, b, c;
    REQUIRE(open_kind(&r, kind, "sim:64M", 2));
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &a));
    CHECK_STATUS(tarn_free_sized(r.heap, a, 0, r.streams[0]), TARN_WRONG_SIZE);
    CHECK_STATUS(tarn_free_sized(r.heap, a, 9 * MIB, r.streams[0]), TARN_WRONG_SIZE);
    CHECK_STATUS(tarn_free(r.heap, a + 4096, r.streams[0]), TARN_INTERIOR);
    CHECK_STATUS(tarn_free(r.heap, (uintptr_t)&r, r.streams[0]), TARN_FOREIGN);
    CHECK_OK(tarn_free(r.heap, a, r.streams[0]));
    CHECK_STATUS(tarn_free(r.heap, a, r.streams[0]), TARN_DOUBLE_FREE);
    CHECK_STATUS(tarn_free(r.heap, a, r.streams[1]), TARN_DOUBLE_FREE);
    CHECK_STATUS(tarn_use(r.heap, a, r.streams[1]), TARN_DOUBLE_FREE);
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &b));
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &c));
    CHECK(b != c);
    CHECK_OK(tarn_free(r.heap, b, r.streams[0]));
    CHECK_OK(tarn_free(r.heap, c, r.streams[0]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* V15: a block knows its device: another device's heap, and another heap of this one, refuse it. */
static void of_another_device(void) {
  EACH_KIND(kind) {
    rig r, other;
    tarn_ptr block;
    REQUIRE(open_kind(&r, kind, "sim:64M", 1));
    REQUIRE(open_kind(&other, kind, "sim:32M", 1));
    CHECK_OK(tarn_alloc(r.heap, 100 * KIB, r.streams[0], &block));
    CHECK_STATUS(tarn_free(other.heap, block, other.streams[0]), TARN_FOREIGN);
    CHECK_EQ(rig_stats(&r).live_blocks, 1);
    CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    rig_close(&other);
    rig_close(&r);
  }
}

/* ---- Clearing ---- */

typedef struct clear_race {
  rig rig;
  atomic_bool is_over;
} clear_race;

static void *clear_all_the_time(void *user) {
  clear_race *race = user;
  while (!atomic_load(&race->is_over)) {
    CHECK_OK(tarn_heap_trim(race->rig.heap, 0));
  }
  return NULL;
}

static void *release_all_the_time(void *user) {
  clear_race *race = user;
  tarn_ptr blocks[4];
  for (int i = 0; i < 300; i++) {
    for (int j = 0; j < 4; j++) {
      CHECK_OK(tarn_alloc(race->rig.heap, (uint64_t)(1 + j) * 600 * KIB, race->rig.streams[0],
                          &blocks[j]));
    }
    for (int j = 0; j < 4; j++) {
      CHECK_OK(tarn_free(race->rig.heap, blocks[j], race->rig.streams[0]));
    }
  }
  return NULL;
}

/* V6, V7: what is given back while everything is cleared is neither lost nor miscounted. */
static void cleared_meanwhile(void) {
  EACH_KIND(kind) {
    static clear_race race;
    atomic_store(&race.is_over, false);
    REQUIRE(open_kind(&race.rig, kind, "sim:1G", 1));
    pthread_t clearing, releasing[2];
    CHECK_EQ(pthread_create(&clearing, NULL, clear_all_the_time, &race), 0);
    for (int i = 0; i < 2; i++) {
      CHECK_EQ(pthread_create(&releasing[i], NULL, release_all_the_time, &race), 0);
    }
    for (int i = 0; i < 2; i++) {
      CHECK_EQ(pthread_join(releasing[i], NULL), 0);
    }
    atomic_store(&race.is_over, true);
    CHECK_EQ(pthread_join(clearing, NULL), 0);
    CHECK(rig_is_sound(&race.rig));
    CHECK_EQ(rig_stats(&race.rig).live_bytes, 0);
    CHECK_OK(tarn_heap_trim(race.rig.heap, 0));
    CHECK_EQ(rig_stats(&race.rig).reserved_bytes, 0);
    CHECK_EQ(rig_state(&race.rig).created_bytes, 0);
    rig_close(&race.rig);
  }
}

/* V11: blocks that were out while everything was cleared are kept like any others when they come
 * back. */
static void out_while_cleared(void) {
  EACH_KIND(kind) {
    rig r;
    tarn_ptr blocks[8];
    REQUIRE(open_kind(&r, kind, "sim:64M", 1));
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &blocks[i]));
    }
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    const uint64_t n = rig_calls(&r);
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
    }
    CHECK_EQ(rig_calls(&r), n);
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &blocks[i]));
    }
    CHECK_EQ(count_calls(&r, TARN_CALL_PLAIN_ALLOC) + count_calls(&r, TARN_CALL_POOL_ALLOC) +
                 count_calls(&r, TARN_CALL_CREATE),
             8);
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
    }
    rig_close(&r);
  }
}

/* ---- Shortage ---- */

/* V9: memory that is kept does not make an allocation fail. */
static void kept_memory_is_found(void) {
  EACH_KIND(kind) {
    rig r;
    rig_block block;
    REQUIRE(open_kind(&r, kind, "sim:64M,order=lazy", 2));
    CHECK_OK(rig_alloc(&r, 30 * MIB, r.streams[0], &block));
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK_OK(rig_alloc(&r, 50 * MIB, r.streams[1], &block));
    CHECK_OK(rig_free(&r, &block, r.streams[1]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

typedef struct limit_race {
  rig rig;
  _Atomic uint64_t n_got;
} limit_race;

static void *take_eight(void *user) {
  limit_race *race = user;
  for (int i = 0; i < 8; i++) {
    tarn_ptr block;
    const tarn_status status = tarn_alloc(race->rig.heap, 4 * MIB, race->rig.streams[0], &block);
    CHECK(status == TARN_OK || (status == TARN_LIMIT && block == 0));
    atomic_fetch_add(&race->n_got, status == TARN_OK);
  }
  return NULL;
}

/* V9: a limit is kept by whoever takes, not by a look beforehand: threads that ask at once get what
 * there is and not a byte more. */
static void limits_hold_at_once(void) {
  EACH_KIND(kind) {
    for (int is_live = 0; is_live < (kind == 0 ? 1 : 2); is_live++) {
      static limit_race race;
      tarn_heap_config config = kind_of(kind);
      config.limit_bytes = is_live != 0 ? 0 : 32 * MIB;
      config.live_limit_bytes = is_live != 0 ? 32 * MIB : 0;
      atomic_store(&race.n_got, 0);
      REQUIRE(rig_open(&race.rig, "sim:256M", &config, 1));
      pthread_t threads[4];
      for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, take_eight, &race), 0);
      }
      for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
      }
      CHECK_EQ(atomic_load(&race.n_got), 8);
      CHECK_EQ(rig_stats(&race.rig).live_bytes, 32 * MIB);
      CHECK_EQ(rig_stats(&race.rig).reserved_peak_bytes, 32 * MIB);
      CHECK(rig_is_sound(&race.rig));
      rig_close_live(&race.rig, 8);
    }
  }
}

/* N13: only shortage is shortage. Any other error of the driver is told as it is, and costs
 * nothing that was kept. */
static void other_errors(void) {
  static const struct {
    int code;
    tarn_status status;
  } errors[] = {{801, TARN_UNSUPPORTED}, {1, TARN_INVALID}, {999, TARN_DRIVER}};
  EACH_KIND(kind) {
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
      rig r;
      tarn_ptr a, b = 1;
      REQUIRE(open_kind(&r, kind, "sim:64M", 1));
      CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &a));
      CHECK_OK(tarn_free(r.heap, a, r.streams[0]));
      const tarn_heap_stats before = rig_stats(&r);
      static const tarn_call calls[KINDS] = {TARN_CALL_CREATE, TARN_CALL_PLAIN_ALLOC,
                                             TARN_CALL_POOL_ALLOC, TARN_CALL_PLAIN_ALLOC,
                                             TARN_CALL_CREATE};
      CHECK_OK(tarn_sim_fail(r.device, calls[kind], 1, 0, errors[i].code));
      CHECK_STATUS(tarn_alloc(r.heap, 16 * MIB, r.streams[0], &b), errors[i].status);
      CHECK_EQ(b, 0);
      tarn_error error = {.size = sizeof(error)};
      (void)tarn_last_error(&error);
      CHECK_EQ(error.driver_code, errors[i].code);
      CHECK_EQ(rig_stats(&r).reserved_bytes, before.reserved_bytes);
      CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
      CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &b)); /* what was kept is still there */
      CHECK_EQ(a, b);
      CHECK_OK(tarn_free(r.heap, b, r.streams[0]));
      rig_close(&r);
    }
  }
}

/* ---- What is kept ---- */

/* V13: a size that nobody wants any more does not hold the budget for ever. */
static void useless_sizes_age(void) {
  for (int kind = 1; kind < KINDS; kind++) {
    tarn_heap_config config = kind_of(kind);
    config.cached_limit_bytes = 16 * MIB;
    rig r;
    tarn_ptr dead[8], hot;
    REQUIRE(rig_open(&r, "sim:256M", &config, 1));
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &dead[i]));
    }
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarn_free(r.heap, dead[i], r.streams[0]));
    }
    CHECK_EQ(rig_stats(&r).cached_bytes, 16 * MIB);
    for (int i = 0; i < 5; i++) {
      CHECK_OK(tarn_alloc(r.heap, 8 * MIB, r.streams[0], &hot));
      CHECK_OK(tarn_free(r.heap, hot, r.streams[0]));
    }
    CHECK_EQ(rig_stats(&r).misses, 9);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* N10: what was just given back, and costs most to get again, is not what goes first. */
static void largest_is_not_first(void) {
  for (int kind = 1; kind < KINDS; kind++) {
    tarn_heap_config config = kind_of(kind);
    config.cached_limit_bytes = 20 * MIB;
    rig r;
    tarn_ptr a, b, large;
    REQUIRE(rig_open(&r, "sim:256M", &config, 1));
    CHECK_OK(tarn_alloc(r.heap, 16 * MIB, r.streams[0], &large));
    CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &a));
    CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &b));
    CHECK_OK(tarn_free(r.heap, a, r.streams[0]));
    CHECK_OK(tarn_free(r.heap, b, r.streams[0]));
    CHECK_OK(tarn_free(r.heap, large, r.streams[0]));
    CHECK_EQ(rig_stats(&r).cached_bytes, 20 * MIB);
    const tarn_ptr kept = large;
    CHECK_OK(tarn_alloc(r.heap, 16 * MIB, r.streams[0], &large));
    CHECK_EQ(large, kept);
    CHECK_EQ(rig_stats(&r).misses, 3);
    CHECK_OK(tarn_free(r.heap, large, r.streams[0]));
    rig_close(&r);
  }
}

/* V10, N11: sizes that change all the time, and large ones, cost neither twice the memory nor a
 * driver call each. This is what the heap of chunks is for. */
static void changing_sizes(void) {
  rig r;
  REQUIRE(open_kind(&r, 0, "sim:1G", 1));
  uint64_t n = 0;
  for (int pass = 0; pass < 2; pass++) {
    n = rig_calls(&r);
    for (uint64_t i = 0; i < 200; i++) {
      tarn_ptr block;
      CHECK_OK(tarn_alloc(r.heap, 129 * MIB + i * 70001, r.streams[0], &block));
      CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    }
    CHECK(rig_stats(&r).reserved_peak_bytes < 2 * 129 * MIB);
  }
  CHECK_EQ(rig_calls(&r), n); /* the second time all of it is there */
  rig_close(&r);
}

/* ---- The driver ---- */

typedef struct slow_free {
  rig rig;
  atomic_bool may_end, is_running;
} slow_free;

static void run_slowly(void *user) {
  slow_free *slow = user;
  atomic_store(&slow->is_running, true);
  while (!atomic_load(&slow->may_end)) {
  }
}

static void *trim_all(void *user) {
  const slow_free *slow = user;
  CHECK_OK(tarn_heap_trim(slow->rig.heap, 0));
  return NULL;
}

/* V12: while one thread waits in the driver, to which it gives memory back, others go on. */
static void nobody_waits_for_the_driver(void) {
  EACH_KIND(kind) {
    static slow_free slow;
    atomic_store(&slow.may_end, false);
    atomic_store(&slow.is_running, false);
    REQUIRE(open_kind(&slow.rig, kind, "sim:64M,order=lazy", 1));
    rig *r = &slow.rig;
    tarn_ptr kept, other;
    CHECK_OK(tarn_alloc(r->heap, 8 * MIB, r->streams[0], &kept));
    CHECK_OK(tarn_alloc(r->heap, 1000, r->streams[0], &other));
    const tarn_sim_kernel kernel = {.size = sizeof(kernel), .run = run_slowly, .user = &slow};
    CHECK_OK(tarn_sim_launch(r->device, &kernel, r->streams[0]));
    CHECK_OK(tarn_free(r->heap, kept, r->streams[0]));
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, trim_all, &slow), 0);
    while (!atomic_load(&slow.is_running)) {
    }
    for (int i = 0; i < 100; i++) { /* would hang here */
      CHECK_OK(tarn_free(r->heap, other, r->streams[0]));
      CHECK_OK(tarn_alloc(r->heap, 1000, r->streams[0], &other));
    }
    atomic_store(&slow.may_end, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_OK(tarn_free(r->heap, other, r->streams[0]));
    rig_close(r);
  }
}

/* N14: a heap has a pool of its own, once; what the driver keeps for others is not touched, and
 * idle memory is not kept twice unless somebody says so. */
static void private_pool(void) {
  tarn_heap_config config = kind_of(2);
  config.preset = TARN_PRESET_NONE;
  config.backing = TARN_BACKING_POOL;
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_EQ(count_calls(&r, TARN_CALL_POOL_CREATE), 1);
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  rig_close(&r);
}

/* N15, N16, V8: reset refuses while blocks are live and says how many; a heap that is destroyed
 * has given everything back; counters count. */
static void busy_and_gone(void) {
  EACH_KIND(kind) {
    rig r;
    tarn_ptr a, b;
    REQUIRE(open_kind(&r, kind, "sim:64M", 1));
    CHECK_OK(tarn_alloc(r.heap, 3 * MIB, r.streams[0], &a));
    CHECK_OK(tarn_alloc(r.heap, 0, r.streams[0], &b));
    CHECK_EQ(rig_stats(&r).live_blocks, 1);
    CHECK_STATUS(tarn_heap_reset(r.heap), TARN_BUSY);
    CHECK_HAS(tarn_last_message(), "1 blocks");
    CHECK_OK(tarn_free(r.heap, b, r.streams[0])); /* nothing is a block of no bytes */
    CHECK_OK(tarn_free(r.heap, a, r.streams[0]));
    CHECK_OK(tarn_heap_reset(r.heap));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK_EQ(rig_stats(&r).reserved_peak_bytes, 0);
    CHECK_EQ(rig_state(&r).created_bytes, 0);
    CHECK_OK(tarn_alloc(r.heap, 3 * MIB, r.streams[0], &a));
    CHECK(rig_is_sound(&r));
    rig_close_live(&r, 1); /* with a block: told, and nothing leaks */
  }
}

/* V16, V2: on a broken device everything ends with that error, and nothing spins or is reused. */
static void broken_device(void) {
  EACH_KIND(kind) {
    rig r;
    tarn_ptr a, b = 1;
    REQUIRE(open_kind(&r, kind, "sim:64M,order=lazy", 2));
    CHECK_OK(tarn_alloc(r.heap, 8 * MIB, r.streams[0], &a));
    CHECK_OK(tarn_free(r.heap, a, r.streams[0]));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 1, 0, 700));
    CHECK_STATUS(tarn_alloc(r.heap, 60 * MIB, r.streams[0], &b), TARN_DEVICE_LOST);
    CHECK_EQ(b, 0);
    CHECK_STATUS(tarn_heap_trim(r.heap, 0), TARN_DEVICE_LOST);
    uint64_t n_live = 7;
    CHECK_OK(tarn_heap_destroy(r.heap, &n_live));
    CHECK_EQ(n_live, 0);
    tarn_device_close(r.device);
    CHECK_EQ(r.n_findings, 0);
  }
}

static const test_case cases[] = {
    {"V1 N7 reuse is ordered", reuse_is_ordered},
    {"V2 V16 a broken device", broken_device},
    {"V5 N15 given back twice", given_back_twice},
    {"V6 V7 cleared meanwhile", cleared_meanwhile},
    {"V8 N15 N16 busy and gone", busy_and_gone},
    {"V9 kept memory is found", kept_memory_is_found},
    {"V9 limits hold at once", limits_hold_at_once},
    {"V10 N11 changing sizes", changing_sizes},
    {"V11 out while cleared", out_while_cleared},
    {"V12 nobody waits for the driver", nobody_waits_for_the_driver},
    {"V13 useless sizes age", useless_sizes_age},
    {"V14 pipelined", pipelined},
    {"V15 of another device", of_another_device},
    {"N10 the largest is not first", largest_is_not_first},
    {"N13 other errors", other_errors},
    {"N14 a private pool", private_pool},
};

TEST_MAIN(cases)
