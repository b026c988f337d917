/* SPDX-License-Identifier: MIT
 *
 * Streams that go: those that are retired leave everything behind, and their handles are used
 * again; those that are destroyed without a word are noticed, and what waits for them is found to
 * be complete or quarantined. The oracle looks at every use. */
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* What a retired stream held is everybody's, by a wait of nobody, once its work is complete. */
static void retired_memory_goes_to_all(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 16 * MIB, .stealing = TARN_STEAL_NEVER};
  rig r;
  rig_block small[20], large[3], block;
  REQUIRE(rig_open(&r, "sim:64M,order=eager", &config, 2));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_alloc(&r, 60 * KIB, r.streams[0], &small[i]));
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &large[i]));
  }
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_free(&r, &small[i], r.streams[0]));
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_free(&r, &large[i], r.streams[0]));
  }
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[1], &block));
  CHECK_EQ(rig_stats(&r).waits, 0);
  CHECK(rig_stats(&r).reserved_bytes <= 16 * MIB);
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_alloc(&r, 60 * KIB, r.streams[1], &small[i]));
  }
  CHECK(rig_is_sound(&r));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_free(&r, &small[i], r.streams[1]));
  }
  rig_close(&r);
}

/* Slabs of which a retired stream had a part are put together again, and nothing is lost. */
static void retired_parts_come_together(void) {
  rig r;
  rig_block blocks[40];
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  for (int round = 0; round < 5; round++) {
    tarn_stream stream;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    for (int i = 0; i < 40; i++) {
      CHECK_OK(rig_alloc(&r, 5 * KIB, stream, &blocks[i]));
    }
    CHECK_OK(tarn_stream_synchronize(r.device, stream)); /* so that others may free its blocks */
    for (int i = 0; i < 40; i++) {
      CHECK_OK(rig_free(&r, &blocks[i], i % 3 == 0 ? r.streams[0] : stream));
    }
    CHECK_OK(tarn_stream_retire(r.heap, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    rig_block large; /* looks through everything */
    CHECK_OK(rig_alloc(&r, 60 * MIB, r.streams[1], &large));
    CHECK_OK(rig_free(&r, &large, r.streams[1]));
    CHECK(rig_is_sound(&r));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
  rig_close(&r);
}

/* Far more streams than the heap keeps records of, most with the handle of an earlier one. */
static void many_streams_one_after_another(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 0));
  static tarn_stream seen[3000];
  uint64_t n_reused = 0;
  for (int i = 0; i < 3000; i++) {
    tarn_stream stream;
    rig_block small, large;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    for (int j = 0; j < i; j++) {
      if (seen[j] == stream) {
        n_reused++;
        break;
      }
    }
    seen[i] = stream;
    CHECK_OK(rig_alloc(&r, 700, stream, &small));
    CHECK_OK(rig_alloc(&r, 3 * MIB, stream, &large));
    CHECK_OK(rig_free(&r, &small, stream));
    CHECK_OK(rig_free(&r, &large, stream));
    CHECK_OK(tarn_stream_retire(r.heap, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    if (test_case_failed()) {
      return;
    }
  }
  CHECK(n_reused > 1000);
  CHECK(rig_stats(&r).reserved_bytes <= 64 * MIB);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Streams that only ever free or use, and never need memory themselves. */
static void many_streams_that_only_free(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  for (int i = 0; i < 2500; i++) {
    tarn_stream stream;
    rig_block block;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    CHECK_OK(rig_alloc(&r, 700, r.streams[0], &block));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    if (i % 2 == 0) {
      CHECK_OK(tarn_use(r.heap, block.address, stream));
      rig_touch(&r, &block, stream, false);
      CHECK_OK(rig_free(&r, &block, r.streams[0]));
    } else {
      CHECK_OK(rig_free(&r, &block, stream));
    }
    CHECK_OK(tarn_stream_retire(r.heap, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    if (test_case_failed()) {
      return;
    }
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* More streams at once than the heap has records for: an allocation is refused with what to do, a
 * free is not. */
static void too_many_streams_at_once(void) {
  enum { N = 1100 };
  static tarn_stream streams[N];
  static rig_block blocks[N];
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_status status = TARN_OK;
  int n = 0;
  for (; n < N && status == TARN_OK; n++) {
    REQUIRE_OK(tarn_stream_create(r.device, &streams[n]));
    status = rig_alloc(&r, 300, streams[n], &blocks[n]);
  }
  CHECK_STATUS(status, TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "tarn_stream_retire");
  tarn_stream unknown = streams[--n];
  CHECK_OK(tarn_stream_synchronize(r.device, streams[0]));
  CHECK_OK(rig_free(&r, &blocks[0], unknown)); /* waits, and goes through */
  rig_block large;
  CHECK_OK(rig_alloc(&r, 3 * MIB, streams[1], &large));
  CHECK_OK(tarn_stream_synchronize(r.device, streams[1]));
  CHECK_OK(tarn_use(r.heap, large.address, streams[2]));
  CHECK_OK(rig_free(&r, &large, unknown));
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_stream_retire(r.heap, streams[0])); /* one goes, one comes */
  CHECK_OK(rig_alloc(&r, 300, unknown, &blocks[0]));
  CHECK_OK(rig_free(&r, &blocks[0], unknown));
  for (int i = 1; i < n; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], streams[i]));
  }
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  r.heap = NULL;
  for (int i = 0; i <= n; i++) {
    CHECK_OK(tarn_stream_destroy(r.device, streams[i]));
  }
  rig_close(&r);
}

/* A deterministic heap comes to know by waiting that a retired stream is complete: also where it
 * waits for a block that several streams used. */
static void record_that_waiting_gives_back(void) {
  enum { N = 1024 };
  const tarn_heap_config config = {.size = sizeof(config), .is_deterministic = true};
  static tarn_stream streams[N];
  rig r;
  rig_block block, used;
  REQUIRE(rig_open(&r, "sim:256M", &config, 0));
  for (int i = 0; i < N; i++) {
    REQUIRE_OK(tarn_stream_create(r.device, &streams[i]));
  }
  CHECK_OK(rig_alloc(&r, 5000, streams[0], &used));
  for (int i = 0; i < N - 1; i++) {
    CHECK_OK(rig_alloc(&r, 300, streams[i], &block));
    CHECK_OK(rig_free(&r, &block, streams[i]));
  }
  CHECK_OK(tarn_use(r.heap, used.address, streams[10]));
  CHECK_OK(rig_free(&r, &used, streams[0]));
  CHECK_OK(tarn_stream_retire(r.heap, streams[5]));
  CHECK_OK(rig_alloc(&r, 300, streams[N - 1], &block));
  CHECK_OK(rig_free(&r, &block, streams[N - 1]));
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  r.heap = NULL;
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_stream_destroy(r.device, streams[i]));
  }
  rig_close(&r);
}

/* The cache of a retired stream may still be the one that the thread used last. The handle that
 * stands for no stream is not taken for its. */
static void no_stream_beside_a_retired_one(void) {
  const tarn_stream none = (tarn_stream)(intptr_t)-1;
  const uint64_t sizes[] = {1000, 3 * MIB};
  for (int i = 0; i < 2; i++) {
    rig r;
    rig_block blocks[3];
    tarn_ptr block;
    REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &blocks[0]));
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[1], &blocks[1]));
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[1], &blocks[2]));
    CHECK_OK(tarn_stream_retire(r.heap, r.streams[1]));
    for (int k = 0; k < 3; k++) {
      CHECK_STATUS(tarn_free(r.heap, blocks[k].address, none), TARN_INVALID);
    }
    CHECK_STATUS(tarn_alloc(r.heap, sizes[i], none, &block), TARN_INVALID);
    CHECK(rig_is_sound(&r));
    for (int k = 0; k < 3; k++) {
      CHECK_OK(rig_free(&r, &blocks[k], r.streams[k != 0]));
    }
    CHECK(rig_is_sound(&r));
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    rig_close(&r);
  }
}

static void retiring_the_unknown(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  rig_block block;
  CHECK_OK(rig_alloc(&r, 700, r.streams[0], &block)); /* and it may be used all the same */
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A stream that was destroyed without being retired: what waits for it is not used again, and the
 * end of the heap waits for everything. */
static void destroyed_without_being_retired(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 8 * MIB, .stealing = TARN_STEAL_WHEN_SHORT};
  rig r;
  rig_block block, next;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  tarn_stream stream;
  REQUIRE_OK(tarn_stream_create(r.device, &stream));
  CHECK_OK(rig_alloc(&r, 6 * MIB, stream, &block));
  CHECK_OK(rig_free(&r, &block, stream));
  CHECK_OK(tarn_stream_destroy(r.device, stream));
  const tarn_status status = rig_alloc(&r, 4 * MIB, r.streams[0], &next);
  CHECK(status == TARN_OK || status == TARN_STATE || status == TARN_LIMIT);
  if (status == TARN_OK) {
    CHECK_OK(rig_free(&r, &next, r.streams[0]));
  }
  CHECK_EQ(rig_stats(&r).quarantined_bytes != 0, status != TARN_OK);
  CHECK(r.n_findings > 0); /* of the misuse, and of nothing else */
  for (size_t i = 0; i < r.n_findings; i++) {
    tarn_sim_finding finding = {.size = sizeof(finding)};
    CHECK_OK(tarn_sim_finding_get(r.device, i, &finding));
    CHECK_EQ(finding.kind, TARN_SIM_MISUSE);
  }
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
  tarn_device_close(r.device);
}

/* The same where what was taken to wait for everything cannot be given back: it is out of use until
 * it can, and not lost. */
static void waiting_loses_nothing(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  tarn_stream stream;
  REQUIRE_OK(tarn_stream_create(r.device, &stream));
  CHECK_OK(rig_alloc(&r, 6 * MIB, stream, &block));
  CHECK_OK(rig_free(&r, &block, stream));
  CHECK_OK(tarn_stream_destroy(r.device, stream));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_PLAIN_FREE, 1, 2, 1));
  for (int i = 0; i < 2; i++) {
    CHECK(tarn_heap_destroy(r.heap, NULL) != TARN_OK);
    CHECK_EQ(rig_state(&r).created_bytes, 8 * MIB);
    CHECK_EQ(rig_stats(&r).reserved_bytes, 8 * MIB);
    CHECK_EQ(rig_stats(&r).quarantined_bytes, 8 * MIB); /* and what the lost stream freed */
    CHECK(rig_is_sound(&r));
  }
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  const size_t n_findings = r.n_findings;
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
  tarn_device_close(r.device);
  CHECK_EQ(r.n_findings, n_findings);
}

/* A trim gives it back, too, where the heap has no more to wait for. */
static void trim_returns_what_waiting_took(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  CHECK_OK(rig_alloc(&r, 6 * MIB, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_PLAIN_FREE, 1, 1, 1));
  tarni_lock_acquire(&r.heap->grow);
  CHECK_STATUS(tarni_device_await(r.heap), TARN_INVALID);
  tarni_lock_release(&r.heap->grow);
  CHECK_EQ(rig_stats(&r).quarantined_bytes, 2 * MIB);
  CHECK_EQ(rig_state(&r).created_bytes, rig_stats(&r).reserved_bytes);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A stream that was destroyed without a word: the first trim learns of it, and trims go on. */
static void trims_after_a_stream_is_gone(void) {
  for (int policy = TARN_STEAL_WHEN_SHORT; policy <= TARN_STEAL_ALWAYS; policy++) {
    const tarn_heap_config config = {.size = sizeof(config), .stealing = (tarn_stealing)policy};
    rig r;
    rig_block a, b, next;
    tarn_stream gone;
    REQUIRE(rig_open(&r, "sim:64M", &config, 2));
    REQUIRE_OK(tarn_stream_create(r.device, &gone));
    CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[1], &a));
    CHECK_OK(rig_alloc(&r, 30 * MIB, gone, &b));
    CHECK_OK(rig_free(&r, &b, gone));
    CHECK_OK(rig_free(&r, &a, r.streams[1]));
    CHECK_OK(tarn_stream_synchronize(r.device, gone));
    CHECK_OK(tarn_stream_destroy(r.device, gone));
    (void)tarn_heap_trim(r.heap, 0); /* it may say so */
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
    CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[0], &next));
    CHECK_OK(rig_free(&r, &next, r.streams[0]));
    CHECK_OK(tarn_heap_destroy(r.heap, NULL));
    for (int i = 0; i < 2; i++) {
      CHECK_OK(tarn_stream_destroy(r.device, r.streams[i]));
    }
    tarn_device_close(r.device);
  }
}

static const test_case cases[] = {
    {"trims after a stream is gone", trims_after_a_stream_is_gone},
    {"memory of a retired stream goes to all", retired_memory_goes_to_all},
    {"parts of retired streams come together", retired_parts_come_together},
    {"many streams one after another", many_streams_one_after_another},
    {"many streams that only free", many_streams_that_only_free},
    {"too many streams at once", too_many_streams_at_once},
    {"a record that waiting gives back", record_that_waiting_gives_back},
    {"no stream, beside a retired one", no_stream_beside_a_retired_one},
    {"retiring what is not known", retiring_the_unknown},
    {"destroyed without being retired", destroyed_without_being_retired},
    {"waiting loses nothing", waiting_loses_nothing},
    {"a trim returns what waiting took", trim_returns_what_waiting_took},
};

TEST_MAIN(cases)
