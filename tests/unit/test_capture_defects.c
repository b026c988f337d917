/* SPDX-License-Identifier: MIT
 *
 * Mistakes that allocators have made around captures, one case each, and that they are not made
 * here. docs/parity.md says where each was found. */
#include <pthread.h>

#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20 };

static void *other_thread(void *user) {
  rig *r = user;
  rig_block a, b;
  CHECK_OK(rig_alloc(r, 1000, r->streams[1], &a));
  CHECK_OK(rig_alloc(r, 3 * MIB, r->streams[1], &b));
  CHECK_OK(rig_free(r, &a, r->streams[1]));
  CHECK_OK(rig_free(r, &b, r->streams[1]));
  CHECK_OK(tarn_stream_synchronize(r->device, r->streams[1])); /* done, not recorded */
  return NULL;
}

/* A capture is a stream's, not the process's: another thread gets memory of the heap, its frees
 * count, and what it launches runs. */
static void others_do_not_notice(void) {
  rig r;
  rig_block a;
  pthread_t thread;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 1000, r.streams[0], &a));
  const uint64_t captured = rig_stats(&r).captured_bytes;
  REQUIRE(pthread_create(&thread, NULL, other_thread, &r) == 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  const tarn_heap_stats stats = rig_stats(&r);
  CHECK_EQ(stats.captured_bytes, captured);
  CHECK_EQ(stats.allocations, 2);
  CHECK_EQ(stats.live_blocks, 0);
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  tarn_graph_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_graph_get_info(graph, &info));
  CHECK_EQ(info.allocations, 1);
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* Blocks that survive the capture go to the arena when they are freed: the heap never hands out
 * what replays overwrite. */
static void survivors_do_not_reach_the_heap(void) {
  rig r;
  rig_block kept, blocks[20];
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &kept));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_free(r.heap, kept.address, r.streams[0]));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &blocks[i]));
    CHECK(blocks[i].address + MIB <= kept.address || kept.address + MIB <= blocks[i].address);
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
  }
  CHECK_EQ(r.n_findings, 0);
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* A block from before that is freed inside is not lost. */
static void blocks_from_before_do_not_leak(void) {
  rig r;
  rig_block before;
  REQUIRE(rig_open(&r, "sim:16M", NULL, 1));
  for (int i = 0; i < 20; i++) { /* far more than the device has, if one were lost */
    CHECK_OK(rig_alloc(&r, 6 * MIB, r.streams[0], &before));
    tarn_capture *capture = rig_capture_begin(&r, NULL);
    CHECK_OK(rig_free(&r, &before, r.streams[0]));
    CHECK_EQ(rig_stats(&r).live_blocks, 0);
    CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A begin that fails and a capture that is given up leave nothing behind that is in the way. */
static void failures_do_not_freeze_the_heap(void) {
  rig r;
  rig_block a;
  tarn_arena *arena = NULL;
  tarn_capture *capture = NULL;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CAPTURE_BEGIN, 1, 1, 999));
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_DRIVER);
  CHECK(capture == NULL);
  for (int i = 0; i < 3; i++) {
    capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
    CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
    CHECK_OK(tarn_capture_abort(&capture));
  }
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &a));
  CHECK_OK(rig_free(&r, &a, r.streams[0]));
  const uint64_t calls = rig_calls(&r), misses = rig_stats(&r).misses;
  tarn_ptr block;
  for (int i = 0; i < 100; i++) { /* hits again: nobody asks the driver */
    CHECK_OK(tarn_alloc(r.heap, 1000, r.streams[0], &block));
    CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  }
  CHECK_EQ(rig_calls(&r), calls);
  CHECK_EQ(rig_stats(&r).misses, misses);
  CHECK_OK(tarn_arena_destroy(arena));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* An executable that the program made of the graph itself does not outlive the graph's memory, as
 * long as its launches are told. */
static void executables_do_not_outlive_the_memory(void) {
  rig r;
  rig_block a;
  tarni_graph_exec exec;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  tarni_port *port = (tarni_port *)r.device;
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarni_port_graph_instantiate(port, tarn_graph_handle(graph), &exec));
  CHECK_OK(tarni_port_graph_launch(port, exec, r.streams[1]));
  CHECK_OK(tarn_graph_launched(graph, r.streams[1]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK(rig_stats(&r).captured_bytes != 0); /* the launch is under way */
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  CHECK_OK(tarni_port_graph_destroy(port, NULL, exec));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* Out of memory inside a capture: an error, and nothing that would break it. */
static void shortage_does_not_break_the_capture(void) {
  rig r;
  rig_block cached, a, none;
  REQUIRE(rig_open(&r, "sim:32M", NULL, 2));
  for (int mode = 0; mode < 3; mode++) {
    CHECK_OK(rig_alloc(&r, 16 * MIB, r.streams[1], &cached));
    CHECK_OK(rig_free(&r, &cached, r.streams[1])); /* kept by the heap */
    const tarn_capture_config config = {.size = sizeof(config), .mode = (tarn_capture_mode)mode};
    tarn_capture *capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &a));
    CHECK_STATUS(rig_capture_alloc(&r, 24 * MIB, r.streams[0], &none), TARN_DEVICE_MEMORY);
    CHECK_HAS(tarn_last_message(), "reserve_bytes");
    CHECK_STATUS(rig_alloc(&r, 31 * MIB, r.streams[1], &none), TARN_DEVICE_MEMORY);
    CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
    CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Blocks that other streams use are not used again before those are done, inside and outside. */
static void other_streams_are_waited_for(void) {
  rig r;
  rig_block a, b;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  for (int is_captured = 0; is_captured < 2; is_captured++) {
    tarn_capture *capture = is_captured ? rig_capture_begin(&r, NULL) : NULL;
    CHECK_OK(is_captured ? rig_capture_alloc(&r, MIB, r.streams[0], &a)
                         : rig_alloc(&r, MIB, r.streams[0], &a));
    rig_order(&r, r.streams[0], r.streams[1]);
    rig_touch(&r, &a, r.streams[1], true);
    CHECK_OK(tarn_use(r.heap, a.address, r.streams[1]));
    const tarn_ptr address = a.address;
    CHECK_OK(is_captured ? tarn_free(r.heap, address, r.streams[0])
                         : rig_free(&r, &a, r.streams[0]));
    CHECK_OK(is_captured ? rig_capture_alloc(&r, MIB, r.streams[0], &b)
                         : rig_alloc(&r, MIB, r.streams[0], &b));
    CHECK(b.address != address);
    if (is_captured) {
      rig_order(&r, r.streams[1], r.streams[0]);
      CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
      tarn_graph *graph = rig_capture_end(capture);
      CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
      CHECK_OK(tarn_graph_destroy(graph));
    } else {
      CHECK_OK(rig_free(&r, &b, r.streams[0]));
    }
  }
  rig_close(&r);
}

/* A request that wraps around is refused, and a block is freed once and as what it is. */
static void sizes_do_not_wrap_around(void) {
  rig r;
  rig_block a, none;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  const tarn_capture_config config = {.size = sizeof(config), .placement = TARN_PLACE_MONOTONE};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, 300, r.streams[0], &a));
  for (uint64_t less = 0; less < 600; less++) {
    CHECK_STATUS(rig_capture_alloc(&r, UINT64_MAX - less, r.streams[0], &none), TARN_DEVICE_MEMORY);
  }
  CHECK_STATUS(tarn_free_sized(r.heap, a.address, 600, r.streams[0]), TARN_WRONG_SIZE);
  CHECK_STATUS(tarn_free_sized(r.heap, a.address, 100, r.streams[0]), TARN_WRONG_SIZE);
  CHECK_OK(tarn_free_sized(r.heap, a.address, 300, r.streams[0]));
  CHECK_STATUS(tarn_free(r.heap, a.address, r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  rig_close(&r);
}

/* Temporaries of a line need their peak, not their sum; the arena grows, and tells how far. */
static void lines_need_their_peak(void) {
  rig r;
  rig_block last, next;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &last));
  for (int i = 0; i < 200; i++) {
    CHECK_OK(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &next));
    CHECK_OK(tarn_free(r.heap, last.address, r.streams[0]));
    last = next;
  }
  CHECK_OK(tarn_free(r.heap, last.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  tarn_arena_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_arena_get_info(tarn_graph_arena(graph), &info));
  CHECK_EQ(info.alloc_bytes, 201 * 4 * (uint64_t)MIB);
  CHECK_EQ(info.high_water_bytes, 8 * MIB);
  CHECK_EQ(info.held_bytes, 8 * MIB);
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

static const test_case cases[] = {
    {"others do not notice", others_do_not_notice},
    {"survivors do not reach the heap", survivors_do_not_reach_the_heap},
    {"blocks from before do not leak", blocks_from_before_do_not_leak},
    {"failures do not freeze the heap", failures_do_not_freeze_the_heap},
    {"executables do not outlive the memory", executables_do_not_outlive_the_memory},
    {"shortage does not break the capture", shortage_does_not_break_the_capture},
    {"other streams are waited for", other_streams_are_waited_for},
    {"sizes do not wrap around", sizes_do_not_wrap_around},
    {"lines need their peak", lines_need_their_peak},
};

TEST_MAIN(cases)
