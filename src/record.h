/* SPDX-License-Identifier: MIT
 *
 * The records of blocks of heaps that look for mistakes: what debug.c, guard.c and quarantine.c
 * know of each other. */
#ifndef TARNI_RECORD_H
#define TARNI_RECORD_H

#include "debug.h"

enum {
  DEBUG_LISTS = 1 << 14,  /* of records, at first */
  DEBUG_READ = 1 << 20,   /* bytes read back at once */
  DEBUG_TRAIL_TEXT = 230, /* of all that is known about a block */
};

/* Allocation and free, by which frames of a record go. */
enum { TRAIL_ALLOC = 0, TRAIL_FREE = 1, TRAILS = 2 };

typedef struct tarni_record {
  struct tarni_record *next; /* in its list */
  uint64_t offset, bytes;    /* of the block */
  uint64_t requested;
  tarni_uses *uses; /* for its quarantine; once in it, the list of pending blocks has it */
  struct tarni_record *younger; /* in quarantine */
  bool is_freed;
  bool is_scrubbed; /* at the heap's end: its memory may be gone when that is tried again */
  uint32_t n_frames[TRAILS];
  void *frames[]; /* stack_depth of each */
} tarni_record;

typedef struct tarni_debug {
  /* immutable after create: */
  uint8_t freed; /* what freed blocks are filled with */
  bool fills_freed;
  /* lock HEAP: */
  tarni_record **records;          /* lists by a hash of the offset, */
  uint64_t n_lists;                /* a power of two of them, */
  uint64_t n_records;              /* for so many */
  tarni_record *oldest, *youngest; /* in quarantine */
  uint64_t held_bytes;
  /* lock DRIVER: */
  uint8_t read[DEBUG_READ];
} tarni_debug;

/* ---- record.c: a record for each block ---- */
tarni_record *tarni_record_make(const tarn_heap *heap); /* NULL: no host memory */
void tarni_record_free(tarni_record *record);
/* Where the block's record is, or would be; lock HEAP. */
tarni_record **tarni_record_link(const tarn_heap *heap, uint64_t offset);
void tarni_record_put(tarn_heap *heap, tarni_record *record);
/* Takes it out of the table. */
void tarni_record_remove_locked(tarn_heap *heap, const tarni_record *record);
/* Notes who called. */
void tarni_record_trail(const tarn_heap *heap, tarni_record *record, int trail);
/* "; it was allocated by 0x1 0x2"; nothing where no stacks are kept. */
void tarni_record_describe(const tarn_heap *heap, const tarni_record *record, char *text,
                           size_t capacity);

/* ---- guard.c: bytes that nobody may write ---- */
typedef struct tarni_damage { /* bytes that are not what they were filled with */
  uint64_t n, first;          /* how many; offset of the first in the range */
  uint8_t value;              /* what it is */
} tarni_damage;

/* Compares a range of the device with the byte that it was filled with. pre: the work that used the
 * range is complete. */
tarn_status tarni_damage_find_grow(tarn_heap *heap, uint64_t offset, uint64_t bytes, uint8_t value,
                                   tarni_damage *damage);
tarn_status tarni_guard_write(tarn_heap *heap, const tarni_record *record, tarn_stream stream);
/* pre: the work that used the block is complete. */
tarn_status tarni_guard_look_grow(tarn_heap *heap, const tarni_record *record,
                                  const char *operation);
/* Looks at the guard of a block that is being freed; waits for the stream. */
tarn_status tarni_guard_check(tarn_heap *heap, const tarni_record *record, tarn_stream stream);

static inline uint64_t tarni_guard_bytes(const tarni_record *record) {
  return record->bytes - record->requested;
}

/* ---- quarantine.c: freed blocks that are kept out of use ---- */
void tarni_quarantine_enter_locked(tarn_heap *heap, tarni_record *record, tarni_index lane);
/* Lets blocks go, oldest first, until at most `keep` bytes are held. Each is looked at. */
void tarni_quarantine_trim_grow(tarn_heap *heap, uint64_t keep);
tarn_status tarni_freed_fail(const tarn_heap *heap, const tarni_record *record,
                             const tarni_damage *damage, const char *operation);

#endif
