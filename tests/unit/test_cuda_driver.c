/* SPDX-License-Identifier: MIT
 *
 * The cuda port on a stand-in for libcuda, beside its failures: loading from several threads, old
 * drivers and what remains on them, fork, captures, pinned memory without unified addressing,
 * export, and what port.h promises about zero sizes and empty results. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "port/cuda/internal.h"
#include "support/fake_driver.h"
#include "support/test.h"

enum { CHUNK = FAKE_GRANULARITY, LOADER_COUNT = 8 };

static uint64_t word;
static void *const handle = &word;

static tarni_port *open_cuda(void) {
  tarni_port *port = NULL;
  CHECK_OK(tarni_port_open("cuda:0", &port));
  return port;
}

/* ---- Loading -------------------------------------------------------------------------------- */

static void *count_in_thread(void *count) {
  (void)tarni_port_cuda.count(count);
  return NULL;
}

static void check_threads(void) {
  pthread_t threads[LOADER_COUNT];
  int counts[LOADER_COUNT] = {0};
  for (int i = 0; i < LOADER_COUNT; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, count_in_thread, &counts[i]) == 0);
  }
  for (int i = 0; i < LOADER_COUNT; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ(counts[i], FAKE_DEVICE_COUNT);
  }
  CHECK_EQ(fake->n_calls[FAKE_init], 1);
}

static void test_threads(void) {
  fake_run("13000", check_threads);
}

/* A driver of 11.3: entries by the first cuGetProcAddress; no ids, values or newer graphs. */
static void check_driver_11(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  CHECK(fake->n_lookups_old > 50);
  CHECK_EQ(fake->n_lookups_new, 0);
  CHECK_EQ(fake->last_flags, TARNI_CU_LOOKUP_LEGACY_STREAM);
  CHECK(port->device.has_vmm && port->device.has_pool);
  void *exec = NULL;
  CHECK_OK(tarni_port_graph_instantiate(port, handle, &exec));
  CHECK_EQ(fake->n_calls[FAKE_instantiate_old], 1);
  CHECK_STATUS(tarni_port_value_write(port, handle, &word, 1), TARN_UNSUPPORTED);
  CHECK_HAS(tarn_last_message(), "11.7");
  CHECK_HAS(tarn_last_message(), "11.3");
  CHECK_STATUS(tarni_port_value_wait(port, handle, &word, 1), TARN_UNSUPPORTED);
  tarni_port_close(port);
}

static void *id_in_thread(void *port) {
  uint64_t id = 0;
  CHECK_OK(tarni_port_stream_id(port, TARNI_STREAM_PER_THREAD, &id));
  return (void *)(uintptr_t)id;
}

/* Without cuStreamGetId handles stand for streams, and default streams are told apart. */
static void check_ids_of_handles(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  uint64_t null_id = 0;
  uint64_t legacy_id = 0;
  uint64_t own_id = 0;
  uint64_t id = 0;
  CHECK_OK(tarni_port_stream_id(port, NULL, &null_id));
  CHECK_OK(tarni_port_stream_id(port, TARNI_STREAM_LEGACY, &legacy_id));
  CHECK_OK(tarni_port_stream_id(port, TARNI_STREAM_PER_THREAD, &own_id));
  CHECK_OK(tarni_port_stream_id(port, handle, &id));
  CHECK(null_id == legacy_id && null_id != own_id && own_id != id && id != null_id);
  pthread_t thread;
  void *other_id = NULL;
  REQUIRE(pthread_create(&thread, NULL, id_in_thread, port) == 0);
  CHECK(pthread_join(thread, &other_id) == 0);
  CHECK((uintptr_t)other_id != own_id && other_id != NULL);
  tarni_port_close(port);
}

/* A driver of 10.0: entries by their symbols; plain memory and pinned memory remain. */
static void check_driver_10(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  CHECK_EQ(fake->n_lookups_old + fake->n_lookups_new, 0);
  CHECK_EQ(port->device.driver_version, 10000);
  CHECK(!port->device.has_vmm && !port->device.has_pool && !port->device.has_export);
  CHECK_EQ(port->device.granularity_bytes, 0);
  tarn_ptr address = 1;
  tarni_chunk chunk = 1;
  void *pool = handle;
  void *graph = handle;
  /* Asked through the table: the checks of port_call.c would refuse before the port does. */
  CHECK_STATUS(tarni_port_cuda.reserve(port, CHUNK, 0, &address), TARN_UNSUPPORTED);
  CHECK_HAS(tarn_last_message(), "10.2");
  CHECK_HAS(tarn_last_message(), "plain remain");
  CHECK_STATUS(tarni_port_cuda.create(port, CHUNK, &chunk), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_cuda.export_chunk(port, 1, &(int){0}), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_cuda.pool_create(port, 0, &pool), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_capture_begin(port, handle, TARNI_CAPTURE_GLOBAL), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_capture_end(port, handle, &graph), TARN_UNSUPPORTED);
  tarni_capture_mode mode = TARNI_CAPTURE_RELAXED;
  CHECK(!tarni_port_thread_mode(port, &mode));
  CHECK_STATUS(tarni_port_graph_launch(port, handle, handle), TARN_UNSUPPORTED);
  uint32_t count = 1;
  CHECK_STATUS(tarni_port_capture_nodes(port, handle, NULL, 0, &count), TARN_UNSUPPORTED);
  CHECK_HAS(tarn_last_message(), "not used again");
  CHECK_STATUS(tarni_port_node_before(port, 5, NULL, 0, &count), TARN_UNSUPPORTED);
  CHECK_EQ(count, 0);
  CHECK(address == 0 && chunk == 0 && pool == NULL && graph == NULL);
  tarni_capture_state state = {TARNI_CAPTURE_ACTIVE, 1};
  CHECK_OK(tarni_port_capture_state(port, handle, &state));
  CHECK(state.status == TARNI_CAPTURE_NONE && state.id == 0);
  CHECK_OK(tarni_port_plain_alloc(port, 1, &address));
  void *pointer = NULL;
  CHECK_OK(tarni_port_host_alloc(port, 1, TARNI_HOST_WRITE_COMBINED, &pointer));
  CHECK_EQ(fake->last_flags, 7);
  tarni_port_close(port);
  CHECK_EQ(fake->primary[0].n_retained, 0);
  CHECK_EQ(fake->n_calls[FAKE_primary_release_old], 1);
}

static void check_driver_6(void) {
  int count = -1;
  CHECK_STATUS(tarni_port_cuda.count(&count), TARN_DRIVER_OLD);
  CHECK_EQ(count, 0);
  CHECK_HAS(tarn_last_message(), "cuDevicePrimaryCtxRetain");
  CHECK_HAS(tarn_last_message(), "Update the NVIDIA driver");
  tarni_port *port = NULL;
  CHECK_STATUS(tarni_port_cuda.open(0, "", &port), TARN_DRIVER_OLD);
  CHECK_EQ(fake->n_calls[FAKE_init], 0);
}

static void test_old_drivers(void) {
  fake_run("11030", check_driver_11);
  fake_run("11030", check_ids_of_handles);
  fake_run("10000", check_driver_10);
  fake_run("6050", check_driver_6);
}

/* ---- Fork ----------------------------------------------------------------------------------- */

static void check_in_forked_child(tarni_port *port) {
  const uint64_t n_calls = fake->n_calls[FAKE_plain_alloc];
  tarn_ptr address = 1;
  CHECK_STATUS(tarni_port_plain_alloc(port, 100, &address), TARN_FORKED);
  CHECK_EQ(address, 0);
  CHECK_HAS(tarn_last_message(), "exec");
  CHECK_EQ(fake->n_calls[FAKE_plain_alloc], n_calls);
  int count = -1;
  CHECK_STATUS(tarni_port_cuda.count(&count), TARN_FORKED);
  tarni_port *other = NULL;
  CHECK_STATUS(tarni_port_cuda.open(1, "", &other), TARN_FORKED);
  tarni_port_close(port);
  CHECK_EQ(fake->n_calls[FAKE_primary_release], 0);
}

static void check_fork(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  const pid_t child = fork();
  if (child == 0) {
    check_in_forked_child(port);
    _exit(test_case_failed() ? 1 : 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_EQ(status, 0);
  tarn_ptr address = 0;
  CHECK_OK(tarni_port_plain_alloc(port, 100, &address));
  tarni_port_close(port);
}

static void test_fork(void) {
  fake_run("13000", check_fork);
}

/* ---- Captures and pools --------------------------------------------------------------------- */

/* A capturing stream is refused before the driver is asked for memory, or for the stream's id. */
static void check_capturing_stream(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  void *pool = NULL;
  CHECK_OK(tarni_port_pool_create(port, 12345, &pool));
  CHECK(fake->last_flags == TARNI_CU_POOL_THRESHOLD && fake->last_value == 12345);
  tarn_ptr address = 1;
  for (int status = TARNI_CAPTURE_ACTIVE; status <= TARNI_CAPTURE_INVALIDATED; status++) {
    fake->capture_status = status;
    tarni_capture_state state;
    CHECK_OK(tarni_port_capture_state(port, handle, &state));
    CHECK(state.status == (tarni_capture_status)status && state.id == 42);
    CHECK_STATUS(tarni_port_pool_alloc(port, pool, 100, handle, &address), TARN_CAPTURE);
    CHECK_HAS(tarn_last_message(), "capture 42");
    CHECK_STATUS(tarni_port_pool_free(port, 100, handle), TARN_CAPTURE);
    uint64_t id = 1;
    CHECK_STATUS(tarni_port_stream_id(port, handle, &id), TARN_CAPTURE);
    CHECK_EQ(id, 0);
  }
  CHECK_EQ(fake->n_calls[FAKE_stream_id], 0);
  fake->capture_status = TARNI_CAPTURE_NONE;
  fake->fail_with[FAKE_capture_state] = TARNI_CU_STREAM_CAPTURE_IMPLICIT;
  CHECK_STATUS(tarni_port_pool_alloc(port, pool, 100, NULL, &address), TARN_CAPTURE);
  CHECK_STATUS(tarni_port_pool_free(port, 100, NULL), TARN_CAPTURE);
  CHECK_EQ(fake->n_calls[FAKE_pool_alloc] + fake->n_calls[FAKE_pool_free], 0);
  fake->fail_with[FAKE_capture_state] = 0;
  CHECK_OK(tarni_port_pool_alloc(port, pool, 100, NULL, &address));
  /* A pool whose threshold cannot be set is not kept. */
  fake->fail_with[FAKE_pool_set] = TARNI_CU_INVALID_VALUE;
  CHECK_STATUS(tarni_port_pool_create(port, 1, &pool), TARN_INVALID);
  CHECK_EQ(fake->n_calls[FAKE_pool_destroy], 1);
  tarni_port_close(port);
}

/* What a stream's next node follows, and what a node follows: many at once, and which edges are
 * completion. */
static void check_nodes(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  tarni_edge edges[FAKE_NODE_COUNT] = {{0}};
  uint32_t count = 7;
  CHECK_STATUS(tarni_port_capture_nodes(port, handle, edges, 4, &count), TARN_STATE);
  CHECK_EQ(count, 0);
  fake->capture_status = TARNI_CAPTURE_ACTIVE;
  for (size_t i = 0; i < FAKE_NODE_COUNT; i++) {
    fake->nodes[i] = (tarni_cu_node)(uintptr_t)(100 + i);
  }
  fake->edges[1].type = 1;
  fake->edges[2].from_port = 2;
  fake->edges[3].to_port = 1;
  for (fake->n_nodes = 0; fake->n_nodes <= FAKE_NODE_COUNT; fake->n_nodes += 20) {
    CHECK_OK(tarni_port_capture_nodes(port, handle, edges, FAKE_NODE_COUNT, &count));
    CHECK_EQ(count, fake->n_nodes);
    CHECK_OK(tarni_port_node_before(port, 5, edges, FAKE_NODE_COUNT, &count));
    CHECK_EQ(count, fake->n_nodes);
    for (uint32_t i = 0; i < count; i++) {
      CHECK_EQ(edges[i].node, 100 + i);
      CHECK_EQ(edges[i].is_full, i == 0 || i > 3);
    }
  }
  fake->n_nodes = FAKE_NODE_COUNT;
  CHECK_OK(tarni_port_capture_nodes(port, handle, edges, 2, &count));
  CHECK_EQ(count, FAKE_NODE_COUNT);
  CHECK_OK(tarni_port_node_before(port, 5, edges, 2, &count));
  CHECK_EQ(count, FAKE_NODE_COUNT);
  CHECK_STATUS(tarni_port_node_before(port, 0, edges, 2, &count), TARN_INVALID);
  CHECK_STATUS(tarni_port_node_before(port, 5, NULL, 2, &count), TARN_INVALID);
  CHECK_STATUS(tarni_port_capture_nodes(port, handle, edges, 2, NULL), TARN_INVALID);
  tarni_port_close(port);
}

static void test_nodes(void) {
  fake_run("13000", check_nodes);
}

/* Both halves of a graph are destroyed, whichever fails, and either may be missing. */
static void check_graph_destroy(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  fake->fail_with[FAKE_exec_destroy] = TARNI_CU_INVALID_HANDLE;
  CHECK_STATUS(tarni_port_graph_destroy(port, handle, handle), TARN_INVALID);
  CHECK_EQ(fake->n_calls[FAKE_graph_destroy], 1);
  fake->fail_with[FAKE_exec_destroy] = 0;
  CHECK_OK(tarni_port_graph_destroy(port, NULL, handle));
  CHECK_EQ(fake->n_calls[FAKE_graph_destroy], 1);
  CHECK_OK(tarni_port_graph_destroy(port, handle, NULL));
  CHECK_EQ(fake->n_calls[FAKE_exec_destroy], 2);
  CHECK_OK(tarni_port_cuda.graph_destroy(port, NULL, NULL));
  CHECK_EQ(fake->n_calls[FAKE_exec_destroy] + fake->n_calls[FAKE_graph_destroy], 4);
  tarni_port_close(port);
}

/* A thread is relaxed for as long as it makes calls of tarn's own, and nowhere else. */
static void check_relaxed_thread(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  for (int mode = TARNI_CAPTURE_GLOBAL; mode <= TARNI_CAPTURE_RELAXED; mode++) {
    fake->thread_mode = mode;
    {
      TARNI_RELAXED(port);
      CHECK(relaxed.is_relaxed);
      CHECK_EQ(fake->thread_mode, TARNI_CAPTURE_RELAXED);
    }
    CHECK_EQ(fake->thread_mode, mode);
  }
  fake->thread_mode = TARNI_CAPTURE_GLOBAL;
  fake->fail_with[FAKE_thread_mode] = TARNI_CU_INVALID_VALUE;
  {
    TARNI_RELAXED(port);
    CHECK(!relaxed.is_relaxed);
  }
  CHECK_EQ(fake->thread_mode, TARNI_CAPTURE_GLOBAL);
  tarni_port_close(port);
}

static void test_capture(void) {
  fake_run("13000", check_relaxed_thread);
  fake_run("13000", check_capturing_stream);
  fake_run("13000", check_graph_destroy);
}

/* ---- Pinned memory and chunks --------------------------------------------------------------- */

static void check_host_address(void) {
  fake->attributes[TARNI_CU_ATTRIBUTE_UNIFIED_ADDRESSING] = 0;
  fake->attributes[TARNI_CU_ATTRIBUTE_REGISTERED_AT_HOST_POINTER] = 0;
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  void *pointer = NULL;
  CHECK_OK(tarni_port_host_alloc(port, 100, 0, &pointer));
  CHECK_EQ(fake->last_flags, 3);
  CHECK_OK(tarni_port_host_register(port, &word, sizeof(word)));
  CHECK_EQ(fake->n_calls[FAKE_host_address], 2);
  fake->address_offset = 64;
  CHECK_STATUS(tarni_port_host_alloc(port, 100, 0, &pointer), TARN_UNSUPPORTED);
  CHECK(pointer == NULL);
  CHECK_EQ(fake->n_calls[FAKE_host_free], 1);
  CHECK_STATUS(tarni_port_host_register(port, &word, sizeof(word)), TARN_UNSUPPORTED);
  CHECK_EQ(fake->n_calls[FAKE_host_unregister], 1);
  fake->fail_with[FAKE_host_address] = TARNI_CU_INVALID_VALUE;
  CHECK_STATUS(tarni_port_host_alloc(port, 100, 0, &pointer), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_register(port, &word, sizeof(word)), TARN_INVALID);
  CHECK_EQ(fake->n_calls[FAKE_host_free], 2);
  CHECK_EQ(fake->n_calls[FAKE_host_unregister], 2);
  const uint64_t n_registered = fake->n_calls[FAKE_host_register];
  CHECK_STATUS(tarni_port_cuda.host_register(port, &word, UINT64_MAX), TARN_INVALID);
  CHECK_EQ(fake->n_calls[FAKE_host_register], n_registered);
  tarni_cu_context current = handle;
  CHECK(tarni_cuda_of(port)->driver->context_current(&current) == 0 && current == NULL);
  tarni_port_close(port);
}

static void check_export_refused(void) {
  fake->refused_handle_type = TARNI_CU_HANDLE_DESCRIPTOR;
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  CHECK(port->device.has_vmm && !port->device.has_export);
  tarni_chunk chunk = 0;
  CHECK_OK(tarni_port_create(port, CHUNK, &chunk));
  CHECK_EQ(fake->last_handle_type, TARNI_CU_HANDLE_NONE);
  int descriptor = 0;
  CHECK_STATUS(tarni_port_cuda.export_chunk(port, chunk, &descriptor), TARN_UNSUPPORTED);
  CHECK(descriptor == -1);
  CHECK_STATUS(tarni_port_cuda.import_chunk(port, 5, &chunk), TARN_UNSUPPORTED);
  CHECK_EQ(chunk, 0);
  CHECK_EQ(fake->n_calls[FAKE_release], 0); /* the refused probe gave nothing to release */
  tarni_port_close(port);
}

static void check_chunks(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  CHECK(port->device.has_export);
  CHECK_EQ(fake->n_calls[FAKE_create], 1);
  CHECK_EQ(fake->n_calls[FAKE_release], 1); /* the probe is gone */
  tarni_chunk chunk = 0;
  CHECK_OK(tarni_port_create(port, CHUNK, &chunk));
  CHECK_EQ(fake->last_handle_type, TARNI_CU_HANDLE_DESCRIPTOR);
  CHECK_OK(tarni_port_access(port, 16 * (tarn_ptr)CHUNK, 3 * (uint64_t)CHUNK));
  CHECK(fake->last_flags == TARNI_CU_ACCESS_READ_WRITE && fake->last_value == 0);
  CHECK_OK(tarni_port_import(port, 5, &chunk));
  CHECK_EQ(fake->last_value, 5);
  tarn_ptr address = 0;
  CHECK_OK(tarni_port_reserve(port, CHUNK, (uint64_t)1 << 30, &address));
  CHECK_EQ(address % ((uint64_t)1 << 30), 0);
  fake->misalignment = CHUNK;
  CHECK_STATUS(tarni_port_reserve(port, CHUNK, (uint64_t)1 << 30, &address), TARN_ADDRESS_SPACE);
  CHECK_EQ(address, 0);
  CHECK_EQ(fake->n_calls[FAKE_unreserve], 1);
  CHECK_OK(tarni_port_value_write(port, handle, &word, 1));
  CHECK_EQ(fake->last_value, (uintptr_t)&word);
  CHECK_OK(tarni_port_stream_create(port, &(void *){NULL}));
  CHECK_EQ(fake->last_flags, TARNI_CU_STREAM_NON_BLOCKING);
  CHECK_OK(tarni_port_event_create(port, &(void *){NULL}));
  CHECK_EQ(fake->last_flags, TARNI_CU_EVENT_NO_TIMING);
  const uint64_t now_ns = tarni_port_now_ns(port);
  CHECK(now_ns > 0 && tarni_port_now_ns(port) >= now_ns);
  tarni_port_close(port);
}

static void test_memory(void) {
  fake_run("13000", check_host_address);
  fake_run("13000", check_export_refused);
  fake_run("13000", check_chunks);
}

/* ---- The contract of port.h ----------------------------------------------------------------- */

static uint64_t count_calls(const tarni_port *port) {
  uint64_t sum = 0;
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    sum += atomic_load(&port->calls[i]);
  }
  return sum;
}

static void check_zero_sizes(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  tarn_ptr address = 1;
  tarni_chunk chunk = 1;
  void *pointer = handle;
  CHECK_STATUS(tarni_port_reserve(port, 0, 0, &address), TARN_INVALID);
  CHECK_STATUS(tarni_port_create(port, 0, &chunk), TARN_INVALID);
  CHECK_STATUS(tarni_port_map(port, CHUNK, 0, 1), TARN_INVALID);
  CHECK_STATUS(tarni_port_access(port, CHUNK, 0), TARN_INVALID);
  CHECK_STATUS(tarni_port_unmap(port, CHUNK, 0), TARN_INVALID);
  CHECK_STATUS(tarni_port_plain_alloc(port, 0, &address), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_alloc(port, handle, 0, NULL, &address), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_alloc(port, 0, 0, &pointer), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_register(port, &word, 0), TARN_INVALID);
  CHECK(address == 0 && chunk == 0 && pointer == NULL);
  CHECK_OK(tarni_port_copy(port, CHUNK, CHUNK, 0, NULL));
  CHECK_OK(tarni_port_fill_sync(port, CHUNK, 0, 0));
  CHECK_EQ(count_calls(port), 0);
  tarni_port_close(port);
}

static void check_empty_results(void) {
  tarni_port *port = open_cuda();
  REQUIRE(port != NULL);
  fake->gives_null = true;
  uint64_t number = 1;
  uint64_t free_bytes = 1;
  void *pointer = handle;
  int descriptor = 1;
  CHECK_STATUS(tarni_port_info(port, &free_bytes, &number), TARN_DRIVER);
  CHECK_STATUS(tarni_port_reserve(port, CHUNK, 0, &number), TARN_DRIVER);
  CHECK_STATUS(tarni_port_create(port, CHUNK, &number), TARN_DRIVER);
  CHECK_STATUS(tarni_port_export(port, 1, &descriptor), TARN_DRIVER);
  CHECK_STATUS(tarni_port_import(port, 1, &number), TARN_DRIVER);
  CHECK_STATUS(tarni_port_plain_alloc(port, 1, &number), TARN_DRIVER);
  CHECK_STATUS(tarni_port_pool_create(port, 1, &pointer), TARN_DRIVER);
  CHECK_STATUS(tarni_port_pool_alloc(port, handle, 1, NULL, &number), TARN_DRIVER);
  CHECK_STATUS(tarni_port_host_alloc(port, 1, 0, &pointer), TARN_DRIVER);
  CHECK_STATUS(tarni_port_stream_create(port, &pointer), TARN_DRIVER);
  CHECK_STATUS(tarni_port_stream_id(port, handle, &number), TARN_DRIVER);
  CHECK_STATUS(tarni_port_event_create(port, &pointer), TARN_DRIVER);
  CHECK_STATUS(tarni_port_capture_end(port, handle, &pointer), TARN_DRIVER);
  CHECK_STATUS(tarni_port_graph_instantiate(port, handle, &pointer), TARN_DRIVER);
  CHECK(number == 0 && free_bytes == 0 && pointer == NULL && descriptor == -1);
  CHECK_HAS(tarn_last_message(), "no result");
  tarni_port_close(port);
}

static void test_contract(void) {
  fake_run("13000", check_zero_sizes);
  fake_run("13000", check_empty_results);
}

static const test_case cases[] = {
    {"threads", test_threads}, {"old_drivers", test_old_drivers}, {"fork", test_fork},
    {"capture", test_capture}, {"memory", test_memory},           {"contract", test_contract},
    {"nodes", test_nodes},
};

TEST_MAIN(cases)
