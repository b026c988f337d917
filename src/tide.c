/* SPDX-License-Identifier: MIT
 *
 * Tides: what a program uses rises and falls, round by round. At low water, when the next block is
 * about to raise it, the free blocks that the caller's cache and its lane's bins keep are
 * collected: each round begins from the same state then, whatever the one before has left in the
 * caches, and comes to the same places and windows, which takes no driver call (place.c). Left
 * alone, small blocks would lie a little differently in every round, and so would all that has to
 * make room for them.
 *
 * Low water is a use within a sixteenth of the peak of the last low water. A turn is seen once use
 * has changed by as much, so smaller waves do not count. Collecting costs as much as making those
 * slabs again: it waits until there was a large block for every two of the last time's slabs, each
 * of which costs about as much.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "internal.h"

enum { TIDE_SHARE = 16, TIDE_SLABS = 2 };

static uint64_t wave_of(const tarn_heap *heap) {
  return heap->used_peak_bytes / TIDE_SHARE;
}

void tarni_tide_note_locked(tarn_heap *heap) {
  tarni_tide *tide = &heap->tide;
  const uint64_t used = heap->used_bytes;
  const uint64_t wave = wave_of(heap);
  if (tide->is_ebb && used > tide->turn + wave) {
    *tide = (tarni_tide){
        .low = tide->turn, .turn = used, .n_blocks = tide->n_blocks, .n_slabs = tide->n_slabs};
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
      tide->n_blocks < tide->n_slabs / TIDE_SLABS) {
    return;
  }
  tide->n_slabs = tarni_slab_collect_locked(heap, cache->lane, cache->lane + 1, cache->stacks);
  tide->n_blocks = 0;
  tide->is_collected = true;
  tide->collected = heap->used_bytes;
}
