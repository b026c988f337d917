/* SPDX-License-Identifier: MIT
 *
 * The records of blocks of heaps that look for mistakes: a hash table by offset. A record and all
 * that freeing needs are made when the block is allocated (I7). Knows what was asked for, and the
 * stacks of who allocated and freed. Lock: heap->lock for the table. */
#include "record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/stack.h"

enum { RECORD_STACK_TEXT = 190 }; /* of a stack in a message */

static tarni_record **list_of(const tarni_debug *debug, uint64_t offset) {
  return &debug->records[(offset >> 8) * 0x9e3779b97f4a7c15u >> 32 & (debug->n_lists - 1)];
}

tarni_record **tarni_record_link(const tarn_heap *heap, uint64_t offset) {
  tarni_record **link = list_of(heap->debug, offset);
  while (*link != NULL && (*link)->offset != offset) {
    link = &(*link)->next;
  }
  return link;
}

tarni_record *tarni_record_make(const tarn_heap *heap) {
  const size_t n_frames = (size_t)TRAILS * heap->care.stack_depth;
  tarni_record *record = calloc(1, sizeof(*record) + n_frames * sizeof(record->frames[0]));
  if (record != NULL && heap->care.quarantine_bytes != 0) {
    record->uses = calloc(1, sizeof(*record->uses));
    if (record->uses == NULL) {
      free(record);
      return NULL;
    }
  }
  return record;
}

void tarni_record_free(tarni_record *record) {
  if (record != NULL) {
    free(record->uses);
    free(record);
  }
}

/* As many lists as there are records: they stay short. Without host memory they become longer. */
static void records_spread_locked(tarni_debug *debug) {
  const uint64_t before = debug->n_lists;
  tarni_record **spread =
      debug->n_records < before ? NULL : calloc((size_t)before * 2, sizeof(tarni_record *));
  if (spread == NULL) {
    return;
  }
  tarni_record **lists = debug->records;
  debug->records = spread;
  debug->n_lists = before * 2;
  for (uint64_t i = 0; i < before; i++) {
    while (lists[i] != NULL) {
      tarni_record *record = lists[i];
      lists[i] = record->next;
      tarni_record **list = list_of(debug, record->offset);
      record->next = *list;
      *list = record;
    }
  }
  free(lists);
}

void tarni_record_remove_locked(tarn_heap *heap, const tarni_record *record) {
  *tarni_record_link(heap, record->offset) = record->next;
  heap->debug->n_records--;
}

/* Whoever takes a block out of use takes its record, too: a new block's place has none. */
void tarni_record_put(tarn_heap *heap, tarni_record *record) {
  tarni_lock_acquire(&heap->lock);
  records_spread_locked(heap->debug);
  heap->debug->n_records++;
  tarni_record **link = tarni_record_link(heap, record->offset);
  tarn_assert(*link == NULL && "a block has one record");
  record->next = NULL;
  *link = record;
  tarni_lock_release(&heap->lock);
}

void tarni_record_trail(const tarn_heap *heap, tarni_record *record, int trail) {
  const uint32_t depth = heap->care.stack_depth;
  if (depth != 0) {
    record->n_frames[trail] = tarni_stack_take(&record->frames[(size_t)trail * depth], depth);
  }
}

static char *trail_text(const tarn_heap *heap, const tarni_record *record, int trail,
                        char buffer[RECORD_STACK_TEXT]) {
  return tarni_stack_text(&record->frames[(size_t)trail * heap->care.stack_depth],
                          record->n_frames[trail], buffer, RECORD_STACK_TEXT);
}

void tarni_record_describe(const tarn_heap *heap, const tarni_record *record, char *text,
                           size_t capacity) {
  char frames[RECORD_STACK_TEXT];
  const int trail = record->is_freed ? TRAIL_FREE : TRAIL_ALLOC;
  text[0] = '\0';
  if (record->n_frames[trail] != 0) {
    (void)snprintf(text, capacity, "; it was %s by %s", record->is_freed ? "freed" : "allocated",
                   trail_text(heap, record, trail, frames));
  }
}

void tarni_record_describe_locked(const tarn_heap *heap, uint64_t offset, char *text,
                                  size_t capacity) {
  text[0] = '\0';
  if (heap->debug != NULL && *tarni_record_link(heap, offset) != NULL) {
    tarni_record_describe(heap, *tarni_record_link(heap, offset), text, capacity);
  }
}

uint64_t tarni_record_requested_locked(const tarn_heap *heap, uint64_t offset) {
  const tarni_record *record = heap->debug != NULL ? *tarni_record_link(heap, offset) : NULL;
  return record != NULL && !record->is_freed ? record->requested : 0;
}

uint32_t tarni_record_frames_locked(const tarn_heap *heap, uint64_t offset, void **frames,
                                    uint32_t capacity) {
  const tarni_record *record = heap->debug != NULL ? *tarni_record_link(heap, offset) : NULL;
  if (record == NULL) {
    return 0;
  }
  const uint32_t n = (uint32_t)tarni_min(record->n_frames[TRAIL_ALLOC], capacity);
  memcpy(frames, record->frames, n * sizeof(*frames));
  return n;
}

void tarni_record_leaks(const tarn_heap *heap, tarn_ptr base, char *text, size_t capacity) {
  const tarni_record *largest = NULL;
  text[0] = '\0';
  for (uint64_t i = 0; heap->debug != NULL && i < heap->debug->n_lists; i++) {
    for (const tarni_record *record = heap->debug->records[i]; record != NULL;
         record = record->next) {
      if (!record->is_freed && (largest == NULL || record->requested > largest->requested)) {
        largest = record;
      }
    }
  }
  if (largest != NULL) {
    char trail[DEBUG_TRAIL_TEXT];
    tarni_record_describe(heap, largest, trail, sizeof(trail));
    const unsigned long long address = base + largest->offset;
    (void)snprintf(text, capacity, "; the largest of %llu bytes at 0x%llx%s",
                   (unsigned long long)largest->requested, address, trail);
  }
}

/* Freed inside a capture: nothing can be looked at or filled then, and the memory becomes somebody
 * else's without a call of this file. */
void tarni_record_forget_locked(tarn_heap *heap, uint64_t offset) {
  tarni_record *record = heap->debug != NULL ? *tarni_record_link(heap, offset) : NULL;
  if (record != NULL && !record->is_freed) {
    tarni_record_remove_locked(heap, record);
    tarni_record_free(record);
  }
}
