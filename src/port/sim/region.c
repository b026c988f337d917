/* SPDX-License-Identifier: MIT
 *
 * The addresses of a simulated GPU: regions, and which chunk is seen where in them. Regions of a
 * device do not overlap, nor do the mappings of a region; both are kept sorted by address. Under
 * the lock of the simulated GPU. */
#include <stdlib.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

static void *host_pointer(tarn_ptr address) {
  return (void *)(uintptr_t)address;
}

static bool kind_is_host(sim_region_kind kind) {
  return kind == SIM_REGION_HOST || kind == SIM_REGION_REGISTERED;
}

/* ---- Finding ---- */

/* The first region that begins after the address. */
static uint32_t region_index(const sim_device *device, tarn_ptr address) {
  uint32_t low = 0, high = device->regions.n;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const sim_region *region = device->regions.items[middle];
    if (region->address <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

sim_region *tarni_sim_region_find(const sim_device *device, tarn_ptr address) {
  const uint32_t index = region_index(device, address);
  if (index == 0) {
    return NULL;
  }
  sim_region *region = device->regions.items[index - 1];
  return address - region->address < region->size ? region : NULL;
}

/* The first mapping of the region that begins after the address. */
static uint32_t mapping_index(const sim_region *region, tarn_ptr address) {
  uint32_t low = 0, high = region->mappings.n;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const sim_mapping *mapping = region->mappings.items[middle];
    if (mapping->address <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static sim_mapping *mapping_in(const sim_region *region, tarn_ptr address) {
  const uint32_t index = mapping_index(region, address);
  if (index == 0) {
    return NULL;
  }
  sim_mapping *mapping = region->mappings.items[index - 1];
  return address - mapping->address < mapping->size ? mapping : NULL;
}

sim_mapping *tarni_sim_mapping_find(sim_device *device, tarn_ptr address) {
  sim_mapping *recent = device->recent;
  if (recent != NULL && address - recent->address < recent->size) {
    return recent;
  }
  const sim_region *region = tarni_sim_region_find(device, address);
  sim_mapping *mapping = region != NULL ? mapping_in(region, address) : NULL;
  if (mapping != NULL) {
    device->recent = mapping;
  }
  return mapping;
}

bool tarni_sim_range_is_mapped(sim_device *device, tarn_ptr address, uint64_t size) {
  tarn_ptr end;
  if (!tarni_add(address, size, &end)) {
    return false;
  }
  while (address < end) {
    const sim_mapping *mapping = tarni_sim_mapping_find(device, address);
    if (mapping == NULL || !mapping->has_access) {
      return false;
    }
    address = mapping->address + mapping->size;
  }
  return true;
}

sim_device *tarni_sim_device_at(sim_device *device, tarn_ptr address, bool is_copy) {
  if (device->recent != NULL && address - device->recent->address < device->recent->size) {
    return device;
  }
  if (tarni_sim_region_find(device, address) != NULL) {
    return device;
  }
  for (sim_device *other = tarni_sim_world.devices; other != NULL; other = other->next) {
    const sim_region *region = other != device ? tarni_sim_region_find(other, address) : NULL;
    if (region != NULL && (is_copy || kind_is_host(region->kind))) {
      return other;
    }
  }
  return NULL;
}

sim_device *tarni_sim_device_next(tarn_ptr address, tarn_ptr *next) {
  for (sim_device *device = tarni_sim_world.devices; device != NULL; device = device->next) {
    if (tarni_sim_region_find(device, address) != NULL) {
      return device;
    }
    const uint32_t index = region_index(device, address);
    if (index < device->regions.n) {
      *next = tarni_min(*next, ((const sim_region *)device->regions.items[index])->address);
    }
  }
  return NULL;
}

bool tarni_sim_region_holds(const sim_region *region, tarn_ptr address, uint64_t size) {
  return address >= region->address && address - region->address < region->size &&
         size <= region->size - (address - region->address);
}

bool tarni_sim_region_is_free(const sim_region *region, tarn_ptr address, uint64_t size) {
  tarn_assert(tarni_sim_region_holds(region, address, size));
  const uint32_t index = mapping_index(region, address);
  if (mapping_in(region, address) != NULL) {
    return false;
  }
  if (index == region->mappings.n) {
    return true;
  }
  const sim_mapping *next = region->mappings.items[index];
  return next->address - address >= size;
}

/* ---- Making and deleting ---- */

sim_region *tarni_sim_region_new(sim_device *device, tarn_ptr address, uint64_t size,
                                 sim_region_kind kind) {
  sim_region *region = tarni_sim_store_zeroed(1, sizeof(*region));
  if (region == NULL) {
    return NULL;
  }
  *region = (sim_region){.address = address, .size = size, .kind = kind, .in_use = true};
  if (!tarni_sim_array_insert(&device->regions, region_index(device, address), region)) {
    free(region);
    return NULL;
  }
  return region;
}

void tarni_sim_region_delete(sim_device *device, sim_region *region) {
  tarn_assert(region->mappings.n == 0);
  const uint32_t index = region_index(device, region->address) - 1;
  tarn_assert(device->regions.items[index] == region);
  tarni_sim_array_remove(&device->regions, index);
  free(region->mappings.items);
  free(region);
}

sim_mapping *tarni_sim_mapping_make(sim_device *device, sim_region *region, tarn_ptr address,
                                    sim_chunk *chunk) {
  sim_mapping *mapping = tarni_sim_store_zeroed(1, sizeof(*mapping));
  if (mapping == NULL) {
    return NULL;
  }
  *mapping = (sim_mapping){.address = address, .size = chunk->size, .chunk = chunk};
  if (!tarni_sim_array_insert(&region->mappings, mapping_index(region, address), mapping)) {
    free(mapping);
    return NULL;
  }
  chunk->n_mappings++;
  device->mapped_bytes += chunk->size;
  return mapping;
}

void tarni_sim_mapping_destroy(sim_device *device, sim_region *region, sim_mapping *mapping) {
  const uint32_t index = mapping_index(region, mapping->address) - 1;
  tarn_assert(region->mappings.items[index] == mapping);
  tarni_sim_array_remove(&region->mappings, index);
  if (device->recent == mapping) {
    device->recent = NULL;
  }
  device->mapped_bytes -= mapping->size;
  sim_chunk *chunk = mapping->chunk;
  chunk->n_mappings--;
  free(mapping->uses);
  free(mapping);
  tarni_sim_chunk_drop_if_unused(device, chunk);
}

/* ---- Regions that are one allocation ---- */

static sim_region *region_over(sim_device *device, sim_region_kind kind, void *base,
                               sim_chunk *chunk) {
  if (chunk->file >= 0 &&
      !tarni_sim_bytes_map(base, chunk->size, chunk->file, chunk->file_offset)) {
    return NULL;
  }
  sim_region *region = tarni_sim_region_new(device, (uintptr_t)base, chunk->size, kind);
  if (region == NULL) {
    return NULL;
  }
  sim_mapping *mapping = tarni_sim_mapping_make(device, region, region->address, chunk);
  if (mapping == NULL) {
    tarni_sim_region_delete(device, region);
    return NULL;
  }
  mapping->has_access = true;
  return region;
}

tarn_status tarni_sim_region_make(sim_device *device, sim_region_kind kind, uint64_t size,
                                  void *host, sim_region **out) {
  *out = NULL;
  const bool is_host = kind_is_host(kind);
  uint64_t mapped = size;
  if (!is_host && !tarni_align_up_checked(size, tarni_sim_bytes_page(), &mapped)) {
    return TARN_DEVICE_MEMORY;
  }
  sim_chunk *chunk;
  TARN_TRY(tarni_sim_chunk_make(device, mapped, is_host, &chunk));
  void *base = is_host ? host : tarni_sim_bytes_reserve(mapped, tarni_sim_bytes_page());
  sim_region *region = base != NULL ? region_over(device, kind, base, chunk) : NULL;
  if (region == NULL) {
    if (base != NULL && !is_host) {
      (void)tarni_sim_bytes_unreserve(base, mapped);
    }
    tarni_sim_chunk_drop_if_unused(device, chunk);
    return TARN_HOST_MEMORY;
  }
  if (!is_host) {
    tarni_sim_chunk_count(device, chunk);
  }
  *out = region;
  return TARN_OK;
}

void tarni_sim_region_drop(sim_device *device, sim_region *region) {
  if (region->kind != SIM_REGION_REGISTERED) {
    const uint64_t size = tarni_align_up(region->size, tarni_sim_bytes_page());
    (void)tarni_sim_bytes_unreserve(host_pointer(region->address), size);
  }
  while (region->mappings.n != 0) {
    tarni_sim_mapping_destroy(device, region, region->mappings.items[region->mappings.n - 1]);
  }
  tarni_sim_region_delete(device, region);
}

/* ---- The end ---- */

static void region_close(sim_device *device, sim_region *region) {
  static const char *const names[] = {[SIM_REGION_RESERVED] = "a reservation",
                                      [SIM_REGION_PLAIN] = "plain memory",
                                      [SIM_REGION_POOL] = "pooled memory",
                                      [SIM_REGION_HOST] = "pinned memory",
                                      [SIM_REGION_REGISTERED] = "registered memory"};
  if (region->in_use && device->sticky_code == 0) {
    const sim_mapping *mapping = region->mappings.n != 0 ? region->mappings.items[0] : NULL;
    tarn_sim_finding finding = {
        .kind = TARN_SIM_LEAK, .address = region->address, .bytes = region->size};
    tarni_sim_oracle_find_memory(device, &finding, mapping != NULL ? mapping->chunk->shadow : NULL,
                                 names[region->kind]);
  }
  tarni_sim_region_drop(device, region);
}

void tarni_sim_regions_close(sim_device *device) {
  while (device->regions.n != 0) {
    region_close(device, device->regions.items[device->regions.n - 1]);
  }
  free(device->regions.items);
}
