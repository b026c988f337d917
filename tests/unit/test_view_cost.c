/* SPDX-License-Identifier: MIT
 *
 * What a block costs that has room at home, beside many views: those that are older would be better
 * places, but they are not looked at for long. */
#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, N = 160, PLACES = 1200, ROUNDS = 20000, PAIRS = 64, STEPS = 512 };

/* Random blocks until there are many places in views. */
static void fill(rig *r, rig_block *blocks) {
  tarni_rng rng = {7};
  for (int i = 0; i < ROUNDS && r->heap->n_aliases < PLACES; i++) {
    rig_block *block = &blocks[tarni_rng_below(&rng, N)];
    if (block->address != 0) {
      CHECK_OK(rig_free(r, block, r->streams[0]));
    }
    CHECK_OK(rig_alloc(r, MIB + tarni_rng_below(&rng, 16 * MIB), r->streams[0], block));
  }
  CHECK(r->heap->n_aliases >= PLACES);
}

static void free_all(rig *r, rig_block *blocks) {
  for (int i = 0; i < N; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
    }
  }
}

/* Pairs on memory that is younger than all views. */
static void pairs(rig *r, tarn_stream stream, uint64_t bytes) {
  const uint64_t moved = rig_stats(r).moved_chunks;
  for (int i = 0; i < PAIRS; i++) {
    rig_block block;
    const uint64_t before = r->heap->n_searches; /* each run of free places has a number */
    CHECK_OK(rig_alloc(r, bytes - (uint64_t)(i % 3) * 65536, stream, &block));
    CHECK(r->heap->n_searches - before <= STEPS + 1);
    CHECK_OK(rig_free(r, &block, stream));
  }
  CHECK_EQ(rig_stats(r).moved_chunks, moved);
}

static void of_another_stream(void) {
  rig r;
  static rig_block blocks[N];
  REQUIRE(rig_open(&r, "sim:16G", NULL, 2));
  fill(&r, blocks);
  free_all(&r, blocks);
  CHECK_OK(tarn_heap_reserve(r.heap, rig_stats(&r).reserved_bytes + (uint64_t)256 * MIB));
  for (uint64_t size = 3; size <= 24; size *= 2) {
    pairs(&r, r.streams[1], size * MIB);
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static const test_case cases[] = {
    {"views that another stream has freed are not looked at for long", of_another_stream},
};

TEST_MAIN(cases)
