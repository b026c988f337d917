/* SPDX-License-Identifier: MIT
 *
 * Tight places: a block that is small beside the heap lies where the least is left over, whoever
 * has freed that, but not on spare chunks: those that were made late, in a job that comes again. */
#include "base/bits.h"
#include "room.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, NARROW_BYTES = 2 * MIB - 64 * KIB };
enum { N = 6, WIDE = 1, NARROW = 3, FIVE = 4 };

/* What is free in a heap of 1 GiB: room of 8 MiB and, above it, of hardly 2. */
typedef struct scene {
  rig r;
  rig_block blocks[N], found;
  tarn_ptr wide, narrow;
} scene;

static void collect_all(const rig *r) {
  tarni_lock_acquire(&r->heap->lock);
  tarni_cache_empty_all_locked(r->heap, 0, false);
  tarni_lock_release(&r->heap->lock);
}

typedef enum owner { OWN, OTHERS, COMMON, OWNERS } owner;

/* The narrow room waits for nothing any more, where another stream has freed it or all streams are
 * waited for. */
static void narrow_free(scene *s, owner who) {
  static const tarni_order complete = {0};
  tarn_heap *heap = s->r.heap;
  CHECK_OK(rig_free(&s->r, &s->blocks[NARROW], s->r.streams[who == OTHERS]));
  collect_all(&s->r);
  tarni_lock_acquire(&heap->grow);
  CHECK_OK(who == OWN ? TARN_OK : tarni_heap_settle_grow(heap));
  tarni_lock_release(&heap->grow);
  if (who == COMMON) {
    tarni_lock_acquire(&heap->lock);
    const tarni_index index = tarni_extent_containing_locked(heap, s->narrow - heap->base);
    tarni_extent_take_locked(heap, index);
    tarni_extent_give_locked(heap, index, TARNI_EXTENT_FREE, &complete);
    tarni_lock_release(&heap->lock);
  }
}

static bool scene_open(scene *s) {
  static const uint64_t sizes[N] = {1000 * MIB, 8 * MIB, 3 * MIB, NARROW_BYTES, 5 * MIB, 3 * MIB};
  *s = (scene){0};
  if (!rig_open(&s->r, "sim:4G", NULL, 2)) {
    return false;
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&s->r, sizes[i], s->r.streams[0], &s->blocks[i]));
  }
  s->wide = s->blocks[WIDE].address;
  s->narrow = s->blocks[NARROW].address;
  return CHECK(s->wide < s->narrow);
}

static void wide_free(scene *s) {
  CHECK_OK(rig_free(&s->r, &s->blocks[WIDE], s->r.streams[0]));
  collect_all(&s->r);
}

static void scene_close(scene *s) {
  for (int i = 0; i < N; i++) {
    CHECK_OK(s->blocks[i].address != 0 ? rig_free(&s->r, &s->blocks[i], s->r.streams[0]) : TARN_OK);
  }
  CHECK(rig_is_sound(&s->r));
  rig_close(&s->r);
}

static void narrow_is_spare(scene *s) {
  tarn_heap *heap = s->r.heap;
  for (uint64_t at = 0; at < NARROW_BYTES; at += MIB) {
    heap->chunks[heap->units[(s->narrow + at - heap->base) / heap->unit]].is_spare = true;
  }
}

static tarn_ptr place_of(scene *s, uint64_t bytes) {
  CHECK_OK(rig_alloc(&s->r, bytes, s->r.streams[0], &s->found));
  const tarn_ptr place = s->found.address;
  CHECK_OK(rig_free(&s->r, &s->found, s->r.streams[0]));
  return place;
}

/* ---- Where blocks lie ---- */

static void least_is_left_over(void) {
  for (owner who = OWN; who < OWNERS; who++) {
    for (int is_spare = 0; is_spare < 2; is_spare++) {
      static scene s;
      REQUIRE(scene_open(&s));
      narrow_free(&s, who);
      wide_free(&s);
      if (is_spare) {
        narrow_is_spare(&s);
      }
      CHECK_EQ(place_of(&s, NARROW_BYTES), is_spare ? s.wide : s.narrow);
      scene_close(&s);
    }
  }
}

/* A block that is not small beside the heap lies lowest. */
static void large_ones_lie_lowest(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  CHECK_OK(rig_free(&s.r, &s.blocks[FIVE], s.r.streams[0]));
  wide_free(&s);
  CHECK_EQ(place_of(&s, 5 * MIB), s.wide);
  scene_close(&s);
}

/* And so do all of a heap that has earned memory. */
static void lowest_where_earned(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  narrow_free(&s, OWN);
  wide_free(&s);
  s.r.heap->rest.earned_bytes = 1;
  CHECK_EQ(place_of(&s, NARROW_BYTES), s.wide);
  scene_close(&s);
}

/* ---- What a cache keeps ---- */

static bool is_best(scene *s, int i) {
  tarn_heap *heap = s->r.heap;
  const tarni_need need = {.lane = 1,
                           .zone = TARNI_ZONE_LARGE,
                           .size = s->blocks[i].bytes,
                           .least = TARNI_GRANULE,
                           .alignment = TARNI_GRANULE,
                           .class_index = TARNI_CLASS_COUNT};
  tarni_lock_acquire(&heap->lock);
  const uint64_t offset = s->blocks[i].address - heap->base;
  const bool is =
      tarni_chunk_is_best_locked(heap, &need, tarni_extent_containing_locked(heap, offset));
  tarni_lock_release(&heap->lock);
  return is;
}

/* Where it would come to lie again: not on a spare chunk, not beside other room, and not above any
 * that it fits into. */
static void kept_in_its_place(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  CHECK(is_best(&s, NARROW));
  CHECK_OK(rig_free(&s.r, &s.blocks[FIVE], s.r.streams[0]));
  collect_all(&s.r);
  CHECK(!is_best(&s, NARROW)); /* 5 MiB right behind it */
  CHECK_OK(rig_alloc(&s.r, 5 * MIB, s.r.streams[0], &s.blocks[FIVE]));
  CHECK(is_best(&s, NARROW));
  narrow_is_spare(&s);
  CHECK(!is_best(&s, NARROW));
  scene_close(&s);
  REQUIRE(scene_open(&s));
  wide_free(&s);
  CHECK(!is_best(&s, NARROW));
  scene_close(&s);
}

/* ---- What is spare ---- */

typedef struct job {
  uint64_t warm_up, first, block, late;
  bool ends, is_trimmed, is_spare;
} job;

/* Allocates what does not fit into any hole, and tells whether the memory for that is spare. */
static bool late_is_spare(rig *r, uint64_t bytes, rig_block *late) {
  const uint64_t held = rig_stats(r).reserved_bytes;
  CHECK_OK(rig_alloc(r, bytes, r->streams[0], late));
  CHECK(rig_stats(r).reserved_bytes > held);
  const uint64_t last = (late->address + late->bytes - 1 - r->heap->base) / r->heap->unit;
  return r->heap->chunks[r->heap->units[last]].is_spare;
}

static void block_ends(rig *r, rig_block *block) {
  CHECK_OK(rig_free(r, block, r->streams[0]));
  collect_all(r);
}

static void job_run(rig *r, const job *j) {
  rig_block blocks[4], late;
  if (j->warm_up != 0) {
    CHECK_OK(rig_alloc(r, j->warm_up, r->streams[0], &late));
    block_ends(r, &late);
  }
  CHECK_OK(rig_alloc(r, j->first, r->streams[0], &blocks[0]));
  if (j->ends) {
    block_ends(r, &blocks[0]);
  }
  CHECK_OK(j->is_trimmed ? tarn_heap_trim(r->heap, 0) : TARN_OK);
  for (int i = 1; i < 4; i++) {
    CHECK_OK(rig_alloc(r, j->block, r->streams[0], &blocks[i]));
  }
  if (!j->ends) {
    block_ends(r, &blocks[0]);
  }
  block_ends(r, &blocks[2]);
  CHECK_EQ(late_is_spare(r, j->late, &late), j->is_spare);
  block_ends(r, &late);
  block_ends(r, &blocks[1]);
  block_ends(r, &blocks[3]);
}

/* What is made once a job has ended, though less is used than before: not in the first job,
 * whatever came before it, nor where the heap holds less than was used, nor where more is used. */
static void made_late(void) {
  static const job jobs[] = {{0, 20 * MIB, 6 * MIB, 7 * MIB, true, false, true},
                             {0, 20 * MIB, 6 * MIB, 7 * MIB, true, true, false},
                             {0, 20 * MIB, 6 * MIB, 9 * MIB, true, false, false},
                             {0, 8 * MIB, 4 * MIB, 9 * MIB, false, false, false},
                             {2 * MIB, 8 * MIB, 4 * MIB, 9 * MIB, false, false, false}};
  for (int i = 0; i < 5; i++) {
    rig r;
    REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
    job_run(&r, &jobs[i]);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* Memory is spare if one of its chunks is, whichever. */
static void one_chunk_is_spare(void) {
  scene s;
  REQUIRE(scene_open(&s));
  tarn_heap *heap = s.r.heap;
  const uint64_t start = s.blocks[0].address - heap->base, size = 1000 * MIB;
  tarni_phys *last = &heap->chunks[heap->units[tarni_unit_of(heap, start + size - 1)]];
  CHECK(last != &heap->chunks[heap->units[tarni_unit_of(heap, start)]]);
  CHECK(!tarni_extent_is_spare_locked(heap, start, size));
  last->is_spare = true;
  CHECK(tarni_extent_is_spare_locked(heap, start, size));
  CHECK(!tarni_extent_is_spare_locked(heap, start, heap->unit));
  last->is_spare = false;
  scene_close(&s);
}

static const test_case cases[] = {
    {"memory is spare if one of its chunks is", one_chunk_is_spare},
    {"the least is left over", least_is_left_over},
    {"large ones lie lowest", large_ones_lie_lowest},
    {"all lie lowest where memory was earned", lowest_where_earned},
    {"kept in its place", kept_in_its_place},
    {"made late", made_late},
};

TEST_MAIN(cases)
