/* SPDX-License-Identifier: MIT
 *
 * Heaps that collect slabs for ever, to save memory where they hold more than is used all the same:
 * such a heap is eased, and does without, within bounds and as long as chunks hardly move. */
#include "base/bits.h"
#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum {
  MIB = 1 << 20,
  N_BLOCKS = 600,
  N_STEPS = 12000, /* of a part of the program */
  MANY_SLABS = TARNI_EASE_COLLECTED,
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

/* As if the heap had collected enough while so much was used. */
static void ease(tarn_heap *heap, uint64_t lean_peak) {
  tarni_lock_acquire(&heap->lock);
  heap->rest.n_collected = MANY_SLABS;
  heap->rest.lean_peak = lean_peak;
  tarni_lock_release(&heap->lock);
}

/* How many slabs are collected in the second half of the program. */
static uint64_t collected_at_last(bool is_eased, tarn_heap_stats *stats) {
  static program p;
  p = (program){.rng = {11}};
  *stats = (tarn_heap_stats){0};
  if (!rig_open(&p.r, "sim:16G", NULL, 1)) {
    return 0;
  }
  program_run(&p);
  tarni_rest *rest = &p.r.heap->rest;
  CHECK(rest->n_collected != 0 && rest->n_collected < MANY_SLABS / 2);
  CHECK(rest->lean_peak != 0 && rest->lean_peak <= rig_stats(&p.r).used_peak_bytes);
  if (is_eased) {
    ease(p.r.heap, rest->lean_peak);
  }
  const uint64_t before = rest->n_collected;
  program_run(&p);
  const uint64_t n = rest->n_collected - before;
  *stats = rig_stats(&p.r);
  CHECK(!is_eased || stats->reserved_peak_bytes <= rest->lean_peak / 16 * 24 + 4 * MIB);
  program_end(&p);
  CHECK_OK(tarn_heap_reset(p.r.heap)); /* what comes then is another program */
  CHECK_EQ(rest->n_collected, 0);
  CHECK_EQ(rest->lean_peak, 0);
  rig_close(&p.r);
  return n;
}

static void collects_no_more(void) {
  tarn_heap_stats before, eased;
  const uint64_t n_before = collected_at_last(false, &before);
  const uint64_t n_eased = collected_at_last(true, &eased);
  CHECK(n_before > 500);
  CHECK(n_eased < n_before / 8);
  CHECK(eased.reserved_peak_bytes <= before.reserved_peak_bytes / 4 * 5);
}

/* Blocks whose sizes drift, so that none of those that were given back fits: what is used rises
 * with what is not collected, but not what the heap may hold. */
static void is_bounded(void) {
  enum { N_LARGE = 200, N_DRIFTING = 200, N_ROUNDS = 40 };
  static program p;
  p = (program){0};
  REQUIRE(rig_open(&p.r, "sim:16G", NULL, 1));
  for (int i = 0; i < N_LARGE; i++) {
    CHECK_OK(rig_alloc(&p.r, 3 * MIB / 2, p.r.streams[0], &p.blocks[i]));
  }
  for (int i = 0; i < N_LARGE; i += 5) {
    CHECK_OK(rig_free(&p.r, &p.blocks[i], p.r.streams[0]));
  }
  for (uint64_t round = 0; round < N_ROUNDS; round++) {
    for (int i = 0; i < N_DRIFTING; i++) {
      rig_block *block = &p.blocks[N_LARGE + i];
      if (block->address != 0) {
        CHECK_OK(rig_free(&p.r, block, p.r.streams[0]));
      }
      CHECK_OK(rig_alloc(&p.r, (70 + 20 * round) << 10, p.r.streams[0], block));
    }
    if (round == 4) {
      ease(p.r.heap, p.r.heap->rest.lean_peak);
    }
  }
  const tarn_heap_stats stats = rig_stats(&p.r);
  CHECK(stats.reserved_bytes <= stats.live_bytes / 8 * 13);
  program_end(&p);
  rig_close(&p.r);
}

/* ---- When a heap is eased ---- */

typedef struct store {
  rig r;
  rig_block block;
} store;

/* A heap that uses 320 MiB and holds so many more, idle. */
static bool store_open(store *s, const char *device, tarn_stealing stealing, uint64_t more) {
  *s = (store){0};
  const tarn_heap_config config = {.size = sizeof(config), .stealing = stealing};
  if (!rig_open(&s->r, device, &config, 2)) {
    return false;
  }
  CHECK_OK(rig_alloc(&s->r, (uint64_t)320 * MIB, s->r.streams[0], &s->block));
  CHECK_OK(tarn_heap_reserve(s->r.heap, (uint64_t)320 * MIB + more));
  ease(s->r.heap, (uint64_t)320 * MIB);
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

/* The most that an eased heap may make: in MiB, up to 200. */
static uint64_t most_eased(store *s) {
  uint64_t mib = 0;
  while (mib < 200 && is_eased(s, mib * MIB)) {
    mib++;
  }
  return mib - (mib != 0);
}

/* Only a heap that holds a sixteenth more than is used, and has collected enough. */
static void needs_reason(void) {
  static store s;
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 20 * MIB));
  CHECK(!is_eased(&s, 0));
  CHECK_OK(tarn_heap_reserve(s.r.heap, (uint64_t)342 * MIB));
  CHECK(is_eased(&s, 0));
  ease(s.r.heap, 0);
  CHECK(!is_eased(&s, 0));
  store_close(&s);
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_ALWAYS, 30 * MIB)); /* it would rather steal */
  CHECK(!is_eased(&s, 0));
  store_close(&s);
}

/* Up to half as much again as is used, as long as others have room, and what was refused is
 * not asked for. */
static void needs_room(void) {
  static store s;
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 30 * MIB));
  CHECK_EQ(most_eased(&s), 130);
  CHECK_OK(tarn_heap_set_limit(s.r.heap, (uint64_t)840 * MIB)); /* half of them are 420 */
  CHECK_EQ(most_eased(&s), 70);
  s.r.heap->captured_bytes += (uint64_t)30 * MIB; /* as if arenas had it */
  CHECK_EQ(most_eased(&s), 40);
  s.r.heap->captured_bytes -= (uint64_t)30 * MIB;
  CHECK_OK(tarn_heap_set_limit(s.r.heap, 0));
  s.r.heap->refused_bytes = (uint64_t)390 * MIB;
  CHECK_EQ(most_eased(&s), 40);
  store_close(&s);
  REQUIRE(store_open(&s, "sim:840M", TARN_STEAL_WHEN_SHORT, 30 * MIB));
  CHECK_OK(tarn_heap_set_limit(s.r.heap, (uint64_t)16 << 30));
  CHECK_EQ(most_eased(&s), 70);
  store_close(&s);
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 162 * MIB));
  CHECK(!is_eased(&s, 0)); /* it holds more than that: what is idle may be of no use */
  store_close(&s);
}

static void put_off(store *s, uint64_t n_moves, uint32_t n_slabs) {
  tarni_lock_acquire(&s->r.heap->lock);
  for (uint64_t i = 0; i < n_moves; i++) {
    tarni_rest_move_locked(s->r.heap, 2 * MIB);
  }
  if (n_slabs != 0) {
    tarni_rest_collect_locked(s->r.heap, n_slabs);
  }
  tarni_lock_release(&s->r.heap->lock);
}

/* At its bounds it collects, and they widen with what it collects there: a sixteenth for as much as
 * it took to be eased, up to three quarters in all. What it collects while it is tight is no
 * reason.
 */
static void bounds_widen(void) {
  static store s;
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 60 * MIB));
  tarni_rest *rest = &s.r.heap->rest;
  CHECK_EQ(most_eased(&s), 100);
  rest->lean_peak = (uint64_t)360 * MIB;
  put_off(&s, 0, 8 * MANY_SLABS);
  rest->lean_peak = (uint64_t)320 * MIB;
  CHECK_EQ(most_eased(&s), 100);
  put_off(&s, 0, MANY_SLABS - 1);
  CHECK_EQ(most_eased(&s), 100);
  put_off(&s, 0, 1);
  CHECK_EQ(most_eased(&s), 120);
  put_off(&s, 0, MANY_SLABS);
  CHECK_EQ(most_eased(&s), 140);
  put_off(&s, 0, 16 * MANY_SLABS);
  CHECK_EQ(most_eased(&s), 180);
  put_off(&s, 1000, 0); /* it was not at ease so */
  CHECK_EQ(rest->n_tries, 1);
  put_off(&s, 0, 2 * MANY_SLABS);
  CHECK_EQ(most_eased(&s), 100);
  put_off(&s, 0, 2 * MANY_SLABS);
  CHECK_EQ(most_eased(&s), 120);
  store_close(&s);
}

/* A heap of 400 MiB, every other chunk of it idle, that is eased. */
static bool comb_open(program *p, uint64_t lean_peak) {
  enum { N = 200 };
  *p = (program){0};
  if (!rig_open(&p->r, "sim:16G", NULL, 1)) {
    return false;
  }
  for (int i = 0; i < N; i++) {
    p->r.heap->refused_bytes = 1; /* as if the device had refused more: none is made ahead */
    CHECK_OK(rig_alloc(&p->r, 2 * MIB, p->r.streams[0], &p->blocks[i]));
  }
  for (int i = 0; i < N; i += 2) {
    CHECK_OK(rig_free(&p->r, &p->blocks[i], p->r.streams[0]));
  }
  ease(p->r.heap, lean_peak);
  return true;
}

/* How many chunks move for a block of twelve of them. */
static uint64_t moved_for(uint64_t lean_peak) {
  static program p;
  if (!comb_open(&p, lean_peak)) {
    return UINT64_MAX;
  }
  const uint64_t held = rig_stats(&p.r).reserved_bytes;
  CHECK_OK(rig_alloc(&p.r, 24 * MIB, p.r.streams[0], &p.blocks[0]));
  const uint64_t moved = p.r.heap->moved_chunks;
  CHECK(rig_stats(&p.r).reserved_bytes >= held + (moved == 0 ? 20 * MIB : 0));
  program_end(&p);
  rig_close(&p.r);
  return moved;
}

/* Within its bounds an eased heap makes memory and moves none. */
static void makes_rather_than_moves(void) {
  CHECK_EQ(moved_for((uint64_t)300 * MIB), 0);
  CHECK(moved_for((uint64_t)250 * MIB) != 0); /* it holds as much as it may */
  CHECK(moved_for((uint64_t)400 * MIB) != 0); /* or no more than it needs */
}

/* It makes a power of two, up to a sixteenth of what it holds, at a time, so that it need not so
 * soon again; not beyond its bounds. */
static void makes_ahead(void) {
  static program p;
  REQUIRE(comb_open(&p, (uint64_t)295 * MIB));
  CHECK_OK(rig_alloc(&p.r, 26 * MIB, p.r.streams[0], &p.blocks[0]));
  CHECK_EQ(rig_stats(&p.r).reserved_bytes, (uint64_t)432 * MIB);
  CHECK_OK(rig_alloc(&p.r, 6 * MIB, p.r.streams[0], &p.blocks[2]));
  CHECK_EQ(rig_stats(&p.r).reserved_bytes, (uint64_t)432 * MIB);
  CHECK_EQ(p.r.heap->moved_chunks, 0);
  program_end(&p);
  rig_close(&p.r);
  REQUIRE(comb_open(&p, (uint64_t)294 * MIB)); /* half as much again is less than 442 */
  CHECK_OK(rig_alloc(&p.r, 26 * MIB, p.r.streams[0], &p.blocks[0]));
  CHECK_EQ(rig_stats(&p.r).reserved_bytes, (uint64_t)426 * MIB);
  program_end(&p);
  rig_close(&p.r);
}

/* Where a step does not fit into the addresses that are void it is cut into chunks of other sizes:
 * here into four, for a block of less than a unit. */
static void makes_ahead_in_hole(void) {
  enum { N = 540, HOLE = 10, N_UNITS = 15 };
  static program p;
  p = (program){0};
  REQUIRE(rig_open(&p.r, "sim:16G", NULL, 1));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&p.r, 2 * MIB, p.r.streams[0], &p.blocks[i]));
  }
  for (int i = HOLE; i < HOLE + N_UNITS; i++) {
    CHECK_OK(rig_free(&p.r, &p.blocks[i], p.r.streams[0]));
  }
  CHECK_OK(tarn_heap_trim(p.r.heap, 0));
  ease(p.r.heap, (uint64_t)800 * MIB);
  const uint64_t held = rig_stats(&p.r).reserved_bytes;
  CHECK_OK(rig_alloc(&p.r, 3 * MIB / 2, p.r.streams[0], &p.blocks[HOLE]));
  CHECK_EQ(rig_stats(&p.r).reserved_bytes, held + (uint64_t)N_UNITS * 2 * MIB);
  program_end(&p);
  rig_close(&p.r);
}

/* What was refused before, and what cannot be mapped, does not make it try for ever. */
static void makes_ahead_refused(void) {
  enum { N = 300, LEFT = 200 };
  static program p;
  rig_block block;
  p = (program){0};
  REQUIRE(rig_open(&p.r, "sim:16G", NULL, 1));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rig_alloc(&p.r, 2 * MIB, p.r.streams[0], &p.blocks[i]));
  }
  CHECK_OK(tarn_sim_fail(p.r.device, TARN_CALL_CREATE, 1, 0, 0));
  CHECK_STATUS(rig_alloc(&p.r, 64 * MIB, p.r.streams[0], &block), TARN_DEVICE_MEMORY);
  for (int i = LEFT; i < N; i++) {
    CHECK_OK(rig_free(&p.r, &p.blocks[i], p.r.streams[0]));
  }
  CHECK_OK(tarn_heap_trim(p.r.heap, 0));
  for (int i = 0; i < LEFT; i += 2) {
    CHECK_OK(rig_free(&p.r, &p.blocks[i], p.r.streams[0]));
  }
  ease(p.r.heap, (uint64_t)300 * MIB);
  CHECK_OK(tarn_sim_fail(p.r.device, TARN_CALL_MAP, 1, 0, 0));
  CHECK(rig_alloc(&p.r, 26 * MIB, p.r.streams[0], &block) != TARN_OK);
  CHECK_OK(tarn_sim_fail(p.r.device, TARN_CALL_COUNT, 0, 0, 0));
  program_end(&p);
  rig_close(&p.r);
}

/* Once as much has moved as it holds it collects again, twice as much each time. */
static void gives_up(void) {
  static store s;
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 40 * MIB));
  tarni_rest *rest = &s.r.heap->rest;
  rest->lean_peak = (uint64_t)360 * MIB;
  put_off(&s, 1000, 0); /* it is tight, and collects: they are no sign of anything */
  CHECK_EQ(rest->n_tries, 0);
  rest->lean_peak = (uint64_t)320 * MIB;
  put_off(&s, 1000, 0);
  CHECK(!is_eased(&s, 0));
  for (uint32_t tries = 1; tries < 4; tries++) {
    CHECK_EQ(rest->n_tries, tries);
    CHECK_EQ(rest->n_collected, 0);
    CHECK_EQ(rest->lean_peak, (uint64_t)320 * MIB);         /* what was used is known */
    put_off(&s, 1000, ((uint32_t)MANY_SLABS << tries) - 1); /* nor are these */
    CHECK(!is_eased(&s, 0));
    put_off(&s, 0, 1);
    CHECK(is_eased(&s, 0));
    put_off(&s, 180, 0);
    CHECK(is_eased(&s, 0));
    put_off(&s, 1, 0);
    CHECK(!is_eased(&s, 0));
  }
  store_close(&s);
}

/* What is used may become more. What it was in a peak that has passed it may be again. */
static void peak_rises(void) {
  static store s;
  static rig_block block;
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 40 * MIB));
  const tarni_rest *rest = &s.r.heap->rest;
  CHECK_OK(rig_alloc(&s.r, (uint64_t)200 * MIB, s.r.streams[0], &block));
  CHECK_EQ(rest->lean_peak, (uint64_t)520 * MIB); /* with the block that was just made */
  CHECK(!is_eased(&s, 0));
  CHECK_OK(rig_free(&s.r, &block, s.r.streams[0]));
  CHECK_OK(rig_alloc(&s.r, 6 * MIB, s.r.streams[0], &block));
  CHECK_EQ(rest->lean_peak, (uint64_t)520 * MIB);
  CHECK_OK(rig_free(&s.r, &block, s.r.streams[0]));
  store_close(&s);
}

/* What streams only keep is not used: else what is not collected would make room for more. */
static void keeps_do_not_count(void) {
  enum { N_KEPT = 64 };
  static store s;
  static rig_block blocks[N_KEPT];
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 0));
  for (int i = 0; i < N_KEPT; i++) {
    CHECK_OK(rig_alloc(&s.r, MIB / 2, s.r.streams[1], &blocks[i]));
  }
  CHECK(s.r.heap->rest.lean_peak >= (uint64_t)345 * MIB); /* peaks are seen in steps */
  for (int i = 0; i < N_KEPT; i++) {
    CHECK_OK(rig_free(&s.r, &blocks[i], s.r.streams[1]));
  }
  s.r.heap->rest = (tarni_rest){.n_collected = MANY_SLABS};
  CHECK_EQ(rig_stats(&s.r).used_bytes, (uint64_t)352 * MIB);
  tarni_lock_acquire(&s.r.heap->lock);
  tarni_rest_peak_locked(s.r.heap, s.r.heap->used_bytes - s.r.heap->binned_bytes);
  tarni_lock_release(&s.r.heap->lock);
  CHECK(s.r.heap->rest.lean_peak <= (uint64_t)322 * MIB); /* but for what the cache keeps */
  store_close(&s);
}

/* Nor is most of what threads' stacks keep, each of its stream. */
static void stacks_hardly_count(void) {
  enum { N_SIZES = 4, N_EACH = 4 };
  static program p;
  p = (program){0};
  REQUIRE(rig_open(&p.r, "sim:16G", NULL, RIG_STREAMS));
  rig_block base;
  CHECK_OK(rig_alloc(&p.r, 64 * MIB, p.r.streams[0], &base));
  for (int i = 0; i < RIG_STREAMS; i++) {
    for (int j = 0; j < N_SIZES * N_EACH; j++) {
      const uint64_t bytes = (uint64_t)(MIB - j / N_EACH * MIB / 8);
      CHECK_OK(rig_alloc(&p.r, bytes, p.r.streams[i], &p.blocks[j]));
    }
    for (int j = 0; j < N_SIZES * N_EACH; j++) {
      CHECK_OK(rig_free(&p.r, &p.blocks[j], p.r.streams[i]));
      p.blocks[j] = (rig_block){0};
    }
  }
  CHECK(rig_stats(&p.r).used_bytes >= (uint64_t)150 * MIB);
  CHECK(p.r.heap->binned_bytes < 16 * MIB);
  CHECK(p.r.heap->rest.lean_peak >= 64 * MIB);
  CHECK(p.r.heap->rest.lean_peak <= (uint64_t)(64 + 16) * MIB / 8 * 9);
  CHECK_OK(rig_free(&p.r, &base, p.r.streams[0]));
  program_end(&p);
  rig_close(&p.r);
}

/* With many caches it would take too long to see what they keep. */
static void not_with_many_caches(void) {
  static store s;
  REQUIRE(store_open(&s, "sim:16G", TARN_STEAL_WHEN_SHORT, 40 * MIB));
  const uint32_t n = s.r.heap->n_caches;
  CHECK(is_eased(&s, 0));
  s.r.heap->n_caches = 65;
  CHECK(!is_eased(&s, 0));
  s.r.heap->n_caches = n;
  store_close(&s);
}

/* ---- Shortage ---- */

/* An eased heap, all that is free is in slabs, or idle and too little, and a driver call fails: it
 * collects all the same. */
static void collects_while_failing(tarn_call call, int code, uint64_t bytes) {
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
  ease(p.r.heap, (uint64_t)300 * MIB);
  CHECK_OK(tarn_sim_fail(p.r.device, call, 1, 0, code));
  CHECK_OK(rig_alloc(&p.r, bytes, p.r.streams[0], &p.blocks[0]));
  uint64_t n_failed = 0;
  CHECK_OK(tarn_sim_failed(p.r.device, &n_failed));
  CHECK(n_failed != 0);
  CHECK_OK(tarn_sim_fail(p.r.device, TARN_CALL_COUNT, 0, 0, 0));
  program_end(&p);
  rig_close(&p.r);
}

/* The device has no more, or the driver cannot be asked whether it may grow. */
static void collects_under_shortage(void) {
  enum { INVALID_VALUE = 1 };
  collects_while_failing(TARN_CALL_CREATE, 0, (uint64_t)30 * MIB);
  collects_while_failing(TARN_CALL_CAPTURE_STATE, INVALID_VALUE, MIB);
}

static const test_case cases[] = {
    {"a heap that has collected enough does without", collects_no_more},
    {"within bounds", is_bounded},
    {"if it holds more than is used", needs_reason},
    {"and there is room for more", needs_room},
    {"which widen with what is collected there", bounds_widen},
    {"rather than to move chunks", makes_rather_than_moves},
    {"more than it needs at once", makes_ahead},
    {"as far as addresses are void", makes_ahead_in_hole},
    {"unless it was refused", makes_ahead_refused},
    {"unless they move all the same", gives_up},
    {"or it needs more by now", peak_rises},
    {"what streams keep is not used", keeps_do_not_count},
    {"nor is most of what threads keep", stacks_hardly_count},
    {"not with many caches", not_with_many_caches},
    {"under shortage it collects", collects_under_shortage},
};

TEST_MAIN(cases)
