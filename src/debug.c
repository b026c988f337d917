/* SPDX-License-Identifier: MIT
 *
 * Heaps that look for mistakes, and heaps that leave no content behind: fills of blocks when they
 * are allocated and freed, guards behind blocks, a quarantine of freed ones, stacks of return
 * addresses, and zeros for the next owner. Such a heap is watched from its making (watch.c), so
 * every call comes here.
 *
 * Owns a record for each block: what was asked for, where, and for how long it stays in quarantine.
 * A record and all that freeing needs are made when the block is allocated (I7). A block in
 * quarantine is a pending one (use.c) that is held back. Fills are in the order of the stream that
 * allocates or frees; where other streams were named by tarn_use, that stream waits for them first.
 * Reading back waits for the work before it: it is what these options cost.
 *
 * Locks: heap->lock for records and the quarantine; heap->grow for looking at what leaves it. */
#include "debug.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/stack.h"

enum {
  DEBUG_BUCKETS = 1 << 14,
  DEBUG_GUARD = 0xa7,     /* the byte of guards */
  DEBUG_FREED = 0xdd,     /* the byte of freed blocks, where none is chosen */
  DEBUG_READ = 1 << 20,   /* bytes read back at once */
  DEBUG_STACK_TEXT = 190, /* of a stack in a message */
  DEBUG_TRAIL_TEXT = 230, /* of all that is known about a block */
};

/* Allocation and free, by which frames of a record go. */
enum { TRAIL_ALLOC = 0, TRAIL_FREE = 1, TRAILS = 2 };

typedef struct debug_record {
  struct debug_record *next; /* in its bucket */
  uint64_t offset, bytes;    /* of the block */
  uint64_t requested;
  tarni_uses *uses; /* for its quarantine; once in it, the list of pending blocks has it */
  struct debug_record *younger; /* in quarantine */
  bool is_freed;
  bool is_scrubbed; /* at the heap's end: its memory may be gone when that is tried again */
  uint32_t n_frames[TRAILS];
  void *frames[]; /* stack_depth of each */
} debug_record;

typedef struct tarni_debug {
  /* immutable after create: */
  uint8_t freed; /* what freed blocks are filled with */
  bool fills_freed;
  /* lock HEAP: */
  debug_record *records[DEBUG_BUCKETS];
  debug_record *oldest, *youngest; /* in quarantine */
  uint64_t held_bytes;
  /* lock DRIVER: */
  uint8_t read[DEBUG_READ];
} tarni_debug;

/* ---- Records ---- */

static debug_record **record_link(const tarn_heap *heap, uint64_t offset) {
  debug_record **link =
      &heap->debug->records[(offset >> 8) * 0x9e3779b97f4a7c15u >> 50 & (DEBUG_BUCKETS - 1)];
  while (*link != NULL && (*link)->offset != offset) {
    link = &(*link)->next;
  }
  return link;
}

static debug_record *record_make(const tarn_heap *heap) {
  const size_t n_frames = (size_t)TRAILS * heap->care.stack_depth;
  debug_record *record = calloc(1, sizeof(*record) + n_frames * sizeof(record->frames[0]));
  if (record != NULL && heap->care.quarantine_bytes != 0) {
    record->uses = calloc(1, sizeof(*record->uses));
    if (record->uses == NULL) {
      free(record);
      return NULL;
    }
  }
  return record;
}

static void record_free(debug_record *record) {
  if (record != NULL) {
    free(record->uses);
    free(record);
  }
}

/* Whoever takes a block out of use takes its record, too: a new block's place has none. */
static void record_put(tarn_heap *heap, debug_record *record) {
  tarni_lock_acquire(&heap->lock);
  debug_record **link = record_link(heap, record->offset);
  tarn_assert(*link == NULL && "a block has one record");
  record->next = NULL;
  *link = record;
  tarni_lock_release(&heap->lock);
}

static void record_trail(const tarn_heap *heap, debug_record *record, int trail) {
  const uint32_t depth = heap->care.stack_depth;
  if (depth != 0) {
    record->n_frames[trail] = tarni_stack_take(&record->frames[(size_t)trail * depth], depth);
  }
}

static char *trail_text(const tarn_heap *heap, const debug_record *record, int trail,
                        char buffer[DEBUG_STACK_TEXT]) {
  return tarni_stack_text(&record->frames[(size_t)trail * heap->care.stack_depth],
                          record->n_frames[trail], buffer, DEBUG_STACK_TEXT);
}

/* "; allocated by 0x1 0x2"; nothing where no stacks are kept. */
static void record_describe(const tarn_heap *heap, const debug_record *record, char *text,
                            size_t capacity) {
  char frames[DEBUG_STACK_TEXT];
  const int trail = record->is_freed ? TRAIL_FREE : TRAIL_ALLOC;
  text[0] = '\0';
  if (record->n_frames[trail] != 0) {
    (void)snprintf(text, capacity, "; it was %s by %s", record->is_freed ? "freed" : "allocated",
                   trail_text(heap, record, trail, frames));
  }
}

void tarni_debug_describe_locked(const tarn_heap *heap, uint64_t offset, char *text,
                                 size_t capacity) {
  text[0] = '\0';
  if (heap->debug != NULL && *record_link(heap, offset) != NULL) {
    record_describe(heap, *record_link(heap, offset), text, capacity);
  }
}

uint64_t tarni_debug_requested_locked(const tarn_heap *heap, uint64_t offset) {
  const debug_record *record = heap->debug != NULL ? *record_link(heap, offset) : NULL;
  return record != NULL && !record->is_freed ? record->requested : 0;
}

uint32_t tarni_debug_frames_locked(const tarn_heap *heap, uint64_t offset, void **frames,
                                   uint32_t capacity) {
  const debug_record *record = heap->debug != NULL ? *record_link(heap, offset) : NULL;
  if (record == NULL) {
    return 0;
  }
  const uint32_t n = (uint32_t)tarni_min(record->n_frames[TRAIL_ALLOC], capacity);
  memcpy(frames, record->frames, n * sizeof(*frames));
  return n;
}

/* ---- Findings ---- */

typedef struct debug_damage { /* bytes that are not what they were filled with */
  uint64_t n, first;          /* how many; offset of the first in the range */
  uint8_t value;              /* what it is */
} debug_damage;

/* Compares a range of the device with the byte that it was filled with. pre: heap->grow is held,
 * and the work that used the range is complete. */
static tarn_status range_compare(tarn_heap *heap, uint64_t offset, uint64_t bytes, uint8_t value,
                                 debug_damage *damage) {
  uint8_t *read = heap->debug->read;
  *damage = (debug_damage){0};
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

static tarn_status guard_fail(const tarn_heap *heap, const debug_record *record,
                              const debug_damage *damage, const char *operation) {
  char trail[DEBUG_TRAIL_TEXT];
  const tarni_facts facts = {.device = heap->port->device.name};
  record_describe(heap, record, trail, sizeof(trail));
  return tarni_fail(
      TARN_CORRUPT, operation, &facts,
      "Find what writes behind the block; its guard is whole again.",
      "%llu bytes behind the block of %llu bytes at 0x%llx were written, the first at "
      "offset %llu: 0x%02x%s",
      (unsigned long long)damage->n, (unsigned long long)record->requested,
      (unsigned long long)(heap->base + record->offset),
      (unsigned long long)(record->requested + damage->first), damage->value, trail);
}

static tarn_status freed_fail(const tarn_heap *heap, const debug_record *record,
                              const debug_damage *damage, const char *operation) {
  char trail[DEBUG_TRAIL_TEXT];
  const tarni_facts facts = {.device = heap->port->device.name};
  record_describe(heap, record, trail, sizeof(trail));
  return tarni_fail(TARN_CORRUPT, operation, &facts, "Find what uses the block after its free.",
                    "%llu bytes of the block of %llu bytes at 0x%llx were written after its free, "
                    "the first at offset %llu: 0x%02x%s",
                    (unsigned long long)damage->n, (unsigned long long)record->requested,
                    (unsigned long long)(heap->base + record->offset),
                    (unsigned long long)damage->first, damage->value, trail);
}

/* Tells of a mistake that no caller is to blame for. The thread's last error stays as it was. */
static void tell(tarn_heap *heap, const debug_record *record, const debug_damage *damage) {
  tarn_error before = {.size = sizeof(before)};
  (void)tarn_last_error(&before);
  (void)freed_fail(heap, record, damage, "tarn_heap");
  if (heap->config.on_misuse != NULL) {
    heap->config.on_misuse(heap, tarn_last_message(), heap->config.on_misuse_user);
  } else {
    (void)fprintf(stderr, "tarn: %s\n", tarn_last_message());
  }
  if (before.status != TARN_OK) {
    (void)tarni_fail_again(&before);
  }
}

/* ---- Guards ---- */

static uint64_t guard_bytes(const debug_record *record) {
  return record->bytes - record->requested;
}

static tarn_status guard_write(tarn_heap *heap, const debug_record *record, tarn_stream stream) {
  if (heap->care.guard_bytes == 0 || guard_bytes(record) == 0) {
    return TARN_OK;
  }
  return tarni_port_fill(heap->port, heap->base + record->offset + record->requested, DEBUG_GUARD,
                         guard_bytes(record), stream);
}

/* pre: the work that used the block is complete. */
static tarn_status guard_look_grow(tarn_heap *heap, const debug_record *record,
                                   const char *operation) {
  debug_damage damage;
  TARN_TRY(range_compare(heap, record->offset + record->requested, guard_bytes(record), DEBUG_GUARD,
                         &damage));
  if (damage.n == 0) {
    return TARN_OK;
  }
  TARNI_RELAXED(heap->port);
  (void)tarni_port_fill_sync(heap->port, heap->base + record->offset + record->requested,
                             DEBUG_GUARD, guard_bytes(record));
  return guard_fail(heap, record, &damage, operation);
}

/* A stream that is being captured is not waited for, and a capture may keep the default stream, on
 * which memory is read: then nobody looks. */
static tarn_status guard_check(tarn_heap *heap, const debug_record *record, tarn_stream stream) {
  if (heap->care.guard_bytes == 0 || guard_bytes(record) == 0) {
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
  const tarn_status status = guard_look_grow(heap, record, "tarn_free");
  tarni_lock_release(&heap->grow);
  return status;
}

/* ---- Allocating ---- */

/* Everything that a block gets before its owner does, in the order of the stream. */
static tarn_status block_dress(tarn_heap *heap, const debug_record *record, tarn_stream stream) {
  const tarn_ptr block = heap->base + record->offset;
  if (heap->care.is_secure) {
    TARN_TRY(tarni_port_fill(heap->port, block, 0, record->bytes, stream));
  }
  if (heap->care.fill_alloc != 0) {
    TARN_TRY(tarni_port_fill(heap->port, block, heap->care.fill_alloc, record->requested, stream));
  }
  return guard_write(heap, record, stream);
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
  debug_record *record = record_make(heap);
  if (record == NULL) {
    return record_fail(heap);
  }
  tarn_status status = tarni_alloc_plain(heap, padded, alignment, stream, block);
  if (status != TARN_OK) {
    record_free(record);
    return status;
  }
  tarni_block found = {0};
  tarni_lock_acquire(&heap->lock);
  (void)tarni_block_find_locked(heap, *block - heap->base, &found);
  tarni_lock_release(&heap->lock);
  record->offset = found.offset;
  record->bytes = found.bytes;
  record->requested = bytes;
  record_trail(heap, record, TRAIL_ALLOC);
  status = block_dress(heap, record, stream);
  if (status != TARN_OK) {
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    (void)tarni_free_known(heap, record->offset, stream);
    record_free(record);
    *block = 0;
    return tarni_fail_again(&error);
  }
  record_put(heap, record);
  return TARN_OK;
}

/* ---- Quarantine ---- */

static void quarantine_enter_locked(tarn_heap *heap, debug_record *record, tarni_index lane) {
  tarni_debug *debug = heap->debug;
  record->is_freed = true;
  record->younger = NULL;
  *(debug->youngest != NULL ? &debug->youngest->younger : &debug->oldest) = record;
  debug->youngest = record;
  debug->held_bytes += record->bytes;
  tarni_uses_hold_locked(heap, record->uses, record->offset, lane);
}

/* The block leaves: it is free once what was given to its stream before its free is complete. */
static void quarantine_leave_locked(tarn_heap *heap, debug_record *record) {
  tarni_debug *debug = heap->debug;
  debug->oldest = record->younger;
  debug->youngest = debug->oldest != NULL ? debug->youngest : NULL;
  debug->held_bytes -= record->bytes;
  tarn_assert(record->uses != NULL && "it is in quarantine");
  record->uses->is_held = false;
  record->uses = NULL; /* the list of pending blocks has it */
  *record_link(heap, record->offset) = record->next;
}

/* Waits, on the host, for what the oldest block's stream was given before its free. False: that
 * cannot be seen, and the block stays. */
static bool oldest_await_grow(tarn_heap *heap, const debug_record *record) {
  tarn_assert(record->uses != NULL && "it is in quarantine");
  tarni_order order = {0};
  (void)tarni_order_add(&order, record->uses->free_lane, record->uses->free_ticket);
  bool is_complete;
  do {
    tarni_lock_acquire(&heap->lock);
    is_complete = tarni_order_is_complete_locked(heap, &order);
    tarni_lock_release(&heap->lock);
  } while (!is_complete && tarni_order_fence_grow(heap, &order) == TARN_OK &&
           tarni_fences_wait_grow(heap));
  return is_complete;
}

/* Lets blocks go, oldest first, until at most `keep` bytes are held. Each is looked at. */
static void quarantine_trim_grow(tarn_heap *heap, uint64_t keep) {
  tarni_debug *debug = heap->debug;
  debug_record *gone = NULL;
  for (;;) {
    tarni_lock_acquire(&heap->lock);
    debug_record *record = debug->held_bytes > keep ? debug->oldest : NULL;
    tarni_lock_release(&heap->lock);
    debug_damage damage;
    if (record == NULL || !oldest_await_grow(heap, record) ||
        range_compare(heap, record->offset, record->bytes, debug->freed, &damage) != TARN_OK) {
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
    debug_record *next = gone->next; /* NOLINT(clang-analyzer-unix.Malloc): each is there once */
    record_free(gone);
    gone = next;
  }
  tarni_uses_reap_grow(heap);
}

void tarni_debug_release_locked(tarn_heap *heap) {
  while (heap->debug != NULL && heap->debug->oldest != NULL) {
    debug_record *record = heap->debug->oldest;
    quarantine_leave_locked(heap, record);
    record_free(record);
  }
}

static bool is_quarantined(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const bool is = heap->debug->oldest != NULL;
  tarni_lock_release(&heap->lock);
  return is;
}

void tarni_debug_drain_grow(tarn_heap *heap) {
  if (heap->debug != NULL && is_quarantined(heap) && !tarni_is_asleep(heap)) {
    tarn_error error = {.size = sizeof(error)}; /* of the caller: that of looking is nobody's */
    (void)tarn_last_error(&error);
    quarantine_trim_grow(heap, 0);
    if (error.status != TARN_OK) {
      (void)tarni_fail_again(&error);
    }
  }
}

/* ---- Freeing ---- */

/* What a block goes through before it is free, in the order of the stream: where only stacks are
 * kept, nothing. */
static tarn_status block_undress(tarn_heap *heap, const debug_record *record, tarn_stream stream,
                                 tarni_index lane) {
  if (heap->care.guard_bytes == 0 && !heap->debug->fills_freed) {
    return TARN_OK;
  }
  TARN_TRY(tarni_uses_absorb(heap, record->offset, lane, stream));
  TARN_TRY(guard_check(heap, record, stream));
  return heap->debug->fills_freed ? tarni_port_fill(heap->port, heap->base + record->offset,
                                                    heap->debug->freed, record->bytes, stream)
                                  : TARN_OK;
}

static void record_unlink(tarn_heap *heap, debug_record *record) {
  tarni_lock_acquire(&heap->lock);
  *record_link(heap, record->offset) = record->next;
  tarni_lock_release(&heap->lock);
}

/* The record goes before the block can be somebody else's. */
static tarn_status free_at_once(tarn_heap *heap, debug_record *record, tarn_stream stream) {
  record_unlink(heap, record);
  const tarn_status status = tarni_free_known(heap, record->offset, stream);
  if (status != TARN_OK) {
    record_put(heap, record);
    return status;
  }
  record_free(record);
  return TARN_OK;
}

/* Where the block cannot be undressed in the order of its streams: one of them is gone, or there is
 * no memory. A secure heap clears it all the same, and where other streams used it when the device
 * has nothing to do; not if there is no memory even for that. */
static tarn_status free_undressed(tarn_heap *heap, debug_record *record, tarn_stream stream) {
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

static tarn_status free_into_quarantine(tarn_heap *heap, debug_record *record, tarni_index lane,
                                        tarn_stream stream) {
  record_trail(heap, record, TRAIL_FREE);
  tarni_lock_acquire(&heap->lock);
  const bool is_its = tarni_lane_is_locked(heap, lane, stream);
  if (is_its) {
    quarantine_enter_locked(heap, record, lane);
  }
  const bool is_full = heap->debug->held_bytes > heap->care.quarantine_bytes;
  tarni_lock_release(&heap->lock);
  if (!is_its) {
    return TARNI_RETIRED;
  }
  if (is_full) {
    tarni_lock_acquire(&heap->grow);
    quarantine_trim_grow(heap, heap->care.quarantine_bytes);
    tarni_lock_release(&heap->grow);
  }
  return TARN_OK;
}

/* TARNI_RETIRED: the lane is not the stream's any more, and the block is as it was. */
static tarn_status free_in_order(tarn_heap *heap, debug_record *record, tarn_stream stream,
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
  debug_record *record = *record_link(heap, offset);
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

/* Freed inside a capture: nothing can be looked at or filled then, and the memory becomes somebody
 * else's without a call of this file. */
void tarni_debug_forget_locked(tarn_heap *heap, uint64_t offset) {
  debug_record **link = heap->debug != NULL ? record_link(heap, offset) : NULL;
  debug_record *record = link != NULL ? *link : NULL;
  if (record != NULL && !record->is_freed) {
    *link = record->next;
    record_free(record);
  }
}

/* ---- The whole heap ---- */

/* A live block's guard, or a freed block's fill. */
static tarn_status record_check_grow(tarn_heap *heap, const debug_record *record) {
  if (!record->is_freed) {
    return heap->care.guard_bytes != 0 && guard_bytes(record) != 0
               ? guard_look_grow(heap, record, "tarn_heap_check")
               : TARN_OK;
  }
  debug_damage damage;
  TARN_TRY(range_compare(heap, record->offset, record->bytes, heap->debug->freed, &damage));
  return damage.n == 0 ? TARN_OK : freed_fail(heap, record, &damage, "tarn_heap_check");
}

tarn_status tarni_debug_check_grow(tarn_heap *heap) {
  if (heap->debug == NULL || tarni_is_asleep(heap) ||
      (heap->care.guard_bytes == 0 && heap->care.quarantine_bytes == 0)) {
    return TARN_OK;
  }
  TARN_TRY(tarni_lanes_finish_grow(heap));
  for (uint32_t i = 0; i < DEBUG_BUCKETS; i++) {
    for (const debug_record *record = heap->debug->records[i]; record != NULL;
         record = record->next) {
      TARN_TRY(record_check_grow(heap, record));
    }
  }
  return TARN_OK;
}

/* For each live block, on the default stream, and waits for it. */
static tarn_status each_live_grow(tarn_heap *heap,
                                  tarn_status (*act)(tarn_heap *heap, debug_record *record)) {
  TARN_TRY(tarni_legacy_check(heap, TARNI_STREAM_LEGACY));
  for (uint32_t i = 0; i < DEBUG_BUCKETS; i++) {
    for (debug_record *record = heap->debug->records[i]; record != NULL; record = record->next) {
      TARN_TRY(!record->is_freed ? act(heap, record) : TARN_OK);
    }
  }
  TARNI_RELAXED(heap->port);
  return tarni_port_stream_sync(heap->port, TARNI_STREAM_LEGACY);
}

static tarn_status record_scrub(tarn_heap *heap, debug_record *record) {
  return tarni_port_fill(heap->port, heap->base + record->offset, 0, record->bytes,
                         TARNI_STREAM_LEGACY);
}

static tarn_status record_scrub_once(tarn_heap *heap, debug_record *record) {
  const tarn_status status = record->is_scrubbed ? TARN_OK : record_scrub(heap, record);
  record->is_scrubbed = status == TARN_OK;
  return status;
}

static tarn_status record_dress(tarn_heap *heap, debug_record *record) {
  TARN_TRY(heap->care.is_secure ? record_scrub(heap, record) : TARN_OK);
  return guard_write(heap, record, TARNI_STREAM_LEGACY);
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

void tarni_debug_leaks(const tarn_heap *heap, tarn_ptr base, char *text, size_t capacity) {
  const debug_record *largest = NULL;
  text[0] = '\0';
  for (uint32_t i = 0; heap->debug != NULL && i < DEBUG_BUCKETS; i++) {
    for (const debug_record *record = heap->debug->records[i]; record != NULL;
         record = record->next) {
      if (!record->is_freed && (largest == NULL || record->requested > largest->requested)) {
        largest = record;
      }
    }
  }
  if (largest != NULL) {
    char trail[DEBUG_TRAIL_TEXT];
    record_describe(heap, largest, trail, sizeof(trail));
    const unsigned long long address = base + largest->offset;
    (void)snprintf(text, capacity, "; the largest of %llu bytes at 0x%llx%s",
                   (unsigned long long)largest->requested, address, trail);
  }
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
  if (heap->debug == NULL) {
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
  for (uint32_t i = 0; heap->debug != NULL && i < DEBUG_BUCKETS; i++) {
    while (heap->debug->records[i] != NULL) {
      debug_record *record = heap->debug->records[i];
      heap->debug->records[i] = record->next;
      if (record->is_freed) {
        record->uses = NULL; /* the list of pending blocks has it */
      }
      record_free(record);
    }
  }
  free(heap->debug);
}
