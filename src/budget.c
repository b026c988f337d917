/* SPDX-License-Identifier: MIT
 *
 * Budgets: blocks that are held for work to come. A promise that rested on counters alone could be
 * broken by any hit, which asks nobody: so a budget holds real blocks, and what is drawn from it is
 * handed over. One that could not be made gives back what it has; where the driver does not let it,
 * the heap keeps the rest of it, and tries again.
 *
 * Invariant: an item's address is not 0 while the budget holds it, and each held block is a live
 * one of the heap. Lock: heap->budget (rank BUDGET) is held while a budget is made, so that two of
 * one heap do not take from each other what only one can have; budget->lock guards the items and is
 * not held during calls of the heap. */
#include <stdlib.h>

#include "base/bits.h"
#include "internal.h"

typedef struct budget_item {
  uint64_t asked;    /* for by the caller */
  uint64_t bytes;    /* as the heap rounds it, its guard included */
  tarn_ptr block;    /* 0: drawn, or none was needed; */
  uint64_t n_before; /* then those are not held that lie behind the first so many, up to here */
} budget_item;

struct tarn_budget {
  /* immutable after create: */
  tarn_heap *heap;
  tarn_pinned *pool; /* NULL: device memory */
  tarn_stream stream;
  const void *thread; /* tarni_thread_of it */
  uint64_t required_bytes;
  /* lock BUDGET: */
  tarn_budget *next; /* of the heap's unmade ones */
  /* lock: */
  tarni_lock lock;
  uint64_t n;
  budget_item items[]; /* the largest first */
};

static _Thread_local bool is_making; /* a budget: by this thread */

/* ---- The heap's side ---- */

static tarn_status block_take(const tarn_budget *budget, uint64_t bytes, tarn_ptr *block) {
  if (budget->pool == NULL) {
    return tarn_alloc(budget->heap, bytes, budget->stream, block);
  }
  void *pointer = NULL;
  const tarn_status status = tarn_pinned_alloc(budget->pool, bytes, &pointer);
  *block = (uintptr_t)pointer;
  return status;
}

/* The stream, as the calling thread has to name it. */
static tarn_stream budget_stream(const tarn_budget *budget) {
  return tarni_stream_here(budget->stream, budget->thread);
}

static tarn_status block_give(const tarn_budget *budget, tarn_ptr block) {
  return budget->pool == NULL ? tarn_free(budget->heap, block, budget_stream(budget))
                              : tarn_pinned_free(budget->pool, (void *)(uintptr_t)block);
}

/* What could be had for this budget at most, were it not for fragments. */
static uint64_t available_bytes(const tarn_budget *budget) {
  tarn_heap *heap = budget->heap;
  tarn_heap_stats stats = {.size = sizeof(stats)};
  uint64_t free_bytes = 0, total_bytes = 0;
  (void)tarn_heap_get_stats(heap, &stats);
  (void)tarni_port_info(heap->port, &free_bytes, &total_bytes);
  const uint64_t in_use =
      stats.live_bytes + stats.pending_bytes + stats.quarantined_bytes + stats.captured_bytes;
  const uint64_t most = tarni_min(stats.limit_bytes, stats.reserved_bytes + free_bytes);
  const uint64_t live_limit = budget->pool != NULL    ? tarni_pinned_live_limit(budget->pool)
                              : heap->buckets != NULL ? heap->buckets->settings.live_limit
                                                      : UINT64_MAX;
  return tarni_min(most - tarni_min(most, in_use),
                   live_limit - tarni_min(live_limit, stats.live_bytes));
}

/* ---- Making ---- */

static tarn_status budget_refuse(tarn_status status, const char *remedy, const char *what,
                                 uint64_t number) {
  const tarni_facts facts = {.requested_bytes = number};
  return tarni_fail(status, "tarn_budget_create", &facts, remedy, "%s %llu", what,
                    (unsigned long long)number);
}

/* Fills in what the sizes become, and their sum. */
static tarn_status sizes_round(tarn_budget *budget, const uint64_t *bytes) {
  tarn_assert(bytes != NULL || budget->n == 0);
  for (uint64_t i = 0; i < budget->n; i++) {
    uint64_t padded, size = 0;
    if (bytes[i] != 0 && (!tarni_add(bytes[i], budget->heap->care.guard_bytes, &padded) ||
                          !tarni_block_size_of(budget->heap, padded, 1, &size) ||
                          !tarni_add(budget->required_bytes, size, &budget->required_bytes))) {
      return budget_refuse(TARN_OVERFLOWED, "Ask for less.",
                           "the sum of the sizes is more than 2^64 bytes, with one of", bytes[i]);
    }
    budget->items[i].asked = bytes[i];
    budget->items[i].bytes = size;
  }
  return TARN_OK;
}

static int larger_first(const void *a, const void *b) {
  const budget_item *left = a, *right = b;
  return (left->asked < right->asked) - (left->asked > right->asked);
}

static tarn_status budget_empty(tarn_budget *budget) {
  tarn_status result = TARN_OK;
  for (uint64_t i = 0; i < budget->n; i++) {
    budget_item *item = &budget->items[i];
    const tarn_status status = item->block != 0 ? block_give(budget, item->block) : TARN_OK;
    item->block = status == TARN_OK ? 0 : item->block;
    result = result == TARN_OK ? status : result;
  }
  return result;
}

static void budget_free(tarn_budget *budget) {
  tarni_lock_destroy(&budget->lock);
  free(budget);
}

/* Gives back what budgets hold that were never made. pre: heap->budget is held. */
static void unmade_reap(tarn_heap *heap) {
  tarn_budget **link = &heap->unmade;
  while (*link != NULL) {
    tarn_budget *budget = *link;
    if (budget_empty(budget) == TARN_OK) {
      *link = budget->next;
      budget_free(budget);
    } else {
      link = &budget->next;
    }
  }
}

/* A budget could not be made. */
static void unmade_add(tarn_budget *budget) {
  tarn_heap *heap = budget->heap;
  bool is_held = false;
  for (uint64_t i = 0; i < budget->n; i++) {
    is_held = is_held || budget->items[i].block != 0;
  }
  if (!is_held) {
    budget_free(budget);
    return;
  }
  tarni_lock_acquire(&heap->budget);
  budget->next = heap->unmade;
  heap->unmade = budget;
  tarni_lock_release(&heap->budget);
}

void tarni_budgets_reap(tarn_heap *heap) {
  if (!is_making && tarni_lock_try(&heap->budget)) { /* whoever makes one does it, too */
    unmade_reap(heap);
    tarni_lock_release(&heap->budget);
  }
}

tarn_status tarni_budgets_leave(tarn_heap *heap, tarn_stream stream) {
  tarn_status status = TARN_OK;
  if (is_making || !tarni_lock_try(&heap->budget)) {
    return TARN_OK; /* whoever makes one has given back what could be */
  }
  unmade_reap(heap);
  for (tarn_budget *budget = heap->unmade; budget != NULL && status == TARN_OK;
       budget = budget->next) {
    const bool is_its = budget_stream(budget) == stream && budget->pool == NULL;
    status = is_its ? budget_empty(budget) : TARN_OK;
  }
  tarni_lock_release(&heap->budget);
  return status;
}

void tarni_budgets_close(tarn_heap *heap) {
  while (heap->unmade != NULL) {
    tarn_budget *budget = heap->unmade;
    heap->unmade = budget->next;
    budget_free(budget);
  }
}

/* There is not enough: the error with the numbers. */
static tarn_status budget_fail(const tarn_budget *budget, tarn_status status,
                               const tarn_error *cause, tarn_budget_info *info) {
  const uint64_t available = available_bytes(budget);
  const uint64_t required = budget->required_bytes;
  info->available_bytes = available;
  const tarni_facts facts = {.device = budget->heap->port->device.name,
                             .requested_bytes = required,
                             .available_bytes = available,
                             .driver_code = cause->driver_code,
                             .driver_name = cause->driver_name};
  return tarni_fail(status, "tarn_budget_create", &facts,
                    "Free blocks, split the work, or raise the limit.",
                    "%llu bytes are required and %llu available%s: %llu are missing; the limit is "
                    "%llu",
                    (unsigned long long)required, (unsigned long long)available,
                    available >= required ? ", though not in such pieces" : "",
                    (unsigned long long)(required - tarni_min(required, available)),
                    (unsigned long long)info->limit_bytes);
}

static bool is_not_enough(tarn_status status) {
  return status == TARN_DEVICE_MEMORY || status == TARN_LIMIT || status == TARN_HOST_MEMORY;
}

/* pre: heap->budget is held. */
static tarn_status budget_fill(tarn_budget *budget, tarn_budget_info *info) {
  if (budget->required_bytes > info->limit_bytes) { /* nothing that could be done would help */
    const bool is_limited =
        budget->pool != NULL || info->limit_bytes < budget->heap->port->device.total_bytes;
    static const tarn_error none = {0};
    return budget_fail(budget, is_limited ? TARN_LIMIT : TARN_DEVICE_MEMORY, &none, info);
  }
  for (uint64_t i = 0; i < budget->n && budget->items[i].bytes != 0; i++) {
    const tarn_status status = block_take(budget, budget->items[i].asked, &budget->items[i].block);
    if (status != TARN_OK) {
      tarn_error error = {.size = sizeof(error)};
      (void)tarn_last_error(&error);
      /* They go in the order of the stream, which does not fail for lack of anything; a driver
       * that does not answer may answer the next time. */
      if (budget_empty(budget) != TARN_OK) {
        (void)budget_empty(budget);
      }
      return is_not_enough(status) ? budget_fail(budget, status, &error, info)
                                   : tarni_fail_again(&error);
    }
  }
  return TARN_OK;
}

static void info_fill(const tarn_budget *budget, tarn_budget_info *info) {
  info->required_bytes = budget->required_bytes;
  info->held_bytes = info->held_blocks = 0;
  for (uint64_t i = 0; i < budget->n; i++) {
    info->held_bytes += budget->items[i].block != 0 ? budget->items[i].bytes : 0;
    info->held_blocks += budget->items[i].block != 0;
  }
}

static tarn_status budget_make(tarn_budget *budget, const uint64_t *bytes, tarn_budget_info *info) {
  TARN_TRY(sizes_round(budget, bytes));
  if (budget->n != 0) {
    qsort(budget->items, budget->n, sizeof(budget->items[0]), larger_first);
  }
  for (uint64_t i = 0; i < budget->n; i++) {
    budget->items[i].n_before = i;
  }
  info->limit_bytes = tarni_heap_limit(budget->heap);
  info->required_bytes = budget->required_bytes;
  if (is_making) {
    return tarni_fail(TARN_STATE, "tarn_budget_create", NULL,
                      "Make no budget from inside of on_shortage.",
                      "this thread is making a budget already");
  }
  is_making = true;
  tarni_lock_acquire(&budget->heap->budget);
  unmade_reap(budget->heap);
  const tarn_status status = budget_fill(budget, info);
  tarni_lock_release(&budget->heap->budget);
  is_making = false;
  return status;
}

typedef struct budget_request {
  tarn_heap *heap;
  tarn_pinned *pool;
  tarn_stream stream;
  const uint64_t *bytes;
  size_t n;
} budget_request;

static tarn_status budget_create(const budget_request *request, tarn_budget_info *info,
                                 tarn_budget **out) {
  uint64_t size;
  tarn_budget *budget = NULL;
  if (tarni_mul(request->n, sizeof(budget->items[0]), &size) &&
      tarni_add(size, sizeof(*budget), &size)) {
    budget = calloc(1, size);
  }
  if (budget == NULL) {
    return budget_refuse(TARN_HOST_MEMORY, "Free some host memory, or make several budgets.",
                         "no host memory for a budget of so many blocks:", request->n);
  }
  budget->heap = request->heap;
  budget->pool = request->pool;
  budget->stream = request->stream;
  budget->thread = tarni_thread_of(request->stream);
  budget->n = request->n;
  tarni_lock_init(&budget->lock, TARNI_RANK_CACHE);
  tarn_budget_info full = {.size = sizeof(full)};
  const tarn_status status = budget_make(budget, request->bytes, &full);
  if (status == TARN_OK) {
    info_fill(budget, &full);
    *out = budget;
  } else {
    unmade_add(budget);
  }
  if (info != NULL) {
    (void)tarni_struct_out(info, &full, sizeof(full), "tarn_budget_create"); /* as before */
  }
  return status;
}

/* What both kinds have in common. An info that cannot be filled in is found before anything is
 * done. */
static tarn_status arguments_check(const uint64_t *bytes, size_t n, tarn_budget_info *info,
                                   tarn_budget **out) {
  if (out == NULL || (bytes == NULL && n != 0)) {
    return tarni_fail(TARN_INVALID, "tarn_budget_create", NULL,
                      "Pass the sizes and the address of a tarn_budget *.", "the %s is NULL",
                      out == NULL ? "output" : "list of sizes");
  }
  *out = NULL;
  static const tarn_budget_info empty = {.size = sizeof(empty)};
  return info != NULL ? tarni_struct_out(info, &empty, sizeof(empty), "tarn_budget_create")
                      : TARN_OK;
}

tarn_status tarn_budget_create(tarn_heap *heap, const uint64_t *bytes, size_t n, tarn_stream stream,
                               tarn_budget_info *info, tarn_budget **budget) {
  TARN_TRY(arguments_check(bytes, n, info, budget));
  TARN_TRY(tarni_heap_given(heap, "tarn_budget_create"));
  const budget_request request = {.heap = heap, .stream = stream, .bytes = bytes, .n = n};
  return budget_create(&request, info, budget);
}

tarn_status tarn_budget_create_pinned(tarn_pinned *pool, const uint64_t *bytes, size_t n,
                                      tarn_budget_info *info, tarn_budget **budget) {
  TARN_TRY(arguments_check(bytes, n, info, budget));
  if (pool == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_budget_create_pinned", NULL, "Pass a pool.",
                      "pool is NULL");
  }
  TARN_TRY(tarni_heap_given(tarni_pinned_heap(pool), "tarn_budget_create_pinned"));
  const budget_request request = {
      .heap = tarni_pinned_heap(pool), .pool = pool, .bytes = bytes, .n = n};
  return budget_create(&request, info, budget);
}

/* ---- Drawing ---- */

static tarn_status budget_given(const tarn_budget *budget, const char *operation) {
  if (budget == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_budget_create.",
                      "the budget is NULL");
  }
  return tarni_heap_given(budget->heap, operation);
}

/* How many items there are up to the last held one of the first `n`. What is drawn tells where to
 * go on, and learns it: many that are drawn are not passed over one by one each time. */
static uint64_t held_within(tarn_budget *budget, uint64_t n) {
  uint64_t at = n;
  while (at != 0 && budget->items[at - 1].block == 0) {
    at = budget->items[at - 1].n_before;
  }
  while (n != at) {
    const uint64_t next = budget->items[n - 1].n_before;
    budget->items[n - 1].n_before = at;
    n = next;
  }
  return at;
}

/* The items are sorted, the largest first: the last one that is large enough and held. Behind what
 * was asked for there may be a guard. */
static budget_item *item_for(tarn_budget *budget, uint64_t bytes) {
  const bool is_guarded = budget->heap->care.guard_bytes != 0;
  uint64_t n = 0; /* so many are large enough */
  for (uint64_t end = budget->n; n < end;) {
    const budget_item *item = &budget->items[n + (end - n) / 2];
    const bool is_enough = (is_guarded ? item->asked : item->bytes) >= bytes;
    n = is_enough ? (uint64_t)(item - budget->items) + 1 : n;
    end = is_enough ? end : (uint64_t)(item - budget->items);
  }
  n = held_within(budget, n);
  return n != 0 ? &budget->items[n - 1] : NULL;
}

tarn_status tarn_budget_alloc(tarn_budget *budget, uint64_t bytes, tarn_ptr *block) {
  if (block == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_budget_alloc", NULL, "Pass the address of a tarn_ptr.",
                      "the output is NULL");
  }
  *block = 0;
  TARN_TRY(budget_given(budget, "tarn_budget_alloc"));
  if (bytes == 0) {
    return TARN_OK;
  }
  tarni_lock_acquire(&budget->lock);
  budget_item *item = item_for(budget, bytes);
  if (item != NULL) {
    *block = item->block;
    item->block = 0;
  }
  tarni_lock_release(&budget->lock);
  if (*block == 0) {
    const tarni_facts facts = {.device = budget->heap->port->device.name, .requested_bytes = bytes};
    return tarni_fail(
        TARN_LIMIT, "tarn_budget_alloc", &facts, "Ask for what the budget was made for, once.",
        "the budget holds no block of %llu bytes any more", (unsigned long long)bytes);
  }
  return TARN_OK;
}

tarn_status tarn_budget_get_info(tarn_budget *budget, tarn_budget_info *info) {
  tarn_budget_info full = {.size = sizeof(full)};
  TARN_TRY(tarni_struct_out(info, &full, sizeof(full), "tarn_budget_get_info"));
  TARN_TRY(budget_given(budget, "tarn_budget_get_info"));
  full.limit_bytes = tarni_heap_limit(budget->heap);
  tarni_lock_acquire(&budget->lock);
  info_fill(budget, &full);
  tarni_lock_release(&budget->lock);
  return tarni_struct_out(info, &full, sizeof(full), "tarn_budget_get_info");
}

tarn_status tarn_budget_destroy(tarn_budget *budget) {
  if (budget == NULL) {
    return TARN_OK;
  }
  TARN_TRY(budget_given(budget, "tarn_budget_destroy"));
  const tarn_status status = budget_empty(budget);
  if (status != TARN_OK && status != TARN_DEVICE_LOST) {
    return status;
  }
  budget_free(budget);
  return TARN_OK;
}
