/* SPDX-License-Identifier: MIT
 *
 * The oracle: judges every use of memory by the order that streams, events and the host really
 * give, as vector clocks know it, and keeps the findings. It needs no luck: a use that is not
 * ordered is found when it is submitted, whether or not the simulated timing would have hurt.
 *
 * A use is in order if every earlier use that it conflicts with is in the clock of its stream. Uses
 * for different owners always conflict; uses for one owner when one of them writes. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bits.h"
#include "port/sim/sim.h"

const char *tarni_sim_operation_name(sim_operation_kind kind) {
  static const char *const names[] = {
      [SIM_OP_NONE] = "none",
      [SIM_OP_KERNEL] = "kernel",
      [SIM_OP_COPY] = "copy",
      [SIM_OP_FILL] = "fill",
      [SIM_OP_RECORD] = "record",
      [SIM_OP_WAIT] = "wait",
      [SIM_OP_VALUE_WRITE] = "value_write",
      [SIM_OP_VALUE_WAIT] = "value_wait",
      [SIM_OP_POOL_FREE] = "pool_free",
      [SIM_OP_GRAPH] = "graph",
  };
  return names[kind];
}

void tarni_sim_oracle_find(sim_device *device, tarn_sim_finding *finding, const char *format, ...) {
  finding->size = sizeof(*finding);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(finding->message, sizeof(finding->message), format, arguments);
  va_end(arguments);
  if (device->n_findings < SIM_MAX_FINDINGS) {
    device->findings[device->n_findings] = *finding;
  }
  device->n_findings++;
  if (device->on_finding != NULL) {
    device->on_finding(finding, device->on_finding_user);
  }
}

static tarn_sim_use use_public(const sim_use *use) {
  return (tarn_sim_use){.operation = tarni_sim_operation_name((sim_operation_kind)use->operation),
                        .stream_id = use->stream_id,
                        .sequence = use->epoch,
                        .owner = use->owner,
                        .is_write = use->is_write};
}

/* A finding about two uses, the earlier of which may be missing. */
static void find_uses(sim_device *device, tarn_sim_finding *finding, const char *meaning,
                      const sim_use *first, const sim_use *second) {
  finding->second = use_public(second);
  const char *verb = second->is_write ? "writes" : "reads";
  if (first == NULL) {
    tarni_sim_oracle_find(device, finding, "%s: %s %llu of stream %llu %s %llu bytes at 0x%llx",
                          meaning, finding->second.operation, (unsigned long long)second->epoch,
                          (unsigned long long)second->stream_id, verb,
                          (unsigned long long)finding->bytes, (unsigned long long)finding->address);
    return;
  }
  finding->first = use_public(first);
  tarni_sim_oracle_find(
      device, finding,
      "%s: %s %llu of stream %llu (owner %llu) %s %llu bytes at 0x%llx; not ordered after %s %llu "
      "of stream %llu (owner %llu), which %s them",
      meaning, finding->second.operation, (unsigned long long)second->epoch,
      (unsigned long long)second->stream_id, (unsigned long long)second->owner, verb,
      (unsigned long long)finding->bytes, (unsigned long long)finding->address,
      finding->first.operation, (unsigned long long)first->epoch,
      (unsigned long long)first->stream_id, (unsigned long long)first->owner,
      first->is_write ? "writes" : "reads");
}

/* One use, as it walks over the histories of its range. */
typedef struct use_walk {
  sim_device *device;
  const sim_actor *actor;
  const tarn_sim_range *range;
  tarn_ptr origin; /* address of the chunk's first byte */
} use_walk;

static bool is_ordered(const sim_actor *actor, const sim_use *earlier) {
  return tarni_sim_clock_at(actor->clock, earlier->slot) >= earlier->epoch;
}

/* Compares a use with those before it, and forgets those that it makes superfluous: what comes
 * after it comes after them, too. A write is kept until the next write, for reads to come. */
static void history_judge(const use_walk *walk, sim_history *history, const sim_use *use,
                          tarn_sim_finding *finding) {
  uint16_t kept = 0;
  for (uint16_t i = 0; i < history->n_uses; i++) {
    const sim_use *earlier = &history->uses[i];
    const bool ordered = is_ordered(walk->actor, earlier);
    if (!ordered && earlier->owner != use->owner) {
      finding->kind = TARN_SIM_REUSE;
      find_uses(walk->device, finding, "reuse without order", earlier, use);
    } else if (!ordered && (earlier->is_write || use->is_write)) {
      finding->kind = TARN_SIM_RACE;
      find_uses(walk->device, finding, "race", earlier, use);
    }
    if (!ordered || (earlier->is_write && !use->is_write)) {
      history->uses[kept++] = *earlier;
    }
  }
  history->n_uses = kept;
}

static bool visit_use(sim_history **slot, uint64_t offset, uint64_t size, void *user) {
  const use_walk *walk = user;
  sim_history *history = tarni_sim_history_own(slot);
  if (history == NULL) {
    return false;
  }
  const sim_use use = {.epoch = walk->actor->epoch,
                       .stream_id = walk->actor->stream_id,
                       .owner = walk->range->owner != 0 ? walk->range->owner : history->owner,
                       .slot = walk->actor->slot,
                       .operation = (uint8_t)walk->actor->operation,
                       .is_write = walk->range->is_write};
  tarn_sim_finding finding = {.address = walk->origin + offset, .bytes = size};
  if (history->is_freed || use.owner != history->owner) {
    finding.kind = TARN_SIM_FREED;
    const sim_use *last = history->n_uses != 0 ? &history->uses[history->n_uses - 1] : NULL;
    find_uses(walk->device, &finding, "use after free", last, &use);
    return true; /* judged once; the history stays that of the rightful owner */
  }
  history_judge(walk, history, &use, &finding);
  return tarni_sim_history_add(slot, &use);
}

/* Remembers who used a mapping last, for the day when it is unmapped. */
static bool mapping_note(sim_mapping *mapping, const sim_actor *actor,
                         const tarn_sim_range *range) {
  const sim_use use = {.epoch = actor->epoch,
                       .stream_id = actor->stream_id,
                       .owner = range->owner,
                       .slot = actor->slot,
                       .operation = (uint8_t)actor->operation,
                       .is_write = range->is_write};
  for (uint32_t i = 0; i < mapping->n_uses; i++) {
    sim_use *known = &mapping->uses[i];
    if (known->slot == actor->slot ||
        tarni_sim_clock_at(&tarni_sim_world.host, known->slot) >= known->epoch) {
      *known = use;
      return true;
    }
  }
  if (mapping->n_uses == mapping->uses_capacity) {
    const uint32_t capacity = mapping->uses_capacity * 2 + 2;
    sim_use *uses = realloc(mapping->uses, capacity * sizeof(*uses));
    if (uses == NULL) {
      return false;
    }
    mapping->uses = uses;
    mapping->uses_capacity = capacity;
  }
  mapping->uses[mapping->n_uses++] = use;
  return true;
}

void tarni_sim_oracle_unmap(sim_device *device, sim_mapping *mapping) {
  for (uint32_t i = 0; i < mapping->n_uses; i++) {
    const sim_use *use = &mapping->uses[i];
    if (tarni_sim_clock_at(&tarni_sim_world.host, use->slot) < use->epoch) {
      tarn_sim_finding finding = {.kind = TARN_SIM_UNMAP_IN_USE,
                                  .address = mapping->address,
                                  .bytes = mapping->size,
                                  .first = use_public(use)};
      tarni_sim_oracle_find(device, &finding,
                            "%llu bytes at 0x%llx are unmapped while %s %llu of stream %llu, "
                            "which uses them, has not been seen complete",
                            (unsigned long long)mapping->size, (unsigned long long)mapping->address,
                            finding.first.operation, (unsigned long long)use->epoch,
                            (unsigned long long)use->stream_id);
      return;
    }
  }
}

static bool find_unmapped(sim_device *device, const sim_actor *actor, const tarn_sim_range *range) {
  const sim_use use = {.epoch = actor->epoch,
                       .stream_id = actor->stream_id,
                       .owner = range->owner,
                       .operation = (uint8_t)actor->operation,
                       .is_write = range->is_write};
  tarn_sim_finding finding = {
      .kind = TARN_SIM_UNMAPPED, .address = range->address, .bytes = range->bytes};
  find_uses(device, &finding, "nothing is mapped there", NULL, &use);
  return false;
}

bool tarni_sim_oracle_use(sim_device *device, const sim_actor *actor, const tarn_sim_range *range) {
  if (!tarni_sim_range_is_mapped(device, range->address, range->bytes)) {
    return find_unmapped(device, actor, range);
  }
  const tarn_ptr end = range->address + range->bytes;
  for (tarn_ptr at = range->address; at < end;) {
    sim_mapping *mapping = tarni_sim_mapping_find(device, at);
    const uint64_t size = tarni_min(end, mapping->address + mapping->size) - at;
    use_walk walk = {.device = device, .actor = actor, .range = range, .origin = mapping->address};
    (void)tarni_sim_shadow_walk(&mapping->chunk->shadow, at - mapping->address, size, visit_use,
                                &walk);
    (void)mapping_note(mapping, actor, range);
    at += size;
  }
  return true;
}

static bool use_of(sim_device *device, const sim_actor *actor, tarn_ptr address, uint64_t size,
                   bool is_write) {
  const tarn_sim_range range = {.address = address, .bytes = size, .is_write = is_write};
  return tarni_sim_oracle_use(device, actor, &range);
}

bool tarni_sim_oracle_work(sim_device *device, const sim_actor *actor, const sim_work *work) {
  bool is_good = true;
  for (uint32_t i = 0; i < work->n_ranges; i++) {
    is_good = tarni_sim_oracle_use(device, actor, &work->ranges[i]) && is_good;
  }
  if (work->kind == SIM_OP_COPY && !work->owns_source &&
      tarni_sim_region_find(device, work->source) != NULL) {
    is_good = use_of(device, actor, work->source, work->size, false) && is_good;
  }
  const bool writes = work->kind == SIM_OP_FILL || work->kind == SIM_OP_COPY;
  if (writes && tarni_sim_region_find(device, work->destination) != NULL) {
    is_good = use_of(device, actor, work->destination, work->size, true) && is_good;
  }
  return is_good;
}
