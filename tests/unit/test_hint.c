/* SPDX-License-Identifier: MIT
 *
 * Hints: a window where a block of a size has lain is found again, if it is free as a whole and
 * still there. */
#include "room.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, N = 16, WHOLE = 8 };

typedef struct scene {
  rig r;
  rig_block wholes[N]; /* each has a chunk of its own */
} scene;

static void give(scene *s, rig_block *block) {
  CHECK_OK(rig_free(&s->r, block, s->r.streams[0]));
  rig_collect(&s->r);
}

/* Blocks with a chunk each, of which every second one is free; and no memory besides. */
static bool scene_fill(scene *s) {
  CHECK_OK(tarn_heap_set_limit(s->r.heap, 0));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&s->r, WHOLE * MIB, s->r.streams[0], &s->wholes[i]));
  }
  CHECK_OK(tarn_heap_set_limit(s->r.heap, N * WHOLE * MIB));
  for (int i = 0; i < N; i += 2) {
    give(s, &s->wholes[i]);
  }
  return !test_case_failed();
}

static bool scene_open(scene *s) {
  *s = (scene){0};
  return rig_open(&s->r, "sim:16G", NULL, 2) && scene_fill(s);
}

static void scene_close(scene *s) {
  for (int i = 0; i < N; i++) {
    if (s->wholes[i].address != 0) {
      give(s, &s->wholes[i]);
    }
  }
  CHECK(rig_is_sound(&s->r));
  rig_close(&s->r);
}

/* A block in a view: no chunk has room for it. */
static rig_block view_get(scene *s, uint64_t bytes) {
  rig_block block = {0};
  CHECK_OK(rig_alloc(&s->r, bytes, s->r.streams[0], &block));
  CHECK(block.address - s->r.heap->base >= s->r.heap->large_end);
  return block;
}

static uint64_t hint_of(scene *s, uint64_t bytes, uint64_t alignment, bool is_urgent) {
  tarn_heap *heap = s->r.heap;
  tarni_lock_acquire(&heap->lock);
  const tarni_search search = {.lane = 1, .is_urgent = is_urgent, .number = ++heap->n_searches};
  const tarni_need need = {.lane = 1,
                           .zone = TARNI_ZONE_LARGE,
                           .size = bytes,
                           .alignment = alignment,
                           .least = alignment};
  const uint64_t start = tarni_hint_find_locked(heap, &search, &need);
  tarni_lock_release(&heap->lock);
  return start;
}

static void found_where_it_was(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), UINT64_MAX);
  rig_block block = view_get(&s, 24 * MIB);
  const uint64_t start = block.address - s.r.heap->base;
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), UINT64_MAX); /* it is live */
  give(&s, &block);
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), start);
  CHECK_EQ(hint_of(&s, 22 * MIB, TARNI_GRANULE, false), UINT64_MAX);     /* of another size */
  CHECK_EQ(hint_of(&s, 24 * MIB, (uint64_t)1 << 40, false), UINT64_MAX); /* nor is it aligned */
  scene_close(&s);
}

/* One chunk is in use at its home, or all places are gone: there is no window any more. */
static void checked_before_it_is_told(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  rig_block block = view_get(&s, 24 * MIB);
  const uint64_t start = block.address - s.r.heap->base;
  give(&s, &block);
  CHECK_OK(rig_alloc(&s.r, 2 * MIB, s.r.streams[0], &block)); /* on the lowest chunk */
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), UINT64_MAX);
  give(&s, &block);
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), start);
  tarni_lock_acquire(&s.r.heap->grow);
  (void)tarni_chunk_unalias_grow(s.r.heap);
  tarni_lock_release(&s.r.heap->grow);
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), UINT64_MAX);
  scene_close(&s);
}

/* What another stream has freed is not the lane's. */
static void only_for_who_may_have_it(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  rig_block block = view_get(&s, 24 * MIB);
  CHECK_OK(rig_free(&s.r, &block, s.r.streams[1]));
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), UINT64_MAX);
  scene_close(&s);
}

/* Chunks that small blocks have borrowed are theirs, unless memory is short. */
static void borrowed_is_left_alone(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  rig_block block = view_get(&s, 24 * MIB);
  const uint64_t start = block.address - s.r.heap->base;
  tarn_heap *heap = s.r.heap;
  tarni_phys *chunk = &heap->chunks[heap->units[tarni_unit_of(heap, start)]];
  give(&s, &block);
  chunk->n_small++;
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), UINT64_MAX);
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, true), start);
  chunk->n_small--;
  scene_close(&s);
}

/* Several windows of a size that are free: that of which all places were there first. And of those
 * that were left, the last four are known. */
static void the_oldest_of_several(void) {
  enum { SIZE = 16, N_VIEWS = 4 };
  static scene s;
  REQUIRE(scene_open(&s));
  rig_block blocks[N_VIEWS];
  for (int i = 0; i < N_VIEWS; i++) {
    blocks[i] = view_get(&s, SIZE * MIB);
  }
  const uint64_t oldest = blocks[0].address - s.r.heap->base;
  for (int i = 0; i < N_VIEWS; i++) {
    CHECK_OK(rig_free(&s.r, &blocks[i], s.r.streams[0]));
  }
  rig_collect(&s.r);
  CHECK_EQ(hint_of(&s, SIZE * MIB, TARNI_GRANULE, false), oldest);
  tarni_lock_acquire(&s.r.heap->lock);
  tarni_hint_note_locked(s.r.heap, s.r.heap->large_end + 64 * (uint64_t)MIB, SIZE * MIB);
  tarni_lock_release(&s.r.heap->lock);
  CHECK(hint_of(&s, SIZE * MIB, TARNI_GRANULE, false) != UINT64_MAX);
  CHECK(hint_of(&s, SIZE * MIB, TARNI_GRANULE, false) != oldest);
  scene_close(&s);
}

/* What a heap with so many places finds in views, without any driver call; not taken. */
static uint64_t found_in_views(scene *s, uint64_t bytes, uint32_t n_places) {
  tarn_heap *heap = s->r.heap;
  const uint32_t n_aliases = heap->n_aliases;
  const tarni_need need = {.lane = 1,
                           .zone = TARNI_ZONE_LARGE,
                           .size = bytes,
                           .alignment = TARNI_GRANULE,
                           .least = TARNI_GRANULE};
  tarni_search search = {.lane = 1};
  tarni_lock_acquire(&heap->lock);
  heap->n_aliases = n_places; /* as if */
  const tarni_index index = tarni_view_find_locked(heap, &search, &need);
  const uint64_t start = index != 0 ? heap->extents[index].offset : UINT64_MAX;
  if (index != 0) {
    tarni_view_leave_locked(heap, index, NULL);
  }
  heap->n_aliases = n_aliases;
  tarni_lock_release(&heap->lock);
  return start;
}

/* Notes windows that are not there, so that so many others are forgotten. */
static void forget(scene *s, uint64_t bytes, int n) {
  tarni_lock_acquire(&s->r.heap->lock);
  for (int i = 0; i < n; i++) {
    tarni_hint_note_locked(s->r.heap, s->r.heap->size - (uint64_t)(i + 1) * bytes, bytes);
  }
  tarni_lock_release(&s->r.heap->lock);
}

/* A hint is taken before a search would find an older window. */
static void looked_at_first(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  rig_block first = view_get(&s, 16 * MIB), second = view_get(&s, 16 * MIB);
  const uint64_t older = first.address - s.r.heap->base, known = second.address - s.r.heap->base;
  give(&s, &first);
  give(&s, &second);
  CHECK_EQ(found_in_views(&s, 16 * MIB, TARNI_MANY_PLACES), older);
  forget(&s, 16 * MIB, 3);
  CHECK_EQ(found_in_views(&s, 16 * MIB, TARNI_MANY_PLACES), known);
  CHECK_EQ(found_in_views(&s, 16 * MIB, TARNI_MANY_PLACES - 1), older);
  scene_close(&s);
}

/* Chunks A, B, C and A again in a row, and A with others in the next one. In a window that is known
 * from other places A would be twice: it is not to be had, but the next row is. */
static void no_chunk_twice(void) {
  enum { C = 0, B = N / 2 - 2, A = N / 2 - 1, N_OTHERS = 3 };
  const uint64_t whole = WHOLE * (uint64_t)MIB;
  static scene s;
  REQUIRE(scene_open(&s));
  rig_block row = view_get(&s, 3 * whole), homes[N / 2];
  const uint64_t start = row.address - s.r.heap->base;
  give(&s, &row);
  for (int i = 0; i < N / 2; i++) {
    CHECK_OK(rig_alloc(&s.r, whole, s.r.streams[0], &homes[i]));
  }
  for (int i = 1; i <= N_OTHERS; i++) {
    give(&s, &homes[i]);
  }
  give(&s, &homes[A]);
  row = view_get(&s, 4 * whole);
  const uint64_t next = row.address - s.r.heap->base;
  give(&s, &row);
  for (int i = 1; i <= N_OTHERS; i++) {
    CHECK_OK(rig_alloc(&s.r, whole, s.r.streams[0], &homes[i]));
  }
  give(&s, &homes[C]);
  row = view_get(&s, 2 * whole);
  CHECK_EQ(row.address - s.r.heap->base, start + 2 * whole); /* C and A */
  give(&s, &row);
  for (int i = 1; i <= B; i++) {
    give(&s, &homes[i]);
  }
  forget(&s, 4 * whole, 4);
  CHECK_EQ(found_in_views(&s, 4 * whole, TARNI_MANY_PLACES), next);
  tarni_lock_acquire(&s.r.heap->lock);
  tarni_hint_note_locked(s.r.heap, start, 4 * whole);
  tarni_lock_release(&s.r.heap->lock);
  CHECK_EQ(found_in_views(&s, 4 * whole, TARNI_MANY_PLACES), next);
  scene_close(&s);
}

/* A heap that was reset is as it was made: at the same addresses no window is known. */
static void forgotten_by_reset(void) {
  static scene s;
  REQUIRE(scene_open(&s));
  rig_block block = view_get(&s, 24 * MIB);
  const uint64_t start = block.address - s.r.heap->base;
  give(&s, &block);
  for (int i = 1; i < N; i += 2) {
    give(&s, &s.wholes[i]);
  }
  CHECK_OK(tarn_heap_reset(s.r.heap));
  CHECK(scene_fill(&s));
  block = view_get(&s, 32 * MIB);
  CHECK_EQ(block.address - s.r.heap->base, start);
  give(&s, &block);
  CHECK_EQ(hint_of(&s, 32 * MIB, TARNI_GRANULE, false), start);
  CHECK_EQ(hint_of(&s, 24 * MIB, TARNI_GRANULE, false), UINT64_MAX);
  scene_close(&s);
}

static const test_case cases[] = {
    {"found where it was", found_where_it_was},
    {"checked before it is told", checked_before_it_is_told},
    {"only for who may have it", only_for_who_may_have_it},
    {"borrowed is left alone", borrowed_is_left_alone},
    {"the oldest of several", the_oldest_of_several},
    {"looked at first", looked_at_first},
    {"no chunk twice", no_chunk_twice},
    {"forgotten by a reset", forgotten_by_reset},
};

TEST_MAIN(cases)
