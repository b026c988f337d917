/* SPDX-License-Identifier: MIT
 *
 * Secure heaps: no block begins with another's content, and none is left behind in memory that goes
 * back to the device. */
#include <string.h>

#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const uint64_t sizes[] = {100, 4000, 70 * KIB, 900 * KIB, 3 * MIB};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static const tarn_heap_config config = {
    .size = sizeof(config), .is_secure = true, .limit_bytes = 24 * MIB};

static bool is_zero(tarn_ptr address, uint64_t n) {
  const uint8_t *bytes = (const uint8_t *)(uintptr_t)address;
  for (uint64_t i = 0; i < n; i++) {
    if (bytes[i] != 0) {
      return false;
    }
  }
  return true;
}

/* Allocates, sees zeros in all of the block, and leaves a secret there. */
static void take(rig *r, uint64_t bytes, tarn_stream stream, rig_block *block) {
  tarn_block_info info = {.size = sizeof(info)};
  REQUIRE(CHECK_OK(rig_alloc(r, bytes, stream, block)));
  CHECK_OK(tarn_block_get_info(r->heap, block->address, &info));
  CHECK_OK(tarn_stream_synchronize(r->device, stream));
  CHECK(is_zero(block->address, info.usable_bytes));
  CHECK_OK(tarn_device_fill(r->device, block->address, 0x99, bytes, stream));
}

/* The same stream, another one, behind a wait, after moves and trims: always zeros. */
static void every_owner_sees_zeros(void) {
  for (int seed = 1; seed <= 3; seed++) {
    char device[] = "sim:64M,seed=0";
    device[sizeof(device) - 2] = (char)('0' + seed);
    rig r;
    REQUIRE(rig_open(&r, device, &config, 3));
    for (int round = 0; round < 6; round++) {
      rig_block blocks[2 * N_SIZES];
      for (int i = 0; i < 2 * N_SIZES; i++) {
        take(&r, sizes[i % N_SIZES], r.streams[(i + round) % 3], &blocks[i]);
      }
      CHECK_OK(tarn_use(r.heap, blocks[3].address, r.streams[round % 3]));
      for (int i = 0; i < 2 * N_SIZES; i++) {
        CHECK_OK(rig_free(&r, &blocks[i], r.streams[(i + round) % 3]));
      }
      rig_block large;
      take(&r, 15 * MIB, r.streams[round % 3], &large);
      CHECK_OK(rig_free(&r, &large, r.streams[round % 3]));
      if (round == 3) {
        CHECK_OK(tarn_heap_trim(r.heap, 4 * MIB));
      }
      CHECK(rig_is_sound(&r));
    }
    rig_close(&r);
  }
}

/* What the heap keeps holds nothing once the stream got there. */
static void freed_blocks_are_empty(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  for (int i = 0; i < N_SIZES; i++) {
    rig_block block;
    take(&r, sizes[i], r.streams[0], &block);
    const tarn_ptr address = block.address;
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK(is_zero(address, sizes[i]));
  }
  rig_close(&r);
}

/* Content that is dropped is zeros, content that is saved comes back. */
static void asleep(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  for (int i = 0; i < N_SIZES; i++) {
    rig_block block;
    take(&r, sizes[i], r.streams[0], &block);
    CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
    CHECK_OK(tarn_heap_wake(r.heap));
    CHECK_EQ(*(const uint8_t *)(uintptr_t)(block.address + sizes[i] - 1), 0x99);
    CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP));
    CHECK_OK(tarn_heap_wake(r.heap));
    CHECK(is_zero(block.address, sizes[i]));
    CHECK_OK(tarn_sim_own(r.device, block.address, block.bytes, block.owner));
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
  }
  rig_close(&r);
}

/* Live blocks of a heap that is destroyed are filled before their memory goes. */
static void destroyed_with_live_blocks(void) {
  rig r;
  rig_block blocks[N_SIZES];
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  for (int i = 0; i < N_SIZES; i++) {
    take(&r, sizes[i], r.streams[0], &blocks[i]);
  }
  tarn_call_counts before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
  CHECK_OK(tarn_device_get_calls(r.device, &before));
  uint64_t n_live = 0;
  CHECK_OK(tarn_heap_destroy(r.heap, &n_live));
  r.heap = NULL;
  CHECK_EQ(n_live, N_SIZES);
  CHECK_OK(tarn_device_get_calls(r.device, &after));
  CHECK_EQ(after.calls[TARN_CALL_FILL] - before.calls[TARN_CALL_FILL], N_SIZES);
  rig_close(&r);
}

/* Each mapping that cannot be given up at first: what is cleared already is not there any more. */
static void destroyed_again(void) {
  bool has_failed = true;
  for (uint64_t nth = 1; has_failed; nth++) {
    rig r;
    rig_block blocks[N_SIZES];
    REQUIRE(rig_open(&r, "sim:64M", &config, 1));
    for (int i = 0; i < N_SIZES; i++) {
      take(&r, sizes[i], r.streams[0], &blocks[i]);
    }
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_UNMAP, nth, 1, 999));
    has_failed = tarn_heap_destroy(r.heap, NULL) != TARN_OK;
    CHECK_OK(has_failed ? tarn_heap_destroy(r.heap, NULL) : TARN_OK);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    r.heap = NULL;
    rig_close(&r);
    CHECK(has_failed || nth > 2);
  }
}

/* On a stream for which the heap has no record any more. */
static void freed_without_record(void) {
  enum { N = 1024 };
  static tarn_stream streams[N];
  rig r;
  rig_block block, small;
  int n = 0;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  take(&r, 3 * MIB, r.streams[0], &block);
  const tarn_ptr address = block.address;
  do {
    CHECK_OK(tarn_stream_create(r.device, &streams[n]));
    if (rig_alloc(&r, 256, streams[n], &small) != TARN_OK) {
      break;
    }
    CHECK_OK(rig_free(&r, &small, streams[n]));
  } while (++n < N);
  REQUIRE(n < N);
  rig_order(&r, r.streams[0], streams[n]);
  CHECK_OK(rig_free(&r, &block, streams[n]));
  CHECK_OK(tarn_stream_synchronize(r.device, streams[n]));
  CHECK(is_zero(address, 3 * MIB));
  for (int i = 0; i <= n; i++) {
    CHECK_OK(tarn_stream_retire(r.heap, streams[i]));
    CHECK_OK(tarn_stream_destroy(r.device, streams[i]));
  }
  rig_close(&r);
}

/* With a quarantine: what is there is zeros, and who writes there is found. */
static void with_quarantine(void) {
  tarn_heap_config both = config;
  both.quarantine_bytes = MIB;
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &both, 1));
  for (int i = 0; i < N_SIZES; i++) {
    rig_block block;
    take(&r, sizes[i], r.streams[0], &block);
    const tarn_ptr address = block.address;
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK_OK(tarn_heap_check(r.heap));
    if (sizes[i] < MIB) { /* still there */
      CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
      *(uint8_t *)(uintptr_t)address = 7;
      CHECK_STATUS(tarn_heap_check(r.heap), TARN_CORRUPT);
      *(uint8_t *)(uintptr_t)address = 0;
    }
  }
  rig_close(&r);
}

/* What a graph leaves in its arena is out of reach, so there are no captures. */
static void captures_are_refused(void) {
  rig r;
  rig_block block;
  tarn_capture *capture = NULL;
  tarn_arena *arena = NULL;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_STATUS(tarn_capture_begin(r.heap, NULL, r.streams[0], &capture), TARN_UNSUPPORTED);
  CHECK_HAS(tarn_last_message(), "secure");
  CHECK_STATUS(tarn_arena_create(r.heap, NULL, &arena), TARN_UNSUPPORTED);
  CHECK(capture == NULL && arena == NULL);
  take(&r, 4096, r.streams[0], &block);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

/* A stream that somebody captures: what it would fill with zeros the graph would, whenever it is
 * launched, over whoever has the memory then. So it is refused. */
static void captured_streams_are_refused(void) {
  rig r;
  rig_block block;
  tarn_ptr none = 1;
  tarni_graph raw = NULL;
  REQUIRE(rig_open(&r, "sim:64M", &config, 2));
  tarni_port *port = (tarni_port *)r.device;
  take(&r, 4096, r.streams[0], &block);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_RELAXED));
  CHECK_STATUS(tarn_free(r.heap, block.address, r.streams[0]), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "being captured");
  CHECK_STATUS(tarn_alloc(r.heap, 4096, r.streams[0], &none), TARN_CAPTURE);
  CHECK_EQ(none, 0);
  CHECK_OK(tarni_port_capture_end(port, r.streams[0], &raw));
  CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
  CHECK_EQ(rig_stats(&r).live_blocks, 1);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

static const test_case cases[] = {
    {"captured streams are refused", captured_streams_are_refused},
    {"captures are refused", captures_are_refused},
    {"every owner sees zeros", every_owner_sees_zeros},
    {"freed blocks are empty", freed_blocks_are_empty},
    {"asleep", asleep},
    {"destroyed with live blocks", destroyed_with_live_blocks},
    {"destroyed again", destroyed_again},
    {"freed without a record", freed_without_record},
    {"with a quarantine", with_quarantine},
};

TEST_MAIN(cases)
