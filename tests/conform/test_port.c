/* SPDX-License-Identifier: MIT
 *
 * The conformance suite of the port contract (src/port/port.h). The device is TARN_TEST_DEVICE,
 * "sim:seed=1" where that is not set; a GPU that is not there makes the suite skipped. */
#include <stdio.h>
#include <stdlib.h>

#include "conform/conform.h"

enum { MOST_CASES = 256 };

static bool is_whole_suite;

/* What the port was asked for is what it counted: every entry of the table has been called. */
static void every_call_was_made(void) {
  if (!is_whole_suite) {
    test_skip("only a part of the suite ran");
    return;
  }
  for (int call = 0; call < TARN_CALL_COUNT; call++) {
    const uint64_t count = atomic_load(&conform_port->calls[call]);
    if (!CHECK(count > 0)) {
      test_note("%s was never counted", tarn_call_name((tarn_call)call));
    }
  }
}

static void nothing_was_found(void) {
  CHECK_EQ(conform_findings(), 0);
}

static const test_case last_cases[] = {
    {"last: every call was made and counted", every_call_was_made},
    {"last: no finding of the simulated GPU is left", nothing_was_found},
};

static int add_cases(test_case *cases, int count, const test_case *more, int n_more) {
  for (int i = 0; i < n_more && count < MOST_CASES; i++) {
    cases[count++] = more[i];
  }
  return count;
}

static int run_suite(int argc, char **argv) {
  static test_case cases[MOST_CASES];
  int count = 0;
#define ADD_TOPIC(topic)                                                                           \
  count = add_cases(cases, count, conform_##topic.cases, conform_##topic.count);
  CONFORM_TOPICS(ADD_TOPIC)
#undef ADD_TOPIC
  count = add_cases(cases, count, last_cases, (int)(sizeof(last_cases) / sizeof(last_cases[0])));
  if (count == MOST_CASES) {
    test_note("the table of cases is full: raise MOST_CASES");
    return 1;
  }
  return test_run(cases, count, argc, argv);
}

/* A GPU that is not there is a reason to skip; everything else that fails here is a failure. */
static int report_open_failure(const char *name, tarn_status status) {
  const bool is_absent = status == TARN_NO_DEVICE || status == TARN_NO_DRIVER;
  printf("1..0 # %s %s: %s\n", is_absent ? "SKIP" : "FAILED", name, tarn_last_message());
  return is_absent ? 77 : 1;
}

int main(int argc, char **argv) {
  const char *child = getenv("TARN_TEST_CHILD");
  const char *given = getenv("TARN_TEST_DEVICE");
  const char *name = given != NULL && given[0] != '\0' ? given : "sim:seed=1";
  tarni_port *port;
  const tarn_status status = tarni_port_open(name, &port);
  if (status != TARN_OK) {
    return report_open_failure(name, status);
  }
  if (child != NULL) {
    conform_port = port;
    return conform_child_main(child);
  }
  test_note("device %s: %s, driver %d", port->device.name, port->device.model,
            (int)port->device.driver_version);
  if (!conform_start(port)) {
    test_note("the device cannot be prepared: %s", tarn_last_message());
    return 1;
  }
  is_whole_suite = argc < 2;
  const int result = run_suite(argc, argv);
  return conform_stop() == 0 ? result : 1;
}
