/* SPDX-License-Identifier: MIT
 *
 * Reservations and mappings of a simulated GPU, with CUDA's rules: a chunk is mapped and unmapped
 * whole, at any number of addresses; a mapping can be used once it has been given access. A call
 * that fails leaves every mapping as it was. Under the lock of the simulated GPU. */
#include <stdlib.h>

#include "base/bits.h"
#include "port/sim/sim.h"

static void *host_pointer(tarn_ptr address) {
  return (void *)(uintptr_t)address;
}

/* ---- Reservations ---- */

tarn_status tarni_sim_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                              tarn_ptr *address) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_RESERVE, size));
  void *base =
      tarni_sim_bytes_reserve(size, tarni_max(alignment, device->config.granularity_bytes));
  if (base == NULL) {
    return tarni_sim_end(device, tarni_sim_no_addresses(device, size));
  }
  const sim_region *region =
      tarni_sim_region_new(device, (uintptr_t)base, size, SIM_REGION_RESERVED);
  if (region == NULL) {
    (void)tarni_sim_bytes_unreserve(base, size);
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuMemAddressReserve"));
  }
  *address = region->address;
  return tarni_sim_end(device, TARN_OK);
}

tarn_status tarni_sim_unreserve(tarni_port *port, tarn_ptr address, uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_UNRESERVE, 0));
  sim_region *region = tarni_sim_region_exact(device, address, SIM_REGION_RESERVED);
  if (region == NULL || region->size != size || region->mappings.n != 0) {
    return tarni_sim_end(
        device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemAddressFree",
                                 "addresses were released that are no whole reservation, or that "
                                 "are still mapped",
                                 address));
  }
  tarni_sim_region_drop(device, region);
  return tarni_sim_end(device, TARN_OK);
}

/* The reservation that holds the range; NULL: none does. */
static sim_region *region_of_range(const sim_device *device, tarn_ptr address, uint64_t size) {
  sim_region *region = tarni_sim_region_find(device, address);
  return region != NULL && region->kind == SIM_REGION_RESERVED &&
                 tarni_sim_region_holds(region, address, size)
             ? region
             : NULL;
}

/* ---- Mapping ---- */

static tarn_status map_found(sim_device *device, tarn_ptr address, uint64_t size) {
  const sim_mapping *there = tarni_sim_mapping_find(device, address);
  tarn_sim_finding finding = {.kind = TARN_SIM_DOUBLE_MAP, .address = address, .bytes = size};
  tarni_sim_oracle_find_memory(device, &finding, there != NULL ? there->chunk->shadow : NULL,
                               "a range that is mapped already");
  return tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, "cuMemMap", size);
}

static tarn_status map_checked(sim_device *device, tarn_ptr address, uint64_t size,
                               tarni_chunk id) {
  sim_chunk *chunk = tarni_sim_chunk_find(device, id);
  sim_region *region = region_of_range(device, address, size);
  if (chunk == NULL || region == NULL) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemMap",
                            "a chunk that does not exist, or addresses that are not reserved, "
                            "were mapped",
                            address);
  }
  if (size != chunk->size) {
    return tarni_sim_fail_code(device, SIM_CUDA_NOT_SUPPORTED, "cuMemMap", size);
  }
  if (!tarni_sim_region_is_free(region, address, size)) {
    return map_found(device, address, size);
  }
  return tarni_sim_mapping_make(device, region, address, chunk) != NULL
             ? TARN_OK
             : tarni_sim_no_host_memory(device, "cuMemMap");
}

tarn_status tarni_sim_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk id) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_MAP, size));
  return tarni_sim_end(device, map_checked(device, address, size, id));
}

/* How many mappings the range is, if it is a whole number of them; else 0. */
static uint64_t range_mappings(sim_device *device, tarn_ptr address, uint64_t size) {
  if (region_of_range(device, address, size) == NULL) {
    return 0;
  }
  const tarn_ptr end = address + size;
  uint64_t n = 0;
  while (address < end) {
    const sim_mapping *mapping = tarni_sim_mapping_find(device, address);
    if (mapping == NULL || mapping->address != address || mapping->size > end - address) {
      return 0;
    }
    address += mapping->size;
    n++;
  }
  return n;
}

/* ---- Access ---- */

/* Shows or hides the bytes of those mappings of [address, end) that have the given state. Returns
 * where it stopped: `end` unless the host failed. */
static tarn_ptr range_show(sim_device *device, tarn_ptr address, tarn_ptr end, bool has_access,
                           bool show) {
  while (address < end) {
    const sim_mapping *mapping = tarni_sim_mapping_find(device, address);
    if (mapping->has_access == has_access &&
        !(show ? tarni_sim_bytes_map(host_pointer(address), mapping->size, mapping->chunk->file,
                                     mapping->chunk->file_offset)
               : tarni_sim_bytes_unmap(host_pointer(address), mapping->size))) {
      break;
    }
    address += mapping->size;
  }
  return address;
}

static tarn_status access_give(sim_device *device, tarn_ptr address, tarn_ptr end) {
  const tarn_ptr stopped = range_show(device, address, end, false, true);
  if (stopped != end) {
    (void)range_show(device, address, stopped, false, false);
    return tarni_sim_no_host_memory(device, "cuMemSetAccess");
  }
  while (address < end) {
    sim_mapping *mapping = tarni_sim_mapping_find(device, address);
    mapping->has_access = true;
    address += mapping->size;
  }
  return TARN_OK;
}

tarn_status tarni_sim_access(tarni_port *port, tarn_ptr address, uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_ACCESS, 0));
  const uint64_t n = range_mappings(device, address, size);
  if (n == 0) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemSetAccess",
                                                  "access was given to a range that is not made "
                                                  "of whole mappings",
                                                  address));
  }
  const tarn_status status = access_give(device, address, address + size);
  if (status == TARN_OK) {
    tarni_sim_charge(device, TARN_CALL_ACCESS, n - 1, size);
  }
  return tarni_sim_end(device, status);
}

/* ---- Unmapping ---- */

static tarn_status unmap_all(sim_device *device, tarn_ptr address, tarn_ptr end) {
  const tarn_ptr stopped = range_show(device, address, end, true, false);
  if (stopped != end) {
    (void)range_show(device, address, stopped, true, true);
    return tarni_sim_no_host_memory(device, "cuMemUnmap");
  }
  sim_region *region = tarni_sim_region_find(device, address);
  while (address < end) {
    sim_mapping *mapping = tarni_sim_mapping_find(device, address);
    address += mapping->size;
    tarni_sim_oracle_unmap(device, mapping);
    tarni_sim_mapping_destroy(device, region, mapping);
  }
  return TARN_OK;
}

tarn_status tarni_sim_unmap(tarni_port *port, tarn_ptr address, uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_UNMAP, 0));
  const uint64_t n = range_mappings(device, address, size);
  if (n == 0) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemUnmap",
                                                  "a range was unmapped that is not made of whole "
                                                  "mappings",
                                                  address));
  }
  const tarn_status status = unmap_all(device, address, address + size);
  if (status == TARN_OK) {
    tarni_sim_charge(device, TARN_CALL_UNMAP, n - 1, size);
  }
  return tarni_sim_end(device, status);
}
