/* SPDX-License-Identifier: MIT
 *
 * Grants: the driver's own allocations, each with a record, for heaps whose blocks are such
 * allocations. Owns how the driver is asked for one and given one back, by backing, the records,
 * the tree that finds a grant by any address inside it, and the doomed: grants that wait for their
 * work to complete before they go.
 *
 * Records lie in a sparse array, so that neither making a grant nor freeing a block needs memory of
 * the host. A grant that the driver gave in part, or does not take back, stays doomed and counted,
 * and is tried again. Plain memory and mappings go only when their order is known to be complete;
 * memory of a pool goes in the order of the stream that freed it. All calls are made by a relaxed
 * thread, so that captures are not broken. Knows nothing about sizes and what is kept (bucket.c).
 */
#include "base/bits.h"
#include "bucket.h"

/* ---- Records ---- */

static tarni_index grant_take_locked(tarni_buckets *buckets) {
  const tarni_index index = buckets->free_grant;
  if (index != 0) {
    buckets->free_grant = buckets->grants[index].newer[0];
  }
  return index != 0 || buckets->n_grants == buckets->max_grants ? index : buckets->n_grants++;
}

static void grant_drop_locked(tarni_buckets *buckets, tarni_index index) {
  buckets->grants[index] = (tarni_grant){.newer = {buckets->free_grant}};
  buckets->free_grant = index;
}

/* ---- Lists ---- */

void tarni_grant_push(tarni_buckets *buckets, tarni_grant_list *list, tarni_index index,
                      int which) {
  tarni_grant *grant = &buckets->grants[index];
  grant->newer[which] = 0;
  grant->older[which] = list->newest;
  if (list->newest != 0) {
    buckets->grants[list->newest].newer[which] = index;
  } else {
    list->oldest = index;
  }
  list->newest = index;
}

void tarni_grant_remove(tarni_buckets *buckets, tarni_grant_list *list, tarni_index index,
                        int which) {
  const tarni_grant *grant = &buckets->grants[index];
  if (grant->newer[which] != 0) {
    buckets->grants[grant->newer[which]].older[which] = grant->older[which];
  } else {
    list->newest = grant->older[which];
  }
  if (grant->older[which] != 0) {
    buckets->grants[grant->older[which]].newer[which] = grant->newer[which];
  } else {
    list->oldest = grant->newer[which];
  }
}

/* ---- The tree by address: ordered by base, heap-ordered by a hash of the index ---- */

static uint32_t grant_weight(tarni_index index) {
  return index * 2654435761u;
}

static void grants_divide(tarni_grant *grants, tarni_index root, tarn_ptr base, tarni_index *below,
                          tarni_index *above) {
  while (root != 0) {
    if (grants[root].base < base) {
      *below = root;
      below = &grants[root].right;
      root = *below;
    } else {
      *above = root;
      above = &grants[root].left;
      root = *above;
    }
  }
  *below = *above = 0;
}

static void tree_add_locked(tarni_buckets *buckets, tarni_index index) {
  tarni_grant *grants = buckets->grants, *grant = &grants[index];
  tarni_index *link = &buckets->root;
  while (*link != 0 && grant_weight(*link) > grant_weight(index)) {
    link = grant->base < grants[*link].base ? &grants[*link].left : &grants[*link].right;
  }
  grants_divide(grants, *link, grant->base, &grant->left, &grant->right);
  *link = index;
}

static void tree_remove_locked(tarni_buckets *buckets, tarni_index index) {
  tarni_grant *grants = buckets->grants;
  const tarni_grant *grant = &grants[index];
  tarni_index *link = &buckets->root;
  while (*link != index) {
    tarn_assert(*link != 0 && "a grant with memory is in the tree");
    link = grant->base < grants[*link].base ? &grants[*link].left : &grants[*link].right;
  }
  tarni_index below = grant->left, above = grant->right;
  while (below != 0 && above != 0) {
    const bool is_below = grant_weight(below) > grant_weight(above);
    *link = is_below ? below : above;
    link = is_below ? &grants[below].right : &grants[above].left;
    below = is_below ? *link : below;
    above = is_below ? above : *link;
  }
  *link = below != 0 ? below : above;
}

tarni_index tarni_grant_overlapping_locked(const tarn_heap *heap, tarn_ptr first, uint64_t bytes) {
  const tarni_buckets *buckets = heap->buckets;
  const tarn_ptr last = first + (bytes - 1);
  tarni_index found = 0;
  for (tarni_index at = buckets->root; at != 0;) {
    const tarni_grant *grant = &buckets->grants[at];
    found = grant->base <= last ? at : found;
    at = grant->base <= last ? grant->right : grant->left;
  }
  const tarni_grant *grant = &buckets->grants[found]; /* record 0 has no bytes */
  return grant->bytes != 0 && first <= grant->base + (grant->bytes - 1) ? found : 0;
}

tarni_index tarni_grant_find_locked(const tarn_heap *heap, tarn_ptr address) {
  return tarni_grant_overlapping_locked(heap, address, 1);
}

/* ---- Asking the driver ---- */

/* At a multiple of any alignment that can be asked for: the mapping has no room to spare. */
static tarn_status make_mapped(tarn_heap *heap, tarni_grant *grant) {
  tarni_port *port = heap->port;
  const uint64_t alignment = tarni_max(heap->unit, TARNI_ALIGNMENT_MAX);
  TARN_TRY(tarni_port_reserve(port, grant->bytes, alignment, &grant->base));
  grant->parts |= TARNI_PART_ADDRESS;
  TARN_TRY(tarni_port_create(port, grant->bytes, &grant->chunk));
  grant->parts |= TARNI_PART_MEMORY;
  TARN_TRY(tarni_port_map(port, grant->base, grant->bytes, grant->chunk));
  grant->parts |= TARNI_PART_MAPPING;
  return tarni_port_access(port, grant->base, grant->bytes);
}

/* Whether the driver may be asked for memory now. Pinned memory is left as it is in captures. */
static bool may_call(const tarn_heap *heap, const tarni_relaxed *relaxed) {
  return (relaxed->is_relaxed && !heap->is_fixed) || !tarni_capture_forbids();
}

static tarn_status make_parts(tarn_heap *heap, tarni_grant *grant, tarn_stream stream) {
  const tarni_buckets *buckets = heap->buckets;
  if (buckets->settings.backing == TARN_BACKING_VMM) {
    return make_mapped(heap, grant);
  }
  TARNI_RELAXED(heap->port);
  if (!may_call(heap, &relaxed)) {
    const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = grant->bytes};
    return tarni_fail(TARN_CAPTURE, "tarn_alloc", &facts,
                      "Allocate and free blocks of such sizes before the capture, so that they are "
                      "kept.",
                      "%llu bytes more of plain memory cannot be had while a stream is being "
                      "captured",
                      (unsigned long long)grant->bytes);
  }
  if (buckets->settings.backing == TARN_BACKING_POOL) {
    TARN_TRY(tarni_legacy_check(heap, stream));
  }
  TARN_TRY(
      buckets->settings.backing == TARN_BACKING_POOL
          ? tarni_port_pool_alloc(heap->port, buckets->pool, grant->bytes, stream, &grant->base)
          : tarni_port_plain_alloc(heap->port, grant->bytes, &grant->base));
  grant->parts = TARNI_PART_MEMORY;
  return TARN_OK;
}

/* Gives back what is left of a grant. May be called again where it fails. */
static tarn_status return_mapped(tarni_port *port, tarni_grant *grant) {
  if ((grant->parts & TARNI_PART_MAPPING) != 0) {
    TARN_TRY(tarni_port_unmap(port, grant->base, grant->bytes));
    grant->parts &= (uint8_t)~TARNI_PART_MAPPING;
  }
  if ((grant->parts & TARNI_PART_MEMORY) != 0) {
    TARN_TRY(tarni_port_release(port, grant->chunk));
    grant->parts &= (uint8_t)~TARNI_PART_MEMORY;
  }
  if ((grant->parts & TARNI_PART_ADDRESS) != 0) {
    TARN_TRY(tarni_port_unreserve(port, grant->base, grant->bytes));
    grant->parts = 0;
  }
  return TARN_OK;
}

/* Where memory of a pool is freed: on the stream that freed the block, so that nothing is waited
 * for, or on the heap's own stream when all that used it is complete. */
static tarn_status return_pooled(tarn_heap *heap, const tarni_grant *grant) {
  tarni_buckets *buckets = heap->buckets;
  tarni_lock_acquire(&heap->lock);
  const bool is_complete = tarni_order_is_complete_locked(heap, &grant->order);
  tarni_lock_release(&heap->lock);
  if (is_complete && buckets->stream == NULL) {
    TARN_TRY(tarni_port_stream_create(heap->port, &buckets->stream));
  }
  tarn_stream stream = buckets->stream;
  if (!is_complete) {
    TARN_TRY(tarni_lane_stream(heap, grant->order.lanes[0], &stream));
  }
  TARN_TRY(tarni_legacy_check(heap, stream));
  return tarni_port_pool_free(heap->port, grant->base, stream);
}

tarn_status tarni_grants_trim_grow(tarn_heap *heap, uint64_t keep) {
  const tarni_buckets *buckets = heap->buckets;
  if (buckets->pool == NULL) {
    return TARN_OK;
  }
  TARNI_RELAXED(heap->port);
  if (buckets->stream != NULL) {
    TARN_TRY(tarni_port_stream_sync(heap->port, buckets->stream));
  }
  return tarni_port_pool_trim(heap->port, buckets->pool, keep);
}

static tarn_status return_parts(tarn_heap *heap, tarni_grant *grant) {
  if (grant->parts == 0) {
    return TARN_OK;
  }
  if (heap->buckets->settings.backing == TARN_BACKING_VMM) {
    return return_mapped(heap->port, grant);
  }
  TARNI_RELAXED(heap->port);
  if (!may_call(heap, &relaxed)) {
    return tarni_capture_allows("tarn_heap_trim");
  }
  TARN_TRY(heap->buckets->settings.backing == TARN_BACKING_POOL
               ? return_pooled(heap, grant)
               : tarni_port_plain_free(heap->port, grant->base));
  grant->parts = 0;
  return TARN_OK;
}

/* ---- Making one ---- */

/* What counts as held: memory, not mere addresses. */
static uint64_t held_bytes(const tarni_grant *grant) {
  return (grant->parts & TARNI_PART_MEMORY) != 0 ? grant->bytes : 0;
}

static void count_held_locked(tarn_heap *heap, uint64_t bytes) {
  heap->reserved_bytes += bytes;
  heap->used_bytes += bytes;
  heap->used_peak_bytes = tarni_max(heap->used_peak_bytes, heap->used_bytes);
  heap->recent_used_peak = tarni_max(heap->recent_used_peak, heap->used_bytes);
  tarni_held_note_locked(heap);
}

/* A grant that could neither be made nor undone: doomed, with what there is of it. */
static void keep_remains_locked(tarn_heap *heap, tarni_index index) {
  tarni_grant *grant = &heap->buckets->grants[index];
  count_held_locked(heap, held_bytes(grant));
  tree_add_locked(heap->buckets, index);
  tarni_grant_doom_locked(heap, index);
  grant->is_refused = true;
}

tarn_status tarni_grant_make_grow(tarn_heap *heap, uint64_t bytes, tarni_index lane,
                                  tarni_index *made) {
  tarni_buckets *buckets = heap->buckets;
  *made = 0;
  tarni_lock_acquire(&heap->lock);
  const tarni_index index = grant_take_locked(buckets);
  const tarn_stream stream = heap->lanes[lane].stream;
  tarni_grant *grant = &buckets->grants[index];
  if (index != 0) { /* who looks through all grants sees it from here on */
    *grant = (tarni_grant){.bytes = bytes, .state = TARNI_GRANT_BUSY};
  } else {
    heap->planned_bytes -= bytes;
  }
  tarni_lock_release(&heap->lock);
  if (index == 0) {
    return tarni_fail(TARN_LIMIT, "tarn_alloc", NULL, "Free blocks, or use backing vmm.",
                      "the heap has %u allocations of the driver already", buckets->max_grants - 1);
  }
  const tarn_status status = make_parts(heap, grant, stream);
  tarn_error error = {.size = sizeof(error)}; /* the first one, whatever fails after it */
  bool is_undone = false;
  if (status != TARN_OK) {
    (void)tarn_last_error(&error);
    is_undone = return_parts(heap, grant) == TARN_OK;
  }
  tarni_lock_acquire(&heap->lock);
  heap->planned_bytes -= bytes;
  if (status == TARN_OK) {
    count_held_locked(heap, bytes);
    tree_add_locked(buckets, index);
    *made = index;
  } else if (is_undone) {
    grant_drop_locked(buckets, index);
  } else {
    keep_remains_locked(heap, index);
  }
  tarni_lock_release(&heap->lock);
  return status == TARN_OK ? TARN_OK : tarni_fail_again(&error);
}

/* ---- Giving them back ---- */

static uint64_t ticket_of(const tarni_grant *grant) {
  return grant->order.n != 0 ? grant->order.tickets[0] : 0;
}

/* The list of its lane: what waits for nothing is the common one's. */
static tarni_grant_list *doomed_list(const tarni_buckets *buckets, const tarni_grant *grant) {
  return &buckets->doomed[grant->order.n != 0 ? grant->order.lanes[0] : TARNI_LANE_COMMON];
}

/* The newest of a list with a lower ticket; 0: there is none. They come at its ends, or, where kept
 * ones are doomed that were freed before others, one after the other: so what came between others
 * last is near. */
static tarni_index doomed_before(const tarni_buckets *buckets, tarni_grant_list *list,
                                 tarni_index index) {
  const tarni_grant *grants = buckets->grants;
  const uint64_t ticket = ticket_of(&grants[index]);
  if (list->newest == 0 || ticket_of(&grants[list->newest]) < ticket) {
    return list->newest;
  }
  if (ticket_of(&grants[list->oldest]) >= ticket) {
    return 0;
  }
  tarni_index at = list->last != 0 ? list->last : list->newest;
  while (ticket_of(&grants[at]) < ticket) { /* the newest has no lower one */
    at = grants[at].newer[TARNI_BY_AGE];
  }
  while (ticket_of(&grants[at]) >= ticket) { /* the oldest has */
    at = grants[at].older[TARNI_BY_AGE];
  }
  list->last = index;
  return at;
}

/* Puts a grant into the list of its lane, before those of the same ticket, so that a pass which
 * puts one back does not meet it again. */
static void doomed_put(tarni_buckets *buckets, tarni_index index) {
  tarni_grant *grant = &buckets->grants[index];
  tarni_grant_list *list = doomed_list(buckets, grant);
  const tarni_index older = doomed_before(buckets, list, index);
  const tarni_index newer = older != 0 ? buckets->grants[older].newer[TARNI_BY_AGE] : list->oldest;
  grant->older[TARNI_BY_AGE] = older;
  grant->newer[TARNI_BY_AGE] = newer;
  *(older != 0 ? &buckets->grants[older].newer[TARNI_BY_AGE] : &list->oldest) = index;
  *(newer != 0 ? &buckets->grants[newer].older[TARNI_BY_AGE] : &list->newest) = index;
  if (grant->bucket != 0) {
    tarni_grant_push(buckets, &buckets->sizes[grant->bucket].doomed, index, TARNI_BY_SIZE);
  }
}

static void doomed_remove(tarni_buckets *buckets, tarni_index index) {
  const tarni_grant *grant = &buckets->grants[index];
  tarni_grant_list *list = doomed_list(buckets, grant);
  list->last = list->last != index ? list->last : grant->older[TARNI_BY_AGE];
  tarni_grant_remove(buckets, list, index, TARNI_BY_AGE);
  if (grant->bucket != 0) {
    tarni_grant_remove(buckets, &buckets->sizes[grant->bucket].doomed, index, TARNI_BY_SIZE);
  }
}

/* pre: the grant is BUSY or its caller's, in no list. */
void tarni_grant_doom_locked(tarn_heap *heap, tarni_index index) {
  tarni_buckets *buckets = heap->buckets;
  tarni_grant *grant = &buckets->grants[index];
  grant->state = TARNI_GRANT_DOOMED;
  heap->pending_bytes += held_bytes(grant);
  buckets->doomed_bytes += held_bytes(grant);
  buckets->n_doomed++;
  doomed_put(buckets, index);
}

/* Takes a doomed grant off its lists: BUSY, or whatever the caller makes of it. */
void tarni_grant_spare_locked(tarn_heap *heap, tarni_index index) {
  tarni_buckets *buckets = heap->buckets;
  tarni_grant *grant = &buckets->grants[index];
  tarn_assert(grant->state == TARNI_GRANT_DOOMED);
  doomed_remove(buckets, index);
  buckets->n_doomed--;
  heap->pending_bytes -= held_bytes(grant);
  buckets->doomed_bytes -= held_bytes(grant);
  grant->state = TARNI_GRANT_BUSY;
}

bool tarni_grant_may_go_locked(const tarn_heap *heap, const tarni_grant *grant) {
  if (tarni_order_is_complete_locked(heap, &grant->order)) {
    return true;
  }
  const tarni_lane *lane = &heap->lanes[grant->order.lanes[0]];
  return heap->buckets->settings.backing == TARN_BACKING_POOL && grant->order.n == 1 &&
         !lane->is_retired && !lane->is_lost && !lane->is_captured;
}

/* How far a pass over the doomed has got: in the list of a lane, before a grant (0: at its end),
 * unless that has not begun. */
typedef struct doomed_pass {
  tarni_index lane, next;
  bool is_begun;
} doomed_pass;

/* The next doomed grant that may go, BUSY; 0: there is none. Of a lane the first that may not go is
 * the last one that is looked at. The bytes count as pending until it is gone. */
static tarni_index doomed_take_locked(tarn_heap *heap, doomed_pass *pass) {
  tarni_buckets *buckets = heap->buckets;
  for (; pass->lane < heap->n_lanes; pass->lane++, pass->is_begun = false) {
    const tarni_index index = pass->is_begun ? pass->next : buckets->doomed[pass->lane].oldest;
    if (index != 0 && tarni_grant_may_go_locked(heap, &buckets->grants[index])) {
      pass->is_begun = true;
      pass->next = buckets->grants[index].newer[TARNI_BY_AGE];
      doomed_remove(buckets, index);
      buckets->grants[index].state = TARNI_GRANT_BUSY;
      return index;
    }
  }
  return 0;
}

/* A doomed grant was given back, or as much of it as the driver takes. */
static void doomed_finish_locked(tarn_heap *heap, tarni_index index, uint64_t held,
                                 tarn_status status) {
  tarni_buckets *buckets = heap->buckets;
  tarni_grant *grant = &buckets->grants[index];
  const uint64_t gone = held - held_bytes(grant);
  heap->pending_bytes -= gone;
  buckets->doomed_bytes -= gone;
  heap->reserved_bytes -= gone;
  heap->used_bytes -= gone;
  if (grant->parts != 0) {
    grant->state = TARNI_GRANT_DOOMED;
    grant->is_refused = status != TARN_CAPTURE; /* else not now */
    if (status == TARN_CAPTURE && grant->order.n != 0) {
      heap->lanes[grant->order.lanes[0]].is_captured = true;
    }
    doomed_put(buckets, index);
    return;
  }
  buckets->n_doomed--;
  tarni_bucket_leave_locked(heap, index);
  tree_remove_locked(buckets, index);
  grant_drop_locked(buckets, index);
}

/* The stream that freed it may be gone: then its lane is found to be lost. */
static void check_stream(tarn_heap *heap, const tarni_grant *grant, tarn_status status) {
  if (status == TARN_INVALID && heap->buckets->settings.backing == TARN_BACKING_POOL) {
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    (void)tarni_order_fence_grow(heap, &grant->order);
    (void)tarni_fail_again(&error);
  }
}

/* They leave only under heap->grow. */
tarn_status tarni_grants_reap_grow(tarn_heap *heap) {
  tarni_buckets *buckets = heap->buckets;
  tarn_error error = {.size = sizeof(error)};
  doomed_pass pass = {0};
  for (;;) {
    tarni_lock_acquire(&heap->lock);
    const tarni_index index = buckets->n_doomed != 0 ? doomed_take_locked(heap, &pass) : 0;
    tarni_lock_release(&heap->lock);
    if (index == 0) {
      return error.status == TARN_OK ? TARN_OK : tarni_fail_again(&error);
    }
    tarni_grant *grant = &buckets->grants[index];
    const uint64_t held = held_bytes(grant);
    const tarn_status status = return_parts(heap, grant);
    if (status != TARN_OK && status != TARN_CAPTURE) {
      check_stream(heap, grant, status);
      (void)tarn_last_error(&error);
    }
    tarni_lock_acquire(&heap->lock);
    doomed_finish_locked(heap, index, held, status);
    tarni_lock_release(&heap->lock);
  }
}

bool tarni_doomed_wait_locked(const tarn_heap *heap, tarni_index lane) {
  const tarni_index newest = heap->buckets->doomed[lane].newest;
  return newest != 0 && ticket_of(&heap->buckets->grants[newest]) > heap->complete[lane];
}

/* Sees to it that the end of every doomed grant can be seen: of a lane's, that of the newest. */
static tarn_status doomed_fence(tarn_heap *heap) {
  tarn_status status = TARN_OK;
  for (tarni_index lane = 1;; lane++) {
    tarni_lock_acquire(&heap->lock);
    while (lane < heap->n_lanes &&
           (!tarni_doomed_wait_locked(heap, lane) || heap->lanes[lane].is_lost)) {
      lane++;
    }
    const bool is_open = lane < heap->n_lanes;
    const tarni_index newest = is_open ? heap->buckets->doomed[lane].newest : 0;
    const uint64_t ticket = ticket_of(&heap->buckets->grants[newest]);
    tarni_lock_release(&heap->lock);
    if (!is_open) {
      return status;
    }
    const tarn_status fenced = tarni_lane_fence_grow(heap, lane, ticket);
    if (status == TARN_OK && fenced != TARN_CAPTURE) { /* a captured stream's go later */
      status = fenced;
    }
  }
}

tarn_status tarni_grants_try_grow(tarn_heap *heap) {
  const tarn_status fenced =
      heap->buckets->settings.backing != TARN_BACKING_POOL ? doomed_fence(heap) : TARN_OK;
  (void)tarni_fences_poll_grow(heap);
  const tarn_status reaped = tarni_grants_reap_grow(heap);
  return fenced != TARN_OK ? fenced : reaped;
}

bool tarni_grants_are_doomed(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const bool are = heap->buckets->n_doomed != 0;
  tarni_lock_release(&heap->lock);
  return are;
}

tarn_status tarni_grants_await_grow(tarn_heap *heap) {
  tarn_error error = {.size = sizeof(error)}; /* the first one, whatever fails after it */
  if (doomed_fence(heap) != TARN_OK) {
    (void)tarn_last_error(&error);
  }
  (void)tarni_fences_poll_grow(heap);
  for (;;) {
    const tarn_status reaped = tarni_grants_reap_grow(heap);
    if (reaped != TARN_OK && error.status == TARN_OK) {
      (void)tarn_last_error(&error);
    }
    if (reaped != TARN_OK || !tarni_fences_wait_grow(heap, tarni_doomed_wait_locked)) {
      return error.status == TARN_OK ? TARN_OK : tarni_fail_again(&error);
    }
  }
}

tarn_status tarni_grants_give_back(tarn_heap *heap) {
  tarni_buckets *buckets = heap->buckets;
  for (tarni_index index = 1; index < buckets->n_grants; index++) {
    TARN_TRY(return_parts(heap, &buckets->grants[index]));
  }
  TARNI_RELAXED(heap->port);
  if (buckets->stream != NULL) { /* the device has memory of a pool again when its free is done */
    TARN_TRY(tarni_port_stream_sync(heap->port, buckets->stream));
  }
  if (buckets->pool != NULL) {
    TARN_TRY(tarni_port_pool_destroy(heap->port, buckets->pool));
    buckets->pool = NULL;
  }
  if (buckets->stream != NULL) {
    TARN_TRY(tarni_port_stream_destroy(heap->port, buckets->stream));
    buckets->stream = NULL;
  }
  return TARN_OK;
}
