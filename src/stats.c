/* SPDX-License-Identifier: MIT
 *
 * Statistics, and the check that recomputes them from the structures. */
#include "internal.h"

#include <stdlib.h>

typedef struct stat_sum {
  uint64_t allocs, frees, alloc_bytes, free_bytes, misses;
} stat_sum;

static uint64_t load(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
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

static tarn_heap_stats stats_locked(const tarn_heap *heap) {
  const stat_sum sum = sum_locked(heap);
  const uint64_t live = sum.alloc_bytes - sum.free_bytes;
  return (tarn_heap_stats){.size = sizeof(tarn_heap_stats),
                           .live_bytes = live,
                           .live_blocks = sum.allocs - sum.frees,
                           .cached_bytes = heap->used_bytes - live - heap->pending_bytes,
                           .pending_bytes = heap->pending_bytes,
                           .free_bytes = heap->reserved_bytes - heap->used_bytes,
                           .reserved_bytes = heap->reserved_bytes,
                           .reserved_peak_bytes = heap->reserved_peak_bytes,
                           .quarantined_bytes = heap->quarantined_bytes,
                           .limit_bytes = heap->limit_bytes,
                           .allocations = sum.allocs,
                           .frees = sum.frees,
                           .misses = sum.misses,
                           .moved_chunks = heap->moved_chunks,
                           .waits = heap->waits};
}

tarn_status tarn_heap_get_stats(tarn_heap *heap, tarn_heap_stats *stats) {
  static const tarn_heap_stats empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(stats, &empty, sizeof(empty), "tarn_heap_get_stats"));
  if (heap == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_heap_get_stats", NULL, "Pass a heap.", "heap is NULL");
  }
  tarni_lock_acquire(&heap->lock);
  const tarn_heap_stats now = stats_locked(heap);
  tarni_lock_release(&heap->lock);
  return tarni_struct_out(stats, &now, sizeof(now), "tarn_heap_get_stats");
}

/* ---- The check ---- */

typedef struct check_sum {
  uint64_t used, free, live, live_blocks, zombie_chunks;
} check_sum;

static tarn_status check_fail(const char *what, uint64_t counted, uint64_t found) {
  return tarni_fail(TARN_CORRUPT, "tarn_heap_check", NULL,
                    "This is a bug in tarn, or memory of the process was overwritten.",
                    "%s: the counter says %llu, the structures %llu", what,
                    (unsigned long long)counted, (unsigned long long)found);
}

static void count_live(const tarn_heap *heap, const tarni_extent *slab, check_sum *sum) {
  if (slab->class_index == TARNI_CLASS_COUNT) {
    sum->live += slab->state == TARNI_BLOCK_LIVE ? slab->size : 0;
    sum->live_blocks += slab->state == TARNI_BLOCK_LIVE;
    return;
  }
  for (uint32_t i = 0; i < slab->n_blocks; i++) {
    if (heap->states[(slab->offset >> 8) + (uint64_t)i * slab->block_bytes_256] != 0) {
      sum->live += (uint64_t)slab->block_bytes_256 << 8;
      sum->live_blocks++;
    }
  }
}

static bool is_mapped(const tarn_heap *heap, const tarni_extent *extent, bool wanted) {
  for (uint64_t at = extent->offset; at < extent->offset + extent->size; at += TARNI_GRANULE) {
    if ((heap->units[at / heap->unit] != 0) != wanted) {
      return false;
    }
  }
  return true;
}

/* What an extent's kind promises. */
static tarn_status check_extent(const tarn_heap *heap, tarni_index index, check_sum *sum) {
  const tarni_extent *extent = &heap->extents[index];
  const tarni_index page = heap->pages[extent->offset >> TARNI_GRANULE_LOG2];
  if (extent->kind == TARNI_EXTENT_SLAB) {
    sum->used += extent->size;
    count_live(heap, extent, sum);
  }
  if (page != (extent->kind == TARNI_EXTENT_SLAB ? index : 0)) {
    return check_fail("the page of an extent", index, page);
  }
  sum->free += extent->kind == TARNI_EXTENT_FREE ? extent->size : 0;
  if (extent->kind == TARNI_EXTENT_ZOMBIE && extent->chunk != 0) {
    sum->zombie_chunks += extent->size;
  }
  const bool must_be_mapped =
      extent->kind == TARNI_EXTENT_SLAB || extent->kind == TARNI_EXTENT_FREE;
  if (extent->kind != TARNI_EXTENT_BUSY && !is_mapped(heap, extent, must_be_mapped)) {
    return check_fail("whether an extent is mapped", must_be_mapped, !must_be_mapped);
  }
  return TARN_OK;
}

/* Walks a zone: extents follow each other without a gap, and each is what its kind says. */
static tarn_status check_zone(const tarn_heap *heap, uint32_t zone, check_sum *sum) {
  uint64_t at = heap->zones[zone].first;
  tarni_index previous = 0;
  for (tarni_index i = heap->zones[zone].head; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    if (extent->offset != at || extent->previous != previous || extent->size == 0) {
      return check_fail("the extents' partition", at, extent->offset);
    }
    TARN_TRY(check_extent(heap, i, sum));
    previous = i;
    at += extent->size;
  }
  return at == heap->zones[zone].end ? TARN_OK
                                     : check_fail("a zone's end", heap->zones[zone].end, at);
}

static tarn_status check_locked(const tarn_heap *heap) {
  check_sum sum = {0};
  TARN_TRY(check_zone(heap, 0, &sum));
  TARN_TRY(check_zone(heap, 1, &sum));
  const tarn_heap_stats stats = stats_locked(heap);
  if (sum.used != heap->used_bytes) {
    return check_fail("bytes in slabs", heap->used_bytes, sum.used);
  }
  if (sum.live != stats.live_bytes) {
    return check_fail("live bytes", stats.live_bytes, sum.live);
  }
  if (sum.live_blocks != stats.live_blocks) {
    return check_fail("live blocks", stats.live_blocks, sum.live_blocks);
  }
  const uint64_t physical = sum.used + sum.free + sum.zombie_chunks;
  return physical == heap->reserved_bytes
             ? TARN_OK
             : check_fail("physical bytes", heap->reserved_bytes, physical);
}

tarn_status tarn_heap_check(tarn_heap *heap) {
  if (heap == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_heap_check", NULL, "Pass a heap.", "heap is NULL");
  }
  tarni_lock_acquire(&heap->lock);
  const tarn_status status = check_locked(heap);
  tarni_lock_release(&heap->lock);
  return status;
}
