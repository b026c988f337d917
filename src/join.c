/* SPDX-License-Identifier: MIT
 *
 * New views: which chunks are mapped side by side for a block that fits nowhere. It begins in what
 * is free at the end of a row that is there, or at the end of a chunk; goes on with chunks that are
 * free as a whole; and ends in what is free at the beginning of one. Each mapping costs the same,
 * however large the chunk is, and each chunk that is free as a whole and gets in use is one less to
 * choose from: the cheapest by the sum of both is looked for and, as good, the one that leaves the
 * least behind the block of a chunk that others use. */
#include <stdlib.h>

#include "base/bits.h"
#include "growth.h"

enum {
  JOIN_MAPPING = 16,      /* a mapping is worth so many units of chunks that are free as a whole, */
  JOIN_MISSING = 1 << 20, /* and a unit of new memory so much more */
  JOIN_TAILS = 16,        /* ends of chunks that are tried, the longest ones */
  JOIN_GAP_SHARE = 256, /* behind a row as much is left as the heap holds, up to this part of all */
  JOIN_TRIES = 8,       /* with chunks refused that turned out not to be free */
};

typedef struct join_chunk {
  tarni_index chunk;
  uint64_t bytes; /* that are free: all of it, or at its beginning, or at its end */
} join_chunk;

/* What there is to choose from, wholes and heads from the smallest on. */
typedef struct join {
  tarni_growth *growth;
  uint64_t size, alignment;
  join_chunk *wholes, *heads;
  join_chunk tails[JOIN_TAILS]; /* from the longest on */
  uint32_t n_wholes, n_heads, n_tails;
  join_chunk tail;     /* that the view begins with, if it begins so */
  uint64_t most;       /* bytes of the largest chunk */
  tarni_run run;       /* the longest at the end of a row */
  uint64_t number;     /* chunks of that run bear it */
  uint64_t run_wholes; /* units of these that are free as a whole */
  bool is_blocked;     /* no addresses are left, or no more places may be made */
} join;

typedef enum join_start { JOIN_NOTHING, JOIN_TAIL, JOIN_RUN } join_start;

/* ---- What there is ---- */

static int chunk_compare(const void *a, const void *b) {
  const join_chunk *left = a, *right = b;
  if (left->bytes != right->bytes) {
    return left->bytes < right->bytes ? -1 : 1;
  }
  return (left->chunk > right->chunk) - (left->chunk < right->chunk);
}

static void tail_add(join *at, join_chunk tail) {
  const bool is_full = at->n_tails == JOIN_TAILS;
  if (tail.bytes == 0 || (is_full && tail.bytes <= at->tails[JOIN_TAILS - 1].bytes)) {
    return;
  }
  at->n_tails += !is_full;
  uint32_t i = at->n_tails - 1;
  for (; i != 0 && at->tails[i - 1].bytes < tail.bytes; i--) {
    at->tails[i] = at->tails[i - 1];
  }
  at->tails[i] = tail;
}

static void chunks_list_locked(tarn_heap *heap, join *at) {
  const tarni_search *search = &at->growth->search;
  at->n_wholes = at->n_heads = at->n_tails = 0;
  at->most = 0;
  for (tarni_index i = 1; i < heap->n_chunks; i++) {
    tarni_phys *chunk = &heap->chunks[i];
    if (chunk->places == 0 || (chunk->head == 0 && chunk->tail == 0)) {
      continue;
    }
    const uint64_t bytes = tarni_chunk_bytes(heap, chunk);
    const uint64_t head = tarni_head_locked(heap, search, chunk);
    at->most = tarni_max(at->most, bytes);
    if (head == bytes) {
      at->wholes[at->n_wholes++] = (join_chunk){i, bytes};
      continue;
    }
    if (head != 0) {
      at->heads[at->n_heads++] = (join_chunk){i, head};
    }
    const uint64_t tail = tarni_tail_locked(heap, search, chunk);
    tail_add(at, (join_chunk){i, tail});
  }
  qsort(at->wholes, at->n_wholes, sizeof(*at->wholes), chunk_compare);
  qsort(at->heads, at->n_heads, sizeof(*at->heads), chunk_compare);
}

/* The longest run that a row ends with; its chunks are marked. */
static void run_find_locked(tarn_heap *heap, join *at) {
  at->run = tarni_view_end_locked(heap, &at->growth->search, at->size + at->most);
  at->number = ++heap->n_searches;
  at->run_wholes = 0;
  for (uint64_t offset = at->run.start; offset < at->run.end;) {
    const uint64_t unit = tarni_unit_of(heap, offset);
    tarni_phys *chunk = &heap->chunks[heap->units[unit]];
    const uint64_t first = heap->places[unit].first;
    chunk->stamp = at->number;
    at->run_wholes += offset == first * heap->unit ? chunk->n_units : 0;
    offset = (first + chunk->n_units) * heap->unit;
  }
}

/* ---- Choosing ---- */

/* The first of a list that has so much; `n`: none has. */
static uint32_t list_from(const join_chunk *list, uint32_t n, uint64_t bytes) {
  uint32_t low = n != 0 && list[n - 1].bytes < bytes ? n : 0, high = n;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (list[middle].bytes < bytes) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Whether it is part of what the view begins with. */
static bool is_taken(const tarn_heap *heap, const join *at, join_start start, tarni_index index) {
  return (start == JOIN_RUN && heap->chunks[index].stamp == at->number) ||
         (start == JOIN_TAIL && index == at->tail.chunk);
}

/* The smallest of a list that has so much and is not taken; NULL: none. */
static const join_chunk *list_least(const tarn_heap *heap, const join *at, join_start start,
                                    bool is_heads, uint64_t bytes) {
  const join_chunk *list = is_heads ? at->heads : at->wholes;
  const uint32_t n = is_heads ? at->n_heads : at->n_wholes;
  for (uint32_t i = list_from(list, n, bytes); i < n; i++) {
    if (!is_taken(heap, at, start, list[i].chunk)) {
      return &list[i];
    }
  }
  return NULL;
}

/* The largest below an index that is not taken; the index is lowered to it. */
static const join_chunk *list_most(const tarn_heap *heap, const join *at, join_start start,
                                   const join_chunk *list, uint32_t *below) {
  while (*below != 0) {
    const join_chunk *found = &list[--*below];
    if (!is_taken(heap, at, start, found->chunk)) {
      return found;
    }
  }
  return NULL;
}

typedef struct join_choice {
  uint32_t n;       /* chunks that are to be mapped */
  uint64_t wholes;  /* units of chunks that are free as a whole */
  uint64_t missing; /* bytes */
  uint64_t spare;   /* bytes that are left over of what is free at the beginning of the last one */
} join_choice;

static void choice_add(const tarn_heap *heap, join_choice *choice, tarni_index *chunks,
                       tarni_index index, bool is_whole) {
  if (chunks != NULL) {
    chunks[choice->n] = index;
  }
  choice->n++;
  choice->wholes += is_whole ? heap->chunks[index].n_units : 0;
}

/* What is free there from the first address on where the block can begin. A row begins at a
 * multiple of the alignment, too. */
static uint64_t start_bytes(const tarn_heap *heap, const join *at, join_start start) {
  uint64_t from = 0, end = 0;
  if (start == JOIN_TAIL && at->tail.bytes != 0) {
    end = tarni_chunk_bytes(heap, &heap->chunks[at->tail.chunk]);
    from = end - at->tail.bytes;
  } else if (start == JOIN_RUN) {
    from = at->run.start;
    end = at->run.end;
  }
  return end - tarni_min(end, tarni_align_up(from, at->alignment));
}

/* What follows such a start, in this order, into chunks, if it is given. */
static join_choice choose(const tarn_heap *heap, const join *at, join_start start,
                          tarni_index *chunks) {
  join_choice choice = {.wholes = start == JOIN_RUN ? at->run_wholes : 0};
  uint64_t left = at->size;
  if (start == JOIN_TAIL) {
    choice_add(heap, &choice, chunks, at->tail.chunk, false);
  }
  left -= tarni_min(left, start_bytes(heap, at, start));
  for (uint32_t below = at->n_wholes; left != 0;) {
    const join_chunk *head = list_least(heap, at, start, true, left);
    if (head != NULL) {
      choice_add(heap, &choice, chunks, head->chunk, false);
      choice.spare = head->bytes - left;
      return choice;
    }
    const join_chunk *whole = list_least(heap, at, start, false, left);
    if (whole == NULL || whole >= at->wholes + below) {
      whole = list_most(heap, at, start, at->wholes, &below);
    }
    if (whole == NULL) {
      break;
    }
    choice_add(heap, &choice, chunks, whole->chunk, true);
    left -= tarni_min(left, whole->bytes);
  }
  uint32_t n_heads = at->n_heads;
  const join_chunk *head = left != 0 ? list_most(heap, at, start, at->heads, &n_heads) : NULL;
  if (head != NULL) { /* what is missing comes before it */
    choice_add(heap, &choice, chunks, head->chunk, false);
    left -= tarni_min(left, head->bytes);
  }
  choice.missing = left;
  return choice;
}

/* In granules. */
static uint64_t price_of(const tarn_heap *heap, const join_choice *choice) {
  const uint64_t missing = tarni_unit_of(heap, tarni_align_up(choice->missing, heap->unit));
  const uint64_t units =
      missing * JOIN_MISSING + (uint64_t)choice->n * JOIN_MAPPING + choice->wholes;
  return (units << (heap->unit_log2 - TARNI_GRANULE_LOG2)) + (choice->spare >> TARNI_GRANULE_LOG2);
}

/* Whether a start is better than the best so far, which it is then. */
static bool start_try(const tarn_heap *heap, const join *at, join_start start, join_choice *best) {
  if (start_bytes(heap, at, start) == 0) {
    return false;
  }
  const join_choice choice = choose(heap, at, start, NULL);
  const bool is_better = price_of(heap, &choice) < price_of(heap, best);
  *best = is_better ? choice : *best;
  return is_better;
}

static join_start start_choose(const tarn_heap *heap, join *at, join_choice *best) {
  join_start chosen = JOIN_NOTHING;
  join_chunk tail = {0};
  *best = choose(heap, at, JOIN_NOTHING, NULL);
  for (uint32_t i = 0; i < at->n_tails; i++) {
    at->tail = at->tails[i];
    if (start_try(heap, at, JOIN_TAIL, best)) {
      tail = at->tail;
      chosen = JOIN_TAIL;
    }
  }
  at->tail = tail;
  return start_try(heap, at, JOIN_RUN, best) ? JOIN_RUN : chosen;
}

/* ---- Planning ---- */

/* Where a row begins: behind all others, with room for them to go on; else wherever there is room.
 * UINT64_MAX: nowhere. */
static uint64_t row_begin(tarn_heap *heap, const join *at, uint64_t bytes) {
  const uint64_t top = tarni_max(heap->views_top, heap->large_end);
  const uint64_t share = (heap->size - heap->large_end) / JOIN_GAP_SHARE;
  const uint64_t gap = tarni_max(at->size + at->most, tarni_min(heap->reserved_bytes, share));
  const uint64_t alignment = tarni_max(at->alignment, heap->unit);
  const uint64_t begin = tarni_align_up(top == heap->large_end ? top : top + gap, alignment);
  if (begin + bytes <= heap->size) {
    const tarni_extent *extent = tarni_extent_at(heap, tarni_extent_containing_locked(heap, begin));
    if (extent->kind == TARNI_EXTENT_VOID && extent->offset + extent->size >= begin + bytes) {
      return begin;
    }
  }
  const tarni_index found = tarni_extent_first_locked(heap, TARNI_ZONE_VIEWS, TARNI_TREE_VOID,
                                                      bytes, alignment, UINT32_MAX);
  return found != 0 ? tarni_align_up(heap->extents[found].offset, alignment) : UINT64_MAX;
}

/* Lends what is behind the window at chunks that are to be mapped. */
static bool chunks_lend_locked(tarn_heap *heap, tarni_growth *growth) {
  for (uint32_t i = 0; i < growth->n_chunks; i++) {
    const growth_chunk *planned = &growth->chunks[i];
    tarni_phys *chunk = &heap->chunks[planned->chunk];
    const uint64_t place = planned->offset;
    const uint64_t from = tarni_max(growth->start, place);
    const uint64_t to = tarni_min(growth->end, place + tarni_chunk_bytes(heap, chunk));
    const tarni_index index =
        from < to ? tarni_lend_locked(heap, &growth->search,
                                      tarni_chunk_start(heap, chunk) + (from - place), to - from,
                                      &growth->lent.waits)
                  : 0;
    if (index == 0) {
      chunk->refused = growth->search.number;
      return false;
    }
    tarni_lent_add(heap, &growth->lent, index);
  }
  return true;
}

/* Takes the addresses [begin, begin + bytes), where the chunks of the growth will be. */
static bool row_take_locked(tarn_heap *heap, tarni_growth *growth, uint64_t begin) {
  uint64_t end = begin;
  for (uint32_t i = 0; i < growth->n_chunks; i++) {
    growth->chunks[i].offset = end;
    end += growth->chunks[i].n_units * heap->unit;
  }
  return tarni_growth_take_locked(heap, growth, tarni_extent_containing_locked(heap, begin), begin,
                                  end);
}

/* Takes addresses that are mapped, and lends what is behind them. */
static bool mapped_take_locked(tarn_heap *heap, tarni_growth *growth, uint64_t start,
                               uint64_t end) {
  const tarni_index index = tarni_extent_containing_locked(heap, start);
  return tarni_growth_take_locked(heap, growth, index, start, end) &&
         tarni_lend_behind_locked(heap, &growth->search, start, end, &growth->lent);
}

/* Takes all that was chosen. False: it is not to be had after all. */
static bool choice_take_locked(tarn_heap *heap, join *at, join_start start, const tarni_need *need,
                               const tarni_index *chunks, uint32_t n) {
  tarni_growth *growth = at->growth;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t n_units = heap->chunks[chunks[i]].n_units;
    growth->chunks[growth->n_chunks++] = (growth_chunk){.chunk = chunks[i], .n_units = n_units};
    bytes += n_units * heap->unit;
  }
  const uint64_t begin = start == JOIN_RUN ? at->run.end : row_begin(heap, at, bytes);
  if (begin == UINT64_MAX) {
    at->is_blocked = true;
    return false;
  }
  const uint64_t from = start == JOIN_RUN ? at->run.start
                        : start == JOIN_TAIL
                            ? begin + growth->chunks[0].n_units * heap->unit - at->tail.bytes
                            : begin;
  growth->start = tarni_align_up(from, at->alignment);
  growth->end = growth->start + need->size;
  const bool has_run = start == JOIN_RUN && growth->start < at->run.end;
  if (has_run &&
      !mapped_take_locked(heap, growth, growth->start, tarni_min(at->run.end, growth->end))) {
    return false;
  }
  return n == 0 || (row_take_locked(heap, growth, begin) && chunks_lend_locked(heap, growth));
}

/* Where in a chunk small blocks can have room: at its beginning where it is free as a whole, of
 * however many extents. Where memory is short, anywhere. UINT64_MAX: nowhere. */
static uint64_t room_of(tarn_heap *heap, const tarni_search *search, const tarni_need *need,
                        tarni_phys *chunk) {
  if (tarni_head_locked(heap, search, chunk) == tarni_chunk_bytes(heap, chunk)) {
    return 0;
  }
  return search->is_urgent && chunk->refused != search->number
             ? tarni_part_locked(heap, search, need, chunk)
             : UINT64_MAX;
}

/* Small blocks: the smallest chunk that is free as a whole. Where memory is short, any that has
 * room. */
static join_chunk lender_of(tarn_heap *heap, const join *at, const tarni_need *need) {
  const tarni_search *search = &at->growth->search;
  const uint64_t small_units = tarni_unit_of(heap, heap->small_end);
  join_chunk best = {0};
  for (tarni_index i = 1; i < heap->n_chunks; i++) {
    tarni_phys *chunk = &heap->chunks[i];
    const uint64_t bytes = tarni_chunk_bytes(heap, chunk);
    const bool is_there = chunk->places == 0 || chunk->places - 1 < small_units;
    if (is_there || bytes < at->size || (best.chunk != 0 && bytes >= best.bytes)) {
      continue;
    }
    if (room_of(heap, search, need, chunk) != UINT64_MAX) {
      best = (join_chunk){i, bytes};
    }
  }
  return best;
}

static bool borrow_locked(tarn_heap *heap, join *at, const tarni_need *need) {
  tarni_growth *growth = at->growth;
  const join_chunk best = lender_of(heap, at, need);
  const tarni_index empty = best.chunk != 0
                                ? tarni_extent_first_locked(heap, TARNI_ZONE_SMALL, TARNI_TREE_VOID,
                                                            best.bytes, heap->unit, UINT32_MAX)
                                : 0;
  at->is_blocked = best.chunk != 0 && (empty == 0 || heap->n_aliases >= heap->max_aliases);
  if (empty == 0 || at->is_blocked) {
    return false;
  }
  tarni_phys *chunk = &heap->chunks[best.chunk];
  const uint64_t begin = tarni_align_up(tarni_extent_at(heap, empty)->offset, heap->unit);
  growth->chunks[growth->n_chunks++] =
      (growth_chunk){.chunk = best.chunk, .n_units = chunk->n_units};
  growth->start = begin + room_of(heap, &growth->search, need, chunk);
  growth->end = growth->start + need->size;
  return row_take_locked(heap, growth, begin) && chunks_lend_locked(heap, growth);
}

static bool view_plan_locked(tarn_heap *heap, join *at, const tarni_need *need, tarni_index *chunks,
                             uint64_t *more) {
  chunks_list_locked(heap, at);
  run_find_locked(heap, at);
  join_choice choice;
  const join_start start = start_choose(heap, at, &choice);
  *more = tarni_align_up(choice.missing, heap->unit);
  at->is_blocked = choice.missing == 0 && heap->n_aliases + choice.n > heap->max_aliases;
  if (choice.missing != 0 || at->is_blocked) {
    return false;
  }
  (void)choose(heap, at, start, chunks);
  return choice_take_locked(heap, at, start, need, chunks, choice.n);
}

/* A view that is there, of memory that has to be waited for. */
static bool steal_locked(tarn_heap *heap, tarni_growth *growth, const tarni_need *need) {
  const uint64_t start = tarni_view_fit_locked(heap, &growth->search, need);
  if (start == UINT64_MAX) {
    return false;
  }
  growth->start = start;
  growth->end = start + need->size;
  return mapped_take_locked(heap, growth, start, growth->end);
}

/* Plans a view. False: there is none, and nothing is taken. */
static bool join_plan_locked(tarn_heap *heap, join *at, const tarni_need *need, tarni_index *chunks,
                             uint64_t *more) {
  tarni_ends_update_locked(heap);
  at->growth->search.number = ++heap->n_searches;
  for (int i = 0; i < JOIN_TRIES; i++) {
    *more = 0;
    bool is_planned = steal_locked(heap, at->growth, need);
    if (!is_planned && at->growth->n_pieces == 0) {
      is_planned = need->zone == TARNI_ZONE_SMALL ? borrow_locked(heap, at, need)
                                                  : view_plan_locked(heap, at, need, chunks, more);
    }
    if (is_planned) {
      return true;
    }
    const bool is_refused =
        !at->is_blocked && (at->growth->n_chunks != 0 || at->growth->n_pieces != 0);
    tarni_growth_restore_locked(heap, at->growth);
    if (!is_refused) {
      return false;
    }
  }
  return false;
}

/* ---- Doing it ---- */

static tarn_status join_run(tarn_heap *heap, join *at, const tarni_need *need, tarni_index *chunks,
                            uint64_t *more, tarni_index *extent) {
  tarni_lock_acquire(&heap->lock);
  bool is_planned = join_plan_locked(heap, at, need, chunks, more);
  tarni_lock_release(&heap->lock);
  if (!is_planned && at->is_blocked && tarni_chunk_unalias_grow(heap)) {
    at->is_blocked = false;
    tarni_lock_acquire(&heap->lock);
    tarni_rest_drop_locked(heap);
    is_planned = join_plan_locked(heap, at, need, chunks, more);
    tarni_lock_release(&heap->lock);
  }
  if (!is_planned) {
    free(at->growth);
    return TARN_OK;
  }
  tarni_index whole = 0;
  TARN_TRY(tarni_growth_run(heap, at->growth, TARN_OK, &whole));
  return tarni_growth_end(heap, at->growth, whole, extent);
}

tarn_status tarni_join_grow(tarn_heap *heap, const tarni_need *need, bool may_steal, uint64_t *more,
                            tarni_index *extent) {
  *extent = 0;
  *more = 0;
  const uint64_t n = heap->n_chunks; /* changes under heap->grow alone */
  join at = {.size = need->size, .alignment = need->least};
  TARN_TRY(tarni_growth_make(heap, need->lane, n, 4, &at.growth));
  at.growth->search.may_steal = may_steal;
  at.growth->search.is_urgent = need->is_short;
  join_chunk *lists = calloc(2 * n, sizeof(*lists));
  tarni_index *chunks = calloc(n, sizeof(*chunks));
  tarn_status status = TARN_OK;
  if (lists != NULL && chunks != NULL) {
    at.wholes = lists;
    at.heads = lists + n;
    status = join_run(heap, &at, need, chunks, more, extent);
  } else { /* more memory is made, if that can be */
    free(at.growth);
  }
  free(lists);
  free(chunks);
  return status;
}
