/* SPDX-License-Identifier: MIT
 *
 * Rest: a program that repeats itself comes to make no driver call, since all windows that it needs
 * are mapped (place.c). One that does not, because its sizes do not come again, or need more
 * mappings than there may be, would move chunks for ever. Moving a chunk takes about as long as
 * making one. So moves earn memory, which the heap may hold above its slack (grow.c): not for what
 * a program moves until it is at rest, and not where moves are rare; and only as long as there is
 * room for others, for captures, and for what the program will need.
 *
 * Likewise with slabs that are collected and made again, for ever, to save memory in a heap that
 * holds more than it ever used all the same: in the end it is eased, and rather grows a little than
 * collects. If chunks move then, each of them once, it is not at ease without collecting, and has
 * to collect twice as many slabs before that is tried again.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "internal.h"

enum {
  REST_MOVES = 1 << 16,     /* so many earn nothing: two seconds on an H200 */
  REST_SLABS = 64,          /* slabs that are made for each move where moves are rare */
  REST_EARN = 32,           /* bytes that move for each that is earned, */
  REST_SHARE = 4,           /* up to this part of the peak, and with this part of the limit left */
  REST_COLLECTED = 1 << 16, /* slabs that are collected before a heap is eased */
  REST_EASE_SHARE = 16,     /* of the peak: what it holds more than that */
  REST_MAX_TRIES = 32,
};

/* Whether so much more leaves room for others, and has not been refused. */
static bool has_room(const tarn_heap *heap, uint64_t more) {
  const uint64_t limit = tarni_min(heap->limit_bytes, heap->port->device.total_bytes);
  const bool is_refused =
      heap->refused_bytes != 0 && heap->reserved_bytes + more > heap->refused_bytes;
  return tarni_held_bytes_locked(heap) + more <= limit - limit / REST_SHARE && !is_refused;
}

/* ---- Slabs ---- */

void tarni_rest_collect_locked(tarn_heap *heap, uint32_t n_slabs) {
  heap->rest.n_collected += n_slabs;
}

static uint64_t patience_of(const tarni_rest *rest) {
  return (uint64_t)REST_COLLECTED << tarni_min(rest->n_tries, REST_MAX_TRIES);
}

bool tarni_rest_is_eased_locked(const tarn_heap *heap, uint64_t more) {
  const uint64_t peak = heap->used_peak_bytes, held = heap->reserved_bytes;
  if (heap->rest.n_collected < patience_of(&heap->rest) || heap->is_fixed ||
      held <= peak + peak / REST_EASE_SHARE) {
    return false;
  }
  const bool may_grow = held + more <= peak + peak / REST_SHARE && has_room(heap, more);
  return may_grow || heap->idle_bytes >= more;
}

/* A chunk moves: after too many, the heap collects again. */
static void ease_try(tarn_heap *heap) {
  tarni_rest *rest = &heap->rest;
  if (tarni_rest_is_eased_locked(heap, 0) && rest->n_eased++ == heap->n_chunks) {
    rest->n_collected = rest->n_eased = 0;
    rest->n_tries++;
  }
}

/* ---- Moves ---- */

void tarni_rest_move_locked(tarn_heap *heap, uint64_t bytes) {
  tarni_rest *rest = &heap->rest;
  rest->n_moves -= tarni_min(rest->n_moves, rest->n_slabs / REST_SLABS);
  rest->n_slabs %= REST_SLABS;
  rest->n_moves++;
  rest->earned_bytes += rest->n_moves > REST_MOVES ? bytes / REST_EARN : 0;
  ease_try(heap);
}

uint64_t tarni_rest_earned_locked(const tarn_heap *heap, uint64_t more) {
  return has_room(heap, more)
             ? tarni_min(heap->rest.earned_bytes, heap->used_peak_bytes / REST_SHARE)
             : 0;
}
