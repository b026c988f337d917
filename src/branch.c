/* SPDX-License-Identifier: MIT
 *
 * Where a capturing stream is in its graph. The driver tells which nodes the stream's next one will
 * follow; what is new since the last look is learned by going back from there to what is known. So
 * every node is looked at once, however often is asked. What cannot be learned is taken to be
 * unordered, which costs memory and nothing else. */
#include <stdlib.h>

#include "arena.h"

enum { BRANCH_EDGES = 64 };

static bool edges_room(tarn_capture *capture, uint32_t n) {
  if (n <= capture->edges_capacity) {
    return true;
  }
  tarni_edge *edges = realloc(capture->edges, n * sizeof(*edges));
  if (edges == NULL) {
    return false;
  }
  capture->edges = edges;
  capture->edges_capacity = n;
  return true;
}

static bool path_push(tarn_capture *capture, uint32_t *n, uint64_t node) {
  if (*n == capture->path_capacity) {
    const uint32_t capacity = capture->path_capacity * 2 + 64;
    uint64_t *path = realloc(capture->path, capacity * sizeof(*path));
    if (path == NULL) {
      return false;
    }
    capture->path = path;
    capture->path_capacity = capacity;
  }
  capture->path[(*n)++] = node;
  return true;
}

/* The same layout on both sides of the port: what one calls an edge is one to the other. */
_Static_assert(sizeof(tarni_edge) == sizeof(tarni_reach_edge), "one layout");
_Static_assert(offsetof(tarni_edge, node) == offsetof(tarni_reach_edge, node), "node");
_Static_assert(offsetof(tarni_edge, is_full) == offsetof(tarni_reach_edge, is_full), "is_full");

static const tarni_reach_edge *edges_of(const tarn_capture *capture) {
  return (const tarni_reach_edge *)(const void *)capture->edges;
}

/* What a node follows, into the scratch. */
static bool before_get(tarn_capture *capture, uint64_t node, uint32_t *count) {
  tarni_port *port = capture->heap->port;
  if (!edges_room(capture, BRANCH_EDGES) ||
      tarni_port_node_before(port, node, capture->edges, capture->edges_capacity, count) !=
          TARN_OK) {
    return false;
  }
  return *count <= capture->edges_capacity ||
         (edges_room(capture, *count) &&
          tarni_port_node_before(port, node, capture->edges, capture->edges_capacity, count) ==
              TARN_OK &&
          *count <= capture->edges_capacity);
}

/* Learns a node and all that comes before it. */
static bool node_learn(tarn_capture *capture, uint64_t node) {
  tarni_reach *reach = &capture->story.reach;
  uint32_t n_path = 0, count = 0;
  bool is_good = tarni_reach_knows(reach, node) || path_push(capture, &n_path, node);
  while (is_good && n_path != 0) {
    const uint64_t at = capture->path[n_path - 1];
    const uint32_t depth = n_path;
    if (tarni_reach_knows(reach, at)) { /* two ways led to it */
      n_path--;
      continue;
    }
    is_good = before_get(capture, at, &count);
    for (uint32_t i = 0; i < count && is_good; i++) {
      if (!tarni_reach_knows(reach, capture->edges[i].node)) {
        is_good = path_push(capture, &n_path, capture->edges[i].node);
      }
    }
    if (is_good && n_path == depth) {
      is_good = tarni_reach_add(reach, at, edges_of(capture), count);
      n_path--;
    }
  }
  return is_good;
}

static bool nodes_get(tarn_capture *capture, tarn_stream stream, uint32_t *count) {
  tarni_port *port = capture->heap->port;
  if (!edges_room(capture, BRANCH_EDGES) ||
      tarni_port_capture_nodes(port, stream, capture->edges, capture->edges_capacity, count) !=
          TARN_OK) {
    return false;
  }
  return *count <= capture->edges_capacity ||
         (edges_room(capture, *count) &&
          tarni_port_capture_nodes(port, stream, capture->edges, capture->edges_capacity, count) ==
              TARN_OK &&
          *count <= capture->edges_capacity);
}

/* Learns where the stream is; afterwards the scratch has the nodes that its next one follows. */
static bool branch_look(tarn_capture *capture, tarn_stream stream, uint32_t *count) {
  *count = 0;
  if (!nodes_get(capture, stream, count)) {
    return false;
  }
  for (uint32_t i = 0; i < *count; i++) {
    if (tarni_reach_knows(&capture->story.reach, capture->edges[i].node)) {
      continue;
    }
    /* Learning uses the scratch, so the place is asked for anew. */
    if (!node_learn(capture, capture->edges[i].node) || !nodes_get(capture, stream, count)) {
      return false;
    }
  }
  return true;
}

uint32_t tarni_branch_done_held(tarn_capture *capture, tarn_stream stream) {
  uint32_t count;
  return branch_look(capture, stream, &count)
             ? tarni_reach_done(&capture->story.reach, edges_of(capture), count)
             : TARNI_REACH_NEVER;
}

uint32_t tarni_branch_past_held(tarn_capture *capture, tarn_stream stream) {
  uint32_t count;
  return branch_look(capture, stream, &count)
             ? tarni_reach_past(&capture->story.reach, edges_of(capture), count)
             : TARNI_REACH_NEVER;
}
