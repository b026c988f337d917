/* SPDX-License-Identifier: MIT
 *
 * The options in the name of a simulated GPU: what each does, and that a bad one is refused by
 * name. */
#include <stdio.h>
#include <string.h>

#include "port/port.h"
#include "support/test.h"
#include "tarn/sim.h"

static void good_names(void) {
  static const struct {
    const char *name;
    uint64_t total_bytes, granularity_bytes;
    bool has_vmm, has_pool, has_register;
  } rows[] = {
      {"sim", (uint64_t)80 << 30, 2 << 20, true, true, true},
      {"sim:", (uint64_t)80 << 30, 2 << 20, true, true, true},
      {"sim:7M", 7 << 20, 2 << 20, true, true, true},
      {"sim:64T", (uint64_t)64 << 40, 2 << 20, true, true, true},
      {"sim:1G,granularity=4K", 1 << 30, 4096, true, true, true},
      {"sim:granularity=1G,2G", (uint64_t)2 << 30, 1 << 30, true, true, true},
      {"sim:vmm=off", (uint64_t)80 << 30, 0, false, true, true},
      {"sim:pool=off,register=off", (uint64_t)80 << 30, 2 << 20, true, false, false},
      {"sim:seed=18446744073709551615,id=3,order=lazy", (uint64_t)80 << 30, 2 << 20, true, true,
       true},
      {"sim:fail=create:2", (uint64_t)80 << 30, 2 << 20, true, true, true},
  };
  for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    tarn_device *device;
    REQUIRE_OK(tarn_device_open(rows[i].name, &device));
    tarn_device_info info = {.size = sizeof(info)};
    CHECK_OK(tarn_device_get_info(device, &info));
    CHECK_EQ(info.total_bytes, rows[i].total_bytes);
    CHECK_EQ(info.free_bytes, rows[i].total_bytes);
    CHECK_EQ(info.granularity_bytes, rows[i].granularity_bytes);
    CHECK_EQ(info.has_vmm, rows[i].has_vmm);
    CHECK_EQ(info.has_export, rows[i].has_vmm);
    CHECK_EQ(info.has_pool, rows[i].has_pool);
    CHECK_EQ(info.has_host_register, rows[i].has_register);
    CHECK(info.is_simulated);
    tarn_device_close(device);
  }
}

static void bad_names(void) {
  static const char *const names[] = {
      "sim:0",
      "sim:1025T",
      "sim:16384P",
      "sim:99999999999999999999",
      "sim:80X",
      "sim:1G,",
      "sim:,1G",
      "sim:seed=",
      "sim:seed=x",
      "sim:seed=-1",
      "sim:Seed=1",
      "sim:color=red",
      "sim:order=",
      "sim:order=none",
      "sim:granularity=0",
      "sim:granularity=2K",
      "sim:granularity=3M",
      "sim:granularity=2G",
      "sim:vmm=yes",
      "sim:fail=create",
      "sim:fail=create:0",
      "sim:fail=create:x",
      "sim:fail=nothing:1",
      "sim:fail=:1",
      "sim:fail=any:1:1:0",
      "sim:fail=any:1:2:3:4",
      "sim:fail=any:1:",
      "sim:fail=any:1:1:99999",
      "sim:fail=any:1:1:600",
      "sim:fail=create:1:1:600",
      "sim=1",
  };
  for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    static char somewhere;
    tarn_device *device = (tarn_device *)&somewhere;
    if (!CHECK_STATUS(tarn_device_open(names[i], &device), TARN_INVALID)) {
      test_note("the name was %s", names[i]);
    }
    CHECK(device == NULL);
  }
  tarn_device *device;
  CHECK_STATUS(tarn_device_open("sim:1G,speed=9", &device), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "'speed=9'");
  CHECK_HAS(tarn_last_message(), "granularity=SIZE");
  char name[400];
  (void)snprintf(name, sizeof(name), "sim:seed=%0300d", 1);
  CHECK_STATUS(tarn_device_open(name, &device), TARN_INVALID);
}

static void features_that_are_off(void) {
  tarn_device *device;
  tarn_ptr address;
  tarni_chunk chunk;
  tarni_pool pool;
  static char memory[4096];
  REQUIRE_OK(tarn_device_open("sim:1G,vmm=off,pool=off,register=off", &device));
  tarni_port *port = (tarni_port *)device;
  CHECK_STATUS(tarni_port_reserve(port, 2 << 20, 0, &address), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_create(port, 2 << 20, &chunk), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_pool_create(port, 0, &pool), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_host_register(port, memory, 4096), TARN_UNSUPPORTED);
  CHECK_OK(tarni_port_plain_alloc(port, 100, &address));
  CHECK_OK(tarni_port_plain_free(port, address));
  tarn_device_close(device);
}

static void fault_in_the_name(void) {
  tarn_device *device;
  tarni_chunk chunk;
  REQUIRE_OK(tarn_device_open("sim:1G,fail=create:2:0:304", &device));
  tarni_port *port = (tarni_port *)device;
  CHECK_OK(tarni_port_create(port, 2 << 20, &chunk));
  CHECK_OK(tarni_port_release(port, chunk));
  for (int i = 0; i < 3; i++) { /* for good */
    CHECK_STATUS(tarni_port_create(port, 2 << 20, &chunk), TARN_DRIVER);
  }
  tarn_device_close(device);
  REQUIRE_OK(tarn_device_open("sim:1G,fail=any:1", &device));
  port = (tarni_port *)device;
  CHECK_STATUS(tarni_port_create(port, 2 << 20, &chunk), TARN_DEVICE_MEMORY);
  CHECK_OK(tarni_port_create(port, 2 << 20, &chunk));
  CHECK_OK(tarni_port_release(port, chunk));
  tarn_device_close(device);
}

/* The same name is the same device; another id is another one. */
static void names_and_devices(void) {
  tarn_device *a, *again, *b;
  tarni_chunk chunk;
  tarn_sim_state state = {.size = sizeof(state)};
  REQUIRE_OK(tarn_device_open("sim:1G,id=1", &a));
  REQUIRE_OK(tarn_device_open("sim:1G,id=1", &again));
  REQUIRE_OK(tarn_device_open("sim:1G,id=2", &b));
  CHECK(a == again && a != b);
  CHECK_OK(tarni_port_create((tarni_port *)a, 2 << 20, &chunk));
  CHECK_OK(tarn_sim_get_state(b, &state));
  CHECK_EQ(state.created_bytes, 0);
  CHECK_STATUS(tarni_port_release((tarni_port *)b, chunk), TARN_INVALID);
  CHECK_OK(tarni_port_release((tarni_port *)again, chunk));
  tarn_device_close(again);
  CHECK_OK(tarn_sim_get_state(a, &state)); /* still open */
  tarn_device_close(a);
  tarn_device_close(b);
}

/* A device tells the whole of its name, and that opens it; what it could not tell is refused. */
static void long_names(void) {
  enum { LONGEST = 127 };
  char name[LONGEST + 2];
  tarn_device *device, *again;
  tarn_device_info info = {.size = sizeof(info)};
  (void)snprintf(name, sizeof(name), "sim:1G,order=lazy,granularity=64K,vmm=on,id=%084d", 7);
  CHECK_EQ(strlen(name), LONGEST + 1);
  CHECK_STATUS(tarn_device_open(name, &device), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "127");
  (void)snprintf(name, sizeof(name), "sim:1G,order=lazy,granularity=64K,vmm=on,id=%083d", 7);
  CHECK_EQ(strlen(name), LONGEST);
  REQUIRE_OK(tarn_device_open(name, &device));
  CHECK_OK(tarn_device_get_info(device, &info));
  CHECK_TEXT(info.name, name);
  REQUIRE_OK(tarn_device_open(info.name, &again));
  CHECK(again == device);
  tarn_device_close(again);
  tarn_device_close(device);
}

static const test_case cases[] = {
    {"good names", good_names},
    {"bad names", bad_names},
    {"features that are off", features_that_are_off},
    {"a fault in the name", fault_in_the_name},
    {"names and devices", names_and_devices},
    {"long names", long_names},
};

TEST_MAIN(cases)
