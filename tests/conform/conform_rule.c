/* SPDX-License-Identifier: MIT
 *
 * Conformance: what a capture forbids. A table of rules: an action, what it returns in each of the
 * three modes, and whether the capture survives it. Every rule is tried in every mode, by the
 * capturing thread or by another one, which is relaxed or not. */
#include "conform/conform.h"

enum { RULE_BYTES = 4096, N_MODES = 3 };

/* What an action may work with. All of it was made, and is complete, before the capture. */
typedef struct rule_scene {
  tarn_stream stream; /* capturing */
  tarn_stream other;  /* not capturing */
  tarni_event outside;
  tarni_pool pool;
  tarn_ptr pool_block;
  conform_mapping mapping;
  tarn_ptr made_block; /* by the action, to be freed after the capture */
  void *made_host;
} rule_scene;

typedef struct capture_rule {
  const char *name;
  tarn_status (*act)(rule_scene *scene);
  tarn_status want[N_MODES]; /* global, thread-local, relaxed */
  bool survives[N_MODES];
  bool on_other_thread;
} capture_rule;

static tarn_status act_nothing(rule_scene *scene) {
  (void)scene;
  return TARN_OK;
}

static tarn_status act_chunk(rule_scene *scene) {
  (void)scene;
  conform_mapping mapping;
  const tarn_status status = conform_map(conform_granule(), &mapping);
  return status == TARN_OK ? conform_unmap(&mapping) : status;
}

static tarn_status act_plain_alloc(rule_scene *scene) {
  return tarni_port_plain_alloc(conform_port, 1 << 20, &scene->made_block);
}

static tarn_status act_host_alloc(rule_scene *scene) {
  return tarni_port_host_alloc(conform_port, 4096, 0, &scene->made_host);
}

static tarn_status act_event_query(rule_scene *scene) {
  return tarni_port_event_query(conform_port, scene->outside);
}

static tarn_status act_event_sync(rule_scene *scene) {
  return tarni_port_event_sync(conform_port, scene->outside);
}

static tarn_status act_wait_outside(rule_scene *scene) {
  return tarni_port_event_wait(conform_port, scene->stream, scene->outside);
}

static tarn_status act_copy_sync(rule_scene *scene) {
  return tarni_port_copy_sync(conform_port, scene->mapping.address, (uintptr_t)conform_pinned_a,
                              RULE_BYTES);
}

static tarn_status act_fill_sync(rule_scene *scene) {
  return tarni_port_fill_sync(conform_port, scene->mapping.address, 1, RULE_BYTES);
}

static tarn_status act_stream_query(rule_scene *scene) {
  return tarni_port_stream_query(conform_port, scene->stream);
}

static tarn_status act_stream_sync(rule_scene *scene) {
  return tarni_port_stream_sync(conform_port, scene->stream);
}

static tarn_status act_pool_alloc(rule_scene *scene) {
  tarn_ptr block = 77;
  const tarn_status status =
      tarni_port_pool_alloc(conform_port, scene->pool, RULE_BYTES, scene->stream, &block);
  return status != TARN_OK && block != 0 ? TARN_CORRUPT : status;
}

static tarn_status act_pool_free(rule_scene *scene) {
  return tarni_port_pool_free(conform_port, scene->pool_block, scene->stream);
}

/* A block of the pool, made and freed on a stream that is no part of the capture. */
static tarn_status act_pool_elsewhere(rule_scene *scene) {
  tarn_ptr block = 0;
  const tarn_status status =
      tarni_port_pool_alloc(conform_port, scene->pool, RULE_BYTES, scene->other, &block);
  return status == TARN_OK ? tarni_port_pool_free(conform_port, block, scene->other) : status;
}

static tarn_status act_pool_trim(rule_scene *scene) {
  return tarni_port_pool_trim(conform_port, scene->pool, 0);
}

static tarn_status act_plain(rule_scene *scene) {
  tarn_ptr block = 0;
  (void)scene;
  const tarn_status status = tarni_port_plain_alloc(conform_port, RULE_BYTES, &block);
  return status == TARN_OK ? tarni_port_plain_free(conform_port, block) : status;
}

static tarn_status act_sync_elsewhere(rule_scene *scene) {
  return tarni_port_stream_sync(conform_port, scene->other);
}

static tarn_status act_words(rule_scene *scene) {
  uint64_t *words = (uint64_t *)(void *)conform_pinned_a;
  const tarn_status status = tarni_port_value_write(conform_port, scene->stream, words, 1);
  return status == TARN_OK ? tarni_port_value_wait(conform_port, scene->stream, words, 1) : status;
}

/* Work, a record and a wait on a stream that is no part of the capture. */
static tarn_status act_other_stream(rule_scene *scene) {
  tarn_status status = tarni_port_fill(conform_port, scene->mapping.address + RULE_BYTES, 2,
                                       RULE_BYTES, scene->other);
  if (status == TARN_OK) {
    status = tarni_port_event_record(conform_port, scene->outside, scene->other);
  }
  return status == TARN_OK ? tarni_port_event_wait(conform_port, scene->other, scene->outside)
                           : status;
}

#define ALL(x)                                                                                     \
  { x, x, x }
#define UNSAFE                                                                                     \
  { TARN_CAPTURE, TARN_CAPTURE, TARN_OK }
#define UNSAFE_SURVIVES                                                                            \
  { false, false, true }
#define UNSAFE_ELSEWHERE                                                                           \
  { TARN_CAPTURE, TARN_OK, TARN_OK }
#define UNSAFE_ELSEWHERE_SURVIVES                                                                  \
  { false, true, true }
/* By a relaxed thread, be it the capturing one or another. */
#define RELAXED(name, act)                                                                         \
  {name ", relaxed thread", act, ALL(TARN_OK), ALL(true), false}, {                                \
    name ", other relaxed thread", act, ALL(TARN_OK), ALL(true), true                              \
  }

static const capture_rule rules[] = {
    {"nothing", act_nothing, ALL(TARN_OK), ALL(true), false},
    {"chunk calls", act_chunk, ALL(TARN_OK), ALL(true), false},
    {"chunk calls, other thread", act_chunk, ALL(TARN_OK), ALL(true), true},
    {"plain_alloc", act_plain_alloc, UNSAFE, UNSAFE_SURVIVES, false},
    {"plain_alloc, other thread", act_plain_alloc, UNSAFE_ELSEWHERE, UNSAFE_ELSEWHERE_SURVIVES,
     true},
    {"host_alloc", act_host_alloc, UNSAFE, UNSAFE_SURVIVES, false},
    {"event_query", act_event_query, UNSAFE, UNSAFE_SURVIVES, false},
    {"event_query, other thread", act_event_query, UNSAFE_ELSEWHERE, UNSAFE_ELSEWHERE_SURVIVES,
     true},
    {"event_sync", act_event_sync, UNSAFE, UNSAFE_SURVIVES, false},
    {"copy_sync", act_copy_sync, UNSAFE, UNSAFE_SURVIVES, false},
    {"fill_sync", act_fill_sync, UNSAFE, UNSAFE_SURVIVES, false},
    {"wait for an event from outside", act_wait_outside, ALL(TARN_CAPTURE), ALL(false), false},
    {"stream_query", act_stream_query, ALL(TARN_CAPTURE), ALL(false), false},
    {"stream_sync", act_stream_sync, ALL(TARN_CAPTURE), ALL(false), false},
    {"pool_alloc", act_pool_alloc, ALL(TARN_CAPTURE), ALL(true), false},
    {"pool_free", act_pool_free, ALL(TARN_CAPTURE), ALL(true), false},
    {"value_write and value_wait", act_words, ALL(TARN_OK), ALL(true), false},
    {"work on another stream", act_other_stream, ALL(TARN_OK), ALL(true), false},
    {"work on another stream, other thread", act_other_stream, ALL(TARN_OK), ALL(true), true},
};

static const capture_rule relaxed_rules[] = {
    RELAXED("plain_alloc and plain_free", act_plain),
    RELAXED("host_alloc", act_host_alloc),
    RELAXED("event_query", act_event_query),
    RELAXED("event_sync", act_event_sync),
    RELAXED("copy_sync", act_copy_sync),
    RELAXED("fill_sync", act_fill_sync),
    RELAXED("the pool on another stream", act_pool_elsewhere),
    RELAXED("pool_trim", act_pool_trim),
    RELAXED("stream_sync of another stream", act_sync_elsewhere),
};

static bool rule_set_up(rule_scene *scene) {
  *scene = (rule_scene){0};
  return CHECK_OK(tarni_port_stream_create(conform_port, &scene->stream)) &&
         CHECK_OK(tarni_port_stream_create(conform_port, &scene->other)) &&
         CHECK_OK(tarni_port_event_create(conform_port, &scene->outside)) &&
         CHECK_OK(tarni_port_pool_create(conform_port, UINT64_MAX, &scene->pool)) &&
         CHECK_OK(tarni_port_pool_alloc(conform_port, scene->pool, RULE_BYTES, scene->stream,
                                        &scene->pool_block)) &&
         CHECK_OK(
             tarni_port_fill(conform_port, scene->pool_block, 0x77, RULE_BYTES, scene->stream)) &&
         CHECK_OK(conform_map(conform_granule(), &scene->mapping)) &&
         CHECK_OK(tarni_port_event_record(conform_port, scene->outside, scene->stream)) &&
         CHECK_OK(tarni_port_stream_sync(conform_port, scene->stream));
}

/* The pool's block is still whole, and can be freed now: so no action has freed it. */
static void rule_take_down(rule_scene *scene) {
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->other));
  if (scene->made_block != 0) {
    (void)tarni_port_plain_free(conform_port, scene->made_block);
  }
  if (scene->made_host != NULL) {
    (void)tarni_port_host_free(conform_port, scene->made_host);
  }
  CHECK_EQ(conform_device_differ_value(scene->pool_block, RULE_BYTES, 0x77), 0);
  CHECK_OK(tarni_port_pool_free(conform_port, scene->pool_block, scene->stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->stream));
  CHECK_OK(tarni_port_pool_destroy(conform_port, scene->pool));
  CHECK_OK(conform_unmap(&scene->mapping));
  CHECK_OK(tarni_port_event_destroy(conform_port, scene->outside));
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->stream));
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->other));
}

typedef struct rule_call {
  const capture_rule *rule;
  rule_scene *scene;
  bool is_relaxed; /* the thread that acts */
} rule_call;

static tarn_status act_by_thread(void *argument) {
  const rule_call *call = argument;
  if (!call->is_relaxed) {
    return call->rule->act(call->scene);
  }
  TARNI_RELAXED(conform_port);
  return call->rule->act(call->scene);
}

/* A driver that has no modes of threads has nothing to obey here. */
static bool can_relax(void) {
  TARNI_RELAXED(conform_port);
  return relaxed.is_relaxed;
}

/* The capture is over, whatever became of it: the stream works as if it had never been. */
static void check_stream_is_free(rule_scene *scene) {
  tarni_capture_state state = {TARNI_CAPTURE_ACTIVE, 77};
  CHECK_OK(tarni_port_capture_state(conform_port, scene->stream, &state));
  CHECK_EQ(state.status, TARNI_CAPTURE_NONE);
  CHECK_EQ(state.id, 0);
  CHECK_OK(tarni_port_fill(conform_port, scene->mapping.address, 0x66, RULE_BYTES, scene->stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->stream));
  CHECK_EQ(conform_device_differ_value(scene->mapping.address, RULE_BYTES, 0x66), 0);
}

static void try_rule_inside(rule_call *call, tarni_capture_mode mode) {
  const capture_rule *rule = call->rule;
  rule_scene *scene = call->scene;
  const tarn_ptr block = scene->mapping.address;
  CHECK_OK(tarni_port_capture_begin(conform_port, scene->stream, mode));
  CHECK_OK(tarni_port_fill(conform_port, block, 0x55, RULE_BYTES, scene->stream));
  const tarn_status got =
      rule->on_other_thread ? conform_on_thread(act_by_thread, call) : act_by_thread(call);
  CHECK_STATUS(got, rule->want[mode]);
  tarni_capture_state state;
  CHECK_OK(tarni_port_capture_state(conform_port, scene->stream, &state));
  CHECK_EQ(state.status, rule->survives[mode] ? TARNI_CAPTURE_ACTIVE : TARNI_CAPTURE_INVALIDATED);
  tarni_graph graph = &state;
  CHECK_STATUS(tarni_port_capture_end(conform_port, scene->stream, &graph),
               rule->survives[mode] ? TARN_OK : TARN_CAPTURE);
  CHECK_EQ(graph != NULL, rule->survives[mode]);
  if (graph != NULL) {
    (void)tarni_port_graph_destroy(conform_port, graph, NULL);
  }
}

static void try_rule(const capture_rule *rule, tarni_capture_mode mode, bool is_relaxed) {
  static const char *const mode_names[N_MODES] = {"global", "thread-local", "relaxed"};
  const bool had_failed = test_case_failed();
  rule_scene scene;
  if (!rule_set_up(&scene)) {
    return;
  }
  rule_call call = {.rule = rule, .scene = &scene, .is_relaxed = is_relaxed};
  try_rule_inside(&call, mode);
  check_stream_is_free(&scene);
  rule_take_down(&scene);
  conform_forgive();
  if (test_case_failed() && !had_failed) {
    test_note("the rule was: %s, mode %s", rule->name, mode_names[mode]);
  }
}

static void try_rules(tarni_capture_mode mode) {
  for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
    try_rule(&rules[i], mode, false);
  }
  for (size_t i = 0; can_relax() && i < sizeof(relaxed_rules) / sizeof(relaxed_rules[0]); i++) {
    try_rule(&relaxed_rules[i], mode, true);
  }
}

static void rules_global(void) {
  try_rules(TARNI_CAPTURE_GLOBAL);
}

static void rules_thread_local(void) {
  try_rules(TARNI_CAPTURE_THREAD_LOCAL);
}

static void rules_relaxed(void) {
  try_rules(TARNI_CAPTURE_RELAXED);
}

static const test_case rule_cases[] = {
    {"rule: every rule in a global capture", rules_global},
    {"rule: every rule in a thread-local capture", rules_thread_local},
    {"rule: every rule in a relaxed capture", rules_relaxed},
};
CONFORM_TABLE(rule, rule_cases)
