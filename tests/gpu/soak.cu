/* SPDX-License-Identifier: MIT
 *
 * soak: the heap at work on a real GPU, near its limit, for as long as one likes. Threads allocate
 * blocks on their own and on shared streams. A kernel fills each block with a pattern that names
 * its owner, and a kernel compares it right before the block is freed, without waiting: if memory
 * were handed out or unmapped too early, the comparison would find another owner's words, or fault.
 * Streams are held up at random, so that the GPU is often far behind the host. Beside it blocks are
 * read on a second stream, handed to other threads, streams retired and made anew, threads ended
 * and started, and the heap is trimmed.
 *
 *   soak [--seconds N] [--threads T] [--streams S] [--gib G] [--seed K] [--plant 1] [--ease 1]
 *
 * S streams are shared by all threads. --plant: a mistake is made on purpose, reads on a second
 * stream that the heap is not told of, to show that it is found. --ease: blocks up to 16 MiB, up to
 * an eighth of the limit, in a heap whose threads keep large ones on shelves. The last line is JSON.
 * Exit status: 0, 1 (a mismatch, or a call that failed), 2 (wrong arguments).
 *
 * Locks: a slot's mutex, held shared by whoever gives work to its stream and alone by whoever
 * replaces the stream; the exchange's. A thread holds one at a time. */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "soak_device.cuh"
#include "soak_ease.h"
#include "tarn/tarn.h"

/* ---- The world ---- */

constexpr u64 MIN_BYTES = 256, MAX_BYTES = 2ull << 30, SMALL_BYTES = 1ull << 20;
constexpr u64 EASE_BYTES = 16ull << 20;
constexpr u64 PLANT_BYTES = 64ull << 10; /* such blocks stay mapped while the mistake is made */
constexpr int THREAD_STEPS = 5000;       /* after which a thread ends and another goes on */
/* Cycles: about 10 us, 2 ms, 10 ms. */
constexpr u64 SHORT_HOLD = 20000, PLANT_HOLD = 4000000, LONG_HOLD = 20000000;

struct options {
  double seconds = 60, threads = 8, streams = 4, gib = 0, seed = 1, plant = 0, ease = 0;
};

struct slot {
  std::shared_mutex mutex;
  cudaStream_t stream = nullptr;
};

struct block {
  tarn_ptr address;
  u64 bytes;
  unsigned owner;
  size_t slot;       /* it is used and freed on */
  cudaEvent_t ready; /* while it is in the exchange: its last use so far */
};

struct worker {
  size_t number;
  tarni_rng random;
  std::vector<block> blocks;
  u64 below(u64 bound) {
    return tarni_rng_below(&random, bound);
  }
};

/* Immutable once the threads run, but for what is atomic and the exchange. */
static struct world {
  options given;
  tarn_heap *heap = nullptr;
  u64 limit_bytes = 0, max_bytes = 0, most_bytes = 0; /* of the heap, a block, all live ones */
  size_t n_threads = 0;
  std::vector<slot> slots; /* one a thread, then the shared ones */
  verdict *result = nullptr;
  cudaStream_t monitor = nullptr;
  std::mutex exchange_mutex;
  std::vector<block> exchange;
  std::atomic<bool> is_over{false};
  std::atomic<unsigned> next_owner{1};
  std::atomic<u64> level_bytes{0}; /* how many live bytes the threads aim at */
  std::atomic<u64> live_bytes{0}, expected_pairs{0}, refused{0}, trims{0}, remade_streams{0},
      second_reads{0}, handed_over{0};
  u64 shelved_peak_bytes = 0; /* the watcher's */
} soak;

/* A slot whose stream does not change as long as this lives. */
struct held_slot {
  std::shared_lock<std::shared_mutex> lock;
  cudaStream_t stream;
  explicit held_slot(size_t index)
      : lock(soak.slots[index].mutex), stream(soak.slots[index].stream) {}
};

/* ---- Work for streams ---- */

static u64 log_uniform(worker &self, u64 least, u64 most) {
  const double unit = (double)(tarni_rng_next(&self.random) >> 11) * 0x1p-53;
  return (u64)((double)least * std::pow((double)most / (double)least, unit));
}

static void hold_sometimes(worker &self, cudaStream_t stream) {
  if (self.below(32) == 0) {
    launch_hold(log_uniform(self, SHORT_HOLD, LONG_HOLD), stream);
  }
}

/* All words of a small block; of a large one a sample, now and then all. */
static void verify(worker &self, const block &it, cudaStream_t stream) {
  const bool is_whole = it.bytes <= SMALL_BYTES || self.below(16) == 0;
  const unsigned salt = is_whole ? 0 : 1 + (unsigned)self.below(1u << 30);
  soak.expected_pairs += launch_verify(it.address, it.bytes, it.owner, salt, soak.result, stream);
}

/* ---- What a thread does ---- */

static size_t pick_slot(worker &self) {
  const size_t n_shared = soak.slots.size() - soak.n_threads;
  const bool is_own = n_shared == 0 || self.below(3) != 0;
  return is_own ? self.number : soak.n_threads + self.below(n_shared);
}

/* Every other one is drawn from the small sizes alone: they dominate the count, large the bytes. */
static u64 pick_bytes(worker &self) {
  const bool is_small = soak.max_bytes > SMALL_BYTES && self.below(2) == 0;
  const u64 bytes = log_uniform(self, MIN_BYTES, is_small ? SMALL_BYTES : soak.max_bytes);
  return bytes / PAIR_BYTES * PAIR_BYTES;
}

static block take_out(std::vector<block> &blocks, size_t index) {
  const block it = blocks[index];
  blocks[index] = blocks.back();
  blocks.pop_back();
  return it;
}

static void release(worker &self, size_t index) {
  const block it = take_out(self.blocks, index);
  const held_slot on(it.slot);
  hold_sometimes(self, on.stream);
  verify(self, it, on.stream);
  if (self.below(2) == 0) {
    CHECK(tarn_free(soak.heap, it.address, on.stream));
  } else {
    CHECK(tarn_free_sized(soak.heap, it.address, it.bytes, on.stream));
  }
  soak.live_bytes -= it.bytes;
}

static void release_some(worker &self, int n) {
  for (; n > 0 && !self.blocks.empty(); n--) {
    release(self, self.below(self.blocks.size()));
  }
}

/* False: there is no room. Any other failure ends the program. */
static bool try_allocate(worker &self, u64 bytes, size_t at) {
  block it = {0, bytes, soak.next_owner++, at, nullptr};
  const u64 drawn = self.below(16) == 0 ? MIN_BYTES << self.below(14) : MIN_BYTES; /* up to 2 MiB */
  const u64 alignment = drawn <= bytes ? drawn : MIN_BYTES;
  const held_slot on(at);
  const tarn_status status =
      alignment != MIN_BYTES
          ? tarn_alloc_aligned(soak.heap, bytes, alignment, on.stream, &it.address)
          : tarn_alloc(soak.heap, bytes, on.stream, &it.address);
  if (status == TARN_LIMIT || status == TARN_DEVICE_MEMORY) {
    if (soak.refused++ == 0) {
      std::printf("soak: the first that was refused: %s\n", tarn_last_message());
    }
    return false;
  }
  CHECK(status);
  if (it.address == 0 || it.address % alignment != 0) {
    fail("a block at 0x%llx: not a multiple of %llu", (u64)it.address, alignment);
  }
  soak.live_bytes += bytes;
  hold_sometimes(self, on.stream);
  launch_fill(it.address, bytes, it.owner, on.stream);
  self.blocks.push_back(it);
  return true;
}

/* The level rises slowly, up to the limit, and falls a little where the heap has no room: live
 * bytes are kept where shortage is frequent and refusal is not. */
static void allocate(worker &self) {
  const u64 bytes = pick_bytes(self), live = soak.live_bytes, limit = soak.limit_bytes;
  if (live + bytes > soak.level_bytes) {
    release_some(self, 1);
  } else if (try_allocate(self, bytes, pick_slot(self))) {
    soak.level_bytes = std::min(soak.level_bytes + limit / 20000, soak.most_bytes);
  } else {
    soak.level_bytes = std::max(live, limit / 2) - limit / 100;
    release_some(self, 4);
  }
}

static cudaEvent_t last_use(const block &it) {
  const held_slot on(it.slot);
  return record(on.stream);
}

/* The block is read on another stream after its last use so far; it may be freed right away. The
 * planted mistake: the heap is not told, and while the reader is held up the memory gets a new
 * owner. */
static void read_on_second(worker &self, size_t index) {
  const block it = self.blocks[index];
  const size_t reader = pick_slot(self);
  if (reader == it.slot) {
    return;
  }
  const cudaEvent_t ready = last_use(it);
  held_slot on(reader);
  await(on.stream, ready);
  if (soak.given.plant != 0) {
    launch_hold(PLANT_HOLD, on.stream);
  } else {
    hold_sometimes(self, on.stream);
    CHECK(tarn_use(soak.heap, it.address, on.stream));
  }
  verify(self, it, on.stream);
  on.lock.unlock();
  soak.second_reads++;
  if (soak.given.plant != 0) {
    release(self, index);
    (void)try_allocate(self, it.bytes, it.slot);
  }
}

static void give(worker &self, size_t index) {
  block it = take_out(self.blocks, index);
  it.ready = last_use(it);
  const std::lock_guard<std::mutex> guard(soak.exchange_mutex);
  soak.exchange.push_back(it);
}

/* A block of any thread becomes this one's, to be used and freed on a slot of its choice. */
static bool take(worker &self) {
  std::unique_lock<std::mutex> lock(soak.exchange_mutex);
  if (soak.exchange.empty()) {
    return false;
  }
  block it = take_out(soak.exchange, self.below(soak.exchange.size()));
  lock.unlock();
  it.slot = pick_slot(self);
  const held_slot on(it.slot);
  await(on.stream, it.ready);
  self.blocks.push_back(it);
  soak.handed_over++;
  return true;
}

/* A stream is retired, destroyed with its work under way, and made anew; the order goes on. */
static void remake_stream(worker &self) {
  slot &it = soak.slots[pick_slot(self)];
  const std::unique_lock<std::shared_mutex> lock(it.mutex);
  const cudaEvent_t last = record(it.stream);
  CHECK(tarn_stream_retire(soak.heap, it.stream));
  CHECK(cudaStreamDestroy(it.stream));
  CHECK(cudaStreamCreateWithFlags(&it.stream, cudaStreamNonBlocking));
  await(it.stream, last);
  soak.remade_streams++;
}

static void trim(worker &self) {
  const u64 live = soak.live_bytes;
  CHECK(tarn_heap_trim(soak.heap, live + self.below(soak.limit_bytes / 32)));
  soak.trims++;
}

static void step(worker &self) {
  const bool is_filling = soak.live_bytes < soak.level_bytes / 10 * 9;
  const u64 dice = self.below(20000);
  if (self.blocks.empty() || dice < 11000 || (is_filling && dice < 17500)) {
    allocate(self);
    return;
  }
  const size_t index = self.below(self.blocks.size());
  if (dice < 17500) {
    release(self, index);
  } else if (dice < 18500) {
    const held_slot on(self.blocks[index].slot);
    verify(self, self.blocks[index], on.stream);
  } else if (dice < 19500) {
    read_on_second(self, index);
  } else if (dice < 19960) {
    dice % 5 < 2 ? give(self, index) : (void)take(self);
  } else if (dice < 19999) {
    remake_stream(self);
  } else if (soak.given.plant == 0) {
    trim(self);
  }
}

static void run_steps(worker *self) {
  CHECK(cudaSetDevice(0));
  for (int i = 0; i < THREAD_STEPS && !soak.is_over; i++) {
    step(*self);
  }
  while (soak.is_over && (!self->blocks.empty() || take(*self))) {
    release_some(*self, 1);
  }
}

/* Threads follow each other: the end of each gives its caches back to the heap. */
static void run_worker(worker *self) {
  do {
    std::thread(run_steps, self).join();
  } while (!soak.is_over || !self->blocks.empty());
}

/* ---- The run ---- */

static verdict read_verdict() {
  verdict now;
  CHECK(cudaMemcpyAsync(&now, soak.result, sizeof(now), cudaMemcpyDeviceToHost, soak.monitor));
  CHECK(cudaStreamSynchronize(soak.monitor));
  return now;
}

static tarn_heap_stats read_stats() {
  tarn_heap_stats stats = {};
  stats.size = sizeof(stats);
  CHECK(tarn_heap_get_stats(soak.heap, &stats));
  return stats;
}

static double percent(u64 bytes) {
  return 100 * (double)bytes / (double)soak.limit_bytes;
}

static void print_progress(double seconds, const verdict &now) {
  const tarn_heap_stats stats = read_stats();
  std::printf("soak: %.0f s: %llu allocations, %.1f GB verified, %llu moved chunks, %llu waits, "
              "%llu refused, %llu mismatches; live %.1f %%, held %.1f %% of the limit\n",
              seconds, (u64)stats.allocations, (double)(now.verified_pairs * PAIR_BYTES) * 1e-9,
              (u64)stats.moved_chunks, (u64)stats.waits, soak.refused.load(), now.mismatches,
              percent(soak.live_bytes), percent(stats.reserved_bytes));
}

/* Until the time is over or a mismatch is seen. Returns the mean of live bytes, in percent of the
 * limit, from the first refusal on. */
static double watch() {
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0, printed = 0;
  for (int n = 0;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (soak.given.ease != 0) {
      soak.shelved_peak_bytes = std::max(soak.shelved_peak_bytes, (u64)soak_ease(soak.heap));
    }
    const double live = percent(soak.live_bytes);
    n += soak.refused != 0;
    sum += n != 0 ? live : 0;
    const double now =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (now - printed < 10 && now < soak.given.seconds) {
      continue;
    }
    const verdict seen = read_verdict();
    print_progress(printed = now, seen);
    if (now >= soak.given.seconds || seen.mismatches != 0) {
      return n != 0 ? sum / n : 0;
    }
  }
}

static void open_world() {
  size_t free_bytes, total_bytes;
  CHECK(cudaSetDevice(0));
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const double gib = std::fmin(0.9 * (double)free_bytes * 0x1p-30, 100);
  soak.limit_bytes = (u64)((soak.given.gib > 0 ? soak.given.gib : gib) * 0x1p30);
  soak.max_bytes = soak.given.plant != 0  ? PLANT_BYTES
                   : soak.given.ease != 0 ? EASE_BYTES
                                          : std::min(soak.limit_bytes / 16, MAX_BYTES);
  soak.most_bytes = soak.given.ease != 0 ? soak.limit_bytes / 8 : soak.limit_bytes;
  soak.level_bytes = soak.most_bytes;
  tarn_heap_config config = {};
  config.size = sizeof(config);
  config.device = "cuda:0";
  config.limit_bytes = soak.limit_bytes;
  CHECK(tarn_heap_create(&config, &soak.heap));
  CHECK(cudaMalloc(&soak.result, sizeof(*soak.result)));
  CHECK(cudaMemset(soak.result, 0, sizeof(*soak.result)));
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaStreamCreateWithFlags(&soak.monitor, cudaStreamNonBlocking));
  soak.n_threads = (size_t)soak.given.threads;
  soak.slots = std::vector<slot>(soak.n_threads + (size_t)soak.given.streams);
  for (slot &it : soak.slots) {
    CHECK(cudaStreamCreateWithFlags(&it.stream, cudaStreamNonBlocking));
  }
}

/* Everything is freed: nothing may be left, and the heap must agree with itself. */
static void close_world() {
  CHECK(tarn_heap_check(soak.heap));
  for (slot &it : soak.slots) {
    CHECK(tarn_stream_retire(soak.heap, it.stream));
    CHECK(cudaStreamDestroy(it.stream));
  }
  CHECK(tarn_heap_trim(soak.heap, 0));
  CHECK(tarn_heap_check(soak.heap));
  const tarn_heap_stats left = read_stats();
  if (left.live_blocks != 0 || left.quarantined_bytes != 0 || left.reserved_bytes != 0) {
    fail("after all was freed and trimmed: %llu blocks live, %llu bytes held, of them %llu cached, "
         "%llu pending, %llu free; %llu quarantined",
         (u64)left.live_blocks, (u64)left.reserved_bytes, (u64)left.cached_bytes,
         (u64)left.pending_bytes, (u64)left.free_bytes, (u64)left.quarantined_bytes);
  }
  CHECK(tarn_heap_destroy(soak.heap, nullptr));
}

static void print_result(const verdict &result, const tarn_heap_stats &stats, double live_percent) {
  for (u64 i = 0; i < result.n_described && i < MAX_FINDINGS; i++) {
    const finding &it = result.first[i];
    std::printf("soak: MISMATCH at 0x%llx, owner %llu: expected 0x%016llx, found 0x%016llx, which "
                "is word %llu of owner %llu\n",
                it.address, it.expected >> 32, it.expected, it.found, it.found & 0xffffffff,
                it.found >> 32);
  }
  std::printf("{\"soak\": \"%s\", \"seconds\": %.0f, \"threads\": %.0f, \"streams\": %.0f, "
              "\"seed\": %.0f, \"limit_bytes\": %llu, \"live_percent\": %.2f, ",
              result.mismatches == 0 ? "passed" : "failed", soak.given.seconds, soak.given.threads,
              soak.given.streams, soak.given.seed, soak.limit_bytes, live_percent);
  std::printf("\"reserved_peak_bytes\": %llu, \"allocations\": %llu, \"misses\": %llu, "
              "\"refused\": %llu, \"moved_chunks\": %llu, \"waits\": %llu, \"trims\": %llu, ",
              (u64)stats.reserved_peak_bytes, (u64)stats.allocations, (u64)stats.misses,
              soak.refused.load(), (u64)stats.moved_chunks, (u64)stats.waits, soak.trims.load());
  std::printf("\"remade_streams\": %llu, \"second_reads\": %llu, \"handed_over\": %llu, "
              "\"shelved_peak_bytes\": %llu, \"verified_bytes\": %llu, \"mismatches\": %llu}\n",
              soak.remade_streams.load(), soak.second_reads.load(), soak.handed_over.load(),
              soak.shelved_peak_bytes, result.verified_pairs * PAIR_BYTES, result.mismatches);
}

static int run() {
  std::vector<worker> workers;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < soak.n_threads; i++) {
    workers.push_back(worker{i, {(u64)soak.given.seed * 1000003 + i}, {}});
  }
  for (worker &it : workers) {
    threads.emplace_back(run_worker, &it);
  }
  const double live_percent = watch();
  soak.is_over = true;
  for (std::thread &it : threads) {
    it.join();
  }
  run_steps(&workers[0]); /* what the last of them may have left in the exchange */
  CHECK(cudaDeviceSynchronize());
  const verdict result = read_verdict();
  const tarn_heap_stats stats = read_stats();
  if (result.verified_pairs != soak.expected_pairs) {
    fail("%llu pairs were compared, not %llu", result.verified_pairs, soak.expected_pairs.load());
  }
  if (soak.given.ease != 0 && soak.shelved_peak_bytes == 0) {
    fail("nothing was ever on a shelf");
  }
  close_world();
  print_result(result, stats, live_percent);
  return result.mismatches == 0 ? 0 : 1;
}

/* Every option has a number. */
static bool read_option(const char *name, const char *text) {
  options &given = soak.given;
  const char *const names[] = {"--seconds", "--threads", "--streams", "--gib",
                               "--seed",    "--plant",   "--ease"};
  double *const values[] = {&given.seconds, &given.threads, &given.streams, &given.gib,
                            &given.seed,    &given.plant,   &given.ease};
  for (size_t i = 0; text != nullptr && i < sizeof(names) / sizeof(names[0]); i++) {
    if (std::strcmp(names[i], name) == 0) {
      char *end;
      *values[i] = std::strtod(text, &end);
      return end != text && *end == '\0' && *values[i] >= 0 && given.threads >= 1 &&
             given.threads <= 64 && given.streams <= 64;
    }
  }
  return false;
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i += 2) {
    if (!read_option(argv[i], argv[i + 1])) {
      std::fprintf(stderr, "usage: soak [--seconds N] [--threads 1..64] [--streams 0..64] "
                           "[--gib G] [--seed K] [--plant 0..1] [--ease 0..1]\n");
      return 2;
    }
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  /* Streams that share a hardware queue would wait for each other and hide mistakes. */
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  open_world();
  return run();
}
