/* SPDX-License-Identifier: MIT
 *
 * Random programs: streams, blocks, budgets, scopes of statistics, limits. */
#include <sched.h>
#include <stdlib.h>

#include "port/port.h"
#include "stress/stress_life.h"

enum { EDGE = 64, WHOLE = 8 << 10 };

/* ---- Chance, and what calls may answer ---- */

uint64_t life_below(life_thread *self, uint64_t bound) {
  return tarni_rng_below(&self->rng, bound);
}

bool life_chance(life_thread *self, uint64_t percent) {
  return life_below(self, 100) < percent;
}

static bool is_fault(tarn_status status) {
  return status == TARN_DEVICE_MEMORY || status == TARN_UNSUPPORTED ||
         status == TARN_ADDRESS_SPACE || status == TARN_HOST_MEMORY;
}

static bool is_expected(tarn_status status, int may) {
  switch ((int)status) {
  case TARN_DEVICE_MEMORY:
  case TARN_LIMIT:
    return (may & LIFE_SHORT) != 0;
  case TARN_CAPTURE:
    return (may & LIFE_CAPTURE) != 0;
  case TARN_STATE:
    return (may & LIFE_STATE) != 0;
  case TARN_BUSY:
    return (may & LIFE_BUSY) != 0;
  case TARN_UNSUPPORTED:
    return (may & LIFE_UNSUPPORTED) != 0;
  default:
    return false;
  }
}

bool life_passed(life_thread *self, tarn_status status, int may) {
  if (status == TARN_OK) {
    return true;
  }
  const bool is_struck = self->life->has_faults && is_fault(status);
  const int may_also =
      self->life->has_unretired ? LIFE_STATE : 0; /* a stream is gone: it is told */
  if (self->life->is_lost) {
    CHECK(status != TARN_CORRUPT);
  } else if (!is_expected(status, may | may_also) && !is_struck) {
    CHECK_OK(status);
  }
  self->n_refused++;
  return false;
}

bool life_struck(life_thread *self, tarn_status status) {
  if (self->life->is_lost) {
    CHECK(status != TARN_CORRUPT);
    return false;
  }
  if (!self->life->has_faults || !is_fault(status) || test_case_failed()) {
    CHECK_OK(status);
    return false;
  }
  self->n_struck++;
  return true;
}

/* ---- Streams ---- */

bool life_is_captured(const life_thread *self, tarn_stream stream) {
  const life_capture *c = &self->capture;
  return c->is_going_on && (stream == c->origin || (c->is_forked && stream == c->side));
}

bool life_is_usable(const life_thread *self, tarn_stream stream) {
  return !life_is_captured(self, stream) && !(stream == NULL && self->life->n_per_thread != 0);
}

bool life_may_wait(const life_thread *self) {
  const life_capture *c = &self->capture;
  return self->life->n_global == 0 && (!c->is_going_on || c->mode == TARN_CAPTURE_RELAXED);
}

tarn_stream life_pick_stream(life_thread *self) {
  for (int i = 0; i < 4; i++) {
    const uint64_t dice = life_below(self, 10);
    tarn_stream stream = NULL;
    if (dice < LIFE_COMMON) {
      return self->life->common[dice];
    }
    if (dice < LIFE_COMMON + LIFE_OWN) {
      stream = self->own[dice - LIFE_COMMON];
    } else if (dice < 8 || !self->life->has_legacy) {
      stream = LIFE_PER_THREAD;
    }
    if (life_is_usable(self, stream)) {
      return stream;
    }
  }
  return self->life->common[0];
}

void life_order(life_thread *self, tarn_stream before, tarn_stream after) {
  tarni_port *port = (tarni_port *)self->life->device;
  tarni_event event;
  tarn_status status;
  if (before == after) {
    return;
  }
  do {
    status = tarni_port_event_create(port, &event);
  } while (status != TARN_OK && life_struck(self, status));
  do {
    status = tarni_port_event_record(port, event, before);
  } while (status != TARN_OK && life_struck(self, status));
  do {
    status = tarni_port_event_wait(port, after, event);
  } while (status != TARN_OK && life_struck(self, status));
  do {
    status = tarni_port_event_destroy(port, event);
  } while (status != TARN_OK && life_struck(self, status));
}

/* Nothing of the thread is ordered with the stream any more. */
static void stream_empty(life_thread *self, tarn_stream stream) {
  const tarn_stream to = self->life->common[life_below(self, LIFE_COMMON)];
  for (int i = 0; i < self->n; i++) {
    if (self->live[i].stream == stream) {
      CHECK(life_move(self, &self->live[i], to));
    }
  }
  for (int i = 0; i < LIFE_GRAPHS; i++) {
    if (self->graphs[i].after == stream) {
      life_order(self, stream, to);
      self->graphs[i].after = to;
    }
  }
  for (int i = 0; i < LIFE_ARENAS; i++) {
    if (self->arenas[i].last == stream) {
      life_order(self, stream, to);
      self->arenas[i].last = to;
    }
  }
}

void life_leave(life_thread *self) {
  stream_empty(self, LIFE_PER_THREAD);
}

void life_replace_stream(life_thread *self) {
  life *l = self->life;
  tarn_stream *own = &self->own[life_below(self, LIFE_OWN)];
  tarn_status status;
  if (life_is_captured(self, *own) || *own == self->capture.side) {
    return;
  }
  stream_empty(self, *own);
  const bool is_told = !l->has_unretired || life_chance(self, 50);
  for (int i = 0; i < l->n_heaps && is_told; i++) {
    do {
      status = tarn_stream_retire(l->heaps[i].heap, *own);
    } while (status != TARN_OK && life_struck(self, status));
  }
  do {
    status = tarn_stream_destroy(l->device, *own);
  } while (status != TARN_OK && life_struck(self, status));
  do {
    status = tarn_stream_create(l->device, own);
  } while (status != TARN_OK && life_struck(self, status));
}

/* ---- Content ---- */

/* Content is written and looked at by kernels, in the order of their streams: small blocks whole,
 * others at both ends. */
static void kernel_write(void *user) {
  const life_note *note = user;
  uint8_t *bytes = (uint8_t *)(uintptr_t)note->address;
  const uint64_t edge = note->bytes <= WHOLE ? note->bytes : EDGE;
  rig_host_fill(bytes, note->value, edge);
  rig_host_fill(bytes + note->bytes - edge, note->value, edge);
}

static void kernel_look(void *user) {
  const life_note *note = user;
  const uint8_t *bytes = (const uint8_t *)(uintptr_t)note->address;
  const uint64_t edge = note->bytes <= WHOLE ? note->bytes : EDGE;
  const bool is_right = rig_host_is(bytes, note->value, edge) &&
                        rig_host_is(bytes + note->bytes - edge, note->value, edge);
  if (!CHECK(is_right)) {
    test_note("seed %llu: %llu bytes at 0x%llx are not 0x%02x", (unsigned long long)note->seed,
              (unsigned long long)note->bytes, (unsigned long long)note->address, note->value);
  }
}

void life_launch(life_thread *self, const life_block *block, tarn_stream stream, bool is_write) {
  life *l = self->life;
  life_note *note = calloc(1, sizeof(*note));
  if (note == NULL) {
    CHECK(note != NULL);
    return;
  }
  *note = (life_note){.seed = l->seed,
                      .address = block->block.address,
                      .bytes = block->block.bytes,
                      .value = block->value};
  pthread_mutex_lock(&l->mutex);
  note->next = l->notes;
  l->notes = note;
  pthread_mutex_unlock(&l->mutex);
  const bool may_look =
      block->has_value && (block->heap < 0 || block->epoch == l->heaps[block->heap].epoch);
  const tarn_sim_range range = {.address = block->block.address,
                                .bytes = block->block.bytes,
                                .owner = block->block.owner,
                                .is_write = is_write};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel),
                                  .ranges = &range,
                                  .n_ranges = 1,
                                  .run = is_write   ? kernel_write
                                         : may_look ? kernel_look
                                                    : NULL,
                                  .user = note};
  (void)life_passed(self, tarn_sim_launch(l->device, &kernel, stream), 0);
}

static void block_write(life_thread *self, life_block *block) {
  block->value = (uint8_t)life_below(self, 256);
  block->has_value = true;
  block->epoch = self->life->heaps[block->heap].epoch;
  life_launch(self, block, block->stream, true);
}

static bool is_open(const life_thread *self, const life_block *block) {
  return !block->is_blind && life_is_usable(self, block->stream) &&
         !self->life->heaps[block->heap].is_asleep;
}

/* ---- Blocks ---- */

/* Memory of a heap that sleeps has no owner. */
void life_disown(life *l, const life_block *block) {
  if (!l->heaps[block->heap].is_asleep) {
    CHECK_OK(tarn_sim_disown(l->device, block->block.address, block->block.bytes));
  }
}

void life_own_again(life *l, const life_block *block) {
  const rig_block *b = &block->block;
  if (!l->heaps[block->heap].is_asleep) {
    CHECK_OK(tarn_sim_own(l->device, b->address, b->bytes, b->owner));
  }
}

void life_own(life *l, life_block *block) {
  block->block.owner = ++l->last_owner;
  life_own_again(l, block);
}

void life_forget(life_thread *self, int at) {
  self->live[at] = self->live[--self->n];
}

/* Whether a free may have to wait for the end of a capture: where something is to be done on the
 * default stream, or by a stream that waits for a captured one; or where a fault has struck the
 * question whether the stream is captured. */
static bool may_be_kept(const life_thread *self, const life_block *block) {
  const life *l = self->life;
  return (block->stream == NULL && l->n_per_thread != 0) ||
         (l->has_faults && life_is_captured(self, block->stream)) ||
         (l->has_captures && life_has_care(&l->heaps[block->heap].config));
}

bool life_has_care(const tarn_heap_config *config) {
  return config->is_secure || config->fill_alloc != 0 || config->fill_free != 0 ||
         config->guard_bytes != 0 || config->quarantine_bytes != 0;
}

bool life_release(life_thread *self, life_block *block) {
  life *l = self->life;
  tarn_heap *heap = l->heaps[block->heap].heap;
  const rig_block *b = &block->block;
  tarn_status status;
  if (life_is_captured(self, block->stream) &&
      (block->heap != self->capture.heap || (self->capture.is_raw && !life_raw_has_memory(self)))) {
    return false; /* a capture of which nobody told the heap */
  }
  do {
    life_disown(l, block);
    status = block->is_exact && life_chance(self, 30)
                 ? tarn_free_sized(heap, b->address, b->bytes, block->stream)
                 : tarn_free(heap, b->address, block->stream);
    if (status != TARN_OK) {
      life_own_again(l, block);
    }
    if (status == TARN_CAPTURE && may_be_kept(self, block)) {
      return false;
    }
  } while (status != TARN_OK && life_struck(self, status));
  block->block.address = 0;
  self->n_done++;
  return true;
}

/* Its uses are ordered with another stream from now on, or named: then it can only be freed. */
bool life_move(life_thread *self, life_block *block, tarn_stream to) {
  const life_heap *h = &self->life->heaps[block->heap];
  const bool is_usable = life_is_usable(self, block->stream);
  if (block->stream == to) {
    return true;
  }
  if (is_usable && (h->is_asleep || life_chance(self, 50))) {
    life_order(self, block->stream, to);
  } else if (h->is_asleep) {
    return false;
  } else if (!block->is_blind) {
    tarn_status status;
    do {
      status = tarn_use(h->heap, block->block.address, block->stream);
    } while (status != TARN_OK && life_struck(self, status));
    block->is_blind = true;
  }
  block->stream = to;
  return true;
}

static uint64_t pick_size(life_thread *self) {
  const uint64_t dice = life_below(self, 100);
  const uint64_t most = dice < 45   ? 4 << 10
                        : dice < 70 ? 256 << 10
                        : dice < 85 ? 2 * LIFE_MIB
                                    : self->life->most_bytes;
  return 1 + life_below(self, most);
}

/* What the heap says about the content of new blocks. */
static void look_at_new(life_thread *self, life_block *block) {
  const tarn_heap_config *config = &self->life->heaps[block->heap].config;
  if (config->fill_alloc != 0 || config->is_secure) {
    block->value = config->fill_alloc;
    block->has_value = true;
    block->epoch = self->life->heaps[block->heap].epoch;
    life_launch(self, block, block->stream, false);
  }
}

static _Thread_local life_thread *self_of_thread;

void life_is_self(life_thread *self) {
  self_of_thread = self;
}

bool life_on_shortage(tarn_heap *heap, uint64_t bytes, void *user) {
  life_thread *self = self_of_thread;
  (void)bytes;
  (void)user;
  if (self == NULL || life_chance(self, 30)) {
    return false;
  }
  for (int i = 0; i < self->life->n_heaps; i++) {
    if (self->life->heaps[i].heap != heap && life_chance(self, 30)) {
      (void)life_passed(self, tarn_heap_trim(self->life->heaps[i].heap, 0),
                        LIFE_STATE | LIFE_CAPTURE);
    }
  }
  for (int i = 0; i < self->n; i++) {
    if (self->life->heaps[self->live[i].heap].heap == heap && life_release(self, &self->live[i])) {
      life_forget(self, i);
      return true;
    }
  }
  return false;
}

static uint64_t pick_alignment(life_thread *self) {
  return life_chance(self, 15) ? (uint64_t)256 << life_below(self, 14) : 0;
}

/* An alignment of 0: not asked for. */
static tarn_status block_get(life_thread *self, life_block *block, uint64_t alignment) {
  tarn_heap *heap = self->life->heaps[block->heap].heap;
  tarn_ptr address = 1;
  tarn_status status;
  if (alignment != 0) {
    status = tarn_alloc_aligned(heap, block->block.bytes, alignment, block->stream, &address);
    CHECK_EQ(address % alignment, 0);
  } else {
    status = tarn_alloc(heap, block->block.bytes, block->stream, &address);
  }
  CHECK_EQ(address != 0, status == TARN_OK);
  block->block.address = address;
  return status;
}

/* What was refused for lack of memory is there no more after a trim: all had been tried. */
static void try_again(life_thread *self, life_block *block, uint64_t alignment) {
  const life_heap *h = &self->life->heaps[block->heap];
  if (self->life->n_threads != 1 || self->life->has_faults || self->life->has_unretired ||
      self->capture.is_going_on || h->config.on_shortage != NULL || self->life->is_lost) {
    return;
  }
  CHECK_OK(tarn_heap_trim(h->heap, 0));
  const tarn_status status = block_get(self, block, alignment);
  if (!CHECK(status != TARN_OK)) {
    test_note("seed %llu: a block of %llu bytes is there after a trim",
              (unsigned long long)self->life->seed, (unsigned long long)block->block.bytes);
  }
}

void life_allocate(life_thread *self) {
  life *l = self->life;
  life_block block = {.heap = (int)life_below(self, (uint64_t)l->n_heaps),
                      .stream = life_pick_stream(self),
                      .is_exact = true,
                      .block.bytes = pick_size(self)};
  const bool is_asleep = l->heaps[block.heap].is_asleep;
  const uint64_t alignment = pick_alignment(self);
  const tarn_status status = block_get(self, &block, alignment);
  if (is_asleep) {
    CHECK(!life_passed(self, status, LIFE_STATE));
    return;
  }
  if (!life_passed(self, status, LIFE_SHORT | (l->has_captures ? LIFE_CAPTURE : 0))) {
    try_again(self, &block, alignment);
    while (self->n > LIFE_LIVE / 3 && life_release(self, &self->live[self->n - 1])) {
      self->n--;
    }
    return;
  }
  self->n_done++;
  life_own(l, &block);
  look_at_new(self, &block);
  block_write(self, &block);
  if (CHECK(self->n < LIFE_LIVE)) {
    self->live[self->n++] = block;
  }
}

/* Another stream reads it: ordered after its writer, and named to the heap. */
static void block_share(life_thread *self, life_block *block) {
  const tarn_stream other = life_pick_stream(self);
  if (!is_open(self, block) || other == block->stream ||
      !life_passed(self, tarn_use(self->life->heaps[block->heap].heap, block->block.address, other),
                   0)) {
    return;
  }
  life_order(self, block->stream, other);
  life_launch(self, block, other, false);
  block->is_read_only = true;
}

/* Frees it on another stream, by one of the ways that make this legal. */
static void block_free_elsewhere(life_thread *self, int at) {
  life_block *block = &self->live[at];
  const tarn_stream other = life_pick_stream(self);
  if (life_chance(self, 30) && life_may_wait(self) && life_is_usable(self, block->stream)) {
    if (!life_passed(self, tarn_stream_synchronize(self->life->device, block->stream), 0)) {
      return;
    }
    block->stream = other;
  } else if (!life_move(self, block, other)) {
    return;
  }
  if (life_release(self, block)) {
    life_forget(self, at);
  }
}

/* Hands a block to another thread, or takes one. */
static void block_post(life_thread *self) {
  life *l = self->life;
  const int at = self->n != 0 ? (int)life_below(self, (uint64_t)self->n) : -1;
  const bool is_taking = life_chance(self, 50);
  if (!is_taking && (at < 0 || !life_move(self, &self->live[at], l->common[0]))) {
    return;
  }
  pthread_mutex_lock(&l->mutex);
  if (is_taking && l->n_posted != 0 && self->n < LIFE_LIVE) {
    self->live[self->n++] = l->posted[--l->n_posted];
  } else if (!is_taking && l->n_posted < LIFE_POSTED) {
    l->posted[l->n_posted++] = self->live[at];
    life_forget(self, at);
  }
  pthread_mutex_unlock(&l->mutex);
}

static void block_ask(life_thread *self, const life_block *block) {
  tarn_block_info info = {.size = sizeof(info)};
  const uint64_t at = life_below(self, block->block.bytes);
  CHECK_OK(
      tarn_block_get_info(self->life->heaps[block->heap].heap, block->block.address + at, &info));
  CHECK_EQ(info.address, block->block.address);
  CHECK(info.usable_bytes >= block->block.bytes);
}

void life_step_block(life_thread *self) {
  const uint64_t dice = life_below(self, 100);
  if (self->n < LIFE_LIVE && (self->n == 0 || dice < 42)) {
    life_allocate(self);
    return;
  }
  const int at = (int)life_below(self, (uint64_t)self->n);
  life_block *block = &self->live[at];
  if (dice < 47) {
    block_share(self, block);
  } else if (dice < 55 && is_open(self, block)) {
    if (!block->is_read_only && life_chance(self, 50)) {
      block_write(self, block);
    } else {
      life_launch(self, block, block->stream, false);
    }
  } else if (dice < 57) {
    block_ask(self, block);
  } else if (dice < 62) {
    block_post(self);
  } else if (dice < 72) {
    block_free_elsewhere(self, at);
  } else if (life_release(self, block)) {
    life_forget(self, at);
  }
}

/* ---- Budgets and scopes of statistics ---- */

void life_budget_end(life_thread *self) {
  tarn_status status;
  do {
    status = tarn_budget_destroy(self->budget);
  } while (status != TARN_OK && life_struck(self, status));
  self->budget = NULL;
}

/* Not with faults: what a budget that could not be made cannot give back either, after two tries,
 * stays live. */
static void budget_step(life_thread *self) {
  life *l = self->life;
  if (l->has_faults) {
    return;
  }
  if (self->budget == NULL) {
    uint64_t sizes[4];
    const size_t n = 1 + life_below(self, 4);
    for (size_t i = 0; i < n; i++) {
      sizes[i] = pick_size(self);
    }
    self->budget_heap = (int)life_below(self, (uint64_t)l->n_heaps);
    self->budget_stream = l->common[life_below(self, LIFE_COMMON)];
    (void)life_passed(self,
                      tarn_budget_create(l->heaps[self->budget_heap].heap, sizes, n,
                                         self->budget_stream, NULL, &self->budget),
                      LIFE_SHORT | LIFE_STATE | (l->has_captures ? LIFE_CAPTURE : 0));
    return;
  }
  life_block block = {.heap = self->budget_heap, .stream = self->budget_stream};
  block.block.bytes = pick_size(self);
  if (self->n == LIFE_LIVE || life_chance(self, 40)) {
    life_budget_end(self);
  } else if (life_passed(self,
                         tarn_budget_alloc(self->budget, block.block.bytes, &block.block.address),
                         LIFE_SHORT)) {
    life_own(l, &block);
    self->live[self->n++] = block;
  }
}

void life_scope_end(life_thread *self) {
  tarn_stats_scope_result r = {.size = sizeof(r)};
  CHECK_OK(tarn_stats_scope_end(self->scope, &r));
  self->scope = NULL;
  CHECK_EQ(r.live_begin_bytes + r.allocated_bytes, r.live_end_bytes + r.freed_bytes);
  CHECK(r.live_peak_bytes >= r.live_begin_bytes && r.live_peak_bytes >= r.live_end_bytes);
  CHECK(r.reserved_peak_bytes >= r.reserved_begin_bytes &&
        r.reserved_peak_bytes >= r.reserved_end_bytes);
}

static void scope_step(life_thread *self) {
  if (self->scope != NULL) {
    life_scope_end(self);
    return;
  }
  const tarn_stats_scope_config config = {.size = sizeof(config),
                                          .is_exact = life_chance(self, 40)};
  self->scope_heap = (int)life_below(self, (uint64_t)self->life->n_heaps);
  CHECK_OK(tarn_stats_scope_begin(self->life->heaps[self->scope_heap].heap, &config, &self->scope));
}

/* ---- What concerns a whole heap, beside other calls ---- */

static void plan_fault(life_thread *self) {
  static const int codes[] = {2, 801};
  const uint64_t kind = life_below(self, 2 * TARN_CALL_COUNT);
  const bool is_any = kind >= TARN_CALL_COUNT;
  const int code = codes[life_below(self, 2)];
  const uint64_t times = 1 + life_below(self, 3);
  CHECK_OK(tarn_sim_fail(self->life->device, is_any ? TARN_CALL_COUNT : (tarn_call)kind,
                         1 + life_below(self, is_any ? 30 : 3), times, code));
}

static void limit_step(life_thread *self, life_heap *h, uint64_t dice) {
  const int may_wait = LIFE_STATE | (self->life->has_captures ? LIFE_CAPTURE : 0);
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_heap_get_stats(h->heap, &stats));
  const uint64_t bytes = life_below(self, stats.reserved_bytes + 1);
  if (dice < 30) {
    (void)life_passed(self, tarn_heap_trim(h->heap, life_chance(self, 50) ? bytes : 0), may_wait);
  } else if (dice < 40) {
    (void)life_passed(self, tarn_heap_set_limit(h->heap, bytes + 1), may_wait);
  } else if (dice < 60) {
    (void)life_passed(self, tarn_heap_set_limit(h->heap, 0), may_wait);
  } else if (dice < 70) {
    (void)life_passed(self, tarn_heap_reserve(h->heap, life_below(self, 16 * LIFE_MIB)),
                      LIFE_SHORT | may_wait | (h->has_buckets ? LIFE_UNSUPPORTED : 0));
  } else {
    (void)life_passed(self, tarn_heap_reset(h->heap), LIFE_BUSY | may_wait);
  }
}

void life_step_heap(life_thread *self) {
  life *l = self->life;
  life_heap *h = &l->heaps[life_below(self, (uint64_t)l->n_heaps)];
  const uint64_t dice = life_below(self, 100);
  if (dice < 30) {
    limit_step(self, h, life_below(self, 80));
  } else if (dice < 50) {
    budget_step(self);
  } else if (dice < 60) {
    scope_step(self);
  } else if (dice < 75) {
    life_replace_stream(self);
  } else if (dice < 80) {
    CHECK_OK(tarn_sim_progress(l->device, life_below(self, 64)));
  } else if (dice < 85) {
    tarn_heap_histogram histogram = {.size = sizeof(histogram)};
    CHECK_OK(tarn_heap_get_histogram(h->heap, &histogram));
  } else if (dice < 90) {
    (void)sched_yield();
  } else if (l->has_faults) {
    plan_fault(self);
  }
}
