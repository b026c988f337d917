/* SPDX-License-Identifier: MIT
 *
 * The cuda port without a GPU: its table, what the driver's codes mean, a machine without a driver,
 * and, on a stand-in for libcuda (tests/support/fake_cuda), listing, opening and the choice of a
 * context. Its entries are in test_cuda_entries.c, old drivers in test_cuda_driver.c. */
#include <stdio.h>
#include <string.h>

#include "port/cuda/internal.h"
#include "support/fake_driver.h"
#include "support/test.h"

/* Opens cuda:0 through the table itself. */
static tarni_cuda_port *open_port(void) {
  tarni_port *port = NULL;
  CHECK_OK(tarni_port_cuda.open(0, "", &port));
  return (tarni_cuda_port *)port;
}

static tarn_error last_error(void) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  return error;
}

/* ---- Without any driver --------------------------------------------------------------------- */

static void test_table(void) {
  const size_t n_entries = (sizeof(tarni_port_table) - offsetof(tarni_port_table, count)) /
                           sizeof(tarni_port_cuda.count);
  CHECK(n_entries > 40);
  for (size_t i = 0; i < n_entries; i++) {
    void *entry;
    memcpy(&entry,
           (const char *)&tarni_port_cuda + offsetof(tarni_port_table, count) + i * sizeof(entry),
           sizeof(entry));
    CHECK(entry != NULL);
  }
  CHECK_TEXT(tarni_port_cuda.name, "cuda");
}

static void test_codes(void) {
  static const struct {
    int code;
    tarn_status status;
  } expected[] = {
      {0, TARN_OK},
      {1, TARN_INVALID},
      {2, TARN_DEVICE_MEMORY},
      {3, TARN_DRIVER},
      {4, TARN_DEVICE_LOST},
      {34, TARN_NO_DRIVER},
      {100, TARN_NO_DEVICE},
      {101, TARN_NO_DEVICE},
      {201, TARN_DRIVER},
      {214, TARN_DEVICE_LOST},
      {220, TARN_DEVICE_LOST},
      {221, TARN_DRIVER},
      {226, TARN_DEVICE_LOST},
      {304, TARN_DRIVER},
      {400, TARN_INVALID},
      {401, TARN_STATE},
      {600, TARN_NOT_READY},
      {700, TARN_DEVICE_LOST},
      {701, TARN_DRIVER},
      {702, TARN_DEVICE_LOST},
      {709, TARN_DEVICE_LOST},
      {710, TARN_DEVICE_LOST},
      {711, TARN_DRIVER},
      {712, TARN_STATE},
      {713, TARN_STATE},
      {714, TARN_DEVICE_LOST},
      {715, TARN_DEVICE_LOST},
      {716, TARN_DEVICE_LOST},
      {717, TARN_DEVICE_LOST},
      {718, TARN_DEVICE_LOST},
      {719, TARN_DEVICE_LOST},
      {720, TARN_DRIVER},
      {721, TARN_DEVICE_LOST},
      {800, TARN_DRIVER},
      {801, TARN_UNSUPPORTED},
      {803, TARN_DRIVER},
      {804, TARN_DRIVER_OLD},
      {899, TARN_DRIVER},
      {900, TARN_CAPTURE},
      {901, TARN_CAPTURE},
      {905, TARN_CAPTURE},
      {906, TARN_CAPTURE},
      {907, TARN_CAPTURE},
      {908, TARN_CAPTURE},
      {909, TARN_DRIVER},
      {999, TARN_DRIVER},
      {-1, TARN_DRIVER},
      {100000, TARN_DRIVER},
  };
  for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
    CHECK_STATUS(tarni_cuda_status(expected[i].code), expected[i].status);
    CHECK(tarni_cuda_is_lost(expected[i].code) == (expected[i].status == TARN_DEVICE_LOST));
  }
}

/* Every failure says what to do, whatever the code. */
static void test_messages(void) {
  for (int code = 1; code < 1000; code++) {
    if (code == TARNI_CU_NOT_READY) {
      continue;
    }
    const tarni_cuda_failure failure = {
        .operation = "cuSomething", .device = "cuda:3", .code = code, .requested_bytes = 12345};
    const tarn_status status = tarni_cuda_fail(&failure);
    const tarn_error error = last_error();
    CHECK_STATUS(status, tarni_cuda_status(code));
    CHECK_EQ(error.driver_code, code);
    CHECK_EQ(error.requested_bytes, 12345);
    CHECK_TEXT(error.device, "cuda:3");
    CHECK_TEXT(error.operation, "cuSomething");
    CHECK_HAS(error.message, "12345");
    CHECK(error.message[strlen(error.message) - 1] == '.');
    CHECK(strstr(error.message, "). ") != NULL);
  }
}

static void check_missing_driver(void) {
  char message[512];
  (void)snprintf(message, sizeof(message), "%s", tarn_last_message());
  int count = -1;
  CHECK_OK(tarni_port_cuda.count(&count));
  CHECK_EQ(count, 0);
  CHECK_TEXT(tarn_last_message(), message); /* no driver is no error */
  tarni_port *port = (tarni_port *)1;
  CHECK_STATUS(tarni_port_cuda.open(0, "", &port), TARN_NO_DRIVER);
  CHECK(port == NULL);
  CHECK_HAS(tarn_last_message(), "libcuda.so.1");
  CHECK_HAS(tarn_last_message(), "Install the NVIDIA driver");
  tarn_device_info info = {.total_bytes = 1};
  CHECK_STATUS(tarni_port_cuda.describe(0, &info), TARN_NO_DRIVER);
  CHECK_EQ(info.total_bytes, 0);
  CHECK_STATUS(tarni_port_open("cuda:0", &port), TARN_NO_DEVICE);
  CHECK_STATUS(tarni_port_open("cuda:x", &port), TARN_INVALID);
  tarni_port_cuda.close(NULL);
}

static void test_missing_driver(void) {
  if (fake_machine_has_driver()) {
    test_skip("this machine has a driver");
    return;
  }
  fake_run_alone(check_missing_driver);
}

/* ---- Devices -------------------------------------------------------------------------------- */

static void check_describe(void) {
  int count = 0;
  CHECK_OK(tarni_port_cuda.count(&count));
  CHECK_EQ(count, FAKE_DEVICE_COUNT);
  tarn_device_info info;
  CHECK_OK(tarni_port_cuda.describe(1, &info));
  CHECK_EQ(info.size, sizeof(info));
  CHECK_TEXT(info.name, "cuda:1");
  CHECK_TEXT(info.model, "Fake GPU");
  CHECK_EQ(info.total_bytes, (uint64_t)8 << 30);
  CHECK_EQ(info.free_bytes, 0);
  CHECK_EQ(info.granularity_bytes, FAKE_GRANULARITY);
  CHECK_EQ(info.driver_version, 13000);
  CHECK_EQ(info.address_bits, 49);
  CHECK(info.has_vmm && info.has_pool && info.has_export && info.has_host_register);
  CHECK(!info.is_simulated && !info.is_integrated && info.has_batch_copy);
  /* No context was made or entered for it. */
  CHECK_EQ(fake->n_calls[FAKE_primary_retain], 0);
  CHECK_EQ(fake->n_calls[FAKE_context_push], 0);
  CHECK(fake->n_lookups_new > 50);
  CHECK_EQ(fake->n_lookups_old, 0);
  CHECK_EQ(fake->n_calls[FAKE_init], 1);

  CHECK_STATUS(tarni_port_cuda.describe(2, &info), TARN_NO_DEVICE);
  CHECK_STATUS(tarni_port_cuda.describe(-1, &info), TARN_NO_DEVICE);
  CHECK_EQ(info.total_bytes, 0);
  static const fake_entry needed[] = {FAKE_device_count, FAKE_device_get, FAKE_device_name,
                                      FAKE_device_memory, FAKE_granularity};
  for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
    fake->fail_with[needed[i]] = 999;
    CHECK_STATUS(tarni_port_cuda.describe(0, &info), TARN_DRIVER);
    CHECK_EQ(last_error().driver_code, 999);
    CHECK_EQ(info.total_bytes, 0);
    fake->fail_with[needed[i]] = 0;
  }
  fake->granularity = (uint64_t)3 << 20;
  CHECK_STATUS(tarni_port_cuda.describe(0, &info), TARN_DRIVER);
  CHECK_HAS(tarn_last_message(), "3145728");
  CHECK_EQ(info.granularity_bytes, 0);
  fake->granularity = 0;
  fake->gives_null = true;
  CHECK_STATUS(tarni_port_cuda.describe(0, &info), TARN_DRIVER);
  CHECK_HAS(tarn_last_message(), "granularity of 0 bytes");
  fake->gives_null = false;
  fake->attributes[TARNI_CU_ATTRIBUTE_VMM] = 0;
  CHECK_OK(tarni_port_cuda.describe(0, &info));
  CHECK(!info.has_vmm && !info.has_export && info.granularity_bytes == 0);
}

static void check_init_no_device(void) {
  fake->fail_with[FAKE_init] = TARNI_CU_NO_DEVICE;
  int count = -1;
  CHECK_OK(tarni_port_cuda.count(&count));
  CHECK_EQ(count, 0);
  tarni_port *port;
  CHECK_STATUS(tarni_port_cuda.open(0, "", &port), TARN_NO_DEVICE);
  CHECK_HAS(tarn_last_message(), "CUDA_VISIBLE_DEVICES");
}

static void check_init_stub(void) {
  fake->fail_with[FAKE_init] = TARNI_CU_STUB_LIBRARY;
  int count = -1;
  CHECK_OK(tarni_port_cuda.count(&count));
  CHECK_EQ(count, 0);
  tarni_port *port;
  CHECK_STATUS(tarni_port_cuda.open(0, "", &port), TARN_NO_DRIVER);
  CHECK_HAS(tarn_last_message(), "stubs");
}

static void check_init_broken(void) {
  fake->fail_with[FAKE_init] = TARNI_CU_SYSTEM_DRIVER_MISMATCH;
  int count = -1;
  CHECK_STATUS(tarni_port_cuda.count(&count), TARN_DRIVER);
  CHECK_EQ(count, 0);
  CHECK_TEXT(last_error().driver_name, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
  CHECK_HAS(tarn_last_message(), "Restart the machine");
}

static void check_open_failures(void) {
  tarni_port *port = (tarni_port *)1;
  CHECK_STATUS(tarni_port_cuda.open(7, "", &port), TARN_NO_DEVICE);
  CHECK(port == NULL);
  CHECK_HAS(tarn_last_message(), "cuda:7");
  CHECK_STATUS(tarni_port_cuda.open(0, "seed=1", &port), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "seed=1");
  CHECK_STATUS(tarni_port_open("cuda:2", &port), TARN_NO_DEVICE);
  CHECK_STATUS(tarni_port_open("cuda:-1", &port), TARN_INVALID);
  CHECK_STATUS(tarni_port_open("cuda:0,seed=1", &port), TARN_INVALID);
  CHECK_STATUS(tarni_port_open("gpu", &port), TARN_INVALID);
  const tarni_cu_driver *driver;
  REQUIRE_OK(tarni_cu_driver_get("test", &driver));
  static const fake_entry needed[] = {FAKE_primary_retain, FAKE_context_push, FAKE_memory_info};
  for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
    fake->fail_with[needed[i]] = TARNI_CU_OUT_OF_MEMORY;
    CHECK_STATUS(tarni_port_cuda.open(0, "", &port), TARN_DEVICE_MEMORY);
    CHECK(port == NULL);
    CHECK_EQ(fake->primary[0].n_retained, 0);
    fake->fail_with[needed[i]] = 0;
    tarni_cu_context current = &fake->primary[1];
    CHECK(driver->context_current(&current) == 0 && current == NULL);
  }
}

static void test_describe(void) {
  fake_run("13000", check_describe);
}

static void test_init(void) {
  fake_run("13000", check_init_no_device);
  fake_run("13000", check_init_stub);
  fake_run("13000", check_init_broken);
}

static void test_open_failures(void) {
  fake_run("13000", check_open_failures);
}

/* ---- Contexts ------------------------------------------------------------------------------- */

static void check_primary_context(void) {
  tarni_cuda_port *port = open_port();
  REQUIRE(port != NULL);
  CHECK(port->context == &fake->primary[0] && port->is_retained);
  CHECK_EQ(fake->primary[0].n_retained, 1);
  CHECK_EQ(port->base.device.free_bytes, (uint64_t)7 << 30);
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    CHECK_EQ(port->base.calls[i], 0);
  }
  tarni_port_cuda.close(&port->base);
  CHECK_EQ(fake->primary[0].n_retained, 0);
  CHECK_EQ(fake->n_calls[FAKE_primary_release], 1);
  CHECK_EQ(fake->n_calls[FAKE_primary_release_old], 0);
}

/* Opens cuda:0 with the given context current, and tells which one the port chose. */
static void check_choice(tarni_cu_context callers, tarni_cu_context chosen, bool is_retained) {
  const tarni_cu_driver *driver;
  REQUIRE_OK(tarni_cu_driver_get("test", &driver));
  const int n_retained = fake->primary[0].n_retained;
  REQUIRE(driver->context_push(callers) == 0);
  tarni_cuda_port *port = open_port();
  tarni_cu_context current = NULL;
  CHECK(driver->context_current(&current) == 0 && current == callers);
  REQUIRE(port != NULL);
  CHECK(port->context == chosen);
  CHECK(port->is_retained == is_retained);
  CHECK_EQ(fake->primary[0].n_retained, n_retained + (is_retained ? 1 : 0));
  tarni_port_cuda.close(&port->base);
  CHECK_EQ(fake->primary[0].n_retained, n_retained);
  CHECK(driver->context_pop(&current) == 0 && current == callers);
  CHECK(driver->context_current(&current) == 0 && current == NULL);
}

static void check_context_choice(void) {
  struct tarni_cu_context_object own = {.device = 0};
  struct tarni_cu_context_object foreign = {.device = 1};
  /* The caller's own context, and no primary one is made for it. */
  check_choice(&own, &own, false);
  CHECK_EQ(fake->n_calls[FAKE_primary_retain], 0);
  /* The caller's context is of another device. */
  check_choice(&foreign, &fake->primary[0], true);
  /* The caller's context is the primary one, held by the caller: tarn holds it too. */
  fake->primary[0].n_retained = 1;
  check_choice(&fake->primary[0], &fake->primary[0], true);
  /* A primary context exists, and the caller has one of its own. */
  check_choice(&own, &own, false);
}

static void test_contexts(void) {
  fake_run("13000", check_primary_context);
  fake_run("13000", check_context_choice);
}

static const test_case cases[] = {
    {"table", test_table},
    {"codes", test_codes},
    {"messages", test_messages},
    {"missing_driver", test_missing_driver},
    {"describe", test_describe},
    {"init", test_init},
    {"open_failures", test_open_failures},
    {"contexts", test_contexts},
};

TEST_MAIN(cases)
