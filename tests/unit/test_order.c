/* SPDX-License-Identifier: MIT
 *
 * Orders, lanes, tickets and fences: what is proven, what is waited for, and what is not believed.
 */
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20 };

static tarni_order order_of(tarni_index lane, uint64_t ticket) {
  tarni_order order = {0};
  (void)tarni_order_add(&order, lane, ticket);
  return order;
}

/* ---- Orders ---- */

static void adding(void) {
  tarni_order order = {0};
  CHECK(tarni_order_add(&order, TARNI_LANE_COMMON, 9));
  CHECK_EQ(order.n, 0);
  for (tarni_index lane = 1; lane <= TARNI_ORDER_MAX; lane++) {
    CHECK(tarni_order_add(&order, lane, 10 * lane));
  }
  CHECK_EQ(order.n, TARNI_ORDER_MAX);
  CHECK(!tarni_order_add(&order, TARNI_ORDER_MAX + 1, 1)); /* too many */
  CHECK_EQ(order.n, TARNI_ORDER_MAX);
  CHECK(tarni_order_add(&order, 2, 5)); /* less than what is there */
  CHECK_EQ(order.tickets[1], 20);
  CHECK(tarni_order_add(&order, 2, 25));
  CHECK_EQ(order.tickets[1], 25);
}

static void uniting(void) {
  tarni_order a = order_of(1, 5), b = order_of(2, 7);
  CHECK(tarni_order_unite(&a, &b));
  CHECK_EQ(a.n, 2);
  CHECK(tarni_order_add(&a, 3, 1) && tarni_order_add(&b, 4, 1) && tarni_order_add(&b, 5, 1));
  const tarni_order before = a;
  CHECK(!tarni_order_unite(&a, &b)); /* five lanes: nothing is changed, not even by half */
  CHECK_EQ(a.n, before.n);
  CHECK_EQ(a.tickets[1], 7);
  const tarni_order nothing = {0};
  CHECK(tarni_order_unite(&a, &nothing));
  CHECK_EQ(a.n, 3);
}

/* ---- Lanes ---- */

typedef struct scene {
  rig rig;
  tarn_heap *heap;
  tarni_index lanes[RIG_STREAMS];
} scene;

/* Lanes of the streams, and heap->grow taken. */
static bool scene_open(scene *s, const char *device, int n_streams) {
  if (!rig_open(&s->rig, device, NULL, n_streams)) {
    return false;
  }
  s->heap = s->rig.heap;
  for (int i = 0; i < n_streams; i++) {
    if (!CHECK_OK(tarni_lane_find(s->heap, s->rig.streams[i], &s->lanes[i]))) {
      return false;
    }
  }
  tarni_lock_acquire(&s->heap->grow);
  return true;
}

static void scene_close(scene *s) {
  tarni_lock_release(&s->heap->grow);
  CHECK(rig_is_sound(&s->rig));
  rig_close(&s->rig);
}

static uint64_t ticket(const scene *s, int stream) {
  tarni_lock_acquire(&s->heap->lock);
  const uint64_t given = tarni_ticket_locked(s->heap, s->lanes[stream]);
  tarni_lock_release(&s->heap->lock);
  return given;
}

static bool is_met(const scene *s, const tarni_order *order, int stream) {
  tarni_lock_acquire(&s->heap->lock);
  const bool is = tarni_order_is_met_locked(s->heap, order, s->lanes[stream]);
  tarni_lock_release(&s->heap->lock);
  return is;
}

static bool is_complete(const scene *s, const tarni_order *order) {
  tarni_lock_acquire(&s->heap->lock);
  const bool is = tarni_order_is_complete_locked(s->heap, order);
  tarni_lock_release(&s->heap->lock);
  return is;
}

/* Work that the stream has not done yet: its fences are open until it is waited for. */
static void keep_busy(const scene *s, int stream) {
  const tarn_sim_kernel kernel = {.size = sizeof(kernel)};
  CHECK_OK(tarn_sim_launch(s->rig.device, &kernel, s->rig.streams[stream]));
}

static void lane_of_a_stream(void) {
  scene s;
  tarni_index again;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 3));
  CHECK(s.lanes[0] != 0 && s.lanes[0] != s.lanes[1] && s.lanes[1] != s.lanes[2]);
  CHECK_OK(tarni_lane_find(s.heap, s.rig.streams[1], &again));
  CHECK_EQ(again, s.lanes[1]);
  CHECK_OK(tarni_lane_known(s.heap, s.rig.streams[2], &again));
  CHECK_EQ(again, s.lanes[2]);
  CHECK_OK(tarni_lane_known(s.heap, NULL, &again));
  CHECK_EQ(again, 0);
  CHECK_EQ(s.heap->n_lanes, 4);
  scene_close(&s);
}

static void waiting_meets_an_order(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 3));
  keep_busy(&s, 0);
  const tarni_order order = order_of(s.lanes[0], ticket(&s, 0));
  CHECK(is_met(&s, &order, 0)); /* its own stream needs no wait */
  CHECK(!is_met(&s, &order, 1));
  CHECK_OK(tarni_order_wait_grow(s.heap, &order, s.lanes[1]));
  CHECK(is_met(&s, &order, 1));
  CHECK(!is_met(&s, &order, 2)); /* a third one has not waited */
  CHECK(!is_complete(&s, &order));
  CHECK_EQ(s.heap->waits, 1);
  CHECK_OK(tarni_order_wait_grow(s.heap, &order, s.lanes[1])); /* nothing is left to wait for */
  CHECK_EQ(s.heap->waits, 1);
  const tarni_order later = order_of(s.lanes[0], ticket(&s, 0));
  CHECK(!is_met(&s, &later, 1)); /* what came after the wait is not covered */
  CHECK(tarni_fences_wait_grow(s.heap, NULL));
  CHECK(is_complete(&s, &order) && is_met(&s, &order, 2));
  CHECK(!is_complete(&s, &later));
  CHECK(!tarni_fences_wait_grow(s.heap, NULL)); /* there is no fence for it */
  scene_close(&s);
}

/* A fence proves what was given before it was recorded, and one is recorded only when needed. */
static void one_fence_for_many_tickets(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 2));
  keep_busy(&s, 0);
  tarni_order orders[3];
  for (int i = 0; i < 3; i++) {
    orders[i] = order_of(s.lanes[0], ticket(&s, 0));
  }
  CHECK_OK(tarni_order_fence_grow(s.heap, &orders[0]));
  const uint64_t calls = rig_calls(&s.rig);
  CHECK_OK(tarni_order_fence_grow(s.heap, &orders[2]));
  CHECK_EQ(rig_calls(&s.rig), calls);
  CHECK_EQ(s.heap->lanes[s.lanes[0]].n_fences, 1);
  CHECK(tarni_fences_wait_grow(s.heap, NULL));
  CHECK(is_complete(&s, &orders[2]));
  scene_close(&s);
}

/* More fences than a lane has room for: the newest is recorded anew, and none is forgotten. */
static void more_fences_than_fit(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 2));
  tarni_order orders[3 * TARNI_FENCES];
  for (int i = 0; i < 3 * TARNI_FENCES; i++) {
    keep_busy(&s, 0);
    orders[i] = order_of(s.lanes[0], ticket(&s, 0));
    CHECK_OK(tarni_order_fence_grow(s.heap, &orders[i]));
    CHECK(s.heap->lanes[s.lanes[0]].n_fences <= TARNI_FENCES);
  }
  while (tarni_fences_wait_grow(s.heap, NULL)) {
  }
  for (int i = 0; i < 3 * TARNI_FENCES; i++) {
    CHECK(is_complete(&s, &orders[i]));
  }
  CHECK_EQ(s.heap->lanes[s.lanes[0]].n_fences, 0);
  scene_close(&s);
}

static void polling(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 2));
  CHECK(!tarni_fences_poll_grow(s.heap));
  keep_busy(&s, 0);
  const tarni_order order = order_of(s.lanes[0], ticket(&s, 0));
  CHECK_OK(tarni_order_fence_grow(s.heap, &order));
  CHECK_OK(tarn_stream_synchronize(s.rig.device, s.rig.streams[0]));
  CHECK(tarni_fences_poll_grow(s.heap));
  CHECK(is_complete(&s, &order));
  CHECK(!tarni_fences_poll_grow(s.heap));
  scene_close(&s);
}

/* ---- Retiring ---- */

static void retired_lane_gives_no_ticket(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 2));
  keep_busy(&s, 0);
  CHECK_OK(tarni_lane_retire_grow(s.heap, s.rig.streams[0]));
  const uint64_t last = s.heap->lanes[s.lanes[0]].ticket;
  CHECK_EQ(ticket(&s, 0), last);
  const tarni_order order = order_of(s.lanes[0], last);
  CHECK_OK(tarni_order_wait_grow(s.heap, &order, s.lanes[1])); /* by the fence that it left */
  CHECK(is_met(&s, &order, 1));
  tarni_index anew; /* the same stream may come again: as another lane */
  CHECK_OK(tarni_lane_find(s.heap, s.rig.streams[0], &anew));
  CHECK(anew != s.lanes[0]);
  scene_close(&s);
}

/* The record of a retired lane goes to another stream: what was proven stays so. */
static void record_used_again(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 2));
  keep_busy(&s, 0);
  const tarni_order order = order_of(s.lanes[0], ticket(&s, 0));
  CHECK_OK(tarni_order_wait_grow(s.heap, &order, s.lanes[1]));
  CHECK_OK(tarni_lane_retire_grow(s.heap, s.rig.streams[0]));
  while (tarni_fences_wait_grow(s.heap, NULL)) {
  }
  tarni_shortage_reap_grow(s.heap);
  CHECK_EQ(s.heap->lanes[s.lanes[0]].stream_id, 0);
  tarn_stream stream;
  REQUIRE_OK(tarn_stream_create(s.rig.device, &stream));
  tarni_index lane;
  CHECK_OK(tarni_lane_find(s.heap, stream, &lane));
  CHECK_EQ(lane, s.lanes[0]);
  CHECK(is_complete(&s, &order));
  const tarni_order later = order_of(lane, ticket(&s, 0));
  CHECK(later.tickets[0] > order.tickets[0]);
  CHECK(!is_complete(&s, &later));
  CHECK(!is_met(&s, &later, 1)); /* the other's wait was for the stream before */
  CHECK_OK(tarni_lane_retire_grow(s.heap, stream));
  CHECK_OK(tarn_stream_destroy(s.rig.device, stream));
  scene_close(&s);
}

/* ---- What cannot be proven ---- */

static void lost_and_found(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 2));
  keep_busy(&s, 0);
  const tarni_order order = order_of(s.lanes[0], ticket(&s, 0));
  /* An error that has nothing to do with the stream is told, and does no harm. */
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_EVENT_RECORD, 1, 1, 1));
  CHECK_STATUS(tarni_order_fence_grow(s.heap, &order), TARN_INVALID);
  CHECK(!s.heap->lanes[s.lanes[0]].is_lost);
  /* With a stream that the driver no longer knows nothing can be proven any more. */
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_COUNT, 1, 0, 400));
  CHECK_STATUS(tarni_order_fence_grow(s.heap, &order), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "quarantined");
  CHECK(s.heap->lanes[s.lanes[0]].is_lost);
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK_STATUS(tarni_order_wait_grow(s.heap, &order, s.lanes[1]), TARN_STATE);
  CHECK(!is_met(&s, &order, 1));
  /* Its user shows that it is there. */
  tarni_index again;
  CHECK_OK(tarni_lane_find(s.heap, s.rig.streams[0], &again));
  CHECK_EQ(again, s.lanes[0]);
  CHECK_OK(tarni_order_wait_grow(s.heap, &order, s.lanes[1]));
  CHECK(is_met(&s, &order, 1));
  scene_close(&s);
}

/* A wait that fails proves nothing. */
static void failed_waits(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 2));
  keep_busy(&s, 0);
  const tarni_order order = order_of(s.lanes[0], ticket(&s, 0));
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_EVENT_WAIT, 1, 1, 2));
  CHECK_STATUS(tarni_order_wait_grow(s.heap, &order, s.lanes[1]), TARN_DEVICE_MEMORY);
  CHECK(!is_met(&s, &order, 1));
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_EVENT_SYNC, 1, 1, 2));
  CHECK(!tarni_fences_wait_grow(s.heap, NULL));
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_EVENT_QUERY, 1, 1, 2));
  CHECK(!tarni_fences_poll_grow(s.heap));
  CHECK(!is_complete(&s, &order));
  CHECK(tarni_fences_wait_grow(s.heap, NULL));
  CHECK(is_complete(&s, &order));
  scene_close(&s);
}

/* Waiting for all lanes has a goal; what is given back meanwhile is not part of it. */
static void finishing_all_lanes(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy", 3));
  tarni_order orders[3];
  for (int i = 0; i < 3; i++) {
    keep_busy(&s, i);
    orders[i] = order_of(s.lanes[i], ticket(&s, i));
  }
  CHECK_OK(tarni_lanes_finish_grow(s.heap));
  for (int i = 0; i < 3; i++) {
    CHECK(is_complete(&s, &orders[i]));
  }
  /* Where fences cannot be recorded the whole device is waited for. */
  for (int i = 0; i < 3; i++) {
    keep_busy(&s, i);
    orders[i] = order_of(s.lanes[i], ticket(&s, i));
  }
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_EVENT_RECORD, 1, 0, 2));
  CHECK_OK(tarni_lanes_finish_grow(s.heap));
  CHECK_OK(tarn_sim_fail(s.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  for (int i = 0; i < 3; i++) {
    CHECK(is_complete(&s, &orders[i]));
  }
  scene_close(&s);
}

static const test_case cases[] = {
    {"adding to an order", adding},
    {"uniting orders", uniting},
    {"the lane of a stream", lane_of_a_stream},
    {"waiting meets an order", waiting_meets_an_order},
    {"one fence for many tickets", one_fence_for_many_tickets},
    {"more fences than fit", more_fences_than_fit},
    {"polling", polling},
    {"a retired lane gives no ticket", retired_lane_gives_no_ticket},
    {"the record of a lane used again", record_used_again},
    {"lost and found", lost_and_found},
    {"waits that fail", failed_waits},
    {"finishing all lanes", finishing_all_lanes},
};

TEST_MAIN(cases)
