/* SPDX-License-Identifier: MIT
 *
 * What the files of the simulated GPU call of each other, grouped by the file that owns it. All of
 * it is under the one lock, between tarni_sim_begin and tarni_sim_end, unless it says else. */
#ifndef TARNI_SIM_H
#define TARNI_SIM_H

#include "port/sim/types.h"

/* ---- store.c: host memory of the simulator itself --------------------------------------------*/
void *tarni_sim_store_zeroed(size_t n, size_t size);               /* NULL: out of host memory */
void *tarni_sim_store_resize(void *memory, size_t n, size_t size); /* NULL: and unchanged */
bool tarni_sim_array_insert(sim_array *array, uint32_t at, void *item); /* false: unchanged */
void tarni_sim_array_remove(sim_array *array, uint32_t at);
/* For tests: the nth next need of host memory, or of the operating system, fails. 0: none does. */
void tarni_sim_store_fail(uint64_t nth);
/* Whether one has failed, or this need shall. */
bool tarni_sim_store_has_failed(void);
bool tarni_sim_store_strikes(void);

/* ---- clock.c: vector clocks ------------------------------------------------------------------*/
void tarni_sim_clock_free(sim_clock *clock);
/* Makes room for n slots, so that what follows cannot fail for clocks of at most n slots. */
bool tarni_sim_clock_room(sim_clock *clock, uint32_t n); /* false: out of host memory */
bool tarni_sim_clock_join(sim_clock *clock, const sim_clock *other);
bool tarni_sim_clock_raise(sim_clock *clock, uint32_t slot, uint64_t epoch);
void tarni_sim_clock_meet(sim_clock *clock, const sim_clock *other); /* what both have seen */

/* ---- shadow.c: histories by byte range -------------------------------------------------------*/
sim_shadow *tarni_sim_shadow_make(uint64_t size);
void tarni_sim_shadow_drop(sim_shadow *shadow);
/* Makes the range a whole number of pieces. False: out of host memory, and nothing has changed that
 * a visitor could see. */
bool tarni_sim_shadow_cut(sim_shadow *shadow, uint64_t offset, uint64_t size);
/* Visits the pieces of a range that has been cut. False if a visitor said so. */
bool tarni_sim_shadow_walk(sim_shadow *shadow, uint64_t offset, uint64_t size,
                           sim_shadow_visit visit, void *user);
/* Joins pieces in and beside the range that are alike. */
void tarni_sim_shadow_merge(sim_shadow *shadow, uint64_t offset, uint64_t size);
/* The last use and the owner that the lowest used bytes have; false if there are none. */
bool tarni_sim_shadow_example(const sim_shadow *shadow, sim_use *use, uint64_t *owner);
/* Makes the history this piece's alone, with room for one more use for each call of the same stamp;
 * stamp 0 asks for no room. False: out of host memory, and as it was. */
bool tarni_sim_history_reserve(sim_history **slot, uint64_t stamp);
void tarni_sim_history_drop(sim_history *history);

/* ---- chunk.c: physical memory ----------------------------------------------------------------*/
tarn_status tarni_sim_create(tarni_port *port, uint64_t size, tarni_chunk *out);
tarn_status tarni_sim_release(tarni_port *port, tarni_chunk id);
tarn_status tarni_sim_export(tarni_port *port, tarni_chunk id, int *descriptor);
tarn_status tarni_sim_import(tarni_port *port, int descriptor, tarni_chunk *id);
sim_chunk *tarni_sim_chunk_find(const sim_device *device, tarni_chunk id);
/* A chunk without a handle: of the device's own memory, or one that stands for host memory.
 * TARN_DEVICE_MEMORY, TARN_HOST_MEMORY: nothing has changed, and no error is set. */
tarn_status tarni_sim_chunk_make(sim_device *device, uint64_t size, bool is_host, sim_chunk **out);
/* The chunk is there for good: it takes of the device's capacity until it is dropped. */
void tarni_sim_chunk_count(sim_device *device, sim_chunk *chunk);
void tarni_sim_chunk_drop_if_unused(sim_device *device, sim_chunk *chunk);
void tarni_sim_chunks_close(sim_device *device);

/* ---- region.c: addresses, and which chunk is seen there --------------------------------------*/
sim_region *tarni_sim_region_find(const sim_device *device, tarn_ptr address);
sim_mapping *tarni_sim_mapping_find(sim_device *device, tarn_ptr address);
/* Whether every byte of the range can be used by the device now. */
bool tarni_sim_range_is_mapped(sim_device *device, tarn_ptr address, uint64_t size);
/* The device that knows this address: the one given, another whose pinned memory it is, or, for
 * copies, any other whose memory it is. NULL: ordinary memory of the process, or nothing. */
sim_device *tarni_sim_device_at(sim_device *device, tarn_ptr address, bool is_copy);
/* The device that has a region at this address; NULL: none, and *next is lowered to where the next
 * region of any device begins. */
sim_device *tarni_sim_device_next(tarn_ptr address, tarn_ptr *next);
bool tarni_sim_region_holds(const sim_region *region, tarn_ptr address, uint64_t size);
bool tarni_sim_region_is_free(const sim_region *region, tarn_ptr address, uint64_t size);
sim_region *tarni_sim_region_new(sim_device *device, tarn_ptr address, uint64_t size,
                                 sim_region_kind kind); /* NULL: out of host memory */
void tarni_sim_region_delete(sim_device *device, sim_region *region);
sim_mapping *tarni_sim_mapping_make(sim_device *device, sim_region *region, tarn_ptr address,
                                    sim_chunk *chunk);
void tarni_sim_mapping_destroy(sim_device *device, sim_region *region, sim_mapping *mapping);
/* An allocation that is a region of its own; `host` is the memory itself for pinned memory.
 * TARN_DEVICE_MEMORY, TARN_HOST_MEMORY: nothing has changed, and no error is set. */
tarn_status tarni_sim_region_make(sim_device *device, sim_region_kind kind, uint64_t size,
                                  void *host, sim_region **out);
/* Gives everything back; the memory that host_register was given stays the program's. */
void tarni_sim_region_drop(sim_device *device, sim_region *region);
void tarni_sim_regions_close(sim_device *device);

/* ---- memory.c: reservations and mappings as the program makes them ---------------------------*/
tarn_status tarni_sim_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                              tarn_ptr *address);
tarn_status tarni_sim_unreserve(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_sim_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk id);
tarn_status tarni_sim_access(tarni_port *port, tarn_ptr address, uint64_t size);
tarn_status tarni_sim_unmap(tarni_port *port, tarn_ptr address, uint64_t size);

/* ---- plain.c: plain and pinned memory --------------------------------------------------------*/
tarn_status tarni_sim_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address);
tarn_status tarni_sim_plain_free(tarni_port *port, tarn_ptr address);
tarn_status tarni_sim_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer);
tarn_status tarni_sim_host_free(tarni_port *port, void *pointer);
tarn_status tarni_sim_host_register(tarni_port *port, void *pointer, uint64_t size);
tarn_status tarni_sim_host_unregister(tarni_port *port, void *pointer);
sim_region *tarni_sim_region_exact(const sim_device *device, tarn_ptr address,
                                   sim_region_kind kind);
/* The error of a region_make that failed. */
tarn_status tarni_sim_region_fail(sim_device *device, tarn_status status, tarn_call call,
                                  uint64_t size);

/* ---- pool.c: the driver's stream-ordered pools -----------------------------------------------*/
tarn_status tarni_sim_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *out);
tarn_status tarni_sim_pool_destroy(tarni_port *port, tarni_pool handle);
tarn_status tarni_sim_pool_trim(tarni_port *port, tarni_pool handle, uint64_t keep_bytes);
tarn_status tarni_sim_pool_alloc(tarni_port *port, tarni_pool handle, uint64_t size, tarn_stream on,
                                 tarn_ptr *address);
tarn_status tarni_sim_pool_free(tarni_port *port, tarn_ptr address, tarn_stream on);
void tarni_sim_pools_settle(sim_device *device); /* at every synchronisation of the host */
void tarni_sim_pools_close(sim_device *device);

/* ---- bytes.c: the process's address space; the only file that touches simulated memory -------*/
uint64_t tarni_sim_bytes_page(void); /* the unit of mappings: 4 KiB, or the system's if larger */
int tarni_sim_bytes_file(void);
bool tarni_sim_bytes_grow(int file, uint64_t size);
bool tarni_sim_bytes_empty(int file);
void *tarni_sim_bytes_reserve(uint64_t size, uint64_t alignment);
void *tarni_sim_bytes_pinned(uint64_t size);
bool tarni_sim_bytes_unreserve(void *address, uint64_t size);
bool tarni_sim_bytes_map(void *address, uint64_t size, int file, uint64_t offset);
bool tarni_sim_bytes_unmap(void *address, uint64_t size);
bool tarni_sim_bytes_transfer(int from, uint64_t offset, int to, uint64_t size);
void tarni_sim_bytes_discard(int file, uint64_t offset, uint64_t size);
/* Whether the process can read all of it. */
bool tarni_sim_bytes_is_host(tarn_ptr address, uint64_t size);
void tarni_sim_bytes_copy(tarn_ptr destination, tarn_ptr source, uint64_t size);
void tarni_sim_bytes_fill(tarn_ptr destination, uint8_t value, uint64_t size);

/* ---- stream.c, event.c: queues and what orders them ------------------------------------------*/
tarn_status tarni_sim_stream_create(tarni_port *port, tarn_stream *out);
tarn_status tarni_sim_stream_destroy(tarni_port *port, tarn_stream handle);
tarn_status tarni_sim_stream_id(tarni_port *port, tarn_stream handle, uint64_t *id);
tarn_status tarni_sim_stream_query(tarni_port *port, tarn_stream handle);
tarn_status tarni_sim_stream_sync(tarni_port *port, tarn_stream handle);
tarn_status tarni_sim_event_create(tarni_port *port, tarni_event *out);
tarn_status tarni_sim_event_destroy(tarni_port *port, tarni_event handle);
tarn_status tarni_sim_event_record(tarni_port *port, tarni_event handle, tarn_stream to);
tarn_status tarni_sim_event_query(tarni_port *port, tarni_event handle);
tarn_status tarni_sim_event_sync(tarni_port *port, tarni_event handle);
tarn_status tarni_sim_event_wait(tarni_port *port, tarn_stream by, tarni_event handle);
void tarni_sim_events_close(sim_device *device);
/* The stream behind a handle, the special ones included. Fails for one that is gone or of another
 * device. */
tarn_status tarni_sim_stream_get(sim_device *device, tarn_stream handle, const char *entry,
                                 sim_stream **out);
/* Whether a capture keeps the legacy stream from being used. */
bool tarni_sim_legacy_is_kept(const sim_device *device);
/* The same, for doing something on it: fails where that would tie the legacy default stream to a
 * capture. */
tarn_status tarni_sim_stream_act(sim_device *device, tarn_stream handle, const char *entry,
                                 sim_stream **stream);
bool tarni_sim_streams_open(sim_device *device);
void tarni_sim_streams_close(sim_device *device);

/* ---- queue.c: what is in a stream's queue, and what is ordered before it ---------------------*/
/* Makes the stream's next operation follow what the host has seen and what CUDA orders by itself,
 * and makes room for it in the stream's clock. */
tarn_status tarni_sim_stream_prepare(sim_stream *stream);
/* Counts one more operation of the stream. pre: prepared. */
void tarni_sim_stream_advance(sim_stream *stream);
void tarni_sim_stream_push(sim_stream *stream, sim_operation *operation);
/* The host has seen what a clock says, or all of a stream, complete. */
void tarni_sim_host_sees(const sim_clock *clock);
void tarni_sim_observe(sim_device *device, const sim_record *record);
void tarni_sim_observe_stream(sim_stream *stream);
sim_operation *tarni_sim_operation_take(sim_operation_kind kind);
void tarni_sim_operation_give(sim_operation *operation);
sim_record *tarni_sim_record_take(uint32_t n_slots); /* with room in its clock */
void tarni_sim_record_drop(sim_record *record);
bool tarni_sim_slot_take(uint32_t *slot, uint64_t *epoch); /* false: no host memory */
void tarni_sim_slot_give(uint32_t slot, uint64_t epoch);
/* An operation that marks a place in a queue, and takes no number there; pushing it cannot fail
 * unless a stream is made meanwhile. */
sim_operation *tarni_sim_mark_make(void);
sim_record *tarni_sim_mark_push(sim_stream *stream, sim_operation *mark); /* the caller's own */
bool tarni_sim_wait_on(sim_stream *stream, sim_record *record); /* false: no host memory */

/* ---- work.c: copies, fills, values, kernels; run.c: doing them -------------------------------*/
tarn_status tarni_sim_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                           tarn_stream on);
tarn_status tarni_sim_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                uint64_t size);
void tarni_sim_copy_prepare(tarni_port *port);
tarn_status tarni_sim_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                 tarn_stream on, tarni_copy_way way);
tarn_status tarni_sim_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                           tarn_stream on);
tarn_status tarni_sim_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                uint64_t size);
tarn_status tarni_sim_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                  uint64_t value);
tarn_status tarni_sim_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                 uint64_t value);
tarn_status tarni_sim_kernel(sim_device *device, const tarn_sim_kernel *kernel, tarn_stream on);
void tarni_sim_work_free(sim_work *work);
/* Does one piece of work. False: it has to wait (a value that is not there yet). */
bool tarni_sim_work_run(sim_device *device, const sim_work *work);
/* A value is about to be written: waits for it can rely on what the record's clock says. */
void tarni_sim_value_expect(sim_record *record, const sim_work *work);
void tarni_sim_value_written(sim_record *record); /* it is; the host can see it */
void tarni_sim_value_forget(sim_record *record);
/* Adds to a clock what a wait for a value can rely on. pre: it has room for every slot. */
void tarni_sim_value_rely(sim_clock *clock, const sim_work *work);

/* ---- batch.c: copies that have no order among themselves --------------------------------------*/
/* Finds a copy that touches what another one writes, or writes what another one touches;
 * UINT64_MAX: there is none. False: no host memory. */
bool tarni_sim_batch_conflict(sim_device *device, const tarni_copy *copies, uint64_t count,
                              uint64_t *conflict);

/* ---- schedule.c: when pending work runs ------------------------------------------------------*/
void tarni_sim_tick(sim_device *device); /* after each call */
bool tarni_sim_step(sim_device *device); /* false: nothing could run */
/* These wait for what is there now, and the host has seen it afterwards; they may give up the lock
 * meanwhile. On failure nothing is known to be complete. */
tarn_status tarni_sim_finish_stream(sim_device *device, sim_stream *stream, const char *entry);
tarn_status tarni_sim_finish_mark(sim_device *device, sim_stream *stream, sim_operation *mark,
                                  const char *entry); /* fails only if the device is broken */
tarn_status tarni_sim_finish_device(sim_device *device, const char *entry);
void tarni_sim_finish_record(sim_device *device, const sim_record *record);
void tarni_sim_drain(sim_device *device); /* at close: what cannot end is found and dropped */

/* ---- capture.c, graph.c: captures and what they record ---------------------------------------*/
tarn_status tarni_sim_capture_state(tarni_port *port, tarn_stream handle,
                                    tarni_capture_state *state);
tarn_status tarni_sim_capture_nodes(tarni_port *port, tarn_stream handle, tarni_edge *edges,
                                    uint32_t capacity, uint32_t *count);
tarn_status tarni_sim_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                  uint32_t capacity, uint32_t *count);
tarn_status tarni_sim_capture_begin(tarni_port *port, tarn_stream handle, tarni_capture_mode mode);
tarn_status tarni_sim_capture_end(tarni_port *port, tarn_stream on, tarni_graph *graph);
bool tarni_sim_thread_mode(tarni_port *port, tarni_capture_mode *mode);
tarn_status tarni_sim_graph_instantiate(tarni_port *port, tarni_graph graph, tarni_graph_exec *out);
tarn_status tarni_sim_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream on);
tarn_status tarni_sim_graph_destroy(tarni_port *port, tarni_graph graph_handle,
                                    tarni_graph_exec exec_handle);
sim_graph *tarni_sim_graph_make(sim_device *device);
void tarni_sim_graph_drop(sim_graph *graph);
void tarni_sim_exec_drop(sim_exec *exec);
void tarni_sim_graphs_close(sim_device *device);
/* Runs one node of a launch that is ready; false when none is. */
bool tarni_sim_graph_step(sim_device *device, sim_operation *operation);
/* Whether an unsafe call (plain_alloc, event_query, ...) is legal for this thread now; if not, it
 * invalidates the captures concerned and fails. */
tarn_status tarni_sim_capture_allows(sim_device *device, const char *entry);
tarn_status tarni_sim_capture_add(sim_stream *stream, const sim_work *work);
tarn_status tarni_sim_capture_refuse(sim_stream *stream, int code, const char *entry);
tarn_status tarni_sim_capture_record(sim_stream *stream, sim_event *event);
tarn_status tarni_sim_capture_wait(sim_stream *stream, const sim_event *event);
/* The host asks about an event that was recorded in a capture. */
tarn_status tarni_sim_capture_ask(sim_device *device, const sim_event *event, const char *entry);
void tarni_sim_capture_leave(sim_stream *stream); /* the stream is about to be destroyed */
void tarni_sim_capture_close(sim_device *device);

/* ---- oracle.c: findings; judge.c: uses of memory ---------------------------------------------*/
/* Judging a piece of work takes three steps, so that it cannot stop half way: is all of it mapped
 * (else: a finding), is there host memory to note its uses (cut all that belongs together, then
 * reserve all of it), and then the verdict, which cannot fail. A stamp names what belongs together.
 */
bool tarni_sim_oracle_is_mapped(sim_device *device, const sim_actor *actor, const sim_work *work);
bool tarni_sim_oracle_cut(sim_device *device, const sim_work *work);
bool tarni_sim_oracle_reserve(sim_device *device, const sim_work *work, uint64_t stamp);
void tarni_sim_oracle_judge(sim_device *device, const sim_actor *actor, const sim_work *work);
void tarni_sim_oracle_merge(sim_device *device, const sim_work *work); /* tidies up at the end */
uint64_t tarni_sim_oracle_stamp(void);
/* Names the owner of a range: all of it or, without host memory, nothing. pre: it is mapped. */
bool tarni_sim_oracle_own(sim_device *device, tarn_ptr address, uint64_t size, uint64_t owner,
                          bool is_freed);
void tarni_sim_oracle_unmap(sim_device *device, const sim_mapping *mapping);
void tarni_sim_oracle_find(sim_device *device, tarn_sim_finding *finding, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A finding about memory as such: with its owner and the last use that is known of it. */
void tarni_sim_oracle_find_memory(sim_device *device, tarn_sim_finding *finding,
                                  const sim_shadow *shadow, const char *what);
void tarni_sim_oracle_find_uses(sim_device *device, tarn_sim_finding *finding, const char *meaning,
                                const sim_use *first, const sim_use *second);

/* ---- call.c: what every entry begins and ends with; code.c: the driver's codes ---------------*/
tarn_status tarni_sim_config_parse(const char *options, sim_config *config);
/* Takes the lock, counts the call and its base price, and fails if the fault plan or a broken
 * device says so; the lock is then released again. On success every path ends with tarni_sim_end.
 * The size is only for the error. */
tarn_status tarni_sim_begin(sim_device *device, tarn_call call, uint64_t size);
tarn_status tarni_sim_end(sim_device *device, tarn_status status);
void tarni_sim_watch_forks(void); /* before the first device */
void tarni_sim_lock(void);
void tarni_sim_unlock(void);
/* Adds what a call costs beyond its base: more mappings than one, and the bytes concerned. */
void tarni_sim_charge(sim_device *device, tarn_call call, uint64_t n_more, uint64_t size);
void tarni_sim_charge_ns(sim_device *device, tarn_call call, uint64_t nanoseconds);
uint64_t tarni_sim_thread(void);             /* a number for the calling thread, never used again */
const char *tarni_sim_entry(tarn_call call); /* "cuMemCreate" */
/* A failure of the simulated driver, as the cuda port would report it. */
tarn_status tarni_sim_fail_code(sim_device *device, int code, const char *entry, uint64_t size);
tarn_status tarni_sim_no_host_memory(sim_device *device, const char *entry);
tarn_status tarni_sim_no_addresses(sim_device *device, uint64_t size);
/* Wrong use of a handle or an address: a finding and a failure. */
tarn_status tarni_sim_misuse(sim_device *device, int code, const char *entry, const char *what,
                             uint64_t value);
#ifdef __clang_analyzer__ /* as in base/error.h */
#define tarni_sim_fail_code(...) ((void)(tarni_sim_fail_code)(__VA_ARGS__), TARN_DRIVER)
#define tarni_sim_no_host_memory(...)                                                              \
  ((void)(tarni_sim_no_host_memory)(__VA_ARGS__), TARN_HOST_MEMORY)
#define tarni_sim_misuse(...) ((void)(tarni_sim_misuse)(__VA_ARGS__), TARN_INVALID)
#endif
bool tarni_sim_code_is_sticky(int code);
/* Whether a call of this kind can be planned to answer with the code: "not ready" is for queries.
 */
bool tarni_sim_code_can_fail(int code, tarn_call call);
/* The device is broken: an operation could not be done. */
void tarni_sim_break(sim_device *device, int code);
tarn_status tarni_sim_broken(sim_device *device, const char *entry); /* TARN_OK: it is not */
extern sim_world tarni_sim_world;

#endif
