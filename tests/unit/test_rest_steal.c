/* SPDX-License-Identifier: MIT
 *
 * Streams that take each other's memory in every round of a program, since that is the policy. When
 * they have taken enough each keeps what it frees, and the heap may hold more: then they are at
 * rest. */
#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum {
  MIB = 1 << 20,
  SMALL = 60000,
  MANY = 20, /* small blocks for each large one */
  N_SIDES = 2,
  N_MOST = 60,
  N_LEAST = 42,
  N_ROUNDS = 60,
  N_LAST = 20,
  TIMES = 32
};

typedef struct program {
  rig r;
  bool is_mixed; /* the second side has small blocks */
  rig_block blocks[N_SIDES][N_MOST * MANY];
  int n[N_SIDES];
} program;

static bool is_small(const program *p, int side) {
  return p->is_mixed && side == 1;
}

/* The same in every round: the i-th block of a side is as large as ever. */
static uint64_t block_bytes(const program *p, int side, int i) {
  tarni_rng rng = {(uint64_t)(side * (is_small(p, side) ? N_MOST * MANY : N_MOST) + i + 1)};
  return is_small(p, side) ? (1 + tarni_rng_below(&rng, 4)) * SMALL
                           : (1 + tarni_rng_below(&rng, 8)) * MIB;
}

static void side_fill(program *p, int side, int n) {
  for (; p->n[side] < n; p->n[side]++) {
    const int i = p->n[side];
    CHECK_OK(rig_alloc(&p->r, block_bytes(p, side, i), p->r.streams[side], &p->blocks[side][i]));
  }
}

static void side_empty(program *p, int side, int n) {
  while (p->n[side] > n) {
    CHECK_OK(rig_free(&p->r, &p->blocks[side][--p->n[side]], p->r.streams[side]));
  }
}

/* Each side in turn needs more than at other times, with what the other one has freed. */
static void rounds_run(program *p, int n) {
  for (int round = 0; round < n; round++) {
    for (int side = 0; side < N_SIDES; side++) {
      side_empty(p, 1 - side, N_LEAST * (is_small(p, 1 - side) ? MANY : 1));
      if (p->is_mixed) {
        rig_collect(&p->r);
      }
      side_fill(p, side, N_MOST * (is_small(p, side) ? MANY : 1));
    }
  }
}

static bool program_begin(program *p, const tarn_heap_config *config) {
  *p = (program){.n = {0}};
  return rig_open(&p->r, "sim:16G", config, N_SIDES);
}

static void program_end(program *p) {
  for (int side = 0; side < N_SIDES; side++) {
    side_empty(p, side, 0);
  }
  CHECK(rig_is_sound(&p->r));
}

static uint64_t heap_calls(const rig *r) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_heap_get_calls(r->heap, &counts));
  uint64_t sum = 0;
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    sum += counts.calls[i];
  }
  return sum;
}

/* Where so much was stolen before: driver calls of the last rounds, and what is held. */
static uint64_t calls_at_last(const tarn_heap_config *config, uint64_t stolen,
                              tarn_heap_stats *stats) {
  static program p;
  *stats = (tarn_heap_stats){0};
  if (!program_begin(&p, config)) {
    return 0;
  }
  rounds_run(&p, 2);
  p.r.heap->rest.stolen_bytes = stolen;
  rounds_run(&p, N_ROUNDS - N_LAST);
  const uint64_t before = heap_calls(&p.r);
  rounds_run(&p, N_LAST);
  *stats = rig_stats(&p.r);
  const uint64_t n_calls = heap_calls(&p.r) - before;
  program_end(&p);
  CHECK_OK(tarn_heap_reset(p.r.heap)); /* what comes then is another program */
  CHECK_EQ(p.r.heap->rest.stolen_bytes, 0);
  CHECK(!tarni_rest_is_parted(p.r.heap));
  rig_close(&p.r);
  return n_calls;
}

static void comes_to_rest(const tarn_heap_config *config) {
  tarn_heap_stats tight, loose;
  const uint64_t n_tight = calls_at_last(config, 0, &tight);
  const uint64_t peak = tight.used_peak_bytes;
  const uint64_t n_loose = calls_at_last(config, TIMES * peak, &loose);
  CHECK(n_tight >= (uint64_t)N_LAST * N_SIDES && tight.waits >= (uint64_t)N_ROUNDS * N_SIDES);
  CHECK_EQ(n_loose, 0);
  CHECK(loose.waits < (uint64_t)N_ROUNDS * N_SIDES);
  CHECK(tight.reserved_peak_bytes <= peak + peak / 25);
  CHECK(loose.reserved_peak_bytes > peak + peak / 25);
  CHECK(loose.reserved_peak_bytes <= peak + peak / 4);
}

static void streams_come_to_rest(void) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  comes_to_rest(&config);
}

static void without_asking(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .stealing = TARN_STEAL_ALWAYS, .is_deterministic = true};
  comes_to_rest(&config);
}

/* So do streams of which one has small blocks alone: slabs are made, too. */
static void beside_small_blocks(void) {
  static program p;
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  REQUIRE(program_begin(&p, &config));
  p.is_mixed = true;
  rounds_run(&p, 2);
  p.r.heap->rest.stolen_bytes = 0;
  p.r.heap->rest.parted_bytes = rig_stats(&p.r).used_peak_bytes;
  rounds_run(&p, N_LAST);
  const uint64_t waits = rig_stats(&p.r).waits;
  rounds_run(&p, N_LAST);
  CHECK(tarni_rest_is_parted(p.r.heap));
  CHECK_EQ(rig_stats(&p.r).waits, waits);
  program_end(&p);
  rig_close(&p.r);
}

/* A quarter of the limit is left, or nothing is earned. */
static void leaves_room(void) {
  tarn_heap_stats stats;
  const tarn_heap_config config = {
      .size = sizeof(config), .stealing = TARN_STEAL_ALWAYS, .limit_bytes = (uint64_t)560 * MIB};
  CHECK(calls_at_last(&config, UINT64_MAX / 2, &stats) > 0);
  CHECK(stats.reserved_peak_bytes <= stats.used_peak_bytes / 25 * 26);
}

/* What is stolen, a block in so many, earns nothing. */
static void earns_nothing_by_rare_steals(void) {
  static program p;
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  REQUIRE(program_begin(&p, &config));
  rounds_run(&p, 2);
  tarni_rest *rest = &p.r.heap->rest;
  const uint64_t peak = rig_stats(&p.r).used_peak_bytes;
  rest->made_bytes = 0;
  side_empty(&p, 0, N_LEAST - 1);
  side_fill(&p, 0, N_LEAST);
  CHECK_EQ(rest->made_bytes, block_bytes(&p, 0, N_LEAST - 1));
  rest->stolen_bytes = TIMES * peak;
  rest->made_bytes = 128 * peak;
  tarni_lock_acquire(&p.r.heap->lock);
  tarni_rest_steal_locked(p.r.heap, MIB);
  CHECK_EQ(rest->stolen_bytes, (TIMES - 1) * peak + MIB);
  CHECK_EQ(rest->parted_bytes, 0);
  tarni_rest_steal_locked(p.r.heap, peak / 2); /* these are not rare */
  CHECK_EQ(rest->parted_bytes, 0);
  tarni_rest_steal_locked(p.r.heap, peak);
  CHECK_EQ(rest->parted_bytes, peak);
  CHECK(tarni_rest_may_part_locked(p.r.heap, MIB));
  CHECK(!tarni_rest_may_part_locked(p.r.heap, peak / 4));
  tarni_lock_release(&p.r.heap->lock);
  rounds_run(&p, 2);
  program_end(&p);
  rig_close(&p.r);
}

/* One stream has free what another one asks for, which itself has only pieces of it. To map those
 * side by side is refused. */
static void takes_what_cannot_be_mapped(void) {
  enum { N_PIECES = 16, PIECE = 4 * MIB };
  static rig r;
  rig_block pieces[N_PIECES], whole, block;
  uint64_t n_failed;
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  REQUIRE(rig_open(&r, "sim:16G", &config, N_SIDES));
  for (int i = 0; i < N_PIECES; i++) {
    CHECK_OK(rig_alloc(&r, PIECE, r.streams[0], &pieces[i]));
  }
  CHECK_OK(rig_alloc(&r, 2 * PIECE, r.streams[1], &whole));
  for (int i = 0; i < N_PIECES; i += 2) {
    CHECK_OK(rig_free(&r, &pieces[i], r.streams[0]));
  }
  CHECK_OK(rig_free(&r, &whole, r.streams[1]));
  r.heap->rest.parted_bytes = 1;
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_MAP, 1, 0, 801));
  CHECK_OK(rig_alloc(&r, 2 * PIECE, r.streams[0], &block));
  CHECK_OK(tarn_sim_failed(r.device, &n_failed));
  CHECK_EQ(n_failed, 1);
  CHECK_EQ(rig_stats(&r).waits, 1);
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_MAP, 0, 0, 0));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  for (int i = 1; i < N_PIECES; i += 2) {
    CHECK_OK(rig_free(&r, &pieces[i], r.streams[0]));
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Eight times the peak is stolen after it, or moves: streams share again, and steal twice as much
 * before the next try. */
static void gives_up(void) {
  static program p;
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  REQUIRE(program_begin(&p, &config));
  rounds_run(&p, 2);
  tarni_rest *rest = &p.r.heap->rest;
  const uint64_t peak = rig_stats(&p.r).used_peak_bytes;
  tarni_lock_acquire(&p.r.heap->lock);
  *rest = (tarni_rest){.stolen_bytes = TIMES * peak};
  tarni_rest_steal_locked(p.r.heap, peak);
  CHECK(tarni_rest_is_parted(p.r.heap));
  tarni_rest_steal_locked(p.r.heap, 4 * peak);
  tarni_rest_move_locked(p.r.heap, 4 * peak);
  CHECK(tarni_rest_is_parted(p.r.heap));
  tarni_rest_move_locked(p.r.heap, peak);
  CHECK(!tarni_rest_is_parted(p.r.heap));
  CHECK(!tarni_rest_may_part_locked(p.r.heap, MIB));
  for (int i = 0; i < 2 * TIMES; i++) {
    tarni_rest_steal_locked(p.r.heap, peak); /* at once it would not fit, and so earn nothing */
    CHECK(!tarni_rest_is_parted(p.r.heap));
  }
  tarni_rest_steal_locked(p.r.heap, peak);
  CHECK(tarni_rest_is_parted(p.r.heap));
  tarni_lock_release(&p.r.heap->lock);
  rounds_run(&p, 2);
  program_end(&p);
  rig_close(&p.r);
}

/* Where the policy is to grow first, what is stolen when that fails earns nothing. */
static void another_policy_earns_nothing(void) {
  static program p;
  REQUIRE(program_begin(&p, NULL));
  rounds_run(&p, 1);
  p.r.heap->rest.stolen_bytes = UINT64_MAX / 2;
  tarni_lock_acquire(&p.r.heap->lock);
  tarni_rest_steal_locked(p.r.heap, MIB);
  CHECK(!tarni_rest_is_parted(p.r.heap));
  tarni_lock_release(&p.r.heap->lock);
  program_end(&p);
  rig_close(&p.r);
}

static const test_case cases[] = {
    {"streams come to rest beside small blocks", beside_small_blocks},
    {"streams that steal enough come to rest", streams_come_to_rest},
    {"so they do where the heap is deterministic", without_asking},
    {"with room for others", leaves_room},
    {"rare steals earn nothing", earns_nothing_by_rare_steals},
    {"nor do those under another policy", another_policy_earns_nothing},
    {"what does not help is given up", gives_up},
    {"others have what cannot be mapped", takes_what_cannot_be_mapped},
};

TEST_MAIN(cases)
