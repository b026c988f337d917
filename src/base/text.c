/* SPDX-License-Identifier: MIT
 *
 * Numbers and byte sizes as text. Owns nothing; no locks. */
#include "base/text.h"

#include <stdio.h>
#include <strings.h>

#include "base/bits.h"

static const char unit_letters[] = "KMGTP";

/* Reads the digits at the start of `text`; NULL when there are none or the number does not fit,
 * else where they end. */
static const char *read_digits(const char *text, uint64_t *number) {
  uint64_t sum = 0;
  const char *end = text;
  for (; *end >= '0' && *end <= '9'; end++) {
    if (!tarni_mul(sum, 10, &sum) || !tarni_add(sum, (uint64_t)(*end - '0'), &sum)) {
      return NULL;
    }
  }
  *number = sum;
  return end != text ? end : NULL;
}

bool tarni_text_to_number(const char *text, uint64_t *number) {
  uint64_t result;
  const char *end = read_digits(text, &result);
  if (end == NULL || *end != '\0') {
    return false;
  }
  *number = result;
  return true;
}

/* The power of two behind a unit; false for a text that is no unit. */
static bool unit_shift(const char *unit, unsigned *shift) {
  if (unit[0] == '\0' || strcasecmp(unit, "B") == 0) {
    *shift = 0;
    return true;
  }
  for (unsigned i = 0; unit_letters[i] != '\0'; i++) {
    const char letter[2] = {unit_letters[i], '\0'};
    if (strncasecmp(unit, letter, 1) == 0) {
      *shift = 10 * (i + 1);
      return unit[1] == '\0' || strcasecmp(unit + 1, "B") == 0 || strcasecmp(unit + 1, "iB") == 0;
    }
  }
  return false;
}

bool tarni_text_to_bytes(const char *text, uint64_t *bytes) {
  uint64_t number;
  unsigned shift;
  const char *unit = read_digits(text, &number);
  return unit != NULL && unit_shift(unit, &shift) && tarni_mul(number, UINT64_C(1) << shift, bytes);
}

char *tarni_text_from_bytes(uint64_t bytes, char buffer[TARNI_TEXT_NUMBER]) {
  unsigned n_units = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit_letters[n_units] != '\0') {
    bytes /= 1024;
    n_units++;
  }
  char unit[2] = "";
  if (n_units > 0) {
    unit[0] = unit_letters[n_units - 1];
  }
  (void)snprintf(buffer, TARNI_TEXT_NUMBER, "%llu%s", (unsigned long long)bytes, unit);
  return buffer;
}
