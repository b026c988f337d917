/* SPDX-License-Identifier: MIT
 *
 * A progress bar on stderr for work of known length: drawn only where stderr is a terminal, at most
 * 20 times a second, and wiped away at the end, so that a pipe or a log never sees it. */
#ifndef TARN_TOOLS_PROGRESS_H
#define TARN_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
  const char *what; /* the word before the bar */
  uint64_t total;
  uint64_t next_ns; /* when it may be drawn again */
  bool is_shown;
} progress;

void progress_begin(progress *p, const char *what, uint64_t total);
/* Cheap enough to be called every few hundred events. */
void progress_show(progress *p, uint64_t done);
void progress_end(progress *p);

/* Nanoseconds of the monotonic clock. */
uint64_t progress_now_ns(void);

#endif
