/* SPDX-License-Identifier: MIT
 *
 * Generated programs, as traces. */
#ifndef TARN_TOOLS_WORKLOAD_H
#define TARN_TOOLS_WORKLOAD_H

#include "trace.h"

enum { WORKLOAD_N_RANDOM = 18 };

/* One setting of RMM's random_allocations benchmark, and what is known of the program that it
 * makes: how much is live at the peak, and a hash of all its steps. */
typedef struct workload_random_case {
  uint32_t n_allocations;
  uint32_t max_mib; /* sizes are uniform from 1 byte to this */
  uint32_t live_peak_blocks;
  uint64_t live_peak_bytes;
  uint64_t total_bytes;
  uint64_t hash;
} workload_random_case;

extern const workload_random_case workload_random_cases[WORKLOAD_N_RANDOM];

/* Makes the program step for step as RMM's benchmark does with libstdc++'s generator and its
 * default seed: 2 n steps; each draws a size, then whether to allocate (73 of 100, while
 * allocations are left and less than 16000 MiB are live) or to free a random block. False: out of
 * host memory. */
bool workload_random(uint32_t n_allocations, uint32_t max_mib, trace *out);

/* The sum of all sizes, and FNV-1a over the steps as 64-bit little-endian words: 1, block, size for
 * an allocation, 2, block for a free. It starts from 1469598103934665603, which is not FNV's usual
 * number: the published values of the cases were made so. */
void workload_sum(const trace *t, uint64_t *total_bytes, uint64_t *hash);

#endif
