/* SPDX-License-Identifier: MIT
 *
 * Captures of several threads at once while others allocate and free on streams of their own, and
 * free captured blocks: everybody gets what is theirs, nothing is used too early, no capture is
 * broken by anybody, and nothing is left. */
#include <pthread.h>
#include <sched.h>

#include "base/rng.h"
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20, CAPTURERS = 2, CHURNERS = 2, ROUNDS = 25, STEPS = 30, BLOCKS = 8 };

typedef struct worker {
  rig *r;
  int number;
  uint64_t seed;
  uint64_t n_captured, n_churned;
  tarn_capture_mode mode;
} worker;

/* A block that a capture leaves is freed by whoever finds it. */
static _Atomic tarn_ptr left_over;

static void free_left_over(rig *r, tarn_stream stream) {
  const tarn_ptr block = atomic_exchange(&left_over, 0);
  if (block != 0) {
    CHECK_OK(tarn_free(r->heap, block, stream));
  }
}

static void capture_some(worker *w, tarni_rng *rng) {
  rig *r = w->r;
  const tarn_stream origin = r->streams[w->number * 2], side = r->streams[w->number * 2 + 1];
  rig_block blocks[BLOCKS] = {{0}};
  for (int i = 0; i < STEPS; i++) {
    const int at = (int)tarni_rng_below(rng, BLOCKS);
    const tarn_stream stream = i > 5 && i < 20 && at % 2 != 0 ? side : origin;
    if (i == 5) {
      rig_order(r, origin, side);
    } else if (i == 20) {
      rig_order(r, side, origin);
    } else if (blocks[at].address == 0) {
      CHECK_OK(rig_capture_alloc(r, 1 + tarni_rng_below(rng, MIB), stream, &blocks[at]));
      w->n_captured++;
    } else {
      CHECK_OK(tarn_free(r->heap, blocks[at].address, stream));
      blocks[at].address = 0;
    }
  }
  for (int i = 0; i < BLOCKS; i++) {
    if (blocks[i].address != 0) {
      const tarn_ptr old = atomic_exchange(&left_over, blocks[i].address);
      CHECK_OK(tarn_free(r->heap, old, origin));
    }
  }
}

static void *capture_work(void *user) {
  worker *w = user;
  rig *r = w->r;
  tarni_rng rng = {.state = w->seed};
  const tarn_stream stream = r->streams[w->number * 2];
  for (int i = 0; i < ROUNDS && !test_case_failed(); i++) {
    const tarn_capture_config config = {.size = sizeof(config),
                                        .mode = w->mode,
                                        .placement =
                                            i % 3 == 2 ? TARN_PLACE_MONOTONE : TARN_PLACE_REUSE};
    tarn_capture *capture = NULL;
    tarn_graph *graph = NULL;
    CHECK_OK(tarn_capture_begin(r->heap, &config, stream, &capture));
    capture_some(w, &rng);
    if (i % 5 == 4) {
      CHECK_OK(tarn_capture_abort(&capture));
      continue;
    }
    CHECK_OK(tarn_capture_end(&capture, &graph));
    for (int j = 0; j < 3; j++) {
      tarn_status status = tarn_graph_launch(graph, stream);
      while (status == TARN_CAPTURE && w->mode == TARN_CAPTURE_GLOBAL) {
        (void)sched_yield(); /* the other's capture does not let it be instantiated yet */
        status = tarn_graph_launch(graph, stream);
      }
      CHECK_OK(status);
    }
    CHECK_OK(tarn_graph_destroy(graph));
  }
  return NULL;
}

static void *churn_work(void *user) {
  worker *w = user;
  rig *r = w->r;
  tarni_rng rng = {.state = w->seed};
  const tarn_stream stream = r->streams[CAPTURERS * 2 + w->number];
  rig_block blocks[BLOCKS] = {{0}};
  for (int i = 0; i < ROUNDS * STEPS && !test_case_failed(); i++) {
    rig_block *block = &blocks[tarni_rng_below(&rng, BLOCKS)];
    if (block->address == 0) {
      CHECK_OK(rig_alloc(r, 1 + tarni_rng_below(&rng, 3 * MIB), stream, block));
      w->n_churned++;
    } else {
      CHECK_OK(rig_free(r, block, stream));
    }
    if (i % 7 == 0) {
      free_left_over(r, stream);
    }
  }
  for (int i = 0; i < BLOCKS; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(r, &blocks[i], stream));
    }
  }
  return NULL;
}

static void together(tarn_capture_mode mode, const char *device) {
  rig r;
  pthread_t threads[CAPTURERS + CHURNERS];
  worker workers[CAPTURERS + CHURNERS];
  REQUIRE(rig_open(&r, device, NULL, CAPTURERS * 2 + CHURNERS));
  atomic_store(&left_over, 0);
  for (int i = 0; i < CAPTURERS + CHURNERS; i++) {
    const bool is_churner = i >= CAPTURERS;
    workers[i] = (worker){
        .r = &r, .number = is_churner ? i - CAPTURERS : i, .seed = 77 + (uint64_t)i, .mode = mode};
    CHECK_EQ(pthread_create(&threads[i], NULL, is_churner ? churn_work : capture_work, &workers[i]),
             0);
  }
  for (int i = 0; i < CAPTURERS + CHURNERS; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK(workers[i].n_captured + workers[i].n_churned > 50);
  }
  free_left_over(&r, r.streams[0]);
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void thread_local_captures(void) {
  together(TARN_CAPTURE_THREAD_LOCAL, "sim:2G,seed=1");
}

static void global_captures(void) {
  together(TARN_CAPTURE_GLOBAL, "sim:2G,seed=2");
}

static void relaxed_captures(void) {
  together(TARN_CAPTURE_RELAXED, "sim:2G,seed=3,order=lazy");
}

static const test_case cases[] = {
    {"thread-local captures", thread_local_captures},
    {"global captures", global_captures},
    {"relaxed captures", relaxed_captures},
};

TEST_MAIN(cases)
