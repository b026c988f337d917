/* SPDX-License-Identifier: MIT
 *
 * How a heap gets more room: in a window of addresses (window.c). Its void parts get chunks: idle
 * ones from elsewhere, the highest first, then new ones. A chunk moves without any wait of the
 * host: it is mapped at its new place and used there in stream order, and its old place becomes an
 * alias (place.c).
 *
 * Three steps: plan under heap->lock (what is taken is BUSY then, out of everybody's sight), do it
 * with no lock but heap->grow, then commit or restore under heap->lock. A failure restores all that
 * was planned (I4). Where the driver does not even let it be undone, what it took stays BUSY, its
 * new memory counts as quarantined, and undoing is tried again whenever the heap is short. */
#include <stdlib.h>

#include "base/bits.h"
#include "internal.h"

enum {
  GROW_MAX_CHUNK = 32 << 20,  /* no chunk is larger than this many bytes, */
  GROW_CHUNK_SHARE = 2048,    /* nor than this part of what the heap holds, */
  GROW_WINDOW_SHARE = 32,     /* or this part of a window that is made, which is fewer mappings, */
  GROW_YOUNG_SHARE = 24,      /* or this one as long as the heap holds less than */
  GROW_YOUNG_HEAP = 1 << 30,  /* so many bytes, */
  GROW_MAX_SHARE = 128,       /* as long as that is no more than this part of the heap */
  GROW_AHEAD = 2,             /* units are made at a time */
  GROW_AHEAD_FROM = 128,      /* by a heap that holds so many */
  GROW_AHEAD_TO = 256,        /* and not yet so many, and none that are idle, */
  GROW_AHEAD_LEFT = 4096,     /* and may still make so many */
  GROW_EASED_SHARE = 16,      /* or this part of what it holds, a cache, by one that is eased, */
  GROW_AHEAD_CHUNKS = 25,     /* in up to so many chunks: log2 of the largest */
  GROW_LEAN_SHARE = 4,        /* above this part of what may still be made a search is lean */
  GROW_SMALL_HEAP = 32 << 20, /* up to here memory is made, and neither moved nor collected for */
  /* Memory above the peak of use by these parts is made, not moved; the second where it would be
   * taken from small blocks, who come back for it, and not always for the same; and the third, up
   * to so many units, besides, since small heaps have few chunks to choose from: the fourth where
   * they are not young. */
  GROW_SLACK_SHARE = 256,
  GROW_SMALL_SLACK_SHARE = 128,
  GROW_YOUNG_EXTRA_SHARE = 48,
  GROW_EXTRA_SHARE = 256,
  GROW_EXTRA_LEAST = 2,
  GROW_EXTRA_MOST = 8,
  GROW_GAP_SHARE = 64, /* of the limit: no more is stranded for the sake of where blocks begin */
};

typedef struct plan_piece {
  tarni_index extent;
  tarni_extent_kind kind; /* what it was: FREE, VOID or ALIAS */
  tarni_order order;
} plan_piece;

typedef struct plan_chunk {
  tarni_index chunk; /* its record */
  tarni_index left;  /* moved: the extent at its old home; 0: new */
  uint32_t n_units;
  uint64_t offset; /* where it goes */
  bool is_alias;   /* where it was mapped before */
  bool is_mapped;  /* there, too, by this plan */
} plan_chunk;

typedef struct tarni_growth {
  struct tarni_growth *next; /* of those that could not be undone yet */
  tarni_search search;       /* whose lane, whether it may steal, how many pieces at most */
  bool may_move;
  bool has_zombies; /* it left places for good */
  bool is_short;    /* no memory is made where some can be moved */
  uint32_t n_pieces;
  uint32_t n_chunks;
  uint32_t max_chunks;
  uint64_t ahead;       /* bytes of which new memory is a multiple, beyond the window if need be */
  uint64_t start, end;  /* the window */
  uint64_t fresh_bytes; /* of new chunks, that count against the limit until they are there */
  uint64_t stuck_bytes; /* of new chunks that could not be released yet */
  tarni_order waits;    /* of the chunks that move */
  plan_piece *pieces;   /* behind the chunks */
  plan_chunk chunks[];
} grow_plan;

/* ---- Taking the window ---- */

/* Takes an extent of the window, cut to it; a void one to the units that the window touches, and
 * what is made ahead. */
static bool piece_take(tarn_heap *heap, grow_plan *plan, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  const plan_piece piece = {
      .extent = index, .kind = (tarni_extent_kind)extent->kind, .order = extent->order};
  if (piece.kind == TARNI_EXTENT_ALIAS) {
    extent->kind = TARNI_EXTENT_BUSY;
  } else {
    const bool is_void = piece.kind == TARNI_EXTENT_VOID;
    const uint64_t unit = is_void ? heap->unit : TARNI_GRANULE;
    const uint64_t from = tarni_max(tarni_align_down(plan->start, unit), extent->offset);
    const uint64_t size = tarni_align_up(plan->end - from, is_void ? plan->ahead : unit);
    const uint64_t to = tarni_min(from + size, extent->offset + extent->size);
    tarni_extent_take_locked(heap, index);
    if (!tarni_extent_cut_locked(heap, index, from, to - from)) {
      tarni_extent_give_locked(heap, index, piece.kind, &piece.order);
      return false;
    }
  }
  plan->pieces[plan->n_pieces++] = piece;
  return true;
}

static bool window_take(tarn_heap *heap, grow_plan *plan, const tarni_window *chosen,
                        uint64_t size) {
  plan->start = chosen->start;
  plan->end = chosen->start + size;
  for (tarni_index i = chosen->first; i != 0 && heap->extents[i].offset < plan->end;) {
    if (!piece_take(heap, plan, i)) {
      return false;
    }
    i = tarni_extent_at(heap, i)->next;
  }
  return true;
}

/* ---- Taking chunks ---- */

/* Plans that an idle chunk goes to `offset`. False: it cannot leave where it is. */
static bool plan_move_locked(tarn_heap *heap, grow_plan *plan, tarni_index index, uint64_t offset) {
  const tarni_phys *chunk = &heap->chunks[index];
  tarni_order order;
  tarni_order waits = plan->waits;
  if (plan->n_chunks == plan->max_chunks ||
      tarni_chunk_overlaps(heap, chunk, plan->start, plan->end) ||
      !tarni_chunk_may_leave_locked(heap, chunk, plan->search.lane, plan->search.may_steal,
                                    &order) ||
      !tarni_order_unite(&waits, &order)) {
    return false;
  }
  const tarni_index left = tarni_chunk_isolate_locked(heap, chunk);
  if (left == 0) {
    return false;
  }
  plan->waits = waits;
  plan->chunks[plan->n_chunks++] =
      (plan_chunk){.chunk = index, .left = left, .n_units = chunk->n_units, .offset = offset};
  tarni_idle_remove_locked(heap, index);
  return true;
}

/* The chunks behind the window's aliases come there. False: one of them cannot, and is refused. */
static bool plan_aliases_locked(tarn_heap *heap, grow_plan *plan) {
  for (uint32_t i = 0; i < plan->n_pieces; i++) {
    if (plan->pieces[i].kind == TARNI_EXTENT_ALIAS) {
      const tarni_extent *alias = tarni_extent_at(heap, plan->pieces[i].extent);
      const tarni_index index = heap->units[tarni_unit_of(heap, alias->offset)];
      if (!plan_move_locked(heap, plan, index, alias->offset)) {
        heap->chunks[index].refused = plan->search.number;
        return false;
      }
      plan->chunks[plan->n_chunks - 1].is_alias = true;
    }
  }
  return true;
}

/* Its new chunks are there, or will not be. */
static void plan_uncharge_locked(tarn_heap *heap, grow_plan *plan) {
  heap->planned_bytes -= plan->fresh_bytes;
  plan->fresh_bytes = 0;
}

/* Everything that the plan took goes back to where it was. */
static void plan_restore_locked(tarn_heap *heap, grow_plan *plan) {
  plan_uncharge_locked(heap, plan);
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    if (planned->left != 0) {
      const tarni_order order = tarni_extent_at(heap, planned->left)->order;
      tarni_extent_give_locked(heap, planned->left, TARNI_EXTENT_FREE, &order);
      tarni_idle_add_locked(heap, planned->chunk);
    } else {
      tarni_phys_give_locked(heap, planned->chunk);
    }
  }
  for (uint32_t i = 0; i < plan->n_pieces; i++) {
    const plan_piece *piece = &plan->pieces[i];
    if (piece->kind == TARNI_EXTENT_ALIAS) {
      tarni_extent_at(heap, piece->extent)->kind = TARNI_EXTENT_ALIAS;
    } else {
      tarni_extent_give_locked(heap, piece->extent, piece->kind, &piece->order);
    }
  }
  plan->n_chunks = plan->n_pieces = 0;
  plan->waits = (tarni_order){0};
}

static tarn_status addresses_fail(const tarn_heap *heap, uint64_t size) {
  const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = size};
  return tarni_fail(TARN_ADDRESS_SPACE, "tarn_alloc", &facts,
                    "Free blocks, so that their addresses come together.",
                    "no %llu bytes of addresses are left in one piece", (unsigned long long)size);
}

static tarn_status records_fail(const tarn_heap *heap) {
  return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free blocks.",
                    "the heap has no records left for its %u extents", heap->max_extents);
}

static tarn_status plan_window_locked(tarn_heap *heap, grow_plan *plan, const tarni_need *need) {
  plan->search.number = ++heap->n_searches;
  for (;;) {
    const tarni_window chosen = tarni_window_find_locked(heap, &plan->search, need);
    if (chosen.first == 0) {
      return addresses_fail(heap, need->size);
    }
    if (!window_take(heap, plan, &chosen, need->size)) {
      plan_restore_locked(heap, plan);
      return records_fail(heap);
    }
    if (plan_aliases_locked(heap, plan)) {
      return TARN_OK;
    }
    plan_restore_locked(heap, plan);
  }
}

/* ---- Choosing the chunks ---- */

/* Plans to move idle chunks into [offset, end), the highest first, of those with a home at `floor`
 * or above: allocation takes the lowest room there is, so these are missed least. Returns where it
 * got to. */
static uint64_t plan_moves_locked(tarn_heap *heap, grow_plan *plan, uint64_t offset, uint64_t end,
                                  uint64_t floor) {
  for (tarni_index index = tarni_idle_highest_locked(heap);
       index != 0 && offset < end && heap->chunks[index].first_unit >= floor;
       index = tarni_idle_below_locked(heap, heap->chunks[index].first_unit)) {
    const uint64_t bytes = tarni_chunk_bytes(heap, &heap->chunks[index]);
    if (bytes <= end - offset && plan_move_locked(heap, plan, index, offset)) {
      offset += bytes;
    }
  }
  return offset;
}

/* The largest chunk for a heap that is to hold so much more, for a window of this size. */
static uint64_t chunk_cap(const tarn_heap *heap, uint64_t more, uint64_t window) {
  const uint64_t total = heap->reserved_bytes + more;
  const uint64_t parts = total < GROW_YOUNG_HEAP ? GROW_YOUNG_SHARE : GROW_WINDOW_SHARE;
  const uint64_t of_window = tarni_min(total / GROW_MAX_SHARE, (window - 1) / parts);
  const uint64_t share = tarni_max(tarni_max(total / GROW_CHUNK_SHARE, of_window), heap->unit);
  const uint64_t cap = (uint64_t)1 << tarni_log2(share);
  return tarni_max(tarni_min(cap, GROW_MAX_CHUNK), heap->unit);
}

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

/* Plans new chunks for [offset, end). */
static tarn_status plan_new_locked(tarn_heap *heap, grow_plan *plan, uint64_t offset, uint64_t end,
                                   uint64_t planned) {
  const uint64_t more = planned + (end - offset);
  if (more > room_left_locked(heap)) {
    return limit_fail(heap, more);
  }
  const uint64_t cap = tarni_max(chunk_cap(heap, more, plan->end - plan->start), plan->ahead);
  while (offset < end) {
    const uint64_t bytes =
        heap->is_fixed ? end - offset : tarni_min(cap, (uint64_t)1 << tarni_log2(end - offset));
    const tarni_index index = plan->n_chunks < plan->max_chunks ? tarni_phys_take_locked(heap) : 0;
    if (index == 0) {
      return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free blocks, and trim the heap.",
                        "the heap has no records left for its %u chunks", heap->max_chunks);
    }
    const uint32_t n_units = (uint32_t)tarni_unit_of(heap, bytes);
    heap->chunks[index] = (tarni_phys){.n_units = n_units, .is_large = offset >= heap->small_end};
    plan->chunks[plan->n_chunks++] =
        (plan_chunk){.chunk = index, .n_units = n_units, .offset = offset};
    offset += bytes;
  }
  return TARN_OK;
}

/* A program that loads what it keeps gives nothing back meanwhile, and chunks under what stays need
 * not move, so larger ones are fewer mappings. Blocks that go after all leave halves of them, which
 * nobody can have: so only where a heap of this size is little of what it may hold.
 * What an eased heap needs wanders, and it grows by less and less and never for the last time: a
 * step ahead is most often the last. Not beyond its bounds, where it would have to collect again.
 */
static uint64_t ahead_of(const tarn_heap *heap, const tarni_need *need) {
  const uint64_t parts = (uint64_t)GROW_EASED_SHARE * tarni_max(heap->n_caches, 1);
  const uint64_t share = tarni_max(heap->reserved_bytes / parts, heap->unit);
  const uint64_t step = tarni_min((uint64_t)1 << tarni_log2(share), GROW_MAX_CHUNK);
  if (!need->is_short && step > heap->unit && heap->refused_bytes == 0 &&
      tarni_rest_is_eased_locked(heap, need->size + step)) {
    return step;
  }
  const uint64_t n_units = heap->reserved_bytes >> heap->unit_log2;
  const uint64_t n_left = room_left_locked(heap) >> heap->unit_log2;
  const bool may = need->zone == 1 && !need->is_short && !heap->is_fixed && heap->idle_bytes == 0 &&
                   n_units >= GROW_AHEAD_FROM && n_units < GROW_AHEAD_TO &&
                   n_left >= GROW_AHEAD_LEFT && heap->refused_bytes == 0;
  return may ? GROW_AHEAD * heap->unit : heap->unit;
}

bool tarni_grow_is_cheap_locked(const tarn_heap *heap, uint64_t more) {
  return !heap->is_fixed && heap->reserved_bytes + more + heap->unit <= GROW_SMALL_HEAP;
}

/* What the heap may hold above the peak of what was used: this part of the peak, and more besides.
 */
static uint64_t slack_of(const tarn_heap *heap, uint64_t share) {
  const uint64_t peak = heap->used_peak_bytes;
  const uint64_t extra = peak <= GROW_YOUNG_HEAP ? GROW_YOUNG_EXTRA_SHARE : GROW_EXTRA_SHARE;
  const uint64_t most = tarni_min(peak / extra, GROW_EXTRA_MOST * heap->unit);
  return peak / share + tarni_max(most, GROW_EXTRA_LEAST * heap->unit);
}

/* Whether so much new memory leaves the heap within its slack. */
static bool is_within_slack(const tarn_heap *heap, uint64_t more, uint64_t share) {
  const uint64_t most =
      heap->used_peak_bytes + slack_of(heap, share) + tarni_rest_earned_locked(heap, more);
  return heap->reserved_bytes + more <= tarni_max(most, GROW_SMALL_HEAP) &&
         tarni_held_bytes_locked(heap) + more <= heap->limit_bytes;
}

/* As long as little memory is stranded, free but on chunks that are in use, and the heap can make
 * more: otherwise the gaps would be memory that nobody can have. */
bool tarni_grow_may_gap_locked(const tarn_heap *heap, uint64_t size) {
  const uint64_t held = heap->reserved_bytes;
  const uint64_t out = heap->used_bytes + heap->idle_bytes + heap->leaving_bytes;
  const uint64_t most =
      tarni_min(slack_of(heap, GROW_SMALL_SLACK_SHARE), heap->limit_bytes / GROW_GAP_SHARE);
  return !heap->is_fixed && held - tarni_min(held, out) <= most &&
         size <= room_left_locked(heap) / GROW_LEAN_SHARE &&
         (heap->refused_bytes == 0 || held < heap->refused_bytes);
}

/* Whether chunks are moved where so much memory would have to be made else. */
static bool may_move(const tarn_heap *heap, const grow_plan *plan, uint64_t more, uint64_t share) {
  const bool may_make =
      is_within_slack(heap, more, share) || tarni_rest_is_eased_locked(heap, more);
  return plan->may_move && (plan->is_short || !may_make);
}

static tarn_status plan_chunks_locked(tarn_heap *heap, grow_plan *plan) {
  uint64_t fresh = 0;
  for (uint32_t i = 0; i < plan->n_pieces; i++) {
    if (plan->pieces[i].kind != TARNI_EXTENT_VOID) {
      continue;
    }
    const tarni_extent *empty = tarni_extent_at(heap, plan->pieces[i].extent);
    uint64_t offset = empty->offset;
    const uint64_t end = empty->offset + empty->size;
    if (may_move(heap, plan, fresh + (end - offset), GROW_SLACK_SHARE)) {
      offset = plan_moves_locked(heap, plan, offset, end, tarni_unit_of(heap, heap->small_end));
    }
    if (offset < end && may_move(heap, plan, fresh + (end - offset), GROW_SMALL_SLACK_SHARE)) {
      offset = plan_moves_locked(heap, plan, offset, end, 0);
    }
    TARN_TRY(plan_new_locked(heap, plan, offset, end, fresh));
    fresh += end - offset;
  }
  plan->fresh_bytes = fresh; /* what captures make meanwhile does not take its place */
  heap->planned_bytes += fresh;
  return TARN_OK;
}

/* ---- Doing it ---- */

/* The memory is there already, but for fixed heaps: what is short is the host's, or the device's
 * for its page tables, and the driver calls it the device's in either case. */
static tarn_status note_mapping(tarn_heap *heap, tarn_status status) {
  heap->is_map_refused =
      !heap->is_fixed && (status == TARN_HOST_MEMORY || status == TARN_DEVICE_MEMORY);
  return status;
}

static tarn_status plan_perform(tarn_heap *heap, grow_plan *plan) {
  TARN_TRY(tarni_order_wait_grow(heap, &plan->waits, plan->search.lane));
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    if (planned->left == 0) {
      TARN_TRY(tarni_port_create(heap->port, planned->n_units * heap->unit,
                                 &heap->chunks[planned->chunk].handle));
    }
  }
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    plan_chunk *planned = &plan->chunks[i];
    if (planned->is_alias) {
      continue;
    }
    const tarn_ptr address = heap->base + planned->offset;
    TARN_TRY(note_mapping(heap, tarni_port_map(heap->port, address, planned->n_units * heap->unit,
                                               heap->chunks[planned->chunk].handle)));
    planned->is_mapped = true;
  }
  for (uint32_t i = 0; i < plan->n_pieces; i++) {
    const tarni_extent *piece = tarni_extent_at(heap, plan->pieces[i].extent);
    if (plan->pieces[i].kind == TARNI_EXTENT_VOID) {
      TARN_TRY(note_mapping(
          heap, tarni_port_access(heap->port, heap->base + piece->offset, piece->size)));
    }
  }
  return TARN_OK;
}

/* Undoes the driver calls of a plan that failed: unmaps what it mapped, releases what it made. May
 * be called again where it fails: stuck_bytes are those of new chunks that are still there. */
static tarn_status plan_undo(tarn_heap *heap, grow_plan *plan) {
  tarn_status result = TARN_OK;
  plan->stuck_bytes = 0;
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    plan_chunk *planned = &plan->chunks[i];
    tarni_phys *chunk = &heap->chunks[planned->chunk];
    const uint64_t bytes = planned->n_units * heap->unit;
    tarn_status status = TARN_OK;
    if (planned->is_mapped) {
      status = tarni_port_unmap(heap->port, heap->base + planned->offset, bytes);
      planned->is_mapped = status != TARN_OK;
    }
    if (status == TARN_OK && planned->left == 0 && chunk->handle != 0) {
      status = tarni_port_release(heap->port, chunk->handle);
      chunk->handle = status == TARN_OK ? 0 : chunk->handle;
    }
    plan->stuck_bytes += planned->left == 0 && status != TARN_OK ? bytes : 0;
    result = result == TARN_OK ? status : result;
  }
  return result;
}

/* The plan failed: it is undone and gone, or kept for a later try. The error stays the first. */
static void plan_abandon(tarn_heap *heap, grow_plan *plan, tarn_status status) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  const bool is_undone = plan_undo(heap, plan) == TARN_OK;
  tarni_lock_acquire(&heap->lock);
  if (status == TARN_DEVICE_MEMORY && !heap->is_map_refused) {
    heap->refused_bytes = heap->reserved_bytes;
  }
  if (is_undone) {
    plan_restore_locked(heap, plan);
  } else {
    plan_uncharge_locked(heap, plan);
    heap->reserved_bytes += plan->stuck_bytes;
    heap->quarantined_bytes += plan->stuck_bytes;
    tarni_held_note_locked(heap);
    plan->next = heap->unfinished;
    heap->unfinished = plan;
  }
  tarni_lock_release(&heap->lock);
  if (is_undone) {
    free(plan);
  } else {
    (void)tarni_fail_again(&error);
  }
}

tarn_status tarni_grow_reap_grow(tarn_heap *heap) {
  while (heap->unfinished != NULL) {
    grow_plan *plan = heap->unfinished;
    const uint64_t stuck = plan->stuck_bytes;
    const tarn_status status = plan_undo(heap, plan);
    tarni_lock_acquire(&heap->lock);
    heap->reserved_bytes -= stuck - plan->stuck_bytes;
    heap->quarantined_bytes -= stuck - plan->stuck_bytes;
    if (status == TARN_OK) {
      heap->unfinished = plan->next;
      plan_restore_locked(heap, plan);
    }
    tarni_lock_release(&heap->lock);
    TARN_TRY(status);
    free(plan);
  }
  return TARN_OK;
}

static void chunk_settle_locked(tarn_heap *heap, grow_plan *plan, const plan_chunk *planned) {
  tarni_phys *chunk = &heap->chunks[planned->chunk];
  const uint32_t unit = (uint32_t)tarni_unit_of(heap, planned->offset);
  if (planned->is_alias) {
    tarni_place_enter_locked(heap, planned->chunk, unit);
  } else {
    tarni_place_add_locked(heap, planned->chunk, unit);
    chunk->first_unit = unit;
  }
  tarni_idle_add_locked(heap, planned->chunk);
  if (planned->left == 0) {
    heap->reserved_bytes += planned->n_units * heap->unit;
    heap->refused_bytes = 0;
  } else {
    plan->has_zombies |= !tarni_place_leave_locked(heap, planned->chunk, planned->left);
    if (!planned->is_alias) {
      heap->moved_chunks++;
      tarni_rest_move_locked(heap, planned->n_units * heap->unit);
    }
  }
}

/* Whether nothing uses any of the memory that the window is made of: what is left over of it is
 * everybody's then. */
static bool plan_is_complete_locked(const tarn_heap *heap, const grow_plan *plan) {
  bool is = tarni_order_is_complete_locked(heap, &plan->waits);
  for (uint32_t i = 0; i < plan->n_pieces && is; i++) {
    is = plan->pieces[i].kind == TARNI_EXTENT_VOID ||
         tarni_order_is_complete_locked(heap, &plan->pieces[i].order);
  }
  return is;
}

/* The plan has worked: chunks are where they are, and the window is one BUSY extent. */
static tarni_index plan_commit_locked(tarn_heap *heap, grow_plan *plan) {
  plan_uncharge_locked(heap, plan);
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    chunk_settle_locked(heap, plan, &plan->chunks[i]);
  }
  tarni_held_note_locked(heap);
  tarn_assert(plan->n_pieces != 0);
  const tarni_index whole = plan->pieces[0].extent;
  for (uint32_t i = 1; i < plan->n_pieces; i++) {
    tarni_extent_append_locked(heap, whole, plan->pieces[i].extent);
  }
  /* The lane's stream has waited for all of it, so its own next ticket stands for all of it. */
  tarni_extent *extent = tarni_extent_at(heap, whole);
  extent->order = (tarni_order){0};
  if (!plan_is_complete_locked(heap, plan)) {
    (void)tarni_order_add(&extent->order, plan->search.lane,
                          tarni_ticket_locked(heap, plan->search.lane));
  }
  extent->tree = tarni_tree_of(heap, &extent->order);
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    heap->chunks[plan->chunks[i].chunk].order = extent->order;
  }
  return whole;
}

/* The device is lost: nothing can be undone any more. */
void tarni_grow_close(tarn_heap *heap) {
  while (heap->unfinished != NULL) {
    grow_plan *plan = heap->unfinished;
    heap->unfinished = plan->next;
    free(plan);
  }
}

/* Does what was planned. On failure all is as it was, and the plan is gone. post: *whole is BUSY.
 */
static tarn_status plan_run(tarn_heap *heap, grow_plan *plan, tarn_status planned,
                            tarni_index *whole) {
  const tarn_status status = planned == TARN_OK ? plan_perform(heap, plan) : planned;
  if (status != TARN_OK) {
    plan_abandon(heap, plan, status);
    return status;
  }
  tarni_lock_acquire(&heap->lock);
  *whole = plan_commit_locked(heap, plan);
  tarni_lock_release(&heap->lock);
  if (plan->has_zombies) {
    /* So that the old places can be seen to be complete. If it fails they stay zombies. */
    (void)tarni_order_fence_grow(heap, &plan->waits);
  }
  return TARN_OK;
}

/* ---- Growing ---- */

/* Each chunk of a plan covers a unit of the window at least, which touches two more than it fills;
 * so does each alias, and between two of them may be something else. What is made ahead is cut into
 * powers of two where there is no room for all of it. */
static tarn_status plan_make(const tarn_heap *heap, tarni_index lane, uint64_t size,
                             grow_plan **plan) {
  if (heap->is_fixed && tarni_capture_forbids()) { /* it would be broken by the registration */
    const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = size};
    return tarni_fail(TARN_CAPTURE, "tarn_pinned_alloc", &facts,
                      "Make room before the capture: tarn_pinned_reserve, or blocks of such sizes "
                      "taken and given back.",
                      "%llu bytes more of pinned memory would be needed, and memory cannot be "
                      "pinned while a stream is being captured",
                      (unsigned long long)size);
  }
  const uint64_t n = tarni_unit_of(heap, size) + 3 + GROW_AHEAD_CHUNKS, n_pieces = 2 * n + 64;
  *plan = calloc(1, sizeof(**plan) + n * sizeof(plan_chunk) + n_pieces * sizeof(plan_piece));
  if (*plan == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free some host memory.",
                      "no host memory to plan the growth of the heap by %llu bytes",
                      (unsigned long long)size);
  }
  (*plan)->search.lane = lane;
  (*plan)->search.may_map = true;
  (*plan)->ahead = heap->unit;
  (*plan)->max_chunks = (uint32_t)n;
  (*plan)->search.max_pieces = (uint32_t)n_pieces;
  (*plan)->pieces = (plan_piece *)(void *)&(*plan)->chunks[n];
  return TARN_OK;
}

/* Cuts the window out of the room that was made. Without a record the room stays free. */
static tarn_status window_cut(tarn_heap *heap, tarni_index whole, uint64_t start, uint64_t size,
                              tarni_index *extent) {
  tarni_lock_acquire(&heap->lock);
  const tarni_order order = tarni_extent_at(heap, whole)->order;
  const bool is_cut = tarni_extent_cut_locked(heap, whole, start, size);
  if (!is_cut) {
    tarni_extent_give_locked(heap, whole, TARNI_EXTENT_FREE, &order);
  }
  tarni_lock_release(&heap->lock);
  *extent = is_cut ? whole : 0;
  return is_cut ? TARN_OK : records_fail(heap);
}

/* A window of aliases alone, whose chunks the lane may use as they are: it takes no driver call. */
bool tarni_grow_quietly(tarn_heap *heap, const tarni_need *need, tarni_index *extent) {
  grow_plan *plan;
  *extent = 0;
  if (plan_make(heap, need->lane, need->size, &plan) != TARN_OK) {
    return false;
  }
  plan->search.may_map = false;
  tarni_lock_acquire(&heap->lock);
  *extent = tarni_chunk_ready_locked(heap, need); /* freed meanwhile */
  tarni_index whole = 0;
  if (*extent == 0 && heap->n_aliases != 0 && plan_window_locked(heap, plan, need) == TARN_OK) {
    whole = plan_commit_locked(heap, plan);
  } else {
    plan_restore_locked(heap, plan);
  }
  tarni_lock_release(&heap->lock);
  if (whole != 0) {
    (void)window_cut(heap, whole, plan->start, need->size, extent);
  }
  free(plan);
  return *extent != 0;
}

tarn_status tarni_grow(tarn_heap *heap, const tarni_need *need, bool may_steal,
                       tarni_index *extent) {
  *extent = 0;
  heap->is_map_refused = false;
  grow_plan *plan;
  TARN_TRY(plan_make(heap, need->lane, need->size, &plan));
  plan->may_move = !heap->is_fixed;
  plan->search.may_steal = may_steal;
  plan->is_short = need->is_short;
  tarni_lock_acquire(&heap->lock);
  *extent = tarni_chunk_ready_locked(heap, need); /* freed meanwhile */
  tarn_status status = TARN_OK;
  if (*extent == 0) {
    plan->ahead = ahead_of(heap, need);
    plan->search.is_lean = need->is_short || need->size > room_left_locked(heap) / GROW_LEAN_SHARE;
    status = plan_window_locked(heap, plan, need);
    status = status == TARN_OK ? plan_chunks_locked(heap, plan) : status;
  }
  tarni_lock_release(&heap->lock);
  if (*extent == 0) {
    tarni_index whole = 0;
    const bool is_ahead = plan->ahead > heap->unit;
    status = plan_run(heap, plan, status, &whole);
    if (is_ahead && status == TARN_DEVICE_MEMORY && heap->refused_bytes != 0) {
      return tarni_grow(heap, need, may_steal, extent); /* less may do, and no more is asked for */
    }
    TARN_TRY(status);
    status = window_cut(heap, whole, plan->start, need->size, extent);
  }
  free(plan);
  return status;
}

tarn_status tarni_grow_new(tarn_heap *heap, uint64_t size, tarni_index *extent) {
  *extent = 0;
  heap->is_map_refused = false;
  grow_plan *plan;
  TARN_TRY(plan_make(heap, TARNI_LANE_COMMON, size, &plan));
  tarni_lock_acquire(&heap->lock);
  const tarni_index empty =
      tarni_extent_first_locked(heap, 1, TARNI_TREE_VOID, size, heap->unit, UINT32_MAX);
  tarn_status status;
  if (empty == 0) {
    status = addresses_fail(heap, size);
  } else {
    const tarni_window chosen = {.start = tarni_extent_at(heap, empty)->offset, .first = empty};
    status = window_take(heap, plan, &chosen, size) ? plan_chunks_locked(heap, plan)
                                                    : records_fail(heap);
  }
  tarni_lock_release(&heap->lock);
  TARN_TRY(plan_run(heap, plan, status, extent));
  free(plan);
  return TARN_OK;
}
