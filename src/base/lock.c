/* SPDX-License-Identifier: MIT
 *
 * Ranked mutexes, and signals to wait for. At debug level 2 each thread keeps a bit a rank it
 * holds.
 *
 * A lock's word has three parts: it is held; a thread that is awake is after it; so many sleep. Who
 * gives a lock back wakes a sleeper, unless one that is awake is after it already: that one will
 * wake the next when it gives the lock back, or sees that the lock is free before it sleeps. To be
 * woken is to get a token, so nobody is woken that is not counted, nor counted twice. */
#include "base/lock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/check.h"

enum {
  LOCK_HELD = 1,
  LOCK_AWAKE = 2,
  LOCK_SLEEPER = 4,
  LOCK_LOOKS = 100, /* before a thread sleeps: a few microseconds */
};

static _Thread_local uint32_t held_ranks;

/* ---- Sleeping ---- */

/* Leaves errno as it is: what takes a lock may not be seen to fail. */
static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
  const int before = errno;
  (void)syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
  errno = before;
}

/* Sleeps as long as the word has that value; may return earlier. */
static void futex_sleep(_Atomic uint32_t *word, uint32_t value) {
  futex(word, FUTEX_WAIT_PRIVATE, value);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n) {
  futex(word, FUTEX_WAKE_PRIVATE, (uint32_t)tarni_min(n, INT_MAX));
}

/* Lets the other things that a core does go first. */
static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

/* ---- Locks ---- */

void tarni_lock_init(tarni_lock *lock, tarni_rank rank) {
  *lock = (tarni_lock)TARNI_LOCK_INIT(rank);
}

void tarni_lock_destroy(tarni_lock *lock) {
  tarn_assert(atomic_load(&lock->word) == 0 && "destroyed while held");
  if (TARNI_DEBUG_LEVEL >= 2) {
    atomic_store(&lock->word, LOCK_HELD); /* who takes it now waits for ever, and is seen */
  }
}

static void note_acquired(const tarni_lock *lock) {
  if (TARNI_DEBUG_LEVEL >= 2) {
    tarn_assert(tarni_lock_held() < lock->rank && "locks are taken in rising rank");
    held_ranks |= 1u << lock->rank;
  }
}

/* What the word was: it is changed if it was as it should be. */
static uint32_t word_change(tarni_lock *lock, uint32_t from, uint32_t to) {
  (void)atomic_compare_exchange_strong_explicit(&lock->word, &from, to, memory_order_acquire,
                                                memory_order_relaxed);
  return from;
}

static void token_await(tarni_lock *lock) {
  uint32_t n = atomic_load_explicit(&lock->tokens, memory_order_relaxed);
  for (;;) {
    if (n == 0) {
      futex_sleep(&lock->tokens, 0);
      n = atomic_load_explicit(&lock->tokens, memory_order_relaxed);
    } else if (atomic_compare_exchange_weak_explicit(&lock->tokens, &n, n - 1, memory_order_acquire,
                                                     memory_order_relaxed)) {
      return;
    }
  }
}

/* Until it is seen not to be held, or for as long as looking is worth. */
static uint32_t look(const tarni_lock *lock) {
  uint32_t word = LOCK_HELD;
  for (uint32_t i = 0; i < LOCK_LOOKS && (word & LOCK_HELD) != 0; i++) {
    relax();
    word = atomic_load_explicit(&lock->word, memory_order_relaxed);
  }
  return word;
}

/* What a thread does next by what it sees. Not held: takes it. Nobody else looks: looks. Then
 * sleeps, until it is woken to look again. */
TARNI_SLOW static void acquire_slow(tarni_lock *lock) {
  uint32_t awake = 0; /* LOCK_AWAKE: this thread is the one that looks */
  uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);
  for (;;) {
    const bool is_held = (word & LOCK_HELD) != 0, has_one = (word & LOCK_AWAKE) != 0;
    const uint32_t to = !is_held  ? (word | LOCK_HELD) & ~awake
                        : has_one ? (word + LOCK_SLEEPER) & ~awake
                                  : word | LOCK_AWAKE;
    const uint32_t seen = word_change(lock, word, to);
    if (seen == word && !is_held) {
      return;
    }
    if (seen == word) {
      if (has_one) {
        token_await(lock);
      }
      awake = LOCK_AWAKE; /* who woke it has set that */
    }
    word = awake != 0 ? look(lock) : seen;
  }
}

void tarni_lock_acquire(tarni_lock *lock) {
  if (TARNI_UNLIKELY(word_change(lock, 0, LOCK_HELD) != 0)) {
    acquire_slow(lock);
  }
  note_acquired(lock);
}

bool tarni_lock_try(tarni_lock *lock) {
  uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed);
  while ((word & LOCK_HELD) == 0) {
    const uint32_t seen = word_change(lock, word, word | LOCK_HELD);
    if (seen == word) {
      note_acquired(lock);
      return true;
    }
    word = seen;
  }
  return false;
}

/* In one step, so that nobody who gets the lock, and may destroy it, is waited for by this one. */
void tarni_lock_release(tarni_lock *lock) {
  if (TARNI_DEBUG_LEVEL >= 2) {
    tarn_assert((held_ranks & (1u << lock->rank)) != 0 && "released without being held");
    held_ranks &= ~(1u << lock->rank);
  }
  uint32_t word = atomic_load_explicit(&lock->word, memory_order_relaxed), to;
  bool is_waking;
  do {
    is_waking = word >= LOCK_SLEEPER && (word & LOCK_AWAKE) == 0;
    to = is_waking ? ((word - LOCK_SLEEPER) | LOCK_AWAKE) & ~(uint32_t)LOCK_HELD
                   : word & ~(uint32_t)LOCK_HELD;
  } while (!atomic_compare_exchange_weak_explicit(&lock->word, &word, to, memory_order_release,
                                                  memory_order_relaxed));
  if (TARNI_UNLIKELY(is_waking)) {
    (void)atomic_fetch_add_explicit(&lock->tokens, 1, memory_order_release);
    futex_wake(&lock->tokens, 1);
  }
}

tarni_rank tarni_lock_held(void) {
  return held_ranks == 0 ? TARNI_RANK_NONE : (tarni_rank)tarni_log2(held_ranks);
}

/* ---- Signals ---- */

void tarni_signal_wait(tarni_signal *signal, tarni_lock *lock) {
  const uint32_t count = atomic_load_explicit(&signal->count, memory_order_relaxed);
  tarni_lock_release(lock);
  futex_sleep(&signal->count, count);
  tarni_lock_acquire(lock);
}

void tarni_signal_wake(tarni_signal *signal, uint32_t n) {
  (void)atomic_fetch_add_explicit(&signal->count, 1, memory_order_relaxed);
  futex_wake(&signal->count, n);
}
