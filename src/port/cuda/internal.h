/* SPDX-License-Identifier: MIT
 *
 * The inside of the cuda port: its struct, how a driver call is made, and the entries of the
 * table, grouped by the file that owns them. Only files of this folder include it.
 *
 * Every entry has the same shape: begin the call, make it, end it. `begin` enters the port's
 * context when the thread's current one is another, and `end` leaves it again on every path, counts
 * the call and its time, and turns the driver's code into a status with its last error. */
#ifndef TARNI_CUDA_INTERNAL_H
#define TARNI_CUDA_INTERNAL_H

#include <stdatomic.h>

#include "port/cuda/driver.h"
#include "port/port.h"

typedef struct tarni_cuda_port {
  tarni_port base;
  /* immutable after open: */
  const tarni_cu_driver *driver;
  tarni_cu_device device;
  tarni_cu_context context;
  bool is_retained;               /* the context is the primary one, and we hold it */
  bool has[TARNI_CU_GROUP_COUNT]; /* the driver has the entries and the device can do it */
  bool is_unified;                /* pinned memory that the driver made has one address */
  bool is_unified_registered;     /* so has memory that was registered */
  /* atomic: */
  _Atomic int lost_code; /* the code that broke the context for good; 0 while it works */
  _Atomic bool is_scatter_tried;
  _Atomic(tarni_cu_function) scatter; /* NULL: there is none */
} tarni_cuda_port;

/* The port that a table's entry was called with. */
static inline tarni_cuda_port *tarni_cuda_of(tarni_port *port) {
  return (tarni_cuda_port *)port;
}

/* ---- status.c: what the driver's codes mean ------------------------------------------------- */

typedef struct tarni_cuda_failure {
  const char *operation; /* the driver's entry */
  const char *device;    /* may be NULL */
  tarni_cu_result code;
  uint64_t requested_bytes;
  tarn_status shortage; /* what the driver's OUT_OF_MEMORY means here; 0: of device memory */
} tarni_cuda_failure;

/* The status of a code; shortage is of device memory. Total: any number has one. */
tarn_status tarni_cuda_status(tarni_cu_result code);

/* Whether the code leaves its context unusable for good. */
bool tarni_cuda_is_lost(tarni_cu_result code);

/* Sets the last error and returns the status. TARN_NOT_READY is an answer and no error: it sets
 * nothing. pre: the code is not TARNI_CU_SUCCESS. */
tarn_status tarni_cuda_fail(const tarni_cuda_failure *failure);

tarn_status tarni_cuda_fail_forked(const char *operation);

/* ---- call.c: one call of the driver --------------------------------------------------------- */

typedef struct tarni_cuda_call {
  tarni_cuda_port *port;
  const tarni_cu_driver *driver;
  const char *operation; /* the driver's entry; an entry that makes several calls may change it */
  uint64_t requested_bytes;
  uint64_t start_ns;
  tarn_call kind;
  bool is_pushed;
} tarni_cuda_call;

/* On failure nothing was entered and there is nothing to end. */
tarn_status tarni_cuda_call_begin(tarni_port *port, tarn_call kind, uint64_t requested_bytes,
                                  tarni_cuda_call *call);
tarn_status tarni_cuda_call_end(tarni_cuda_call *call, tarni_cu_result code);

/* The driver's entry behind a kind of call: "cuMemCreate". */
const char *tarni_cuda_call_entry(tarn_call kind);
uint64_t tarni_cuda_now_ns(tarni_port *port);

/* ---- device.c ------------------------------------------------------------------------------- */

tarn_status tarni_cuda_info(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes);

/* ---- memory.c ------------------------------------------------------------------------------- */

/* What a chunk of the device is; for its granularity too. */
tarni_cu_chunk_properties tarni_cuda_chunk_properties(tarni_cu_device device, bool is_exportable);

tarn_status tarni_cuda_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                               tarn_ptr *address);
tarn_status tarni_cuda_unreserve(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_cuda_create(tarni_port *port, uint64_t size, tarni_chunk *chunk);
tarn_status tarni_cuda_release(tarni_port *port, tarni_chunk chunk);
tarn_status tarni_cuda_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk chunk);
tarn_status tarni_cuda_access(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_cuda_unmap(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_cuda_export(tarni_port *port, tarni_chunk chunk, int *descriptor);
tarn_status tarni_cuda_import(tarni_port *port, int descriptor, tarni_chunk *chunk);
tarn_status tarni_cuda_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address);
tarn_status tarni_cuda_plain_free(tarni_port *port, tarn_ptr address);

/* ---- pool.c --------------------------------------------------------------------------------- */

tarn_status tarni_cuda_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *pool);
tarn_status tarni_cuda_pool_destroy(tarni_port *port, tarni_pool pool);
tarn_status tarni_cuda_pool_trim(tarni_port *port, tarni_pool pool, uint64_t keep_bytes);
tarn_status tarni_cuda_pool_alloc(tarni_port *port, tarni_pool pool, uint64_t size,
                                  tarn_stream stream, tarn_ptr *address);
tarn_status tarni_cuda_pool_free(tarni_port *port, tarn_ptr address, tarn_stream stream);

/* ---- host.c --------------------------------------------------------------------------------- */

tarn_status tarni_cuda_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer);
tarn_status tarni_cuda_host_free(tarni_port *port, void *pointer);
tarn_status tarni_cuda_host_register(tarni_port *port, void *pointer, uint64_t size);
tarn_status tarni_cuda_host_unregister(tarni_port *port, void *pointer);

/* ---- stream.c ------------------------------------------------------------------------------- */

tarn_status tarni_cuda_stream_create(tarni_port *port, tarn_stream *stream);
tarn_status tarni_cuda_stream_destroy(tarni_port *port, tarn_stream stream);
tarn_status tarni_cuda_stream_id(tarni_port *port, tarn_stream stream, uint64_t *id);
tarn_status tarni_cuda_stream_query(tarni_port *port, tarn_stream stream);
tarn_status tarni_cuda_stream_sync(tarni_port *port, tarn_stream stream);
tarn_status tarni_cuda_event_create(tarni_port *port, tarni_event *event);
tarn_status tarni_cuda_event_destroy(tarni_port *port, tarni_event event);
tarn_status tarni_cuda_event_record(tarni_port *port, tarni_event event, tarn_stream stream);
tarn_status tarni_cuda_event_query(tarni_port *port, tarni_event event);
tarn_status tarni_cuda_event_sync(tarni_port *port, tarni_event event);
tarn_status tarni_cuda_event_wait(tarni_port *port, tarn_stream stream, tarni_event event);
tarn_status tarni_cuda_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                   uint64_t value);
tarn_status tarni_cuda_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                  uint64_t value);

/* ---- graph.c -------------------------------------------------------------------------------- */

/* TARN_CAPTURE where the stream is being captured, before the driver sees a call that would break
 * the capture or become a part of it. */
tarn_status tarni_cuda_refuse_capturing(tarni_port *port, tarn_call kind, tarn_stream stream,
                                        const char *remedy);

tarn_status tarni_cuda_capture_state(tarni_port *port, tarn_stream stream,
                                     tarni_capture_state *state);
tarn_status tarni_cuda_capture_nodes(tarni_port *port, tarn_stream stream, tarni_edge *edges,
                                     uint32_t capacity, uint32_t *count);
tarn_status tarni_cuda_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                   uint32_t capacity, uint32_t *count);
tarn_status tarni_cuda_capture_begin(tarni_port *port, tarn_stream stream, tarni_capture_mode mode);
tarn_status tarni_cuda_capture_end(tarni_port *port, tarn_stream stream, tarni_graph *graph);
bool tarni_cuda_thread_mode(tarni_port *port, tarni_capture_mode *mode);
tarn_status tarni_cuda_graph_instantiate(tarni_port *port, tarni_graph graph,
                                         tarni_graph_exec *exec);
tarn_status tarni_cuda_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream stream);
tarn_status tarni_cuda_graph_destroy(tarni_port *port, tarni_graph graph, tarni_graph_exec exec);

/* ---- scatter.c ------------------------------------------------------------------------------ */

void tarni_cuda_copy_prepare(tarni_port *port);
/* Makes up to TARNI_CUDA_BATCH copies, each by the better way, and ends the call. pre: the driver
 * has KERNEL. */
tarn_status tarni_cuda_scatter(tarni_cuda_call *call, const tarni_copy *copies, uint64_t count,
                               tarn_stream stream, tarni_copy_way way);

/* ---- copy.c --------------------------------------------------------------------------------- */

tarn_status tarni_cuda_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                            tarn_stream stream);
tarn_status tarni_cuda_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                 uint64_t size);
tarn_status tarni_cuda_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                  tarn_stream stream, tarni_copy_way way);
enum { TARNI_CUDA_BATCH = 128 };
/* The driver's own batch, of up to TARNI_CUDA_BATCH copies. */
tarni_cu_result tarni_cuda_batch_of(const tarni_cuda_call *call, const tarni_copy *copies,
                                    size_t count, tarn_stream stream);
tarn_status tarni_cuda_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                            tarn_stream stream);
tarn_status tarni_cuda_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                 uint64_t size);

#endif
