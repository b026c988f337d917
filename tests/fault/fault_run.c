/* SPDX-License-Identifier: MIT
 *
 * A scene played while the n-th driver call fails, for every n. */
#include "fault/fault_run.h"

#include "fault/fault_step.h"
#include "support/test.h"

enum { MAX_CALLS = 20000 };

void fault_arm(fault_world *w, uint64_t nth, uint64_t times, int code) {
  static const struct {
    int code;
    tarn_status status;
  } meanings[] = {
      {1, TARN_INVALID}, {2, TARN_DEVICE_MEMORY}, {801, TARN_UNSUPPORTED}, {700, TARN_DEVICE_LOST}};
  for (unsigned i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
    w->expected = meanings[i].code == code ? meanings[i].status : w->expected;
  }
  CHECK_OK(tarn_sim_fail(w->rig.device, TARN_CALL_COUNT, nth, times, code));
  w->is_armed = true;
  w->is_for_good = times == 0;
}

/* The fault is over. Returns how many calls it struck. */
uint64_t fault_disarm(fault_world *w) {
  uint64_t n = 0;
  CHECK_OK(tarn_sim_failed(w->rig.device, &n));
  CHECK_OK(tarn_sim_fail(w->rig.device, TARN_CALL_COUNT, 0, 0, 0));
  w->is_armed = false;
  w->is_lost = n != 0 && w->expected == TARN_DEVICE_LOST;
  return n;
}

/* A stream of which the driver said that it is not there counts as gone, until its user shows that
 * it is. */
static void show_streams(fault_world *w) {
  for (int i = 0; i < w->rig.n_streams && w->is_for_good && w->expected == TARN_INVALID; i++) {
    CHECK_OK(tarn_stream_retire(w->rig.heap, w->rig.streams[i]));
  }
}

static uint64_t fault_run_once(const fault_scene *s, uint64_t nth, uint64_t times, int code) {
  static fault_world w;
  w = (fault_world){0};
  if (!rig_open(&w.rig, s->device, &s->config, 4)) {
    return 0;
  }
  fault_arm(&w, nth, times, code);
  s->play(&w);
  const uint64_t n = fault_disarm(&w);
  if (!w.is_lost) {
    CHECK(rig_is_sound(&w.rig));
    show_streams(&w);
    fault_give_all(&w);
    CHECK_EQ(w.n_blocks, 0);
    s->play(&w);
    CHECK(rig_is_sound(&w.rig));
    rig_close(&w.rig);
    return n;
  }
  uint64_t n_live;
  CHECK_OK(tarn_heap_destroy(w.rig.heap, &n_live));
  tarn_device_close(w.rig.device);
  CHECK_EQ(w.rig.n_findings, 0);
  return n;
}

void fault_run_all(const fault_scene *s) {
  static const int codes[] = {2, 1, 801, 700};
  uint64_t n_runs = 0;
  for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
    for (uint64_t times = 0; times < 2; times++) {
      for (uint64_t nth = 1 + i % FAULT_STEP;
           nth < MAX_CALLS && fault_run_once(s, nth, times, codes[i]) != 0; nth += FAULT_STEP) {
        n_runs++;
        if (test_case_failed()) {
          test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                    times == 0 ? "for good" : "once", codes[i]);
          return;
        }
      }
    }
  }
  CHECK(n_runs >= 8);
  test_note("%llu faults", (unsigned long long)n_runs);
}

/* ---- Beginning and end ---- */

static uint64_t create_once(const tarn_heap_config *heap, uint64_t nth, uint64_t times, int code) {
  tarn_heap_config config = *heap;
  config.device = "sim:64M";
  fault_world w = {.n_blocks = 0};
  if (!rig_open_device(&w.rig, "sim:64M", 1)) {
    return 0;
  }
  fault_arm(&w, nth, times, code);
  w.rig.heap = (tarn_heap *)(uintptr_t)1;
  const tarn_status status = tarn_heap_create(&config, &w.rig.heap);
  const uint64_t n = fault_disarm(&w);
  if (status != TARN_OK) { /* addresses run out under a name of their own */
    if (w.expected != TARN_DEVICE_MEMORY || status != TARN_ADDRESS_SPACE) {
      CHECK_STATUS(status, w.expected);
    }
    CHECK(w.rig.heap == NULL);
  }
  if (status != TARN_OK && !w.is_lost) {
    CHECK_OK(tarn_heap_create(&config, &w.rig.heap));
  }
  if (!w.is_lost) {
    rig_close(&w.rig);
  } else {
    CHECK_OK(tarn_heap_destroy(w.rig.heap, NULL));
    tarn_device_close(w.rig.device);
    CHECK_EQ(w.rig.n_findings, 0);
  }
  return n;
}

void fault_create_all(const tarn_heap_config *config) {
  static const int codes[] = {2, 1, 801, 700};
  for (unsigned i = 0; i < 4; i++) {
    for (uint64_t times = 0; times < 2; times++) {
      uint64_t nth = 1;
      while (create_once(config, nth, times, codes[i]) != 0 && !test_case_failed()) {
        nth++;
      }
      CHECK(nth > 1);
    }
  }
}

static uint64_t destroy_once(const tarn_heap_config *config, uint64_t nth, uint64_t times,
                             int code) {
  static fault_world w;
  w = (fault_world){0};
  if (!rig_open(&w.rig, "sim:64M,order=lazy", config, 4)) {
    return 0;
  }
  fault_live_a_little(&w);
  const uint64_t n_live = (uint64_t)w.n_blocks;
  fault_arm(&w, nth, times, code);
  uint64_t n_gone = 77;
  const tarn_status status = tarn_heap_destroy(w.rig.heap, &n_gone);
  const uint64_t n = fault_disarm(&w);
  if (w.is_lost || status == TARN_OK) {
    CHECK_OK(status);
    CHECK_EQ(n_gone, n_live);
    w.rig.heap = NULL;
  } else {
    CHECK_STATUS(status, w.expected);
    CHECK_EQ(n_gone, 0);
  }
  if (!w.is_lost) {
    rig_close_live(&w.rig, w.rig.heap != NULL ? n_live : 0);
  } else {
    tarn_device_close(w.rig.device);
    CHECK_EQ(w.rig.n_findings, 0);
  }
  return n;
}

void fault_destroy_all(const tarn_heap_config *config) {
  static const int codes[] = {2, 1, 801, 700};
  for (unsigned i = 0; i < 4; i++) {
    for (uint64_t times = 0; times < 2; times++) {
      uint64_t nth = 1;
      while (destroy_once(config, nth, times, codes[i]) != 0 && !test_case_failed()) {
        nth++;
      }
      CHECK(nth > 1);
      if (test_case_failed()) {
        test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                  times == 0 ? "for good" : "once", codes[i]);
        return;
      }
    }
  }
}
