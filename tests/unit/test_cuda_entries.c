/* SPDX-License-Identifier: MIT
 *
 * Every entry of the cuda port, with every kind of answer of the driver, on a stand-in for libcuda
 * (tests/support/fake_cuda): the caller's context is as before, the call was made in the port's own
 * context and counted, the status and the last error are right, outputs are empty on failure. */
#include <string.h>

#include "port/cuda/internal.h"
#include "support/fake_driver.h"
#include "support/test.h"

enum { TEST_CHUNK = FAKE_GRANULARITY };

/* Opens cuda:0 through the table itself. */
static tarni_cuda_port *open_port(void) {
  tarni_port *port = NULL;
  CHECK_OK(tarni_port_cuda.open(0, "", &port));
  fake->known_bytes = (uint64_t)1 << 40; /* all addresses */
  return (tarni_cuda_port *)port;
}

static tarn_error last_error(void) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  return error;
}

static tarn_ptr some_address = 16 * (tarn_ptr)TEST_CHUNK;
static uint64_t some_word;
static const tarni_copy some_copies[2] = {{4096, 8192, 100}, {16384, 32768, 100}};

/* One entry with plain arguments; `output` is where its result goes, 0 or -1 when it failed. */
typedef tarn_status (*entry_function)(tarni_port *port, uint64_t *output);

#define ENTRY(name, expression)                                                                    \
  static tarn_status enter_##name(tarni_port *port, uint64_t *output) {                            \
    *output = 3;                                                                                   \
    return tarni_port_cuda.expression;                                                             \
  }
#define ENTRY_POINTER(name, expression)                                                            \
  static tarn_status enter_##name(tarni_port *port, uint64_t *output) {                            \
    void *pointer = &some_word;                                                                    \
    const tarn_status status = tarni_port_cuda.expression;                                         \
    *output = (uintptr_t)pointer;                                                                  \
    return status;                                                                                 \
  }

static void *const some_handle = &some_word;

static tarn_status enter_info(tarni_port *port, uint64_t *output) {
  uint64_t free_bytes = 1;
  const tarn_status status = tarni_port_cuda.info(port, &free_bytes, output);
  CHECK((status == TARN_OK) == (free_bytes != 0));
  return status;
}

static tarn_status enter_export(tarni_port *port, uint64_t *output) {
  int descriptor = 5;
  const tarn_status status = tarni_port_cuda.export_chunk(port, 9, &descriptor);
  *output = (uint64_t)descriptor + 1; /* 0 for -1 */
  return status;
}

static tarn_status enter_capture_state(tarni_port *port, uint64_t *output) {
  tarni_capture_state state = {TARNI_CAPTURE_ACTIVE, 7};
  const tarn_status status = tarni_port_cuda.capture_state(port, some_handle, &state);
  CHECK_EQ(state.status, TARNI_CAPTURE_NONE);
  *output = state.id;
  return status;
}

static tarn_status enter_capture_nodes(tarni_port *port, uint64_t *output) {
  tarni_edge edge;
  uint32_t count = 0;
  fake->capture_status = TARNI_CAPTURE_ACTIVE;
  const tarn_status status = tarni_port_cuda.capture_nodes(port, some_handle, &edge, 1, &count);
  fake->capture_status = TARNI_CAPTURE_NONE;
  *output = count;
  return status;
}

static tarn_status enter_node_before(tarni_port *port, uint64_t *output) {
  tarni_edge edge;
  uint32_t count = 0;
  const tarn_status status = tarni_port_cuda.node_before(port, 9, &edge, 1, &count);
  *output = count;
  return status;
}

ENTRY(reserve, reserve(port, TEST_CHUNK, 0, output))
ENTRY(unreserve, unreserve(port, some_address, TEST_CHUNK))
ENTRY(create, create(port, TEST_CHUNK, output))
ENTRY(release, release(port, 9))
ENTRY(map, map(port, some_address, TEST_CHUNK, 9))
ENTRY(access, access(port, some_address, TEST_CHUNK))
ENTRY(unmap, unmap(port, some_address, TEST_CHUNK))
ENTRY(import, import_chunk(port, 5, output))
ENTRY(plain_alloc, plain_alloc(port, 100, output))
ENTRY(plain_free, plain_free(port, some_address))
ENTRY_POINTER(pool_create, pool_create(port, 1 << 20, &pointer))
ENTRY(pool_destroy, pool_destroy(port, some_handle))
ENTRY(pool_trim, pool_trim(port, some_handle, 0))
ENTRY(pool_alloc, pool_alloc(port, some_handle, 100, some_handle, output))
ENTRY(pool_free, pool_free(port, some_address, some_handle))
ENTRY_POINTER(host_alloc, host_alloc(port, 100, 0, &pointer))
ENTRY(host_free, host_free(port, some_handle))
ENTRY(host_register, host_register(port, some_handle, 100))
ENTRY(host_unregister, host_unregister(port, some_handle))
ENTRY_POINTER(stream_create, stream_create(port, &pointer))
ENTRY(stream_destroy, stream_destroy(port, some_handle))
ENTRY(stream_id, stream_id(port, some_handle, output))
ENTRY(stream_query, stream_query(port, some_handle))
ENTRY(stream_sync, stream_sync(port, some_handle))
ENTRY_POINTER(event_create, event_create(port, &pointer))
ENTRY(event_destroy, event_destroy(port, some_handle))
ENTRY(event_record, event_record(port, some_handle, some_handle))
ENTRY(event_query, event_query(port, some_handle))
ENTRY(event_sync, event_sync(port, some_handle))
ENTRY(event_wait, event_wait(port, some_handle, some_handle))
ENTRY(capture_begin, capture_begin(port, some_handle, TARNI_CAPTURE_RELAXED))
ENTRY_POINTER(capture_end, capture_end(port, some_handle, &pointer))
ENTRY_POINTER(graph_instantiate, graph_instantiate(port, some_handle, &pointer))
ENTRY(graph_launch, graph_launch(port, some_handle, some_handle))
ENTRY(graph_destroy, graph_destroy(port, some_handle, some_handle))
ENTRY(copy, copy(port, some_address, some_address, 100, some_handle))
ENTRY(copy_sync, copy_sync(port, some_address, some_address, 100))
ENTRY(copy_batch, copy_batch(port, some_copies, 2, some_handle, TARNI_COPY_FAST))
ENTRY(fill, fill(port, some_address, 1, 100, some_handle))
ENTRY(fill_sync, fill_sync(port, some_address, 1, 100))
ENTRY(value_write, value_write(port, some_handle, &some_word, 1))
ENTRY(value_wait, value_wait(port, some_handle, &some_word, 1))

/* A call of the table, the driver's entry behind it, and what its shortage is. */
static const struct {
  tarn_call kind;
  fake_entry entry;
  entry_function enter;
  bool has_output;
  bool gives_back;
  tarn_status shortage;
} entries[] = {
    {TARN_CALL_INFO, FAKE_memory_info, enter_info, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_RESERVE, FAKE_reserve, enter_reserve, true, false, TARN_ADDRESS_SPACE},
    {TARN_CALL_UNRESERVE, FAKE_unreserve, enter_unreserve, false, true, TARN_DEVICE_MEMORY},
    {TARN_CALL_CREATE, FAKE_create, enter_create, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_RELEASE, FAKE_release, enter_release, false, true, TARN_DEVICE_MEMORY},
    {TARN_CALL_MAP, FAKE_map, enter_map, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_ACCESS, FAKE_access, enter_access, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_UNMAP, FAKE_unmap, enter_unmap, false, true, TARN_DEVICE_MEMORY},
    {TARN_CALL_EXPORT, FAKE_export_chunk, enter_export, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_IMPORT, FAKE_import_chunk, enter_import, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_PLAIN_ALLOC, FAKE_plain_alloc, enter_plain_alloc, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_PLAIN_FREE, FAKE_plain_free, enter_plain_free, false, true, TARN_DEVICE_MEMORY},
    {TARN_CALL_POOL_CREATE, FAKE_pool_create, enter_pool_create, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_POOL_CREATE, FAKE_pool_set, enter_pool_create, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_POOL_DESTROY, FAKE_pool_destroy, enter_pool_destroy, false, true,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_POOL_TRIM, FAKE_pool_trim, enter_pool_trim, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_POOL_ALLOC, FAKE_pool_alloc, enter_pool_alloc, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_POOL_FREE, FAKE_pool_free, enter_pool_free, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_HOST_ALLOC, FAKE_host_alloc, enter_host_alloc, true, false, TARN_HOST_MEMORY},
    {TARN_CALL_HOST_FREE, FAKE_host_free, enter_host_free, false, true, TARN_HOST_MEMORY},
    {TARN_CALL_HOST_REGISTER, FAKE_host_register, enter_host_register, false, false,
     TARN_HOST_MEMORY},
    {TARN_CALL_HOST_UNREGISTER, FAKE_host_unregister, enter_host_unregister, false, true,
     TARN_HOST_MEMORY},
    {TARN_CALL_STREAM_CREATE, FAKE_stream_create, enter_stream_create, true, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_STREAM_DESTROY, FAKE_stream_destroy, enter_stream_destroy, false, true,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_STREAM_ID, FAKE_stream_id, enter_stream_id, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_STREAM_QUERY, FAKE_stream_query, enter_stream_query, false, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_STREAM_SYNC, FAKE_stream_sync, enter_stream_sync, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_EVENT_CREATE, FAKE_event_create, enter_event_create, true, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_EVENT_DESTROY, FAKE_event_destroy, enter_event_destroy, false, true,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_EVENT_RECORD, FAKE_event_record, enter_event_record, false, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_EVENT_QUERY, FAKE_event_query, enter_event_query, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_EVENT_SYNC, FAKE_event_sync, enter_event_sync, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_EVENT_WAIT, FAKE_event_wait, enter_event_wait, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_CAPTURE_STATE, FAKE_capture_state, enter_capture_state, false, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_CAPTURE_NODES, FAKE_capture_nodes, enter_capture_nodes, false, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_NODE_BEFORE, FAKE_node_before, enter_node_before, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_CAPTURE_BEGIN, FAKE_capture_begin, enter_capture_begin, false, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_CAPTURE_END, FAKE_capture_end, enter_capture_end, true, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_GRAPH_INSTANTIATE, FAKE_instantiate, enter_graph_instantiate, true, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_GRAPH_LAUNCH, FAKE_graph_launch, enter_graph_launch, false, false,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_GRAPH_DESTROY, FAKE_exec_destroy, enter_graph_destroy, false, true,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_GRAPH_DESTROY, FAKE_graph_destroy, enter_graph_destroy, false, true,
     TARN_DEVICE_MEMORY},
    {TARN_CALL_COPY, FAKE_copy, enter_copy, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_COPY_SYNC, FAKE_copy_sync, enter_copy_sync, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_COPY_SYNC, FAKE_stream_sync, enter_copy_sync, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_COPY_BATCH, FAKE_copy_batch, enter_copy_batch, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_FILL, FAKE_fill, enter_fill, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_FILL_SYNC, FAKE_fill_sync, enter_fill_sync, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_FILL_SYNC, FAKE_stream_sync, enter_fill_sync, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_VALUE_WRITE, FAKE_value_write, enter_value_write, false, false, TARN_DEVICE_MEMORY},
    {TARN_CALL_VALUE_WAIT, FAKE_value_wait, enter_value_wait, false, false, TARN_DEVICE_MEMORY},
};

enum { ENTRY_COUNT = sizeof(entries) / sizeof(entries[0]) };

/* One entry once, with the driver's answer; the caller's context must be as before. */
static void check_entry(tarni_cuda_port *port, size_t i, tarni_cu_result code) {
  const uint64_t n_calls = fake->n_calls[entries[i].entry];
  const uint64_t n_counted = port->base.calls[entries[i].kind];
  tarni_cu_context before = NULL;
  tarni_cu_context after = NULL;
  CHECK(port->driver->context_current(&before) == 0);
  fake->fail_with[entries[i].entry] = code;
  uint64_t output = 3;
  const tarn_status status = entries[i].enter(&port->base, &output);
  fake->fail_with[entries[i].entry] = 0;
  CHECK(port->driver->context_current(&after) == 0 && after == before);
  CHECK_EQ(fake->n_calls[entries[i].entry], n_calls + 1);
  CHECK_EQ(port->base.calls[entries[i].kind], n_counted + 1);
  CHECK(fake->last_context == port->context);
  const tarn_status expected =
      code == TARNI_CU_OUT_OF_MEMORY ? entries[i].shortage : tarni_cuda_status(code);
  if (!CHECK_STATUS(status, expected)) {
    test_note("in %s with code %d", tarn_call_name(entries[i].kind), code);
  }
  if (entries[i].has_output) {
    CHECK((output != 0) == (status == TARN_OK));
  }
  if (code != TARNI_CU_SUCCESS && code != TARNI_CU_NOT_READY) {
    const tarn_error error = last_error();
    CHECK_EQ(error.driver_code, code);
    CHECK(error.status == status);
    CHECK_TEXT(error.device, "cuda:0");
    CHECK(strncmp(error.operation, "cu", 2) == 0);
    CHECK_HAS(error.driver_name, code == 12 ? "unknown" : "CUDA_ERROR_");
  }
}

static void check_all_entries(tarni_cuda_port *port) {
  static const tarni_cu_result codes[] = {
      TARNI_CU_SUCCESS,        TARNI_CU_INVALID_VALUE,
      TARNI_CU_OUT_OF_MEMORY,  12 /* no such code */,
      TARNI_CU_INVALID_HANDLE, TARNI_CU_NOT_READY,
      TARNI_CU_NOT_SUPPORTED,  900,
  };
  for (size_t i = 0; i < ENTRY_COUNT; i++) {
    for (size_t k = 0; k < sizeof(codes) / sizeof(codes[0]); k++) {
      check_entry(port, i, codes[k]);
    }
  }
}

/* With no context current, the port's own, another of the device, one of another device. */
static void check_entries(void) {
  tarni_cuda_port *port = open_port();
  REQUIRE(port != NULL);
  struct tarni_cu_context_object own = {.device = 0};
  struct tarni_cu_context_object foreign = {.device = 1};
  const tarni_cu_context callers[] = {NULL, port->context, &own, &foreign};
  for (size_t i = 0; i < sizeof(callers) / sizeof(callers[0]); i++) {
    const uint64_t n_pushed = fake->n_calls[FAKE_context_push];
    if (callers[i] != NULL) {
      REQUIRE(port->driver->context_push(callers[i]) == 0);
    }
    check_all_entries(port);
    if (callers[i] == port->context) {
      CHECK_EQ(fake->n_calls[FAKE_context_push], n_pushed + 1); /* ours, and no other */
    }
    if (callers[i] != NULL) {
      tarni_cu_context popped = NULL;
      CHECK(port->driver->context_pop(&popped) == 0 && popped == callers[i]);
    }
  }
  tarni_cu_context current = (tarni_cu_context)some_handle;
  CHECK(port->driver->context_current(&current) == 0 && current == NULL);
  /* Every kind of call has been made. */
  for (int kind = 0; kind < TARN_CALL_COUNT; kind++) {
    CHECK(port->base.calls[kind] > 0);
    CHECK(port->base.nanoseconds[kind] > 0);
  }
  tarni_port_cuda.close(&port->base);
}

static void test_entries(void) {
  fake_run("13000", check_entries);
}

static void check_unreachable_context(void) {
  tarni_cuda_port *port = open_port();
  REQUIRE(port != NULL);
  for (size_t i = 0; i < ENTRY_COUNT; i++) {
    const uint64_t n_calls = fake->n_calls[entries[i].entry];
    uint64_t output = 0;
    fake->fail_with[FAKE_context_push] = TARNI_CU_INVALID_CONTEXT;
    CHECK_STATUS(entries[i].enter(&port->base, &output), TARN_DEVICE_LOST);
    fake->fail_with[FAKE_context_push] = 0;
    fake->fail_with[FAKE_context_current] = 999;
    CHECK_STATUS(entries[i].enter(&port->base, &output), TARN_DRIVER);
    CHECK_TEXT(last_error().operation, "cuCtxPushCurrent");
    fake->fail_with[FAKE_context_current] = 0;
    CHECK_EQ(fake->n_calls[entries[i].entry], n_calls);
    CHECK_EQ(port->base.calls[entries[i].kind], 0);
  }
  tarni_port_cuda.close(&port->base);
}

/* A sticky code loses the device: from then on calls are refused, but giving back is tried. */
static void check_lost_by(tarni_cu_result code) {
  tarni_cuda_port *port = open_port();
  REQUIRE(port != NULL);
  uint64_t output = 0;
  fake->fail_with[FAKE_stream_query] = code;
  CHECK_STATUS(enter_stream_query(&port->base, &output), TARN_DEVICE_LOST);
  fake->fail_with[FAKE_stream_query] = 0;
  for (size_t i = 0; i < ENTRY_COUNT; i++) {
    const uint64_t n_calls = fake->n_calls[entries[i].entry];
    output = 0;
    const tarn_status status = entries[i].enter(&port->base, &output);
    if (entries[i].gives_back) {
      CHECK_OK(status);
      CHECK_EQ(fake->n_calls[entries[i].entry], n_calls + 1);
    } else {
      CHECK_STATUS(status, TARN_DEVICE_LOST);
      CHECK_EQ(last_error().driver_code, code);
      CHECK_EQ(fake->n_calls[entries[i].entry], n_calls);
      CHECK(!entries[i].has_output || output == 0);
    }
  }
  tarni_port_cuda.close(&port->base);
  CHECK_EQ(fake->primary[0].n_retained, 0);
}

static void check_lost(void) {
  check_lost_by(TARNI_CU_ILLEGAL_ADDRESS);
  check_lost_by(TARNI_CU_LAUNCH_FAILED);
  check_lost_by(TARNI_CU_ECC_UNCORRECTABLE);
}

static void test_lost(void) {
  fake_run("13000", check_unreachable_context);
  fake_run("13000", check_lost);
}

static const test_case cases[] = {
    {"entries", test_entries},
    {"lost", test_lost},
};

TEST_MAIN(cases)
