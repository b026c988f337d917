/* SPDX-License-Identifier: MIT
 *
 * The device's part of soak.cu: the pattern of a block, the kernels that write and compare it and
 * that hold a stream up, how they are launched, and the check of every call. Kernels work on pairs
 * of 64-bit words and count in device memory. Must not know threads, heaps or streams' owners. */
#ifndef TARN_SOAK_DEVICE_CUH
#define TARN_SOAK_DEVICE_CUH

#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "tarn/tarn.h"

typedef unsigned long long u64;

constexpr int MAX_FINDINGS = 16, BLOCK_THREADS = 256, MAX_GRID = 528;
constexpr u64 PAIR_BYTES = 16, LINE_PAIRS = 4, PAGE_PAIRS = 256, ENDS_PAIRS = 2 * LINE_PAIRS;

struct finding {
  u64 address, expected, found; /* owners are in the upper halves of both words */
};

struct verdict { /* in device memory */
  u64 verified_pairs, mismatches, n_described;
  finding first[MAX_FINDINGS];
};

/* The owner is in the upper half, so that a wrong word tells whose it is. */
__device__ u64 pattern(unsigned owner, u64 word) {
  return (u64)owner << 32 | word;
}

__global__ void fill_block(ulonglong2 *pairs, u64 n, unsigned owner) {
  const u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    pairs[i] = make_ulonglong2(pattern(owner, 2 * i), pattern(owner, 2 * i + 1));
  }
}

/* Which pair to look at: the first and the last line of 64 bytes, then one line in each 4 KiB. */
__device__ u64 sampled_pair(u64 item, u64 n, unsigned salt) {
  if (item < ENDS_PAIRS) {
    return item < LINE_PAIRS ? item : n - ENDS_PAIRS + item;
  }
  const u64 page = (item - ENDS_PAIRS) / LINE_PAIRS;
  const u64 line = ((page + salt) * 0x9e3779b97f4a7c15u) >> 58;
  const u64 pair = page * PAGE_PAIRS + line * LINE_PAIRS + item % LINE_PAIRS;
  return pair < n ? pair : n - 1;
}

/* Counts a wrong word; the first of a thread block is described. */
__device__ void compare_word(const u64 *word, u64 expected, unsigned *n_wrong, verdict *result) {
  const u64 found = *word;
  if (found == expected) {
    return;
  }
  atomicAdd(&result->mismatches, 1ull);
  if (atomicAdd(n_wrong, 1u) == 0) {
    const u64 at = atomicAdd(&result->n_described, 1ull);
    if (at < MAX_FINDINGS) {
      result->first[at] = finding{(u64)word, expected, found};
    }
  }
}

/* Compares n_items pairs: all n of the block where salt is 0, else a sample. */
__global__ void verify_block(const ulonglong2 *pairs, u64 n, u64 n_items, unsigned owner,
                             unsigned salt, verdict *result) {
  __shared__ unsigned n_done, n_wrong;
  if (threadIdx.x == 0) {
    n_done = n_wrong = 0;
  }
  __syncthreads();
  const u64 stride = (u64)gridDim.x * blockDim.x;
  unsigned n_mine = 0;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n_items; i += stride, n_mine++) {
    const u64 at = salt == 0 ? i : sampled_pair(i, n, salt);
    compare_word(&pairs[at].x, pattern(owner, 2 * at), &n_wrong, result);
    compare_word(&pairs[at].y, pattern(owner, 2 * at + 1), &n_wrong, result);
  }
  atomicAdd(&n_done, n_mine);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(&result->verified_pairs, (u64)n_done);
  }
}

__global__ void hold_stream(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
    __nanosleep(1000);
  }
}

/* ---- Failing ---- */

[[noreturn]] static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("soak: FAILED: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::fflush(nullptr);
  std::_Exit(1); /* other threads are at work: nothing can be cleaned up */
}

static void check(cudaError_t code, const char *call, int line) {
  if (code != cudaSuccess) {
    fail("line %d: %s: %s: %s", line, call, cudaGetErrorName(code), cudaGetErrorString(code));
  }
}

static void check(tarn_status status, const char *call, int line) {
  if (status != TARN_OK) {
    fail("line %d: %s: %s: %s", line, call, tarn_status_name(status), tarn_last_message());
  }
}

#define CHECK(call) check((call), #call, __LINE__)

/* ---- Launching ---- */

static unsigned grid_for(u64 items) {
  const u64 n = (items + BLOCK_THREADS - 1) / BLOCK_THREADS;
  return (unsigned)(n < MAX_GRID ? n : MAX_GRID);
}

static void launch_hold(u64 cycles, cudaStream_t stream) {
  hold_stream<<<1, 1, 0, stream>>>((long long)cycles);
  CHECK(cudaGetLastError());
}

static void launch_fill(tarn_ptr address, u64 bytes, unsigned owner, cudaStream_t stream) {
  const u64 n = bytes / PAIR_BYTES;
  fill_block<<<grid_for(n), BLOCK_THREADS, 0, stream>>>((ulonglong2 *)address, n, owner);
  CHECK(cudaGetLastError());
}

/* Returns how many pairs are compared: all where salt is 0, else a sample that it chooses. */
static u64 launch_verify(tarn_ptr address, u64 bytes, unsigned owner, unsigned salt,
                         verdict *result, cudaStream_t stream) {
  const u64 n = bytes / PAIR_BYTES;
  const u64 n_sample = ENDS_PAIRS + LINE_PAIRS * ((n + PAGE_PAIRS - 1) / PAGE_PAIRS);
  const u64 n_items = salt == 0 ? n : n_sample;
  verify_block<<<grid_for(n_items), BLOCK_THREADS, 0, stream>>>((const ulonglong2 *)address, n,
                                                                n_items, owner, salt, result);
  CHECK(cudaGetLastError());
  return n_items;
}

static cudaEvent_t record(cudaStream_t stream) {
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK(cudaEventRecord(event, stream));
  return event;
}

/* The stream goes on only after the event, which is not needed any more then. */
static void await(cudaStream_t stream, cudaEvent_t event) {
  CHECK(cudaStreamWaitEvent(stream, event, 0));
  CHECK(cudaEventDestroy(event));
}

#endif
