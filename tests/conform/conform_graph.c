/* SPDX-License-Identifier: MIT
 *
 * Conformance: graphs, instantiated, launched again and again, destroyed early. */
#include <string.h>

#include "conform/conform.h"

enum { GRAPH_BYTES = CONFORM_PINNED_BYTES };

typedef struct graph_scene {
  tarn_stream stream;
  tarn_ptr block;
  tarni_graph graph;
  tarni_graph_exec exec;
} graph_scene;

/* A graph that copies pinned memory a to the device, and the device's to b. */
static bool graph_set_up(graph_scene *scene) {
  const tarn_ptr input = (uintptr_t)conform_pinned_a, output = (uintptr_t)conform_pinned_b;
  return CHECK_OK(tarni_port_stream_create(conform_port, &scene->stream)) &&
         CHECK_OK(tarni_port_plain_alloc(conform_port, GRAPH_BYTES, &scene->block)) &&
         CHECK_OK(
             tarni_port_capture_begin(conform_port, scene->stream, TARNI_CAPTURE_THREAD_LOCAL)) &&
         CHECK_OK(tarni_port_copy(conform_port, scene->block, input, GRAPH_BYTES, scene->stream)) &&
         CHECK_OK(tarni_port_fill(conform_port, scene->block, 0x99, 16, scene->stream)) &&
         CHECK_OK(
             tarni_port_copy(conform_port, output, scene->block, GRAPH_BYTES, scene->stream)) &&
         CHECK_OK(tarni_port_capture_end(conform_port, scene->stream, &scene->graph)) &&
         CHECK_OK(tarni_port_graph_instantiate(conform_port, scene->graph, &scene->exec));
}

static void graph_take_down(graph_scene *scene) {
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->stream));
  CHECK_OK(tarni_port_graph_destroy(conform_port, scene->graph, scene->exec));
  CHECK_OK(tarni_port_plain_free(conform_port, scene->block));
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->stream));
}

/* What the graph makes of the input with this seed. */
static uint64_t output_wrong_bytes(uint64_t seed) {
  const uint64_t n_wrong = conform_differ_value(conform_pinned_b, 16, 0x99);
  conform_pattern(conform_pinned_b, 16, seed);
  return n_wrong + conform_differ(conform_pinned_b, GRAPH_BYTES, seed);
}

static void replayed_with_new_input(void) {
  graph_scene scene;
  if (!graph_set_up(&scene)) {
    return;
  }
  for (uint64_t seed = 1; seed <= 4; seed++) {
    conform_pattern(conform_pinned_a, GRAPH_BYTES, seed);
    memset(conform_pinned_b, 0, GRAPH_BYTES);
    CHECK_OK(tarni_port_graph_launch(conform_port, scene.exec, scene.stream));
    CHECK_OK(tarni_port_stream_sync(conform_port, scene.stream));
    CHECK_EQ(output_wrong_bytes(seed), 0);
  }
  graph_take_down(&scene);
}

/* A launch is work of its stream: held with it, and not waited for. */
static void launch_is_in_stream_order(void) {
  graph_scene scene;
  if (!graph_set_up(&scene)) {
    return;
  }
  memset(conform_pinned_b, 0, GRAPH_BYTES);
  conform_gate *gate = conform_gate_close(scene.stream);
  CHECK_OK(tarni_port_graph_launch(conform_port, scene.exec, scene.stream));
  CHECK_STATUS(tarni_port_stream_query(conform_port, scene.stream), TARN_NOT_READY);
  /* The input is read when the stream gets there. */
  conform_pattern(conform_pinned_a, GRAPH_BYTES, 7);
  CHECK_EQ(conform_differ_value(conform_pinned_b, GRAPH_BYTES, 0), 0);
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.stream));
  CHECK_EQ(output_wrong_bytes(7), 0);
  graph_take_down(&scene);
}

/* Each launch moves the content one block on, so the number of launches can be told. */
static void launched_back_to_back(void) {
  enum { N = 5, SIZE = 4096 };
  const uint64_t whole = (uint64_t)SIZE * (N + 1);
  tarn_stream stream;
  tarn_ptr blocks;
  tarni_graph graph;
  tarni_graph_exec exec;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, whole, &blocks));
  REQUIRE_OK(tarni_port_fill_sync(conform_port, blocks, 0, whole));
  REQUIRE_OK(tarni_port_fill_sync(conform_port, blocks, 0xab, SIZE));
  REQUIRE_OK(tarni_port_capture_begin(conform_port, stream, TARNI_CAPTURE_GLOBAL));
  for (uint64_t i = N; i > 0; i--) {
    CHECK_OK(
        tarni_port_copy(conform_port, blocks + i * SIZE, blocks + (i - 1) * SIZE, SIZE, stream));
  }
  REQUIRE_OK(tarni_port_capture_end(conform_port, stream, &graph));
  REQUIRE_OK(tarni_port_graph_instantiate(conform_port, graph, &exec));
  for (int i = 0; i < N - 1; i++) {
    CHECK_OK(tarni_port_graph_launch(conform_port, exec, stream));
  }
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(conform_device_differ_value(blocks, whole - SIZE, 0xab), 0);
  CHECK_EQ(conform_device_differ_value(blocks + whole - SIZE, SIZE, 0), 0);
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, exec));
  CHECK_OK(tarni_port_plain_free(conform_port, blocks));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void destroyed_while_launched(void) {
  graph_scene scene;
  if (!graph_set_up(&scene)) {
    return;
  }
  conform_pattern(conform_pinned_a, GRAPH_BYTES, 9);
  memset(conform_pinned_b, 0, GRAPH_BYTES);
  conform_gate *gate = conform_gate_close(scene.stream);
  CHECK_OK(tarni_port_graph_launch(conform_port, scene.exec, scene.stream));
  CHECK_OK(tarni_port_graph_destroy(conform_port, scene.graph, scene.exec));
  scene.graph = NULL;
  scene.exec = NULL;
  CHECK(!conform_gate_is_open(gate));
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.stream));
  CHECK_EQ(output_wrong_bytes(9), 0);
  graph_take_down(&scene);
}

/* The graph is a plan; what was instantiated from it lives on its own. */
static void exec_outlives_graph(void) {
  graph_scene scene;
  tarni_graph_exec second;
  if (!graph_set_up(&scene)) {
    return;
  }
  CHECK_OK(tarni_port_graph_instantiate(conform_port, scene.graph, &second));
  CHECK(second != scene.exec);
  CHECK_OK(tarni_port_graph_destroy(conform_port, scene.graph, scene.exec));
  scene.graph = NULL;
  scene.exec = second;
  conform_pattern(conform_pinned_a, GRAPH_BYTES, 11);
  CHECK_OK(tarni_port_graph_launch(conform_port, scene.exec, scene.stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.stream));
  CHECK_EQ(output_wrong_bytes(11), 0);
  graph_take_down(&scene);
}

static void words_in_a_graph(void) {
  tarn_stream stream;
  tarni_graph graph;
  tarni_graph_exec exec;
  uint64_t *cells = (uint64_t *)(void *)conform_pinned_a;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_capture_begin(conform_port, stream, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_OK(tarni_port_value_wait(conform_port, stream, &cells[0], 3));
  CHECK_OK(tarni_port_value_write(conform_port, stream, &cells[1], 4));
  REQUIRE_OK(tarni_port_capture_end(conform_port, stream, &graph));
  REQUIRE_OK(tarni_port_graph_instantiate(conform_port, graph, &exec));
  cells[0] = 3;
  cells[1] = 0;
  CHECK_OK(tarni_port_graph_launch(conform_port, exec, stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(cells[1], 4);
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, exec));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void empty_graph(void) {
  tarn_stream stream;
  tarni_graph graph;
  tarni_graph_exec exec;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_capture_begin(conform_port, stream, TARNI_CAPTURE_GLOBAL));
  REQUIRE_OK(tarni_port_capture_end(conform_port, stream, &graph));
  REQUIRE_OK(tarni_port_graph_instantiate(conform_port, graph, &exec));
  CHECK_OK(tarni_port_graph_launch(conform_port, exec, stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_OK(tarni_port_graph_destroy(conform_port, NULL, exec));
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, NULL));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static const test_case graph_cases[] = {
    {"graph: replayed with new input", replayed_with_new_input},
    {"graph: a launch is in stream order", launch_is_in_stream_order},
    {"graph: launched back to back", launched_back_to_back},
    {"graph: destroyed while launched", destroyed_while_launched},
    {"graph: what is instantiated outlives the graph", exec_outlives_graph},
    {"graph: words written and awaited", words_in_a_graph},
    {"graph: an empty one", empty_graph},
};
CONFORM_TABLE(graph, graph_cases)
