/* SPDX-License-Identifier: MIT
 *
 * Work that uses memory of captures and that no ticket of the heap stands for: a launch that could
 * not be noted, a stream that the heap had not heard of. Nothing goes before it is complete. */
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20 };

/* A graph that the program launches itself, which the heap could not note. */
static tarn_graph *launch_untold(rig *r, tarni_graph_exec *exec) {
  rig_block block;
  tarni_port *port = (tarni_port *)r->device;
  tarn_capture *capture = rig_capture_begin(r, NULL);
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &block));
  CHECK_OK(tarn_free(r->heap, block.address, r->streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarni_port_graph_instantiate(port, tarn_graph_handle(graph), exec));
  CHECK_OK(tarni_port_graph_launch(port, *exec, r->streams[1]));
  CHECK_OK(tarn_sim_fail(r->device, TARN_CALL_STREAM_ID, 1, 1, 999));
  CHECK_STATUS(tarn_graph_launched(graph, r->streams[1]), TARN_DRIVER);
  return graph;
}

static void destroy_heap(rig *r) {
  uint64_t n_live;
  CHECK_OK(tarn_heap_destroy(r->heap, &n_live));
  CHECK_EQ(n_live, 0);
  CHECK_EQ(r->n_findings, 0);
  r->heap = NULL;
}

static void heap_goes_after_a_launch(void) {
  rig r;
  tarni_graph_exec exec = NULL;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  CHECK_OK(tarn_graph_destroy(launch_untold(&r, &exec)));
  CHECK(rig_stats(&r).captured_bytes != 0); /* it waits */
  destroy_heap(&r);
  CHECK_OK(tarni_port_graph_destroy((tarni_port *)r.device, NULL, exec));
  rig_close(&r);
}

static void arena_sleeps_after_a_launch(void) {
  rig r;
  tarni_graph_exec exec = NULL;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  tarn_graph *graph = launch_untold(&r, &exec);
  CHECK_OK(tarn_arena_sleep(tarn_graph_arena(graph), false));
  CHECK_EQ(r.n_findings, 0);
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarni_port_graph_destroy((tarni_port *)r.device, NULL, exec));
  rig_close(&r);
}

/* A captured block that another stream has used, and frees inside a capture that it has joined. */
static void free_unheard(rig *r) {
  rig_block block, other;
  tarn_capture *capture = rig_capture_begin(r, NULL);
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &block));
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &other));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r->streams[0]));
  rig_order(r, r->streams[0], r->streams[1]);
  rig_touch(r, &other, r->streams[1], false);
  CHECK_OK(tarn_free(r->heap, other.address, r->streams[1]));
  rig_order(r, r->streams[0], r->streams[2]);
  rig_touch(r, &block, r->streams[2], false);
  const tarn_capture_config config = {.size = sizeof(config), .mode = TARN_CAPTURE_RELAXED};
  capture = rig_capture_begin(r, &config);
  rig_order(r, r->streams[0], r->streams[2]);
  CHECK_OK(tarn_free(r->heap, block.address, r->streams[2]));
  rig_order(r, r->streams[2], r->streams[0]);
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_OK(tarn_graph_destroy(graph));
}

static void heap_goes_after_an_unheard_stream(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 3));
  free_unheard(&r);
  destroy_heap(&r);
  rig_close(&r);
}

static void one_trim_is_enough(void) {
  int n = 2; /* the second heap does not ask whether fences are complete */
  for (int i = 0; i < n; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .is_deterministic = i == 1};
    rig r;
    REQUIRE(rig_open(&r, "sim:1G,order=lazy", &config, 3));
    n = r.has_buckets ? 1 : 2; /* those always ask */
    free_unheard(&r);
    CHECK(rig_stats(&r).captured_bytes != 0); /* the graph is not done, nor is the stream known */
    CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
    CHECK_EQ(rig_stats(&r).captured_bytes, 0);
    rig_close(&r);
  }
}

static tarn_capture *adopt(rig *r) {
  const tarn_capture_config config = {
      .size = sizeof(config), .mode = TARN_CAPTURE_RELAXED, .is_adopted = true};
  CHECK_OK(tarni_port_capture_begin((tarni_port *)r->device, r->streams[0], TARNI_CAPTURE_RELAXED));
  return rig_capture_begin(r, &config);
}

/* Gives an adopted capture up, and only then ends it in the driver. */
static void abort_adopted(rig *r, tarn_capture *capture) {
  tarni_port *port = (tarni_port *)r->device;
  tarni_graph handle = NULL;
  CHECK_OK(tarn_capture_abort(&capture));
  CHECK_OK(tarni_port_capture_end(port, r->streams[0], &handle));
  CHECK_OK(tarni_port_graph_destroy(port, handle, NULL));
}

/* A block from before, freed inside by a stream that the heap knows nothing of. */
static void heap_goes_after_a_capture(void) {
  rig r;
  rig_block before;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &before));
  rig_order(&r, r.streams[0], r.streams[1]);
  rig_touch(&r, &before, r.streams[1], true);
  tarn_capture *capture = adopt(&r);
  rig_order(&r, r.streams[0], r.streams[1]);
  CHECK_OK(rig_free(&r, &before, r.streams[1]));
  rig_order(&r, r.streams[1], r.streams[0]);
  abort_adopted(&r, capture);
  destroy_heap(&r);
  rig_close(&r);
}

/* What was freed in a capture comes back when it can, also where there is no arena any more. */
static void freed_blocks_are_looked_for(void) {
  rig r;
  rig_block before, again;
  REQUIRE(rig_open(&r, "sim:16M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[0], &before));
  tarn_capture *capture = adopt(&r);
  CHECK_OK(rig_free(&r, &before, r.streams[0]));
  abort_adopted(&r, capture);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).pending_bytes, 0);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[0], &before));
  capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_free(&r, &before, r.streams[0]));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_STREAM_ID, 1, 1, 999));
  CHECK_OK(tarn_capture_abort(&capture));
  CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[0], &again)); /* a shortage looks, too */
  CHECK_OK(rig_free(&r, &again, r.streams[0]));
  CHECK_OK(tarn_heap_reset(r.heap));
  rig_close(&r);
}

/* Ends the driver's capture, retires and destroys the stream that has joined it, and makes another
 * one that has its handle. */
static void replace_stream(rig *r, tarni_graph *handle) {
  tarn_stream old = r->streams[1], made[64];
  int n = 0;
  CHECK_OK(tarni_port_capture_end((tarni_port *)r->device, r->streams[0], handle));
  CHECK_OK(tarn_stream_retire(r->heap, old));
  CHECK_OK(tarn_stream_destroy(r->device, old));
  CHECK_OK(tarn_sim_progress(r->device, UINT64_MAX)); /* so that it can be used again */
  do {
    CHECK_OK(tarn_stream_create(r->device, &made[n]));
  } while (made[n] != old && ++n < 64);
  CHECK(n < 64);
  for (int i = 0; i < n; i++) {
    CHECK_OK(tarn_stream_destroy(r->device, made[i]));
  }
}

/* A stream goes between the driver's end of an adopted capture and tarn's: what it freed inside
 * does not wait for the one that has its handle next. */
static void stream_goes_before_the_end(bool holds_freed) {
  rig r;
  rig_block before, again;
  tarni_graph handle = NULL;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &before));
  rig_order(&r, r.streams[0], r.streams[1]);
  rig_touch(&r, &before, r.streams[1], true);
  const tarn_capture_config config = {.size = sizeof(config),
                                      .mode = TARN_CAPTURE_RELAXED,
                                      .is_adopted = true,
                                      .holds_freed = holds_freed};
  CHECK_OK(tarni_port_capture_begin((tarni_port *)r.device, r.streams[0], TARNI_CAPTURE_RELAXED));
  tarn_capture *capture = rig_capture_begin(&r, &config);
  rig_order(&r, r.streams[0], r.streams[1]);
  CHECK_OK(rig_free(&r, &before, r.streams[1]));
  CHECK_STATUS(tarn_stream_retire(r.heap, r.streams[1]), TARN_CAPTURE);
  rig_order(&r, r.streams[1], r.streams[0]);
  replace_stream(&r, &handle);
  tarn_graph *graph = rig_capture_end(capture);
  tarn_graph_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_graph_get_info(graph, &info));
  CHECK_EQ(info.held_blocks, holds_freed);
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[1], &again));
  CHECK_OK(rig_free(&r, &again, r.streams[1]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_OK(tarni_port_graph_destroy((tarni_port *)r.device, handle, NULL));
  rig_close(&r);
}

static void streams_that_go(void) {
  stream_goes_before_the_end(false);
  stream_goes_before_the_end(true);
}

/* A captured block that a stream has used before it joined a later capture, and names there: its
 * memory does not go before that work is complete. */
static void used_inside_by_a_busy_stream(void) {
  for (int is_known = 0; is_known < 2; is_known++) {
    const tarn_capture_config relaxed = {.size = sizeof(relaxed), .mode = TARN_CAPTURE_RELAXED};
    rig r;
    rig_block block, known;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
    tarn_capture *capture = rig_capture_begin(&r, NULL);
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
    tarn_graph *graph = rig_capture_end(capture);
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    if (is_known == 1) {
      CHECK_OK(rig_alloc(&r, 256, r.streams[1], &known));
      CHECK_OK(rig_free(&r, &known, r.streams[1]));
    }
    rig_order(&r, r.streams[0], r.streams[1]);
    rig_touch(&r, &block, r.streams[1], false);
    capture = rig_capture_begin(&r, &relaxed);
    rig_order(&r, r.streams[0], r.streams[1]);
    CHECK_OK(tarn_use(r.heap, block.address, r.streams[1]));
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[2]));
    rig_order(&r, r.streams[1], r.streams[0]);
    CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
    CHECK_EQ(rig_stats(&r).captured_bytes, 0);
    rig_close(&r);
  }
}

/* An adopted capture that holds a block of the heap; one stream frees it, and all are joined. */
static tarn_capture *adopt_and_free(rig *r, tarni_graph *handle) {
  rig_block block, inside;
  tarni_port *port = (tarni_port *)r->device;
  CHECK_OK(rig_alloc(r, 4 * MIB, r->streams[0], &block));
  CHECK_OK(tarni_port_capture_begin(port, r->streams[0], TARNI_CAPTURE_RELAXED));
  const tarn_capture_config config = {.size = sizeof(config),
                                      .mode = TARN_CAPTURE_RELAXED,
                                      .is_adopted = true,
                                      .holds_freed = true};
  tarn_capture *capture = rig_capture_begin(r, &config);
  CHECK_OK(rig_capture_alloc(r, 4 * MIB, r->streams[0], &inside));
  CHECK_OK(tarn_free(r->heap, inside.address, r->streams[0]));
  rig_order(r, r->streams[0], r->streams[1]);
  CHECK_OK(rig_free(r, &block, r->streams[1]));
  rig_order(r, r->streams[1], r->streams[0]);
  CHECK_OK(tarni_port_capture_end(port, r->streams[0], handle));
  return capture;
}

/* The launch is refused, but it has happened. */
static void told_while_the_heap_sleeps(void) {
  rig r;
  tarni_graph handle = NULL;
  tarni_graph_exec exec = NULL;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  tarni_port *port = (tarni_port *)r.device;
  tarn_graph *graph = rig_capture_end(adopt_and_free(&r, &handle));
  if (!r.has_buckets) { /* others do not sleep */
    CHECK_OK(tarni_port_graph_instantiate(port, handle, &exec));
    CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
    CHECK_OK(tarni_port_graph_launch(port, exec, r.streams[0]));
    CHECK_STATUS(tarn_graph_launched(graph, r.streams[0]), TARN_STATE);
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_EQ(r.n_findings, 0);
    CHECK_OK(tarn_heap_wake(r.heap));
    graph = NULL;
  }
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarni_port_graph_destroy(port, handle, exec));
  rig_close(&r);
}

/* What a stream has left to a graph that is not there yet is where the check looks. */
static void sound_after_a_stream_has_gone(void) {
  rig r;
  tarni_graph handle = NULL;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_capture *capture = adopt_and_free(&r, &handle);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[1]));
  CHECK(rig_is_sound(&r));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarni_port_graph_destroy((tarni_port *)r.device, handle, NULL));
  rig_close(&r);
}

static const test_case cases[] = {
    {"told while the heap sleeps", told_while_the_heap_sleeps},
    {"sound after a stream has gone", sound_after_a_stream_has_gone},
    {"heap goes after a launch", heap_goes_after_a_launch},
    {"arena sleeps after a launch", arena_sleeps_after_a_launch},
    {"heap goes after an unheard stream", heap_goes_after_an_unheard_stream},
    {"one trim is enough", one_trim_is_enough},
    {"heap goes after a capture", heap_goes_after_a_capture},
    {"freed blocks are looked for", freed_blocks_are_looked_for},
    {"streams that go before the end", streams_that_go},
    {"used inside by a busy stream", used_inside_by_a_busy_stream},
};

TEST_MAIN(cases)
