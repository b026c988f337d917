/* SPDX-License-Identifier: MIT
 *
 * Arenas that sleep: the physical memory goes back to the device and the addresses stay, with the
 * content in memory of the host, or lost. Either way can stop half way, and be taken again. */
#include <stdlib.h>

#include "arena.h"
#include "base/bits.h"

static tarn_status content_save(tarn_arena *arena) {
  TARN_TRY(tarni_legacy_check(arena->heap, NULL)); /* where synchronous copies go */
  arena->saved = malloc(arena->mapped);
  if (arena->saved == NULL) {
    return tarni_fail(
        TARN_HOST_MEMORY, "tarn_arena_sleep", NULL, "Free some host memory, or let the content go.",
        "no host memory for the arena's %llu bytes", (unsigned long long)arena->mapped);
  }
  TARNI_RELAXED(arena->heap->port);
  const tarn_status status =
      tarni_port_copy_sync(arena->heap->port, (uintptr_t)arena->saved, arena->base, arena->mapped);
  if (status != TARN_OK) {
    free(arena->saved);
    arena->saved = NULL;
  }
  return status;
}

static tarn_status arena_sleep(tarn_arena *arena, bool keep) {
  TARN_TRY(tarni_capture_allows("tarn_arena_sleep"));
  TARN_TRY(tarni_arena_finish_held(arena));
  const uint64_t bytes = arena->mapped;
  if (keep && bytes != 0) {
    TARN_TRY(content_save(arena));
  }
  const tarn_status status = tarni_arena_shrink_held(arena, 0);
  if (status != TARN_OK && arena->mapped == bytes) { /* nothing has gone yet */
    free(arena->saved);
    arena->saved = NULL;
    return status;
  }
  arena->is_asleep = true; /* also half way: waking makes the rest */
  arena->slept = bytes;
  return status;
}

tarn_status tarn_arena_sleep(tarn_arena *arena, bool keep) {
  static const char operation[] = "tarn_arena_sleep";
  TARN_TRY(tarni_arena_given(arena, operation));
  TARNI_PAYS(&arena->heap->calls);
  tarni_lock_acquire(&arena->heap->capture);
  tarn_status status = TARN_OK;
  tarni_captures_reap_held(arena->heap); /* graphs that are gone may be done by now */
  if (arena->space == 0) {
    status = tarni_fail(TARN_UNSUPPORTED, operation, NULL,
                        "Give the memory back by what it was made with.",
                        "the arena's memory is the caller's");
  } else if (arena->capture != NULL) {
    status = tarni_arena_busy(arena, operation);
  } else if (arena->is_asleep) {
    status = tarni_arena_shrink_held(arena, 0); /* what did not go the last time */
  } else {
    status = tarni_pieces_are_lent_held(arena) ? tarni_arena_busy(arena, operation)
                                               : arena_sleep(arena, keep);
  }
  tarni_lock_release(&arena->heap->capture);
  return status;
}

tarn_status tarn_arena_wake(tarn_arena *arena) {
  static const char operation[] = "tarn_arena_wake";
  TARN_TRY(tarni_arena_given(arena, operation));
  TARNI_PAYS(&arena->heap->calls);
  tarni_lock_acquire(&arena->heap->capture);
  tarn_status status = TARN_OK;
  if (arena->is_asleep) {
    status = arena->saved != NULL ? tarni_capture_allows(operation) : TARN_OK;
    if (status == TARN_OK && arena->saved != NULL) {
      status = tarni_legacy_check(arena->heap, NULL);
    }
    status = status == TARN_OK
                 ? tarni_arena_grow_held(arena, tarni_min(arena->slept, arena->limit), operation)
                 : status;
    if (status == TARN_OK && arena->saved != NULL) {
      TARNI_RELAXED(arena->heap->port);
      status = tarni_port_copy_sync(arena->heap->port, arena->base, (uintptr_t)arena->saved,
                                    arena->slept);
    }
    if (status == TARN_OK) {
      free(arena->saved);
      arena->saved = NULL;
      arena->is_asleep = false;
    }
  }
  tarni_lock_release(&arena->heap->capture);
  return status;
}
