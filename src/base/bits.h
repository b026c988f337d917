/* SPDX-License-Identifier: MIT
 *
 * Integer arithmetic: alignment, logarithms, checked sums. Every sum or product of a caller's
 * number goes through the checked forms. */
#ifndef TARNI_BITS_H
#define TARNI_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"

static inline bool tarni_is_pow2(uint64_t x) {
  return x != 0 && (x & (x - 1)) == 0;
}

/* pre: alignment is a power of two. */
static inline uint64_t tarni_align_down(uint64_t x, uint64_t alignment) {
  tarn_assert(tarni_is_pow2(alignment));
  return x & ~(alignment - 1);
}

static inline bool tarni_is_aligned(uint64_t x, uint64_t alignment) {
  return tarni_align_down(x, alignment) == x;
}

/* False, and *sum untouched, when the sum does not fit. */
static inline bool tarni_add(uint64_t a, uint64_t b, uint64_t *sum) {
  uint64_t result;
  if (__builtin_add_overflow(a, b, &result)) {
    return false;
  }
  *sum = result;
  return true;
}

/* The sum, or the largest number there is. */
static inline uint64_t tarni_add_capped(uint64_t a, uint64_t b) {
  uint64_t sum;
  return tarni_add(a, b, &sum) ? sum : UINT64_MAX;
}

static inline bool tarni_mul(uint64_t a, uint64_t b, uint64_t *product) {
  uint64_t result;
  if (__builtin_mul_overflow(a, b, &result)) {
    return false;
  }
  *product = result;
  return true;
}

/* Rounds up to a multiple of a power of two; false when that does not fit. */
static inline bool tarni_align_up_checked(uint64_t x, uint64_t alignment, uint64_t *result) {
  tarn_assert(tarni_is_pow2(alignment));
  uint64_t sum;
  if (!tarni_add(x, alignment - 1, &sum)) {
    return false;
  }
  *result = sum & ~(alignment - 1);
  return true;
}

/* pre: the result fits. For numbers that tarn made itself. */
static inline uint64_t tarni_align_up(uint64_t x, uint64_t alignment) {
  tarn_assert(tarni_is_pow2(alignment) && x <= UINT64_MAX - (alignment - 1));
  return (x + alignment - 1) & ~(alignment - 1);
}

/* Index of the highest and of the lowest set bit. pre: x is not 0. */
static inline unsigned tarni_log2(uint64_t x) {
  tarn_assert(x != 0);
  return 63u - (unsigned)__builtin_clzll(x);
}

static inline unsigned tarni_low_bit(uint64_t x) {
  tarn_assert(x != 0);
  return (unsigned)__builtin_ctzll(x);
}

static inline uint64_t tarni_min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static inline uint64_t tarni_max(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

#endif
