/* SPDX-License-Identifier: MIT
 *
 * Physical memory of a heap: which chunk is mapped where, and how the heap gets more room. Before a
 * chunk is created, idle ones (no slab on them) are moved to where they are needed, oldest first: a
 * chunk is mapped at its new place and used there in stream order; its old place becomes a zombie,
 * which is unmapped once all that used it there is complete. No host ever waits for a move.
 *
 * Everything that calls the driver works in three steps: plan under heap->lock (what is taken is
 * BUSY then, out of everybody's sight), do it with no lock but heap->grow, then commit or restore
 * under heap->lock. A failure restores all that was planned (I4). */
#include <stdlib.h>

#include "base/bits.h"
#include "internal.h"

/* No chunk is larger than this many bytes, nor than this part of the heap. */
enum { CHUNK_MAX_BYTES = 32 << 20, CHUNK_HEAP_SHARE = 1024, PLAN_MAX_CHUNKS = 4096 };

/* ---- Idle chunks, by age ---- */

static void idle_add(tarn_heap *heap, tarni_index index) {
  tarni_phys *chunk = &heap->chunks[index];
  chunk->older = heap->newest_idle;
  chunk->newer = 0;
  if (heap->newest_idle != 0) {
    heap->chunks[heap->newest_idle].newer = index;
  } else {
    heap->oldest_idle = index;
  }
  heap->newest_idle = index;
}

static void idle_remove(tarn_heap *heap, tarni_index index) {
  const tarni_phys *chunk = &heap->chunks[index];
  if (chunk->older != 0) {
    heap->chunks[chunk->older].newer = chunk->newer;
  } else {
    heap->oldest_idle = chunk->newer;
  }
  if (chunk->newer != 0) {
    heap->chunks[chunk->newer].older = chunk->older;
  } else {
    heap->newest_idle = chunk->older;
  }
}

static uint64_t chunk_start(const tarn_heap *heap, const tarni_phys *chunk) {
  return chunk->first_unit * heap->unit;
}

static uint64_t chunk_bytes(const tarn_heap *heap, const tarni_phys *chunk) {
  return chunk->n_units * heap->unit;
}

void tarni_chunk_use_locked(tarn_heap *heap, uint64_t offset, uint64_t size, bool is_used) {
  const uint64_t end = offset + size;
  heap->used_bytes = is_used ? heap->used_bytes + size : heap->used_bytes - size;
  heap->used_peak_bytes = tarni_max(heap->used_peak_bytes, heap->used_bytes);
  while (offset < end) {
    const tarni_index index = heap->units[offset / heap->unit];
    tarn_assert(index != 0 && "a slab lies on chunks");
    tarni_phys *chunk = &heap->chunks[index];
    const uint64_t stop = tarni_min(end, chunk_start(heap, chunk) + chunk_bytes(heap, chunk));
    const uint32_t granules = (uint32_t)((stop - offset) >> TARNI_GRANULE_LOG2);
    if (is_used && chunk->n_used == 0) {
      idle_remove(heap, index);
    }
    chunk->n_used = is_used ? chunk->n_used + granules : chunk->n_used - granules;
    if (!is_used && chunk->n_used == 0) {
      idle_add(heap, index);
    }
    offset = stop;
  }
}

/* ---- Room that is there ---- */

/* The lowest extent of a tree that fits and that the lane may use with no wait. */
static tarni_index tree_find_met(tarn_heap *heap, tarni_index root, tarni_index lane, uint64_t size,
                                 uint64_t alignment) {
  if (root == 0 || heap->extents[root].largest < size) {
    return 0;
  }
  const tarni_extent *node = &heap->extents[root];
  const tarni_index below = tree_find_met(heap, node->left, lane, size, alignment);
  if (below != 0) {
    return below;
  }
  const uint64_t start = tarni_align_up(node->offset, alignment);
  if (node->size >= size && start - node->offset <= node->size - size &&
      tarni_order_is_met_locked(heap, &node->order, lane)) {
    return root;
  }
  return tree_find_met(heap, node->right, lane, size, alignment);
}

static tarni_index find_met(tarn_heap *heap, tarni_index lane, uint32_t zone, uint64_t size,
                            uint64_t alignment) {
  tarni_index found = tarni_extent_first_locked(heap, zone, 1 + lane, size, alignment);
  if (found == 0) {
    found = tarni_extent_first_locked(heap, zone, 1 + TARNI_LANE_COMMON, size, alignment);
  }
  for (tarni_index other = 1; found == 0 && other < heap->n_lanes; other++) {
    found = tree_find_met(heap, heap->zones[zone].trees[1 + other], lane, size, alignment);
  }
  if (found == 0) {
    found =
        tree_find_met(heap, heap->zones[zone].trees[1 + heap->max_lanes], lane, size, alignment);
  }
  return found;
}

/* Takes a free extent and cuts it to size; what is left over stays free. 0: no record is left. */
static tarni_index take_cut(tarn_heap *heap, tarni_index index, uint64_t size, uint64_t alignment) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  const uint64_t start = tarni_align_up(extent->offset, alignment);
  const tarni_order order = extent->order;
  tarni_extent_take_locked(heap, index);
  if (!tarni_extent_cut_locked(heap, index, start, size)) {
    tarni_extent_give_locked(heap, index, TARNI_EXTENT_FREE, &order);
    return 0;
  }
  return index;
}

tarni_index tarni_chunk_ready_locked(tarn_heap *heap, tarni_index lane, uint32_t zone,
                                     uint64_t size, uint64_t alignment) {
  const tarni_index found = find_met(heap, lane, zone, size, alignment);
  return found != 0 ? take_cut(heap, found, size, alignment) : 0;
}

/* The lowest extent that fits, whoever has freed it, unless its fences are lost. */
static tarni_index find_any(tarn_heap *heap, uint32_t zone, uint64_t size, uint64_t alignment) {
  tarni_index found = 0;
  for (uint32_t tree = 1; found == 0 && tree <= 1 + heap->max_lanes; tree++) {
    if (tree == heap->n_lanes + 1) {
      tree = 1 + heap->max_lanes;
    }
    found = tarni_extent_first_locked(heap, zone, tree, size, alignment);
    if (found != 0 && tarni_order_is_lost_locked(heap, &heap->extents[found].order)) {
      found = 0;
    }
  }
  return found;
}

tarn_status tarni_chunk_steal_grow(tarn_heap *heap, tarni_index lane, uint32_t zone, uint64_t size,
                                   uint64_t alignment, tarni_index *extent) {
  tarni_lock_acquire(&heap->lock);
  const tarni_index found = find_any(heap, zone, size, alignment);
  const tarni_index taken = found != 0 ? take_cut(heap, found, size, alignment) : 0;
  const tarni_order order = taken != 0 ? tarni_extent_at(heap, taken)->order : (tarni_order){0};
  tarni_lock_release(&heap->lock);
  *extent = taken;
  if (taken == 0) {
    return TARN_OK;
  }
  const tarn_status status = tarni_order_wait_grow(heap, &order, lane);
  if (status != TARN_OK) {
    tarni_lock_acquire(&heap->lock);
    tarni_extent_give_locked(heap, taken, TARNI_EXTENT_FREE, &order);
    tarni_lock_release(&heap->lock);
    *extent = 0;
  }
  return status;
}

/* ---- Taking chunks off their place ---- */

static tarni_index tree_containing(const tarn_heap *heap, tarni_index root, uint64_t offset) {
  while (root != 0) {
    const tarni_extent *node = &heap->extents[root];
    if (offset < node->offset) {
      root = node->left;
    } else if (offset >= node->offset + node->size) {
      root = node->right;
    } else {
      return root;
    }
  }
  return 0;
}

static tarni_index free_containing(const tarn_heap *heap, uint64_t offset) {
  const tarni_index *trees = heap->zones[tarni_zone_of(heap, offset)].trees;
  for (uint32_t tree = 1; tree <= heap->n_lanes; tree++) {
    const tarni_index found = tree_containing(heap, trees[tree], offset);
    if (found != 0) {
      return found;
    }
  }
  return tree_containing(heap, trees[1 + heap->max_lanes], offset);
}

/* Whether all of an idle chunk may go: every extent on it is free and, if need be, awaited. */
static bool chunk_may_leave(const tarn_heap *heap, const tarni_phys *chunk, tarni_index lane,
                            bool may_steal, tarni_order *order) {
  const uint64_t end = chunk_start(heap, chunk) + chunk_bytes(heap, chunk);
  *order = (tarni_order){0};
  for (uint64_t at = chunk_start(heap, chunk); at < end;) {
    const tarni_index index = free_containing(heap, at);
    if (index == 0) {
      return false; /* somebody is at work on it */
    }
    const tarni_extent *extent = &heap->extents[index];
    if (tarni_order_is_lost_locked(heap, &extent->order) ||
        (!may_steal && !tarni_order_is_met_locked(heap, &extent->order, lane)) ||
        !tarni_order_unite(order, &extent->order)) {
      return false;
    }
    at = extent->offset + extent->size;
  }
  return true;
}

/* Makes one BUSY extent of exactly the chunk's addresses. 0: no record is left. */
static tarni_index chunk_isolate(tarn_heap *heap, const tarni_phys *chunk) {
  const uint64_t start = chunk_start(heap, chunk);
  const uint64_t end = start + chunk_bytes(heap, chunk);
  tarni_index whole = 0;
  for (uint64_t at = start; at < end;) {
    const tarni_index index = free_containing(heap, at);
    const tarni_order order = heap->extents[index].order;
    const uint64_t stop = tarni_min(end, heap->extents[index].offset + heap->extents[index].size);
    tarni_extent_take_locked(heap, index);
    if (!tarni_extent_cut_locked(heap, index, at, stop - at)) {
      tarni_extent_give_locked(heap, index, TARNI_EXTENT_FREE, &order);
      if (whole != 0) {
        tarni_extent_give_locked(heap, whole, TARNI_EXTENT_FREE,
                                 &tarni_extent_at(heap, whole)->order);
      }
      return 0;
    }
    if (whole == 0) {
      whole = index;
    } else {
      (void)tarni_order_unite(&tarni_extent_at(heap, whole)->order, &order);
      tarni_extent_append_locked(heap, whole, index);
    }
    at = stop;
  }
  return whole;
}

static void zombie_add(tarn_heap *heap, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  extent->kind = TARNI_EXTENT_ZOMBIE;
  extent->link = heap->zombies;
  heap->zombies = index;
}

/* ---- Growing ---- */

typedef struct plan_chunk {
  tarni_index chunk;  /* its record */
  tarni_index zombie; /* moved: its old place; 0: new */
  uint32_t old_unit;
  uint32_t n_units;
  uint64_t offset; /* where it goes */
} plan_chunk;

typedef struct grow_plan {
  tarni_index lane;
  tarni_index front; /* free extent that is made longer, or 0 */
  tarni_index empty; /* the void addresses behind it */
  tarni_order front_order;
  tarni_order waits;
  uint32_t n;
  uint32_t n_moved;
  uint32_t n_mapped;
  plan_chunk *chunks;
} grow_plan;

/* The longest free extent that the lane may use and that void addresses follow. */
static void tree_longest(const tarn_heap *heap, tarni_index root, uint64_t size, uint64_t alignment,
                         tarni_index *best) {
  if (root == 0) {
    return;
  }
  const tarni_extent *node = &heap->extents[root];
  tree_longest(heap, node->left, size, alignment, best);
  if (node->next != 0 && heap->extents[node->next].kind == TARNI_EXTENT_VOID) {
    const uint64_t skipped = tarni_align_up(node->offset, alignment) - node->offset;
    const bool fits =
        node->size + heap->extents[node->next].size >= skipped + size && node->size > skipped;
    if (fits && (*best == 0 || node->size > heap->extents[*best].size)) {
      *best = root;
    }
  }
  tree_longest(heap, node->right, size, alignment, best);
}

/* Chooses addresses: behind a free extent, which then needs less, or void ones alone. */
static tarn_status plan_place_locked(tarn_heap *heap, grow_plan *plan, uint32_t zone, uint64_t size,
                                     uint64_t alignment) {
  const tarni_index *trees = heap->zones[zone].trees;
  if (plan->lane != TARNI_LANE_COMMON) {
    tree_longest(heap, trees[1 + plan->lane], size, alignment, &plan->front);
  }
  if (plan->lane != TARNI_LANE_COMMON && plan->front == 0) {
    tree_longest(heap, trees[1 + TARNI_LANE_COMMON], size, alignment, &plan->front);
  }
  uint64_t missing = tarni_align_up(size, heap->unit);
  uint64_t unit_alignment = tarni_max(alignment, heap->unit);
  if (plan->front != 0) {
    const tarni_extent *front = tarni_extent_at(heap, plan->front);
    const uint64_t start = tarni_align_up(front->offset, alignment);
    missing = tarni_align_up(start + size - (front->offset + front->size), heap->unit);
    plan->empty = front->next;
    plan->front_order = front->order;
    unit_alignment = heap->unit;
  } else {
    plan->empty = tarni_extent_first_locked(heap, zone, TARNI_TREE_VOID, missing, unit_alignment);
  }
  if (plan->empty == 0) {
    const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = size};
    return tarni_fail(TARN_ADDRESS_SPACE, "tarn_alloc", &facts,
                      "Make the heap with a larger device, or free blocks.",
                      "no %llu bytes of addresses are left in one piece",
                      (unsigned long long)missing);
  }
  const uint64_t start = tarni_align_up(tarni_extent_at(heap, plan->empty)->offset, unit_alignment);
  tarni_extent_take_locked(heap, plan->empty);
  if (!tarni_extent_cut_locked(heap, plan->empty, start, missing)) {
    tarni_extent_give_locked(heap, plan->empty, TARNI_EXTENT_VOID, NULL);
    return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free blocks.",
                      "the heap has no records left for its %u extents", heap->max_extents);
  }
  if (plan->front != 0) {
    tarni_extent_take_locked(heap, plan->front);
  }
  return TARN_OK;
}

static bool overlaps(const tarn_heap *heap, const tarni_phys *chunk, tarni_index extent) {
  if (extent == 0) {
    return false;
  }
  const tarni_extent *other = tarni_extent_at(heap, extent);
  return chunk_start(heap, chunk) < other->offset + other->size &&
         other->offset < chunk_start(heap, chunk) + chunk_bytes(heap, chunk);
}

/* Plans to move idle chunks into [offset, end), oldest first. Returns where it got to. */
static uint64_t plan_moves_locked(tarn_heap *heap, grow_plan *plan, uint64_t offset, uint64_t end,
                                  bool may_steal) {
  for (tarni_index index = heap->oldest_idle; index != 0 && offset < end;) {
    tarni_phys *chunk = &heap->chunks[index];
    const tarni_index next = chunk->newer;
    tarni_order order;
    if (chunk_bytes(heap, chunk) <= end - offset && !overlaps(heap, chunk, plan->front) &&
        plan->n < PLAN_MAX_CHUNKS && chunk_may_leave(heap, chunk, plan->lane, may_steal, &order)) {
      tarni_order waits = plan->waits;
      if (tarni_order_unite(&waits, &order)) {
        const tarni_index zombie = chunk_isolate(heap, chunk);
        if (zombie == 0) {
          return offset;
        }
        plan->waits = waits;
        plan->chunks[plan->n++] = (plan_chunk){.chunk = index,
                                               .zombie = zombie,
                                               .old_unit = chunk->first_unit,
                                               .n_units = chunk->n_units,
                                               .offset = offset};
        plan->n_moved++;
        idle_remove(heap, index);
        offset += chunk_bytes(heap, chunk);
      }
    }
    index = next;
  }
  return offset;
}

static tarni_index phys_take(tarn_heap *heap) {
  const tarni_index index = heap->free_chunk;
  if (index != 0) {
    heap->free_chunk = heap->chunks[index].newer;
    return index;
  }
  return heap->n_chunks < heap->max_chunks ? heap->n_chunks++ : 0;
}

static void phys_give(tarn_heap *heap, tarni_index index) {
  heap->chunks[index] = (tarni_phys){.newer = heap->free_chunk};
  heap->free_chunk = index;
}

static uint64_t chunk_cap(const tarn_heap *heap) {
  const uint64_t share = tarni_max(heap->reserved_bytes / CHUNK_HEAP_SHARE, heap->unit);
  const uint64_t cap = (uint64_t)1 << tarni_log2(share);
  return tarni_max(tarni_min(cap, CHUNK_MAX_BYTES), heap->unit);
}

/* Plans new chunks for [offset, end). */
static tarn_status plan_new_locked(tarn_heap *heap, grow_plan *plan, uint64_t offset,
                                   uint64_t end) {
  const uint64_t more = end - offset;
  if (more > heap->limit_bytes - tarni_min(heap->limit_bytes, heap->reserved_bytes)) {
    const tarni_facts facts = {.device = heap->port->device.name,
                               .requested_bytes = more,
                               .available_bytes = heap->limit_bytes - heap->reserved_bytes};
    return tarni_fail(TARN_LIMIT, "tarn_alloc", &facts,
                      "Free blocks, or raise the limit with tarn_heap_set_limit.",
                      "%llu more bytes would pass the heap's limit: %llu of %llu are held",
                      (unsigned long long)more, (unsigned long long)heap->reserved_bytes,
                      (unsigned long long)heap->limit_bytes);
  }
  const uint64_t cap = chunk_cap(heap);
  while (offset < end) {
    const uint64_t left = end - offset;
    const uint64_t bytes = tarni_min(cap, (uint64_t)1 << tarni_log2(left));
    const tarni_index index = plan->n < PLAN_MAX_CHUNKS ? phys_take(heap) : 0;
    if (index == 0) {
      return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Ask for less at once.",
                        "one allocation of %llu bytes needs too many chunks",
                        (unsigned long long)more);
    }
    const uint32_t n_units = (uint32_t)(bytes / heap->unit);
    heap->chunks[index] = (tarni_phys){.n_units = n_units};
    plan->chunks[plan->n++] = (plan_chunk){.chunk = index, .n_units = n_units, .offset = offset};
    offset += bytes;
  }
  return TARN_OK;
}

/* Everything that the plan took goes back to where it was. */
static void plan_restore(tarn_heap *heap, grow_plan *plan) {
  tarni_lock_acquire(&heap->lock);
  for (uint32_t i = 0; i < plan->n; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    if (planned->zombie != 0) {
      const tarni_order order = tarni_extent_at(heap, planned->zombie)->order;
      tarni_extent_give_locked(heap, planned->zombie, TARNI_EXTENT_FREE, &order);
      idle_add(heap, planned->chunk);
    } else {
      phys_give(heap, planned->chunk);
    }
  }
  if (plan->front != 0) {
    tarni_extent_give_locked(heap, plan->front, TARNI_EXTENT_FREE, &plan->front_order);
  }
  if (plan->empty != 0) {
    tarni_extent_give_locked(heap, plan->empty, TARNI_EXTENT_VOID, NULL);
  }
  tarni_lock_release(&heap->lock);
}

/* Undoes the driver calls of a plan that failed: unmaps what it mapped, releases what it made. */
static void plan_undo(tarn_heap *heap, grow_plan *plan) {
  for (uint32_t i = 0; i < plan->n; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    tarni_phys *chunk = &heap->chunks[planned->chunk];
    const uint64_t bytes = planned->n_units * heap->unit;
    bool is_undone = true;
    if (i < plan->n_mapped) {
      is_undone = tarni_port_unmap(heap->port, heap->base + planned->offset, bytes) == TARN_OK;
    }
    if (planned->zombie == 0 && chunk->handle != 0) {
      is_undone = tarni_port_release(heap->port, chunk->handle) == TARN_OK && is_undone;
      chunk->handle = 0;
    }
    if (!is_undone) {
      /* Still mapped there, for all that is known: these addresses are never used again. */
      tarni_lock_acquire(&heap->lock);
      heap->quarantined_bytes += planned->zombie == 0 ? bytes : 0;
      tarni_lock_release(&heap->lock);
      plan->empty = 0;
    }
  }
}

static tarn_status plan_perform(tarn_heap *heap, grow_plan *plan, uint64_t offset, uint64_t bytes) {
  TARN_TRY(tarni_order_wait_grow(heap, &plan->waits, plan->lane));
  for (uint32_t i = 0; i < plan->n; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    tarni_phys *chunk = &heap->chunks[planned->chunk];
    if (planned->zombie == 0) {
      TARN_TRY(tarni_port_create(heap->port, planned->n_units * heap->unit, &chunk->handle));
    }
  }
  for (uint32_t i = 0; i < plan->n; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    TARN_TRY(tarni_port_map(heap->port, heap->base + planned->offset, planned->n_units * heap->unit,
                            heap->chunks[planned->chunk].handle));
    plan->n_mapped = i + 1;
  }
  return tarni_port_access(heap->port, heap->base + offset, bytes);
}

/* The plan has worked: chunks are where they are, and the room is one BUSY extent. */
static tarni_index plan_commit_locked(tarn_heap *heap, grow_plan *plan) {
  for (uint32_t i = 0; i < plan->n; i++) {
    const plan_chunk *planned = &plan->chunks[i];
    tarni_phys *chunk = &heap->chunks[planned->chunk];
    for (uint32_t j = 0; planned->zombie != 0 && j < planned->n_units; j++) {
      heap->units[planned->old_unit + j] = 0;
    }
    chunk->first_unit = (uint32_t)(planned->offset / heap->unit);
    for (uint32_t j = 0; j < planned->n_units; j++) {
      heap->units[chunk->first_unit + j] = planned->chunk;
    }
    idle_add(heap, planned->chunk);
    if (planned->zombie != 0) {
      zombie_add(heap, planned->zombie);
      heap->moved_chunks++;
    } else {
      heap->reserved_bytes += planned->n_units * heap->unit;
    }
  }
  heap->reserved_peak_bytes = tarni_max(heap->reserved_peak_bytes, heap->reserved_bytes);
  tarni_index whole = plan->empty;
  if (plan->front != 0) {
    whole = plan->front;
    tarni_extent_append_locked(heap, plan->front, plan->empty);
  }
  /* The lane's stream has waited for all of it, so its own next ticket stands for all of it. */
  tarni_extent *extent = tarni_extent_at(heap, whole);
  extent->order = (tarni_order){0};
  (void)tarni_order_add(&extent->order, plan->lane, tarni_ticket_locked(heap, plan->lane));
  extent->tree = tarni_tree_of(heap, &extent->order);
  return whole;
}

static tarn_status plan_make_locked(tarn_heap *heap, grow_plan *plan, uint32_t zone, uint64_t size,
                                    uint64_t alignment, bool may_steal) {
  TARN_TRY(plan_place_locked(heap, plan, zone, size, alignment));
  const tarni_extent *empty = tarni_extent_at(heap, plan->empty);
  const uint64_t end = empty->offset + empty->size;
  const uint64_t reached = plan_moves_locked(heap, plan, empty->offset, end, may_steal);
  return plan_new_locked(heap, plan, reached, end);
}

/* Does what was planned. On failure all is as it was. post: *whole is BUSY. */
static tarn_status plan_run(tarn_heap *heap, grow_plan *plan, tarn_status planned,
                            tarni_index *whole) {
  tarn_status status = planned;
  if (status == TARN_OK) {
    const tarni_extent *empty = tarni_extent_at(heap, plan->empty);
    status = plan_perform(heap, plan, empty->offset, empty->size);
  }
  if (status != TARN_OK) {
    plan_undo(heap, plan);
    plan_restore(heap, plan);
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

static tarn_status plan_open(grow_plan *plan) {
  plan->chunks = malloc(PLAN_MAX_CHUNKS * sizeof(*plan->chunks));
  return plan->chunks != NULL
             ? TARN_OK
             : tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free some host memory.",
                          "no host memory to plan the growth of the heap");
}

tarn_status tarni_chunk_grow_grow(tarn_heap *heap, tarni_index lane, uint32_t zone, uint64_t size,
                                  uint64_t alignment, bool may_steal, tarni_index *out) {
  *out = 0;
  grow_plan plan = {.lane = lane};
  TARN_TRY(plan_open(&plan));
  tarni_lock_acquire(&heap->lock);
  *out = tarni_chunk_ready_locked(heap, lane, zone, size, alignment); /* freed meanwhile */
  const tarn_status planned =
      *out != 0 ? TARN_OK : plan_make_locked(heap, &plan, zone, size, alignment, may_steal);
  tarni_lock_release(&heap->lock);
  if (*out != 0) {
    free(plan.chunks);
    return TARN_OK;
  }
  tarni_index whole = 0;
  const tarn_status status = plan_run(heap, &plan, planned, &whole);
  free(plan.chunks);
  TARN_TRY(status);
  tarni_lock_acquire(&heap->lock);
  const tarni_order order = tarni_extent_at(heap, whole)->order;
  const uint64_t start = tarni_align_up(tarni_extent_at(heap, whole)->offset, alignment);
  if (tarni_extent_cut_locked(heap, whole, start, size)) {
    *out = whole;
  } else {
    tarni_extent_give_locked(heap, whole, TARNI_EXTENT_FREE, &order);
  }
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

tarn_status tarni_chunk_add_grow(tarn_heap *heap, uint64_t size, tarni_index *whole) {
  *whole = 0;
  grow_plan plan = {.lane = TARNI_LANE_COMMON};
  TARN_TRY(plan_open(&plan));
  tarni_lock_acquire(&heap->lock);
  tarn_status planned = plan_place_locked(heap, &plan, 1, size, heap->unit);
  if (planned == TARN_OK) {
    const tarni_extent *empty = tarni_extent_at(heap, plan.empty);
    planned = plan_new_locked(heap, &plan, empty->offset, empty->offset + empty->size);
  }
  tarni_lock_release(&heap->lock);
  const tarn_status status = plan_run(heap, &plan, planned, whole);
  free(plan.chunks);
  return status;
}

/* ---- Zombies ---- */

/* Takes one zombie that is complete off the list; 0: there is none. */
static tarni_index zombie_take_locked(tarn_heap *heap) {
  for (tarni_index *link = &heap->zombies; *link != 0;) {
    tarni_extent *extent = tarni_extent_at(heap, *link);
    const tarni_index index = *link;
    if (tarni_order_is_complete_locked(heap, &extent->order)) {
      *link = extent->link;
      return index;
    }
    link = &extent->link;
  }
  return 0;
}

/* Unmaps a zombie, and releases its chunk where it has one. False: the driver refused. */
static bool zombie_bury(tarn_heap *heap, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  if (tarni_port_unmap(heap->port, heap->base + extent->offset, extent->size) != TARN_OK) {
    return false;
  }
  tarn_status status = TARN_OK;
  if (extent->chunk != 0) {
    status = tarni_port_release(heap->port, heap->chunks[extent->chunk].handle);
  }
  tarni_lock_acquire(&heap->lock);
  if (extent->chunk != 0) {
    heap->reserved_bytes -= extent->size;
    heap->quarantined_bytes += status != TARN_OK ? extent->size : 0;
    phys_give(heap, extent->chunk);
    extent->chunk = 0;
  }
  extent->kind = TARNI_EXTENT_BUSY;
  tarni_extent_give_locked(heap, index, TARNI_EXTENT_VOID, NULL);
  tarni_lock_release(&heap->lock);
  return true;
}

void tarni_chunk_reap_grow(tarn_heap *heap) {
  for (;;) {
    tarni_lock_acquire(&heap->lock);
    const tarni_index index = zombie_take_locked(heap);
    tarni_lock_release(&heap->lock);
    if (index == 0) {
      return;
    }
    if (!zombie_bury(heap, index)) {
      tarni_lock_acquire(&heap->lock);
      zombie_add(heap, index);
      tarni_lock_release(&heap->lock);
      return;
    }
  }
}

/* ---- Trimming ---- */

/* Makes a zombie of the oldest idle chunk, to be released with it. */
static bool trim_one_locked(tarn_heap *heap, tarni_order *order) {
  for (tarni_index index = heap->oldest_idle; index != 0; index = heap->chunks[index].newer) {
    tarni_phys *chunk = &heap->chunks[index];
    if (!chunk_may_leave(heap, chunk, TARNI_LANE_COMMON, true, order)) {
      continue;
    }
    const tarni_index zombie = chunk_isolate(heap, chunk);
    if (zombie == 0) {
      return false;
    }
    idle_remove(heap, index);
    for (uint32_t i = 0; i < chunk->n_units; i++) {
      heap->units[chunk->first_unit + i] = 0;
    }
    tarni_extent_at(heap, zombie)->order = *order;
    tarni_extent_at(heap, zombie)->chunk = index;
    zombie_add(heap, zombie);
    return true;
  }
  return false;
}

tarn_status tarni_chunk_trim_grow(tarn_heap *heap, uint64_t keep) {
  uint64_t leaving = 0;
  tarn_status status = TARN_OK;
  for (bool is_more = true; is_more;) {
    tarni_order order = {0};
    tarni_lock_acquire(&heap->lock);
    const tarni_index oldest = heap->oldest_idle;
    const uint64_t bytes = oldest != 0 ? chunk_bytes(heap, &heap->chunks[oldest]) : 0;
    is_more = heap->reserved_bytes - leaving > keep && trim_one_locked(heap, &order);
    tarni_lock_release(&heap->lock);
    if (is_more) {
      leaving += bytes;
      const tarn_status fenced = tarni_order_fence_grow(heap, &order);
      status = status == TARN_OK ? fenced : status;
    }
  }
  do {
    (void)tarni_fences_poll_grow(heap);
    tarni_chunk_reap_grow(heap);
  } while (heap->zombies != 0 && tarni_fences_wait_grow(heap));
  return status;
}

/* pre: no work uses the heap any more. */
void tarni_chunks_close(tarn_heap *heap) {
  for (tarni_index index = heap->zombies; index != 0; index = tarni_extent_at(heap, index)->link) {
    const tarni_extent *extent = tarni_extent_at(heap, index);
    (void)tarni_port_unmap(heap->port, heap->base + extent->offset, extent->size);
    if (extent->chunk != 0) {
      (void)tarni_port_release(heap->port, heap->chunks[extent->chunk].handle);
      heap->chunks[extent->chunk].handle = 0;
    }
  }
  for (tarni_index index = 1; index < heap->n_chunks; index++) {
    const tarni_phys *chunk = &heap->chunks[index];
    if (chunk->handle != 0) {
      (void)tarni_port_unmap(heap->port, heap->base + chunk_start(heap, chunk),
                             chunk_bytes(heap, chunk));
      (void)tarni_port_release(heap->port, chunk->handle);
    }
  }
}
