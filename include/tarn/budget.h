/* SPDX-License-Identifier: MIT
 *
 * Budgets: memory for a piece of work, promised before the work begins. A budget either holds all
 * that was asked for, or tells what is missing and holds nothing; no other thread can take what it
 * holds. What is drawn from it cannot fail for lack of memory. */
#ifndef TARN_BUDGET_H
#define TARN_BUDGET_H

#include "tarn/pinned.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_budget tarn_budget;

typedef struct tarn_budget_info {
  size_t size;
  uint64_t required_bytes;  /* of the whole budget, as the heap rounds sizes, guards included */
  uint64_t available_bytes; /* of a budget that failed: what could have been had. Memory that the
                               heap keeps counts, and so does what the device has */
  uint64_t limit_bytes;     /* of the heap or pool */
  uint64_t held_bytes;      /* not drawn yet */
  uint64_t held_blocks;
} tarn_budget_info;

/* Promises a block for each of the `n` sizes, in the order of the stream. A size of 0 needs
 * nothing. On failure nothing is held, *budget is NULL, and *info (NULL: not asked for) has the
 * numbers: TARN_DEVICE_MEMORY or TARN_LIMIT when there is not enough, TARN_OVERFLOWED when the sum
 * is no number. What a budget holds counts as live. Budgets of one heap are made one after the
 * other, so that of two that fit only singly one is made; not from inside of a heap's
 * on_shortage. The default stream of a thread is that of the thread that makes the
 * budget; where another one destroys it the legacy default stream stands for it, which follows it.
 */
TARN_API tarn_status tarn_budget_create(tarn_heap *heap, const uint64_t *bytes, size_t n,
                                        tarn_stream stream, tarn_budget_info *info,
                                        tarn_budget **budget);

/* The same of pinned memory; its shortage is TARN_HOST_MEMORY. */
TARN_API tarn_status tarn_budget_create_pinned(tarn_pinned *pool, const uint64_t *bytes, size_t n,
                                               tarn_budget_info *info, tarn_budget **budget);

/* Draws a block of at least `bytes`: the smallest one that is held. It is the caller's then, like
 * any other block of the heap, to be freed there, and in the order of the budget's stream. Zero
 * bytes: 0, success. TARN_LIMIT when none of that size is left. */
TARN_API tarn_status tarn_budget_alloc(tarn_budget *budget, uint64_t bytes, tarn_ptr *block);

TARN_API tarn_status tarn_budget_get_info(tarn_budget *budget, tarn_budget_info *info);

/* Gives back what was not drawn. NULL is ignored. When it fails the budget is still there, with
 * what could not be given back, to be destroyed again; on a lost device it goes, with TARN_OK, and
 * its blocks stay the heap's to bury. */
TARN_API tarn_status tarn_budget_destroy(tarn_budget *budget);

#ifdef __cplusplus
}
#endif

#endif
