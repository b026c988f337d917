/* SPDX-License-Identifier: MIT
 *
 * The n-th driver call fails, for every n, once and for good, in every scenario: the call that
 * needed it has the driver's own status and empty outputs, the heap agrees with itself and with the
 * device, nothing is used too early, and once the fault is over the same calls succeed and nothing
 * leaks. A code that breaks the device ends it: then nothing succeeds, and nothing hangs. */
#include "fault/fault_run.h"
#include "support/test.h"

#define SCENE_CASE(name, scene)                                                                    \
  static void name(void) {                                                                         \
    fault_run_all(&fault_scenes[scene]);                                                           \
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
SCENE_CASE(sleeping_saved, FAULT_SLEEP_SAVE)
SCENE_CASE(sleeping_dropped, FAULT_SLEEP_DROP)
SCENE_CASE(looking, FAULT_DEBUG)
SCENE_CASE(looking_asleep, FAULT_DEBUG_SLEEP)
SCENE_CASE(securing, FAULT_SECURE)
SCENE_CASE(securing_asleep, FAULT_SECURE_SLEEP)
SCENE_CASE(threading, FAULT_THREADS)

/* ---- Beginning and end ---- */

static void creating(void) {
  const tarn_heap_config config = {.size = sizeof(config)};
  fault_create_all(&config);
}

static void destroying(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 32 * FAULT_MIB};
  fault_destroy_all(&config);
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
    {"sleep and wake, content saved", sleeping_saved},
    {"sleep and wake, content dropped", sleeping_dropped},
    {"fills, guards, quarantine", looking},
    {"guards and quarantine, asleep", looking_asleep},
    {"secure", securing},
    {"secure, asleep", securing_asleep},
    {"threads with their default streams", threading},
    {"creating a heap", creating},
    {"destroying a heap", destroying},
};

TEST_MAIN(cases)
