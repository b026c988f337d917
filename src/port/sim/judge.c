/* SPDX-License-Identifier: MIT
 *
 * The oracle: judges every use of memory by the order that streams, events and the host really
 * give, as vector clocks know it. It needs no luck: a use that is not ordered is found when it is
 * submitted, whether or not the simulated timing would have hurt.
 *
 * Two uses of a byte conflict if they are for different owners, or if one of them writes. A use is
 * in order if every earlier use that it conflicts with is in the clock of its actor. A history need
 * not keep a use E once every later use that conflicts with E, and is not ordered after it, must
 * conflict with a kept use and not be ordered after that one either:
 *   - the host has seen E complete: everything that comes is ordered after it;
 *   - a write U is ordered after E: everything conflicts with U;
 *   - a read U for the same owner is ordered after the read E: whoever conflicts with E does so
 *     with U;
 *   - a read U is ordered after E, and a later use K of E's own slot is kept that writes or is for
 *     another owner than U: whoever conflicts with E does so with K or with U. */
#include <stdlib.h>

#include "base/bits.h"
#include "base/check.h"
#include "port/sim/sim.h"

uint64_t tarni_sim_oracle_stamp(void) {
  return ++tarni_sim_world.last_stamp;
}

/* ---- The ranges of a piece of work ---- */

/* A range that the work uses, and the device in whose memory it is; NULL: ordinary memory, which is
 * not watched, but may run into memory of a device. */
typedef struct used_range {
  sim_device *device;
  tarn_sim_range range;
  bool is_judged; /* not the words of value operations: they are there to be raced for */
  bool is_now;    /* the host reads it when the work is submitted, whatever the stream waits for */
} used_range;

/* Kernels and pools name their ranges; of the others two are looked for. */
static uint32_t work_n_ranges(const sim_work *work) {
  return work->n_ranges != 0 || work->kind == SIM_OP_KERNEL ? work->n_ranges : 2;
}

static used_range range_at(sim_device *device, tarn_ptr address, uint64_t bytes, bool is_write) {
  return (used_range){.device = tarni_sim_device_at(device, address, true),
                      .range = {.address = address, .bytes = bytes, .is_write = is_write},
                      .is_judged = true};
}

/* The index-th range; it has no bytes if the work has none there. */
static used_range work_range(sim_device *device, const sim_work *work, uint32_t index) {
  if (index < work->n_ranges) {
    const tarn_sim_range *range = tarni_sim_work_range(work, index);
    /* Nothing there: then the device that was asked has nothing there. */
    sim_device *where = tarni_sim_device_at(device, range->address, false);
    return (used_range){
        .device = where != NULL ? where : device, .range = *range, .is_judged = true};
  }
  const bool is_first = index == work->n_ranges;
  if (work->kind == SIM_OP_COPY && is_first && !work->owns_source) {
    used_range source = range_at(device, work->source, work->size, false);
    source.is_now = work->reads_now;
    return source;
  }
  if (!is_first && (work->kind == SIM_OP_COPY || work->kind == SIM_OP_FILL)) {
    return range_at(device, work->destination, work->size, true);
  }
  if (is_first && work->word != NULL) {
    used_range word = range_at(device, (uintptr_t)work->word, sizeof(*work->word),
                               work->kind == SIM_OP_VALUE_WRITE);
    word.is_judged = false;
    return word;
  }
  return (used_range){0};
}

/* ---- Pieces: a range, mapping by mapping ---- */

typedef struct use_piece {
  sim_mapping *mapping; /* NULL: ordinary memory */
  uint64_t offset;      /* in the mapping, and so in the chunk */
  uint64_t size;
} use_piece;

/* pre: what a device has of the range is mapped. */
static use_piece piece_at(const used_range *used, tarn_ptr at) {
  const tarn_ptr end = used->range.address + used->range.bytes;
  tarn_ptr next = end;
  sim_device *device = used->device != NULL ? used->device : tarni_sim_device_next(at, &next);
  if (device == NULL) {
    return (use_piece){.size = next - at};
  }
  sim_mapping *mapping = tarni_sim_mapping_find(device, at);
  tarn_assert(mapping != NULL && "judged is only what is mapped");
  return (use_piece){.mapping = mapping,
                     .offset = at - mapping->address,
                     .size = tarni_min(end, mapping->address + mapping->size) - at};
}

/* Most work is a kernel with one range inside one mapping: that piece, or one without a mapping. */
static use_piece only_piece(sim_device *device, const sim_work *work) {
  use_piece piece = {0};
  if (work->n_ranges == 1 && work->ranges == NULL && work->range.bytes != 0) {
    sim_mapping *mapping = tarni_sim_mapping_find(device, work->range.address);
    if (mapping != NULL && mapping->has_access &&
        work->range.bytes <= mapping->size - (work->range.address - mapping->address)) {
      piece = (use_piece){.mapping = mapping,
                          .offset = work->range.address - mapping->address,
                          .size = work->range.bytes};
    }
  }
  return piece;
}

/* ---- Is it mapped? ---- */

/* What is no device's is ordinary memory, or it has gone since it was captured. */
static bool range_is_there(const used_range *used) {
  const tarn_sim_range *range = &used->range;
  if (used->device == NULL) {
    return range->bytes == 0 || tarni_sim_bytes_is_host(range->address, range->bytes);
  }
  return tarni_sim_range_is_mapped(used->device, range->address, range->bytes);
}

bool tarni_sim_oracle_is_mapped(sim_device *device, const sim_actor *actor, const sim_work *work) {
  if (only_piece(device, work).mapping != NULL) {
    return true;
  }
  bool is_mapped = true;
  for (uint32_t i = 0; i < work_n_ranges(work); i++) {
    const used_range used = work_range(device, work, i);
    if (range_is_there(&used)) {
      continue;
    }
    is_mapped = false;
    const sim_use use = {.epoch = actor->epoch,
                         .stream_id = actor->stream_id,
                         .owner = used.range.owner,
                         .operation = (uint8_t)actor->operation,
                         .is_write = used.range.is_write};
    tarn_sim_finding finding = {
        .kind = TARN_SIM_UNMAPPED, .address = used.range.address, .bytes = used.range.bytes};
    tarni_sim_oracle_find_uses(device, &finding, "nothing is mapped there", NULL, &use);
  }
  return is_mapped;
}

/* ---- Room ---- */

static bool piece_cut(const use_piece *piece) {
  return tarni_sim_shadow_cut(piece->mapping->chunk->shadow, piece->offset, piece->size);
}

static bool range_cut(const used_range *used) {
  const tarn_ptr end = used->range.address + used->range.bytes;
  bool is_good = true;
  for (tarn_ptr at = used->range.address; is_good && at < end;) {
    const use_piece piece = piece_at(used, at);
    is_good = piece.mapping == NULL || piece_cut(&piece);
    at += piece.size;
  }
  return is_good;
}

bool tarni_sim_oracle_cut(sim_device *device, const sim_work *work) {
  const use_piece only = only_piece(device, work);
  if (only.mapping != NULL) {
    return piece_cut(&only);
  }
  bool is_good = true;
  for (uint32_t i = 0; is_good && i < work_n_ranges(work); i++) {
    const used_range used = work_range(device, work, i);
    is_good = !used.is_judged || range_cut(&used);
  }
  return is_good;
}

static bool visit_reserve(sim_history **slot, uint64_t offset, uint64_t size, void *user) {
  (void)offset;
  (void)size;
  const uint64_t *stamp = user;
  return tarni_sim_history_reserve(slot, *stamp);
}

static bool mapping_reserve(sim_mapping *mapping, uint64_t stamp) {
  const uint32_t n_before = mapping->stamp == stamp ? mapping->n_reserved : 0;
  if (mapping->n_uses + n_before + 1 > mapping->uses_capacity) {
    const uint32_t capacity = (mapping->n_uses + n_before) * 2 + 2;
    sim_use *uses = tarni_sim_store_resize(mapping->uses, capacity, sizeof(*uses));
    if (uses == NULL) {
      return false;
    }
    mapping->uses = uses;
    mapping->uses_capacity = capacity;
  }
  mapping->stamp = stamp;
  mapping->n_reserved = n_before + 1;
  return true;
}

static bool piece_reserve(const use_piece *piece, bool is_judged, uint64_t stamp) {
  return mapping_reserve(piece->mapping, stamp) &&
         (!is_judged || tarni_sim_shadow_walk(piece->mapping->chunk->shadow, piece->offset,
                                              piece->size, visit_reserve, &stamp));
}

static bool range_reserve(const used_range *used, uint64_t stamp) {
  const tarn_ptr end = used->range.address + used->range.bytes;
  bool is_good = true;
  for (tarn_ptr at = used->range.address; is_good && at < end;) {
    const use_piece piece = piece_at(used, at);
    is_good = piece.mapping == NULL || piece_reserve(&piece, used->is_judged, stamp);
    at += piece.size;
  }
  return is_good;
}

bool tarni_sim_oracle_reserve(sim_device *device, const sim_work *work, uint64_t stamp) {
  const use_piece only = only_piece(device, work);
  if (only.mapping != NULL) {
    return piece_reserve(&only, true, stamp);
  }
  bool is_good = true;
  for (uint32_t i = 0; is_good && i < work_n_ranges(work); i++) {
    const used_range used = work_range(device, work, i);
    is_good = range_reserve(&used, stamp);
  }
  return is_good;
}

/* ---- The verdict ---- */

/* One use, as it walks over the histories of its range. */
typedef struct use_walk {
  sim_device *device; /* that is told what is found */
  const sim_actor *actor;
  const tarn_sim_range *range;
  tarn_ptr origin; /* address of the chunk's first byte */
} use_walk;

static bool is_ordered(const sim_actor *actor, const sim_use *earlier) {
  return tarni_sim_clock_at(actor->clock, earlier->slot) >= earlier->epoch;
}

static bool is_seen(const sim_use *use) {
  return tarni_sim_clock_at(&tarni_sim_world.host, use->slot) >= use->epoch;
}

/* Whether `history` keeps a use of the same slot, after the index-th, that covers it together with
 * a read for `owner`. */
static bool is_covered(const sim_history *history, uint32_t index, uint64_t owner) {
  const sim_use *earlier = &history->uses[index];
  for (uint32_t i = index + 1; i < history->n_uses; i++) {
    const sim_use *later = &history->uses[i];
    if (later->slot == earlier->slot && later->epoch > earlier->epoch &&
        (later->is_write || later->owner != owner)) {
      return true;
    }
  }
  return false;
}

static bool is_needed(const sim_history *history, uint32_t index, const sim_use *use,
                      bool ordered) {
  const sim_use *earlier = &history->uses[index];
  if (is_seen(earlier)) {
    return false;
  }
  if (!ordered) {
    return true;
  }
  return !use->is_write && (earlier->is_write || earlier->owner != use->owner) &&
         !is_covered(history, index, use->owner);
}

static void find_conflict(const use_walk *walk, const sim_use *earlier, const sim_use *use,
                          tarn_sim_finding *finding) {
  if (earlier->owner != use->owner) {
    finding->kind = TARN_SIM_REUSE;
    tarni_sim_oracle_find_uses(walk->device, finding, "reuse without order", earlier, use);
  } else if (earlier->is_write || use->is_write) {
    finding->kind = TARN_SIM_RACE;
    tarni_sim_oracle_find_uses(walk->device, finding, "race", earlier, use);
  }
}

/* Compares a use with those before it, forgets those that need not be kept, and adds it. */
static void history_judge(const use_walk *walk, sim_history *history, const sim_use *use,
                          tarn_sim_finding *finding) {
  const uint32_t n = history->n_uses;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; i++) {
    sim_use *earlier = &history->uses[i];
    const bool ordered = is_ordered(walk->actor, earlier);
    if (!ordered) {
      find_conflict(walk, earlier, use, finding);
    } else if (earlier->slot == use->slot && earlier->epoch == use->epoch &&
               earlier->owner == use->owner) {
      earlier->is_write = earlier->is_write || use->is_write; /* a second range of one operation */
      history->uses[kept] = *earlier;
      for (i++, kept++; i < n; i++, kept++) {
        history->uses[kept] = history->uses[i];
      }
      history->n_uses = kept;
      return;
    }
    if (is_needed(history, i, use, ordered)) {
      history->uses[kept++] = *earlier;
    }
  }
  tarn_assert(kept < history->capacity && "room was reserved");
  history->uses[kept] = *use;
  history->n_uses = kept + 1;
}

static bool visit_judge(sim_history **slot, uint64_t offset, uint64_t size, void *user) {
  const use_walk *walk = user;
  sim_history *history = *slot;
  tarn_assert(history != NULL && history->references == 1 && "room was reserved");
  const sim_use use = {.epoch = walk->actor->epoch,
                       .stream_id = walk->actor->stream_id,
                       .owner = walk->range->owner != 0 ? walk->range->owner : history->owner,
                       .slot = walk->actor->slot,
                       .operation = (uint8_t)walk->actor->operation,
                       .is_write = walk->range->is_write};
  tarn_sim_finding finding = {
      .address = walk->origin + offset, .bytes = size, .owner = history->owner};
  /* What its owner has given back still goes back to its pool, and a heap may work on it: both must
   * do so in order. */
  const bool is_gone =
      history->is_freed && use.operation != SIM_OP_POOL_FREE && !walk->actor->is_manager;
  if (is_gone || use.owner != history->owner) {
    finding.kind = TARN_SIM_FREED;
    const sim_use *last = history->n_uses != 0 ? &history->uses[history->n_uses - 1] : NULL;
    tarni_sim_oracle_find_uses(walk->device, &finding,
                               history->is_freed ? "use after free" : "use of another's memory",
                               last, &use);
    return true; /* judged once; the history stays that of the rightful owner */
  }
  history_judge(walk, history, &use, &finding);
  return true;
}

/* Remembers who used a mapping last, for the day when it is unmapped. */
static void mapping_note(sim_mapping *mapping, const sim_actor *actor,
                         const tarn_sim_range *range) {
  const sim_use use = {.epoch = actor->epoch,
                       .stream_id = actor->stream_id,
                       .owner = range->owner,
                       .slot = actor->slot,
                       .operation = (uint8_t)actor->operation,
                       .is_write = range->is_write};
  for (uint32_t i = 0; i < mapping->n_uses; i++) {
    sim_use *known = &mapping->uses[i];
    if (known->slot == actor->slot || is_seen(known)) {
      *known = use;
      return;
    }
  }
  tarn_assert(mapping->n_uses < mapping->uses_capacity && "room was reserved");
  mapping->uses[mapping->n_uses++] = use;
}

static void piece_judge(use_walk *walk, const use_piece *piece, bool is_judged) {
  walk->origin = piece->mapping->address;
  if (is_judged) {
    (void)tarni_sim_shadow_walk(piece->mapping->chunk->shadow, piece->offset, piece->size,
                                visit_judge, walk);
  }
  mapping_note(piece->mapping, walk->actor, walk->range);
}

static void range_judge(use_walk *walk, const used_range *used) {
  const tarn_ptr end = used->range.address + used->range.bytes;
  for (tarn_ptr at = used->range.address; at < end;) {
    const use_piece piece = piece_at(used, at);
    if (piece.mapping != NULL) {
      piece_judge(walk, &piece, used->is_judged);
    }
    at += piece.size;
  }
}

void tarni_sim_oracle_judge(sim_device *device, const sim_actor *actor, const sim_work *work) {
  use_walk walk = {.device = device, .actor = actor, .range = &work->range};
  const use_piece only = only_piece(device, work);
  if (only.mapping != NULL) {
    piece_judge(&walk, &only, true);
    return;
  }
  for (uint32_t i = 0; i < work_n_ranges(work); i++) {
    const used_range used = work_range(device, work, i);
    sim_actor host = *actor;
    host.clock = &tarni_sim_world.host;
    walk.actor = used.is_now ? &host : actor;
    walk.range = &used.range;
    range_judge(&walk, &used);
  }
}

static void range_merge(const used_range *used) {
  const tarn_ptr end = used->range.address + used->range.bytes;
  for (tarn_ptr at = used->range.address; at < end;) {
    const use_piece piece = piece_at(used, at);
    if (piece.mapping != NULL) {
      tarni_sim_shadow_merge(piece.mapping->chunk->shadow, piece.offset, piece.size);
    }
    at += piece.size;
  }
}

void tarni_sim_oracle_merge(sim_device *device, const sim_work *work) {
  const use_piece only = only_piece(device, work);
  if (only.mapping != NULL) {
    tarni_sim_shadow_merge(only.mapping->chunk->shadow, only.offset, only.size);
    return;
  }
  for (uint32_t i = 0; i < work_n_ranges(work); i++) {
    const used_range used = work_range(device, work, i);
    if (used.is_judged) {
      range_merge(&used);
    }
  }
}

/* ---- Owners ---- */

typedef struct owner_change {
  uint64_t owner;
  bool is_freed;
} owner_change;

static bool visit_own(sim_history **slot, uint64_t offset, uint64_t size, void *user) {
  (void)offset;
  (void)size;
  const owner_change *change = user;
  (*slot)->owner = change->owner;
  (*slot)->is_freed = change->is_freed;
  return true;
}

bool tarni_sim_oracle_own(sim_device *device, tarn_ptr address, uint64_t size, uint64_t owner,
                          bool is_freed) {
  const used_range used = {
      .device = device, .range = {.address = address, .bytes = size}, .is_judged = true};
  const tarn_ptr end = address + size;
  uint64_t no_stamp = 0;
  if (!range_cut(&used)) {
    return false;
  }
  for (tarn_ptr at = address; at < end;) {
    const use_piece piece = piece_at(&used, at);
    tarn_assert(piece.mapping != NULL);
    if (!tarni_sim_shadow_walk(piece.mapping->chunk->shadow, piece.offset, piece.size,
                               visit_reserve, &no_stamp)) {
      return false;
    }
    at += piece.size;
  }
  owner_change change = {.owner = owner, .is_freed = is_freed};
  for (tarn_ptr at = address; at < end;) {
    const use_piece piece = piece_at(&used, at);
    tarn_assert(piece.mapping != NULL);
    (void)tarni_sim_shadow_walk(piece.mapping->chunk->shadow, piece.offset, piece.size, visit_own,
                                &change);
    at += piece.size;
  }
  range_merge(&used);
  return true;
}
