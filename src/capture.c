/* SPDX-License-Identifier: MIT
 *
 * Captures: announced, found by asking, ended and given up. A capture is known by the driver's id,
 * which all streams of it share, so forks need no telling. While one is announced no thread has
 * hits on the heap: every allocation asks whether its stream is captured (captured.c). Every exit
 * leaves the heap as it was before. */
#include "arena.h"

#include <stdlib.h>

#include "base/bits.h"

/* ---- Which capture a stream is in ---- */

/* A capture whose id could not be asked for when it began. */
tarn_status tarni_capture_id_held(tarn_capture *capture) {
  if (capture->id != 0 || tarni_capture_is_anothers(capture)) {
    return TARN_OK;
  }
  tarni_capture_state state;
  TARN_TRY(tarni_port_capture_state(capture->heap->port, capture->stream, &state));
  capture->id = state.id;
  return TARN_OK;
}

tarn_status tarni_capture_state_of(tarn_heap *heap, tarn_stream stream,
                                   tarni_capture_state *state) {
  *state = (tarni_capture_state){0};
  /* The legacy stream cannot be captured, and may not be asked while others are. */
  return tarni_is_legacy(stream) ? TARN_OK : tarni_port_capture_state(heap->port, stream, state);
}

/* Whether the driver still records what the capture's stream is given. */
static tarn_status capture_goes_on(tarn_capture *capture, bool *goes_on) {
  tarni_capture_state state;
  *goes_on = true;
  if (tarni_capture_is_anothers(capture)) { /* its own thread will find out */
    *goes_on = !tarni_thread_is_gone(capture->thread);
    return TARN_OK;
  }
  TARN_TRY(tarni_capture_id_held(capture));
  const tarn_status status = tarni_capture_state_of(capture->heap, capture->stream, &state);
  if (status != TARN_INVALID) { /* a stream that is gone records nothing */
    TARN_TRY(status);
  }
  *goes_on = status == TARN_OK && state.status != TARNI_CAPTURE_NONE && state.id == capture->id;
  return TARN_OK;
}

void tarni_captures_find_ends_held(tarn_heap *heap) {
  for (tarn_capture *next, *capture = heap->captures; capture != NULL; capture = next) {
    bool goes_on = true;
    next = capture->next;
    if (capture->is_found && capture_goes_on(capture, &goes_on) == TARN_OK && !goes_on) {
      tarni_capture_close_held(capture, true);
    }
  }
}

static tarn_status found_begin_held(tarn_heap *heap, tarn_stream stream, uint64_t id,
                                    tarn_capture **capture);

/* The capture of a state, if it is known. */
tarn_status tarni_capture_by_id_held(tarn_heap *heap, uint64_t id, tarn_capture **capture) {
  for (tarn_capture *at = heap->captures; at != NULL; at = at->next) {
    TARN_TRY(tarni_capture_id_held(at));
    if (at->id == id) {
      *capture = at;
      return TARN_OK;
    }
  }
  return TARN_OK;
}

static tarn_status capture_unknown(const tarn_heap *heap, uint64_t id, const char *operation) {
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_CAPTURE, operation, &facts,
                    "Announce it with tarn_capture_begin, or have every allocation ask "
                    "(TARN_ASK_CAPTURES).",
                    "the stream is being captured (capture %llu), and nobody told the heap",
                    (unsigned long long)id);
}

tarn_status tarni_capture_of_held(tarn_heap *heap, tarn_stream stream, tarn_capture **capture) {
  tarni_capture_state state;
  *capture = NULL;
  if (heap->care.is_asking_captures) {
    tarni_captures_find_ends_held(heap);
  }
  TARN_TRY(tarni_capture_state_of(heap, stream, &state));
  if (state.status == TARNI_CAPTURE_NONE) {
    return TARN_OK;
  }
  TARN_TRY(tarni_capture_by_id_held(heap, state.id, capture));
  if (state.status == TARNI_CAPTURE_INVALIDATED) {
    const tarni_facts facts = {.device = heap->port->device.name};
    *capture = NULL;
    return tarni_fail(TARN_CAPTURE, "tarn_alloc", &facts,
                      "Give it up with tarn_capture_abort, and begin anew.",
                      "something illegal has broken capture %llu", (unsigned long long)state.id);
  }
  if (*capture == NULL) {
    return heap->care.is_asking_captures ? found_begin_held(heap, stream, state.id, capture)
                                         : capture_unknown(heap, state.id, "tarn_alloc");
  }
  return TARN_OK;
}

/* The same for frees: a broken capture is one, and one of which nobody told is none. */
tarn_status tarni_capture_of_free_held(tarn_heap *heap, tarn_stream stream,
                                       tarn_capture **capture) {
  tarni_capture_state state;
  *capture = NULL;
  TARN_TRY(tarni_capture_state_of(heap, stream, &state));
  return state.status != TARNI_CAPTURE_NONE ? tarni_capture_by_id_held(heap, state.id, capture)
                                            : TARN_OK;
}

/* The same for what may not fail: where it cannot be known there is none. */
tarn_capture *tarni_capture_freeing_held(tarn_heap *heap, tarn_stream stream) {
  tarn_capture *capture;
  return tarni_capture_of_free_held(heap, stream, &capture) == TARN_OK ? capture : NULL;
}

/* ---- Beginning ---- */

/* From here on every allocation comes by this file. */
static void announce_held(tarn_capture *capture) {
  tarn_heap *heap = capture->heap;
  capture->next = heap->captures;
  heap->captures = capture;
  capture->arena->capture = capture;
  tarni_strict_add(capture);
  tarni_lock_acquire(&heap->lock);
  atomic_fetch_add_explicit(&heap->n_captures, 1, memory_order_relaxed);
  tarni_watch_begin_locked(heap);
  tarni_lock_release(&heap->lock);
}

static tarn_status arena_get_held(tarn_heap *heap, const tarn_capture_config *config,
                                  tarn_arena **arena) {
  static const char operation[] = "tarn_capture_begin";
  *arena = config->arena;
  if (*arena == NULL) {
    const tarn_arena_config own = {.size = sizeof(own), .limit_bytes = config->limit_bytes};
    return tarni_arena_make(heap, &own, operation, arena);
  }
  if ((*arena)->heap != heap) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Use an arena of the same heap.",
                      "the arena belongs to another heap");
  }
  if ((*arena)->capture != NULL) {
    return tarni_fail(
        TARN_BUSY, operation, NULL, "Wait for the other capture's end, or use another arena.",
        "capture %llu is placing blocks in the arena", (unsigned long long)(*arena)->capture->id);
  }
  if ((*arena)->is_asleep) {
    return tarni_fail(TARN_STATE, operation, NULL, "Wake it with tarn_arena_wake.",
                      "the arena is asleep");
  }
  return TARN_OK;
}

/* A capture that has everything but the driver's. */
static tarn_status capture_make_held(tarn_heap *heap, const tarn_capture_config *config,
                                     tarn_stream stream, tarn_capture **out) {
  tarn_capture *capture = calloc(1, sizeof(*capture));
  tarn_graph *graph = calloc(1, sizeof(*graph));
  if (capture == NULL || graph == NULL) {
    free(capture);
    free(graph);
    return tarni_fail(TARN_HOST_MEMORY, "tarn_capture_begin", NULL, "Free some host memory.",
                      "no host memory for a capture");
  }
  capture->heap = graph->heap = heap;
  capture->graph = graph;
  capture->stream = stream;
  capture->config = *config;
  capture->thread = tarni_thread();
  capture->story.placement = config->placement;
  capture->deferred[TARNI_CAPTURE_BRANCHES].stream = TARNI_NO_STREAM;
  const tarn_status status = arena_get_held(heap, config, &capture->arena);
  if (status != TARN_OK) {
    free(capture);
    free(graph);
    return status;
  }
  graph->arena = capture->arena;
  capture->mapped_before = tarni_min(capture->arena->mapped, capture->arena->kept);
  capture->arena->kept = UINT64_MAX;
  *out = capture;
  return TARN_OK;
}

void tarni_capture_free(tarn_capture *capture) {
  tarni_story_close(&capture->story);
  free(capture->edges);
  free(capture->path);
  free(capture);
}

/* A capture that never began, so that nothing uses what was reserved for it, behind `mapped`. */
static void capture_unmake_held(tarn_capture *capture, uint64_t mapped) {
  tarn_heap *heap = capture->heap;
  capture->arena->kept = capture->mapped_before;
  (void)tarni_arena_shrink_held(capture->arena, mapped); /* else later */
  free(capture->graph);
  tarni_capture_free(capture);
  (void)tarni_arenas_reap_held(heap);
}

/* Memory that will be needed, made while the heap may still trim for it. */
static tarn_status capture_reserve_held(const tarn_capture *capture) {
  uint64_t bytes = capture->config.reserve_bytes;
  if (capture->config.placement == TARN_PLACE_PLANNED) {
    tarn_plan_info info = {.size = sizeof(info)};
    TARN_TRY(tarn_plan_get_info(capture->config.layout->plan, &info));
    bytes = tarni_max(bytes, info.height);
  }
  return bytes <= capture->arena->mapped
             ? TARN_OK
             : tarni_arena_reserve_held(capture->arena, bytes, "tarn_capture_begin");
}

/* What the stream has freed so far gets its fence now: inside the capture it cannot. */
static void stream_fence_grow(tarn_heap *heap, tarn_stream stream) {
  tarni_index lane;
  if (tarni_lane_known(heap, stream, &lane) != TARN_OK || lane == TARNI_LANE_COMMON) {
    return;
  }
  tarni_lock_acquire(&heap->lock);
  const tarni_order order =
      tarni_order_of((tarni_order_entry){.lane = lane, .ticket = tarni_ticket_locked(heap, lane)});
  tarni_lock_release(&heap->lock);
  (void)tarni_order_fence_grow(heap, &order);
}

/* Begins it in the driver. */
static tarn_status driver_begin_held(const tarn_capture *capture) {
  static const tarni_capture_mode modes[] = {TARNI_CAPTURE_THREAD_LOCAL, TARNI_CAPTURE_GLOBAL,
                                             TARNI_CAPTURE_RELAXED};
  tarn_heap *heap = capture->heap;
  const tarni_facts facts = {.device = heap->port->device.name};
  tarni_index lane; /* inside the capture the stream could not be asked for it */
  if (tarni_is_legacy(capture->stream)) {
    return tarni_fail(TARN_CAPTURE, "tarn_capture_begin", &facts,
                      "Capture another stream, or a thread's own default stream.",
                      "the legacy default stream cannot be captured");
  }
  (void)tarni_lane_find(heap, capture->stream, &lane);
  tarni_lock_acquire(&heap->grow); /* so that no fence is recorded on the stream right now */
  stream_fence_grow(heap, capture->stream);
  const tarn_status status =
      tarni_port_capture_begin(heap->port, capture->stream, modes[capture->config.mode]);
  tarni_lock_release(&heap->grow);
  return status != TARN_STATE ? status
                              : tarni_fail(TARN_STATE, "tarn_capture_begin", &facts,
                                           "End that capture first, or adopt it (is_adopted).",
                                           "the stream is being captured already");
}

/* Takes over what the program has begun. */
static tarn_status driver_adopt_held(tarn_capture *capture) {
  tarn_heap *heap = capture->heap;
  tarni_capture_state state;
  TARN_TRY(tarni_capture_state_of(heap, capture->stream, &state));
  if (state.status != TARNI_CAPTURE_ACTIVE) {
    const tarni_facts facts = {.device = heap->port->device.name};
    return tarni_fail(TARN_STATE, "tarn_capture_begin", &facts,
                      "Begin the capture first, or let tarn begin it.",
                      "the stream is in no capture that could be adopted");
  }
  capture->id = state.id;
  tarn_capture *known = NULL;
  TARN_TRY(tarni_capture_by_id_held(heap, state.id, &known));
  return known == NULL
             ? TARN_OK
             : tarni_fail(TARN_BUSY, "tarn_capture_begin", NULL, "Announce a capture once.",
                          "capture %llu is announced already", (unsigned long long)state.id);
}

static tarn_status capture_begin_held(tarn_heap *heap, const tarn_capture_config *config,
                                      tarn_stream stream, tarn_capture **out) {
  tarn_capture *capture;
  tarni_captures_reap_held(heap);
  TARN_TRY(capture_make_held(heap, config, stream, &capture));
  const uint64_t mapped = capture->arena->mapped;
  tarn_status status = capture_reserve_held(capture);
  if (status == TARN_OK) {
    status = config->is_adopted ? driver_adopt_held(capture) : driver_begin_held(capture);
  }
  if (status != TARN_OK) {
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    capture_unmake_held(capture, mapped);
    return tarni_fail_again(&error);
  }
  announce_held(capture);
  (void)tarni_capture_id_held(capture); /* else when it is needed */
  *out = capture;
  return TARN_OK;
}

static tarn_status config_check(const tarn_capture_config *config) {
  static const char operation[] = "tarn_capture_begin";
  if ((unsigned)config->mode > TARN_CAPTURE_RELAXED ||
      (unsigned)config->placement > TARN_PLACE_MONOTONE) {
    return tarni_fail(
        TARN_INVALID, operation, NULL, "Use values of tarn_capture_mode and tarn_placement.",
        "the mode is %d, the placement %d", (int)config->mode, (int)config->placement);
  }
  if ((config->placement == TARN_PLACE_PLANNED) != (config->layout != NULL)) {
    return tarni_fail(TARN_INVALID, operation, NULL,
                      "Pass a layout of tarn_graph_plan with TARN_PLACE_PLANNED, and only then.",
                      "the placement and the layout do not go together");
  }
  return TARN_OK;
}

tarn_status tarn_capture_begin(tarn_heap *heap, const tarn_capture_config *config,
                               tarn_stream stream, tarn_capture **capture) {
  static const char operation[] = "tarn_capture_begin";
  if (capture == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the address of a tarn_capture *.",
                      "the output is NULL");
  }
  *capture = NULL;
  TARN_TRY(tarni_heap_given(heap, operation));
  tarn_capture_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), operation));
    TARN_TRY(TARNI_RESERVED(&known, reserved_bool, operation));
    TARN_TRY(TARNI_RESERVED(&known, reserved_u32, operation));
  }
  TARN_TRY(config_check(&known));
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  const tarn_status status = capture_begin_held(heap, &known, stream, capture);
  tarni_lock_release(&heap->capture);
  return status;
}

/* A capture that nobody announced, by its first allocation. Its mode cannot be asked for: the
 * strictest is assumed. */
static tarn_status found_begin_held(tarn_heap *heap, tarn_stream stream, uint64_t id,
                                    tarn_capture **capture) {
  const tarn_capture_config config = {
      .size = sizeof(config), .mode = TARN_CAPTURE_GLOBAL, .is_adopted = true};
  TARN_TRY(capture_make_held(heap, &config, stream, capture));
  (*capture)->id = id;
  (*capture)->is_found = true;
  announce_held(*capture);
  return TARN_OK;
}

/* ---- Ending ---- */

static void withdraw_held(tarn_capture *capture) {
  tarn_heap *heap = capture->heap;
  tarn_capture **link = &heap->captures;
  while (*link != capture) {
    link = &(*link)->next;
  }
  *link = capture->next;
  capture->arena->capture = NULL;
  tarni_strict_remove(capture);
  tarni_lock_acquire(&heap->lock);
  atomic_fetch_sub_explicit(&heap->n_captures, 1, memory_order_relaxed);
  tarni_watch_end_locked(heap);
  tarni_lanes_ask_again_locked(heap);
  tarni_lock_release(&heap->lock);
}

void tarni_capture_close_held(tarn_capture *capture, bool is_kept) {
  tarn_heap *heap = capture->heap;
  tarn_arena *arena = capture->arena;
  withdraw_held(capture);
  if (!is_kept || !capture->config.holds_freed) {
    tarni_pieces_release_held(heap, capture->graph);
  }
  tarni_pieces_settle_held(arena);
  for (tarn_arena *any = heap->arenas; any != NULL; any = any->next) {
    tarni_arena_settle_held(any); /* blocks of others were freed inside, too */
  }
  tarn_graph *graph = capture->graph;
  capture->graph = NULL;
  if (is_kept) {
    graph->id = capture->id;
    graph->is_found = capture->is_found;
    graph->story = capture->story;
    capture->story = (tarni_story){0};
    tarni_graph_add_held(graph);
    if (capture->config.holds_freed) {
      capture->graph = graph;
      tarni_freed_hold_held(capture);
    }
  } else {
    tarni_graph_drop_held(graph);
    arena->kept = capture->mapped_before;
  }
  tarni_freed_release_held(capture);
  (void)tarni_arenas_reap_held(heap);
}

static tarn_status capture_given(tarn_capture **capture, const char *operation) {
  if (capture == NULL || *capture == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass a capture that goes on.",
                      "there is no capture");
  }
  return tarni_heap_given((*capture)->heap, operation);
}

/* The driver would take another thread's default stream for this thread's. *is_over: that thread
 * is gone, and its stream with it. */
static tarn_status anothers_refuse(const tarn_capture *capture, const char *operation,
                                   bool *is_over) {
  *is_over = tarni_thread_is_gone(capture->thread);
  return tarni_fail(TARN_STATE, operation, NULL,
                    *is_over ? "Capture again, and end it by the thread that has begun it."
                             : "End it by the thread whose default stream it captures.",
                    "capture %llu is one of another thread's default stream%s",
                    (unsigned long long)capture->id, *is_over ? ", and that thread is gone" : "");
}

/* Ends it in the driver. *is_over: the driver does not record any more, whatever was the result. */
static tarn_status driver_end_held(tarn_capture *capture, const char *operation, bool *is_over) {
  if (tarni_capture_is_anothers(capture)) {
    return anothers_refuse(capture, operation, is_over);
  }
  const tarn_status status =
      tarni_port_capture_end(capture->heap->port, capture->stream, &capture->graph->handle);
  *is_over = true;
  if (status == TARN_OK) {
    return TARN_OK;
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  bool goes_on = true;
  *is_over =
      status == TARN_DEVICE_LOST || (capture_goes_on(capture, &goes_on) == TARN_OK && !goes_on);
  return tarni_fail_again(&error);
}

static tarn_status adopted_end_held(tarn_capture *capture) {
  bool goes_on = false, is_over;
  TARN_TRY(capture_goes_on(capture, &goes_on));
  if (goes_on && tarni_capture_is_anothers(capture)) { /* for all that can be known here */
    return anothers_refuse(capture, "tarn_capture_end", &is_over);
  }
  return !goes_on ? TARN_OK
                  : tarni_fail(TARN_STATE, "tarn_capture_end", NULL,
                               "End the driver's capture first: it is the program's.",
                               "capture %llu still goes on", (unsigned long long)capture->id);
}

tarn_status tarn_capture_end(tarn_capture **out, tarn_graph **graph) {
  static const char operation[] = "tarn_capture_end";
  if (graph == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the address of a tarn_graph *.",
                      "the output is NULL");
  }
  *graph = NULL;
  TARN_TRY(capture_given(out, operation));
  tarn_capture *capture = *out;
  tarn_heap *heap = capture->heap;
  bool is_over = false;
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  const tarn_status status = capture->config.is_adopted
                                 ? adopted_end_held(capture)
                                 : driver_end_held(capture, operation, &is_over);
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  if (status == TARN_OK) {
    *graph = capture->graph;
    tarni_capture_close_held(capture, true);
    *out = NULL;
  } else if (is_over) {
    tarni_capture_close_held(capture, false);
    *out = NULL;
  }
  tarni_lock_release(&heap->capture);
  return status == TARN_OK ? TARN_OK : tarni_fail_again(&error);
}

tarn_status tarn_capture_abort(tarn_capture **out) {
  if (out == NULL || *out == NULL) {
    return TARN_OK;
  }
  TARN_TRY(capture_given(out, "tarn_capture_abort"));
  tarn_capture *capture = *out;
  tarn_heap *heap = capture->heap;
  bool is_over = true;
  tarn_status status = TARN_OK;
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  if (!capture->config.is_adopted) {
    status = driver_end_held(capture, "tarn_capture_abort", &is_over);
  }
  if (is_over) {
    tarni_capture_close_held(capture, false);
    *out = NULL;
  }
  tarni_lock_release(&heap->capture);
  return is_over ? TARN_OK : status;
}

tarn_status tarn_capture_find(tarn_heap *heap, tarn_stream stream, tarn_capture **capture) {
  static const char operation[] = "tarn_capture_find";
  if (capture == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the address of a tarn_capture *.",
                      "the output is NULL");
  }
  *capture = NULL;
  TARN_TRY(tarni_heap_given(heap, operation));
  tarni_lock_acquire(&heap->capture);
  tarni_capture_state state;
  tarn_status status = tarni_capture_state_of(heap, stream, &state);
  if (status == TARN_OK && state.status != TARNI_CAPTURE_NONE) {
    status = tarni_capture_by_id_held(heap, state.id, capture);
    if (status == TARN_OK && (*capture == NULL || (*capture)->is_found)) {
      *capture = NULL; /* one that was found is the heap's, which frees it when it is over */
      status = capture_unknown(heap, state.id, operation);
    }
  }
  tarni_lock_release(&heap->capture);
  return status;
}

tarn_status tarn_graph_find(tarn_heap *heap, uint64_t capture_id, tarn_graph **graph) {
  static const char operation[] = "tarn_graph_find";
  if (graph == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the address of a tarn_graph *.",
                      "the output is NULL");
  }
  *graph = NULL;
  TARN_TRY(tarni_heap_given(heap, operation));
  tarni_lock_acquire(&heap->capture);
  tarni_captures_find_ends_held(heap);
  for (tarn_graph *at = heap->graphs; at != NULL && *graph == NULL; at = at->next) {
    if (at->is_found && at->id == capture_id) {
      at->is_found = false;
      *graph = at;
    }
  }
  tarni_lock_release(&heap->capture);
  return *graph != NULL ? TARN_OK
                        : tarni_fail(TARN_FOREIGN, operation, NULL,
                                     "Ask once, by the id of a capture that is over.",
                                     "no graph of capture %llu waits for its owner",
                                     (unsigned long long)capture_id);
}

/* The heap goes: announced captures keep it, others are over. */
tarn_status tarni_captures_close_held(tarn_heap *heap) {
  tarni_captures_find_ends_held(heap);
  if (heap->captures != NULL) {
    return tarni_fail(TARN_BUSY, "tarn_heap_destroy", NULL,
                      "End or abort all captures before the heap is destroyed.",
                      "capture %llu still goes on", (unsigned long long)heap->captures->id);
  }
  return TARN_OK;
}
