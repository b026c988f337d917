/* SPDX-License-Identifier: MIT
 *
 * Marks and fences. Owns the copier's pool of events. A mark is an event that is recorded on a
 * stream; it may go back to the pool while its record is pending, since a new record replaces the
 * old one and whoever waits for that has been told before. A fence is a caller's mark, and for a
 * copy to ordinary memory also the job that is still to be finished.
 *
 * What cannot be proven is an error each time that it is asked for, never "not ready" for ever.
 *
 * Locks: copier->lock for the lists. A fence belongs to one thread at a time. */
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "transfer.h"

/* ---- Marks ---- */

static tarn_status mark_make(tarn_copier *copier, tarni_mark **mark) {
  tarni_mark *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_fence", NULL, "Free host memory.",
                      "no host memory for a record of %zu bytes", sizeof(*made));
  }
  const tarn_status status = tarni_port_event_create(copier->port, &made->event);
  if (status != TARN_OK) {
    free(made);
    return status;
  }
  *mark = made;
  return TARN_OK;
}

tarn_status tarni_mark_take(tarn_copier *copier, tarni_mark **mark) {
  tarni_lock_acquire(&copier->lock);
  *mark = copier->marks;
  copier->marks = *mark != NULL ? (*mark)->next : NULL;
  tarni_lock_release(&copier->lock);
  return *mark != NULL ? TARN_OK : mark_make(copier, mark);
}

void tarni_mark_give(tarn_copier *copier, tarni_mark *mark) {
  if (mark == NULL) {
    return;
  }
  tarni_lock_acquire(&copier->lock);
  mark->next = copier->marks;
  copier->marks = mark;
  tarni_lock_release(&copier->lock);
}

tarn_status tarni_mark_record(tarn_copier *copier, tarn_stream stream, tarni_mark **mark) {
  TARN_TRY(tarni_mark_take(copier, mark));
  const tarn_status status = tarni_port_event_record(copier->port, (*mark)->event, stream);
  if (status != TARN_OK) {
    tarni_mark_give(copier, *mark);
    *mark = NULL;
  }
  return status;
}

tarn_status tarni_marks_close(tarn_copier *copier) {
  while (copier->marks != NULL) {
    tarni_mark *mark = copier->marks;
    const tarn_status status = tarni_port_event_destroy(copier->port, mark->event);
    if (status != TARN_OK && status != TARN_DEVICE_LOST) {
      return status;
    }
    copier->marks = mark->next;
    free(mark);
  }
  return TARN_OK;
}

/* ---- Fences ---- */

tarn_status tarni_fence_make(tarn_copier *copier, tarn_stream stream, tarn_fence **fence) {
  tarn_fence *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_fence_record", NULL, "Free host memory.",
                      "no host memory for a fence of %zu bytes", sizeof(*made));
  }
  const tarn_status status = tarni_mark_record(copier, stream, &made->mark);
  if (status != TARN_OK) {
    free(made);
    return status;
  }
  made->copier = copier;
  tarni_copier_count(copier, &copier->stats.fences, 1);
  *fence = made;
  return TARN_OK;
}

tarn_status tarn_fence_record(tarn_copier *copier, tarn_stream stream, tarn_fence **fence) {
  const char *operation = "tarn_fence_record";
  if (fence == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass an address for it.",
                      "the fence's address is NULL");
  }
  *fence = NULL;
  TARN_TRY(tarni_copier_given(copier, operation));
  TARN_TRY(tarni_copier_refuse_capture(copier, stream, operation,
                                       "Record fences of the streams that launch the graph."));
  return tarni_fence_make(copier, stream, fence);
}

static tarn_status fence_given(const tarn_fence *fence, const char *operation) {
  if (fence == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass what a copy or a batch gave.",
                      "the fence is NULL");
  }
  return tarni_copier_given(fence->copier, operation);
}

/* The host's part of a copy to ordinary memory is done: its memory can go. */
static void fence_complete(tarn_fence *fence) {
  if (fence->job != NULL) {
    tarni_job_end_as(fence->job, TARNI_JOB_DONE);
    fence->job = NULL;
  }
  fence->is_complete = true;
}

tarn_status tarn_fence_query(tarn_fence *fence) {
  TARN_TRY(fence_given(fence, "tarn_fence_query"));
  if (fence->is_complete) {
    return TARN_OK;
  }
  TARNI_RELAXED(fence->copier->port);
  TARN_TRY(fence->job != NULL ? tarni_job_poll(fence->job)
                              : tarni_port_event_query(fence->copier->port, fence->mark->event));
  fence_complete(fence);
  return TARN_OK;
}

tarn_status tarn_fence_wait(tarn_fence *fence) {
  TARN_TRY(fence_given(fence, "tarn_fence_wait"));
  if (fence->is_complete) {
    return TARN_OK;
  }
  TARNI_RELAXED(fence->copier->port);
  TARN_TRY(fence->job != NULL ? tarni_job_finish(fence->job)
                              : tarni_port_event_sync(fence->copier->port, fence->mark->event));
  fence_complete(fence);
  return TARN_OK;
}

void tarn_fence_destroy(tarn_fence *fence) {
  if (fence == NULL || fence_given(fence, "tarn_fence_destroy") != TARN_OK) {
    return;
  }
  tarn_copier *copier = fence->copier;
  if (fence->job != NULL) {
    tarni_job_end_as(fence->job, TARNI_JOB_LATE);
  }
  tarni_mark_give(copier, fence->mark);
  tarni_lock_acquire(&copier->lock);
  tarn_assert(copier->stats.fences > 0);
  copier->stats.fences--;
  tarni_lock_release(&copier->lock);
  free(fence);
}

tarn_status tarni_fence_order(tarn_fence *fence, const tarni_port *port, tarn_stream stream,
                              const char *operation) {
  TARN_TRY(fence_given(fence, operation));
  if (fence->copier->port != port) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Use a fence of the heap's own device.",
                      "the fence is of %s, the heap is of %s", fence->copier->port->device.name,
                      port->device.name);
  }
  if (fence->is_complete) {
    return TARN_OK;
  }
  TARN_TRY(tarni_copier_refuse_capture(fence->copier, stream, operation,
                                       "Wait for the fence first (tarn_fence_wait), or use a "
                                       "stream that is not being captured."));
  return tarni_port_event_wait(fence->copier->port, stream, fence->mark->event);
}
