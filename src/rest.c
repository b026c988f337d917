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
 * holds more than is used all the same. While so many are collected it is seen what is used but for
 * what bins keep; then the heap is eased: a little above that it rather grows than collects.
 * If as much memory moves then as it holds, or it collects as many slabs all the same, it is not at
 * ease without collecting, and collects twice as many before the next try.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "internal.h"

enum {
  REST_MOVES = 1 << 16,     /* so many earn nothing: two seconds on an H200 */
  REST_SLABS = 64,          /* slabs that are made for each move where moves are rare */
  REST_EARN = 32,           /* bytes that move for each that is earned, */
  REST_SHARE = 4,           /* up to this part of the peak, and with this part of the limit left */
  REST_COLLECTED = 1 << 16, /* slabs that are collected before a heap is eased, */
  REST_EASE_SHARE = 16,     /* which holds more than the peak and this part of it, */
  REST_EASE_MOST = 6,       /* but not more than so many of these parts */
  REST_LANES = 64,          /* with more of them it would take too long to see what they keep */
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

static bool is_patient(const tarni_rest *rest) {
  return rest->n_collected >= (uint64_t)REST_COLLECTED << tarni_min(rest->n_tries, REST_MAX_TRIES);
}

/* From here on it is seen anew what is used, for twice as long. */
static void ease_end(tarni_rest *rest) {
  rest->n_collected = rest->n_again = rest->n_eased = rest->lean_peak = 0;
  rest->n_tries++;
}

void tarni_rest_collect_locked(tarn_heap *heap, uint32_t n_slabs) {
  tarni_rest *rest = &heap->rest;
  if (!is_patient(rest)) {
    rest->n_collected += n_slabs;
    if (heap->used_bytes > rest->lean_peak && heap->n_lanes <= REST_LANES) {
      rest->lean_peak =
          tarni_max(rest->lean_peak, heap->used_bytes - tarni_bins_bytes_locked(heap));
    }
  } else {
    rest->n_again += n_slabs;
    if (rest->n_again >= REST_COLLECTED) { /* that is not enough */
      ease_end(rest);
    }
  }
}

bool tarni_rest_is_eased_locked(const tarn_heap *heap, uint64_t more) {
  const uint64_t peak = heap->rest.lean_peak, held = heap->reserved_bytes;
  const uint64_t part = peak / REST_EASE_SHARE;
  return is_patient(&heap->rest) && held > peak + part &&
         held + more <= peak + part * REST_EASE_MOST && has_room(heap, more) && !heap->is_fixed &&
         heap->config.stealing != TARN_STEAL_ALWAYS;
}

/* Chunks move while it does not collect. */
static void ease_try(tarn_heap *heap, uint64_t bytes) {
  tarni_rest *rest = &heap->rest;
  rest->n_eased += tarni_rest_is_eased_locked(heap, 0) ? bytes >> heap->unit_log2 : 0;
  if (rest->n_eased > heap->reserved_bytes >> heap->unit_log2) {
    ease_end(rest);
  }
}

/* ---- Moves ---- */

void tarni_rest_move_locked(tarn_heap *heap, uint64_t bytes) {
  tarni_rest *rest = &heap->rest;
  rest->n_moves -= tarni_min(rest->n_moves, rest->n_slabs / REST_SLABS);
  rest->n_slabs %= REST_SLABS;
  rest->n_moves++;
  rest->earned_bytes += rest->n_moves > REST_MOVES ? bytes / REST_EARN : 0;
  ease_try(heap, bytes);
}

uint64_t tarni_rest_earned_locked(const tarn_heap *heap, uint64_t more) {
  return has_room(heap, more)
             ? tarni_min(heap->rest.earned_bytes, heap->used_peak_bytes / REST_SHARE)
             : 0;
}
