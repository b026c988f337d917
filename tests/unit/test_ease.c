/* SPDX-License-Identifier: MIT
 *
 * Heaps that collect slabs for ever, to save memory where they hold more than they ever used all
 * the same: such a heap is eased, and does without, as long as chunks hardly move. */
#include "base/bits.h"
#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum {
  MIB = 1 << 20,
  N_BLOCKS = 600,
  N_STEPS = 12000, /* of a part of the program */
  MANY_SLABS = 1 << 16,
};

/* ---- A program of mixed sizes ---- */

typedef struct program {
  rig r;
  rig_block blocks[N_BLOCKS];
  tarni_rng rng;
} program;

/* From 512 bytes to 4 MiB, all orders of magnitude alike. */
static uint64_t bytes_next(tarni_rng *rng) {
  const uint64_t low = (uint64_t)512 << tarni_rng_below(rng, 13);
  return low + tarni_rng_below(rng, low);
}

static void program_run(program *p) {
  for (int step = 0; step < N_STEPS; step++) {
    rig_block *block = &p->blocks[tarni_rng_below(&p->rng, N_BLOCKS)];
    if (block->address != 0) {
      CHECK_OK(rig_free(&p->r, block, p->r.streams[0]));
    }
    CHECK_OK(rig_alloc(&p->r, bytes_next(&p->rng), p->r.streams[0], block));
  }
}

static void program_end(program *p) {
  for (int i = 0; i < N_BLOCKS; i++) {
    if (p->blocks[i].address != 0) {
      CHECK_OK(rig_free(&p->r, &p->blocks[i], p->r.streams[0]));
    }
  }
  CHECK(rig_is_sound(&p->r));
}

/* After so many: how many slabs are collected in the last half of the program. */
static uint64_t collected_at_last(uint64_t n_collected, tarn_heap_stats *stats) {
  static program p;
  p = (program){.rng = {11}};
  *stats = (tarn_heap_stats){0};
  if (!rig_open(&p.r, "sim:16G", NULL, 1)) {
    return 0;
  }
  p.r.heap->rest.n_collected = n_collected;
  program_run(&p);
  const uint64_t before = p.r.heap->rest.n_collected;
  program_run(&p);
  const uint64_t n = p.r.heap->rest.n_collected - before;
  *stats = rig_stats(&p.r);
  program_end(&p);
  CHECK_OK(tarn_heap_reset(p.r.heap)); /* what comes then is another program */
  CHECK_EQ(p.r.heap->rest.n_collected, 0);
  rig_close(&p.r);
  return n;
}

static void collects_no_more(void) {
  tarn_heap_stats before, eased;
  const uint64_t n_before = collected_at_last(0, &before);
  const uint64_t n_eased = collected_at_last(MANY_SLABS, &eased);
  CHECK(n_before > 500 && n_before < MANY_SLABS / 2);
  CHECK(n_eased < n_before / 8);
  CHECK(eased.reserved_peak_bytes <= before.reserved_peak_bytes / 8 * 9);
  CHECK(eased.reserved_peak_bytes <= eased.used_peak_bytes / 4 * 5);
}

/* ---- When a heap is eased ---- */

typedef struct store {
  rig r;
  rig_block block;
} store;

/* A heap that has used 320 MiB and holds so many more, idle. */
static bool store_open(store *s, uint64_t more) {
  *s = (store){0};
  if (!rig_open(&s->r, "sim:16G", NULL, 1)) {
    return false;
  }
  CHECK_OK(rig_alloc(&s->r, (uint64_t)320 * MIB, s->r.streams[0], &s->block));
  if (more != 0) {
    CHECK_OK(tarn_heap_reserve(s->r.heap, (uint64_t)320 * MIB + more));
  }
  s->r.heap->rest.n_collected = MANY_SLABS;
  return true;
}

static void store_close(store *s) {
  CHECK_OK(rig_free(&s->r, &s->block, s->r.streams[0]));
  CHECK(rig_is_sound(&s->r));
  rig_close(&s->r);
}

static bool is_eased(store *s, uint64_t more) {
  tarni_lock_acquire(&s->r.heap->lock);
  const bool is = tarni_rest_is_eased_locked(s->r.heap, more);
  tarni_lock_release(&s->r.heap->lock);
  return is;
}

/* Only a heap that holds a sixteenth more than it ever used, and has collected enough. */
static void needs_reason(void) {
  static store s;
  REQUIRE(store_open(&s, 0));
  CHECK(!is_eased(&s, 0));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (uint64_t)340 * MIB));
  CHECK(!is_eased(&s, 0));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (uint64_t)342 * MIB));
  CHECK(is_eased(&s, 0));
  s.r.heap->rest.n_collected = MANY_SLABS - 1;
  CHECK(!is_eased(&s, 0));
  store_close(&s);
}

/* It has so much idle, or may make so much: up to a quarter of the peak, as long as others have
 * room, and what was refused is not asked for. */
static void needs_room(void) {
  static store s;
  REQUIRE(store_open(&s, (uint64_t)180 * MIB));
  CHECK(is_eased(&s, (uint64_t)180 * MIB));
  CHECK(!is_eased(&s, (uint64_t)180 * MIB + 1));
  store_close(&s);
  REQUIRE(store_open(&s, (uint64_t)30 * MIB));
  const uint64_t most = (uint64_t)50 * MIB; /* to 400 */
  CHECK(is_eased(&s, most));
  CHECK(!is_eased(&s, most + 1));
  CHECK_OK(tarn_heap_set_limit(s.r.heap, (uint64_t)530 * MIB)); /* three quarters are 397.5 */
  CHECK(!is_eased(&s, most));
  CHECK(is_eased(&s, (uint64_t)47 * MIB));
  CHECK_OK(tarn_heap_set_limit(s.r.heap, 0));
  s.r.heap->refused_bytes = (uint64_t)390 * MIB;
  CHECK(!is_eased(&s, most));
  CHECK(is_eased(&s, (uint64_t)40 * MIB));
  store_close(&s);
}

static void moves_put_off(store *s, uint64_t n) {
  tarni_lock_acquire(&s->r.heap->lock);
  for (uint64_t i = 0; i < n; i++) {
    tarni_rest_move_locked(s->r.heap, 2 * MIB);
  }
  tarni_lock_release(&s->r.heap->lock);
}

/* Once as many chunks have moved as there are it collects again, twice as much. */
static void gives_up(void) {
  static store s;
  REQUIRE(store_open(&s, (uint64_t)40 * MIB));
  const uint64_t n_chunks = s.r.heap->n_chunks;
  CHECK(n_chunks > 8);
  moves_put_off(&s, n_chunks);
  CHECK(is_eased(&s, 0));
  moves_put_off(&s, 1);
  CHECK(!is_eased(&s, 0));
  CHECK_EQ(s.r.heap->rest.n_collected, 0);
  moves_put_off(&s, 10 * n_chunks); /* these are no sign of anything */
  s.r.heap->rest.n_collected = 2 * MANY_SLABS - 1;
  CHECK(!is_eased(&s, 0));
  s.r.heap->rest.n_collected = 2 * MANY_SLABS;
  CHECK(is_eased(&s, 0));
  store_close(&s);
}

/* ---- Shortage ---- */

/* All that is free is in slabs, and the device has no more: the heap collects all the same. */
static void collects_under_shortage(void) {
  static program p;
  p = (program){0};
  REQUIRE(rig_open(&p.r, "sim:16G", NULL, 1));
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(rig_alloc(&p.r, MIB / 2, p.r.streams[0], &p.blocks[i]));
  }
  CHECK_OK(tarn_heap_reserve(p.r.heap, (uint64_t)320 * MIB));
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(rig_free(&p.r, &p.blocks[i], p.r.streams[0]));
  }
  p.r.heap->rest.n_collected = MANY_SLABS;
  CHECK_OK(tarn_sim_fail(p.r.device, TARN_CALL_CREATE, 1, 0, 0));
  CHECK_OK(rig_alloc(&p.r, (uint64_t)30 * MIB, p.r.streams[0], &p.blocks[0]));
  CHECK_OK(rig_alloc(&p.r, (uint64_t)250 * MIB, p.r.streams[0], &p.blocks[1]));
  uint64_t n_refused = 0;
  CHECK_OK(tarn_sim_failed(p.r.device, &n_refused));
  CHECK(n_refused != 0); /* it would rather have grown */
  CHECK_OK(tarn_sim_fail(p.r.device, TARN_CALL_COUNT, 0, 0, 0));
  program_end(&p);
  rig_close(&p.r);
}

static const test_case cases[] = {
    {"a heap that has collected enough does without", collects_no_more},
    {"if it holds more than it ever used", needs_reason},
    {"and can do without", needs_room},
    {"unless its chunks move then", gives_up},
    {"under shortage it collects", collects_under_shortage},
};

TEST_MAIN(cases)
