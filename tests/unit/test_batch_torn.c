/* SPDX-License-Identifier: MIT
 *
 * Batches of which a call has failed when the stream may have had a part of them: their memory
 * comes back, whatever becomes of the stream, and not too early. */
#include <string.h>

#include "port/port.h"
#include "support/dock.h"
#include "support/test.h"
#include "tarn/batch.h"

enum { BYTES = 64 << 10, ROOM = 1 << 20 };

typedef struct scene {
  dock dock;
  tarn_batch *batch;
  tarn_ptr block;
} scene;

static bool scene_open(scene *s) {
  *s = (scene){0};
  return dock_open(&s->dock, "sim:64M,order=lazy", NULL, 0, 2) &&
         CHECK_OK(tarn_alloc(s->dock.rig.heap, ROOM, s->dock.rig.streams[1], &s->block)) &&
         CHECK_OK(tarn_stream_synchronize(s->dock.rig.device, s->dock.rig.streams[1])) &&
         CHECK_OK(tarn_batch_create(s->dock.copier, NULL, &s->batch));
}

/* The call fails after its copies are with the stream, or some of them; so do n driver calls. */
static void fail_on(scene *s, tarn_stream stream, bool is_out, uint64_t n) {
  static uint8_t bytes[BYTES];
  tarn_device *device = s->dock.rig.device;
  if (is_out) {
    CHECK_OK(tarn_batch_output(s->batch, s->block, BYTES, NULL));
    CHECK_OK(tarn_sim_fail(device, TARN_CALL_COUNT, 3, n, 999)); /* what follows the copies */
    CHECK_STATUS(tarn_batch_fetch(s->batch, stream, NULL), TARN_DRIVER);
  } else {
    CHECK_OK(tarn_batch_upload(s->batch, s->block, bytes, BYTES));
    CHECK_OK(tarn_sim_fail(device, TARN_CALL_COUNT, 2, n, 999)); /* the copies */
    CHECK_STATUS(tarn_batch_send(s->batch, stream), TARN_DRIVER);
  }
  CHECK_OK(tarn_sim_fail(device, TARN_CALL_COUNT, 0, 0, 0));
}

/* The stream is retired and gone when the batch goes. One driver call fails, or two, so that the
 * stream cannot be marked and has to be waited for. */
static void stream_goes_first(void) {
  for (int i = 0; i < 4; i++) {
    scene s;
    REQUIRE(scene_open(&s));
    tarn_stream *stream = &s.dock.rig.streams[0];
    fail_on(&s, *stream, i % 2 == 0, 1 + (uint64_t)i / 2);
    CHECK_OK(tarn_copier_stream_retire(s.dock.copier, *stream));
    CHECK_OK(tarn_stream_destroy(s.dock.rig.device, *stream));
    CHECK(dock_pinned_live(&s.dock) >= BYTES);
    CHECK_OK(tarn_batch_destroy(s.batch));
    CHECK_EQ(dock_stats(&s.dock).quarantined_bytes, 0);
    CHECK_EQ(dock_pinned_live(&s.dock), 0);
    CHECK_OK(tarn_stream_create(s.dock.rig.device, stream));
    CHECK_OK(tarn_free(s.dock.rig.heap, s.block, s.dock.rig.streams[1]));
    dock_close(&s.dock);
  }
}

/* Nothing could be proven, and the stream is being captured when the batch is given up: the capture
 * goes on, and the memory is kept until its end. */
static void given_up_in_a_capture(void) {
  for (int is_out = 0; is_out < 2; is_out++) {
    scene s;
    REQUIRE(scene_open(&s));
    tarni_port *port = (tarni_port *)s.dock.rig.device;
    tarn_stream stream = s.dock.rig.streams[0];
    tarni_graph graph = NULL;
    fail_on(&s, stream, is_out != 0, 100);
    CHECK_OK(tarni_port_capture_begin(port, stream, TARNI_CAPTURE_THREAD_LOCAL));
    CHECK_OK(tarn_batch_reset(s.batch));
    CHECK(dock_stats(&s.dock).quarantined_bytes >= BYTES);
    CHECK_STATUS(tarn_copier_stream_retire(s.dock.copier, stream), TARN_CAPTURE);
    CHECK_OK(tarni_port_capture_end(port, stream, &graph));
    CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
    CHECK_OK(tarn_copier_stream_retire(s.dock.copier, stream));
    CHECK_EQ(dock_stats(&s.dock).quarantined_bytes, 0);
    CHECK_OK(tarn_batch_destroy(s.batch));
    CHECK_OK(tarn_free(s.dock.rig.heap, s.block, s.dock.rig.streams[1]));
    dock_close(&s.dock);
  }
}

static uint64_t waits_of(const scene *s) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(s->dock.rig.device, &counts));
  return counts.calls[TARN_CALL_EVENT_WAIT];
}

/* The mark of the first failure does not speak for the second. */
static void failed_twice(void) {
  scene s;
  REQUIRE(scene_open(&s));
  tarn_stream stream = s.dock.rig.streams[0];
  fail_on(&s, stream, false, 1);
  fail_on(&s, stream, false, 100);
  CHECK_OK(tarn_batch_reset(s.batch));
  CHECK_OK(tarn_copier_stream_retire(s.dock.copier, stream));
  CHECK_EQ(dock_stats(&s.dock).quarantined_bytes, 0);
  fail_on(&s, stream, false, 1);
  const uint64_t n_waits = waits_of(&s);
  CHECK_OK(tarn_batch_send(s.batch, stream)); /* what failed is not lost */
  CHECK_EQ(waits_of(&s), n_waits + 1);        /* the handle may be another stream's than it was */
  CHECK_OK(tarn_batch_destroy(s.batch));
  CHECK_OK(tarn_free(s.dock.rig.heap, s.block, s.dock.rig.streams[1]));
  dock_close(&s.dock);
}

/* No more can be named then, and why is told. */
static void outputs_after_a_failure(void) {
  scene s;
  REQUIRE(scene_open(&s));
  tarn_stream stream = s.dock.rig.streams[0];
  fail_on(&s, stream, true, 1);
  CHECK_STATUS(tarn_batch_output(s.batch, s.block, 4, NULL), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "by a call that failed");
  CHECK_OK(tarn_batch_fetch(s.batch, stream, NULL));
  CHECK_STATUS(tarn_batch_output(s.batch, s.block, 4, NULL), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "fetched already");
  CHECK_OK(tarn_batch_destroy(s.batch));
  CHECK_OK(tarn_free(s.dock.rig.heap, s.block, s.dock.rig.streams[1]));
  dock_close(&s.dock);
}

/* What is on its way cannot be waited for when the batch is given up: its memory is nobody's until
 * it can be. */
static void given_up_on_its_way(void) {
  scene s;
  REQUIRE(scene_open(&s));
  tarn_stream stream = s.dock.rig.streams[0];
  CHECK_OK(tarn_batch_output(s.batch, s.block, BYTES, NULL));
  CHECK_OK(tarn_batch_fetch(s.batch, stream, NULL));
  CHECK_OK(tarn_sim_fail(s.dock.rig.device, TARN_CALL_EVENT_SYNC, 1, 1, 999));
  CHECK_OK(tarn_batch_reset(s.batch));
  CHECK(dock_stats(&s.dock).quarantined_bytes >= BYTES);
  CHECK(dock_pinned_live(&s.dock) >= BYTES);
  CHECK_OK(tarn_copier_stream_retire(s.dock.copier, stream));
  CHECK_EQ(dock_stats(&s.dock).quarantined_bytes, 0);
  CHECK_EQ(dock_pinned_live(&s.dock), 0);
  CHECK_OK(tarn_batch_destroy(s.batch));
  CHECK_OK(tarn_free(s.dock.rig.heap, s.block, s.dock.rig.streams[1]));
  dock_close(&s.dock);
}

static const test_case cases[] = {
    {"given_up_on_its_way", given_up_on_its_way},         {"stream_goes_first", stream_goes_first},
    {"given_up_in_a_capture", given_up_in_a_capture},     {"failed_twice", failed_twice},
    {"outputs_after_a_failure", outputs_after_a_failure},
};

TEST_MAIN(cases)
