/* SPDX-License-Identifier: MIT
 *
 * The model of the simulated GPU: every struct that its files share, with its invariants, grouped
 * by the file that owns it. Glossary:
 *   device     one simulated GPU; all devices of a process share one lock (a stream of one may wait
 *              for an event of another), so everything here is under that lock unless it says else
 *   slot       a component of the vector clocks: a stream, or a branch of an executable graph
 *   epoch      the how-manieth operation of a slot
 *   clock      for each slot the last epoch that is ordered before something
 *   operation  a unit of work in a stream's queue; submitted (and judged by the oracle) at once,
 *              run later, when the scheduler pleases
 *   region     an address range that the device knows: a reservation, or one allocation
 *   mapping    a chunk seen at an address; plain, pooled and pinned memory is a region that is one
 *              mapping of a chunk of its own
 *   history    what the oracle knows about some bytes: owner, last write, reads since
 */
#ifndef TARNI_SIM_TYPES_H
#define TARNI_SIM_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/rng.h"
#include "port/port.h"
#include "tarn/sim.h"

/* CUDA's own result codes, as the simulated driver reports them. */
enum {
  SIM_CUDA_SUCCESS = 0,
  SIM_CUDA_INVALID_VALUE = 1,
  SIM_CUDA_OUT_OF_MEMORY = 2,
  SIM_CUDA_INVALID_HANDLE = 400,
  SIM_CUDA_ILLEGAL_STATE = 401,
  SIM_CUDA_NOT_READY = 600,
  SIM_CUDA_ILLEGAL_ADDRESS = 700,
  SIM_CUDA_ALREADY_REGISTERED = 712,
  SIM_CUDA_NOT_REGISTERED = 713,
  SIM_CUDA_NOT_SUPPORTED = 801,
  SIM_CUDA_CAPTURE_UNSUPPORTED = 900,
  SIM_CUDA_CAPTURE_INVALIDATED = 901,
  SIM_CUDA_CAPTURE_MERGE = 902,
  SIM_CUDA_CAPTURE_UNMATCHED = 903,
  SIM_CUDA_CAPTURE_UNJOINED = 904,
  SIM_CUDA_CAPTURE_ISOLATION = 905,
  SIM_CUDA_CAPTURE_IMPLICIT = 906,
  SIM_CUDA_CAPTURED_EVENT = 907,
  SIM_CUDA_CAPTURE_WRONG_THREAD = 908,
};

/* ---- store.c: host memory of the simulator itself --------------------------------------------*/

typedef struct sim_array { /* of pointers */
  void **items;
  uint32_t n;
  uint32_t capacity;
} sim_array;

/* ---- clock.c: vector clocks ------------------------------------------------------------------*/

typedef struct sim_clock {
  uint64_t *epochs;
  uint32_t n; /* slots beyond n are at 0 */
  uint32_t capacity;
} sim_clock;

static inline uint64_t tarni_sim_clock_at(const sim_clock *clock, uint32_t slot) {
  return slot < clock->n ? clock->epochs[slot] : 0;
}

/* ---- shadow.c: histories by byte range -------------------------------------------------------*/

typedef struct sim_use {
  uint64_t epoch;
  uint64_t stream_id;
  uint64_t owner;
  uint32_t slot;
  uint8_t operation; /* sim_operation_kind */
  bool is_write;
} sim_use;

typedef struct sim_history {
  uint32_t references; /* a split shares it; a change to a part makes a new one */
  uint32_t n_uses;
  uint32_t capacity;
  uint32_t n_reserved; /* uses that the submission `stamp` may still add */
  uint64_t stamp;
  uint64_t owner;
  bool is_freed;  /* its owner gave it back */
  sim_use uses[]; /* those that a later use may have to be ordered after */
} sim_history;

typedef struct sim_segment {
  uint32_t start; /* offset in its page; it ends where the next begins */
  sim_history *history;
} sim_segment;

enum { SIM_SHADOW_PAGE_LOG2 = 21, SIM_SHADOW_LEAF_LOG2 = 10 };

typedef struct sim_shadow_page {
  sim_segment *segments; /* sorted; the first starts at 0 once there is any */
  uint32_t n;
  uint32_t capacity;
  uint32_t recent; /* the segment last looked for: a guess */
} sim_shadow_page;

typedef struct sim_shadow {
  uint32_t references; /* chunks of several devices may be the same memory */
  uint64_t size;
  struct sim_device *payer; /* of whose capacity it takes (chunk.c); NULL: nobody's */
  sim_shadow_page **leaves; /* 1024 pages each, made when first used */
} sim_shadow;

/* Visits a piece. The visitor may replace the history (NULL: never used). */
typedef bool (*sim_shadow_visit)(sim_history **history, uint64_t offset, uint64_t size, void *user);

/* ---- chunk.c: physical memory ----------------------------------------------------------------*/

typedef struct sim_device sim_device;

typedef struct sim_stream sim_stream;

typedef struct sim_chunk {
  tarni_chunk id;
  uint64_t size;
  uint64_t file_offset;
  int file; /* the device's file, or its own once it is exported; -1: host memory */
  bool owns_file;
  uint32_t n_handles; /* that the program still holds */
  uint32_t n_mappings;
  uint64_t inode; /* of its own file, 0 if it has none */
  sim_shadow *shadow;
} sim_chunk;

/* ---- region.c: addresses, and which chunk is seen there --------------------------------------*/

typedef struct sim_mapping {
  tarn_ptr address;
  uint64_t size;
  sim_chunk *chunk;
  bool has_access;
  sim_use *uses; /* the last by each slot: must be seen complete before it is unmapped */
  uint32_t n_uses;
  uint32_t uses_capacity;
  uint32_t n_reserved; /* as in a history */
  uint64_t stamp;
} sim_mapping;

typedef enum sim_region_kind {
  SIM_REGION_RESERVED,
  SIM_REGION_PLAIN,
  SIM_REGION_POOL,
  SIM_REGION_HOST,       /* host_alloc */
  SIM_REGION_REGISTERED, /* host_register */
} sim_region_kind;

typedef struct sim_region {
  tarn_ptr address;
  uint64_t size;
  sim_region_kind kind;
  bool in_use;        /* an allocation that was not freed yet */
  sim_array mappings; /* sorted by address */
  struct sim_pool *pool;
  uint32_t freed_slot; /* pool: the stream that freed it */
  struct sim_record *freed_record;
  struct sim_region *next_free;
} sim_region;

/* ---- pool.c: the driver's stream-ordered pools -----------------------------------------------*/

typedef struct sim_pool {
  bool is_live; /* not destroyed; one that is goes with its last block */
  uint64_t threshold;
  uint64_t cached_bytes;
  uint64_t n_live;
  sim_region *free_list;
  struct sim_pool *next;
} sim_pool;

/* ---- stream.c, event.c: queues and what orders them ------------------------------------------*/

/* A place in a stream's queue: what a wait waits for. Shared by events, operations and waits. */
typedef struct sim_record {
  uint32_t references;
  bool is_done;
  uint64_t end_ns;
  sim_clock clock;
  /* of a value that is to be written, while it is: */
  const uint64_t *word;
  uint64_t value;
  struct sim_record *next_value;
  struct sim_record *next_free;
} sim_record;

typedef enum sim_operation_kind {
  SIM_OP_NONE,
  SIM_OP_KERNEL,
  SIM_OP_COPY,
  SIM_OP_FILL,
  SIM_OP_RECORD,
  SIM_OP_WAIT,
  SIM_OP_VALUE_WRITE,
  SIM_OP_VALUE_WAIT,
  SIM_OP_POOL_ALLOC,
  SIM_OP_POOL_FREE,
  SIM_OP_GRAPH,
} sim_operation_kind;

/* What an operation does, apart from where it is queued: also a node of a graph. */
typedef struct sim_work {
  sim_operation_kind kind;
  uint8_t value;
  bool owns_source; /* `source` is a staged copy of ordinary host memory, to be freed */
  bool reads_now;   /* the host reads `source` when the work is submitted, and waits for its end */
  bool is_managers; /* a heap works on its own memory, also on what was given back */
  bool is_early;    /* a kernel that does not wait for the one that it follows in a capture */
  uint32_t n_ranges;
  tarn_ptr destination;
  tarn_ptr source;
  uint64_t size;
  uint64_t *word;         /* of a value operation; size holds the value */
  tarn_sim_range *ranges; /* NULL with one range: `range` is it */
  tarn_sim_range range;
  void (*run)(void *user);
  void *user;
  uint64_t nanoseconds;
} sim_work;

static inline const tarn_sim_range *tarni_sim_work_range(const sim_work *work, uint32_t index) {
  return work->ranges != NULL ? &work->ranges[index] : &work->range;
}

typedef struct sim_operation {
  struct sim_operation *next;
  sim_work work;
  sim_record *after;     /* must be done before this runs: WAIT */
  sim_record *record;    /* done when this has run: RECORD, VALUE_WRITE, GRAPH */
  struct sim_exec *exec; /* GRAPH, and all that follows: */
  uint32_t *n_open;      /* for each node the dependencies not yet run */
  uint32_t *ready;       /* nodes that can run; shares its memory with n_open */
  sim_record **values;   /* for each node that writes a value its record; NULL: none does */
  uint32_t n_ready;
  uint32_t n_left; /* nodes not yet run */
} sim_operation;

struct sim_stream {
  uint32_t is_live; /* SIM_STREAM_LIVE */
  uint32_t slot;
  uint64_t id;
  sim_device *device;
  uint64_t epoch;         /* operations submitted */
  sim_clock clock;        /* what is ordered before the next operation */
  uint64_t host_version;  /* of the host clock last joined */
  uint64_t tail_ns;       /* virtual time at which the queue is empty */
  uint64_t legacy_joined; /* per-thread default stream: legacy epoch last waited for, and back */
  uint64_t joined_by_legacy;
  sim_operation *head, **tail;
  uint32_t pending_index; /* in the world's list of streams with work; UINT32_MAX: none */
  uint64_t thread;        /* whose default stream it is; 0: a created one */
  struct sim_capture *capture;
  uint32_t *capture_tail; /* nodes that the next captured node follows */
  uint32_t n_capture_tail;
  sim_stream *next;
};

typedef struct sim_event {
  uint32_t is_live;
  sim_device *device;
  sim_record *record;  /* NULL: never recorded */
  uint64_t capture_id; /* recorded in a capture that may be over; 0: not */
  uint32_t *nodes;     /* in a capture: what a waiter follows */
  uint32_t n_nodes;
  struct sim_event *next_free;
  struct sim_event *next;
} sim_event;

enum {
  SIM_STREAM_LIVE = 0x7357,
  SIM_EVENT_LIVE = 0xe7e7,
  SIM_GRAPH_LIVE = 0x6ea9,
  SIM_EXEC_LIVE = 0xe8ec
};

/* ---- capture.c, graph.c: captures and what they record ---------------------------------------*/

typedef struct sim_node {
  sim_work work;
  uint32_t *after; /* nodes that come before it */
  uint32_t n_after;
  bool is_early;  /* its edges are programmatic: it may begin before they are complete */
  bool is_loose;  /* a stream that is gone ended with it: it must come before the capture's end */
  uint32_t chain; /* which of the exec's slots it counts on */
} sim_node;

typedef struct sim_graph {
  uint32_t is_live;    /* SIM_GRAPH_LIVE while the program holds it */
  uint32_t references; /* the program's handle and each exec */
  sim_device *device;
  sim_node *nodes; /* in an order that the dependencies allow */
  uint32_t n_nodes;
  uint32_t capacity;
  struct sim_graph *next; /* all of the device; handles are never invalid addresses */
} sim_graph;

typedef struct sim_exec {
  uint32_t is_live;
  uint32_t references; /* the program's handle and each pending launch */
  sim_device *device;
  sim_graph *graph;
  uint32_t n_chains;
  uint32_t *chain_slots;
  uint64_t *chain_epochs;
  uint32_t *followers;      /* of all nodes, one after the other */
  uint32_t *followers_from; /* for each node where its own begin; one more at the end */
  bool writes_values;
  sim_record *last_launch;
  struct sim_exec *next;
} sim_exec;

typedef struct sim_capture {
  uint64_t id;
  tarni_capture_mode mode;
  uint64_t thread;
  sim_device *device;
  sim_stream *origin;
  bool is_invalid;
  sim_graph *graph;
  struct sim_capture *next;
} sim_capture;

/* ---- oracle.c: findings; judge.c: uses of memory ---------------------------------------------*/

typedef struct sim_actor { /* who does something, and what is ordered before it */
  const sim_clock *clock;
  uint64_t epoch;
  uint64_t stream_id;
  uint32_t slot;
  sim_operation_kind operation;
  bool is_manager; /* sim_work's is_managers */
} sim_actor;

/* ---- call.c: what every entry begins and ends with; code.c: the driver's codes ---------------*/

typedef struct sim_fault {
  tarn_call call; /* TARN_CALL_COUNT: any */
  uint64_t nth;   /* calls until it strikes; 0: no plan */
  uint64_t times; /* how often it still strikes; 0: for good */
  bool is_endless;
  int code;
} sim_fault;

typedef enum sim_order { SIM_ORDER_RANDOM, SIM_ORDER_LAZY, SIM_ORDER_EAGER } sim_order;

typedef struct sim_config {
  uint64_t capacity_bytes;
  uint64_t granularity_bytes;
  uint64_t seed;
  uint64_t id;
  sim_order order;
  bool has_vmm;
  bool has_pool;
  bool has_register;
  sim_fault fault;
} sim_config;

enum { SIM_MAX_FINDINGS = 64 };

struct sim_device {
  tarni_port port; /* first: a device is a port */
  /* immutable after open: */
  sim_config config;
  /* lock SIM, all that follows: */
  tarni_rng rng;
  uint64_t now_ns;
  int sticky_code;
  sim_fault fault;
  uint64_t n_faults;
  int file;
  uint64_t file_end;
  uint64_t n_placed; /* chunks in the file; with the last of them it begins anew */
  tarni_chunk last_chunk;
  uint64_t created_bytes, peak_bytes, mapped_bytes;
  sim_array chunks;    /* sorted by id */
  sim_array regions;   /* sorted by address */
  sim_mapping *recent; /* the mapping last looked up; NULL: none */
  sim_pool *pools;
  sim_stream *streams; /* live and dead: a handle is never an invalid address */
  sim_stream *legacy;
  sim_clock retired; /* of streams that are gone, their work complete */
  sim_event *events; /* live and dead, as the streams */
  sim_event *free_events;
  sim_graph *graphs;
  sim_exec *execs;
  uint64_t n_pending_operations, n_operations;
  tarn_sim_finding findings[SIM_MAX_FINDINGS];
  uint64_t n_findings;
  tarn_sim_on_finding on_finding;
  void *on_finding_user;
  sim_device *next;
};

/* The world: what all devices share. Under the lock. */
typedef struct sim_world {
  sim_device *devices;
  sim_clock host;   /* what the host has seen complete; has room for every slot */
  sim_clock common; /* to reckon with (tarni_sim_value_rely); has room for every slot */
  uint64_t host_version;
  uint32_t n_slots;
  uint32_t *free_slots; /* streams that are gone; usable once seen complete */
  uint64_t *free_epochs;
  uint32_t n_free, free_capacity;
  uint64_t last_capture_id;
  uint64_t last_stream_id;
  uint64_t last_stamp;
  uint32_t n_streams;   /* stream structs that exist */
  sim_stream **pending; /* streams with work in their queues, of all devices */
  uint32_t n_pending, pending_capacity;
  sim_capture *captures;
  sim_record *values; /* that are about to be written */
  sim_operation *free_operations;
  sim_record *free_records;
} sim_world;

#endif
