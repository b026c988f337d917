/* SPDX-License-Identifier: MIT
 *
 * tarn options: the environment variables, as a list or as the page docs/options.md. */
#include <stdio.h>

#include "tarn/tarn.h"
#include "tool.h"

static void print_option(const tarn_option *option) {
  printf("%s=%s%s\n  %s\n  Takes %s; default: %s.\n", option->name, option->value,
         option->is_set ? "  (set)" : "", option->help, option->range,
         option->default_value[0] != '\0' ? option->default_value : "empty");
}

static void print_option_row(const tarn_option *option) {
  printf("| `%s` |", option->name);
  tool_markdown_cell(option->default_value);
  tool_markdown_cell(option->range);
  tool_markdown_cell(option->help);
  printf("\n");
}

static void print_page_head(void) {
  printf(
      "# Options\n\n"
      "This page is what `tarn options --markdown` prints.\n\n"
      "Every option is an environment variable, read once, when tarn is first used. A bad value\n"
      "is an error of every call that needs options, with a message that names the variable,\n"
      "the value and the range. So is a variable that begins with `TARN_` and is not in this\n"
      "list, for a misspelt name must not be ignored; only names that begin with `TARN_TEST_`\n"
      "are left to tests. Byte sizes take a unit: 4096, 64K, 64MiB, 80G; units are powers of\n"
      "1024 however they are written.\n\n"
      "<!-- list: options -->\n"
      "| variable | default | takes | what it is |\n|---|---|---|---|\n");
}

int tool_options(const tool_command *command, int argc, char **argv) {
  bool is_markdown = false;
  const tool_argument arguments[] = {{"--markdown", &is_markdown, NULL}};
  const int result = tool_parse(command, arguments, 1, argc, argv);
  if (result >= 0) {
    return result;
  }
  tarn_option option = {.size = sizeof(option)};
  tarn_status status = tarn_option_get(0, &option);
  if (is_markdown && status == TARN_OK) {
    print_page_head();
  }
  for (size_t i = 1; status == TARN_OK; i++) {
    if (is_markdown) {
      print_option_row(&option);
    } else {
      print_option(&option);
    }
    option.size = sizeof(option);
    status = tarn_option_get(i, &option);
  }
  if (status != TARN_RANGE) {
    return tool_fail();
  }
  printf("%s", is_markdown ? "<!-- end -->\n" : "");
  return TOOL_OK;
}
