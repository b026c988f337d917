/* SPDX-License-Identifier: MIT
 *
 * The arguments of a subcommand, and how failures are told. */
#include <stdio.h>
#include <string.h>

#include "tarn/tarn.h"
#include "tool.h"

char **tool_command_line;

void tool_usage(const tool_command *command) {
  printf("usage: tarn %s%s%s\n%s\n", command->name, command->arguments[0] != '\0' ? " " : "",
         command->arguments, command->summary);
}

/* Tells what is wrong; returns 0. */
static int wrong_argument(const tool_command *command, const char *argument, const char *why) {
  (void)fprintf(stderr, "tarn %s: '%s' %s\nusage: tarn %s %s\n", command->name, argument, why,
                command->name, command->arguments);
  return 0;
}

/* The length of an argument's name: "--device=sim" has one of 8. */
static size_t name_length(const char *argument) {
  return strcspn(argument, "=");
}

static const tool_argument *find_argument(const tool_argument *arguments, size_t count,
                                          const char *text) {
  const size_t length = name_length(text);
  for (size_t i = 0; i < count; i++) {
    if (strlen(arguments[i].name) == length && strncmp(arguments[i].name, text, length) == 0) {
      return &arguments[i];
    }
  }
  return NULL;
}

/* Takes one argument, and the value after it; how many words that were, or 0 when it is wrong. */
static int take_argument(const tool_command *command, const tool_argument *argument, int argc,
                         char **argv) {
  const char *equals = strchr(argv[0], '=');
  if (*argument->is_given) {
    return wrong_argument(command, argv[0], "is given twice");
  }
  *argument->is_given = true;
  if (argument->value == NULL) {
    return equals == NULL ? 1 : wrong_argument(command, argv[0], "takes no value");
  }
  if (equals != NULL) {
    *argument->value = equals + 1;
    return 1;
  }
  if (argc < 2) {
    return wrong_argument(command, argv[0], "needs a value");
  }
  *argument->value = argv[1];
  return 2;
}

/* Takes argv[0]: an argument and its value, or, where files are allowed, a file, which goes to
 * files[*n_files]. How many words that were, or 0 when it is wrong. */
static int take_word(const tool_command *command, const tool_argument *argument, int argc,
                     char **argv, tool_files *files) {
  if (argument != NULL) {
    return take_argument(command, argument, argc, argv);
  }
  if (files == NULL || (argv[0][0] == '-' && argv[0][1] != '\0')) {
    return wrong_argument(command, argv[0], "is not an argument that it takes");
  }
  files->paths[files->count++] = argv[0];
  return 1;
}

int tool_parse_files(const tool_command *command, const tool_argument *arguments, size_t count,
                     int argc, char **argv, tool_files *files) {
  for (int i = 0; i < argc;) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      tool_usage(command);
      return TOOL_OK;
    }
    const tool_argument *argument = find_argument(arguments, count, argv[i]);
    const int taken = take_word(command, argument, argc - i, argv + i, files);
    if (taken == 0) {
      return TOOL_USAGE;
    }
    i += taken;
  }
  return -1;
}

int tool_parse(const tool_command *command, const tool_argument *arguments, size_t count, int argc,
               char **argv) {
  return tool_parse_files(command, arguments, count, argc, argv, NULL);
}

/* Decimal digits, then `rest`; false when there are none or the number does not fit. */
static bool take_digits(const char *text, uint64_t *number, const char **rest) {
  uint64_t value = 0;
  const char *at = text;
  for (; *at >= '0' && *at <= '9'; at++) {
    const unsigned digit = (unsigned)*at - '0';
    if (value > (UINT64_MAX - digit) / 10) {
      return false;
    }
    value = value * 10 + digit;
  }
  *number = value;
  *rest = at;
  return at != text;
}

bool tool_read_number(const char *option, const char *text, uint64_t minimum, uint64_t maximum,
                      uint64_t *number) {
  const char *rest;
  uint64_t value;
  if (!take_digits(text, &value, &rest) || *rest != '\0' || value < minimum || value > maximum) {
    (void)fprintf(stderr, "tarn: %s '%s' is not a number from %llu to %llu\n", option, text,
                  (unsigned long long)minimum, (unsigned long long)maximum);
    return false;
  }
  *number = value;
  return true;
}

bool tool_read_bytes(const char *option, const char *text, uint64_t *bytes) {
  static const char units[] = "KMGTP";
  const char *rest;
  uint64_t value = 0;
  unsigned shift = 0;
  bool is_good = take_digits(text, &value, &rest);
  if (is_good && *rest != '\0') {
    const int letter = *rest & ~0x20;
    const char *unit = letter != 0 ? strchr(units, letter) : NULL;
    shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    rest += unit != NULL;
    is_good = *rest == '\0' || strcmp(rest, "B") == 0 || (unit != NULL && strcmp(rest, "iB") == 0);
  }
  if (!is_good || value > UINT64_MAX >> shift) {
    (void)fprintf(stderr, "tarn: %s '%s' is not a number of bytes: 4096, 64K, 80G\n", option, text);
    return false;
  }
  *bytes = value << shift;
  return true;
}

int tool_fail(void) {
  (void)fprintf(stderr, "tarn: %s (%s)\n", tarn_last_message(),
                tarn_status_name(tarn_last_error(NULL)));
  return TOOL_FAILED;
}
