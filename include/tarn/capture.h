/* SPDX-License-Identifier: MIT
 *
 * Memory for captured graphs. While a stream is being captured, what is allocated on it, and on
 * streams that its capture has forked to, comes from the capture's arena: addresses that stay the
 * same for every replay and that nobody else gets. Other threads and other streams go on as ever.
 *
 * A hit cannot afford to ask the driver whether a stream is being captured, so a capture is
 * announced: tarn_capture_begin begins one, or adopts one that the program has begun itself. For
 * programs that announce nothing there is the switch is_asking_captures of a heap, or
 * TARN_ASK_CAPTURES. Captures of which nobody told get no memory, but are not broken either by what
 * tarn does for other streams (with drivers from 10.1 on).
 *
 * Heaps of every backing and rounding can capture: an arena has memory of its own.
 */
#ifndef TARN_CAPTURE_H
#define TARN_CAPTURE_H

#include "tarn/heap.h"
#include "tarn/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_arena tarn_arena;
typedef struct tarn_capture tarn_capture;
typedef struct tarn_graph tarn_graph;
typedef struct tarn_layout tarn_layout;

/* ---- Arenas ---------------------------------------------------------------------------------
 * The memory of one graph, or of several that never run at once: a launch writes over what captures
 * after its own have left in places that were free by then. A capture makes its own when it is
 * given none. An arena is there until its owner has destroyed it, its last graph is gone and done,
 * and the last block of it is freed; whatever comes last. */
typedef struct tarn_arena_config {
  size_t size;
  uint64_t limit_bytes;   /* most that it may hold; 0: what the device has. Sets the addresses that
                             are reserved: worth setting where there are hundreds of arenas */
  uint64_t reserve_bytes; /* physical memory made at once, when the heap may still trim for it */
  tarn_ptr memory;       /* memory of the caller's to be used instead, or 0; needed where the device
                            has no virtual memory. TARN_BUSY: it is another arena's already */
  uint64_t memory_bytes; /* it cannot grow, sleep or be given back: it stays the caller's */
} tarn_arena_config;

TARN_API tarn_status tarn_arena_create(tarn_heap *heap, const tarn_arena_config *config,
                                       tarn_arena **arena);

/* The owner lets go of it. NULL is ignored. */
TARN_API tarn_status tarn_arena_destroy(tarn_arena *arena);

typedef struct tarn_arena_info {
  size_t size;
  uint64_t limit_bytes;
  uint64_t held_bytes;       /* physical memory; the caller's own counts, too */
  uint64_t high_water_bytes; /* most that was ever used, from the first address to the last */
  uint64_t live_bytes;       /* in blocks that are not freed */
  uint64_t live_blocks;
  uint64_t allocations; /* so far */
  uint64_t alloc_bytes; /* their sum */
  uint64_t graphs;      /* that use it */
  bool is_capturing;    /* a capture is placing blocks in it now */
  bool is_asleep;
} tarn_arena_info;

TARN_API tarn_status tarn_arena_get_info(tarn_arena *arena, tarn_arena_info *info);

/* Forgets all blocks of an arena that no graph and no capture uses or holds a block of (else
 * TARN_BUSY): it is as new. Work that uses its memory must be complete, or ordered before what
 * comes. */
TARN_API tarn_status tarn_arena_clear(tarn_arena *arena);

/* Gives the physical memory of an idle arena back to the device and keeps its addresses. With
 * `keep`, its content is saved in host memory and is there again after the waking; without, it is
 * lost. Waits for the last launch. Its graphs, and those that come to hold blocks of it, cannot be
 * launched before tarn_arena_wake. TARN_BUSY while a capture uses it, or a graph of another arena
 * holds a block of it, TARN_UNSUPPORTED for memory of the caller's. */
TARN_API tarn_status tarn_arena_sleep(tarn_arena *arena, bool keep);
TARN_API tarn_status tarn_arena_wake(tarn_arena *arena);

/* ---- Captures ------------------------------------------------------------------------------- */
typedef enum tarn_placement {
  TARN_PLACE_REUSE = 0,    /* freed memory is used again where the order in the graph allows it:
                              on the same branch, and across branches that are joined */
  TARN_PLACE_PLANNED = 1,  /* as a layout says that tarn_graph_plan made from an earlier capture of
                              the same work; where this one differs, as `reuse` */
  TARN_PLACE_MONOTONE = 2, /* one after the other at multiples of 256 bytes, never used again */
} tarn_placement;

/* The driver's modes: which calls of which threads are illegal meanwhile. */
typedef enum tarn_capture_mode {
  TARN_CAPTURE_THREAD_LOCAL = 0, /* unsafe calls of this thread */
  TARN_CAPTURE_GLOBAL = 1,       /* of any thread: those break the capture */
  TARN_CAPTURE_RELAXED = 2,      /* none */
} tarn_capture_mode;

typedef struct tarn_capture_config {
  size_t size;
  tarn_capture_mode mode; /* of an adopted capture: the one that it was begun in */
  tarn_placement placement;
  bool is_adopted;  /* the program has begun the capture itself, and ends it itself */
  bool holds_freed; /* blocks from before that are freed inside stay with the graph as long as it
                       lives; without, they are given back when the capture ends */
  bool reserved_bool[2];
  uint32_t reserved_u32;
  tarn_arena *arena;         /* NULL: one of its own */
  const tarn_layout *layout; /* for TARN_PLACE_PLANNED; needed until the capture ends */
  uint64_t limit_bytes;      /* of an arena of its own, as in tarn_arena_config */
  uint64_t reserve_bytes;
} tarn_capture_config;

/* Begins a capture on the stream and announces it. config may be NULL. TARN_BUSY when the arena is
 * in another capture, TARN_STATE when the stream is (or, adopted, is not) being captured. */
TARN_API tarn_status tarn_capture_begin(tarn_heap *heap, const tarn_capture_config *config,
                                        tarn_stream stream, tarn_capture **capture);

/* Ends it, on the stream and (unless relaxed) by the thread that began it, and gives the graph. An
 * adopted one is to be ended by the program before. TARN_STATE when it is of another thread's
 * default stream, which only that thread can name. When it fails, *graph is NULL; a capture that
 * the driver has ended all the same, or whose thread is gone with its default stream, is over, as
 * after tarn_capture_abort (*capture is NULL then), else it goes on, and the call can be made
 * again. */
TARN_API tarn_status tarn_capture_end(tarn_capture **capture, tarn_graph **graph);

/* Gives it up: whatever it recorded is dropped, and no trace of it is left. Blocks that were
 * allocated in it and not freed stay valid until they are. *capture is NULL afterwards, unless the
 * driver does not let go of it, or it is of another thread's default stream (TARN_STATE). NULL is
 * ignored. */
TARN_API tarn_status tarn_capture_abort(tarn_capture **capture);

/* The announced capture that the stream is in now; NULL: none, and what the program does on the
 * stream is done, not recorded. TARN_CAPTURE: it is in one that nobody announced, also if the heap
 * has found it by asking. */
TARN_API tarn_status tarn_capture_find(tarn_heap *heap, tarn_stream stream, tarn_capture **capture);

/* The graph memory that a capture left of which nobody told (TARN_ASK_CAPTURES), by the driver's id
 * of that capture; TARN_FOREIGN: there is none. From now on it is the caller's to destroy; without,
 * it lives as long as the heap. That the capture of a thread's default stream is over is seen when
 * that thread makes a call with it, or is gone. */
TARN_API tarn_status tarn_graph_find(tarn_heap *heap, uint64_t capture_id, tarn_graph **graph);

/* ---- Graphs ---------------------------------------------------------------------------------
 * What a capture leaves: the driver's graph, unless the capture was adopted, and the memory that
 * its replays use. */

/* Launches a graph of tarn's own. Launches are ordered after those of other graphs with the same
 * arena. The first launch instantiates it, which others' captures may forbid: TARN_CAPTURE, and it
 * can be tried again; likewise while a stream is captured that used a block of an earlier capture
 * before it joined, and has freed it inside, or was named for it there by tarn_use and it is freed.
 * If the heap had not heard of that stream before it freed one, the next launch waits for the
 * device on the host. */
TARN_API tarn_status tarn_graph_launch(tarn_graph *graph, tarn_stream stream);

/* Says that the program has launched the graph itself, on this stream, just now. */
TARN_API tarn_status tarn_graph_launched(tarn_graph *graph, tarn_stream stream);

/* Hands a live block of the heap to the graph, in the order of the stream, as tarn_free would: it
 * is freed when the graph goes. */
TARN_API tarn_status tarn_graph_hold(tarn_graph *graph, tarn_ptr block, tarn_stream stream);

/* The driver's graph (a CUgraph), valid as long as this one; NULL: the capture was adopted. */
TARN_API void *tarn_graph_handle(tarn_graph *graph);

TARN_API tarn_arena *tarn_graph_arena(tarn_graph *graph);

typedef struct tarn_graph_info {
  size_t size;
  tarn_placement placement;
  bool is_idle;      /* all launches are known to be complete */
  bool has_diverged; /* a planned capture that was not as planned: from here on as `reuse` */
  bool reserved_bool[2];
  uint64_t diverged_at; /* the how-manieth allocation, from 0 */
  uint64_t bytes;       /* that this graph's blocks need, from the first address to the last */
  uint64_t allocations; /* in its capture */
  uint64_t alloc_bytes; /* their sum */
  uint64_t peak_bytes;  /* most that were allocated at once, in the order of the calls */
  uint64_t held_blocks; /* from before its capture, or handed to it */
  uint64_t launches;
} tarn_graph_info;

TARN_API tarn_status tarn_graph_get_info(tarn_graph *graph, tarn_graph_info *info);

/* Lets go of a graph. It and its memory go at once when all launches are complete, else later: with
 * another call that looks, and at the latest with the heap. NULL is ignored. */
TARN_API tarn_status tarn_graph_destroy(tarn_graph *graph);

/* ---- Layouts --------------------------------------------------------------------------------
 * A plan for the memory of a capture: where each allocation goes, by its number in the sequence. */

/* Plans the memory of a graph as it was captured. Options as for tarn_plan_create. */
TARN_API tarn_status tarn_graph_plan(tarn_graph *graph, const tarn_plan_options *options,
                                     tarn_layout **layout);
/* The same from a text of tarn_layout_save: TARN_STATE when it is of another graph. */
TARN_API tarn_status tarn_graph_plan_load(tarn_graph *graph, const char *text, size_t length,
                                          tarn_layout **layout);
/* free() gives the text back. */
TARN_API tarn_status tarn_layout_save(const tarn_layout *layout, char **text, size_t *length);
TARN_API tarn_status tarn_layout_get_info(const tarn_layout *layout, tarn_plan_info *info);
TARN_API void tarn_layout_destroy(tarn_layout *layout);

#ifdef __cplusplus
}
#endif

#endif
