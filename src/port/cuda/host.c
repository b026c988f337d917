/* SPDX-License-Identifier: MIT
 *
 * Pinned host memory of the cuda port. Invariant: what is given out has the same address on the
 * device as on the host; memory for which that does not hold is given back and refused. */
#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

static tarn_status refuse_other_address(const tarni_cuda_call *call, const void *pointer,
                                        tarni_cu_address address) {
  const tarni_facts facts = {.device = call->port->base.device.name,
                             .requested_bytes = call->requested_bytes};
  return tarni_fail(
      TARN_UNSUPPORTED, call->operation, &facts, "Use a device with unified addressing.",
      "host memory at %p is at 0x%llx for the device", pointer, (unsigned long long)address);
}

tarn_status tarni_cuda_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer) {
  *pointer = NULL;
  tarn_assert(size != 0);
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_HOST_ALLOC, size, &call));
  unsigned driver_flags = TARNI_CU_HOST_PORTABLE | TARNI_CU_HOST_MAPPED;
  if ((flags & TARNI_HOST_WRITE_COMBINED) != 0) {
    driver_flags |= TARNI_CU_HOST_WRITE_COMBINED;
  }
  void *allocated = NULL;
  tarni_cu_address address = 0;
  tarni_cu_result code = call.driver->host_alloc(&allocated, size, driver_flags);
  if (code == TARNI_CU_SUCCESS && allocated != NULL && !call.port->is_unified) {
    code = call.driver->host_address(&address, allocated, 0);
    if (code != TARNI_CU_SUCCESS || address != (uintptr_t)allocated) {
      (void)call.driver->host_free(allocated);
      TARN_TRY(tarni_cuda_call_end(&call, code));
      return refuse_other_address(&call, allocated, address);
    }
  }
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *pointer = allocated;
  return TARN_OK;
}

tarn_status tarni_cuda_host_free(tarni_port *port, void *pointer) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_HOST_FREE, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->host_free(pointer));
}

static tarn_status refuse_wrapping(const tarni_port *port, const void *pointer, uint64_t size) {
  if (size <= UINTPTR_MAX - (uintptr_t)pointer) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = port->device.name, .requested_bytes = size};
  return tarni_fail(TARN_INVALID, "cuMemHostRegister", &facts, "Check the size.",
                    "%llu bytes at %p end beyond the address space", (unsigned long long)size,
                    pointer);
}

tarn_status tarni_cuda_host_register(tarni_port *port, void *pointer, uint64_t size) {
  tarn_assert(size != 0);
  TARN_TRY(refuse_wrapping(port, pointer, size));
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_HOST_REGISTER, size, &call));
  const unsigned flags = TARNI_CU_HOST_PORTABLE | TARNI_CU_HOST_MAPPED;
  tarni_cu_result code = call.driver->host_register(pointer, size, flags);
  if (code == TARNI_CU_SUCCESS && !call.port->is_unified_registered) {
    tarni_cu_address address = 0;
    code = call.driver->host_address(&address, pointer, 0);
    if (code != TARNI_CU_SUCCESS || address != (uintptr_t)pointer) {
      (void)call.driver->host_unregister(pointer);
      TARN_TRY(tarni_cuda_call_end(&call, code));
      return refuse_other_address(&call, pointer, address);
    }
  }
  return tarni_cuda_call_end(&call, code);
}

tarn_status tarni_cuda_host_unregister(tarni_port *port, void *pointer) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_HOST_UNREGISTER, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->host_unregister(pointer));
}
