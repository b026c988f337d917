/* SPDX-License-Identifier: MIT
 *
 * Wrong use of the heap: each is refused with a status and a message that names the pointer, in
 * every build, and nothing changes. */
#include <stdio.h>
#include <string.h>

#include "algo/sizeclass.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20 };

typedef struct scene {
  rig rig;
  tarn_heap *other; /* on the same device */
  rig_block small, shared, large;
  tarn_heap_stats before;
} scene;

static bool scene_open(scene *s) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M"};
  if (!rig_open(&s->rig, "sim:64M", NULL, 2) || !CHECK_OK(tarn_heap_create(&config, &s->other))) {
    return false;
  }
  return CHECK_OK(rig_alloc(&s->rig, 1000, s->rig.streams[0], &s->small)) &&
         CHECK_OK(rig_alloc(&s->rig, 100 << 10, s->rig.streams[0], &s->shared)) &&
         CHECK_OK(rig_alloc(&s->rig, 3 * MIB, s->rig.streams[0], &s->large));
}

static void scene_close(scene *s) {
  rig_block *blocks[3] = {&s->small, &s->shared, &s->large};
  for (int i = 0; i < 3; i++) {
    if (blocks[i]->address != 0) {
      CHECK_OK(rig_free(&s->rig, blocks[i], s->rig.streams[0]));
    }
  }
  CHECK_OK(tarn_heap_destroy(s->other, NULL));
  rig_close(&s->rig);
}

/* The call was refused so, the message names the pointer, and the heap is as it was. */
static void check_refused(scene *s, tarn_status got, tarn_status want, tarn_ptr pointer) {
  char address[32];
  (void)snprintf(address, sizeof(address), "0x%llx", (unsigned long long)pointer);
  if (CHECK_STATUS(got, want)) {
    CHECK_HAS(tarn_last_message(), address);
  }
  const tarn_heap_stats after = rig_stats(&s->rig);
  CHECK(rig_same_stats(&s->before, &after));
  CHECK_OK(tarn_heap_check(s->rig.heap));
}

/* Each way to name a pointer to the heap refuses it alike. */
static void check_all(scene *s, tarn_ptr pointer, tarn_status want) {
  rig *r = &s->rig;
  s->before = rig_stats(r);
  check_refused(s, tarn_free(r->heap, pointer, r->streams[0]), want, pointer);
  check_refused(s, tarn_free(r->heap, pointer, r->streams[1]), want, pointer);
  check_refused(s, tarn_free_sized(r->heap, pointer, 1000, r->streams[0]), want, pointer);
  check_refused(s, tarn_use(r->heap, pointer, r->streams[1]), want, pointer);
}

static void interior(void) {
  scene s;
  REQUIRE(scene_open(&s));
  const rig_block *blocks[3] = {&s.small, &s.shared, &s.large};
  for (int i = 0; i < 3; i++) {
    check_all(&s, blocks[i]->address + 1, TARN_INTERIOR);
    check_all(&s, blocks[i]->address + 255, TARN_INTERIOR);
    check_all(&s, blocks[i]->address + 256, TARN_INTERIOR);
    check_all(&s, blocks[i]->address + blocks[i]->bytes - 1, TARN_INTERIOR);
  }
  check_all(&s, s.large.address + (16 << 10), TARN_INTERIOR);
  CHECK_HAS(tarn_last_message(), "16384 bytes into the block of 3145728 bytes");
  scene_close(&s);
}

static void foreign(void) {
  scene s;
  REQUIRE(scene_open(&s));
  static uint64_t host[64];
  const tarn_ptr pointers[] = {
      1, 255, 256, 4096, (uintptr_t)host, (uintptr_t)&s, UINT64_MAX, UINT64_MAX - 255};
  for (unsigned i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
    check_all(&s, pointers[i], TARN_FOREIGN);
  }
  scene_close(&s);
}

static void other_heaps(void) {
  scene s;
  REQUIRE(scene_open(&s));
  tarn_ptr theirs[2];
  REQUIRE_OK(tarn_alloc(s.other, 1000, s.rig.streams[0], &theirs[0]));
  REQUIRE_OK(tarn_alloc(s.other, 3 * MIB, s.rig.streams[0], &theirs[1]));
  for (int i = 0; i < 2; i++) {
    s.before = rig_stats(&s.rig);
    CHECK_STATUS(tarn_free(s.rig.heap, theirs[i], s.rig.streams[0]), TARN_FOREIGN);
    CHECK_HAS(tarn_last_message(), "came from");
    const tarn_heap_stats after = rig_stats(&s.rig);
    CHECK(rig_same_stats(&s.before, &after));
  }
  CHECK_STATUS(tarn_free(s.other, s.small.address, s.rig.streams[0]), TARN_FOREIGN);
  CHECK_STATUS(tarn_free(s.other, s.large.address, s.rig.streams[0]), TARN_FOREIGN);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(tarn_free(s.other, theirs[i], s.rig.streams[0]));
  }
  scene_close(&s);
}

static void twice(void) {
  scene s;
  REQUIRE(scene_open(&s));
  rig_block *blocks[3] = {&s.small, &s.shared, &s.large};
  for (int i = 0; i < 3; i++) {
    const tarn_ptr gone = blocks[i]->address;
    CHECK_OK(rig_free(&s.rig, blocks[i], s.rig.streams[0]));
    check_all(&s, gone, TARN_DOUBLE_FREE);
    check_all(&s, gone + 256, TARN_DOUBLE_FREE);
    CHECK_OK(tarn_heap_trim(s.rig.heap, 0)); /* with its memory gone it is still no foreign one */
    check_all(&s, gone, TARN_DOUBLE_FREE);
  }
  scene_close(&s);
}

/* A block that is freed but waits for another stream is not live either. */
static void twice_while_pending(void) {
  scene s;
  REQUIRE(scene_open(&s));
  rig *r = &s.rig;
  rig_block *blocks[3] = {&s.small, &s.shared, &s.large};
  CHECK_OK(tarn_stream_synchronize(r->device, r->streams[0]));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_use(r->heap, blocks[i]->address, r->streams[1]));
    rig_touch(r, blocks[i], r->streams[1], false);
    const tarn_ptr gone = blocks[i]->address;
    CHECK_OK(rig_free(r, blocks[i], r->streams[0]));
    check_all(&s, gone, TARN_DOUBLE_FREE);
  }
  scene_close(&s);
}

static void free_addresses(void) {
  scene s;
  REQUIRE(scene_open(&s));
  /* Behind the last large block nothing was ever given out. */
  check_all(&s, s.large.address + 32 * MIB, TARN_DOUBLE_FREE);
  CHECK_HAS(tarn_last_message(), "in no live block");
  scene_close(&s);
}

/* ---- Sizes ---- */

static void check_sized(scene *s, rig_block *block, uint64_t wrong) {
  rig *r = &s->rig;
  s->before = rig_stats(r);
  check_refused(s, tarn_free_sized(r->heap, block->address, wrong, r->streams[0]), TARN_WRONG_SIZE,
                block->address);
}

static void wrong_sizes(void) {
  scene s;
  REQUIRE(scene_open(&s));
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    const uint64_t size = tarni_class_size(i);
    const uint64_t least = i == 0 ? 1 : tarni_class_size(i - 1) + 1;
    rig_block block;
    REQUIRE_OK(rig_alloc(&s.rig, least, s.rig.streams[0], &block));
    check_sized(&s, &block, 0);
    check_sized(&s, &block, size + 1);
    check_sized(&s, &block, UINT64_MAX);
    const bool may_be_aligned = (size & (size - 1)) == 0 && size <= (64 << 10);
    if (!may_be_aligned) {
      check_sized(&s, &block, least - 1);
    } else if (size > (16 << 10)) { /* no alignment makes so much of half of it, or of less */
      check_sized(&s, &block, size / 2);
      check_sized(&s, &block, 1);
    }
    CHECK_OK(tarn_sim_disown(s.rig.device, block.address, block.bytes));
    CHECK_OK(
        tarn_free_sized(s.rig.heap, block.address, i % 2 == 0 ? least : size, s.rig.streams[0]));
  }
  scene_close(&s);
}

static void sizes_with_alignments(void) {
  static const uint64_t sizes[] = {1, 1000, 5000, 16385, 20000, 32768, 32769, 40000, 65536, 65537};
  scene s;
  REQUIRE(scene_open(&s));
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    for (uint64_t alignment = 256; alignment <= 2 * MIB; alignment *= 2) {
      tarn_ptr block = 0;
      CHECK_OK(tarn_alloc_aligned(s.rig.heap, sizes[i], alignment, s.rig.streams[0], &block));
      CHECK_OK(tarn_free_sized(s.rig.heap, block, sizes[i], s.rig.streams[0]));
    }
  }
  scene_close(&s);
}

static void wrong_sizes_of_large_blocks(void) {
  scene s;
  REQUIRE(scene_open(&s));
  rig_block block;
  REQUIRE_OK(rig_alloc(&s.rig, 2 * MIB + 1, s.rig.streams[0], &block));
  check_sized(&s, &block, 0);
  check_sized(&s, &block, 1000);
  check_sized(&s, &block, 2 * MIB);
  check_sized(&s, &block, 2 * MIB + (16 << 10) + 1);
  check_sized(&s, &block, UINT64_MAX);
  CHECK_OK(tarn_sim_disown(s.rig.device, block.address, block.bytes));
  CHECK_OK(tarn_free_sized(s.rig.heap, block.address, 2 * MIB + 1, s.rig.streams[0]));
  scene_close(&s);
}

/* The hot path of a thread whose last heap was another one. */
static void after_another_heap(void) {
  scene s;
  REQUIRE(scene_open(&s));
  tarn_ptr theirs;
  REQUIRE_OK(tarn_alloc(s.other, 1000, s.rig.streams[0], &theirs));
  check_all(&s, theirs, TARN_FOREIGN);
  CHECK_OK(tarn_free(s.other, theirs, s.rig.streams[0]));
  CHECK_STATUS(tarn_free(s.other, theirs, s.rig.streams[0]), TARN_DOUBLE_FREE);
  check_all(&s, theirs, TARN_FOREIGN);
  scene_close(&s);
}

static const test_case cases[] = {
    {"interior pointers", interior},
    {"foreign pointers", foreign},
    {"blocks of other heaps", other_heaps},
    {"a block freed twice", twice},
    {"a pending block freed twice", twice_while_pending},
    {"addresses that were never given out", free_addresses},
    {"wrong sizes", wrong_sizes},
    {"sizes with alignments", sizes_with_alignments},
    {"wrong sizes of large blocks", wrong_sizes_of_large_blocks},
    {"after another heap was used", after_another_heap},
};

TEST_MAIN(cases)
