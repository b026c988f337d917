/* SPDX-License-Identifier: MIT
 *
 * Options. Owns the values in force: written once, under pthread_once, and immutable after it. A
 * failure of that first reading is kept and told again to every caller. */
#include "base/option.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "base/text.h"

static const char environment_operation[] = "environment";

static const tarni_option_spec option_specs[TARNI_OPTION_COUNT] = {
#define OPTION_SPEC(id, kind, default_value, minimum, maximum, choices, help)                      \
  {"TARN_" #id, TARNI_KIND_##kind, default_value, minimum, maximum, choices, help},
    TARNI_OPTION_MAP(OPTION_SPEC)
#undef OPTION_SPEC
};

/* once: immutable after read_environment. */
static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static tarni_option_value option_values[TARNI_OPTION_COUNT];
static char option_ranges[TARNI_OPTION_COUNT][TARNI_OPTION_RANGE_CAPACITY];
static tarn_error read_error;

/* "a|b|c" as "one of a, b, c". */
static void range_of_choices(const char *choices, char *buffer, size_t capacity) {
  size_t used = (size_t)snprintf(buffer, capacity, "one of ");
  for (const char *at = choices; *at != '\0' && used + 3 < capacity; at++) {
    if (*at == '|') {
      buffer[used++] = ',';
      buffer[used++] = ' ';
    } else {
      buffer[used++] = *at;
    }
  }
  buffer[used] = '\0';
}

char *tarni_option_range(const tarni_option_spec *spec, char buffer[TARNI_OPTION_RANGE_CAPACITY]) {
  const size_t capacity = TARNI_OPTION_RANGE_CAPACITY;
  char least[TARNI_TEXT_NUMBER], greatest[TARNI_TEXT_NUMBER];
  switch (spec->kind) {
  case TARNI_KIND_TEXT:
    (void)snprintf(buffer, capacity, "any text");
    break;
  case TARNI_KIND_BYTES:
    (void)snprintf(buffer, capacity, "%s to %s bytes", tarni_text_from_bytes(spec->minimum, least),
                   tarni_text_from_bytes(spec->maximum, greatest));
    break;
  case TARNI_KIND_INTEGER:
    (void)snprintf(buffer, capacity, "%llu to %llu", (unsigned long long)spec->minimum,
                   (unsigned long long)spec->maximum);
    break;
  case TARNI_KIND_SWITCH:
    (void)snprintf(buffer, capacity, "on or off");
    break;
  case TARNI_KIND_CHOICE:
    range_of_choices(spec->choices, buffer, capacity);
    break;
  }
  return buffer;
}

static bool parse_switch(const char *text, uint64_t *number) {
  static const char *const words[][2] = {
      {"off", "on"}, {"0", "1"}, {"no", "yes"}, {"false", "true"}};
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
    for (uint64_t value = 0; value < 2; value++) {
      if (strcasecmp(text, words[i][value]) == 0) {
        *number = value;
        return true;
      }
    }
  }
  return false;
}

static bool parse_choice(const char *choices, const char *text, uint64_t *number) {
  const size_t length = strlen(text);
  uint64_t index = 0;
  for (const char *at = choices;; index++) {
    const size_t span = strcspn(at, "|");
    if (span == length && length > 0 && strncasecmp(at, text, span) == 0) {
      *number = index;
      return true;
    }
    if (at[span] == '\0') {
      return false;
    }
    at += span + 1;
  }
}

static bool parse_number(const tarni_option_spec *spec, const char *text, uint64_t *number) {
  switch (spec->kind) {
  case TARNI_KIND_TEXT:
    *number = 0;
    return true;
  case TARNI_KIND_BYTES:
    return tarni_text_to_bytes(text, number) && *number >= spec->minimum &&
           *number <= spec->maximum;
  case TARNI_KIND_INTEGER:
    return tarni_text_to_number(text, number) && *number >= spec->minimum &&
           *number <= spec->maximum;
  case TARNI_KIND_SWITCH:
    return parse_switch(text, number);
  case TARNI_KIND_CHOICE:
    return parse_choice(spec->choices, text, number);
  }
  return false;
}

tarn_status tarni_option_parse(const tarni_option_spec *spec, const char *text,
                               tarni_option_value *value) {
  char range[TARNI_OPTION_RANGE_CAPACITY];
  uint64_t number = 0;
  *value = (tarni_option_value){0};
  if (strlen(text) >= sizeof(value->text)) {
    return tarni_fail(TARN_OPTION, environment_operation, NULL,
                      "Shorten the value or unset the variable.",
                      "%s has %zu characters; it takes %s of at most %zu", spec->name, strlen(text),
                      tarni_option_range(spec, range), sizeof(value->text) - 1);
  }
  if (!parse_number(spec, text, &number)) {
    return tarni_fail(TARN_OPTION, environment_operation, NULL,
                      spec->kind == TARNI_KIND_BYTES
                          ? "Write a number with an optional unit such as 512M or 80G, or unset it."
                          : "Set it to a value in that range, or unset it.",
                      "%s is '%.120s'; it takes %s", spec->name, text,
                      tarni_option_range(spec, range));
  }
  value->number = number;
  memcpy(value->text, text, strlen(text) + 1);
  return TARN_OK;
}

/* The length of the variable's name. */
static size_t name_length(const char *variable) {
  return strcspn(variable, "=");
}

static const char *find_in_environment(char *const *environment, const char *name) {
  const size_t length = strlen(name);
  for (; *environment != NULL; environment++) {
    if (name_length(*environment) == length && strncmp(*environment, name, length) == 0 &&
        (*environment)[length] == '=') {
      return *environment + length + 1;
    }
  }
  return NULL;
}

static bool is_known(const tarni_option_spec *specs, size_t count, const char *variable) {
  const size_t length = name_length(variable);
  for (size_t i = 0; i < count; i++) {
    if (strlen(specs[i].name) == length && strncmp(specs[i].name, variable, length) == 0) {
      return true;
    }
  }
  return false;
}

static tarn_status refuse_unknown(const tarni_option_spec *specs, size_t count,
                                  char *const *environment) {
  for (; *environment != NULL; environment++) {
    const char *variable = *environment;
    const bool is_ours = strncmp(variable, "TARN_", strlen("TARN_")) == 0;
    const bool is_test =
        strncmp(variable, TARNI_OPTION_TEST_PREFIX, strlen(TARNI_OPTION_TEST_PREFIX)) == 0;
    if (is_ours && !is_test && !is_known(specs, count, variable)) {
      return tarni_fail(TARN_OPTION, environment_operation, NULL,
                        "Correct its name or unset it; `tarn options` run without it lists them.",
                        "%.*s is set, but there is no such option among the %zu of tarn %s",
                        (int)(name_length(variable) < 80 ? name_length(variable) : 80), variable,
                        count, tarn_version());
    }
  }
  return TARN_OK;
}

tarn_status tarni_option_read(const tarni_option_spec *specs, size_t count,
                              char *const *environment, tarni_option_value *values) {
  for (size_t i = 0; i < count; i++) {
    const char *text = find_in_environment(environment, specs[i].name);
    TARN_TRY(
        tarni_option_parse(&specs[i], text != NULL ? text : specs[i].default_value, &values[i]));
    values[i].is_set = text != NULL;
  }
  return refuse_unknown(specs, count, environment);
}

static void read_environment(void) {
  static char *empty[] = {NULL}; /* what is left after clearenv */
  for (size_t i = 0; i < TARNI_OPTION_COUNT; i++) {
    (void)tarni_option_range(&option_specs[i], option_ranges[i]);
  }
  if (tarni_option_read(option_specs, TARNI_OPTION_COUNT, environ != NULL ? environ : empty,
                        option_values) != TARN_OK) {
    read_error.size = sizeof(read_error);
    (void)tarn_last_error(&read_error);
  }
}

tarn_status tarni_options(const tarni_option_value **values) {
  tarn_assert(values != NULL);
  *values = NULL;
  const int failed = pthread_once(&read_once, read_environment);
  tarn_assert(failed == 0);
  (void)failed;
  if (read_error.status != TARN_OK) {
    return tarni_fail_again(&read_error);
  }
  *values = option_values;
  return TARN_OK;
}

tarn_status tarn_option_get(size_t index, tarn_option *option) {
  const tarn_option empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(option, &empty, sizeof(empty), "tarn_option_get"));
  const tarni_option_value *values;
  TARN_TRY(tarni_options(&values));
  if (index >= TARNI_OPTION_COUNT) {
    return tarni_fail(TARN_RANGE, "tarn_option_get", NULL, "Ask for the options below that number.",
                      "there is no option %zu; there are %d", index, (int)TARNI_OPTION_COUNT);
  }
  const tarni_option_spec *spec = &option_specs[index];
  const tarn_option full = {.size = sizeof(full),
                            .name = spec->name,
                            .default_value = spec->default_value,
                            .range = option_ranges[index],
                            .help = spec->help,
                            .value = values[index].text,
                            .is_set = values[index].is_set};
  return tarni_struct_out(option, &full, sizeof(full), "tarn_option_get");
}
