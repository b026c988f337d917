/* SPDX-License-Identifier: MIT
 *
 * Events of the simulated GPU. An event points at its last record; waits and pending operations
 * hold records of their own, so an event may be recorded again or destroyed at any time. The
 * structs live as long as the device, so a handle that is gone is found, not followed. */
#include <stdlib.h>

#include "port/sim/sim.h"

static sim_event *event_take(sim_device *device) {
  sim_event *event = device->free_events;
  if (event != NULL && !tarni_sim_store_strikes()) {
    device->free_events = event->next_free;
    return event;
  }
  event = tarni_sim_store_zeroed(1, sizeof(*event));
  if (event != NULL) {
    event->next = device->events;
    device->events = event;
  }
  return event;
}

tarn_status tarni_sim_event_create(tarni_port *port, tarni_event *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_CREATE, 0));
  sim_event *event = event_take(device);
  if (event == NULL) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuEventCreate"));
  }
  *event = (sim_event){.is_live = SIM_EVENT_LIVE, .device = device, .next = event->next};
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

static void event_forget(sim_event *event) {
  tarni_sim_record_drop(event->record);
  event->record = NULL;
  free(event->nodes);
  event->nodes = NULL;
  event->n_nodes = 0;
  event->capture_id = 0;
}

tarn_status tarni_sim_event_destroy(tarni_port *port, tarni_event handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_DESTROY, 0));
  sim_event *event = NULL;
  const tarn_status status = event_get(device, handle, "cuEventDestroy", &event);
  if (status == TARN_OK) {
    event_forget(event);
    event->is_live = 0;
    event->next_free = event->device->free_events;
    event->device->free_events = event;
  }
  return tarni_sim_end(device, status);
}

void tarni_sim_events_close(sim_device *device) {
  uint64_t n_live = 0;
  while (device->events != NULL) {
    sim_event *event = device->events;
    device->events = event->next;
    n_live += event->is_live == SIM_EVENT_LIVE;
    event_forget(event);
    free(event);
  }
  device->free_events = NULL;
  if (n_live != 0 && device->sticky_code == 0) {
    tarn_sim_finding finding = {.kind = TARN_SIM_LEAK};
    tarni_sim_oracle_find(device, &finding, "%llu events were never destroyed",
                          (unsigned long long)n_live);
  }
}

static tarn_status event_record_now(sim_stream *stream, sim_event *event) {
  TARN_TRY(tarni_sim_stream_prepare(stream));
  sim_operation *mark = tarni_sim_mark_make();
  if (mark == NULL) {
    return tarni_sim_no_host_memory(stream->device, "cuEventRecord");
  }
  tarni_sim_stream_advance(stream);
  event_forget(event);
  event->record = tarni_sim_mark_push(stream, mark);
  return TARN_OK;
}

tarn_status tarni_sim_event_record(tarni_port *port, tarni_event handle, tarn_stream to) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_RECORD, 0));
  sim_event *event = NULL;
  sim_stream *stream = NULL;
  tarn_status status = event_get(device, handle, "cuEventRecord", &event);
  if (status == TARN_OK) {
    status = tarni_sim_stream_act(device, to, "cuEventRecord", &stream);
  }
  if (status == TARN_OK && event->device != device) {
    status =
        tarni_sim_misuse(device, SIM_CUDA_INVALID_HANDLE, "cuEventRecord",
                         "an event was recorded on a stream of another device", (uintptr_t)handle);
  }
  if (status == TARN_OK) {
    status = stream->capture != NULL ? tarni_sim_capture_record(stream, event)
                                     : event_record_now(stream, event);
  }
  return tarni_sim_end(device, status);
}

static tarn_status event_wait_now(sim_stream *stream, const sim_event *event) {
  TARN_TRY(tarni_sim_stream_prepare(stream));
  if (event->record != NULL && !tarni_sim_wait_on(stream, event->record)) {
    return tarni_sim_no_host_memory(stream->device, "cuStreamWaitEvent");
  }
  tarni_sim_stream_advance(stream);
  return TARN_OK;
}

tarn_status tarni_sim_event_wait(tarni_port *port, tarn_stream by, tarni_event handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_WAIT, 0));
  sim_event *event = NULL;
  sim_stream *stream = NULL;
  tarn_status status = event_get(device, handle, "cuStreamWaitEvent", &event);
  if (status == TARN_OK) {
    status = tarni_sim_stream_act(device, by, "cuStreamWaitEvent", &stream);
  }
  if (status == TARN_OK) {
    status = stream->capture != NULL || event->capture_id != 0
                 ? tarni_sim_capture_wait(stream, event)
                 : event_wait_now(stream, event);
  }
  return tarni_sim_end(device, status);
}

/* What query and sync have in common: an event that the host may ask about now. */
static tarn_status event_for_host(sim_device *device, tarni_event handle, const char *entry,
                                  sim_event **event) {
  TARN_TRY(event_get(device, handle, entry, event));
  if ((*event)->capture_id != 0) {
    return tarni_sim_capture_ask(device, *event, entry);
  }
  return tarni_sim_capture_allows(device, entry);
}

tarn_status tarni_sim_event_query(tarni_port *port, tarni_event handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EVENT_QUERY, 0));
  sim_event *event = NULL;
  tarn_status status = event_for_host(device, handle, "cuEventQuery", &event);
  if (status == TARN_OK && event->record != NULL) {
    if (event->record->is_done) {
      tarni_sim_observe(device, event->record);
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
    tarni_sim_observe(device, record);
    tarni_sim_record_drop(record);
    status = tarni_sim_broken(device, "cuEventSynchronize");
    tarni_sim_pools_settle(device);
  }
  return tarni_sim_end(device, status);
}
