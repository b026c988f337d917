/* SPDX-License-Identifier: MIT
 *
 * Blocks from before a capture that are freed inside it. The driver may not be asked about their
 * stream meanwhile, and what a graph was captured with may still be about to use them, so they are
 * given back when the capture is over, or with the graph. Their lists go through the heap's own
 * records: freeing needs no memory (I7). They count as pending. Lists: heap->capture; the records
 * that they go through: heap->lock. */
#include "arena.h"
#include "base/bits.h"
#include "bucket.h"
#include "debug.h"

/* ---- Large blocks: slabs of one, or grants ---- */

static tarni_index *large_link(tarn_heap *heap, tarni_index index) {
  return heap->buckets != NULL ? &heap->buckets->grants[index].newer[TARNI_BY_AGE]
                               : &tarni_extent_at(heap, index)->link;
}

static uint64_t large_bytes(const tarn_heap *heap, tarni_index index) {
  return heap->buckets != NULL ? heap->buckets->grants[index].bytes
                               : tarni_large_bytes(tarni_extent_at(heap, index));
}

/* ---- Adding ---- */

static uint64_t uses_add(tarni_deferred *to, tarni_uses *uses) {
  uses->next = to->uses;
  to->uses = uses;
  return uses->bytes;
}

static uint64_t grant_take_locked(tarn_heap *heap, tarni_deferred *to, tarn_ptr block) {
  tarni_uses *uses = tarni_uses_detach_locked(heap, block);
  return uses != NULL ? uses_add(to, uses) : tarni_bucket_defer_locked(heap, block, &to->large);
}

static uint64_t slab_take_locked(tarn_heap *heap, tarni_deferred *to, uint64_t offset) {
  tarni_block block = {0};
  (void)tarni_block_find_locked(heap, offset, &block);
  tarni_extent *slab = tarni_extent_at(heap, block.extent);
  const bool is_small = slab->class_index != TARNI_CLASS_COUNT;
  const uint32_t item = (uint32_t)(offset >> 8);
  if (tarni_block_has_uses(heap, offset)) {
    (void)uses_add(to, tarni_uses_detach_locked(heap, offset));
  } else if (is_small) {
    heap->states[item] = 0;
    heap->links[item] = to->small;
    to->small = item + 1;
  } else {
    slab->state = TARNI_BLOCK_FREE;
    slab->link = to->large;
    to->large = block.extent;
  }
  tarni_count_free_locked(heap, slab);
  tarni_histogram_defer_locked(heap, slab, true);
  return block.bytes;
}

bool tarni_deferred_add_locked(tarn_heap *heap, tarni_deferred *to, uint64_t offset) {
  const uint64_t bytes = heap->buckets != NULL ? grant_take_locked(heap, to, offset)
                                               : slab_take_locked(heap, to, offset);
  if (bytes == 0) {
    return false;
  }
  tarni_record_forget_locked(heap, offset);
  heap->pending_bytes += bytes;
  to->n_blocks++;
  return true;
}

/* ---- Giving ---- */

static void small_give_locked(tarn_heap *heap, uint32_t item, tarni_index lane) {
  const tarni_index slab = heap->pages[(uint64_t)item << 8 >> TARNI_GRANULE_LOG2];
  const uint32_t class_index = tarni_extent_at(heap, slab)->class_index;
  tarni_histogram_defer_locked(heap, tarni_extent_at(heap, slab), false);
  heap->pending_bytes -= tarni_class_size(class_index);
  tarni_bin_put_locked(heap, lane, class_index, item);
}

static void large_give_locked(tarn_heap *heap, tarni_index index, tarni_index lane) {
  tarni_order order = {0};
  (void)tarni_order_add(&order, lane, tarni_ticket_locked(heap, lane));
  heap->pending_bytes -= large_bytes(heap, index);
  if (heap->buckets != NULL) {
    tarni_bucket_keep_locked(heap, index, &order);
  } else {
    tarni_histogram_defer_locked(heap, tarni_extent_at(heap, index), false);
    tarni_slab_release_locked(heap, index, &order);
  }
}

void tarni_deferred_give_locked(tarn_heap *heap, tarni_deferred *deferred, tarni_index lane) {
  while (deferred->small != 0) {
    const uint32_t item = deferred->small - 1;
    deferred->small = heap->links[item];
    small_give_locked(heap, item, lane);
  }
  while (deferred->large != 0) {
    const tarni_index index = deferred->large;
    deferred->large = *large_link(heap, index);
    large_give_locked(heap, index, lane);
  }
  while (deferred->uses != NULL) {
    tarni_uses *uses = deferred->uses;
    deferred->uses = uses->next;
    if (heap->buckets == NULL) {
      const tarni_index slab = heap->pages[uses->offset >> TARNI_GRANULE_LOG2];
      tarni_histogram_defer_locked(heap, tarni_extent_at(heap, slab), false);
    }
    tarni_uses_pend_locked(heap, uses, lane);
  }
  deferred->n_blocks = 0;
}

bool tarni_deferred_is_nameless(const tarni_deferred *deferred) {
  return deferred->stream == TARNI_NO_STREAM ||
         (deferred->stream == TARNI_STREAM_PER_THREAD && deferred->thread != tarni_thread());
}

tarn_status tarni_deferred_release_held(tarn_heap *heap, tarni_deferred *deferred) {
  if (deferred->n_blocks == 0) {
    return TARN_OK;
  }
  tarni_index lane = TARNI_LANE_COMMON;
  if (tarni_deferred_is_nameless(deferred)) {
    TARN_TRY(tarni_device_await(heap));
  } else {
    const tarn_status status = tarni_lane_find(heap, deferred->stream, &lane);
    const bool may_wait =
        (status == TARN_HOST_MEMORY || status == TARN_LIMIT) && !tarni_capture_forbids();
    if (status != TARN_OK && !may_wait) {
      return status;
    }
    if (status != TARN_OK) {
      lane = TARNI_LANE_COMMON;
      TARNI_RELAXED(heap->port);
      TARN_TRY(tarni_port_stream_sync(heap->port, deferred->stream));
    }
  }
  tarni_lock_acquire(&heap->lock);
  tarni_deferred_give_locked(heap, deferred, lane);
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

/* Moves all blocks of one list to another. */
void tarni_deferred_append_locked(tarn_heap *heap, tarni_deferred *to, tarni_deferred *from) {
  while (from->small != 0) {
    const uint32_t item = from->small - 1;
    from->small = heap->links[item];
    heap->links[item] = to->small;
    to->small = item + 1;
  }
  while (from->large != 0) {
    const tarni_index index = from->large;
    tarni_index *link = large_link(heap, index);
    from->large = *link;
    *link = to->large;
    to->large = index;
  }
  while (from->uses != NULL) {
    tarni_uses *uses = from->uses;
    from->uses = uses->next;
    uses->next = to->uses;
    to->uses = uses;
  }
  to->n_blocks += from->n_blocks;
  from->n_blocks = 0;
}

/* ---- Looking ---- */

static void deferred_each(tarn_heap *heap, const tarni_deferred *deferred,
                          tarni_deferred_visit visit, void *user) {
  for (uint32_t at = deferred->small; at != 0; at = heap->links[at - 1]) {
    const uint64_t offset = (uint64_t)(at - 1) << 8;
    const tarni_index slab = heap->pages[offset >> TARNI_GRANULE_LOG2];
    visit(user, offset, tarni_class_size(tarni_extent_at(heap, slab)->class_index));
  }
  for (tarni_index at = deferred->large; at != 0; at = *large_link(heap, at)) {
    visit(user, heap->buckets != NULL ? 0 : tarni_extent_at(heap, at)->offset,
          large_bytes(heap, at));
  }
  for (const tarni_uses *uses = deferred->uses; uses != NULL; uses = uses->next) {
    visit(user, uses->offset, uses->bytes);
  }
}

void tarni_graphs_each_locked(tarn_heap *heap, tarni_deferred_visit visit, void *user) {
  for (const tarn_graph *graph = heap->graphs; graph != NULL; graph = graph->next) {
    deferred_each(heap, &graph->held, visit, user);
  }
}

/* For the check of the heap: a block of a slab is where it is. */
typedef struct sight {
  tarn_heap *heap;
  uint64_t bytes;
} sight;

static void block_see(void *user, uint64_t offset, uint64_t bytes) {
  sight *seen = user;
  if (seen->heap->buckets == NULL) {
    tarni_extent_at(seen->heap, seen->heap->pages[offset >> TARNI_GRANULE_LOG2])->n_seen++;
  }
  seen->bytes += bytes;
}

uint64_t tarni_deferred_see_locked(tarn_heap *heap) {
  sight seen = {.heap = heap};
  tarn_capture *const lists[] = {heap->captures, heap->captures_over};
  for (int i = 0; i < 2; i++) {
    for (const tarn_capture *capture = lists[i]; capture != NULL; capture = capture->next) {
      if (i == 0) { /* its graph is none of the heap's yet; streams that were retired left some */
        deferred_each(heap, &capture->graph->held, block_see, &seen);
      }
      for (uint32_t j = 0; j <= TARNI_CAPTURE_BRANCHES; j++) {
        deferred_each(heap, &capture->deferred[j], block_see, &seen);
      }
    }
  }
  tarni_graphs_each_locked(heap, block_see, &seen);
  return seen.bytes;
}
