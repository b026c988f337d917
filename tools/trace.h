/* SPDX-License-Identifier: MIT
 *
 * Recorded programs: what a program asked of its allocator, one event a line in time order:
 *   a ID SIZE STREAM   allocate SIZE bytes in the order of STREAM
 *   f ID               give the block back, in the order of its own stream
 *   # ...              a comment; empty lines are fine, too
 * ID and STREAM are any decimal numbers below 2^64; an ID may name another block once its first one
 * is freed. A reader gives both dense numbers, in the order of first sight. It survives any bytes:
 * what is not a trace is refused with a message that names file and line. Knows nothing of tarn. */
#ifndef TARN_TOOLS_TRACE_H
#define TARN_TOOLS_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  TRACE_ERROR = 512,        /* room for a message */
  TRACE_MAX_STREAMS = 1024, /* of one trace */
  TRACE_MAX_LINE = 256,     /* bytes of a line, comments apart */
};

/* No trace may ask for more at once or in all: far above any device, far below overflow. */
#define TRACE_MAX_BYTES (UINT64_C(1) << 50)

typedef enum trace_kind { TRACE_ALLOC, TRACE_FREE } trace_kind;

typedef struct trace_event {
  uint64_t bytes;  /* of the block, also where it is freed */
  uint32_t block;  /* 0, 1, 2, ... in the order of allocation: every allocation has its own */
  uint16_t stream; /* of the block, also where it is freed; 0, 1, 2, ... as first seen */
  uint16_t kind;   /* trace_kind */
} trace_event;

typedef struct trace {
  trace_event *events;
  size_t n_events;
  uint32_t n_blocks; /* allocations in all */
  uint32_t n_streams;
  uint32_t live_peak_blocks;
  uint64_t live_peak_bytes; /* most bytes asked for at once */
} trace;

/* Reads a file, plain or compressed by gzip ("-": the standard input). False: *out is empty and
 * `error` says why. What was read is given back by trace_close, also when it is empty. */
bool trace_open(const char *path, trace *out, char error[TRACE_ERROR]);

/* The same of text in memory; `name` is what messages call it. */
bool trace_parse(const char *name, const char *text, size_t length, trace *out,
                 char error[TRACE_ERROR]);

void trace_close(trace *t);

#endif
