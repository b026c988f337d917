/* SPDX-License-Identifier: MIT
 *
 * A scope: the device blocks of one dispatch. Its slots are reserved up front and filled by index;
 * one call gives all of them back, in the order of a stream. Every way out of a dispatch, also the
 * one after an error, ends in tarn_scope_destroy, which gives back exactly what is held.
 *
 * A scope belongs to one thread at a time. */
#ifndef TARN_SCOPE_H
#define TARN_SCOPE_H

#include "tarn/heap.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_scope tarn_scope;
typedef struct tarn_fence tarn_fence; /* tarn/copy.h */

/* The index of the slot for the block of parameters, beside the counted ones. */
#define TARN_SCOPE_PARAMETERS UINT32_MAX

/* Makes a scope of `n_slots` empty slots and the one for parameters. `stream` is where the dispatch
 * runs: blocks are allocated in its order, and given back in its order when the scope is destroyed.
 * The default stream of a thread is that of the thread that makes the scope; for what another
 * thread does with the scope the legacy default stream stands for it, which follows it. */
TARN_API tarn_status tarn_scope_create(tarn_heap *heap, uint32_t n_slots, tarn_stream stream,
                                       tarn_scope **scope);

/* Allocates a block for a slot. TARN_STATE when the slot is occupied, TARN_RANGE when there is no
 * such slot. Zero bytes: the slot is filled with no block, at address 0. */
TARN_API tarn_status tarn_scope_alloc(tarn_scope *scope, uint32_t index, uint64_t bytes,
                                      tarn_ptr *block);
/* Fills the slots from `first` on, as many as `count`, with parts of one block that lie side by
 * side, each at a multiple of 256: uploads to parts that fill their place are one copy
 * (tarn/batch.h). All of them or none. blocks may be NULL, else it gets `count` addresses. */
TARN_API tarn_status tarn_scope_alloc_adjacent(tarn_scope *scope, uint32_t first, uint32_t count,
                                               const uint64_t *bytes, tarn_ptr *blocks);
/* Hands a live block of the heap over to a slot: from now on the scope gives it back. */
TARN_API tarn_status tarn_scope_put(tarn_scope *scope, uint32_t index, tarn_ptr block);
/* Takes a block out of its slot: it is the caller's to free then. TARN_STATE for parts of a block.
 */
TARN_API tarn_status tarn_scope_take(tarn_scope *scope, uint32_t index, tarn_ptr *block);

typedef struct tarn_scope_slot {
  size_t size;
  tarn_ptr address;
  uint64_t bytes; /* as asked for; of a block that was put, its usable bytes */
  bool is_filled;
} tarn_scope_slot;

TARN_API tarn_status tarn_scope_get(const tarn_scope *scope, uint32_t index, tarn_scope_slot *slot);

/* Gives all blocks back in the order of the stream, as tarn_free does, and empties the slots: the
 * scope can be filled again. Where a block cannot be given back the others are all the same, it
 * stays in its slot, never used again by anybody, and the status is that of the first such block.
 * The call can be made again. */
TARN_API tarn_status tarn_scope_release(tarn_scope *scope, tarn_stream stream);
/* The same behind a fence: the stream is made to wait for it first, on the device. When that fails
 * nothing is given back. Refused with TARN_CAPTURE when the stream is being captured and the fence
 * is not known to be complete: a graph cannot wait for what is outside of it. */
TARN_API tarn_status tarn_scope_release_after(tarn_scope *scope, tarn_fence *fence,
                                              tarn_stream stream);

/* Releases what is held in the order of the scope's own stream, and ends the scope. When it fails
 * the scope is still there, holds what could not be given back and can be destroyed again. A block
 * that somebody else has freed is told of once, and held no longer. On a lost device the scope
 * goes, with TARN_OK, and its blocks stay the heap's to bury. NULL is ignored. */
TARN_API tarn_status tarn_scope_destroy(tarn_scope *scope);

#ifdef __cplusplus
}
#endif

#endif
