/* SPDX-License-Identifier: MIT
 *
 * Replays a trace through a heap of its own. Every block is used by its stream, so that the
 * simulated GPU's oracle sees each reuse: the whole block by a kernel there, its first bytes by a
 * fill on a real GPU. Counts of driver calls are differences around a pass; streams exist before
 * the first and are waited for between passes, so all that is left in them beside the heap's own
 * calls are the fills on a real GPU. No locks: one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "progress.h"
#include "replay.h"
#include "tarn/sim.h"

enum { FILL_BYTES = 256, PROGRESS_EVENTS = 512, DEVICE_NAME = 96 };

#define DEFAULT_CAPACITY_BYTES (UINT64_C(80) << 30)

typedef struct replay {
  const trace *trace;
  const replay_plan *plan;
  replay_result *result;
  tarn_device *device;
  tarn_heap *heap;
  tarn_stream streams[TRACE_MAX_STREAMS];
  uint32_t n_streams;
  tarn_ptr *blocks; /* by number; 0: not live */
  uint64_t owners;  /* blocks so far: each has an owner of its own */
  tarn_stats_scope *scope;
  uint64_t live_bytes; /* of the first pass, where its statistics are wanted */
  progress progress;
  uint64_t n_shown;
} replay;

/* ---- Devices -------------------------------------------------------------------------------- */

/* "80G", or the plain number where it is not a whole one of those. */
static void write_bytes(uint64_t bytes, char *text, size_t capacity) {
  const bool is_whole = bytes % (UINT64_C(1) << 30) == 0;
  (void)snprintf(text, capacity, is_whole ? "%lluG" : "%llu",
                 (unsigned long long)(is_whole ? bytes >> 30 : bytes));
}

/* Opens what the plan asks for. A simulated GPU of which nothing else is said gets the plan's
 * capacity and seed; any other device is limited by its heap. */
static tarn_status open_device(replay *r, uint64_t *limit_bytes) {
  const replay_plan *plan = r->plan;
  tarn_device_info *info = &r->result->device;
  char name[DEVICE_NAME], bytes[DEVICE_NAME / 2];
  *info = (tarn_device_info){.size = sizeof(*info)};
  *limit_bytes = plan->capacity_bytes;
  tarn_status status = tarn_device_open(plan->device, &r->device);
  if (status == TARN_OK) {
    status = tarn_device_get_info(r->device, info);
  }
  if (status != TARN_OK || strcmp(info->name, "sim") != 0) {
    return status;
  }
  tarn_device_close(r->device);
  r->device = NULL;
  write_bytes(plan->capacity_bytes != 0 ? plan->capacity_bytes : DEFAULT_CAPACITY_BYTES, bytes,
              sizeof(bytes));
  (void)snprintf(name, sizeof(name), "sim:%s,seed=%llu", bytes, (unsigned long long)plan->seed);
  *limit_bytes = 0;
  status = tarn_device_open(name, &r->device);
  return status == TARN_OK ? tarn_device_get_info(r->device, info) : status;
}

static void count_finding(const tarn_sim_finding *finding, void *user) {
  replay_result *result = user;
  if (result->violations++ == 0) {
    (void)snprintf(result->finding, sizeof(result->finding), "%s", finding->message);
  }
}

static tarn_status open_streams(replay *r) {
  for (; r->n_streams < r->trace->n_streams; r->n_streams++) {
    const tarn_status status = tarn_stream_create(r->device, &r->streams[r->n_streams]);
    if (status != TARN_OK) {
      return status;
    }
  }
  return TARN_OK;
}

static tarn_status wait_for_streams(replay *r) {
  tarn_status status = TARN_OK;
  for (uint32_t i = 0; i < r->n_streams && status == TARN_OK; i++) {
    status = tarn_stream_synchronize(r->device, r->streams[i]);
  }
  return status;
}

/* ---- Driver calls --------------------------------------------------------------------------- */

/* Adds up what was called since `before`. On a real GPU less the fills, for the replay's own are
 * among them. */
static tarn_status count_calls(const replay *r, const tarn_call_counts *before,
                               replay_calls *calls) {
  tarn_call_counts now = {.size = sizeof(now)};
  const tarn_status status = tarn_device_get_calls(r->device, &now);
  *calls = (replay_calls){0};
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    if (i != TARN_CALL_FILL || r->result->device.is_simulated) {
      calls->calls[i] = now.calls[i] - before->calls[i];
      calls->nanoseconds[i] = now.nanoseconds[i] - before->nanoseconds[i];
      calls->n_calls += calls->calls[i];
      calls->total_ns += calls->nanoseconds[i];
    }
  }
  return status;
}

/* ---- Events --------------------------------------------------------------------------------- */

/* Uses a fresh block on its stream. */
static tarn_status use_block(replay *r, tarn_ptr block, uint64_t bytes, tarn_stream stream) {
  if (block == 0) {
    return TARN_OK;
  }
  if (!r->result->device.is_simulated) {
    return tarn_device_fill(r->device, block, 0x5a, bytes < FILL_BYTES ? bytes : FILL_BYTES,
                            stream);
  }
  const uint64_t owner = ++r->owners;
  const tarn_status status = tarn_sim_own(r->device, block, bytes, owner);
  const tarn_sim_range range = {.address = block, .bytes = bytes, .owner = owner, .is_write = true};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  return status == TARN_OK ? tarn_sim_launch(r->device, &kernel, stream) : status;
}

static tarn_status allocate(replay *r, const trace_event *event) {
  const tarn_stream stream = r->streams[event->stream];
  tarn_ptr *block = &r->blocks[event->block];
  const tarn_status status = tarn_alloc(r->heap, event->bytes, stream, block);
  return status == TARN_OK ? use_block(r, *block, event->bytes, stream) : status;
}

static tarn_status give_back(replay *r, const trace_event *event) {
  const tarn_ptr block = r->blocks[event->block];
  r->blocks[event->block] = 0;
  if (block != 0 && r->result->device.is_simulated) {
    const tarn_status status = tarn_sim_disown(r->device, block, event->bytes);
    if (status != TARN_OK) {
      return status;
    }
  }
  return tarn_free(r->heap, block, r->streams[event->stream]);
}

/* Frees what the trace left, in the order of allocation. */
static tarn_status give_rest_back(replay *r, size_t n_events) {
  tarn_status status = TARN_OK;
  for (size_t i = 0; i < n_events && status == TARN_OK; i++) {
    const trace_event *event = &r->trace->events[i];
    if (event->kind == TRACE_ALLOC && r->blocks[event->block] != 0) {
      status = give_back(r, event);
    }
  }
  return status;
}

/* Looks at the heap when the trace first has its peak of live bytes. */
static void watch_peak(replay *r, const trace_event *event) {
  replay_result *result = r->result;
  r->live_bytes += event->kind == TRACE_ALLOC ? event->bytes : -event->bytes;
  if (r->live_bytes == r->trace->live_peak_bytes && result->peak_histogram.size == 0) {
    result->peak_histogram.size = sizeof(result->peak_histogram);
    result->peak_stats.size = sizeof(result->peak_stats);
    (void)tarn_heap_get_histogram(r->heap, &result->peak_histogram);
    (void)tarn_heap_get_stats(r->heap, &result->peak_stats);
  }
}

static tarn_status begin_scope(replay *r) {
  const tarn_stats_scope_config config = {.size = sizeof(config), .is_exact = true};
  return r->plan->has_stats ? tarn_stats_scope_begin(r->heap, &config, &r->scope) : TARN_OK;
}

static void end_scope(replay *r) {
  if (r->scope != NULL) {
    r->result->scope.size = sizeof(r->result->scope);
    (void)tarn_stats_scope_end(r->scope, &r->result->scope);
    r->scope = NULL;
  }
}

static tarn_status run_pass(replay *r) {
  const trace *t = r->trace;
  tarn_status status = TARN_OK;
  size_t i = 0;
  for (; i < t->n_events && status == TARN_OK; i++) {
    const trace_event *event = &t->events[i];
    status = event->kind == TRACE_ALLOC ? allocate(r, event) : give_back(r, event);
    if (r->scope != NULL) {
      watch_peak(r, event);
    }
    if (i % PROGRESS_EVENTS == 0) {
      progress_show(&r->progress, r->n_shown + i);
    }
  }
  r->n_shown += t->n_events;
  r->result->failed_event = status == TARN_OK ? i : i - 1;
  return status == TARN_OK ? give_rest_back(r, t->n_events) : status;
}

/* ---- Runs ----------------------------------------------------------------------------------- */

static tarn_status create_heap(replay *r, uint64_t limit_bytes) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .device = r->result->device.name,
                                   .limit_bytes = limit_bytes,
                                   .stealing = r->plan->stealing,
                                   .preset = r->plan->preset,
                                   .backing = r->plan->backing,
                                   .rounding = r->plan->rounding};
  return tarn_heap_create(&config, &r->heap);
}

/* All passes; the heap is made inside the first, so that its calls are counted there. */
static tarn_status run_passes(replay *r, uint64_t limit_bytes) {
  replay_result *result = r->result;
  tarn_status status = TARN_OK;
  for (uint64_t pass = 0; pass < r->plan->n_passes && status == TARN_OK; pass++) {
    tarn_call_counts before = {.size = sizeof(before)};
    result->failed_pass = pass + 1;
    status = tarn_device_get_calls(r->device, &before);
    const uint64_t start_ns = progress_now_ns();
    if (status == TARN_OK && r->heap == NULL) {
      status = create_heap(r, limit_bytes);
      status = status == TARN_OK ? begin_scope(r) : status;
    }
    if (status == TARN_OK) {
      status = run_pass(r);
      end_scope(r);
    }
    if (status == TARN_OK) {
      const uint64_t pass_ns = progress_now_ns() - start_ns;
      status = count_calls(r, &before, &result->last);
      result->stats = (tarn_heap_stats){.size = sizeof(result->stats)};
      (void)tarn_heap_get_stats(r->heap, &result->stats);
      result->reserved_peak_repeat_bytes = result->stats.reserved_peak_bytes;
      if (pass == 0) {
        result->first = result->last;
        result->first_pass_ns = pass_ns;
        result->reserved_peak_bytes = result->stats.reserved_peak_bytes;
      }
    }
    if (status == TARN_OK) {
      status = wait_for_streams(r);
    }
  }
  return status;
}

/* Gives everything back; the oracle may still find something, up to the device's own end. */
static void close_replay(replay *r) {
  if (r->device != NULL) {
    (void)wait_for_streams(r);
  }
  if (r->heap != NULL) {
    (void)tarn_heap_destroy(r->heap, NULL);
  }
  for (uint32_t i = 0; i < r->n_streams; i++) {
    (void)tarn_stream_destroy(r->device, r->streams[i]);
  }
  tarn_device_close(r->device);
  free(r->blocks);
  progress_end(&r->progress);
}

static bool is_shortage(tarn_status status) {
  return status == TARN_DEVICE_MEMORY || status == TARN_LIMIT;
}

bool replay_run(const char *name, const trace *t, const replay_plan *plan, replay_result *result) {
  replay r = {.trace = t, .plan = plan, .result = result};
  uint64_t limit_bytes = 0;
  *result = (replay_result){.status = TARN_OK};
  r.blocks = calloc((size_t)t->n_blocks + 1, sizeof(*r.blocks));
  if (r.blocks == NULL) {
    result->status = TARN_HOST_MEMORY;
    (void)snprintf(result->message, sizeof(result->message), "no host memory for %u block numbers",
                   t->n_blocks);
    return false;
  }
  progress_begin(&r.progress, name, t->n_events * plan->n_passes);
  result->status = open_device(&r, &limit_bytes);
  if (result->status == TARN_OK && result->device.is_simulated) {
    result->status = tarn_sim_set_on_finding(r.device, count_finding, result);
  }
  if (result->status == TARN_OK) {
    result->status = open_streams(&r);
  }
  if (result->status == TARN_OK) {
    result->status = run_passes(&r, limit_bytes);
  }
  if (result->status == TARN_OK) {
    result->status = tarn_heap_check(r.heap);
  }
  if (result->status != TARN_OK) {
    /* Cleaning up may fail as well and must not hide the first reason. */
    (void)snprintf(result->message, sizeof(result->message), "%s", tarn_last_message());
    (void)(r.heap != NULL ? give_rest_back(&r, result->failed_event) : TARN_OK);
  }
  close_replay(&r);
  return result->status == TARN_OK || is_shortage(result->status);
}

/* ---- The smallest capacity ------------------------------------------------------------------ */

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

/* One pass with this capacity. What the oracle has found before counts on. */
static bool fits(const char *name, const trace *t, replay_plan *trial, replay_result *result,
                 bool *is_enough) {
  const replay_result before = *result;
  const bool is_run = replay_run(name, t, trial, result);
  *is_enough = is_run && result->status == TARN_OK;
  result->violations += before.violations;
  if (before.violations != 0) {
    memcpy(result->finding, before.finding, sizeof(result->finding));
  }
  return is_run;
}

bool replay_fit(const char *name, const trace *t, const replay_plan *plan, replay_result *result,
                uint64_t *fit_bytes) {
  const uint64_t unit =
      result->device.granularity_bytes != 0 ? result->device.granularity_bytes : 1 << 16;
  const uint64_t finest = t->live_peak_bytes / 500;
  uint64_t low = t->live_peak_bytes / unit * unit; /* too little, or just enough by luck */
  uint64_t high = round_up(result->reserved_peak_bytes, unit);
  replay_plan trial = *plan;
  bool is_enough = false;
  trial.n_passes = 1;
  trial.has_stats = false; /* a heap that is watched places blocks differently */
  /* What was enough once may not be under pressure, since the heap then behaves differently. */
  for (int doublings = 0; !is_enough && doublings < 4; doublings++) {
    trial.capacity_bytes = high;
    if (!fits(name, t, &trial, result, &is_enough)) {
      return false;
    }
    low = is_enough ? low : high;
    high = is_enough ? high : round_up(high + high / 2, unit);
  }
  while (is_enough && high - low > (finest > unit ? finest : unit)) {
    bool is_less_enough;
    trial.capacity_bytes = low + (high - low) / 2 / unit * unit;
    if (!fits(name, t, &trial, result, &is_less_enough)) {
      return false;
    }
    low = is_less_enough ? low : trial.capacity_bytes;
    high = is_less_enough ? trial.capacity_bytes : high;
  }
  *fit_bytes = is_enough ? high : 0;
  return true;
}
