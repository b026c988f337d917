/* SPDX-License-Identifier: MIT
 *
 * Random programs of transfers: copies of all kinds in both directions, batches, fences that are
 * asked, awaited or dropped, pinned blocks freed behind streams, memory that is registered, streams
 * that come and go or are captured by others, faults, and a pool that is short. Every byte is
 * compared with what it must be, the oracle watches every use, and nothing is left.
 *
 * With arguments: the first seed, and how many. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "port/port.h"
#include "support/dock.h"
#include "support/seeds.h"
#include "support/test.h"

enum { THREADS = 4, STREAMS = 3, BLOCKS = 6, WAITING = 4, STEPS = 250, MOST = 3 << 19 };

typedef struct device_block {
  tarn_ptr address; /* 0: none */
  uint64_t bytes;
  tarn_stream stream;
  uint8_t *mirror; /* what it must have in it */
} device_block;

typedef struct waiting { /* a copy to ordinary memory that is under way */
  tarn_fence *fence;
  uint8_t *bytes, *want;
  uint64_t length;
} waiting;

typedef struct program {
  dock dock;
  uint64_t seed;
  bool has_faults, is_short;
} program;

typedef struct hand {
  program *program;
  tarni_rng rng;
  tarn_stream streams[STREAMS];
  device_block blocks[BLOCKS];
  waiting waits[WAITING];
  tarn_batch *batch;
  bool is_capturing; /* the last of the streams, in a capture of which nobody told */
  pthread_t thread;
} hand;

static uint64_t below(hand *h, uint64_t bound) {
  return tarni_rng_below(&h->rng, bound);
}

static bool chance(hand *h, uint64_t percent) {
  return below(h, 100) < percent;
}

/* What a call may say beside TARN_OK: a planned fault, or that the pool is short. */
static bool passed(const hand *h, tarn_status status) {
  if (status == TARN_OK) {
    return true;
  }
  const program *p = h->program;
  const bool is_fault = p->has_faults && (status == TARN_DEVICE_MEMORY ||
                                          status == TARN_UNSUPPORTED || status == TARN_HOST_MEMORY);
  const bool is_shortage = p->is_short && (status == TARN_LIMIT || status == TARN_HOST_MEMORY);
  if (!is_fault && !is_shortage) {
    CHECK_OK(status);
  }
  return false;
}

static void may_be_captured(const hand *h, tarn_status status) {
  if (status != TARN_CAPTURE) {
    (void)passed(h, status);
  }
}

/* For calls that must succeed in the end. */
#define UNTIL_OK(h, call)                                                                          \
  do {                                                                                             \
    tarn_status until_;                                                                            \
    do {                                                                                           \
      until_ = (call);                                                                             \
    } while (!passed((h), until_) && !test_case_failed());                                         \
  } while (0)

static void random_bytes(hand *h, uint8_t *bytes, uint64_t length) {
  const uint64_t seed = below(h, UINT64_MAX);
  for (uint64_t i = 0; i < length; i++) {
    bytes[i] = (uint8_t)((seed >> (i % 8 * 8)) + i / 8);
  }
}

/* ---- Host memory of all kinds ---- */

typedef enum host_kind { ORDINARY, PINNED, REGISTERED } host_kind;

typedef struct host_memory {
  uint8_t *bytes; /* NULL: could not be had */
  host_kind kind;
  void *all; /* what is registered, whole pages */
} host_memory;

static host_memory host_get(hand *h, uint64_t length) {
  dock *d = &h->program->dock;
  host_memory m = {.kind = (host_kind)below(h, 3)};
  if (m.kind == PINNED) {
    void *block = NULL;
    (void)passed(h, tarn_pinned_alloc(d->pool, length, &block));
    m.bytes = block;
    return m;
  }
  const uint64_t room = (length + 8191) / 4096 * 4096;
  m.all = aligned_alloc(4096, room);
  m.bytes = m.all;
  if (m.bytes == NULL) {
    CHECK(m.bytes != NULL);
  } else if (m.kind == REGISTERED) {
    if (!passed(h, tarn_host_register(d->rig.device, m.all, room))) {
      m.kind = ORDINARY;
    }
    m.bytes += below(h, 64);
  }
  return m;
}

static void host_put(hand *h, const host_memory *m) {
  dock *d = &h->program->dock;
  if (m->kind == PINNED) {
    UNTIL_OK(h, tarn_pinned_free(d->pool, m->bytes));
    return;
  }
  if (m->kind == REGISTERED) {
    UNTIL_OK(h, tarn_host_unregister(d->rig.device, m->all));
  }
  free(m->all);
}

/* ---- Copies ---- */

typedef struct range {
  uint64_t offset, length;
} range;

static range pick_range(hand *h, const device_block *block) {
  const uint64_t offset = below(h, block->bytes);
  const uint64_t most = block->bytes - offset;
  return (range){offset, 1 + below(h, chance(h, 50) ? most : most < 5000 ? most : 5000)};
}

/* The whole block is written anew: what a failed copy left is undefined. */
static void restore(hand *h, const device_block *block) {
  dock *d = &h->program->dock;
  UNTIL_OK(h, tarn_copy_in(d->copier, block->address, block->mirror, block->bytes, block->stream));
}

static void copy_in_async(hand *h, device_block *block, const host_memory *m, range r) {
  dock *d = &h->program->dock;
  tarn_fence *fence = NULL;
  const bool has_fence = chance(h, 60);
  const tarn_status status = tarn_copy_in_async(d->copier, block->address + r.offset, m->bytes,
                                                r.length, block->stream, has_fence ? &fence : NULL);
  if (!passed(h, status)) {
    restore(h, block);
    host_put(h, m);
    return;
  }
  memcpy(block->mirror + r.offset, m->bytes, r.length);
  if (m->kind == PINNED && chance(h, 60)) { /* freed behind the copy */
    UNTIL_OK(h, tarn_pinned_free_on(d->pool, m->bytes, block->stream));
  } else {
    if (m->kind == ORDINARY) {
      memset(m->bytes, 0xee, r.length); /* it has been read */
    } else if (fence != NULL) {
      UNTIL_OK(h, tarn_fence_wait(fence));
    } else {
      UNTIL_OK(h, tarn_stream_synchronize(d->rig.device, block->stream));
    }
    host_put(h, m);
  }
  tarn_fence_destroy(fence);
}

static void copy_in(hand *h, device_block *block) {
  dock *d = &h->program->dock;
  const range r = pick_range(h, block);
  const host_memory m = host_get(h, r.length);
  if (m.bytes == NULL) {
    return;
  }
  random_bytes(h, m.bytes, r.length);
  if (chance(h, 60)) {
    copy_in_async(h, block, &m, r);
    return;
  }
  if (passed(h, tarn_copy_in(d->copier, block->address + r.offset, m.bytes, r.length,
                             block->stream))) {
    memcpy(block->mirror + r.offset, m.bytes, r.length);
  } else {
    restore(h, block);
  }
  host_put(h, &m);
}

static void compare(const hand *h, const uint8_t *bytes, const uint8_t *want, uint64_t length) {
  if (!CHECK(memcmp(bytes, want, length) == 0)) {
    test_note("seed %" PRIu64 ": %" PRIu64 " bytes are not what they must be", h->program->seed,
              length);
  }
}

static void wait_end(hand *h, waiting *w) {
  if (chance(h, 80)) {
    tarn_status status = TARN_NOT_READY;
    if (chance(h, 50)) {
      while (status == TARN_NOT_READY) {
        status = tarn_fence_query(w->fence);
      }
    } else {
      status = tarn_fence_wait(w->fence);
    }
    if (passed(h, status)) {
      compare(h, w->bytes, w->want, w->length);
    }
  }
  tarn_fence_destroy(w->fence);
  free(w->bytes);
  free(w->want);
  *w = (waiting){0};
}

/* To ordinary memory, which is complete when the fence has said so. */
static void copy_out_later(hand *h, const device_block *block, range r) {
  waiting *w = &h->waits[below(h, WAITING)];
  if (w->fence != NULL) {
    wait_end(h, w);
  }
  w->length = r.length;
  w->bytes = malloc(r.length);
  w->want = malloc(r.length);
  if (w->bytes == NULL || w->want == NULL) {
    CHECK(w->bytes != NULL && w->want != NULL);
    return;
  }
  memcpy(w->want, block->mirror + r.offset, r.length);
  if (!passed(h, tarn_copy_out_async(h->program->dock.copier, w->bytes, block->address + r.offset,
                                     r.length, block->stream, &w->fence))) {
    free(w->bytes);
    free(w->want);
    *w = (waiting){0};
  }
}

static void copy_out(hand *h, const device_block *block) {
  dock *d = &h->program->dock;
  const range r = pick_range(h, block);
  if (chance(h, 40)) {
    copy_out_later(h, block, r);
    return;
  }
  const host_memory m = host_get(h, r.length);
  if (m.bytes == NULL) {
    return;
  }
  tarn_fence *fence = NULL;
  const bool is_async = chance(h, 50);
  tarn_status status = is_async ? tarn_copy_out_async(d->copier, m.bytes, block->address + r.offset,
                                                      r.length, block->stream, &fence)
                                : tarn_copy_out(d->copier, m.bytes, block->address + r.offset,
                                                r.length, block->stream);
  bool is_there = passed(h, status);
  if (is_there && is_async) {
    is_there = passed(h, tarn_fence_wait(fence));
  }
  if (is_there) {
    compare(h, m.bytes, block->mirror + r.offset, r.length);
  } else {
    UNTIL_OK(h, tarn_stream_synchronize(d->rig.device, block->stream));
  }
  tarn_fence_destroy(fence);
  host_put(h, &m);
}

/* ---- Batches ---- */

static void batch_fetch(hand *h, const device_block *block, range r) {
  uint32_t index = 0;
  const void *got = NULL;
  uint64_t length = 0;
  if (passed(h, tarn_batch_output(h->batch, block->address + r.offset, r.length, &index)) &&
      passed(h, tarn_batch_fetch(h->batch, block->stream, NULL)) &&
      passed(h, tarn_batch_view(h->batch, index, &got, &length))) {
    CHECK_EQ(length, r.length);
    compare(h, got, block->mirror + r.offset, r.length);
  }
}

static void batch_round(hand *h, device_block *block) {
  if (h->batch == NULL && !passed(h, tarn_batch_create(h->program->dock.copier, NULL, &h->batch))) {
    return;
  }
  bool is_whole = true;
  for (uint64_t i = below(h, 5); i != 0 && is_whole; i--) { /* side by side, none over another */
    const uint64_t part = block->bytes / 8;
    const range r = {i * part, part};
    uint8_t *bytes = part != 0 ? malloc(part) : NULL;
    if (bytes == NULL) {
      break;
    }
    random_bytes(h, bytes, part);
    is_whole = passed(h, tarn_batch_upload(h->batch, block->address + r.offset, bytes, part));
    if (is_whole) {
      memcpy(block->mirror + r.offset, bytes, part);
    }
    free(bytes);
  }
  UNTIL_OK(h, tarn_batch_send(h->batch, block->stream));
  if (chance(h, 70)) {
    batch_fetch(h, block, pick_range(h, block));
  }
  UNTIL_OK(h, tarn_batch_reset(h->batch));
  if (chance(h, 20)) {
    UNTIL_OK(h, tarn_batch_destroy(h->batch));
    h->batch = NULL;
  }
}

/* ---- Blocks and streams ---- */

static void order(hand *h, tarn_stream before, tarn_stream after) {
  tarni_port *port = (tarni_port *)h->program->dock.rig.device;
  tarni_event event = NULL;
  UNTIL_OK(h, tarni_port_event_create(port, &event));
  UNTIL_OK(h, tarni_port_event_record(port, event, before));
  UNTIL_OK(h, tarni_port_event_wait(port, after, event));
  UNTIL_OK(h, tarni_port_event_destroy(port, event));
}

static tarn_stream pick_stream(hand *h) {
  return h->streams[below(h, STREAMS - h->is_capturing)];
}

static void block_make(hand *h, device_block *block) {
  block->bytes = 1 + below(h, chance(h, 70) ? 20000 : MOST);
  block->stream = pick_stream(h);
  block->mirror = malloc(block->bytes);
  tarn_ptr address = 0;
  if (block->mirror == NULL) {
    CHECK(block->mirror != NULL);
    return;
  }
  if (!passed(h, tarn_alloc(h->program->dock.rig.heap, block->bytes, block->stream, &address))) {
    free(block->mirror);
    return;
  }
  block->address = address;
  random_bytes(h, block->mirror, block->bytes);
  restore(h, block);
}

static void block_drop(hand *h, device_block *block) {
  UNTIL_OK(h, tarn_free(h->program->dock.rig.heap, block->address, block->stream));
  free(block->mirror);
  *block = (device_block){0};
}

static void stream_replace(hand *h) {
  dock *d = &h->program->dock;
  const uint64_t at = below(h, STREAMS - h->is_capturing);
  tarn_stream *stream = &h->streams[at], to = h->streams[at == 0 ? 1 : 0];
  for (int i = 0; i < BLOCKS; i++) {
    if (h->blocks[i].address != 0 && h->blocks[i].stream == *stream) {
      order(h, *stream, to);
      h->blocks[i].stream = to;
    }
  }
  UNTIL_OK(h, tarn_stream_retire(d->rig.heap, *stream));
  UNTIL_OK(h, tarn_pinned_stream_retire(d->pool, *stream));
  UNTIL_OK(h, tarn_copier_stream_retire(d->copier, *stream));
  UNTIL_OK(h, tarn_stream_destroy(d->rig.device, *stream));
  UNTIL_OK(h, tarn_stream_create(d->rig.device, stream));
}

/* The last stream is captured by a relaxed capture, in which nothing is recorded. */
static void capture_toggle(hand *h) {
  tarni_port *port = (tarni_port *)h->program->dock.rig.device;
  const tarn_stream stream = h->streams[STREAMS - 1];
  if (h->is_capturing) {
    tarni_graph graph = NULL;
    UNTIL_OK(h, tarni_port_capture_end(port, stream, &graph));
    UNTIL_OK(h, tarni_port_graph_destroy(port, graph, NULL));
    h->is_capturing = false;
    return;
  }
  for (int i = 0; i < BLOCKS; i++) {
    if (h->blocks[i].address != 0 && h->blocks[i].stream == stream) {
      order(h, stream, h->streams[0]);
      h->blocks[i].stream = h->streams[0];
    }
  }
  UNTIL_OK(h, tarni_port_capture_begin(port, stream, TARNI_CAPTURE_RELAXED));
  h->is_capturing = true;
}

static void plan_fault(hand *h) {
  static const int codes[] = {2, 801};
  const int code = codes[below(h, 2)];
  const uint64_t times = 1 + below(h, 2), nth = 1 + below(h, 12);
  CHECK_OK(tarn_sim_fail(h->program->dock.rig.device, TARN_CALL_COUNT, nth, times, code));
}

static void step_whole(hand *h) {
  dock *d = &h->program->dock;
  const uint64_t dice = below(h, 100);
  if (dice < 25) {
    stream_replace(h);
  } else if (dice < 50) {
    capture_toggle(h);
  } else if (dice < 65) {
    may_be_captured(h, tarn_pinned_trim(d->pool, 0));
  } else if (dice < 80) {
    may_be_captured(h, tarn_heap_trim(d->rig.heap, 0));
  } else if (h->program->has_faults) {
    plan_fault(h);
  }
}

static void step(hand *h) {
  device_block *block = &h->blocks[below(h, BLOCKS)];
  waiting *w = &h->waits[below(h, WAITING)];
  const uint64_t dice = below(h, 100);
  if (dice < 8) {
    step_whole(h);
  } else if (dice < 16) {
    if (w->fence != NULL) {
      wait_end(h, w);
    }
  } else if (block->address == 0) {
    block_make(h, block);
  } else if (dice < 22) {
    block_drop(h, block);
  } else if (dice < 30) {
    const tarn_stream to = pick_stream(h);
    order(h, block->stream, to);
    block->stream = to;
  } else if (dice < 60) {
    copy_in(h, block);
  } else if (dice < 90) {
    copy_out(h, block);
  } else {
    batch_round(h, block);
  }
}

static void *work(void *user) {
  hand *h = user;
  for (int i = 0; i < STEPS && !test_case_failed(); i++) {
    step(h);
  }
  if (h->is_capturing) {
    capture_toggle(h);
  }
  for (int i = 0; i < WAITING; i++) {
    if (h->waits[i].fence != NULL) {
      wait_end(h, &h->waits[i]);
    }
  }
  for (int i = 0; i < BLOCKS; i++) {
    if (h->blocks[i].address != 0) {
      block_drop(h, &h->blocks[i]);
    }
  }
  UNTIL_OK(h, tarn_batch_destroy(h->batch));
  return NULL;
}

static void run_hands(program *p, int n) {
  hand hands[THREADS] = {0};
  for (int i = 0; i < n; i++) {
    hands[i].program = p;
    hands[i].rng.state = p->seed * 7919 + (uint64_t)i * 104729;
    for (int j = 0; j < STREAMS; j++) {
      CHECK_OK(tarn_stream_create(p->dock.rig.device, &hands[i].streams[j]));
    }
  }
  for (int i = 0; i < n && n > 1; i++) {
    CHECK_EQ(pthread_create(&hands[i].thread, NULL, work, &hands[i]), 0);
  }
  for (int i = 0; i < n; i++) {
    if (n > 1) {
      CHECK_EQ(pthread_join(hands[i].thread, NULL), 0);
    } else {
      (void)work(&hands[i]);
    }
  }
  CHECK_OK(tarn_sim_fail(p->dock.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  p->has_faults = false;
  for (int i = 0; i < n; i++) {
    for (int j = 0; j < STREAMS; j++) {
      CHECK_OK(tarn_stream_retire(p->dock.rig.heap, hands[i].streams[j]));
      CHECK_OK(tarn_pinned_stream_retire(p->dock.pool, hands[i].streams[j]));
      CHECK_OK(tarn_copier_stream_retire(p->dock.copier, hands[i].streams[j]));
      CHECK_OK(tarn_stream_destroy(p->dock.rig.device, hands[i].streams[j]));
    }
  }
}

static void run_program(uint64_t seed, bool is_alone) {
  static const char *const orders[] = {"random", "lazy", "eager"};
  program p = {.seed = seed};
  tarni_rng rng = {.state = seed};
  const int n = is_alone ? 1 : 2 + (int)tarni_rng_below(&rng, THREADS - 1);
  p.has_faults = tarni_rng_below(&rng, 3) == 0;
  p.is_short = tarni_rng_below(&rng, 4) == 0;
  tarn_copier_config config = {.size = sizeof(config),
                               .piece_bytes = (uint64_t)4096 << tarni_rng_below(&rng, 9)};
  config.has_no_threads = tarni_rng_below(&rng, 3) == 0;
  config.n_threads = config.has_no_threads ? 0 : 1 + (uint32_t)tarni_rng_below(&rng, 3);
  char device[96];
  (void)snprintf(device, sizeof(device), "sim:256M,seed=%" PRIu64 ",order=%s", seed,
                 orders[tarni_rng_below(&rng, 3)]);
  test_note("seed %" PRIu64 ": %d threads%s%s, %s", seed, n, p.has_faults ? ", faults" : "",
            p.is_short ? ", a small pool" : "", device);
  if (dock_open(&p.dock, device, &config, p.is_short ? 4 << 20 : 0, 1)) {
    run_hands(&p, n);
    CHECK(rig_is_sound(&p.dock.rig));
    CHECK_OK(tarn_pinned_check(p.dock.pool));
    for (int i = 0; i < 100000 && dock_stats(&p.dock).quarantined_bytes != 0; i++) {
      CHECK_OK(tarn_copier_stream_retire(p.dock.copier, p.dock.rig.streams[0]));
    }
    CHECK_EQ(dock_pinned_live(&p.dock), 0);
    CHECK_EQ(dock_stats(&p.dock).quarantined_bytes, 0);
    dock_close(&p.dock);
  }
}

static void one_thread(void) {
  seeds_run(run_program, true);
}

static void several_threads(void) {
  seeds_run(run_program, false);
}

static const test_case cases[] = {
    {"one thread", one_thread},
    {"several threads", several_threads},
};

int main(int argc, char **argv) {
  return seeds_main(cases, (int)(sizeof(cases) / sizeof(cases[0])), 12, argc, argv);
}
