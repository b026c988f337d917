/* SPDX-License-Identifier: MIT
 *
 * Orders, tickets and fences: what must complete before memory is used again. Memory that a lane
 * gives back gets the lane's next ticket. A fence is an event recorded on the lane's stream; it
 * proves all tickets given before it was recorded. Events are recorded only when memory is about to
 * leave its stream, or a mapping is to be dropped.
 *
 * Fail closed: where a fence cannot be recorded or asked, the lane is lost, and nothing that waits
 * for it is ever used again. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "internal.h"

/* ---- Orders ---- */

bool tarni_order_add(tarni_order *order, tarni_index lane, uint64_t ticket) {
  if (lane == TARNI_LANE_COMMON) {
    return true;
  }
  for (uint32_t i = 0; i < order->n; i++) {
    if (order->lanes[i] == lane) {
      order->tickets[i] = tarni_max(order->tickets[i], ticket);
      return true;
    }
  }
  if (order->n == TARNI_ORDER_MAX) {
    return false;
  }
  order->lanes[order->n] = lane;
  order->tickets[order->n++] = ticket;
  return true;
}

/* Whether all lanes of two orders fit into one. */
static bool is_room(const tarni_order *order, const tarni_order *other) {
  tarni_order both = *order;
  bool is = true;
  for (uint32_t i = 0; i < other->n && is; i++) {
    is = tarni_order_add(&both, other->lanes[i], 0);
  }
  return is;
}

bool tarni_order_unite(tarni_order *order, const tarni_order *other) {
  if (order->n + other->n > TARNI_ORDER_MAX && !is_room(order, other)) {
    return false;
  }
  for (uint32_t i = 0; i < other->n; i++) {
    (void)tarni_order_add(order, other->lanes[i], other->tickets[i]);
  }
  return true;
}

/* The i-th of an order. */
static tarni_order_entry entry_of(const tarni_order *order, uint32_t i) {
  return (tarni_order_entry){.lane = order->lanes[i], .ticket = order->tickets[i]};
}

static bool entry_is_complete(const tarn_heap *heap, tarni_order_entry entry) {
  return entry.ticket <= heap->complete[entry.lane];
}

static bool entry_is_met(const tarn_heap *heap, tarni_order_entry entry, tarni_index lane) {
  return entry.lane == lane || entry.ticket <= tarni_order_met_locked(heap, entry.lane, lane);
}

bool tarni_order_unite_open_locked(const tarn_heap *heap, tarni_order *order,
                                   const tarni_order *other) {
  tarni_order open = {0};
  for (uint32_t i = 0; i < other->n; i++) {
    if (!entry_is_complete(heap, entry_of(other, i))) {
      (void)tarni_order_add(&open, other->lanes[i], other->tickets[i]);
    }
  }
  return tarni_order_unite(order, &open);
}

bool tarni_order_is_met_locked(const tarn_heap *heap, const tarni_order *order, tarni_index lane) {
  for (uint32_t i = 0; i < order->n; i++) {
    if (!entry_is_met(heap, entry_of(order, i), lane)) {
      return false;
    }
  }
  return true;
}

bool tarni_order_is_complete_locked(const tarn_heap *heap, const tarni_order *order) {
  for (uint32_t i = 0; i < order->n; i++) {
    if (!entry_is_complete(heap, entry_of(order, i))) {
      return false;
    }
  }
  return true;
}

bool tarni_order_is_out_locked(const tarn_heap *heap, const tarni_order *order) {
  for (uint32_t i = 0; i < order->n; i++) {
    const tarni_lane *lane = &heap->lanes[order->lanes[i]];
    if (!entry_is_complete(heap, entry_of(order, i)) &&
        (lane->is_lost || (lane->is_captured && order->tickets[i] > lane->fenced))) {
      return true;
    }
  }
  return false;
}

bool tarni_order_is_lost_locked(const tarn_heap *heap, const tarni_order *order) {
  for (uint32_t i = 0; i < order->n; i++) {
    if (heap->lanes[order->lanes[i]].is_lost && !entry_is_complete(heap, entry_of(order, i))) {
      return true;
    }
  }
  return false;
}

/* A retired lane gives no more: its last fence is behind all that its stream was ever given; nor
 * does one for which that is being recorded. */
uint64_t tarni_ticket_locked(tarn_heap *heap, tarni_index lane) {
  tarni_lane *by = &heap->lanes[lane];
  if (lane == TARNI_LANE_COMMON || by->is_retired || by->is_leaving) {
    return by->ticket;
  }
  return ++by->ticket;
}

/* ---- Fences ---- */

static tarn_status lane_lost(tarn_heap *heap, tarni_index lane, const char *operation) {
  tarni_lock_acquire(&heap->lock);
  tarni_lane *known = &heap->lanes[lane];
  known->is_lost = true;
  char name[TARNI_LANE_TEXT];
  (void)tarni_lane_text_locked(known, name);
  tarni_lock_release(&heap->lock);
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_STATE, operation, &facts,
                    "Retire a stream (tarn_stream_retire) before it is destroyed.",
                    "stream %s is gone or broken; memory that waits for it is quarantined", name);
}

static tarni_fence *fence_at(tarni_lane *lane, uint32_t i) {
  return &lane->fences[(lane->first_fence + i) % TARNI_FENCES];
}

/* The oldest fence is complete, or its completion was awaited. */
static void fence_drop_oldest_locked(tarn_heap *heap, tarni_index index) {
  tarni_lane *lane = &heap->lanes[index];
  tarni_fence *fence = fence_at(lane, 0);
  heap->complete[index] = tarni_max(heap->complete[index], fence->ticket);
  fence->ticket = 0;
  lane->first_fence = (lane->first_fence + 1) % TARNI_FENCES;
  lane->n_fences--;
  heap->n_news++;
}

/* The driver does not know what the event stands for: it was recorded in a capture that ended
 * before it could be seen. Such a fence proves nothing, and goes. The ticket that is to be fenced
 * anew, or 0. A retired lane cannot be: where it has no newer fence it is lost. */
static uint64_t fence_void(tarn_heap *heap, tarni_index index, uint32_t at, tarn_status status) {
  if (status != TARN_INVALID) {
    return 0;
  }
  tarni_lane *lane = &heap->lanes[index];
  tarni_lock_acquire(&heap->lock);
  const tarni_fence fence = *fence_at(lane, at);
  for (uint32_t i = at + 1; i < lane->n_fences; i++) {
    *fence_at(lane, i - 1) = *fence_at(lane, i);
  }
  lane->n_fences--;
  *fence_at(lane, lane->n_fences) = (tarni_fence){.event = fence.event};
  lane->fenced =
      lane->n_fences != 0 ? fence_at(lane, lane->n_fences - 1)->ticket : heap->complete[index];
  lane->is_lost = lane->is_lost || (lane->is_retired && lane->fenced < fence.ticket);
  tarni_lock_release(&heap->lock);
  return fence.ticket;
}

/* Asks for one lane's oldest fence. */
static tarn_status fence_poll(tarn_heap *heap, tarni_index index) {
  tarni_lane *lane = &heap->lanes[index];
  if (tarni_capture_forbids()) {
    return TARN_NOT_READY; /* for all that may be known now */
  }
  TARNI_RELAXED(heap->port); /* nor is one broken of which nobody told */
  const tarn_status status = tarni_port_event_query(heap->port, fence_at(lane, 0)->event);
  if (status == TARN_OK) {
    tarni_lock_acquire(&heap->lock);
    fence_drop_oldest_locked(heap, index);
    tarni_lock_release(&heap->lock);
  }
  const uint64_t ticket = fence_void(heap, index, 0, status);
  if (ticket != 0) {
    TARN_TRY(tarni_lane_fence_grow(heap, index, ticket));
    return TARN_NOT_READY;
  }
  return status;
}

/* A place for one more fence. */
static tarn_status fence_room(tarn_heap *heap, tarni_index index, tarni_fence **fence) {
  tarni_lane *lane = &heap->lanes[index];
  if (lane->n_fences == TARNI_FENCES && !heap->care.is_deterministic) {
    const tarn_status status = fence_poll(heap, index);
    if (status != TARN_NOT_READY) {
      TARN_TRY(status);
    }
  }
  /* Where all are under way the newest one is recorded anew: it proves more, a little later. */
  *fence = fence_at(lane, lane->n_fences == TARNI_FENCES ? TARNI_FENCES - 1 : lane->n_fences);
  return TARN_OK;
}

/* Whether the stream of this name is the lane's. One that was met in a capture may have got no name
 * yet (lane.c). */
static bool lane_is(tarn_heap *heap, const tarni_lane *lane, uint64_t id) {
  tarni_lock_acquire(&heap->lock);
  const bool is_unnamed = lane->stream_id == TARNI_UNNAMED && !heap->care.is_verifying_streams &&
                          (lane->thread == NULL || lane->thread == tarni_thread());
  const bool is = id == lane->stream_id || is_unnamed;
  tarni_lock_release(&heap->lock);
  return is;
}

/* A thread's default stream has a name in that thread only; for others the legacy default stream
 * stands for it, which follows all threads' ones. Where streams are verified, a handle that means
 * another one by now stands for nothing. */
tarn_status tarni_lane_stream(tarn_heap *heap, tarni_index index, tarn_stream *stream) {
  const tarni_lane *lane = &heap->lanes[index];
  const bool is_of_thread = lane->stream == TARNI_STREAM_PER_THREAD;
  *stream = lane->stream;
  if (!is_of_thread && !heap->care.is_verifying_streams) {
    return TARN_OK;
  }
  uint64_t id = 0;
  const tarn_status status = tarni_port_stream_id(heap->port, lane->stream, &id);
  const bool is_it = status == TARN_OK && lane_is(heap, lane, id);
  if (!is_of_thread && !is_it && (status == TARN_OK || status == TARN_INVALID)) {
    return lane_lost(heap, index, "tarn_alloc");
  }
  *stream = is_it ? lane->stream : TARNI_STREAM_LEGACY;
  return status;
}

/* What the lane has freed cannot be had as long as somebody captures: whoever looks next passes it
 * over. So each look finds less, and comes to an end. */
static tarn_status note_captured(tarn_heap *heap, tarni_index index, tarn_status status) {
  if (status == TARN_CAPTURE) {
    tarni_lock_acquire(&heap->lock);
    heap->lanes[index].is_captured = true;
    tarni_lock_release(&heap->lock);
  }
  return status;
}

/* Work on the legacy stream would break captures of streams that synchronise with it; the question
 * is TARN_CAPTURE then, and harms nothing. */
tarn_status tarni_legacy_check(const tarn_heap *heap, tarn_stream stream) {
  tarni_capture_state state;
  return tarni_is_legacy(stream) ? tarni_port_capture_state(heap->port, stream, &state) : TARN_OK;
}

static tarn_status fence_refuse(tarn_heap *heap, const tarni_lane *lane) {
  const tarni_facts facts = {.device = heap->port->device.name};
  tarni_lock_acquire(&heap->lock);
  char name[TARNI_LANE_TEXT];
  (void)tarni_lane_text_locked(lane, name);
  tarni_lock_release(&heap->lock);
  return tarni_fail(TARN_CAPTURE, "tarn_alloc", &facts, "Try again after the capture.",
                    "stream %s is being captured: what it has freed cannot be waited for", name);
}

/* Records the heap's spare event. On a stream that is being captured it becomes a part of the
 * capture, and so would every stream that waits for it, and who asks for it breaks the capture: the
 * question comes after the record, since another thread may begin to capture at any time. The event
 * stays the spare one then, and harms nothing. */
static tarn_status spare_record(tarn_heap *heap, const tarni_lane *lane, tarn_stream stream) {
  tarni_capture_state state = {0};
  if (heap->spare == NULL) {
    TARN_TRY(tarni_port_event_create(heap->port, &heap->spare));
  }
  TARN_TRY(tarni_legacy_check(heap, stream));
  TARN_TRY(tarni_port_event_record(heap->port, heap->spare, stream));
  if (!tarni_is_legacy(stream)) {
    TARN_TRY(tarni_port_capture_state(heap->port, stream, &state));
  }
  return state.status == TARNI_CAPTURE_NONE ? TARN_OK : fence_refuse(heap, lane);
}

/* A fence could not be recorded. Where the lane's stream is still there the error is reported as
 * itself; else nothing can be proven about it any more. */
static tarn_status fence_failed(tarn_heap *heap, tarni_index index, tarn_status status) {
  const tarni_lane *lane = &heap->lanes[index];
  uint64_t id;
  if (status != TARN_INVALID || lane->stream == TARNI_STREAM_PER_THREAD ||
      (tarni_port_stream_id(heap->port, lane->stream, &id) == TARN_OK && lane_is(heap, lane, id))) {
    return status;
  }
  return lane_lost(heap, index, "tarn_alloc");
}

static tarn_status fence_make(tarn_heap *heap, tarni_index index, uint64_t ticket) {
  tarni_lane *lane = &heap->lanes[index];
  tarni_lock_acquire(&heap->lock);
  const bool is_fenced = lane->fenced >= ticket || heap->complete[index] >= ticket;
  const bool is_gone = lane->is_lost || lane->is_retired;
  tarni_lock_release(&heap->lock);
  if (is_fenced) {
    return TARN_OK;
  }
  if (is_gone) {
    return lane_lost(heap, index, "tarn_alloc");
  }
  tarni_fence *fence;
  tarn_stream stream;
  TARN_TRY(tarni_lane_stream(heap, index, &stream));
  TARN_TRY(fence_room(heap, index, &fence));
  tarni_lock_acquire(&heap->lock);
  const uint64_t proven = lane->ticket; /* all that was given back before the record below */
  tarni_lock_release(&heap->lock);
  const tarn_status status = spare_record(heap, lane, stream);
  if (status != TARN_OK) {
    return fence_failed(heap, index, status);
  }
  if (heap->care.is_verifying_streams) { /* another thread may have replaced it before the record */
    TARN_TRY(tarni_lane_stream(heap, index, &stream));
  }
  tarni_lock_acquire(&heap->lock);
  const tarni_event before = fence->event;
  lane->n_fences += fence->ticket == 0;
  *fence = (tarni_fence){.event = heap->spare, .ticket = proven, .number = ++heap->n_fences};
  heap->spare = before;
  lane->fenced = proven;
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

tarn_status tarni_lane_fence_grow(tarn_heap *heap, tarni_index index, uint64_t ticket) {
  return note_captured(heap, index, fence_make(heap, index, ticket));
}

/* The last fence of a stream that goes: it is looked at while another can be made. */
tarn_status tarni_lane_last_fence_grow(tarn_heap *heap, tarni_index index, uint64_t ticket) {
  tarni_lane *lane = &heap->lanes[index];
  TARN_TRY(tarni_lane_fence_grow(heap, index, ticket));
  if (lane->n_fences == 0 || heap->care.is_deterministic || tarni_capture_forbids()) {
    return TARN_OK; /* where it proves nothing, the device will be waited for */
  }
  TARNI_RELAXED(heap->port);
  const uint32_t newest = lane->n_fences - 1;
  const tarn_status status = tarni_port_event_query(heap->port, fence_at(lane, newest)->event);
  return fence_void(heap, index, newest, status) != 0 ? tarni_lane_fence_grow(heap, index, ticket)
                                                      : TARN_OK;
}

tarn_status tarni_order_fence_grow(tarn_heap *heap, const tarni_order *order) {
  for (uint32_t i = 0; i < order->n; i++) {
    TARN_TRY(tarni_lane_fence_grow(heap, order->lanes[i], order->tickets[i]));
  }
  return TARN_OK;
}

/* Room to note what a lane has waited for. */
static tarn_status waited_room(tarn_heap *heap, tarni_lane *lane, tarni_index other) {
  if (other < lane->n_waited) {
    return TARN_OK;
  }
  const uint32_t n = heap->n_lanes + 8;
  uint64_t *waited = realloc(lane->waited, n * sizeof(*waited));
  if (waited == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free some host memory.",
                      "no host memory for the order of %u streams", n);
  }
  memset(waited + lane->n_waited, 0, (n - lane->n_waited) * sizeof(*waited));
  lane->waited = waited;
  lane->n_waited = n;
  return TARN_OK;
}

/* Has the stream wait for what another lane has freed. */
static tarn_status lane_wait(tarn_heap *heap, tarn_stream stream, tarni_index other,
                             tarni_event event) {
  TARN_TRY(tarni_legacy_check(heap, stream)); /* which is not the other one's doing */
  return note_captured(heap, other, tarni_port_event_wait(heap->port, stream, event));
}

/* Whose fault it is that a wait was refused, the stream's or the event's, as the answer that is the
 * event's own. Where a capture forbids that question, a stream that is there has no fault. */
static tarn_status fence_ask(tarn_heap *heap, const tarni_fence *fence, tarn_stream stream) {
  TARNI_RELAXED(heap->port);
  if (!tarni_capture_forbids()) {
    return tarni_port_event_query(heap->port, fence->event);
  }
  uint64_t id;
  const bool is_there = tarni_port_stream_id(heap->port, stream, &id) != TARN_INVALID;
  return is_there ? TARN_INVALID : TARN_NOT_READY;
}

/* Waits for the oldest fence that proves the ticket: the shortest wait. */
static tarn_status fence_wait(tarn_heap *heap, tarni_order_entry entry, tarni_index index) {
  tarni_lane *lane = &heap->lanes[index];
  tarni_lane *other = &heap->lanes[entry.lane];
  uint32_t i = 0;
  TARN_TRY(tarni_lane_fence_grow(heap, entry.lane, entry.ticket));
  while (i < other->n_fences && fence_at(other, i)->ticket < entry.ticket) {
    i++;
  }
  if (i == other->n_fences) {
    return TARN_OK; /* complete by now */
  }
  const tarni_fence fence = *fence_at(other, i);
  const tarn_status status = lane_wait(heap, lane->stream, entry.lane, fence.event);
  if (status == TARN_OK) {
    tarni_lock_acquire(&heap->lock);
    lane->waited[entry.lane] = tarni_max(lane->waited[entry.lane], fence.ticket);
    heap->waits++;
    tarni_lock_release(&heap->lock);
  }
  if (status != TARN_INVALID) {
    return status;
  }
  const tarn_status asked = fence_ask(heap, &fence, lane->stream);
  if (fence_void(heap, entry.lane, i, asked) != 0) {
    return TARN_NOT_READY; /* another one will tell */
  }
  return status;
}

static tarn_status entry_wait(tarn_heap *heap, tarni_order_entry entry, tarni_index index) {
  tarni_lane *lane = &heap->lanes[index];
  tarni_lock_acquire(&heap->lock);
  const bool is_met = entry_is_met(heap, entry, index);
  const tarn_status room = is_met ? TARN_OK : waited_room(heap, lane, entry.lane);
  tarni_lock_release(&heap->lock);
  if (is_met) {
    return TARN_OK;
  }
  TARN_TRY(room);
  for (int i = 0; i <= TARNI_FENCES; i++) { /* all may be void, and need another one */
    const tarn_status status = fence_wait(heap, entry, index);
    if (status != TARN_NOT_READY) {
      return status;
    }
  }
  return note_captured(heap, entry.lane, fence_refuse(heap, &heap->lanes[entry.lane]));
}

tarn_status tarni_order_wait_grow(tarn_heap *heap, const tarni_order *order, tarni_index lane) {
  for (uint32_t i = 0; i < order->n; i++) {
    TARN_TRY(entry_wait(heap, entry_of(order, i), lane));
  }
  return TARN_OK;
}

/* Lanes are added without heap->grow; none ever goes. */
static uint32_t lanes_count(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const uint32_t n = heap->n_lanes;
  tarni_lock_release(&heap->lock);
  return n;
}

bool tarni_fences_poll_grow(tarn_heap *heap) {
  const uint32_t n = heap->care.is_deterministic ? 0 : lanes_count(heap); /* time decides nothing */
  bool is_news = false;
  for (tarni_index i = 1; i < n; i++) {
    while (heap->lanes[i].n_fences != 0) {
      const tarn_status status = fence_poll(heap, i);
      if (status != TARN_OK) {
        break; /* not ready, or not to be asked now (a capture): nothing is known, nothing is lost
                */
      }
      is_news = true;
    }
  }
  return is_news;
}

/* Waits for the lane's oldest fence; where that is void, for the next or another one. */
static bool fence_sync(tarn_heap *heap, tarni_index index) {
  tarni_lane *lane = &heap->lanes[index];
  for (int i = 0; i <= TARNI_FENCES && lane->n_fences != 0; i++) {
    const tarn_status status = tarni_port_event_sync(heap->port, fence_at(lane, 0)->event);
    if (status == TARN_OK) {
      tarni_lock_acquire(&heap->lock);
      fence_drop_oldest_locked(heap, index);
      tarni_lock_release(&heap->lock);
      return true;
    }
    const uint64_t ticket = fence_void(heap, index, 0, status);
    if (ticket == 0 || tarni_lane_fence_grow(heap, index, ticket) != TARN_OK) {
      return false;
    }
  }
  return false;
}

bool tarni_lane_wait_grow(tarn_heap *heap, tarni_index lane) {
  if (tarni_capture_forbids()) {
    return false;
  }
  TARNI_RELAXED(heap->port);
  return fence_sync(heap, lane);
}

/* The lane with the fence that was recorded first, of those that were recorded after another one;
 * 0: there is none. *number becomes that fence's. */
static tarni_index lane_next(tarn_heap *heap, tarni_lane_counts counts, uint64_t *number) {
  tarni_index found = 0;
  uint64_t least = UINT64_MAX;
  tarni_lock_acquire(&heap->lock);
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    tarni_lane *lane = &heap->lanes[i];
    const uint64_t at = lane->n_fences != 0 ? fence_at(lane, 0)->number : UINT64_MAX;
    if (at > *number && at < least && (counts == NULL || counts(heap, i))) {
      least = at;
      found = i;
    }
  }
  tarni_lock_release(&heap->lock);
  *number = least;
  return found;
}

/* What is complete already is not waited for, nor is a stream that may take long while another one
 * is done. Where the wait for one fence fails, the next is tried. */
bool tarni_fences_wait_grow(tarn_heap *heap, tarni_lane_counts counts) {
  uint64_t number = 0;
  if (tarni_capture_forbids()) {
    return false;
  }
  if (tarni_fences_poll_grow(heap)) {
    return true;
  }
  for (;;) {
    const tarni_index lane = lane_next(heap, counts, &number);
    if (lane == 0 || tarni_lane_wait_grow(heap, lane)) {
      return lane != 0;
    }
  }
}

/* ---- All lanes ---- */

/* Gives each lane a ticket and sees to it that a fence for it is under way. */
static tarn_status lanes_fence(tarn_heap *heap, uint32_t n) {
  tarn_status status = TARN_OK;
  for (tarni_index i = 1; i < n; i++) {
    tarni_lane *lane = &heap->lanes[i];
    tarni_lock_acquire(&heap->lock);
    const bool is_used = lane->stream_id != 0;
    lane->goal = is_used ? tarni_ticket_locked(heap, i) : 0;
    tarni_lock_release(&heap->lock);
    const tarn_status fenced = is_used ? tarni_lane_fence_grow(heap, i, lane->goal) : TARN_OK;
    status = status == TARN_OK ? fenced : status;
  }
  return status;
}

static bool lanes_are_complete(const tarn_heap *heap, uint32_t n) {
  for (tarni_index i = 1; i < n; i++) {
    if (heap->complete[i] < heap->lanes[i].goal) {
      return false;
    }
  }
  return true;
}

tarn_status tarni_lanes_finish_grow(tarn_heap *heap) {
  const uint32_t n = lanes_count(heap);
  const tarn_status status = lanes_fence(heap, n);
  tarn_error error = {.size = sizeof(error)};
  if (status != TARN_OK) {
    (void)tarn_last_error(&error);
  }
  for (tarni_index i = 1; i < n && status != TARN_DEVICE_LOST; i++) {
    while (tarni_lane_wait_grow(heap, i)) {
    }
  }
  if (status == TARN_DEVICE_LOST || lanes_are_complete(heap, n)) {
    return status;
  }
  const tarn_status awaited =
      tarni_device_await(heap); /* a stream is gone or broken: wait for all */
  if (awaited != TARN_OK) {     /* a full device is no reason that helps anybody */
    const bool is_full = awaited == TARN_DEVICE_MEMORY && status != TARN_OK;
    return is_full ? tarni_fail_again(&error) : awaited;
  }
  tarni_lock_acquire(&heap->lock);
  for (tarni_index i = 1; i < n; i++) {
    heap->complete[i] = tarni_max(heap->complete[i], heap->lanes[i].goal);
  }
  heap->n_news++;
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

static tarn_status lane_fences_close(tarn_heap *heap, tarni_lane *lane) {
  for (uint32_t i = 0; i < TARNI_FENCES; i++) {
    tarni_fence *fence = &lane->fences[i];
    if (fence->event != NULL) {
      TARN_TRY(tarni_port_event_destroy(heap->port, fence->event));
    }
    *fence = (tarni_fence){0};
  }
  lane->n_fences = 0;
  return TARN_OK;
}

tarn_status tarni_fences_close(tarn_heap *heap) {
  const uint32_t n = lanes_count(heap);
  for (tarni_index i = 1; i < n; i++) {
    TARN_TRY(lane_fences_close(heap, &heap->lanes[i]));
  }
  if (heap->spare != NULL) {
    TARN_TRY(tarni_port_event_destroy(heap->port, heap->spare));
    heap->spare = NULL;
  }
  return TARN_OK;
}

void tarni_lanes_close(tarn_heap *heap) {
  for (tarni_index i = 0; heap->lanes != NULL && i < heap->n_lanes; i++) {
    free(heap->lanes[i].waited);
  }
  free(heap->lanes);
  free(heap->complete);
}
