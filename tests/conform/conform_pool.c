/* SPDX-License-Identifier: MIT
 *
 * Conformance: a private pool of the driver, in stream order. */
#include "conform/conform.h"

enum { POOL_BYTES = 1 << 20, POOL_LARGE_BYTES = 64 << 20, POOL_SLACK_BYTES = 40 << 20 };

static tarni_pool pool;
static tarn_stream stream;

static tarn_status pool_set_up(uint64_t threshold) {
  const tarn_status status = tarni_port_stream_create(conform_port, &stream);
  return status == TARN_OK ? tarni_port_pool_create(conform_port, threshold, &pool) : status;
}

static void pool_take_down(void) {
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_OK(tarni_port_pool_destroy(conform_port, pool));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

/* Allocated, used and freed without a wait in between: the stream's order is enough. */
static void used_in_stream_order(void) {
  enum { N = 8 };
  const tarn_ptr source = (uintptr_t)conform_pinned_a, result = (uintptr_t)conform_pinned_b;
  const uint64_t piece = CONFORM_PINNED_BYTES / N;
  REQUIRE_OK(pool_set_up(UINT64_MAX));
  conform_pattern(conform_pinned_a, CONFORM_PINNED_BYTES, 1);
  for (uint64_t i = 0; i < N; i++) {
    tarn_ptr block = 0;
    REQUIRE_OK(tarni_port_pool_alloc(conform_port, pool, piece, stream, &block));
    CHECK_OK(tarni_port_copy(conform_port, block, source + i * piece, piece, stream));
    CHECK_OK(tarni_port_copy(conform_port, result + i * piece, block, piece, stream));
    CHECK_OK(tarni_port_pool_free(conform_port, block, stream));
  }
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(conform_differ(conform_pinned_b, CONFORM_PINNED_BYTES, 1), 0);
  pool_take_down();
}

static void pool_blocks_are_disjoint(void) {
  enum { N = 8 };
  tarn_ptr blocks[N];
  REQUIRE_OK(pool_set_up(0));
  for (int i = 0; i < N; i++) {
    REQUIRE_OK(tarni_port_pool_alloc(conform_port, pool, POOL_BYTES + 3, stream, &blocks[i]));
    CHECK_OK(tarni_port_fill(conform_port, blocks[i], (uint8_t)i, POOL_BYTES + 3, stream));
  }
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  for (int i = 0; i < N; i++) {
    CHECK_EQ(conform_device_differ_value(blocks[i], POOL_BYTES + 3, (uint8_t)i), 0);
    CHECK_OK(tarni_port_pool_free(conform_port, blocks[i], stream));
  }
  pool_take_down();
}

/* Neither call waits: both return while the stream is held. */
static void pool_calls_do_not_wait(void) {
  tarn_ptr first, second;
  REQUIRE_OK(pool_set_up(UINT64_MAX));
  conform_gate *gate = conform_gate_close(stream);
  CHECK_OK(tarni_port_pool_alloc(conform_port, pool, POOL_BYTES, stream, &first));
  CHECK_OK(tarni_port_fill(conform_port, first, 0x41, POOL_BYTES, stream));
  CHECK_OK(tarni_port_pool_free(conform_port, first, stream));
  CHECK_OK(tarni_port_pool_alloc(conform_port, pool, POOL_BYTES, stream, &second));
  CHECK_OK(tarni_port_fill(conform_port, second, 0x42, POOL_BYTES, stream));
  CHECK(!conform_gate_is_open(gate));
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(conform_device_differ_value(second, POOL_BYTES, 0x42), 0);
  CHECK_OK(tarni_port_pool_free(conform_port, second, stream));
  pool_take_down();
}

/* A block is given to another stream by an event, and freed there. */
static void pool_block_crosses_streams(void) {
  tarn_stream other;
  tarni_event event;
  tarn_ptr block;
  REQUIRE_OK(pool_set_up(UINT64_MAX));
  REQUIRE_OK(tarni_port_stream_create(conform_port, &other));
  REQUIRE_OK(tarni_port_event_create(conform_port, &event));
  conform_gate *gate = conform_gate_close(stream);
  REQUIRE_OK(tarni_port_pool_alloc(conform_port, pool, 4096, stream, &block));
  CHECK_OK(tarni_port_fill(conform_port, block, 0x51, 4096, stream));
  CHECK_OK(tarni_port_event_record(conform_port, event, stream));
  CHECK_OK(tarni_port_event_wait(conform_port, other, event));
  CHECK_OK(tarni_port_copy(conform_port, (uintptr_t)conform_pinned_b, block, 4096, other));
  CHECK_OK(tarni_port_pool_free(conform_port, block, other));
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, other));
  CHECK_EQ(conform_differ_value(conform_pinned_b, 4096, 0x51), 0);
  CHECK_OK(tarni_port_event_destroy(conform_port, event));
  CHECK_OK(tarni_port_stream_destroy(conform_port, other));
  pool_take_down();
}

/* Allocates and frees a large block and returns how far the device's free bytes stay below what
 * they were. */
static uint64_t bytes_kept_after_free(void) {
  tarn_ptr block;
  const uint64_t free_before = conform_free_bytes();
  CHECK_OK(tarni_port_pool_alloc(conform_port, pool, POOL_LARGE_BYTES, stream, &block));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK(conform_free_bytes() + POOL_LARGE_BYTES <= free_before);
  CHECK_OK(tarni_port_pool_free(conform_port, block, stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  const uint64_t free_after = conform_free_bytes();
  return free_after < free_before ? free_before - free_after : 0;
}

static void kept_below_the_threshold(void) {
  REQUIRE_OK(pool_set_up(UINT64_MAX));
  CHECK(bytes_kept_after_free() >= POOL_LARGE_BYTES);
  const uint64_t free_before = conform_free_bytes();
  CHECK_OK(tarni_port_pool_trim(conform_port, pool, 0));
  CHECK(conform_free_bytes() >= free_before + POOL_LARGE_BYTES);
  pool_take_down();
}

static void given_back_above_the_threshold(void) {
  REQUIRE_OK(pool_set_up(0));
  CHECK(bytes_kept_after_free() <= POOL_SLACK_BYTES);
  pool_take_down();
}

static void more_pool_than_there_is(void) {
  tarn_ptr block = 77;
  const uint64_t size = conform_port->device.total_bytes + (1u << 20);
  REQUIRE_OK(pool_set_up(0));
  CHECK_STATUS(tarni_port_pool_alloc(conform_port, pool, size, stream, &block), TARN_DEVICE_MEMORY);
  CHECK_EQ(block, 0);
  block = 77;
  CHECK_STATUS(tarni_port_pool_alloc(conform_port, pool, 0, stream, &block), TARN_INVALID);
  CHECK_EQ(block, 0);
  CHECK_OK(tarni_port_pool_alloc(conform_port, pool, POOL_BYTES, stream, &block));
  CHECK_OK(tarni_port_pool_free(conform_port, block, stream));
  pool_take_down();
}

static const test_case pool_cases[] = {
    {"pool: used in stream order", used_in_stream_order},
    {"pool: blocks are disjoint", pool_blocks_are_disjoint},
    {"pool: neither alloc nor free waits", pool_calls_do_not_wait},
    {"pool: a block crosses streams by an event", pool_block_crosses_streams},
    {"pool: memory is kept below the threshold, and trimmed", kept_below_the_threshold},
    {"pool: memory is given back above the threshold", given_back_above_the_threshold},
    {"pool: more than there is", more_pool_than_there_is},
};
CONFORM_TABLE(pool, pool_cases)
