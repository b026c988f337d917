/* SPDX-License-Identifier: MIT
 *
 * The histogram, fragmentation and the heap's own driver calls: exact after every step of a script,
 * and what the check finds. */
#include <pthread.h>
#include <string.h>

#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

static tarn_heap_histogram histogram_of(const rig *r) {
  tarn_heap_histogram histogram = {.size = sizeof(histogram)};
  CHECK_OK(tarn_heap_get_histogram(r->heap, &histogram));
  CHECK_EQ(histogram.size, sizeof(histogram));
  return histogram;
}

/* The row of a size; an empty one where there is none. */
static tarn_histogram_row row_of(const rig *r, uint64_t block_bytes) {
  const tarn_heap_histogram histogram = histogram_of(r);
  for (uint64_t i = 0; i < histogram.n_rows; i++) {
    if (histogram.rows[i].block_bytes == block_bytes) {
      return histogram.rows[i];
    }
  }
  return (tarn_histogram_row){0};
}

/* Live, cached, pending, allocated and freed blocks of a size. */
static void check_row(const rig *r, uint64_t block_bytes, const uint64_t want[5], int line) {
  const tarn_histogram_row row = row_of(r, block_bytes);
  const bool is_right = row.live_blocks == want[0] && row.cached_blocks == want[1] &&
                        row.pending_blocks == want[2] && row.allocations == want[3] &&
                        row.frees == want[4];
  if (!CHECK(is_right)) {
    test_note("line %d: %llu live, %llu cached, %llu pending, %llu allocated, %llu freed", line,
              (unsigned long long)row.live_blocks, (unsigned long long)row.cached_blocks,
              (unsigned long long)row.pending_blocks, (unsigned long long)row.allocations,
              (unsigned long long)row.frees);
  }
}

#define ROW(bytes, ...) check_row(&r, (bytes), (const uint64_t[5]){__VA_ARGS__}, __LINE__)

/* The rows add up to what the statistics say. */
static void check_sums(const rig *r) {
  const tarn_heap_histogram histogram = histogram_of(r);
  const tarn_heap_stats stats = rig_stats(r);
  tarn_histogram_row sum = {0};
  uint64_t before = 0;
  for (uint64_t i = 0; i < histogram.n_rows; i++) {
    const tarn_histogram_row *row = &histogram.rows[i];
    CHECK(row->block_bytes > before || row->block_bytes >= 16 * KIB);
    before = row->block_bytes;
    sum.live_blocks += row->live_blocks;
    sum.live_bytes += row->live_bytes;
    sum.allocations += row->allocations;
    sum.frees += row->frees;
  }
  CHECK_EQ(sum.live_blocks, stats.live_blocks);
  CHECK_EQ(sum.live_bytes, stats.live_bytes);
  CHECK_EQ(sum.allocations, stats.allocations);
  CHECK_EQ(sum.frees, stats.frees);
  CHECK(rig_is_sound(r));
}

static void a_script(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
  CHECK_EQ(histogram_of(&r).n_rows, 0);
  static const uint64_t sizes[3] = {4, 2, 3};
  rig_block small[3], large[3];
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &small[i]));
    CHECK_OK(rig_alloc(&r, sizes[i] * MIB, r.streams[0], &large[i]));
  }
  ROW(1024, 3, 61, 0, 3, 0);
  ROW(2 * MIB, 2, 0, 0, 2, 0); /* 2 and 3 MiB */
  ROW(4 * MIB, 1, 0, 0, 1, 0);
  CHECK_EQ(row_of(&r, 2 * MIB).live_bytes, 5 * MIB);
  CHECK_EQ(row_of(&r, 1024).live_bytes, 3 * KIB);
  CHECK_EQ(histogram_of(&r).n_rows, 3);
  check_sums(&r);
  CHECK_OK(rig_free(&r, &small[0], r.streams[0]));
  CHECK_OK(rig_free(&r, &large[2], r.streams[0])); /* the youngest: it is kept */
  ROW(1024, 2, 62, 0, 3, 1);
  ROW(2 * MIB, 1, 1, 0, 2, 1);
  check_sums(&r);
  /* Used by another stream: pending once it is freed. */
  for (int i = 1; i < 3; i++) {
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_OK(tarn_use(r.heap, small[i].address, r.streams[1]));
    rig_touch(&r, &small[i], r.streams[1], false);
    CHECK_OK(rig_free(&r, &small[i], r.streams[0]));
  }
  ROW(1024, 0, 62, 2, 3, 3);
  check_sums(&r);
  CHECK_OK(rig_free(&r, &large[0], r.streams[0]));
  CHECK_OK(rig_free(&r, &large[1], r.streams[0]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  ROW(1024, 0, 0, 0, 3, 3);
  ROW(2 * MIB, 0, 0, 0, 2, 2);
  ROW(4 * MIB, 0, 0, 0, 1, 1);
  check_sums(&r);
  rig_close(&r);
}

static void *one_of_each(void *user) {
  rig *r = user;
  for (uint64_t bytes = 256; bytes <= 8 * MIB; bytes *= 2) {
    tarn_ptr block = 0;
    CHECK_OK(tarn_alloc(r->heap, bytes, r->streams[0], &block));
    CHECK_OK(tarn_free(r->heap, block, r->streams[0]));
  }
  tarn_ptr aligned = 0; /* small, but where only a block of its own can lie */
  CHECK_OK(tarn_alloc_aligned(r->heap, 1, 64 * KIB, r->streams[0], &aligned));
  CHECK_OK(tarn_free(r->heap, aligned, r->streams[0]));
  return NULL;
}

/* The counts of threads that are gone stay, size by size. */
static void threads_that_are_gone(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  for (int i = 0; i < 3; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, one_of_each, &r) == 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    (void)one_of_each(&r);
  }
  for (uint64_t bytes = 256; bytes <= 8 * MIB; bytes *= 2) {
    CHECK_EQ(row_of(&r, bytes).allocations, 6);
    CHECK_EQ(row_of(&r, bytes).frees, 6);
  }
  check_sums(&r);
  rig_close(&r);
}

/* Every second of eight blocks freed: half of the memory is free, a quarter of that in one piece.
 */
static void fragmentation(void) {
  rig r;
  rig_block blocks[8];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK(rig_stats(&r).fragmentation == 0.0);
  for (int i = 0; i < 8; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[i]));
  }
  CHECK_EQ(rig_stats(&r).largest_free_bytes, 0);
  CHECK(rig_stats(&r).fragmentation == 0.0);
  CHECK_EQ(rig_stats(&r).used_bytes, 32 * MIB);
  for (int i = 0; i < 8; i += 2) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 32 * MIB)); /* what the cache keeps becomes free */
  const tarn_heap_stats stats = rig_stats(&r);
  CHECK_EQ(stats.free_bytes, 16 * MIB);
  CHECK_EQ(stats.largest_free_bytes, 4 * MIB);
  CHECK(stats.fragmentation == 0.75);
  CHECK_EQ(stats.used_bytes, 16 * MIB);
  CHECK_EQ(stats.used_peak_bytes, 32 * MIB);
  for (int i = 1; i < 8; i += 2) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 32 * MIB));
  CHECK_EQ(rig_stats(&r).largest_free_bytes, 32 * MIB);
  CHECK(rig_stats(&r).fragmentation == 0.0);
  rig_close(&r);
}

static tarn_call_counts calls_of(tarn_heap *heap) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_heap_get_calls(heap, &counts));
  return counts;
}

/* Each heap pays for its own calls; what the program asks of the device is nobody's. */
static void driver_calls(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:2G", NULL, 1)); /* for chunks of 8 MiB */
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:2G"};
  tarn_heap *other;
  REQUIRE_OK(tarn_heap_create(&config, &other));
  CHECK_EQ(calls_of(r.heap).calls[TARN_CALL_RESERVE], 1);
  CHECK_EQ(calls_of(other).calls[TARN_CALL_RESERVE], 1);
  rig_block block;
  CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[0], &block)); /* on several chunks */
  CHECK_OK(tarn_device_fill(r.device, block.address, 1, 100, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  const tarn_call_counts own = calls_of(r.heap);
  CHECK_EQ(own.calls[TARN_CALL_CREATE], 3);
  CHECK_EQ(own.calls[TARN_CALL_MAP], 3);
  CHECK_EQ(own.calls[TARN_CALL_ACCESS], 1);
  CHECK(own.nanoseconds[TARN_CALL_CREATE] > 0);
  CHECK_EQ(own.calls[TARN_CALL_FILL], 0);
  CHECK_EQ(own.calls[TARN_CALL_STREAM_SYNC], 0);
  CHECK_EQ(own.calls[TARN_CALL_STREAM_CREATE], 0);
  CHECK_EQ(calls_of(other).calls[TARN_CALL_CREATE], 0);
  CHECK_OK(tarn_heap_reserve(other, 2 * MIB));
  CHECK_EQ(calls_of(other).calls[TARN_CALL_CREATE], 1);
  CHECK_EQ(calls_of(r.heap).calls[TARN_CALL_CREATE], 3);
  tarn_call_counts all = {.size = sizeof(all)};
  CHECK_OK(tarn_device_get_calls(r.device, &all));
  CHECK_EQ(all.calls[TARN_CALL_CREATE], 4);
  CHECK_EQ(all.nanoseconds[TARN_CALL_MAP], calls_of(r.heap).nanoseconds[TARN_CALL_MAP] +
                                               calls_of(other).nanoseconds[TARN_CALL_MAP]);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(tarn_heap_destroy(other, NULL));
  rig_close(&r);
}

/* Blocks that are the driver's own allocations go by powers of two. */
static void driver_allocations(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .backing = TARN_BACKING_PLAIN, .rounding = TARN_ROUNDING_EXACT};
  rig r;
  rig_block blocks[3];
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &blocks[0]));
  CHECK_OK(rig_alloc(&r, 600, r.streams[0], &blocks[1]));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &blocks[2]));
  CHECK_OK(rig_free(&r, &blocks[1], r.streams[0]));
  ROW(512, 1, 1, 0, 2, 1);
  ROW(2 * MIB, 1, 0, 0, 1, 0);
  check_sums(&r);
  CHECK_EQ(rig_stats(&r).used_peak_bytes, rig_stats(&r).reserved_bytes);
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK_OK(rig_free(&r, &blocks[2], r.streams[0]));
  check_sums(&r);
  rig_close(&r);
}

/* One that is not kept waits for its work, and is pending until it is back at the driver. */
static void driver_allocations_that_go(void) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .backing = TARN_BACKING_PLAIN,
                                   .rounding = TARN_ROUNDING_EXACT,
                                   .cached_limit_bytes = 1};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_EQ(rig_stats(&r).pending_bytes, MIB);
  ROW(MIB, 0, 0, 1, 1, 1);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).pending_bytes, 0);
  ROW(MIB, 0, 0, 0, 1, 1);
  rig_close(&r);
}

static void wrong_calls(void) {
  tarn_heap_histogram histogram = {.size = sizeof(histogram)};
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_STATUS(tarn_heap_get_histogram(NULL, &histogram), TARN_INVALID);
  CHECK_STATUS(tarn_heap_get_calls(NULL, &counts), TARN_INVALID);
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 0));
  histogram.size = 0;
  CHECK_STATUS(tarn_heap_get_histogram(r.heap, &histogram), TARN_INVALID);
  CHECK_STATUS(tarn_heap_get_histogram(r.heap, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_heap_get_calls(r.heap, NULL), TARN_INVALID);
  rig_close(&r);
}

/* What is given back inside a capture waits for it: small and large ones, and those with a use. */
static void freed_in_capture(void) {
  rig r;
  tarn_ptr blocks[3];
  static const uint64_t sizes[3] = {1000, 3 << 20, 5 << 20};
  REQUIRE(rig_open(&r, "sim:256M", NULL, 2));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_alloc(r.heap, sizes[i], r.streams[0], &blocks[i]));
  }
  CHECK_OK(tarn_use(r.heap, blocks[2], r.streams[1]));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  tarn_heap_histogram histogram = {.size = sizeof(histogram)};
  CHECK_OK(tarn_heap_get_histogram(r.heap, &histogram));
  CHECK_EQ(histogram.n_rows, 3);
  for (uint64_t i = 0; i < histogram.n_rows; i++) {
    CHECK_EQ(histogram.rows[i].pending_blocks, 1);
    CHECK_EQ(histogram.rows[i].live_blocks, 0);
  }
  CHECK_OK(tarn_graph_destroy(rig_capture_end(capture)));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_OK(tarn_heap_get_histogram(r.heap, &histogram));
  for (uint64_t i = 0; i < histogram.n_rows; i++) {
    CHECK_EQ(histogram.rows[i].pending_blocks, 0);
    CHECK_EQ(histogram.rows[i].cached_blocks, 0);
  }
  rig_close(&r);
}

static const test_case cases[] = {
    {"freed in a capture", freed_in_capture},
    {"a script", a_script},
    {"threads that are gone", threads_that_are_gone},
    {"fragmentation", fragmentation},
    {"driver calls", driver_calls},
    {"driver allocations", driver_allocations},
    {"driver allocations that go", driver_allocations_that_go},
    {"wrong calls", wrong_calls},
};

TEST_MAIN(cases)
