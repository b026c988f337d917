/* SPDX-License-Identifier: MIT
 *
 * Conformance: streams, their identity, query and synchronisation. */
#include <stdlib.h>

#include "conform/conform.h"

static int compare_ids(const void *a, const void *b) {
  const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
  return (left > right) - (left < right);
}

/* Handles come back, ids do not. */
static void ids_are_never_used_again(void) {
  enum { N = 64 };
  uint64_t ids[N];
  for (int i = 0; i < N; i++) {
    tarn_stream stream;
    REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
    REQUIRE_OK(tarni_port_stream_id(conform_port, stream, &ids[i]));
    uint64_t again = 0;
    CHECK_OK(tarni_port_stream_id(conform_port, stream, &again));
    CHECK_EQ(again, ids[i]);
    CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
  }
  qsort(ids, N, sizeof(ids[0]), compare_ids);
  uint64_t n_same = 0;
  for (int i = 1; i < N; i++) {
    n_same += ids[i] == ids[i - 1];
  }
  CHECK_EQ(n_same, 0);
}

static tarn_status per_thread_id(void *id) {
  return tarni_port_stream_id(conform_port, TARNI_STREAM_PER_THREAD, id);
}

static void ids_of_default_streams(void) {
  uint64_t null_id, legacy_id, own_id, again_id, other_id, created_id;
  tarn_stream stream;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  CHECK_OK(tarni_port_stream_id(conform_port, stream, &created_id));
  CHECK_OK(tarni_port_stream_id(conform_port, NULL, &null_id));
  CHECK_OK(tarni_port_stream_id(conform_port, TARNI_STREAM_LEGACY, &legacy_id));
  CHECK_EQ(null_id, legacy_id);
  CHECK_OK(per_thread_id(&own_id));
  CHECK_OK(per_thread_id(&again_id));
  CHECK_EQ(own_id, again_id);
  CHECK_OK(conform_on_thread(per_thread_id, &other_id));
  CHECK(own_id != other_id && own_id != null_id && other_id != null_id);
  CHECK(created_id != null_id && created_id != own_id && created_id != other_id);
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void default_streams_work(void) {
  const tarn_stream streams[] = {NULL, TARNI_STREAM_LEGACY, TARNI_STREAM_PER_THREAD};
  tarn_ptr block;
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, 4096, &block));
  for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
    CHECK_OK(tarni_port_fill(conform_port, block, (uint8_t)(i + 1), 4096, streams[i]));
    CHECK_OK(tarni_port_stream_sync(conform_port, streams[i]));
    CHECK_OK(tarni_port_stream_query(conform_port, streams[i]));
    CHECK_EQ(conform_device_differ_value(block, 4096, (uint8_t)(i + 1)), 0);
  }
  CHECK_OK(tarni_port_plain_free(conform_port, block));
}

static void query_and_synchronise(void) {
  tarn_stream stream;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  CHECK_OK(tarni_port_stream_query(conform_port, stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  conform_gate *gate = conform_gate_close(stream);
  CHECK_STATUS(tarni_port_stream_query(conform_port, stream), TARN_NOT_READY);
  conform_gate_open_later(gate, 20);
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK(conform_gate_is_open(gate));
  CHECK(conform_gate_join(gate));
  CHECK_OK(tarni_port_stream_query(conform_port, stream));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

/* A stream that is held holds no other, nor the legacy default stream. */
static void streams_are_independent(void) {
  tarn_stream held, running;
  tarn_ptr block;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &held));
  REQUIRE_OK(tarni_port_stream_create(conform_port, &running));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, 4096, &block));
  conform_gate *gate = conform_gate_close(held);
  CHECK_OK(tarni_port_fill(conform_port, block, 0x71, 2048, running));
  CHECK_OK(tarni_port_stream_sync(conform_port, running));
  CHECK_OK(tarni_port_fill(conform_port, block + 2048, 0x71, 2048, NULL));
  CHECK_OK(tarni_port_stream_sync(conform_port, NULL));
  CHECK_EQ(conform_device_differ_value(block, 4096, 0x71), 0);
  CHECK_STATUS(tarni_port_stream_query(conform_port, held), TARN_NOT_READY);
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, held));
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK_OK(tarni_port_stream_destroy(conform_port, held));
  CHECK_OK(tarni_port_stream_destroy(conform_port, running));
}

static void destroyed_with_work_pending(void) {
  tarn_stream stream;
  tarni_event event;
  tarn_ptr block;
  conform_pattern(conform_pinned_a, CONFORM_PINNED_BYTES, 2);
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, CONFORM_PINNED_BYTES, &block));
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_event_create(conform_port, &event));
  conform_gate *gate = conform_gate_close(stream);
  CHECK_OK(tarni_port_copy(conform_port, block, (uintptr_t)conform_pinned_a, CONFORM_PINNED_BYTES,
                           stream));
  CHECK_OK(tarni_port_event_record(conform_port, event, stream));
  CHECK_STATUS(tarni_port_event_query(conform_port, event), TARN_NOT_READY);
  CHECK(conform_gate_open(gate)); /* a driver may wait in destroy for a stream that is held */
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
  CHECK_OK(tarni_port_event_sync(conform_port, event));
  CHECK_EQ(conform_device_differ(block, CONFORM_PINNED_BYTES, 2), 0);
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK_OK(tarni_port_event_destroy(conform_port, event));
}

static const test_case stream_cases[] = {
    {"stream: an id is never used again", ids_are_never_used_again},
    {"stream: ids of the default streams", ids_of_default_streams},
    {"stream: the default streams work", default_streams_work},
    {"stream: query and synchronise", query_and_synchronise},
    {"stream: a held stream holds no other", streams_are_independent},
    {"stream: destroyed with work pending", destroyed_with_work_pending},
};
CONFORM_TABLE(stream, stream_cases)
