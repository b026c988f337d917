/* SPDX-License-Identifier: MIT
 *
 * The static planner: buffers with a size, a lifetime and an alignment in, an offset for each out,
 * so that no two that live at once share a byte and the whole is as low as can be found.
 *
 * Pure: no globals, no locks, no clock. It stops when the caller's `should_stop` says so or when
 * `max_steps` are spent, and for a given number of steps the result is always the same. Every plan
 * is validated by tarni_plan_check, which shares no code with the placements, before it is
 * returned. What a failed call returns is empty and needs no tarni_plan_release. */
#ifndef TARNI_PLAN_H
#define TARNI_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Lives in the half-open time [begin, end). Zero bytes or an empty lifetime need no memory and get
 * offset 0. The alignment is a power of two; 0 means 1. */
typedef struct tarni_plan_buffer {
  uint64_t bytes;
  uint64_t begin;
  uint64_t end;
  uint64_t alignment;
} tarni_plan_buffer;

/* A partial order in place of a time line: the last use of each predecessor of buffer i comes
 * before the first use of i. predecessors[starts[i]] to predecessors[starts[i + 1]] are those of i;
 * what follows by transitivity may be left out. Times are not looked at then. */
typedef struct tarni_plan_order {
  const uint32_t *starts; /* count + 1 of them */
  const uint32_t *predecessors;
} tarni_plan_order;

typedef struct tarni_plan_problem {
  const tarni_plan_buffer *buffers;
  uint32_t count;
  const tarni_plan_order *order; /* NULL: the buffers' times */
} tarni_plan_problem;

typedef struct tarni_plan_limits {
  bool (*should_stop)(void *context); /* asked every few steps; NULL: never */
  void (*progress)(void *context, uint64_t height, uint64_t bound); /* NULL: nobody asks */
  void *context;
  uint64_t max_steps; /* 0: no limit of its own */
  uint64_t capacity;  /* a plan this low is good enough; 0: as low as can be */
} tarni_plan_limits;

typedef struct tarni_plan {
  uint32_t count;
  uint64_t *offsets;
  uint64_t height;     /* bytes needed: the top of the highest buffer */
  uint64_t bound;      /* no plan can be lower; proven */
  uint64_t bind_begin; /* the first stretch of time where the peak of live bytes is */
  uint64_t bind_end;
  uint64_t steps;
  bool is_proven; /* no lower plan exists */
  bool is_over;   /* a capacity was given and it is proven that no plan keeps to it */
} tarni_plan;

/* TARN_INVALID for an alignment that is no power of two, a lifetime that ends before it begins or
 * an order with a cycle; TARN_OVERFLOWED when the sizes add up to more than 2^62. A plan higher
 * than the capacity is returned all the same: the caller compares. */
tarn_status tarni_plan_solve(const tarni_plan_problem *problem, const tarni_plan_limits *limits,
                             tarni_plan *plan);
void tarni_plan_release(tarni_plan *plan);

/* ---- plan_check.c --------------------------------------------------------------------------- */

/* TARN_OK when the offsets are a valid plan; TARN_CORRUPT with the two buffers that share a byte,
 * or the one that is misaligned. *height gets the top of the highest buffer. */
tarn_status tarni_plan_check(const tarni_plan_problem *problem, const uint64_t *offsets,
                             uint64_t *height);

/* ---- plan_file.c ---------------------------------------------------------------------------- */

/* What the reader of a text gives: buffers and the id that each had there. */
typedef struct tarni_plan_table {
  uint32_t count;
  tarni_plan_buffer *buffers;
  uint64_t *ids;
} tarni_plan_table;

/* Reads a table with the columns id, lower, upper, size and where there is one alignment, in any
 * order, named in the first line. Any bytes are survived; the error names the line. */
tarn_status tarni_plan_read(const char *text, size_t length, tarni_plan_table *table);
void tarni_plan_table_release(tarni_plan_table *table);

/* A 64-bit fingerprint of everything in the problem that a plan depends on. */
uint64_t tarni_plan_fingerprint(const tarni_plan_problem *problem);

/* Writes a plan for the problem with this fingerprint as text, into memory that the caller frees.
 */
tarn_status tarni_plan_save(const tarni_plan *plan, uint64_t fingerprint, char **text,
                            size_t *length);

/* Reads what tarni_plan_save wrote. TARN_STATE when it was made for another problem; the offsets
 * are checked against the problem again, so a damaged text is never accepted. */
tarn_status tarni_plan_load(const tarni_plan_problem *problem, const char *text, size_t length,
                            tarni_plan *plan);

#endif
