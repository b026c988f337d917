/* SPDX-License-Identifier: MIT
 *
 * Counting what is handed out and given back: small blocks by class, large ones by the logarithm of
 * their size. A cache counts what its thread does, with no lock; what no cache does is counted in
 * heap->gone, under heap->lock. stats.c adds all of it up. */
#ifndef TARNI_COUNT_H
#define TARNI_COUNT_H

#include "base/bits.h"
#include "types.h"

/* Adds to a counter that only this thread writes: no read-modify-write is needed. */
static inline void tarni_count(_Atomic uint64_t *counter, uint64_t n) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                        memory_order_relaxed);
}

/* What its owner has of a large block. */
static inline uint64_t tarni_large_bytes(const tarni_extent *slab) {
  return slab->size - ((uint64_t)slab->spare << TARNI_GRANULE_LOG2);
}

/* By the size that a slab has and keeps: it is in the same row of the histogram. */
static inline uint32_t tarni_large_row(uint64_t size) {
  return tarni_log2(size >> TARNI_GRANULE_LOG2);
}

static inline void tarni_count_large_alloc(tarni_cache *cache, const tarni_extent *slab) {
  tarni_large_churn *churn = &cache->churn[tarni_large_row(slab->size)];
  tarni_count(&churn->allocs, 1);
  tarni_count(&churn->alloc_bytes, tarni_large_bytes(slab));
}

static inline void tarni_count_large_free(tarni_cache *cache, const tarni_extent *slab) {
  tarni_large_churn *churn = &cache->churn[tarni_large_row(slab->size)];
  tarni_count(&churn->frees, 1);
  tarni_count(&churn->free_bytes, tarni_large_bytes(slab));
}

/* A block of the slab is given back, and no cache counts it. */
static inline void tarni_count_free_locked(tarn_heap *heap, const tarni_extent *slab) {
  if (slab->class_index != TARNI_CLASS_COUNT) {
    heap->gone.frees[slab->class_index]++;
  } else {
    tarni_large_counts *row = &heap->gone.large[tarni_large_row(slab->size)];
    row->frees++;
    row->free_bytes += tarni_large_bytes(slab);
  }
}

/* Blocks that are grants are counted by the logarithm of their bytes. */
static inline tarni_large_counts *tarni_grant_counts(tarn_heap *heap, uint64_t bytes) {
  return &heap->gone.large[tarni_min(tarni_log2(bytes), TARNI_LARGE_ROWS - 1)];
}

#endif
