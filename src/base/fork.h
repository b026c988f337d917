/* SPDX-License-Identifier: MIT
 *
 * Notices that the process is a child made by fork: what a parent had of a device is not the
 * child's to use, and a lock may be held by a thread that the child does not have. */
#ifndef TARNI_FORK_H
#define TARNI_FORK_H

#include <stdint.h>

/* How many forks lie between this process and the one that asked first. Cheap; takes no lock. */
uint32_t tarni_fork_count(void);

#endif
