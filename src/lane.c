/* SPDX-License-Identifier: MIT
 *
 * Lanes: the records of the streams that a heap knows. A stream gets one when it is first named,
 * and gives it back when it is retired and its work is complete; a thread's default stream, also
 * when the thread has gone and records are short, and likewise a stream that is found to be gone.
 * What the records are for is order.c's business.
 */
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "internal.h"

/* Whether the record is a stream's, and to be found. */
static bool is_taken(const tarni_lane *lane) {
  return lane->stream_id != 0 && !lane->is_retired && !lane->is_leaving;
}

/* The legacy stream has two handles. */
static bool is_same(const tarni_lane *lane, tarn_stream stream) {
  return lane->stream == stream || (tarni_is_legacy(lane->stream) && tarni_is_legacy(stream));
}

bool tarni_lane_is_locked(const tarn_heap *heap, tarni_index index, tarn_stream stream) {
  const tarni_lane *lane = &heap->lanes[index];
  return index == TARNI_LANE_COMMON || (is_same(lane, stream) && is_taken(lane) &&
                                        (lane->thread == NULL || lane->thread == tarni_thread()));
}

static tarni_index lane_by_id(const tarn_heap *heap, uint64_t stream_id) {
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    if (heap->lanes[i].stream_id == stream_id && is_taken(&heap->lanes[i])) {
      return i;
    }
  }
  return 0;
}

static tarni_index lane_unused(tarn_heap *heap) {
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    if (heap->lanes[i].stream_id == 0) {
      return i;
    }
  }
  return heap->n_lanes < heap->max_lanes ? heap->n_lanes++ : 0;
}

/* A new lane goes on with the tickets of the one that had the record before: what others have
 * waited for stays true. */
static void lane_open(tarni_lane *lane, uint64_t stream_id, tarn_stream stream) {
  lane->stream_id = stream_id;
  lane->stream = stream;
  lane->thread = tarni_thread_of(stream);
  lane->is_retired = false;
  lane->is_lost = false;
  lane->is_captured = false;
  lane->surplus = 0;
  if (lane->waited != NULL) {
    memset(lane->waited, 0, lane->n_waited * sizeof(*lane->waited));
  }
}

/* One that was met in a capture, and had no name until now. Where streams are verified it gets
 * none, for the handle may be another stream's by now: it is lost then, and the device waited for.
 */
static tarni_index lane_name(tarn_heap *heap, uint64_t stream_id, tarn_stream stream) {
  for (tarni_index i = 1; i < heap->n_lanes && !heap->care.is_verifying_streams; i++) {
    tarni_lane *lane = &heap->lanes[i];
    if (lane->stream_id == TARNI_UNNAMED && !lane->is_lost &&
        tarni_lane_is_locked(heap, i, stream)) {
      lane->stream_id = stream_id;
      return i;
    }
  }
  return 0;
}

static tarni_index lane_known(tarn_heap *heap, uint64_t stream_id, tarn_stream stream) {
  tarni_index index = lane_by_id(heap, stream_id);
  index = index != 0 ? index : lane_name(heap, stream_id, stream);
  tarni_lane *lane = &heap->lanes[index];
  if (index != 0) {
    lane->is_lost = false; /* the driver knows the stream: it is there after all */
    lane->thread = lane->thread != NULL ? tarni_thread() : NULL; /* a new one may have its number */
  }
  return index;
}

tarn_status tarni_lane_known(tarn_heap *heap, tarn_stream stream, tarni_index *lane) {
  uint64_t id;
  *lane = 0;
  TARN_TRY(tarni_port_stream_id(heap->port, stream, &id));
  tarni_lock_acquire(&heap->lock);
  *lane = lane_known(heap, id, stream);
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

/* One that is not lost, if there is one. */
static tarni_index lane_by_handle(const tarn_heap *heap, tarn_stream stream) {
  tarni_index found = TARNI_LANE_COMMON;
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    const bool is_it = tarni_lane_is_locked(heap, i, stream);
    found = is_it && (found == TARNI_LANE_COMMON || !heap->lanes[i].is_lost) ? i : found;
  }
  return found;
}

tarni_index tarni_lane_by_handle(tarn_heap *heap, tarn_stream stream) {
  tarni_lock_acquire(&heap->lock);
  const tarni_index found = lane_by_handle(heap, stream);
  tarni_lock_release(&heap->lock);
  return found;
}

/* A handle that means a new stream: the one that it meant before is gone, and was not retired. */
static void namesakes_lose_locked(tarn_heap *heap, tarn_stream stream) {
  for (tarni_index i = 1; i < heap->n_lanes && stream != TARNI_STREAM_PER_THREAD; i++) {
    tarni_lane *lane = &heap->lanes[i];
    lane->is_lost = lane->is_lost || (lane->stream == stream && is_taken(lane));
  }
}

char *tarni_lane_text_locked(const tarni_lane *lane, char text[TARNI_LANE_TEXT]) {
  const bool has_name = lane->stream_id != TARNI_UNNAMED;
  (void)snprintf(text, TARNI_LANE_TEXT, has_name ? "%llu" : "with the handle 0x%llx",
                 has_name ? (unsigned long long)lane->stream_id
                          : (unsigned long long)(uintptr_t)lane->stream);
  return text;
}

static tarn_status lanes_refuse(const tarn_heap *heap) {
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_LIMIT, "tarn_alloc", &facts,
                    "Retire streams that are no longer used (tarn_stream_retire).",
                    "the heap knows %u streams already", heap->max_lanes - 1);
}

static tarni_index lane_unnamed(tarn_heap *heap, tarn_stream stream) {
  tarni_lock_acquire(&heap->lock);
  tarni_index lane = lane_by_handle(heap, stream);
  if (lane == TARNI_LANE_COMMON) {
    lane = lane_unused(heap);
    if (lane != 0) {
      lane_open(&heap->lanes[lane], TARNI_UNNAMED, stream);
    }
  }
  tarni_lock_release(&heap->lock);
  return lane;
}

static tarni_index lane_obtain(tarn_heap *heap, uint64_t id, tarn_stream stream) {
  tarni_lock_acquire(&heap->lock);
  tarni_index lane = lane_known(heap, id, stream);
  if (lane == 0) {
    lane = lane_unused(heap);
    if (lane != 0) {
      namesakes_lose_locked(heap, stream);
      lane_open(&heap->lanes[lane], id, stream);
    }
  }
  tarni_lock_release(&heap->lock);
  return lane;
}

/* ---- Retiring ---- */

/* Who looks for the stream from here on gets another lane, and this one gives no more tickets: so
 * the fence that is recorded next proves all that it ever gave. Returns the last one. */
static uint64_t lane_freeze_locked(tarn_heap *heap, tarni_index index) {
  const uint64_t ticket = tarni_ticket_locked(heap, index);
  heap->lanes[index].is_leaving = true;
  return ticket;
}

/* Records the last fence. Without it the lane is as before. */
static tarn_status lane_retire_grow(tarn_heap *heap, tarni_index index, uint64_t ticket) {
  const tarn_status status = tarni_lane_last_fence_grow(heap, index, ticket);
  tarni_lock_acquire(&heap->lock);
  heap->lanes[index].is_leaving = false;
  heap->lanes[index].is_retired = status == TARN_OK;
  tarni_lock_release(&heap->lock);
  return status;
}

/* Empties the lane, if it is the stream's. */
static bool lane_close(tarn_heap *heap, tarni_index index, uint64_t id, uint64_t *ticket) {
  tarni_lock_acquire(&heap->lock);
  const bool is_its = heap->lanes[index].stream_id == id && is_taken(&heap->lanes[index]);
  if (is_its) {
    tarni_cache_empty_all_locked(heap, index, true);
    const tarni_sweep sweep = {.first = index, .end = index + 1, .is_thorough = true};
    (void)tarni_slab_collect_locked(heap, &sweep);
    *ticket = lane_freeze_locked(heap, index);
  }
  tarni_lock_release(&heap->lock);
  return is_its;
}

/* There may be two, where an earlier try has failed and others were at work on it meanwhile. */
tarn_status tarni_lane_retire_grow(tarn_heap *heap, tarn_stream stream) {
  uint64_t id, ticket;
  TARN_TRY(tarni_port_stream_id(heap->port, stream, &id));
  tarni_lock_acquire(&heap->lock);
  (void)lane_known(heap, id, stream); /* so that it has its name */
  const uint32_t n = heap->n_lanes;
  tarni_lock_release(&heap->lock);
  for (tarni_index i = 1; i < n; i++) {
    if (lane_close(heap, i, id, &ticket)) {
      TARN_TRY(lane_retire_grow(heap, i, ticket));
    }
  }
  return TARN_OK;
}

/* Default streams of threads that are gone, and have given their caches back: what they were given
 * is fenced by another stream. Where that cannot be it is tried the next time. */
static void orphans_retire_grow(tarn_heap *heap) {
  for (tarni_index i = 1; i < heap->max_lanes; i++) {
    tarni_lane *lane = &heap->lanes[i];
    tarni_lock_acquire(&heap->lock);
    const bool is_left = lane->thread != NULL && tarni_thread_is_gone(lane->thread) &&
                         is_taken(lane) && atomic_load(&lane->n_caches) == 0;
    const uint64_t ticket = is_left ? lane_freeze_locked(heap, i) : 0;
    tarni_lock_release(&heap->lock);
    if (is_left) {
      (void)lane_retire_grow(heap, i, ticket);
    }
  }
}

/* Whether a lane's stream is gone for good: its handle means none, or another one. */
static bool is_gone(tarn_heap *heap, tarn_stream stream, uint64_t stream_id) {
  uint64_t id;
  const tarn_status status = tarni_port_stream_id(heap->port, stream, &id);
  return status == TARN_INVALID ||
         (status == TARN_OK && id != stream_id && stream_id != TARNI_UNNAMED);
}

/* Its last ticket is complete once the whole device was waited for: no fence can be made. So is all
 * else that the stream was ever given, and the record comes back like any retired one. */
bool tarni_lanes_retire_lost_grow(tarn_heap *heap) {
  bool is_any = false;
  for (tarni_index i = 1; i < heap->max_lanes; i++) {
    tarni_lane *lane = &heap->lanes[i];
    uint64_t ticket;
    tarni_lock_acquire(&heap->lock);
    const tarn_stream stream = lane->stream;
    const uint64_t id = lane->stream_id;
    const bool may_be = (lane->is_lost || heap->care.is_verifying_streams) &&
                        lane->thread == NULL && is_taken(lane);
    is_any |= lane->is_retired && lane->is_lost && id != 0; /* it was waited for in vain */
    tarni_lock_release(&heap->lock);
    if (may_be && is_gone(heap, stream, id) && lane_close(heap, i, id, &ticket)) {
      tarni_lock_acquire(&heap->lock);
      lane->is_leaving = false;
      lane->is_retired = lane->is_lost = true;
      tarni_lock_release(&heap->lock);
      is_any = true;
    }
  }
  return is_any;
}

static bool is_going(const tarn_heap *heap, tarni_index lane) {
  return heap->lanes[lane].is_retired;
}

/* All records are taken: those of retired streams come back once their work is complete, and those
 * of streams that are gone once that of the whole device is. */
static tarni_index lane_await(tarn_heap *heap, uint64_t id, tarn_stream stream) {
  tarni_lock_acquire(&heap->grow);
  orphans_retire_grow(heap);
  tarni_shortage_reap_grow(heap);
  tarni_index lane = lane_obtain(heap, id, stream);
  while (lane == 0 && tarni_fences_wait_grow(heap, is_going)) {
    tarni_shortage_reap_grow(heap);
    lane = lane_obtain(heap, id, stream);
  }
  if (lane == 0 && tarni_lanes_retire_lost_grow(heap) && tarni_lanes_finish_grow(heap) == TARN_OK) {
    tarni_shortage_reap_grow(heap);
    lane = lane_obtain(heap, id, stream);
  }
  tarni_lock_release(&heap->grow);
  return lane;
}

/* Where all records are taken only those come back that need no wait: that may break the capture.
 */
tarn_status tarni_lane_unnamed(tarn_heap *heap, tarn_stream stream, const char *operation,
                               tarni_index *lane) {
  *lane = lane_unnamed(heap, stream);
  if (*lane == 0) {
    tarni_lock_acquire(&heap->grow);
    orphans_retire_grow(heap);
    tarni_shortage_reap_grow(heap);
    *lane = lane_unnamed(heap, stream);
    tarni_lock_release(&heap->grow);
  }
  if (*lane != 0) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_CAPTURE, operation, &facts,
                    "Do it after the capture, or retire streams that are no longer used first "
                    "(tarn_stream_retire).",
                    "the stream is being captured, and the heap knows %u others already, so that "
                    "it cannot be noted",
                    heap->max_lanes - 1);
}

tarn_status tarni_lane_find(tarn_heap *heap, tarn_stream stream, tarni_index *lane) {
  uint64_t id;
  *lane = TARNI_LANE_COMMON;
  if (heap->is_fixed && stream == TARNI_STREAM_HOST) {
    return TARN_OK; /* what the host gives back is complete */
  }
  TARN_TRY(tarni_port_stream_id(heap->port, stream, &id));
  *lane = lane_obtain(heap, id, stream);
  if (*lane == 0) {
    *lane = lane_await(heap, id, stream);
  }
  return *lane != 0 ? TARN_OK : lanes_refuse(heap);
}

void tarni_lanes_ask_again_locked(tarn_heap *heap) {
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    heap->lanes[i].is_captured = false;
  }
}
