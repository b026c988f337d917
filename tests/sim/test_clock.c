/* SPDX-License-Identifier: MIT
 *
 * Vector clocks: join, meet, raise, room, and what they leave alone when there is no memory. */
#include "port/sim/sim.h"
#include "support/test.h"

static void join_and_raise(void) {
  sim_clock a = {0}, b = {0};
  CHECK_EQ(tarni_sim_clock_at(&a, 0), 0);
  CHECK_EQ(tarni_sim_clock_at(&a, UINT32_MAX), 0);
  CHECK(tarni_sim_clock_raise(&a, 3, 7));
  CHECK(tarni_sim_clock_raise(&a, 3, 5)); /* never back */
  CHECK_EQ(tarni_sim_clock_at(&a, 3), 7);
  CHECK_EQ(a.n, 4);
  CHECK(tarni_sim_clock_raise(&b, 3, 6));
  CHECK(tarni_sim_clock_raise(&b, 100, 9));
  CHECK(tarni_sim_clock_join(&a, &b));
  CHECK_EQ(tarni_sim_clock_at(&a, 3), 7);
  CHECK_EQ(tarni_sim_clock_at(&a, 100), 9);
  CHECK_EQ(tarni_sim_clock_at(&a, 99), 0);
  CHECK(tarni_sim_clock_join(&b, &a));
  for (uint32_t i = 0; i < 128; i++) {
    CHECK_EQ(tarni_sim_clock_at(&a, i), tarni_sim_clock_at(&b, i));
  }
  tarni_sim_clock_free(&a);
  tarni_sim_clock_free(&b);
  CHECK(a.epochs == NULL && a.n == 0);
}

static void meet(void) {
  sim_clock a = {0}, b = {0};
  CHECK(tarni_sim_clock_raise(&a, 1, 5) && tarni_sim_clock_raise(&a, 9, 4));
  CHECK(tarni_sim_clock_raise(&b, 1, 3) && tarni_sim_clock_raise(&b, 2, 8));
  tarni_sim_clock_meet(&a, &b);
  CHECK_EQ(tarni_sim_clock_at(&a, 1), 3);
  CHECK_EQ(tarni_sim_clock_at(&a, 2), 0);
  CHECK_EQ(tarni_sim_clock_at(&a, 9), 0);
  tarni_sim_clock_free(&a);
  tarni_sim_clock_free(&b);
}

static void without_memory(void) {
  sim_clock a = {0}, b = {0};
  CHECK(tarni_sim_clock_raise(&a, 0, 1) && tarni_sim_clock_raise(&b, 1000, 2));
  tarni_sim_store_fail(1);
  CHECK(!tarni_sim_clock_join(&a, &b));
  CHECK_EQ(a.n, 1);
  CHECK_EQ(tarni_sim_clock_at(&a, 0), 1);
  tarni_sim_store_fail(1);
  CHECK(!tarni_sim_clock_raise(&a, 500, 1));
  CHECK_EQ(a.n, 1);
  /* With room made before, nothing is needed. */
  CHECK(tarni_sim_clock_room(&a, b.n));
  CHECK_EQ(a.n, 1);
  tarni_sim_store_fail(1);
  CHECK(tarni_sim_clock_join(&a, &b));
  CHECK(!tarni_sim_store_has_failed());
  tarni_sim_store_fail(0);
  CHECK_EQ(tarni_sim_clock_at(&a, 1000), 2);
  CHECK_EQ(tarni_sim_clock_at(&a, 999), 0);
  tarni_sim_clock_free(&a);
  tarni_sim_clock_free(&b);
}

static const test_case cases[] = {
    {"join and raise", join_and_raise},
    {"meet", meet},
    {"without memory", without_memory},
};

TEST_MAIN(cases)
