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

static uint64_t run_once(uint32_t n_helpers, uint64_t nth, uint64_t times, int code,
                         tarn_status expected) {
  static fault_transfers t;
  t = (fault_transfers){.expected = expected, .is_for_good = times == 0};
  if (!fault_transfers_open(&t, "sim:64M,seed=3", n_helpers)) {
    return 0;
  }
  CHECK_OK(tarn_sim_fail(t.dock.rig.device, TARN_CALL_COUNT, nth, times, code));
  t.is_armed = true;
  fault_transfers_play(&t);
  uint64_t n = 0;
  CHECK_OK(tarn_sim_failed(t.dock.rig.device, &n));
  CHECK_OK(tarn_sim_fail(t.dock.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  if (n != 0 && expected == TARN_DEVICE_LOST) {
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

static void run_all(uint32_t n_helpers) {
  static const struct {
    int code;
    tarn_status status;
  } rows[] = {{1, TARN_INVALID}, {2, TARN_DEVICE_MEMORY}, {700, TARN_DEVICE_LOST}};
  uint64_t n_runs = 0;
  for (unsigned i = 0; i < 3; i++) {
    for (uint64_t times = 0; times < 2; times++) {
      for (uint64_t nth = 1;
           nth < MAX_CALLS && run_once(n_helpers, nth, times, rows[i].code, rows[i].status) != 0;
           nth++) {
        n_runs++;
        if (test_case_failed()) {
          test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                    times == 0 ? "for good" : "once", rows[i].code);
          return;
        }
      }
    }
  }
  CHECK(n_runs > 100);
  test_note("%llu faults", (unsigned long long)n_runs);
}

static void alone(void) {
  run_all(0);
}

static void with_helpers(void) {
  run_all(2);
}

static const test_case cases[] = {
    {"driver_calls", alone},
    {"driver_calls_with_helpers", with_helpers},
};

TEST_MAIN(cases)
