/* SPDX-License-Identifier: MIT
 *
 * The count of forks: owns one number, which only a child changes, before it has other threads. */
#include "base/fork.h"

#include <pthread.h>

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
_Atomic uint32_t tarni_forks;

static void note_child(void) {
  atomic_fetch_add_explicit(&tarni_forks, 1, memory_order_relaxed);
}

static void watch(void) {
  (void)pthread_atfork(NULL, NULL, note_child);
}

uint32_t tarni_fork_watch(void) {
  (void)pthread_once(&watch_once, watch);
  return tarni_fork_count();
}
