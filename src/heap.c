/* SPDX-License-Identifier: MIT
 *
 * Heaps: made, limited, trimmed, destroyed. Owns the order in which the parts come and go. Metadata
 * lives in large sparse arrays of the host, indexed by offset: an address is looked up by one load,
 * and what is never touched costs nothing. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bits.h"
#include "base/fork.h"
#include "bucket.h"
#include "debug.h"
#include "room.h"

enum {
  HEAP_MAX_EXTENTS = 1 << 22,
  HEAP_MAX_LANES = 1024,
  HEAP_USES_BUCKETS = 4096,
  HEAP_OVERSIZE = 16,          /* addresses reserved, as a multiple of what it may ever hold, */
  HEAP_SMALL_TIMES = 2,        /* of these for small blocks; */
  HEAP_FIXED_LEAST = 64 << 20, /* where regions of a small pool find gaps, too */
  HEAP_LEAK_TEXT = 300,
};

/* Offsets of small blocks, in units of their alignment, and one more fit into 32 bits. */
static const uint64_t small_max_bytes = ((uint64_t)UINT32_MAX - 1) * TARNI_ALIGNMENT;

/* ---- Sparse arrays ---- */

void *tarni_sparse_make(uint64_t bytes) {
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory != MAP_FAILED ? memory : NULL;
}

void tarni_sparse_free(void *memory, uint64_t bytes) {
  if (memory != NULL) {
    (void)munmap(memory, bytes);
  }
}

static uint64_t n_pages(const tarn_heap *heap) {
  return heap->size >> TARNI_GRANULE_LOG2;
}

static uint64_t n_units(const tarn_heap *heap) {
  return tarni_unit_of(heap, heap->size);
}

static bool metadata_open(tarn_heap *heap) {
  heap->max_extents = HEAP_MAX_EXTENTS;
  heap->max_chunks = (uint32_t)tarni_min(n_units(heap) + 1, UINT32_MAX / 2);
  heap->states = tarni_sparse_make(heap->small_end >> 8);
  heap->links = tarni_sparse_make((heap->small_end >> 8) * sizeof(*heap->links));
  heap->pages = tarni_sparse_make(n_pages(heap) * sizeof(*heap->pages));
  heap->begins = tarni_sparse_make(n_pages(heap) * sizeof(*heap->begins));
  heap->units = tarni_sparse_make(n_units(heap) * sizeof(*heap->units));
  heap->places = tarni_sparse_make(n_units(heap) * sizeof(*heap->places));
  heap->pasts = tarni_sparse_make(n_units(heap) * sizeof(*heap->pasts));
  heap->hints = tarni_sparse_make(tarni_hints_bytes());
  heap->n_seams = tarni_sparse_make(n_units(heap) * sizeof(*heap->n_seams));
  heap->extents = tarni_sparse_make(heap->max_extents * sizeof(*heap->extents));
  heap->chunks = tarni_sparse_make(heap->max_chunks * sizeof(*heap->chunks));
  heap->n_chunks = 1;
  heap->max_aliases = (uint32_t)tarni_min(
      tarni_max(tarni_port_host_mappings(heap->port), TARNI_MIN_ALIASES), TARNI_MAX_ALIASES);
  const bool has_idle = tarni_bitset_open(&heap->idle, n_units(heap));
  const bool has_open = tarni_bitset_open(&heap->begun, n_pages(heap)) &&
                        tarni_bitset_open(&heap->aliases, n_units(heap)) &&
                        tarni_bitset_open(&heap->open, n_units(heap)) &&
                        tarni_bitset_open(&heap->joints, n_units(heap)) &&
                        tarni_bitset_open(&heap->row_ends, n_units(heap)) &&
                        tarni_bitset_open(&heap->placed, n_units(heap)) &&
                        tarni_bitset_open(&heap->barred, n_units(heap)) &&
                        tarni_bitset_open(&heap->seams, n_units(heap)) &&
                        tarni_bitset_open(&heap->stale, heap->max_chunks);
  return has_idle && has_open && heap->states != NULL && heap->links != NULL &&
         heap->pages != NULL && heap->begins != NULL && heap->units != NULL &&
         heap->places != NULL && heap->pasts != NULL && heap->hints != NULL &&
         heap->n_seams != NULL && heap->extents != NULL && heap->chunks != NULL &&
         tarni_extents_open(heap);
}

static void metadata_close(tarn_heap *heap) {
  tarni_grow_close(heap);
  tarni_extents_close(heap);
  tarni_lanes_close(heap);
  tarni_uses_close(heap);
  tarni_sparse_free(heap->states, heap->small_end >> 8);
  tarni_sparse_free(heap->links, (heap->small_end >> 8) * sizeof(*heap->links));
  tarni_sparse_free(heap->pages, n_pages(heap) * sizeof(*heap->pages));
  tarni_sparse_free(heap->begins, n_pages(heap) * sizeof(*heap->begins));
  tarni_sparse_free(heap->units, n_units(heap) * sizeof(*heap->units));
  tarni_bitset_close(&heap->idle);
  tarni_bitset_close(&heap->begun);
  tarni_bitset_close(&heap->aliases);
  tarni_bitset_close(&heap->open);
  tarni_bitset_close(&heap->joints);
  tarni_bitset_close(&heap->row_ends);
  tarni_bitset_close(&heap->placed);
  tarni_bitset_close(&heap->barred);
  tarni_bitset_close(&heap->seams);
  tarni_bitset_close(&heap->stale);
  tarni_sparse_free(heap->places, n_units(heap) * sizeof(*heap->places));
  tarni_sparse_free(heap->pasts, n_units(heap) * sizeof(*heap->pasts));
  tarni_sparse_free(heap->hints, tarni_hints_bytes());
  tarni_sparse_free(heap->n_seams, n_units(heap) * sizeof(*heap->n_seams));
  tarni_sparse_free(heap->extents, heap->max_extents * sizeof(*heap->extents));
  tarni_sparse_free(heap->chunks, heap->max_chunks * sizeof(*heap->chunks));
}

/* ---- Making ---- */

/* The most that it can ever hold: the device's memory, or a fixed heap's limit, which stays. */
static uint64_t most_bytes(const tarn_heap *heap) {
  const uint64_t total = heap->port->device.total_bytes;
  return heap->is_fixed ? tarni_min(total, tarni_max(heap->limit_bytes, HEAP_FIXED_LEAST)) : total;
}

/* Several times as much as that, less where the process has not that many addresses. */
static tarn_status addresses_reserve(tarn_heap *heap) {
  const uint64_t total = tarni_align_up(most_bytes(heap), heap->unit);
  tarn_status status = TARN_ADDRESS_SPACE;
  for (uint64_t times = HEAP_OVERSIZE; status != TARN_OK && times >= 2; times--) {
    heap->size = total * times;
    status = tarni_port_reserve(heap->port, heap->size, tarni_max(heap->unit, TARNI_ALIGNMENT_MAX),
                                &heap->base);
    if (status != TARN_OK && status != TARN_ADDRESS_SPACE) {
      break;
    }
  }
  const uint64_t small =
      tarni_min(tarni_min(heap->size / 2, total * HEAP_SMALL_TIMES), small_max_bytes);
  heap->small_end = tarni_align_down(small, heap->unit);
  const uint64_t rest = heap->size - heap->small_end; /* all of the memory fits among homes */
  const uint64_t large = heap->is_fixed ? rest : tarni_min(rest, tarni_max(rest / 2, total));
  heap->large_end = heap->small_end + tarni_align_up(large, heap->unit);
  return status;
}

/* Lanes and uses: what all heaps have. */
static bool order_open(tarn_heap *heap) {
  heap->max_lanes = HEAP_MAX_LANES;
  heap->lanes = calloc(heap->max_lanes, sizeof(*heap->lanes));
  heap->complete = calloc(heap->max_lanes, sizeof(*heap->complete));
  heap->uses = calloc(HEAP_USES_BUCKETS, sizeof(void *));
  heap->uses_capacity = HEAP_USES_BUCKETS;
  heap->n_lanes = 1;
  return heap->lanes != NULL && heap->complete != NULL && heap->uses != NULL;
}

static tarn_status backing_check(const tarn_heap *heap, const tarni_settings *settings) {
  const tarn_device_info *device = &heap->port->device;
  const tarni_facts facts = {.device = device->name};
  if (settings->backing == TARN_BACKING_VMM && !device->has_vmm) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_create", &facts,
                      "Choose backing pool or plain, or use a driver with virtual memory "
                      "management.",
                      "%s has no virtual memory management", device->name);
  }
  if (settings->backing == TARN_BACKING_POOL && !device->has_pool) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_create", &facts,
                      "Choose backing vmm or plain, or use a driver with stream-ordered pools.",
                      "%s has no stream-ordered pools", device->name);
  }
  return TARN_OK;
}

static tarn_status heap_open(tarn_heap *heap, const tarni_settings *settings) {
  if (heap->port == NULL) {
    TARN_TRY(tarni_port_open(heap->config.device, &heap->port));
  }
  TARN_TRY(backing_check(heap, settings));
  heap->unit = tarni_max(heap->port->device.granularity_bytes, TARNI_GRANULE);
  if (!tarni_is_pow2(heap->unit)) {
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_create", NULL, "Choose backing pool or plain.",
                      "chunks of the device are of %llu bytes, which is no power of two",
                      (unsigned long long)heap->unit);
  }
  heap->unit_log2 = tarni_log2(heap->unit);
  heap->limit_bytes =
      heap->config.limit_bytes != 0 ? heap->config.limit_bytes : heap->port->device.total_bytes;
  if (!order_open(heap)) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_create", NULL, "Free some host memory.",
                      "no host memory for the heap's %u streams", heap->max_lanes);
  }
  if (tarni_settings_have_buckets(settings)) {
    return tarni_buckets_open(heap, settings);
  }
  TARN_TRY(addresses_reserve(heap));
  TARN_TRY(tarni_debug_open(heap));
  if (!metadata_open(heap)) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_create", NULL,
                      "Raise the limits on host memory and addresses (ulimit -v).",
                      "no host memory for the heap's tables");
  }
  return TARN_OK;
}

static void heap_close(tarn_heap *heap) {
  if (heap->buckets != NULL) {
    (void)tarni_grants_give_back(heap); /* of one that could not be made; else nothing is left */
    tarni_buckets_close(heap);
  }
  tarni_sleep_close(heap);
  tarni_debug_close(heap);
  metadata_close(heap);
  if (heap->base != 0) {
    (void)tarni_port_unreserve(heap->port, heap->base, heap->size);
  }
  if (heap->port != NULL) {
    tarni_port_close(heap->port);
  }
  tarni_lock_destroy(&heap->lock);
  tarni_lock_destroy(&heap->grow);
  tarni_lock_destroy(&heap->capture);
  tarni_lock_destroy(&heap->budget);
  free(heap);
}

/* port: NULL, or one that the heap closes at its end, also if it fails. */
static tarn_status heap_make(const tarn_heap_config *config, const tarni_settings *settings,
                             tarni_port *port, tarn_heap **out) {
  tarn_heap *heap = calloc(1, sizeof(*heap));
  if (heap == NULL) {
    tarni_port_close(port);
    return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_create", NULL, "Free some host memory.",
                      "no host memory for a heap (%zu bytes)", sizeof(*heap));
  }
  heap->config = *config;
  heap->port = port;
  heap->is_fixed = port != NULL;
  heap->care = settings->care;
  heap->care.is_asking_captures = settings->care.is_asking_captures && !heap->is_fixed;
  /* A hit asks nobody. */
  heap->n_watchers = heap->care.is_verifying_streams + heap->care.is_asking_captures;
  heap->n_captures = heap->care.is_asking_captures;
  heap->fork = tarni_fork_watch();
  tarni_lock_init(&heap->lock, TARNI_RANK_HEAP);
  tarni_lock_init(&heap->grow, TARNI_RANK_DRIVER);
  tarni_lock_init(&heap->capture, TARNI_RANK_CAPTURE);
  tarni_lock_init(&heap->budget, TARNI_RANK_BUDGET);
  TARNI_PAYS(&heap->calls);
  const tarn_status status = heap_open(heap, settings);
  if (status != TARN_OK) {
    heap_close(heap);
    return status;
  }
  heap->config.device = NULL; /* the caller's text may go */
  *out = heap;
  return TARN_OK;
}

/* What the environment says about heaps is not about these. */
tarn_status tarni_heap_create_on(const tarn_heap_config *config, tarni_port *port,
                                 tarn_heap **out) {
  tarn_assert(port->table == &tarni_port_host);
  *out = NULL;
  const tarni_settings settings = tarni_settings_given(config);
  return heap_make(config, &settings, port, out);
}

tarn_status tarn_heap_create(const tarn_heap_config *config, tarn_heap **out) {
  if (out == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_heap_create", NULL, "Pass the address of a tarn_heap *.",
                      "the output is NULL");
  }
  *out = NULL;
  tarn_heap_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), "tarn_heap_create"));
  }
  tarni_settings settings;
  TARN_TRY(tarni_settings_resolve(&known, &settings));
  return heap_make(&known, &settings, NULL, out);
}

/* ---- Unmaking ---- */

/* Gives back all that the driver has given. Blocks that are live may be in use on streams that the
 * heap has never met, and so may memory of captures. May be called again where it fails. */
static tarn_status heap_give_back(tarn_heap *heap, bool has_live) {
  tarni_lock_acquire(&heap->lock); /* a thread that exits meanwhile has nothing to give then */
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_lock_release(&heap->lock);
  TARN_TRY(tarni_lanes_finish_grow(heap));
  if (has_live || tarni_captures_are_unsure_held(heap)) {
    TARN_TRY(tarni_device_await(heap));
  }
  TARN_TRY(tarni_graphs_close(heap, false));
  TARN_TRY(tarni_arenas_close(heap, false));
  TARN_TRY(tarni_unreturned_reap(heap));
  if (heap->buckets != NULL) {
    TARN_TRY(tarni_grants_give_back(heap));
    return tarni_fences_close(heap);
  }
  tarni_quarantine_drain_grow(heap);
  if (!tarni_is_asleep(heap)) {
    TARN_TRY(tarni_debug_scrub_once_grow(heap));
  }
  TARN_TRY(tarni_sleep_give_back(heap));
  TARN_TRY(tarni_chunks_close(heap));
  TARN_TRY(tarni_fences_close(heap));
  TARN_TRY(tarni_port_unreserve(heap->port, heap->base, heap->size));
  heap->base = 0;
  return TARN_OK;
}

/* The device is lost, and the driver has nothing any more: what is left is the host's. */
static void heap_abandon(tarn_heap *heap) {
  (void)tarni_graphs_close(heap, true);
  (void)tarni_arenas_close(heap, true);
  heap->base = 0;
}

tarn_status tarn_heap_destroy(tarn_heap *heap, uint64_t *n_live) {
  if (n_live != NULL) {
    *n_live = 0;
  }
  if (heap == NULL) {
    return TARN_OK;
  }
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_destroy"));
  TARNI_PAYS(&heap->calls);
  tarni_budgets_reap(heap);
  const tarn_ptr base = heap->base;
  tarn_heap_stats stats = {.size = sizeof(stats)};
  (void)tarn_heap_get_stats(heap, &stats);
  tarni_lock_acquire(&heap->capture);
  uint64_t captured_bytes;
  stats.live_blocks += tarni_arenas_live_held(heap, &captured_bytes);
  stats.live_bytes += captured_bytes;
  tarn_status status = tarni_captures_close_held(heap);
  if (status == TARN_OK) {
    tarni_lock_acquire(&heap->grow);
    status = heap_give_back(heap, stats.live_blocks != 0);
    if (status == TARN_DEVICE_LOST) {
      heap_abandon(heap);
      status = TARN_OK;
    }
    tarni_lock_release(&heap->grow);
  }
  tarni_lock_release(&heap->capture);
  TARN_TRY(status);
  tarni_budgets_close(heap);
  tarni_captures_free(heap);
  tarni_caches_close(heap);
  tarni_scopes_close(heap);
  if (n_live != NULL) {
    *n_live = stats.live_blocks;
  }
  if (stats.live_blocks != 0) {
    char largest[HEAP_LEAK_TEXT];
    const tarni_facts facts = {.device = heap->port->device.name};
    tarni_record_leaks(heap, base, largest, sizeof(largest));
    (void)tarni_fail(
        TARN_BUSY, "tarn_heap_destroy", &facts, "Free all blocks before the heap is destroyed.",
        "%llu blocks of %llu bytes were still live%s", (unsigned long long)stats.live_blocks,
        (unsigned long long)stats.live_bytes, largest);
  }
  heap_close(heap);
  return TARN_OK;
}

/* ---- The rest of its life ---- */

void tarni_heap_refuse(const tarn_heap *heap, const char *operation) {
  if (heap == NULL) {
    (void)tarni_fail(TARN_INVALID, operation, NULL, "Pass a heap.", "heap is NULL");
  } else {
    (void)tarni_fail(TARN_FORKED, operation, NULL,
                     "Make a heap of its own in the child, or fork before the first heap is made.",
                     "the heap belongs to the parent process");
  }
}

tarn_device *tarn_heap_device(tarn_heap *heap) {
  return heap != NULL ? (tarn_device *)heap->port : NULL;
}

tarn_status tarni_heap_settle_grow(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const uint32_t n_lanes = heap->n_lanes;
  tarni_bin(*bins)[TARNI_CLASS_COUNT] = calloc(n_lanes, sizeof(*bins));
  if (bins != NULL) {
    tarni_bins_detach_locked(heap, n_lanes, bins);
  }
  tarni_lock_release(&heap->lock);
  if (bins == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_heap_trim", NULL, "Free some host memory.",
                      "no host memory to look through the bins of %u streams", n_lanes);
  }
  const tarn_status status = tarni_lanes_finish_grow(heap);
  tarni_uses_reap_grow(heap); /* what several streams used is complete, too */
  tarni_lock_acquire(&heap->lock);
  tarni_bins_attach_locked(heap, n_lanes, bins, status == TARN_OK);
  tarni_slab_collect_all_locked(heap);
  tarni_lock_release(&heap->lock);
  free(bins);
  return status;
}

static tarn_status trim_chunks_grow(tarn_heap *heap, uint64_t keep_bytes) {
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_slab_collect_all_locked(heap);
  tarni_lock_release(&heap->lock);
  tarn_status status = tarni_chunk_trim_grow(heap, keep_bytes);
  const bool may_settle =
      status == TARN_OK || status == TARN_STATE; /* a stream is gone: then too */
  if (may_settle && heap->reserved_bytes > keep_bytes) {
    status = tarni_heap_settle_grow(heap);
    status = status == TARN_OK ? tarni_chunk_trim_grow(heap, keep_bytes) : status;
  }
  return status;
}

tarn_status tarn_heap_trim(tarn_heap *heap, uint64_t keep_bytes) {
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_trim"));
  TARNI_PAYS(&heap->calls);
  tarni_budgets_reap(heap);
  (void)tarni_captures_finish(heap);
  return tarni_heap_trim(heap, keep_bytes);
}

static tarn_status trim_grow(tarn_heap *heap, uint64_t keep_bytes) {
  tarni_quarantine_drain_grow(heap);
  do {
    tarni_uses_reap_grow(heap);
  } while (tarni_uses_wait_grow(heap));
  return heap->buckets != NULL ? tarni_bucket_trim_grow(heap, keep_bytes)
                               : trim_chunks_grow(heap, keep_bytes);
}

/* A heap that holds no more has nothing to wait for, and its threads keep what they have: programs
 * call this as often as they like. A pool of the driver may hold more than the heap. */
tarn_status tarni_heap_trim(tarn_heap *heap, uint64_t keep_bytes) {
  tarni_lock_acquire(&heap->grow);
  tarn_status status = tarni_sleep_refuse(heap, "tarn_heap_trim");
  if (status == TARN_OK) {
    tarni_shortage_reap_grow(heap);
    const bool has_more = heap->buckets != NULL || heap->reserved_bytes > keep_bytes;
    status = has_more ? trim_grow(heap, keep_bytes) : TARN_OK;
    status = status == TARN_OK ? tarni_unreturned_reap(heap) : status;
  }
  tarni_lock_release(&heap->grow);
  return status;
}

tarn_status tarni_heap_trim_ready(tarn_heap *heap, uint64_t keep) {
  TARNI_PAYS(&heap->calls);
  tarni_lock_acquire(&heap->grow);
  tarni_shortage_reap_grow(heap);
  tarni_lock_acquire(&heap->lock);
  tarni_cache_empty_all_locked(heap, 0, false);
  tarni_slab_collect_all_locked(heap);
  tarni_lock_release(&heap->lock);
  const tarn_status status = heap->buckets != NULL ? tarni_bucket_trim_ready_grow(heap, keep)
                                                   : tarni_chunk_trim_grow(heap, keep);
  tarni_lock_release(&heap->grow);
  return status;
}

uint64_t tarni_heap_limit(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const uint64_t limit = heap->limit_bytes;
  tarni_lock_release(&heap->lock);
  return limit;
}

tarn_status tarn_heap_set_limit(tarn_heap *heap, uint64_t limit_bytes) {
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_set_limit"));
  const uint64_t limit = limit_bytes != 0 ? limit_bytes : heap->port->device.total_bytes;
  tarni_lock_acquire(&heap->lock);
  heap->limit_bytes = limit;
  const uint64_t keep = limit - tarni_min(limit, heap->captured_bytes); /* captures keep theirs */
  const bool is_over = heap->reserved_bytes > keep;
  tarni_lock_release(&heap->lock);
  return is_over ? tarn_heap_trim(heap, keep) : TARN_OK;
}

tarn_status tarni_heap_refuse_size(tarn_heap *heap, uint64_t bytes, const char *operation) {
  const uint64_t limit = tarni_heap_limit(heap), total = heap->port->device.total_bytes;
  const bool is_limited = limit < total;
  const uint64_t most = tarni_min(limit, total);
  const tarni_facts facts = {
      .device = heap->port->device.name, .requested_bytes = bytes, .available_bytes = most};
  return tarni_fail(is_limited ? TARN_LIMIT : TARN_DEVICE_MEMORY, operation, &facts,
                    is_limited ? "Ask for less, or raise the limit with tarn_heap_set_limit."
                               : "Ask for less.",
                    "%llu bytes are more than %s (%llu)", (unsigned long long)bytes,
                    is_limited ? "the heap's limit" : "the device has", (unsigned long long)most);
}

static tarn_status reserve_check(tarn_heap *heap, uint64_t bytes) {
  if (heap->buckets != NULL) {
    const tarni_facts none = {.device = heap->port->device.name, .requested_bytes = bytes};
    return tarni_fail(TARN_UNSUPPORTED, "tarn_heap_reserve", &none,
                      "Use backing vmm with rounding classes, or allocate and free blocks of the "
                      "sizes that will be needed.",
                      "the blocks of this heap are allocations of the driver, so %llu bytes of no "
                      "known sizes cannot be kept",
                      (unsigned long long)bytes);
  }
  const uint64_t most = tarni_min(tarni_heap_limit(heap), heap->size); /* no more has an address */
  return bytes <= most ? TARN_OK : tarni_heap_refuse_size(heap, bytes, "tarn_heap_reserve");
}

/* How much is reserved at a time: not too many chunks at once; of a fixed heap, one chunk. */
static uint64_t reserve_piece(const tarn_heap *heap) {
  return heap->is_fixed ? tarni_max((uint64_t)256 << 20, heap->unit) : (uint64_t)4 << 30;
}

/* What the heap holds, but for what is on its way back to the device, or out of use. */
static uint64_t usable_bytes(tarn_heap *heap) {
  tarni_lock_acquire(&heap->lock);
  const uint64_t lost = heap->leaving_bytes + heap->quarantined_bytes;
  const uint64_t usable = heap->reserved_bytes - tarni_min(heap->reserved_bytes, lost);
  tarni_lock_release(&heap->lock);
  return usable;
}

/* Growing speaks of allocations, and of the piece that failed. */
static tarn_status reserve_fail(tarn_heap *heap, tarn_status status, uint64_t bytes) {
  if (status != TARN_DEVICE_MEMORY && status != TARN_LIMIT && status != TARN_ADDRESS_SPACE) {
    return status;
  }
  tarn_error cause = {.size = sizeof(cause)};
  (void)tarn_last_error(&cause);
  const uint64_t usable = usable_bytes(heap);
  const tarni_facts facts = {.device = heap->port->device.name,
                             .requested_bytes = bytes,
                             .available_bytes = usable,
                             .driver_code = cause.driver_code,
                             .driver_name = cause.driver_name};
  return tarni_fail(status, "tarn_heap_reserve", &facts,
                    "Reserve less; what the heap has got it keeps (tarn_heap_trim gives it back).",
                    "%llu bytes cannot be held: there are %llu, of at most %llu%s%s",
                    (unsigned long long)bytes, (unsigned long long)usable,
                    (unsigned long long)tarni_heap_limit(heap),
                    cause.driver_name[0] != '\0' ? "; the driver said " : "", cause.driver_name);
}

tarn_status tarn_heap_reserve(tarn_heap *heap, uint64_t bytes) {
  TARN_TRY(tarni_heap_given(heap, "tarn_heap_reserve"));
  TARNI_PAYS(&heap->calls);
  TARN_TRY(reserve_check(heap, bytes));
  tarni_lock_acquire(&heap->grow);
  tarn_status status = tarni_sleep_refuse(heap, "tarn_heap_reserve");
  tarni_shortage_reap_grow(heap);
  while (status == TARN_OK && usable_bytes(heap) < bytes) {
    const uint64_t missing = tarni_align_up(bytes - usable_bytes(heap), heap->unit);
    const uint64_t piece = tarni_min(missing, reserve_piece(heap));
    tarni_index extent;
    status = tarni_grow_new(heap, piece, &extent);
    if (status == TARN_ADDRESS_SPACE || (status != TARN_OK && heap->is_map_refused)) {
      (void)tarni_chunk_unalias_grow(heap);
      (void)tarni_chunk_trim_grow(heap, heap->reserved_bytes); /* waits for what is unaliased */
      status = tarni_grow_new(heap, piece, &extent);
    }
    if (status == TARN_OK) {
      static const tarni_order complete = {0};
      tarni_lock_acquire(&heap->lock);
      tarni_extent_give_locked(heap, extent, TARNI_EXTENT_FREE, &complete);
      tarni_lock_release(&heap->lock);
    }
  }
  tarni_lock_release(&heap->grow);
  return reserve_fail(heap, status, bytes);
}

tarn_status tarn_stream_retire(tarn_heap *heap, tarn_stream stream) {
  TARN_TRY(tarni_heap_given(heap, "tarn_stream_retire"));
  TARNI_PAYS(&heap->calls);
  tarni_captures_reap(heap); /* while the stream can be asked about what it freed in captures */
  TARN_TRY(tarni_budgets_leave(heap, stream));
  tarni_lock_acquire(&heap->capture); /* captures and graphs have found the lanes of streams */
  tarn_status status = tarni_captures_leave_held(heap, stream);
  if (status == TARN_OK) {
    tarni_lock_acquire(&heap->grow);
    status = tarni_lane_retire_grow(heap, stream);
    tarni_lock_release(&heap->grow);
  }
  tarni_lock_release(&heap->capture);
  return status;
}
