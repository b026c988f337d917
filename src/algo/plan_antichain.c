/* SPDX-License-Identifier: MIT
 *
 * The bound for partial orders: buffers of which no two are ordered may all live at once, so the
 * heaviest such set (antichain) needs its sum. By the weighted form of Dilworth's theorem that sum
 * is the total weight less the largest flow through this network: a source feeds the left node of
 * each buffer with its bytes, the right node of each drains as many, every step of the order leads
 * from left to right, and a right node passes on to its own left node for free. Dinic's method.
 * Pure, no locks. */
#include <stdlib.h>
#include <string.h>

#include "algo/plan_scene.h"

typedef struct flow_edge {
  uint32_t to;
  uint32_t next; /* of the same node; FLOW_END at the end */
  uint64_t room;
} flow_edge;

#define FLOW_END UINT32_MAX

typedef struct flow_net {
  uint32_t n_nodes;
  uint32_t source;
  uint32_t sink;
  flow_edge *edges; /* an edge and its reverse are neighbours: e and e ^ 1 */
  uint32_t n_edges;
  uint32_t *first;
  uint32_t *next; /* where the walk of the node goes on */
  uint32_t *level;
  uint32_t *queue;
  uint32_t *path;
} flow_net;

static void add_edge(flow_net *net, uint32_t from, uint32_t to, uint64_t room) {
  const uint32_t e = net->n_edges;
  net->edges[e] = (flow_edge){to, net->first[from], room};
  net->edges[e + 1] = (flow_edge){from, net->first[to], 0};
  net->first[from] = e;
  net->first[to] = e + 1;
  net->n_edges += 2;
}

/* Breadth first from the source; false when the sink is out of reach. */
static bool find_levels(flow_net *net) {
  uint32_t n_queued = 0;
  memset(net->level, 0xff, net->n_nodes * sizeof(*net->level));
  net->level[net->source] = 0;
  net->queue[n_queued++] = net->source;
  for (uint32_t k = 0; k < n_queued; k++) {
    const uint32_t node = net->queue[k];
    for (uint32_t e = net->first[node]; e != FLOW_END; e = net->edges[e].next) {
      const uint32_t to = net->edges[e].to;
      if (net->edges[e].room != 0 && net->level[to] == UINT32_MAX) {
        net->level[to] = net->level[node] + 1;
        net->queue[n_queued++] = to;
      }
    }
  }
  return net->level[net->sink] != UINT32_MAX;
}

/* Pushes what fits along the path of `length` edges. */
static uint64_t push_path(flow_net *net, uint32_t length) {
  uint64_t amount = UINT64_MAX;
  for (uint32_t k = 0; k < length; k++) {
    amount = tarni_min(amount, net->edges[net->path[k]].room);
  }
  for (uint32_t k = 0; k < length; k++) {
    net->edges[net->path[k]].room -= amount;
    net->edges[net->path[k] ^ 1].room += amount;
  }
  return amount;
}

/* All paths of the present levels; depth first, without recursion. */
static uint64_t push_levels(flow_net *net, tarni_run *run) {
  uint64_t total = 0;
  uint32_t length = 0;
  uint32_t node = net->source;
  memcpy(net->next, net->first, net->n_nodes * sizeof(*net->next));
  while (!tarni_run_step(run, 1)) {
    if (node == net->sink) {
      total += push_path(net, length);
      node = net->source;
      length = 0;
      continue;
    }
    uint32_t e = net->next[node];
    while (e != FLOW_END &&
           (net->edges[e].room == 0 || net->level[net->edges[e].to] != net->level[node] + 1)) {
      e = net->edges[e].next;
    }
    net->next[node] = e;
    if (e != FLOW_END) {
      net->path[length++] = e;
      node = net->edges[e].to;
    } else if (length == 0) {
      break;
    } else { /* a dead end: no path goes through this node */
      net->level[node] = UINT32_MAX;
      node = net->edges[net->path[--length] ^ 1].to;
    }
  }
  return total;
}

static void net_destroy(flow_net *net) {
  free(net->edges);
  free(net->first);
  free(net->next);
  free(net->level);
  free(net->queue);
  free(net->path);
}

static bool net_create(const tarni_plan_problem *problem, flow_net *net) {
  const uint32_t n = problem->count;
  const size_t n_steps = problem->order->starts[n];
  *net = (flow_net){.n_nodes = 2 * n + 2, .source = 2 * n, .sink = 2 * n + 1};
  net->edges = calloc(2 * (n_steps + 3 * (size_t)n) + 2, sizeof(*net->edges));
  net->first = calloc(net->n_nodes, sizeof(*net->first));
  net->next = calloc(net->n_nodes, sizeof(*net->next));
  net->level = calloc(net->n_nodes, sizeof(*net->level));
  net->queue = calloc(net->n_nodes, sizeof(*net->queue));
  net->path = calloc(net->n_nodes, sizeof(*net->path));
  if (net->edges == NULL || net->first == NULL || net->next == NULL || net->level == NULL ||
      net->queue == NULL || net->path == NULL) {
    net_destroy(net);
    return false;
  }
  memset(net->first, 0xff, net->n_nodes * sizeof(*net->first));
  for (uint32_t i = 0; i < n; i++) { /* left is i, right is n + i */
    add_edge(net, net->source, i, problem->buffers[i].bytes);
    add_edge(net, n + i, net->sink, problem->buffers[i].bytes);
    add_edge(net, n + i, i, UINT64_MAX / 4);
    for (uint32_t k = problem->order->starts[i]; k < problem->order->starts[i + 1]; k++) {
      add_edge(net, problem->order->predecessors[k], n + i, UINT64_MAX / 4);
    }
  }
  return true;
}

tarn_status tarni_antichain_bound(const tarni_plan_problem *problem, tarni_run *run,
                                  uint64_t *bound) {
  flow_net net;
  uint64_t total = 0;
  uint64_t flow = 0;
  uint64_t largest = 0;
  *bound = 0;
  for (uint32_t i = 0; i < problem->count; i++) {
    total += problem->buffers[i].bytes; /* the caller has checked the sum */
    largest = tarni_max(largest, problem->buffers[i].bytes);
  }
  if (!net_create(problem, &net)) {
    return tarni_fail(TARN_HOST_MEMORY, "plan", NULL, "Free host memory.",
                      "no memory for the bound of %u ordered buffers", problem->count);
  }
  while (!run->is_stopped && find_levels(&net)) {
    flow += push_levels(&net, run);
  }
  /* A flow that is not finished proves nothing. */
  *bound = run->is_stopped ? largest : total - flow;
  net_destroy(&net);
  return TARN_OK;
}
