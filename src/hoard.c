/* SPDX-License-Identifier: MIT
 *
 * Hoards: what some streams free and others need. It is everybody's once it is known to be
 * complete, but nobody asks for that as long as the heap may grow. So a program that allocates on
 * one stream and frees on another would come to hold all of the device with next to nothing live,
 * and so would threads that come and go, each with a stream of its own. A heap that holds more than
 * twice the most that was ever used therefore has fences recorded behind what other streams have
 * freed, before it grows: no stream waits for another, and what is complete by the next growth need
 * not be made then. Once half of what is free was used they are asked again, so that it is complete
 * when it is needed. Small blocks come back slab by slab, so where much is kept in bins the slabs
 * of all lanes are collected first; where that gave little it is not done again before the heap has
 * grown.
 *
 * Locks: heap->grow for the fences, heap->lock for each step. */
#include "base/bits.h"
#include "internal.h"

enum {
  HOARD_TIMES = 2,        /* the peak of use: what is held beyond is a hoard, */
  HOARD_LEAST = 32 << 20, /* but for so many bytes */
  HOARD_KEPT_SHARE = 4,   /* of what is held is kept in bins, if slabs are to be collected, */
  HOARD_GAIN_SHARE = 16,  /* which has to give this part of it, */
  HOARD_GROWN_SHARE = 4,  /* or is not done again before it is larger by this one */
  HOARD_LEFT_SHARE = 2,   /* of what is free is used before it is asked for again */
  HOARD_FENCES = 8,       /* are recorded at a time, */
  HOARD_BATCH = 256,      /* and so many extents become everybody's */
};

static bool is_hoard_locked(const tarn_heap *heap) {
  return !heap->is_fixed && heap->n_lanes > 2 && /* the common lane, the caller's, and others */
         heap->reserved_bytes > HOARD_TIMES * tarni_rest_used_locked(heap) + HOARD_LEAST;
}

/* ---- Small blocks ---- */

static bool is_worth_locked(tarn_heap *heap) {
  const uint64_t kept = heap->binned_bytes + tarni_caches_binned_locked(heap);
  const uint64_t held = heap->reserved_bytes;
  uint64_t *vain = &heap->hoard.vain_bytes;
  *vain = tarni_min(*vain, held); /* it may have shrunk since */
  return kept > held / HOARD_KEPT_SHARE && held >= *vain + *vain / HOARD_GROWN_SHARE;
}

static void slabs_collect_locked(tarn_heap *heap) {
  const uint64_t used = heap->used_bytes, held = heap->reserved_bytes;
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_slab_collect_all_locked(heap);
  heap->hoard.vain_bytes = used - heap->used_bytes < held / HOARD_GAIN_SHARE ? held : 0;
}

/* ---- Large blocks ---- */

/* Some of the extents below a node that are complete. Returns how many there are by now. */
static uint32_t tree_gather(const tarn_heap *heap, tarni_index root, tarni_index *found,
                            uint32_t n) {
  if (root == 0 || n == HOARD_BATCH) {
    return n;
  }
  const tarni_extent *node = &heap->extents[root];
  if (tarni_order_is_complete_locked(heap, &node->order)) {
    found[n++] = root;
  }
  n = tree_gather(heap, node->left, found, n);
  return tree_gather(heap, node->right, found, n);
}

/* What has become complete is everybody's. One that is given back may take others with it. */
static void sealed_settle_locked(tarn_heap *heap, tarni_index root) {
  static const tarni_order complete = {0};
  tarni_index found[HOARD_BATCH];
  const uint32_t n = tree_gather(heap, root, found, 0);
  for (uint32_t i = 0; i < n; i++) {
    const tarni_extent *extent = tarni_extent_at(heap, found[i]);
    if (extent->kind == TARNI_EXTENT_FREE && extent->order.n > 1 &&
        tarni_order_is_complete_locked(heap, &extent->order)) {
      tarni_extent_take_locked(heap, found[i]);
      tarni_extent_give_locked(heap, found[i], TARNI_EXTENT_FREE, &complete);
    }
  }
}

/* What the lane gives back from here on is not united with what it has given: it would have to wait
 * for that, too, and so again and again. So that goes among what waits for several lanes, with one
 * that there is nothing to wait for. */
static void lane_seal_locked(tarn_heap *heap, tarni_index lane, tarni_index other) {
  for (uint32_t zone = 0; zone < TARNI_ZONE_VIEWS; zone++) {
    for (;;) {
      const tarni_index index = heap->zones[zone].trees[1 + lane];
      if (index == 0) {
        break;
      }
      tarni_order order = tarni_extent_at(heap, index)->order;
      (void)tarni_order_add(&order, other, 0);
      tarni_extent_take_locked(heap, index);
      tarni_extent_give_locked(heap, index, TARNI_EXTENT_FREE, &order);
    }
  }
}

/* ---- Fences ---- */

/* Streams that use what they free are left alone: the lane gave back more than it took since it was
 * last asked, or it is the default stream of a thread that is gone. */
static bool is_surplus(const tarni_lane *lane) {
  return lane->surplus > 0 || (lane->thread != NULL && atomic_load(&lane->n_caches) == 0 &&
                               tarni_thread_is_gone(lane->thread));
}

/* Whether all that the lane had given when it was last asked is complete, and it is worth it to ask
 * for what it gave since, or there is no fence behind that; and one can be made. */
static bool is_unasked(const tarn_heap *heap, tarni_index index) {
  const tarni_lane *lane = &heap->lanes[index];
  const uint64_t complete = heap->complete[index];
  const bool is_owed = lane->asked > tarni_max(lane->fenced, complete);
  return lane->stream_id != 0 && lane->ticket > complete &&
         (is_owed || (lane->asked <= complete && is_surplus(lane))) && !lane->is_lost &&
         !lane->is_retired && !lane->is_leaving && !lane->is_captured;
}

/* The next lane but this one that is to be asked, in turn; 0: there is none. */
static tarni_index lane_next_locked(tarn_heap *heap, tarni_index own) {
  for (uint32_t n = heap->n_lanes; n != 0; n--) {
    const tarni_index index = heap->hoard.lane = (heap->hoard.lane + 1) % heap->n_lanes;
    if (index != TARNI_LANE_COMMON && index != own && is_unasked(heap, index)) {
      return index;
    }
  }
  return 0;
}

/* Where a fence cannot be recorded there is just less that comes back, for now. Whether any was. */
static bool lanes_ask_grow(tarn_heap *heap, tarni_index own) {
  int i = 0;
  for (; i < HOARD_FENCES; i++) {
    tarni_lock_acquire(&heap->lock);
    const tarni_index index = lane_next_locked(heap, own);
    const uint64_t ticket = heap->lanes[index].ticket;
    if (index != 0) {
      lane_seal_locked(heap, index, own);
      heap->lanes[index].asked = ticket;
      heap->lanes[index].surplus = 0;
    }
    tarni_lock_release(&heap->lock);
    if (index == 0 || tarni_lane_fence_grow(heap, index, ticket) != TARN_OK) {
      break;
    }
  }
  return i != 0;
}

/* Once half of what is free was used it is time to look again. */
static void next_set(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const uint64_t free = heap->reserved_bytes - tarni_min(heap->reserved_bytes, heap->used_bytes);
  heap->hoard.left_bytes = free / HOARD_LEFT_SHARE + 1;
  tarni_lock_release(&heap->lock);
}

/* Whether it is one; if so small blocks are large ones again, as far as that is worth it. */
static bool hoard_see(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const bool is_hoard = is_hoard_locked(heap);
  if (is_hoard && is_worth_locked(heap)) {
    slabs_collect_locked(heap);
  }
  for (uint32_t zone = 0; zone < TARNI_ZONE_VIEWS && is_hoard; zone++) {
    sealed_settle_locked(heap, heap->zones[zone].trees[1 + heap->max_lanes]);
  }
  heap->hoard.left_bytes = 0;
  heap->hoard.is_due = false;
  tarni_lock_release(&heap->lock);
  return is_hoard;
}

bool tarni_hoard_ask_grow(tarn_heap *heap, tarni_index lane) {
  if (heap->care.is_deterministic || tarni_capture_forbids() || !hoard_see(heap)) {
    return false; /* in the first two cases nobody may look at fences */
  }
  if (lanes_ask_grow(heap, lane)) {
    next_set(heap);
    tarni_shortage_reap_grow(heap);
  }
  return true;
}

void tarni_hoard_visit(tarn_heap *heap, tarni_index lane) {
  if (tarni_lock_try(&heap->grow)) {
    tarni_shortage_reap_grow(heap);
    (void)tarni_hoard_ask_grow(heap, lane);
    tarni_lock_release(&heap->grow);
  }
}
