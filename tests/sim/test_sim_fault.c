/* SPDX-License-Identifier: MIT
 *
 * Failures of the simulated GPU: one program that makes every call there is, in which each call is
 * made to fail, by the fault plan or for lack of host memory at every place where it needs some. A
 * call that failed has changed nothing, and the same call succeeds afterwards; at the end every
 * byte is right and the oracle has nothing to say. Then the fault plan itself, and errors that
 * stay. */
#include <string.h>
#include <unistd.h>

#include "port/port.h"
#include "port/sim/sim.h"
#include "support/test.h"

enum { BLOCK = 4096 };

static const uint64_t granule = 2 << 20;

typedef struct scene {
  tarn_device *device;
  tarni_port *port;
  tarn_ptr base, plain, pooled;
  tarni_chunk chunk, imported;
  tarni_pool pool;
  void *pinned;
  tarn_stream a, b;
  tarni_event event, other;
  tarni_graph graph;
  tarni_graph_exec exec;
  uint64_t node;
  int descriptor;
} scene;

static uint8_t ordinary[BLOCK];
static uint8_t registered[8192] __attribute__((aligned(4096)));

static uint64_t *word_of(const scene *s) {
  return (uint64_t *)s->pinned + 64;
}

static tarn_status kernel(scene *s, tarn_stream stream) {
  const tarn_sim_range ranges[] = {
      {.address = s->base, .bytes = BLOCK, .is_write = true},
      {.address = s->base + 100, .bytes = 700},
      {.address = s->base + granule - BLOCK, .bytes = (uint64_t)2 * BLOCK, .is_write = true},
  };
  const tarn_sim_kernel work = {.size = sizeof(work), .ranges = ranges, .n_ranges = 3};
  return tarn_sim_launch(s->device, &work, stream);
}

/* ---- The steps: each is one call ---- */

#define STEP(name, expression)                                                                     \
  static tarn_status name(scene *s) {                                                              \
    return expression;                                                                             \
  }

static tarn_status step_info(scene *s) {
  uint64_t free_bytes, total_bytes;
  return tarni_port_info(s->port, &free_bytes, &total_bytes);
}

static tarn_status step_stream_id(scene *s) {
  uint64_t id;
  return tarni_port_stream_id(s->port, TARNI_STREAM_PER_THREAD, &id);
}

static tarn_status step_capture_state(scene *s) {
  tarni_capture_state state;
  return tarni_port_capture_state(s->port, s->a, &state);
}

static tarn_status step_nodes(scene *s) {
  tarni_edge edges[4];
  uint32_t count;
  TARN_TRY(tarni_port_capture_nodes(s->port, s->a, edges, 4, &count));
  s->node = count != 0 ? edges[0].node : 0;
  return TARN_OK;
}

static tarn_status step_before(scene *s) {
  tarni_edge edges[4];
  uint32_t count;
  return tarni_port_node_before(s->port, s->node, edges, 4, &count);
}

STEP(step_reserve, tarni_port_reserve(s->port, 4 * granule, 0, &s->base))
STEP(step_create, tarni_port_create(s->port, 2 * granule, &s->chunk))
STEP(step_map, tarni_port_map(s->port, s->base, 2 * granule, s->chunk))
STEP(step_map_again, tarni_port_map(s->port, s->base + 2 * granule, 2 * granule, s->chunk))
STEP(step_access, tarni_port_access(s->port, s->base, 4 * granule))
STEP(step_plain_alloc, tarni_port_plain_alloc(s->port, BLOCK, &s->plain))
STEP(step_pool_create, tarni_port_pool_create(s->port, 0, &s->pool))
STEP(step_host_alloc, tarni_port_host_alloc(s->port, BLOCK, 0, &s->pinned))
STEP(step_register, tarni_port_host_register(s->port, registered, sizeof(registered)))
STEP(step_stream_a, tarni_port_stream_create(s->port, &s->a))
STEP(step_stream_b, tarni_port_stream_create(s->port, &s->b))
STEP(step_event, tarni_port_event_create(s->port, &s->event))
STEP(step_other, tarni_port_event_create(s->port, &s->other))
STEP(step_pool_alloc, tarni_port_pool_alloc(s->port, s->pool, 5000, s->a, &s->pooled))
STEP(step_fill_pool, tarni_port_fill(s->port, s->pooled, 9, 5000, s->a))
STEP(step_own, tarn_sim_own(s->device, s->base + granule - 7, 20, 5))
STEP(step_disown, tarn_sim_disown(s->device, s->base + granule + BLOCK, 64))
STEP(step_own_again, tarn_sim_own(s->device, s->base, 2 * granule, 6))
STEP(step_fill, tarni_port_fill(s->port, s->base, 3, BLOCK, s->a))
STEP(step_copy_in, tarni_port_copy(s->port, s->base, (uintptr_t)ordinary, BLOCK, s->a))
STEP(step_copy_pinned, tarni_port_copy(s->port, (uintptr_t)s->pinned, s->base, 256, s->a))
STEP(step_copy_registered, tarni_port_copy(s->port, s->base + 64, (uintptr_t)registered, 64, s->a))
STEP(step_kernel, kernel(s, s->a))
STEP(step_record, tarni_port_event_record(s->port, s->event, s->a))
STEP(step_wait, tarni_port_event_wait(s->port, s->b, s->event))
STEP(step_kernel_b, kernel(s, s->b))
STEP(step_value_write, tarni_port_value_write(s->port, s->b, word_of(s), 1))
STEP(step_value_wait, tarni_port_value_wait(s->port, s->a, word_of(s), 1))
STEP(step_kernel_a, kernel(s, s->a))
STEP(step_copy_out, tarni_port_copy(s->port, (uintptr_t)ordinary, s->base + granule, 64, s->a))
STEP(step_event_query, tarni_port_event_query(s->port, s->event))
STEP(step_event_sync, tarni_port_event_sync(s->port, s->event))
STEP(step_stream_query, tarni_port_stream_query(s->port, s->b))
STEP(step_stream_sync, tarni_port_stream_sync(s->port, s->a))
STEP(step_begin, tarni_port_capture_begin(s->port, s->a, TARNI_CAPTURE_THREAD_LOCAL))
STEP(step_fork, tarni_port_event_record(s->port, s->other, s->a))
STEP(step_join, tarni_port_event_wait(s->port, s->b, s->other))
STEP(step_fill_b, tarni_port_fill(s->port, s->plain, 4, BLOCK, s->b))
STEP(step_value_b, tarni_port_value_write(s->port, s->b, word_of(s), 2))
STEP(step_fork_back, tarni_port_event_record(s->port, s->other, s->b))
STEP(step_join_back, tarni_port_event_wait(s->port, s->a, s->other))
STEP(step_end, tarni_port_capture_end(s->port, s->a, &s->graph))
STEP(step_instantiate, tarni_port_graph_instantiate(s->port, s->graph, &s->exec))
STEP(step_launch, tarni_port_graph_launch(s->port, s->exec, s->a))
STEP(step_record_launch, tarni_port_event_record(s->port, s->other, s->a))
STEP(step_wait_launch, tarni_port_event_wait(s->port, s->b, s->other))
STEP(step_launch_b, tarni_port_graph_launch(s->port, s->exec, s->b))
STEP(step_export, tarni_port_export(s->port, s->chunk, &s->descriptor))
STEP(step_import, tarni_port_import(s->port, s->descriptor, &s->imported))
STEP(step_pool_free, tarni_port_pool_free(s->port, s->pooled, s->a))
STEP(step_pool_trim, tarni_port_pool_trim(s->port, s->pool, 0))
STEP(step_pool_destroy, tarni_port_pool_destroy(s->port, s->pool))
STEP(step_copy_sync, tarni_port_copy_sync(s->port, (uintptr_t)ordinary, s->plain, BLOCK))
STEP(step_fill_sync, tarni_port_fill_sync(s->port, s->plain, 8, 16))
STEP(step_legacy, tarni_port_fill(s->port, s->plain, 7, 16, NULL))
STEP(step_thread, tarni_port_fill(s->port, s->plain, 6, 16, TARNI_STREAM_PER_THREAD))
STEP(step_sync_b, tarni_port_stream_sync(s->port, s->b))
STEP(step_sync_legacy, tarni_port_stream_sync(s->port, NULL))
STEP(step_graph_destroy, tarni_port_graph_destroy(s->port, s->graph, s->exec))
STEP(step_unregister, tarni_port_host_unregister(s->port, registered))
STEP(step_host_free, tarni_port_host_free(s->port, s->pinned))
STEP(step_plain_free, tarni_port_plain_free(s->port, s->plain))
STEP(step_unmap, tarni_port_unmap(s->port, s->base, 4 * granule))
STEP(step_release, tarni_port_release(s->port, s->chunk))
STEP(step_release_import, tarni_port_release(s->port, s->imported))
STEP(step_unreserve, tarni_port_unreserve(s->port, s->base, 4 * granule))
STEP(step_event_destroy, tarni_port_event_destroy(s->port, s->event))
STEP(step_other_destroy, tarni_port_event_destroy(s->port, s->other))
STEP(step_destroy_a, tarni_port_stream_destroy(s->port, s->a))
STEP(step_destroy_b, tarni_port_stream_destroy(s->port, s->b))

typedef struct scene_step {
  tarn_status (*act)(scene *s);
  const char *name;
} scene_step;

#define ROW(name)                                                                                  \
  { name, #name }
static const scene_step steps[] = {
    ROW(step_info),          ROW(step_reserve),
    ROW(step_create),        ROW(step_map),
    ROW(step_map_again),     ROW(step_access),
    ROW(step_plain_alloc),   ROW(step_pool_create),
    ROW(step_host_alloc),    ROW(step_register),
    ROW(step_stream_a),      ROW(step_stream_b),
    ROW(step_stream_id),     ROW(step_event),
    ROW(step_other),         ROW(step_pool_alloc),
    ROW(step_fill_pool),     ROW(step_own),
    ROW(step_disown),        ROW(step_own_again),
    ROW(step_fill),          ROW(step_copy_in),
    ROW(step_copy_pinned),   ROW(step_copy_registered),
    ROW(step_kernel),        ROW(step_record),
    ROW(step_wait),          ROW(step_kernel_b),
    ROW(step_value_write),   ROW(step_value_wait),
    ROW(step_kernel_a),      ROW(step_copy_out),
    ROW(step_event_query),   ROW(step_event_sync),
    ROW(step_stream_query),  ROW(step_stream_sync),
    ROW(step_begin),         ROW(step_capture_state),
    ROW(step_kernel),        ROW(step_copy_pinned),
    ROW(step_fork),          ROW(step_join),
    ROW(step_fill_b),        ROW(step_value_b),
    ROW(step_fork_back),     ROW(step_join_back),
    ROW(step_kernel_a),      ROW(step_nodes),
    ROW(step_before),        ROW(step_end),
    ROW(step_instantiate),   ROW(step_launch),
    ROW(step_record_launch), ROW(step_wait_launch),
    ROW(step_launch_b),      ROW(step_sync_b),
    ROW(step_export),        ROW(step_import),
    ROW(step_pool_free),     ROW(step_pool_alloc),
    ROW(step_pool_free),     ROW(step_stream_sync),
    ROW(step_pool_trim),     ROW(step_pool_destroy),
    ROW(step_copy_sync),     ROW(step_fill_sync),
    ROW(step_legacy),        ROW(step_thread),
    ROW(step_legacy),        ROW(step_sync_legacy),
    ROW(step_stream_sync),   ROW(step_sync_b),
    ROW(step_graph_destroy), ROW(step_unregister),
    ROW(step_fill_b),        ROW(step_host_free),
    ROW(step_plain_free),    ROW(step_unmap),
    ROW(step_release),       ROW(step_release_import),
    ROW(step_unreserve),     ROW(step_event_destroy),
    ROW(step_other_destroy), ROW(step_destroy_a),
    ROW(step_destroy_b),
};
enum { N_STEPS = sizeof(steps) / sizeof(steps[0]) };

/* ---- Making them fail ---- */

static void on_finding(const tarn_sim_finding *finding, void *user) {
  int *n = user;
  ++*n;
  test_note("found: %s", finding->message);
}

static bool scene_open(scene *s, const char *name, int *n_findings) {
  *s = (scene){.descriptor = -1};
  *n_findings = 0;
  if (!CHECK_OK(tarn_device_open(name, &s->device))) {
    return false;
  }
  s->port = (tarni_port *)s->device;
  return CHECK_OK(tarn_sim_set_on_finding(s->device, on_finding, n_findings));
}

static void scene_close(scene *s, const int *n_findings) {
  (void)close(s->descriptor);
  tarn_device_close(s->device);
  CHECK_EQ(*n_findings, 0);
}

/* Asks again while the answer is «not ready». */
static tarn_status act(scene *s, const scene_step *step) {
  tarn_status status;
  do {
    status = step->act(s);
  } while (status == TARN_NOT_READY);
  return status;
}

/* What a failed call must leave as it was. Bytes that exist may be fewer: a pool was trimmed. */
static void check_unchanged(const scene *s, const scene *before, const tarn_sim_state *state) {
  tarn_sim_state now = {.size = sizeof(now)};
  CHECK_OK(tarn_sim_get_state(s->device, &now));
  CHECK_EQ(now.operations, state->operations);
  CHECK_EQ(now.created_bytes, state->created_bytes);
  CHECK_EQ(now.peak_bytes, state->peak_bytes);
  CHECK_EQ(now.mapped_bytes, state->mapped_bytes);
  scene empty = *before; /* a failed call has emptied its own output and no other */
  scene after = *s;
  const unsigned char *a = (const unsigned char *)&after, *b = (const unsigned char *)&empty;
  uint64_t n_other = 0;
  for (size_t i = 0; i < sizeof(after); i++) {
    n_other += a[i] != b[i] && a[i] != 0 && a[i] != 0xff;
  }
  CHECK_EQ(n_other, 0);
}

/* Lets the step fail for lack of host memory, at its first need, its second, ... until none is left
 * to fail. */
static uint64_t fail_for_memory(scene *s, const scene_step *step) {
  for (uint64_t nth = 1;; nth++) {
    tarn_sim_state state = {.size = sizeof(state)};
    CHECK_OK(tarn_sim_get_state(s->device, &state));
    const scene before = *s;
    tarni_sim_store_fail(nth);
    const tarn_status status = act(s, step);
    const bool has_failed = tarni_sim_store_has_failed();
    tarni_sim_store_fail(0);
    if (!has_failed) {
      CHECK_OK(status);
      return nth - 1;
    }
    if (status == TARN_OK || test_case_failed()) { /* it could do without */
      return nth;
    }
    CHECK(status == TARN_HOST_MEMORY || status == TARN_ADDRESS_SPACE);
    check_unchanged(s, &before, &state);
  }
}

static void run_without_memory(const char *name) {
  scene s;
  int n_findings;
  uint64_t n_failures = 0;
  if (!scene_open(&s, name, &n_findings)) {
    return;
  }
  for (unsigned i = 0; i < N_STEPS && !test_case_failed(); i++) {
    n_failures += fail_for_memory(&s, &steps[i]);
    if (test_case_failed()) {
      test_note("step %u, %s, on %s", i, steps[i].name, name);
    }
  }
  scene_close(&s, &n_findings);
  CHECK(n_failures > 100);
}

static const char *const devices[] = {"sim:1G,seed=1", "sim:1G,order=lazy", "sim:1G,order=eager",
                                      "sim:1G,seed=2"};
enum { N_DEVICES = sizeof(devices) / sizeof(devices[0]) };

static void every_need_of_memory_fails(void) {
  for (unsigned i = 0; i < N_DEVICES; i++) {
    run_without_memory(devices[i]);
  }
}

/* Streams are made until their slots need room, too: what a stream that was not made leaves behind
 * harms nobody who waits for the device, nor its end. */
static void streams_without_memory(void) {
  enum { MANY = 100 };
  tarn_device *device = NULL;
  tarn_stream streams[MANY];
  tarn_ptr block;
  REQUIRE_OK(tarn_device_open("sim:1G", &device));
  tarni_port *port = (tarni_port *)device;
  for (int i = 0; i < MANY; i++) {
    tarn_status status = TARN_HOST_MEMORY;
    for (uint64_t nth = 1; status != TARN_OK; nth++) {
      tarni_sim_store_fail(nth);
      status = tarni_port_stream_create(port, &streams[i]);
      tarni_sim_store_fail(0);
      REQUIRE(nth < 100 && (status == TARN_OK || status == TARN_HOST_MEMORY));
      REQUIRE_OK(tarni_port_plain_alloc(port, 4096, &block));
      REQUIRE_OK(tarni_port_plain_free(port, block));
    }
  }
  for (int i = 0; i < MANY; i++) {
    CHECK_OK(tarni_port_stream_destroy(port, streams[i]));
  }
  tarn_device_close(device);
}

static void opening_without_memory(void) {
  for (uint64_t nth = 1;; nth++) {
    tarn_device *device;
    tarni_sim_store_fail(nth);
    const tarn_status status = tarn_device_open("sim:1G,seed=77", &device);
    const bool has_failed = tarni_sim_store_has_failed();
    tarni_sim_store_fail(0);
    if (!has_failed) {
      CHECK_OK(status);
      CHECK(nth > 3);
      tarn_device_close(device);
      return;
    }
    CHECK_STATUS(status, TARN_HOST_MEMORY);
    CHECK(device == NULL);
  }
}

/* Whether the step is a driver call: owners and kernels are not. */
static bool is_driver_call(const scene_step *step) {
  return strstr(step->name, "own") == NULL && strstr(step->name, "kernel") == NULL;
}

static void run_with_fault(const char *name, int code, tarn_status want) {
  scene s;
  int n_findings;
  uint64_t n_failed = 0, n_expected = 0;
  if (!scene_open(&s, name, &n_findings)) {
    return;
  }
  for (unsigned i = 0; i < N_STEPS && !test_case_failed(); i++) {
    tarn_sim_state state = {.size = sizeof(state)};
    CHECK_OK(tarn_sim_get_state(s.device, &state));
    const scene before = s;
    CHECK_OK(tarn_sim_fail(s.device, TARN_CALL_COUNT, 1, 2, code));
    if (is_driver_call(&steps[i])) {
      CHECK_STATUS(steps[i].act(&s), want);
      CHECK_STATUS(steps[i].act(&s), want);
      check_unchanged(&s, &before, &state);
      n_expected += 2;
    }
    CHECK_OK(act(&s, &steps[i]));
    if (test_case_failed()) {
      test_note("step %u, %s, on %s", i, steps[i].name, name);
    }
  }
  CHECK_OK(tarn_sim_failed(s.device, &n_failed));
  CHECK_EQ(n_failed, n_expected);
  CHECK_OK(tarn_sim_fail(s.device, TARN_CALL_COUNT, 0, 0, 0));
  scene_close(&s, &n_findings);
}

static void every_call_fails_by_the_plan(void) {
  for (unsigned i = 0; i < N_DEVICES; i++) {
    run_with_fault(devices[i], 999, TARN_DRIVER);
    run_with_fault(devices[i], 1, TARN_INVALID);
  }
}

/* The n-th call of the whole program fails once, for every n; the step is tried again. */
static uint64_t run_with_nth(uint64_t nth) {
  scene s;
  int n_findings;
  uint64_t n_failed = 0;
  if (!scene_open(&s, "sim:1G,seed=4", &n_findings)) {
    return 0;
  }
  CHECK_OK(tarn_sim_fail(s.device, TARN_CALL_COUNT, nth, 1, 999));
  for (unsigned i = 0; i < N_STEPS && !test_case_failed(); i++) {
    tarn_status status = act(&s, &steps[i]);
    if (status == TARN_DRIVER) {
      n_failed++;
      status = act(&s, &steps[i]);
    }
    CHECK_OK(status);
  }
  CHECK_OK(tarn_sim_fail(s.device, TARN_CALL_COUNT, 0, 0, 0));
  scene_close(&s, &n_findings);
  return n_failed;
}

static void every_nth_call_fails(void) {
  uint64_t nth = 1;
  while (run_with_nth(nth) == 1 && !test_case_failed()) {
    nth++;
  }
  CHECK(nth >= 70);
}

/* ---- The plan ---- */

static void kinds_and_times(void) {
  tarn_device *device;
  tarn_stream stream;
  tarni_event event;
  uint64_t id, n;
  REQUIRE_OK(tarn_device_open("sim:1G,id=1", &device));
  tarni_port *port = (tarni_port *)device;
  REQUIRE_OK(tarni_port_stream_create(port, &stream));
  /* The third of a kind, twice; other kinds pass. */
  CHECK_OK(tarn_sim_fail(device, TARN_CALL_STREAM_ID, 3, 2, 999));
  const tarn_status want[] = {TARN_OK, TARN_OK, TARN_DRIVER, TARN_DRIVER, TARN_OK, TARN_OK};
  for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
    CHECK_STATUS(tarni_port_stream_id(port, stream, &id), want[i]);
    CHECK_EQ(id != 0, want[i] == TARN_OK);
    CHECK_OK(tarni_port_stream_query(port, stream));
  }
  CHECK_OK(tarn_sim_failed(device, &n));
  CHECK_EQ(n, 2);
  /* For good, until the plan ends. */
  CHECK_OK(tarn_sim_fail(device, TARN_CALL_EVENT_CREATE, 1, 0, 0));
  for (int i = 0; i < 5; i++) {
    CHECK_STATUS(tarni_port_event_create(port, &event), TARN_DEVICE_MEMORY);
    CHECK(event == NULL);
  }
  CHECK_OK(tarn_sim_fail(device, TARN_CALL_EVENT_CREATE, 0, 0, 0));
  CHECK_OK(tarni_port_event_create(port, &event));
  CHECK_OK(tarni_port_event_destroy(port, event));
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  CHECK_STATUS(tarn_sim_fail(device, (tarn_call)(TARN_CALL_COUNT + 1), 1, 1, 0), TARN_INVALID);
  CHECK_STATUS(tarn_sim_fail(device, (tarn_call)-1, 1, 1, 0), TARN_INVALID);
  CHECK_STATUS(tarn_sim_failed(device, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_sim_fail(device, TARN_CALL_CREATE, 1, 1, 600), TARN_INVALID);
  CHECK_HAS(tarn_last_message(), "not to create");
  CHECK_STATUS(tarn_sim_fail(device, TARN_CALL_COUNT, 1, 1, 600), TARN_INVALID);
  tarn_device_close(device);
}

/* A code means what it means on the cuda port. */
static void codes(void) {
  static const struct {
    int code;
    tarn_call call;
    tarn_status want;
  } rows[] = {
      {2, TARN_CALL_CREATE, TARN_DEVICE_MEMORY},    {2, TARN_CALL_RESERVE, TARN_ADDRESS_SPACE},
      {2, TARN_CALL_HOST_ALLOC, TARN_HOST_MEMORY},  {1, TARN_CALL_CREATE, TARN_INVALID},
      {801, TARN_CALL_CREATE, TARN_UNSUPPORTED},    {401, TARN_CALL_CREATE, TARN_STATE},
      {600, TARN_CALL_EVENT_QUERY, TARN_NOT_READY}, {900, TARN_CALL_CREATE, TARN_CAPTURE},
      {304, TARN_CALL_CREATE, TARN_DRIVER},         {700, TARN_CALL_CREATE, TARN_DEVICE_LOST},
  };
  tarn_device *device;
  tarni_event event;
  REQUIRE_OK(tarn_device_open("sim:1G,id=2", &device));
  tarni_port *port = (tarni_port *)device;
  REQUIRE_OK(tarni_port_event_create(port, &event));
  for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    tarni_chunk chunk;
    tarn_ptr address;
    void *pinned;
    CHECK_OK(tarn_sim_fail(device, rows[i].call, 1, 1, rows[i].code));
    const tarn_status status =
        rows[i].call == TARN_CALL_CREATE        ? tarni_port_create(port, granule, &chunk)
        : rows[i].call == TARN_CALL_RESERVE     ? tarni_port_reserve(port, granule, 0, &address)
        : rows[i].call == TARN_CALL_EVENT_QUERY ? tarni_port_event_query(port, event)
                                                : tarni_port_host_alloc(port, 64, 0, &pinned);
    CHECK_STATUS(status, rows[i].want);
    if (status != TARN_NOT_READY) {
      tarn_error error = {.size = sizeof(error)};
      CHECK_EQ(tarn_last_error(&error), rows[i].want);
      CHECK_EQ(error.driver_code, rows[i].code);
      CHECK(error.driver_name[0] != '\0' && error.device[0] != '\0');
    }
  }
  tarn_device_close(device);
}

/* So does one that breaks the device, for good. */
static void codes_that_break(void) {
  static const int broken[] = {214, 220, 226, 702, 719, 721, 911};
  for (unsigned i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
    tarn_device *device;
    tarni_chunk chunk;
    REQUIRE_OK(tarn_device_open("sim:1G,id=3", &device));
    tarni_port *port = (tarni_port *)device;
    CHECK_OK(tarn_sim_fail(device, TARN_CALL_CREATE, 1, 1, broken[i]));
    CHECK_STATUS(tarni_port_create(port, granule, &chunk), TARN_DEVICE_LOST);
    CHECK_STATUS(tarni_port_create(port, granule, &chunk), TARN_DEVICE_LOST);
    tarn_device_close(device);
  }
}

/* An error that breaks the device stays: nothing works, nothing changes, closing is all there is.
 */
static void broken_for_good(void) {
  tarn_device *device, *other;
  tarn_stream stream, stream_of_other;
  tarn_ptr block;
  int n_findings = 0;
  REQUIRE_OK(tarn_device_open("sim:1G,id=3", &device));
  REQUIRE_OK(tarn_device_open("sim:1G,id=4", &other));
  tarni_port *port = (tarni_port *)device;
  CHECK_OK(tarn_sim_set_on_finding(device, on_finding, &n_findings));
  CHECK_OK(tarni_port_stream_create(port, &stream));
  CHECK_OK(tarni_port_plain_alloc(port, 4096, &block));
  CHECK_OK(tarn_sim_fail(device, TARN_CALL_FILL, 1, 1, 719));
  CHECK_STATUS(tarni_port_fill(port, block, 1, 16, stream), TARN_DEVICE_LOST);
  for (int i = 0; i < 2; i++) {
    tarni_chunk chunk;
    CHECK_STATUS(tarni_port_fill(port, block, 1, 16, stream), TARN_DEVICE_LOST);
    CHECK_STATUS(tarni_port_create(port, granule, &chunk), TARN_DEVICE_LOST);
    CHECK_STATUS(tarni_port_plain_free(port, block), TARN_DEVICE_LOST);
    CHECK_STATUS(tarni_port_stream_sync(port, stream), TARN_DEVICE_LOST);
    CHECK_STATUS(tarni_port_stream_destroy(port, stream), TARN_DEVICE_LOST);
    const tarn_sim_kernel nothing = {.size = sizeof(nothing)};
    CHECK_STATUS(tarn_sim_launch(device, &nothing, stream), TARN_DEVICE_LOST);
  }
  /* Another device is not concerned. */
  CHECK_OK(tarni_port_stream_create((tarni_port *)other, &stream_of_other));
  CHECK_OK(tarni_port_stream_destroy((tarni_port *)other, stream_of_other));
  tarn_device_close(other);
  tarn_device_close(device);
  CHECK_EQ(n_findings, 0); /* what could not be given back is no leak */
}

static const test_case cases[] = {
    {"every need of memory fails", every_need_of_memory_fails},
    {"opening without memory", opening_without_memory},
    {"streams without memory", streams_without_memory},
    {"every call fails by the plan", every_call_fails_by_the_plan},
    {"every n-th call fails", every_nth_call_fails},
    {"plan: kinds and times", kinds_and_times},
    {"plan: codes", codes},
    {"codes that break the device", codes_that_break},
    {"broken for good", broken_for_good},
};

TEST_MAIN(cases)
