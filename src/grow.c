/* SPDX-License-Identifier: MIT
 *
 * How a heap gets more room. A window of addresses is chosen that needs the least to be mapped:
 * free extents that the lane may use, with void addresses between or beside them. The void parts
 * get chunks: idle ones from elsewhere, oldest first, then new ones. A chunk moves without any wait
 * of the host: it is mapped at its new place and used there in stream order, and its old place
 * becomes a zombie.
 *
 * Three steps: plan under heap->lock (what is taken is BUSY then, out of everybody's sight), do it
 * with no lock but heap->grow, then commit or restore under heap->lock. A failure restores all that
 * was planned (I4). Where the driver does not even let it be undone, what it took stays BUSY, its
 * new memory counts as quarantined, and undoing is tried again whenever the heap is short. */
#include <stdlib.h>

#include "base/bits.h"
#include "internal.h"

enum {
  GROW_MAX_CHUNK = 32 << 20, /* no chunk is larger than this many bytes, */
  GROW_CHUNK_SHARE = 4096,   /* nor than this part of what the heap holds */
  GROW_MAX_PIECES = 64,      /* extents that one window is made of */
  GROW_SLACK_SHARE = 256,    /* memory above the peak of use by this part is made, not moved */
};

typedef struct plan_piece {
  tarni_index extent;
  tarni_extent_kind kind; /* what it was: FREE or VOID */
  tarni_order order;
} plan_piece;

typedef struct plan_chunk {
  tarni_index chunk;  /* its record */
  tarni_index zombie; /* moved: its old place; 0: new */
  uint32_t old_unit;
  uint32_t n_units;
  uint64_t offset; /* where it goes */
  bool is_mapped;  /* there, too */
} plan_chunk;

typedef struct tarni_growth {
  struct tarni_growth *next; /* of those that could not be undone yet */
  tarni_index lane;
  bool may_move, may_steal;
  bool is_short; /* no memory is made where some can be moved */
  uint32_t n_pieces;
  uint32_t n_chunks;
  uint32_t n_moved;
  uint32_t max_chunks;
  uint64_t start, end;  /* the window */
  uint64_t stuck_bytes; /* of new chunks that could not be released yet */
  tarni_order waits;    /* of the chunks that move */
  plan_piece pieces[GROW_MAX_PIECES];
  plan_chunk chunks[];
} grow_plan;

/* ---- Choosing the window ---- */

static bool is_usable(const tarn_heap *heap, const grow_plan *plan, const tarni_extent *extent) {
  return extent->kind == TARNI_EXTENT_VOID ||
         (extent->kind == TARNI_EXTENT_FREE && !heap->is_fixed &&
          tarni_order_is_met_locked(heap, &extent->order, plan->lane));
}

typedef struct window {
  uint64_t start, missing;
  tarni_index first; /* the extent that it begins in */
} window;

/* What a window of `size` bytes from `start`, which lies in the extent `first`, would need. */
static bool window_try(const tarn_heap *heap, const grow_plan *plan, tarni_index first,
                       uint64_t start, uint64_t size, window *best) {
  const uint64_t end = start + size;
  uint64_t missing = 0;
  uint32_t n = 0;
  for (tarni_index i = first; i != 0 && heap->extents[i].offset < end; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    if (!is_usable(heap, plan, extent) || ++n > GROW_MAX_PIECES) {
      return false;
    }
    if (extent->kind == TARNI_EXTENT_VOID) {
      const uint64_t from = tarni_max(start, extent->offset);
      const uint64_t to = tarni_min(end, extent->offset + extent->size);
      missing += tarni_align_up(to, heap->unit) - tarni_align_down(from, heap->unit);
    }
    if (missing >= best->missing) {
      return false;
    }
    if (extent->offset + extent->size >= end) {
      *best = (window){.start = start, .missing = missing, .first = first};
      return true;
    }
  }
  return false; /* the zone ends before */
}

/* Windows that begin where a usable extent begins, and those that end where a free one ends. */
static window window_best(const tarn_heap *heap, const grow_plan *plan, const tarni_need *need) {
  const uint64_t size = need->size, alignment = need->alignment;
  window best = {.missing = UINT64_MAX};
  tarni_index run = 0; /* first extent of the present run of usable ones */
  for (tarni_index i = heap->zones[need->zone].head; i != 0; i = heap->extents[i].next) {
    const tarni_extent *extent = &heap->extents[i];
    if (!is_usable(heap, plan, extent)) {
      run = 0;
      continue;
    }
    run = run != 0 ? run : i;
    const uint64_t start = tarni_align_up(extent->offset, alignment);
    if (start < extent->offset + extent->size) {
      (void)window_try(heap, plan, i, start, size, &best);
    }
    const uint64_t end = extent->offset + extent->size;
    const tarni_extent *first = &heap->extents[run];
    if (extent->kind == TARNI_EXTENT_FREE && end >= first->offset + size) {
      const uint64_t back = tarni_align_down(end - size, alignment);
      tarni_index from = i;
      while (heap->extents[from].offset > back && from != run) {
        from = heap->extents[from].previous;
      }
      if (heap->extents[from].offset <= back) {
        (void)window_try(heap, plan, from, back, size, &best);
      }
    }
  }
  return best;
}

/* Takes the window's extents; void ones are cut to the units that the window touches. */
static bool window_take(tarn_heap *heap, grow_plan *plan, const window *chosen, uint64_t size) {
  plan->start = chosen->start;
  plan->end = chosen->start + size;
  for (tarni_index i = chosen->first; i != 0 && heap->extents[i].offset < plan->end;) {
    tarni_extent *extent = tarni_extent_at(heap, i);
    const plan_piece piece = {
        .extent = i, .kind = (tarni_extent_kind)extent->kind, .order = extent->order};
    const uint64_t from = tarni_max(tarni_align_down(plan->start, heap->unit), extent->offset);
    const uint64_t to =
        tarni_min(tarni_align_up(plan->end, heap->unit), extent->offset + extent->size);
    tarni_extent_take_locked(heap, i);
    if (piece.kind == TARNI_EXTENT_VOID && !tarni_extent_cut_locked(heap, i, from, to - from)) {
      tarni_extent_give_locked(heap, i, TARNI_EXTENT_VOID, NULL);
      return false;
    }
    plan->pieces[plan->n_pieces++] = piece;
    i = tarni_extent_at(heap, i)->next;
  }
  return true;
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
  const window chosen = window_best(heap, plan, need);
  if (chosen.missing == UINT64_MAX) {
    return addresses_fail(heap, need->size);
  }
  return window_take(heap, plan, &chosen, need->size) ? TARN_OK : records_fail(heap);
}

/* ---- Choosing the chunks ---- */

static bool is_in_window(const tarn_heap *heap, const grow_plan *plan, const tarni_phys *chunk) {
  return tarni_chunk_start(heap, chunk) < plan->end &&
         plan->start < tarni_chunk_start(heap, chunk) + tarni_chunk_bytes(heap, chunk);
}

/* Plans to move idle chunks into [offset, end), oldest first. Returns where it got to. */
static uint64_t plan_moves_locked(tarn_heap *heap, grow_plan *plan, uint64_t offset, uint64_t end) {
  for (tarni_index index = heap->oldest_idle; index != 0 && offset < end;) {
    tarni_phys *chunk = &heap->chunks[index];
    const tarni_index next = chunk->newer;
    tarni_order order;
    tarni_order waits = plan->waits;
    if (tarni_chunk_bytes(heap, chunk) <= end - offset && !is_in_window(heap, plan, chunk) &&
        plan->n_chunks < plan->max_chunks &&
        tarni_chunk_may_leave_locked(heap, chunk, plan->lane, plan->may_steal, &order) &&
        tarni_order_unite(&waits, &order)) {
      const tarni_index zombie = tarni_chunk_isolate_locked(heap, chunk);
      if (zombie == 0) {
        return offset;
      }
      plan->waits = waits;
      plan->chunks[plan->n_chunks++] = (plan_chunk){.chunk = index,
                                                    .zombie = zombie,
                                                    .old_unit = chunk->first_unit,
                                                    .n_units = chunk->n_units,
                                                    .offset = offset};
      plan->n_moved++;
      tarni_idle_remove_locked(heap, index);
      offset += tarni_chunk_bytes(heap, chunk);
    }
    index = next;
  }
  return offset;
}

/* The largest chunk for a heap that is to hold so much more. */
static uint64_t chunk_cap(const tarn_heap *heap, uint64_t more) {
  const uint64_t share = tarni_max((heap->reserved_bytes + more) / GROW_CHUNK_SHARE, heap->unit);
  const uint64_t cap = (uint64_t)1 << tarni_log2(share);
  return tarni_max(tarni_min(cap, GROW_MAX_CHUNK), heap->unit);
}

static tarn_status limit_fail(const tarn_heap *heap, uint64_t more) {
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = more,
                             .available_bytes =
                                 heap->limit_bytes -
                                 tarni_min(heap->limit_bytes, tarni_held_bytes_locked(heap))};
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
  if (more > heap->limit_bytes - tarni_min(heap->limit_bytes, tarni_held_bytes_locked(heap))) {
    return limit_fail(heap, more);
  }
  const uint64_t cap = chunk_cap(heap, more);
  while (offset < end) {
    const uint64_t bytes =
        heap->is_fixed ? end - offset : tarni_min(cap, (uint64_t)1 << tarni_log2(end - offset));
    const tarni_index index = plan->n_chunks < plan->max_chunks ? tarni_phys_take_locked(heap) : 0;
    if (index == 0) {
      return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free blocks, and trim the heap.",
                        "the heap has no records left for its %u chunks", heap->max_chunks);
    }
    const uint32_t n_units = (uint32_t)(bytes / heap->unit);
    heap->chunks[index] = (tarni_phys){.n_units = n_units};
    plan->chunks[plan->n_chunks++] =
        (plan_chunk){.chunk = index, .n_units = n_units, .offset = offset};
    offset += bytes;
  }
  return TARN_OK;
}

/* Whether so much new memory leaves the heap within its slack above the peak of what was used. */
static bool is_within_slack(const tarn_heap *heap, uint64_t more) {
  const uint64_t slack = heap->used_peak_bytes / GROW_SLACK_SHARE + 2 * heap->unit;
  return heap->reserved_bytes + more <= heap->used_peak_bytes + slack &&
         tarni_held_bytes_locked(heap) + more <= heap->limit_bytes;
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
    if (plan->may_move && (plan->is_short || !is_within_slack(heap, fresh + (end - offset)))) {
      offset = plan_moves_locked(heap, plan, offset, end);
    }
    TARN_TRY(plan_new_locked(heap, plan, offset, end, fresh));
    fresh += end - offset;
  }
  return TARN_OK;
}

/* ---- Doing it ---- */

static tarn_status plan_perform(tarn_heap *heap, grow_plan *plan) {
  TARN_TRY(tarni_order_wait_grow(heap, &plan->waits, plan->lane));
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    if (planned->zombie == 0) {
      TARN_TRY(tarni_port_create(heap->port, planned->n_units * heap->unit,
                                 &heap->chunks[planned->chunk].handle));
    }
  }
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    plan_chunk *planned = &plan->chunks[i];
    TARN_TRY(tarni_port_map(heap->port, heap->base + planned->offset, planned->n_units * heap->unit,
                            heap->chunks[planned->chunk].handle));
    planned->is_mapped = true;
  }
  for (uint32_t i = 0; i < plan->n_pieces; i++) {
    const tarni_extent *piece = tarni_extent_at(heap, plan->pieces[i].extent);
    if (plan->pieces[i].kind == TARNI_EXTENT_VOID) {
      TARN_TRY(tarni_port_access(heap->port, heap->base + piece->offset, piece->size));
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
    if (status == TARN_OK && planned->zombie == 0 && chunk->handle != 0) {
      status = tarni_port_release(heap->port, chunk->handle);
      chunk->handle = status == TARN_OK ? 0 : chunk->handle;
    }
    plan->stuck_bytes += planned->zombie == 0 && status != TARN_OK ? bytes : 0;
    result = result == TARN_OK ? status : result;
  }
  return result;
}

/* Everything that the plan took goes back to where it was. */
static void plan_restore_locked(tarn_heap *heap, grow_plan *plan) {
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    if (planned->zombie != 0) {
      const tarni_order order = tarni_extent_at(heap, planned->zombie)->order;
      tarni_extent_give_locked(heap, planned->zombie, TARNI_EXTENT_FREE, &order);
      tarni_idle_add_locked(heap, planned->chunk);
    } else {
      tarni_phys_give_locked(heap, planned->chunk);
    }
  }
  for (uint32_t i = 0; i < plan->n_pieces; i++) {
    const plan_piece *piece = &plan->pieces[i];
    tarni_extent_give_locked(heap, piece->extent, piece->kind, &piece->order);
  }
}

/* The plan failed: it is undone and gone, or kept for a later try. The error stays the first. */
static void plan_abandon(tarn_heap *heap, grow_plan *plan) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  const bool is_undone = plan_undo(heap, plan) == TARN_OK;
  tarni_lock_acquire(&heap->lock);
  if (is_undone) {
    plan_restore_locked(heap, plan);
  } else {
    heap->reserved_bytes += plan->stuck_bytes;
    heap->quarantined_bytes += plan->stuck_bytes;
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

static void chunk_settle_locked(tarn_heap *heap, const plan_chunk *planned) {
  tarni_phys *chunk = &heap->chunks[planned->chunk];
  for (uint32_t i = 0; planned->zombie != 0 && i < planned->n_units; i++) {
    heap->units[planned->old_unit + i] = 0;
  }
  chunk->first_unit = (uint32_t)(planned->offset / heap->unit);
  for (uint32_t i = 0; i < planned->n_units; i++) {
    heap->units[chunk->first_unit + i] = planned->chunk;
  }
  tarni_idle_add_locked(heap, planned->chunk);
  if (planned->zombie != 0) {
    tarni_zombie_add_locked(heap, planned->zombie);
    heap->moved_chunks++;
  } else {
    heap->reserved_bytes += planned->n_units * heap->unit;
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
  for (uint32_t i = 0; i < plan->n_chunks; i++) {
    chunk_settle_locked(heap, &plan->chunks[i]);
  }
  heap->reserved_peak_bytes = tarni_max(heap->reserved_peak_bytes, tarni_held_bytes_locked(heap));
  heap->recent_reserved_peak = tarni_max(heap->recent_reserved_peak, heap->reserved_bytes);
  tarn_assert(plan->n_pieces != 0);
  const tarni_index whole = plan->pieces[0].extent;
  for (uint32_t i = 1; i < plan->n_pieces; i++) {
    tarni_extent_append_locked(heap, whole, plan->pieces[i].extent);
  }
  /* The lane's stream has waited for all of it, so its own next ticket stands for all of it. */
  tarni_extent *extent = tarni_extent_at(heap, whole);
  extent->order = (tarni_order){0};
  if (!plan_is_complete_locked(heap, plan)) {
    (void)tarni_order_add(&extent->order, plan->lane, tarni_ticket_locked(heap, plan->lane));
  }
  extent->tree = tarni_tree_of(heap, &extent->order);
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
    plan_abandon(heap, plan);
    return status;
  }
  tarni_lock_acquire(&heap->lock);
  *whole = plan_commit_locked(heap, plan);
  tarni_lock_release(&heap->lock);
  if (plan->n_moved != 0) {
    /* So that the old places can be seen to be complete. If it fails they stay zombies. */
    (void)tarni_order_fence_grow(heap, &plan->waits);
  }
  return TARN_OK;
}

/* ---- Growing ---- */

/* Each chunk of a plan covers a unit of the window at least, which touches two more than it fills.
 */
static tarn_status plan_make(const tarn_heap *heap, tarni_index lane, uint64_t size,
                             grow_plan **plan) {
  const uint64_t n = size / heap->unit + 3;
  *plan = calloc(1, sizeof(**plan) + n * sizeof((*plan)->chunks[0]));
  if (*plan == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free some host memory.",
                      "no host memory to plan the growth of the heap by %llu bytes",
                      (unsigned long long)size);
  }
  (*plan)->lane = lane;
  (*plan)->max_chunks = (uint32_t)n;
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

tarn_status tarni_grow(tarn_heap *heap, const tarni_need *need, bool may_steal,
                       tarni_index *extent) {
  *extent = 0;
  grow_plan *plan;
  TARN_TRY(plan_make(heap, need->lane, need->size, &plan));
  plan->may_move = !heap->is_fixed;
  plan->may_steal = may_steal;
  plan->is_short = need->is_short;
  tarni_lock_acquire(&heap->lock);
  *extent = tarni_chunk_ready_locked(heap, need); /* freed meanwhile */
  tarn_status status = TARN_OK;
  if (*extent == 0) {
    status = plan_window_locked(heap, plan, need);
    status = status == TARN_OK ? plan_chunks_locked(heap, plan) : status;
  }
  tarni_lock_release(&heap->lock);
  if (*extent == 0) {
    tarni_index whole = 0;
    TARN_TRY(plan_run(heap, plan, status, &whole));
    status = window_cut(heap, whole, plan->start, need->size, extent);
  }
  free(plan);
  return status;
}

tarn_status tarni_grow_new(tarn_heap *heap, uint64_t size, tarni_index *extent) {
  *extent = 0;
  grow_plan *plan;
  TARN_TRY(plan_make(heap, TARNI_LANE_COMMON, size, &plan));
  tarni_lock_acquire(&heap->lock);
  const tarni_index empty = tarni_extent_first_locked(heap, 1, TARNI_TREE_VOID, size, heap->unit);
  tarn_status status;
  if (empty == 0) {
    status = addresses_fail(heap, size);
  } else {
    const window chosen = {.start = tarni_extent_at(heap, empty)->offset, .first = empty};
    status = window_take(heap, plan, &chosen, size) ? plan_chunks_locked(heap, plan)
                                                    : records_fail(heap);
  }
  tarni_lock_release(&heap->lock);
  TARN_TRY(plan_run(heap, plan, status, extent));
  free(plan);
  return TARN_OK;
}
