/* SPDX-License-Identifier: MIT
 *
 * What the host port leaves to the device's own: streams, events, captures, work, and the driver's
 * own calls for pinned memory. Knows nothing about chunks. */
#include "port/host/host.h"

tarn_status tarni_host_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer) {
  return tarni_port_host_alloc(tarni_host_device(port), size, flags, pointer);
}

tarn_status tarni_host_host_free(tarni_port *port, void *pointer) {
  return tarni_port_host_free(tarni_host_device(port), pointer);
}

tarn_status tarni_host_host_register(tarni_port *port, void *pointer, uint64_t size) {
  return tarni_port_host_register(tarni_host_device(port), pointer, size);
}

tarn_status tarni_host_host_unregister(tarni_port *port, void *pointer) {
  return tarni_port_host_unregister(tarni_host_device(port), pointer);
}

tarn_status tarni_host_stream_create(tarni_port *port, tarn_stream *stream) {
  return tarni_port_stream_create(tarni_host_device(port), stream);
}

tarn_status tarni_host_stream_destroy(tarni_port *port, tarn_stream stream) {
  return tarni_port_stream_destroy(tarni_host_device(port), stream);
}

tarn_status tarni_host_stream_id(tarni_port *port, tarn_stream stream, uint64_t *id) {
  return tarni_port_stream_id(tarni_host_device(port), stream, id);
}

tarn_status tarni_host_stream_query(tarni_port *port, tarn_stream stream) {
  return tarni_port_stream_query(tarni_host_device(port), stream);
}

tarn_status tarni_host_stream_sync(tarni_port *port, tarn_stream stream) {
  return tarni_port_stream_sync(tarni_host_device(port), stream);
}

tarn_status tarni_host_event_create(tarni_port *port, tarni_event *event) {
  return tarni_port_event_create(tarni_host_device(port), event);
}

tarn_status tarni_host_event_destroy(tarni_port *port, tarni_event event) {
  return tarni_port_event_destroy(tarni_host_device(port), event);
}

tarn_status tarni_host_event_record(tarni_port *port, tarni_event event, tarn_stream stream) {
  return tarni_port_event_record(tarni_host_device(port), event, stream);
}

tarn_status tarni_host_event_query(tarni_port *port, tarni_event event) {
  return tarni_port_event_query(tarni_host_device(port), event);
}

tarn_status tarni_host_event_sync(tarni_port *port, tarni_event event) {
  return tarni_port_event_sync(tarni_host_device(port), event);
}

tarn_status tarni_host_event_wait(tarni_port *port, tarn_stream stream, tarni_event event) {
  return tarni_port_event_wait(tarni_host_device(port), stream, event);
}

tarn_status tarni_host_capture_state(tarni_port *port, tarn_stream stream,
                                     tarni_capture_state *state) {
  return tarni_port_capture_state(tarni_host_device(port), stream, state);
}

tarn_status tarni_host_capture_begin(tarni_port *port, tarn_stream stream,
                                     tarni_capture_mode mode) {
  return tarni_port_capture_begin(tarni_host_device(port), stream, mode);
}

tarn_status tarni_host_capture_end(tarni_port *port, tarn_stream stream, tarni_graph *graph) {
  return tarni_port_capture_end(tarni_host_device(port), stream, graph);
}

tarn_status tarni_host_graph_instantiate(tarni_port *port, tarni_graph graph,
                                         tarni_graph_exec *exec) {
  return tarni_port_graph_instantiate(tarni_host_device(port), graph, exec);
}

tarn_status tarni_host_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream stream) {
  return tarni_port_graph_launch(tarni_host_device(port), exec, stream);
}

tarn_status tarni_host_graph_destroy(tarni_port *port, tarni_graph graph, tarni_graph_exec exec) {
  return tarni_port_graph_destroy(tarni_host_device(port), graph, exec);
}

tarn_status tarni_host_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                            tarn_stream stream) {
  return tarni_port_copy(tarni_host_device(port), destination, source, size, stream);
}

tarn_status tarni_host_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                 uint64_t size) {
  return tarni_port_copy_sync(tarni_host_device(port), destination, source, size);
}

tarn_status tarni_host_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                            tarn_stream stream) {
  return tarni_port_fill(tarni_host_device(port), destination, value, size, stream);
}

tarn_status tarni_host_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                 uint64_t size) {
  return tarni_port_fill_sync(tarni_host_device(port), destination, value, size);
}

tarn_status tarni_host_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                   uint64_t value) {
  return tarni_port_value_write(tarni_host_device(port), stream, word, value);
}

tarn_status tarni_host_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                  uint64_t value) {
  return tarni_port_value_wait(tarni_host_device(port), stream, word, value);
}

tarn_status tarni_host_capture_nodes(tarni_port *port, tarn_stream stream, tarni_edge *edges,
                                     uint32_t capacity, uint32_t *count) {
  return tarni_port_capture_nodes(tarni_host_device(port), stream, edges, capacity, count);
}

tarn_status tarni_host_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                   uint32_t capacity, uint32_t *count) {
  return tarni_port_node_before(tarni_host_device(port), node, edges, capacity, count);
}

void tarni_host_copy_prepare(tarni_port *port) {
  tarni_port_copy_prepare(tarni_host_device(port));
}

tarn_status tarni_host_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                  tarn_stream stream, tarni_copy_way way) {
  return tarni_port_copy_batch(tarni_host_device(port), copies, count, stream, way);
}

bool tarni_host_thread_mode(tarni_port *port, tarni_capture_mode *mode) {
  return tarni_port_thread_mode(tarni_host_device(port), mode);
}

uint64_t tarni_host_now_ns(tarni_port *port) {
  return tarni_port_now_ns(tarni_host_device(port));
}
