/* SPDX-License-Identifier: MIT
 *
 * Copies between any host memory and a device, at near the speed of the link between them. Memory
 * that is pinned is copied by the device itself. Ordinary memory is staged through pinned memory in
 * pieces, by several threads, while earlier pieces fly.
 *
 * And fences: a proof that work has completed. */
#ifndef TARN_COPY_H
#define TARN_COPY_H

#include "tarn/pinned.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_copier tarn_copier;
typedef struct tarn_fence tarn_fence;

typedef struct tarn_copier_config {
  size_t size;
  uint64_t piece_bytes; /* most that is staged at a time, 4 KiB to 64 MiB; 0: 2 MiB */
  uint32_t n_threads;   /* helpers beside the calling thread, up to 63; 0: as the machine has cores,
                           up to 11 */
  bool has_no_threads;  /* the calling thread does everything */
  bool reserved_bool[3];
} tarn_copier_config;

/* Makes a copier for the device of a pool, which gives it the memory to stage in and must outlive
 * it. config may be NULL: all defaults. Helpers are started by the first copy that is large enough
 * for them. */
TARN_API tarn_status tarn_copier_create(tarn_pinned *pool, const tarn_copier_config *config,
                                        tarn_copier **copier);

/* Ends the helpers and gives everything back. TARN_BUSY, with their number, while there are fences
 * or batches of it. No other call on the copier may be under way. NULL is ignored. */
TARN_API tarn_status tarn_copier_destroy(tarn_copier *copier);

/* To be called before a stream is destroyed that the copier, or a batch of it, was given. */
TARN_API tarn_status tarn_copier_stream_retire(tarn_copier *copier, tarn_stream stream);

/* Copies host memory to the device in the order of the stream, and returns when it is there. Zero
 * bytes: nothing, success. When it fails the destination is undefined. TARN_OVERFLOWED for a size
 * that ends beyond the address space, or has more than about 2^32 pieces. */
TARN_API tarn_status tarn_copy_in(tarn_copier *copier, tarn_ptr destination, const void *source,
                                  uint64_t bytes, tarn_stream stream);

/* The same without waiting for the device. Ordinary memory has been read when the call returns, and
 * may be changed then; pinned memory must stay as it is until the stream has got there. *fence
 * tells when that is; fence may be NULL: not asked for. On failure, and for zero bytes, it is NULL.
 *
 * On a stream that is being captured the source must be pinned, and stay valid as long as the
 * graph; fence must be NULL. */
TARN_API tarn_status tarn_copy_in_async(tarn_copier *copier, tarn_ptr destination,
                                        const void *source, uint64_t bytes, tarn_stream stream,
                                        tarn_fence **fence);

/* Copies device memory to the host in the order of the stream, and returns when it is there. When
 * it fails the destination is undefined. */
TARN_API tarn_status tarn_copy_out(tarn_copier *copier, void *destination, tarn_ptr source,
                                   uint64_t bytes, tarn_stream stream);

/* The same without waiting for the end: later work of the stream may use the device memory at once.
 * Pinned memory is complete when the stream has got there. Ordinary memory is complete when
 * tarn_fence_wait, or tarn_fence_query, has said so: they do the host's part of the copy, so a
 * fence must be asked for. Where it is large the call itself waits for all but its end. */
TARN_API tarn_status tarn_copy_out_async(tarn_copier *copier, void *destination, tarn_ptr source,
                                         uint64_t bytes, tarn_stream stream, tarn_fence **fence);

typedef struct tarn_copier_stats {
  size_t size;
  uint64_t direct_copies; /* of pinned memory */
  uint64_t small_copies;  /* staged in one piece */
  uint64_t staged_copies; /* in several */
  uint64_t bytes_in;
  uint64_t bytes_out;
  uint64_t fences;            /* that callers hold */
  uint64_t batches;           /* likewise */
  uint64_t quarantined_bytes; /* pinned memory of which it could not be proven that the device is
                                 done with it: out of use */
  uint32_t n_threads;         /* helpers that are there */
  uint32_t reserved_u32;
} tarn_copier_stats;

TARN_API tarn_status tarn_copier_get_stats(tarn_copier *copier, tarn_copier_stats *stats);

/* ---- Fences -------------------------------------------------------------------------------- */

/* A fence for all that the stream was given so far. */
TARN_API tarn_status tarn_fence_record(tarn_copier *copier, tarn_stream stream, tarn_fence **fence);

/* TARN_OK: it is complete. TARN_NOT_READY: it is not, yet. Anything else is an error, told again
 * each time: nothing is proven then. */
TARN_API tarn_status tarn_fence_query(tarn_fence *fence);

/* Waits on the host. */
TARN_API tarn_status tarn_fence_wait(tarn_fence *fence);

/* Gives a fence back, complete or not. One of an unfinished copy to ordinary memory waits for the
 * device first, and leaves the destination undefined. NULL is ignored. */
TARN_API void tarn_fence_destroy(tarn_fence *fence);

#ifdef __cplusplus
}
#endif

#endif
