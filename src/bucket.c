/* SPDX-License-Identifier: MIT
 *
 * Buckets: heaps whose blocks are the driver's own allocations (grants). All backings but chunks,
 * and all roundings but classes, are served here: a freed block is kept for the next request of its
 * size, newest first, and what is over a limit is doomed, oldest first. A bucket exists as long as
 * there is a grant of its size.
 *
 * Reuse follows the same order as everywhere: at once on the stream that freed the block, on others
 * when that is complete or behind a wait. Every look-up is by the tree of addresses under
 * heap->lock, so wrong use is always found, also when two threads free one block at once. Nothing
 * here assumes that the device could not be the host. How more memory is found is
 * bucket_shortage.c's business. */
#include <stdlib.h>

#include "base/bits.h"
#include "bucket.h"

enum { BUCKET_HASH_LOG2 = 16, BUCKET_MAX_SLOTS = 1024 };

/* ---- Sizes ---- */

static bool round_up_to_power(uint64_t bytes, uint64_t *rounded) {
  if (bytes > (uint64_t)1 << 63) {
    return false;
  }
  *rounded = bytes <= 1 ? 1 : (uint64_t)1 << (tarni_log2(bytes - 1) + 1);
  return true;
}

bool tarni_bucket_size(const tarn_heap *heap, uint64_t bytes, uint64_t alignment, uint64_t *size) {
  const tarni_settings *settings = &heap->buckets->settings;
  const uint64_t slack = alignment > TARNI_ALIGNMENT ? alignment - TARNI_ALIGNMENT : 0;
  uint64_t rounded;
  if (!tarni_add(bytes, settings->backing == TARN_BACKING_VMM ? 0 : slack, &rounded)) {
    return false;
  }
  if (settings->rounding == TARN_ROUNDING_POWER_OF_TWO && !round_up_to_power(rounded, &rounded)) {
    return false;
  }
  if (settings->rounding == TARN_ROUNDING_CLASSES) {
    if (rounded <= TARNI_SMALL_MAX) {
      rounded = tarni_class_size(tarni_class_of(rounded));
    } else if (!tarni_align_up_checked(rounded, TARNI_GRANULE, &rounded)) {
      return false;
    }
  }
  *size = rounded;
  return settings->backing != TARN_BACKING_VMM || tarni_align_up_checked(rounded, heap->unit, size);
}

static tarni_index *size_head(const tarni_buckets *buckets, uint64_t bytes) {
  return &buckets->heads[bytes * 0x9e3779b97f4a7c15u >> (64 - BUCKET_HASH_LOG2)];
}

static tarni_index size_find_locked(const tarni_buckets *buckets, uint64_t bytes) {
  tarni_index index = *size_head(buckets, bytes);
  while (index != 0 && buckets->sizes[index].bytes != bytes) {
    index = buckets->sizes[index].next;
  }
  return index;
}

/* There is always a record: there are as many as grants. */
static tarni_index size_obtain_locked(tarni_buckets *buckets, uint64_t bytes) {
  tarni_index index = size_find_locked(buckets, bytes);
  if (index != 0) {
    return index;
  }
  index = buckets->free_size;
  if (index != 0) {
    buckets->free_size = buckets->sizes[index].next;
  } else {
    index = buckets->n_sizes++;
  }
  tarni_index *head = size_head(buckets, bytes);
  buckets->sizes[index] = (tarni_bucket){.bytes = bytes, .next = *head};
  *head = index;
  return index;
}

void tarni_bucket_leave_locked(tarn_heap *heap, tarni_index grant) {
  tarni_buckets *buckets = heap->buckets;
  const tarni_index index = buckets->grants[grant].bucket;
  if (index == 0 || --buckets->sizes[index].n_grants != 0) {
    return;
  }
  tarni_index *link = size_head(buckets, buckets->sizes[index].bytes);
  while (*link != index) {
    link = &buckets->sizes[*link].next;
  }
  *link = buckets->sizes[index].next;
  buckets->sizes[index] = (tarni_bucket){.next = buckets->free_size};
  buckets->free_size = index;
}

void tarni_bucket_join_locked(tarn_heap *heap, tarni_index grant) {
  tarni_buckets *buckets = heap->buckets;
  const tarni_index index = size_obtain_locked(buckets, buckets->grants[grant].bytes);
  buckets->grants[grant].bucket = index;
  buckets->sizes[index].n_grants++;
}

/* ---- What is kept ---- */

uint64_t tarni_bucket_slots(const tarn_heap *heap, uint64_t bytes) {
  const tarni_settings *settings = &heap->buckets->settings;
  if (!settings->has_slots_by_limit) {
    return settings->cached_slots;
  }
  return tarni_max(1, tarni_min(settings->cached_limit / bytes, BUCKET_MAX_SLOTS));
}

/* Takes a kept grant off the lists: BUSY. */
static void uncache_locked(tarn_heap *heap, tarni_index index) {
  tarni_buckets *buckets = heap->buckets;
  tarni_grant *grant = &buckets->grants[index];
  tarn_assert(grant->state == TARNI_GRANT_CACHED);
  tarni_vain *vain = &buckets->sizes[grant->bucket].vain;
  vain->newest = vain->newest == index ? grant->older[TARNI_BY_SIZE] : vain->newest;
  tarni_grant_remove(buckets, &buckets->sizes[grant->bucket].cached, index, TARNI_BY_SIZE);
  tarni_grant_remove(buckets, &buckets->cached, index, TARNI_BY_AGE);
  buckets->sizes[grant->bucket].n_cached--;
  buckets->cached_bytes -= grant->bytes;
  grant->state = TARNI_GRANT_BUSY;
}

static void cache_locked(tarn_heap *heap, tarni_index index) {
  tarni_buckets *buckets = heap->buckets;
  tarni_grant *grant = &buckets->grants[index];
  grant->state = TARNI_GRANT_CACHED;
  tarni_grant_push(buckets, &buckets->sizes[grant->bucket].cached, index, TARNI_BY_SIZE);
  tarni_grant_push(buckets, &buckets->cached, index, TARNI_BY_AGE);
  buckets->sizes[grant->bucket].n_cached++;
  buckets->cached_bytes += grant->bytes;
}

static void evict_locked(tarn_heap *heap, tarni_index index) {
  uncache_locked(heap, index);
  tarni_grant_doom_locked(heap, index);
}

void tarni_bucket_keep_locked(tarn_heap *heap, tarni_index index, const tarni_order *order) {
  tarni_buckets *buckets = heap->buckets;
  tarni_grant *grant = &buckets->grants[index];
  const tarni_bucket *bucket = &buckets->sizes[grant->bucket];
  const uint64_t slots = tarni_bucket_slots(heap, grant->bytes);
  grant->order = *order;
  if (grant->bytes > buckets->settings.cached_limit || slots == 0) {
    tarni_grant_doom_locked(heap, index); /* by itself: nothing else has to make room for it */
    return;
  }
  cache_locked(heap, index);
  while (bucket->n_cached > slots) {
    evict_locked(heap, bucket->cached.oldest);
  }
  while (buckets->cached_bytes > buckets->settings.cached_limit) {
    evict_locked(heap, buckets->cached.oldest);
  }
}

uint64_t tarni_bucket_evict_locked(tarn_heap *heap, uint64_t bytes, bool may_wait) {
  tarni_buckets *buckets = heap->buckets;
  uint64_t evicted = 0;
  for (tarni_index index = buckets->cached.oldest; index != 0 && evicted < bytes;) {
    const tarni_grant *grant = &buckets->grants[index];
    const tarni_index newer = grant->newer[TARNI_BY_AGE];
    if (may_wait || tarni_grant_may_go_locked(heap, grant)) {
      evicted += grant->bytes;
      evict_locked(heap, index);
    }
    index = newer;
  }
  return evicted;
}

/* ---- Taking ---- */

static bool is_usable_by(const tarn_heap *heap, const tarni_grant *grant, tarni_index lane,
                         bool may_wait) {
  return may_wait ? !tarni_order_is_out_locked(heap, &grant->order)
                  : tarni_order_is_met_locked(heap, &grant->order, lane);
}

/* The newest grant that the lane has looked at in vain: neither it nor any that is older is of use
 * to it as long as nothing more is known to be complete. 0: there is none. */
static tarni_index seen_in_vain(const tarn_heap *heap, const tarni_vain *vain, tarni_index lane) {
  const bool is_so =
      vain->lane == lane && vain->n_news == heap->n_news && vain->n_waits == heap->waits;
  return is_so ? vain->newest : 0;
}

/* A stream that allocates what another one frees comes by all that is kept: once, and not each time
 * anew. */
tarni_index tarni_bucket_take_locked(tarn_heap *heap, uint64_t size, tarni_index lane,
                                     bool may_wait) {
  tarni_buckets *buckets = heap->buckets;
  tarni_bucket *bucket = &buckets->sizes[size_find_locked(buckets, size)]; /* 0 is an empty one */
  const tarni_index seen = may_wait ? 0 : seen_in_vain(heap, &bucket->vain, lane);
  for (tarni_index at = bucket->cached.newest; at != 0 && at != seen;
       at = buckets->grants[at].older[TARNI_BY_SIZE]) {
    if (is_usable_by(heap, &buckets->grants[at], lane, may_wait)) {
      uncache_locked(heap, at);
      return at;
    }
  }
  if (!may_wait && bucket->cached.newest != 0) {
    bucket->vain = (tarni_vain){.newest = bucket->cached.newest,
                                .lane = lane,
                                .n_news = heap->n_news,
                                .n_waits = heap->waits};
  }
  return 0;
}

tarni_index tarni_bucket_spare_locked(tarn_heap *heap, uint64_t size, tarni_index lane) {
  tarni_buckets *buckets = heap->buckets;
  const tarni_index bucket = size_find_locked(buckets, size);
  for (tarni_index at = bucket != 0 ? buckets->sizes[bucket].doomed.newest : 0; at != 0;
       at = buckets->grants[at].older[TARNI_BY_SIZE]) {
    const tarni_grant *grant = &buckets->grants[at];
    if (!grant->is_refused && is_usable_by(heap, grant, lane, false)) {
      tarni_grant_spare_locked(heap, at);
      return at;
    }
  }
  return 0;
}

tarn_ptr tarni_bucket_hand_out_locked(tarn_heap *heap, tarni_index index, uint64_t alignment) {
  tarni_grant *grant = &heap->buckets->grants[index];
  tarn_assert(grant->state == TARNI_GRANT_BUSY);
  grant->state = TARNI_GRANT_LIVE;
  grant->order = (tarni_order){0};
  grant->alignment = alignment;
  grant->address = tarni_align_up(grant->base, tarni_max(alignment, 1));
  tarni_grant_counts(heap, grant->bytes)->allocs++;
  tarni_grant_counts(heap, grant->bytes)->alloc_bytes += grant->bytes;
  tarni_scopes_note_locked(heap);
  return grant->address;
}

bool tarni_bucket_is_over_locked(const tarn_heap *heap, uint64_t size) {
  const uint64_t limit = heap->buckets->settings.live_limit;
  if (limit == UINT64_MAX) {
    return false;
  }
  const uint64_t live = tarni_live_locked(heap) + heap->buckets->promised_bytes;
  return live > limit || size > limit - live;
}

/* The lane of a stream that the heap has met before, found by its handle: no driver call. Whether
 * the handle still means the same stream is not asked here either (tarn_stream_retire). */
static tarni_index lane_by_handle_locked(const tarn_heap *heap, tarn_stream stream) {
  for (tarni_index i = 1; i < heap->n_lanes && stream != TARNI_STREAM_PER_THREAD; i++) {
    if (tarni_lane_is_locked(heap, i, stream) && !heap->lanes[i].is_lost) {
      return i;
    }
  }
  return 0;
}

static tarn_status lane_for(tarn_heap *heap, tarn_stream stream, tarni_index *lane) {
  tarni_lock_acquire(&heap->lock);
  *lane = heap->care.is_verifying_streams ? 0 : lane_by_handle_locked(heap, stream);
  tarni_lock_release(&heap->lock);
  return *lane != 0 ? TARN_OK : tarni_lane_find(heap, stream, lane);
}

static tarn_status bucket_size_fail(tarn_heap *heap, uint64_t bytes) {
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = bytes,
                             .available_bytes = tarni_heap_limit(heap)};
  return tarni_fail(TARN_DEVICE_MEMORY, "tarn_alloc", &facts, "Ask for less.",
                    "%llu bytes cannot be rounded up: there is no such memory",
                    (unsigned long long)bytes);
}

/* A block that is there for the stream. */
static bool bucket_take(tarn_heap *heap, const tarni_bucket_need *need, tarn_ptr *block) {
  tarni_lock_acquire(&heap->lock);
  const bool may = tarni_lane_is_locked(heap, need->lane, need->stream) &&
                   !tarni_bucket_is_over_locked(heap, need->size);
  const tarni_index index = may ? tarni_bucket_take_locked(heap, need->size, need->lane, false) : 0;
  if (index != 0) {
    *block = tarni_bucket_hand_out_locked(heap, index, need->alignment);
  }
  tarni_lock_release(&heap->lock);
  return index != 0;
}

tarn_status tarni_bucket_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                               tarn_stream stream, tarn_ptr *block) {
  uint64_t size;
  if (!tarni_bucket_size(heap, bytes, alignment, &size)) {
    return bucket_size_fail(heap, bytes);
  }
  tarn_status status;
  do {
    tarni_bucket_need need = {.size = size, .alignment = alignment, .stream = stream};
    TARN_TRY(lane_for(heap, stream, &need.lane));
    status = bucket_take(heap, &need, block) ? TARN_OK : tarni_bucket_obtain(heap, &need, block);
  } while (status == TARNI_RETIRED);
  return status;
}

/* ---- Giving ---- */

static tarni_grant *live_at_locked(const tarn_heap *heap, tarn_ptr block, tarni_index *index) {
  *index = tarni_grant_find_locked(heap, block);
  tarni_grant *grant = &heap->buckets->grants[*index];
  return *index != 0 && grant->state == TARNI_GRANT_LIVE && grant->address == block ? grant : NULL;
}

static void count_free_locked(tarn_heap *heap, const tarni_grant *grant) {
  tarni_grant_counts(heap, grant->bytes)->frees++;
  tarni_grant_counts(heap, grant->bytes)->free_bytes += grant->bytes;
}

/* The lane that a block is freed in. Where there is no room for one the stream is waited for: then
 * the block is everybody's. */
static tarn_status lane_of_free(tarn_heap *heap, tarn_stream stream, tarni_index *lane) {
  const tarn_status status = lane_for(heap, stream, lane);
  if (status == TARN_CAPTURE) { /* it is new, and captured */
    return tarni_lane_unnamed(heap, stream, "tarn_free", lane);
  }
  if (status != TARN_HOST_MEMORY && status != TARN_LIMIT) {
    return status;
  }
  *lane = TARNI_LANE_COMMON;
  TARNI_RELAXED(heap->port);
  return tarni_port_stream_sync(heap->port, stream);
}

/* Gives back what is doomed, if nobody else is at the driver. */
static void reap_doomed(tarn_heap *heap) {
  if (tarni_lock_try(&heap->grow)) {
    (void)tarni_grants_try_grow(heap); /* what the driver refuses now it may take the next time */
    tarni_lock_release(&heap->grow);
  }
}

/* A live block is kept for its lane. TARNI_RETIRED: the lane is not the stream's any more. */
static tarn_status block_keep(tarn_heap *heap, tarn_ptr block, tarni_index lane, tarn_stream stream,
                              bool *is_full) {
  tarni_index index;
  tarni_lock_acquire(&heap->lock);
  const bool is_its = tarni_lane_is_locked(heap, lane, stream);
  const tarni_grant *grant = live_at_locked(heap, block, &index);
  const bool has_uses = grant != NULL && grant->has_uses;
  if (is_its && grant != NULL && !has_uses) {
    tarni_order order = {0};
    (void)tarni_order_add(&order, lane, tarni_ticket_locked(heap, lane));
    count_free_locked(heap, grant);
    tarni_bucket_keep_locked(heap, index, &order);
  }
  *is_full = heap->buckets->n_doomed != 0;
  tarni_lock_release(&heap->lock);
  if (has_uses) {
    return tarni_uses_free(heap, block, lane, stream);
  }
  if (grant == NULL) {
    return tarni_block_refuse(heap, block, "tarn_free");
  }
  return is_its ? TARN_OK : TARNI_RETIRED;
}

tarn_status tarni_bucket_free(tarn_heap *heap, tarn_ptr block, tarn_stream stream) {
  tarni_index index;
  tarni_lock_acquire(&heap->lock);
  const bool is_block = live_at_locked(heap, block, &index) != NULL;
  tarni_lock_release(&heap->lock);
  if (!is_block) {
    return tarni_block_refuse(heap, block, "tarn_free");
  }
  tarn_status status;
  bool is_full;
  do {
    tarni_index lane;
    TARN_TRY(lane_of_free(heap, stream, &lane));
    status = block_keep(heap, block, lane, stream, &is_full);
  } while (status == TARNI_RETIRED);
  if (is_full) {
    reap_doomed(heap);
  }
  return status;
}

uint64_t tarni_bucket_pend_locked(tarn_heap *heap, tarn_ptr block) {
  tarni_index index;
  tarni_grant *grant = live_at_locked(heap, block, &index);
  if (grant == NULL || !grant->has_uses) {
    return 0;
  }
  grant->state = TARNI_GRANT_PENDING;
  grant->has_uses = false;
  count_free_locked(heap, grant);
  return grant->bytes;
}

uint64_t tarni_bucket_defer_locked(tarn_heap *heap, tarn_ptr block, tarni_index *first) {
  tarni_index index;
  tarni_grant *grant = live_at_locked(heap, block, &index);
  if (grant == NULL) {
    return 0;
  }
  tarn_assert(!grant->has_uses);
  count_free_locked(heap, grant);
  grant->state = TARNI_GRANT_DEFERRED;
  grant->newer[TARNI_BY_AGE] = *first;
  *first = index;
  return grant->bytes;
}

void tarni_bucket_finish_locked(tarn_heap *heap, tarn_ptr block, const tarni_order *order) {
  const tarni_index index = tarni_grant_find_locked(heap, block);
  tarn_assert(index != 0 && heap->buckets->grants[index].state == TARNI_GRANT_PENDING);
  tarni_bucket_keep_locked(heap, index, order);
}

/* ---- What a pointer is ---- */

bool tarni_bucket_find_locked(const tarn_heap *heap, tarn_ptr pointer, tarni_block *block) {
  const tarni_index index = tarni_grant_find_locked(heap, pointer);
  const tarni_grant *grant = &heap->buckets->grants[index];
  if (index == 0 || (grant->state == TARNI_GRANT_LIVE && pointer < grant->address)) {
    return false;
  }
  const bool is_live = grant->state == TARNI_GRANT_LIVE;
  block->extent = index;
  block->offset = is_live ? grant->address : grant->base;
  block->bytes = grant->bytes - (block->offset - grant->base);
  block->is_live = is_live;
  return true;
}

bool tarni_bucket_fits(const tarn_heap *heap, const tarni_block *block, uint64_t bytes) {
  const tarni_grant *grant = &heap->buckets->grants[block->extent];
  uint64_t size;
  return bytes != 0 && tarni_bucket_size(heap, bytes, grant->alignment, &size) &&
         size == grant->bytes;
}

/* Of the doomed grants of a lane. */
static uint64_t doomed_lost_locked(const tarn_heap *heap, tarni_index lane) {
  const tarni_buckets *buckets = heap->buckets;
  uint64_t bytes = 0;
  for (tarni_index i = buckets->doomed[lane].newest; i != 0;
       i = buckets->grants[i].older[TARNI_BY_AGE]) {
    const tarni_grant *grant = &buckets->grants[i];
    const bool is_held = (grant->parts & TARNI_PART_MEMORY) != 0;
    const bool is_out = grant->is_refused || tarni_order_is_lost_locked(heap, &grant->order);
    bytes += is_held && is_out ? grant->bytes : 0;
  }
  return bytes;
}

uint64_t tarni_bucket_lost_locked(const tarn_heap *heap) {
  const tarni_buckets *buckets = heap->buckets;
  uint64_t bytes = 0;
  for (tarni_index i = buckets->cached.newest; i != 0; i = buckets->grants[i].older[TARNI_BY_AGE]) {
    const tarni_grant *grant = &buckets->grants[i];
    bytes += tarni_order_is_lost_locked(heap, &grant->order) ? grant->bytes : 0;
  }
  for (tarni_index lane = 0; lane < heap->n_lanes; lane++) {
    bytes += doomed_lost_locked(heap, lane);
  }
  return bytes;
}

/* ---- Beginning and end ---- */

tarn_status tarni_buckets_open(tarn_heap *heap, const tarni_settings *settings) {
  tarni_buckets *buckets = calloc(1, sizeof(*buckets));
  if (buckets == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_create", NULL, "Free some host memory.",
                      "no host memory for a heap's buckets (%zu bytes)", sizeof(*buckets));
  }
  heap->buckets = buckets;
  buckets->settings = *settings;
  buckets->max_grants = TARNI_MAX_GRANTS;
  buckets->n_grants = buckets->n_sizes = 1;
  buckets->grants = tarni_sparse_make(TARNI_MAX_GRANTS * sizeof(*buckets->grants));
  buckets->sizes = tarni_sparse_make(TARNI_MAX_GRANTS * sizeof(*buckets->sizes));
  buckets->heads = calloc((size_t)1 << BUCKET_HASH_LOG2, sizeof(*buckets->heads));
  buckets->doomed = calloc(heap->max_lanes, sizeof(*buckets->doomed));
  if (buckets->grants == NULL || buckets->sizes == NULL || buckets->heads == NULL ||
      buckets->doomed == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_create", NULL,
                      "Raise the limits on host memory and addresses (ulimit -v).",
                      "no host memory for the tables of a heap's buckets");
  }
  if (settings->backing == TARN_BACKING_POOL) {
    TARNI_RELAXED(heap->port);
    return tarni_port_pool_create(heap->port, settings->pool_threshold, &buckets->pool);
  }
  return TARN_OK;
}

void tarni_buckets_close(tarn_heap *heap) {
  tarni_buckets *buckets = heap->buckets;
  if (buckets == NULL) {
    return;
  }
  tarni_sparse_free(buckets->grants, TARNI_MAX_GRANTS * sizeof(*buckets->grants));
  tarni_sparse_free(buckets->sizes, TARNI_MAX_GRANTS * sizeof(*buckets->sizes));
  free(buckets->heads);
  free(buckets->doomed);
  free(buckets);
  heap->buckets = NULL;
}
