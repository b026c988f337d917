/* SPDX-License-Identifier: MIT
 *
 * Memory is short while somebody captures: what captured streams have freed cannot be had, by
 * moving it or by waiting for it, and an allocation says so or does without, in the end. Default
 * streams among them, which cannot be asked or waited for beside a capture of a stream that
 * synchronises with them. */
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20, N_BLOCKS = 30 };

static const tarn_capture_config relaxed = {.size = sizeof(relaxed), .mode = TARN_CAPTURE_RELAXED};

/* Every second one of the blocks on stream 1 is free, and the stream joins a capture, of which the
 * heap is told or not. A block that needs several of them together is asked for on stream 2. */
static void chunks_of_a_captured_stream(tarn_stealing stealing, const tarn_capture_config *told) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = stealing};
  rig r;
  rig_block blocks[N_BLOCKS], large;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  tarni_graph raw = NULL;
  REQUIRE(rig_open(&r, "sim:256M,order=lazy", &config, 3));
  tarni_port *port = (tarni_port *)r.device;
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[1], &blocks[i]));
  }
  for (int i = 0; i < N_BLOCKS; i += 2) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[1]));
  }
  if (told != NULL) {
    CHECK_OK(tarn_capture_begin(r.heap, told, r.streams[0], &capture));
    rig_order(&r, r.streams[0], r.streams[1]);
  } else {
    CHECK_OK(tarni_port_capture_begin(port, r.streams[1], TARNI_CAPTURE_RELAXED));
  }
  const tarn_status status = rig_alloc(&r, 64 * MIB, r.streams[2], &large);
  CHECK(status == TARN_OK || status == TARN_DEVICE_MEMORY);
  if (told != NULL) {
    rig_order(&r, r.streams[1], r.streams[0]);
    CHECK_OK(tarn_capture_end(&capture, &graph));
    CHECK_OK(tarn_graph_destroy(graph));
  } else {
    CHECK_OK(tarni_port_capture_end(port, r.streams[1], &raw));
    CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
  }
  if (status == TARN_OK) {
    CHECK_OK(rig_free(&r, &large, r.streams[2]));
  }
  CHECK_OK(rig_alloc(&r, 64 * MIB, r.streams[2], &large)); /* now it is there */
  CHECK_OK(rig_free(&r, &large, r.streams[2]));
  for (int i = 1; i < N_BLOCKS; i += 2) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[1]));
  }
  rig_close(&r);
}

static void captured_chunks(void) {
  const tarn_capture_config local = {.size = sizeof(local), .mode = TARN_CAPTURE_THREAD_LOCAL};
  chunks_of_a_captured_stream(TARN_STEAL_WHEN_SHORT, NULL);
  chunks_of_a_captured_stream(TARN_STEAL_WHEN_SHORT, &relaxed);
  chunks_of_a_captured_stream(TARN_STEAL_WHEN_SHORT, &local);
  chunks_of_a_captured_stream(TARN_STEAL_ALWAYS, &local);
  chunks_of_a_captured_stream(TARN_STEAL_ALWAYS, &relaxed);
}

/* All of the device was freed on a default stream; a thread's default stream is being captured. */
static void freed_on_default(tarn_stream freed, const tarn_heap_config *config) {
  rig r;
  rig_block kept, other;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE(rig_open(&r, "sim:16M,order=lazy", config, 2));
  CHECK_OK(rig_alloc(&r, 12 * MIB, freed, &kept));
  CHECK_OK(rig_free(&r, &kept, freed));
  CHECK_OK(tarn_capture_begin(r.heap, &relaxed, TARNI_STREAM_PER_THREAD, &capture));
  const tarn_status status = rig_alloc(&r, 12 * MIB, r.streams[1], &other);
  CHECK(status == TARN_OK || status == TARN_DEVICE_MEMORY);
  CHECK_OK(tarn_capture_end(&capture, &graph)); /* nothing has broken it */
  CHECK_OK(tarn_graph_destroy(graph));
  if (status == TARN_OK) {
    CHECK_OK(rig_free(&r, &other, r.streams[1]));
  }
  rig_close(&r);
}

static void default_streams(void) {
  const tarn_heap_config configs[] = {
      {.size = sizeof(configs[0])},
      {.size = sizeof(configs[0]), .stealing = TARN_STEAL_ALWAYS},
      {.size = sizeof(configs[0]), .backing = TARN_BACKING_PLAIN, .rounding = TARN_ROUNDING_EXACT},
      {.size = sizeof(configs[0]), .backing = TARN_BACKING_POOL, .rounding = TARN_ROUNDING_EXACT},
  };
  for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
    freed_on_default(NULL, &configs[i]);
    freed_on_default(TARNI_STREAM_PER_THREAD, &configs[i]);
  }
}

/* A pool would allocate on the legacy stream itself: refused, before it breaks the capture. */
static void pool_on_the_legacy_stream(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .backing = TARN_BACKING_POOL, .rounding = TARN_ROUNDING_EXACT};
  rig r;
  tarn_ptr block;
  tarni_graph raw = NULL;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(tarni_port_capture_begin(port, TARNI_STREAM_PER_THREAD, TARNI_CAPTURE_RELAXED));
  CHECK_STATUS(tarn_alloc(r.heap, MIB, NULL, &block), TARN_CAPTURE);
  CHECK_OK(tarni_port_capture_end(port, TARNI_STREAM_PER_THREAD, &raw));
  CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
  CHECK_OK(tarn_alloc(r.heap, MIB, NULL, &block));
  CHECK_OK(tarn_free(r.heap, block, NULL));
  rig_close(&r);
}

/* What is saved goes over the legacy stream: not now, and nothing is broken or lost. */
static void asleep_beside_a_capture(void) {
  rig r;
  rig_block block;
  tarni_graph raw = NULL;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(tarni_port_capture_begin(port, TARNI_STREAM_PER_THREAD, TARNI_CAPTURE_RELAXED));
  CHECK_STATUS(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE), TARN_CAPTURE);
  CHECK_OK(tarni_port_capture_end(port, TARNI_STREAM_PER_THREAD, &raw));
  CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

/* The device is full of what two streams have freed. One of them is being captured and cannot be
 * waited for; what the other one freed is room all the same, at the first try. */
static void room_beside_a_capture(void) {
  const tarn_heap_config never = {.size = sizeof(never), .stealing = TARN_STEAL_NEVER};
  for (int first = 1; first <= 2; first++) {
    rig r;
    rig_block blocks[3], next;
    tarn_capture *capture = NULL;
    tarn_graph *graph = NULL;
    REQUIRE(rig_open(&r, "sim:64M", &never, 3));
    CHECK_OK(rig_alloc(&r, 32 * MIB, r.streams[first], &blocks[first]));
    CHECK_OK(rig_alloc(&r, 32 * MIB, r.streams[3 - first], &blocks[3 - first]));
    CHECK_OK(rig_free(&r, &blocks[1], r.streams[1]));
    CHECK_OK(rig_free(&r, &blocks[2], r.streams[2]));
    CHECK_OK(tarn_capture_begin(r.heap, &relaxed, r.streams[2], &capture));
    CHECK_OK(rig_alloc(&r, 30 * MIB, r.streams[0], &next));
    CHECK_OK(tarn_capture_end(&capture, &graph));
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_OK(rig_free(&r, &next, r.streams[0]));
    rig_close(&r);
  }
}

/* The legacy stream may not wait on the device beside a capture that synchronises with it. What
 * another stream has freed, and still uses, is waited for by the host then, and asked for once and
 * not once a stream. */
static void legacy_beside_a_capture(const tarn_heap_config *config) {
  rig r;
  rig_block blocks[8], next;
  tarni_graph raw = NULL;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", config, 1));
  tarni_port *port = (tarni_port *)r.device;
  for (int i = 0; i < 8; i++) {
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &blocks[i]));
  }
  for (int i = 0; i < 8; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK_OK(tarni_port_capture_begin(port, TARNI_STREAM_PER_THREAD, TARNI_CAPTURE_RELAXED));
  const uint64_t before = rig_calls(&r);
  CHECK_OK(tarn_alloc(r.heap, 8 * MIB, NULL, &next.address));
  CHECK(rig_calls(&r) - before < 100);
  CHECK_OK(tarni_port_capture_end(port, TARNI_STREAM_PER_THREAD, &raw));
  CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
  CHECK_OK(tarn_free(r.heap, next.address, NULL));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void legacy_beside_captures(void) {
  for (int policy = TARN_STEAL_WHEN_SHORT; policy <= TARN_STEAL_ALWAYS; policy++) {
    legacy_beside_a_capture(
        &(tarn_heap_config){.size = sizeof(tarn_heap_config), .stealing = (tarn_stealing)policy});
    legacy_beside_a_capture(&(tarn_heap_config){.size = sizeof(tarn_heap_config),
                                                .stealing = (tarn_stealing)policy,
                                                .backing = TARN_BACKING_PLAIN,
                                                .rounding = TARN_ROUNDING_EXACT});
  }
}

static const test_case cases[] = {
    {"the legacy stream beside a capture", legacy_beside_captures},
    {"room beside a capture", room_beside_a_capture},
    {"chunks of a captured stream", captured_chunks},
    {"memory of default streams", default_streams},
    {"a pool on the legacy stream", pool_on_the_legacy_stream},
    {"asleep beside a capture", asleep_beside_a_capture},
};

TEST_MAIN(cases)
