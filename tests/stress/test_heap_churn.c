/* SPDX-License-Identifier: MIT
 *
 * Everything that can be done with a heap, at random, by several threads on several streams, with
 * streams that come and go, trims, limits and driver calls that fail, all of it watched by the
 * oracle of the simulated GPU: no finding, no lost byte, and counters that agree with the
 * structures.
 *
 * TARN_TEST_OPERATIONS: how many operations there are in all; TARN_TEST_SEED: where chance begins.
 * Without it, it begins at another place every time, and says where. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/rng.h"
#include "support/rig.h"
#include "support/test.h"

enum { MAX_LIVE = 192, MAX_COMMON = 8, MAX_THREADS = 8, MAX_POSTED = 64, MIB = 1 << 20 };

/* What the runs of this program have together; fewer where each takes 20 times as long. */
#if defined(__SANITIZE_ADDRESS__)
static const uint64_t n_operations_in_all = 250000;
#else
static const uint64_t n_operations_in_all = 1000000;
#endif

typedef struct churn_block {
  rig_block block;
  tarn_stream stream; /* it is allocated and freed on */
  bool is_shared;     /* another stream reads it, too */
} churn_block;

typedef struct churn_config {
  const char *device;
  int n_threads, n_streams;
  double share; /* of all operations */
  uint64_t max_bytes;
  tarn_stealing stealing;
  bool is_alone;    /* each thread has a stream of its own, and uses no other */
  bool has_retired; /* threads' own streams come and go */
  bool has_trims;   /* and limits that change */
  bool has_faults;
  tarn_backing backing;
  tarn_rounding rounding;
  uint64_t cached_limit_bytes;
  uint32_t cached_blocks_per_size;
} churn_config;

typedef struct churn {
  const churn_config *config;
  rig rig;
  uint64_t seed, n_operations;
  /* Blocks on their way from one thread to another: */
  pthread_mutex_t mutex;
  churn_block posted[MAX_POSTED];
  int n_posted;
} churn;

typedef struct churn_thread {
  churn *churn;
  pthread_t thread;
  tarni_rng rng;
  tarn_stream own; /* a stream that nobody else uses, or NULL */
  churn_block live[MAX_LIVE];
  int number, n;
  uint64_t n_refused, n_retired, n_struck;
} churn_thread;

static bool chance(churn_thread *self, uint64_t percent) {
  return tarni_rng_below(&self->rng, 100) < percent;
}

/* ---- Failures that are meant ---- */

/* Whether the call succeeded. Where faults strike it may have failed as they do; a shortage is
 * allowed to an allocation. */
static bool passed(churn_thread *self, tarn_status status, bool may_be_short) {
  const bool is_short = may_be_short && (status == TARN_DEVICE_MEMORY || status == TARN_LIMIT);
  const bool is_struck =
      self->churn->config->has_faults &&
      (status == TARN_DEVICE_MEMORY || status == TARN_UNSUPPORTED || status == TARN_ADDRESS_SPACE);
  if (status != TARN_OK && !is_short && !is_struck) {
    CHECK_OK(status);
  }
  self->n_refused += status != TARN_OK && is_short;
  self->n_struck += status != TARN_OK && !is_short && is_struck;
  return status == TARN_OK;
}

static void plan_fault(churn_thread *self) {
  static const int codes[] = {2, 801};
  CHECK_OK(tarn_sim_fail(self->churn->rig.device, TARN_CALL_COUNT,
                         1 + tarni_rng_below(&self->rng, 30), 1 + tarni_rng_below(&self->rng, 3),
                         codes[tarni_rng_below(&self->rng, 2)]));
}

/* ---- Operations ---- */

static uint64_t pick_size(churn_thread *self) {
  const uint64_t dice = tarni_rng_below(&self->rng, 100);
  if (dice < 60) {
    return 1 + tarni_rng_below(&self->rng, 32 << 10);
  }
  if (dice < 85) {
    return 1 + tarni_rng_below(&self->rng, MIB);
  }
  return 1 + tarni_rng_below(&self->rng, self->churn->config->max_bytes);
}

static tarn_stream pick_stream(churn_thread *self) {
  const churn_config *config = self->churn->config;
  const uint64_t n = (uint64_t)config->n_streams;
  if (self->own != NULL && (config->is_alone || chance(self, 50))) {
    return self->own;
  }
  return self->churn->rig.streams[tarni_rng_below(&self->rng, n)];
}

static void release(churn_thread *self, churn_block *block) {
  while (!passed(self, rig_free(&self->churn->rig, &block->block, block->stream), false) &&
         !test_case_failed()) { /* a free that a fault has struck goes through the next time */
  }
}

static void forget(churn_thread *self, uint64_t at) {
  self->live[at] = self->live[--self->n];
}

static void allocate(churn_thread *self) {
  rig *r = &self->churn->rig;
  churn_block *block = &self->live[self->n];
  *block = (churn_block){.stream = pick_stream(self)};
  const uint64_t bytes = pick_size(self);
  tarn_status status;
  if (chance(self, 10)) {
    tarn_ptr address = 1;
    const uint64_t alignment = (uint64_t)256 << tarni_rng_below(&self->rng, 14);
    status = tarn_alloc_aligned(r->heap, bytes, alignment, block->stream, &address);
    if (status == TARN_OK) {
      CHECK_EQ(address % alignment, 0);
      rig_own(r, address, bytes, &block->block);
      rig_touch(r, &block->block, block->stream, true);
    } else {
      CHECK_EQ(address, 0);
    }
  } else {
    status = rig_alloc(r, bytes, block->stream, &block->block);
  }
  if (passed(self, status, true)) {
    self->n++;
    return;
  }
  while (self->n > MAX_LIVE / 4) { /* there is not enough: others need some, too */
    release(self, &self->live[--self->n]);
  }
}

/* Lets another stream read the block: ordered after its writer, and named to the heap. */
static void share(churn_thread *self, churn_block *block) {
  rig *r = &self->churn->rig;
  tarn_stream other = r->streams[tarni_rng_below(&self->rng, (uint64_t)r->n_streams)];
  if (other == block->stream || block->is_shared ||
      !passed(self, tarn_stream_synchronize(r->device, block->stream), false) ||
      !passed(self, tarn_use(r->heap, block->block.address, other), false)) {
    return;
  }
  rig_touch(r, &block->block, other, false);
  block->is_shared = true;
}

/* Hands a block to another thread, or takes one and frees it: on its stream, wherever that is. */
static void post(churn_thread *self) {
  churn *c = self->churn;
  churn_block taken = {.is_shared = false};
  pthread_mutex_lock(&c->mutex);
  if (c->n_posted != 0 && chance(self, 50)) {
    taken = c->posted[--c->n_posted];
  } else if (self->n != 0 && c->n_posted < MAX_POSTED) {
    const uint64_t at = tarni_rng_below(&self->rng, (uint64_t)self->n);
    if (self->live[at].stream != self->own) {
      c->posted[c->n_posted++] = self->live[at];
      forget(self, at);
    }
  }
  pthread_mutex_unlock(&c->mutex);
  if (taken.block.address != 0) {
    release(self, &taken);
  }
}

/* The thread's own stream goes, and another comes. Its blocks go to a stream that stays. */
static void replace_stream(churn_thread *self) {
  rig *r = &self->churn->rig;
  if (!passed(self, tarn_stream_synchronize(r->device, self->own), false)) {
    return;
  }
  for (int i = 0; i < self->n; i++) {
    if (self->live[i].stream == self->own) {
      self->live[i].stream = r->streams[0];
    }
  }
  if (!passed(self, tarn_stream_retire(r->heap, self->own), false)) {
    return;
  }
  while (!passed(self, tarn_stream_destroy(r->device, self->own), false) && !test_case_failed()) {
  }
  self->own = NULL;
  while (!passed(self, tarn_stream_create(r->device, &self->own), false) && !test_case_failed()) {
  }
  self->n_retired++;
}

static void trim_or_limit(churn_thread *self) {
  tarn_heap *heap = self->churn->rig.heap;
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_heap_get_stats(heap, &stats));
  const uint64_t bytes = tarni_rng_below(&self->rng, stats.reserved_bytes + 1);
  switch (tarni_rng_below(&self->rng, 4)) {
  case 0:
    (void)passed(self, tarn_heap_trim(heap, bytes), false);
    break;
  case 1:
    (void)passed(self, tarn_heap_set_limit(heap, bytes + 1), false);
    break;
  case 2:
    if (self->churn->config->rounding == TARN_ROUNDING_DEFAULT) { /* else nothing to reserve */
      (void)passed(self, tarn_heap_reserve(heap, tarni_rng_below(&self->rng, 16 * MIB)), true);
    }
    break;
  default:
    (void)passed(self, tarn_heap_set_limit(heap, 0), false);
  }
}

static void ask(churn_thread *self, const churn_block *block) {
  tarn_block_info info = {.size = sizeof(info)};
  const uint64_t at = tarni_rng_below(&self->rng, block->block.bytes);
  CHECK_OK(tarn_block_get_info(self->churn->rig.heap, block->block.address + at, &info));
  CHECK_EQ(info.address, block->block.address);
  CHECK(info.usable_bytes >= block->block.bytes);
}

/* What is done seldom. */
static void step_aside(churn_thread *self) {
  const churn_config *config = self->churn->config;
  const uint64_t dice = tarni_rng_below(&self->rng, 100);
  if (dice < 10 && config->has_retired && self->own != NULL) {
    replace_stream(self);
  } else if (dice < 14 && config->has_trims) {
    trim_or_limit(self);
  } else if (dice < 20 && config->has_faults) {
    plan_fault(self);
  } else if (!config->is_alone) {
    post(self);
  }
}

static void step(churn_thread *self) {
  const uint64_t dice = tarni_rng_below(&self->rng, 100);
  if (dice >= 95) {
    step_aside(self);
    return;
  }
  if (self->n < MAX_LIVE && (self->n == 0 || dice < 48)) {
    allocate(self);
    return;
  }
  const uint64_t at = tarni_rng_below(&self->rng, (uint64_t)self->n);
  churn_block *block = &self->live[at];
  if (dice < 53) {
    share(self, block);
  } else if (dice < 60 && !block->is_shared) {
    rig_touch(&self->churn->rig, &block->block, block->stream, true);
  } else if (dice < 63) {
    ask(self, block);
  } else {
    release(self, block);
    forget(self, at);
  }
}

/* ---- Runs ---- */

static void *run_thread(void *user) {
  churn_thread *self = user;
  churn *c = self->churn;
  for (uint64_t i = 0; i < c->n_operations && !test_case_failed(); i++) {
    step(self);
  }
  while (self->n != 0) {
    release(self, &self->live[--self->n]);
  }
  return NULL;
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t pick_seed(void) {
  static uint64_t seed;
  if (seed == 0) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    seed =
        number_from("TARN_TEST_SEED", (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000);
    test_note("TARN_TEST_SEED=%llu", (unsigned long long)seed);
  }
  return seed;
}

static void start(churn *c, churn_thread *threads) {
  for (int i = 0; i < c->config->n_threads; i++) {
    threads[i] = (churn_thread){
        .churn = c, .number = i, .rng = {.state = c->seed * 7919 + (uint64_t)i * 104729}};
    if (c->config->is_alone || c->config->has_retired) {
      CHECK_OK(tarn_stream_create(c->rig.device, &threads[i].own));
    }
  }
  for (int i = 0; i < c->config->n_threads; i++) { /* the first may plan faults at once */
    CHECK_EQ(pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]), 0);
  }
}

/* Everybody is done: what was on its way is freed, and the own streams go. */
static void finish(churn *c, churn_thread *threads) {
  uint64_t n_refused = 0, n_retired = 0, n_struck = 0;
  for (int i = 0; i < c->config->n_threads; i++) {
    CHECK_EQ(pthread_join(threads[i].thread, NULL), 0);
    n_refused += threads[i].n_refused;
    n_retired += threads[i].n_retired;
    n_struck += threads[i].n_struck;
  }
  CHECK_OK(tarn_sim_fail(c->rig.device, TARN_CALL_COUNT, 0, 0, 0));
  while (c->n_posted != 0) {
    release(&threads[0], &c->posted[--c->n_posted]);
  }
  for (int i = 0; i < c->config->n_threads; i++) {
    if (threads[i].own != NULL) {
      CHECK_OK(tarn_stream_retire(c->rig.heap, threads[i].own));
      CHECK_OK(tarn_stream_destroy(c->rig.device, threads[i].own));
    }
  }
  const tarn_heap_stats stats = rig_stats(&c->rig);
  test_note("%s: %llu allocations, %llu misses, %llu moved, %llu waits, peak %llu MiB; %llu "
            "refused, %llu struck, %llu streams retired",
            c->config->device, (unsigned long long)stats.allocations,
            (unsigned long long)stats.misses, (unsigned long long)stats.moved_chunks,
            (unsigned long long)stats.waits, (unsigned long long)(stats.reserved_peak_bytes >> 20),
            (unsigned long long)n_refused, (unsigned long long)n_struck,
            (unsigned long long)n_retired);
}

static void run(const churn_config *config) {
  static churn c;
  static churn_thread threads[MAX_THREADS];
  const tarn_heap_config heap = {.size = sizeof(heap),
                                 .stealing = config->stealing,
                                 .backing = config->backing,
                                 .rounding = config->rounding,
                                 .cached_limit_bytes = config->cached_limit_bytes,
                                 .cached_blocks_per_size = config->cached_blocks_per_size};
  c = (churn){.config = config, .seed = pick_seed()};
  c.n_operations =
      (uint64_t)((double)number_from("TARN_TEST_OPERATIONS", n_operations_in_all) * config->share) /
      (uint64_t)config->n_threads;
  CHECK_EQ(pthread_mutex_init(&c.mutex, NULL), 0);
  REQUIRE(rig_open(&c.rig, config->device, &heap, config->n_streams));
  start(&c, threads);
  finish(&c, threads);
  CHECK(rig_is_sound(&c.rig));
  CHECK_EQ(rig_stats(&c.rig).live_bytes, 0);
  CHECK_OK(tarn_heap_trim(c.rig.heap, 0));
  CHECK_EQ(rig_stats(&c.rig).reserved_bytes, 0);
  CHECK_EQ(rig_stats(&c.rig).quarantined_bytes, 0);
  CHECK(rig_is_sound(&c.rig));
  CHECK_EQ(pthread_mutex_destroy(&c.mutex), 0);
  rig_close(&c.rig);
}

#define RUN(name, ...)                                                                             \
  static void name(void) {                                                                         \
    static const churn_config configs[] = {__VA_ARGS__};                                           \
    for (unsigned i = 0; i < sizeof(configs) / sizeof(configs[0]) && !test_case_failed(); i++) {   \
      run(&configs[i]);                                                                            \
    }                                                                                              \
  }

#define CHURN(device_name, threads, streams, part, max, policy, ...)                               \
  {                                                                                                \
    .device = (device_name), .n_threads = (threads), .n_streams = (streams), .share = (part),      \
    .max_bytes = (max), .stealing = TARN_STEAL_##policy, __VA_ARGS__                               \
  }

RUN(one_thread, CHURN("sim:1G,seed=11", 1, 1, 0.06, 8 * MIB, WHEN_SHORT, .is_alone = false),
    CHURN("sim:1G,seed=12", 1, 4, 0.06, 8 * MIB, WHEN_SHORT, .is_alone = false),
    CHURN("sim:1G,seed=13", 1, 4, 0.06, 8 * MIB, ALWAYS, .is_alone = false),
    CHURN("sim:1G,seed=14,order=lazy", 1, 4, 0.06, 8 * MIB, NEVER, .is_alone = false))

RUN(short_of_memory, CHURN("sim:128M,seed=15", 1, 3, 0.05, 16 * MIB, WHEN_SHORT, .is_alone = false),
    CHURN("sim:128M,seed=16", 1, 3, 0.05, 16 * MIB, ALWAYS, .is_alone = false),
    CHURN("sim:128M,seed=17", 1, 3, 0.05, 16 * MIB, NEVER, .is_alone = false),
    CHURN("sim:64M,seed=18,order=lazy", 4, 3, 0.05, 16 * MIB, WHEN_SHORT, .is_alone = false))

RUN(many_threads, CHURN("sim:1G,seed=19", 4, 1, 0.06, 4 * MIB, WHEN_SHORT, .is_alone = true),
    CHURN("sim:1G,seed=20", 4, 3, 0.06, 4 * MIB, WHEN_SHORT, .is_alone = false),
    CHURN("sim:1G,seed=21", 8, 8, 0.06, 4 * MIB, WHEN_SHORT, .is_alone = false),
    CHURN("sim:256M,seed=22", 4, 3, 0.06, 8 * MIB, ALWAYS, .is_alone = false))

RUN(streams_that_come_and_go,
    CHURN("sim:1G,seed=23", 1, 2, 0.06, 8 * MIB, WHEN_SHORT, .has_retired = true),
    CHURN("sim:256M,seed=24,order=lazy", 4, 2, 0.06, 8 * MIB, ALWAYS, .has_retired = true))

RUN(trims_and_limits, CHURN("sim:256M,seed=25", 1, 3, 0.05, 8 * MIB, WHEN_SHORT, .has_trims = true),
    CHURN("sim:256M,seed=26,order=lazy", 4, 3, 0.05, 8 * MIB, WHEN_SHORT, .has_retired = true,
          .has_trims = true))

RUN(everything_with_faults,
    CHURN("sim:256M,seed=27", 1, 3, 0.05, 8 * MIB, WHEN_SHORT, .has_retired = true,
          .has_trims = true, .has_faults = true),
    CHURN("sim:256M,seed=28", 4, 3, 0.05, 8 * MIB, ALWAYS, .has_retired = true, .has_trims = true,
          .has_faults = true),
    CHURN("sim:128M,seed=29,order=lazy", 4, 2, 0.06, 8 * MIB, NEVER, .has_retired = true,
          .has_trims = true, .has_faults = true))

/* ---- Heaps whose blocks are the driver's own allocations ---- */

#define BUCKETS(device_name, threads, source, rounded, policy, ...)                                \
  CHURN(device_name, threads, 3, 0.01, 4 * MIB, policy, .backing = TARN_BACKING_##source,          \
        .rounding = TARN_ROUNDING_##rounded, __VA_ARGS__)

#define BUCKETS_OF(backing)                                                                        \
  BUCKETS("sim:1G,seed=31", 1, backing, EXACT, WHEN_SHORT, .has_trims = true),                     \
      BUCKETS("sim:256M,seed=32", 1, backing, POWER_OF_TWO, ALWAYS, .has_retired = true),          \
      BUCKETS("sim:64M,seed=33,order=lazy", 1, backing, POWER_OF_TWO, NEVER, .has_trims = true),   \
      BUCKETS("sim:128M,seed=34,order=lazy", 4, backing, EXACT, WHEN_SHORT, .has_retired = true,   \
              .has_trims = true),                                                                  \
      BUCKETS("sim:1G,seed=35", 4, backing, POWER_OF_TWO, WHEN_SHORT, .has_retired = true,         \
              .cached_limit_bytes = 4 * MIB, .cached_blocks_per_size = 6),                         \
      BUCKETS("sim:128M,seed=36", 4, backing, EXACT, ALWAYS, .has_retired = true,                  \
              .has_trims = true, .has_faults = true, .cached_limit_bytes = 16 * MIB)

RUN(plain_memory, BUCKETS_OF(PLAIN),
    BUCKETS("sim:128M,seed=37", 2, PLAIN, CLASSES, NEVER, .has_faults = true, .has_trims = true))

RUN(private_pools, BUCKETS_OF(POOL),
    BUCKETS("sim:128M,seed=38", 2, POOL, CLASSES, NEVER, .has_faults = true, .has_trims = true))

RUN(mappings_of_their_own, BUCKETS_OF(VMM))

/* Each backing with each rounding and each policy, on a device that is nearly always full. */
static void every_combination(void) {
  for (int i = 0; i < 27 && !test_case_failed(); i++) {
    const churn_config config = {.device = "sim:96M,seed=39",
                                 .n_threads = 1,
                                 .n_streams = 3,
                                 .share = 0.002,
                                 .max_bytes = 4 * MIB,
                                 .has_retired = true,
                                 .backing = (tarn_backing)(TARN_BACKING_VMM + i % 3),
                                 .rounding = (tarn_rounding)(TARN_ROUNDING_CLASSES + i / 3 % 3),
                                 .stealing = (tarn_stealing)(i / 9)};
    run(&config);
  }
}

static const test_case cases[] = {
    {"one thread", one_thread},
    {"short of memory", short_of_memory},
    {"many threads", many_threads},
    {"streams that come and go", streams_that_come_and_go},
    {"trims and limits", trims_and_limits},
    {"everything, and driver calls that fail", everything_with_faults},
    {"plain memory", plain_memory},
    {"private pools", private_pools},
    {"mappings of their own", mappings_of_their_own},
    {"every backing, rounding and policy", every_combination},
};

TEST_MAIN(cases)
