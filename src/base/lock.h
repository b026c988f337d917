/* SPDX-License-Identifier: MIT
 *
 * A mutex with a rank. Locks are taken in rising rank; at debug level 2 every acquisition is
 * checked, and the port checks that no lock is held that a hit could need (invariant I5). */
#ifndef TARNI_LOCK_H
#define TARNI_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Every lock of the library, in the order in which they may be taken. */
typedef enum tarni_rank {
  TARNI_RANK_NONE = 0,
  TARNI_RANK_BUDGET,   /* one budget of a heap at a time: held around whole allocations */
  TARNI_RANK_REGISTRY, /* the table of open devices: may call the port */
  TARNI_RANK_CAPTURE,  /* captures, arenas and graphs: held around driver calls, not for hits */
  TARNI_RANK_DRIVER,   /* held around driver calls: slow paths only, never needed by a hit */
  TARNI_RANK_STRICT,   /* captures that forbid calls: the driver is asked whether they go on */
  TARNI_RANK_HEAP,     /* structures that a miss needs: no driver call below it */
  TARNI_RANK_CACHE,    /* one thread's cache, where it has to be locked */
  TARNI_RANK_SIM,      /* inside a port */
} tarni_rank;

/* After fork a lock of the parent's is of no use to the child, also where nobody held it: it is
 * made anew there, or not used.
 *
 * Those that many threads want are held for less than it takes to put a thread to sleep and wake
 * it. So who finds one taken looks a while longer before it sleeps, but only one thread does: more
 * would take the cache lines away from the one that holds it. As long as one looks nobody is woken.
 */
typedef struct tarni_lock {
  _Atomic uint32_t word;   /* whether it is held, whether somebody looks, how many sleep (lock.c) */
  _Atomic uint32_t tokens; /* sleepers that were woken and do not know yet */
  tarni_rank rank;
} tarni_lock;

#define TARNI_LOCK_INIT(lock_rank)                                                                 \
  { 0, 0, lock_rank }

void tarni_lock_init(tarni_lock *lock, tarni_rank rank);
void tarni_lock_destroy(tarni_lock *lock);
void tarni_lock_acquire(tarni_lock *lock);
bool tarni_lock_try(tarni_lock *lock);
void tarni_lock_release(tarni_lock *lock);

/* Something that threads wait for, of a lock's: all of it is called with that lock held. Who waits
 * gives it up meanwhile, may be woken for nothing, and so looks again at what it waits for. */
typedef struct tarni_signal {
  _Atomic uint32_t count; /* of wakings */
} tarni_signal;

void tarni_signal_wait(tarni_signal *signal, tarni_lock *lock);
void tarni_signal_wake(tarni_signal *signal, uint32_t n);

/* The highest rank that this thread holds; TARNI_RANK_NONE below debug level 2. */
tarni_rank tarni_lock_held(void);

#endif
