/* SPDX-License-Identifier: MIT
 *
 * The n-th driver call fails, for every n, once and for good, in the life of heaps whose blocks are
 * the driver's own allocations: the same scenes as for other heaps (test_heap_fault), on every
 * backing, and with little kept, so that blocks are given back all the time. */
#include "fault/fault_run.h"
#include "support/test.h"

/* The scene on another backing, with room for what it rounds up to. */
static void play_on(int index, tarn_backing backing, bool keeps_little) {
  fault_scene scene = fault_scenes[index];
  const bool is_tight = index >= FAULT_STEAL_SHORT && index <= FAULT_STEAL_NEVER;
  scene.config.backing = backing;
  scene.config.rounding = TARN_ROUNDING_EXACT;
  if (is_tight && backing == TARN_BACKING_VMM) { /* a page of 2 MiB for each small block */
    scene.device = index == FAULT_STEAL_ALWAYS ? "sim:32M,seed=5" : "sim:32M,order=lazy";
  }
  if (index == FAULT_THREADS && backing == TARN_BACKING_VMM) {
    scene.config.limit_bytes = 40 * FAULT_MIB;
  }
  if (keeps_little) {
    scene.config.cached_limit_bytes = 4 * FAULT_MIB;
    scene.config.cached_blocks_per_size = 2;
  }
  fault_run_all(&scene);
}

static void play_on_all(const int *scenes, size_t n, tarn_backing backing, bool keeps_little) {
  for (size_t i = 0; i < n && !test_case_failed(); i++) {
    play_on(scenes[i], backing, keeps_little);
    if (test_case_failed()) {
      test_note("scene %d", scenes[i]);
    }
  }
}

/* All but those in which chunks move. */
static void play_all_on(tarn_backing backing) {
  static const int scenes[] = {FAULT_GROW,         FAULT_MOVE,        FAULT_STEAL_SHORT,
                               FAULT_STEAL_ALWAYS, FAULT_STEAL_NEVER, FAULT_SHARE,
                               FAULT_RETIRE,       FAULT_TRIM,        FAULT_LIMIT,
                               FAULT_RESET,        FAULT_THREADS};
  play_on_all(scenes, sizeof(scenes) / sizeof(scenes[0]), backing, false);
}

static void play_little_on(tarn_backing backing) {
  static const int scenes[] = {FAULT_STEAL_NEVER, FAULT_SHARE, FAULT_RETIRE, FAULT_THREADS};
  play_on_all(scenes, sizeof(scenes) / sizeof(scenes[0]), backing, true);
}

static void plain(void) {
  play_all_on(TARN_BACKING_PLAIN);
}

static void pool(void) {
  play_all_on(TARN_BACKING_POOL);
}

/* Each takes several calls, so that a few scenes have as many faults. */
static void mappings(void) {
  static const int scenes[] = {FAULT_STEAL_SHORT, FAULT_SHARE, FAULT_TRIM, FAULT_THREADS};
  play_on_all(scenes, sizeof(scenes) / sizeof(scenes[0]), TARN_BACKING_VMM, true);
}

static void plain_with_little_kept(void) {
  play_little_on(TARN_BACKING_PLAIN);
}

static void pool_with_little_kept(void) {
  play_little_on(TARN_BACKING_POOL);
}

static tarn_heap_config config_of(tarn_backing backing) {
  return (tarn_heap_config){.size = sizeof(tarn_heap_config),
                            .limit_bytes = 32 * FAULT_MIB,
                            .backing = backing,
                            .rounding = TARN_ROUNDING_POWER_OF_TWO};
}

/* Plain memory and mappings need nothing of the driver before the first block. */
static void creating(void) {
  const tarn_heap_config config = config_of(TARN_BACKING_POOL);
  fault_create_all(&config);
}

static void destroying(void) {
  for (int backing = TARN_BACKING_VMM; backing <= TARN_BACKING_PLAIN; backing++) {
    const tarn_heap_config config = config_of((tarn_backing)backing);
    fault_destroy_all(&config);
  }
}

static const test_case cases[] = {
    {"plain memory", plain},
    {"a private pool", pool},
    {"mappings of their own", mappings},
    {"plain memory, little kept", plain_with_little_kept},
    {"a private pool, little kept", pool_with_little_kept},
    {"creating a heap", creating},
    {"destroying a heap", destroying},
};

TEST_MAIN(cases)
