/* SPDX-License-Identifier: MIT
 *
 * Copies and fills of the cuda port. The driver tells host from device memory by the address. */
#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

tarn_status tarni_cuda_copy(tarni_port *port, tarn_ptr destination, tarn_ptr source, uint64_t size,
                            tarn_stream stream) {
  tarn_assert(size != 0);
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_COPY, size, &call));
  return tarni_cuda_call_end(&call, call.driver->copy(destination, source, size, stream));
}

tarni_cu_result tarni_cuda_batch_of(const tarni_cuda_call *call, const tarni_copy *copies,
                                    size_t count, tarn_stream stream) {
  tarn_assert(count <= TARNI_CUDA_BATCH);
  tarni_cu_address destinations[TARNI_CUDA_BATCH], sources[TARNI_CUDA_BATCH];
  size_t sizes[TARNI_CUDA_BATCH];
  for (size_t i = 0; i < count; i++) {
    destinations[i] = copies[i].destination;
    sources[i] = copies[i].source;
    sizes[i] = copies[i].size;
  }
  tarni_cu_copy_attributes attributes = {.order = TARNI_CU_COPY_IN_STREAM_ORDER};
  size_t first = 0, failed = 0;
  return call->driver->copy_batch(destinations, sources, sizes, count, &attributes, &first, 1,
                                  &failed, stream);
}

static uint64_t bytes_of(const tarni_copy *copies, uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; i++) {
    sum += copies[i].size;
  }
  return sum;
}

tarn_status tarni_cuda_copy_batch(tarni_port *port, const tarni_copy *copies, uint64_t count,
                                  tarn_stream stream, tarni_copy_way way) {
  tarn_assert(port->device.has_batch_copy && count != 0);
  const bool may_scatter = tarni_cuda_of(port)->has[TARNI_CU_GROUP_KERNEL];
  for (uint64_t n, done = 0; done < count; done += n) {
    const tarni_copy *some = copies + done;
    n = tarni_min(count - done, TARNI_CUDA_BATCH);
    tarni_cuda_call call;
    TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_COPY_BATCH, bytes_of(some, n), &call));
    TARN_TRY(may_scatter ? tarni_cuda_scatter(&call, some, n, stream, way)
                         : tarni_cuda_call_end(&call, tarni_cuda_batch_of(&call, some, n, stream)));
  }
  return TARN_OK;
}

tarn_status tarni_cuda_fill(tarni_port *port, tarn_ptr destination, uint8_t value, uint64_t size,
                            tarn_stream stream) {
  tarn_assert(size != 0);
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_FILL, size, &call));
  return tarni_cuda_call_end(&call, call.driver->fill(destination, value, size, stream));
}

/* The driver's synchronous calls go to the legacy stream, and those that touch no host memory
 * return before the bytes are there: only this wait makes them what port.h promises. */
static tarn_status end_when_there(tarni_cuda_call *call, tarni_cu_result code) {
  if (code == TARNI_CU_SUCCESS) {
    code = call->driver->stream_sync(NULL);
    if (code != TARNI_CU_SUCCESS) {
      call->operation = "cuStreamSynchronize";
    }
  }
  return tarni_cuda_call_end(call, code);
}

tarn_status tarni_cuda_copy_sync(tarni_port *port, tarn_ptr destination, tarn_ptr source,
                                 uint64_t size) {
  tarn_assert(size != 0);
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_COPY_SYNC, size, &call));
  return end_when_there(&call, call.driver->copy_sync(destination, source, size));
}

tarn_status tarni_cuda_fill_sync(tarni_port *port, tarn_ptr destination, uint8_t value,
                                 uint64_t size) {
  tarn_assert(size != 0);
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_FILL_SYNC, size, &call));
  return end_when_there(&call, call.driver->fill_sync(destination, value, size));
}
