/* SPDX-License-Identifier: MIT
 *
 * Conformance: events, and the order they give between streams and to the host. */
#include "conform/conform.h"

typedef struct event_scene {
  tarn_stream held;
  tarn_stream waiting;
  tarn_stream idle;
  tarni_event event;
} event_scene;

static tarn_status scene_set_up(event_scene *scene) {
  if (tarni_port_stream_create(conform_port, &scene->held) != TARN_OK ||
      tarni_port_stream_create(conform_port, &scene->waiting) != TARN_OK ||
      tarni_port_stream_create(conform_port, &scene->idle) != TARN_OK) {
    return tarn_last_error(NULL);
  }
  return tarni_port_event_create(conform_port, &scene->event);
}

static void scene_take_down(event_scene *scene) {
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->held));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->waiting));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene->idle));
  if (scene->event != NULL) {
    CHECK_OK(tarni_port_event_destroy(conform_port, scene->event));
  }
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->held));
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->waiting));
  CHECK_OK(tarni_port_stream_destroy(conform_port, scene->idle));
}

static void never_recorded(void) {
  event_scene scene;
  REQUIRE_OK(scene_set_up(&scene));
  CHECK_OK(tarni_port_event_query(conform_port, scene.event));
  CHECK_OK(tarni_port_event_sync(conform_port, scene.event));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.waiting, scene.event));
  /* The wait was for what was recorded then: nothing. */
  conform_gate *gate = conform_gate_close(scene.held);
  CHECK_OK(tarni_port_event_record(conform_port, scene.event, scene.held));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.waiting));
  CHECK_STATUS(tarni_port_event_query(conform_port, scene.event), TARN_NOT_READY);
  CHECK(conform_gate_open(gate));
  scene_take_down(&scene);
}

static void recorded_and_awaited(void) {
  event_scene scene;
  REQUIRE_OK(scene_set_up(&scene));
  conform_gate *gate = conform_gate_close(scene.held);
  CHECK_OK(tarni_port_event_record(conform_port, scene.event, scene.held));
  CHECK_STATUS(tarni_port_event_query(conform_port, scene.event), TARN_NOT_READY);
  CHECK_OK(tarni_port_event_wait(conform_port, scene.waiting, scene.event));
  CHECK_STATUS(tarni_port_stream_query(conform_port, scene.waiting), TARN_NOT_READY);
  conform_gate_open_later(gate, 20);
  CHECK_OK(tarni_port_event_sync(conform_port, scene.event));
  CHECK(conform_gate_is_open(gate));
  CHECK(conform_gate_join(gate));
  CHECK_OK(tarni_port_event_query(conform_port, scene.event));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.waiting));
  scene_take_down(&scene);
}

/* A record stands for the work before it, not for what comes after. */
static void later_work_is_not_recorded(void) {
  event_scene scene;
  REQUIRE_OK(scene_set_up(&scene));
  CHECK_OK(tarni_port_event_record(conform_port, scene.event, scene.held));
  conform_gate *gate = conform_gate_close(scene.held);
  CHECK_OK(tarni_port_event_sync(conform_port, scene.event));
  CHECK_OK(tarni_port_event_query(conform_port, scene.event));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.waiting, scene.event));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.waiting));
  CHECK_STATUS(tarni_port_stream_query(conform_port, scene.held), TARN_NOT_READY);
  CHECK(conform_gate_open(gate));
  scene_take_down(&scene);
}

static void recorded_again(void) {
  event_scene scene;
  REQUIRE_OK(scene_set_up(&scene));
  conform_gate *gate = conform_gate_close(scene.held);
  CHECK_OK(tarni_port_event_record(conform_port, scene.event, scene.held));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.waiting, scene.event));
  /* The new record is complete at once; the wait is still for the old one. */
  CHECK_OK(tarni_port_event_record(conform_port, scene.event, scene.idle));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.idle));
  CHECK_OK(tarni_port_event_query(conform_port, scene.event));
  CHECK_STATUS(tarni_port_stream_query(conform_port, scene.waiting), TARN_NOT_READY);
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.waiting));
  scene_take_down(&scene);
}

static void destroyed_while_pending(void) {
  event_scene scene;
  REQUIRE_OK(scene_set_up(&scene));
  conform_gate *gate = conform_gate_close(scene.held);
  CHECK_OK(tarni_port_event_record(conform_port, scene.event, scene.held));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.waiting, scene.event));
  CHECK_OK(tarni_port_event_destroy(conform_port, scene.event));
  scene.event = NULL;
  CHECK_STATUS(tarni_port_stream_query(conform_port, scene.waiting), TARN_NOT_READY);
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.waiting));
  scene_take_down(&scene);
}

/* Bytes written by one stream are seen by another that waits, round after round. */
static void order_between_streams(void) {
  enum { N = 100, SIZE = 512 };
  event_scene scene;
  tarn_ptr block;
  tarni_event back;
  REQUIRE_OK(scene_set_up(&scene));
  REQUIRE_OK(tarni_port_event_create(conform_port, &back));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, SIZE, &block));
  uint64_t n_failed = 0;
  for (uint64_t i = 0; i < N; i++) {
    n_failed += tarni_port_event_wait(conform_port, scene.held, back) != TARN_OK;
    n_failed += tarni_port_fill(conform_port, block, (uint8_t)i, SIZE, scene.held) != TARN_OK;
    n_failed += tarni_port_event_record(conform_port, scene.event, scene.held) != TARN_OK;
    n_failed += tarni_port_event_wait(conform_port, scene.waiting, scene.event) != TARN_OK;
    n_failed += tarni_port_copy(conform_port, (uintptr_t)conform_pinned_b + i * SIZE, block, SIZE,
                                scene.waiting) != TARN_OK;
    n_failed += tarni_port_event_record(conform_port, back, scene.waiting) != TARN_OK;
  }
  CHECK_EQ(n_failed, 0);
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.waiting));
  uint64_t n_wrong = 0;
  for (uint64_t i = 0; i < N; i++) {
    n_wrong += conform_differ_value(conform_pinned_b + i * SIZE, SIZE, (uint8_t)i);
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK_OK(tarni_port_event_destroy(conform_port, back));
  scene_take_down(&scene);
}

/* Order carries through a third stream. */
static void order_is_transitive(void) {
  event_scene scene;
  tarni_event second;
  REQUIRE_OK(scene_set_up(&scene));
  REQUIRE_OK(tarni_port_event_create(conform_port, &second));
  conform_gate *gate = conform_gate_close(scene.held);
  CHECK_OK(tarni_port_event_record(conform_port, scene.event, scene.held));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.waiting, scene.event));
  CHECK_OK(tarni_port_event_record(conform_port, second, scene.waiting));
  CHECK_OK(tarni_port_event_wait(conform_port, scene.idle, second));
  CHECK_STATUS(tarni_port_stream_query(conform_port, scene.idle), TARN_NOT_READY);
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, scene.idle));
  CHECK_OK(tarni_port_event_query(conform_port, scene.event));
  CHECK_OK(tarni_port_event_query(conform_port, second));
  CHECK_OK(tarni_port_event_destroy(conform_port, second));
  scene_take_down(&scene);
}

static const test_case event_cases[] = {
    {"event: never recorded is complete", never_recorded},
    {"event: recorded and awaited", recorded_and_awaited},
    {"event: later work is not recorded", later_work_is_not_recorded},
    {"event: recorded again", recorded_again},
    {"event: destroyed while pending", destroyed_while_pending},
    {"event: order between streams", order_between_streams},
    {"event: order is transitive", order_is_transitive},
};
CONFORM_TABLE(event, event_cases)
