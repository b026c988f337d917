/* SPDX-License-Identifier: MIT
 *
 * Sleep: a heap gives its physical memory back and keeps every address. Chunks keep their records
 * and their places, without a handle and without a mapping; extents, slabs and blocks stay as they
 * are. What is free goes to the device for good before, so that only chunks under live blocks come
 * back. Content is saved block by block into one piece of pinned memory, where that is asked for.
 *
 * Invariant: for each place of a chunk the nap knows whether it is mapped there, and the chunk
 * itself knows whether it has memory. Falling asleep and waking go from any such state to the end
 * that they are after, so both can fail at any call, and be undone or tried again.
 *
 * The heap is watched while it sleeps (watch.c): no call is a hit. Frees only change the books; the
 * slow path needs nothing mapped for them. No other call may be under way while the heap falls
 * asleep or wakes: the states of blocks are read.
 *
 * Locks: heap->capture, for blocks that graphs hold, and heap->grow throughout, heap->lock for each
 * change of the books. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/text.h"
#include "debug.h"
#include "room.h"

typedef struct nap_piece { /* one block that is live, or that a graph holds */
  uint64_t offset, bytes;
  uint64_t at;  /* in what is saved */
  bool is_held; /* as far as was last seen */
} nap_piece;

typedef struct tarni_nap {
  tarn_sleep_content content;
  bool has_mapped;     /* the set is there */
  tarni_bitset mapped; /* the first units of places that are */
  uint32_t n_chunks;
  nap_piece *pieces; /* by offset */
  uint64_t n_pieces, max_pieces;
  uint8_t *saved;  /* pinned; NULL: nothing */
  bool is_saved;   /* all content is in there */
  bool is_copying; /* copies may be under way: chunks stay, and the heap asleep, until they end */
  void *page;      /* pinned; what was taken to wait for the device, and not given back yet */
} tarni_nap;

/* ---- Refusals ---- */

tarn_status tarni_sleep_refuse(const tarn_heap *heap, const char *operation) {
  if (!tarni_is_asleep(heap)) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_STATE, operation, &facts, "Wake it first (tarn_heap_wake).",
                    "the heap is asleep");
}

static tarn_status sleep_check(const tarn_heap *heap, tarn_sleep_content content) {
  const tarni_facts facts = {.device = heap->port->device.name};
  if (content != TARN_SLEEP_SAVE && content != TARN_SLEEP_DROP) {
    return tarni_fail(TARN_INVALID, "tarn_heap_sleep", &facts,
                      "Use one of tarn_sleep_content's values.", "content is %d", (int)content);
  }
  if (heap->buckets != NULL || heap->is_fixed) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_sleep", &facts,
                      "Use a heap of backing vmm and rounding classes.",
                      "a heap whose blocks are the driver's own allocations cannot keep their "
                      "addresses");
  }
  return TARN_OK;
}

static tarn_status capture_refuse(const tarn_heap *heap, const char *what, const char *which) {
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_CAPTURE, "tarn_heap_sleep", &facts,
                    "End the capture before the heap goes to sleep.", what, which);
}

/* A stream that is being captured cannot be waited for, and a capture may keep the default stream,
 * on which content is saved and filled. */
static tarn_status captures_refuse(tarn_heap *heap, tarn_sleep_content content) {
  const uint32_t n = atomic_load_explicit(&heap->n_captures, memory_order_relaxed);
  if (n > heap->care.is_asking_captures) {
    char number[TARNI_TEXT_NUMBER];
    (void)snprintf(number, sizeof(number), "%u", n - heap->care.is_asking_captures);
    return capture_refuse(heap, "%s captures of the heap go on", number);
  }
  if (content == TARN_SLEEP_SAVE || heap->care.is_secure) {
    TARN_TRY(tarni_legacy_check(heap, TARNI_STREAM_LEGACY));
  }
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    tarni_lock_acquire(&heap->lock);
    const tarni_lane lane = heap->lanes[i];
    char name[TARNI_LANE_TEXT];
    (void)tarni_lane_text_locked(&lane, name);
    tarni_lock_release(&heap->lock);
    tarni_capture_state state = {0};
    if (lane.stream_id == 0 || lane.is_retired || lane.is_lost) {
      continue;
    }
    const tarn_status status = tarni_port_capture_state(heap->port, lane.stream, &state);
    if (status != TARN_OK && status != TARN_INVALID) { /* gone: it is not being captured */
      return status;
    }
    if (state.status != TARNI_CAPTURE_NONE) {
      return capture_refuse(heap, "stream %s is being captured and cannot be waited for", name);
    }
  }
  return TARN_OK;
}

/* ---- Waiting and collecting ---- */

/* Pinned memory is given back only when all work of the device is complete. */
static tarn_status device_await_all(tarn_heap *heap, tarni_nap *nap) {
  TARNI_RELAXED(heap->port);
  if (nap->page == NULL) {
    TARN_TRY(tarni_port_host_alloc(heap->port, TARNI_GRANULE, 0, &nap->page));
  }
  TARN_TRY(tarni_port_host_free(heap->port, nap->page));
  nap->page = NULL;
  return TARN_OK;
}

/* All work is complete: so is what lanes have freed, and nothing waits for anything. */
static void collect_complete(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    heap->complete[i] = heap->lanes[i].ticket;
  }
  heap->n_news++;
  tarni_lock_release(&heap->lock);
  tarni_uses_reap_grow(heap);
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    heap->complete[i] = heap->lanes[i].ticket; /* emptying a cache takes tickets */
    tarni_lane_settle_locked(heap, i);
  }
  heap->n_news++;
  tarni_slab_collect_all_locked(heap);
  tarni_lock_release(&heap->lock);
}

/* ---- Content ---- */

static void piece_add(void *user, uint64_t offset, uint64_t bytes) {
  tarni_nap *nap = user;
  tarn_assert(nap->n_pieces < nap->max_pieces);
  nap->pieces[nap->n_pieces++] = (nap_piece){.offset = offset, .bytes = bytes};
}

static int piece_compare(const void *a, const void *b) {
  const uint64_t offset = ((const nap_piece *)a)->offset, other = ((const nap_piece *)b)->offset;
  return (offset > other) - (offset < other);
}

static void live_find_locked(tarn_heap *heap, tarni_nap *nap) {
  for (uint32_t zone = 0; zone < TARNI_ZONES; zone++) {
    for (tarni_index i = heap->zones[zone].head; i != 0; i = heap->extents[i].next) {
      const tarni_extent *slab = tarni_extent_at(heap, i);
      const bool is_large = slab->class_index == TARNI_CLASS_COUNT;
      if (slab->kind != TARNI_EXTENT_SLAB) {
        continue;
      }
      if (is_large && slab->state == TARNI_BLOCK_LIVE) {
        piece_add(nap, slab->offset, tarni_large_bytes(slab));
      }
      const uint64_t bytes = (uint64_t)slab->block_bytes_256 << 8;
      for (uint64_t j = 0; !is_large && j < slab->n_blocks; j++) {
        const uint64_t offset = slab->offset + j * bytes;
        if (heap->states[offset >> 8] != 0) {
          piece_add(nap, offset, bytes);
        }
      }
    }
  }
}

static void pieces_find_locked(tarn_heap *heap, tarni_nap *nap) {
  live_find_locked(heap, nap);
  const uint64_t n_live = nap->n_pieces;
  tarni_graphs_each_locked(heap, piece_add, nap);
  if (nap->n_pieces != n_live) {
    qsort(nap->pieces, nap->n_pieces, sizeof(*nap->pieces), piece_compare);
  }
  for (uint64_t i = 1; i < nap->n_pieces; i++) {
    nap->pieces[i].at = nap->pieces[i - 1].at + nap->pieces[i - 1].bytes;
  }
}

static void piece_mark(void *user, uint64_t offset, uint64_t bytes) {
  tarni_nap *nap = user;
  const nap_piece key = {.offset = offset, .bytes = bytes};
  nap_piece *found = bsearch(&key, nap->pieces, nap->n_pieces, sizeof(key), piece_compare);
  if (found != NULL) {
    found->is_held = true;
  }
}

/* Looks which pieces graphs hold now: they may have gone meanwhile. */
static void held_look(tarn_heap *heap, tarni_nap *nap) {
  for (uint64_t i = 0; i < nap->n_pieces; i++) {
    nap->pieces[i].is_held = false;
  }
  tarni_lock_acquire(&heap->lock);
  tarni_graphs_each_locked(heap, piece_mark, nap);
  tarni_lock_release(&heap->lock);
}

static bool piece_is_needed_locked(const tarn_heap *heap, const nap_piece *piece) {
  tarni_block block = {0};
  return piece->is_held || (tarni_block_find_locked(heap, piece->offset, &block) && block.is_live &&
                            block.offset == piece->offset);
}

/* The pieces from `first` on that lie side by side and are still needed: how many, and their bytes.
 */
static uint64_t pieces_run(tarn_heap *heap, const tarni_nap *nap, uint64_t first, uint64_t *bytes) {
  uint64_t n = 0;
  *bytes = 0;
  tarni_lock_acquire(&heap->lock);
  for (const nap_piece *piece = &nap->pieces[first];
       first + n < nap->n_pieces && piece->offset == nap->pieces[first].offset + *bytes &&
       piece_is_needed_locked(heap, piece);
       piece++) {
    *bytes += piece->bytes;
    n++;
  }
  tarni_lock_release(&heap->lock);
  return n;
}

/* Waits for the copies that may be under way. */
static tarn_status copies_await(tarn_heap *heap, tarni_nap *nap) {
  if (nap->is_copying) {
    TARN_TRY(tarni_legacy_check(heap, TARNI_STREAM_LEGACY));
    TARNI_RELAXED(heap->port);
    TARN_TRY(tarni_port_stream_sync(heap->port, TARNI_STREAM_LEGACY));
    nap->is_copying = false;
  }
  return TARN_OK;
}

/* Copies all pieces, to what is saved or back, and waits for it. */
static tarn_status pieces_copy(tarn_heap *heap, tarni_nap *nap, bool is_saving) {
  TARN_TRY(tarni_legacy_check(heap, TARNI_STREAM_LEGACY));
  held_look(heap, nap);
  tarn_status status = TARN_OK;
  nap->is_copying = true;
  for (uint64_t i = 0; i < nap->n_pieces && status == TARN_OK;) {
    uint64_t bytes;
    const uint64_t n = pieces_run(heap, nap, i, &bytes);
    const tarn_ptr block = heap->base + nap->pieces[i].offset;
    const tarn_ptr saved = (tarn_ptr)(uintptr_t)(nap->saved + nap->pieces[i].at);
    if (n != 0) {
      status = tarni_port_copy(heap->port, is_saving ? saved : block, is_saving ? block : saved,
                               bytes, TARNI_STREAM_LEGACY);
    }
    i += n != 0 ? n : 1;
  }
  if (status == TARN_OK) {
    return copies_await(heap, nap);
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  (void)copies_await(heap, nap);
  return tarni_fail_again(&error);
}

static tarn_status pieces_save(tarn_heap *heap, tarni_nap *nap) {
  if (nap->n_pieces == 0) {
    return TARN_OK;
  }
  const nap_piece *last = &nap->pieces[nap->n_pieces - 1];
  void *saved;
  TARNI_RELAXED(heap->port);
  TARN_TRY(tarni_port_host_alloc(heap->port, last->at + last->bytes, 0, &saved));
  nap->saved = saved;
  TARN_TRY(pieces_copy(heap, nap, true));
  nap->is_saved = true;
  return TARN_OK;
}

/* A secure heap leaves no content behind, and guards are new when content was dropped: filled on
 * the default stream; where that may not be used nothing happens. */
static tarn_status each_fill(tarn_heap *heap, tarni_nap *nap, tarn_status (*fill)(tarn_heap *)) {
  TARN_TRY(tarni_legacy_check(heap, TARNI_STREAM_LEGACY));
  nap->is_copying = true;
  const tarn_status status = fill(heap);
  if (status == TARN_OK) {
    nap->is_copying = false; /* it has been waited for */
    return TARN_OK;
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  (void)copies_await(heap, nap);
  return tarni_fail_again(&error);
}

static tarn_status scrub(tarn_heap *heap, tarni_nap *nap) {
  return heap->care.is_secure ? each_fill(heap, nap, tarni_debug_scrub_grow) : TARN_OK;
}

static tarn_status dress(tarn_heap *heap, tarni_nap *nap) {
  const bool is_needed = heap->care.is_secure || heap->care.guard_bytes != 0;
  return is_needed ? each_fill(heap, nap, tarni_debug_dress_grow) : TARN_OK;
}

/* What was saved is no longer needed. May be called again where it fails. */
static tarn_status saved_free(tarn_heap *heap, tarni_nap *nap) {
  if (nap->saved != NULL) {
    TARN_TRY(copies_await(heap, nap));
    if (heap->care.is_secure && nap->n_pieces != 0) {
      const nap_piece *last = &nap->pieces[nap->n_pieces - 1];
      memset(nap->saved, 0, last->at + last->bytes);
    }
    TARNI_RELAXED(heap->port);
    TARN_TRY(tarni_port_host_free(heap->port, nap->saved));
    nap->saved = NULL;
    nap->is_copying = false; /* all work of the device was waited for */
  }
  return TARN_OK;
}

/* ---- Chunks ---- */

static bool chunk_has_place(const tarn_heap *heap, tarni_index index) {
  const tarni_phys *chunk = &heap->chunks[index];
  return chunk->n_units != 0 && heap->units[chunk->first_unit] == index;
}

static void chunk_account(tarn_heap *heap, tarni_index index, tarni_chunk handle) {
  tarni_phys *chunk = &heap->chunks[index];
  const uint64_t bytes = tarni_chunk_bytes(heap, chunk);
  tarni_lock_acquire(&heap->lock);
  chunk->handle = handle;
  heap->reserved_bytes = handle != 0 ? heap->reserved_bytes + bytes : heap->reserved_bytes - bytes;
  heap->asleep_bytes = handle != 0 ? heap->asleep_bytes - bytes : heap->asleep_bytes + bytes;
  tarni_held_note_locked(heap);
  tarni_lock_release(&heap->lock);
}

static tarn_status chunk_unmap(tarn_heap *heap, tarni_nap *nap, tarni_index index) {
  const tarni_phys *chunk = &heap->chunks[index];
  for (uint32_t at = chunk->places; at != 0; at = heap->places[at - 1].next) {
    const uint64_t unit = at - 1;
    if (tarni_bitset_has(&nap->mapped, unit)) {
      TARN_TRY(tarni_port_unmap(heap->port, heap->base + unit * heap->unit,
                                tarni_chunk_bytes(heap, chunk)));
      tarni_bitset_remove(&nap->mapped, unit);
    }
  }
  return TARN_OK;
}

static tarn_status chunk_release(tarn_heap *heap, tarni_index index) {
  if (heap->chunks[index].handle != 0) {
    TARN_TRY(tarni_port_release(heap->port, heap->chunks[index].handle));
    chunk_account(heap, index, 0);
  }
  return TARN_OK;
}

/* First everything is unmapped, then it is released: so nothing is lost until all of it can go. */
static tarn_status chunks_leave(tarn_heap *heap, tarni_nap *nap) {
  for (tarni_index i = 1; i < nap->n_chunks; i++) {
    TARN_TRY(chunk_has_place(heap, i) ? chunk_unmap(heap, nap, i) : TARN_OK);
  }
  for (tarni_index i = 1; i < nap->n_chunks; i++) {
    TARN_TRY(chunk_has_place(heap, i) ? chunk_release(heap, i) : TARN_OK);
  }
  return TARN_OK;
}

/* The same as far as the driver lets it, and nothing is lost by it. */
static void chunks_leave_again(tarn_heap *heap, tarni_nap *nap) {
  if (nap->is_copying || (nap->n_pieces != 0 && !nap->is_saved)) {
    return;
  }
  for (tarni_index i = 1; i < nap->n_chunks; i++) {
    if (chunk_has_place(heap, i) && chunk_unmap(heap, nap, i) == TARN_OK) {
      (void)chunk_release(heap, i);
    }
  }
}

static tarn_status chunk_return(tarn_heap *heap, tarni_nap *nap, tarni_index index) {
  const tarni_phys *chunk = &heap->chunks[index];
  const uint64_t bytes = tarni_chunk_bytes(heap, chunk);
  if (chunk->handle == 0) {
    tarni_chunk handle;
    TARN_TRY(tarni_port_create(heap->port, bytes, &handle));
    chunk_account(heap, index, handle);
  }
  for (uint32_t at = chunk->places; at != 0; at = heap->places[at - 1].next) {
    const uint64_t unit = at - 1;
    if (!tarni_bitset_has(&nap->mapped, unit)) {
      TARN_TRY(tarni_port_map(heap->port, heap->base + unit * heap->unit, bytes, chunk->handle));
      tarni_bitset_add(&nap->mapped, unit);
    }
  }
  return TARN_OK;
}

/* Access to all that is mapped, a call for each run of chunks side by side. */
static tarn_status chunks_access(tarn_heap *heap) {
  const uint64_t n_units = tarni_unit_of(heap, heap->size);
  for (uint64_t unit = 0; unit < n_units; unit++) {
    const uint64_t first = unit;
    while (unit < n_units && heap->units[unit] != 0) {
      unit += heap->chunks[heap->units[unit]].n_units;
    }
    if (unit != first) {
      TARN_TRY(tarni_port_access(heap->port, heap->base + first * heap->unit,
                                 (unit - first) * heap->unit));
    }
  }
  return TARN_OK;
}

static tarn_status chunks_return(tarn_heap *heap, tarni_nap *nap) {
  for (tarni_index i = 1; i < nap->n_chunks; i++) {
    TARN_TRY(chunk_has_place(heap, i) ? chunk_return(heap, nap, i) : TARN_OK);
  }
  return chunks_access(heap);
}

static bool chunk_is_mapped(const tarn_heap *heap, const tarni_nap *nap, const tarni_phys *chunk) {
  bool is = false;
  for (uint32_t at = chunk->places; at != 0 && !is; at = heap->places[at - 1].next) {
    is = tarni_bitset_has(&nap->mapped, at - 1);
  }
  return is;
}

/* Chunks without memory on which no block is live any more are forgotten. */
static void idle_forget_locked(tarn_heap *heap, const tarni_nap *nap) {
  const tarni_search search = {.lane = TARNI_LANE_COMMON, .may_steal = true};
  for (tarni_index index = tarni_idle_highest_locked(heap), next; index != 0; index = next) {
    const tarni_phys *chunk = &heap->chunks[index];
    const uint64_t start = tarni_chunk_start(heap, chunk), end = tarni_chunk_end(heap, chunk);
    tarni_order order;
    next = tarni_idle_below_locked(heap, chunk->first_unit);
    if (chunk->handle != 0 || chunk_is_mapped(heap, nap, chunk) ||
        !tarni_range_is_free_locked(heap, start, end, &search, &order) ||
        !tarni_places_forget_locked(heap, index)) {
      continue;
    }
    const tarni_index extent = tarni_range_isolate_locked(heap, start, end);
    if (extent == 0) {
      return;
    }
    tarni_idle_remove_locked(heap, index);
    tarni_place_remove_locked(heap, index, chunk->first_unit);
    heap->asleep_bytes -= tarni_chunk_bytes(heap, chunk);
    tarni_phys_give_locked(heap, index);
    tarni_extent_give_locked(heap, extent, TARNI_EXTENT_VOID, NULL);
  }
}

/* ---- Waking ---- */

static tarn_status limit_check(const tarn_heap *heap) {
  const uint64_t needed = tarni_held_bytes_locked(heap) + heap->asleep_bytes;
  if (needed <= heap->limit_bytes) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = needed,
                             .available_bytes = heap->limit_bytes};
  return tarni_fail(TARN_LIMIT, "tarn_heap_wake", &facts,
                    "Free blocks, or raise the limit with tarn_heap_set_limit.",
                    "live blocks and captures need %llu bytes, and the heap's limit is %llu",
                    (unsigned long long)needed, (unsigned long long)heap->limit_bytes);
}

static void set_asleep(tarn_heap *heap, bool is_asleep) {
  tarni_lock_acquire(&heap->lock);
  atomic_store_explicit(&heap->is_asleep, is_asleep, memory_order_relaxed);
  if (is_asleep) {
    tarni_watch_begin_locked(heap);
  } else {
    tarni_held_note_locked(heap);
    tarni_watch_end_locked(heap);
  }
  tarni_lock_release(&heap->lock);
}

/* From any state of the chunks: all of them are back, with their content, and the heap is awake. */
static tarn_status wake_grow(tarn_heap *heap, tarni_nap *nap) {
  TARN_TRY(copies_await(heap, nap));
  TARN_TRY(chunks_return(heap, nap));
  if (nap->is_saved) {
    TARN_TRY(pieces_copy(heap, nap, false));
  } else if (nap->content == TARN_SLEEP_DROP) {
    TARN_TRY(dress(heap, nap));
  }
  set_asleep(heap, false);
  nap->is_saved = false;
  (void)saved_free(heap, nap); /* what the driver refuses now it may take the next time */
  return TARN_OK;
}

static tarn_status wake_try_grow(tarn_heap *heap) {
  tarni_nap *nap = heap->nap;
  TARN_TRY(device_await_all(heap, nap)); /* graphs may have been launched meanwhile */
  collect_complete(heap);
  tarni_lock_acquire(&heap->lock);
  idle_forget_locked(heap, nap);
  const tarn_status fits = limit_check(heap);
  tarni_lock_release(&heap->lock);
  TARN_TRY(fits);
  const tarn_status status = wake_grow(heap, nap);
  if (status != TARN_OK) {
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    chunks_leave_again(heap, nap);
    return tarni_fail_again(&error);
  }
  return TARN_OK;
}

tarn_status tarn_heap_wake(tarn_heap *heap) {
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_wake"));
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  tarni_lock_acquire(&heap->grow);
  tarn_status status;
  if (!tarni_is_asleep(heap)) {
    const tarni_facts facts = {.device = heap->port->device.name};
    status = tarni_fail(TARN_STATE, "tarn_heap_wake", &facts,
                        "Wake a heap once, after tarn_heap_sleep.", "the heap is awake");
  } else {
    status = wake_try_grow(heap);
  }
  tarni_lock_release(&heap->grow);
  tarni_lock_release(&heap->capture);
  return status;
}

/* ---- Falling asleep ---- */

static tarn_status memory_fail(uint64_t n_blocks) {
  return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_sleep", NULL, "Free some host memory.",
                    "no host memory to note the places of %llu blocks",
                    (unsigned long long)n_blocks);
}

static void held_count(void *user, uint64_t offset, uint64_t bytes) {
  (void)offset;
  (void)bytes;
  ++*(uint64_t *)user;
}

/* Room for what is to be noted. */
static tarn_status nap_prepare(tarn_heap *heap, tarni_nap *nap, tarn_sleep_content content) {
  TARN_TRY(saved_free(heap, nap)); /* of an earlier time */
  tarni_lock_acquire(&heap->lock);
  uint64_t n_blocks = tarni_stats_locked(heap).live_blocks;
  tarni_graphs_each_locked(heap, held_count, &n_blocks);
  nap->n_chunks = heap->n_chunks;
  tarni_lock_release(&heap->lock);
  free(nap->pieces);
  nap->content = content;
  nap->n_pieces = 0;
  nap->is_saved = false;
  nap->max_pieces = content == TARN_SLEEP_SAVE ? n_blocks : 0;
  nap->has_mapped =
      nap->has_mapped || tarni_bitset_open(&nap->mapped, tarni_unit_of(heap, heap->size));
  nap->pieces = calloc(nap->max_pieces + 1, sizeof(*nap->pieces));
  return nap->has_mapped && nap->pieces != NULL ? TARN_OK : memory_fail(n_blocks);
}

/* Everything that can fail without a change to the chunks under live blocks. */
static tarn_status sleep_prepare_grow(tarn_heap *heap, tarn_sleep_content content) {
  if (heap->nap == NULL) { /* kept until the heap's end */
    heap->nap = calloc(1, sizeof(*heap->nap));
  }
  tarni_nap *nap = heap->nap;
  if (nap == NULL) {
    return memory_fail(0);
  }
  TARN_TRY(device_await_all(heap, nap));
  tarni_lock_acquire(&heap->lock);
  tarni_quarantine_release_locked(heap);
  tarni_lock_release(&heap->lock);
  collect_complete(heap);
  TARN_TRY(tarni_grow_reap_grow(heap)); /* which brings aliases back */
  (void)tarni_chunk_unalias_grow(heap); /* chunks are mapped where something lies, and at home */
  TARN_TRY(tarni_chunk_trim_grow(heap, 0));
  TARN_TRY(nap_prepare(heap, nap, content));
  tarni_lock_acquire(&heap->lock);
  if (content == TARN_SLEEP_SAVE) {
    pieces_find_locked(heap, nap);
  }
  for (tarni_index i = 1; i < nap->n_chunks; i++) {
    for (uint32_t at = heap->chunks[i].places; at != 0; at = heap->places[at - 1].next) {
      tarni_bitset_add(&nap->mapped, at - 1);
    }
  }
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

/* Content or chunks are on their way: back, where that can be, or the heap stays asleep and says
 * so. */
static tarn_status sleep_undo_grow(tarn_heap *heap) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  if (wake_grow(heap, heap->nap) == TARN_OK) {
    return tarni_fail_again(&error);
  }
  const tarni_facts facts = {.device = heap->port->device.name,
                             .driver_code = error.driver_code,
                             .driver_name = error.driver_name};
  return tarni_fail(
      error.status, "tarn_heap_sleep", &facts, "Wake it (tarn_heap_wake), then try again.",
      "the heap is asleep, but not all of its memory has gone back: %.300s", error.message);
}

static tarn_status sleep_grow(tarn_heap *heap, tarn_sleep_content content) {
  TARN_TRY(tarni_sleep_refuse(heap, "tarn_heap_sleep"));
  TARN_TRY(captures_refuse(heap, content));
  tarni_quarantine_drain_grow(heap);
  set_asleep(heap, true);
  const tarn_status status = sleep_prepare_grow(heap, content);
  if (status != TARN_OK) {
    set_asleep(heap, false);
    return status;
  }
  const bool is_gone = pieces_save(heap, heap->nap) == TARN_OK &&
                       scrub(heap, heap->nap) == TARN_OK &&
                       chunks_leave(heap, heap->nap) == TARN_OK;
  return is_gone ? TARN_OK : sleep_undo_grow(heap);
}

tarn_status tarn_heap_sleep(tarn_heap *heap, tarn_sleep_content content) {
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_sleep"));
  TARN_TRY(sleep_check(heap, content));
  TARNI_PAYS(&heap->calls);
  tarni_captures_reap(heap); /* those of which nobody told may be over */
  tarni_lock_acquire(&heap->capture);
  tarni_lock_acquire(&heap->grow);
  const tarn_status status = sleep_grow(heap, content);
  tarni_lock_release(&heap->grow);
  tarni_lock_release(&heap->capture);
  return status;
}

/* ---- The end ---- */

tarn_status tarni_sleep_give_back(tarn_heap *heap) {
  tarni_nap *nap = heap->nap;
  if (nap == NULL) {
    return TARN_OK;
  }
  TARN_TRY(copies_await(heap, nap));
  if (tarni_is_asleep(heap)) {
    TARN_TRY(chunks_leave(heap, nap));
  }
  if (nap->page != NULL) {
    TARNI_RELAXED(heap->port);
    TARN_TRY(tarni_port_host_free(heap->port, nap->page));
    nap->page = NULL;
  }
  return saved_free(heap, nap);
}

void tarni_sleep_close(tarn_heap *heap) {
  if (heap->nap != NULL) {
    if (heap->nap->has_mapped) {
      tarni_bitset_close(&heap->nap->mapped);
    }
    free(heap->nap->pieces);
    free(heap->nap);
  }
}
