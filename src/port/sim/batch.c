/* SPDX-License-Identifier: MIT
 *
 * Whether copies that are made in one call, and so in no order, touch the same bytes. Bytes are
 * told apart by what they are, not by where they are seen: a chunk may be mapped twice. Every range
 * is cut into pieces of one chunk each; the pieces are sorted and looked at once. Under the lock of
 * the simulated GPU. */
#include <stdlib.h>

#include "base/bits.h"
#include "port/sim/sim.h"

typedef struct batch_piece {
  const sim_shadow *shadow; /* devices that share a chunk share it */
  uint64_t start, end;      /* in the chunk */
  uint64_t copy;            /* whose it is */
  bool is_write;
} batch_piece;

typedef struct batch_pieces {
  batch_piece *items; /* NULL: they are only counted */
  size_t n;
} batch_pieces;

/* What is not mapped is left out: the copy itself is refused. */
static void range_cut(sim_device *device, const tarn_sim_range *range, uint64_t copy,
                      batch_pieces *pieces) {
  const tarn_ptr end = range->address + range->bytes;
  sim_device *where = tarni_sim_device_at(device, range->address, true);
  for (tarn_ptr at = range->address; where != NULL && at < end;) {
    const sim_mapping *mapping = tarni_sim_mapping_find(where, at);
    if (mapping == NULL) {
      return;
    }
    const tarn_ptr stop = tarni_min(end, mapping->address + mapping->size);
    if (pieces->items != NULL) {
      pieces->items[pieces->n] = (batch_piece){.shadow = mapping->chunk->shadow,
                                               .start = at - mapping->address,
                                               .end = stop - mapping->address,
                                               .copy = copy,
                                               .is_write = range->is_write};
    }
    pieces->n++;
    at = stop;
  }
}

static void copies_cut(sim_device *device, const tarni_copy *copies, uint64_t count,
                       batch_pieces *pieces) {
  for (uint64_t i = 0; i < count; i++) {
    const tarn_sim_range reads = {.address = copies[i].source, .bytes = copies[i].size};
    const tarn_sim_range writes = {
        .address = copies[i].destination, .bytes = copies[i].size, .is_write = true};
    range_cut(device, &reads, i, pieces);
    range_cut(device, &writes, i, pieces);
  }
}

static int compare_pieces(const void *left, const void *right) {
  const batch_piece *a = left, *b = right;
  if (a->shadow != b->shadow) {
    return (uintptr_t)a->shadow < (uintptr_t)b->shadow ? -1 : 1;
  }
  return a->start != b->start ? (a->start < b->start ? -1 : 1) : 0;
}

/* Those of the pieces seen so far that reach furthest, of two copies: whoever meets another copy's
 * piece meets one of them. */
typedef struct batch_reach {
  const batch_piece *first, *second;
} batch_reach;

static void reach_add(batch_reach *reach, const batch_piece *piece) {
  if (reach->first == NULL || piece->end > reach->first->end) {
    if (reach->first != NULL && reach->first->copy != piece->copy) {
      reach->second = reach->first;
    }
    reach->first = piece;
  } else if (piece->copy != reach->first->copy &&
             (reach->second == NULL || piece->end > reach->second->end)) {
    reach->second = piece;
  }
}

static bool reach_meets(const batch_reach *reach, const batch_piece *piece) {
  const batch_piece *other = reach->first;
  if (other != NULL && other->copy == piece->copy) {
    other = reach->second;
  }
  return other != NULL && other->end > piece->start;
}

/* The copy of a piece that meets another copy's, one of them a write; UINT64_MAX: there is none. */
static uint64_t pieces_conflict(const batch_pieces *pieces) {
  batch_reach writes = {0}, all = {0};
  for (size_t i = 0; i < pieces->n; i++) {
    const batch_piece *piece = &pieces->items[i];
    if (i != 0 && piece->shadow != piece[-1].shadow) {
      writes = all = (batch_reach){0};
    }
    if (reach_meets(piece->is_write ? &all : &writes, piece)) {
      return piece->copy;
    }
    reach_add(&all, piece);
    if (piece->is_write) {
      reach_add(&writes, piece);
    }
  }
  return UINT64_MAX;
}

bool tarni_sim_batch_conflict(sim_device *device, const tarni_copy *copies, uint64_t count,
                              uint64_t *conflict) {
  batch_pieces counted = {0};
  copies_cut(device, copies, count, &counted);
  batch_pieces pieces = {.items = tarni_sim_store_resize(NULL, counted.n + 1, sizeof(batch_piece))};
  if (pieces.items == NULL) {
    return false;
  }
  copies_cut(device, copies, count, &pieces);
  qsort(pieces.items, pieces.n, sizeof(batch_piece), compare_pieces);
  *conflict = pieces_conflict(&pieces);
  free(pieces.items);
  return true;
}
