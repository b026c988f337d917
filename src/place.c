/* SPDX-License-Identifier: MIT
 *
 * Places: the addresses where a chunk is mapped. Mapping costs tens of microseconds and addresses
 * cost nothing, so a chunk can be mapped at many, and stays mapped there. The first is its home,
 * where its memory is in the books; at the others lie ALIAS extents, and slabs for which its memory
 * is lent (view.c). So a program that repeats itself finds the views that were once mapped for it:
 * the driver is called until all are there, and no more.
 *
 * There are at most max_aliases of them: mappings take memory of the host. Where that is short all
 * go in which nothing lies, and in the end fewer are kept (shortage.c).
 *
 * A place keeps the order in which slabs have left it: then its mapping may be dropped, whatever
 * the chunk does elsewhere. Everything is under heap->lock, but for n_mapped, which is under
 * heap->grow. */
#include "base/bits.h"
#include "room.h"

/* ---- The list of a chunk's places, lowest first ---- */

static void units_set(tarn_heap *heap, const tarni_phys *chunk, uint32_t unit, tarni_index value) {
  for (uint32_t i = unit; i < unit + chunk->n_units; i++) {
    heap->units[i] = value;
    heap->places[i] = (tarni_place){.first = value != 0 ? unit : 0};
    (value != 0 ? tarni_bitset_add : tarni_bitset_remove)(&heap->placed, i);
  }
  heap->pasts[unit] = (tarni_past){0};
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
  units_set(heap, chunk, unit, index);
  heap->places[unit].number = ++heap->n_places;
  if (chunk->places == 0) {
    chunk->first_unit = unit;
  } else {
    tarni_bitset_add(&heap->aliases, unit);
    heap->first_alias = heap->n_aliases != 0 ? heap->first_alias : heap->n_places;
    heap->n_aliases++;
    heap->views_top = tarni_max(heap->views_top, (unit + (uint64_t)chunk->n_units) * heap->unit);
  }
  uint32_t *link = place_link(heap, chunk, unit);
  heap->places[unit].next = *link;
  *link = unit + 1;
  chunk->n_mapped++;
  tarni_joints_note_locked(heap, unit, chunk->n_units);
  tarni_ends_note_locked(heap, index);
}

void tarni_place_remove_locked(tarn_heap *heap, tarni_index index, uint32_t unit) {
  tarni_phys *chunk = &heap->chunks[index];
  uint32_t *link = place_link(heap, chunk, unit);
  tarn_assert(*link == unit + 1 && "a place is in its chunk's list");
  *link = heap->places[unit].next;
  units_set(heap, chunk, unit, 0);
  if (unit != chunk->first_unit) {
    tarni_bitset_remove(&heap->aliases, unit);
    heap->n_aliases--;
    heap->views_top = heap->n_aliases != 0 ? heap->views_top : 0;
    tarni_joints_note_locked(heap, unit, chunk->n_units);
  }
  tarni_ends_note_locked(heap, index);
}

void tarni_place_bury_locked(tarn_heap *heap, tarni_index index, tarni_index extent) {
  tarni_extent *left = tarni_extent_at(heap, extent);
  tarni_place_remove_locked(heap, index, (uint32_t)tarni_unit_of(heap, left->offset));
  left->chunk = index;
  tarni_zombie_add_locked(heap, extent);
}

/* ---- What used them ---- */

void tarni_places_note_locked(tarn_heap *heap, uint64_t offset, uint64_t size,
                              const tarni_order *order) {
  const uint64_t last = tarni_unit_of(heap, offset + size - 1);
  for (uint64_t unit = tarni_unit_of(heap, offset); unit <= last;) {
    const uint32_t first = heap->places[unit].first;
    tarni_past *past = &heap->pasts[first];
    tarni_order open = {0}; /* without what is complete by now */
    (void)tarni_order_unite_open_locked(heap, &open, &past->order);
    past->is_unsure = past->is_unsure || !tarni_order_unite_open_locked(heap, &open, order);
    past->order = open;
    unit = first + heap->chunks[heap->units[unit]].n_units;
  }
}

/* ---- Dropping ---- */

/* Takes the addresses of a place, if all of them are an alias; 0: they are not, or no record is
 * left. */
static tarni_index alias_take(tarn_heap *heap, uint64_t start, uint64_t bytes) {
  const tarni_index index = tarni_extent_containing_locked(heap, start);
  const tarni_extent *extent = tarni_extent_at(heap, index);
  if (extent->kind != TARNI_EXTENT_ALIAS || extent->offset + extent->size < start + bytes) {
    return 0;
  }
  tarni_extent_take_locked(heap, index);
  if (!tarni_extent_cut_locked(heap, index, start, bytes)) {
    tarni_extent_give_locked(heap, index, TARNI_EXTENT_ALIAS, NULL);
    return 0;
  }
  return index;
}

bool tarni_places_forget_locked(tarn_heap *heap, tarni_index index) {
  const tarni_phys *chunk = &heap->chunks[index];
  for (uint32_t at = chunk->places; at != 0;) {
    const uint32_t unit = at - 1;
    at = heap->places[unit].next;
    const tarni_index taken = unit != chunk->first_unit ? alias_take(heap, unit * heap->unit,
                                                                     tarni_chunk_bytes(heap, chunk))
                                                        : 0;
    if (taken != 0) {
      tarni_place_remove_locked(heap, index, unit);
      heap->chunks[index].n_mapped--;
      tarni_extent_give_locked(heap, taken, TARNI_EXTENT_VOID, NULL);
    }
  }
  return heap->places[chunk->first_unit].next == 0 && chunk->places == chunk->first_unit + 1;
}

static bool place_drop(tarn_heap *heap, tarni_index index, uint32_t unit,
                       const tarni_order *order) {
  const tarni_past *past = &heap->pasts[unit];
  if (order == NULL && past->is_unsure) {
    return false;
  }
  const tarni_order waits = order != NULL ? *order : past->order;
  const tarni_index taken =
      alias_take(heap, unit * heap->unit, tarni_chunk_bytes(heap, &heap->chunks[index]));
  if (taken != 0) {
    tarni_extent_at(heap, taken)->order = waits;
    tarni_place_bury_locked(heap, index, taken);
  }
  return taken != 0;
}

bool tarni_places_drop_locked(tarn_heap *heap, tarni_index index, const tarni_order *order) {
  const tarni_phys *chunk = &heap->chunks[index];
  bool are_dropped = true;
  for (uint32_t at = chunk->places; at != 0;) {
    const uint32_t unit = at - 1;
    at = heap->places[unit].next;
    if (unit != chunk->first_unit) {
      are_dropped = place_drop(heap, index, unit, order) && are_dropped;
    }
  }
  return are_dropped;
}

bool tarni_aliases_drop_locked(tarn_heap *heap) {
  const uint32_t n = heap->n_aliases;
  for (tarni_index index = 1; index < heap->n_chunks && heap->n_aliases != 0; index++) {
    if (heap->chunks[index].places != 0) {
      (void)tarni_places_drop_locked(heap, index, NULL);
    }
  }
  return heap->n_aliases != n; /* those in use stay */
}
