/* SPDX-License-Identifier: MIT
 *
 * Threads' caches: for each thread, heap and stream the free blocks that the next allocations get.
 * The owner works on its cache with plain loads and stores. Whoever else must reach into it (under
 * shortage, when a stream is retired, when the heap goes) holds heap->lock and revokes it first.
 * The owner outside of enter/leave may change its cache under heap->lock, too: no one can have
 * revoked it then.
 *
 * Locks: registry_lock guards what is added to the threads' tables of caches and what leaves them;
 * each thread looks into its own table without it. It is taken before heap->lock. */
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bits.h"
#include "internal.h"

enum {
  CACHE_LINE = 64,         /* bytes */
  CACHE_PROCESSORS = 8192, /* no Linux has more */
  CACHE_BUCKETS_LOG2 = 6,
  CACHE_BUCKETS = 1 << CACHE_BUCKETS_LOG2, /* of a thread's caches */
};

typedef cpu_set_t processors[CACHE_PROCESSORS / CPU_SETSIZE];

_Thread_local tarni_cache *tarni_hot_cache;

static tarni_lock registry_lock = TARNI_LOCK_INIT(TARNI_RANK_REGISTRY);
/* By heap and stream, made with the thread's first cache. An array in its place would take room
 * that dlopen has little of. */
static _Thread_local tarni_cache **thread_caches;
/* Owners that this thread is asking for memory: what calls it works on a cache meanwhile. */
static _Thread_local int n_asking;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool has_exit_key;
static atomic_bool has_membarrier;

/* ---- Revoking ---- */

/* Every thread of the process passes a full barrier. pre: a cache exists, so prepare() has run. */
static void barrier_for_all(void) {
  if (atomic_load_explicit(&has_membarrier, memory_order_relaxed)) {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) {
      return;
    }
    atomic_store_explicit(&has_membarrier, false, memory_order_relaxed); /* forbidden by now */
  }
  /* Without it: moving the caller over all processors makes each of them switch. Over those that it
   * is not to use, too, since other threads may; the ones that are not there refuse. */
  processors own = {0}, one;
  const long n_bytes =
      syscall(SYS_sched_getaffinity, 0, sizeof(own), own); /* of all there can be */
  const bool has_own = n_bytes > 0;
  const size_t n = has_own ? 8 * (size_t)n_bytes : CACHE_PROCESSORS;
  for (size_t cpu = 0; cpu < n; cpu++) {
    memset(one, 0, sizeof(one));
    CPU_SET_S(cpu, sizeof(one), one);
    (void)sched_setaffinity(0, sizeof(one), one);
  }
  if (has_own) {
    (void)sched_setaffinity(0, sizeof(own), own);
  }
}

static void cache_await(tarni_cache *cache) {
  while (atomic_load_explicit(&cache->is_busy, memory_order_acquire) != 0) {
    (void)sched_yield();
  }
}

/* ---- Moving blocks ---- */

/* How many blocks a stack is filled with: half of its capacity and one. */
static uint32_t stack_wants(const tarni_stack *stack) {
  const uint32_t full = (uint32_t)tarni_min(stack->capacity / 2u + 1, stack->capacity);
  return full - (uint32_t)tarni_min(full, stack->n);
}

static void binned_set(tarni_cache *cache, uint64_t bytes) {
  atomic_store_explicit(&cache->binned_bytes, bytes, memory_order_relaxed);
}

bool tarni_cache_refill(tarn_heap *heap, tarni_cache *cache, uint32_t class_index) {
  tarni_stack *stack = &cache->stacks[class_index];
  const uint32_t n =
      tarni_bin_pop(heap, &cache->bins[class_index], &stack->items[stack->n], stack_wants(stack));
  stack->n = (uint16_t)(stack->n + n);
  binned_set(cache, tarni_cache_binned(cache) - n * tarni_class_size(class_index));
  return n != 0;
}

void tarni_cache_fill_locked(tarn_heap *heap, tarni_cache *cache, uint32_t class_index) {
  tarni_stack *stack = &cache->stacks[class_index];
  (void)tarni_cache_refill(heap, cache, class_index);
  const uint32_t n = tarni_bin_take_locked(heap, cache->lane, class_index, &stack->items[stack->n],
                                           stack_wants(stack));
  stack->n = (uint16_t)(stack->n + n);
}

/* Moves the older half of a stack to a bin. Returns how many bytes that are. */
static uint64_t stack_halve(tarn_heap *heap, tarni_stack *stack, uint32_t class_index,
                            tarni_bin *to) {
  const uint16_t n_out = (uint16_t)(stack->n / 2u + (stack->n == 1));
  uint32_t *items = stack->items;
  tarni_bin_push(heap, to, items, n_out);
  for (uint16_t i = n_out; i < stack->n; i++) {
    items[i - n_out] = items[i];
  }
  stack->n = (uint16_t)(stack->n - n_out);
  return n_out * tarni_class_size(class_index);
}

bool tarni_cache_unload(tarn_heap *heap, tarni_cache *cache, uint32_t class_index) {
  if (atomic_load_explicit(&heap->lanes[cache->lane].n_caches, memory_order_relaxed) != 1) {
    return false;
  }
  binned_set(cache,
             tarni_cache_binned(cache) + stack_halve(heap, &cache->stacks[class_index], class_index,
                                                     &cache->bins[class_index]));
  return true;
}

void tarni_cache_spill_locked(tarn_heap *heap, tarni_cache *cache, uint32_t class_index) {
  heap->binned_bytes += stack_halve(heap, &cache->stacks[class_index], class_index,
                                    &heap->lanes[cache->lane].bins[class_index]);
}

void tarni_cache_release_locked(tarn_heap *heap, const tarni_cache *cache, tarni_index large) {
  tarni_order order = {0};
  (void)tarni_order_add(&order, cache->lane, tarni_ticket_locked(heap, cache->lane));
  tarni_slab_release_locked(heap, large, &order);
}

void tarni_cache_drop_large_locked(tarn_heap *heap, tarni_cache *cache) {
  if (cache->large.extent != 0) {
    tarni_cache_release_locked(heap, cache, cache->large.extent);
    cache->large.extent = 0;
  }
}

/* What is in its own bins goes to the lane's. */
static void bins_give_locked(tarn_heap *heap, tarni_cache *cache) {
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT && tarni_cache_binned(cache) != 0; i++) {
    tarni_bin_join_locked(heap, cache->lane, i, &cache->bins[i]);
  }
  binned_set(cache, 0);
}

void tarni_cache_empty_locked(tarn_heap *heap, tarni_cache *cache) {
  bins_give_locked(heap, cache);
  for (uint32_t class_index = 0; class_index < TARNI_CLASS_COUNT; class_index++) {
    tarni_stack *stack = &cache->stacks[class_index];
    while (stack->n != 0) {
      tarni_bin_put_locked(heap, cache->lane, class_index, stack->items[--stack->n]);
    }
  }
  tarni_cache_drop_large_locked(heap, cache);
  tarni_shelf_drop_locked(heap, cache);
}

uint32_t tarni_cache_collect_locked(tarn_heap *heap, tarni_cache *cache, bool is_thorough) {
  bins_give_locked(heap, cache);
  const tarni_sweep sweep = {.first = cache->lane,
                             .end = cache->lane + 1,
                             .stacks = cache->stacks,
                             .is_thorough = is_thorough};
  const uint32_t n_slabs = tarni_slab_collect_locked(heap, &sweep);
  tarni_rest_collect_locked(heap, n_slabs);
  return n_slabs;
}

uint64_t tarni_caches_binned_locked(const tarn_heap *heap) {
  uint64_t sum = 0;
  for (const tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    sum += tarni_cache_binned(cache);
  }
  return sum;
}

void tarni_caches_revoke_locked(tarn_heap *heap) {
  if (heap->caches == NULL) {
    return;
  }
  for (tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    atomic_store_explicit(&cache->is_revoked, 1, memory_order_relaxed);
  }
  barrier_for_all();
  for (tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    cache_await(cache);
  }
}

/* One whose stream is gone stays revoked: it would be taken for that of the handle that stands for
 * none. */
bool tarni_cache_is_closed_locked(const tarn_heap *heap, const tarni_cache *cache) {
  return tarni_is_watched(heap) || tarni_cache_is_dead(cache) || cache->is_beached;
}

void tarni_caches_allow_locked(tarn_heap *heap) {
  if (heap->caches == NULL) {
    return;
  }
  barrier_for_all();
  for (tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    atomic_store_explicit(&cache->is_revoked, tarni_cache_is_closed_locked(heap, cache),
                          memory_order_release);
  }
}

/* The cache is no more one of its lane's. */
static void lane_leave_locked(tarn_heap *heap, tarni_cache *cache) {
  if (cache->stream != TARNI_NO_STREAM) {
    (void)atomic_fetch_sub_explicit(&heap->lanes[cache->lane].n_caches, 1, memory_order_relaxed);
    cache->stream = TARNI_NO_STREAM;
  }
}

/* The cache is one of its lane's. What the only one before kept for itself is shared now. */
static void lane_join_locked(tarn_heap *heap, const tarni_cache *joining) {
  _Atomic uint32_t *n = &heap->lanes[joining->lane].n_caches;
  if (atomic_fetch_add_explicit(n, 1, memory_order_relaxed) != 1) {
    return;
  }
  tarni_caches_revoke_locked(heap);
  for (tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    if (cache->lane == joining->lane) {
      bins_give_locked(heap, cache);
    }
  }
  tarni_caches_allow_locked(heap);
}

void tarni_cache_empty_all_locked(tarn_heap *heap, tarni_index lane, bool is_final) {
  tarni_caches_revoke_locked(heap);
  for (tarni_cache *cache = heap->caches; cache != NULL; cache = cache->next_in_heap) {
    if (lane == 0 || cache->lane == lane) {
      tarni_cache_empty_locked(heap, cache);
      if (is_final) {
        lane_leave_locked(heap, cache);
      }
    }
  }
  tarni_caches_allow_locked(heap);
}

/* ---- Caches of a thread ---- */

static void cache_unlink_locked(tarn_heap *heap, const tarni_cache *cache) {
  tarni_cache **link = &heap->caches;
  while (*link != cache) {
    link = &(*link)->next_in_heap;
  }
  *link = cache->next_in_heap;
  heap->n_caches--;
}

static void cache_destroy(tarni_cache *cache) {
  free(cache->items);
  free(cache);
}

/* The heap forgets an empty cache, but not what it has counted. */
static void cache_forget_locked(tarn_heap *heap, tarni_cache *cache) {
  tarni_counts_add(&heap->gone, cache);
  lane_leave_locked(heap, cache);
  cache_unlink_locked(heap, cache);
}

static tarni_cache **bucket_of(const tarn_heap *heap, tarn_stream stream) {
  const uint64_t key = (uint64_t)(uintptr_t)stream + (uint64_t)(uintptr_t)heap;
  return &thread_caches[key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - CACHE_BUCKETS_LOG2)];
}

/* Gives back what a thread that ends has in a bucket: its blocks stay with their streams. */
static void bucket_end_locked(tarni_cache **bucket) {
  while (*bucket != NULL) {
    tarni_cache *cache = *bucket;
    *bucket = cache->next_in_thread;
    tarn_heap *heap = atomic_load_explicit(&cache->heap, memory_order_relaxed);
    if (heap != TARNI_NO_HEAP) {
      tarni_lock_acquire(&heap->lock);
      tarni_cache_empty_locked(heap, cache);
      cache_forget_locked(heap, cache);
      tarni_lock_release(&heap->lock);
    }
    cache_destroy(cache);
  }
}

static void thread_exit(void *unused) {
  (void)unused;
  tarni_hot_cache = NULL;
  tarni_lock_acquire(&registry_lock);
  for (uint32_t i = 0; i < CACHE_BUCKETS && thread_caches != NULL; i++) {
    bucket_end_locked(&thread_caches[i]);
  }
  tarni_lock_release(&registry_lock);
  free(thread_caches);
  thread_caches = NULL;
}

/* A child of fork has the thread that forked and none of the caches: they are the parent's. */
static void forget_parent(void) {
  tarni_hot_cache = NULL;
  thread_caches = NULL;
  tarni_lock_init(&registry_lock, TARNI_RANK_REGISTRY);
}

static void prepare(void) {
  has_exit_key = pthread_key_create(&exit_key, thread_exit) == 0;
  (void)pthread_atfork(NULL, NULL, forget_parent);
  atomic_store_explicit(&has_membarrier,
                        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) ==
                            0,
                        memory_order_relaxed);
}

/* How many free blocks of a class a cache keeps: fewer of larger ones. Of the smallest so many that
 * the half and one that it takes at once have the states of a cache line: else two threads would
 * write theirs into the same one. */
static uint16_t stack_capacity(uint32_t class_index) {
  const uint64_t block = tarni_class_size(class_index);
  if (block <= 4096) {
    return block == TARNI_ALIGNMENT ? 2 * (CACHE_LINE - 1) : 64;
  }
  return block <= TARNI_SHARED_BLOCK_MAX ? 16 : 4;
}

static tarni_cache *cache_make(tarn_heap *heap, tarn_stream stream, tarni_index lane) {
  tarni_cache *cache = calloc(1, sizeof(*cache));
  if (cache == NULL) {
    return NULL;
  }
  uint32_t n = 0;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    cache->stacks[i].capacity = stack_capacity(i);
    n += cache->stacks[i].capacity;
  }
  cache->items = calloc(n, sizeof(*cache->items));
  if (cache->items == NULL) {
    free(cache);
    return NULL;
  }
  uint32_t *items = cache->items;
  for (uint32_t i = 0; i < TARNI_CLASS_COUNT; i++) {
    cache->stacks[i].items = items;
    items += cache->stacks[i].capacity;
  }
  atomic_store_explicit(&cache->heap, heap, memory_order_relaxed);
  cache->stream = stream;
  cache->lane = lane;
  return cache;
}

/* Whether the cache's heap is gone, or its stream: then the heap forgets it. */
static bool cache_is_done(tarni_cache *cache) {
  tarn_heap *heap = atomic_load_explicit(&cache->heap, memory_order_relaxed);
  if (heap == TARNI_NO_HEAP) {
    return true;
  }
  tarni_lock_acquire(&heap->lock);
  const bool is_done = cache->stream == TARNI_NO_STREAM;
  if (is_done) {
    cache_forget_locked(heap, cache);
  }
  tarni_lock_release(&heap->lock);
  return is_done;
}

/* Drops caches of this thread whose heap or stream is gone. */
static void bucket_sweep_locked(tarni_cache **link) {
  while (*link != NULL) {
    tarni_cache *cache = *link;
    if (!cache_is_done(cache)) {
      link = &cache->next_in_thread;
      continue;
    }
    *link = cache->next_in_thread;
    cache_destroy(cache);
  }
}

tarni_cache *tarni_cache_known(tarn_heap *heap, tarn_stream stream) {
  tarni_cache *const bucket = thread_caches != NULL ? *bucket_of(heap, stream) : NULL;
  for (tarni_cache *cache = bucket; cache != NULL; cache = cache->next_in_thread) {
    if (tarni_cache_is_for(cache, heap, stream)) {
      return cache;
    }
  }
  tarni_cache *found = NULL;
  tarni_lock_acquire(&heap->lock); /* somebody may have it, to retire the stream or to watch */
  for (tarni_cache *cache = bucket; cache != NULL; cache = cache->next_in_thread) {
    if (atomic_load_explicit(&cache->heap, memory_order_relaxed) == heap &&
        cache->stream == stream && !tarni_cache_is_dead(cache)) {
      found = cache;
      break;
    }
  }
  tarni_lock_release(&heap->lock);
  return found;
}

/* Whether the handle still means the stream that the cache is for. If not, that one is gone and was
 * not retired: the cache is given up, and what waits for the stream is quarantined. */
static tarn_status cache_verify(tarn_heap *heap, tarn_stream stream, tarni_cache **found) {
  tarni_cache *cache = *found;
  uint64_t id;
  TARN_TRY(tarni_port_stream_id(heap->port, stream, &id));
  tarni_lock_acquire(&heap->lock);
  tarni_lane *lane = &heap->lanes[cache->lane];
  const bool is_dead = tarni_cache_is_dead(cache); /* retired by another thread meanwhile */
  if (!is_dead && lane->stream_id != id) {
    tarni_cache_empty_locked(heap, cache);
    lane_leave_locked(heap, cache);
    lane->is_lost = lane->is_lost || !lane->is_retired;
  }
  if (is_dead || lane->stream_id != id) {
    tarni_hot_cache = *found = NULL;
  }
  tarni_lock_release(&heap->lock);
  return TARN_OK;
}

/* The thread has a table, and somebody who gives back what is in it when it ends. */
static bool thread_open(void) {
  if (thread_caches == NULL) {
    thread_caches = calloc(CACHE_BUCKETS, sizeof(tarni_cache *));
  }
  return thread_caches != NULL &&
         (!has_exit_key || pthread_setspecific(exit_key, thread_caches) == 0);
}

/* The cache is its thread's and its heap's. False: the stream was retired since its lane was found.
 */
static bool cache_enlist(tarn_heap *heap, tarni_cache *cache) {
  tarni_cache **bucket = bucket_of(heap, cache->stream);
  tarni_lock_acquire(&heap->lock);
  const bool is_its = tarni_lane_is_locked(heap, cache->lane, cache->stream);
  if (is_its) {
    cache->next_in_thread = *bucket;
    *bucket = cache;
    lane_join_locked(heap, cache);
    atomic_store_explicit(&cache->is_revoked, tarni_is_watched(heap), memory_order_relaxed);
    cache->next_in_heap = heap->caches;
    heap->caches = cache;
    heap->n_caches++;
  }
  tarni_lock_release(&heap->lock);
  return is_its;
}

/* Makes this thread's cache for the stream. post: TARN_OK and *made, which is NULL where the stream
 * was retired meanwhile. */
static tarn_status cache_add(tarn_heap *heap, tarn_stream stream, tarni_cache **made) {
  tarni_index lane;
  TARN_TRY(tarni_lane_find(heap, stream, &lane));
  (void)pthread_once(&once, prepare);
  tarni_cache *cache = thread_open() ? cache_make(heap, stream, lane) : NULL;
  if (cache == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", NULL, "Free some host memory.",
                      "no host memory for a thread's cache (%zu bytes)", sizeof(*cache));
  }
  tarni_lock_acquire(&registry_lock);
  tarni_hot_cache = NULL;
  for (uint32_t i = 0; i < CACHE_BUCKETS && n_asking == 0; i++) {
    bucket_sweep_locked(&thread_caches[i]);
  }
  *made = cache_enlist(heap, cache) ? cache : NULL;
  tarni_lock_release(&registry_lock);
  if (*made == NULL) {
    cache_destroy(cache);
  }
  return TARN_OK;
}

tarn_status tarni_cache_look_up(tarn_heap *heap, tarn_stream stream, tarni_cache **found) {
  if (stream == TARNI_NO_STREAM) {
    return tarni_fail(TARN_INVALID, "tarn_alloc", NULL, "Pass a stream of the heap's device.",
                      "the handle 0x%llx is no stream's", (unsigned long long)(uintptr_t)stream);
  }
  tarni_hot_cache = *found = tarni_cache_known(heap, stream);
  if (*found != NULL && heap->care.is_verifying_streams) {
    TARN_TRY(cache_verify(heap, stream, found));
  }
  while (*found == NULL) {
    TARN_TRY(cache_add(heap, stream, found));
  }
  tarni_hot_cache = *found;
  return TARN_OK;
}

void tarni_caches_keep(bool is_asking) {
  n_asking += is_asking ? 1 : -1;
}

/* The heap goes: its caches are nobody's until their threads drop them. */
void tarni_caches_close(tarn_heap *heap) {
  tarni_lock_acquire(&registry_lock);
  tarni_lock_acquire(&heap->lock);
  while (heap->caches != NULL) {
    tarni_cache *cache = heap->caches;
    heap->caches = cache->next_in_heap;
    tarni_counts_add(&heap->gone, cache);
    atomic_store_explicit(&cache->heap, TARNI_NO_HEAP, memory_order_relaxed);
  }
  tarni_lock_release(&heap->lock);
  tarni_lock_release(&registry_lock);
}
