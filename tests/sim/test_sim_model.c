/* SPDX-License-Identifier: MIT
 *
 * The oracle against a model that knows no clocks: random small programs, in which every use of
 * memory is a number below 64 and the uses ordered before something are a set of bits. The model
 * keeps every use that a byte ever had; the oracle must agree with it on every byte of every call,
 * whatever the timing, and every pair of uses that it reports must be one that the model rejects.
 *
 * TARN_TEST_PROGRAMS changes how many programs are tried. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "port/port.h"
#include "support/test.h"
#include "tarn/sim.h"

#if defined(__SANITIZE_ADDRESS__)
enum { N_PROGRAMS = 5000 }; /* each takes 20 times as long */
#else
enum { N_PROGRAMS = 20000 };
#endif

enum {
  N_STEPS = 48,
  MAX_USES = 64,
  N_STREAMS = 6, /* the first is the legacy default stream, the second the thread's */
  N_CREATED_FROM = 2,
  N_EVENTS = 4,
  N_CELLS = 12,
  CELL = 512,
  N_OWNERS = 3,
  N_WORDS = 2,
  MAX_NODES = 4,
  GRANULE = 2 << 20,
};

typedef uint64_t use_set;

typedef struct model_use {
  uint64_t owner;
  uint64_t stream_id;
  use_set before;
  bool is_write;
} model_use;

typedef struct model_cell {
  uint64_t owner;
  bool is_freed;
  use_set uses; /* all that were ever made of it, but those of memory that was freed */
} model_cell;

typedef struct model_value {
  uint64_t *word;
  uint64_t last;               /* value that was last asked to be written */
  use_set before[N_STEPS + 1]; /* by value: what its write has behind it */
} model_value;

typedef struct model_node {
  uint64_t owner;
  int first, n;
  bool is_write;
  uint32_t after; /* all nodes before it */
} model_node;

typedef struct program {
  tarni_rng rng;
  tarn_device *device;
  tarni_port *port;
  tarn_ptr base;
  tarni_chunk chunk;
  void *pinned;
  tarn_stream streams[N_STREAMS];
  uint64_t ids[N_STREAMS];
  use_set before[N_STREAMS]; /* the stream's next operation */
  tarni_event events[N_EVENTS];
  use_set recorded[N_EVENTS];
  use_set host;
  model_use uses[MAX_USES];
  int n_uses;
  model_cell cells[N_CELLS];
  model_value values[N_WORDS];
  model_node nodes[MAX_NODES];
  int n_nodes;
  tarni_graph graph;
  tarni_graph_exec exec;
  use_set launched;  /* the last launch and what came before it */
  int n_before_call; /* uses before the last call */
  uint64_t n_found;
  /* what the oracle said during the last call: */
  uint32_t said_order, said_freed;
  bool said_unmap, said_other;
  uint64_t n_wrong_pairs;
} program;

static uint64_t below(program *p, uint64_t bound) {
  return tarni_rng_below(&p->rng, bound);
}

static bool conflict(const model_use *a, const model_use *b) {
  return a->owner != b->owner || a->is_write || b->is_write;
}

/* ---- What the oracle says ---- */

/* Whether the finding names an earlier use of the cell that the model, too, finds in conflict with
 * one of the call's own uses, the latest in the list. */
static bool pair_is_right(const program *p, const tarn_sim_finding *finding, int cell) {
  for (int j = p->n_before_call; j < p->n_uses; j++) {
    const model_use *now = &p->uses[j];
    for (int i = 0; i < j; i++) {
      const model_use *then = &p->uses[i];
      if ((p->cells[cell].uses >> i & 1) != 0 && (now->before >> i & 1) == 0 &&
          conflict(then, now) && then->stream_id == finding->first.stream_id &&
          then->owner == finding->first.owner && then->is_write == finding->first.is_write &&
          now->stream_id == finding->second.stream_id && now->owner == finding->second.owner &&
          (finding->kind == TARN_SIM_REUSE) == (then->owner != now->owner)) {
        return true;
      }
    }
  }
  return false;
}

static void on_finding(const tarn_sim_finding *finding, void *user) {
  program *p = user;
  uint32_t cells = 0;
  p->n_found++;
  for (int i = 0; i < N_CELLS; i++) {
    const tarn_ptr cell = p->base + (tarn_ptr)i * CELL;
    if (finding->address <= cell && cell + CELL <= finding->address + finding->bytes) {
      cells |= 1u << i;
      p->n_wrong_pairs += (finding->kind == TARN_SIM_REUSE || finding->kind == TARN_SIM_RACE) &&
                          !pair_is_right(p, finding, i);
    }
  }
  if (finding->kind == TARN_SIM_REUSE || finding->kind == TARN_SIM_RACE) {
    p->said_order |= cells;
  } else if (finding->kind == TARN_SIM_FREED) {
    p->said_freed |= cells;
  } else if (finding->kind == TARN_SIM_UNMAP_IN_USE) {
    p->said_unmap = true;
  } else {
    p->said_other = true;
  }
}

/* ---- The model ---- */

/* Notes a use of cells and says which of them it may not be made of: out of order, or freed. */
static void model_judge(program *p, model_use use, int first, int n, uint32_t wrong[2]) {
  const int index = p->n_uses++;
  p->uses[index] = use;
  for (int c = first; c < first + n; c++) {
    model_cell *cell = &p->cells[c];
    model_use here = use;
    here.owner = use.owner != 0 ? use.owner : cell->owner;
    if (cell->is_freed || here.owner != cell->owner) {
      wrong[1] |= 1u << c;
      continue;
    }
    p->uses[index].owner = here.owner;
    for (int i = 0; i < index; i++) {
      if ((cell->uses >> i & 1) != 0 && (use.before >> i & 1) == 0 &&
          conflict(&p->uses[i], &here)) {
        wrong[0] |= 1u << c;
      }
    }
    cell->uses |= (use_set)1 << index;
  }
}

static use_set uses_so_far(const program *p) {
  return p->n_uses == MAX_USES ? ~(use_set)0 : ((use_set)1 << p->n_uses) - 1;
}

/* The order that CUDA gives by itself when something is done on a stream. */
static void model_act(program *p, int stream) {
  p->before[stream] |= p->host;
  if (stream < N_CREATED_FROM) {
    p->before[stream] |= p->before[1 - stream];
  }
}

/* Values that have been written have been seen. */
static void model_look(program *p) {
  for (int i = 0; i < N_WORDS; i++) {
    for (uint64_t value = 1; value <= *p->values[i].word; value++) {
      p->host |= p->values[i].before[value];
    }
  }
}

/* ---- Steps ---- */

static void choose_cells(program *p, int *first, int *n) {
  *first = (int)below(p, N_CELLS);
  *n = 1 + (int)below(p, (uint64_t)(N_CELLS - *first));
}

/* One owner for the whole use: that of its first cell, whoever owns each, or sometimes a wrong one.
 * A use for «whoever» is of cells with one owner, so that the use has one. */
static uint64_t choose_owner(program *p, int first, int *n) {
  const uint64_t dice = below(p, 12);
  if (dice == 0) {
    return 1 + below(p, N_OWNERS);
  }
  int same = 1;
  while (same < *n && p->cells[first + same].owner == p->cells[first].owner) {
    same++;
  }
  *n = dice < 10 || p->cells[first].owner == 0 ? same : *n;
  return dice < 6 ? 0 : p->cells[first].owner;
}

static void launch(program *p, int stream, int first, int n, uint64_t owner, bool is_write) {
  const tarn_sim_range range = {.address = p->base + (tarn_ptr)first * CELL,
                                .bytes = (uint64_t)n * CELL,
                                .owner = owner,
                                .is_write = is_write};
  /* Two ranges of one operation are one use. */
  const tarn_sim_range ranges[2] = {range, range};
  const tarn_sim_kernel kernel = {
      .size = sizeof(kernel), .ranges = ranges, .n_ranges = 1 + below(p, 2)};
  CHECK_OK(tarn_sim_launch(p->device, &kernel, p->streams[stream]));
}

static void check_said(const program *p, const uint32_t wrong[2]) {
  CHECK_EQ(p->said_order, wrong[0]);
  CHECK_EQ(p->said_freed, wrong[1]);
  CHECK_EQ(p->n_wrong_pairs, 0);
}

static void step_use(program *p, int stream) {
  int first, n;
  choose_cells(p, &first, &n);
  const uint64_t owner = choose_owner(p, first, &n);
  const bool is_write = below(p, 3) == 0;
  uint32_t wrong[2] = {0, 0};
  model_act(p, stream);
  const model_use use = {.owner = owner,
                         .stream_id = p->ids[stream],
                         .before = p->before[stream],
                         .is_write = is_write};
  p->before[stream] |= (use_set)1 << p->n_uses;
  model_judge(p, use, first, n, wrong);
  launch(p, stream, first, n, owner, is_write);
  check_said(p, wrong);
}

static void step_own(program *p) {
  int first, n;
  choose_cells(p, &first, &n);
  const bool is_freed = below(p, 5) == 0;
  const uint64_t owner = is_freed ? 0 : 1 + below(p, N_OWNERS);
  const tarn_ptr address = p->base + (tarn_ptr)first * CELL;
  if (is_freed) {
    CHECK_OK(tarn_sim_disown(p->device, address, (uint64_t)n * CELL));
  } else {
    CHECK_OK(tarn_sim_own(p->device, address, (uint64_t)n * CELL, owner));
  }
  for (int i = first; i < first + n; i++) {
    p->cells[i].owner = owner;
    p->cells[i].is_freed = is_freed;
  }
}

static void step_event(program *p, int stream) {
  const uint64_t event = below(p, N_EVENTS);
  const uint64_t dice = below(p, 8);
  if (dice < 4) {
    model_act(p, stream);
    p->recorded[event] = p->before[stream];
    CHECK_OK(tarni_port_event_record(p->port, p->events[event], p->streams[stream]));
  } else if (dice < 7) {
    model_act(p, stream);
    p->before[stream] |= p->recorded[event];
    CHECK_OK(tarni_port_event_wait(p->port, p->streams[stream], p->events[event]));
  } else if (below(p, 2) == 0) {
    CHECK_OK(tarni_port_event_sync(p->port, p->events[event]));
    p->host |= p->recorded[event];
  } else if (tarni_port_event_query(p->port, p->events[event]) == TARN_OK) {
    p->host |= p->recorded[event];
  }
}

/* Who asks about the legacy stream asks about the thread's, too. */
static void step_host(program *p, int stream) {
  const use_set seen = p->before[stream] | (stream == 0 ? p->before[1] : 0);
  tarn_ptr block;
  switch (below(p, 4)) {
  case 0:
    CHECK_OK(tarni_port_stream_sync(p->port, p->streams[stream]));
    p->host |= seen;
    break;
  case 1: /* waits for the whole device */
    if (below(p, 3) == 0) {
      CHECK_OK(tarni_port_plain_alloc(p->port, 1, &block));
      CHECK_OK(tarni_port_plain_free(p->port, block));
      p->host = uses_so_far(p);
    }
    break;
  default:
    if (tarni_port_stream_query(p->port, p->streams[stream]) == TARN_OK) {
      p->host |= seen;
    }
  }
}

static void make_stream(program *p, int stream) {
  CHECK_OK(tarni_port_stream_create(p->port, &p->streams[stream]));
  CHECK_OK(tarni_port_stream_id(p->port, p->streams[stream], &p->ids[stream]));
  p->before[stream] = 0;
}

/* The streams that write the words stay: the values of a word come in order. */
static void step_stream(program *p, int stream) {
  if (stream >= N_CREATED_FROM + N_WORDS && stream < N_STREAMS) {
    CHECK_OK(tarni_port_stream_destroy(p->port, p->streams[stream]));
    make_stream(p, stream);
  }
}

/* A word's values rise, all written by one stream, so a wait relies on the first that is enough. */
static void step_value(program *p, int stream) {
  const uint64_t index = below(p, N_WORDS);
  model_value *value = &p->values[index];
  const int writer = N_CREATED_FROM + (int)index;
  if (below(p, 2) == 0) {
    model_act(p, writer);
    value->before[++value->last] = p->before[writer];
    CHECK_OK(tarni_port_value_write(p->port, p->streams[writer], value->word, value->last));
  } else if (value->last != 0) {
    const uint64_t wanted = 1 + below(p, value->last);
    model_act(p, stream);
    p->before[stream] |= value->before[wanted];
    CHECK_OK(tarni_port_value_wait(p->port, p->streams[stream], value->word, wanted));
  }
}

/* ---- Graphs ---- */

static void capture_use(program *p, int stream, uint32_t after) {
  int first, n;
  choose_cells(p, &first, &n);
  const uint64_t owner = below(p, 3) == 0 ? 1 + below(p, N_OWNERS) : 0;
  n = owner == 0 ? 1 : n;
  model_node *node = &p->nodes[p->n_nodes++];
  *node = (model_node){
      .owner = owner, .first = first, .n = n, .is_write = below(p, 2) == 0, .after = after};
  launch(p, stream, first, n, owner, node->is_write);
}

/* Two branches, sometimes after a node of their own, and sometimes a last node after both. */
static void step_capture(program *p) {
  const int a = N_STREAMS - 2, b = N_STREAMS - 1;
  tarn_stream first = p->streams[a], second = p->streams[b];
  if (p->graph != NULL) {
    return;
  }
  CHECK_OK(tarni_port_capture_begin(p->port, first, TARNI_CAPTURE_RELAXED));
  const bool is_late = below(p, 2) == 0;
  if (is_late) {
    capture_use(p, a, 0);
  }
  CHECK_OK(tarni_port_event_record(p->port, p->events[0], first));
  CHECK_OK(tarni_port_event_wait(p->port, second, p->events[0]));
  capture_use(p, b, is_late ? 1 : 0);
  capture_use(p, a, is_late ? 1 : 0);
  CHECK_OK(tarni_port_event_record(p->port, p->events[0], second));
  CHECK_OK(tarni_port_event_wait(p->port, first, p->events[0]));
  if (below(p, 2) == 0) {
    capture_use(p, a, (1u << p->n_nodes) - 1);
  }
  CHECK_OK(tarni_port_capture_end(p->port, first, &p->graph));
  CHECK_OK(tarni_port_graph_instantiate(p->port, p->graph, &p->exec));
  CHECK_OK(tarni_port_event_destroy(p->port, p->events[0])); /* of no use outside the capture */
  CHECK_OK(tarni_port_event_create(p->port, &p->events[0]));
  p->recorded[0] = 0;
}

static void step_launch(program *p, int stream) {
  uint32_t wrong[2] = {0, 0};
  if (p->graph == NULL || p->n_uses + p->n_nodes > MAX_USES) {
    return;
  }
  const int from = p->n_uses;
  model_act(p, stream);
  const use_set before = p->before[stream] | p->launched;
  for (int i = 0; i < p->n_nodes; i++) {
    const model_node *node = &p->nodes[i];
    const model_use use = {.owner = node->owner,
                           .stream_id = p->ids[stream],
                           .before = before | (use_set)node->after << from,
                           .is_write = node->is_write};
    p->before[stream] |= (use_set)1 << p->n_uses;
    model_judge(p, use, node->first, node->n, wrong);
  }
  p->before[stream] |= before;
  p->launched = p->before[stream];
  CHECK_OK(tarni_port_graph_launch(p->port, p->exec, p->streams[stream]));
  check_said(p, wrong);
}

/* ---- Programs ---- */

static void step(program *p) {
  const int stream = (int)below(p, N_STREAMS);
  const uint64_t dice = below(p, 100);
  model_look(p);
  p->said_order = p->said_freed = 0;
  p->n_wrong_pairs = 0;
  p->n_before_call = p->n_uses;
  if (dice < 40 && p->n_uses < MAX_USES) {
    step_use(p, stream);
  } else if (dice < 52) {
    step_own(p);
  } else if (dice < 80) {
    step_event(p, stream);
  } else if (dice < 87) {
    step_host(p, stream);
  } else if (dice < 90) {
    step_stream(p, stream);
  } else if (dice < 95) {
    step_value(p, stream);
  } else if (dice < 96) {
    step_capture(p);
  } else {
    step_launch(p, stream);
  }
}

static bool program_open(program *p, const char *name) {
  if (!CHECK_OK(tarn_device_open(name, &p->device))) {
    return false;
  }
  p->port = (tarni_port *)p->device;
  p->streams[0] = NULL;
  p->streams[1] = TARNI_STREAM_PER_THREAD;
  for (int i = 0; i < N_STREAMS; i++) {
    if (i >= N_CREATED_FROM) {
      make_stream(p, i);
    }
    CHECK_OK(tarni_port_stream_id(p->port, p->streams[i], &p->ids[i]));
  }
  for (int i = 0; i < N_EVENTS; i++) {
    CHECK_OK(tarni_port_event_create(p->port, &p->events[i]));
  }
  CHECK_OK(tarn_sim_set_on_finding(p->device, on_finding, p));
  CHECK_OK(tarni_port_host_alloc(p->port, 4096, 0, &p->pinned));
  for (int i = 0; i < N_WORDS; i++) {
    p->values[i].word = (uint64_t *)p->pinned + i;
  }
  return CHECK_OK(tarni_port_reserve(p->port, GRANULE, 0, &p->base)) &&
         CHECK_OK(tarni_port_create(p->port, GRANULE, &p->chunk)) &&
         CHECK_OK(tarni_port_map(p->port, p->base, GRANULE, p->chunk)) &&
         CHECK_OK(tarni_port_access(p->port, p->base, GRANULE));
}

/* Unmapping is a mistake exactly if the host has not seen every use complete. */
static void check_unmap(program *p) {
  model_look(p);
  CHECK_OK(tarni_port_unmap(p->port, p->base, GRANULE));
  CHECK_EQ(p->said_unmap, (uses_so_far(p) & ~p->host) != 0);
}

static void program_close(program *p) {
  if (p->graph != NULL) {
    CHECK_OK(tarni_port_graph_destroy(p->port, p->graph, p->exec));
  }
  check_unmap(p);
  CHECK(!p->said_other);
  tarn_device_close(p->device); /* leaks are found here, and that is right */
}

static uint64_t n_found, n_uses;

static bool run_program(uint64_t seed, const char *name) {
  static program p;
  p = (program){.rng.state = seed};
  if (!program_open(&p, name)) {
    return false;
  }
  for (int i = 0; i < N_STEPS && !test_case_failed(); i++) {
    step(&p);
  }
  program_close(&p);
  n_found += p.n_found;
  n_uses += (uint64_t)p.n_uses;
  if (test_case_failed()) {
    test_note("program %llu on %s", (unsigned long long)seed, name);
  }
  return !test_case_failed();
}

static void random_programs(void) {
  static const char *const devices[] = {"sim:1G,seed=1", "sim:1G,order=lazy", "sim:1G,seed=2",
                                        "sim:1G,order=eager", "sim:1G,seed=3"};
  const char *asked = getenv("TARN_TEST_PROGRAMS");
  const uint64_t n = asked != NULL ? strtoull(asked, NULL, 10) : N_PROGRAMS;
  for (uint64_t seed = 1; seed <= n; seed++) {
    if (!run_program(seed, devices[seed % 5])) {
      return;
    }
  }
  test_note("%llu programs, %llu uses, %llu findings", (unsigned long long)n,
            (unsigned long long)n_uses, (unsigned long long)n_found);
  CHECK(n_uses > n && n_found > n / 4 && "the programs are worth judging");
}

static const test_case cases[] = {{"random programs", random_programs}};

TEST_MAIN(cases)
