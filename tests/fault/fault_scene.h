/* SPDX-License-Identifier: MIT
 *
 * Scenes of a heap's life for tests of failures: each is played while something fails, and once
 * more when it no longer does. */
#ifndef TARN_FAULT_SCENE_H
#define TARN_FAULT_SCENE_H

#include "support/rig.h"

enum { FAULT_MAX_BLOCKS = 64, FAULT_MIB = 1 << 20 };

typedef struct fault_world {
  rig rig;
  bool is_armed; /* a fault may strike now */
  bool is_for_good;
  bool is_lost; /* the device is broken */
  tarn_status expected;
  bool checks_call; /* the heap's own check calls the driver: not while a fault may strike */
  void (*on_call)(bool is_inside); /* around every call of the heap; may be NULL */
  int n_blocks;
  rig_block blocks[FAULT_MAX_BLOCKS];
  tarn_stream streams[FAULT_MAX_BLOCKS]; /* on which each is freed */
} fault_world;

typedef struct fault_scene {
  const char *device;
  tarn_heap_config config;
  void (*play)(fault_world *w);
} fault_scene;

enum {
  FAULT_GROW,
  FAULT_MOVE,
  FAULT_MOVE_ANY,
  FAULT_STEAL_SHORT,
  FAULT_STEAL_ALWAYS,
  FAULT_STEAL_NEVER,
  FAULT_SHARE,
  FAULT_RETIRE,
  FAULT_TRIM,
  FAULT_LIMIT,
  FAULT_THREADS,
  FAULT_RESET,
  FAULT_ANY_BACKING, /* the scenes before it are for every heap, the others for chunks */
  FAULT_SLEEP_SAVE = FAULT_ANY_BACKING,
  FAULT_SLEEP_DROP,
  FAULT_DEBUG,
  FAULT_DEBUG_SLEEP,
  FAULT_SECURE,
  FAULT_SECURE_SLEEP,
  FAULT_SCENES,
};

extern const fault_scene fault_scenes[FAULT_SCENES];

/* A heap in the middle of its life: chunks moved, streams retired, blocks pending and live. */
void fault_live_a_little(fault_world *w);
void fault_give_all(fault_world *w);

/* Whether the call succeeded; if not, it failed as the fault lets it, and the heap is sound. */
bool fault_passed(fault_world *w, tarn_status status);

#endif
