/* SPDX-License-Identifier: MIT
 *
 * Options: every kind of value with a table of the test's own, then the library's table. The
 * library reads its environment once, so what needs another one is tried in a child process. */
#include "base/option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/test.h"

enum { BYTES, INTEGER, SWITCH, CHOICE, TEXT, N_SPECS };

static const tarni_option_spec specs[N_SPECS] = {
    [BYTES] = {"TARN_BYTES", TARNI_KIND_BYTES, "64M", 4096, UINT64_C(1) << 40, "", "A size."},
    [INTEGER] = {"TARN_INTEGER", TARNI_KIND_INTEGER, "4", 1, 16, "", "A number."},
    [SWITCH] = {"TARN_SWITCH", TARNI_KIND_SWITCH, "off", 0, 0, "", "A switch."},
    [CHOICE] = {"TARN_CHOICE", TARNI_KIND_CHOICE, "vmm", 0, 0, "vmm|pool|plain", "A choice."},
    [TEXT] = {"TARN_TEXT", TARNI_KIND_TEXT, "", 0, 0, "", "A text."},
};

static tarn_status parse_value(int which, const char *text, uint64_t *number) {
  tarni_option_value value;
  const tarn_status status = tarni_option_parse(&specs[which], text, &value);
  *number = value.number;
  return status;
}

static void good_values(void) {
  static const struct {
    int which;
    const char *text;
    uint64_t number;
  } values[] = {{BYTES, "4096", 4096}, {BYTES, "4KiB", 4096}, {BYTES, "1T", UINT64_C(1) << 40},
                {INTEGER, "1", 1},     {INTEGER, "16", 16},   {SWITCH, "on", 1},
                {SWITCH, "OFF", 0},    {SWITCH, "1", 1},      {SWITCH, "0", 0},
                {SWITCH, "yes", 1},    {SWITCH, "no", 0},     {SWITCH, "true", 1},
                {SWITCH, "False", 0},  {CHOICE, "vmm", 0},    {CHOICE, "pool", 1},
                {CHOICE, "Plain", 2},  {TEXT, "", 0},         {TEXT, "any text at all", 0}};
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    uint64_t number = 77;
    CHECK_OK(parse_value(values[i].which, values[i].text, &number));
    CHECK_EQ(number, values[i].number);
  }
}

/* Each message names the variable, the value and the range. */
static void bad_values(void) {
  static const struct {
    int which;
    const char *text;
    const char *range;
  } values[] = {{BYTES, "4095", "4K to 1T bytes"},
                {BYTES, "2T", "4K to 1T bytes"},
                {BYTES, "", "4K to 1T bytes"},
                {BYTES, "lots", "4K to 1T bytes"},
                {BYTES, "99999999999999999999", "4K to 1T bytes"},
                {INTEGER, "0", "1 to 16"},
                {INTEGER, "17", "1 to 16"},
                {INTEGER, "-1", "1 to 16"},
                {INTEGER, "4K", "1 to 16"},
                {SWITCH, "", "on or off"},
                {SWITCH, "2", "on or off"},
                {SWITCH, "onn", "on or off"},
                {CHOICE, "", "one of vmm, pool, plain"},
                {CHOICE, "vm", "one of vmm, pool, plain"},
                {CHOICE, "vmm|pool", "one of vmm, pool, plain"}};
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    uint64_t number = 77;
    CHECK_STATUS(parse_value(values[i].which, values[i].text, &number), TARN_OPTION);
    CHECK_EQ(number, 0);
    CHECK_HAS(tarn_last_message(), specs[values[i].which].name);
    CHECK_HAS(tarn_last_message(), values[i].text);
    CHECK_HAS(tarn_last_message(), values[i].range);
  }
}

static void too_long_value(void) {
  static char text[TARNI_OPTION_CAPACITY + 1];
  tarni_option_value value;
  memset(text, 'x', TARNI_OPTION_CAPACITY - 1);
  CHECK_OK(tarni_option_parse(&specs[TEXT], text, &value));
  CHECK_EQ(strlen(value.text), TARNI_OPTION_CAPACITY - 1);
  memset(text, 'x', TARNI_OPTION_CAPACITY);
  CHECK_STATUS(tarni_option_parse(&specs[TEXT], text, &value), TARN_OPTION);
  CHECK_TEXT(value.text, "");
  CHECK_HAS(tarn_last_message(), "TARN_TEXT");
}

static void ranges_as_text(void) {
  char range[TARNI_OPTION_RANGE_CAPACITY];
  CHECK_TEXT(tarni_option_range(&specs[BYTES], range), "4K to 1T bytes");
  CHECK_TEXT(tarni_option_range(&specs[INTEGER], range), "1 to 16");
  CHECK_TEXT(tarni_option_range(&specs[SWITCH], range), "on or off");
  CHECK_TEXT(tarni_option_range(&specs[CHOICE], range), "one of vmm, pool, plain");
  CHECK_TEXT(tarni_option_range(&specs[TEXT], range), "any text");
}

/* pre: variables ends in NULL. */
static tarn_status read_variables(char *const *variables, tarni_option_value *values) {
  return tarni_option_read(specs, N_SPECS, variables, values);
}

static void environment_and_defaults(void) {
  static tarni_option_value values[N_SPECS];
  char *const variables[] = {
      "HOME=/",        "TARN_INTEGER=9",   "TARNISH=1", "TARN_TEXT=a=b", "TARN_TEST_ANYTHING=",
      "XTARN_BYTES=1", "TARN_CHOICE=pool", NULL};
  CHECK_OK(read_variables(variables, values));
  CHECK_EQ(values[INTEGER].number, 9);
  CHECK(values[INTEGER].is_set);
  CHECK_TEXT(values[TEXT].text, "a=b");
  CHECK_EQ(values[CHOICE].number, 1);
  CHECK_EQ(values[BYTES].number, 64u << 20);
  CHECK(!values[BYTES].is_set);
  CHECK_TEXT(values[BYTES].text, "64M");
  CHECK_EQ(values[SWITCH].number, 0);
}

static void unknown_variables(void) {
  static tarni_option_value values[N_SPECS];
  static const char *const names[] = {"TARN_BYTE=1", "TARN_BYTESS=1", "TARN_=1", "TARN_TEST=1",
                                      "TARN_bytes=1"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    char variable[32];
    (void)snprintf(variable, sizeof(variable), "%s", names[i]);
    char *const variables[] = {variable, NULL};
    CHECK_STATUS(read_variables(variables, values), TARN_OPTION);
    *strchr(variable, '=') = '\0';
    CHECK_HAS(tarn_last_message(), variable);
  }
  char *const bad_value[] = {"TARN_SWITCH=maybe", NULL};
  CHECK_STATUS(read_variables(bad_value, values), TARN_OPTION);
  CHECK_HAS(tarn_last_message(), "TARN_SWITCH is 'maybe'");
}

/* ---- The library's own table ---------------------------------------------------------------- */

/* Runs the function in a child with one more variable; true when it returned true. */
static bool in_child(const char *name, const char *value, bool (*run)(void)) {
  (void)fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    _exit(setenv(name, value, 1) == 0 && run() ? 0 : 1);
  }
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static bool is_refused_twice(void) {
  const tarni_option_value *values;
  tarn_option option = {.size = sizeof(option)};
  return tarni_options(&values) == TARN_OPTION && values == NULL &&
         strstr(tarn_last_message(), "TARN_DEVISE") != NULL &&
         tarn_option_get(0, &option) == TARN_OPTION && option.name == NULL &&
         strstr(tarn_last_message(), "TARN_DEVISE") != NULL;
}

static bool device_is_read(void) {
  const tarni_option_value *values;
  if (tarni_options(&values) != TARN_OK) {
    return false;
  }
  (void)setenv("TARN_DEVICE", "changed", 1); /* too late: it is read once */
  tarn_option option = {.size = sizeof(option)};
  return strcmp(values[TARNI_OPTION_DEVICE].text, "sim:1G") == 0 &&
         values[TARNI_OPTION_DEVICE].is_set && tarn_option_get(0, &option) == TARN_OK &&
         strcmp(option.value, "sim:1G") == 0 && option.is_set;
}

static void read_from_the_environment(void) {
  CHECK(in_child("TARN_DEVISE", "sim", is_refused_twice));
  CHECK(in_child("TARN_DEVICE", "sim:1G", device_is_read));
}

/* Every line of the table is complete, and its default is a value that it takes itself. */
static void table_is_sound(void) {
  for (size_t i = 0; i < TARNI_OPTION_COUNT; i++) {
    tarn_option option = {.size = sizeof(option)};
    REQUIRE_OK(tarn_option_get(i, &option));
    CHECK(strncmp(option.name, "TARN_", 5) == 0);
    CHECK(strlen(option.range) > 0 && strlen(option.help) > 0);
    CHECK(option.default_value != NULL && option.value != NULL);
    CHECK(option.is_set || CHECK_TEXT(option.value, option.default_value));
  }
  tarn_option option = {.size = sizeof(option), .name = "left over"};
  CHECK_STATUS(tarn_option_get(TARNI_OPTION_COUNT, &option), TARN_RANGE);
  CHECK(option.name == NULL);
  CHECK_STATUS(tarn_option_get(0, NULL), TARN_INVALID);
}

static const test_case cases[] = {
    {"option: read once from the environment", read_from_the_environment},
    {"option: good values of every kind", good_values},
    {"option: bad values of every kind", bad_values},
    {"option: a value that is too long", too_long_value},
    {"option: ranges as text", ranges_as_text},
    {"option: environment and defaults", environment_and_defaults},
    {"option: unknown variables are refused", unknown_variables},
    {"option: the library's table is sound", table_is_sound},
};
TEST_MAIN(cases)
