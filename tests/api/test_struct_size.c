/* SPDX-License-Identifier: MIT
 *
 * Structs grow at their end. A program compiled against an older or a newer tarn than the library
 * that it runs with must get what both know, and nothing may be written past what it has. */
#include <string.h>

#include "support/test.h"
#include "tarn/batch.h"
#include "tarn/capture.h"
#include "tarn/copy.h"
#include "tarn/pinned.h"
#include "tarn/sim.h"
#include "tarn/tarn.h"

enum { GUARD = 0xA5, ROOM = 64 };

static tarn_device *open_device(void) {
  tarn_device *device = NULL;
  CHECK_OK(tarn_device_open("sim:1G", &device));
  return device;
}

/* An older program: its struct ends after `model`. */
static void older_info(void) {
  tarn_device *device = open_device();
  REQUIRE(device != NULL);
  union {
    tarn_device_info info;
    unsigned char bytes[sizeof(tarn_device_info)];
  } caller;
  const size_t known = offsetof(tarn_device_info, total_bytes);
  memset(&caller, GUARD, sizeof(caller));
  caller.info.size = known;
  CHECK_OK(tarn_device_get_info(device, &caller.info));
  CHECK_EQ(caller.info.size, known);
  CHECK_HAS(caller.info.name, "sim");
  for (size_t i = known; i < sizeof(caller.bytes); i++) {
    CHECK_EQ(caller.bytes[i], GUARD);
  }
  tarn_device_close(device);
}

/* A newer program: its struct has more at the end than this library knows. */
static void newer_info(void) {
  tarn_device *device = open_device();
  REQUIRE(device != NULL);
  struct {
    tarn_device_info info;
    unsigned char unknown[ROOM];
  } caller;
  memset(&caller, GUARD, sizeof(caller));
  caller.info.size = sizeof(caller);
  CHECK_OK(tarn_device_get_info(device, &caller.info));
  CHECK_EQ(caller.info.size, sizeof(tarn_device_info));
  CHECK(caller.info.is_simulated);
  CHECK_EQ(caller.info.total_bytes, 1ull << 30);
  tarn_device_close(device);
}

/* No size at all is a mistake that is told, not read as a struct of no length. */
static void forgotten_size(void) {
  tarn_device *device = open_device();
  REQUIRE(device != NULL);
  tarn_device_info info;
  memset(&info, 0, sizeof(info));
  CHECK_STATUS(tarn_device_get_info(device, &info), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "size");
  tarn_device_close(device);
}

/* What a newer program asks for and this library does not know must not be ignored. */
static void newer_kernel(void) {
  tarn_device *device = open_device();
  REQUIRE(device != NULL);
  struct {
    tarn_sim_kernel kernel;
    uint64_t unknown;
  } caller;
  memset(&caller, 0, sizeof(caller));
  caller.kernel.size = sizeof(caller);
  CHECK_OK(tarn_sim_launch(device, &caller.kernel, NULL));
  caller.unknown = 1;
  const tarn_status status = tarn_sim_launch(device, &caller.kernel, NULL);
  CHECK(status == TARN_INVALID || status == TARN_UNSUPPORTED);
  CHECK_OK(tarn_stream_synchronize(device, NULL));
  tarn_device_close(device);
}

/* The list is an array of the caller's struct, not of ours. */
static void older_list(void) {
  struct {
    size_t size;
    char name[48];
  } infos[8];
  memset(infos, 0, sizeof(infos));
  infos[0].size = sizeof(infos[0]);
  size_t count = 0;
  CHECK_OK(tarn_device_list((tarn_device_info *)(void *)infos, 8, &count));
  REQUIRE(count >= 1 && count <= 8);
  CHECK_HAS(infos[count - 1].name, "sim");
}

/* What means nothing yet may mean something later: whoever sets it is told, and nothing is made. */
#define REFUSED(call)                                                                              \
  do {                                                                                             \
    CHECK_STATUS(call, TARN_INVALID);                                                              \
    CHECK_HAS(tarn_last_message(), "means nothing yet");                                           \
  } while (0)

static void reserved_fields_of_heaps(void) {
  const tarn_heap_config configs[] = {
      {.size = sizeof(configs[0]), .device = "sim:64M", .reserved_u32 = 7},
      {.size = sizeof(configs[0]), .device = "sim:64M", .reserved_switches = {false, true}},
      {.size = sizeof(configs[0]), .device = "sim:64M", .reserved_u32_2 = 1}};
  for (int i = 0; i < 3; i++) {
    tarn_heap *heap = NULL;
    REFUSED(tarn_heap_create(&configs[i], &heap));
    CHECK(heap == NULL);
  }
}

static void reserved_fields(void) {
  const tarn_heap_config heap_config = {.size = sizeof(heap_config), .device = "sim:64M"};
  tarn_pinned_config pinned_config = {
      .size = sizeof(pinned_config), .device = "sim:64M", .limit_bytes = 1 << 22};
  const tarn_capture_config capture_configs[] = {
      {.size = sizeof(capture_configs[0]), .reserved_bool = {true}},
      {.size = sizeof(capture_configs[0]), .reserved_u32 = 1}};
  const tarn_copier_config copier_config = {.size = sizeof(copier_config),
                                            .reserved_bool = {false, false, true}};
  const tarn_batch_config batch_config = {.size = sizeof(batch_config), .reserved_bool = {true}};
  tarn_heap *heap = NULL;
  tarn_pinned *pool = NULL;
  tarn_copier *copier = NULL;
  tarn_batch *batch = NULL;
  tarn_capture *capture = NULL;
  REQUIRE_OK(tarn_heap_create(&heap_config, &heap));
  for (int i = 0; i < 2; i++) {
    REFUSED(tarn_capture_begin(heap, &capture_configs[i], NULL, &capture));
  }
  CHECK_OK(tarn_heap_destroy(heap, NULL));
  pinned_config.reserved_u32 = 1;
  REFUSED(tarn_pinned_create(&pinned_config, &pool));
  pinned_config.reserved_u32 = 0;
  REQUIRE_OK(tarn_pinned_create(&pinned_config, &pool));
  REFUSED(tarn_copier_create(pool, &copier_config, &copier));
  REQUIRE_OK(tarn_copier_create(pool, NULL, &copier));
  REFUSED(tarn_batch_create(copier, &batch_config, &batch));
  CHECK_OK(tarn_copier_destroy(copier));
  CHECK_OK(tarn_pinned_destroy(pool, NULL));
}

static const test_case cases[] = {
    {"older_info", older_info},           {"newer_info", newer_info},
    {"forgotten_size", forgotten_size},   {"newer_kernel", newer_kernel},
    {"older_list", older_list},           {"reserved fields of heaps", reserved_fields_of_heaps},
    {"reserved fields", reserved_fields},
};

TEST_MAIN(cases)
