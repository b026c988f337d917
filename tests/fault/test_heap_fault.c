/* SPDX-License-Identifier: MIT
 *
 * The n-th driver call fails, for every n, once and for good, in every scenario: the call that
 * needed it has the driver's own status and empty outputs, the heap agrees with itself and with the
 * device, nothing is used too early, and once the fault is over the same calls succeed and nothing
 * leaks. A code that breaks the device ends it: then nothing succeeds, and nothing hangs. */
#include "fault/fault_scene.h"
#include "support/test.h"

enum { MAX_CALLS = 20000 };

/* ---- Runs ---- */

static void arm(fault_world *w, uint64_t nth, uint64_t times, int code) {
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
static uint64_t disarm(fault_world *w) {
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

static uint64_t run_once(const fault_scene *s, uint64_t nth, uint64_t times, int code) {
  static fault_world w;
  w = (fault_world){0};
  if (!rig_open(&w.rig, s->device, &s->config, 4)) {
    return 0;
  }
  arm(&w, nth, times, code);
  s->play(&w);
  const uint64_t n = disarm(&w);
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

static void run_all(const fault_scene *s) {
  static const int codes[] = {2, 1, 801, 700};
  uint64_t n_runs = 0;
  for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
    for (uint64_t times = 0; times < 2; times++) {
      for (uint64_t nth = 1; nth < MAX_CALLS && run_once(s, nth, times, codes[i]) != 0; nth++) {
        n_runs++;
        if (test_case_failed()) {
          test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                    times == 0 ? "for good" : "once", codes[i]);
          return;
        }
      }
    }
  }
  CHECK(n_runs > 8);
  test_note("%llu faults", (unsigned long long)n_runs);
}

#define SCENE_CASE(name, scene)                                                                    \
  static void name(void) {                                                                         \
    run_all(&fault_scenes[scene]);                                                                 \
  }

SCENE_CASE(growing, FAULT_GROW)
SCENE_CASE(moving, FAULT_MOVE)
SCENE_CASE(moving_any, FAULT_MOVE_ANY)
SCENE_CASE(stealing_when_short, FAULT_STEAL_SHORT)
SCENE_CASE(stealing_always, FAULT_STEAL_ALWAYS)
SCENE_CASE(stealing_never, FAULT_STEAL_NEVER)
SCENE_CASE(sharing, FAULT_SHARE)
SCENE_CASE(retiring, FAULT_RETIRE)
SCENE_CASE(trimming, FAULT_TRIM)
SCENE_CASE(limiting, FAULT_LIMIT)
SCENE_CASE(resetting, FAULT_RESET)
SCENE_CASE(threading, FAULT_THREADS)

/* ---- Beginning and end ---- */

static uint64_t create_once(uint64_t nth, uint64_t times, int code) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M"};
  fault_world w = {.n_blocks = 0};
  if (!rig_open_device(&w.rig, "sim:64M", 1)) {
    return 0;
  }
  arm(&w, nth, times, code);
  w.rig.heap = (tarn_heap *)(uintptr_t)1;
  const tarn_status status = tarn_heap_create(&config, &w.rig.heap);
  const uint64_t n = disarm(&w);
  if (status != TARN_OK) { /* the one thing that can run out here is addresses */
    CHECK_STATUS(status, w.expected == TARN_DEVICE_MEMORY ? TARN_ADDRESS_SPACE : w.expected);
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

static void creating(void) {
  static const int codes[] = {2, 1, 801, 700};
  for (unsigned i = 0; i < 4; i++) {
    for (uint64_t times = 0; times < 2; times++) {
      uint64_t nth = 1;
      while (create_once(nth, times, codes[i]) != 0 && !test_case_failed()) {
        nth++;
      }
      CHECK(nth > 1);
    }
  }
}

static uint64_t destroy_once(uint64_t nth, uint64_t times, int code) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 32 * FAULT_MIB};
  static fault_world w;
  w = (fault_world){0};
  if (!rig_open(&w.rig, "sim:64M,order=lazy", &config, 4)) {
    return 0;
  }
  fault_live_a_little(&w);
  const uint64_t n_live = (uint64_t)w.n_blocks;
  arm(&w, nth, times, code);
  uint64_t n_gone = 77;
  const tarn_status status = tarn_heap_destroy(w.rig.heap, &n_gone);
  const uint64_t n = disarm(&w);
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

static void destroying(void) {
  static const int codes[] = {2, 1, 801, 700};
  for (unsigned i = 0; i < 4; i++) {
    for (uint64_t times = 0; times < 2; times++) {
      uint64_t nth = 1;
      while (destroy_once(nth, times, codes[i]) != 0 && !test_case_failed()) {
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

static const test_case cases[] = {
    {"growing", growing},
    {"moving chunks", moving},
    {"moving chunks, any lane's", moving_any},
    {"stealing when short", stealing_when_short},
    {"stealing always", stealing_always},
    {"stealing never", stealing_never},
    {"blocks that several streams use", sharing},
    {"retiring streams", retiring},
    {"trimming", trimming},
    {"reserve and limits", limiting},
    {"resetting", resetting},
    {"threads with their default streams", threading},
    {"creating a heap", creating},
    {"destroying a heap", destroying},
};

TEST_MAIN(cases)
