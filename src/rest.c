/* SPDX-License-Identifier: MIT
 *
 * Rest: a program that repeats itself comes to make no driver call, since all windows that it needs
 * are mapped (place.c). One that does not, because its sizes do not come again, or need more
 * mappings than there may be, would move chunks for ever. Moving a chunk takes about as long as
 * making one. So moves earn memory, which the heap may hold above its slack (grow.c): not for what
 * a program moves until it is at rest, and not where moves are rare; and only as long as there is
 * room for others, for captures, and for what the program will need.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "internal.h"

enum {
  REST_MOVES = 1 << 16, /* so many earn nothing: two seconds on an H200 */
  REST_SLABS = 64,      /* slabs that are made for each move where moves are rare */
  REST_EARN = 32,       /* bytes that move for each that is earned, */
  REST_SHARE = 4,       /* up to this part of the peak, and with this part of the limit left */
};

void tarni_rest_move_locked(tarn_heap *heap, uint64_t bytes) {
  tarni_rest *rest = &heap->rest;
  rest->n_moves -= tarni_min(rest->n_moves, rest->n_slabs / REST_SLABS);
  rest->n_slabs %= REST_SLABS;
  rest->n_moves++;
  rest->earned_bytes += rest->n_moves > REST_MOVES ? bytes / REST_EARN : 0;
}

uint64_t tarni_rest_earned_locked(const tarn_heap *heap, uint64_t more) {
  const uint64_t limit = tarni_min(heap->limit_bytes, heap->port->device.total_bytes);
  const bool has_room = tarni_held_bytes_locked(heap) + more <= limit - limit / REST_SHARE;
  const bool is_refused =
      heap->refused_bytes != 0 && heap->reserved_bytes + more > heap->refused_bytes;
  return has_room && !is_refused
             ? tarni_min(heap->rest.earned_bytes, heap->used_peak_bytes / REST_SHARE)
             : 0;
}
