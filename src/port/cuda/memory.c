/* SPDX-License-Identifier: MIT
 *
 * Addresses, chunks and plain memory of the cuda port. Owns nothing: the driver keeps it all. */
#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "port/cuda/internal.h"

tarni_cu_chunk_properties tarni_cuda_chunk_properties(tarni_cu_device device, bool is_exportable) {
  return (tarni_cu_chunk_properties){.type = TARNI_CU_MEMORY_PINNED,
                                     .handle_types = is_exportable ? TARNI_CU_HANDLE_DESCRIPTOR
                                                                   : TARNI_CU_HANDLE_NONE,
                                     .location = {.type = TARNI_CU_LOCATION_DEVICE, .id = device}};
}

/* The driver may take the alignment for a wish, tarn may not. */
static tarn_status refuse_misaligned(tarni_port *port, tarn_ptr address, uint64_t size,
                                     uint64_t alignment) {
  const tarni_facts facts = {.device = port->device.name, .requested_bytes = size};
  (void)tarni_cuda_unreserve(port, address, size);
  return tarni_fail(
      TARN_ADDRESS_SPACE, "cuMemAddressReserve", &facts, "Ask for a smaller alignment.",
      "the driver gave 0x%llx for %llu bytes aligned to %llu", (unsigned long long)address,
      (unsigned long long)size, (unsigned long long)alignment);
}

tarn_status tarni_cuda_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                               tarn_ptr *address) {
  *address = 0;
  tarn_assert(size != 0 && (alignment == 0 || tarni_is_pow2(alignment)));
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_RESERVE, size, &call));
  tarni_cu_address reserved = 0;
  const tarni_cu_result code = call.driver->reserve(&reserved, size, alignment, 0, 0);
  TARN_TRY(tarni_cuda_call_end(&call, code));
  if (alignment != 0 && !tarni_is_aligned(reserved, alignment)) {
    return refuse_misaligned(port, reserved, size, alignment);
  }
  *address = reserved;
  return TARN_OK;
}

tarn_status tarni_cuda_unreserve(tarni_port *port, tarn_ptr address, uint64_t size) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_UNRESERVE, size, &call));
  return tarni_cuda_call_end(&call, call.driver->unreserve(address, size));
}

tarn_status tarni_cuda_create(tarni_port *port, uint64_t size, tarni_chunk *chunk) {
  *chunk = 0;
  tarn_assert(size != 0);
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_CREATE, size, &call));
  const tarni_cu_chunk_properties properties =
      tarni_cuda_chunk_properties(call.port->device, port->device.has_export);
  tarni_cu_chunk created = 0;
  TARN_TRY(tarni_cuda_call_end(&call, call.driver->create(&created, size, &properties, 0)));
  *chunk = created;
  return TARN_OK;
}

tarn_status tarni_cuda_release(tarni_port *port, tarni_chunk chunk) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_RELEASE, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->release(chunk));
}

tarn_status tarni_cuda_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk chunk) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_MAP, size, &call));
  return tarni_cuda_call_end(&call, call.driver->map(address, size, 0, chunk, 0));
}

tarn_status tarni_cuda_access(tarni_port *port, tarn_ptr address, uint64_t size) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_ACCESS, size, &call));
  const tarni_cu_access own = {
      .location = {.type = TARNI_CU_LOCATION_DEVICE, .id = call.port->device},
      .flags = TARNI_CU_ACCESS_READ_WRITE};
  return tarni_cuda_call_end(&call, call.driver->access(address, size, &own, 1));
}

tarn_status tarni_cuda_unmap(tarni_port *port, tarn_ptr address, uint64_t size) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_UNMAP, size, &call));
  return tarni_cuda_call_end(&call, call.driver->unmap(address, size));
}

static tarn_status need_export(const tarni_port *port, tarn_call kind) {
  if (!port->device.has_export) {
    const tarni_facts facts = {.device = port->device.name};
    return tarni_fail(TARN_UNSUPPORTED, tarni_cuda_call_entry(kind), &facts,
                      "Share memory by another way, or give the process the permission to export.",
                      "chunks of this device cannot be exported or imported");
  }
  return TARN_OK;
}

tarn_status tarni_cuda_export(tarni_port *port, tarni_chunk chunk, int *descriptor) {
  *descriptor = -1;
  TARN_TRY(need_export(port, TARN_CALL_EXPORT));
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_EXPORT, 0, &call));
  int exported = -1;
  const tarni_cu_result code =
      call.driver->export_chunk(&exported, chunk, TARNI_CU_HANDLE_DESCRIPTOR, 0);
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *descriptor = exported;
  return TARN_OK;
}

tarn_status tarni_cuda_import(tarni_port *port, int descriptor, tarni_chunk *chunk) {
  *chunk = 0;
  TARN_TRY(need_export(port, TARN_CALL_IMPORT));
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_IMPORT, 0, &call));
  tarni_cu_chunk imported = 0;
  /* The driver takes the descriptor's number in the pointer itself. */
  void *shareable = (void *)(uintptr_t)descriptor;
  const tarni_cu_result code =
      call.driver->import_chunk(&imported, shareable, TARNI_CU_HANDLE_DESCRIPTOR);
  TARN_TRY(tarni_cuda_call_end(&call, code));
  *chunk = imported;
  return TARN_OK;
}

tarn_status tarni_cuda_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address) {
  *address = 0;
  tarn_assert(size != 0);
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_PLAIN_ALLOC, size, &call));
  tarni_cu_address allocated = 0;
  TARN_TRY(tarni_cuda_call_end(&call, call.driver->plain_alloc(&allocated, size)));
  *address = allocated;
  return TARN_OK;
}

tarn_status tarni_cuda_plain_free(tarni_port *port, tarn_ptr address) {
  tarni_cuda_call call;
  TARN_TRY(tarni_cuda_call_begin(port, TARN_CALL_PLAIN_FREE, 0, &call));
  return tarni_cuda_call_end(&call, call.driver->plain_free(address));
}
