/* SPDX-License-Identifier: MIT
 *
 * A random program over heaps of one simulated GPU: what its threads hold, and the steps that they
 * take. All that it does is legal by the headers, and what it expects is what they say.
 *
 * Locks: `world` is held for reading in each step and for writing in what no other call may run
 * beside; `mutex` guards what is posted, and the notes. */
#ifndef TARN_STRESS_LIFE_H
#define TARN_STRESS_LIFE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/budget.h"
#include "tarn/capture.h"

enum {
  LIFE_HEAPS = 2,
  LIFE_COMMON = 3,
  LIFE_OWN = 3,
  LIFE_THREADS = 4,
  LIFE_LIVE = 48,
  LIFE_POSTED = 32,
  LIFE_CAPTURED = 10,
  LIFE_GRAPHS = 4,
  LIFE_ARENAS = 2,
  LIFE_MIB = 1 << 20,
};

#define LIFE_PER_THREAD ((tarn_stream)2)
#define LIFE_NO_STREAM ((tarn_stream)UINTPTR_MAX)

/* What a call may answer beside TARN_OK. */
enum { LIFE_SHORT = 1, LIFE_CAPTURE = 2, LIFE_STATE = 4, LIFE_BUSY = 8, LIFE_UNSUPPORTED = 16 };

typedef struct life_block {
  rig_block block; /* address 0: none */
  int heap;
  tarn_stream stream; /* that its uses are ordered with */
  bool is_read_only;  /* other streams read it, too */
  bool is_blind;      /* its uses are named, not ordered: it can be freed, not used */
  bool is_exact;      /* its bytes are what was asked for */
  bool has_value;     /* of its content */
  uint8_t value;
  uint64_t epoch; /* of the heap when it was written */
} life_block;

typedef struct life_note { /* what a kernel writes, or is to find */
  struct life_note *next;
  uint64_t seed;
  tarn_ptr address;
  uint64_t bytes;
  uint8_t value;
} life_note;

typedef struct life_heap {
  tarn_heap *heap;
  tarn_heap_config config;
  bool has_buckets, is_asleep;
  uint64_t epoch; /* raised when content is dropped */
} life_heap;

typedef struct life_capture {
  tarn_capture *capture; /* NULL: none that was announced goes on */
  bool is_going_on, is_raw;
  uint64_t raw_id; /* the driver's, of one of which nobody told */
  tarn_stream origin, side;
  tarn_capture_mode mode;
  int heap, arena; /* -1: one of its own */
  bool is_forked, holds_freed, has_held;
  life_block blocks[LIFE_CAPTURED];
  int n;
} life_capture;

typedef struct life_graph { /* also what is left of a capture that was given up */
  tarn_graph *graph;
  int heap, arena;
  tarn_stream after; /* what its next launch, and frees of its blocks, must follow */
  bool has_held;
  bool is_raw;        /* of a capture of which nobody told */
  tarni_graph handle; /* the driver's of such a one, with exec; NULL: it is not launched any more */
  tarni_graph_exec exec;
  life_block blocks[LIFE_CAPTURED];
  int n;
} life_graph;

typedef struct life_arena {
  tarn_arena *arena;
  int heap;
  bool is_asleep;
  life_block memory; /* the caller's, or none */
  tarn_stream home;  /* where all that uses such memory is */
  tarn_stream last;  /* of the last launch of any of its graphs */
} life_arena;

typedef struct life_thread {
  struct life *life;
  pthread_t thread;
  tarni_rng rng;
  int number, n;
  uint64_t n_steps; /* left */
  tarn_stream own[LIFE_OWN];
  life_block live[LIFE_LIVE];
  life_capture capture;
  life_graph graphs[LIFE_GRAPHS];
  life_arena arenas[LIFE_ARENAS];
  tarn_layout *layout; /* of a capture on layout_heap, for the next one */
  tarn_budget *budget;
  tarn_stream budget_stream;
  int budget_heap, scope_heap, layout_heap;
  tarn_stats_scope *scope;
  uint64_t n_struck, n_refused, n_done;
} life_thread;

typedef struct life {
  uint64_t seed, total_bytes, most_bytes; /* of the device, of a block */
  tarn_device *device;
  tarn_stream common[LIFE_COMMON];
  life_heap heaps[LIFE_HEAPS];
  int n_heaps, n_threads;
  bool has_faults, has_captures, has_raw, has_legacy, has_unretired;
  bool is_lost;         /* the device is broken: nothing is expected but that nothing crashes */
  bool has_had_buckets; /* the device may hold more than heaps do: pages and pools of its own */
  pthread_rwlock_t world;
  pthread_mutex_t mutex;
  life_block posted[LIFE_POSTED];
  int n_posted;
  life_note *notes;
  _Atomic uint64_t last_owner;
  _Atomic int n_global;     /* captures in the global mode */
  _Atomic int n_per_thread; /* captures of threads' default streams */
  uint64_t n_findings;
  life_thread threads[LIFE_THREADS];
} life;

/* ---- Chance, and what calls may answer ---- */
bool life_chance(life_thread *self, uint64_t percent);
uint64_t life_below(life_thread *self, uint64_t bound);
bool life_passed(life_thread *self, tarn_status status, int may);
/* Whether a planned fault has struck the call, so that it is to be made again. */
bool life_struck(life_thread *self, tarn_status status);

/* ---- Streams ---- */
bool life_is_captured(const life_thread *self, tarn_stream stream);
bool life_is_usable(const life_thread *self, tarn_stream stream);
bool life_may_wait(const life_thread *self);
tarn_stream life_pick_stream(life_thread *self);
void life_order(life_thread *self, tarn_stream before, tarn_stream after);
void life_replace_stream(life_thread *self);
/* The thread is about to exit: what is on its own default stream goes to another. */
void life_leave(life_thread *self);

/* ---- Blocks ---- */
void life_own(life *l, life_block *block);
void life_disown(life *l, const life_block *block);
void life_own_again(life *l, const life_block *block);
void life_launch(life_thread *self, const life_block *block, tarn_stream stream, bool is_write);
/* Whether the heap fills blocks or looks at them. */
bool life_has_care(const tarn_heap_config *config);
/* Frees it; false: not now. */
bool life_release(life_thread *self, life_block *block);
void life_forget(life_thread *self, int at);
bool life_move(life_thread *self, life_block *block, tarn_stream to);
void life_allocate(life_thread *self);
void life_step_block(life_thread *self);
void life_step_heap(life_thread *self);
void life_budget_end(life_thread *self);
void life_scope_end(life_thread *self);
bool life_on_shortage(tarn_heap *heap, uint64_t bytes, void *user);
void life_is_self(life_thread *self); /* of this thread, for life_on_shortage */

/* ---- Captures ---- */
/* With `is_alone` held for writing: captures that forbid others something. */
void life_capture_begin(life_thread *self, bool is_alone);
void life_capture_end(life_thread *self, bool is_kept);
void life_step_capture(life_thread *self);
void life_graph_drop(life_thread *self, life_graph *graph);
bool life_arena_drop(life_thread *self, int at);

/* ---- Captures of which nobody tells ---- */
/* Whether the heap gives memory for the one that goes on. */
bool life_raw_has_memory(const life_thread *self);
bool life_raw_begin(life_thread *self);
/* The graph has what is left of it; without memory of the heap, or not kept, nothing. */
tarn_status life_raw_end(life_thread *self, bool is_kept, life_graph *graph);
bool life_raw_launch(life_thread *self, life_graph *graph, tarn_stream stream);
void life_raw_drop(life_thread *self, life_graph *graph);

#endif
