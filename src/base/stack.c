/* SPDX-License-Identifier: MIT
 *
 * Stacks of return addresses, by the C library's own unwinder where it has one. No locks. */
#include "base/stack.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

#if defined(__has_include) && __has_include(<execinfo.h>)
#include <execinfo.h>
#else
static int backtrace(void **frames, int depth) {
  (void)frames;
  (void)depth;
  return 0;
}
#endif

enum { STACK_SKIPPED = 1 }; /* this file's own frame */

void tarni_stack_prepare(void) {
  void *frames[2];
  (void)backtrace(frames, 2); /* the first call may load the unwinder, which allocates */
}

uint32_t tarni_stack_take(void **frames, uint32_t depth) {
  void *all[TARNI_STACK_MAX + STACK_SKIPPED];
  tarn_assert(depth <= TARNI_STACK_MAX);
  const int n = backtrace(all, (int)depth + STACK_SKIPPED);
  if (n <= STACK_SKIPPED) {
    return 0;
  }
  memcpy(frames, all + STACK_SKIPPED, (size_t)(n - STACK_SKIPPED) * sizeof(*frames));
  return (uint32_t)(n - STACK_SKIPPED);
}

char *tarni_stack_text(void *const *frames, uint32_t n, char *buffer, size_t capacity) {
  size_t used = 0;
  buffer[0] = '\0';
  for (uint32_t i = 0; i < n; i++) {
    char frame[24];
    const int length = snprintf(frame, sizeof(frame), "%s%p", i != 0 ? " " : "", frames[i]);
    if (length < 0 || used + (size_t)length + 1 > capacity) {
      break;
    }
    memcpy(buffer + used, frame, (size_t)length + 1);
    used += (size_t)length;
  }
  return buffer;
}
