/* SPDX-License-Identifier: MIT
 *
 * The oracle's memory: which history each byte of a chunk has. A chunk is cut into pages of 2 MiB;
 * each keeps a sorted array of segments, made only where uses differ. A split shares its history
 * between both halves, so splitting never loses what must complete before a reuse.
 * Pure: knows nothing about streams. Functions return false when host memory runs out. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "port/sim/sim.h"

enum { SHADOW_PAGE = 1 << SIM_SHADOW_PAGE_LOG2 };

bool tarni_sim_shadow_init(sim_shadow *shadow, uint64_t size) {
  const uint64_t n = (size + SHADOW_PAGE - 1) >> SIM_SHADOW_PAGE_LOG2;
  shadow->pages = calloc(n, sizeof(*shadow->pages));
  shadow->size = shadow->pages != NULL ? size : 0;
  return shadow->pages != NULL;
}

void tarni_sim_shadow_free(sim_shadow *shadow) {
  const uint64_t n = (shadow->size + SHADOW_PAGE - 1) >> SIM_SHADOW_PAGE_LOG2;
  for (uint64_t i = 0; i < n; i++) {
    sim_shadow_page *page = &shadow->pages[i];
    for (uint32_t j = 0; j < page->n; j++) {
      tarni_sim_history_drop(page->segments[j].history);
    }
    free(page->segments);
  }
  free(shadow->pages);
  *shadow = (sim_shadow){0};
}

void tarni_sim_history_drop(sim_history *history) {
  if (history != NULL && --history->references == 0) {
    free(history);
  }
}

static sim_history *history_make(uint16_t capacity) {
  sim_history *history = calloc(1, sizeof(*history) + capacity * sizeof(history->uses[0]));
  if (history != NULL) {
    history->references = 1;
    history->capacity = capacity;
  }
  return history;
}

static sim_history *history_copy(sim_history **history, uint16_t capacity) {
  sim_history *old = *history;
  sim_history *copy = history_make(capacity);
  if (copy == NULL) {
    return NULL;
  }
  if (old != NULL) {
    copy->n_uses = old->n_uses;
    copy->is_freed = old->is_freed;
    copy->owner = old->owner;
    memcpy(copy->uses, old->uses, old->n_uses * sizeof(old->uses[0]));
  }
  tarni_sim_history_drop(old);
  *history = copy;
  return copy;
}

sim_history *tarni_sim_history_own(sim_history **history) {
  if (*history != NULL && (*history)->references == 1) {
    return *history;
  }
  const uint16_t n = *history != NULL ? (*history)->n_uses : 0;
  return history_copy(history, (uint16_t)(n + 2));
}

bool tarni_sim_history_add(sim_history **history, const sim_use *use) {
  sim_history *own = tarni_sim_history_own(history);
  if (own != NULL && own->n_uses == own->capacity) {
    own = history_copy(history, (uint16_t)(own->capacity * 2 + 2));
  }
  if (own == NULL) {
    return false;
  }
  own->uses[own->n_uses++] = *use;
  return true;
}

/* The segment that holds the offset. pre: the page has segments. */
static uint32_t page_find(const sim_shadow_page *page, uint32_t offset) {
  uint32_t low = 0, high = page->n;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (page->segments[middle].start <= offset) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

static bool page_room(sim_shadow_page *page) {
  if (page->n < page->capacity) {
    return true;
  }
  const uint32_t capacity = page->capacity * 2 + 4;
  sim_segment *segments = realloc(page->segments, capacity * sizeof(*segments));
  if (segments == NULL) {
    return false;
  }
  page->segments = segments;
  page->capacity = capacity;
  return true;
}

/* Makes a segment begin at the offset. post: *index is that segment. */
static bool page_split(sim_shadow_page *page, uint32_t offset, uint32_t *index) {
  if (page->n == 0) {
    if (!page_room(page)) {
      return false;
    }
    page->segments[0] = (sim_segment){0};
    page->n = 1;
  }
  const uint32_t at = page_find(page, offset);
  *index = at;
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
  *index = at + 1;
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

/* Joins those of the segments [first, first + count) that are alike. */
static void page_merge(sim_shadow_page *page, uint32_t first, uint32_t count) {
  uint32_t keep = first;
  for (uint32_t i = first + 1; i < first + count; i++) {
    sim_history *a = page->segments[keep].history;
    sim_history *b = page->segments[i].history;
    if (history_is_same(a, b)) {
      tarni_sim_history_drop(b);
    } else {
      page->segments[++keep] = page->segments[i];
    }
  }
  const uint32_t removed = first + count - 1 - keep;
  if (removed != 0) {
    memmove(&page->segments[keep + 1], &page->segments[first + count],
            (page->n - first - count) * sizeof(page->segments[0]));
    page->n -= removed;
  }
}

static bool page_walk(sim_shadow_page *page, uint64_t base, uint32_t from, uint32_t to,
                      sim_shadow_visit visit, void *user) {
  uint32_t first, last;
  if (!page_split(page, from, &first)) {
    return false;
  }
  last = page->n;
  if (to < SHADOW_PAGE && !page_split(page, to, &last)) {
    return false;
  }
  bool is_good = true;
  for (uint32_t i = first; i < last; i++) {
    const uint32_t start = page->segments[i].start;
    const uint32_t end = i + 1 < page->n ? page->segments[i + 1].start : SHADOW_PAGE;
    is_good = visit(&page->segments[i].history, base + start, end - start, user) && is_good;
  }
  page_merge(page, first, last - first);
  return is_good;
}

bool tarni_sim_shadow_walk(sim_shadow *shadow, uint64_t offset, uint64_t size,
                           sim_shadow_visit visit, void *user) {
  const uint64_t end = offset + size;
  bool is_good = true;
  while (offset < end) {
    const uint64_t base = tarni_align_down(offset, SHADOW_PAGE);
    const uint64_t stop = tarni_min(end, base + SHADOW_PAGE);
    sim_shadow_page *page = &shadow->pages[base >> SIM_SHADOW_PAGE_LOG2];
    is_good =
        page_walk(page, base, (uint32_t)(offset - base), (uint32_t)(stop - base), visit, user) &&
        is_good;
    offset = stop;
  }
  return is_good;
}
