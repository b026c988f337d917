/* SPDX-License-Identifier: MIT
 *
 * The loops that a benchmark runs, as templates: BENCH_LOOPS(prefix, alloc, free) makes
 * prefix_pairs and the others for two functions uint64_t alloc(void *state, uint64_t bytes,
 * tarn_stream stream)      0: failed void free(void *state, uint64_t block, tarn_stream stream)
 * that are inlined into them. */
#ifndef TARN_TOOLS_BENCH_LOOP_H
#define TARN_TOOLS_BENCH_LOOP_H

#include <sched.h>

#include "bench.h"

/* The compiler must believe that the block is looked at: else it removes pairs of malloc and free.
 */
static inline void bench_escape(uint64_t block) {
  __asm__ volatile("" : : "r"(block) : "memory");
}

typedef uint64_t (*bench_alloc)(void *state, uint64_t bytes, tarn_stream stream);
typedef void (*bench_free)(void *state, uint64_t block, tarn_stream stream);

#define BENCH_INLINE static inline __attribute__((always_inline))

BENCH_INLINE bool bench_loop_pairs(bench_work *work, uint64_t n, bench_alloc alloc,
                                   bench_free release) {
  void *state = work->state;
  const tarn_stream stream = work->stream;
  const uint64_t bytes = work->bytes;
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t block = alloc(state, bytes, stream);
    bench_escape(block);
    if (__builtin_expect(block == 0, 0)) {
      return false;
    }
    release(state, block, stream);
  }
  return true;
}

BENCH_INLINE bool bench_loop_turns(bench_work *work, uint64_t n, bench_alloc alloc,
                                   bench_free release) {
  const tarn_stream streams[2] = {work->stream, work->second};
  for (uint64_t i = 0; i < n; i++) {
    const uint64_t block = alloc(work->state, work->bytes, streams[i % 2]);
    bench_escape(block);
    if (__builtin_expect(block == 0, 0)) {
      return false;
    }
    release(work->state, block, streams[i % 2]);
  }
  return true;
}

BENCH_INLINE bool bench_loop_mixed(bench_work *work, uint64_t n, bench_alloc alloc,
                                   bench_free release) {
  bench_mix *mix = work->mix;
  void *state = work->state;
  const tarn_stream stream = work->stream;
  for (uint64_t i = 0; i < n; i++) {
    const uint32_t slot = mix->steps[mix->at].slot, bytes = mix->steps[mix->at].bytes;
    mix->at = (mix->at + 1) % BENCH_STEPS;
    release(state, mix->blocks[slot], stream);
    const uint64_t block = alloc(state, bytes, stream);
    bench_escape(block);
    mix->blocks[slot] = block;
    if (__builtin_expect(block == 0, 0)) {
      return false;
    }
  }
  return true;
}

BENCH_INLINE bool bench_loop_fill(bench_work *work, bench_alloc alloc) {
  for (uint32_t i = 0; i < BENCH_LIVE; i++) {
    work->mix->blocks[i] = alloc(work->state, work->mix->steps[i].bytes, work->stream);
    if (work->mix->blocks[i] == 0) {
      return false;
    }
  }
  return true;
}

BENCH_INLINE bool bench_loop_drain(bench_work *work, bench_free release) {
  for (uint32_t i = 0; i < BENCH_LIVE; i++) {
    if (work->mix->blocks[i] != 0) {
      release(work->state, work->mix->blocks[i], work->stream);
      work->mix->blocks[i] = 0;
    }
  }
  return true;
}

/* Looks at one place of the ring until it is empty, or full; gives the CPU away now and then, since
 * the other thread may need it. */
BENCH_INLINE uint64_t bench_loop_wait(_Atomic uint64_t *place, bool is_wanted_empty) {
  for (uint32_t tries = 1;; tries++) {
    const uint64_t block = atomic_load_explicit(place, memory_order_acquire);
    if ((block == 0) == is_wanted_empty) {
      return block;
    }
    if (tries % 1024 == 0) {
      (void)sched_yield();
    }
  }
}

/* As many blocks at once as the ring can hold, so that their memory is there before it is timed. */
BENCH_INLINE bool bench_loop_hoard(bench_work *work, bench_alloc alloc, bench_free release) {
  uint64_t blocks[BENCH_RING];
  uint32_t n = 0;
  while (n < BENCH_RING && (blocks[n] = alloc(work->state, work->bytes, work->stream)) != 0) {
    n++;
  }
  const bool is_good = n == BENCH_RING;
  while (n != 0) {
    release(work->state, blocks[--n], work->stream);
  }
  return is_good;
}

/* A failed allocation puts a 1 into the ring, so that the other thread does not wait for ever. */
BENCH_INLINE bool bench_loop_put(bench_work *work, uint64_t n, bench_alloc alloc) {
  bench_ring *ring = work->ring;
  bool is_good = true;
  for (uint64_t i = 0; i < n; i++) {
    _Atomic uint64_t *place = &ring->places[ring->put_at++ % BENCH_RING];
    const uint64_t block = alloc(work->state, work->bytes, work->stream);
    is_good = is_good && block != 0;
    (void)bench_loop_wait(place, true);
    atomic_store_explicit(place, block != 0 ? block : 1, memory_order_release);
  }
  return is_good;
}

BENCH_INLINE bool bench_loop_take(bench_work *work, uint64_t n, bench_free release) {
  bench_ring *ring = work->ring;
  for (uint64_t i = 0; i < n; i++) {
    _Atomic uint64_t *place = &ring->places[ring->take_at++ % BENCH_RING];
    const uint64_t block = bench_loop_wait(place, false);
    atomic_store_explicit(place, 0, memory_order_release);
    if (block != 1) {
      release(work->state, block, work->stream);
    }
  }
  return true;
}

BENCH_INLINE bool bench_loop_replay(bench_work *work, bench_alloc alloc, bench_free release) {
  const trace *t = work->program;
  void *state = work->state;
  const tarn_stream stream = work->stream;
  uint64_t *blocks = work->blocks;
  bool is_good = true;
  for (size_t i = 0; i < t->n_events && is_good; i++) {
    const trace_event *event = &t->events[i];
    if (event->kind == TRACE_ALLOC) {
      blocks[event->block] = alloc(state, event->bytes, stream);
      is_good = blocks[event->block] != 0;
    } else {
      release(state, blocks[event->block], stream);
      blocks[event->block] = 0;
    }
  }
  for (uint32_t i = 0; i < t->n_blocks && !is_good; i++) {
    if (blocks[i] != 0) {
      release(state, blocks[i], stream);
      blocks[i] = 0;
    }
  }
  return is_good;
}

#define BENCH_LOOPS(prefix, alloc, release)                                                        \
  static bool prefix##_pairs(bench_work *work, uint64_t n) {                                       \
    return bench_loop_pairs(work, n, alloc, release);                                              \
  }                                                                                                \
  static bool prefix##_turns(bench_work *work, uint64_t n) {                                       \
    return bench_loop_turns(work, n, alloc, release);                                              \
  }                                                                                                \
  static bool prefix##_mixed(bench_work *work, uint64_t n) {                                       \
    return bench_loop_mixed(work, n, alloc, release);                                              \
  }                                                                                                \
  static bool prefix##_fill(bench_work *work, uint64_t n) {                                        \
    (void)n;                                                                                       \
    return bench_loop_fill(work, alloc);                                                           \
  }                                                                                                \
  static bool prefix##_drain(bench_work *work, uint64_t n) {                                       \
    (void)n;                                                                                       \
    return bench_loop_drain(work, release);                                                        \
  }                                                                                                \
  static bool prefix##_hoard(bench_work *work, uint64_t n) {                                       \
    (void)n;                                                                                       \
    return bench_loop_hoard(work, alloc, release);                                                 \
  }                                                                                                \
  static bool prefix##_put(bench_work *work, uint64_t n) {                                         \
    return bench_loop_put(work, n, alloc);                                                         \
  }                                                                                                \
  static bool prefix##_take(bench_work *work, uint64_t n) {                                        \
    return bench_loop_take(work, n, release);                                                      \
  }                                                                                                \
  static bool prefix##_replay(bench_work *work, uint64_t n) {                                      \
    (void)n;                                                                                       \
    return bench_loop_replay(work, alloc, release);                                                \
  }

/* The members of a bench_peer that BENCH_LOOPS made. */
#define BENCH_LOOPS_OF(prefix)                                                                     \
  .pairs = prefix##_pairs, .turns = prefix##_turns, .mixed = prefix##_mixed,                       \
  .fill = prefix##_fill, .drain = prefix##_drain, .hoard = prefix##_hoard, .put = prefix##_put,    \
  .take = prefix##_take, .replay = prefix##_replay

#endif
