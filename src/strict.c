/* SPDX-License-Identifier: MIT
 *
 * Captures that make calls illegal: while one goes on in the driver's global mode no thread, and in
 * its thread-local mode not the thread that began it, may ask about events or wait for them. Such a
 * call would break the capture, so the heap does without. Knows announced captures, and those that
 * a heap has found, of which nobody tells when they are over: the driver is asked.
 *
 * Lock: strict_lock; the count is read without it. */
#include <pthread.h>
#include <stdatomic.h>

#include "arena.h"

static tarni_lock strict_lock = TARNI_LOCK_INIT(TARNI_RANK_STRICT);
static _Atomic uint32_t n_strict; /* 0: nobody has to look */
static tarn_capture *strict_captures;

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/* A parent's captures do not go on in its child, and it has not the threads that looked at them. */
static void forget_parents_captures(void) {
  strict_captures = NULL;
  atomic_store(&n_strict, 0);
  tarni_lock_init(&strict_lock, TARNI_RANK_STRICT);
}

static void watch_forks(void) {
  (void)pthread_atfork(NULL, NULL, forget_parents_captures);
}

void tarni_strict_add(tarn_capture *capture) {
  if (capture->config.mode == TARN_CAPTURE_RELAXED) {
    return;
  }
  (void)pthread_once(&watch_once, watch_forks);
  tarni_lock_acquire(&strict_lock);
  capture->next_strict = strict_captures;
  strict_captures = capture;
  atomic_fetch_add(&n_strict, 1);
  tarni_lock_release(&strict_lock);
}

void tarni_strict_remove(tarn_capture *capture) {
  if (capture->config.mode == TARN_CAPTURE_RELAXED) {
    return;
  }
  tarni_lock_acquire(&strict_lock);
  tarn_capture **link = &strict_captures;
  while (*link != NULL && *link != capture) {
    link = &(*link)->next_strict;
  }
  if (*link != NULL) { /* else it is the parent's, and this is its child */
    *link = capture->next_strict;
    atomic_fetch_sub(&n_strict, 1);
  }
  tarni_lock_release(&strict_lock);
}

tarn_status tarni_capture_allows(const char *operation) {
  return !tarni_capture_forbids()
             ? TARN_OK
             : tarni_fail(TARN_CAPTURE, operation, NULL, "Try again after the capture.",
                          "a capture that goes on forbids what this call needs");
}

static bool goes_on(const tarn_capture *capture) {
  tarni_capture_state state = {0};
  if (!capture->is_found) {
    return true;
  }
  if (tarni_capture_is_anothers(capture)) { /* nobody else can ask */
    return !tarni_thread_is_gone(capture->thread);
  }
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  const tarn_status status = tarni_port_capture_state(capture->heap->port, capture->stream, &state);
  if (status != TARN_OK && error.status != TARN_OK) {
    (void)tarni_fail_again(&error); /* it was a mere question */
  }
  return status == TARN_OK ? state.status != TARNI_CAPTURE_NONE && state.id == capture->id
                           : status != TARN_INVALID; /* the stream is gone */
}

bool tarni_capture_forbids(void) {
  if (TARNI_LIKELY(atomic_load_explicit(&n_strict, memory_order_relaxed) == 0)) {
    return false;
  }
  const void *thread = tarni_thread();
  bool is_forbidden = false;
  tarni_lock_acquire(&strict_lock);
  for (const tarn_capture *at = strict_captures; at != NULL && !is_forbidden;
       at = at->next_strict) {
    is_forbidden = (at->config.mode == TARN_CAPTURE_GLOBAL || at->thread == thread) && goes_on(at);
  }
  tarni_lock_release(&strict_lock);
  return is_forbidden;
}
