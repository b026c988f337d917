/* SPDX-License-Identifier: MIT
 *
 * Events of the simulated GPU. An event points at its last record; waits and pending operations
 * hold records of their own, so an event may be recorded again or destroyed at any time. */
#include <stdlib.h>

#include "port/sim/sim.h"

tarn_status tarni_sim_event_create(tarni_port *port, tarni_event *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_CREATE, 0));
  sim_event *event = device->free_events;
  if (event != NULL) {
    device->free_events = event->next;
  } else {
    event = malloc(sizeof(*event));
  }
  if (event == NULL) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuEventCreate"));
  }
  *event = (sim_event){.is_live = SIM_EVENT_LIVE, .device = device};
  device->n_events++;
  *out = event;
  return tarni_sim_end(device, TARN_OK);
}

static tarn_status event_get(sim_device *device, tarni_event handle, const char *entry,
                             sim_event **out) {
  sim_event *event = handle;
  if (event == NULL || event->is_live != SIM_EVENT_LIVE) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_HANDLE, entry,
                            "an event that does not exist was used", (uintptr_t)handle);
  }
  *out = event;
  return TARN_OK;
}

tarn_status tarni_sim_event_destroy(tarni_port *port, tarni_event handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_DESTROY, 0));
  sim_event *event = NULL;
  const tarn_status status = event_get(device, handle, "cuEventDestroy", &event);
  if (status == TARN_OK) {
    tarni_sim_record_drop(event->record);
    free(event->nodes);
    *event = (sim_event){.next = event->device->free_events, .device = event->device};
    event->device->free_events = event;
    event->device->n_events--;
  }
  return tarni_sim_end(device, status);
}

static tarn_status event_record_now(sim_stream *stream, sim_event *event) {
  sim_record *record;
  TARN_TRY(tarni_sim_stream_prepare(stream));
  TARN_TRY(tarni_sim_record_on(stream, &record));
  tarni_sim_record_drop(event->record);
  event->record = record;
  event->capture_id = 0;
  return TARN_OK;
}

tarn_status tarni_sim_event_record(tarni_port *port, tarni_event handle, tarn_stream to) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_RECORD, 0));
  sim_event *event = NULL;
  sim_stream *stream = NULL;
  tarn_status status = event_get(device, handle, "cuEventRecord", &event);
  if (status == TARN_OK) {
    status = tarni_sim_stream_get(device, to, "cuEventRecord", &stream);
  }
  if (status == TARN_OK) {
    status = stream->capture != NULL ? tarni_sim_capture_record(stream, event)
                                     : event_record_now(stream, event);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_event_wait(tarni_port *port, tarn_stream by, tarni_event handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_WAIT, 0));
  sim_event *event = NULL;
  sim_stream *stream = NULL;
  tarn_status status = event_get(device, handle, "cuStreamWaitEvent", &event);
  if (status == TARN_OK) {
    status = tarni_sim_stream_get(device, by, "cuStreamWaitEvent", &stream);
  }
  if (status == TARN_OK && (stream->capture != NULL || event->capture_id != 0)) {
    status = tarni_sim_capture_wait(stream, event);
  } else if (status == TARN_OK && event->record != NULL) {
    status = tarni_sim_stream_prepare(stream);
    if (status == TARN_OK) {
      status = tarni_sim_wait_on(stream, event->record);
    }
  }
  return tarni_sim_end(device, status);
}

/* What query and sync have in common: an event that the host may ask about now. */
static tarn_status event_for_host(sim_device *device, tarni_event handle, const char *entry,
                                  sim_event **event) {
  TARN_TRY(event_get(device, handle, entry, event));
  TARN_TRY(tarni_sim_capture_allows(device, entry));
  if ((*event)->capture_id != 0) {
    return tarni_sim_fail_code(device, SIM_CUDA_CAPTURED_EVENT, entry, 0);
  }
  return TARN_OK;
}

tarn_status tarni_sim_event_query(tarni_port *port, tarni_event handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_QUERY, 0));
  sim_event *event = NULL;
  tarn_status status = event_for_host(device, handle, "cuEventQuery", &event);
  if (status == TARN_OK && event->record != NULL) {
    if (event->record->is_done) {
      tarni_sim_observe(device, &event->record->clock, event->record->end_ns);
    } else {
      (void)tarni_sim_step(device); /* so that whoever polls gets there */
      status = TARN_NOT_READY;
    }
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_event_sync(tarni_port *port, tarni_event handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_SYNC, 0));
  sim_event *event = NULL;
  tarn_status status = event_for_host(device, handle, "cuEventSynchronize", &event);
  if (status == TARN_OK && event->record != NULL) {
    sim_record *record = event->record;
    record->references++; /* another thread may record the event anew meanwhile */
    tarni_sim_finish_record(device, record);
    tarni_sim_observe(device, &record->clock, record->end_ns);
    tarni_sim_record_drop(record);
    if (device->sticky_code != 0) {
      status = tarni_sim_fail_code(device, device->sticky_code, "cuEventSynchronize", 0);
    }
  }
  return tarni_sim_end(device, status);
}
