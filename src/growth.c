/* SPDX-License-Identifier: MIT
 *
 * How a growth is done. Three steps: plan under heap->lock (what is taken is BUSY then, or LENT,
 * out of everybody's sight), do it with no lock but heap->grow, then commit or restore under
 * heap->lock. A failure restores all that was planned (I4). Where the driver does not even let it
 * be undone, what it took stays BUSY, its new memory counts as quarantined, and undoing is tried
 * again whenever the heap is short. */
#include "growth.h"

#include <stdlib.h>

#include "base/bits.h"

tarn_status tarni_growth_no_addresses(const tarn_heap *heap, uint64_t size) {
  const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = size};
  return tarni_fail(TARN_ADDRESS_SPACE, "tarn_alloc", &facts,
                    "Free blocks, so that their addresses come together.",
                    "no %llu bytes of addresses are left in one piece", (unsigned long long)size);
}

tarn_status tarni_growth_no_records(const tarn_heap *heap) {
  return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free blocks.",
                    "the heap has no records left for its %u extents", heap->max_extents);
}

/* ---- Planning ---- */

tarn_status tarni_growth_make(const tarn_heap *heap, tarni_index lane, uint64_t n_chunks,
                              uint64_t n_pieces, tarni_growth **growth) {
  *growth = calloc(1, sizeof(**growth) + n_chunks * sizeof(growth_chunk) +
                          n_pieces * sizeof(growth_piece));
  if (*growth == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free some host memory.",
                      "no host memory to plan the growth of the heap by %llu chunks",
                      (unsigned long long)n_chunks);
  }
  (*growth)->search.lane = lane;
  (*growth)->search.may_map = true;
  (*growth)->search.max_pieces = (uint32_t)n_pieces;
  (*growth)->step = heap->unit;
  (*growth)->max_chunks = (uint32_t)n_chunks;
  (*growth)->pieces = (growth_piece *)(void *)&(*growth)->chunks[n_chunks];
  return TARN_OK;
}

bool tarni_growth_take_locked(tarn_heap *heap, tarni_growth *growth, tarni_index index,
                              uint64_t from, uint64_t to) {
  const tarni_extent *extent = tarni_extent_at(heap, index);
  const growth_piece piece = {
      .extent = index, .kind = (tarni_extent_kind)extent->kind, .order = extent->order};
  tarni_extent_take_locked(heap, index);
  if (!tarni_extent_cut_locked(heap, index, from, to - from)) {
    tarni_extent_give_locked(heap, index, piece.kind, &piece.order);
    return false;
  }
  growth->pieces[growth->n_pieces++] = piece;
  return true;
}

/* Its new chunks are there, or will not be. */
static void growth_uncharge_locked(tarn_heap *heap, tarni_growth *growth) {
  heap->planned_bytes -= growth->fresh_bytes;
  growth->fresh_bytes = 0;
}

void tarni_growth_restore_locked(tarn_heap *heap, tarni_growth *growth) {
  growth_uncharge_locked(heap, growth);
  for (uint32_t i = 0; i < growth->n_chunks; i++) {
    if (growth->chunks[i].is_new) {
      tarni_phys_give_locked(heap, growth->chunks[i].chunk);
    }
  }
  tarni_lent_return_locked(heap, growth->lent.first, NULL);
  for (uint32_t i = 0; i < growth->n_pieces; i++) {
    const growth_piece *piece = &growth->pieces[i];
    tarni_extent_give_locked(heap, piece->extent, piece->kind, &piece->order);
  }
  growth->n_chunks = growth->n_pieces = 0;
  growth->lent = (tarni_lent){0};
}

/* ---- Doing it ---- */

/* The memory is there already, but for fixed heaps: what is short is the host's, or the device's
 * for its page tables, and the driver calls it the device's in either case. */
static tarn_status note_mapping(tarn_heap *heap, tarn_status status) {
  heap->is_map_refused =
      !heap->is_fixed && (status == TARN_HOST_MEMORY || status == TARN_DEVICE_MEMORY);
  return status;
}

static tarn_status growth_perform(tarn_heap *heap, tarni_growth *growth) {
  TARN_TRY(tarni_chunk_wait_grow(heap, &growth->lent.waits, growth->search.lane,
                                 growth->end - growth->start));
  for (uint32_t i = 0; i < growth->n_chunks; i++) {
    const growth_chunk *planned = &growth->chunks[i];
    if (planned->is_new) {
      TARN_TRY(tarni_port_create(heap->port, planned->n_units * heap->unit,
                                 &heap->chunks[planned->chunk].handle));
    }
  }
  for (uint32_t i = 0; i < growth->n_chunks; i++) {
    growth_chunk *planned = &growth->chunks[i];
    const tarn_ptr address = heap->base + planned->offset;
    TARN_TRY(note_mapping(heap, tarni_port_map(heap->port, address, planned->n_units * heap->unit,
                                               heap->chunks[planned->chunk].handle)));
    planned->is_mapped = true;
  }
  for (uint32_t i = 0; i < growth->n_pieces; i++) {
    const tarni_extent *piece = tarni_extent_at(heap, growth->pieces[i].extent);
    if (growth->pieces[i].kind == TARNI_EXTENT_VOID) {
      TARN_TRY(note_mapping(
          heap, tarni_port_access(heap->port, heap->base + piece->offset, piece->size)));
    }
  }
  return TARN_OK;
}

/* Undoes the driver calls of a growth that failed: unmaps what it mapped, releases what it made.
 * May be called again where it fails: stuck_bytes are those of new chunks that are still there. */
static tarn_status growth_undo(tarn_heap *heap, tarni_growth *growth) {
  tarn_status result = TARN_OK;
  growth->stuck_bytes = 0;
  for (uint32_t i = 0; i < growth->n_chunks; i++) {
    growth_chunk *planned = &growth->chunks[i];
    tarni_phys *chunk = &heap->chunks[planned->chunk];
    const uint64_t bytes = planned->n_units * heap->unit;
    tarn_status status = TARN_OK;
    if (planned->is_mapped) {
      status = tarni_port_unmap(heap->port, heap->base + planned->offset, bytes);
      planned->is_mapped = status != TARN_OK;
    }
    if (status == TARN_OK && planned->is_new && chunk->handle != 0) {
      status = tarni_port_release(heap->port, chunk->handle);
      chunk->handle = status == TARN_OK ? 0 : chunk->handle;
    }
    growth->stuck_bytes += planned->is_new && status != TARN_OK ? bytes : 0;
    result = result == TARN_OK ? status : result;
  }
  return result;
}

/* It failed: it is undone and gone, or kept for a later try. The error stays the first. */
static void growth_abandon(tarn_heap *heap, tarni_growth *growth, tarn_status status) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  const bool is_undone = growth_undo(heap, growth) == TARN_OK;
  tarni_lock_acquire(&heap->lock);
  if (status == TARN_DEVICE_MEMORY && !heap->is_map_refused) {
    heap->refused_bytes = heap->reserved_bytes;
  }
  if (is_undone) {
    tarni_growth_restore_locked(heap, growth);
  } else {
    growth_uncharge_locked(heap, growth);
    heap->reserved_bytes += growth->stuck_bytes;
    heap->quarantined_bytes += growth->stuck_bytes;
    tarni_held_note_locked(heap);
    growth->next = heap->unfinished;
    heap->unfinished = growth;
  }
  tarni_lock_release(&heap->lock);
  if (is_undone) {
    free(growth);
  } else {
    (void)tarni_fail_again(&error);
  }
}

tarn_status tarni_grow_reap_grow(tarn_heap *heap) {
  while (heap->unfinished != NULL) {
    tarni_growth *growth = heap->unfinished;
    const uint64_t stuck = growth->stuck_bytes;
    const tarn_status status = growth_undo(heap, growth);
    tarni_lock_acquire(&heap->lock);
    heap->reserved_bytes -= stuck - growth->stuck_bytes;
    heap->quarantined_bytes -= stuck - growth->stuck_bytes;
    if (status == TARN_OK) {
      heap->unfinished = growth->next;
      tarni_growth_restore_locked(heap, growth);
    }
    tarni_lock_release(&heap->lock);
    TARN_TRY(status);
    free(growth);
  }
  return TARN_OK;
}

/* The device is lost: nothing can be undone any more. */
void tarni_grow_close(tarn_heap *heap) {
  while (heap->unfinished != NULL) {
    tarni_growth *growth = heap->unfinished;
    heap->unfinished = growth->next;
    free(growth);
  }
}

/* ---- Committing ---- */

static void chunk_settle_locked(tarn_heap *heap, const growth_chunk *planned) {
  tarni_place_add_locked(heap, planned->chunk, (uint32_t)tarni_unit_of(heap, planned->offset));
  if (planned->is_new) {
    tarni_idle_add_locked(heap, planned->chunk);
    heap->reserved_bytes += planned->n_units * heap->unit;
    heap->refused_bytes = 0;
  } else {
    heap->moved_chunks++;
    tarni_rest_move_locked(heap, planned->n_units * heap->unit);
  }
}

/* Whether nothing uses any of the memory that the window is made of: what is left over of it is
 * everybody's then. */
static bool growth_is_complete_locked(const tarn_heap *heap, const tarni_growth *growth) {
  bool is = true;
  for (uint32_t i = 0; i < growth->n_pieces && is; i++) {
    is = growth->pieces[i].kind == TARNI_EXTENT_VOID ||
         tarni_order_is_complete_locked(heap, &growth->pieces[i].order);
  }
  return is;
}

tarni_index tarni_growth_unite_locked(tarn_heap *heap, tarni_growth *growth) {
  tarn_assert(growth->n_pieces != 0);
  const tarni_index whole = growth->pieces[0].extent;
  for (uint32_t i = 1; i < growth->n_pieces; i++) {
    tarni_extent_append_locked(heap, whole, growth->pieces[i].extent);
  }
  tarni_extent *extent = tarni_extent_at(heap, whole);
  extent->order = (tarni_order){0};
  if (growth->lent.first != 0) { /* what is left over are addresses */
    extent->tree = tarni_tree_alias(heap);
    return whole;
  }
  /* The lane may use all of it, so its own next ticket stands for all of it. */
  if (!growth_is_complete_locked(heap, growth)) {
    (void)tarni_order_add(&extent->order, growth->search.lane,
                          tarni_ticket_locked(heap, growth->search.lane));
  }
  extent->tree = tarni_tree_of(heap, &extent->order);
  return whole;
}

/* It has worked: chunks are where they are. */
static tarni_index growth_commit_locked(tarn_heap *heap, tarni_growth *growth) {
  growth_uncharge_locked(heap, growth);
  for (uint32_t i = 0; i < growth->n_chunks; i++) {
    chunk_settle_locked(heap, &growth->chunks[i]);
  }
  tarni_held_note_locked(heap);
  return tarni_growth_unite_locked(heap, growth);
}

tarn_status tarni_growth_run(tarn_heap *heap, tarni_growth *growth, tarn_status planned,
                             tarni_index *whole) {
  const tarn_status status = planned == TARN_OK ? growth_perform(heap, growth) : planned;
  if (status != TARN_OK) {
    growth_abandon(heap, growth, status);
    return status;
  }
  tarni_lock_acquire(&heap->lock);
  *whole = growth_commit_locked(heap, growth);
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

tarn_status tarni_growth_end(tarn_heap *heap, tarni_growth *growth, tarni_index whole,
                             tarni_index *extent) {
  const uint64_t size = growth->end - growth->start;
  tarni_lock_acquire(&heap->lock);
  const tarni_order order = tarni_extent_at(heap, whole)->order;
  const bool is_view = growth->lent.first != 0;
  const bool is_cut = tarni_extent_cut_locked(heap, whole, growth->start, size);
  if (is_cut) {
    tarni_extent_at(heap, whole)->lent = growth->lent.first;
  } else {
    tarni_lent_return_locked(heap, growth->lent.first, NULL);
    tarni_extent_give_locked(heap, whole, is_view ? TARNI_EXTENT_ALIAS : TARNI_EXTENT_FREE, &order);
  }
  tarni_lock_release(&heap->lock);
  free(growth);
  *extent = is_cut ? whole : 0;
  return is_cut ? TARN_OK : tarni_growth_no_records(heap);
}
