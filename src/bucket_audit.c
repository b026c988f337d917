/* SPDX-License-Identifier: MIT
 *
 * The check of a heap of driver allocations: every record is at exactly one place, the tree and the
 * lists agree with it, and the counters are the sums. Owns and changes nothing. Under heap->lock;
 * no other call may be under way. */
#include "base/bits.h"
#include "bucket.h"

typedef struct bucket_audit {
  uint64_t n_grants[TARNI_GRANT_DOOMED + 1], bytes[TARNI_GRANT_DOOMED + 1]; /* by state */
  uint64_t n_marked;                                                        /* live, with uses */
  uint64_t n_loose; /* in no bucket: made in part only */
} bucket_audit;

static tarn_status check_grant(const tarn_heap *heap, tarni_index index, bucket_audit *sum) {
  const tarni_grant *grant = &heap->buckets->grants[index];
  const bool is_whole = grant->state != TARNI_GRANT_DOOMED;
  TARN_TRY(tarni_audit_compare("grants without memory", 0,
                               is_whole && (grant->parts & TARNI_PART_MEMORY) == 0));
  TARN_TRY(tarni_audit_compare("the grant of an address", index,
                               tarni_grant_find_locked(heap, grant->base)));
  TARN_TRY(tarni_audit_compare("the grant of a last address", index,
                               tarni_grant_find_locked(heap, grant->base + grant->bytes - 1)));
  if (grant->bucket != 0) {
    TARN_TRY(tarni_audit_compare("the size of a bucket's grant", grant->bytes,
                                 heap->buckets->sizes[grant->bucket].bytes));
  }
  TARN_TRY(tarni_audit_compare("whole grants in no bucket", 0, is_whole && grant->bucket == 0));
  sum->n_grants[grant->state]++;
  sum->bytes[grant->state] += (grant->parts & TARNI_PART_MEMORY) != 0 ? grant->bytes : 0;
  sum->n_marked += grant->state == TARNI_GRANT_LIVE && grant->has_uses;
  sum->n_loose += grant->bucket == 0;
  return TARN_OK;
}

static tarn_status check_grants(const tarn_heap *heap, bucket_audit *sum) {
  const tarni_buckets *buckets = heap->buckets;
  uint64_t n_unused = 0;
  for (tarni_index i = 1; i < buckets->n_grants; i++) {
    if (buckets->grants[i].state != TARNI_GRANT_UNUSED) {
      TARN_TRY(check_grant(heap, i, sum));
    }
    n_unused += buckets->grants[i].state == TARNI_GRANT_UNUSED;
  }
  uint64_t n_listed = 0;
  for (tarni_index i = buckets->free_grant; i != 0; i = buckets->grants[i].newer[0]) {
    n_listed++;
  }
  TARN_TRY(tarni_audit_compare("unused records", n_listed, n_unused));
  return tarni_audit_compare("grants that somebody is at work on", 0,
                             sum->n_grants[TARNI_GRANT_BUSY]);
}

/* A list in both directions; how many are on it. */
static tarn_status check_list(const tarni_buckets *buckets, const tarni_grant_list *list, int which,
                              tarni_grant_state state, uint64_t *n) {
  tarni_index newer = 0;
  *n = 0;
  for (tarni_index i = list->newest; i != 0; i = buckets->grants[i].older[which]) {
    TARN_TRY(tarni_audit_compare("the list of grants", newer, buckets->grants[i].newer[which]));
    TARN_TRY(tarni_audit_compare("the state of a listed grant", state, buckets->grants[i].state));
    newer = i;
    ++*n;
  }
  return tarni_audit_compare("the oldest grant of a list", list->oldest, newer);
}

static tarn_status check_sizes(const tarn_heap *heap, const bucket_audit *sum) {
  const tarni_buckets *buckets = heap->buckets;
  uint64_t n_grants = 0, n_cached = 0, n_doomed = 0;
  for (tarni_index i = 1; i < buckets->n_sizes; i++) {
    const tarni_bucket *bucket = &buckets->sizes[i];
    uint64_t n;
    TARN_TRY(check_list(buckets, &bucket->cached, TARNI_BY_SIZE, TARNI_GRANT_CACHED, &n));
    TARN_TRY(tarni_audit_compare("kept blocks of a size", bucket->n_cached, n));
    TARN_TRY(tarni_audit_compare("kept blocks above their number", 0,
                                 n != 0 && n > tarni_bucket_slots(heap, bucket->bytes)));
    n_grants += bucket->n_grants;
    n_cached += n;
    TARN_TRY(check_list(buckets, &bucket->doomed, TARNI_BY_SIZE, TARNI_GRANT_DOOMED, &n));
    n_doomed += n;
  }
  TARN_TRY(tarni_audit_compare("doomed grants of all sizes", n_doomed,
                               sum->n_grants[TARNI_GRANT_DOOMED] - sum->n_loose));
  TARN_TRY(
      tarni_audit_compare("kept blocks of all sizes", sum->n_grants[TARNI_GRANT_CACHED], n_cached));
  uint64_t n_all = 0;
  for (int state = TARNI_GRANT_BUSY; state <= TARNI_GRANT_DOOMED; state++) {
    n_all += sum->n_grants[state];
  }
  return tarni_audit_compare("grants of all sizes", n_grants, n_all - sum->n_loose);
}

/* The lists of lanes, each by tickets. */
static tarn_status check_doomed(const tarn_heap *heap, uint64_t *n_doomed) {
  const tarni_buckets *buckets = heap->buckets;
  *n_doomed = 0;
  for (tarni_index lane = 0; lane < heap->max_lanes; lane++) {
    const tarni_grant_list *list = &buckets->doomed[lane];
    uint64_t n, ticket = 0;
    TARN_TRY(check_list(buckets, list, TARNI_BY_AGE, TARNI_GRANT_DOOMED, &n));
    for (tarni_index i = list->oldest; i != 0; i = buckets->grants[i].newer[TARNI_BY_AGE]) {
      const tarni_order *order = &buckets->grants[i].order;
      TARN_TRY(tarni_audit_compare("the lane of a doomed grant",
                                   order->n != 0 ? order->lanes[0] : 0, lane));
      TARN_TRY(tarni_audit_compare("doomed grants out of order", 0,
                                   order->n != 0 && order->tickets[0] < ticket));
      ticket = order->n != 0 ? order->tickets[0] : 0;
    }
    *n_doomed += n;
  }
  return TARN_OK;
}

static tarn_status check_lists(tarn_heap *heap, const bucket_audit *sum) {
  const tarni_buckets *buckets = heap->buckets;
  uint64_t n_cached, n_doomed, pending = 0;
  TARN_TRY(check_list(buckets, &buckets->cached, TARNI_BY_AGE, TARNI_GRANT_CACHED, &n_cached));
  TARN_TRY(tarni_audit_compare("kept blocks by age", n_cached, sum->n_grants[TARNI_GRANT_CACHED]));
  TARN_TRY(check_doomed(heap, &n_doomed));
  TARN_TRY(tarni_audit_compare("doomed grants", buckets->n_doomed, n_doomed));
  TARN_TRY(
      tarni_audit_compare("doomed grants by state", n_doomed, sum->n_grants[TARNI_GRANT_DOOMED]));
  for (const tarni_uses *uses = heap->pending; uses != NULL; uses = uses->next) {
    const tarni_index index = tarni_grant_find_locked(heap, uses->offset);
    TARN_TRY(tarni_audit_compare("the state of a pending block", TARNI_GRANT_PENDING,
                                 buckets->grants[index].state));
    pending += uses->bytes;
  }
  return tarni_audit_compare("bytes of pending blocks", pending + tarni_deferred_see_locked(heap),
                             sum->bytes[TARNI_GRANT_PENDING] + sum->bytes[TARNI_GRANT_DEFERRED]);
}

tarn_status tarni_bucket_check_locked(tarn_heap *heap) {
  const tarni_buckets *buckets = heap->buckets;
  bucket_audit sum = {.n_marked = 0};
  TARN_TRY(check_grants(heap, &sum));
  TARN_TRY(check_sizes(heap, &sum));
  TARN_TRY(check_lists(heap, &sum));
  TARN_TRY(tarni_audit_uses(heap, sum.n_marked));
  TARN_TRY(tarni_audit_lanes(heap));
  const uint64_t doomed = sum.bytes[TARNI_GRANT_DOOMED];
  const uint64_t pending =
      sum.bytes[TARNI_GRANT_PENDING] + sum.bytes[TARNI_GRANT_DEFERRED] + doomed;
  const tarn_heap_stats stats = tarni_stats_locked(heap);
  TARN_TRY(tarni_audit_compare("live bytes", stats.live_bytes, sum.bytes[TARNI_GRANT_LIVE]));
  TARN_TRY(tarni_audit_compare("live blocks", stats.live_blocks, sum.n_grants[TARNI_GRANT_LIVE]));
  TARN_TRY(tarni_audit_compare("kept bytes", buckets->cached_bytes, sum.bytes[TARNI_GRANT_CACHED]));
  TARN_TRY(tarni_audit_compare("kept bytes above their limit", 0,
                               buckets->cached_bytes > buckets->settings.cached_limit));
  TARN_TRY(tarni_audit_compare("doomed bytes", buckets->doomed_bytes, doomed));
  TARN_TRY(tarni_audit_compare("pending bytes", heap->pending_bytes, pending));
  TARN_TRY(
      tarni_audit_compare("bytes that are neither live nor kept", stats.pending_bytes, pending));
  TARN_TRY(tarni_audit_compare("promised bytes", 0, buckets->promised_bytes));
  return tarni_audit_compare("physical bytes", stats.reserved_bytes - stats.captured_bytes,
                             stats.live_bytes + stats.cached_bytes + pending +
                                 heap->unreturned_bytes);
}
