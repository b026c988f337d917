/* SPDX-License-Identifier: MIT
 *
 * One recorded program through a heap: what `tarn replay` measures, apart from how it is asked for
 * and printed. */
#ifndef TARN_TOOLS_REPLAY_H
#define TARN_TOOLS_REPLAY_H

#include "tarn/tarn.h"
#include "trace.h"

typedef struct replay_plan {
  const char *device; /* NULL: the best there is */
  tarn_stealing stealing;
  tarn_preset preset; /* these three: what the heap is made of */
  tarn_backing backing;
  tarn_rounding rounding;
  uint64_t capacity_bytes; /* of the simulated GPU, else the heap's limit; 0: as it comes */
  uint64_t seed;           /* of the simulated GPU */
  uint64_t n_passes;       /* how often the trace runs through one heap */
  bool has_stats;          /* the first pass is watched closely, and takes longer */
} replay_plan;

/* Driver calls that the heap made, by kind; what the replay asks for itself is not among them. */
typedef struct replay_calls {
  uint64_t calls[TARN_CALL_COUNT];
  uint64_t nanoseconds[TARN_CALL_COUNT];
  uint64_t n_calls; /* sums over all kinds */
  uint64_t total_ns;
} replay_calls;

typedef struct replay_result {
  tarn_device_info device;
  tarn_status status;  /* TARN_OK: all passes ran to their end */
  size_t failed_event; /* else: how many events had run in which pass, and why no more */
  uint64_t failed_pass;
  char message[512];
  uint64_t reserved_peak_bytes;        /* in the first pass */
  uint64_t reserved_peak_repeat_bytes; /* in all passes */
  replay_calls first, last; /* in the first pass, with the heap's creation; in the last */
  uint64_t first_pass_ns;   /* of the wall clock, the accesses included */
  uint64_t violations;      /* findings of the oracle; 0 on a real GPU */
  char finding[256];        /* the first of them */
  tarn_heap_stats stats;    /* after the last pass */
  /* Where the plan has them: of the first pass, and when it first had its peak of live bytes. */
  tarn_stats_scope_result scope;
  tarn_heap_stats peak_stats;
  tarn_heap_histogram peak_histogram;
} replay_result;

/* Runs the trace. False: it could not be run at all, or something else than a shortage of memory
 * stopped it; result->message says why. A shortage is a result: its status is in *result. */
bool replay_run(const char *name, const trace *t, const replay_plan *plan, replay_result *result);

/* Searches the smallest capacity in which one pass completes, to 0.2 % of the live peak or one
 * unit of the device, whichever is larger. *result is that of a run with enough memory on entry,
 * and of the last trial afterwards, without statistics, with what the oracle has found in any.
 * *fit_bytes is 0 when no capacity was found to be enough. */
bool replay_fit(const char *name, const trace *t, const replay_plan *plan, replay_result *result,
                uint64_t *fit_bytes);

/* replay_stats.c: what a plan with statistics has found, as text and as a member of a JSON object.
 */
void replay_stats_print(const replay_result *result);
void replay_stats_print_json(const replay_result *result);

#endif
