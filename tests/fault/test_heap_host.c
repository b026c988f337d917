/* SPDX-License-Identifier: MIT
 *
 * The n-th allocation of host memory fails inside a call of the heap, for every n, once and for
 * good: the call says so and changes nothing, a free goes through all the same, and once there is
 * memory again the same calls succeed. What the simulated driver allocates counts, too. */
#include "fault/fault_memory.h"
#include "fault/fault_scene.h"
#include "support/test.h"

enum { MAX_CALLS = 5000 };

/* ---- Runs ---- */

static uint64_t run_once(const fault_scene *scene, uint64_t nth, bool for_good) {
  static fault_world w;
  w = (fault_world){
      .expected = TARN_HOST_MEMORY, .on_call = fault_memory_inside, .is_for_good = for_good};
  if (!rig_open(&w.rig, scene->device, &scene->config, 4)) {
    return 0;
  }
  fault_memory_arm(nth, for_good);
  w.is_armed = true;
  scene->play(&w);
  fault_give_all(&w);
  CHECK_EQ(w.n_blocks, 0); /* a free never fails for lack of memory */
  const uint64_t n = fault_memory_disarm();
  w.is_armed = false;
  CHECK(rig_is_sound(&w.rig));
  scene->play(&w);
  CHECK(rig_is_sound(&w.rig));
  rig_close(&w.rig);
  return n;
}

static void run_all(const fault_scene *scene) {
  if (!fault_memory_can_fail()) {
    test_skip("this build's allocator cannot be made to fail");
    return;
  }
  uint64_t n_runs = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    for (uint64_t nth = 1; nth < MAX_CALLS && run_once(scene, nth, for_good != 0) != 0; nth++) {
      n_runs++;
      if (test_case_failed()) {
        test_note("the fault was: allocation %llu, %s", (unsigned long long)nth,
                  for_good != 0 ? "for good" : "once");
        return;
      }
    }
  }
  CHECK(n_runs > 2);
  test_note("%llu faults", (unsigned long long)n_runs);
}

#define SCENE_CASE(name, scene)                                                                    \
  static void name(void) {                                                                         \
    run_all(&fault_scenes[scene]);                                                                 \
  }

SCENE_CASE(growing, FAULT_GROW)
SCENE_CASE(moving, FAULT_MOVE)
SCENE_CASE(stealing_when_short, FAULT_STEAL_SHORT)
SCENE_CASE(stealing_always, FAULT_STEAL_ALWAYS)
SCENE_CASE(stealing_never, FAULT_STEAL_NEVER)
SCENE_CASE(sharing, FAULT_SHARE)
SCENE_CASE(retiring, FAULT_RETIRE)
SCENE_CASE(trimming, FAULT_TRIM)
SCENE_CASE(limiting, FAULT_LIMIT)
SCENE_CASE(resetting, FAULT_RESET)
SCENE_CASE(sleeping_saved, FAULT_SLEEP_SAVE)
SCENE_CASE(sleeping_dropped, FAULT_SLEEP_DROP)
SCENE_CASE(looking, FAULT_DEBUG)
SCENE_CASE(looking_asleep, FAULT_DEBUG_SLEEP)
SCENE_CASE(securing, FAULT_SECURE)
SCENE_CASE(securing_asleep, FAULT_SECURE_SLEEP)

/* The same on heaps whose blocks are the driver's own allocations. */
static void run_on(tarn_backing backing) {
  static const int scenes[] = {FAULT_GROW, FAULT_STEAL_SHORT, FAULT_SHARE, FAULT_RETIRE,
                               FAULT_TRIM};
  for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]) && !test_case_failed(); i++) {
    fault_scene scene = fault_scenes[scenes[i]];
    scene.config.backing = backing;
    scene.config.rounding = TARN_ROUNDING_EXACT;
    scene.config.cached_blocks_per_size = 3;
    run_all(&scene);
  }
}

static void plain_memory(void) {
  run_on(TARN_BACKING_PLAIN);
}

static void private_pool(void) {
  run_on(TARN_BACKING_POOL);
}

static void creating(void) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M"};
  if (!fault_memory_can_fail()) {
    test_skip("this build's allocator cannot be made to fail");
    return;
  }
  rig r;
  REQUIRE(rig_open_device(&r, "sim:64M", 1));
  uint64_t nth = 1;
  for (bool is_over = false; !is_over && !test_case_failed(); nth++) {
    tarn_heap *heap = (tarn_heap *)(uintptr_t)1;
    fault_memory_arm(nth, false);
    fault_memory_inside(true);
    const tarn_status status = tarn_heap_create(&config, &heap);
    fault_memory_inside(false);
    is_over = fault_memory_disarm() == 0;
    CHECK_STATUS(status, is_over ? TARN_OK : TARN_HOST_MEMORY);
    CHECK(is_over == (heap != NULL));
    r.heap = heap;
  }
  CHECK(nth > 4);
  rig_close(&r);
}

static void destroying(void) {
  if (!fault_memory_can_fail()) {
    test_skip("this build's allocator cannot be made to fail");
    return;
  }
  static fault_world w;
  bool is_over = false;
  for (uint64_t nth = 1; !is_over && !test_case_failed(); nth++) {
    w = (fault_world){.n_blocks = 0};
    REQUIRE(rig_open(&w.rig, "sim:64M,order=lazy", NULL, 4));
    fault_live_a_little(&w);
    const uint64_t n_blocks = (uint64_t)w.n_blocks;
    uint64_t n_live = 0;
    fault_memory_arm(nth, false);
    fault_memory_inside(true);
    const tarn_status status = tarn_heap_destroy(w.rig.heap, &n_live);
    fault_memory_inside(false);
    is_over = fault_memory_disarm() == 0;
    if (status == TARN_OK) {
      CHECK_EQ(n_live, n_blocks);
      w.rig.heap = NULL;
    } else {
      CHECK_STATUS(status, TARN_HOST_MEMORY);
    }
    rig_close_live(&w.rig, status == TARN_OK ? 0 : n_blocks);
  }
}

static const test_case cases[] = {
    {"growing", growing},
    {"moving chunks", moving},
    {"stealing when short", stealing_when_short},
    {"stealing always", stealing_always},
    {"stealing never", stealing_never},
    {"blocks that several streams use", sharing},
    {"retiring streams", retiring},
    {"trimming", trimming},
    {"reserve and limits", limiting},
    {"resetting", resetting},
    {"sleep and wake, content saved", sleeping_saved},
    {"sleep and wake, content dropped", sleeping_dropped},
    {"fills, guards, quarantine", looking},
    {"guards and quarantine, asleep", looking_asleep},
    {"secure", securing},
    {"secure, asleep", securing_asleep},
    {"plain memory", plain_memory},
    {"a private pool", private_pool},
    {"creating a heap", creating},
    {"destroying a heap", destroying},
};

TEST_MAIN(cases)
