/* SPDX-License-Identifier: MIT
 *
 * Pinned memory: host memory that a device reads and writes by itself, and at full speed. A pool
 * keeps it in large regions and hands out blocks of them; the caller's own memory can be pinned in
 * place, too.
 *
 * A block is the host's to use from the moment at which it is handed out: whatever a device did
 * with it before is complete then. */
#ifndef TARN_PINNED_H
#define TARN_PINNED_H

#include "tarn/heap.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_pinned tarn_pinned;

/* How the sizes of blocks are rounded. */
typedef enum tarn_pinned_rounding {
  TARN_PINNED_CLASSES = 0,      /* at most 12.5 % more than was asked for, above 2 KiB */
  TARN_PINNED_POWER_OF_TWO = 1, /* whole allocations of the driver, kept by size */
} tarn_pinned_rounding;

/* Flags of a pool. */
enum {
  TARN_PINNED_WRITE_COMBINED = 1, /* fast to write for the host and slow to read; the driver's own
                                     allocations */
  TARN_PINNED_NODE = 2,           /* memory of one NUMA node: numa_node */
  TARN_PINNED_SMALL_PAGES = 4,    /* no huge pages are asked for */
  TARN_PINNED_ZEROED = 8,         /* every block is zeroed when it is handed out, all of it */
};

typedef struct tarn_pinned_config {
  size_t size;
  const char *device;          /* NULL: the best there is */
  uint64_t limit_bytes;        /* most memory the pool may hold; 0: half of the machine's */
  uint64_t live_limit_bytes;   /* most that callers may hold, as the pool rounds it; 0: no limit */
  uint64_t cached_limit_bytes; /* most that whole regions without a block in use may keep; 0: no
                                  limit. Of allocations of the driver, most that is kept; 0: 128
                                  MiB by powers of two, else 1 GiB */
  uint64_t region_bytes;       /* a power of two from 2 MiB to 1 GiB: memory is taken in multiples
                                  of it; 0: 32 MiB, less for a pool with a small limit */
  uint32_t flags;
  uint32_t numa_node; /* with TARN_PINNED_NODE */
  tarn_pinned_rounding rounding;
  uint32_t reserved_u32;
} tarn_pinned_config;

/* Makes a pool. config may be NULL: all defaults. With either of the limits on live and on cached
 * memory every allocation and every free takes a lock and counts; without, most take none. */
TARN_API tarn_status tarn_pinned_create(const tarn_pinned_config *config, tarn_pinned **pool);

/* Gives everything back, after waiting for the work that was named by tarn_pinned_free_on. Blocks
 * that are still live go with it: their number comes back in *n_live (NULL: not asked for). No
 * other call on the pool may be under way. NULL is ignored. When it fails the pool is still there,
 * good for nothing but to be destroyed again. */
TARN_API tarn_status tarn_pinned_destroy(tarn_pinned *pool, uint64_t *n_live);

/* The device that the memory is pinned for: valid as long as the pool. */
TARN_API tarn_device *tarn_pinned_device(tarn_pinned *pool);

/* Allocates `bytes`. The address is a multiple of 256, and the same on the host and on the device.
 * Zero bytes: *block is NULL, success. On failure *block is NULL; TARN_HOST_MEMORY or TARN_LIMIT
 * when there is not enough, TARN_CAPTURE when a capture that was announced forbids to pin more. A
 * block lies on one registration: any copy of it is one copy. */
TARN_API tarn_status tarn_pinned_alloc(tarn_pinned *pool, uint64_t bytes, void **block);

/* The same at a multiple of `alignment`, a power of two up to 2 MiB. */
TARN_API tarn_status tarn_pinned_alloc_aligned(tarn_pinned *pool, uint64_t bytes,
                                               uint64_t alignment, void **block);

/* Frees a block that no device uses any more. NULL is ignored. A pointer that is no live block of
 * this pool is refused with a status that says why, and nothing happens. Never fails for lack of
 * memory. */
TARN_API tarn_status tarn_pinned_free(tarn_pinned *pool, void *block);

/* The same for a block that the work which `stream` was given so far may still use: it is handed
 * out again once that work is complete. Nobody waits for it. Refused with TARN_CAPTURE when the
 * stream is being captured: each launch of the graph will use the block. */
TARN_API tarn_status tarn_pinned_free_on(tarn_pinned *pool, void *block, tarn_stream stream);

/* To be called before a stream that tarn_pinned_free_on was given is destroyed. */
TARN_API tarn_status tarn_pinned_stream_retire(tarn_pinned *pool, tarn_stream stream);

/* What a pointer is. Interior pointers are fine. TARN_FOREIGN when it is not in a live block. */
TARN_API tarn_status tarn_pinned_get_info(tarn_pinned *pool, const void *pointer,
                                          tarn_block_info *info);

/* Whether `bytes` from the pointer on are within one live block of the pool. */
TARN_API bool tarn_pinned_owns(tarn_pinned *pool, const void *pointer, uint64_t bytes);

/* Makes the pool hold at least `bytes`, ready for use by blocks above 1 MiB. When it fails the pool
 * keeps what it has got by then. TARN_UNSUPPORTED for a pool of allocations of the driver: by
 * powers of two, write-combined, or where the driver registers no memory. */
TARN_API tarn_status tarn_pinned_reserve(tarn_pinned *pool, uint64_t bytes);

/* Gives regions that no block uses back to the system until at most `keep_bytes` are held. Waits
 * for work that was named by tarn_pinned_free_on, but for nothing where it holds no more, unless it
 * is a pool of allocations of the driver. A block that is freed meanwhile is not lost. */
TARN_API tarn_status tarn_pinned_trim(tarn_pinned *pool, uint64_t keep_bytes);

TARN_API tarn_status tarn_pinned_get_stats(tarn_pinned *pool, tarn_heap_stats *stats);

/* Recomputes everything and compares it with the counters, as tarn_heap_check does. */
TARN_API tarn_status tarn_pinned_check(tarn_pinned *pool);

/* ---- The caller's own memory ----------------------------------------------------------------
 * Pins host memory in place, for all devices of the same driver. No part of it may be pinned
 * already: TARN_STATE where the same range is, TARN_RANGE where the two overlap. */
TARN_API tarn_status tarn_host_register(tarn_device *device, void *pointer, uint64_t bytes);

/* Unpins what tarn_host_register pinned, by the same pointer. The caller sees to it that no device
 * uses it any more. TARN_FOREIGN when nothing is registered there, TARN_INTERIOR when the pointer
 * is inside of something that is. */
TARN_API tarn_status tarn_host_unregister(tarn_device *device, void *pointer);

/* Whether all of the range is known to be pinned for the device, in one piece: by a registration,
 * or as a part of a live block of a pool. Memory that was pinned by other means is not known. */
TARN_API bool tarn_host_is_pinned(tarn_device *device, const void *pointer, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
