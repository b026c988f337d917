/* SPDX-License-Identifier: MIT
 *
 * tarn bench pair: nanoseconds for one allocation and its free, beside other allocators in the same
 * run. Sections are printed as they are measured: a row a peer, a column a size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tool.h"

typedef enum pair_kind { PAIR_OWN, PAIR_TURNS, PAIR_SHARED, PAIR_MIXED, PAIR_REMOTE } pair_kind;

static const char *const kind_names[] = {[PAIR_OWN] = "own_streams",
                                         [PAIR_TURNS] = "two_streams",
                                         [PAIR_SHARED] = "one_stream",
                                         [PAIR_MIXED] = "live_1000",
                                         [PAIR_REMOTE] = "freed_by_another"};

/* A column of a section. */
typedef struct pair_column {
  pair_kind kind;
  uint64_t bytes; /* 0 for the mixed one */
} pair_column;

enum {
  MAX_COLUMNS = 8,
  N_SIZES = 5,
  WARM_CYCLES = 2048,       /* of the mix: by then tarn has nearly all the windows that it needs */
  WARM_CYCLES_ALL = 1024,   /* of several threads, each */
  WARM_STEPS_OTHERS = 2048, /* of other allocators: not cycles, since they may be slow */
};
static const uint64_t pair_sizes[N_SIZES] = {256, 4 << 10, 64 << 10, 1 << 20, 32 << 20};

typedef struct pair_section {
  char title[80];
  uint32_t n_threads;
  uint32_t n_columns;
  pair_column columns[MAX_COLUMNS];
} pair_section;

typedef struct pair_bench {
  bool is_json;
  tarn_heap *heap;
  tarn_heap *asking; /* every allocation asks whether its stream is captured: what that costs */
  tarn_device *device;
  tarn_device_info info;
  uint32_t n_cpus, n_streams, n_peers;
  uint64_t n_rounds;
  bench_peer peers[BENCH_MAX_PEERS];
  tarn_stream streams[2 * BENCH_MAX_THREADS]; /* two a thread */
  bench_work works[BENCH_MAX_THREADS];
  bench_mix *mixes; /* one a thread */
  bench_ring ring;
  uint64_t driver_calls;       /* of tarn in all timed rounds */
  char failure[BENCH_FAILURE]; /* why tarn could not be measured somewhere; empty: it could */
} pair_bench;

/* ---- Measuring ------------------------------------------------------------------------------ */

/* Whether a peer takes part: one without streams knows none to share or to change, and one whose
 * every call waits for the device would take minutes with many threads. */
static bool takes_part(const bench_peer *peer, const pair_section *section, pair_kind kind) {
  const bool is_plain = strcmp(peer->name, "cuMemAlloc") == 0;
  const bool is_about_streams = kind == PAIR_SHARED || kind == PAIR_TURNS;
  return peer->absent[0] == '\0' && (!is_about_streams || peer->has_streams) &&
         (section->n_threads == 1 || !is_plain);
}

/* Of the mix, before it is timed: what is slow need not become faster. */
static uint64_t warm_steps(const bench_peer *peer, uint32_t n_threads, bool is_tarn) {
  if (!peer->has_streams) {
    return 0;
  }
  if (n_threads == 1) {
    return (is_tarn ? WARM_CYCLES : 2) * (uint64_t)BENCH_STEPS;
  }
  return is_tarn ? WARM_CYCLES_ALL * (uint64_t)BENCH_STEPS : WARM_STEPS_OTHERS;
}

static void measure(pair_bench *b, const bench_peer *peer, uint32_t n_threads, pair_column column,
                    bench_time *time) {
  bench_case c = {.peer = peer,
                  .device = peer == &b->peers[0] ? b->device : NULL,
                  .n_threads = n_threads,
                  .n_rounds = (uint32_t)b->n_rounds,
                  .loops = {peer->pairs, peer->pairs},
                  .works = b->works};
  for (uint32_t i = 0; i < n_threads; i++) {
    const bool is_own = column.kind != PAIR_SHARED && column.kind != PAIR_REMOTE;
    b->works[i] = (bench_work){.state = peer->state,
                               .stream = b->streams[is_own ? 2 * i : 0],
                               .second = b->streams[2 * i + 1],
                               .bytes = column.bytes,
                               .mix = &b->mixes[i],
                               .ring = &b->ring};
  }
  if (column.kind == PAIR_TURNS) {
    c.loops[0] = c.loops[1] = peer->turns;
  }
  if (column.kind == PAIR_MIXED) {
    for (uint32_t i = 0; i < n_threads; i++) {
      bench_mix_make(&b->mixes[i], 1 + i);
    }
    c.loops[0] = c.loops[1] = peer->mixed;
    c.before = peer->fill;
    c.after = peer->drain;
    c.n_warm = warm_steps(peer, n_threads, c.device != NULL);
  }
  if (column.kind == PAIR_REMOTE) {
    memset(&b->ring, 0, sizeof(b->ring));
    c.loops[0] = peer->put;
    c.loops[1] = peer->take;
    c.before = peer->hoard;
  }
  bench_time_case(&c, time);
}

/* ---- Printing ------------------------------------------------------------------------------- */

static void print_time_json(const pair_bench *b, const bench_peer *peer, uint32_t n_threads,
                            pair_column column, const bench_time *time) {
  printf("{");
  tool_json_member("bench", true);
  tool_json_text("pair");
  tool_json_string("case", kind_names[column.kind]);
  tool_json_string("allocator", peer->name);
  tool_json_number("bytes", column.bytes);
  tool_json_number("threads", n_threads);
  tool_json_real("ns_per_pair", time->ns, 2);
  tool_json_real("best_ns_per_pair", time->best_ns, 2);
  tool_json_real("million_pairs_per_second", time->pairs_a_second / 1e6, 3);
  tool_json_number("driver_calls", time->driver_calls);
  tool_json_string("device", b->info.name);
  tool_json_string("model", b->info.model);
  tool_json_number("cpus", b->n_cpus);
  printf("}\n");
}

static void print_cell(const bench_time *time) {
  if (!time->is_measured) {
    printf(" %9s", "-");
  } else {
    printf(time->ns < 1000 ? " %9.1f" : " %9.0f", time->ns);
  }
}

static void print_section_head(const pair_section *section) {
  char text[TOOL_TEXT];
  printf("\n%s\n%-16s", section->title, "");
  for (uint32_t i = 0; i < section->n_columns; i++) {
    const pair_kind kind = section->columns[i].kind;
    printf(" %9s", kind == PAIR_MIXED   ? "1000 live"
                   : kind == PAIR_TURNS ? "2 streams"
                                        : tool_bytes(section->columns[i].bytes, text));
  }
  printf("\n");
}

/* Other allocators may have no room; tarn is what is measured. */
static void note_failure(pair_bench *b, const bench_peer *peer, const bench_time *time) {
  const bool is_tarn = peer->state == b->heap || peer->state == b->asking;
  if (is_tarn && b->failure[0] == '\0') {
    memcpy(b->failure, time->failure, sizeof(b->failure));
  }
}

static void run_row(pair_bench *b, const pair_section *section, const bench_peer *peer) {
  if (!b->is_json) {
    printf("%-16s", peer->name);
  }
  for (uint32_t i = 0; i < section->n_columns; i++) {
    const pair_column column = section->columns[i];
    bench_time time = {0};
    if (takes_part(peer, section, column.kind)) {
      measure(b, peer, section->n_threads, column, &time);
    }
    b->driver_calls += time.driver_calls;
    note_failure(b, peer, &time);
    if (!b->is_json) {
      print_cell(&time);
    } else if (time.is_measured) {
      print_time_json(b, peer, section->n_threads, column, &time);
    }
    (void)fflush(stdout);
  }
  if (!b->is_json) {
    printf("\n");
  }
}

static void run_section(pair_bench *b, const pair_section *section) {
  if (!b->is_json) {
    print_section_head(section);
  }
  for (uint32_t i = 0; i < b->n_peers; i++) {
    bool is_there = false;
    for (uint32_t k = 0; k < section->n_columns; k++) {
      is_there = is_there || takes_part(&b->peers[i], section, section->columns[k].kind);
    }
    if (is_there) {
      run_row(b, section, &b->peers[i]);
    }
  }
}

/* ---- Sections ------------------------------------------------------------------------------- */

static void add_sizes(pair_section *section, pair_kind kind) {
  for (uint32_t i = 0; i < N_SIZES; i++) {
    section->columns[section->n_columns++] = (pair_column){.kind = kind, .bytes = pair_sizes[i]};
  }
}

static void run_threads(pair_bench *b, uint32_t n_threads) {
  pair_section own = {.n_threads = n_threads}, shared = {.n_threads = n_threads};
  (void)snprintf(own.title, sizeof(own.title), "%u thread%s: ns a pair", n_threads,
                 n_threads == 1 ? "" : "s, each on its own stream");
  add_sizes(&own, PAIR_OWN);
  own.columns[own.n_columns++] = (pair_column){.kind = PAIR_TURNS, .bytes = 4 << 10};
  own.columns[own.n_columns++] = (pair_column){.kind = PAIR_MIXED};
  run_section(b, &own);
  if (n_threads > 1) {
    (void)snprintf(shared.title, sizeof(shared.title), "%u threads on one stream: ns a pair",
                   n_threads);
    add_sizes(&shared, PAIR_SHARED);
    run_section(b, &shared);
  }
}

static void run_remote(pair_bench *b) {
  pair_section section = {.title = "Allocated by one thread, freed by another: ns a pair",
                          .n_threads = 2,
                          .n_columns = 2,
                          .columns = {{PAIR_REMOTE, 4 << 10}, {PAIR_REMOTE, 1 << 20}}};
  run_section(b, &section);
}

/* 1, 2, 4, ... and all. */
static void run_sections(pair_bench *b) {
  for (uint32_t n = 1; n < b->n_cpus; n *= 2) {
    run_threads(b, n);
  }
  run_threads(b, b->n_cpus);
  run_remote(b);
}

/* ---- The benchmark -------------------------------------------------------------------------- */

static void print_pair_head(const pair_bench *b) {
  printf("%s: %s; %u CPUs. Medians of %u rounds on pinned threads.\n", b->info.name, b->info.model,
         b->n_cpus, (unsigned)b->n_rounds);
  printf("floor: a thread's own stack of blocks, popped and pushed; in the last section the way\n"
         "from thread to thread alone.\n");
}

static bool open_pair(pair_bench *b, const char *device_name) {
  tarn_heap_config config = {.size = sizeof(config), .device = device_name};
  b->info.size = sizeof(b->info);
  b->n_cpus = bench_cpus();
  b->mixes = calloc(b->n_cpus, sizeof(*b->mixes));
  if (b->mixes == NULL) {
    (void)fprintf(stderr, "tarn: no host memory for the blocks of %u threads\n", b->n_cpus);
    exit(1);
  }
  if (tarn_heap_create(&config, &b->heap) != TARN_OK) {
    return false;
  }
  config.is_asking_captures = true;
  if (tarn_heap_create(&config, &b->asking) != TARN_OK) {
    return false;
  }
  b->device = tarn_heap_device(b->heap);
  const uint32_t n_streams = 2 * (b->n_cpus > 2 ? b->n_cpus : 2);
  if (tarn_device_get_info(b->device, &b->info) != TARN_OK) {
    return false;
  }
  for (; b->n_streams < n_streams; b->n_streams++) {
    if (tarn_stream_create(b->device, &b->streams[b->n_streams]) != TARN_OK) {
      return false;
    }
  }
  return true;
}

static bool close_pair(pair_bench *b) {
  bool is_good = true;
  for (uint32_t i = 0; i < b->n_streams; i++) {
    is_good = tarn_stream_retire(b->heap, b->streams[i]) == TARN_OK && is_good;
    is_good = tarn_stream_retire(b->asking, b->streams[i]) == TARN_OK && is_good;
    is_good = tarn_stream_destroy(b->device, b->streams[i]) == TARN_OK && is_good;
  }
  free(b->mixes);
  is_good = tarn_heap_destroy(b->asking, NULL) == TARN_OK && is_good;
  return tarn_heap_destroy(b->heap, NULL) == TARN_OK && is_good;
}

int bench_pair(const tool_command *command, int argc, char **argv) {
  static pair_bench b;
  bool has_device = false, has_peer = false, has_rounds = false;
  const char *device_name = NULL, *peer_file = NULL, *rounds = NULL;
  const tool_argument arguments[] = {{"--json", &b.is_json, NULL},
                                     {"--device", &has_device, &device_name},
                                     {"--rounds", &has_rounds, &rounds},
                                     {"--peer", &has_peer, &peer_file}};
  const int result = tool_parse(command, arguments, 4, argc, argv);
  if (result >= 0) {
    return result;
  }
  b.n_rounds = BENCH_ROUNDS;
  if (has_rounds && !tool_read_number("--rounds", rounds, 1, BENCH_MAX_ROUNDS, &b.n_rounds)) {
    return TOOL_USAGE;
  }
  if (!open_pair(&b, device_name)) {
    const int failed = tool_fail();
    (void)close_pair(&b);
    return failed;
  }
  b.n_peers = bench_find_peers(b.peers, b.heap, &b.info, peer_file);
  bench_peer_tarn(&b.peers[b.n_peers++], "tarn_asking", b.asking);
  if (!b.is_json) {
    print_pair_head(&b);
  }
  bench_print_absent(b.peers, b.n_peers, b.is_json);
  run_sections(&b);
  if (!b.is_json) {
    printf("\nDriver calls that tarn made in all timed rounds: %llu\n",
           (unsigned long long)b.driver_calls);
  }
  if (!close_pair(&b)) {
    return tool_fail();
  }
  return b.failure[0] == '\0' ? TOOL_OK : bench_fail(b.failure);
}
