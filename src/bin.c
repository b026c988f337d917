/* SPDX-License-Identifier: MIT
 *
 * Bins: free blocks of one class, as a list through heap->links, so that giving a block back needs
 * no memory (I7). The newest is taken first. Each lane has one a class, under heap->lock, and so
 * has each cache, for what its stacks have no room for (cache.c): that is its owner's, or whoever's
 * has revoked it. Knows nothing about slabs. */
#include <string.h>

#include "internal.h"

/* ---- A bin, for whoever may touch it; bytes are the caller's to count ---- */

void tarni_bin_push(tarn_heap *heap, tarni_bin *bin, const uint32_t *items, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    heap->links[items[i]] = bin->head;
    bin->head = items[i] + 1;
  }
  bin->n += n;
  bin->n_put += n;
}

uint32_t tarni_bin_pop(tarn_heap *heap, tarni_bin *bin, uint32_t *items, uint32_t n) {
  uint32_t i = 0;
  for (; i < n && bin->head != 0; i++) {
    items[i] = bin->head - 1;
    bin->head = heap->links[items[i]];
  }
  bin->n -= i;
  return i;
}

/* ---- Those of lanes ---- */

void tarni_bin_put_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index, uint32_t item) {
  tarni_bin_push(heap, &heap->lanes[lane].bins[class_index], &item, 1);
  heap->binned_bytes += tarni_class_size(class_index);
}

uint32_t tarni_bin_take_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index,
                               uint32_t *items, uint32_t n) {
  uint32_t taken = tarni_bin_pop(heap, &heap->lanes[lane].bins[class_index], items, n);
  taken += tarni_bin_pop(heap, &heap->lanes[TARNI_LANE_COMMON].bins[class_index], items + taken,
                         n - taken);
  heap->binned_bytes -= taken * tarni_class_size(class_index);
  return taken;
}

void tarni_bin_join_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index,
                           tarni_bin *bin) {
  tarni_bin *to = &heap->lanes[lane].bins[class_index];
  const bool is_upon = bin->n <= to->n; /* the shorter list is the one to walk */
  const uint32_t first = is_upon ? bin->head : to->head, second = is_upon ? to->head : bin->head;
  to->head = first;
  uint32_t *last = &to->head;
  while (*last != 0) {
    last = &heap->links[*last - 1];
  }
  *last = second;
  to->n += bin->n;
  to->n_put += bin->n_put;
  heap->binned_bytes += bin->n * tarni_class_size(class_index);
  *bin = (tarni_bin){0};
}

/* ---- Out of sight, and back ---- */

void tarni_bin_attach_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index,
                             tarni_bin *bin) {
  tarni_bin *to = &heap->lanes[lane].bins[class_index];
  uint32_t item;
  while (tarni_bin_pop(heap, bin, &item, 1) != 0) {
    tarni_bin_push(heap, to, &item, 1);
  }
}

void tarni_bins_detach_locked(tarn_heap *heap, uint32_t n_lanes,
                              tarni_bin (*bins)[TARNI_CLASS_COUNT]) {
  for (tarni_index lane = 0; lane < n_lanes; lane++) {
    memcpy(bins[lane], heap->lanes[lane].bins, sizeof(bins[lane]));
    memset(heap->lanes[lane].bins, 0, sizeof(bins[lane]));
  }
}

void tarni_bins_attach_locked(tarn_heap *heap, uint32_t n_lanes,
                              tarni_bin (*bins)[TARNI_CLASS_COUNT], bool are_complete) {
  for (tarni_index lane = 0; lane < n_lanes; lane++) {
    const tarni_index to = are_complete ? TARNI_LANE_COMMON : lane;
    for (uint32_t class_index = 0; class_index < TARNI_CLASS_COUNT; class_index++) {
      tarni_bin_attach_locked(heap, to, class_index, &bins[lane][class_index]);
    }
  }
}
