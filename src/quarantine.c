/* SPDX-License-Identifier: MIT
 *
 * Quarantine: freed blocks that are kept out of use for a while, filled, and looked at when they
 * leave, oldest first: who has written to them uses them after their free. A block in quarantine is
 * a pending one (use.c) that is held back.
 *
 * Locks: heap->lock for the list; heap->grow for looking at what leaves it. */
#include <stdio.h>

#include "record.h"

tarn_status tarni_freed_fail(const tarn_heap *heap, const tarni_record *record,
                             const tarni_damage *damage, const char *operation) {
  char trail[DEBUG_TRAIL_TEXT];
  const tarni_facts facts = {.device = heap->port->device.name};
  tarni_record_describe(heap, record, trail, sizeof(trail));
  return tarni_fail(TARN_CORRUPT, operation, &facts, "Find what uses the block after its free.",
                    "%llu bytes of the block of %llu bytes at 0x%llx were written after its free, "
                    "the first at offset %llu: 0x%02x%s",
                    (unsigned long long)damage->n, (unsigned long long)record->requested,
                    (unsigned long long)(heap->base + record->offset),
                    (unsigned long long)damage->first, damage->value, trail);
}

/* Tells of a mistake that no caller is to blame for. The thread's last error stays as it was. */
static void tell(tarn_heap *heap, const tarni_record *record, const tarni_damage *damage) {
  tarn_error before = {.size = sizeof(before)};
  (void)tarn_last_error(&before);
  (void)tarni_freed_fail(heap, record, damage, "tarn_heap");
  if (heap->config.on_misuse != NULL) {
    heap->config.on_misuse(heap, tarn_last_message(), heap->config.on_misuse_user);
  } else {
    (void)fprintf(stderr, "tarn: %s\n", tarn_last_message());
  }
  if (before.status != TARN_OK) {
    (void)tarni_fail_again(&before);
  }
}

void tarni_quarantine_enter_locked(tarn_heap *heap, tarni_record *record, tarni_index lane) {
  tarni_debug *debug = heap->debug;
  record->is_freed = true;
  record->younger = NULL;
  *(debug->youngest != NULL ? &debug->youngest->younger : &debug->oldest) = record;
  debug->youngest = record;
  debug->held_bytes += record->bytes;
  tarni_uses_hold_locked(heap, record->uses, record->offset, lane);
}

/* The block leaves: it is free once what was given to its stream before its free is complete. */
static void quarantine_leave_locked(tarn_heap *heap, tarni_record *record) {
  tarni_debug *debug = heap->debug;
  debug->oldest = record->younger;
  debug->youngest = debug->oldest != NULL ? debug->youngest : NULL;
  debug->held_bytes -= record->bytes;
  tarn_assert(record->uses != NULL && record->uses == heap->held[0] && "it is in quarantine");
  tarni_uses_unhold_locked(heap);
  record->uses = NULL; /* the list of pending blocks has it */
  tarni_record_remove_locked(heap, record);
}

/* Waits, on the host, for what the oldest block's stream was given before its free. False: that
 * cannot be seen, and the block stays. */
static bool oldest_await_grow(tarn_heap *heap, const tarni_record *record) {
  tarn_assert(record->uses != NULL && "it is in quarantine");
  tarni_order order = {0};
  (void)tarni_order_add(&order, record->uses->free_lane, record->uses->free_ticket);
  bool is_complete;
  do {
    tarni_lock_acquire(&heap->lock);
    is_complete = tarni_order_is_complete_locked(heap, &order);
    tarni_lock_release(&heap->lock);
  } while (!is_complete && tarni_order_fence_grow(heap, &order) == TARN_OK &&
           tarni_lane_wait_grow(heap, record->uses->free_lane));
  return is_complete;
}

void tarni_quarantine_trim_grow(tarn_heap *heap, uint64_t keep) {
  tarni_debug *debug = heap->debug;
  tarni_record *gone = NULL;
  for (;;) {
    tarni_lock_acquire(&heap->lock);
    tarni_record *record = debug->held_bytes > keep ? debug->oldest : NULL;
    tarni_lock_release(&heap->lock);
    tarni_damage damage;
    if (record == NULL || !oldest_await_grow(heap, record) ||
        tarni_damage_find_grow(heap, record->offset, record->bytes, debug->freed, &damage) !=
            TARN_OK) {
      break; /* what cannot be looked at stays */
    }
    if (damage.n != 0) {
      tell(heap, record, &damage);
    }
    tarni_lock_acquire(&heap->lock);
    quarantine_leave_locked(heap, record);
    tarni_lock_release(&heap->lock);
    record->next = gone;
    gone = record;
  }
  while (gone != NULL) {
    tarni_record *next = gone->next; /* NOLINT(clang-analyzer-unix.Malloc): each is there once */
    tarni_record_free(gone);
    gone = next;
  }
  tarni_uses_reap_grow(heap);
}

void tarni_quarantine_release_locked(tarn_heap *heap) {
  while (heap->debug != NULL && heap->debug->oldest != NULL) {
    tarni_record *record = heap->debug->oldest;
    quarantine_leave_locked(heap, record);
    tarni_record_free(record);
  }
}

static bool is_quarantined(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const bool is = heap->debug->oldest != NULL;
  tarni_lock_release(&heap->lock);
  return is;
}

void tarni_quarantine_drain_grow(tarn_heap *heap) {
  if (heap->debug != NULL && is_quarantined(heap) && !tarni_is_asleep(heap)) {
    tarn_error error = {.size = sizeof(error)}; /* of the caller: that of looking is nobody's */
    (void)tarn_last_error(&error);
    tarni_quarantine_trim_grow(heap, 0);
    if (error.status != TARN_OK) {
      (void)tarni_fail_again(&error);
    }
  }
}
