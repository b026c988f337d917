/* SPDX-License-Identifier: MIT
 *
 * What captures leave when they are over: blocks from before that were freed inside, graphs and
 * arenas that nobody has any more. All of it goes when the work that may use it is complete; where
 * that cannot be known now it is parked, and looked at again. */
#include "arena.h"

/* ---- Blocks that were freed inside ---- */

void tarni_freed_release_held(tarn_capture *capture) {
  tarn_heap *heap = capture->heap;
  bool is_rest = false;
  for (uint32_t i = 0; i <= TARNI_CAPTURE_BRANCHES; i++) {
    is_rest |= tarni_deferred_release_held(heap, &capture->deferred[i]) != TARN_OK;
  }
  if (is_rest) {
    capture->next = heap->captures_over;
    heap->captures_over = capture;
    atomic_fetch_add_explicit(&heap->n_over, 1, memory_order_relaxed);
  } else {
    tarni_capture_free(capture);
  }
}

/* Blocks that a stream freed inside go with the graph. */
static void deferred_hold_held(tarn_capture *capture, tarni_deferred *deferred) {
  tarn_heap *heap = capture->heap;
  if (deferred->n_blocks == 0) {
    return;
  }
  if (tarni_deferred_is_nameless(deferred)) {
    capture->graph->is_unsure = true;
  } else {
    tarni_graph_use_held(capture->graph, deferred->stream);
  }
  tarni_lock_acquire(&heap->lock);
  tarni_deferred_append_locked(heap, &capture->graph->held, deferred);
  tarni_lock_release(&heap->lock);
}

void tarni_freed_hold_held(tarn_capture *capture) {
  for (uint32_t i = 0; i <= TARNI_CAPTURE_BRANCHES; i++) {
    deferred_hold_held(capture, &capture->deferred[i]);
  }
}

/* What the stream freed inside goes where it is to go while the stream can still be asked: its
 * handle may mean another one later. pre: the driver does not capture it any more. */
static tarn_status freed_leave_held(tarn_capture *capture, tarn_stream stream) {
  for (uint32_t i = 0; i < capture->n_deferred; i++) {
    tarni_deferred *deferred = &capture->deferred[i];
    if (deferred->stream != stream || tarni_deferred_is_nameless(deferred)) {
      continue;
    }
    if (capture->config.holds_freed && capture->graph != NULL) {
      deferred_hold_held(capture, deferred);
    } else {
      TARN_TRY(tarni_deferred_release_held(capture->heap, deferred));
    }
  }
  return TARN_OK;
}

tarn_status tarni_captures_leave_held(tarn_heap *heap, tarn_stream stream) {
  tarn_capture *const lists[] = {heap->captures, heap->captures_over};
  tarni_capture_state state = {0};
  if (lists[0] != NULL || lists[1] != NULL) {
    TARN_TRY(tarni_capture_state_of(heap, stream, &state));
  }
  for (int i = 0; i < 2 && state.status == TARNI_CAPTURE_NONE; i++) { /* else it stays anyway */
    for (tarn_capture *capture = lists[i]; capture != NULL; capture = capture->next) {
      TARN_TRY(freed_leave_held(capture, stream));
    }
  }
  return TARN_OK;
}

/* ---- Looking again ---- */

void tarni_captures_reap_held(tarn_heap *heap) {
  tarni_captures_find_ends_held(heap);
  tarn_capture *over = heap->captures_over;
  heap->captures_over = NULL;
  while (over != NULL) {
    tarn_capture *capture = over;
    over = over->next;
    atomic_fetch_sub_explicit(&heap->n_over, 1, memory_order_relaxed);
    tarni_freed_release_held(capture);
  }
  tarni_graphs_reap_held(heap);
  (void)tarni_arenas_reap_held(heap);
}

void tarni_captures_reap(tarn_heap *heap) {
  if (tarni_captures_left_any(heap)) {
    tarni_lock_acquire(&heap->capture);
    tarni_captures_reap_held(heap);
    tarni_lock_release(&heap->capture);
  }
}

/* Whether nobody needs the arena, or all of its memory. */
static bool is_parked(const tarn_arena *arena) {
  return !tarni_arena_is_needed(arena) || tarni_arena_has_surplus(arena);
}

bool tarni_captures_sure_held(tarn_heap *heap) {
  bool is_unsure = false;
  for (const tarn_graph *graph = heap->graphs; graph != NULL; graph = graph->next) {
    is_unsure = is_unsure || (graph->is_gone && graph->is_unsure);
  }
  for (const tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    is_unsure = is_unsure || (is_parked(arena) && arena->is_unsure);
  }
  if (!is_unsure || tarni_capture_forbids() || tarni_device_await(heap) != TARN_OK) {
    return false;
  }
  for (tarn_graph *graph = heap->graphs; graph != NULL; graph = graph->next) {
    graph->is_unsure = false;
  }
  for (tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    arena->is_unsure = false;
  }
  tarni_captures_reap_held(heap);
  return true;
}

/* Whether anything waits for work that is not known to be complete. */
static bool has_parked(const tarn_heap *heap) {
  bool has = heap->captures_over != NULL;
  for (const tarn_graph *graph = heap->graphs; graph != NULL; graph = graph->next) {
    has = has || (graph->is_gone && !graph->is_unsure);
  }
  for (const tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    has = has || (is_parked(arena) && !arena->is_unsure);
  }
  return has;
}

/* How many captures that are over, graphs, arenas, and arenas with more than they need are there.
 */
static uint64_t count_left(const tarn_heap *heap) {
  uint64_t n = 0;
  for (const tarn_capture *capture = heap->captures_over; capture != NULL;
       capture = capture->next) {
    n++;
  }
  for (const tarn_graph *graph = heap->graphs; graph != NULL; graph = graph->next) {
    n++;
  }
  for (const tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    n += 1 + tarni_arena_has_surplus(arena);
  }
  return n;
}

/* Waits for a fence, if anything may wait for it, and looks again. Whether that changed anything.
 */
static bool finish_once_held(tarn_heap *heap) {
  const uint64_t n_before = count_left(heap);
  bool is_news = tarni_captures_sure_held(heap);
  if (has_parked(heap)) {
    tarni_lock_acquire(&heap->grow);
    is_news = tarni_fences_wait_grow(heap, NULL) || is_news;
    tarni_lock_release(&heap->grow);
    tarni_captures_reap_held(heap);
  }
  return is_news || count_left(heap) < n_before;
}

bool tarni_captures_finish(tarn_heap *heap) {
  if (!tarni_captures_left_any(heap)) {
    return false;
  }
  tarni_lock_acquire(&heap->capture);
  tarni_captures_find_ends_held(heap); /* which makes graphs */
  const uint64_t n_before = count_left(heap);
  tarni_captures_reap_held(heap);
  while (finish_once_held(heap)) { /* a graph that goes lets its arena go */
  }
  const bool is_any_back = count_left(heap) < n_before;
  tarni_lock_release(&heap->capture);
  return is_any_back;
}

/* ---- The heap goes ---- */

bool tarni_captures_are_unsure_held(const tarn_heap *heap) {
  bool is = heap->captures_over != NULL;
  for (const tarn_graph *graph = heap->graphs; graph != NULL; graph = graph->next) {
    is = is || graph->is_unsure;
  }
  for (const tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    is = is || arena->is_unsure;
  }
  return is;
}

void tarni_captures_free(tarn_heap *heap) {
  while (heap->captures_over != NULL) {
    tarn_capture *capture = heap->captures_over;
    heap->captures_over = capture->next;
    for (uint32_t i = 0; i <= TARNI_CAPTURE_BRANCHES; i++) {
      tarni_uses_drop(capture->deferred[i].uses);
    }
    tarni_capture_free(capture);
  }
}
