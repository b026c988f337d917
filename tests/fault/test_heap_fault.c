/* SPDX-License-Identifier: MIT
 *
 * The n-th driver call fails, for every n, once and for good, in every scenario: the call that
 * needed it has the driver's own status and empty outputs, the heap agrees with itself and with the
 * device, nothing is used too early, and once the fault is over the same calls succeed and nothing
 * leaks. A code that breaks the device ends it: then nothing succeeds, and nothing hangs. */
#include <pthread.h>
#include <stdlib.h>

#include "support/rig.h"
#include "support/test.h"

enum { MAX_BLOCKS = 64, MIB = 1 << 20, MAX_CALLS = 20000 };

typedef struct world {
  rig rig;
  bool is_armed; /* a fault may strike now */
  bool is_for_good;
  bool is_lost; /* the device is broken */
  tarn_status expected;
  int n_blocks;
  rig_block blocks[MAX_BLOCKS];
  tarn_stream streams[MAX_BLOCKS]; /* on which each is freed */
} world;

typedef struct scenario {
  const char *device;
  tarn_heap_config config;
  void (*run)(world *w);
} scenario;

/* Whether an allocation may fail so: with the driver's own word, or, where the driver lets nothing
 * be given back for good, because what is left is too little. */
static bool is_excused(const world *w, tarn_status status) {
  return status == w->expected ||
         (w->is_for_good && (status == TARN_LIMIT || status == TARN_DEVICE_MEMORY ||
                             status == TARN_ADDRESS_SPACE || status == TARN_STATE));
}

/* Whether the call succeeded; if not, it failed as the fault lets it. */
static bool passed(world *w, tarn_status status) {
  if (status == TARN_OK) {
    return true;
  }
  if (!w->is_armed || w->is_lost) {
    CHECK_STATUS(status, w->is_lost ? TARN_DEVICE_LOST : TARN_OK);
    return false;
  }
  if (!is_excused(w, status)) {
    CHECK_STATUS(status, w->expected);
  }
  tarn_error error = {.size = sizeof(error)};
  CHECK_EQ(tarn_last_error(&error), status);
  CHECK(error.message[0] != '\0');
  if (w->expected != TARN_DEVICE_LOST) {
    CHECK(rig_is_sound(&w->rig));
  }
  return false;
}

/* ---- Steps ---- */

static void take(world *w, uint64_t bytes, int stream) {
  rig_block *block = &w->blocks[w->n_blocks];
  w->streams[w->n_blocks] = w->rig.streams[stream];
  w->n_blocks += passed(w, rig_alloc(&w->rig, bytes, w->rig.streams[stream], block));
}

static void give(world *w, int index) {
  if (index < w->n_blocks && passed(w, rig_free(&w->rig, &w->blocks[index], w->streams[index]))) {
    w->blocks[index] = w->blocks[--w->n_blocks];
    w->streams[index] = w->streams[w->n_blocks];
  }
}

static void give_all(world *w) {
  for (int i = w->n_blocks; i-- != 0;) {
    give(w, i);
  }
}

/* Another stream reads the block, after all that its own stream has been given. */
static void use(world *w, int index, int stream) {
  if (index >= w->n_blocks ||
      !passed(w, tarn_stream_synchronize(w->rig.device, w->streams[index]))) {
    return;
  }
  if (passed(w, tarn_use(w->rig.heap, w->blocks[index].address, w->rig.streams[stream]))) {
    rig_touch(&w->rig, &w->blocks[index], w->rig.streams[stream], false);
  }
}

/* ---- Scenarios ---- */

static void grow(world *w) {
  for (int i = 0; i < 6; i++) {
    take(w, 300 << i, 0);
    take(w, (uint64_t)(3 * i + 2) * MIB / 2, 0);
  }
  give(w, 3);
  give(w, 0);
  take(w, 5 * MIB, 0);
  take(w, 700 << 10, 0);
  give_all(w);
}

/* Memory that is free in pieces is brought together. */
static void move(world *w) {
  for (int i = 0; i < 7; i++) {
    take(w, 4 * MIB, 0);
  }
  for (int i = 6; i >= 0; i -= 2) {
    give(w, i);
  }
  take(w, 12 * MIB, 0);
  take(w, 1 * MIB, 0);
  take(w, 200 << 10, 0);
  give_all(w);
  take(w, 24 * MIB, 0);
  give_all(w);
}

static void steal(world *w) {
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 4; i++) {
      take(w, 3 * MIB, round);
      take(w, 100 << 10, round);
    }
    give_all(w);
  }
  take(w, 14 * MIB, 3);
  give_all(w);
}

static void share(world *w) {
  for (int i = 0; i < 3; i++) {
    take(w, 2 * MIB, 0);
    take(w, 40 << 10, 0);
  }
  for (int i = 0; i < 6; i++) {
    use(w, i, 1);
    use(w, i, i % 3);
  }
  give_all(w);
  take(w, 6 * MIB, 2);
  take(w, 40 << 10, 0);
  take(w, 3 * MIB, 0);
  give_all(w);
}

static void retire(world *w) {
  for (int i = 0; i < 3; i++) {
    take(w, 2 * MIB, i);
    take(w, 5 << 10, i);
    take(w, 300 << 10, i);
  }
  use(w, 1, 1);
  give(w, 4);
  give(w, 1);
  for (int i = 0; i < 3; i++) {
    (void)passed(w, tarn_stream_retire(w->rig.heap, w->rig.streams[i]));
  }
  take(w, 7 * MIB, 3);
  take(w, 5 << 10, 3);
  give_all(w);
  (void)passed(w, tarn_stream_retire(w->rig.heap, w->rig.streams[3]));
  take(w, 12 * MIB, 0);
  give_all(w);
}

static void trim(world *w) {
  for (int i = 0; i < 3; i++) {
    take(w, 3 * MIB, i);
    take(w, 30 << 10, i);
  }
  give(w, 4);
  give(w, 0);
  (void)passed(w, tarn_heap_trim(w->rig.heap, 4 * MIB));
  give_all(w);
  if (passed(w, tarn_heap_trim(w->rig.heap, 0)) && !w->is_armed) {
    CHECK_EQ(rig_stats(&w->rig).reserved_bytes, 0);
  }
}

static void limit(world *w) {
  if (passed(w, tarn_heap_reserve(w->rig.heap, 10 * MIB))) {
    CHECK(rig_stats(&w->rig).reserved_bytes >= 10 * MIB);
  }
  take(w, 3 * MIB, 0);
  take(w, 3 * MIB, 1);
  take(w, 3 << 10, 1);
  give(w, 0);
  (void)passed(w, tarn_heap_set_limit(w->rig.heap, 6 * MIB));
  CHECK_EQ(rig_stats(&w->rig).limit_bytes, 6 * MIB);
  give_all(w);
  take(w, 4 * MIB, 2);
  (void)passed(w, tarn_heap_set_limit(w->rig.heap, 0));
  take(w, 8 * MIB, 2);
  give_all(w);
}

static void *thread_work(void *user) {
  world *w = user;
  rig *r = &w->rig;
  for (int i = 0; i < 2; i++) {
    w->streams[w->n_blocks] = NULL; /* the legacy stream follows the threads' ones */
    w->n_blocks += passed(
        w, rig_alloc(r, i == 0 ? 2 * MIB : 9 << 10, (tarn_stream)2, &w->blocks[w->n_blocks]));
  }
  rig_block block;
  if (passed(w, rig_alloc(r, 6 * MIB, (tarn_stream)2, &block)) &&
      !passed(w, rig_free(r, &block, (tarn_stream)2))) {
    w->streams[w->n_blocks] = NULL;
    w->blocks[w->n_blocks++] = block;
  }
  return NULL;
}

/* Each thread on its own default stream; what one leaves behind the other takes. */
static void threads(world *w) {
  for (int i = 0; i < 2; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, thread_work, w) == 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    (void)thread_work(w);
  }
  give_all(w);
}

/* ---- Runs ---- */

static void arm(world *w, uint64_t nth, uint64_t times, int code) {
  static const struct {
    int code;
    tarn_status status;
  } meanings[] = {
      {1, TARN_INVALID}, {2, TARN_DEVICE_MEMORY}, {801, TARN_UNSUPPORTED}, {700, TARN_DEVICE_LOST}};
  for (unsigned i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
    w->expected = meanings[i].code == code ? meanings[i].status : w->expected;
  }
  CHECK_OK(tarn_sim_fail(w->rig.device, TARN_CALL_COUNT, nth, times, code));
  w->is_armed = true;
  w->is_for_good = times == 0;
}

/* The fault is over. Returns how many calls it struck. */
static uint64_t disarm(world *w) {
  uint64_t n = 0;
  CHECK_OK(tarn_sim_failed(w->rig.device, &n));
  CHECK_OK(tarn_sim_fail(w->rig.device, TARN_CALL_COUNT, 0, 0, 0));
  w->is_armed = false;
  w->is_lost = n != 0 && w->expected == TARN_DEVICE_LOST;
  return n;
}

/* A stream of which the driver said that it is not there counts as gone, until its user shows that
 * it is. */
static void show_streams(world *w) {
  for (int i = 0; i < w->rig.n_streams && w->is_for_good && w->expected == TARN_INVALID; i++) {
    CHECK_OK(tarn_stream_retire(w->rig.heap, w->rig.streams[i]));
  }
}

static uint64_t run_once(const scenario *s, uint64_t nth, uint64_t times, int code) {
  static world w;
  w = (world){0};
  if (!rig_open(&w.rig, s->device, &s->config, 4)) {
    return 0;
  }
  arm(&w, nth, times, code);
  s->run(&w);
  const uint64_t n = disarm(&w);
  if (!w.is_lost) {
    CHECK(rig_is_sound(&w.rig));
    show_streams(&w);
    give_all(&w);
    CHECK_EQ(w.n_blocks, 0);
    s->run(&w);
    CHECK(rig_is_sound(&w.rig));
    rig_close(&w.rig);
    return n;
  }
  uint64_t n_live;
  CHECK_OK(tarn_heap_destroy(w.rig.heap, &n_live));
  tarn_device_close(w.rig.device);
  CHECK_EQ(w.rig.n_findings, 0);
  return n;
}

static void run_all(const scenario *s) {
  static const int codes[] = {2, 1, 801, 700};
  uint64_t n_runs = 0;
  for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
    for (uint64_t times = 0; times < 2; times++) {
      for (uint64_t nth = 1; nth < MAX_CALLS && run_once(s, nth, times, codes[i]) != 0; nth++) {
        n_runs++;
        if (test_case_failed()) {
          test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                    times == 0 ? "for good" : "once", codes[i]);
          return;
        }
      }
    }
  }
  CHECK(n_runs > 8);
  test_note("%llu faults", (unsigned long long)n_runs);
}

#define RUN(case_name, scenario_device, function, ...)                                             \
  static void case_name(void) {                                                                    \
    const scenario s = {.device = scenario_device,                                                 \
                        .config = {.size = sizeof(tarn_heap_config), __VA_ARGS__},                 \
                        .run = function};                                                          \
    run_all(&s);                                                                                   \
  }

RUN(growing, "sim:64M,order=lazy", grow, .stealing = TARN_STEAL_WHEN_SHORT)
RUN(moving, "sim:64M,order=lazy", move, .limit_bytes = 32 * MIB)
RUN(moving_for_another, "sim:64M,seed=3", move, .limit_bytes = 32 * MIB,
    .stealing = TARN_STEAL_ALWAYS)
RUN(stealing_when_short, "sim:16M,order=lazy", steal, .stealing = TARN_STEAL_WHEN_SHORT)
RUN(stealing_always, "sim:16M,seed=5", steal, .stealing = TARN_STEAL_ALWAYS)
RUN(stealing_never, "sim:16M,order=lazy", steal, .stealing = TARN_STEAL_NEVER)
RUN(sharing, "sim:64M,order=lazy", share, .limit_bytes = 12 * MIB)
RUN(retiring, "sim:64M,order=lazy", retire, .limit_bytes = 24 * MIB)
RUN(trimming, "sim:64M,order=lazy", trim, .stealing = TARN_STEAL_WHEN_SHORT)
RUN(limiting, "sim:64M,order=lazy", limit, .stealing = TARN_STEAL_WHEN_SHORT)
RUN(threading, "sim:64M,order=lazy", threads, .limit_bytes = 24 * MIB)

/* ---- Beginning and end ---- */

static uint64_t create_once(uint64_t nth, uint64_t times, int code) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M"};
  world w = {0};
  if (!rig_open_device(&w.rig, "sim:64M", 1)) {
    return 0;
  }
  arm(&w, nth, times, code);
  w.rig.heap = (tarn_heap *)(uintptr_t)1;
  const tarn_status status = tarn_heap_create(&config, &w.rig.heap);
  const uint64_t n = disarm(&w);
  if (status != TARN_OK) { /* the one thing that can run out here is addresses */
    CHECK_STATUS(status, w.expected == TARN_DEVICE_MEMORY ? TARN_ADDRESS_SPACE : w.expected);
    CHECK(w.rig.heap == NULL);
  }
  if (status != TARN_OK && !w.is_lost) {
    CHECK_OK(tarn_heap_create(&config, &w.rig.heap));
  }
  if (!w.is_lost) {
    rig_close(&w.rig);
  } else {
    CHECK_OK(tarn_heap_destroy(w.rig.heap, NULL));
    tarn_device_close(w.rig.device);
    CHECK_EQ(w.rig.n_findings, 0);
  }
  return n;
}

static void creating(void) {
  static const int codes[] = {2, 1, 801, 700};
  for (unsigned i = 0; i < 4; i++) {
    for (uint64_t times = 0; times < 2; times++) {
      uint64_t nth = 1;
      while (create_once(nth, times, codes[i]) != 0 && !test_case_failed()) {
        nth++;
      }
      CHECK(nth > 1);
    }
  }
}

/* A heap in the middle of its life: chunks moved, streams retired, blocks pending and live. */
static void live_a_little(world *w) {
  move(w);
  share(w);
  take(w, 3 * MIB, 1);
  take(w, 3 << 10, 1);
  use(w, 0, 2);
  use(w, 1, 2);
  give(w, 0);
  take(w, 5 * MIB, 3);
  (void)passed(w, tarn_stream_retire(w->rig.heap, w->rig.streams[0]));
}

static uint64_t destroy_once(uint64_t nth, uint64_t times, int code) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 32 * MIB};
  static world w;
  w = (world){0};
  if (!rig_open(&w.rig, "sim:64M,order=lazy", &config, 4)) {
    return 0;
  }
  live_a_little(&w);
  const uint64_t n_live = (uint64_t)w.n_blocks;
  arm(&w, nth, times, code);
  uint64_t n_gone = 77;
  const tarn_status status = tarn_heap_destroy(w.rig.heap, &n_gone);
  const uint64_t n = disarm(&w);
  if (w.is_lost || status == TARN_OK) {
    CHECK_OK(status);
    CHECK_EQ(n_gone, n_live);
    w.rig.heap = NULL;
  } else {
    CHECK_STATUS(status, w.expected);
    CHECK_EQ(n_gone, 0);
  }
  if (!w.is_lost) {
    rig_close_live(&w.rig, w.rig.heap != NULL ? n_live : 0);
  } else {
    tarn_device_close(w.rig.device);
    CHECK_EQ(w.rig.n_findings, 0);
  }
  return n;
}

static void destroying(void) {
  static const int codes[] = {2, 1, 801, 700};
  for (unsigned i = 0; i < 4; i++) {
    for (uint64_t times = 0; times < 2; times++) {
      uint64_t nth = 1;
      while (destroy_once(nth, times, codes[i]) != 0 && !test_case_failed()) {
        nth++;
      }
      CHECK(nth > 1);
      if (test_case_failed()) {
        test_note("the fault was: call %llu, %s, code %d", (unsigned long long)nth,
                  times == 0 ? "for good" : "once", codes[i]);
        return;
      }
    }
  }
}

static const test_case cases[] = {
    {"growing", growing},
    {"moving chunks", moving},
    {"moving chunks, any lane's", moving_for_another},
    {"stealing when short", stealing_when_short},
    {"stealing always", stealing_always},
    {"stealing never", stealing_never},
    {"blocks that several streams use", sharing},
    {"retiring streams", retiring},
    {"trimming", trimming},
    {"reserve and limits", limiting},
    {"threads with their default streams", threading},
    {"creating a heap", creating},
    {"destroying a heap", destroying},
};

TEST_MAIN(cases)
