/* SPDX-License-Identifier: MIT
 *
 * What the exact search can rule out at a node, and which buffer it branches on next; the reasons
 * are in plan_search.h. Reads the partial plan, changes only the results of the evaluation. Pure,
 * no locks. */
#include <string.h>

#include "algo/plan_search.h"

static uint64_t round_up(const tarni_search *search, uint32_t buffer, uint64_t offset) {
  if (!search->is_aligned) {
    return offset;
  }
  const uint64_t mask = search->alignment[buffer] - 1;
  return (offset + mask) & ~mask;
}

static bool waits_for_twin(const tarni_search *search, uint32_t buffer) {
  const uint32_t twin = search->twin[buffer];
  return twin != TARNI_NOBODY && !search->is_placed[twin];
}

/* ---- Conflicts ------------------------------------------------------------------------------ */

static void conflict_clear(tarni_search *search) {
  memset(search->conflict, 0, search->words * sizeof(*search->conflict));
}

/* Adds a buffer, and for a skipped one everything that its bound rests on: its unplaced neighbours,
 * and theirs where they are skipped themselves. */
static void conflict_add(tarni_search *search, const tarni_part *part, uint32_t buffer) {
  uint32_t *waiting = search->waiting;
  uint32_t n_waiting = 0;
  if (tarni_set_has(search->conflict, buffer)) {
    return;
  }
  tarni_set_add(search->conflict, buffer);
  if (search->is_skipped[buffer]) {
    waiting[n_waiting++] = buffer;
  }
  while (n_waiting != 0) {
    const uint8_t *meets = search->meets + (size_t)waiting[--n_waiting] * search->count;
    for (uint32_t i = 0; i < part->count; i++) {
      const uint32_t other = part->buffers[i];
      if (meets[other] != TARNI_MEETS_NOT && !tarni_set_has(search->conflict, other)) {
        tarni_set_add(search->conflict, other);
        if (search->is_skipped[other]) {
          waiting[n_waiting++] = other;
        }
      }
    }
  }
}

static bool fail_at_buffer(tarni_search *search, const tarni_part *part, uint32_t buffer) {
  conflict_clear(search);
  conflict_add(search, part, buffer);
  return false;
}

/* The buffers of a section that stand on each other without a gap up to its top. */
static bool fail_at_section(tarni_search *search, const tarni_part *part, uint32_t section) {
  uint64_t top = 0;
  uint32_t first = 0;
  conflict_clear(search);
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    if (search->begin[b] <= section && section < search->end[b]) {
      if (search->low[b] >= top) {
        first = i;
        top = search->low[b];
      }
      top += search->stack[b];
    }
  }
  for (uint32_t i = first; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    if (search->begin[b] <= section && section < search->end[b]) {
      conflict_add(search, part, b);
    }
  }
  return false;
}

/* ---- Lower bounds of offsets ---------------------------------------------------------------- */

static bool find_skipped(tarni_search *search, const tarni_part *part) {
  search->n_skipped = 0;
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    const uint64_t minimum = search->minimum[b];
    search->low[b] = minimum;
    search->is_skipped[b] = search->skipped_at[b] == minimum || waits_for_twin(search, b);
    if (search->is_skipped[b]) {
      search->skipped[search->n_skipped++] = b;
    }
  }
  if (search->n_skipped == part->count) { /* nobody is left who could raise the others */
    conflict_clear(search);
    for (uint32_t i = 0; i < part->count; i++) {
      tarni_set_add(search->conflict, part->buffers[i]);
    }
    return false;
  }
  return true;
}

/* The lowest that a skipped buffer can rise to, by the rules (1) and (2); UINT64_MAX when nobody
 * can raise it. */
static uint64_t risen_low(const tarni_search *search, const tarni_part *part, uint32_t buffer) {
  const uint8_t *meets = search->meets + (size_t)buffer * search->count;
  const uint64_t limit = search->minimum[buffer] + search->stack[buffer];
  uint64_t under = UINT64_MAX;
  uint64_t beyond = UINT64_MAX;
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t other = part->buffers[i];
    if (search->minimum[other] >= under && search->minimum[other] >= beyond) {
      break; /* sorted: nobody further on is lower */
    }
    if (meets[other] == TARNI_MEETS_NOT || other == buffer) {
      continue;
    }
    const uint64_t top = search->low[other] + search->stack[other];
    if (search->low[other] < limit && top < under) {
      under = top;
    }
    if (meets[other] == TARNI_MEETS_BEYOND && top < beyond) {
      beyond = top;
    }
  }
  return tarni_max(under, beyond);
}

/* Two rounds: the second uses what the first found out about the others. */
static bool raise_skipped(tarni_search *search, const tarni_part *part) {
  for (int round = 0; round < 2; round++) {
    for (uint32_t k = 0; k < search->n_skipped; k++) {
      const uint32_t b = search->skipped[k];
      uint64_t low;
      if (waits_for_twin(search, b)) {
        low = search->low[search->twin[b]] + search->stack[b];
      } else {
        low = risen_low(search, part, b);
        if (low == UINT64_MAX) {
          return fail_at_buffer(search, part, b);
        }
      }
      search->low[b] = tarni_max(search->low[b], round_up(search, b, low));
    }
  }
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    if (search->low[b] > search->highest[b]) {
      return fail_at_buffer(search, part, b);
    }
  }
  return true;
}

/* By insertion: the part is nearly sorted from the node before. */
static void sort_part(const uint64_t *keys, tarni_part *part) {
  for (uint32_t i = 1; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    const uint64_t key = keys[b];
    uint32_t k = i;
    while (k > 0 && keys[part->buffers[k - 1]] > key) {
      part->buffers[k] = part->buffers[k - 1];
      k--;
    }
    part->buffers[k] = b;
  }
}

/* ---- Sections ------------------------------------------------------------------------------- */

/* The hull of the part, in sections. */
static void find_hull(const tarni_search *search, const tarni_part *part, uint32_t *first,
                      uint32_t *last) {
  *first = UINT32_MAX;
  *last = 0;
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    *first = search->begin[b] < *first ? search->begin[b] : *first;
    *last = search->end[b] > *last ? search->end[b] : *last;
  }
}

/* Stacks the buffers in the order of their bounds over [begin, end), all sections at once. */
static void stack_over(uint64_t *restrict reach, uint32_t begin, uint32_t end, uint64_t low,
                       uint64_t stack) {
  for (uint32_t s = begin; s < end; s++) {
    reach[s] = (reach[s] > low ? reach[s] : low) + stack;
  }
}

static bool stack_sections(tarni_search *search, const tarni_part *part, uint32_t first,
                           uint32_t last) {
  memset(search->reach + first, 0, (last - first) * sizeof(*search->reach));
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    stack_over(search->reach, search->begin[b], search->end[b], search->low[b], search->stack[b]);
  }
  uint32_t worst = first;
  for (uint32_t s = first + 1; s < last; s++) {
    worst = search->reach[s] > search->reach[worst] ? s : worst;
  }
  return search->reach[worst] <= search->target || fail_at_section(search, part, worst);
}

static void count_over(uint32_t *restrict rivals, const uint64_t *restrict latest, uint32_t begin,
                       uint32_t end, uint64_t low) {
  for (uint32_t s = begin; s < end; s++) {
    rivals[s] += low <= latest[s];
  }
}

/* By section: the lowest bound, and how many buffers can come next without too large a gap. */
static void count_rivals(tarni_search *search, const tarni_part *part, uint32_t first,
                         uint32_t last) {
  for (uint32_t i = part->count; i-- > 0;) { /* downwards, so that the lowest stays */
    const uint32_t b = part->buffers[i];
    for (uint32_t s = search->begin[b]; s < search->end[b]; s++) {
      search->floor[s] = search->low[b];
    }
  }
  for (uint32_t s = first; s < last; s++) {
    search->rivals[s] = 0;
    search->reach[s] = search->target - search->reach[s] + search->floor[s];
  }
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    count_over(search->rivals, search->reach, search->begin[b], search->end[b], search->low[b]);
  }
}

/* ---- The choice ----------------------------------------------------------------------------- */

/* Whether nothing else can come to lie under a buffer that is put at its minimum. */
static bool is_next(const tarni_search *search, const tarni_part *part, uint32_t buffer) {
  const uint8_t *meets = search->meets + (size_t)buffer * search->count;
  const uint64_t offset = search->low[buffer];
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t other = part->buffers[i];
    if (search->low[other] >= offset) {
      return true; /* sorted: so are all that follow */
    }
    if (meets[other] != TARNI_MEETS_NOT && search->low[other] + search->stack[other] <= offset) {
      return false;
    }
  }
  return true;
}

static uint32_t fewest_rivals(const tarni_search *search, uint32_t buffer) {
  uint32_t fewest = UINT32_MAX;
  for (uint32_t s = search->begin[buffer]; s < search->end[buffer]; s++) {
    if (search->floor[s] == search->low[buffer] && search->rivals[s] < fewest) {
      fewest = search->rivals[s];
    }
  }
  return fewest;
}

static uint32_t choose_lowest(const tarni_search *search, const tarni_part *part) {
  uint32_t best = TARNI_NOBODY;
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    if (best != TARNI_NOBODY && search->low[b] > search->low[best]) {
      break;
    }
    if (!search->is_skipped[b] && b < best) {
      best = b;
    }
  }
  return best;
}

/* Whether a buffer's lowest place is above that of another, if there is one; ties go by number. */
static bool is_above(const tarni_search *search, uint32_t b, uint32_t other) {
  if (other == TARNI_NOBODY) {
    return false;
  }
  const bool is_later = b > other;
  const uint64_t low = search->low[other];
  return search->low[b] != low ? search->low[b] > low : is_later;
}

static uint32_t choose_tightest(const tarni_search *search, const tarni_part *part,
                                uint32_t *n_rivals) {
  uint32_t best = TARNI_NOBODY;
  *n_rivals = UINT32_MAX;
  for (uint32_t i = 0; i < part->count; i++) {
    const uint32_t b = part->buffers[i];
    if (search->is_skipped[b]) {
      continue;
    }
    const uint32_t n = fewest_rivals(search, b);
    if (n > *n_rivals || (n == *n_rivals && is_above(search, b, best))) {
      continue;
    }
    if (is_next(search, part, b)) {
      best = b;
      *n_rivals = n;
    }
  }
  return best;
}

static uint32_t choose(tarni_search *search, const tarni_part *part, uint32_t first,
                       uint32_t last) {
  uint32_t best = TARNI_NOBODY;
  uint32_t n_rivals = 0;
  if (search->choice != TARNI_CHOICE_LOWEST) {
    count_rivals(search, part, first, last);
    best = choose_tightest(search, part, &n_rivals);
  }
  if (best == TARNI_NOBODY || (search->choice == TARNI_CHOICE_FORCED && n_rivals > 1)) {
    best = choose_lowest(search, part);
  }
  tarn_assert(best != TARNI_NOBODY);
  return best;
}

uint32_t tarni_search_evaluate(tarni_search *search, tarni_part *part) {
  uint32_t first;
  uint32_t last;
  sort_part(search->minimum, part);
  if (!find_skipped(search, part) || !raise_skipped(search, part)) {
    return TARNI_NOBODY;
  }
  sort_part(search->low, part);
  find_hull(search, part, &first, &last);
  if (!stack_sections(search, part, first, last)) {
    return TARNI_NOBODY;
  }
  const uint32_t best = choose(search, part, first, last);
  /* That nobody comes to lie under the chosen one may rest on skipped neighbours. */
  conflict_clear(search);
  for (uint32_t k = 0; k < search->n_skipped; k++) {
    const uint32_t b = search->skipped[k];
    if (search->meets[(size_t)best * search->count + b] != TARNI_MEETS_NOT &&
        search->minimum[b] + search->stack[b] <= search->low[best]) {
      conflict_add(search, part, b);
    }
  }
  return best;
}
