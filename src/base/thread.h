/* SPDX-License-Identifier: MIT
 *
 * Threads, each known by a name that no other ever has, and whether one is still there. */
#ifndef TARNI_THREAD_H
#define TARNI_THREAD_H

#include <stdbool.h>

/* The name of the calling thread; never NULL. A thread that goes on while it exits, after its name
 * was given up, gets another one. */
const void *tarni_thread(void);

/* Whether the thread of that name has exited. False where that is not known. */
bool tarni_thread_is_gone(const void *thread);

#endif
