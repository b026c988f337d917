/* SPDX-License-Identifier: MIT
 *
 * The caller's own memory registered and unregistered: each mistake is told as what it is, and what
 * is pinned is known. */
#include <stdlib.h>
#include <string.h>

#include "support/rig.h"
#include "support/test.h"
#include "tarn/pinned.h"

enum { PAGE = 4096, BYTES = 16 * PAGE };
#define DEVICE "sim:1G,id=7"

static void *memory_of(uint64_t bytes) {
  void *memory = aligned_alloc(PAGE, bytes);
  CHECK(memory != NULL);
  if (memory != NULL) {
    memset(memory, 3, bytes);
  }
  return memory;
}

static void registered(void) {
  rig r;
  REQUIRE(rig_open_device(&r, DEVICE, 1));
  char *memory = memory_of(BYTES);
  REQUIRE(memory != NULL);
  CHECK(!tarn_host_is_pinned(r.device, memory, 1));
  CHECK_OK(tarn_host_register(r.device, memory, BYTES));
  CHECK(tarn_host_is_pinned(r.device, memory, BYTES));
  CHECK(tarn_host_is_pinned(r.device, memory + BYTES - 1, 1));
  CHECK(!tarn_host_is_pinned(r.device, memory, BYTES + 1));
  CHECK(!tarn_host_is_pinned(r.device, memory + 1, BYTES));
  CHECK(!tarn_host_is_pinned(r.device, memory + BYTES, 1));
  CHECK(!tarn_host_is_pinned(r.device, memory, 0));
  CHECK(!tarn_host_is_pinned(r.device, memory, UINT64_MAX));
  CHECK(!tarn_host_is_pinned(NULL, memory, 1));
  CHECK(!tarn_host_is_pinned(r.device, NULL, 1));
  CHECK_OK(tarn_host_unregister(r.device, memory));
  CHECK(!tarn_host_is_pinned(r.device, memory, 1));
  CHECK_OK(tarn_host_register(r.device, memory, BYTES)); /* again */
  CHECK_OK(tarn_host_unregister(r.device, memory));
  free(memory);
  rig_close(&r);
}

static void mistakes(void) {
  rig r;
  REQUIRE(rig_open_device(&r, DEVICE, 1));
  char *memory = memory_of(BYTES);
  REQUIRE(memory != NULL);
  char *middle = memory + 4 * PAGE;
  CHECK_STATUS(tarn_host_register(NULL, memory, BYTES), TARN_INVALID);
  CHECK_STATUS(tarn_host_register(r.device, NULL, BYTES), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "NULL");
  CHECK_STATUS(tarn_host_register(r.device, memory, 0), TARN_INVALID);
  CHECK_STATUS(tarn_host_register(r.device, memory, UINT64_MAX - 4096), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_host_unregister(NULL, memory), TARN_INVALID);
  CHECK_STATUS(tarn_host_unregister(r.device, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_host_unregister(r.device, memory), TARN_FOREIGN);
  CHECK_OK(tarn_host_register(r.device, middle, 4 * PAGE));
  const uint64_t calls = rig_calls(&r);
  CHECK_STATUS(tarn_host_register(r.device, middle, 4 * PAGE), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "already");
  CHECK_STATUS(tarn_host_register(r.device, middle, 2 * PAGE), TARN_RANGE);
  CHECK_STATUS(tarn_host_register(r.device, memory, BYTES), TARN_RANGE);
  CHECK_STATUS(tarn_host_register(r.device, middle + PAGE, PAGE), TARN_RANGE);
  CHECK_STATUS(tarn_host_register(r.device, middle - PAGE, 2 * PAGE), TARN_RANGE);
  CHECK_STATUS(tarn_host_register(r.device, middle + 3 * PAGE, 2 * PAGE), TARN_RANGE);
  CHECK_STATUS(tarn_host_unregister(r.device, middle + PAGE), TARN_INTERIOR);
  CHECK_STATUS(tarn_host_unregister(r.device, middle - PAGE), TARN_FOREIGN);
  CHECK_EQ(rig_calls(&r), calls); /* the driver has no part in any of it */
  CHECK_OK(tarn_host_register(r.device, memory, 4 * PAGE)); /* right before it */
  CHECK(!tarn_host_is_pinned(r.device, memory, 5 * PAGE));  /* not in one piece */
  CHECK_OK(tarn_host_unregister(r.device, memory));
  CHECK_OK(tarn_host_unregister(r.device, middle));
  CHECK_STATUS(tarn_host_unregister(r.device, middle), TARN_FOREIGN);
  free(memory);
  rig_close(&r);
}

/* The driver refuses: nothing is noted, and it can be tried again. */
static void refused(void) {
  rig r;
  REQUIRE(rig_open_device(&r, DEVICE, 1));
  char *memory = memory_of(BYTES);
  REQUIRE(memory != NULL);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_HOST_REGISTER, 1, 1, 2));
  CHECK_STATUS(tarn_host_register(r.device, memory, BYTES), TARN_HOST_MEMORY);
  CHECK(!tarn_host_is_pinned(r.device, memory, 1));
  CHECK_OK(tarn_host_register(r.device, memory, BYTES));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_HOST_UNREGISTER, 1, 1, 1));
  CHECK_STATUS(tarn_host_unregister(r.device, memory), TARN_INVALID);
  CHECK(tarn_host_is_pinned(r.device, memory, BYTES));
  CHECK_OK(tarn_host_unregister(r.device, memory));
  free(memory);
  rig_close(&r);
  tarn_device *device = NULL;
  REQUIRE_OK(tarn_device_open("sim:1G,register=off", &device));
  CHECK_STATUS(tarn_host_register(device, &r, sizeof(r)), TARN_UNSUPPORTED);
  tarn_device_close(device);
}

/* Memory of a pool is known, and cannot be registered once more. */
static void of_a_pool(void) {
  rig r;
  REQUIRE(rig_open_device(&r, DEVICE, 1));
  const tarn_pinned_config config = {
      .size = sizeof(config), .device = DEVICE, .region_bytes = 2 << 20};
  tarn_pinned *pool = NULL;
  REQUIRE_OK(tarn_pinned_create(&config, &pool));
  char *block = NULL;
  REQUIRE_OK(tarn_pinned_alloc(pool, 8192, (void **)&block));
  CHECK(tarn_host_is_pinned(r.device, block, 8192));
  CHECK(!tarn_host_is_pinned(r.device, block + 4096, 8192));
  CHECK_STATUS(tarn_host_register(r.device, block, 4096), TARN_STATE);
  CHECK_STATUS(tarn_host_unregister(r.device, block), TARN_FOREIGN);
  tarn_device *other = NULL; /* of the same driver: pinned for it, too */
  REQUIRE_OK(tarn_device_open("sim:1G,id=8", &other));
  CHECK(tarn_host_is_pinned(other, block, 8192));
  tarn_device_close(other);
  CHECK_OK(tarn_pinned_free(pool, block));
  CHECK(!tarn_host_is_pinned(r.device, block, 1));
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
  CHECK(!tarn_host_is_pinned(r.device, block, 1));
  rig_close(&r);
}

/* The same where each block is an allocation of the driver: also of what is kept, and whatever part
 * of a range it is. */
static void of_a_pool_of_the_driver(void) {
  rig r;
  REQUIRE(rig_open_device(&r, DEVICE, 1));
  const tarn_pinned_config config = {
      .size = sizeof(config), .device = DEVICE, .rounding = TARN_PINNED_POWER_OF_TWO};
  tarn_pinned *pool = NULL;
  REQUIRE_OK(tarn_pinned_create(&config, &pool));
  char *block = NULL;
  REQUIRE_OK(tarn_pinned_alloc(pool, 4 * PAGE, (void **)&block));
  const uint64_t calls = rig_calls(&r); /* the driver is not asked about any of it */
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(tarn_host_is_pinned(r.device, block, 4 * PAGE), i == 0);
    CHECK_STATUS(tarn_host_register(r.device, block + PAGE, PAGE), TARN_STATE);
    CHECK_STATUS(tarn_host_register(r.device, block - PAGE, 2 * PAGE), TARN_STATE);
    CHECK_STATUS(tarn_host_register(r.device, block - PAGE, 6 * PAGE), TARN_STATE);
    CHECK_STATUS(tarn_host_register(r.device, block + 3 * PAGE, 2 * PAGE), TARN_STATE);
    CHECK_HAS(tarn_last_message(), "pinned pool");
    CHECK_STATUS(tarn_host_unregister(r.device, block), TARN_FOREIGN);
    if (i == 0) {
      CHECK_OK(tarn_pinned_free(pool, block));
    }
  }
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
  rig_close(&r);
}

/* A copy of registered memory has the bytes. */
static void copied(void) {
  rig r;
  REQUIRE(rig_open(&r, DEVICE, NULL, 1));
  char *memory = memory_of(BYTES);
  REQUIRE(memory != NULL);
  CHECK_OK(tarn_host_register(r.device, memory, BYTES));
  tarn_ptr block;
  REQUIRE_OK(tarn_alloc(r.heap, BYTES, r.streams[0], &block));
  CHECK_OK(tarn_device_copy(r.device, block, (uintptr_t)memory, BYTES, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  memset(memory, 0, BYTES);
  CHECK_OK(tarn_device_copy(r.device, (uintptr_t)memory, block, BYTES, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  uint64_t n_wrong = 0;
  for (int i = 0; i < BYTES; i++) {
    n_wrong += memory[i] != 3;
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK_OK(tarn_host_unregister(r.device, memory));
  free(memory);
  rig_close(&r);
}

static const test_case cases[] = {
    {"registered", registered},
    {"mistakes", mistakes},
    {"refused", refused},
    {"of_a_pool", of_a_pool},
    {"of a pool of the driver", of_a_pool_of_the_driver},
    {"copied", copied},
};

TEST_MAIN(cases)
