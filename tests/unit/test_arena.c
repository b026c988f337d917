/* SPDX-License-Identifier: MIT
 *
 * Arenas: the three placements, limits, memory of the caller's, one arena for several graphs, sleep
 * and waking, and layouts that do and do not fit what is captured. */
#include <stdlib.h>
#include <string.h>

#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20 };

static tarn_arena_info arena_of(tarn_arena *arena) {
  tarn_arena_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_arena_get_info(arena, &info));
  return info;
}

static tarn_graph_info info_of(tarn_graph *graph) {
  tarn_graph_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_graph_get_info(graph, &info));
  return info;
}

/* Captures blocks of these sizes, each freed after the next is there. */
static void capture_sizes(rig *r, const uint64_t *sizes, int n) {
  rig_block last = {0}, block;
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_capture_alloc(r, sizes[i], r->streams[0], &block));
    CHECK_OK(tarn_free(r->heap, last.address, r->streams[0]));
    last = block;
  }
  CHECK_OK(tarn_free(r->heap, last.address, r->streams[0]));
}

/* ---- Monotone ---- */

/* One after the other at multiples of 256 bytes, never again, and out of memory when full. */
static void monotone_arenas(void) {
  rig r;
  rig_block a, b, none;
  const tarn_capture_config config = {
      .size = sizeof(config), .placement = TARN_PLACE_MONOTONE, .limit_bytes = 4 * MIB};
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, 1, r.streams[0], &a));
  CHECK_OK(rig_capture_alloc(&r, 257, r.streams[0], &b));
  CHECK_EQ(b.address - a.address, 256);
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  CHECK_OK(rig_capture_alloc(&r, 100, r.streams[0], &b));
  CHECK_EQ(b.address - a.address, 256 + 512);
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  CHECK_STATUS(rig_capture_alloc(&r, 4 * MIB, r.streams[0], &none), TARN_DEVICE_MEMORY);
  CHECK_STATUS(tarn_alloc(r.heap, 4 * MIB - 1023, r.streams[0], &none.address), TARN_DEVICE_MEMORY);
  CHECK_HAS(tarn_last_message(), "4194304");
  CHECK_OK(rig_capture_alloc(&r, 3 * MIB, r.streams[0], &b));
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_EQ(info_of(graph).bytes, 1024 + 3 * MIB);
  CHECK_EQ(info_of(graph).bytes, info_of(graph).alloc_bytes);
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* Sums that do not fit into 64 bits are refused, not wrapped around. */
static void huge_requests(void) {
  rig r;
  rig_block none;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  for (int placement = 0; placement < 3; placement += 2) {
    const tarn_capture_config config = {.size = sizeof(config),
                                        .placement = (tarn_placement)placement};
    tarn_capture *capture = rig_capture_begin(&r, &config);
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 254, UINT64_C(1) << 63,
                                     UINT64_C(2) << 30};
    for (int i = 0; i < 4; i++) {
      CHECK_STATUS(rig_capture_alloc(&r, sizes[i], r.streams[0], &none), TARN_DEVICE_MEMORY);
      tarn_ptr block = 1;
      CHECK_STATUS(tarn_alloc_aligned(r.heap, sizes[i], 1 << 20, r.streams[0], &block),
                   TARN_DEVICE_MEMORY);
      CHECK_EQ(block, 0);
    }
    CHECK_OK(tarn_capture_abort(&capture));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* ---- Limits ---- */

/* A limit need be no whole number of units, as chunks are: what it forbids is not handed out. */
static void odd_limits(void) {
  rig r;
  rig_block blocks[2], none;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  const tarn_capture_config config = {.size = sizeof(config), .limit_bytes = MIB};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_capture_alloc(&r, MIB / 2, r.streams[0], &blocks[i]));
  }
  CHECK_STATUS(rig_capture_alloc(&r, MIB / 2, r.streams[0], &none), TARN_DEVICE_MEMORY);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i].address, r.streams[0]));
  }
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  const tarn_arena_config odd = {
      .size = sizeof(odd), .limit_bytes = 3 * MIB, .reserve_bytes = 3 * MIB};
  tarn_arena *arena = NULL;
  CHECK_OK(tarn_arena_create(r.heap, &odd, &arena));
  CHECK_OK(tarn_arena_sleep(arena, true));
  CHECK_OK(tarn_arena_wake(arena));
  CHECK_EQ(rig_stats(&r).captured_bytes, 4 * MIB);
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

/* Memory ahead that is not to be had: the error is that of the call, not of an allocation. */
static void too_much_ahead(void) {
  rig r;
  const tarn_heap_config limit = {.size = sizeof(limit), .limit_bytes = 16 * MIB};
  REQUIRE(rig_open(&r, "sim:1G", &limit, 1));
  const tarn_arena_config much = {.size = sizeof(much), .reserve_bytes = 20 * MIB};
  const tarn_capture_config also = {.size = sizeof(also), .reserve_bytes = 20 * MIB};
  tarn_arena *arena = NULL;
  tarn_capture *capture = NULL;
  tarn_error error = {.size = sizeof(error)};
  CHECK_STATUS(tarn_arena_create(r.heap, &much, &arena), TARN_LIMIT);
  (void)tarn_last_error(&error);
  CHECK_HAS(error.operation, "tarn_arena_create");
  CHECK_HAS(tarn_last_message(), "Ask for less");
  CHECK_STATUS(tarn_capture_begin(r.heap, &also, r.streams[0], &capture), TARN_LIMIT);
  (void)tarn_last_error(&error);
  CHECK_HAS(error.operation, "tarn_capture_begin");
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* The heap's limit counts what captures hold, and the other way round. */
static void limits_count_arenas(void) {
  rig r;
  rig_block a, b, none;
  const tarn_heap_config limit = {.size = sizeof(limit), .limit_bytes = 16 * MIB};
  REQUIRE(rig_open(&r, "sim:1G", &limit, 2));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 10 * MIB, r.streams[0], &a));
  CHECK_STATUS(rig_alloc(&r, 10 * MIB, r.streams[1], &none), TARN_LIMIT);
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[1], &b));
  CHECK_STATUS(rig_capture_alloc(&r, 8 * MIB, r.streams[0], &none), TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "reserve_bytes");
  CHECK(rig_is_sound(&r));
  CHECK_EQ(rig_stats(&r).captured_bytes, 10 * MIB);
  CHECK_EQ(rig_stats(&r).reserved_peak_bytes, rig_stats(&r).reserved_bytes);
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_OK(rig_free(&r, &b, r.streams[1]));
  rig_close(&r);
}

/* Memory made ahead is trimmed from what the heap does not use; inside no driver call is needed. */
static void memory_made_ahead(void) {
  rig r;
  rig_block a;
  tarn_capture_config config = {.size = sizeof(config), .reserve_bytes = 48 * MIB};
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[0], &a));
  CHECK_OK(rig_free(&r, &a, r.streams[0]));
  tarn_capture *capture = rig_capture_begin(&r, &config);
  tarn_sim_state state = rig_state(&r);
  CHECK_OK(rig_capture_alloc(&r, 48 * MIB, r.streams[0], &a));
  CHECK_EQ(rig_state(&r).created_bytes, state.created_bytes);
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  config.reserve_bytes = 128 * MIB;
  CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_LIMIT);
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* ---- Memory of the caller's ---- */

static void memory_of_the_caller(void) {
  rig r;
  rig_block whole, a, b;
  tarn_arena *arena = NULL;
  tarn_ptr plain;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &whole));
  CHECK_OK(tarni_port_plain_alloc(port, MIB, &plain));
  for (int is_plain = 0; is_plain < 2; is_plain++) {
    const tarn_arena_config own = {.size = sizeof(own),
                                   .memory = is_plain ? plain : whole.address,
                                   .memory_bytes = is_plain ? MIB : 4 * MIB};
    CHECK_OK(tarn_arena_create(r.heap, &own, &arena));
    const tarn_arena_config again = {
        .size = sizeof(again), .memory = own.memory + MIB / 2, .memory_bytes = MIB / 2};
    tarn_arena *other = arena;
    CHECK_STATUS(tarn_arena_create(r.heap, &again, &other), TARN_BUSY);
    CHECK(other == NULL);
    const tarn_capture_config config = {
        .size = sizeof(config), .placement = TARN_PLACE_MONOTONE, .arena = arena};
    CHECK(!arena_of(arena).is_capturing);
    tarn_capture *capture = rig_capture_begin(&r, &config), *second = NULL;
    CHECK(arena_of(arena).is_capturing);
    CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &second), TARN_BUSY);
    CHECK_STATUS(tarn_arena_clear(arena), TARN_BUSY);
    CHECK_OK(tarn_alloc(r.heap, 1000, r.streams[0], &a.address));
    CHECK_OK(tarn_alloc(r.heap, 1000, r.streams[0], &b.address));
    CHECK_EQ(a.address, own.memory + (is_plain ? 0 : 256));
    CHECK_STATUS(tarn_alloc(r.heap, own.memory_bytes, r.streams[0], &a.bytes), TARN_DEVICE_MEMORY);
    CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
    tarn_graph *graph = rig_capture_end(capture);
    CHECK_EQ(arena_of(arena).live_blocks, 1);
    CHECK_EQ(rig_stats(&r).captured_bytes, 0);
    CHECK_STATUS(tarn_arena_sleep(arena, false), TARN_UNSUPPORTED);
    CHECK_STATUS(tarn_arena_clear(arena), TARN_BUSY);
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_OK(tarn_arena_clear(arena));
    CHECK_EQ(arena_of(arena).live_blocks, 0);
    CHECK_STATUS(tarn_free(r.heap, b.address, r.streams[0]), TARN_DOUBLE_FREE);
    CHECK_OK(tarn_heap_check(r.heap));
    CHECK_OK(tarn_arena_destroy(arena));
  }
  CHECK_OK(tarni_port_plain_free(port, plain));
  CHECK_OK(rig_free(&r, &whole, r.streams[0]));
  const tarn_arena_config bad = {
      .size = sizeof(bad), .memory = UINT64_MAX - 100, .memory_bytes = 4096};
  CHECK_STATUS(tarn_arena_create(r.heap, &bad, &arena), TARN_INVALID);
  CHECK(arena == NULL);
  rig_close(&r);
}

/* ---- Several graphs ---- */

/* Graphs that share an arena share its memory, but for blocks that are live; their launches follow
 * each other whatever the streams. */
static void graphs_that_share(void) {
  rig r;
  rig_block a, b;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:1G,seed=3", NULL, 3));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a)); /* an output: it stays */
  CHECK_OK(rig_capture_alloc(&r, 6 * MIB, r.streams[0], &b));
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  tarn_graph *first = rig_capture_end(capture);
  const tarn_ptr scratch = b.address;
  capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, 5 * MIB, r.streams[0], &b));
  CHECK_EQ(b.address, scratch);
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  tarn_graph *second = rig_capture_end(capture);
  CHECK_EQ(arena_of(arena).graphs, 2);
  CHECK_EQ(arena_of(arena).held_bytes, 8 * MIB);
  CHECK_EQ(arena_of(arena).high_water_bytes, 7 * MIB);
  for (int i = 0; i < 12; i++) {
    CHECK_OK(tarn_graph_launch(i % 2 != 0 ? first : second, r.streams[i % 3]));
  }
  CHECK_EQ(r.n_findings, 0);
  CHECK_EQ(info_of(first).launches, 6);
  CHECK_OK(tarn_graph_destroy(first));
  CHECK_OK(tarn_graph_launch(second, r.streams[1]));
  CHECK_OK(tarn_graph_destroy(second));
  CHECK_OK(tarn_arena_destroy(arena));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[2]));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* A graph goes late: launches that are under way keep its memory. */
static void graphs_go_late(void) {
  rig r;
  rig_block a;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK(info_of(graph).is_idle);
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  CHECK(!info_of(graph).is_idle);
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK(rig_stats(&r).captured_bytes != 0);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  capture = rig_capture_begin(&r, NULL); /* any call that looks */
  CHECK_OK(tarn_capture_abort(&capture));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

/* ---- Sleep ---- */

static void idle_arenas_sleep(void) {
  rig r;
  rig_block a;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarni_port *port = (tarni_port *)r.device;
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 3 * MIB, r.streams[0], &a));
  tarn_graph *graph = rig_capture_end(capture);
  tarn_arena *arena = tarn_graph_arena(graph);
  CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  for (int keep = 0; keep < 2; keep++) {
    CHECK_OK(tarni_port_fill_sync(port, a.address, 0x5a, 3 * MIB));
    CHECK_OK(tarn_arena_sleep(arena, keep != 0));
    CHECK_OK(tarn_arena_sleep(arena, keep != 0));
    CHECK(arena_of(arena).is_asleep);
    CHECK_EQ(rig_stats(&r).captured_bytes, 0);
    CHECK(rig_is_sound(&r));
    CHECK_STATUS(tarn_graph_launch(graph, r.streams[0]), TARN_STATE);
    CHECK_HAS(tarn_last_message(), "tarn_arena_wake");
    const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
    CHECK_STATUS(tarn_capture_begin(r.heap, &config, r.streams[0], &capture), TARN_STATE);
    CHECK_OK(tarn_arena_wake(arena));
    CHECK_OK(tarn_arena_wake(arena));
    CHECK_EQ(rig_stats(&r).captured_bytes, 4 * MIB);
    if (keep != 0) {
      CHECK(rig_host_is((const void *)(uintptr_t)a.address, 0x5a, 3 * MIB));
    }
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  }
  CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
  CHECK_OK(tarn_arena_sleep(arena, true)); /* and it can go asleep */
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* Work of a stream that has nothing to do with the arena is not waited for. */
static void others_work_while_it_sleeps(void) {
  rig r;
  rig_block block, other;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 3));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[1], &other));
  CHECK_OK(tarn_use(r.heap, other.address, r.streams[1]));
  CHECK_OK(rig_free(&r, &other, r.streams[0])); /* there is a fence on both */
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r.streams[2]));
  tarn_call_counts before = {.size = sizeof(before)}, after = before;
  CHECK_OK(tarn_device_get_calls(r.device, &before));
  CHECK_OK(tarn_arena_sleep(tarn_graph_arena(graph), false));
  CHECK_OK(tarn_device_get_calls(r.device, &after));
  /* For the stream that was captured, and for the one that launched. */
  CHECK_EQ(after.calls[TARN_CALL_EVENT_SYNC] - before.calls[TARN_CALL_EVENT_SYNC], 2);
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* Growth that fails half way, and cannot be undone either: the next try goes on from there. */
static void growth_that_stops_half_way(void) {
  for (uint64_t nth = 1; nth < 9; nth++) {
    const tarn_capture_config config = {.size = sizeof(config),
                                        .reserve_bytes = 256 * (uint64_t)MIB};
    rig r;
    tarn_ptr large = 0, small = 0;
    REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
    tarn_capture *capture = rig_capture_begin(&r, &config);
    CHECK_OK(tarn_alloc(r.heap, config.reserve_bytes, r.streams[0], &large));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, nth, 2, 0)); /* there is no memory */
    (void)tarn_alloc(r.heap, 2 * MIB, r.streams[0], &small);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    CHECK_EQ(r.n_findings, 0);
    if (small == 0) {
      CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &small));
    }
    CHECK(rig_is_sound(&r));
    CHECK_OK(tarn_free(r.heap, large, r.streams[0]));
    CHECK_OK(tarn_free(r.heap, small, r.streams[0]));
    CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
    rig_close(&r);
  }
}

/* Memory that was made for a capture which is given up goes, if need be when launches of others are
 * complete. */
static void captures_given_up_while_it_is_busy(void) {
  rig r;
  rig_block block;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  CHECK_OK(tarn_arena_create(r.heap, NULL, &arena));
  const tarn_capture_config config = {.size = sizeof(config), .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  const uint64_t before = rig_stats(&r).captured_bytes;
  for (int i = 0; i < 2; i++) { /* the second one finds what is left of the first */
    CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
    capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, 500 * (uint64_t)MIB, r.streams[0], &block));
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
    CHECK_OK(tarn_capture_abort(&capture));
  }
  CHECK(rig_stats(&r).captured_bytes > before);
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX));
  CHECK_EQ(rig_stats(&r).captured_bytes, before);
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

/* ---- Layouts ---- */

static const uint64_t plan_sizes[] = {3 * MIB, MIB, 5 * MIB, 256, 2 * MIB, 4 * MIB, 777, 6 * MIB};
enum { N_SIZES = sizeof(plan_sizes) / sizeof(plan_sizes[0]) };

static tarn_layout *plan_of(rig *r) {
  tarn_layout *layout = NULL;
  tarn_capture *capture = rig_capture_begin(r, NULL);
  capture_sizes(r, plan_sizes, N_SIZES);
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_plan(graph, NULL, &layout));
  CHECK_OK(tarn_graph_destroy(graph));
  return layout;
}

/* Served from the plan, at the bound; what differs from it is noticed and placed otherwise. */
static void planned_captures(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_layout *layout = plan_of(&r);
  REQUIRE(layout != NULL);
  tarn_plan_info plan = {.size = sizeof(plan)};
  CHECK_OK(tarn_layout_get_info(layout, &plan));
  CHECK_EQ(plan.count, N_SIZES);
  CHECK_EQ(plan.height, plan.bound);
  const tarn_capture_config config = {
      .size = sizeof(config), .placement = TARN_PLACE_PLANNED, .layout = layout};
  for (int change = -1; change < N_SIZES; change++) {
    uint64_t sizes[N_SIZES + 2];
    memcpy(sizes, plan_sizes, sizeof(plan_sizes));
    sizes[N_SIZES] = 9 * MIB;
    sizes[N_SIZES + 1] = MIB;
    if (change >= 0) {
      sizes[change] += 512;
    }
    const int n = change >= 0 ? N_SIZES + 2 : N_SIZES;
    tarn_capture *capture = rig_capture_begin(&r, &config);
    capture_sizes(&r, sizes, n);
    tarn_graph *graph = rig_capture_end(capture);
    const tarn_graph_info info = info_of(graph);
    CHECK_EQ(info.has_diverged, change >= 0);
    CHECK_EQ(info.diverged_at, change >= 0 ? change : 0);
    CHECK_EQ(info.allocations, n);
    CHECK(change >= 0 || info.bytes == plan.height);
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_EQ(r.n_findings, 0);
    CHECK_OK(tarn_graph_destroy(graph));
  }
  tarn_layout_destroy(layout);
  tarn_layout_destroy(NULL);
  rig_close(&r);
}

/* A block that lives longer than planned is in the way of another: noticed, and not overwritten. */
static void plans_that_are_in_the_way(void) {
  rig r;
  rig_block blocks[N_SIZES];
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_layout *layout = plan_of(&r);
  const tarn_capture_config config = {
      .size = sizeof(config), .placement = TARN_PLACE_PLANNED, .layout = layout};
  tarn_capture *capture = rig_capture_begin(&r, &config);
  for (int i = 0; i < N_SIZES; i++) { /* nothing is freed */
    CHECK_OK(rig_capture_alloc(&r, plan_sizes[i], r.streams[0], &blocks[i]));
    for (int j = 0; j < i; j++) {
      CHECK(blocks[j].address + blocks[j].bytes <= blocks[i].address ||
            blocks[i].address + blocks[i].bytes <= blocks[j].address);
    }
  }
  tarn_graph *graph = rig_capture_end(capture);
  CHECK(info_of(graph).has_diverged);
  for (int i = 0; i < N_SIZES; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i].address, r.streams[0]));
  }
  CHECK_OK(tarn_graph_destroy(graph));
  tarn_layout_destroy(layout);
  rig_close(&r);
}

/* Saved and loaded; refused for another graph. */
static void layouts_are_saved(void) {
  rig r;
  char *text = NULL;
  size_t length = 0;
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_layout *layout = plan_of(&r), *loaded = NULL;
  CHECK_OK(tarn_layout_save(layout, &text, &length));
  for (int is_other = 0; is_other < 2; is_other++) {
    uint64_t sizes[N_SIZES];
    memcpy(sizes, plan_sizes, sizeof(sizes));
    sizes[2] += is_other != 0 ? 256 : 0;
    tarn_capture *capture = rig_capture_begin(&r, NULL);
    capture_sizes(&r, sizes, N_SIZES);
    tarn_graph *graph = rig_capture_end(capture);
    if (is_other == 0) {
      CHECK_OK(tarn_graph_plan_load(graph, text, length, &loaded));
      CHECK(loaded != NULL);
      tarn_layout_destroy(loaded);
      CHECK_STATUS(tarn_graph_plan_load(graph, text, length / 2, &loaded), TARN_CORRUPT);
    } else {
      CHECK_STATUS(tarn_graph_plan_load(graph, text, length, &loaded), TARN_STATE);
    }
    CHECK(is_other == 0 || loaded == NULL);
    CHECK_OK(tarn_graph_destroy(graph));
  }
  CHECK_STATUS(tarn_graph_plan(NULL, NULL, &loaded), TARN_INVALID);
  CHECK_STATUS(tarn_layout_save(NULL, &text, &length), TARN_INVALID);
  free(text);
  tarn_layout_destroy(layout);
  rig_close(&r);
}

/* On branches the plan keeps apart what is not ordered: the same bytes as `reuse` at most. */
static void planned_branches(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G,seed=5", NULL, 3));
  tarn_layout *layout = NULL;
  uint64_t reused = 0;
  for (int pass = 0; pass < 2; pass++) {
    const tarn_capture_config config = {.size = sizeof(config),
                                        .placement = pass ? TARN_PLACE_PLANNED : TARN_PLACE_REUSE,
                                        .layout = layout};
    rig_block blocks[3];
    tarn_capture *capture = rig_capture_begin(&r, &config);
    for (int round = 0; round < 4; round++) {
      for (int i = 1; i < 3; i++) {
        rig_order(&r, r.streams[0], r.streams[i]);
      }
      for (int i = 0; i < 3; i++) {
        const uint64_t bytes = (uint64_t)(1 + (round * 3 + i * 2) % 5) * MIB;
        CHECK_OK(rig_capture_alloc(&r, bytes, r.streams[i], &blocks[i]));
        rig_touch(&r, &blocks[i], r.streams[i], true);
        CHECK_OK(tarn_free(r.heap, blocks[i].address, r.streams[i]));
      }
      for (int i = 1; i < 3; i++) {
        rig_order(&r, r.streams[i], r.streams[0]);
      }
    }
    tarn_graph *graph = rig_capture_end(capture);
    const tarn_graph_info info = info_of(graph);
    CHECK(!info.has_diverged);
    if (pass == 0) {
      reused = info.bytes;
      CHECK_OK(tarn_graph_plan(graph, NULL, &layout));
    } else {
      CHECK(info.bytes <= reused);
    }
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_EQ(r.n_findings, 0);
    CHECK_OK(tarn_graph_destroy(graph));
  }
  tarn_layout_destroy(layout);
  rig_close(&r);
}

/* Thousands of blocks on branches: of all that come before a block only the last ones are named, so
 * they are not too many. */
static void many_planned_branches(void) {
  enum { N_BLOCKS = 12000 };
  const tarn_plan_options options = {.size = sizeof(options), .max_steps = 1, .max_ns = UINT64_MAX};
  rig r;
  tarn_layout *layout = NULL;
  tarn_plan_info info = {.size = sizeof(info)};
  REQUIRE(rig_open(&r, "sim:1G", NULL, 2));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  for (int i = 0; i < N_BLOCKS && !test_case_failed(); i++) {
    tarn_stream stream = r.streams[i % 2];
    rig_block block;
    if (i % 100 == 1) { /* both branches go on from here */
      rig_order(&r, r.streams[0], r.streams[1]);
    }
    CHECK_OK(i % 10 < 2 ? rig_capture_alloc(&r, 512, stream, &block)
                        : tarn_alloc(r.heap, 512, stream, &block.address));
    CHECK_OK(tarn_free(r.heap, block.address, stream));
    if (i % 100 == 99) {
      rig_order(&r, r.streams[1], r.streams[0]);
    }
  }
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_plan(graph, &options, &layout));
  CHECK_OK(tarn_layout_get_info(layout, &info));
  CHECK_EQ(info.count, N_BLOCKS);
  CHECK_EQ(info.height, 2 * 512);
  tarn_layout_destroy(layout);
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* Memory of the caller's begins where it begins: an alignment that it has not is refused. */
static void alignments_of_the_callers(void) {
  rig r;
  tarn_ptr memory = 0, block = 1;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(tarn_alloc(r.heap, 8 * MIB, r.streams[0], &memory));
  const tarn_arena_config own = {
      .size = sizeof(own), .memory = memory + 4096, .memory_bytes = 8 * MIB - 4096};
  CHECK_OK(tarn_arena_create(r.heap, &own, &arena));
  const tarn_capture_config in_it = {.size = sizeof(in_it), .arena = arena};
  tarn_capture *capture = rig_capture_begin(&r, &in_it);
  CHECK_STATUS(tarn_alloc_aligned(r.heap, 1000, 2 * MIB, r.streams[0], &block), TARN_INVALID);
  CHECK_EQ(block, 0);
  CHECK_HAS(tarn_last_message(), "no multiple of");
  CHECK_OK(tarn_alloc_aligned(r.heap, 1000, 256, r.streams[0], &block));
  CHECK_EQ(block % 256, 0);
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_OK(tarn_arena_destroy(arena));
  CHECK_OK(tarn_free(r.heap, memory, r.streams[0]));
  rig_close(&r);
}

/* Thousands of blocks, freed in another order than they were made: what is free stays in order, and
 * is found again where it lies lowest. */
static void many_blocks(void) {
  enum { N_BLOCKS = 5000 };
  rig r;
  static tarn_ptr blocks[N_BLOCKS];
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(tarn_alloc(r.heap, 512, r.streams[0], &blocks[i]));
    CHECK_EQ(blocks[i] - blocks[0], (uint64_t)i * 512);
  }
  for (int i = 0; i < N_BLOCKS; i++) { /* 7 and their number have no divisor in common */
    CHECK_OK(tarn_free(r.heap, blocks[(uint64_t)i * 7 % N_BLOCKS], r.streams[0]));
    CHECK(i % 1000 != 0 || rig_is_sound(&r));
  }
  for (int i = 0; i < N_BLOCKS; i++) {
    tarn_ptr block;
    CHECK_OK(tarn_alloc(r.heap, 512, r.streams[0], &block));
    CHECK_EQ(block, blocks[i]);
  }
  CHECK(rig_is_sound(&r));
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  rig_close(&r);
}

static const test_case cases[] = {
    {"alignments of the caller's memory", alignments_of_the_callers},
    {"monotone arenas", monotone_arenas},
    {"huge requests", huge_requests},
    {"limits that are no whole units", odd_limits},
    {"too much ahead", too_much_ahead},
    {"limits count arenas", limits_count_arenas},
    {"memory made ahead", memory_made_ahead},
    {"memory of the caller's", memory_of_the_caller},
    {"graphs that share", graphs_that_share},
    {"graphs go late", graphs_go_late},
    {"idle arenas sleep", idle_arenas_sleep},
    {"others work while it sleeps", others_work_while_it_sleeps},
    {"growth that stops half way", growth_that_stops_half_way},
    {"captures given up while it is busy", captures_given_up_while_it_is_busy},
    {"planned captures", planned_captures},
    {"plans that are in the way", plans_that_are_in_the_way},
    {"layouts are saved", layouts_are_saved},
    {"planned branches", planned_branches},
    {"many planned branches", many_planned_branches},
    {"many blocks", many_blocks},
};

TEST_MAIN(cases)
