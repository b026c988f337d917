/* SPDX-License-Identifier: MIT
 *
 * What a crowd of blocks costs those that come after it. Many blocks of one size are allocated, and
 * every other one is freed, so that what is free lies in pieces. Then the heap has to grow for
 * large blocks. By size and number: nanoseconds a block of the crowd, and microseconds a large
 * block, mean and worst.
 *
 * And what a crowd of streams costs one of them: each of the others has freed blocks that are not
 * known to be complete, and the one frees and allocates large blocks, nanoseconds a pair.
 *
 * And what a crowd of blocks costs that wait for a stream, in a heap of the driver's own
 * allocations which keeps none (going) or of blocks that another stream has used (used):
 * microseconds a free, and an allocation afterwards. Only a simulated GPU keeps them waiting.
 *
 * The device is TARN_DEVICE, else a simulated GPU that is large enough. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tarn/sim.h"
#include "tarn/tarn.h"

enum { N_LARGE = 200, LARGE = 8 << 20, N_OWN = 64, N_PAIRS = 20000, MAX_OTHERS = 1000 };

static void require(tarn_status status) {
  if (status != TARN_OK) {
    (void)fprintf(stderr, "bench_crowd: %s\n", tarn_last_message());
    exit(1);
  }
}

static double now_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void run(tarn_heap *heap, tarn_stream stream, uint64_t bytes, size_t n) {
  static tarn_ptr large[N_LARGE];
  tarn_ptr *crowd = calloc(n, sizeof(*crowd));
  if (crowd == NULL) {
    (void)fprintf(stderr, "bench_crowd: no host memory\n");
    exit(1);
  }
  const double start = now_us();
  for (size_t i = 0; i < n; i++) {
    require(tarn_alloc(heap, bytes, stream, &crowd[i]));
  }
  const double filled = now_us();
  for (size_t i = 0; i < n; i += 2) {
    require(tarn_free(heap, crowd[i], stream));
  }
  double sum = 0, worst = 0;
  for (int i = 0; i < N_LARGE; i++) {
    const double before = now_us();
    require(tarn_alloc(heap, LARGE, stream, &large[i]));
    const double took = now_us() - before;
    sum += took;
    worst = took > worst ? took : worst;
  }
  printf("%10llu %9zu %12.0f %10.1f %10.1f\n", (unsigned long long)bytes, n,
         (filled - start) * 1e3 / (double)n, sum / N_LARGE, worst);
  for (int i = 0; i < N_LARGE; i++) {
    require(tarn_free(heap, large[i], stream));
  }
  for (size_t i = 1; i < n; i += 2) {
    require(tarn_free(heap, crowd[i], stream));
  }
  free(crowd);
}

/* ---- Streams ---- */

/* 1 to 5 MiB, no two alike for long. */
static uint64_t size_of(uint64_t i) {
  return (1 << 20) + (i * 7919 % 64 + 1) * 65536;
}

/* Free blocks of another stream, with live ones between them, which stay. */
static void spread(tarn_heap *heap, tarn_stream stream, int n_free) {
  tarn_ptr freed[64], between;
  for (int i = 0; i < n_free; i++) {
    require(tarn_alloc(heap, 3 << 20, stream, &freed[i]));
    require(tarn_alloc(heap, (1 << 20) + 1, stream, &between));
  }
  for (int i = 0; i < n_free; i++) {
    require(tarn_free(heap, freed[i], stream));
  }
}

static double pairs(tarn_heap *heap, tarn_stream stream, tarn_ptr *own) {
  const double start = now_us();
  for (uint64_t i = 0; i < N_PAIRS; i++) {
    const uint64_t at = i * 31 % N_OWN;
    require(tarn_free(heap, own[at], stream));
    require(tarn_alloc(heap, size_of(i), stream, &own[at]));
  }
  return (now_us() - start) * 1e3 / N_PAIRS;
}

static void run_streams(const tarn_heap_config *config, int n_others, int n_free) {
  static tarn_stream others[MAX_OTHERS];
  tarn_ptr own[N_OWN];
  tarn_heap *heap;
  tarn_stream stream;
  require(tarn_heap_create(config, &heap));
  tarn_device *device = tarn_heap_device(heap);
  require(tarn_stream_create(device, &stream));
  for (uint64_t i = 0; i < N_OWN; i++) {
    require(tarn_alloc(heap, size_of(i), stream, &own[i]));
  }
  for (int i = 0; i < n_others; i++) {
    require(tarn_stream_create(device, &others[i]));
    spread(heap, others[i], n_free);
  }
  (void)pairs(heap, stream, own); /* until it has all its windows */
  printf("%10d %9d %12.0f\n", n_others, n_free, pairs(heap, stream, own));
  require(tarn_heap_destroy(heap, NULL));
}

/* ---- Waiting ---- */

/* More work than is done while somebody asks for it so many times. */
static void keep_busy(tarn_device *device, tarn_stream stream, size_t n) {
  tarn_device_info info = {.size = sizeof(info)};
  require(tarn_device_get_info(device, &info));
  for (size_t i = 0; i < 4 * n && info.is_simulated; i++) {
    const tarn_sim_kernel kernel = {.size = sizeof(kernel)};
    require(tarn_sim_launch(device, &kernel, stream));
  }
}

static void run_waiting(const char *name, bool is_used, size_t n) {
  enum { N_AFTER = 200 };
  const tarn_heap_config config = {.size = sizeof(config),
                                   .device =
                                       getenv("TARN_DEVICE") == NULL ? "sim:100G,order=lazy" : NULL,
                                   .backing = TARN_BACKING_PLAIN,
                                   .rounding = TARN_ROUNDING_EXACT,
                                   .cached_limit_bytes = is_used ? 0 : 1};
  tarn_heap *heap;
  tarn_stream streams[2];
  tarn_ptr *blocks = calloc(n, sizeof(*blocks)), block;
  require(tarn_heap_create(&config, &heap));
  tarn_device *device = tarn_heap_device(heap);
  require(tarn_stream_create(device, &streams[0]));
  require(tarn_stream_create(device, &streams[1]));
  for (size_t i = 0; i < n && blocks != NULL; i++) {
    require(tarn_alloc(heap, 4096, streams[0], &blocks[i]));
    if (is_used) {
      require(tarn_use(heap, blocks[i], streams[1]));
    }
  }
  keep_busy(device, streams[is_used ? 1 : 0], n);
  const double start = now_us();
  for (size_t i = 0; i < n && blocks != NULL; i++) {
    require(tarn_free(heap, blocks[i], streams[0]));
  }
  const double freed = now_us();
  for (uint64_t i = 0; i < N_AFTER; i++) {
    require(tarn_alloc(heap, 4097 + i, streams[0], &block));
  }
  printf("%10s %9zu %12.2f %12.2f\n", name, n, (freed - start) / (double)n,
         (now_us() - freed) / N_AFTER);
  require(tarn_heap_destroy(heap, NULL));
  free(blocks);
}

int main(void) {
  static const struct {
    uint64_t bytes;
    size_t n;
  } cases[] = {{256, 2000},     {256, 20000},    {256, 200000},    {256, 2000000},
               {100000, 2000},  {100000, 20000}, {100000, 100000}, {1500000, 500},
               {1500000, 2000}, {1500000, 8000}, {1500000, 32000}};
  const tarn_heap_config config = {.size = sizeof(config),
                                   .device = getenv("TARN_DEVICE") == NULL ? "sim:100G" : NULL};
  printf("%10s %9s %12s %10s %10s\n", "bytes", "blocks", "ns a block", "us a large", "worst");
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    tarn_heap *heap;
    tarn_stream stream;
    require(tarn_heap_create(&config, &heap));
    require(tarn_stream_create(tarn_heap_device(heap), &stream));
    run(heap, stream, cases[i].bytes, cases[i].n);
    require(tarn_stream_retire(heap, stream));
    require(tarn_stream_destroy(tarn_heap_device(heap), stream));
    require(tarn_heap_destroy(heap, NULL));
  }
  static const int crowds[][2] = {{0, 0}, {1, 50}, {10, 50}, {100, 10}, {1000, 4}};
  printf("\n%10s %9s %12s\n", "streams", "free each", "ns a pair");
  for (size_t i = 0; i < sizeof(crowds) / sizeof(crowds[0]); i++) {
    run_streams(&config, crowds[i][0], crowds[i][1]);
  }
  printf("\n%10s %9s %12s %12s\n", "waiting", "blocks", "us a free", "us an alloc");
  for (size_t n = 1000; n <= 16000; n *= 4) {
    run_waiting("going", false, n);
    run_waiting("used", true, n);
  }
  return 0;
}
