/* SPDX-License-Identifier: MIT
 *
 * Stacks of return addresses: taken, and written as text. Knows nothing about memory. */
#ifndef TARNI_STACK_H
#define TARNI_STACK_H

#include <stddef.h>
#include <stdint.h>

enum { TARNI_STACK_MAX = 32 };

/* Makes the calling process ready, so that taking a stack later needs no host memory. */
void tarni_stack_prepare(void);

/* Fills frames with up to `depth` return addresses, the innermost first; how many there are. 0
 * where the platform cannot. */
uint32_t tarni_stack_take(void **frames, uint32_t depth);

/* "0x55d0c2a1 0x7f21b3c8": as many as fit. Returns the buffer. */
char *tarni_stack_text(void *const *frames, uint32_t n, char *buffer, size_t capacity);

#endif
