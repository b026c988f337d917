/* SPDX-License-Identifier: MIT
 *
 * Launches while streams that a graph has to wait for are being captured: no fence can be recorded
 * on those, so it must have been before, or not be needed. */
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20 };

/* A heap that knows the streams, and work on them that is not complete. */
static bool open_busy(rig *r, rig_block *blocks) {
  if (!rig_open(r, "sim:1G,order=lazy", NULL, 3)) {
    return false;
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(r, MIB, r->streams[i], &blocks[i]));
  }
  return !test_case_failed();
}

static void close_busy(rig *r, rig_block *blocks) {
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[i]));
  }
  CHECK_OK(tarn_heap_trim(r->heap, UINT64_MAX));
  CHECK_EQ(rig_stats(r).captured_bytes, 0);
  CHECK(rig_is_sound(r));
  rig_close(r);
}

/* Captures work of streams 0 and 1, with a block that the second one frees. */
static tarn_capture *capture_fork(rig *r, const tarn_capture_config *config) {
  rig_block block;
  tarn_capture *capture = rig_capture_begin(r, config);
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &block));
  rig_order(r, r->streams[0], r->streams[1]);
  rig_touch(r, &block, r->streams[1], true);
  CHECK_OK(tarn_free(r->heap, block.address, r->streams[1]));
  return capture;
}

static tarn_graph *end_fork(rig *r, tarn_capture *capture) {
  rig_order(r, r->streams[1], r->streams[0]);
  return rig_capture_end(capture);
}

/* The stream that freed a block of the graph is in the next capture, or in one of the program's. */
static void freed_on_a_forked_stream(void) {
  static const tarn_capture_config relaxed = {.size = sizeof(relaxed),
                                              .mode = TARN_CAPTURE_RELAXED};
  for (int is_told = 0; is_told < 2 && !test_case_failed(); is_told++) {
    rig r;
    rig_block blocks[3];
    tarni_graph raw;
    REQUIRE(open_busy(&r, blocks));
    tarni_port *port = (tarni_port *)r.device;
    tarn_graph *graph = end_fork(&r, capture_fork(&r, &relaxed)), *next = NULL;
    tarn_capture *capture = NULL;
    if (is_told) {
      capture = capture_fork(&r, &relaxed);
    } else {
      CHECK_OK(tarni_port_capture_begin(port, r.streams[1], TARNI_CAPTURE_RELAXED));
    }
    CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
    CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
    if (is_told) {
      next = end_fork(&r, capture);
      CHECK_OK(tarn_graph_launch(next, r.streams[1]));
    } else {
      CHECK_OK(tarni_port_capture_end(port, r.streams[1], &raw));
      CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
    }
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_OK(tarn_graph_destroy(next));
    close_busy(&r, blocks);
  }
}

/* A graph is launched while another one is captured into the same arena, by tarn or by the
 * program: what that frees of its own concerns no graph before it is one. */
static void beside_a_capture_of_the_same_arena(void) {
  for (int is_adopted = 0; is_adopted < 2 && !test_case_failed(); is_adopted++) {
    rig r;
    rig_block blocks[3], block;
    tarn_arena *arena = NULL;
    tarni_graph raw = NULL;
    REQUIRE(open_busy(&r, blocks));
    tarni_port *port = (tarni_port *)r.device;
    CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
    tarn_capture_config config = {
        .size = sizeof(config), .mode = TARN_CAPTURE_RELAXED, .arena = arena};
    tarn_capture *capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, 2 * MIB, r.streams[0], &block));
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
    tarn_graph *old = rig_capture_end(capture), *graph = NULL;
    config.is_adopted = is_adopted != 0;
    if (is_adopted) {
      CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_RELAXED));
    }
    capture = capture_fork(&r, &config);
    CHECK_OK(tarn_graph_launch(old, r.streams[2]));
    rig_order(&r, r.streams[1], r.streams[0]);
    if (is_adopted) {
      CHECK_OK(tarni_port_capture_end(port, r.streams[0], &raw));
    }
    CHECK_OK(tarn_capture_end(&capture, &graph));
    CHECK_OK(tarn_graph_launch(old, r.streams[1]));
    if (!is_adopted) {
      CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
    }
    CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
    CHECK_OK(tarn_graph_destroy(old));
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_OK(tarn_arena_destroy(arena));
    close_busy(&r, blocks);
  }
}

/* The end of a capture with an arena of its own changes nothing for that of another arena. */
static void beside_the_end_of_another_capture(void) {
  const tarn_capture_config relaxed = {.size = sizeof(relaxed), .mode = TARN_CAPTURE_RELAXED};
  rig r;
  rig_block blocks[3];
  tarn_capture *other = NULL;
  REQUIRE(open_busy(&r, blocks));
  tarn_graph *graph = end_fork(&r, capture_fork(&r, &relaxed));
  tarn_capture_config shared = relaxed;
  shared.arena = tarn_graph_arena(graph);
  tarn_capture *capture = capture_fork(&r, &shared);
  CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
  CHECK_OK(tarn_capture_begin(r.heap, &relaxed, r.streams[2], &other));
  CHECK_OK(tarn_graph_destroy(rig_capture_end(other)));
  CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
  CHECK_OK(tarn_graph_destroy(end_fork(&r, capture)));
  CHECK_OK(tarn_graph_destroy(graph));
  close_busy(&r, blocks);
}

/* Blocks from before that go with the graph are no reason for its launches to wait. */
static void with_blocks_that_it_holds(void) {
  const tarn_capture_config config = {
      .size = sizeof(config), .mode = TARN_CAPTURE_RELAXED, .holds_freed = true};
  rig r;
  rig_block blocks[3], before, held;
  REQUIRE(open_busy(&r, blocks));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[1], &before));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[1], &held));
  tarn_capture *capture = capture_fork(&r, &config);
  CHECK_OK(rig_free(&r, &before, r.streams[1]));
  tarn_graph *graph = end_fork(&r, capture);
  CHECK_OK(tarn_sim_disown(r.device, held.address, held.bytes));
  CHECK_OK(tarn_graph_hold(graph, held.address, r.streams[1]));
  capture = capture_fork(&r, &config);
  CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
  CHECK_OK(tarn_graph_destroy(end_fork(&r, capture)));
  CHECK_OK(tarn_graph_destroy(graph));
  close_busy(&r, blocks);
}

/* A block of an earlier capture, which the stream has used outside of any, freed by it inside one:
 * its use cannot be waited for as long as that goes on, so nothing is launched that may overwrite
 * it, and then it is. */
static void what_cannot_be_waited_for(void) {
  rig r;
  rig_block blocks[3], output;
  tarn_arena *arena = NULL;
  REQUIRE(open_busy(&r, blocks));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {
      .size = sizeof(config), .mode = TARN_CAPTURE_RELAXED, .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &output));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  rig_touch(&r, &output, r.streams[1], true);
  capture = capture_fork(&r, &config);
  CHECK_OK(tarn_free(r.heap, output.address, r.streams[1]));
  CHECK_STATUS(tarn_graph_launch(graph, r.streams[2]), TARN_CAPTURE);
  tarn_graph *next = end_fork(&r, capture);
  CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
  CHECK_OK(tarn_graph_launch(next, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_graph_destroy(next));
  CHECK_OK(tarn_arena_destroy(arena));
  close_busy(&r, blocks);
}

/* A launch while the heap sleeps: the waking waits for it, and does not take it for complete. */
static void while_the_heap_sleeps(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  if (r.has_buckets) { /* it does not sleep */
    rig_close(&r);
    return;
  }
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP));
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  CHECK(rig_state(&r).pending_operations != 0);
  CHECK_OK(tarn_heap_wake(r.heap));
  tarn_graph_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_graph_get_info(graph, &info));
  CHECK(!info.is_idle || rig_state(&r).pending_operations == 0);
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_EQ(r.n_findings, 0);
  rig_close(&r);
}

static const test_case cases[] = {
    {"freed on a forked stream", freed_on_a_forked_stream},
    {"beside a capture of the same arena", beside_a_capture_of_the_same_arena},
    {"beside the end of another capture", beside_the_end_of_another_capture},
    {"with blocks that it holds", with_blocks_that_it_holds},
    {"what cannot be waited for", what_cannot_be_waited_for},
    {"while the heap sleeps", while_the_heap_sleeps},
};

TEST_MAIN(cases)
