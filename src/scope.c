/* SPDX-License-Identifier: MIT
 *
 * Scopes: the device blocks of one dispatch. Owns the blocks in its slots and gives each of them
 * back exactly once, through tarn_free, in the order of a stream: that order is what proves, to the
 * heap, when they may be used again. A block whose return fails stays in its slot, live for the
 * heap and so never handed out again (I3).
 *
 * Must not know how the heap keeps blocks. No locks: a scope belongs to one thread at a time. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "internal.h"
#include "tarn/scope.h"
#include "transfer.h"

typedef struct scope_slot {
  tarn_ptr address;
  uint64_t bytes;
  bool is_filled;
  bool is_part;  /* of the block that begins in an earlier slot: goes with it */
  bool is_whole; /* this one, with parts in later slots */
} scope_slot;

struct tarn_scope {
  tarn_heap *heap;
  tarn_stream stream;
  const void *thread; /* tarni_thread_of it */
  uint32_t n_slots;
  scope_slot slots[]; /* n_slots, and one for the parameters */
};

/* ---- Making ---- */

tarn_status tarn_scope_create(tarn_heap *heap, uint32_t n_slots, tarn_stream stream,
                              tarn_scope **scope) {
  const char *operation = "tarn_scope_create";
  if (scope == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass an address for it.",
                      "the scope's address is NULL");
  }
  *scope = NULL;
  TARN_TRY(tarni_heap_given(heap, operation));
  uint64_t bytes = 0;
  tarn_scope *made = NULL;
  if (n_slots != TARN_SCOPE_PARAMETERS &&
      tarni_mul((uint64_t)n_slots + 1, sizeof(scope_slot), &bytes) &&
      tarni_add(bytes, sizeof(*made), &bytes)) {
    made = calloc(1, bytes);
  }
  if (made == NULL) {
    const tarni_facts facts = {.device = heap->port->device.name, .requested_bytes = bytes};
    return tarni_fail(TARN_HOST_MEMORY, operation, &facts, "Split the dispatch.",
                      "no host memory for a scope of %u slots", n_slots);
  }
  made->heap = heap;
  made->stream = stream;
  made->thread = tarni_thread_of(stream);
  made->n_slots = n_slots;
  *scope = made;
  return TARN_OK;
}

static tarn_status scope_given(const tarn_scope *scope, const char *operation) {
  if (scope == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_scope_create.",
                      "the scope is NULL");
  }
  return tarni_heap_given(scope->heap, operation);
}

static tarn_stream scope_stream(const tarn_scope *scope) {
  return tarni_stream_here(scope->stream, scope->thread);
}

/* ---- Slots ---- */

static tarn_status scope_slot_find(const tarn_scope *scope, uint32_t index, const char *operation,
                                   uint32_t *place) {
  TARN_TRY(scope_given(scope, operation));
  *place = index == TARN_SCOPE_PARAMETERS ? scope->n_slots : index;
  if (*place > scope->n_slots || (*place == scope->n_slots && index != TARN_SCOPE_PARAMETERS)) {
    return tarni_fail(TARN_RANGE, operation, NULL,
                      "Make the scope with more slots, or pass TARN_SCOPE_PARAMETERS.",
                      "slot %u of a scope of %u slots", index, scope->n_slots);
  }
  return TARN_OK;
}

static tarn_status scope_slot_find_empty(const tarn_scope *scope, uint32_t index,
                                         const char *operation, uint32_t *place) {
  TARN_TRY(scope_slot_find(scope, index, operation, place));
  const scope_slot *slot = &scope->slots[*place];
  if (slot->is_filled) {
    const char *which = index == TARN_SCOPE_PARAMETERS ? "for parameters" : "";
    return tarni_fail(
        TARN_STATE, operation, NULL, "Release the scope, or take the block out of the slot first.",
        "slot %u%s%s holds %llu bytes at 0x%llx already", index, which[0] != '\0' ? " " : "", which,
        (unsigned long long)slot->bytes, (unsigned long long)slot->address);
  }
  return TARN_OK;
}

/* The heap's on_shortage may have filled a slot meanwhile, which was empty before: the new block
 * goes back then. */
static tarn_status scope_undo(const tarn_scope *scope, tarn_ptr block) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  (void)tarn_free(scope->heap, block, scope_stream(scope));
  return tarni_fail_again(&error);
}

tarn_status tarn_scope_alloc(tarn_scope *scope, uint32_t index, uint64_t bytes, tarn_ptr *block) {
  const char *operation = "tarn_scope_alloc";
  if (block != NULL) {
    *block = 0;
  }
  uint32_t place;
  TARN_TRY(scope_slot_find_empty(scope, index, operation, &place));
  tarn_ptr address;
  TARN_TRY(tarn_alloc(scope->heap, bytes, scope_stream(scope), &address));
  if (scope_slot_find_empty(scope, index, operation, &place) != TARN_OK) {
    return scope_undo(scope, address);
  }
  scope->slots[place] = (scope_slot){.address = address, .bytes = bytes, .is_filled = true};
  if (block != NULL) {
    *block = address;
  }
  return TARN_OK;
}

/* ---- Parts of one block ---- */

enum { PART_ALIGNMENT = 256 };

/* Whether all the slots are there and empty, and what their parts need together. */
static tarn_status adjacent_check(const tarn_scope *scope, uint32_t first, uint32_t count,
                                  const uint64_t *bytes, uint64_t *sum) {
  const char *operation = "tarn_scope_alloc_adjacent";
  uint32_t place;
  TARN_TRY(scope_given(scope, operation));
  if (first > scope->n_slots || count > scope->n_slots - first) {
    return tarni_fail(TARN_RANGE, operation, NULL, "Make the scope with more slots.",
                      "%u slots from %u on, of a scope of %u slots", count, first, scope->n_slots);
  }
  if (bytes == NULL && count != 0) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass a size for each slot.",
                      "the sizes of %u slots are NULL", count);
  }
  *sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    TARN_TRY(scope_slot_find_empty(scope, first + i, operation, &place));
    uint64_t part;
    if (!tarni_align_up_checked(bytes[i], PART_ALIGNMENT, &part) || !tarni_add(*sum, part, sum)) {
      return tarni_fail(TARN_OVERFLOWED, operation, NULL, "Check the sizes.",
                        "%u slots up to one of %llu bytes are more than can be counted", i + 1,
                        (unsigned long long)bytes[i]);
    }
  }
  return TARN_OK;
}

tarn_status tarn_scope_alloc_adjacent(tarn_scope *scope, uint32_t first, uint32_t count,
                                      const uint64_t *bytes, tarn_ptr *blocks) {
  if (blocks != NULL) {
    memset(blocks, 0, count * sizeof(*blocks));
  }
  uint64_t sum = 0;
  tarn_ptr at = 0;
  TARN_TRY(adjacent_check(scope, first, count, bytes, &sum));
  TARN_TRY(tarn_alloc(scope->heap, sum, scope_stream(scope), &at));
  if (adjacent_check(scope, first, count, bytes, &sum) != TARN_OK) {
    return scope_undo(scope, at);
  }
  bool is_first = true;
  for (uint32_t i = 0; i < count; i++) {
    const bool is_empty = bytes[i] == 0;
    scope->slots[first + i] = (scope_slot){.address = is_empty ? 0 : at,
                                           .bytes = bytes[i],
                                           .is_filled = true,
                                           .is_part = !is_empty && !is_first,
                                           .is_whole = !is_empty && is_first};
    is_first = is_first && is_empty;
    if (blocks != NULL) {
      blocks[i] = scope->slots[first + i].address;
    }
    at += tarni_align_up(bytes[i], PART_ALIGNMENT);
  }
  return TARN_OK;
}

/* A block in two slots would be given back twice. */
static tarn_status check_not_held(const tarn_scope *scope, tarn_ptr block, const char *operation) {
  for (uint32_t i = 0; i <= scope->n_slots; i++) {
    if (scope->slots[i].is_filled && scope->slots[i].address == block) {
      return tarni_fail(TARN_STATE, operation, NULL, "Put each block into one slot.",
                        "the block at 0x%llx is in slot %u already", (unsigned long long)block,
                        i == scope->n_slots ? TARN_SCOPE_PARAMETERS : i);
    }
  }
  return TARN_OK;
}

tarn_status tarn_scope_put(tarn_scope *scope, uint32_t index, tarn_ptr block) {
  const char *operation = "tarn_scope_put";
  uint32_t place;
  TARN_TRY(scope_slot_find_empty(scope, index, operation, &place));
  tarn_block_info info = {.size = sizeof(info)};
  TARN_TRY(tarn_block_get_info(scope->heap, block, &info));
  if (info.address != block) {
    return tarni_fail(TARN_INTERIOR, operation, NULL, "Pass what tarn_alloc gave.",
                      "0x%llx is inside the block at 0x%llx", (unsigned long long)block,
                      (unsigned long long)info.address);
  }
  TARN_TRY(check_not_held(scope, block, operation));
  scope->slots[place] =
      (scope_slot){.address = block, .bytes = info.usable_bytes, .is_filled = true};
  return TARN_OK;
}

tarn_status tarn_scope_take(tarn_scope *scope, uint32_t index, tarn_ptr *block) {
  const char *operation = "tarn_scope_take";
  if (block == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass an address for it.",
                      "the block's address is NULL: it would be lost");
  }
  *block = 0;
  uint32_t place;
  TARN_TRY(scope_slot_find(scope, index, operation, &place));
  if (!scope->slots[place].is_filled) {
    return tarni_fail(TARN_STATE, operation, NULL, "Fill the slot first.", "slot %u is empty",
                      index);
  }
  if (scope->slots[place].is_part || scope->slots[place].is_whole) {
    return tarni_fail(TARN_STATE, operation, NULL, "Allocate it on its own, or leave it.",
                      "slot %u holds a part of a block that other slots share", index);
  }
  *block = scope->slots[place].address;
  scope->slots[place] = (scope_slot){0};
  return TARN_OK;
}

tarn_status tarn_scope_get(const tarn_scope *scope, uint32_t index, tarn_scope_slot *slot) {
  const char *operation = "tarn_scope_get";
  tarn_scope_slot full = {.size = sizeof(full)};
  TARN_TRY(tarni_struct_out(slot, &full, sizeof(full), operation));
  uint32_t place;
  TARN_TRY(scope_slot_find(scope, index, operation, &place));
  full.address = scope->slots[place].address;
  full.bytes = scope->slots[place].bytes;
  full.is_filled = scope->slots[place].is_filled;
  return tarni_struct_out(slot, &full, sizeof(full), operation);
}

/* ---- Giving back ---- */

/* Whether the heap said that the block is not there to be freed: somebody else has freed it, and
 * the slot holds nothing. */
static bool is_gone(tarn_status status) {
  return status == TARN_DOUBLE_FREE || status == TARN_FOREIGN || status == TARN_INTERIOR;
}

tarn_status tarn_scope_release(tarn_scope *scope, tarn_stream stream) {
  TARN_TRY(scope_given(scope, "tarn_scope_release"));
  tarn_error first = {.size = sizeof(first)};
  bool is_gone_whole = true; /* the block that the next parts are of */
  for (uint32_t i = 0; i <= scope->n_slots; i++) {
    scope_slot *slot = &scope->slots[i];
    if (slot->is_part && is_gone_whole) {
      *slot = (scope_slot){0};
    }
    if (!slot->is_filled || slot->is_part) {
      continue;
    }
    const bool is_whole = slot->is_whole;
    const tarn_status status = tarn_free(scope->heap, slot->address, stream);
    if (status != TARN_OK && first.status == TARN_OK) {
      (void)tarn_last_error(&first);
    }
    if (status == TARN_OK || is_gone(status)) {
      *slot = (scope_slot){0};
    }
    is_gone_whole = is_whole ? !slot->is_filled : is_gone_whole;
  }
  return first.status == TARN_OK ? TARN_OK : tarni_fail_again(&first);
}

tarn_status tarn_scope_release_after(tarn_scope *scope, tarn_fence *fence, tarn_stream stream) {
  const char *operation = "tarn_scope_release_after";
  TARN_TRY(scope_given(scope, operation));
  TARN_TRY(tarni_fence_order(fence, scope->heap->port, stream, operation));
  return tarn_scope_release(scope, stream);
}

tarn_status tarn_scope_destroy(tarn_scope *scope) {
  if (scope == NULL) {
    return TARN_OK;
  }
  const tarn_status status = tarn_scope_release(scope, scope_stream(scope));
  if (status != TARN_OK && status != TARN_DEVICE_LOST) {
    return status;
  }
  free(scope);
  return TARN_OK;
}
