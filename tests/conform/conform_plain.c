/* SPDX-License-Identifier: MIT
 *
 * Conformance: plain memory, the kind that is given back with a wait. */
#include "conform/conform.h"

enum { PLAIN_BYTES = 4 << 20 };

static void allocated_and_used(void) {
  const uint64_t sizes[] = {1, 255, 4097, PLAIN_BYTES + 13};
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    tarn_ptr block = 0;
    REQUIRE_OK(tarni_port_plain_alloc(conform_port, sizes[i], &block));
    CHECK(block != 0 && block % 256 == 0);
    CHECK_OK(conform_device_pattern(block, sizes[i], i));
    CHECK_EQ(conform_device_differ(block, sizes[i], i), 0);
    CHECK_OK(tarni_port_plain_free(conform_port, block));
  }
}

static void blocks_are_disjoint(void) {
  enum { N = 16, SIZE = 70000 };
  tarn_ptr blocks[N];
  for (int i = 0; i < N; i++) {
    REQUIRE_OK(tarni_port_plain_alloc(conform_port, SIZE, &blocks[i]));
    CHECK_OK(conform_device_pattern(blocks[i], SIZE, (uint64_t)i));
  }
  for (int i = 0; i < N; i++) {
    CHECK_EQ(conform_device_differ(blocks[i], SIZE, (uint64_t)i), 0);
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarni_port_plain_free(conform_port, blocks[i]));
  }
}

static void more_plain_than_there_is(void) {
  tarn_ptr block = 77;
  const uint64_t size = conform_port->device.total_bytes + (1u << 20);
  CHECK_STATUS(tarni_port_plain_alloc(conform_port, size, &block), TARN_DEVICE_MEMORY);
  CHECK_EQ(block, 0);
  CHECK_OK(tarni_port_plain_alloc(conform_port, PLAIN_BYTES, &block));
  CHECK_OK(tarni_port_plain_free(conform_port, block));
}

static void unknown_is_not_freed(void) {
  tarn_ptr block;
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, PLAIN_BYTES, &block));
  CHECK_OK(conform_device_pattern(block, PLAIN_BYTES, 3));
  CHECK(conform_fails(tarni_port_plain_free(conform_port, block + 256)));
  conform_forgive();
  CHECK_EQ(conform_device_differ(block, PLAIN_BYTES, 3), 0);
  CHECK_OK(tarni_port_plain_free(conform_port, block));
}

/* The free of one block waits for the work of every stream, also work that does not use it. */
static void free_waits_for_all_work(void) {
  tarn_ptr block, busy;
  tarn_stream stream;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, PLAIN_BYTES, &block));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, PLAIN_BYTES, &busy));
  conform_gate *gate = conform_gate_close(stream);
  CHECK_OK(tarni_port_fill(conform_port, busy, 0x31, PLAIN_BYTES, stream));
  conform_gate_open_later(gate, 30);
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK(conform_gate_is_open(gate));
  CHECK(conform_gate_join(gate));
  CHECK_OK(tarni_port_stream_query(conform_port, stream));
  CHECK_EQ(conform_device_differ_value(busy, PLAIN_BYTES, 0x31), 0);
  CHECK_OK(tarni_port_plain_free(conform_port, busy));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static const test_case plain_cases[] = {
    {"plain: allocated and used", allocated_and_used},
    {"plain: blocks are disjoint", blocks_are_disjoint},
    {"plain: more than there is", more_plain_than_there_is},
    {"plain: an address inside a block is not freed", unknown_is_not_freed},
    {"plain: a free waits for all work", free_waits_for_all_work},
};
CONFORM_TABLE(plain, plain_cases)
