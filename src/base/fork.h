/* SPDX-License-Identifier: MIT
 *
 * Notices that the process is a child made by fork: what a parent had of a device is not the
 * child's to use, and a lock may be held by a thread that the child does not have. */
#ifndef TARNI_FORK_H
#define TARNI_FORK_H

#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uint32_t tarni_forks; /* fork.c writes it */

/* How many forks lie between this process and the one that asked first. Whoever makes something
 * that is not to be used by a child asks here; takes no lock. */
uint32_t tarni_fork_watch(void);

/* The same for those who compare it with what the maker was told: one load. */
static inline uint32_t tarni_fork_count(void) {
  return atomic_load_explicit(&tarni_forks, memory_order_relaxed);
}

#endif
