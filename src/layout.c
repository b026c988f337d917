/* SPDX-License-Identifier: MIT
 *
 * Layouts: where each block of a capture goes, by its number. Made by the planner from what an
 * earlier capture of the same work has allocated: a time line where the graph is a line, else the
 * order of its branches. A layout is immutable; a capture that is served from it checks every block
 * against what is really free, so that a layout that does not fit can waste memory and nothing
 * else. */
#include <stdlib.h>

#include "arena.h"
#include "base/bits.h"

enum { LAYOUT_MOST_BLOCKS = 16384 }; /* on several branches: the planner looks at all pairs */

static tarn_status no_memory(void) {
  return tarni_fail(TARN_HOST_MEMORY, "tarn_graph_plan", NULL, "Free some host memory.",
                    "no host memory for a layout");
}

/* Whether one block's last use is complete before the first use of another. */
static bool is_before(const tarni_story *story, uint32_t i, uint32_t k) {
  const tarni_request *first = &story->requests[i], *second = &story->requests[k];
  return first->end < second->begin && first->past != TARNI_REACH_NEVER &&
         tarni_reach_covers(&story->reach, second->done, first->past);
}

/* The order of the branches on its way into a layout. */
typedef struct layout_order {
  const tarni_story *story;
  uint64_t *before; /* a set for each block: all that come before it */
  uint32_t words;   /* of a set */
  uint32_t *predecessors;
  uint32_t n, capacity; /* predecessors */
} layout_order;

static bool predecessor_add(layout_order *order, uint32_t block) {
  if (order->n == order->capacity) {
    const uint32_t capacity = order->capacity * 2 + 64;
    uint32_t *grown = realloc(order->predecessors, capacity * sizeof(*grown));
    if (grown == NULL) {
      return false;
    }
    order->predecessors = grown;
    order->capacity = capacity;
  }
  order->predecessors[order->n++] = block;
  return true;
}

/* The predecessors of block k, the latest first. What comes before one of them is known to come
 * before k, so it is not looked at. False: no host memory. */
static bool predecessors_find(layout_order *order, uint32_t k) {
  uint64_t *mine = order->before + (size_t)k * order->words;
  for (uint32_t w = k / 64 + 1; w-- != 0;) {
    uint64_t open = ~mine[w] & (w == k / 64 ? (UINT64_C(1) << (k % 64)) - 1 : UINT64_MAX);
    while (open != 0) {
      const uint32_t bit = tarni_log2(open), i = w * 64 + bit;
      open &= ~(UINT64_C(1) << bit);
      if (!is_before(order->story, i, k)) {
        continue;
      }
      if (!predecessor_add(order, i)) {
        return false;
      }
      mine[w] |= UINT64_C(1) << bit;
      for (uint32_t v = 0; v <= w; v++) {
        mine[v] |= order->before[(size_t)i * order->words + v];
      }
      open &= ~mine[w];
    }
  }
  return true;
}

/* The order of the branches, as each block's predecessors. */
static tarn_status order_fill(tarn_layout *layout, const tarni_story *story) {
  const uint64_t n = layout->count;
  if (n > LAYOUT_MOST_BLOCKS) {
    return tarni_fail(TARN_LIMIT, "tarn_graph_plan", NULL,
                      "Use TARN_PLACE_REUSE for a graph with so many blocks and branches.",
                      "%llu blocks on several branches are too many to plan",
                      (unsigned long long)n);
  }
  layout_order order = {.story = story, .words = (uint32_t)(n / 64 + 1)};
  order.before = calloc(n * order.words + 1, sizeof(*order.before));
  layout->starts = calloc(n + 1, sizeof(*layout->starts));
  bool has_memory = order.before != NULL && layout->starts != NULL;
  for (uint32_t k = 0; k < n && has_memory; k++) {
    has_memory = predecessors_find(&order, k);
    layout->starts[k + 1] = order.n;
  }
  free(order.before);
  layout->predecessors = order.predecessors;
  return has_memory ? TARN_OK : no_memory();
}

static tarn_status layout_fill(tarn_layout *layout, const tarni_story *story) {
  layout->count = story->n_requests;
  layout->buffers = calloc((size_t)layout->count + 1, sizeof(*layout->buffers));
  if (layout->buffers == NULL) {
    return no_memory();
  }
  for (uint32_t i = 0; i < layout->count; i++) {
    const tarni_request *request = &story->requests[i];
    const bool is_reused = request->past != TARNI_REACH_NEVER;
    layout->buffers[i] = (tarn_plan_buffer){.bytes = request->size,
                                            .begin = request->begin,
                                            .end = is_reused ? request->end : story->now,
                                            .alignment = request->alignment};
  }
  return story->reach.n_chains > 1 ? order_fill(layout, story) : TARN_OK;
}

void tarn_layout_destroy(tarn_layout *layout) {
  if (layout != NULL) {
    free(layout->buffers);
    free(layout->starts);
    free(layout->predecessors);
    tarn_plan_destroy(layout->plan);
    free(layout);
  }
}

static tarn_status layout_make(tarn_graph *graph, const char *operation, tarn_layout **out) {
  if (graph == NULL || out == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass a graph, and where its layout goes.",
                      "%s is NULL", graph == NULL ? "the graph" : "the output");
  }
  TARN_TRY(tarni_heap_given(graph->heap, operation));
  tarn_layout *layout = calloc(1, sizeof(*layout));
  if (layout == NULL) {
    return no_memory();
  }
  tarni_lock_acquire(&graph->heap->capture);
  const tarn_status status = layout_fill(layout, &graph->story);
  tarni_lock_release(&graph->heap->capture);
  if (status != TARN_OK) {
    tarn_layout_destroy(layout);
    return status;
  }
  *out = layout;
  return TARN_OK;
}

static tarn_plan_problem problem_of(const tarn_layout *layout) {
  return (tarn_plan_problem){.size = sizeof(tarn_plan_problem),
                             .buffers = layout->buffers,
                             .count = layout->count,
                             .predecessor_starts = layout->starts,
                             .predecessors = layout->predecessors};
}

/* Keeps a layout that has its plan. */
static tarn_status layout_finish(tarn_layout *layout, tarn_status status, tarn_layout **out) {
  if (status != TARN_OK) {
    tarn_layout_destroy(layout);
    return status;
  }
  *out = layout;
  return TARN_OK;
}

tarn_status tarn_graph_plan(tarn_graph *graph, const tarn_plan_options *options,
                            tarn_layout **out) {
  tarn_layout *layout;
  if (out != NULL) {
    *out = NULL;
  }
  TARN_TRY(layout_make(graph, "tarn_graph_plan", out != NULL ? &layout : NULL));
  const tarn_plan_problem problem = problem_of(layout);
  return layout_finish(layout, tarn_plan_create(&problem, options, &layout->plan), out);
}

tarn_status tarn_graph_plan_load(tarn_graph *graph, const char *text, size_t length,
                                 tarn_layout **out) {
  tarn_layout *layout;
  if (out != NULL) {
    *out = NULL;
  }
  TARN_TRY(layout_make(graph, "tarn_graph_plan_load", out != NULL ? &layout : NULL));
  const tarn_plan_problem problem = problem_of(layout);
  return layout_finish(layout, tarn_plan_load(&problem, text, length, &layout->plan), out);
}

tarn_status tarn_layout_save(const tarn_layout *layout, char **text, size_t *length) {
  return tarn_plan_save(layout != NULL ? layout->plan : NULL, text, length);
}

tarn_status tarn_layout_get_info(const tarn_layout *layout, tarn_plan_info *info) {
  return tarn_plan_get_info(layout != NULL ? layout->plan : NULL, info);
}
