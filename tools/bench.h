/* SPDX-License-Identifier: MIT
 *
 * What the benchmarks of the command share: allocators that can be compared (peers), and threads
 * that run a piece of work in rounds and time it.
 *
 * A peer is a set of loops rather than a table of alloc and free, so that each allocator is called
 * the way a program calls it: the loops of bench_loop.h are compiled once for each. */
#ifndef TARN_TOOLS_BENCH_H
#define TARN_TOOLS_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tarn/tarn.h"
#include "trace.h"

enum {
  BENCH_MAX_THREADS = 256,
  BENCH_MAX_PEERS = 9,
  BENCH_LIVE = 1000,     /* blocks that the mixed case keeps live */
  BENCH_STEPS = 1 << 14, /* of the mixed case, then from the first again */
  BENCH_RING = 256,      /* blocks under way between two threads */
  BENCH_ROUNDS = 31,     /* unless others are asked for */
  BENCH_MAX_ROUNDS = 1001,
  BENCH_FAILURE = 512, /* room for a message */
};

/* ---- Work ----------------------------------------------------------------------------------- */

/* 1000 live blocks, one of which is replaced in each step. */
typedef struct bench_mix {
  struct {
    uint32_t slot;
    uint32_t bytes;
  } steps[BENCH_STEPS];
  uint64_t blocks[BENCH_LIVE];
  uint64_t at; /* the next step */
} bench_mix;

/* Sizes are log-uniform from 512 bytes to 4 MiB. Same seed, same steps. */
void bench_mix_make(bench_mix *mix, uint64_t seed);

/* A ring from one thread to one other; 0 is an empty place. Reader and writer keep their positions
 * to themselves. */
typedef struct bench_ring {
  _Alignas(128) _Atomic uint64_t places[BENCH_RING];
  _Alignas(128) uint64_t put_at;
  _Alignas(128) uint64_t take_at;
} bench_ring;

/* One thread's part of a case. */
typedef struct bench_work {
  void *state; /* of the peer */
  tarn_stream stream;
  tarn_stream second; /* for turns */
  uint64_t bytes;
  bench_mix *mix;
  bench_ring *ring;
  const trace *program;
  uint64_t *blocks; /* of the program, by number; all 0 */
} bench_work;

/* Does n pairs; false: an allocation failed. */
typedef bool (*bench_loop)(bench_work *work, uint64_t n);

/* ---- Peers ---------------------------------------------------------------------------------- */

typedef struct bench_peer {
  char name[32];
  char absent[128]; /* why it is not there; empty: it is */
  void *state;
  bool has_streams;           /* host allocators have none */
  bool (*enter)(void *state); /* by each thread before its first loop; may be NULL */
  bench_loop pairs;           /* alloc and free of work->bytes */
  bench_loop turns;           /* the same on both streams of work, in turn */
  bench_loop mixed;           /* steps of work->mix, which has to be filled first */
  bench_loop fill;            /* fills the mix; n is ignored */
  bench_loop drain;           /* empties it */
  bench_loop hoard;           /* alloc and free of BENCH_RING blocks; n is ignored */
  bench_loop put, take;       /* allocs into work->ring; frees from it */
  bench_loop replay;          /* work->program once; n is ignored. On failure all is freed */
} bench_peer;

/* Each fills *peer, also when it is not there. */
void bench_peer_tarn(bench_peer *peer, const char *name, tarn_heap *heap);
void bench_peer_floor(bench_peer *peer);
void bench_peer_glibc(bench_peer *peer);
/* An allocator of host memory in a shared library: the first of `files` (ends in NULL) that loads.
 */
void bench_peer_host(bench_peer *peer, const char *name, const char *const files[],
                     const char *alloc_name, const char *free_name);
/* The driver itself, on the GPU of the given number. */
void bench_peer_cuda(bench_peer *plain, bench_peer *async, int ordinal);
/* A shared library of bench/peers. */
void bench_peer_file(bench_peer *peer, const char *path);

/* ---- Rounds --------------------------------------------------------------------------------- */

typedef struct bench_time {
  bool is_measured;
  double ns;             /* a pair a thread: the median of the rounds */
  double best_ns;        /* the least of them */
  double pairs_a_second; /* of all threads together, from the median */
  uint64_t driver_calls; /* on `device` during the timed rounds */
  /* Where it is not measured: what tarn said on the thread that failed first, or nothing. */
  char failure[BENCH_FAILURE];
} bench_time;

typedef struct bench_case {
  const bench_peer *peer;
  tarn_device *device; /* whose driver calls are counted; NULL: none are */
  uint32_t n_threads;
  bench_loop loops[2];      /* of even and of odd threads */
  bench_loop before, after; /* once by each thread, not timed; may be NULL */
  uint32_t n_rounds;
  uint64_t n_warm;   /* least pairs of a thread before it is timed */
  bench_work *works; /* one a thread */
} bench_case;

/* Runs the case on pinned threads: first with more and more pairs, until a round is long enough to
 * be timed and everything is warm, then in as many rounds as are asked for. */
void bench_time_case(const bench_case *c, bench_time *time);

/* All driver calls on the device so far; 0 when there is none. */
uint64_t bench_driver_calls(tarn_device *device);

/* The median, of an even count the mean of the middle two; sorts the numbers. pre: count is not 0.
 */
double bench_median(double *numbers, size_t count);

/* Fills peers[0..] with those that there are on this machine, tarn first, then the floor; how many.
 * `file` is a library of bench/peers, or NULL. */
uint32_t bench_find_peers(bench_peer peers[BENCH_MAX_PEERS], tarn_heap *heap,
                          const tarn_device_info *device, const char *file);

/* Says of those that are not here why: among the results, or beside them where they are JSON. */
void bench_print_absent(const bench_peer peers[], uint32_t n_peers, bool is_json);

/* Tells on stderr why tarn has rows without a figure, and returns TOOL_FAILED. */
int bench_fail(const char failure[BENCH_FAILURE]);

/* How many CPUs this process may use. */
uint32_t bench_cpus(void);

#endif
