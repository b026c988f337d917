/* SPDX-License-Identifier: MIT
 *
 * What the recorded programs in traces/ cost on the simulated GPU: memory, driver calls and their
 * time by the virtual clock. These are the same on every machine, so traces/figures.csv has them,
 * and none may become worse. One that is better is told, to be written down there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/test.h"
#include "tools/replay.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

enum { PASSES = 3, MAX_LINE = 256 };

typedef struct figures {
  char trace[64];
  uint64_t reserved_peak_bytes; /* first pass, from empty */
  uint64_t fit_bytes;           /* the smallest device that it runs on */
  uint64_t driver_calls, driver_ns;
  uint64_t driver_calls_third; /* in the third pass */
} figures;

/* A figure that is worse fails, one that is better is told. */
static void compare(const figures *known, const char *name, uint64_t bound, uint64_t found) {
  if (!CHECK(found <= bound)) {
    test_note("%s: %s is %llu, and was %llu", known->trace, name, (unsigned long long)found,
              (unsigned long long)bound);
  } else if (found < bound) {
    test_note("%s: %s is %llu now, was %llu: to be written into traces/figures.csv", known->trace,
              name, (unsigned long long)found, (unsigned long long)bound);
  }
}

static void check_trace(const figures *known, const trace *t) {
  static replay_result result;
  const replay_plan plan = {
      .device = "sim", .stealing = TARN_STEAL_ALWAYS, .seed = 1, .n_passes = PASSES};
  REQUIRE(replay_run(known->trace, t, &plan, &result));
  REQUIRE_OK(result.status);
  CHECK_EQ(result.violations, 0);
  compare(known, "reserved_peak_bytes", known->reserved_peak_bytes, result.reserved_peak_bytes);
  compare(known, "driver_calls", known->driver_calls, result.first.n_calls);
  compare(known, "driver_ns", known->driver_ns, result.first.total_ns);
  compare(known, "driver_calls_third", known->driver_calls_third, result.last.n_calls);
  uint64_t fit_bytes = 0;
  CHECK(replay_fit(known->trace, t, &plan, &result, &fit_bytes));
  CHECK(fit_bytes >= t->live_peak_bytes);
  compare(known, "fit_bytes", known->fit_bytes, fit_bytes);
}

/* The line's words; false: it has others, or too few. */
static bool parse_line(char *line, figures *out) {
  uint64_t *const numbers[] = {&out->reserved_peak_bytes, &out->fit_bytes, &out->driver_calls,
                               &out->driver_ns, &out->driver_calls_third};
  char *at = strchr(line, ',');
  if (at == NULL || (size_t)(at - line) >= sizeof(out->trace)) {
    return false;
  }
  *out = (figures){.trace = ""};
  memcpy(out->trace, line, (size_t)(at - line));
  for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    if (*at != ',') {
      return false;
    }
    *numbers[i] = strtoull(at + 1, &at, 10);
  }
  return *at == '\n';
}

static void none_is_worse(void) {
  if (IS_SANITIZED) {
    test_skip("the figures are the same with a sanitizer, which takes long");
    return;
  }
  char line[MAX_LINE];
  FILE *file = fopen("traces/figures.csv", "r");
  REQUIRE(file != NULL);
  CHECK(fgets(line, sizeof(line), file) != NULL); /* the names of its columns */
  int n = 0;
  for (; fgets(line, sizeof(line), file) != NULL; n++) {
    figures known;
    trace t;
    char path[MAX_LINE], message[TRACE_ERROR];
    REQUIRE(parse_line(line, &known));
    (void)snprintf(path, sizeof(path), "traces/%s.trace.gz", known.trace);
    if (!CHECK(trace_open(path, &t, message))) {
      test_note("%s", message);
      break;
    }
    check_trace(&known, &t);
    trace_close(&t);
  }
  CHECK_EQ(fclose(file), 0);
  CHECK(n >= 9);
}

static const test_case cases[] = {{"none is worse", none_is_worse}};

TEST_MAIN(cases)
