/* SPDX-License-Identifier: MIT
 *
 * The device heap: memory of one device, handed out in the order of streams. A block that is freed
 * on a stream can be used by a later allocation on that stream at once: the stream's own order
 * keeps it safe. It reaches other streams only behind a fence. */
#ifndef TARN_HEAP_H
#define TARN_HEAP_H

#include "tarn/tarn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_heap tarn_heap;

/* How eagerly a stream may take memory that another stream has freed. Taking it costs a GPU-side
 * wait for all that the other stream has been given so far, so it can serialise work. */
typedef enum tarn_stealing {
  TARN_STEAL_WHEN_SHORT =
      0,                /* before the device is asked for more than it has, or a limit passed */
  TARN_STEAL_NEVER = 1, /* only what is known to be complete */
  TARN_STEAL_ALWAYS =
      2, /* before the heap grows: least memory; about a quarter more for streams that go on so */
} tarn_stealing;

/* Called when an allocation finds no memory, after all else was tried. Returns true when it has
 * made some (freed blocks, trimmed another heap) and the allocation is to be tried again. */
typedef bool (*tarn_on_shortage)(tarn_heap *heap, uint64_t bytes, void *user);

/* Where a heap's memory comes from. `vmm` with rounding `classes` is the heap that the rest of this
 * header speaks of: chunks, cut into blocks. They stay mapped where they have been, for which the
 * driver takes memory of the host, 23 KiB a mapping; the heap sees to it that this is at most a
 * 32nd of what there is. With any other choice each block is an allocation of the driver's own,
 * kept for the next request of its size when it is freed. */
typedef enum tarn_backing {
  TARN_BACKING_DEFAULT = 0, /* what TARN_BACKING says, else the preset, else vmm */
  TARN_BACKING_VMM = 1,     /* physical memory, mapped where it is needed */
  TARN_BACKING_POOL = 2,    /* a private stream-ordered pool of the driver */
  TARN_BACKING_PLAIN = 3,   /* cuMemAlloc: every driver has it; giving it back waits for the GPU */
} tarn_backing;

/* What a request is rounded up to. */
typedef enum tarn_rounding {
  TARN_ROUNDING_DEFAULT = 0,      /* what TARN_ROUNDING says, else the preset, else classes */
  TARN_ROUNDING_CLASSES = 1,      /* at most 12.5 % above 2 KiB */
  TARN_ROUNDING_EXACT = 2,        /* not at all */
  TARN_ROUNDING_POWER_OF_TWO = 3, /* the next power of two */
} tarn_rounding;

/* Defaults for what a config and the environment leave open. */
typedef enum tarn_preset {
  TARN_PRESET_DEFAULT = 0, /* what TARN_PRESET says, else none */
  TARN_PRESET_NONE = 1,
  /* Power-of-two buckets of plain memory: keeps 256 MiB, and of each size as many blocks as fit
   * into that, at least one and at most 1024. */
  TARN_PRESET_POWER_BUCKETS = 2,
  /* Exact sizes from a private pool with a release threshold of 512 MiB: keeps 1 GiB, and 64 blocks
   * of each size. */
  TARN_PRESET_EXACT_POOL = 3,
} tarn_preset;

/* Called when a heap finds a mistake that is not the present caller's: a block that was written
 * after its free. It must not call tarn. */
typedef void (*tarn_on_misuse)(tarn_heap *heap, const char *message, void *user);

typedef struct tarn_heap_config {
  size_t size;
  const char *device;   /* NULL: the best there is */
  uint64_t limit_bytes; /* most physical memory the heap may hold; 0: what the device has */
  tarn_stealing stealing;
  uint32_t reserved_u32;
  tarn_on_shortage on_shortage; /* may be NULL */
  void *on_shortage_user;
  tarn_preset preset;
  tarn_backing backing;
  tarn_rounding rounding;
  /* For heaps whose blocks are the driver's own allocations; for others they must be 0. What is
   * over a limit goes back to the driver, the block that was freed longest ago first. */
  uint32_t cached_blocks_per_size; /* most freed blocks kept of one size; 0: the default */
  uint64_t cached_limit_bytes;   /* most bytes kept in freed blocks; 0: the default, 1 GiB where no
                                    preset says otherwise; 1: none; UINT64_MAX: no limit */
  uint64_t pool_threshold_bytes; /* of idle memory that the driver's pool may hold, which does not
                                    count as held by the heap; 0: default */
  uint64_t live_limit_bytes;     /* most bytes in live blocks; 0: the default, which is none */
  /* Switches: each is on where the config or its TARN_ variable says so. For heaps of backing vmm
   * and rounding classes, but for is_verifying_streams, which all have. */
  bool is_deterministic; /* the same calls of one thread give blocks at the same distance from the
                            heap's first address, whatever the timing: fences are not asked, only
                            waited for. Takes more memory, or more waiting */
  bool is_verifying_streams; /* every call asks the driver which stream a handle means, so that one
                                destroyed without tarn_stream_retire and made again is noticed */
  bool is_asking_captures; /* every allocation asks the driver whether its stream is being captured,
                              for programs that capture and do not tell: tarn/capture.h */
  bool is_secure; /* no content reaches another owner: blocks are filled with zeros in the order of
                     the stream when they are allocated and when they are freed, and those that are
                     live when the heap is destroyed, or sleeps, are, too. Such a heap has no
                     captures */
  /* For those who look for mistakes; zero is off, and each has a TARN_ variable. They cost time: no
   * allocation is a hit, and reading back waits for the GPU. Blocks of captures are not looked at.
   */
  uint8_t fill_alloc; /* the byte that allocated blocks are filled with */
  uint8_t fill_free;  /* the same for freed ones; not with is_secure */
  bool reserved_switches[2];
  uint32_t stack_depth; /* return addresses kept for each block, 32 at most: for errors, for the
                           leaks that tarn_heap_destroy reports, and for tarn_block_get_info */
  uint32_t reserved_u32_2;
  uint64_t
      guard_bytes; /* behind each block, at least: looked at when it is freed, where its stream is
                      not being captured, and by tarn_heap_check. TARN_CORRUPT when something has
                      written there, and the block stays live until the next try */
  uint64_t quarantine_bytes; /* freed blocks are kept out of use until newer ones of so many bytes
                                are; who writes to one meanwhile is found when it leaves, or by
                                tarn_heap_check */
  tarn_on_misuse on_misuse;  /* NULL: what is found late goes to stderr */
  void *on_misuse_user;
} tarn_heap_config;

/* Makes a heap. config may be NULL: all defaults. */
TARN_API tarn_status tarn_heap_create(const tarn_heap_config *config, tarn_heap **heap);

/* Gives everything back to the device, after waiting for the work that uses it. Blocks that are
 * still live go with it: their number comes back in *n_live (NULL: not asked for), and their sum is
 * the last error's message. No other call on the heap may be under way. NULL is ignored. When it
 * fails the heap is still there, good for nothing but to be destroyed again. On a lost device
 * nothing can be given back: the heap goes, with TARN_OK. */
TARN_API tarn_status tarn_heap_destroy(tarn_heap *heap, uint64_t *n_live);

/* The device that the heap is on: valid as long as the heap. */
TARN_API tarn_device *tarn_heap_device(tarn_heap *heap);

/* Allocates `bytes` in the order of the stream. The address is a multiple of 256. Zero bytes:
 * *block is 0, success. On failure *block is 0; TARN_DEVICE_MEMORY or TARN_LIMIT when there is not
 * enough. */
TARN_API tarn_status tarn_alloc(tarn_heap *heap, uint64_t bytes, tarn_stream stream,
                                tarn_ptr *block);

/* The same at a multiple of `alignment`, a power of two up to 2 MiB. */
TARN_API tarn_status tarn_alloc_aligned(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                                        tarn_stream stream, tarn_ptr *block);

/* Frees a block in the order of the stream: what the stream was given before may still use it. The
 * caller sees to it that all other use of the block is ordered before this point of the stream, or
 * was named by tarn_use. Where the stream is not the one that the block was allocated on, that goes
 * for the allocation itself, too: its memory may have been taken in the order of that stream, so
 * that stream comes before the free (by an event), also where nothing has used the block. 0 is
 * ignored. A pointer that is no live block of this heap is refused with a status that says why, and
 * nothing happens. Never fails for lack of memory. */
TARN_API tarn_status tarn_free(tarn_heap *heap, tarn_ptr block, tarn_stream stream);

/* The same for callers that know the size they asked for: one that cannot have got this block is
 * TARN_WRONG_SIZE. */
TARN_API tarn_status tarn_free_sized(tarn_heap *heap, tarn_ptr block, uint64_t bytes,
                                     tarn_stream stream);

/* Says that the work which `stream` has been given so far, and until the block is freed, uses the
 * block, too: it is not used again before that work is done. */
TARN_API tarn_status tarn_use(tarn_heap *heap, tarn_ptr block, tarn_stream stream);

/* To be called before a stream is destroyed: what the heap keeps for it goes to all streams once
 * its work is complete. A stream that goes on after that is a new one to the heap: blocks that were
 * named for it by tarn_use are to be named again. Other threads may allocate and free on it
 * meanwhile; what they name by tarn_use is theirs to order. */
TARN_API tarn_status tarn_stream_retire(tarn_heap *heap, tarn_stream stream);

enum { TARN_BLOCK_FRAMES = 32 };

/* What a pointer is. Interior pointers are fine. TARN_FOREIGN when it is not in a live block. */
typedef struct tarn_block_info {
  size_t size;
  tarn_ptr address;      /* of the block's first byte */
  uint64_t usable_bytes; /* at least what was asked for */
  /* Where the heap keeps them (tarn_heap_config: stack_depth, or any other option that looks for
   * mistakes); else 0: */
  uint64_t requested_bytes;
  uint64_t n_frames; /* return addresses of the allocation, innermost first */
  void *frames[TARN_BLOCK_FRAMES];
} tarn_block_info;

TARN_API tarn_status tarn_block_get_info(tarn_heap *heap, tarn_ptr pointer, tarn_block_info *info);

/* Makes the heap hold at least `bytes` of physical memory, ready for use by large blocks. When it
 * fails the heap keeps what it has got by then. TARN_UNSUPPORTED where blocks are the driver's own
 * allocations: nobody knows their sizes yet. */
TARN_API tarn_status tarn_heap_reserve(tarn_heap *heap, uint64_t bytes);

/* Gives memory that no block uses back to the device until at most `keep_bytes` are held. Waits for
 * work that may still use it; a heap of chunks that holds no more than that waits for nothing. */
TARN_API tarn_status tarn_heap_trim(tarn_heap *heap, uint64_t keep_bytes);

/* Makes the heap as it was when it was made: everything goes back to the device, after waiting for
 * the work that uses it. Refused with TARN_BUSY while blocks are live, captured ones included; the
 * message says how many, and how many bytes. Counts of calls go on; peaks begin anew. */
TARN_API tarn_status tarn_heap_reset(tarn_heap *heap);

/* What becomes of the content of live blocks, and of those that graphs hold, while a heap sleeps.
 */
typedef enum tarn_sleep_content {
  TARN_SLEEP_SAVE = 0, /* it is kept in pinned host memory */
  TARN_SLEEP_DROP = 1, /* it is gone: blocks hold anything when the heap wakes */
} tarn_sleep_content;

/* Gives all physical memory back to the device and keeps every address: blocks stay live, and have
 * memory again at the same place when the heap wakes. Waits for all work of the device. No other
 * call on the heap may be under way, neither here nor when it wakes. Until the heap is awake, no
 * work that uses its blocks may be given to any stream, and allocating, tarn_use, reserving,
 * trimming, resetting and launching graphs that hold blocks of it are TARN_STATE. Blocks may be
 * freed, and streams retired. TARN_CAPTURE when a stream that the heap knows is being captured,
 * TARN_UNSUPPORTED where blocks are the driver's own allocations. When it fails the heap is awake
 * and holds what it held, but for content that was to be dropped; where the driver does not even
 * allow that, the message says that it is asleep: is_asleep of tarn_heap_stats tells, too. */
TARN_API tarn_status tarn_heap_sleep(tarn_heap *heap, tarn_sleep_content content);

/* Gets memory for all blocks that are live, or held by graphs, at their addresses, and what was
 * saved is in them again. Waits for all work of the device, since graphs may have been launched
 * meanwhile. When it fails, for lack of memory or otherwise, the heap is asleep as before, nothing
 * is lost, and it can be tried again. */
TARN_API tarn_status tarn_heap_wake(tarn_heap *heap);

/* Changes the hard limit. What is held above it is trimmed where that is possible; the limit holds
 * also where giving back fails, which is what is returned then. */
TARN_API tarn_status tarn_heap_set_limit(tarn_heap *heap, uint64_t limit_bytes);

/* Exact: as they were at one moment, whatever other threads do. */
typedef struct tarn_heap_stats {
  size_t size;
  uint64_t live_bytes; /* blocks that callers hold, as the heap rounds them */
  uint64_t live_blocks;
  uint64_t
      cached_bytes; /* freed blocks kept for their stream, in threads' caches and beside them */
  uint64_t pending_bytes;  /* freed blocks that wait for a fence */
  uint64_t free_bytes;     /* physical memory that belongs to no block */
  uint64_t reserved_bytes; /* physical memory held: the sum of all of the above */
  uint64_t reserved_peak_bytes;
  uint64_t quarantined_bytes; /* of these, out of use: completion could not be proven, or the
                                 driver does not take them back */
  uint64_t limit_bytes;
  uint64_t allocations; /* calls so far */
  uint64_t frees;
  uint64_t misses; /* of those allocations, not served by the thread's own cache; or, where blocks
                      are the driver's own allocations, new ones */
  uint64_t moved_chunks; /* chunks mapped at further addresses, so that no memory had to be made; a
                            heap with tens of thousands of them may hold up to a quarter more, and
                            up to half where there may not be as many mappings as it needs */
  uint64_t waits;        /* GPU-side waits between streams */
  /* Physical memory in blocks of any state, and its peak. The peak of live_bytes alone is not
   * counted: it would take a line of memory that all threads write. It is at most this one, and a
   * scope of statistics counts it where that is asked for. */
  uint64_t used_bytes;
  uint64_t used_peak_bytes;
  uint64_t largest_free_bytes; /* of free_bytes, the largest piece */
  double fragmentation;        /* 1 - largest_free_bytes / free_bytes; 0: all in one piece */
  uint64_t asleep_bytes; /* while the heap sleeps: memory that it needs when it wakes. The sum of
                            live, cached, pending and free bytes is reserved_bytes and this */
  bool is_asleep;
  bool reserved_bools[7];
  uint64_t captured_bytes; /* of reserved_bytes, the memory of captured graphs: tarn/capture.h */
} tarn_heap_stats;

TARN_API tarn_status tarn_heap_get_stats(tarn_heap *heap, tarn_heap_stats *stats);

/* The driver calls that the heap made, by kind, and their time; tarn_device_get_calls has those of
 * all users of the device. */
TARN_API tarn_status tarn_heap_get_calls(tarn_heap *heap, tarn_call_counts *counts);

/* Blocks of one size: of a class of small blocks, or large ones of at least this size and less than
 * twice it. */
typedef struct tarn_histogram_row {
  uint64_t block_bytes;
  uint64_t live_blocks;
  uint64_t live_bytes;
  uint64_t cached_blocks;  /* freed, kept for their stream */
  uint64_t pending_blocks; /* freed, waiting for a fence */
  uint64_t allocations;    /* calls so far */
  uint64_t frees;
} tarn_histogram_row;

enum { TARN_HISTOGRAM_CAPACITY = 128 };

typedef struct tarn_heap_histogram {
  size_t size;
  uint64_t n_rows; /* sizes that were ever allocated, smallest first; small classes, then large */
  tarn_histogram_row rows[TARN_HISTOGRAM_CAPACITY];
} tarn_heap_histogram;

/* As it was at one moment. Takes a time that grows with the number of slabs. */
TARN_API tarn_status tarn_heap_get_histogram(tarn_heap *heap, tarn_heap_histogram *histogram);

/* ---- Scopes of statistics -------------------------------------------------------------------
 * What happens in a region of a program: begin, end, and the difference. Any number of scopes may
 * be open at once, in any threads, nested or not; each counts what all threads do. A scope costs a
 * hit nothing, unless it is exact. */
typedef struct tarn_stats_scope tarn_stats_scope;

typedef struct tarn_stats_scope_config {
  size_t size;
  /* The exact peak of live bytes: as long as such a scope is open no call is a hit, all of them
   * take the heap's lock. A call that is under way in another thread while the scope begins may be
   * missed. */
  bool is_exact;
} tarn_stats_scope_config;

typedef struct tarn_stats_scope_result {
  size_t size;
  uint64_t allocations;
  uint64_t frees;
  uint64_t allocated_bytes; /* as the heap rounds them */
  uint64_t freed_bytes;
  uint64_t misses;
  uint64_t moved_chunks;
  uint64_t waits;
  uint64_t driver_calls; /* that the heap made */
  uint64_t driver_ns;
  uint64_t live_begin_bytes;
  uint64_t live_end_bytes;
  uint64_t live_peak_bytes; /* exact where is_exact; else the larger of the two before it, which is
                               no more than the peak, as used_peak_bytes is no less */
  uint64_t used_peak_bytes; /* exact, always: see tarn_heap_stats */
  uint64_t reserved_begin_bytes;
  uint64_t reserved_end_bytes;
  uint64_t reserved_peak_bytes; /* exact, always */
  bool is_exact;
} tarn_stats_scope_result;

/* config may be NULL. */
TARN_API tarn_status tarn_stats_scope_begin(tarn_heap *heap, const tarn_stats_scope_config *config,
                                            tarn_stats_scope **scope);
/* Ends the scope, which is gone then. result may be NULL. NULL as a scope is ignored, with an empty
 * result. TARN_STATE, and the scope is gone all the same, when its heap was destroyed before it. */
TARN_API tarn_status tarn_stats_scope_end(tarn_stats_scope *scope, tarn_stats_scope_result *result);

/* Recomputes everything from the structures and compares it with the counters. TARN_CORRUPT, with
 * the first difference in the message, when they disagree. No other call may be under way. */
TARN_API tarn_status tarn_heap_check(tarn_heap *heap);

#ifdef __cplusplus
}
#endif

#endif
