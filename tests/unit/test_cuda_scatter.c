/* SPDX-License-Identifier: MIT
 *
 * Small copies of a batch by a kernel, on a stand-in for libcuda: when there is a kernel, what is
 * left to it, and that nothing is which the driver does not know. What the kernel does is seen on a
 * GPU (tests/conform). */
#include "base/error.h"
#include "port/cuda/internal.h"
#include "support/fake_driver.h"
#include "support/test.h"

enum { BASE = 1 << 20, PIECES = 300 };

static tarni_copy copies[PIECES];
static void *const some_stream = copies;
static tarni_copy_way send_way = TARNI_COPY_FAST;

/* Opens cuda:0 with one range of memory that can be touched, and makes a list of copies in it. */
static tarni_cuda_port *scene_open(uint64_t size) {
  tarni_port *port = NULL;
  CHECK_OK(tarni_port_cuda.open(0, "", &port));
  fake->known_first = BASE;
  fake->known_bytes = (uint64_t)1 << 30;
  fake->access = TARNI_CU_ACCESS_READ_WRITE;
  for (uint64_t i = 0; i < PIECES; i++) {
    copies[i] = (tarni_copy){
        .destination = BASE + i * 2 * size, .source = BASE + (PIECES + i) * 2 * size, .size = size};
  }
  return (tarni_cuda_port *)port;
}

static uint64_t n_launched(void) {
  return fake->n_calls[FAKE_launch];
}

static uint64_t n_batches(void) {
  return fake->n_calls[FAKE_copy_batch];
}

static tarn_status send(tarni_cuda_port *port, uint64_t count) {
  return tarni_port_cuda.copy_batch(&port->base, copies, count, some_stream, send_way);
}

/* Without getting ready the driver makes the copies; then a kernel does, 128 at a time. */
static void check_launches(void) {
  tarni_cuda_port *port = scene_open(100);
  CHECK_OK(send(port, 64));
  CHECK_EQ(n_launched(), 0);
  CHECK_EQ(n_batches(), 1);
  tarni_port_cuda.copy_prepare(&port->base);
  tarni_port_cuda.copy_prepare(&port->base);
  CHECK_EQ(fake->n_calls[FAKE_module_load], 1);
  const uint64_t n_asked = fake->n_calls[FAKE_address_range];
  CHECK_OK(send(port, 64));
  CHECK_EQ(n_launched(), 1);
  CHECK_EQ(n_batches(), 1);
  CHECK_EQ(fake->last_grid[0], 64);
  CHECK_EQ(fake->last_grid[1], 1);
  CHECK_EQ(fake->last_list[0], copies[0].destination);
  CHECK_EQ(fake->last_list[1], copies[0].source);
  CHECK_EQ((uint32_t)fake->last_list[2], 100);
  CHECK_EQ(fake->last_list[3], copies[1].destination);
  CHECK_EQ(fake->n_calls[FAKE_address_range], n_asked + 1); /* all lie in one */
  CHECK_OK(send(port, PIECES));
  CHECK_EQ(n_launched(), 4);
  CHECK_EQ(fake->last_grid[0], PIECES - 256);
  CHECK_OK(send(port, 3)); /* too few */
  send_way = TARNI_COPY_BY_ENGINES;
  CHECK_OK(send(port, 64));
  send_way = TARNI_COPY_FAST;
  CHECK_EQ(n_launched(), 4);
  CHECK_EQ(n_batches(), 3);
  /* A launch that is refused is the driver's business; one that breaks the context is told. */
  fake->fail_with[FAKE_launch] = TARNI_CU_INVALID_HANDLE;
  CHECK_OK(send(port, 64));
  CHECK_EQ(n_batches(), 4);
  fake->fail_with[FAKE_launch] = TARNI_CU_LAUNCH_FAILED;
  CHECK_STATUS(send(port, 64), TARN_DEVICE_LOST);
  CHECK_HAS(tarn_last_message(), "cuLaunchKernel");
  CHECK_EQ(n_batches(), 4);
  tarni_port_cuda.close(&port->base);
  CHECK_EQ(fake->primary[0].n_retained, 0);
}

/* Large ones, and what lies in several ranges or may not be touched, go the driver's way. */
static void check_left(void) {
  tarni_cuda_port *port = scene_open(4100);
  tarni_port_cuda.copy_prepare(&port->base);
  copies[3].size = (64 << 10) + 4;
  copies[7].source = fake->known_first + fake->known_bytes - 4096; /* ends behind it */
  CHECK_OK(send(port, 20));
  CHECK_EQ(n_launched(), 1);
  CHECK_EQ(fake->last_grid[0], 18);
  CHECK_EQ(fake->last_grid[1], 2); /* slices of 4 KiB */
  CHECK_EQ(n_batches(), 1);
  fake->access = 1;
  CHECK_OK(send(port, 20));
  CHECK_EQ(n_launched(), 1);
  CHECK_EQ(n_batches(), 2);
  copies[3].size = 64 << 10;
  copies[4].size = (16 << 10) + 1; /* bytes, not words */
  fake->access = TARNI_CU_ACCESS_READ_WRITE;
  CHECK_OK(send(port, 20));
  CHECK_EQ(fake->last_grid[0], 18);
  CHECK_EQ(fake->last_grid[1], 16);
  copies[4].size = (16 << 10) - 1;
  CHECK_OK(send(port, 20));
  CHECK_EQ(fake->last_grid[0], 19);
  tarni_port_cuda.close(&port->base);
}

/* What the driver does not know at all is refused, with and without a kernel. */
static void check_unknown(void) {
  tarni_cuda_port *port = scene_open(100);
  for (int i = 0; i < 2; i++) {
    const tarni_copy good = copies[9];
    copies[9].source = fake->known_first + fake->known_bytes;
    CHECK_STATUS(send(port, 20), TARN_INVALID);
    CHECK_HAS(tarn_last_message(), "100 bytes from 0x40100000");
    copies[9] = good;
    copies[9].destination = 4096;
    CHECK_STATUS(send(port, 20), TARN_INVALID);
    copies[9] = good;
    CHECK_EQ(n_launched() + n_batches(), (uint64_t)i);
    CHECK_OK(send(port, 20));
    tarni_port_cuda.copy_prepare(&port->base);
  }
  CHECK_EQ(n_launched(), 1);
  tarni_port_cuda.close(&port->base);
}

/* Where it cannot be had nothing is lost, and no error is left behind. */
static void check_absent_by(fake_entry entry) {
  tarni_cuda_port *port = scene_open(100);
  const uint64_t before = n_batches();
  tarn_error error = {.size = sizeof(error)};
  (void)tarni_fail(TARN_BUSY, "test", NULL, "None.", "an earlier error");
  fake->fail_with[entry] = TARNI_CU_NOT_SUPPORTED;
  tarni_port_cuda.copy_prepare(&port->base);
  fake->fail_with[entry] = TARNI_CU_SUCCESS;
  tarni_port_cuda.copy_prepare(&port->base); /* is not tried again */
  (void)tarn_last_error(&error);
  CHECK_STATUS(error.status, TARN_BUSY);
  CHECK_OK(send(port, 64));
  CHECK_EQ(n_launched(), 0);
  CHECK_EQ(n_batches(), before + 1);
  tarni_port_cuda.close(&port->base);
  CHECK_EQ(fake->primary[0].n_retained, 0);
}

static void check_absent(void) {
  check_absent_by(FAKE_module_load);
  check_absent_by(FAKE_module_function);
  CHECK_EQ(fake->n_calls[FAKE_module_load], 2);
  fake->attributes[TARNI_CU_ATTRIBUTE_REGISTERED_AT_HOST_POINTER] = 0;
  check_absent_by(FAKE_init);
  CHECK_EQ(fake->n_calls[FAKE_module_load], 2);
  fake->attributes[TARNI_CU_ATTRIBUTE_REGISTERED_AT_HOST_POINTER] = 1;
  /* A shortage passes. */
  tarni_cuda_port *port = scene_open(100);
  fake->fail_with[FAKE_module_load] = TARNI_CU_OUT_OF_MEMORY;
  tarni_port_cuda.copy_prepare(&port->base);
  fake->fail_with[FAKE_module_load] = TARNI_CU_SUCCESS;
  tarni_port_cuda.copy_prepare(&port->base);
  CHECK_OK(send(port, 64));
  CHECK_EQ(n_launched(), 1);
  tarni_port_cuda.close(&port->base);
}

static void test_launches(void) {
  fake_run("13000", check_launches);
}

static void test_left(void) {
  fake_run("13000", check_left);
}

static void test_unknown(void) {
  fake_run("13000", check_unknown);
}

static void test_absent(void) {
  fake_run("13000", check_absent);
}

static const test_case cases[] = {
    {"launches", test_launches},
    {"left", test_left},
    {"unknown", test_unknown},
    {"absent", test_absent},
};

TEST_MAIN(cases)
