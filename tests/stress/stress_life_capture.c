/* SPDX-License-Identifier: MIT
 *
 * Random programs: captures, what is allocated and freed inside, graphs and arenas. */
#include "stress/stress_life.h"

/* ---- Beginning and end ---- */

static int arena_pick(life_thread *self, int heap) {
  const int at = (int)life_below(self, LIFE_ARENAS + 1);
  const bool is_there = at < LIFE_ARENAS && self->arenas[at].arena != NULL &&
                        self->arenas[at].heap == heap && !self->arenas[at].is_asleep;
  return is_there ? at : -1;
}

static void capture_begun(life_thread *self, bool is_begun) {
  life_capture *c = &self->capture;
  c->is_going_on = is_begun;
  if (!is_begun) {
    c->side = LIFE_NO_STREAM;
    return;
  }
  self->life->n_global += c->mode == TARN_CAPTURE_GLOBAL;
  self->life->n_per_thread += c->origin == LIFE_PER_THREAD;
}

void life_capture_begin(life_thread *self, bool is_alone) {
  life *l = self->life;
  life_capture *c = &self->capture;
  const int heap = (int)life_below(self, (uint64_t)l->n_heaps);
  if (!l->has_captures || c->is_going_on || l->heaps[heap].is_asleep ||
      l->heaps[heap].config.is_secure) {
    return;
  }
  *c = (life_capture){.heap = heap,
                      .arena = arena_pick(self, heap),
                      .origin = is_alone && life_chance(self, 50) ? LIFE_PER_THREAD : self->own[0],
                      .side = self->own[1],
                      .holds_freed = life_chance(self, 40)};
  c->mode = is_alone && life_chance(self, 60) ? TARN_CAPTURE_GLOBAL
            : life_chance(self, 50)           ? TARN_CAPTURE_RELAXED
                                              : TARN_CAPTURE_THREAD_LOCAL;
  if (l->has_raw && life_chance(self, 50)) {
    c->arena = -1;
    c->holds_freed = false;
    capture_begun(self, life_raw_begin(self));
    return;
  }
  const bool is_planned = self->layout != NULL && self->layout_heap == heap;
  const tarn_capture_config config = {.size = sizeof(config),
                                      .mode = c->mode,
                                      .placement = is_planned              ? TARN_PLACE_PLANNED
                                                   : life_chance(self, 20) ? TARN_PLACE_MONOTONE
                                                                           : TARN_PLACE_REUSE,
                                      .layout = is_planned ? self->layout : NULL,
                                      .holds_freed = c->holds_freed,
                                      .arena = c->arena >= 0 ? self->arenas[c->arena].arena : NULL,
                                      .limit_bytes = life_chance(self, 50) ? 16 * LIFE_MIB : 0,
                                      .reserve_bytes =
                                          life_chance(self, 30) && c->arena < 0 ? 3 * LIFE_MIB : 0};
  const tarn_status status =
      tarn_capture_begin(l->heaps[heap].heap, &config, c->origin, &c->capture);
  CHECK_EQ(c->capture != NULL, status == TARN_OK);
  capture_begun(self, life_passed(self, status, LIFE_SHORT | LIFE_CAPTURE));
}

/* A place for a graph, or for the blocks that a capture left. */
static life_graph *graph_place(life_thread *self) {
  for (int i = 0; i < LIFE_GRAPHS; i++) {
    if (self->graphs[i].graph == NULL && self->graphs[i].n == 0) {
      return &self->graphs[i];
    }
  }
  life_graph *graph = &self->graphs[life_below(self, LIFE_GRAPHS)];
  life_graph_drop(self, graph);
  return graph;
}

static void announced_end(life_thread *self, bool is_kept, life_graph *graph) {
  life_capture *c = &self->capture;
  tarn_status status;
  do {
    status =
        is_kept ? tarn_capture_end(&c->capture, &graph->graph) : tarn_capture_abort(&c->capture);
  } while (status != TARN_OK && life_struck(self, status) && c->capture != NULL);
  CHECK(c->capture == NULL);
}

void life_capture_end(life_thread *self, bool is_kept) {
  life *l = self->life;
  life_capture *c = &self->capture;
  life_graph graph = {.heap = c->heap,
                      .arena = c->arena,
                      .after = c->has_held ? c->origin : LIFE_NO_STREAM,
                      .has_held = c->has_held};
  if (c->is_forked) {
    life_order(self, c->side, c->origin);
  }
  if (c->is_raw) {
    (void)life_raw_end(self, is_kept, &graph);
  } else {
    announced_end(self, is_kept, &graph);
  }
  l->n_global -= c->mode == TARN_CAPTURE_GLOBAL;
  l->n_per_thread -= c->origin == LIFE_PER_THREAD;
  tarn_layout_destroy(self->layout);
  self->layout = NULL;
  if (graph.graph != NULL && life_chance(self, 30)) {
    self->layout_heap = c->heap;
    CHECK_OK(tarn_graph_plan(graph.graph, NULL, &self->layout));
  }
  for (; graph.n < c->n; graph.n++) {
    graph.blocks[graph.n] = c->blocks[graph.n];
  }
  *graph_place(self) = graph;
  *c = (life_capture){.side = LIFE_NO_STREAM};
}

/* ---- Inside ---- */

static void captured_alloc(life_thread *self) {
  life_capture *c = &self->capture;
  life_block block = {.heap = -1,
                      .stream = c->is_forked && life_chance(self, 50) ? c->side : c->origin,
                      .value = (uint8_t)life_below(self, 256),
                      .has_value = true};
  block.block.bytes = 1 + life_below(self, life_chance(self, 60) ? 64 << 10 : 2 * LIFE_MIB);
  const tarn_status status = tarn_alloc(self->life->heaps[c->heap].heap, block.block.bytes,
                                        block.stream, &block.block.address);
  if (!life_passed(self, status, LIFE_SHORT)) {
    return;
  }
  life_launch(self, &block, block.stream, true);
  life_launch(self, &block, block.stream, false);
  c->blocks[c->n++] = block;
}

static void captured_free(life_thread *self) {
  life_capture *c = &self->capture;
  const int at = (int)life_below(self, (uint64_t)c->n);
  const life_block *block = &c->blocks[at];
  tarn_heap *heap = self->life->heaps[c->heap].heap;
  if (c->is_forked && life_chance(self, 30)) { /* the other branch reads it, too */
    const tarn_stream other = block->stream == c->side ? c->origin : c->side;
    life_order(self, block->stream, other);
    if (!life_passed(self, tarn_use(heap, block->block.address, other), 0)) {
      return;
    }
    life_launch(self, block, other, false);
  }
  tarn_status status;
  do {
    status = tarn_free(heap, block->block.address, block->stream);
  } while (status != TARN_OK && life_struck(self, status));
  c->blocks[at] = c->blocks[--c->n];
}

/* A block from before is freed inside; where the graph keeps it, each launch writes to it. */
static void before_free(life_thread *self) {
  life_capture *c = &self->capture;
  const int at = (int)life_below(self, (uint64_t)self->n);
  life_block *block = &self->live[at];
  const life_heap *h = &self->life->heaps[block->heap];
  const bool is_inside = life_is_captured(self, block->stream);
  if (h->is_asleep || (!is_inside && block->heap != c->heap)) {
    return;
  }
  if (is_inside && block->stream == c->origin && block->heap == c->heap && c->holds_freed &&
      !block->is_read_only && !block->is_blind && !life_has_care(&h->config)) {
    life_block held = *block;
    held.block.owner = 0;
    held.value = (uint8_t)life_below(self, 256);
    held.heap = -1;
    held.has_value = true;
    life_launch(self, &held, c->origin, true);
    life_launch(self, &held, c->origin, false);
    tarn_status status;
    do {
      status = tarn_free(h->heap, held.block.address, c->origin);
    } while (status != TARN_OK && life_struck(self, status));
    c->has_held = true;
    life_forget(self, at);
    return;
  }
  if (!is_inside) { /* its uses cannot be ordered with the capture: they are named */
    tarn_status status;
    do {
      status = tarn_use(h->heap, block->block.address, block->stream);
    } while (status != TARN_OK && life_struck(self, status));
    block->stream = c->origin;
    block->is_blind = true;
  }
  if (life_release(self, block)) {
    life_forget(self, at);
  }
}

static void capture_fork(life_thread *self) {
  life_capture *c = &self->capture;
  if (!c->is_forked) {
    c->is_forked = true;
    life_order(self, c->origin, c->side);
    return;
  }
  const tarn_stream after = life_chance(self, 50) ? c->side : c->origin;
  life_order(self, life_chance(self, 50) ? c->side : c->origin, after);
}

static void capture_step(life_thread *self) {
  life_capture *c = &self->capture;
  const uint64_t dice = life_below(self, 100);
  const bool has_memory = !c->is_raw || life_raw_has_memory(self);
  if (dice < 40) {
    if (c->n < LIFE_CAPTURED && has_memory) {
      captured_alloc(self);
    }
  } else if (dice < 60) {
    if (c->n != 0) {
      captured_free(self);
    }
  } else if (dice < 80) {
    if (self->n != 0 && has_memory) {
      before_free(self);
    }
  } else if (dice < 85) {
    capture_fork(self);
  } else if (dice < 95) {
    life_capture_end(self, life_chance(self, 80));
  }
}

/* ---- Graphs ---- */

/* Where work that uses the memory of a graph is done. */
static tarn_stream graph_stream(life_thread *self, const life_graph *graph) {
  const life_arena *arena = graph->arena >= 0 ? &self->arenas[graph->arena] : NULL;
  return arena != NULL && arena->memory.block.address != 0 ? arena->home : life_pick_stream(self);
}

static bool graph_is_awake(const life_thread *self, const life_graph *graph) {
  return !self->life->heaps[graph->heap].is_asleep &&
         (graph->arena < 0 || !self->arenas[graph->arena].is_asleep);
}

static void graph_launch(life_thread *self, life_graph *graph) {
  const tarn_stream stream = graph_stream(self, graph);
  if (!graph_is_awake(self, graph) || (graph->is_raw && graph->handle == NULL) ||
      (graph->after != LIFE_NO_STREAM && !life_is_usable(self, graph->after))) {
    return;
  }
  if (graph->has_held || (graph->is_raw && graph->after != LIFE_NO_STREAM)) {
    life_order(self, graph->after, stream);
  }
  const bool is_launched =
      graph->is_raw ? life_raw_launch(self, graph, stream)
                    : life_passed(self, tarn_graph_launch(graph->graph, stream), LIFE_CAPTURE);
  if (is_launched) {
    graph->after = stream;
    if (graph->arena >= 0) {
      self->arenas[graph->arena].last = stream;
    }
  }
}

/* Where the last launch was that may have written to what a capture left: an earlier graph of the
 * arena writes there, too. */
static tarn_stream left_after(const life_thread *self, const life_graph *graph) {
  const tarn_stream last = graph->arena >= 0 ? self->arenas[graph->arena].last : LIFE_NO_STREAM;
  return last != LIFE_NO_STREAM ? last : graph->after;
}

/* Another stream to free the block on, which this one's use is named for; or this one. */
static tarn_stream left_name(life_thread *self, const life_graph *graph, const life_block *block,
                             tarn_stream stream) {
  const tarn_stream other = graph_stream(self, graph);
  return life_chance(self, 40) &&
                 life_passed(
                     self,
                     tarn_use(self->life->heaps[graph->heap].heap, block->block.address, stream), 0)
             ? other
             : stream;
}

/* Frees a block that a capture left. */
static bool left_free(life_thread *self, life_graph *graph) {
  life_block *block = &graph->blocks[graph->n - 1];
  tarn_stream stream = graph_stream(self, graph);
  const tarn_stream after = left_after(self, graph);
  if (after != LIFE_NO_STREAM && !life_is_usable(self, after)) {
    stream = after; /* inside of another capture, perhaps */
  } else if (after != LIFE_NO_STREAM) {
    life_order(self, after, stream);
    if (graph_is_awake(self, graph) && life_chance(self, 40)) {
      life_launch(self, block, stream, true);
      graph->after = graph->is_raw ? stream : graph->after; /* nobody else orders it */
      stream = left_name(self, graph, block, stream);
    }
  }
  tarn_status status;
  do {
    status = tarn_free(self->life->heaps[graph->heap].heap, block->block.address, stream);
  } while (status != TARN_OK && life_struck(self, status));
  graph->n--;
  return true;
}

static void graph_destroy(life_thread *self, life_graph *graph) {
  tarn_status status;
  do {
    status = tarn_graph_destroy(graph->graph);
  } while (status != TARN_OK && life_struck(self, status));
  graph->graph = NULL;
  life_raw_drop(self, graph);
}

void life_graph_drop(life_thread *self, life_graph *graph) {
  if (life_chance(self, 50)) {
    graph_destroy(self, graph);
  }
  while (graph->n != 0) {
    (void)left_free(self, graph);
  }
  graph_destroy(self, graph);
  *graph = (life_graph){.arena = -1, .after = LIFE_NO_STREAM};
}

/* Hands a block to the graph, which frees it. */
static void graph_hold(life_thread *self, life_graph *graph) {
  const int at = (int)life_below(self, (uint64_t)self->n);
  const life_block *block = &self->live[at];
  if (block->heap != graph->heap || self->life->heaps[block->heap].is_asleep ||
      !life_is_usable(self, block->stream)) {
    return;
  }
  tarn_status status;
  life_disown(self->life, block);
  do {
    status = tarn_graph_hold(graph->graph, block->block.address, block->stream);
  } while (status != TARN_OK && life_struck(self, status));
  life_forget(self, at);
}

static void graph_step(life_thread *self) {
  life_graph *graph = &self->graphs[life_below(self, LIFE_GRAPHS)];
  const uint64_t dice = life_below(self, 100);
  if (graph->graph != NULL && dice < 60) {
    graph_launch(self, graph);
  } else if (graph->graph != NULL && dice < 70) {
    if (self->n != 0) {
      graph_hold(self, graph);
    }
  } else if (graph->n != 0 && dice < 90) {
    (void)left_free(self, graph);
  } else if (graph->graph != NULL && dice < 95) {
    graph_destroy(self, graph);
  } else if (dice < 97) {
    life_graph_drop(self, graph);
  }
}

/* ---- Arenas ---- */

static bool arena_is_needed(const life_thread *self, int at) {
  bool is_needed = self->capture.is_going_on && self->capture.arena == at;
  for (int i = 0; i < LIFE_GRAPHS; i++) {
    const life_graph *graph = &self->graphs[i];
    is_needed = is_needed || ((graph->graph != NULL || graph->n != 0) && graph->arena == at);
  }
  return is_needed;
}

static void arena_create(life_thread *self, life_arena *arena) {
  life *l = self->life;
  *arena = (life_arena){.heap = (int)life_below(self, (uint64_t)l->n_heaps),
                        .home = l->common[life_below(self, LIFE_COMMON)],
                        .last = LIFE_NO_STREAM};
  const life_heap *h = &l->heaps[arena->heap];
  tarn_arena_config config = {.size = sizeof(config),
                              .limit_bytes = life_chance(self, 50) ? 16 * LIFE_MIB : 0,
                              .reserve_bytes = life_chance(self, 30) ? 3 * LIFE_MIB : 0};
  if (!l->has_captures || h->is_asleep || h->config.is_secure) {
    return;
  }
  if (life_chance(self, 40)) {
    life_block *memory = &arena->memory;
    *memory = (life_block){.heap = arena->heap, .stream = arena->home};
    memory->block.bytes = 4 * LIFE_MIB;
    config = (tarn_arena_config){.size = sizeof(config), .memory_bytes = 4 * LIFE_MIB};
    if (!life_passed(self,
                     tarn_alloc(h->heap, memory->block.bytes, arena->home, &memory->block.address),
                     LIFE_SHORT | LIFE_CAPTURE)) {
      return;
    }
    config.memory = memory->block.address;
    life_own(l, memory);
  }
  const tarn_status status = tarn_arena_create(h->heap, &config, &arena->arena);
  if (!life_passed(self, status, LIFE_SHORT | LIFE_CAPTURE | LIFE_BUSY) &&
      arena->memory.block.address != 0) {
    CHECK(life_release(self, &arena->memory));
  }
}

bool life_arena_drop(life_thread *self, int at) {
  life_arena *arena = &self->arenas[at];
  if (arena->arena == NULL) {
    return true;
  }
  if (arena_is_needed(self, at)) {
    return false;
  }
  tarn_arena_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_arena_get_info(arena->arena, &info));
  CHECK_EQ(info.live_blocks, 0);
  if (arena->memory.block.address != 0 && info.graphs != 0) {
    return false; /* parked */
  }
  CHECK_OK(tarn_arena_destroy(arena->arena));
  arena->arena = NULL;
  if (arena->memory.block.address != 0) {
    CHECK(life_release(self, &arena->memory));
  }
  return true;
}

static void arena_step(life_thread *self) {
  const int at = (int)life_below(self, LIFE_ARENAS);
  life_arena *arena = &self->arenas[at];
  const uint64_t dice = life_below(self, 100);
  if (arena->arena == NULL) {
    arena_create(self, arena);
    return;
  }
  if (dice < 40) {
    const int may = LIFE_CAPTURE | LIFE_BUSY | LIFE_UNSUPPORTED | LIFE_SHORT;
    (void)life_passed(self,
                      arena->is_asleep ? tarn_arena_wake(arena->arena)
                                       : tarn_arena_sleep(arena->arena, life_chance(self, 50)),
                      may);
    tarn_arena_info info = {.size = sizeof(info)};
    CHECK_OK(tarn_arena_get_info(arena->arena, &info));
    arena->is_asleep = info.is_asleep;
  } else if (dice < 60) {
    if (!arena_is_needed(self, at) && arena->memory.block.address == 0) {
      (void)life_passed(self, tarn_arena_clear(arena->arena), LIFE_BUSY);
    }
  } else {
    (void)life_arena_drop(self, at);
  }
}

void life_step_capture(life_thread *self) {
  const uint64_t dice = life_below(self, 100);
  if (self->capture.is_going_on && dice < 60) {
    capture_step(self);
  } else if (dice < 70) {
    life_capture_begin(self, false);
  } else if (dice < 90) {
    graph_step(self);
  } else {
    arena_step(self);
  }
}
