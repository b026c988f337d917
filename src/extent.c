/* SPDX-License-Identifier: MIT
 *
 * Extents: the partition of the heap's addresses, and trees of what is free. Each zone is a list of
 * extents in address order without gaps; those that are free are in one tree for each order (one
 * lane, several, none), and there is a tree of void addresses and one of aliases. A tree is ordered
 * by offset and knows the largest extent below each node, so that the lowest fit is found in a
 * logarithm of steps; at an alignment, in as many more as there are that fit but for it. It also
 * knows a ticket that all below a node are at least as young as, so that a lane whose memory is not
 * complete is left alone by the others. That may be older than it has to be: who searches in vain
 * mends it.
 *
 * Invariant: two neighbours that are free, alike in kind and tree are one extent, unless their
 * orders together name too many lanes. A split copies the order, a merge unites it. Where two that
 * are not void meet and stay apart is a seam: for each unit it is known how many begin there. Knows
 * nothing about chunks, but for whom it tells what has become free (view.c). Everything is under
 * heap->lock. */
#include <stdlib.h>

#include "base/bits.h"
#include "room.h"

/* ---- Records ---- */

static tarni_index record_take(tarn_heap *heap) {
  const tarni_index index = heap->free_extent;
  if (index != 0) {
    heap->free_extent = heap->extents[index].link;
    heap->extents[index] = (tarni_extent){0};
    return index;
  }
  return heap->n_extents < heap->max_extents ? heap->n_extents++ : 0;
}

/* An extent begins at an offset, or none does any more. */
static void begin_add(tarn_heap *heap, uint64_t offset, tarni_index index) {
  const uint64_t granule = offset >> TARNI_GRANULE_LOG2;
  heap->begins[granule] = index;
  tarni_bitset_add(&heap->begun, granule);
}

static void begin_remove(tarn_heap *heap, uint64_t offset) {
  tarni_bitset_remove(&heap->begun, offset >> TARNI_GRANULE_LOG2);
}

tarni_index tarni_extent_containing_locked(const tarn_heap *heap, uint64_t offset) {
  return heap->begins[tarni_bitset_below(&heap->begun, (offset >> TARNI_GRANULE_LOG2) + 1)];
}

static void record_give(tarn_heap *heap, tarni_index index) {
  heap->extents[index].kind = TARNI_EXTENT_UNUSED;
  heap->extents[index].link = heap->free_extent;
  heap->free_extent = index;
}

/* ---- Trees ---- */

uint32_t tarni_tree_of(const tarn_heap *heap, const tarni_order *order) {
  if (order->n == 0) {
    return 1 + TARNI_LANE_COMMON;
  }
  return order->n == 1 ? 1 + order->lanes[0] : 1 + heap->max_lanes;
}

/* A node's weight: the heavier node is above. A hash, so that the tree is balanced on average. */
static uint32_t weight_of(tarni_index index) {
  return index * 2654435761u;
}

/* What the trees know of an order. */
static uint64_t ticket_of(const tarni_extent *extent) {
  return extent->order.n == 1 ? extent->order.tickets[0] : 0;
}

static void node_update(tarn_heap *heap, tarni_index index) {
  tarni_extent *node = &heap->extents[index];
  node->largest = tarni_max(
      node->size, tarni_max(heap->extents[node->left].largest, heap->extents[node->right].largest));
}

/* The nodes from one up to, but not with, another one. */
static void path_update(tarn_heap *heap, tarni_index at, tarni_index end) {
  for (; at != end; at = heap->extents[at].up) {
    node_update(heap, at);
  }
}

/* An extent has grown below a node: those from there up that it is the largest for. */
static void tree_raise(tarn_heap *heap, tarni_index at, uint64_t size) {
  for (; at != 0 && heap->extents[at].largest < size; at = heap->extents[at].up) {
    heap->extents[at].largest = size;
  }
}

/* The largest extent below a node was that large, and has gone or become smaller: likewise. */
static void tree_lower(tarn_heap *heap, tarni_index at, uint64_t size) {
  while (at != 0 && heap->extents[at].largest == size) {
    node_update(heap, at);
    at = heap->extents[at].largest == size ? 0 : heap->extents[at].up;
  }
}

/* Divides a tree into what lies below an extent and above it, which become its subtrees. */
static void tree_divide(tarn_heap *heap, tarni_index root, tarni_index index) {
  tarni_extent *extent = &heap->extents[index];
  tarni_index *links[2] = {&extent->left, &extent->right};
  tarni_index ends[2] = {index, index};
  while (root != 0) {
    tarni_extent *node = &heap->extents[root];
    const int side = node->offset > extent->offset;
    *links[side] = root;
    node->up = ends[side];
    ends[side] = root;
    links[side] = side == 0 ? &node->right : &node->left;
    root = *links[side];
  }
  *links[0] = *links[1] = 0;
  path_update(heap, ends[0], index);
  path_update(heap, ends[1], index);
  node_update(heap, index);
}

/* One tree of two, all of the first below all of the second, as a part of the tree of `up`. */
static tarni_index tree_unite(tarn_heap *heap, tarni_index below, tarni_index above,
                              tarni_index up) {
  tarni_index root, end = up;
  tarni_index *link = &root;
  while (below != 0 && above != 0) {
    const bool is_below = weight_of(below) > weight_of(above);
    const tarni_index index = is_below ? below : above;
    tarni_extent *node = &heap->extents[index];
    *link = index;
    node->up = end;
    node->oldest = tarni_min(node->oldest, heap->extents[is_below ? above : below].oldest);
    end = index;
    link = is_below ? &node->right : &node->left;
    *(is_below ? &below : &above) = *link;
  }
  *link = below | above;
  heap->extents[*link].up = end;
  path_update(heap, end, up);
  return root;
}

static tarni_zone *zone_of(tarn_heap *heap, const tarni_extent *extent) {
  return &heap->zones[tarni_zone_of(heap, extent->offset)];
}

static void tree_insert(tarn_heap *heap, tarni_index index) {
  tarni_extent *extent = &heap->extents[index];
  tarni_zone *zone = zone_of(heap, extent);
  tarni_index *link = &zone->trees[extent->tree];
  const uint64_t ticket = ticket_of(extent);
  if (ticket < zone->oldest[extent->tree]) {
    zone->oldest[extent->tree] = ticket; /* else others only read it */
  }
  extent->up = 0;
  while (*link != 0 && weight_of(*link) > weight_of(index)) {
    tarni_extent *node = &heap->extents[*link];
    extent->up = *link;
    node->largest = tarni_max(node->largest, extent->size);
    node->oldest = tarni_min(node->oldest, ticket);
    link = extent->offset < node->offset ? &node->left : &node->right;
  }
  extent->oldest = tarni_min(ticket, heap->extents[*link].oldest);
  tree_divide(heap, *link, index);
  *link = index;
}

static void tree_remove(tarn_heap *heap, tarni_index index) {
  const tarni_extent *extent = &heap->extents[index];
  tarni_extent *node = &heap->extents[extent->up];
  tarni_index *link = extent->up == 0       ? &zone_of(heap, extent)->trees[extent->tree]
                      : node->left == index ? &node->left
                                            : &node->right;
  tarn_assert(*link == index && "the extent is in the tree");
  *link = tree_unite(heap, extent->left, extent->right, extent->up);
  tree_lower(heap, extent->up, extent->largest);
}

static tarni_index tree_first(const tarn_heap *heap, tarni_index root, uint64_t size) {
  if (heap->extents[root].largest < size) {
    return 0;
  }
  for (;;) {
    tarn_assert(root != 0 && "there is as large an extent as the tree says");
    const tarni_extent *node = &heap->extents[root];
    if (heap->extents[node->left].largest >= size) {
      root = node->left;
    } else if (node->size >= size) {
      return root;
    } else {
      root = node->right;
    }
  }
}

/* Gives up after so many that are large enough, but not at that alignment. */
static tarni_index tree_first_aligned(const tarn_heap *heap, tarni_index root, uint64_t size,
                                      uint64_t alignment, uint32_t *tries) {
  if (heap->extents[root].largest < size) {
    return 0;
  }
  const tarni_extent *node = &heap->extents[root];
  const tarni_index below = tree_first_aligned(heap, node->left, size, alignment, tries);
  if (below != 0 || *tries == 0) {
    return below;
  }
  if (tarni_extent_fits(node, size, alignment)) {
    return root;
  }
  *tries -= node->size >= size;
  return *tries != 0 ? tree_first_aligned(heap, node->right, size, alignment, tries) : 0;
}

tarni_index tarni_extent_first_locked(tarn_heap *heap, uint32_t zone, uint32_t tree, uint64_t size,
                                      uint64_t alignment, uint32_t tries) {
  const tarni_index root = heap->zones[zone].trees[tree];
  return alignment == TARNI_GRANULE ? tree_first(heap, root, size)
                                    : tree_first_aligned(heap, root, size, alignment, &tries);
}

bool tarni_extent_is_spare_locked(const tarn_heap *heap, uint64_t start, uint64_t size) {
  bool is = false;
  for (uint64_t unit = tarni_unit_of(heap, start); unit * heap->unit < start + size && !is;) {
    const tarni_phys *chunk = &heap->chunks[heap->units[unit]];
    is = chunk->is_spare;
    unit = tarni_max(heap->places[unit].first + (uint64_t)chunk->n_units, unit + 1);
  }
  return is;
}

/* Looks at the extents below a node that are large enough, from the lowest on, until it has seen so
 * many, or one of just that size; the smallest of them that fits on chunks that are not spare is
 * the best one, and of these the lowest. */
static void tree_tightest(const tarn_heap *heap, tarni_index root, const tarni_need *need,
                          uint32_t *n_left, tarni_index *best) {
  const tarni_extent *node = &heap->extents[root];
  if (*n_left == 0 || node->largest < need->size) {
    return;
  }
  tree_tightest(heap, node->left, need, n_left, best);
  if (*n_left != 0 && node->size >= need->size) {
    const uint64_t start = tarni_align_up(node->offset, need->alignment);
    const bool is_better = (*best == 0 || node->size < heap->extents[*best].size) &&
                           tarni_extent_fits(node, need->size, need->alignment) &&
                           !tarni_extent_is_spare_locked(heap, start, need->size);
    *best = is_better ? root : *best;
    *n_left = *best == root && node->size == need->size ? 0 : *n_left - 1;
  }
  tree_tightest(heap, node->right, need, n_left, best);
}

tarni_index tarni_extent_tightest_locked(const tarn_heap *heap, uint32_t tree,
                                         const tarni_need *need, uint32_t n) {
  tarni_index best = 0;
  tree_tightest(heap, heap->zones[need->zone].trees[tree], need, &n, &best);
  return best;
}

/* The lowest extent below a node that fits and that the lane may use, of those below an offset and
 * no younger than a ticket. Gives up after so many that are large enough, in vain. */
static tarni_index tree_find_met(tarn_heap *heap, tarni_index root, const tarni_need *need,
                                 const tarni_bound *bound, uint32_t *tries) {
  tarni_extent *node = &heap->extents[root];
  if (node->largest < need->size || node->oldest > bound->ticket || *tries == 0) {
    return 0;
  }
  tarni_index found = tree_find_met(heap, node->left, need, bound, tries);
  if (found == 0 && node->offset < bound->below && *tries != 0) {
    const bool is_met = tarni_extent_fits(node, need->size, need->alignment) &&
                        tarni_order_is_met_locked(heap, &node->order, need->lane);
    *tries -= !is_met && node->size >= need->size;
    found = is_met ? root : tree_find_met(heap, node->right, need, bound, tries);
  }
  if (found == 0 && *tries != 0) { /* in vain */
    const uint64_t others =
        tarni_min(heap->extents[node->left].oldest, heap->extents[node->right].oldest);
    node->oldest = tarni_min(ticket_of(node), others);
  }
  return found;
}

tarni_index tarni_extent_find_met_locked(tarn_heap *heap, uint32_t tree, const tarni_need *need,
                                         const tarni_bound *bound, uint32_t *tries) {
  tarni_zone *zone = &heap->zones[need->zone];
  const tarni_index found = tree_find_met(heap, zone->trees[tree], need, bound, tries);
  if (found == 0 && *tries != 0) {
    zone->oldest[tree] = heap->extents[zone->trees[tree]].oldest;
  }
  return found;
}

/* The first node at an offset or above it. */
static tarni_index tree_from(const tarn_heap *heap, tarni_index root, uint64_t offset) {
  tarni_index found = 0;
  while (root != 0) {
    const tarni_extent *node = &heap->extents[root];
    if (node->offset >= offset) {
      found = root;
      root = node->left;
    } else {
      root = node->right;
    }
  }
  return found;
}

/* Trees in which the lane can have nothing are passed over: there may be a thousand. */
tarni_index tarni_extent_from_locked(const tarn_heap *heap, uint32_t zone, uint64_t offset,
                                     tarni_index lane) {
  const tarni_index *trees = heap->zones[zone].trees;
  const uint64_t *oldest = heap->zones[zone].oldest;
  tarni_index found = tarni_extent_lower(heap, tree_from(heap, trees[TARNI_TREE_VOID], offset),
                                         tree_from(heap, trees[1 + heap->max_lanes], offset));
  for (tarni_index i = 0; i < heap->n_lanes; i++) {
    if (i == lane || oldest[1 + i] <= tarni_order_met_locked(heap, i, lane)) {
      found = tarni_extent_lower(heap, found, tree_from(heap, trees[1 + i], offset));
    }
  }
  return found;
}

tarni_index tarni_extent_lower(const tarn_heap *heap, tarni_index a, tarni_index b) {
  if (a == 0 || b == 0) {
    return a | b;
  }
  return heap->extents[a].offset < heap->extents[b].offset ? a : b;
}

tarni_index tarni_extent_void_from_locked(const tarn_heap *heap, uint32_t zone, uint64_t offset) {
  return tree_from(heap, heap->zones[zone].trees[TARNI_TREE_VOID], offset);
}

/* ---- Seams: where two free extents meet ---- */

bool tarni_extent_is_seam(const tarn_heap *heap, tarni_index index) {
  const tarni_extent *extent = &heap->extents[index];
  return extent->kind == TARNI_EXTENT_FREE &&
         heap->extents[extent->previous].kind == TARNI_EXTENT_FREE;
}

static void seam_add(tarn_heap *heap, uint64_t offset) {
  const uint64_t unit = tarni_unit_of(heap, offset);
  if (heap->n_seams[unit]++ == 0) {
    tarni_bitset_add(&heap->seams, unit);
  }
}

static void seam_remove(tarn_heap *heap, uint64_t offset) {
  const uint64_t unit = tarni_unit_of(heap, offset);
  tarn_assert(heap->n_seams[unit] != 0);
  if (--heap->n_seams[unit] == 0) {
    tarni_bitset_remove(&heap->seams, unit);
  }
}

/* An extent in a tree is about to leave it: its seams go. */
static void seams_leave(tarn_heap *heap, tarni_index index) {
  const tarni_index ends[2] = {index, heap->extents[index].next};
  for (int i = 0; i < 2; i++) {
    if (tarni_extent_is_seam(heap, ends[i])) {
      seam_remove(heap, heap->extents[ends[i]].offset);
    }
  }
}

/* An extent was given back with these bounds, and has become a part of another one, or that one
 * itself: where it has not been joined to a neighbour there may be a seam. */
static void seams_come(tarn_heap *heap, tarni_index index, const uint64_t bounds[2]) {
  const tarni_index ends[2] = {index, heap->extents[index].next};
  for (int i = 0; i < 2; i++) {
    if (heap->extents[ends[i]].offset == bounds[i] && tarni_extent_is_seam(heap, ends[i])) {
      seam_add(heap, bounds[i]);
    }
  }
}

/* ---- Extents ---- */

void tarni_extent_take_locked(tarn_heap *heap, tarni_index index) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarn_assert(extent->kind == TARNI_EXTENT_FREE || extent->kind == TARNI_EXTENT_VOID ||
              extent->kind == TARNI_EXTENT_ALIAS);
  seams_leave(heap, index);
  tree_remove(heap, index);
  extent->kind = TARNI_EXTENT_BUSY;
}

/* Cuts off all but the first `size` bytes. Returns the rest, BUSY with the same order; 0: no
 * record is left. */
static tarni_index extent_split(tarn_heap *heap, tarni_index index, uint64_t size) {
  const tarni_index rest = record_take(heap);
  if (rest == 0) {
    return 0;
  }
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarni_extent *tail = tarni_extent_at(heap, rest);
  *tail = *extent;
  tail->offset += size;
  tail->size -= size;
  tail->previous = index;
  if (tail->next != 0) {
    heap->extents[tail->next].previous = rest;
  }
  extent->size = size;
  extent->next = rest;
  begin_add(heap, tail->offset, rest);
  return rest;
}

/* Makes the first `size` bytes an extent of its own, with the record `front`. */
static void front_split(tarn_heap *heap, tarni_index index, tarni_index front, uint64_t size) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarni_extent *before = tarni_extent_at(heap, front);
  *before = *extent;
  before->size = size;
  before->next = index;
  if (before->previous != 0) {
    heap->extents[before->previous].next = front;
  } else {
    heap->zones[tarni_zone_of(heap, before->offset)].head = front;
  }
  extent->previous = front;
  extent->size -= size;
  extent->offset += size;
  begin_add(heap, before->offset, front);
  begin_add(heap, extent->offset, index);
}

static void extent_give(tarn_heap *heap, tarni_index index, tarni_extent_kind kind,
                        const tarni_order *order, bool is_news);

/* is_news: what is left over was not free just now, so that chunks have more at their ends. */
static bool extent_cut(tarn_heap *heap, tarni_index index, uint64_t offset, uint64_t size,
                       bool is_news) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarn_assert(extent->kind == TARNI_EXTENT_BUSY && extent->offset <= offset);
  tarn_assert(offset + size <= extent->offset + extent->size);
  const tarni_order order = extent->order;
  const tarni_extent_kind kind = extent->tree == TARNI_TREE_VOID          ? TARNI_EXTENT_VOID
                                 : extent->tree == tarni_tree_alias(heap) ? TARNI_EXTENT_ALIAS
                                                                          : TARNI_EXTENT_FREE;
  tarni_index tail = 0;
  if (offset + size < extent->offset + extent->size) {
    tail = extent_split(heap, index, offset + size - extent->offset);
    if (tail == 0) {
      return false;
    }
  }
  if (offset != extent->offset) {
    /* The record stays with the part that is wanted: the part before it gets the new one. */
    const tarni_index front = record_take(heap);
    if (front == 0) {
      if (tail != 0) {
        tarni_extent_append_locked(heap, index, tail);
      }
      return false;
    }
    front_split(heap, index, front, offset - extent->offset);
    extent_give(heap, front, kind, &order, is_news);
  }
  if (tail != 0) {
    extent_give(heap, tail, kind, &order, is_news);
  }
  return true;
}

bool tarni_extent_cut_locked(tarn_heap *heap, tarni_index index, uint64_t offset, uint64_t size) {
  return extent_cut(heap, index, offset, size, true);
}

tarni_index tarni_extent_carve_locked(tarn_heap *heap, tarni_index index, uint64_t offset,
                                      uint64_t size) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarn_assert(extent->kind == TARNI_EXTENT_FREE);
  if (offset == extent->offset && size < extent->size) { /* the rest stays as it is in its tree */
    const tarni_index front = record_take(heap);
    if (front != 0) {
      if (tarni_extent_is_seam(heap, index)) {
        seam_remove(heap, offset);
      }
      front_split(heap, index, front, size);
      tree_lower(heap, index, extent->largest);
      tarni_extent_at(heap, front)->kind = TARNI_EXTENT_BUSY;
    }
    return front;
  }
  const tarni_order order = extent->order;
  tarni_extent_take_locked(heap, index);
  if (!extent_cut(heap, index, offset, size, false)) {
    extent_give(heap, index, TARNI_EXTENT_FREE, &order, false);
    return 0;
  }
  return index;
}

void tarni_extent_append_locked(tarn_heap *heap, tarni_index index, tarni_index following) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  const tarni_extent *tail = tarni_extent_at(heap, following);
  tarn_assert(extent->next == following && extent->offset + extent->size == tail->offset);
  extent->size += tail->size;
  extent->next = tail->next;
  if (tail->next != 0) {
    heap->extents[tail->next].previous = index;
  }
  begin_remove(heap, tail->offset);
  record_give(heap, following);
}

/* The same with the extent before it. */
static void front_append(tarn_heap *heap, tarni_index index, tarni_index preceding) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  const tarni_extent *front = tarni_extent_at(heap, preceding);
  tarn_assert(front->next == index && front->offset + front->size == extent->offset);
  begin_remove(heap, extent->offset);
  begin_add(heap, front->offset, index);
  extent->size += front->size;
  extent->offset = front->offset;
  extent->previous = front->previous;
  if (front->previous != 0) {
    heap->extents[front->previous].next = index;
  } else {
    heap->zones[tarni_zone_of(heap, front->offset)].head = index;
  }
  record_give(heap, preceding);
}

/* Less than a chunk that waits for nothing, in the zone of large blocks, while only one stream is
 * known: what was left over where a chunk is new, mostly. Alone it would be of use to few blocks,
 * and where it is in the way of others depends on what was made when. */
static bool is_leftover(const tarn_heap *heap, const tarni_extent *extent) {
  return extent->order.n == 0 && extent->size < heap->unit && extent->offset >= heap->small_end &&
         heap->n_lanes <= 2 && heap->config.stealing != TARN_STEAL_NEVER;
}

/* Whether two free neighbours become one; if so *order is what holds for both. What is left over
 * goes with its neighbour. */
static bool may_unite(const tarn_heap *heap, const tarni_extent *extent, const tarni_extent *other,
                      tarni_order *order) {
  if (other->kind != extent->kind || !tarni_extent_may_join(heap, extent, other)) {
    return false;
  }
  if (extent->kind != TARNI_EXTENT_FREE) {
    return true;
  }
  const bool is_alike =
      extent->tree == other->tree || is_leftover(heap, extent) || is_leftover(heap, other);
  const bool is_shared = heap->config.stealing == TARN_STEAL_ALWAYS && !tarni_rest_is_parted(heap);
  return (is_alike || is_shared) && tarni_order_unite(order, &other->order);
}

/* Joins a neighbour that is in a tree to the extent in front of it or behind it, which is in none
 * yet. It stays where it is in its tree if it stays in the same one; *is_placed says so. */
static tarni_index neighbours_join(tarn_heap *heap, tarni_index index, tarni_index other,
                                   const tarni_order *united, bool *is_placed) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  tarni_extent *neighbour = tarni_extent_at(heap, other);
  const uint32_t tree =
      neighbour->kind == TARNI_EXTENT_FREE ? tarni_tree_of(heap, united) : neighbour->tree;
  *is_placed = tree == neighbour->tree;
  if (!*is_placed) {
    tree_remove(heap, other);
  }
  if (extent->next == other) {
    front_append(heap, other, index);
  } else {
    tarni_extent_append_locked(heap, other, index);
  }
  neighbour->order = *united;
  neighbour->tree = tree;
  return other;
}

/* Joins a neighbour to the extent, if they may be one. Whether they were unlike: what lies beyond
 * the neighbour may be like both of them then. Where they met was a seam, unless it is one of the
 * bounds of what is given back. */
static bool neighbour_take(tarn_heap *heap, tarni_index *index, tarni_index other,
                           const uint64_t bounds[2], tarni_order *united, bool *is_placed) {
  const tarni_extent *extent = tarni_extent_at(heap, *index);
  if (other == 0 || !may_unite(heap, extent, &heap->extents[other], united)) {
    return false;
  }
  const uint64_t border = extent->next == other ? heap->extents[other].offset : extent->offset;
  if (extent->kind == TARNI_EXTENT_FREE && border != bounds[0] && border != bounds[1]) {
    seam_remove(heap, border);
  }
  const bool is_unlike = extent->tree != heap->extents[other].tree;
  if (*is_placed) { /* both neighbours were in a tree: one of them leaves it */
    tree_remove(heap, *index);
  }
  *index = neighbours_join(heap, *index, other, united, is_placed);
  return is_unlike;
}

static uint32_t tree_for(const tarn_heap *heap, const tarni_extent *extent) {
  tarn_assert(extent->kind == TARNI_EXTENT_FREE || extent->kind == TARNI_EXTENT_VOID ||
              extent->kind == TARNI_EXTENT_ALIAS);
  return extent->kind == TARNI_EXTENT_VOID    ? TARNI_TREE_VOID
         : extent->kind == TARNI_EXTENT_ALIAS ? tarni_tree_alias(heap)
                                              : tarni_tree_of(heap, &extent->order);
}

static void extent_give(tarn_heap *heap, tarni_index index, tarni_extent_kind kind,
                        const tarni_order *order, bool is_news) {
  tarni_extent *extent = tarni_extent_at(heap, index);
  static const tarni_order nothing = {0};
  extent->kind = (uint8_t)kind;
  extent->order = kind == TARNI_EXTENT_FREE ? *order : nothing;
  extent->tree = tree_for(heap, extent);
  if (kind == TARNI_EXTENT_FREE && is_news) {
    tarni_ends_note_range_locked(heap, extent->offset, extent->size);
  }
  const uint64_t bounds[2] = {extent->offset, extent->offset + extent->size};
  tarni_order united = extent->order;
  bool is_placed = false;
  bool is_again = true;
  while (is_again) {
    const tarni_index next = tarni_extent_at(heap, index)->next;
    is_again = neighbour_take(heap, &index, next, bounds, &united, &is_placed);
    const tarni_index before = tarni_extent_at(heap, index)->previous;
    is_again = neighbour_take(heap, &index, before, bounds, &united, &is_placed) || is_again;
  }
  if (is_placed) {
    tree_raise(heap, index, tarni_extent_at(heap, index)->size);
  } else {
    tree_insert(heap, index);
  }
  seams_come(heap, index, bounds);
}

void tarni_extent_give_locked(tarn_heap *heap, tarni_index index, tarni_extent_kind kind,
                              const tarni_order *order) {
  extent_give(heap, index, kind, order, true);
}

/* ---- Begin and end ---- */

bool tarni_extents_open(tarn_heap *heap) {
  /* 0 is none: a tree without a node, whose largest extent has no bytes, and its oldest no ticket
   */
  heap->n_extents = 1;
  heap->extents[0].oldest = UINT64_MAX;
  const uint64_t bounds[TARNI_ZONES + 1] = {0, heap->small_end, heap->large_end, heap->size};
  for (uint32_t i = 0; i < TARNI_ZONES; i++) {
    tarni_zone *zone = &heap->zones[i];
    zone->first = bounds[i];
    zone->end = bounds[i + 1];
    zone->trees = calloc(tarni_tree_alias(heap) + 1, sizeof(*zone->trees));
    zone->oldest = calloc(tarni_tree_alias(heap) + 1, sizeof(*zone->oldest));
    const tarni_index index = record_take(heap);
    if (zone->trees == NULL || zone->oldest == NULL || index == 0) {
      return false;
    }
    if (zone->first == zone->end) {
      record_give(heap, index);
      continue;
    }
    tarni_extent *extent = tarni_extent_at(heap, index);
    extent->offset = zone->first;
    extent->size = zone->end - zone->first;
    extent->kind = TARNI_EXTENT_BUSY;
    zone->head = index;
    begin_add(heap, extent->offset, index);
    tarni_extent_give_locked(heap, index, TARNI_EXTENT_VOID, NULL);
  }
  return true;
}

void tarni_extents_close(tarn_heap *heap) {
  for (uint32_t i = 0; i < TARNI_ZONES; i++) {
    free(heap->zones[i].trees);
    free(heap->zones[i].oldest);
  }
}
