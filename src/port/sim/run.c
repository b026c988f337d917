/* SPDX-License-Identifier: MIT
 *
 * Doing the work of streams to the real bytes, at the time when the scheduler gets there. Work
 * whose memory is gone by then breaks the device, as it does on a GPU. Also the values that streams
 * write for others to see: who may rely on what, and when the host has seen it. */
#include <stdlib.h>

#include "port/sim/sim.h"

void tarni_sim_work_free(sim_work *work) {
  free(work->ranges);
  if (work->owns_source) {
    free((void *)(uintptr_t)work->source);
  }
  work->ranges = NULL;
  work->owns_source = false;
}

/* Whether a copy can touch the range now. */
static bool is_there(sim_device *device, tarn_ptr address, uint64_t size) {
  sim_device *where = tarni_sim_device_at(device, address, true);
  return where != NULL ? tarni_sim_range_is_mapped(where, address, size)
                       : tarni_sim_bytes_is_host(address, size);
}

/* Whether a kernel, a fill or a value can. */
static bool is_visible(sim_device *device, tarn_ptr address, uint64_t size) {
  sim_device *where = tarni_sim_device_at(device, address, false);
  return where != NULL && tarni_sim_range_is_mapped(where, address, size);
}

static bool kernel_run(sim_device *device, const sim_work *work) {
  for (uint32_t i = 0; i < work->n_ranges; i++) {
    const tarn_sim_range *range = tarni_sim_work_range(work, i);
    if (range->bytes != 0 && !is_visible(device, range->address, range->bytes)) {
      return false;
    }
  }
  if (work->run != NULL) {
    work->run(work->user);
  }
  return true;
}

static bool copy_run(sim_device *device, const sim_work *work) {
  if (!is_there(device, work->destination, work->size) ||
      (!work->owns_source && !is_there(device, work->source, work->size))) {
    return false;
  }
  tarni_sim_bytes_copy(work->destination, work->source, work->size);
  return true;
}

static bool fill_run(sim_device *device, const sim_work *work) {
  if (!is_visible(device, work->destination, work->size)) {
    return false;
  }
  tarni_sim_bytes_fill(work->destination, work->value, work->size);
  return true;
}

/* False: the memory is not there. */
static bool work_do(sim_device *device, const sim_work *work) {
  switch (work->kind) {
  case SIM_OP_KERNEL:
    return kernel_run(device, work);
  case SIM_OP_COPY:
    return copy_run(device, work);
  case SIM_OP_FILL:
    return fill_run(device, work);
  case SIM_OP_VALUE_WRITE:
    if (!is_visible(device, (uintptr_t)work->word, sizeof(*work->word))) {
      return false;
    }
    __atomic_store_n(work->word, work->size, __ATOMIC_RELEASE);
    return true;
  case SIM_OP_VALUE_WAIT:
    return is_visible(device, (uintptr_t)work->word, sizeof(*work->word));
  case SIM_OP_NONE:
  case SIM_OP_RECORD:
  case SIM_OP_WAIT:
  case SIM_OP_POOL_ALLOC:
  case SIM_OP_POOL_FREE:
  case SIM_OP_GRAPH:
    break;
  }
  return true;
}

bool tarni_sim_work_run(sim_device *device, const sim_work *work) {
  if (device->sticky_code != 0) {
    return true; /* a broken device does nothing, but comes to an end */
  }
  if (!work_do(device, work)) {
    tarni_sim_break(device, SIM_CUDA_ILLEGAL_ADDRESS);
    return true;
  }
  return work->kind != SIM_OP_VALUE_WAIT ||
         __atomic_load_n(work->word, __ATOMIC_ACQUIRE) >= work->size;
}

/* ---- Values ---- */

void tarni_sim_value_expect(sim_record *record, const sim_work *work) {
  record->word = work->word;
  record->value = work->size;
  record->next_value = tarni_sim_world.values;
  tarni_sim_world.values = record;
}

void tarni_sim_value_forget(sim_record *record) {
  sim_record **link = &tarni_sim_world.values;
  while (record->word != NULL && *link != record) {
    link = &(*link)->next_value;
  }
  if (record->word != NULL) {
    *link = record->next_value;
    record->word = NULL;
  }
}

/* The host may look at the word from now on, and no call tells when it does: so it counts as having
 * seen it. */
void tarni_sim_value_written(sim_record *record) {
  tarni_sim_value_forget(record);
  tarni_sim_host_sees(&record->clock);
}

/* A stream that waits until a word is at least a value comes after one of the writes that make it
 * so, and no call tells which: it relies on what all of them have behind them. */
void tarni_sim_value_rely(sim_clock *clock, const sim_work *work) {
  if (__atomic_load_n(work->word, __ATOMIC_ACQUIRE) >= work->size) {
    return;
  }
  sim_clock *common = &tarni_sim_world.common;
  common->n = 0;
  bool is_first = true;
  for (const sim_record *record = tarni_sim_world.values; record != NULL;
       record = record->next_value) {
    if (record->word != work->word || record->value < work->size) {
      continue;
    }
    if (is_first) {
      (void)tarni_sim_clock_join(common, &record->clock);
    } else {
      tarni_sim_clock_meet(common, &record->clock);
    }
    is_first = false;
  }
  (void)tarni_sim_clock_join(clock, common);
}
