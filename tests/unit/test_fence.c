/* SPDX-License-Identifier: MIT
 *
 * Fences beside what other threads do at any time, also between two calls of the heap. Captures
 * begin and end: none is broken, none takes in what is not its own, and nothing stays behind. A
 * stream is replaced by another of the same handle: that one's end proves nothing. */
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20 };

/* What another thread does around the next record on a stream. */
typedef struct meddler {
  tarni_port_table table;
  const tarni_port_table *real;
  tarn_stream stream;
  bool is_beginning, is_ending, is_replacing;
  int times; /* so often */
  int n_begun;
} meddler;

static meddler other;

static tarn_status meddled_record(tarni_port *port, tarni_event event, tarn_stream stream) {
  const bool is_it = stream == other.stream && other.n_begun < other.times;
  other.n_begun += is_it;
  if (is_it && other.is_beginning) {
    CHECK_OK(other.real->capture_begin(port, stream, TARNI_CAPTURE_RELAXED));
  }
  if (is_it && other.is_replacing) {
    tarn_stream again = NULL;
    CHECK_OK(other.real->stream_destroy(port, stream));
    CHECK_OK(other.real->stream_create(port, &again));
    CHECK(again == stream);
  }
  const tarn_status status = other.real->event_record(port, event, stream);
  tarni_graph graph = NULL;
  if (is_it && other.is_ending) {
    CHECK_OK(other.real->capture_end(port, stream, &graph));
    CHECK_OK(other.real->graph_destroy(port, graph, NULL));
  }
  return status;
}

static void meddle(rig *r, tarn_stream stream, bool is_ending) {
  tarni_port *port = (tarni_port *)r->device;
  other = (meddler){.table = *port->table,
                    .real = port->table,
                    .stream = stream,
                    .is_beginning = true,
                    .is_ending = is_ending,
                    .times = 1};
  other.table.event_record = meddled_record;
  port->table = &other.table;
}

static void meddle_no_more(rig *r) {
  tarni_port *port = (tarni_port *)r->device;
  port->table = other.real;
  CHECK_EQ(other.n_begun, other.times);
}

static void meddle_with_stream(rig *r, tarn_stream stream) {
  meddle(r, stream, false);
  other.is_beginning = false;
  other.is_replacing = true;
}

/* A heap with a free block of the first stream, which is still in use there. */
static bool set_up(rig *r, const char *device, tarn_stealing stealing) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .stealing = stealing,
                                   .limit_bytes = 12 * MIB,
                                   .is_verifying_streams = true};
  rig_block block;
  return rig_open(r, device, &config, 2) &&
         CHECK_OK(rig_alloc(r, 8 * MIB, r->streams[0], &block)) &&
         CHECK_OK(rig_free(r, &block, r->streams[0]));
}

static void take_down(rig *r) {
  CHECK_OK(tarn_heap_trim(r->heap, 0));
  CHECK_EQ(rig_stats(r).reserved_bytes, 0);
  CHECK(rig_is_sound(r));
  rig_close(r);
}

static tarni_capture_state state_of(const rig *r, tarn_stream stream) {
  tarni_capture_state state = {0};
  CHECK_OK(tarni_port_capture_state((tarni_port *)r->device, stream, &state));
  return state;
}

static void end_capture(const rig *r, tarn_stream stream) {
  tarni_port *port = (tarni_port *)r->device;
  tarni_graph graph = NULL;
  CHECK_EQ(state_of(r, stream).status, TARNI_CAPTURE_ACTIVE);
  CHECK_OK(tarni_port_capture_end(port, stream, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
}

/* Takes the first stream's memory for the second one while the other thread meddles. */
static void steal(rig *r, uint64_t bytes, bool is_ending) {
  rig_block block;
  tarn_ptr address = 0;
  meddle(r, r->streams[0], is_ending);
  CHECK_OK(tarn_alloc(r->heap, bytes, r->streams[1], &address));
  meddle_no_more(r);
  CHECK_EQ(state_of(r, r->streams[1]).status, TARNI_CAPTURE_NONE);
  rig_own(r, address, bytes, &block);
  rig_touch(r, &block, r->streams[1], true);
  CHECK_OK(rig_free(r, &block, r->streams[1]));
}

static void capture_begins_before_stealing(void) {
  rig r;
  REQUIRE(set_up(&r, "sim:64M,order=lazy", TARN_STEAL_ALWAYS));
  steal(&r, 8 * MIB, false); /* by waiting for the whole device */
  end_capture(&r, r.streams[0]);
  take_down(&r);
}

static void capture_begins_before_a_trim(void) {
  rig r;
  REQUIRE(set_up(&r, "sim:64M,order=lazy", TARN_STEAL_ALWAYS));
  meddle(&r, r.streams[0], false);
  CHECK_STATUS(tarn_heap_trim(r.heap, 0), TARN_CAPTURE);
  meddle_no_more(&r);
  end_capture(&r, r.streams[0]);
  take_down(&r);
}

static void capture_comes_and_goes_before_stealing(void) {
  rig r;
  REQUIRE(set_up(&r, "sim:64M,order=lazy", TARN_STEAL_ALWAYS));
  steal(&r, 8 * MIB, true);
  take_down(&r);
}

/* The fence that proves nothing is the first one, or others are before and behind it. */
static void capture_comes_and_goes_between_fences(void) {
  for (int at = 0; at < 6; at++) {
    rig r;
    REQUIRE(set_up(&r, "sim:64M,order=lazy", TARN_STEAL_ALWAYS));
    for (int i = 0; i < 6; i++) {
      rig_block block;
      if (i == at) {
        steal(&r, 9 * MIB, true);
      } else {
        CHECK_OK(rig_alloc(&r, 9 * MIB, r.streams[1], &block));
        CHECK_OK(rig_free(&r, &block, r.streams[1]));
      }
      CHECK_OK(rig_alloc(&r, 10 * MIB, r.streams[0], &block));
      CHECK_OK(rig_free(&r, &block, r.streams[0]));
      CHECK(rig_is_sound(&r));
    }
    take_down(&r);
  }
}

static void capture_comes_and_goes_before_a_trim(void) {
  rig r;
  REQUIRE(set_up(&r, "sim:64M,order=lazy", TARN_STEAL_ALWAYS));
  meddle(&r, r.streams[0], true);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  meddle_no_more(&r);
  take_down(&r);
}

/* ---- Fences that prove nothing, and are not alone ---- */

/* A heap with a large free block of the first stream; so many of that stream's fences, the oldest
 * ones, prove nothing. They are made by frees of blocks that it used, too. */
static bool set_up_void(rig *r, tarn_stealing stealing, uint64_t limit, int n_void) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .stealing = stealing,
                                   .limit_bytes = limit,
                                   .is_deterministic = n_void != 0}; /* it does not look at them */
  rig_block large;
  if (!rig_open(r, "sim:256M,order=lazy", &config, 3) ||
      !CHECK_OK(rig_alloc(r, 80 * MIB, r->streams[0], &large)) ||
      !CHECK_OK(rig_free(r, &large, r->streams[0]))) {
    return false;
  }
  for (int i = 0; i < n_void; i++) {
    rig_block used;
    CHECK_OK(rig_alloc(r, 1024, r->streams[1], &used));
    CHECK_OK(tarn_use(r->heap, used.address, r->streams[0]));
    CHECK_OK(tarn_sim_disown(r->device, used.address, used.bytes));
    meddle(r, r->streams[0], true);
    CHECK_OK(tarn_free(r->heap, used.address, r->streams[1]));
    meddle_no_more(r);
  }
  return true;
}

static void take_down_void(rig *r) {
  rig_block block;
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(r, 80 * MIB, r->streams[1], &block));
    CHECK_OK(rig_free(r, &block, r->streams[1]));
    CHECK(rig_is_sound(r));
  }
  take_down(r);
}

static void many_are_void(void) {
  for (int n = 1; n < 6; n++) {
    rig r;
    REQUIRE(set_up_void(&r, TARN_STEAL_ALWAYS, 240 * MIB, n));
    take_down_void(&r);
    REQUIRE(set_up_void(&r, TARN_STEAL_WHEN_SHORT, 100 * MIB, n));
    take_down_void(&r);
  }
}

/* A stream is retired behind them: its last fence is a good one. */
static void void_before_the_last(void) {
  for (int n = 1; n < 4; n++) {
    rig r;
    REQUIRE(set_up_void(&r, TARN_STEAL_ALWAYS, 240 * MIB, n));
    CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
    take_down_void(&r);
    REQUIRE(set_up_void(&r, TARN_STEAL_WHEN_SHORT, 100 * MIB, n));
    CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
    take_down_void(&r);
  }
}

/* The last one is void, too, once and for good: then the whole device is waited for. */
static void last_is_void(void) {
  for (int times = 1; times < 3; times++) {
    rig r;
    REQUIRE(set_up_void(&r, TARN_STEAL_WHEN_SHORT, 100 * MIB, 0));
    meddle(&r, r.streams[0], true);
    other.times = times;
    CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
    meddle_no_more(&r);
    take_down_void(&r);
  }
}

/* Nobody may be asked what a fence proves. */
static void void_beside_a_capture(void) {
  const tarn_capture_config global = {.size = sizeof(global), .mode = TARN_CAPTURE_GLOBAL};
  rig r;
  rig_block block;
  tarn_capture *capture = NULL;
  REQUIRE(set_up_void(&r, TARN_STEAL_ALWAYS, 240 * MIB, 1));
  CHECK_OK(tarn_capture_begin(r.heap, &global, r.streams[2], &capture));
  CHECK_OK(rig_alloc(&r, 80 * MIB, r.streams[1], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  CHECK_OK(tarn_capture_abort(&capture));
  take_down_void(&r);
}

/* ---- Streams that are captured or gone, and what others wait for ---- */

/* A block that a captured stream has used, too, comes back when the device was waited for. */
static void used_by_a_captured_stream(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 12 * MIB};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[1], &block));
  CHECK_OK(tarn_use(r.heap, block.address, r.streams[0]));
  CHECK_OK(tarni_port_capture_begin((tarni_port *)r.device, r.streams[0], TARNI_CAPTURE_RELAXED));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[1], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  end_capture(&r, r.streams[0]);
  take_down(&r);
}

/* The memory of a stream that is gone comes back when the whole device was waited for. */
static void stream_is_replaced(void) {
  const tarn_stealing policies[] = {TARN_STEAL_NEVER, TARN_STEAL_WHEN_SHORT, TARN_STEAL_ALWAYS};
  for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
    rig r;
    rig_block block;
    tarn_ptr address = 0;
    REQUIRE(set_up(&r, "sim:64M,order=eager", policies[i]));
    meddle_with_stream(&r, r.streams[0]);
    const tarn_status status = tarn_alloc(r.heap, 8 * MIB, r.streams[1], &address);
    meddle_no_more(&r);
    if (CHECK_OK(status)) {
      rig_own(&r, address, 8 * MIB, &block);
      rig_touch(&r, &block, r.streams[1], true);
      CHECK_OK(rig_free(&r, &block, r.streams[1]));
    }
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static const test_case cases[] = {
    {"a capture begins before a record, for another stream", capture_begins_before_stealing},
    {"a capture begins before a record, for a trim", capture_begins_before_a_trim},
    {"a capture comes and goes, for another stream", capture_comes_and_goes_before_stealing},
    {"a capture comes and goes between fences", capture_comes_and_goes_between_fences},
    {"a capture comes and goes, for a trim", capture_comes_and_goes_before_a_trim},
    {"many fences prove nothing", many_are_void},
    {"fences before the last of a stream prove nothing", void_before_the_last},
    {"the last fence of a stream proves nothing", last_is_void},
    {"a fence proves nothing, and nobody may be asked", void_beside_a_capture},
    {"a block used by a captured stream", used_by_a_captured_stream},
    {"a stream is replaced by its namesake", stream_is_replaced},
};

int main(int argc, char **argv) {
  return test_run(cases, (int)(sizeof(cases) / sizeof(cases[0])), argc, argv);
}
