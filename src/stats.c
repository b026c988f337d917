/* SPDX-License-Identifier: MIT
 *
 * Statistics: what the caches and the heap have counted, summed when somebody asks. Counters only
 * ever rise, so two sums in a row that are the same were true at one moment in between; where
 * threads are too busy for that they are kept out of their caches for a moment. */
#include <string.h>

#include "internal.h"

typedef struct stat_sum {
  uint64_t allocs, frees, alloc_bytes, free_bytes, misses;
} stat_sum;

/* Acquires, so that one sum is made after the other. */
static uint64_t load(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_acquire);
}

/* What all caches, those that are gone included, have counted. */
static stat_sum sum_locked(const tarn_heap *heap) {
  stat_sum sum = {.allocs = heap->allocs,
                  .frees = heap->frees,
                  .alloc_bytes = heap->alloc_bytes,
                  .free_bytes = heap->free_bytes,
                  .misses = heap->misses};
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
      const uint64_t allocs = load(&cache->stacks[i].allocs);
      const uint64_t frees = load(&cache->stacks[i].frees);
      sum.allocs += allocs;
      sum.frees += frees;
      sum.alloc_bytes += allocs * tarni_class_size(i);
      sum.free_bytes += frees * tarni_class_size(i);
    }
    sum.allocs += load(&cache->large_allocs);
    sum.frees += load(&cache->large_frees);
    sum.alloc_bytes += load(&cache->large_alloc_bytes);
    sum.free_bytes += load(&cache->large_free_bytes);
    sum.misses += load(&cache->misses);
  }
  return sum;
}

/* Bytes in blocks that a lost lane has freed or that wait for it. */
static uint64_t lost_blocks_locked(const tarn_heap *heap) {
  uint64_t bytes = 0;
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    for (uint32_t j = 0; heap->lanes[i].is_lost && j < TARNI_CLASS_COUNT; j++) {
      bytes += heap->lanes[i].bins[j].n * tarni_class_size(j);
    }
  }
  for (const tarni_uses *uses = heap->pending; uses != NULL; uses = uses->next) {
    bool is_lost = false;
    for (uint32_t i = 0; i < uses->n_lanes; i++) {
      const tarni_order order = {.n = 1, .at = {uses->lanes[i]}};
      is_lost = is_lost || tarni_order_is_lost_locked(heap, &order);
    }
    bytes += is_lost ? uses->bytes : 0;
  }
  return bytes;
}

/* Bytes that cannot be used again, because they wait for a stream that is gone (I3). */
static uint64_t lost_bytes_locked(const tarn_heap *heap) {
  bool has_lost = false;
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    has_lost = has_lost || heap->lanes[i].is_lost;
  }
  if (heap->buckets != NULL) {
    return tarni_bucket_lost_locked(heap) + (has_lost ? lost_blocks_locked(heap) : 0);
  }
  if (!has_lost) {
    return 0;
  }
  uint64_t bytes = lost_blocks_locked(heap);
  for (uint32_t zone = 0; zone < 2; zone++) {
    for (tarni_index i = heap->zones[zone].head; i != 0; i = heap->extents[i].next) {
      const tarni_extent *extent = &heap->extents[i];
      const bool holds = extent->kind == TARNI_EXTENT_FREE ||
                         (extent->kind == TARNI_EXTENT_ZOMBIE && extent->chunk != 0);
      bytes += holds && tarni_order_is_lost_locked(heap, &extent->order) ? extent->size : 0;
    }
  }
  return bytes;
}

static tarn_heap_stats stats_of(const tarn_heap *heap, stat_sum sum) {
  const uint64_t live = sum.alloc_bytes - sum.free_bytes;
  return (tarn_heap_stats){.size = sizeof(tarn_heap_stats),
                           .live_bytes = live,
                           .live_blocks = sum.allocs - sum.frees,
                           .cached_bytes = heap->used_bytes - live - heap->pending_bytes,
                           .pending_bytes = heap->pending_bytes,
                           .free_bytes = heap->reserved_bytes - heap->used_bytes,
                           .reserved_bytes = heap->reserved_bytes,
                           .reserved_peak_bytes = heap->reserved_peak_bytes,
                           .quarantined_bytes = heap->quarantined_bytes + lost_bytes_locked(heap),
                           .limit_bytes = heap->limit_bytes,
                           .allocations = sum.allocs,
                           .frees = sum.frees,
                           .misses = sum.misses,
                           .moved_chunks = heap->moved_chunks,
                           .waits = heap->waits};
}

tarn_heap_stats tarni_stats_locked(const tarn_heap *heap) {
  return stats_of(heap, sum_locked(heap));
}

/* Sums that were true at one moment. */
static stat_sum sum_exactly_locked(tarn_heap *heap) {
  const stat_sum first = sum_locked(heap);
  const stat_sum second = sum_locked(heap);
  if (memcmp(&first, &second, sizeof(first)) == 0) {
    return first;
  }
  tarni_caches_revoke_locked(heap);
  const stat_sum exact = sum_locked(heap);
  tarni_caches_allow_locked(heap);
  return exact;
}

tarn_status tarn_heap_get_stats(tarn_heap *heap, tarn_heap_stats *stats) {
  static const tarn_heap_stats empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(stats, &empty, sizeof(empty), "tarn_heap_get_stats"));
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_get_stats"));
  tarni_lock_acquire(&heap->lock);
  const tarn_heap_stats now = stats_of(heap, sum_exactly_locked(heap));
  tarni_lock_release(&heap->lock);
  return tarni_struct_out(stats, &now, sizeof(now), "tarn_heap_get_stats");
}
