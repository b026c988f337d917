/* SPDX-License-Identifier: MIT
 *
 * Heaps whose blocks are the driver's own allocations: what their files share, and what the rest of
 * the heap asks of them. A name that ends in _locked or _grow needs what internal.h says. */
#ifndef TARNI_BUCKET_H
#define TARNI_BUCKET_H

#include "internal.h"

/* ---- grant.c: the driver's own allocations ---- */
enum { TARNI_MAX_GRANTS = 1 << 22 };

void tarni_grant_push(tarni_buckets *buckets, tarni_grant_list *list, tarni_index index, int which);
void tarni_grant_remove(tarni_buckets *buckets, tarni_grant_list *list, tarni_index index,
                        int which);
/* The grant, in any state, that holds the address; the last one that has a byte of the range, which
 * is not empty; 0: none. */
tarni_index tarni_grant_find_locked(const tarn_heap *heap, tarn_ptr address);
tarni_index tarni_grant_overlapping_locked(const tarn_heap *heap, tarn_ptr first, uint64_t bytes);
/* Asks the driver for one; BUSY, in no bucket. pre: planned_bytes has it; afterwards it has not. */
tarn_status tarni_grant_make_grow(tarn_heap *heap, uint64_t bytes, tarni_index lane,
                                  tarni_index *made);
/* pre: the grant is in no list. It goes back when its order lets it. */
void tarni_grant_doom_locked(tarn_heap *heap, tarni_index index);
/* Takes a doomed grant off its list: BUSY. Needs heap->grow, too. */
void tarni_grant_spare_locked(tarn_heap *heap, tarni_index index);
/* Whether it can be given back with no wait. */
bool tarni_grant_may_go_locked(const tarn_heap *heap, const tarni_grant *grant);
/* Gives back the doomed that may go; the same after fences were recorded and asked; and after all
 * of these were waited for. The first error is told, the rest is done all the same. */
tarn_status tarni_grants_reap_grow(tarn_heap *heap);
tarn_status tarni_grants_try_grow(tarn_heap *heap);
tarn_status tarni_grants_await_grow(tarn_heap *heap);
/* Whether any wait to be given back. */
bool tarni_grants_are_doomed(tarn_heap *heap);
/* Whether a doomed grant waits for the lane. */
bool tarni_doomed_wait_locked(const tarn_heap *heap, tarni_index lane);
/* Has the driver's own pool, where there is one, hold at most so many idle bytes. */
tarn_status tarni_grants_trim_grow(tarn_heap *heap, uint64_t keep);
/* Gives everything back. pre: no work uses it. May be called again where it fails. */
tarn_status tarni_grants_give_back(tarn_heap *heap);

/* ---- bucket.c: heaps whose blocks are grants ---- */
tarn_status tarni_buckets_open(tarn_heap *heap, const tarni_settings *settings);
void tarni_buckets_close(tarn_heap *heap);
/* What the driver is asked for; false: no number holds it. */
bool tarni_bucket_size(const tarn_heap *heap, uint64_t bytes, uint64_t alignment, uint64_t *size);
/* How many freed blocks of so many bytes are kept. */
uint64_t tarni_bucket_slots(const tarn_heap *heap, uint64_t bytes);
tarn_status tarni_bucket_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                               tarn_stream stream, tarn_ptr *block);
tarn_status tarni_bucket_free(tarn_heap *heap, tarn_ptr block, tarn_stream stream);
/* Takes a live block without uses out of use and puts it before `first`, linked as DEFERRED ones
 * are. Its bytes; 0: no live block begins there. */
uint64_t tarni_bucket_defer_locked(tarn_heap *heap, tarn_ptr block, tarni_index *first);
/* A new grant joins the bucket of its size; one that is gone leaves it. */
void tarni_bucket_join_locked(tarn_heap *heap, tarni_index grant);
void tarni_bucket_leave_locked(tarn_heap *heap, tarni_index grant);
/* Keeps a grant that is nobody's, or dooms it or older ones where the limits say so. */
void tarni_bucket_keep_locked(tarn_heap *heap, tarni_index index, const tarni_order *order);
/* Dooms kept grants, oldest first, until so many bytes are; how many it were. */
uint64_t tarni_bucket_evict_locked(tarn_heap *heap, uint64_t bytes, bool may_wait);
/* The newest kept grant of the size that the lane may use now, or after a wait; BUSY. 0: none. */
tarni_index tarni_bucket_take_locked(tarn_heap *heap, uint64_t size, tarni_index lane,
                                     bool may_wait);
/* The same among the doomed; needs heap->grow, too. */
tarni_index tarni_bucket_spare_locked(tarn_heap *heap, uint64_t size, tarni_index lane);
/* A BUSY grant becomes a live block. */
tarn_ptr tarni_bucket_hand_out_locked(tarn_heap *heap, tarni_index index, uint64_t alignment);
/* Whether so many bytes more pass the limit on live ones. */
bool tarni_bucket_is_over_locked(const tarn_heap *heap, uint64_t size);
/* For use.c: a live block with uses is freed (its bytes; 0: it is none), and later everybody's. */
uint64_t tarni_bucket_pend_locked(tarn_heap *heap, tarn_ptr block);
void tarni_bucket_finish_locked(tarn_heap *heap, tarn_ptr block, const tarni_order *order);
bool tarni_bucket_find_locked(const tarn_heap *heap, tarn_ptr pointer, tarni_block *block);
/* Whether a request of so many bytes can have got this block. */
bool tarni_bucket_fits(const tarn_heap *heap, const tarni_block *block, uint64_t bytes);
/* Bytes that are out of use: completion cannot be proven, or the driver refuses them. */
uint64_t tarni_bucket_lost_locked(const tarn_heap *heap);

/* ---- bucket_shortage.c: when no block of the size is at hand ---- */
typedef struct tarni_bucket_need {
  uint64_t size, alignment;
  tarn_stream stream;
  tarni_index lane;
} tarni_bucket_need;

/* TARNI_RETIRED: the lane is not the stream's any more. */
tarn_status tarni_bucket_obtain(tarn_heap *heap, const tarni_bucket_need *need, tarn_ptr *block);
/* Gives kept blocks back until at most `keep` bytes are held; the same without any wait. */
tarn_status tarni_bucket_trim_grow(tarn_heap *heap, uint64_t keep);
tarn_status tarni_bucket_trim_ready_grow(tarn_heap *heap, uint64_t keep);

/* ---- bucket_audit.c ---- */
tarn_status tarni_bucket_check_locked(tarn_heap *heap);

#endif
