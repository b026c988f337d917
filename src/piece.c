/* SPDX-License-Identifier: MIT
 *
 * Blocks in an arena. Owns the partition of its addresses, and the free pieces of it, which are in
 * an array of their own: a place is looked for along that, however many blocks are live. Free
 * pieces with different stamps are not merged: a stretch of neighbours is used as one where all of
 * them may be used. */
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "base/bits.h"

static tarni_piece *piece_get(const tarn_arena *arena, uint32_t index) {
  tarn_assert(index < arena->n_pieces);
  return &arena->pieces[index];
}

static uint64_t piece_end(const tarni_piece *piece) {
  return piece->offset + piece->size;
}

static bool is_free(const tarni_piece *piece) {
  return !piece->is_live && piece->holder == NULL;
}

static bool is_usable(const tarni_piece *piece, const tarni_reach *reach, uint32_t done) {
  return is_free(piece) &&
         (piece->stamp == TARNI_REACH_ALWAYS || tarni_reach_covers(reach, done, piece->stamp));
}

/* ---- Free pieces ---- */

/* How many of them begin below the offset. */
static uint32_t free_below(const tarn_arena *arena, uint64_t offset) {
  uint32_t first = 0, end = arena->n_free;
  while (first < end) {
    const uint32_t middle = first + (end - first) / 2;
    if (arena->pieces[arena->free[middle]].offset < offset) {
      first = middle + 1;
    } else {
      end = middle;
    }
  }
  return first;
}

static void free_add(tarn_arena *arena, uint32_t index) {
  const uint32_t at = free_below(arena, arena->pieces[index].offset);
  tarn_assert(arena->n_free < arena->pieces_capacity);
  memmove(&arena->free[at + 1], &arena->free[at], (arena->n_free - at) * sizeof(*arena->free));
  arena->free[at] = index;
  arena->n_free++;
}

static void free_remove(tarn_arena *arena, uint32_t index) {
  const uint32_t at = free_below(arena, arena->pieces[index].offset);
  tarn_assert(at < arena->n_free && arena->free[at] == index);
  arena->n_free--;
  memmove(&arena->free[at], &arena->free[at + 1], (arena->n_free - at) * sizeof(*arena->free));
}

/* ---- Looking ---- */

/* Free neighbours that may be used now, as one stretch. */
typedef struct stretch {
  uint64_t start, end;
} stretch;

typedef struct fit {
  uint64_t start; /* UINT64_MAX: none yet */
  uint64_t size;  /* of the stretch that it is in */
} fit;

/* Takes the stretch if it is a better fit. */
static void fit_try(fit *best, const stretch *at, uint64_t size, uint64_t alignment) {
  uint64_t start;
  if (at->end - at->start < best->size && tarni_align_up_checked(at->start, alignment, &start) &&
      start <= at->end && size <= at->end - start) {
    *best = (fit){.start = start, .size = at->end - at->start};
  }
}

uint64_t tarni_piece_find_held(const tarn_arena *arena, const tarni_reach *reach, uint32_t done,
                               uint64_t size, uint64_t alignment) {
  fit best = {.start = UINT64_MAX, .size = UINT64_MAX};
  stretch at = {0, 0};
  for (uint32_t i = 0; i < arena->n_free; i++) {
    const tarni_piece *piece = &arena->pieces[arena->free[i]];
    const bool is_good = is_usable(piece, reach, done);
    if (!is_good || piece->offset != at.end) {
      fit_try(&best, &at, size, alignment);
      at.start = is_good ? piece->offset : piece_end(piece);
    }
    at.end = piece_end(piece);
  }
  fit_try(&best, &at, size, alignment);
  if (best.start != UINT64_MAX) {
    return best.start;
  }
  /* From the free stretch at the end on: the arena grows by what is missing. */
  uint64_t start, end;
  return tarni_align_up_checked(at.end == arena->top ? at.start : arena->top, alignment, &start) &&
                 tarni_add(start, size, &end)
             ? start
             : UINT64_MAX;
}

/* The piece that holds the offset. pre: it is below the top. */
static uint32_t piece_holding(const tarn_arena *arena, uint64_t offset) {
  const uint32_t n_below = free_below(arena, offset + 1);
  uint32_t i = n_below != 0 ? arena->free[n_below - 1] : arena->first;
  while (piece_end(&arena->pieces[i]) <= offset) {
    i = arena->pieces[i].next;
  }
  return i;
}

bool tarni_piece_fits_held(const tarn_arena *arena, const tarni_reach *reach, uint32_t done,
                           uint64_t offset, uint64_t size) {
  const uint64_t end = offset + size;
  for (uint32_t i = offset < arena->top ? piece_holding(arena, offset) : TARNI_PIECE_NONE;
       i != TARNI_PIECE_NONE && arena->pieces[i].offset < end; i = arena->pieces[i].next) {
    if (!is_usable(&arena->pieces[i], reach, done)) {
      return false;
    }
  }
  return true;
}

uint32_t tarni_piece_at_held(const tarn_arena *arena, uint64_t offset) {
  const uint32_t exact = tarni_table_find(&arena->live, offset);
  if (exact != TARNI_TABLE_NONE || offset >= arena->top) {
    return exact;
  }
  const uint32_t index = piece_holding(arena, offset);
  return arena->pieces[index].is_live ? index : TARNI_PIECE_NONE;
}

/* ---- Records ---- */

enum { RECORDS_OF_ONE = 4 }; /* a block, and what is left before, behind and up to the end */

bool tarni_piece_room_held(tarn_arena *arena) {
  if (!tarni_table_room(&arena->live)) {
    return false;
  }
  if (arena->pieces_capacity - arena->n_pieces >= RECORDS_OF_ONE) {
    return true;
  }
  const uint32_t capacity = arena->pieces_capacity * 2 + 64;
  tarni_piece *pieces = realloc(arena->pieces, capacity * sizeof(*pieces));
  if (pieces == NULL) {
    return false;
  }
  arena->pieces = pieces;
  uint32_t *indices = realloc(arena->free, capacity * sizeof(*indices));
  if (indices == NULL) {
    return false;
  }
  arena->free = indices;
  arena->pieces_capacity = capacity;
  return true;
}

static uint32_t record_take(tarn_arena *arena) {
  const uint32_t index = arena->unused;
  if (index != TARNI_PIECE_NONE) {
    arena->unused = arena->pieces[index].next;
    return index;
  }
  tarn_assert(arena->n_pieces < arena->pieces_capacity);
  return arena->n_pieces++;
}

/* Puts a new free piece behind another one, or first. */
static uint32_t piece_insert(tarn_arena *arena, uint32_t previous, uint64_t offset, uint64_t size,
                             uint32_t stamp) {
  const uint32_t index = record_take(arena);
  const uint32_t next = previous != TARNI_PIECE_NONE ? arena->pieces[previous].next : arena->first;
  arena->pieces[index] = (tarni_piece){.offset = offset,
                                       .size = size,
                                       .previous = previous,
                                       .next = next,
                                       .stamp = stamp,
                                       .request = TARNI_PIECE_NONE};
  *(previous != TARNI_PIECE_NONE ? &arena->pieces[previous].next : &arena->first) = index;
  *(next != TARNI_PIECE_NONE ? &arena->pieces[next].previous : &arena->last) = index;
  free_add(arena, index);
  return index;
}

/* Takes a piece out of the list, one that is not among the free ones any more. */
static void piece_remove(tarn_arena *arena, uint32_t index) {
  const tarni_piece *piece = &arena->pieces[index];
  *(piece->previous != TARNI_PIECE_NONE ? &arena->pieces[piece->previous].next : &arena->first) =
      piece->next;
  *(piece->next != TARNI_PIECE_NONE ? &arena->pieces[piece->next].previous : &arena->last) =
      piece->previous;
  arena->pieces[index].next = arena->unused;
  arena->unused = index;
}

/* Cuts a free piece in two; gives the second. */
static uint32_t piece_cut(tarn_arena *arena, uint32_t index, uint64_t offset) {
  tarni_piece *piece = piece_get(arena, index);
  tarn_assert(is_free(piece) && offset > piece->offset && offset < piece_end(piece));
  const uint64_t end = piece_end(piece);
  piece->size = offset - piece->offset;
  return piece_insert(arena, index, offset, end - offset, piece->stamp);
}

/* ---- Taking and giving ---- */

uint32_t tarni_piece_take_held(tarn_arena *arena, uint64_t offset, uint64_t size) {
  const uint64_t end = offset + size;
  if (end > arena->top) {
    (void)piece_insert(arena, arena->last, arena->top, end - arena->top, TARNI_REACH_ALWAYS);
    arena->top = end;
  }
  uint32_t index = piece_holding(arena, offset);
  if (arena->pieces[index].offset < offset) {
    index = piece_cut(arena, index, offset);
  }
  while (piece_end(&arena->pieces[index]) < end) {
    const uint32_t next = arena->pieces[index].next;
    if (piece_end(&arena->pieces[next]) > end) {
      (void)piece_cut(arena, next, end);
    }
    tarn_assert(is_free(&arena->pieces[next]));
    arena->pieces[index].size += arena->pieces[next].size;
    free_remove(arena, next);
    piece_remove(arena, next);
  }
  if (piece_end(&arena->pieces[index]) > end) {
    (void)piece_cut(arena, index, end);
  }
  free_remove(arena, index);
  arena->pieces[index].is_live = true;
  tarni_table_put(&arena->live, offset, index);
  arena->live_bytes += size;
  arena->high_water = tarni_max(arena->high_water, end);
  return index;
}

/* Whether a piece and the one behind it are free. */
static bool is_free_pair(const tarn_arena *arena, uint32_t index) {
  const tarni_piece *piece = &arena->pieces[index];
  return is_free(piece) && piece->next != TARNI_PIECE_NONE && is_free(&arena->pieces[piece->next]);
}

/* Makes one piece of two. */
static void piece_merge(tarn_arena *arena, uint32_t index) {
  tarni_piece *piece = &arena->pieces[index];
  piece->size += arena->pieces[piece->next].size;
  piece_remove(arena, piece->next);
}

/* The same if both may be used at the same places. Merging others would make the earlier one wait
 * for the later, which a branch that is not that far could not. */
static void piece_merge_equal(tarn_arena *arena, uint32_t index) {
  if (index != TARNI_PIECE_NONE && is_free_pair(arena, index) &&
      arena->pieces[arena->pieces[index].next].stamp == arena->pieces[index].stamp) {
    free_remove(arena, arena->pieces[index].next);
    piece_merge(arena, index);
  }
}

static void uses_free(tarni_piece *piece) {
  while (piece->uses != NULL) {
    tarni_piece_uses *uses = piece->uses;
    piece->uses = uses->next;
    free(uses);
  }
}

/* A live block is none any more. */
static void piece_end_live(tarn_arena *arena, tarni_piece *piece) {
  tarn_assert(piece->is_live);
  uses_free(piece);
  tarni_table_remove(&arena->live, piece->offset);
  arena->live_bytes -= piece->size;
  piece->is_live = false;
  piece->request = TARNI_PIECE_NONE;
}

/* What is free at the end is not part of what is used any more. */
static void top_lower(tarn_arena *arena) {
  const uint32_t last = arena->last;
  if (last != TARNI_PIECE_NONE && is_free(&arena->pieces[last])) {
    arena->top = arena->pieces[last].offset;
    arena->n_free--;
    piece_remove(arena, last);
  }
}

static void piece_make_free(tarn_arena *arena, uint32_t index, uint32_t stamp) {
  tarni_piece *piece = piece_get(arena, index);
  piece->stamp = stamp;
  free_add(arena, index);
  piece_merge_equal(arena, index);
  piece_merge_equal(arena, piece->previous);
  if (arena->capture == NULL) {
    top_lower(arena);
  }
}

void tarni_piece_give_held(tarn_arena *arena, uint32_t index, uint32_t stamp) {
  piece_end_live(arena, piece_get(arena, index));
  piece_make_free(arena, index, stamp);
}

/* ---- Held pieces ---- */

void tarni_piece_hold_held(tarn_arena *arena, uint32_t index, const tarn_graph *holder) {
  tarni_piece *piece = piece_get(arena, index);
  piece_end_live(arena, piece);
  piece->holder = holder;
  arena->n_held++;
}

/* The next one from `index` on, in the order of addresses, that the graph holds; NULL: any. */
static uint32_t held_from(const tarn_arena *arena, uint32_t index, const tarn_graph *holder) {
  while (index != TARNI_PIECE_NONE && (arena->pieces[index].holder == NULL ||
                                       (holder != NULL && arena->pieces[index].holder != holder))) {
    index = arena->pieces[index].next;
  }
  return index;
}

static uint32_t held_first(const tarn_arena *arena, const tarn_graph *holder) {
  return arena->n_held != 0 ? held_from(arena, arena->first, holder) : TARNI_PIECE_NONE;
}

void tarni_pieces_release_held(tarn_heap *heap, const tarn_graph *holder) {
  for (tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    const uint32_t stamp = arena->capture != NULL ? TARNI_REACH_NEVER : TARNI_REACH_ALWAYS;
    for (uint32_t next, i = held_first(arena, holder); i != TARNI_PIECE_NONE; i = next) {
      next = held_from(arena, arena->pieces[i].next, holder);
      arena->pieces[i].holder = NULL;
      arena->n_held--;
      piece_make_free(arena, i, stamp);
    }
  }
}

bool tarni_pieces_are_lent_held(const tarn_arena *arena) {
  uint32_t i = held_first(arena, NULL);
  while (i != TARNI_PIECE_NONE && arena->pieces[i].holder->arena == arena) {
    i = held_from(arena, arena->pieces[i].next, NULL);
  }
  return i != TARNI_PIECE_NONE;
}

bool tarni_pieces_are_asleep_held(const tarn_graph *holder) {
  bool is = false;
  for (const tarn_arena *arena = holder->heap->arenas; arena != NULL; arena = arena->next) {
    is = is || (arena->is_asleep && held_first(arena, holder) != TARNI_PIECE_NONE);
  }
  return is;
}

uint64_t tarni_pieces_count_held(const tarn_heap *heap, const tarn_graph *holder) {
  uint64_t n = 0;
  for (const tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    for (uint32_t i = held_first(arena, holder); i != TARNI_PIECE_NONE;
         i = held_from(arena, arena->pieces[i].next, holder)) {
      n++;
    }
  }
  return n;
}

/* ---- The end of a capture ---- */

void tarni_pieces_settle_held(tarn_arena *arena) {
  arena->n_free = 0;
  for (uint32_t i = arena->first; i != TARNI_PIECE_NONE; i = arena->pieces[i].next) {
    arena->pieces[i].request = TARNI_PIECE_NONE;
    arena->pieces[i].stamp = TARNI_REACH_ALWAYS;
    while (is_free_pair(arena, i)) {
      piece_merge(arena, i);
    }
    if (is_free(&arena->pieces[i])) {
      arena->free[arena->n_free++] = i;
    }
  }
  top_lower(arena);
}

/* ---- Checking ---- */

static tarn_status piece_wrong(const char *what, uint64_t offset) {
  return tarni_fail(TARN_CORRUPT, "tarn_heap_check", NULL, "Report this as a bug of tarn.",
                    "an arena does not agree with itself: %s at offset %llu", what,
                    (unsigned long long)offset);
}

tarn_status tarni_pieces_check_held(const tarn_arena *arena) {
  uint64_t at = 0, live_bytes = 0, n_live = 0;
  uint32_t previous = TARNI_PIECE_NONE, n_free = 0, n_held = 0;
  for (uint32_t i = arena->first; i != TARNI_PIECE_NONE; i = arena->pieces[i].next) {
    const tarni_piece *piece = &arena->pieces[i];
    if (piece->offset != at || piece->size == 0 || piece->previous != previous) {
      return piece_wrong("pieces do not follow each other", at);
    }
    if (piece->is_live != (tarni_table_find(&arena->live, at) == i)) {
      return piece_wrong("a live block is not found", at);
    }
    if (is_free(piece) && (n_free == arena->n_free || arena->free[n_free++] != i)) {
      return piece_wrong("a free piece is not found", at);
    }
    live_bytes += piece->is_live ? piece->size : 0;
    n_live += piece->is_live;
    n_held += piece->holder != NULL;
    previous = i;
    at = piece_end(piece);
  }
  if (at != arena->top || previous != arena->last || at > arena->high_water ||
      n_free != arena->n_free) {
    return piece_wrong("the end", at);
  }
  if (live_bytes != arena->live_bytes || n_live != arena->live.n || n_held != arena->n_held) {
    return piece_wrong("what is live, or held,", live_bytes);
  }
  return TARN_OK;
}

void tarni_pieces_forget_held(tarn_arena *arena) {
  for (uint32_t i = arena->first; i != TARNI_PIECE_NONE; i = arena->pieces[i].next) {
    uses_free(&arena->pieces[i]);
  }
  tarni_table_clear(&arena->live);
  arena->first = arena->last = arena->unused = TARNI_PIECE_NONE;
  arena->n_pieces = arena->n_free = arena->n_held = 0;
  arena->top = arena->live_bytes = 0;
}

void tarni_pieces_close(tarn_arena *arena) {
  tarni_pieces_forget_held(arena);
  free(arena->pieces);
  free(arena->free);
}
