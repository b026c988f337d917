/* SPDX-License-Identifier: MIT
 *
 * A small deterministic generator (splitmix64): same seed, same numbers, on every machine. */
#ifndef TARNI_RNG_H
#define TARNI_RNG_H

#include <stdint.h>

#include "base/check.h"

typedef struct tarni_rng {
  uint64_t state;
} tarni_rng;

static inline uint64_t tarni_rng_next(tarni_rng *rng) {
  uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* A number below `bound`. pre: bound is not 0. The bias is below 2^-32 for bounds below 2^32. */
static inline uint64_t tarni_rng_below(tarni_rng *rng, uint64_t bound) {
  tarn_assert(bound != 0);
  return tarni_rng_next(rng) % bound;
}

#endif
