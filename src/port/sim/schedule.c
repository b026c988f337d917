/* SPDX-License-Identifier: MIT
 *
 * When pending work of the simulated GPU runs, and in which order: any that streams, events and
 * values allow, chosen by the seed. Work runs late: only as calls are made, or because somebody
 * waits for it. Runs under the lock; waiting for something that only another thread can bring about
 * gives the lock up meanwhile, so whoever waits holds a record of what it waits for and looks at
 * nothing else afterwards that another thread could have changed. */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "port/sim/sim.h"

/* More than this many pending operations and some of them run: a real queue is finite, too. */
enum { SCHEDULE_MAX_PENDING = 4096 };

/* How long a device that is closed waits for others to let its work go on. */
enum { SCHEDULE_DRAIN_NS = 1000000, SCHEDULE_DRAIN_TRIES = 1000 };

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
    if (operation->work.kind == SIM_OP_VALUE_WRITE) {
      tarni_sim_value_written(operation->record);
    }
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

/* Runs something of any device, which one the seed of the given one chooses. Returns whose it was;
 * NULL: nothing could run. */
static const sim_device *step(sim_device *device) {
  sim_world *world = &tarni_sim_world;
  const uint32_t n = world->n_pending;
  if (n == 0) {
    return NULL;
  }
  const uint32_t start = n == 1 ? 0 : (uint32_t)tarni_rng_below(&device->rng, n);
  for (uint32_t i = 0; i < n; i++) {
    sim_stream *stream = world->pending[(start + i) % n];
    if (head_run(stream)) {
      return stream->device;
    }
  }
  return NULL;
}

bool tarni_sim_step(sim_device *device) {
  return step(device) != NULL;
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

/* ---- Waiting ---- */

/* Nothing can run: somebody else must act first. */
static void give_way(void) {
  tarni_sim_unlock();
  (void)sched_yield();
  tarni_sim_lock();
}

void tarni_sim_finish_record(sim_device *device, const sim_record *record) {
  while (!record->is_done) {
    if (!tarni_sim_step(device)) {
      give_way();
    }
  }
}

tarn_status tarni_sim_finish_mark(sim_device *device, sim_stream *stream, sim_operation *mark,
                                  const char *entry) {
  sim_record *record = tarni_sim_mark_push(stream, mark);
  tarni_sim_finish_record(device, record);
  tarni_sim_observe(device, record);
  tarni_sim_record_drop(record);
  return tarni_sim_broken(device, entry);
}

tarn_status tarni_sim_finish_stream(sim_device *device, sim_stream *stream, const char *entry) {
  if (stream->head == NULL) {
    tarni_sim_observe_stream(stream);
    return tarni_sim_broken(device, entry);
  }
  sim_operation *mark = tarni_sim_mark_make();
  return mark != NULL ? tarni_sim_finish_mark(device, stream, mark, entry)
                      : tarni_sim_no_host_memory(device, entry);
}

tarn_status tarni_sim_finish_device(sim_device *device, const char *entry) {
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    TARN_TRY(tarni_sim_finish_stream(device, stream, entry));
  }
  tarni_sim_host_sees(&device->retired);
  return TARN_OK;
}

/* ---- The end ---- */

static void streams_drop_work(sim_device *device) {
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    while (stream->head != NULL) {
      head_complete(stream);
    }
  }
}

void tarni_sim_drain(sim_device *device) {
  int n_tries = 0;
  while (device->n_pending_operations != 0 && n_tries < SCHEDULE_DRAIN_TRIES) {
    const sim_device *ran = step(device);
    if (ran != NULL) {
      n_tries = ran == device ? 0 : n_tries; /* another may be busy for ever */
      continue;
    }
    n_tries++;
    tarni_sim_unlock();
    (void)nanosleep(&(struct timespec){.tv_nsec = SCHEDULE_DRAIN_NS}, NULL);
    tarni_sim_lock();
  }
  if (device->n_pending_operations != 0) {
    tarn_sim_finding finding = {.kind = TARN_SIM_LEAK};
    tarni_sim_oracle_find(device, &finding,
                          "%llu operations still waited for a value or an event when the device "
                          "was closed",
                          (unsigned long long)device->n_pending_operations);
    streams_drop_work(device);
  }
  for (sim_stream *stream = device->streams; stream != NULL; stream = stream->next) {
    tarni_sim_observe_stream(stream);
  }
  tarni_sim_host_sees(&device->retired);
}
