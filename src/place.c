/* SPDX-License-Identifier: MIT
 *
 * Places: the addresses where a chunk is mapped. Mapping costs tens of microseconds and addresses
 * cost nothing, so a chunk that moves stays mapped where it was. It is used at one place at a time,
 * its home; at each of the others lies an ALIAS extent, which becomes usable again, with no driver
 * call, whenever the chunk is idle.
 *
 * An idle chunk goes to its lowest place in the zone that it was made for. So a program that
 * repeats itself finds each time the same memory at the same addresses, and the windows that were
 * once mapped for it: the driver is called until all windows are there, and no more. The zone
 * counts since a chunk that small blocks had for a while would leave a hole among the large ones
 * else, which were there before it, and they would come to lie elsewhere in the next round.
 *
 * There are at most max_aliases of them: mappings take memory of the host. Beyond, a chunk that
 * moves loses its other places: a program that does not repeat itself does not find them again.
 * Where there is no memory for more mappings they are all dropped, and in the end fewer are kept
 * (shortage.c).
 *
 * What a chunk's memory must wait for (its order) goes with it. An ALIAS keeps the order in which
 * it was left: its mapping may be dropped once that is complete, whatever the chunk does elsewhere.
 *
 * Everything is under heap->lock, but for n_mapped, which is under heap->grow. */
#include "base/bits.h"
#include "internal.h"

enum { PLACE_LISTS = 16 }; /* of places that are gone through at a time */

/* ---- The list of a chunk's places, lowest first ---- */

static void units_set(tarn_heap *heap, const tarni_phys *chunk, uint32_t unit, tarni_index value) {
  for (uint32_t i = 0; i < chunk->n_units; i++) {
    heap->units[unit + i] = value;
    (value != 0 ? tarni_bitset_add : tarni_bitset_remove)(&heap->placed, unit + i);
  }
}

static uint32_t *place_link(tarn_heap *heap, tarni_phys *chunk, uint32_t unit) {
  uint32_t *link = &chunk->places;
  while (*link != 0 && *link - 1 < unit) {
    link = &heap->places[*link - 1].next;
  }
  return link;
}

void tarni_place_add_locked(tarn_heap *heap, tarni_index index, uint32_t unit) {
  tarni_phys *chunk = &heap->chunks[index];
  uint32_t *link = place_link(heap, chunk, unit);
  heap->places[unit] = (tarni_place){.next = *link};
  *link = unit + 1;
  chunk->n_mapped++;
  units_set(heap, chunk, unit, index);
}

void tarni_place_remove_locked(tarn_heap *heap, tarni_index index, uint32_t unit) {
  tarni_phys *chunk = &heap->chunks[index];
  uint32_t *link = place_link(heap, chunk, unit);
  tarn_assert(*link == unit + 1 && "a place is in its chunk's list");
  *link = heap->places[unit].next;
  heap->places[unit] = (tarni_place){0};
  units_set(heap, chunk, unit, 0);
}

/* ---- Leaving and entering ---- */

/* Where an idle chunk is mapped besides its home it can be used at once. Such aliases are open, and
 * all others bar their units: searches pass over them. Chunks are taken and given back far oftener
 * than there is a search, and have many places: so it is noted which chunks have changed, and a
 * search brings what is open up to date before it looks. */
void tarni_places_note_locked(tarn_heap *heap, tarni_index index) {
  if (heap->chunks[index].n_aliases != 0) {
    tarni_bitset_add(&heap->stale, index);
  }
}

static void alias_mark(tarn_heap *heap, const tarni_phys *chunk, uint64_t unit, bool is_open,
                       bool is_barred) {
  (is_open ? tarni_bitset_add : tarni_bitset_remove)(&heap->open, unit);
  for (uint64_t i = unit; i < unit + chunk->n_units; i++) {
    (is_barred ? tarni_bitset_add : tarni_bitset_remove)(&heap->barred, i);
  }
}

/* One alias of each of some chunks after the other: the lists lie far apart in memory, and what is
 * next in one of them is on its way while the others are looked at. */
static void places_mark(tarn_heap *heap, tarni_phys *const chunks[], uint32_t n) {
  uint32_t at[PLACE_LISTS];
  for (uint32_t i = 0; i < n; i++) {
    at[i] = chunks[i]->places;
  }
  for (uint32_t n_left = n; n_left != 0;) {
    n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
      if (at[i] == 0) {
        continue;
      }
      const uint32_t unit = at[i] - 1;
      const tarni_place *place = &heap->places[unit];
      if (place->alias != 0) {
        alias_mark(heap, chunks[i], unit, chunks[i]->is_open, !chunks[i]->is_open);
      }
      at[i] = place->next;
      __builtin_prefetch(&heap->places[place->next - (place->next != 0)]);
      n_left += at[i] != 0;
    }
  }
}

void tarni_places_update_locked(tarn_heap *heap) {
  tarni_phys *chunks[PLACE_LISTS];
  uint32_t n = 0;
  for (uint64_t i = 0; (i = tarni_bitset_from(&heap->stale, i)) != TARNI_BITSET_NONE;) {
    tarni_phys *chunk = &heap->chunks[i];
    const bool is_idle = chunk->places != 0 && tarni_bitset_has(&heap->idle, chunk->first_unit);
    tarni_bitset_remove(&heap->stale, i);
    if (is_idle != chunk->is_open) {
      chunk->is_open = is_idle;
      chunks[n++] = chunk;
    }
    if (n == PLACE_LISTS) {
      places_mark(heap, chunks, n);
      n = 0;
    }
  }
  places_mark(heap, chunks, n);
}

static void alias_remove(tarn_heap *heap, tarni_index index, uint64_t unit) {
  alias_mark(heap, &heap->chunks[index], unit, false, false);
  heap->chunks[index].n_aliases--;
  heap->n_aliases--;
}

void tarni_place_bury_locked(tarn_heap *heap, tarni_index index, tarni_index left) {
  tarni_extent *extent = tarni_extent_at(heap, left);
  tarni_place_remove_locked(heap, index, (uint32_t)tarni_unit_of(heap, extent->offset));
  extent->chunk = index;
  tarni_zombie_add_locked(heap, left);
}

bool tarni_place_leave_locked(tarn_heap *heap, tarni_index index, tarni_index left) {
  if (heap->n_aliases >= heap->max_aliases) {
    tarni_place_bury_locked(heap, index, left);
    tarni_places_drop_locked(heap, index);
    return false;
  }
  tarni_extent *extent = tarni_extent_at(heap, left);
  tarn_assert(extent->kind == TARNI_EXTENT_BUSY);
  extent->kind = TARNI_EXTENT_ALIAS;
  const uint64_t unit = tarni_unit_of(heap, extent->offset);
  tarni_phys *chunk = &heap->chunks[index];
  heap->places[unit].alias = left;
  chunk->n_aliases++;
  heap->n_aliases++;
  alias_mark(heap, chunk, unit, chunk->is_open, !chunk->is_open);
  tarni_places_note_locked(heap, index);
  return true;
}

void tarni_place_enter_locked(tarn_heap *heap, tarni_index index, uint32_t unit) {
  tarn_assert(heap->units[unit] == index && heap->places[unit].alias != 0);
  heap->places[unit].alias = 0;
  alias_remove(heap, index, unit);
  heap->chunks[index].first_unit = unit;
}

/* The first unit of the place where an idle chunk belongs. */
static uint32_t rest_of(const tarn_heap *heap, const tarni_phys *chunk) {
  const uint64_t first = chunk->is_large ? tarni_unit_of(heap, heap->small_end) : 0;
  uint32_t at = chunk->places;
  while (at != 0 && at - 1 < first) {
    at = heap->places[at - 1].next;
  }
  return (at != 0 ? at : chunk->places) - 1;
}

void tarni_place_return_locked(tarn_heap *heap, tarni_index index) {
  tarni_phys *chunk = &heap->chunks[index];
  const uint32_t lowest = rest_of(heap, chunk);
  tarni_order order;
  if (chunk->n_used != 0 || lowest == chunk->first_unit ||
      !tarni_chunk_may_leave_locked(heap, chunk, TARNI_LANE_COMMON, true, &order) ||
      (order.n > 1 && heap->config.stealing != TARN_STEAL_ALWAYS)) {
    return; /* the last: what several streams have freed stays apart, so that each finds its own */
  }
  const tarni_index left = tarni_chunk_isolate_locked(heap, chunk);
  if (left == 0) {
    return; /* no record is left: it stays where it is */
  }
  const tarni_index entered = heap->places[lowest].alias;
  tarni_bitset_remove(&heap->idle, chunk->first_unit);
  tarni_place_enter_locked(heap, index, lowest);
  tarni_bitset_add(&heap->idle, lowest);
  (void)tarni_place_leave_locked(heap, index, left);
  tarni_extent_at(heap, entered)->kind = TARNI_EXTENT_BUSY;
  tarni_extent_give_locked(heap, entered, TARNI_EXTENT_FREE, &order);
}

/* ---- Dropping ---- */

void tarni_places_drop_locked(tarn_heap *heap, tarni_index index) {
  const tarni_phys *chunk = &heap->chunks[index];
  for (uint32_t at = chunk->places; at != 0;) {
    const uint32_t unit = at - 1;
    const tarni_index alias = heap->places[unit].alias;
    at = heap->places[unit].next;
    if (alias != 0 && tarni_extent_at(heap, alias)->kind == TARNI_EXTENT_ALIAS) {
      alias_remove(heap, index,
                   unit); /* others are part of a growth that could not be undone yet */
      tarni_place_bury_locked(heap, index, alias);
    }
  }
}

bool tarni_aliases_drop_locked(tarn_heap *heap) {
  const uint32_t n = heap->n_aliases;
  for (tarni_index index = 1; index < heap->n_chunks && heap->n_aliases != 0; index++) {
    if (heap->chunks[index].places != 0) {
      tarni_places_drop_locked(heap, index);
    }
  }
  return heap->n_aliases != n; /* those of a growth that could not be undone yet stay */
}
