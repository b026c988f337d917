/* SPDX-License-Identifier: MIT
 *
 * Graphs: what a capture leaves. A graph holds its arena and blocks that go with it, knows its
 * launches by their tickets, and goes when the last of them is complete: first what the driver has
 * of it, then the memory, because a driver may look at addresses that are part of it. */
#include <stdlib.h>

#include "arena.h"

/* ---- Launches ---- */

/* Room to note a launch by one more lane. */
static bool launched_room(tarn_graph *graph) {
  if (graph->n_launched < graph->launched_capacity) {
    return true;
  }
  const uint32_t capacity = graph->launched_capacity * 2 + 4;
  tarni_order_entry *launched = realloc(graph->launched, capacity * sizeof(*launched));
  if (launched == NULL) {
    return false;
  }
  graph->launched = launched;
  graph->launched_capacity = capacity;
  return true;
}

/* Notes that work of the lane's stream, as of now, belongs to the graph, or uses what it holds. The
 * ticket. pre: there is room. */
static uint64_t launched_add(tarn_graph *graph, tarni_index lane) {
  tarn_heap *heap = graph->heap;
  uint32_t i = 0;
  while (i < graph->n_launched && graph->launched[i].lane != lane) {
    i++;
  }
  graph->n_launched += i == graph->n_launched;
  tarni_lock_acquire(&heap->lock);
  graph->launched[i] = (tarni_order_entry){.lane = lane, .ticket = tarni_ticket_locked(heap, lane)};
  tarni_lock_release(&heap->lock);
  return graph->launched[i].ticket;
}

/* The same for a launch, which uses the arena, too. */
static void launch_note(tarn_graph *graph, tarni_index lane) {
  graph->arena->tickets[lane] = launched_add(graph, lane);
  graph->launches++;
}

void tarni_graph_use_held(tarn_graph *graph, tarn_stream stream) {
  tarni_index lane;
  if (launched_room(graph) && tarni_lane_find(graph->heap, stream, &lane) == TARN_OK) {
    (void)launched_add(graph, lane);
  } else {
    graph->is_unsure = true;
  }
}

static bool launches_are_complete(const tarn_graph *graph) {
  tarn_heap *heap = graph->heap;
  bool are_complete = !graph->is_unsure;
  tarni_lock_acquire(&heap->lock);
  for (uint32_t i = 0; i < graph->n_launched && are_complete; i++) {
    are_complete = graph->launched[i].ticket <= heap->complete[graph->launched[i].lane];
  }
  tarni_lock_release(&heap->lock);
  return are_complete;
}

static bool graph_is_done_held(tarn_graph *graph) {
  tarn_heap *heap = graph->heap;
  if (graph->is_unsure || launches_are_complete(graph)) {
    return !graph->is_unsure;
  }
  tarni_lock_acquire(&heap->grow);
  for (uint32_t i = 0; i < graph->n_launched; i++) {
    const tarni_order order = tarni_order_of(graph->launched[i]);
    (void)tarni_order_fence_grow(heap, &order);
  }
  (void)tarni_fences_poll_grow(heap);
  tarni_lock_release(&heap->grow);
  return launches_are_complete(graph);
}

/* Makes the stream wait, on the GPU, for all else that uses the arena: other graphs' launches, and
 * blocks that other streams have freed. */
static tarn_status arena_await_held(const tarn_graph *graph, tarni_index lane) {
  tarn_heap *heap = graph->heap;
  const uint64_t *tickets = graph->arena->tickets;
  tarn_status status = TARN_OK;
  tarni_lock_acquire(&heap->grow);
  tarni_lock_acquire(&heap->lock);
  const uint32_t n_lanes = heap->n_lanes;
  tarni_lock_release(&heap->lock);
  for (tarni_index other = 1; other < n_lanes && status == TARN_OK; other++) {
    if (other != lane && tickets[other] != 0) {
      const tarni_order order =
          tarni_order_of((tarni_order_entry){.lane = other, .ticket = tickets[other]});
      status = tarni_order_wait_grow(heap, &order, lane);
    }
  }
  tarni_lock_release(&heap->grow);
  return status;
}

static tarn_status launch_check(const tarn_graph *graph, const char *operation) {
  if (graph->arena->is_asleep) {
    return tarni_fail(TARN_STATE, operation, NULL, "Wake the arena with tarn_arena_wake.",
                      "the graph's arena is asleep");
  }
  if (tarni_pieces_are_asleep_held(graph)) {
    return tarni_fail(TARN_STATE, operation, NULL, "Wake that arena with tarn_arena_wake.",
                      "the graph holds blocks of another arena, which is asleep");
  }
  return graph->held.n_blocks != 0 ? tarni_sleep_refuse(graph->heap, operation) : TARN_OK;
}

static tarn_status graph_launch_held(tarn_graph *graph, tarn_stream stream) {
  tarni_port *port = graph->heap->port;
  tarni_index lane;
  TARN_TRY(launch_check(graph, "tarn_graph_launch"));
  if (graph->handle == NULL) {
    return tarni_fail(TARN_STATE, "tarn_graph_launch", NULL,
                      "Launch it where it was captured, and tell by tarn_graph_launched.",
                      "the capture was adopted: the graph is the program's");
  }
  if (!launched_room(graph)) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_graph_launch", NULL, "Free some host memory.",
                      "no host memory to note a launch");
  }
  TARN_TRY(tarni_lane_find(graph->heap, stream, &lane));
  if (graph->exec == NULL) {
    TARN_TRY(tarni_capture_allows("tarn_graph_launch")); /* it would break somebody's capture */
    TARNI_RELAXED(port);
    TARN_TRY(tarni_port_graph_instantiate(port, graph->handle, &graph->exec));
  }
  TARN_TRY(tarni_arena_sure_held(graph->arena, "tarn_graph_launch"));
  TARN_TRY(arena_await_held(graph, lane));
  TARN_TRY(tarni_port_graph_launch(port, graph->exec, stream));
  launch_note(graph, lane);
  return TARN_OK;
}

static tarn_status graph_given(const tarn_graph *graph, const char *operation) {
  if (graph == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass a graph.", "graph is NULL");
  }
  return tarni_heap_given(graph->heap, operation);
}

tarn_status tarn_graph_launch(tarn_graph *graph, tarn_stream stream) {
  TARN_TRY(graph_given(graph, "tarn_graph_launch"));
  TARNI_PAYS(&graph->heap->calls);
  tarni_lock_acquire(&graph->heap->capture);
  const tarn_status status = graph_launch_held(graph, stream);
  tarni_lock_release(&graph->heap->capture);
  return status;
}

static tarn_status graph_launched_held(tarn_graph *graph, tarn_stream stream) {
  tarni_index lane = TARNI_LANE_COMMON;
  tarn_status status = launch_check(graph, "tarn_graph_launched");
  if (status == TARN_OK && !launched_room(graph)) {
    status = tarni_fail(TARN_HOST_MEMORY, "tarn_graph_launched", NULL, "Free some host memory.",
                        "no host memory to note a launch: the graph's memory stays with the heap");
  }
  status = status == TARN_OK ? tarni_lane_find(graph->heap, stream, &lane) : status;
  if (status == TARN_OK) {
    launch_note(graph, lane);
  } else {
    graph->is_unsure = graph->arena->is_unsure = true; /* it was launched all the same */
  }
  return status;
}

tarn_status tarn_graph_launched(tarn_graph *graph, tarn_stream stream) {
  TARN_TRY(graph_given(graph, "tarn_graph_launched"));
  TARNI_PAYS(&graph->heap->calls);
  tarni_lock_acquire(&graph->heap->capture);
  const tarn_status status = graph_launched_held(graph, stream);
  tarni_lock_release(&graph->heap->capture);
  return status;
}

/* ---- What it holds ---- */

static tarn_status hold_refuse(tarn_heap *heap, tarn_ptr block) {
  tarn_block_info info;
  return tarni_arena_block(heap, block, &info)
             ? tarni_fail(TARN_FOREIGN, "tarn_graph_hold", NULL,
                          "Free it in a capture whose graph is to hold it (holds_freed).",
                          "0x%llx is a captured block, and no block of the heap",
                          (unsigned long long)block)
             : tarni_block_refuse(heap, block, "tarn_graph_hold");
}

tarn_status tarn_graph_hold(tarn_graph *graph, tarn_ptr block, tarn_stream stream) {
  TARN_TRY(graph_given(graph, "tarn_graph_hold"));
  tarn_heap *heap = graph->heap;
  const uint64_t offset = block - heap->base;
  if (!tarni_block_is_live(heap, offset)) {
    return hold_refuse(heap, block);
  }
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  tarni_index lane;
  bool is_added = true;
  const bool has_room = launched_room(graph);
  tarn_status status =
      has_room ? tarni_lane_find(heap, stream, &lane)
               : tarni_fail(TARN_HOST_MEMORY, "tarn_graph_hold", NULL, "Free some host memory.",
                            "no host memory to note a stream");
  if (status == TARN_OK) {
    (void)launched_add(graph, lane);
    tarni_lock_acquire(&heap->lock);
    is_added = tarni_deferred_add_locked(heap, &graph->held, offset);
    tarni_lock_release(&heap->lock);
  }
  tarni_lock_release(&heap->capture);
  return is_added ? status : tarni_block_refuse(heap, block, "tarn_graph_hold");
}

void *tarn_graph_handle(tarn_graph *graph) {
  return graph != NULL ? graph->handle : NULL;
}

tarn_arena *tarn_graph_arena(tarn_graph *graph) {
  return graph != NULL ? graph->arena : NULL;
}

tarn_status tarn_graph_get_info(tarn_graph *graph, tarn_graph_info *info) {
  static const tarn_graph_info empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(info, &empty, sizeof(empty), "tarn_graph_get_info"));
  TARN_TRY(graph_given(graph, "tarn_graph_get_info"));
  tarni_lock_acquire(&graph->heap->capture);
  const tarni_story *story = &graph->story;
  const tarn_graph_info now = {.size = sizeof(now),
                               .placement = story->placement,
                               .is_idle = graph_is_done_held(graph),
                               .has_diverged = story->has_diverged,
                               .diverged_at = story->diverged_at,
                               .bytes = story->bytes,
                               .allocations = story->n_requests,
                               .alloc_bytes = story->alloc_bytes,
                               .peak_bytes = story->peak,
                               .held_blocks = graph->held.n_blocks +
                                              tarni_pieces_count_held(graph->heap, graph),
                               .launches = graph->launches};
  tarni_lock_release(&graph->heap->capture);
  return tarni_struct_out(info, &now, sizeof(now), "tarn_graph_get_info");
}

/* ---- Its end ---- */

void tarni_graph_add_held(tarn_graph *graph) {
  tarn_heap *heap = graph->heap;
  graph->next = heap->graphs;
  heap->graphs = graph;
  graph->arena->n_graphs++;
}

/* A graph that nobody will have: gone at once, or with the next look. */
void tarni_graph_drop_held(tarn_graph *graph) {
  graph->is_gone = true;
  tarni_graph_add_held(graph);
  tarni_graphs_reap_held(graph->heap);
}

/* What the driver has of it. May be called again where it fails. */
static tarn_status driver_destroy(tarn_graph *graph) {
  tarni_port *port = graph->heap->port;
  if (graph->exec != NULL) {
    TARN_TRY(tarni_port_graph_destroy(port, NULL, graph->exec));
    graph->exec = NULL;
  }
  if (graph->handle != NULL) {
    TARN_TRY(tarni_port_graph_destroy(port, graph->handle, NULL));
    graph->handle = NULL;
  }
  return TARN_OK;
}

static void graph_free(tarn_graph *graph) {
  tarni_story_close(&graph->story);
  free(graph->launched);
  free(graph);
}

void tarni_graphs_reap_held(tarn_heap *heap) {
  for (tarn_graph **link = &heap->graphs; *link != NULL;) {
    tarn_graph *graph = *link;
    if (!graph->is_gone || !graph_is_done_held(graph) || driver_destroy(graph) != TARN_OK) {
      link = &graph->next;
      continue;
    }
    *link = graph->next;
    graph->arena->n_graphs--;
    tarni_pieces_release_held(heap, graph);
    tarni_lock_acquire(&heap->lock);
    tarni_deferred_give_locked(heap, &graph->held, TARNI_LANE_COMMON);
    tarni_lock_release(&heap->lock);
    graph_free(graph);
  }
}

tarn_status tarn_graph_destroy(tarn_graph *graph) {
  if (graph == NULL) {
    return TARN_OK;
  }
  TARN_TRY(graph_given(graph, "tarn_graph_destroy"));
  tarn_heap *heap = graph->heap;
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  graph->is_gone = true;
  tarni_captures_reap_held(heap);
  tarni_lock_release(&heap->capture);
  return TARN_OK;
}

tarn_status tarni_graphs_close(tarn_heap *heap, bool is_lost) {
  while (heap->graphs != NULL) {
    tarn_graph *graph = heap->graphs;
    const tarn_status status = driver_destroy(graph);
    if (status != TARN_OK && status != TARN_DEVICE_LOST && !is_lost) {
      return status;
    }
    heap->graphs = graph->next;
    graph->arena->n_graphs--;
    tarni_pieces_release_held(heap, graph);
    tarni_uses_drop(graph->held.uses);
    graph_free(graph);
  }
  return TARN_OK;
}
