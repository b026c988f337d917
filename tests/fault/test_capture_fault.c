/* SPDX-License-Identifier: MIT
 *
 * Captures while calls fail: the n-th driver call, for every n, once and for good, and the n-th
 * allocation of host memory; and captures given up after every step. Whatever fails, the heap
 * agrees with itself and with the device, nothing is used too early, and once the fault is over the
 * same calls succeed and nothing is left. */
#include "fault/fault_memory.h"
#include "fault/fault_step.h"
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20, MAX_FAULTS = 3000, SLOTS = 8 };

typedef struct world {
  rig r;
  tarn_capture *capture;
  tarn_graph *graph;
  tarn_ptr blocks[SLOTS]; /* captured; 0: none */
  tarn_ptr before[3];     /* from before */
  int steps_left;         /* until the capture is given up */
  int n_passed;           /* steps that were taken */
} world;

/* ---- Steps: what fails is tried again when there is no fault any more ---- */

static void note(const world *w, tarn_status status) {
  (void)w;
  CHECK(status != TARN_CORRUPT);
}

static bool goes_on(world *w) {
  w->n_passed++;
  return w->steps_left == 0 || --w->steps_left != 0;
}

static void take(world *w, int slot, uint64_t bytes, int stream) {
  if (w->blocks[slot] == 0) {
    const tarn_status status = tarn_alloc(w->r.heap, bytes, w->r.streams[stream], &w->blocks[slot]);
    note(w, status);
    CHECK((status == TARN_OK) == (w->blocks[slot] != 0));
  }
}

static void give(world *w, tarn_ptr *block, int stream) {
  const tarn_status status = tarn_free(w->r.heap, *block, w->r.streams[stream]);
  note(w, status);
  *block = status == TARN_OK ? 0 : *block;
}

/* May fail: then the capture is broken or not forked. */
static void order(world *w, int before, int after) {
  tarni_port *port = (tarni_port *)w->r.device;
  tarni_event event;
  if (tarni_port_event_create(port, &event) != TARN_OK) {
    return;
  }
  if (tarni_port_event_record(port, event, w->r.streams[before]) == TARN_OK) {
    (void)tarni_port_event_wait(port, w->r.streams[after], event);
  }
  if (tarni_port_event_destroy(port, event) != TARN_OK) { /* the event is the test's own */
    CHECK_OK(tarn_sim_fail(w->r.device, TARN_CALL_COUNT, 0, 0, 0));
    (void)tarni_port_event_destroy(port, event);
  }
}

typedef void (*world_step)(world *w);

static void step_first(world *w) {
  take(w, 0, 3 * MIB, 0);
  take(w, 1, 1000, 0);
}

static void step_free_before(world *w) {
  give(w, &w->before[0], 0);
  give(w, &w->before[1], 0);
}

static void step_fork(world *w) {
  order(w, 0, 1);
}

static void step_branch(world *w) {
  take(w, 2, 2 * MIB, 1);
  give(w, &w->blocks[0], 0);
  take(w, 3, MIB, 0);
}

static void step_use(world *w) {
  if (w->blocks[2] != 0) {
    note(w, tarn_use(w->r.heap, w->blocks[2], w->r.streams[0]));
  }
  give(w, &w->before[2], 1);
}

static void step_other_stream(world *w) {
  tarn_ptr block = 0;
  note(w, tarn_alloc(w->r.heap, MIB / 2, w->r.streams[2], &block));
  give(w, &block, 2);
}

static void step_join(world *w) {
  give(w, &w->blocks[2], 1);
  order(w, 1, 0);
}

static void step_last(world *w) {
  take(w, 4, 4 * MIB, 0);
  give(w, &w->blocks[3], 2); /* by a stream that is not captured */
}

static const world_step steps[] = {step_first, step_free_before,  step_fork, step_branch,
                                   step_use,   step_other_stream, step_join, step_last};
enum { N_STEPS = sizeof(steps) / sizeof(steps[0]) };

static void play(world *w) {
  const tarn_capture_config config = {
      .size = sizeof(config), .mode = TARN_CAPTURE_RELAXED, .reserve_bytes = 2 * MIB};
  note(w, tarn_capture_begin(w->r.heap, &config, w->r.streams[0], &w->capture));
  for (int i = 0; w->capture != NULL && i < N_STEPS; i++) {
    if (!goes_on(w)) {
      note(w, tarn_capture_abort(&w->capture));
      return;
    }
    steps[i](w);
  }
  if (w->capture != NULL) {
    note(w, tarn_capture_end(&w->capture, &w->graph));
  }
  if (w->graph != NULL) {
    note(w, tarn_graph_launch(w->graph, w->r.streams[1]));
    note(w, tarn_graph_launch(w->graph, w->r.streams[2]));
    note(w, tarn_arena_sleep(tarn_graph_arena(w->graph), true));
    note(w, tarn_arena_wake(tarn_graph_arena(w->graph)));
    note(w, tarn_graph_destroy(w->graph));
    w->graph = NULL;
  }
}

/* ---- Runs ---- */

static bool open_world(world *w) {
  *w = (world){.steps_left = 0};
  if (!rig_open(&w->r, "sim:64M", NULL, 3)) {
    return false;
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_alloc(w->r.heap, i == 1 ? 2 * MIB : 1000, w->r.streams[0], &w->before[i]));
  }
  return CHECK_OK(tarn_use(w->r.heap, w->before[2], w->r.streams[2]));
}

/* The fault is over: everything can be given back, and the same works. */
static void clean_up(world *w) {
  w->steps_left = 0;
  CHECK_OK(tarn_capture_abort(&w->capture));
  CHECK(w->capture == NULL);
  for (int i = 0; i < SLOTS; i++) {
    give(w, &w->blocks[i], 2);
    CHECK_EQ(w->blocks[i], 0);
  }
  for (int i = 0; i < 3; i++) {
    give(w, &w->before[i], 0);
    CHECK_EQ(w->before[i], 0);
  }
  CHECK_OK(tarn_heap_trim(w->r.heap, UINT64_MAX));
  CHECK(rig_is_sound(&w->r));
}

static void close_world(world *w, bool is_lost) {
  if (!is_lost) {
    clean_up(w);
    CHECK_EQ(rig_stats(&w->r).captured_bytes, 0);
    w->n_passed = 0;
    play(w);
    CHECK_EQ(w->n_passed, N_STEPS); /* all of it, this time */
    clean_up(w);
    CHECK_EQ(rig_stats(&w->r).captured_bytes, 0);
    rig_close(&w->r);
    return;
  }
  (void)tarn_capture_abort(&w->capture);
  CHECK_OK(tarn_heap_destroy(w->r.heap, NULL));
  tarn_device_close(w->r.device);
  CHECK_EQ(w->r.n_findings, 0);
}

static uint64_t run_once(uint64_t nth, uint64_t times, int code, int steps_left) {
  static world w;
  uint64_t n = 0;
  if (!open_world(&w)) {
    return 0;
  }
  w.steps_left = steps_left;
  CHECK_OK(tarn_sim_fail(w.r.device, TARN_CALL_COUNT, nth, times, code));
  play(&w);
  CHECK_OK(tarn_sim_failed(w.r.device, &n));
  CHECK_OK(tarn_sim_fail(w.r.device, TARN_CALL_COUNT, 0, 0, 0));
  close_world(&w, n != 0 && code == 700);
  return n;
}

static void every_call_fails(int code, uint64_t times) {
  uint64_t n_runs = 0;
  const uint64_t first = 1 + ((uint64_t)code + times) % FAULT_STEP;
  for (uint64_t nth = first; nth < MAX_FAULTS && run_once(nth, times, code, 0) != 0;
       nth += FAULT_STEP) {
    n_runs++;
    if (test_case_failed()) {
      test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                times == 0 ? "for good" : "once", code);
      return;
    }
  }
  CHECK(n_runs > 30 / FAULT_STEP);
}

static void calls_fail_once(void) {
  every_call_fails(2, 1);
  every_call_fails(801, 1);
}

static void calls_fail_for_good(void) {
  every_call_fails(2, 0);
  every_call_fails(801, 0);
}

static void the_device_breaks(void) {
  every_call_fails(700, 1);
}

static void given_up_at_every_point(void) {
  for (int steps_left = 1; steps_left <= N_STEPS + 1; steps_left++) {
    (void)run_once(0, 0, 2, steps_left);
    for (uint64_t nth = 1; nth < MAX_FAULTS && run_once(nth, 1, 2, steps_left) != 0; nth += 3) {
      if (test_case_failed()) {
        test_note("given up before step %d, call %llu failed", steps_left, (unsigned long long)nth);
        return;
      }
    }
  }
}

static void host_memory_fails(void) {
  if (!fault_memory_can_fail()) {
    test_skip("another allocator is at work here");
    return;
  }
  uint64_t n_struck = 1, nth = 1;
  for (; n_struck != 0 && nth < MAX_FAULTS && !test_case_failed(); nth++) {
    static world w;
    if (!open_world(&w)) {
      return;
    }
    fault_memory_arm(nth, nth % 2 == 0);
    fault_memory_inside(true);
    play(&w);
    fault_memory_inside(false);
    n_struck = fault_memory_disarm();
    close_world(&w, false);
  }
  CHECK(nth > 20);
}

static const test_case cases[] = {
    {"every call fails once", calls_fail_once},
    {"every call fails for good", calls_fail_for_good},
    {"the device breaks", the_device_breaks},
    {"given up at every point", given_up_at_every_point},
    {"host memory fails", host_memory_fails},
};

TEST_MAIN(cases)
