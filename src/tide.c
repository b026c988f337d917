/* SPDX-License-Identifier: MIT
 *
 * Tides: what a program uses rises and falls, round by round. At low water, when the next block is
 * about to raise it, the free blocks that the caller's cache and its lane's bins keep are
 * collected: a round begins from much the same state then, whatever the one before has left in the
 * caches, and finds the places and windows that it had, with no driver call (place.c). Left alone,
 * small blocks would lie a little differently in every round, and so would all that has to make
 * room for them.
 *
 * Low water is a use within a sixteenth of the peak of the last low water, where use turned. A turn
 * is seen once use has changed by as much, so smaller waves do not count. Slabs that are collected
 * have to be made again: so much of it is done as large blocks were found since, which cost about
 * as much.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "internal.h"

enum {
  TIDE_SHARE = 16, /* of the peak: waves that count */
  TIDE_SLABS = 2,  /* that collecting may give for each large block */
};

static uint64_t wave_of(const tarn_heap *heap) {
  return heap->used_peak_bytes / TIDE_SHARE;
}

void tarni_tide_note_locked(tarn_heap *heap) {
  tarni_tide *tide = &heap->tide;
  const uint64_t used = heap->used_bytes;
  const uint64_t wave = wave_of(heap);
  if (tide->is_ebb && used > tide->turn + wave) {
    *tide = (tarni_tide){
        .low = tide->turn, .turn = used, .n_blocks = tide->n_blocks, .price = tide->price};
  } else if (!tide->is_ebb && used + wave < tide->turn) {
    tide->is_ebb = true;
    tide->turn = used;
  } else {
    tide->turn = tide->is_ebb ? tarni_min(tide->turn, used) : tarni_max(tide->turn, used);
  }
}

static bool is_low(const tarn_heap *heap) {
  const tarni_tide *tide = &heap->tide;
  const uint64_t used = heap->used_bytes;
  const uint64_t wave = wave_of(heap);
  return tide->is_ebb && used <= tide->low + wave &&
         (!tide->is_collected || used + wave <= tide->collected);
}

void tarni_tide_turn_locked(tarn_heap *heap, tarni_cache *cache) {
  tarni_tide *tide = &heap->tide;
  tide->n_blocks++;
  if (heap->is_fixed || tarni_grow_is_cheap_locked(heap, 0) || !is_low(heap) ||
      tide->n_blocks < tide->price) {
    return;
  }
  tide->price = tarni_cache_collect_locked(heap, cache) / TIDE_SLABS;
  tide->n_blocks = 0;
  tide->is_collected = true;
  tide->collected = heap->used_bytes;
}
