/* SPDX-License-Identifier: MIT
 *
 * Copies in pieces. A job owns a ring of slots in pinned memory: pieces go through it in order, the
 * host copies on one side and the stream on the other. One thread drives the job and makes all its
 * driver calls, since calls of many threads only wait for each other; helpers copy (team.c).
 *
 * Pieces are as large as keeps the device busy, and small enough for all hands to have some. Those
 * that lie side by side in the ring when they are ready go to the stream as one copy.
 *
 * Invariant: the order of the counts in transfer.h. A slot is written by the next piece only when
 * both sides are known to be done with the last one. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "transfer.h"

enum {
  FEW_HANDS = 6, /* with no more the driving thread copies, too */
  SLOTS_MIN = 4,
  RING_ALIGNMENT = 256,
  RUNS_A_RING = 4, /* a copy to the device takes at most this part of the ring */
  /* Pieces of full size for each helper: to wake one takes its time. Those of a copy out are woken
   * one by one, as its pieces come in. */
  PIECES_A_HELPER_IN = 2,
  PIECES_A_HELPER_OUT = 1,
};
#define PIECES_MAX (UINT32_MAX - TARNI_SLOTS_MAX) /* so that counts of them have room */

/* ---- Beginning and end ---- */

/* False: there would be more pieces than can be counted, and nothing has changed. */
static bool job_cut(tarni_job *job, uint64_t piece_bytes) {
  const uint64_t n_pieces = (job->bytes - 1) / piece_bytes + 1;
  if (n_pieces > PIECES_MAX) {
    return false;
  }
  job->piece_bytes = piece_bytes;
  job->n_pieces = (uint32_t)n_pieces;
  return true;
}

/* Hands enough for all bytes, and pieces enough for all hands, but none smaller than is worth a
 * driver call. */
static tarn_status job_shape(tarni_job *job) {
  const uint64_t n_full = job->bytes / job->copier->piece_bytes;
  const uint64_t n_helpers =
      tarni_max(1, n_full / (job->is_out ? PIECES_A_HELPER_OUT : PIECES_A_HELPER_IN));
  const uint64_t n_hands = tarni_min(n_helpers, job->copier->max_threads) + 1;
  const uint64_t share = tarni_align_up(job->bytes / (4 * n_hands) + 1, TARNI_PIECE_MIN);
  job->n_hands = (uint32_t)n_hands;
  const uint64_t whole = tarni_align_up(job->bytes, RING_ALIGNMENT); /* where one piece is all */
  const uint64_t piece_bytes = tarni_min(whole, tarni_min(job->copier->piece_bytes, share));
  if (!job_cut(job, piece_bytes)) {
    const tarni_facts facts = {.requested_bytes = job->bytes};
    return tarni_fail(TARN_OVERFLOWED, "tarn_copier", &facts,
                      "Check the size, or make the copier with a larger piece_bytes.",
                      "%llu bytes are more than %llu pieces of %llu bytes",
                      (unsigned long long)job->bytes, (unsigned long long)PIECES_MAX,
                      (unsigned long long)piece_bytes);
  }
  const uint64_t wanted = tarni_max(SLOTS_MIN, 2 * n_hands + 2);
  job->n_slots = (uint32_t)tarni_min(tarni_min(wanted, TARNI_SLOTS_MAX), job->n_pieces);
  return TARN_OK;
}

/* A ring as large as it should be, or as the pool has room for. */
static tarn_status ring_take(tarni_job *job) {
  for (;;) {
    const tarn_status status =
        tarni_staging_take(job->copier, job->n_slots * job->piece_bytes, &job->ring);
    if (status != TARN_LIMIT && status != TARN_HOST_MEMORY) {
      return status;
    }
    if (job->n_slots > 1) {
      job->n_slots = (job->n_slots + 1) / 2;
    } else if (job->piece_bytes / 2 < TARNI_PIECE_LEAST || !job_cut(job, job->piece_bytes / 2)) {
      return status;
    }
  }
}

tarn_status tarni_job_begin(tarn_copier *copier, const tarni_job *shape, tarni_job **job) {
  tarni_job *made = malloc(sizeof(*made));
  if (made == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_copier", NULL, "Free host memory.",
                      "no host memory for a copy's record of %zu bytes", sizeof(*made));
  }
  *made = *shape;
  made->copier = copier;
  tarn_status status = job_shape(made);
  if (status == TARN_OK) {
    status = ring_take(made);
  }
  if (status != TARN_OK) {
    free(made);
    return status;
  }
  tarni_team_start(copier);
  tarni_lock_acquire(&copier->lock);
  made->next = copier->jobs;
  copier->jobs = made;
  if (!made->is_out) {
    tarni_team_wake_locked(copier, made->n_hands - 1);
  }
  tarni_lock_release(&copier->lock);
  *job = made;
  return TARN_OK;
}

/* Helpers leave it, and nobody finds it any more. */
static void job_leave(tarni_job *job) {
  tarn_copier *copier = job->copier;
  tarni_lock_acquire(&copier->lock);
  job->is_stopped = true;
  while (job->n_active != 0) {
    job->is_awaited = true;
    tarni_signal_wait(&job->done, &copier->lock);
  }
  tarni_job **link = &copier->jobs;
  while (*link != job) {
    link = &(*link)->next;
  }
  *link = job->next;
  tarni_lock_release(&copier->lock);
}

/* Waits for what the stream has of it. False: that cannot be proven. */
static bool marks_wait(const tarni_job *job) {
  const uint32_t last = (job->first_mark + job->n_marks - 1) % TARNI_SLOTS_MAX;
  TARNI_RELAXED(job->copier->port);
  return job->n_marks == 0 ||
         tarni_port_event_sync(job->copier->port, job->marks[last]->event) == TARN_OK;
}

void tarni_job_end_as(tarni_job *job, tarni_job_end how) {
  tarn_copier *copier = job->copier;
  job_leave(job);
  if (how == TARNI_JOB_IN_ORDER) {
    tarni_staging_give_on(copier, job->ring, job->stream);
  } else if (how == TARNI_JOB_DONE || marks_wait(job)) {
    tarni_staging_give(copier, job->ring);
  } else { /* the last mark goes with it */
    job->n_marks--;
    const uint32_t last = (job->first_mark + job->n_marks) % TARNI_SLOTS_MAX;
    tarni_staging_bury(copier, job->ring, job->stream, job->marks[last]);
  }
  for (; job->n_marks != 0; job->n_marks--) {
    tarni_mark_give(copier, job->marks[job->first_mark]);
    job->first_mark = (job->first_mark + 1) % TARNI_SLOTS_MAX;
  }
  free(job);
}

/* ---- The host's side ---- */

/* Whether there is a piece to claim. */
static bool has_more_locked(const tarni_job *job) {
  const uint32_t limit = job->is_out
                             ? job->complete
                             : (uint32_t)tarni_min(job->n_pieces, job->complete + job->n_slots);
  return !job->is_stopped && job->claimed < limit;
}

bool tarni_job_claim_locked(tarni_job *job, uint32_t *piece) {
  if (!has_more_locked(job)) {
    return false;
  }
  *piece = job->claimed++;
  return true;
}

void tarni_job_note_locked(tarni_job *job, uint32_t piece) {
  job->is_copied[piece % job->n_slots] = true;
  while (job->copied < job->claimed && job->is_copied[job->copied % job->n_slots]) {
    job->is_copied[job->copied % job->n_slots] = false;
    job->copied++;
  }
  if (job->is_awaited) {
    job->is_awaited = false;
    tarni_signal_wake(&job->done, 1);
  }
}

static uint64_t piece_start(const tarni_job *job, uint32_t piece) {
  return tarni_min(piece * job->piece_bytes, job->bytes);
}

static uint8_t *ring_slot(const tarni_job *job, uint32_t piece) {
  return job->ring->block + (piece % job->n_slots) * job->piece_bytes;
}

void tarni_job_copy(const tarni_job *job, uint32_t piece) {
  const uint64_t start = piece_start(job, piece);
  const uint64_t bytes = piece_start(job, piece + 1) - start;
  if (job->is_out) {
    memcpy(job->host + start, ring_slot(job, piece), bytes);
  } else {
    memcpy(ring_slot(job, piece), job->host + start, bytes);
  }
}

/* ---- The stream's side ---- */

static tarn_status mark_add(tarni_job *job, uint32_t end) {
  tarn_assert(job->n_marks < TARNI_SLOTS_MAX);
  const uint32_t place = (job->first_mark + job->n_marks) % TARNI_SLOTS_MAX;
  TARN_TRY(tarni_mark_record(job->copier, job->stream, &job->marks[place]));
  job->ends[place] = end;
  job->n_marks++;
  return TARN_OK;
}

/* Gives pieces [submitted, end) to the stream. They lie side by side in the ring. Where a copy has
 * been given and its mark has not, `submitted` says so: nothing is given twice. */
static tarn_status pieces_submit(tarni_job *job, uint32_t end) {
  const uint32_t first = job->submitted;
  const uint64_t start = piece_start(job, first);
  const uint64_t bytes = piece_start(job, end) - start;
  const tarn_ptr slot = (uintptr_t)ring_slot(job, first), device = job->device + start;
  TARN_TRY(tarni_port_copy(job->copier->port, job->is_out ? slot : device,
                           job->is_out ? device : slot, bytes, job->stream));
  job->submitted = end;
  /* A copy in needs to know only of slots that are used again. */
  const bool is_needed = job->is_out || first + job->n_slots < job->n_pieces;
  return is_needed ? mark_add(job, end) : TARN_OK;
}

/* Where the next copy ends, or `submitted` when there is none. */
static uint32_t pieces_ready_locked(const tarni_job *job) {
  const uint32_t first = job->submitted;
  if (job->is_out) {
    const bool is_ready = first < job->n_pieces && first < job->copied + job->n_slots;
    return first + (is_ready ? 1 : 0);
  }
  const uint32_t to_wrap = job->n_slots - first % job->n_slots;
  const uint32_t most = (uint32_t)tarni_max(1, job->n_slots / RUNS_A_RING);
  return first + (uint32_t)tarni_min(job->copied - first, tarni_min(to_wrap, most));
}

/* The oldest mark is complete: helpers get what it was for. */
static void mark_reach_locked(tarni_job *job) {
  tarn_assert(job->n_marks != 0);
  tarn_copier *copier = job->copier;
  const uint32_t n_more = job->ends[job->first_mark] - job->complete;
  tarni_mark *mark = job->marks[job->first_mark];
  job->complete = job->ends[job->first_mark];
  job->first_mark = (job->first_mark + 1) % TARNI_SLOTS_MAX;
  job->n_marks--;
  mark->next = copier->marks;
  copier->marks = mark;
  tarni_team_wake_locked(copier, tarni_min(n_more, job->n_hands - 1 - job->n_active));
}

/* ---- Driving ---- */

typedef enum job_step {
  JOB_SUBMIT,
  JOB_POLL_MARK,
  JOB_COPY,
  JOB_AWAIT_MARK,
  JOB_AWAIT_HELPERS
} job_step;

static bool driver_copies_locked(const tarni_job *job) {
  if (job->n_hands <= FEW_HANDS || job->copier->n_threads < FEW_HANDS) {
    return true;
  }
  return job->is_out ? job->n_marks == 0 : job->copied == 0 || job->copied == job->claimed;
}

/* What the driving thread does next. Before it copies it looks whether helpers could have more. For
 * a copy out its marks come before helpers, who live on them; for a copy in it waits for a mark
 * while the stream has more than that to do, or when nobody copies. */
static job_step next_step_locked(tarni_job *job, uint32_t *piece) {
  if (pieces_ready_locked(job) != job->submitted) {
    *piece = pieces_ready_locked(job);
    return JOB_SUBMIT;
  }
  if (driver_copies_locked(job) && has_more_locked(job)) {
    if (job->n_marks != 0 && !job->is_polled) {
      return JOB_POLL_MARK;
    }
    (void)tarni_job_claim_locked(job, piece);
    return JOB_COPY;
  }
  const bool waits =
      job->n_marks != 0 && (job->is_out || job->n_marks > 1 || job->claimed == job->copied);
  return waits ? JOB_AWAIT_MARK : JOB_AWAIT_HELPERS;
}

/* What a step does without the lock. */
static tarn_status step_act(tarni_job *job, job_step step, uint32_t piece, bool may_wait) {
  if (step == JOB_SUBMIT) {
    return pieces_submit(job, piece);
  }
  if (step == JOB_COPY) {
    tarni_job_copy(job, piece);
    return TARN_OK;
  }
  const tarni_event event = job->marks[job->first_mark]->event;
  TARNI_RELAXED(job->copier->port);
  return step == JOB_AWAIT_MARK && may_wait ? tarni_port_event_sync(job->copier->port, event)
                                            : tarni_port_event_query(job->copier->port, event);
}

static tarn_status take_step_locked(tarni_job *job, job_step step, uint32_t piece, bool may_wait) {
  tarn_copier *copier = job->copier;
  if (step == JOB_AWAIT_HELPERS) {
    tarn_assert(job->claimed != job->copied && "else nobody would ever go on");
    job->is_awaited = true;
    tarni_signal_wait(&job->done, &copier->lock);
    return TARN_OK;
  }
  tarni_lock_release(&copier->lock);
  tarn_status status = step_act(job, step, piece, may_wait);
  tarni_lock_acquire(&copier->lock);
  const bool is_mark = step == JOB_POLL_MARK || step == JOB_AWAIT_MARK;
  if (step == JOB_COPY) {
    tarni_job_note_locked(job, piece);
    job->is_polled = false;
  } else if (is_mark && status == TARN_OK) {
    mark_reach_locked(job);
  }
  if (step == JOB_POLL_MARK && status == TARN_NOT_READY) {
    job->is_polled = true;
    status = TARN_OK;
  }
  return status;
}

static tarn_status job_drive(tarni_job *job, const uint32_t *progress, bool may_wait) {
  tarn_copier *copier = job->copier;
  tarn_status status = TARN_OK;
  tarni_lock_acquire(&copier->lock);
  while (*progress != job->n_pieces && status == TARN_OK) {
    uint32_t piece = 0;
    const job_step step = next_step_locked(job, &piece);
    status = take_step_locked(job, step, piece, may_wait);
  }
  tarni_lock_release(&copier->lock);
  return status;
}

tarn_status tarni_job_submit(tarni_job *job) {
  return job_drive(job, &job->submitted, true);
}

tarn_status tarni_job_finish(tarni_job *job) {
  tarn_assert(job->is_out);
  return job_drive(job, &job->copied, true);
}

tarn_status tarni_job_poll(tarni_job *job) {
  tarn_assert(job->is_out);
  return job_drive(job, &job->copied, false);
}
