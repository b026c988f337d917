/* SPDX-License-Identifier: MIT
 *
 * The search for a window: the lowest range of addresses that a block or a slab can have. It is
 * made of free extents that the lane may use, of aliases of idle chunks, each chunk once, and of
 * void addresses, which are to be mapped. What is mapped lies below what is void, so a window with
 * void parts is found only where none without them is, and begins in what is mapped as far as it
 * can. Looks only: what it finds is taken by grow.c, which may refuse a chunk and search again.
 *
 * The lowest and not the cheapest: then what a search finds depends on what is in use, and not on
 * which windows were mapped before, and a program that repeats itself comes to the same windows.
 *
 * Everything is under heap->lock. */
#include "base/bits.h"
#include "internal.h"

enum { WINDOW_MAX_STEPS = 65536 }; /* extents that one search looks at */

static tarni_phys *alias_chunk(const tarn_heap *heap, const tarni_extent *alias) {
  return &heap->chunks[heap->units[alias->offset / heap->unit]];
}

/* Whether the chunk behind an alias can come here, as far as can be told with a look at it. */
static bool is_available(const tarn_heap *heap, const tarni_search *search,
                         const tarni_phys *chunk) {
  return chunk->n_used == 0 && chunk->refused != search->number &&
         (search->may_steal || tarni_order_is_met_locked(heap, &chunk->order, search->lane));
}

static bool is_usable(const tarn_heap *heap, const tarni_search *search,
                      const tarni_extent *extent) {
  return (extent->kind == TARNI_EXTENT_VOID && search->may_map) ||
         (extent->kind == TARNI_EXTENT_FREE && !heap->is_fixed &&
          tarni_order_is_met_locked(heap, &extent->order, search->lane)) ||
         (extent->kind == TARNI_EXTENT_ALIAS &&
          is_available(heap, search, alias_chunk(heap, extent)));
}

/* Whether the chunk behind an alias can be at one more place of the window: it is not in it yet. */
static bool alias_fits(const tarn_heap *heap, const tarni_extent *alias, uint64_t start,
                       uint64_t end) {
  tarni_phys *chunk = alias_chunk(heap, alias);
  if (chunk->stamp == heap->n_searches || tarni_chunk_overlaps(heap, chunk, start, end)) {
    return false;
  }
  chunk->stamp = heap->n_searches;
  return true;
}

/* Whether all of a window can be had. If not, *next is the extent where the next one may begin. */
static bool window_fits(tarn_heap *heap, tarni_search *search, const tarni_window *window,
                        uint64_t size, tarni_index *next) {
  const uint64_t end = window->start + size;
  uint32_t n = 0;
  *next = heap->extents[window->first].next;
  heap->n_searches++;
  for (tarni_index i = window->first; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    search->n_steps++;
    if (!is_usable(heap, search, extent)) {
      *next = extent->next; /* it is in the way of all that begin before it */
      return false;
    }
    if (++n > search->max_pieces ||
        (extent->kind == TARNI_EXTENT_ALIAS && !alias_fits(heap, extent, window->start, end))) {
      return false;
    }
    if (extent->offset + extent->size >= end) {
      return true;
    }
  }
  *next = 0; /* the zone ends before, and all the more for those that begin later */
  return false;
}

/* The lowest window that has nothing mapped: what there is when a search would take too long. */
static tarni_window window_void(tarn_heap *heap, const tarni_need *need) {
  const tarni_index first =
      tarni_extent_first_locked(heap, need->zone, TARNI_TREE_VOID, need->size, need->alignment);
  return (tarni_window){.start = tarni_align_up(heap->extents[first].offset, need->alignment),
                        .first = first};
}

tarni_window tarni_window_lowest_locked(tarn_heap *heap, tarni_search *search,
                                        const tarni_need *need) {
  tarni_index next;
  for (tarni_index i = heap->zones[need->zone].head; i != 0 && search->n_steps < WINDOW_MAX_STEPS;
       i = next) {
    const tarni_extent *extent = &heap->extents[i];
    const tarni_window window = {.start = tarni_align_up(extent->offset, need->alignment),
                                 .first = i};
    if (window.start >= extent->offset + extent->size) {
      search->n_steps++;
      next = extent->next;
    } else if (window_fits(heap, search, &window, need->size, &next)) {
      return window;
    }
  }
  return search->may_map ? window_void(heap, need) : (tarni_window){0};
}
