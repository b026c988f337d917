/* SPDX-License-Identifier: MIT
 *
 * Things that each work alone, together: what random programs (tests/stress/test_heap_life.c) have
 * found, each as small as it can be. */
#include "support/rig.h"
#include "support/test.h"
#include "tarn/budget.h"
#include "tarn/capture.h"

#define PER_THREAD ((tarn_stream)2)

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* While a thread's default stream is captured nothing is read by way of the legacy one: freed
 * blocks stay in quarantine, and guards are not looked at. */
static void heaps_that_look(const tarn_heap_config *config, bool is_freed_inside) {
  const tarn_capture_config relaxed = {.size = sizeof(relaxed), .mode = TARN_CAPTURE_RELAXED};
  rig r;
  rig_block block;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE(rig_open(&r, "sim:64M", config, 1));
  CHECK_OK(rig_alloc(&r, 5000, r.streams[0], &block));
  if (!is_freed_inside) {
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
  }
  CHECK_OK(tarn_capture_begin(r.heap, &relaxed, PER_THREAD, &capture));
  if (is_freed_inside) {
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
  }
  const tarn_status status = tarn_heap_trim(r.heap, 0);
  CHECK(status == TARN_OK || status == TARN_CAPTURE);
  CHECK_OK(tarn_capture_end(&capture, &graph)); /* it is not broken */
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void quarantine_and_captures(void) {
  const tarn_heap_config config = {.size = sizeof(config), .quarantine_bytes = MIB};
  heaps_that_look(&config, false);
  heaps_that_look(&config, true);
}

static void guards_and_captures(void) {
  const tarn_heap_config config = {.size = sizeof(config), .guard_bytes = 64};
  heaps_that_look(&config, true);
}

/* Nor is anything filled there. */
static void fills_and_captures(void) {
  const tarn_heap_config config = {.size = sizeof(config), .fill_alloc = 1, .fill_free = 2};
  rig r;
  rig_block block;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  tarn_ptr none = 1;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_OK(rig_alloc(&r, 5000, NULL, &block));
  CHECK_OK(tarn_capture_begin(r.heap, NULL, PER_THREAD, &capture));
  CHECK_STATUS(tarn_alloc(r.heap, 5000, NULL, &none), TARN_CAPTURE);
  CHECK_EQ(none, 0);
  CHECK_STATUS(rig_free(&r, &block, NULL), TARN_CAPTURE);
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(rig_free(&r, &block, NULL));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A heap that only keeps stacks frees as any other does: it waits for no stream, and a captured one
 * is no hindrance. */
static void stacks_and_captures(void) {
  const tarn_heap_config config = {.size = sizeof(config), .stack_depth = 4};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", &config, 2));
  CHECK_OK(rig_alloc(&r, 5000, r.streams[1], &block));
  CHECK_OK(tarn_use(r.heap, block.address, r.streams[0]));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_EQ(rig_stats(&r).waits, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A graph that its owner has destroyed while it runs holds nothing any more after a reset: not its
 * arena, and not the blocks that were freed in its capture. */
static void reset_and_graphs(void) {
  const tarn_capture_config holding = {.size = sizeof(holding), .holds_freed = true};
  rig r;
  rig_block before, block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &before));
  tarn_capture *capture = rig_capture_begin(&r, &holding);
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
  CHECK_OK(rig_free(&r, &before, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_reset(r.heap));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* An allocation whose fill the driver refuses leaves nothing behind, also where it then refuses to
 * say which stream the handle means. */
static void fills_and_verified_streams(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .fill_alloc = 1, .is_verifying_streams = true};
  static const uint64_t sizes[] = {5000, 3 * MIB};
  for (int i = 0; i < 2; i++) {
    rig r;
    tarn_ptr block = 0;
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    CHECK_OK(tarn_alloc(r.heap, sizes[i], r.streams[0], &block));
    CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    for (uint64_t n = 1; n < 12; n++) {
      CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, n, 3, 801));
      const tarn_status status = tarn_alloc(r.heap, sizes[i], r.streams[0], &block);
      CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
      CHECK_EQ(rig_stats(&r).live_blocks, status == TARN_OK);
      CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    }
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* Alignments above the granularity of the device, on mappings that are blocks. */
static void alignments_and_granularity(void) {
  const tarn_heap_config config = {.size = sizeof(config), .rounding = TARN_ROUNDING_EXACT};
  rig r;
  rig_block blocks[8];
  REQUIRE(rig_open(&r, "sim:64M,granularity=64K", &config, 1));
  for (int i = 0; i < 8; i++) {
    const uint64_t alignment = (uint64_t)2 * MIB >> i % 4;
    tarn_ptr block = 0;
    CHECK_OK(tarn_alloc_aligned(r.heap, 60 * KIB, alignment, r.streams[0], &block));
    CHECK_EQ(block % alignment, 0);
    rig_own(&r, block, 60 * KIB, &blocks[i]); /* all of it is mapped */
    rig_touch(&r, &blocks[i], r.streams[0], true);
  }
  for (int i = 0; i < 8; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  rig_close(&r);
}

/* Memory that the driver neither maps nor takes back is held, and peaks know of it. */
static void peaks_and_faults(void) {
  uint64_t n_quarantined = 0;
  for (uint64_t n = 1; n < 30; n++) {
    rig r;
    tarn_ptr block = 0;
    tarn_stats_scope *scope = NULL;
    tarn_stats_scope_result result = {.size = sizeof(result)};
    REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
    CHECK_OK(tarn_stats_scope_begin(r.heap, NULL, &scope));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, n, 12, 801));
    (void)tarn_alloc(r.heap, 5 * MIB, r.streams[0], &block);
    (void)tarn_free(r.heap, block, r.streams[0]);
    (void)tarn_heap_reset(r.heap);
    const tarn_heap_stats stats = rig_stats(&r);
    CHECK(stats.reserved_peak_bytes >= stats.reserved_bytes);
    n_quarantined += stats.quarantined_bytes != 0;
    CHECK_OK(tarn_stats_scope_end(scope, &result));
    CHECK(result.reserved_peak_bytes >= result.reserved_end_bytes);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    CHECK_OK(tarn_heap_reset(r.heap));
    rig_close(&r);
  }
  CHECK(n_quarantined != 0);
}

/* An allocation waits for the memory of graphs that were destroyed while they run. */
static void shortage_and_graphs(void) {
  static const tarn_rounding roundings[] = {TARN_ROUNDING_CLASSES, TARN_ROUNDING_EXACT};
  for (int i = 0; i < 2; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .rounding = roundings[i]};
    rig r;
    rig_block block;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
    tarn_capture *capture = rig_capture_begin(&r, NULL);
    CHECK_OK(rig_capture_alloc(&r, 40 * MIB, r.streams[0], &block));
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
    tarn_graph *graph = rig_capture_end(capture);
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[1], &block));
    CHECK_OK(rig_free(&r, &block, r.streams[1]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* What a heap had of a pool is the device's again when the heap is destroyed. */
static void pools_and_destruction(void) {
  const tarn_heap_config config = {.size = sizeof(config), .backing = TARN_BACKING_POOL};
  for (int is_live = 0; is_live < 2; is_live++) {
    rig r;
    rig_block block;
    uint64_t n_live = 0;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
    CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[0], &block));
    if (!is_live) {
      CHECK_OK(rig_free(&r, &block, r.streams[0]));
    }
    CHECK_OK(tarn_heap_destroy(r.heap, &n_live));
    CHECK_EQ(n_live, is_live);
    CHECK_EQ(rig_state(&r).created_bytes, 0);
    r.heap = NULL;
    rig_close(&r);
  }
}

/* A heap that fills its blocks does not sleep while a capture on another heap keeps the default
 * stream: the capture is not broken, and the heap is awake. */
static void sleep_and_captures_of_others(void) {
  const tarn_heap_config configs[] = {{.size = sizeof(configs[0]), .is_secure = true},
                                      {.size = sizeof(configs[0]), .guard_bytes = 64},
                                      {.size = sizeof(configs[0]), .stack_depth = 2}};
  for (int i = 0; i < 6; i++) {
    const tarn_heap_config other_config = {.size = sizeof(other_config), .device = "sim:64M"};
    const bool is_dropping = i % 2 != 0;
    rig r;
    rig_block block;
    tarn_heap *other = NULL;
    tarn_capture *capture = NULL;
    tarn_graph *graph = NULL;
    REQUIRE(rig_open(&r, "sim:64M", &configs[i / 2], 1));
    REQUIRE_OK(tarn_heap_create(&other_config, &other));
    CHECK_OK(rig_alloc(&r, 5000, r.streams[0], &block));
    const tarn_capture_config relaxed = {.size = sizeof(relaxed), .mode = TARN_CAPTURE_RELAXED};
    CHECK_OK(tarn_capture_begin(other, &relaxed, PER_THREAD, &capture));
    const tarn_status status =
        tarn_heap_sleep(r.heap, is_dropping ? TARN_SLEEP_DROP : TARN_SLEEP_SAVE);
    const bool may_sleep = is_dropping && !configs[i / 2].is_secure;
    CHECK_STATUS(status, may_sleep ? TARN_OK : TARN_CAPTURE);
    CHECK_EQ(rig_stats(&r).is_asleep, may_sleep);
    CHECK_OK(tarn_capture_end(&capture, &graph));
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_STATUS(tarn_heap_wake(r.heap), may_sleep ? TARN_OK : TARN_STATE);
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
    CHECK_OK(tarn_heap_destroy(other, NULL));
    rig_close(&r);
  }
}

/* A budget goes on a lost device, as scopes and heaps do. */
static void budgets_and_lost_devices(void) {
  const tarn_heap_config config = {.size = sizeof(config), .is_verifying_streams = true};
  const uint64_t sizes[] = {5000, 3 * MIB};
  tarn_budget *budget = NULL;
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_OK(tarn_budget_create(r.heap, sizes, 2, r.streams[0], NULL, &budget));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 1, 1, 700));
  CHECK_OK(tarn_budget_destroy(budget));
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  (void)tarn_stream_destroy(r.device, r.streams[0]);
  tarn_device_close(r.device);
  CHECK_EQ(r.n_findings, 0);
}

/* A free that fails leaves the block and its guard as they were. */
static void secure_frees_and_verified_streams(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .guard_bytes = 64, .is_secure = true, .is_verifying_streams = true};
  rig r;
  tarn_ptr block = 0;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  for (uint64_t n = 1; n < 16; n++) {
    CHECK_OK(tarn_alloc(r.heap, 5000, r.streams[0], &block));
    CHECK_OK(tarn_device_fill(r.device, block, 7, 5000, r.streams[0]));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, n, 1, 801));
    const tarn_status status = tarn_free(r.heap, block, r.streams[0]);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    if (status != TARN_OK) {
      CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
      CHECK(rig_host_is((const void *)(uintptr_t)block, 7, 5000));
      CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    }
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A free whose stream the driver does not say anything about does not take a block from the graph
 * that is to hold it. */
static void held_blocks_and_faults(void) {
  const tarn_capture_config holding = {.size = sizeof(holding), .holds_freed = true};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 5000, r.streams[0], &block));
  tarn_capture *capture = rig_capture_begin(&r, &holding);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CAPTURE_STATE, 1, 1, 801));
  CHECK_STATUS(rig_free(&r, &block, r.streams[0]), TARN_UNSUPPORTED);
  CHECK_EQ(rig_stats(&r).live_blocks, 1);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  tarn_graph_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_graph_get_info(graph, &info));
  CHECK_EQ(info.held_blocks, 1);
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Nor does it make another branch's use of a captured block forgotten. */
static void branches_and_faults(void) {
  for (uint64_t n = 1; n < 8; n++) {
    rig r;
    rig_block block, next;
    REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
    tarn_capture *capture = rig_capture_begin(&r, NULL);
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
    rig_order(&r, r.streams[0], r.streams[1]);
    CHECK_OK(tarn_use(r.heap, block.address, r.streams[1]));
    rig_touch(&r, &block, r.streams[1], true);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CAPTURE_STATE, n, 1, 801));
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[0]));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &next));
    CHECK(next.address != block.address);
    CHECK_OK(tarn_free(r.heap, next.address, r.streams[0]));
    rig_order(&r, r.streams[1], r.streams[0]);
    CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
    rig_close(&r);
  }
}

typedef struct short_program {
  rig r;
  rig_block kept;
  tarn_stats_scope *scope;
} short_program;

/* Begins an exact scope and frees what is kept. */
static bool begin_scope(tarn_heap *heap, uint64_t bytes, void *user) {
  static const tarn_stats_scope_config exact = {.size = sizeof(exact), .is_exact = true};
  short_program *p = user;
  (void)bytes;
  if (p->scope != NULL) {
    return false;
  }
  CHECK_OK(tarn_stats_scope_begin(heap, &exact, &p->scope));
  CHECK_OK(rig_free(&p->r, &p->kept, p->r.streams[0]));
  return true;
}

/* An allocation that is under way when a scope begins may be missed in its peak; but the counters
 * stay right, and the peak does not become nonsense when the block is freed. */
static void scopes_and_calls_under_way(void) {
  static short_program p;
  const tarn_heap_config config = {
      .size = sizeof(config), .on_shortage = begin_scope, .on_shortage_user = &p};
  rig_block block;
  REQUIRE(rig_open(&p.r, "sim:64M", &config, 1));
  CHECK_OK(rig_alloc(&p.r, 40 * MIB, p.r.streams[0], &p.kept));
  CHECK_OK(rig_alloc(&p.r, 48 * MIB, p.r.streams[0], &block));
  CHECK(p.scope != NULL);
  CHECK_OK(tarn_heap_check(p.r.heap));
  CHECK_OK(rig_free(&p.r, &block, p.r.streams[0]));
  CHECK_OK(tarn_heap_check(p.r.heap));
  tarn_stats_scope_result result = {.size = sizeof(result)};
  CHECK_OK(tarn_stats_scope_end(p.scope, &result));
  CHECK(result.live_peak_bytes <= 48 * MIB);
  CHECK_EQ(result.live_begin_bytes, 40 * MIB);
  CHECK_EQ(result.live_end_bytes, 0);
  rig_close(&p.r);
}

/* A live block is in use on a stream that the heap has never met, ordered by an event alone. */
static void destruction_and_strange_streams(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  CHECK_OK(rig_alloc(&r, 3 << 20, r.streams[0], &block));
  rig_order(&r, r.streams[0], r.streams[1]);
  rig_touch(&r, &block, r.streams[1], false);
  rig_close_live(&r, 1);
}

static const test_case cases[] = {
    {"quarantine and captures", quarantine_and_captures},
    {"guards and captures", guards_and_captures},
    {"fills and captures", fills_and_captures},
    {"stacks and captures", stacks_and_captures},
    {"reset and graphs", reset_and_graphs},
    {"fills and verified streams", fills_and_verified_streams},
    {"alignments and granularity", alignments_and_granularity},
    {"peaks and faults", peaks_and_faults},
    {"shortage and graphs", shortage_and_graphs},
    {"pools and destruction", pools_and_destruction},
    {"sleep and captures of others", sleep_and_captures_of_others},
    {"budgets and lost devices", budgets_and_lost_devices},
    {"secure frees and verified streams", secure_frees_and_verified_streams},
    {"scopes and calls under way", scopes_and_calls_under_way},
    {"held blocks and faults", held_blocks_and_faults},
    {"branches and faults", branches_and_faults},
    {"destruction and strange streams", destruction_and_strange_streams},
};

TEST_MAIN(cases)
