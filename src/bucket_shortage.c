/* SPDX-License-Identifier: MIT
 *
 * What is tried when a heap of driver allocations has no block of the size at hand, each step only
 * if the one before did not help:
 *
 *   complete   fences that are complete by now; doomed blocks of the size are spared
 *   steal      a block of the size that another stream has freed, behind a GPU-side wait (`always`)
 *   make       a new allocation of the driver
 *   steal      (policy `when short`)
 *   evict      kept blocks of other sizes go back, oldest first: just enough, first those that
 *              nothing has to be waited for
 *   drain      everything kept goes back, all streams are waited for, the driver's pool is trimmed
 *   ask        the owner's callback
 *
 * Only shortage climbs: any other error of the driver is reported as itself, and costs no cached
 * block. What it has against waiting and giving back leaves a shortage, and is what is reported
 * where nobody helps. Everything is under heap->grow, so that two allocations that are short do not
 * fight. */
#include "base/bits.h"
#include "bucket.h"

typedef struct bucket_search {
  tarn_heap *heap;
  const tarni_bucket_need *need;
  tarni_index found; /* handed out already */
  tarn_ptr block;
  tarn_stealing stealing; /* the policy, as far as the stream may wait for others */
  bool is_promised;       /* counted as live by the limit on live bytes, until it is or is not */
  bool is_over;           /* that limit has refused it */
  tarn_error cause;       /* what the driver said about shortage */
  tarn_error trouble;     /* what it had against waiting, or giving memory back */
} bucket_search;

static bool is_short(tarn_status status) {
  return status == TARN_DEVICE_MEMORY || status == TARN_LIMIT || status == TARN_ADDRESS_SPACE;
}

static void promise_end_locked(bucket_search *at) {
  at->heap->buckets->promised_bytes -= at->is_promised ? at->need->size : 0;
  at->is_promised = false;
}

static void hand_out_locked(bucket_search *at, tarni_index index) {
  at->found = index;
  if (index != 0) {
    promise_end_locked(at);
    at->block = tarni_bucket_hand_out_locked(at->heap, index, at->need->alignment);
  }
}

static void keep_cause(bucket_search *at) {
  at->cause.size = sizeof(at->cause);
  (void)tarn_last_error(&at->cause);
}

static void note_trouble(bucket_search *at, tarn_status status) {
  if (status != TARN_OK && at->trouble.status == TARN_OK) {
    at->trouble.size = sizeof(at->trouble);
    (void)tarn_last_error(&at->trouble);
  }
}

/* ---- Steps ---- */

/* The live limit lets the request through, once: others that come meanwhile count it. */
static tarn_status promise(bucket_search *at) {
  tarn_heap *heap = at->heap;
  const uint64_t limit = heap->buckets->settings.live_limit;
  tarni_lock_acquire(&heap->lock);
  at->is_promised = !tarni_bucket_is_over_locked(heap, at->need->size);
  heap->buckets->promised_bytes += at->is_promised ? at->need->size : 0;
  const uint64_t live = tarni_live_locked(heap);
  tarni_lock_release(&heap->lock);
  at->is_over = !at->is_promised;
  if (at->is_promised) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = at->need->size,
                             .available_bytes = limit - tarni_min(live, limit)};
  return tarni_fail(TARN_LIMIT, "tarn_alloc", &facts, "Free blocks, or raise the limit.",
                    "%llu bytes more than the %llu that are live pass the limit of %llu",
                    (unsigned long long)at->need->size, (unsigned long long)live,
                    (unsigned long long)limit);
}

static bool find_ready(bucket_search *at) {
  tarn_heap *heap = at->heap;
  const tarni_bucket_need *need = at->need;
  tarni_lock_acquire(&heap->lock);
  tarni_index index = tarni_bucket_take_locked(heap, need->size, need->lane, false);
  if (index == 0) {
    index = tarni_bucket_spare_locked(heap, need->size, need->lane);
  }
  hand_out_locked(at, index);
  tarni_lock_release(&heap->lock);
  return index != 0;
}

/* Takes one that another stream has freed. *is_out: that stream is being captured, or gone, and is
 * known to be from now on, so another one can be tried. */
static tarn_status steal_one(bucket_search *at, bool *is_out) {
  tarn_heap *heap = at->heap;
  const tarni_bucket_need *need = at->need;
  *is_out = false;
  tarni_lock_acquire(&heap->lock);
  const tarni_index index = tarni_bucket_take_locked(heap, need->size, need->lane, true);
  const tarni_order order = heap->buckets->grants[index].order; /* record 0 has none */
  tarni_lock_release(&heap->lock);
  if (index == 0) {
    return TARN_OK;
  }
  const tarn_status status = tarni_order_wait_grow(heap, &order, need->lane);
  tarni_lock_acquire(&heap->lock);
  if (status == TARN_OK) {
    hand_out_locked(at, index);
  } else {
    tarni_bucket_keep_locked(heap, index, &order);
    *is_out = status == TARN_CAPTURE || tarni_order_is_lost_locked(heap, &order);
  }
  tarni_lock_release(&heap->lock);
  return status;
}

/* Each try that fails so marks a stream, which the next one goes without, unless the caller's own
 * may not wait any more. */
static tarn_status steal_grant(bucket_search *at) {
  for (uint32_t i = 0; i < at->heap->max_lanes && at->stealing != TARN_STEAL_NEVER; i++) {
    bool is_out;
    const tarn_status status = steal_one(at, &is_out);
    if (!is_out) {
      return status;
    }
    at->stealing = tarni_shortage_stealing(at->heap, at->need->lane);
  }
  return TARN_OK;
}

/* What the heap holds and may hold. A limit that is no less than the device is the driver's to
 * enforce. */
typedef struct bucket_room {
  uint64_t held, limit;
  bool is_limited;
} bucket_room;

static bucket_room room_of_locked(const tarn_heap *heap) {
  const uint64_t total = heap->port->device.total_bytes;
  return (bucket_room){.held = tarni_held_bytes_locked(heap),
                       .limit = tarni_min(heap->limit_bytes, total),
                       .is_limited = heap->limit_bytes < total};
}

static tarn_status limit_fail(const bucket_search *at, const bucket_room *room) {
  const uint64_t size = at->need->size;
  const tarni_facts facts = {.device = at->heap->port->device.name,
                             .requested_bytes = size,
                             .available_bytes = room->limit - tarni_min(room->held, room->limit)};
  return tarni_fail(room->is_limited ? TARN_LIMIT : TARN_DEVICE_MEMORY, "tarn_alloc", &facts,
                    "Ask for less, or raise the limit with tarn_heap_set_limit.",
                    "%llu bytes more than the %llu that are held pass the limit of %llu",
                    (unsigned long long)size, (unsigned long long)room->held,
                    (unsigned long long)room->limit);
}

static tarn_status make_grant(bucket_search *at) {
  tarn_heap *heap = at->heap;
  tarni_index index = 0;
  tarni_lock_acquire(&heap->lock);
  const bucket_room room = room_of_locked(heap);
  const bool is_over =
      room.is_limited && (room.held > room.limit || at->need->size > room.limit - room.held);
  if (!is_over) { /* what captures make meanwhile does not take its place */
    heap->planned_bytes += at->need->size;
  }
  tarni_lock_release(&heap->lock);
  const tarn_status status =
      is_over ? limit_fail(at, &room)
              : tarni_grant_make_grow(heap, at->need->size, at->need->lane, &index);
  if (is_short(status)) {
    keep_cause(at);
  }
  if (index != 0) {
    tarni_lock_acquire(&heap->lock);
    tarni_bucket_join_locked(heap, index);
    heap->gone.misses++;
    hand_out_locked(at, index);
    tarni_lock_release(&heap->lock);
  }
  return status;
}

/* What is on its way back to the driver, but for what cannot go. */
static uint64_t going_locked(const tarn_heap *heap) {
  const uint64_t doomed = heap->buckets->doomed_bytes;
  return doomed - tarni_min(doomed, tarni_bucket_lost_locked(heap));
}

/* For what is on its way back, rather than for anything else. */
static bool await_one(tarn_heap *heap) {
  return tarni_fences_wait_grow(heap, tarni_doomed_wait_locked) ||
         tarni_fences_wait_grow(heap, NULL);
}

/* Kept blocks go back, oldest first, until the request fits or none is left. Before anything is
 * waited for as much goes as is asked for, since what is on its way already may take long; then no
 * more than is missing. */
static tarn_status evict_and_make(bucket_search *at, bool may_wait) {
  tarn_heap *heap = at->heap;
  const uint64_t size = at->need->size;
  tarn_status status = TARN_DEVICE_MEMORY;
  for (bool is_first = true;; is_first = false) {
    tarni_lock_acquire(&heap->lock);
    const uint64_t going = may_wait && !is_first ? going_locked(heap) : 0;
    const uint64_t evicted =
        tarni_bucket_evict_locked(heap, size - tarni_min(size, going), may_wait);
    tarni_lock_release(&heap->lock);
    if (evicted == 0 && (!may_wait || !await_one(heap))) {
      return status;
    }
    note_trouble(at, may_wait ? tarni_grants_try_grow(heap) : tarni_grants_reap_grow(heap));
    tarni_uses_reap_grow(heap); /* fences may be complete by now that others wait for */
    status = find_ready(at) ? TARN_OK : make_grant(at);
    if (!is_short(status)) {
      return status;
    }
  }
}

/* Waits for everything, gives back everything, and tries once more. */
static tarn_status drain_and_make(bucket_search *at) {
  tarn_heap *heap = at->heap;
  const tarn_status finished = tarni_lanes_finish_grow(heap);
  if (finished != TARN_OK) { /* a capture forbids it, or a stream is gone: there is no more */
    note_trouble(at, finished == TARN_CAPTURE ? TARN_OK : finished);
    return at->cause.status;
  }
  tarni_uses_reap_grow(heap);
  if (find_ready(at)) {
    return TARN_OK;
  }
  tarni_lock_acquire(&heap->lock);
  (void)tarni_bucket_evict_locked(heap, UINT64_MAX, true);
  tarni_lock_release(&heap->lock);
  at->trouble.status = TARN_OK; /* all was awaited: what was in the way of that is not any more */
  note_trouble(at, tarni_grants_await_grow(heap));
  note_trouble(at, tarni_grants_trim_grow(heap, 0));
  return make_grant(at);
}

/* ---- The ladder ---- */

static tarn_status climb_short(bucket_search *at) {
  TARN_TRY(steal_grant(at));
  if (at->found != 0) {
    return TARN_OK;
  }
  tarn_status status = evict_and_make(at, false);
  if (is_short(status)) {
    status = evict_and_make(at, true);
  }
  return is_short(status) ? drain_and_make(at) : status;
}

static tarn_status climb_from_start(bucket_search *at) {
  tarn_heap *heap = at->heap;
  tarni_lock_acquire(&heap->lock);
  const bool is_its = tarni_lane_is_locked(heap, at->need->lane, at->need->stream);
  const bucket_room room = room_of_locked(heap);
  tarni_lock_release(&heap->lock);
  if (!is_its) {
    return TARNI_RETIRED;
  }
  TARN_TRY(promise(at));
  if (at->need->size > tarni_max(room.limit, room.held)) {
    return limit_fail(at, &room);
  }
  TARN_TRY(tarni_shortage_stream_check(heap, at->need->lane));
  tarni_lock_acquire(&heap->lock);
  tarni_lanes_ask_again_locked(heap);
  tarni_lock_release(&heap->lock);
  at->stealing = tarni_shortage_stealing(heap, at->need->lane);
  tarni_shortage_note_grow(heap);
  if (find_ready(at)) {
    return TARN_OK;
  }
  if (at->stealing == TARN_STEAL_ALWAYS) {
    TARN_TRY(steal_grant(at));
    if (at->found != 0) {
      return TARN_OK;
    }
  }
  (void)tarni_grants_try_grow(heap); /* what the driver refuses now it may take the next time */
  const tarn_status status = make_grant(at);
  return is_short(status) ? climb_short(at) : status;
}

tarn_status tarni_bucket_obtain(tarn_heap *heap, const tarni_bucket_need *need, tarn_ptr *block) {
  bucket_search at = {.heap = heap, .need = need};
  tarn_status status;
  for (;;) {
    at.trouble.status = TARN_OK;
    at.is_over = false;
    tarni_captures_reap(heap);
    tarni_lock_acquire(&heap->grow);
    status = climb_from_start(&at);
    if (at.is_over) {
      keep_cause(&at);
    }
    tarni_lock_acquire(&heap->lock);
    promise_end_locked(&at);
    tarni_lock_release(&heap->lock);
    tarni_lock_release(&heap->grow);
    if (!is_short(status)) {
      break;
    }
    if (!tarni_captures_finish(heap) &&
        (heap->config.on_shortage == NULL ||
         !heap->config.on_shortage(heap, need->size, heap->config.on_shortage_user))) {
      break;
    }
  }
  *block = at.block;
  if (status != TARN_OK && at.is_over) {
    return tarni_fail_again(&at.cause);
  }
  if (is_short(status) && at.trouble.status != TARN_OK) {
    return tarni_fail_again(&at.trouble);
  }
  return is_short(status) ? tarni_shortage_report(heap, status, need->size, &at.cause) : status;
}

/* ---- Trimming ---- */

static void evict_down_to(tarn_heap *heap, uint64_t keep, bool may_wait) {
  tarni_lock_acquire(&heap->lock);
  const uint64_t held = heap->reserved_bytes - heap->buckets->doomed_bytes; /* these go anyway */
  (void)tarni_bucket_evict_locked(heap, held - tarni_min(held, keep), may_wait);
  tarni_lock_release(&heap->lock);
}

tarn_status tarni_bucket_trim_ready_grow(tarn_heap *heap, uint64_t keep) {
  evict_down_to(heap, keep, false);
  return tarni_grants_reap_grow(heap);
}

tarn_status tarni_bucket_trim_grow(tarn_heap *heap, uint64_t keep) {
  const tarni_buckets *buckets = heap->buckets;
  evict_down_to(heap, keep, true);
  if (buckets->pool != NULL) { /* it gives back only what is seen to be complete */
    TARN_TRY(tarni_lanes_finish_grow(heap));
  } else if (tarni_uses_are_pending(heap)) {
    const tarn_status finished = tarni_lanes_finish_grow(heap);
    if (finished != TARN_CAPTURE) { /* which may forbid it: then they stay */
      TARN_TRY(finished);
    }
  }
  tarni_uses_reap_grow(heap);
  evict_down_to(heap, keep, true);
  tarn_status status = tarni_grants_await_grow(heap);
  const bool may_settle =
      status == TARN_OK || status == TARN_STATE; /* a stream is gone: then too */
  if (may_settle && tarni_grants_are_doomed(heap)) {
    status = tarni_lanes_finish_grow(heap);
    status = status == TARN_OK ? tarni_grants_await_grow(heap) : status;
  }
  const uint64_t left = keep - tarni_min(keep, heap->reserved_bytes);
  return status == TARN_OK ? tarni_grants_trim_grow(heap, left) : status;
}
