/* SPDX-License-Identifier: MIT
 *
 * Host memory of the simulator itself: every byte that it asks the host for goes through here, so
 * that tests can let the n-th need fail, for every n. What fails leaves everything as it was. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

/* atomic: needs until one fails; 0: none will. A device is opened without the lock. */
static _Atomic uint64_t needs_left;
static _Atomic bool has_failed;

void tarni_sim_store_fail(uint64_t nth) {
  atomic_store(&needs_left, nth);
  atomic_store(&has_failed, false);
}

bool tarni_sim_store_has_failed(void) {
  return atomic_load(&has_failed);
}

bool tarni_sim_store_strikes(void) {
  if (TARNI_LIKELY(atomic_load_explicit(&needs_left, memory_order_relaxed) == 0)) {
    return false;
  }
  const bool is_struck = atomic_fetch_sub(&needs_left, 1) == 1;
  if (is_struck) {
    atomic_store(&has_failed, true);
  }
  return is_struck;
}

void *tarni_sim_store_zeroed(size_t n, size_t size) {
  return tarni_sim_store_strikes() ? NULL : calloc(n, size);
}

void *tarni_sim_store_resize(void *memory, size_t n, size_t size) {
  uint64_t bytes;
  if (tarni_sim_store_strikes() || !tarni_mul(n, size, &bytes)) {
    return NULL;
  }
  return realloc(memory, bytes);
}

bool tarni_sim_array_insert(sim_array *array, uint32_t at, void *item) {
  tarn_assert(at <= array->n);
  if (array->n == array->capacity) {
    const uint32_t wider = array->capacity + array->capacity / 2 + 4;
    void **items = tarni_sim_store_resize(array->items, wider, sizeof(*items));
    if (items == NULL) {
      return false;
    }
    array->items = items;
    array->capacity = wider;
  }
  memmove(array->items + at + 1, array->items + at, (array->n - at) * sizeof(*array->items));
  array->items[at] = item;
  array->n++;
  return true;
}

void tarni_sim_array_remove(sim_array *array, uint32_t at) {
  tarn_assert(at < array->n);
  array->n--;
  memmove(array->items + at, array->items + at + 1, (array->n - at) * sizeof(*array->items));
}
