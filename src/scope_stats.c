/* SPDX-License-Identifier: MIT
 *
 * Scopes of statistics: what happens between a beginning and an end. A scope keeps the counters of
 * its beginning; peaks are kept by the heap, since the last time that any scope began or ended, and
 * folded into all open scopes then. So an open scope costs the rest of the heap nothing, and any
 * number of them may overlap.
 *
 * The exact peak of live bytes needs more: hits are counted by each thread for itself. A scope that
 * wants it watches the heap (watch.c), and where an allocation is counted all counters are read,
 * before anybody can free. So a call that was under way when the scope began is missed at most
 * itself, and what is live never drifts.
 *
 * Lock: heap->lock, for all fields of scopes that are in a heap's list. */
#include <stdlib.h>

#include "base/bits.h"
#include "internal.h"

struct tarn_stats_scope {
  tarn_heap *heap; /* NULL: it was destroyed */
  tarn_stats_scope *next;
  bool is_exact;
  tarn_heap_stats begin;
  uint64_t alloc_bytes, free_bytes; /* handed out and given back before */
  uint64_t driver_calls, driver_ns; /* on the heap's account before */
  uint64_t reserved_peak, used_peak, live_peak;
};

/* ---- Peaks ---- */

/* All open scopes learn of the recent peaks; a new time of peaks begins. */
static void peaks_fold_locked(tarn_heap *heap) {
  for (tarn_stats_scope *scope = heap->scopes; scope != NULL; scope = scope->next) {
    scope->reserved_peak = tarni_max(scope->reserved_peak, heap->recent_reserved_peak);
    scope->used_peak = tarni_max(scope->used_peak, heap->recent_used_peak);
    if (scope->is_exact) {
      scope->live_peak = tarni_max(scope->live_peak, heap->recent_live_peak);
    }
  }
  heap->recent_reserved_peak = 0;
  tarni_held_note_locked(heap);
  heap->recent_used_peak = heap->used_bytes;
  heap->recent_live_peak = 0; /* each scope knows what was live when it began */
}

void tarni_scopes_note_locked(tarn_heap *heap) {
  if (heap->n_exact != 0) {
    const tarni_counts counts = tarni_counts_exactly_locked(heap);
    const tarni_large_counts total = tarni_counts_total(&counts);
    heap->recent_live_peak =
        tarni_max(heap->recent_live_peak, total.alloc_bytes - total.free_bytes);
  }
}

/* ---- Beginning ---- */

/* The counters as they are now. */
static void scope_read_locked(tarn_heap *heap, tarn_stats_scope *scope) {
  const tarni_counts counts = tarni_counts_exactly_locked(heap);
  const tarni_large_counts total = tarni_counts_total(&counts);
  scope->begin = tarni_stats_locked(heap);
  scope->begin.allocations = total.allocs;
  scope->begin.frees = total.frees;
  scope->begin.misses = counts.misses;
  scope->begin.live_bytes = total.alloc_bytes - total.free_bytes;
  scope->alloc_bytes = total.alloc_bytes;
  scope->free_bytes = total.free_bytes;
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    scope->driver_calls += atomic_load_explicit(&heap->calls.calls[i], memory_order_relaxed);
    scope->driver_ns += atomic_load_explicit(&heap->calls.nanoseconds[i], memory_order_relaxed);
  }
}

static void scope_open_locked(tarn_heap *heap, tarn_stats_scope *scope) {
  if (scope->is_exact) {
    tarni_watch_begin_locked(heap);
  }
  scope_read_locked(heap, scope);
  heap->n_exact += scope->is_exact;
  peaks_fold_locked(heap);
  scope->reserved_peak = heap->reserved_bytes;
  scope->used_peak = heap->used_bytes;
  scope->live_peak = scope->begin.live_bytes;
  scope->next = heap->scopes;
  heap->scopes = scope;
}

tarn_status tarn_stats_scope_begin(tarn_heap *heap, const tarn_stats_scope_config *config,
                                   tarn_stats_scope **scope) {
  if (scope == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_stats_scope_begin", NULL,
                      "Pass the address of a tarn_stats_scope *.", "the output is NULL");
  }
  *scope = NULL;
  TARN_TRY(tarni_heap_given(heap, "tarn_stats_scope_begin"));
  tarn_stats_scope_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), "tarn_stats_scope_begin"));
  }
  tarn_stats_scope *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_stats_scope_begin", NULL, "Free some host memory.",
                      "no host memory for a scope of statistics (%zu bytes)", sizeof(*made));
  }
  made->heap = heap;
  made->is_exact = known.is_exact;
  tarni_lock_acquire(&heap->lock);
  scope_open_locked(heap, made);
  tarni_lock_release(&heap->lock);
  *scope = made;
  return TARN_OK;
}

/* ---- End ---- */

static void scope_unlink_locked(tarn_heap *heap, tarn_stats_scope *scope) {
  tarn_stats_scope **link = &heap->scopes;
  while (*link != scope) {
    link = &(*link)->next;
  }
  *link = scope->next;
  if (scope->is_exact) {
    heap->n_exact--;
    tarni_watch_end_locked(heap);
  }
}

static tarn_stats_scope_result scope_close_locked(tarn_heap *heap, tarn_stats_scope *scope) {
  peaks_fold_locked(heap);
  tarn_stats_scope end = {0};
  scope_read_locked(heap, &end);
  scope_unlink_locked(heap, scope);
  const tarn_heap_stats *from = &scope->begin, *to = &end.begin;
  return (tarn_stats_scope_result){.size = sizeof(tarn_stats_scope_result),
                                   .allocations = to->allocations - from->allocations,
                                   .frees = to->frees - from->frees,
                                   .allocated_bytes = end.alloc_bytes - scope->alloc_bytes,
                                   .freed_bytes = end.free_bytes - scope->free_bytes,
                                   .misses = to->misses - from->misses,
                                   .moved_chunks = to->moved_chunks - from->moved_chunks,
                                   .waits = to->waits - from->waits,
                                   .driver_calls = end.driver_calls - scope->driver_calls,
                                   .driver_ns = end.driver_ns - scope->driver_ns,
                                   .live_begin_bytes = from->live_bytes,
                                   .live_end_bytes = to->live_bytes,
                                   .live_peak_bytes = tarni_max(scope->live_peak, to->live_bytes),
                                   .used_peak_bytes = scope->used_peak,
                                   .reserved_begin_bytes = from->reserved_bytes,
                                   .reserved_end_bytes = to->reserved_bytes,
                                   .reserved_peak_bytes = scope->reserved_peak,
                                   .is_exact = scope->is_exact};
}

static tarn_status heap_is_gone(void) {
  return tarni_fail(TARN_STATE, "tarn_stats_scope_end", NULL,
                    "End scopes before their heap is destroyed.",
                    "the heap of the scope was destroyed before it");
}

tarn_status tarn_stats_scope_end(tarn_stats_scope *scope, tarn_stats_scope_result *result) {
  tarn_stats_scope_result full = {.size = sizeof(full)};
  if (result != NULL) {
    TARN_TRY(tarni_struct_out(result, &full, sizeof(full), "tarn_stats_scope_end"));
  }
  if (scope == NULL) {
    return TARN_OK;
  }
  tarn_heap *heap = scope->heap;
  if (heap == NULL) {
    free(scope);
    return heap_is_gone();
  }
  TARN_TRY(tarni_heap_given(heap, "tarn_stats_scope_end"));
  tarni_lock_acquire(&heap->lock);
  full = scope_close_locked(heap, scope);
  tarni_lock_release(&heap->lock);
  free(scope);
  return result != NULL ? tarni_struct_out(result, &full, sizeof(full), "tarn_stats_scope_end")
                        : TARN_OK;
}

void tarni_scopes_close(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  for (; heap->scopes != NULL; heap->scopes = heap->scopes->next) {
    heap->scopes->heap = NULL;
  }
  tarni_lock_release(&heap->lock);
}
