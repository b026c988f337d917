/* SPDX-License-Identifier: MIT
 *
 * RMM's random_allocations, bit for bit: the generator of libstdc++ (x <- 16807 x mod 2^31-1, from
 * 1) and its way to uniform integers. Pure. */
#include <stdlib.h>

#include "workload.h"

#define LIVE_LIMIT_BYTES (UINT64_C(16000) << 20)

enum { ALLOC_PERCENT = 73 };
static const uint64_t generator_modulus = 2147483647;
static const uint64_t generator_range = 2147483645; /* greatest draw less the least */

const workload_random_case workload_random_cases[WORKLOAD_N_RANDOM] = {
    {1000, 1, 638, UINT64_C(323760572), UINT64_C(516054525), UINT64_C(0xcb18a12181401e6b)},
    {1000, 4, 642, UINT64_C(1332080261), UINT64_C(2068726278), UINT64_C(0xd83492739634c181)},
    {1000, 64, 528, UINT64_C(16777102043), UINT64_C(32516438967), UINT64_C(0x5f3bea490b850814)},
    {1000, 256, 150, UINT64_C(16776470325), UINT64_C(120204814794), UINT64_C(0xc38087d7a5af02c6)},
    {1000, 1024, 44, UINT64_C(16775773201), UINT64_C(463104276902), UINT64_C(0x421f6388f2c816ec)},
    {1000, 4096, 15, UINT64_C(16775344215), UINT64_C(1814524904445), UINT64_C(0x3fa7e29af2f53e01)},
    {10000, 1, 6204, UINT64_C(3254545443), UINT64_C(5232447760), UINT64_C(0xb3f9c79793f8fd27)},
    {10000, 4, 6203, UINT64_C(13049102281), UINT64_C(20931697845), UINT64_C(0x817155c62c6af8a3)},
    {10000, 64, 634, UINT64_C(16777214948), UINT64_C(286999706790), UINT64_C(0xb51d7df4c8e630e2)},
    {10000, 256, 167, UINT64_C(16777171549), UINT64_C(1123517815284), UINT64_C(0x410a7e0b0773c576)},
    {10000, 1024, 51, UINT64_C(16777185961), UINT64_C(4463008213689), UINT64_C(0x020967e8ce40c45a)},
    {10000, 4096, 16, UINT64_C(16775887653), UINT64_C(18022585713930),
     UINT64_C(0xfd15e73c0388450b)},
    {100000, 1, 36071, UINT64_C(16777215997), UINT64_C(48663148396), UINT64_C(0xbb41c9ea15ac5291)},
    {100000, 4, 9714, UINT64_C(16777215986), UINT64_C(180127682660), UINT64_C(0x190bdf9bac879edc)},
    {100000, 64, 644, UINT64_C(16777214347), UINT64_C(2811519828526), UINT64_C(0xcf53cd3a5b5e361d)},
    {100000, 256, 176, UINT64_C(16777214413), UINT64_C(11229933505850),
     UINT64_C(0x1e22d6959da44108)},
    {100000, 1024, 53, UINT64_C(16777213763), UINT64_C(44773478309836),
     UINT64_C(0xa4d278ef6c1699ae)},
    {100000, 4096, 19, UINT64_C(16777201659), UINT64_C(179863776314225),
     UINT64_C(0x01896c907bbf692d)},
};

/* ---- The generator -------------------------------------------------------------------------- */

/* The next draw, from 0 to generator_range. */
static uint64_t draw(uint64_t *state) {
  *state = *state * 16807 % generator_modulus;
  return *state - 1;
}

/* Uniform from 0 to `greatest`, in the range of one draw: draws beyond a whole multiple are made
 * again. */
static uint64_t draw_small(uint64_t *state, uint64_t greatest) {
  const uint64_t scale = generator_range / (greatest + 1);
  uint64_t number = draw(state);
  while (number >= (greatest + 1) * scale) {
    number = draw(state);
  }
  return number / scale;
}

/* Uniform from `least` to `greatest`. A range that is wider than one draw takes two: which part of
 * it, and where in the part. */
static uint64_t draw_between(uint64_t *state, uint64_t least, uint64_t greatest) {
  const uint64_t width = greatest - least;
  if (width < generator_range) {
    return least + draw_small(state, width);
  }
  if (width == generator_range) {
    return least + draw(state);
  }
  uint64_t number;
  do {
    number = draw_small(state, width / (generator_range + 1)) * (generator_range + 1);
    number += draw(state);
  } while (number > width);
  return least + number;
}

/* ---- The program ---------------------------------------------------------------------------- */

typedef struct random_program {
  trace *out;
  trace_event *live; /* the allocations of what is live, in the order that frees choose from */
  uint32_t n_live;
  uint64_t live_bytes;
} random_program;

static void program_allocate(random_program *p, uint64_t bytes) {
  trace *out = p->out;
  const trace_event event = {.bytes = bytes, .block = out->n_blocks++, .kind = TRACE_ALLOC};
  out->events[out->n_events++] = event;
  p->live[p->n_live++] = event;
  p->live_bytes += bytes;
  if (p->live_bytes > out->live_peak_bytes) {
    out->live_peak_bytes = p->live_bytes;
  }
  if (p->n_live > out->live_peak_blocks) {
    out->live_peak_blocks = p->n_live;
  }
}

/* The last one takes the place of what is freed. */
static void program_free(random_program *p, uint32_t index) {
  trace_event event = p->live[index];
  p->live[index] = p->live[--p->n_live];
  p->live_bytes -= event.bytes;
  event.kind = TRACE_FREE;
  p->out->events[p->out->n_events++] = event;
}

static void program_step(random_program *p, uint64_t *state, uint32_t n_allocations,
                         uint64_t max_bytes) {
  const uint64_t bytes = draw_between(state, 1, max_bytes);
  const uint64_t dice = p->n_live > 0 ? draw_between(state, 0, 99) : 0;
  if (p->n_live == 0 || (dice < ALLOC_PERCENT && p->out->n_blocks < n_allocations &&
                         p->live_bytes + bytes < LIVE_LIMIT_BYTES)) {
    program_allocate(p, bytes);
  } else {
    program_free(p, (uint32_t)(draw_between(state, 0, n_allocations - 1) % p->n_live));
  }
}

bool workload_random(uint32_t n_allocations, uint32_t max_mib, trace *out) {
  uint64_t state = 1;
  random_program p = {.out = out};
  *out = (trace){.n_streams = 1};
  out->events = calloc(2 * (size_t)n_allocations + 1, sizeof(*out->events));
  p.live = calloc((size_t)n_allocations + 1, sizeof(*p.live));
  const bool is_good = out->events != NULL && p.live != NULL;
  for (uint64_t i = 0; is_good && i < 2 * (uint64_t)n_allocations; i++) {
    program_step(&p, &state, n_allocations, (uint64_t)max_mib << 20);
  }
  free(p.live);
  if (!is_good) {
    trace_close(out);
  }
  return is_good;
}

/* ---- The hash ------------------------------------------------------------------------------- */

static void hash_word(uint64_t *hash, uint64_t word) {
  for (int i = 0; i < 8; i++) {
    *hash = (*hash ^ (word >> (8 * i) & 0xff)) * UINT64_C(1099511628211);
  }
}

void workload_sum(const trace *t, uint64_t *total_bytes, uint64_t *hash) {
  *total_bytes = 0;
  *hash = UINT64_C(1469598103934665603);
  for (size_t i = 0; i < t->n_events; i++) {
    const trace_event *event = &t->events[i];
    hash_word(hash, event->kind == TRACE_ALLOC ? 1 : 2);
    hash_word(hash, event->block);
    if (event->kind == TRACE_ALLOC) {
      hash_word(hash, event->bytes);
      *total_bytes += event->bytes;
    }
  }
}
