/* SPDX-License-Identifier: MIT
 *
 * Statistics: what the caches and the heap have counted, summed when somebody asks. Counters only
 * ever rise, so two sums in a row that are the same were true at one moment in between; where
 * threads are too busy for that they are kept out of their caches for a moment. */
#include <string.h>

#include "base/bits.h"
#include "bucket.h"
#include "room.h"

/* Acquires, so that one sum is made after the other. */
static uint64_t load(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_acquire);
}

void tarni_counts_add(tarni_counts *sum, const tarni_cache *cache) {
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    sum->allocs[i] += load(&cache->stacks[i].allocs);
    sum->frees[i] += load(&cache->stacks[i].frees);
  }
  for (uint32_t i = 0; i < TARNI_LARGE_ROWS; i++) {
    const tarni_large_churn *churn = &cache->churn[i];
    sum->large[i].allocs += load(&churn->allocs);
    sum->large[i].frees += load(&churn->frees);
    sum->large[i].alloc_bytes += load(&churn->alloc_bytes);
    sum->large[i].free_bytes += load(&churn->free_bytes);
  }
  sum->misses += load(&cache->misses);
}

tarni_counts tarni_counts_locked(const tarn_heap *heap) {
  tarni_counts sum = heap->gone;
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    tarni_counts_add(&sum, cache);
  }
  return sum;
}

tarni_counts tarni_counts_exactly_locked(tarn_heap *heap) {
  const tarni_counts first = tarni_counts_locked(heap);
  const tarni_counts second = tarni_counts_locked(heap);
  if (memcmp(&first, &second, sizeof(first)) == 0) {
    return first;
  }
  tarni_caches_revoke_locked(heap);
  const tarni_counts exact = tarni_counts_locked(heap);
  tarni_caches_allow_locked(heap);
  return exact;
}

tarni_large_counts tarni_counts_total(const tarni_counts *counts) {
  tarni_large_counts total = {0};
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    total.allocs += counts->allocs[i];
    total.frees += counts->frees[i];
    total.alloc_bytes += counts->allocs[i] * tarni_class_size(i);
    total.free_bytes += counts->frees[i] * tarni_class_size(i);
  }
  for (uint32_t i = 0; i < TARNI_LARGE_ROWS; i++) {
    total.allocs += counts->large[i].allocs;
    total.frees += counts->large[i].frees;
    total.alloc_bytes += counts->large[i].alloc_bytes;
    total.free_bytes += counts->large[i].free_bytes;
  }
  return total;
}

uint64_t tarni_live_locked(const tarn_heap *heap) {
  const tarni_large_counts total = tarni_counts_total(&heap->gone);
  return total.alloc_bytes - total.free_bytes;
}

static bool has_lost_locked(const tarn_heap *heap) {
  bool has = false;
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    has = has || heap->lanes[i].is_lost;
  }
  return has;
}

/* Bytes in blocks that a lost lane has freed or that wait for it. */
static uint64_t lost_blocks_locked(const tarn_heap *heap) {
  uint64_t bytes = 0;
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    for (uint32_t j = 0; heap->lanes[i].is_lost && j < TARNI_CLASS_COUNT; j++) {
      bytes += heap->lanes[i].bins[j].n * tarni_class_size(j);
    }
  }
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    bytes += heap->lanes[cache->lane].is_lost ? tarni_cache_binned(cache) : 0;
  }
  for (const tarni_uses *uses = heap->pending; uses != NULL; uses = uses->next) {
    bool is_lost = false;
    for (uint32_t i = 0; i < uses->n_lanes; i++) {
      const tarni_order order = tarni_order_of(uses->lanes[i]);
      is_lost = is_lost || tarni_order_is_lost_locked(heap, &order);
    }
    bytes += is_lost ? uses->bytes : 0;
  }
  return bytes;
}

/* Whether the extent is the home of a chunk that leaves the heap. */
static bool is_last_home_locked(const tarn_heap *heap, const tarni_extent *extent) {
  if (extent->kind != TARNI_EXTENT_ZOMBIE) {
    return false;
  }
  const tarni_phys *chunk = &heap->chunks[extent->chunk];
  return chunk->is_leaving && extent->offset == tarni_chunk_start(heap, chunk);
}

/* Bytes that cannot be used again, because they wait for a stream that is gone (I3). */
static uint64_t lost_bytes_locked(const tarn_heap *heap) {
  const bool has_lost = has_lost_locked(heap);
  if (heap->buckets != NULL) {
    return tarni_bucket_lost_locked(heap) + (has_lost ? lost_blocks_locked(heap) : 0);
  }
  if (!has_lost) {
    return 0;
  }
  uint64_t bytes = lost_blocks_locked(heap);
  for (uint32_t zone = 0; zone < TARNI_ZONES; zone++) {
    for (tarni_index i = heap->zones[zone].head; i != 0; i = heap->extents[i].next) {
      const tarni_extent *extent = &heap->extents[i];
      const bool holds = extent->kind == TARNI_EXTENT_FREE || is_last_home_locked(heap, extent);
      bytes += holds && tarni_order_is_lost_locked(heap, &extent->order) ? extent->size : 0;
    }
  }
  return bytes;
}

/* The largest piece of memory that belongs to no block. */
static uint64_t largest_free_locked(const tarn_heap *heap) {
  uint64_t largest = 0;
  for (uint32_t zone = 0; zone < TARNI_ZONES && heap->buckets == NULL; zone++) {
    const tarni_index *trees = heap->zones[zone].trees;
    for (uint32_t tree = 1; tree <= heap->n_lanes; tree++) {
      largest = tarni_max(largest, heap->extents[trees[tree]].largest);
    }
    largest = tarni_max(largest, heap->extents[trees[1 + heap->max_lanes]].largest);
  }
  return largest;
}

/* Free in blocks, and waiting for nothing but their stream. A driver's allocation that is on its
 * way out of the driver, or to another stream, counts as pending: what is kept is within its limit.
 */
static uint64_t cached_bytes_locked(const tarn_heap *heap, uint64_t live) {
  return heap->buckets != NULL ? heap->buckets->cached_bytes
                               : heap->used_bytes - live - heap->pending_bytes;
}

static tarn_heap_stats stats_of(const tarn_heap *heap, const tarni_counts *counts) {
  const tarni_large_counts total = tarni_counts_total(counts);
  const uint64_t live = total.alloc_bytes - total.free_bytes;
  const uint64_t free_bytes = heap->reserved_bytes + heap->asleep_bytes - heap->used_bytes;
  const uint64_t largest = largest_free_locked(heap);
  const uint64_t cached = cached_bytes_locked(heap, live);
  return (tarn_heap_stats){.size = sizeof(tarn_heap_stats),
                           .live_bytes = live,
                           .live_blocks = total.allocs - total.frees,
                           .cached_bytes = cached,
                           .pending_bytes = heap->used_bytes - live - cached,
                           .free_bytes = free_bytes + heap->unreturned_bytes,
                           .reserved_bytes = tarni_held_bytes_locked(heap) + heap->unreturned_bytes,
                           .reserved_peak_bytes = heap->reserved_peak_bytes,
                           .quarantined_bytes = heap->quarantined_bytes + heap->unreturned_bytes +
                                                lost_bytes_locked(heap),
                           .limit_bytes = heap->limit_bytes,
                           .allocations = total.allocs,
                           .frees = total.frees,
                           .misses = counts->misses,
                           .moved_chunks = heap->moved_chunks,
                           .waits = heap->waits,
                           .used_bytes = heap->used_bytes,
                           .used_peak_bytes = heap->used_peak_bytes,
                           .largest_free_bytes = largest,
                           .asleep_bytes = heap->asleep_bytes,
                           .is_asleep = tarni_is_asleep(heap),
                           .fragmentation =
                               free_bytes != 0 ? 1.0 - (double)largest / (double)free_bytes : 0.0,
                           .captured_bytes = heap->captured_bytes};
}

tarn_heap_stats tarni_stats_locked(const tarn_heap *heap) {
  const tarni_counts counts = tarni_counts_locked(heap);
  return stats_of(heap, &counts);
}

/* What waits for a stream that is gone may be in a thread's cache: it is kept out of it then. */
static tarn_heap_stats stats_exactly_locked(tarn_heap *heap) {
  const bool has_lost = has_lost_locked(heap);
  if (has_lost) {
    tarni_caches_revoke_locked(heap);
  }
  const tarni_counts counts = tarni_counts_exactly_locked(heap);
  const tarn_heap_stats now = stats_of(heap, &counts);
  if (has_lost) {
    tarni_caches_allow_locked(heap);
  }
  return now;
}

tarn_status tarn_heap_get_stats(tarn_heap *heap, tarn_heap_stats *stats) {
  static const tarn_heap_stats empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(stats, &empty, sizeof(empty), "tarn_heap_get_stats"));
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_get_stats"));
  tarni_lock_acquire(&heap->lock);
  const tarn_heap_stats now = stats_exactly_locked(heap);
  tarni_lock_release(&heap->lock);
  return tarni_struct_out(stats, &now, sizeof(now), "tarn_heap_get_stats");
}

tarn_status tarn_heap_get_calls(tarn_heap *heap, tarn_call_counts *counts) {
  tarn_call_counts full = {.size = sizeof(full)};
  TARN_TRY(tarni_struct_out(counts, &full, sizeof(full), "tarn_heap_get_calls"));
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_get_calls"));
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    full.calls[i] = load(&heap->calls.calls[i]);
    full.nanoseconds[i] = load(&heap->calls.nanoseconds[i]);
  }
  return tarni_struct_out(counts, &full, sizeof(full), "tarn_heap_get_calls");
}
