/* SPDX-License-Identifier: MIT
 *
 * The driver's own allocators as peers of the pair benchmark: cuMemAlloc, and cuMemAllocAsync on
 * the default pool with a release threshold that keeps everything. libcuda is loaded here a second
 * time, apart from the port, because the public interface of tarn rightly has no way to them. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "bench_loop.h"

enum { CUDA_POOL_RELEASE_THRESHOLD = 4 }; /* of enum CUmemPool_attribute */

typedef struct cuda_entries {
  int (*init)(unsigned flags);
  int (*device_get)(int *device, int ordinal);
  int (*context_retain)(void **context, int device);
  int (*context_set)(void *context);
  int (*alloc)(uint64_t *block, size_t bytes);
  int (*free)(uint64_t block);
  int (*alloc_async)(uint64_t *block, size_t bytes, void *stream);
  int (*free_async)(uint64_t block, void *stream);
  int (*pool_get)(void **pool, int device);
  int (*pool_set)(void *pool, int attribute, void *value);
  void *context;
} cuda_entries;

static cuda_entries cuda;

/* Where each entry goes, and what the driver calls it. */
static const struct {
  const char *name;
  void *entry;
} cuda_names[] = {
    {"cuInit", &cuda.init},
    {"cuDeviceGet", &cuda.device_get},
    {"cuDevicePrimaryCtxRetain", &cuda.context_retain},
    {"cuCtxSetCurrent", &cuda.context_set},
    {"cuMemAlloc_v2", &cuda.alloc},
    {"cuMemFree_v2", &cuda.free},
    {"cuMemAllocAsync", &cuda.alloc_async},
    {"cuMemFreeAsync", &cuda.free_async},
    {"cuDeviceGetDefaultMemPool", &cuda.pool_get},
    {"cuMemPoolSetAttribute", &cuda.pool_set},
};

BENCH_INLINE uint64_t cuda_plain_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  uint64_t block = 0;
  (void)state;
  (void)stream;
  return cuda.alloc(&block, bytes) == 0 ? block : 0;
}

BENCH_INLINE void cuda_plain_free(void *state, uint64_t block, tarn_stream stream) {
  (void)state;
  (void)stream;
  (void)cuda.free(block);
}

BENCH_LOOPS(cuda_plain, cuda_plain_alloc, cuda_plain_free)

BENCH_INLINE uint64_t cuda_async_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  uint64_t block = 0;
  (void)state;
  return cuda.alloc_async(&block, bytes, stream) == 0 ? block : 0;
}

BENCH_INLINE void cuda_async_free(void *state, uint64_t block, tarn_stream stream) {
  (void)state;
  (void)cuda.free_async(block, stream);
}

BENCH_LOOPS(cuda_async, cuda_async_alloc, cuda_async_free)

static bool cuda_enter(void *state) {
  (void)state;
  return cuda.context_set(cuda.context) == 0;
}

/* Loads the driver; why that does not work, or NULL. */
static const char *load_cuda(int ordinal) {
  int device;
  void *pool;
  uint64_t threshold = UINT64_MAX;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return "libcuda.so.1 cannot be loaded";
  }
  for (size_t i = 0; i < sizeof(cuda_names) / sizeof(cuda_names[0]); i++) {
    void *symbol = dlsym(library, cuda_names[i].name);
    if (symbol == NULL) {
      return cuda_names[i].name;
    }
    memcpy(cuda_names[i].entry, &symbol, sizeof(symbol));
  }
  if (cuda.init(0) != 0 || cuda.device_get(&device, ordinal) != 0 ||
      cuda.context_retain(&cuda.context, device) != 0) {
    return "the GPU cannot be opened a second time";
  }
  if (!cuda_enter(NULL) || cuda.pool_get(&pool, device) != 0 ||
      cuda.pool_set(pool, CUDA_POOL_RELEASE_THRESHOLD, &threshold) != 0) {
    return "the default pool cannot be set up";
  }
  return NULL;
}

void bench_peer_cuda(bench_peer *plain, bench_peer *async, int ordinal) {
  const char *reason = load_cuda(ordinal);
  *plain = (bench_peer){
      .name = "cuMemAlloc", .has_streams = true, .enter = cuda_enter, BENCH_LOOPS_OF(cuda_plain)};
  *async = (bench_peer){.name = "cuMemAllocAsync",
                        .has_streams = true,
                        .enter = cuda_enter,
                        BENCH_LOOPS_OF(cuda_async)};
  (void)snprintf(plain->absent, sizeof(plain->absent), "%s", reason != NULL ? reason : "");
  (void)snprintf(async->absent, sizeof(async->absent), "%s", reason != NULL ? reason : "");
}
