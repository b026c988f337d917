/* SPDX-License-Identifier: MIT
 *
 * Graphs of the simulated GPU. An executable graph is cut into chains, each a slot of the vector
 * clocks, so that branches of a launch are ordered only as the graph orders them. A launch is one
 * operation of its stream whose nodes run one by one, in any order that the graph allows; launches
 * of one executable graph follow each other. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "port/sim/sim.h"

/* ---- Handles ---- */

sim_graph *tarni_sim_graph_make(sim_device *device) {
  sim_graph *graph = device->graphs;
  while (graph != NULL && graph->references != 0) {
    graph = graph->next;
  }
  if (graph == NULL) {
    graph = tarni_sim_store_zeroed(1, sizeof(*graph));
    if (graph == NULL) {
      return NULL;
    }
    graph->next = device->graphs;
    device->graphs = graph;
  }
  *graph = (sim_graph){.references = 1, .device = device, .next = graph->next};
  return graph;
}

void tarni_sim_graph_drop(sim_graph *graph) {
  if (--graph->references != 0) {
    return;
  }
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    tarni_sim_work_free(&graph->nodes[i].work);
    free(graph->nodes[i].after);
  }
  free(graph->nodes);
  graph->nodes = NULL;
  graph->n_nodes = 0;
}

static sim_exec *exec_new(sim_device *device) {
  sim_exec *exec = device->execs;
  while (exec != NULL && exec->references != 0) {
    exec = exec->next;
  }
  if (exec == NULL) {
    exec = tarni_sim_store_zeroed(1, sizeof(*exec));
    if (exec == NULL) {
      return NULL;
    }
    exec->next = device->execs;
    device->execs = exec;
  }
  *exec = (sim_exec){.references = 1, .device = device, .next = exec->next};
  return exec;
}

void tarni_sim_exec_drop(sim_exec *exec) {
  if (--exec->references != 0) {
    return;
  }
  for (uint32_t i = 0; i < exec->n_chains; i++) {
    tarni_sim_slot_give(exec->chain_slots[i], exec->chain_epochs[i]);
  }
  exec->n_chains = 0;
  tarni_sim_record_drop(exec->last_launch);
  exec->last_launch = NULL;
  tarni_sim_graph_drop(exec->graph);
  free(exec->chain_slots);
  free(exec->chain_epochs);
  free(exec->followers);
  free(exec->followers_from);
  exec->chain_slots = exec->followers = exec->followers_from = NULL;
  exec->chain_epochs = NULL;
}

static void find_leaked(sim_device *device, uint64_t n, const char *what) {
  if (n != 0 && device->sticky_code == 0) {
    tarn_sim_finding finding = {.kind = TARN_SIM_LEAK};
    tarni_sim_oracle_find(device, &finding, "%llu %s were never destroyed", (unsigned long long)n,
                          what);
  }
}

void tarni_sim_graphs_close(sim_device *device) {
  uint64_t n_execs = 0, n_graphs = 0;
  while (device->execs != NULL) {
    sim_exec *exec = device->execs;
    device->execs = exec->next;
    if (exec->is_live == SIM_EXEC_LIVE) {
      n_execs++;
      tarni_sim_exec_drop(exec);
    }
    free(exec);
  }
  while (device->graphs != NULL) {
    sim_graph *graph = device->graphs;
    device->graphs = graph->next;
    if (graph->is_live == SIM_GRAPH_LIVE) {
      n_graphs++;
      tarni_sim_graph_drop(graph);
    }
    free(graph);
  }
  find_leaked(device, n_graphs, "graphs");
  find_leaked(device, n_execs, "executable graphs");
}

/* ---- Instantiating ---- */

/* Gives each node the chain of a node before it that nobody has continued yet, else a new one. */
static uint32_t graph_cut_chains(sim_graph *graph, uint32_t *chain_end) {
  uint32_t n_chains = 0;
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    sim_node *node = &graph->nodes[i];
    node->chain = UINT32_MAX;
    for (uint32_t j = 0; node->chain == UINT32_MAX && j < node->n_after && !node->is_early; j++) {
      const uint32_t chain = graph->nodes[node->after[j]].chain;
      if (chain_end[chain] == node->after[j]) {
        node->chain = chain;
      }
    }
    if (node->chain == UINT32_MAX) {
      node->chain = n_chains++;
    }
    chain_end[node->chain] = i;
  }
  return n_chains;
}

static void exec_list_followers(sim_exec *exec) {
  const sim_graph *graph = exec->graph;
  uint32_t *from = exec->followers_from; /* zeroed, n_nodes + 2 long */
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    for (uint32_t j = 0; j < graph->nodes[i].n_after; j++) {
      from[graph->nodes[i].after[j] + 2]++;
    }
  }
  for (uint32_t i = 2; i < graph->n_nodes + 2; i++) {
    from[i] += from[i - 1];
  }
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    for (uint32_t j = 0; j < graph->nodes[i].n_after; j++) {
      exec->followers[from[graph->nodes[i].after[j] + 1]++] = i;
    }
  }
}

static bool exec_take_slots(sim_exec *exec, uint32_t n_chains) {
  for (uint32_t i = 0; i < n_chains; i++) {
    if (!tarni_sim_slot_take(&exec->chain_slots[i], &exec->chain_epochs[i])) {
      return false;
    }
    exec->n_chains++;
  }
  return true;
}

static bool exec_fill(sim_exec *exec, sim_graph *graph) {
  uint64_t n_edges = 0;
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    n_edges += graph->nodes[i].n_after;
    exec->writes_values = exec->writes_values || graph->nodes[i].work.kind == SIM_OP_VALUE_WRITE;
  }
  const size_t n = (size_t)graph->n_nodes + 2;
  exec->chain_slots = tarni_sim_store_zeroed(n, sizeof(*exec->chain_slots));
  exec->chain_epochs = tarni_sim_store_zeroed(n, sizeof(*exec->chain_epochs));
  exec->followers = tarni_sim_store_zeroed(n_edges + 1, sizeof(*exec->followers));
  exec->followers_from = tarni_sim_store_zeroed(n, sizeof(*exec->followers_from));
  return exec->chain_slots != NULL && exec->chain_epochs != NULL && exec->followers != NULL &&
         exec->followers_from != NULL &&
         exec_take_slots(exec, graph_cut_chains(graph, exec->chain_slots));
}

static sim_exec *exec_make(sim_graph *graph) {
  sim_exec *exec = exec_new(graph->device);
  if (exec == NULL) {
    return NULL;
  }
  exec->graph = graph;
  graph->references++;
  if (!exec_fill(exec, graph)) {
    tarni_sim_exec_drop(exec);
    return NULL;
  }
  exec_list_followers(exec);
  exec->is_live = SIM_EXEC_LIVE;
  return exec;
}

static tarn_status graph_unknown(sim_device *device, const char *entry, const void *handle) {
  return tarni_sim_misuse(device, SIM_CUDA_INVALID_VALUE, entry,
                          "a graph was used that does not exist or is another device's",
                          (uintptr_t)handle);
}

static bool graph_is_live(const sim_device *device, const sim_graph *graph) {
  return graph->is_live == SIM_GRAPH_LIVE && graph->device == device;
}

static bool exec_is_live(const sim_device *device, const sim_exec *exec) {
  return exec->is_live == SIM_EXEC_LIVE && exec->device == device;
}

tarn_status tarni_sim_graph_instantiate(tarni_port *port, tarni_graph graph,
                                        tarni_graph_exec *out) {
  const char *entry = "cuGraphInstantiate";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_GRAPH_INSTANTIATE, 0));
  tarn_status status = tarni_sim_capture_allows(device, entry);
  if (status == TARN_OK && !graph_is_live(device, graph)) {
    status = graph_unknown(device, entry, graph);
  }
  if (status == TARN_OK) {
    sim_exec *exec = exec_make(graph);
    *out = exec;
    status = exec != NULL ? TARN_OK : tarni_sim_no_host_memory(device, entry);
  }
  return tarni_sim_end(device, status);
}

tarn_status tarni_sim_graph_destroy(tarni_port *port, tarni_graph graph_handle,
                                    tarni_graph_exec exec_handle) {
  const char *entry = "cuGraphExecDestroy";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_GRAPH_DESTROY, 0));
  sim_graph *graph = graph_handle;
  sim_exec *exec = exec_handle;
  if ((graph != NULL && !graph_is_live(device, graph)) ||
      (exec != NULL && !exec_is_live(device, exec))) {
    return tarni_sim_end(device, graph_unknown(device, entry, exec != NULL ? exec_handle : graph));
  }
  if (exec != NULL) {
    exec->is_live = 0;
    tarni_sim_exec_drop(exec);
  }
  if (graph != NULL) {
    graph->is_live = 0;
    tarni_sim_graph_drop(graph);
  }
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Launching ---- */

/* A launch while it is put together: what it needs is made first, so that what follows cannot
 * fail. */
typedef struct graph_launch {
  sim_stream *stream;
  sim_exec *exec;
  sim_operation *operation;
  sim_clock *clocks; /* for each node what is ordered before it, and itself */
  bool *is_mapped;   /* for each node */
} graph_launch;

static bool launch_make(graph_launch *launch) {
  const uint32_t n = launch->exec->graph->n_nodes;
  sim_operation *operation = tarni_sim_operation_take(SIM_OP_GRAPH);
  launch->operation = operation;
  launch->clocks = tarni_sim_store_zeroed((size_t)n + 1, sizeof(*launch->clocks));
  launch->is_mapped = tarni_sim_store_zeroed((size_t)n + 1, sizeof(*launch->is_mapped));
  if (operation == NULL || launch->clocks == NULL || launch->is_mapped == NULL) {
    return false;
  }
  operation->exec = launch->exec;
  launch->exec->references++;
  operation->n_open = tarni_sim_store_zeroed(2 * (size_t)n + 1, sizeof(*operation->n_open));
  operation->record = tarni_sim_record_take(tarni_sim_world.n_slots);
  if (launch->exec->writes_values) {
    operation->values = tarni_sim_store_zeroed((size_t)n + 1, sizeof(sim_record *));
  }
  bool is_good = operation->n_open != NULL && operation->record != NULL &&
                 (operation->values != NULL || !launch->exec->writes_values) &&
                 tarni_sim_clock_room(&launch->stream->clock, tarni_sim_world.n_slots);
  for (uint32_t i = 0; is_good && i < n; i++) {
    is_good = tarni_sim_clock_room(&launch->clocks[i], tarni_sim_world.n_slots);
    if (is_good && operation->values != NULL &&
        launch->exec->graph->nodes[i].work.kind == SIM_OP_VALUE_WRITE) {
      operation->values[i] = tarni_sim_record_take(tarni_sim_world.n_slots);
      is_good = operation->values[i] != NULL;
    }
  }
  return is_good;
}

static void launch_unmake(graph_launch *launch) {
  for (uint32_t i = 0; launch->clocks != NULL && i < launch->exec->graph->n_nodes; i++) {
    tarni_sim_clock_free(&launch->clocks[i]);
  }
  free(launch->clocks);
  free(launch->is_mapped);
}

static sim_actor launch_actor(const graph_launch *launch, uint32_t index) {
  const sim_node *node = &launch->exec->graph->nodes[index];
  return (sim_actor){.clock = &launch->clocks[index],
                     .epoch = launch->exec->chain_epochs[node->chain],
                     .stream_id = launch->stream->id,
                     .slot = launch->exec->chain_slots[node->chain],
                     .operation = node->work.kind,
                     .is_manager = node->work.is_managers};
}

/* Room for the uses of all nodes; those that are not mapped are found, and break the device when
 * they run. */
static bool launch_reserve(const graph_launch *launch) {
  sim_device *device = launch->stream->device;
  const sim_graph *graph = launch->exec->graph;
  const uint64_t stamp = tarni_sim_oracle_stamp();
  bool is_good = true;
  for (uint32_t i = 0; is_good && i < graph->n_nodes; i++) {
    const sim_actor actor = launch_actor(launch, i);
    launch->is_mapped[i] = tarni_sim_oracle_is_mapped(device, &actor, &graph->nodes[i].work);
    is_good = !launch->is_mapped[i] || tarni_sim_oracle_cut(device, &graph->nodes[i].work);
  }
  for (uint32_t i = 0; is_good && i < graph->n_nodes; i++) {
    is_good =
        !launch->is_mapped[i] || tarni_sim_oracle_reserve(device, &graph->nodes[i].work, stamp);
  }
  return is_good;
}

/* Judges every node by the order inside the graph, and puts all of them into the stream's clock. */
static void launch_judge(const graph_launch *launch) {
  sim_stream *stream = launch->stream;
  const sim_graph *graph = launch->exec->graph;
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    const sim_node *node = &graph->nodes[i];
    sim_clock *clock = &launch->clocks[i];
    (void)tarni_sim_clock_join(clock, &stream->clock);
    for (uint32_t j = 0; j < node->n_after && !node->is_early; j++) {
      (void)tarni_sim_clock_join(clock, &launch->clocks[node->after[j]]);
    }
    if (node->work.kind == SIM_OP_VALUE_WAIT && launch->is_mapped[i]) {
      tarni_sim_value_rely(clock, &node->work);
    }
    launch->exec->chain_epochs[node->chain]++;
    const sim_actor actor = launch_actor(launch, i);
    (void)tarni_sim_clock_raise(clock, actor.slot, actor.epoch);
    if (launch->is_mapped[i]) {
      tarni_sim_oracle_judge(stream->device, &actor, &node->work);
    }
    if (node->work.kind == SIM_OP_VALUE_WRITE) {
      (void)tarni_sim_clock_join(&launch->operation->values[i]->clock, clock);
      tarni_sim_value_expect(launch->operation->values[i], &node->work);
    }
  }
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    (void)tarni_sim_clock_join(&stream->clock, &launch->clocks[i]);
    if (launch->is_mapped[i]) {
      tarni_sim_oracle_merge(stream->device, &graph->nodes[i].work);
    }
  }
}

/* Puts the launch into the queue. */
static void launch_push(const graph_launch *launch) {
  sim_stream *stream = launch->stream;
  sim_operation *operation = launch->operation;
  const sim_graph *graph = launch->exec->graph;
  operation->ready = operation->n_open + graph->n_nodes;
  operation->n_left = graph->n_nodes;
  stream->tail_ns = tarni_max(stream->tail_ns, stream->device->now_ns);
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    stream->tail_ns = tarni_add_capped(stream->tail_ns, graph->nodes[i].work.nanoseconds);
    operation->n_open[i] = graph->nodes[i].n_after;
    if (operation->n_open[i] == 0) {
      operation->ready[operation->n_ready++] = i;
    }
  }
  sim_record *record = operation->record;
  (void)tarni_sim_clock_join(&record->clock, &stream->clock);
  record->end_ns = stream->tail_ns;
  record->references++;
  tarni_sim_record_drop(launch->exec->last_launch);
  launch->exec->last_launch = record;
  tarni_sim_stream_push(stream, operation);
}

static tarn_status launch_now(sim_stream *stream, sim_exec *exec) {
  TARN_TRY(tarni_sim_stream_prepare(stream));
  graph_launch launch = {.stream = stream, .exec = exec};
  const bool is_good = launch_make(&launch) && launch_reserve(&launch) &&
                       (exec->last_launch == NULL || tarni_sim_wait_on(stream, exec->last_launch));
  if (is_good) {
    tarni_sim_stream_advance(stream);
    launch_judge(&launch);
    launch_push(&launch);
  }
  launch_unmake(&launch);
  if (!is_good) {
    tarni_sim_operation_give(launch.operation);
    return tarni_sim_no_host_memory(stream->device, "cuGraphLaunch");
  }
  return TARN_OK;
}

tarn_status tarni_sim_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream on) {
  const char *entry = "cuGraphLaunch";
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_GRAPH_LAUNCH, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_act(device, on, entry, &stream);
  if (status == TARN_OK && !exec_is_live(device, exec)) {
    status = graph_unknown(device, entry, exec);
  }
  if (status == TARN_OK) {
    status = stream->capture != NULL
                 ? tarni_sim_capture_refuse(stream, SIM_CUDA_CAPTURE_UNSUPPORTED, entry)
                 : launch_now(stream, exec);
  }
  return tarni_sim_end(device, status);
}

static void node_done(sim_operation *operation, uint32_t node) {
  const sim_exec *exec = operation->exec;
  operation->n_left--;
  if (operation->values != NULL && operation->values[node] != NULL) {
    tarni_sim_value_written(operation->values[node]);
    tarni_sim_record_drop(operation->values[node]);
    operation->values[node] = NULL;
  }
  for (uint32_t j = exec->followers_from[node]; j < exec->followers_from[node + 1]; j++) {
    const uint32_t follower = exec->followers[j];
    if (--operation->n_open[follower] == 0) {
      operation->ready[operation->n_ready++] = follower;
    }
  }
}

bool tarni_sim_graph_step(sim_device *device, sim_operation *operation) {
  const sim_exec *exec = operation->exec;
  const uint32_t n = operation->n_ready;
  const uint32_t start = n > 1 ? (uint32_t)tarni_rng_below(&device->rng, n) : 0;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t at = (start + i) % n;
    const uint32_t node = operation->ready[at];
    if (!tarni_sim_work_run(device, &exec->graph->nodes[node].work)) {
      continue;
    }
    operation->ready[at] = operation->ready[--operation->n_ready];
    node_done(operation, node);
    return true;
  }
  return false;
}
