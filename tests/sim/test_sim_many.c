/* SPDX-License-Identifier: MIT
 *
 * Several threads on the simulated GPU: everything at once on one device, and calls that wait for
 * what another thread must do. Meant for the thread sanitizer, too. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "port/port.h"
#include "support/test.h"
#include "tarn/sim.h"

enum { N_THREADS = 6, N_ROUNDS = 300, BLOCK = 4096, GRANULE = 2 << 20 };

static tarn_device *device;
static tarni_port *port;
static atomic_int n_findings;

static void on_finding(const tarn_sim_finding *finding, void *user) {
  (void)user;
  atomic_fetch_add(&n_findings, 1);
  test_note("found: %s", finding->message);
}

static bool open_device(const char *name) {
  atomic_store(&n_findings, 0);
  const bool is_open = CHECK_OK(tarn_device_open(name, &device));
  port = (tarni_port *)device;
  return is_open && CHECK_OK(tarn_sim_set_on_finding(device, on_finding, NULL));
}

static void close_device(int want_findings) {
  tarn_device_close(device);
  CHECK_EQ(atomic_load(&n_findings), want_findings);
}

static void run_threads(void *(*run)(void *), int n) {
  pthread_t threads[N_THREADS];
  for (int i = 0; i < n; i++) {
    CHECK(pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)(i + 1)) == 0);
  }
  for (int i = 0; i < n; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
}

/* ---- Everything at once ---- */

static void round_of_chunks(uint8_t value, tarn_stream stream) {
  tarn_ptr base;
  tarni_chunk chunk;
  CHECK_OK(tarni_port_reserve(port, GRANULE, 0, &base));
  CHECK_OK(tarni_port_create(port, GRANULE, &chunk));
  CHECK_OK(tarni_port_map(port, base, GRANULE, chunk));
  CHECK_OK(tarni_port_access(port, base, GRANULE));
  CHECK_OK(tarn_sim_own(device, base, BLOCK, value));
  CHECK_OK(tarni_port_fill(port, base, value, BLOCK, stream));
  CHECK_OK(tarni_port_stream_sync(port, stream));
  CHECK_EQ(((const uint8_t *)(uintptr_t)base)[BLOCK - 1], value);
  CHECK_OK(tarni_port_unmap(port, base, GRANULE));
  CHECK_OK(tarni_port_release(port, chunk));
  CHECK_OK(tarni_port_unreserve(port, base, GRANULE));
}

static void round_of_copies(uint8_t value, tarn_stream stream, tarni_pool pool) {
  uint8_t out[256] = {0}, in[256];
  tarn_ptr plain, pooled;
  tarni_event event;
  memset(in, value, sizeof(in));
  CHECK_OK(tarni_port_plain_alloc(port, BLOCK, &plain));
  CHECK_OK(tarni_port_pool_alloc(port, pool, BLOCK, stream, &pooled));
  CHECK_OK(tarni_port_event_create(port, &event));
  CHECK_OK(tarni_port_copy(port, plain, (uintptr_t)in, sizeof(in), stream));
  CHECK_OK(tarni_port_copy(port, pooled, plain, sizeof(in), stream));
  CHECK_OK(tarni_port_copy(port, (uintptr_t)out, pooled, sizeof(out), stream));
  CHECK(memcmp(in, out, sizeof(in)) == 0);
  CHECK_OK(tarni_port_pool_free(port, pooled, stream));
  CHECK_OK(tarni_port_event_record(port, event, stream));
  CHECK_OK(tarni_port_event_sync(port, event));
  CHECK_OK(tarni_port_event_destroy(port, event));
  CHECK_OK(tarni_port_plain_free(port, plain));
}

static void round_of_graphs(uint8_t value, tarn_stream stream) {
  tarn_ptr plain;
  tarni_graph graph;
  tarni_graph_exec exec;
  CHECK_OK(tarni_port_plain_alloc(port, BLOCK, &plain));
  CHECK_OK(tarni_port_capture_begin(port, stream, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_fill(port, plain, value, BLOCK, stream));
  CHECK_OK(tarni_port_capture_end(port, stream, &graph));
  CHECK_OK(tarni_port_graph_instantiate(port, graph, &exec));
  CHECK_OK(tarni_port_graph_launch(port, exec, stream));
  CHECK_OK(tarni_port_graph_launch(port, exec, stream));
  CHECK_OK(tarni_port_graph_destroy(port, graph, exec));
  while (tarni_port_stream_query(port, stream) == TARN_NOT_READY) {
  }
  CHECK_EQ(((const uint8_t *)(uintptr_t)plain)[0], value);
  CHECK_OK(tarni_port_plain_free(port, plain));
}

static void *hammer(void *argument) {
  const uint8_t value = (uint8_t)(uintptr_t)argument;
  tarni_rng rng = {.state = value};
  tarni_pool pool;
  CHECK_OK(tarni_port_pool_create(port, 1 << 20, &pool));
  for (int i = 0; i < N_ROUNDS && !test_case_failed(); i++) {
    tarn_stream stream;
    CHECK_OK(tarni_port_stream_create(port, &stream));
    tarn_stream own = tarni_rng_below(&rng, 3) == 0 ? TARNI_STREAM_PER_THREAD : stream;
    switch (tarni_rng_below(&rng, 3)) {
    case 0:
      round_of_chunks(value, own);
      break;
    case 1:
      round_of_copies(value, own, pool);
      break;
    default:
      round_of_graphs(value, own);
    }
    CHECK_OK(tarni_port_stream_destroy(port, stream));
  }
  CHECK_OK(tarni_port_pool_destroy(port, pool));
  return NULL;
}

static void everything_at_once(void) {
  REQUIRE(open_device("sim:4G,seed=3"));
  run_threads(hammer, N_THREADS);
  tarn_sim_state state = {.size = sizeof(state)};
  CHECK_OK(tarni_port_stream_sync(port, NULL));
  CHECK_OK(tarn_sim_get_state(device, &state));
  CHECK_EQ(state.created_bytes, 0);
  CHECK_EQ(state.mapped_bytes, 0);
  CHECK_EQ(state.pending_operations, 0);
  close_device(0);
}

/* ---- Waiting for another thread ---- */

static uint64_t *word;
static tarn_stream held;
static tarn_ptr shared_block;

static void *open_the_gate(void *argument) {
  (void)argument;
  for (int i = 0; i < 100; i++) {
    (void)sched_yield();
  }
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  return NULL;
}

static void hold_stream(void) {
  void *pinned;
  CHECK_OK(tarni_port_host_alloc(port, BLOCK, 0, &pinned));
  word = pinned;
  *word = 0;
  CHECK_OK(tarni_port_stream_create(port, &held));
  CHECK_OK(tarni_port_plain_alloc(port, BLOCK, &shared_block));
  CHECK_OK(tarni_port_value_wait(port, held, word, 1));
  CHECK_OK(tarni_port_fill(port, shared_block, 7, BLOCK, held));
}

/* A sync that waits sees what was there when it began, not what others add meanwhile. */
static void *sync_held(void *argument) {
  (void)argument;
  CHECK_OK(tarni_port_stream_sync(port, held));
  return NULL;
}

static void sync_sees_no_more_than_was_there(void) {
  pthread_t thread;
  REQUIRE(open_device("sim:1G,order=lazy"));
  tarn_stream other;
  CHECK_OK(tarni_port_stream_create(port, &other));
  hold_stream();
  CHECK(pthread_create(&thread, NULL, sync_held, NULL) == 0);
  tarn_call_counts counts = {.size = sizeof(counts)};
  do { /* until the other thread waits */
    (void)sched_yield();
    CHECK_OK(tarn_device_get_calls(device, &counts));
  } while (counts.calls[TARN_CALL_STREAM_SYNC] == 0);
  CHECK_OK(tarni_port_fill(port, shared_block, 9, 64, held));
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_EQ(((const uint8_t *)(uintptr_t)shared_block)[BLOCK - 1], 7);
  /* The last fill may have been there or not when the sync began. If not, using its bytes is a
   * race; the bytes that only the first fill wrote are no race in either case. */
  CHECK_OK(tarni_port_fill(port, shared_block + 64, 1, 64, other));
  CHECK_EQ(atomic_load(&n_findings), 0);
  CHECK_OK(tarni_port_stream_sync(port, held));
  CHECK_OK(tarni_port_plain_free(port, shared_block));
  CHECK_OK(tarni_port_host_free(port, word));
  CHECK_OK(tarni_port_stream_destroy(port, held));
  CHECK_OK(tarni_port_stream_destroy(port, other));
  close_device(0);
}

/* Two threads free one block: one of them is told. */
static atomic_int n_freed;

static void *free_shared(void *argument) {
  (void)argument;
  const tarn_status status = tarni_port_plain_free(port, shared_block);
  CHECK(status == TARN_OK || status == TARN_INVALID);
  atomic_fetch_add(&n_freed, status == TARN_OK);
  return NULL;
}

static void freed_by_two_threads(void) {
  REQUIRE(open_device("sim:1G,seed=2"));
  pthread_t opener;
  hold_stream();
  atomic_store(&n_freed, 0);
  CHECK(pthread_create(&opener, NULL, open_the_gate, NULL) == 0);
  run_threads(free_shared, 3);
  CHECK(pthread_join(opener, NULL) == 0);
  CHECK_EQ(atomic_load(&n_freed), 1);
  CHECK_OK(tarni_port_host_free(port, word));
  CHECK_OK(tarni_port_stream_destroy(port, held));
  close_device(2);
}

/* A free waits for what was there when it began, though others never stop adding work. */
static atomic_bool is_over;

static void *never_stop(void *argument) {
  (void)argument;
  tarn_stream stream;
  CHECK_OK(tarni_port_stream_create(port, &stream));
  const tarn_sim_kernel nothing = {.size = sizeof(nothing)};
  while (!atomic_load(&is_over)) {
    CHECK_OK(tarn_sim_launch(device, &nothing, stream));
  }
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  return NULL;
}

static void *free_many(void *argument) {
  (void)argument;
  for (int i = 0; i < 50; i++) {
    tarn_ptr block;
    CHECK_OK(tarni_port_plain_alloc(port, 64, &block));
    CHECK_OK(tarni_port_plain_free(port, block));
  }
  atomic_store(&is_over, true);
  return NULL;
}

static void freeing_comes_to_an_end(void) {
  REQUIRE(open_device("sim:1G,seed=9"));
  pthread_t busy;
  atomic_store(&is_over, false);
  CHECK(pthread_create(&busy, NULL, never_stop, NULL) == 0);
  run_threads(free_many, 1);
  CHECK(pthread_join(busy, NULL) == 0);
  close_device(0);
}

/* Devices are opened, used and closed by many threads at once, and wait in one world. */
static void *use_own_device(void *argument) {
  const unsigned index = (unsigned)(uintptr_t)argument;
  for (unsigned i = 0; i < 40; i++) {
    char name[48];
    tarn_device *own;
    tarn_ptr block;
    tarn_stream stream;
    (void)snprintf(name, sizeof(name), "sim:1G,id=%u,seed=%u", index % 3, i % 2 + 1);
    CHECK_OK(tarn_device_open(name, &own));
    tarni_port *own_port = (tarni_port *)own;
    CHECK_OK(tarni_port_stream_create(own_port, &stream));
    CHECK_OK(tarni_port_plain_alloc(own_port, BLOCK, &block));
    CHECK_OK(tarni_port_fill(own_port, block, 3, BLOCK, stream));
    CHECK_OK(tarni_port_stream_sync(own_port, stream));
    CHECK_OK(tarni_port_plain_free(own_port, block));
    CHECK_OK(tarni_port_stream_destroy(own_port, stream));
    tarn_device_close(own);
  }
  return NULL;
}

static void devices_come_and_go(void) {
  run_threads(use_own_device, N_THREADS);
  CHECK(!test_case_failed());
}

static const test_case cases[] = {
    {"everything at once", everything_at_once},
    {"a sync sees no more than was there", sync_sees_no_more_than_was_there},
    {"freed by two threads", freed_by_two_threads},
    {"freeing comes to an end", freeing_comes_to_an_end},
    {"devices come and go", devices_come_and_go},
};

TEST_MAIN(cases)
