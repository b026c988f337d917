/* SPDX-License-Identifier: MIT
 *
 * Physical memory of a heap: which chunks are idle, what is free at their homes, and how they go. A
 * chunk that goes leaves a zombie at each of its places: addresses that are unmapped once all that
 * used them is complete. How a heap gets more room is grow.c's business. */
#include "base/bits.h"
#include "room.h"

enum {
  CHUNK_MAX_TRIES = 64, /* for room at an alignment that is only wished for */
  /* A block of no more than this part of the heap is put where the least is left over, of so many
   * places; a larger one into the lowest. */
  CHUNK_TIGHT_SHARE = 256,
  CHUNK_TIGHT_TRIES = 8,
};

/* ---- Idle chunks, by their homes ---- */

void tarni_idle_add_locked(tarn_heap *heap, tarni_index index) {
  tarni_bitset_add(&heap->idle, heap->chunks[index].first_unit);
  heap->idle_bytes += tarni_chunk_bytes(heap, &heap->chunks[index]);
}

void tarni_idle_remove_locked(tarn_heap *heap, tarni_index index) {
  tarni_bitset_remove(&heap->idle, heap->chunks[index].first_unit);
  heap->idle_bytes -= tarni_chunk_bytes(heap, &heap->chunks[index]);
}

tarni_index tarni_idle_below_locked(const tarn_heap *heap, uint64_t unit) {
  const uint64_t found = tarni_bitset_below(&heap->idle, unit);
  return found != TARNI_BITSET_NONE ? heap->units[found] : 0;
}

tarni_index tarni_idle_highest_locked(const tarn_heap *heap) {
  return tarni_idle_below_locked(heap, tarni_unit_of(heap, heap->size));
}

void tarni_chunk_use_locked(tarn_heap *heap, uint64_t offset, uint64_t size, bool is_used) {
  const uint64_t end = offset + size;
  heap->used_bytes = is_used ? heap->used_bytes + size : heap->used_bytes - size;
  heap->used_peak_bytes = tarni_max(heap->used_peak_bytes, heap->used_bytes);
  heap->recent_used_peak = tarni_max(heap->recent_used_peak, heap->used_bytes);
  tarni_tide_note_locked(heap);
  while (offset < end) {
    const uint64_t unit = tarni_unit_of(heap, offset);
    const tarni_index index = heap->units[unit];
    tarn_assert(index != 0 && "a slab lies on chunks");
    tarni_phys *chunk = &heap->chunks[index];
    const uint64_t place_end = (heap->places[unit].first + (uint64_t)chunk->n_units) * heap->unit;
    const uint64_t stop = tarni_min(end, place_end);
    const uint32_t granules = (uint32_t)((stop - offset) >> TARNI_GRANULE_LOG2);
    const uint32_t before = chunk->n_used, small = offset < heap->small_end ? granules : 0;
    chunk->n_used = is_used ? before + granules : before - granules;
    chunk->n_small = is_used ? chunk->n_small + small : chunk->n_small - small;
    if (is_used) { /* else its extent tells when it is free */
      tarni_ends_note_locked(heap, index);
    }
    if (before == 0) {
      tarni_idle_remove_locked(heap, index);
    }
    if (chunk->n_used == 0) {
      tarni_idle_add_locked(heap, index);
    }
    offset = stop;
  }
}

/* ---- Records ---- */

tarni_index tarni_phys_take_locked(tarn_heap *heap) {
  const tarni_index index = heap->free_chunk;
  if (index != 0) {
    heap->free_chunk = heap->chunks[index].link;
    return index;
  }
  return heap->n_chunks < heap->max_chunks ? heap->n_chunks++ : 0;
}

void tarni_phys_give_locked(tarn_heap *heap, tarni_index index) {
  heap->chunks[index] = (tarni_phys){.link = heap->free_chunk};
  heap->free_chunk = index;
}

/* ---- Room that is there ---- */

/* The lowest extent of a tree that fits and whose fences are not lost. */
static tarni_index tree_find_awaited(const tarn_heap *heap, tarni_index root,
                                     const tarni_need *need) {
  if (heap->extents[root].largest < need->size) {
    return 0;
  }
  const tarni_extent *node = &heap->extents[root];
  const tarni_index lower = tree_find_awaited(heap, node->left, need);
  if (lower != 0) {
    return lower;
  }
  return tarni_extent_fits(node, need->size, need->alignment) &&
                 !tarni_order_is_out_locked(heap, &node->order)
             ? root
             : tree_find_awaited(heap, node->right, need);
}

static tarni_index tree_first(tarn_heap *heap, uint32_t tree, const tarni_need *need) {
  const uint32_t tries = need->alignment > need->least ? CHUNK_MAX_TRIES : UINT32_MAX;
  return tarni_extent_first_locked(heap, need->zone, tree, need->size, need->alignment, tries);
}

/* What a small block leaves over of a large extent is in the way of large blocks, and most small
 * ones come again. What large ones leave over is put to use anyway. A heap that has earned memory
 * (rest.c) has enough. */
static bool is_tight(const tarn_heap *heap, const tarni_need *need) {
  return need->zone == TARNI_ZONE_LARGE && !heap->is_fixed && heap->rest.earned_bytes == 0 &&
         need->size <= heap->reserved_bytes / CHUNK_TIGHT_SHARE;
}

static tarni_index tree_choose(tarn_heap *heap, uint32_t tree, const tarni_need *need) {
  const tarni_index tightest =
      is_tight(heap, need) ? tarni_extent_tightest_locked(heap, tree, need, CHUNK_TIGHT_TRIES) : 0;
  return tightest != 0 ? tightest : tree_first(heap, tree, need);
}

static bool is_on_spare(const tarn_heap *heap, const tarni_need *need, tarni_index index) {
  const uint64_t start = tarni_align_up(heap->extents[index].offset, need->alignment);
  return tarni_extent_is_spare_locked(heap, start, need->size);
}

/* The better one of two extents that both fit; one may be none. */
static tarni_index better_of(const tarn_heap *heap, const tarni_need *need, tarni_index a,
                             tarni_index b) {
  if (a == 0 || b == 0 || !is_tight(heap, need)) {
    return tarni_extent_lower(heap, a, b);
  }
  const bool is_a_spare = is_on_spare(heap, need, a), is_b_spare = is_on_spare(heap, need, b);
  const uint64_t size_a = heap->extents[a].size, size_b = heap->extents[b].size;
  if (is_a_spare != is_b_spare) {
    return is_a_spare ? b : a;
  }
  if (size_a != size_b) {
    return size_a < size_b ? a : b;
  }
  return tarni_extent_lower(heap, a, b);
}

/* The one found before, or a better one of another tree, where the lane may use what is no younger
 * than a ticket. Where there is one already it does not look for long. */
static tarni_index find_better(tarn_heap *heap, uint32_t tree, const tarni_need *need,
                               uint64_t ticket, tarni_index found, uint32_t *tries) {
  const bool is_any = found == 0 || is_tight(heap, need);
  const tarni_bound bound = {.below = is_any ? UINT64_MAX : heap->extents[found].offset,
                             .ticket = ticket};
  uint32_t all = UINT32_MAX;
  uint32_t *left = found == 0 || !is_any ? &all : tries;
  return better_of(heap, need, found, tarni_extent_find_met_locked(heap, tree, need, &bound, left));
}

/* The best of all, whenever it was freed: a program that repeats itself is to find the same
 * addresses again. */
static tarni_index find_met(tarn_heap *heap, const tarni_need *need) {
  tarni_index found = better_of(heap, need, tree_choose(heap, 1 + need->lane, need),
                                tree_choose(heap, 1 + TARNI_LANE_COMMON, need));
  const uint64_t *oldest = heap->zones[need->zone].oldest;
  uint32_t tries = CHUNK_TIGHT_TRIES;
  for (tarni_index other = 1; other < heap->n_lanes; other++) {
    const uint64_t ticket = tarni_order_met_locked(heap, other, need->lane);
    if (oldest[1 + other] <= ticket && other != need->lane) {
      found = find_better(heap, 1 + other, need, ticket, found, &tries);
    }
  }
  const uint32_t several = 1 + heap->max_lanes;
  return heap->zones[need->zone].trees[several] != 0
             ? find_better(heap, several, need, UINT64_MAX, found, &tries)
             : found;
}

/* Takes a free extent and cuts it to size; what is left over stays free. 0: no record is left. */
static tarni_index take_cut(tarn_heap *heap, tarni_index index, const tarni_need *need) {
  const uint64_t start = tarni_align_up(tarni_extent_at(heap, index)->offset, need->alignment);
  return tarni_extent_carve_locked(heap, index, start, need->size);
}

/* The number of the youngest place that a block would have in a free extent, if views may go before
 * it. Small blocks have chunks of their own, and give those that they borrow back, so for them that
 * is so on spare ones alone; 0: it is not. */
static uint64_t youngest_in(const tarn_heap *heap, tarni_index index, const tarni_need *need) {
  const uint64_t start = tarni_align_up(heap->extents[index].offset, need->alignment);
  const bool may = need->zone == TARNI_ZONE_LARGE || is_on_spare(heap, need, index);
  return may ? tarni_youngest_locked(heap, start, start + need->size) : 0;
}

/* Memory is made whenever it is missing, and a view when memory is in pieces. Of the two a block
 * gets what was there first: a program that repeats itself had its blocks there, when what came
 * later was not there yet, and is to have them there again. */
tarni_index tarni_chunk_ready_locked(tarn_heap *heap, const tarni_need *need) {
  tarni_index found = find_met(heap, need);
  if (found != 0 && heap->n_aliases != 0) {
    const uint64_t number = youngest_in(heap, found, need);
    if (number > heap->first_alias) {
      const tarni_index view = tarni_view_older_locked(heap, need, number);
      if (view != 0) {
        return view;
      }
      found = find_met(heap, need); /* what was lent meanwhile may have come apart */
    }
  }
  return found != 0 ? take_cut(heap, found, need) : 0;
}

static bool is_free(const tarn_heap *heap, tarni_index index) {
  return index != 0 && heap->extents[index].kind == TARNI_EXTENT_FREE;
}

/* Nothing that is free is a better place, nor lies in front, where it might join the block, nor
 * behind one that is to lie tightly. Where its chunks would go once they are idle is not looked at:
 * that is what keeping it saves. */
bool tarni_chunk_is_best_locked(tarn_heap *heap, const tarni_need *need, tarni_index index) {
  const tarni_extent *block = tarni_extent_at(heap, index);
  const bool has_front =
      is_free(heap, block->previous) &&
      tarni_align_up(heap->extents[block->previous].offset, need->alignment) < block->offset;
  if (!tarni_is_aligned(block->offset, need->alignment) || has_front) {
    return false;
  }
  if (is_tight(heap, need) && (is_free(heap, block->next) || is_on_spare(heap, need, index))) {
    return false;
  }
  /* If what is found is above the block, the block would be looked at before, and is as tight. */
  const tarni_index found = find_met(heap, need);
  return found == 0 || tarni_align_up(heap->extents[found].offset, need->alignment) > block->offset;
}

/* The lowest extent of a tree that fits and can be waited for. */
static tarni_index find_awaited(tarn_heap *heap, uint32_t tree, const tarni_need *need) {
  const tarni_index first = tree_first(heap, tree, need);
  if (first == 0 || !tarni_order_is_out_locked(heap, &heap->extents[first].order)) {
    return first;
  }
  return tree_find_awaited(heap, heap->zones[need->zone].trees[tree], need);
}

/* The lowest extent that fits, whoever has freed it, unless its fences are lost. */
static tarni_index find_any(tarn_heap *heap, const tarni_need *need) {
  tarni_index found = 0;
  for (uint32_t tree = 1; found == 0 && tree <= 1 + heap->max_lanes; tree++) {
    if (tree == heap->n_lanes + 1) {
      tree = 1 + heap->max_lanes;
    }
    found = find_awaited(heap, tree, need);
  }
  return found;
}

tarn_status tarni_chunk_wait_grow(tarn_heap *heap, const tarni_order *order, tarni_index lane,
                                  uint64_t bytes) {
  const uint64_t n_waits = heap->waits; /* changes under heap->grow alone */
  TARN_TRY(tarni_order_wait_grow(heap, order, lane));
  if (heap->waits != n_waits) {
    tarni_lock_acquire(&heap->lock);
    tarni_rest_steal_locked(heap, bytes);
    tarni_lock_release(&heap->lock);
  }
  return TARN_OK;
}

tarn_status tarni_chunk_steal_grow(tarn_heap *heap, const tarni_need *need, tarni_index *extent) {
  tarni_lock_acquire(&heap->lock);
  const tarni_index found = find_any(heap, need);
  const tarni_index taken = found != 0 ? take_cut(heap, found, need) : 0;
  const tarni_order order = taken != 0 ? tarni_extent_at(heap, taken)->order : (tarni_order){0};
  tarni_lock_release(&heap->lock);
  *extent = taken;
  if (taken == 0) {
    return TARN_OK;
  }
  const tarn_status status = tarni_chunk_wait_grow(heap, &order, need->lane, need->size);
  if (status != TARN_OK) {
    tarni_lock_acquire(&heap->lock);
    tarni_extent_give_locked(heap, taken, TARNI_EXTENT_FREE, &order);
    tarni_lock_release(&heap->lock);
    *extent = 0;
  }
  return status;
}

/* ---- Taking what is free off a range ---- */

bool tarni_range_is_free_locked(const tarn_heap *heap, uint64_t start, uint64_t end,
                                const tarni_search *search, tarni_order *order) {
  *order = (tarni_order){0};
  tarni_index index = tarni_extent_containing_locked(heap, start);
  for (uint64_t at = start; at < end; index = heap->extents[index].next) {
    const tarni_extent *extent = tarni_extent_at(heap, index);
    if (extent->kind != TARNI_EXTENT_FREE || !tarni_is_usable_locked(heap, search, extent) ||
        !tarni_order_unite_open_locked(heap, order, &extent->order)) {
      return false; /* in use, or somebody is at work on it */
    }
    at = extent->offset + extent->size;
  }
  return true;
}

/* The part of a free extent that lies in the range, BUSY. 0: no record is left. */
static tarni_index range_take(tarn_heap *heap, tarni_index index, uint64_t start, uint64_t end) {
  const tarni_extent *extent = tarni_extent_at(heap, index);
  const uint64_t from = tarni_max(start, extent->offset);
  const uint64_t to = tarni_min(end, extent->offset + extent->size);
  return tarni_extent_carve_locked(heap, index, from, to - from);
}

/* pre: tarni_range_is_free_locked. */
tarni_index tarni_range_isolate_locked(tarn_heap *heap, uint64_t start, uint64_t end) {
  tarni_index whole = 0;
  for (uint64_t at = start; at < end;) {
    const tarni_index found = tarni_extent_containing_locked(heap, at);
    const tarni_order order = tarni_extent_at(heap, found)->order;
    const tarni_index index = range_take(heap, found, start, end);
    if (index == 0) {
      if (whole != 0) {
        const tarni_order united = tarni_extent_at(heap, whole)->order;
        tarni_extent_give_locked(heap, whole, TARNI_EXTENT_FREE, &united);
      }
      return 0;
    }
    at += tarni_extent_at(heap, index)->size;
    if (whole == 0) {
      whole = index;
      tarni_extent_at(heap, whole)->order = (tarni_order){0};
    } else {
      tarni_extent_append_locked(heap, whole, index);
    }
    /* Only what is open, as tarni_range_is_free_locked has counted it: so there is room. */
    const bool has_room =
        tarni_order_unite_open_locked(heap, &tarni_extent_at(heap, whole)->order, &order);
    tarn_assert(has_room);
    (void)has_room;
  }
  return whole;
}

static void zombie_put_locked(tarn_heap *heap, tarni_index index) {
  tarni_extent_at(heap, index)->link = heap->zombies;
  heap->zombies = index;
}

void tarni_zombie_add_locked(tarn_heap *heap, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  extent->kind = TARNI_EXTENT_ZOMBIE;
  extent->state = 0;
  zombie_put_locked(heap, index);
}

/* ---- Zombies ---- */

/* Takes the zombies that are complete off the list; they are one of their own then. */
static tarni_index zombies_take_locked(tarn_heap *heap) {
  tarni_index taken = 0;
  tarni_index *end = &taken;
  for (tarni_index *link = &heap->zombies; *link != 0;) {
    tarni_extent *extent = tarni_extent_at(heap, *link);
    if (tarni_order_is_complete_locked(heap, &extent->order)) {
      *end = *link;
      *link = extent->link;
      end = &extent->link;
    } else {
      link = &extent->link;
    }
  }
  *end = 0;
  return taken;
}

/* Unmaps a zombie, and releases its chunk where that is to go and this was its last mapping. May be
 * called again where it fails. */
static tarn_status zombie_empty(tarn_heap *heap, tarni_extent *extent) {
  tarni_phys *chunk = &heap->chunks[extent->chunk];
  if (extent->state == 0) {
    TARN_TRY(tarni_port_unmap(heap->port, heap->base + extent->offset, extent->size));
    extent->state = 1;
    chunk->n_mapped--;
  }
  if (chunk->is_leaving && chunk->n_mapped == 0) {
    TARN_TRY(tarni_port_release(heap->port, chunk->handle));
    chunk->handle = 0;
  }
  return TARN_OK;
}

static void chunk_released_locked(tarn_heap *heap, tarni_index index) {
  const uint64_t bytes = tarni_chunk_bytes(heap, &heap->chunks[index]);
  heap->reserved_bytes -= bytes;
  heap->leaving_bytes -= bytes;
  tarni_phys_give_locked(heap, index);
}

static tarn_status zombie_bury(tarn_heap *heap, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  const tarn_status status = zombie_empty(heap, extent);
  tarni_lock_acquire(&heap->lock);
  if (status != TARN_OK) {
    zombie_put_locked(heap, index);
  } else {
    if (heap->chunks[extent->chunk].handle == 0) {
      chunk_released_locked(heap, extent->chunk);
    }
    extent->chunk = 0;
    extent->kind = TARNI_EXTENT_BUSY;
    tarni_extent_give_locked(heap, index, TARNI_EXTENT_VOID, NULL);
    heap->n_unmapped++;
  }
  tarni_lock_release(&heap->lock);
  return status;
}

tarn_status tarni_chunk_reap_grow(tarn_heap *heap) {
  if (heap->is_fixed && tarni_capture_forbids()) {
    return TARN_OK; /* it would be broken by giving up a registration */
  }
  TARN_TRY(tarni_grow_reap_grow(heap));
  tarni_lock_acquire(&heap->lock);
  tarni_index index = zombies_take_locked(heap);
  tarni_lock_release(&heap->lock);
  tarn_error error = {.size = sizeof(error)}; /* the first: the others go all the same */
  while (index != 0) {
    const tarni_index next = tarni_extent_at(heap, index)->link;
    const tarn_status status = zombie_bury(heap, index);
    if (status != TARN_OK && error.status == TARN_OK) {
      (void)tarn_last_error(&error);
    }
    index = next;
  }
  return error.status == TARN_OK ? TARN_OK : tarni_fail_again(&error);
}

/* Sees to it that every zombie's end can be seen: fences that failed are recorded anew. */
static tarn_status zombies_fence(tarn_heap *heap) {
  tarn_error error = {.size = sizeof(error)}; /* the first: the others are fenced all the same */
  tarni_lock_acquire(&heap->lock);
  tarni_index index = heap->zombies; /* none leaves the list meanwhile, and new ones lead it */
  tarni_lock_release(&heap->lock);
  for (; index != 0; index = heap->extents[index].link) {
    const tarn_status status = tarni_order_fence_grow(heap, &heap->extents[index].order);
    if (status != TARN_OK && error.status == TARN_OK) {
      (void)tarn_last_error(&error);
    }
  }
  return error.status == TARN_OK ? TARN_OK : tarni_fail_again(&error);
}

static bool has_zombies(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const bool has = heap->zombies != 0;
  tarni_lock_release(&heap->lock);
  return has;
}

uint64_t tarni_zombies_bytes_locked(const tarn_heap *heap, tarni_index lane) {
  uint64_t bytes = 0;
  for (tarni_index index = heap->zombies; index != 0; index = heap->extents[index].link) {
    const tarni_order *order = &heap->extents[index].order;
    for (uint32_t i = 0; i < order->n; i++) {
      const bool is_awaited = order->lanes[i] == lane && order->tickets[i] > heap->complete[lane] &&
                              order->tickets[i] <= heap->lanes[lane].fenced;
      bytes += is_awaited ? heap->extents[index].size : 0;
    }
  }
  return bytes;
}

static bool zombie_waits_for(const tarn_heap *heap, tarni_index lane) {
  return tarni_zombies_bytes_locked(heap, lane) != 0;
}

bool tarni_zombies_wait_grow(tarn_heap *heap) {
  return has_zombies(heap) && tarni_fences_wait_grow(heap, zombie_waits_for);
}

/* The error stays what it was. */
bool tarni_chunk_unalias_grow(tarn_heap *heap) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  const uint64_t n_unmapped = heap->n_unmapped;
  tarni_lock_acquire(&heap->lock);
  const bool has_dropped = tarni_aliases_drop_locked(heap);
  tarni_lock_release(&heap->lock);
  if (has_zombies(heap)) {
    (void)zombies_fence(heap);
    (void)tarni_fences_poll_grow(heap);
    (void)tarni_chunk_reap_grow(heap);
  }
  if (error.status != TARN_OK) {
    (void)tarni_fail_again(&error);
  }
  return has_dropped || heap->n_unmapped != n_unmapped;
}

/* ---- Trimming ---- */

/* Makes zombies of all places of the highest idle chunk, to be released with the last of them.
 * Returns its size; 0: none. */
static uint64_t trim_one_locked(tarn_heap *heap) {
  const tarni_search search = {.lane = TARNI_LANE_COMMON, .may_steal = true};
  tarni_order order;
  for (tarni_index index = tarni_idle_highest_locked(heap); index != 0;
       index = tarni_idle_below_locked(heap, heap->chunks[index].first_unit)) {
    tarni_phys *chunk = &heap->chunks[index];
    const uint64_t start = tarni_chunk_start(heap, chunk), end = tarni_chunk_end(heap, chunk);
    /* Its memory was free last of all, in this order: so is what used it at other places. */
    if (!tarni_range_is_free_locked(heap, start, end, &search, &order) ||
        !tarni_places_drop_locked(heap, index, &order)) {
      continue;
    }
    const tarni_index zombie = tarni_range_isolate_locked(heap, start, end);
    if (zombie == 0) {
      return 0;
    }
    tarni_idle_remove_locked(heap, index);
    tarni_extent_at(heap, zombie)->order = order;
    tarni_place_bury_locked(heap, index, zombie);
    chunk->is_leaving = true;
    heap->leaving_bytes += tarni_chunk_bytes(heap, chunk);
    return tarni_chunk_bytes(heap, chunk);
  }
  return 0;
}

static tarn_status trim_grow(tarn_heap *heap, uint64_t keep, bool may_wait) {
  tarni_lock_acquire(&heap->lock);
  uint64_t held = heap->reserved_bytes - heap->leaving_bytes; /* that goes anyway */
  for (uint64_t bytes = 1; held > keep && bytes != 0; held -= bytes) {
    bytes = trim_one_locked(heap);
  }
  tarni_lock_release(&heap->lock);
  tarn_error error = {.size = sizeof(error)}; /* the first one, whatever fails after it */
  if (zombies_fence(heap) != TARN_OK) {
    (void)tarn_last_error(&error);
  }
  (void)tarni_fences_poll_grow(heap);
  for (;;) {
    const tarn_status reaped = tarni_chunk_reap_grow(heap);
    if (reaped != TARN_OK && error.status == TARN_OK) {
      (void)tarn_last_error(&error);
    }
    if (reaped != TARN_OK || !may_wait || !tarni_zombies_wait_grow(heap)) {
      return error.status == TARN_OK ? TARN_OK : tarni_fail_again(&error);
    }
  }
}

tarn_status tarni_chunk_trim_grow(tarn_heap *heap, uint64_t keep) {
  return trim_grow(heap, keep, true);
}

tarn_status tarni_chunk_trim_ready_grow(tarn_heap *heap, uint64_t keep) {
  return trim_grow(heap, keep, false);
}

/* pre: no work uses the heap any more. */
tarn_status tarni_chunks_close(tarn_heap *heap) {
  TARN_TRY(tarni_grow_reap_grow(heap));
  while (heap->zombies != 0) {
    tarni_extent *extent = tarni_extent_at(heap, heap->zombies);
    TARN_TRY(zombie_empty(heap, extent));
    heap->zombies = extent->link;
  }
  for (tarni_index index = 1; index < heap->n_chunks; index++) {
    tarni_phys *chunk = &heap->chunks[index];
    while (chunk->handle != 0 && chunk->places != 0) {
      const uint64_t unit = chunk->places - 1;
      TARN_TRY(tarni_port_unmap(heap->port, heap->base + unit * heap->unit,
                                tarni_chunk_bytes(heap, chunk)));
      chunk->places = heap->places[unit].next;
    }
    if (chunk->handle != 0) {
      TARN_TRY(tarni_port_release(heap->port, chunk->handle));
      chunk->handle = 0;
    }
  }
  return TARN_OK;
}
