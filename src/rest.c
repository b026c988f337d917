/* SPDX-License-Identifier: MIT
 *
 * Rest: a program that repeats itself comes to make no driver call, since all views that it needs
 * are mapped (view.c). One that does not, because its sizes do not come again, or need more
 * mappings than there may be, would map chunks elsewhere for ever. Such a move takes about as long
 * as making a chunk. So moves earn memory, which the heap may hold above its slack (grow.c): not
 * for those of a program until it is at rest, and not where they are rare; and only as long as
 * there is room for others, for captures, and for what the program will need. Where it needs more
 * mappings than there may be, and all that are of no use at the time had to go, it may hold yet
 * more: it would come to the same point again.
 *
 * Likewise with slabs that are collected and made again, for ever, to save memory in a heap that
 * holds more than is used all the same. Once so many were collected, a heap that holds more than
 * was ever used, but for what bins and shelves keep, is eased: within bounds it makes memory rather
 * than to collect or to move, and caches have shelves for large blocks (shelf.c). At its bounds it
 * collects again, and what it collects there widens them a little. If as much memory moves while it
 * is eased as it holds it is not at ease so, and collects twice as many before the next try.
 *
 * And likewise with streams that take each other's memory, for ever, where the policy is to do that
 * rather than to grow. Once they have taken so much they are parted: what each has freed stays its
 * own, in extents of its own, since what several have freed is of use to none; a stream that is
 * short looks at what it has itself before it waits for others, and each time that it does wait
 * earns as much memory, which is made rather than taken, within the bounds of moves. If it does not
 * come to rest so it shares again, and steals twice as much before the next try.
 *
 * Everything is under heap->lock. Whether streams are parted may be asked under heap->grow, too. */
#include "base/bits.h"
#include "internal.h"

enum {
  REST_MOVES = 1 << 15, /* so many earn nothing: a second on an H200 */
  REST_SLABS = 64,      /* slabs that are made for each move where moves are rare */
  REST_EARN = 32,       /* bytes that move for each that is earned, */
  REST_SHARE = 4,       /* up to this part of the peak, and with this part of the limit left */
  REST_DROP_SHARE = 16, /* and by this part of it more each time that mappings had to go, */
  REST_MAX_DROPS = 4,   /* up to so many times, */
  REST_DROP_ROOM = 2,   /* with this part of the limit left */
  REST_EASE_SHARE = 16, /* eased is what holds more than the peak and this part of it, */
  REST_EASE_MOST = 8,   /* but makes no more than so many of these parts, */
  REST_EASE_MORE = 4,   /* and up to so many besides, for what is collected at these bounds, */
  REST_EASE_ROOM = 2,   /* with this part of the limit left; */
  REST_SHELF_SHARE = 2, /* this part of the peak is for the shelves of all caches, */
  REST_SHELF_ROOM = 4,  /* where no more than this part of the limit is held, */
  REST_STACK_SHARE = 8, /* and this part of what is live is for their stacks */
  REST_STEP_SHARE = 64, /* a peak counts that is higher by this part, */
  REST_CACHES = 64,     /* and with more of them it would take too long to see */
  REST_MAX_TRIES = 32,
  REST_STEALS = 32,       /* times the peak is stolen before that earns anything, */
  REST_STEAL_SHARE = 128, /* less this part of what slabs are made of; */
  REST_UNREST = 8,        /* times the peak is stolen or moves then before that is given up */
};

static uint64_t limit_of(const tarn_heap *heap) {
  return tarni_min(heap->limit_bytes, heap->port->device.total_bytes);
}

/* Whether so much more leaves that part of the limit for others, and has not been refused. */
static bool has_room(const tarn_heap *heap, uint64_t more, uint64_t share) {
  const uint64_t limit = limit_of(heap);
  const bool is_refused =
      heap->refused_bytes != 0 && heap->reserved_bytes + more > heap->refused_bytes;
  return tarni_held_bytes_locked(heap) + more <= limit - limit / share && !is_refused;
}

/* ---- Slabs ---- */

/* Slabs that are collected before the heap is eased. */
static uint64_t patience(const tarni_rest *rest) {
  return (uint64_t)TARNI_EASE_COLLECTED << tarni_min(rest->n_tries, REST_MAX_TRIES);
}

/* What is used, but for what bins and shelves keep, and most of what stacks do: else what is kept
 * would make room for more of it. */
static uint64_t lean_bytes(const tarn_heap *heap, uint64_t unbinned) {
  const tarni_counts counts = tarni_counts_locked(heap);
  const tarni_large_counts total = tarni_counts_total(&counts);
  const uint64_t counted = total.alloc_bytes - tarni_min(total.alloc_bytes, total.free_bytes);
  const uint64_t live = counted + heap->pending_bytes;
  const uint64_t kept = tarni_shelves_bytes_locked(heap) + tarni_caches_binned_locked(heap);
  return tarni_min(unbinned - tarni_min(unbinned, kept), live + live / REST_STACK_SHARE);
}

void tarni_rest_peak_locked(tarn_heap *heap, uint64_t unbinned) {
  tarni_rest *rest = &heap->rest;
  rest->n_unseen = 0;
  if (heap->n_caches <= REST_CACHES) {
    rest->peak_next = tarni_max(rest->peak_next, unbinned + unbinned / REST_STEP_SHARE);
    rest->lean_peak = tarni_max(rest->lean_peak, lean_bytes(heap, unbinned));
  }
}

uint64_t tarni_rest_used_locked(const tarn_heap *heap) {
  return heap->n_caches <= REST_CACHES ? heap->rest.lean_peak : heap->used_peak_bytes;
}

/* Whether it has collected enough and holds more than is used, with so much more and half of the
 * limit to spare. */
static bool is_loose(const tarn_heap *heap, uint64_t more) {
  const uint64_t peak = heap->rest.lean_peak;
  return heap->rest.n_collected >= patience(&heap->rest) &&
         heap->reserved_bytes > peak + peak / REST_EASE_SHARE &&
         has_room(heap, more, REST_EASE_ROOM) && !heap->is_fixed &&
         heap->config.stealing != TARN_STEAL_ALWAYS && heap->n_caches <= REST_CACHES;
}

bool tarni_rest_is_eased_locked(const tarn_heap *heap, uint64_t more) {
  const tarni_rest *rest = &heap->rest;
  const uint64_t besides = tarni_min(rest->n_bounded / patience(rest), REST_EASE_MORE);
  const uint64_t part = rest->lean_peak / REST_EASE_SHARE;
  return heap->reserved_bytes + more <= rest->lean_peak + part * (REST_EASE_MOST + besides) &&
         is_loose(heap, more);
}

void tarni_rest_collect_locked(tarn_heap *heap, uint32_t n_slabs) {
  heap->rest.n_bounded += is_loose(heap, 0) ? n_slabs : 0;
  heap->rest.n_collected += n_slabs;
}

/* What blocks have to spare is out of reach until they are freed: it must be little of the limit.
 */
uint64_t tarni_rest_shelves_locked(const tarn_heap *heap) {
  const bool is_refused = heap->refused_bytes != 0 && heap->reserved_bytes >= heap->refused_bytes;
  const bool has_much = tarni_held_bytes_locked(heap) <= limit_of(heap) / REST_SHELF_ROOM;
  return is_loose(heap, 0) && !is_refused && has_much ? heap->rest.lean_peak / REST_SHELF_SHARE : 0;
}

/* Chunks move while it does not collect, and so often that slabs do not make up for it. */
static void ease_try(tarn_heap *heap, uint64_t bytes, uint64_t n_made) {
  tarni_rest *rest = &heap->rest;
  rest->n_eased -= tarni_min(rest->n_eased, n_made);
  rest->n_eased += is_loose(heap, 0) ? bytes >> heap->unit_log2 : 0;
  if (rest->n_eased > heap->reserved_bytes >> heap->unit_log2) {
    rest->n_collected = rest->n_bounded = rest->n_eased = 0;
    rest->n_tries++;
  }
}

/* ---- Steals ---- */

/* Whether the policy is to steal, and more could be made. */
static bool may_part(const tarn_heap *heap, uint64_t more) {
  return heap->config.stealing == TARN_STEAL_ALWAYS && !heap->is_fixed &&
         has_room(heap, more, REST_SHARE);
}

/* Steals are rare where many blocks come and go without any. */
static void unrest_add(tarni_rest *rest, uint64_t bytes) {
  const uint64_t rare = rest->made_bytes / REST_STEAL_SHARE;
  rest->made_bytes = 0;
  rest->stolen_bytes -= tarni_min(rest->stolen_bytes, rare);
  rest->stolen_bytes += bytes;
}

/* So much was stolen or has moved since streams were parted, and earned it nothing more. */
static void part_try(tarn_heap *heap, uint64_t bytes) {
  tarni_rest *rest = &heap->rest;
  unrest_add(rest, bytes);
  if (rest->stolen_bytes / REST_UNREST > heap->used_peak_bytes) {
    rest->stolen_bytes = rest->parted_bytes = 0;
    rest->n_parted += rest->n_parted < REST_MAX_TRIES;
  }
}

/* Once streams are parted each steal earns, however rare: a heap that has nearly enough steals
 * rarely, and would never get the rest. */
void tarni_rest_steal_locked(tarn_heap *heap, uint64_t bytes) {
  tarni_rest *rest = &heap->rest;
  const bool may = may_part(heap, bytes);
  if (tarni_rest_is_parted(heap)) {
    rest->parted_bytes += may ? bytes : 0;
    part_try(heap, bytes);
    return;
  }
  unrest_add(rest, bytes);
  const uint64_t times = (uint64_t)REST_STEALS << rest->n_parted;
  if (may && rest->stolen_bytes / times > heap->used_peak_bytes) {
    rest->parted_bytes = bytes;
    rest->stolen_bytes = 0;
  }
}

bool tarni_rest_may_part_locked(const tarn_heap *heap, uint64_t more) {
  const uint64_t peak = heap->used_peak_bytes;
  const uint64_t earned = tarni_min(heap->rest.parted_bytes, peak / REST_SHARE);
  return heap->reserved_bytes + more <= peak + earned && may_part(heap, more);
}

/* ---- Moves ---- */

void tarni_rest_move_locked(tarn_heap *heap, uint64_t bytes) {
  tarni_rest *rest = &heap->rest;
  const uint64_t n_made = rest->n_slabs / REST_SLABS;
  rest->n_moves -= tarni_min(rest->n_moves, n_made);
  rest->n_slabs %= REST_SLABS;
  rest->n_moves++;
  rest->earned_bytes += rest->n_moves > REST_MOVES ? bytes / REST_EARN : 0;
  ease_try(heap, bytes, n_made);
  if (tarni_rest_is_parted(heap)) {
    part_try(heap, bytes);
  }
}

void tarni_rest_drop_locked(tarn_heap *heap) {
  heap->rest.n_drops += heap->rest.n_drops < REST_MAX_DROPS;
}

uint64_t tarni_rest_earned_locked(const tarn_heap *heap, uint64_t more) {
  const uint64_t peak = heap->used_peak_bytes, earned = heap->rest.earned_bytes;
  const uint64_t besides = heap->rest.n_drops * (peak / REST_DROP_SHARE);
  if (has_room(heap, more, REST_DROP_ROOM)) {
    return tarni_min(earned, peak / REST_SHARE + besides);
  }
  return has_room(heap, more, REST_SHARE) ? tarni_min(earned, peak / REST_SHARE) : 0;
}
