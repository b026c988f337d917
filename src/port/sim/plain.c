/* SPDX-License-Identifier: MIT
 *
 * Plain and pinned memory of the simulated GPU. Each allocation is a region of its own. Freeing
 * waits for all work of the device, as CUDA does; the lock may be given up meanwhile, so a region
 * that is being freed is marked, and another free of it is found; so is work that another device,
 * or another thread meanwhile, gave it. */
#include "base/bits.h"
#include "port/sim/sim.h"

tarn_status tarni_sim_region_fail(sim_device *device, tarn_status status, tarn_call call,
                                  uint64_t size) {
  return status == TARN_DEVICE_MEMORY
             ? tarni_sim_fail_code(device, SIM_CUDA_OUT_OF_MEMORY, tarni_sim_entry(call), size)
             : tarni_sim_no_host_memory(device, tarni_sim_entry(call));
}

sim_region *tarni_sim_region_exact(const sim_device *device, tarn_ptr address,
                                   sim_region_kind kind) {
  sim_region *region = tarni_sim_region_find(device, address);
  return region != NULL && region->address == address && region->kind == kind ? region : NULL;
}

/* Waits, then gives the region back. */
static tarn_status region_free(sim_device *device, tarn_ptr address, sim_region_kind kind,
                               tarn_call call) {
  TARN_TRY(tarni_sim_capture_allows(device, tarni_sim_entry(call)));
  sim_region *region = tarni_sim_region_exact(device, address, kind);
  if (region == NULL || !region->in_use) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, tarni_sim_entry(call),
                            "memory was freed that is not allocated", address);
  }
  region->in_use = false; /* nobody else can drop it now */
  const tarn_status status = tarni_sim_finish_device(device, tarni_sim_entry(call));
  if (status != TARN_OK) {
    region->in_use = true;
    return status;
  }
  tarni_sim_charge(device, call, 0, region->size);
  tarni_sim_oracle_unmap(device, region->mappings.items[0]);
  tarni_sim_region_drop(device, region);
  tarni_sim_pools_settle(device);
  return TARN_OK;
}

/* ---- Plain memory ---- */

tarn_status tarni_sim_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_PLAIN_ALLOC, size));
  tarn_status status = tarni_sim_capture_allows(device, "cuMemAlloc");
  if (status == TARN_OK) {
    sim_region *region;
    status = tarni_sim_region_make(device, SIM_REGION_PLAIN, size, NULL, &region);
    if (status == TARN_OK) {
      tarni_sim_charge(device, TARN_CALL_PLAIN_ALLOC, 0, size);
      *address = region->address;
    } else {
      status = tarni_sim_region_fail(device, status, TARN_CALL_PLAIN_ALLOC, size);
    }
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_plain_free(tarni_port *port, tarn_ptr address) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_PLAIN_FREE, 0));
  return tarni_sim_end(device,
                       region_free(device, address, SIM_REGION_PLAIN, TARN_CALL_PLAIN_FREE));
}

/* ---- Pinned memory ---- */

static void *pinned_make(sim_device *device, uint64_t size) {
  uint64_t rounded;
  if (!tarni_align_up_checked(size, tarni_sim_bytes_page(), &rounded)) {
    return NULL;
  }
  void *memory = tarni_sim_bytes_pinned(rounded);
  sim_region *region;
  if (memory != NULL &&
      tarni_sim_region_make(device, SIM_REGION_HOST, size, memory, &region) != TARN_OK) {
    (void)tarni_sim_bytes_unreserve(memory, rounded);
    return NULL;
  }
  return memory;
}

tarn_status tarni_sim_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer) {
  sim_device *device = (sim_device *)port;
  (void)flags; /* write-combined memory behaves the same here */
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_ALLOC, size));
  tarn_status status = tarni_sim_capture_allows(device, "cuMemHostAlloc");
  if (status == TARN_OK) {
    *pointer = pinned_make(device, size);
    if (*pointer != NULL) {
      tarni_sim_charge(device, TARN_CALL_HOST_ALLOC, 0, size);
    } else {
      status = tarni_sim_no_host_memory(device, "cuMemHostAlloc");
    }
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_host_free(tarni_port *port, void *pointer) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_FREE, 0));
  return tarni_sim_end(
      device, region_free(device, (uintptr_t)pointer, SIM_REGION_HOST, TARN_CALL_HOST_FREE));
}

/* Whether a device has a region there. pre: the range does not wrap. */
static bool overlaps_region(tarn_ptr address, uint64_t size) {
  for (const sim_device *device = tarni_sim_world.devices; device != NULL; device = device->next) {
    for (uint32_t i = 0; i < device->regions.n; i++) {
      const sim_region *region = device->regions.items[i];
      if (region->address < address + size && address < region->address + region->size) {
        return true;
      }
    }
  }
  return false;
}

static tarn_status host_register(sim_device *device, void *pointer, uint64_t size) {
  const char *entry = "cuMemHostRegister";
  const tarn_ptr address = (uintptr_t)pointer;
  if (!device->config.has_register) {
    return tarni_sim_fail_code(device, SIM_CUDA_NOT_SUPPORTED, entry, size);
  }
  TARN_TRY(tarni_sim_capture_allows(device, entry));
  if (overlaps_region(address, size)) {
    return tarni_sim_fail_code(device, SIM_CUDA_ALREADY_REGISTERED, entry, size);
  }
  if (!tarni_sim_bytes_is_host(address, size)) {
    return tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, entry, size);
  }
  sim_region *region;
  if (tarni_sim_region_make(device, SIM_REGION_REGISTERED, size, pointer, &region) != TARN_OK) {
    return tarni_sim_no_host_memory(device, entry);
  }
  tarni_sim_charge(device, TARN_CALL_HOST_REGISTER, 0, size);
  return TARN_OK;
}

tarn_status tarni_sim_host_register(tarni_port *port, void *pointer, uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_REGISTER, size));
  return tarni_sim_end(device, host_register(device, pointer, size));
}

tarn_status tarni_sim_host_unregister(tarni_port *port, void *pointer) {
  const char *entry = "cuMemHostUnregister";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_UNREGISTER, 0));
  tarn_status status = tarni_sim_capture_allows(device, entry);
  sim_region *region = tarni_sim_region_exact(device, (uintptr_t)pointer, SIM_REGION_REGISTERED);
  if (status == TARN_OK && region == NULL) {
    const sim_region *around = tarni_sim_region_find(device, (uintptr_t)pointer);
    const bool is_inner = around != NULL && around->kind == SIM_REGION_REGISTERED;
    status = tarni_sim_fail_code(
        device, is_inner ? SIM_CUDA_INVALID_VALUE : SIM_CUDA_NOT_REGISTERED, entry, 0);
  }
  if (status == TARN_OK) {
    tarni_sim_charge(device, TARN_CALL_HOST_UNREGISTER, 0, region->size);
    tarni_sim_oracle_unmap(device, region->mappings.items[0]);
    tarni_sim_region_drop(device, region);
  }
  return tarni_sim_end(device, status);
}
