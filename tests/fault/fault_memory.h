/* SPDX-License-Identifier: MIT
 *
 * Host memory that fails: the n-th allocation inside of a call finds none, once or for good. */
#ifndef TARN_FAULT_MEMORY_H
#define TARN_FAULT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Whether this build's allocator can be made to fail. */
bool fault_memory_can_fail(void);

/* Around each call in which this thread's allocations count. */
void fault_memory_inside(bool is_inside);
void fault_memory_arm(uint64_t nth, bool for_good);
/* Ends it. Returns how many allocations failed. */
uint64_t fault_memory_disarm(void);

#endif
