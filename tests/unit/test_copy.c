/* SPDX-License-Identifier: MIT
 *
 * Copies between any host memory and the device: every way they can go, byte for byte, with work
 * that completes late and in any order; fences; captures. */
#include "tarn/copy.h"

#include <stdlib.h>
#include <string.h>

#include "port/port.h"
#include "support/dock.h"
#include "support/test.h"

enum { PIECE = 64 << 10, ROOM = 2 << 20, EDGE = 64 };

/* A buffer with edges that nobody may touch. */
typedef struct bytes {
  uint8_t *all;
  uint8_t *at;
  uint64_t length;
} bytes;

static bytes bytes_make(uint64_t length, uint64_t offset) {
  bytes b = {.all = malloc(length + offset + 2 * EDGE), .length = length};
  b.at = b.all + EDGE + offset;
  memset(b.all, 0xcd, length + offset + 2 * EDGE);
  return b;
}

static uint64_t bytes_spoilt(const bytes *b, uint64_t offset) {
  uint64_t n = 0;
  for (uint64_t i = 0; i < EDGE; i++) {
    n += b->all[i] != 0xcd;
    n += b->all[EDGE + offset + b->length + i] != 0xcd;
  }
  return n;
}

/* There and back, synchronous or not; returns how many bytes are wrong. */
static uint64_t round_trip(dock *d, tarn_ptr block, uint64_t length, uint64_t offset,
                           bool is_async) {
  tarn_stream stream = d->rig.streams[0];
  bytes out = bytes_make(length, offset), back = bytes_make(length, offset);
  dock_pattern(out.at, length, length + offset);
  tarn_fence *in_fence = NULL, *out_fence = NULL;
  if (is_async) {
    CHECK_OK(tarn_copy_in_async(d->copier, block + offset, out.at, length, stream, &in_fence));
    memset(out.at, 0xee, length); /* it has been read */
    CHECK_OK(tarn_copy_out_async(d->copier, back.at, block + offset, length, stream, &out_fence));
    /* Later work of the stream does not disturb it. */
    CHECK_OK(tarn_device_fill(d->rig.device, block, 0x11, length + offset, stream));
    CHECK_EQ(in_fence != NULL, length != 0);
    CHECK_EQ(out_fence != NULL, length != 0);
    CHECK_OK(out_fence != NULL ? tarn_fence_wait(out_fence) : TARN_OK);
    CHECK_OK(in_fence != NULL ? tarn_fence_query(in_fence) : TARN_OK); /* it comes before */
  } else {
    CHECK_OK(tarn_copy_in(d->copier, block + offset, out.at, length, stream));
    CHECK_OK(tarn_copy_out(d->copier, back.at, block + offset, length, stream));
  }
  const uint64_t n_wrong =
      dock_differ(back.at, length, length + offset) + bytes_spoilt(&back, offset);
  tarn_fence_destroy(in_fence);
  tarn_fence_destroy(out_fence);
  free(out.all);
  free(back.all);
  return n_wrong;
}

static void trips(dock *d, uint64_t piece) {
  tarn_ptr block = 0;
  REQUIRE_OK(tarn_alloc(d->rig.heap, ROOM, d->rig.streams[0], &block));
  static const int64_t sums[] = {-4097, -255, -3, -1, 0, 1, 2, 63, 4096};
  uint64_t n_wrong = 0;
  for (uint64_t n_pieces = 0; n_pieces < 24; n_pieces += n_pieces < 3 ? 1 : 7) {
    for (unsigned i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
      const int64_t length = (int64_t)(n_pieces * piece) + sums[i];
      if (length >= 0 && length + EDGE <= ROOM) {
        n_wrong += round_trip(d, block, (uint64_t)length, i % 2 == 0 ? 0 : i * 7, i % 3 == 0);
        n_wrong += round_trip(d, block, (uint64_t)length, i * 3, i % 3 != 0);
      }
    }
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarn_free(d->rig.heap, block, d->rig.streams[0]));
}

/* With and without helpers, whatever the order in which work completes. */
static void contents(void) {
  static const struct {
    const char *device;
    uint32_t n_threads;
    uint64_t pool_bytes;
  } rows[] = {
      {"sim:256M,seed=1", 3, 0},       {"sim:256M,seed=2", 0, 0},
      {"sim:256M,seed=3", 7, 0},       {"sim:256M,order=lazy", 2, 0},
      {"sim:256M,order=eager", 2, 0},  {"sim:256M,seed=4", 1, 2 << 20},
      {"sim:256M,seed=5", 0, 2 << 20},
  };
  for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const tarn_copier_config config = {.size = sizeof(config),
                                       .piece_bytes = PIECE,
                                       .n_threads = rows[i].n_threads,
                                       .has_no_threads = rows[i].n_threads == 0};
    dock d;
    REQUIRE(dock_open(&d, rows[i].device, &config, rows[i].pool_bytes, 1));
    trips(&d, PIECE);
    const tarn_copier_stats stats = dock_stats(&d);
    CHECK_EQ(stats.n_threads, rows[i].n_threads);
    CHECK(stats.small_copies > 0 && stats.staged_copies > 0);
    CHECK_EQ(stats.direct_copies, 0);
    CHECK_EQ(dock_pinned_live(&d), 0);
    dock_close(&d);
  }
}

/* The default configuration, and a size that goes round the ring several times. */
static void large(void) {
  enum { LENGTH = (48 << 20) + 12345 };
  dock d;
  REQUIRE(dock_open(&d, "sim:256M,seed=9", NULL, 0, 1));
  tarn_ptr block = 0;
  REQUIRE_OK(tarn_alloc(d.rig.heap, LENGTH + EDGE, d.rig.streams[0], &block));
  CHECK_EQ(round_trip(&d, block, LENGTH, 1, false), 0);
  CHECK_EQ(round_trip(&d, block, LENGTH, 33, true), 0);
  CHECK_OK(tarn_free(d.rig.heap, block, d.rig.streams[0]));
  dock_close(&d);
}

/* Pinned memory is not staged: the device reads and writes it itself. */
static void pinned_memory_goes_directly(void) {
  dock d;
  REQUIRE(dock_open(&d, "sim:256M,seed=3", NULL, 0, 1));
  tarn_stream stream = d.rig.streams[0];
  tarn_ptr block = 0;
  void *pinned = NULL;
  uint8_t *own = aligned_alloc(4096, ROOM);
  REQUIRE_OK(tarn_alloc(d.rig.heap, ROOM, stream, &block));
  REQUIRE_OK(tarn_pinned_alloc(d.pool, ROOM, &pinned));
  REQUIRE_OK(tarn_host_register(d.rig.device, own, ROOM));
  dock_pattern(pinned, ROOM, 5);
  CHECK_OK(tarn_copy_in(d.copier, block, pinned, ROOM, stream));
  CHECK_EQ(dock_stats(&d).direct_copies, 1);
  tarn_fence *fence = NULL;
  CHECK_OK(tarn_copy_out_async(d.copier, own + 1, block + 1, ROOM - 1, stream, &fence));
  CHECK_EQ(dock_stats(&d).direct_copies, 2);
  CHECK_OK(tarn_fence_wait(fence));
  CHECK(memcmp(own + 1, (uint8_t *)pinned + 1, ROOM - 1) == 0);
  CHECK_OK(tarn_copy_out_async(d.copier, own, block, 1, stream, NULL)); /* it needs no fence */
  CHECK_OK(tarn_stream_synchronize(d.rig.device, stream));
  CHECK_EQ(own[0], *(uint8_t *)pinned);
  CHECK_EQ(dock_stats(&d).direct_copies, 3);
  CHECK_OK(tarn_host_unregister(d.rig.device, own));
  CHECK_OK(tarn_copy_out(d.copier, own, block, ROOM, stream));
  CHECK_EQ(dock_stats(&d).direct_copies, 3);
  CHECK_EQ(dock_stats(&d).staged_copies, 1);
  CHECK_EQ(dock_differ(own, ROOM, 5), 0);
  tarn_fence_destroy(fence);
  free(own);
  CHECK_OK(tarn_pinned_free(d.pool, pinned));
  CHECK_OK(tarn_free(d.rig.heap, block, stream));
  dock_close(&d);
}

/* A copy whose end cannot be marked fails; its memory is the caller's then, so it is over. */
static void failed_ends(void) {
  dock d;
  REQUIRE(dock_open(&d, "sim:256M,order=lazy", NULL, 0, 1));
  tarn_stream stream = d.rig.streams[0];
  tarn_ptr block = 0;
  void *pinned = NULL;
  tarn_fence *fence = NULL;
  REQUIRE_OK(tarn_alloc(d.rig.heap, 4096, stream, &block));
  REQUIRE_OK(tarn_pinned_alloc(d.pool, 4096, &pinned));
  for (int is_async = 0; is_async < 2; is_async++) {
    CHECK_OK(tarn_device_fill(d.rig.device, block, (uint8_t)(7 + is_async), 4096, stream));
    CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_EVENT_RECORD, 1, 1, 0));
    const tarn_status status =
        is_async != 0 ? tarn_copy_out_async(d.copier, pinned, block, 4096, stream, &fence)
                      : tarn_copy_out(d.copier, pinned, block, 4096, stream);
    CHECK(status != TARN_OK && fence == NULL);
    CHECK_EQ(((const uint8_t *)pinned)[4095], 7 + is_async);
  }
  CHECK_OK(tarn_pinned_free(d.pool, pinned));
  CHECK_OK(tarn_free(d.rig.heap, block, stream));
  dock_close(&d);
}

static void wrong_arguments(void) {
  dock d;
  REQUIRE(dock_open(&d, "sim:256M", NULL, 0, 1));
  tarn_stream stream = d.rig.streams[0];
  tarn_ptr block = 0;
  uint8_t some[64] = {0};
  REQUIRE_OK(tarn_alloc(d.rig.heap, 64, stream, &block));
  const uint64_t calls = rig_calls(&d.rig);
  tarn_fence *fence = (tarn_fence *)(uintptr_t)1;
  CHECK_OK(tarn_copy_in(d.copier, 0, NULL, 0, stream)); /* nothing is looked at */
  CHECK_OK(tarn_copy_in_async(d.copier, block, some, 0, stream, &fence));
  CHECK(fence == NULL);
  CHECK_OK(tarn_copy_out(d.copier, NULL, 0, 0, NULL));
  CHECK_STATUS(tarn_copy_in(d.copier, block, NULL, 8, stream), TARN_INVALID);
  CHECK_STATUS(tarn_copy_in(d.copier, 0, some, 8, stream), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "device address is null, for 8 bytes");
  CHECK_STATUS(tarn_copy_out(d.copier, NULL, block, 8, stream), TARN_INVALID);
  CHECK_STATUS(tarn_copy_in(d.copier, block, some, UINT64_MAX, stream), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_copy_in(d.copier, UINT64_MAX - 3, some, 8, stream), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_copy_in(NULL, block, some, 8, stream), TARN_INVALID);
  CHECK_STATUS(tarn_copy_out_async(d.copier, some, block, 8, stream, NULL), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "fence");
  CHECK_EQ(rig_calls(&d.rig), calls);
  /* A place where there is no memory: the driver says so, and nothing is left over. */
  CHECK_STATUS(tarn_copy_in(d.copier, 4096, some, 8, stream), TARN_INVALID);
  CHECK_OK(tarn_sim_finding_clear(d.rig.device));
  d.rig.n_findings = 0;
  CHECK_EQ(dock_pinned_live(&d), 0);
  tarn_copier *copier = (tarn_copier *)(uintptr_t)1;
  CHECK_STATUS(tarn_copier_create(NULL, NULL, &copier), TARN_INVALID);
  CHECK(copier == NULL);
  CHECK_STATUS(tarn_copier_create(d.pool, NULL, NULL), TARN_INVALID);
  tarn_copier_config config = {.size = sizeof(config), .piece_bytes = 100};
  CHECK_STATUS(tarn_copier_create(d.pool, &config, &copier), TARN_INVALID);
  config = (tarn_copier_config){.size = sizeof(config), .n_threads = 64};
  CHECK_STATUS(tarn_copier_create(d.pool, &config, &copier), TARN_INVALID);
  config = (tarn_copier_config){.size = sizeof(config), .n_threads = 4, .has_no_threads = true};
  CHECK_STATUS(tarn_copier_create(d.pool, &config, &copier), TARN_INVALID);
  CHECK_OK(tarn_copier_destroy(NULL));
  CHECK_OK(tarn_free(d.rig.heap, block, stream));
  dock_close(&d);
}

/* More pieces than can be counted, to begin with or once memory is short: nothing is copied. */
static void sizes_beyond_counting(void) {
  static const struct {
    uint64_t piece_bytes, live_limit_bytes, bytes;
    tarn_status status;
  } rows[] = {
      {0, 0, (uint64_t)1 << 53, TARN_OVERFLOWED},
      {0, 0, ((uint64_t)1 << 53) + 5, TARN_OVERFLOWED},
      {4096, 0, (uint64_t)1 << 44, TARN_OVERFLOWED},
      {4096, 0, ((uint64_t)1 << 44) + 5, TARN_OVERFLOWED},
      {8192, 4096, ((uint64_t)1 << 44) + 5, TARN_LIMIT},
  };
  static uint8_t some[8192];
  for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const tarn_pinned_config limits = {
        .size = sizeof(limits), .device = "sim:64M", .live_limit_bytes = rows[i].live_limit_bytes};
    const tarn_copier_config config = {
        .size = sizeof(config), .piece_bytes = rows[i].piece_bytes, .has_no_threads = true};
    rig r;
    tarn_ptr block = 0;
    tarn_pinned *pool = NULL;
    tarn_copier *copier = NULL;
    tarn_copier_stats stats = {.size = sizeof(stats)};
    REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
    REQUIRE_OK(tarn_pinned_create(&limits, &pool));
    REQUIRE_OK(tarn_copier_create(pool, &config, &copier));
    REQUIRE_OK(tarn_alloc(r.heap, sizeof(some), r.streams[0], &block));
    CHECK_STATUS(tarn_copy_in(copier, block, some, rows[i].bytes, r.streams[0]), rows[i].status);
    CHECK_STATUS(tarn_copy_out(copier, some, block, rows[i].bytes, r.streams[0]), rows[i].status);
    CHECK_OK(tarn_copier_get_stats(copier, &stats));
    CHECK_EQ(stats.bytes_in + stats.bytes_out, 0);
    CHECK_OK(tarn_copier_destroy(copier));
    CHECK_OK(tarn_pinned_destroy(pool, NULL));
    CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    rig_close(&r);
  }
}

/* A small copy that is finished later takes as little pinned memory as it needs. */
static void small_and_finished_later(void) {
  static const uint64_t lengths[] = {1, 256, 300, 100000};
  static const uint64_t held[] = {256, 256, 512, 106496};
  static uint8_t host[100000];
  dock d;
  tarn_ptr block = 0;
  REQUIRE(dock_open(&d, "sim:64M,order=lazy", NULL, 0, 1));
  REQUIRE_OK(tarn_alloc(d.rig.heap, sizeof(host), d.rig.streams[0], &block));
  for (int i = 0; i < 4; i++) {
    tarn_fence *fence = NULL;
    CHECK_OK(tarn_device_fill(d.rig.device, block, (uint8_t)(i + 1), lengths[i], d.rig.streams[0]));
    CHECK_OK(tarn_copy_out_async(d.copier, host, block, lengths[i], d.rig.streams[0], &fence));
    CHECK_EQ(dock_pinned_live(&d), held[i]);
    CHECK_OK(tarn_fence_wait(fence));
    CHECK_EQ(host[lengths[i] - 1], i + 1);
    CHECK_EQ(dock_pinned_live(&d), 0);
    tarn_fence_destroy(fence);
  }
  CHECK_OK(tarn_free(d.rig.heap, block, d.rig.streams[0]));
  dock_close(&d);
}

/* ---- Fences ---- */

static void fences(void) {
  dock d;
  REQUIRE(dock_open(&d, "sim:256M,order=lazy", NULL, 0, 1));
  tarn_stream stream = d.rig.streams[0];
  tarn_ptr block = 0;
  uint8_t some[64] = {7};
  tarn_fence *fence = NULL, *other = NULL;
  REQUIRE_OK(tarn_alloc(d.rig.heap, 64, stream, &block));
  CHECK_OK(tarn_copy_in_async(d.copier, block, some, 64, stream, &fence));
  CHECK_STATUS(tarn_fence_query(fence), TARN_NOT_READY);
  CHECK_STATUS(tarn_copier_destroy(d.copier), TARN_BUSY);
  CHECK_HAS(tarn_last_message(), "1 fences");
  CHECK_OK(tarn_fence_wait(fence));
  CHECK_OK(tarn_fence_query(fence));
  CHECK_OK(tarn_fence_wait(fence));
  CHECK_EQ(*(uint8_t *)(uintptr_t)block, 7);
  tarn_fence_destroy(fence);
  /* Events are used again: the second fence makes none. */
  tarn_call_counts before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
  CHECK_OK(tarn_device_get_calls(d.rig.device, &before));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(tarn_fence_record(d.copier, stream, &fence));
    CHECK_OK(tarn_fence_wait(fence));
    tarn_fence_destroy(fence);
  }
  CHECK_OK(tarn_device_get_calls(d.rig.device, &after));
  CHECK_EQ(after.calls[TARN_CALL_EVENT_CREATE], before.calls[TARN_CALL_EVENT_CREATE]);
  /* Given back while it is pending, also that of a copy to ordinary memory. */
  CHECK_OK(tarn_copy_out_async(d.copier, some, block, 64, stream, &fence));
  CHECK_OK(tarn_fence_record(d.copier, stream, &other));
  tarn_fence_destroy(fence);
  tarn_fence_destroy(other);
  tarn_fence_destroy(NULL);
  CHECK_EQ(dock_stats(&d).fences, 0);
  CHECK_EQ(dock_pinned_live(&d), 0);
  CHECK_STATUS(tarn_fence_query(NULL), TARN_INVALID);
  CHECK_STATUS(tarn_fence_wait(NULL), TARN_INVALID);
  CHECK_STATUS(tarn_fence_record(d.copier, stream, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_fence_record(NULL, stream, &fence), TARN_INVALID);
  CHECK(fence == NULL);
  CHECK_OK(tarn_free(d.rig.heap, block, stream));
  dock_close(&d);
}

/* An error is told each time, never "not ready" for ever; and nothing is used again. */
static void fences_of_a_lost_device(void) {
  dock d;
  REQUIRE(dock_open(&d, "sim:256M,order=lazy", NULL, 0, 1));
  tarn_stream stream = d.rig.streams[0];
  tarn_ptr block = 0;
  static uint8_t some[300 << 10];
  tarn_fence *fence = NULL;
  REQUIRE_OK(tarn_alloc(d.rig.heap, sizeof(some), stream, &block));
  REQUIRE_OK(tarn_copy_out_async(d.copier, some, block, sizeof(some), stream, &fence));
  const uint64_t live = dock_pinned_live(&d);
  CHECK(live >= sizeof(some));
  CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_EVENT_QUERY, 1, 1, 719));
  for (int i = 0; i < 3; i++) {
    CHECK_STATUS(tarn_fence_query(fence), TARN_DEVICE_LOST);
    CHECK_STATUS(tarn_fence_wait(fence), TARN_DEVICE_LOST);
  }
  tarn_fence_destroy(fence);
  CHECK(dock_stats(&d).quarantined_bytes >= sizeof(some));
  CHECK_EQ(dock_pinned_live(&d), live);
  CHECK_OK(tarn_copier_destroy(d.copier));
  uint64_t n_live = 0;
  CHECK_OK(tarn_pinned_destroy(d.pool, &n_live));
  CHECK_EQ(n_live, 1);
  CHECK_OK(tarn_heap_destroy(d.rig.heap, NULL));
  tarn_device_close(d.rig.device);
  CHECK_EQ(d.rig.n_findings, 0);
}

/* ---- Captures ---- */

static void captured_copies(void) {
  dock d;
  REQUIRE(dock_open(&d, "sim:256M", NULL, 0, 1));
  tarni_port *port = (tarni_port *)d.rig.device;
  tarn_stream stream = d.rig.streams[0];
  tarn_ptr block = 0;
  void *pinned = NULL;
  uint8_t ordinary[256] = {0};
  tarn_fence *fence = NULL;
  tarn_batch *batch = NULL;
  REQUIRE_OK(tarn_alloc(d.rig.heap, 256, stream, &block));
  REQUIRE_OK(tarn_pinned_alloc(d.pool, 256, &pinned));
  REQUIRE_OK(tarn_batch_create(d.copier, NULL, &batch));
  REQUIRE_OK(tarn_batch_upload(batch, block, ordinary, 256));
  REQUIRE_OK(tarni_port_capture_begin(port, stream, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_STATUS(tarn_copy_in_async(d.copier, block, ordinary, 256, stream, NULL), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "tarn_pinned_alloc");
  CHECK_STATUS(tarn_copy_out_async(d.copier, ordinary, block, 256, stream, &fence), TARN_CAPTURE);
  CHECK_STATUS(tarn_copy_in(d.copier, block, pinned, 256, stream), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "asynchronous");
  CHECK_STATUS(tarn_copy_in_async(d.copier, block, pinned, 256, stream, &fence), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "NULL for the fence");
  CHECK_STATUS(tarn_fence_record(d.copier, stream, &fence), TARN_CAPTURE);
  CHECK_STATUS(tarn_batch_send(batch, stream), TARN_CAPTURE);
  CHECK_STATUS(tarn_batch_fetch(batch, stream, NULL), TARN_CAPTURE);
  CHECK_OK(tarn_copy_in_async(d.copier, block, pinned, 256, stream, NULL));
  tarni_graph graph = NULL;
  tarni_graph_exec exec = NULL;
  REQUIRE_OK(tarni_port_capture_end(port, stream, &graph)); /* the capture is still valid */
  REQUIRE_OK(tarni_port_graph_instantiate(port, graph, &exec));
  for (uint64_t i = 0; i < 3; i++) { /* each launch sends what is there then */
    dock_pattern(pinned, 256, i);
    CHECK_OK(tarni_port_graph_launch(port, exec, stream));
    CHECK_EQ(dock_device_differ(&d, block, 256, i, stream), 0);
  }
  CHECK_OK(tarni_port_graph_destroy(port, graph, exec));
  CHECK_OK(tarn_batch_send(batch, stream)); /* nothing of it was used up */
  CHECK_OK(tarn_batch_destroy(batch));
  CHECK_OK(tarn_pinned_free(d.pool, pinned));
  CHECK_OK(tarn_free(d.rig.heap, block, stream));
  dock_close(&d);
}

/* The driver is asked once whether the stream is being captured, so that there are not two answers:
 * another thread may end the capture at any time. */
static void captures_are_asked_for_once(void) {
  dock d;
  REQUIRE(dock_open(&d, "sim:256M", NULL, 0, 1));
  tarni_port *port = (tarni_port *)d.rig.device;
  tarn_stream stream = d.rig.streams[0];
  tarn_ptr block = 0;
  uint8_t ordinary[256] = {0};
  tarni_graph graph = NULL;
  uint64_t n_failed = 1;
  REQUIRE_OK(tarn_alloc(d.rig.heap, 256, stream, &block));
  REQUIRE_OK(tarni_port_capture_begin(port, stream, TARNI_CAPTURE_THREAD_LOCAL));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_CAPTURE_STATE, 2, 1, 0));
    CHECK_STATUS(i == 0 ? tarn_copy_in(d.copier, block, ordinary, 256, stream)
                        : tarn_copy_in_async(d.copier, block, ordinary, 256, stream, NULL),
                 TARN_CAPTURE);
  }
  CHECK_OK(tarn_sim_failed(d.rig.device, &n_failed));
  CHECK_EQ(n_failed, 0);
  CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_CAPTURE_STATE, 0, 0, 0));
  REQUIRE_OK(tarni_port_capture_end(port, stream, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  CHECK_OK(tarn_free(d.rig.heap, block, stream));
  dock_close(&d);
}

/* A copy cannot be awaited, and its stream is gone by then, perhaps with another in its place: what
 * it was staged in is kept until its own end is proven. */
static void unproven_of_a_stream_that_goes(void) {
  for (int i = 0; i < 2; i++) {
    dock d;
    tarn_ptr block = 0;
    tarn_fence *fence = NULL;
    static uint8_t host[300 << 10];
    REQUIRE(dock_open(&d, "sim:64M,order=lazy", NULL, 0, 2));
    CHECK_OK(tarn_alloc(d.rig.heap, sizeof(host), d.rig.streams[0], &block));
    CHECK_OK(tarn_copy_in(d.copier, block, host, sizeof(host), d.rig.streams[0]));
    CHECK_OK(tarn_copy_out_async(d.copier, host, block, sizeof(host), d.rig.streams[0], &fence));
    CHECK_OK(tarn_free(d.rig.heap, block, d.rig.streams[0]));
    CHECK_OK(tarn_stream_retire(d.rig.heap, d.rig.streams[0]));
    CHECK_OK(tarn_copier_stream_retire(d.copier, d.rig.streams[0]));
    CHECK_OK(tarn_stream_destroy(d.rig.device, d.rig.streams[0]));
    CHECK_OK(tarn_sim_fail(d.rig.device, TARN_CALL_EVENT_SYNC, 1, 1, 2));
    tarn_fence_destroy(fence);
    CHECK(dock_stats(&d).quarantined_bytes != 0);
    CHECK(dock_pinned_live(&d) != 0);
    CHECK_OK(tarn_stream_create(d.rig.device, &d.rig.streams[0]));
    if (i == 0) { /* any other stream that goes will do, once it is proven */
      for (int j = 0; j < 1000 && dock_stats(&d).quarantined_bytes != 0; j++) {
        CHECK_OK(tarn_copier_stream_retire(d.copier, d.rig.streams[1]));
      }
    }
    CHECK_OK(tarn_copier_destroy(d.copier));
    d.copier = NULL;
    CHECK_EQ(dock_pinned_live(&d), 0);
    CHECK_OK(tarn_copier_create(d.pool, NULL, &d.copier));
    dock_close(&d);
  }
}

static const test_case cases[] = {
    {"contents", contents},
    {"large", large},
    {"pinned_memory_goes_directly", pinned_memory_goes_directly},
    {"failed_ends", failed_ends},
    {"wrong_arguments", wrong_arguments},
    {"sizes_beyond_counting", sizes_beyond_counting},
    {"small_and_finished_later", small_and_finished_later},
    {"fences", fences},
    {"fences_of_a_lost_device", fences_of_a_lost_device},
    {"captured_copies", captured_copies},
    {"captures_are_asked_for_once", captures_are_asked_for_once},
    {"unproven_of_a_stream_that_goes", unproven_of_a_stream_that_goes},
};

TEST_MAIN(cases)
