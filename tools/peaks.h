/* SPDX-License-Identifier: MIT
 *
 * What PyTorch's allocators reserved for the recorded programs: a file peaks.csv beside the traces,
 * with a line a program: name, bytes live at the peak, bytes that the native allocator reserved,
 * bytes that it reserved with expandable segments. */
#ifndef TARN_TOOLS_PEAKS_H
#define TARN_TOOLS_PEAKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PEAKS_NAME = 256 }; /* no file has a longer name */

typedef struct peaks {
  uint64_t live_bytes;
  uint64_t native_bytes;
  uint64_t expandable_bytes;
} peaks;

/* The name of a trace: "a/b/gpt2_train.trace.gz" is "gpt2_train". Returns the buffer. */
char *peaks_name(const char *path, char name[PEAKS_NAME]);

/* Looks for the trace in the peaks.csv of its folder. False: there is none, or nothing in it. */
bool peaks_find(const char *path, peaks *found);

#endif
