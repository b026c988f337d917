/* SPDX-License-Identifier: MIT
 *
 * The tarn command: finds the subcommand and runs it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tarn/tarn.h"
#include "tool.h"

static int tool_help(const tool_command *command, int argc, char **argv);
static int tool_version(const tool_command *command, int argc, char **argv);

static const tool_command commands[] = {
    {"info", "[--json]", "Lists the devices and what they can do.", tool_info},
    {"probe", "[--device NAME] [--json]",
     "Shows a device at work, compares every byte, and lists what its driver calls cost.",
     tool_probe},
    {"replay",
     "[--json] [--device NAME] [--stealing never|short|always] [--capacity BYTES] [--fit] "
     "[--stats] "
     "[--repeat N] [--seed N] [--preset none|power-buckets|exact-pool] "
     "[--backing vmm|pool|plain] [--rounding classes|exact|power-of-two] FILE...",
     "Replays recorded programs (text or .gz) through the heap and says what they needed.",
     tool_replay},
    {"bench", "[BENCHMARK ...]", "Runs a benchmark; without a name it lists them.", tool_bench},
    {"plan",
     "[--json] [--seconds N] [--capacity BYTES] [--window A:B] [--svg FILE] "
     "[--save PLAN] [--load PLAN] FILE",
     "Packs the buffers of a table or a trace into as little memory as can be.", tool_plan},
    {"options", "[--markdown]", "Lists the environment variables and the values in force.",
     tool_options},
    {"status", "[--markdown]", "Lists the status codes.", tool_status},
    {"version", "", "Prints the version.", tool_version},
    {"help", "[COMMAND]", "Says how the command, or one of its subcommands, is used.", tool_help},
};

static const tool_command *find_command(const char *name) {
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
    if (strcmp(commands[i].name, name) == 0) {
      return &commands[i];
    }
  }
  return NULL;
}

static int unknown_command(const char *name) {
  (void)fprintf(stderr, "tarn: there is no command '%s'; `tarn help` lists them\n", name);
  return TOOL_USAGE;
}

static void print_help(void) {
  printf("usage: tarn COMMAND [ARGUMENTS]\n\n");
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
    printf("  %-8s %s\n", commands[i].name, commands[i].summary);
  }
  printf("\n`tarn help COMMAND` lists the arguments of a command.\n"
         "A device is named \"cuda:0\", \"sim\" or \"sim:80G,seed=7\"; where none is named it is\n"
         "TARN_DEVICE, else the first GPU, else the simulated one.\n"
         "Exit status: 0 success, 1 failure, 2 wrong arguments.\n");
}

/* "--help" and "--version" as people try them first. */
static const char *command_name(const char *text) {
  if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
    return "help";
  }
  return strcmp(text, "--version") == 0 ? "version" : text;
}

static int tool_help(const tool_command *command, int argc, char **argv) {
  if (argc > 1) {
    return tool_parse(command, NULL, 0, argc - 1, argv + 1);
  }
  if (argc == 0 || (argv[0][0] == '-' && strcmp(command_name(argv[0]), "help") == 0)) {
    print_help();
    return TOOL_OK;
  }
  const tool_command *other = find_command(argv[0]);
  if (other == NULL) {
    return unknown_command(argv[0]);
  }
  tool_usage(other);
  return TOOL_OK;
}

static int tool_version(const tool_command *command, int argc, char **argv) {
  const int result = tool_parse(command, NULL, 0, argc, argv);
  if (result >= 0) {
    return result;
  }
  printf("tarn %s\n", tarn_version());
  return TOOL_OK;
}

/* A result that could not be written is not a success. Where that was seen earlier, errno may be of
 * something else by now. */
static bool is_written(void) {
  const bool had_failed = ferror(stdout) != 0;
  if (fflush(stdout) == 0 && !had_failed) {
    return true;
  }
  (void)fprintf(stderr, "tarn: writing the result: %s\n",
                had_failed ? "not all of it could be written" : strerror(errno));
  return false;
}

int main(int argc, char **argv) {
  tool_command_line = argv;
  if (argc < 2) {
    (void)fprintf(stderr, "tarn: a command is needed; `tarn help` lists them\n");
    return TOOL_USAGE;
  }
  const tool_command *command = find_command(command_name(argv[1]));
  if (command == NULL) {
    return unknown_command(argv[1]);
  }
  const int result = command->run(command, argc - 2, argv + 2);
  return is_written() ? result : TOOL_FAILED;
}
