/* SPDX-License-Identifier: MIT
 *
 * Where a heap's memory comes from: chunks and their places, windows and views, and growth. Names
 * end as internal.h says. */
#ifndef TARNI_ROOM_H
#define TARNI_ROOM_H

#include "internal.h"

typedef struct tarni_search {
  tarni_index lane;    /* for whom */
  bool may_steal;      /* memory that another lane has freed and that it has to wait for, too */
  uint32_t max_pieces; /* extents that a window is made of */
  uint32_t n_steps;    /* extents that it has looked at */
  bool may_map;        /* void addresses, too */
  bool is_lean;        /* as few of them as possible */
  bool is_urgent;      /* memory is short: small and large blocks share chunks */
  uint64_t number;     /* chunks that are refused bear it */
} tarni_search;

typedef struct tarni_lent { /* a list of LENT extents, and what has to be waited for */
  tarni_index first, last;
  tarni_order waits;
} tarni_lent;

/* ---- chunk.c: physical memory ---- */
/* Finds an extent of `size` bytes for the lane that needs no driver call; BUSY, cut to size. */
tarni_index tarni_chunk_ready_locked(tarn_heap *heap, const tarni_need *need);
/* Whether a large block, if it were free, would come to lie in the same place again. */
bool tarni_chunk_is_best_locked(tarn_heap *heap, const tarni_need *need, tarni_index index);
/* Has the lane wait for so much that others have freed: a steal. */
tarn_status tarni_chunk_wait_grow(tarn_heap *heap, const tarni_order *order, tarni_index lane,
                                  uint64_t bytes);
/* The first among what other lanes have freed, with the wait that it takes. */
tarn_status tarni_chunk_steal_grow(tarn_heap *heap, const tarni_need *need, tarni_index *extent);
/* The chunks below a slab that is made or gone. */
void tarni_chunk_use_locked(tarn_heap *heap, uint64_t offset, uint64_t size, bool is_used);
/* Unmaps what chunks have left, where that is complete by now. */
tarn_status tarni_chunk_reap_grow(tarn_heap *heap);
/* Drops all mappings but the chunks' homes, as far as they are out of use. Whether any were
 * dropped, or went that had been. */
bool tarni_chunk_unalias_grow(tarn_heap *heap);
/* Gives idle chunks back to the device until at most `keep` bytes are held; the same without any
 * wait: what cannot go yet goes later. */
tarn_status tarni_chunk_trim_grow(tarn_heap *heap, uint64_t keep);
tarn_status tarni_chunk_trim_ready_grow(tarn_heap *heap, uint64_t keep);
/* Waits, on the host, for a fence that a mapping waits for which is to be dropped. False: there is
 * none. */
bool tarni_zombies_wait_grow(tarn_heap *heap);
/* Bytes of mappings that are to be dropped once a fence of the lane is complete. */
uint64_t tarni_zombies_bytes_locked(const tarn_heap *heap, tarni_index lane);
/* Gives all chunks back, whatever is on them. May be called again where it fails. */
tarn_status tarni_chunks_close(tarn_heap *heap);

tarni_index tarni_phys_take_locked(tarn_heap *heap); /* 0: no record is left */
void tarni_phys_give_locked(tarn_heap *heap, tarni_index index);
void tarni_idle_add_locked(tarn_heap *heap, tarni_index index);
void tarni_idle_remove_locked(tarn_heap *heap, tarni_index index);
/* The idle chunk with the highest home, of all or below a unit; 0: there is none. */
tarni_index tarni_idle_highest_locked(const tarn_heap *heap);
tarni_index tarni_idle_below_locked(const tarn_heap *heap, uint64_t unit);
/* Whether the lane may have what is free: at once or, if it may steal, behind a wait. */
static inline bool tarni_is_usable_locked(const tarn_heap *heap, const tarni_search *search,
                                          const tarni_extent *extent) {
  return !tarni_order_is_out_locked(heap, &extent->order) &&
         (search->may_steal || tarni_order_is_met_locked(heap, &extent->order, search->lane));
}
/* Whether all of [start, end), at homes, is free, and may be had by the lane: at once or, if it may
 * steal, behind *order, which is what all of it waits for. */
bool tarni_range_is_free_locked(const tarn_heap *heap, uint64_t start, uint64_t end,
                                const tarni_search *search, tarni_order *order);
/* Makes one BUSY extent of exactly that range, with its order. 0: no record is left. */
tarni_index tarni_range_isolate_locked(tarn_heap *heap, uint64_t start, uint64_t end);
void tarni_zombie_add_locked(tarn_heap *heap, tarni_index index);

static inline uint64_t tarni_chunk_start(const tarn_heap *heap, const tarni_phys *chunk) {
  return chunk->first_unit * heap->unit;
}

static inline uint64_t tarni_chunk_end(const tarn_heap *heap, const tarni_phys *chunk) {
  return ((uint64_t)chunk->first_unit + chunk->n_units) * heap->unit;
}

static inline uint64_t tarni_chunk_bytes(const tarn_heap *heap, const tarni_phys *chunk) {
  return chunk->n_units * heap->unit;
}

/* ---- place.c: where chunks are mapped ---- */
/* A chunk is mapped at one more place; the first is its home. */
void tarni_place_add_locked(tarn_heap *heap, tarni_index index, uint32_t unit);
/* A place of a chunk is none any more; nothing is unmapped. */
void tarni_place_remove_locked(tarn_heap *heap, tarni_index index, uint32_t unit);
/* The same, and its BUSY extent becomes a zombie. */
void tarni_place_bury_locked(tarn_heap *heap, tarni_index index, tarni_index extent);
/* A slab was here: it may be unmapped once that is complete. */
void tarni_places_note_locked(tarn_heap *heap, uint64_t offset, uint64_t size,
                              const tarni_order *order);
/* Makes zombies of the places of a chunk that are no homes, where no slab lies; if it is given,
 * with this order. False: some had to stay. */
bool tarni_places_drop_locked(tarn_heap *heap, tarni_index index, const tarni_order *order);
/* They are none any more, nothing is mapped there. False: some had to stay. */
bool tarni_places_forget_locked(tarn_heap *heap, tarni_index index);
/* Drops those of all chunks. Whether there were any. */
bool tarni_aliases_drop_locked(tarn_heap *heap);

/* Whether a chunk has its home elsewhere than at this place, where it is mapped. */
static inline bool tarni_is_alias(const tarn_heap *heap, uint64_t offset) {
  const uint64_t unit = tarni_unit_of(heap, offset);
  return heap->places[unit].first != heap->chunks[heap->units[unit]].first_unit;
}

/* ---- window.c: addresses for more room ---- */
typedef struct tarni_window {
  uint64_t start, missing; /* missing: bytes to be mapped */
  tarni_index first;       /* the extent that it begins in; 0: there is none */
} tarni_window;

tarni_window tarni_window_find_locked(tarn_heap *heap, tarni_search *search,
                                      const tarni_need *need);
/* The next extent of the zone behind this one that is FREE or VOID; 0: there is none. */
tarni_index tarni_window_next_locked(const tarn_heap *heap, tarni_search *search, uint32_t zone,
                                     tarni_index index);

/* ---- view.c: what is free at the ends of chunks, side by side ---- */
/* That are no homes: with fewer what is oldest is looked for, for up to 25 us. */
enum { TARNI_MANY_PLACES = 8192 };

/* The ends of a chunk may have changed. */
static inline void tarni_ends_note_locked(tarn_heap *heap, tarni_index index) {
  tarni_bitset_add(&heap->stale, index);
}
/* The same for those that have their homes in a range. */
void tarni_ends_note_range_locked(tarn_heap *heap, uint64_t offset, uint64_t size);
/* A place was added or removed. */
void tarni_joints_note_locked(tarn_heap *heap, uint64_t unit, uint32_t n_units);
/* What the lane can use at the beginning and at the end of a chunk, in bytes. pre: updated. */
void tarni_ends_update_locked(tarn_heap *heap);
uint64_t tarni_head_locked(const tarn_heap *heap, const tarni_search *search,
                           const tarni_phys *chunk);
uint64_t tarni_tail_locked(const tarn_heap *heap, const tarni_search *search,
                           const tarni_phys *chunk);
/* Whether a chunk of large blocks is in the hands of small ones, and has to be left alone. */
static inline bool tarni_is_borrowed(const tarn_heap *heap, const tarni_search *search,
                                     const tarni_phys *chunk) {
  return chunk->n_small != 0 && chunk->first_unit >= tarni_unit_of(heap, heap->small_end) &&
         !search->is_urgent;
}
/* The number of the youngest place that a window has. */
uint64_t tarni_youngest_locked(const tarn_heap *heap, uint64_t start, uint64_t end);
/* Where in a chunk, from its beginning, a part is free that holds what is needed; UINT64_MAX:
 * nowhere. */
uint64_t tarni_part_locked(const tarn_heap *heap, const tarni_search *search,
                           const tarni_need *need, const tarni_phys *chunk);
/* Room in views that are there, or on a chunk of large blocks that is mapped among small ones;
 * BUSY, the memory behind it is lent. 0: there is none. */
tarni_index tarni_view_find_locked(tarn_heap *heap, tarni_search *search, const tarni_need *need);
/* The same for a large block in views that are older than a place with that number, which is a
 * home, if there are not too many. Without heap->grow: a row that is being made is younger. */
tarni_index tarni_view_older_locked(tarn_heap *heap, const tarni_need *need, uint64_t than);
/* Where there is such room, also behind what has to be waited for; UINT64_MAX: nowhere. */
uint64_t tarni_view_fit_locked(tarn_heap *heap, const tarni_search *search, const tarni_need *need);
/* The longest run of what is free at the end of a view, with so many addresses behind it. */
typedef struct tarni_run {
  uint64_t start, end; /* offsets; the same: there is none */
  uint32_t n_seen;     /* places that were looked at for it */
} tarni_run;
tarni_run tarni_view_end_locked(tarn_heap *heap, const tarni_search *search, uint64_t room);
/* Lends [offset, offset + size) at a chunk's home to a slab that will lie elsewhere; *waits is what
 * has to be waited for besides. 0: it is not free, or no record is left. */
tarni_index tarni_lend_locked(tarn_heap *heap, const tarni_search *search, uint64_t offset,
                              uint64_t size, tarni_order *waits);
/* What lies behind addresses from the first one on, as far as its place goes. */
typedef struct tarni_behind {
  tarni_phys *chunk;
  uint64_t home, size; /* offset, bytes */
} tarni_behind;
static inline tarni_behind tarni_behind_locked(const tarn_heap *heap, uint64_t start,
                                               uint64_t end) {
  const uint64_t unit = tarni_unit_of(heap, start);
  tarni_phys *chunk = &heap->chunks[heap->units[unit]];
  const uint64_t place = heap->places[unit].first * heap->unit;
  return (tarni_behind){
      .chunk = chunk,
      .home = tarni_chunk_start(heap, chunk) + (start - place),
      .size = tarni_min(end, place + tarni_chunk_bytes(heap, chunk)) - start,
  };
}
/* Lends all that lies behind addresses with places, in address order, and appends it to a list. */
bool tarni_lend_behind_locked(tarn_heap *heap, const tarni_search *search, uint64_t start,
                              uint64_t end, tarni_lent *lent);
static inline void tarni_lent_add(tarn_heap *heap, tarni_lent *lent, tarni_index index) {
  *(lent->last != 0 ? &heap->extents[lent->last].link : &lent->first) = index;
  lent->last = index;
}
/* What was lent is free again: in this order, or NULL: in that in which it was. */
void tarni_lent_return_locked(tarn_heap *heap, tarni_index first, const tarni_order *order);
/* Gives the extent of a slab in a view back, in this order; NULL: one that is BUSY, and has not
 * become a slab. */
void tarni_view_leave_locked(tarn_heap *heap, tarni_index index, const tarni_order *order);

/* ---- hint.c: where in views blocks of a size have lain ---- */
uint64_t tarni_hints_bytes(void); /* of the table */
void tarni_hints_clear_locked(tarn_heap *heap);
/* A slab has left a window. */
void tarni_hint_note_locked(tarn_heap *heap, uint64_t start, uint64_t size);
/* It is not to be had, though all of it is free: other places are there, with a chunk twice. */
void tarni_hint_drop_locked(tarn_heap *heap, uint64_t start, uint64_t size);
/* Where one begins that is free, and may be had by the lane; UINT64_MAX: nowhere. */
uint64_t tarni_hint_find_locked(const tarn_heap *heap, const tarni_search *search,
                                const tarni_need *need);

/* ---- join.c: new views ---- */
/* Maps what is free elsewhere side by side. If it is not enough, *more is what has to be made for
 * it; else, where nothing can be done, 0, and so is *extent. */
tarn_status tarni_join_grow(tarn_heap *heap, const tarni_need *need, bool may_steal, uint64_t *more,
                            tarni_index *extent);

/* ---- grow.c and growth.c: more room ---- */
/* Makes what is missing, or a view of what is free elsewhere. */
tarn_status tarni_grow(tarn_heap *heap, const tarni_need *need, bool may_steal,
                       tarni_index *extent);
/* The same with what the lane may use, and with no more than may be made where streams keep what
 * they free (rest.c). *extent is 0 where that is not enough. */
tarn_status tarni_grow_apart(tarn_heap *heap, const tarni_need *need, tarni_index *extent);
/* Finds room where chunks are mapped already, with no driver call. pre: heap->grow is held. */
bool tarni_grow_quietly(tarn_heap *heap, const tarni_need *need, tarni_index *extent);
/* Whether the heap is so small that it rather grows than looks through caches and slabs. */
bool tarni_grow_is_cheap_locked(const tarn_heap *heap, uint64_t more);
/* Whether the heap can afford gaps before blocks that are best begun at a unit. */
bool tarni_grow_may_gap_locked(const tarn_heap *heap, uint64_t size);
/* Creates and maps `size` bytes of new memory among the large blocks' addresses; BUSY. */
tarn_status tarni_grow_new(tarn_heap *heap, uint64_t size, tarni_index *extent);
/* Undoes failed growths that the driver did not let be undone before. */
tarn_status tarni_grow_reap_grow(tarn_heap *heap);
void tarni_grow_close(tarn_heap *heap);

#endif
