/* SPDX-License-Identifier: MIT
 *
 * Options that look for mistakes: fills, guards, quarantine and stacks find what they are for and
 * name it, and find nothing else. */
#include <stdio.h>
#include <string.h>

#include "record.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static const uint64_t sizes[] = {1, 256, 1000, 70 * KIB, 900 * KIB, 2 * MIB - 256, 3 * MIB + 5};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* ---- What was told ---- */

static char told[600];
static int n_told;

static void note_misuse(tarn_heap *heap, const char *message, void *user) {
  CHECK(heap != NULL);
  CHECK(user == told);
  n_told++;
  (void)snprintf(told, sizeof(told), "%s", message);
}

static bool open_with(rig *r, const char *device, tarn_heap_config config) {
  config.size = sizeof(config);
  config.on_misuse = note_misuse;
  config.on_misuse_user = told;
  n_told = 0;
  told[0] = '\0';
  return rig_open(r, device, &config, 3);
}

#define OPEN(...) open_with(&r, "sim:64M,order=lazy", (tarn_heap_config){__VA_ARGS__})

static bool has_bytes(const rig *r, tarn_ptr address, uint64_t n, uint8_t value) {
  CHECK_OK(tarn_stream_synchronize(r->device, r->streams[0]));
  const uint8_t *bytes = (const uint8_t *)(uintptr_t)address;
  for (uint64_t i = 0; i < n; i++) {
    if (bytes[i] != value) {
      return false;
    }
  }
  return true;
}

/* Writes to the device behind the heap's back. */
static void scribble(const rig *r, tarn_ptr address, uint64_t n, uint8_t value) {
  CHECK_OK(tarn_stream_synchronize(r->device, r->streams[0]));
  memset((void *)(uintptr_t)address, value, n);
}

/* ---- Fills ---- */

static void fills(void) {
  rig r;
  REQUIRE(OPEN(.fill_alloc = 0x5c, .fill_free = 0xe1));
  for (int round = 0; round < 3; round++) {
    rig_block blocks[N_SIZES];
    for (int i = 0; i < N_SIZES; i++) {
      CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &blocks[i]));
      CHECK(has_bytes(&r, blocks[i].address, sizes[i], 0x5c));
    }
    for (int i = 0; i < N_SIZES; i++) {
      const tarn_ptr address = blocks[i].address;
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
      CHECK(has_bytes(&r, address, sizes[i], 0xe1));
    }
    CHECK(rig_is_sound(&r));
  }
  CHECK_EQ(n_told, 0);
  rig_close(&r);
}

/* The fill of a free waits for other streams that use the block. */
static void fills_after_uses(void) {
  rig r;
  REQUIRE(OPEN(.fill_free = 0xe1, .guard_bytes = 256));
  for (int i = 0; i < N_SIZES; i++) {
    rig_block block;
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &block));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    for (int j = 1; j < 3; j++) {
      CHECK_OK(tarn_use(r.heap, block.address, r.streams[j]));
      rig_touch(&r, &block, r.streams[j], false);
    }
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
  }
  CHECK_EQ(rig_stats(&r).pending_bytes, 0); /* the stream has waited for the others */
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* ---- Guards ---- */

static void guards_that_hold(void) {
  rig r;
  REQUIRE(OPEN(.guard_bytes = 256));
  rig_block blocks[N_SIZES];
  for (int i = 0; i < N_SIZES; i++) {
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &blocks[i]));
    CHECK_OK(tarn_device_fill(r.device, blocks[i].address, 0, sizes[i], r.streams[0]));
    tarn_block_info info = {.size = sizeof(info)};
    CHECK_OK(tarn_block_get_info(r.heap, blocks[i].address, &info));
    CHECK_EQ(info.requested_bytes, sizes[i]);
    CHECK(info.usable_bytes >= sizes[i] + 256);
  }
  CHECK(rig_is_sound(&r));
  for (int i = 0; i < N_SIZES; i++) {
    CHECK_OK(tarn_sim_disown(r.device, blocks[i].address, blocks[i].bytes));
    CHECK_STATUS(tarn_free_sized(r.heap, blocks[i].address, sizes[i] + 1, r.streams[0]),
                 TARN_WRONG_SIZE);
    CHECK_OK(tarn_free_sized(r.heap, blocks[i].address, sizes[i], r.streams[0]));
  }
  tarn_ptr aligned = 0;
  CHECK_OK(tarn_alloc_aligned(r.heap, 5000, 4096, r.streams[0], &aligned));
  CHECK_EQ(aligned % 4096, 0);
  CHECK_OK(tarn_free(r.heap, aligned, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* One byte right behind the block, and one at the guard's end. */
static void guards_that_are_written(void) {
  for (int i = 0; i < N_SIZES; i++) {
    rig r;
    rig_block block;
    char text[100];
    REQUIRE(OPEN(.guard_bytes = 256, .stack_depth = 8));
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &block));
    scribble(&r, block.address + sizes[i], 1, 0x42);
    CHECK_STATUS(tarn_heap_check(r.heap), TARN_CORRUPT);
    (void)snprintf(text, sizeof(text), "1 bytes behind the block of %llu bytes at 0x%llx",
                   (unsigned long long)sizes[i], (unsigned long long)block.address);
    CHECK_HAS(tarn_last_message(), text);
    (void)snprintf(text, sizeof(text), "offset %llu: 0x42; it was allocated by 0x",
                   (unsigned long long)sizes[i]);
    CHECK_HAS(tarn_last_message(), text);
    CHECK_OK(tarn_heap_check(r.heap)); /* told once */
    scribble(&r, block.address + sizes[i] + 254, 2, 0x43);
    CHECK_STATUS(tarn_free(r.heap, block.address, r.streams[0]), TARN_CORRUPT);
    CHECK_HAS(tarn_last_message(), "2 bytes behind");
    CHECK_EQ(rig_stats(&r).live_blocks, 1);
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    rig_close(&r);
  }
}

/* ---- Quarantine ---- */

static void quarantine_keeps_blocks(void) {
  rig r;
  REQUIRE(OPEN(.quarantine_bytes = 8 * MIB, .fill_free = 0x77));
  rig_block block;
  tarn_ptr before[4];
  for (int i = 0; i < 4; i++) { /* no address comes again */
    CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &block));
    before[i] = block.address;
    for (int j = 0; j < i; j++) {
      CHECK(before[j] != block.address);
    }
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
  }
  CHECK_EQ(rig_stats(&r).pending_bytes, 4 * KIB);
  CHECK_EQ(rig_stats(&r).live_blocks, 0);
  CHECK_EQ(rig_stats(&r).frees, 4);
  CHECK(rig_is_sound(&r));
  CHECK_STATUS(tarn_free(r.heap, before[0], r.streams[0]), TARN_DOUBLE_FREE);
  /* 12 MiB push the oldest out. */
  for (int i = 0; i < 6; i++) {
    CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[i % 2], &block));
    CHECK_OK(rig_free(&r, &block, r.streams[i % 2]));
    CHECK(rig_stats(&r).pending_bytes <= 8 * MIB);
    CHECK(rig_is_sound(&r));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0)); /* all of it goes */
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_EQ(n_told, 0);
  rig_close(&r);
}

static void use_after_free(void) {
  for (int how = 0; how < 4; how++) {
    rig r;
    rig_block block;
    char text[120];
    REQUIRE(OPEN(.quarantine_bytes = 8 * MIB, .stack_depth = 8));
    CHECK_OK(rig_alloc(&r, 5000, r.streams[0], &block));
    const tarn_ptr address = block.address;
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    scribble(&r, address + 12, 3, 0x01);
    (void)snprintf(text, sizeof(text),
                   "3 bytes of the block of 5000 bytes at 0x%llx were written "
                   "after its free, the first at offset 12: 0x01; it was freed by 0x",
                   (unsigned long long)address);
    switch (how) {
    case 0: /* looked at where it lies */
      CHECK_STATUS(tarn_heap_check(r.heap), TARN_CORRUPT);
      CHECK_HAS(tarn_last_message(), text);
      CHECK_EQ(n_told, 0);
      scribble(&r, address + 12, 3, 0xdd);
      CHECK_OK(tarn_heap_check(r.heap));
      break;
    case 1: /* pushed out */
      CHECK_OK(rig_alloc(&r, 9 * MIB, r.streams[0], &block));
      CHECK_OK(rig_free(&r, &block, r.streams[0]));
      CHECK_EQ(n_told, 1);
      CHECK_HAS(told, text);
      break;
    case 2: /* let go */
      CHECK_OK(tarn_heap_trim(r.heap, 0));
      CHECK_EQ(n_told, 1);
      CHECK_HAS(told, text);
      break;
    default: /* at the end */
      break;
    }
    rig_close(&r);
    CHECK_EQ(n_told, how == 0 ? 0 : 1);
    CHECK(how == 0 || strstr(told, text) != NULL);
  }
}

/* However many blocks are in quarantine, who looks for what is complete does not come by them. */
static void quarantine_is_out_of_the_way(void) {
  enum { N = 1000 };
  rig r;
  tarn_ptr block;
  REQUIRE(OPEN(.quarantine_bytes = N * 256));
  for (int i = 0; i < 2 * N; i++) {
    CHECK_OK(tarn_alloc(r.heap, 256, r.streams[0], &block));
    CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    CHECK(r.heap->pending == NULL);
  }
  CHECK_EQ(rig_stats(&r).pending_bytes, N * 256);
  CHECK_OK(tarn_heap_check(r.heap));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* The lists of records stay short, and as many go as come. */
static void records_of_many(void) {
  enum { N = 40000 };
  static tarn_ptr blocks[N];
  rig r;
  REQUIRE(OPEN(.stack_depth = 1));
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_alloc(r.heap, 256, r.streams[0], &blocks[i]));
  }
  CHECK_EQ(r.heap->debug->n_records, N);
  CHECK(r.heap->debug->n_lists >= N);
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  CHECK_EQ(r.heap->debug->n_records, 0);
  CHECK_OK(tarn_heap_check(r.heap));
  rig_close(&r);
}

/* What is in quarantine is given back before an allocation fails. */
static void quarantine_under_shortage(void) {
  rig r;
  REQUIRE(OPEN(.quarantine_bytes = (uint64_t)1 << 30, .limit_bytes = 16 * MIB));
  for (int i = 0; i < 20; i++) {
    rig_block block;
    REQUIRE(CHECK_OK(rig_alloc(&r, 5 * MIB, r.streams[i % 3], &block)));
    CHECK_OK(rig_free(&r, &block, r.streams[i % 3]));
  }
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_reset(r.heap));
  rig_close(&r);
}

/* ---- Stacks ---- */

__attribute__((noinline)) static void allocate_here(const rig *r, tarn_ptr *block) {
  CHECK_OK(tarn_alloc(r->heap, 3000, r->streams[0], block));
  __asm__ volatile("" ::: "memory"); /* no tail call */
}

static bool has_frame_in(const tarn_block_info *info, const void *function) {
  for (uint64_t i = 0; i < info->n_frames; i++) {
    const uintptr_t at = (uintptr_t)info->frames[i], from = (uintptr_t)function;
    if (at > from && at < from + 512) {
      return true;
    }
  }
  return false;
}

static void stacks(void) {
  rig r;
  tarn_ptr block = 0;
  REQUIRE(OPEN(.stack_depth = 16));
  allocate_here(&r, &block);
  tarn_block_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_block_get_info(r.heap, block + 100, &info));
  if (info.n_frames == 0) {
    test_skip("this platform cannot unwind");
  } else {
    CHECK(info.n_frames <= 16);
    CHECK(has_frame_in(&info, (const void *)(uintptr_t)allocate_here));
    CHECK_STATUS(tarn_free(r.heap, block + 256, r.streams[0]), TARN_INTERIOR);
    CHECK_HAS(tarn_last_message(), "it was allocated by 0x");
    uint64_t n_live = 0;
    CHECK_OK(tarn_heap_destroy(r.heap, &n_live));
    r.heap = NULL;
    CHECK_EQ(n_live, 1);
    CHECK_HAS(tarn_last_message(), "1 blocks of 3072 bytes were still live; the largest of 3000");
    CHECK_HAS(tarn_last_message(), "it was allocated by 0x");
  }
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  r.heap = NULL;
  rig_close(&r);
}

/* ---- Everything at once ---- */

enum { N_MIXED = 16 };

/* One block is replaced by another; now and then another stream used it before. */
static void replace_one(rig *r, rig_block *block, int i, int stream) {
  if (block->address != 0) {
    const tarn_stream other = r->streams[(stream + 1) % 3];
    if (i % 5 == 0) {
      CHECK_OK(tarn_stream_synchronize(r->device, r->streams[stream]));
      CHECK_OK(tarn_use(r->heap, block->address, other));
      rig_touch(r, block, other, false);
    }
    CHECK_OK(rig_free(r, block, r->streams[stream]));
  }
  CHECK_OK(rig_alloc(r, (uint64_t)(i * 7919 % 300000 + 1), r->streams[stream], block));
}

static void sleep_once(rig *r, const rig_block blocks[N_MIXED]) {
  CHECK_OK(tarn_heap_sleep(r->heap, TARN_SLEEP_SAVE));
  CHECK_OK(tarn_heap_wake(r->heap));
  for (int j = 0; j < N_MIXED; j++) {
    CHECK_OK(tarn_sim_own(r->device, blocks[j].address, blocks[j].bytes, blocks[j].owner));
  }
}

static void all_of_it_on(const char *device) {
  const tarn_heap_config config = {.limit_bytes = 24 * MIB,
                                   .fill_alloc = 1,
                                   .fill_free = 2,
                                   .guard_bytes = 1000,
                                   .quarantine_bytes = 2 * MIB,
                                   .stack_depth = 3};
  rig r;
  rig_block blocks[N_MIXED] = {{0}};
  REQUIRE(open_with(&r, device, config));
  for (int i = 0; i < 600 && !test_case_failed(); i++) {
    const int at = i * 7 % N_MIXED;
    replace_one(&r, &blocks[at], i, at % 3);
    if (i % 100 == 99) {
      CHECK(rig_is_sound(&r));
    }
    if (i == 300) {
      sleep_once(&r, blocks);
    }
  }
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[2]));
  for (int i = 0; i < N_MIXED; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 3]));
  }
  CHECK_OK(tarn_heap_reset(r.heap));
  rig_close(&r);
  CHECK_EQ(n_told, 0);
}

static void all_of_it(void) {
  all_of_it_on("sim:64M,seed=1");
  all_of_it_on("sim:64M,seed=2");
  all_of_it_on("sim:64M,seed=3");
  all_of_it_on("sim:64M,order=lazy");
}

static void wrong_configs(void) {
  const tarn_heap_config wrong[] = {
      {.size = sizeof(wrong[0]), .device = "sim:64M", .stack_depth = 33},
      {.size = sizeof(wrong[0]), .device = "sim:64M", .guard_bytes = 2 * MIB},
      {.size = sizeof(wrong[0]), .device = "sim:64M", .is_secure = true, .fill_free = 1},
  };
  tarn_heap *heap;
  for (int i = 0; i < 3; i++) {
    CHECK_STATUS(tarn_heap_create(&wrong[i], &heap), TARN_INVALID);
    CHECK(heap == NULL);
  }
  const tarn_heap_config unsupported = {.size = sizeof(unsupported),
                                        .device = "sim:64M",
                                        .backing = TARN_BACKING_PLAIN,
                                        .guard_bytes = 16};
  CHECK_STATUS(tarn_heap_create(&unsupported, &heap), TARN_UNSUPPORTED);
  rig r;
  REQUIRE(OPEN(.guard_bytes = 256));
  tarn_ptr block = 1;
  CHECK_STATUS(tarn_alloc(r.heap, UINT64_MAX - 5, r.streams[0], &block), TARN_DEVICE_MEMORY);
  CHECK_EQ(block, 0);
  rig_close(&r);
}

/* A guarded block that is freed inside a capture is forgotten: where it lay is another's, whose
 * content is not looked at as its guard, nor written to. */
static void guards_of_blocks_freed_inside(void) {
  const tarn_heap_config guarded = {.size = sizeof(guarded), .guard_bytes = 64};
  rig r;
  tarn_ptr low, high, over = 0;
  REQUIRE(rig_open(&r, "sim:64M", &guarded, 1));
  CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &low));
  CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &high));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(tarn_free(r.heap, high, r.streams[0]));
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_OK(tarn_free(r.heap, low, r.streams[0]));
  CHECK_OK(tarn_alloc(r.heap, 12 * MIB, r.streams[0], &over));
  CHECK(over <= high && high + 4 * MIB < over + 12 * MIB);
  CHECK_OK(tarn_device_fill(r.device, over, 0x5a, 12 * MIB, r.streams[0]));
  CHECK_OK(tarn_heap_check(r.heap));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_EQ(*(const uint8_t *)(uintptr_t)(high + 4 * MIB), 0x5a);
  CHECK_OK(tarn_free(r.heap, over, r.streams[0]));
  rig_close(&r);
}

static const test_case cases[] = {
    {"guards of blocks freed inside a capture", guards_of_blocks_freed_inside},
    {"fills", fills},
    {"fills after uses", fills_after_uses},
    {"guards that hold", guards_that_hold},
    {"guards that are written", guards_that_are_written},
    {"quarantine keeps blocks", quarantine_keeps_blocks},
    {"use after free", use_after_free},
    {"records of many", records_of_many},
    {"quarantine is out of the way", quarantine_is_out_of_the_way},
    {"quarantine under shortage", quarantine_under_shortage},
    {"stacks", stacks},
    {"all of it", all_of_it},
    {"wrong configs", wrong_configs},
};

TEST_MAIN(cases)
