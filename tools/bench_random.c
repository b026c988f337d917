/* SPDX-License-Identifier: MIT
 *
 * tarn bench random: RMM's random_allocations, bit for bit, in milliseconds a run: once from an
 * empty heap, then the median of runs through the same heap, beside other allocators. The program
 * is made before it is timed, and its hash must be the known one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "progress.h"
#include "tool.h"
#include "workload.h"

enum { N_RUNS = 5, SLOW_ALLOCATIONS = 1000 };

typedef struct random_bench {
  bool is_json;
  const char *device_name, *peer_file;
  const workload_random_case *of;
  trace program;
  uint64_t *blocks;
  tarn_heap *heap;
  tarn_device *device;
  tarn_device_info info;
  tarn_stream stream;
  uint32_t n_peers;
  bench_peer peers[BENCH_MAX_PEERS];
} random_bench;

typedef struct random_result {
  bool is_measured;
  double first_ms, ms;
  uint64_t reserved_peak_bytes; /* tarn alone */
  uint64_t first_calls, last_calls;
} random_result;

/* ---- Measuring ------------------------------------------------------------------------------ */

/* One run; the milliseconds, or less than 0 when an allocation failed. */
static double run_program(random_bench *b, const bench_peer *peer, uint64_t *driver_calls) {
  bench_work work = {
      .state = peer->state, .stream = b->stream, .program = &b->program, .blocks = b->blocks};
  const uint64_t calls = bench_driver_calls(b->device);
  const uint64_t start_ns = progress_now_ns();
  const bool is_good = peer->replay(&work, 1);
  const double ms = (double)(progress_now_ns() - start_ns) / 1e6;
  *driver_calls = bench_driver_calls(b->device) - calls;
  return is_good ? ms : -1;
}

static void measure_peer(random_bench *b, const bench_peer *peer, random_result *result) {
  double runs[N_RUNS];
  *result = (random_result){0};
  if (peer->absent[0] != '\0' || (peer->enter != NULL && !peer->enter(peer->state))) {
    return;
  }
  result->first_ms = run_program(b, peer, &result->first_calls);
  result->is_measured = result->first_ms >= 0;
  for (int i = 0; i < N_RUNS && result->is_measured; i++) {
    runs[i] = run_program(b, peer, &result->last_calls);
    result->is_measured = runs[i] >= 0;
  }
  if (result->is_measured) {
    result->ms = bench_median(runs, N_RUNS);
  }
}

/* ---- Printing ------------------------------------------------------------------------------- */

static void print_result_json(const random_bench *b, const bench_peer *peer,
                              const random_result *result) {
  printf("{");
  tool_json_member("bench", true);
  tool_json_text("random");
  tool_json_string("allocator", peer->name);
  tool_json_number("allocations", b->of->n_allocations);
  tool_json_number("max_mib", b->of->max_mib);
  tool_json_number("live_peak_bytes", b->program.live_peak_bytes);
  tool_json_real("first_ms", result->first_ms, 4);
  tool_json_real("ms", result->ms, 4);
  if (peer == &b->peers[0]) {
    tool_json_number("reserved_peak_bytes", result->reserved_peak_bytes);
    tool_json_number("driver_calls", result->first_calls);
    tool_json_number("driver_calls_last_repeat", result->last_calls);
  }
  tool_json_string("device", b->info.name);
  printf("}\n");
}

static int column_width(const bench_peer *peer) {
  const size_t length = strlen(peer->name);
  return length > 9 ? (int)length : 9;
}

static void print_random_head(const random_bench *b) {
  printf("%s: %s. Milliseconds a run: median of %d; FIRST from an empty heap.\n", b->info.name,
         b->info.model, (int)N_RUNS);
  bench_print_absent(b->peers, b->n_peers, false);
  printf("\n%11s %4s %8s %7s %6s %6s %9s", "ALLOCATIONS", "MIB", "HELD", "RATIO", "CALLS", "REPEAT",
         "FIRST");
  for (uint32_t i = 0; i < b->n_peers; i++) {
    if (b->peers[i].absent[0] == '\0') {
      printf(" %*s", column_width(&b->peers[i]), b->peers[i].name);
    }
  }
  printf("\n");
}

static void print_tarn_cells(const random_bench *b, const random_result *result) {
  char held[TOOL_TEXT];
  printf("%11u %4u %8s %7.4f %6llu %6llu %9.3f", b->of->n_allocations, b->of->max_mib,
         tool_bytes(result->reserved_peak_bytes, held),
         (double)result->reserved_peak_bytes / (double)b->program.live_peak_bytes,
         (unsigned long long)result->first_calls, (unsigned long long)result->last_calls,
         result->first_ms);
}

static void print_run_ms(const bench_peer *peer, const random_result *result) {
  const int width = column_width(peer);
  if (result->is_measured) {
    printf(" %*.3f", width, result->ms);
  } else {
    printf(" %*s", width, "-");
  }
}

/* ---- Cases ---------------------------------------------------------------------------------- */

/* tarn comes first: with what it held, and gives all of it back, since the other allocators of the
 * device need room, too. */
static bool run_tarn(random_bench *b) {
  random_result result = {0};
  tarn_heap_stats stats = {.size = sizeof(stats)};
  measure_peer(b, &b->peers[0], &result);
  if (!result.is_measured || tarn_heap_get_stats(b->heap, &stats) != TARN_OK) {
    return false;
  }
  result.reserved_peak_bytes = stats.reserved_peak_bytes;
  if (b->is_json) {
    print_result_json(b, &b->peers[0], &result);
  } else {
    print_tarn_cells(b, &result);
    print_run_ms(&b->peers[0], &result);
  }
  return tarn_stream_synchronize(b->device, b->stream) == TARN_OK &&
         tarn_heap_trim(b->heap, 0) == TARN_OK;
}

static void run_peer(random_bench *b, const bench_peer *peer) {
  /* It takes minutes for the larger ones. */
  const bool is_slow =
      strcmp(peer->name, "cuMemAlloc") == 0 && b->of->n_allocations > SLOW_ALLOCATIONS;
  random_result result = {0};
  if (!is_slow) {
    measure_peer(b, peer, &result);
  }
  if (!b->is_json) {
    print_run_ms(peer, &result);
  } else if (result.is_measured) {
    print_result_json(b, peer, &result);
  }
  (void)fflush(stdout);
}

static bool run_peers(random_bench *b) {
  const bool is_good = run_tarn(b);
  for (uint32_t i = 1; i < b->n_peers && is_good; i++) {
    if (b->peers[i].absent[0] == '\0') {
      run_peer(b, &b->peers[i]);
    }
  }
  printf("%s", b->is_json ? "" : "\n");
  return is_good;
}

/* A heap of its own for each case, so that its peak is the case's. */
static tarn_status open_case(random_bench *b) {
  const tarn_heap_config config = {.size = sizeof(config), .device = b->device_name};
  tarn_status status = tarn_heap_create(&config, &b->heap);
  if (status == TARN_OK) {
    b->device = tarn_heap_device(b->heap);
    b->info.size = sizeof(b->info);
    status = tarn_device_get_info(b->device, &b->info);
  }
  return status == TARN_OK ? tarn_stream_create(b->device, &b->stream) : status;
}

static void close_case(random_bench *b) {
  if (b->stream != NULL) {
    (void)tarn_stream_synchronize(b->device, b->stream);
    (void)tarn_stream_retire(b->heap, b->stream);
    (void)tarn_stream_destroy(b->device, b->stream);
  }
  (void)tarn_heap_destroy(b->heap, NULL);
  b->heap = NULL;
  b->stream = NULL;
  free(b->blocks);
  trace_close(&b->program);
}

/* The program of the case, checked against what is known of it. */
static bool make_program(random_bench *b) {
  uint64_t total_bytes, hash;
  b->blocks = NULL;
  if (!workload_random(b->of->n_allocations, b->of->max_mib, &b->program)) {
    return false;
  }
  b->blocks = calloc((size_t)b->program.n_blocks + 1, sizeof(*b->blocks));
  workload_sum(&b->program, &total_bytes, &hash);
  return b->blocks != NULL && hash == b->of->hash && total_bytes == b->of->total_bytes;
}

static int run_case(random_bench *b, bool is_first) {
  int result = TOOL_OK;
  if (!make_program(b)) {
    (void)fprintf(stderr, "tarn: the program of %u allocations up to %u MiB cannot be made\n",
                  b->of->n_allocations, b->of->max_mib);
    result = TOOL_FAILED;
  } else if (open_case(b) != TARN_OK) {
    result = tool_fail();
  } else {
    b->n_peers = bench_find_peers(b->peers, b->heap, &b->info, b->peer_file);
    if (is_first && b->is_json) {
      bench_print_absent(b->peers, b->n_peers, true);
    } else if (is_first) {
      print_random_head(b);
    }
    result = run_peers(b) ? TOOL_OK : tool_fail();
  }
  close_case(b);
  return result;
}

/* "1000:64" for the case of that name; whether this one is meant. */
static bool is_meant(const workload_random_case *c, const char *text) {
  char name[TOOL_TEXT];
  (void)snprintf(name, sizeof(name), "%u:%u", c->n_allocations, c->max_mib);
  return text == NULL || strcmp(text, name) == 0;
}

int bench_random(const tool_command *command, int argc, char **argv) {
  static random_bench b;
  bool has_device = false, has_case = false, has_peer = false;
  const char *case_text = NULL;
  const tool_argument arguments[] = {{"--json", &b.is_json, NULL},
                                     {"--device", &has_device, &b.device_name},
                                     {"--case", &has_case, &case_text},
                                     {"--peer", &has_peer, &b.peer_file}};
  int result = tool_parse(command, arguments, 4, argc, argv);
  if (result >= 0) {
    return result;
  }
  uint32_t n_run = 0;
  result = TOOL_OK;
  for (size_t i = 0; i < WORKLOAD_N_RANDOM && result == TOOL_OK; i++) {
    b.of = &workload_random_cases[i];
    if (is_meant(b.of, case_text)) {
      result = run_case(&b, n_run++ == 0);
    }
  }
  if (n_run == 0) {
    (void)fprintf(stderr,
                  "tarn: there is no case '%s'; cases are N:MIB with N 1000, 10000 or "
                  "100000 and MIB 1, 4, 64, 256, 1024 or 4096\n",
                  case_text);
    return TOOL_USAGE;
  }
  return result;
}
