/* SPDX-License-Identifier: MIT
 *
 * Random programs: captures of which nobody tells. The program begins, ends and launches them by
 * the driver; a heap that asks about captures gives memory for them, others just go on. */
#include "port/port.h"
#include "stress/stress_life.h"

static tarni_port *port_of(const life_thread *self) {
  return (tarni_port *)self->life->device;
}

bool life_raw_has_memory(const life_thread *self) {
  const life_capture *c = &self->capture;
  return self->life->heaps[c->heap].config.is_asking_captures;
}

bool life_raw_begin(life_thread *self) {
  static const tarni_capture_mode modes[] = {
      [TARN_CAPTURE_GLOBAL] = TARNI_CAPTURE_GLOBAL,
      [TARN_CAPTURE_THREAD_LOCAL] = TARNI_CAPTURE_THREAD_LOCAL,
      [TARN_CAPTURE_RELAXED] = TARNI_CAPTURE_RELAXED,
  };
  life_capture *c = &self->capture;
  tarn_status status;
  do {
    status = tarni_port_capture_begin(port_of(self), c->origin, modes[c->mode]);
  } while (status != TARN_OK && life_struck(self, status));
  if (status != TARN_OK) {
    return false;
  }
  tarni_capture_state state = {0};
  do {
    status = tarni_port_capture_state(port_of(self), c->origin, &state);
  } while (status != TARN_OK && life_struck(self, status));
  c->raw_id = state.id;
  c->is_raw = true;
  c->is_going_on = true;
  return true;
}

tarn_status life_raw_end(life_thread *self, bool is_kept, life_graph *graph) {
  life_capture *c = &self->capture;
  tarn_status status;
  do {
    status = tarni_port_capture_end(port_of(self), c->origin, &graph->handle);
  } while (status != TARN_OK && life_struck(self, status));
  c->is_going_on = false;
  graph->is_raw = true;
  /* A fault may strike the question whether it is over. */
  const int n_tries = status != TARN_OK || !life_raw_has_memory(self) ? 0
                      : self->life->has_faults                        ? 5
                                                                      : 1;
  for (int i = 0; i < n_tries && graph->graph == NULL; i++) {
    const tarn_status found =
        tarn_graph_find(self->life->heaps[c->heap].heap, c->raw_id, &graph->graph);
    CHECK(found == TARN_OK || found == TARN_FOREIGN); /* nothing was asked for inside */
  }
  if (graph->graph == NULL || !is_kept) { /* nobody launches it */
    life_raw_drop(self, graph);
  }
  return status;
}

bool life_raw_launch(life_thread *self, life_graph *graph, tarn_stream stream) {
  tarn_status status = TARN_OK;
  if (graph->exec == NULL && !life_may_wait(self)) {
    return false; /* it would break the capture that goes on */
  }
  if (graph->exec == NULL) {
    status = tarni_port_graph_instantiate(port_of(self), graph->handle, &graph->exec);
  }
  if (status == TARN_OK) {
    status = tarni_port_graph_launch(port_of(self), graph->exec, stream);
  }
  if (!life_passed(self, status, LIFE_CAPTURE)) {
    return false;
  }
  do {
    status = tarn_graph_launched(graph->graph, stream);
  } while (status != TARN_OK && life_struck(self, status));
  return true;
}

void life_raw_drop(life_thread *self, life_graph *graph) {
  tarn_status status;
  if (graph->handle == NULL) {
    return;
  }
  do {
    status = tarni_port_graph_destroy(port_of(self), graph->handle, graph->exec);
  } while (status != TARN_OK && life_struck(self, status));
  graph->handle = NULL;
  graph->exec = NULL;
}
