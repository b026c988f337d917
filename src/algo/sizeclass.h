/* SPDX-License-Identifier: MIT
 *
 * Size classes of small blocks. Pure. Multiples of 256 bytes up to 2 KiB, then 8 classes a
 * doubling up to 1 MiB: above 2 KiB a block is at most 12.5 % larger than what was asked for. */
#ifndef TARNI_SIZECLASS_H
#define TARNI_SIZECLASS_H

#include <stdint.h>

#include "base/bits.h"

enum {
  TARNI_ALIGNMENT = 256,         /* of every block: what CUDA promises for its own allocations */
  TARNI_ALIGNMENT_MAX = 2 << 20, /* that can be asked for */
  TARNI_SMALL_MAX = 1 << 20,
  TARNI_CLASS_LINEAR = 8, /* classes 0 to 7: 256, 512, ... 2048 */
  TARNI_CLASS_COUNT = TARNI_CLASS_LINEAR + 9 * 8,
};

/* The class of a size. pre: 1 <= size <= TARNI_SMALL_MAX. */
static inline uint32_t tarni_class_of(uint64_t size) {
  tarn_assert(size >= 1 && size <= TARNI_SMALL_MAX);
  if (size <= 2048) {
    return (uint32_t)((size - 1) >> 8);
  }
  const unsigned high = tarni_log2(size - 1); /* 11 for 2049 to 4096 */
  return (uint32_t)(high - 10) * 8 + (uint32_t)(((size - 1) >> (high - 3)) & 7);
}

/* The size of the blocks of a class. pre: class_index < TARNI_CLASS_COUNT. */
static inline uint64_t tarni_class_size(uint32_t class_index) {
  tarn_assert(class_index < TARNI_CLASS_COUNT);
  if (class_index < TARNI_CLASS_LINEAR) {
    return (uint64_t)(class_index + 1) << 8;
  }
  const unsigned high = class_index / 8 + 10;
  return (uint64_t)(8 + class_index % 8 + 1) << (high - 3);
}

#endif
