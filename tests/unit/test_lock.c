/* SPDX-License-Identifier: MIT
 *
 * Ranked mutexes: exclusion, sleepers, signals, and at debug level 2 the order in which they are
 * taken. What must abort is tried in a child process. */
#include "base/lock.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "support/test.h"

static tarni_lock registry = TARNI_LOCK_INIT(TARNI_RANK_REGISTRY);
static tarni_lock heap = TARNI_LOCK_INIT(TARNI_RANK_HEAP);
static tarni_lock other_heap = TARNI_LOCK_INIT(TARNI_RANK_HEAP);

/* True when the function ends its process by abort. */
static bool aborts(void (*run)(void)) {
  (void)fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    (void)close(STDERR_FILENO);
    run();
    _exit(0);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
         WTERMSIG(status) == SIGABRT;
}

static uint64_t counter;

static void *count_up(void *unused) {
  (void)unused;
  for (int i = 0; i < 20000; i++) {
    tarni_lock_acquire(&heap);
    counter++;
    tarni_lock_release(&heap);
  }
  return NULL;
}

static void exclusion(void) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, count_up, NULL) == 0);
  }
  for (int i = 0; i < 4; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_EQ(counter, 80000);
}

/* Held for longer than others look: most of them sleep. One in four does not wait. */
static void *count_slowly(void *unused) {
  (void)unused;
  const struct timespec while_held = {.tv_nsec = 30000};
  for (int i = 0; i < 100; i++) {
    const bool is_trying = i % 4 == 0;
    if (is_trying) {
      while (!tarni_lock_try(&heap)) {
        (void)sched_yield();
      }
    } else {
      tarni_lock_acquire(&heap);
    }
    const uint64_t before = counter;
    (void)nanosleep(&while_held, NULL);
    counter = before + 1;
    tarni_lock_release(&heap);
  }
  return NULL;
}

static void sleepers(void) {
  enum { N = 8 };
  pthread_t threads[2 * N];
  counter = 0;
  for (int i = 0; i < 2 * N; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, i < N ? count_slowly : count_up, NULL) == 0);
  }
  for (int i = 0; i < 2 * N; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_EQ(counter, N * 100 + N * 20000);
  CHECK_EQ(atomic_load(&heap.word), 0); /* nobody is counted any more */
  CHECK_EQ(atomic_load(&heap.tokens), 0);
}

/* ---- Signals ---- */

enum { TURNS = 2000, PLAYERS = 4 };

static tarni_signal turned, arrived;
static uint32_t turn, n_waiting, n_let_go;

static void *play(void *argument) {
  const uint32_t own = (uint32_t)(uintptr_t)argument;
  tarni_lock_acquire(&heap);
  for (int i = 0; i < TURNS; i++) {
    while (turn % PLAYERS != own) {
      tarni_signal_wait(&turned, &heap);
    }
    turn++;
    tarni_signal_wake(&turned, UINT32_MAX);
  }
  tarni_lock_release(&heap);
  return NULL;
}

static void taking_turns(void) {
  pthread_t threads[PLAYERS];
  for (uintptr_t i = 0; i < PLAYERS; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, play, (void *)i) == 0);
  }
  for (int i = 0; i < PLAYERS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_EQ(turn, TURNS * PLAYERS);
}

static void *wait_to_be_let_go(void *unused) {
  (void)unused;
  tarni_lock_acquire(&heap);
  n_waiting++;
  while (n_let_go == 0) {
    tarni_signal_wait(&arrived, &heap);
  }
  n_let_go--;
  n_waiting--;
  tarni_lock_release(&heap);
  return NULL;
}

/* Those that are let go one by one are woken one by one: each of them wakes. */
static void waking_some(void) {
  pthread_t threads[PLAYERS];
  for (int i = 0; i < PLAYERS; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, wait_to_be_let_go, NULL) == 0);
  }
  for (uint32_t left = PLAYERS; left != 0;) {
    const struct timespec until_asleep = {.tv_nsec = 2000000};
    (void)nanosleep(&until_asleep, NULL);
    tarni_lock_acquire(&heap);
    if (n_waiting == left && n_let_go == 0) {
      n_let_go = left > 2 ? 1 : left;
      left -= n_let_go;
      tarni_signal_wake(&arrived, n_let_go);
    }
    tarni_lock_release(&heap);
  }
  for (int i = 0; i < PLAYERS; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  CHECK_EQ(n_waiting, 0);
}

static void *try_heap(void *taken) {
  *(bool *)taken = tarni_lock_try(&heap);
  return NULL;
}

static void trying(void) {
  pthread_t thread;
  bool is_taken = true;
  tarni_lock_acquire(&heap);
  REQUIRE(pthread_create(&thread, NULL, try_heap, &is_taken) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(!is_taken);
  tarni_lock_release(&heap);
  CHECK(tarni_lock_try(&heap));
  tarni_lock_release(&heap);
}

static void made_at_run_time(void) {
  tarni_lock lock;
  tarni_lock_init(&lock, TARNI_RANK_CACHE);
  CHECK(tarni_lock_try(&lock));
  tarni_lock_release(&lock);
  tarni_lock_destroy(&lock);
}

static void held_rank(void) {
  if (TARNI_DEBUG_LEVEL < 2) {
    test_skip("ranks are kept at debug level 2 only");
    return;
  }
  CHECK_EQ(tarni_lock_held(), TARNI_RANK_NONE);
  tarni_lock_acquire(&registry);
  CHECK_EQ(tarni_lock_held(), TARNI_RANK_REGISTRY);
  tarni_lock_acquire(&heap);
  CHECK_EQ(tarni_lock_held(), TARNI_RANK_HEAP);
  tarni_lock_release(&registry);
  CHECK_EQ(tarni_lock_held(), TARNI_RANK_HEAP);
  tarni_lock_release(&heap);
  CHECK_EQ(tarni_lock_held(), TARNI_RANK_NONE);
}

static void falling_rank(void) {
  tarni_lock_acquire(&heap);
  tarni_lock_acquire(&registry);
}

static void same_rank(void) {
  tarni_lock_acquire(&heap);
  tarni_lock_acquire(&other_heap);
}

static void release_of_nothing(void) {
  tarni_lock_release(&heap);
}

static void wrong_order_aborts(void) {
  if (TARNI_DEBUG_LEVEL < 2) {
    test_skip("the order is checked at debug level 2 only");
    return;
  }
  CHECK(aborts(falling_rank));
  CHECK(aborts(same_rank));
  CHECK(aborts(release_of_nothing));
}

static const test_case cases[] = {
    {"lock: exclusion", exclusion},
    {"lock: sleepers", sleepers},
    {"lock: signals, taking turns", taking_turns},
    {"lock: signals, waking some", waking_some},
    {"lock: trying", trying},
    {"lock: made at run time", made_at_run_time},
    {"lock: the highest rank held", held_rank},
    {"lock: wrong order aborts", wrong_order_aborts},
};
TEST_MAIN(cases)
