/* SPDX-License-Identifier: MIT
 *
 * The driver's stream-ordered pools of the simulated GPU. Each allocation is a region of its own. A
 * pool keeps freed regions: the stream that freed one may have it at once, others once that is done
 * on the GPU; what exceeds the threshold goes back when the host synchronises, all of it on
 * trimming. Destroying a pool waits for nothing: it goes with its last block.
 *
 * To the oracle allocating and freeing are uses that write: who uses a block must be ordered after
 * the one and before the other, and between them and the next owner the block is nobody's. */
#include <stdlib.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

/* ---- Pools ---- */

tarn_status tarni_sim_pool_create(tarni_port *port, uint64_t threshold, tarni_pool *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_CREATE, 0));
  tarn_status status = device->config.has_pool ? tarni_sim_capture_allows(device, "cuMemPoolCreate")
                                               : tarni_sim_fail_code(device, SIM_CUDA_NOT_SUPPORTED,
                                                                     "cuMemPoolCreate", 0);
  if (status == TARN_OK) {
    sim_pool *pool = tarni_sim_store_zeroed(1, sizeof(*pool));
    if (pool != NULL) {
      *pool = (sim_pool){.is_live = true, .threshold = threshold, .next = device->pools};
      device->pools = pool;
      *out = pool;
    } else {
      status = tarni_sim_no_host_memory(device, "cuMemPoolCreate");
    }
  }
  return tarni_sim_end(device, status);
}

static tarn_status pool_get(sim_device *device, tarni_pool handle, const char *entry,
                            sim_pool **out) {
  for (sim_pool *pool = device->pools; pool != NULL; pool = pool->next) {
    if (pool == handle && pool->is_live) {
      *out = pool;
      return TARN_OK;
    }
  }
  return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, entry,
                          "a pool was used that does not exist or is another device's",
                          (uintptr_t)handle);
}

/* Gives freed regions back to the device until the pool holds at most `keep`; only those whose
 * free the host has seen complete. */
static void pool_shrink(sim_device *device, sim_pool *pool, uint64_t keep) {
  sim_region **link = &pool->free_list;
  while (*link != NULL && pool->cached_bytes > keep) {
    sim_region *region = *link;
    const uint64_t seen = tarni_sim_clock_at(&tarni_sim_world.host, region->freed_slot);
    if (seen < tarni_sim_clock_at(&region->freed_record->clock, region->freed_slot)) {
      link = &region->next_free;
      continue;
    }
    *link = region->next_free;
    pool->cached_bytes -= region->size;
    tarni_sim_record_drop(region->freed_record);
    tarni_sim_region_drop(device, region);
  }
}

/* Removes pools that are destroyed and have no block left. */
static void pools_sweep(sim_device *device) {
  sim_pool **link = &device->pools;
  while (*link != NULL) {
    sim_pool *pool = *link;
    if (!pool->is_live && pool->n_live == 0 && pool->free_list == NULL) {
      *link = pool->next;
      free(pool);
    } else {
      link = &pool->next;
    }
  }
}

void tarni_sim_pools_settle(sim_device *device) {
  for (sim_pool *pool = device->pools; pool != NULL; pool = pool->next) {
    pool_shrink(device, pool, pool->is_live ? pool->threshold : 0);
  }
  pools_sweep(device);
}

tarn_status tarni_sim_pool_trim(tarni_port *port, tarni_pool handle, uint64_t keep_bytes) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_TRIM, 0));
  sim_pool *pool = NULL;
  tarn_status status = tarni_sim_capture_allows(device, "cuMemPoolTrimTo");
  if (status == TARN_OK) {
    status = pool_get(device, handle, "cuMemPoolTrimTo", &pool);
  }
  if (status == TARN_OK) {
    pool_shrink(device, pool, keep_bytes);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_pool_destroy(tarni_port *port, tarni_pool handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_DESTROY, 0));
  sim_pool *pool = NULL;
  tarn_status status = tarni_sim_capture_allows(device, "cuMemPoolDestroy");
  if (status == TARN_OK) {
    status = pool_get(device, handle, "cuMemPoolDestroy", &pool);
  }
  if (status == TARN_OK) {
    pool->is_live = false;
    tarni_sim_pools_settle(device);
  }
  return tarni_sim_end(device, status);
}

/* ---- Blocks ---- */

static tarn_status pool_stream(sim_device *device, tarn_stream handle, const char *entry,
                               sim_stream **stream) {
  TARN_TRY(tarni_sim_stream_act(device, handle, entry, stream));
  if ((*stream)->capture != NULL) { /* refused by the port, not by the driver */
    return tarni_sim_fail_code(device, SIM_CUDA_CAPTURE_UNSUPPORTED, entry, 0);
  }
  TARN_TRY(tarni_sim_capture_allows(device, entry));
  return tarni_sim_stream_prepare(*stream);
}

/* What the pool does to a block at the next operation of the stream. */
static sim_work pool_work(const sim_region *region, sim_operation_kind kind) {
  return (sim_work){.kind = kind,
                    .n_ranges = 1,
                    .range = {.address = region->address, .bytes = region->size, .is_write = true}};
}

static bool pool_reserve(sim_device *device, const sim_work *work) {
  return tarni_sim_oracle_cut(device, work) &&
         tarni_sim_oracle_reserve(device, work, tarni_sim_oracle_stamp());
}

static void pool_judge(sim_device *device, sim_stream *stream, const sim_work *work) {
  tarni_sim_stream_advance(stream);
  const sim_actor actor = {.clock = &stream->clock,
                           .epoch = stream->epoch,
                           .stream_id = stream->id,
                           .slot = stream->slot,
                           .operation = work->kind};
  tarni_sim_oracle_judge(device, &actor, work);
  tarni_sim_oracle_merge(device, work);
}

/* The link to a freed region of this size that the stream may have now: its own, or one whose free
 * is done. */
static sim_region **pool_find(sim_pool *pool, uint64_t size, const sim_stream *stream) {
  for (sim_region **link = &pool->free_list; *link != NULL; link = &(*link)->next_free) {
    const sim_region *region = *link;
    if (region->size == size &&
        (region->freed_slot == stream->slot || region->freed_record->is_done)) {
      return link;
    }
  }
  return NULL;
}

/* Hands a freed region out again. The driver orders the new owner after the free, whoever it is. */
static bool pool_reuse(sim_device *device, sim_pool *pool, sim_region **link, sim_stream *stream) {
  sim_region *region = *link;
  const sim_work work = pool_work(region, SIM_OP_POOL_ALLOC);
  if (!pool_reserve(device, &work) ||
      !tarni_sim_clock_join(&stream->clock, &region->freed_record->clock) ||
      !tarni_sim_oracle_own(device, region->address, region->size, 0, false) ||
      !pool_reserve(device, &work)) {
    return false;
  }
  *link = region->next_free;
  pool->cached_bytes -= region->size;
  tarni_sim_record_drop(region->freed_record);
  region->freed_record = NULL;
  pool_judge(device, stream, &work);
  return true;
}

static tarn_status pool_grow(sim_device *device, sim_pool *pool, uint64_t size, sim_stream *stream,
                             sim_region **out) {
  const uint64_t peak_bytes = device->peak_bytes;
  sim_region *region;
  tarn_status status = tarni_sim_region_make(device, SIM_REGION_POOL, size, NULL, &region);
  if (status == TARN_DEVICE_MEMORY) {
    pool_shrink(device, pool, 0);
    status = tarni_sim_region_make(device, SIM_REGION_POOL, size, NULL, &region);
  }
  if (status != TARN_OK) {
    return tarni_sim_region_fail(device, status, TARN_CALL_POOL_ALLOC, size);
  }
  const sim_work work = pool_work(region, SIM_OP_POOL_ALLOC);
  if (!pool_reserve(device, &work)) {
    tarni_sim_region_drop(device, region);
    device->peak_bytes = peak_bytes; /* it was never the program's */
    return tarni_sim_no_host_memory(device, "cuMemAllocFromPoolAsync");
  }
  pool_judge(device, stream, &work);
  *out = region;
  return TARN_OK;
}

static tarn_status pool_take(sim_device *device, sim_pool *pool, uint64_t size, sim_stream *stream,
                             sim_region **out) {
  const char *entry = "cuMemAllocFromPoolAsync";
  if (size > device->config.capacity_bytes) {
    return tarni_sim_fail_code(device, SIM_CUDA_OUT_OF_MEMORY, entry, size);
  }
  const uint64_t rounded = tarni_align_up(size, tarni_sim_bytes_page());
  sim_region **link = pool_find(pool, rounded, stream);
  sim_region *region = link != NULL ? *link : NULL;
  if (region == NULL) {
    TARN_TRY(pool_grow(device, pool, rounded, stream, &region));
  } else if (!pool_reuse(device, pool, link, stream)) {
    return tarni_sim_no_host_memory(device, entry);
  }
  tarn_assert(region != NULL);
  region->pool = pool;
  region->in_use = true;
  pool->n_live++;
  *out = region;
  return TARN_OK;
}

tarn_status tarni_sim_pool_alloc(tarni_port *port, tarni_pool handle, uint64_t size, tarn_stream on,
                                 tarn_ptr *address) {
  const char *entry = "cuMemAllocFromPoolAsync";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_ALLOC, size));
  sim_stream *stream = NULL;
  sim_pool *pool = NULL;
  sim_region *region = NULL;
  tarn_status status = pool_get(device, handle, entry, &pool);
  if (status == TARN_OK) {
    status = pool_stream(device, on, entry, &stream);
  }
  if (status == TARN_OK) {
    status = pool_take(device, pool, size, stream, &region);
  }
  if (status == TARN_OK) {
    *address = region->address;
  }
  return tarni_sim_end(device, status);
}

static tarn_status pool_give(sim_device *device, sim_region *region, sim_stream *stream) {
  const sim_work work = pool_work(region, SIM_OP_POOL_FREE);
  sim_operation *mark = tarni_sim_mark_make();
  if (mark == NULL || !pool_reserve(device, &work)) {
    tarni_sim_operation_give(mark);
    return tarni_sim_no_host_memory(device, "cuMemFreeAsync");
  }
  pool_judge(device, stream, &work);
  /* The histories have just been made the pieces' own, so this needs no memory. */
  (void)tarni_sim_oracle_own(device, region->address, region->size, 0, true);
  sim_pool *pool = region->pool;
  region->freed_slot = stream->slot;
  region->freed_record = tarni_sim_mark_push(stream, mark);
  region->in_use = false;
  region->next_free = pool->free_list;
  pool->free_list = region;
  pool->n_live--;
  pool->cached_bytes += region->size;
  return TARN_OK;
}

tarn_status tarni_sim_pool_free(tarni_port *port, tarn_ptr address, tarn_stream on) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_POOL_FREE, 0));
  sim_stream *stream = NULL;
  tarn_status status = pool_stream(device, on, "cuMemFreeAsync", &stream);
  sim_region *region = tarni_sim_region_exact(device, address, SIM_REGION_POOL);
  if (status == TARN_OK && (region == NULL || !region->in_use)) {
    status = tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, "cuMemFreeAsync",
                              "memory was freed that is not allocated from a pool", address);
  }
  if (status == TARN_OK) {
    status = pool_give(device, region, stream);
  }
  return tarni_sim_end(device, status);
}

/* Before the regions are closed: they are not looked at. */
void tarni_sim_pools_close(sim_device *device) {
  while (device->pools != NULL) {
    sim_pool *pool = device->pools;
    device->pools = pool->next;
    for (sim_region *region = pool->free_list; region != NULL; region = region->next_free) {
      tarni_sim_record_drop(region->freed_record);
    }
    if (pool->is_live && device->sticky_code == 0) {
      tarn_sim_finding finding = {.kind = TARN_SIM_LEAK, .bytes = pool->cached_bytes};
      tarni_sim_oracle_find(device, &finding, "a pool was never destroyed");
    }
    free(pool);
  }
}
