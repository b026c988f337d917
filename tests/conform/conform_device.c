/* SPDX-License-Identifier: MIT
 *
 * Conformance: opening by name, capabilities, memory info, the clock, the calling thread's context,
 * and what every entry owes: arguments checked, outputs emptied. */
#include <dlfcn.h>
#include <string.h>

#include "base/bits.h"
#include "conform/conform.h"

static void opening(void) {
  tarni_port *again = NULL;
  REQUIRE_OK(tarni_port_open(conform_port->device.name, &again));
  CHECK(again == conform_port);
  tarni_port_close(again);
  CHECK(conform_fails(tarni_port_open("cuda:", &again)) && again == NULL);
  CHECK(conform_fails(tarni_port_open("cuda:12x", &again)) && again == NULL);
  CHECK(conform_fails(tarni_port_open("cuda:99999", &again)) && again == NULL);
  CHECK(conform_fails(tarni_port_open("tpu", &again)) && again == NULL);
  CHECK(conform_fails(tarni_port_open("", &again)) && again == NULL);
  CHECK(conform_fails(tarni_port_open("simulated", &again)) && again == NULL);
  CHECK(conform_fails(tarni_port_open("sim:no-such-option=1", &again)) && again == NULL);
}

static void capabilities(void) {
  const tarn_device_info *device = &conform_port->device;
  CHECK(strlen(device->name) > 0 && strlen(device->model) > 0);
  CHECK(device->total_bytes >= 1u << 26);
  CHECK(device->free_bytes <= device->total_bytes);
  CHECK(device->has_vmm && device->has_pool && device->has_export && device->has_host_register);
  CHECK(tarni_is_pow2(device->granularity_bytes) && device->granularity_bytes >= 4096);
  CHECK(device->address_bits >= 40 && device->address_bits <= 64);
  CHECK(device->is_simulated == (device->driver_version == 0));
}

static void memory_info(void) {
  const uint64_t size = tarni_align_up(32u << 20, conform_granule());
  uint64_t free_before, free_between, free_after, total;
  REQUIRE_OK(tarni_port_info(conform_port, &free_before, &total));
  CHECK_EQ(total, conform_port->device.total_bytes);
  CHECK(free_before <= total);
  tarni_chunk chunk;
  REQUIRE_OK(tarni_port_create(conform_port, size, &chunk));
  REQUIRE_OK(tarni_port_info(conform_port, &free_between, &total));
  CHECK(free_between + size <= free_before);
  REQUIRE_OK(tarni_port_release(conform_port, chunk));
  REQUIRE_OK(tarni_port_info(conform_port, &free_after, &total));
  CHECK(free_after >= free_between + size);
}

static void clock_runs_forward(void) {
  const uint64_t start_ns = tarni_port_now_ns(conform_port);
  uint64_t free_bytes, total_bytes;
  REQUIRE_OK(tarni_port_info(conform_port, &free_bytes, &total_bytes));
  const uint64_t end_ns = tarni_port_now_ns(conform_port);
  CHECK(end_ns > start_ns);
}

static void calls_are_counted(void) {
  const uint64_t calls = atomic_load(&conform_port->calls[TARN_CALL_CREATE]);
  const uint64_t nanoseconds = atomic_load(&conform_port->nanoseconds[TARN_CALL_CREATE]);
  tarni_chunk chunk;
  REQUIRE_OK(tarni_port_create(conform_port, conform_granule(), &chunk));
  CHECK_EQ(atomic_load(&conform_port->calls[TARN_CALL_CREATE]), calls + 1);
  CHECK(atomic_load(&conform_port->nanoseconds[TARN_CALL_CREATE]) > nanoseconds);
  CHECK_OK(tarni_port_release(conform_port, chunk));
}

static void outputs_are_needed(void) {
  tarni_port *port = conform_port;
  const uint64_t granule = conform_granule();
  tarn_stream stream;
  tarni_pool pool;
  tarni_graph some_graph = &stream;
  REQUIRE_OK(tarni_port_stream_create(port, &stream));
  REQUIRE_OK(tarni_port_pool_create(port, 0, &pool));
  uint64_t number;
  CHECK_STATUS(tarni_port_info(port, NULL, &number), TARN_INVALID);
  CHECK_STATUS(tarni_port_info(port, &number, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_reserve(port, granule, 0, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_create(port, granule, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_export(port, 1, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_import(port, 0, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_plain_alloc(port, 1, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_create(port, 0, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_alloc(port, pool, 1, stream, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_alloc(port, 1, 0, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_stream_create(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_stream_id(port, stream, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_create(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_capture_state(port, stream, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_capture_nodes(port, stream, NULL, 0, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_node_before(port, 1, NULL, 0, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_capture_end(port, stream, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_graph_instantiate(port, some_graph, NULL), TARN_INVALID);
  CHECK_OK(tarni_port_pool_destroy(port, pool));
  CHECK_OK(tarni_port_stream_destroy(port, stream));
}

/* Zero sizes, sizes and addresses off the granularity; the outputs are empty afterwards. */
static void sizes_are_checked(void) {
  tarni_port *port = conform_port;
  const uint64_t granule = conform_granule();
  uint64_t output = 77;
  void *pointer = &output;
  CHECK_STATUS(tarni_port_reserve(port, 0, 0, &output), TARN_INVALID);
  CHECK_EQ(output, 0);
  output = 77;
  CHECK_STATUS(tarni_port_reserve(port, granule + 1, 0, &output), TARN_INVALID);
  CHECK_EQ(output, 0);
  output = 77;
  CHECK_STATUS(tarni_port_reserve(port, granule, 3, &output), TARN_INVALID);
  CHECK_EQ(output, 0);
  output = 77;
  CHECK_STATUS(tarni_port_create(port, 0, &output), TARN_INVALID);
  CHECK_EQ(output, 0);
  output = 77;
  CHECK_STATUS(tarni_port_create(port, granule / 2, &output), TARN_INVALID);
  CHECK_EQ(output, 0);
  output = 77;
  CHECK_STATUS(tarni_port_plain_alloc(port, 0, &output), TARN_INVALID);
  CHECK_EQ(output, 0);
  CHECK_STATUS(tarni_port_host_alloc(port, 0, 0, &pointer), TARN_INVALID);
  CHECK(pointer == NULL);
  CHECK_STATUS(tarni_port_map(port, granule / 2, granule, 1), TARN_INVALID);
  CHECK_STATUS(tarni_port_map(port, granule, granule, 0), TARN_INVALID);
  CHECK_STATUS(tarni_port_access(port, granule, 0), TARN_INVALID);
  CHECK_STATUS(tarni_port_unmap(port, granule, granule + 1), TARN_INVALID);
  CHECK_STATUS(tarni_port_unreserve(port, 0, granule), TARN_INVALID);
  CHECK_STATUS(tarni_port_release(port, 0), TARN_INVALID);
}

static void handles_are_checked(void) {
  tarni_port *port = conform_port;
  void *output = &output;
  uint64_t words[2] = {0, 0};
  CHECK_STATUS(tarni_port_stream_destroy(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_stream_destroy(port, TARNI_STREAM_LEGACY), TARN_INVALID);
  CHECK_STATUS(tarni_port_stream_destroy(port, TARNI_STREAM_PER_THREAD), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_destroy(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_record(port, NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_query(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_sync(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_wait(port, NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_graph_instantiate(port, NULL, &output), TARN_INVALID);
  CHECK(output == NULL);
  CHECK_STATUS(tarni_port_graph_launch(port, NULL, NULL), TARN_INVALID);
  CHECK_OK(tarni_port_graph_destroy(port, NULL, NULL));
  CHECK_STATUS(tarni_port_plain_free(port, 0), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_free(port, 0, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_destroy(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_trim(port, NULL, 0), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_free(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_register(port, NULL, 1), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_register(port, words, 0), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_unregister(port, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_value_write(port, NULL, NULL, 1), TARN_INVALID);
  CHECK_STATUS(tarni_port_value_wait(port, NULL, NULL, 1), TARN_INVALID);
  CHECK_STATUS(tarni_port_capture_begin(port, NULL, (tarni_capture_mode)3), TARN_INVALID);
}

/* ---- The calling thread's context ----------------------------------------------------------- */

typedef int (*context_get)(void **context);
typedef int (*context_set)(void *context);
typedef int (*context_retain)(void **context, int device);

/* An entry of the CUDA driver; NULL on the simulated GPU, which has no contexts. */
static void *driver_entry(const char *name) {
  void *library = conform_is_sim() ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != NULL ? dlsym(library, name) : NULL;
}

/* What is current on this thread: NULL also where there is no such thing. */
static void *current_context(void) {
  void *entry = driver_entry("cuCtxGetCurrent");
  context_get get;
  void *context = NULL;
  if (entry != NULL) {
    memcpy(&get, &entry, sizeof(get));
    (void)get(&context);
  }
  return context;
}

/* Makes the primary context current, as a program with CUDA code of its own does. */
static void set_primary_context(void) {
  void *retain_entry = driver_entry("cuDevicePrimaryCtxRetain");
  void *set_entry = driver_entry("cuCtxSetCurrent");
  context_retain retain;
  context_set set;
  void *context = NULL;
  if (retain_entry != NULL && set_entry != NULL) {
    memcpy(&retain, &retain_entry, sizeof(retain));
    memcpy(&set, &set_entry, sizeof(set));
    (void)retain(&context, 0);
    (void)set(context);
  }
}

/* One of many calls; both those that succeed and those that fail leave the context alone. */
static void any_call(int index) {
  tarni_port *port = conform_port;
  uint64_t number, total;
  void *pointer;
  switch (index) {
  case 0:
    (void)tarni_port_info(port, &number, &total);
    break;
  case 1:
    if (tarni_port_create(port, conform_granule(), &number) == TARN_OK) {
      (void)tarni_port_release(port, number);
    }
    break;
  case 2:
    if (tarni_port_plain_alloc(port, 4096, &number) == TARN_OK) {
      (void)tarni_port_fill_sync(port, number, 1, 4096);
      (void)tarni_port_plain_free(port, number);
    }
    break;
  case 3:
    if (tarni_port_stream_create(port, &pointer) == TARN_OK) {
      (void)tarni_port_stream_sync(port, pointer);
      (void)tarni_port_stream_destroy(port, pointer);
    }
    break;
  case 4:
    if (tarni_port_event_create(port, &pointer) == TARN_OK) {
      (void)tarni_port_event_query(port, pointer);
      (void)tarni_port_event_destroy(port, pointer);
    }
    break;
  case 5:
    if (tarni_port_host_alloc(port, 4096, 0, &pointer) == TARN_OK) {
      (void)tarni_port_host_free(port, pointer);
    }
    break;
  case 6:
    (void)tarni_port_create(port, conform_port->device.total_bytes * 2, &number);
    break;
  default:
    (void)tarni_port_copy_sync(port, (uintptr_t)conform_pinned_a, (uintptr_t)conform_pinned_b, 64);
    break;
  }
}

enum { N_ANY_CALLS = 8 };

/* `set` says whether the thread has a context of its own first. */
static tarn_status calls_keep_context(void *set) {
  if (*(bool *)set) {
    set_primary_context();
  }
  void *before = current_context();
  bool is_right = conform_is_sim() || (before != NULL) == *(bool *)set;
  for (int i = 0; i < N_ANY_CALLS; i++) {
    any_call(i);
    is_right = is_right && current_context() == before;
  }
  return is_right ? TARN_OK : TARN_STATE;
}

static void context_is_unchanged(void) {
  bool has_context = false;
  CHECK_OK(conform_on_thread(calls_keep_context, &has_context));
  has_context = true;
  CHECK_OK(conform_on_thread(calls_keep_context, &has_context));
}

static const test_case device_cases[] = {
    {"device: the same name is the same port, a bad name is refused", opening},
    {"device: capabilities", capabilities},
    {"device: memory info follows create and release", memory_info},
    {"device: the clock runs forward", clock_runs_forward},
    {"device: calls and their time are counted", calls_are_counted},
    {"device: outputs are needed", outputs_are_needed},
    {"device: sizes are checked", sizes_are_checked},
    {"device: handles are checked", handles_are_checked},
    {"device: the caller's context is unchanged", context_is_unchanged},
};
CONFORM_TABLE(device, device_cases)
