/* SPDX-License-Identifier: MIT
 *
 * Streams that are destroyed without a word and made again under the same handle: noticed by a heap
 * that verifies streams at each call. */
#include <pthread.h>

#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MAX_TRIES = 64 };

/* Replaces a stream by another one with the same handle. False: the handle did not come again. */
static bool replace_stream(rig *r, int index) {
  tarn_stream streams[MAX_TRIES];
  const tarn_stream old = r->streams[index];
  int n = 0;
  CHECK_OK(tarn_stream_destroy(r->device, old));
  r->streams[index] = NULL;
  CHECK_OK(tarn_sim_progress(r->device, UINT64_MAX)); /* its work is done, but nobody knows */
  while (n < MAX_TRIES && r->streams[index] == NULL) {
    CHECK_OK(tarn_stream_create(r->device, &streams[n]));
    if (streams[n] == old) {
      r->streams[index] = old;
    } else {
      n++;
    }
  }
  for (int i = 0; i < n; i++) {
    CHECK_OK(tarn_stream_destroy(r->device, streams[i]));
  }
  return r->streams[index] == old;
}

/* Blocks freed on the old stream, whose work is not done, are not given to the new one. */
static void handle_that_came_again(const tarn_heap_config *config) {
  static const uint64_t sizes[] = {1000, 300 * KIB, 4 * MIB};
  for (int i = 0; i < 3; i++) {
    rig r;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", config, 2));
    rig_block block, next;
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &block));
    const tarn_ptr address = block.address;
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    if (!replace_stream(&r, 0)) {
      test_skip("no handle came again");
      (void)tarn_heap_destroy(r.heap, NULL);
      r.heap = NULL;
      r.n_findings = 0; /* of the stream that is gone */
      rig_close(&r);
      return;
    }
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &next));
    CHECK(next.address != address);
    rig_block on_other;
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[1], &on_other));
    CHECK_OK(rig_free(&r, &on_other, r.streams[1]));
    CHECK_OK(rig_free(&r, &next, r.streams[0]));
    CHECK_OK(tarn_heap_check(r.heap));
    CHECK_OK(tarn_heap_reset(r.heap)); /* waits for the whole device: all comes back */
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK_OK(tarn_heap_destroy(r.heap, NULL));
    r.heap = NULL;
    for (size_t j = 0; j < r.n_findings; j++) { /* asking about a stream that is gone, at most */
      tarn_sim_finding finding = {.size = sizeof(finding)};
      CHECK_OK(tarn_sim_finding_get(r.device, j, &finding));
      CHECK_EQ(finding.kind, TARN_SIM_MISUSE);
    }
    r.n_findings = 0;
    rig_close(&r);
  }
}

static void *alloc_and_free(void *user) {
  rig *r = user;
  tarn_ptr block = 0;
  CHECK_OK(tarn_alloc(r->heap, 4 * MIB, r->streams[0], &block));
  CHECK_OK(tarn_free(r->heap, block, r->streams[0]));
  return NULL;
}

/* Nor does the new stream prove anything about the old one, where nobody has asked with it, or only
 * a thread that did not know the old one. */
static void no_proof_by_a_namesake(const tarn_heap_config *config) {
  for (int is_met = 0; is_met < 2; is_met++) {
    rig r;
    rig_block block;
    pthread_t thread;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", config, 1));
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    if (!replace_stream(&r, 0)) {
      test_skip("no handle came again");
    } else if (is_met) {
      CHECK_EQ(pthread_create(&thread, NULL, alloc_and_free, &r), 0);
      CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    const tarn_status status = tarn_heap_trim(r.heap, 0);
    CHECK(status == TARN_OK || status == TARN_STATE);
    CHECK_OK(tarn_heap_reset(r.heap));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK_OK(tarn_heap_destroy(r.heap, NULL));
    r.heap = NULL;
    for (size_t i = 0; i < r.n_findings; i++) {
      tarn_sim_finding finding = {.size = sizeof(finding)};
      CHECK_OK(tarn_sim_finding_get(r.device, i, &finding));
      CHECK_EQ(finding.kind, TARN_SIM_MISUSE);
    }
    r.n_findings = 0;
    rig_close(&r);
  }
}

static void chunks(void) {
  const tarn_heap_config config = {.size = sizeof(config), .is_verifying_streams = true};
  handle_that_came_again(&config);
  no_proof_by_a_namesake(&config);
}

static void driver_allocations(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .backing = TARN_BACKING_PLAIN, .is_verifying_streams = true};
  handle_that_came_again(&config);
  no_proof_by_a_namesake(&config);
}

/* What a stream had that is gone can also be waited for, and given back, where the device is full.
 */
static void full_device(void) {
  const tarn_heap_config config = {.size = sizeof(config), .is_verifying_streams = true};
  for (int is_reset = 0; is_reset < 2; is_reset++) {
    rig r;
    rig_block freed, kept;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
    CHECK_OK(rig_alloc(&r, 32 * MIB, r.streams[0], &freed));
    CHECK_OK(rig_alloc(&r, 32 * MIB, r.streams[1], &kept));
    CHECK_OK(rig_free(&r, &freed, r.streams[0]));
    CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
    r.streams[0] = NULL;
    if (is_reset) {
      CHECK_OK(rig_free(&r, &kept, r.streams[1]));
      CHECK_OK(tarn_heap_reset(r.heap));
      CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    }
    uint64_t n_live = 0;
    CHECK_OK(tarn_heap_destroy(r.heap, &n_live));
    CHECK_EQ(n_live, !is_reset);
    r.heap = NULL;
    CHECK_EQ(rig_state(&r).created_bytes, 0);
    r.n_findings = 0; /* of the stream that is gone */
    rig_close(&r);
  }
}

/* Closes the rig of a heap whose streams went without a word: asking about them is all that was
 * found. */
static void close_rig(rig *r) {
  CHECK_OK(tarn_heap_check(r->heap));
  CHECK_OK(tarn_heap_destroy(r->heap, NULL));
  r->heap = NULL;
  for (size_t i = 0; i < r->n_findings && i < 64; i++) { /* no more are kept */
    tarn_sim_finding finding = {.size = sizeof(finding)};
    CHECK_OK(tarn_sim_finding_get(r->device, i, &finding));
    CHECK_EQ(finding.kind, TARN_SIM_MISUSE);
  }
  r->n_findings = 0;
  rig_close(r);
}

/* Streams come and go, none is retired, and there are more of them than the heap has records. */
static void many_streams_in_turn(tarn_backing backing) {
  const tarn_heap_config config = {
      .size = sizeof(config), .backing = backing, .is_verifying_streams = true};
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  rig_block used;
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &used));
  for (int i = 0; i < 2100 && !test_case_failed(); i++) {
    tarn_stream stream;
    rig_block block;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    CHECK_OK(rig_alloc(&r, 1000, stream, &block));
    if (i == 0) { /* its record may become another's, and this is not forgotten */
      CHECK_OK(tarn_use(r.heap, used.address, stream));
      rig_order(&r, r.streams[0], stream);
      rig_touch(&r, &used, stream, true);
    }
    CHECK_OK(rig_free(&r, &block, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
  }
  CHECK_OK(rig_free(&r, &used, r.streams[0]));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &used));
  CHECK_OK(rig_free(&r, &used, r.streams[0]));
  close_rig(&r);
}

/* The same where all go at once, and their handles do not come again. */
static void many_streams_at_once(tarn_backing backing, bool is_reset) {
  enum { N = 1022 };
  static tarn_stream streams[N];
  const tarn_heap_config config = {
      .size = sizeof(config), .backing = backing, .is_verifying_streams = true};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 3));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  for (int i = 0; i < N; i++) {
    REQUIRE_OK(tarn_stream_create(r.device, &streams[i]));
    CHECK_OK(rig_alloc(&r, 1000, streams[i], &block));
    CHECK_OK(rig_free(&r, &block, streams[i]));
  }
  CHECK_STATUS(rig_alloc(&r, 1000, r.streams[1], &block), TARN_LIMIT); /* all are there */
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_stream_destroy(r.device, streams[i]));
  }
  if (is_reset) {
    CHECK_OK(tarn_heap_reset(r.heap));
  }
  const uint64_t n_calls = rig_calls(&r);
  for (int i = 1; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 1000, r.streams[i], &block));
    CHECK_OK(rig_free(&r, &block, r.streams[i]));
  }
  CHECK(!is_reset || rig_calls(&r) < n_calls + 100); /* the records were back already */
  close_rig(&r);
}

static void more_streams_than_records(void) {
  static const tarn_backing backings[] = {TARN_BACKING_VMM, TARN_BACKING_PLAIN};
  for (int i = 0; i < 2 && !test_case_failed(); i++) {
    many_streams_in_turn(backings[i]);
    many_streams_at_once(backings[i], false);
    many_streams_at_once(backings[i], true);
  }
}

/* The first to ask for a record cannot wait for the device, since it captures: the next can. */
static void record_after_a_capture(void) {
  const tarn_heap_config config = {.size = sizeof(config), .is_verifying_streams = true};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:256M", &config, 2));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  for (int i = 0; i < 1022 && !test_case_failed(); i++) {
    tarn_stream stream;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    CHECK_OK(rig_alloc(&r, 1000, stream, &block));
    CHECK_OK(rig_free(&r, &block, stream));
    CHECK_OK(tarn_stream_synchronize(r.device, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
  }
  const tarn_capture_config global = {.size = sizeof(global), .mode = TARN_CAPTURE_GLOBAL};
  tarn_capture *capture = rig_capture_begin(&r, &global);
  CHECK_STATUS(rig_alloc(&r, 1000, r.streams[1], &block), TARN_LIMIT);
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[1], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  r.heap = NULL;
  CHECK(r.n_findings != 0); /* streams that were not retired */
  r.n_findings = 0;
  rig_close(&r);
}

/* A handle that means no stream at all is the driver's error, and nothing is lost. */
static void handle_of_nothing(void) {
  const tarn_heap_config config = {.size = sizeof(config), .is_verifying_streams = true};
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &config, 2));
  rig_block block;
  CHECK_OK(rig_alloc(&r, 5000, r.streams[0], &block));
  const tarn_stream gone = r.streams[0];
  CHECK_OK(tarn_stream_destroy(r.device, gone));
  r.streams[0] = NULL;
  tarn_ptr none = 1;
  CHECK_STATUS(tarn_alloc(r.heap, 5000, gone, &none), TARN_INVALID);
  CHECK_EQ(none, 0);
  CHECK_STATUS(tarn_free(r.heap, block.address, gone), TARN_INVALID);
  CHECK_EQ(rig_stats(&r).live_blocks, 1);
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  CHECK_OK(tarn_heap_check(r.heap));
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  r.heap = NULL;
  CHECK(r.n_findings != 0);
  r.n_findings = 0;
  rig_close(&r);
}

/* Each call asks once; the default asks nothing. */
static void what_is_asked(void) {
  for (int is_verifying = 0; is_verifying < 2; is_verifying++) {
    const tarn_heap_config config = {.size = sizeof(config),
                                     .is_verifying_streams = is_verifying != 0};
    rig r;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    tarn_call_counts before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
    for (int i = 0; i < 11; i++) {
      tarn_ptr block = 0;
      CHECK_OK(tarn_alloc(r.heap, 5000, r.streams[0], &block));
      CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
      if (i == 0) {
        CHECK_OK(tarn_heap_get_calls(r.heap, &before));
      }
    }
    CHECK_OK(tarn_heap_get_calls(r.heap, &after));
    CHECK_EQ(after.calls[TARN_CALL_STREAM_ID] - before.calls[TARN_CALL_STREAM_ID],
             is_verifying ? 20 : 0);
    rig_close(&r);
  }
}

static const test_case cases[] = {
    {"a handle that came again", chunks},
    {"the same with driver allocations", driver_allocations},
    {"a full device", full_device},
    {"a handle of nothing", handle_of_nothing},
    {"what is asked", what_is_asked},
    {"more streams than records", more_streams_than_records},
    {"a record after a capture", record_after_a_capture},
};

TEST_MAIN(cases)
