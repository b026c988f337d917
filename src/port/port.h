/* SPDX-License-Identifier: MIT
 *
 * The contract between tarn and a GPU. Two ports fulfil it, `cuda` and `sim`, and both pass the one
 * suite in tests/conform. This is the only function table in the library.
 *
 * What holds for every entry, once:
 * - Sizes are not zero. Addresses and sizes of chunks and mappings are multiples of the
 *   granularity. Output pointers are not NULL. (Checked in port_call.c, in every build:
 * TARN_INVALID; a copy or fill of zero bytes does nothing.)
 * - On failure outputs are empty (0 or NULL), nothing has changed, and the thread's last error says
 *   what happened, with the driver's own code. Success with a null result is a failure.
 * - Shortage, and nothing else, is TARN_DEVICE_MEMORY (TARN_HOST_MEMORY for pinned memory). A call
 *   that a capture forbids is TARN_CAPTURE. A broken context is TARN_DEVICE_LOST from then on.
 * - The calling thread's current context is the same after the call as before it.
 * - No entry calls back into tarn. Every entry may be called from any thread.
 * - A stream is the driver's own handle. NULL and (tarn_stream)1 are the legacy default stream,
 *   (tarn_stream)2 the calling thread's default stream.
 * - No entry is called while the thread holds a lock of rank TARNI_RANK_HEAP or above (I5).
 */
#ifndef TARNI_PORT_H
#define TARNI_PORT_H

#include <stdatomic.h>

#include "tarn/tarn.h"

#define TARNI_STREAM_LEGACY ((tarn_stream)1)
#define TARNI_STREAM_PER_THREAD ((tarn_stream)2)
/* No stream of a driver: the host itself, whose use of memory is over when it gives it back. For
 * heaps of the host's memory only; a port never sees it. */
#define TARNI_STREAM_HOST ((tarn_stream)(intptr_t)-2)

typedef uint64_t tarni_chunk; /* physical memory without an address; never 0 */
typedef void *tarni_pool;     /* a private stream-ordered pool of the driver */
typedef void *tarni_event;
typedef void *tarni_graph;      /* what a capture recorded */
typedef void *tarni_graph_exec; /* what can be launched */

typedef enum tarni_capture_mode {
  TARNI_CAPTURE_GLOBAL = 0,
  TARNI_CAPTURE_THREAD_LOCAL = 1,
  TARNI_CAPTURE_RELAXED = 2,
} tarni_capture_mode;

typedef enum tarni_capture_status {
  TARNI_CAPTURE_NONE = 0,
  TARNI_CAPTURE_ACTIVE = 1,
  TARNI_CAPTURE_INVALIDATED = 2, /* something illegal happened; only capture_end is left */
} tarni_capture_status;

typedef struct tarni_capture_state {
  tarni_capture_status status;
  uint64_t id; /* unique in the process; the same on every stream of one capture; 0 for none */
} tarni_capture_state;

/* A node of a graph, as what comes after it sees it. */
typedef struct tarni_edge {
  uint64_t node; /* not 0; unique in its graph */
  bool is_full;  /* what comes after begins when the node is complete, not before (programmatic) */
} tarni_edge;

enum { TARNI_HOST_WRITE_COMBINED = 1 }; /* flags of host_alloc */

/* One copy of several that are given to a stream together. */
typedef struct tarni_copy {
  tarn_ptr destination;
  tarn_ptr source;
  uint64_t size;
} tarni_copy;

/* How the copies of a batch are made: as is fastest, or by copy engines alone, which a kernel that
 * keeps the whole device busy does not keep waiting. */
typedef enum tarni_copy_way { TARNI_COPY_FAST, TARNI_COPY_BY_ENGINES } tarni_copy_way;

typedef struct tarni_port tarni_port;

typedef struct tarni_port_table {
  const char *name; /* "cuda", "sim" */

  /* Devices. `count` succeeds with 0 where there is no driver; `describe` fills in everything
   * without keeping the device open (free_bytes may be 0 when that would need a context). */
  tarn_status (*count)(int *count);
  tarn_status (*describe)(int ordinal, tarn_device_info *info);
  /* `options` is what followed the device's number in its name, "" if nothing did. */
  tarn_status (*open)(int ordinal, const char *options, tarni_port **port);
  /* pre: everything made through the port is destroyed; what is not is reported by the sim. */
  void (*close)(tarni_port *port);
  tarn_status (*info)(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes);

  /* Addresses. post: the range overlaps no other reservation and starts at a multiple of
   * `alignment` (a power of two; 0: the granularity). Releasing needs the whole range, unmapped. */
  tarn_status (*reserve)(tarni_port *port, uint64_t size, uint64_t alignment, tarn_ptr *address);
  tarn_status (*unreserve)(tarni_port *port, tarn_ptr address, uint64_t size);

  /* Chunks. None of these waits for the GPU, and all are legal during any capture. A chunk is
   * mapped whole, at any number of addresses at once (they share its content), and each mapping is
   * unmapped whole. A mapping can be used after `access`, which may cover several mappings.
   * pre of unmap: all work that uses the mapping is known to be complete.
   * A chunk may be released while mapped: the memory goes with its last mapping. */
  tarn_status (*create)(tarni_port *port, uint64_t size, tarni_chunk *chunk);
  tarn_status (*release)(tarni_port *port, tarni_chunk chunk);
  tarn_status (*map)(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk chunk);
  tarn_status (*access)(tarni_port *port, tarn_ptr address, uint64_t size);
  tarn_status (*unmap)(tarni_port *port, tarn_ptr address, uint64_t size);
  /* A file descriptor that another process (or this one) can import. The caller closes it. */
  tarn_status (*export_chunk)(tarni_port *port, tarni_chunk chunk, int *descriptor);
  tarn_status (*import_chunk)(tarni_port *port, int descriptor, tarni_chunk *chunk);

  /* Plain memory. Illegal in a global capture (any thread's) or thread-local one (its own
   * thread's), and such a call invalidates the capture. plain_free waits for all work of the
   * device. */
  tarn_status (*plain_alloc)(tarni_port *port, uint64_t size, tarn_ptr *address);
  tarn_status (*plain_free)(tarni_port *port, tarn_ptr address);

  /* A private pool, in stream order. It keeps up to `threshold` bytes at synchronisation points.
   * A capturing stream is refused with TARN_CAPTURE and its capture stays valid. */
  tarn_status (*pool_create)(tarni_port *port, uint64_t threshold, tarni_pool *pool);
  tarn_status (*pool_destroy)(tarni_port *port, tarni_pool pool);
  tarn_status (*pool_trim)(tarni_port *port, tarni_pool pool, uint64_t keep_bytes);
  tarn_status (*pool_alloc)(tarni_port *port, tarni_pool pool, uint64_t size, tarn_stream stream,
                            tarn_ptr *address);
  tarn_status (*pool_free)(tarni_port *port, tarn_ptr address, tarn_stream stream);

  /* Pinned host memory, visible to the device at the same address. Allocation is illegal in a
   * capture like plain_alloc; host_free waits for all work of the device. A range is registered
   * and unregistered as it was given; registering it twice is TARN_STATE. */
  tarn_status (*host_alloc)(tarni_port *port, uint64_t size, unsigned flags, void **pointer);
  tarn_status (*host_free)(tarni_port *port, void *pointer);
  tarn_status (*host_register)(tarni_port *port, void *pointer, uint64_t size);
  tarn_status (*host_unregister)(tarni_port *port, void *pointer);

  /* Streams. Created ones do not synchronise with the legacy default stream. The id is unique in
   * the process and never used again, unlike the handle; a capturing stream is not asked for it:
   * TARN_CAPTURE, and the capture stays valid. `query` is TARN_NOT_READY while work is
   * pending. `destroy` lets pending work finish, and may wait for it. */
  tarn_status (*stream_create)(tarni_port *port, tarn_stream *stream);
  tarn_status (*stream_destroy)(tarni_port *port, tarn_stream stream);
  tarn_status (*stream_id)(tarni_port *port, tarn_stream stream, uint64_t *id);
  tarn_status (*stream_query)(tarni_port *port, tarn_stream stream);
  tarn_status (*stream_sync)(tarni_port *port, tarn_stream stream);

  /* Events, without timing. A wait is for the event's last record at the time of the call; an event
   * that was never recorded is complete. `query` is TARN_NOT_READY while the record is pending; it
   * is illegal in a capture like plain_alloc, and so is `sync`. An event may be destroyed while
   * its record is pending. */
  tarn_status (*event_create)(tarni_port *port, tarni_event *event);
  tarn_status (*event_destroy)(tarni_port *port, tarni_event event);
  tarn_status (*event_record)(tarni_port *port, tarni_event event, tarn_stream stream);
  tarn_status (*event_query)(tarni_port *port, tarni_event event);
  tarn_status (*event_sync)(tarni_port *port, tarni_event event);
  tarn_status (*event_wait)(tarni_port *port, tarn_stream stream, tarni_event event);

  /* Capture. A stream that waits for an event recorded in a capture joins the capture. A capturing
   * stream that waits for an event recorded outside is TARN_CAPTURE and invalidates the capture.
   * `end` is called on the stream that began, with all others joined back to it; when the capture
   * is invalid it fails with TARN_CAPTURE, gives no graph, and the stream is free again. */
  tarn_status (*capture_state)(tarni_port *port, tarn_stream stream, tarni_capture_state *state);
  tarn_status (*capture_begin)(tarni_port *port, tarn_stream stream, tarni_capture_mode mode);
  tarn_status (*capture_end)(tarni_port *port, tarn_stream stream, tarni_graph *graph);
  /* Exchanges the mode of the calling thread, which is GLOBAL at first: what captures that were
   * begun in stricter modes make illegal for it. In THREAD_LOCAL those of other threads are
   * ignored, in RELAXED all of them, so that no capture is broken by a call that is illegal only
   * because a capture goes on. False: the driver has no such thing, and nothing has changed. Not
   * counted. */
  bool (*thread_mode)(tarni_port *port, tarni_capture_mode *mode);
  /* The nodes that the next one of a capturing stream will follow, and those that a node follows
   * whose graph is being captured: at most `capacity` of them, and in *count how many there are. A
   * stream that is not being captured is TARN_STATE, and a driver that cannot tell
   * TARN_UNSUPPORTED. Neither harms a capture. */
  tarn_status (*capture_nodes)(tarni_port *port, tarn_stream stream, tarni_edge *edges,
                               uint32_t capacity, uint32_t *count);
  tarn_status (*node_before)(tarni_port *port, uint64_t node, tarni_edge *edges, uint32_t capacity,
                             uint32_t *count);
  tarn_status (*graph_instantiate)(tarni_port *port, tarni_graph graph, tarni_graph_exec *exec);
  tarn_status (*graph_launch)(tarni_port *port, tarni_graph_exec exec, tarn_stream stream);
  /* Either may be NULL. Destroying an exec whose launches are pending is allowed. */
  tarn_status (*graph_destroy)(tarni_port *port, tarni_graph graph, tarni_graph_exec exec);

  /* Work. Copies go between any two of device memory, pinned and ordinary host memory; one between
   * two ranges of host memory may wait for its stream. The sync forms return when the bytes are
   * there, and are illegal in a capture like plain_alloc. */
  tarn_status (*copy)(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                      tarn_stream stream);
  tarn_status (*copy_sync)(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size);
  /* Gets ready for copy_batch, which works without, too, but slower. The first time in a process
   * this can take a tenth of a second and wait for the work of the device. */
  void (*copy_prepare)(tarni_port *port);
  /* Several copies between device and pinned memory, in the order of the stream but in none among
   * themselves: what one of them writes, no other may touch. The stream is neither a default stream
   * nor being captured (tarni_port_copy_batch makes single copies of those). On failure some of
   * them may have been given to the stream. */
  tarn_status (*copy_batch)(tarni_port *port, const tarni_copy *copies, uint64_t count,
                            tarn_stream stream, tarni_copy_way way);
  tarn_status (*fill)(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                      tarn_stream stream);
  tarn_status (*fill_sync)(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size);
  /* A 64-bit word in pinned host memory: written by the stream when it gets there; awaited by the
   * stream until it is at least `value`. Legal in a capture. */
  tarn_status (*value_write)(tarni_port *port, tarn_stream stream, uint64_t *word, uint64_t value);
  tarn_status (*value_wait)(tarni_port *port, tarn_stream stream, const uint64_t *word,
                            uint64_t value);

  /* Nanoseconds: of the machine's monotonic clock, or of the simulated GPU's virtual one. */
  uint64_t (*now_ns)(tarni_port *port);
} tarni_port_table;

/* The part of an open device that every port begins with. */
struct tarni_port {
  /* immutable after open: */
  const tarni_port_table *table;
  tarn_device_info device; /* free_bytes is as of the open */
  uint32_t fork;           /* tarni_fork_watch in the process that opened it */
  /* atomic: */
  _Atomic uint64_t calls[TARN_CALL_COUNT];
  _Atomic uint64_t nanoseconds[TARN_CALL_COUNT];
};

extern const tarni_port_table tarni_port_cuda;
extern const tarni_port_table tarni_port_sim;
extern const tarni_port_table tarni_port_host;

/* Driver calls on somebody's account, beside the device's own. */
typedef struct tarni_tally {
  _Atomic uint64_t calls[TARN_CALL_COUNT];
  _Atomic uint64_t nanoseconds[TARN_CALL_COUNT];
} tarni_tally;

/* On whose account this thread calls the driver now; NULL: nobody's. Set by TARNI_PAYS. */
extern _Thread_local tarni_tally *tarni_port_payer __attribute__((tls_model("initial-exec")));

static inline tarni_tally *tarni_port_pay_begin(tarni_tally *payer) {
  tarni_tally *before = tarni_port_payer;
  tarni_port_payer = payer;
  return before;
}

static inline void tarni_port_pay_end(tarni_tally *const *before) {
  tarni_port_payer = *before;
}

/* From here to the end of the block the calls of this thread are on the account `payer`. */
#define TARNI_PAYS(payer)                                                                          \
  __attribute__((cleanup(tarni_port_pay_end), unused)) tarni_tally *const paid_before =            \
      tarni_port_pay_begin(payer)

/* For the ports: notes the duration of a driver call, or more of it. */
static inline void tarni_port_count_ns(tarni_port *port, tarn_call call, uint64_t nanoseconds) {
  tarni_tally *payer = tarni_port_payer;
  atomic_fetch_add_explicit(&port->nanoseconds[call], nanoseconds, memory_order_relaxed);
  if (payer != NULL) {
    atomic_fetch_add_explicit(&payer->nanoseconds[call], nanoseconds, memory_order_relaxed);
  }
}

/* For the ports: notes one driver call of the given duration. */
static inline void tarni_port_count(tarni_port *port, tarn_call call, uint64_t nanoseconds) {
  tarni_tally *payer = tarni_port_payer;
  atomic_fetch_add_explicit(&port->calls[call], 1, memory_order_relaxed);
  if (payer != NULL) {
    atomic_fetch_add_explicit(&payer->calls[call], 1, memory_order_relaxed);
  }
  tarni_port_count_ns(port, call, nanoseconds);
}

/* Opening by name ("cuda:0", "sim:80G,seed=7", NULL for the best there is) and closing; the same
 * name gives the same port as long as it is open. Thread-safe. */
tarn_status tarni_port_open(const char *name, tarni_port **port);
void tarni_port_close(tarni_port *port);

/* A port to the host's own memory, pinned for the device of this name: its chunks are host memory,
 * all else is the device's. Each opening gives another one. */
typedef struct tarni_host_config {
  uint64_t region_bytes; /* its granularity, a power of two */
  uint32_t node;         /* of memory, where has_node */
  bool has_node;
  bool has_small_pages;   /* huge ones are not asked for */
  bool is_write_combined; /* plain memory */
} tarni_host_config;
tarn_status tarni_port_host_open(const char *device, const tarni_host_config *config,
                                 tarni_port **port);
tarni_port *tarni_port_host_device(tarni_port *port);
/* How many mappings of a device the host should spend memory on. */
uint64_t tarni_port_host_mappings(const tarni_port *device);
/* Whether the device pins memory of the host, tried on a page: without that there are no chunks,
 * only plain memory. */
bool tarni_port_host_can_register(tarni_port *port);

/* The entries, as the library calls them: arguments checked, results checked. */
tarn_status tarni_port_info(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes);
tarn_status tarni_port_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                               tarn_ptr *address);
tarn_status tarni_port_unreserve(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_port_create(tarni_port *port, uint64_t size, tarni_chunk *chunk);
tarn_status tarni_port_release(tarni_port *port, tarni_chunk chunk);
tarn_status tarni_port_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk chunk);
tarn_status tarni_port_access(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_port_unmap(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_port_export(tarni_port *port, tarni_chunk chunk, int *descriptor);
tarn_status tarni_port_import(tarni_port *port, int descriptor, tarni_chunk *chunk);
void tarni_port_close_descriptor(int descriptor); /* what export gave */
tarn_status tarni_port_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address);
tarn_status tarni_port_plain_free(tarni_port *port, tarn_ptr address);
tarn_status tarni_port_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *pool);
tarn_status tarni_port_pool_destroy(tarni_port *port, tarni_pool pool);
tarn_status tarni_port_pool_trim(tarni_port *port, tarni_pool pool, uint64_t keep_bytes);
tarn_status tarni_port_pool_alloc(tarni_port *port, tarni_pool pool, uint64_t size,
                                  tarn_stream stream, tarn_ptr *address);
tarn_status tarni_port_pool_free(tarni_port *port, tarn_ptr address, tarn_stream stream);
tarn_status tarni_port_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer);
tarn_status tarni_port_host_free(tarni_port *port, void *pointer);
tarn_status tarni_port_host_register(tarni_port *port, void *pointer, uint64_t size);
tarn_status tarni_port_host_unregister(tarni_port *port, void *pointer);
tarn_status tarni_port_stream_create(tarni_port *port, tarn_stream *stream);
tarn_status tarni_port_stream_destroy(tarni_port *port, tarn_stream stream);
tarn_status tarni_port_stream_id(tarni_port *port, tarn_stream stream, uint64_t *id);
tarn_status tarni_port_stream_query(tarni_port *port, tarn_stream stream);
tarn_status tarni_port_stream_sync(tarni_port *port, tarn_stream stream);
tarn_status tarni_port_event_create(tarni_port *port, tarni_event *event);
tarn_status tarni_port_event_destroy(tarni_port *port, tarni_event event);
tarn_status tarni_port_event_record(tarni_port *port, tarni_event event, tarn_stream stream);
tarn_status tarni_port_event_query(tarni_port *port, tarni_event event);
tarn_status tarni_port_event_sync(tarni_port *port, tarni_event event);
tarn_status tarni_port_event_wait(tarni_port *port, tarn_stream stream, tarni_event event);
tarn_status tarni_port_capture_state(tarni_port *port, tarn_stream stream,
                                     tarni_capture_state *state);
tarn_status tarni_port_capture_begin(tarni_port *port, tarn_stream stream, tarni_capture_mode mode);
tarn_status tarni_port_capture_end(tarni_port *port, tarn_stream stream, tarni_graph *graph);
tarn_status tarni_port_capture_nodes(tarni_port *port, tarn_stream stream, tarni_edge *edges,
                                     uint32_t capacity, uint32_t *count);
tarn_status tarni_port_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                   uint32_t capacity, uint32_t *count);
tarn_status tarni_port_graph_instantiate(tarni_port *port, tarni_graph graph,
                                         tarni_graph_exec *exec);
tarn_status tarni_port_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream stream);
tarn_status tarni_port_graph_destroy(tarni_port *port, tarni_graph graph, tarni_graph_exec exec);
tarn_status tarni_port_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                            tarn_stream stream);
tarn_status tarni_port_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                 uint64_t size);
void tarni_port_copy_prepare(tarni_port *port);
/* As the table's, on any stream and on any device: by single copies where it has to be. */
tarn_status tarni_port_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                  tarn_stream stream, tarni_copy_way way);
tarn_status tarni_port_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                            tarn_stream stream);
tarn_status tarni_port_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                 uint64_t size);
tarn_status tarni_port_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                   uint64_t value);
tarn_status tarni_port_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                  uint64_t value);
uint64_t tarni_port_now_ns(tarni_port *port);
bool tarni_port_thread_mode(tarni_port *port, tarni_capture_mode *mode);

/* ---- Relaxed threads: tarn's own calls break nobody's capture ---- */

typedef struct tarni_relaxed {
  tarni_port *port;
  tarni_capture_mode before;
  bool is_relaxed; /* false: the driver cannot */
} tarni_relaxed;

static inline tarni_relaxed tarni_port_relax(tarni_port *port) {
  tarni_relaxed relaxed = {.port = port, .before = TARNI_CAPTURE_RELAXED};
  relaxed.is_relaxed = tarni_port_thread_mode(port, &relaxed.before);
  return relaxed;
}

static inline void tarni_port_unrelax(const tarni_relaxed *relaxed) {
  tarni_capture_mode mode = relaxed->before;
  if (relaxed->is_relaxed) {
    (void)tarni_port_thread_mode(relaxed->port, &mode);
  }
}

/* From here to the end of the block no call of this thread breaks a capture, unless it is a call on
 * a stream, or about an event, of that capture itself. */
#define TARNI_RELAXED(port)                                                                        \
  __attribute__((cleanup(tarni_port_unrelax), unused)) const tarni_relaxed relaxed =               \
      tarni_port_relax(port)

#endif
