/* SPDX-License-Identifier: MIT
 *
 * Hints: where in views blocks of a size have lain. A program that repeats itself asks for the same
 * sizes and finds the same windows free. In a heap with many places these are looked at before all
 * rows are searched, which takes the longer the more places there are. Of several the one whose
 * places were there first is taken, as a search would do; but a search may find an older one, so
 * where there are few places it is asked first. A hint may be out of date: what it says is checked.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "room.h"

enum {
  HINT_ROWS_LOG2 = 12, /* of the table, by a hash of the size, */
  HINT_WAYS = 4,       /* with so many windows in each, the last ones that were left */
};

static tarni_hint *row_of(const tarn_heap *heap, uint64_t size) {
  const uint64_t hash = (size >> TARNI_GRANULE_LOG2) * UINT64_C(0x9E3779B97F4A7C15);
  return &heap->hints[(hash >> (64 - HINT_ROWS_LOG2)) * HINT_WAYS];
}

uint64_t tarni_hints_bytes(void) {
  return sizeof(tarni_hint) * HINT_WAYS << HINT_ROWS_LOG2;
}

void tarni_hints_clear_locked(tarn_heap *heap) {
  for (uint32_t i = 0; i < HINT_WAYS << HINT_ROWS_LOG2; i++) {
    if (heap->hints[i].size != 0) { /* else it is not touched: perhaps it has no memory */
      heap->hints[i] = (tarni_hint){0};
    }
  }
}

void tarni_hint_note_locked(tarn_heap *heap, uint64_t start, uint64_t size) {
  tarni_hint *row = row_of(heap, size);
  uint32_t last = 0;
  while (last < HINT_WAYS - 1 && (row[last].start != start || row[last].size != size)) {
    last++;
  }
  for (uint32_t i = last; i != 0; i--) {
    row[i] = row[i - 1];
  }
  row[0] = (tarni_hint){.start = start, .size = size};
}

void tarni_hint_drop_locked(tarn_heap *heap, uint64_t start, uint64_t size) {
  tarni_hint *row = row_of(heap, size);
  for (uint32_t i = 0; i < HINT_WAYS; i++) {
    if (row[i].start == start && row[i].size == size) {
      row[i] = (tarni_hint){0};
    }
  }
}

/* Whether places are still there, and all that is behind them is free and may be had by the lane:
 * chunks that small blocks have borrowed are theirs. */
static bool is_open(const tarn_heap *heap, const tarni_search *search, const tarni_hint *hint) {
  const uint64_t end = hint->start + hint->size;
  const tarni_extent *extent = &heap->extents[tarni_extent_containing_locked(heap, hint->start)];
  bool is = extent->kind == TARNI_EXTENT_ALIAS && extent->offset + extent->size >= end;
  for (uint64_t start = hint->start; is && start < end;) {
    const tarni_behind at = tarni_behind_locked(heap, start, end);
    tarni_order order;
    is = !tarni_is_borrowed(heap, search, at.chunk) &&
         tarni_range_is_free_locked(heap, at.home, at.home + at.size, search, &order);
    start += at.size;
  }
  return is;
}

uint64_t tarni_hint_find_locked(const tarn_heap *heap, const tarni_search *search,
                                const tarni_need *need) {
  const tarni_hint *row = row_of(heap, need->size);
  uint64_t found = UINT64_MAX, oldest = UINT64_MAX;
  for (uint32_t i = 0; i < HINT_WAYS; i++) {
    if (row[i].size == need->size && tarni_is_aligned(row[i].start, need->least) &&
        is_open(heap, search, &row[i])) {
      const uint64_t number = tarni_youngest_locked(heap, row[i].start, row[i].start + need->size);
      found = number < oldest ? row[i].start : found;
      oldest = tarni_min(oldest, number);
    }
  }
  return found;
}
