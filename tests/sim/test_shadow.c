/* SPDX-License-Identifier: MIT
 *
 * The shadow against an array with an entry a byte: random cuts, owners and merges, over the
 * boundaries of pages and leaves. */
#include <stdlib.h>

#include "base/rng.h"
#include "port/sim/sim.h"
#include "support/test.h"

enum { PAGE = 1 << SIM_SHADOW_PAGE_LOG2, WINDOW = 4096, N_ROUNDS = 4000 };

typedef struct shadow_model {
  uint64_t owners[WINDOW];
  uint64_t origin; /* offset of the window in the shadow */
  uint64_t n_seen, n_wrong;
} shadow_model;

static bool visit_set(sim_history **slot, uint64_t offset, uint64_t size, void *user) {
  (void)offset;
  (void)size;
  const uint64_t *owner = user;
  if (!tarni_sim_history_reserve(slot, 0)) {
    return false;
  }
  (*slot)->owner = *owner;
  return true;
}

static bool visit_compare(sim_history **slot, uint64_t offset, uint64_t size, void *user) {
  shadow_model *model = user;
  for (uint64_t i = 0; i < size; i++) {
    const uint64_t at = offset + i - model->origin;
    model->n_wrong += at >= WINDOW || model->owners[at] != (*slot != NULL ? (*slot)->owner : 0);
  }
  model->n_seen += size;
  return true;
}

static void random_owners(uint64_t shadow_size, uint64_t origin) {
  static shadow_model model;
  model = (shadow_model){.origin = origin};
  tarni_rng rng = {.state = origin + 1};
  sim_shadow *shadow = tarni_sim_shadow_make(shadow_size);
  REQUIRE(shadow != NULL);
  for (int i = 0; i < N_ROUNDS; i++) {
    const uint64_t from = tarni_rng_below(&rng, WINDOW);
    const uint64_t size = 1 + tarni_rng_below(&rng, WINDOW - from);
    uint64_t owner = 1 + tarni_rng_below(&rng, 4);
    if (tarni_rng_below(&rng, 2) == 0) {
      CHECK(tarni_sim_shadow_cut(shadow, origin + from, size));
      CHECK(tarni_sim_shadow_walk(shadow, origin + from, size, visit_set, &owner));
      for (uint64_t j = from; j < from + size; j++) {
        model.owners[j] = owner;
      }
    } else if (tarni_rng_below(&rng, 2) == 0) {
      tarni_sim_shadow_merge(shadow, origin + from, size);
    } else {
      model.n_seen = 0;
      CHECK(tarni_sim_shadow_cut(shadow, origin + from, size));
      CHECK(tarni_sim_shadow_walk(shadow, origin + from, size, visit_compare, &model));
      CHECK_EQ(model.n_seen, size);
    }
  }
  CHECK_EQ(model.n_wrong, 0);
  sim_use use;
  uint64_t owner = 0;
  CHECK(tarni_sim_shadow_example(shadow, &use, &owner));
  CHECK(owner >= 1 && owner <= 4 && use.epoch == 0);
  tarni_sim_shadow_drop(shadow);
}

static void owners_of_bytes(void) {
  random_owners(PAGE, 0);
  random_owners(WINDOW, 0); /* smaller than a page */
  random_owners(4 * (uint64_t)PAGE, PAGE - WINDOW / 2);
  random_owners((uint64_t)1 << 40, ((uint64_t)1 << 39) - WINDOW / 3); /* over two leaves */
}

/* What belongs together gets room for every use of it; a copy made by a split has it, too. */
static void room(void) {
  sim_history *history = NULL;
  for (uint32_t i = 1; i <= 100; i++) {
    CHECK(tarni_sim_history_reserve(&history, 5));
    CHECK_EQ(history->n_reserved, i);
    CHECK(history->capacity >= history->n_uses + i);
  }
  CHECK(tarni_sim_history_reserve(&history, 6)); /* another submission begins anew */
  CHECK_EQ(history->n_reserved, 1);
  sim_history *shared = history;
  shared->references++;
  shared->owner = 12;
  tarni_sim_store_fail(1);
  CHECK(!tarni_sim_history_reserve(&history, 6));
  CHECK(history == shared && shared->references == 2);
  tarni_sim_store_fail(0);
  CHECK(tarni_sim_history_reserve(&history, 6));
  CHECK(history != shared && history->owner == 12 && history->n_reserved == 2);
  CHECK_EQ(shared->references, 1);
  tarni_sim_history_drop(shared);
  tarni_sim_history_drop(history);
  tarni_sim_history_drop(NULL);
}

/* A failed cut loses nothing. */
static void cut_without_memory(void) {
  sim_shadow *shadow = tarni_sim_shadow_make(3 * (uint64_t)PAGE);
  uint64_t owner = 9;
  REQUIRE(shadow != NULL);
  CHECK(tarni_sim_shadow_cut(shadow, 0, 3 * (uint64_t)PAGE));
  CHECK(tarni_sim_shadow_walk(shadow, 0, 3 * (uint64_t)PAGE, visit_set, &owner));
  for (uint64_t i = 0; i < 64; i++) {
    tarni_sim_store_fail(1 + i % 3);
    (void)tarni_sim_shadow_cut(shadow, 10 * i + 1, 2 * (uint64_t)PAGE);
    tarni_sim_store_fail(0);
  }
  shadow_model *model = calloc(1, sizeof(*model));
  REQUIRE(model != NULL);
  for (int i = 0; i < WINDOW; i++) {
    model->owners[i] = 9;
  }
  CHECK(tarni_sim_shadow_cut(shadow, 0, WINDOW));
  CHECK(tarni_sim_shadow_walk(shadow, 0, WINDOW, visit_compare, model));
  CHECK_EQ(model->n_seen, WINDOW);
  CHECK_EQ(model->n_wrong, 0);
  free(model);
  tarni_sim_shadow_drop(shadow);
}

static const test_case cases[] = {
    {"owners of bytes", owners_of_bytes},
    {"room", room},
    {"a cut without memory", cut_without_memory},
};

TEST_MAIN(cases)
