/* SPDX-License-Identifier: MIT
 *
 * Conformance: pinned host memory, allocated and registered. */
#include <string.h>
#include <sys/mman.h>

#include "conform/conform.h"

enum { HOST_BYTES = 1 << 20 };

/* Copies the pattern in host memory to the device and back into another part of it. */
static void round_trip(uint8_t *host, uint64_t size, uint64_t seed) {
  tarn_stream stream;
  tarn_ptr block;
  const uint64_t half = size / 2;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, half, &block));
  conform_pattern(host, half, seed);
  CHECK_OK(tarni_port_copy(conform_port, block, (uintptr_t)host, half, stream));
  CHECK_OK(tarni_port_copy(conform_port, (uintptr_t)host + half, block, half, stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(conform_differ(host + half, half, seed), 0);
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void pinned_memory(void) {
  const unsigned flags[] = {0, TARNI_HOST_WRITE_COMBINED};
  for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
    void *host = NULL;
    REQUIRE_OK(tarni_port_host_alloc(conform_port, HOST_BYTES, flags[i], &host));
    CHECK(host != NULL && (uintptr_t)host % 4096 == 0);
    round_trip(host, HOST_BYTES, i);
    CHECK_OK(tarni_port_host_free(conform_port, host));
  }
}

static void pinned_blocks_are_disjoint(void) {
  enum { N = 8, SIZE = 12345 };
  void *blocks[N];
  for (uint64_t i = 0; i < N; i++) {
    REQUIRE_OK(tarni_port_host_alloc(conform_port, SIZE, 0, &blocks[i]));
    conform_pattern(blocks[i], SIZE, i);
  }
  for (uint64_t i = 0; i < N; i++) {
    CHECK_EQ(conform_differ(blocks[i], SIZE, i), 0);
    CHECK_OK(tarni_port_host_free(conform_port, blocks[i]));
  }
}

static void more_pinned_than_there_is(void) {
  void *host = &host;
  CHECK_STATUS(tarni_port_host_alloc(conform_port, UINT64_C(1) << 56, 0, &host), TARN_HOST_MEMORY);
  CHECK(host == NULL);
  host = &host;
  CHECK_STATUS(tarni_port_host_alloc(conform_port, 4096, 1u << 30, &host), TARN_INVALID);
  CHECK(host == NULL);
}

static void pinned_free_waits(void) {
  tarn_stream stream;
  void *host;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_host_alloc(conform_port, HOST_BYTES, 0, &host));
  conform_gate *gate = conform_gate_close(stream);
  conform_gate_open_later(gate, 30);
  CHECK_OK(tarni_port_host_free(conform_port, host));
  CHECK(conform_gate_is_open(gate));
  CHECK(conform_gate_join(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void unknown_pinned_is_not_freed(void) {
  static uint64_t ordinary[512];
  CHECK(conform_fails(tarni_port_host_free(conform_port, ordinary)));
  conform_forgive();
}

static void *ordinary_pages(uint64_t size) {
  void *pages =
      mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return pages != MAP_FAILED ? pages : NULL;
}

static void registered_memory(void) {
  void *pages = ordinary_pages(HOST_BYTES);
  REQUIRE(pages != NULL);
  REQUIRE_OK(tarni_port_host_register(conform_port, pages, HOST_BYTES));
  round_trip(pages, HOST_BYTES, 5);
  /* Registered as it is: a stream held by a word in it is held. */
  tarn_stream stream;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  CHECK_OK(tarni_port_value_write(conform_port, stream, pages, 42));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(*(uint64_t *)pages, 42);
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
  CHECK_OK(tarni_port_host_unregister(conform_port, pages));
  /* It is the owner's ordinary memory again, with its content. */
  CHECK_EQ(*(uint64_t *)pages, 42);
  CHECK(munmap(pages, HOST_BYTES) == 0);
}

static void registered_once(void) {
  void *pages = ordinary_pages(HOST_BYTES);
  REQUIRE(pages != NULL);
  REQUIRE_OK(tarni_port_host_register(conform_port, pages, HOST_BYTES));
  CHECK_STATUS(tarni_port_host_register(conform_port, pages, HOST_BYTES), TARN_STATE);
  CHECK_STATUS(tarni_port_host_unregister(conform_port, (char *)pages + 64), TARN_INVALID);
  CHECK_OK(tarni_port_host_unregister(conform_port, pages));
  CHECK_STATUS(tarni_port_host_unregister(conform_port, pages), TARN_STATE);
  conform_forgive();
  CHECK_OK(tarni_port_host_register(conform_port, pages, HOST_BYTES));
  CHECK_OK(tarni_port_host_unregister(conform_port, pages));
  CHECK(munmap(pages, HOST_BYTES) == 0);
}

/* A copy may begin in ordinary memory and run into what is registered; what begins there stays in
 * it. */
static void registered_in_part(void) {
  enum { PART = HOST_BYTES / 4 };
  uint8_t *pages = ordinary_pages(HOST_BYTES);
  tarn_ptr block;
  REQUIRE(pages != NULL);
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, HOST_BYTES, &block));
  REQUIRE_OK(tarni_port_host_register(conform_port, pages + PART, PART));
  REQUIRE_OK(tarni_port_host_register(conform_port, pages + (uint64_t)2 * PART, PART));
  const tarn_ptr all = (uintptr_t)pages;
  conform_pattern(pages, HOST_BYTES, 6);
  CHECK_OK(tarni_port_copy_sync(conform_port, block, all, HOST_BYTES));
  CHECK_EQ(conform_device_differ(block, HOST_BYTES, 6), 0);
  memset(pages, 0, HOST_BYTES);
  CHECK_OK(tarni_port_copy(conform_port, all, block, HOST_BYTES, NULL));
  CHECK_OK(tarni_port_stream_sync(conform_port, NULL));
  CHECK_EQ(conform_differ(pages, HOST_BYTES, 6), 0);
  CHECK_STATUS(tarni_port_copy(conform_port, block, all + PART, 2 * PART, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_copy(conform_port, all + 2 * PART, block, 2 * PART, NULL), TARN_INVALID);
  CHECK_OK(tarni_port_copy(conform_port, block, all + PART, PART, NULL));
  CHECK_OK(tarni_port_stream_sync(conform_port, NULL));
  conform_forgive();
  CHECK_OK(tarni_port_host_unregister(conform_port, pages + PART));
  CHECK_OK(tarni_port_host_unregister(conform_port, pages + (uint64_t)2 * PART));
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK(munmap(pages, HOST_BYTES) == 0);
}

static const test_case host_cases[] = {
    {"host: pinned memory", pinned_memory},
    {"host: pinned blocks are disjoint", pinned_blocks_are_disjoint},
    {"host: more than there is, unknown flags", more_pinned_than_there_is},
    {"host: a free waits for all work", pinned_free_waits},
    {"host: ordinary memory is not freed", unknown_pinned_is_not_freed},
    {"host: registered memory", registered_memory},
    {"host: registered once, unregistered once", registered_once},
    {"host: registered in part", registered_in_part},
};
CONFORM_TABLE(host, host_cases)
