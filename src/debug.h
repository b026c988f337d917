/* SPDX-License-Identifier: MIT
 *
 * What the rest of the heap asks of heaps that look for mistakes: debug.c, and what it is made of,
 * record.c and quarantine.c. heap->debug is NULL where no such option is on. */
#ifndef TARNI_DEBUG_H
#define TARNI_DEBUG_H

#include "internal.h"

tarn_status tarni_debug_open(tarn_heap *heap);
void tarni_debug_close(tarn_heap *heap);

/* As tarni_alloc_plain and tarni_free_plain, with all that the options want. */
tarn_status tarni_debug_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block);
tarn_status tarni_debug_free(tarn_heap *heap, uint64_t offset, tarn_stream stream);

/* Looks at all guards and at all that is in quarantine; waits for all work before. */
tarn_status tarni_debug_check_grow(tarn_heap *heap);
/* What live blocks get anew whose content was dropped: zeros in a secure heap, guards. */
tarn_status tarni_debug_dress_grow(tarn_heap *heap);
/* Zeros in all live blocks of a secure heap, and waits for it. pre: no work uses them. */
tarn_status tarni_debug_scrub_grow(tarn_heap *heap);
tarn_status tarni_debug_scrub_once_grow(tarn_heap *heap); /* those where it has not succeeded yet */

/* ---- quarantine.c ---- */
/* Lets go of all that is in quarantine, as far as it can be looked at. */
void tarni_quarantine_drain_grow(tarn_heap *heap);
/* Lets go of it without a look: its content is about to go. */
void tarni_quarantine_release_locked(tarn_heap *heap);

/* ---- record.c ---- */
/* What is known about a block, as the end of a sentence; empty: nothing. */
void tarni_record_describe_locked(const tarn_heap *heap, uint64_t offset, char *text,
                                  size_t capacity);
/* The same about the largest block that is still live at the heap's end; its memory may be gone. */
void tarni_record_leaks(const tarn_heap *heap, tarn_ptr base, char *text, size_t capacity);
/* The block is free by another way: nothing is known of it any more. */
void tarni_record_forget_locked(tarn_heap *heap, uint64_t offset);
/* What was asked for; 0: it is not known. */
uint64_t tarni_record_requested_locked(const tarn_heap *heap, uint64_t offset);
/* The stack of the allocation. */
uint32_t tarni_record_frames_locked(const tarn_heap *heap, uint64_t offset, void **frames,
                                    uint32_t capacity);

#endif
