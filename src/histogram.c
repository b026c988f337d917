/* SPDX-License-Identifier: MIT
 *
 * The histogram: blocks by size. What was handed out and given back, the caches have counted; what
 * there is, the slabs say; what is neither live nor pending is cached. Owns nothing.
 *
 * Under heap->lock: counts are of one moment, and slabs come and go only under the lock. */
#include <string.h>

#include "base/bits.h"
#include "internal.h"

_Static_assert((int)TARNI_ROWS <= (int)TARN_HISTOGRAM_CAPACITY, "every size has a row");

static uint32_t row_of(const tarni_extent *slab) {
  return slab->class_index != TARNI_CLASS_COUNT ? slab->class_index
                                                : TARNI_CLASS_COUNT + tarni_large_row(slab->size);
}

void tarni_histogram_defer_locked(tarn_heap *heap, const tarni_extent *slab, bool is_deferred) {
  heap->deferred_blocks[row_of(slab)] += is_deferred ? 1 : -1u;
}

/* Whether a grant is neither live nor kept, and still there: also where it is on its way back. */
static bool is_pending(const tarni_grant *grant) {
  return grant->state == TARNI_GRANT_PENDING || grant->state == TARNI_GRANT_DEFERRED ||
         (grant->state == TARNI_GRANT_DOOMED && (grant->parts & TARNI_PART_MEMORY) != 0);
}

/* Where blocks are grants. */
static void rows_count_grants_locked(tarn_heap *heap, tarn_histogram_row *rows) {
  const tarni_buckets *buckets = heap->buckets;
  for (tarni_index i = 1; i < buckets->n_grants; i++) {
    const tarni_grant *grant = &buckets->grants[i];
    if (grant->bytes == 0) {
      continue;
    }
    tarn_histogram_row *row =
        &rows[TARNI_CLASS_COUNT + (tarni_grant_counts(heap, grant->bytes) - heap->gone.large)];
    row->cached_blocks +=
        grant->state == TARNI_GRANT_LIVE || grant->state == TARNI_GRANT_CACHED || is_pending(grant);
    row->pending_blocks += is_pending(grant);
  }
}

/* Blocks of all states, in cached_blocks for now, and those that are pending. */
static void rows_count_locked(tarn_heap *heap, tarn_histogram_row rows[TARNI_ROWS]) {
  if (heap->buckets != NULL) {
    rows_count_grants_locked(heap, rows);
    return;
  }
  for (uint32_t zone = 0; zone < TARNI_ZONES; zone++) {
    for (tarni_index i = heap->zones[zone].head; i != 0; i = heap->extents[i].next) {
      const tarni_extent *extent = tarni_extent_at(heap, i);
      if (extent->kind == TARNI_EXTENT_SLAB) {
        rows[row_of(extent)].cached_blocks += extent->n_blocks;
      }
    }
  }
  const tarni_uses *lists[2] = {heap->pending, heap->held[0]};
  for (uint32_t i = 0; i < 2; i++) {
    for (const tarni_uses *uses = lists[i]; uses != NULL; uses = uses->next) {
      const tarni_index slab = heap->pages[uses->offset >> TARNI_GRANULE_LOG2];
      rows[row_of(tarni_extent_at(heap, slab))].pending_blocks++;
    }
  }
  for (uint32_t i = 0; i < TARNI_ROWS; i++) {
    rows[i].pending_blocks += heap->deferred_blocks[i];
  }
}

static void rows_fill(const tarn_heap *heap, const tarni_counts *counts,
                      tarn_histogram_row rows[TARNI_ROWS]) {
  const uint64_t least = heap->buckets != NULL ? 1 : TARNI_GRANULE;
  for (uint32_t i = 0; i < TARNI_ROWS; i++) {
    tarn_histogram_row *row = &rows[i];
    if (i < TARNI_CLASS_COUNT) {
      row->block_bytes = tarni_class_size(i);
      row->allocations = counts->allocs[i];
      row->frees = counts->frees[i];
      row->live_bytes = (row->allocations - row->frees) * row->block_bytes;
    } else {
      const tarni_large_counts *large = &counts->large[i - TARNI_CLASS_COUNT];
      row->block_bytes = least << (i - TARNI_CLASS_COUNT);
      row->allocations = large->allocs;
      row->frees = large->frees;
      row->live_bytes = large->alloc_bytes - large->free_bytes;
    }
    row->live_blocks = row->allocations - row->frees;
    row->cached_blocks -= row->live_blocks + row->pending_blocks;
  }
}

tarn_status tarn_heap_get_histogram(tarn_heap *heap, tarn_heap_histogram *histogram) {
  tarn_heap_histogram full = {.size = sizeof(full)};
  TARN_TRY(tarni_struct_out(histogram, &full, sizeof(full), "tarn_heap_get_histogram"));
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_get_histogram"));
  tarn_histogram_row rows[TARNI_ROWS];
  memset(rows, 0, sizeof(rows));
  tarni_lock_acquire(&heap->lock);
  const tarni_counts counts = tarni_counts_exactly_locked(heap);
  rows_count_locked(heap, rows);
  tarni_lock_release(&heap->lock);
  rows_fill(heap, &counts, rows);
  for (uint32_t i = 0; i < TARNI_ROWS; i++) {
    if (rows[i].allocations != 0) {
      full.rows[full.n_rows++] = rows[i];
    }
  }
  return tarni_struct_out(histogram, &full, sizeof(full), "tarn_heap_get_histogram");
}
