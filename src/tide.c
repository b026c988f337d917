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
 * is used any more, but for what is kept, the caller's cache is beached: its owner goes the slow
 * way for small blocks, and where it asks for one when all that it had is back, what is kept is
 * collected first. It is afloat again then, or when use rises, when it finds a large block, or when
 * the owners of beached caches have gone the slow way twice for each large block that was found:
 * what stays in use, or is freed by others, must not keep them there.
 *
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
  TIDE_JOB = 8,         /* large blocks from one job's end to the next, at least */
  TIDE_SLOW_EACH = 2,   /* small blocks that may be slow for each large one, */
  TIDE_SLOW = 1 << 10,  /* and of which so many are saved up */
};

static uint64_t wave_of(const tarn_heap *heap) {
  return heap->used_peak_bytes / TIDE_SHARE;
}

static void flood_begin(tarni_tide *tide, uint64_t used) {
  tide->is_ebb = tide->is_collected = false;
  tide->collected = tide->counted = 0;
  tide->low = tide->turn;
  tide->turn = used;
}

void tarni_tide_note_locked(tarn_heap *heap) {
  tarni_tide *tide = &heap->tide;
  const uint64_t used = heap->used_bytes;
  const uint64_t wave = wave_of(heap);
  if (tide->is_ebb && used > tide->turn + wave) {
    flood_begin(tide, used);
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

void tarni_tide_turn_locked(tarn_heap *heap, tarni_cache *cache) {
  tarni_tide *tide = &heap->tide;
  beached_set(heap, cache, false);
  tide->n_blocks++;
  tide->job_blocks++;
  tide->slow_left = tarni_min(tide->slow_left + TIDE_SLOW_EACH, TIDE_SLOW);
  if (is_watching(heap) && is_low(heap) && tide->n_blocks >= tide->price) {
    collect(heap, cache);
  }
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
  if (tide->is_ebb && is_watching(heap) && is_on_ground(heap, cache)) {
    tide->job_peak = heap->used_peak_bytes;
    beached_set(heap, cache, true);
  }
}

void tarni_tide_wade_locked(tarn_heap *heap, tarni_cache *cache, bool is_alloc) {
  tarni_tide *tide = &heap->tide;
  if (TARNI_LIKELY(!cache->is_beached)) {
    return;
  }
  bool is_over = !tide->is_ebb || tide->slow_left == 0;
  tide->slow_left -= !is_over;
  if (tide->is_ebb && is_alloc && tide->job_blocks >= tide->job_price && has_all(cache)) {
    collect(heap, cache);
    tide->job_price = tarni_max(tide->price, TIDE_JOB);
    tide->job_blocks = 0;
    is_over = true;
  }
  if (is_over) {
    beached_set(heap, cache, false);
  }
}

void tarni_tide_forget_locked(tarn_heap *heap) {
  heap->tide = (tarni_tide){0};
  for (tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    cache->is_beached = false;
  }
  tarni_caches_allow_locked(heap);
}
