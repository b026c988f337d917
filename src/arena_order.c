/* SPDX-License-Identifier: MIT
 *
 * What must be complete before an arena's memory goes, and before a graph is launched: a ticket of
 * each lane that has used it. What cannot be proven keeps the memory until the heap goes (I3). */
#include "arena.h"
#include "base/bits.h"

static void lane_note(tarn_heap *heap, uint64_t *tickets, tarni_index lane) {
  tarni_lock_acquire(&heap->lock);
  tickets[lane] = tarni_ticket_locked(heap, lane);
  tarni_lock_release(&heap->lock);
}

void tarni_arena_ticket_lane_held(tarn_arena *arena, tarni_index lane) {
  lane_note(arena->heap, arena->tickets, lane);
}

/* Whether the stream is one that tarn has begun to capture: what it was given before has its fence
 * then, and what it is given now is recorded, not done. */
static bool was_fenced(tarn_heap *heap, tarn_stream stream) {
  const tarn_capture *capture = tarni_capture_freeing_held(heap, stream);
  return capture != NULL && capture->stream == stream && !tarni_capture_is_anothers(capture) &&
         !capture->config.is_adopted;
}

void tarni_arena_ticket_held(tarn_arena *arena, tarn_stream stream, bool is_fresh) {
  tarn_heap *heap = arena->heap;
  uint64_t *tickets = is_fresh ? arena->fresh : arena->tickets;
  tarni_index lane;
  const tarn_status status = tarni_lane_find(heap, stream, &lane);
  if (status != TARN_OK) { /* it cannot be asked, but what it was given before may go on */
    lane = tarni_lane_by_handle(heap, stream);
  }
  if (status == TARN_CAPTURE && lane != TARNI_LANE_COMMON && was_fenced(heap, stream)) {
    tarni_lock_acquire(&heap->lock);
    tickets[lane] = heap->lanes[lane].ticket;
    tarni_lock_release(&heap->lock);
    return;
  }
  if (lane != TARNI_LANE_COMMON) {
    lane_note(heap, tickets, lane);
    return;
  }
  if (status == TARN_CAPTURE && is_fresh) {
    return; /* the heap has not heard of it, nor it of the block before this capture, as a rule */
  }
  const bool may_wait =
      (status == TARN_HOST_MEMORY || status == TARN_LIMIT) && !tarni_capture_forbids();
  TARNI_RELAXED(heap->port);
  if (!may_wait || tarni_port_stream_sync(heap->port, stream) != TARN_OK) {
    arena->is_unsure = true;
  }
}

tarn_status tarni_arena_sure_held(tarn_arena *arena, const char *operation) {
  if (!arena->is_unsure) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = arena->heap->port->device.name};
  if (tarni_capture_forbids()) {
    return tarni_fail(TARN_CAPTURE, operation, &facts, "Try again after the capture.",
                      "a stream of a capture has freed a block of the arena that it may still use; "
                      "the device cannot be waited for while a capture goes on");
  }
  TARN_TRY(tarni_device_await(arena->heap));
  arena->is_unsure = false;
  return TARN_OK;
}

static uint64_t ticket_of(const tarn_arena *arena, tarni_index lane) {
  return tarni_max(arena->tickets[lane], arena->fresh[lane]);
}

/* The next lane from `lane` on whose ticket is not known to be complete; 0: none. */
static tarni_index lane_open_from(tarn_arena *arena, tarni_index lane) {
  tarn_heap *heap = arena->heap;
  tarni_lock_acquire(&heap->lock);
  while (lane < heap->n_lanes && ticket_of(arena, lane) <= heap->complete[lane]) {
    lane++;
  }
  const tarni_index found = lane < heap->n_lanes ? lane : 0;
  tarni_lock_release(&heap->lock);
  return found;
}

/* Sees to it that there are fences for all tickets. */
static tarn_status arena_fence_grow(tarn_arena *arena) {
  tarn_status status = TARN_OK;
  for (tarni_index lane = lane_open_from(arena, 1); lane != 0;
       lane = lane_open_from(arena, lane + 1)) {
    const tarni_order order =
        tarni_order_of((tarni_order_entry){.lane = lane, .ticket = ticket_of(arena, lane)});
    const tarn_status fenced = tarni_order_fence_grow(arena->heap, &order);
    status = status == TARN_OK ? fenced : status;
  }
  return status;
}

void tarni_arena_settle_held(tarn_arena *arena) {
  tarn_heap *heap = arena->heap;
  tarni_lock_acquire(&heap->lock);
  const uint32_t n_lanes = heap->n_lanes;
  tarni_lock_release(&heap->lock);
  const bool is_over = arena->capture == NULL; /* else it was one of another arena */
  for (tarni_index lane = 1; lane < n_lanes && is_over; lane++) {
    arena->tickets[lane] = ticket_of(arena, lane);
    arena->fresh[lane] = 0;
  }
  tarni_lock_acquire(&heap->grow);
  (void)arena_fence_grow(arena); /* what cannot be recorded now is tried again when it is needed */
  tarni_lock_release(&heap->grow);
}

bool tarni_arena_is_done_held(tarn_arena *arena) {
  if (arena->is_unsure) {
    return false;
  }
  if (lane_open_from(arena, 1) == 0) {
    return true;
  }
  tarn_heap *heap = arena->heap;
  tarni_lock_acquire(&heap->grow);
  const tarn_status status = arena_fence_grow(arena);
  (void)tarni_fences_poll_grow(heap);
  tarni_lock_release(&heap->grow);
  return status == TARN_OK && lane_open_from(arena, 1) == 0;
}

tarn_status tarni_arena_finish_held(tarn_arena *arena) {
  tarn_heap *heap = arena->heap;
  tarni_lock_acquire(&heap->grow);
  tarn_status status = arena_fence_grow(arena);
  tarni_index lane = lane_open_from(arena, 1);
  while (status == TARN_OK && lane != 0 && tarni_lane_wait_grow(heap, lane)) {
    lane = lane_open_from(arena, 1);
  }
  tarni_lock_release(&heap->grow);
  status = status == TARN_OK ? tarni_arena_sure_held(arena, "tarn_arena_sleep") : status;
  if (status == TARN_OK && lane_open_from(arena, 1) != 0) {
    const tarni_facts facts = {.device = heap->port->device.name};
    status = tarni_fail(TARN_BUSY, "tarn_arena_sleep", &facts,
                        "Try again when no capture goes on, and no stream of it is gone.",
                        "work that uses the arena is not known to be complete");
  }
  return status;
}
