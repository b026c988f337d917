/* SPDX-License-Identifier: MIT
 *
 * Views: blocks lie on what is free at the ends of chunks from anywhere, which is lent for as long
 * as they do, and comes back whatever fails. */
#include "room.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, N = 8, HELD = N * 8 };

typedef struct scene {
  rig r;
  rig_block wholes[N]; /* each has a chunk of its own */
  rig_block view;
} scene;

static uint64_t calls_of(const rig *r, tarn_call call) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(r->device, &counts));
  return counts.calls[call];
}

/* Bytes at homes that are lent. */
static uint64_t lent_bytes(scene *s) {
  uint64_t bytes = 0;
  tarni_lock_acquire(&s->r.heap->lock);
  for (uint32_t zone = 0; zone < TARNI_ZONES; zone++) {
    for (tarni_index i = s->r.heap->zones[zone].head; i != 0; i = s->r.heap->extents[i].next) {
      const tarni_extent *extent = &s->r.heap->extents[i];
      bytes += extent->kind == TARNI_EXTENT_LENT ? extent->size : 0;
    }
  }
  tarni_lock_release(&s->r.heap->lock);
  return bytes;
}

static bool is_view(const scene *s, const rig_block *block) {
  return block->address - s->r.heap->base >= s->r.heap->large_end;
}

/* N blocks of 8 MiB, each on a chunk of its own, and no memory besides. The limit comes when they
 * are there: chunks are a small part of it. */
static bool scene_open(scene *s, const char *device, tarn_stealing stealing) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = stealing};
  *s = (scene){0};
  if (!rig_open(&s->r, device, &config, 3)) {
    return false;
  }
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&s->r, 8 * MIB, s->r.streams[0], &s->wholes[i]));
  }
  CHECK_EQ(calls_of(&s->r, TARN_CALL_CREATE), N);
  CHECK_OK(tarn_heap_set_limit(s->r.heap, HELD * MIB));
  return CHECK_EQ(rig_stats(&s->r).reserved_bytes, HELD * MIB);
}

static void whole_free(scene *s, int i, int stream) {
  CHECK_OK(rig_free(&s->r, &s->wholes[i], s->r.streams[stream]));
}

/* Every second chunk is free, and nothing else. */
static bool scene_open_holes(scene *s, const char *device, tarn_stealing stealing) {
  if (!scene_open(s, device, stealing)) {
    return false;
  }
  for (int i = 0; i < N; i += 2) {
    whole_free(s, i, 0);
  }
  rig_collect(&s->r);
  return !test_case_failed();
}

static void scene_close(scene *s) {
  if (s->view.address != 0) {
    CHECK_OK(rig_free(&s->r, &s->view, s->r.streams[0]));
  }
  for (int i = 0; i < N; i++) {
    if (s->wholes[i].address != 0) {
      whole_free(s, i, 0);
    }
  }
  rig_collect(&s->r);
  CHECK_EQ(lent_bytes(s), 0);
  CHECK(rig_is_sound(&s->r));
  CHECK_OK(tarn_heap_trim(s->r.heap, 0));
  CHECK_EQ(s->r.heap->n_aliases, 0);
  CHECK_EQ(rig_state(&s->r).mapped_bytes, 0);
  rig_close(&s->r);
}

static void view_get(scene *s, uint64_t bytes, int stream) {
  CHECK_OK(rig_alloc(&s->r, bytes, s->r.streams[stream], &s->view));
  CHECK(is_view(s, &s->view));
}

static const tarni_phys *chunk_of(const scene *s, tarn_ptr address) {
  return &s->r.heap->chunks[s->r.heap->units[(address - s->r.heap->base) / s->r.heap->unit]];
}

/* ---- What it is made of ---- */

/* Replaces block i by two, of which one stays: what is free is behind the first, or before the
 * second. */
static rig_block chunk_cut(scene *s, int i, uint64_t first, uint64_t second, bool keeps_first) {
  rig_block blocks[2];
  const tarn_ptr start = s->wholes[i].address;
  whole_free(s, i, 0);
  rig_collect(&s->r);
  CHECK_OK(rig_alloc(&s->r, first, s->r.streams[0], &blocks[0]));
  CHECK_OK(rig_alloc(&s->r, second, s->r.streams[0], &blocks[1]));
  CHECK_EQ(blocks[0].address, start);
  CHECK_EQ(blocks[1].address, start + first);
  CHECK_OK(rig_free(&s->r, &blocks[keeps_first], s->r.streams[0]));
  rig_collect(&s->r);
  return blocks[!keeps_first];
}

/* The end of one chunk, all of another and the beginning of a third. Where each of them is at home
 * its memory is lent, to the byte, and what is written into the block is seen there. */
static void tail_whole_head(void) {
  static scene s;
  REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  const tarn_ptr homes[3] = {s.wholes[1].address, s.wholes[3].address, s.wholes[5].address};
  rig_block kept[2]; /* the higher one first: else its parts would find room below */
  kept[1] = chunk_cut(&s, 5, 5 * MIB, 3 * MIB, false);
  kept[0] = chunk_cut(&s, 1, 5 * MIB, 3 * MIB, true);
  whole_free(&s, 3, 0);
  rig_collect(&s.r);
  const uint64_t maps = calls_of(&s.r, TARN_CALL_MAP);
  view_get(&s, 15 * MIB, 0); /* 3 + 8 + 4 of the 5 that are free */
  CHECK_EQ(calls_of(&s.r, TARN_CALL_MAP), maps + 3);
  CHECK_EQ(s.r.heap->n_aliases, 3);
  CHECK_EQ(lent_bytes(&s), 15 * MIB);
  CHECK(rig_is_sound(&s.r));
  CHECK_OK(tarn_device_fill(s.r.device, kept[0].address, 1, kept[0].bytes, s.r.streams[0]));
  CHECK_OK(tarn_device_fill(s.r.device, kept[1].address, 1, kept[1].bytes, s.r.streams[0]));
  CHECK_OK(tarn_device_fill(s.r.device, s.view.address, 7, s.view.bytes, s.r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(s.r.device, s.r.streams[0]));
  CHECK(rig_host_is((void *)(uintptr_t)kept[0].address, 1, kept[0].bytes));
  CHECK(rig_host_is((void *)(uintptr_t)kept[1].address, 1, kept[1].bytes));
  CHECK(rig_host_is((void *)(uintptr_t)(homes[0] + 5 * MIB), 7, 3 * MIB));
  CHECK(rig_host_is((void *)(uintptr_t)homes[1], 7, 8 * MIB));
  CHECK(rig_host_is((void *)(uintptr_t)homes[2], 7, 4 * MIB));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_free(&s.r, &kept[i], s.r.streams[0]));
  }
  scene_close(&s);
}

/* Of several tails the one is taken after which the least is left over at the end: not the longest
 * one, of 6 MiB, but that of 4, where the head is of 4, too. */
static void matching_tail(void) {
  static scene s;
  REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  s.wholes[5] = chunk_cut(&s, 5, 4 * MIB, 4 * MIB, false);
  s.wholes[3] = chunk_cut(&s, 3, 4 * MIB, 4 * MIB, true);
  s.wholes[1] = chunk_cut(&s, 1, 2 * MIB, 6 * MIB, true);
  view_get(&s, 8 * MIB, 0);
  CHECK_EQ(s.r.heap->n_aliases, 2);
  CHECK(chunk_of(&s, s.view.address) == chunk_of(&s, s.wholes[3].address));
  CHECK(chunk_of(&s, s.view.address + 4 * MIB) == chunk_of(&s, s.wholes[5].address));
  scene_close(&s);
}

/* A row that ends in what is free goes on there: only what it lacks is mapped. */
static void rows_go_on(void) {
  static scene s;
  REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  view_get(&s, 16 * MIB, 0);
  const tarn_ptr start = s.view.address;
  CHECK_EQ(s.r.heap->n_aliases, 2);
  CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[0]));
  view_get(&s, 24 * MIB, 0);
  CHECK_EQ(s.view.address, start);
  CHECK_EQ(s.r.heap->n_aliases, 3);
  CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[0]));
  view_get(&s, 32 * MIB, 0);
  CHECK_EQ(s.view.address, start);
  CHECK_EQ(s.r.heap->n_aliases, 4);
  CHECK(rig_is_sound(&s.r));
  scene_close(&s);
}

enum { SMALL = MIB / 2, N_SMALL = 8 * MIB / SMALL }; /* a chunk full of them */

static void small_get(scene *s, rig_block *block) {
  CHECK_OK(rig_alloc(&s->r, SMALL, s->r.streams[0], block));
  CHECK(block->address - s->r.heap->base < s->r.heap->small_end);
}

static void small_free(scene *s, rig_block *blocks, int n) {
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_free(&s->r, &blocks[i], s->r.streams[0]));
  }
  rig_collect(&s->r);
}

/* Small blocks take a chunk that is free as a whole, and all of it is theirs; what is free on one
 * where a large block lies only when there is nothing else. */
static void small_blocks_borrow(void) {
  static scene s;
  static rig_block blocks[N_SMALL + 1];
  REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  const tarn_ptr home = s.wholes[3].address;
  rig_block kept = chunk_cut(&s, 1, 5 * MIB, 3 * MIB, true);
  whole_free(&s, 3, 0);
  rig_collect(&s.r);
  for (int i = 0; i < N_SMALL; i++) {
    small_get(&s, &blocks[i]);
    CHECK_EQ(lent_bytes(&s), (uint64_t)(i + 1) * SMALL);
    CHECK_EQ((uint64_t)chunk_of(&s, home)->n_small * TARNI_GRANULE, lent_bytes(&s));
  }
  CHECK_EQ(s.r.heap->n_aliases, 1);
  CHECK_EQ(chunk_of(&s, kept.address)->n_small, 0);
  small_get(&s, &blocks[N_SMALL]);
  CHECK_EQ(s.r.heap->n_aliases, 2);
  CHECK_EQ((uint64_t)chunk_of(&s, kept.address)->n_small * TARNI_GRANULE, SMALL);
  CHECK(rig_is_sound(&s.r));
  small_free(&s, blocks, N_SMALL + 1);
  CHECK_EQ(lent_bytes(&s), 0);
  CHECK_EQ(chunk_of(&s, home)->n_small, 0);
  rig_block whole; /* one piece again */
  CHECK_OK(rig_alloc(&s.r, 8 * MIB, s.r.streams[0], &whole));
  CHECK_EQ(whole.address, home);
  CHECK_OK(rig_free(&s.r, &whole, s.r.streams[0]));
  CHECK_OK(rig_free(&s.r, &kept, s.r.streams[0]));
  scene_close(&s);
}

/* Chunks of their own come before what small blocks have borrowed, unless they are spare. */
static void borrowed_before_spare(void) {
  for (int is_spare = 0; is_spare < 2; is_spare++) {
    static scene s;
    static rig_block blocks[N_SMALL + 1];
    REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
    whole_free(&s, 3, 0);
    rig_collect(&s.r);
    for (int i = 0; i < N_SMALL; i++) {
      small_get(&s, &blocks[i]);
    }
    CHECK_EQ(s.r.heap->n_aliases, 1);
    CHECK_OK(tarn_heap_set_limit(s.r.heap, (uint64_t)1024 * MIB));
    small_get(&s, &blocks[N_SMALL]);
    CHECK_EQ(s.r.heap->n_aliases, 1);
    const tarn_ptr borrowed = blocks[0].address, own = blocks[N_SMALL].address;
    s.r.heap->chunks[chunk_of(&s, own) - s.r.heap->chunks].is_spare = is_spare != 0;
    small_free(&s, &blocks[N_SMALL], 1);
    small_free(&s, &blocks[0], 1);
    small_get(&s, &blocks[0]);
    CHECK_EQ(blocks[0].address, is_spare ? borrowed : own);
    CHECK(rig_is_sound(&s.r));
    small_free(&s, blocks, N_SMALL);
    scene_close(&s);
  }
}

/* As long as a small block lies there no view begins in the rest of it, though that would leave
 * another chunk more free; and then one does. */
static void borrowed_as_a_whole(void) {
  static scene s;
  static rig_block small, large;
  REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  const tarn_ptr home = s.wholes[1].address;
  whole_free(&s, 1, 0);
  rig_collect(&s.r);
  small_get(&s, &small);
  CHECK_EQ((uint64_t)chunk_of(&s, home)->n_small * TARNI_GRANULE, SMALL);
  whole_free(&s, 3, 0);
  whole_free(&s, 5, 0);
  rig_collect(&s.r);
  view_get(&s, 12 * MIB, 0);
  CHECK_EQ(chunk_of(&s, home)->n_used, chunk_of(&s, home)->n_small);
  CHECK_EQ(s.r.heap->n_aliases, 3);
  CHECK_EQ(lent_bytes(&s), 12 * MIB + SMALL);
  CHECK(rig_is_sound(&s.r));
  small_free(&s, &small, 1);
  CHECK_EQ(chunk_of(&s, home)->n_used, 0);
  CHECK_OK(rig_alloc(&s.r, 12 * MIB, s.r.streams[0], &large)); /* all that is free */
  CHECK(is_view(&s, &large));
  CHECK_EQ((uint64_t)chunk_of(&s, home)->n_used * TARNI_GRANULE, 8 * MIB);
  CHECK_OK(rig_free(&s.r, &large, s.r.streams[0]));
  scene_close(&s);
}

/* Two chunks are free, but one mapping more is all that there may be: the other one is given back,
 * and what is needed made anew. */
static void no_more_borrowed(void) {
  static scene s;
  static rig_block blocks[N_SMALL + 1];
  REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  whole_free(&s, 1, 0);
  whole_free(&s, 5, 0);
  rig_collect(&s.r);
  s.r.heap->max_aliases = 1;
  for (int i = 0; i < N_SMALL; i++) {
    small_get(&s, &blocks[i]);
  }
  CHECK_EQ(s.r.heap->n_aliases, 1);
  CHECK_EQ(lent_bytes(&s), 8 * MIB);
  CHECK_EQ(calls_of(&s.r, TARN_CALL_CREATE), N);
  small_get(&s, &blocks[N_SMALL]);
  CHECK_EQ(s.r.heap->n_aliases, 1);
  CHECK_EQ(lent_bytes(&s), 8 * MIB);
  CHECK_EQ(calls_of(&s.r, TARN_CALL_CREATE), N + 1);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, (HELD - 8) * MIB + s.r.heap->unit);
  CHECK(rig_is_sound(&s.r));
  small_free(&s, blocks, N_SMALL + 1);
  scene_close(&s);
}

/* ---- Streams ---- */

static const tarn_stealing policies[] = {TARN_STEAL_WHEN_SHORT, TARN_STEAL_ALWAYS};

/* What was lent is free again in the order of the stream that has given the block back: another one
 * has it behind a wait, in the view that is there, without a mapping. */
static void stolen_through_a_view(void) {
  for (int i = 0; i < 2; i++) {
    static scene s;
    REQUIRE(scene_open_holes(&s, "sim:16G,order=lazy", policies[i]));
    view_get(&s, 32 * MIB, 0);
    const tarn_ptr start = s.view.address;
    const uint64_t maps = calls_of(&s.r, TARN_CALL_MAP), waits = rig_stats(&s.r).waits;
    CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[0]));
    view_get(&s, 32 * MIB, 2);
    CHECK_EQ(s.view.address, start);
    CHECK_EQ(calls_of(&s.r, TARN_CALL_MAP), maps);
    CHECK(rig_stats(&s.r).waits > waits);
    CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[2]));
    scene_close(&s);
  }
}

/* A new one of what two streams have freed. */
static void joined_of_two_streams(void) {
  for (int i = 0; i < 2; i++) {
    static scene s;
    REQUIRE(scene_open(&s, "sim:16G,order=lazy", policies[i]));
    for (int k = 0; k < N; k += 2) {
      rig_order(&s.r, s.r.streams[0], s.r.streams[1]);
      whole_free(&s, k, k / 2 % 2);
    }
    view_get(&s, 32 * MIB, 2);
    CHECK(rig_stats(&s.r).waits >= 2);
    CHECK_EQ(lent_bytes(&s), 32 * MIB);
    CHECK(rig_is_sound(&s.r));
    CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[2]));
    scene_close(&s);
  }
}

/* ---- Trims and sleep ---- */

/* What is lent stays, and what is free goes, with all the places that it has. */
static void trimmed_around(void) {
  static scene s;
  REQUIRE(scene_open_holes(&s, "sim:16G,order=lazy", TARN_STEAL_WHEN_SHORT));
  view_get(&s, 32 * MIB, 0);
  CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[0]));
  view_get(&s, 16 * MIB, 0);
  CHECK_EQ(s.r.heap->n_aliases, 4);
  rig_touch(&s.r, &s.view, s.r.streams[0], true);
  CHECK_OK(tarn_heap_trim(s.r.heap, 0));
  CHECK_EQ(s.r.heap->n_aliases, 2);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, (HELD - 16) * MIB);
  CHECK_EQ(rig_state(&s.r).mapped_bytes, (HELD - 16 + 16) * MIB);
  CHECK_EQ(lent_bytes(&s), 16 * MIB);
  CHECK(rig_is_sound(&s.r));
  rig_touch(&s.r, &s.view, s.r.streams[0], true);
  scene_close(&s);
}

/* It is at its address when the heap wakes, with its content, and so is what lies at home. */
static void asleep_in_a_view(void) {
  static scene s;
  REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  view_get(&s, 30 * MIB, 0);
  CHECK_OK(tarn_device_fill(s.r.device, s.view.address, 9, s.view.bytes, s.r.streams[0]));
  CHECK_OK(tarn_device_fill(s.r.device, s.wholes[1].address, 3, 8 * MIB, s.r.streams[0]));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_heap_sleep(s.r.heap, i == 2 ? TARN_SLEEP_DROP : TARN_SLEEP_SAVE));
    CHECK_EQ(rig_state(&s.r).created_bytes, 0);
    CHECK(i != 2 || rig_state(&s.r).mapped_bytes == 0); /* else it has what is saved */
    CHECK(rig_is_sound(&s.r));
    CHECK_OK(tarn_heap_wake(s.r.heap));
    CHECK(rig_is_sound(&s.r));
    CHECK_EQ(lent_bytes(&s), 30 * MIB);
    CHECK_OK(tarn_sim_own(s.r.device, s.view.address, s.view.bytes, s.view.owner));
    for (int k = 1; k < N; k += 2) {
      const rig_block *block = &s.wholes[k];
      CHECK_OK(tarn_sim_own(s.r.device, block->address, block->bytes, block->owner));
    }
    if (i != 2) {
      CHECK(rig_host_is((void *)(uintptr_t)s.view.address, 9, s.view.bytes));
      CHECK(rig_host_is((void *)(uintptr_t)s.wholes[1].address, 3, 8 * MIB));
    }
    rig_touch(&s.r, &s.view, s.r.streams[0], true);
    CHECK_OK(tarn_device_fill(s.r.device, s.view.address, 9, s.view.bytes, s.r.streams[0]));
    CHECK_OK(tarn_device_fill(s.r.device, s.wholes[1].address, 3, 8 * MIB, s.r.streams[0]));
  }
  scene_close(&s);
}

/* Freed while the heap sleeps: its chunks are not made again, and their places are forgotten. */
static void freed_asleep(void) {
  static scene s;
  REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  view_get(&s, 32 * MIB, 0);
  CHECK_OK(tarn_heap_sleep(s.r.heap, TARN_SLEEP_SAVE));
  CHECK_OK(tarn_free(s.r.heap, s.view.address, s.r.streams[0]));
  s.view = (rig_block){0};
  CHECK(rig_is_sound(&s.r));
  CHECK_OK(tarn_heap_wake(s.r.heap));
  for (int k = 1; k < N; k += 2) {
    const rig_block *block = &s.wholes[k];
    CHECK_OK(tarn_sim_own(s.r.device, block->address, block->bytes, block->owner));
  }
  CHECK_EQ(s.r.heap->n_aliases, 0);
  CHECK_EQ(rig_stats(&s.r).reserved_bytes, HELD / 2 * MIB);
  CHECK(rig_is_sound(&s.r));
  scene_close(&s);
}

/* ---- Failures ---- */

/* Whichever driver call fails nothing has changed, and the next try succeeds. */
static void failed_at_each_call(void) {
  bool is_over = false;
  for (uint64_t nth = 1; !is_over && nth < 20; nth++) {
    static scene s;
    REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
    const uint64_t mapped = rig_state(&s.r).mapped_bytes;
    const tarn_heap_stats before = rig_stats(&s.r);
    CHECK_OK(tarn_sim_fail(s.r.device, TARN_CALL_COUNT, nth, 1, 999));
    const tarn_status status = rig_alloc(&s.r, 32 * MIB, s.r.streams[0], &s.view);
    CHECK_OK(tarn_sim_fail(s.r.device, TARN_CALL_COUNT, 0, 0, 0));
    is_over = nth > 5 && status == TARN_OK;
    if (status != TARN_OK) {
      const tarn_heap_stats after = rig_stats(&s.r);
      CHECK_EQ(lent_bytes(&s), 0);
      CHECK_EQ(s.r.heap->n_aliases, 0);
      CHECK_EQ(rig_state(&s.r).mapped_bytes, mapped);
      CHECK_EQ(after.free_bytes, before.free_bytes);
      CHECK_EQ(after.reserved_bytes, before.reserved_bytes);
      CHECK(rig_is_sound(&s.r));
      view_get(&s, 32 * MIB, 0);
    }
    CHECK_EQ(s.r.heap->n_aliases, 4);
    CHECK_EQ(lent_bytes(&s), 32 * MIB);
    scene_close(&s);
  }
  CHECK(is_over);
}

/* Where it cannot be undone either, the memory stays lent to nobody until it can. */
static void not_undone(void) {
  static scene s;
  uint64_t n_calls = 0;
  for (int i = 0; i < 2; i++) {
    REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
    if (i == 0) { /* the last call gives access: from there on all fail, those that undo it, too */
      n_calls = rig_calls(&s.r);
      view_get(&s, 32 * MIB, 0);
      n_calls = rig_calls(&s.r) - n_calls;
      scene_close(&s);
    }
  }
  const uint64_t mapped = rig_state(&s.r).mapped_bytes;
  CHECK_OK(tarn_sim_fail(s.r.device, TARN_CALL_COUNT, n_calls, 0, 999));
  CHECK_STATUS(rig_alloc(&s.r, 32 * MIB, s.r.streams[0], &s.view), TARN_DRIVER);
  CHECK_OK(tarn_sim_fail(s.r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK(s.r.heap->unfinished != NULL);
  CHECK_EQ(lent_bytes(&s), 32 * MIB);
  CHECK_EQ(rig_state(&s.r).mapped_bytes, mapped + 32 * MIB);
  CHECK(rig_is_sound(&s.r));
  view_get(&s, 32 * MIB, 0);
  CHECK(s.r.heap->unfinished == NULL);
  CHECK_EQ(s.r.heap->n_aliases, 4);
  CHECK_EQ(rig_state(&s.r).mapped_bytes, mapped + 32 * MIB);
  scene_close(&s);
}

/* A window that begins in what is free at the end of a chunk, and cannot be made nor undone: the
 * end is free again, and known to be, when it is. */
static void ends_are_seen_again(void) {
  rig r;
  rig_block first, second;
  uint64_t n_calls = 0;
  for (int i = 0; i < 2; i++) {
    REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
    CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &first)); /* on a chunk of 4 */
    if (i == 0) {
      n_calls = rig_calls(&r);
      CHECK_OK(rig_alloc(&r, 5 * MIB, r.streams[0], &second));
      CHECK_EQ(second.address, first.address + first.bytes);
      n_calls = rig_calls(&r) - n_calls;
      CHECK_OK(rig_free(&r, &first, r.streams[0]));
      CHECK_OK(rig_free(&r, &second, r.streams[0]));
      rig_close(&r);
    }
  }
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, n_calls, 0, 999));
  CHECK_STATUS(rig_alloc(&r, 5 * MIB, r.streams[0], &second), TARN_DRIVER);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK(r.heap->unfinished != NULL);
  tarni_lock_acquire(&r.heap->lock);
  tarni_ends_update_locked(r.heap); /* as whoever looks for a view meanwhile */
  tarni_lock_release(&r.heap->lock);
  CHECK_OK(tarn_heap_trim(r.heap, 8 * MIB));
  CHECK(r.heap->unfinished == NULL);
  CHECK(rig_is_sound(&r));
  CHECK_OK(rig_free(&r, &first, r.streams[0]));
  rig_close(&r);
}

/* Without a record for what is cut off the block is refused, and nothing is lost. */
static void records_run_out(void) {
  uint64_t n_refused = 0;
  for (uint32_t n_records = 0; n_records < 8; n_records++) {
    static scene s;
    REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
    const uint32_t max_extents = s.r.heap->max_extents;
    s.r.heap->max_extents = s.r.heap->n_extents + n_records;
    while (s.r.heap->free_extent != 0) { /* those that were used before */
      s.r.heap->free_extent = s.r.heap->extents[s.r.heap->free_extent].link;
    }
    const tarn_status status = rig_alloc(&s.r, 29 * MIB, s.r.streams[0], &s.view);
    if (status != TARN_OK) {
      CHECK_STATUS(status, TARN_HOST_MEMORY);
      CHECK_EQ(lent_bytes(&s), 0);
      n_refused++;
    }
    s.r.heap->max_extents = max_extents;
    CHECK(rig_is_sound(&s.r));
    scene_close(&s);
  }
  CHECK(n_refused != 0 && n_refused != 8);
}

/* A chunk that is free as a whole, of pieces of several streams, each of which is too small. */
static void small_of_pieces(void) {
  enum { PIECE = 256 << 10, N_PIECES = 400, N_WHOLE = 40 };
  static rig r;
  static rig_block pieces[N_PIECES], whole[N_WHOLE];
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_WHEN_SHORT};
  REQUIRE(rig_open(&r, "sim:512M", &config, 3));
  for (int i = 0; i < N_PIECES; i++) {
    tarn_ptr block;
    CHECK_OK(tarn_alloc_aligned(r.heap, PIECE, 2 * TARNI_GRANULE, r.streams[i % 3], &block));
    rig_own(&r, block, PIECE, &pieces[i]);
  }
  CHECK_OK(tarn_heap_set_limit(r.heap, rig_stats(&r).reserved_bytes));
  for (int i = 0; i < N_PIECES; i++) {
    CHECK_OK(rig_free(&r, &pieces[i], r.streams[i % 3]));
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[i]));
  }
  for (int i = 0; i < N_WHOLE; i++) {
    CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &whole[i]));
    CHECK_OK(tarn_heap_check(r.heap));
  }
  for (int i = 0; i < N_WHOLE; i++) {
    CHECK_OK(rig_free(&r, &whole[i], r.streams[0]));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Streams use a view one after the other, and each is done before the next: it may be dropped. */
static void used_by_many_streams(void) {
  enum { N_STREAMS = 7 };
  static scene s;
  REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_ALWAYS));
  tarn_stream streams[N_STREAMS];
  for (int i = 0; i < N_STREAMS; i++) {
    CHECK_OK(tarn_stream_create(s.r.device, &streams[i]));
    CHECK_OK(rig_alloc(&s.r, 29 * MIB, streams[i], &s.view));
    CHECK(is_view(&s, &s.view));
    CHECK_OK(rig_free(&s.r, &s.view, streams[i]));
    rig_collect(&s.r);
    CHECK_OK(tarn_stream_synchronize(s.r.device, streams[i]));
    tarni_lock_acquire(&s.r.heap->grow);
    CHECK_OK(tarni_lanes_finish_grow(s.r.heap));
    tarni_lock_release(&s.r.heap->grow);
  }
  CHECK(s.r.heap->n_aliases != 0);
  tarni_lock_acquire(&s.r.heap->grow);
  CHECK(tarni_chunk_unalias_grow(s.r.heap));
  tarni_lock_release(&s.r.heap->grow);
  CHECK_EQ(s.r.heap->n_aliases, 0);
  for (int i = 0; i < N_STREAMS; i++) {
    CHECK_OK(tarn_stream_retire(s.r.heap, streams[i]));
    CHECK_OK(tarn_stream_destroy(s.r.device, streams[i]));
  }
  scene_close(&s);
}

/* An aligned block on the end of one chunk and the beginning of another, and no more than that. */
static void aligned_tail_and_head(void) {
  static scene s;
  REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  rig_block kept[2]; /* the higher one first: else its parts would find room below */
  kept[1] = chunk_cut(&s, 5, 4 * MIB, 4 * MIB, false);
  kept[0] = chunk_cut(&s, 1, 3 * MIB, 5 * MIB, true); /* of the 5 that are free 4 are aligned */
  tarn_ptr block;
  CHECK_OK(tarn_alloc_aligned(s.r.heap, 8 * MIB, 2 * MIB, s.r.streams[0], &block));
  rig_own(&s.r, block, 8 * MIB, &s.view);
  CHECK(is_view(&s, &s.view));
  CHECK_EQ(block % (2 * MIB), 0);
  CHECK_EQ(lent_bytes(&s), 8 * MIB);
  CHECK(rig_is_sound(&s.r));
  for (int i = 0; i < 2; i++) {
    CHECK_OK(rig_free(&s.r, &kept[i], s.r.streams[0]));
  }
  scene_close(&s);
}

/* Where addresses are few, and no room is left at homes, a view does. */
static void few_addresses(void) {
  enum { TOTAL = 256, N_BLOCKS = TOTAL / 2 };
  static rig r;
  static rig_block blocks[N_BLOCKS], view;
  REQUIRE(rig_open(&r, "sim:256M,fail=reserve:1:12", NULL, 1)); /* four times the memory */
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &blocks[i]));
  }
  for (int i = 0; i < N_BLOCKS; i += 2) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK_OK(rig_alloc(&r, 64 * MIB, r.streams[0], &view));
  CHECK(view.address - r.heap->base >= r.heap->large_end);
  CHECK_OK(rig_free(&r, &view, r.streams[0]));
  for (int i = 1; i < N_BLOCKS; i += 2) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Memory that came after a view does not draw its block away, though it is at home there; one that
 * no view is for gets it. What was there before the view comes first. */
static void older_first(void) {
  static scene s;
  REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  view_get(&s, 16 * MIB, 0);
  const tarn_ptr address = s.view.address;
  CHECK_OK(tarn_heap_set_limit(s.r.heap, 0));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (HELD + 32) * MIB));
  CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[0]));
  rig_collect(&s.r);
  view_get(&s, 16 * MIB, 0);
  CHECK_EQ(s.view.address, address);
  CHECK_EQ(lent_bytes(&s), 16 * MIB);
  rig_block young, old;
  CHECK_OK(rig_alloc(&s.r, 24 * MIB, s.r.streams[0], &young));
  CHECK(!is_view(&s, &young));
  CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[0]));
  rig_collect(&s.r);
  CHECK_OK(rig_alloc(&s.r, 8 * MIB, s.r.streams[0], &old));
  CHECK(!is_view(&s, &old) && old.address < s.wholes[1].address);
  CHECK_OK(rig_free(&s.r, &young, s.r.streams[0]));
  CHECK_OK(rig_free(&s.r, &old, s.r.streams[0]));
  scene_close(&s);
}

/* A view that came after memory at home does not draw its block away, though there are older ones:
 * those have no room. */
static void younger_last(void) {
  static scene s;
  REQUIRE(scene_open_holes(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  view_get(&s, 16 * MIB, 0);
  CHECK_OK(tarn_heap_set_limit(s.r.heap, 0));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (HELD + 16) * MIB));
  CHECK_OK(tarn_heap_set_limit(s.r.heap, (HELD + 16) * MIB));
  rig_block home, view;
  CHECK_OK(rig_alloc(&s.r, 16 * MIB, s.r.streams[0], &home));
  CHECK(!is_view(&s, &home));
  CHECK_OK(rig_alloc(&s.r, 12 * MIB, s.r.streams[0], &view));
  CHECK(is_view(&s, &view));
  CHECK_OK(rig_free(&s.r, &view, s.r.streams[0]));
  const tarn_ptr address = home.address;
  CHECK_OK(rig_free(&s.r, &home, s.r.streams[0]));
  rig_collect(&s.r);
  CHECK_OK(rig_alloc(&s.r, 12 * MIB, s.r.streams[0], &home));
  CHECK_EQ(home.address, address);
  CHECK_OK(rig_free(&s.r, &home, s.r.streams[0]));
  scene_close(&s);
}

/* What a large block of the first stream would get at once, BUSY. */
static tarni_index ready_locked(tarn_heap *heap, uint64_t bytes) {
  const tarni_need need = {.lane = 1,
                           .zone = TARNI_ZONE_LARGE,
                           .size = bytes,
                           .alignment = TARNI_GRANULE,
                           .least = TARNI_GRANULE,
                           .class_index = TARNI_CLASS_COUNT};
  return tarni_chunk_ready_locked(heap, &need);
}

/* An older view is not to be had, because somebody is at work on a part of it. The room at home
 * shares memory with it, and has come apart by then: what was found there is looked for again. */
static void older_is_taken(void) {
  static const tarni_order complete = {0};
  static scene s;
  REQUIRE(scene_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT));
  tarn_heap *heap = s.r.heap;
  rig_block kept = chunk_cut(&s, 7, 3 * MIB, 5 * MIB, true), home;
  const uint64_t start = s.wholes[5].address - heap->base;
  whole_free(&s, 5, 0);
  rig_collect(&s.r);
  view_get(&s, 9 * MIB, 0); /* the end of 7, and the beginning of 5 */
  CHECK_OK(rig_free(&s.r, &s.view, s.r.streams[0]));
  rig_collect(&s.r);
  CHECK_OK(tarn_heap_set_limit(heap, 0));
  CHECK_OK(tarn_heap_reserve(heap, (HELD + 8) * MIB));
  CHECK_OK(rig_alloc(&s.r, 13 * MIB, s.r.streams[0], &home)); /* and what is made behind it */
  CHECK_EQ(home.address, kept.address + 3 * MIB);
  CHECK_OK(rig_free(&s.r, &home, s.r.streams[0]));
  rig_collect(&s.r);
  tarni_lock_acquire(&heap->grow);
  CHECK_OK(tarni_heap_settle_grow(heap)); /* what the view gives back waits for nothing */
  tarni_lock_release(&heap->grow);
  tarni_lock_acquire(&heap->lock);
  tarni_ends_update_locked(heap);
  const tarni_index busy = tarni_range_isolate_locked(heap, start, start + 8 * MIB);
  CHECK_EQ(ready_locked(heap, 9 * MIB), 0);
  const tarni_index found = ready_locked(heap, 8 * MIB); /* of what was made */
  CHECK_EQ(tarni_extent_at(heap, found)->offset, kept.address + 8 * MIB - heap->base);
  tarni_extent_give_locked(heap, busy, TARNI_EXTENT_FREE, &complete);
  tarni_extent_give_locked(heap, found, TARNI_EXTENT_FREE, &complete);
  tarni_lock_release(&heap->lock);
  CHECK_EQ(lent_bytes(&s), 0);
  CHECK_OK(rig_free(&s.r, &kept, s.r.streams[0]));
  scene_close(&s);
}

/* What is made for a view is mapped twice: it comes in few chunks. */
static void made_for_a_view(void) {
  enum { N_BLOCKS = 64 };
  static rig_block blocks[N_BLOCKS];
  rig_block view;
  rig r;
  REQUIRE(rig_open(&r, "sim:16G", NULL, 1));
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[0], &blocks[i]));
  }
  CHECK_OK(rig_free(&r, &blocks[10], r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[30], r.streams[0]));
  const uint64_t held = rig_stats(&r).reserved_bytes, made = calls_of(&r, TARN_CALL_CREATE);
  CHECK_OK(rig_alloc(&r, 136 * MIB, r.streams[0], &view));
  CHECK(view.address - r.heap->base >= r.heap->large_end);
  CHECK_EQ(rig_stats(&r).reserved_bytes, held + 96 * MIB);
  CHECK(calls_of(&r, TARN_CALL_CREATE) - made <= 16); /* a 12th each would be 33 */
  CHECK_OK(rig_free(&r, &view, r.streams[0]));
  for (int i = 0; i < N_BLOCKS; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
    }
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static const test_case cases[] = {
    {"what is made for a view", made_for_a_view},
    {"what is older comes first", older_first},
    {"what is younger comes last", younger_last},
    {"what is older is not to be had", older_is_taken},
    {"a tail, a whole chunk and a head", tail_whole_head},
    {"a tail and a head that match", matching_tail},
    {"rows go on", rows_go_on},
    {"small blocks borrow", small_blocks_borrow},
    {"borrowed before what is spare", borrowed_before_spare},
    {"borrowed as a whole", borrowed_as_a_whole},
    {"no more borrowed than there may be", no_more_borrowed},
    {"stolen through a view", stolen_through_a_view},
    {"joined of what two streams have freed", joined_of_two_streams},
    {"trimmed around", trimmed_around},
    {"asleep in a view", asleep_in_a_view},
    {"freed while the heap sleeps", freed_asleep},
    {"failed at each call", failed_at_each_call},
    {"not undone at first", not_undone},
    {"ends are seen again", ends_are_seen_again},
    {"records run out", records_run_out},
    {"few addresses", few_addresses},
    {"an aligned tail and head", aligned_tail_and_head},
    {"used by many streams", used_by_many_streams},
    {"small blocks on pieces", small_of_pieces},
};

TEST_MAIN(cases)
