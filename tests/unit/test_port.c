/* SPDX-License-Identifier: MIT
 *
 * The registry of open devices on the simulated GPU, and the checked calls over a port that does
 * what the test says: succeeds without a result, or fails and leaves rubbish in its outputs. */
#include "port/port.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/lock.h"
#include "support/test.h"

/* ---- A port that does what the test says ---------------------------------------------------- */

static tarn_status scripted_status;
static uint64_t scripted_result;
static uint64_t n_scripted;

static tarn_status scripted_number(uint64_t *output) {
  n_scripted++;
  *output = scripted_result;
  return scripted_status;
}

static tarn_status scripted_pointer(void **output) {
  n_scripted++;
  *output = (void *)(uintptr_t)scripted_result;
  return scripted_status;
}

static tarn_status script_info(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes) {
  (void)port;
  *free_bytes = 2 * scripted_result;
  return scripted_number(total_bytes);
}

static tarn_status script_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                                  tarn_ptr *address) {
  (void)port, (void)size, (void)alignment;
  return scripted_number(address);
}

static tarn_status script_create(tarni_port *port, uint64_t size, tarni_chunk *chunk) {
  (void)port, (void)size;
  return scripted_number(chunk);
}

static tarn_status script_export(tarni_port *port, tarni_chunk chunk, int *descriptor) {
  (void)port, (void)chunk;
  *descriptor = scripted_result != 0 ? (int)scripted_result : -1;
  return scripted_status;
}

static tarn_status script_import(tarni_port *port, int descriptor, tarni_chunk *chunk) {
  (void)port, (void)descriptor;
  return scripted_number(chunk);
}

static tarn_status script_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address) {
  (void)port, (void)size;
  return scripted_number(address);
}

static tarn_status script_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *pool) {
  (void)port, (void)threshold;
  return scripted_pointer(pool);
}

static tarn_status script_pool_alloc(tarni_port *port, tarni_pool pool, uint64_t size,
                                     tarn_stream stream, tarn_ptr *address) {
  (void)port, (void)pool, (void)size, (void)stream;
  return scripted_number(address);
}

static tarn_status script_host_alloc(tarni_port *port, uint64_t size, unsigned flags,
                                     void **pointer) {
  (void)port, (void)size, (void)flags;
  return scripted_pointer(pointer);
}

static tarn_status script_stream_create(tarni_port *port, tarn_stream *stream) {
  (void)port;
  return scripted_pointer(stream);
}

static tarn_status script_stream_id(tarni_port *port, tarn_stream stream, uint64_t *id) {
  (void)port, (void)stream;
  return scripted_number(id);
}

static tarn_status script_event_create(tarni_port *port, tarni_event *event) {
  (void)port;
  return scripted_pointer(event);
}

static tarn_status script_capture_state(tarni_port *port, tarn_stream stream,
                                        tarni_capture_state *state) {
  (void)port, (void)stream;
  state->status = TARNI_CAPTURE_ACTIVE;
  return scripted_number(&state->id);
}

static tarn_status script_capture_end(tarni_port *port, tarn_stream stream, tarni_graph *graph) {
  (void)port, (void)stream;
  return scripted_pointer(graph);
}

static tarn_status script_graph_instantiate(tarni_port *port, tarni_graph graph,
                                            tarni_graph_exec *exec) {
  (void)port, (void)graph;
  return scripted_pointer(exec);
}

static const tarni_port_table script_table = {
    .name = "script",
    .info = script_info,
    .reserve = script_reserve,
    .create = script_create,
    .export_chunk = script_export,
    .import_chunk = script_import,
    .plain_alloc = script_plain_alloc,
    .pool_create = script_pool_create,
    .pool_alloc = script_pool_alloc,
    .host_alloc = script_host_alloc,
    .stream_create = script_stream_create,
    .stream_id = script_stream_id,
    .event_create = script_event_create,
    .capture_state = script_capture_state,
    .capture_end = script_capture_end,
    .graph_instantiate = script_graph_instantiate,
};

enum { GRANULE = 1 << 16, RUBBISH = GRANULE * 5 };

static tarni_port script = {.table = &script_table,
                            .device = {.name = "script",
                                       .granularity_bytes = GRANULE,
                                       .has_vmm = true,
                                       .has_pool = true,
                                       .has_export = true,
                                       .has_host_register = true}};

/* Calls entry number `index` and gives its output as a number: UINT64_MAX for a descriptor of -1.
 */
static tarn_status call_entry(int index, uint64_t *output) {
  uint64_t number = RUBBISH, unused;
  void *pointer = &number;
  void *pool = &number;
  int descriptor = RUBBISH;
  tarn_status status = TARN_OK;
  bool is_pointer = index >= 7;
  switch (index) {
  case 0:
    status = tarni_port_info(&script, &unused, &number);
    number = status == TARN_OK ? number : number | unused;
    break;
  case 1:
    status = tarni_port_reserve(&script, GRANULE, 0, &number);
    break;
  case 2:
    status = tarni_port_create(&script, GRANULE, &number);
    break;
  case 3:
    status = tarni_port_import(&script, 0, &number);
    break;
  case 4:
    status = tarni_port_plain_alloc(&script, 1, &number);
    break;
  case 5:
    status = tarni_port_pool_alloc(&script, pool, 1, NULL, &number);
    break;
  case 6:
    status = tarni_port_stream_id(&script, NULL, &number);
    break;
  case 7:
    status = tarni_port_pool_create(&script, 0, &pointer);
    break;
  case 8:
    status = tarni_port_host_alloc(&script, 1, 0, &pointer);
    break;
  case 9:
    status = tarni_port_stream_create(&script, &pointer);
    break;
  case 10:
    status = tarni_port_event_create(&script, &pointer);
    break;
  case 11:
    status = tarni_port_capture_end(&script, NULL, &pointer);
    break;
  case 12:
    status = tarni_port_graph_instantiate(&script, pool, &pointer);
    break;
  default:
    is_pointer = false;
    status = tarni_port_export(&script, 1, &descriptor);
    number = descriptor == -1 ? 0 : (uint64_t)descriptor;
    break;
  }
  *output = is_pointer ? (uint64_t)(uintptr_t)pointer : number;
  return status;
}

enum { N_ENTRIES = 14 };

static void results_are_passed_on(void) {
  scripted_status = TARN_OK;
  scripted_result = RUBBISH;
  for (int i = 0; i < N_ENTRIES; i++) {
    uint64_t output = 0;
    CHECK_OK(call_entry(i, &output));
    CHECK_EQ(output, RUBBISH);
  }
}

static void outputs_are_emptied(void) {
  scripted_status = TARN_DEVICE_MEMORY;
  scripted_result = RUBBISH;
  for (int i = 0; i < N_ENTRIES; i++) {
    uint64_t output = 77;
    CHECK_STATUS(call_entry(i, &output), TARN_DEVICE_MEMORY);
    CHECK_EQ(output, 0);
  }
  tarni_capture_state state = {TARNI_CAPTURE_INVALIDATED, 5};
  CHECK_STATUS(tarni_port_capture_state(&script, NULL, &state), TARN_DEVICE_MEMORY);
  CHECK_EQ(state.status, TARNI_CAPTURE_NONE);
  CHECK_EQ(state.id, 0);
}

static void success_without_a_result(void) {
  scripted_status = TARN_OK;
  scripted_result = 0;
  for (int i = 0; i < N_ENTRIES; i++) {
    uint64_t output = 77;
    CHECK_STATUS(call_entry(i, &output), TARN_DRIVER);
    CHECK_EQ(output, 0);
    CHECK_HAS(tarn_last_message(), "no result");
  }
}

/* Numbers that a driver cannot mean: more is free than there is; an address that is not aligned. */
static void results_that_cannot_be(void) {
  uint64_t free_bytes = 0, total_bytes = 0;
  tarn_ptr address = 77;
  scripted_status = TARN_OK;
  scripted_result = RUBBISH;
  CHECK_OK(tarni_port_info(&script, &free_bytes, &total_bytes));
  CHECK_EQ(total_bytes, RUBBISH);
  CHECK_EQ(free_bytes, RUBBISH);
  scripted_result = RUBBISH + 4096;
  CHECK_STATUS(tarni_port_reserve(&script, GRANULE, 0, &address), TARN_DRIVER);
  CHECK_EQ(address, 0);
  scripted_result = RUBBISH;
  CHECK_STATUS(tarni_port_reserve(&script, GRANULE, (uint64_t)GRANULE * 2, &address), TARN_DRIVER);
  CHECK_EQ(address, 0);
}

/* A call that is refused does not reach the driver, and tells its numbers. */
static void refused_calls(void) {
  uint64_t output;
  void *pointer;
  n_scripted = 0;
  CHECK_STATUS(tarni_port_create(&script, GRANULE + 1, &output), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "65537");
  CHECK_HAS(tarn_last_message(), "65536");
  CHECK_STATUS(tarni_port_create(&script, 0, &output), TARN_INVALID);
  CHECK_STATUS(tarni_port_reserve(&script, GRANULE, 12, &output), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "12");
  CHECK_STATUS(tarni_port_map(&script, GRANULE + 8, GRANULE, 1), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "0x10008");
  CHECK_STATUS(tarni_port_unmap(&script, UINT64_MAX - GRANULE + 1, (uint64_t)GRANULE * 2),
               TARN_INVALID);
  CHECK_STATUS(tarni_port_host_alloc(&script, 8, 0x40, &pointer), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "0x40");
  CHECK_STATUS(tarni_port_create(NULL, GRANULE, &output), TARN_INVALID);
  CHECK_EQ(n_scripted, 0);
}

static void missing_features(void) {
  uint64_t output = 77;
  void *pointer = &output;
  int descriptor = 77;
  tarni_port bare = {.table = &script_table, .device = {.name = "bare"}};
  n_scripted = 0;
  CHECK_STATUS(tarni_port_reserve(&bare, GRANULE, 0, &output), TARN_UNSUPPORTED);
  CHECK_EQ(output, 0);
  CHECK_STATUS(tarni_port_create(&bare, GRANULE, &output), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_map(&bare, GRANULE, GRANULE, 1), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_pool_create(&bare, 0, &pointer), TARN_UNSUPPORTED);
  CHECK(pointer == NULL);
  CHECK_STATUS(tarni_port_pool_free(&bare, 1, NULL), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_export(&bare, 1, &descriptor), TARN_UNSUPPORTED);
  CHECK(descriptor == -1);
  CHECK_STATUS(tarni_port_import(&bare, 1, &output), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_host_register(&bare, &output, 8), TARN_UNSUPPORTED);
  CHECK_STATUS(tarni_port_host_unregister(&bare, &output), TARN_UNSUPPORTED);
  CHECK_EQ(n_scripted, 0);
}

static void call_under_heap_lock(void) {
  tarni_lock heap = TARNI_LOCK_INIT(TARNI_RANK_HEAP);
  uint64_t id;
  tarni_lock_acquire(&heap);
  (void)tarni_port_stream_id(&script, NULL, &id);
}

static void call_under_driver_lock(void) {
  tarni_lock driver = TARNI_LOCK_INIT(TARNI_RANK_DRIVER);
  uint64_t id;
  tarni_lock_acquire(&driver);
  (void)tarni_port_stream_id(&script, NULL, &id);
  tarni_lock_release(&driver);
}

/* The signal that ends a child which runs the function; 0 when it ends well. */
static int signal_of(void (*run)(void)) {
  (void)fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    (void)close(STDERR_FILENO);
    run();
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    return -1;
  }
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void no_call_under_a_heap_lock(void) {
  if (TARNI_DEBUG_LEVEL < 2) {
    test_skip("locks are looked at in debug level 2 only");
    return;
  }
  CHECK_EQ(signal_of(call_under_heap_lock), SIGABRT);
  CHECK_EQ(signal_of(call_under_driver_lock), 0);
}

/* ---- The registry --------------------------------------------------------------------------- */

static void same_name_same_port(void) {
  tarni_port *first, *second, *third, *other;
  REQUIRE_OK(tarni_port_open("sim", &first));
  REQUIRE_OK(tarni_port_open("sim", &second));
  REQUIRE_OK(tarni_port_open("sim:", &third));
  REQUIRE_OK(tarni_port_open("sim:1G,seed=3", &other));
  CHECK(first == second && first == third);
  CHECK(other != first);
  CHECK_EQ(other->device.total_bytes, 1u << 30);
  /* The first users go; the port stays for the last. */
  tarni_port_close(first);
  tarni_port_close(second);
  uint64_t free_bytes, total_bytes;
  CHECK_OK(tarni_port_info(third, &free_bytes, &total_bytes));
  CHECK(total_bytes > 0);
  tarni_port_close(third);
  tarni_port_close(other);
  tarni_port_close(NULL);
  REQUIRE_OK(tarni_port_open("sim", &first));
  tarni_port_close(first);
}

static void bad_names(void) {
  static const char *const names[] = {
      "",          "gpu",       "cuda:", "cuda:-1", "cuda:1x", "cuda:99",
      "cudaa",     "simm",      "sim0",  "SIM",     " sim",    "cuda:18446744073709551616",
      "sim:bogus", "sim:seed=x"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    tarni_port *port = &script;
    const tarn_status status = tarni_port_open(names[i], &port);
    if (!CHECK(status != TARN_OK && port == NULL)) {
      test_note("opened: '%s'", names[i]);
    }
    CHECK_HAS(tarn_last_message(), "sim");
  }
  char name[600];
  (void)snprintf(name, sizeof(name), "sim:%0590d", 1);
  tarni_port *port;
  CHECK_STATUS(tarni_port_open(name, &port), TARN_INVALID);
}

static void *open_and_close(void *unused) {
  (void)unused;
  uintptr_t n_failed = 0;
  for (int i = 0; i < 200; i++) {
    tarni_port *port;
    if (tarni_port_open(i % 2 == 0 ? "sim:1G" : "sim:2G", &port) != TARN_OK) {
      n_failed++;
      continue;
    }
    n_failed += port->device.total_bytes != (i % 2 == 0 ? 1u << 30 : 2u << 30);
    tarni_port_close(port);
  }
  return (void *)n_failed;
}

static void many_threads_open(void) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, open_and_close, NULL) == 0);
  }
  for (int i = 0; i < 4; i++) {
    void *n_failed = NULL;
    CHECK(pthread_join(threads[i], &n_failed) == 0);
    CHECK(n_failed == NULL);
  }
}

static void open_by_variable(void) {
  tarni_port *port;
  if (setenv("TARN_DEVICE", "sim:3G", 1) != 0 || tarni_port_open(NULL, &port) != TARN_OK) {
    _exit(2);
  }
  _exit(port->device.total_bytes == UINT64_C(3) << 30 ? 0 : 3);
}

static void open_by_bad_variable(void) {
  tarni_port *port;
  (void)setenv("TARN_DEVICE", "nonsense", 1);
  _exit(tarni_port_open(NULL, &port) == TARN_INVALID && port == NULL &&
                strstr(tarn_last_message(), "nonsense") != NULL
            ? 0
            : 4);
}

static void open_with_unknown_variable(void) {
  tarni_port *port;
  (void)setenv("TARN_DEVCE", "sim", 1);
  _exit(tarni_port_open(NULL, &port) == TARN_OPTION && port == NULL &&
                strstr(tarn_last_message(), "TARN_DEVCE") != NULL
            ? 0
            : 5);
}

/* A child can neither use nor harm what its parent has of a simulated GPU. */
static tarni_port *parent_port;
static tarn_ptr parent_block;

static void child_of_sim(void) {
  const bool is_refused =
      tarni_port_fill(parent_port, parent_block, 9, 4096, NULL) == TARN_FORKED &&
      strstr(tarn_last_message(), "fork") != NULL;
  tarni_port_close(parent_port);
  _exit(is_refused ? 0 : 7);
}

static void forked(void) {
  REQUIRE_OK(tarni_port_open("sim:1G,id=77", &parent_port));
  REQUIRE_OK(tarni_port_plain_alloc(parent_port, 4096, &parent_block));
  CHECK_OK(tarni_port_fill_sync(parent_port, parent_block, 7, 4096));
  CHECK_EQ(signal_of(child_of_sim), 0);
  uint8_t bytes[4096];
  CHECK_OK(tarni_port_copy_sync(parent_port, (uintptr_t)bytes, parent_block, sizeof(bytes)));
  CHECK(bytes[0] == 7 && bytes[4095] == 7);
  CHECK_OK(tarni_port_plain_free(parent_port, parent_block));
  tarni_port_close(parent_port);
}

static void open_by_default(void) {
  int n_gpus = 0;
  tarni_port *port;
  (void)unsetenv("TARN_DEVICE");
  const tarn_status status = tarni_port_cuda.count(&n_gpus);
  if (status != TARN_OK) { /* a driver that fails is not replaced by the simulated GPU */
    _exit(tarni_port_open(NULL, &port) == status && port == NULL ? 0 : 6);
  }
  /* A GPU is not used in a forked child: only which one would be is of interest. */
  if (n_gpus > 0) {
    _exit(0);
  }
  _exit(tarni_port_open(NULL, &port) == TARN_OK && strcmp(port->device.name, "sim") == 0 ? 0 : 6);
}

static void default_device(void) {
  CHECK_EQ(signal_of(open_by_variable), 0);
  CHECK_EQ(signal_of(open_by_bad_variable), 0);
  CHECK_EQ(signal_of(open_with_unknown_variable), 0);
  CHECK_EQ(signal_of(open_by_default), 0);
}

static const test_case cases[] = {
    {"port: the device where none is named", default_device},
    {"port: results are passed on", results_are_passed_on},
    {"port: outputs are emptied on failure", outputs_are_emptied},
    {"port: success without a result is a failure", success_without_a_result},
    {"results that cannot be", results_that_cannot_be},
    {"port: refused calls tell their numbers", refused_calls},
    {"port: missing features", missing_features},
    {"port: no call under a lock of the heap", no_call_under_a_heap_lock},
    {"port: the same name is the same port", same_name_same_port},
    {"port: bad names list what exists", bad_names},
    {"port: many threads open and close", many_threads_open},
    {"port: a forked child", forked},
};
TEST_MAIN(cases)
