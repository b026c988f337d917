/* SPDX-License-Identifier: MIT
 *
 * tarn replay and tarn bench: small traces with known answers, the fields of their JSON, and what
 * they say about wrong use. The command is looked for in TARN_TEST_BUILD_DIR. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"
#include "tools/bench.h"
#include "tools/replay.h"

enum { OUTPUT_CAPACITY = 1 << 18, SMALL_DEVICE = 1 << 30 };

static char output[OUTPUT_CAPACITY];
static char trace_path[64];

/* Runs `<before> tarn <arguments>` with both outputs kept; the exit status, -1 when it cannot be
 * run. */
static int run_tool_with(const char *before, const char *arguments) {
  char command[1024];
  (void)snprintf(command, sizeof(command), "exec 2>&1; unset TARN_DEVICE; %s '%s/tarn' %s", before,
                 getenv("TARN_TEST_BUILD_DIR"), arguments);
  FILE *pipe = popen(command, "r");
  if (pipe == NULL) {
    return -1;
  }
  output[fread(output, 1, sizeof(output) - 1, pipe)] = '\0';
  const int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int run_tool(const char *arguments) {
  return run_tool_with("", arguments);
}

static bool cannot_run(void) {
  if (getenv("TARN_TEST_BUILD_DIR") == NULL) {
    test_skip("TARN_TEST_BUILD_DIR is not set: run by ctest");
    return true;
  }
  return false;
}

/* A trace of two streams: 3 MiB and 64 MiB live at its peak, and one block that it never frees. */
static const char small_trace[] = "a 0 3145728 0\n"
                                  "a 1 67108864 1\n"
                                  "f 1\n"
                                  "a 2 0 0\n"
                                  "a 3 1000 0\n"
                                  "f 0\n"
                                  "f 2\n";

static void write_trace(void) {
  (void)snprintf(trace_path, sizeof(trace_path), "/tmp/tarn-test-replay-%d", (int)getpid());
  FILE *file = fopen(trace_path, "w");
  REQUIRE(file != NULL);
  CHECK(fputs(small_trace, file) >= 0);
  CHECK_EQ(fclose(file), 0);
}

/* The number of a member of some JSON; -1 when it has none. */
static double member_of(const char *json, const char *name) {
  char pattern[64];
  (void)snprintf(pattern, sizeof(pattern), "\"%s\": ", name);
  const char *at = strstr(json, pattern);
  return at != NULL ? strtod(at + strlen(pattern), NULL) : -1;
}

static double member(const char *name) {
  return member_of(output, name);
}

/* ---- Running -------------------------------------------------------------------------------- */

static bool read_small(trace *t) {
  char message[TRACE_ERROR];
  return CHECK(trace_parse("small", small_trace, strlen(small_trace), t, message));
}

static void what_is_counted(void) {
  static replay_result result;
  trace t;
  replay_plan plan = {.device = "sim", .capacity_bytes = SMALL_DEVICE, .seed = 3, .n_passes = 4};
  REQUIRE(read_small(&t));
  CHECK_EQ(t.live_peak_bytes, 3145728 + 67108864);
  CHECK(replay_run("small", &t, &plan, &result));
  CHECK_STATUS(result.status, TARN_OK);
  CHECK_HAS(result.device.name, "seed=3");
  CHECK_EQ(result.violations, 0);
  CHECK(result.reserved_peak_bytes >= t.live_peak_bytes);
  CHECK(result.reserved_peak_bytes <= result.reserved_peak_repeat_bytes);
  CHECK_EQ(result.stats.live_blocks, 0);
  CHECK_EQ(result.stats.frees, result.stats.allocations);
  /* The heap's own calls, and nothing of the replay's. */
  CHECK(result.first.calls[TARN_CALL_RESERVE] >= 1 && result.first.calls[TARN_CALL_CREATE] >= 1);
  CHECK_EQ(result.first.calls[TARN_CALL_STREAM_CREATE], 0);
  CHECK_EQ(result.first.calls[TARN_CALL_STREAM_SYNC], 0);
  uint64_t calls = 0, ns = 0;
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    calls += result.first.calls[i];
    ns += result.first.nanoseconds[i];
  }
  CHECK_EQ(result.first.n_calls, calls);
  CHECK_EQ(result.first.total_ns, ns);
  CHECK(ns > 0 && result.last.n_calls < calls);
  trace_close(&t);
}

/* With statistics: the first pass by itself, and the heap as it was at the peak. */
static void statistics(void) {
  static replay_result result;
  trace t;
  const replay_plan plan = {
      .device = "sim", .capacity_bytes = SMALL_DEVICE, .seed = 3, .n_passes = 2, .has_stats = true};
  REQUIRE(read_small(&t));
  CHECK(replay_run("small", &t, &plan, &result));
  CHECK_STATUS(result.status, TARN_OK);
  CHECK(result.scope.is_exact);
  CHECK_EQ(result.scope.allocations, 3); /* one of no bytes is none */
  CHECK_EQ(result.scope.frees, 3);
  CHECK_EQ(result.scope.live_peak_bytes, t.live_peak_bytes);
  CHECK_EQ(result.scope.live_end_bytes, 0);
  CHECK_EQ(result.scope.reserved_peak_bytes, result.reserved_peak_bytes);
  CHECK_EQ(result.peak_stats.live_bytes, t.live_peak_bytes);
  CHECK_EQ(result.peak_histogram.n_rows, 2);
  CHECK_EQ(result.peak_histogram.rows[1].live_bytes, 67108864);
  CHECK_EQ(result.violations, 0);
  trace_close(&t);
}

/* Too little memory is a result, not a failure, and leaves nothing behind for the oracle. */
static void shortage(void) {
  static replay_result result;
  trace t;
  const replay_plan plan = {.device = "sim", .capacity_bytes = 32 << 20, .seed = 1, .n_passes = 1};
  REQUIRE(read_small(&t));
  CHECK(replay_run("small", &t, &plan, &result));
  CHECK(result.status == TARN_DEVICE_MEMORY || result.status == TARN_LIMIT);
  CHECK_EQ(result.failed_event, 1);
  CHECK_HAS(result.message, "67108864");
  CHECK_EQ(result.violations, 0);
  trace_close(&t);
}

static void a_device_that_is_not_there(void) {
  static replay_result result;
  trace t;
  const replay_plan plan = {.device = "nope", .n_passes = 1};
  REQUIRE(read_small(&t));
  CHECK(!replay_run("small", &t, &plan, &result));
  CHECK_HAS(result.message, "nope");
  trace_close(&t);
}

/* What fits, fits; a unit or 0.2 % less does not, or is less than what is live. */
static void fitting(void) {
  static replay_result result;
  trace t;
  replay_plan plan = {.device = "sim", .capacity_bytes = SMALL_DEVICE, .seed = 1, .n_passes = 1};
  uint64_t fit_bytes = 0;
  REQUIRE(read_small(&t));
  REQUIRE(replay_run("small", &t, &plan, &result) && result.status == TARN_OK);
  const uint64_t unit = result.device.granularity_bytes;
  result.violations = 2; /* as if something had been found in the run before */
  (void)snprintf(result.finding, sizeof(result.finding), "the first");
  CHECK(replay_fit("small", &t, &plan, &result, &fit_bytes));
  CHECK_EQ(result.violations, 2);
  CHECK_TEXT(result.finding, "the first");
  CHECK(fit_bytes >= t.live_peak_bytes && fit_bytes % unit == 0);
  /* Statistics change what the heap does, so none are taken while it is searched. */
  const uint64_t fit_before = fit_bytes;
  plan.has_stats = true;
  CHECK(replay_fit("small", &t, &plan, &result, &fit_bytes));
  CHECK_EQ(result.scope.allocations, 0);
  CHECK_EQ(fit_bytes, fit_before);
  plan.has_stats = false;
  plan.capacity_bytes = fit_bytes;
  CHECK(replay_run("small", &t, &plan, &result));
  CHECK_STATUS(result.status, TARN_OK);
  plan.capacity_bytes = fit_bytes - unit;
  if (plan.capacity_bytes >= t.live_peak_bytes) {
    CHECK(replay_run("small", &t, &plan, &result) && result.status != TARN_OK);
  }
  trace_close(&t);
}

/* ---- The commands --------------------------------------------------------------------------- */

static void replay_as_json(void) {
  static const char *const names[] = {
      "events",       "live_peak_bytes", "reserved_peak_bytes",      "ratio",      "fit_bytes",
      "driver_calls", "driver_ns",       "driver_calls_last_repeat", "violations", "ns_per_event"};
  char arguments[256];
  if (cannot_run()) {
    return;
  }
  write_trace();
  (void)snprintf(arguments, sizeof(arguments), "replay --device sim --json --fit --repeat 3 %s %s",
                 trace_path, trace_path);
  CHECK_EQ(run_tool(arguments), 0);
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    if (!CHECK(member(names[i]) >= 0)) {
      test_note("no member %s in %s", names[i], output);
    }
  }
  CHECK_HAS(output, "{\"trace\": \"tarn-test-replay-");
  CHECK_EQ(member("events"), 7);
  CHECK_EQ(member("live_peak_bytes"), 70254592);
  CHECK_EQ(member("violations"), 0);
  const double ratio = member("reserved_peak_bytes") / member("live_peak_bytes");
  CHECK(member("ratio") > ratio - 1e-4 && member("ratio") < ratio + 1e-4);
  /* One object a line. */
  const char *end = strchr(output, '\n');
  CHECK(end != NULL && end[1] == '{' && strchr(end + 1, '\n')[1] == '\0');
  CHECK_EQ(remove(trace_path), 0);
}

/* A simulated GPU of which nothing else is said has the capacity and the seed that are given. */
static void replay_on_a_plain_device(void) {
  char arguments[256];
  if (cannot_run()) {
    return;
  }
  write_trace();
  (void)snprintf(arguments, sizeof(arguments), "replay --json --capacity 1G --seed 7 %s",
                 trace_path);
  CHECK_EQ(run_tool_with("TARN_DEVICE=sim", arguments), 0);
  CHECK_HAS(output, "\"device\": \"sim:1G,seed=7\"");
  CHECK_EQ(run_tool_with("TARN_DEVICE=sim:2G", arguments), 2);
  CHECK_HAS(output, "--seed does not change 'sim:2G': --device sim:2G,seed=7");
  (void)snprintf(arguments, sizeof(arguments), "replay --json --capacity 1G %s", trace_path);
  CHECK_EQ(run_tool_with("TARN_DEVICE=sim:2G", arguments), 0);
  CHECK_HAS(output, "\"device\": \"sim:2G\"");
  CHECK_EQ(remove(trace_path), 0);
}

/* What a heap fills on its own account it has asked of the driver. */
static void replay_of_a_heap_that_fills(void) {
  char arguments[256];
  if (cannot_run()) {
    return;
  }
  write_trace();
  (void)snprintf(arguments, sizeof(arguments), "replay --device sim --json %s", trace_path);
  CHECK_EQ(run_tool_with("TARN_FILL_ALLOC=90", arguments), 0);
  CHECK_EQ(member("fill"), 3); /* of its allocations, none of no bytes */
  CHECK_EQ(run_tool(arguments), 0);
  CHECK(member("fill") < 0);
  CHECK_EQ(remove(trace_path), 0);
}

static void replay_with_statistics(void) {
  static const char *const texts[] = {"pass 1: 3 allocations of 67.0 MiB",
                                      "most live at once 67 MiB",
                                      "fragmentation",
                                      "BLOCK",
                                      "64 MiB          1",
                                      "DRIVER CALL",
                                      "reserve                     1"};
  char arguments[256];
  if (cannot_run()) {
    return;
  }
  write_trace();
  (void)snprintf(arguments, sizeof(arguments), "replay --device sim --stats %s", trace_path);
  CHECK_EQ(run_tool(arguments), 0);
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    if (!CHECK_HAS(output, texts[i])) {
      test_note("printed: %s", output);
    }
  }
  (void)snprintf(arguments, sizeof(arguments), "replay --device sim --stats --json %s", trace_path);
  CHECK_EQ(run_tool(arguments), 0);
  CHECK_HAS(output, "\"stats\": {\"allocations\": 3, ");
  CHECK_HAS(output, "\"histogram\": [{\"block_bytes\": 2097152, \"live_blocks\": 1, ");
  CHECK_EQ(remove(trace_path), 0);
}

static void replay_as_a_table(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_tool("replay --device=sim --repeat 2 traces/resnet_train.trace.gz"), 0);
  CHECK_HAS(output, "resnet_train");
  CHECK_HAS(output, "( 1.32)"); /* what PyTorch reserved by what was live */
  CHECK_HAS(output, "( 1.02)");
  CHECK(strchr(output, '\r') == NULL); /* no progress bar in a pipe */
}

static void benches(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_tool("bench"), 0);
  CHECK_HAS(output, "bench pair");
  CHECK_HAS(output, "bench random");
  CHECK_EQ(run_tool("bench random --device sim --case 1000:1"), 0);
  CHECK_HAS(output, "FIRST");
  CHECK_EQ(run_tool("bench random --device sim --json --case 1000:4"), 0);
  CHECK_HAS(output, "\"allocator\": \"tarn\", \"allocations\": 1000, \"max_mib\": 4");
  CHECK_EQ(member("live_peak_bytes"), 1332080261);
  CHECK(member("reserved_peak_bytes") >= 1332080261);
  CHECK(member("ms") > 0);
}

static void medians(void) {
  double odd[] = {3, 1, 2}, even[] = {4, 1, 2, 30}, two[] = {1, 2}, one[] = {7};
  CHECK(bench_median(odd, 3) == 2);
  CHECK(bench_median(even, 4) == 3);
  CHECK(bench_median(two, 2) == 1.5);
  CHECK(bench_median(one, 1) == 7);
}

/* Beside a library that wants room which glibc does not keep unless it is told to. */
static int run_pairs(const char *before, const char *options) {
  char arguments[512];
  (void)snprintf(arguments, sizeof(arguments),
                 "bench pair --device sim %s --peer '%s/tests/support/fake_peer.so'", options,
                 getenv("TARN_TEST_BUILD_DIR"));
  return run_tool_with(before, arguments);
}

/* Every thread makes pairs of its own, but two make those that one frees for the other. */
static void check_rates(void) {
  uint32_t n_rows = 0, n_remote = 0;
  for (char *row = strtok(output, "\n"); row != NULL; row = strtok(NULL, "\n"), n_rows++) {
    if (*row != '{') {
      continue; /* a word on stderr */
    }
    const bool is_remote = strstr(row, "freed_by_another") != NULL;
    const double rate = member_of(row, "million_pairs_per_second");
    const double threads = is_remote ? 1 : member_of(row, "threads");
    const double expected = threads * 1e3 / member_of(row, "ns_per_pair");
    n_remote += is_remote;
    const double off = rate > expected ? rate - expected : expected - rate;
    if (!CHECK(off < expected * 0.01 + 0.001)) { /* the rate is printed to a thousandth */
      test_note("%.1f million expected: %s", expected, row);
    }
  }
  CHECK(n_remote != 0 && n_remote < n_rows);
}

static void pairs(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_pairs("unset GLIBC_TUNABLES;", "--json --rounds 3"), 0);
  static const char *const texts[] = {"\"case\": \"own_streams\", \"allocator\": \"tarn\"",
                                      "\"bytes\": 256, \"threads\": 1",
                                      "\"allocator\": \"floor\"",
                                      "\"allocator\": \"malloc\"",
                                      "\"allocator\": \"roomy\"",
                                      "\"bytes\": 33554432",
                                      "\"case\": \"two_streams\"",
                                      "\"case\": \"live_1000\"",
                                      "\"case\": \"freed_by_another\""};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    CHECK_HAS(output, texts[i]);
  }
  CHECK(member("ns_per_pair") > 0 && member("best_ns_per_pair") <= member("ns_per_pair"));
  CHECK_EQ(member("driver_calls"), 0); /* of the first case */
  check_rates();
}

/* None is larger than what was asked for. */
static void copies(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_tool("bench copy --device sim --rounds 1 --json --max 60K"), 0);
  CHECK_HAS(output, "\"case\": \"up\", \"way\": \"tarn\", \"bytes\": 4096, ");
  CHECK_HAS(output, "\"case\": \"pieces\", \"way\": \"tarn, apart\"");
  CHECK(strstr(output, "\"bytes\": 65536,") == NULL);
}

/* Who has told glibc something is asked to tell it this, too. */
static void a_peer_that_finds_no_room(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_pairs("GLIBC_TUNABLES=glibc.malloc.check=0", "--rounds 1"), 0);
  CHECK_HAS(output, "peer is not here: ");
  CHECK_HAS(output, "static TLS");
}

static void wrong_words(void) {
  static const struct {
    const char *arguments;
    int status;
    const char *message;
  } uses[] = {
      {"replay", 2, "a trace is needed"},
      {"replay --bogus x", 2, "--bogus"},
      {"replay --stealing often x", 2, "short, never or always"},
      {"replay --backing host x", 2, "--backing takes vmm, pool or plain, not 'host'"},
      {"replay --rounding default x", 2, "classes, exact or power-of-two"},
      {"replay --preset x x", 2, "none, power-buckets or exact-pool"},
      {"replay --repeat 0 x", 2, "from 1 to"},
      {"replay --seed -1 x", 2, "--seed '-1' is not a number"},
      {"replay --device sim:1G --seed 7 x", 2, "--seed does not change 'sim:1G'"},
      {"replay --capacity 12Q x", 2, "--capacity '12Q' is not a number of bytes"},
      {"replay --capacity 0 x", 2, "a capacity of 0 bytes"},
      {"replay --capacity 99999999999999999999 x", 2, "is not a number of bytes"},
      {"replay /nowhere/x.trace", 1, "/nowhere/x.trace: cannot be opened"},
      {"replay README.md", 1, "is no event"},
      {"replay --device nope traces/resnet_train.trace.gz", 1, "nope"},
      {"replay --capacity 64M --device sim traces/resnet_train.trace.gz", 1, "stopped after"},
      {"replay --device sim:64M,fail=stream_destroy:1:0 traces/resnet_train.trace.gz", 1,
       "1 findings, the first: stream"},
      /* One stream is waited for behind the events of each pass. */
      {"replay --repeat 3 --device sim:16G,fail=stream_sync:2:1:1 traces/resnet_train.trace.gz", 1,
       "stopped after 22631 of 22631 events of pass 2: "},
      {"bench bogus", 2, "no benchmark 'bogus'"},
      {"bench --bogus", 2, "--bogus"},
      {"bench random --case 5:5", 2, "no case '5:5'"},
      {"bench random --peer /nowhere/x.so --case 1000:1", 0, "peer is not here: /nowhere/x.so"},
      {"bench random --json --peer /nowhere/x.so --case 1000:1", 0, "tarn: peer is not here: "},
      {"bench pair extra", 2, "extra"},
      {"bench pair --rounds 0", 2, "from 1 to 1001"},
      {"bench pair --device nope", 1, "nope"},
      {"bench copy --max 0", 2, "--max '0' is less than 4K"},
      {"bench copy --max 1P", 2, "--max '1P' is more than 1G"},
      {"bench pair --device sim:16M --rounds 1 --json", 1, "tarn_alloc: no room for"},
      {"bench pinned --bytes 65M", 2, "--bytes '65M' is not a power of two"},
      {"bench pinned --bytes 0", 2, "--bytes '0' is not a power of two"},
      {"bench pinned --device sim:1G,fail=host_register:2:0 --rounds 1 --json", 1,
       "could not be measured: tarn_pinned_alloc: no room"},
      /* The thirteenth copy is the first of those that are compared. */
      {"bench copy --device sim:1G,fail=copy:13:1:1 --rounds 1 --json", 1, "cuMemcpyAsync"},
      {"bench copy --device sim --rounds 1 --max 64K", 0, "64 pieces of 4 KiB"},
  };
  if (cannot_run()) {
    return;
  }
  for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
    /* A search for leaks takes seconds a process; what succeeds is searched. */
    const int status = run_tool_with("ASAN_OPTIONS=detect_leaks=0", uses[i].arguments);
    const bool is_right = CHECK_EQ(status, uses[i].status);
    if (!CHECK_HAS(output, uses[i].message) || !is_right) {
      test_note("tarn %s printed: %.400s", uses[i].arguments, output);
    }
  }
}

static const test_case cases[] = {
    {"replay: what is counted", what_is_counted},
    {"replay: statistics", statistics},
    {"replay: shortage", shortage},
    {"replay: a device that is not there", a_device_that_is_not_there},
    {"replay: the smallest capacity", fitting},
    {"replay: as JSON", replay_as_json},
    {"replay: on a plain device", replay_on_a_plain_device},
    {"replay: of a heap that fills", replay_of_a_heap_that_fills},
    {"replay: as a table", replay_as_a_table},
    {"replay: with statistics", replay_with_statistics},
    {"bench: the list, and random allocations", benches},
    {"bench: copies", copies},
    {"bench: medians", medians},
    {"bench: pairs", pairs},
    {"bench: a peer that finds no room", a_peer_that_finds_no_room},
    {"replay, bench: wrong use", wrong_words},
};
TEST_MAIN(cases)
