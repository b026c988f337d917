/* SPDX-License-Identifier: MIT
 *
 * tarn bench pinned: nanoseconds for a pinned block taken and given back, beside malloc, which has
 * no pinned memory; and how long it takes until pinned memory is ready, by a pool and by the
 * driver's own allocation. On the simulated GPU the second is by the virtual clock, which counts
 * what is asked of the driver. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "bench_loop.h"
#include "progress.h"
#include "tarn/pinned.h"
#include "tarn/sim.h"
#include "tool.h"

enum { N_SIZES = 5, N_WAYS = 2, READY_RUNS = 3 };
static const uint64_t pinned_sizes[N_SIZES] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20};

typedef struct pinned_bench {
  bool is_json;
  const char *device_name;
  tarn_device *device;
  tarn_device_info info;
  tarn_pinned *pool;
  uint32_t n_cpus;
  uint64_t n_rounds, ready_bytes;
  bench_peer peers[2]; /* the pool, and malloc */
  bench_work works[BENCH_MAX_THREADS];
  char failure[BENCH_FAILURE]; /* of the first pair that could not be measured */
} pinned_bench;

/* ---- Pairs ---------------------------------------------------------------------------------- */

static inline uint64_t pool_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  void *block;
  (void)stream;
  return tarn_pinned_alloc(state, bytes, &block) == TARN_OK ? (uintptr_t)block : 0;
}

static inline void pool_free(void *state, uint64_t block, tarn_stream stream) {
  (void)stream;
  (void)tarn_pinned_free(state, (void *)(uintptr_t)block);
}

static bool pool_pairs(bench_work *work, uint64_t n) {
  return bench_loop_pairs(work, n, pool_alloc, pool_free);
}

static void print_pinned_pair(const pinned_bench *b, const bench_peer *peer, uint32_t n_threads,
                              uint64_t bytes, const bench_time *time) {
  if (!time->is_measured) {
    if (!b->is_json) {
      printf(" %9s", "-");
    }
    return;
  }
  if (!b->is_json) {
    printf(" %9.1f", time->ns);
    return;
  }
  printf("{");
  tool_json_member("bench", true);
  tool_json_text("pinned");
  tool_json_string("case", "pair");
  tool_json_string("allocator", peer->name);
  tool_json_number("bytes", bytes);
  tool_json_number("threads", n_threads);
  tool_json_real("ns_per_pair", time->ns, 2);
  tool_json_real("best_ns_per_pair", time->best_ns, 2);
  tool_json_number("driver_calls", time->driver_calls);
  tool_json_string("device", b->info.name);
  tool_json_number("cpus", b->n_cpus);
  printf("}\n");
}

/* A row: one allocator, all sizes. False: an allocation failed. */
static bool run_pinned_row(pinned_bench *b, const bench_peer *peer, uint32_t n_threads) {
  bool is_good = true;
  if (!b->is_json) {
    printf("%-16s", peer->name);
  }
  for (uint32_t i = 0; i < N_SIZES; i++) {
    const bench_case c = {.peer = peer,
                          .device = peer == &b->peers[0] ? b->device : NULL,
                          .n_threads = n_threads,
                          .n_rounds = (uint32_t)b->n_rounds,
                          .loops = {peer->pairs, peer->pairs},
                          .works = b->works};
    for (uint32_t k = 0; k < n_threads; k++) {
      b->works[k] = (bench_work){.state = peer->state, .bytes = pinned_sizes[i]};
    }
    bench_time time = {0};
    bench_time_case(&c, &time);
    is_good = is_good && time.is_measured;
    if (b->failure[0] == '\0') {
      memcpy(b->failure, time.failure, sizeof(b->failure));
    }
    print_pinned_pair(b, peer, n_threads, pinned_sizes[i], &time);
    (void)fflush(stdout);
  }
  if (!b->is_json) {
    printf("\n");
  }
  return is_good;
}

static bool run_pinned_threads(pinned_bench *b, uint32_t n_threads) {
  if (!b->is_json) {
    char text[TOOL_TEXT];
    printf("\n%u thread%s: ns a pair\n%-16s", n_threads, n_threads == 1 ? "" : "s", "");
    for (uint32_t i = 0; i < N_SIZES; i++) {
      printf(" %9s", tool_bytes(pinned_sizes[i], text));
    }
    printf("\n");
  }
  const bool is_good = run_pinned_row(b, &b->peers[0], n_threads);
  return run_pinned_row(b, &b->peers[1], n_threads) && is_good;
}

static bool run_pinned_pairs(pinned_bench *b) {
  bool is_good = true;
  for (uint32_t n = 1; n < b->n_cpus; n *= 2) {
    is_good = run_pinned_threads(b, n) && is_good;
  }
  return run_pinned_threads(b, b->n_cpus) && is_good;
}

/* ---- Until it is ready ---------------------------------------------------------------------- */

static uint64_t bench_now_ns(const pinned_bench *b) {
  tarn_sim_state state = {.size = sizeof(state)};
  if (!b->info.is_simulated) {
    return progress_now_ns();
  }
  return tarn_sim_get_state(b->device, &state) == TARN_OK ? state.virtual_ns : 0;
}

/* From an empty pool to a block of that size; in *ns how long it took. */
static tarn_status ready_once(const pinned_bench *b, bool is_driver, uint64_t *ns) {
  const tarn_pinned_config config = {.size = sizeof(config),
                                     .device = b->device_name,
                                     .rounding = is_driver ? TARN_PINNED_POWER_OF_TWO
                                                           : TARN_PINNED_CLASSES};
  tarn_pinned *pool;
  void *block = NULL;
  *ns = 0;
  tarn_status status = tarn_pinned_create(&config, &pool);
  if (status != TARN_OK) {
    return status;
  }
  const uint64_t start_ns = bench_now_ns(b);
  status = tarn_pinned_alloc(pool, b->ready_bytes, &block);
  *ns = bench_now_ns(b) - start_ns;
  if (status == TARN_OK) {
    status = tarn_pinned_free(pool, block);
  }
  const tarn_status closed = tarn_pinned_destroy(pool, NULL);
  return status == TARN_OK ? closed : status;
}

static bool run_ready(const pinned_bench *b) {
  static const char *const ways[N_WAYS] = {"tarn", "driver"};
  char text[TOOL_TEXT];
  if (!b->is_json) {
    printf("\n%s of pinned memory ready, from nothing\n", tool_bytes(b->ready_bytes, text));
  }
  for (int way = 0; way < N_WAYS; way++) {
    double runs[READY_RUNS];
    for (int i = 0; i < READY_RUNS; i++) {
      uint64_t ns = 0;
      if (ready_once(b, way == 1, &ns) != TARN_OK) {
        return false;
      }
      runs[i] = (double)ns;
    }
    const double ns = bench_median(runs, READY_RUNS);
    if (!b->is_json) {
      printf("%-16s %9s\n", ways[way], tool_duration((uint64_t)ns, text));
      continue;
    }
    printf("{");
    tool_json_member("bench", true);
    tool_json_text("pinned");
    tool_json_string("case", "ready");
    tool_json_string("allocator", ways[way]);
    tool_json_number("bytes", b->ready_bytes);
    tool_json_real("ms", ns / 1e6, 4);
    tool_json_switch("is_virtual", b->info.is_simulated);
    tool_json_string("device", b->info.name);
    printf("}\n");
  }
  return true;
}

/* ---- The benchmark -------------------------------------------------------------------------- */

static bool open_pinned(pinned_bench *b) {
  const tarn_pinned_config config = {.size = sizeof(config), .device = b->device_name};
  b->info.size = sizeof(b->info);
  b->n_cpus = bench_cpus();
  if (tarn_pinned_create(&config, &b->pool) != TARN_OK) {
    return false;
  }
  b->device = tarn_pinned_device(b->pool);
  b->peers[0] = (bench_peer){.name = "tarn", .state = b->pool, .pairs = pool_pairs};
  bench_peer_glibc(&b->peers[1]);
  return tarn_device_get_info(b->device, &b->info) == TARN_OK;
}

/* The pool that stands for the driver asks it for powers of two: of another size it would be timed
 * for more than tarn is. */
static bool read_ready(const char *text, uint64_t *bytes) {
  if (!tool_read_bytes("--bytes", text, bytes)) {
    return false;
  }
  const bool is_power = *bytes != 0 && (*bytes & (*bytes - 1)) == 0;
  if (!is_power) {
    (void)fprintf(stderr, "tarn: --bytes '%s' is not a power of two: 64M, 1G\n", text);
  }
  return is_power;
}

int bench_pinned(const tool_command *command, int argc, char **argv) {
  static pinned_bench b;
  bool has_device = false, has_rounds = false, has_bytes = false;
  const char *rounds = NULL, *bytes = NULL;
  const tool_argument arguments[] = {{"--json", &b.is_json, NULL},
                                     {"--device", &has_device, &b.device_name},
                                     {"--rounds", &has_rounds, &rounds},
                                     {"--bytes", &has_bytes, &bytes}};
  const int result = tool_parse(command, arguments, 4, argc, argv);
  if (result >= 0) {
    return result;
  }
  b.n_rounds = BENCH_ROUNDS;
  if ((has_rounds && !tool_read_number("--rounds", rounds, 1, BENCH_MAX_ROUNDS, &b.n_rounds)) ||
      (has_bytes && !read_ready(bytes, &b.ready_bytes))) {
    return TOOL_USAGE;
  }
  if (!open_pinned(&b)) {
    const int failed = tool_fail();
    (void)tarn_pinned_destroy(b.pool, NULL);
    return failed;
  }
  if (!has_bytes) { /* a simulated one is no matter of bytes, and this machine may be small */
    b.ready_bytes = b.info.is_simulated ? UINT64_C(64) << 20 : UINT64_C(1) << 30;
  }
  if (!b.is_json) {
    printf("%s: %s; %u CPUs. Medians of %u rounds on threads of their own CPUs.\n", b.info.name,
           b.info.model, b.n_cpus, (unsigned)b.n_rounds);
  }
  int status = run_pinned_pairs(&b) ? TOOL_OK : bench_fail(b.failure);
  if (status == TOOL_OK && !run_ready(&b)) {
    status = tool_fail();
  }
  return tarn_pinned_destroy(b.pool, NULL) == TARN_OK ? status : tool_fail();
}
