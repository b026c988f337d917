/* SPDX-License-Identifier: MIT */
#include "soak_ease.h"

#include "internal.h"

uint64_t soak_ease(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  heap->rest.n_tries = 0;
  heap->rest.n_collected = TARNI_EASE_COLLECTED;
  const uint64_t shelved = tarni_shelves_bytes_locked(heap);
  tarni_lock_release(&heap->lock);
  return shelved;
}
