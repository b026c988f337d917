/* SPDX-License-Identifier: MIT
 *
 * How much memory an arena has: what was made for nothing goes, and what is free is used again. */
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20 };

/* A capture that the driver does not begin leaves the arena as it was. */
static void captures_that_do_not_begin(void) {
  rig r;
  rig_block block;
  tarn_arena *arena = NULL;
  tarn_capture *capture = NULL;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  const uint64_t before = rig_stats(&r).captured_bytes;
  config.reserve_bytes = 32 * MIB;
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CAPTURE_BEGIN, 1, 1, 999));
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_DRIVER);
  CHECK_EQ(rig_stats(&r).captured_bytes, before);
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

/* Monotone captures begin where nothing lives any more, not where the last one ended. */
static void monotone_captures_of_freed_blocks(void) {
  rig r;
  rig_block block;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {
      .size = sizeof(config), .placement = TARN_PLACE_MONOTONE, .arena = arena};
  for (int i = 0; i < 100 && !test_case_failed(); i++) {
    tarn_capture *capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, 2 * MIB, r.streams[0], &block));
    CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[0])); /* an output, by who has read it */
  }
  tarn_arena_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_arena_get_info(arena, &info));
  CHECK_EQ(info.held_bytes, 2 * MIB);
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

/* A graph that is gone, and whose launches are complete, is in nobody's way. */
static void cleared_after_its_graphs(void) {
  rig r;
  rig_block block;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_STATUS(tarn_arena_clear(arena), TARN_BUSY);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarn_arena_clear(arena));
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

/* A heap that sleeps has nothing to trim: what is missing is the device's memory. */
static void reserved_while_the_heap_sleeps(void) {
  rig r;
  tarn_arena *arena = NULL;
  tarn_ptr plain = 0;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP));
  CHECK_OK(tarni_port_plain_alloc(port, 40 * MIB, &plain));
  const tarn_arena_config config = {.size = sizeof(config), .reserve_bytes = 32 * MIB};
  CHECK_STATUS(tarn_arena_create(r.heap, &config, &arena), TARN_DEVICE_MEMORY);
  CHECK_OK(tarni_port_plain_free(port, plain));
  CHECK_OK(tarn_arena_create(r.heap, &config, &arena));
  CHECK_OK(tarn_arena_destroy(arena));
  CHECK_OK(tarn_heap_wake(r.heap));
  rig_close(&r);
}

/* A limit counts for memory of the caller's, too. */
static void less_than_the_caller_has(void) {
  rig r;
  rig_block block;
  tarn_arena *arena = NULL;
  tarn_ptr large = 0, small = 0;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  const tarn_arena_config own = {
      .size = sizeof(own), .limit_bytes = MIB, .memory = block.address, .memory_bytes = 4 * MIB};
  CHECK_OK(tarn_arena_create(r.heap, &own, &arena));
  tarn_arena_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_arena_get_info(arena, &info));
  CHECK_EQ(info.limit_bytes, MIB);
  CHECK_EQ(info.held_bytes, MIB);
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_STATUS(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &large), TARN_DEVICE_MEMORY);
  CHECK_OK(tarn_alloc(r.heap, MIB, r.streams[0], &small));
  CHECK_OK(tarn_free(r.heap, small, r.streams[0]));
  CHECK_OK(tarn_capture_abort(&capture));
  CHECK_OK(tarn_arena_destroy(arena));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

/* A block of a capture that was given up is freed later, and the memory goes then. */
static void given_up_and_freed_later(void) {
  rig r;
  rig_block block;
  tarn_arena *arena = NULL;
  tarn_arena_info info = {.size = sizeof(info)};
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, 64 * MIB, r.streams[0], &block));
  CHECK_OK(tarn_capture_abort(&capture));
  CHECK_OK(tarn_arena_get_info(arena, &info));
  CHECK_EQ(info.held_bytes, 64 * MIB);
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_OK(tarn_arena_get_info(arena, &info));
  CHECK_EQ(info.held_bytes, 0);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

static const test_case cases[] = {
    {"given up and freed later", given_up_and_freed_later},
    {"captures that do not begin", captures_that_do_not_begin},
    {"monotone captures of freed blocks", monotone_captures_of_freed_blocks},
    {"cleared after its graphs", cleared_after_its_graphs},
    {"reserved while the heap sleeps", reserved_while_the_heap_sleeps},
    {"less than the caller has", less_than_the_caller_has},
};

TEST_MAIN(cases)
