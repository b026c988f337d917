/* SPDX-License-Identifier: MIT
 *
 * Capture and graphs of the cuda port. Owns nothing: the driver keeps it all. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

tarn_status tarni_cuda_capture_state(tarni_port *port, tarn_stream stream,
                                     tarni_capture_state *state) {
  *state = (tarni_capture_state){TARNI_CAPTURE_NONE, 0};
  if (!tarni_cuda_of(port)->has[TARNI_CU_GROUP_CAPTURE]) {
    return TARN_OK; /* a driver that cannot capture is not capturing */
  }
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_CAPTURE_STATE, 0, &call));
  tarni_cu_capture_status status = 0;
  tarni_cu_word id = 0;
  /* The legacy stream cannot be asked while a stream that synchronises with it is being captured:
   * that is STREAM_CAPTURE_IMPLICIT, TARN_CAPTURE to the caller, and harms no capture. */
  TARN_TRY(tarni_cuda_call_end(&call, call.driver->capture_state(stream, &status, &id)));
  state->status = (tarni_capture_status)status;
  state->id = state->status == TARNI_CAPTURE_NONE ? 0 : id;
  return TARN_OK;
}

/* An edge without data is one of completion, as everywhere in the driver. */
static bool edge_is_full(const tarni_cu_edge *edges, size_t i) {
  return edges == NULL || (edges[i].from_port == 0 && edges[i].to_port == 0 && edges[i].type == 0);
}

static uint32_t give_edges(const tarni_cu_node *nodes, const tarni_cu_edge *data, size_t n,
                           tarni_edge *edges, uint32_t capacity) {
  for (size_t i = 0; i < n && i < capacity; i++) {
    edges[i] = (tarni_edge){.node = (uintptr_t)nodes[i], .is_full = edge_is_full(data, i)};
  }
  return (uint32_t)n;
}

tarn_status tarni_cuda_capture_nodes(tarni_port *port, tarn_stream stream, tarni_edge *edges,
                                     uint32_t capacity, uint32_t *count) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_CAPTURE_NODES, 0, &call));
  tarni_cu_capture_status status = 0;
  tarni_cu_word id = 0;
  tarni_cu_graph graph = NULL;
  const tarni_cu_node *nodes = NULL;
  const tarni_cu_edge *data = NULL;
  size_t n = 0;
  TARN_TRY(tarni_cuda_call_end(
      &call, call.driver->capture_nodes(stream, &status, &id, &graph, &nodes, &data, &n)));
  if (status != TARNI_CAPTURE_ACTIVE) {
    const tarni_facts facts = {.device = port->device.name};
    return tarni_fail(TARN_STATE, "cuStreamGetCaptureInfo", &facts,
                      "Ask about a stream that is being captured.",
                      "stream %p is in no capture that goes on", stream);
  }
  *count = give_edges(nodes, data, nodes != NULL ? n : 0, edges, capacity);
  return TARN_OK;
}

/* The driver fills two arrays of its own types. */
typedef struct node_arrays {
  tarni_cu_node *nodes;
  tarni_cu_edge *data;
} node_arrays;

static tarn_status arrays_make(uint32_t capacity, node_arrays *arrays) {
  arrays->nodes = calloc((size_t)capacity + 1, sizeof(tarni_cu_node));
  arrays->data = calloc((size_t)capacity + 1, sizeof(tarni_cu_edge));
  if (arrays->nodes != NULL && arrays->data != NULL) {
    return TARN_OK;
  }
  free(arrays->nodes);
  free(arrays->data);
  return tarni_fail(TARN_HOST_MEMORY, "cuGraphNodeGetDependencies", NULL, "Free some host memory.",
                    "no host memory for %u nodes", capacity);
}

tarn_status tarni_cuda_node_before(tarni_port *port, uint64_t node, tarni_edge *edges,
                                   uint32_t capacity, uint32_t *count) {
  node_arrays arrays;
  size_t n = 0;
  tarni_cuda_call call;
  TARN_TRY(arrays_make(capacity, &arrays));
  tarn_status status = tarni_cuda_call_begin(port, TARN_CALL_NODE_BEFORE, 0, &call);
  if (status == TARN_OK) {
    const tarni_cu_node of = (tarni_cu_node)(uintptr_t)node;
    tarni_cu_result code = call.driver->node_before(of, NULL, NULL, &n);
    if (code == TARNI_CU_SUCCESS && n != 0 && n <= capacity) {
      code = call.driver->node_before(of, arrays.nodes, arrays.data, &n);
    }
    status = tarni_cuda_call_end(&call, code);
  }
  if (status == TARN_OK) { /* too many are only counted */
    *count = give_edges(arrays.nodes, arrays.data, n, edges, n <= capacity ? capacity : 0);
  }
  free(arrays.nodes);
  free(arrays.data);
  return status;
}

tarn_status tarni_cuda_refuse_capturing(tarni_port *port, tarn_call kind, tarn_stream stream,
                                        const char *remedy) {
  tarni_capture_state state;
  TARN_TRY(tarni_cuda_capture_state(port, stream, &state));
  if (state.status == TARNI_CAPTURE_NONE) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = port->device.name};
  return tarni_fail(TARN_CAPTURE, tarni_cuda_call_entry(kind), &facts, remedy,
                    "stream %p is being captured (capture %llu)", stream,
                    (unsigned long long)state.id);
}

tarn_status tarni_cuda_capture_begin(tarni_port *port, tarn_stream stream,
                                     tarni_capture_mode mode) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_CAPTURE_BEGIN, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->capture_begin(stream, (int)mode));
}

tarn_status tarni_cuda_capture_end(tarni_port *port, tarn_stream stream, tarni_graph *graph) {
  *graph = NULL;
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_CAPTURE_END, 0, &call));
  tarni_cu_graph captured = NULL;
  TARN_TRY(tarni_cuda_call_end(&call, call.driver->capture_end(stream, &captured)));
  *graph = captured;
  return TARN_OK;
}

/* A thread's mode belongs to no context. */
bool tarni_cuda_thread_mode(tarni_port *port, tarni_capture_mode *mode) {
  const tarni_cu_driver *driver = tarni_cuda_of(port)->driver;
  tarni_cu_capture_mode exchanged = (tarni_cu_capture_mode)*mode;
  if (driver->thread_mode == NULL || tarni_cu_forked() ||
      driver->thread_mode(&exchanged) != TARNI_CU_SUCCESS) {
    return false;
  }
  *mode = (tarni_capture_mode)exchanged;
  return true;
}

tarn_status tarni_cuda_graph_instantiate(tarni_port *port, tarni_graph graph,
                                         tarni_graph_exec *exec) {
  *exec = NULL;
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_GRAPH_INSTANTIATE, 0, &call));
  tarni_cu_exec made = NULL;
  const tarni_cu_result code = call.driver->instantiate != NULL
                                   ? call.driver->instantiate(&made, graph, 0)
                                   : call.driver->instantiate_old(&made, graph, NULL, NULL, 0);
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *exec = made;
  return TARN_OK;
}

tarn_status tarni_cuda_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream stream) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_GRAPH_LAUNCH, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->graph_launch(exec, stream));
}

/* Both are destroyed even when the first of them fails; the first failure is reported. */
tarn_status tarni_cuda_graph_destroy(tarni_port *port, tarni_graph graph, tarni_graph_exec exec) {
  if (graph == NULL && exec == NULL) {
    return TARN_OK;
  }
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_GRAPH_DESTROY, 0, &call));
  tarni_cu_result code = TARNI_CU_SUCCESS;
  if (exec != NULL) {
    code = call.driver->exec_destroy(exec);
  }
  if (graph != NULL) {
    const tarni_cu_result graph_code = call.driver->graph_destroy(graph);
    if (code == TARNI_CU_SUCCESS && graph_code != TARNI_CU_SUCCESS) {
      call.operation = "cuGraphDestroy";
      code = graph_code;
    }
  }
  return tarni_cuda_call_end(&call, code);
}
