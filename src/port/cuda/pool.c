/* SPDX-License-Identifier: MIT
 *
 * Private stream-ordered pools of the cuda port. The driver would record an allocation on a
 * capturing stream into the graph, as memory that lives only there; tarn has arenas for that, so
 * such a stream is refused before the driver sees the call, and its capture stays valid. */
#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

tarn_status tarni_cuda_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *pool) {
  *pool = NULL;
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_POOL_CREATE, 0, &call));
  const tarni_cu_pool_properties properties = {
      .type = TARNI_CU_MEMORY_PINNED,
      .handle_types = TARNI_CU_HANDLE_NONE,
      .location = {.type = TARNI_CU_LOCATION_DEVICE, .id = call.port->device}};
  tarni_cu_pool created = NULL;
  tarni_cu_result code = call.driver->pool_create(&created, &properties);
  if (code == TARNI_CU_SUCCESS && created != NULL) {
    code = call.driver->pool_set(created, TARNI_CU_POOL_THRESHOLD, &threshold);
    if (code != TARNI_CU_SUCCESS) {
      call.operation = "cuMemPoolSetAttribute";
      (void)call.driver->pool_destroy(created);
    }
  }
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *pool = created;
  return TARN_OK;
}

tarn_status tarni_cuda_pool_destroy(tarni_port *port, tarni_pool pool) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_POOL_DESTROY, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->pool_destroy(pool));
}

tarn_status tarni_cuda_pool_trim(tarni_port *port, tarni_pool pool, uint64_t keep_bytes) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_POOL_TRIM, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->pool_trim(pool, keep_bytes));
}

static const char *const pool_remedy = "Use the capture's arena, or another stream.";

tarn_status tarni_cuda_pool_alloc(tarni_port *port, tarni_pool pool, uint64_t size,
                                  tarn_stream stream, tarn_ptr *address) {
  *address = 0;
  tarn_assert(size != 0);
  TARN_TRY(tarni_cuda_refuse_capturing(port, TARN_CALL_POOL_ALLOC, stream, pool_remedy));
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_POOL_ALLOC, size, &call));
  tarni_cu_address allocated = 0;
  const tarni_cu_result code = call.driver->pool_alloc(&allocated, size, pool, stream);
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *address = allocated;
  return TARN_OK;
}

tarn_status tarni_cuda_pool_free(tarni_port *port, tarn_ptr address, tarn_stream stream) {
  TARN_TRY(tarni_cuda_refuse_capturing(port, TARN_CALL_POOL_FREE, stream, pool_remedy));
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_POOL_FREE, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->pool_free(address, stream));
}
