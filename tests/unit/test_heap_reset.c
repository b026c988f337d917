/* SPDX-License-Identifier: MIT
 *
 * Resetting: refused with the numbers while blocks are live; else the device has everything back,
 * and the heap goes on as one that was just made. */
#include <pthread.h>
#include <stdatomic.h>

#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static void check_is_new(const rig *r) {
  const tarn_heap_stats stats = rig_stats(r);
  CHECK_EQ(stats.reserved_bytes, 0);
  CHECK_EQ(stats.cached_bytes + stats.pending_bytes + stats.free_bytes, 0);
  CHECK_EQ(stats.quarantined_bytes, 0);
  CHECK_EQ(stats.reserved_peak_bytes, 0);
  CHECK_EQ(rig_state(r).created_bytes, 0);
  CHECK_EQ(rig_state(r).mapped_bytes, 0);
  CHECK(rig_is_sound(r));
}

static void live_blocks_are_counted(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  rig_block small, large;
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &small));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &large));
  const tarn_heap_stats before = rig_stats(&r);
  CHECK_STATUS(tarn_heap_reset(r.heap), TARN_BUSY);
  CHECK_HAS(tarn_last_message(), "2 blocks of 3146752 bytes are live");
  CHECK_HAS(tarn_last_message(), "Free all blocks");
  CHECK_EQ(rig_stats(&r).reserved_bytes, before.reserved_bytes);
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  CHECK_STATUS(tarn_heap_reset(r.heap), TARN_BUSY);
  CHECK_HAS(tarn_last_message(), "1 blocks of 1024 bytes are live");
  rig_touch(&r, &small, r.streams[0], true); /* nothing was taken away */
  CHECK_OK(rig_free(&r, &small, r.streams[0]));
  CHECK_OK(tarn_heap_reset(r.heap));
  check_is_new(&r);
  rig_close(&r);
}

static void captured_blocks_are_counted(void) {
  rig r;
  rig_block block, captured;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &block));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &captured));
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_STATUS(tarn_heap_reset(r.heap), TARN_BUSY);
  CHECK_HAS(tarn_last_message(), "2 blocks of 2097152 bytes are live");
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_STATUS(tarn_heap_reset(r.heap), TARN_BUSY);
  CHECK_OK(tarn_free(r.heap, captured.address, r.streams[0]));
  CHECK_OK(tarn_heap_reset(r.heap));
  check_is_new(&r);
  rig_close(&r);
}

/* Work under way, blocks that other streams use, streams retired: all of it is waited for. */
static void everything_goes_back(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
  for (int round = 0; round < 3; round++) {
    rig_block blocks[12];
    for (int i = 0; i < 12; i++) {
      const uint64_t bytes = i % 2 == 0 ? (uint64_t)(i + 1) * 9 * KIB : (uint64_t)(i + 1) * MIB / 3;
      CHECK_OK(rig_alloc(&r, bytes, r.streams[i % 3], &blocks[i]));
    }
    for (int i = 0; i < 4; i++) {
      CHECK_OK(tarn_stream_synchronize(r.device, r.streams[i % 3]));
      CHECK_OK(tarn_use(r.heap, blocks[i].address, r.streams[(i + 1) % 3]));
      rig_touch(&r, &blocks[i], r.streams[(i + 1) % 3], false);
    }
    for (int i = 0; i < 12; i++) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 3]));
    }
    if (round == 1) {
      CHECK_OK(tarn_stream_retire(r.heap, r.streams[1]));
    }
    CHECK_OK(tarn_heap_reset(r.heap));
    check_is_new(&r);
  }
  const tarn_heap_stats stats = rig_stats(&r);
  CHECK_EQ(stats.allocations, 36); /* counts go on */
  CHECK_EQ(stats.frees, 36);
  CHECK_OK(tarn_heap_reset(r.heap)); /* of an empty heap, too */
  rig_close(&r);
}

/* What waits for a stream that was destroyed and not retired comes back, too. */
static void lost_streams(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  rig_block block, small;
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[1], &block));
  CHECK_OK(rig_alloc(&r, 4 * KIB, r.streams[1], &small));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  CHECK_OK(rig_free(&r, &small, r.streams[1]));
  CHECK_OK(tarn_stream_destroy(r.device, r.streams[1]));
  r.streams[1] = NULL;
  CHECK_OK(tarn_heap_reset(r.heap));
  check_is_new(&r);
  CHECK(r.n_findings != 0); /* the simulated GPU saw a stream used that is gone */
  r.n_findings = 0;
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

static void no_heap(void) {
  CHECK_STATUS(tarn_heap_reset(NULL), TARN_INVALID);
}

typedef struct shared_heap {
  rig rig;
  atomic_int n_threads;
  atomic_bool is_over;
} shared_heap;

static void *churn(void *user) {
  shared_heap *shared = user;
  rig *r = &shared->rig;
  const tarn_stream stream = r->streams[atomic_fetch_add(&shared->n_threads, 1)];
  do {
    rig_block blocks[3];
    CHECK_OK(rig_alloc(r, 2 * KIB, stream, &blocks[0]));
    CHECK_OK(rig_alloc(r, 90 * KIB, stream, &blocks[1]));
    CHECK_OK(rig_alloc(r, 2 * MIB, stream, &blocks[2]));
    for (int j = 0; j < 3; j++) {
      CHECK_OK(rig_free(r, &blocks[j], stream));
    }
  } while (!atomic_load(&shared->is_over) && !test_case_failed());
  return NULL;
}

/* Others go on allocating: each reset either goes through or says that blocks are live, and no
 * block is taken from its owner. */
static void beside_other_threads(void) {
  static shared_heap shared;
  rig *r = &shared.rig;
  REQUIRE(rig_open(r, "sim:64M", NULL, 2));
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, churn, &shared) == 0);
  }
  for (int i = 0; i < 200 && !test_case_failed(); i++) {
    const tarn_status status = tarn_heap_reset(r->heap);
    CHECK(status == TARN_OK || status == TARN_BUSY);
  }
  atomic_store(&shared.is_over, true);
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK_OK(tarn_heap_reset(r->heap));
  check_is_new(r);
  rig_close(r);
}

static const test_case cases[] = {
    {"live blocks are counted", live_blocks_are_counted},
    {"captured blocks are counted", captured_blocks_are_counted},
    {"everything goes back", everything_goes_back},
    {"streams that are lost", lost_streams},
    {"no heap", no_heap},
    {"beside other threads", beside_other_threads},
};

TEST_MAIN(cases)
