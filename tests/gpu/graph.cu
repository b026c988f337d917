/* SPDX-License-Identifier: MIT
 *
 * graph: captured graphs on a real GPU. A small network is captured on one stream and on three that
 * fork and join, in each of the driver's modes and with each placement, and replayed many times:
 * its input is changed in place before each replay and every word of its output compared after it,
 * by kernels, while other threads churn the heap with blocks whose contents are compared, too. If
 * memory of a graph were handed to anybody else, or used twice at once inside it, words would be
 * wrong. No capture ends before the others have gone on beside it, so that a call of theirs that a
 * capture forbids would break it; captures of which the heap is told nothing are tried likewise.
 *
 *   graph [--replays N] [--threads T]
 *
 * One line for each combination; the last line is JSON. Exit status: 0, 1 (a mismatch, or a call
 * that failed), 2 (wrong arguments). Locks: none; threads share the heap alone. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "base/rng.h"
#include "tarn/capture.h"

typedef unsigned long long u64;

constexpr u64 WORDS = 1 << 16, BYTES = WORDS * sizeof(u64);
constexpr int LAYERS = 12, BRANCHES = 3, GRID = 64, THREADS = 256;
constexpr int CAPTURES = 4; /* of each combination; the last one is replayed */
constexpr u64 BESIDE = 16;  /* blocks that others have used before a capture ends */

/* ---- Kernels ---- */

__global__ void set_words(u64 *to, u64 n, u64 seed) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
       i += (u64)gridDim.x * blockDim.x) {
    to[i] = seed + i;
  }
}

/* to = from * 3 + layer: each layer can be undone on paper. */
__global__ void layer_words(u64 *to, const u64 *from, u64 n, u64 layer) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
       i += (u64)gridDim.x * blockDim.x) {
    to[i] = from[i] * 3 + layer;
  }
}

__global__ void add_words(u64 *to, const u64 *from, u64 n) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
       i += (u64)gridDim.x * blockDim.x) {
    to[i] += from[i];
  }
}

/* Counts words that are not factor * (seed + i) + rest. */
__global__ void compare_words(const u64 *words, u64 n, u64 seed, u64 factor, u64 rest, u64 *wrong) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n;
       i += (u64)gridDim.x * blockDim.x) {
    if (words[i] != factor * (seed + i) + rest) {
      atomicAdd(wrong, 1ull);
    }
  }
}

/* ---- Calls that must succeed ---- */

static void check_tarn(tarn_status status, const char *what) {
  if (status != TARN_OK) {
    std::fprintf(stderr, "graph: %s: %s\n", what, tarn_last_message());
    std::exit(1);
  }
}

static void check_cuda(cudaError_t error, const char *what) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "graph: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

#define TARN(call) check_tarn((call), #call)
#define CUDA(call) check_cuda((call), #call)

static u64 *words_at(tarn_ptr address) {
  return reinterpret_cast<u64 *>(address);
}

/* ---- What threads share ---- */

struct others {
  std::atomic<bool> is_over{false};
  std::atomic<int> n_ready{0};
  std::atomic<u64> n_wrong{0}, n_blocks{0};
};

/* Returns when the others have gone on for a while. */
static void wait_for_others(const others &beside) {
  const u64 goal = beside.n_blocks.load() + BESIDE;
  while (beside.n_blocks.load() < goal) {
    std::this_thread::yield();
  }
}

/* Waiting for a stream is illegal beside a global capture: this program's own calls are relaxed.
 * Those of tarn are made in the thread's own mode, and have to see to it themselves. */
static void synchronize(cudaStream_t stream) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
}

/* ---- The network ---- */

struct network {
  tarn_heap *heap;
  cudaStream_t streams[BRANCHES];
  cudaEvent_t fork, joins[BRANCHES];
  int n_streams;
  tarn_ptr input, output;
};

static tarn_ptr take(const network &net, cudaStream_t stream) {
  tarn_ptr block;
  TARN(tarn_alloc(net.heap, BYTES, stream, &block));
  return block;
}

/* Layers one after the other, each in a block of its own; the last one's block. */
static tarn_ptr run_branch(const network &net, cudaStream_t stream) {
  tarn_ptr last = net.input;
  for (int i = 0; i < LAYERS; i++) {
    const tarn_ptr next = take(net, stream);
    layer_words<<<GRID, THREADS, 0, stream>>>(words_at(next), words_at(last), WORDS, i);
    if (last != net.input) {
      TARN(tarn_free(net.heap, last, stream));
    }
    last = next;
  }
  return last;
}

/* The same on each stream, forked from the first and joined to it again: their sum is the output.
 */
static void run_network(const network &net) {
  tarn_ptr ends[BRANCHES];
  cudaStream_t origin = net.streams[0];
  CUDA(cudaEventRecord(net.fork, origin));
  for (int i = 0; i < net.n_streams; i++) {
    if (i != 0) {
      CUDA(cudaStreamWaitEvent(net.streams[i], net.fork, 0));
    }
    ends[i] = run_branch(net, net.streams[i]);
  }
  CUDA(cudaMemsetAsync(words_at(net.output), 0, BYTES, origin));
  for (int i = 0; i < net.n_streams; i++) {
    if (i != 0) {
      CUDA(cudaEventRecord(net.joins[i], net.streams[i]));
      CUDA(cudaStreamWaitEvent(origin, net.joins[i], 0));
    }
    add_words<<<GRID, THREADS, 0, origin>>>(words_at(net.output), words_at(ends[i]), WORDS);
    TARN(tarn_free(net.heap, ends[i], origin));
  }
}

struct way {
  tarn_capture_mode mode;
  tarn_placement placement;
  const tarn_layout *layout;
};

/* All but the last of several captures are given up, or their graphs are never launched. */
static tarn_graph *capture_network(const network &net, const way &how, const others &beside) {
  tarn_capture_config config = {};
  config.size = sizeof(config);
  config.mode = how.mode;
  config.placement = how.placement;
  config.layout = how.layout;
  tarn_graph *graph = nullptr;
  for (int i = 0; i < CAPTURES; i++) {
    tarn_capture *capture = nullptr;
    TARN(tarn_graph_destroy(graph));
    graph = nullptr;
    TARN(tarn_capture_begin(net.heap, &config, net.streams[0], &capture));
    run_network(net);
    wait_for_others(beside);
    if (i % 2 == 0) {
      TARN(tarn_capture_abort(&capture));
    } else {
      TARN(tarn_capture_end(&capture, &graph));
    }
  }
  return graph;
}

/* A capture that this program makes itself and tells nobody of, while others churn the heap. */
static void capture_untold(const network &net, cudaStreamCaptureMode mode, const others &beside) {
  cudaStream_t stream = net.streams[0];
  cudaGraph_t graph = nullptr;
  for (int i = 0; i < CAPTURES; i++) {
    CUDA(cudaStreamBeginCapture(stream, mode));
    set_words<<<GRID, THREADS, 0, stream>>>(words_at(net.input), WORDS, 1);
    wait_for_others(beside);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphDestroy(graph));
  }
}

/* Replays with another input each time; the number of wrong words. */
static u64 replay(const network &net, tarn_graph *graph, int n_replays, u64 *wrong) {
  u64 factor = 1, rest = 0, found = 0;
  for (int i = 0; i < LAYERS; i++) {
    factor *= 3;
    rest = rest * 3 + i;
  }
  factor *= net.n_streams;
  rest *= net.n_streams;
  cudaStream_t origin = net.streams[0];
  CUDA(cudaMemsetAsync(wrong, 0, sizeof(*wrong), origin));
  for (int i = 0; i < n_replays; i++) {
    const u64 seed = 1000003ull * i + 17;
    set_words<<<GRID, THREADS, 0, origin>>>(words_at(net.input), WORDS, seed);
    TARN(tarn_graph_launch(graph, origin));
    compare_words<<<GRID, THREADS, 0, origin>>>(words_at(net.output), WORDS, seed, factor, rest,
                                                wrong);
  }
  CUDA(cudaMemcpyAsync(&found, wrong, sizeof(found), cudaMemcpyDeviceToHost, origin));
  CUDA(cudaStreamSynchronize(origin));
  return found;
}

/* ---- Others ---- */

struct churner {
  tarn_heap *heap;
  cudaStream_t stream, side;
  cudaEvent_t event;
  tarni_rng rng;
  u64 *wrong;
};

/* Some blocks are looked at by a second stream: those wait for a fence, about which is asked. */
static void use_a_block(churner *own) {
  const u64 words = 32 + tarni_rng_below(&own->rng, 1 << 18), seed = tarni_rng_next(&own->rng);
  const bool has_side = seed % 4 == 0;
  tarn_ptr block;
  TARN(tarn_alloc(own->heap, words * sizeof(u64), own->stream, &block));
  set_words<<<GRID, THREADS, 0, own->stream>>>(words_at(block), words, seed);
  if (has_side) {
    CUDA(cudaEventRecord(own->event, own->stream));
    CUDA(cudaStreamWaitEvent(own->side, own->event, 0));
    TARN(tarn_use(own->heap, block, own->side));
  }
  compare_words<<<GRID, THREADS, 0, has_side ? own->side : own->stream>>>(words_at(block), words,
                                                                          seed, 1, 0, own->wrong);
  TARN(tarn_free(own->heap, block, own->stream));
}

static void churn(tarn_heap *heap, int number, others *all) {
  churner own = {heap, nullptr, nullptr, nullptr, {(u64)number}, nullptr};
  u64 found = 0;
  CUDA(cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&own.side, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&own.event, cudaEventDisableTiming));
  CUDA(cudaMalloc(&own.wrong, sizeof(*own.wrong)));
  CUDA(cudaMemset(own.wrong, 0, sizeof(*own.wrong)));
  CUDA(cudaStreamSynchronize(nullptr)); /* which the streams do not wait for */
  use_a_block(&own); /* kernels are loaded before the first capture */
  all->n_ready.fetch_add(1);
  while (!all->is_over.load()) {
    use_a_block(&own);
    if (all->n_blocks.fetch_add(1) % 64 == 0) {
      synchronize(own.stream);
      synchronize(own.side);
    }
  }
  synchronize(own.stream);
  synchronize(own.side);
  CUDA(cudaMemcpy(&found, own.wrong, sizeof(found), cudaMemcpyDeviceToHost));
  all->n_wrong.fetch_add(found);
  TARN(tarn_stream_retire(heap, own.stream));
  TARN(tarn_stream_retire(heap, own.side));
  CUDA(cudaFree(own.wrong));
  CUDA(cudaEventDestroy(own.event));
  CUDA(cudaStreamDestroy(own.side));
  CUDA(cudaStreamDestroy(own.stream));
}

/* ---- The run ---- */

static void open_network(network *net, tarn_heap *heap) {
  net->heap = heap;
  CUDA(cudaEventCreateWithFlags(&net->fork, cudaEventDisableTiming));
  for (int i = 0; i < BRANCHES; i++) {
    CUDA(cudaStreamCreateWithFlags(&net->streams[i], cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&net->joins[i], cudaEventDisableTiming));
  }
  TARN(tarn_alloc(heap, BYTES, net->streams[0], &net->input));
  TARN(tarn_alloc(heap, BYTES, net->streams[0], &net->output));
}

static void close_network(network *net) {
  TARN(tarn_free(net->heap, net->input, net->streams[0]));
  TARN(tarn_free(net->heap, net->output, net->streams[0]));
  for (int i = 0; i < BRANCHES; i++) {
    TARN(tarn_stream_retire(net->heap, net->streams[i]));
    CUDA(cudaStreamDestroy(net->streams[i]));
    CUDA(cudaEventDestroy(net->joins[i]));
  }
  CUDA(cudaEventDestroy(net->fork));
}

static const char *const mode_names[] = {"thread-local", "global", "relaxed"};

/* All placements on so many streams, in one mode; the number of wrong words. */
static u64 run_placements(const network &net, tarn_capture_mode mode, int n_replays,
                          const others &beside, u64 *wrong) {
  static const char *const names[] = {"reuse", "planned", "monotone"};
  tarn_layout *layout = nullptr;
  u64 n_wrong = 0;
  for (int placement = 0; placement < 3; placement++) {
    const way how = {mode, (tarn_placement)placement,
                     placement == TARN_PLACE_PLANNED ? layout : nullptr};
    tarn_graph *graph = capture_network(net, how, beside);
    const u64 found = replay(net, graph, n_replays, wrong);
    tarn_graph_info info = {};
    info.size = sizeof(info);
    TARN(tarn_graph_get_info(graph, &info));
    std::printf("%s, %d streams, %s: %llu blocks of %llu bytes in %llu, %llu launches, "
                "%llu wrong%s\n",
                mode_names[mode], net.n_streams, names[placement], (u64)info.allocations,
                (u64)info.alloc_bytes, (u64)info.bytes, (u64)info.launches, found,
                info.has_diverged ? ", not as planned" : "");
    n_wrong += found + info.has_diverged;
    if (placement == TARN_PLACE_REUSE) {
      TARN(tarn_graph_plan(graph, nullptr, &layout));
    }
    TARN(tarn_graph_destroy(graph));
  }
  tarn_layout_destroy(layout);
  return n_wrong;
}

/* Every mode on one stream and on several; the number of wrong words. */
static u64 run_modes(network *net, int n_replays, const others &beside, u64 *wrong) {
  static const cudaStreamCaptureMode untold[] = {
      cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed};
  u64 n_wrong = 0;
  for (int mode = 0; mode < 3; mode++) {
    for (int n_streams = 1; n_streams <= BRANCHES; n_streams += BRANCHES - 1) {
      net->n_streams = n_streams;
      n_wrong += run_placements(*net, (tarn_capture_mode)mode, n_replays, beside, wrong);
    }
    capture_untold(*net, untold[mode], beside);
    std::printf("%s, announced to nobody: %d captures, all whole\n", mode_names[mode], CAPTURES);
  }
  return n_wrong;
}

/* Work of the same kind outside of captures, so that all kernels are loaded. */
static void warm_up(network *net, u64 *wrong) {
  net->n_streams = BRANCHES;
  set_words<<<GRID, THREADS, 0, net->streams[0]>>>(words_at(net->input), WORDS, 1);
  run_network(*net);
  compare_words<<<GRID, THREADS, 0, net->streams[0]>>>(words_at(net->output), 0, 0, 0, 0, wrong);
  CUDA(cudaDeviceSynchronize());
}

static bool read_arguments(int argc, char **argv, int *n_replays, int *n_threads) {
  for (int i = 1; i + 1 < argc; i += 2) {
    int *value = std::strcmp(argv[i], "--replays") == 0   ? n_replays
                 : std::strcmp(argv[i], "--threads") == 0 ? n_threads
                                                          : nullptr;
    if (value == nullptr || (*value = std::atoi(argv[i + 1])) <= 0) {
      return false;
    }
  }
  return argc % 2 == 1;
}

int main(int argc, char **argv) {
  int n_replays = 10000, n_threads = 4;
  if (!read_arguments(argc, argv, &n_replays, &n_threads)) {
    std::fprintf(stderr, "usage: graph [--replays N] [--threads T]\n");
    return 2;
  }
  tarn_heap_config config = {};
  config.size = sizeof(config);
  config.device = "cuda:0";
  tarn_heap *heap = nullptr;
  u64 *wrong;
  uint64_t n_live = 0;
  CUDA(cudaSetDevice(0));
  CUDA(cudaMalloc(&wrong, sizeof(*wrong)));
  TARN(tarn_heap_create(&config, &heap));
  network net = {};
  open_network(&net, heap);
  warm_up(&net, wrong);
  others beside;
  std::vector<std::thread> threads;
  for (int i = 0; i < n_threads; i++) {
    threads.emplace_back(churn, heap, i + 1, &beside);
  }
  while (beside.n_ready.load() < n_threads) {
    std::this_thread::yield();
  }
  const u64 of_graphs = run_modes(&net, n_replays, beside, wrong);
  beside.is_over.store(true);
  for (std::thread &thread : threads) {
    thread.join();
  }
  close_network(&net);
  CUDA(cudaFree(wrong));
  TARN(tarn_heap_check(heap));
  TARN(tarn_heap_destroy(heap, &n_live));
  const u64 n_wrong = beside.n_wrong.load();
  std::printf("{\"graph\": true, \"replays\": %d, \"wrong_in_graphs\": %llu, "
              "\"wrong_outside\": %llu, \"blocks\": %llu, \"live\": %llu}\n",
              n_replays, of_graphs, n_wrong, beside.n_blocks.load(), (u64)n_live);
  return of_graphs + n_wrong + n_live == 0 ? 0 : 1;
}
