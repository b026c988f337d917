/* SPDX-License-Identifier: MIT
 *
 * The ladder: what is tried, in which order, when there is no room for an allocation. Each step is
 * taken only if the one before did not help. Only true shortage climbs it: any other error of the
 * driver is reported as itself, unless there is room after all. What it has against waiting and
 * giving back leaves a shortage, and is what is reported where nobody helps.
 *
 *   views      free ends of chunks that are mapped side by side already: no driver call at all
 *   complete   fences that are complete by now; what waited for them is free, single blocks too
 *   collect    slabs of this lane with no live block, those in the thread's own cache too
 *   apart      where streams are parted (rest.c), a view of what the lane has itself, and as much
 *              new memory as was earned (policy `always`)
 *   steal      what other lanes have freed, behind a GPU-side wait (policy `always`)
 *   ask        what other lanes have freed, if that is most of what is held: when it is complete
 *   grow       new chunks or, where enough is held, a new view of what is free
 *   anywhere   room that is there, if not where the block is best begun (before `steal` with policy
 *              `always`, and after any failure)
 *   others     the caches of all threads, the slabs of all lanes
 *   steal      (policy `when short`), and idle chunks and single blocks of other lanes
 *   trim       idle chunks that do not fit anywhere go back to the device, which may have others
 *   wait       on the host, for the oldest fence behind which there is room, or the oldest of all,
 *              and in the end for all work of all streams
 *   call       the owner's callback */
#include "base/bits.h"
#include "bucket.h"
#include "debug.h"
#include "room.h"

enum { SHORTAGE_LEAST_ALIASES = 1024 };

typedef struct shortage {
  tarn_heap *heap;
  tarni_cache *cache;
  const tarni_need *need;
  tarni_need urgent;      /* the same under true shortage, when nothing is wished for */
  tarn_stealing stealing; /* the policy, as far as the stream may wait for others */
  tarni_index extent;     /* found */
  bool is_out;            /* a stream's memory could not be had: it is captured, or gone */
  uint32_t n_lost;        /* streams that are known to be gone */
  uint64_t least_held;    /* the least that was held after a trim: more was made since, in vain */
  tarn_error cause;       /* what the last step that needs the driver said */
  tarn_error trouble;     /* what the driver had against waiting, or giving memory back */
} shortage;

/* Addresses count: those of zombies come back. */
static bool is_shortage(tarn_status status) {
  return status == TARN_DEVICE_MEMORY || status == TARN_LIMIT || status == TARN_ADDRESS_SPACE;
}

static bool has_block_locked(const tarn_heap *heap, tarni_index lane, uint32_t class_index) {
  return class_index != TARNI_CLASS_COUNT && heap->lanes[lane].bins[class_index].n != 0;
}

/* Whether there is room by now that takes no driver call: single blocks in a bin, or an extent. */
static bool try_ready(shortage *at) {
  tarn_heap *heap = at->heap;
  const tarni_need *need = at->need;
  tarni_lock_acquire(&heap->lock);
  const bool has_block = has_block_locked(heap, need->lane, need->class_index) ||
                         has_block_locked(heap, TARNI_LANE_COMMON, need->class_index);
  at->extent = has_block ? 0 : tarni_chunk_ready_locked(heap, need);
  tarni_lock_release(&heap->lock);
  return has_block || at->extent != 0;
}

/* Room at the alignment that is a must, where there is none at the one that is wished for. */
static bool try_ready_anywhere(shortage *at) {
  const tarni_need *wished = at->need;
  tarni_need must = *wished;
  must.alignment = must.least;
  at->need = &must;
  const bool is_there = wished->alignment != wished->least && try_ready(at);
  at->need = wished;
  return is_there;
}

/* Lanes of retired streams whose work is complete: what they hold is everybody's. */
static void settle_retired(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    tarni_lane *lane = &heap->lanes[i];
    if (lane->is_retired && lane->stream_id != 0 && heap->complete[i] >= lane->ticket) {
      if (heap->buckets == NULL) {
        tarni_lane_settle_locked(heap, i);
      }
      lane->stream_id = 0;
    }
  }
  tarni_lock_release(&heap->lock);
}

void tarni_shortage_note_grow(tarn_heap *heap) {
  (void)tarni_fences_poll_grow(heap);
  tarni_uses_reap_grow(heap);
  /* Where nobody asks, what several streams used comes back by waiting. */
  while (heap->care.is_deterministic && tarni_uses_wait_grow(heap)) {
    tarni_uses_reap_grow(heap);
  }
  settle_retired(heap); /* with what is known by now */
}

void tarni_shortage_reap_grow(tarn_heap *heap) {
  tarni_shortage_note_grow(heap);
  /* What the driver refuses now it may take the next time. */
  (void)(heap->buckets != NULL ? tarni_grants_reap_grow(heap) : tarni_chunk_reap_grow(heap));
}

static void collect_own(shortage *at, bool is_thorough) {
  tarn_heap *heap = at->heap;
  tarni_lock_acquire(&heap->lock);
  if (is_thorough) { /* other threads may have what the stream has freed */
    tarni_cache_empty_all_locked(heap, at->cache->lane, false);
  }
  tarni_cache_drop_large_locked(heap, at->cache);
  tarni_shelf_drop_locked(heap, at->cache);
  if (is_thorough || !tarni_rest_is_eased_locked(heap, at->need->size)) {
    (void)tarni_cache_collect_locked(heap, at->cache, is_thorough);
  }
  tarni_lock_release(&heap->lock);
}

static void collect_all(shortage *at) {
  tarn_heap *heap = at->heap;
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_slab_collect_all_locked(heap);
  tarni_lock_release(&heap->lock);
}

static uint32_t lost_count(tarn_heap *heap) {
  uint32_t n = 0;
  tarni_lock_acquire(&heap->lock);
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    n += heap->lanes[i].is_lost;
  }
  tarni_lock_release(&heap->lock);
  return n;
}

/* What a stream has freed that is captured, or was just found to be gone, cannot be had now: that
 * is no failure, there is just less. A fixed heap takes nothing from streams: there it is growth
 * that a capture forbids. */
static tarn_status keep_cause(shortage *at, tarn_status status) {
  const uint32_t n_lost = status == TARN_STATE ? lost_count(at->heap) : at->n_lost;
  if ((status == TARN_CAPTURE && !at->heap->is_fixed) || n_lost > at->n_lost) {
    at->n_lost = n_lost;
    at->is_out = true;
    return TARN_OK;
  }
  if (is_shortage(status)) {
    at->cause.size = sizeof(at->cause);
    (void)tarn_last_error(&at->cause);
  }
  return status;
}

static tarn_status try_steal(shortage *at) {
  return keep_cause(at, tarni_chunk_steal_grow(at->heap, at->need, &at->extent));
}

/* Whether a growth failed for want of what aliases take: mappings, and records. */
static bool is_unmapped(const tarn_heap *heap, tarn_status status) {
  return status == TARN_HOST_MEMORY || (status != TARN_OK && heap->is_map_refused);
}

/* Waits for what uses mappings that are to be dropped. Whether any may have gone. */
static bool await_zombie(tarn_heap *heap) {
  const uint64_t n_unmapped = heap->n_unmapped;
  const bool has_waited = tarni_zombies_wait_grow(heap);
  tarni_shortage_reap_grow(heap);
  return has_waited || heap->n_unmapped != n_unmapped;
}

/* There is no memory for one more mapping: aliases go, and the oftener that happens, the fewer are
 * kept. A process has 65530 mappings of the simulated GPU's, where Linux is as it comes. What still
 * uses them is waited for. */
static tarn_status grow_unmapped(shortage *at, bool may_steal) {
  tarn_heap *heap = at->heap;
  tarn_error error = {.size = sizeof(error)}; /* of growing, whatever fails after it */
  (void)tarn_last_error(&error);
  tarni_lock_acquire(&heap->lock);
  const uint64_t n = heap->n_aliases, fewer = tarni_max(n - n / 4, heap->max_aliases / 2);
  tarni_lock_release(&heap->lock);
  bool may_help = tarni_chunk_unalias_grow(heap);
  tarni_lock_acquire(&heap->lock);
  if (heap->n_aliases < n && heap->is_map_refused) {
    tarni_rest_drop_locked(heap);
    heap->max_aliases = (uint32_t)tarni_max(fewer, SHORTAGE_LEAST_ALIASES);
  }
  tarni_lock_release(&heap->lock);
  may_help = may_help || await_zombie(heap);
  while (may_help) {
    error.status = tarni_grow(heap, at->need, may_steal, &at->extent);
    if (error.status == TARN_OK) {
      return TARN_OK;
    }
    (void)tarn_last_error(&error);
    may_help = is_unmapped(heap, error.status) && await_zombie(heap);
  }
  return tarni_fail_again(&error);
}

/* Where addresses or mappings are short, those come back that chunks have but do not use. */
static tarn_status try_grow(shortage *at, bool may_steal) {
  tarn_status status = tarni_grow(at->heap, at->need, may_steal, &at->extent);
  if (is_unmapped(at->heap, status)) {
    status = grow_unmapped(at, may_steal);
  }
  if (status == TARN_ADDRESS_SPACE && tarni_chunk_unalias_grow(at->heap)) {
    status = tarni_grow(at->heap, at->need, may_steal, &at->extent);
  }
  return keep_cause(at, status);
}

/* Nothing that other streams have freed. Whatever is against that is no reason to fail: they have
 * some, or the steps after this one say so. */
static void try_grow_apart(shortage *at) {
  if (tarni_rest_is_parted(at->heap)) {
    (void)tarni_grow_apart(at->heap, at->need, &at->extent);
  }
}

/* A bin of another lane with blocks of the class, taken out of sight, and the order that they are
 * free in. False: there is none. */
static bool bin_detach(shortage *at, tarni_bin *bin, tarni_order *order) {
  tarn_heap *heap = at->heap;
  bool is_found = false;
  tarni_lock_acquire(&heap->lock);
  for (tarni_index i = 1; i < heap->n_lanes && !is_found; i++) {
    tarni_lane *lane = &heap->lanes[i];
    is_found =
        has_block_locked(heap, i, at->need->class_index) && !lane->is_lost && !lane->is_captured;
    if (is_found) {
      *bin = lane->bins[at->need->class_index];
      lane->bins[at->need->class_index] = (tarni_bin){0};
      *order = (tarni_order){0};
      (void)tarni_order_add(order, i, tarni_ticket_locked(heap, i));
    }
  }
  tarni_lock_release(&heap->lock);
  return is_found;
}

/* Single blocks that another lane has freed, behind a GPU-side wait. */
static tarn_status steal_blocks(shortage *at, bool *is_stolen) {
  tarn_heap *heap = at->heap;
  tarni_bin bin;
  tarni_order order;
  *is_stolen = bin_detach(at, &bin, &order);
  if (!*is_stolen) {
    return TARN_OK;
  }
  const tarn_status status = tarni_order_wait_grow(heap, &order, at->need->lane);
  tarni_lock_acquire(&heap->lock);
  tarni_bin_attach_locked(heap, status == TARN_OK ? at->need->lane : order.lanes[0],
                          at->need->class_index, &bin);
  tarni_lock_release(&heap->lock);
  *is_stolen = status == TARN_OK;
  return keep_cause(at, status);
}

/* Whether the heap is so small that it grows before it looks through caches and slabs. */
static bool is_cheap(shortage *at) {
  tarni_lock_acquire(&at->heap->lock);
  const bool is = tarni_grow_is_cheap_locked(at->heap, at->need->size);
  tarni_lock_release(&at->heap->lock);
  return is;
}

/* The step that takes no driver call: in a program that repeats itself, the only one. Where streams
 * are parted (rest.c) that is to be so soon, wherever blocks begin. */
static bool find_quietly(shortage *at, bool is_thorough) {
  if (!is_thorough && is_cheap(at)) {
    return false;
  }
  collect_own(at, is_thorough);
  return try_ready(at) || tarni_grow_quietly(at->heap, at->need, &at->extent) ||
         (tarni_rest_is_parted(at->heap) && try_ready_anywhere(at));
}

/* The same where no other step may be taken; else the error that says so. */
static tarn_status find_thoroughly(shortage *at) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  return find_quietly(at, true) ? TARN_OK : tarni_fail_again(&error);
}

/* The steps that need nothing from anybody else. */
static tarn_status climb_alone(shortage *at) {
  const bool may_steal = at->stealing == TARN_STEAL_ALWAYS;
  tarni_shortage_reap_grow(at->heap);
  if (try_ready(at)) {
    return TARN_OK;
  }
  if (is_cheap(at)) {
    const tarn_status status = try_grow(at, false);
    if (!is_shortage(status)) {
      return status;
    }
  }
  collect_own(at, false);
  if (try_ready(at)) {
    return TARN_OK;
  }
  if (may_steal) {
    if (try_ready_anywhere(at)) { /* rather than to wait for another stream */
      return TARN_OK;
    }
    try_grow_apart(at);
    if (at->extent != 0) {
      return TARN_OK;
    }
    collect_all(at);
    TARN_TRY(try_steal(at));
    if (at->extent != 0) {
      return TARN_OK;
    }
  } else if (tarni_hoard_ask_grow(at->heap, at->need->lane) && try_ready(at)) {
    return TARN_OK;
  }
  return try_grow(at, may_steal);
}

/* A capture that is in the way is no trouble: there is just less. */
static void note_trouble(shortage *at, tarn_status status) {
  at->trouble = (tarn_error){.size = sizeof(at->trouble)};
  if (status != TARN_OK && status != TARN_CAPTURE) {
    (void)tarn_last_error(&at->trouble);
  }
}

/* Whether there is room behind the lane for what is asked for: free, with chunks that leave, or as
 * a block that it used. */
static bool has_room_locked(const tarn_heap *heap, tarni_index lane) {
  uint64_t most = tarni_zombies_bytes_locked(heap, lane);
  for (uint32_t zone = 0; zone < TARNI_ZONE_VIEWS; zone++) {
    most = tarni_max(most, heap->extents[heap->zones[zone].trees[1 + lane]].largest);
  }
  return tarni_max(most, tarni_uses_largest_locked(heap, lane)) >= heap->short_bytes;
}

/* Trims, and waits for a fence unless that has helped, or one is complete by now: for one behind
 * which there is room, if there is any. False: nothing has changed. */
static bool make_room(shortage *at) {
  tarn_heap *heap = at->heap;
  const uint64_t held = heap->reserved_bytes, n_news = heap->n_news;
  heap->short_bytes = at->need->size;
  note_trouble(at, tarni_chunk_trim_ready_grow(heap, held - tarni_min(held, at->need->size)));
  const uint64_t left = heap->reserved_bytes;
  const bool is_news = left < tarni_min(held, at->least_held) || heap->n_news != n_news;
  at->least_held = tarni_min(at->least_held, left);
  const bool has_waited = !is_news && (tarni_fences_wait_grow(heap, has_room_locked) ||
                                       tarni_fences_wait_grow(heap, NULL));
  tarni_shortage_reap_grow(heap);
  return is_news || has_waited;
}

static bool has_any_block_locked(const tarn_heap *heap, tarni_index lane) {
  bool has = false;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT && !has; i++) {
    has = has_block_locked(heap, lane, i);
  }
  return has;
}

/* Whether other streams have freed or used anything that is not known to be complete, wherever and
 * of whatever size, or a mapping waits for that: once it is complete it may come together. */
static bool has_freed(shortage *at) {
  tarn_heap *heap = at->heap;
  const tarni_index *trees[2] = {heap->zones[0].trees, heap->zones[1].trees};
  tarni_lock_acquire(&heap->lock);
  bool is = trees[0][1 + heap->max_lanes] != 0 || trees[1][1 + heap->max_lanes] != 0 ||
            heap->zombies != 0 || heap->pending != NULL;
  for (tarni_index i = 1; i < heap->n_lanes && !is; i++) {
    is = i != at->need->lane &&
         (trees[0][1 + i] != 0 || trees[1][1 + i] != 0 || has_any_block_locked(heap, i));
  }
  tarni_lock_release(&heap->lock);
  return is;
}

/* Makes room as long as there is any to be made. */
static tarn_status climb_room(shortage *at, tarn_status status) {
  const bool may_steal = at->stealing != TARN_STEAL_NEVER;
  while (is_shortage(status) && make_room(at)) {
    collect_all(at);
    status = try_ready(at) ? TARN_OK : try_grow(at, may_steal);
  }
  return status;
}

/* All work of all streams is awaited, unless a capture forbids that, or a stream is gone: then this
 * is all there is. */
static tarn_status climb_settled(shortage *at, tarn_status status) {
  const tarn_status settled = tarni_heap_settle_grow(at->heap);
  note_trouble(at, settled);
  tarni_shortage_reap_grow(at->heap); /* what several streams used has come back by now */
  collect_all(at);
  if (try_ready(at)) { /* also where not all could be awaited */
    return TARN_OK;
  }
  if (settled != TARN_OK) {
    return status;
  }
  return climb_room(at, try_grow(at, at->stealing != TARN_STEAL_NEVER));
}

/* The steps under true shortage. */
static tarn_status climb_together(shortage *at, tarn_status status) {
  tarn_heap *heap = at->heap;
  const bool may_steal = at->stealing != TARN_STEAL_NEVER;
  tarni_quarantine_drain_grow(heap);
  at->urgent = *at->need;
  at->urgent.is_short = true;
  at->urgent.alignment = at->need->least;
  at->need = &at->urgent;
  collect_all(at);
  if (try_ready(at)) {
    return TARN_OK;
  }
  if (may_steal) {
    TARN_TRY(try_steal(at));
    if (at->extent != 0) {
      return TARN_OK;
    }
  }
  status = try_grow(at, may_steal);
  if (is_shortage(status) && may_steal) {
    bool is_stolen;
    TARN_TRY(steal_blocks(at, &is_stolen));
    status = is_stolen ? TARN_OK : status;
  }
  at->trouble.status = TARN_OK;
  at->least_held = UINT64_MAX;
  status = climb_room(at, status);
  const bool may_settle = /* also where a stream is gone: the device is waited for then */
      at->trouble.status == TARN_OK || at->trouble.status == TARN_STATE;
  return is_shortage(status) && may_settle && has_freed(at) ? climb_settled(at, status) : status;
}

/* What the caller gets for its request: a small one does not get all of what is needed for it. */
static uint64_t block_bytes(const tarni_need *need) {
  return need->class_index != TARNI_CLASS_COUNT ? tarni_class_size(need->class_index) : need->size;
}

static const char *shortage_hint(const tarn_heap *heap, const tarn_heap_stats *stats) {
  if (stats->limit_bytes >= heap->port->device.total_bytes) {
    return "Free blocks, or memory of others that use the device.";
  }
  return heap->buckets == NULL && stats->limit_bytes < heap->unit
             ? "Raise the limit: memory comes in chunks, which are larger than that."
             : "Free blocks, trim other heaps, or raise the limit.";
}

/* The error with all the numbers. The driver's own code is kept from the error before it. */
static tarn_status shortage_fail(tarn_heap *heap, tarn_status status, uint64_t bytes,
                                 const tarn_error *cause) {
  tarn_heap_stats stats = {.size = sizeof(stats)};
  (void)tarn_heap_get_stats(heap, &stats);
  const uint64_t largest = stats.largest_free_bytes;
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = bytes,
                             .available_bytes = largest,
                             .driver_code = cause->driver_code,
                             .driver_name = cause->driver_name};
  return tarni_fail(status, "tarn_alloc", &facts, shortage_hint(heap, &stats),
                    "no room for %llu bytes: live %llu, cached %llu, pending %llu, held %llu of "
                    "at most %llu, largest free %llu%s%s",
                    (unsigned long long)bytes, (unsigned long long)stats.live_bytes,
                    (unsigned long long)stats.cached_bytes, (unsigned long long)stats.pending_bytes,
                    (unsigned long long)stats.reserved_bytes, (unsigned long long)stats.limit_bytes,
                    (unsigned long long)largest,
                    cause->driver_name[0] != '\0' ? "; the driver said " : "", cause->driver_name);
}

/* A broken device lets nothing be given back, which looks like shortage. */
tarn_status tarni_shortage_report(tarn_heap *heap, tarn_status status, uint64_t bytes,
                                  const tarn_error *cause) {
  uint64_t free_bytes, total_bytes;
  const bool is_lost = tarni_port_info(heap->port, &free_bytes, &total_bytes) == TARN_DEVICE_LOST;
  return is_lost ? TARN_DEVICE_LOST : shortage_fail(heap, status, bytes, cause);
}

bool tarni_shortage_is_beyond_locked(const tarn_heap *heap, uint64_t size) {
  return size > tarni_max(heap->limit_bytes, heap->reserved_bytes);
}

static bool is_beyond(shortage *at) {
  tarn_heap *heap = at->heap;
  tarni_lock_acquire(&heap->lock);
  const bool is = tarni_shortage_is_beyond_locked(heap, at->need->size);
  tarni_lock_release(&heap->lock);
  return is;
}

/* All steps but the first make calls that would break a capture of the stream. One that is
 * announced does not come here. */
tarn_status tarni_shortage_stream_check(tarn_heap *heap, tarni_index lane) {
  tarni_capture_state state = {0};
  const tarn_stream stream = heap->lanes[lane].stream;
  if (!tarni_is_legacy(stream) && lane != TARNI_LANE_COMMON) {
    TARN_TRY(tarni_port_capture_state(heap->port, stream, &state));
  }
  if (state.status == TARNI_CAPTURE_NONE) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_CAPTURE, "tarn_alloc", &facts,
                    "Announce it with tarn_capture_begin, or have every allocation ask "
                    "(TARN_ASK_CAPTURES).",
                    "the stream is being captured (capture %llu), and nobody told the heap",
                    (unsigned long long)state.id);
}

tarn_stealing tarni_shortage_stealing(const tarn_heap *heap, tarni_index lane) {
  return tarni_legacy_check(heap, heap->lanes[lane].stream) == TARN_OK ? heap->config.stealing
                                                                       : TARN_STEAL_NEVER;
}

/* What is in the way of one stream's memory is not in the way of all: those streams are marked, and
 * the next climb goes without them. There are not more climbs than streams. */
static tarn_status climb_on(shortage *at) {
  for (uint32_t i = 0; i < at->heap->max_lanes; i++) {
    at->is_out = false;
    at->stealing = tarni_shortage_stealing(at->heap, at->need->lane);
    tarn_status status = climb_alone(at);
    if (is_shortage(status) && try_ready_anywhere(at)) {
      return TARN_OK;
    }
    if (is_shortage(status)) {
      status = climb_together(at, status);
    }
    if (status != TARN_OK || at->extent != 0 || !at->is_out || try_ready(at)) {
      return status;
    }
  }
  return TARN_DEVICE_MEMORY;
}

static tarn_status climb(shortage *at) {
  TARN_TRY(tarni_sleep_refuse(at->heap, "tarn_alloc")); /* it may have gone to sleep meanwhile */
  if (is_beyond(at)) {
    return tarni_heap_limit(at->heap) < at->heap->port->device.total_bytes ? TARN_LIMIT
                                                                           : TARN_DEVICE_MEMORY;
  }
  if (find_quietly(at, false)) {
    return TARN_OK;
  }
  tarn_status status = tarni_shortage_stream_check(at->heap, at->need->lane);
  if (status != TARN_OK) {
    status = find_thoroughly(at);
  } else {
    tarni_lock_acquire(&at->heap->lock);
    tarni_lanes_ask_again_locked(at->heap); /* captures of which nobody told end likewise */
    tarni_lock_release(&at->heap->lock);
    at->n_lost = lost_count(at->heap);
    status = climb_on(at);
  }
  return status != TARN_OK && try_ready_anywhere(at) ? TARN_OK : status;
}

/* The stream was retired before: the lane may be another's. */
static bool is_dead(shortage *at) {
  tarni_lock_acquire(&at->heap->lock);
  const bool is = tarni_cache_is_dead(at->cache);
  tarni_lock_release(&at->heap->lock);
  return is;
}

/* Asks the owner, and whether to try again. */
static bool owner_helps(tarn_heap *heap, uint64_t bytes) {
  if (heap->config.on_shortage == NULL) {
    return false;
  }
  tarni_caches_keep(true);
  const bool is_helped = heap->config.on_shortage(heap, bytes, heap->config.on_shortage_user);
  tarni_caches_keep(false);
  return is_helped;
}

/* post: TARN_OK and *extent is BUSY and the caller's, or 0: look into the bins again, unless the
 * cache is dead. */
tarn_status tarni_shortage_obtain(tarn_heap *heap, tarni_cache *cache, const tarni_need *need,
                                  tarni_index *extent) {
  shortage at = {.heap = heap, .cache = cache, .need = need};
  tarn_status status;
  *extent = 0;
  for (;;) {
    tarni_captures_reap(heap);
    tarni_lock_acquire(&heap->grow);
    status = is_dead(&at) ? TARN_OK : climb(&at);
    tarni_lock_release(&heap->grow);
    if (!is_shortage(status)) {
      break;
    }
    if (!tarni_captures_finish(heap) && !owner_helps(heap, block_bytes(need))) {
      break;
    }
  }
  *extent = at.extent;
  if (is_shortage(status) && at.trouble.status != TARN_OK) {
    return tarni_fail_again(&at.trouble);
  }
  return is_shortage(status) ? tarni_shortage_report(heap, status, block_bytes(need), &at.cause)
                             : status;
}
