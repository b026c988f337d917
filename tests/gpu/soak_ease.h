/* SPDX-License-Identifier: MIT
 *
 * What the soak does to a heap from within: the heap's own headers are C. */
#ifndef TARN_SOAK_EASE_H
#define TARN_SOAK_EASE_H

#include "tarn/heap.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From here on the heap is as eased as one that has collected enough, until chunks move too often.
 * Returns the bytes that are on shelves now. */
uint64_t soak_ease(tarn_heap *heap);

#ifdef __cplusplus
}
#endif

#endif
