/* SPDX-License-Identifier: MIT
 *
 * Tides: what a program uses rises and falls, round by round. At low water, when the next block is
 * about to raise it, the free blocks that the caller's cache and its lane's bins keep are
 * collected: a round begins from much the same state then, whatever the one before has left in the
 * caches, and finds the places and views that it had, with no driver call (view.c). Left alone,
 * small blocks would lie a little differently in every round, and so would all that has to make
 * room for them.
 *
 * Low water is a use within a sixteenth of the peak of the last low water, where use turned. A turn
 * is seen once use has changed by as much, so smaller waves do not count. It is collected once, and
 * again where use has fallen on by as much or to half of what it was: a program that ends a job
 * gives back what was at the bottom of all its rounds. Collecting makes slabs
 * that have to be made again, and looks at all free blocks of the lane: so much of it is done as
 * large blocks were found since, which cost about as much.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "room.h"

enum {
  TIDE_SHARE = 16,     /* of the peak: waves that count */
  TIDE_SLABS = 2,      /* that collecting may give, */
  TIDE_BLOCKS = 32,    /* and free blocks that it may look at in vain, for each large block */
  TIDE_FEW = 512,      /* so many of them are looked at for nothing, */
  TIDE_MOST = 1 << 14, /* and never more than this */
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
  const uint64_t lower = tarni_min(wave, tide->collected / 2); /* than when it was collected */
  return tide->is_ebb && used <= tide->low + wave &&
         (!tide->is_collected || used + lower <= tide->collected);
}

/* Free blocks that collecting looks at. */
static uint64_t blocks_kept(const tarn_heap *heap, const tarni_cache *cache) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    n += heap->lanes[cache->lane].bins[i].n + cache->bins[i].n + cache->stacks[i].n;
  }
  return n;
}

void tarni_tide_turn_locked(tarn_heap *heap, tarni_cache *cache) {
  tarni_tide *tide = &heap->tide;
  tide->n_blocks++;
  if (heap->is_fixed || tarni_grow_is_cheap_locked(heap, 0) ||
      tarni_rest_is_eased_locked(heap, 0) || !is_low(heap) || tide->n_blocks < tide->price ||
      blocks_kept(heap, cache) > TIDE_MOST) {
    return;
  }
  const uint32_t n_slabs = tarni_cache_collect_locked(heap, cache, true);
  const uint64_t kept = blocks_kept(heap, cache);
  tide->price = n_slabs / TIDE_SLABS + (kept - tarni_min(kept, TIDE_FEW)) / TIDE_BLOCKS;
  tide->n_blocks = 0;
  tide->is_collected = true;
  tide->collected = heap->used_bytes;
}
