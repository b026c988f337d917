/* SPDX-License-Identifier: MIT
 *
 * tarn replay: recorded programs through the heap, as a table with a row a program or as JSON with
 * an object a line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peaks.h"
#include "replay.h"
#include "tarn/tarn.h"
#include "tool.h"

typedef struct replay_options {
  replay_plan plan;
  bool is_json;
  bool is_fit;
} replay_options;

/* What there is to print about one trace. */
typedef struct replay_row {
  const char *path;
  char name[PEAKS_NAME];
  const trace *trace;
  replay_result result;
  uint64_t fit_bytes; /* 0: not asked for, or none found */
} replay_row;

static const char *const stealing_names[] = {[TARN_STEAL_WHEN_SHORT] = "short",
                                             [TARN_STEAL_NEVER] = "never",
                                             [TARN_STEAL_ALWAYS] = "always"};

/* 0 is what the environment says, else the default. */
static const char *const preset_names[] = {[TARN_PRESET_DEFAULT] = "default",
                                           [TARN_PRESET_NONE] = "none",
                                           [TARN_PRESET_POWER_BUCKETS] = "power-buckets",
                                           [TARN_PRESET_EXACT_POOL] = "exact-pool"};
static const char *const backing_names[] = {[TARN_BACKING_DEFAULT] = "default",
                                            [TARN_BACKING_VMM] = "vmm",
                                            [TARN_BACKING_POOL] = "pool",
                                            [TARN_BACKING_PLAIN] = "plain"};
static const char *const rounding_names[] = {[TARN_ROUNDING_DEFAULT] = "default",
                                             [TARN_ROUNDING_CLASSES] = "classes",
                                             [TARN_ROUNDING_EXACT] = "exact",
                                             [TARN_ROUNDING_POWER_OF_TWO] = "power-of-two"};

static double ratio_of(uint64_t bytes, const trace *t) {
  return t->live_peak_bytes != 0 ? (double)bytes / (double)t->live_peak_bytes : 0.0;
}

static double us_per_mib(const replay_row *row) {
  const double mib = (double)row->trace->live_peak_bytes / (double)(1 << 20);
  return mib > 0 ? (double)row->result.first.total_ns / 1e3 / mib : 0.0;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void print_calls_json(const char *name, const replay_calls *calls) {
  bool is_first = true;
  tool_json_member(name, false);
  printf("{");
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    if (calls->calls[i] != 0) {
      tool_json_member(tarn_call_name((tarn_call)i), is_first);
      printf("%llu", (unsigned long long)calls->calls[i]);
      is_first = false;
    }
  }
  printf("}");
}

static void print_row_json(const replay_options *options, const replay_row *row) {
  const replay_result *result = &row->result;
  const double events = row->trace->n_events > 0 ? (double)row->trace->n_events : 1.0;
  printf("{");
  tool_json_member("trace", true);
  tool_json_text(row->name);
  tool_json_number("events", row->trace->n_events);
  tool_json_number("live_peak_bytes", row->trace->live_peak_bytes);
  tool_json_number("reserved_peak_bytes", result->reserved_peak_bytes);
  tool_json_real("ratio", ratio_of(result->reserved_peak_bytes, row->trace), 5);
  if (options->is_fit) {
    tool_json_number("fit_bytes", row->fit_bytes);
    tool_json_real("fit_ratio", ratio_of(row->fit_bytes, row->trace), 5);
  }
  tool_json_number("driver_calls", result->first.n_calls);
  tool_json_number("driver_ns", result->first.total_ns);
  tool_json_number("driver_calls_last_repeat", result->last.n_calls);
  tool_json_number("violations", result->violations);
  tool_json_real("ns_per_event", (double)result->first_pass_ns / events, 1);
  tool_json_string("device", result->device.name);
  tool_json_string("stealing", stealing_names[options->plan.stealing]);
  tool_json_string("preset", preset_names[options->plan.preset]);
  tool_json_string("backing", backing_names[options->plan.backing]);
  tool_json_string("rounding", rounding_names[options->plan.rounding]);
  tool_json_number("repeats", options->plan.n_passes);
  tool_json_number("reserved_peak_repeat_bytes", result->reserved_peak_repeat_bytes);
  tool_json_real("driver_us_per_mib", us_per_mib(row), 2);
  tool_json_number("moved_chunks", result->stats.moved_chunks);
  tool_json_number("waits", result->stats.waits);
  print_calls_json("calls", &result->first);
  print_calls_json("calls_last_repeat", &result->last);
  if (options->plan.has_stats) {
    replay_stats_print_json(result);
  }
  printf("}\n");
}

/* ---- Table ---------------------------------------------------------------------------------- */

static void print_head(const replay_options *options, const tarn_device_info *device) {
  char total[TOOL_TEXT];
  printf("%s: %s, %s\n\n", device->name, device->model, tool_bytes(device->total_bytes, total));
  printf("%-18s %8s %9s %9s %7s %17s %17s %7s %6s %6s %6s%s\n", "TRACE", "EVENTS", "LIVE", "HELD",
         "RATIO", "PYTORCH", "EXPANDABLE", "CALLS", "US/MIB", "REPEAT", "WRONG",
         options->is_fit ? "       FIT" : "");
}

/* Reserved bytes of a peer and their ratio, or a dash. */
static void print_peer(bool is_known, uint64_t bytes, uint64_t live_bytes) {
  char text[TOOL_TEXT];
  if (is_known && live_bytes > 0) {
    printf(" %9s (%5.2f)", tool_bytes(bytes, text), (double)bytes / (double)live_bytes);
  } else {
    printf(" %17s", "-");
  }
}

static void print_row(const replay_options *options, const replay_row *row) {
  const replay_result *result = &row->result;
  char live[TOOL_TEXT], held[TOOL_TEXT], last[TOOL_TEXT];
  peaks peers = {0};
  const bool is_known = peaks_find(row->path, &peers);
  (void)snprintf(last, sizeof(last), options->plan.n_passes > 1 ? "%llu" : "-",
                 (unsigned long long)result->last.n_calls);
  printf("%-18s %8zu %9s %9s %7.4f", row->name, row->trace->n_events,
         tool_bytes(row->trace->live_peak_bytes, live),
         tool_bytes(result->reserved_peak_bytes, held),
         ratio_of(result->reserved_peak_bytes, row->trace));
  print_peer(is_known, peers.native_bytes, peers.live_bytes);
  print_peer(is_known, peers.expandable_bytes, peers.live_bytes);
  printf(" %7llu %6.1f %6s %6llu", (unsigned long long)result->first.n_calls, us_per_mib(row), last,
         (unsigned long long)result->violations);
  if (options->is_fit) {
    printf(" %9.4f", ratio_of(row->fit_bytes, row->trace));
  }
  printf("\n");
}

static void print_legend(const replay_options *options) {
  printf(
      "\nLIVE: most bytes asked for at once. HELD: most physical memory that tarn held for them,\n"
      "from empty. PYTORCH, EXPANDABLE: what PyTorch's allocators reserved for the same program\n"
      "on an H200. CALLS, US/MIB: driver calls of the first pass, and their time by MiB of LIVE.\n"
      "REPEAT: driver calls of pass %llu. WRONG: uses of memory that no order covers.\n",
      (unsigned long long)options->plan.n_passes);
}

/* ---- The command ---------------------------------------------------------------------------- */

/* The first finding, where there is one; the exit status. */
static int tell_findings(const replay_row *row) {
  if (row->result.violations == 0) {
    return TOOL_OK;
  }
  (void)fprintf(stderr, "tarn: %s: %llu findings, the first: %s\n", row->path,
                (unsigned long long)row->result.violations, row->result.finding);
  return TOOL_FAILED;
}

/* A finding may be the reason: memory that is not there breaks the device. */
static int fail_row(const replay_row *row) {
  (void)tell_findings(row);
  char pass[TOOL_TEXT] = "";
  if (row->result.failed_pass > 1) {
    (void)snprintf(pass, sizeof(pass), " of pass %llu",
                   (unsigned long long)row->result.failed_pass);
  }
  (void)fprintf(stderr, "tarn: %s stopped after %zu of %zu events%s: %s (%s)\n", row->path,
                row->result.failed_event, row->trace->n_events, pass, row->result.message,
                tarn_status_name(row->result.status));
  return TOOL_FAILED;
}

/* Runs one trace; `n_rows` counts what has been printed. */
static int replay_trace(const replay_options *options, replay_row *row, size_t *n_rows) {
  if (!replay_run(row->name, row->trace, &options->plan, &row->result) ||
      row->result.status != TARN_OK) {
    return fail_row(row);
  }
  if (options->is_fit) {
    replay_result trial = row->result;
    if (!replay_fit(row->name, row->trace, &options->plan, &trial, &row->fit_bytes)) {
      row->result = trial;
      return fail_row(row);
    }
    row->result.violations = trial.violations;
    memcpy(row->result.finding, trial.finding, sizeof(trial.finding));
  }
  if (options->is_json) {
    print_row_json(options, row);
  } else {
    if (*n_rows == 0) {
      print_head(options, &row->result.device);
    }
    print_row(options, row);
    if (options->plan.has_stats) {
      replay_stats_print(&row->result);
    }
  }
  ++*n_rows;
  (void)fflush(stdout);
  return tell_findings(row);
}

static int replay_file(const replay_options *options, const char *path, size_t *n_rows) {
  static replay_row row;
  trace t;
  char error[TRACE_ERROR];
  if (!trace_open(path, &t, error)) {
    (void)fprintf(stderr, "tarn: %s\n", error);
    return TOOL_FAILED;
  }
  row = (replay_row){.path = path, .trace = &t};
  (void)peaks_name(path, row.name);
  const int exit_status = replay_trace(options, &row, n_rows);
  trace_close(&t);
  return exit_status;
}

/* All files, also those after one that failed. */
static int replay_files(const replay_options *options, const tool_files *files) {
  int exit_status = TOOL_OK;
  size_t n_rows = 0;
  for (size_t i = 0; i < files->count; i++) {
    if (replay_file(options, files->paths[i], &n_rows) != TOOL_OK) {
      exit_status = TOOL_FAILED;
    }
  }
  if (!options->is_json && n_rows > 0) {
    print_legend(options);
  }
  return exit_status;
}

/* One word of a list; words[first] is the first that may be chosen. */
static bool read_word(const char *argument, const char *text, const char *const *words,
                      size_t first, size_t count, int *choice) {
  for (size_t i = first; i < count; i++) {
    if (strcmp(text, words[i]) == 0) {
      *choice = (int)i;
      return true;
    }
  }
  (void)fprintf(stderr, "tarn: %s takes ", argument);
  for (size_t i = first; i < count; i++) {
    (void)fprintf(stderr, "%s%s", i == first ? "" : i + 1 == count ? " or " : ", ", words[i]);
  }
  (void)fprintf(stderr, ", not '%s'\n", text);
  return false;
}

#define READ_WORD(argument, text, words, first, choice)                                            \
  ((text) == NULL ||                                                                               \
   read_word((argument), (text), (words), (first), sizeof(words) / sizeof((words)[0]), (choice)))

/* The texts of the arguments, NULL where they are not given. */
typedef struct replay_texts {
  const char *stealing, *preset, *backing, *rounding, *capacity, *repeat, *seed;
} replay_texts;

static bool read_heap(const replay_texts *texts, replay_plan *plan) {
  int stealing = 0, preset = 0, backing = 0, rounding = 0;
  const bool is_read = READ_WORD("--stealing", texts->stealing, stealing_names, 0, &stealing) &&
                       READ_WORD("--preset", texts->preset, preset_names, 1, &preset) &&
                       READ_WORD("--backing", texts->backing, backing_names, 1, &backing) &&
                       READ_WORD("--rounding", texts->rounding, rounding_names, 1, &rounding);
  plan->stealing = (tarn_stealing)stealing;
  plan->preset = (tarn_preset)preset;
  plan->backing = (tarn_backing)backing;
  plan->rounding = (tarn_rounding)rounding;
  return is_read;
}

static bool read_capacity(const char *text, uint64_t *bytes) {
  if (!tool_read_bytes("--capacity", text, bytes)) {
    return false;
  }
  if (*bytes == 0) {
    (void)fprintf(stderr, "tarn: a capacity of 0 bytes holds nothing: --capacity 80G\n");
  }
  return *bytes != 0;
}

/* A device that is named with its options has its seed among them, or the usual one. */
static bool read_seed(const char *text, replay_plan *plan) {
  if (!tool_read_number("--seed", text, 0, UINT64_MAX, &plan->seed)) {
    return false;
  }
  const char *device = plan->device != NULL ? plan->device : getenv("TARN_DEVICE");
  const bool is_whole = device != NULL && strncmp(device, "sim:", 4) == 0;
  if (is_whole) {
    (void)fprintf(stderr, "tarn: --seed does not change '%s': --device %s,seed=%llu\n", device,
                  device, (unsigned long long)plan->seed);
  }
  return !is_whole;
}

static bool read_options(const replay_texts *texts, replay_plan *plan) {
  return read_heap(texts, plan) &&
         (texts->capacity == NULL || read_capacity(texts->capacity, &plan->capacity_bytes)) &&
         (texts->repeat == NULL ||
          tool_read_number("--repeat", texts->repeat, 1, 1000000, &plan->n_passes)) &&
         (texts->seed == NULL || read_seed(texts->seed, plan));
}

static int replay_parsed(const replay_options *options, const tool_command *command,
                         const tool_files *files) {
  if (files->count == 0) {
    (void)fprintf(stderr, "tarn replay: a trace is needed\nusage: tarn replay %s\n",
                  command->arguments);
    return TOOL_USAGE;
  }
  return replay_files(options, files);
}

int tool_replay(const tool_command *command, int argc, char **argv) {
  replay_options options = {.plan = {.seed = 1, .n_passes = 1}};
  replay_texts texts = {0};
  bool has_device = false, has_stealing = false, has_capacity = false, has_repeat = false,
       has_seed = false, has_preset = false, has_backing = false, has_rounding = false;
  const tool_argument arguments[] = {
      {"--json", &options.is_json, NULL},
      {"--fit", &options.is_fit, NULL},
      {"--stats", &options.plan.has_stats, NULL},
      {"--device", &has_device, &options.plan.device},
      {"--stealing", &has_stealing, &texts.stealing},
      {"--preset", &has_preset, &texts.preset},
      {"--backing", &has_backing, &texts.backing},
      {"--rounding", &has_rounding, &texts.rounding},
      {"--capacity", &has_capacity, &texts.capacity},
      {"--repeat", &has_repeat, &texts.repeat},
      {"--seed", &has_seed, &texts.seed},
  };
  tool_files files = {.paths = calloc((size_t)argc + 1, sizeof(*files.paths))};
  if (files.paths == NULL) {
    (void)fprintf(stderr, "tarn: out of host memory\n");
    return TOOL_FAILED;
  }
  int result = tool_parse_files(command, arguments, sizeof(arguments) / sizeof(arguments[0]), argc,
                                argv, &files);
  if (result < 0) {
    result =
        read_options(&texts, &options.plan) ? replay_parsed(&options, command, &files) : TOOL_USAGE;
  }
  free(files.paths);
  return result;
}
