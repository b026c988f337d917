/* SPDX-License-Identifier: MIT
 *
 * Captured blocks: what allocations, frees and uses of a capturing stream come to, and frees of
 * captured blocks by anybody at any time. All of it is off the hot path. */
#include <stdlib.h>

#include "arena.h"
#include "base/bits.h"

/* ---- Allocating ---- */

/* Where a planned capture puts its next block. UINT64_MAX: not as planned. */
static uint64_t planned_offset(const tarn_capture *capture, uint32_t done, uint64_t size,
                               uint64_t alignment) {
  const tarni_story *story = &capture->story;
  const tarn_layout *layout = capture->config.layout;
  const uint32_t number = story->n_requests;
  if (story->has_diverged || number >= layout->count || layout->buffers[number].bytes != size ||
      layout->buffers[number].alignment < alignment) {
    return UINT64_MAX;
  }
  const uint64_t offset = tarn_plan_offsets(layout->plan)[number];
  return tarni_piece_fits_held(capture->arena, &story->reach, done, offset, size) ? offset
                                                                                  : UINT64_MAX;
}

static uint64_t place_find_held(tarn_capture *capture, uint32_t done, uint64_t size,
                                uint64_t alignment) {
  tarni_story *story = &capture->story;
  const tarn_arena *arena = capture->arena;
  uint64_t offset = UINT64_MAX;
  if (story->placement == TARN_PLACE_MONOTONE) {
    return tarni_align_up_checked(arena->top, alignment, &offset) ? offset : UINT64_MAX;
  }
  if (story->placement == TARN_PLACE_PLANNED) {
    offset = planned_offset(capture, done, size, alignment);
    if (offset == UINT64_MAX && !story->has_diverged) {
      story->has_diverged = true;
      story->diverged_at = story->n_requests;
    }
  }
  return offset != UINT64_MAX ? offset
                              : tarni_piece_find_held(arena, &story->reach, done, size, alignment);
}

static tarn_status too_much(const tarn_arena *arena, uint64_t bytes) {
  const tarni_facts facts = {.device = arena->heap->port->device.name,
                             .requested_bytes = bytes,
                             .available_bytes = arena->limit};
  return tarni_fail(
      TARN_DEVICE_MEMORY, "tarn_alloc", &facts, "Ask for less.",
      "%llu bytes, in units of 256, are more than the capture's arena may ever hold (%llu)",
      (unsigned long long)bytes, (unsigned long long)arena->limit);
}

static tarn_status place_held(tarn_capture *capture, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block) {
  tarn_arena *arena = capture->arena;
  tarni_story *story = &capture->story;
  uint64_t size, end;
  if (!tarni_align_up_checked(bytes, TARNI_ARENA_GRANULE, &size) || size > arena->limit) {
    return too_much(arena, bytes);
  }
  if (!tarni_is_aligned(arena->base, alignment)) { /* memory of the caller's */
    const tarni_facts facts = {.device = arena->heap->port->device.name, .requested_bytes = bytes};
    return tarni_fail(TARN_INVALID, "tarn_alloc_aligned", &facts,
                      "Give the arena memory that begins at a multiple of the alignment.",
                      "the arena's memory begins at 0x%llx, which is no multiple of %llu",
                      (unsigned long long)arena->base, (unsigned long long)alignment);
  }
  if (!tarni_piece_room_held(arena) || !tarni_story_room(story)) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free some host memory.",
                      "no host memory for the records of a capture");
  }
  const uint32_t done = story->placement == TARN_PLACE_MONOTONE
                            ? TARNI_REACH_ALWAYS
                            : tarni_branch_done_held(capture, stream);
  const uint64_t offset = place_find_held(capture, done, size, alignment);
  if (offset == UINT64_MAX || !tarni_add(offset, size, &end)) {
    return too_much(arena, bytes);
  }
  TARN_TRY(tarni_arena_grow_held(arena, end, NULL));
  const uint32_t piece = tarni_piece_take_held(arena, offset, size);
  arena->pieces[piece].request = tarni_story_alloc(
      story,
      &(tarni_request){.size = size, .alignment = alignment, .offset = offset, .done = done});
  arena->allocations++;
  arena->alloc_bytes += size;
  *block = arena->base + offset;
  return TARN_OK;
}

tarn_status tarni_capture_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                                tarn_stream stream, tarn_ptr *block) {
  tarn_capture *capture;
  tarni_lock_acquire(&heap->capture);
  tarn_status status = tarni_capture_of_held(heap, stream, &capture);
  if (status == TARN_OK && capture != NULL) {
    status = place_held(capture, bytes, tarni_max(alignment, TARNI_ARENA_GRANULE), stream, block);
  }
  tarni_lock_release(&heap->capture);
  return status;
}

/* ---- Freeing ---- */

/* The list for blocks that the stream frees inside the capture. */
static tarni_deferred *deferred_for(tarn_capture *capture, tarn_stream stream) {
  for (uint32_t i = 0; i < capture->n_deferred; i++) {
    if (capture->deferred[i].stream == stream &&
        !tarni_deferred_is_nameless(&capture->deferred[i])) {
      return &capture->deferred[i];
    }
  }
  if (capture->n_deferred == TARNI_CAPTURE_BRANCHES) {
    return &capture->deferred[TARNI_CAPTURE_BRANCHES];
  }
  tarni_deferred *made = &capture->deferred[capture->n_deferred++];
  made->stream = stream;
  made->thread = tarni_thread();
  return made;
}

/* Whether a graph is to hold what is freed in its capture: it would use a block that nobody holds,
 * were that taken for an ordinary free. */
static bool is_any_holding(const tarn_heap *heap) {
  bool is = false;
  for (const tarn_capture *capture = heap->captures; capture != NULL; capture = capture->next) {
    is = is || capture->config.holds_freed;
  }
  return is;
}

/* The capture that a free belongs to; NULL: none. Where that cannot be known it is an error only if
 * a graph may depend on it. */
static tarn_status capture_of_free_held(tarn_heap *heap, tarn_stream stream,
                                        tarn_capture **capture) {
  const tarn_status status = tarni_capture_of_free_held(heap, stream, capture);
  const bool is_known = status == TARN_OK || status == TARN_INVALID || status == TARN_DEVICE_LOST;
  return is_known || !is_any_holding(heap) ? TARN_OK : status;
}

tarn_status tarni_capture_defer(tarn_heap *heap, uint64_t offset, tarn_stream stream,
                                bool *is_deferred) {
  tarn_capture *capture;
  *is_deferred = false;
  tarni_lock_acquire(&heap->capture);
  const tarn_status status = capture_of_free_held(heap, stream, &capture);
  if (capture != NULL) {
    tarni_deferred *deferred = deferred_for(capture, stream);
    tarni_lock_acquire(&heap->lock);
    *is_deferred = tarni_deferred_add_locked(heap, deferred, offset);
    tarni_lock_release(&heap->lock);
  }
  tarni_lock_release(&heap->capture);
  return status;
}

static tarn_status arena_refuse(const tarn_arena *arena, uint64_t offset, const char *operation) {
  const tarni_facts facts = {.device = arena->heap->port->device.name};
  const uint32_t index = tarni_piece_at_held(arena, offset);
  const unsigned long long address = arena->base + offset;
  if (index != TARNI_PIECE_NONE) {
    const tarni_piece *piece = &arena->pieces[index];
    return tarni_fail(TARN_INTERIOR, operation, &facts, "Pass the address that tarn_alloc gave.",
                      "0x%llx is %llu bytes into the captured block of %llu bytes at 0x%llx",
                      address, (unsigned long long)(offset - piece->offset),
                      (unsigned long long)piece->size,
                      (unsigned long long)(arena->base + piece->offset));
  }
  return tarni_fail(TARN_DOUBLE_FREE, operation, &facts,
                    "Free a block once, and do not use it afterwards.",
                    "0x%llx is an address of a capture's arena, but in no live block", address);
}

/* What must be complete, in the capture that goes on, before the block is used again. */
static uint32_t stamp_of_free(tarn_capture *capture, const tarni_piece *piece, tarn_stream stream) {
  uint32_t stamp = tarni_branch_past_held(capture, stream);
  for (const tarni_piece_uses *use = piece->uses; use != NULL; use = use->next) {
    if (use->thread != tarni_thread_of(use->stream)) {
      return TARNI_REACH_NEVER; /* another thread's own stream: it cannot be asked about here */
    }
    tarn_capture *of_use;
    if (tarni_capture_of_free_held(capture->heap, use->stream, &of_use) != TARN_OK) {
      return TARNI_REACH_NEVER;
    }
    const uint32_t other =
        of_use == capture ? tarni_branch_past_held(capture, use->stream) : TARNI_REACH_ALWAYS;
    stamp = tarni_reach_unite(&capture->story.reach, stamp, other);
  }
  return stamp;
}

/* Work outside of captures that may still use the block. */
static void note_uses_held(tarn_arena *arena, const tarni_piece *piece) {
  for (const tarni_piece_uses *use = piece->uses; use != NULL; use = use->next) {
    if (use->lane != TARNI_LANE_COMMON) {
      tarni_arena_ticket_lane_held(arena, use->lane);
    }
  }
}

/* A block that was freed in a capture which has not made it stays until that has ended, or with its
 * graph: what was recorded may still use it. */
static void block_give_held(tarn_arena *arena, uint32_t index, tarn_stream stream,
                            const tarn_capture *of_stream) {
  tarn_capture *capture = arena->capture;
  const tarni_piece *piece = &arena->pieces[index];
  const bool is_fresh = capture != NULL && piece->request != TARNI_PIECE_NONE;
  const bool is_inside = is_fresh && of_stream == capture;
  uint32_t stamp = capture != NULL ? TARNI_REACH_NEVER : TARNI_REACH_ALWAYS;
  if (is_inside) {
    stamp = stamp_of_free(capture, piece, stream);
  }
  note_uses_held(arena, piece);
  tarni_arena_ticket_held(arena, stream, is_inside);
  if (is_fresh) {
    tarni_story_free(&capture->story, piece->request, stamp);
  }
  if (of_stream != NULL && !is_inside) {
    tarni_piece_hold_held(arena, index, of_stream->graph);
  } else {
    tarni_piece_give_held(arena, index, stamp);
  }
}

static tarn_status arena_free_held(tarn_arena *arena, tarn_ptr block, tarn_stream stream) {
  const uint64_t offset = block - arena->base;
  const uint32_t index = tarni_table_find(&arena->live, offset);
  tarn_capture *of_stream;
  if (index == TARNI_TABLE_NONE) {
    return arena_refuse(arena, offset, "tarn_free");
  }
  TARN_TRY(capture_of_free_held(arena->heap, stream, &of_stream));
  block_give_held(arena, index, stream, of_stream);
  (void)tarni_arenas_reap_held(arena->heap); /* it may have been the last one that kept the arena */
  return TARN_OK;
}

bool tarni_arena_free(tarn_heap *heap, tarn_ptr block, tarn_stream stream, tarn_status *status) {
  if (atomic_load_explicit(&heap->n_arenas, memory_order_relaxed) == 0) {
    return false;
  }
  tarni_lock_acquire(&heap->capture);
  tarn_arena *arena = tarni_arena_find_held(heap, block);
  if (arena != NULL) {
    *status = arena_free_held(arena, block, stream);
  }
  tarni_lock_release(&heap->capture);
  return arena != NULL;
}

/* ---- Using and asking ---- */

/* The lane of what the stream does outside of captures with the block: none with one that its
 * capture has made; what it was given before may use any other. */
static tarn_status use_lane_held(const tarn_arena *arena, const tarni_piece *piece,
                                 tarn_stream stream, tarni_index *lane) {
  tarn_heap *heap = arena->heap;
  tarn_capture *capture;
  *lane = TARNI_LANE_COMMON;
  TARN_TRY(tarni_capture_of_held(heap, stream, &capture));
  if (capture != NULL && capture == arena->capture && piece->request != TARNI_PIECE_NONE) {
    return TARN_OK;
  }
  const tarn_status status = tarni_lane_find(heap, stream, lane);
  return status == TARN_CAPTURE ? tarni_lane_unnamed(heap, stream, "tarn_use", lane) : status;
}

static tarn_status use_add_held(const tarn_arena *arena, tarni_piece *piece, tarn_stream stream) {
  tarni_index lane;
  TARN_TRY(use_lane_held(arena, piece, stream, &lane));
  for (const tarni_piece_uses *use = piece->uses; use != NULL; use = use->next) {
    if (use->stream == stream && use->lane == lane && use->thread == tarni_thread_of(stream)) {
      return TARN_OK;
    }
  }
  tarni_piece_uses *use = malloc(sizeof(*use));
  if (use == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_use", NULL, "Free some host memory.",
                      "no host memory to note a use");
  }
  *use = (tarni_piece_uses){
      .next = piece->uses, .stream = stream, .thread = tarni_thread_of(stream), .lane = lane};
  piece->uses = use;
  return TARN_OK;
}

bool tarni_arena_use(tarn_heap *heap, tarn_ptr block, tarn_stream stream, tarn_status *status) {
  if (atomic_load_explicit(&heap->n_arenas, memory_order_relaxed) == 0) {
    return false;
  }
  tarni_lock_acquire(&heap->capture);
  tarn_arena *arena = tarni_arena_find_held(heap, block);
  if (arena != NULL) {
    const uint64_t offset = block - arena->base;
    const uint32_t index = tarni_table_find(&arena->live, offset);
    *status = index != TARNI_TABLE_NONE ? use_add_held(arena, &arena->pieces[index], stream)
                                        : arena_refuse(arena, offset, "tarn_use");
  }
  tarni_lock_release(&heap->capture);
  return arena != NULL;
}

bool tarni_arena_block(tarn_heap *heap, tarn_ptr pointer, tarn_block_info *info) {
  if (atomic_load_explicit(&heap->n_arenas, memory_order_relaxed) == 0) {
    return false;
  }
  tarni_lock_acquire(&heap->capture);
  const tarn_arena *arena = tarni_arena_find_held(heap, pointer);
  const uint32_t index =
      arena != NULL ? tarni_piece_at_held(arena, pointer - arena->base) : TARNI_PIECE_NONE;
  if (index != TARNI_PIECE_NONE) {
    info->address = arena->base + arena->pieces[index].offset;
    info->usable_bytes = arena->pieces[index].size;
  }
  tarni_lock_release(&heap->capture);
  return index != TARNI_PIECE_NONE;
}
