/* SPDX-License-Identifier: MIT
 *
 * The memory of a simulated GPU: chunks (physical), regions (addresses) and mappings between them,
 * with CUDA's rules: a chunk is mapped and unmapped whole, at any number of addresses; it lives
 * until both its handle and its last mapping are gone. Everything is under the lock of the
 * simulated GPU. Knows the oracle only through tarni_sim_oracle_*. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

static void *host_pointer(tarn_ptr address) {
  return (void *)(uintptr_t)address;
}

/* ---- Sorted arrays of pointers ---- */

static bool array_insert(void ***array, uint32_t *n, uint32_t *capacity, uint32_t at, void *item) {
  if (*n == *capacity) {
    const uint32_t wider = *capacity * 2 + 16;
    void **grown = realloc(*array, wider * sizeof(*grown));
    if (grown == NULL) {
      return false;
    }
    *array = grown;
    *capacity = wider;
  }
  memmove(*array + at + 1, *array + at, (*n - at) * sizeof(**array));
  (*array)[at] = item;
  (*n)++;
  return true;
}

static void array_remove(void **array, uint32_t *n, uint32_t at) {
  memmove(array + at, array + at + 1, (*n - at - 1) * sizeof(*array));
  (*n)--;
}

/* ---- Chunks ---- */

static sim_chunk *chunk_find(const sim_device *device, tarni_chunk id, uint32_t *index) {
  uint32_t low = 0, high = device->n_chunks;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (device->chunks[middle]->id < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (index != NULL) {
    *index = low;
  }
  return low < device->n_chunks && device->chunks[low]->id == id ? device->chunks[low] : NULL;
}

static bool chunk_register(sim_device *device, sim_chunk *chunk) {
  chunk->id = ++device->last_chunk;
  void **array = (void **)device->chunks;
  const bool is_in =
      array_insert(&array, &device->n_chunks, &device->chunks_capacity, device->n_chunks, chunk);
  device->chunks = (sim_chunk **)array;
  return is_in;
}

/* A chunk of the device's own memory, or (host) one that stands for host memory. */
static sim_chunk *chunk_make(sim_device *device, uint64_t size, bool is_host) {
  sim_chunk *chunk = calloc(1, sizeof(*chunk));
  if (chunk == NULL) {
    return NULL;
  }
  *chunk = (sim_chunk){.size = size, .file = is_host ? -1 : device->file, .counts = !is_host};
  if (!tarni_sim_shadow_init(&chunk->shadow, size)) {
    free(chunk);
    return NULL;
  }
  if (!is_host) {
    const uint64_t rounded = tarni_align_up(size, 4096);
    if (!tarni_sim_bytes_grow(device->file, device->file_end + rounded)) {
      tarni_sim_shadow_free(&chunk->shadow);
      free(chunk);
      return NULL;
    }
    chunk->file_offset = device->file_end;
    device->file_end += rounded;
  }
  return chunk;
}

static void chunk_destroy(sim_device *device, sim_chunk *chunk) {
  if (chunk->counts) {
    device->created_bytes -= chunk->size;
  }
  if (chunk->owns_file) {
    (void)close(chunk->file);
  } else if (chunk->file >= 0) {
    tarni_sim_bytes_discard(chunk->file, chunk->file_offset, tarni_align_up(chunk->size, 4096));
  }
  tarni_sim_shadow_free(&chunk->shadow);
  free(chunk);
}

static void chunk_drop_if_unused(sim_device *device, sim_chunk *chunk) {
  if (chunk->n_handles != 0 || chunk->n_mappings != 0) {
    return;
  }
  uint32_t index;
  if (chunk_find(device, chunk->id, &index) == chunk) {
    array_remove((void **)device->chunks, &device->n_chunks, index);
  }
  chunk_destroy(device, chunk);
}

/* Counts new physical memory. False: the device has not that much left. */
static bool capacity_take(sim_device *device, uint64_t size) {
  if (size > device->config.capacity_bytes - device->created_bytes) {
    return false;
  }
  device->created_bytes += size;
  device->peak_bytes = tarni_max(device->peak_bytes, device->created_bytes);
  return true;
}

tarn_status tarni_sim_create(tarni_port *port, uint64_t size, tarni_chunk *chunk_out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_CREATE, size));
  if (!tarni_is_aligned(size, device->config.granularity_bytes)) {
    return tarni_sim_end(device,
                         tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, "cuMemCreate", size));
  }
  if (!capacity_take(device, size)) {
    return tarni_sim_end(device,
                         tarni_sim_fail_code(device, SIM_CUDA_OUT_OF_MEMORY, "cuMemCreate", size));
  }
  sim_chunk *chunk = chunk_make(device, size, false);
  if (chunk == NULL || !chunk_register(device, chunk)) {
    if (chunk != NULL) {
      chunk_destroy(device, chunk);
    } else {
      device->created_bytes -= size;
    }
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuMemCreate"));
  }
  chunk->n_handles = 1;
  *chunk_out = chunk->id;
  return tarni_sim_end(device, TARN_OK);
}

tarn_status tarni_sim_release(tarni_port *port, tarni_chunk id) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_RELEASE, 0));
  sim_chunk *chunk = chunk_find(device, id, NULL);
  if (chunk == NULL || chunk->n_handles == 0) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemRelease",
                                                  "a chunk that does not exist was released", id));
  }
  tarni_sim_charge(device, TARN_CALL_RELEASE, chunk->size);
  chunk->n_handles--;
  chunk_drop_if_unused(device, chunk);
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Regions ---- */

static uint32_t region_index(const sim_device *device, tarn_ptr address) {
  uint32_t low = 0, high = device->n_regions;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (device->regions[middle]->address <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low; /* the first region that begins after the address */
}

sim_region *tarni_sim_region_find(const sim_device *device, tarn_ptr address) {
  const uint32_t index = region_index(device, address);
  if (index == 0) {
    return NULL;
  }
  sim_region *region = device->regions[index - 1];
  return address - region->address < region->size ? region : NULL;
}

static uint64_t region_slots(const sim_region *region) {
  return (region->size + region->granule - 1) / region->granule;
}

static bool region_insert(sim_device *device, sim_region *region) {
  void **array = (void **)device->regions;
  const bool is_in = array_insert(&array, &device->n_regions, &device->regions_capacity,
                                  region_index(device, region->address), region);
  device->regions = (sim_region **)array;
  return is_in;
}

static void region_remove(sim_device *device, const sim_region *region) {
  const uint32_t index = region_index(device, region->address) - 1;
  tarn_assert(device->regions[index] == region);
  array_remove((void **)device->regions, &device->n_regions, index);
}

static sim_region *region_new(tarn_ptr address, uint64_t size, uint64_t granule,
                              sim_region_kind kind) {
  sim_region *region = calloc(1, sizeof(*region));
  if (region == NULL) {
    return NULL;
  }
  *region = (sim_region){.address = address, .size = size, .granule = granule, .kind = kind};
  region->mappings = calloc(region_slots(region), sizeof(sim_mapping *));
  if (region->mappings == NULL) {
    free(region);
    return NULL;
  }
  return region;
}

static void region_free(sim_region *region) {
  free(region->mappings);
  free(region);
}

tarn_status tarni_sim_reserve(tarni_port *port, uint64_t size, uint64_t alignment,
                              tarn_ptr *address) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_RESERVE, size));
  const uint64_t granularity = device->config.granularity_bytes;
  void *base = tarni_sim_bytes_reserve(size, tarni_max(alignment, granularity));
  if (base == NULL) {
    return tarni_sim_end(device, tarni_sim_no_addresses(device, size));
  }
  sim_region *region = region_new((uintptr_t)base, size, granularity, SIM_REGION_RESERVED);
  if (region == NULL || !region_insert(device, region)) {
    if (region != NULL) {
      region_free(region);
    }
    (void)tarni_sim_bytes_unreserve(base, size);
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuMemAddressReserve"));
  }
  *address = region->address;
  return tarni_sim_end(device, TARN_OK);
}

static bool region_is_empty(const sim_region *region) {
  for (uint64_t i = 0; i < region_slots(region); i++) {
    if (region->mappings[i] != NULL) {
      return false;
    }
  }
  return true;
}

tarn_status tarni_sim_unreserve(tarni_port *port, tarn_ptr address, uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_UNRESERVE, 0));
  sim_region *region = tarni_sim_region_find(device, address);
  if (region == NULL || region->kind != SIM_REGION_RESERVED || region->address != address ||
      region->size != size || !region_is_empty(region)) {
    return tarni_sim_end(
        device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemAddressFree",
                                 "addresses were released that are no whole reservation, or that "
                                 "are still mapped",
                                 address));
  }
  region_remove(device, region);
  (void)tarni_sim_bytes_unreserve(host_pointer(address), size);
  region_free(region);
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Mappings ---- */

sim_mapping *tarni_sim_mapping_find(const sim_device *device, tarn_ptr address) {
  const sim_region *region = tarni_sim_region_find(device, address);
  return region != NULL ? region->mappings[(address - region->address) / region->granule] : NULL;
}

bool tarni_sim_range_is_mapped(const sim_device *device, tarn_ptr address, uint64_t size) {
  const tarn_ptr end = address + size;
  while (address < end) {
    const sim_mapping *mapping = tarni_sim_mapping_find(device, address);
    if (mapping == NULL || !mapping->has_access) {
      return false;
    }
    address = mapping->address + mapping->size;
  }
  return true;
}

static void region_point(sim_region *region, tarn_ptr address, uint64_t size,
                         sim_mapping *mapping) {
  const uint64_t first = (address - region->address) / region->granule;
  const uint64_t n = (size + region->granule - 1) / region->granule;
  for (uint64_t i = first; i < first + n; i++) {
    region->mappings[i] = mapping;
  }
}

static bool region_is_free(const sim_region *region, tarn_ptr address, uint64_t size) {
  const uint64_t first = (address - region->address) / region->granule;
  for (uint64_t i = first; i < first + size / region->granule; i++) {
    if (region->mappings[i] != NULL) {
      return false;
    }
  }
  return true;
}

static sim_mapping *mapping_make(sim_device *device, sim_region *region, tarn_ptr address,
                                 sim_chunk *chunk) {
  sim_mapping *mapping = calloc(1, sizeof(*mapping));
  if (mapping != NULL) {
    *mapping = (sim_mapping){.address = address, .size = chunk->size, .chunk = chunk};
    chunk->n_mappings++;
    device->mapped_bytes += chunk->size;
    region_point(region, address, chunk->size, mapping);
  }
  return mapping;
}

static void mapping_destroy(sim_device *device, sim_region *region, sim_mapping *mapping) {
  region_point(region, mapping->address, mapping->size, NULL);
  device->mapped_bytes -= mapping->size;
  sim_chunk *chunk = mapping->chunk;
  chunk->n_mappings--;
  free(mapping->uses);
  free(mapping);
  chunk_drop_if_unused(device, chunk);
}

static tarn_status map_checked(sim_device *device, tarn_ptr address, uint64_t size,
                               tarni_chunk id) {
  sim_chunk *chunk = chunk_find(device, id, NULL);
  sim_region *region = tarni_sim_region_find(device, address);
  if (chunk == NULL || chunk->n_handles == 0 || region == NULL ||
      region->kind != SIM_REGION_RESERVED || size > region->address + region->size - address) {
    return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemMap",
                            "a chunk that does not exist, or addresses that are not reserved, "
                            "were mapped",
                            address);
  }
  if (size != chunk->size) {
    return tarni_sim_fail_code(device, SIM_CUDA_NOT_SUPPORTED, "cuMemMap", size);
  }
  if (!region_is_free(region, address, size)) {
    tarn_sim_finding finding = {.kind = TARN_SIM_DOUBLE_MAP, .address = address, .bytes = size};
    tarni_sim_oracle_find(device, &finding, "chunk %llu was mapped over an existing mapping",
                          (unsigned long long)id);
    return tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, "cuMemMap", size);
  }
  return mapping_make(device, region, address, chunk) != NULL
             ? TARN_OK
             : tarni_sim_no_host_memory(device, "cuMemMap");
}

tarn_status tarni_sim_map(tarni_port *port, tarn_ptr address, uint64_t size, tarni_chunk id) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_MAP, size));
  return tarni_sim_end(device, map_checked(device, address, size, id));
}

/* Every mapping of the range, whole; NULL at the first gap or partial mapping. */
static sim_mapping *mapping_whole_next(const sim_device *device, tarn_ptr address, tarn_ptr end) {
  sim_mapping *mapping = tarni_sim_mapping_find(device, address);
  return mapping != NULL && mapping->address == address && mapping->size <= end - address ? mapping
                                                                                          : NULL;
}

static bool range_is_whole(const sim_device *device, tarn_ptr address, uint64_t size) {
  const tarn_ptr end = address + size;
  while (address < end) {
    const sim_mapping *mapping = mapping_whole_next(device, address, end);
    if (mapping == NULL) {
      return false;
    }
    address += mapping->size;
  }
  return true;
}

tarn_status tarni_sim_access(tarni_port *port, tarn_ptr address, uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_ACCESS, 0));
  const sim_region *region = tarni_sim_region_find(device, address);
  if (region == NULL || region->kind != SIM_REGION_RESERVED ||
      !range_is_whole(device, address, size)) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemSetAccess",
                                                  "access was given to a range that is not made "
                                                  "of whole mappings",
                                                  address));
  }
  for (tarn_ptr at = address; at < address + size;) {
    sim_mapping *mapping = tarni_sim_mapping_find(device, at);
    tarni_sim_charge(device, TARN_CALL_ACCESS, mapping->size);
    if (!mapping->has_access &&
        !tarni_sim_bytes_map(host_pointer(at), mapping->size, mapping->chunk->file,
                             mapping->chunk->file_offset)) {
      return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuMemSetAccess"));
    }
    mapping->has_access = true;
    at += mapping->size;
  }
  return tarni_sim_end(device, TARN_OK);
}

tarn_status tarni_sim_unmap(tarni_port *port, tarn_ptr address, uint64_t size) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_UNMAP, 0));
  sim_region *region = tarni_sim_region_find(device, address);
  if (region == NULL || region->kind != SIM_REGION_RESERVED ||
      !range_is_whole(device, address, size)) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemUnmap",
                                                  "a range was unmapped that is not made of whole "
                                                  "mappings",
                                                  address));
  }
  for (tarn_ptr at = address; at < address + size;) {
    sim_mapping *mapping = tarni_sim_mapping_find(device, at);
    tarni_sim_charge(device, TARN_CALL_UNMAP, mapping->size);
    tarni_sim_oracle_unmap(device, mapping);
    at += mapping->size;
    if (mapping->has_access) {
      (void)tarni_sim_bytes_unmap(host_pointer(mapping->address), mapping->size);
    }
    mapping_destroy(device, region, mapping);
  }
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Sharing ---- */

/* Moves a chunk into a file of its own, under the mappings that it has. */
static bool chunk_move_out(sim_device *device, sim_chunk *chunk) {
  const int file = tarni_sim_bytes_file();
  struct stat facts;
  if (file < 0 || !tarni_sim_bytes_grow(file, chunk->size) || fstat(file, &facts) != 0 ||
      !tarni_sim_bytes_transfer(chunk->file, chunk->file_offset, file, chunk->size)) {
    if (file >= 0) {
      (void)close(file);
    }
    return false;
  }
  for (uint32_t i = 0; i < device->n_regions; i++) {
    const sim_region *region = device->regions[i];
    for (uint64_t j = 0; region->kind == SIM_REGION_RESERVED && j < region_slots(region); j++) {
      const sim_mapping *mapping = region->mappings[j];
      if (mapping != NULL && mapping->chunk == chunk && mapping->has_access) {
        (void)tarni_sim_bytes_map(host_pointer(mapping->address), mapping->size, file, 0);
      }
    }
  }
  tarni_sim_bytes_discard(chunk->file, chunk->file_offset, chunk->size);
  chunk->file = file;
  chunk->file_offset = 0;
  chunk->owns_file = true;
  chunk->inode = facts.st_ino;
  return true;
}

tarn_status tarni_sim_export(tarni_port *port, tarni_chunk id, int *descriptor) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_EXPORT, 0));
  sim_chunk *chunk = chunk_find(device, id, NULL);
  if (chunk == NULL || chunk->n_handles == 0) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE,
                                                  "cuMemExportToShareableHandle",
                                                  "a chunk that does not exist was exported", id));
  }
  if (!chunk->owns_file && !chunk_move_out(device, chunk)) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuMemExportToShareableHandle"));
  }
  const int copy = dup(chunk->file);
  if (copy < 0) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuMemExportToShareableHandle"));
  }
  *descriptor = copy;
  return tarni_sim_end(device, TARN_OK);
}

static sim_chunk *chunk_by_inode(const sim_device *device, uint64_t inode) {
  for (uint32_t i = 0; i < device->n_chunks; i++) {
    if (device->chunks[i]->inode == inode && device->chunks[i]->n_handles != 0) {
      return device->chunks[i];
    }
  }
  return NULL;
}

/* A chunk over the file of another process: the oracle watches this process's uses only. */
static sim_chunk *chunk_adopt(sim_device *device, int descriptor, const struct stat *facts) {
  const int file = dup(descriptor);
  sim_chunk *chunk = file >= 0 ? chunk_make(device, (uint64_t)facts->st_size, true) : NULL;
  if (chunk == NULL || !chunk_register(device, chunk)) {
    if (chunk != NULL) {
      chunk_destroy(device, chunk);
    }
    if (file >= 0) {
      (void)close(file);
    }
    return NULL;
  }
  chunk->file = file;
  chunk->owns_file = true;
  chunk->inode = facts->st_ino;
  chunk->n_handles = 1;
  return chunk;
}

tarn_status tarni_sim_import(tarni_port *port, int descriptor, tarni_chunk *id) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_IMPORT, 0));
  struct stat facts;
  if (fstat(descriptor, &facts) != 0 || facts.st_size <= 0 || !S_ISREG(facts.st_mode) ||
      !tarni_is_aligned((uint64_t)facts.st_size, device->config.granularity_bytes)) {
    return tarni_sim_end(device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE,
                                                  "cuMemImportFromShareableHandle",
                                                  "a descriptor that is no exported chunk was "
                                                  "imported",
                                                  (uint64_t)descriptor));
  }
  sim_chunk *chunk = chunk_by_inode(device, facts.st_ino);
  if (chunk != NULL) {
    chunk->n_handles++;
  } else {
    chunk = chunk_adopt(device, descriptor, &facts);
  }
  if (chunk == NULL) {
    return tarni_sim_end(device,
                         tarni_sim_no_host_memory(device, "cuMemImportFromShareableHandle"));
  }
  *id = chunk->id;
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Regions that are one allocation ---- */

/* The chunk, its addresses and its mapping in one; `host` is the memory itself for pinned memory.
 */
tarn_status tarni_sim_region_make(sim_device *device, sim_region_kind kind, uint64_t size,
                                  void *host, sim_region **out) {
  *out = NULL;
  const bool is_host = host != NULL;
  const uint64_t mapped = is_host ? size : tarni_align_up(size, 4096);
  if (!is_host && !capacity_take(device, mapped)) {
    return TARN_DEVICE_MEMORY;
  }
  sim_chunk *chunk = chunk_make(device, mapped, is_host);
  if (chunk == NULL) {
    device->created_bytes -= is_host ? 0 : mapped;
    return TARN_HOST_MEMORY;
  }
  void *base = is_host ? host : tarni_sim_bytes_reserve(mapped, 4096);
  sim_region *region = NULL;
  if (base != NULL &&
      (is_host || tarni_sim_bytes_map(base, mapped, chunk->file, chunk->file_offset))) {
    region = region_new((uintptr_t)base, mapped, mapped, kind);
  }
  sim_mapping *mapping =
      region != NULL ? mapping_make(device, region, region->address, chunk) : NULL;
  if (mapping == NULL || !region_insert(device, region)) {
    if (mapping != NULL) {
      device->mapped_bytes -= mapping->size;
      free(mapping);
    }
    if (region != NULL) {
      region_free(region);
    }
    if (base != NULL && !is_host) {
      (void)tarni_sim_bytes_unreserve(base, mapped);
    }
    chunk_destroy(device, chunk);
    return TARN_HOST_MEMORY;
  }
  mapping->has_access = true;
  *out = region;
  return TARN_OK;
}

/* Gives everything back. Pinned memory itself stays: it belongs to whoever passed it. */
void tarni_sim_region_drop(sim_device *device, sim_region *region) {
  const bool is_host = region->kind == SIM_REGION_HOST || region->kind == SIM_REGION_REGISTERED;
  if (!is_host) {
    (void)tarni_sim_bytes_unreserve(host_pointer(region->address), region->size);
  }
  region_remove(device, region);
  mapping_destroy(device, region, region->mappings[0]);
  region_free(region);
}

/* ---- The end ---- */

static void region_close(sim_device *device, sim_region *region) {
  static const char *const names[] = {[SIM_REGION_RESERVED] = "reserved addresses",
                                      [SIM_REGION_PLAIN] = "plain memory",
                                      [SIM_REGION_POOL] = "pooled memory",
                                      [SIM_REGION_HOST] = "pinned memory",
                                      [SIM_REGION_REGISTERED] = "registered memory"};
  if (region->kind != SIM_REGION_POOL || region->in_use) {
    tarn_sim_finding finding = {
        .kind = TARN_SIM_LEAK, .address = region->address, .bytes = region->size};
    tarni_sim_oracle_find(device, &finding, "%s were never given back", names[region->kind]);
  }
  if (region->kind != SIM_REGION_RESERVED) {
    void *host = region->kind == SIM_REGION_HOST ? host_pointer(region->address) : NULL;
    tarni_sim_region_drop(device, region);
    free(host);
    return;
  }
  for (uint64_t i = 0; i < region_slots(region); i++) {
    if (region->mappings[i] != NULL) {
      mapping_destroy(device, region, region->mappings[i]);
    }
  }
  region_remove(device, region);
  (void)tarni_sim_bytes_unreserve(host_pointer(region->address), region->size);
  region_free(region);
}

void tarni_sim_memory_close(sim_device *device) {
  while (device->n_regions != 0) {
    region_close(device, device->regions[device->n_regions - 1]);
  }
  while (device->n_chunks != 0) {
    sim_chunk *chunk = device->chunks[--device->n_chunks];
    tarn_sim_finding finding = {.kind = TARN_SIM_LEAK, .bytes = chunk->size};
    tarni_sim_oracle_find(device, &finding, "chunk %llu was never released",
                          (unsigned long long)chunk->id);
    chunk_destroy(device, chunk);
  }
  free(device->chunks);
  free(device->regions);
}
