/* SPDX-License-Identifier: MIT
 *
 * The contents of copies and batches, byte for byte, on any device: TARN_TEST_DEVICE, else a
 * simulated GPU. Sizes from 0 to 1 GiB on a real GPU, or where TARN_TEST_LARGE is set; to 24 MiB
 * otherwise. The number of checks is the same on every device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/dock.h"
#include "support/test.h"

#define MIB ((uint64_t)1 << 20)
#define PIECE (2 * MIB) /* the default of a copier */

static struct {
  tarn_device *device;
  tarn_heap *heap;
  tarn_pinned *pool;
  tarn_copier *copier;
  tarn_stream stream;
  tarn_ptr block; /* most + 64 bytes */
  uint8_t *source, *back;
  uint64_t most;
} bay;

/* There and back; the bytes around the destination are looked at, too. Returns 1 when any byte is
 * wrong or a call fails. */
static uint64_t trip(uint64_t length, uint64_t offset, bool is_async) {
  uint8_t *to = bay.back + 64 + offset;
  const uint8_t *from = bay.source + offset;
  tarn_fence *fence = NULL;
  memset(to - 16, 0xa5, length + 32);
  tarn_status status =
      is_async ? tarn_copy_in_async(bay.copier, bay.block + offset, from, length, bay.stream, NULL)
               : tarn_copy_in(bay.copier, bay.block + offset, from, length, bay.stream);
  if (status == TARN_OK) {
    status = is_async ? tarn_copy_out_async(bay.copier, to, bay.block + offset, length, bay.stream,
                                            &fence)
                      : tarn_copy_out(bay.copier, to, bay.block + offset, length, bay.stream);
  }
  if (status == TARN_OK && fence != NULL) {
    status = tarn_fence_wait(fence);
  }
  tarn_fence_destroy(fence);
  uint64_t n_spoilt = memcmp(to, from, length) != 0;
  for (int i = 0; i < 16; i++) {
    n_spoilt += to[length + (uint64_t)i] != 0xa5;
    n_spoilt += *(to - 1 - i) != 0xa5;
  }
  if (status != TARN_OK || n_spoilt != 0) {
    test_note("%llu bytes at %llu: %s", (unsigned long long)length, (unsigned long long)offset,
              status != TARN_OK ? tarn_last_message() : "wrong bytes");
  }
  return status != TARN_OK || n_spoilt != 0;
}

/* Around a size, at odd places. */
static uint64_t trips_around(uint64_t size) {
  uint64_t n_wrong = 0;
  for (uint64_t delta = 0; delta <= 6; delta++) {
    const uint64_t length = size + delta < 3 ? 0 : size + delta - 3;
    if (length <= bay.most) {
      n_wrong += trip(length, delta, delta % 2 == 0);
      n_wrong += trip(length, 7 * delta % 16, delta % 2 != 0);
    }
  }
  return n_wrong;
}

static void small_sizes(void) {
  uint64_t n_wrong = 0;
  for (uint64_t size = 0; size < 300; size++) {
    n_wrong += trip(size, size % 5, size % 2 == 0);
  }
  for (uint64_t size = 4096; size <= MIB; size *= 2) {
    n_wrong += trips_around(size);
  }
  CHECK_EQ(n_wrong, 0);
}

static void around_pieces(void) {
  uint64_t n_wrong = 0;
  for (uint64_t n = 1; n <= 40; n += n < 4 ? 1 : 9) {
    n_wrong += trips_around(n * PIECE);
  }
  CHECK_EQ(n_wrong, 0);
}

static void large_sizes(void) {
  uint64_t n_wrong = 0;
  for (uint64_t size = 32 * MIB; size <= bay.most; size *= 2) {
    n_wrong += trip(size - 1, 1, false);
    n_wrong += trip(size, 0, true);
  }
  CHECK_EQ(n_wrong, 0);
}

/* What was sent, read back by the driver's own copy, so that a mistake of both ways is seen. */
static void by_other_means(void) {
  const uint64_t length = 3 * MIB + 17;
  memset(bay.back, 0, length);
  CHECK_OK(tarn_copy_in(bay.copier, bay.block, bay.source, length, bay.stream));
  CHECK_OK(tarn_device_copy(bay.device, (uintptr_t)bay.back, bay.block, length, bay.stream));
  CHECK_OK(tarn_stream_synchronize(bay.device, bay.stream));
  CHECK(memcmp(bay.back, bay.source, length) == 0);
  CHECK_OK(tarn_device_copy(bay.device, bay.block + 1, (uintptr_t)bay.source, length, bay.stream));
  memset(bay.back, 0, length);
  CHECK_OK(tarn_copy_out(bay.copier, bay.back, bay.block + 1, length, bay.stream));
  CHECK(memcmp(bay.back, bay.source, length) == 0);
}

static void pinned_memory(void) {
  void *pinned = NULL;
  const uint64_t length = 2 * MIB + 5;
  REQUIRE_OK(tarn_pinned_alloc(bay.pool, length, &pinned));
  memcpy(pinned, bay.source, length);
  CHECK_OK(tarn_copy_in(bay.copier, bay.block, pinned, length, bay.stream));
  memset(pinned, 0, length);
  CHECK_OK(tarn_copy_out(bay.copier, pinned, bay.block, length, bay.stream));
  CHECK(memcmp(pinned, bay.source, length) == 0);
  CHECK_OK(tarn_pinned_free(bay.pool, pinned));
}

enum { N_PIECES = 64, PIECE_BYTES = 4096 };

/* Twice as far apart as they are long, then side by side. */
static void batches(void) {
  tarn_batch *batch = NULL;
  uint64_t n_wrong = 0;
  REQUIRE_OK(tarn_batch_create(bay.copier, NULL, &batch));
  for (uint64_t step = 2; step >= 1; step--) {
    for (uint64_t i = 0; i < N_PIECES; i++) {
      const tarn_ptr at = bay.block + i * step * PIECE_BYTES;
      const uint64_t length = PIECE_BYTES - i;
      n_wrong += tarn_batch_upload_padded(batch, at, bay.source + i * 7, length, PIECE_BYTES) != 0;
      n_wrong += tarn_batch_output_padded(batch, at, length, PIECE_BYTES, NULL) != 0;
    }
    CHECK_OK(tarn_batch_send(batch, bay.stream));
    CHECK_OK(tarn_batch_fetch(batch, bay.stream, NULL));
    for (uint32_t i = 0; i < N_PIECES; i++) {
      const void *bytes = NULL;
      uint64_t length = 0;
      n_wrong += tarn_batch_view(batch, i, &bytes, &length) != TARN_OK ||
                 length != PIECE_BYTES - i || memcmp(bytes, bay.source + i * 7, length) != 0;
    }
    CHECK_OK(tarn_batch_reset(batch));
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarn_batch_destroy(batch));
}

enum { N_GRANTS = 16, GRANT_BYTES = 2 << 20 };

/* Blocks that are the driver's own allocations, each filled by one piece. The driver puts many of
 * them side by side, and refuses a copy over two. */
static void allocations_side_by_side(tarn_backing backing) {
  tarn_device_info info = {.size = sizeof(info)};
  (void)tarn_device_get_info(bay.device, &info);
  const tarn_heap_config config = {.size = sizeof(config), .device = info.name, .backing = backing};
  tarn_heap *heap = NULL;
  tarn_batch *batch = NULL;
  tarn_ptr blocks[N_GRANTS] = {0};
  uint64_t n_wrong = 0;
  REQUIRE_OK(tarn_heap_create(&config, &heap));
  REQUIRE_OK(tarn_batch_create(bay.copier, NULL, &batch));
  for (uint64_t i = 0; i < N_GRANTS; i++) {
    n_wrong += tarn_alloc(heap, GRANT_BYTES, bay.stream, &blocks[i]) != TARN_OK;
  }
  for (uint64_t i = 0; i < N_GRANTS; i++) {
    n_wrong += tarn_batch_upload(batch, blocks[i], bay.source + i * 7, GRANT_BYTES) != TARN_OK;
    n_wrong += tarn_batch_output(batch, blocks[i], GRANT_BYTES, NULL) != TARN_OK;
  }
  CHECK_OK(tarn_batch_send(batch, bay.stream));
  CHECK_OK(tarn_batch_fetch(batch, bay.stream, NULL));
  for (uint32_t i = 0; i < N_GRANTS; i++) {
    const void *bytes = NULL;
    uint64_t length = 0;
    n_wrong += tarn_batch_view(batch, i, &bytes, &length) != TARN_OK || length != GRANT_BYTES ||
               memcmp(bytes, bay.source + i * 7, length) != 0;
    n_wrong += tarn_free(heap, blocks[i], bay.stream) != TARN_OK;
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarn_batch_destroy(batch));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
}

static void plain_side_by_side(void) {
  allocations_side_by_side(TARN_BACKING_PLAIN);
}

static void pooled_side_by_side(void) {
  allocations_side_by_side(TARN_BACKING_POOL);
}

static const test_case cases[] = {
    {"small_sizes", small_sizes},
    {"around_pieces", around_pieces},
    {"large_sizes", large_sizes},
    {"by_other_means", by_other_means},
    {"pinned_memory", pinned_memory},
    {"batches", batches},
    {"plain_side_by_side", plain_side_by_side},
    {"pooled_side_by_side", pooled_side_by_side},
};

/* ---- The device ---- */

static bool bay_open(const char *name) {
  const tarn_heap_config heap = {.size = sizeof(heap), .device = name};
  const tarn_pinned_config pool = {.size = sizeof(pool), .device = name};
  tarn_device_info info = {.size = sizeof(info)};
  if (tarn_device_open(name, &bay.device) != TARN_OK ||
      tarn_device_get_info(bay.device, &info) != TARN_OK ||
      tarn_heap_create(&heap, &bay.heap) != TARN_OK ||
      tarn_pinned_create(&pool, &bay.pool) != TARN_OK ||
      tarn_copier_create(bay.pool, NULL, &bay.copier) != TARN_OK ||
      tarn_stream_create(bay.device, &bay.stream) != TARN_OK) {
    return false;
  }
  bay.most = !info.is_simulated || getenv("TARN_TEST_LARGE") != NULL ? 1024 * MIB : 24 * MIB;
  bay.source = malloc(bay.most + 64);
  bay.back = malloc(bay.most + 256);
  if (bay.source == NULL || bay.back == NULL ||
      tarn_alloc(bay.heap, bay.most + 64, bay.stream, &bay.block) != TARN_OK) {
    return false;
  }
  dock_pattern(bay.source, bay.most + 64, 1);
  return true;
}

static bool bay_close(void) {
  uint64_t n_live = 1;
  bool is_good = tarn_free(bay.heap, bay.block, bay.stream) == TARN_OK;
  is_good = tarn_copier_stream_retire(bay.copier, bay.stream) == TARN_OK && is_good;
  is_good = tarn_copier_destroy(bay.copier) == TARN_OK && is_good;
  is_good = tarn_pinned_destroy(bay.pool, &n_live) == TARN_OK && n_live == 0 && is_good;
  is_good = tarn_heap_destroy(bay.heap, &n_live) == TARN_OK && n_live == 0 && is_good;
  is_good = tarn_stream_destroy(bay.device, bay.stream) == TARN_OK && is_good;
  tarn_device_close(bay.device);
  free(bay.source);
  free(bay.back);
  return is_good;
}

int main(int argc, char **argv) {
  const char *given = getenv("TARN_TEST_DEVICE");
  const char *name = given != NULL && given[0] != '\0' ? given : "sim:8G,seed=2";
  if (!bay_open(name)) {
    tarn_error error = {.size = sizeof(error)};
    const tarn_status status = tarn_last_error(&error);
    const bool is_absent = status == TARN_NO_DEVICE || status == TARN_NO_DRIVER;
    printf("1..0 # %s %s: %s\n", is_absent ? "SKIP" : "FAILED", name, error.message);
    return is_absent ? 77 : 1;
  }
  const int result = test_run(cases, (int)(sizeof(cases) / sizeof(cases[0])), argc, argv);
  if (!bay_close()) {
    test_note("the end failed: %s", tarn_last_message());
    return 1;
  }
  return result;
}
