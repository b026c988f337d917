/* SPDX-License-Identifier: MIT
 *
 * Which fence the host waits for: the one that was recorded first, none where another is complete
 * by now, and none of a stream that what is needed does not wait for. A gate keeps a stream at
 * work; who waits for it all the same does so until the gate opens by itself, which is found. */
#include <pthread.h>
#include <time.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20 };

/* ---- Gates ---- */

enum { GATE_S = 3 };

typedef struct gate {
  const rig *rig;
  uint64_t *word; /* pinned; 1: open */
  bool is_late;   /* it had to open by itself */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t cond;
} gate;

static void gate_let(gate *g) {
  __atomic_store_n(g->word, 1, __ATOMIC_RELEASE);
}

static void *gate_watch(void *user) {
  gate *g = user;
  struct timespec end;
  (void)clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += GATE_S;
  (void)pthread_mutex_lock(&g->lock);
  int status = 0;
  while (status == 0 && __atomic_load_n(g->word, __ATOMIC_ACQUIRE) == 0) {
    status = pthread_cond_timedwait(&g->cond, &g->lock, &end);
  }
  g->is_late = status != 0;
  gate_let(g);
  (void)pthread_mutex_unlock(&g->lock);
  return NULL;
}

/* What the stream is given from here on is done once the gate is open. */
static bool gate_shut(gate *g, const rig *r, int stream) {
  *g = (gate){.rig = r, .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
  void *word;
  if (!CHECK_OK(tarni_port_host_alloc(r->heap->port, 4096, 0, &word))) {
    return false;
  }
  g->word = word;
  *g->word = 0;
  return CHECK_OK(tarni_port_value_wait(r->heap->port, r->streams[stream], g->word, 1)) &&
         CHECK_EQ(pthread_create(&g->thread, NULL, gate_watch, g), 0);
}

/* Nobody was waiting for the stream until now. */
static void gate_open(gate *g, int stream) {
  (void)pthread_mutex_lock(&g->lock);
  CHECK(!g->is_late);
  gate_let(g);
  (void)pthread_cond_signal(&g->cond);
  (void)pthread_mutex_unlock(&g->lock);
  CHECK_EQ(pthread_join(g->thread, NULL), 0);
  CHECK_OK(tarn_stream_synchronize(g->rig->device, g->rig->streams[stream]));
  CHECK_OK(tarni_port_host_free(g->rig->heap->port, g->word));
}

/* ---- Fences ---- */

static tarni_index lane_of(const rig *r, int stream) {
  tarni_index lane = 0;
  CHECK_OK(tarni_lane_find(r->heap, r->streams[stream], &lane));
  return lane;
}

/* Gives the stream work and its lane a fence behind it. */
static void keep_busy(const rig *r, int stream) {
  const tarn_sim_kernel kernel = {.size = sizeof(kernel)};
  const tarni_index lane = lane_of(r, stream);
  CHECK_OK(tarn_sim_launch(r->device, &kernel, r->streams[stream]));
  tarni_lock_acquire(&r->heap->lock);
  const uint64_t ticket = tarni_ticket_locked(r->heap, lane);
  tarni_lock_release(&r->heap->lock);
  CHECK_OK(tarni_lane_fence_grow(r->heap, lane, ticket));
}

static bool is_busy(const rig *r, int stream) {
  return r->heap->lanes[lane_of(r, stream)].n_fences != 0;
}

static void recorded_first(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
  gate g;
  REQUIRE(gate_shut(&g, &r, 0));
  for (int i = 0; i < 3; i++) {
    (void)lane_of(&r, i);
  }
  tarni_lock_acquire(&r.heap->grow);
  keep_busy(&r, 2);
  keep_busy(&r, 0);
  keep_busy(&r, 1);
  CHECK(tarni_fences_wait_grow(r.heap, NULL));
  CHECK(!is_busy(&r, 2));
  CHECK(is_busy(&r, 0));
  gate_open(&g, 0);
  while (tarni_fences_wait_grow(r.heap, NULL)) {
  }
  CHECK(!is_busy(&r, 0) && !is_busy(&r, 1));
  tarni_lock_release(&r.heap->grow);
  rig_close(&r);
}

static void complete_by_now(void) {
  rig r;
  gate g;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  REQUIRE(gate_shut(&g, &r, 0));
  tarni_lock_acquire(&r.heap->grow);
  keep_busy(&r, 0);
  keep_busy(&r, 1);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  CHECK(tarni_fences_wait_grow(r.heap, NULL));
  CHECK(is_busy(&r, 0) && !is_busy(&r, 1));
  gate_open(&g, 0);
  CHECK(tarni_fences_wait_grow(r.heap, NULL)); /* now there is nothing else */
  CHECK(!is_busy(&r, 0));
  tarni_lock_release(&r.heap->grow);
  rig_close(&r);
}

/* Where the wait for one fails, the next is waited for. */
static void one_that_fails(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  tarni_lock_acquire(&r.heap->grow);
  keep_busy(&r, 1);
  keep_busy(&r, 0);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_EVENT_SYNC, 1, 1, 2));
  CHECK(tarni_fences_wait_grow(r.heap, NULL));
  CHECK(is_busy(&r, 1) && !is_busy(&r, 0));
  tarni_lock_release(&r.heap->grow);
  rig_close(&r);
}

/* A block that one stream used comes back although another stream is at work for long, whose lane
 * comes first, and whose block is not needed. */
static void shortage(tarn_backing backing) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 64 * MIB, .backing = backing};
  rig r;
  gate g;
  rig_block first, small, large, next;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", &config, 3));
  CHECK_OK(rig_alloc(&r, 256, r.streams[0], &first));
  CHECK_OK(rig_free(&r, &first, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[2], &small));
  CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[2], &large));
  CHECK_OK(tarn_use(r.heap, small.address, r.streams[0]));
  CHECK_OK(tarn_use(r.heap, large.address, r.streams[1]));
  rig_order(&r, r.streams[2], r.streams[1]);
  rig_touch(&r, &large, r.streams[1], true);
  CHECK_OK(rig_free(&r, &large, r.streams[2]));
  REQUIRE(gate_shut(&g, &r, 0));
  CHECK_OK(rig_free(&r, &small, r.streams[2]));
  CHECK_EQ(rig_stats(&r).pending_bytes, 60 * MIB);
  CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[2], &next));
  CHECK(rig_stats(&r).pending_bytes >= 20 * MIB); /* nobody has waited for the first stream */
  gate_open(&g, 0);
  CHECK_OK(rig_free(&r, &next, r.streams[2]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void shortage_of_chunks(void) {
  shortage(TARN_BACKING_VMM);
}

static void shortage_of_driver_allocations(void) {
  shortage(TARN_BACKING_PLAIN);
}

/* A stream that is at work for long has the older fence, and only a small block waits for it: the
 * host waits for the one that has freed room. */
static void room_of_another(void) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_NEVER};
  for (int is_first = 0; is_first < 2; is_first++) {
    rig r;
    gate g;
    rig_block large, small, next;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 3));
    if (is_first) {
      (void)lane_of(&r, 0);
    }
    CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[1], &large));
    CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[1], &small));
    CHECK_OK(tarn_use(r.heap, small.address, r.streams[0]));
    REQUIRE(gate_shut(&g, &r, 0));
    CHECK_OK(rig_free(&r, &small, r.streams[1]));
    CHECK_OK(rig_free(&r, &large, r.streams[1]));
    CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[2], &next));
    gate_open(&g, 0);
    CHECK_OK(rig_free(&r, &next, r.streams[2]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* What is on its way back to the driver waits for a stream that is at work for long, or is gone:
 * what others have freed goes back before anybody waits for it. */
static void kept_by_another(bool is_lost) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .rounding = TARN_ROUNDING_EXACT,
                                   .cached_limit_bytes = 40 * MIB,
                                   .stealing = TARN_STEAL_NEVER};
  rig r;
  gate g;
  tarn_stream gone;
  rig_block doomed, kept[3], small, next;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 3));
  REQUIRE_OK(tarn_stream_create(r.device, &gone));
  const tarn_stream stream = is_lost ? gone : r.streams[0];
  CHECK_OK(rig_alloc(&r, 20 * MIB, stream, &doomed));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 10 * MIB, r.streams[1], &kept[i]));
  }
  CHECK_OK(rig_alloc(&r, 4096, r.streams[0], &small));
  REQUIRE(is_lost || gate_shut(&g, &r, 0));
  CHECK_OK(rig_free(&r, &doomed, stream));
  if (is_lost) {
    CHECK_OK(tarn_stream_synchronize(r.device, gone));
    CHECK_OK(tarn_stream_destroy(r.device, gone));
  }
  for (int i = 0; i < 3; i++) { /* more than are kept: the first goes */
    CHECK_OK(rig_free(&r, &kept[i], r.streams[1]));
  }
  CHECK_EQ(rig_stats(&r).pending_bytes, 20 * MIB);
  REQUIRE(!is_lost || gate_shut(&g, &r, 0));
  CHECK_OK(rig_alloc(&r, 18 * MIB, r.streams[2], &next));
  gate_open(&g, 0);
  CHECK_OK(rig_free(&r, &next, r.streams[2]));
  CHECK_OK(rig_free(&r, &small, r.streams[0]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  if (!is_lost) {
    CHECK_OK(tarn_stream_destroy(r.device, gone));
  }
  CHECK(rig_is_sound(&r));
  r.n_findings = is_lost ? 0 : r.n_findings; /* a stream was destroyed without a word */
  rig_close(&r);
}

static void kept_beside_the_doomed(void) {
  kept_by_another(false);
  kept_by_another(true);
}

/* A block leaves the quarantine once its own stream is done. */
static void quarantine(void) {
  const tarn_heap_config config = {.size = sizeof(config), .quarantine_bytes = 3 * MIB};
  rig r;
  gate g;
  rig_block blocks[2];
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
  REQUIRE(gate_shut(&g, &r, 0));
  tarni_lock_acquire(&r.heap->grow);
  keep_busy(&r, 0);
  tarni_lock_release(&r.heap->grow);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[1], &blocks[i]));
  }
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[1]));
  }
  CHECK_EQ(rig_stats(&r).pending_bytes, 2 * MIB);
  gate_open(&g, 0);
  rig_close(&r);
}

/* A fence that cannot be made now is not in the way of others that can. */
static void missing_fences(void) {
  rig r;
  rig_block blocks[2];
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[2], &blocks[i]));
    CHECK_OK(tarn_use(r.heap, blocks[i].address, r.streams[i]));
  }
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_EVENT_RECORD, 1, 3, 2));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[2]));
    CHECK(!is_busy(&r, i));
  }
  tarni_lock_acquire(&r.heap->grow);
  tarni_uses_reap_grow(r.heap); /* the third that fails, and one that does not */
  CHECK_EQ(is_busy(&r, 0) + is_busy(&r, 1), 1);
  tarni_uses_reap_grow(r.heap);
  CHECK_EQ(is_busy(&r, 0) + is_busy(&r, 1), 2);
  tarni_lock_release(&r.heap->grow);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* In a capture that forbids to ask for events a wait that a stream refuses, since it is gone, does
 * no harm to the fence that it was to wait for. */
static void refused_in_a_capture(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
  const tarni_index lane = lane_of(&r, 1), waiting = lane_of(&r, 2);
  tarni_lock_acquire(&r.heap->grow);
  keep_busy(&r, 1);
  tarni_lock_release(&r.heap->grow);
  const tarn_capture_config config = {.size = sizeof(config), .mode = TARN_CAPTURE_GLOBAL};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  REQUIRE(tarni_capture_forbids());
  const tarni_order order =
      tarni_order_of((tarni_order_entry){.lane = lane, .ticket = r.heap->lanes[lane].ticket});
  tarni_lock_acquire(&r.heap->grow);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 1, 0, 400));
  CHECK_STATUS(tarni_order_wait_grow(r.heap, &order, waiting), TARN_INVALID);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK_EQ(r.heap->lanes[lane].n_fences, 1);
  CHECK(!r.heap->lanes[lane].is_lost);
  CHECK_OK(tarni_order_wait_grow(r.heap, &order, waiting));
  tarni_lock_release(&r.heap->grow);
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

static const test_case cases[] = {
    {"the fence that was recorded first", recorded_first},
    {"one that is complete by now", complete_by_now},
    {"one that cannot be waited for", one_that_fails},
    {"a shortage of chunks", shortage_of_chunks},
    {"a shortage of the driver's allocations", shortage_of_driver_allocations},
    {"room of another stream", room_of_another},
    {"kept beside what is on its way", kept_beside_the_doomed},
    {"a block in quarantine", quarantine},
    {"fences that are missing", missing_fences},
    {"a wait that is refused in a capture", refused_in_a_capture},
};

TEST_MAIN(cases)
