/* SPDX-License-Identifier: MIT
 *
 * Slabs: extents cut into equal blocks. Blocks up to 64 KiB share a slab; larger ones have one
 * each. A slab does not know which of its blocks are free: that is counted when slabs are
 * collected, which happens when the heap would have to grow, and at low water (tide.c).
 *
 * Everything is under heap->lock. Knows nothing about threads. */
#include "base/bits.h"
#include "room.h"

enum {
  SLAB_FEW = 512,  /* free blocks of a class that collecting looks at for nothing, */
  SLAB_WORTH = 64, /* and besides for each slab that it gives */
  SLAB_PAYS = 4,   /* beyond, it looks again at so many for each that was freed since */
};

uint64_t tarni_slab_bytes(uint32_t class_index) {
  const uint64_t block = tarni_class_size(class_index);
  if (block > TARNI_SHARED_BLOCK_MAX) {
    return tarni_align_up(block, TARNI_GRANULE);
  }
  return tarni_max(tarni_align_up(block * TARNI_SLAB_MIN_BLOCKS, TARNI_GRANULE),
                   TARNI_SLAB_MIN_BYTES);
}

uint32_t tarni_slab_blocks(uint32_t class_index) {
  return (uint32_t)(tarni_slab_bytes(class_index) / tarni_class_size(class_index));
}

/* ---- Slabs ---- */

/* Slabs of several blocks are found by all their granules, those of one block by their first
 * granule and by those where units begin. */
static void pages_set(tarn_heap *heap, const tarni_extent *extent, tarni_index value) {
  const uint64_t end = extent->offset + extent->size;
  const uint64_t step = extent->n_blocks == 1 ? heap->unit : TARNI_GRANULE;
  heap->pages[extent->offset >> TARNI_GRANULE_LOG2] = value;
  for (uint64_t at = tarni_align_down(extent->offset, step) + step; at < end; at += step) {
    heap->pages[at >> TARNI_GRANULE_LOG2] = value;
  }
  for (uint64_t at = tarni_align_up(extent->offset, heap->unit); at < end; at += heap->unit) {
    if (value != 0) {
      tarni_bitset_add(&heap->barred, tarni_unit_of(heap, at));
    } else {
      tarni_bitset_remove(&heap->barred, tarni_unit_of(heap, at));
    }
  }
}

tarni_index tarni_slab_at_locked(const tarn_heap *heap, uint64_t offset) {
  uint64_t page = offset >> TARNI_GRANULE_LOG2;
  uint64_t first = tarni_align_down(offset, heap->unit) >> TARNI_GRANULE_LOG2;
  if (offset < heap->small_end) { /* no slab is larger than its largest block there */
    const uint64_t most = (TARNI_SMALL_MAX >> TARNI_GRANULE_LOG2) - 1;
    first = tarni_max(first, page - tarni_min(page, most));
  }
  while (page != first && heap->pages[page] == 0) {
    page--;
  }
  const tarni_index index = heap->pages[page];
  return index != 0 && offset - heap->extents[index].offset < heap->extents[index].size ? index : 0;
}

void tarni_slab_make_locked(tarn_heap *heap, tarni_index index, tarni_index lane,
                            uint32_t class_index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarn_assert(extent->kind == TARNI_EXTENT_BUSY);
  heap->rest.n_slabs++;
  heap->rest.made_bytes += extent->size;
  tarni_hoard_take_locked(heap, lane, extent->size);
  extent->kind = TARNI_EXTENT_SLAB;
  extent->class_index = (uint8_t)class_index;
  extent->lane = lane;
  extent->has_uses = false;
  extent->n_seen = 0;
  extent->link = 0;
  extent->lent = tarni_is_alias(heap, extent->offset) ? extent->lent : 0;
  extent->order = (tarni_order){0};
  const bool is_large = class_index == TARNI_CLASS_COUNT;
  const uint64_t block = is_large ? extent->size : tarni_class_size(class_index);
  extent->n_blocks = is_large ? 1 : tarni_slab_blocks(class_index);
  extent->block_bytes_256 = is_large ? 0 : (uint32_t)(block >> 8);
  pages_set(heap, extent, index);
  tarni_chunk_use_locked(heap, extent->offset, extent->size, true);
  extent->state = is_large ? TARNI_BLOCK_LIVE : extent->state;
  for (uint32_t i = is_large ? 0 : extent->n_blocks; i-- != 0;) { /* the lowest is taken first */
    const uint32_t item = (uint32_t)((extent->offset >> 8) + i * (block >> 8));
    tarn_assert(heap->states[item] == 0);
    tarni_bin_put_locked(heap, lane, class_index, item);
  }
  const uint64_t unbinned = heap->used_bytes - heap->binned_bytes;
  if (TARNI_UNLIKELY(unbinned > heap->rest.peak_next ||
                     ++heap->rest.n_unseen == TARNI_PEAK_SLABS)) {
    tarni_rest_peak_locked(heap, unbinned);
  }
}

void tarni_slab_release_locked(tarn_heap *heap, tarni_index index, const tarni_order *order) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarn_assert(extent->kind == TARNI_EXTENT_SLAB);
  pages_set(heap, extent, 0);
  tarni_hoard_give_locked(heap, order, extent->size);
  tarni_chunk_use_locked(heap, extent->offset, extent->size, false);
  extent->kind = TARNI_EXTENT_BUSY;
  if (extent->lent != 0) {
    tarni_view_leave_locked(heap, index, order);
  } else {
    tarni_extent_give_locked(heap, index, TARNI_EXTENT_FREE, order);
  }
}

/* ---- Collecting ---- */

static tarni_index slab_of(const tarn_heap *heap, uint32_t item) {
  return heap->pages[item >> (TARNI_GRANULE_LOG2 - 8)];
}

/* Counts a free block of a slab, and the lane that has it. */
static void block_count(tarn_heap *heap, uint32_t item, tarni_index lane, uint64_t ticket) {
  tarni_extent *slab = tarni_extent_at(heap, slab_of(heap, item));
  slab->n_seen++;
  if (!tarni_order_add(&slab->order, lane, ticket)) {
    slab->n_seen = UINT32_MAX / 2; /* free by too many lanes: it stays as it is */
  }
}

static void block_forget(tarn_heap *heap, uint32_t item) {
  tarni_extent *slab = tarni_extent_at(heap, slab_of(heap, item));
  slab->n_seen = 0;
  slab->order.n = 0;
}

/* Whether the block's slab is wholly free; if so it is noted in a list. */
static bool block_sift(tarn_heap *heap, uint32_t item, tarni_index *released) {
  const tarni_index index = slab_of(heap, item);
  tarni_extent *slab = tarni_extent_at(heap, index);
  if (slab->n_seen != slab->n_blocks) {
    return false;
  }
  if (slab->link == 0 && *released != index) {
    slab->link = *released != 0 ? *released : index; /* the last one points at itself */
    *released = index;
  }
  return true;
}

static void bin_count(tarn_heap *heap, tarni_index lane, uint32_t class_index) {
  const tarni_bin *bin = &heap->lanes[lane].bins[class_index];
  const uint64_t ticket = bin->n != 0 ? tarni_ticket_locked(heap, lane) : 0;
  for (uint32_t at = bin->head; at != 0; at = heap->links[at - 1]) {
    block_count(heap, at - 1, lane, ticket);
  }
}

/* Takes the blocks of slabs that are wholly free out of a bin. */
static void bin_sift(tarn_heap *heap, tarni_index lane, uint32_t class_index,
                     tarni_index *released) {
  tarni_bin *bin = &heap->lanes[lane].bins[class_index];
  const uint64_t n = bin->n;
  uint32_t *link = &bin->head;
  while (*link != 0) {
    const uint32_t item = *link - 1;
    if (block_sift(heap, item, released)) {
      *link = heap->links[item];
      bin->n--;
    } else {
      link = &heap->links[item];
    }
  }
  heap->binned_bytes -= (n - bin->n) * tarni_class_size(class_index);
}

static void bin_forget(tarn_heap *heap, const tarni_bin *bin) {
  for (uint32_t at = bin->head; at != 0; at = heap->links[at - 1]) {
    block_forget(heap, at - 1);
  }
}

/* The same with the blocks of a stack, which a lane has. */
static void stack_count(tarn_heap *heap, tarni_index lane, const tarni_stack *stack) {
  const uint64_t ticket = stack->n != 0 ? tarni_ticket_locked(heap, lane) : 0;
  for (uint32_t i = 0; i < stack->n; i++) {
    block_count(heap, stack->items[i], lane, ticket);
  }
}

static void stack_sift(tarn_heap *heap, tarni_stack *stack, tarni_index *released) {
  const uint32_t n = stack->n;
  stack->n = 0;
  for (uint32_t i = 0; i < n; i++) {
    if (!block_sift(heap, stack->items[i], released)) {
      stack->items[stack->n++] = stack->items[i];
    }
  }
}

static void stack_forget(tarn_heap *heap, const tarni_stack *stack) {
  for (uint32_t i = 0; i < stack->n; i++) {
    block_forget(heap, stack->items[i]);
  }
}

static uint32_t slabs_release(tarn_heap *heap, tarni_index released) {
  uint32_t n = 0;
  for (; released != 0; n++) {
    tarni_extent *slab = tarni_extent_at(heap, released);
    const tarni_index index = released;
    released = slab->link == index ? 0 : slab->link;
    slab->link = 0;
    const tarni_order order = slab->order;
    tarni_slab_release_locked(heap, index, &order);
  }
  return n;
}

/* Whether a class is worth a look: there are as many free blocks as a slab has and, unless it is to
 * be thorough, enough of them were freed since it was last looked at in vain. */
static bool is_worth(const tarn_heap *heap, uint32_t class_index, const tarni_sweep *sweep) {
  uint64_t n = sweep->stacks != NULL ? sweep->stacks[class_index].n : 0, n_old = 0, n_put = 0;
  for (tarni_index lane = sweep->first; lane < sweep->end; lane++) {
    const tarni_bin *bin = &heap->lanes[lane].bins[class_index];
    n += bin->n;
    n_old += bin->is_vain && bin->n > bin->n_put ? bin->n - bin->n_put : 0;
    n_put += bin->n_put;
  }
  return n >= tarni_slab_blocks(class_index) && (sweep->is_thorough || n_put * SLAB_PAYS >= n_old);
}

/* Counts all free blocks of a class that the sweep can see. Returns how many they are. */
static uint64_t class_count(tarn_heap *heap, uint32_t class_index, const tarni_sweep *sweep,
                            const tarni_stack *stack) {
  uint64_t n = stack->n;
  stack_count(heap, sweep->first, stack);
  for (tarni_index lane = sweep->first; lane < sweep->end; lane++) {
    n += heap->lanes[lane].bins[class_index].n;
    bin_count(heap, lane, class_index);
  }
  return n;
}

static uint32_t collect_class(tarn_heap *heap, uint32_t class_index, const tarni_sweep *sweep) {
  tarni_stack none = {0};
  tarni_stack *stack = sweep->stacks != NULL ? &sweep->stacks[class_index] : &none;
  tarni_index released = 0;
  const uint64_t n_seen = class_count(heap, class_index, sweep, stack);
  stack_sift(heap, stack, &released);
  for (tarni_index lane = sweep->first; lane < sweep->end; lane++) {
    bin_sift(heap, lane, class_index, &released);
  }
  stack_forget(heap, stack);
  const uint32_t n_slabs = slabs_release(heap, released);
  const bool is_vain = n_seen > SLAB_FEW + (uint64_t)SLAB_WORTH * n_slabs;
  for (tarni_index lane = sweep->first; lane < sweep->end; lane++) {
    tarni_bin *bin = &heap->lanes[lane].bins[class_index];
    bin_forget(heap, bin);
    bin->is_vain = is_vain;
    bin->n_put = 0;
  }
  return n_slabs;
}

uint32_t tarni_slab_collect_locked(tarn_heap *heap, const tarni_sweep *sweep) {
  uint32_t n = 0;
  for (uint32_t class_index = 0; class_index < TARNI_CLASS_COUNT; class_index++) {
    if (is_worth(heap, class_index, sweep)) {
      n += collect_class(heap, class_index, sweep);
    }
  }
  return n;
}

void tarni_slab_collect_all_locked(tarn_heap *heap) {
  const tarni_sweep sweep = {.first = TARNI_LANE_COMMON, .end = heap->n_lanes, .is_thorough = true};
  (void)tarni_slab_collect_locked(heap, &sweep);
}

/* ---- Lanes that are done ---- */

void tarni_lane_settle_locked(tarn_heap *heap, tarni_index lane) {
  static const tarni_order complete = {0};
  for (uint32_t class_index = 0; class_index < TARNI_CLASS_COUNT; class_index++) {
    tarni_bin_attach_locked(heap, TARNI_LANE_COMMON, class_index,
                            &heap->lanes[lane].bins[class_index]);
  }
  for (uint32_t zone = 0; zone < TARNI_ZONE_VIEWS; zone++) {
    for (;;) {
      const tarni_index index = heap->zones[zone].trees[1 + lane];
      if (index == 0) {
        break;
      }
      tarni_extent_take_locked(heap, index);
      tarni_extent_give_locked(heap, index, TARNI_EXTENT_FREE, &complete);
    }
  }
}
