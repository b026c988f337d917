/* SPDX-License-Identifier: MIT
 *
 * The check of a heap: everything is counted anew from the structures and compared with the
 * counters and with each other. Every byte belongs to one extent, every free extent is in its tree,
 * every block of a slab is live, kept by one cache, in one bin or pending, and every chunk is where
 * it says. Owns nothing; changes nothing but the scratch counts of slabs.
 *
 * Everything is under heap->lock. No other call may be under way: the caches of other threads are
 * read as they are. */
#include <stdlib.h>

#include "base/bits.h"
#include "bucket.h"
#include "debug.h"
#include "room.h"

typedef struct audit {
  tarn_heap *heap;
  uint64_t used, free, busy;   /* bytes of memory by the kind of extent it is in, */
  uint64_t home;               /* of those used, at homes */
  uint64_t lent, n_lent;       /* LENT extents, less those that slabs have listed */
  uint64_t n_aliases;          /* places that are no homes */
  uint64_t n_placed, n_barred; /* units */
  uint64_t n_seams;            /* of the unit at hand */
  uint64_t n_units_seamed;     /* so far */
  uint64_t live, live_blocks;
  uint64_t class_blocks[TARNI_CLASS_COUNT];   /* live ones */
  tarni_large_counts large[TARNI_LARGE_ROWS]; /* live ones, as if just allocated */
  uint64_t n_treed;                           /* extents that belong into a tree */
  uint64_t n_marked;                          /* live blocks that say that they have uses */
  uint32_t *granules;                         /* by chunk: those in slabs */
} audit;

static tarn_status differ(const char *what, uint64_t counted, uint64_t found) {
  return tarni_fail(TARN_CORRUPT, "tarn_heap_check", NULL,
                    "This is a bug in tarn, or memory of the process was overwritten.",
                    "%s: %llu by the books, %llu by the structures", what,
                    (unsigned long long)counted, (unsigned long long)found);
}

static tarn_status compare(const char *what, uint64_t counted, uint64_t found) {
  return counted == found ? TARN_OK : differ(what, counted, found);
}

tarn_status tarni_audit_compare(const char *what, uint64_t counted, uint64_t found) {
  return compare(what, counted, found);
}

/* ---- Extents ---- */

/* Whether a chunk's home is at this unit. */
static bool is_home(const tarn_heap *heap, uint64_t unit) {
  const tarni_phys *chunk = &heap->chunks[heap->units[unit]];
  return heap->units[unit] != 0 && unit - chunk->first_unit < chunk->n_units;
}

/* Bytes of an extent that chunks have their homes behind. */
static uint64_t mapped_bytes(const tarn_heap *heap, const tarni_extent *extent) {
  uint64_t bytes = 0;
  const uint64_t end = extent->offset + extent->size;
  for (uint64_t at = extent->offset; at < end;) {
    const uint64_t stop = tarni_min(end, tarni_align_down(at, heap->unit) + heap->unit);
    bytes += is_home(heap, tarni_unit_of(heap, at)) ? stop - at : 0;
    at = stop;
  }
  return bytes;
}

static void count_live(audit *sum, const tarni_extent *slab) {
  const tarn_heap *heap = sum->heap;
  if (slab->class_index == TARNI_CLASS_COUNT) {
    const bool is_live = slab->state == TARNI_BLOCK_LIVE;
    const uint64_t bytes = is_live ? tarni_large_bytes(slab) : 0;
    tarni_large_counts *row = &sum->large[tarni_large_row(slab->size)];
    sum->live += bytes;
    sum->live_blocks += is_live;
    row->allocs += is_live;
    row->alloc_bytes += bytes;
    sum->n_marked += is_live && slab->has_uses;
    return;
  }
  for (uint32_t i = 0; i < slab->n_blocks; i++) {
    const uint8_t state = heap->states[(slab->offset >> 8) + (uint64_t)i * slab->block_bytes_256];
    sum->live += state != 0 ? (uint64_t)slab->block_bytes_256 << 8 : 0;
    sum->live_blocks += state != 0;
    sum->class_blocks[slab->class_index] += state != 0;
    sum->n_marked += (state & TARNI_SMALL_USED) != 0;
  }
}

/* What is lent for a slab lies at the homes of the chunks that are mapped where it lies. */
static tarn_status check_lent(audit *sum, const tarni_extent *slab) {
  const tarn_heap *heap = sum->heap;
  uint64_t at = slab->offset;
  for (tarni_index i = slab->lent; i != 0; i = heap->extents[i].link) {
    const tarni_extent *lent = tarni_extent_at(heap, i);
    const uint64_t unit = tarni_unit_of(heap, at);
    const tarni_phys *chunk = &heap->chunks[heap->units[unit]];
    const uint64_t place = heap->places[unit].first * heap->unit;
    TARN_TRY(compare("what is lent", TARNI_EXTENT_LENT, lent->kind));
    TARN_TRY(compare("where it lies", tarni_chunk_start(heap, chunk) + (at - place), lent->offset));
    TARN_TRY(compare("chunks that it reaches over", 0,
                     lent->offset + lent->size > tarni_chunk_end(heap, chunk)));
    at += lent->size;
    sum->n_lent--;
  }
  const bool is_alias = tarni_is_alias(heap, slab->offset);
  return compare("what is lent to a slab", is_alias ? slab->size : 0, at - slab->offset);
}

static tarn_status check_slab(audit *sum, tarni_index index) {
  tarn_heap *heap = sum->heap;
  tarni_extent *slab = tarni_extent_at(heap, index);
  TARN_TRY(check_lent(sum, slab));
  for (uint64_t at = slab->offset; at < slab->offset + slab->size; at += TARNI_GRANULE) {
    const bool is_found =
        slab->n_blocks != 1 || at == slab->offset || tarni_is_aligned(at, heap->unit);
    TARN_TRY(
        compare("the page of a slab", is_found ? index : 0, heap->pages[at >> TARNI_GRANULE_LOG2]));
    sum->granules[heap->units[tarni_unit_of(heap, at)]]++;
  }
  const uint64_t live_blocks = sum->live_blocks;
  count_live(sum, slab);
  slab->n_seen = (uint32_t)(sum->live_blocks - live_blocks);
  return TARN_OK;
}

/* What an extent's kind promises. */
static tarn_status check_extent(audit *sum, tarni_index index) {
  tarn_heap *heap = sum->heap;
  const tarni_extent *extent = tarni_extent_at(heap, index);
  const uint64_t mapped = mapped_bytes(heap, extent);
  uint64_t expected = 0;
  switch ((tarni_extent_kind)extent->kind) {
  case TARNI_EXTENT_VOID:
    sum->n_treed++;
    break;
  case TARNI_EXTENT_FREE:
    sum->n_treed++;
    sum->free += expected = extent->size;
    break;
  case TARNI_EXTENT_SLAB:
    sum->used += extent->size;
    sum->home += expected = tarni_is_alias(heap, extent->offset) ? 0 : extent->size;
    TARN_TRY(check_slab(sum, index));
    break;
  case TARNI_EXTENT_LENT:
    sum->lent += expected = extent->size;
    sum->n_lent++;
    break;
  case TARNI_EXTENT_ALIAS:
    sum->n_treed++;
    TARN_TRY(
        compare("the place of an alias", 1, heap->units[tarni_unit_of(heap, extent->offset)] != 0));
    break;
  case TARNI_EXTENT_ZOMBIE:
    TARN_TRY(compare("zombies without a chunk", 0, extent->chunk == 0));
    break;
  case TARNI_EXTENT_BUSY: /* what a growth took that cannot be undone yet */
    sum->busy += expected = mapped;
    TARN_TRY(compare("extents that nobody works on", 0, heap->unfinished == NULL));
    break;
  case TARNI_EXTENT_UNUSED:
    return differ("an unused record among the extents", 0, index);
  }
  if (extent->kind != TARNI_EXTENT_SLAB) {
    TARN_TRY(
        compare("the page of an extent", 0, heap->pages[extent->offset >> TARNI_GRANULE_LOG2]));
  }
  return compare("mapped bytes of an extent", expected, mapped);
}

/* Two free neighbours that could be one. */
static bool is_unmerged(const tarn_heap *heap, tarni_index index) {
  const tarni_extent *extent = tarni_extent_at(heap, index);
  const tarni_extent *before =
      extent->previous != 0 ? tarni_extent_at(heap, extent->previous) : extent;
  tarni_order order = extent->order;
  return before != extent && before->kind == extent->kind &&
         tarni_extent_may_join(heap, extent, before) &&
         (extent->kind == TARNI_EXTENT_VOID || extent->kind == TARNI_EXTENT_ALIAS ||
          (extent->kind == TARNI_EXTENT_FREE && before->tree == extent->tree &&
           tarni_order_unite(&order, &before->order)));
}

/* The seams of a unit, at its last extent. */
static tarn_status check_seams(audit *sum, const tarni_extent *extent) {
  const tarn_heap *heap = sum->heap;
  const uint64_t unit = tarni_unit_of(heap, extent->offset);
  if (extent->next != 0 && tarni_unit_of(heap, heap->extents[extent->next].offset) == unit) {
    return TARN_OK;
  }
  TARN_TRY(compare("the seams of a unit", heap->n_seams[unit], sum->n_seams));
  TARN_TRY(compare("a unit with seams", tarni_bitset_has(&heap->seams, unit), sum->n_seams != 0));
  sum->n_units_seamed += sum->n_seams != 0;
  sum->n_seams = 0;
  return TARN_OK;
}

/* Walks a zone: extents follow each other without a gap. */
static tarn_status check_zone(audit *sum, const tarni_zone *zone) {
  uint64_t at = zone->first;
  tarni_index previous = 0;
  for (tarni_index i = zone->head; i != 0; i = sum->heap->extents[i].next) {
    const tarni_extent *extent = tarni_extent_at(sum->heap, i);
    TARN_TRY(compare("an extent's beginning", at, extent->offset));
    TARN_TRY(compare("what begins there", i, tarni_extent_containing_locked(sum->heap, at)));
    TARN_TRY(compare("an extent's neighbour", previous, extent->previous));
    TARN_TRY(compare("empty extents", 0, extent->size == 0));
    TARN_TRY(compare("free neighbours apart", 0, is_unmerged(sum->heap, i)));
    sum->n_seams += tarni_extent_is_seam(sum->heap, i);
    TARN_TRY(check_seams(sum, extent));
    TARN_TRY(check_extent(sum, i));
    previous = i;
    at += extent->size;
  }
  return compare("a zone's end", zone->end, at);
}

/* ---- Trees ---- */

/* Checks the tree below a node, whose offsets lie in [low, high). */
static tarn_status check_node(const tarn_heap *heap, tarni_index index, uint32_t tree,
                              uint64_t bounds[2], uint64_t *n) {
  if (index == 0) {
    return TARN_OK;
  }
  const tarni_extent *node = tarni_extent_at(heap, index);
  const tarni_extent_kind kind = tree == TARNI_TREE_VOID          ? TARNI_EXTENT_VOID
                                 : tree == tarni_tree_alias(heap) ? TARNI_EXTENT_ALIAS
                                                                  : TARNI_EXTENT_FREE;
  TARN_TRY(compare("the kind of an extent in a tree", kind, node->kind));
  TARN_TRY(compare("the tree of an extent", tree, node->tree));
  if (kind == TARNI_EXTENT_FREE) {
    TARN_TRY(compare("the tree of an order", tarni_tree_of(heap, &node->order), tree));
  }
  if (node->offset < bounds[0] || node->offset >= bounds[1]) {
    return differ("the place of an extent in a tree", bounds[0], node->offset);
  }
  uint64_t largest = node->size, oldest = node->order.n == 1 ? node->order.tickets[0] : 0;
  for (int side = 0; side < 2; side++) {
    const tarni_index child = side == 0 ? node->left : node->right;
    if (child != 0) {
      largest = tarni_max(largest, heap->extents[child].largest);
      oldest = tarni_min(oldest, heap->extents[child].oldest);
      TARN_TRY(compare("the node above an extent", index, heap->extents[child].up));
    }
  }
  TARN_TRY(compare("the largest extent below a node", node->largest, largest));
  TARN_TRY(compare("nodes above an older extent than they say", 0, oldest < node->oldest));
  ++*n;
  TARN_TRY(check_node(heap, node->left, tree, (uint64_t[2]){bounds[0], node->offset}, n));
  return check_node(heap, node->right, tree, (uint64_t[2]){node->offset + 1, bounds[1]}, n);
}

static tarn_status check_trees(const audit *sum) {
  uint64_t n = 0;
  for (uint32_t zone = 0; zone < TARNI_ZONES; zone++) {
    const tarni_zone *at = &sum->heap->zones[zone];
    for (uint32_t tree = 0; tree <= tarni_tree_alias(sum->heap); tree++) {
      const tarni_index root = at->trees[tree];
      TARN_TRY(compare("the node above a root", 0, root != 0 ? sum->heap->extents[root].up : 0));
      TARN_TRY(compare("trees with an older extent than they say", 0,
                       sum->heap->extents[root].oldest < at->oldest[tree]));
      TARN_TRY(check_node(sum->heap, root, tree, (uint64_t[2]){at->first, at->end}, &n));
    }
  }
  return compare("extents in trees", sum->n_treed, n);
}

/* ---- Blocks ---- */

/* A small block that somebody keeps: it is free, and a block of its class. */
static tarn_status check_kept(tarn_heap *heap, uint32_t class_index, uint32_t item) {
  const uint64_t offset = (uint64_t)item << 8;
  if (offset >= heap->small_end) {
    return differ("the offset of a free block", heap->small_end, offset);
  }
  const tarni_index index = heap->pages[offset >> TARNI_GRANULE_LOG2];
  if (index == 0) {
    return differ("the slab of a free block", 1, 0);
  }
  tarni_extent *slab = tarni_extent_at(heap, index);
  TARN_TRY(compare("the class of a free block", class_index, slab->class_index));
  TARN_TRY(compare("the place of a free block", 0,
                   (offset - slab->offset) % tarni_class_size(class_index)));
  TARN_TRY(compare("live blocks among the free ones", 0, heap->states[item]));
  slab->n_seen++;
  return TARN_OK;
}

static tarn_status check_bin(tarn_heap *heap, const tarni_bin *bin, uint32_t class_index) {
  uint32_t n = 0;
  for (uint32_t at = bin->head; at != 0 && n <= bin->n; at = heap->links[at - 1]) {
    TARN_TRY(check_kept(heap, class_index, at - 1));
    n++;
  }
  return compare("blocks in a bin", bin->n, n);
}

static tarn_status check_large(tarn_heap *heap, tarni_index index, uint64_t size) {
  tarni_extent *slab = tarni_extent_at(heap, index);
  TARN_TRY(compare("a large block in a cache", TARNI_EXTENT_SLAB, slab->kind));
  TARN_TRY(compare("its class", TARNI_CLASS_COUNT, slab->class_index));
  TARN_TRY(compare("its state", TARNI_BLOCK_FREE, slab->state));
  TARN_TRY(compare("its size", size, slab->size));
  TARN_TRY(compare("what it has to spare", 0, slab->spare));
  slab->n_seen++;
  return TARN_OK;
}

static tarn_status check_shelf(tarn_heap *heap, const tarni_shelf *shelf) {
  uint64_t bytes = 0;
  for (uint32_t row = 0; (row = tarni_shelf_next(shelf, row)) != TARNI_SHELF_ROWS; row++) {
    for (uint32_t i = 0; i < shelf->rows[row].n; i++) {
      const tarni_index index = shelf->rows[row].extents[i];
      const uint64_t size = tarni_extent_at(heap, index)->size;
      TARN_TRY(check_large(heap, index, size));
      bytes += size;
    }
  }
  return compare("bytes on a shelf", atomic_load(&shelf->bytes), bytes);
}

static tarn_status check_cache(tarn_heap *heap, const tarni_cache *cache) {
  uint64_t binned = 0;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    const tarni_stack *stack = &cache->stacks[i];
    TARN_TRY(check_bin(heap, &cache->bins[i], i));
    binned += cache->bins[i].n * tarni_class_size(i);
    for (uint32_t j = 0; j < stack->n; j++) {
      TARN_TRY(check_kept(heap, i, stack->items[j]));
    }
  }
  TARN_TRY(compare("bytes in a cache's bins", atomic_load(&cache->binned_bytes), binned));
  if (binned != 0) {
    TARN_TRY(compare("caches of a lane, one of which has bins", 1,
                     atomic_load(&heap->lanes[cache->lane].n_caches)));
  }
  if (cache->large.extent != 0) {
    TARN_TRY(check_large(heap, cache->large.extent,
                         (uint64_t)cache->large.granules << TARNI_GRANULE_LOG2));
  }
  return check_shelf(heap, &cache->shelf);
}

static tarn_status check_uses(tarn_heap *heap, const tarni_uses *uses, uint64_t *bytes) {
  for (; uses != NULL; uses = uses->next) {
    const tarni_index index = heap->pages[uses->offset >> TARNI_GRANULE_LOG2];
    if (index == 0) {
      return differ("the slab of a pending block", 1, 0);
    }
    tarni_extent_at(heap, index)->n_seen++;
    *bytes += uses->bytes;
  }
  return TARN_OK;
}

static tarn_status check_pending(tarn_heap *heap) {
  uint64_t bytes = 0;
  TARN_TRY(check_uses(heap, heap->pending, &bytes));
  TARN_TRY(check_uses(heap, heap->held[0], &bytes));
  return compare("pending bytes", heap->pending_bytes, bytes + tarni_deferred_see_locked(heap));
}

tarn_status tarni_audit_uses(const tarn_heap *heap, uint64_t n_marked) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < heap->uses_capacity; i++) {
    for (const tarni_uses *uses = heap->uses[i]; uses != NULL; uses = uses->next) {
      tarni_block block = {0};
      const bool is_live =
          tarni_block_find_locked(heap, uses->offset, &block) && block.offset == uses->offset;
      TARN_TRY(compare("live blocks with uses", 1, is_live && block.is_live));
      n++;
    }
  }
  TARN_TRY(compare("entries of uses", heap->n_uses, n));
  return compare("blocks with uses", n_marked, n);
}

/* Each lane knows how many caches it has. */
static tarn_status check_sharers(const tarn_heap *heap) {
  for (tarni_index lane = 0; lane < heap->n_lanes; lane++) {
    uint64_t n = 0;
    for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
      n += cache->lane == lane && cache->stream != TARNI_NO_STREAM;
    }
    TARN_TRY(compare("caches of a lane", atomic_load(&heap->lanes[lane].n_caches), n));
  }
  return TARN_OK;
}

/* Every block is at exactly one place. */
static tarn_status check_blocks(audit *sum) {
  tarn_heap *heap = sum->heap;
  uint64_t binned = 0;
  for (tarni_index lane = 0; lane < heap->n_lanes; lane++) {
    for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
      TARN_TRY(check_bin(heap, &heap->lanes[lane].bins[i], i));
      binned += heap->lanes[lane].bins[i].n * tarni_class_size(i);
    }
  }
  TARN_TRY(compare("bytes in bins", heap->binned_bytes, binned));
  uint64_t n_caches = 0, limits = 0;
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    TARN_TRY(check_cache(heap, cache));
    n_caches++;
    limits += cache->shelf.limit;
  }
  TARN_TRY(compare("caches", heap->n_caches, n_caches));
  TARN_TRY(check_sharers(heap));
  TARN_TRY(compare("limits of shelves", heap->shelf_limits, limits));
  TARN_TRY(check_pending(heap));
  tarn_status status = TARN_OK;
  for (tarni_index i = 1; i < heap->n_extents; i++) {
    tarni_extent *slab = tarni_extent_at(heap, i);
    if (slab->kind == TARNI_EXTENT_SLAB) {
      status =
          status == TARN_OK ? compare("blocks of a slab", slab->n_blocks, slab->n_seen) : status;
      slab->n_seen = 0; /* as collecting expects it */
    }
  }
  return status;
}

/* ---- Chunks and lanes ---- */

/* A unit that a chunk has a place at: whether it is barred. */
static tarn_status check_unit(audit *sum, tarni_index index, uint64_t unit) {
  const tarn_heap *heap = sum->heap;
  const bool is_barred = heap->pages[(unit * heap->unit) >> TARNI_GRANULE_LOG2] != 0;
  sum->n_placed++;
  sum->n_barred += is_barred;
  TARN_TRY(compare("a unit with a place", tarni_bitset_has(&heap->placed, unit), 1));
  TARN_TRY(compare("a barred unit", tarni_bitset_has(&heap->barred, unit), is_barred));
  return compare("the chunk of a unit", index, heap->units[unit]);
}

/* A chunk's places: in order, each with all its units, all but its home among the aliases. */
static tarn_status check_places(audit *sum, tarni_index index, uint32_t *n_zombies) {
  const tarn_heap *heap = sum->heap;
  const tarni_phys *chunk = &heap->chunks[index];
  uint32_t n = 0, n_homes = 0;
  for (uint32_t at = chunk->places; at != 0; at = heap->places[at - 1].next) {
    const uint32_t unit = at - 1;
    TARN_TRY(compare("places out of order", 0,
                     heap->places[unit].next != 0 && heap->places[unit].next <= at));
    for (uint32_t i = unit; i < unit + chunk->n_units; i++) {
      TARN_TRY(check_unit(sum, index, i));
      TARN_TRY(compare("the first unit of a place", unit, heap->places[i].first));
    }
    n_homes += unit == chunk->first_unit;
    sum->n_aliases += unit != chunk->first_unit;
    TARN_TRY(compare("a place among the aliases", unit != chunk->first_unit,
                     tarni_bitset_has(&heap->aliases, unit)));
    n++;
  }
  TARN_TRY(compare("homes of a chunk", 1, n_homes));
  *n_zombies = chunk->n_mapped - n;
  return TARN_OK;
}

/* Every chunk that is mapped, or on its way out. */
static tarn_status check_mapped(audit *sum, uint64_t *bytes, uint64_t *n_idle) {
  const tarn_heap *heap = sum->heap;
  uint64_t n_zombies = 0, n_listed = 0, leaving = 0;
  for (tarni_index index = 1; index < heap->n_chunks; index++) {
    const tarni_phys *chunk = &heap->chunks[index];
    uint32_t n = chunk->n_mapped;
    if (chunk->places != 0) {
      TARN_TRY(compare("chunks without a handle", 0, chunk->handle == 0 && !tarni_is_asleep(heap)));
      TARN_TRY(compare("granules of a chunk in use", chunk->n_used, sum->granules[index]));
      TARN_TRY(check_places(sum, index, &n));
      *bytes += tarni_chunk_bytes(heap, chunk);
      *n_idle += chunk->n_used == 0;
    }
    n_zombies += n;
    leaving += chunk->is_leaving ? tarni_chunk_bytes(heap, chunk) : 0;
  }
  for (tarni_index i = heap->zombies; i != 0; i = heap->extents[i].link) {
    n_listed += heap->extents[i].state == 0;
  }
  TARN_TRY(compare("mappings of zombies", n_listed, n_zombies));
  return compare("bytes of chunks that leave", heap->leaving_bytes, leaving);
}

static uint64_t count_members(const tarni_bitset *set) {
  uint64_t n = 0;
  for (uint64_t i = 0; (i = tarni_bitset_from(set, i)) != TARNI_BITSET_NONE; i++) {
    n++;
  }
  return n;
}

/* Which units of a place have nothing but free memory behind them; counts them. */
static tarn_status check_open_place(const tarn_heap *heap, const tarni_phys *chunk, uint64_t unit,
                                    uint64_t *n_open) {
  const uint32_t shift = heap->unit_log2 - TARNI_GRANULE_LOG2;
  for (uint64_t i = 0; i < chunk->n_units; i++) {
    const bool is = i < chunk->head >> shift || i + (chunk->tail >> shift) >= chunk->n_units;
    TARN_TRY(compare("an open unit of a view", is, tarni_bitset_has(&heap->open, unit + i)));
    *n_open += is;
  }
  return TARN_OK;
}

static tarn_status check_open(const tarn_heap *heap) {
  const uint64_t first = tarni_unit_of(heap, heap->large_end);
  uint64_t n_open = 0;
  for (tarni_index index = 1; index < heap->n_chunks; index++) {
    const tarni_phys *chunk = &heap->chunks[index];
    for (uint32_t at = chunk->places; at != 0; at = heap->places[at - 1].next) {
      TARN_TRY(at > first ? check_open_place(heap, chunk, at - 1, &n_open) : TARN_OK);
    }
  }
  return compare("open units of views", n_open, count_members(&heap->open));
}

/* What is known of the ends of chunks, as far as it is not known to be stale. */
static tarn_status check_ends(tarn_heap *heap) {
  tarni_ends_update_locked(heap);
  for (tarni_index i = 1; i < heap->n_chunks; i++) {
    const uint32_t head = heap->chunks[i].head, tail = heap->chunks[i].tail;
    tarni_ends_note_locked(heap, i);
    tarni_ends_update_locked(heap);
    TARN_TRY(compare("what is free where a chunk begins", head, heap->chunks[i].head));
    TARN_TRY(compare("what is free where a chunk ends", tail, heap->chunks[i].tail));
  }
  return check_open(heap);
}

/* What searches pass over. */
static tarn_status check_passed(const audit *sum) {
  const tarn_heap *heap = sum->heap;
  TARN_TRY(compare("units with seams", count_members(&heap->seams), sum->n_units_seamed));
  TARN_TRY(compare("units with a place", count_members(&heap->placed), sum->n_placed));
  return compare("barred units", count_members(&heap->barred), sum->n_barred);
}

static tarn_status check_chunks(audit *sum) {
  const tarn_heap *heap = sum->heap;
  uint64_t bytes = 0, n_idle = 0, n_listed = 0, idle_bytes = 0;
  TARN_TRY(heap->unfinished == NULL && !heap->is_fixed ? check_ends(sum->heap) : TARN_OK);
  TARN_TRY(check_mapped(sum, &bytes, &n_idle));
  for (uint64_t unit = tarni_unit_of(heap, heap->size);
       (unit = tarni_bitset_below(&heap->idle, unit)) != TARNI_BITSET_NONE; n_listed++) {
    const tarni_phys *chunk = &heap->chunks[heap->units[unit]];
    TARN_TRY(compare("the home of an idle chunk", unit, chunk->first_unit));
    TARN_TRY(compare("granules of an idle chunk", 0, chunk->n_used));
    idle_bytes += tarni_chunk_bytes(heap, chunk);
  }
  TARN_TRY(check_passed(sum));
  if (heap->unfinished == NULL) {
    TARN_TRY(compare("idle chunks", n_listed, n_idle));
  }
  TARN_TRY(compare("bytes of idle chunks", heap->idle_bytes, idle_bytes));
  return compare("bytes of chunks", heap->reserved_bytes + heap->asleep_bytes,
                 bytes + heap->leaving_bytes + heap->quarantined_bytes);
}

tarn_status tarni_audit_lanes(const tarn_heap *heap) {
  for (tarni_index i = 1; i < heap->n_lanes; i++) {
    const tarni_lane *lane = &heap->lanes[i];
    TARN_TRY(compare("tickets that nobody gave", 0,
                     lane->fenced > lane->ticket || heap->complete[i] > lane->ticket));
    uint64_t ticket = 0;
    for (uint32_t j = 0; j < lane->n_fences; j++) {
      const tarni_fence *fence = &lane->fences[(lane->first_fence + j) % TARNI_FENCES];
      TARN_TRY(compare("fences out of order", 0, fence->ticket <= ticket || fence->event == NULL));
      ticket = fence->ticket;
    }
  }
  return TARN_OK;
}

/* ---- All ---- */

/* What the caches have counted, size by size. */
static tarn_status check_counts(const audit *sum) {
  const tarni_counts counts = tarni_counts_locked(sum->heap);
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    TARN_TRY(compare("live blocks of a class", counts.allocs[i] - counts.frees[i],
                     sum->class_blocks[i]));
  }
  for (uint32_t i = 0; i < TARNI_LARGE_ROWS; i++) {
    const tarni_large_counts *large = &counts.large[i];
    TARN_TRY(compare("large blocks of a size", large->allocs - large->frees, sum->large[i].allocs));
    TARN_TRY(compare("bytes in large blocks of a size", large->alloc_bytes - large->free_bytes,
                     sum->large[i].alloc_bytes));
  }
  return TARN_OK;
}

static tarn_status check_all(audit *sum) {
  tarn_heap *heap = sum->heap;
  for (uint32_t zone = 0; zone < TARNI_ZONES; zone++) {
    TARN_TRY(check_zone(sum, &heap->zones[zone]));
  }
  TARN_TRY(check_trees(sum));
  TARN_TRY(check_blocks(sum));
  TARN_TRY(tarni_audit_uses(heap, sum->n_marked));
  TARN_TRY(check_chunks(sum));
  TARN_TRY(tarni_audit_lanes(heap));
  TARN_TRY(check_counts(sum));
  const tarn_heap_stats stats = tarni_stats_locked(heap);
  TARN_TRY(compare("bytes in slabs", heap->used_bytes, sum->used));
  TARN_TRY(compare("aliases", heap->n_aliases, sum->n_aliases));
  if (heap->unfinished == NULL) {
    TARN_TRY(compare("what is lent to no slab", 0, sum->n_lent));
  }
  TARN_TRY(compare("live bytes", stats.live_bytes, sum->live));
  TARN_TRY(compare("live blocks", stats.live_blocks, sum->live_blocks));
  return compare("physical bytes", stats.reserved_bytes - stats.captured_bytes + stats.asleep_bytes,
                 sum->home + sum->lent + sum->free + sum->busy + heap->leaving_bytes +
                     heap->quarantined_bytes + heap->unreturned_bytes);
}

static tarn_status check_chunked_locked(tarn_heap *heap) {
  audit sum = {.heap = heap, .granules = calloc(heap->n_chunks, sizeof(*sum.granules))};
  const tarn_status status =
      sum.granules != NULL
          ? check_all(&sum)
          : tarni_fail(TARN_HOST_MEMORY, "tarn_heap_check", NULL, "Free some host memory.",
                       "no host memory to count the granules of %u chunks", heap->n_chunks);
  free(sum.granules);
  return status;
}

tarn_status tarn_heap_check(tarn_heap *heap) {
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_check"));
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  tarni_lock_acquire(&heap->grow);
  tarni_lock_acquire(&heap->lock);
  tarn_status status =
      heap->buckets != NULL ? tarni_bucket_check_locked(heap) : check_chunked_locked(heap);
  status = status == TARN_OK ? tarni_arenas_check_held(heap) : status;
  tarni_lock_release(&heap->lock);
  status = status == TARN_OK ? tarni_debug_check_grow(heap) : status;
  tarni_lock_release(&heap->grow);
  tarni_lock_release(&heap->capture);
  return status;
}
