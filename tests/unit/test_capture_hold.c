/* SPDX-License-Identifier: MIT
 *
 * Blocks that are freed in a capture which has not made them: they stay until it has ended, or with
 * its graph. */
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20 };

static uint64_t held_blocks(tarn_graph *graph) {
  tarn_graph_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_graph_get_info(graph, &info));
  return info.held_blocks;
}

/* A block that is left of a capture whose graph is gone, or is there. */
static tarn_graph *leave_block(rig *r, rig_block *block, bool is_gone) {
  tarn_capture *capture = rig_capture_begin(r, NULL);
  CHECK_OK(rig_capture_alloc(r, 4 * MIB, r->streams[0], block));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r->streams[0]));
  CHECK_OK(tarn_stream_synchronize(r->device, r->streams[0]));
  if (is_gone) {
    CHECK_OK(tarn_graph_destroy(graph));
    graph = NULL;
  }
  return graph;
}

static tarn_capture *capture_and_free(rig *r, const rig_block *block, bool holds_freed,
                                      tarn_arena *arena) {
  const tarn_capture_config config = {.size = sizeof(config),
                                      .mode = TARN_CAPTURE_RELAXED,
                                      .holds_freed = holds_freed,
                                      .arena = arena};
  tarn_capture *capture = rig_capture_begin(r, &config);
  rig_touch(r, block, r->streams[0], false);
  CHECK_OK(tarn_free(r->heap, block->address, r->streams[0]));
  CHECK_STATUS(tarn_free(r->heap, block->address, r->streams[0]), TARN_DOUBLE_FREE);
  return capture;
}

/* Captured blocks go with the graph, too. */
static void with_the_graph(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  (void)leave_block(&r, &block, true);
  tarn_graph *graph = rig_capture_end(capture_and_free(&r, &block, true, NULL));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(held_blocks(graph), 1);
  CHECK_EQ(rig_stats(&r).captured_bytes, 4 * MIB);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_EQ(r.n_findings, 0);
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* The same in an arena of both. */
static void in_the_same_arena(void) {
  rig r;
  rig_block block, other;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_graph *first = leave_block(&r, &block, false);
  tarn_arena *arena = tarn_graph_arena(first);
  tarn_graph *second = rig_capture_end(capture_and_free(&r, &block, true, arena));
  CHECK_EQ(held_blocks(second), 1);
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &other));
  CHECK(other.address != block.address);
  CHECK_OK(tarn_free(r.heap, other.address, r.streams[0]));
  tarn_graph *third = rig_capture_end(capture);
  CHECK_OK(tarn_arena_sleep(arena, true)); /* it is all its own */
  CHECK_OK(tarn_arena_wake(arena));
  CHECK_OK(tarn_graph_destroy(second));
  CHECK_OK(tarn_graph_destroy(third));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &other));
  CHECK_EQ(other.address, block.address);
  CHECK_OK(tarn_free(r.heap, other.address, r.streams[0]));
  CHECK_OK(tarn_capture_abort(&capture));
  CHECK_OK(tarn_graph_destroy(first));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Nobody else has the place before the capture has ended, or been given up. */
static void until_the_end(bool is_aborted) {
  rig r;
  rig_block block, other;
  tarn_capture *second = NULL;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_graph *graph = leave_block(&r, &block, false);
  tarn_arena *arena = tarn_graph_arena(graph);
  const tarn_capture_config config = {
      .size = sizeof(config), .mode = TARN_CAPTURE_RELAXED, .arena = arena};
  tarn_capture *capture = capture_and_free(&r, &block, false, NULL);
  CHECK_STATUS(tarn_arena_sleep(arena, false), TARN_BUSY);
  CHECK_OK(tarn_capture_begin(r.heap, &config, r.streams[1], &second));
  CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[1], &other));
  CHECK(other.address != block.address);
  CHECK_OK(tarn_free(r.heap, other.address, r.streams[1]));
  CHECK_OK(tarn_capture_abort(&second));
  if (is_aborted) {
    CHECK_OK(tarn_capture_abort(&capture));
  } else {
    tarn_graph *ended = rig_capture_end(capture);
    CHECK_EQ(held_blocks(ended), 0);
    CHECK_OK(tarn_graph_destroy(ended));
  }
  CHECK_OK(tarn_capture_begin(r.heap, &config, r.streams[1], &second));
  CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[1], &other));
  CHECK_EQ(other.address, block.address);
  CHECK_OK(tarn_free(r.heap, other.address, r.streams[1]));
  CHECK_OK(tarn_capture_abort(&second));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void until_any_end(void) {
  until_the_end(false);
  until_the_end(true);
}

/* ---- Blocks of a heap that sleeps ---- */

enum { N_HELD = 6 };

static uint64_t size_of(int i) {
  return i % 2 == 0 ? 4 * MIB : 1000;
}

/* A graph that holds some of the blocks, among others that stay live. */
static tarn_graph *hold_blocks(rig *r, tarn_ptr blocks[N_HELD]) {
  tarni_port *port = (tarni_port *)r->device;
  const tarn_capture_config config = {.size = sizeof(config), .holds_freed = true};
  for (int i = 0; i < N_HELD; i++) {
    CHECK_OK(tarn_alloc(r->heap, size_of(i), r->streams[0], &blocks[i]));
    CHECK_OK(tarni_port_fill(port, blocks[i], (uint8_t)(i + 1), size_of(i), r->streams[0]));
  }
  CHECK_OK(tarn_use(r->heap, blocks[2], r->streams[1]));
  tarn_capture *capture = rig_capture_begin(r, &config);
  for (int i = 0; i < 4; i++) {
    const rig_block block = {.address = blocks[i], .bytes = size_of(i)};
    rig_touch(r, &block, r->streams[0], false); /* as weights are */
    CHECK_OK(tarn_free(r->heap, blocks[i], r->streams[0]));
  }
  return rig_capture_end(capture);
}

static void check_blocks(const rig *r, const tarn_ptr *blocks, int first) {
  CHECK_OK(tarn_stream_synchronize(r->device, r->streams[0]));
  for (int i = first; i < N_HELD; i++) {
    CHECK(rig_host_is((void *)(uintptr_t)blocks[i], (uint8_t)(i + 1), size_of(i)));
  }
}

static void over_a_sleep(void) {
  rig r;
  tarn_ptr blocks[N_HELD];
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_graph *graph = hold_blocks(&r, blocks);
  if (!r.has_buckets) { /* those do not sleep */
    CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
    CHECK_STATUS(tarn_graph_launch(graph, r.streams[0]), TARN_STATE);
    CHECK_OK(tarn_heap_wake(r.heap));
    check_blocks(&r, blocks, 0);
  }
  CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  if (!r.has_buckets) { /* it goes meanwhile, and what it held with it */
    CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
    CHECK_OK(tarn_graph_destroy(graph));
    graph = NULL;
    CHECK_OK(tarn_heap_wake(r.heap));
    check_blocks(&r, blocks, 4);
  }
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK(rig_is_sound(&r));
  for (int i = 4; i < N_HELD; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  rig_close(&r);
}

/* Arenas that sleep while a graph of another one holds a block of them. */
static void of_sleeping_arenas(void) {
  rig r;
  rig_block block;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 1));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  for (int i = 0; i < 2; i++) {
    tarn_capture *capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &block));
    tarn_graph *graph = rig_capture_end(capture);
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    CHECK_OK(i == 0 ? tarn_arena_sleep(arena, true) : TARN_OK); /* first, or when it is held */
    tarn_graph *holder = rig_capture_end(capture_and_free(&r, &block, true, NULL));
    if (i == 0) {
      CHECK_STATUS(tarn_graph_launch(holder, r.streams[0]), TARN_STATE);
      CHECK_HAS(tarn_last_message(), "another arena, which is asleep");
      CHECK_OK(tarn_arena_sleep(arena, true)); /* it is */
      CHECK_OK(tarn_arena_wake(arena));
    }
    CHECK_OK(tarn_graph_launch(holder, r.streams[0]));
    CHECK_STATUS(tarn_arena_sleep(arena, true), TARN_BUSY);
    CHECK_STATUS(tarn_arena_clear(arena), TARN_BUSY);
    CHECK_OK(tarn_graph_destroy(holder));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_OK(tarn_arena_sleep(arena, true)); /* the holder is gone and done */
    CHECK_OK(tarn_arena_wake(arena));
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK(rig_is_sound(&r));
  }
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

/* A block of a capture that goes on is freed in another one, whose graph holds it. */
static void of_a_capture_that_goes_on(void) {
  rig r;
  rig_block block, next;
  tarn_capture *holding = NULL;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  const tarn_capture_config relaxed = {.size = sizeof(relaxed), .mode = TARN_CAPTURE_RELAXED};
  const tarn_capture_config holds = {
      .size = sizeof(holds), .mode = TARN_CAPTURE_RELAXED, .holds_freed = true};
  tarn_capture *capture = rig_capture_begin(&r, &relaxed);
  CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_OK(tarn_capture_begin(r.heap, &holds, r.streams[1], &holding));
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[1]));
  CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &next));
  CHECK(next.address != block.address);
  CHECK_OK(tarn_free(r.heap, next.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  tarn_graph *holder = rig_capture_end(holding);
  CHECK_EQ(held_blocks(holder), 1);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK(rig_stats(&r).captured_bytes >= 4 * MIB); /* the holder has a part of it */
  CHECK_OK(tarn_graph_destroy(holder));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

static const test_case cases[] = {
    {"captured blocks, of a capture that goes on", of_a_capture_that_goes_on},
    {"captured blocks, of sleeping arenas", of_sleeping_arenas},
    {"captured blocks, with the graph", with_the_graph},
    {"captured blocks, in the same arena", in_the_same_arena},
    {"captured blocks, until the end", until_any_end},
    {"blocks of the heap, over a sleep", over_a_sleep},
};

TEST_MAIN(cases)
