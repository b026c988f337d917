/* SPDX-License-Identifier: MIT
 *
 * Captures of threads' default streams: one handle, and a stream of its own for each thread. */
#include <pthread.h>

#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

#define OWN TARNI_STREAM_PER_THREAD

enum { MIB = 1 << 20 };

typedef struct pair {
  rig rig;
  tarn_capture *theirs;
  bool is_adopted, goes_first;
  pthread_barrier_t turn;
  pthread_t thread;
} pair;

static void turn(pair *p) {
  (void)pthread_barrier_wait(&p->turn);
}

static void end_driver_capture(const rig *r) {
  tarni_port *port = (tarni_port *)r->device;
  tarni_graph graph;
  CHECK_OK(tarni_port_capture_end(port, OWN, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
}

/* Begins a capture of the caller's default stream. */
static tarn_capture *capture_own(pair *p) {
  rig *r = &p->rig;
  rig_block block;
  tarn_capture *capture = NULL;
  const tarn_capture_config config = {
      .size = sizeof(config), .mode = TARN_CAPTURE_RELAXED, .is_adopted = p->is_adopted};
  if (p->is_adopted) {
    CHECK_OK(tarni_port_capture_begin((tarni_port *)r->device, OWN, TARNI_CAPTURE_RELAXED));
  }
  CHECK_OK(tarn_capture_begin(r->heap, &config, OWN, &capture));
  CHECK_OK(rig_capture_alloc(r, MIB, OWN, &block));
  CHECK_OK(tarn_free(r->heap, block.address, OWN));
  return capture;
}

static void *capture_beside(void *user) {
  pair *p = user;
  tarn_graph *graph = NULL;
  p->theirs = capture_own(p);
  if (p->goes_first) { /* without a word to the heap */
    end_driver_capture(&p->rig);
    return NULL;
  }
  turn(p);
  turn(p);
  if (p->is_adopted) {
    end_driver_capture(&p->rig);
  }
  CHECK_OK(tarn_capture_end(&p->theirs, &graph));
  CHECK_OK(tarn_graph_destroy(graph));
  return NULL;
}

static bool pair_open(pair *p, bool is_adopted, bool goes_first) {
  *p = (pair){.is_adopted = is_adopted, .goes_first = goes_first};
  return CHECK(rig_open(&p->rig, "sim:256M", NULL, 1)) &&
         CHECK(pthread_barrier_init(&p->turn, NULL, 2) == 0) &&
         CHECK(pthread_create(&p->thread, NULL, capture_beside, p) == 0);
}

/* Neither is ended by a thread that has a capture of its own default stream. */
static void ended_by_another_thread(bool is_adopted) {
  static pair p;
  tarn_graph *graph = NULL;
  tarni_capture_state state;
  REQUIRE(pair_open(&p, is_adopted, false));
  turn(&p);
  tarn_capture *mine = capture_own(&p);
  CHECK_STATUS(tarn_capture_end(&p.theirs, &graph), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "another thread's default stream");
  CHECK(graph == NULL && p.theirs != NULL);
  if (!is_adopted) {
    CHECK_STATUS(tarn_capture_abort(&p.theirs), TARN_STATE);
    CHECK(p.theirs != NULL);
  }
  CHECK_OK(tarni_port_capture_state((tarni_port *)p.rig.device, OWN, &state));
  CHECK_EQ(state.status, TARNI_CAPTURE_ACTIVE);
  turn(&p);
  CHECK_EQ(pthread_join(p.thread, NULL), 0);
  if (is_adopted) {
    end_driver_capture(&p.rig);
  }
  CHECK_OK(tarn_capture_end(&mine, &graph));
  CHECK_OK(tarn_graph_destroy(graph));
  (void)pthread_barrier_destroy(&p.turn);
  rig_close(&p.rig);
}

static void ended_by_others(void) {
  ended_by_another_thread(false);
  ended_by_another_thread(true);
}

/* The thread is gone: its captures can be got rid of. */
static void threads_that_go(void) {
  static pair p;
  tarn_graph *graph = NULL;
  for (int i = 0; i < 2; i++) {
    REQUIRE(pair_open(&p, false, true));
    CHECK_EQ(pthread_join(p.thread, NULL), 0);
    if (i == 0) {
      CHECK_OK(tarn_capture_abort(&p.theirs));
    } else {
      CHECK_STATUS(tarn_capture_end(&p.theirs, &graph), TARN_STATE);
      CHECK_HAS(tarn_last_message(), "that thread is gone");
    }
    CHECK(p.theirs == NULL);
    (void)pthread_barrier_destroy(&p.turn);
    rig_close(&p.rig);
  }
  REQUIRE(pair_open(&p, true, true));
  CHECK_EQ(pthread_join(p.thread, NULL), 0);
  CHECK_OK(tarn_capture_end(&p.theirs, &graph)); /* the driver's is the program's */
  CHECK_OK(tarn_graph_destroy(graph));
  (void)pthread_barrier_destroy(&p.turn);
  rig_close(&p.rig);
}

static const test_case cases[] = {
    {"ended by another thread", ended_by_others},
    {"threads that go", threads_that_go},
};

TEST_MAIN(cases)
