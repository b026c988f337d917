/* SPDX-License-Identifier: MIT
 *
 * The oracle's memory: which history each byte of a chunk has. A chunk is cut into pages of 2 MiB;
 * each keeps a sorted array of segments, made only where uses differ. A split shares its history
 * between both halves, so splitting never loses what must complete before a reuse. What was never
 * used costs 8 bytes for 2 GiB.
 * Pure: knows nothing about streams. Functions return false when host memory runs out, and then
 * nothing has changed but where segments begin. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

enum {
  SHADOW_PAGE = 1 << SIM_SHADOW_PAGE_LOG2,
  SHADOW_LEAF = 1 << SIM_SHADOW_LEAF_LOG2,
  SHADOW_FEW_SEGMENTS = 256,
};

static uint64_t shadow_pages(const sim_shadow *shadow) {
  return (shadow->size >> SIM_SHADOW_PAGE_LOG2) + ((shadow->size & (SHADOW_PAGE - 1)) != 0);
}

static uint64_t shadow_leaves(const sim_shadow *shadow) {
  return (shadow_pages(shadow) + SHADOW_LEAF - 1) >> SIM_SHADOW_LEAF_LOG2;
}

static uint64_t leaf_pages(const sim_shadow *shadow, uint64_t leaf) {
  return tarni_min(SHADOW_LEAF, shadow_pages(shadow) - (leaf << SIM_SHADOW_LEAF_LOG2));
}

sim_shadow *tarni_sim_shadow_make(uint64_t size) {
  sim_shadow *shadow = tarni_sim_store_zeroed(1, sizeof(*shadow));
  if (shadow == NULL) {
    return NULL;
  }
  shadow->references = 1;
  shadow->size = size;
  shadow->leaves = tarni_sim_store_zeroed(shadow_leaves(shadow) + 1, sizeof(sim_shadow_page *));
  if (shadow->leaves == NULL) {
    free(shadow);
    return NULL;
  }
  return shadow;
}

static void leaf_free(const sim_shadow *shadow, uint64_t leaf) {
  sim_shadow_page *pages = shadow->leaves[leaf];
  for (uint64_t i = 0; pages != NULL && i < leaf_pages(shadow, leaf); i++) {
    for (uint32_t j = 0; j < pages[i].n; j++) {
      tarni_sim_history_drop(pages[i].segments[j].history);
    }
    free(pages[i].segments);
  }
  free(pages);
}

void tarni_sim_shadow_drop(sim_shadow *shadow) {
  if (--shadow->references != 0) {
    return;
  }
  for (uint64_t i = 0; i < shadow_leaves(shadow); i++) {
    leaf_free(shadow, i);
  }
  free(shadow->leaves);
  free(shadow);
}

/* ---- Histories ---- */

void tarni_sim_history_drop(sim_history *history) {
  if (history != NULL && --history->references == 0) {
    free(history);
  }
}

/* A history of this piece's own, with the given room. */
static bool history_copy(sim_history **history, uint32_t capacity) {
  sim_history *old = *history;
  sim_history *copy = tarni_sim_store_zeroed(1, sizeof(*copy) + capacity * sizeof(copy->uses[0]));
  if (copy == NULL) {
    return false;
  }
  if (old != NULL) {
    memcpy(copy, old, sizeof(*old) + old->n_uses * sizeof(old->uses[0]));
  }
  copy->references = 1;
  copy->capacity = capacity;
  tarni_sim_history_drop(old);
  *history = copy;
  return true;
}

bool tarni_sim_history_reserve(sim_history **slot, uint64_t stamp) {
  const sim_history *history = *slot;
  const uint32_t n_uses = history != NULL ? history->n_uses : 0;
  const uint32_t n_before = history != NULL && history->stamp == stamp ? history->n_reserved : 0;
  const uint32_t n_reserved = stamp != 0 ? n_before + 1 : 0;
  if (history == NULL || history->references != 1 || history->capacity < n_uses + n_reserved) {
    const uint32_t spare = n_reserved > 1 ? n_uses + n_reserved : 1;
    if (!history_copy(slot, n_uses + n_reserved + spare)) {
      return false;
    }
  }
  (*slot)->stamp = stamp;
  (*slot)->n_reserved = n_reserved;
  return true;
}

static bool use_is_same(const sim_use *a, const sim_use *b) {
  return a->epoch == b->epoch && a->slot == b->slot && a->stream_id == b->stream_id &&
         a->owner == b->owner && a->operation == b->operation && a->is_write == b->is_write;
}

static bool history_is_same(const sim_history *a, const sim_history *b) {
  if (a == b) {
    return true;
  }
  if (a == NULL || b == NULL || a->owner != b->owner || a->is_freed != b->is_freed ||
      a->n_uses != b->n_uses) {
    return false;
  }
  for (uint32_t i = 0; i < a->n_uses; i++) {
    if (!use_is_same(&a->uses[i], &b->uses[i])) {
      return false;
    }
  }
  return true;
}

/* ---- Pages ---- */

static bool page_is_at(const sim_shadow_page *page, uint32_t index, uint32_t offset) {
  return index < page->n && page->segments[index].start <= offset &&
         (index + 1 == page->n || page->segments[index + 1].start > offset);
}

/* The segment that holds the offset: most often the one that was last looked for, or its neighbour.
 * pre: the page has segments. */
static uint32_t page_find(sim_shadow_page *page, uint32_t offset) {
  if (page_is_at(page, page->recent, offset)) {
    return page->recent;
  }
  if (page_is_at(page, page->recent + 1, offset)) {
    return page->recent + 1;
  }
  uint32_t low = 0, high = page->n;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (page->segments[middle].start <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  page->recent = low;
  return low;
}

static bool page_room(sim_shadow_page *page) {
  if (page->n < page->capacity) {
    return true;
  }
  const uint32_t capacity = page->capacity * 2 + 4;
  sim_segment *segments = tarni_sim_store_resize(page->segments, capacity, sizeof(*segments));
  if (segments == NULL) {
    return false;
  }
  page->segments = segments;
  page->capacity = capacity;
  return true;
}

/* Makes a segment begin at the offset. */
static bool page_split(sim_shadow_page *page, uint32_t offset) {
  if (page->n == 0) {
    if (!page_room(page)) {
      return false;
    }
    page->segments[0] = (sim_segment){0};
    page->n = 1;
  }
  const uint32_t at = page_find(page, offset);
  if (page->segments[at].start == offset) {
    return true;
  }
  if (!page_room(page)) {
    return false;
  }
  sim_segment *segment = &page->segments[at];
  memmove(segment + 2, segment + 1, (page->n - at - 1) * sizeof(*segment));
  segment[1] = (sim_segment){.start = offset, .history = segment->history};
  if (segment->history != NULL) {
    segment->history->references++;
  }
  page->n++;
  return true;
}

/* Joins those of the segments [first, last) that are alike. */
static void page_merge(sim_shadow_page *page, uint32_t first, uint32_t last) {
  uint32_t keep = first;
  for (uint32_t i = first + 1; i < last; i++) {
    if (history_is_same(page->segments[keep].history, page->segments[i].history)) {
      tarni_sim_history_drop(page->segments[i].history);
    } else {
      page->segments[++keep] = page->segments[i];
    }
  }
  const uint32_t removed = last - 1 - keep;
  if (removed != 0) {
    memmove(&page->segments[keep + 1], &page->segments[last],
            (page->n - last) * sizeof(page->segments[0]));
    page->n -= removed;
  }
}

/* ---- Ranges ---- */

/* The part of a range that lies in one page. */
typedef struct page_part {
  sim_shadow_page *page; /* NULL: its leaf was never made */
  uint64_t base;         /* offset of the page in the chunk */
  uint32_t from, to;     /* offsets in the page */
} page_part;

static page_part part_at(const sim_shadow *shadow, uint64_t offset, uint64_t end) {
  const uint64_t index = offset >> SIM_SHADOW_PAGE_LOG2;
  sim_shadow_page *leaf = shadow->leaves[index >> SIM_SHADOW_LEAF_LOG2];
  const uint64_t base = index << SIM_SHADOW_PAGE_LOG2;
  return (page_part){.page = leaf != NULL ? &leaf[index & (SHADOW_LEAF - 1)] : NULL,
                     .base = base,
                     .from = (uint32_t)(offset - base),
                     .to = (uint32_t)(tarni_min(end, base + SHADOW_PAGE) - base)};
}

static bool leaf_make(const sim_shadow *shadow, uint64_t offset) {
  const uint64_t leaf = offset >> (SIM_SHADOW_PAGE_LOG2 + SIM_SHADOW_LEAF_LOG2);
  if (shadow->leaves[leaf] == NULL) {
    shadow->leaves[leaf] =
        tarni_sim_store_zeroed(leaf_pages(shadow, leaf), sizeof(sim_shadow_page));
  }
  return shadow->leaves[leaf] != NULL;
}

bool tarni_sim_shadow_cut(sim_shadow *shadow, uint64_t offset, uint64_t size) {
  tarn_assert(offset <= shadow->size && size <= shadow->size - offset);
  const uint64_t end = offset + size;
  while (offset < end) {
    if (!leaf_make(shadow, offset)) {
      return false;
    }
    const page_part part = part_at(shadow, offset, end);
    tarn_assert(part.page != NULL);
    if (!page_split(part.page, part.from) ||
        (part.to < SHADOW_PAGE && !page_split(part.page, part.to))) {
      return false;
    }
    offset = part.base + part.to;
  }
  return true;
}

static uint32_t part_first(const page_part *part) {
  tarn_assert(part->page != NULL && part->page->n != 0 && "the range has been cut");
  const uint32_t first = page_find(part->page, part->from);
  tarn_assert(part->page->segments[first].start == part->from && "the range has been cut");
  return first;
}

bool tarni_sim_shadow_walk(sim_shadow *shadow, uint64_t offset, uint64_t size,
                           sim_shadow_visit visit, void *user) {
  const uint64_t end = offset + size;
  bool is_good = true;
  while (offset < end) {
    const page_part part = part_at(shadow, offset, end);
    const sim_shadow_page *page = part.page;
    tarn_assert(page != NULL);
    for (uint32_t i = part_first(&part); i < page->n && page->segments[i].start < part.to; i++) {
      const uint32_t start = page->segments[i].start;
      const uint32_t stop = i + 1 < page->n ? page->segments[i + 1].start : SHADOW_PAGE;
      is_good = visit(&page->segments[i].history, part.base + start,
                      tarni_min(stop, part.to) - start, user) &&
                is_good;
    }
    offset = part.base + part.to;
  }
  return is_good;
}

/* A range that is one segment is most often a block that comes back: its neighbours are looked at
 * only where there are many segments. */
static void part_merge(const page_part *part) {
  sim_shadow_page *page = part->page;
  uint32_t first = page_find(page, part->from);
  uint32_t last = first + 1;
  while (last < page->n && page->segments[last].start < part->to) {
    last++;
  }
  if (last == first + 1 && page->n < SHADOW_FEW_SEGMENTS) {
    return;
  }
  first -= first != 0;
  last += last < page->n;
  page_merge(page, first, last);
}

void tarni_sim_shadow_merge(sim_shadow *shadow, uint64_t offset, uint64_t size) {
  const uint64_t end = offset + size;
  while (offset < end) {
    const page_part part = part_at(shadow, offset, end);
    if (part.page != NULL && part.page->n != 0) {
      part_merge(&part);
    }
    offset = part.base + part.to;
  }
}

static const sim_history *leaf_example(const sim_shadow *shadow, uint64_t leaf) {
  const sim_shadow_page *pages = shadow->leaves[leaf];
  for (uint64_t i = 0; pages != NULL && i < leaf_pages(shadow, leaf); i++) {
    for (uint32_t j = 0; j < pages[i].n; j++) {
      const sim_history *history = pages[i].segments[j].history;
      if (history != NULL && (history->n_uses != 0 || history->owner != 0)) {
        return history;
      }
    }
  }
  return NULL;
}

bool tarni_sim_shadow_example(const sim_shadow *shadow, sim_use *use, uint64_t *owner) {
  for (uint64_t i = 0; i < shadow_leaves(shadow); i++) {
    const sim_history *history = leaf_example(shadow, i);
    if (history != NULL) {
      *owner = history->owner;
      *use = history->n_uses != 0 ? history->uses[history->n_uses - 1] : (sim_use){0};
      return true;
    }
  }
  return false;
}
