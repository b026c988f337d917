/* SPDX-License-Identifier: MIT
 *
 * Programs made by chance from all that a heap can do, on one or two heaps of the simulated GPU: so
 * that each thing meets each other thing. Streams, threads, captures, arenas, budgets and heaps
 * come and go; limits, sleep and driver calls that fail come in between. After each program nothing
 * was used too early, every byte is where it was, the counters agree with the structures and with
 * what the program holds, and everything can be given back and had again.
 *
 * A number as the first argument is the first seed, the second one how many: without, a few. What a
 * program does is told by its seed alone where it has one thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "stress/stress_life.h"
#include "support/seeds.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 20 };
#else
enum { SEEDS = 40 };
#endif

enum { STEPS = 700, SHIFT = 120 };

/* ---- Heaps ---- */

/* A switch is on for one heap in eight. */
static bool draw_switch(tarni_rng *rng) {
  return tarni_rng_below(rng, 8) == 0;
}

static void draw_care(tarni_rng *rng, tarn_heap_config *c, bool has_captures) {
  c->is_deterministic = draw_switch(rng);
  c->is_secure = draw_switch(rng);
  c->is_asking_captures = has_captures && !c->is_secure && draw_switch(rng);
  c->fill_alloc = draw_switch(rng) && !c->is_secure ? 0xa5 : 0;
  c->fill_free = draw_switch(rng) && !c->is_secure ? 0x5a : 0;
  c->guard_bytes = draw_switch(rng) ? 64 : 0;
  c->quarantine_bytes = draw_switch(rng) ? 4 * LIFE_MIB : 0;
  c->stack_depth = draw_switch(rng) ? 4 : 0;
}

static tarn_heap_config draw_heap(tarni_rng *rng, const life *l, const char *device) {
  tarn_heap_config c = {.size = sizeof(c), .device = device};
  c.stealing = (tarn_stealing)tarni_rng_below(rng, 3);
  c.on_shortage = tarni_rng_below(rng, 3) == 0 ? life_on_shortage : NULL;
  c.limit_bytes = draw_switch(rng) ? l->total_bytes / 2 : 0;
  c.is_verifying_streams = l->has_unretired || draw_switch(rng);
  if (tarni_rng_below(rng, 3) != 0) {
    c.backing = TARN_BACKING_VMM;
    draw_care(rng, &c, l->has_captures);
    return c;
  }
  c.backing = (tarn_backing)(TARN_BACKING_VMM + tarni_rng_below(rng, 3));
  c.rounding = (tarn_rounding)(TARN_ROUNDING_CLASSES + tarni_rng_below(rng, 3));
  if (c.backing != TARN_BACKING_VMM || c.rounding != TARN_ROUNDING_CLASSES) {
    c.cached_limit_bytes = draw_switch(rng) ? 8 * LIFE_MIB : 0;
    c.cached_blocks_per_size = draw_switch(rng) ? 4 : 0;
    c.live_limit_bytes = draw_switch(rng) ? 48 * LIFE_MIB : 0;
  }
  return c;
}

static bool heap_create(life *l, int at, tarni_rng *rng, const char *device) {
  life_heap *h = &l->heaps[at];
  *h = (life_heap){.config = draw_heap(rng, l, device), .epoch = h->epoch + 1};
  if (!CHECK_OK(tarn_heap_create(&h->config, &h->heap))) {
    return false;
  }
  h->config.device = NULL;
  h->has_buckets = h->heap->buckets != NULL;
  l->has_had_buckets = l->has_had_buckets || h->has_buckets;
  return true;
}

/* ---- What must hold while no call is under way ---- */

static uint64_t count_live(const life *l, int heap) {
  uint64_t n = 0;
  for (int i = 0; i < l->n_posted; i++) {
    n += l->posted[i].heap == heap;
  }
  for (int i = 0; i < l->n_threads; i++) {
    const life_thread *t = &l->threads[i];
    for (int j = 0; j < t->n; j++) {
      n += t->live[j].heap == heap;
    }
    for (int j = 0; j < LIFE_ARENAS; j++) {
      n += t->arenas[j].memory.block.address != 0 && t->arenas[j].heap == heap;
    }
    tarn_budget_info info = {.size = sizeof(info)};
    if (t->budget != NULL && t->budget_heap == heap) {
      CHECK_OK(tarn_budget_get_info(t->budget, &info));
      n += info.held_blocks;
    }
  }
  return n;
}

/* Where blocks are looked at, which a capture may not allow. */
static bool has_watch(const tarn_heap_config *config) {
  return config->guard_bytes != 0 || config->quarantine_bytes != 0;
}

static bool is_any_captured(const life *l) {
  bool is = false;
  for (int i = 0; i < l->n_threads; i++) {
    is = is || l->threads[i].capture.is_going_on;
  }
  return is;
}

static void check_all(life *l) {
  if (l->is_lost) {
    return;
  }
  uint64_t reserved = 0;
  for (int i = 0; i < l->n_heaps; i++) {
    tarn_heap_stats s = {.size = sizeof(s)};
    const tarn_status status = tarn_heap_check(l->heaps[i].heap);
    if (status != TARN_CAPTURE || !has_watch(&l->heaps[i].config) || !is_any_captured(l)) {
      (void)life_passed(&l->threads[0], status, 0);
    }
    CHECK_OK(tarn_heap_get_stats(l->heaps[i].heap, &s));
    CHECK_EQ(s.live_bytes + s.cached_bytes + s.pending_bytes + s.free_bytes + s.captured_bytes,
             s.reserved_bytes + s.asleep_bytes);
    CHECK_EQ(s.live_blocks, count_live(l, i));
    CHECK_EQ(s.is_asleep, l->heaps[i].is_asleep);
    reserved += s.reserved_bytes;
  }
  tarn_sim_state state = {.size = sizeof(state)};
  CHECK_OK(tarn_sim_get_state(l->device, &state));
  if (!l->has_had_buckets) {
    CHECK_EQ(state.created_bytes, reserved);
  } else {
    CHECK(state.created_bytes >= reserved);
  }
  CHECK_EQ(l->n_findings, 0);
}

/* ---- Steps that are alone ---- */

/* The memory is new: its owners are named again. */
static void own_all(life *l, int heap) {
  for (int i = 0; i < l->n_posted; i++) {
    if (l->posted[i].heap == heap) {
      life_own_again(l, &l->posted[i]);
    }
  }
  for (int i = 0; i < l->n_threads; i++) {
    const life_thread *t = &l->threads[i];
    for (int j = 0; j < t->n; j++) {
      if (t->live[j].heap == heap) {
        life_own_again(l, &t->live[j]);
      }
    }
    for (int j = 0; j < LIFE_ARENAS; j++) {
      if (t->arenas[j].memory.block.address != 0 && t->arenas[j].heap == heap) {
        life_own_again(l, &t->arenas[j].memory);
      }
    }
  }
}

static tarn_status heap_wake(life *l, int heap) {
  const tarn_status status = tarn_heap_wake(l->heaps[heap].heap);
  l->heaps[heap].is_asleep = status != TARN_OK;
  if (status == TARN_OK) {
    own_all(l, heap);
  }
  return status;
}

static void sleep_or_wake(life_thread *self) {
  life *l = self->life;
  const int heap = (int)life_below(self, (uint64_t)l->n_heaps);
  life_heap *h = &l->heaps[heap];
  const int may = LIFE_CAPTURE | LIFE_SHORT | (h->has_buckets ? LIFE_UNSUPPORTED : 0);
  const bool is_dropping = life_chance(self, 40);
  if (h->is_asleep) {
    (void)life_passed(self, heap_wake(l, heap), may);
  } else {
    (void)life_passed(
        self, tarn_heap_sleep(h->heap, is_dropping ? TARN_SLEEP_DROP : TARN_SLEEP_SAVE), may);
    h->epoch += is_dropping;
  }
  tarn_heap_stats s = {.size = sizeof(s)};
  CHECK_OK(tarn_heap_get_stats(h->heap, &s));
  CHECK(s.is_asleep || !h->is_asleep || l->is_lost);
  h->is_asleep = s.is_asleep;
  own_all(l, heap); /* also where falling asleep was undone */
}

static bool is_of_heap(const life_thread *t, int heap) {
  bool is = t->capture.is_going_on && t->capture.heap == heap;
  for (int i = 0; i < LIFE_GRAPHS; i++) {
    is = is || ((t->graphs[i].graph != NULL || t->graphs[i].n != 0) && t->graphs[i].heap == heap);
  }
  for (int i = 0; i < LIFE_ARENAS; i++) {
    is = is || (t->arenas[i].arena != NULL && t->arenas[i].heap == heap);
  }
  return is;
}

/* Destroys a heap with whatever blocks are live. */
static void heap_destroy(life_thread *self, int heap) {
  life *l = self->life;
  for (int i = 0; i < l->n_threads; i++) {
    life_thread *t = &l->threads[i];
    if (t->budget != NULL && t->budget_heap == heap) {
      life_budget_end(t);
    }
  }
  const uint64_t n_live = count_live(l, heap);
  const bool is_lost = l->is_lost;
  for (int i = 0; i < l->n_threads; i++) {
    life_thread *t = &l->threads[i];
    for (int j = t->n - 1; j >= 0; j--) {
      if (t->live[j].heap == heap) {
        life_disown(l, &t->live[j]);
        life_forget(t, j);
      }
    }
  }
  for (int i = l->n_posted - 1; i >= 0; i--) {
    if (l->posted[i].heap == heap) {
      life_disown(l, &l->posted[i]);
      l->posted[i] = l->posted[--l->n_posted];
    }
  }
  uint64_t n = 0;
  tarn_status status;
  do {
    status = tarn_heap_destroy(l->heaps[heap].heap, &n);
  } while (status != TARN_OK && life_struck(self, status));
  CHECK(is_lost || n == n_live);
  for (int i = 0; i < l->n_threads; i++) {
    life_thread *t = &l->threads[i];
    if (t->scope != NULL && t->scope_heap == heap) {
      CHECK_STATUS(tarn_stats_scope_end(t->scope, NULL), TARN_STATE);
      t->scope = NULL;
    }
  }
}

static void heap_replace(life_thread *self, const char *device) {
  life *l = self->life;
  const int heap = (int)life_below(self, (uint64_t)l->n_heaps);
  bool is_free = true;
  for (int i = 0; i < l->n_threads; i++) { /* a capture may forbid what making a heap needs */
    is_free = is_free && !is_of_heap(&l->threads[i], heap) && !l->threads[i].capture.is_going_on;
  }
  if (is_free && !l->has_faults && !l->is_lost) {
    heap_destroy(self, heap);
    (void)heap_create(l, heap, &self->rng, device);
  }
}

static void step_alone(life_thread *self, const char *device) {
  const uint64_t dice = life_below(self, 100);
  if (dice < 35) {
    check_all(self->life);
  } else if (dice < 65) {
    sleep_or_wake(self);
  } else if (dice < 95) {
    life_capture_begin(self, true);
  } else {
    heap_replace(self, device);
  }
}

/* ---- Threads ---- */

static char device_name[128];

static void step(life_thread *self) {
  life *l = self->life;
  const uint64_t dice = life_below(self, 100);
  bool is_any_asleep = false;
  if (dice < 4) {
    pthread_rwlock_wrlock(&l->world);
    step_alone(self, device_name);
    pthread_rwlock_unlock(&l->world);
    return;
  }
  pthread_rwlock_rdlock(&l->world);
  for (int i = 0; i < l->n_heaps; i++) {
    is_any_asleep |= l->heaps[i].is_asleep;
  }
  if (dice < 14) {
    life_step_heap(self);
  } else if (dice < 34 && l->has_captures) {
    life_step_capture(self);
  } else {
    life_step_block(self);
  }
  pthread_rwlock_unlock(&l->world);
  if (is_any_asleep && life_chance(self, 5)) {
    pthread_rwlock_wrlock(&l->world);
    sleep_or_wake(self);
    pthread_rwlock_unlock(&l->world);
  }
}

/* One thread of the system works for a while; another one takes over what it held. */
static void *run_shift(void *user) {
  life_thread *self = user;
  life *l = self->life;
  life_is_self(self);
  const uint64_t n = 1 + life_below(self, SHIFT);
  for (uint64_t i = 0; i < n && self->n_steps != 0 && !test_case_failed(); i++) {
    self->n_steps--;
    step(self);
  }
  pthread_rwlock_rdlock(&l->world);
  const life_capture *c = &self->capture;
  if (c->is_going_on && (c->mode != TARN_CAPTURE_RELAXED || c->origin == LIFE_PER_THREAD)) {
    life_capture_end(self, life_chance(self, 50));
  }
  life_leave(self);
  pthread_rwlock_unlock(&l->world);
  return NULL;
}

static void *run_thread(void *user) {
  life_thread *self = user;
  while (self->n_steps != 0 && !test_case_failed()) {
    pthread_t worker;
    if (!CHECK_EQ(pthread_create(&worker, NULL, run_shift, self), 0)) {
      break;
    }
    CHECK_EQ(pthread_join(worker, NULL), 0);
  }
  return NULL;
}

/* ---- The end of a program ---- */

static void wake_all(life *l) {
  for (int i = 0; i < l->n_heaps; i++) {
    CHECK_OK(tarn_heap_set_limit(l->heaps[i].heap, 0));
  }
  for (int i = 0; i < l->n_heaps; i++) {
    (void)tarn_heap_trim(l->heaps[i].heap, 0); /* TARN_STATE: it sleeps */
  }
  for (int i = 0; i < l->n_heaps; i++) {
    if (l->heaps[i].is_asleep) {
      const tarn_status status = heap_wake(l, i);
      CHECK(status == TARN_OK || (status == TARN_DEVICE_MEMORY && l->n_heaps > 1));
    }
  }
}

static void finish_thread(life_thread *self) {
  while (self->n != 0) {
    CHECK(life_release(self, &self->live[--self->n]));
  }
  for (int i = 0; i < LIFE_GRAPHS; i++) {
    life_graph_drop(self, &self->graphs[i]);
  }
  if (self->budget != NULL) {
    life_budget_end(self);
  }
  if (self->scope != NULL) {
    life_scope_end(self);
  }
}

static void finish_arenas(life_thread *self) {
  for (int i = 0; i < self->life->n_heaps; i++) {
    (void)tarn_heap_trim(self->life->heaps[i].heap, UINT64_MAX); /* parked graphs go */
  }
  for (int i = 0; i < LIFE_ARENAS; i++) {
    CHECK(life_arena_drop(self, i));
  }
}

/* Nothing is live: nothing is held, and nearly all of the device can be had. */
static void check_empty(life *l) {
  for (int i = 0; i < l->n_heaps; i++) {
    tarn_heap *heap = l->heaps[i].heap;
    tarn_heap_stats s = {.size = sizeof(s)};
    if (l->heaps[i].is_asleep) {
      CHECK_OK(heap_wake(l, i));
    }
    CHECK_OK(l->has_unretired ? tarn_heap_reset(heap) : tarn_heap_trim(heap, 0));
    CHECK_OK(tarn_heap_get_stats(heap, &s));
    CHECK_EQ(s.live_blocks, 0);
    CHECK_EQ(s.reserved_bytes, 0);
    CHECK_EQ(s.captured_bytes, 0);
    CHECK_EQ(s.quarantined_bytes, 0);
  }
  check_all(l);
  for (int i = 0; i < l->n_heaps; i++) {
    const life_heap *h = &l->heaps[i];
    const uint64_t most = h->config.live_limit_bytes != 0 ? 32 * LIFE_MIB : l->total_bytes / 2;
    tarn_ptr block = 0;
    CHECK_OK(tarn_alloc(h->heap, most, l->common[0], &block));
    CHECK_OK(tarn_free(h->heap, block, l->common[0]));
    CHECK_OK(tarn_heap_trim(h->heap, 0));
  }
}

/* The device breaks, and the program goes on for a while. */
static void break_device(life *l) {
  CHECK_OK(tarn_sim_fail(l->device, TARN_CALL_COUNT, 1, 1, 700));
  l->has_faults = false; /* no other one takes the place of this */
  l->is_lost = true;
  for (int i = 0; i < l->n_threads; i++) {
    l->threads[i].n_steps = 60;
    (void)run_thread(&l->threads[i]);
  }
  for (int i = 0; i < l->n_threads; i++) {
    if (l->threads[i].capture.is_going_on) {
      life_capture_end(&l->threads[i], true);
    }
  }
  for (int i = 0; i < l->n_heaps; i++) {
    heap_destroy(&l->threads[0], i);
  }
}

static void finish(life *l) {
  CHECK_OK(tarn_sim_fail(l->device, TARN_CALL_COUNT, 0, 0, 0));
  l->has_faults = false;
  life_thread *first = &l->threads[0];
  life_is_self(NULL);
  check_all(l);
  for (int i = 0; i < l->n_threads; i++) {
    if (l->threads[i].capture.is_going_on) {
      life_capture_end(&l->threads[i], true);
    }
  }
  wake_all(l);
  const bool has_live = l->seed % 5 == 0; /* heaps are destroyed with live blocks */
  for (int i = 0; i < l->n_posted && !has_live; i++) {
    CHECK(life_release(first, &l->posted[i]));
  }
  l->n_posted = has_live ? l->n_posted : 0;
  for (int i = 0; i < l->n_threads; i++) {
    life_thread *t = &l->threads[i];
    life_block kept[LIFE_LIVE];
    const int n = has_live ? t->n : 0;
    memcpy(kept, t->live, sizeof(kept));
    t->n = has_live ? 0 : t->n;
    finish_thread(t);
    memcpy(t->live, kept, sizeof(kept));
    t->n = n;
  }
  for (int i = 0; i < l->n_threads; i++) {
    finish_arenas(&l->threads[i]);
  }
  if (!has_live) {
    check_empty(l);
  }
  for (int i = 0; i < l->n_heaps; i++) {
    heap_destroy(first, i);
  }
}

/* ---- Programs ---- */

static void note_finding(const tarn_sim_finding *finding, void *user) {
  life *l = user;
  if (finding->kind == TARN_SIM_MISUSE && l->has_unretired) {
    return; /* asking about a stream that is gone */
  }
  if (l->n_findings++ < 3) {
    test_note("seed %" PRIu64 " found: %s", l->seed, finding->message);
  }
}

static bool life_open(life *l, tarni_rng *rng) {
  static const char *const orders[] = {"random", "random", "lazy", "eager"};
  static const int megabytes[] = {64, 96, 128, 256};
  static uint64_t n_opened;
  const int mib = megabytes[tarni_rng_below(rng, 4)];
  l->total_bytes = (uint64_t)mib << 20;
  l->most_bytes = l->total_bytes / (3 + tarni_rng_below(rng, 14));
  const char *granularity = tarni_rng_below(rng, 4) == 0 ? "256K" : "2M";
  const char *order = orders[tarni_rng_below(rng, 4)];
  (void)snprintf(device_name, sizeof(device_name),
                 "sim:%dM,seed=%" PRIu64 ",order=%s,granularity=%s,id=%" PRIu64, mib, l->seed,
                 order, granularity, ++n_opened);
  if (!CHECK_OK(tarn_device_open(device_name, &l->device)) ||
      !CHECK_OK(tarn_sim_set_on_finding(l->device, note_finding, l))) {
    return false;
  }
  for (int i = 0; i < LIFE_COMMON; i++) {
    CHECK_OK(tarn_stream_create(l->device, &l->common[i]));
  }
  for (int i = 0; i < l->n_heaps; i++) {
    if (!heap_create(l, i, rng, device_name)) {
      return false;
    }
  }
  return true;
}

static void life_close(life *l) {
  for (int i = 0; i < LIFE_COMMON; i++) {
    CHECK(tarn_stream_destroy(l->device, l->common[i]) == TARN_OK || l->is_lost);
  }
  for (int i = 0; i < l->n_threads; i++) {
    tarn_layout_destroy(l->threads[i].layout);
    for (int j = 0; j < LIFE_OWN; j++) {
      CHECK(tarn_stream_destroy(l->device, l->threads[i].own[j]) == TARN_OK || l->is_lost);
    }
  }
  tarn_device_close(l->device);
  CHECK_EQ(l->n_findings, 0);
  while (l->notes != NULL) {
    life_note *note = l->notes;
    l->notes = note->next;
    free(note);
  }
}

static void run_threads(life *l) {
  for (int i = 0; i < l->n_threads; i++) {
    life_thread *t = &l->threads[i];
    *t = (life_thread){.life = l,
                       .number = i,
                       .rng = {.state = l->seed * 7919 + (uint64_t)i * 104729},
                       .n_steps = STEPS / (uint64_t)l->n_threads + 100};
    t->capture.side = LIFE_NO_STREAM;
    for (int j = 0; j < LIFE_GRAPHS; j++) {
      t->graphs[j] = (life_graph){.arena = -1, .after = LIFE_NO_STREAM};
    }
    for (int j = 0; j < LIFE_ARENAS; j++) {
      t->arenas[j].last = LIFE_NO_STREAM;
    }
    for (int j = 0; j < LIFE_OWN; j++) {
      CHECK_OK(tarn_stream_create(l->device, &t->own[j]));
    }
  }
  if (l->n_threads == 1) {
    (void)run_thread(&l->threads[0]);
    return;
  }
  for (int i = 0; i < l->n_threads; i++) {
    CHECK_EQ(pthread_create(&l->threads[i].thread, NULL, run_thread, &l->threads[i]), 0);
  }
  for (int i = 0; i < l->n_threads; i++) {
    CHECK_EQ(pthread_join(l->threads[i].thread, NULL), 0);
  }
}

static void run_program(uint64_t seed, bool is_alone) {
  static life l;
  tarni_rng rng = {.state = seed};
  l = (life){.seed = seed};
  l.n_threads = is_alone ? 1 : 2 + (int)tarni_rng_below(&rng, LIFE_THREADS - 1);
  l.n_heaps = 1 + (int)tarni_rng_below(&rng, 2);
  l.has_faults = tarni_rng_below(&rng, 3) == 0;
  l.has_captures = tarni_rng_below(&rng, 4) != 0;
  l.has_raw = l.has_captures && seed % 4 == 2;
  l.has_legacy = tarni_rng_below(&rng, 2) == 0;
  l.has_unretired = tarni_rng_below(&rng, 10) == 0;
  CHECK_EQ(pthread_rwlock_init(&l.world, NULL), 0);
  CHECK_EQ(pthread_mutex_init(&l.mutex, NULL), 0);
  test_note("seed %" PRIu64 ": %d threads, %d heaps%s%s%s%s", seed, l.n_threads, l.n_heaps,
            l.has_faults ? ", faults" : "",
            l.has_raw        ? ", captures of which nobody tells"
            : l.has_captures ? ", captures"
                             : "",
            l.has_legacy ? ", the legacy stream" : "", l.has_unretired ? ", unretired" : "");
  if (life_open(&l, &rng)) {
    run_threads(&l);
    if (!test_case_failed()) {
      if (seed % 8 == 3) {
        break_device(&l);
      } else {
        finish(&l);
      }
      life_close(&l);
    }
  }
  CHECK_EQ(pthread_rwlock_destroy(&l.world), 0);
  CHECK_EQ(pthread_mutex_destroy(&l.mutex), 0);
}

static void one_thread(void) {
  seeds_run(run_program, true);
}

static void several_threads(void) {
  seeds_run(run_program, false);
}

/* Programs of one thread that have shown something. */
static void known_programs(void) {
  static const uint64_t seeds[] = {6020041 /* idle chunks once all was awaited */};
  for (size_t i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++) {
    seeds_run_one(run_program, seeds[i], true);
  }
}

static const test_case cases[] = {
    {"known programs", known_programs},
    {"one thread", one_thread},
    {"several threads", several_threads},
};

int main(int argc, char **argv) {
  return seeds_main(cases, (int)(sizeof(cases) / sizeof(cases[0])), SEEDS, argc, argv);
}
