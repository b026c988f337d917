/* SPDX-License-Identifier: MIT
 *
 * The model of the device heap: every struct with its invariants. Cross-file functions are in
 * internal.h. Glossary:
 *   granule   16 KiB: extents begin and end at multiples of it
 *   unit      the device's granularity (2 MiB): chunks are made of whole units
 *   zone      a part of the heap's addresses: blocks up to 1 MiB in the first, larger ones in the
 *             second; in the third are views
 *   extent    an address range of a zone, with a record. Extents partition the zone: each address
 *             belongs to exactly one. What an extent is, its kind says.
 *   slab      an extent cut into equal blocks; a large block is a slab of one
 *   lane      what the heap knows about one stream: its fences, and the blocks it has freed
 *   ticket    the how-manieth giving-back of a lane. A fence with ticket T proves all up to T.
 *   place     addresses where a chunk is mapped. The first one is its home: there its memory is in
 *             the books, free or in use. It stays until the chunk goes
 *   view      places of several chunks in a row, so that what is free at the end of one and at the
 *             beginning of the next is one range of addresses
 *   order     lanes and tickets that must be complete before some memory is used by others
 *   cache     one thread's store of free blocks of one lane
 *   fixed     of a heap: its memory is the host's, registered chunk by chunk. Chunks stay where
 *             they are, no extent reaches over two of them, and the host's own lane is the common
 *             one: what the host gives back is complete
 *   grant     one allocation of the driver, in a heap whose blocks are such allocations
 *   bucket    the grants of one size
 *
 * Locks: `capture` (rank CAPTURE) guards captures, arenas and graphs; `grow` (rank DRIVER)
 * serialises everything that calls the driver; `lock` (rank HEAP) guards the structures and is
 * never held during a driver call. A hit takes neither: a cache belongs to its thread, and whoever
 * else must reach into it revokes it first (cache.c).
 */
#ifndef TARNI_TYPES_H
#define TARNI_TYPES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "algo/bitset.h"
#include "algo/sizeclass.h"
#include "base/lock.h"
#include "port/port.h"
#include "tarn/heap.h"

enum {
  TARNI_GRANULE_LOG2 = 14,
  TARNI_GRANULE = 1 << TARNI_GRANULE_LOG2,
  TARNI_SLAB_MIN_BLOCKS = 8, /* blocks up to 64 KiB share a slab, larger ones do not */
  TARNI_SHARED_BLOCK_MAX = 64 << 10,
  TARNI_SLAB_MIN_BYTES = 64 << 10,
  TARNI_ORDER_MAX = 4,         /* lanes that one extent may wait for; more are not merged */
  TARNI_FENCES = 4,            /* events that a lane has under way at most */
  TARNI_UNRETURNED = 2,        /* who waits for the device holds lock DRIVER, or lock CAPTURE */
  TARNI_MIN_ALIASES = 1 << 14, /* that a heap may have, */
  TARNI_MAX_ALIASES = 3 << 16, /* and as many as this where the host has memory for the mappings */
  TARNI_LANE_COMMON = 0,       /* the lane of what is known to be complete: usable by all */
};

typedef uint32_t tarni_index; /* of an extent, a lane, a chunk; 0 is none (lane 0 is common) */

/* ---- Order ---- */

typedef struct tarni_order_entry {
  uint64_t ticket;
  tarni_index lane;
} tarni_order_entry;

typedef struct tarni_order {
  uint32_t n;                         /* 0: complete */
  tarni_index lanes[TARNI_ORDER_MAX]; /* apart from the tickets: every extent has an order */
  uint64_t tickets[TARNI_ORDER_MAX];
} tarni_order;

/* ---- Extents ---- */

typedef enum tarni_extent_kind {
  TARNI_EXTENT_UNUSED = 0, /* a record without an address */
  TARNI_EXTENT_VOID,       /* free addresses, nothing mapped */
  TARNI_EXTENT_FREE,       /* mapped, free; in the tree of its order */
  TARNI_EXTENT_SLAB,       /* mapped, cut into blocks */
  TARNI_EXTENT_LENT,       /* mapped, in use by a slab at another place of the chunk (view.c) */
  TARNI_EXTENT_ALIAS,      /* at places that are no homes: no slab lies here */
  TARNI_EXTENT_ZOMBIE,     /* a chunk has left; to be unmapped when its order is complete */
  TARNI_EXTENT_BUSY,       /* taken out of the trees by a thread that is at work on it */
} tarni_extent_kind;

typedef struct tarni_extent {
  /* lock HEAP, except what a block's owner may read (address to class_index): */
  uint64_t offset; /* from the heap's first address; a multiple of the granule */
  uint64_t size;
  union {
    struct { /* SLAB */
      union {
        uint32_t block_bytes_256; /* of several blocks: the size of one / 256 */
        uint32_t spare;           /* large block: granules that are not its owner's (shelf.c) */
      };
      uint32_t n_blocks;
    };
    uint64_t oldest; /* FREE: no ticket of the extents below this node is older */
  };
  uint8_t kind;
  uint8_t class_index; /* SLAB: TARNI_CLASS_COUNT for a large block */
  uint8_t state;       /* large block: tarni_block_state; ZOMBIE: 1 when unmapped */
  bool has_uses;       /* large block: named by tarn_use */
  union {
    tarni_index lane;  /* SLAB: who had it made; for reports */
    tarni_index chunk; /* ZOMBIE: the chunk that is still mapped there */
  };
  tarni_index previous, next; /* neighbours in address order; 0 at a zone's end */
  /* FREE, VOID, ALIAS: node of a tree ordered by offset, heap-ordered by a hash of the index */
  tarni_index tree; /* which one */
  union {
    tarni_index left;
    tarni_index lent; /* SLAB at places that are no homes: the LENT extents behind it */
  };
  tarni_index right, up; /* up: the node above; 0: it is the root */
  uint64_t largest;      /* size of the largest extent below this node */
  /* ZOMBIE, LENT (the next of its slab), unused: */
  tarni_index link;
  uint32_t n_seen;   /* SLAB: free blocks counted while collecting */
  tarni_order order; /* FREE, ZOMBIE; LENT: as it was free */
} tarni_extent;

_Static_assert(sizeof(tarni_extent) == 128, "two cache lines: trees are in the first ones");

typedef enum tarni_block_state { TARNI_BLOCK_FREE = 0, TARNI_BLOCK_LIVE = 1 } tarni_block_state;

/* ---- Chunks ---- */

typedef struct tarni_phys {
  _Alignas(64) tarni_chunk handle; /* two cache lines, what is needed most in the first */
  uint32_t first_unit;             /* its home */
  uint32_t n_units;
  uint32_t head, tail;     /* granules that are free at its two ends, as far as is known (view.c) */
  uint64_t stamp, refused; /* of the run that it is in, and of the search that cannot use it */
  uint32_t places;   /* the first unit of the lowest place + 1; 0: it is being made, or goes */
  uint32_t n_mapped; /* lock DRIVER: places, and zombies that are still mapped to it */
  uint32_t n_used;   /* granules of it that are in slabs; 0: idle */
  uint32_t n_small;  /* and of these, in slabs among small blocks */
  bool is_leaving;   /* to be released once it is mapped nowhere */
  bool is_spare;     /* made late: for what finds no other room (grow.c) */
  bool is_mixed;     /* its ends wait for more than an order can name */
  tarni_index link;  /* unused: the next free record */
  tarni_order order; /* what its ends wait for */
} tarni_phys;

typedef struct tarni_place { /* by the units of a place; but for `first`, by its first one */
  uint32_t first;            /* the first unit of the place */
  uint32_t next;             /* of the same chunk, the next higher one: its first unit + 1, or 0 */
  uint64_t number;           /* the how-manieth place of the heap it is */
} tarni_place;

typedef struct tarni_past { /* of a place, by its first unit; apart: lists of places are walked */
  bool is_unsure;           /* what used it needs more than an order can name */
  tarni_order order;        /* of the slabs that were here: then it may be unmapped */
} tarni_past;

typedef struct tarni_hint { /* a window in views where a block has lain (hint.c) */
  uint64_t start, size;     /* offset, bytes; 0: there was none */
} tarni_hint;

/* What an allocation needs: room for a slab or a large block. */
typedef struct tarni_need {
  tarni_index lane;
  uint32_t zone;
  uint64_t size;        /* a multiple of the granule */
  uint64_t alignment;   /* a power of two, the granule or more: as it is wished for, */
  uint64_t least;       /* and as it must be */
  uint32_t class_index; /* TARNI_CLASS_COUNT for a large block */
  bool is_short;        /* the device or a limit has refused more memory */
} tarni_need;

/* ---- Lanes ---- */

typedef struct tarni_fence {
  tarni_event event;
  uint64_t ticket; /* proves all tickets up to this one; 0: not recorded */
  uint64_t number; /* of all fences of the heap, in the order in which they were recorded */
} tarni_fence;

typedef struct tarni_bin { /* free blocks of one class, linked through heap->links */
  uint32_t head;           /* offset / 256 + 1; 0: empty */
  uint32_t n;
  bool is_vain;   /* the last collecting looked at many in vain */
  uint32_t n_put; /* since then */
} tarni_bin;

typedef struct tarni_lane {
  uint64_t stream_id; /* 0: the record is unused (but for the common lane) */
  tarn_stream stream;
  const void *thread; /* whose default stream it is; NULL: it means the same to all */
  bool is_leaving;    /* being retired: it is not found any more, and gives no more tickets */
  bool is_retired;    /* no more fences can be recorded; waits for the last one */
  bool is_lost;       /* a fence failed: what waits for it is quarantined */
  bool is_captured;   /* no fence could be recorded, because the stream is being captured */
  uint64_t ticket;    /* last one given */
  uint64_t fenced;    /* all up to this one are behind a recorded fence */
  uint64_t wanted;    /* the last one that pending blocks have waited for (use.c) */
  uint64_t asked;     /* the last one that a growth wants to know about (hoard.c) */
  int64_t surplus;    /* bytes that it gave back but did not take, since then */
  uint64_t goal;      /* lock DRIVER: the one that tarni_lanes_finish_grow is after */
  tarni_fence fences[TARNI_FENCES]; /* a ring, oldest first */
  uint32_t first_fence, n_fences;
  uint64_t *waited; /* for each other lane the ticket that this stream has been made to wait for */
  uint32_t n_waited;
  tarni_bin bins[TARNI_CLASS_COUNT];
  _Atomic uint32_t n_caches; /* of threads that use the stream; written under lock HEAP */
} tarni_lane;

/* A block that was named by tarn_use. Made there, so that freeing needs no memory. */
typedef struct tarni_uses {
  struct tarni_uses *next;
  uint64_t offset; /* of the block */
  uint64_t bytes;
  uint32_t n_lanes, capacity;
  tarni_index free_lane; /* once freed */
  uint64_t free_ticket;
  tarni_order_entry lanes[];
} tarni_uses;

/* ---- Counts ---- */

/* Large blocks are counted by the logarithm of their granules. */
enum { TARNI_LARGE_ROWS = 48, TARNI_ROWS = TARNI_CLASS_COUNT + TARNI_LARGE_ROWS };

typedef struct tarni_large_counts {
  uint64_t allocs, frees, alloc_bytes, free_bytes;
} tarni_large_counts;

/* What was handed out and given back, by class and by the size of large blocks. */
typedef struct tarni_counts {
  uint64_t allocs[TARNI_CLASS_COUNT], frees[TARNI_CLASS_COUNT];
  tarni_large_counts large[TARNI_LARGE_ROWS];
  uint64_t misses;
} tarni_counts;

/* The same for large blocks, counted by one thread. */
typedef struct tarni_large_churn {
  _Atomic uint64_t allocs, frees, alloc_bytes, free_bytes;
} tarni_large_churn;

/* ---- Caches ---- */

typedef struct tarni_stack { /* free blocks of one class */
  uint32_t *items;           /* offsets / 256 */
  uint16_t n;
  uint16_t capacity;
  _Atomic uint64_t allocs; /* owner writes, others read: blocks of this class handed out here */
  _Atomic uint64_t frees;  /* and given back here */
} tarni_stack;

/* A free large block that a cache keeps, since it would come to lie at the same place again
 * (free.c). The youngest is the one that the cache placed last, as long as it has given none back
 * since; else 0. Its record may have become another block's meanwhile: what is freed is that one
 * then. */
typedef struct tarni_large {
  uint32_t granules;
  tarni_index extent;   /* 0: none is kept */
  tarni_index youngest; /* the owner's alone */
} tarni_large;

/* Free large blocks of an eased heap (shelf.c). */
enum { TARNI_SHELF_ROWS = 128, TARNI_SHELF_WORDS = TARNI_SHELF_ROWS / 64, TARNI_SHELF_DEPTH = 8 };

typedef struct tarni_shelf_row { /* blocks of about the same size */
  uint32_t n;
  tarni_index extents[TARNI_SHELF_DEPTH];
} tarni_shelf_row;

typedef struct tarni_shelf {
  uint64_t filled[TARNI_SHELF_WORDS]; /* a bit for each row that has a block */
  uint64_t limit;                     /* no more bytes are kept; 0: none are */
  _Atomic uint64_t bytes;             /* that are; owner writes, others read */
  tarni_shelf_row rows[TARNI_SHELF_ROWS];
} tarni_shelf;

typedef struct tarni_cache {
  /* owner, or whoever has revoked it: */
  _Atomic(struct tarn_heap *) heap; /* TARNI_NO_HEAP: it is gone */
  tarn_stream stream;               /* TARNI_NO_STREAM when its lane is gone */
  tarni_index lane;
  /* atomic: */
  _Atomic uint32_t is_busy;    /* the owner is inside */
  _Atomic uint32_t is_revoked; /* somebody else is, or waits to be */
  /* owner writes, others read: */
  _Atomic uint64_t misses;
  tarni_large_churn churn[TARNI_LARGE_ROWS];
  /* owner, or whoever has revoked it: */
  tarni_stack stacks[TARNI_CLASS_COUNT];
  tarni_bin bins[TARNI_CLASS_COUNT]; /* what stacks have no room for, as long as the lane has no
                                        other cache: others take from the lane's bins */
  _Atomic uint64_t binned_bytes;     /* in them; owner writes, others read */
  tarni_large large;
  tarni_shelf shelf;
  uint32_t *items; /* of all stacks */
  /* lock HEAP: */
  bool is_beached; /* at low water: its owner goes the slow way for a while (tide.c) */
  struct tarni_cache *next_in_heap;
  /* lock REGISTRY: */
  struct tarni_cache *next_in_thread;
} tarni_cache;

#define TARNI_NO_STREAM ((tarn_stream)(intptr_t)-1)
#define TARNI_NO_HEAP ((tarn_heap *)(intptr_t)-1)

/* ---- Grants and buckets: heaps whose blocks are the driver's own allocations ---- */

typedef enum tarni_grant_state {
  TARNI_GRANT_UNUSED = 0, /* a record without memory */
  TARNI_GRANT_BUSY,       /* in the hands of a thread that holds heap->grow */
  TARNI_GRANT_LIVE,
  TARNI_GRANT_CACHED,   /* freed, kept for its size; on both lists */
  TARNI_GRANT_PENDING,  /* freed, and used by other streams: its entry of uses has it (use.c) */
  TARNI_GRANT_DEFERRED, /* freed inside a capture, or a graph's: on a list of defer.c */
  TARNI_GRANT_DOOMED,   /* to be given back when its order is complete; on both lists of doomed ones
                         */
} tarni_grant_state;

/* The lists that a grant is on, each newest to oldest; of the doomed ones, that of its lane is the
 * second. */
enum { TARNI_BY_SIZE = 0, TARNI_BY_AGE = 1, TARNI_GRANT_LISTS = 2 };

typedef struct tarni_grant_list {
  tarni_index newest, oldest;
  tarni_index last; /* doomed ones: which came between others last; or 0 */
} tarni_grant_list;

typedef struct tarni_grant { /* lock HEAP; BUSY: its thread's */
  tarn_ptr base;
  uint64_t bytes;     /* as the driver was asked for them */
  tarn_ptr address;   /* LIVE, PENDING: of the block; above base where alignment needs it */
  uint64_t alignment; /* likewise: as it was asked for */
  tarni_chunk chunk;  /* backing vmm */
  uint8_t state;
  uint8_t parts;   /* what the driver has given of it: TARNI_PART_* */
  bool has_uses;   /* LIVE: named by tarn_use */
  bool is_refused; /* the driver did not take it back */
  tarni_index bucket;
  tarni_index left, right;              /* node of the tree by base */
  tarni_index newer[TARNI_GRANT_LISTS]; /* unused: newer[0] links the free records; DEFERRED: the
                                           next one is newer[TARNI_BY_AGE] */
  tarni_index older[TARNI_GRANT_LISTS];
  tarni_order order; /* CACHED, DOOMED: at most the lane that freed it */
} tarni_grant;

enum { TARNI_PART_ADDRESS = 1, TARNI_PART_MEMORY = 2, TARNI_PART_MAPPING = 4 };

typedef struct tarni_vain { /* a look at what is kept of a size that found nothing */
  tarni_index newest;       /* then; 0: there was none */
  tarni_index lane;         /* whose look it was, */
  uint64_t n_news, n_waits; /* and what was known: n_news and waits of the heap */
} tarni_vain;

typedef struct tarni_bucket { /* lock HEAP */
  uint64_t bytes;
  tarni_vain vain;
  uint32_t n_grants; /* in any state; 0: the record is unused */
  uint32_t n_cached;
  tarni_grant_list cached;
  tarni_grant_list doomed;
  tarni_index next; /* in the hash table; unused: of the free records */
} tarni_bucket;

enum {
  TARNI_EASE_COLLECTED = 1 << 16, /* slabs that are collected before a heap is eased */
  TARNI_PEAK_SLABS = 1021, /* that are made before its peak is looked at in any case: a prime, so
                              that it is not at the same point of each round of a program */
};

/* How far a heap is from coming to rest (rest.c), since it was reset. */
typedef struct tarni_rest {
  uint64_t n_moves;      /* of chunks, less one for so many slabs that were made without */
  uint64_t n_slabs;      /* made since the last move, and what was left of those before */
  uint64_t earned_bytes; /* by moves */
  uint64_t n_collected;  /* slabs that collecting took, */
  uint64_t n_bounded;    /* and of these, while the heap was loose: at the bounds of its ease */
  uint64_t lean_peak;    /* the most that was ever used, but for what is kept, */
  uint64_t peak_next;    /* and what is to be used, but for lanes' bins, before it is seen anew, */
  uint64_t n_unseen;     /* or so many slabs made, since caches' bins are out of sight */
  uint64_t n_eased;      /* units that have moved while it was eased, less some for slabs made */
  uint32_t n_tries;      /* how often that was given up */
  uint32_t n_drops;      /* how often mappings had to go, since there were too many */
  uint64_t made_bytes;   /* of slabs, since the last steal */
  uint64_t stolen_bytes; /* that streams waited for, or has moved since they are parted, less a
                            part of what slabs were made of */
  uint32_t n_parted;     /* how often streams were parted in vain */
  uint64_t parted_bytes; /* earned by steals; 0: streams share what they free */
} tarni_rest;

typedef struct tarni_hoard { /* of what other streams have freed (hoard.c) */
  tarni_index lane;          /* that was asked last */
  bool is_due;               /* it is time to ask again, */
  uint64_t left_bytes;       /* which is once so many are used; 0: there is no hoard */
  uint64_t vain_bytes;       /* held when collecting gave little; 0: it gave enough */
} tarni_hoard;

/* What a heap does beyond its work, at a price. */
typedef struct tarni_care {
  bool is_deterministic;
  bool is_verifying_streams;
  bool is_asking_captures;
  bool is_secure;
  uint8_t fill_alloc, fill_free; /* 0: none */
  uint32_t stack_depth;
  uint64_t guard_bytes, quarantine_bytes;
} tarni_care;

/* What config, environment and preset come to. */
typedef struct tarni_settings {
  tarn_backing backing;
  tarn_rounding rounding;
  uint64_t cached_limit;   /* bytes; UINT64_MAX: none */
  uint64_t cached_slots;   /* blocks of a size; UINT64_MAX: none */
  bool has_slots_by_limit; /* as many as fit into the limit, 1 to 1024 */
  uint64_t pool_threshold;
  uint64_t live_limit; /* bytes; UINT64_MAX: none */
  tarni_care care;
} tarni_settings;

typedef struct tarni_buckets {
  /* immutable after create: */
  tarni_settings settings;
  tarni_pool pool; /* backing pool */
  tarni_grant *grants;
  tarni_bucket *sizes;
  tarni_index *heads; /* hash table of sizes */
  uint32_t max_grants;
  /* lock HEAP: */
  uint32_t n_grants, n_sizes; /* records ever used */
  tarni_index free_grant, free_size;
  tarni_index root;         /* of the tree by base */
  tarni_grant_list cached;  /* of all sizes */
  tarni_grant_list *doomed; /* for each lane, by their tickets */
  uint32_t n_doomed;        /* those that are being given back included */
  uint64_t doomed_bytes;    /* likewise; part of the heap's pending_bytes */
  uint64_t cached_bytes;
  uint64_t promised_bytes; /* of allocations under way that the live limit has let through */
  /* lock DRIVER: */
  tarn_stream stream; /* backing pool: frees what is known to be complete; made when needed */
} tarni_buckets;

/* ---- The heap ---- */

typedef struct tarni_tide { /* of what is used (tide.c) */
  bool is_ebb;              /* it falls */
  bool is_collected;        /* in this ebb, when so much was used: */
  uint64_t collected;
  uint64_t counted;         /* what was used in this ebb when what is kept was counted; 0: never */
  uint64_t turn;            /* the most of this flood, or the least of this ebb */
  uint64_t low;             /* the least of the ebb before */
  uint64_t n_blocks, price; /* large blocks since the last collecting, and before the next */
  uint64_t job_peak;        /* the most that was used, when hardly anything was any more */
  uint64_t job_blocks, job_price; /* large blocks since a job's end, and before the next */
  uint64_t slow_left;             /* small blocks that owners of beached caches may take or give */
} tarni_tide;

enum { TARNI_TREE_VOID = 0 }; /* trees[0] of a zone; trees[1 + lane] hold what lanes have freed */

enum { TARNI_ZONE_SMALL, TARNI_ZONE_LARGE, TARNI_ZONE_VIEWS, TARNI_ZONES };

typedef struct tarni_zone {
  uint64_t first, end; /* offsets */
  tarni_index head;    /* the extent that begins the zone */
  tarni_index *trees;  /* roots: void, one a lane, one for orders of several lanes, aliases */
  uint64_t *oldest;    /* for each of them: no ticket in it is older (0 where orders have none) */
} tarni_zone;

/* What was taken to wait for the device, and could not be given back. */
typedef struct tarni_unreturned {
  tarn_ptr address; /* 0: none */
  bool is_pinned;   /* memory of the host, else of the device */
} tarni_unreturned;

struct tarn_heap {
  /* immutable after create: */
  tarni_port *port;
  tarn_heap_config config;
  tarni_care care;
  struct tarni_debug *debug; /* debug.c; NULL: no option of its kind is on */
  tarni_buckets *buckets;    /* blocks are the driver's own allocations; base and size are 0 then */
  tarn_ptr base;
  uint64_t size;      /* of the reservation */
  uint64_t small_end; /* offset where the zone of large blocks begins, */
  uint64_t large_end; /* and where that ends and views begin */
  uint64_t unit;      /* bytes; a power of two */
  uint32_t unit_log2;
  uint32_t fork;       /* tarni_fork_watch in the process that made it */
  bool is_fixed;       /* memory of the host: chunks never move, and no block lies on two of them */
  uint8_t *states;     /* a byte for each 256 of the small zone: tarni_small_state */
  uint32_t *links;     /* likewise a word: the next block of a bin */
  tarni_index *pages;  /* for granules of the heap the extent of a slab, else 0 (slab.c) */
  tarni_index *begins; /* for granules of the heap the extent that begins there, if one does */
  tarni_index *units;  /* for each unit the chunk that has a place there, else 0 */
  tarni_place *places;
  tarni_past *pasts;
  tarni_hint *hints;
  tarni_extent *extents;
  tarni_phys *chunks;
  uint32_t max_extents, max_chunks, max_lanes;
  /* lock HEAP: */
  tarni_lock lock;
  tarni_zone zones[TARNI_ZONES];
  tarni_lane *lanes;
  uint64_t *complete; /* for each lane: all tickets up to this one are known to be complete */
  uint32_t n_lanes;
  uint32_t n_extents, n_chunks; /* records ever used */
  tarni_index free_extent, free_chunk;
  tarni_bitset idle; /* the homes, as first units, of chunks that nothing uses */
  tarni_index zombies;
  tarni_bitset begun;    /* granules where an extent begins */
  tarni_bitset aliases;  /* the first units of places that are no homes */
  tarni_bitset stale;    /* chunks whose ends may have changed (view.c) */
  tarni_bitset open;     /* units of views behind which all is free, */
  tarni_bitset joints;   /* and where two places of a row meet that have something free there, */
  tarni_bitset row_ends; /* and the first units of the last places of rows */
  tarni_bitset placed;   /* units where a chunk has a place */
  tarni_bitset barred;   /* units where a slab lies where they begin: no window can have them */
  tarni_bitset seams;    /* units where a free extent begins that has one before it, */
  uint32_t *n_seams;     /* and for each unit how many */
  uint32_t n_aliases, max_aliases;
  uint64_t n_places;      /* that there ever were */
  uint64_t first_alias;   /* the least number of those that are no homes, or less */
  uint64_t n_searches;    /* for windows and views, and runs of them: stamps for chunks */
  uint64_t views_top;     /* offset: above it nothing was ever mapped */
  uint64_t idle_bytes;    /* of idle chunks */
  uint64_t leaving_bytes; /* of chunks that are to be released; part of reserved_bytes */
  tarni_uses **uses;      /* hash table of live blocks with uses */
  uint32_t n_uses, uses_capacity;
  tarni_uses *pending;    /* freed blocks with uses */
  tarni_uses *held[2];    /* those that are kept out of use, oldest and youngest (quarantine.c) */
  uint64_t n_news_seen;   /* n_news when they were last looked through, */
  bool has_pended;        /* and whether one may be complete that was not there then */
  uint64_t refused_bytes; /* reserved when the device refused more; 0: it has given some since */
  struct tarni_growth *unfinished; /* growths that failed and could not be undone yet (grow.c) */
  tarni_cache *caches;
  uint32_t n_caches;
  uint64_t shelf_limits; /* of all shelves */
  uint64_t reserved_bytes, reserved_peak_bytes, limit_bytes, pending_bytes;
  uint32_t deferred_blocks[TARNI_ROWS];          /* that captures keep, by size (histogram.c) */
  uint64_t quarantined_bytes;                    /* of unfinished growths; part of reserved_bytes */
  uint64_t unreturned_bytes;                     /* not part of them */
  tarni_unreturned unreturned[TARNI_UNRETURNED]; /* taken to wait for the device (order.c) */
  uint64_t used_bytes, used_peak_bytes;          /* in slabs */
  uint64_t binned_bytes; /* of them, in lanes' bins, also in those out of sight */
  tarni_tide tide;
  /* peaks since a scope of statistics last began or ended (scope_stats.c): */
  uint64_t recent_reserved_peak, recent_used_peak, recent_live_peak;
  uint64_t asleep_bytes; /* of chunks that have their place but no memory, until the heap wakes */
  uint64_t moved_chunks, waits;
  tarni_rest rest;
  tarni_hoard hoard;
  uint64_t planned_bytes;  /* of chunks and grants that are being made: the limit counts them */
  uint64_t captured_bytes; /* physical memory of arenas; not part of reserved_bytes */
  tarni_counts gone;       /* what caches have counted that are gone */
  tarn_stats_scope *scopes;
  uint32_t n_exact; /* of them, those that want the exact peak of live bytes */
  /* lock DRIVER: */
  tarni_lock grow;
  struct tarni_nap *nap; /* of a heap that has ever slept (sleep.c) */
  bool is_map_refused;   /* there was no memory for a mapping of the last growth */
  uint64_t n_unmapped;   /* zombies that are gone */
  uint64_t n_fences;     /* ever recorded */
  uint64_t n_news;       /* how often `complete` has changed */
  uint64_t short_bytes;  /* what the shortage that last waited had to make room for */
  tarni_event spare;     /* the next fence, or one that was recorded in vain (order.c) */
  /* lock CAPTURE (arena.h): */
  tarni_lock capture;
  struct tarn_capture *captures; /* announced */
  struct tarn_capture
      *captures_over; /* ended; what was freed in them could not be given back yet */
  struct tarn_graph *graphs;
  struct tarn_arena *arenas;
  /* lock BUDGET: held while a budget is made (budget.c) */
  tarni_lock budget;
  struct tarn_budget *unmade; /* those that failed, and hold what could not be given back yet */
  /* atomic: */
  _Atomic bool is_asleep;      /* changed under lock DRIVER */
  _Atomic uint32_t n_watchers; /* changed under lock HEAP; not 0: no hits, see watch.c */
  tarni_tally calls;           /* of the driver, on the heap's account */
  _Atomic uint32_t n_captures; /* announced, and one more when the heap asks; written under HEAP */
  _Atomic uint32_t n_arenas;
  _Atomic uint32_t n_over; /* captures_over */
};

/* The byte of a small block's first 256 bytes; 0 for all others. */
enum {
  TARNI_SMALL_LIVE = 1,    /* plus the class */
  TARNI_SMALL_USED = 0x80, /* or'ed to it: named by tarn_use */
};

#endif
