/* SPDX-License-Identifier: MIT
 *
 * What the program gives to streams: copies, fills, values and kernels. Submitting judges the work
 * (judge.c) and puts it into its stream's queue, or into the graph where the stream is being
 * captured. What fails leaves queue, clocks and histories as they were. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "port/sim/sim.h"

/* ---- Submitting ---- */

/* Everything that can fail for lack of memory. False: it did. */
static bool submit_reserve(sim_stream *stream, sim_operation *operation, bool is_mapped) {
  sim_device *device = stream->device;
  const sim_work *work = &operation->work;
  if (is_mapped && !(tarni_sim_oracle_cut(device, work) &&
                     tarni_sim_oracle_reserve(device, work, tarni_sim_oracle_stamp()))) {
    return false;
  }
  if (work->kind == SIM_OP_VALUE_WRITE) {
    operation->record = tarni_sim_record_take(stream->clock.n + stream->slot + 1);
    return operation->record != NULL;
  }
  return work->kind != SIM_OP_VALUE_WAIT ||
         tarni_sim_clock_room(&stream->clock, tarni_sim_world.n_slots);
}

static void submit_commit(sim_stream *stream, sim_operation *operation, bool is_mapped) {
  sim_device *device = stream->device;
  if (operation->work.kind == SIM_OP_VALUE_WAIT) {
    tarni_sim_value_rely(&stream->clock, &operation->work);
  }
  tarni_sim_stream_advance(stream);
  if (is_mapped) {
    const sim_actor actor = {.clock = &stream->clock,
                             .epoch = stream->epoch,
                             .stream_id = stream->id,
                             .slot = stream->slot,
                             .operation = operation->work.kind,
                             .is_manager = operation->work.is_managers};
    tarni_sim_oracle_judge(device, &actor, &operation->work);
    tarni_sim_oracle_merge(device, &operation->work);
  }
  stream->tail_ns =
      tarni_add_capped(tarni_max(stream->tail_ns, device->now_ns), operation->work.nanoseconds);
  if (operation->work.kind == SIM_OP_VALUE_WRITE) {
    (void)tarni_sim_clock_join(&operation->record->clock, &stream->clock);
    operation->record->end_ns = stream->tail_ns;
    tarni_sim_value_expect(operation->record, &operation->work);
  }
  tarni_sim_stream_push(stream, operation);
}

static tarn_status submit_operation(sim_stream *stream, sim_operation *operation,
                                    const char *entry) {
  sim_device *device = stream->device;
  TARN_TRY(tarni_sim_stream_prepare(stream));
  const sim_actor actor = {
      .epoch = stream->epoch + 1, .stream_id = stream->id, .operation = operation->work.kind};
  const bool is_mapped = tarni_sim_oracle_is_mapped(device, &actor, &operation->work);
  /* As on a GPU: a kernel is launched all the same, and breaks the device when it runs. */
  if (!is_mapped && operation->work.kind != SIM_OP_KERNEL) {
    return tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, entry, operation->work.size);
  }
  if (!submit_reserve(stream, operation, is_mapped)) {
    return tarni_sim_no_host_memory(device, entry);
  }
  submit_commit(stream, operation, is_mapped);
  return TARN_OK;
}

/* Takes over what the work owns, on every path. */
static tarn_status submit(sim_stream *stream, sim_work *work, const char *entry) {
  work->is_managers = tarni_port_payer != NULL;
  if (stream->capture != NULL) {
    const tarn_status status = tarni_sim_capture_add(stream, work);
    if (status != TARN_OK) {
      tarni_sim_work_free(work);
    }
    return status;
  }
  sim_operation *operation = tarni_sim_operation_take(work->kind);
  if (operation == NULL) {
    tarni_sim_work_free(work);
    return tarni_sim_no_host_memory(stream->device, entry);
  }
  operation->work = *work;
  const tarn_status status = submit_operation(stream, operation, entry);
  if (status != TARN_OK) {
    tarni_sim_operation_give(operation);
  }
  return status;
}

/* For calls that wait until the work is done. */
static tarn_status submit_and_wait(sim_stream *stream, sim_work *work, const char *entry) {
  sim_operation *mark = tarni_sim_mark_make();
  if (mark == NULL) {
    tarni_sim_work_free(work);
    return tarni_sim_no_host_memory(stream->device, entry);
  }
  const tarn_status status = submit(stream, work, entry);
  if (status != TARN_OK) {
    tarni_sim_operation_give(mark);
    return status;
  }
  return tarni_sim_finish_mark(stream->device, stream, mark, entry);
}

/* ---- Copies ---- */

/* One end of a copy. */
typedef enum copy_place { COPY_NOWHERE, COPY_ORDINARY, COPY_PINNED, COPY_DEVICE } copy_place;

static copy_place place_of(sim_device *device, tarn_ptr address, uint64_t size) {
  const sim_device *where = tarni_sim_device_at(device, address, true);
  if (where == NULL) {
    return tarni_sim_bytes_is_host(address, size) ? COPY_ORDINARY : COPY_NOWHERE;
  }
  const sim_region *region = tarni_sim_region_find(where, address);
  if (region->kind < SIM_REGION_HOST) {
    return COPY_DEVICE;
  }
  return tarni_sim_region_holds(region, address, size) ? COPY_PINNED : COPY_NOWHERE;
}

/* Whether ordinary memory runs into memory that a device knows. */
static bool is_mixed(tarn_ptr address, uint64_t size) {
  tarn_ptr next = address + size;
  (void)tarni_sim_device_next(address, &next);
  return next != address + size;
}

/* GPU time: a fixed start, then bytes at the speed of memory, of the link, or of staging. */
static uint64_t copy_ns(copy_place from, copy_place to, uint64_t size) {
  if (from == COPY_DEVICE && to == COPY_DEVICE) {
    return 1500 + size / 2000;
  }
  if (to == COPY_ORDINARY) {
    return 6300 + size / 66 * 5; /* 13.2 GB/s */
  }
  return 1500 + (from == COPY_ORDINARY ? 0 : size / 55);
}

/* As CUDA does: ordinary memory is read before the call returns, at 8.2 GB/s of the host's time. */
static tarn_status copy_stage(sim_device *device, sim_work *work, tarn_call call) {
  void *staged = tarni_sim_store_resize(NULL, 1, work->size);
  if (staged == NULL) {
    return tarni_sim_no_host_memory(device, tarni_sim_entry(call));
  }
  memcpy(staged, (const void *)(uintptr_t)work->source, work->size);
  work->source = (uintptr_t)staged;
  work->owns_source = true;
  return TARN_OK;
}

static tarn_status copy_submit(sim_device *device, sim_stream *stream, sim_work *work,
                               tarn_call call) {
  const copy_place from = place_of(device, work->source, work->size);
  const copy_place to = place_of(device, work->destination, work->size);
  const uint64_t size = work->size;
  if (from == COPY_NOWHERE || to == COPY_NOWHERE) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, tarni_sim_entry(call),
                            "a copy from or to addresses where nothing is",
                            from == COPY_NOWHERE ? work->source : work->destination);
  }
  work->nanoseconds = copy_ns(from, to, size);
  const bool is_captured = stream->capture != NULL;
  work->reads_now = from == COPY_ORDINARY && !is_captured && is_mixed(work->source, size);
  if (from == COPY_ORDINARY && !is_captured && !work->reads_now) {
    TARN_TRY(copy_stage(device, work, call));
  }
  const bool waits =
      !is_captured && (call == TARN_CALL_COPY_SYNC || to == COPY_ORDINARY || work->reads_now);
  TARN_TRY(waits ? submit_and_wait(stream, work, tarni_sim_entry(call))
                 : submit(stream, work, tarni_sim_entry(call)));
  if (from == COPY_ORDINARY && !is_captured) {
    tarni_sim_charge_ns(device, call, 4000 + size / 41 * 5);
  }
  return TARN_OK;
}

tarn_status tarni_sim_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                           tarn_stream on) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_COPY, size));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_act(device, on, "cuMemcpyAsync", &stream);
  if (status == TARN_OK) {
    sim_work work = {
        .kind = SIM_OP_COPY, .destination = destination, .source = source, .size = size};
    status = copy_submit(device, stream, &work, TARN_CALL_COPY);
  }
  return tarni_sim_end(device, status);
}

static tarn_status copy_batch_refuse(sim_device *device, const tarni_copy *copies, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    if (place_of(device, copies[i].source, copies[i].size) < COPY_PINNED ||
        place_of(device, copies[i].destination, copies[i].size) < COPY_PINNED) {
      return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemcpyBatchAsync",
                              "a batch of copies with memory that is not pinned", copies[i].source);
    }
  }
  uint64_t conflict;
  if (!tarni_sim_batch_conflict(device, copies, count, &conflict)) {
    return tarni_sim_no_host_memory(device, "cuMemcpyBatchAsync");
  }
  return conflict == UINT64_MAX
             ? TARN_OK
             : tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemcpyBatchAsync",
                                "two copies of one batch touch the same bytes",
                                copies[conflict].destination);
}

void tarni_sim_copy_prepare(tarni_port *port) {
  (void)port; /* it is as fast as it can be */
}

/* The seed decides which copy comes first. */
tarn_status tarni_sim_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                 tarn_stream on, tarni_copy_way way) {
  (void)way;
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_COPY_BATCH, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_act(device, on, "cuMemcpyBatchAsync", &stream);
  if (status == TARN_OK) {
    status = copy_batch_refuse(device, copies, count);
  }
  const uint64_t start = tarni_rng_below(&device->rng, count);
  for (uint64_t i = 0; i < count && status == TARN_OK; i++) {
    const tarni_copy *copy = &copies[(start + i) % count];
    sim_work work = {.kind = SIM_OP_COPY,
                     .destination = copy->destination,
                     .source = copy->source,
                     .size = copy->size};
    status = copy_submit(device, stream, &work, TARN_CALL_COPY_BATCH);
    tarni_sim_charge_ns(device, TARN_CALL_COPY_BATCH, i != 0 ? 300 : 0);
  }
  return tarni_sim_end(device, status);
}

/* The legacy stream, for a call that waits. */
static tarn_status stream_for_sync(sim_device *device, const char *entry, sim_stream **stream) {
  TARN_TRY(tarni_sim_stream_act(device, NULL, entry, stream));
  return tarni_sim_capture_allows(device, entry);
}

tarn_status tarni_sim_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_COPY_SYNC, size));
  sim_stream *stream;
  tarn_status status = stream_for_sync(device, "cuMemcpy", &stream);
  if (status == TARN_OK) {
    sim_work work = {
        .kind = SIM_OP_COPY, .destination = destination, .source = source, .size = size};
    status = copy_submit(device, stream, &work, TARN_CALL_COPY_SYNC);
  }
  return tarni_sim_end(device, status);
}

/* ---- Fills ---- */

static tarn_status fill_make(sim_device *device, tarn_ptr destination, uint8_t value, uint64_t size,
                             sim_work *work) {
  if (tarni_sim_device_at(device, destination, false) == NULL) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemsetD8Async",
                            "a fill of addresses that are not the device's", destination);
  }
  *work = (sim_work){.kind = SIM_OP_FILL,
                     .destination = destination,
                     .value = value,
                     .size = size,
                     .nanoseconds = 1500 + size / 2500};
  return TARN_OK;
}

tarn_status tarni_sim_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                           tarn_stream on) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_FILL, size));
  sim_stream *stream;
  sim_work work;
  tarn_status status = tarni_sim_stream_act(device, on, "cuMemsetD8Async", &stream);
  if (status == TARN_OK) {
    status = fill_make(device, destination, value, size, &work);
  }
  if (status == TARN_OK) {
    status = submit(stream, &work, "cuMemsetD8Async");
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_FILL_SYNC, size));
  sim_stream *stream;
  sim_work work;
  tarn_status status = stream_for_sync(device, "cuMemsetD8", &stream);
  if (status == TARN_OK) {
    status = fill_make(device, destination, value, size, &work);
  }
  if (status == TARN_OK) {
    status = submit_and_wait(stream, &work, "cuMemsetD8");
  }
  return tarni_sim_end(device, status);
}

/* ---- Values ---- */

static tarn_status value_submit(sim_device *device, sim_operation_kind kind, tarn_stream on,
                                tarn_ptr address, uint64_t value) {
  const char *entry = kind == SIM_OP_VALUE_WRITE ? "cuStreamWriteValue64" : "cuStreamWaitValue64";
  sim_stream *stream;
  TARN_TRY(tarni_sim_stream_act(device, on, entry, &stream));
  sim_device *where = tarni_sim_device_at(device, address, false);
  if (where == NULL || !tarni_is_aligned(address, sizeof(uint64_t)) ||
      tarni_sim_region_find(where, address)->kind < SIM_REGION_HOST ||
      !tarni_sim_range_is_mapped(where, address, sizeof(uint64_t))) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, entry,
                            "a value that is not an aligned word of pinned memory", address);
  }
  sim_work work = {
      .kind = kind, .word = (uint64_t *)(uintptr_t)address, .size = value, .nanoseconds = 900};
  return submit(stream, &work, entry);
}

tarn_status tarni_sim_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                  uint64_t value) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_VALUE_WRITE, 0));
  return tarni_sim_end(device,
                       value_submit(device, SIM_OP_VALUE_WRITE, stream, (uintptr_t)word, value));
}

tarn_status tarni_sim_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                 uint64_t value) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_VALUE_WAIT, 0));
  return tarni_sim_end(device,
                       value_submit(device, SIM_OP_VALUE_WAIT, stream, (uintptr_t)word, value));
}

/* ---- Kernels ---- */

/* pre: the lock is held. */
tarn_status tarni_sim_kernel(sim_device *device, const tarn_sim_kernel *kernel, tarn_stream on) {
  sim_stream *stream;
  TARN_TRY(tarni_sim_stream_act(device, on, "cuLaunchKernel", &stream));
  sim_work work = {.kind = SIM_OP_KERNEL,
                   .n_ranges = (uint32_t)kernel->n_ranges,
                   .is_early = kernel->is_early,
                   .run = kernel->run,
                   .user = kernel->user,
                   .nanoseconds = kernel->nanoseconds != 0 ? kernel->nanoseconds : 2000};
  if (kernel->n_ranges == 1) {
    work.range = kernel->ranges[0];
  } else if (kernel->n_ranges != 0) {
    work.ranges = tarni_sim_store_resize(NULL, kernel->n_ranges, sizeof(*work.ranges));
    if (work.ranges == NULL) {
      return tarni_sim_no_host_memory(device, "cuLaunchKernel");
    }
    memcpy(work.ranges, kernel->ranges, kernel->n_ranges * sizeof(*work.ranges));
  }
  return submit(stream, &work, "cuLaunchKernel");
}
