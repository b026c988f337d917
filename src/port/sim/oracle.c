/* SPDX-License-Identifier: MIT
 *
 * The oracle's findings: how they are made, worded and kept. What is a finding is decided in
 * judge.c and wherever a handle or an address turns out to be wrong. */
#include <stdarg.h>
#include <stdio.h>

#include "port/sim/sim.h"

static const char *operation_name(sim_operation_kind kind) {
  static const char *const names[] = {
      [SIM_OP_NONE] = NULL,
      [SIM_OP_KERNEL] = "kernel",
      [SIM_OP_COPY] = "copy",
      [SIM_OP_FILL] = "fill",
      [SIM_OP_RECORD] = "record",
      [SIM_OP_WAIT] = "wait",
      [SIM_OP_VALUE_WRITE] = "value_write",
      [SIM_OP_VALUE_WAIT] = "value_wait",
      [SIM_OP_POOL_ALLOC] = "pool_alloc",
      [SIM_OP_POOL_FREE] = "pool_free",
      [SIM_OP_GRAPH] = "graph",
  };
  return names[kind];
}

static tarn_sim_use use_public(const sim_use *use) {
  return (tarn_sim_use){.operation = operation_name((sim_operation_kind)use->operation),
                        .stream_id = use->stream_id,
                        .sequence = use->epoch,
                        .owner = use->owner,
                        .is_write = use->is_write};
}

static void finding_keep(sim_device *device, tarn_sim_finding *finding) {
  finding->size = sizeof(*finding);
  if (device->n_findings < SIM_MAX_FINDINGS) {
    device->findings[device->n_findings] = *finding;
  }
  device->n_findings++;
  if (device->on_finding != NULL) {
    device->on_finding(finding, device->on_finding_user);
  }
}

void tarni_sim_oracle_find(sim_device *device, tarn_sim_finding *finding, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(finding->message, sizeof(finding->message), format, arguments);
  va_end(arguments);
  finding_keep(device, finding);
}

/* "kernel 3 of stream 7 (owner 11), which writes" */
static void use_text(const tarn_sim_use *use, char *text, size_t capacity) {
  (void)snprintf(text, capacity, "%s %llu of stream %llu (owner %llu), which %s",
                 use->operation != NULL ? use->operation : "nothing",
                 (unsigned long long)use->sequence, (unsigned long long)use->stream_id,
                 (unsigned long long)use->owner, use->is_write ? "writes" : "reads");
}

void tarni_sim_oracle_find_memory(sim_device *device, tarn_sim_finding *finding,
                                  const sim_shadow *shadow, const char *what) {
  sim_use use;
  char text[128] = "it was never used";
  if (shadow != NULL && tarni_sim_shadow_example(shadow, &use, &finding->owner) && use.epoch != 0) {
    finding->first = use_public(&use);
    char last[112];
    use_text(&finding->first, last, sizeof(last));
    (void)snprintf(text, sizeof(text), "last use: %s", last);
  }
  const char *verb =
      finding->kind == TARN_SIM_DOUBLE_MAP ? "was mapped again" : "was never given back";
  tarni_sim_oracle_find(device, finding, "%s %s: %llu bytes at 0x%llx, owner %llu; %s", what, verb,
                        (unsigned long long)finding->bytes, (unsigned long long)finding->address,
                        (unsigned long long)finding->owner, text);
}

/* A finding about two uses, the earlier of which may be missing. */
void tarni_sim_oracle_find_uses(sim_device *device, tarn_sim_finding *finding, const char *meaning,
                                const sim_use *first, const sim_use *second) {
  char now[112], before[112];
  finding->second = use_public(second);
  use_text(&finding->second, now, sizeof(now));
  if (first == NULL) {
    tarni_sim_oracle_find(device, finding, "%s: %s %llu bytes at 0x%llx of owner %llu", meaning,
                          now, (unsigned long long)finding->bytes,
                          (unsigned long long)finding->address, (unsigned long long)finding->owner);
    return;
  }
  finding->first = use_public(first);
  use_text(&finding->first, before, sizeof(before));
  tarni_sim_oracle_find(device, finding, "%s: %s %llu bytes at 0x%llx; before it %s them", meaning,
                        now, (unsigned long long)finding->bytes,
                        (unsigned long long)finding->address, before);
}

void tarni_sim_oracle_unmap(sim_device *device, const sim_mapping *mapping) {
  for (uint32_t i = 0; i < mapping->n_uses; i++) {
    const sim_use *use = &mapping->uses[i];
    if (tarni_sim_clock_at(&tarni_sim_world.host, use->slot) >= use->epoch) {
      continue;
    }
    tarn_sim_finding finding = {.kind = TARN_SIM_UNMAP_IN_USE,
                                .address = mapping->address,
                                .bytes = mapping->size,
                                .owner = use->owner,
                                .first = use_public(use)};
    char text[112];
    use_text(&finding.first, text, sizeof(text));
    tarni_sim_oracle_find(
        device, &finding, "%llu bytes at 0x%llx are unmapped; not seen complete: %s them",
        (unsigned long long)mapping->size, (unsigned long long)mapping->address, text);
    return;
  }
}
