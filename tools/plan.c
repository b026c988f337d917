/* SPDX-License-Identifier: MIT
 *
 * `tarn plan`: packs the buffers of a table or of a trace and says how good that is. */
#include "plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tool.h"

typedef struct plan_arguments {
  bool is_json;
  const char *path;
  const char *svg;
  const char *save;
  const char *load;
  uint64_t max_ns;
  uint64_t capacity;
  uint64_t window_begin;
  uint64_t window_end;
} plan_arguments;

/* ---- Arguments ------------------------------------------------------------------------------ */

static int wrong_value(const char *argument, const char *value, const char *form) {
  (void)fprintf(stderr, "tarn plan: %s '%s' is not %s\n", argument, value, form);
  return TOOL_USAGE;
}

static bool read_seconds(const char *text, uint64_t *nanoseconds) {
  char *end = NULL;
  const double seconds = strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds > 0.0) || seconds > 1e9) {
    return false;
  }
  *nanoseconds = (uint64_t)(seconds * 1e9) + 1;
  return true;
}

static bool read_time(const char *text, const char **rest, uint64_t *time) {
  char *end = NULL;
  errno = 0;
  if (text[0] < '0' || text[0] > '9') {
    return false;
  }
  *time = strtoull(text, &end, 10);
  *rest = end;
  return errno == 0;
}

static bool read_window(const char *text, uint64_t *begin, uint64_t *end) {
  const char *rest = NULL;
  return read_time(text, &rest, begin) && *rest == ':' && read_time(rest + 1, &rest, end) &&
         *rest == '\0' && *begin < *end;
}

/* Parses the words, of which one is a file. */
static int parse_words(const tool_command *command, const tool_argument *arguments, size_t count,
                       int argc, char **argv, const char **path) {
  tool_files files = {.paths = calloc((size_t)argc + 1, sizeof(*files.paths))};
  if (files.paths == NULL) {
    (void)fprintf(stderr, "tarn: out of host memory\n");
    return TOOL_FAILED;
  }
  int result = tool_parse_files(command, arguments, count, argc, argv, &files);
  if (result < 0 && files.count == 0) {
    (void)fprintf(stderr, "tarn plan: a file is missing\nusage: tarn %s %s\n", command->name,
                  command->arguments);
    result = TOOL_USAGE;
  } else if (result < 0 && files.count > 1) {
    (void)fprintf(stderr, "tarn plan: one file at a time, not '%s' and '%s'\nusage: tarn %s %s\n",
                  files.paths[0], files.paths[1], command->name, command->arguments);
    result = TOOL_USAGE;
  }
  *path = files.paths[0];
  free(files.paths);
  return result;
}

static int read_arguments(const tool_command *command, int argc, char **argv,
                          plan_arguments *given) {
  const char *seconds = NULL;
  const char *capacity = NULL;
  const char *window = NULL;
  bool is_given[6] = {false};
  const tool_argument arguments[] = {
      {"--json", &given->is_json, NULL},       {"--seconds", &is_given[0], &seconds},
      {"--capacity", &is_given[1], &capacity}, {"--window", &is_given[2], &window},
      {"--svg", &is_given[3], &given->svg},    {"--save", &is_given[4], &given->save},
      {"--load", &is_given[5], &given->load}};
  const int result = parse_words(command, arguments, sizeof(arguments) / sizeof(arguments[0]), argc,
                                 argv, &given->path);
  if (result >= 0) {
    return result;
  }
  given->window_end = UINT64_MAX;
  if (seconds != NULL && !read_seconds(seconds, &given->max_ns)) {
    return wrong_value("--seconds", seconds, "a number of seconds above 0");
  }
  if (capacity != NULL && !tool_read_bytes("--capacity", capacity, &given->capacity)) {
    return TOOL_USAGE;
  }
  if (capacity != NULL && given->capacity == 0) {
    return wrong_value("--capacity", capacity, "a number of bytes above 0");
  }
  if (window != NULL && !read_window(window, &given->window_begin, &given->window_end)) {
    return wrong_value("--window", window, "of the form A:B with A below B");
  }
  return -1;
}

/* ---- Output --------------------------------------------------------------------------------- */

static double gap_of(const plan_job *job) {
  const double bound = (double)job->info.bound;
  return job->info.bound == 0 ? 0.0 : ((double)job->info.height - bound) / bound;
}

/* Whether some plan may keep to the capacity. A saved plan does not know it, so the bound says. */
static bool can_fit(const plan_job *job, const plan_arguments *given) {
  return job->info.bound <= given->capacity;
}

static void print_json(const plan_job *job, const plan_arguments *given) {
  printf("{");
  tool_json_member("file", true);
  tool_json_text(job->path);
  tool_json_number("buffers", job->count);
  tool_json_number("bound", job->info.bound);
  tool_json_number("height", job->info.height);
  tool_json_member("gap", false);
  printf("%.9f", gap_of(job));
  tool_json_member("seconds", false);
  printf("%.3f", job->seconds);
  tool_json_switch("proven", job->info.is_proven);
  tool_json_switch("valid", true);
  tool_json_number("binds_from", job->info.bind_begin);
  tool_json_number("binds_to", job->info.bind_end);
  tool_json_number("steps", job->info.steps);
  if (given->capacity != 0) {
    tool_json_number("capacity", given->capacity);
    tool_json_switch("fits", job->info.height <= given->capacity);
    tool_json_switch("can_fit", can_fit(job, given));
  }
  printf("}\n");
}

static void print_text(const plan_job *job, const plan_arguments *given) {
  char height[TOOL_TEXT];
  char bound[TOOL_TEXT];
  printf("%s: %llu buffers\n", job->path, (unsigned long long)job->count);
  printf("  height  %llu (%s)\n", (unsigned long long)job->info.height,
         tool_bytes(job->info.height, height));
  printf("  bound   %llu (%s), live at the time from %llu to %llu\n",
         (unsigned long long)job->info.bound, tool_bytes(job->info.bound, bound),
         (unsigned long long)job->info.bind_begin, (unsigned long long)job->info.bind_end);
  printf("  gap     %.4f %%%s\n", 100.0 * gap_of(job),
         job->info.is_proven ? ", proven: no plan is lower" : "");
  printf("  valid   checked\n  seconds %.3f\n", job->seconds);
  if (given->capacity != 0) {
    printf("  fits in %llu: %s\n", (unsigned long long)given->capacity,
           job->info.height <= given->capacity ? "yes"
           : can_fit(job, given)               ? "no plan found that does"
                                               : "no, and no plan does");
  }
}

/* ---- The command ---------------------------------------------------------------------------- */

static double seconds_now(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Makes the plan, or takes a saved one of the same buffers. */
static tarn_plan *plan_make(const tarn_plan_problem *problem, const plan_arguments *given) {
  tarn_plan *plan = NULL;
  if (given->load == NULL) {
    const tarn_plan_options options = {
        .size = sizeof(options), .max_ns = given->max_ns, .capacity = given->capacity};
    if (tarn_plan_create(problem, &options, &plan) != TARN_OK) {
      (void)tool_fail();
    }
    return plan;
  }
  size_t length = 0;
  char *text = plan_read_whole(given->load, &length);
  if (text != NULL && tarn_plan_load(problem, text, length, &plan) != TARN_OK) {
    (void)fprintf(stderr, "tarn: %s: %s\n", given->load, tarn_last_message());
  }
  free(text);
  return plan;
}

static bool plan_save(const tarn_plan *plan, const char *path) {
  char *text = NULL;
  size_t length = 0;
  if (tarn_plan_save(plan, &text, &length) != TARN_OK) {
    (void)tool_fail();
    return false;
  }
  FILE *file = fopen(path, "wb");
  bool is_good = file != NULL && fwrite(text, 1, length, file) == length;
  is_good = file != NULL && fclose(file) == 0 && is_good;
  free(text);
  if (!is_good) {
    (void)fprintf(stderr, "tarn: cannot write %s: %s\n", path, strerror(errno));
  }
  return is_good;
}

static int plan_and_print(plan_job *job, const plan_arguments *given) {
  const double begin = seconds_now();
  const tarn_plan_problem problem = {
      .size = sizeof(problem), .buffers = job->buffers, .count = job->count};
  uint64_t height = 0;
  job->info.size = sizeof(job->info);
  tarn_plan *plan = plan_make(&problem, given);
  if (plan == NULL) {
    return TOOL_FAILED;
  }
  if (tarn_plan_get_info(plan, &job->info) != TARN_OK ||
      tarn_plan_check(&problem, tarn_plan_offsets(plan), &height) != TARN_OK) {
    tarn_plan_destroy(plan);
    return tool_fail();
  }
  job->offsets = tarn_plan_offsets(plan);
  job->seconds = seconds_now() - begin;
  if (given->is_json) {
    print_json(job, given);
  } else {
    print_text(job, given);
  }
  bool is_good = given->svg == NULL || plan_job_draw(job, given->svg);
  is_good = (given->save == NULL || plan_save(plan, given->save)) && is_good;
  tarn_plan_destroy(plan);
  return is_good ? TOOL_OK : TOOL_FAILED;
}

int tool_plan(const tool_command *command, int argc, char **argv) {
  plan_arguments given = {0};
  plan_job job = {0};
  const int wrong = read_arguments(command, argc, argv, &given);
  if (wrong >= 0) {
    return wrong;
  }
  job.path = given.path;
  int result = TOOL_FAILED;
  if (plan_job_load(&job, given.window_begin, given.window_end)) {
    result = plan_and_print(&job, &given);
  }
  free(job.buffers);
  free(job.ids);
  return result;
}
