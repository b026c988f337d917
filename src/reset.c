/* SPDX-License-Identifier: MIT
 *
 * Resetting a heap: with no block live, everything goes back to the device, and the heap is as it
 * was made. Owns nothing. What makes it safe beside other threads: memory that somebody takes
 * meanwhile is on a chunk that is in use, and such chunks do not go.
 *
 * Locks: heap->grow for each pass, heap->lock for each step. */
#include "bucket.h"
#include "debug.h"
#include "room.h"

/* While blocks are live, and so many captured ones besides. */
static tarn_status live_refuse(tarn_heap *heap, uint64_t n_captured, uint64_t captured_bytes) {
  tarn_heap_stats stats = {.size = sizeof(stats)};
  TARN_TRY(tarn_heap_get_stats(heap, &stats));
  const uint64_t n = stats.live_blocks + n_captured, bytes = stats.live_bytes + captured_bytes;
  const tarni_facts facts = {.device = heap->port->device.name};
  return n == 0 ? TARN_OK
                : tarni_fail(TARN_BUSY, "tarn_heap_reset", &facts,
                             "Free all blocks, then reset the heap.",
                             "%llu blocks of %llu bytes are live", (unsigned long long)n,
                             (unsigned long long)bytes);
}

/* The same for all captured blocks that are live: their memory could not go either. */
static tarn_status any_live_refuse(tarn_heap *heap) {
  uint64_t bytes;
  tarni_lock_acquire(&heap->capture);
  const uint64_t n = tarni_arenas_live_held(heap, &bytes);
  tarni_lock_release(&heap->capture);
  return live_refuse(heap, n, bytes);
}

/* All that streams and threads have kept becomes free extents that nothing waits for. */
static tarn_status reset_collect_grow(tarn_heap *heap) {
  tarni_quarantine_drain_grow(heap);
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_lock_release(&heap->lock);
  (void)tarni_lanes_retire_lost_grow(heap);
  TARN_TRY(tarni_heap_settle_grow(heap));
  tarni_shortage_reap_grow(heap); /* blocks that several streams used, and retired streams' */
  tarni_lock_acquire(&heap->lock);
  tarni_slab_collect_all_locked(heap);
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

/* Nobody waits for the lanes' fences any more: all their work was awaited. */
static void reset_fences_locked(tarn_heap *heap) {
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    tarni_lane *lane = &heap->lanes[i];
    lane->n_fences = 0;
    lane->fenced = heap->complete[i];
    for (uint32_t j = 0; j < TARNI_FENCES; j++) {
      lane->fences[j].ticket = 0;
    }
  }
}

static tarn_status reset_grow(tarn_heap *heap) {
  TARN_TRY(tarni_sleep_refuse(heap, "tarn_heap_reset"));
  TARN_TRY(reset_collect_grow(heap));
  TARN_TRY(heap->buckets != NULL ? tarni_bucket_trim_grow(heap, 0)
                                 : tarni_chunk_trim_grow(heap, 0));
  TARN_TRY(tarni_unreturned_reap(heap));
  if (heap->reserved_bytes != 0) { /* somebody was faster */
    TARN_TRY(live_refuse(heap, 0, 0));
  }
  tarni_lock_acquire(&heap->lock);
  reset_fences_locked(heap);
  heap->reserved_peak_bytes = 0;
  tarni_held_note_locked(heap);
  heap->used_peak_bytes = heap->used_bytes;
  tarni_tide_forget_locked(heap);
  heap->rest = (tarni_rest){0};
  heap->hoard = (tarni_hoard){0};
  if (heap->buckets == NULL) {
    tarni_hints_clear_locked(heap);
  }
  tarni_lock_release(&heap->lock);
  return tarni_fences_close(heap);
}

static tarn_status reset_once(tarn_heap *heap) {
  tarni_lock_acquire(&heap->grow);
  const tarn_status status = reset_grow(heap);
  tarni_lock_release(&heap->grow);
  return status;
}

tarn_status tarn_heap_reset(tarn_heap *heap) {
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_reset"));
  TARNI_PAYS(&heap->calls);
  tarni_budgets_reap(heap);
  TARN_TRY(any_live_refuse(heap));
  (void)tarni_captures_finish(heap);
  TARN_TRY(reset_once(heap));
  if (!tarni_captures_left_any(heap)) {
    return TARN_OK;
  }
  tarni_captures_reap(heap); /* what waited for streams that are gone is complete now */
  return reset_once(heap);
}
