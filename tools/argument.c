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

static int wrong_argument(const tool_command *command, const char *argument, const char *why) {
  (void)fprintf(stderr, "tarn %s: '%s' %s\nusage: tarn %s %s\n", command->name, argument, why,
                command->name, command->arguments);
  return TOOL_USAGE;
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

int tool_parse(const tool_command *command, const tool_argument *arguments, size_t count, int argc,
               char **argv) {
  for (int i = 0; i < argc; i++) {
    const char *text = argv[i];
    const char *equals = strchr(text, '=');
    if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
      tool_usage(command);
      return TOOL_OK;
    }
    const tool_argument *argument = find_argument(arguments, count, text);
    if (argument == NULL) {
      return wrong_argument(command, text, "is not an argument that it takes");
    }
    if (argument->is_given != NULL && *argument->is_given) {
      return wrong_argument(command, text, "is given twice");
    }
    if (argument->value == NULL && equals != NULL) {
      return wrong_argument(command, text, "takes no value");
    }
    if (argument->value != NULL) {
      if (equals == NULL && i + 1 >= argc) {
        return wrong_argument(command, text, "needs a value");
      }
      *argument->value = equals != NULL ? equals + 1 : argv[++i];
    }
    if (argument->is_given != NULL) {
      *argument->is_given = true;
    }
  }
  return -1;
}

int tool_fail(void) {
  (void)fprintf(stderr, "tarn: %s (%s)\n", tarn_last_message(),
                tarn_status_name(tarn_last_error(NULL)));
  return TOOL_FAILED;
}
