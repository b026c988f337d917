/* SPDX-License-Identifier: MIT
 *
 * Allocation: the hit, which takes a block from the thread's own cache with no lock, no atomic
 * read-modify-write and no driver call, and the miss, which fills the cache. */
#include "base/bits.h"
#include "bucket.h"
#include "room.h"

/* ---- Misses ---- */

static tarni_need small_need(const tarni_cache *cache, uint32_t class_index) {
  return (tarni_need){.lane = cache->lane,
                      .size = tarni_slab_bytes(class_index),
                      .alignment = TARNI_GRANULE,
                      .least = TARNI_GRANULE,
                      .class_index = class_index};
}

/* A block of the class for the cache's owner, from the bins or from a new slab that is there.
 * UINT32_MAX: neither is. */
static uint32_t small_take_locked(tarn_heap *heap, tarni_cache *cache, uint32_t class_index) {
  tarni_stack *stack = &cache->stacks[class_index];
  tarni_cache_fill_locked(heap, cache, class_index);
  if (stack->n == 0) {
    const tarni_need need = small_need(cache, class_index);
    const tarni_index extent = tarni_chunk_ready_locked(heap, &need);
    if (extent == 0) {
      return UINT32_MAX;
    }
    tarni_slab_make_locked(heap, extent, cache->lane, class_index);
    tarni_cache_fill_locked(heap, cache, class_index);
  }
  return stack->items[--stack->n];
}

/* A block from what is there, or what waits for a fence and may be free by now: better than fresh
 * memory. UINT32_MAX: there is none. */
static uint32_t small_find_locked(tarn_heap *heap, tarni_cache *cache, uint32_t class_index) {
  if (heap->is_fixed && heap->pending != NULL && !tarni_cache_is_dead(cache)) {
    tarni_cache_fill_locked(heap, cache, class_index);
    if (cache->stacks[class_index].n == 0) {
      tarni_lock_release(&heap->lock);
      tarni_uses_poll(heap);
      tarni_lock_acquire(&heap->lock);
    }
  }
  return tarni_cache_is_dead(cache) ? UINT32_MAX : small_take_locked(heap, cache, class_index);
}

/* Room that was found goes back: the stream was retired meanwhile. */
static void room_return_locked(tarn_heap *heap, tarni_index extent) {
  if (extent == 0) {
    return;
  }
  if (tarni_is_alias(heap, tarni_extent_at(heap, extent)->offset)) {
    tarni_view_leave_locked(heap, extent, NULL);
  } else {
    const tarni_order order = tarni_extent_at(heap, extent)->order;
    tarni_extent_give_locked(heap, extent, TARNI_EXTENT_FREE, &order);
  }
}

/* A block of the room that was searched for. UINT32_MAX: there is none, or the stream was retired.
 */
static uint32_t small_make_locked(tarn_heap *heap, tarni_cache *cache, uint32_t class_index,
                                  tarni_index extent) {
  if (tarni_cache_is_dead(cache)) {
    room_return_locked(heap, extent);
    return UINT32_MAX;
  }
  if (extent != 0) {
    tarni_slab_make_locked(heap, extent, cache->lane, class_index);
  }
  /* Without an extent, too: the search may have freed single blocks. */
  return small_take_locked(heap, cache, class_index);
}

/* Gives the lock back, and looks after what other streams have freed where it is time for that: not
 * after a failure, whose error would be another's then. */
static void miss_end_locked(tarn_heap *heap, tarni_index lane, bool is_found) {
  const bool is_due = is_found && heap->hoard.is_due;
  tarni_lock_release(&heap->lock);
  if (TARNI_UNLIKELY(is_due)) {
    tarni_hoard_visit(heap, lane);
  }
}

static tarn_status small_miss(tarn_heap *heap, tarni_cache *cache, uint32_t class_index,
                              tarn_ptr *block) {
  tarni_stack *stack = &cache->stacks[class_index];
  tarn_status status = TARN_OK;
  tarni_lock_acquire(&heap->lock);
  if (!tarni_cache_is_dead(cache)) {
    tarni_tide_wade_locked(heap, cache, true);
  }
  const bool is_kept = stack->n != 0; /* by this cache: somebody keeps its owner out */
  uint32_t item = is_kept ? stack->items[--stack->n] : small_find_locked(heap, cache, class_index);
  while (item == UINT32_MAX && status == TARN_OK && !tarni_cache_is_dead(cache)) {
    const tarni_need need = small_need(cache, class_index);
    tarni_index extent;
    tarni_lock_release(&heap->lock);
    status = tarni_shortage_obtain(heap, cache, &need, &extent);
    tarni_lock_acquire(&heap->lock);
    item = small_make_locked(heap, cache, class_index, extent);
  }
  const bool is_dead = tarni_cache_is_dead(cache);
  if (item != UINT32_MAX) {
    heap->states[item] = (uint8_t)(TARNI_SMALL_LIVE + class_index);
    tarni_count(&stack->allocs, 1);
    tarni_count(&cache->misses, !is_kept);
    tarni_scopes_note_locked(heap);
    *block = heap->base + ((uint64_t)item << 8);
  }
  miss_end_locked(heap, cache->lane, item != UINT32_MAX);
  if (item != UINT32_MAX) {
    return TARN_OK;
  }
  return is_dead && status == TARN_OK ? TARNI_RETIRED : status;
}

/* Whole units are best begun at a unit: all of their chunks can go elsewhere once the block is
 * free. Begun anywhere else it would leave one chunk's worth of pieces behind. */
uint64_t tarni_large_alignment_locked(const tarn_heap *heap, uint64_t size, uint64_t least) {
  const bool is_whole = (size & (heap->unit - 1)) == 0;
  return is_whole && tarni_grow_may_gap_locked(heap, size) ? tarni_max(least, heap->unit) : least;
}

/* Counted first, so that the peak of what is live is seen with it. */
static void large_make_locked(tarn_heap *heap, tarni_cache *cache, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  extent->spare = 0;
  tarni_count_large_alloc(cache, extent);
  tarni_slab_make_locked(heap, index, cache->lane, TARNI_CLASS_COUNT);
  tarni_scopes_note_locked(heap);
}

/* Room that is there for a block. */
static tarni_index large_find_locked(tarn_heap *heap, tarni_cache *cache, tarni_need *need) {
  if (!tarni_shortage_is_beyond_locked(heap, need->size)) {
    tarni_shelf_see_locked(heap, cache);
    tarni_cache_drop_large_locked(heap, cache); /* it was kept for another size */
    tarni_tide_turn_locked(heap, cache);
  }
  need->alignment = tarni_large_alignment_locked(heap, need->size, need->least);
  const tarni_index extent = tarni_chunk_ready_locked(heap, need);
  return extent == 0 && tarni_shelf_yield_locked(heap, cache, need->size)
             ? tarni_chunk_ready_locked(heap, need)
             : extent;
}

static tarn_status large_miss(tarn_heap *heap, tarni_cache *cache, uint64_t size,
                              uint64_t alignment, tarn_ptr *block) {
  tarni_need need = {.lane = cache->lane,
                     .zone = 1,
                     .size = size,
                     .least = alignment,
                     .class_index = TARNI_CLASS_COUNT};
  if (heap->is_fixed) {
    tarni_uses_poll(heap);
  }
  tarn_status status = TARN_OK;
  tarni_lock_acquire(&heap->lock);
  tarni_index extent = tarni_cache_is_dead(cache) ? 0 : large_find_locked(heap, cache, &need);
  while (extent == 0 && status == TARN_OK && !tarni_cache_is_dead(cache)) {
    tarni_lock_release(&heap->lock);
    status = tarni_shortage_obtain(heap, cache, &need, &extent);
    tarni_lock_acquire(&heap->lock);
  }
  const bool is_dead = tarni_cache_is_dead(cache);
  if (is_dead) {
    room_return_locked(heap, extent);
  } else if (extent != 0) {
    large_make_locked(heap, cache, extent);
    cache->large.youngest = alignment == TARNI_GRANULE ? extent : 0;
    tarni_count(&cache->misses, 1);
    *block = heap->base + tarni_extent_at(heap, extent)->offset;
  }
  miss_end_locked(heap, cache->lane, status == TARN_OK && !is_dead);
  return is_dead && status == TARN_OK ? TARNI_RETIRED : status;
}

/* ---- Hits ---- */

/* pre: the cache is entered. UINT32_MAX: the stack is empty. */
static inline uint32_t small_hit(tarn_heap *heap, tarni_cache *cache, uint32_t class_index) {
  tarni_stack *stack = &cache->stacks[class_index];
  if (TARNI_UNLIKELY(stack->n == 0)) {
    return UINT32_MAX;
  }
  const uint32_t item = stack->items[--stack->n];
  heap->states[item] = (uint8_t)(TARNI_SMALL_LIVE + class_index);
  tarni_count(&stack->allocs, 1);
  return item;
}

/* pre: the cache is entered. The kept large block, if it has exactly this size, or one from the
 * shelf; 0: there is neither. */
static tarni_index large_hit(tarn_heap *heap, tarni_cache *cache, uint64_t size) {
  tarni_index index = cache->large.extent;
  if (index != 0 && cache->large.granules == size >> TARNI_GRANULE_LOG2) {
    cache->large.extent = 0;
  } else {
    const bool is_open = TARNI_UNLIKELY(cache->shelf.limit != 0);
    index = is_open ? tarni_shelf_take(heap, cache, size) : 0;
    if (index == 0) {
      return 0;
    }
  }
  cache->large.youngest = index;
  heap->extents[index].state = TARNI_BLOCK_LIVE;
  tarni_count_large_alloc(cache, &heap->extents[index]);
  return index;
}

/* From a cache that was not the hot one: still with no lock, if it has a block. */
static tarn_status small_alloc(tarn_heap *heap, tarni_cache *cache, uint32_t class_index,
                               tarn_ptr *block) {
  if (tarni_cache_enter(cache)) {
    uint32_t item = small_hit(heap, cache, class_index);
    if (item == UINT32_MAX && tarni_cache_refill(heap, cache, class_index)) {
      item = small_hit(heap, cache, class_index);
    }
    tarni_cache_leave(cache);
    if (item != UINT32_MAX) {
      *block = heap->base + ((uint64_t)item << 8);
      return TARN_OK;
    }
  }
  return small_miss(heap, cache, class_index, block);
}

static tarn_status large_alloc(tarn_heap *heap, tarni_cache *cache, uint64_t bytes,
                               uint64_t alignment, tarn_ptr *block) {
  uint64_t size;
  if (!tarni_align_up_checked(bytes, TARNI_GRANULE, &size) || size > heap->size) {
    return tarni_heap_refuse_size(heap, bytes, "tarn_alloc");
  }
  if (alignment <= TARNI_GRANULE && tarni_cache_enter(cache)) {
    const tarni_index extent = large_hit(heap, cache, size);
    tarni_cache_leave(cache);
    if (extent != 0) {
      *block = heap->base + heap->extents[extent].offset;
      return TARN_OK;
    }
  }
  return large_miss(heap, cache, size, tarni_max(alignment, TARNI_GRANULE), block);
}

tarn_status tarni_alloc_plain(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block) {
  if (heap->buckets != NULL) { /* such a heap has no caches, so nothing ever hits */
    return tarni_bucket_alloc(heap, bytes, alignment, stream, block);
  }
  const uint64_t least = tarni_max(bytes, alignment);
  bool is_large = bytes > TARNI_SMALL_MAX;
  if (alignment > TARNI_ALIGNMENT) {
    /* A block whose size is a power of two lies at a multiple of it, up to the granule. */
    is_large = alignment > TARNI_GRANULE || least > TARNI_SHARED_BLOCK_MAX;
    bytes = is_large ? bytes : (uint64_t)1 << (tarni_log2(least - 1) + 1);
  }
  tarn_status status;
  do {
    tarni_cache *cache;
    TARN_TRY(tarni_cache_find(heap, stream, &cache));
    status = is_large ? large_alloc(heap, cache, bytes, alignment, block)
                      : small_alloc(heap, cache, tarni_class_of(bytes), block);
  } while (status == TARNI_RETIRED);
  return status;
}

/* A large hit in the hot cache. 0: there is none. */
static tarn_ptr hot_large(tarn_heap *heap, uint64_t bytes, tarn_stream stream) {
  tarni_cache *cache = tarni_hot_cache;
  uint64_t size;
  if (cache == NULL || atomic_load_explicit(&cache->heap, memory_order_relaxed) != heap ||
      !tarni_align_up_checked(bytes, TARNI_GRANULE, &size) || !tarni_cache_enter(cache)) {
    return 0;
  }
  const tarni_index extent = cache->stream == stream ? large_hit(heap, cache, size) : 0;
  tarni_cache_leave(cache);
  return extent != 0 ? heap->base + heap->extents[extent].offset : 0;
}

/* Everything but a small hit in the hot cache. */
TARNI_SLOW static tarn_status alloc_slow(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                                         tarn_stream stream, tarn_ptr *block) {
  const bool is_large = bytes > TARNI_SMALL_MAX && alignment <= TARNI_GRANULE;
  *block = is_large ? hot_large(heap, bytes, stream) : 0;
  if (*block != 0) {
    return TARN_OK;
  }
  TARN_TRY(tarni_heap_given(heap, "tarn_alloc"));
  if (bytes == 0) {
    return TARN_OK;
  }
  TARNI_PAYS(&heap->calls);
  if (tarni_captures_announced(heap)) {
    const tarn_status status = tarni_capture_alloc(heap, bytes, alignment, stream, block);
    if (status != TARN_OK || *block != 0) {
      return status;
    }
  }
  return tarni_is_watched(heap) ? tarni_watch_alloc(heap, bytes, alignment, stream, block)
                                : tarni_alloc_plain(heap, bytes, alignment, stream, block);
}

/* A small hit in the hot cache. 0: there is none. */
static inline tarn_ptr hot_small(tarn_heap *heap, uint64_t bytes, tarn_stream stream) {
  tarni_cache *cache = tarni_hot_cache;
  uint32_t item = UINT32_MAX;
  if (TARNI_LIKELY(cache != NULL &&
                   atomic_load_explicit(&cache->heap, memory_order_relaxed) == heap &&
                   bytes - 1 < TARNI_SMALL_MAX && tarni_cache_enter(cache))) {
    if (TARNI_LIKELY(cache->stream == stream)) {
      item = small_hit(heap, cache, tarni_class_of(bytes));
    }
    tarni_cache_leave(cache);
  }
  return TARNI_LIKELY(item != UINT32_MAX) ? heap->base + ((uint64_t)item << 8) : 0;
}

tarn_status tarn_alloc(tarn_heap *heap, uint64_t bytes, tarn_stream stream, tarn_ptr *block) {
  const tarn_ptr hit = hot_small(heap, bytes, stream);
  if (TARNI_LIKELY(hit != 0)) {
    *block = hit;
    return TARN_OK;
  }
  return alloc_slow(heap, bytes, TARNI_ALIGNMENT, stream, block);
}

tarn_status tarn_alloc_aligned(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                               tarn_stream stream, tarn_ptr *block) {
  *block = 0;
  TARN_TRY(tarni_heap_given(heap, "tarn_alloc_aligned"));
  if (!tarni_is_pow2(alignment) || alignment > TARNI_ALIGNMENT_MAX) {
    return tarni_fail(TARN_INVALID, "tarn_alloc_aligned", NULL,
                      "Pass a power of two up to 2097152.", "the alignment is %llu",
                      (unsigned long long)alignment);
  }
  if (alignment <= TARNI_ALIGNMENT || bytes == 0) {
    return tarn_alloc(heap, bytes, stream, block);
  }
  const uint64_t least = tarni_max(bytes, alignment);
  if (alignment <= TARNI_GRANULE && least <= TARNI_SHARED_BLOCK_MAX) { /* see tarni_alloc_plain */
    *block = hot_small(heap, (uint64_t)1 << (tarni_log2(least - 1) + 1), stream);
  }
  return *block != 0 ? TARN_OK : alloc_slow(heap, bytes, alignment, stream, block);
}
