/* SPDX-License-Identifier: MIT
 *
 * What happens when an assertion fails. The only place in the library that writes to stderr. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void tarni_check_failed(const char *condition, const char *file, int line) {
  fprintf(stderr, "tarn: assertion failed: %s (%s:%d)\n", condition, file, line);
  abort();
}
