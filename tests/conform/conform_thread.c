/* SPDX-License-Identifier: MIT
 *
 * Conformance: every entry may be called from any thread. */
#include <pthread.h>

#include "base/error.h"
#include "conform/conform.h"

enum { N_THREADS = 8, N_ROUNDS = 20, WORKER_BYTES = 4096 };

typedef struct worker {
  pthread_t thread;
  uint64_t seed;
  uint64_t n_wrong;
  tarn_status status;
} worker;

/* Chunks, events, plain and pinned memory, all its own. */
static tarn_status work_round(worker *me, tarn_stream stream, uint64_t round) {
  conform_mapping mapping;
  tarni_event event;
  void *host;
  const uint64_t seed = me->seed * N_ROUNDS + round;
  TARN_TRY(conform_map(conform_granule(), &mapping));
  TARN_TRY(tarni_port_host_alloc(conform_port, (uint64_t)WORKER_BYTES * 2, 0, &host));
  TARN_TRY(tarni_port_event_create(conform_port, &event));
  uint8_t *bytes = host;
  conform_pattern(bytes, WORKER_BYTES, seed);
  TARN_TRY(tarni_port_copy(conform_port, mapping.address, (uintptr_t)bytes, WORKER_BYTES, stream));
  TARN_TRY(tarni_port_copy(conform_port, (uintptr_t)bytes + WORKER_BYTES, mapping.address,
                           WORKER_BYTES, stream));
  TARN_TRY(tarni_port_event_record(conform_port, event, stream));
  TARN_TRY(tarni_port_event_sync(conform_port, event));
  me->n_wrong += conform_differ(bytes + WORKER_BYTES, WORKER_BYTES, seed);
  TARN_TRY(tarni_port_event_destroy(conform_port, event));
  TARN_TRY(tarni_port_host_free(conform_port, host));
  return conform_unmap(&mapping);
}

static tarn_status work_rounds(worker *me) {
  tarn_stream stream;
  TARN_TRY(tarni_port_stream_create(conform_port, &stream));
  for (uint64_t round = 0; round < N_ROUNDS; round++) {
    TARN_TRY(work_round(me, stream, round));
  }
  return tarni_port_stream_destroy(conform_port, stream);
}

static void *run_worker(void *argument) {
  worker *me = argument;
  me->status = work_rounds(me);
  if (me->status != TARN_OK) {
    test_note("a worker failed: %s", tarn_last_message());
  }
  return NULL;
}

static void many_threads(void) {
  static worker workers[N_THREADS];
  for (uint64_t i = 0; i < N_THREADS; i++) {
    workers[i] = (worker){.seed = i + 1};
    REQUIRE(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0);
  }
  for (int i = 0; i < N_THREADS; i++) {
    CHECK(pthread_join(workers[i].thread, NULL) == 0);
    CHECK_OK(workers[i].status);
    CHECK_EQ(workers[i].n_wrong, 0);
  }
}

/* What one thread made another may use and destroy. */
typedef struct gift {
  tarn_stream stream;
  tarni_event event;
  conform_mapping mapping;
} gift;

static tarn_status make_gift(void *argument) {
  gift *made = argument;
  TARN_TRY(tarni_port_stream_create(conform_port, &made->stream));
  TARN_TRY(tarni_port_event_create(conform_port, &made->event));
  TARN_TRY(conform_map(conform_granule(), &made->mapping));
  TARN_TRY(tarni_port_fill(conform_port, made->mapping.address, 0x12, WORKER_BYTES, made->stream));
  return tarni_port_event_record(conform_port, made->event, made->stream);
}

static void made_here_used_there(void) {
  gift made;
  REQUIRE_OK(conform_on_thread(make_gift, &made));
  CHECK_OK(tarni_port_event_sync(conform_port, made.event));
  CHECK_EQ(conform_device_differ_value(made.mapping.address, WORKER_BYTES, 0x12), 0);
  CHECK_OK(tarni_port_fill(conform_port, made.mapping.address, 0x13, WORKER_BYTES, made.stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, made.stream));
  CHECK_EQ(conform_device_differ_value(made.mapping.address, WORKER_BYTES, 0x13), 0);
  CHECK_OK(conform_unmap(&made.mapping));
  CHECK_OK(tarni_port_event_destroy(conform_port, made.event));
  CHECK_OK(tarni_port_stream_destroy(conform_port, made.stream));
}

static const test_case thread_cases[] = {
    {"thread: many at once", many_threads},
    {"thread: made by one, used by another", made_here_used_there},
};
CONFORM_TABLE(thread, thread_cases)
