/* SPDX-License-Identifier: MIT
 *
 * Captures and their arenas: where captured blocks go, what order lets them share memory, what
 * becomes of blocks from before and of blocks that outlive the capture, and how captures end. */
#include "tarn/capture.h"

#include <pthread.h>

#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static tarn_graph_info info_of(tarn_graph *graph) {
  tarn_graph_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_graph_get_info(graph, &info));
  return info;
}

static tarn_arena_info arena_of(tarn_graph *graph) {
  tarn_arena_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_arena_get_info(tarn_graph_arena(graph), &info));
  return info;
}

/* Replays a graph a few times; the oracle looks on. */
static void replay(rig *r, tarn_graph *graph) {
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_graph_launch(graph, r->streams[i % r->n_streams]));
  }
  CHECK_EQ(r->n_findings, 0);
}

static void finish(rig *r, tarn_graph *graph) {
  replay(r, graph);
  for (int i = 0; i < r->n_streams; i++) {
    CHECK_OK(tarn_stream_synchronize(r->device, r->streams[i]));
  }
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_trim(r->heap, UINT64_MAX)); /* waits for the launches */
  CHECK_EQ(rig_stats(r).captured_bytes, 0);
  CHECK(rig_is_sound(r));
  rig_close(r);
}

/* ---- One line ---- */

static void blocks_come_from_the_arena(void) {
  rig r;
  rig_block before, a, b;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  CHECK_OK(rig_alloc(&r, 100, r.streams[0], &before));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  tarn_capture *found = NULL;
  CHECK_OK(tarn_capture_find(r.heap, r.streams[0], &found));
  CHECK(found == capture);
  CHECK_OK(tarn_capture_find(r.heap, r.streams[1], &found));
  CHECK(found == NULL);
  CHECK_OK(rig_capture_alloc(&r, 100, r.streams[0], &a));
  CHECK_OK(rig_capture_alloc(&r, 5 * MIB, r.streams[0], &b));
  CHECK_EQ(b.address - a.address, 256);
  CHECK(rig_is_sound(&r));
  tarn_block_info block = {.size = sizeof(block)};
  CHECK_OK(tarn_block_get_info(r.heap, b.address + 77, &block));
  CHECK_EQ(block.address, b.address);
  CHECK_EQ(block.usable_bytes, 5 * MIB);
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  const tarn_graph_info info = info_of(graph);
  CHECK_EQ(info.allocations, 2);
  CHECK_EQ(info.alloc_bytes, 5 * MIB + 256);
  CHECK_EQ(info.peak_bytes, 5 * MIB + 256);
  CHECK_EQ(info.bytes, 5 * MIB + 256);
  CHECK(tarn_graph_handle(graph) != NULL);
  CHECK_EQ(arena_of(graph).live_blocks, 0);
  CHECK_EQ(arena_of(graph).held_bytes, 6 * MIB);
  CHECK_EQ(rig_stats(&r).captured_bytes, 6 * MIB);
  CHECK_OK(rig_free(&r, &before, r.streams[0]));
  finish(&r, graph);
}

/* On one branch, what is freed is used again at once: the peak, not the sum. */
static void one_branch_uses_memory_again(void) {
  rig r;
  rig_block blocks[20];
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_capture_alloc(&r, (uint64_t)(1 + i % 3) * MIB, r.streams[0], &blocks[i]));
    if (i >= 2) {
      rig_touch(&r, &blocks[i - 2], r.streams[0], false);
      CHECK_OK(tarn_free(r.heap, blocks[i - 2].address, r.streams[0]));
    }
  }
  tarn_graph *graph = rig_capture_end(capture);
  const tarn_graph_info info = info_of(graph);
  CHECK_EQ(info.allocations, 20);
  CHECK_EQ(info.peak_bytes, 6 * MIB);
  CHECK(info.bytes <= 8 * MIB);
  CHECK(info.alloc_bytes >= 38 * MIB);
  for (int i = 18; i < 20; i++) { /* outputs: freed after the capture */
    CHECK_OK(tarn_free(r.heap, blocks[i].address, r.streams[0]));
  }
  finish(&r, graph);
}

static void aligned_blocks(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  tarn_ptr blocks[12];
  for (int i = 0; i < 12; i++) {
    const uint64_t alignment = (uint64_t)512 << i;
    CHECK_OK(tarn_alloc_aligned(r.heap, 300, alignment, r.streams[0], &blocks[i]));
    CHECK_EQ(blocks[i] % alignment, 0);
  }
  for (int i = 0; i < 12; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  tarn_ptr none = 1;
  CHECK_OK(tarn_alloc(r.heap, 0, r.streams[0], &none));
  CHECK_EQ(none, 0);
  finish(&r, rig_capture_end(capture));
}

/* ---- Branches ---- */

/* Origin and branch are not ordered: what one frees the other does not get, until they join. */
static void branches_do_not_share(void) {
  rig r;
  rig_block a, b, c;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  const tarn_stream origin = r.streams[0], side = r.streams[1];
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, origin, &a));
  rig_order(&r, origin, side);
  rig_touch(&r, &a, origin, true);
  CHECK_OK(tarn_free(r.heap, a.address, origin));
  CHECK_OK(rig_capture_alloc(&r, MIB, side, &b));
  CHECK(b.address != a.address);
  CHECK_OK(rig_capture_alloc(&r, MIB, origin, &c)); /* the same branch: it may */
  CHECK_EQ(c.address, a.address);
  CHECK_OK(tarn_free(r.heap, c.address, origin));
  CHECK_OK(tarn_free(r.heap, b.address, side));
  rig_order(&r, side, origin);
  CHECK_OK(rig_capture_alloc(&r, 2 * MIB, origin, &c)); /* joined: both pieces, as one */
  CHECK_EQ(c.address, a.address);
  CHECK_OK(tarn_free(r.heap, c.address, origin));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_EQ(info_of(graph).bytes, 2 * MIB);
  finish(&r, graph);
}

/* What was freed before the fork belongs to both branches, and the first one takes it. */
static void memory_from_before_the_fork(void) {
  rig r;
  rig_block a, b;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 3));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 2 * MIB, r.streams[0], &a));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  rig_order(&r, r.streams[0], r.streams[1]);
  rig_order(&r, r.streams[0], r.streams[2]);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[1], &b));
  CHECK_EQ(b.address, a.address);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[2], &a));
  CHECK_EQ(a.address, b.address + MIB);
  rig_order(&r, r.streams[1], r.streams[0]);
  rig_order(&r, r.streams[2], r.streams[0]);
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  finish(&r, rig_capture_end(capture));
}

/* A block that two branches use is free when both are where they were at its freeing. */
static void uses_of_other_branches(void) {
  rig r;
  rig_block a, b;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  const tarn_stream origin = r.streams[0], side = r.streams[1];
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, origin, &a));
  rig_order(&r, origin, side);
  rig_touch(&r, &a, side, false);
  CHECK_OK(tarn_use(r.heap, a.address, side));
  CHECK_OK(tarn_use(r.heap, a.address, side));
  CHECK_OK(tarn_free(r.heap, a.address, origin));
  CHECK_OK(rig_capture_alloc(&r, MIB, origin, &b));
  CHECK(b.address != a.address);
  rig_order(&r, side, origin);
  CHECK_OK(tarn_free(r.heap, b.address, origin));
  CHECK_OK(rig_capture_alloc(&r, 2 * MIB, origin, &b));
  CHECK_EQ(b.address, a.address);
  CHECK_OK(tarn_free(r.heap, b.address, origin));
  finish(&r, rig_capture_end(capture));
}

/* A programmatic launch begins before what it follows is complete: no order for memory. */
static void programmatic_edges_are_no_order(void) {
  rig r;
  rig_block a, b, c;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  const tarn_stream stream = r.streams[0];
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, stream, &a));
  CHECK_OK(rig_capture_alloc(&r, 256, stream, &b));
  rig_touch(&r, &a, stream, true);
  rig_touch_early(&r, &b, stream); /* follows the use of a by a programmatic edge */
  CHECK_OK(tarn_free(r.heap, a.address, stream));
  CHECK_OK(rig_capture_alloc(&r, MIB, stream, &c));
  CHECK(c.address != a.address);
  CHECK_OK(tarn_free(r.heap, c.address, stream));
  CHECK_OK(tarn_free(r.heap, b.address, stream));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, stream));
  /* The kernels on b are a race of this test's own making. */
  CHECK_OK(tarn_stream_synchronize(r.device, stream));
  CHECK_EQ(r.n_findings, 1);
  r.n_findings = 0;
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* ---- Blocks from before ---- */

static uint64_t usable(const rig *r, const rig_block *block) {
  tarn_block_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_block_get_info(r->heap, block->address, &info));
  CHECK_EQ(info.address, block->address);
  return info.usable_bytes;
}

static void blocks_from_before_are_given_back_at_the_end(void) {
  rig r;
  rig_block small, large, shared, other;
  tarn_capture_config config = {.size = sizeof(config)};
  for (int i = 0; i < 2; i++) {
    REQUIRE(rig_open(&r, "sim:1G", NULL, 3));
    CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &small));
    CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &large));
    CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &shared));
    CHECK_OK(rig_alloc(&r, 1000, r.streams[2], &other));
    CHECK_OK(tarn_use(r.heap, shared.address, r.streams[1]));
    config.holds_freed = i != 0;
    tarn_capture *capture = rig_capture_begin(&r, &config);
    const tarn_heap_stats before = rig_stats(&r);
    const tarn_ptr address = small.address;
    const uint64_t of_shared = usable(&r, &shared);
    const uint64_t of_all = usable(&r, &small) + usable(&r, &large) + of_shared;
    CHECK_OK(rig_free(&r, &small, r.streams[0]));
    CHECK_OK(rig_free(&r, &large, r.streams[0]));
    CHECK_OK(rig_free(&r, &shared, r.streams[0]));
    CHECK_STATUS(tarn_free(r.heap, address, r.streams[0]), TARN_DOUBLE_FREE);
    CHECK_OK(rig_free(&r, &other, r.streams[2])); /* not captured: at once */
    tarn_heap_stats stats = rig_stats(&r);
    CHECK_EQ(stats.live_blocks, 0);
    CHECK_EQ(stats.pending_bytes - before.pending_bytes, of_all);
    CHECK(rig_is_sound(&r));
    tarn_graph *graph = rig_capture_end(capture);
    CHECK_EQ(info_of(graph).held_blocks, i != 0 ? 3 : 0);
    CHECK_EQ(rig_stats(&r).pending_bytes, i != 0 ? of_all : of_shared);
    CHECK(rig_is_sound(&r));
    CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &small));
    CHECK_OK(rig_free(&r, &small, r.streams[0]));
    finish(&r, graph);
  }
}

static void blocks_that_a_graph_holds(void) {
  rig r;
  rig_block small, large;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &small));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[1], &large));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  rig_touch(&r, &small, r.streams[0], true);
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_hold(graph, small.address, r.streams[0]));
  CHECK_OK(tarn_graph_hold(graph, large.address, r.streams[1]));
  CHECK_STATUS(tarn_graph_hold(graph, small.address, r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_STATUS(tarn_graph_hold(graph, large.address + 256, r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_STATUS(tarn_graph_hold(graph, 4096, r.streams[0]), TARN_FOREIGN);
  CHECK_EQ(info_of(graph).held_blocks, 2);
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK(rig_is_sound(&r));
  CHECK_STATUS(tarn_free(r.heap, small.address, r.streams[0]), TARN_DOUBLE_FREE);
  finish(&r, graph);
}

/* ---- Blocks that outlive the capture ---- */

static void wrong_frees_are_refused(void) {
  rig r;
  rig_block a;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 1000, r.streams[0], &a));
  CHECK_STATUS(tarn_free(r.heap, a.address + 256, r.streams[0]), TARN_INTERIOR);
  CHECK_STATUS(tarn_use(r.heap, a.address + 256, r.streams[0]), TARN_INTERIOR);
  CHECK_STATUS(tarn_free(r.heap, a.address + 4096, r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_OK(tarn_free_sized(r.heap, a.address, 1000, r.streams[0]));
  CHECK_STATUS(tarn_free(r.heap, a.address, r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_STATUS(tarn_use(r.heap, a.address, r.streams[0]), TARN_DOUBLE_FREE);
  tarn_block_info block = {.size = sizeof(block)};
  CHECK_STATUS(tarn_block_get_info(r.heap, a.address, &block), TARN_FOREIGN);
  finish(&r, rig_capture_end(capture));
}

/* The arena is there until the last of its blocks is freed, by whatever stream. */
static void blocks_outlive_their_graph(void) {
  rig r;
  rig_block a, b;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &b));
  tarn_graph *graph = rig_capture_end(capture);
  replay(&r, graph);
  CHECK_OK(tarn_graph_destroy(graph));
  rig_order(&r, r.streams[0], r.streams[1]);
  rig_touch(&r, &a, r.streams[1], false);
  CHECK(rig_stats(&r).captured_bytes >= 2 * MIB);
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[1]));
  CHECK(rig_stats(&r).captured_bytes >= 2 * MIB);
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* ---- Ends ---- */

static void captures_given_up_leave_no_trace(void) {
  rig r;
  rig_block before, a, b;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  for (int mode = 0; mode < 3; mode++) {
    const tarn_capture_config config = {.size = sizeof(config), .mode = (tarn_capture_mode)mode};
    CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &before));
    tarn_capture *capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &b));
    rig_order(&r, r.streams[0], r.streams[1]); /* a branch that is never joined */
    rig_touch(&r, &b, r.streams[1], true);
    CHECK_OK(rig_free(&r, &before, r.streams[0]));
    CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
    CHECK_OK(tarn_capture_abort(&capture));
    CHECK(capture == NULL);
    CHECK_EQ(rig_stats(&r).live_blocks, 0);
    CHECK(rig_is_sound(&r));
    rig_touch(&r, &b, r.streams[0], true); /* b is still somebody's */
    CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_OK(tarn_heap_trim(r.heap, 64 * MIB));
    CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  }
  tarn_capture *none = NULL;
  CHECK_OK(tarn_capture_abort(&none));
  CHECK_OK(tarn_capture_abort(NULL));
  rig_close(&r);
}

/* Something illegal breaks the capture: allocations say so, frees go through, the end gives none.
 */
static void broken_captures(void) {
  rig r;
  rig_block before, a;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &before));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  tarn_ptr plain;
  CHECK_STATUS(tarni_port_plain_alloc((tarni_port *)r.device, MIB, &plain), TARN_CAPTURE);
  rig_block none;
  CHECK_STATUS(rig_capture_alloc(&r, MIB, r.streams[0], &none), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "tarn_capture_abort");
  CHECK_OK(rig_free(&r, &before, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  tarn_graph *graph = (tarn_graph *)&r;
  CHECK_STATUS(tarn_capture_end(&capture, &graph), TARN_CAPTURE);
  CHECK(graph == NULL);
  CHECK(capture == NULL);
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A capture that the program begins and ends itself. */
static void adopted_captures(void) {
  rig r;
  rig_block a;
  const tarn_capture_config config = {.size = sizeof(config), .is_adopted = true};
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  tarni_graph handle;
  tarni_graph_exec exec;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_STATE);
  CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_OK(tarn_capture_begin(r.heap, &config, r.streams[0], &capture));
  tarn_capture *second = NULL;
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &second), TARN_BUSY);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  CHECK_STATUS(tarn_capture_end(&capture, &graph), TARN_STATE);
  CHECK(capture != NULL);
  CHECK_OK(tarni_port_capture_end(port, r.streams[0], &handle));
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK(tarn_graph_handle(graph) == NULL);
  CHECK_STATUS(tarn_graph_launch(graph, r.streams[0]), TARN_STATE);
  CHECK_OK(tarni_port_graph_instantiate(port, handle, &exec));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarni_port_graph_launch(port, exec, r.streams[1]));
    CHECK_OK(tarn_graph_launched(graph, r.streams[1]));
  }
  CHECK_EQ(info_of(graph).launches, 3);
  CHECK_OK(tarn_graph_destroy(graph)); /* launches may be under way: it waits for them */
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  CHECK_OK(tarni_port_graph_destroy(port, handle, exec));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* A stream in a capture of which nobody told is not served from it: an error that says so. */
static void captures_that_nobody_announced(void) {
  rig r;
  rig_block a;
  tarn_ptr none;
  tarni_graph handle;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, MIB / 2, r.streams[1], &a)); /* known, with a cache */
  CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_GLOBAL));
  CHECK_STATUS(tarn_alloc(r.heap, MIB, r.streams[0], &none), TARN_CAPTURE);
  CHECK_OK(tarni_port_capture_end(port, r.streams[0], &handle));
  CHECK_OK(tarni_port_graph_destroy(port, handle, NULL));
  CHECK_OK(tarni_port_capture_begin(port, r.streams[1], TARNI_CAPTURE_GLOBAL));
  CHECK_STATUS(tarn_alloc(r.heap, 100 * MIB, r.streams[1], &none), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "tarn_capture_begin");
  CHECK_OK(tarni_port_capture_end(port, r.streams[1], &handle)); /* it is not broken */
  CHECK_OK(tarni_port_graph_destroy(port, handle, NULL));
  CHECK_OK(rig_free(&r, &a, r.streams[1]));
  rig_close(&r);
}

/* A heap that asks finds captures of which nobody told, and their end. */
typedef struct bystander {
  rig *r;
  tarn_stream stream;
} bystander;

/* All that asks, waits, grows and gives back. */
static void *act_beside(void *user) {
  const bystander *by = user;
  rig *r = by->r;
  rig_block blocks[8];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 8; i++) {
      CHECK_OK(rig_alloc(r, (uint64_t)((1 + i) * (round + 1)) * MIB / 2, by->stream, &blocks[i]));
      CHECK_OK(tarn_use(r->heap, blocks[i].address, r->streams[2]));
      rig_order(r, by->stream, r->streams[2]);
      rig_touch(r, &blocks[i], r->streams[2], false);
    }
    for (int i = 0; i < 8; i++) {
      CHECK_OK(rig_free(r, &blocks[i], by->stream));
    }
    CHECK_OK(tarn_heap_trim(r->heap, 0));
  }
  return NULL;
}

/* A capture that the program begins itself and tells nobody of is not broken by what the heap does
 * for other streams: in no mode, by no thread. */
static void captures_that_nobody_knows_of(void) {
  for (int i = 0; i < 6 && !test_case_failed(); i++) {
    rig r;
    tarni_graph graph;
    pthread_t thread;
    REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 3));
    tarni_port *port = (tarni_port *)r.device;
    bystander by = {.r = &r, .stream = r.streams[1]};
    CHECK_OK(tarni_port_capture_begin(port, r.streams[0], (tarni_capture_mode)(i / 2)));
    if (i % 2 != 0) {
      REQUIRE(pthread_create(&thread, NULL, act_beside, &by) == 0);
      CHECK_EQ(pthread_join(thread, NULL), 0);
    } else {
      (void)act_beside(&by);
    }
    CHECK_OK(tarni_port_capture_end(port, r.streams[0], &graph));
    CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static void captures_found_by_asking(void) {
  rig r;
  rig_block before, a, b;
  tarn_graph *graph = NULL;
  tarni_graph handle;
  tarni_graph_exec exec;
  const tarn_heap_config asking = {.size = sizeof(asking), .is_asking_captures = true};
  REQUIRE(rig_open(&r, "sim:1G", &asking, 2));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &before));
  CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_GLOBAL));
  tarni_capture_state state;
  CHECK_OK(tarni_port_capture_state(port, r.streams[0], &state));
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  rig_order(&r, r.streams[0], r.streams[1]);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[1], &b));
  rig_order(&r, r.streams[1], r.streams[0]);
  CHECK_OK(rig_free(&r, &before, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  CHECK_STATUS(tarn_graph_find(r.heap, state.id, &graph), TARN_FOREIGN);
  CHECK_OK(tarni_port_capture_end(port, r.streams[0], &handle));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &before));
  CHECK_OK(rig_free(&r, &before, r.streams[0]));
  CHECK(rig_stats(&r).captured_bytes != 0);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_graph_find(r.heap, state.id, &graph));
  CHECK_EQ(info_of(graph).allocations, 2);
  tarn_graph *again = graph;
  CHECK_STATUS(tarn_graph_find(r.heap, state.id, &again), TARN_FOREIGN);
  CHECK(again == NULL);
  CHECK_OK(tarni_port_graph_instantiate(port, handle, &exec));
  CHECK_OK(tarni_port_graph_launch(port, exec, r.streams[1]));
  CHECK_OK(tarn_graph_launched(graph, r.streams[1]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  CHECK_OK(tarni_port_graph_destroy(port, handle, exec));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* A capture that nobody announced is the heap's, if it has found it, and nobody else's. */
static void found_captures_are_not_handed_out(void) {
  for (int i = 0; i < 2; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .is_asking_captures = i == 1};
    rig r;
    tarn_ptr block = 0;
    tarni_graph raw = NULL;
    tarn_capture *capture = NULL;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    tarni_port *port = (tarni_port *)r.device;
    CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_RELAXED));
    CHECK_STATUS(tarn_alloc(r.heap, MIB, r.streams[0], &block), i == 1 ? TARN_OK : TARN_CAPTURE);
    CHECK_OK(i == 1 ? tarn_free(r.heap, block, r.streams[0]) : TARN_OK);
    CHECK_STATUS(tarn_capture_find(r.heap, r.streams[0], &capture), TARN_CAPTURE);
    CHECK(capture == NULL);
    CHECK_OK(tarni_port_capture_end(port, r.streams[0], &raw));
    CHECK_OK(tarn_capture_find(r.heap, r.streams[0], &capture));
    CHECK(capture == NULL);
    CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
    rig_close(&r);
  }
}

static void bad_arguments(void) {
  rig r;
  tarn_capture *capture = (tarn_capture *)&r;
  tarn_graph *graph = (tarn_graph *)&r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_capture_config config = {.size = sizeof(config), .mode = (tarn_capture_mode)3};
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_INVALID);
  CHECK(capture == NULL);
  config = (tarn_capture_config){.size = sizeof(config), .placement = (tarn_placement)7};
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_INVALID);
  config = (tarn_capture_config){.size = sizeof(config), .placement = TARN_PLACE_PLANNED};
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_INVALID);
  CHECK_STATUS(tarn_capture_begin(NULL, NULL, r.streams[0], &capture), TARN_INVALID);
  CHECK_STATUS(tarn_capture_begin(r.heap, NULL, r.streams[0], NULL), TARN_INVALID);
  CHECK_STATUS(tarn_capture_begin(r.heap, NULL, NULL, &capture), TARN_CAPTURE); /* legacy */
  CHECK_STATUS(tarn_capture_end(&capture, &graph), TARN_INVALID);
  CHECK(graph == NULL);
  CHECK_STATUS(tarn_capture_end(NULL, &graph), TARN_INVALID);
  CHECK_STATUS(tarn_graph_launch(NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_graph_launched(NULL, NULL), TARN_INVALID);
  CHECK_OK(tarn_graph_destroy(NULL));
  CHECK_OK(tarn_arena_destroy(NULL));
  CHECK(tarn_graph_handle(NULL) == NULL && tarn_graph_arena(NULL) == NULL);
  capture = rig_capture_begin(&r, NULL);
  tarn_capture *second;
  CHECK_STATUS(tarn_capture_begin(r.heap, NULL, r.streams[0], &second), TARN_STATE);
  CHECK_STATUS(tarn_heap_destroy(r.heap, NULL), TARN_BUSY);
  CHECK_OK(tarn_capture_abort(&capture));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* What is refused says why. */
static void refusals(void) {
  const tarn_capture_config config = {.size = sizeof(config), .limit_bytes = 100};
  rig r;
  tarn_ptr block = 0;
  tarn_capture *other = NULL;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_STATUS(tarn_capture_begin(r.heap, NULL, NULL, &other), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "the legacy default stream cannot be captured");
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_STATUS(tarn_capture_begin(r.heap, NULL, r.streams[0], &other), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "being captured already");
  CHECK_STATUS(tarn_alloc(r.heap, 50, r.streams[0], &block), TARN_DEVICE_MEMORY);
  CHECK_HAS(tarn_last_message(), "units of 256");
  CHECK_OK(tarn_capture_abort(&capture));
  capture = rig_capture_begin(&r, NULL);
  CHECK_OK(tarn_alloc(r.heap, 50, r.streams[0], &block));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_STATUS(tarn_graph_hold(graph, block, r.streams[0]), TARN_FOREIGN);
  CHECK_HAS(tarn_last_message(), "a captured block");
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* The heap goes with graphs and blocks of theirs: they are counted, and nothing is left. */
static void heaps_that_go_first(void) {
  rig r;
  rig_block a;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  uint64_t n_live = 0;
  CHECK_OK(tarn_heap_destroy(r.heap, &n_live));
  CHECK_EQ(n_live, 1);
  CHECK_HAS(tarn_last_message(), "1 blocks of 1048576 bytes");
  r.heap = NULL;
  rig_close(&r);
}

static const test_case cases[] = {
    {"blocks come from the arena", blocks_come_from_the_arena},
    {"one branch uses memory again", one_branch_uses_memory_again},
    {"aligned blocks", aligned_blocks},
    {"branches do not share", branches_do_not_share},
    {"memory from before the fork", memory_from_before_the_fork},
    {"uses of other branches", uses_of_other_branches},
    {"programmatic edges are no order", programmatic_edges_are_no_order},
    {"blocks from before are given back at the end", blocks_from_before_are_given_back_at_the_end},
    {"blocks that a graph holds", blocks_that_a_graph_holds},
    {"wrong frees are refused", wrong_frees_are_refused},
    {"blocks outlive their graph", blocks_outlive_their_graph},
    {"captures given up leave no trace", captures_given_up_leave_no_trace},
    {"broken captures", broken_captures},
    {"adopted captures", adopted_captures},
    {"captures that nobody announced", captures_that_nobody_announced},
    {"captures that nobody knows of", captures_that_nobody_knows_of},
    {"captures found by asking", captures_found_by_asking},
    {"found captures are not handed out", found_captures_are_not_handed_out},
    {"bad arguments", bad_arguments},
    {"refusals say why", refusals},
    {"heaps that go first", heaps_that_go_first},
};

TEST_MAIN(cases)
