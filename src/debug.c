/* SPDX-License-Identifier: MIT
 *
 * Heaps that look for mistakes, and heaps that leave no content behind: fills of blocks when they
 * are allocated and freed, guards behind blocks, a quarantine of freed ones, stacks of return
 * addresses, and zeros for the next owner. Such a heap is watched from its making (watch.c), so
 * every call comes here.
 *
 * Each block has a record (record.c). Fills are in the order of the stream that allocates or frees;
 * where other streams were named by tarn_use, that stream waits for them first. Reading back
 * (guard.c, quarantine.c) waits for the work before it: it is what these options cost.
 *
 * Locks: heap->lock for records; heap->grow for looking at memory. */
#include <stdio.h>
#include <stdlib.h>

#include "base/bits.h"
#include "base/stack.h"
#include "record.h"

enum { DEBUG_FREED = 0xdd }; /* the byte of freed blocks, where none is chosen */

/* ---- Allocating ---- */

/* Everything that a block gets before its owner does, in the order of the stream. */
static tarn_status block_dress(tarn_heap *heap, const tarni_record *record, tarn_stream stream) {
  const tarn_ptr block = heap->base + record->offset;
  if (heap->care.is_secure) {
    TARN_TRY(tarni_port_fill(heap->port, block, 0, record->bytes, stream));
  }
  if (heap->care.fill_alloc != 0) {
    TARN_TRY(tarni_port_fill(heap->port, block, heap->care.fill_alloc, record->requested, stream));
  }
  return tarni_guard_write(heap, record, stream);
}

/* What is filled or looked at in the order of a stream that is being captured would be done by the
 * graph, whenever that is launched, and not now. */
static tarn_status capture_refuse(const tarn_heap *heap, tarn_stream stream,
                                  const char *operation) {
  tarni_capture_state state = {0};
  const tarni_care *care = &heap->care;
  const bool is_idle = care->guard_bytes == 0 && care->fill_alloc == 0 && !heap->debug->fills_freed;
  if (is_idle) {
    return TARN_OK;
  }
  TARN_TRY(tarni_port_capture_state(heap->port, stream, &state));
  if (state.status == TARNI_CAPTURE_NONE) {
    return TARN_OK;
  }
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(
      TARN_CAPTURE, operation, &facts,
      "Use a stream that is not being captured, or wait for the capture's end.",
      "the heap fills blocks or has guards, and the stream is being captured (capture "
      "%llu), so that a graph would do it",
      (unsigned long long)state.id);
}

static tarn_status record_fail(const tarn_heap *heap) {
  const tarni_facts facts = {.device = heap->port->device.name};
  return tarni_fail(TARN_HOST_MEMORY, "tarn_alloc", &facts, "Free some host memory.",
                    "no host memory for the record of a block");
}

tarn_status tarni_debug_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block) {
  uint64_t padded;
  TARN_TRY(capture_refuse(heap, stream, "tarn_alloc"));
  if (!tarni_add(bytes, heap->care.guard_bytes, &padded)) {
    padded = bytes; /* it is refused as it is */
  }
  tarni_record *record = tarni_record_make(heap);
  if (record == NULL) {
    return record_fail(heap);
  }
  tarn_status status = tarni_alloc_plain(heap, padded, alignment, stream, block);
  if (status != TARN_OK) {
    tarni_record_free(record);
    return status;
  }
  tarni_block found = {0};
  tarni_lock_acquire(&heap->lock);
  (void)tarni_block_find_locked(heap, *block - heap->base, &found);
  tarni_lock_release(&heap->lock);
  record->offset = found.offset;
  record->bytes = found.bytes;
  record->requested = bytes;
  tarni_record_trail(heap, record, TRAIL_ALLOC);
  status = block_dress(heap, record, stream);
  if (status != TARN_OK) {
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    (void)tarni_free_known(heap, record->offset, stream);
    tarni_record_free(record);
    *block = 0;
    return tarni_fail_again(&error);
  }
  tarni_record_put(heap, record);
  return TARN_OK;
}

/* ---- Freeing ---- */

/* What a block goes through before it is free, in the order of the stream: where only stacks are
 * kept, nothing. */
static tarn_status block_undress(tarn_heap *heap, const tarni_record *record, tarn_stream stream,
                                 tarni_index lane) {
  if (heap->care.guard_bytes == 0 && !heap->debug->fills_freed) {
    return TARN_OK;
  }
  TARN_TRY(tarni_uses_absorb(heap, record->offset, lane, stream));
  TARN_TRY(tarni_guard_check(heap, record, stream));
  return heap->debug->fills_freed ? tarni_port_fill(heap->port, heap->base + record->offset,
                                                    heap->debug->freed, record->bytes, stream)
                                  : TARN_OK;
}

static void record_unlink(tarn_heap *heap, tarni_record *record) {
  tarni_lock_acquire(&heap->lock);
  tarni_record_remove_locked(heap, record);
  tarni_lock_release(&heap->lock);
}

/* The record goes before the block can be somebody else's. */
static tarn_status free_at_once(tarn_heap *heap, tarni_record *record, tarn_stream stream) {
  record_unlink(heap, record);
  const tarn_status status = tarni_free_known(heap, record->offset, stream);
  if (status != TARN_OK) {
    tarni_record_put(heap, record);
    return status;
  }
  tarni_record_free(record);
  return TARN_OK;
}

/* Where the block cannot be undressed in the order of its streams: one of them is gone, or there is
 * no memory. A secure heap clears it all the same, and where other streams used it when the device
 * has nothing to do; not if there is no memory even for that. */
static tarn_status free_undressed(tarn_heap *heap, tarni_record *record, tarn_stream stream) {
  if (heap->care.is_secure) {
    tarn_status status =
        tarni_block_has_uses(heap, record->offset) ? tarni_device_await(heap) : TARN_OK;
    if (status == TARN_OK) {
      status = tarni_port_fill(heap->port, heap->base + record->offset, 0, record->bytes, stream);
    }
    TARN_TRY(status != TARN_HOST_MEMORY ? status : TARN_OK);
  }
  return free_at_once(heap, record, stream);
}

static tarn_status free_into_quarantine(tarn_heap *heap, tarni_record *record, tarni_index lane,
                                        tarn_stream stream) {
  tarni_record_trail(heap, record, TRAIL_FREE);
  tarni_lock_acquire(&heap->lock);
  const bool is_its = tarni_lane_is_locked(heap, lane, stream);
  if (is_its) {
    tarni_quarantine_enter_locked(heap, record, lane);
  }
  const bool is_full = heap->debug->held_bytes > heap->care.quarantine_bytes;
  tarni_lock_release(&heap->lock);
  if (!is_its) {
    return TARNI_RETIRED;
  }
  if (is_full) {
    tarni_lock_acquire(&heap->grow);
    tarni_quarantine_trim_grow(heap, heap->care.quarantine_bytes);
    tarni_lock_release(&heap->grow);
  }
  return TARN_OK;
}

/* TARNI_RETIRED: the lane is not the stream's any more, and the block is as it was. */
static tarn_status free_in_order(tarn_heap *heap, tarni_record *record, tarn_stream stream,
                                 tarni_index lane) {
  const tarn_status undressed = block_undress(heap, record, stream, lane);
  if (undressed == TARN_STATE || undressed == TARN_HOST_MEMORY) {
    return free_undressed(heap, record, stream);
  }
  TARN_TRY(undressed);
  return heap->care.quarantine_bytes != 0 ? free_into_quarantine(heap, record, lane, stream)
                                          : free_at_once(heap, record, stream);
}

/* While the heap sleeps there is nothing to look at or to fill. */
tarn_status tarni_debug_free(tarn_heap *heap, uint64_t offset, tarn_stream stream) {
  tarni_lock_acquire(&heap->lock);
  tarni_record *record = *tarni_record_link(heap, offset);
  tarni_lock_release(&heap->lock);
  if (record == NULL) {
    return tarni_free_plain(heap, offset, stream);
  }
  tarn_assert(!record->is_freed);
  if (tarni_is_asleep(heap)) {
    return free_at_once(heap, record, stream);
  }
  TARN_TRY(capture_refuse(heap, stream, "tarn_free"));
  tarn_status status;
  do {
    tarni_cache *cache;
    status = tarni_cache_find(heap, stream, &cache);
    if (status == TARN_HOST_MEMORY || status == TARN_LIMIT || status == TARN_CAPTURE) {
      return free_undressed(heap, record, stream); /* never fails for lack of memory, or a name */
    }
    TARN_TRY(status);
    status = free_in_order(heap, record, stream, cache->lane);
    tarni_index lane; /* or the thread, which is about to end, has a new name */
    if (status == TARNI_RETIRED && tarni_lane_known(heap, stream, &lane) != TARN_OK) {
      return free_undressed(heap, record, stream);
    }
  } while (status == TARNI_RETIRED);
  return status;
}

/* ---- The whole heap ---- */

/* A live block's guard, or a freed block's fill. */
static tarn_status record_check_grow(tarn_heap *heap, const tarni_record *record) {
  if (!record->is_freed) {
    return heap->care.guard_bytes != 0 && tarni_guard_bytes(record) != 0
               ? tarni_guard_look_grow(heap, record, "tarn_heap_check")
               : TARN_OK;
  }
  tarni_damage damage;
  TARN_TRY(
      tarni_damage_find_grow(heap, record->offset, record->bytes, heap->debug->freed, &damage));
  return damage.n == 0 ? TARN_OK : tarni_freed_fail(heap, record, &damage, "tarn_heap_check");
}

tarn_status tarni_debug_check_grow(tarn_heap *heap) {
  if (heap->debug == NULL || tarni_is_asleep(heap) ||
      (heap->care.guard_bytes == 0 && heap->care.quarantine_bytes == 0)) {
    return TARN_OK;
  }
  TARN_TRY(tarni_lanes_finish_grow(heap));
  for (uint64_t i = 0; i < heap->debug->n_lists; i++) {
    for (const tarni_record *record = heap->debug->records[i]; record != NULL;
         record = record->next) {
      TARN_TRY(record_check_grow(heap, record));
    }
  }
  return TARN_OK;
}

/* For each live block, on the default stream, and waits for it. */
static tarn_status each_live_grow(tarn_heap *heap,
                                  tarn_status (*act)(tarn_heap *heap, tarni_record *record)) {
  TARN_TRY(tarni_legacy_check(heap, TARNI_STREAM_LEGACY));
  for (uint64_t i = 0; i < heap->debug->n_lists; i++) {
    for (tarni_record *record = heap->debug->records[i]; record != NULL; record = record->next) {
      TARN_TRY(!record->is_freed ? act(heap, record) : TARN_OK);
    }
  }
  TARNI_RELAXED(heap->port);
  return tarni_port_stream_sync(heap->port, TARNI_STREAM_LEGACY);
}

static tarn_status record_scrub(tarn_heap *heap, tarni_record *record) {
  return tarni_port_fill(heap->port, heap->base + record->offset, 0, record->bytes,
                         TARNI_STREAM_LEGACY);
}

static tarn_status record_scrub_once(tarn_heap *heap, tarni_record *record) {
  const tarn_status status = record->is_scrubbed ? TARN_OK : record_scrub(heap, record);
  record->is_scrubbed = status == TARN_OK;
  return status;
}

static tarn_status record_dress(tarn_heap *heap, tarni_record *record) {
  TARN_TRY(heap->care.is_secure ? record_scrub(heap, record) : TARN_OK);
  return tarni_guard_write(heap, record, TARNI_STREAM_LEGACY);
}

tarn_status tarni_debug_scrub_grow(tarn_heap *heap) {
  return heap->care.is_secure ? each_live_grow(heap, record_scrub) : TARN_OK;
}

tarn_status tarni_debug_scrub_once_grow(tarn_heap *heap) {
  return heap->care.is_secure ? each_live_grow(heap, record_scrub_once) : TARN_OK;
}

tarn_status tarni_debug_dress_grow(tarn_heap *heap) {
  return heap->care.is_secure || heap->care.guard_bytes != 0 ? each_live_grow(heap, record_dress)
                                                             : TARN_OK;
}

/* ---- Beginning and end ---- */

static bool is_wanted(const tarni_care *care) {
  return care->is_secure || care->fill_alloc != 0 || care->fill_free != 0 ||
         care->guard_bytes != 0 || care->quarantine_bytes != 0 || care->stack_depth != 0;
}

tarn_status tarni_debug_open(tarn_heap *heap) {
  const tarni_care *care = &heap->care;
  if (!is_wanted(care)) {
    return TARN_OK;
  }
  heap->debug = calloc(1, sizeof(*heap->debug));
  if (heap->debug != NULL) {
    heap->debug->records = calloc(DEBUG_LISTS, sizeof(tarni_record *));
    heap->debug->n_lists = heap->debug->records != NULL ? DEBUG_LISTS : 0;
  }
  if (heap->debug == NULL || heap->debug->records == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_create", NULL, "Free some host memory.",
                      "no host memory for the records of a heap (%zu bytes)", sizeof(*heap->debug));
  }
  heap->debug->fills_freed = care->is_secure || care->fill_free != 0 || care->quarantine_bytes != 0;
  heap->debug->freed = care->fill_free != 0 || care->is_secure ? care->fill_free : DEBUG_FREED;
  heap->n_watchers++;
  if (care->stack_depth != 0) {
    tarni_stack_prepare();
  }
  return TARN_OK;
}

void tarni_debug_close(tarn_heap *heap) {
  for (uint64_t i = 0; heap->debug != NULL && i < heap->debug->n_lists; i++) {
    while (heap->debug->records[i] != NULL) {
      tarni_record *record = heap->debug->records[i];
      heap->debug->records[i] = record->next;
      if (record->is_freed) {
        record->uses = NULL; /* the list of pending blocks has it */
      }
      tarni_record_free(record);
    }
  }
  if (heap->debug != NULL) {
    free(heap->debug->records);
    free(heap->debug);
  }
}
