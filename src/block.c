/* SPDX-License-Identifier: MIT
 *
 * What a pointer is: look-ups off the hot path, for questions and for refusing wrong use. */
#include "base/bits.h"
#include "bucket.h"
#include "debug.h"

enum { BLOCK_TRAIL_TEXT = 230 };

bool tarni_block_find_locked(const tarn_heap *heap, uint64_t offset, tarni_block *block) {
  if (heap->buckets != NULL) {
    return tarni_bucket_find_locked(heap, offset, block);
  }
  const tarni_index index = offset < heap->size ? tarni_slab_at_locked(heap, offset) : 0;
  if (index == 0) {
    return false;
  }
  const tarni_extent *slab = tarni_extent_at(heap, index);
  block->extent = index;
  if (slab->class_index == TARNI_CLASS_COUNT) {
    if (offset - slab->offset >= tarni_large_bytes(slab)) {
      return false; /* what it has to spare */
    }
    block->offset = slab->offset;
    block->bytes = tarni_large_bytes(slab);
    block->is_live = slab->state == TARNI_BLOCK_LIVE;
    return true;
  }
  const uint64_t bytes = (uint64_t)slab->block_bytes_256 << 8;
  const uint64_t position = (offset - slab->offset) / bytes;
  if (position >= slab->n_blocks) {
    return false; /* the rest of a slab that no block fits into */
  }
  block->offset = slab->offset + position * bytes;
  block->bytes = bytes;
  block->is_live = heap->states[block->offset >> 8] != 0;
  return true;
}

bool tarni_block_is_live(tarn_heap *heap, uint64_t offset) {
  tarni_block block = {0};
  tarni_lock_acquire(&heap->lock);
  const bool is_live =
      tarni_block_find_locked(heap, offset, &block) && block.is_live && block.offset == offset;
  tarni_lock_release(&heap->lock);
  return is_live;
}

bool tarni_block_size_of(const tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                         uint64_t *size) {
  if (heap->buckets != NULL) {
    return tarni_bucket_size(heap, bytes, alignment, size);
  }
  const uint64_t least = tarni_max(bytes, alignment);
  if (alignment > TARNI_ALIGNMENT && alignment <= TARNI_GRANULE &&
      least <= TARNI_SHARED_BLOCK_MAX) {
    *size = (uint64_t)1 << (tarni_log2(least - 1) + 1);
    return true;
  }
  if (bytes <= TARNI_SMALL_MAX && alignment <= TARNI_ALIGNMENT) {
    *size = tarni_class_size(tarni_class_of(bytes));
    return true;
  }
  return tarni_align_up_checked(bytes, TARNI_GRANULE, size);
}

tarn_status tarni_block_refuse(tarn_heap *heap, tarn_ptr pointer, const char *operation) {
  const uint64_t offset = pointer - heap->base;
  tarni_block block = {0};
  tarni_lock_acquire(&heap->lock);
  const bool is_block = tarni_block_find_locked(heap, offset, &block);
  char trail[BLOCK_TRAIL_TEXT];
  tarni_record_describe_locked(heap, is_block ? block.offset : offset, trail, sizeof(trail));
  tarni_lock_release(&heap->lock);
  const tarni_facts facts = {.device = heap->port->device.name};
  const unsigned long long address = pointer;
  if (is_block && block.is_live) {
    return tarni_fail(TARN_INTERIOR, operation, &facts, "Pass the address that tarn_alloc gave.",
                      "0x%llx is %llu bytes into the block of %llu bytes at 0x%llx%s", address,
                      (unsigned long long)(offset - block.offset), (unsigned long long)block.bytes,
                      (unsigned long long)(heap->base + block.offset), trail);
  }
  if (is_block || offset < heap->size) { /* all of the reservation comes from this heap */
    return tarni_fail(TARN_DOUBLE_FREE, operation, &facts,
                      "Free a block once, and do not use it afterwards.",
                      "0x%llx is an address of this heap, but in no live block%s", address, trail);
  }
  if (heap->buckets != NULL) {
    return tarni_fail(TARN_FOREIGN, operation, &facts,
                      "Give a block back to the heap that it came from, once.",
                      "0x%llx is in no block that this heap has, or has kept", address);
  }
  return tarni_fail(
      TARN_FOREIGN, operation, &facts, "Give a block back to the heap that it came from.",
      "0x%llx is no address of this heap, which has 0x%llx to 0x%llx", address,
      (unsigned long long)heap->base, (unsigned long long)(heap->base + heap->size - 1));
}

tarn_status tarn_block_get_info(tarn_heap *heap, tarn_ptr pointer, tarn_block_info *info) {
  static const tarn_block_info empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(info, &empty, sizeof(empty), "tarn_block_get_info"));
  TARN_TRY(tarni_heap_given(heap, "tarn_block_get_info"));
  tarni_block block = {0};
  tarni_lock_acquire(&heap->lock);
  const bool is_block = tarni_block_find_locked(heap, pointer - heap->base, &block);
  tarn_block_info found = {
      .size = sizeof(found), .address = heap->base + block.offset, .usable_bytes = block.bytes};
  if (is_block && block.is_live && heap->debug != NULL) {
    found.requested_bytes = tarni_record_requested_locked(heap, block.offset);
    found.n_frames =
        tarni_record_frames_locked(heap, block.offset, found.frames, TARN_BLOCK_FRAMES);
  }
  tarni_lock_release(&heap->lock);
  tarn_block_info captured = {.size = sizeof(captured)};
  if (tarni_arena_block(heap, pointer, &captured)) {
    return tarni_struct_out(info, &captured, sizeof(captured), "tarn_block_get_info");
  }
  if (!is_block || !block.is_live) {
    return tarni_fail(TARN_FOREIGN, "tarn_block_get_info", NULL,
                      "Ask about pointers into live blocks of this heap.",
                      "0x%llx is in no live block of this heap", (unsigned long long)pointer);
  }
  return tarni_struct_out(info, &found, sizeof(found), "tarn_block_get_info");
}
