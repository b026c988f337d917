/* SPDX-License-Identifier: MIT
 *
 * Deterministic heaps: the same calls give the same offsets, in whatever order the simulated GPU
 * does its work. */
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, N_CALLS = 1500, N_LIVE = 40, N_SEEDS = 12 };

typedef struct record {
  uint64_t offsets[N_CALLS];
  uint64_t n;
} record;

/* A random program: always the same, whatever the device's seed. */
static void play(rig *r, record *played) {
  static rig_block blocks[N_LIVE];
  static int streams[N_LIVE];
  memset(blocks, 0, sizeof(blocks));
  tarni_rng rng = {11};
  played->n = 0;
  for (int i = 0; i < N_CALLS && !test_case_failed(); i++) {
    const int at = (int)tarni_rng_below(&rng, N_LIVE);
    const int stream = (int)tarni_rng_below(&rng, 3);
    const uint64_t size = tarni_rng_below(&rng, 3) == 0 ? tarni_rng_below(&rng, 3 * MIB) + 1
                                                        : tarni_rng_below(&rng, 90000) + 1;
    if (blocks[at].address != 0) {
      if (tarni_rng_below(&rng, 5) == 0) {
        CHECK_OK(tarn_stream_synchronize(r->device, r->streams[streams[at]]));
        CHECK_OK(tarn_use(r->heap, blocks[at].address, r->streams[stream]));
        rig_touch(r, &blocks[at], r->streams[stream], false);
      }
      CHECK_OK(rig_free(r, &blocks[at], r->streams[streams[at]]));
    }
    const tarn_status status = rig_alloc(r, size, r->streams[stream], &blocks[at]);
    CHECK(status == TARN_OK || status == TARN_LIMIT || status == TARN_DEVICE_MEMORY);
    streams[at] = stream;
    played->offsets[played->n++] = status == TARN_OK ? blocks[at].address - r->heap->base : 0;
  }
  for (int i = 0; i < N_LIVE; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(r, &blocks[i], r->streams[streams[i]]));
    }
  }
}

/* Plays it on a device of the seed, which does some of its work between calls. */
static void play_seed(int seed, bool is_deterministic, tarn_stealing stealing, record *played) {
  char device[64];
  (void)snprintf(device, sizeof(device), "sim:64M,seed=%d", seed);
  const tarn_heap_config config = {.size = sizeof(config),
                                   .limit_bytes = 40 * MIB,
                                   .stealing = stealing,
                                   .is_deterministic = is_deterministic};
  rig r;
  REQUIRE(rig_open(&r, device, &config, 3));
  play(&r, played);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* How many seeds give other offsets than the first. */
static int n_different(bool is_deterministic, tarn_stealing stealing) {
  static record first, other;
  int n = 0;
  play_seed(1, is_deterministic, stealing, &first);
  CHECK_EQ(first.n, N_CALLS);
  for (int seed = 2; seed <= N_SEEDS && !test_case_failed(); seed++) {
    play_seed(seed, is_deterministic, stealing, &other);
    n += memcmp(&first, &other, sizeof(first)) != 0;
  }
  return n;
}

static void same_offsets(void) {
  CHECK_EQ(n_different(true, TARN_STEAL_WHEN_SHORT), 0);
  CHECK_EQ(n_different(true, TARN_STEAL_NEVER), 0);
  CHECK_EQ(n_different(true, TARN_STEAL_ALWAYS), 0);
}

/* The program depends on the timing where nothing is done against it. */
static void without_the_option(void) {
  CHECK(n_different(false, TARN_STEAL_NEVER) > 0);
}

/* Everything else works without any question: all memory comes back. */
static void everything_comes_back(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 16 * MIB, .is_deterministic = true};
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
  for (int i = 0; i < 40; i++) {
    rig_block block;
    REQUIRE(CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[i % 2], &block)));
    if (i % 5 == 0) {
      CHECK_OK(tarn_stream_synchronize(r.device, r.streams[i % 2]));
      CHECK_OK(tarn_use(r.heap, block.address, r.streams[1 - i % 2]));
      rig_touch(&r, &block, r.streams[1 - i % 2], false);
    }
    CHECK_OK(rig_free(&r, &block, r.streams[i % 2]));
    if (i == 20) {
      CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
    }
  }
  tarn_call_counts calls = {.size = sizeof(calls)};
  CHECK_OK(tarn_heap_get_calls(r.heap, &calls));
  CHECK_EQ(calls.calls[TARN_CALL_EVENT_QUERY], 0);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_OK(tarn_heap_reset(r.heap));
  rig_close(&r);
}

static void heaps_that_cannot(void) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .device = "sim:64M",
                                   .backing = TARN_BACKING_PLAIN,
                                   .is_deterministic = true};
  tarn_heap *heap;
  CHECK_STATUS(tarn_heap_create(&config, &heap), TARN_UNSUPPORTED);
  CHECK_HAS(tarn_last_message(), "deterministic");
  CHECK(heap == NULL);
}

static const test_case cases[] = {
    {"the same offsets for every seed", same_offsets},
    {"without the option", without_the_option},
    {"everything comes back", everything_comes_back},
    {"heaps that cannot", heaps_that_cannot},
};

TEST_MAIN(cases)
