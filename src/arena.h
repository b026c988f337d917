/* SPDX-License-Identifier: MIT
 *
 * The model of captures: every struct with its invariants, and what their files share. Glossary:
 *   arena    addresses of their own with memory behind them, from the first up to `mapped`
 *   piece    a stretch of an arena's addresses: a live block, free, or held, which is a block that
 *            was freed in a later capture and goes with that, or with its graph. Pieces partition
 *            the arena from 0 to `top`; what lies behind was never used, or is not used any more
 *   stamp    of a free piece: what must be complete, in the capture that goes on, before it is used
 *            again (algo/reach.h). Outside a capture it is TARNI_REACH_ALWAYS: whoever captures
 *            next runs at another time
 *   request  an allocation of a capture, with its lifetime: what a layout is made of
 *   ticket   of a lane (types.h): what must be complete before an arena's memory goes
 *
 * All of it is guarded by heap->capture (rank CAPTURE), which may be held during driver calls. A
 * name that ends in _held needs it. */
#ifndef TARNI_ARENA_H
#define TARNI_ARENA_H

#include "algo/reach.h"
#include "internal.h"
#include "tarn/capture.h"

#define TARNI_PIECE_NONE UINT32_MAX

enum {
  TARNI_ARENA_GRANULE = 256,
  TARNI_CAPTURE_BRANCHES = 32, /* streams of one capture whose frees are kept apart */
};

/* ---- Arenas ---- */

typedef struct tarni_piece {
  uint64_t offset, size;
  uint32_t previous, next; /* in the order of addresses; unused records are linked by next */
  uint32_t stamp;          /* free */
  uint32_t request;        /* live: in the capture that goes on; TARNI_PIECE_NONE: from before */
  bool is_live;
  const tarn_graph *holder; /* held: that graph, or the one that a capture will be; else NULL */
  struct tarni_piece_uses *uses; /* live: streams named by tarn_use; NULL: none */
} tarni_piece;

/* A stream that uses a block besides the one that frees it. Made by tarn_use (I7). */
typedef struct tarni_piece_uses {
  struct tarni_piece_uses *next;
  tarn_stream stream;
  const void *thread; /* whose stream it is, where each thread has its own; else NULL */
  tarni_index lane;   /* TARNI_LANE_COMMON: it was in the capture that has made the block */
} tarni_piece_uses;

typedef enum tarni_arena_chunk_state {
  TARNI_CHUNK_CREATED, /* physical memory without an address */
  TARNI_CHUNK_MAPPED,  /* no access yet */
  TARNI_CHUNK_READY,
} tarni_arena_chunk_state;

typedef struct tarni_arena_chunk { /* in the order of addresses; all but the last are READY */
  tarni_chunk handle;
  uint64_t offset, size;
  tarni_arena_chunk_state state;
} tarni_arena_chunk;

struct tarn_arena {
  /* immutable after create: */
  tarn_heap *heap;
  tarn_ptr base;
  uint64_t limit; /* bytes from the base that may be used */
  uint64_t space; /* bytes reserved; 0: the memory is the caller's */
  /* lock CAPTURE: */
  tarn_arena *next; /* of the heap */
  bool is_owned;    /* its owner has not let go of it */
  bool is_asleep;
  bool is_unsure; /* something may use it that no ticket stands for: see tarni_arena_sure_held */
  uint32_t n_graphs;
  tarn_capture *capture; /* that places blocks in it */
  tarni_piece *pieces;
  uint32_t n_pieces, pieces_capacity, unused; /* records */
  uint32_t first, last;
  uint32_t *free; /* the free pieces, in the order of addresses; as much room as for pieces */
  uint32_t n_free;
  tarni_table live; /* offset -> piece of every live block */
  uint32_t n_held;  /* pieces */
  uint64_t top;
  uint64_t high_water, live_bytes, allocations, alloc_bytes;
  tarni_arena_chunk *chunks;
  uint32_t n_chunks, chunks_capacity;
  uint64_t mapped;   /* bytes from the base that are READY */
  uint64_t kept;     /* what lies behind, and behind the top, was made for a capture that came to
                        nothing: it goes when nothing uses the arena. UINT64_MAX: nothing does */
  void *saved;       /* the content of a sleeping one; NULL: it is lost */
  uint64_t slept;    /* how much it had */
  uint64_t *tickets; /* by lane: what must be complete before the memory goes, and before a graph
                        is launched */
  uint64_t *fresh;   /* likewise, of blocks that the capture which goes on has made and freed: no
                        graph that can be launched by now has to wait for them */
};

/* ---- Captures ---- */

typedef struct tarni_request {
  uint64_t size, alignment, offset;
  uint64_t begin, end; /* in the order of calls; end is UINT64_MAX while it lives */
  uint32_t done, past; /* stamps: where it was allocated, where it was freed */
} tarni_request;

/* Blocks from before that were freed inside, by the stream that freed them. Their lists go through
 * the heap's own records, so that nothing is allocated (I7). In a heap of the driver's allocations
 * all blocks are large ones. */
typedef struct tarni_deferred {
  tarn_stream stream;
  const void *thread; /* that freed them: a thread's default stream is that thread's */
  uint32_t small;     /* offset / 256 + 1, linked through heap->links; 0: none */
  tarni_index large;  /* extent, linked through its `link`; or grant */
  tarni_uses *uses;   /* blocks that several streams use */
  uint64_t n_blocks;
} tarni_deferred;

/* What a capture has learned, and a graph keeps. */
typedef struct tarni_story {
  tarni_reach reach;
  tarni_request *requests;
  uint32_t n_requests, requests_capacity;
  uint64_t now;         /* calls so far */
  uint64_t bytes;       /* from the arena's first address to the end of the last block */
  uint64_t alloc_bytes; /* sum of all requests */
  uint64_t live, peak;  /* bytes allocated at once */
  uint64_t diverged_at;
  bool has_diverged;
  tarn_placement placement;
} tarni_story;

struct tarn_capture {
  /* immutable after begin: */
  tarn_heap *heap;
  tarn_arena *arena;
  tarn_stream stream;
  uint64_t id;
  tarn_capture_config config;
  const void *thread;     /* whose unsafe calls are illegal meanwhile */
  bool is_found;          /* nobody announced it: it was found by asking */
  uint64_t mapped_before; /* what the arena had, but for what was to go */
  /* lock CAPTURE: */
  tarn_capture *next; /* of the heap */
  tarn_graph *graph;  /* what it will be: made first, so that the end needs no memory */
  tarni_story story;
  tarni_edge *edges; /* scratch of branch.c */
  uint64_t *path;
  uint32_t edges_capacity, path_capacity;
  tarni_deferred deferred[TARNI_CAPTURE_BRANCHES + 1]; /* the last: of streams beyond that number */
  uint32_t n_deferred;
  /* lock of strict.c: */
  tarn_capture *next_strict;
};

/* Whether the capture's stream is another thread's default stream, which cannot be named here. */
static inline bool tarni_capture_is_anothers(const tarn_capture *capture) {
  return capture->stream == TARNI_STREAM_PER_THREAD && capture->thread != tarni_thread();
}

/* ---- Graphs ---- */

struct tarn_graph {
  tarn_heap *heap;
  tarn_arena *arena;
  /* lock CAPTURE: */
  tarn_graph *next; /* of the heap */
  bool is_gone;     /* its owner has let go of it; it waits for its last launch */
  bool is_found;    /* nobody announced its capture, and nobody has asked for it yet */
  bool is_unsure;   /* something may use it that no ticket stands for: tarni_captures_sure_held */
  uint64_t id;      /* of its capture */
  tarni_story story;
  tarni_graph handle;
  tarni_graph_exec exec;
  uint64_t launches;
  tarni_order_entry *launched; /* the last ticket of each lane that launched it */
  uint32_t n_launched, launched_capacity;
  tarni_deferred held; /* blocks that go with the graph; its stream means nothing */
};

struct tarn_layout {
  tarn_plan_buffer *buffers;
  uint64_t count;
  uint32_t *starts, *predecessors; /* NULL: a time line */
  tarn_plan *plan;
};

/* ---- arena.c: addresses and memory ---- */
tarn_status tarni_arena_make(tarn_heap *heap, const tarn_arena_config *config,
                             const char *operation, tarn_arena **out);
/* Sees to it that there is memory up to `end`. Legal in any capture. */
tarn_status tarni_arena_grow_held(tarn_arena *arena, uint64_t end, const char *operation);
/* The same ahead of a capture, where the heap may trim for it. */
tarn_status tarni_arena_reserve_held(tarn_arena *arena, uint64_t bytes, const char *operation);
/* Gives the memory behind `end` back, where a whole chunk lies there. pre: nothing uses it. */
tarn_status tarni_arena_shrink_held(tarn_arena *arena, uint64_t end);
/* Whether there is memory that was made for a capture which came to nothing. */
bool tarni_arena_has_surplus(const tarn_arena *arena);
/* Whether somebody has a right to it: its owner, a capture, a graph, a block that is live or held.
 */
bool tarni_arena_is_needed(const tarn_arena *arena);
/* Frees those that nobody needs any more, and memory that was made for captures which came to
 * nothing: TARN_OK also where they must wait. */
tarn_status tarni_arenas_reap_held(tarn_heap *heap);
/* The arena that the address belongs to; NULL: none. */
tarn_arena *tarni_arena_find_held(tarn_heap *heap, tarn_ptr address);
/* Whether there is one: else the error. The error of one that is in use. */
tarn_status tarni_arena_given(const tarn_arena *arena, const char *operation);
tarn_status tarni_arena_busy(const tarn_arena *arena, const char *operation);

/* ---- arena_order.c: what must be complete ---- */
/* Notes that work which the stream was given so far uses the arena's memory. is_fresh: a block that
 * the capture has made itself, and the stream is in the capture. */
void tarni_arena_ticket_held(tarn_arena *arena, tarn_stream stream, bool is_fresh);
void tarni_arena_ticket_lane_held(tarn_arena *arena, tarni_index lane);
/* A capture is over: its streams can be given their fences, before another one has them. */
void tarni_arena_settle_held(tarn_arena *arena);
/* Whether all such work is known to be complete. */
bool tarni_arena_is_done_held(tarn_arena *arena);
/* Waits for it, on the host. */
tarn_status tarni_arena_finish_held(tarn_arena *arena);
/* What no ticket stands for is complete when everything is: waits for the device, if need be. */
tarn_status tarni_arena_sure_held(tarn_arena *arena, const char *operation);

/* ---- piece.c: blocks in an arena ---- */
/* The lowest place of the smallest free stretch that holds so much, of what `done` covers; where
 * there is none, at the end. UINT64_MAX: the sum overflows. */
uint64_t tarni_piece_find_held(const tarn_arena *arena, const tarni_reach *reach, uint32_t done,
                               uint64_t size, uint64_t alignment);
/* Whether all of a stretch is free, and `done` covers it. */
bool tarni_piece_fits_held(const tarn_arena *arena, const tarni_reach *reach, uint32_t done,
                           uint64_t offset, uint64_t size);
/* Makes room for the records of one more block. False: no host memory. */
bool tarni_piece_room_held(tarn_arena *arena);
/* Makes one live block of a stretch. pre: it fits, and there is room. */
uint32_t tarni_piece_take_held(tarn_arena *arena, uint64_t offset, uint64_t size);
/* Makes a live block free. Never allocates. */
void tarni_piece_give_held(tarn_arena *arena, uint32_t index, uint32_t stamp);
/* Makes a live block a held one. Never allocates. */
void tarni_piece_hold_held(tarn_arena *arena, uint32_t index, const tarn_graph *holder);
/* Makes all that the graph holds free, in any arena. */
void tarni_pieces_release_held(tarn_heap *heap, const tarn_graph *holder);
/* Whether a graph of another arena holds any. */
bool tarni_pieces_are_lent_held(const tarn_arena *arena);
/* Whether the graph holds any of an arena that is asleep. */
bool tarni_pieces_are_asleep_held(const tarn_graph *holder);
/* How many the graph holds, in any arena. */
uint64_t tarni_pieces_count_held(const tarn_heap *heap, const tarn_graph *holder);
/* A capture is over: all that is free may be used by the next. */
void tarni_pieces_settle_held(tarn_arena *arena);
/* The live block that holds the offset; TARNI_PIECE_NONE: none. */
uint32_t tarni_piece_at_held(const tarn_arena *arena, uint64_t offset);
tarn_status tarni_pieces_check_held(const tarn_arena *arena);
/* There is no block any more. */
void tarni_pieces_forget_held(tarn_arena *arena);
void tarni_pieces_close(tarn_arena *arena);

/* ---- branch.c: where a capturing stream is in its graph ---- */
/* The stamp of what is complete there, or of all that came before. TARNI_REACH_NEVER where that
 * cannot be known. */
uint32_t tarni_branch_done_held(tarn_capture *capture, tarn_stream stream);
uint32_t tarni_branch_past_held(tarn_capture *capture, tarn_stream stream);

/* ---- capture.c ---- */
/* The announced capture that the stream is in. *capture is NULL: it is in none. TARN_CAPTURE: it is
 * in one that is broken, or of which nobody told. */
tarn_status tarni_capture_of_held(tarn_heap *heap, tarn_stream stream, tarn_capture **capture);
/* The same for frees: a broken capture is one, one of which nobody told is none. */
tarn_status tarni_capture_of_free_held(tarn_heap *heap, tarn_stream stream, tarn_capture **capture);
/* The same for what may not fail: where it cannot be known there is none. */
tarn_capture *tarni_capture_freeing_held(tarn_heap *heap, tarn_stream stream);
tarn_status tarni_capture_id_held(tarn_capture *capture);
tarn_status tarni_capture_state_of(tarn_heap *heap, tarn_stream stream, tarni_capture_state *state);
/* *capture is NULL: no announced capture has this id. */
tarn_status tarni_capture_by_id_held(tarn_heap *heap, uint64_t id, tarn_capture **capture);
/* Ends what the heap knows of a capture, and gives its memory back or to its graph. */
void tarni_capture_close_held(tarn_capture *capture, bool is_kept);
void tarni_capture_free(tarn_capture *capture);
/* Captures that nobody announced are over when their stream is not in them any more. */
void tarni_captures_find_ends_held(tarn_heap *heap);

/* ---- parked.c: what captures leave when they are over ---- */
/* Gives back what was freed inside; where the driver does not let it, it is tried again later. The
 * capture is gone afterwards. */
void tarni_freed_release_held(tarn_capture *capture);
/* What was freed inside goes with the graph. */
void tarni_freed_hold_held(tarn_capture *capture);

/* ---- story.c: what a capture has allocated ---- */
bool tarni_story_room(tarni_story *story);
uint32_t tarni_story_alloc(tarni_story *story, const tarni_request *request);
void tarni_story_free(tarni_story *story, uint32_t request, uint32_t past);
void tarni_story_close(tarni_story *story);

/* ---- defer.c: blocks from before, freed inside ---- */
/* Whether this thread has no name for the stream that the blocks were freed on. */
bool tarni_deferred_is_nameless(const tarni_deferred *deferred);
/* Gives the blocks of a list back, in the order of its stream or, without one, of the common lane.
 */
tarn_status tarni_deferred_release_held(tarn_heap *heap, tarni_deferred *deferred);
void tarni_deferred_give_locked(tarn_heap *heap, tarni_deferred *deferred, tarni_index lane);
void tarni_deferred_append_locked(tarn_heap *heap, tarni_deferred *to, tarni_deferred *from);
/* Takes a live block of the heap out of use and adds it. False: another thread has freed it, which
 * only a heap of the driver's allocations can tell. */
bool tarni_deferred_add_locked(tarn_heap *heap, tarni_deferred *to, uint64_t offset);

/* ---- graph.c ---- */
void tarni_graph_add_held(tarn_graph *graph);
void tarni_graph_drop_held(tarn_graph *graph);
/* Work that the stream was given so far uses what the graph holds. */
void tarni_graph_use_held(tarn_graph *graph, tarn_stream stream);
/* Frees the graphs that are gone and whose launches are complete. */
void tarni_graphs_reap_held(tarn_heap *heap);

/* ---- strict.c: captures that make calls illegal ---- */
void tarni_strict_add(tarn_capture *capture);
void tarni_strict_remove(tarn_capture *capture);

#endif
