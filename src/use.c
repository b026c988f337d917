/* SPDX-License-Identifier: MIT
 *
 * Blocks that several streams use (tarn_use). While such a block is live it has an entry in a hash
 * table; when it is freed the entry becomes a pending one, with a ticket of each lane that used it,
 * and the block is free once all of them are complete. The entry is made by tarn_use, so freeing
 * needs no memory (I7). Under heap->lock. */
#include <stdlib.h>

#include "base/bits.h"
#include "bucket.h"

static uint32_t hash_of(const tarn_heap *heap, uint64_t offset) {
  return (uint32_t)((offset >> 8) * 0x9e3779b97f4a7c15u >> 40) & (heap->uses_capacity - 1);
}

static tarni_uses **uses_link(tarn_heap *heap, uint64_t offset) {
  tarni_uses **link = &heap->uses[hash_of(heap, offset)];
  while (*link != NULL && (*link)->offset != offset) {
    link = &(*link)->next;
  }
  return link;
}

static bool uses_have(const tarni_uses *uses, tarni_index lane) {
  for (uint32_t i = 0; i < uses->n_lanes; i++) {
    if (uses->lanes[i].lane == lane) {
      return true;
    }
  }
  return false;
}

/* Marks a live block so that freeing it comes here. */
static void block_mark(tarn_heap *heap, const tarni_block *block, bool has_uses) {
  if (heap->buckets != NULL) {
    heap->buckets->grants[block->extent].has_uses = has_uses;
  } else if (block->offset < heap->small_end) {
    uint8_t *state = &heap->states[block->offset >> 8];
    *state = (uint8_t)(has_uses ? *state | TARNI_SMALL_USED : *state & ~TARNI_SMALL_USED);
  } else {
    tarni_extent_at(heap, block->extent)->has_uses = has_uses;
  }
}

/* As many lists as there are entries: they stay short. Without host memory they become longer. */
static void uses_spread_locked(tarn_heap *heap) {
  const uint32_t before = heap->uses_capacity;
  tarni_uses **spread = heap->n_uses < before ? NULL : calloc((size_t)before * 2, sizeof(void *));
  if (spread == NULL) {
    return;
  }
  tarni_uses **lists = heap->uses;
  heap->uses = spread;
  heap->uses_capacity = before * 2;
  for (uint32_t i = 0; i < before; i++) {
    while (lists[i] != NULL) {
      tarni_uses *uses = lists[i];
      lists[i] = uses->next;
      tarni_uses **link = &spread[hash_of(heap, uses->offset)];
      uses->next = *link;
      *link = uses;
    }
  }
  free(lists);
}

/* Takes an entry out. */
static tarni_uses *uses_unlink_locked(tarn_heap *heap, tarni_uses **link) {
  tarni_uses *uses = *link;
  *link = uses->next;
  heap->n_uses--;
  return uses;
}

static tarn_status uses_add_locked(tarn_heap *heap, const tarni_block *block, tarni_index lane) {
  uses_spread_locked(heap);
  tarni_uses **link = uses_link(heap, block->offset);
  tarni_uses *uses = *link;
  if (uses != NULL && uses_have(uses, lane)) {
    return TARN_OK;
  }
  if (uses == NULL || uses->n_lanes == uses->capacity) {
    const uint32_t capacity = uses != NULL ? uses->capacity * 2 : 4;
    tarni_uses *grown = realloc(uses, sizeof(*grown) + capacity * sizeof(grown->lanes[0]));
    if (grown == NULL) {
      return tarni_fail(TARN_HOST_MEMORY, "tarn_use", NULL, "Free some host memory.",
                        "no host memory to note a use");
    }
    if (uses == NULL) {
      *grown = (tarni_uses){.offset = block->offset, .bytes = block->bytes};
      block_mark(heap, block, true);
      heap->n_uses++;
    }
    grown->capacity = capacity;
    *link = uses = grown;
  }
  uses->lanes[uses->n_lanes++] = (tarni_order_entry){.lane = lane};
  return TARN_OK;
}

static tarn_status use_note(tarn_heap *heap, tarn_ptr pointer, tarn_stream stream,
                            tarni_index lane) {
  const uint64_t offset = pointer - heap->base;
  tarni_block block = {0};
  tarni_lock_acquire(&heap->lock);
  const bool is_its = tarni_lane_is_locked(heap, lane, stream);
  const bool is_live =
      tarni_block_find_locked(heap, offset, &block) && block.is_live && block.offset == offset;
  const tarn_status status =
      is_its && is_live ? uses_add_locked(heap, &block, lane) : TARNI_RETIRED;
  tarni_lock_release(&heap->lock);
  return is_live ? status : tarni_block_refuse(heap, pointer, "tarn_use");
}

tarn_status tarn_use(tarn_heap *heap, tarn_ptr pointer, tarn_stream stream) {
  TARN_TRY(tarni_heap_given(heap, "tarn_use"));
  if (pointer == 0) {
    return TARN_OK;
  }
  TARNI_PAYS(&heap->calls);
  tarn_status captured;
  /* A block of the heap may lie where an arena was that is not yet gone. */
  if (!tarni_block_is_live(heap, pointer - heap->base)) {
    return tarni_arena_use(heap, pointer, stream, &captured)
               ? captured
               : tarni_block_refuse(heap, pointer, "tarn_use");
  }
  TARN_TRY(tarni_sleep_refuse(heap, "tarn_use")); /* captured blocks do not sleep with it */
  tarn_status status;
  do {
    tarni_index lane;
    const tarn_status found = tarni_lane_find(heap, stream, &lane);
    /* What a captured stream was given before the capture may use the block. */
    TARN_TRY(found == TARN_CAPTURE ? tarni_lane_unnamed(heap, stream, "tarn_use", &lane) : found);
    status = use_note(heap, pointer, stream, lane);
  } while (status == TARNI_RETIRED);
  return status;
}

/* ---- Freeing ---- */

/* The block is free in the order of the lane that freed it, or of none when that is complete: the
 * lane's stream may be gone by now, and its record another stream's. */
static void block_finish_locked(tarn_heap *heap, const tarni_uses *uses) {
  const bool is_complete = uses->free_ticket <= heap->complete[uses->free_lane];
  const tarni_index lane = is_complete ? TARNI_LANE_COMMON : uses->free_lane;
  heap->pending_bytes -= uses->bytes;
  if (heap->buckets != NULL) {
    tarni_order order = {0};
    (void)tarni_order_add(&order, lane, uses->free_ticket);
    tarni_bucket_finish_locked(heap, uses->offset, &order);
    return;
  }
  if (uses->offset < heap->small_end) {
    const tarni_index slab = heap->pages[uses->offset >> TARNI_GRANULE_LOG2];
    tarni_bin_put_locked(heap, lane, tarni_extent_at(heap, slab)->class_index,
                         (uint32_t)(uses->offset >> 8));
    return;
  }
  tarni_order order = {0};
  (void)tarni_order_add(&order, lane, uses->free_ticket);
  tarni_slab_release_locked(heap, heap->pages[uses->offset >> TARNI_GRANULE_LOG2], &order);
}

/* The block is no longer live. Its bytes; 0: it was not, for another thread has freed it, too. */
static uint64_t block_end_locked(tarn_heap *heap, const tarni_uses *uses) {
  if (heap->buckets != NULL) {
    return tarni_bucket_pend_locked(heap, uses->offset);
  }
  tarni_block block = {0};
  (void)tarni_block_find_locked(heap, uses->offset, &block);
  block_mark(heap, &block, false);
  if (uses->offset < heap->small_end) {
    heap->states[uses->offset >> 8] = 0;
  } else {
    tarni_extent_at(heap, block.extent)->state = TARNI_BLOCK_FREE;
  }
  return uses->bytes;
}

void tarni_uses_hold_locked(tarn_heap *heap, tarni_uses *uses, uint64_t offset, tarni_index lane) {
  tarni_block block = {0};
  (void)tarni_block_find_locked(heap, offset, &block);
  const tarni_extent *slab = tarni_extent_at(heap, block.extent);
  *uses = (tarni_uses){.offset = offset,
                       .bytes = block.bytes,
                       .free_lane = lane,
                       .free_ticket = tarni_ticket_locked(heap, lane)};
  tarni_count_free_locked(heap, slab);
  (void)block_end_locked(heap, uses);
  heap->pending_bytes += uses->bytes;
  *(heap->held[1] != NULL ? &heap->held[1]->next : &heap->held[0]) = uses;
  heap->held[1] = uses;
}

void tarni_uses_unhold_locked(tarn_heap *heap) {
  tarni_uses *uses = heap->held[0];
  heap->held[0] = uses->next;
  heap->held[1] = heap->held[0] != NULL ? heap->held[1] : NULL;
  uses->next = heap->pending;
  heap->pending = uses;
  heap->has_pended = true;
}

tarn_status tarni_uses_absorb(tarn_heap *heap, uint64_t offset, tarni_index lane,
                              tarn_stream stream) {
  bool is_over = false;
  tarni_lock_acquire(&heap->grow);
  tarni_lock_acquire(&heap->lock);
  tarn_status status = tarni_lane_is_locked(heap, lane, stream) ? TARN_OK : TARNI_RETIRED;
  tarni_lock_release(&heap->lock);
  for (uint32_t i = 0; status == TARN_OK && !is_over; i++) {
    tarni_order order = {0};
    tarni_lock_acquire(&heap->lock);
    tarni_uses **link = uses_link(heap, offset);
    tarni_uses *uses = *link;
    is_over = uses == NULL || i >= uses->n_lanes;
    if (!is_over && uses->lanes[i].lane != lane) {
      (void)tarni_order_add(&order, uses->lanes[i].lane,
                            tarni_ticket_locked(heap, uses->lanes[i].lane));
    } else if (is_over && uses != NULL) {
      tarni_block block = {0};
      (void)tarni_block_find_locked(heap, offset, &block);
      block_mark(heap, &block, false);
      free(uses_unlink_locked(heap, link));
    }
    tarni_lock_release(&heap->lock);
    status = tarni_order_wait_grow(heap, &order, lane);
  }
  tarni_lock_release(&heap->grow);
  return status;
}

tarni_uses *tarni_uses_detach_locked(tarn_heap *heap, uint64_t offset) {
  tarni_uses **link = uses_link(heap, offset);
  tarni_uses *uses = *link;
  tarn_assert((uses != NULL || heap->buckets != NULL) && "a marked block has its entry");
  const uint64_t bytes = uses != NULL ? block_end_locked(heap, uses) : 0;
  if (bytes == 0) {
    return NULL;
  }
  uses->bytes = bytes;
  return uses_unlink_locked(heap, link);
}

/* It waits from now on for all that its lanes were given. */
void tarni_uses_pend_locked(tarn_heap *heap, tarni_uses *uses, tarni_index lane) {
  uses->free_lane = lane;
  uses->free_ticket = tarni_ticket_locked(heap, lane);
  for (uint32_t i = 0; i < uses->n_lanes; i++) {
    const tarni_index other = uses->lanes[i].lane;
    const uint64_t ticket = other == lane ? 0 : tarni_ticket_locked(heap, other);
    uses->lanes[i].ticket = ticket;
    heap->lanes[other].wanted = tarni_max(heap->lanes[other].wanted, ticket);
  }
  uses->next = heap->pending;
  heap->pending = uses;
  heap->has_pended = true;
}

/* Fences are recorded unless another thread is at work with the driver, who may wait for the GPU.
 * Those that cannot be recorded now are recorded when the block is asked for. */
tarn_status tarni_uses_free(tarn_heap *heap, uint64_t offset, tarni_index lane,
                            tarn_stream stream) {
  const bool may_fence = tarni_lock_try(&heap->grow); /* so that the entry stays for that long */
  tarni_lock_acquire(&heap->lock);
  const bool is_its = tarni_lane_is_locked(heap, lane, stream);
  tarni_uses *uses = is_its ? tarni_uses_detach_locked(heap, offset) : NULL;
  if (uses != NULL) {
    heap->pending_bytes += uses->bytes;
    if (heap->buckets == NULL) { /* those have counted it */
      tarni_count_free_locked(heap,
                              tarni_extent_at(heap, heap->pages[offset >> TARNI_GRANULE_LOG2]));
    }
    tarni_uses_pend_locked(heap, uses, lane);
  }
  tarni_lock_release(&heap->lock);
  if (may_fence) {
    for (uint32_t i = 0; uses != NULL && i < uses->n_lanes; i++) {
      const tarni_order order = tarni_order_of(uses->lanes[i]);
      (void)tarni_order_fence_grow(heap, &order);
    }
    tarni_lock_release(&heap->grow);
  }
  if (uses != NULL || !is_its) {
    return is_its ? TARN_OK : TARNI_RETIRED;
  }
  return tarni_block_refuse(heap, heap->base + offset, "tarn_free");
}

static bool uses_are_complete(const tarn_heap *heap, const tarni_uses *uses) {
  for (uint32_t i = 0; i < uses->n_lanes; i++) {
    if (uses->lanes[i].ticket > heap->complete[uses->lanes[i].lane]) {
      return false;
    }
  }
  return true;
}

uint64_t tarni_uses_largest_locked(const tarn_heap *heap, tarni_index lane) {
  uint64_t largest = 0;
  for (const tarni_uses *uses = heap->pending; uses != NULL; uses = uses->next) {
    for (uint32_t i = 0; i < uses->n_lanes; i++) {
      const bool is_awaited =
          uses->lanes[i].lane == lane && uses->lanes[i].ticket > heap->complete[lane];
      largest = is_awaited ? tarni_max(largest, uses->bytes) : largest;
    }
  }
  return largest;
}

/* Whether pending blocks wait for the lane. */
static bool is_wanted(const tarn_heap *heap, tarni_index lane) {
  return heap->lanes[lane].wanted > heap->complete[lane];
}

/* The same, and a fence is missing that can be made. */
static bool is_unfenced(const tarn_heap *heap, tarni_index lane) {
  const tarni_lane *at = &heap->lanes[lane];
  return is_wanted(heap, lane) && at->wanted > at->fenced && !at->is_lost && !at->is_retired;
}

/* What cannot be made now is made the next time, and is in nobody's way. */
static void fence_missing(tarn_heap *heap) {
  for (tarni_index lane = 1;; lane++) {
    tarni_lock_acquire(&heap->lock);
    while (lane < heap->n_lanes && !is_unfenced(heap, lane)) {
      lane++;
    }
    const bool is_missing = lane < heap->n_lanes;
    const uint64_t ticket = is_missing ? heap->lanes[lane].wanted : 0;
    tarni_lock_release(&heap->lock);
    if (!is_missing) {
      return;
    }
    (void)tarni_lane_fence_grow(heap, lane, ticket);
  }
}

static void uses_reap_locked(tarn_heap *heap) {
  for (tarni_uses **link = &heap->pending; *link != NULL;) {
    tarni_uses *uses = *link;
    if (!uses_are_complete(heap, uses)) {
      link = &uses->next;
      continue;
    }
    *link = uses->next;
    block_finish_locked(heap, uses);
    free(uses);
  }
}

/* Without news there is nothing to be found, however many there are. */
void tarni_uses_reap_grow(tarn_heap *heap) {
  fence_missing(heap);
  tarni_lock_acquire(&heap->lock);
  if (heap->has_pended || heap->n_news_seen != heap->n_news) {
    heap->has_pended = false;
    heap->n_news_seen = heap->n_news;
    uses_reap_locked(heap);
  }
  tarni_lock_release(&heap->lock);
}

bool tarni_uses_wait_grow(tarn_heap *heap) {
  return tarni_uses_are_pending(heap) && tarni_fences_wait_grow(heap, is_wanted);
}

bool tarni_uses_are_pending(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const bool are = heap->pending != NULL;
  tarni_lock_release(&heap->lock);
  return are;
}

void tarni_uses_poll(tarn_heap *heap) {
  if (tarni_uses_are_pending(heap) && tarni_lock_try(&heap->grow)) {
    tarni_shortage_reap_grow(heap);
    tarni_lock_release(&heap->grow);
  }
}

void tarni_uses_drop(tarni_uses *uses) {
  while (uses != NULL) {
    tarni_uses *next = uses->next;
    free(uses);
    uses = next;
  }
}

void tarni_uses_close(tarn_heap *heap) {
  for (uint32_t i = 0; heap->uses != NULL && i < heap->uses_capacity; i++) {
    tarni_uses_drop(heap->uses[i]);
  }
  free(heap->uses);
  tarni_uses_drop(heap->pending);
  tarni_uses_drop(heap->held[0]);
}
