/* SPDX-License-Identifier: MIT
 *
 * Vector clocks: for each slot the last epoch that is ordered before something. Pure; the memory of
 * a clock belongs to whoever holds it. On failure (no host memory) a clock is as it was. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "port/sim/sim.h"

void tarni_sim_clock_free(sim_clock *clock) {
  free(clock->epochs);
  *clock = (sim_clock){0};
}

bool tarni_sim_clock_room(sim_clock *clock, uint32_t n) {
  if (n <= clock->capacity) {
    return true;
  }
  const uint32_t capacity = n + n / 4 + 8;
  uint64_t *epochs = tarni_sim_store_resize(clock->epochs, capacity, sizeof(*epochs));
  if (epochs == NULL) {
    return false;
  }
  clock->epochs = epochs;
  clock->capacity = capacity;
  return true;
}

static bool clock_widen(sim_clock *clock, uint32_t n) {
  if (!tarni_sim_clock_room(clock, n)) {
    return false;
  }
  if (n > clock->n) {
    memset(clock->epochs + clock->n, 0, (n - clock->n) * sizeof(*clock->epochs));
    clock->n = n;
  }
  return true;
}

bool tarni_sim_clock_join(sim_clock *clock, const sim_clock *other) {
  if (!clock_widen(clock, other->n)) {
    return false;
  }
  for (uint32_t i = 0; i < other->n; i++) {
    if (other->epochs[i] > clock->epochs[i]) {
      clock->epochs[i] = other->epochs[i];
    }
  }
  return true;
}

bool tarni_sim_clock_raise(sim_clock *clock, uint32_t slot, uint64_t epoch) {
  if (!clock_widen(clock, slot + 1)) {
    return false;
  }
  if (epoch > clock->epochs[slot]) {
    clock->epochs[slot] = epoch;
  }
  return true;
}

void tarni_sim_clock_meet(sim_clock *clock, const sim_clock *other) {
  for (uint32_t i = 0; i < clock->n; i++) {
    clock->epochs[i] = tarni_min(clock->epochs[i], tarni_sim_clock_at(other, i));
  }
}
