/* SPDX-License-Identifier: MIT
 *
 * Views: rows of places, in a zone of their own, where chunks from anywhere lie side by side. A
 * handle is mapped whole, so what is free in the middle of a chunk is of use to small blocks only.
 * But what is free at the end of one and at the beginning of the next one in the row is a single
 * range of addresses: a block can lie there. For as long as it does the memory behind it is lent:
 * at the chunks' homes, where all memory is in the books, lie LENT extents, and the slab has a list
 * of them. When it goes they are free again, with the order of the stream that gave it back. So
 * all memory is in the books once, and the rows only say which ends meet.
 *
 * Small blocks have addresses of their own. Where they need more, a chunk of large blocks that is
 * free as a whole is mapped among them, and lends what they use likewise. It is theirs as long as
 * one of them lies there, and large blocks leave it alone: parts of chunks that both use would lie
 * elsewhere in each round of a program, since small blocks do. Where memory is short they share.
 *
 * What is free at a chunk's two ends is noted with it, and found anew where that has changed. It is
 * a hint: memory is lent only if it is free then, and may be used by the lane.
 *
 * Everything is under heap->lock. How rows are made is join.c's business; while it makes one, under
 * heap->grow, the addresses around a new view are BUSY for a moment, though what is behind them is
 * free. Searches without heap->grow only look at places that are older than a home, so than that
 * row. */
#include "base/bits.h"
#include "room.h"

enum {
  VIEW_ROWS = 256,  /* the last ones: whether they can go on */
  VIEW_WALK = 16,   /* extents in use in a row, before the next free one is looked up */
  VIEW_STEPS = 512, /* places that are looked at where there is room at home */
};

/* ---- The ends of chunks ---- */

/* Bytes that are free from one end of a chunk on, up to the other one, as far as the search can use
 * them; without one, whoever has freed them. What they wait for is added to *order; *is_mixed: it
 * does not fit into one. */
static uint64_t end_walk(const tarn_heap *heap, const tarni_phys *chunk, bool is_tail,
                         const tarni_search *search, tarni_order *order, bool *is_mixed) {
  const uint64_t start = tarni_chunk_start(heap, chunk), end = tarni_chunk_end(heap, chunk);
  uint64_t from = end, to = start;
  tarni_index index = tarni_extent_containing_locked(heap, is_tail ? end - 1 : start);
  while (index != 0) {
    const tarni_extent *extent = &heap->extents[index];
    if (extent->kind != TARNI_EXTENT_FREE || extent->offset >= end ||
        extent->offset + extent->size <= start ||
        (search != NULL && !tarni_is_usable_locked(heap, search, extent))) {
      break;
    }
    *is_mixed = !tarni_order_unite_open_locked(heap, order, &extent->order) || *is_mixed;
    from = tarni_min(from, tarni_max(extent->offset, start));
    to = tarni_max(to, tarni_min(extent->offset + extent->size, end));
    index = is_tail ? extent->previous : extent->next;
  }
  return from < to ? to - from : 0;
}

/* Whether something is free on both sides of where a place begins, in a row of views. */
static void joint_see(tarn_heap *heap, uint64_t unit) {
  const tarni_index left = heap->units[unit - 1], right = heap->units[unit];
  const bool is =
      left != 0 && right != 0 && heap->chunks[left].tail != 0 && heap->chunks[right].head != 0;
  (is ? tarni_bitset_add : tarni_bitset_remove)(&heap->joints, unit);
}

static bool is_view(const tarn_heap *heap, uint64_t unit) {
  return unit >= tarni_unit_of(heap, heap->large_end);
}

static uint32_t units_in(const tarn_heap *heap, uint32_t granules) {
  return granules >> (heap->unit_log2 - TARNI_GRANULE_LOG2);
}

/* Notes the units of a place behind which all is free: those at the chunk's two ends. */
static void open_note(tarn_heap *heap, uint64_t unit, const tarni_phys *chunk) {
  const uint64_t n = chunk->n_units;
  const uint64_t head = units_in(heap, chunk->head), tail = units_in(heap, chunk->tail);
  const uint64_t closed = n - tarni_min(n, head + tail); /* a free chunk is its head and its tail */
  tarni_bitset_fill(&heap->open, unit, n, true);
  tarni_bitset_fill(&heap->open, unit + head, closed, false);
}

/* Where a place begins and ends, and which one is the last of its row. */
void tarni_joints_note_locked(tarn_heap *heap, uint64_t unit, uint32_t n_units) {
  const uint64_t first = tarni_unit_of(heap, heap->large_end);
  const uint64_t end = unit + n_units, n_all = tarni_unit_of(heap, heap->size);
  if (!is_view(heap, unit)) {
    return;
  }
  const bool is_placed = heap->units[unit] != 0;
  const bool is_last = is_placed && (end == n_all || heap->units[end] == 0);
  const tarni_phys *chunk = &heap->chunks[heap->units[unit]]; /* of a place that is there */
  if (is_placed) {
    open_note(heap, unit, chunk);
  } else {
    tarni_bitset_fill(&heap->open, unit, n_units, false);
  }
  (is_last ? tarni_bitset_add : tarni_bitset_remove)(&heap->row_ends, unit);
  if (unit != first) {
    joint_see(heap, unit);
  }
  if (end != n_all) {
    joint_see(heap, end);
  }
  if (unit != first && heap->units[unit - 1] != 0) {
    const uint64_t before = heap->places[unit - 1].first;
    (is_placed ? tarni_bitset_remove : tarni_bitset_add)(&heap->row_ends, before);
  }
}

/* The units of a chunk that are free are others than before, at all places in views. */
static void open_see(tarn_heap *heap, const tarni_phys *chunk) {
  for (uint32_t at = chunk->places; at != 0; at = heap->places[at - 1].next) {
    if (is_view(heap, at - 1)) {
      open_note(heap, at - 1, chunk);
    }
  }
}

static void joints_see(tarn_heap *heap, const tarni_phys *chunk) {
  const uint64_t n_all = tarni_unit_of(heap, heap->size);
  for (uint32_t at = chunk->places; at != 0; at = heap->places[at - 1].next) {
    const uint64_t unit = at - 1, end = unit + chunk->n_units;
    if (is_view(heap, unit)) {
      if (unit * heap->unit != heap->large_end) {
        joint_see(heap, unit);
      }
      if (end != n_all) {
        joint_see(heap, end);
      }
    }
  }
}

static void ends_see(tarn_heap *heap, tarni_phys *chunk) {
  const uint32_t before[2] = {chunk->head, chunk->tail};
  chunk->head = chunk->tail = 0;
  chunk->is_mixed = false;
  chunk->order = (tarni_order){0};
  if (chunk->places != 0) {
    const uint64_t head = end_walk(heap, chunk, false, NULL, &chunk->order, &chunk->is_mixed);
    const uint64_t tail = end_walk(heap, chunk, true, NULL, &chunk->order, &chunk->is_mixed);
    chunk->head = (uint32_t)(head >> TARNI_GRANULE_LOG2);
    chunk->tail = (uint32_t)(tail >> TARNI_GRANULE_LOG2);
  }
  if (units_in(heap, chunk->head) != units_in(heap, before[0]) ||
      units_in(heap, chunk->tail) != units_in(heap, before[1])) {
    open_see(heap, chunk);
  }
  if ((before[0] != 0) != (chunk->head != 0) || (before[1] != 0) != (chunk->tail != 0)) {
    joints_see(heap, chunk);
  }
}

void tarni_ends_note_range_locked(tarn_heap *heap, uint64_t offset, uint64_t size) {
  const uint64_t last = tarni_unit_of(heap, offset + size - 1);
  for (uint64_t unit = tarni_unit_of(heap, offset); unit <= last && !heap->is_fixed;) {
    const tarni_index index = heap->units[unit];
    tarni_ends_note_locked(heap, index);
    unit = index != 0 ? heap->places[unit].first + heap->chunks[index].n_units : unit + 1;
  }
}

void tarni_ends_update_locked(tarn_heap *heap) {
  for (uint64_t i = 0; (i = tarni_bitset_from(&heap->stale, i)) != TARNI_BITSET_NONE;) {
    tarni_bitset_remove(&heap->stale, i);
    ends_see(heap, &heap->chunks[i]);
  }
}

/* Most often all of it may be used; else it is looked at, piece by piece. */
static uint64_t end_of(const tarn_heap *heap, const tarni_search *search, const tarni_phys *chunk,
                       bool is_tail) {
  const uint32_t granules = is_tail ? chunk->tail : chunk->head;
  if (granules == 0 || chunk->refused == search->number || tarni_is_borrowed(heap, search, chunk)) {
    return 0;
  }
  if (!chunk->is_mixed && tarni_order_is_met_locked(heap, &chunk->order, search->lane)) {
    return (uint64_t)granules << TARNI_GRANULE_LOG2;
  }
  tarni_order order = {0};
  bool is_mixed = false;
  return end_walk(heap, chunk, is_tail, search, &order, &is_mixed);
}

uint64_t tarni_head_locked(const tarn_heap *heap, const tarni_search *search,
                           const tarni_phys *chunk) {
  return end_of(heap, search, chunk, false);
}

uint64_t tarni_tail_locked(const tarn_heap *heap, const tarni_search *search,
                           const tarni_phys *chunk) {
  return end_of(heap, search, chunk, true);
}

/* ---- Lending ---- */

tarni_index tarni_lend_locked(tarn_heap *heap, const tarni_search *search, uint64_t offset,
                              uint64_t size, tarni_order *waits) {
  tarni_order order;
  if (!tarni_range_is_free_locked(heap, offset, offset + size, search, &order) ||
      (!tarni_order_is_met_locked(heap, &order, search->lane) && /* else nothing is waited for */
       !tarni_order_unite_open_locked(heap, waits, &order))) {
    return 0;
  }
  const tarni_index index = tarni_range_isolate_locked(heap, offset, offset + size);
  if (index != 0) {
    tarni_extent_at(heap, index)->kind = TARNI_EXTENT_LENT;
    tarni_extent_at(heap, index)->link = 0;
    tarni_ends_note_locked(heap, heap->units[tarni_unit_of(heap, offset)]);
  }
  return index;
}

bool tarni_lend_behind_locked(tarn_heap *heap, const tarni_search *search, uint64_t start,
                              uint64_t end, tarni_lent *lent) {
  while (start < end) {
    const tarni_behind at = tarni_behind_locked(heap, start, end);
    const tarni_index index = tarni_lend_locked(heap, search, at.home, at.size, &lent->waits);
    if (index == 0) {
      at.chunk->refused = search->number;
      return false;
    }
    tarni_lent_add(heap, lent, index);
    start += at.size;
  }
  return true;
}

void tarni_lent_return_locked(tarn_heap *heap, tarni_index first, const tarni_order *order) {
  while (first != 0) {
    tarni_extent *extent = tarni_extent_at(heap, first);
    const tarni_index index = first;
    const tarni_order own = extent->order;
    tarn_assert(extent->kind == TARNI_EXTENT_LENT);
    first = extent->link;
    extent->kind = TARNI_EXTENT_BUSY;
    tarni_extent_give_locked(heap, index, TARNI_EXTENT_FREE, order != NULL ? order : &own);
  }
}

void tarni_view_leave_locked(tarn_heap *heap, tarni_index index, const tarni_order *order) {
  const tarni_extent *extent = tarni_extent_at(heap, index);
  if (order != NULL) {
    tarni_places_note_locked(heap, extent->offset, extent->size, order);
    if (extent->offset >= heap->large_end) {
      tarni_hint_note_locked(heap, extent->offset, extent->size);
    }
  }
  tarni_lent_return_locked(heap, extent->lent, order);
  tarni_extent_give_locked(heap, index, TARNI_EXTENT_ALIAS, NULL);
}

/* ---- Runs of what is free ---- */

static tarni_phys *chunk_at(const tarn_heap *heap, uint64_t unit) {
  return &heap->chunks[heap->units[unit]];
}

/* Adds to a run what of a place is free, which is so much of its chunk, unless all of that is in it
 * already. Whether it goes on behind it. */
static bool run_add(const tarn_heap *heap, tarni_phys *chunk, uint64_t number, uint64_t *bytes) {
  const bool is_all = *bytes == tarni_chunk_bytes(heap, chunk);
  if (is_all && chunk->stamp == number) {
    *bytes = 0;
    return false;
  }
  chunk->stamp = is_all ? number : chunk->stamp;
  return is_all;
}

/* The run that begins in what is free at the end of a place, or in places before it that are free
 * as a whole; as far as it goes, or as so many places were looked at. No chunk is in it twice as a
 * whole. */
static tarni_run run_at(tarn_heap *heap, const tarni_search *search, uint64_t unit, uint32_t most) {
  const uint64_t first = tarni_unit_of(heap, heap->large_end);
  const uint64_t n_all = tarni_unit_of(heap, heap->size);
  const uint64_t number = ++heap->n_searches;
  uint64_t place = heap->places[unit].first;
  uint64_t end = (place + chunk_at(heap, place)->n_units) * heap->unit, start = end;
  uint32_t n_seen = 0;
  bool goes_on;
  do { /* back */
    n_seen++;
    uint64_t tail = tarni_tail_locked(heap, search, chunk_at(heap, place));
    goes_on = run_add(heap, chunk_at(heap, place), number, &tail) && place != first &&
              heap->units[place - 1] != 0 && n_seen < most;
    start -= tail;
    place = goes_on ? heap->places[place - 1].first : place;
  } while (goes_on);
  uint64_t next = tarni_unit_of(heap, end);
  goes_on = start != end;
  while (goes_on && n_seen < most && next != n_all && heap->units[next] != 0) { /* and on */
    n_seen++;
    uint64_t head = tarni_head_locked(heap, search, chunk_at(heap, next));
    goes_on = run_add(heap, chunk_at(heap, next), number, &head);
    end += head;
    next += chunk_at(heap, next)->n_units;
  }
  return (tarni_run){.start = start, .end = end, .n_seen = n_seen};
}

/* ---- Views that are there ---- */

uint64_t tarni_youngest_locked(const tarn_heap *heap, uint64_t start, uint64_t end) {
  uint64_t number = 0;
  for (uint64_t unit = tarni_unit_of(heap, start); unit * heap->unit < end;) {
    const uint64_t first = heap->places[unit].first;
    number = tarni_max(number, heap->places[first].number);
    unit = first + chunk_at(heap, first)->n_units;
  }
  return number;
}

static bool is_whole(const tarni_phys *chunk, const tarn_heap *heap) {
  return (uint64_t)chunk->head << TARNI_GRANULE_LOG2 == tarni_chunk_bytes(heap, chunk);
}

/* Whether a run with this joint may have so much, and only places that are older than that. */
static bool joint_may(const tarn_heap *heap, uint64_t unit, uint64_t size, uint64_t than) {
  const tarni_phys *left = chunk_at(heap, unit - 1), *right = chunk_at(heap, unit);
  const uint64_t free = (uint64_t)(left->tail + right->head) << TARNI_GRANULE_LOG2;
  return heap->places[unit].number < than &&
         heap->places[heap->places[unit - 1].first].number < than &&
         (free >= size || is_whole(left, heap) || is_whole(right, heap));
}

/* The best window so far: that whose places were there first. What was mapped since does not change
 * where a program that repeats itself finds its memory. */
typedef struct view_fit {
  uint64_t start, number;
  uint32_t left; /* places that may still be looked at */
} view_fit;

/* Where there is room elsewhere, too, only the first places are looked at: most often the oldest.
 */
static uint32_t steps_of(uint64_t than) {
  return than != UINT64_MAX ? VIEW_STEPS : UINT32_MAX;
}

/* Counts places that were looked at. Whether more may be. */
static bool fit_goes_on(view_fit *fit, uint32_t n_seen) {
  fit->left = n_seen < fit->left ? fit->left - n_seen : 0;
  return fit->left != 0;
}

/* Looks at the run that begins in what is free at the end of a place, or before it. Returns the
 * unit that the next one is looked for from. */
static uint64_t fit_try(tarn_heap *heap, const tarni_search *search, const tarni_need *need,
                        uint64_t unit, view_fit *fit) {
  const tarni_run run = run_at(heap, search, unit, fit->left);
  const uint64_t start = tarni_align_up(run.start, need->least), end = start + need->size;
  const uint64_t number = end <= run.end ? tarni_youngest_locked(heap, start, end) : UINT64_MAX;
  if (number < fit->number) {
    fit->start = start;
    fit->number = number;
  }
  (void)fit_goes_on(fit, run.n_seen);
  return tarni_min(tarni_unit_of(heap, run.end) + 1, tarni_unit_of(heap, heap->size));
}

/* Windows of less than two units: with two places that meet, and something free on both sides.
 * Within one place they would have been found at home. */
static void fit_at_joints(tarn_heap *heap, const tarni_search *search, const tarni_need *need,
                          view_fit *fit) {
  uint64_t unit = tarni_unit_of(heap, heap->large_end);
  while (fit_goes_on(fit, 1) &&
         (unit = tarni_bitset_from(&heap->joints, unit)) != TARNI_BITSET_NONE) {
    unit = joint_may(heap, unit, need->size, fit->number)
               ? tarni_max(fit_try(heap, search, need, unit - 1, fit), unit + 1)
               : unit + 1;
  }
}

/* The unit behind the last place in a range that is not older than the best; the range's end where
 * no more may be looked at; 0: all are older. */
static uint64_t young_end(const tarn_heap *heap, uint64_t unit, uint64_t end, view_fit *fit) {
  uint64_t first = end;
  do { /* back */
    if (!fit_goes_on(fit, 1)) {
      return end;
    }
    first = heap->places[first - 1].first;
    if (heap->places[first].number >= fit->number) {
      return first + chunk_at(heap, first)->n_units;
    }
  } while (first > unit);
  return 0;
}

/* Larger ones have so many units in a row behind which all is free. */
static void fit_at_units(tarn_heap *heap, const tarni_search *search, const tarni_need *need,
                         view_fit *fit) {
  const uint64_t first = tarni_unit_of(heap, heap->large_end);
  const uint64_t n = tarni_unit_of(heap, need->size) - 1;
  uint64_t unit = first;
  while (fit_goes_on(fit, 1) &&
         (unit = tarni_bitset_run(&heap->open, &heap->barred, unit, n)) != TARNI_BITSET_NONE) {
    const uint64_t place = heap->places[unit].first;
    const tarni_phys *chunk = chunk_at(heap, place);
    const bool is_head = !is_whole(chunk, heap) && unit - place < units_in(heap, chunk->head);
    const uint64_t behind = young_end(heap, unit, unit + n, fit);
    if (behind != 0) {
      unit = behind;
    } else if (is_head && (place == first || heap->units[place - 1] == 0)) {
      unit++;
    } else { /* what ends in a place begins before it */
      unit = tarni_max(fit_try(heap, search, need, is_head ? place - 1 : unit, fit), unit + 1);
    }
  }
}

/* With places that are all older than that. UINT64_MAX: there is none. */
static uint64_t fit_in_views(tarn_heap *heap, const tarni_search *search, const tarni_need *need,
                             uint64_t than) {
  view_fit fit = {.start = UINT64_MAX, .number = than, .left = steps_of(than)};
  if (need->size < 2 * heap->unit) {
    fit_at_joints(heap, search, need, &fit);
  } else {
    fit_at_units(heap, search, need, &fit);
  }
  return fit.start;
}

uint64_t tarni_part_locked(const tarn_heap *heap, const tarni_search *search,
                           const tarni_need *need, const tarni_phys *chunk) {
  const uint64_t home = tarni_chunk_start(heap, chunk), end = tarni_chunk_end(heap, chunk);
  if ((uint64_t)chunk->n_used << TARNI_GRANULE_LOG2 == end - home) {
    return UINT64_MAX;
  }
  uint32_t n_walked = 0;
  tarni_index next;
  for (tarni_index i = tarni_extent_containing_locked(heap, home);
       i != 0 && heap->extents[i].offset < end; i = next) {
    const tarni_extent *extent = &heap->extents[i];
    next = extent->next;
    n_walked = extent->kind == TARNI_EXTENT_FREE ? 0 : n_walked + 1;
    if (n_walked == VIEW_WALK && !search->may_steal) {
      next =
          tarni_extent_from_locked(heap, tarni_zone_of(heap, home), extent->offset, search->lane);
      n_walked = 0;
    }
    const uint64_t from = tarni_max(extent->offset, home) - home;
    const uint64_t to = tarni_min(extent->offset + extent->size, end) - home;
    const uint64_t start = tarni_align_up(from, need->least);
    if (extent->kind == TARNI_EXTENT_FREE && start + need->size <= to &&
        tarni_is_usable_locked(heap, search, extent)) {
      return start;
    }
  }
  return UINT64_MAX;
}

/* At places that are all older than that, too. */
static uint64_t fit_among_small(const tarn_heap *heap, const tarni_search *search,
                                const tarni_need *need, uint64_t than) {
  const uint64_t end = tarni_unit_of(heap, heap->small_end);
  uint64_t start = UINT64_MAX;
  uint32_t left = steps_of(than);
  for (uint64_t unit = 0;
       start == UINT64_MAX && left-- != 0 && (unit = tarni_bitset_from(&heap->aliases, unit)) < end;
       unit += heap->chunks[heap->units[unit]].n_units) {
    const tarni_phys *chunk = &heap->chunks[heap->units[unit]];
    if (chunk->refused != search->number && heap->places[unit].number < than &&
        (chunk->n_used == chunk->n_small || search->is_urgent)) {
      const uint64_t part = tarni_part_locked(heap, search, need, chunk);
      start = part != UINT64_MAX ? unit * heap->unit + part : UINT64_MAX;
    }
  }
  return start;
}

/* Takes the addresses, and what is behind them. 0: a chunk is refused, or no record is left. */
static tarni_index view_take(tarn_heap *heap, const tarni_search *search, uint64_t start,
                             uint64_t size) {
  const tarni_index index = tarni_extent_containing_locked(heap, start);
  tarn_assert(heap->extents[index].kind == TARNI_EXTENT_ALIAS);
  tarni_lent lent = {0};
  tarni_extent_take_locked(heap, index);
  if (tarni_extent_cut_locked(heap, index, start, size) &&
      tarni_lend_behind_locked(heap, search, start, start + size, &lent)) {
    tarni_extent_at(heap, index)->lent = lent.first;
    return index;
  }
  tarni_lent_return_locked(heap, lent.first, NULL);
  tarni_extent_give_locked(heap, index, TARNI_EXTENT_ALIAS, NULL);
  return 0;
}

/* Small blocks lie on one chunk, at whatever is free there: its ends are not looked at. */
static uint64_t fit_older(tarn_heap *heap, const tarni_search *search, const tarni_need *need,
                          uint64_t than) {
  if (need->zone == TARNI_ZONE_SMALL) {
    return fit_among_small(heap, search, need, than);
  }
  tarni_ends_update_locked(heap);
  return fit_in_views(heap, search, need, than);
}

uint64_t tarni_view_fit_locked(tarn_heap *heap, const tarni_search *search,
                               const tarni_need *need) {
  return fit_older(heap, search, need, UINT64_MAX);
}

/* Where a block of this size has lain before, if that is faster to find out than by a search. */
static tarni_index hint_take(tarn_heap *heap, tarni_search *search, const tarni_need *need) {
  const bool may = need->zone != TARNI_ZONE_SMALL && heap->n_aliases >= TARNI_MANY_PLACES;
  const uint64_t start = may ? tarni_hint_find_locked(heap, search, need) : UINT64_MAX;
  const tarni_index index = start != UINT64_MAX ? view_take(heap, search, start, need->size) : 0;
  if (start != UINT64_MAX && index == 0) { /* by now a chunk is there twice: nothing against it */
    tarni_hint_drop_locked(heap, start, need->size);
    search->number = ++heap->n_searches;
  }
  return index;
}

tarni_index tarni_view_find_locked(tarn_heap *heap, tarni_search *search, const tarni_need *need) {
  tarn_assert(!search->may_steal && "nothing is waited for here");
  search->number = ++heap->n_searches;
  search->is_urgent = need->is_short;
  const tarni_index known = hint_take(heap, search, need);
  if (known != 0) {
    return known;
  }
  for (uint64_t refused = 0;; refused = search->number) {
    const uint64_t start = tarni_view_fit_locked(heap, search, need);
    if (start == UINT64_MAX) {
      return 0;
    }
    const tarni_index index = view_take(heap, search, start, need->size);
    if (index != 0 || refused != 0) { /* twice is enough: somebody is at work, or no record left */
      return index;
    }
  }
}

tarni_index tarni_view_older_locked(tarn_heap *heap, const tarni_need *need, uint64_t than) {
  if (heap->n_aliases >= TARNI_MANY_PLACES) {
    return 0;
  }
  const tarni_search search = {
      .lane = need->lane, .is_urgent = need->is_short, .number = ++heap->n_searches};
  const uint64_t start = fit_older(heap, &search, need, than);
  return start != UINT64_MAX ? view_take(heap, &search, start, need->size) : 0;
}

/* ---- The ends of rows ---- */

tarni_run tarni_view_end_locked(tarn_heap *heap, const tarni_search *search, uint64_t room) {
  tarni_run best = {0};
  uint64_t unit = tarni_unit_of(heap, heap->size);
  for (uint32_t i = 0; i < VIEW_ROWS; i++) {
    unit = tarni_bitset_below(&heap->row_ends, unit);
    if (unit == TARNI_BITSET_NONE) {
      break;
    }
    const uint64_t end = (unit + chunk_at(heap, unit)->n_units) * heap->unit;
    if (chunk_at(heap, unit)->tail == 0 || end + room > heap->size) {
      continue;
    }
    const tarni_run run = run_at(heap, search, unit, UINT32_MAX);
    const tarni_extent *next = tarni_extent_at(heap, tarni_extent_containing_locked(heap, end));
    if (run.end - run.start > best.end - best.start && next->kind == TARNI_EXTENT_VOID &&
        next->offset + next->size >= end + room) {
      best = run;
    }
  }
  return best;
}
