/* SPDX-License-Identifier: MIT
 *
 * Many threads, each on its own stream, with one heap, one pool and one copier: copies of all
 * sizes, batches and scopes at once, every byte compared. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "support/dock.h"
#include "support/test.h"

enum { N_THREADS = 6, N_ROUNDS = 40, ROOM = 400 << 10 };

typedef struct hand {
  dock *dock;
  tarn_stream stream;
  uint64_t seed;
  pthread_t thread;
} hand;

static void copy_round(const hand *h, tarn_ptr block, uint8_t *bytes, uint64_t length,
                       uint64_t seed) {
  tarn_copier *copier = h->dock->copier;
  tarn_fence *fence = NULL;
  dock_pattern(bytes, length, seed);
  CHECK_OK(seed % 2 == 0 ? tarn_copy_in(copier, block, bytes, length, h->stream)
                         : tarn_copy_in_async(copier, block, bytes, length, h->stream, NULL));
  memset(bytes, 0, length);
  if (seed % 3 == 0) {
    CHECK_OK(tarn_copy_out(copier, bytes, block, length, h->stream));
  } else {
    CHECK_OK(tarn_copy_out_async(copier, bytes, block, length, h->stream, &fence));
    CHECK_OK(fence != NULL ? tarn_fence_wait(fence) : TARN_OK);
    tarn_fence_destroy(fence);
  }
  CHECK_EQ(dock_differ(bytes, length, seed), 0);
}

static void batch_round(const hand *h, tarn_batch *batch, tarn_scope *scope, uint8_t *bytes) {
  for (uint32_t i = 0; i < 4; i++) {
    tarn_ptr block = 0;
    dock_pattern(bytes, 1000, h->seed + i);
    CHECK_OK(tarn_scope_alloc(scope, i, 1024, &block));
    CHECK_OK(tarn_batch_upload_padded(batch, block, bytes, 1000, 1024));
    CHECK_OK(tarn_batch_output_padded(batch, block, 1000, 1024, NULL));
  }
  CHECK_OK(tarn_batch_send(batch, h->stream));
  CHECK_OK(tarn_batch_fetch(batch, h->stream, NULL));
  CHECK_OK(tarn_scope_release(scope, h->stream));
  for (uint32_t i = 0; i < 4; i++) {
    const void *got = NULL;
    uint64_t length = 0;
    CHECK_OK(tarn_batch_view(batch, i, &got, &length));
    CHECK_EQ(length, 1000);
    CHECK_EQ(dock_differ(got, length, h->seed + i), 0);
  }
  CHECK_OK(tarn_batch_reset(batch));
}

static void *work(void *argument) {
  const hand *h = argument;
  tarni_rng rng = {.state = h->seed};
  tarn_ptr block = 0;
  tarn_batch *batch = NULL;
  tarn_scope *scope = NULL;
  uint8_t *bytes = malloc(ROOM);
  CHECK_OK(tarn_alloc(h->dock->rig.heap, ROOM, h->stream, &block));
  CHECK_OK(tarn_batch_create(h->dock->copier, NULL, &batch));
  CHECK_OK(tarn_scope_create(h->dock->rig.heap, 4, h->stream, &scope));
  for (int i = 0; i < N_ROUNDS && !test_case_failed(); i++) {
    const uint64_t most = tarni_rng_below(&rng, 3) == 0 ? ROOM : 4000;
    copy_round(h, block, bytes, tarni_rng_below(&rng, most), tarni_rng_next(&rng) >> 8);
    batch_round(h, batch, scope, bytes);
  }
  CHECK_OK(tarn_scope_destroy(scope));
  CHECK_OK(tarn_batch_destroy(batch));
  CHECK_OK(tarn_free(h->dock->rig.heap, block, h->stream));
  free(bytes);
  return NULL;
}

static void one_copier(uint32_t n_helpers) {
  const tarn_copier_config config = {.size = sizeof(config),
                                     .piece_bytes = 32 << 10,
                                     .n_threads = n_helpers,
                                     .has_no_threads = n_helpers == 0};
  dock d;
  hand hands[N_THREADS];
  REQUIRE(dock_open(&d, "sim:256M,seed=11", &config, 0, N_THREADS));
  for (uint64_t i = 0; i < N_THREADS; i++) {
    hands[i] = (hand){.dock = &d, .stream = d.rig.streams[i], .seed = 100 + i};
    REQUIRE(pthread_create(&hands[i].thread, NULL, work, &hands[i]) == 0);
  }
  for (int i = 0; i < N_THREADS; i++) {
    CHECK(pthread_join(hands[i].thread, NULL) == 0);
  }
  CHECK_EQ(dock_stats(&d).n_threads, n_helpers);
  CHECK_EQ(dock_pinned_live(&d), 0);
  dock_close(&d);
}

static void many_helpers(void) {
  one_copier(11);
}

static void one_helper(void) {
  one_copier(1);
}

static void no_helpers(void) {
  one_copier(0);
}

static const test_case cases[] = {
    {"many_helpers", many_helpers},
    {"one_helper", one_helper},
    {"no_helpers", no_helpers},
};

TEST_MAIN(cases)
