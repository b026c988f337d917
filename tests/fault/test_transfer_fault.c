/* SPDX-License-Identifier: MIT
 *
 * The n-th driver call fails during transfers, for every n, once and for good: the call that needed
 * it says so, no byte is wrong, no destination of a batch has changed, and once the fault is over
 * everything works and nothing is left: neither pinned nor device memory, nor an event. */
#include "fault/fault_transfer.h"
#include "support/test.h"

enum { MAX_CALLS = 5000 };

/* A stream of which the driver said that it is not there counts as gone, until its user shows that
 * it is. What was in quarantine comes back. */
static void show_streams(fault_transfers *t) {
  for (int i = 0; i < t->dock.rig.n_streams; i++) {
    CHECK_OK(tarn_stream_retire(t->dock.rig.heap, t->dock.rig.streams[i]));
    CHECK_OK(tarn_copier_stream_retire(t->dock.copier, t->dock.rig.streams[i]));
  }
  CHECK_EQ(dock_stats(&t->dock).quarantined_bytes, 0);
}

typedef struct fault_kind {
  int code; /* of the driver */
  tarn_status status;
} fault_kind;

static uint64_t run_once(uint32_t n_helpers, uint64_t nth, uint64_t times, const fault_kind *kind) {
  static fault_transfers t;
  t = (fault_transfers){.expected = kind->status, .is_for_good = times == 0};
  if (!fault_transfers_open(&t, "sim:64M,seed=3", n_helpers)) {
    return 0;
  }
  CHECK_OK(tarn_sim_fail(t.dock.rig.device, TARN_CALL_COUNT, nth, times, kind->code));
  t.is_armed = true;
  fault_transfers_play(&t);
  uint64_t n = 0;
  CHECK_OK(tarn_sim_failed(t.dock.rig.device, &n));
  CHECK_OK(tarn_sim_fail(t.dock.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  if (n != 0 && kind->status == TARN_DEVICE_LOST) {
    fault_transfers_bury(&t);
    return n;
  }
  t.is_armed = false;
  show_streams(&t);
  const uint64_t n_failed = t.n_failed;
  fault_transfers_play(&t);
  CHECK_EQ(t.n_failed, n_failed);
  CHECK_EQ(dock_pinned_live(&t.dock), 0);
  fault_transfers_close(&t);
  return n;
}

/* Every n-th call where step is 1. */
static void run_all(uint32_t n_helpers, const fault_kind *kind, uint64_t step) {
  uint64_t n_runs = 0;
  for (uint64_t times = 0; times < 2; times++) {
    for (uint64_t nth = 1; nth < MAX_CALLS && run_once(n_helpers, nth, times, kind) != 0;
         nth += step) {
      n_runs++;
      if (test_case_failed()) {
        test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                  times == 0 ? "for good" : "once", kind->code);
        return;
      }
    }
  }
  CHECK(n_runs > 20);
  test_note("%llu faults", (unsigned long long)n_runs);
}

static void refused(void) {
  const fault_kind kind = {1, TARN_INVALID};
  run_all(0, &kind, 1);
}

static void out_of_memory(void) {
  const fault_kind kind = {2, TARN_DEVICE_MEMORY};
  run_all(0, &kind, 5);
}

static void lost(void) {
  const fault_kind kind = {700, TARN_DEVICE_LOST};
  run_all(0, &kind, 5);
}

static void with_helpers(void) {
  const fault_kind kind = {1, TARN_INVALID};
  run_all(2, &kind, 3);
}

static const test_case cases[] = {
    {"refused", refused},
    {"out_of_memory", out_of_memory},
    {"lost", lost},
    {"with_helpers", with_helpers},
};

TEST_MAIN(cases)
