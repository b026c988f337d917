/* SPDX-License-Identifier: MIT
 *
 * Shelves: large blocks that a thread gave back, for its next ones that are about as large. Room
 * for a large block is found under the lock, in trees of what is free, and takes ten times as long
 * as a small block from the cache. A heap that is eased (rest.c) holds more than it needs all the
 * same, in holes that fit nothing: there a cache keeps a few of these, eight of each 32nd of a
 * power of two. A block from the shelf may have up to twelve of these parts more than was asked
 * for. It stays as large, so nothing drifts; what is spare is not its owner's.
 *
 * A shelf belongs to its cache, and is reached by whoever may reach into that. */
#include "base/bits.h"
#include "internal.h"

enum {
  SHELF_PARTS_LOG2 = 5, /* rows of a power of two */
  SHELF_LEAST_LOG2 = 6, /* granules: from 1 MiB on */
  SHELF_WIDTH = 12,     /* rows that are looked at for a block */
  SHELF_LEFT = 4,       /* for a cache to come this part is left of what one has */
};

/* The row of a size, or one that there is not. */
static uint32_t row_of(uint64_t size) {
  const uint64_t granules = size >> TARNI_GRANULE_LOG2;
  const uint32_t log2 = tarni_log2(granules);
  if (log2 < SHELF_LEAST_LOG2) {
    return TARNI_SHELF_ROWS;
  }
  const uint64_t part = granules >> (log2 - SHELF_PARTS_LOG2) & ((1u << SHELF_PARTS_LOG2) - 1);
  return ((log2 - SHELF_LEAST_LOG2) << SHELF_PARTS_LOG2) + (uint32_t)part;
}

static void bytes_set(tarni_shelf *shelf, uint64_t bytes) {
  atomic_store_explicit(&shelf->bytes, bytes, memory_order_relaxed);
}

static uint64_t bytes_of(const tarni_shelf *shelf) {
  return atomic_load_explicit(&shelf->bytes, memory_order_relaxed);
}

uint32_t tarni_shelf_next(const tarni_shelf *shelf, uint32_t row) {
  uint32_t word = row / 64;
  uint64_t left = word < TARNI_SHELF_WORDS ? shelf->filled[word] >> row % 64 << row % 64 : 0;
  while (left == 0 && ++word < TARNI_SHELF_WORDS) {
    left = shelf->filled[word];
  }
  return left != 0 ? word * 64 + tarni_low_bit(left) : TARNI_SHELF_ROWS;
}

static void row_flip(tarni_shelf *shelf, uint32_t row) {
  shelf->filled[row / 64] ^= (uint64_t)1 << row % 64;
}

bool tarni_shelf_put(tarni_cache *cache, tarni_index index, uint64_t size) {
  tarni_shelf *shelf = &cache->shelf;
  if (bytes_of(shelf) + size > shelf->limit) {
    return false;
  }
  const uint32_t row = row_of(size);
  if (row >= TARNI_SHELF_ROWS || shelf->rows[row].n == TARNI_SHELF_DEPTH) {
    return false;
  }
  tarni_shelf_row *to = &shelf->rows[row];
  if (to->n == 0) {
    row_flip(shelf, row);
  }
  to->extents[to->n++] = index;
  bytes_set(shelf, bytes_of(shelf) + size);
  return true;
}

static tarni_index row_pop(tarni_shelf *shelf, uint32_t row) {
  tarni_shelf_row *from = &shelf->rows[row];
  if (--from->n == 0) {
    row_flip(shelf, row);
  }
  return from->extents[from->n];
}

/* The lowest row whose last block is large enough, of those that are looked at. */
static uint32_t row_find(const tarn_heap *heap, const tarni_shelf *shelf, uint64_t size) {
  const uint32_t row = row_of(size);
  uint32_t found = tarni_shelf_next(shelf, row);
  if (found == row && found < TARNI_SHELF_ROWS) {
    const tarni_index last = shelf->rows[row].extents[shelf->rows[row].n - 1];
    found = heap->extents[last].size < size ? tarni_shelf_next(shelf, row + 1) : found;
  }
  return found < row + SHELF_WIDTH ? found : TARNI_SHELF_ROWS;
}

tarni_index tarni_shelf_take(tarn_heap *heap, tarni_cache *cache, uint64_t size) {
  tarni_shelf *shelf = &cache->shelf;
  const uint32_t row = bytes_of(shelf) != 0 ? row_find(heap, shelf, size) : TARNI_SHELF_ROWS;
  if (row >= TARNI_SHELF_ROWS) {
    return 0;
  }
  const tarni_index index = row_pop(shelf, row);
  tarni_extent *extent = tarni_extent_at(heap, index);
  bytes_set(shelf, bytes_of(shelf) - extent->size);
  extent->spare = (uint32_t)((extent->size - size) >> TARNI_GRANULE_LOG2);
  return index;
}

static void limit_set(tarn_heap *heap, tarni_shelf *shelf, uint64_t limit) {
  heap->shelf_limits += limit - shelf->limit;
  shelf->limit = limit;
}

void tarni_shelf_drop_locked(tarn_heap *heap, tarni_cache *cache) {
  tarni_shelf *shelf = &cache->shelf;
  uint32_t row = bytes_of(shelf) != 0 ? tarni_shelf_next(shelf, 0) : TARNI_SHELF_ROWS;
  for (; row != TARNI_SHELF_ROWS; row = tarni_shelf_next(shelf, row)) {
    tarni_cache_release_locked(heap, cache, row_pop(shelf, row));
  }
  bytes_set(shelf, 0);
  limit_set(heap, shelf, 0);
}

/* Free memory of the lane at an end of a block, which would go with it. */
static uint64_t beside(const tarn_heap *heap, tarni_index lane, tarni_index index) {
  const tarni_extent *extent = &heap->extents[index];
  return index != 0 && extent->kind == TARNI_EXTENT_FREE && extent->tree == 1 + lane ? extent->size
                                                                                     : 0;
}

/* Gives the block back that makes so much room with what is free beside it: the smallest. */
static bool row_yield(tarn_heap *heap, tarni_cache *cache, uint32_t row, uint64_t size) {
  tarni_shelf_row *from = &cache->shelf.rows[row];
  for (uint32_t i = 0; i < from->n; i++) {
    const tarni_index index = from->extents[i];
    const tarni_extent *extent = &heap->extents[index];
    if (extent->size + beside(heap, cache->lane, extent->previous) +
            beside(heap, cache->lane, extent->next) >=
        size) {
      from->extents[i] = from->extents[from->n - 1];
      from->extents[from->n - 1] = index;
      bytes_set(&cache->shelf, bytes_of(&cache->shelf) - extent->size);
      tarni_cache_release_locked(heap, cache, row_pop(&cache->shelf, row));
      return true;
    }
  }
  return false;
}

bool tarni_shelf_yield_locked(tarn_heap *heap, tarni_cache *cache, uint64_t size) {
  const tarni_shelf *shelf = &cache->shelf;
  bool is_found = false;
  uint32_t row = bytes_of(shelf) != 0 ? tarni_shelf_next(shelf, 0) : TARNI_SHELF_ROWS;
  while (row != TARNI_SHELF_ROWS && !is_found) {
    is_found = row_yield(heap, cache, row, size);
    row = tarni_shelf_next(shelf, row + 1);
  }
  return is_found;
}

/* Its part, with some left for a cache to come, and no more than others leave: those that find all
 * they need on their shelves do not come here, and do not see it. */
void tarni_shelf_fit_locked(tarn_heap *heap, tarni_cache *cache) {
  tarni_shelf *shelf = &cache->shelf;
  const uint64_t all = tarni_is_watched(heap) ? 0 : tarni_rest_shelves_locked(heap);
  const uint64_t others = heap->shelf_limits - shelf->limit;
  const uint64_t part = all / (SHELF_LEFT * heap->n_caches + 1) * SHELF_LEFT;
  const uint64_t limit = tarni_min(part, all - tarni_min(all, others));
  if (bytes_of(shelf) > limit) {
    tarni_shelf_drop_locked(heap, cache);
  }
  limit_set(heap, shelf, limit);
}

uint64_t tarni_shelves_bytes_locked(const tarn_heap *heap) {
  uint64_t sum = 0;
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    sum += bytes_of(&cache->shelf);
  }
  return sum;
}
