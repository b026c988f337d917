/* SPDX-License-Identifier: MIT
 *
 * Quantities, JSON and Markdown on stdout. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tool.h"

char *tool_bytes(uint64_t bytes, char buffer[TOOL_TEXT]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  double value = (double)bytes;
  while (value >= 1024.0) {
    value /= 1024.0;
    unit++;
  }
  const bool is_whole = bytes % (UINT64_C(1) << (10 * unit)) == 0;
  (void)snprintf(buffer, TOOL_TEXT, is_whole ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return buffer;
}

char *tool_duration(uint64_t nanoseconds, char buffer[TOOL_TEXT]) {
  if (nanoseconds < 1000) {
    (void)snprintf(buffer, TOOL_TEXT, "%llu ns", (unsigned long long)nanoseconds);
  } else if (nanoseconds < 1000000) {
    (void)snprintf(buffer, TOOL_TEXT, "%.1f us", (double)nanoseconds / 1e3);
  } else {
    (void)snprintf(buffer, TOOL_TEXT, "%.2f ms", (double)nanoseconds / 1e6);
  }
  return buffer;
}

bool tool_has_colour(void) {
  return isatty(STDOUT_FILENO) != 0 && getenv("NO_COLOR") == NULL;
}

/* Whether a byte goes on with a character of UTF-8 that begins with another: those are the two that
 * forbid forms that are too long, halves of pairs and what is beyond the last character. */
static bool utf8_follows(unsigned char first, unsigned char second) {
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  return second >= least && second <= most;
}

size_t tool_utf8_length(const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  if (*at < 0x80) {
    return 1;
  }
  if (*at < 0xc2 || *at > 0xf4 || !utf8_follows(at[0], at[1])) {
    return 0;
  }
  const size_t n = *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
  for (size_t i = 2; i < n; i++) {
    if (!utf8_follows(0, at[i])) {
      return 0;
    }
  }
  return n;
}

/* Names of files may be any bytes: what is no text becomes a question mark in a box. */
void tool_json_text(const char *text) {
  (void)putchar('"');
  for (const char *at = text; *at != '\0';) {
    const size_t n = tool_utf8_length(at);
    if (n == 0) {
      printf("\\ufffd");
    } else if (*at == '"' || *at == '\\') {
      printf("\\%c", *at);
    } else if (n == 1 && (*at < 0x20 || *at == 0x7f)) {
      printf("\\u%04x", (unsigned)*at);
    } else {
      (void)fwrite(at, 1, n, stdout);
    }
    at += n != 0 ? n : 1;
  }
  (void)putchar('"');
}

void tool_json_member(const char *name, bool is_first) {
  printf("%s", is_first ? "" : ", ");
  tool_json_text(name);
  printf(": ");
}

void tool_json_number(const char *name, uint64_t number) {
  tool_json_member(name, false);
  printf("%llu", (unsigned long long)number);
}

void tool_json_real(const char *name, double number, int digits) {
  tool_json_member(name, false);
  printf("%.*f", digits, number);
}

void tool_json_switch(const char *name, bool value) {
  tool_json_member(name, false);
  printf("%s", value ? "true" : "false");
}

void tool_json_string(const char *name, const char *text) {
  tool_json_member(name, false);
  tool_json_text(text);
}

void tool_markdown_cell(const char *text) {
  printf(" ");
  for (const char *at = text; *at != '\0'; at++) {
    printf(*at == '|' ? "\\%c" : "%c", *at);
  }
  printf(text[0] == '\0' ? "- |" : " |");
}
