/* SPDX-License-Identifier: MIT
 *
 * A process that ends with live blocks and running work, from main, from handlers and with threads
 * that never stop: no crash, no hang. Each case is a child of its own. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"
#include "tarn/sim.h"
#include "tarn/tarn.h"

enum { MIB = 1 << 20, CHILD_SECONDS = 100, GOOD = 7, N_THREADS = 3 };

static tarn_heap *heap; /* reachable until the end: a leak checker has nothing to say */
static tarn_stream stream;
static atomic_int n_running;

/* ---- Children ---- */

static void run_child(void (*body)(void)) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)alarm(CHILD_SECONDS); /* a hang ends by a signal */
    body();
    exit(1); /* a body ends by itself */
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 0, GOOD);
  if (WIFSIGNALED(status)) {
    test_note("ended by signal %d", WTERMSIG(status));
  }
}

static void need(bool is_good) {
  if (!is_good) {
    _exit(2);
  }
}

/* Blocks of all kinds, with work that has not run yet. */
static void make_work(void) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:256M,order=lazy"};
  need(tarn_heap_create(&config, &heap) == TARN_OK);
  tarn_device *device = tarn_heap_device(heap);
  need(tarn_stream_create(device, &stream) == TARN_OK);
  static const uint64_t sizes[] = {100, 5000, 300000, 3 * MIB, 9 * MIB};
  for (int i = 0; i < 5; i++) {
    tarn_ptr block = 0, freed = 0;
    need(tarn_alloc(heap, sizes[i], stream, &block) == TARN_OK);
    need(tarn_alloc(heap, sizes[i], stream, &freed) == TARN_OK);
    need(tarn_device_fill(device, block, 1, sizes[i], stream) == TARN_OK);
    need(tarn_device_fill(device, freed, 1, sizes[i], stream) == TARN_OK);
    need(tarn_use(heap, freed, NULL) == TARN_OK);
    need(tarn_free(heap, freed, stream) == TARN_OK);
  }
}

static void end_good(void) {
  exit(GOOD);
}

static void live_blocks(void) {
  make_work();
  end_good();
}

static void use_heap(void) {
  tarn_ptr block = 0;
  tarn_heap_stats stats = {.size = sizeof(stats)};
  need(tarn_alloc(heap, 2 * MIB, stream, &block) == TARN_OK);
  need(tarn_free(heap, block, stream) == TARN_OK);
  need(tarn_alloc(heap, 700, stream, &block) == TARN_OK);
  need(tarn_heap_get_stats(heap, &stats) == TARN_OK && stats.live_blocks >= 6);
}

/* The heap is used by handlers that run after main. */
static void handlers(void) {
  need(atexit(use_heap) == 0);
  make_work();
  need(atexit(use_heap) == 0);
  end_good();
}

static void destroy_heap(void) {
  uint64_t n_live = 0;
  need(tarn_heap_destroy(heap, &n_live) == TARN_OK && n_live == 5);
  need(tarn_alloc(NULL, 1, stream, &(tarn_ptr){0}) == TARN_INVALID);
}

/* It may be destroyed there, too. */
static void destroyed_by_a_handler(void) {
  make_work();
  need(atexit(destroy_heap) == 0);
  end_good();
}

static bool is_used_by_destructor;

/* Runs after all handlers. */
__attribute__((destructor)) static void last_of_all(void) {
  if (is_used_by_destructor) {
    use_heap();
  }
}

static void destructors(void) {
  make_work();
  is_used_by_destructor = true;
  end_good();
}

static void *never_stop(void *user) {
  const uint64_t first = (uint64_t)(uintptr_t)user;
  for (uint64_t i = first;; i++) {
    tarn_ptr block = 0;
    const uint64_t bytes = i % 4 == 0 ? (i % 3 + 1) * MIB : (i % 60 + 1) * 1000;
    if (tarn_alloc(heap, bytes, stream, &block) == TARN_OK) {
      (void)tarn_free(heap, block, stream);
    }
    if (i == first + 200) {
      atomic_fetch_add(&n_running, 1);
    }
  }
  return NULL;
}

static void start_threads(void) {
  for (uintptr_t i = 0; i < N_THREADS; i++) {
    pthread_t thread;
    need(pthread_create(&thread, NULL, never_stop, (void *)(i * 17)) == 0);
    need(pthread_detach(thread) == 0);
  }
  while (atomic_load(&n_running) < N_THREADS) {
    (void)usleep(100);
  }
}

/* Threads are in the middle of their calls when the process ends. */
static void threads_that_go_on(void) {
  make_work();
  need(atexit(use_heap) == 0);
  start_threads();
  end_good();
}

static void *end_later(void *user) {
  (void)user;
  (void)usleep(2000);
  use_heap();
  end_good();
  return NULL;
}

/* The main thread ends before the others: its cache goes with it. */
static void main_thread_first(void) {
  make_work();
  start_threads();
  pthread_t thread;
  need(pthread_create(&thread, NULL, end_later, NULL) == 0);
  pthread_exit(NULL);
}

/* ---- Cases ---- */

#define CHILD_CASE(name, body)                                                                     \
  static void name(void) {                                                                         \
    for (int i = 0; i < 5 && !test_case_failed(); i++) {                                           \
      run_child(body);                                                                             \
    }                                                                                              \
  }

CHILD_CASE(test_live_blocks, live_blocks)
CHILD_CASE(test_handlers, handlers)
CHILD_CASE(test_destroyed, destroyed_by_a_handler)
CHILD_CASE(test_destructors, destructors)
CHILD_CASE(test_threads, threads_that_go_on)
CHILD_CASE(test_main_first, main_thread_first)

static const test_case cases[] = {
    {"live blocks and running work", test_live_blocks},
    {"used by handlers", test_handlers},
    {"destroyed by a handler", test_destroyed},
    {"used by destructors", test_destructors},
    {"threads that go on", test_threads},
    {"the main thread ends first", test_main_first},
};

TEST_MAIN(cases)
