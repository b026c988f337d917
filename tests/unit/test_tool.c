/* SPDX-License-Identifier: MIT
 *
 * The tarn command, run as people run it: output, exit status, JSON that is JSON, and the pages of
 * docs that it prints. The command is looked for in TARN_TEST_BUILD_DIR. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "support/test.h"
#include "tarn/tarn.h"

enum { OUTPUT_CAPACITY = 1 << 16 };

static char output[OUTPUT_CAPACITY];

/* Runs `<before> tarn <arguments>` in a shell, keeps what it prints, and returns its exit status;
 * -1 when it cannot be run. */
static int run_tool(const char *before, const char *arguments) {
  char command[1024];
  const char *folder = getenv("TARN_TEST_BUILD_DIR");
  (void)snprintf(command, sizeof(command), "%s '%s/tarn' %s", before, folder, arguments);
  FILE *pipe = popen(command, "r"); /* NOLINT(cert-env33-c): the words are the test's own */
  if (pipe == NULL) {
    return -1;
  }
  const size_t length = fread(output, 1, sizeof(output) - 1, pipe);
  output[length] = '\0';
  const int status = pclose(pipe);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool cannot_run(void) {
  if (getenv("TARN_TEST_BUILD_DIR") == NULL) {
    test_skip("TARN_TEST_BUILD_DIR is not set: run by ctest");
    return true;
  }
  return false;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static const char *skip_value(const char *at);

static const char *skip_space(const char *at) {
  while (isspace((unsigned char)*at)) {
    at++;
  }
  return at;
}

/* Each skip returns where its value ends, NULL when there is none. */
static const char *skip_text(const char *at) {
  if (*at++ != '"') {
    return NULL;
  }
  for (; *at != '"'; at++) {
    if ((unsigned char)*at < 0x20) {
      return NULL;
    }
    if (*at == '\\' && strchr("\"\\/bfnrtu", *++at) == NULL) {
      return NULL;
    }
  }
  return at + 1;
}

/* A list of values, or of members, between brackets. */
static const char *skip_list(const char *at, char close, bool has_names) {
  at = skip_space(at + 1);
  if (*at == close) {
    return at + 1;
  }
  for (;;) {
    if (has_names) {
      at = skip_text(skip_space(at));
      if (at == NULL || *skip_space(at) != ':') {
        return NULL;
      }
      at = skip_space(at) + 1;
    }
    at = skip_value(skip_space(at));
    if (at == NULL) {
      return NULL;
    }
    at = skip_space(at);
    if (*at == close) {
      return at + 1;
    }
    if (*at++ != ',') {
      return NULL;
    }
  }
}

static const char *skip_value(const char *at) {
  if (*at == '{' || *at == '[') {
    return skip_list(at, *at == '{' ? '}' : ']', *at == '{');
  }
  if (*at == '"') {
    return skip_text(at);
  }
  const size_t digits = strspn(at, "0123456789");
  if (digits > 0) {
    return at + digits;
  }
  if (strncmp(at, "true", 4) == 0 || strncmp(at, "null", 4) == 0) {
    return at + 4;
  }
  return strncmp(at, "false", 5) == 0 ? at + 5 : NULL;
}

static bool is_json_object(const char *text) {
  const char *end = *text == '{' ? skip_value(text) : NULL;
  return end != NULL && *skip_space(end) == '\0';
}

/* ---- Cases ---------------------------------------------------------------------------------- */

static void what_it_prints(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_tool("", "version"), 0);
  CHECK_HAS(output, tarn_version());
  CHECK_EQ(run_tool("", "--version"), 0);
  CHECK_EQ(run_tool("", "help"), 0);
  CHECK_HAS(output, "probe");
  CHECK_EQ(run_tool("", "help probe"), 0);
  CHECK_HAS(output, "--device");
  CHECK_EQ(run_tool("", "probe --help"), 0);
  CHECK_HAS(output, "--device");
  CHECK_EQ(run_tool("", "info"), 0);
  CHECK_HAS(output, "sim");
  CHECK_HAS(output, "80 GiB");
  CHECK_EQ(run_tool("", "status"), 0);
  CHECK_HAS(output, "TARN_DEVICE_MEMORY");
  CHECK_EQ(run_tool("TARN_DEVICE=sim:1G", "options"), 0);
  CHECK_HAS(output, "TARN_DEVICE=sim:1G  (set)");
}

static void probing(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_tool("", "probe --device sim:1G"), 0);
  CHECK_HAS(output, "sim:1G works");
  CHECK_HAS(output, "cuMemCreate");
  CHECK(strstr(output, "\033[") == NULL);
  CHECK_EQ(run_tool("TARN_DEVICE=sim:2G,pool=off", "probe"), 0);
  CHECK_HAS(output, "sim:2G,pool=off works");
  CHECK_HAS(output, "absent");
  CHECK_EQ(run_tool("", "probe --device=sim:1G --json"), 0);
  CHECK(is_json_object(output));
  CHECK_HAS(output, "\"verified\": true");
}

static void listing_as_json(void) {
  if (cannot_run()) {
    return;
  }
  CHECK_EQ(run_tool("", "info --json"), 0);
  CHECK(is_json_object(output));
  CHECK_HAS(output, "\"version\": \"");
  CHECK_HAS(output, "\"name\": \"sim\"");
  CHECK_HAS(output, "\"simulated\": true");
  /* The judge itself: it must not take everything. */
  CHECK(!is_json_object("{\"a\": }") && !is_json_object("{\"a\": 1,}") && !is_json_object("[1]"));
  CHECK(!is_json_object("{\"a\": 1} x") && !is_json_object("{a: 1}"));
  CHECK(is_json_object("{\"a\": [1, {\"b\": \"\\\"\"}], \"c\": false}"));
}

/* stderr is what is looked at: it must say what was wrong. */
static void wrong_use(void) {
  static const struct {
    const char *before;
    const char *arguments;
    int status;
    const char *message;
  } uses[] = {
      {"", "", 2, "tarn help"},
      {"", "bogus", 2, "bogus"},
      {"", "info --bogus", 2, "--bogus"},
      {"", "info extra", 2, "extra"},
      {"", "info --json=1", 2, "takes no value"},
      {"", "info --json --json", 2, "twice"},
      {"", "probe --device", 2, "needs a value"},
      {"", "help bogus", 2, "bogus"},
      {"", "help --bogus", 2, "--bogus"},
      {"", "help --help", 0, "usage"},
      {"", "version extra", 2, "extra"},
      {"", "probe --device nope", 1, "nope"},
      {"", "probe --device sim:what=1", 1, "what=1"},
      {"TARN_DEVICE=nope", "probe", 1, "nope"},
      {"TARN_BOGUS=1", "options", 1, "TARN_BOGUS"},
      {"TARN_BOGUS=1", "probe", 1, "TARN_BOGUS"},
      {"", "probe --device sim:1G,fail=create:1", 1, "cuMemCreate"},
      {"", "info > /dev/full", 1, "writing the result: No space left"},
      {"", "replay traces/resnet_train.trace.gz nowhere.trace > /dev/full", 1, "not all of it"},
  };
  if (cannot_run()) {
    return;
  }
  for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
    char before[128];
    /* A search for leaks takes seconds a process; what succeeds is searched. */
    (void)snprintf(before, sizeof(before), "exec 2>&1; ASAN_OPTIONS=detect_leaks=0 %s",
                   uses[i].before);
    const bool is_right = CHECK_EQ(run_tool(before, uses[i].arguments), uses[i].status);
    if (!CHECK_HAS(output, uses[i].message) || !is_right) {
      test_note("%s tarn %s printed: %.400s", uses[i].before, uses[i].arguments, output);
    }
  }
}

/* The page in docs is what the command prints. */
static void check_page(const char *path, const char *arguments) {
  static char page[OUTPUT_CAPACITY];
  FILE *file = fopen(path, "r");
  REQUIRE(file != NULL);
  page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
  (void)fclose(file);
  CHECK_EQ(run_tool("unset TARN_DEVICE;", arguments), 0);
  if (!CHECK(strcmp(page, output) == 0)) {
    test_note("%s is stale: build/tarn %s > %s", path, arguments, path);
  }
}

static void generated_pages(void) {
  if (cannot_run()) {
    return;
  }
  check_page("docs/options.md", "options --markdown");
  check_page("docs/status.md", "status --markdown");
}

static const test_case cases[] = {
    {"tool: what it prints", what_it_prints},
    {"tool: probing", probing},
    {"tool: listing as JSON", listing_as_json},
    {"tool: wrong use", wrong_use},
    {"tool: the generated pages are up to date", generated_pages},
};
TEST_MAIN(cases)
