/* SPDX-License-Identifier: MIT
 *
 * What the files of `tarn plan` share: the job, from the file to the plan. */
#ifndef TARN_TOOL_PLAN_H
#define TARN_TOOL_PLAN_H

#include "tarn/plan.h"

typedef struct plan_job {
  const char *path;
  tarn_plan_buffer *buffers;
  uint64_t *ids; /* what the file calls them */
  uint64_t count;
  const uint64_t *offsets;
  tarn_plan_info info;
  double seconds;
} plan_job;

/* ---- plan_load.c ---------------------------------------------------------------------------- */
/* Fills buffers, ids and count from a table or, between two events, a trace. False: told on
 * stderr. */
bool plan_job_load(plan_job *job, uint64_t window_begin, uint64_t window_end);
/* The whole file, to be given back by free(); NULL: told on stderr. */
char *plan_read_whole(const char *path, size_t *length);

/* ---- plan_svg.c ----------------------------------------------------------------------------- */
/* Draws the packing: time across, offset up. False: told on stderr. */
bool plan_job_draw(const plan_job *job, const char *path);

#endif
