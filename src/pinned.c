/* SPDX-License-Identifier: MIT
 *
 * Pinned pools: heaps of the host's memory (port/host). A block is given out only when nothing
 * uses it any more: the host's own use ends when it gives the block back, and what a stream may
 * still do with it is awaited as for blocks that several streams use (use.c). Chunks stay where
 * they are, since a move would be a registration, and no block lies on two (types.h, "fixed").
 *
 * A pool with a limit on live or cached bytes counts them itself: `live_bytes` is raised before a
 * block is handed out and lowered after it is back, so that it is never less than the truth and
 * the limit holds whatever other threads do.
 *
 * Where memory of the host cannot be registered, or is to be write-combined, or to be kept by
 * powers of two, the heap is one of whole allocations of the driver (bucket.c), which counts for
 * itself. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/fork.h"

struct tarn_pinned {
  /* immutable after create: */
  tarn_heap *heap;
  tarn_pinned_config config;
  bool is_counted; /* has a limit on live or cached bytes */
  /* atomic: */
  _Atomic uint64_t live_bytes; /* where is_counted */
};

#define PINNED_REGION_MIN ((uint64_t)2 << 20)
#define PINNED_REGION_MAX ((uint64_t)1 << 30)
#define PINNED_REGION_DEFAULT ((uint64_t)32 << 20)
#define PINNED_POWER_CACHED ((uint64_t)128 << 20)

enum {
  PINNED_FLAGS =
      TARN_PINNED_WRITE_COMBINED | TARN_PINNED_NODE | TARN_PINNED_SMALL_PAGES | TARN_PINNED_ZEROED,
  PINNED_REGION_SHARE = 8, /* a region is at most this part of a small pool's limit */
};

/* ---- Making ---- */

static tarn_status pinned_refuse(tarn_status status, const char *remedy, const char *what,
                                 uint64_t number) {
  return tarni_fail(status, "tarn_pinned_create", NULL, remedy, "%s %llu", what,
                    (unsigned long long)number);
}

/* Whether the pool is to be one of the driver's own allocations. */
static bool wants_driver(const tarn_pinned_config *config) {
  return config->rounding != TARN_PINNED_CLASSES ||
         (config->flags & TARN_PINNED_WRITE_COMBINED) != 0;
}

static tarn_status config_check(const tarn_pinned_config *config) {
  if ((config->flags & ~(uint32_t)PINNED_FLAGS) != 0) {
    return pinned_refuse(TARN_INVALID, "Use flags of tarn/pinned.h.",
                         "the flags are unknown:", config->flags);
  }
  if (config->rounding > TARN_PINNED_POWER_OF_TWO) {
    return pinned_refuse(TARN_INVALID, "Use one of tarn_pinned_rounding's values.", "rounding is",
                         (uint64_t)config->rounding);
  }
  const uint64_t region = config->region_bytes;
  if (region != 0 &&
      (!tarni_is_pow2(region) || region < PINNED_REGION_MIN || region > PINNED_REGION_MAX)) {
    return pinned_refuse(TARN_INVALID, "Pass a power of two from 2097152 to 1073741824, or 0.",
                         "region_bytes is", region);
  }
  if (wants_driver(config) && (config->flags & TARN_PINNED_NODE) != 0) {
    return pinned_refuse(
        TARN_UNSUPPORTED, "Leave the rounding and write-combined memory alone, or name no node.",
        "the driver's own allocations cannot be placed on memory node", config->numa_node);
  }
  return TARN_OK;
}

static uint64_t region_of(const tarn_pinned_config *config) {
  if (config->region_bytes != 0) {
    return config->region_bytes;
  }
  if (config->limit_bytes == 0) {
    return PINNED_REGION_DEFAULT;
  }
  const uint64_t share = (uint64_t)1
                         << tarni_log2(tarni_max(config->limit_bytes / PINNED_REGION_SHARE, 1));
  return tarni_max(PINNED_REGION_MIN, tarni_min(share, PINNED_REGION_DEFAULT));
}

/* A heap of regions. */
static tarn_heap_config region_config(const tarn_pinned_config *config, const tarni_port *port) {
  const uint64_t half = tarni_max(port->device.total_bytes / 2, port->device.granularity_bytes);
  return (tarn_heap_config){.size = sizeof(tarn_heap_config),
                            .limit_bytes = config->limit_bytes != 0 ? config->limit_bytes : half,
                            .stealing = TARN_STEAL_NEVER};
}

/* A heap of the driver's own allocations. By powers of two it keeps 128 MiB, and of each size as
 * many as fit into that, at least one and at most 1024, unless the config says otherwise. */
static tarn_heap_config driver_config(const tarn_pinned_config *config, const tarni_port *port) {
  const bool is_by_power = config->rounding == TARN_PINNED_POWER_OF_TWO;
  tarn_heap_config heap = region_config(config, port);
  heap.backing = TARN_BACKING_PLAIN;
  heap.preset = is_by_power ? TARN_PRESET_POWER_BUCKETS : TARN_PRESET_NONE;
  heap.live_limit_bytes = config->live_limit_bytes;
  heap.cached_limit_bytes = config->cached_limit_bytes;
  if (is_by_power && config->cached_limit_bytes == 0) {
    heap.cached_limit_bytes = PINNED_POWER_CACHED;
  }
  return heap;
}

static tarn_status pinned_open(tarn_pinned *pool) {
  const tarn_pinned_config *config = &pool->config;
  const tarni_host_config host = {.region_bytes = region_of(config),
                                  .node = config->numa_node,
                                  .has_node = (config->flags & TARN_PINNED_NODE) != 0,
                                  .has_small_pages = (config->flags & TARN_PINNED_SMALL_PAGES) != 0,
                                  .is_write_combined =
                                      (config->flags & TARN_PINNED_WRITE_COMBINED) != 0};
  tarni_port *port;
  TARN_TRY(tarni_port_host_open(config->device, &host, &port));
  const bool is_driver = wants_driver(config) || !tarni_port_host_can_register(port);
  const tarn_heap_config heap =
      is_driver ? driver_config(config, port) : region_config(config, port);
  pool->is_counted =
      !is_driver && (config->live_limit_bytes != 0 || config->cached_limit_bytes != 0);
  TARN_TRY(tarni_heap_create_on(&heap, port, &pool->heap));
  return tarni_host_add_pool(pool, tarni_port_host_device(port), pool->heap->base,
                             pool->heap->size);
}

tarn_status tarn_pinned_create(const tarn_pinned_config *config, tarn_pinned **out) {
  if (out == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_pinned_create", NULL,
                      "Pass the address of a tarn_pinned *.", "the output is NULL");
  }
  *out = NULL;
  tarn_pinned_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), "tarn_pinned_create"));
    TARN_TRY(TARNI_RESERVED(&known, reserved_u32, "tarn_pinned_create"));
  }
  TARN_TRY(config_check(&known));
  tarn_pinned *pool = calloc(1, sizeof(*pool));
  if (pool == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_pinned_create", NULL, "Free some host memory.",
                      "no host memory for a pool (%zu bytes)", sizeof(*pool));
  }
  pool->config = known;
  const tarn_status status = pinned_open(pool);
  if (status != TARN_OK) {
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    (void)tarn_heap_destroy(pool->heap, NULL);
    free(pool);
    return tarni_fail_again(&error);
  }
  pool->config.device = NULL; /* the caller's text may go */
  *out = pool;
  return TARN_OK;
}

/* The heap speaks of device memory; here it is the host's. */
static tarn_status host_status(tarn_status status) {
  if (status != TARN_DEVICE_MEMORY) {
    return status;
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  error.status = TARN_HOST_MEMORY;
  return tarni_fail_again(&error);
}

tarn_status tarn_pinned_destroy(tarn_pinned *pool, uint64_t *n_live) {
  if (n_live != NULL) {
    *n_live = 0;
  }
  if (pool == NULL) {
    return TARN_OK;
  }
  TARN_TRY(tarni_heap_given(pool->heap, "tarn_pinned_destroy"));
  void *taken = tarni_host_take_pool(pool); /* nobody may ask a pool that goes */
  const tarn_status status = host_status(tarn_heap_destroy(pool->heap, n_live));
  if (status != TARN_OK) {
    tarni_host_put_pool(taken);
    return status;
  }
  free(taken);
  free(pool);
  return TARN_OK;
}

static tarn_status pinned_given(const tarn_pinned *pool, const char *operation) {
  if (pool == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass a pool.", "pool is NULL");
  }
  return tarni_heap_given(pool->heap, operation);
}

tarn_device *tarn_pinned_device(tarn_pinned *pool) {
  return pool != NULL ? (tarn_device *)tarni_port_host_device(pool->heap->port) : NULL;
}

tarn_heap *tarni_pinned_heap(tarn_pinned *pool) {
  return pool->heap;
}

uint64_t tarni_pinned_live_limit(const tarn_pinned *pool) {
  const uint64_t limit = pool->config.live_limit_bytes;
  return limit != 0 ? limit : UINT64_MAX;
}

/* ---- Counting ---- */

/* The size of a live block that begins there; 0: there is none. */
static uint64_t block_size_at(tarn_pinned *pool, const void *block) {
  const uint64_t offset = (uintptr_t)block - pool->heap->base;
  tarni_block found = {0};
  tarni_lock_acquire(&pool->heap->lock);
  const bool is_block = tarni_block_find_locked(pool->heap, offset, &found);
  tarni_lock_release(&pool->heap->lock);
  return is_block && found.is_live && found.offset == offset ? found.bytes : 0;
}

/* Counts so many bytes as live, unless that would pass the limit. */
static bool live_raise(tarn_pinned *pool, uint64_t bytes) {
  const uint64_t limit = pool->config.live_limit_bytes;
  uint64_t live = atomic_load_explicit(&pool->live_bytes, memory_order_relaxed);
  do {
    if (limit != 0 && (live > limit || bytes > limit - live)) {
      return false;
    }
  } while (!atomic_compare_exchange_weak_explicit(&pool->live_bytes, &live, live + bytes,
                                                  memory_order_acq_rel, memory_order_relaxed));
  return true;
}

static void live_lower(tarn_pinned *pool, uint64_t bytes) {
  const uint64_t before = atomic_fetch_sub_explicit(&pool->live_bytes, bytes, memory_order_acq_rel);
  tarn_assert(before >= bytes);
  (void)before;
}

static tarn_status live_fail(const tarn_pinned *pool, uint64_t size, uint64_t live) {
  const uint64_t limit = pool->config.live_limit_bytes;
  const tarni_facts facts = {.device = pool->heap->port->device.name,
                             .requested_bytes = size,
                             .available_bytes = limit - tarni_min(limit, live)};
  return tarni_fail(TARN_LIMIT, "tarn_pinned_alloc", &facts,
                    "Free blocks, or raise live_limit_bytes of the pool.",
                    "%llu more bytes would pass the limit on live pinned memory: %llu of %llu are "
                    "live",
                    (unsigned long long)size, (unsigned long long)live, (unsigned long long)limit);
}

/* ---- Allocation ---- */

/* Whether so many bytes more pass the limit on live ones of a heap that counts them itself. */
static bool is_beyond_live(const tarn_pinned *pool, uint64_t bytes, uint64_t live) {
  const uint64_t limit = tarni_pinned_live_limit(pool);
  uint64_t size;
  return pool->heap->buckets != NULL && tarni_block_size_of(pool->heap, bytes, 1, &size) &&
         size > limit - tarni_min(limit, live);
}

/* There is not enough: the error with the numbers of the pool. */
static tarn_status memory_fail(tarn_pinned *pool, tarn_status status, uint64_t bytes,
                               const char *operation) {
  if (status != TARN_DEVICE_MEMORY && status != TARN_LIMIT && status != TARN_ADDRESS_SPACE) {
    return status;
  }
  tarn_error cause = {.size = sizeof(cause)};
  (void)tarn_last_error(&cause);
  tarn_heap_stats stats = {.size = sizeof(stats)};
  (void)tarn_heap_get_stats(pool->heap, &stats);
  const tarni_facts facts = {.device = cause.device,
                             .requested_bytes = bytes,
                             .available_bytes = cause.available_bytes,
                             .driver_code = cause.driver_code,
                             .driver_name = cause.driver_name};
  return tarni_fail(
      status == TARN_LIMIT ? TARN_LIMIT : TARN_HOST_MEMORY, operation, &facts,
      status == TARN_LIMIT ? "Free blocks, or raise limit_bytes of the pool."
                           : "Free blocks or other host memory, or trim other pools.",
      "no room for %llu bytes of pinned memory: live %llu, cached %llu, pending %llu, held %llu of "
      "at most %llu%s%s",
      (unsigned long long)bytes, (unsigned long long)stats.live_bytes,
      (unsigned long long)stats.cached_bytes, (unsigned long long)stats.pending_bytes,
      (unsigned long long)stats.reserved_bytes, (unsigned long long)stats.limit_bytes,
      cause.driver_name[0] != '\0' ? "; the driver said " : "", cause.driver_name);
}

static tarn_status alloc_fail(tarn_pinned *pool, tarn_status status, uint64_t bytes) {
  tarn_heap_stats stats = {.size = sizeof(stats)};
  if (status == TARN_LIMIT) {
    (void)tarn_heap_get_stats(pool->heap, &stats);
  }
  return status == TARN_LIMIT && is_beyond_live(pool, bytes, stats.live_bytes)
             ? live_fail(pool, bytes, stats.live_bytes)
             : memory_fail(pool, status, bytes, "tarn_pinned_alloc");
}

static tarn_status alloc_plain(tarn_pinned *pool, uint64_t bytes, uint64_t alignment,
                               void **block) {
  tarn_ptr address = 0;
  const tarn_status status =
      tarn_alloc_aligned(pool->heap, bytes, alignment, TARNI_STREAM_HOST, &address);
  *block = (void *)(uintptr_t)address;
  return status == TARN_OK ? TARN_OK : alloc_fail(pool, status, bytes);
}

/* All of the block, what is beyond the request included. */
static void block_zero(tarn_pinned *pool, void *block) {
  if ((pool->config.flags & TARN_PINNED_ZEROED) != 0 && block != NULL) {
    memset(block, 0, block_size_at(pool, block));
  }
}

TARNI_SLOW static tarn_status alloc_counted(tarn_pinned *pool, uint64_t bytes, uint64_t alignment,
                                            void **block) {
  if (block == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_pinned_alloc", NULL, "Pass the address of a pointer.",
                      "the output is NULL");
  }
  *block = NULL;
  TARN_TRY(pinned_given(pool, "tarn_pinned_alloc"));
  uint64_t size;
  if (!pool->is_counted || bytes == 0 || !tarni_is_pow2(alignment) ||
      !tarni_block_size_of(pool->heap, bytes, alignment, &size)) {
    TARN_TRY(alloc_plain(pool, bytes, alignment, block)); /* or what is wrong with it */
    block_zero(pool, *block);
    return TARN_OK;
  }
  if (!live_raise(pool, size)) {
    return live_fail(pool, size, atomic_load_explicit(&pool->live_bytes, memory_order_relaxed));
  }
  const tarn_status status = alloc_plain(pool, bytes, alignment, block);
  if (status != TARN_OK) {
    live_lower(pool, size);
    return status;
  }
  block_zero(pool, *block);
  return TARN_OK;
}

tarn_status tarn_pinned_alloc(tarn_pinned *pool, uint64_t bytes, void **block) {
  if (TARNI_LIKELY(pool != NULL && block != NULL && !pool->is_counted &&
                   (pool->config.flags & TARN_PINNED_ZEROED) == 0)) {
    tarn_ptr address;
    const tarn_status status = tarn_alloc(pool->heap, bytes, TARNI_STREAM_HOST, &address);
    *block = (void *)(uintptr_t)address;
    return TARNI_LIKELY(status == TARN_OK) ? TARN_OK : alloc_fail(pool, status, bytes);
  }
  return alloc_counted(pool, bytes, 1, block);
}

tarn_status tarn_pinned_alloc_aligned(tarn_pinned *pool, uint64_t bytes, uint64_t alignment,
                                      void **block) {
  return alloc_counted(pool, bytes, alignment, block);
}

/* ---- Freeing ---- */

/* Gives regions back that the limit on cached memory does not let the pool keep. Waits for nothing.
 * pre: live_bytes no longer has what was freed. */
static void cached_enforce(tarn_pinned *pool) {
  tarn_heap *heap = pool->heap;
  if (pool->config.cached_limit_bytes == 0 || tarni_capture_forbids()) {
    return; /* a later free sees to it */
  }
  tarni_lock_acquire(&heap->lock);
  const uint64_t in_use =
      atomic_load_explicit(&pool->live_bytes, memory_order_acquire) + heap->pending_bytes;
  const uint64_t keep = in_use + tarni_min(pool->config.cached_limit_bytes, UINT64_MAX - in_use);
  const bool is_over = heap->reserved_bytes > keep;
  tarni_lock_release(&heap->lock);
  if (is_over) {
    (void)tarni_heap_trim_ready(heap, keep); /* what the driver refuses now it may take later */
  }
}

TARNI_SLOW static tarn_status free_counted(tarn_pinned *pool, void *block) {
  TARN_TRY(pinned_given(pool, "tarn_pinned_free"));
  const uint64_t size = block_size_at(pool, block);
  TARN_TRY(tarn_free(pool->heap, (uintptr_t)block, TARNI_STREAM_HOST));
  if (size != 0 && pool->is_counted) {
    live_lower(pool, size);
    cached_enforce(pool);
  }
  return TARN_OK;
}

tarn_status tarn_pinned_free(tarn_pinned *pool, void *block) {
  if (TARNI_LIKELY(pool != NULL && !pool->is_counted)) {
    return tarn_free(pool->heap, (uintptr_t)block, TARNI_STREAM_HOST);
  }
  return free_counted(pool, block);
}

/* What a stream is given while it is captured happens at each launch of the graph. */
static tarn_status capture_refuse(const tarn_pinned *pool, const void *block, tarn_stream stream) {
  tarni_capture_state state = {0};
  if (!tarni_is_legacy(stream)) {
    TARN_TRY(tarni_port_capture_state(pool->heap->port, stream, &state));
  }
  if (state.status == TARNI_CAPTURE_NONE) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = pool->heap->port->device.name};
  return tarni_fail(
      TARN_CAPTURE, "tarn_pinned_free_on", &facts,
      "Keep the block as long as the graph may be launched, then free it.",
      "the stream is being captured: each launch of the graph may use the block at %p", block);
}

tarn_status tarn_pinned_free_on(tarn_pinned *pool, void *block, tarn_stream stream) {
  TARN_TRY(pinned_given(pool, "tarn_pinned_free_on"));
  if (block == NULL) {
    return TARN_OK;
  }
  TARN_TRY(capture_refuse(pool, block, stream));
  const tarn_status status = tarn_use(pool->heap, (uintptr_t)block, stream);
  if (status == TARN_HOST_MEMORY || status == TARN_LIMIT) {
    /* No memory to note the stream with, or too many streams: it is waited for, so that the block
     * is free all the same (I7). */
    TARNI_RELAXED(pool->heap->port);
    TARN_TRY(tarni_port_stream_sync(pool->heap->port, stream));
  } else {
    TARN_TRY(status);
  }
  return tarn_pinned_free(pool, block);
}

tarn_status tarn_pinned_stream_retire(tarn_pinned *pool, tarn_stream stream) {
  TARN_TRY(pinned_given(pool, "tarn_pinned_stream_retire"));
  return host_status(tarn_stream_retire(pool->heap, stream));
}

/* ---- Questions ---- */

tarn_status tarn_pinned_get_info(tarn_pinned *pool, const void *pointer, tarn_block_info *info) {
  static const tarn_block_info empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(info, &empty, sizeof(empty), "tarn_pinned_get_info"));
  TARN_TRY(pinned_given(pool, "tarn_pinned_get_info"));
  return tarn_block_get_info(pool->heap, (uintptr_t)pointer, info);
}

bool tarn_pinned_owns(tarn_pinned *pool, const void *pointer, uint64_t bytes) {
  if (pool == NULL || pool->heap->fork != tarni_fork_count()) {
    return false;
  }
  const uint64_t offset = (uintptr_t)pointer - pool->heap->base;
  if ((offset >= pool->heap->size && pool->heap->buckets == NULL) || bytes == 0) {
    return false;
  }
  tarni_block found = {0};
  tarni_lock_acquire(&pool->heap->lock);
  const bool is_live = tarni_block_find_locked(pool->heap, offset, &found) && found.is_live;
  tarni_lock_release(&pool->heap->lock);
  return is_live && bytes <= found.bytes - (offset - found.offset);
}

tarn_status tarn_pinned_get_stats(tarn_pinned *pool, tarn_heap_stats *stats) {
  static const tarn_heap_stats empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(stats, &empty, sizeof(empty), "tarn_pinned_get_stats"));
  TARN_TRY(pinned_given(pool, "tarn_pinned_get_stats"));
  return tarn_heap_get_stats(pool->heap, stats);
}

tarn_status tarn_pinned_check(tarn_pinned *pool) {
  TARN_TRY(pinned_given(pool, "tarn_pinned_check"));
  TARN_TRY(tarn_heap_check(pool->heap));
  tarn_heap_stats stats = {.size = sizeof(stats)};
  TARN_TRY(tarn_heap_get_stats(pool->heap, &stats));
  const uint64_t live = atomic_load_explicit(&pool->live_bytes, memory_order_relaxed);
  if (pool->is_counted && live != stats.live_bytes) {
    return tarni_fail(TARN_CORRUPT, "tarn_pinned_check", NULL, "Please report this.",
                      "the pool counts %llu live bytes, its heap %llu", (unsigned long long)live,
                      (unsigned long long)stats.live_bytes);
  }
  return TARN_OK;
}

/* ---- Memory ahead, and back ---- */

tarn_status tarn_pinned_reserve(tarn_pinned *pool, uint64_t bytes) {
  TARN_TRY(pinned_given(pool, "tarn_pinned_reserve"));
  if (pool->heap->buckets != NULL) {
    const tarni_facts facts = {.device = pool->heap->port->device.name, .requested_bytes = bytes};
    return tarni_fail(TARN_UNSUPPORTED, "tarn_pinned_reserve", &facts,
                      "Allocate and free blocks of the sizes that will be needed.",
                      "the blocks of this pool are allocations of the driver, so %llu bytes of no "
                      "known sizes cannot be kept",
                      (unsigned long long)bytes);
  }
  const uint64_t limit = pool->config.cached_limit_bytes;
  const uint64_t live = atomic_load_explicit(&pool->live_bytes, memory_order_relaxed);
  if (limit != 0 && bytes > live && bytes - live > limit) {
    const tarni_facts facts = {.device = pool->heap->port->device.name,
                               .requested_bytes = bytes,
                               .available_bytes = live + limit};
    return tarni_fail(TARN_LIMIT, "tarn_pinned_reserve", &facts,
                      "Reserve less, or raise cached_limit_bytes of the pool.",
                      "of %llu bytes %llu would lie idle, and the limit on that is %llu",
                      (unsigned long long)bytes, (unsigned long long)(bytes - live),
                      (unsigned long long)limit);
  }
  const tarn_status status = tarn_heap_reserve(pool->heap, bytes);
  return status == TARN_OK ? TARN_OK : memory_fail(pool, status, bytes, "tarn_pinned_reserve");
}

tarn_status tarn_pinned_trim(tarn_pinned *pool, uint64_t keep_bytes) {
  TARN_TRY(pinned_given(pool, "tarn_pinned_trim"));
  if (tarni_capture_forbids()) {
    const tarni_facts facts = {.device = pool->heap->port->device.name};
    return tarni_fail(TARN_CAPTURE, "tarn_pinned_trim", &facts, "Trim after the capture.",
                      "pinned memory cannot be given back while a stream is being captured");
  }
  return host_status(tarn_heap_trim(pool->heap, keep_bytes));
}
