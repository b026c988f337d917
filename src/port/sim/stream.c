/* SPDX-License-Identifier: MIT
 *
 * Streams and events of the simulated GPU: queues of operations, and the vector clocks that say
 * what is ordered before what. Order is settled when an operation is submitted; when it runs is
 * schedule.c's business. Handles are reused as soon as possible, ids never. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

/* ---- Slots ---- */

static uint32_t slot_reuse(uint64_t *epoch) {
  sim_world *world = &tarni_sim_world;
  for (uint32_t i = 0; i < world->n_free; i++) {
    const uint32_t slot = world->free_slots[i];
    /* Only once the host has seen the old user's last operation complete: else the new user would
     * seem to be ordered after it. */
    if (tarni_sim_clock_at(&world->host, slot) >= world->free_epochs[i]) {
      *epoch = world->free_epochs[i];
      world->n_free--;
      world->free_slots[i] = world->free_slots[world->n_free];
      world->free_epochs[i] = world->free_epochs[world->n_free];
      return slot;
    }
  }
  return UINT32_MAX;
}

uint32_t tarni_sim_slot_take(uint64_t *epoch) {
  sim_world *world = &tarni_sim_world;
  const uint32_t reused = slot_reuse(epoch);
  if (reused != UINT32_MAX) {
    return reused;
  }
  /* Room to give every slot back, so that giving never fails. */
  if (world->n_slots == world->free_capacity) {
    const uint32_t capacity = world->free_capacity * 2 + 64;
    uint32_t *slots = realloc(world->free_slots, capacity * sizeof(*slots));
    if (slots != NULL) {
      world->free_slots = slots;
    }
    uint64_t *epochs = realloc(world->free_epochs, capacity * sizeof(*epochs));
    if (epochs != NULL) {
      world->free_epochs = epochs;
    }
    if (slots == NULL || epochs == NULL) {
      return UINT32_MAX;
    }
    world->free_capacity = capacity;
  }
  *epoch = 0;
  return world->n_slots++;
}

void tarni_sim_slot_give(uint32_t slot, uint64_t epoch) {
  sim_world *world = &tarni_sim_world;
  tarn_assert(world->n_free < world->free_capacity);
  world->free_slots[world->n_free] = slot;
  world->free_epochs[world->n_free] = epoch;
  world->n_free++;
}

/* ---- Operations and records ---- */

sim_operation *tarni_sim_operation_take(sim_operation_kind kind) {
  sim_operation *operation = tarni_sim_world.free_operations;
  if (operation != NULL) {
    tarni_sim_world.free_operations = operation->next;
  } else {
    operation = malloc(sizeof(*operation));
  }
  if (operation != NULL) {
    *operation = (sim_operation){.work.kind = kind};
  }
  return operation;
}

void tarni_sim_operation_give(sim_operation *operation) {
  if (operation == NULL) {
    return;
  }
  tarni_sim_work_free(&operation->work);
  free(operation->n_open);
  operation->next = tarni_sim_world.free_operations;
  tarni_sim_world.free_operations = operation;
}

sim_record *tarni_sim_record_take(void) {
  sim_record *record = tarni_sim_world.free_records;
  if (record != NULL) {
    tarni_sim_world.free_records = record->next_free;
    record->clock.n = 0;
    *record = (sim_record){.clock = record->clock};
  } else {
    record = calloc(1, sizeof(*record));
  }
  if (record != NULL) {
    record->references = 1;
  }
  return record;
}

void tarni_sim_record_drop(sim_record *record) {
  if (record != NULL && --record->references == 0) {
    record->next_free = tarni_sim_world.free_records;
    tarni_sim_world.free_records = record;
  }
}

/* ---- Order ---- */

void tarni_sim_observe(sim_device *device, const sim_clock *clock, uint64_t end_ns) {
  /* Without memory the host knows less than it has seen: findings may appear, none is lost. */
  (void)tarni_sim_clock_join(&tarni_sim_world.host, clock);
  tarni_sim_world.host_version++;
  device->now_ns = tarni_max(device->now_ns, end_ns);
}

void tarni_sim_observe_stream(sim_stream *stream) {
  tarni_sim_observe(stream->device, &stream->clock, stream->tail_ns);
}

bool tarni_sim_stream_advance(sim_stream *stream) {
  if (!tarni_sim_clock_raise(&stream->clock, stream->slot, stream->epoch + 1)) {
    return false;
  }
  stream->epoch++;
  stream->device->n_operations++;
  return true;
}

static void pending_add(sim_stream *stream) {
  sim_world *world = &tarni_sim_world;
  if (stream->pending_index != UINT32_MAX) {
    return;
  }
  tarn_assert(world->n_pending < world->pending_capacity);
  stream->pending_index = world->n_pending;
  world->pending[world->n_pending++] = stream;
}

void tarni_sim_stream_push(sim_stream *stream, sim_operation *operation) {
  operation->next = NULL;
  *stream->tail = operation;
  stream->tail = &operation->next;
  stream->device->n_pending_operations++;
  pending_add(stream);
}

tarn_status tarni_sim_record_on(sim_stream *stream, sim_record **out) {
  sim_operation *operation = tarni_sim_operation_take(SIM_OP_RECORD);
  sim_record *record = tarni_sim_record_take();
  if (operation == NULL || record == NULL || !tarni_sim_stream_advance(stream) ||
      !tarni_sim_clock_join(&record->clock, &stream->clock)) {
    tarni_sim_operation_give(operation);
    tarni_sim_record_drop(record);
    return tarni_sim_no_host_memory(stream->device, "cuEventRecord");
  }
  record->end_ns = tarni_max(stream->tail_ns, stream->device->now_ns);
  stream->tail_ns = record->end_ns;
  record->references++;
  operation->record = record;
  tarni_sim_stream_push(stream, operation);
  *out = record;
  return TARN_OK;
}

tarn_status tarni_sim_wait_on(sim_stream *stream, sim_record *record) {
  sim_operation *operation = record->is_done ? NULL : tarni_sim_operation_take(SIM_OP_WAIT);
  if ((operation == NULL && !record->is_done) ||
      !tarni_sim_clock_join(&stream->clock, &record->clock)) {
    tarni_sim_operation_give(operation);
    return tarni_sim_no_host_memory(stream->device, "cuStreamWaitEvent");
  }
  stream->tail_ns = tarni_max(stream->tail_ns, record->end_ns);
  if (operation != NULL) {
    operation->after = record;
    record->references++;
    tarni_sim_stream_push(stream, operation);
  }
  return TARN_OK;
}

/* One stream waits for all that another has been given so far. */
static tarn_status stream_follow(sim_stream *stream, sim_stream *other) {
  sim_record *record;
  TARN_TRY(tarni_sim_record_on(other, &record));
  const tarn_status status = tarni_sim_wait_on(stream, record);
  tarni_sim_record_drop(record);
  return status;
}

/* The legacy default stream and the threads' default streams wait for each other's earlier work. */
static tarn_status stream_order_defaults(sim_stream *stream) {
  sim_stream *legacy = stream->device->legacy;
  if (stream->thread != NULL && legacy->epoch > stream->legacy_joined) {
    TARN_TRY(stream_follow(stream, legacy));
    stream->legacy_joined = legacy->epoch;
  }
  for (sim_stream *other = stream->device->streams; stream == legacy && other != NULL;
       other = other->next) {
    if (other->is_live == SIM_STREAM_LIVE && other->thread != NULL && other->capture == NULL &&
        other->epoch > other->joined_by_legacy) {
      TARN_TRY(stream_follow(stream, other));
      other->joined_by_legacy = other->epoch;
    }
  }
  return TARN_OK;
}

tarn_status tarni_sim_stream_prepare(sim_stream *stream) {
  if (stream->host_version != tarni_sim_world.host_version) {
    if (!tarni_sim_clock_join(&stream->clock, &tarni_sim_world.host)) {
      return tarni_sim_no_host_memory(stream->device, "cuLaunchKernel");
    }
    stream->host_version = tarni_sim_world.host_version;
  }
  return stream_order_defaults(stream);
}

/* ---- Streams ---- */

static bool pending_room(void) {
  sim_world *world = &tarni_sim_world;
  if (world->n_slots < world->pending_capacity) {
    return true;
  }
  const uint32_t capacity = world->n_slots * 2 + 64;
  sim_stream **pending = realloc(world->pending, capacity * sizeof(sim_stream *));
  if (pending == NULL) {
    return false;
  }
  world->pending = pending;
  world->pending_capacity = capacity;
  return true;
}

static sim_stream *stream_dead(sim_device *device) {
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    if (stream->is_live != SIM_STREAM_LIVE && stream->head == NULL) {
      return stream;
    }
  }
  sim_stream *stream = calloc(1, sizeof(*stream));
  if (stream != NULL) {
    stream->next = device->streams;
    device->streams = stream;
  }
  return stream;
}

static sim_stream *stream_make(sim_device *device, const void *thread) {
  sim_stream *stream = stream_dead(device);
  if (stream == NULL || !pending_room()) {
    return NULL;
  }
  uint64_t epoch;
  const uint32_t slot = tarni_sim_slot_take(&epoch);
  if (slot == UINT32_MAX) {
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
                         .legacy_joined = 0,
                         .joined_by_legacy = epoch,
                         .pending_index = UINT32_MAX,
                         .thread = thread,
                         .next = next};
  stream->tail = &stream->head;
  return stream;
}

bool tarni_sim_streams_open(sim_device *device) {
  device->legacy = stream_make(device, NULL);
  return device->legacy != NULL;
}

static sim_stream *stream_of_thread(sim_device *device) {
  const void *thread = tarni_sim_thread();
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    if (stream->is_live == SIM_STREAM_LIVE && stream->thread == thread) {
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
  } else if (stream->is_live != SIM_STREAM_LIVE) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_HANDLE, entry,
                            "a stream that does not exist was used", (uintptr_t)handle);
  }
  *out = stream;
  return TARN_OK;
}

tarn_status tarni_sim_stream_create(tarni_port *port, tarn_stream *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_CREATE, 0));
  *out = stream_make(device, NULL);
  return tarni_sim_end(device,
                       *out != NULL ? TARN_OK : tarni_sim_no_host_memory(device, "cuStreamCreate"));
}

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
  if (status == TARN_OK && (stream == device->legacy || stream->thread != NULL)) {
    status = tarni_sim_misuse(device, SIM_CUDA_INVALID_HANDLE, "cuStreamDestroy",
                              "a default stream was destroyed", (uintptr_t)handle);
  }
  if (status == TARN_OK && stream->capture != NULL) {
    status = tarni_sim_capture_refuse(stream, SIM_CUDA_CAPTURE_UNSUPPORTED, "cuStreamDestroy");
  }
  if (status == TARN_OK) {
    stream_kill(stream);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_stream_id(tarni_port *port, tarn_stream handle, uint64_t *id) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_ID, 0));
  sim_stream *stream;
  const tarn_status status = tarni_sim_stream_get(device, handle, "cuStreamGetId", &stream);
  *id = status == TARN_OK ? stream->id : 0;
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_stream_query(tarni_port *port, tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_QUERY, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuStreamQuery", &stream);
  if (status == TARN_OK && stream->capture != NULL) {
    status = tarni_sim_capture_refuse(stream, SIM_CUDA_CAPTURE_UNSUPPORTED, "cuStreamQuery");
  }
  if (status == TARN_OK) {
    status = tarni_sim_stream_prepare(stream);
  }
  if (status == TARN_OK && stream->head != NULL) {
    (void)tarni_sim_step(device); /* so that whoever polls gets there */
    status = TARN_NOT_READY;
  }
  if (status == TARN_OK) {
    tarni_sim_observe_stream(stream);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_stream_sync(tarni_port *port, tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_STREAM_SYNC, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuStreamSynchronize", &stream);
  if (status == TARN_OK && stream->capture != NULL) {
    status = tarni_sim_capture_refuse(stream, SIM_CUDA_CAPTURE_UNSUPPORTED, "cuStreamSynchronize");
  }
  if (status == TARN_OK) {
    status = tarni_sim_stream_prepare(stream);
  }
  if (status == TARN_OK) {
    tarni_sim_finish_stream(device, stream);
    tarni_sim_observe_stream(stream);
    tarni_sim_pools_settle(device);
    if (device->sticky_code != 0) {
      status = tarni_sim_fail_code(device, device->sticky_code, "cuStreamSynchronize", 0);
    }
  }
  return tarni_sim_end(device, status);
}

void tarni_sim_streams_close(sim_device *device) {
  while (device->streams != NULL) {
    sim_stream *stream = device->streams;
    if (stream->is_live == SIM_STREAM_LIVE) {
      if (stream != device->legacy && stream->thread == NULL) {
        tarn_sim_finding finding = {.kind = TARN_SIM_LEAK};
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
  }
}
