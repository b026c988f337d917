/* SPDX-License-Identifier: MIT
 *
 * What the files of the heap share, grouped by the file that owns it. A name that ends in _locked
 * needs heap->lock; one that ends in _grow needs heap->grow and must not hold heap->lock. */
#ifndef TARNI_INTERNAL_H
#define TARNI_INTERNAL_H

#include "base/bits.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/thread.h"
#include "cache.h"
#include "count.h"
#include "tarn/budget.h"
#include "tarn/pinned.h"
#include "types.h"

/* ---- heap.c ---- */
/* Tells that there is no heap, or one of another process. */
void tarni_heap_refuse(const tarn_heap *heap, const char *operation);

/* Whether there is a heap, and one of this process: else the error. For all but hits. */
static inline tarn_status tarni_heap_given(const tarn_heap *heap, const char *operation) {
  if (TARNI_LIKELY(heap != NULL && heap->fork == tarni_fork_count())) {
    return TARN_OK;
  }
  tarni_heap_refuse(heap, operation);
  return heap == NULL ? TARN_INVALID : TARN_FORKED;
}

/* Makes a heap on a port of its own, which is closed with it, or when this fails. */
tarn_status tarni_heap_create_on(const tarn_heap_config *config, tarni_port *port, tarn_heap **out);
/* Waits for all work of all streams, so that what they have freed is everybody's: slabs that many
 * lanes have a part of can go then. */
tarn_status tarni_heap_settle_grow(tarn_heap *heap);

/* The limit as it is now: it may change at any time. */
uint64_t tarni_heap_limit(tarn_heap *heap);
/* The error for so many bytes that no heap of this device, or with this limit, can hold. */
tarn_status tarni_heap_refuse_size(tarn_heap *heap, uint64_t bytes, const char *operation);

/* tarn_heap_trim without what captures have left. */
tarn_status tarni_heap_trim(tarn_heap *heap, uint64_t keep_bytes);
/* Gives idle chunks back until at most `keep` bytes are held, as far as that needs no waiting. */
tarn_status tarni_heap_trim_ready(tarn_heap *heap, uint64_t keep);

/* Large arrays of zeros that cost only what is touched of them; NULL: no addresses. */
void *tarni_sparse_make(uint64_t bytes);
void tarni_sparse_free(void *memory, uint64_t bytes);

/* ---- config.c: what a heap is to be ---- */
tarn_status tarni_settings_resolve(const tarn_heap_config *config, tarni_settings *settings);
/* The same of the config alone. */
tarni_settings tarni_settings_given(const tarn_heap_config *config);

/* Whether the blocks of such a heap are the driver's own allocations. */
static inline bool tarni_settings_have_buckets(const tarni_settings *settings) {
  return settings->backing != TARN_BACKING_VMM || settings->rounding != TARN_ROUNDING_CLASSES;
}

/* The unit that an offset lies in. */
static inline uint64_t tarni_unit_of(const tarn_heap *heap, uint64_t offset) {
  return offset >> heap->unit_log2;
}

/* ---- extent.c: the partition of addresses, and trees of what is free ---- */
bool tarni_extents_open(tarn_heap *heap);
void tarni_extents_close(tarn_heap *heap);
/* The lowest free extent of a tree that holds `size` at a multiple of `alignment`; 0: none, or so
 * many tries were in vain: extents that hold it, but not there. */
tarni_index tarni_extent_first_locked(tarn_heap *heap, uint32_t zone, uint32_t tree, uint64_t size,
                                      uint64_t alignment, uint32_t tries);
/* Whether any of it lies on a spare chunk. pre: all of it is on chunks. */
bool tarni_extent_is_spare_locked(const tarn_heap *heap, uint64_t start, uint64_t size);
/* Of the first so many of a tree that are large enough the smallest that fits, not on spare chunks;
 * 0: none does. */
tarni_index tarni_extent_tightest_locked(const tarn_heap *heap, uint32_t tree,
                                         const tarni_need *need, uint32_t n);
/* The lowest one of a tree that the need's lane may use at once, of those below an offset. All of
 * them are no younger than the ticket. 0: none, or it has given up: *tries, which it lowers for
 * each that is large enough, but not to be had, is 0. */
typedef struct tarni_bound {
  uint64_t below, ticket;
} tarni_bound;
tarni_index tarni_extent_find_met_locked(tarn_heap *heap, uint32_t tree, const tarni_need *need,
                                         const tarni_bound *bound, uint32_t *tries);
/* The lowest extent that begins at the offset or above and is VOID or FREE, of these all that the
 * lane may use, and perhaps others; 0: none. */
tarni_index tarni_extent_from_locked(const tarn_heap *heap, uint32_t zone, uint64_t offset,
                                     tarni_index lane);
tarni_index tarni_extent_void_from_locked(const tarn_heap *heap, uint32_t zone, uint64_t offset);
/* The one with the lower address; 0 is none. */
tarni_index tarni_extent_lower(const tarn_heap *heap, tarni_index a, tarni_index b);
/* Whether it is free, and so is the one before it. */
bool tarni_extent_is_seam(const tarn_heap *heap, tarni_index index);
/* The extent that an offset lies in. */
tarni_index tarni_extent_containing_locked(const tarn_heap *heap, uint64_t offset);
/* Takes an extent out of its tree: it is BUSY then, and the caller's. */
void tarni_extent_take_locked(tarn_heap *heap, tarni_index index);
/* Cuts a BUSY extent to [offset, offset + size); what is left over goes back to where it was.
 * False: no record is left; the extent is as it was. */
bool tarni_extent_cut_locked(tarn_heap *heap, tarni_index index, uint64_t offset, uint64_t size);
/* Takes [offset, offset + size) of a FREE extent: a BUSY one with its order. 0: no record is left,
 * and nothing has changed. */
tarni_index tarni_extent_carve_locked(tarn_heap *heap, tarni_index index, uint64_t offset,
                                      uint64_t size);
/* Makes a BUSY extent FREE with this order, VOID or ALIAS, and unites it with its like beside it.
 */
void tarni_extent_give_locked(tarn_heap *heap, tarni_index index, tarni_extent_kind kind,
                              const tarni_order *order);
uint32_t tarni_tree_of(const tarn_heap *heap, const tarni_order *order);
static inline uint32_t tarni_tree_alias(const tarn_heap *heap) {
  return 2 + heap->max_lanes;
}
/* Unites a BUSY extent with the BUSY one right after it. */
void tarni_extent_append_locked(tarn_heap *heap, tarni_index index, tarni_index following);

static inline tarni_extent *tarni_extent_at(const tarn_heap *heap, tarni_index index) {
  tarn_assert(index != 0 && index < heap->max_extents);
  return &heap->extents[index];
}

/* Whether an extent holds `size` bytes at a multiple of `alignment`. */
static inline bool tarni_extent_fits(const tarni_extent *extent, uint64_t size,
                                     uint64_t alignment) {
  const uint64_t start = tarni_align_up(extent->offset, alignment);
  return extent->size >= size && start - extent->offset <= extent->size - size;
}

/* Whether two neighbours may be parts of one extent: in a fixed heap, if one chunk has both. */
static inline bool tarni_extent_may_join(const tarn_heap *heap, const tarni_extent *extent,
                                         const tarni_extent *other) {
  return !heap->is_fixed || extent->kind == TARNI_EXTENT_VOID ||
         heap->units[tarni_unit_of(heap, extent->offset)] ==
             heap->units[tarni_unit_of(heap, other->offset)];
}

static inline uint32_t tarni_zone_of(const tarn_heap *heap, uint64_t offset) {
  return offset < heap->small_end   ? TARNI_ZONE_SMALL
         : offset < heap->large_end ? TARNI_ZONE_LARGE
                                    : TARNI_ZONE_VIEWS;
}

/* ---- order.c: orders, tickets and fences ---- */
bool tarni_order_add(tarni_order *order, tarni_index lane, uint64_t ticket);

/* The order of one lane alone. Ticket 0: there is nothing to wait for. */
static inline tarni_order tarni_order_of(tarni_order_entry entry) {
  return (tarni_order){.n = entry.ticket != 0, .lanes = {entry.lane}, .tickets = {entry.ticket}};
}

bool tarni_order_unite(tarni_order *order, const tarni_order *other);
/* The same, without what is complete by now. */
bool tarni_order_unite_open_locked(const tarn_heap *heap, tarni_order *order,
                                   const tarni_order *other);
/* The last ticket of a lane such that the stream of another may use what was freed until then
 * without any further wait. */
static inline uint64_t tarni_order_met_locked(const tarn_heap *heap, tarni_index lane,
                                              tarni_index by) {
  const tarni_lane *waiting = &heap->lanes[by];
  const uint64_t complete = heap->complete[lane];
  return lane < waiting->n_waited ? tarni_max(complete, waiting->waited[lane]) : complete;
}

/* Whether the lane's stream may use such memory without any further wait. */
bool tarni_order_is_met_locked(const tarn_heap *heap, const tarni_order *order, tarni_index lane);
bool tarni_order_is_complete_locked(const tarn_heap *heap, const tarni_order *order);
bool tarni_order_is_lost_locked(const tarn_heap *heap, const tarni_order *order);
/* The same, or it cannot be waited for now: its stream is being captured, and there is no fence. */
bool tarni_order_is_out_locked(const tarn_heap *heap, const tarni_order *order);
uint64_t tarni_ticket_locked(tarn_heap *heap, tarni_index lane);
/* Makes the lane's stream wait, on the GPU, for all of the order. */
tarn_status tarni_order_wait_grow(tarn_heap *heap, const tarni_order *order, tarni_index lane);
/* Sees to it that a fence for each part of the order is under way. */
tarn_status tarni_order_fence_grow(tarn_heap *heap, const tarni_order *order);
/* Asks which fences are complete. True: something is that was not. */
bool tarni_fences_poll_grow(tarn_heap *heap);
/* Waits, on the host, until one fence more is complete: of the lanes that count, which are all
 * where counts is NULL, the one that was recorded first, unless any is complete by now. False:
 * there is none. */
typedef bool (*tarni_lane_counts)(const tarn_heap *heap, tarni_index lane); /* under heap->lock */
bool tarni_fences_wait_grow(tarn_heap *heap, tarni_lane_counts counts);
bool tarni_lane_wait_grow(tarn_heap *heap, tarni_index lane); /* for a lane's oldest one */
/* Records a fence for the lane's ticket unless there is one. */
tarn_status tarni_lane_fence_grow(tarn_heap *heap, tarni_index index, uint64_t ticket);
tarn_status tarni_lane_last_fence_grow(tarn_heap *heap, tarni_index index, uint64_t ticket);
/* Where work of the lane is put, by any thread. */
tarn_status tarni_lane_stream(tarn_heap *heap, tarni_index index, tarn_stream *stream);
static inline bool tarni_is_legacy(tarn_stream stream) {
  return stream == NULL || stream == TARNI_STREAM_LEGACY;
}
/* TARN_CAPTURE where it is the legacy stream and work on it would break somebody's capture. */
tarn_status tarni_legacy_check(const tarn_heap *heap, tarn_stream stream);
/* Waits, on the host, for all that the lanes' streams were given. */
tarn_status tarni_lanes_finish_grow(tarn_heap *heap);
/* Gives the fences back. May be called again where it fails. */
tarn_status tarni_fences_close(tarn_heap *heap);
void tarni_lanes_close(tarn_heap *heap);

/* ---- await.c: waiting for the whole device ---- */
/* Waits, on the host, for all work of the device. */
tarn_status tarni_device_await(tarn_heap *heap);
/* What that took and could not give back is given back, which waits for the device. */
tarn_status tarni_unreturned_reap(tarn_heap *heap);

/* ---- lane.c: the streams that a heap knows ---- */
/* The lane of a stream, made if need be; or 0 where the heap does not know the stream. */
tarn_status tarni_lane_find(tarn_heap *heap, tarn_stream stream, tarni_index *lane);
tarn_status tarni_lane_known(tarn_heap *heap, tarn_stream stream, tarni_index *lane);
/* The same for a stream that cannot be asked because it is being captured. */
tarni_index tarni_lane_by_handle(tarn_heap *heap, tarn_stream stream);
/* What messages call the lane's stream: the driver's name for it, or its handle if it has none yet.
 * Returns the text. */
enum { TARNI_LANE_TEXT = 48 };
char *tarni_lane_text_locked(const tarni_lane *lane, char text[TARNI_LANE_TEXT]);
/* For a stream that cannot be asked for its name now, since it is being captured: the lane that
 * its handle is known by, else a new one, which gets its name as soon as that can be asked.
 * TARN_CAPTURE: there is no room for one. */
#define TARNI_UNNAMED UINT64_MAX
tarn_status tarni_lane_unnamed(tarn_heap *heap, tarn_stream stream, const char *operation,
                               tarni_index *lane);
/* The calling thread for the stream that each thread has of its own; NULL for all others. */
static inline const void *tarni_thread_of(tarn_stream stream) {
  return stream == TARNI_STREAM_PER_THREAD ? tarni_thread() : NULL;
}
/* What to call a stream here that another thread may have named, of which tarni_thread_of was noted
 * then: for another thread's default stream the legacy one stands, which follows all threads' ones.
 */
static inline tarn_stream tarni_stream_here(tarn_stream stream, const void *thread) {
  return thread != NULL && thread != tarni_thread() ? TARNI_STREAM_LEGACY : stream;
}
/* Whether the lane is still that stream's: between finding it and using it, with heap->lock held,
 * the stream may have been retired, and the record be another's. Then it is to be found again. A
 * function that cannot do that says TARNI_RETIRED, and nothing has happened. Under heap->grow no
 * stream is retired, and under heap->capture none but those that are gone, or of threads that are.
 */
bool tarni_lane_is_locked(const tarn_heap *heap, tarni_index lane, tarn_stream stream);
#define TARNI_RETIRED ((tarn_status)UINT8_MAX) /* never seen by a caller of the library */
/* The stream's lane is found by nobody any more, and everybody's once its work is complete. */
tarn_status tarni_lane_retire_grow(tarn_heap *heap, tarn_stream stream);
/* The same for streams that were destroyed without that, as far as it was noticed, or the heap
 * verifies streams: once the device is waited for (tarni_lanes_finish_grow). Whether there were
 * any. */
bool tarni_lanes_retire_lost_grow(tarn_heap *heap);
/* Lanes whose streams were found to be captured are asked again. */
void tarni_lanes_ask_again_locked(tarn_heap *heap);

/* ---- chunk.c, place.c, window.c, view.c, join.c, grow.c: room.h ---- */

/* ---- bin.c: free blocks of one class ---- */
/* For whoever may touch the bin; bytes are the caller's to count. Popping returns how many. */
void tarni_bin_push(tarn_heap *heap, tarni_bin *bin, const uint32_t *items, uint32_t n);
uint32_t tarni_bin_pop(tarn_heap *heap, tarni_bin *bin, uint32_t *items, uint32_t n);
void tarni_bin_put_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index, uint32_t item);
/* Takes blocks from the lane's bin, then from the common one. Returns how many. */
uint32_t tarni_bin_take_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index,
                               uint32_t *items, uint32_t n);
/* Puts what a cache's bin has to the lane's. */
void tarni_bin_join_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index, tarni_bin *bin);
/* Empties a bin that was taken out of sight into a lane's. */
void tarni_bin_attach_locked(tarn_heap *heap, tarni_index lane, uint32_t class_index,
                             tarni_bin *bin);
/* Takes all bins of the first `n_lanes` lanes out of sight, and puts them back: each where it was,
 * or all of them into the common lane's once the lanes' work up to the detaching is complete. */
void tarni_bins_detach_locked(tarn_heap *heap, uint32_t n_lanes,
                              tarni_bin (*bins)[TARNI_CLASS_COUNT]);
void tarni_bins_attach_locked(tarn_heap *heap, uint32_t n_lanes,
                              tarni_bin (*bins)[TARNI_CLASS_COUNT], bool are_complete);

/* ---- slab.c: blocks of one size ---- */
uint64_t tarni_slab_bytes(uint32_t class_index);
uint32_t tarni_slab_blocks(uint32_t class_index); /* that it is cut into */
/* Turns a BUSY extent into a slab. TARNI_CLASS_COUNT: one large block, handed out. */
void tarni_slab_make_locked(tarn_heap *heap, tarni_index index, tarni_index lane,
                            uint32_t class_index);
/* The slab that an address lies in; 0: there is none. */
tarni_index tarni_slab_at_locked(const tarn_heap *heap, uint64_t offset);
/* Gives the extent of a slab with no live block back. */
void tarni_slab_release_locked(tarn_heap *heap, tarni_index index, const tarni_order *order);
/* Where slabs with no live block are looked for. */
typedef struct tarni_sweep {
  tarni_index first, end; /* the lanes: free blocks are in their bins, */
  tarni_stack *stacks;    /* or, of the first, in these, which are the caller's; NULL: none */
  bool is_thorough;       /* also where hardly anything was freed since it was in vain */
} tarni_sweep;

/* Gives slabs with no live block back as free extents. Returns how many. */
uint32_t tarni_slab_collect_locked(tarn_heap *heap, const tarni_sweep *sweep);
/* All that the bins of all lanes have. */
void tarni_slab_collect_all_locked(tarn_heap *heap);
/* Moves all bins and free extents of a lane whose every ticket is complete to the common lane. */
void tarni_lane_settle_locked(tarn_heap *heap, tarni_index lane);

/* ---- rest.c: programs that do not come to rest ---- */

/* A chunk was mapped elsewhere, at a price, so that no memory had to be made. */
void tarni_rest_move_locked(tarn_heap *heap, uint64_t bytes);
/* Mappings that nothing uses had to go, since there were too many. */
void tarni_rest_drop_locked(tarn_heap *heap);
/* What the heap may hold above its slack, if that is to be made next. */
uint64_t tarni_rest_earned_locked(const tarn_heap *heap, uint64_t more);
/* A stream waited for so much that others had freed, so that no memory had to be made. */
void tarni_rest_steal_locked(tarn_heap *heap, uint64_t bytes);
/* Whether so much is rather made than taken from other streams. */
bool tarni_rest_may_part_locked(const tarn_heap *heap, uint64_t more);
/* Whether streams keep what they free, in extents of their own. It changes under heap->grow and
 * heap->lock, so either is enough to ask. */
static inline bool tarni_rest_is_parted(const tarn_heap *heap) {
  return heap->rest.parted_bytes != 0;
}
/* More is used than ever, perhaps, but for what is in bins. */
void tarni_rest_peak_locked(tarn_heap *heap, uint64_t unbinned);
/* That peak, or where nobody sees it that of all that is used. */
uint64_t tarni_rest_used_locked(const tarn_heap *heap);
/* Collecting took so many slabs. */
void tarni_rest_collect_locked(tarn_heap *heap, uint32_t n_slabs);
/* Whether the heap neither collects nor moves where so much more is needed, unless that cannot be
 * had. */
bool tarni_rest_is_eased_locked(const tarn_heap *heap, uint64_t more);
/* What all caches may have on their shelves; 0: nothing. */
uint64_t tarni_rest_shelves_locked(const tarn_heap *heap);

/* ---- shelf.c: large blocks that caches of eased heaps keep; pre: the cache is entered, or the
 * lock is held, and the caller owns it or has revoked it ---- */
/* Whether a large block that was freed is kept. */
bool tarni_shelf_put(tarni_cache *cache, tarni_index index, uint64_t size);
/* One that holds so much, and hardly more; 0: there is none. */
tarni_index tarni_shelf_take(tarn_heap *heap, tarni_cache *cache, uint64_t size);
/* The lowest row from this one on that has a block; TARNI_SHELF_ROWS: none has. */
uint32_t tarni_shelf_next(const tarni_shelf *shelf, uint32_t row);
/* Gives all of them back; none is kept until the next call of what follows. */
void tarni_shelf_drop_locked(tarn_heap *heap, tarni_cache *cache);
/* Gives one block back that makes so much room with what is free beside it. False: there is none.
 */
bool tarni_shelf_yield_locked(tarn_heap *heap, tarni_cache *cache, uint64_t size);
/* The shelf is as large as the heap's ease allows; two words are read where nothing is eased. */
void tarni_shelf_fit_locked(tarn_heap *heap, tarni_cache *cache);
static inline void tarni_shelf_see_locked(tarn_heap *heap, tarni_cache *cache) {
  if (TARNI_UNLIKELY(heap->rest.n_collected >= TARNI_EASE_COLLECTED || cache->shelf.limit != 0)) {
    tarni_shelf_fit_locked(heap, cache);
  }
}
/* What all shelves keep, about. */
uint64_t tarni_shelves_bytes_locked(const tarn_heap *heap);

/* ---- hoard.c: what other streams have freed ---- */

/* Has it told when that is complete, where it is most of what the heap holds. Whether it is. */
bool tarni_hoard_ask_grow(tarn_heap *heap, tarni_index lane);
/* The same unless another thread is at work with the driver. */
void tarni_hoard_visit(tarn_heap *heap, tarni_index lane);
/* So much memory was taken by a lane, or given back in that order. A lane that gives back what it
 * takes has never taken more than is used: what it took beyond that others have given back. */
static inline void tarni_hoard_take_locked(tarn_heap *heap, tarni_index lane, uint64_t bytes) {
  tarni_hoard *hoard = &heap->hoard;
  const int64_t least = -(int64_t)heap->used_bytes, surplus = heap->lanes[lane].surplus;
  heap->lanes[lane].surplus = (surplus > least ? surplus : least) - (int64_t)bytes;
  hoard->is_due |= hoard->left_bytes != 0 && hoard->left_bytes <= bytes;
  hoard->left_bytes -= tarni_min(hoard->left_bytes, bytes);
}
static inline void tarni_hoard_give_locked(tarn_heap *heap, const tarni_order *order,
                                           uint64_t bytes) {
  for (uint32_t i = 0; i < order->n; i++) {
    heap->lanes[order->lanes[i]].surplus += (int64_t)(bytes / order->n);
  }
}

/* ---- tide.c: rounds of a program ---- */
/* What is used has changed. */
void tarni_tide_note_locked(tarn_heap *heap);
/* A large block is to be found: at low water, what the cache and its lane keep is collected first.
 * pre: the cache is the caller's, and it is outside of it. */
void tarni_tide_turn_locked(tarn_heap *heap, tarni_cache *cache);
/* Whether a job has ended, and no later one has used more so far. */
bool tarni_tide_is_again_locked(const tarn_heap *heap);
/* All is free, and begins anew: no cache is beached. */
void tarni_tide_forget_locked(tarn_heap *heap);
/* A large block has gone: where hardly anything is used any more, the cache is beached. */
void tarni_tide_beach_locked(tarn_heap *heap, tarni_cache *cache);
/* A small block is to be found or has gone, perhaps in a cache that is beached. pre: it is not
 * dead. */
void tarni_tide_wade_locked(tarn_heap *heap, tarni_cache *cache, bool is_alloc);

/* ---- cache.c: threads' caches: cache.h ---- */

/* ---- grant.c, bucket.c, bucket_shortage.c, bucket_audit.c: bucket.h ---- */

/* ---- audit.c: the check of a heap ---- */
tarn_status tarni_audit_compare(const char *what, uint64_t counted, uint64_t found);
tarn_status tarni_audit_lanes(const tarn_heap *heap);
/* Every entry of uses is a live block's; there are so many of them. */
tarn_status tarni_audit_uses(const tarn_heap *heap, uint64_t n_marked);

/* ---- alloc.c, free.c: what watched calls come down to ---- */
/* Where a large block is best begun. */
uint64_t tarni_large_alignment_locked(const tarn_heap *heap, uint64_t size, uint64_t least);
/* pre: bytes is not 0; alignment is a power of two up to 2 MiB. */
tarn_status tarni_alloc_plain(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block);
/* pre: a live block begins at the offset; of a heap with buckets, any address. */
tarn_status tarni_free_plain(tarn_heap *heap, uint64_t offset, tarn_stream stream);
/* The same where this thread has just used the stream: asks nobody what the handle means, and
 * cannot fail then, so that what was done before it need not be undone. pre: no buckets. */
tarn_status tarni_free_known(tarn_heap *heap, uint64_t offset, tarn_stream stream);
/* Whether a live block of a heap with slabs was named by tarn_use. */
bool tarni_block_has_uses(const tarn_heap *heap, uint64_t offset);

/* ---- watch.c: heaps that look at every call ---- */
/* From here on every allocation and free comes to the functions below, until as many have ended. */
void tarni_watch_begin_locked(tarn_heap *heap);
void tarni_watch_end_locked(tarn_heap *heap);
tarn_status tarni_watch_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                              tarn_stream stream, tarn_ptr *block);
tarn_status tarni_watch_free(tarn_heap *heap, uint64_t offset, tarn_stream stream);

static inline bool tarni_is_watched(const tarn_heap *heap) {
  return atomic_load_explicit(&heap->n_watchers, memory_order_relaxed) != 0;
}

/* ---- sleep.c: heaps that keep their addresses only ---- */
static inline bool tarni_is_asleep(const tarn_heap *heap) {
  return atomic_load_explicit(&heap->is_asleep, memory_order_relaxed);
}

/* Whether the heap is awake: else the error. */
tarn_status tarni_sleep_refuse(const tarn_heap *heap, const char *operation);
/* Gives back what a heap that sleeps, or has slept, holds. May be called again where it fails. */
tarn_status tarni_sleep_give_back(tarn_heap *heap);
void tarni_sleep_close(tarn_heap *heap);

/* ---- shortage.c: the ladder ---- */
/* Takes note of all that is complete by now: blocks, retired streams. */
void tarni_shortage_note_grow(tarn_heap *heap);
/* The same, and gives back what may go: places that chunks left, doomed grants. */
void tarni_shortage_reap_grow(tarn_heap *heap);
/* The error of a shortage with all the numbers, or that the device is lost. */
tarn_status tarni_shortage_report(tarn_heap *heap, tarn_status status, uint64_t bytes,
                                  const tarn_error *cause);
/* Whether no step can help: more than the heap may ever hold is asked for. */
bool tarni_shortage_is_beyond_locked(const tarn_heap *heap, uint64_t size);
/* TARN_CAPTURE where the lane's stream is in a capture that nobody announced: all that helps would
 * break it. */
tarn_status tarni_shortage_stream_check(tarn_heap *heap, tarni_index lane);
/* The heap's policy; never where the lane's stream is the legacy one, and may not wait for others
 * since that would break a capture. */
tarn_stealing tarni_shortage_stealing(const tarn_heap *heap, tarni_index lane);
tarn_status tarni_shortage_obtain(tarn_heap *heap, tarni_cache *cache, const tarni_need *need,
                                  tarni_index *extent);

/* ---- use.c: blocks that several streams use ---- */
/* Makes free blocks of those whose uses are complete. */
void tarni_uses_reap_grow(tarn_heap *heap);
/* Whether there are any that are freed and not complete. */
bool tarni_uses_are_pending(tarn_heap *heap);
/* Waits, on the host, for a fence that one of them waits for. False: there is none. */
bool tarni_uses_wait_grow(tarn_heap *heap);
/* The bytes of the largest of them that waits for the lane. */
uint64_t tarni_uses_largest_locked(const tarn_heap *heap, tarni_index lane);
/* Looks for such blocks of a fixed heap, unless another thread is at work with the driver. */
void tarni_uses_poll(tarn_heap *heap);
/* The same in steps: out of use (NULL: it was not live), then pending. Its bytes are counted by the
 * caller. */
tarni_uses *tarni_uses_detach_locked(tarn_heap *heap, uint64_t offset);
void tarni_uses_pend_locked(tarn_heap *heap, tarni_uses *uses, tarni_index lane);
void tarni_uses_drop(tarni_uses *uses); /* a whole list, when the heap goes */
/* Frees a block that was named by tarn_use, and counts that. pre: it is live; heap->lock is not
 * held. TARNI_RETIRED: the lane is not the stream's any more. */
tarn_status tarni_uses_free(tarn_heap *heap, uint64_t offset, tarni_index lane, tarn_stream stream);
/* Frees a block by way of the entry: it counts as pending, and is held back. The one that was held
 * back first is pending from now on. */
void tarni_uses_hold_locked(tarn_heap *heap, tarni_uses *uses, uint64_t offset, tarni_index lane);
void tarni_uses_unhold_locked(tarn_heap *heap);
/* Makes the lane's stream wait, on the GPU, for all other uses of a live block, which are forgotten
 * then: its order is the lane's alone. */
tarn_status tarni_uses_absorb(tarn_heap *heap, uint64_t offset, tarni_index lane,
                              tarn_stream stream);
void tarni_uses_close(tarn_heap *heap);

/* ---- block.c: what a pointer is ---- */
typedef struct tarni_block {
  uint64_t offset, bytes;
  tarni_index extent; /* or the grant */
  bool is_live;
} tarni_block;

/* The block, live or free, that holds the offset. False: no slab is there. */
bool tarni_block_find_locked(const tarn_heap *heap, uint64_t offset, tarni_block *block);
/* Whether a live block begins there. */
bool tarni_block_is_live(tarn_heap *heap, uint64_t offset);
/* What a request of so many bytes, not 0, becomes. False: that is no number. */
bool tarni_block_size_of(const tarn_heap *heap, uint64_t bytes, uint64_t alignment, uint64_t *size);
/* Says why a pointer is no live block. */
tarn_status tarni_block_refuse(tarn_heap *heap, tarn_ptr pointer, const char *operation);

/* ---- host.c: host memory that is known to be pinned ---- */
tarn_status tarni_host_add_pool(tarn_pinned *pool, const tarni_port *device, uint64_t first,
                                uint64_t bytes);
/* Forgets a pool that goes, before it goes. What is returned is freed then or, where it stays, put
 * back: that needs no memory. */
void *tarni_host_take_pool(const tarn_pinned *pool);
void tarni_host_put_pool(void *taken);

/* ---- pinned.c: heaps of the host's memory ---- */
tarn_heap *tarni_pinned_heap(tarn_pinned *pool);
uint64_t tarni_pinned_live_limit(const tarn_pinned *pool); /* UINT64_MAX: none */

/* ---- budget.c: blocks that are held for work to come ---- */
/* Gives back what budgets hold that could not be made, as far as the driver lets it. */
void tarni_budgets_reap(tarn_heap *heap);
/* The same for a stream that goes: an error where they still hold blocks of it. */
tarn_status tarni_budgets_leave(tarn_heap *heap, tarn_stream stream);
/* The heap goes: so do they. */
void tarni_budgets_close(tarn_heap *heap);

/* ---- strict.c: captures that make calls illegal ---- */
/* Whether this thread may not ask about events now, nor wait, because that would break a capture.
 */
bool tarni_capture_forbids(void);
/* TARN_CAPTURE where a call that needs the driver would break a capture. */
tarn_status tarni_capture_allows(const char *operation);

/* ---- captured.c: blocks of captures; each is one load where there is none ---- */
/* Allocates on a stream that may be captured. *block stays 0 where it is not. */
tarn_status tarni_capture_alloc(tarn_heap *heap, uint64_t bytes, uint64_t alignment,
                                tarn_stream stream, tarn_ptr *block);
/* Frees a live block of the heap on a stream that may be captured. *is_deferred is false where the
 * stream is not, or the block is not live any more. */
tarn_status tarni_capture_defer(tarn_heap *heap, uint64_t offset, tarn_stream stream,
                                bool *is_deferred);
/* Frees, uses, describes what may be a captured block. False: it is none. */
bool tarni_arena_free(tarn_heap *heap, tarn_ptr block, tarn_stream stream, tarn_status *status);
bool tarni_arena_use(tarn_heap *heap, tarn_ptr block, tarn_stream stream, tarn_status *status);
bool tarni_arena_block(tarn_heap *heap, tarn_ptr pointer, tarn_block_info *info);

/* ---- capture.c, parked.c, arena.c, graph.c, defer.c: for the heap; those that end in _held need
 * heap->capture ---- */
/* Whether captures let the heap go; what is left of them, then of graphs and arenas. */
tarn_status tarni_captures_close_held(tarn_heap *heap);
void tarni_captures_free(tarn_heap *heap);
/* Whether something may use memory of captures, or blocks that were freed in them, that no ticket
 * stands for. */
bool tarni_captures_are_unsure_held(const tarn_heap *heap);
/* The stream is about to be retired: what it freed in captures does not wait for it any more. */
tarn_status tarni_captures_leave_held(tarn_heap *heap, tarn_stream stream);
/* Gives back what waited for work that is complete by now. */
void tarni_captures_reap_held(tarn_heap *heap);
void tarni_captures_reap(tarn_heap *heap); /* the same; hardly anything where none have left any */
/* The same, and waits for that work. Whether anything came back. */
bool tarni_captures_finish(tarn_heap *heap);
/* What no ticket stands for is complete when everything is: where something that nobody has any
 * more waits for that, the device is waited for, if no capture forbids it, and it is given back.
 * Whether that was so. */
bool tarni_captures_sure_held(tarn_heap *heap);
/* The heap goes. is_lost: so does the device, and what is the host's goes whatever the driver says.
 */
tarn_status tarni_graphs_close(tarn_heap *heap, bool is_lost);
tarn_status tarni_arenas_close(tarn_heap *heap, bool is_lost);
/* Captured blocks that are live, and their bytes. */
uint64_t tarni_arenas_live_held(const tarn_heap *heap, uint64_t *bytes);
tarn_status tarni_arenas_check_held(const tarn_heap *heap);
/* histogram.c: a block that captures keep, or do not any more. */
void tarni_histogram_defer_locked(tarn_heap *heap, const tarni_extent *slab, bool is_deferred);
/* Shows each block of the heap that a graph holds. Needs heap->capture, too. */
typedef void (*tarni_deferred_visit)(void *user, uint64_t offset, uint64_t bytes);
void tarni_graphs_each_locked(tarn_heap *heap, tarni_deferred_visit visit, void *user);
/* Counts the blocks that captures keep, for the check; gives their bytes. */
uint64_t tarni_deferred_see_locked(tarn_heap *heap);

/* Whether captures have left anything: arenas, or blocks that were freed in them. */
static inline bool tarni_captures_left_any(tarn_heap *heap) {
  return atomic_load_explicit(&heap->n_arenas, memory_order_relaxed) != 0 ||
         atomic_load_explicit(&heap->n_over, memory_order_relaxed) != 0;
}

/* While captures are announced, and always for a heap that asks, no allocation is a hit. */
static inline bool tarni_captures_announced(tarn_heap *heap) {
  return atomic_load_explicit(&heap->n_captures, memory_order_relaxed) != 0;
}

/* Physical memory of the heap and of its captures: what the limit is for. */
static inline uint64_t tarni_held_bytes_locked(const tarn_heap *heap) {
  return heap->reserved_bytes + heap->captured_bytes;
}

/* What is held has grown: the peaks of the heap and of open scopes. */
static inline void tarni_held_note_locked(tarn_heap *heap) {
  const uint64_t held = tarni_held_bytes_locked(heap) + heap->unreturned_bytes;
  heap->reserved_peak_bytes = tarni_max(heap->reserved_peak_bytes, held);
  heap->recent_reserved_peak = tarni_max(heap->recent_reserved_peak, held);
}

/* ---- stats.c: what was counted ---- */
tarn_heap_stats tarni_stats_locked(const tarn_heap *heap);
/* Adds what a cache has counted. */
void tarni_counts_add(tarni_counts *sum, const tarni_cache *cache);
/* What all caches, those that are gone included, have counted: while no other call is under way, or
 * at one moment whatever others do. */
tarni_counts tarni_counts_locked(const tarn_heap *heap);
tarni_counts tarni_counts_exactly_locked(tarn_heap *heap);
/* Their sums. */
tarni_large_counts tarni_counts_total(const tarni_counts *counts);
/* Live bytes of a heap without caches. */
uint64_t tarni_live_locked(const tarn_heap *heap);

/* ---- scope_stats.c: statistics of a region ---- */
/* An allocation was counted, under the same lock: notes what is live, where somebody wants the
 * exact peak. */
void tarni_scopes_note_locked(tarn_heap *heap);
/* The heap goes: its scopes that did not end are nobody's. */
void tarni_scopes_close(tarn_heap *heap);

#endif
