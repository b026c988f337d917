/* SPDX-License-Identifier: MIT
 *
 * Threads' caches (cache.c): how an owner goes in and out, which is a part of every hit, and what
 * others may ask of them. */
#ifndef TARNI_CACHE_H
#define TARNI_CACHE_H

#include "base/bits.h"
#include "base/error.h"
#include "types.h"

/* The one that this thread used last. Initial-exec: one load, also in the shared library. */
extern _Thread_local tarni_cache *tarni_hot_cache __attribute__((tls_model("initial-exec")));

/* This thread's cache for the stream, made if need be; it is the hot one then. */
tarn_status tarni_cache_look_up(tarn_heap *heap, tarn_stream stream, tarni_cache **found);
/* The same where there is one; else NULL. Asks nobody what the handle means. */
tarni_cache *tarni_cache_known(tarn_heap *heap, tarn_stream stream);
/* Around calls of the program's own functions from within an allocation: what they do leaves alone
 * the records of this thread's caches, one of which the allocation is at work on. */
void tarni_caches_keep(bool is_asking);
/* Whether the cache's stream was retired: nothing may be put there then, and its lane be another's.
 * pre: the cache is entered, or the lock is held. */
static inline bool tarni_cache_is_dead(const tarni_cache *cache) {
  return cache->stream == TARNI_NO_STREAM;
}
/* Empties a cache into its lane. pre: the lock is held, and the caller owns it or has revoked it.
 */
void tarni_cache_empty_locked(tarn_heap *heap, tarni_cache *cache);
/* The same with the large block that it keeps, alone. */
void tarni_cache_drop_large_locked(tarn_heap *heap, tarni_cache *cache);
/* Gives a large block back in the order of the cache's lane. */
void tarni_cache_release_locked(tarn_heap *heap, const tarni_cache *cache, tarni_index large);
/* Moves up to half a stack's capacity from the cache's own bin to the stack, and the older half of
 * a stack there, unless others share the lane: then it is false, and so where nothing was moved.
 * pre: the cache is entered. */
bool tarni_cache_refill(tarn_heap *heap, tarni_cache *cache, uint32_t class_index);
bool tarni_cache_unload(tarn_heap *heap, tarni_cache *cache, uint32_t class_index);
/* Bytes in the cache's own bins. */
static inline uint64_t tarni_cache_binned(const tarni_cache *cache) {
  return atomic_load_explicit(&cache->binned_bytes, memory_order_relaxed);
}
/* The same of all caches, about. */
uint64_t tarni_caches_binned_locked(const tarn_heap *heap);
/* The same as refilling, from the lane's bin, too. */
void tarni_cache_fill_locked(tarn_heap *heap, tarni_cache *cache, uint32_t class_index);
/* Moves the older half of a stack to the lane's bin. */
void tarni_cache_spill_locked(tarn_heap *heap, tarni_cache *cache, uint32_t class_index);
/* Gives slabs back whose free blocks are in the caller's cache and its lane's bins; unless it is to
 * be thorough, as far as a look is worth it. Returns how many. */
uint32_t tarni_cache_collect_locked(tarn_heap *heap, tarni_cache *cache, bool is_thorough);
/* Empties the caches of all threads: of one lane, or of all for 0. */
void tarni_cache_empty_all_locked(tarn_heap *heap, tarni_index lane, bool is_final);
/* Keeps all owners out of their caches, from here until they are allowed in again. */
void tarni_caches_revoke_locked(tarn_heap *heap);
void tarni_caches_allow_locked(tarn_heap *heap);
/* Whether an owner stays out of its cache while nobody else is there. */
bool tarni_cache_is_closed_locked(const tarn_heap *heap, const tarni_cache *cache);
void tarni_caches_close(tarn_heap *heap);

/* An owner that goes in needs no barrier of its own: who allows it to has made every thread pass
 * one. The thread sanitizer does not know of such barriers. */
#if defined(__clang__)
#define TARNI_HAS_TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define TARNI_HAS_TSAN 1
#else
#define TARNI_HAS_TSAN 0
#endif
#define TARNI_ENTERING (TARNI_HAS_TSAN ? memory_order_acquire : memory_order_relaxed)

/* The owner goes in. False: somebody else has the cache now; take heap->lock instead.
 * Its partners are in cache.c. Revoking sets is_revoked, makes every thread pass a barrier
 * (membarrier), then waits for is_busy to be 0: so either the owner sees is_revoked here, or the
 * other one sees is_busy. Allowing makes every thread pass a barrier, then clears is_revoked: so an
 * owner that sees that looks at its cache after the barrier, and finds what the other one left. */
static inline bool tarni_cache_enter(tarni_cache *cache) {
  atomic_store_explicit(&cache->is_busy, 1, memory_order_relaxed);
  atomic_signal_fence(memory_order_seq_cst);
  if (TARNI_LIKELY(atomic_load_explicit(&cache->is_revoked, TARNI_ENTERING) == 0)) {
    atomic_signal_fence(memory_order_seq_cst);
    return true;
  }
  atomic_store_explicit(&cache->is_busy, 0, memory_order_release);
  return false;
}

static inline void tarni_cache_leave(tarni_cache *cache) {
  atomic_store_explicit(&cache->is_busy, 0, memory_order_release);
}

/* Whether a cache of this thread is the one for that heap and stream. False also where somebody
 * else has it now. */
static inline bool tarni_cache_is_for(tarni_cache *cache, tarn_heap *heap, tarn_stream stream) {
  if (atomic_load_explicit(&cache->heap, memory_order_relaxed) != heap ||
      !tarni_cache_enter(cache)) {
    return false;
  }
  const bool is_it = cache->stream == stream && !tarni_cache_is_dead(cache);
  tarni_cache_leave(cache);
  return is_it;
}

static inline tarn_status tarni_cache_find(tarn_heap *heap, tarn_stream stream,
                                           tarni_cache **found) {
  tarni_cache *hot = tarni_hot_cache; /* the one that this thread used last */
  if (TARNI_LIKELY(hot != NULL && tarni_cache_is_for(hot, heap, stream))) {
    *found = hot;
    return TARN_OK;
  }
  return tarni_cache_look_up(heap, stream, found);
}

#endif
