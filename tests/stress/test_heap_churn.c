/* SPDX-License-Identifier: MIT
 *
 * Random allocations, uses and frees by several threads on several streams, all of it watched by
 * the oracle of the simulated GPU: no finding, no lost byte, and counters that agree with the
 * structures. TARN_TEST_OPERATIONS changes how much is done. */
#include <pthread.h>
#include <stdlib.h>

#include "base/rng.h"
#include "support/test.h"
#include "tarn/heap.h"
#include "tarn/sim.h"

enum { MAX_LIVE = 192, MAX_STREAMS = 8, MAX_THREADS = 8 };

typedef struct churn_block {
  tarn_ptr address;
  uint64_t bytes;
  uint64_t owner;
  int stream; /* it is allocated and freed on */
  int second; /* another stream that uses it, or -1 */
} churn_block;

typedef struct churn {
  tarn_heap *heap;
  tarn_device *device;
  tarn_stream streams[MAX_STREAMS];
  int n_streams;
  uint64_t n_operations;
  uint64_t max_bytes;
  bool shares_streams; /* all threads use all streams */
} churn;

typedef struct churn_thread {
  const churn *churn;
  pthread_t thread;
  int number;
  uint64_t n_failed;
} churn_thread;

static uint64_t pick_size(tarni_rng *rng, uint64_t max_bytes) {
  const uint64_t dice = tarni_rng_below(rng, 100);
  if (dice < 60) {
    return 1 + tarni_rng_below(rng, 32 << 10);
  }
  if (dice < 85) {
    return 1 + tarni_rng_below(rng, 1 << 20);
  }
  return 1 + tarni_rng_below(rng, max_bytes);
}

static void touch(const churn *c, const churn_block *block, int stream) {
  const tarn_sim_range range = {.address = block->address,
                                .bytes = block->bytes,
                                .owner = block->owner,
                                .is_write = stream == block->stream};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  CHECK_OK(tarn_sim_launch(c->device, &kernel, c->streams[stream]));
}

static bool allocate(const churn *c, tarni_rng *rng, uint64_t owner, int stream,
                     churn_block *block) {
  *block = (churn_block){
      .bytes = pick_size(rng, c->max_bytes), .owner = owner, .stream = stream, .second = -1};
  const tarn_status status = tarn_alloc(c->heap, block->bytes, c->streams[stream], &block->address);
  if (status == TARN_DEVICE_MEMORY || status == TARN_LIMIT) {
    return false;
  }
  if (!CHECK_OK(status)) {
    return false;
  }
  CHECK_OK(tarn_sim_own(c->device, block->address, block->bytes, owner));
  touch(c, block, stream);
  return true;
}

/* Lets another stream read the block: ordered after its writer, and named to the heap. */
static void share(const churn *c, tarni_rng *rng, churn_block *block) {
  const int other = (int)tarni_rng_below(rng, (uint64_t)c->n_streams);
  if (other == block->stream || block->second >= 0) {
    return;
  }
  CHECK_OK(tarn_stream_synchronize(c->device, c->streams[block->stream]));
  CHECK_OK(tarn_use(c->heap, block->address, c->streams[other]));
  touch(c, block, other);
  block->second = other;
}

static void release(const churn *c, const churn_block *block) {
  CHECK_OK(tarn_sim_disown(c->device, block->address, block->bytes));
  CHECK_OK(tarn_free(c->heap, block->address, c->streams[block->stream]));
}

/* What one thread holds. */
typedef struct churn_hand {
  churn_thread *self;
  const churn *churn;
  tarni_rng rng;
  churn_block live[MAX_LIVE];
  int n;
} churn_hand;

static void step_allocate(churn_hand *hand, uint64_t number) {
  const churn *c = hand->churn;
  const int stream = c->shares_streams ? (int)tarni_rng_below(&hand->rng, (uint64_t)c->n_streams)
                                       : hand->self->number % c->n_streams;
  const uint64_t owner = ((uint64_t)hand->self->number << 48) + number + 1;
  if (allocate(c, &hand->rng, owner, stream, &hand->live[hand->n])) {
    hand->n++;
    return;
  }
  hand->self->n_failed++;
  while (hand->n > MAX_LIVE / 4) {
    release(c, &hand->live[--hand->n]);
  }
}

static void step(churn_hand *hand, uint64_t number) {
  const uint64_t dice = tarni_rng_below(&hand->rng, 100);
  if (hand->n < MAX_LIVE && (hand->n == 0 || dice < 50)) {
    step_allocate(hand, number);
    return;
  }
  const uint64_t at = tarni_rng_below(&hand->rng, (uint64_t)hand->n);
  churn_block *block = &hand->live[at];
  if (dice < 55) {
    share(hand->churn, &hand->rng, block);
  } else if (dice >= 65) {
    release(hand->churn, block);
    *block = hand->live[--hand->n];
  } else if (block->second < 0) {
    touch(hand->churn, block, block->stream);
  }
}

static void *run_thread(void *user) {
  churn_thread *self = user;
  churn_hand *hand = calloc(1, sizeof(*hand));
  if (hand == NULL) {
    CHECK(hand != NULL);
    return NULL;
  }
  hand->self = self;
  hand->churn = self->churn;
  hand->rng.state = (uint64_t)self->number * 7919 + 1;
  for (uint64_t i = 0; i < self->churn->n_operations && !test_case_failed(); i++) {
    step(hand, i);
  }
  while (hand->n != 0) {
    release(self->churn, &hand->live[--hand->n]);
  }
  free(hand);
  return NULL;
}

static uint64_t scale(uint64_t n) {
  const char *text = getenv("TARN_TEST_OPERATIONS");
  return text != NULL ? strtoull(text, NULL, 10) : n;
}

static void note_finding(const tarn_sim_finding *finding, void *user) {
  int *n = user;
  if (++*n <= 3) {
    test_note("found: %s", finding->message);
  }
}

/* One churn: on which device, by how many, and how. */
typedef struct churn_setup {
  const char *device;
  int n_threads, n_streams;
  uint64_t n_operations, max_bytes;
  tarn_stealing stealing;
  bool shares_streams;
} churn_setup;

static uint64_t run_threads(churn *c, int n_threads) {
  churn_thread threads[MAX_THREADS] = {{0}};
  for (int i = 0; i < n_threads; i++) {
    threads[i] = (churn_thread){.churn = c, .number = i};
    CHECK_EQ(pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]), 0);
  }
  uint64_t n_failed = 0;
  for (int i = 0; i < n_threads; i++) {
    CHECK_EQ(pthread_join(threads[i].thread, NULL), 0);
    n_failed += threads[i].n_failed;
  }
  return n_failed;
}

/* All blocks are freed: the counters say so, and all memory can go. */
static void check_empty(const churn *c, const char *device, uint64_t n_failed) {
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_heap_check(c->heap));
  CHECK_OK(tarn_heap_get_stats(c->heap, &stats));
  CHECK_EQ(stats.live_bytes, 0);
  CHECK_EQ(stats.quarantined_bytes, 0);
  test_note(
      "%s: %llu allocations, %llu misses, %llu moved, %llu waits, %llu refused, peak %llu MiB",
      device, (unsigned long long)stats.allocations, (unsigned long long)stats.misses,
      (unsigned long long)stats.moved_chunks, (unsigned long long)stats.waits,
      (unsigned long long)n_failed, (unsigned long long)(stats.reserved_peak_bytes >> 20));
  CHECK_OK(tarn_heap_trim(c->heap, 0));
  CHECK_OK(tarn_heap_get_stats(c->heap, &stats));
  CHECK_EQ(stats.reserved_bytes, 0);
  CHECK_OK(tarn_heap_check(c->heap));
}

static void run(const churn_setup *setup) {
  const tarn_heap_config config = {
      .size = sizeof(config), .device = setup->device, .stealing = setup->stealing};
  churn c = {.n_streams = setup->n_streams,
             .n_operations = scale(setup->n_operations) / (uint64_t)setup->n_threads,
             .max_bytes = setup->max_bytes,
             .shares_streams = setup->shares_streams};
  int n_findings = 0;
  tarn_device *device_held;
  REQUIRE_OK(tarn_device_open(setup->device, &device_held));
  CHECK_OK(tarn_sim_set_on_finding(device_held, note_finding, &n_findings));
  REQUIRE_OK(tarn_heap_create(&config, &c.heap));
  c.device = tarn_heap_device(c.heap);
  for (int i = 0; i < setup->n_streams; i++) {
    REQUIRE_OK(tarn_stream_create(c.device, &c.streams[i]));
  }
  const uint64_t n_failed = run_threads(&c, setup->n_threads);
  check_empty(&c, setup->device, n_failed);
  for (int i = 0; i < setup->n_streams; i++) {
    CHECK_OK(tarn_stream_retire(c.heap, c.streams[i]));
    CHECK_OK(tarn_stream_destroy(c.device, c.streams[i]));
  }
  uint64_t n_live = 1;
  CHECK_OK(tarn_heap_destroy(c.heap, &n_live));
  CHECK_EQ(n_live, 0);
  tarn_device_close(device_held);
  CHECK_EQ(n_findings, 0);
}

static void run_all(const churn_setup *setups, size_t n) {
  for (size_t i = 0; i < n; i++) {
    run(&setups[i]);
  }
}

#define RUN_ALL(setups) run_all(setups, sizeof(setups) / sizeof((setups)[0]))

static void one_thread_one_stream(void) {
  static const churn_setup setups[] = {
      {"sim:1G,seed=11", 1, 1, 100000, 8 << 20, TARN_STEAL_WHEN_SHORT, false}};
  RUN_ALL(setups);
}

static void one_thread_many_streams(void) {
  static const churn_setup setups[] = {
      {"sim:1G,seed=12", 1, 4, 100000, 8 << 20, TARN_STEAL_WHEN_SHORT, true},
      {"sim:1G,seed=13", 1, 4, 100000, 8 << 20, TARN_STEAL_ALWAYS, true},
      {"sim:1G,seed=14", 1, 4, 100000, 8 << 20, TARN_STEAL_NEVER, true},
      {"sim:1G,seed=22", 1, 8, 100000, 8 << 20, TARN_STEAL_ALWAYS, true}};
  RUN_ALL(setups);
}

static void short_of_memory(void) {
  static const churn_setup setups[] = {
      {"sim:128M,seed=15", 1, 3, 60000, 16 << 20, TARN_STEAL_WHEN_SHORT, true},
      {"sim:128M,seed=16", 1, 3, 60000, 16 << 20, TARN_STEAL_ALWAYS, true},
      {"sim:128M,seed=17", 1, 3, 60000, 16 << 20, TARN_STEAL_NEVER, true},
      {"sim:128M,seed=23", 1, 8, 60000, 16 << 20, TARN_STEAL_WHEN_SHORT, true},
      {"sim:128M,seed=24", 1, 8, 60000, 16 << 20, TARN_STEAL_ALWAYS, true}};
  RUN_ALL(setups);
}

static void threads_with_their_own_streams(void) {
  static const churn_setup setups[] = {
      {"sim:1G,seed=18", 4, 4, 100000, 4 << 20, TARN_STEAL_WHEN_SHORT, false}};
  RUN_ALL(setups);
}

static void threads_that_share_streams(void) {
  static const churn_setup setups[] = {
      {"sim:1G,seed=19", 4, 3, 100000, 4 << 20, TARN_STEAL_WHEN_SHORT, true},
      {"sim:1G,seed=21", 4, 8, 60000, 4 << 20, TARN_STEAL_WHEN_SHORT, true},
      {"sim:256M,seed=25", 4, 8, 60000, 8 << 20, TARN_STEAL_ALWAYS, true},
      {"sim:256M,seed=20", 4, 3, 60000, 8 << 20, TARN_STEAL_ALWAYS, true}};
  RUN_ALL(setups);
}

static const test_case cases[] = {
    {"one thread, one stream", one_thread_one_stream},
    {"one thread, many streams", one_thread_many_streams},
    {"short of memory", short_of_memory},
    {"threads with their own streams", threads_with_their_own_streams},
    {"threads that share streams", threads_that_share_streams},
};

TEST_MAIN(cases)
