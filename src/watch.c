/* SPDX-License-Identifier: MIT
 *
 * Watched heaps: those that must look at every allocation and every free. As long as somebody
 * watches, the caches of all threads stay revoked. So no call is a hit, each comes to the slow
 * path, and from there to this file; the hit itself knows nothing of it.
 *
 * heap->n_watchers is changed under heap->lock and read without it: a call that is under way when
 * watching begins may not be seen. */
#include "debug.h"

void tarni_watch_begin_locked(tarn_heap *heap) {
  if (atomic_fetch_add_explicit(&heap->n_watchers, 1, memory_order_relaxed) == 0) {
    tarni_caches_revoke_locked(heap);
  }
}

void tarni_watch_end_locked(tarn_heap *heap) {
  if (atomic_fetch_sub_explicit(&heap->n_watchers, 1, memory_order_relaxed) == 1) {
    tarni_caches_allow_locked(heap);
  }
}

static void note(tarn_heap *heap, uint64_t offset, bool is_alloc) {
  tarni_block block = {0};
  tarni_lock_acquire(&heap->lock);
  if (tarni_block_find_locked(heap, offset, &block) && block.is_live && block.offset == offset) {
    /* Of a grant all counts, as in the heap's own counters, also what lies before the block. */
    const uint64_t bytes =
        heap->buckets != NULL ? heap->buckets->grants[block.extent].bytes : block.bytes;
    tarni_scopes_note_locked(heap, is_alloc ? bytes : 0, is_alloc ? 0 : bytes);
  }
  tarni_lock_release(&heap->lock);
}

tarn_status tarni_watch_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block) {
  TARN_TRY(tarni_sleep_refuse(heap, "tarn_alloc"));
  TARN_TRY(heap->debug != NULL ? tarni_debug_alloc(heap, bytes, alignment, stream, block)
                               : tarni_alloc_plain(heap, bytes, alignment, stream, block));
  note(heap, *block - heap->base, true);
  return TARN_OK;
}

/* The block counts as given back before it can be somebody else's. */
tarn_status tarni_watch_free(tarn_heap *heap, uint64_t offset, tarn_stream stream) {
  note(heap, offset, false);
  const tarn_status status = heap->debug != NULL ? tarni_debug_free(heap, offset, stream)
                                                 : tarni_free_plain(heap, offset, stream);
  if (status != TARN_OK) {
    note(heap, offset, true);
  }
  return status;
}
