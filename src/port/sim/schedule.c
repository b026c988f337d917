/* SPDX-License-Identifier: MIT
 *
 * When pending work of the simulated GPU runs, and in which order: any that streams, events and
 * values allow, chosen by the seed. Work runs late: only as calls are made, or because somebody
 * waits for it. Runs under the lock; waiting for something that only another thread can bring about
 * gives the lock up meanwhile. */
#include <sched.h>
#include <stdlib.h>

#include "base/check.h"
#include "port/sim/sim.h"

/* More than this many pending operations and some of them run: a real queue is finite, too. */
enum { SCHEDULE_MAX_PENDING = 4096 };

static void pending_remove(sim_stream *stream) {
  sim_world *world = &tarni_sim_world;
  sim_stream *last = world->pending[--world->n_pending];
  world->pending[stream->pending_index] = last;
  last->pending_index = stream->pending_index;
  stream->pending_index = UINT32_MAX;
}

static void head_complete(sim_stream *stream) {
  sim_operation *operation = stream->head;
  stream->head = operation->next;
  stream->device->n_pending_operations--;
  if (stream->head == NULL) {
    stream->tail = &stream->head;
    pending_remove(stream);
  }
  if (operation->record != NULL) {
    operation->record->is_done = true;
    tarni_sim_record_drop(operation->record);
  }
  tarni_sim_record_drop(operation->after);
  if (operation->exec != NULL) {
    tarni_sim_exec_drop(operation->exec);
  }
  tarni_sim_operation_give(operation);
}

/* Runs what is at the head of a queue, if it can. */
static bool head_run(sim_stream *stream) {
  sim_operation *operation = stream->head;
  if (operation->after != NULL && !operation->after->is_done) {
    return false;
  }
  if (operation->work.kind == SIM_OP_GRAPH) {
    if (operation->n_left != 0 && !tarni_sim_graph_step(stream->device, operation)) {
      return false;
    }
    if (operation->n_left != 0) {
      return true;
    }
  } else if (!tarni_sim_work_run(stream->device, &operation->work)) {
    return false;
  }
  head_complete(stream);
  return true;
}

bool tarni_sim_step(sim_device *device) {
  sim_world *world = &tarni_sim_world;
  const uint32_t n = world->n_pending;
  if (n == 0) {
    return false;
  }
  const uint32_t start = n == 1 ? 0 : (uint32_t)tarni_rng_below(&device->rng, n);
  for (uint32_t i = 0; i < n; i++) {
    if (head_run(world->pending[(start + i) % n])) {
      return true;
    }
  }
  return false;
}

void tarni_sim_tick(sim_device *device) {
  if (tarni_sim_world.n_pending == 0) {
    return;
  }
  if (device->config.order == SIM_ORDER_EAGER) {
    while (tarni_sim_step(device)) {
    }
    return;
  }
  uint64_t n = 0;
  if (device->config.order == SIM_ORDER_RANDOM) {
    const uint64_t dice = tarni_rng_next(&device->rng);
    n = (dice & 3) == 0 ? (dice >> 2) & 7 : 0; /* now and then, up to 7 at once */
  }
  if (device->n_pending_operations > SCHEDULE_MAX_PENDING) {
    n = SCHEDULE_MAX_PENDING / 2;
  }
  while (n-- != 0 && tarni_sim_step(device)) {
  }
}

/* Nothing can run: somebody else must act first. */
static void give_way(void) {
  tarni_sim_unlock();
  (void)sched_yield();
  tarni_sim_lock();
}

void tarni_sim_finish_stream(sim_device *device, sim_stream *stream) {
  /* What is there now: work that others add meanwhile is not waited for. */
  sim_record *last = NULL;
  if (stream->head == NULL || tarni_sim_record_on(stream, &last) != TARN_OK) {
    return;
  }
  tarni_sim_finish_record(device, last);
  tarni_sim_record_drop(last);
}

void tarni_sim_finish_record(sim_device *device, sim_record *record) {
  while (!record->is_done) {
    if (!tarni_sim_step(device)) {
      give_way();
    }
  }
}

void tarni_sim_finish_device(sim_device *device) {
  while (device->n_pending_operations != 0) {
    if (!tarni_sim_step(device)) {
      give_way();
    }
  }
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    tarni_sim_observe_stream(stream);
  }
}
