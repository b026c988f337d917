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
 * gives back what was at the bottom of all its rounds.
 *
 * What a job asks for first are often small blocks, and what it frees last: they would be hits, in
 * whatever order the cache has them. So where a large block goes at low water and hardly anything
 * is used any more, but for what is kept, the caller's cache is beached. Its owner goes the slow
 * way then, until it allocates; if that is a small block, what is kept is collected first.
 * Collecting makes slabs that have to be made again, and looks at all free blocks of the lane: so
 * much of it is done as large blocks were found since, which cost about as much; at the end of a
 * job since that of the one before.
 *
 * What was used at most is kept when a job has ended: what is made as long as no later one has used
 * more is made though it was not needed before (grow.c).
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "room.h"

enum {
  TIDE_SHARE = 16,      /* of the peak: waves that count */
  TIDE_SHALLOW = 4,     /* of the peak: where more is used what is kept is not counted, */
  TIDE_COUNT_SHARE = 8, /* and again only when use has fallen by this part of a wave */
  TIDE_SLABS = 2,       /* that collecting may give, */
  TIDE_BLOCKS = 32,     /* and free blocks that it may look at in vain, for each large block */
  TIDE_FEW = 512,       /* so many of them are looked at for nothing, */
  TIDE_MOST = 1 << 14,  /* and never more than this */
  TIDE_SLOW = 1 << 10,  /* small blocks that the owners of beached caches take and give in an ebb */
};

static uint64_t wave_of(const tarn_heap *heap) {
  return heap->used_peak_bytes / TIDE_SHARE;
}

void tarni_tide_note_locked(tarn_heap *heap) {
  tarni_tide *tide = &heap->tide;
  const uint64_t used = heap->used_bytes;
  const uint64_t wave = wave_of(heap);
  if (tide->is_ebb && used > tide->turn + wave) {
    *tide = (tarni_tide){.low = tide->turn,
                         .turn = used,
                         .n_blocks = tide->n_blocks,
                         .price = tide->price,
                         .job_blocks = tide->job_blocks,
                         .job_price = tide->job_price,
                         .job_peak = tide->job_peak};
  } else if (!tide->is_ebb && used + wave < tide->turn) {
    tide->is_ebb = true;
    tide->turn = used;
  } else {
    tide->turn = tide->is_ebb ? tarni_min(tide->turn, used) : tarni_max(tide->turn, used);
  }
  if (tide->is_ebb && used <= wave) {
    tide->job_peak = heap->used_peak_bytes;
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

bool tarni_tide_is_again_locked(const tarn_heap *heap) {
  const uint64_t peak = heap->tide.job_peak;
  return peak != 0 && heap->used_peak_bytes <= peak + peak / TIDE_SHARE;
}

static void beached_set(tarn_heap *heap, tarni_cache *cache, bool is_beached) {
  if (cache->is_beached != is_beached) {
    cache->is_beached = is_beached;
    atomic_store_explicit(&cache->is_revoked, tarni_cache_is_closed_locked(heap, cache),
                          memory_order_relaxed);
  }
}

/* Free blocks of a class that collecting looks at. */
static uint64_t kept_of(const tarn_heap *heap, const tarni_cache *cache, uint32_t class_index) {
  return (uint64_t)heap->lanes[cache->lane].bins[class_index].n + cache->bins[class_index].n +
         cache->stacks[class_index].n;
}

static uint64_t blocks_kept(const tarn_heap *heap, const tarni_cache *cache) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    n += kept_of(heap, cache, i);
  }
  return n;
}

static uint64_t bytes_kept(const tarn_heap *heap, const tarni_cache *cache) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    bytes += kept_of(heap, cache, i) * tarni_class_size(i);
  }
  return bytes;
}

/* Whether rounds are looked for, and large blocks pay for it. */
static bool is_watching(const tarn_heap *heap) {
  return !heap->is_fixed && !tarni_grow_is_cheap_locked(heap, 0) &&
         !tarni_rest_is_eased_locked(heap, 0);
}

static void collect(tarn_heap *heap, tarni_cache *cache) {
  tarni_tide *tide = &heap->tide;
  if (blocks_kept(heap, cache) > TIDE_MOST) {
    return;
  }
  const uint32_t n_slabs = tarni_cache_collect_locked(heap, cache, true);
  const uint64_t kept = blocks_kept(heap, cache);
  tide->price = n_slabs / TIDE_SLABS + (kept - tarni_min(kept, TIDE_FEW)) / TIDE_BLOCKS;
  tide->n_blocks = 0;
  tide->is_collected = true;
  tide->collected = heap->used_bytes;
}

static void collect_if_low(tarn_heap *heap, tarni_cache *cache) {
  if (is_watching(heap) && is_low(heap) && heap->tide.n_blocks >= heap->tide.price) {
    collect(heap, cache);
  }
}

void tarni_tide_turn_locked(tarn_heap *heap, tarni_cache *cache) {
  beached_set(heap, cache, false);
  heap->tide.n_blocks++;
  heap->tide.job_blocks++;
  collect_if_low(heap, cache);
}

/* ---- On the ground ---- */

/* Whether all blocks that came from the cache are back in it. */
static bool has_all(const tarni_cache *cache) {
  bool has = true;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT && has; i++) {
    has = cache->stacks[i].allocs <= cache->stacks[i].frees; /* others' may come to it, too */
  }
  for (uint32_t i = 0; i < TARNI_LARGE_ROWS && has; i++) {
    has = cache->churn[i].allocs <= cache->churn[i].frees;
  }
  return has;
}

/* Whether hardly anything is used, but for what the cache and its lane's bins keep. */
static bool is_on_ground(tarn_heap *heap, const tarni_cache *cache) {
  tarni_tide *tide = &heap->tide;
  const uint64_t used = heap->used_bytes, wave = wave_of(heap);
  const bool is_known = tide->counted != 0 && used + wave / TIDE_COUNT_SHARE > tide->counted;
  if (used <= wave || used > heap->used_peak_bytes / TIDE_SHALLOW || is_known) {
    return used <= wave;
  }
  tide->counted = used;
  return used <= wave + bytes_kept(heap, cache);
}

void tarni_tide_beach_locked(tarn_heap *heap, tarni_cache *cache) {
  tarni_tide *tide = &heap->tide;
  if (tide->is_ebb && tide->n_slow < TIDE_SLOW && is_watching(heap) && is_on_ground(heap, cache)) {
    tide->job_peak = heap->used_peak_bytes;
    beached_set(heap, cache, true);
  }
}

void tarni_tide_wade_locked(tarn_heap *heap, tarni_cache *cache, bool is_alloc) {
  tarni_tide *tide = &heap->tide;
  if (TARNI_LIKELY(!cache->is_beached)) {
    return;
  }
  const bool is_end = is_alloc && tide->is_ebb && !tide->is_ended;
  bool is_over = ++tide->n_slow >= TIDE_SLOW;
  if (is_end && tide->job_blocks >= tide->job_price && has_all(cache)) {
    tide->is_ended = is_over = true;
    collect(heap, cache);
    tide->job_price = tide->price;
    tide->job_blocks = 0;
  } else if (is_alloc) {
    collect_if_low(heap, cache);
  }
  if (is_over) {
    beached_set(heap, cache, false);
  }
}
