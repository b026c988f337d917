/* SPDX-License-Identifier: MIT
 *
 * Pinned memory and budgets through the public interface, on any device: the one of
 * TARN_TEST_DEVICE, else a simulated one. Contents are compared byte for byte. The number of checks
 * is the same on every device. */
#include <stdlib.h>
#include <string.h>

#include "support/test.h"
#include "tarn/budget.h"
#include "tarn/pinned.h"

#define MIB ((uint64_t)1 << 20)

static const char *device_name;
static tarn_device *device;
static tarn_stream stream;

/* A device that is not there is a reason to skip. */
static bool is_missing(void) {
  if (device == NULL) {
    test_skip("the device cannot be opened");
  }
  return device == NULL;
}

static uint64_t word_of(uint64_t seed, uint64_t index) {
  return (seed * 0x9e3779b97f4a7c15u) ^ (index * 0xd1b54a32d192ed03u);
}

/* Bytes that can be told apart, wherever they are. */
static void pattern_write(void *memory, uint64_t bytes, uint64_t seed) {
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = word_of(seed, at);
    memcpy((char *)memory + at, &word, bytes - at < sizeof(word) ? bytes - at : sizeof(word));
  }
}

static uint64_t pattern_differs(const void *memory, uint64_t bytes, uint64_t seed) {
  uint64_t n = 0;
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = word_of(seed, at);
    const uint64_t size = bytes - at < sizeof(word) ? bytes - at : sizeof(word);
    n += memcmp((const char *)memory + at, &word, size) != 0;
  }
  return n;
}

/* Up from one block and down to another, each in one copy. */
static void there_and_back(tarn_pinned *pool, tarn_heap *heap, uint64_t bytes) {
  void *up = NULL, *down = NULL;
  tarn_ptr block = 0;
  REQUIRE_OK(tarn_pinned_alloc(pool, bytes, &up));
  REQUIRE_OK(tarn_pinned_alloc(pool, bytes, &down));
  REQUIRE_OK(tarn_alloc(heap, bytes, stream, &block));
  CHECK(tarn_host_is_pinned(device, up, bytes));
  pattern_write(up, bytes, bytes);
  memset(down, 0, bytes);
  CHECK_OK(tarn_device_copy(device, block, (uintptr_t)up, bytes, stream));
  CHECK_OK(tarn_device_copy(device, (uintptr_t)down, block, bytes, stream));
  CHECK_OK(tarn_stream_synchronize(device, stream));
  CHECK_EQ(pattern_differs(down, bytes, bytes), 0);
  CHECK_OK(tarn_free(heap, block, stream));
  CHECK_OK(tarn_pinned_free(pool, up));
  CHECK_OK(tarn_pinned_free_on(pool, down, stream));
}

static void run_sizes(const tarn_pinned_config *config) {
  static const uint64_t sizes[] = {
      1, 255, 4096, 4097, 65536 + 3, (1 << 20) - 1, 1 << 20, (3 << 20) + 5, (33u << 20) + 7};
  tarn_pinned *pool = NULL;
  tarn_heap *heap = NULL;
  const tarn_heap_config heap_config = {.size = sizeof(heap_config), .device = device_name};
  REQUIRE_OK(tarn_pinned_create(config, &pool));
  REQUIRE_OK(tarn_heap_create(&heap_config, &heap));
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    there_and_back(pool, heap, sizes[i]);
  }
  CHECK_OK(tarn_heap_destroy(heap, NULL));
  CHECK_OK(tarn_pinned_check(pool));
  CHECK_OK(tarn_pinned_trim(pool, 0));
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
}

static tarn_pinned_config default_config(void) {
  return (tarn_pinned_config){.size = sizeof(tarn_pinned_config), .device = device_name};
}

static void regions(void) {
  if (!is_missing()) {
    const tarn_pinned_config config = default_config();
    run_sizes(&config);
  }
}

static void small_regions(void) {
  if (!is_missing()) {
    tarn_pinned_config config = default_config();
    config.region_bytes = 2 * MIB;
    config.flags = TARN_PINNED_SMALL_PAGES;
    run_sizes(&config);
  }
}

static void powers_of_two(void) {
  if (!is_missing()) {
    tarn_pinned_config config = default_config();
    config.rounding = TARN_PINNED_POWER_OF_TWO;
    run_sizes(&config);
  }
}

static void write_combined(void) {
  if (!is_missing()) {
    tarn_pinned_config config = default_config();
    config.flags = TARN_PINNED_WRITE_COMBINED;
    run_sizes(&config);
  }
}

/* Each round writes a block, gives it to the stream and frees it at once: had one been handed out
 * before the stream had read it, the device would have another round's bytes. */
static void in_stream_order(void) {
  enum { ROUNDS = 64 };
  if (is_missing()) {
    return;
  }
  tarn_pinned_config config = default_config();
  config.limit_bytes = 16 * MIB;
  config.region_bytes = 2 * MIB;
  tarn_pinned *pool = NULL;
  tarn_heap *heap = NULL;
  const tarn_heap_config heap_config = {.size = sizeof(heap_config), .device = device_name};
  REQUIRE_OK(tarn_pinned_create(&config, &pool));
  REQUIRE_OK(tarn_heap_create(&heap_config, &heap));
  tarn_ptr target = 0;
  REQUIRE_OK(tarn_alloc(heap, ROUNDS * MIB, stream, &target));
  for (uint64_t round = 0; round < ROUNDS; round++) {
    void *block = NULL;
    REQUIRE_OK(tarn_pinned_alloc(pool, MIB, &block));
    pattern_write(block, MIB, round);
    CHECK_OK(tarn_device_copy(device, target + round * MIB, (uintptr_t)block, MIB, stream));
    CHECK_OK(tarn_pinned_free_on(pool, block, stream));
  }
  void *back = NULL;
  CHECK_OK(tarn_stream_synchronize(device, stream));
  REQUIRE_OK(tarn_pinned_alloc(pool, MIB, &back));
  for (uint64_t round = 0; round < ROUNDS; round++) {
    CHECK_OK(tarn_device_copy(device, (uintptr_t)back, target + round * MIB, MIB, stream));
    CHECK_OK(tarn_stream_synchronize(device, stream));
    CHECK_EQ(pattern_differs(back, MIB, round), 0);
  }
  CHECK_OK(tarn_pinned_free(pool, back));
  CHECK_OK(tarn_free(heap, target, stream));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
  CHECK_OK(tarn_pinned_check(pool));
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
}

static void registered(void) {
  if (is_missing()) {
    return;
  }
  const uint64_t bytes = 8 * MIB;
  tarn_heap *heap = NULL;
  tarn_ptr block = 0;
  const tarn_heap_config heap_config = {.size = sizeof(heap_config), .device = device_name};
  REQUIRE_OK(tarn_heap_create(&heap_config, &heap));
  REQUIRE_OK(tarn_alloc(heap, bytes, stream, &block));
  void *memory = aligned_alloc(4096, bytes);
  REQUIRE(memory != NULL);
  pattern_write(memory, bytes, 5);
  CHECK_OK(tarn_host_register(device, memory, bytes));
  CHECK(tarn_host_is_pinned(device, memory, bytes));
  CHECK_STATUS(tarn_host_register(device, memory, bytes), TARN_STATE);
  CHECK_OK(tarn_device_copy(device, block, (uintptr_t)memory, bytes, stream));
  CHECK_OK(tarn_stream_synchronize(device, stream));
  memset(memory, 0, bytes);
  CHECK_OK(tarn_device_copy(device, (uintptr_t)memory, block, bytes, stream));
  CHECK_OK(tarn_stream_synchronize(device, stream));
  CHECK_EQ(pattern_differs(memory, bytes, 5), 0);
  CHECK_OK(tarn_host_unregister(device, memory));
  CHECK_STATUS(tarn_host_unregister(device, memory), TARN_FOREIGN);
  free(memory);
  CHECK_OK(tarn_free(heap, block, stream));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
}

static void budgets(void) {
  if (is_missing()) {
    return;
  }
  const uint64_t sizes[] = {40 * MIB, 1000, 3 * MIB};
  tarn_heap *heap = NULL;
  const tarn_heap_config config = {
      .size = sizeof(config), .device = device_name, .limit_bytes = 64 * MIB};
  REQUIRE_OK(tarn_heap_create(&config, &heap));
  tarn_budget *budget = NULL, *second = NULL;
  tarn_budget_info info = {.size = sizeof(info)};
  REQUIRE_OK(tarn_budget_create(heap, sizes, 3, stream, &info, &budget));
  CHECK_STATUS(tarn_budget_create(heap, sizes, 3, stream, &info, &second), TARN_LIMIT);
  CHECK_EQ(info.required_bytes, 43 * MIB + 1024);
  for (int i = 0; i < 3; i++) {
    tarn_ptr block = 0;
    CHECK_OK(tarn_budget_alloc(budget, sizes[i], &block));
    CHECK_OK(tarn_device_fill(device, block, 1, sizes[i], stream));
    CHECK_OK(tarn_free(heap, block, stream));
  }
  CHECK_OK(tarn_stream_synchronize(device, stream));
  CHECK_OK(tarn_budget_destroy(budget));
  CHECK_OK(tarn_heap_check(heap));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
}

static const test_case cases[] = {
    {"regions", regions},
    {"small_regions", small_regions},
    {"powers_of_two", powers_of_two},
    {"write_combined", write_combined},
    {"in_stream_order", in_stream_order},
    {"registered", registered},
    {"budgets", budgets},
};

int main(int argc, char **argv) {
  const char *given = getenv("TARN_TEST_DEVICE");
  device_name = given != NULL ? given : "sim:4G,seed=9";
  if (tarn_device_open(device_name, &device) != TARN_OK) {
    device = NULL;
  } else if (tarn_stream_create(device, &stream) != TARN_OK) {
    test_note("no stream: %s", tarn_last_message());
    return 1;
  }
  const int result = test_run(cases, (int)(sizeof(cases) / sizeof(cases[0])), argc, argv);
  if (device != NULL && tarn_stream_destroy(device, stream) != TARN_OK) {
    test_note("the stream: %s", tarn_last_message());
    return 1;
  }
  tarn_device_close(device);
  return result;
}
