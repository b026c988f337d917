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

void tarni_sim_graph_drop(sim_graph *graph) {
  if (--graph->references != 0) {
    return;
  }
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    tarni_sim_work_free(&graph->nodes[i].work);
    free(graph->nodes[i].after);
  }
  free(graph->nodes);
  free(graph);
}

void tarni_sim_exec_drop(sim_exec *exec) {
  if (--exec->references != 0) {
    return;
  }
  for (uint32_t i = 0; i < exec->n_chains; i++) {
    tarni_sim_slot_give(exec->chain_slots[i], exec->chain_epochs[i]);
  }
  tarni_sim_record_drop(exec->last_launch);
  tarni_sim_graph_drop(exec->graph);
  free(exec->chain_slots);
  free(exec->chain_epochs);
  free(exec->followers);
  free(exec->followers_from);
  free(exec);
}

/* ---- Instantiating ---- */

/* Gives each node the chain of a node before it that nobody has continued yet, else a new one. */
static uint32_t graph_cut_chains(sim_graph *graph, uint32_t *chain_end) {
  uint32_t n_chains = 0;
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    sim_node *node = &graph->nodes[i];
    node->chain = UINT32_MAX;
    for (uint32_t j = 0; node->chain == UINT32_MAX && j < node->n_after; j++) {
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
    exec->chain_slots[i] = tarni_sim_slot_take(&exec->chain_epochs[i]);
    if (exec->chain_slots[i] == UINT32_MAX) {
      return false;
    }
    exec->n_chains++;
  }
  return true;
}

static sim_exec *exec_make(sim_graph *graph) {
  uint64_t n_edges = 0;
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    n_edges += graph->nodes[i].n_after;
  }
  const size_t n = graph->n_nodes + 2;
  sim_exec *exec = calloc(1, sizeof(*exec));
  if (exec == NULL) {
    return NULL;
  }
  exec->references = 1;
  exec->graph = graph;
  graph->references++;
  exec->chain_slots = calloc(n, sizeof(*exec->chain_slots));
  exec->chain_epochs = calloc(n, sizeof(*exec->chain_epochs));
  exec->followers = calloc(n_edges + 1, sizeof(*exec->followers));
  exec->followers_from = calloc(n, sizeof(*exec->followers_from));
  if (exec->chain_slots == NULL || exec->chain_epochs == NULL || exec->followers == NULL ||
      exec->followers_from == NULL ||
      !exec_take_slots(exec, graph_cut_chains(graph, exec->chain_slots))) {
    tarni_sim_exec_drop(exec);
    return NULL;
  }
  exec_list_followers(exec);
  return exec;
}

tarn_status tarni_sim_graph_instantiate(tarni_port *port, tarni_graph graph,
                                        tarni_graph_exec *out) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_GRAPH_INSTANTIATE, 0));
  sim_exec *exec = exec_make(graph);
  if (exec == NULL) {
    return tarni_sim_end(device, tarni_sim_no_host_memory(device, "cuGraphInstantiate"));
  }
  device->n_execs++;
  *out = exec;
  return tarni_sim_end(device, TARN_OK);
}

tarn_status tarni_sim_graph_destroy(tarni_port *port, tarni_graph graph, tarni_graph_exec exec) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_GRAPH_DESTROY, 0));
  if (exec != NULL) {
    device->n_execs--;
    tarni_sim_exec_drop(exec);
  }
  if (graph != NULL) {
    device->n_graphs--;
    tarni_sim_graph_drop(graph);
  }
  return tarni_sim_end(device, TARN_OK);
}

/* ---- Launching ---- */

/* Judges every node by the order inside the graph, and puts all of them into the stream's clock. */
static tarn_status launch_judge(sim_stream *stream, sim_exec *exec) {
  sim_device *device = stream->device;
  const sim_graph *graph = exec->graph;
  sim_clock *clocks = calloc(graph->n_nodes + 1, sizeof(*clocks));
  bool is_good = clocks != NULL;
  uint64_t total_ns = 0;
  for (uint32_t i = 0; is_good && i < graph->n_nodes; i++) {
    const sim_node *node = &graph->nodes[i];
    is_good = tarni_sim_clock_join(&clocks[i], &stream->clock);
    for (uint32_t j = 0; is_good && j < node->n_after; j++) {
      is_good = tarni_sim_clock_join(&clocks[i], &clocks[node->after[j]]);
    }
    const uint32_t slot = exec->chain_slots[node->chain];
    const uint64_t epoch = ++exec->chain_epochs[node->chain];
    is_good = is_good && tarni_sim_clock_raise(&clocks[i], slot, epoch);
    const sim_actor actor = {.clock = &clocks[i],
                             .epoch = epoch,
                             .stream_id = stream->id,
                             .slot = slot,
                             .operation = node->work.kind};
    if (is_good && !tarni_sim_oracle_work(device, &actor, &node->work)) {
      device->sticky_code = SIM_CUDA_ILLEGAL_ADDRESS;
    }
    total_ns += node->work.nanoseconds;
  }
  for (uint32_t i = 0; clocks != NULL && i < graph->n_nodes; i++) {
    is_good = is_good && tarni_sim_clock_join(&stream->clock, &clocks[i]);
    tarni_sim_clock_free(&clocks[i]);
  }
  free(clocks);
  stream->tail_ns = tarni_max(stream->tail_ns, device->now_ns) + total_ns;
  return is_good ? TARN_OK : tarni_sim_no_host_memory(device, "cuGraphLaunch");
}

static void launch_arm(sim_operation *operation, sim_exec *exec) {
  const sim_graph *graph = exec->graph;
  operation->ready = operation->n_open + graph->n_nodes;
  operation->n_left = graph->n_nodes;
  for (uint32_t i = 0; i < graph->n_nodes; i++) {
    operation->n_open[i] = graph->nodes[i].n_after;
    if (operation->n_open[i] == 0) {
      operation->ready[operation->n_ready++] = i;
    }
  }
  operation->exec = exec;
  exec->references++;
}

static tarn_status launch(sim_stream *stream, sim_exec *exec) {
  sim_device *device = stream->device;
  if (stream->capture != NULL) {
    return tarni_sim_fail_code(device, SIM_CUDA_NOT_SUPPORTED, "cuGraphLaunch", 0);
  }
  TARN_TRY(tarni_sim_stream_prepare(stream));
  if (exec->last_launch != NULL) {
    TARN_TRY(tarni_sim_wait_on(stream, exec->last_launch));
  }
  sim_operation *operation = tarni_sim_operation_take(SIM_OP_GRAPH);
  sim_record *record = tarni_sim_record_take();
  uint32_t *open = calloc(2 * (size_t)exec->graph->n_nodes + 1, sizeof(*open));
  if (operation == NULL || record == NULL || open == NULL || !tarni_sim_stream_advance(stream) ||
      launch_judge(stream, exec) != TARN_OK ||
      !tarni_sim_clock_join(&record->clock, &stream->clock)) {
    free(open);
    tarni_sim_record_drop(record);
    tarni_sim_operation_give(operation);
    return tarni_sim_no_host_memory(device, "cuGraphLaunch");
  }
  operation->n_open = open;
  launch_arm(operation, exec);
  record->end_ns = stream->tail_ns;
  record->references++;
  operation->record = record;
  tarni_sim_record_drop(exec->last_launch);
  exec->last_launch = record;
  tarni_sim_stream_push(stream, operation);
  return TARN_OK;
}

tarn_status tarni_sim_graph_launch(tarni_port *port, tarni_graph_exec exec, tarn_stream handle) {
  sim_device *device = (sim_device *)port;
  TARN_TRY(tarni_sim_begin(device, TARN_CALL_GRAPH_LAUNCH, 0));
  sim_stream *stream;
  tarn_status status = tarni_sim_stream_get(device, handle, "cuGraphLaunch", &stream);
  if (status == TARN_OK) {
    status = launch(stream, exec);
  }
  return tarni_sim_end(device, status);
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
    operation->n_left--;
    for (uint32_t j = exec->followers_from[node]; j < exec->followers_from[node + 1]; j++) {
      const uint32_t follower = exec->followers[j];
      if (--operation->n_open[follower] == 0) {
        operation->ready[operation->n_ready++] = follower;
      }
    }
    return true;
  }
  return false;
}
