/* SPDX-License-Identifier: MIT
 *
 * Threads that run a loop in rounds, and the time that it takes. The thread that asks only
 * coordinates: rounds begin and end at a barrier, and each worker times its own part, so that a
 * late start does not count. Locks: the barrier. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "progress.h"
#include "tool.h"

static const uint64_t round_ns = 1000000;
enum { FIRST_PAIRS = 8 };

typedef struct bench_run {
  const bench_case *of;
  pthread_barrier_t barrier;
  uint64_t n; /* pairs of the next round; 0: the end. Written between barriers */
  _Atomic bool has_failed;
  char failure[BENCH_FAILURE];            /* of the thread that failed first */
  uint64_t elapsed_ns[BENCH_MAX_THREADS]; /* of the last round; each thread writes its own */
} bench_run;

typedef struct bench_worker {
  bench_run *run;
  uint32_t number;
  pthread_t thread;
} bench_worker;

/* ---- Threads -------------------------------------------------------------------------------- */

uint32_t bench_cpus(void) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int count = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return count < BENCH_MAX_THREADS ? (uint32_t)count : BENCH_MAX_THREADS;
}

/* Pins this thread to the n-th CPU that the process may use; without it the times are only less
 * steady, so a failure is no matter. */
static void pin(uint32_t number) {
  cpu_set_t allowed, one;
  CPU_ZERO(&allowed);
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return;
  }
  int left = (int)(number % (uint32_t)CPU_COUNT(&allowed));
  for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(cpu, &allowed) && left-- == 0) {
      CPU_SET(cpu, &one);
      (void)pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
      return;
    }
  }
}

/* The last error belongs to its thread, so it is kept here for the one that asks. */
static void note_failure(bench_run *run) {
  if (!atomic_exchange(&run->has_failed, true)) {
    (void)snprintf(run->failure, sizeof(run->failure), "%s", tarn_last_message());
  }
}

static void *work_in_rounds(void *argument) {
  bench_worker *worker = argument;
  bench_run *run = worker->run;
  const bench_case *c = run->of;
  const bench_loop loop = c->loops[worker->number % 2];
  bench_work *work = &c->works[worker->number];
  pin(worker->number);
  if ((c->peer->enter != NULL && !c->peer->enter(c->peer->state)) ||
      (c->before != NULL && !c->before(work, 0))) {
    note_failure(run);
  }
  for (;;) {
    (void)pthread_barrier_wait(&run->barrier);
    if (run->n == 0) {
      break;
    }
    const uint64_t start_ns = progress_now_ns();
    if (!atomic_load(&run->has_failed) && !loop(work, run->n)) {
      note_failure(run);
    }
    run->elapsed_ns[worker->number] = progress_now_ns() - start_ns;
    (void)pthread_barrier_wait(&run->barrier);
  }
  if (c->after != NULL) {
    (void)c->after(work, 0);
  }
  return NULL;
}

/* ---- Rounds --------------------------------------------------------------------------------- */

/* One round of n pairs; the mean nanoseconds a pair. */
static double run_round(bench_run *run, uint64_t n) {
  double sum = 0;
  run->n = n;
  (void)pthread_barrier_wait(&run->barrier);
  (void)pthread_barrier_wait(&run->barrier);
  for (uint32_t i = 0; i < run->of->n_threads; i++) {
    sum += (double)run->elapsed_ns[i];
  }
  return sum / (double)run->of->n_threads / (double)n;
}

/* Whether a round is long enough, also when it is done again: the first time may be long for what
 * it needed for the first time, such as memory of the driver. */
static bool is_long(bench_run *run, uint64_t n) {
  double ns = run_round(run, n);
  if (ns * (double)n >= (double)round_ns) {
    ns = run_round(run, n);
  }
  return atomic_load(&run->has_failed) || ns * (double)n >= (double)round_ns;
}

/* More and more pairs until a round is long enough. */
static uint64_t find_pairs(bench_run *run) {
  uint64_t n = FIRST_PAIRS;
  if (run->of->n_warm != 0) {
    (void)run_round(run, run->of->n_warm);
  }
  while (!is_long(run, n)) {
    n *= 2;
  }
  return n;
}

static int compare_times(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_median(double *numbers, size_t count) {
  qsort(numbers, count, sizeof(*numbers), compare_times);
  return (numbers[(count - 1) / 2] + numbers[count / 2]) / 2;
}

uint64_t bench_driver_calls(tarn_device *device) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  uint64_t sum = 0;
  if (device != NULL && tarn_device_get_calls(device, &counts) == TARN_OK) {
    for (int i = 0; i < TARN_CALL_COUNT; i++) {
      sum += counts.calls[i];
    }
  }
  return sum;
}

/* How many threads make pairs of their own: where even and odd ones do different things, two make
 * each together. */
static uint32_t n_pairing(const bench_case *c) {
  return c->loops[0] == c->loops[1] ? c->n_threads : c->n_threads / 2;
}

static void time_rounds(bench_run *run, bench_time *time) {
  double rounds[BENCH_MAX_ROUNDS];
  const uint32_t n_rounds = run->of->n_rounds;
  const uint64_t n = find_pairs(run);
  const uint64_t calls = bench_driver_calls(run->of->device);
  for (uint32_t i = 0; i < n_rounds && !atomic_load(&run->has_failed); i++) {
    rounds[i] = run_round(run, n);
  }
  *time = (bench_time){.driver_calls = bench_driver_calls(run->of->device) - calls};
  if (!atomic_load(&run->has_failed)) {
    time->is_measured = true;
    time->ns = bench_median(rounds, n_rounds);
    time->best_ns = rounds[0];
    time->pairs_a_second = (double)n_pairing(run->of) * 1e9 / time->ns;
  }
}

void bench_time_case(const bench_case *c, bench_time *time) {
  static bench_run run;
  static bench_worker workers[BENCH_MAX_THREADS];
  memset(&run, 0, sizeof(run));
  *time = (bench_time){0};
  run.of = c;
  if (pthread_barrier_init(&run.barrier, NULL, c->n_threads + 1) != 0) {
    return;
  }
  for (uint32_t i = 0; i < c->n_threads; i++) {
    workers[i] = (bench_worker){.run = &run, .number = i};
    if (pthread_create(&workers[i].thread, NULL, work_in_rounds, &workers[i]) != 0) {
      /* The barrier would wait for ever for a thread that is not there. */
      (void)fprintf(stderr, "tarn: cannot make thread %u of %u\n", i + 1, c->n_threads);
      exit(1);
    }
  }
  time_rounds(&run, time);
  run.n = 0;
  (void)pthread_barrier_wait(&run.barrier);
  for (uint32_t i = 0; i < c->n_threads; i++) {
    (void)pthread_join(workers[i].thread, NULL);
  }
  (void)pthread_barrier_destroy(&run.barrier);
  memcpy(time->failure, run.failure, sizeof(time->failure));
}

int bench_fail(const char failure[BENCH_FAILURE]) {
  (void)fflush(stdout); /* it stands behind the rows */
  (void)fprintf(stderr, "tarn: what has no figure could not be measured: %s\n", failure);
  return TOOL_FAILED;
}

/* ---- The mix -------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) {
  uint64_t x = *state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return *state = x;
}

void bench_mix_make(bench_mix *mix, uint64_t seed) {
  uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  memset(mix, 0, sizeof(*mix));
  for (uint32_t i = 0; i < BENCH_STEPS; i++) {
    const double part = (double)(next_random(&state) >> 11) / (double)(UINT64_C(1) << 53);
    mix->steps[i].bytes = (uint32_t)(512.0 * exp2(13.0 * part));
    mix->steps[i].slot = (uint32_t)(next_random(&state) % BENCH_LIVE);
  }
}
