/* SPDX-License-Identifier: MIT
 *
 * Capture and graphs of the cuda port. Owns nothing: the driver keeps it all. */
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
