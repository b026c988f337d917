/* SPDX-License-Identifier: MIT
 *
 * tarn bench copy: ordinary host memory to the device and back, by size, and many small pieces at
 * once, beside the driver's own copies in the same run. On a GPU the machine's clock counts; on the
 * simulated one the virtual clock, which knows what driver calls cost but not the host's own
 * copying. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "progress.h"
#include "tarn/batch.h"
#include "tarn/copy.h"
#include "tarn/sim.h"
#include "tool.h"

enum { COPY_PIECES = 64, COPY_PIECE = 4 << 10, MAX_SAMPLES = 256 };
static const uint64_t copy_sizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30};
enum { N_COPY_SIZES = sizeof(copy_sizes) / sizeof(copy_sizes[0]) };

typedef struct copy_bench {
  bool is_json;
  uint64_t n_rounds;
  uint64_t max_bytes;  /* of a copy */
  uint64_t room_bytes; /* the same, and at least what all pieces need */
  tarn_heap *heap;
  tarn_pinned *pool;
  tarn_copier *copier;
  tarn_device *device;
  tarn_device_info info;
  tarn_stream stream;
  uint8_t *ordinary, *back; /* room_bytes each */
  void *pinned;             /* likewise */
  tarn_ptr block;           /* likewise, on the device */
  tarn_ptr pieces[COPY_PIECES];
  tarn_batch *batch;
  uint64_t bytes; /* of the case at hand */
  bool is_told;   /* why it failed: not an error of tarn's */
} copy_bench;

/* One copy, or one batch, from call to completion. */
typedef tarn_status (*copy_way)(copy_bench *b);

/* ---- Ways ----------------------------------------------------------------------------------- */

static tarn_status tarn_up(copy_bench *b) {
  return tarn_copy_in(b->copier, b->block, b->ordinary, b->bytes, b->stream);
}

static tarn_status tarn_down(copy_bench *b) {
  return tarn_copy_out(b->copier, b->back, b->block, b->bytes, b->stream);
}

static tarn_status driver_copy(copy_bench *b, tarn_ptr destination, tarn_ptr source) {
  const tarn_status status = tarn_device_copy(b->device, destination, source, b->bytes, b->stream);
  return status == TARN_OK ? tarn_stream_synchronize(b->device, b->stream) : status;
}

static tarn_status pageable_up(copy_bench *b) {
  return driver_copy(b, b->block, (uintptr_t)b->ordinary);
}

static tarn_status pageable_down(copy_bench *b) {
  return driver_copy(b, (uintptr_t)b->back, b->block);
}

static tarn_status pinned_up(copy_bench *b) {
  return driver_copy(b, b->block, (uintptr_t)b->pinned);
}

static tarn_status pinned_down(copy_bench *b) {
  return driver_copy(b, (uintptr_t)b->pinned, b->block);
}

static tarn_status batch_of(copy_bench *b, bool is_adjacent) {
  tarn_status status = TARN_OK;
  for (uint64_t i = 0; i < COPY_PIECES && status == TARN_OK; i++) {
    const tarn_ptr to = is_adjacent ? b->block + i * COPY_PIECE : b->pieces[i];
    status = tarn_batch_upload(b->batch, to, b->ordinary + i * COPY_PIECE, COPY_PIECE);
  }
  status = status == TARN_OK ? tarn_batch_send(b->batch, b->stream) : status;
  return status == TARN_OK ? tarn_stream_synchronize(b->device, b->stream) : status;
}

static tarn_status batch_adjacent(copy_bench *b) {
  return batch_of(b, true);
}

static tarn_status batch_apart(copy_bench *b) {
  return batch_of(b, false);
}

static tarn_status driver_pieces(copy_bench *b, const uint8_t *from) {
  tarn_status status = TARN_OK;
  for (uint64_t i = 0; i < COPY_PIECES && status == TARN_OK; i++) {
    status = tarn_device_copy(b->device, b->pieces[i], (uintptr_t)from + i * COPY_PIECE, COPY_PIECE,
                              b->stream);
  }
  return status == TARN_OK ? tarn_stream_synchronize(b->device, b->stream) : status;
}

static tarn_status pieces_pageable(copy_bench *b) {
  return driver_pieces(b, b->ordinary);
}

static tarn_status pieces_pinned(copy_bench *b) {
  return driver_pieces(b, b->pinned);
}

typedef struct copy_case {
  const char *name; /* of the case in JSON */
  const char *way;
  copy_way run;
  bool is_batch, is_down;
} copy_case;

static const copy_case copy_cases[] = {
    {"up", "tarn", tarn_up, false, false},
    {"up", "driver, pageable", pageable_up, false, false},
    {"up", "driver, pinned", pinned_up, false, false},
    {"down", "tarn", tarn_down, false, true},
    {"down", "driver, pageable", pageable_down, false, true},
    {"down", "driver, pinned", pinned_down, false, true},
    {"pieces", "tarn, adjacent", batch_adjacent, true, false},
    {"pieces", "tarn, apart", batch_apart, true, false},
    {"pieces", "driver, pageable", pieces_pageable, true, false},
    {"pieces", "driver, pinned", pieces_pinned, true, false},
};
enum { N_COPY_CASES = sizeof(copy_cases) / sizeof(copy_cases[0]) };

/* ---- Measuring ------------------------------------------------------------------------------ */

static uint64_t copy_clock_ns(const copy_bench *b) {
  if (!b->info.is_simulated) {
    return progress_now_ns();
  }
  tarn_sim_state state = {.size = sizeof(state)};
  return tarn_sim_get_state(b->device, &state) == TARN_OK ? state.virtual_ns : 0;
}

/* The median, once everything is warm. False: it failed. */
static bool measure_copy(copy_bench *b, const copy_case *c, double *ns) {
  double samples[MAX_SAMPLES];
  for (int i = 0; i < 3; i++) {
    if (c->run(b) != TARN_OK) {
      return false;
    }
  }
  for (uint64_t i = 0; i < b->n_rounds; i++) {
    const uint64_t start_ns = copy_clock_ns(b);
    if (c->run(b) != TARN_OK) {
      return false;
    }
    samples[i] = (double)(copy_clock_ns(b) - start_ns);
  }
  *ns = bench_median(samples, b->n_rounds);
  return true;
}

/* Tells what no call of tarn's has failed for; false. */
static bool tell(copy_bench *b, const char *why) {
  (void)fprintf(stderr, "tarn: %s\n", why);
  b->is_told = true;
  return false;
}

/* What tarn brought back is what it sent. False: it is not, which is told, or a copy failed. */
static bool is_right(copy_bench *b) {
  memset(b->back, 0, b->bytes);
  if (tarn_up(b) != TARN_OK || tarn_down(b) != TARN_OK) {
    return false;
  }
  return memcmp(b->back, b->ordinary, b->bytes) == 0 ||
         tell(b, "what came back is not what was sent");
}

static void print_copy(const copy_bench *b, const copy_case *c, double ns) {
  const double rate = ns > 0 ? (double)b->bytes / ns : 0;
  if (!b->is_json) {
    if (c->is_batch) {
      printf("%-18s %10.2f us a piece\n", c->way, ns / COPY_PIECES / 1e3);
    } else {
      printf(" %12.2f", rate);
    }
    return;
  }
  printf("{");
  tool_json_member("bench", true);
  tool_json_text("copy");
  tool_json_string("case", c->name);
  tool_json_string("way", c->way);
  tool_json_number("bytes", b->bytes);
  tool_json_number("pieces", c->is_batch ? COPY_PIECES : 1);
  tool_json_real("ns", ns, 0);
  tool_json_real("gb_per_second", rate, 3);
  tool_json_real("us_per_piece", ns / (c->is_batch ? COPY_PIECES : 1) / 1e3, 3);
  tool_json_string("clock", b->info.is_simulated ? "virtual" : "wall");
  tool_json_string("device", b->info.name);
  tool_json_string("model", b->info.model);
  tool_json_number("cpus", bench_cpus());
  printf("}\n");
}

static bool run_case(copy_bench *b, const copy_case *c) {
  double ns;
  if (!measure_copy(b, c, &ns)) {
    return false;
  }
  print_copy(b, c, ns);
  (void)fflush(stdout);
  return true;
}

/* Whether the case is a column of the table of this direction. */
static bool is_column(const copy_case *c, bool is_down) {
  return !c->is_batch && c->is_down == is_down;
}

static void print_sizes_head(bool is_down) {
  printf("\n%s: GB/s\n%-10s", is_down ? "From the device" : "To the device", "");
  for (int i = 0; i < N_COPY_CASES; i++) {
    if (is_column(&copy_cases[i], is_down)) {
      printf(" %12.12s", copy_cases[i].way + (copy_cases[i].way[0] == 'd' ? 8 : 0));
    }
  }
  printf("\n");
}

static bool run_size(copy_bench *b, bool is_down) {
  char text[TOOL_TEXT];
  if (!b->is_json) {
    printf("%-10s", tool_bytes(b->bytes, text));
  }
  for (int i = 0; i < N_COPY_CASES; i++) {
    if (is_column(&copy_cases[i], is_down) && !run_case(b, &copy_cases[i])) {
      return false;
    }
  }
  if (!b->is_json) {
    printf("\n");
  }
  return is_right(b);
}

/* A row a size, a column a way. */
static bool run_sizes(copy_bench *b, bool is_down) {
  if (!b->is_json) {
    print_sizes_head(is_down);
  }
  for (int k = 0; k < N_COPY_SIZES && copy_sizes[k] <= b->max_bytes; k++) {
    b->bytes = copy_sizes[k];
    if (!run_size(b, is_down)) {
      return false;
    }
  }
  return true;
}

static bool run_pieces(copy_bench *b) {
  b->bytes = (uint64_t)COPY_PIECES * COPY_PIECE;
  if (!b->is_json) {
    printf("\n%d pieces of 4 KiB to the device\n", COPY_PIECES);
  }
  for (int i = 0; i < N_COPY_CASES; i++) {
    if (copy_cases[i].is_batch && !run_case(b, &copy_cases[i])) {
      return false;
    }
  }
  return true;
}

/* ---- The benchmark -------------------------------------------------------------------------- */

static bool open_copy(copy_bench *b, const char *device_name, const tarn_copier_config *config) {
  const tarn_heap_config heap = {.size = sizeof(heap), .device = device_name};
  const tarn_pinned_config pool = {.size = sizeof(pool), .device = device_name};
  b->info.size = sizeof(b->info);
  if (tarn_heap_create(&heap, &b->heap) != TARN_OK ||
      tarn_pinned_create(&pool, &b->pool) != TARN_OK ||
      tarn_copier_create(b->pool, config, &b->copier) != TARN_OK ||
      tarn_batch_create(b->copier, NULL, &b->batch) != TARN_OK) {
    return false;
  }
  b->device = tarn_heap_device(b->heap);
  if (tarn_device_get_info(b->device, &b->info) != TARN_OK ||
      tarn_stream_create(b->device, &b->stream) != TARN_OK) {
    return false;
  }
  if (b->max_bytes == 0) {
    b->max_bytes = b->info.is_simulated ? 16 << 20 : 1 << 30;
  }
  const uint64_t pieces_bytes = (uint64_t)COPY_PIECES * COPY_PIECE;
  b->room_bytes = b->max_bytes > pieces_bytes ? b->max_bytes : pieces_bytes;
  b->ordinary = malloc(b->room_bytes);
  b->back = malloc(b->room_bytes);
  if (b->ordinary == NULL || b->back == NULL) {
    return tell(b, "no host memory for copies of that size: --max 16M");
  }
  if (tarn_pinned_alloc(b->pool, b->room_bytes, &b->pinned) != TARN_OK ||
      tarn_alloc(b->heap, b->room_bytes, b->stream, &b->block) != TARN_OK) {
    return false;
  }
  for (int i = 0; i < COPY_PIECES; i++) {
    /* Every other block, so that no two of them are adjacent. */
    tarn_ptr between;
    if (tarn_alloc(b->heap, COPY_PIECE, b->stream, &b->pieces[i]) != TARN_OK ||
        tarn_alloc(b->heap, COPY_PIECE, b->stream, &between) != TARN_OK) {
      return false;
    }
  }
  for (uint64_t i = 0; i < b->room_bytes; i++) {
    b->ordinary[i] = (uint8_t)(i * 31 + (i >> 12));
  }
  memset(b->back, 0, b->room_bytes); /* touched */
  return true;
}

/* Blocks go with the heap and the pool. */
static bool close_copy(copy_bench *b) {
  bool is_good = tarn_batch_destroy(b->batch) == TARN_OK;
  if (b->stream != NULL) {
    is_good = tarn_copier_stream_retire(b->copier, b->stream) == TARN_OK && is_good;
    is_good = tarn_stream_retire(b->heap, b->stream) == TARN_OK && is_good;
    is_good = tarn_stream_destroy(b->device, b->stream) == TARN_OK && is_good;
  }
  is_good = tarn_copier_destroy(b->copier) == TARN_OK && is_good;
  is_good = tarn_pinned_destroy(b->pool, NULL) == TARN_OK && is_good;
  is_good = tarn_heap_destroy(b->heap, NULL) == TARN_OK && is_good;
  free(b->ordinary);
  free(b->back);
  return is_good;
}

static int run_copy(copy_bench *b, const char *device_name, const tarn_copier_config *config) {
  bool is_good = open_copy(b, device_name, config);
  if (is_good && !b->is_json) {
    printf("%s: %s; %u CPUs. Medians of %u rounds, from call to completion%s.\n", b->info.name,
           b->info.model, bench_cpus(), (unsigned)b->n_rounds,
           b->info.is_simulated ? ", by the virtual clock" : "");
  }
  is_good = is_good && run_sizes(b, false) && run_sizes(b, true) && run_pieces(b);
  const int result = is_good ? TOOL_OK : b->is_told ? TOOL_FAILED : tool_fail();
  return close_copy(b) ? result : tool_fail();
}

int bench_copy(const tool_command *command, int argc, char **argv) {
  static copy_bench b;
  bool has[5] = {false};
  const char *device_name = NULL, *rounds = NULL, *most = NULL, *piece = NULL, *threads = NULL;
  const tool_argument arguments[] = {
      {"--json", &b.is_json, NULL},   {"--device", &has[0], &device_name},
      {"--rounds", &has[1], &rounds}, {"--max", &has[2], &most},
      {"--piece", &has[3], &piece},   {"--threads", &has[4], &threads}};
  const int result = tool_parse(command, arguments, 6, argc, argv);
  if (result >= 0) {
    return result;
  }
  tarn_copier_config config = {.size = sizeof(config)};
  uint64_t n_threads = 0;
  b.n_rounds = 11;
  if ((has[1] && !tool_read_number("--rounds", rounds, 1, MAX_SAMPLES, &b.n_rounds)) ||
      (has[2] && !tool_read_bytes("--max", most, &b.max_bytes)) ||
      (has[3] && !tool_read_bytes("--piece", piece, &config.piece_bytes)) ||
      (has[4] && !tool_read_number("--threads", threads, 0, 63, &n_threads))) {
    return TOOL_USAGE;
  }
  config.n_threads = (uint32_t)n_threads;
  config.has_no_threads = has[4] && n_threads == 0;
  if (has[2] && (b.max_bytes < copy_sizes[0] || b.max_bytes > copy_sizes[N_COPY_SIZES - 1])) {
    (void)fprintf(stderr, "tarn: --max '%s' is %s\n", most,
                  b.max_bytes < copy_sizes[0] ? "less than 4K, the smallest that is copied"
                                              : "more than 1G, the largest that is copied");
    return TOOL_USAGE;
  }
  return run_copy(&b, device_name, &config);
}
