/* SPDX-License-Identifier: MIT
 *
 * The support of the conformance suite. Owns the page of words that the gates wait on and the
 * watchdog thread. Lock: gate_mutex, over the list of gates; the words themselves are atomic. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "conform/conform.h"
#include "tarn/sim.h"

enum { N_GATES = 4096, GATE_PATIENCE_S = 20, WATCHDOG_PERIOD_US = 20000 };

struct conform_gate {
  _Atomic uint64_t *word; /* 0: closed, 1: open */
  time_t deadline;        /* by the watchdog's clock */
  pthread_t opener;
  unsigned delay_ms;
  bool is_expired; /* the watchdog opened it */
};

tarni_port *conform_port;
uint8_t *conform_pinned_a;
uint8_t *conform_pinned_b;

static pthread_mutex_t gate_mutex = PTHREAD_MUTEX_INITIALIZER;
static conform_gate gates[N_GATES];
static size_t n_gates;
static void *gate_words;
static bool must_stop;
static pthread_t watchdog;

/* ---- Device --------------------------------------------------------------------------------- */

bool conform_is_sim(void) {
  return conform_port->device.is_simulated;
}

uint64_t conform_granule(void) {
  return conform_port->device.granularity_bytes;
}

static tarn_device *sim_device(void) {
  return (tarn_device *)conform_port;
}

uint64_t conform_findings(void) {
  uint64_t count = 0;
  if (conform_is_sim() && tarn_sim_finding_count(sim_device(), &count) != TARN_OK) {
    return UINT64_MAX;
  }
  for (size_t i = 0; i < count && i < 8; i++) {
    tarn_sim_finding finding = {.size = sizeof(finding)};
    if (tarn_sim_finding_get(sim_device(), i, &finding) == TARN_OK) {
      test_note("finding: %s", finding.message);
    }
  }
  return count;
}

void conform_forgive(void) {
  if (conform_is_sim()) {
    (void)tarn_sim_finding_clear(sim_device());
  }
}

bool conform_fails(tarn_status status) {
  return status != TARN_OK && tarn_last_error(NULL) == status && tarn_last_message()[0] != '\0';
}

uint64_t conform_free_bytes(void) {
  uint64_t free_bytes, total_bytes;
  return tarni_port_info(conform_port, &free_bytes, &total_bytes) == TARN_OK ? free_bytes
                                                                             : UINT64_MAX;
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

static uint8_t pattern_byte(uint64_t i, uint64_t seed) {
  const uint64_t mixed = (i + seed * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  return (uint8_t)(mixed >> 56);
}

void conform_pattern(void *bytes, uint64_t size, uint64_t seed) {
  uint8_t *out = bytes;
  for (uint64_t i = 0; i < size; i++) {
    out[i] = pattern_byte(i, seed);
  }
}

uint64_t conform_differ(const void *bytes, uint64_t size, uint64_t seed) {
  const uint8_t *in = bytes;
  uint64_t n_wrong = 0;
  for (uint64_t i = 0; i < size; i++) {
    n_wrong += in[i] != pattern_byte(i, seed);
  }
  return n_wrong;
}

uint64_t conform_differ_value(const void *bytes, uint64_t size, uint8_t value) {
  const uint8_t *in = bytes;
  uint64_t n_wrong = 0;
  for (uint64_t i = 0; i < size; i++) {
    n_wrong += in[i] != value;
  }
  return n_wrong;
}

/* A copy of device memory in host memory; NULL when it cannot be had. */
static uint8_t *fetch_bytes(tarn_ptr address, uint64_t size) {
  uint8_t *bytes = malloc(size);
  if (bytes != NULL &&
      tarni_port_copy_sync(conform_port, (uintptr_t)bytes, address, size) != TARN_OK) {
    test_note("reading back %llu bytes: %s", (unsigned long long)size, tarn_last_message());
    free(bytes);
    return NULL;
  }
  return bytes;
}

uint64_t conform_device_differ(tarn_ptr address, uint64_t size, uint64_t seed) {
  uint8_t *bytes = fetch_bytes(address, size);
  const uint64_t n_wrong = bytes != NULL ? conform_differ(bytes, size, seed) : UINT64_MAX;
  free(bytes);
  return n_wrong;
}

uint64_t conform_device_differ_value(tarn_ptr address, uint64_t size, uint8_t value) {
  uint8_t *bytes = fetch_bytes(address, size);
  const uint64_t n_wrong = bytes != NULL ? conform_differ_value(bytes, size, value) : UINT64_MAX;
  free(bytes);
  return n_wrong;
}

tarn_status conform_device_pattern(tarn_ptr address, uint64_t size, uint64_t seed) {
  uint8_t *bytes = malloc(size);
  if (bytes == NULL) {
    return TARN_HOST_MEMORY;
  }
  conform_pattern(bytes, size, seed);
  const tarn_status status = tarni_port_copy_sync(conform_port, address, (uintptr_t)bytes, size);
  free(bytes);
  return status;
}

/* ---- Mapped memory -------------------------------------------------------------------------- */

tarn_status conform_map(uint64_t size, conform_mapping *mapping) {
  *mapping = (conform_mapping){.size = size};
  TARN_TRY(tarni_port_reserve(conform_port, size, 0, &mapping->address));
  TARN_TRY(tarni_port_create(conform_port, size, &mapping->chunk));
  TARN_TRY(tarni_port_map(conform_port, mapping->address, size, mapping->chunk));
  return tarni_port_access(conform_port, mapping->address, size);
}

tarn_status conform_unmap(const conform_mapping *mapping) {
  TARN_TRY(tarni_port_unmap(conform_port, mapping->address, mapping->size));
  TARN_TRY(tarni_port_release(conform_port, mapping->chunk));
  return tarni_port_unreserve(conform_port, mapping->address, mapping->size);
}

/* ---- Gates ---------------------------------------------------------------------------------- */

static time_t watchdog_clock(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

static void *watch_gates(void *unused) {
  (void)unused;
  bool is_over = false;
  while (!is_over) {
    (void)usleep(WATCHDOG_PERIOD_US);
    const time_t now = watchdog_clock();
    pthread_mutex_lock(&gate_mutex);
    is_over = must_stop;
    for (size_t i = 0; i < n_gates; i++) {
      if (atomic_load(gates[i].word) == 0 && now > gates[i].deadline) {
        gates[i].is_expired = true;
        atomic_store(gates[i].word, 1);
        test_note("a gate was not opened within %d s", GATE_PATIENCE_S);
      }
    }
    pthread_mutex_unlock(&gate_mutex);
  }
  return NULL;
}

conform_gate *conform_gate_close(tarn_stream stream) {
  conform_gate *gate = NULL;
  pthread_mutex_lock(&gate_mutex);
  if (n_gates < N_GATES) {
    gate = &gates[n_gates];
    gate->word = (_Atomic uint64_t *)gate_words + n_gates;
    gate->deadline = watchdog_clock() + GATE_PATIENCE_S;
    atomic_store(gate->word, 0);
    n_gates++;
  }
  pthread_mutex_unlock(&gate_mutex);
  if (gate == NULL) {
    test_note("no gate is left: raise N_GATES");
    return NULL;
  }
  const uint64_t *word = (const uint64_t *)gate_words + (gate - gates);
  if (tarni_port_value_wait(conform_port, stream, word, 1) != TARN_OK) {
    test_note("a gate cannot be closed: %s", tarn_last_message());
    atomic_store(gate->word, 1);
    return NULL;
  }
  return gate;
}

bool conform_gate_open(conform_gate *gate) {
  if (gate == NULL) {
    return false;
  }
  pthread_mutex_lock(&gate_mutex);
  const bool was_in_time = !gate->is_expired;
  atomic_store(gate->word, 1);
  pthread_mutex_unlock(&gate_mutex);
  return was_in_time;
}

bool conform_gate_is_open(conform_gate *gate) {
  return gate == NULL || atomic_load(gate->word) != 0;
}

static void *open_gate_later(void *argument) {
  conform_gate *gate = argument;
  (void)usleep(gate->delay_ms * 1000u);
  (void)conform_gate_open(gate);
  return NULL;
}

void conform_gate_open_later(conform_gate *gate, unsigned milliseconds) {
  if (gate == NULL) {
    return;
  }
  gate->delay_ms = milliseconds;
  if (pthread_create(&gate->opener, NULL, open_gate_later, gate) != 0) {
    abort();
  }
}

bool conform_gate_join(conform_gate *gate) {
  if (gate == NULL) {
    return false;
  }
  (void)pthread_join(gate->opener, NULL);
  return !gate->is_expired;
}

/* ---- Threads -------------------------------------------------------------------------------- */

typedef struct thread_call {
  tarn_status (*run)(void *);
  void *argument;
  tarn_status status;
} thread_call;

static void *run_thread_call(void *argument) {
  thread_call *call = argument;
  call->status = call->run(call->argument);
  return NULL;
}

tarn_status conform_on_thread(tarn_status (*run)(void *), void *argument) {
  thread_call call = {run, argument, TARN_OK};
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_thread_call, &call) != 0) {
    abort();
  }
  (void)pthread_join(thread, NULL);
  return call.status;
}

/* ---- Start and stop ------------------------------------------------------------------------- */

/* Each kind of work once: a driver that loads its code late may wait for the whole device when it
 * does, and a case that holds a stream would wait with it. */
static tarn_status warm_up(void) {
  tarn_stream stream;
  tarn_ptr block;
  tarni_graph graph;
  tarni_graph_exec exec;
  const tarn_ptr pinned = (uintptr_t)conform_pinned_a;
  TARN_TRY(tarni_port_stream_create(conform_port, &stream));
  TARN_TRY(tarni_port_plain_alloc(conform_port, 65536, &block));
  TARN_TRY(tarni_port_fill(conform_port, block, 1, 65536, stream));
  TARN_TRY(tarni_port_fill(conform_port, block + 1, 1, 4097, stream));
  TARN_TRY(tarni_port_copy(conform_port, block, block + 32768, 32768, stream));
  TARN_TRY(tarni_port_capture_begin(conform_port, stream, TARNI_CAPTURE_RELAXED));
  TARN_TRY(tarni_port_fill(conform_port, block, 2, 4096, stream));
  TARN_TRY(tarni_port_copy(conform_port, pinned, block, 4096, stream));
  TARN_TRY(tarni_port_capture_end(conform_port, stream, &graph));
  TARN_TRY(tarni_port_graph_instantiate(conform_port, graph, &exec));
  TARN_TRY(tarni_port_graph_launch(conform_port, exec, stream));
  TARN_TRY(tarni_port_stream_sync(conform_port, stream));
  TARN_TRY(tarni_port_graph_destroy(conform_port, graph, exec));
  TARN_TRY(tarni_port_plain_free(conform_port, block));
  return tarni_port_stream_destroy(conform_port, stream);
}

bool conform_start(tarni_port *port) {
  conform_port = port;
  void *pinned = NULL;
  const uint64_t size = N_GATES * sizeof(uint64_t) + 2 * (uint64_t)CONFORM_PINNED_BYTES;
  if (tarni_port_host_alloc(port, size, 0, &pinned) != TARN_OK) {
    return false;
  }
  memset(pinned, 0, size);
  gate_words = pinned;
  conform_pinned_a = (uint8_t *)pinned + N_GATES * sizeof(uint64_t);
  conform_pinned_b = conform_pinned_a + CONFORM_PINNED_BYTES;
  return warm_up() == TARN_OK && pthread_create(&watchdog, NULL, watch_gates, NULL) == 0;
}

static void count_finding(const tarn_sim_finding *finding, void *count) {
  printf("# finding: %s\n", finding->message);
  ++*(uint64_t *)count;
}

uint64_t conform_stop(void) {
  static uint64_t n_findings;
  pthread_mutex_lock(&gate_mutex);
  must_stop = true;
  pthread_mutex_unlock(&gate_mutex);
  (void)pthread_join(watchdog, NULL);
  if (conform_is_sim()) {
    (void)tarn_sim_set_on_finding(sim_device(), count_finding, &n_findings);
  }
  n_findings += tarni_port_host_free(conform_port, gate_words) != TARN_OK;
  tarni_port_close(conform_port);
  return n_findings;
}
