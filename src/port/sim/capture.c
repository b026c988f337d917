/* SPDX-License-Identifier: MIT
 *
 * Stream capture, with CUDA's rules. While a stream is captured its work becomes nodes of a graph;
 * a stream that waits for a captured event joins the capture; what the mode forbids fails and
 * invalidates the capture, of which only the end is then left. */
#include <stdlib.h>
#include <string.h>

#include "port/sim/sim.h"

static sim_capture *capture_find(uint64_t id) {
  for (sim_capture *capture = tarni_sim_world.captures; capture != NULL; capture = capture->next) {
    if (capture->id == id) {
      return capture;
    }
  }
  return NULL;
}

static _Thread_local tarni_capture_mode thread_mode = TARNI_CAPTURE_GLOBAL;

bool tarni_sim_thread_mode(tarni_port *port, tarni_capture_mode *mode) {
  (void)port;
  const tarni_capture_mode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return true;
}

/* Whether a call that is not safe in captures is illegal for this thread because of this one. */
static bool capture_forbids(const sim_capture *capture) {
  if (thread_mode == TARNI_CAPTURE_RELAXED || capture->mode == TARNI_CAPTURE_RELAXED) {
    return false;
  }
  return capture->thread == tarni_sim_thread() ||
         (capture->mode == TARNI_CAPTURE_GLOBAL && thread_mode == TARNI_CAPTURE_GLOBAL);
}

tarn_status tarni_sim_capture_allows(sim_device *device, const char *entry) {
  bool is_allowed = true;
  for (sim_capture *capture = tarni_sim_world.captures; capture != NULL; capture = capture->next) {
    if (capture_forbids(capture)) {
      capture->is_invalid = true;
      is_allowed = false;
    }
  }
  return is_allowed ? TARN_OK : tarni_sim_fail_code(device, SIM_CUDA_CAPTURE_UNSUPPORTED, entry, 0);
}

tarn_status tarni_sim_capture_refuse(sim_stream *stream, int code, const char *entry) {
  stream->capture->is_invalid = true;
  return tarni_sim_fail_code(stream->device, code, entry, 0);
}

static tarn_status capture_check(const sim_stream *stream, const char *entry) {
  return stream->capture->is_invalid
             ? tarni_sim_fail_code(stream->device, SIM_CUDA_CAPTURE_INVALIDATED, entry, 0)
             : TARN_OK;
}

/* ---- Sets of nodes ---- */

static bool nodes_copy(uint32_t **to, uint32_t *n_to, const uint32_t *from, uint32_t n) {
  uint32_t *copy = tarni_sim_store_resize(NULL, (size_t)n + 1, sizeof(*copy));
  if (copy == NULL) {
    return false;
  }
  if (n != 0) {
    memcpy(copy, from, n * sizeof(*copy));
  }
  free(*to);
  *to = copy;
  *n_to = n;
  return true;
}

static bool nodes_hold(const uint32_t *nodes, uint32_t n, uint32_t node) {
  for (uint32_t i = 0; i < n; i++) {
    if (nodes[i] == node) {
      return true;
    }
  }
  return false;
}

static bool nodes_unite(uint32_t **to, uint32_t *n_to, const uint32_t *from, uint32_t n) {
  uint32_t *united = tarni_sim_store_resize(NULL, (size_t)*n_to + n + 1, sizeof(*united));
  if (united == NULL) {
    return false;
  }
  uint32_t count = *n_to;
  if (count != 0) {
    memcpy(united, *to, count * sizeof(*united));
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!nodes_hold(united, count, from[i])) {
      united[count++] = from[i];
    }
  }
  free(*to);
  *to = united;
  *n_to = count;
  return true;
}

/* ---- Recording ---- */

static bool graph_room(sim_graph *graph) {
  if (graph->n_nodes < graph->capacity) {
    return true;
  }
  const uint32_t capacity = graph->capacity * 2 + 16;
  sim_node *nodes = tarni_sim_store_resize(graph->nodes, capacity, sizeof(*nodes));
  if (nodes == NULL) {
    return false;
  }
  graph->nodes = nodes;
  graph->capacity = capacity;
  return true;
}

/* Takes over what the work owns when it succeeds. */
tarn_status tarni_sim_capture_add(sim_stream *stream, const sim_work *work) {
  TARN_TRY(capture_check(stream, "cuGraphAddNode"));
  sim_graph *graph = stream->capture->graph;
  const uint32_t index = graph->n_nodes;
  if (!graph_room(graph)) {
    return tarni_sim_no_host_memory(stream->device, "cuGraphAddNode");
  }
  sim_node node = {.work = *work, .is_early = work->is_early};
  if (!nodes_copy(&node.after, &node.n_after, stream->capture_tail, stream->n_capture_tail) ||
      !nodes_copy(&stream->capture_tail, &stream->n_capture_tail, &index, 1)) {
    free(node.after);
    return tarni_sim_no_host_memory(stream->device, "cuGraphAddNode");
  }
  graph->nodes[graph->n_nodes++] = node;
  return TARN_OK;
}

tarn_status tarni_sim_capture_record(sim_stream *stream, sim_event *event) {
  TARN_TRY(capture_check(stream, "cuEventRecord"));
  if (!nodes_copy(&event->nodes, &event->n_nodes, stream->capture_tail, stream->n_capture_tail)) {
    return tarni_sim_no_host_memory(stream->device, "cuEventRecord");
  }
  tarni_sim_record_drop(event->record);
  event->record = NULL;
  event->capture_id = stream->capture->id;
  return TARN_OK;
}

static tarn_status capture_join(sim_stream *stream, sim_capture *capture, const sim_event *event) {
  const char *entry = "cuStreamWaitEvent";
  sim_device *device = stream->device;
  if (stream == device->legacy || device != capture->device) {
    capture->is_invalid = true;
    return tarni_sim_fail_code(
        device, stream == device->legacy ? SIM_CUDA_CAPTURE_IMPLICIT : SIM_CUDA_CAPTURE_UNSUPPORTED,
        entry, 0);
  }
  if (capture->is_invalid) {
    return tarni_sim_fail_code(device, SIM_CUDA_CAPTURE_INVALIDATED, entry, 0);
  }
  if (!nodes_unite(&stream->capture_tail, &stream->n_capture_tail, event->nodes, event->n_nodes)) {
    return tarni_sim_no_host_memory(device, entry);
  }
  stream->capture = capture;
  return TARN_OK;
}

/* The event was recorded in no capture that still goes on. */
static tarn_status capture_wait_outside(sim_stream *stream, const sim_event *event) {
  const char *entry = "cuStreamWaitEvent";
  if (stream->capture == NULL) {
    return tarni_sim_fail_code(stream->device, SIM_CUDA_INVALID_VALUE, entry, 0);
  }
  TARN_TRY(capture_check(stream, entry));
  if (event->capture_id != 0) {
    return tarni_sim_capture_refuse(stream, SIM_CUDA_INVALID_VALUE, entry);
  }
  return event->record == NULL /* never recorded: nothing to wait for */
             ? TARN_OK
             : tarni_sim_capture_refuse(stream, SIM_CUDA_CAPTURE_ISOLATION, entry);
}

tarn_status tarni_sim_capture_wait(sim_stream *stream, const sim_event *event) {
  sim_capture *capture = event->capture_id != 0 ? capture_find(event->capture_id) : NULL;
  if (capture == NULL) {
    return capture_wait_outside(stream, event);
  }
  if (stream->capture != NULL && stream->capture != capture) {
    capture->is_invalid = true;
    return tarni_sim_capture_refuse(stream, SIM_CUDA_CAPTURE_MERGE, "cuStreamWaitEvent");
  }
  return capture_join(stream, capture, event);
}

tarn_status tarni_sim_capture_ask(sim_device *device, const sim_event *event, const char *entry) {
  sim_capture *capture = capture_find(event->capture_id);
  if (capture == NULL) {
    return tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, entry, 0);
  }
  capture->is_invalid = true;
  return tarni_sim_fail_code(device, SIM_CUDA_CAPTURED_EVENT, entry, 0);
}

/* ---- Begin and end ---- */

tarn_status tarni_sim_capture_state(tarni_port *port, tarn_stream handle,
                                    tarni_capture_state *state) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_CAPTURE_STATE, 0));
  sim_stream *stream;
  const tarn_status status =
      tarni_sim_stream_get(device, handle, "cuStreamGetCaptureInfo", &stream);
  if (status == TARN_OK && stream == device->legacy && tarni_sim_legacy_is_kept(device)) {
    return tarni_sim_end(device, tarni_sim_fail_code(device, SIM_CUDA_CAPTURE_IMPLICIT,
                                                     "cuStreamGetCaptureInfo", 0));
  }
  if (status == TARN_OK && stream->capture != NULL) {
    state->status = stream->capture->is_invalid ? TARNI_CAPTURE_INVALIDATED : TARNI_CAPTURE_ACTIVE;
    state->id = stream->capture->id;
  }
  return tarni_sim_end(device, status);
}

/* ---- Nodes and what they follow ---- */

/* A node is known by its capture and its place in the graph. */
static uint64_t node_number(const sim_capture *capture, uint32_t index) {
  return capture->id << 32 | (index + 1);
}

static uint32_t nodes_give(const sim_capture *capture, const uint32_t *nodes, uint32_t n,
                           bool is_full, tarni_edge *edges, uint32_t capacity) {
  for (uint32_t i = 0; i < n && i < capacity; i++) {
    edges[i] = (tarni_edge){.node = node_number(capture, nodes[i]), .is_full = is_full};
  }
  return n;
}

tarn_status tarni_sim_capture_nodes(tarni_port *port, tarn_stream handle, tarni_edge *edges,
                                    uint32_t capacity, uint32_t *count) {
  const char *entry = "cuStreamGetCaptureInfo";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_CAPTURE_NODES, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, entry, &stream);
  if (status == TARN_OK && (stream->capture == NULL || stream->capture->is_invalid)) {
    status = tarni_sim_fail_code(device, SIM_CUDA_ILLEGAL_STATE, entry, 0);
  }
  if (status == TARN_OK) {
    *count = nodes_give(stream->capture, stream->capture_tail, stream->n_capture_tail, true, edges,
                        capacity);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                  uint32_t capacity, uint32_t *count) {
  const char *entry = "cuGraphNodeGetDependencies";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_NODE_BEFORE, 0));
  const sim_capture *capture = capture_find(node >> 32);
  const uint32_t index = (uint32_t)node - 1;
  tarn_status status = TARN_OK;
  if (capture == NULL || index >= capture->graph->n_nodes) {
    status = tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, entry,
                              "a node was asked for that is in no capture that goes on", node);
  } else {
    const sim_node *of = &capture->graph->nodes[index];
    *count = nodes_give(capture, of->after, of->n_after, !of->is_early, edges, capacity);
  }
  return tarni_sim_end(device, status);
}

static tarn_status capture_start(sim_device *device, sim_stream *stream, tarni_capture_mode mode) {
  if (stream == device->legacy) {
    return tarni_sim_fail_code(device, SIM_CUDA_CAPTURE_UNSUPPORTED, "cuStreamBeginCapture", 0);
  }
  if (stream->capture != NULL) {
    return tarni_sim_fail_code(device, SIM_CUDA_ILLEGAL_STATE, "cuStreamBeginCapture", 0);
  }
  sim_capture *capture = tarni_sim_store_zeroed(1, sizeof(*capture));
  sim_graph *graph = capture != NULL ? tarni_sim_graph_make(device) : NULL;
  if (graph == NULL) {
    free(capture);
    return tarni_sim_no_host_memory(device, "cuStreamBeginCapture");
  }
  *capture = (sim_capture){.id = ++tarni_sim_world.last_capture_id,
                           .mode = mode,
                           .thread = tarni_sim_thread(),
                           .device = device,
                           .origin = stream,
                           .graph = graph,
                           .next = tarni_sim_world.captures};
  tarni_sim_world.captures = capture;
  stream->capture = capture;
  stream->n_capture_tail = 0;
  return TARN_OK;
}

tarn_status tarni_sim_capture_begin(tarni_port *port, tarn_stream handle, tarni_capture_mode mode) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_CAPTURE_BEGIN, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuStreamBeginCapture", &stream);
  if (status == TARN_OK) {
    status = capture_start(device, stream, mode);
  }
  return tarni_sim_end(device, status);
}

/* Marks a node and all that comes before it. Dependencies have smaller numbers. */
static void mark_ancestors(const sim_graph *graph, bool *is_marked) {
  for (uint32_t i = graph->n_nodes; i-- != 0;) {
    for (uint32_t j = 0; is_marked[i] && j < graph->nodes[i].n_after; j++) {
      is_marked[graph->nodes[i].after[j]] = true;
    }
  }
}

/* Whether all that other streams did in the capture, those included that are gone, comes before
 * where the first stream is now. */
static bool capture_is_joined(const sim_capture *capture, bool *is_marked) {
  for (uint32_t i = 0; i < capture->origin->n_capture_tail; i++) {
    is_marked[capture->origin->capture_tail[i]] = true;
  }
  mark_ancestors(capture->graph, is_marked);
  bool is_joined = true;
  for (uint32_t i = 0; i < capture->graph->n_nodes; i++) {
    is_joined = is_joined && (is_marked[i] || !capture->graph->nodes[i].is_loose);
  }
  for (const sim_stream *stream = capture->device->streams; stream != NULL; stream = stream->next) {
    for (uint32_t i = 0; stream->capture == capture && i < stream->n_capture_tail; i++) {
      is_joined = is_joined && is_marked[stream->capture_tail[i]];
    }
  }
  return is_joined;
}

/* Forgets a capture; its graph goes to the caller. */
static sim_graph *capture_remove(sim_capture *capture) {
  for (sim_stream *stream = capture->device->streams; stream != NULL; stream = stream->next) {
    if (stream->capture == capture) {
      stream->capture = NULL;
      stream->n_capture_tail = 0;
    }
  }
  sim_capture **link = &tarni_sim_world.captures;
  while (*link != capture) {
    link = &(*link)->next;
  }
  *link = capture->next;
  sim_graph *graph = capture->graph;
  free(capture);
  return graph;
}

/* Why a capture cannot be ended here: the driver's code. */
static int capture_end_code(const sim_stream *stream, const sim_capture *capture) {
  if (capture == NULL) {
    return SIM_CUDA_ILLEGAL_STATE;
  }
  if (capture->origin != stream) {
    return SIM_CUDA_CAPTURE_UNMATCHED;
  }
  return capture->mode != TARNI_CAPTURE_RELAXED && capture->thread != tarni_sim_thread()
             ? SIM_CUDA_CAPTURE_WRONG_THREAD
             : SIM_CUDA_SUCCESS;
}

static tarn_status capture_stop(sim_device *device, sim_stream *stream, tarni_graph *out) {
  const char *entry = "cuStreamEndCapture";
  sim_capture *capture = stream->capture;
  int code = capture_end_code(stream, capture);
  if (code == SIM_CUDA_CAPTURE_UNMATCHED) {
    capture->is_invalid = true;
  }
  if (capture == NULL || code == SIM_CUDA_CAPTURE_UNMATCHED) {
    return tarni_sim_fail_code(device, code, entry, 0);
  }
  bool *is_marked = tarni_sim_store_zeroed((size_t)capture->graph->n_nodes + 1, sizeof(*is_marked));
  if (is_marked == NULL) {
    return tarni_sim_no_host_memory(device, entry);
  }
  if (code == SIM_CUDA_SUCCESS && capture->is_invalid) {
    code = SIM_CUDA_CAPTURE_INVALIDATED;
  } else if (code == SIM_CUDA_SUCCESS && !capture_is_joined(capture, is_marked)) {
    code = SIM_CUDA_CAPTURE_UNJOINED;
  }
  free(is_marked);
  sim_graph *graph = capture_remove(capture); /* over, whatever became of it */
  if (code != SIM_CUDA_SUCCESS) {
    tarni_sim_graph_drop(graph);
    return tarni_sim_fail_code(device, code, entry, 0);
  }
  graph->is_live = SIM_GRAPH_LIVE;
  *out = graph;
  return TARN_OK;
}

tarn_status tarni_sim_capture_end(tarni_port *port, tarn_stream on, tarni_graph *graph) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_CAPTURE_END, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, on, "cuStreamEndCapture", &stream);
  if (status == TARN_OK) {
    status = capture_stop(device, stream, graph);
  }
  return tarni_sim_end(device, status);
}

/* The first stream takes its capture with it; what another one did in it is to be joined still. */
void tarni_sim_capture_leave(sim_stream *stream) {
  sim_capture *capture = stream->capture;
  if (capture == NULL) {
    return;
  }
  if (capture->origin == stream) {
    tarni_sim_graph_drop(capture_remove(capture));
  } else {
    for (uint32_t i = 0; i < stream->n_capture_tail; i++) {
      capture->graph->nodes[stream->capture_tail[i]].is_loose = true;
    }
    stream->capture = NULL;
    stream->n_capture_tail = 0;
  }
}

void tarni_sim_capture_close(sim_device *device) {
  for (sim_capture *next, *capture = tarni_sim_world.captures; capture != NULL; capture = next) {
    next = capture->next;
    if (capture->device != device) {
      continue;
    }
    if (device->sticky_code == 0) {
      tarn_sim_finding finding = {.kind = TARN_SIM_LEAK, .first.stream_id = capture->origin->id};
      tarni_sim_oracle_find(device, &finding, "capture %llu was never ended",
                            (unsigned long long)capture->id);
    }
    tarni_sim_graph_drop(capture_remove(capture));
  }
}
