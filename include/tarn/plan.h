/* SPDX-License-Identifier: MIT
 *
 * The static planner: give it buffers with a size and a lifetime, and it finds an offset for each
 * in one arena that is as small as it can be, says how small any arena could be at best, and where
 * in time that limit is. Every plan is validated by an independent checker before it is returned.
 */
#ifndef TARN_PLAN_H
#define TARN_PLAN_H

#include "tarn/tarn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lives in the half-open time [begin, end), in any unit. Zero bytes or an empty lifetime need no
 * memory and get offset 0. The alignment is a power of two; 0 means 1. */
typedef struct tarn_plan_buffer {
  uint64_t bytes;
  uint64_t begin;
  uint64_t end;
  uint64_t alignment;
} tarn_plan_buffer;

/* With predecessor_starts, a partial order takes the place of time: the last use of each
 * predecessor of buffer i comes before the first use of i, and nothing else is known to be ordered.
 * The predecessors of i are predecessors[predecessor_starts[i]] up to predecessor_starts[i + 1];
 * what follows by transitivity may be left out. Two buffers share memory only where one is known to
 * be before the other. */
typedef struct tarn_plan_problem {
  size_t size;
  const tarn_plan_buffer *buffers;
  uint64_t count;                     /* below 2^32 - 1 */
  const uint32_t *predecessor_starts; /* count + 1 of them, or NULL for a time line */
  const uint32_t *predecessors;
} tarn_plan_problem;

typedef struct tarn_plan_options {
  size_t size;
  uint64_t max_ns; /* wall clock; 0: ten seconds */
  uint64_t
      max_steps;     /* 0: no limit; with a limit, and time enough, the result is always the same */
  uint64_t capacity; /* a plan this low is good enough; 0: as low as can be */
  void (*progress)(void *context, uint64_t height, uint64_t bound); /* at each better plan */
  void *context;
} tarn_plan_options;

typedef struct tarn_plan_info {
  size_t size;
  uint64_t count;
  uint64_t height;     /* bytes of the arena */
  uint64_t bound;      /* no arena can be smaller */
  uint64_t bind_begin; /* the stretch of time where that is decided; for a partial order, 0 and 0 */
  uint64_t bind_end;
  uint64_t steps;
  uint64_t fingerprint; /* of the problem */
  bool is_proven;       /* no lower plan exists */
  bool is_over;         /* a capacity was given and no plan can keep to it */
} tarn_plan_info;

typedef struct tarn_plan tarn_plan;

/* Finds the best plan within the limits. At the limit the best so far is returned: it is always
 * valid, and is_proven says whether it is the best there is. NULL options are the defaults. A
 * search among thousands of buffers may take a MiB of the caller's stack. TARN_INVALID for an
 * alignment that is no power of two, a lifetime that ends before it begins, a predecessor out of
 * range or an order with a cycle; TARN_OVERFLOWED for sizes beyond 2^62. */
TARN_API tarn_status tarn_plan_create(const tarn_plan_problem *problem,
                                      const tarn_plan_options *options, tarn_plan **plan);
TARN_API void tarn_plan_destroy(tarn_plan *plan);

TARN_API tarn_status tarn_plan_get_info(const tarn_plan *plan, tarn_plan_info *info);

/* One offset a buffer, in the order of the problem; valid for the life of the plan. */
TARN_API const uint64_t *tarn_plan_offsets(const tarn_plan *plan);

/* Checks any offsets against a problem: TARN_CORRUPT, naming the buffers, when they are no plan.
 * *height gets the bytes that they need. */
TARN_API tarn_status tarn_plan_check(const tarn_plan_problem *problem, const uint64_t *offsets,
                                     uint64_t *height);

/* Saves a plan as text; free() gives the text back. Loading refuses, with TARN_STATE, a plan that
 * was made for another problem, and with TARN_CORRUPT a damaged one. */
TARN_API tarn_status tarn_plan_save(const tarn_plan *plan, char **text, size_t *length);
TARN_API tarn_status tarn_plan_load(const tarn_plan_problem *problem, const char *text,
                                    size_t length, tarn_plan **plan);

/* Reads a table of buffers: comma-separated, a first line that names the columns id, lower, upper,
 * size and, if there is one, alignment. An error names the line. Both arrays have *count elements
 * and go back by free(). */
TARN_API tarn_status tarn_plan_read(const char *text, size_t length, tarn_plan_buffer **buffers,
                                    uint64_t **ids, uint64_t *count);

#ifdef __cplusplus
}
#endif

#endif
