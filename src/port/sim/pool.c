/* SPDX-License-Identifier: MIT
 *
 * Plain memory, pinned memory and the driver's stream-ordered pools of the simulated GPU. Each
 * allocation is a region of its own. A pool keeps freed regions: the stream that freed one may have
 * it at once, others once that is done on the GPU; what exceeds the threshold goes back when the
 * host synchronises, all of it on trimming. */
#include <stdlib.h>

#include "base/bits.h"
#include "port/sim/sim.h"

/* ---- Plain memory ---- */

static tarn_status region_fail(sim_device *device, tarn_status status, const char *entry,
                               uint64_t size) {
  return status == TARN_DEVICE_MEMORY
             ? tarni_sim_fail_code(device, SIM_CUDA_OUT_OF_MEMORY, entry, size)
             : tarni_sim_no_host_memory(device, entry);
}

tarn_status tarni_sim_plain_alloc(tarni_port *port, uint64_t size, tarn_ptr *address) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_PLAIN_ALLOC, size));
  tarn_status status = tarni_sim_capture_allows(device, "cuMemAlloc");
  sim_region *region = NULL;
  if (status == TARN_OK) {
    status = tarni_sim_region_make(device, SIM_REGION_PLAIN, size, NULL, &region);
    status = status == TARN_OK ? status : region_fail(device, status, "cuMemAlloc", size);
  }
  *address = region != NULL ? region->address : 0;
  return tarni_sim_end(device, status);
}

static sim_region *region_exact(const sim_device *device, tarn_ptr address, sim_region_kind kind) {
  sim_region *region = tarni_sim_region_find(device, address);
  return region != NULL && region->address == address && region->kind == kind ? region : NULL;
}

tarn_status tarni_sim_plain_free(tarni_port *port, tarn_ptr address) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_PLAIN_FREE, 0));
  tarn_status status = tarni_sim_capture_allows(device, "cuMemFree");
  if (status == TARN_OK && region_exact(device, address, SIM_REGION_PLAIN) == NULL) {
    status = tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemFree",
                              "memory was freed that is not allocated", address);
  }
  if (status == TARN_OK) {
    tarni_sim_finish_device(device);
    sim_region *region = region_exact(device, address, SIM_REGION_PLAIN);
    if (region != NULL) {
      tarni_sim_region_drop(device, region);
    }
  }
  return tarni_sim_end(device, status);
}

/* ---- Pinned memory ---- */

tarn_status tarni_sim_host_alloc(tarni_port *port, uint64_t size, unsigned flags, void **pointer) {
  sim_device *device = (sim_device *)port;
  (void)flags; /* write-combined memory behaves the same here */
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_ALLOC, size));
  *pointer = NULL;
  tarn_status status = tarni_sim_capture_allows(device, "cuMemHostAlloc");
  if (status == TARN_OK) {
    const uint64_t rounded = size <= UINT64_MAX - 4096 ? tarni_align_up(size, 4096) : 0;
    void *memory = rounded != 0 ? aligned_alloc(4096, rounded) : NULL;
    sim_region *region;
    if (memory == NULL ||
        tarni_sim_region_make(device, SIM_REGION_HOST, size, memory, &region) != TARN_OK) {
      free(memory);
      status = tarni_sim_no_host_memory(device, "cuMemHostAlloc");
    } else {
      *pointer = memory;
    }
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_host_free(tarni_port *port, void *pointer) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_FREE, 0));
  tarn_status status = tarni_sim_capture_allows(device, "cuMemFreeHost");
  if (status == TARN_OK && region_exact(device, (uintptr_t)pointer, SIM_REGION_HOST) == NULL) {
    status = tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemFreeHost",
                              "pinned memory was freed that is not allocated", (uintptr_t)pointer);
  }
  if (status == TARN_OK) {
    tarni_sim_finish_device(device);
    sim_region *region = region_exact(device, (uintptr_t)pointer, SIM_REGION_HOST);
    if (region != NULL) {
      tarni_sim_region_drop(device, region);
      free(pointer);
    }
  }
  return tarni_sim_end(device, status);
}

static bool overlaps_pinned(const sim_device *device, tarn_ptr address, uint64_t size) {
  for (uint32_t i = 0; i < device->n_regions; i++) {
    const sim_region *region = device->regions[i];
    if (region->address < address + size && address < region->address + region->size) {
      return true;
    }
  }
  return false;
}

tarn_status tarni_sim_host_register(tarni_port *port, void *pointer, uint64_t size) {
  sim_device *device = (sim_device *)port;
  const tarn_ptr address = (uintptr_t)pointer;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_REGISTER, size));
  tarn_status status = TARN_OK;
  sim_region *region;
  if (!device->config.has_register) {
    status = tarni_sim_fail_code(device, SIM_CUDA_NOT_SUPPORTED, "cuMemHostRegister", size);
  } else if (overlaps_pinned(device, address, size)) {
    status = tarni_sim_fail_code(device, SIM_CUDA_ALREADY_REGISTERED, "cuMemHostRegister", size);
  } else if (!tarni_sim_bytes_is_host(address, size)) {
    status = tarni_sim_fail_code(device, SIM_CUDA_INVALID_VALUE, "cuMemHostRegister", size);
  } else if (tarni_sim_region_make(device, SIM_REGION_REGISTERED, size, pointer, &region) !=
             TARN_OK) {
    status = tarni_sim_no_host_memory(device, "cuMemHostRegister");
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_host_unregister(tarni_port *port, void *pointer) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_HOST_UNREGISTER, 0));
  sim_region *region = region_exact(device, (uintptr_t)pointer, SIM_REGION_REGISTERED);
  if (region == NULL) {
    return tarni_sim_end(
        device, tarni_sim_fail_code(device, SIM_CUDA_NOT_REGISTERED, "cuMemHostUnregister", 0));
  }
  tarni_sim_oracle_unmap(device, region->mappings[0]);
  tarni_sim_region_drop(device, region);
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Pools ---- */

tarn_status tarni_sim_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_CREATE, 0));
  if (!device->config.has_pool) {
    return tarni_sim_end(device,
                         tarni_sim_fail_code(device, SIM_CUDA_NOT_SUPPORTED, "cuMemPoolCreate", 0));
  }
  sim_pool *pool = malloc(sizeof(*pool));
  if (pool == NULL) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuMemPoolCreate"));
  }
  *pool = (sim_pool){.threshold = threshold, .next = device->pools};
  device->pools = pool;
  *out = pool;
  return tarni_sim_end(device, TARN_OK);
}

/* Gives freed regions back to the device until the pool holds at most `keep`; only those whose
 * free the host has seen complete. */
static void pool_shrink(sim_device *device, sim_pool *pool, uint64_t keep) {
  sim_region **link = &pool->free_list;
  while (*link != NULL && pool->cached_bytes > keep) {
    sim_region *region = *link;
    if (tarni_sim_clock_at(&tarni_sim_world.host, region->freed_by.slot) < region->freed_by.epoch) {
      link = &region->next_free;
      continue;
    }
    *link = region->next_free;
    pool->cached_bytes -= region->size;
    tarni_sim_record_drop(region->freed_record);
    tarni_sim_region_drop(device, region);
  }
}

void tarni_sim_pools_settle(sim_device *device) {
  for (sim_pool *pool = device->pools; pool != NULL; pool = pool->next) {
    pool_shrink(device, pool, pool->threshold);
  }
}

tarn_status tarni_sim_pool_trim(tarni_port *port, tarni_pool pool, uint64_t keep_bytes) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_TRIM, 0));
  pool_shrink(device, pool, keep_bytes);
  return tarni_sim_end(device, TARN_OK);
}

/* Pools go when their last block is freed; the driver allows destroying them before. */
tarn_status tarni_sim_pool_destroy(tarni_port *port, tarni_pool handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_DESTROY, 0));
  sim_pool *pool = handle;
  if (pool->n_live != 0) {
    return tarni_sim_end(
        device, tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemPoolDestroy",
                                 "a pool was destroyed while blocks of it are live", pool->n_live));
  }
  tarni_sim_finish_device(device);
  pool_shrink(device, pool, 0);
  sim_pool **link = &device->pools;
  while (*link != pool) {
    link = &(*link)->next;
  }
  *link = pool->next;
  free(pool);
  return tarni_sim_end(device, TARN_OK);
}

/* A freed region of this size that the stream may have now: its own, or one whose free is done. */
static sim_region *pool_reuse(sim_pool *pool, uint64_t size, sim_stream *stream) {
  for (sim_region **link = &pool->free_list; *link != NULL; link = &(*link)->next_free) {
    sim_region *region = *link;
    if (region->size == size &&
        (region->freed_by.slot == stream->slot || region->freed_record->is_done)) {
      *link = region->next_free;
      pool->cached_bytes -= region->size;
      return region;
    }
  }
  return NULL;
}

static tarn_status pool_take(sim_device *device, sim_pool *pool, uint64_t size, sim_stream *stream,
                             sim_region **out) {
  const uint64_t rounded = tarni_align_up(size, 4096);
  sim_region *region = pool_reuse(pool, rounded, stream);
  if (region != NULL) {
    /* The driver orders the new owner after the free, whoever it is. */
    (void)tarni_sim_clock_join(&stream->clock, &region->freed_record->clock);
    tarni_sim_record_drop(region->freed_record);
    region->freed_record = NULL;
  } else {
    tarn_status status = tarni_sim_region_make(device, SIM_REGION_POOL, rounded, NULL, &region);
    if (status == TARN_DEVICE_MEMORY) {
      pool_shrink(device, pool, 0);
      status = tarni_sim_region_make(device, SIM_REGION_POOL, rounded, NULL, &region);
    }
    if (status != TARN_OK) {
      return region_fail(device, status, "cuMemAllocFromPoolAsync", size);
    }
  }
  region->pool = pool;
  region->in_use = true;
  pool->n_live++;
  *out = region;
  return TARN_OK;
}

static tarn_status pool_stream(sim_device *device, tarn_stream handle, const char *entry,
                               sim_stream **stream) {
  TARN_TRY(tarni_sim_stream_get(device, handle, entry, stream));
  if ((*stream)->capture != NULL) {
    return tarni_sim_fail_code(device, SIM_CUDA_CAPTURE_UNSUPPORTED, entry, 0);
  }
  return tarni_sim_stream_prepare(*stream);
}

tarn_status tarni_sim_pool_alloc(tarni_port *port, tarni_pool pool, uint64_t size,
                                 tarn_stream handle, tarn_ptr *address) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_ALLOC, size));
  sim_stream *stream;
  sim_region *region = NULL;
  tarn_status status = pool_stream(device, handle, "cuMemAllocFromPoolAsync", &stream);
  if (status == TARN_OK) {
    status =
        size > device->config.capacity_bytes
            ? tarni_sim_fail_code(device, SIM_CUDA_OUT_OF_MEMORY, "cuMemAllocFromPoolAsync", size)
            : pool_take(device, pool, size, stream, &region);
  }
  *address = region != NULL ? region->address : 0;
  return tarni_sim_end(device, status);
}

static tarn_status pool_give(sim_device *device, sim_region *region, sim_stream *stream) {
  sim_record *record;
  TARN_TRY(tarni_sim_record_on(stream, &record));
  const sim_actor actor = {.clock = &stream->clock,
                           .epoch = stream->epoch,
                           .stream_id = stream->id,
                           .slot = stream->slot,
                           .operation = SIM_OP_POOL_FREE};
  const tarn_sim_range range = {
      .address = region->address, .bytes = region->size, .is_write = true};
  (void)tarni_sim_oracle_use(device, &actor, &range);
  region->freed_by = (sim_use){.slot = stream->slot, .epoch = stream->epoch};
  region->freed_record = record;
  region->in_use = false;
  region->pool->n_live--;
  region->pool->cached_bytes += region->size;
  region->next_free = region->pool->free_list;
  region->pool->free_list = region;
  return TARN_OK;
}

tarn_status tarni_sim_pool_free(tarni_port *port, tarn_ptr address, tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_FREE, 0));
  sim_stream *stream;
  tarn_status status = pool_stream(device, handle, "cuMemFreeAsync", &stream);
  sim_region *region = region_exact(device, address, SIM_REGION_POOL);
  if (status == TARN_OK && (region == NULL || !region->in_use)) {
    status = tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemFreeAsync",
                              "memory was freed that is not allocated from a pool", address);
  }
  if (status == TARN_OK) {
    status = pool_give(device, region, stream);
  }
  return tarni_sim_end(device, status);
}

void tarni_sim_pools_close(sim_device *device) {
  while (device->pools != NULL) {
    sim_pool *pool = device->pools;
    device->pools = pool->next;
    for (sim_region *region = pool->free_list; region != NULL; region = region->next_free) {
      tarni_sim_record_drop(region->freed_record);
    }
    tarn_sim_finding finding = {.kind = TARN_SIM_LEAK, .bytes = pool->cached_bytes};
    tarni_sim_oracle_find(device, &finding, "a pool was never destroyed");
    free(pool);
  }
}
