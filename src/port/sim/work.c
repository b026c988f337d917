/* SPDX-License-Identifier: MIT
 *
 * What streams do: copies, fills, values and kernels. Submitting judges the work (oracle) and puts
 * it into its stream's queue, or into the graph where the stream is being captured; running does it
 * to the real bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "port/sim/sim.h"

void tarni_sim_work_free(sim_work *work) {
  free(work->ranges);
  if (work->owns_source) {
    free((void *)(uintptr_t)work->source);
  }
  work->ranges = NULL;
  work->owns_source = false;
}

/* ---- Running ---- */

static void device_break(sim_device *device) {
  if (device->sticky_code == 0) {
    device->sticky_code = SIM_CUDA_ILLEGAL_ADDRESS;
  }
}

static bool is_there(const sim_device *device, tarn_ptr address, uint64_t size) {
  return tarni_sim_region_find(device, address) == NULL
             ? tarni_sim_bytes_is_host(address, size)
             : tarni_sim_range_is_mapped(device, address, size);
}

static void copy_run(sim_device *device, const sim_work *work) {
  if (is_there(device, work->destination, work->size) &&
      (work->owns_source || is_there(device, work->source, work->size))) {
    tarni_sim_bytes_copy(work->destination, work->source, work->size);
  } else {
    device_break(device);
  }
}

static void kernel_run(sim_device *device, const sim_work *work) {
  for (uint32_t i = 0; i < work->n_ranges; i++) {
    if (!tarni_sim_range_is_mapped(device, work->ranges[i].address, work->ranges[i].bytes)) {
      device_break(device);
      return;
    }
  }
  if (work->run != NULL) {
    work->run(work->user);
  }
}

bool tarni_sim_work_run(sim_device *device, const sim_work *work) {
  if (device->sticky_code != 0) {
    return true; /* a broken device does nothing, but comes to an end */
  }
  switch (work->kind) {
  case SIM_OP_KERNEL:
    kernel_run(device, work);
    break;
  case SIM_OP_COPY:
    copy_run(device, work);
    break;
  case SIM_OP_FILL:
    if (tarni_sim_range_is_mapped(device, work->destination, work->size)) {
      tarni_sim_bytes_fill(work->destination, work->value, work->size);
    } else {
      device_break(device);
    }
    break;
  case SIM_OP_VALUE_WRITE:
    __atomic_store_n(work->word, work->size, __ATOMIC_RELEASE);
    break;
  case SIM_OP_VALUE_WAIT:
    return __atomic_load_n(work->word, __ATOMIC_ACQUIRE) >= work->size;
  case SIM_OP_NONE:
  case SIM_OP_RECORD:
  case SIM_OP_WAIT:
  case SIM_OP_POOL_FREE:
  case SIM_OP_GRAPH:
    break;
  }
  return true;
}

/* ---- Submitting ---- */

/* GPU time: a fixed start, then bytes at the link's or the memory's speed. */
static uint64_t copy_ns(const sim_device *device, tarn_ptr a, tarn_ptr b, uint64_t size) {
  const sim_region *first = tarni_sim_region_find(device, a);
  const sim_region *second = tarni_sim_region_find(device, b);
  const bool is_local = first != NULL && second != NULL && first->kind < SIM_REGION_HOST &&
                        second->kind < SIM_REGION_HOST;
  return 1500 + (is_local ? size / 2000 : size / 55);
}

static tarn_status submit_operation(sim_stream *stream, sim_operation *operation,
                                    const char *entry) {
  sim_device *device = stream->device;
  if (!tarni_sim_stream_advance(stream)) {
    return tarni_sim_no_host_memory(device, entry);
  }
  const sim_actor actor = {.clock = &stream->clock,
                           .epoch = stream->epoch,
                           .stream_id = stream->id,
                           .slot = stream->slot,
                           .operation = operation->work.kind};
  if (!tarni_sim_oracle_work(device, &actor, &operation->work)) {
    if (operation->work.kind != SIM_OP_KERNEL) {
      return tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, entry, operation->work.size);
    }
    device_break(device); /* as on a GPU: the launch succeeds, the next call tells */
  }
  stream->tail_ns = tarni_max(stream->tail_ns, device->now_ns) + operation->work.nanoseconds;
  tarni_sim_stream_push(stream, operation);
  return TARN_OK;
}

/* Takes over what the work owns, on every path. */
static tarn_status submit(sim_stream *stream, sim_work *work, const char *entry) {
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
  tarn_status status = tarni_sim_stream_prepare(stream);
  if (status == TARN_OK) {
    status = submit_operation(stream, operation, entry);
  }
  if (status != TARN_OK) {
    tarni_sim_operation_give(operation);
  }
  return status;
}

static tarn_status copy_submit(sim_device *device, sim_stream *stream, sim_work *work,
                               bool is_sync) {
  const bool from_ordinary = tarni_sim_region_find(device, work->source) == NULL;
  const bool to_ordinary = tarni_sim_region_find(device, work->destination) == NULL;
  work->nanoseconds = copy_ns(device, work->destination, work->source, work->size);
  if ((from_ordinary && !tarni_sim_bytes_is_host(work->source, work->size)) ||
      (to_ordinary && !tarni_sim_bytes_is_host(work->destination, work->size))) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemcpyAsync",
                            "a copy from or to addresses where nothing is",
                            from_ordinary ? work->source : work->destination);
  }
  if (from_ordinary && stream->capture == NULL) {
    /* As CUDA does: ordinary memory is staged before the call returns. */
    void *staged = malloc(work->size);
    if (staged == NULL) {
      return tarni_sim_no_host_memory(device, "cuMemcpyAsync");
    }
    memcpy(staged, (const void *)(uintptr_t)work->source, work->size);
    work->source = (uintptr_t)staged;
    work->owns_source = true;
  }
  TARN_TRY(submit(stream, work, "cuMemcpyAsync"));
  if (stream->capture == NULL && (is_sync || to_ordinary)) {
    tarni_sim_finish_stream(device, stream);
    tarni_sim_observe_stream(stream);
  }
  return TARN_OK;
}

tarn_status tarni_sim_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                           tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_COPY, size));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuMemcpyAsync", &stream);
  if (status == TARN_OK) {
    sim_work work = {
        .kind = SIM_OP_COPY, .destination = destination, .source = source, .size = size};
    status = copy_submit(device, stream, &work, false);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_COPY_SYNC, size));
  tarn_status status = tarni_sim_capture_allows(device, "cuMemcpy");
  if (status == TARN_OK) {
    sim_work work = {
        .kind = SIM_OP_COPY, .destination = destination, .source = source, .size = size};
    status = copy_submit(device, device->legacy, &work, true);
  }
  return tarni_sim_end(device, status);
}

static tarn_status fill_submit(sim_device *device, sim_stream *stream, tarn_ptr destination,
                               uint8_t value, uint64_t size) {
  if (tarni_sim_region_find(device, destination) == NULL) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemsetD8Async",
                            "a fill of addresses that are not the device's", destination);
  }
  sim_work work = {.kind = SIM_OP_FILL,
                   .destination = destination,
                   .value = value,
                   .size = size,
                   .nanoseconds = 1500 + size / 2500};
  return submit(stream, &work, "cuMemsetD8Async");
}

tarn_status tarni_sim_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                           tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_FILL, size));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuMemsetD8Async", &stream);
  if (status == TARN_OK) {
    status = fill_submit(device, stream, destination, value, size);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_FILL_SYNC, size));
  tarn_status status = tarni_sim_capture_allows(device, "cuMemsetD8");
  if (status == TARN_OK) {
    status = fill_submit(device, device->legacy, destination, value, size);
  }
  if (status == TARN_OK) {
    tarni_sim_finish_stream(device, device->legacy);
    tarni_sim_observe_stream(device->legacy);
  }
  return tarni_sim_end(device, status);
}

static tarn_status value_submit(sim_device *device, sim_operation_kind kind, tarn_stream handle,
                                uint64_t *word, uint64_t value) {
  const char *entry = kind == SIM_OP_VALUE_WRITE ? "cuStreamWriteValue64" : "cuStreamWaitValue64";
  sim_stream *stream;
  TARN_TRY(tarni_sim_stream_get(device, handle, entry, &stream));
  const sim_region *region = tarni_sim_region_find(device, (uintptr_t)word);
  if (region == NULL || region->kind < SIM_REGION_HOST ||
      !tarni_is_aligned((uintptr_t)word, sizeof(*word))) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, entry,
                            "a value that is not an aligned word of pinned memory",
                            (uintptr_t)word);
  }
  sim_work work = {.kind = kind, .word = word, .size = value, .nanoseconds = 900};
  return submit(stream, &work, entry);
}

tarn_status tarni_sim_value_write(tarni_port *port, tarn_stream stream, uint64_t *word,
                                  uint64_t value) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_VALUE_WRITE, 0));
  return tarni_sim_end(device, value_submit(device, SIM_OP_VALUE_WRITE, stream, word, value));
}

tarn_status tarni_sim_value_wait(tarni_port *port, tarn_stream stream, const uint64_t *word,
                                 uint64_t value) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_VALUE_WAIT, 0));
  uint64_t *watched = (uint64_t *)(uintptr_t)word; /* only ever read */
  return tarni_sim_end(device, value_submit(device, SIM_OP_VALUE_WAIT, stream, watched, value));
}

/* pre: the lock is held. */
tarn_status tarni_sim_kernel(sim_device *device, const tarn_sim_kernel *kernel,
                             tarn_stream handle) {
  sim_stream *stream;
  TARN_TRY(tarni_sim_stream_get(device, handle, "cuLaunchKernel", &stream));
  sim_work work = {.kind = SIM_OP_KERNEL,
                   .n_ranges = (uint32_t)kernel->n_ranges,
                   .run = kernel->run,
                   .user = kernel->user,
                   .nanoseconds = kernel->nanoseconds != 0 ? kernel->nanoseconds : 2000};
  if (kernel->n_ranges != 0) {
    work.ranges = malloc(kernel->n_ranges * sizeof(*work.ranges));
    if (work.ranges == NULL) {
      return tarni_sim_no_host_memory(device, "cuLaunchKernel");
    }
    memcpy(work.ranges, kernel->ranges, kernel->n_ranges * sizeof(*work.ranges));
  }
  return submit(stream, &work, "cuLaunchKernel");
}
