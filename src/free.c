/* SPDX-License-Identifier: MIT
 *
 * Freeing: the hit, which puts a block into the thread's own cache, and the rest: caches that are
 * full, blocks that several streams used, and pointers that are no live block, which are refused.
 */
#include "base/bits.h"
#include "bucket.h"
#include "debug.h"
#include "room.h"

/* Large blocks above this are not kept by a cache. */
enum { FREE_LARGE_KEEP_MAX = 64 << 20 };

/* ---- Small blocks ---- */

/* pre: the cache is entered. False: the stack is full. */
static inline bool small_keep(tarn_heap *heap, tarni_cache *cache, uint32_t class_index,
                              uint32_t item) {
  tarni_stack *stack = &cache->stacks[class_index];
  if (TARNI_UNLIKELY(stack->n == stack->capacity)) {
    return false;
  }
  heap->states[item] = 0;
  stack->items[stack->n++] = item;
  tarni_count(&stack->frees, 1);
  return true;
}

static tarn_status small_free(tarn_heap *heap, tarni_cache *cache, uint32_t item) {
  const uint8_t state = heap->states[item];
  const uint32_t class_index = (uint32_t)(state & ~TARNI_SMALL_USED) - TARNI_SMALL_LIVE;
  tarni_stack *stack = &cache->stacks[class_index];
  if (tarni_cache_enter(cache)) { /* it was not the hot one, or is full */
    const bool is_kept =
        !tarni_cache_is_dead(cache) && (small_keep(heap, cache, class_index, item) ||
                                        (tarni_cache_unload(heap, cache, class_index) &&
                                         small_keep(heap, cache, class_index, item)));
    tarni_cache_leave(cache);
    if (is_kept) {
      return TARN_OK;
    }
  }
  tarni_lock_acquire(&heap->lock);
  const bool is_dead = tarni_cache_is_dead(cache);
  if (!is_dead && stack->n == stack->capacity) {
    tarni_cache_spill_locked(heap, cache, class_index);
  }
  if (!is_dead) {
    (void)small_keep(heap, cache, class_index, item);
    tarni_tide_wade_locked(heap, cache, false);
  }
  tarni_lock_release(&heap->lock);
  return is_dead ? TARNI_RETIRED : TARN_OK;
}

/* ---- Large blocks ---- */

/* pre: the cache keeps none, and is entered, or heap->lock is held. */
static void large_keep(tarni_cache *cache, tarni_index index, uint64_t size) {
  cache->large.granules = (uint32_t)(size >> TARNI_GRANULE_LOG2);
  cache->large.extent = index;
}

/* Whether the cache keeps a block: on its shelf, or as the youngest. pre: it is entered. */
static bool large_put(tarni_cache *cache, tarni_index index, uint64_t size) {
  if (TARNI_UNLIKELY(cache->shelf.limit != 0) && tarni_shelf_put(cache, index, size)) {
    cache->large.youngest = 0;
    return true;
  }
  const bool is_kept =
      size <= FREE_LARGE_KEEP_MAX && cache->large.youngest == index && cache->large.extent == 0;
  if (is_kept) {
    large_keep(cache, index, size);
  }
  return is_kept;
}

/* Whether a block is worth a look at where it lies: the next of its size is there already, so that
 * one after it may be asked for. Not where streams share what is free as soon as it is. */
static bool may_keep(const tarn_heap *heap, const tarni_cache *cache, uint64_t size) {
  const bool is_shared = heap->config.stealing == TARN_STEAL_ALWAYS && heap->n_lanes > 2;
  return cache->large.youngest != 0 && heap->extents[cache->large.youngest].size == size &&
         size <= FREE_LARGE_KEEP_MAX && !is_shared && !tarni_is_watched(heap);
}

static bool is_best(tarn_heap *heap, const tarni_cache *cache, tarni_index index, uint64_t size) {
  const tarni_need need = {.lane = cache->lane,
                           .zone = 1,
                           .size = size,
                           .least = TARNI_GRANULE,
                           .alignment = tarni_large_alignment_locked(heap, size, TARNI_GRANULE),
                           .class_index = TARNI_CLASS_COUNT};
  return tarni_chunk_is_best_locked(heap, &need, index);
}

/* A block without other uses is free from here on. */
static void large_end(tarni_cache *cache, tarni_extent *extent) {
  tarni_count_large_free(cache, extent);
  extent->state = TARNI_BLOCK_FREE;
  extent->spare = 0;
}

/* A large block that is not the youngest, or not the only one: kept where it would come to lie
 * again. */
static void large_release_locked(tarn_heap *heap, tarni_cache *cache, tarni_index index) {
  const uint64_t size = heap->extents[index].size;
  large_end(cache, tarni_extent_at(heap, index));
  tarni_shelf_see_locked(heap, cache);
  const bool may = may_keep(heap, cache, size);
  tarni_cache_drop_large_locked(heap, cache);
  if (may && is_best(heap, cache, index, size)) {
    large_keep(cache, index, size);
  } else {
    tarni_cache_release_locked(heap, cache, index);
  }
  cache->large.youngest = 0;
  tarni_tide_beach_locked(heap, cache);
}

static tarn_status large_free(tarn_heap *heap, tarni_cache *cache, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  if (tarni_cache_enter(cache)) {
    const bool is_kept = !tarni_cache_is_dead(cache) && large_put(cache, index, extent->size);
    if (is_kept) {
      large_end(cache, extent);
    }
    tarni_cache_leave(cache);
    if (is_kept) {
      return TARN_OK;
    }
  }
  tarni_lock_acquire(&heap->lock);
  const bool is_dead = tarni_cache_is_dead(cache);
  if (!is_dead) {
    large_release_locked(heap, cache, index);
  }
  tarni_lock_release(&heap->lock);
  return is_dead ? TARNI_RETIRED : TARN_OK;
}

/* ---- All ---- */

/* The extent of a live large block that begins at the offset; 0: there is none. */
static tarni_index large_at(const tarn_heap *heap, uint64_t offset) {
  const tarni_index index = heap->pages[offset >> TARNI_GRANULE_LOG2];
  if (index == 0) {
    return 0;
  }
  const tarni_extent *extent = &heap->extents[index];
  return extent->offset == offset && extent->state == TARNI_BLOCK_LIVE ? index : 0;
}

/* The lane that a block is freed in without a cache. Without room for one the stream is waited for:
 * then the block is everybody's. */
static tarn_status bare_lane(tarn_heap *heap, tarn_stream stream, tarni_index *lane) {
  *lane = TARNI_LANE_COMMON;
  if (heap->is_fixed && stream == TARNI_STREAM_HOST) {
    return TARN_OK;
  }
  const tarn_status known = tarni_lane_known(heap, stream, lane);
  if (known == TARN_CAPTURE) {
    return tarni_lane_unnamed(heap, stream, "tarn_free", lane);
  }
  if (known == TARN_OK && *lane != TARNI_LANE_COMMON) {
    return TARN_OK;
  }
  TARNI_RELAXED(heap->port);
  return tarni_port_stream_sync(heap->port, stream);
}

/* pre: the block has no other uses. */
static void bare_free_locked(tarn_heap *heap, uint64_t offset, tarni_index lane) {
  tarni_block block = {0};
  (void)tarni_block_find_locked(heap, offset, &block);
  tarni_extent *slab = tarni_extent_at(heap, block.extent);
  tarni_count_free_locked(heap, slab);
  if (slab->class_index != TARNI_CLASS_COUNT) {
    heap->states[offset >> 8] = 0;
    tarni_bin_put_locked(heap, lane, slab->class_index, (uint32_t)(offset >> 8));
  } else {
    tarni_order order = {0};
    (void)tarni_order_add(&order, lane, tarni_ticket_locked(heap, lane));
    slab->state = TARNI_BLOCK_FREE;
    tarni_slab_release_locked(heap, block.extent, &order);
  }
}

bool tarni_block_has_uses(const tarn_heap *heap, uint64_t offset) {
  return offset < heap->small_end
             ? (heap->states[offset >> 8] & TARNI_SMALL_USED) != 0
             : heap->extents[heap->pages[offset >> TARNI_GRANULE_LOG2]].has_uses;
}

TARNI_SLOW /* Frees a block straight into its lane, where there is no memory for a cache (I7), or
            * the stream is new, and captured. */
    static tarn_status
    free_bare(tarn_heap *heap, uint64_t offset, tarn_stream stream) {
  tarn_status status;
  do {
    tarni_index lane;
    TARN_TRY(bare_lane(heap, stream, &lane));
    if (tarni_block_has_uses(heap, offset)) {
      status = tarni_uses_free(heap, offset, lane, stream);
      continue;
    }
    tarni_lock_acquire(&heap->lock);
    const bool is_its = tarni_lane_is_locked(heap, lane, stream);
    if (is_its) {
      bare_free_locked(heap, offset, lane);
    }
    tarni_lock_release(&heap->lock);
    status = is_its ? TARN_OK : TARNI_RETIRED;
  } while (status == TARNI_RETIRED);
  return status;
}

static tarn_status free_cached(tarn_heap *heap, tarni_cache *cache, uint64_t offset,
                               tarn_stream stream) {
  if (TARNI_UNLIKELY(tarni_block_has_uses(heap, offset))) {
    return tarni_uses_free(heap, offset, cache->lane, stream);
  }
  return offset < heap->small_end
             ? small_free(heap, cache, (uint32_t)(offset >> 8))
             : large_free(heap, cache, heap->pages[offset >> TARNI_GRANULE_LOG2]);
}

tarn_status tarni_free_known(tarn_heap *heap, uint64_t offset, tarn_stream stream) {
  tarni_cache *cache = tarni_cache_known(heap, stream);
  const tarn_status status =
      cache != NULL ? free_cached(heap, cache, offset, stream) : TARNI_RETIRED;
  return status == TARNI_RETIRED ? tarni_free_plain(heap, offset, stream) : status;
}

tarn_status tarni_free_plain(tarn_heap *heap, uint64_t offset, tarn_stream stream) {
  if (heap->buckets != NULL) {
    return tarni_bucket_free(heap, offset, stream);
  }
  tarn_status status;
  do {
    tarni_cache *cache;
    status = tarni_cache_find(heap, stream, &cache);
    if (status == TARN_HOST_MEMORY || status == TARN_LIMIT || status == TARN_CAPTURE) {
      return free_bare(heap, offset, stream);
    }
    TARN_TRY(status);
    status = free_cached(heap, cache, offset, stream);
    tarni_index lane; /* or the thread, which is about to end, has a new name */
    if (status == TARNI_RETIRED && tarni_lane_known(heap, stream, &lane) != TARN_OK) {
      return free_bare(heap, offset, stream);
    }
  } while (status == TARNI_RETIRED);
  return status;
}

/* Whether the address is to be freed as a block of the heap. In a heap of the driver's allocations
 * it is that also where it is wrong, unless it may be a captured one. */
static bool is_heaps(tarn_heap *heap, uint64_t offset) {
  if (heap->buckets != NULL) {
    return atomic_load_explicit(&heap->n_arenas, memory_order_relaxed) == 0 ||
           tarni_block_is_live(heap, offset);
  }
  if (offset < heap->small_end) {
    return offset % TARNI_ALIGNMENT == 0 && heap->states[offset >> 8] != 0;
  }
  return offset < heap->size && large_at(heap, offset) != 0;
}

/* Whether it was a large block that the hot cache keeps now. */
static bool hot_large(tarn_heap *heap, tarn_ptr block, tarn_stream stream) {
  tarni_cache *cache = tarni_hot_cache;
  if (cache == NULL || atomic_load_explicit(&cache->heap, memory_order_relaxed) != heap) {
    return false;
  }
  const uint64_t offset = block - heap->base;
  const bool is_large = offset >= heap->small_end && offset < heap->size;
  const tarni_index index = is_large ? large_at(heap, offset) : 0;
  tarni_extent *extent = &heap->extents[index];
  if (index == 0 || extent->has_uses || !tarni_cache_enter(cache)) {
    return false;
  }
  const bool is_kept = cache->stream == stream && large_put(cache, index, extent->size);
  if (is_kept) {
    large_end(cache, extent);
  }
  tarni_cache_leave(cache);
  return is_kept;
}

TARNI_SLOW static tarn_status free_slow(tarn_heap *heap, tarn_ptr block, tarn_stream stream) {
  if (block == 0 || hot_large(heap, block, stream)) {
    return TARN_OK;
  }
  TARN_TRY(tarni_heap_given(heap, "tarn_free"));
  TARNI_PAYS(&heap->calls);
  const uint64_t offset = block - heap->base;
  if (!is_heaps(heap, offset)) {
    tarn_status captured;
    return tarni_arena_free(heap, block, stream, &captured)
               ? captured
               : tarni_block_refuse(heap, block, "tarn_free");
  }
  if (tarni_captures_announced(heap)) {
    bool is_deferred;
    TARN_TRY(tarni_capture_defer(heap, offset, stream, &is_deferred));
    if (is_deferred) {
      return TARN_OK;
    }
  }
  return tarni_is_watched(heap) ? tarni_watch_free(heap, offset, stream)
                                : tarni_free_plain(heap, offset, stream);
}

tarn_status tarn_free(tarn_heap *heap, tarn_ptr block, tarn_stream stream) {
  tarni_cache *cache = tarni_hot_cache;
  if (TARNI_LIKELY(cache != NULL &&
                   atomic_load_explicit(&cache->heap, memory_order_relaxed) == heap)) {
    tarn_assert(heap != NULL && "a cache has a heap, or TARNI_NO_HEAP");
    const uint64_t offset = block - heap->base;
    if (TARNI_LIKELY(offset < heap->small_end && offset % TARNI_ALIGNMENT == 0)) {
      const uint32_t class_index = (uint32_t)heap->states[offset >> 8] - TARNI_SMALL_LIVE;
      if (TARNI_LIKELY(class_index < TARNI_CLASS_COUNT && tarni_cache_enter(cache))) {
        const bool is_kept = TARNI_LIKELY(cache->stream == stream) &&
                             small_keep(heap, cache, class_index, (uint32_t)(offset >> 8));
        tarni_cache_leave(cache);
        if (TARNI_LIKELY(is_kept)) {
          return TARN_OK;
        }
      }
    }
  }
  return free_slow(heap, block, stream);
}

/* Whether a request with an alignment can have got a small block: it was rounded up to a power of
 * two, from its size, or from its alignment, which is up to the granule. */
static bool size_fits_aligned(uint64_t block_bytes, uint64_t bytes) {
  return tarni_is_pow2(block_bytes) && block_bytes <= TARNI_SHARED_BLOCK_MAX &&
         (block_bytes <= TARNI_GRANULE || bytes > block_bytes / 2);
}

/* Whether a request of so many bytes can have got this block. */
static bool size_fits(const tarn_heap *heap, const tarni_block *block, uint64_t bytes) {
  if (heap->buckets != NULL) {
    return tarni_bucket_fits(heap, block, bytes);
  }
  if (bytes == 0 || bytes > block->bytes) {
    return false;
  }
  if (heap->debug != NULL) { /* guards make blocks larger, and what was asked for is known */
    return tarni_record_requested_locked(heap, block->offset) == bytes;
  }
  if (block->offset >= heap->small_end) {
    return tarni_align_up(bytes, TARNI_GRANULE) == block->bytes;
  }
  return tarni_class_size(tarni_class_of(bytes)) == block->bytes ||
         size_fits_aligned(block->bytes, bytes);
}

tarn_status tarn_free_sized(tarn_heap *heap, tarn_ptr block, uint64_t bytes, tarn_stream stream) {
  if (block != 0) {
    TARN_TRY(tarni_heap_given(heap, "tarn_free_sized"));
    tarni_block found = {0};
    const uint64_t offset = block - heap->base;
    tarni_lock_acquire(&heap->lock);
    const bool is_live =
        tarni_block_find_locked(heap, offset, &found) && found.is_live && found.offset == offset;
    bool is_wrong = is_live && !size_fits(heap, &found, bytes);
    tarni_lock_release(&heap->lock);
    tarn_block_info captured = {.size = sizeof(captured)};
    if (!is_live && tarni_arena_block(heap, block, &captured) && captured.address == block) {
      found.bytes = captured.usable_bytes;
      is_wrong = bytes == 0 || bytes > found.bytes ||
                 tarni_align_up(bytes, TARNI_ALIGNMENT) != found.bytes;
    }
    if (is_wrong) {
      const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = bytes};
      return tarni_fail(TARN_WRONG_SIZE, "tarn_free_sized", &facts,
                        "Pass the size that was asked for, or use tarn_free.",
                        "the block at 0x%llx has %llu bytes, which is not what %llu are rounded to",
                        (unsigned long long)block, (unsigned long long)found.bytes,
                        (unsigned long long)bytes);
    }
  }
  return tarn_free(heap, block, stream);
}
