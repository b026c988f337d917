/* SPDX-License-Identifier: MIT
 *
 * The search for a window: a range of addresses for a block or a slab at the homes of chunks, made
 * of free extents that the lane may use, and of void addresses, where chunks are to be made. Looks
 * only: what it finds is taken by grow.c.
 *
 * It is the lowest window. What is mapped lies below what is void, so one with void parts is found
 * where there is none without, and begins in what is mapped as far as it can. What is found depends
 * on what is in use then, and not on which windows were mapped before, and a program that repeats
 * itself comes to the same windows.
 *
 * Where memory is short the search is lean: for the window that needs the least to be mapped, the
 * lowest of these. It uses what is left over on chunks that are in use, and leaves idle ones alone.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "room.h"

enum {
  WINDOW_MAX_STEPS = 65536, /* extents that one search looks at */
  WINDOW_WALK = 2,          /* of those in use so many in a row, */
  WINDOW_WALK_LANE = 1,     /* and so many more for each lane; then it jumps over the others */
};

static bool is_usable(const tarn_heap *heap, const tarni_search *search,
                      const tarni_extent *extent) {
  return (extent->kind == TARNI_EXTENT_VOID && search->may_map) ||
         (extent->kind == TARNI_EXTENT_FREE && !heap->is_fixed &&
          tarni_order_is_met_locked(heap, &extent->order, search->lane));
}

/* What a window of `size` bytes would need to be mapped; it is the best so far where that is less.
 * Returns the extent that is in its way, and so in the way of all that begin before it; else 0. */
static tarni_index window_try(tarn_heap *heap, tarni_search *search, tarni_window window,
                              uint64_t size, tarni_window *best) {
  const uint64_t end = window.start + size;
  uint32_t n = 0;
  window.missing = 0;
  for (tarni_index i = window.first; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    search->n_steps++;
    if (!is_usable(heap, search, extent)) {
      return i;
    }
    if (++n > search->max_pieces) {
      return 0;
    }
    if (extent->kind == TARNI_EXTENT_VOID) {
      const uint64_t from = tarni_max(window.start, extent->offset);
      const uint64_t to = tarni_min(end, extent->offset + extent->size);
      window.missing += tarni_align_up(to, heap->unit) - tarni_align_down(from, heap->unit);
    }
    if (window.missing >= best->missing) {
      return 0;
    }
    if (extent->offset + extent->size >= end) {
      *best = window;
      return 0;
    }
  }
  return 0; /* the zone ends before */
}

/* The window that ends where the extent does, in a run of usable ones. */
static void window_try_back(tarn_heap *heap, tarni_search *search, const tarni_need *need,
                            const tarni_index run[2], tarni_window *best) {
  const tarni_extent *last = &heap->extents[run[1]];
  const uint64_t end = last->offset + last->size;
  if (end < heap->extents[run[0]].offset + need->size) {
    return;
  }
  const uint64_t start = tarni_align_down(end - need->size, need->alignment);
  tarni_index from = run[1];
  while (heap->extents[from].offset > start && from != run[0]) {
    from = heap->extents[from].previous;
  }
  if (heap->extents[from].offset <= start) {
    (void)window_try(heap, search, (tarni_window){.start = start, .first = from}, need->size, best);
  }
}

/* The lowest window that has nothing mapped: what there is when a search would take too long. */
static tarni_window window_void(tarn_heap *heap, const tarni_need *need) {
  const tarni_index first = tarni_extent_first_locked(heap, need->zone, TARNI_TREE_VOID, need->size,
                                                      need->alignment, UINT32_MAX);
  return (tarni_window){.start = tarni_align_up(heap->extents[first].offset, need->alignment),
                        .missing = tarni_align_up(need->size, heap->unit),
                        .first = first};
}

/* Whether no window can have it. */
static bool is_in_use(const tarni_extent *extent) {
  return extent->kind != TARNI_EXTENT_VOID && extent->kind != TARNI_EXTENT_FREE;
}

static uint32_t walk_of(const tarn_heap *heap) {
  return WINDOW_WALK + WINDOW_WALK_LANE * heap->n_lanes;
}

tarni_index tarni_window_next_locked(const tarn_heap *heap, tarni_search *search, uint32_t zone,
                                     tarni_index index) {
  const uint32_t n_walked = walk_of(heap);
  for (uint32_t i = 0; i < n_walked; i++) {
    index = heap->extents[index].next;
    if (index == 0 || !is_in_use(&heap->extents[index])) {
      return index;
    }
    search->n_steps++;
  }
  return tarni_extent_from_locked(heap, zone, heap->extents[index].offset, search->lane);
}

/* The first extent at an offset or above it that is free behind another one that is. */
static tarni_index seam_from(const tarn_heap *heap, const tarni_search *search, uint32_t zone,
                             uint64_t offset) {
  uint64_t unit = tarni_unit_of(heap, offset);
  const uint64_t end = tarni_unit_of(heap, heap->zones[zone].end);
  while ((unit = tarni_bitset_from(&heap->seams, unit)) < end) { /* twice at most */
    const uint64_t start = tarni_max(unit++ << heap->unit_log2, offset);
    for (tarni_index i = tarni_extent_from_locked(heap, zone, start, search->lane);
         i != 0 && tarni_unit_of(heap, heap->extents[i].offset) < unit; i = heap->extents[i].next) {
      if (tarni_extent_is_seam(heap, i)) {
        return i;
      }
    }
  }
  return 0;
}

/* What each window of less than a unit has one of, since a free extent that fits needs no search: a
 * void part, or two free extents. */
static bool is_joint(const tarn_heap *heap, const tarni_search *search, tarni_index index) {
  const tarni_extent *extent = &heap->extents[index];
  return (extent->kind == TARNI_EXTENT_VOID && search->may_map) ||
         (!heap->is_fixed && tarni_extent_is_seam(heap, index));
}

/* The first of them at an offset or above it; 0: there is none. */
static tarni_index joint_from(const tarn_heap *heap, const tarni_search *search, uint32_t zone,
                              uint64_t offset) {
  const tarni_index found = search->may_map ? tarni_extent_void_from_locked(heap, zone, offset) : 0;
  return heap->is_fixed ? found
                        : tarni_extent_lower(heap, found, seam_from(heap, search, zone, offset));
}

/* This extent, or one above it, where no window of less than a unit begins before that. To look one
 * up takes about as long as to walk over so many. 0: there is no such window. */
static tarni_index window_skip_pieces(const tarn_heap *heap, tarni_search *search, uint32_t zone,
                                      tarni_index first) {
  const uint32_t n_walked = walk_of(heap);
  tarni_index found = first;
  for (uint32_t n = 0; n < n_walked && found != 0; n++) {
    if (is_joint(heap, search, found) &&
        (found != first || heap->extents[first].kind != TARNI_EXTENT_FREE)) {
      break;
    }
    search->n_steps++;
    found = n + 1 < n_walked ? heap->extents[found].next
                             : joint_from(heap, search, zone,
                                          heap->extents[found].offset + heap->extents[found].size);
  }
  while (found != 0 && found != first &&
         heap->extents[heap->extents[found].previous].kind == TARNI_EXTENT_FREE) {
    found = heap->extents[found].previous;
  }
  return found;
}

/* This extent, or one above it, where no window begins before that. In each window so many units
 * begin, in a row, as fit into it, and none of them is barred, nor void in a search that may not
 * map. 0: there is no such window, or no extent. */
static tarni_index window_skip(const tarn_heap *heap, tarni_search *search, const tarni_need *need,
                               tarni_index index) {
  const uint64_t n = tarni_unit_of(heap, need->size);
  if (index == 0 || n == 0) {
    return index != 0 ? window_skip_pieces(heap, search, need->zone, index) : 0;
  }
  const uint64_t begin = tarni_align_up(heap->extents[index].offset, heap->unit);
  const uint64_t first = tarni_unit_of(heap, begin);
  const uint64_t run = search->may_map ? tarni_bitset_gap(&heap->barred, first, n)
                                       : tarni_bitset_run(&heap->placed, &heap->barred, first, n);
  if (run == first) {
    return index;
  }
  return run < tarni_unit_of(heap, heap->zones[need->zone].end)
             ? tarni_extent_from_locked(heap, need->zone, (run - 1) << heap->unit_log2,
                                        search->lane)
             : 0;
}

/* Where the next window can begin behind an extent that none can have, or not as its first. */
static tarni_index window_after(const tarn_heap *heap, tarni_search *search, const tarni_need *need,
                                tarni_index index) {
  return window_skip(heap, search, need,
                     need->size < heap->unit
                         ? heap->extents[index].next
                         : tarni_window_next_locked(heap, search, need->zone, index));
}

/* Whether all there is to a run that begins here is one free extent, which is too small. */
static bool is_too_small(const tarn_heap *heap, const tarni_extent *extent, uint64_t size) {
  return extent->kind == TARNI_EXTENT_FREE && extent->size < size &&
         (extent->next == 0 || is_in_use(&heap->extents[extent->next]));
}

static bool is_enough(const tarni_search *search, const tarni_window *best) {
  return search->n_steps >= WINDOW_MAX_STEPS ||
         (best->first != 0 && (!search->is_lean || best->missing == 0));
}

/* Windows that begin where a usable extent begins and, in a lean search behind void addresses,
 * those that end where a mapped one ends. */
tarni_window tarni_window_find_locked(tarn_heap *heap, tarni_search *search,
                                      const tarni_need *need) {
  tarni_window best = {.missing = UINT64_MAX};
  tarni_index run = 0; /* first extent of the present run of usable ones */
  bool has_void = false;
  tarni_index i = window_skip(heap, search, need, heap->zones[need->zone].head);
  while (i != 0 && !is_enough(search, &best)) {
    const tarni_extent *extent = &heap->extents[i];
    search->n_steps++;
    if ((run == 0 && is_too_small(heap, extent, need->size)) || !is_usable(heap, search, extent)) {
      run = 0;
      has_void = false;
      i = window_after(heap, search, need, i);
      continue;
    }
    run = run != 0 ? run : i;
    const tarni_window window = {.start = tarni_align_up(extent->offset, need->alignment),
                                 .first = i};
    const tarni_index blocker = window.start < extent->offset + extent->size
                                    ? window_try(heap, search, window, need->size, &best)
                                    : 0;
    has_void |= extent->kind == TARNI_EXTENT_VOID;
    if (search->is_lean && has_void && extent->kind != TARNI_EXTENT_VOID) {
      window_try_back(heap, search, need, (tarni_index[2]){run, i}, &best);
    }
    i = blocker != 0 && !(search->is_lean && has_void) ? blocker : extent->next;
  }
  return best.first != 0 || !search->may_map ? best : window_void(heap, need);
}
