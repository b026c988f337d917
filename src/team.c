/* SPDX-License-Identifier: MIT
 *
 * The copier's helper threads: each takes a piece of a job that has one, copies it, and looks
 * again. They know neither the driver nor the stream; the thread that drives a job deals with
 * those. They sleep while there is nothing to copy, and end when the copier does.
 *
 * Locks: copier->lock, given up while a piece is copied. */
#include <signal.h>
#include <stddef.h>

#include "base/bits.h"
#include "base/check.h"
#include "transfer.h"

/* The next job that has a piece to copy; it goes to the end of the list, so that jobs take turns.
 */
static tarni_job *claim_any_locked(tarn_copier *copier, uint32_t *piece) {
  for (tarni_job **link = &copier->jobs; *link != NULL; link = &(*link)->next) {
    tarni_job *job = *link;
    if (job->n_active + 1 >= job->n_hands || !tarni_job_claim_locked(job, piece)) {
      continue;
    }
    if (job->next != NULL) {
      *link = job->next;
      while (*link != NULL) {
        link = &(*link)->next;
      }
      *link = job;
      job->next = NULL;
    }
    return job;
  }
  return NULL;
}

void tarni_team_wake_locked(tarn_copier *copier, uint64_t n) {
  if (n != 0 && copier->n_asleep != 0) {
    tarni_signal_wake(&copier->work, (uint32_t)tarni_min(n, copier->n_asleep));
  }
}

static void *help(void *argument) {
  tarn_copier *copier = argument;
  tarni_lock_acquire(&copier->lock);
  while (!copier->is_stopping) {
    uint32_t piece;
    tarni_job *job = claim_any_locked(copier, &piece);
    if (job == NULL) {
      copier->n_asleep++;
      tarni_signal_wait(&copier->work, &copier->lock);
      copier->n_asleep--;
      continue;
    }
    job->n_active++;
    tarni_lock_release(&copier->lock);
    tarni_job_copy(job, piece);
    tarni_lock_acquire(&copier->lock);
    job->n_active--;
    tarni_job_note_locked(job, piece);
  }
  tarni_lock_release(&copier->lock);
  return NULL;
}

void tarni_team_start(tarn_copier *copier) {
  tarni_lock_acquire(&copier->lock);
  const bool is_first = !copier->is_started;
  copier->is_started = true;
  if (is_first && copier->max_threads != 0) {
    sigset_t all, before; /* signals are for the program's own threads */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    while (copier->n_threads < copier->max_threads &&
           pthread_create(&copier->threads[copier->n_threads], NULL, help, copier) == 0) {
      copier->n_threads++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  tarni_lock_release(&copier->lock);
}

void tarni_team_stop(tarn_copier *copier) {
  tarni_lock_acquire(&copier->lock);
  tarn_assert(copier->jobs == NULL);
  copier->is_stopping = true;
  tarni_signal_wake(&copier->work, UINT32_MAX);
  tarni_lock_release(&copier->lock);
  for (uint32_t i = 0; i < copier->n_threads; i++) {
    (void)pthread_join(copier->threads[i], NULL);
  }
  copier->n_threads = 0;
  copier->is_started = false;
  copier->is_stopping = false;
}
