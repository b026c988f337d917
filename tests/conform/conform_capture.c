/* SPDX-License-Identifier: MIT
 *
 * Conformance: begin and end of a capture, its identity, forks and joins. */
#include "conform/conform.h"

enum { FORK_BYTES = 4096 };

typedef struct fork_scene {
  tarn_stream origin;
  tarn_stream branch;
  tarni_event fork;
  tarni_event join;
  tarn_ptr block;
} fork_scene;

static bool fork_set_up(fork_scene *scene) {
  return CHECK_OK(tarni_port_stream_create(conform_port, &scene->origin)) &&
         CHECK_OK(tarni_port_stream_create(conform_port, &scene->branch)) &&
         CHECK_OK(tarni_port_event_create(conform_port, &scene->fork)) &&
         CHECK_OK(tarni_port_event_create(conform_port, &scene->join)) &&
         CHECK_OK(tarni_port_plain_alloc(conform_port, (uint64_t)FORK_BYTES * 2, &scene->block));
}

static void fork_take_down(fork_scene *scene) {
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->origin));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->branch));
  CHECK_OK(tarni_port_plain_free(conform_port, scene->block));
  CHECK_OK(tarni_port_event_destroy(conform_port, scene->fork));
  CHECK_OK(tarni_port_event_destroy(conform_port, scene->join));
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->origin));
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->branch));
}

static tarni_capture_state state_of(tarn_stream stream) {
  tarni_capture_state state = {0};
  CHECK_OK(tarni_port_capture_state(conform_port, stream, &state));
  return state;
}

/* Ends a capture of which only that it ends is known. */
static void end_capture_anyhow(tarn_stream stream) {
  tarni_graph graph;
  if (tarni_port_capture_end(conform_port, stream, &graph) == TARN_OK) {
    (void)tarni_port_graph_destroy(conform_port, graph, NULL);
  }
}

static void state_and_identity(void) {
  fork_scene scene;
  tarni_graph graph;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
  CHECK_EQ(state_of(NULL).status, TARNI_CAPTURE_NONE);
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_THREAD_LOCAL));
  const tarni_capture_state first = state_of(scene.origin);
  CHECK_EQ(first.status, TARNI_CAPTURE_ACTIVE);
  CHECK(first.id != 0);
  CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_NONE);
  uint64_t id = 1;
  CHECK_STATUS(tarni_port_stream_id(conform_port, scene.origin, &id), TARN_CAPTURE);
  CHECK_EQ(id, 0);
  CHECK_OK(tarni_port_stream_id(conform_port, scene.branch, &id));
  CHECK_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK(state_of(scene.origin).id != first.id);
  CHECK_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
  fork_take_down(&scene);
}

/* Captured work is recorded, not done. */
static void captured_work_does_not_run(void) {
  fork_scene scene;
  tarni_graph graph;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK_OK(tarni_port_fill_sync(conform_port, scene.block, 0x10, FORK_BYTES));
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_fill(conform_port, scene.block, 0x20, FORK_BYTES, scene.origin));
  CHECK_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.origin));
  CHECK_EQ(conform_device_differ_value(scene.block, FORK_BYTES, 0x10), 0);
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
  fork_take_down(&scene);
}

/* Origin: fill one half; branch: fill the other and copy the first; joined back at the end. */
static tarn_status capture_fork_and_join(fork_scene *scene, tarni_capture_mode mode) {
  const tarn_ptr half = scene->block + FORK_BYTES;
  tarni_capture_state origin, branch;
  CHECK_OK(tarni_port_capture_begin(conform_port, scene->origin, mode));
  CHECK_OK(tarni_port_fill(conform_port, scene->block, 0x31, FORK_BYTES, scene->origin));
  CHECK_OK(tarni_port_event_record(conform_port, scene->fork, scene->origin));
  CHECK_OK(tarni_port_event_wait(conform_port, scene->branch, scene->fork));
  origin = state_of(scene->origin);
  branch = state_of(scene->branch);
  CHECK_EQ(branch.status, TARNI_CAPTURE_ACTIVE);
  CHECK_EQ(branch.id, origin.id);
  CHECK_OK(tarni_port_copy(conform_port, half, scene->block, FORK_BYTES / 2, scene->branch));
  CHECK_OK(
      tarni_port_fill(conform_port, half + FORK_BYTES / 2, 0x32, FORK_BYTES / 2, scene->branch));
  CHECK_OK(tarni_port_event_record(conform_port, scene->join, scene->branch));
  return tarni_port_event_wait(conform_port, scene->origin, scene->join);
}

static void fork_and_join(void) {
  for (int mode = 0; mode < 3; mode++) {
    fork_scene scene;
    tarni_graph graph;
    tarni_graph_exec exec;
    if (!fork_set_up(&scene)) {
      return;
    }
    CHECK_OK(capture_fork_and_join(&scene, (tarni_capture_mode)mode));
    REQUIRE_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
    CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
    CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_NONE);
    REQUIRE_OK(tarni_port_graph_instantiate(conform_port, graph, &exec));
    CHECK_OK(tarni_port_graph_launch(conform_port, exec, scene.branch));
    CHECK_OK(tarni_port_stream_sync(conform_port, scene.branch));
    CHECK_EQ(conform_device_differ_value(scene.block, FORK_BYTES * 3 / 2, 0x31), 0);
    CHECK_EQ(conform_device_differ_value(scene.block + FORK_BYTES * 3 / 2, FORK_BYTES / 2, 0x32),
             0);
    CHECK_OK(tarni_port_graph_destroy(conform_port, graph, exec));
    fork_take_down(&scene);
  }
}

/* Destroys the branch of a capture that goes on, and makes another one for the scene. */
static void branch_goes(fork_scene *scene) {
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->branch));
  CHECK_EQ(state_of(scene->origin).status, TARNI_CAPTURE_ACTIVE);
  CHECK_OK(tarni_port_stream_create(conform_port, &scene->branch));
  CHECK_EQ(state_of(scene->branch).status, TARNI_CAPTURE_NONE);
}

/* A branch may go before its capture has ended; what it did has to be joined all the same, and can
 * be by an event of it that is left. */
static void branch_that_goes(void) {
  enum { JOINED, WITHOUT_WORK, JOINED_LATER, NOT_JOINED, N_CASES };
  for (int which = 0; which < N_CASES * 3; which++) {
    const int what = which / 3;
    fork_scene scene;
    tarni_graph graph;
    if (!fork_set_up(&scene)) {
      return;
    }
    CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, (tarni_capture_mode)(which % 3)));
    CHECK_OK(tarni_port_fill(conform_port, scene.block, 0x33, FORK_BYTES, scene.origin));
    CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
    CHECK_OK(tarni_port_event_wait(conform_port, scene.branch, scene.fork));
    CHECK_OK(what == WITHOUT_WORK ? TARN_OK
                                  : tarni_port_fill(conform_port, scene.block + FORK_BYTES, 0x34,
                                                    FORK_BYTES, scene.branch));
    CHECK_OK(tarni_port_event_record(conform_port, scene.join, scene.branch));
    CHECK_OK(what == JOINED ? tarni_port_event_wait(conform_port, scene.origin, scene.join)
                            : TARN_OK);
    branch_goes(&scene);
    CHECK_OK(what == JOINED_LATER ? tarni_port_event_wait(conform_port, scene.origin, scene.join)
                                  : TARN_OK);
    CHECK_STATUS(tarni_port_capture_end(conform_port, scene.origin, &graph),
                 what == NOT_JOINED ? TARN_CAPTURE : TARN_OK);
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    CHECK_EQ(what == NOT_JOINED ? error.driver_code : 904, 904);
    CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
    fork_take_down(&scene);
  }
}

/* What the stream's next node follows. */
static uint32_t nodes_of(tarn_stream stream, tarni_edge edges[8]) {
  uint32_t count = 0;
  CHECK_OK(tarni_port_capture_nodes(conform_port, stream, edges, 8, &count));
  for (uint32_t i = 0; i < count && i < 8; i++) {
    CHECK(edges[i].node != 0);
    CHECK(edges[i].is_full);
  }
  return count;
}

static bool follows(uint64_t node, uint64_t other) {
  tarni_edge edges[8];
  uint32_t count = 0;
  CHECK_OK(tarni_port_node_before(conform_port, node, edges, 8, &count));
  bool is_found = false;
  for (uint32_t i = 0; i < count && i < 8; i++) {
    CHECK(edges[i].is_full);
    is_found = is_found || edges[i].node == other;
  }
  return is_found;
}

/* The order inside a capture can be asked for while it goes on: a line, a fork and a join. */
static void order_of_nodes(void) {
  fork_scene scene;
  tarni_edge at[8], first[8], side[8];
  tarni_graph graph;
  uint32_t count = 9;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK_STATUS(tarni_port_capture_nodes(conform_port, scene.origin, at, 8, &count), TARN_STATE);
  CHECK_EQ(count, 0);
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_EQ(nodes_of(scene.origin, at), 0);
  CHECK_OK(tarni_port_fill(conform_port, scene.block, 1, FORK_BYTES, scene.origin));
  CHECK_EQ(nodes_of(scene.origin, first), 1);
  CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.branch, scene.fork));
  CHECK_EQ(nodes_of(scene.branch, side), 1);
  CHECK_EQ(side[0].node, first[0].node);
  CHECK_OK(tarni_port_fill(conform_port, scene.block, 2, FORK_BYTES, scene.branch));
  CHECK_EQ(nodes_of(scene.branch, side), 1);
  CHECK(follows(side[0].node, first[0].node));
  CHECK_OK(tarni_port_fill(conform_port, scene.block + FORK_BYTES, 3, FORK_BYTES, scene.origin));
  CHECK_EQ(nodes_of(scene.origin, at), 1);
  CHECK(follows(at[0].node, first[0].node));
  CHECK(!follows(at[0].node, side[0].node));
  CHECK_OK(tarni_port_event_record(conform_port, scene.join, scene.branch));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.origin, scene.join));
  CHECK_EQ(nodes_of(scene.origin, at), 2);
  CHECK_OK(tarni_port_capture_nodes(conform_port, scene.origin, at, 1, &count));
  CHECK_EQ(count, 2);
  CHECK_OK(tarni_port_fill(conform_port, scene.block, 4, FORK_BYTES, scene.origin));
  CHECK_EQ(nodes_of(scene.origin, at), 1);
  CHECK(follows(at[0].node, side[0].node));
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_ACTIVE);
  REQUIRE_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
  fork_take_down(&scene);
}

static void branch_that_is_not_joined(void) {
  for (int mode = 0; mode < 3; mode++) {
    fork_scene scene;
    tarni_graph graph = &scene;
    if (!fork_set_up(&scene)) {
      return;
    }
    CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, (tarni_capture_mode)mode));
    CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
    CHECK_OK(tarni_port_event_wait(conform_port, scene.branch, scene.fork));
    CHECK_OK(tarni_port_fill(conform_port, scene.block, 0x33, FORK_BYTES, scene.branch));
    CHECK_STATUS(tarni_port_capture_end(conform_port, scene.origin, &graph), TARN_CAPTURE);
    CHECK(graph == NULL);
    CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
    CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_NONE);
    fork_take_down(&scene);
    conform_forgive();
  }
}

static void end_on_the_wrong_stream(void) {
  fork_scene scene;
  tarni_graph graph = &scene;
  if (!fork_set_up(&scene)) {
    return;
  }
  /* A stream that is not capturing: the capture elsewhere is not touched. */
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED));
  CHECK(conform_fails(tarni_port_capture_end(conform_port, scene.branch, &graph)));
  CHECK(graph == NULL);
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_ACTIVE);
  CHECK_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
  /* A branch of the capture. */
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.branch, scene.fork));
  graph = &scene;
  CHECK_STATUS(tarni_port_capture_end(conform_port, scene.branch, &graph), TARN_CAPTURE);
  CHECK(graph == NULL);
  end_capture_anyhow(scene.origin);
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
  CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_NONE);
  fork_take_down(&scene);
  conform_forgive();
}

typedef struct end_call {
  tarn_stream stream;
  tarni_graph graph;
} end_call;

static tarn_status end_by_thread(void *argument) {
  end_call *call = argument;
  return tarni_port_capture_end(conform_port, call->stream, &call->graph);
}

/* Only a relaxed capture may be ended by a thread that did not begin it. */
static void end_by_another_thread(void) {
  const tarn_status want[] = {TARN_CAPTURE, TARN_CAPTURE, TARN_OK};
  for (int mode = 0; mode < 3; mode++) {
    fork_scene scene;
    if (!fork_set_up(&scene)) {
      return;
    }
    end_call call = {scene.origin, &scene};
    CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, (tarni_capture_mode)mode));
    CHECK_OK(tarni_port_fill(conform_port, scene.block, 1, FORK_BYTES, scene.origin));
    CHECK_STATUS(conform_on_thread(end_by_thread, &call), want[mode]);
    CHECK_EQ(call.graph != NULL, want[mode] == TARN_OK);
    if (call.graph != NULL) {
      (void)tarni_port_graph_destroy(conform_port, call.graph, NULL);
    } else {
      end_capture_anyhow(scene.origin);
    }
    CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
    fork_take_down(&scene);
    conform_forgive();
  }
}

static void begin_where_it_is_not_allowed(void) {
  fork_scene scene;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK(conform_fails(tarni_port_capture_begin(conform_port, NULL, TARNI_CAPTURE_RELAXED)));
  CHECK(conform_fails(
      tarni_port_capture_begin(conform_port, TARNI_STREAM_LEGACY, TARNI_CAPTURE_RELAXED)));
  CHECK_EQ(state_of(NULL).status, TARNI_CAPTURE_NONE);
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED));
  CHECK(conform_fails(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED)));
  CHECK(state_of(scene.origin).status != TARNI_CAPTURE_NONE);
  end_capture_anyhow(scene.origin);
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
  fork_take_down(&scene);
  conform_forgive();
}

/* An event recorded in a capture stands for a place in the graph, not for anything that happens. */
static void captured_event(void) {
  fork_scene scene;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
  CHECK_STATUS(tarni_port_event_query(conform_port, scene.fork), TARN_CAPTURE);
  end_capture_anyhow(scene.origin);
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
  /* Recorded anew outside, it is an ordinary event again. */
  CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
  CHECK_OK(tarni_port_event_sync(conform_port, scene.fork));
  CHECK_OK(tarni_port_event_query(conform_port, scene.fork));
  fork_take_down(&scene);
  conform_forgive();
}

static tarn_status record_on_thread(void *argument) {
  const fork_scene *scene = argument;
  return tarni_port_event_record(conform_port, scene->fork, scene->origin);
}

/* Another thread records an event on a stream that is being captured: the capture is as it was
 * without. Once it has ended the event stands for nothing, which harms nobody. */
static void event_of_another_thread(void) {
  for (int mode = 0; mode < 3; mode++) {
    fork_scene scene;
    tarni_graph graph;
    if (!fork_set_up(&scene)) {
      return;
    }
    /* What it stood for before is forgotten. */
    CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.branch));
    CHECK_OK(tarni_port_event_sync(conform_port, scene.fork));
    CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, (tarni_capture_mode)mode));
    CHECK_OK(conform_on_thread(record_on_thread, &scene));
    CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_ACTIVE);
    CHECK_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
    CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
    CHECK_STATUS(tarni_port_event_query(conform_port, scene.fork), TARN_INVALID);
    CHECK_STATUS(tarni_port_event_sync(conform_port, scene.fork), TARN_INVALID);
    CHECK_STATUS(tarni_port_event_wait(conform_port, scene.branch, scene.fork), TARN_INVALID);
    CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_NONE);
    CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
    CHECK_OK(tarni_port_event_wait(conform_port, scene.branch, scene.fork));
    CHECK_OK(tarni_port_event_sync(conform_port, scene.fork));
    fork_take_down(&scene);
    conform_forgive();
  }
}

/* The same where the capture was broken before it ended. */
static void event_of_a_broken_capture(void) {
  fork_scene scene;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.branch));
  CHECK_OK(tarni_port_event_sync(conform_port, scene.fork));
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
  CHECK_STATUS(tarni_port_stream_query(conform_port, scene.origin), TARN_CAPTURE);
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_INVALIDATED);
  CHECK_STATUS(tarni_port_event_record(conform_port, scene.join, scene.origin), TARN_CAPTURE);
  end_capture_anyhow(scene.origin);
  CHECK_STATUS(tarni_port_event_query(conform_port, scene.fork), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_wait(conform_port, scene.branch, scene.fork), TARN_INVALID);
  CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_NONE);
  fork_take_down(&scene);
  conform_forgive();
}

static void two_captures_do_not_merge(void) {
  fork_scene scene;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.branch, TARNI_CAPTURE_RELAXED));
  CHECK(state_of(scene.origin).id != state_of(scene.branch).id);
  CHECK_OK(tarni_port_event_record(conform_port, scene.fork, scene.origin));
  CHECK_STATUS(tarni_port_event_wait(conform_port, scene.branch, scene.fork), TARN_CAPTURE);
  CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_INVALIDATED);
  end_capture_anyhow(scene.branch);
  end_capture_anyhow(scene.origin);
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_NONE);
  CHECK_EQ(state_of(scene.branch).status, TARNI_CAPTURE_NONE);
  fork_take_down(&scene);
  conform_forgive();
}

/* Two captures at once, one a thread's own each, know nothing of each other. */
static tarn_status capture_on_thread(void *argument) {
  fork_scene *scene = argument;
  tarni_graph graph;
  tarni_graph_exec exec;
  if (tarni_port_capture_begin(conform_port, scene->branch, TARNI_CAPTURE_THREAD_LOCAL) !=
          TARN_OK ||
      tarni_port_fill(conform_port, scene->block, 0x44, FORK_BYTES, scene->branch) != TARN_OK ||
      tarni_port_capture_end(conform_port, scene->branch, &graph) != TARN_OK ||
      tarni_port_graph_instantiate(conform_port, graph, &exec) != TARN_OK ||
      tarni_port_graph_launch(conform_port, exec, scene->branch) != TARN_OK ||
      tarni_port_graph_destroy(conform_port, graph, exec) != TARN_OK) {
    return tarn_last_error(NULL);
  }
  return tarni_port_stream_sync(conform_port, scene->branch);
}

static void two_captures_at_once(void) {
  fork_scene scene;
  tarni_graph graph;
  if (!fork_set_up(&scene)) {
    return;
  }
  CHECK_OK(tarni_port_capture_begin(conform_port, scene.origin, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_OK(conform_on_thread(capture_on_thread, &scene));
  CHECK_EQ(state_of(scene.origin).status, TARNI_CAPTURE_ACTIVE);
  CHECK_OK(tarni_port_capture_end(conform_port, scene.origin, &graph));
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
  CHECK_EQ(conform_device_differ_value(scene.block, FORK_BYTES, 0x44), 0);
  fork_take_down(&scene);
}

static const test_case capture_cases[] = {
    {"capture: state and identity", state_and_identity},
    {"capture: captured work does not run", captured_work_does_not_run},
    {"capture: fork and join", fork_and_join},
    {"capture: order of nodes", order_of_nodes},
    {"capture: a branch that is not joined", branch_that_is_not_joined},
    {"capture: a branch that goes", branch_that_goes},
    {"capture: end on the wrong stream", end_on_the_wrong_stream},
    {"capture: end by another thread", end_by_another_thread},
    {"capture: begin where it is not allowed", begin_where_it_is_not_allowed},
    {"capture: a captured event", captured_event},
    {"capture: an event of another thread", event_of_another_thread},
    {"capture: an event of a broken capture", event_of_a_broken_capture},
    {"capture: two captures do not merge", two_captures_do_not_merge},
    {"capture: two captures at once", two_captures_at_once},
};
CONFORM_TABLE(capture, capture_cases)
