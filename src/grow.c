/* SPDX-License-Identifier: MIT
 *
 * How a heap gets more room. New memory is made in a window of addresses (window.c), of which the
 * void parts get chunks. As long as the heap holds hardly more than the most that was used that is
 * all; then memory that is free elsewhere comes together in a view (join.c), and only what is
 * missing for that is made. */
#include <stdlib.h>

#include "base/bits.h"
#include "growth.h"

enum {
  /* What is missing gets chunks of ever less: this part of what is still missing, but no more than
   * that part of what the heap holds, and no less than the third, or so many bytes. In a young
   * heap, which holds less than this many bytes, they are larger: it may hold more above what is
   * used, and each mapping counts for more. */
  GROW_CHUNK_PART = 12,
  GROW_CHUNK_MOST = 64,
  GROW_CHUNK_LEAST = 1024,
  GROW_VIEW_PART = 4, /* the first, where they are made for a view, and so mapped twice */
  GROW_YOUNG_HEAP = 1 << 30,
  GROW_YOUNG_PART = 3,
  GROW_YOUNG_MOST = 6,
  GROW_YOUNG_LEAST = 16 << 20,
  GROW_LIMIT_SHARE = 256,     /* no chunk is larger than this part of the limit, */
  GROW_MAX_CHUNK = 256 << 20, /* or so many bytes */
  GROW_EASED_SHARE = 16, /* this part of what it holds, a cache, is made by one that is eased, */
  GROW_EASED_MOST = 32 << 20, /* but no more */
  GROW_LOAD_SHARE = 16, /* and this part by one that loads and holds less than this many bytes, */
  GROW_LOAD_HEAP = 512 << 20,
  GROW_LOAD_MOST = 16 << 20,  /* but no more, */
  GROW_LOAD_LESS = 4 << 20,   /* or every other time no more than that; */
  GROW_LOAD_LIMIT_SHARE = 8,  /* and nothing above this part of the limit */
  GROW_LEAN_SHARE = 4,        /* above this part of what may still be made a search is lean */
  GROW_SMALL_HEAP = 32 << 20, /* up to here memory is made, and neither joined nor collected for */
  /* Memory above the peak of use by these parts is made and not joined: the first for large blocks
   * alone; and the second, between so many units, besides, since small heaps have few chunks to
   * choose from; the third where they are young. */
  GROW_SLACK_SHARE = 256,
  GROW_EXTRA_SHARE = 256,
  GROW_YOUNG_EXTRA_SHARE = 40,
  GROW_EXTRA_LEAST = 2,
  GROW_EXTRA_MOST = 10,
  GROW_GAP_SHARE = 64, /* of the limit: no more is stranded for the sake of where blocks begin */
};

/* ---- How much ---- */

/* Bytes that the heap may still make. */
static uint64_t room_left_locked(const tarn_heap *heap) {
  return heap->limit_bytes - tarni_min(heap->limit_bytes, tarni_held_bytes_locked(heap));
}

static tarn_status limit_fail(const tarn_heap *heap, uint64_t more) {
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = more,
                             .available_bytes = room_left_locked(heap)};
  const bool is_device = heap->limit_bytes >= heap->port->device.total_bytes;
  return tarni_fail(is_device ? TARN_DEVICE_MEMORY : TARN_LIMIT, "tarn_alloc", &facts,
                    is_device ? "Free blocks."
                              : "Free blocks, or raise the limit with "
                                "tarn_heap_set_limit.",
                    "%llu more bytes would pass the heap's limit: %llu of %llu are held",
                    (unsigned long long)more, (unsigned long long)tarni_held_bytes_locked(heap),
                    (unsigned long long)heap->limit_bytes);
}

bool tarni_grow_is_cheap_locked(const tarn_heap *heap, uint64_t more) {
  return !heap->is_fixed && heap->reserved_bytes + more + heap->unit <= GROW_SMALL_HEAP;
}

/* What the heap may hold above the peak of what was used, before it looks elsewhere. */
static uint64_t slack_of(const tarn_heap *heap, bool is_large) {
  const uint64_t peak = heap->used_peak_bytes;
  const uint64_t extra = peak <= GROW_YOUNG_HEAP ? GROW_YOUNG_EXTRA_SHARE : GROW_EXTRA_SHARE;
  const uint64_t most = tarni_min(peak / extra, GROW_EXTRA_MOST * heap->unit);
  return (is_large ? peak / GROW_SLACK_SHARE : 0) + tarni_max(most, GROW_EXTRA_LEAST * heap->unit);
}

/* Whether so much new memory leaves the heap within its slack. */
static bool is_within_slack(const tarn_heap *heap, const tarni_need *need, uint64_t more) {
  const bool is_large = need->zone != TARNI_ZONE_SMALL;
  const uint64_t peak = tarni_max(heap->used_peak_bytes, heap->used_bytes + need->size);
  const uint64_t most = peak + slack_of(heap, is_large) + tarni_rest_earned_locked(heap, more);
  return heap->reserved_bytes + more <= tarni_max(most, GROW_SMALL_HEAP) &&
         tarni_held_bytes_locked(heap) + more <= heap->limit_bytes;
}

/* As long as little memory is stranded, free but on chunks that are in use, and the heap can make
 * more: otherwise the gaps would be memory that nobody can have. */
bool tarni_grow_may_gap_locked(const tarn_heap *heap, uint64_t size) {
  const uint64_t held = heap->reserved_bytes;
  const uint64_t out = heap->used_bytes + heap->idle_bytes + heap->leaving_bytes;
  const uint64_t most = tarni_min(slack_of(heap, true), heap->limit_bytes / GROW_GAP_SHARE);
  return !heap->is_fixed && held - tarni_min(held, out) <= most &&
         size <= room_left_locked(heap) / GROW_LEAN_SHARE &&
         (heap->refused_bytes == 0 || held < heap->refused_bytes);
}

/* What the heap may hold in all, and how large a chunk may be. */
static uint64_t limit_of(const tarn_heap *heap) {
  return tarni_min(heap->limit_bytes, heap->port->device.total_bytes);
}

static uint64_t chunk_most(const tarn_heap *heap) {
  return tarni_min(limit_of(heap) / GROW_LIMIT_SHARE, GROW_MAX_CHUNK);
}

/* The next chunk where so much is missing, in a heap that is to hold so much in all. */
static uint64_t chunk_next(const tarn_heap *heap, const tarni_growth *growth, uint64_t missing,
                           uint64_t total) {
  const bool is_young = total < GROW_YOUNG_HEAP;
  const uint64_t share = growth->is_for_view ? GROW_VIEW_PART : GROW_CHUNK_PART;
  const uint64_t part = missing / (is_young ? GROW_YOUNG_PART : share);
  const uint64_t most = total / (is_young ? GROW_YOUNG_MOST : GROW_CHUNK_MOST);
  const uint64_t least = is_young ? GROW_YOUNG_LEAST : total / GROW_CHUNK_LEAST;
  const uint64_t bytes = tarni_min(tarni_max(tarni_min(part, most), least), chunk_most(heap));
  return tarni_min(tarni_max(tarni_align_down(bytes, heap->unit), heap->unit), missing);
}

/* What a program loads at first, as the weights of a model, comes in blocks of hardly more than a
 * unit, for each of which a unit would be made; and once it has given some back they come together
 * in rows of dozens of chunks. So, until there is the first view, as much is made at once as
 * several of them need, in turn more and less: rows end best in small chunks. */
static uint64_t least_of_load(const tarn_heap *heap, const tarni_need *need) {
  const uint64_t held = heap->reserved_bytes;
  const uint64_t most = heap->n_chunks % 2 == 0 ? GROW_LOAD_MOST : GROW_LOAD_LESS;
  const uint64_t share = tarni_min(held / GROW_LOAD_SHARE, chunk_most(heap));
  const uint64_t least = tarni_align_down(tarni_min(share, most), heap->unit);
  const bool is_loading = held < GROW_LOAD_HEAP && heap->n_aliases == 0 &&
                          need->zone != TARNI_ZONE_SMALL && !heap->is_fixed;
  const bool may = heap->refused_bytes == 0 && tarni_held_bytes_locked(heap) + need->size + least <=
                                                   limit_of(heap) / GROW_LOAD_LIMIT_SHARE;
  return is_loading && may ? least : 0;
}

/* What an eased heap needs wanders, and it grows by less and less and never for the last time: a
 * step ahead is most often the last. Not beyond its bounds, where it would have to collect again.
 */
static uint64_t step_of_eased(const tarn_heap *heap, const tarni_need *need) {
  const uint64_t parts = (uint64_t)GROW_EASED_SHARE * tarni_max(heap->n_caches, 1);
  const uint64_t share = tarni_max(heap->reserved_bytes / parts, heap->unit);
  const uint64_t step = tarni_min((uint64_t)1 << tarni_log2(share), GROW_EASED_MOST);
  const bool may = !need->is_short && step > heap->unit && heap->refused_bytes == 0 &&
                   tarni_rest_is_eased_locked(heap, need->size + step);
  return may ? step : heap->unit;
}

/* Whether a view is looked for where so much memory would have to be made else. */
static bool may_join(const tarn_heap *heap, const tarni_need *need, uint64_t more) {
  const bool may_make = is_within_slack(heap, need, more) || tarni_rest_is_eased_locked(heap, more);
  return !heap->is_fixed && (need->is_short || !may_make);
}

/* Whether what is made is spare: a job has ended, and what is held is as much as was ever used, but
 * in pieces. The job's next round was without that until here, and is to find the same places again
 * when it is there. */
static bool is_late(const tarn_heap *heap, const tarni_need *need) {
  const uint64_t peak = heap->used_peak_bytes;
  return tarni_tide_is_again_locked(heap) && heap->reserved_bytes >= peak &&
         heap->used_bytes + need->size <= peak;
}

/* ---- New memory ---- */

/* Plans new chunks for [offset, end). */
static tarn_status plan_new_locked(tarn_heap *heap, tarni_growth *growth, uint64_t offset,
                                   uint64_t end) {
  const uint64_t more = growth->fresh_bytes + (end - offset);
  if (more > room_left_locked(heap)) {
    return limit_fail(heap, more);
  }
  const uint64_t total = heap->reserved_bytes + more;
  while (offset < end) {
    const uint64_t least = tarni_max(growth->step, growth->least);
    const uint64_t next = tarni_max(chunk_next(heap, growth, end - offset, total), least);
    const uint64_t bytes = heap->is_fixed ? end - offset : tarni_min(next, end - offset);
    const tarni_index index =
        growth->n_chunks < growth->max_chunks ? tarni_phys_take_locked(heap) : 0;
    if (index == 0) {
      return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free blocks, and trim the heap.",
                        "the heap has no records left for its %u chunks", heap->max_chunks);
    }
    const uint32_t n_units = (uint32_t)tarni_unit_of(heap, bytes);
    heap->chunks[index] = (tarni_phys){.n_units = n_units, .is_spare = growth->is_spare};
    growth->chunks[growth->n_chunks++] =
        (growth_chunk){.chunk = index, .n_units = n_units, .offset = offset, .is_new = true};
    growth->fresh_bytes += bytes; /* what captures make meanwhile does not take its place */
    heap->planned_bytes += bytes;
    offset += bytes;
  }
  return TARN_OK;
}

/* Takes the window's extents; void ones to the units that the window touches, and what is made
 * ahead, with new chunks for them. */
static tarn_status plan_window_locked(tarn_heap *heap, tarni_growth *growth, tarni_index first) {
  for (tarni_index i = first; i != 0 && heap->extents[i].offset < growth->end;) {
    const tarni_extent *extent = tarni_extent_at(heap, i);
    const bool is_void = extent->kind == TARNI_EXTENT_VOID;
    const uint64_t unit = is_void ? heap->unit : TARNI_GRANULE;
    const uint64_t from = tarni_max(tarni_align_down(growth->start, unit), extent->offset);
    const uint64_t size = tarni_align_up(growth->end - from, is_void ? growth->step : unit);
    const uint64_t most = is_void ? tarni_max(size, growth->least) : size;
    const uint64_t to = tarni_min(from + most, extent->offset + extent->size);
    if (!tarni_growth_take_locked(heap, growth, i, from, to)) {
      return tarni_growth_no_records(heap);
    }
    i = tarni_extent_at(heap, i)->next;
    TARN_TRY(is_void ? plan_new_locked(heap, growth, from, to) : TARN_OK);
  }
  return TARN_OK;
}

/* Each chunk covers a unit of the window at least, which touches two more than it fills; and
 * between two of them may be something else. What is made ahead is cut where there is no room for
 * all of it. */
static tarn_status window_make(const tarn_heap *heap, tarni_index lane, uint64_t size,
                               tarni_growth **growth) {
  if (heap->is_fixed && tarni_capture_forbids()) { /* it would be broken by the registration */
    const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = size};
    return tarni_fail(TARN_CAPTURE, "tarn_pinned_alloc", &facts,
                      "Make room before the capture: tarn_pinned_reserve, or blocks of such sizes "
                      "taken and given back.",
                      "%llu bytes more of pinned memory would be needed, and memory cannot be "
                      "pinned while a stream is being captured",
                      (unsigned long long)size);
  }
  const uint64_t n = tarni_unit_of(heap, size + GROW_EASED_MOST) + 3;
  return tarni_growth_make(heap, lane, n, 2 * n + 64, growth);
}

/* Finds a window, and plans it. Where a view is rather looked for nothing is planned, and *missing
 * is what would have to be made. */
static tarn_status grow_plan_locked(tarn_heap *heap, tarni_growth *growth, const tarni_need *need,
                                    bool may_view, uint64_t *missing) {
  growth->step = step_of_eased(heap, need);
  growth->least = least_of_load(heap, need);
  growth->is_spare = is_late(heap, need);
  growth->search.is_lean = need->is_short || need->size > room_left_locked(heap) / GROW_LEAN_SHARE;
  const tarni_window chosen = tarni_window_find_locked(heap, &growth->search, need);
  if (chosen.first == 0 && may_view && !heap->is_fixed) { /* a view has addresses of its own */
    *missing = tarni_align_up(need->size, heap->unit);
    return TARN_OK;
  }
  if (chosen.first == 0) {
    return tarni_growth_no_addresses(heap, need->size);
  }
  if (may_view && chosen.missing != 0 && may_join(heap, need, chosen.missing)) {
    *missing = chosen.missing;
    return TARN_OK;
  }
  growth->start = chosen.start;
  growth->end = chosen.start + need->size;
  return plan_window_locked(heap, growth, chosen.first);
}

/* What was planned is done. */
static tarn_status grow_run(tarn_heap *heap, tarni_growth *growth, tarn_status status,
                            tarni_index *extent) {
  tarni_index whole = 0;
  TARN_TRY(tarni_growth_run(heap, growth, status, &whole));
  return tarni_growth_end(heap, growth, whole, extent);
}

/* A window, unless a view is rather looked for: then *missing is not 0. */
static tarn_status grow_window(tarn_heap *heap, const tarni_need *need, bool may_view,
                               uint64_t *missing, tarni_index *extent) {
  tarni_growth *growth;
  *missing = 0;
  TARN_TRY(window_make(heap, need->lane, need->size, &growth));
  tarni_lock_acquire(&heap->lock);
  *extent = tarni_chunk_ready_locked(heap, need); /* freed meanwhile */
  const tarn_status status =
      *extent == 0 ? grow_plan_locked(heap, growth, need, may_view, missing) : TARN_OK;
  tarni_lock_release(&heap->lock);
  if (*extent != 0 || *missing != 0) {
    free(growth);
    return TARN_OK;
  }
  const bool is_ahead = growth->step > heap->unit || growth->least > heap->unit;
  const tarn_status done = grow_run(heap, growth, status, extent);
  if (is_ahead && done == TARN_DEVICE_MEMORY && heap->refused_bytes != 0) {
    return grow_window(heap, need, may_view, missing,
                       extent); /* less may do, no more is asked for */
  }
  return done;
}

/* view_of: what a view is to be made for with it, or NULL. */
static tarn_status grow_new(tarn_heap *heap, uint64_t size, const tarni_need *view_of,
                            tarni_index *extent) {
  *extent = 0;
  heap->is_map_refused = false;
  tarni_growth *growth;
  TARN_TRY(window_make(heap, TARNI_LANE_COMMON, size, &growth));
  growth->is_for_view = view_of != NULL;
  tarni_lock_acquire(&heap->lock);
  growth->is_spare = view_of != NULL && is_late(heap, view_of);
  const tarni_index empty = tarni_extent_first_locked(heap, TARNI_ZONE_LARGE, TARNI_TREE_VOID, size,
                                                      heap->unit, UINT32_MAX);
  tarn_status status;
  if (empty == 0) {
    status = tarni_growth_no_addresses(heap, size);
  } else {
    growth->start = tarni_extent_at(heap, empty)->offset;
    growth->end = growth->start + size;
    status = plan_window_locked(heap, growth, empty);
  }
  tarni_lock_release(&heap->lock);
  return grow_run(heap, growth, status, extent);
}

tarn_status tarni_grow_new(tarn_heap *heap, uint64_t size, tarni_index *extent) {
  return grow_new(heap, size, NULL, extent);
}

/* ---- Growing ---- */

/* Room that is there, but not where the block is best begun. */
static tarni_index ready_anywhere(tarn_heap *heap, const tarni_need *need) {
  tarni_need plain = *need;
  plain.alignment = need->least;
  tarni_lock_acquire(&heap->lock);
  const tarni_index extent = tarni_chunk_ready_locked(heap, &plain);
  tarni_lock_release(&heap->lock);
  return extent;
}

/* A view of what is free and, if that is not enough, of what is made for it: less than `missing`.
 */
static tarn_status grow_view(tarn_heap *heap, const tarni_need *need, bool may_steal,
                             uint64_t missing, tarni_index *extent) {
  uint64_t more = 0;
  *extent = need->alignment != need->least ? ready_anywhere(heap, need) : 0;
  if (*extent == 0) {
    TARN_TRY(tarni_join_grow(heap, need, may_steal, &more, extent));
  }
  if (*extent != 0 || more == 0 || more >= missing) {
    return TARN_OK;
  }
  static const tarni_order complete = {0};
  const uint64_t kept =
      heap->reserved_bytes - heap->leaving_bytes; /* both under heap->grow alone */
  tarni_index fresh;
  TARN_TRY(grow_new(heap, more, need, &fresh));
  tarni_lock_acquire(&heap->lock);
  tarni_extent_give_locked(heap, fresh, TARNI_EXTENT_FREE, &complete);
  tarni_lock_release(&heap->lock);
  const tarn_status status = tarni_join_grow(heap, need, may_steal, &more, extent);
  if (*extent == 0) { /* in vain: it would be made again and again */
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    (void)tarni_chunk_trim_ready_grow(heap, kept);
    return status != TARN_OK ? tarni_fail_again(&error) : TARN_OK;
  }
  return status;
}

/* As tarni_grow. Where no view was made, no more than `most` is made in its stead. */
static tarn_status grow_most(tarn_heap *heap, const tarni_need *need, bool may_steal, uint64_t most,
                             tarni_index *extent) {
  uint64_t missing;
  *extent = 0;
  heap->is_map_refused = false;
  TARN_TRY(grow_window(heap, need, true, &missing, extent));
  if (missing != 0) {
    TARN_TRY(grow_view(heap, need, may_steal, missing, extent));
  }
  const bool may_make = *extent == 0 && missing <= most;
  return may_make ? grow_window(heap, need, false, &missing, extent) : TARN_OK;
}

tarn_status tarni_grow(tarn_heap *heap, const tarni_need *need, bool may_steal,
                       tarni_index *extent) {
  return grow_most(heap, need, may_steal, UINT64_MAX, extent);
}

tarn_status tarni_grow_apart(tarn_heap *heap, const tarni_need *need, tarni_index *extent) {
  uint64_t more;
  heap->is_map_refused = false;
  TARN_TRY(tarni_join_grow(heap, need, false, &more, extent));
  if (*extent != 0) {
    return TARN_OK;
  }
  const uint64_t most =
      more != 0 ? more : tarni_align_up(need->size, heap->unit) + heap->unit; /* as a window has */
  tarni_lock_acquire(&heap->lock);
  const bool may = tarni_rest_may_part_locked(heap, most);
  tarni_lock_release(&heap->lock);
  return may ? grow_most(heap, need, false, most, extent) : TARN_OK;
}

/* ---- Room that is there ---- */

/* Free extents side by side, in a heap that has any: a window of them needs no driver call. */
static tarni_index seam_take_locked(tarn_heap *heap, tarni_growth *growth, const tarni_need *need) {
  if (tarni_bitset_from(&heap->seams, 0) == TARNI_BITSET_NONE) {
    return 0;
  }
  growth->search.may_map = false;
  const tarni_window chosen = tarni_window_find_locked(heap, &growth->search, need);
  if (chosen.first == 0) {
    return 0;
  }
  growth->start = chosen.start;
  growth->end = chosen.start + need->size;
  if (plan_window_locked(heap, growth, chosen.first) != TARN_OK) {
    tarni_growth_restore_locked(heap, growth);
    return 0;
  }
  return tarni_growth_unite_locked(heap, growth);
}

bool tarni_grow_quietly(tarn_heap *heap, const tarni_need *need, tarni_index *extent) {
  tarni_growth *growth;
  *extent = 0;
  if (window_make(heap, need->lane, need->size, &growth) != TARN_OK) {
    return false;
  }
  tarni_lock_acquire(&heap->lock);
  *extent = tarni_chunk_ready_locked(heap, need); /* freed meanwhile */
  *extent = *extent == 0 ? seam_take_locked(heap, growth, need) : *extent;
  if (*extent == 0 && heap->n_aliases != 0) {
    *extent = tarni_view_find_locked(heap, &growth->search, need);
  }
  tarni_lock_release(&heap->lock);
  free(growth);
  return *extent != 0;
}
