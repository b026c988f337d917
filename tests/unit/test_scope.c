/* SPDX-License-Identifier: MIT
 *
 * Scopes: slots by index, one way back for all blocks, and no way around it. Kernels use the blocks
 * up to the release and the oracle watches who gets them next. */
#include "tarn/scope.h"

#include "port/port.h"
#include "support/dock.h"
#include "support/test.h"

#define DEVICE "sim:256M,order=lazy"

static tarn_scope_slot slot_of(const tarn_scope *scope, uint32_t index) {
  tarn_scope_slot slot = {.size = sizeof(slot)};
  CHECK_OK(tarn_scope_get(scope, index, &slot));
  return slot;
}

static void slots_by_index(void) {
  rig r;
  REQUIRE(rig_open(&r, DEVICE, NULL, 1));
  tarn_scope *scope = NULL;
  REQUIRE_OK(tarn_scope_create(r.heap, 3, r.streams[0], &scope));
  tarn_ptr second = 0, parameters = 0;
  CHECK(!slot_of(scope, 0).is_filled);
  CHECK_OK(tarn_scope_alloc(scope, 1, 5000, &second));
  CHECK_OK(tarn_scope_alloc(scope, TARN_SCOPE_PARAMETERS, 64, &parameters));
  CHECK_OK(tarn_scope_alloc(scope, 2, 0, NULL));
  CHECK_EQ(slot_of(scope, 1).address, second);
  CHECK_EQ(slot_of(scope, 1).bytes, 5000);
  CHECK_EQ(slot_of(scope, TARN_SCOPE_PARAMETERS).address, parameters);
  CHECK(slot_of(scope, 2).is_filled && slot_of(scope, 2).address == 0);
  CHECK(!slot_of(scope, 0).is_filled);
  CHECK_EQ(rig_stats(&r).live_blocks, 2);
  CHECK_OK(tarn_scope_release(scope, r.streams[0]));
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK(!slot_of(scope, 1).is_filled && !slot_of(scope, TARN_SCOPE_PARAMETERS).is_filled);
  CHECK_OK(tarn_scope_alloc(scope, 1, 100, NULL)); /* it can be filled again */
  CHECK_OK(tarn_scope_destroy(scope));
  CHECK_OK(tarn_scope_destroy(NULL));
  rig_close(&r);
}

static void occupied_slots_are_refused(void) {
  rig r;
  REQUIRE(rig_open(&r, DEVICE, NULL, 1));
  tarn_scope *scope = NULL;
  tarn_ptr block = 0, other = 1, mine = 0;
  REQUIRE_OK(tarn_scope_create(r.heap, 2, r.streams[0], &scope));
  REQUIRE_OK(tarn_scope_alloc(scope, 1, 4096, &block));
  REQUIRE_OK(tarn_alloc(r.heap, 100, r.streams[0], &mine));
  CHECK_STATUS(tarn_scope_alloc(scope, 1, 64, &other), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "slot 1");
  CHECK_HAS(tarn_last_message(), "4096");
  CHECK_EQ(other, 0);
  CHECK_STATUS(tarn_scope_put(scope, 1, mine), TARN_STATE);
  CHECK_EQ(slot_of(scope, 1).address, block);
  CHECK_EQ(rig_stats(&r).live_blocks, 2);
  CHECK_OK(tarn_scope_put(scope, 0, mine));
  CHECK_STATUS(tarn_scope_put(scope, TARN_SCOPE_PARAMETERS, mine), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "slot 0 already");
  CHECK_OK(tarn_scope_destroy(scope));
  rig_close(&r);
}

static void bounds_are_checked(void) {
  rig r;
  REQUIRE(rig_open(&r, DEVICE, NULL, 1));
  tarn_scope *scope = NULL;
  tarn_ptr block = 1;
  tarn_scope_slot slot = {.size = sizeof(slot)};
  REQUIRE_OK(tarn_scope_create(r.heap, 2, r.streams[0], &scope));
  static const uint32_t bad[] = {2, 3, 1000, UINT32_MAX - 1};
  for (int i = 0; i < 4; i++) {
    CHECK_STATUS(tarn_scope_alloc(scope, bad[i], 64, &block), TARN_RANGE);
    CHECK_HAS(tarn_last_message(), "of a scope of 2 slots");
    CHECK_EQ(block, 0);
    CHECK_STATUS(tarn_scope_get(scope, bad[i], &slot), TARN_RANGE);
    CHECK_STATUS(tarn_scope_take(scope, bad[i], &block), TARN_RANGE);
  }
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK_OK(tarn_scope_destroy(scope));
  CHECK_STATUS(tarn_scope_create(r.heap, UINT32_MAX, r.streams[0], &scope), TARN_HOST_MEMORY);
  CHECK(scope == NULL);
  REQUIRE_OK(tarn_scope_create(r.heap, 0, r.streams[0], &scope)); /* parameters alone */
  CHECK_STATUS(tarn_scope_alloc(scope, 0, 64, &block), TARN_RANGE);
  CHECK_OK(tarn_scope_alloc(scope, TARN_SCOPE_PARAMETERS, 64, &block));
  CHECK_OK(tarn_scope_destroy(scope));
  CHECK_STATUS(tarn_scope_create(NULL, 1, NULL, &scope), TARN_INVALID);
  CHECK_STATUS(tarn_scope_create(r.heap, 1, NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_scope_alloc(NULL, 0, 1, &block), TARN_INVALID);
  CHECK_STATUS(tarn_scope_release(NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_scope_get(NULL, 0, &slot), TARN_INVALID);
  CHECK_STATUS(tarn_scope_take(NULL, 0, NULL), TARN_INVALID);
  rig_close(&r);
}

/* The scope that leaked the first one of these would fail rig_close: it counts live blocks. */
static void blocks_change_hands(void) {
  rig r;
  REQUIRE(rig_open(&r, DEVICE, NULL, 1));
  tarn_scope *scope = NULL;
  tarn_ptr block = 0, taken = 0;
  REQUIRE_OK(tarn_scope_create(r.heap, 2, r.streams[0], &scope));
  REQUIRE_OK(tarn_alloc(r.heap, 10000, r.streams[0], &block));
  CHECK_STATUS(tarn_scope_put(scope, 0, block + 512), TARN_INTERIOR);
  CHECK_STATUS(tarn_scope_put(scope, 0, 4096), TARN_FOREIGN);
  CHECK_OK(tarn_scope_put(scope, 0, block));
  CHECK(slot_of(scope, 0).bytes >= 10000);
  CHECK_STATUS(tarn_scope_take(scope, 1, &taken), TARN_STATE);
  CHECK_OK(tarn_scope_take(scope, 0, &taken));
  CHECK_EQ(taken, block);
  CHECK_OK(tarn_scope_release(scope, r.streams[0]));
  CHECK_EQ(rig_stats(&r).live_blocks, 1);
  CHECK_OK(tarn_free(r.heap, taken, r.streams[0]));
  CHECK_STATUS(tarn_scope_put(scope, 0, taken), TARN_FOREIGN);
  /* Freed behind the scope's back: told, once, and nothing is freed twice. */
  REQUIRE_OK(tarn_scope_alloc(scope, 0, 300, &block));
  REQUIRE_OK(tarn_scope_alloc(scope, 1, 400, NULL));
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK_STATUS(tarn_scope_release(scope, r.streams[0]), TARN_DOUBLE_FREE);
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK_OK(tarn_scope_destroy(scope));
  rig_close(&r);
}

/* Slots that share a block: side by side, and one return for all. */
static void adjacent_slots(void) {
  rig r;
  REQUIRE(rig_open(&r, DEVICE, NULL, 2));
  tarn_scope *scope = NULL;
  static const uint64_t bytes[] = {256, 0, 100, 1024, 1};
  tarn_ptr blocks[5] = {1, 1, 1, 1, 1}, taken = 0;
  REQUIRE_OK(tarn_scope_create(r.heap, 8, r.streams[0], &scope));
  REQUIRE_OK(tarn_scope_alloc_adjacent(scope, 2, 5, bytes, blocks));
  CHECK_EQ(blocks[1], 0);
  CHECK_EQ(blocks[2], blocks[0] + 256);
  CHECK_EQ(blocks[3], blocks[2] + 256);
  CHECK_EQ(blocks[4], blocks[3] + 1024);
  CHECK_EQ(slot_of(scope, 4).address, blocks[2]);
  CHECK_EQ(slot_of(scope, 4).bytes, 100);
  CHECK_EQ(rig_stats(&r).live_blocks, 1);
  CHECK_STATUS(tarn_scope_take(scope, 2, &taken), TARN_STATE);
  CHECK_STATUS(tarn_scope_take(scope, 4, &taken), TARN_STATE);
  /* All or none: an occupied slot, one that is not there, a sum without an end. */
  CHECK_STATUS(tarn_scope_alloc_adjacent(scope, 0, 3, bytes, blocks), TARN_STATE);
  CHECK_EQ(blocks[0], 0);
  CHECK_STATUS(tarn_scope_alloc_adjacent(scope, 7, 2, bytes, NULL), TARN_RANGE);
  CHECK_STATUS(tarn_scope_alloc_adjacent(scope, 9, 0, bytes, NULL), TARN_RANGE);
  CHECK_STATUS(tarn_scope_alloc_adjacent(scope, 0, 2, NULL, NULL), TARN_INVALID);
  static const uint64_t huge[] = {UINT64_MAX / 2, UINT64_MAX / 2 + 2};
  CHECK_STATUS(tarn_scope_alloc_adjacent(scope, 0, 2, huge, NULL), TARN_OVERFLOWED);
  CHECK(!slot_of(scope, 0).is_filled);
  CHECK_OK(tarn_scope_alloc(scope, 0, 64, NULL));
  /* A return that fails keeps the parts, too. */
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_STREAM_ID, 1, 0, 1));
  CHECK_STATUS(tarn_scope_release(scope, r.streams[1]), TARN_INVALID);
  CHECK(slot_of(scope, 2).is_filled && slot_of(scope, 6).is_filled);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK_OK(tarn_scope_release(scope, r.streams[0]));
  for (uint32_t i = 0; i < 8; i++) {
    CHECK(!slot_of(scope, i).is_filled);
  }
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK_OK(tarn_scope_alloc_adjacent(scope, 0, 2, bytes, NULL));
  CHECK_OK(tarn_scope_destroy(scope));
  rig_close(&r);
}

/* Uses all blocks of the scope by a kernel. */
static void use_all(rig *r, const tarn_scope *scope, uint32_t n, rig_block *blocks,
                    tarn_stream stream) {
  for (uint32_t i = 0; i < n; i++) {
    const tarn_scope_slot slot = slot_of(scope, i);
    rig_own(r, slot.address, slot.bytes, &blocks[i]);
    rig_touch(r, &blocks[i], stream, true);
  }
}

static void disown_all(rig *r, uint32_t n, const rig_block *blocks) {
  for (uint32_t i = 0; i < n; i++) {
    CHECK_OK(tarn_sim_disown(r->device, blocks[i].address, blocks[i].bytes));
  }
}

/* Released or destroyed while its kernels have not run: the next owner, on the same stream or on
 * another, is ordered behind them, without anybody waiting. */
static void nothing_is_reused_too_early(void) {
  for (int way = 0; way < 2; way++) {
    rig r;
    REQUIRE(rig_open(&r, DEVICE, NULL, 2));
    tarn_scope *scope = NULL;
    rig_block blocks[8];
    REQUIRE_OK(tarn_scope_create(r.heap, 8, r.streams[0], &scope));
    for (uint32_t i = 0; i < 8; i++) {
      REQUIRE_OK(tarn_scope_alloc(scope, i, (uint64_t)1000 << i, NULL));
    }
    use_all(&r, scope, 8, blocks, r.streams[0]);
    disown_all(&r, 8, blocks);
    if (way == 0) {
      CHECK_OK(tarn_scope_release(scope, r.streams[0]));
    }
    CHECK_OK(tarn_scope_destroy(scope));
    CHECK(rig_state(&r).pending_operations > 0);
    for (uint32_t i = 0; i < 8; i++) {
      rig_block block;
      CHECK_OK(rig_alloc(&r, (uint64_t)1000 << i, r.streams[i % 2], &block));
      CHECK_OK(rig_free(&r, &block, r.streams[i % 2]));
    }
    rig_close(&r);
  }
}

/* Blocks used on one stream, released on another behind a fence of the first. */
static void released_behind_a_fence(void) {
  dock d;
  REQUIRE(dock_open(&d, DEVICE, NULL, 0, 2));
  tarn_stream a = d.rig.streams[0], b = d.rig.streams[1];
  tarn_scope *scope = NULL;
  tarn_fence *fence = NULL;
  rig_block blocks[3], next;
  REQUIRE_OK(tarn_scope_create(d.rig.heap, 3, a, &scope));
  for (uint32_t i = 0; i < 3; i++) {
    REQUIRE_OK(tarn_scope_alloc(scope, i, 4096, NULL));
  }
  use_all(&d.rig, scope, 3, blocks, a);
  REQUIRE_OK(tarn_fence_record(d.copier, a, &fence));
  CHECK_STATUS(tarn_fence_query(fence), TARN_NOT_READY);
  disown_all(&d.rig, 3, blocks);
  CHECK_OK(tarn_scope_release_after(scope, fence, b));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&d.rig, 4096, b, &next));
    CHECK_OK(rig_free(&d.rig, &next, b));
  }
  CHECK_OK(tarn_fence_wait(fence));
  CHECK_OK(tarn_fence_query(fence));
  CHECK_OK(tarn_scope_release_after(scope, fence, b)); /* complete, and nothing to give */
  CHECK_STATUS(tarn_scope_release_after(scope, NULL, b), TARN_INVALID);
  tarn_fence_destroy(fence);
  CHECK_OK(tarn_scope_destroy(scope));
  dock_close(&d);
}

/* A wait for what is outside of a capture would end it: it is refused, and nothing has changed. */
static void behind_a_fence_in_a_capture(void) {
  dock d;
  REQUIRE(dock_open(&d, DEVICE, NULL, 0, 2));
  tarni_port *port = (tarni_port *)d.rig.device;
  tarn_stream a = d.rig.streams[0], b = d.rig.streams[1];
  tarn_scope *scope = NULL;
  tarn_fence *fence = NULL;
  tarni_graph graph = NULL;
  REQUIRE_OK(tarn_scope_create(d.rig.heap, 1, a, &scope));
  REQUIRE_OK(tarn_scope_alloc(scope, 0, 4096, NULL));
  REQUIRE_OK(tarn_fence_record(d.copier, a, &fence));
  CHECK_OK(tarni_port_capture_begin(port, b, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_STATUS(tarn_scope_release_after(scope, fence, b), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "tarn_fence_wait");
  CHECK(slot_of(scope, 0).is_filled);
  CHECK_OK(tarni_port_capture_end(port, b, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  CHECK_OK(tarn_scope_release_after(scope, fence, b));
  CHECK(!slot_of(scope, 0).is_filled);
  tarn_fence_destroy(fence);
  CHECK_OK(tarn_scope_destroy(scope));
  dock_close(&d);
}

/* A return that fails leaves the block in its slot, live; the same call can be made again. */
static void fails_closed(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 2));
  tarn_scope *scope = NULL;
  REQUIRE_OK(tarn_scope_create(r.heap, 2, r.streams[0], &scope));
  REQUIRE_OK(tarn_scope_alloc(scope, 0, 64, NULL));
  REQUIRE_OK(tarn_scope_alloc(scope, 1, 3 << 20, NULL));
  /* The heap does not know the second stream yet: it must ask the driver who that is. */
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_STREAM_ID, 1, 0, 1));
  CHECK_STATUS(tarn_scope_release(scope, r.streams[1]), TARN_INVALID);
  CHECK(slot_of(scope, 0).is_filled && slot_of(scope, 1).is_filled);
  CHECK_EQ(rig_stats(&r).live_blocks, 2);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK_OK(tarn_scope_release(scope, r.streams[1]));
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK_OK(tarn_scope_destroy(scope));
  rig_close(&r);
}

/* A block that somebody else has freed: the error is told, and the scope is still there after it.
 */
static void freed_by_somebody_else(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_scope *scope = NULL;
  tarn_ptr block = 0;
  REQUIRE_OK(tarn_scope_create(r.heap, 2, r.streams[0], &scope));
  REQUIRE_OK(tarn_scope_alloc(scope, 0, 4096, &block));
  REQUIRE_OK(tarn_scope_alloc(scope, 1, 4096, NULL));
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK_STATUS(tarn_scope_destroy(scope), TARN_DOUBLE_FREE);
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK(!slot_of(scope, 0).is_filled && !slot_of(scope, 1).is_filled);
  CHECK_OK(tarn_scope_destroy(scope));
  rig_close(&r);
}

typedef struct intruder {
  tarn_scope *scope;
  tarn_ptr victim;
  bool is_done;
} intruder;

/* Makes room, and fills the slot for which there was none. */
static bool fill_meanwhile(tarn_heap *heap, uint64_t bytes, void *user) {
  intruder *at = user;
  (void)bytes;
  if (at->is_done) {
    return false;
  }
  at->is_done = true;
  CHECK_OK(tarn_free(heap, at->victim, NULL));
  CHECK_OK(tarn_scope_alloc(at->scope, 0, 4096, NULL));
  return true;
}

/* A slot that is filled by on_shortage, while it is about to be filled, keeps what it got. */
static void filled_meanwhile(void) {
  for (int is_adjacent = 0; is_adjacent < 2; is_adjacent++) {
    intruder at = {0};
    const tarn_heap_config config = {
        .size = sizeof(config), .on_shortage = fill_meanwhile, .on_shortage_user = &at};
    static const uint64_t bytes[2] = {20 << 20, 20 << 20};
    rig r;
    tarn_ptr block = 1;
    REQUIRE(rig_open(&r, "sim:64M", &config, 0));
    REQUIRE_OK(tarn_scope_create(r.heap, 2, NULL, &at.scope));
    REQUIRE_OK(tarn_alloc(r.heap, 40 << 20, NULL, &at.victim));
    CHECK_STATUS(is_adjacent != 0 ? tarn_scope_alloc_adjacent(at.scope, 0, 2, bytes, NULL)
                                  : tarn_scope_alloc(at.scope, 0, 40 << 20, &block),
                 TARN_STATE);
    CHECK(at.is_done && block == (is_adjacent != 0));
    CHECK_EQ(slot_of(at.scope, 0).bytes, 4096);
    CHECK_EQ(rig_stats(&r).live_blocks, 1);
    CHECK_OK(tarn_scope_destroy(at.scope));
    rig_close(&r);
  }
}

/* A lost device lets nothing be proven; the scope ends, and its blocks are not used again. */
static void lost_device(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 2));
  tarn_scope *scope = NULL;
  tarn_ptr block = 1;
  REQUIRE_OK(tarn_scope_create(r.heap, 1, r.streams[0], &scope));
  REQUIRE_OK(tarn_scope_alloc(scope, 0, 64, NULL));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_STREAM_ID, 1, 1, 700));
  CHECK_STATUS(tarn_scope_release(scope, r.streams[1]), TARN_DEVICE_LOST);
  CHECK(slot_of(scope, 0).is_filled);
  CHECK_STATUS(tarn_alloc(r.heap, 3 << 20, r.streams[1], &block), TARN_DEVICE_LOST);
  CHECK_OK(tarn_scope_destroy(scope));
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  tarn_device_close(r.device);
  CHECK_EQ(r.n_findings, 0);
}

static const test_case cases[] = {
    {"slots_by_index", slots_by_index},
    {"occupied_slots_are_refused", occupied_slots_are_refused},
    {"bounds_are_checked", bounds_are_checked},
    {"blocks_change_hands", blocks_change_hands},
    {"adjacent_slots", adjacent_slots},
    {"nothing_is_reused_too_early", nothing_is_reused_too_early},
    {"released_behind_a_fence", released_behind_a_fence},
    {"behind_a_fence_in_a_capture", behind_a_fence_in_a_capture},
    {"fails_closed", fails_closed},
    {"freed_by_somebody_else", freed_by_somebody_else},
    {"filled_meanwhile", filled_meanwhile},
    {"lost_device", lost_device},
};

TEST_MAIN(cases)
