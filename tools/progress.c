/* SPDX-License-Identifier: MIT
 *
 * The progress bar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"

enum { BAR_WIDTH = 40 };
static const uint64_t redraw_ns = 50000000;

uint64_t progress_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool is_terminal(void) {
  const char *term = getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && (term == NULL || strcmp(term, "dumb") != 0);
}

void progress_begin(progress *p, const char *what, uint64_t total) {
  *p = (progress){.what = what, .total = total, .is_shown = is_terminal() && total > 0};
}

void progress_show(progress *p, uint64_t done) {
  if (!p->is_shown || progress_now_ns() < p->next_ns) {
    return;
  }
  p->next_ns = progress_now_ns() + redraw_ns;
  const double part = done < p->total ? (double)done / (double)p->total : 1.0;
  const int filled = (int)(part * BAR_WIDTH);
  (void)fprintf(stderr, "\r%-20.20s [", p->what);
  for (int i = 0; i < BAR_WIDTH; i++) {
    (void)fputc(i < filled ? '#' : '.', stderr);
  }
  (void)fprintf(stderr, "] %3d %%", (int)(part * 100));
  (void)fflush(stderr);
}

void progress_end(progress *p) {
  if (p->is_shown && p->next_ns != 0) {
    (void)fprintf(stderr, "\r\033[K");
    (void)fflush(stderr);
  }
  p->is_shown = false;
}
