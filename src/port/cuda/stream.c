/* SPDX-License-Identifier: MIT
 *
 * Streams, events and words in memory of the cuda port. Owns nothing: the driver keeps it all. */
#include "base/error.h"
#include "port/cuda/internal.h"

tarn_status tarni_cuda_stream_create(tarni_port *port, tarn_stream *stream) {
  *stream = NULL;
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_STREAM_CREATE, 0, &call));
  tarni_cu_stream created = NULL;
  const tarni_cu_result code = call.driver->stream_create(&created, TARNI_CU_STREAM_NON_BLOCKING);
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *stream = created;
  return TARN_OK;
}

tarn_status tarni_cuda_stream_destroy(tarni_port *port, tarn_stream stream) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_STREAM_DESTROY, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->stream_destroy(stream));
}

/* Without cuStreamGetId (before 12.0) a handle stands for its stream, so a handle that the driver
 * uses again is taken for the old stream. The default streams get numbers that are no handle: both
 * names of the legacy one the same, and the per-thread one a number of its own for each thread. */
static uint64_t id_of_handle(tarn_stream stream) {
  static _Thread_local char of_thread;
  if (stream == NULL || stream == TARNI_STREAM_LEGACY) {
    return (uint64_t)(uintptr_t)TARNI_STREAM_LEGACY;
  }
  const void *unique = stream == TARNI_STREAM_PER_THREAD ? &of_thread : stream;
  return (uint64_t)(uintptr_t)unique;
}

/* cuStreamGetId fails on a capturing stream and invalidates the capture, in every mode. */
static tarn_status ask_id(tarni_port *port, tarn_stream stream, uint64_t *id) {
  TARN_TRY(tarni_cuda_refuse_capturing(port, TARN_CALL_STREAM_ID, stream,
                                       "Ask for the stream's id before its capture begins."));
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_STREAM_ID, 0, &call));
  tarni_cu_flags number = 0;
  TARN_TRY(tarni_cuda_call_end(&call, call.driver->stream_id(stream, &number)));
  *id = number;
  return TARN_OK;
}

tarn_status tarni_cuda_stream_id(tarni_port *port, tarn_stream stream, uint64_t *id) {
  *id = 0;
  if (tarni_cuda_of(port)->driver->stream_id != NULL) {
    return ask_id(port, stream, id);
  }
  *id = id_of_handle(stream);
  return TARN_OK;
}

tarn_status tarni_cuda_stream_query(tarni_port *port, tarn_stream stream) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_STREAM_QUERY, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->stream_query(stream));
}

tarn_status tarni_cuda_stream_sync(tarni_port *port, tarn_stream stream) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_STREAM_SYNC, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->stream_sync(stream));
}

tarn_status tarni_cuda_event_create(tarni_port *port, tarni_event *event) {
  *event = NULL;
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_EVENT_CREATE, 0, &call));
  tarni_cu_event created = NULL;
  const tarni_cu_result code = call.driver->event_create(&created, TARNI_CU_EVENT_NO_TIMING);
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *event = created;
  return TARN_OK;
}

tarn_status tarni_cuda_event_destroy(tarni_port *port, tarni_event event) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_EVENT_DESTROY, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->event_destroy(event));
}

tarn_status tarni_cuda_event_record(tarni_port *port, tarni_event event, tarn_stream stream) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_EVENT_RECORD, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->event_record(event, stream));
}

tarn_status tarni_cuda_event_query(tarni_port *port, tarni_event event) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_EVENT_QUERY, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->event_query(event));
}

tarn_status tarni_cuda_event_sync(tarni_port *port, tarni_event event) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_EVENT_SYNC, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->event_sync(event));
}

tarn_status tarni_cuda_event_wait(tarni_port *port, tarn_stream stream, tarni_event event) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_EVENT_WAIT, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->event_wait(stream, event, 0));
}

tarn_status tarni_cuda_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                   uint64_t value) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_VALUE_WRITE, 0, &call));
  const tarni_cu_result code =
      call.driver->value_write(stream, (uintptr_t)word, value, TARNI_CU_WRITE_DEFAULT);
  return tarni_cuda_call_end(&call, code);
}

tarn_status tarni_cuda_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                  uint64_t value) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_VALUE_WAIT, 0, &call));
  const tarni_cu_result code =
      call.driver->value_wait(stream, (uintptr_t)word, value, TARNI_CU_WAIT_AT_LEAST);
  return tarni_cuda_call_end(&call, code);
}
