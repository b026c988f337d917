/* SPDX-License-Identifier: MIT
 *
 * Names of threads: numbers that only rise, each with the slot in a table that has it as long as
 * the thread is there. So what a thread has left behind is known by its name alone, wherever that
 * was noted. A thread that finds no slot is taken to be there for ever. */
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
  THREAD_SLOTS = 4096, /* threads at a time */
  THREAD_STRIDE = THREAD_SLOTS + 1,
};

static _Atomic uintptr_t slots[THREAD_SLOTS]; /* names; 0: free */
static _Atomic uintptr_t last;
static _Thread_local uintptr_t own; /* a number times the stride plus the slot; 0: none yet */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool has_exit_key;

static void thread_exit(void *unused) {
  (void)unused;
  const uintptr_t slot = own % THREAD_STRIDE;
  if (own != 0 && slot < THREAD_SLOTS) {
    atomic_store_explicit(&slots[slot], 0, memory_order_release);
  }
  own = 0;
}

static void prepare(void) {
  has_exit_key = pthread_key_create(&exit_key, thread_exit) == 0;
}

static uintptr_t name_make(uintptr_t number) {
  if (has_exit_key && pthread_setspecific(exit_key, slots) == 0) {
    for (uintptr_t i = 0; i < THREAD_SLOTS; i++) {
      const uintptr_t slot = (number + i) % THREAD_SLOTS;
      const uintptr_t name = number * THREAD_STRIDE + slot;
      uintptr_t nobody = 0;
      if (atomic_compare_exchange_strong(&slots[slot], &nobody, name)) {
        return name;
      }
    }
  }
  return number * THREAD_STRIDE + THREAD_SLOTS;
}

const void *tarni_thread(void) {
  if (own == 0) {
    (void)pthread_once(&once, prepare);
    own = name_make(atomic_fetch_add(&last, 1) + 1);
  }
  return (const void *)own;
}

bool tarni_thread_is_gone(const void *thread) {
  const uintptr_t name = (uintptr_t)thread, slot = name % THREAD_STRIDE;
  return slot < THREAD_SLOTS && atomic_load_explicit(&slots[slot], memory_order_acquire) != name;
}
