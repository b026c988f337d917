/* SPDX-License-Identifier: MIT
 *
 * What the files of the host port share. */
#ifndef TARNI_PORT_HOST_HOST_H
#define TARNI_PORT_HOST_HOST_H

#include <stdbool.h>

#include "base/lock.h"
#include "port/port.h"

/* A chunk: a promise of memory until it is mapped, for which it has one place at a time. */
typedef struct host_chunk {
  struct host_chunk *next;
  uint64_t size;
  tarn_ptr address;   /* 0: not mapped */
  bool is_registered; /* with the device */
} host_chunk;

typedef struct host_port {
  tarni_port base;
  /* immutable after open: */
  tarni_port *device;
  tarni_host_config config;
  /* lock: */
  tarni_lock lock;
  host_chunk *chunks;
} host_port;

/* ---- room.c: how much memory there is ---- */
/* Bytes that this process can have: of the machine, or of its control groups if that is less. */
uint64_t tarni_host_room_total(void);
extern const char *tarni_host_room_root; /* for tests: where its files are; "" */
uint64_t tarni_host_room_free(void);
/* Whether so much can be had, with something left for the system's own account of it. */
bool tarni_host_room_has(uint64_t size, const tarni_host_config *config);

/* ---- pages.c: memory of the operating system ---- */
typedef enum host_pages_result {
  HOST_PAGES_OK = 0,
  HOST_PAGES_SHORT,  /* no memory, or no addresses */
  HOST_PAGES_REFUSED /* the system does not let the process place memory on the node */
} host_pages_result;

bool tarni_host_pages_has_node(uint32_t node);
/* Whether the system lets the process choose a node. */
bool tarni_host_pages_can_bind(uint32_t node);
/* One page of memory; NULL: none. tarni_host_pages_unreserve gives it back. */
void *tarni_host_pages_one(uint64_t *size);
void *tarni_host_pages_reserve(uint64_t size, uint64_t alignment);
bool tarni_host_pages_unreserve(void *address, uint64_t size);
/* Makes a reserved range memory that is there: every page of it. On failure it is as it was. */
host_pages_result tarni_host_pages_fill(void *address, uint64_t size,
                                        const tarni_host_config *config);
/* Gives the memory back; the range stays reserved. */
bool tarni_host_pages_drop(void *address, uint64_t size);

/* ---- forward.c: what is the device's business ---- */
tarn_status tarni_host_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer);
tarn_status tarni_host_host_free(tarni_port *port, void *pointer);
tarn_status tarni_host_host_register(tarni_port *port, void *pointer, uint64_t size);
tarn_status tarni_host_host_unregister(tarni_port *port, void *pointer);
tarn_status tarni_host_stream_create(tarni_port *port, tarn_stream *stream);
tarn_status tarni_host_stream_destroy(tarni_port *port, tarn_stream stream);
tarn_status tarni_host_stream_id(tarni_port *port, tarn_stream stream, uint64_t *id);
tarn_status tarni_host_stream_query(tarni_port *port, tarn_stream stream);
tarn_status tarni_host_stream_sync(tarni_port *port, tarn_stream stream);
tarn_status tarni_host_event_create(tarni_port *port, tarni_event *event);
tarn_status tarni_host_event_destroy(tarni_port *port, tarni_event event);
tarn_status tarni_host_event_record(tarni_port *port, tarni_event event, tarn_stream stream);
tarn_status tarni_host_event_query(tarni_port *port, tarni_event event);
tarn_status tarni_host_event_sync(tarni_port *port, tarni_event event);
tarn_status tarni_host_event_wait(tarni_port *port, tarn_stream stream, tarni_event event);
tarn_status tarni_host_capture_state(tarni_port *port, tarn_stream stream,
                                     tarni_capture_state *state);
tarn_status tarni_host_capture_begin(tarni_port *port, tarn_stream stream, tarni_capture_mode mode);
tarn_status tarni_host_capture_end(tarni_port *port, tarn_stream stream, tarni_graph *graph);
tarn_status tarni_host_graph_instantiate(tarni_port *port, tarni_graph graph,
                                         tarni_graph_exec *exec);
tarn_status tarni_host_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream stream);
tarn_status tarni_host_graph_destroy(tarni_port *port, tarni_graph graph, tarni_graph_exec exec);
tarn_status tarni_host_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                            tarn_stream stream);
tarn_status tarni_host_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                 uint64_t size);
tarn_status tarni_host_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                            tarn_stream stream);
tarn_status tarni_host_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                 uint64_t size);
tarn_status tarni_host_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                   uint64_t value);
tarn_status tarni_host_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                  uint64_t value);
tarn_status tarni_host_capture_nodes(tarni_port *port, tarn_stream stream, tarni_edge *edges,
                                     uint32_t capacity, uint32_t *count);
tarn_status tarni_host_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                   uint32_t capacity, uint32_t *count);
void tarni_host_copy_prepare(tarni_port *port);
tarn_status tarni_host_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                  tarn_stream stream, tarni_copy_way way);
bool tarni_host_thread_mode(tarni_port *port, tarni_capture_mode *mode);
uint64_t tarni_host_now_ns(tarni_port *port);

static inline tarni_port *tarni_host_device(tarni_port *port) {
  return ((host_port *)port)->device;
}

#endif
