/* SPDX-License-Identifier: MIT
 *
 * Host memory that is known to be pinned: what callers have registered, and the pools' addresses.
 * Owns the list of both, of all devices. Invariant: no two entries of one driver overlap, and an
 * entry that the driver is busy with is in the list, so that nobody registers the same bytes
 * meanwhile.
 *
 * Lock: host_lock; not held during driver calls. A pool is asked under it. */
#include <pthread.h>
#include <stdlib.h>

#include "bucket.h"

typedef struct host_range {
  struct host_range *next;
  const tarni_port_table *driver;
  uint64_t first, bytes; /* bytes is 0 for a pool of the driver's allocations, all over the place */
  tarn_pinned *pool;     /* NULL: registered by a caller */
  bool is_busy;          /* the driver is at work on it */
} host_range;

static tarni_lock host_lock = TARNI_LOCK_INIT(TARNI_RANK_REGISTRY);
static host_range *first_range;

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* A parent's registrations are not its child's, and the lock may be held by a thread that the child
 * does not have. */
static void forget_parents_ranges(void) {
  first_range = NULL;
  tarni_lock_init(&host_lock, TARNI_RANK_REGISTRY);
}

static void watch_forks(void) {
  (void)pthread_atfork(NULL, NULL, forget_parents_ranges);
}

/* Whether an entry has a byte of the range. */
static bool range_meets(const host_range *range, uint64_t first, uint64_t bytes) {
  if (range->bytes != 0) {
    return range->first < first + bytes && first < range->first + range->bytes;
  }
  tarn_heap *heap = tarni_pinned_heap(range->pool);
  tarni_lock_acquire(&heap->lock);
  const bool meets = tarni_grant_overlapping_locked(heap, first, bytes) != 0;
  tarni_lock_release(&heap->lock);
  return meets;
}

/* An entry that has a byte of the range; NULL: none. */
static host_range *range_overlapping(const tarni_port_table *driver, uint64_t first,
                                     uint64_t bytes) {
  for (host_range *range = first_range; range != NULL; range = range->next) {
    if (range->driver == driver && range_meets(range, first, bytes)) {
      return range;
    }
  }
  return NULL;
}

static void range_add_locked(host_range *range) {
  range->next = first_range;
  first_range = range;
}

static void range_remove(host_range *range) {
  tarni_lock_acquire(&host_lock);
  host_range **link = &first_range;
  while (*link != range) {
    link = &(*link)->next;
  }
  *link = range->next;
  tarni_lock_release(&host_lock);
  free(range);
}

/* ---- Pools ---- */

tarn_status tarni_host_add_pool(tarn_pinned *pool, const tarni_port *device, uint64_t first,
                                uint64_t bytes) {
  host_range *range = calloc(1, sizeof(*range));
  if (range == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_pinned_create", NULL, "Free some host memory.",
                      "no host memory to note the pool (%zu bytes)", sizeof(*range));
  }
  *range = (host_range){.driver = device->table, .first = first, .bytes = bytes, .pool = pool};
  (void)pthread_once(&watch_once, watch_forks);
  tarni_lock_acquire(&host_lock);
  range_add_locked(range);
  tarni_lock_release(&host_lock);
  return TARN_OK;
}

/* The link to a pool's range; what it links to is NULL where the pool has none. */
static host_range **pool_link_locked(const tarn_pinned *pool) {
  host_range **link = &first_range;
  while (*link != NULL && (*link)->pool != pool) {
    link = &(*link)->next;
  }
  return link;
}

void *tarni_host_take_pool(const tarn_pinned *pool) {
  tarni_lock_acquire(&host_lock);
  host_range **link = pool_link_locked(pool);
  host_range *range = *link;
  *link = range != NULL ? range->next : NULL;
  tarni_lock_release(&host_lock);
  return range;
}

void tarni_host_put_pool(void *taken) {
  if (taken != NULL) {
    tarni_lock_acquire(&host_lock);
    range_add_locked(taken);
    tarni_lock_release(&host_lock);
  }
}

/* ---- The caller's memory ---- */

static tarn_status refuse_range(const tarni_port *port, tarn_status status, const void *pointer,
                                uint64_t bytes, const char *remedy, const char *what) {
  const tarni_facts facts = {.device = port != NULL ? port->device.name : NULL,
                             .requested_bytes = bytes};
  return tarni_fail(status, "tarn_host_register", &facts, remedy, "%llu bytes at %p: %s",
                    (unsigned long long)bytes, pointer, what);
}

static tarn_status arguments_check(const tarni_port *port, const void *pointer, uint64_t bytes) {
  if (port == NULL) {
    return refuse_range(port, TARN_INVALID, pointer, bytes, "Open one with tarn_device_open.",
                        "the device is NULL");
  }
  if (pointer == NULL) {
    return refuse_range(port, TARN_INVALID, pointer, bytes, "Pass the address of host memory.",
                        "the pointer is NULL");
  }
  if (bytes == 0) {
    return refuse_range(port, TARN_INVALID, pointer, bytes, "Register at least one byte.",
                        "nothing is to be registered");
  }
  if (bytes > UINT64_MAX - (uintptr_t)pointer) {
    return refuse_range(port, TARN_OVERFLOWED, pointer, bytes, "Check the size.",
                        "the range ends beyond the last address");
  }
  return TARN_OK;
}

/* What is wrong with registering bytes that an entry has. */
static tarn_status refuse_overlap(const tarni_port *port, const host_range *other,
                                  const void *pointer, uint64_t bytes) {
  if (other->pool != NULL) {
    return refuse_range(port, TARN_STATE, pointer, bytes, "Use it as it is.",
                        "this is memory of a pinned pool");
  }
  if (other->first == (uintptr_t)pointer && other->bytes == bytes) {
    return refuse_range(port, TARN_STATE, pointer, bytes,
                        "Register a range once, or unregister it first.",
                        "the same range is registered already");
  }
  const tarni_facts facts = {.device = port->device.name, .requested_bytes = bytes};
  return tarni_fail(TARN_RANGE, "tarn_host_register", &facts,
                    "Unregister the other range first, or register what is not in it.",
                    "%llu bytes at %p overlap the %llu bytes at 0x%llx that are registered already",
                    (unsigned long long)bytes, pointer, (unsigned long long)other->bytes,
                    (unsigned long long)other->first);
}

tarn_status tarn_host_register(tarn_device *device, void *pointer, uint64_t bytes) {
  tarni_port *port = (tarni_port *)device;
  TARN_TRY(arguments_check(port, pointer, bytes));
  host_range *range = calloc(1, sizeof(*range));
  if (range == NULL) {
    return refuse_range(port, TARN_HOST_MEMORY, pointer, bytes, "Free some host memory.",
                        "no host memory to note the registration");
  }
  *range = (host_range){
      .driver = port->table, .first = (uintptr_t)pointer, .bytes = bytes, .is_busy = true};
  (void)pthread_once(&watch_once, watch_forks);
  tarni_lock_acquire(&host_lock);
  const host_range *other = range_overlapping(port->table, range->first, bytes);
  const host_range found = other != NULL ? *other : (host_range){0};
  if (other == NULL) {
    range_add_locked(range);
  }
  tarni_lock_release(&host_lock);
  if (other != NULL) {
    free(range);
    return refuse_overlap(port, &found, pointer, bytes);
  }
  TARNI_RELAXED(port);
  const tarn_status status = tarni_port_host_register(port, pointer, bytes);
  if (status != TARN_OK) {
    range_remove(range);
    return status;
  }
  tarni_lock_acquire(&host_lock);
  range->is_busy = false;
  tarni_lock_release(&host_lock);
  return TARN_OK;
}

static tarn_status refuse_unregister(const tarni_port *port, const host_range *other,
                                     const void *pointer) {
  const tarni_facts facts = {.device = port->device.name};
  if (other == NULL || other->pool != NULL) {
    return tarni_fail(
        TARN_FOREIGN, "tarn_host_unregister", &facts,
        "Unregister what tarn_host_register registered, once.",
        other == NULL ? "nothing is registered at %p" : "%p is memory of a pinned pool", pointer);
  }
  if (other->first != (uintptr_t)pointer) {
    return tarni_fail(TARN_INTERIOR, "tarn_host_unregister", &facts,
                      "Pass the pointer with which the range was registered.",
                      "%p is inside of the %llu registered bytes at 0x%llx", pointer,
                      (unsigned long long)other->bytes, (unsigned long long)other->first);
  }
  return tarni_fail(TARN_BUSY, "tarn_host_unregister", &facts,
                    "Let one thread register or unregister a range at a time.",
                    "another thread is registering or unregistering %p", pointer);
}

tarn_status tarn_host_unregister(tarn_device *device, void *pointer) {
  tarni_port *port = (tarni_port *)device;
  if (port == NULL || pointer == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_host_unregister", NULL,
                      "Pass the device and the pointer that tarn_host_register was given.",
                      "the %s is NULL", port == NULL ? "device" : "pointer");
  }
  tarni_lock_acquire(&host_lock);
  host_range *range = range_overlapping(port->table, (uintptr_t)pointer, 1);
  const bool is_it =
      range != NULL && range->pool == NULL && !range->is_busy && range->first == (uintptr_t)pointer;
  const host_range found = range != NULL ? *range : (host_range){0};
  if (is_it) {
    range->is_busy = true;
  }
  tarni_lock_release(&host_lock);
  if (!is_it) {
    return refuse_unregister(port, range != NULL ? &found : NULL, pointer);
  }
  TARNI_RELAXED(port);
  const tarn_status status = tarni_port_host_unregister(port, pointer);
  if (status == TARN_OK || status == TARN_DEVICE_LOST) { /* a lost device holds nothing any more */
    range_remove(range);
    return TARN_OK;
  }
  tarni_lock_acquire(&host_lock);
  range->is_busy = false;
  tarni_lock_release(&host_lock);
  return status;
}

bool tarn_host_is_pinned(tarn_device *device, const void *pointer, uint64_t bytes) {
  const tarni_port *port = (const tarni_port *)device;
  const uint64_t first = (uintptr_t)pointer;
  if (port == NULL || pointer == NULL || bytes == 0 || bytes > UINT64_MAX - first) {
    return false;
  }
  tarni_lock_acquire(&host_lock);
  const host_range *range = range_overlapping(port->table, first, 1);
  const bool is = range != NULL && !range->is_busy &&
                  (range->pool != NULL ? tarn_pinned_owns(range->pool, pointer, bytes)
                                       : bytes <= range->bytes - (first - range->first));
  tarni_lock_release(&host_lock);
  return is;
}
