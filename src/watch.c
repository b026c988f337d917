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
    for (tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
      tarni_shelf_drop_locked(heap, cache); /* nobody takes from it now */
    }
  }
}

void tarni_watch_end_locked(tarn_heap *heap) {
  if (atomic_fetch_sub_explicit(&heap->n_watchers, 1, memory_order_relaxed) == 1) {
    tarni_caches_allow_locked(heap);
  }
}

tarn_status tarni_watch_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block) {
  TARN_TRY(tarni_sleep_refuse(heap, "tarn_alloc"));
  return heap->debug != NULL ? tarni_debug_alloc(heap, bytes, alignment, stream, block)
                             : tarni_alloc_plain(heap, bytes, alignment, stream, block);
}

tarn_status tarni_watch_free(tarn_heap *heap, uint64_t offset, tarn_stream stream) {
  return heap->debug != NULL ? tarni_debug_free(heap, offset, stream)
                             : tarni_free_plain(heap, offset, stream);
}
