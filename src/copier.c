/* SPDX-License-Identifier: MIT
 *
 * The copier, and the ways a copy can go: pinned memory directly, a little ordinary memory through
 * one pinned block at once, a lot of it in pieces (job.c). Owns the copier. Must not know how the
 * pool keeps its memory.
 *
 * In a capture a copy becomes a part of a graph, which may run at any later time: only memory that
 * stays where it is can be a part of that, so everything staged is refused there. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "base/fork.h"
#include "internal.h"
#include "transfer.h"

/* ---- Making and unmaking ---- */

enum { DEFAULT_HANDS = 12 }; /* more of them only wait for memory, and for each other */
#define PIECE_LIMIT ((uint64_t)64 << 20)

static uint32_t count_cores(void) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? (uint32_t)CPU_COUNT(&cores) : 1;
}

static tarn_status config_use(const tarn_copier_config *config, tarn_copier *copier) {
  const char *operation = "tarn_copier_create";
  const uint64_t piece = config->piece_bytes;
  if (piece != 0 && (piece < TARNI_PIECE_LEAST || piece > PIECE_LIMIT)) {
    return tarni_fail(TARN_INVALID, operation, NULL,
                      "Pass 4096 to 67108864 bytes, or 0 for the default.", "piece_bytes is %llu",
                      (unsigned long long)piece);
  }
  if (config->n_threads > TARNI_THREADS_MAX) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass 1 to 63, or 0 for the default.",
                      "n_threads is %u", config->n_threads);
  }
  if (config->has_no_threads && config->n_threads != 0) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Set one of the two.",
                      "n_threads is %u, and has_no_threads is set", config->n_threads);
  }
  copier->piece_bytes = piece != 0 ? piece : TARNI_PIECE_DEFAULT;
  copier->max_threads = config->n_threads;
  if (config->n_threads == 0 && !config->has_no_threads) {
    copier->max_threads = (uint32_t)tarni_min(count_cores(), DEFAULT_HANDS) - 1;
  }
  return TARN_OK;
}

tarn_status tarn_copier_create(tarn_pinned *pool, const tarn_copier_config *config,
                               tarn_copier **copier) {
  const char *operation = "tarn_copier_create";
  if (copier == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass an address for it.",
                      "the copier's address is NULL");
  }
  *copier = NULL;
  if (pool == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_pinned_create.",
                      "the pool is NULL");
  }
  TARN_TRY(tarni_heap_given(tarni_pinned_heap(pool), operation));
  tarn_copier_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), operation));
    TARN_TRY(TARNI_RESERVED(&known, reserved_bool, operation));
  }
  tarn_copier *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, operation, NULL, "Free host memory.",
                      "no host memory for a copier of %zu bytes", sizeof(*made));
  }
  const tarn_status status = config_use(&known, made);
  if (status != TARN_OK) {
    free(made);
    return status;
  }
  made->pool = pool;
  made->port = (tarni_port *)tarn_pinned_device(pool);
  made->fork = tarni_fork_watch();
  made->stats.size = sizeof(made->stats);
  tarni_lock_init(&made->lock, TARNI_RANK_HEAP);
  *copier = made;
  return TARN_OK;
}

tarn_status tarni_copier_given(const tarn_copier *copier, const char *operation) {
  if (copier == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_copier_create.",
                      "the copier is NULL");
  }
  if (copier->fork != tarni_fork_count()) {
    return tarni_fail(TARN_FORKED, operation, NULL,
                      "Make a pool and a copier after fork, in the process that uses them.",
                      "the copier was made by the parent process");
  }
  return TARN_OK;
}

tarn_status tarn_copier_destroy(tarn_copier *copier) {
  const char *operation = "tarn_copier_destroy";
  if (copier == NULL) {
    return TARN_OK;
  }
  TARN_TRY(tarni_copier_given(copier, operation));
  if (copier->stats.fences != 0 || copier->stats.batches != 0) {
    return tarni_fail(TARN_BUSY, operation, NULL, "Destroy them first.",
                      "%llu fences and %llu batches of it are still there",
                      (unsigned long long)copier->stats.fences,
                      (unsigned long long)copier->stats.batches);
  }
  tarni_team_stop(copier);
  const tarn_status status = tarni_staging_exhume(copier, NULL, true);
  if (status != TARN_OK && status != TARN_DEVICE_LOST) {
    return status;
  }
  TARN_TRY(tarni_marks_close(copier));
  tarni_stagings_close(copier);
  tarni_lock_destroy(&copier->lock);
  free(copier);
  return TARN_OK;
}

tarn_status tarn_copier_stream_retire(tarn_copier *copier, tarn_stream stream) {
  TARN_TRY(tarni_copier_given(copier, "tarn_copier_stream_retire"));
  TARN_TRY(tarni_staging_exhume(copier, stream, false));
  return tarn_pinned_stream_retire(copier->pool, stream);
}

void tarni_copier_count(tarn_copier *copier, uint64_t *counter, uint64_t n) {
  tarni_lock_acquire(&copier->lock);
  *counter += n;
  tarni_lock_release(&copier->lock);
}

tarn_status tarn_copier_get_stats(tarn_copier *copier, tarn_copier_stats *stats) {
  const char *operation = "tarn_copier_get_stats";
  tarn_copier_stats full = {.size = sizeof(full)};
  TARN_TRY(tarni_struct_out(stats, &full, sizeof(full), operation));
  TARN_TRY(tarni_copier_given(copier, operation));
  tarni_lock_acquire(&copier->lock);
  full = copier->stats;
  full.n_threads = copier->n_threads;
  tarni_lock_release(&copier->lock);
  return tarni_struct_out(stats, &full, sizeof(full), operation);
}

/* ---- What a copy is ---- */

typedef struct copy_request {
  const char *operation;
  tarn_copier *copier;
  uint8_t *host;
  tarn_ptr device;
  uint64_t bytes;
  tarn_stream stream;
  tarn_fence **fence; /* NULL: not asked for */
  bool is_out;
  bool waits; /* the call returns when all is done */
} copy_request;

static tarn_status request_check(const copy_request *request) {
  const tarni_facts facts = {.requested_bytes = request->bytes};
  if (request->host == NULL || request->device == 0) {
    return tarni_fail(TARN_INVALID, request->operation, &facts, "Pass both addresses.",
                      "the %s address is null, for %llu bytes",
                      request->host == NULL ? "host" : "device",
                      (unsigned long long)request->bytes);
  }
  if (request->bytes > PTRDIFF_MAX || request->bytes > UINTPTR_MAX - (uintptr_t)request->host ||
      request->bytes > UINT64_MAX - request->device) {
    return tarni_fail(TARN_OVERFLOWED, request->operation, &facts, "Check the size.",
                      "%llu bytes at %p and at 0x%llx end beyond the address space",
                      (unsigned long long)request->bytes, (void *)request->host,
                      (unsigned long long)request->device);
  }
  if (request->is_out && !request->waits && request->fence == NULL &&
      !tarn_host_is_pinned((tarn_device *)request->copier->port, request->host, request->bytes)) {
    return tarni_fail(TARN_INVALID, request->operation, &facts,
                      "Pass an address for a fence and wait for it, or copy to pinned memory.",
                      "without a fence nobody would finish the copy to ordinary memory");
  }
  return TARN_OK;
}

static tarn_status capture_fail(const tarn_copier *copier, const tarni_capture_state *state,
                                const char *operation, const char *remedy) {
  const tarni_facts facts = {.device = copier->port->device.name};
  return tarni_fail(TARN_CAPTURE, operation, &facts, remedy,
                    "the stream is being captured (capture %llu)", (unsigned long long)state->id);
}

tarn_status tarni_copier_refuse_capture(const tarn_copier *copier, tarn_stream stream,
                                        const char *operation, const char *remedy) {
  tarni_capture_state state;
  TARN_TRY(tarni_port_capture_state(copier->port, stream, &state));
  return state.status == TARNI_CAPTURE_NONE ? TARN_OK
                                            : capture_fail(copier, &state, operation, remedy);
}

static tarn_status direct_copy(const copy_request *request) {
  const tarn_ptr host = (uintptr_t)request->host;
  TARN_TRY(tarni_port_copy(request->copier->port, request->is_out ? host : request->device,
                           request->is_out ? request->device : host, request->bytes,
                           request->stream));
  tarni_copier_count(request->copier, &request->copier->stats.direct_copies, 1);
  return TARN_OK;
}

/* In a capture: pinned memory, no fence, no waiting; else an error that says what to do. */
static tarn_status captured_copy(const copy_request *request, const tarni_capture_state *state,
                                 bool is_pinned) {
  const char *remedy = NULL;
  if (request->waits) {
    remedy = "Use the asynchronous form, which the graph can hold.";
  } else if (!is_pinned) {
    remedy = "Copy from and to memory that the graph can rely on: a block of tarn_pinned_alloc, or "
             "memory given to tarn_host_register, kept as long as the graph.";
  } else if (request->fence != NULL) {
    remedy = "Pass NULL for the fence: the copy runs whenever the graph is launched.";
  }
  return remedy == NULL ? direct_copy(request)
                        : capture_fail(request->copier, state, request->operation, remedy);
}

/* ---- The ways ---- */

/* Waits until the stream has got here. */
static tarn_status stream_reach(const copy_request *request) {
  tarni_mark *mark;
  TARN_TRY(tarni_mark_record(request->copier, request->stream, &mark));
  TARNI_RELAXED(request->copier->port);
  const tarn_status status = tarni_port_event_sync(request->copier->port, mark->event);
  tarni_mark_give(request->copier, mark);
  return status;
}

/* The end of a copy that the stream has been given all of. Where it fails the memory is the
 * caller's again, so the copy must not be under way any more. */
static tarn_status copy_conclude(const copy_request *request) {
  tarn_status status = TARN_OK;
  if (request->waits) {
    status = stream_reach(request);
  } else if (request->fence != NULL) {
    status = tarni_fence_make(request->copier, request->stream, request->fence);
  }
  if (status == TARN_OK) {
    return TARN_OK;
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  TARNI_RELAXED(request->copier->port);
  (void)tarni_port_stream_sync(request->copier->port, request->stream);
  return tarni_fail_again(&error);
}

static tarn_status copy_direct(const copy_request *request) {
  TARN_TRY(direct_copy(request));
  return copy_conclude(request);
}

static tarn_status small_in(const copy_request *request) {
  tarn_copier *copier = request->copier;
  tarni_staging *staging;
  TARN_TRY(tarni_staging_take(copier, request->bytes, &staging));
  memcpy(staging->block, request->host, request->bytes);
  tarn_status status = tarni_port_copy(copier->port, request->device, (uintptr_t)staging->block,
                                       request->bytes, request->stream);
  if (status != TARN_OK) {
    tarni_staging_give(copier, staging);
    return status;
  }
  status = copy_conclude(request);
  if (status == TARN_OK && request->waits) {
    tarni_staging_give(copier, staging);
  } else {
    tarni_staging_give_on(copier, staging, request->stream);
  }
  return status;
}

static tarn_status small_out(const copy_request *request) {
  tarn_copier *copier = request->copier;
  tarni_staging *staging;
  TARN_TRY(tarni_staging_take(copier, request->bytes, &staging));
  tarn_status status = tarni_port_copy(copier->port, (uintptr_t)staging->block, request->device,
                                       request->bytes, request->stream);
  if (status != TARN_OK) {
    tarni_staging_give(copier, staging);
    return status;
  }
  status = stream_reach(request);
  if (status != TARN_OK) {
    tarni_staging_give_on(copier, staging, request->stream);
    return status;
  }
  memcpy(request->host, staging->block, request->bytes);
  tarni_staging_give(copier, staging);
  return TARN_OK;
}

static tarn_status staged_in(const copy_request *request, tarni_job *job) {
  tarn_status status = tarni_job_submit(job);
  if (status == TARN_OK) {
    status = copy_conclude(request);
  }
  const bool is_done = status == TARN_OK && request->waits;
  tarni_job_end_as(job, is_done ? TARNI_JOB_DONE : TARNI_JOB_IN_ORDER);
  return status;
}

static tarn_status staged_out(const copy_request *request, tarni_job *job) {
  tarn_assert(request->waits || request->fence != NULL);
  tarn_status status = request->waits ? tarni_job_finish(job) : tarni_job_submit(job);
  if (status == TARN_OK && !request->waits) {
    status = tarni_fence_make(request->copier, request->stream, request->fence);
  }
  if (status == TARN_OK && !request->waits) {
    (*request->fence)->job = job;
    return TARN_OK;
  }
  tarni_job_end_as(job, status == TARN_OK ? TARNI_JOB_DONE : TARNI_JOB_IN_ORDER);
  return status;
}

static tarn_status copy_staged(const copy_request *request) {
  const tarni_job shape = {.is_out = request->is_out,
                           .host = request->host,
                           .device = request->device,
                           .bytes = request->bytes,
                           .stream = request->stream};
  tarni_job *job;
  TARN_TRY(tarni_job_begin(request->copier, &shape, &job));
  return request->is_out ? staged_out(request, job) : staged_in(request, job);
}

/* A small copy out without waiting is a job, too: somebody has to finish it. */
static tarn_status copy_ordinary(const copy_request *request) {
  tarn_copier *copier = request->copier;
  if (request->bytes > TARNI_SMALL_COPY || (request->is_out && !request->waits)) {
    TARN_TRY(copy_staged(request));
    tarni_copier_count(copier, &copier->stats.staged_copies, 1);
    return TARN_OK;
  }
  TARN_TRY(request->is_out ? small_out(request) : small_in(request));
  tarni_copier_count(copier, &copier->stats.small_copies, 1);
  return TARN_OK;
}

static tarn_status copy_do(const copy_request *request) {
  tarn_copier *copier = request->copier;
  if (request->fence != NULL) {
    *request->fence = NULL;
  }
  TARN_TRY(tarni_copier_given(copier, request->operation));
  if (request->bytes == 0) {
    return TARN_OK;
  }
  TARN_TRY(request_check(request));
  tarni_capture_state state;
  TARN_TRY(tarni_port_capture_state(copier->port, request->stream, &state));
  const bool is_pinned =
      tarn_host_is_pinned((tarn_device *)copier->port, request->host, request->bytes);
  tarn_status status;
  if (state.status != TARNI_CAPTURE_NONE) {
    status = captured_copy(request, &state, is_pinned);
  } else {
    status = is_pinned ? copy_direct(request) : copy_ordinary(request);
  }
  TARN_TRY(status);
  tarni_copier_count(copier, request->is_out ? &copier->stats.bytes_out : &copier->stats.bytes_in,
                     request->bytes);
  return TARN_OK;
}

/* ---- The public face ---- */

/* A source is never written: a request holds both directions' host address. */
static uint8_t *host_side(const void *source) {
  return (uint8_t *)(uintptr_t)source;
}

tarn_status tarn_copy_in(tarn_copier *copier, tarn_ptr destination, const void *source,
                         uint64_t bytes, tarn_stream stream) {
  const copy_request request = {.operation = "tarn_copy_in",
                                .copier = copier,
                                .host = host_side(source),
                                .device = destination,
                                .bytes = bytes,
                                .stream = stream,
                                .waits = true};
  return copy_do(&request);
}

tarn_status tarn_copy_in_async(tarn_copier *copier, tarn_ptr destination, const void *source,
                               uint64_t bytes, tarn_stream stream, tarn_fence **fence) {
  const copy_request request = {.operation = "tarn_copy_in_async",
                                .copier = copier,
                                .host = host_side(source),
                                .device = destination,
                                .bytes = bytes,
                                .stream = stream,
                                .fence = fence};
  return copy_do(&request);
}

tarn_status tarn_copy_out(tarn_copier *copier, void *destination, tarn_ptr source, uint64_t bytes,
                          tarn_stream stream) {
  const copy_request request = {.operation = "tarn_copy_out",
                                .copier = copier,
                                .host = destination,
                                .device = source,
                                .bytes = bytes,
                                .stream = stream,
                                .is_out = true,
                                .waits = true};
  return copy_do(&request);
}

tarn_status tarn_copy_out_async(tarn_copier *copier, void *destination, tarn_ptr source,
                                uint64_t bytes, tarn_stream stream, tarn_fence **fence) {
  const copy_request request = {.operation = "tarn_copy_out_async",
                                .copier = copier,
                                .host = destination,
                                .device = source,
                                .bytes = bytes,
                                .stream = stream,
                                .fence = fence,
                                .is_out = true};
  return copy_do(&request);
}
