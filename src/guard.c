/* SPDX-License-Identifier: MIT
 *
 * Guards: bytes behind a block that nobody may write, and what was written where nobody may.
 * Reading back waits for the work before it. Lock: heap->grow for the buffer that it is read into.
 */
#include <string.h>

#include "base/bits.h"
#include "record.h"

enum { GUARD_BYTE = 0xa7 };

tarn_status tarni_damage_find_grow(tarn_heap *heap, uint64_t offset, uint64_t bytes, uint8_t value,
                                   tarni_damage *damage) {
  uint8_t *read = heap->debug->read;
  *damage = (tarni_damage){0};
  TARN_TRY(tarni_legacy_check(heap, NULL)); /* where synchronous copies go */
  TARNI_RELAXED(heap->port);
  for (uint64_t done = 0; done < bytes; done += DEBUG_READ) {
    const uint64_t piece = tarni_min(bytes - done, DEBUG_READ);
    TARN_TRY(tarni_port_copy_sync(heap->port, (tarn_ptr)(uintptr_t)read, heap->base + offset + done,
                                  piece));
    const bool is_whole = read[0] == value && memcmp(read, read + 1, piece - 1) == 0;
    for (uint64_t i = 0; i < piece && !is_whole; i++) {
      if (read[i] != value && damage->n++ == 0) {
        damage->first = done + i;
        damage->value = read[i];
      }
    }
  }
  return TARN_OK;
}

static tarn_status guard_fail(const tarn_heap *heap, const tarni_record *record,
                              const tarni_damage *damage, const char *operation) {
  char trail[DEBUG_TRAIL_TEXT];
  const tarni_facts facts = {.device = heap->port->device.name};
  tarni_record_describe(heap, record, trail, sizeof(trail));
  return tarni_fail(
      TARN_CORRUPT, operation, &facts,
      "Find what writes behind the block; its guard is whole again.",
      "%llu bytes behind the block of %llu bytes at 0x%llx were written, the first at "
      "offset %llu: 0x%02x%s",
      (unsigned long long)damage->n, (unsigned long long)record->requested,
      (unsigned long long)(heap->base + record->offset),
      (unsigned long long)(record->requested + damage->first), damage->value, trail);
}

tarn_status tarni_guard_write(tarn_heap *heap, const tarni_record *record, tarn_stream stream) {
  if (heap->care.guard_bytes == 0 || tarni_guard_bytes(record) == 0) {
    return TARN_OK;
  }
  return tarni_port_fill(heap->port, heap->base + record->offset + record->requested, GUARD_BYTE,
                         tarni_guard_bytes(record), stream);
}

tarn_status tarni_guard_look_grow(tarn_heap *heap, const tarni_record *record,
                                  const char *operation) {
  tarni_damage damage;
  TARN_TRY(tarni_damage_find_grow(heap, record->offset + record->requested,
                                  tarni_guard_bytes(record), GUARD_BYTE, &damage));
  if (damage.n == 0) {
    return TARN_OK;
  }
  TARNI_RELAXED(heap->port);
  (void)tarni_port_fill_sync(heap->port, heap->base + record->offset + record->requested,
                             GUARD_BYTE, tarni_guard_bytes(record));
  return guard_fail(heap, record, &damage, operation);
}

/* A stream that is being captured is not waited for, and a capture may keep the default stream, on
 * which memory is read: then nobody looks. */
tarn_status tarni_guard_check(tarn_heap *heap, const tarni_record *record, tarn_stream stream) {
  if (heap->care.guard_bytes == 0 || tarni_guard_bytes(record) == 0) {
    return TARN_OK;
  }
  tarni_capture_state state = {0};
  TARN_TRY(tarni_port_capture_state(heap->port, stream, &state));
  const tarn_status may_read = tarni_legacy_check(heap, NULL);
  if (state.status != TARNI_CAPTURE_NONE || may_read == TARN_CAPTURE) {
    return TARN_OK;
  }
  TARN_TRY(may_read);
  TARNI_RELAXED(heap->port);
  TARN_TRY(tarni_port_stream_sync(heap->port, stream));
  tarni_lock_acquire(&heap->grow);
  const tarn_status status = tarni_guard_look_grow(heap, record, "tarn_free");
  tarni_lock_release(&heap->grow);
  return status;
}
