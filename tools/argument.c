/* SPDX-License-Identifier: MIT
 *
 * The arguments of a subcommand, and how failures are told. */
#include <stdio.h>
#include <string.h>

#include "tarn/tarn.h"
#include "tool.h"

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

int tool_parse(const tool_command *command, const tool_argument *arguments, size_t count, int argc,
               char **argv) {
  for (int i = 0; i < argc;) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      tool_usage(command);
      return TOOL_OK;
    }
    const tool_argument *argument = find_argument(arguments, count, argv[i]);
    const int taken = argument != NULL
                          ? take_argument(command, argument, argc - i, argv + i)
                          : wrong_argument(command, argv[i], "is not an argument that it takes");
    if (taken == 0) {
      return TOOL_USAGE;
    }
    i += taken;
  }
  return -1;
}

int tool_fail(void) {
  (void)fprintf(stderr, "tarn: %s (%s)\n", tarn_last_message(),
                tarn_status_name(tarn_last_error(NULL)));
  return TOOL_FAILED;
}
