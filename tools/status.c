/* SPDX-License-Identifier: MIT
 *
 * tarn status: the status codes, as a list or as the page docs/status.md. */
#include <stdio.h>

#include "tarn/tarn.h"
#include "tool.h"

static const tarn_status codes[] = {
#define STATUS_CODE(name, number, text) TARN_##name,
    TARN_STATUS_MAP(STATUS_CODE)
#undef STATUS_CODE
};

static void print_status_row(tarn_status code) {
  printf("| `%s` | %d |", tarn_status_name(code), (int)code);
  tool_markdown_cell(tarn_status_text(code));
  printf("\n");
}

int tool_status(const tool_command *command, int argc, char **argv) {
  bool is_markdown = false;
  const tool_argument arguments[] = {{"--markdown", &is_markdown, NULL}};
  const int result = tool_parse(command, arguments, 1, argc, argv);
  if (result >= 0) {
    return result;
  }
  if (is_markdown) {
    printf("# Status codes\n\n"
           "This page is what `tarn status --markdown` prints.\n\n"
           "Every call returns one of these. `tarn_last_error` adds what happened on this thread,\n"
           "with the numbers, the driver's own code, and what to do about it. Numbers are never\n"
           "used again: 1 to 19 are the caller's mistakes, 20 to 39 something ran out, 40 to 59\n"
           "the driver or the device, 60 to 79 timing, 80 and up tarn itself.\n\n"
           "<!-- list: status -->\n"
           "| status | number | meaning |\n|---|---|---|\n");
  }
  for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
    if (is_markdown) {
      print_status_row(codes[i]);
    } else {
      printf("%3d  %-20s %s\n", (int)codes[i], tarn_status_name(codes[i]),
             tarn_status_text(codes[i]));
    }
  }
  printf("%s", is_markdown ? "<!-- end -->\n" : "");
  return TOOL_OK;
}
