/* SPDX-License-Identifier: MIT
 *
 * Streams of the simulated GPU as the program sees them. Handles are reused as soon as possible,
 * ids never; the structs live as long as the device, so a handle that is gone is found, not
 * followed. Under the lock of the simulated GPU. */
#include <stdlib.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

/* ---- Making ---- */

/* Every stream can have work at once, those that are gone included. */
static bool pending_room(void) {
  sim_world *world = &tarni_sim_world;
  if (world->n_streams < world->pending_capacity) {
    return true;
  }
  const uint32_t capacity = world->n_streams * 2 + 64;
  sim_stream **pending = tarni_sim_store_resize(world->pending, capacity, sizeof(sim_stream *));
  if (pending == NULL) {
    return false;
  }
  world->pending = pending;
  world->pending_capacity = capacity;
  return true;
}

/* A struct without a stream: one whose stream is gone and whose work is done, or a new one. */
static sim_stream *stream_dead(sim_device *device) {
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    if (stream->is_live != SIM_STREAM_LIVE && stream->head == NULL) {
      return stream;
    }
  }
  if (!pending_room()) {
    return NULL;
  }
  sim_stream *stream = tarni_sim_store_zeroed(1, sizeof(*stream));
  if (stream != NULL) {
    stream->device = device;
    stream->tail = &stream->head;
    stream->pending_index = UINT32_MAX;
    stream->next = device->streams;
    device->streams = stream;
    tarni_sim_world.n_streams++;
  }
  return stream;
}

static sim_stream *stream_make(sim_device *device, uint64_t thread) {
  sim_stream *stream = stream_dead(device);
  uint32_t slot;
  uint64_t epoch;
  /* What the old stream did is complete: whoever waits for the whole device has seen it. */
  if (stream == NULL || !tarni_sim_clock_join(&device->retired, &stream->clock) ||
      !tarni_sim_slot_take(&slot, &epoch)) {
    return NULL;
  }
  sim_stream *const next = stream->next;
  tarni_sim_clock_free(&stream->clock);
  free(stream->capture_tail);
  *stream = (sim_stream){.is_live = SIM_STREAM_LIVE,
                         .slot = slot,
                         .id = ++tarni_sim_world.last_stream_id,
                         .device = device,
                         .epoch = epoch,
                         .joined_by_legacy = epoch,
                         .pending_index = UINT32_MAX,
                         .thread = thread,
                         .next = next};
  stream->tail = &stream->head;
  return stream;
}

bool tarni_sim_streams_open(sim_device *device) {
  device->legacy = stream_make(device, 0);
  return device->legacy != NULL;
}

tarn_status tarni_sim_stream_create(tarni_port *port, tarn_stream *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_CREATE, 0));
  *out = stream_make(device, 0);
  return tarni_sim_end(device,
                       *out != NULL ? TARN_OK : tarni_sim_no_host_memory(device, "cuStreamCreate"));
}

/* ---- Finding ---- */

static sim_stream *stream_of_thread(sim_device *device) {
  const uint64_t thread = tarni_sim_thread();
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    if (stream->thread == thread) {
      return stream;
    }
  }
  return stream_make(device, thread);
}

tarn_status tarni_sim_stream_get(sim_device *device, tarn_stream handle, const char *entry,
                                 sim_stream **out) {
  sim_stream *stream = handle;
  if (handle == NULL || handle == TARNI_STREAM_LEGACY) {
    stream = device->legacy;
  } else if (handle == TARNI_STREAM_PER_THREAD) {
    stream = stream_of_thread(device);
    if (stream == NULL) {
      return tarni_sim_no_host_memory(device, entry);
    }
  } else if (stream->is_live != SIM_STREAM_LIVE || stream->device != device) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_HANDLE, entry,
                            "a stream was used that does not exist or is another device's",
                            (uintptr_t)handle);
  }
  *out = stream;
  return TARN_OK;
}

/* Whatever is done on the legacy stream follows the threads' default streams: it must not, while
 * one of them is being captured. */
static tarn_status legacy_act(sim_device *device, const char *entry) {
  for (sim_stream *other = device->streams; other != NULL; other = other->next) {
    if (other->thread != 0 && other->capture != NULL) {
      return tarni_sim_capture_refuse(other, SIM_CUDA_CAPTURE_IMPLICIT, entry);
    }
  }
  return TARN_OK;
}

bool tarni_sim_legacy_is_kept(const sim_device *device) {
  for (const sim_stream *other = device->streams; other != NULL; other = other->next) {
    if (other->thread != 0 && other->capture != NULL) {
      return true;
    }
  }
  return false;
}

tarn_status tarni_sim_stream_act(sim_device *device, tarn_stream handle, const char *entry,
                                 sim_stream **stream) {
  TARN_TRY(tarni_sim_stream_get(device, handle, entry, stream));
  return *stream == device->legacy ? legacy_act(device, entry) : TARN_OK;
}

tarn_status tarni_sim_stream_id(tarni_port *port, tarn_stream handle, uint64_t *id) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_ID, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuStreamGetId", &stream);
  if (status == TARN_OK && stream->capture != NULL) { /* refused before the driver is asked */
    status = tarni_sim_fail_code(device, SIM_CUDA_CAPTURE_UNSUPPORTED, "cuStreamGetId", 0);
  }
  *id = status == TARN_OK ? stream->id : 0;
  return tarni_sim_end(device, status);
}

/* ---- Ending ---- */

/* Pending work goes on; the struct is used again only when its queue is empty. */
static void stream_kill(sim_stream *stream) {
  stream->is_live = 0;
  tarni_sim_slot_give(stream->slot, stream->epoch);
}

tarn_status tarni_sim_stream_destroy(tarni_port *port, tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_DESTROY, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuStreamDestroy", &stream);
  if (status == TARN_OK && (stream == device->legacy || stream->thread != 0)) {
    status = tarni_sim_misuse(device, SIM_CUDA_INVALID_HANDLE, "cuStreamDestroy",
                              "a default stream was destroyed", (uintptr_t)handle);
  }
  if (status == TARN_OK) {
    tarni_sim_capture_leave(stream);
    stream_kill(stream);
  }
  return tarni_sim_end(device, status);
}

void tarni_sim_streams_close(sim_device *device) {
  while (device->streams != NULL) {
    sim_stream *stream = device->streams;
    if (stream->is_live == SIM_STREAM_LIVE) {
      if (stream != device->legacy && stream->thread == 0 && device->sticky_code == 0) {
        tarn_sim_finding finding = {.kind = TARN_SIM_LEAK, .first.stream_id = stream->id};
        tarni_sim_oracle_find(device, &finding, "stream %llu was never destroyed",
                              (unsigned long long)stream->id);
      }
      stream_kill(stream);
    }
    tarn_assert(stream->head == NULL && "a device is closed once its work is done");
    device->streams = stream->next;
    tarni_sim_clock_free(&stream->clock);
    free(stream->capture_tail);
    free(stream);
    tarni_sim_world.n_streams--;
  }
  tarni_sim_clock_free(&device->retired);
}

/* ---- Asking and waiting ---- */

/* Whether the host may ask about this stream now. */
static tarn_status stream_for_host(sim_device *device, tarn_stream handle, const char *entry,
                                   sim_stream **stream) {
  TARN_TRY(tarni_sim_stream_act(device, handle, entry, stream));
  if ((*stream)->capture != NULL) {
    return tarni_sim_capture_refuse(*stream, SIM_CUDA_CAPTURE_UNSUPPORTED, entry);
  }
  return tarni_sim_capture_allows(device, entry);
}

/* Who asks about the legacy stream asks about the threads' default streams, too. */
static bool stream_stands_for(const sim_stream *stream, const sim_stream *other) {
  return stream == other || (stream == stream->device->legacy && other->thread != 0);
}

static bool stream_is_done(sim_stream *stream) {
  bool is_done = true;
  for (sim_stream *other = stream->device->streams; other != NULL; other = other->next) {
    is_done = is_done && (other->head == NULL || !stream_stands_for(stream, other));
  }
  for (sim_stream *other = stream->device->streams; is_done && other != NULL; other = other->next) {
    if (stream_stands_for(stream, other)) {
      tarni_sim_observe_stream(other);
    }
  }
  return is_done;
}

tarn_status tarni_sim_stream_query(tarni_port *port, tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_QUERY, 0));
  sim_stream *stream;
  tarn_status status = stream_for_host(device, handle, "cuStreamQuery", &stream);
  if (status == TARN_OK && !stream_is_done(stream)) {
    (void)tarni_sim_step(device); /* so that whoever polls gets there */
    status = TARN_NOT_READY;
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_stream_sync(tarni_port *port, tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_SYNC, 0));
  sim_stream *stream;
  tarn_status status = stream_for_host(device, handle, "cuStreamSynchronize", &stream);
  for (sim_stream *other = device->streams; status == TARN_OK && other != NULL;
       other = other->next) {
    if (stream_stands_for(stream, other)) {
      status = tarni_sim_finish_stream(device, other, "cuStreamSynchronize");
    }
  }
  if (status == TARN_OK) {
    tarni_sim_pools_settle(device);
  }
  return tarni_sim_end(device, status);
}
