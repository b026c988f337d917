/* SPDX-License-Identifier: MIT
 *
 * Ranked mutexes: exclusion, and at debug level 2 the order in which they are taken. What must
 * abort is tried in a child process. */
#include "base/lock.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
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
    {"lock: trying", trying},
    {"lock: made at run time", made_at_run_time},
    {"lock: the highest rank held", held_rank},
    {"lock: wrong order aborts", wrong_order_aborts},
};
TEST_MAIN(cases)
