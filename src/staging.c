/* SPDX-License-Identifier: MIT
 *
 * Pinned memory on its way between a caller and the device. Owns the records of the pinned blocks
 * that a copier's copies and batches hold, and the quarantine. Invariant: a block goes back to its
 * pool exactly once, and only where it is proven, by the host or by the order of a stream, that the
 * device is done with it. One for which that proof fails stays in quarantine, counted, until a
 * later attempt succeeds; the pool takes it for a live block. The proof is a mark, which outlives
 * its stream, or the stream itself, which is waited for before it goes.
 *
 * Locks: copier->lock for the lists. The pool and the driver are called without it. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "internal.h"
#include "transfer.h"

tarn_status tarni_staging_take(tarn_copier *copier, uint64_t bytes, tarni_staging **staging) {
  *staging = NULL;
  tarni_lock_acquire(&copier->lock);
  tarni_staging *taken = copier->stagings;
  copier->stagings = taken != NULL ? taken->next : NULL;
  tarni_lock_release(&copier->lock);
  if (taken == NULL) {
    taken = calloc(1, sizeof(*taken));
    if (taken == NULL) {
      return tarni_fail(TARN_HOST_MEMORY, "tarn_copier", NULL, "Free host memory.",
                        "no host memory for a record of %zu bytes", sizeof(*taken));
    }
  }
  *taken = (tarni_staging){.bytes = bytes};
  void *block;
  const tarn_status status = tarn_pinned_alloc(copier->pool, bytes, &block);
  if (status != TARN_OK) {
    tarni_staging_give(copier, taken);
    return status;
  }
  taken->block = block;
  *staging = taken;
  return TARN_OK;
}

static void staging_forget(tarn_copier *copier, tarni_staging *staging) {
  tarni_lock_acquire(&copier->lock);
  staging->block = NULL;
  staging->next = copier->stagings;
  copier->stagings = staging;
  tarni_lock_release(&copier->lock);
}

static void quarantine_add_locked(tarn_copier *copier, tarni_staging *staging) {
  staging->next = copier->quarantine;
  copier->quarantine = staging;
  copier->stats.quarantined_bytes += staging->bytes;
}

/* Whether it is in quarantine for this stream. */
static bool is_for(const tarni_staging *staging, tarn_stream stream) {
  return tarni_stream_here(staging->stream, staging->thread) == stream;
}

/* Until the stream can be waited for: before it goes, it is. */
static void bury_for(tarn_copier *copier, tarni_staging *staging, tarn_stream stream) {
  tarni_lock_acquire(&copier->lock);
  staging->stream = stream;
  staging->thread = tarni_thread_of(stream);
  quarantine_add_locked(copier, staging);
  tarni_lock_release(&copier->lock);
}

/* All at once, so that the mark does not go before the last of them has come. */
void tarni_staging_bury(tarn_copier *copier, tarni_staging *first, tarn_stream stream,
                        tarni_mark *mark) {
  tarni_lock_acquire(&copier->lock);
  for (tarni_staging *next, *staging = first; staging != NULL; staging = next) {
    next = staging->next;
    staging->stream = stream;
    staging->thread = tarni_thread_of(stream);
    staging->mark = mark;
    mark->n_buried++;
    quarantine_add_locked(copier, staging);
  }
  tarni_lock_release(&copier->lock);
}

/* What went wrong first is what the caller has to hear of. */
static void error_restore(const tarn_error *error) {
  if (error->status != TARN_OK) {
    (void)tarni_fail_again(error);
  }
}

void tarni_staging_give(tarn_copier *copier, tarni_staging *staging) {
  if (staging == NULL) {
    return;
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  if (tarn_pinned_free(copier->pool, staging->block) == TARN_OK) {
    staging_forget(copier, staging);
  } else {
    bury_for(copier, staging, NULL);
    error_restore(&error);
  }
}

tarn_status tarni_staging_await(tarn_copier *copier, tarn_stream stream) {
  TARN_TRY(tarni_copier_refuse_capture(copier, stream, "tarn_copier", "End the capture first."));
  TARNI_RELAXED(copier->port);
  return tarni_port_stream_sync(copier->port, stream);
}

/* By the order of the stream, else by waiting for it. */
static tarn_status give_in_order(tarn_copier *copier, const tarni_staging *staging,
                                 tarn_stream stream) {
  if (tarn_pinned_free_on(copier->pool, staging->block, stream) == TARN_OK) {
    return TARN_OK;
  }
  TARN_TRY(tarni_staging_await(copier, stream));
  return tarn_pinned_free(copier->pool, staging->block);
}

void tarni_staging_give_on(tarn_copier *copier, tarni_staging *staging, tarn_stream stream) {
  if (staging == NULL) {
    return;
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  if (give_in_order(copier, staging, stream) == TARN_OK) {
    staging_forget(copier, staging);
  } else {
    bury_for(copier, staging, stream);
  }
  error_restore(&error);
}

static tarni_staging *quarantine_take(tarn_copier *copier, tarn_stream stream, bool all) {
  tarni_lock_acquire(&copier->lock);
  tarni_staging **link = &copier->quarantine;
  while (*link != NULL && !all && (*link)->mark == NULL && !is_for(*link, stream)) {
    link = &(*link)->next;
  }
  tarni_staging *found = *link;
  if (found != NULL) {
    *link = found->next;
    copier->stats.quarantined_bytes -= found->bytes;
  }
  tarni_lock_release(&copier->lock);
  return found;
}

/* One that waits for a mark. */
static tarn_status give_marked(tarn_copier *copier, tarni_staging *staging, bool may_wait) {
  tarni_mark *mark = staging->mark;
  TARNI_RELAXED(copier->port);
  TARN_TRY(may_wait ? tarni_port_event_sync(copier->port, mark->event)
                    : tarni_port_event_query(copier->port, mark->event));
  TARN_TRY(tarn_pinned_free(copier->pool, staging->block));
  tarni_lock_acquire(&copier->lock);
  staging->mark = NULL;
  const bool is_last = --mark->n_buried == 0;
  tarni_lock_release(&copier->lock);
  if (is_last) {
    tarni_mark_give(copier, mark);
  }
  return TARN_OK;
}

tarn_status tarni_staging_exhume(tarn_copier *copier, tarn_stream stream, bool all) {
  tarn_status result = TARN_OK;
  tarni_staging *kept = NULL;
  for (tarni_staging *staging; (staging = quarantine_take(copier, stream, all)) != NULL;) {
    const bool is_its = all || is_for(staging, stream);
    const tarn_status status =
        staging->mark != NULL
            ? give_marked(copier, staging, is_its)
            : give_in_order(copier, staging, tarni_stream_here(staging->stream, staging->thread));
    if (status == TARN_OK) {
      staging_forget(copier, staging);
    } else {
      result = is_its ? status : result;
      staging->next = kept;
      kept = staging;
    }
  }
  tarni_lock_acquire(&copier->lock);
  while (kept != NULL) {
    tarni_staging *staging = kept;
    kept = staging->next;
    quarantine_add_locked(copier, staging);
  }
  tarni_lock_release(&copier->lock);
  return result;
}

static void records_free(tarni_staging *first) {
  while (first != NULL) {
    tarni_staging *next = first->next;
    if (first->mark != NULL && --first->mark->n_buried == 0) {
      free(first->mark); /* its event is the broken device's */
    }
    free(first);
    first = next;
  }
}

void tarni_stagings_close(tarn_copier *copier) {
  records_free(copier->stagings);
  records_free(copier->quarantine); /* their blocks stay the pool's to bury */
}
