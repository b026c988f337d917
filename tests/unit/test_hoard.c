/* SPDX-License-Identifier: MIT
 *
 * Blocks that are allocated on one stream and freed on another: what the second has freed comes
 * back to the first once it is complete, and the heap does not grow for ever. */
#include <pthread.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, KIB = 1 << 10, N_LIVE = 20, MOST_TIMES = 4 };

/* Each block is written on the first stream, and freed on another one behind it. The device is not
 * left behind for good, so not all that is freed is in use. */
static void ring_run(rig *r, uint64_t bytes, int n_steps) {
  rig_block blocks[N_LIVE] = {{0}};
  for (int i = 0; i < n_steps; i++) {
    rig_block *block = &blocks[i % N_LIVE];
    const tarn_stream other = r->streams[1 + i % (r->n_streams - 1)];
    if (block->address != 0) {
      rig_order(r, r->streams[0], other);
      CHECK_OK(rig_free(r, block, other));
    }
    CHECK_OK(rig_alloc(r, bytes, r->streams[0], block));
    if (i % N_LIVE == 0) {
      CHECK_OK(tarn_stream_synchronize(r->device, other));
    }
  }
  for (int i = 0; i < N_LIVE; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
}

/* What was held at most. */
static uint64_t held_by_ring(const tarn_heap_config *config, int n_streams, uint64_t bytes,
                             int n_steps) {
  static rig r;
  if (!rig_open(&r, "sim:16G", config, n_streams)) {
    return 0;
  }
  ring_run(&r, bytes, n_steps);
  const tarn_heap_stats stats = rig_stats(&r);
  CHECK_EQ(stats.waits, 0); /* no stream waits for another: that is not this policy's */
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
  return stats.reserved_peak_bytes;
}

static void large_blocks_come_back(void) {
  const tarn_heap_config never = {.size = sizeof(never), .stealing = TARN_STEAL_NEVER};
  const uint64_t most = (uint64_t)MOST_TIMES * N_LIVE * 3 * MIB;
  CHECK(held_by_ring(NULL, 2, (uint64_t)3 * MIB, 2000) <= most);
  CHECK(held_by_ring(&never, 2, (uint64_t)3 * MIB, 2000) <= most);
  CHECK(held_by_ring(NULL, RIG_STREAMS, (uint64_t)3 * MIB, 2000) <= most);
}

/* They are kept in the other streams' caches and bins. */
static void small_blocks_come_back(void) {
  const uint64_t most = (uint64_t)64 * MIB;
  CHECK(held_by_ring(NULL, 2, (uint64_t)60 * KIB, 8000) <= most);
  CHECK(held_by_ring(NULL, 4, (uint64_t)60 * KIB, 8000) <= most);
  CHECK(held_by_ring(NULL, 2, (uint64_t)900 * KIB, 2000) <= most + most);
}

/* Each stream uses what it has freed itself: that is left with it, however much it is in all. */
static void own_is_left_alone(void) {
  static rig r;
  rig_block block;
  if (!rig_open(&r, "sim:16G", NULL, RIG_STREAMS)) {
    return;
  }
  for (int i = 0; i < 4000; i++) {
    const tarn_stream stream = r.streams[i % RIG_STREAMS];
    const uint64_t bytes = (uint64_t)8 * MIB + (uint64_t)(i % 7) * 64 * KIB;
    CHECK_OK(rig_alloc(&r, bytes, stream, &block));
    CHECK_OK(rig_free(&r, &block, stream));
  }
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_heap_get_calls(r.heap, &counts));
  CHECK_EQ(counts.calls[TARN_CALL_EVENT_RECORD], 0);
  CHECK(rig_stats(&r).reserved_bytes >= (uint64_t)8 * MIB * RIG_STREAMS);
  rig_close(&r);
}

static void *work_once(void *of) {
  rig *r = of;
  tarn_ptr blocks[N_LIVE];
  for (int i = 0; i < N_LIVE; i++) {
    CHECK_OK(tarn_alloc(r->heap, (uint64_t)3 * MIB, TARNI_STREAM_PER_THREAD, &blocks[i]));
  }
  for (int i = 0; i < N_LIVE; i++) {
    CHECK_OK(tarn_free(r->heap, blocks[i], TARNI_STREAM_PER_THREAD));
  }
  return NULL;
}

/* Threads that come and go leave what their default streams have freed to those after them. */
static void threads_leave_it(void) {
  static rig r;
  if (!rig_open(&r, "sim:16G", NULL, 1)) {
    return;
  }
  for (int i = 0; i < 40; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, work_once, &r) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  CHECK(rig_stats(&r).reserved_peak_bytes <= (uint64_t)MOST_TIMES * N_LIVE * 3 * MIB);
  rig_close(&r);
}

/* One live block a slab: nothing comes back, so it is looked for only as the heap grows. */
static void vain_is_noted(void) {
  enum { N_BLOCKS = 1 << 17, N_SLAB = 64 };
  static rig r;
  static tarn_ptr blocks[N_BLOCKS];
  if (!rig_open(&r, "sim:16G", NULL, 2)) {
    return;
  }
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(tarn_alloc(r.heap, KIB, r.streams[0], &blocks[i]));
  }
  for (int i = 0; i < N_BLOCKS; i++) {
    if (i % N_SLAB != 0) {
      CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[1]));
    }
  }
  r.heap->rest.lean_peak = 0; /* as if it had held them at no time */
  tarn_ptr large[4];
  for (int i = 0; i < 4; i++) {
    CHECK_OK(tarn_alloc(r.heap, (uint64_t)4 * MIB, r.streams[0], &large[i]));
    CHECK(r.heap->hoard.vain_bytes >= (uint64_t)128 * MIB);
    CHECK(r.heap->hoard.vain_bytes < (uint64_t)132 * MIB); /* that was the first time */
  }
  CHECK(rig_is_sound(&r));
  rig_close_live(&r, N_BLOCKS / N_SLAB + 4);
}

/* The streams have nothing to do: the only events are the heap's. */
static void quiet_run(rig *r, int n_steps) {
  tarn_ptr blocks[N_LIVE] = {0};
  for (int i = 0; i < n_steps + N_LIVE; i++) {
    tarn_ptr *block = &blocks[i % N_LIVE];
    CHECK_OK(*block != 0 ? tarn_free(r->heap, *block, r->streams[1]) : TARN_OK);
    *block = 0;
    CHECK_OK(i < n_steps ? tarn_alloc(r->heap, (uint64_t)3 * MIB, r->streams[0], block) : TARN_OK);
  }
}

/* Whatever fails, and however often: the stream is asked again. */
static void refused_is_asked_again(void) {
  static const tarn_call calls[] = {TARN_CALL_EVENT_CREATE, TARN_CALL_EVENT_RECORD,
                                    TARN_CALL_EVENT_QUERY};
  static rig r;
  for (int i = 0; i < 3; i++) {
    uint64_t n_failed = 0;
    if (!rig_open(&r, "sim:16G", NULL, 2)) {
      return;
    }
    CHECK_OK(tarn_sim_fail(r.device, calls[i], 1, 3, 2));
    quiet_run(&r, 2000);
    CHECK_OK(tarn_sim_failed(r.device, &n_failed));
    CHECK_EQ(n_failed, 3);
    CHECK(rig_stats(&r).reserved_peak_bytes <= (uint64_t)MOST_TIMES * N_LIVE * 3 * MIB);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* What a stream took before others freed it is no reason to leave it alone, once it frees. */
static void parts_change(void) {
  static rig r;
  if (!rig_open(&r, "sim:16G", NULL, 2)) {
    return;
  }
  ring_run(&r, (uint64_t)3 * MIB, 2000);
  const tarn_stream first = r.streams[0];
  r.streams[0] = r.streams[1];
  r.streams[1] = first;
  ring_run(&r, (uint64_t)3 * MIB, 2000);
  CHECK(rig_stats(&r).reserved_peak_bytes <= (uint64_t)MOST_TIMES * N_LIVE * 3 * MIB);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static const test_case cases[] = {
    {"large blocks that another stream frees come back", large_blocks_come_back},
    {"small ones, too", small_blocks_come_back},
    {"what a stream uses itself is left with it", own_is_left_alone},
    {"threads that are gone leave theirs to others", threads_leave_it},
    {"where little comes back it is noted", vain_is_noted},
    {"a stream whose fence was refused is asked again", refused_is_asked_again},
    {"streams may change their parts", parts_change},
};

TEST_MAIN(cases)
