/* SPDX-License-Identifier: MIT
 *
 * Arenas: addresses of their own, and the memory behind them. Memory is there from the first
 * address up to `mapped`, and grows at its end, which is legal in a capture. It goes when nobody
 * needs it any more and all work that used it is known to be complete (arena_order.c). */
#include "arena.h"

#include <stdlib.h>

#include "base/bits.h"

enum {
  ARENA_CHUNK_SHARE = 32, /* an arena grows by at least this part of itself */
  ARENA_CHUNK_MAX = 32 << 20,
};
static const uint64_t arena_least_space = (uint64_t)64 << 20;

/* ---- Making ---- */

static void arena_free(tarn_arena *arena) {
  tarni_pieces_close(arena);
  free(arena->chunks);
  free(arena->tickets);
  free(arena->fresh);
  free(arena->saved);
  free(arena);
}

/* Addresses for the limit, or for less where the process has not that many left. */
static tarn_status space_reserve(tarn_arena *arena) {
  tarn_heap *heap = arena->heap;
  const uint64_t alignment = tarni_max(heap->unit, TARNI_ALIGNMENT_MAX);
  uint64_t space = tarni_align_up(arena->limit, heap->unit);
  tarn_status status = tarni_port_reserve(heap->port, space, alignment, &arena->base);
  while (status == TARN_ADDRESS_SPACE && space / 2 >= arena_least_space) {
    space = tarni_align_up(space / 2, heap->unit);
    status = tarni_port_reserve(heap->port, space, alignment, &arena->base);
  }
  arena->space = status == TARN_OK ? space : 0;
  arena->limit = tarni_min(arena->limit, space);
  return status;
}

static bool is_in_block(tarn_heap *heap, tarn_ptr address) {
  tarni_block block = {0};
  tarni_lock_acquire(&heap->lock);
  const bool is = tarni_block_find_locked(heap, address - heap->base, &block);
  tarni_lock_release(&heap->lock);
  return is;
}

/* The most that an arena may hold, of what there is. */
static uint64_t limit_of(const tarn_arena_config *config, uint64_t bytes) {
  return config->limit_bytes != 0 ? tarni_min(config->limit_bytes, bytes) : bytes;
}

/* Memory of the caller's. A block of this heap keeps its first bytes to itself, so that its own
 * address and that of the arena's first block are two. */
static tarn_status memory_take(tarn_arena *arena, const tarn_arena_config *config,
                               const char *operation) {
  uint64_t base, end;
  const bool is_heaps = is_in_block(arena->heap, config->memory);
  if (!tarni_add(config->memory, config->memory_bytes, &end) ||
      !tarni_align_up_checked(config->memory + is_heaps, TARNI_ARENA_GRANULE, &base) ||
      base >= end || end - base < TARNI_ARENA_GRANULE) {
    return tarni_fail(TARN_INVALID, operation, NULL,
                      "Pass the address and the size of memory that holds a block of 256 bytes.",
                      "%llu bytes at 0x%llx are no memory for an arena",
                      (unsigned long long)config->memory_bytes, (unsigned long long)config->memory);
  }
  tarni_captures_reap_held(arena->heap); /* some may have gone by now */
  for (const tarn_arena *other = arena->heap->arenas; other != NULL; other = other->next) {
    if (base < other->base + other->limit && other->base < end) {
      return tarni_fail(
          TARN_BUSY, operation, NULL, "Destroy that arena and its graphs first, or use it.",
          "%llu bytes at 0x%llx are an arena's already", (unsigned long long)config->memory_bytes,
          (unsigned long long)config->memory);
    }
  }
  arena->base = base;
  arena->limit = limit_of(config, end - base);
  arena->mapped = arena->limit;
  return TARN_OK;
}

static tarn_status arena_open(tarn_arena *arena, const tarn_arena_config *config,
                              const char *operation) {
  tarn_heap *heap = arena->heap;
  arena->tickets = calloc(heap->max_lanes, sizeof(*arena->tickets));
  arena->fresh = calloc(heap->max_lanes, sizeof(*arena->fresh));
  if (arena->tickets == NULL || arena->fresh == NULL || !tarni_piece_room_held(arena)) {
    return tarni_fail(TARN_HOST_MEMORY, operation, NULL, "Free some host memory.",
                      "no host memory for an arena's tables");
  }
  if (config->memory != 0) {
    return memory_take(arena, config, operation);
  }
  if (!heap->port->device.has_vmm) {
    const tarni_facts facts = {.device = heap->port->device.name};
    return tarni_fail(TARN_UNSUPPORTED, operation, &facts,
                      "Give the arena memory of the program's (tarn_arena_config.memory), or use a "
                      "driver with virtual memory management.",
                      "%s has no virtual memory management", heap->port->device.name);
  }
  arena->limit = limit_of(config, heap->port->device.total_bytes);
  return space_reserve(arena);
}

tarn_status tarni_arena_make(tarn_heap *heap, const tarn_arena_config *config,
                             const char *operation, tarn_arena **out) {
  if (heap->care.is_secure) {
    return tarni_fail(TARN_UNSUPPORTED, operation, NULL, "Capture with another heap.",
                      "a secure heap has no captures: nothing would clear what a graph leaves in "
                      "its memory");
  }
  tarn_arena *arena = calloc(1, sizeof(*arena));
  if (arena == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, operation, NULL, "Free some host memory.",
                      "no host memory for an arena (%zu bytes)", sizeof(*arena));
  }
  *arena = (tarn_arena){.heap = heap,
                        .kept = UINT64_MAX,
                        .unused = TARNI_PIECE_NONE,
                        .first = TARNI_PIECE_NONE,
                        .last = TARNI_PIECE_NONE};
  const tarn_status status = arena_open(arena, config, operation);
  if (status != TARN_OK) {
    arena_free(arena);
    return status;
  }
  arena->next = heap->arenas;
  heap->arenas = arena;
  atomic_fetch_add_explicit(&heap->n_arenas, 1, memory_order_relaxed);
  *out = arena;
  return TARN_OK;
}

/* ---- Growing ---- */

/* operation NULL: an allocation inside a capture. */
static tarn_status grow_fail(const tarn_arena *arena, tarn_status status, uint64_t end,
                             const char *operation, const char *cause) {
  const tarn_heap *heap = arena->heap;
  const uint64_t held = tarni_min(arena->mapped, arena->limit);
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = end - tarni_min(end, arena->mapped),
                             .available_bytes = arena->limit - held};
  const bool is_inside = operation == NULL;
  return tarni_fail(
      status, is_inside ? "tarn_alloc" : operation, &facts,
      is_inside ? "Free blocks inside the capture, raise the limits, or have memory made before it "
                  "begins (reserve_bytes)."
                : "Ask for less, free blocks, or raise the limits.",
      "%s %llu bytes; its arena holds %llu of at most %llu, and there %s",
      is_inside ? "a capture needs" : "a capture is to have", (unsigned long long)end,
      (unsigned long long)arena->mapped, (unsigned long long)arena->limit, cause);
}

/* Counts memory against the heap's limit before it is made. */
static bool budget_take(tarn_heap *heap, uint64_t bytes) {
  tarni_lock_acquire(&heap->lock);
  const uint64_t held = tarni_held_bytes_locked(heap) + heap->planned_bytes;
  const bool fits = bytes <= heap->limit_bytes - tarni_min(heap->limit_bytes, held);
  if (fits) {
    heap->captured_bytes += bytes;
    tarni_held_note_locked(heap);
  }
  tarni_lock_release(&heap->lock);
  return fits;
}

static void budget_give(tarn_heap *heap, uint64_t bytes) {
  tarni_lock_acquire(&heap->lock);
  heap->captured_bytes -= bytes;
  tarni_lock_release(&heap->lock);
}

static bool chunks_room(tarn_arena *arena) {
  if (arena->n_chunks < arena->chunks_capacity) {
    return true;
  }
  const uint32_t capacity = arena->chunks_capacity * 2 + 8;
  tarni_arena_chunk *chunks = realloc(arena->chunks, capacity * sizeof(*chunks));
  if (chunks == NULL) {
    return false;
  }
  arena->chunks = chunks;
  arena->chunks_capacity = capacity;
  return true;
}

/* Brings the last chunk as far as it goes: a step that fails can be taken again. */
static tarn_status chunk_ready(tarn_arena *arena, tarni_arena_chunk *chunk) {
  tarni_port *port = arena->heap->port;
  const tarn_ptr address = arena->base + chunk->offset;
  if (chunk->state == TARNI_CHUNK_CREATED) {
    TARN_TRY(tarni_port_map(port, address, chunk->size, chunk->handle));
    chunk->state = TARNI_CHUNK_MAPPED;
  }
  if (chunk->state == TARNI_CHUNK_MAPPED) {
    TARN_TRY(tarni_port_access(port, address, chunk->size));
    chunk->state = TARNI_CHUNK_READY;
    arena->mapped = chunk->offset + chunk->size;
  }
  return TARN_OK;
}

/* Gives the last chunk back, as far as the driver lets it. pre: nothing uses it. */
static tarn_status chunk_drop(tarn_arena *arena) {
  tarni_port *port = arena->heap->port;
  tarni_arena_chunk *chunk = &arena->chunks[arena->n_chunks - 1];
  if (chunk->state != TARNI_CHUNK_CREATED) {
    TARN_TRY(tarni_port_unmap(port, arena->base + chunk->offset, chunk->size));
    arena->mapped = tarni_min(arena->mapped, chunk->offset);
    chunk->state = TARNI_CHUNK_CREATED;
  }
  TARN_TRY(tarni_port_release(port, chunk->handle));
  budget_give(arena->heap, chunk->size);
  arena->n_chunks--;
  return TARN_OK;
}

static tarn_status chunk_add(tarn_arena *arena, uint64_t size, const char *operation) {
  tarn_heap *heap = arena->heap;
  if (!chunks_room(arena)) {
    return tarni_fail(TARN_HOST_MEMORY, operation != NULL ? operation : "tarn_alloc", NULL,
                      "Free some host memory.", "no host memory for a chunk's record");
  }
  if (!budget_take(heap, size)) {
    const bool is_device = tarni_heap_limit(heap) >= heap->port->device.total_bytes;
    return grow_fail(arena, is_device ? TARN_DEVICE_MEMORY : TARN_LIMIT, arena->mapped + size,
                     operation, "is no room below the heap's limit");
  }
  tarni_arena_chunk chunk = {.offset = arena->mapped, .size = size};
  const tarn_status status = tarni_port_create(heap->port, size, &chunk.handle);
  if (status != TARN_OK) {
    budget_give(heap, size);
    return status == TARN_DEVICE_MEMORY ? grow_fail(arena, status, arena->mapped + size, operation,
                                                    "is no more on the device")
                                        : status;
  }
  arena->chunks[arena->n_chunks++] = chunk;
  const tarn_status readied = chunk_ready(arena, &arena->chunks[arena->n_chunks - 1]);
  if (readied != TARN_OK) {
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    (void)chunk_drop(arena); /* where that fails, too, it is there for the next growth */
    return tarni_fail_again(&error);
  }
  return TARN_OK;
}

/* Finishes a chunk that an earlier try has left half made. */
static tarn_status chunk_finish(tarn_arena *arena) {
  tarni_arena_chunk *last = arena->n_chunks != 0 ? &arena->chunks[arena->n_chunks - 1] : NULL;
  return last != NULL && last->state != TARNI_CHUNK_READY ? chunk_ready(arena, last) : TARN_OK;
}

/* Another try, with the chunk that the last one has left, if there is one: it reaches that far. */
static tarn_status grow_again(tarn_arena *arena, uint64_t end, uint64_t size,
                              const char *operation) {
  TARN_TRY(chunk_finish(arena));
  return end <= arena->mapped ? TARN_OK : chunk_add(arena, size, operation);
}

static bool is_shortage(tarn_status status) {
  return status == TARN_DEVICE_MEMORY || status == TARN_LIMIT;
}

tarn_status tarni_arena_grow_held(tarn_arena *arena, uint64_t end, const char *operation) {
  const uint64_t unit = arena->heap->unit;
  if (end > arena->limit) { /* also where the last chunk goes beyond it */
    return grow_fail(arena, TARN_DEVICE_MEMORY, end, operation, "is no room for that");
  }
  if (end <= arena->mapped) {
    return TARN_OK;
  }
  TARN_TRY(chunk_finish(arena));
  if (end <= arena->mapped) {
    return TARN_OK;
  }
  const uint64_t least = tarni_align_up(end - arena->mapped, unit);
  const uint64_t share = tarni_align_down(arena->mapped / ARENA_CHUNK_SHARE, unit);
  const uint64_t room = tarni_align_up(arena->limit, unit) - arena->mapped;
  const uint64_t wish =
      tarni_min(tarni_max(least, tarni_min(share, ARENA_CHUNK_MAX)), tarni_max(room, least));
  tarn_status status = chunk_add(arena, wish, operation);
  if (is_shortage(status) && wish > least) {
    status = grow_again(arena, end, least, operation);
  }
  if (is_shortage(status)) {
    const bool is_owned = arena->is_owned;
    tarn_error error = {.size = sizeof(error)};
    (void)tarn_last_error(&error);
    arena->is_owned = true; /* it may be so new that nobody has it yet, and is not to go itself */
    const bool is_more = tarni_captures_sure_held(arena->heap);
    arena->is_owned = is_owned;
    status = is_more ? grow_again(arena, end, least, operation) : tarni_fail_again(&error);
  }
  return status;
}

tarn_status tarni_arena_shrink_held(tarn_arena *arena, uint64_t end) {
  while (arena->n_chunks != 0 && arena->chunks[arena->n_chunks - 1].offset >= end) {
    TARN_TRY(chunk_drop(arena));
  }
  return TARN_OK;
}

/* ---- Unmaking ---- */

bool tarni_arena_is_needed(const tarn_arena *arena) {
  return arena->is_owned || arena->n_graphs != 0 || arena->capture != NULL || arena->live.n != 0 ||
         arena->n_held != 0;
}

static tarn_status arena_close(tarn_arena *arena) {
  tarn_heap *heap = arena->heap;
  TARN_TRY(tarni_arena_shrink_held(arena, 0));
  if (arena->space != 0) {
    TARN_TRY(tarni_port_unreserve(heap->port, arena->base, arena->space));
    arena->space = 0;
  }
  tarn_arena **link = &heap->arenas;
  while (*link != arena) {
    link = &(*link)->next;
  }
  *link = arena->next;
  atomic_fetch_sub_explicit(&heap->n_arenas, 1, memory_order_relaxed);
  arena_free(arena);
  return TARN_OK;
}

static uint64_t needed_end(const tarn_arena *arena) {
  return tarni_max(arena->kept, arena->top);
}

bool tarni_arena_has_surplus(const tarn_arena *arena) {
  return arena->capture == NULL && arena->n_chunks != 0 &&
         arena->chunks[arena->n_chunks - 1].offset >= needed_end(arena);
}

/* Gives back what goes now: all of it, or what is not needed. */
static tarn_status arena_reap(tarn_arena *arena) {
  const bool is_needed = tarni_arena_is_needed(arena);
  if ((is_needed && !tarni_arena_has_surplus(arena)) || !tarni_arena_is_done_held(arena)) {
    return TARN_OK;
  }
  return is_needed ? tarni_arena_shrink_held(arena, needed_end(arena)) : arena_close(arena);
}

tarn_status tarni_arenas_reap_held(tarn_heap *heap) {
  tarn_status status = TARN_OK;
  for (tarn_arena *next, *arena = heap->arenas; arena != NULL; arena = next) {
    next = arena->next;
    const tarn_status reaped = arena_reap(arena);
    status = status == TARN_OK ? reaped : status;
  }
  return status;
}

/* On a lost device nothing can be given back: what is the host's goes. */
tarn_status tarni_arenas_close(tarn_heap *heap, bool is_lost) {
  while (heap->arenas != NULL) {
    tarn_arena *arena = heap->arenas;
    const tarn_status status = arena_close(arena);
    if (status == TARN_DEVICE_LOST || (status != TARN_OK && is_lost)) {
      heap->arenas = arena->next;
      arena_free(arena);
    } else if (status != TARN_OK) {
      return status;
    }
  }
  return TARN_OK;
}

/* ---- Asking ---- */

tarn_arena *tarni_arena_find_held(tarn_heap *heap, tarn_ptr address) {
  for (tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    if (address - arena->base < arena->limit) {
      return arena;
    }
  }
  return NULL;
}

uint64_t tarni_arenas_live_held(const tarn_heap *heap, uint64_t *bytes) {
  uint64_t n = 0;
  *bytes = 0;
  for (const tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    n += arena->live.n;
    *bytes += arena->live_bytes;
  }
  return n;
}

tarn_status tarni_arenas_check_held(const tarn_heap *heap) {
  uint64_t bytes = 0;
  for (const tarn_arena *arena = heap->arenas; arena != NULL; arena = arena->next) {
    TARN_TRY(tarni_pieces_check_held(arena));
    uint64_t end = 0;
    for (uint32_t i = 0; i < arena->n_chunks; i++) {
      bytes += arena->chunks[i].size;
      end = arena->chunks[i].state == TARNI_CHUNK_READY
                ? arena->chunks[i].offset + arena->chunks[i].size
                : end;
    }
    if (arena->space != 0 && !arena->is_asleep && end != arena->mapped) {
      return tarni_fail(TARN_CORRUPT, "tarn_heap_check", NULL, "Report this as a bug of tarn.",
                        "the chunks of an arena end at %llu, not at %llu", (unsigned long long)end,
                        (unsigned long long)arena->mapped);
    }
  }
  if (bytes != heap->captured_bytes) {
    return tarni_fail(TARN_CORRUPT, "tarn_heap_check", NULL, "Report this as a bug of tarn.",
                      "arenas hold %llu bytes, and %llu are counted", (unsigned long long)bytes,
                      (unsigned long long)heap->captured_bytes);
  }
  return TARN_OK;
}

/* ---- The public face ---- */

tarn_status tarni_arena_given(const tarn_arena *arena, const char *operation) {
  if (arena == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass an arena.", "arena is NULL");
  }
  return tarni_heap_given(arena->heap, operation);
}

/* Memory ahead: here the heap may still give back what it does not need. */
tarn_status tarni_arena_reserve_held(tarn_arena *arena, uint64_t bytes, const char *operation) {
  tarn_heap *heap = arena->heap;
  if (bytes > arena->limit) {
    const tarni_facts facts = {.device = heap->port->device.name,
                               .requested_bytes = bytes,
                               .available_bytes = arena->limit};
    return tarni_fail(TARN_LIMIT, operation, &facts, "Reserve less, or raise the limit.",
                      "%llu bytes are more than the arena's limit of %llu",
                      (unsigned long long)bytes, (unsigned long long)arena->limit);
  }
  tarn_status status = tarni_arena_grow_held(arena, bytes, operation);
  if (is_shortage(status) && !tarni_capture_forbids() && !tarni_is_asleep(heap)) {
    const uint64_t missing = tarni_align_up(bytes - arena->mapped, heap->unit);
    tarni_lock_acquire(&heap->lock);
    const uint64_t keep = heap->reserved_bytes - tarni_min(heap->reserved_bytes, missing);
    tarni_lock_release(&heap->lock);
    TARN_TRY(tarni_heap_trim(heap, keep));
    status = tarni_arena_grow_held(arena, bytes, operation);
  }
  return status;
}

tarn_status tarn_arena_create(tarn_heap *heap, const tarn_arena_config *config, tarn_arena **out) {
  static const char operation[] = "tarn_arena_create";
  if (out == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the address of a tarn_arena *.",
                      "the output is NULL");
  }
  *out = NULL;
  TARN_TRY(tarni_heap_given(heap, operation));
  tarn_arena_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), operation));
  }
  tarn_arena *arena = NULL;
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  tarn_status status = tarni_arena_make(heap, &known, operation, &arena);
  if (status == TARN_OK && known.memory == 0) {
    status = tarni_arena_reserve_held(arena, known.reserve_bytes, operation);
  }
  if (arena != NULL) {
    arena->is_owned = status == TARN_OK;
    if (status != TARN_OK) {
      tarn_error error = {.size = sizeof(error)};
      (void)tarn_last_error(&error);
      (void)tarni_arenas_reap_held(heap);
      (void)tarni_fail_again(&error);
    }
  }
  tarni_lock_release(&heap->capture);
  *out = status == TARN_OK ? arena : NULL;
  return status;
}

tarn_status tarn_arena_destroy(tarn_arena *arena) {
  if (arena == NULL) {
    return TARN_OK;
  }
  TARN_TRY(tarni_arena_given(arena, "tarn_arena_destroy"));
  tarn_heap *heap = arena->heap;
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->capture);
  arena->is_owned = false;
  (void)tarni_arenas_reap_held(heap); /* what cannot go now goes later */
  tarni_lock_release(&heap->capture);
  return TARN_OK;
}

tarn_status tarn_arena_get_info(tarn_arena *arena, tarn_arena_info *info) {
  static const tarn_arena_info empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(info, &empty, sizeof(empty), "tarn_arena_get_info"));
  TARN_TRY(tarni_arena_given(arena, "tarn_arena_get_info"));
  tarni_lock_acquire(&arena->heap->capture);
  const tarn_arena_info now = {.size = sizeof(now),
                               .limit_bytes = arena->limit,
                               .held_bytes = arena->mapped,
                               .high_water_bytes = arena->high_water,
                               .live_bytes = arena->live_bytes,
                               .live_blocks = arena->live.n,
                               .allocations = arena->allocations,
                               .alloc_bytes = arena->alloc_bytes,
                               .graphs = arena->n_graphs,
                               .is_capturing = arena->capture != NULL,
                               .is_asleep = arena->is_asleep};
  tarni_lock_release(&arena->heap->capture);
  return tarni_struct_out(info, &now, sizeof(now), "tarn_arena_get_info");
}

tarn_status tarni_arena_busy(const tarn_arena *arena, const char *operation) {
  return tarni_fail(
      TARN_BUSY, operation, NULL, "End the capture, and destroy the graphs that use the arena.",
      "%s and %u graphs use the arena%s", arena->capture != NULL ? "a capture" : "no capture",
      arena->n_graphs, arena->n_held != 0 ? ", and graphs hold blocks of it" : "");
}

tarn_status tarn_arena_clear(tarn_arena *arena) {
  TARN_TRY(tarni_arena_given(arena, "tarn_arena_clear"));
  TARNI_PAYS(&arena->heap->calls);
  tarni_lock_acquire(&arena->heap->capture);
  tarn_status status = TARN_OK;
  tarni_captures_reap_held(arena->heap); /* graphs that are gone may be done by now */
  if (arena->capture != NULL || arena->n_graphs != 0 || arena->n_held != 0) {
    status = tarni_arena_busy(arena, "tarn_arena_clear");
  } else {
    tarni_pieces_forget_held(arena);
  }
  tarni_lock_release(&arena->heap->capture);
  return status;
}
