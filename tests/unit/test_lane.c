/* SPDX-License-Identifier: MIT
 *
 * Records of streams, where a heap has no more of them: what captured streams of which it has never
 * heard may do then. */
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, ALL = 1023 }; /* streams that a heap knows */

static tarn_stream streams[ALL - 1];

/* All records are taken: one by the rig's first stream. */
static bool fill(rig *r) {
  for (int i = 0; i < ALL - 1; i++) {
    tarn_ptr block = 0;
    if (!CHECK_OK(tarn_stream_create(r->device, &streams[i])) ||
        !CHECK_OK(tarn_alloc(r->heap, 256, streams[i], &block)) ||
        !CHECK_OK(tarn_free(r->heap, block, streams[i]))) {
      return false;
    }
  }
  return true;
}

static void empty(rig *r) {
  for (int i = 0; i < ALL - 1; i++) {
    CHECK_OK(tarn_stream_retire(r->heap, streams[i]));
    CHECK_OK(tarn_stream_destroy(r->device, streams[i]));
  }
}

static void unknown_and_captured(tarn_backing backing) {
  const tarn_heap_config config = {.size = sizeof(config), .backing = backing};
  rig r;
  rig_block blocks[2];
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", &config, 2));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &blocks[0]));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[1]));
  rig_order(&r, r.streams[0], r.streams[1]);
  REQUIRE(fill(&r));
  CHECK_OK(tarni_port_capture_begin(port, r.streams[1], TARNI_CAPTURE_THREAD_LOCAL));
  for (int i = 0; i < 2; i++) {
    CHECK_STATUS(rig_free(&r, &blocks[i], r.streams[1]), TARN_CAPTURE);
    CHECK_HAS(tarn_last_message(), "tarn_free: the stream is being captured");
    CHECK_HAS(tarn_last_message(), "after the capture");
    CHECK_STATUS(tarn_use(r.heap, blocks[i].address, r.streams[1]), TARN_CAPTURE);
    CHECK_HAS(tarn_last_message(), "tarn_use: the stream is being captured");
  }
  CHECK_EQ(rig_stats(&r).live_blocks, 2);
  /* The record of a retired stream comes back in time. */
  CHECK_OK(tarn_stream_retire(r.heap, streams[0]));
  CHECK_OK(tarn_sim_progress(r.device, UINT64_MAX));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[1]));
  }
  tarni_graph graph;
  CHECK_OK(tarni_port_capture_end(port, r.streams[1], &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK(rig_is_sound(&r));
  empty(&r);
  rig_close(&r);
}

static void captured_stream_without_a_record(void) {
  static const tarn_backing backings[] = {TARN_BACKING_VMM, TARN_BACKING_PLAIN, TARN_BACKING_POOL};
  for (int i = 0; i < 3 && !test_case_failed(); i++) {
    unknown_and_captured(backings[i]);
  }
}

static const test_case cases[] = {
    {"a captured stream without a record", captured_stream_without_a_record},
};

TEST_MAIN(cases)
