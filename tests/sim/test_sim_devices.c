/* SPDX-License-Identifier: MIT
 *
 * Several simulated GPUs in one process: memory of one that another still uses, host memory that
 * both know, and closing one while another works. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "port/port.h"
#include "support/test.h"
#include "tarn/sim.h"

enum { BLOCK = 65536 };

static tarn_device *device_a, *device_b;
static tarni_port *a, *b;
static tarn_stream stream_a, stream_b;
static int n_found[TARN_SIM_MISUSE + 1];

static void on_finding(const tarn_sim_finding *finding, void *user) {
  (void)user;
  n_found[finding->kind]++;
  test_note("found: %s", finding->message);
}

static int n_findings(void) {
  int n = 0;
  for (int kind = 0; kind <= TARN_SIM_MISUSE; kind++) {
    n += n_found[kind];
    n_found[kind] = 0;
  }
  return n;
}

static bool open_both(void) {
  (void)n_findings();
  if (!CHECK_OK(tarn_device_open("sim:1G,order=lazy,id=1", &device_a)) ||
      !CHECK_OK(tarn_device_open("sim:1G,order=lazy,id=2", &device_b))) {
    return false;
  }
  a = (tarni_port *)device_a;
  b = (tarni_port *)device_b;
  return CHECK_OK(tarn_sim_set_on_finding(device_a, on_finding, NULL)) &&
         CHECK_OK(tarn_sim_set_on_finding(device_b, on_finding, NULL)) &&
         CHECK_OK(tarni_port_stream_create(a, &stream_a)) &&
         CHECK_OK(tarni_port_stream_create(b, &stream_b));
}

/* What is left on a device that is lost cannot be given back, and is no leak. */
static void close_both(void) {
  (void)tarni_port_stream_destroy(a, stream_a);
  (void)tarni_port_stream_destroy(b, stream_b);
  tarn_device_close(device_a);
  tarn_device_close(device_b);
  CHECK_EQ(n_findings(), 0);
}

static void use(tarn_device *device, tarn_ptr address, tarn_stream stream) {
  const tarn_sim_range range = {.address = address, .bytes = BLOCK, .is_write = true};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  CHECK_OK(tarn_sim_launch(device, &kernel, stream));
}

/* A free waits for its own device: what another has not done yet is found. */
static void freed_under_another_device(void) {
  for (int is_seen = 0; is_seen < 2; is_seen++) {
    void *pinned;
    tarn_ptr block, copy;
    REQUIRE(open_both());
    REQUIRE_OK(tarni_port_plain_alloc(b, BLOCK, &copy));
    REQUIRE_OK(tarni_port_host_alloc(a, BLOCK, 0, &pinned));
    use(device_b, (uintptr_t)pinned, stream_b);
    REQUIRE_OK(tarni_port_plain_alloc(a, BLOCK, &block));
    CHECK_OK(tarni_port_copy(b, copy, block, BLOCK, stream_b));
    if (is_seen != 0) {
      CHECK_OK(tarni_port_stream_sync(b, stream_b));
    }
    CHECK_OK(tarni_port_host_free(a, pinned));
    CHECK_EQ(n_found[TARN_SIM_UNMAP_IN_USE], 1 - is_seen);
    CHECK_OK(tarni_port_plain_free(a, block));
    CHECK_EQ(n_found[TARN_SIM_UNMAP_IN_USE], 2 - 2 * is_seen);
    CHECK_EQ(n_findings(), 2 - 2 * is_seen);
    CHECK_STATUS(tarni_port_stream_sync(b, stream_b), is_seen != 0 ? TARN_OK : TARN_DEVICE_LOST);
    (void)tarni_port_plain_free(b, copy);
    close_both();
  }
}

/* Pinned memory is known to all devices, so that what two of them do with it is compared. */
static void registered_once(void) {
  static uint8_t memory[BLOCK] __attribute__((aligned(4096)));
  REQUIRE(open_both());
  REQUIRE_OK(tarni_port_host_register(a, memory, BLOCK));
  CHECK_STATUS(tarni_port_host_register(b, memory, BLOCK), TARN_STATE);
  CHECK_STATUS(tarni_port_host_register(b, memory + 4096, 4096), TARN_STATE);
  use(device_a, (uintptr_t)memory, stream_a);
  use(device_b, (uintptr_t)memory, stream_b);
  CHECK_EQ(n_found[TARN_SIM_RACE], 1);
  CHECK_EQ(n_findings(), 1);
  CHECK_OK(tarni_port_stream_sync(a, stream_a));
  CHECK_OK(tarni_port_stream_sync(b, stream_b));
  CHECK_OK(tarni_port_host_unregister(a, memory));
  CHECK_OK(tarni_port_host_register(b, memory, BLOCK));
  CHECK_OK(tarni_port_host_unregister(b, memory));
  close_both();
}

/* A file that is no chunk is not taken for one: not one of a file system, though it has the size,
 * nor a chunk that can only be read. */
static void files_that_are_no_chunks(void) {
  char name[] = "/tmp/tarn-no-chunk-XXXXXX", path[64];
  tarni_chunk chunk, other = 77;
  int descriptor;
  REQUIRE(open_both());
  const int file = mkstemp(name);
  REQUIRE(file >= 0 && ftruncate(file, 2 << 20) == 0);
  CHECK_STATUS(tarni_port_import(b, file, &other), TARN_INVALID);
  CHECK_EQ(other, 0);
  CHECK(close(file) == 0 && unlink(name) == 0);
  REQUIRE_OK(tarni_port_create(a, 2 << 20, &chunk));
  REQUIRE_OK(tarni_port_export(a, chunk, &descriptor));
  (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
  const int read_only = open(path, O_RDONLY | O_CLOEXEC);
  REQUIRE(read_only >= 0);
  CHECK_STATUS(tarni_port_import(b, read_only, &other), TARN_INVALID);
  CHECK_OK(tarni_port_import(b, descriptor, &other));
  CHECK(close(read_only) == 0 && close(descriptor) == 0);
  CHECK_OK(tarni_port_release(b, other));
  CHECK_OK(tarni_port_release(a, chunk));
  CHECK_EQ(n_findings(), 2);
  close_both();
}

static uint64_t created_bytes(tarn_device *device) {
  tarn_sim_state state = {.size = sizeof(state)};
  CHECK_OK(tarn_sim_get_state(device, &state));
  return state.created_bytes;
}

/* Memory that another device has imported takes of its maker's capacity until both have given it
 * back, or the maker is gone. */
static void imported_memory_counts(void) {
  const uint64_t half = (uint64_t)512 << 20;
  for (int is_closed = 0; is_closed < 2; is_closed++) {
    tarni_chunk chunk, twin, more;
    int descriptor;
    REQUIRE(open_both());
    REQUIRE_OK(tarni_port_create(a, half, &chunk));
    REQUIRE_OK(tarni_port_export(a, chunk, &descriptor));
    REQUIRE_OK(tarni_port_import(b, descriptor, &twin));
    CHECK_EQ(created_bytes(device_b), 0);
    CHECK_OK(tarni_port_release(a, chunk));
    CHECK_EQ(created_bytes(device_a), half);
    CHECK_STATUS(tarni_port_create(a, half + (2 << 20), &more), TARN_DEVICE_MEMORY);
    /* The maker may have it back, and it is still the same. */
    REQUIRE_OK(tarni_port_import(a, descriptor, &chunk));
    CHECK(close(descriptor) == 0);
    CHECK_OK(tarni_port_release(a, chunk));
    CHECK_EQ(created_bytes(device_a), half);
    CHECK_OK(tarni_port_stream_destroy(a, stream_a));
    if (is_closed != 0) {
      tarn_device_close(device_a);
    }
    CHECK_OK(tarni_port_release(b, twin));
    if (is_closed == 0) {
      CHECK_EQ(created_bytes(device_a), 0);
      tarn_device_close(device_a);
    }
    CHECK_OK(tarni_port_stream_destroy(b, stream_b));
    tarn_device_close(device_b);
    CHECK_EQ(n_findings(), 0);
  }
}

static atomic_bool is_over;

static void *stay_busy(void *argument) {
  const tarn_sim_kernel kernel = {.size = sizeof(kernel)};
  while (!atomic_load(&is_over)) {
    (void)tarn_sim_launch(device_b, &kernel, argument);
  }
  return NULL;
}

/* What waits for ever at its close is dropped, though another device always has something to do. */
static void closed_beside_a_busy_device(void) {
  uint64_t *word;
  pthread_t thread;
  REQUIRE(open_both());
  REQUIRE_OK(tarni_port_host_alloc(a, 4096, 0, (void **)&word));
  REQUIRE_OK(tarni_port_value_wait(a, stream_a, word, 1));
  CHECK_OK(tarni_port_stream_destroy(a, stream_a));
  atomic_store(&is_over, false);
  REQUIRE(pthread_create(&thread, NULL, stay_busy, stream_b) == 0);
  tarn_device_close(device_a);
  atomic_store(&is_over, true);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_EQ(n_findings(), 2); /* the work and the pinned memory */
  CHECK_OK(tarni_port_stream_destroy(b, stream_b));
  tarn_device_close(device_b);
  CHECK_EQ(n_findings(), 0);
}

static const test_case cases[] = {
    {"freed under another device", freed_under_another_device},
    {"registered once", registered_once},
    {"files that are no chunks", files_that_are_no_chunks},
    {"imported memory counts", imported_memory_counts},
    {"closed beside a busy device", closed_beside_a_busy_device},
};

TEST_MAIN(cases)
