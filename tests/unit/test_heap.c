/* SPDX-License-Identifier: MIT
 *
 * What a caller of the heap can rely on: sizes, alignments, contents, several heaps and devices,
 * configurations old and new. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "algo/sizeclass.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20, GRANULE = 16 << 10 };

static const uint64_t two_large_devices = (uint64_t)160 << 30; /* what a heap of one takes */

static bool is_same(const tarn_heap_stats *a, const tarn_heap_stats *b) {
  return rig_same_stats(a, b);
}

/* ---- Nothing ---- */

static void zero_bytes(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  const tarn_heap_stats before = rig_stats(&r);
  tarn_ptr block = 1;
  CHECK_OK(tarn_alloc(r.heap, 0, r.streams[0], &block));
  CHECK_EQ(block, 0);
  block = 1;
  CHECK_OK(tarn_alloc_aligned(r.heap, 0, 4096, r.streams[0], &block));
  CHECK_EQ(block, 0);
  CHECK_OK(tarn_free(r.heap, 0, r.streams[0]));
  CHECK_OK(tarn_free_sized(r.heap, 0, 17, r.streams[0]));
  CHECK_OK(tarn_use(r.heap, 0, r.streams[0]));
  const tarn_heap_stats after = rig_stats(&r);
  CHECK(is_same(&before, &after));
  rig_close(&r);
}

#define CHECK_NULL_HEAP(call)                                                                      \
  do {                                                                                             \
    CHECK_STATUS(call, TARN_INVALID);                                                              \
    CHECK_HAS(tarn_last_message(), "heap is NULL");                                                \
  } while (0)

static void null_heap_refused(void) {
  tarn_ptr block = 1;
  CHECK_NULL_HEAP(tarn_alloc(NULL, 256, NULL, &block));
  CHECK_EQ(block, 0);
  block = 1;
  CHECK_NULL_HEAP(tarn_alloc_aligned(NULL, 256, 512, NULL, &block));
  CHECK_EQ(block, 0);
  CHECK_NULL_HEAP(tarn_free(NULL, 4096, NULL));
  CHECK_NULL_HEAP(tarn_free_sized(NULL, 4096, 1, NULL));
  CHECK_NULL_HEAP(tarn_use(NULL, 4096, NULL));
  CHECK_NULL_HEAP(tarn_stream_retire(NULL, NULL));
  CHECK_NULL_HEAP(tarn_heap_reserve(NULL, 1));
  CHECK_NULL_HEAP(tarn_heap_trim(NULL, 0));
  CHECK_NULL_HEAP(tarn_heap_set_limit(NULL, 1));
  CHECK_NULL_HEAP(tarn_heap_check(NULL));
  tarn_heap_stats stats = {.size = sizeof(stats), .live_bytes = 5};
  CHECK_NULL_HEAP(tarn_heap_get_stats(NULL, &stats));
  CHECK_EQ(stats.live_bytes, 0);
  tarn_block_info info = {.size = sizeof(info), .usable_bytes = 5};
  CHECK_NULL_HEAP(tarn_block_get_info(NULL, 4096, &info));
  CHECK_EQ(info.usable_bytes, 0);
  CHECK(tarn_heap_device(NULL) == NULL);
  uint64_t n_live = 5;
  CHECK_OK(tarn_heap_destroy(NULL, &n_live));
  CHECK_EQ(n_live, 0);
}

/* A thread whose last heap is gone still refuses a heap that is NULL. */
static void null_heap(void) {
  null_heap_refused();
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  rig_block small, large;
  REQUIRE_OK(rig_alloc(&r, 256, NULL, &small));
  REQUIRE_OK(rig_alloc(&r, 2 * MIB, NULL, &large));
  CHECK_OK(rig_free(&r, &small, NULL));
  CHECK_OK(rig_free(&r, &large, NULL));
  rig_close(&r);
  null_heap_refused();
}

/* ---- Sizes ---- */

typedef struct size_list {
  uint64_t sizes[512];
  int n;
} size_list;

static void add_around(size_list *list, uint64_t size) {
  for (uint64_t at = size > 1 ? size - 1 : size; at <= size + 1; at++) {
    list->sizes[list->n++] = at;
  }
}

static uint64_t usable_for(uint64_t size) {
  return size <= MIB ? tarni_class_size(tarni_class_of(size))
                     : (size + GRANULE - 1) / GRANULE * GRANULE;
}

static int by_address(const void *a, const void *b) {
  const rig_block *left = a, *right = b;
  return (left->address > right->address) - (left->address < right->address);
}

/* All are live at once: no two share a byte, and each says how much of it is usable. */
static void check_sizes(rig *r, const size_list *list) {
  rig_block *blocks = calloc((size_t)list->n, sizeof(*blocks));
  if (blocks == NULL) {
    CHECK(blocks != NULL);
    return;
  }
  uint64_t live = 0;
  for (int i = 0; i < list->n; i++) {
    tarn_block_info info = {.size = sizeof(info)};
    if (!CHECK_OK(rig_alloc(r, list->sizes[i], r->streams[0], &blocks[i]))) {
      break;
    }
    CHECK_OK(tarn_block_get_info(r->heap, blocks[i].address, &info));
    CHECK_EQ(info.address, blocks[i].address);
    CHECK_EQ(info.usable_bytes, usable_for(list->sizes[i]));
    blocks[i].owner = info.usable_bytes;
    live += info.usable_bytes;
  }
  CHECK_EQ(rig_stats(r).live_bytes, live);
  CHECK(rig_is_sound(r));
  qsort(blocks, (size_t)list->n, sizeof(*blocks), by_address);
  for (int i = 1; i < list->n; i++) {
    CHECK(blocks[i - 1].address + blocks[i - 1].owner <= blocks[i].address);
  }
  for (int i = 0; i < list->n; i++) {
    CHECK_OK(tarn_free_sized(r->heap, blocks[i].address, blocks[i].bytes, r->streams[0]));
  }
  CHECK_EQ(rig_stats(r).live_bytes, 0);
  CHECK(rig_is_sound(r));
  free(blocks);
}

static void sizes_around_every_class(void) {
  size_list list = {.n = 0};
  for (uint32_t i = 0; i + 1 < TARNI_CLASS_COUNT; i++) {
    add_around(&list, tarni_class_size(i));
  }
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  check_sizes(&r, &list);
  check_sizes(&r, &list); /* and once more from what is cached */
  rig_close(&r);
}

static void sizes_around_a_mebibyte(void) {
  size_list list = {.n = 0};
  add_around(&list, 1);
  add_around(&list, MIB - GRANULE);
  add_around(&list, MIB);
  add_around(&list, MIB + GRANULE);
  add_around(&list, 2 * MIB);
  add_around(&list, 2 * MIB + GRANULE);
  add_around(&list, 10 * MIB);
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  check_sizes(&r, &list);
  check_sizes(&r, &list);
  rig_close(&r);
}

/* What can never be had is refused with the number, and costs nobody anything. */
static void huge_sizes(void) {
  static const uint64_t sizes[] = {
      (uint64_t)65 * MIB,      (uint64_t)200 * MIB, (uint64_t)256 * MIB - 1, (uint64_t)256 * MIB,
      (uint64_t)256 * MIB + 1, (uint64_t)1 << 40,   (uint64_t)1 << 63,       UINT64_MAX - GRANULE,
      UINT64_MAX - 1,          UINT64_MAX};
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  rig_block small, large;
  REQUIRE_OK(rig_alloc(&r, 300, r.streams[0], &small));
  REQUIRE_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &large));
  CHECK_OK(rig_free(&r, &small, r.streams[0]));
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  const tarn_heap_stats before = rig_stats(&r);
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    tarn_ptr block = 1;
    CHECK_STATUS(tarn_alloc(r.heap, sizes[i], r.streams[0], &block), TARN_DEVICE_MEMORY);
    CHECK_EQ(block, 0);
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    CHECK(error.requested_bytes >= sizes[i]);
    block = 1;
    CHECK_STATUS(tarn_alloc_aligned(r.heap, sizes[i], 2 * MIB, r.streams[0], &block),
                 TARN_DEVICE_MEMORY);
    CHECK_EQ(block, 0);
  }
  const tarn_heap_stats after = rig_stats(&r);
  CHECK(is_same(&before, &after));
  rig_close(&r);
}

/* One allocation may be most of a large device, at once. */
static void most_of_a_large_device(void) {
  if (!test_has_addresses(two_large_devices)) {
    return;
  }
  rig r;
  REQUIRE(rig_open(&r, "sim:80G", NULL, 1));
  tarn_ptr block;
  CHECK_OK(tarn_alloc(r.heap, (uint64_t)70 << 30, r.streams[0], &block));
  CHECK(rig_stats(&r).reserved_bytes <= ((uint64_t)70 << 30) + 2 * MIB);
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  for (int i = 0; i < 3000; i++) { /* and memory that came in small pieces is good for it, too */
    CHECK_OK(tarn_alloc(r.heap, 24 * MIB, r.streams[0], &block));
  }
  rig_close_live(&r, 3000);
}

static void from_small_pieces_to_one(void) {
  enum { N = 1500 };
  static tarn_ptr blocks[N];
  rig r;
  REQUIRE(rig_open(&r, "sim:16G", NULL, 1));
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_alloc(r.heap, 10 * MIB, r.streams[0], &blocks[i]));
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[(i * 7) % N], r.streams[0]));
  }
  CHECK_OK(tarn_alloc(r.heap, (uint64_t)15 << 30, r.streams[0], &blocks[0]));
  CHECK(rig_is_sound(&r));
  rig_close_live(&r, 1);
}

/* A device that is larger than 32-bit indices of its small blocks reach. */
static void very_large_device(void) {
  if (!test_has_addresses((uint64_t)8 << 40)) { /* besides those of the heap, its tables' */
    return;
  }
  rig r;
  REQUIRE(rig_open(&r, "sim:2T", NULL, 1));
  rig_block blocks[3];
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &blocks[0]));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &blocks[1]));
  CHECK_OK(rig_alloc(&r, 50 * MIB, r.streams[0], &blocks[2]));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  rig_close(&r);
}

/* ---- Alignment and contents ---- */

static void alignments(void) {
  static const uint64_t sizes[] = {1,        255,      256,       257, 3000,    16 << 10, 40 << 10,
                                   64 << 10, 65 << 10, 500 << 10, MIB, MIB + 1, 5 * MIB};
  rig r;
  REQUIRE(rig_open(&r, "sim:512M", NULL, 1));
  for (uint64_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
    rig_block blocks[sizeof(sizes) / sizeof(sizes[0])];
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
      tarn_ptr block = 0;
      CHECK_OK(tarn_alloc_aligned(r.heap, sizes[i], alignment, r.streams[0], &block));
      CHECK_EQ(block % alignment, 0);
      CHECK_EQ(block % 256, 0);
      rig_own(&r, block, sizes[i], &blocks[i]);
      rig_touch(&r, &blocks[i], r.streams[0], true);
    }
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
      CHECK_OK(tarn_sim_disown(r.device, blocks[i].address, blocks[i].bytes));
      CHECK_OK(tarn_free_sized(r.heap, blocks[i].address, sizes[i], r.streams[0]));
    }
  }
  CHECK(rig_is_sound(&r));
  static const uint64_t wrong[] = {0, 3, 257, 2 * MIB + 1, 4 * MIB, UINT64_MAX};
  for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    tarn_ptr block = 1;
    CHECK_STATUS(tarn_alloc_aligned(r.heap, 100, wrong[i], r.streams[0], &block), TARN_INVALID);
    CHECK_HAS(tarn_last_message(), "2097152");
    CHECK_EQ(block, 0);
  }
  rig_close(&r);
}

static void contents_stay(void) {
  enum { N = 60 };
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_ptr blocks[N];
  uint64_t sizes[N];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < N; i++) {
      sizes[i] = (uint64_t)i * (uint64_t)i * (uint64_t)i * 17 + 1 + (uint64_t)round * 111;
      REQUIRE_OK(tarn_alloc(r.heap, sizes[i], r.streams[0], &blocks[i]));
      CHECK_OK(tarn_device_fill(r.device, blocks[i], (uint8_t)(i + 1), sizes[i], r.streams[0]));
    }
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    for (int i = 0; i < N; i++) {
      const uint8_t *bytes = (const uint8_t *)(uintptr_t)blocks[i];
      uint64_t n_wrong = 0;
      for (uint64_t at = 0; at < sizes[i]; at++) {
        n_wrong += bytes[at] != i + 1;
      }
      CHECK_EQ(n_wrong, 0);
      CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
    }
  }
  rig_close(&r);
}

/* ---- What a pointer is ---- */

static void info_of_pointers(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  rig_block blocks[2];
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &blocks[0]));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &blocks[1]));
  for (int i = 0; i < 2; i++) {
    const uint64_t usable = usable_for(blocks[i].bytes);
    for (uint64_t at = 0; at < usable; at += usable / 4 - 1) {
      tarn_block_info info = {.size = sizeof(info)};
      CHECK_OK(tarn_block_get_info(r.heap, blocks[i].address + at, &info));
      CHECK_EQ(info.address, blocks[i].address);
      CHECK_EQ(info.usable_bytes, usable);
    }
    tarn_block_info info = {.size = sizeof(info), .usable_bytes = 1};
    CHECK_STATUS(tarn_block_get_info(r.heap, blocks[i].address + usable, &info), TARN_FOREIGN);
    CHECK_EQ(info.usable_bytes, 0);
    const tarn_ptr gone = blocks[i].address;
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
    CHECK_STATUS(tarn_block_get_info(r.heap, gone, &info), TARN_FOREIGN);
  }
  tarn_block_info info = {.size = sizeof(info)};
  CHECK_STATUS(tarn_block_get_info(r.heap, (uintptr_t)&r, &info), TARN_FOREIGN);
  CHECK_STATUS(tarn_block_get_info(r.heap, 0, &info), TARN_FOREIGN);
  CHECK_STATUS(tarn_block_get_info(r.heap, UINT64_MAX, &info), TARN_FOREIGN);
  rig_close(&r);
}

/* ---- Several ---- */

static void several_heaps_on_one_device(void) {
  enum { HEAPS = 4, BLOCKS = 12 };
  rig r;
  REQUIRE(rig_open_device(&r, "sim:256M", 1));
  tarn_heap *heaps[HEAPS];
  rig_block blocks[HEAPS][BLOCKS];
  for (int i = 0; i < HEAPS; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .device = "sim:256M"};
    REQUIRE_OK(tarn_heap_create(&config, &heaps[i]));
    CHECK(tarn_heap_device(heaps[i]) == r.device);
  }
  for (int j = 0; j < BLOCKS; j++) {
    for (int i = 0; i < HEAPS; i++) { /* the thread changes heaps at every call */
      r.heap = heaps[i];
      CHECK_OK(rig_alloc(&r, (uint64_t)(300 + 200000 * j), r.streams[0], &blocks[i][j]));
    }
  }
  for (int i = 0; i < HEAPS; i++) {
    CHECK_STATUS(tarn_free(heaps[i], blocks[(i + 1) % HEAPS][0].address, r.streams[0]),
                 TARN_FOREIGN);
    CHECK_EQ(tarn_heap_check(heaps[i]), TARN_OK);
    r.heap = heaps[i];
    CHECK_EQ(rig_stats(&r).live_blocks, BLOCKS);
  }
  for (int i = 0; i < HEAPS; i++) {
    r.heap = heaps[i];
    for (int j = 0; j < BLOCKS; j++) {
      CHECK_OK(rig_free(&r, &blocks[i][j], r.streams[0]));
    }
    CHECK_OK(tarn_heap_check(heaps[i]));
    if (i + 1 < HEAPS) {
      CHECK_OK(tarn_heap_destroy(heaps[i], NULL));
    }
  }
  rig_close(&r);
}

static void several_devices(void) {
  rig rigs[2];
  rig_block blocks[2][4];
  REQUIRE(rig_open(&rigs[0], "sim:64M,id=1", NULL, 1));
  REQUIRE(rig_open(&rigs[1], "sim:64M,id=2", NULL, 1));
  CHECK(rigs[0].device != rigs[1].device);
  for (int j = 0; j < 4; j++) {
    for (int i = 0; i < 2; i++) {
      CHECK_OK(rig_alloc(&rigs[i], (uint64_t)700 << (4 * j), rigs[i].streams[0], &blocks[i][j]));
    }
  }
  CHECK_STATUS(tarn_free(rigs[0].heap, blocks[1][0].address, rigs[0].streams[0]), TARN_FOREIGN);
  for (int j = 0; j < 4; j++) {
    for (int i = 0; i < 2; i++) {
      CHECK_OK(rig_free(&rigs[i], &blocks[i][j], rigs[i].streams[0]));
    }
  }
  /* A stream of one device means nothing on the other: that is the driver's word. */
  tarn_ptr block = 1;
  CHECK_STATUS(tarn_alloc(rigs[0].heap, 256, rigs[1].streams[0], &block), TARN_INVALID);
  CHECK_EQ(block, 0);
  CHECK_OK(tarn_sim_finding_clear(rigs[0].device));
  rigs[0].n_findings = 0; /* the oracle has noticed it, too */
  rig_close(&rigs[0]);
  rig_close(&rigs[1]);
}

/* ---- Configurations ---- */

static void configurations_old_and_new(void) {
  struct {
    tarn_heap_config known;
    uint64_t unknown;
  } newer = {.known = {.size = sizeof(newer), .device = "sim:64M", .limit_bytes = 4 * MIB}};
  tarn_heap *heap = NULL;
  REQUIRE_OK(tarn_heap_create(&newer.known, &heap));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
  newer.unknown = 1;
  heap = (tarn_heap *)&newer;
  CHECK_STATUS(tarn_heap_create(&newer.known, &heap), TARN_UNSUPPORTED);
  CHECK(heap == NULL);

  tarn_heap_config older = {.device = "sim:64M", .limit_bytes = 1};
  older.size = offsetof(tarn_heap_config, limit_bytes);
  REQUIRE_OK(tarn_heap_create(&older, &heap));
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_heap_get_stats(heap, &stats));
  CHECK_EQ(stats.limit_bytes, 64 * MIB); /* what it does not know of it does not ask for */
  stats = (tarn_heap_stats){.size = offsetof(tarn_heap_stats, live_blocks), .live_blocks = 77};
  CHECK_OK(tarn_heap_get_stats(heap, &stats));
  CHECK_EQ(stats.live_blocks, 77);
  CHECK_OK(tarn_heap_destroy(heap, NULL));
}

static void configurations_refused(void) {
  static const struct {
    tarn_heap_config config;
    tarn_status status;
    const char *text;
  } wrong[] = {
      {{.size = 0}, TARN_INVALID, "size"},
      {{.size = sizeof(tarn_heap_config), .device = "sim:64M", .stealing = (tarn_stealing)3},
       TARN_INVALID,
       "stealing is 3"},
      {{.size = sizeof(tarn_heap_config), .device = "abacus"}, TARN_INVALID, "abacus"},
      {{.size = sizeof(tarn_heap_config), .device = "sim:64M,hat=red"}, TARN_INVALID, "hat=red"},
      {{.size = sizeof(tarn_heap_config), .device = "sim:64M,vmm=off"},
       TARN_UNSUPPORTED,
       "virtual memory"},
  };
  for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    tarn_heap *heap = (tarn_heap *)(uintptr_t)1;
    CHECK_STATUS(tarn_heap_create(&wrong[i].config, &heap), wrong[i].status);
    CHECK_HAS(tarn_last_message(), wrong[i].text);
    CHECK(heap == NULL);
  }
  CHECK_STATUS(tarn_heap_create(NULL, NULL), TARN_INVALID);
}

static void granularities(void) {
  static const char *const devices[] = {"sim:64M,granularity=4K", "sim:64M,granularity=64K",
                                        "sim:1G,granularity=32M"};
  for (int i = 0; i < 3; i++) {
    rig r;
    REQUIRE(rig_open(&r, devices[i], NULL, 1));
    rig_block blocks[3];
    CHECK_OK(rig_alloc(&r, 100, r.streams[0], &blocks[0]));
    CHECK_OK(rig_alloc(&r, 100 << 10, r.streams[0], &blocks[1]));
    CHECK_OK(rig_alloc(&r, 5 * MIB, r.streams[0], &blocks[2]));
    CHECK(rig_is_sound(&r));
    for (int j = 0; j < 3; j++) {
      CHECK_OK(rig_free(&r, &blocks[j], r.streams[0]));
    }
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static void all_defaults(void) {
  if (!test_has_addresses(two_large_devices)) {
    return;
  }
  tarn_heap *heap;
  tarn_ptr block = 0;
  REQUIRE_OK(tarn_heap_create(NULL, &heap));
  CHECK_OK(tarn_alloc(heap, 5000, NULL, &block));
  CHECK(block != 0);
  CHECK_OK(tarn_free(heap, block, NULL));
  CHECK_OK(tarn_heap_check(heap));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
}

/* An alignment above the device's granularity is one of addresses, not of offsets. */
static void alignments_above_the_unit(void) {
  static const char *const devices[] = {"sim:65600K,granularity=64K", "sim:65552K,granularity=4K",
                                        "sim:256M,granularity=1M"};
  for (int i = 0; i < 3; i++) {
    rig r;
    tarn_ptr large = 1, small = 1, inside = 1;
    REQUIRE(rig_open(&r, devices[i], NULL, 1));
    CHECK_OK(tarn_alloc_aligned(r.heap, 3 * MIB, 2 * MIB, r.streams[0], &large));
    CHECK_OK(tarn_alloc_aligned(r.heap, 1000, MIB, r.streams[0], &small));
    CHECK_EQ(large % (2 * MIB), 0);
    CHECK_EQ(small % MIB, 0);
    CHECK_OK(tarn_free(r.heap, large, r.streams[0]));
    CHECK_OK(tarn_free(r.heap, small, r.streams[0]));
    tarn_capture *capture = rig_capture_begin(&r, NULL);
    CHECK_OK(tarn_alloc_aligned(r.heap, 1000, 2 * MIB, r.streams[0], &inside));
    CHECK_EQ(inside % (2 * MIB), 0);
    CHECK_OK(tarn_free(r.heap, inside, r.streams[0]));
    CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
    rig_close(&r);
  }
}

static const test_case cases[] = {
    {"alignments above the unit", alignments_above_the_unit},
    {"zero bytes", zero_bytes},
    {"a heap that is NULL", null_heap},
    {"sizes around every class", sizes_around_every_class},
    {"sizes around a mebibyte", sizes_around_a_mebibyte},
    {"sizes that can never be had", huge_sizes},
    {"most of a large device at once", most_of_a_large_device},
    {"from small pieces to one", from_small_pieces_to_one},
    {"a very large device", very_large_device},
    {"alignments", alignments},
    {"contents stay", contents_stay},
    {"what a pointer is", info_of_pointers},
    {"several heaps on one device", several_heaps_on_one_device},
    {"several devices", several_devices},
    {"configurations old and new", configurations_old_and_new},
    {"configurations refused", configurations_refused},
    {"granularities", granularities},
    {"all defaults", all_defaults},
};

TEST_MAIN(cases)
