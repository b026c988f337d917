/* SPDX-License-Identifier: MIT
 *
 * The port's entries as the library calls them: what port.h demands of every call is checked here,
 * once for all ports and in every build, and so is what it promises of every result. Owns nothing
 * and takes no lock; at debug level 2 it asserts that the caller holds none that a hit can need. */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/lock.h"
#include "port/port.h"

/* ---- Before the call ------------------------------------------------------------------------ */

__attribute__((cold, format(printf, 4, 5))) static tarn_status
refuse_call(const tarni_port *port, tarn_call call, const char *remedy, const char *what, ...) {
  char text[200];
  va_list arguments;
  va_start(arguments, what);
  (void)vsnprintf(text, sizeof(text), what, arguments);
  va_end(arguments);
  const tarni_facts facts = {.device = port != NULL ? port->device.name : NULL};
  return tarni_fail(TARN_INVALID, tarn_call_name(call), &facts, remedy, "%s", text);
}

static tarn_status enter_call(const tarni_port *port, tarn_call call) {
  tarn_assert_full(tarni_lock_held() < TARNI_RANK_HEAP && "driver call under a lock of the heap");
  if (TARNI_UNLIKELY(port == NULL)) {
    return refuse_call(port, call, "Open a device first.", "the device is NULL");
  }
  if (TARNI_UNLIKELY(port->fork != tarni_fork_count())) {
    const tarni_facts facts = {.device = port->device.name};
    return tarni_fail(
        TARN_FORKED, tarn_call_name(call), &facts,
        "Open devices after fork, in the process that uses them, or exec a program there.",
        "the parent process opened %s", port->device.name);
  }
  return TARN_OK;
}

static tarn_status need_output(const tarni_port *port, tarn_call call, const void *output) {
  TARN_TRY(enter_call(port, call));
  if (TARNI_UNLIKELY(output == NULL)) {
    return refuse_call(port, call, "Pass an address for it.", "the result's address is NULL");
  }
  return TARN_OK;
}

/* A handle or an address that may not be 0. */
static tarn_status need_value(const tarni_port *port, tarn_call call, uint64_t value,
                              const char *noun) {
  if (TARNI_UNLIKELY(value == 0)) {
    return refuse_call(port, call, "Pass what the call that made it gave.", "the %s is 0", noun);
  }
  return TARN_OK;
}

static tarn_status need_pointer(const tarni_port *port, tarn_call call, const void *pointer,
                                const char *noun) {
  return need_value(port, call, (uint64_t)(uintptr_t)pointer, noun);
}

static tarn_status need_size(const tarni_port *port, tarn_call call, uint64_t size) {
  if (TARNI_UNLIKELY(size == 0)) {
    return refuse_call(port, call, "Ask for at least one byte.", "the size is 0");
  }
  return TARN_OK;
}

static tarn_status need_feature(const tarni_port *port, tarn_call call, bool has_it,
                                const char *feature) {
  if (TARNI_UNLIKELY(!has_it)) {
    const tarni_facts facts = {.device = port->device.name};
    return tarni_fail(TARN_UNSUPPORTED, tarn_call_name(call), &facts,
                      "Choose a backing that needs none, or another device.",
                      "this device or its driver has no %s", feature);
  }
  return TARN_OK;
}

/* For sizes of chunks, mappings and reservations. */
static tarn_status need_granules(const tarni_port *port, tarn_call call, uint64_t size) {
  TARN_TRY(need_feature(port, call, port->device.has_vmm, "virtual memory management"));
  TARN_TRY(need_size(port, call, size));
  const uint64_t granularity = port->device.granularity_bytes;
  if (TARNI_UNLIKELY(size % granularity != 0)) {
    return refuse_call(port, call, "Round it up.",
                       "%llu bytes is not a multiple of the granularity, %llu",
                       (unsigned long long)size, (unsigned long long)granularity);
  }
  return TARN_OK;
}

/* For mappings: an address and a size. */
static tarn_status need_granular_range(const tarni_port *port, tarn_call call, tarn_ptr address,
                                       uint64_t size) {
  TARN_TRY(enter_call(port, call));
  TARN_TRY(need_granules(port, call, size));
  TARN_TRY(need_value(port, call, address, "address"));
  const uint64_t granularity = port->device.granularity_bytes;
  if (TARNI_UNLIKELY(address % granularity != 0 || size > UINT64_MAX - address)) {
    return refuse_call(port, call, "Pass a range inside one reservation.",
                       "%llu bytes at 0x%llx is not a range at a multiple of the granularity, %llu",
                       (unsigned long long)size, (unsigned long long)address,
                       (unsigned long long)granularity);
  }
  return TARN_OK;
}

/* For copies and fills: ends of the range that the GPU reads or writes. */
static tarn_status need_range(const tarni_port *port, tarn_call call, tarn_ptr address,
                              uint64_t size) {
  TARN_TRY(need_value(port, call, address, "address"));
  if (TARNI_UNLIKELY(size > UINT64_MAX - address)) {
    return refuse_call(port, call, "Check the size.", "%llu bytes at 0x%llx end beyond 2^64",
                       (unsigned long long)size, (unsigned long long)address);
  }
  return TARN_OK;
}

/* Created streams only: the default ones exist without being made. */
static tarn_status need_created(const tarni_port *port, tarn_call call, tarn_stream stream) {
  const uintptr_t handle = (uintptr_t)stream;
  if (TARNI_UNLIKELY(handle <= (uintptr_t)TARNI_STREAM_PER_THREAD)) {
    return refuse_call(port, call, "Destroy only what stream_create gave.",
                       "stream %llu is a default stream", (unsigned long long)handle);
  }
  return TARN_OK;
}

static tarn_status need_word(const tarni_port *port, tarn_call call, const uint64_t *word) {
  TARN_TRY(enter_call(port, call));
  TARN_TRY(need_pointer(port, call, word, "word's address"));
  if (TARNI_UNLIKELY((uintptr_t)word % sizeof(*word) != 0)) {
    return refuse_call(port, call, "Align it.", "the word at %p is not at a multiple of 8",
                       (const void *)word);
  }
  return TARN_OK;
}

/* ---- After the call ------------------------------------------------------------------------- */

static tarn_status empty_result(const tarni_port *port, tarn_call call) {
  const tarni_facts facts = {.device = port->device.name};
  return tarni_fail(TARN_DRIVER, tarn_call_name(call), &facts,
                    "The driver is not to be trusted in this state; restart the program.",
                    "the driver reported success and gave no result");
}

static tarn_status leave_number(const tarni_port *port, tarn_call call, tarn_status status,
                                uint64_t *output) {
  if (TARNI_LIKELY(status == TARN_OK && *output != 0)) {
    return TARN_OK;
  }
  *output = 0;
  return status != TARN_OK ? status : empty_result(port, call);
}

static tarn_status leave_pointer(const tarni_port *port, tarn_call call, tarn_status status,
                                 void **output) {
  if (TARNI_LIKELY(status == TARN_OK && *output != NULL)) {
    return TARN_OK;
  }
  *output = NULL;
  return status != TARN_OK ? status : empty_result(port, call);
}

/* ---- Devices and addresses ------------------------------------------------------------------ */

tarn_status tarni_port_info(tarni_port *port, uint64_t *free_bytes, uint64_t *total_bytes) {
  if (free_bytes != NULL) {
    *free_bytes = 0;
  }
  if (total_bytes != NULL) {
    *total_bytes = 0;
  }
  TARN_TRY(need_output(port, TARN_CALL_INFO, free_bytes));
  tarn_assert(free_bytes != NULL);
  TARN_TRY(need_output(port, TARN_CALL_INFO, total_bytes));
  tarn_assert(total_bytes != NULL);
  const tarn_status status = port->table->info(port, free_bytes, total_bytes);
  *free_bytes = status == TARN_OK ? tarni_min(*free_bytes, *total_bytes) : 0;
  return leave_number(port, TARN_CALL_INFO, status, total_bytes);
}

tarn_status tarni_port_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                               tarn_ptr *address) {
  if (address != NULL) {
    *address = 0;
  }
  TARN_TRY(need_output(port, TARN_CALL_RESERVE, address));
  tarn_assert(address != NULL);
  TARN_TRY(need_granules(port, TARN_CALL_RESERVE, size));
  if (alignment != 0 && !tarni_is_pow2(alignment)) {
    return refuse_call(port, TARN_CALL_RESERVE, "Pass one, or 0 for the granularity.",
                       "the alignment %llu is not a power of two", (unsigned long long)alignment);
  }
  alignment = tarni_max(alignment, port->device.granularity_bytes);
  const tarn_status status = port->table->reserve(port, size, alignment, address);
  if (status == TARN_OK && !tarni_is_aligned(*address, alignment)) {
    *address = 0; /* as good as no result */
  }
  return leave_number(port, TARN_CALL_RESERVE, status, address);
}

tarn_status tarni_port_unreserve(tarni_port *port, tarn_ptr address, uint64_t size) {
  TARN_TRY(need_granular_range(port, TARN_CALL_UNRESERVE, address, size));
  return port->table->unreserve(port, address, size);
}

/* ---- Chunks --------------------------------------------------------------------------------- */

tarn_status tarni_port_create(tarni_port *port, uint64_t size, tarni_chunk *chunk) {
  if (chunk != NULL) {
    *chunk = 0;
  }
  TARN_TRY(need_output(port, TARN_CALL_CREATE, chunk));
  tarn_assert(chunk != NULL);
  TARN_TRY(need_granules(port, TARN_CALL_CREATE, size));
  return leave_number(port, TARN_CALL_CREATE, port->table->create(port, size, chunk), chunk);
}

tarn_status tarni_port_release(tarni_port *port, tarni_chunk chunk) {
  TARN_TRY(enter_call(port, TARN_CALL_RELEASE));
  TARN_TRY(need_value(port, TARN_CALL_RELEASE, chunk, "chunk"));
  return port->table->release(port, chunk);
}

tarn_status tarni_port_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk chunk) {
  TARN_TRY(need_granular_range(port, TARN_CALL_MAP, address, size));
  TARN_TRY(need_value(port, TARN_CALL_MAP, chunk, "chunk"));
  return port->table->map(port, address, size, chunk);
}

tarn_status tarni_port_access(tarni_port *port, tarn_ptr address, uint64_t size) {
  TARN_TRY(need_granular_range(port, TARN_CALL_ACCESS, address, size));
  return port->table->access(port, address, size);
}

tarn_status tarni_port_unmap(tarni_port *port, tarn_ptr address, uint64_t size) {
  TARN_TRY(need_granular_range(port, TARN_CALL_UNMAP, address, size));
  return port->table->unmap(port, address, size);
}

tarn_status tarni_port_export(tarni_port *port, tarni_chunk chunk, int *descriptor) {
  if (descriptor != NULL) {
    *descriptor = -1;
  }
  TARN_TRY(need_output(port, TARN_CALL_EXPORT, descriptor));
  tarn_assert(descriptor != NULL);
  TARN_TRY(need_feature(port, TARN_CALL_EXPORT, port->device.has_export, "export of chunks"));
  TARN_TRY(need_value(port, TARN_CALL_EXPORT, chunk, "chunk"));
  const tarn_status status = port->table->export_chunk(port, chunk, descriptor);
  if (status == TARN_OK && *descriptor >= 0) {
    return TARN_OK;
  }
  *descriptor = -1;
  return status != TARN_OK ? status : empty_result(port, TARN_CALL_EXPORT);
}

tarn_status tarni_port_import(tarni_port *port, int descriptor, tarni_chunk *chunk) {
  if (chunk != NULL) {
    *chunk = 0;
  }
  TARN_TRY(need_output(port, TARN_CALL_IMPORT, chunk));
  tarn_assert(chunk != NULL);
  TARN_TRY(need_feature(port, TARN_CALL_IMPORT, port->device.has_export, "import of chunks"));
  if (descriptor < 0) {
    return refuse_call(port, TARN_CALL_IMPORT, "Pass what export gave.",
                       "%d is not a file descriptor", descriptor);
  }
  const tarn_status status = port->table->import_chunk(port, descriptor, chunk);
  return leave_number(port, TARN_CALL_IMPORT, status, chunk);
}

void tarni_port_close_descriptor(int descriptor) {
  (void)close(descriptor);
}

/* ---- Plain memory and pools ----------------------------------------------------------------- */

tarn_status tarni_port_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address) {
  if (address != NULL) {
    *address = 0;
  }
  TARN_TRY(need_output(port, TARN_CALL_PLAIN_ALLOC, address));
  tarn_assert(address != NULL);
  TARN_TRY(need_size(port, TARN_CALL_PLAIN_ALLOC, size));
  const tarn_status status = port->table->plain_alloc(port, size, address);
  return leave_number(port, TARN_CALL_PLAIN_ALLOC, status, address);
}

tarn_status tarni_port_plain_free(tarni_port *port, tarn_ptr address) {
  TARN_TRY(enter_call(port, TARN_CALL_PLAIN_FREE));
  TARN_TRY(need_value(port, TARN_CALL_PLAIN_FREE, address, "address"));
  return port->table->plain_free(port, address);
}

static tarn_status need_pool(const tarni_port *port, tarn_call call, const void *pool) {
  TARN_TRY(need_feature(port, call, port->device.has_pool, "stream-ordered pools"));
  return need_pointer(port, call, pool, "pool");
}

tarn_status tarni_port_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *pool) {
  if (pool != NULL) {
    *pool = NULL;
  }
  TARN_TRY(need_output(port, TARN_CALL_POOL_CREATE, pool));
  tarn_assert(pool != NULL);
  TARN_TRY(need_pool(port, TARN_CALL_POOL_CREATE, pool));
  const tarn_status status = port->table->pool_create(port, threshold, pool);
  return leave_pointer(port, TARN_CALL_POOL_CREATE, status, pool);
}

tarn_status tarni_port_pool_destroy(tarni_port *port, tarni_pool pool) {
  TARN_TRY(enter_call(port, TARN_CALL_POOL_DESTROY));
  TARN_TRY(need_pool(port, TARN_CALL_POOL_DESTROY, pool));
  return port->table->pool_destroy(port, pool);
}

tarn_status tarni_port_pool_trim(tarni_port *port, tarni_pool pool, uint64_t keep_bytes) {
  TARN_TRY(enter_call(port, TARN_CALL_POOL_TRIM));
  TARN_TRY(need_pool(port, TARN_CALL_POOL_TRIM, pool));
  return port->table->pool_trim(port, pool, keep_bytes);
}

tarn_status tarni_port_pool_alloc(tarni_port *port, tarni_pool pool, uint64_t size,
                                  tarn_stream stream, tarn_ptr *address) {
  if (address != NULL) {
    *address = 0;
  }
  TARN_TRY(need_output(port, TARN_CALL_POOL_ALLOC, address));
  tarn_assert(address != NULL);
  TARN_TRY(need_pool(port, TARN_CALL_POOL_ALLOC, pool));
  TARN_TRY(need_size(port, TARN_CALL_POOL_ALLOC, size));
  const tarn_status status = port->table->pool_alloc(port, pool, size, stream, address);
  return leave_number(port, TARN_CALL_POOL_ALLOC, status, address);
}

tarn_status tarni_port_pool_free(tarni_port *port, tarn_ptr address, tarn_stream stream) {
  TARN_TRY(enter_call(port, TARN_CALL_POOL_FREE));
  TARN_TRY(need_feature(port, TARN_CALL_POOL_FREE, port->device.has_pool, "stream-ordered pools"));
  TARN_TRY(need_value(port, TARN_CALL_POOL_FREE, address, "address"));
  return port->table->pool_free(port, address, stream);
}

/* ---- Pinned host memory --------------------------------------------------------------------- */

tarn_status tarni_port_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer) {
  if (pointer != NULL) {
    *pointer = NULL;
  }
  TARN_TRY(need_output(port, TARN_CALL_HOST_ALLOC, pointer));
  tarn_assert(pointer != NULL);
  TARN_TRY(need_size(port, TARN_CALL_HOST_ALLOC, size));
  if ((flags & ~(unsigned)TARNI_HOST_WRITE_COMBINED) != 0) {
    return refuse_call(port, TARN_CALL_HOST_ALLOC, "Use TARNI_HOST_WRITE_COMBINED or 0.",
                       "the flags 0x%x are unknown", flags);
  }
  const tarn_status status = port->table->host_alloc(port, size, flags, pointer);
  return leave_pointer(port, TARN_CALL_HOST_ALLOC, status, pointer);
}

tarn_status tarni_port_host_free(tarni_port *port, void *pointer) {
  TARN_TRY(enter_call(port, TARN_CALL_HOST_FREE));
  TARN_TRY(need_pointer(port, TARN_CALL_HOST_FREE, pointer, "pointer"));
  return port->table->host_free(port, pointer);
}

static tarn_status need_registration(const tarni_port *port, tarn_call call, const void *pointer) {
  TARN_TRY(enter_call(port, call));
  TARN_TRY(need_feature(port, call, port->device.has_host_register, "pinning of host memory"));
  return need_pointer(port, call, pointer, "pointer");
}

tarn_status tarni_port_host_register(tarni_port *port, void *pointer, uint64_t size) {
  TARN_TRY(need_registration(port, TARN_CALL_HOST_REGISTER, pointer));
  TARN_TRY(need_size(port, TARN_CALL_HOST_REGISTER, size));
  TARN_TRY(need_range(port, TARN_CALL_HOST_REGISTER, (uintptr_t)pointer, size));
  return port->table->host_register(port, pointer, size);
}

tarn_status tarni_port_host_unregister(tarni_port *port, void *pointer) {
  TARN_TRY(need_registration(port, TARN_CALL_HOST_UNREGISTER, pointer));
  return port->table->host_unregister(port, pointer);
}

/* ---- Streams and events --------------------------------------------------------------------- */

tarn_status tarni_port_stream_create(tarni_port *port, tarn_stream *stream) {
  if (stream != NULL) {
    *stream = NULL;
  }
  TARN_TRY(need_output(port, TARN_CALL_STREAM_CREATE, stream));
  tarn_assert(stream != NULL);
  const tarn_status status = port->table->stream_create(port, stream);
  return leave_pointer(port, TARN_CALL_STREAM_CREATE, status, stream);
}

tarn_status tarni_port_stream_destroy(tarni_port *port, tarn_stream stream) {
  TARN_TRY(enter_call(port, TARN_CALL_STREAM_DESTROY));
  TARN_TRY(need_created(port, TARN_CALL_STREAM_DESTROY, stream));
  return port->table->stream_destroy(port, stream);
}

tarn_status tarni_port_stream_id(tarni_port *port, tarn_stream stream, uint64_t *id) {
  if (id != NULL) {
    *id = 0;
  }
  TARN_TRY(need_output(port, TARN_CALL_STREAM_ID, id));
  tarn_assert(id != NULL);
  const tarn_status status = port->table->stream_id(port, stream, id);
  return leave_number(port, TARN_CALL_STREAM_ID, status, id);
}

tarn_status tarni_port_stream_query(tarni_port *port, tarn_stream stream) {
  TARN_TRY(enter_call(port, TARN_CALL_STREAM_QUERY));
  return port->table->stream_query(port, stream);
}

tarn_status tarni_port_stream_sync(tarni_port *port, tarn_stream stream) {
  TARN_TRY(enter_call(port, TARN_CALL_STREAM_SYNC));
  return port->table->stream_sync(port, stream);
}

tarn_status tarni_port_event_create(tarni_port *port, tarni_event *event) {
  if (event != NULL) {
    *event = NULL;
  }
  TARN_TRY(need_output(port, TARN_CALL_EVENT_CREATE, event));
  tarn_assert(event != NULL);
  const tarn_status status = port->table->event_create(port, event);
  return leave_pointer(port, TARN_CALL_EVENT_CREATE, status, event);
}

static tarn_status need_event(const tarni_port *port, tarn_call call, const void *event) {
  TARN_TRY(enter_call(port, call));
  return need_pointer(port, call, event, "event");
}

tarn_status tarni_port_event_destroy(tarni_port *port, tarni_event event) {
  TARN_TRY(need_event(port, TARN_CALL_EVENT_DESTROY, event));
  return port->table->event_destroy(port, event);
}

tarn_status tarni_port_event_record(tarni_port *port, tarni_event event, tarn_stream stream) {
  TARN_TRY(need_event(port, TARN_CALL_EVENT_RECORD, event));
  return port->table->event_record(port, event, stream);
}

tarn_status tarni_port_event_query(tarni_port *port, tarni_event event) {
  TARN_TRY(need_event(port, TARN_CALL_EVENT_QUERY, event));
  return port->table->event_query(port, event);
}

tarn_status tarni_port_event_sync(tarni_port *port, tarni_event event) {
  TARN_TRY(need_event(port, TARN_CALL_EVENT_SYNC, event));
  return port->table->event_sync(port, event);
}

tarn_status tarni_port_event_wait(tarni_port *port, tarn_stream stream, tarni_event event) {
  TARN_TRY(need_event(port, TARN_CALL_EVENT_WAIT, event));
  return port->table->event_wait(port, stream, event);
}

/* ---- Capture -------------------------------------------------------------------------------- */

tarn_status tarni_port_capture_state(tarni_port *port, tarn_stream stream,
                                     tarni_capture_state *state) {
  if (state != NULL) {
    *state = (tarni_capture_state){0};
  }
  TARN_TRY(need_output(port, TARN_CALL_CAPTURE_STATE, state));
  tarn_assert(state != NULL);
  const tarn_status status = port->table->capture_state(port, stream, state);
  if (status != TARN_OK) {
    *state = (tarni_capture_state){0};
  }
  return status;
}

tarn_status tarni_port_capture_begin(tarni_port *port, tarn_stream stream,
                                     tarni_capture_mode mode) {
  TARN_TRY(enter_call(port, TARN_CALL_CAPTURE_BEGIN));
  if ((unsigned)mode > TARNI_CAPTURE_RELAXED) {
    return refuse_call(port, TARN_CALL_CAPTURE_BEGIN, "Pass one of the three modes, 0 to 2.",
                       "the capture mode %d is unknown", (int)mode);
  }
  return port->table->capture_begin(port, stream, mode);
}

tarn_status tarni_port_capture_end(tarni_port *port, tarn_stream stream, tarni_graph *graph) {
  if (graph != NULL) {
    *graph = NULL;
  }
  TARN_TRY(need_output(port, TARN_CALL_CAPTURE_END, graph));
  tarn_assert(graph != NULL);
  const tarn_status status = port->table->capture_end(port, stream, graph);
  return leave_pointer(port, TARN_CALL_CAPTURE_END, status, graph);
}

/* An array and where its length goes. */
static tarn_status need_edges(const tarni_port *port, tarn_call call, const tarni_edge *edges,
                              uint32_t capacity, uint32_t *count) {
  if (count != NULL) {
    *count = 0;
  }
  TARN_TRY(need_output(port, call, count));
  return capacity == 0 ? TARN_OK : need_pointer(port, call, edges, "array of edges");
}

static tarn_status leave_edges(tarn_status status, uint32_t *count) {
  if (status != TARN_OK) {
    *count = 0;
  }
  return status;
}

tarn_status tarni_port_capture_nodes(tarni_port *port, tarn_stream stream, tarni_edge *edges,
                                     uint32_t capacity, uint32_t *count) {
  TARN_TRY(need_edges(port, TARN_CALL_CAPTURE_NODES, edges, capacity, count));
  tarn_assert(count != NULL);
  return leave_edges(port->table->capture_nodes(port, stream, edges, capacity, count), count);
}

tarn_status tarni_port_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                   uint32_t capacity, uint32_t *count) {
  TARN_TRY(need_edges(port, TARN_CALL_NODE_BEFORE, edges, capacity, count));
  tarn_assert(count != NULL);
  if (node == 0) {
    return refuse_call(port, TARN_CALL_NODE_BEFORE, "Pass a node that capture_nodes gave.",
                       "the node is 0");
  }
  return leave_edges(port->table->node_before(port, node, edges, capacity, count), count);
}

tarn_status tarni_port_graph_instantiate(tarni_port *port, tarni_graph graph,
                                         tarni_graph_exec *exec) {
  if (exec != NULL) {
    *exec = NULL;
  }
  TARN_TRY(need_output(port, TARN_CALL_GRAPH_INSTANTIATE, exec));
  tarn_assert(exec != NULL);
  TARN_TRY(need_pointer(port, TARN_CALL_GRAPH_INSTANTIATE, graph, "graph"));
  const tarn_status status = port->table->graph_instantiate(port, graph, exec);
  return leave_pointer(port, TARN_CALL_GRAPH_INSTANTIATE, status, exec);
}

tarn_status tarni_port_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream stream) {
  TARN_TRY(enter_call(port, TARN_CALL_GRAPH_LAUNCH));
  TARN_TRY(need_pointer(port, TARN_CALL_GRAPH_LAUNCH, exec, "graph"));
  return port->table->graph_launch(port, exec, stream);
}

tarn_status tarni_port_graph_destroy(tarni_port *port, tarni_graph graph, tarni_graph_exec exec) {
  TARN_TRY(enter_call(port, TARN_CALL_GRAPH_DESTROY));
  if (graph == NULL && exec == NULL) {
    return TARN_OK;
  }
  return port->table->graph_destroy(port, graph, exec);
}

/* ---- Work ----------------------------------------------------------------------------------- */

tarn_status tarni_port_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                            tarn_stream stream) {
  TARN_TRY(enter_call(port, TARN_CALL_COPY));
  if (size == 0) {
    return TARN_OK;
  }
  TARN_TRY(need_range(port, TARN_CALL_COPY, destination, size));
  TARN_TRY(need_range(port, TARN_CALL_COPY, source, size));
  return port->table->copy(port, destination, source, size, stream);
}

tarn_status tarni_port_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                 uint64_t size) {
  TARN_TRY(enter_call(port, TARN_CALL_COPY_SYNC));
  if (size == 0) {
    return TARN_OK;
  }
  TARN_TRY(need_range(port, TARN_CALL_COPY_SYNC, destination, size));
  TARN_TRY(need_range(port, TARN_CALL_COPY_SYNC, source, size));
  return port->table->copy_sync(port, destination, source, size);
}

/* Whether the driver's own batch may be used: it takes no default stream, and no capture. */
static tarn_status may_batch(tarni_port *port, uint64_t count, tarn_stream stream, bool *may) {
  *may = false;
  if (count < 2 || !port->device.has_batch_copy || stream == NULL ||
      stream == TARNI_STREAM_LEGACY || stream == TARNI_STREAM_PER_THREAD) {
    return TARN_OK;
  }
  tarni_capture_state state;
  TARN_TRY(tarni_port_capture_state(port, stream, &state));
  *may = state.status == TARNI_CAPTURE_NONE;
  return TARN_OK;
}

void tarni_port_copy_prepare(tarni_port *port) {
  if (enter_call(port, TARN_CALL_COPY_BATCH) == TARN_OK) {
    port->table->copy_prepare(port);
  }
}

tarn_status tarni_port_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                  tarn_stream stream, tarni_copy_way way) {
  TARN_TRY(enter_call(port, TARN_CALL_COPY_BATCH));
  if (count != 0) {
    TARN_TRY(need_pointer(port, TARN_CALL_COPY_BATCH, copies, "array of copies"));
  }
  if ((unsigned)way > TARNI_COPY_BY_ENGINES) {
    return refuse_call(port, TARN_CALL_COPY_BATCH, "Pass one of the two ways, 0 or 1.",
                       "the way %d of copying is unknown", (int)way);
  }
  for (uint64_t i = 0; i < count; i++) {
    TARN_TRY(need_size(port, TARN_CALL_COPY_BATCH, copies[i].size));
    TARN_TRY(need_range(port, TARN_CALL_COPY_BATCH, copies[i].destination, copies[i].size));
    TARN_TRY(need_range(port, TARN_CALL_COPY_BATCH, copies[i].source, copies[i].size));
  }
  bool may;
  TARN_TRY(may_batch(port, count, stream, &may));
  if (may) {
    return port->table->copy_batch(port, copies, count, stream, way);
  }
  for (uint64_t i = 0; i < count; i++) {
    const tarni_copy *copy = &copies[i];
    TARN_TRY(port->table->copy(port, copy->destination, copy->source, copy->size, stream));
  }
  return TARN_OK;
}

tarn_status tarni_port_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                            tarn_stream stream) {
  TARN_TRY(enter_call(port, TARN_CALL_FILL));
  if (size == 0) {
    return TARN_OK;
  }
  TARN_TRY(need_range(port, TARN_CALL_FILL, destination, size));
  return port->table->fill(port, destination, value, size, stream);
}

tarn_status tarni_port_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                 uint64_t size) {
  TARN_TRY(enter_call(port, TARN_CALL_FILL_SYNC));
  if (size == 0) {
    return TARN_OK;
  }
  TARN_TRY(need_range(port, TARN_CALL_FILL_SYNC, destination, size));
  return port->table->fill_sync(port, destination, value, size);
}

tarn_status tarni_port_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                   uint64_t value) {
  TARN_TRY(need_word(port, TARN_CALL_VALUE_WRITE, word));
  return port->table->value_write(port, stream, word, value);
}

tarn_status tarni_port_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                  uint64_t value) {
  TARN_TRY(need_word(port, TARN_CALL_VALUE_WAIT, word));
  return port->table->value_wait(port, stream, word, value);
}

uint64_t tarni_port_now_ns(tarni_port *port) {
  return port->table->now_ns(port);
}

bool tarni_port_thread_mode(tarni_port *port, tarni_capture_mode *mode) {
  tarn_assert((unsigned)*mode <= TARNI_CAPTURE_RELAXED);
  return port->table->thread_mode(port, mode);
}
