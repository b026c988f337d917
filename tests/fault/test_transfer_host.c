/* SPDX-License-Identifier: MIT
 *
 * The n-th allocation of host memory fails inside a call of a transfer, for every n, once and for
 * good: the call says so, no destination has changed, giving back goes through all the same, and
 * once there is memory again the same calls succeed. What the simulated driver allocates counts,
 * too. */
#include "fault/fault_memory.h"
#include "fault/fault_transfer.h"
#include "support/test.h"

enum { MAX_CALLS = 5000 };

static uint64_t run_once(uint64_t nth, bool for_good) {
  static fault_transfers t;
  t = (fault_transfers){.expected = TARN_HOST_MEMORY,
                        .is_for_good = for_good,
                        .on_call = fault_memory_inside,
                        .is_armed = true};
  if (!fault_transfers_open(&t, "sim:64M,seed=4", 0)) {
    return 0;
  }
  fault_memory_arm(nth, for_good);
  fault_transfers_play(&t);
  const uint64_t n = fault_memory_disarm();
  t.is_armed = false;
  const uint64_t n_failed = t.n_failed;
  fault_transfers_play(&t);
  CHECK_EQ(t.n_failed, n_failed);
  fault_transfers_close(&t);
  return n;
}

static void host_allocations(void) {
  if (!fault_memory_can_fail()) {
    test_skip("this build's allocator cannot be made to fail");
    return;
  }
  uint64_t n_runs = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    for (uint64_t nth = 1; nth < MAX_CALLS && run_once(nth, for_good != 0) != 0; nth++) {
      n_runs++;
      if (test_case_failed()) {
        test_note("the fault was: allocation %llu, %s", (unsigned long long)nth,
                  for_good != 0 ? "for good" : "once");
        return;
      }
    }
  }
  CHECK(n_runs > 20);
  test_note("%llu faults", (unsigned long long)n_runs);
}

static const test_case cases[] = {
    {"host_allocations", host_allocations},
};

TEST_MAIN(cases)
