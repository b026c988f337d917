/* SPDX-License-Identifier: MIT
 *
 * A step of a recorded training program, captured: with `reuse` the arena is close to the bound of
 * what any arena would need, planned it is at the bound, and monotone it is the sum. The step is
 * found in the trace: from one trough of live memory to the next, in the middle of the program. */
#include <stdio.h>
#include <stdlib.h>

#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"
#include "tools/trace.h"

typedef struct step {
  trace events;
  size_t begin, end;
  tarn_ptr *blocks; /* by trace_event.block; 0: not of this step, or freed */
} step;

/* Live bytes before each event. */
static uint64_t *live_curve(const trace *t) {
  uint64_t *live = calloc(t->n_events + 1, sizeof(*live));
  for (size_t i = 0; live != NULL && i < t->n_events; i++) {
    const trace_event *event = &t->events[i];
    live[i + 1] = event->kind == TRACE_ALLOC ? live[i] + event->bytes : live[i] - event->bytes;
  }
  return live;
}

/* The first two troughs from a third of the program on. A trough is the lowest point, the last one,
 * between two times that are well up. */
static bool find_step(step *s) {
  const trace *t = &s->events;
  const size_t n = t->n_events;
  uint64_t *live = live_curve(t), least = UINT64_MAX;
  size_t marks[2] = {0}, n_marks = 0, lowest = 0;
  bool is_low = true;
  for (size_t i = n / 3; live != NULL && i < n / 3 * 2; i++) {
    least = live[i] < least ? live[i] : least;
  }
  const uint64_t span = t->live_peak_bytes - least;
  for (size_t i = 0; live != NULL && i <= n && n_marks < 2; i++) {
    if (is_low && live[i] > least + span / 10 * 6) {
      if (lowest >= n / 3) {
        marks[n_marks++] = lowest;
      }
      is_low = false;
    } else if (!is_low && live[i] < least + span / 10) {
      is_low = true;
      lowest = i;
    }
    lowest = is_low && live[i] <= live[lowest] ? i : lowest;
  }
  free(live);
  s->begin = marks[0];
  s->end = marks[1];
  return n_marks == 2;
}

static void run_step(rig *r, step *s) {
  for (size_t i = s->begin; i < s->end; i++) {
    const trace_event *event = &s->events.events[i];
    tarn_ptr *block = &s->blocks[event->block];
    if (event->kind == TRACE_ALLOC && event->bytes != 0) {
      rig_block made;
      CHECK_OK(rig_capture_alloc(r, event->bytes, r->streams[0], &made));
      *block = made.address;
    } else if (event->kind == TRACE_FREE && *block != 0) {
      CHECK_OK(tarn_free(r->heap, *block, r->streams[0]));
      *block = 0;
    }
  }
}

/* What outlives the step goes after its capture. */
static void drop_rest(rig *r, step *s) {
  for (uint32_t i = 0; i < s->events.n_blocks; i++) {
    CHECK_OK(tarn_free(r->heap, s->blocks[i], r->streams[0]));
    s->blocks[i] = 0;
  }
}

static tarn_graph *capture_step(rig *r, step *s, tarn_placement placement,
                                const tarn_layout *layout, tarn_graph_info *info) {
  const tarn_capture_config config = {
      .size = sizeof(config), .placement = placement, .layout = layout};
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  *info = (tarn_graph_info){.size = sizeof(*info)};
  if (CHECK_OK(tarn_capture_begin(r->heap, &config, r->streams[0], &capture))) {
    run_step(r, s);
    CHECK_OK(tarn_capture_end(&capture, &graph));
    drop_rest(r, s);
    CHECK_OK(tarn_graph_get_info(graph, info));
    CHECK_OK(tarn_graph_launch(graph, r->streams[0]));
    CHECK_OK(tarn_stream_synchronize(r->device, r->streams[0]));
    CHECK_EQ(r->n_findings, 0);
  }
  return graph;
}

static void measure_step(rig *r, step *s) {
  tarn_graph_info reuse, planned, monotone;
  tarn_layout *layout = NULL;
  const tarn_plan_options options = {.size = sizeof(options), .max_ns = UINT64_C(8000000000)};
  tarn_graph *graph = capture_step(r, s, TARN_PLACE_REUSE, NULL, &reuse);
  REQUIRE(graph != NULL);
  REQUIRE_OK(tarn_graph_plan(graph, &options, &layout));
  CHECK_OK(tarn_graph_destroy(graph));
  tarn_plan_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_layout_get_info(layout, &info));
  CHECK_OK(tarn_graph_destroy(capture_step(r, s, TARN_PLACE_PLANNED, layout, &planned)));
  CHECK_OK(tarn_graph_destroy(capture_step(r, s, TARN_PLACE_MONOTONE, NULL, &monotone)));
  tarn_layout_destroy(layout);
  test_note("%llu events, bound %llu: reuse %.4f, planned %.4f, monotone %.2f",
            (unsigned long long)(s->end - s->begin), (unsigned long long)info.bound,
            (double)reuse.bytes / (double)info.bound, (double)planned.bytes / (double)info.bound,
            (double)monotone.bytes / (double)info.bound);
  CHECK(info.bound >= reuse.peak_bytes); /* the load is a bound, at least */
  CHECK((double)reuse.bytes <= 1.15 * (double)info.bound);
  CHECK((double)planned.bytes <= 1.005 * (double)info.bound);
  CHECK(!planned.has_diverged);
  CHECK_EQ(monotone.bytes, monotone.alloc_bytes);
  CHECK_EQ(planned.alloc_bytes, monotone.alloc_bytes);
}

static void measure_trace(const char *name) {
  char path[512], error[TRACE_ERROR];
  rig r;
  step s = {.begin = 0};
  (void)snprintf(path, sizeof(path), "traces/%s.trace.gz", name);
  if (!CHECK(trace_open(path, &s.events, error))) {
    test_note("%s", error);
    return;
  }
  s.blocks = calloc(s.events.n_blocks + 1, sizeof(*s.blocks));
  if (CHECK(s.blocks != NULL) && CHECK(find_step(&s)) && rig_open(&r, "sim:28G", NULL, 1)) {
    measure_step(&r, &s);
    rig_close(&r);
  }
  free(s.blocks);
  trace_close(&s.events);
}

static void gpt2_step(void) {
  measure_trace("gpt2_train");
}

static void resnet_step(void) {
  measure_trace("resnet_train");
}

static const test_case cases[] = {
    {"a step of gpt2_train", gpt2_step},
    {"a step of resnet_train", resnet_step},
};

TEST_MAIN(cases)
