/* SPDX-License-Identifier: MIT
 *
 * Ranked mutexes. At debug level 2 each thread keeps a bit a rank it holds. */
#include "base/lock.h"

#include <stdint.h>

#include "base/bits.h"
#include "base/check.h"

static _Thread_local uint32_t held_ranks;

void tarni_lock_init(tarni_lock *lock, tarni_rank rank) {
  *lock = (tarni_lock)TARNI_LOCK_INIT(rank);
}

void tarni_lock_destroy(tarni_lock *lock) {
  const int failed = pthread_mutex_destroy(&lock->mutex);
  tarn_assert(failed == 0 && "destroyed while held");
  (void)failed;
}

static void note_acquired(const tarni_lock *lock) {
  if (TARNI_DEBUG_LEVEL >= 2) {
    tarn_assert(tarni_lock_held() < lock->rank && "locks are taken in rising rank");
    held_ranks |= 1u << lock->rank;
  }
}

void tarni_lock_acquire(tarni_lock *lock) {
  pthread_mutex_lock(&lock->mutex);
  note_acquired(lock);
}

bool tarni_lock_try(tarni_lock *lock) {
  if (pthread_mutex_trylock(&lock->mutex) != 0) {
    return false;
  }
  note_acquired(lock);
  return true;
}

void tarni_lock_release(tarni_lock *lock) {
  if (TARNI_DEBUG_LEVEL >= 2) {
    tarn_assert((held_ranks & (1u << lock->rank)) != 0 && "released without being held");
    held_ranks &= ~(1u << lock->rank);
  }
  pthread_mutex_unlock(&lock->mutex);
}

tarni_rank tarni_lock_held(void) {
  return held_ranks == 0 ? TARNI_RANK_NONE : (tarni_rank)tarni_log2(held_ranks);
}
