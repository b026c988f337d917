/* SPDX-License-Identifier: MIT
 *
 * The model of transfers, and what its files share, grouped by the file that owns it. Glossary:
 *   mark      an event of the copier's, pooled: recorded on a stream it proves what came before
 *   staging   a pinned block of the pool on its way: held by a copy or a batch, or in quarantine
 *   job       one copy in pieces: the ring of its slots, and how far each side has got
 *   slot      room for one piece in the ring
 *
 * Locks: copier->lock (rank HEAP) guards lists, counters and jobs; no driver call and no copying is
 * done under it. */
#ifndef TARNI_TRANSFER_H
#define TARNI_TRANSFER_H

#include <pthread.h>

#include "base/lock.h"
#include "port/port.h"
#include "tarn/batch.h"
#include "tarn/buffer.h"
#include "tarn/copy.h"

/* ---- buffer.c ---- */

struct tarn_buffer {
  uint8_t *bytes;
  size_t length, capacity, limit;
  bool is_prepared; /* to be filled; fresh is where, if not NULL */
  uint8_t *fresh;
  size_t fresh_capacity;
};

struct tarn_buffer_list {
  tarn_buffer **buffers;
  size_t count, capacity;
};

/* Sees to it that `length` bytes can be filled in; nothing else can be seen to have changed. Then
 * either fill or forget. pre: it is not prepared already. */
tarn_status tarni_buffer_prepare(tarn_buffer *buffer, size_t length, const char *operation);
void tarni_buffer_fill(tarn_buffer *buffer, const void *bytes, size_t length);
void tarni_buffer_forget(tarn_buffer *buffer);
/* Makes the list at least `count` long, or leaves it as it is. */
tarn_status tarni_buffer_list_add(tarn_buffer_list *list, size_t count);

/* ---- The copier ---- */

enum {
  TARNI_SLOTS_MAX = 64,
  TARNI_THREADS_MAX = 63,
  TARNI_SMALL_COPY = 128 << 10, /* up to here a copy is staged in one piece */
  TARNI_PIECE_MIN = 128 << 10,
  TARNI_PIECE_LEAST = 4 << 10, /* where there is hardly any pinned memory */
  TARNI_PIECE_DEFAULT = 2 << 20,
};

typedef struct tarni_mark {
  tarni_event event;
  uint32_t n_buried;       /* lock: blocks in quarantine that it is the proof for */
  struct tarni_mark *next; /* lock: in the pool */
} tarni_mark;

typedef struct tarni_staging {
  uint8_t *block;
  uint64_t bytes;
  tarn_stream stream;         /* in quarantine: which may still use it */
  const void *thread;         /* tarni_thread_of it */
  tarni_mark *mark;           /* what proves that it does not, also when it is gone; or NULL */
  struct tarni_staging *next; /* lock: in the pool of unused records, or in quarantine */
} tarni_staging;

/* How far a job has got is five counts of pieces, in order:
 *   in    complete <= submitted <= copied <= claimed <= complete + n_slots
 *   out   copied <= claimed <= complete <= submitted <= copied + n_slots */
typedef struct tarni_job {
  /* immutable while it runs: */
  tarn_copier *copier;
  bool is_out; /* from the device */
  uint8_t *host;
  tarn_ptr device;
  uint64_t bytes, piece_bytes;
  uint32_t n_pieces, n_slots;
  uint32_t n_hands; /* at most so many threads are at it, its driver among them */
  tarni_staging *ring;
  tarn_stream stream;
  /* the thread that drives it: */
  uint32_t submitted; /* given to the stream */
  tarni_mark *marks[TARNI_SLOTS_MAX];
  uint32_t ends[TARNI_SLOTS_MAX]; /* a mark proves the pieces before its end */
  uint32_t first_mark, n_marks;
  bool is_polled; /* marks were asked for since the driver last copied: the oldest was pending */
  /* lock: */
  uint32_t claimed;  /* somebody copies them, or has */
  uint32_t copied;   /* by the host */
  uint32_t complete; /* the stream is known to be done with them */
  uint32_t n_active; /* helpers at work */
  bool is_copied[TARNI_SLOTS_MAX];
  bool is_stopped;
  bool is_awaited; /* its driver waits for `done` */
  tarni_signal done;
  struct tarni_job *next;
} tarni_job;

struct tarn_fence {
  tarn_copier *copier;
  tarni_mark *mark;
  tarni_job *job; /* what the host has still to do: the rest of a copy out */
  bool is_complete;
};

struct tarn_copier {
  /* immutable after create: */
  tarn_pinned *pool;
  tarni_port *port;
  uint64_t piece_bytes;
  uint32_t max_threads;
  uint32_t fork; /* tarni_fork_watch in the process that made it */
  /* lock: */
  tarni_lock lock;
  tarni_mark *marks;
  tarni_staging *stagings;
  tarni_staging *quarantine;
  tarni_job *jobs;
  tarni_signal work; /* a job has pieces to claim, or the end has come */
  bool is_started, is_stopping;
  uint32_t n_threads;
  uint32_t n_asleep; /* of them */
  pthread_t threads[TARNI_THREADS_MAX];
  tarn_copier_stats stats;
};

/* ---- copier.c: the copier, and copies of every kind ---- */
tarn_status tarni_copier_given(const tarn_copier *copier, const char *operation);
/* TARN_CAPTURE, with this remedy, when the stream is being captured. */
tarn_status tarni_copier_refuse_capture(const tarn_copier *copier, tarn_stream stream,
                                        const char *operation, const char *remedy);
void tarni_copier_count(tarn_copier *copier, uint64_t *counter, uint64_t n);

/* ---- staging.c: pinned memory on its way ---- */
tarn_status tarni_staging_take(tarn_copier *copier, uint64_t bytes, tarni_staging **staging);
/* Gives it back: the device is done with it; or it will be, when the stream has got so far. What
 * cannot be given back is kept in quarantine and counted. NULL is ignored. */
void tarni_staging_give(tarn_copier *copier, tarni_staging *staging);
void tarni_staging_give_on(tarn_copier *copier, tarni_staging *staging, tarn_stream stream);
/* Waits for all that the stream was given. TARN_CAPTURE where that would end its capture. */
tarn_status tarni_staging_await(tarn_copier *copier, tarn_stream stream);
/* Keeps a list of them from everybody: they may be in use by the stream, until the mark is reached.
 * The mark is the quarantine's from then on. */
void tarni_staging_bury(tarn_copier *copier, tarni_staging *first, tarn_stream stream,
                        tarni_mark *mark);
/* Tries again to give back what is in quarantine, of one stream or (all) of every stream, and of
 * others as far as nobody has to be waited for. The status is that of what could not. */
tarn_status tarni_staging_exhume(tarn_copier *copier, tarn_stream stream, bool all);
void tarni_stagings_close(tarn_copier *copier);

/* ---- fence.c: marks and fences ---- */
tarn_status tarni_mark_take(tarn_copier *copier, tarni_mark **mark);
void tarni_mark_give(tarn_copier *copier, tarni_mark *mark); /* NULL is ignored */
tarn_status tarni_mark_record(tarn_copier *copier, tarn_stream stream, tarni_mark **mark);
tarn_status tarni_marks_close(tarn_copier *copier);
tarn_status tarni_fence_make(tarn_copier *copier, tarn_stream stream, tarn_fence **fence);
/* Makes the stream wait for the fence, on the device. TARN_CAPTURE where that would end its
 * capture.
 */
tarn_status tarni_fence_order(tarn_fence *fence, const tarni_port *port, tarn_stream stream,
                              const char *operation);

/* ---- job.c: copies in pieces ---- */
/* Makes a job and its ring. Nothing has been copied yet. */
tarn_status tarni_job_begin(tarn_copier *copier, const tarni_job *shape, tarni_job **job);
/* Goes on until all pieces are with the stream, or, for copies out, until all are copied. */
tarn_status tarni_job_submit(tarni_job *job);
tarn_status tarni_job_finish(tarni_job *job);
/* Lets as much happen as needs no waiting: TARN_NOT_READY while there is more. */
tarn_status tarni_job_poll(tarni_job *job);
/* Ends it, wherever it stands. The ring goes back at once (the device is done), in the order of its
 * stream, or, when the stream may be gone, after waiting for its marks. */
typedef enum tarni_job_end { TARNI_JOB_DONE, TARNI_JOB_IN_ORDER, TARNI_JOB_LATE } tarni_job_end;
void tarni_job_end_as(tarni_job *job, tarni_job_end how);

/* For the helpers and the driver of a job. pre: the lock is held. */
bool tarni_job_claim_locked(tarni_job *job, uint32_t *piece);
void tarni_job_note_locked(tarni_job *job, uint32_t piece);
void tarni_job_copy(const tarni_job *job, uint32_t piece);

/* ---- team.c: helper threads ---- */
/* Starts them, if that has not been tried yet. Fewer than asked for, or none, is no error. */
void tarni_team_start(tarn_copier *copier);
/* Jobs have pieces to claim: wakes so many helpers, if they sleep. */
void tarni_team_wake_locked(tarn_copier *copier, uint64_t n);
void tarni_team_stop(tarn_copier *copier);

#endif
