/* SPDX-License-Identifier: MIT
 *
 * One growth of a heap: what is taken for it, the chunks that are to be made or mapped, and how it
 * is done, committed or undone. Which ones these are grow.c and join.c decide. */
#ifndef TARNI_GROWTH_H
#define TARNI_GROWTH_H

#include "room.h"

typedef struct growth_piece {
  tarni_index extent;
  tarni_extent_kind kind; /* what it was: FREE, VOID or ALIAS */
  tarni_order order;
} growth_piece;

typedef struct growth_chunk {
  tarni_index chunk; /* its record */
  uint32_t n_units;
  uint64_t offset; /* where it goes */
  bool is_new;     /* that is its home, then */
  bool is_mapped;  /* there, by this growth */
} growth_chunk;

typedef struct tarni_growth {
  struct tarni_growth *next; /* of those that could not be undone yet */
  tarni_search search;       /* whose lane, whether it may steal, how many pieces at most */
  bool is_for_view;          /* what is made will be mapped once more */
  bool is_spare;             /* and is for what finds no other room */
  uint32_t n_pieces;
  uint32_t n_chunks;
  uint32_t max_chunks;
  uint64_t step, least; /* new memory is a multiple of the one and no less than the other, beyond
                           the window if need be */
  uint64_t start, end;  /* the window */
  uint64_t fresh_bytes; /* of new chunks, that count against the limit until they are there */
  uint64_t stuck_bytes; /* of new chunks that could not be released yet */
  tarni_lent lent;      /* for a view */
  growth_piece *pieces; /* behind the chunks */
  growth_chunk chunks[];
} tarni_growth;

/* One with room for so many chunks and pieces, at least as many of the latter. */
tarn_status tarni_growth_make(const tarn_heap *heap, tarni_index lane, uint64_t n_chunks,
                              uint64_t n_pieces, tarni_growth **growth);
/* Takes [from, to) of an extent. False: no record is left. */
bool tarni_growth_take_locked(tarn_heap *heap, tarni_growth *growth, tarni_index index,
                              uint64_t from, uint64_t to);
/* All that was taken becomes one BUSY extent, which the lane may use. */
tarni_index tarni_growth_unite_locked(tarn_heap *heap, tarni_growth *growth);
/* Everything that it took goes back to where it was. */
void tarni_growth_restore_locked(tarn_heap *heap, tarni_growth *growth);
/* Does what was planned, if `planned` is TARN_OK. On failure all is as it was, and the growth is
 * gone. post: *whole is BUSY, all that was taken. */
tarn_status tarni_growth_run(tarn_heap *heap, tarni_growth *growth, tarn_status planned,
                             tarni_index *whole);
/* Cuts the window out of that, and ends the growth. Without a record the room stays as it is. */
tarn_status tarni_growth_end(tarn_heap *heap, tarni_growth *growth, tarni_index whole,
                             tarni_index *extent);
tarn_status tarni_growth_no_records(const tarn_heap *heap);
tarn_status tarni_growth_no_addresses(const tarn_heap *heap, uint64_t size);

#endif
