/* SPDX-License-Identifier: MIT
 *
 * What streams are made of: slots of the vector clocks, operations in a queue, records that mark a
 * place in it, and the order between all of them. Order is settled when an operation is submitted;
 * when it runs is schedule.c's business. Under the lock of the simulated GPU.
 *
 * Invariants: the host's clock and the list of streams with work have room for every slot and every
 * stream, so that seeing something complete and pushing an operation cannot fail. */
#include <stdlib.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

/* ---- Slots ---- */

static bool slot_reuse(uint32_t *slot, uint64_t *epoch) {
  sim_world *world = &tarni_sim_world;
  for (uint32_t i = 0; i < world->n_free; i++) {
    /* Only once the host has seen the old user's last operation complete: else the new user would
     * seem to be ordered after it. */
    if (tarni_sim_clock_at(&world->host, world->free_slots[i]) >= world->free_epochs[i]) {
      *slot = world->free_slots[i];
      *epoch = world->free_epochs[i];
      world->n_free--;
      world->free_slots[i] = world->free_slots[world->n_free];
      world->free_epochs[i] = world->free_epochs[world->n_free];
      return true;
    }
  }
  return false;
}

/* Room to give every slot back and to see every slot, so that neither ever fails. */
static bool slot_room(void) {
  sim_world *world = &tarni_sim_world;
  if (!tarni_sim_clock_room(&world->host, world->n_slots + 1) ||
      !tarni_sim_clock_room(&world->common, world->n_slots + 1)) {
    return false;
  }
  if (world->n_slots < world->free_capacity) {
    return true;
  }
  const uint32_t capacity = world->free_capacity * 2 + 64;
  uint32_t *slots = tarni_sim_store_resize(world->free_slots, capacity, sizeof(*slots));
  if (slots == NULL) {
    return false;
  }
  world->free_slots = slots;
  uint64_t *epochs = tarni_sim_store_resize(world->free_epochs, capacity, sizeof(*epochs));
  if (epochs == NULL) {
    return false;
  }
  world->free_epochs = epochs;
  world->free_capacity = capacity;
  return true;
}

bool tarni_sim_slot_take(uint32_t *slot, uint64_t *epoch) {
  if (slot_reuse(slot, epoch)) {
    return true;
  }
  if (!slot_room()) {
    return false;
  }
  *epoch = 0;
  *slot = tarni_sim_world.n_slots++;
  return true;
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
  if (tarni_sim_store_strikes()) {
    return NULL;
  }
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

/* Gives back all that the operation holds. */
void tarni_sim_operation_give(sim_operation *operation) {
  if (operation == NULL) {
    return;
  }
  tarni_sim_work_free(&operation->work);
  tarni_sim_record_drop(operation->record);
  tarni_sim_record_drop(operation->after);
  for (uint32_t i = 0; operation->values != NULL && i < operation->exec->graph->n_nodes; i++) {
    if (operation->values[i] != NULL) {
      tarni_sim_value_forget(operation->values[i]);
      tarni_sim_record_drop(operation->values[i]);
    }
  }
  free(operation->values);
  free(operation->n_open);
  if (operation->exec != NULL) {
    tarni_sim_exec_drop(operation->exec);
  }
  operation->next = tarni_sim_world.free_operations;
  tarni_sim_world.free_operations = operation;
}

sim_record *tarni_sim_record_take(uint32_t n_slots) {
  sim_record *record = tarni_sim_world.free_records;
  if (tarni_sim_store_strikes()) {
    return NULL;
  }
  if (record != NULL) {
    tarni_sim_world.free_records = record->next_free;
    record->clock.n = 0;
    *record = (sim_record){.clock = record->clock, .references = 1};
  } else {
    record = tarni_sim_store_zeroed(1, sizeof(*record));
  }
  if (record != NULL) {
    record->references = 1;
    if (!tarni_sim_clock_room(&record->clock, n_slots)) {
      tarni_sim_record_drop(record);
      return NULL;
    }
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

void tarni_sim_host_sees(const sim_clock *clock) {
  tarn_assert(clock->n <= tarni_sim_world.host.capacity);
  (void)tarni_sim_clock_join(&tarni_sim_world.host, clock);
  tarni_sim_world.host_version++;
}

void tarni_sim_observe(sim_device *device, const sim_record *record) {
  tarni_sim_host_sees(&record->clock);
  device->now_ns = tarni_max(device->now_ns, record->end_ns);
}

void tarni_sim_observe_stream(sim_stream *stream) {
  tarn_assert(stream->head == NULL && "only what is complete can be seen complete");
  tarni_sim_host_sees(&stream->clock);
  stream->device->now_ns = tarni_max(stream->device->now_ns, stream->tail_ns);
}

void tarni_sim_stream_advance(sim_stream *stream) {
  stream->epoch++;
  stream->device->n_operations++;
  (void)tarni_sim_clock_raise(&stream->clock, stream->slot, stream->epoch);
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

sim_operation *tarni_sim_mark_make(void) {
  sim_operation *mark = tarni_sim_operation_take(SIM_OP_RECORD);
  if (mark == NULL) {
    return NULL;
  }
  mark->record = tarni_sim_record_take(tarni_sim_world.n_slots); /* no clock is wider */
  if (mark->record == NULL) {
    tarni_sim_operation_give(mark);
    return NULL;
  }
  return mark;
}

sim_record *tarni_sim_mark_push(sim_stream *stream, sim_operation *mark) {
  sim_record *record = mark->record;
  (void)tarni_sim_clock_join(&record->clock, &stream->clock);
  record->end_ns = tarni_max(stream->tail_ns, stream->device->now_ns);
  stream->tail_ns = record->end_ns;
  record->references++;
  tarni_sim_stream_push(stream, mark);
  return record;
}

bool tarni_sim_wait_on(sim_stream *stream, sim_record *record) {
  sim_operation *operation = NULL;
  if (!record->is_done) {
    operation = tarni_sim_operation_take(SIM_OP_WAIT);
    if (operation == NULL) {
      return false;
    }
  }
  if (!tarni_sim_clock_join(&stream->clock, &record->clock)) {
    tarni_sim_operation_give(operation);
    return false;
  }
  stream->tail_ns = tarni_max(stream->tail_ns, record->end_ns);
  if (operation != NULL) {
    operation->after = record;
    record->references++;
    tarni_sim_stream_push(stream, operation);
  }
  return true;
}

/* One stream waits for all that another has been given so far. */
static bool stream_follow(sim_stream *stream, sim_stream *other) {
  if (other->head == NULL) {
    return tarni_sim_clock_join(&stream->clock, &other->clock);
  }
  sim_operation *mark = tarni_sim_mark_make();
  if (mark == NULL) {
    return false;
  }
  sim_record *record = tarni_sim_mark_push(other, mark);
  const bool is_good = tarni_sim_wait_on(stream, record);
  tarni_sim_record_drop(record);
  return is_good;
}

/* The legacy default stream and the threads' default streams wait for each other's earlier work. */
static bool stream_order_defaults(sim_stream *stream) {
  sim_stream *legacy = stream->device->legacy;
  if (stream->thread != 0 && legacy->epoch > stream->legacy_joined) {
    if (!stream_follow(stream, legacy)) {
      return false;
    }
    stream->legacy_joined = legacy->epoch;
  }
  for (sim_stream *other = stream->device->streams; stream == legacy && other != NULL;
       other = other->next) {
    if (other->thread != 0 && other->epoch > other->joined_by_legacy) {
      if (!stream_follow(stream, other)) {
        return false;
      }
      other->joined_by_legacy = other->epoch;
    }
  }
  return true;
}

tarn_status tarni_sim_stream_prepare(sim_stream *stream) {
  if (!tarni_sim_clock_room(&stream->clock, stream->slot + 1)) {
    return tarni_sim_no_host_memory(stream->device, "cuLaunchKernel");
  }
  if (stream->host_version != tarni_sim_world.host_version) {
    if (!tarni_sim_clock_join(&stream->clock, &tarni_sim_world.host)) {
      return tarni_sim_no_host_memory(stream->device, "cuLaunchKernel");
    }
    stream->host_version = tarni_sim_world.host_version;
  }
  return stream_order_defaults(stream) ? TARN_OK
                                       : tarni_sim_no_host_memory(stream->device, "cuLaunchKernel");
}
