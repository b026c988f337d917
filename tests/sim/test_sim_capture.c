/* SPDX-License-Identifier: MIT
 *
 * Captures, values and pools of the simulated GPU, beyond what the conformance suite asks of every
 * port: what the legacy default stream does to a capture, which calls count as unsafe, what becomes
 * of a capture whose streams or events go, and what the oracle knows about values and pools. */
#include <pthread.h>
#include <string.h>

#include "port/port.h"
#include "support/test.h"
#include "tarn/sim.h"

enum { BLOCK = 4096 };

static tarn_device *device;
static tarni_port *port;
static tarn_stream a, b;
static tarni_event event;
static tarn_ptr block;
static uint64_t *word;
static int n_findings;

static void on_finding(const tarn_sim_finding *finding, void *user) {
  (void)user;
  n_findings++;
  test_note("found: %s", finding->message);
}

static void set_up(const char *name) {
  n_findings = 0;
  CHECK_OK(tarn_device_open(name, &device));
  port = (tarni_port *)device;
  CHECK_OK(tarn_sim_set_on_finding(device, on_finding, NULL));
  CHECK_OK(tarni_port_stream_create(port, &a));
  CHECK_OK(tarni_port_stream_create(port, &b));
  CHECK_OK(tarni_port_event_create(port, &event));
  CHECK_OK(tarni_port_plain_alloc(port, BLOCK, &block));
  CHECK_OK(tarni_port_host_alloc(port, BLOCK, 0, (void **)&word));
}

static void take_down(int want_findings) {
  CHECK_OK(tarni_port_host_free(port, word));
  CHECK_OK(tarni_port_plain_free(port, block));
  CHECK_OK(tarni_port_event_destroy(port, event));
  CHECK_OK(tarni_port_stream_destroy(port, b));
  if (a != NULL) {
    CHECK_OK(tarni_port_stream_destroy(port, a));
  }
  tarn_device_close(device);
  CHECK_EQ(n_findings, want_findings);
}

static int last_code(void) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  return error.driver_code;
}

static tarni_capture_status status_of(tarn_stream stream) {
  tarni_capture_state state = {0};
  CHECK_OK(tarni_port_capture_state(port, stream, &state));
  return state.status;
}

static void use(tarn_ptr address, tarn_stream stream) {
  const tarn_sim_range range = {.address = address, .bytes = 64, .is_write = true};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  CHECK_OK(tarn_sim_launch(device, &kernel, stream));
}

/* Ends a capture that is invalid. */
static void end_invalid(tarn_stream stream) {
  tarni_graph graph;
  CHECK_STATUS(tarni_port_capture_end(port, stream, &graph), TARN_CAPTURE);
  CHECK_EQ(last_code(), 901);
  CHECK(graph == NULL);
  CHECK_EQ(status_of(stream), TARNI_CAPTURE_NONE);
}

/* ---- Captures ---- */

static tarn_status legacy_act(int index) {
  switch (index) {
  case 0:
    return tarni_port_fill(port, block, 1, 64, NULL);
  case 1:
    return tarni_port_stream_sync(port, NULL);
  case 2:
    return tarni_port_stream_query(port, NULL);
  case 3:
    return tarni_port_event_record(port, event, NULL);
  default:
    return tarni_port_event_wait(port, NULL, event);
  }
}

static void legacy_in_mode(tarni_capture_mode mode) {
  for (int i = 0; i < 5; i++) {
    CHECK_OK(tarni_port_capture_begin(port, TARNI_STREAM_PER_THREAD, mode));
    CHECK_STATUS(legacy_act(i), TARN_CAPTURE);
    CHECK_EQ(last_code(), 906);
    CHECK_EQ(status_of(TARNI_STREAM_PER_THREAD), TARNI_CAPTURE_INVALIDATED);
    end_invalid(TARNI_STREAM_PER_THREAD);
  }
  /* A created stream's capture is none of its business, but for waiting. */
  tarni_graph graph;
  CHECK_OK(tarni_port_capture_begin(port, a, mode));
  CHECK_OK(tarni_port_fill(port, block, 1, 64, NULL));
  CHECK_OK(tarni_port_capture_end(port, a, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
}

/* Whatever is done on the legacy stream, in any mode, while the thread's is captured. */
static void legacy_breaks_the_threads_capture(void) {
  set_up("sim:1G");
  legacy_in_mode(TARNI_CAPTURE_GLOBAL);
  legacy_in_mode(TARNI_CAPTURE_THREAD_LOCAL);
  legacy_in_mode(TARNI_CAPTURE_RELAXED);
  take_down(0);
}

static tarn_status unsafe_call(int index) {
  static char memory[BLOCK] __attribute__((aligned(4096)));
  tarni_pool pool;
  tarni_graph_exec exec;
  switch (index) {
  case 0:
    return tarni_port_stream_sync(port, b);
  case 1:
    return tarni_port_stream_query(port, b);
  case 2:
    return tarni_port_host_register(port, memory, BLOCK);
  case 3:
    return tarni_port_host_unregister(port, memory);
  case 4:
    return tarni_port_pool_create(port, 0, &pool);
  case 5:
    return tarni_port_graph_instantiate(port, (tarni_graph)memory, &exec);
  case 6:
    return tarni_port_plain_free(port, block);
  default:
    return tarni_port_host_free(port, word);
  }
}

static void unsafe_calls(void) {
  for (int mode = 0; mode < 2; mode++) {
    set_up("sim:1G");
    for (int i = 0; i < 8; i++) {
      CHECK_OK(tarni_port_capture_begin(port, a, (tarni_capture_mode)mode));
      CHECK_STATUS(unsafe_call(i), TARN_CAPTURE);
      CHECK_EQ(last_code(), 900);
      CHECK_EQ(status_of(a), TARNI_CAPTURE_INVALIDATED);
      end_invalid(a);
    }
    take_down(0);
  }
}

/* A global capture on one device concerns the calls on another one, too. */
static void captures_of_other_devices(void) {
  tarn_device *other;
  tarn_ptr address;
  set_up("sim:1G,id=1");
  REQUIRE_OK(tarn_device_open("sim:1G,id=2", &other));
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_GLOBAL));
  CHECK_STATUS(tarni_port_plain_alloc((tarni_port *)other, 64, &address), TARN_CAPTURE);
  end_invalid(a);
  CHECK_OK(tarni_port_plain_alloc((tarni_port *)other, 64, &address));
  CHECK_OK(tarni_port_plain_free((tarni_port *)other, address));
  tarn_device_close(other);
  take_down(0);
}

static void captured_events(void) {
  tarni_graph graph;
  set_up("sim:1G");
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_event_record(port, event, a));
  CHECK_STATUS(tarni_port_event_query(port, event), TARN_CAPTURE);
  CHECK_EQ(last_code(), 907);
  end_invalid(a);
  /* Of a capture that is over: nobody can ask or wait. */
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_event_record(port, event, a));
  CHECK_OK(tarni_port_capture_end(port, a, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  CHECK_STATUS(tarni_port_event_query(port, event), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_sync(port, event), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_wait(port, b, event), TARN_INVALID);
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_RELAXED));
  CHECK_STATUS(tarni_port_event_wait(port, a, event), TARN_INVALID);
  end_invalid(a);
  /* An event may go while what it stands for is being captured. */
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_event_record(port, event, a));
  CHECK_OK(tarni_port_event_destroy(port, event));
  CHECK_OK(tarni_port_event_create(port, &event));
  CHECK_OK(tarni_port_capture_end(port, a, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  take_down(0);
}

static void streams_that_go(void) {
  tarn_ptr plain;
  tarni_graph graph;
  set_up("sim:1G");
  /* A branch: another stream with its handle is in no capture, and what it did is not forgotten,
   * until a third stream that followed it is joined. */
  for (int is_joined = 0; is_joined < 2; is_joined++) {
    tarn_stream c;
    CHECK_OK(tarni_port_stream_create(port, &c));
    CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_GLOBAL));
    CHECK_OK(tarni_port_event_record(port, event, a));
    CHECK_OK(tarni_port_event_wait(port, b, event));
    use(block, b);
    CHECK_OK(tarni_port_event_record(port, event, b));
    CHECK_OK(tarni_port_event_wait(port, c, event));
    CHECK_OK(tarni_port_stream_destroy(port, b));
    CHECK_OK(tarni_port_stream_create(port, &b));
    CHECK_EQ(status_of(b), TARNI_CAPTURE_NONE);
    use(block, c);
    CHECK_OK(tarni_port_event_record(port, event, c));
    CHECK_OK(tarni_port_stream_destroy(port, c));
    if (is_joined != 0) {
      CHECK_OK(tarni_port_event_wait(port, a, event));
    }
    CHECK_STATUS(tarni_port_capture_end(port, a, &graph), is_joined != 0 ? TARN_OK : TARN_CAPTURE);
    CHECK_EQ(is_joined != 0 ? 904 : last_code(), 904);
    CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  }
  /* The first stream: the capture goes with it. */
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_GLOBAL));
  CHECK_OK(tarni_port_event_record(port, event, a));
  CHECK_OK(tarni_port_event_wait(port, b, event));
  use(block, a);
  CHECK_OK(tarni_port_stream_destroy(port, a));
  a = NULL;
  CHECK_EQ(status_of(b), TARNI_CAPTURE_NONE);
  CHECK_OK(tarni_port_plain_alloc(port, 64, &plain));
  CHECK_OK(tarni_port_plain_free(port, plain));
  take_down(0);
}

static void launches_into_captures(void) {
  tarni_graph graph;
  tarni_graph_exec exec;
  set_up("sim:1G");
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_RELAXED));
  use(block, a);
  CHECK_OK(tarni_port_capture_end(port, a, &graph));
  CHECK_OK(tarni_port_graph_instantiate(port, graph, &exec));
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_RELAXED));
  CHECK_STATUS(tarni_port_graph_launch(port, exec, a), TARN_CAPTURE);
  end_invalid(a);
  /* Destroyed while a launch is pending: it runs to its end. */
  CHECK_OK(tarni_port_graph_launch(port, exec, a));
  CHECK_OK(tarni_port_graph_destroy(port, graph, exec));
  CHECK_OK(tarni_port_stream_sync(port, a));
  take_down(0);
}

/* A graph over memory that is gone is told at its launch, and breaks the device when it runs. */
static void graph_over_nothing(void) {
  tarni_graph graph;
  tarni_graph_exec exec;
  tarn_ptr plain;
  set_up("sim:1G,order=lazy");
  CHECK_OK(tarni_port_plain_alloc(port, 64, &plain));
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_fill(port, plain, 1, 64, a));
  CHECK_OK(tarni_port_capture_end(port, a, &graph));
  CHECK_OK(tarni_port_graph_instantiate(port, graph, &exec));
  CHECK_OK(tarni_port_plain_free(port, plain));
  CHECK_OK(tarni_port_graph_launch(port, exec, a));
  CHECK_EQ(n_findings, 1);
  CHECK_STATUS(tarni_port_stream_sync(port, a), TARN_DEVICE_LOST);
  CHECK_EQ(last_code(), 700);
  tarn_device_close(device);
  CHECK_EQ(n_findings, 1);
}

/* ---- Values ---- */

/* A value that is waited for orders; one that is not does not. */
static void values_order_streams(void) {
  set_up("sim:1G,order=lazy");
  *word = 0;
  use(block, a);
  CHECK_OK(tarni_port_value_write(port, a, word, 1));
  CHECK_OK(tarni_port_value_wait(port, b, word, 1));
  use(block, b);
  CHECK_EQ(n_findings, 0);
  CHECK_OK(tarni_port_value_write(port, b, word, 2));
  CHECK_OK(tarni_port_value_wait(port, a, word, 1)); /* not 2: not what b has just done */
  use(block, a);
  CHECK_EQ(n_findings, 1);
  /* The host sees a value as soon as it is written. */
  CHECK_OK(tarni_port_value_write(port, a, word, 3));
  CHECK_OK(tarn_sim_progress(device, UINT64_MAX));
  CHECK_EQ(*word, 3);
  CHECK_OK(tarni_port_value_wait(port, b, word, 3));
  use(block, b);
  CHECK_EQ(n_findings, 1);
  take_down(1);
}

/* Either of two writes may be the one that is seen: only what both have behind them is known. */
static void values_of_two_writers(void) {
  tarn_stream c;
  set_up("sim:1G,order=lazy");
  CHECK_OK(tarni_port_stream_create(port, &c));
  *word = 0;
  use(block, a);
  CHECK_OK(tarni_port_event_record(port, event, a));
  CHECK_OK(tarni_port_event_wait(port, b, event));
  use(block + 1024, a);
  use(block + 2048, b);
  CHECK_OK(tarni_port_value_write(port, a, word, 1));
  CHECK_OK(tarni_port_value_write(port, b, word, 1));
  CHECK_OK(tarni_port_value_wait(port, c, word, 1));
  use(block, c);
  CHECK_EQ(n_findings, 0);
  use(block + 1024, c);
  CHECK_EQ(n_findings, 1);
  use(block + 2048, c);
  CHECK_EQ(n_findings, 2);
  CHECK_OK(tarni_port_stream_sync(port, c));
  CHECK_OK(tarni_port_stream_destroy(port, c));
  take_down(2);
}

/* A graph that waits for a value relies on it as a stream does, launch by launch; a branch of it
 * that does not wait is not in order. */
static void values_order_graphs(void) {
  for (int is_branch = 0; is_branch < 2; is_branch++) {
    tarni_graph graph;
    tarni_graph_exec exec;
    set_up("sim:1G,order=lazy");
    *word = 0;
    CHECK_OK(tarni_port_capture_begin(port, b, TARNI_CAPTURE_RELAXED));
    CHECK_OK(tarni_port_event_record(port, event, b));
    CHECK_OK(tarni_port_value_wait(port, b, word, 1));
    use(block, b);
    if (is_branch != 0) {
      CHECK_OK(tarni_port_event_wait(port, a, event));
      use(block + 1024, a);
      CHECK_OK(tarni_port_event_record(port, event, a));
      CHECK_OK(tarni_port_event_wait(port, b, event));
    }
    CHECK_OK(tarni_port_capture_end(port, b, &graph));
    CHECK_OK(tarni_port_graph_instantiate(port, graph, &exec));
    use(block, a);
    use(block + 1024, a);
    CHECK_OK(tarni_port_value_write(port, a, word, 1));
    CHECK_OK(tarni_port_graph_launch(port, exec, b));
    CHECK_EQ(n_findings, is_branch);
    CHECK_OK(tarni_port_stream_sync(port, b));
    CHECK_OK(tarni_port_graph_destroy(port, graph, exec));
    take_down(is_branch);
  }
}

/* A word whose memory is gone when the stream gets there breaks the device; no byte is touched. */
static void value_over_nothing(void) {
  static uint64_t memory[512] __attribute__((aligned(4096)));
  set_up("sim:1G,order=lazy");
  CHECK_OK(tarni_port_host_register(port, memory, sizeof(memory)));
  CHECK_OK(tarni_port_value_write(port, a, memory, 5));
  CHECK_OK(tarni_port_host_unregister(port, memory));
  CHECK_EQ(n_findings, 1); /* unmapped while in use */
  CHECK_STATUS(tarni_port_stream_sync(port, a), TARN_DEVICE_LOST);
  CHECK_EQ(memory[0], 0);
  tarn_device_close(device);
}

/* ---- Pools ---- */

static void pools_and_the_oracle(void) {
  tarni_pool pool;
  tarn_ptr first, second;
  set_up("sim:1G,order=lazy");
  CHECK_OK(tarni_port_pool_create(port, UINT64_MAX, &pool));
  CHECK_OK(tarni_port_pool_alloc(port, pool, BLOCK, a, &first));
  use(first, a);
  CHECK_OK(tarni_port_pool_free(port, first, a));
  CHECK_EQ(n_findings, 0);
  use(first, a); /* after its free */
  CHECK_EQ(n_findings, 1);
  CHECK_OK(tarni_port_pool_alloc(port, pool, BLOCK, a, &second));
  CHECK_EQ(first, second);
  use(second, a);
  CHECK_EQ(n_findings, 1);
  use(second, b); /* not ordered after its allocation */
  CHECK_EQ(n_findings, 2);
  CHECK_OK(tarni_port_pool_free(port, second, a)); /* not ordered after b's use */
  CHECK_EQ(n_findings, 3);
  /* Another stream gets it only once the free is done. */
  CHECK_OK(tarni_port_pool_alloc(port, pool, BLOCK, b, &second));
  CHECK(second != first);
  CHECK_OK(tarni_port_pool_free(port, second, b));
  CHECK_OK(tarni_port_pool_destroy(port, pool));
  CHECK_EQ(n_findings, 3);
  take_down(3);
}

/* A pool goes with its last block, and destroying it tells the host nothing. */
static void pools_that_go(void) {
  tarni_pool pool;
  tarn_ptr pooled;
  tarn_sim_state state = {.size = sizeof(state)};
  set_up("sim:1G,order=lazy");
  use(block, a);
  CHECK_OK(tarni_port_pool_create(port, 0, &pool));
  CHECK_OK(tarni_port_pool_alloc(port, pool, BLOCK, a, &pooled));
  CHECK_OK(tarni_port_pool_destroy(port, pool));
  use(pooled, a);
  CHECK_OK(tarni_port_pool_free(port, pooled, a));
  CHECK_EQ(n_findings, 0);
  use(block, b);
  CHECK_EQ(n_findings, 1);
  CHECK_OK(tarni_port_stream_sync(port, a));
  CHECK_OK(tarn_sim_get_state(device, &state));
  CHECK_EQ(state.created_bytes, BLOCK); /* the plain block is all that is left */
  take_down(1);
}

/* A programmatic launch is no order: neither for itself nor for what comes after it alone. */
static void early_kernels(void) {
  set_up("sim:1G");
  for (int is_early = 0; is_early < 2; is_early++) {
    const tarn_sim_range range = {.address = block, .bytes = 64, .is_write = true};
    const tarn_sim_kernel kernel = {
        .size = sizeof(kernel), .ranges = &range, .n_ranges = 1, .is_early = is_early != 0};
    tarni_graph graph;
    tarni_graph_exec exec;
    tarni_edge edge = {0};
    uint32_t count = 0;
    CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_THREAD_LOCAL));
    use(block, a);
    CHECK_OK(tarn_sim_launch(device, &kernel, a));
    CHECK_OK(tarni_port_capture_nodes(port, a, &edge, 1, &count));
    CHECK_EQ(count, 1);
    CHECK_OK(tarni_port_node_before(port, edge.node, &edge, 1, &count));
    CHECK_EQ(count, 1);
    CHECK_EQ(edge.is_full, !is_early);
    CHECK_OK(tarni_port_capture_end(port, a, &graph));
    CHECK_OK(tarni_port_graph_instantiate(port, graph, &exec));
    CHECK_OK(tarni_port_graph_launch(port, exec, a));
    CHECK_OK(tarni_port_stream_sync(port, a));
    CHECK_EQ(n_findings, is_early);
    CHECK_OK(tarni_port_graph_destroy(port, graph, exec));
  }
  take_down(1);
}

/* Nodes of no capture, and streams in none. */
static void nodes_that_are_not_there(void) {
  set_up("sim:1G");
  tarni_edge edge;
  uint32_t count = 3;
  CHECK_STATUS(tarni_port_node_before(port, UINT64_C(77) << 32 | 1, &edge, 1, &count),
               TARN_INVALID);
  CHECK_EQ(count, 0);
  CHECK_OK(tarni_port_capture_begin(port, a, TARNI_CAPTURE_GLOBAL));
  use(block, a);
  CHECK_STATUS(tarni_port_plain_alloc(port, 64, &(tarn_ptr){0}), TARN_CAPTURE);
  CHECK_STATUS(tarni_port_capture_nodes(port, a, &edge, 1, &count), TARN_STATE);
  end_invalid(a);
  take_down(1);
}

static const test_case cases[] = {
    {"programmatic launches are no order", early_kernels},
    {"nodes that are not there", nodes_that_are_not_there},
    {"the legacy stream breaks the thread's capture", legacy_breaks_the_threads_capture},
    {"unsafe calls", unsafe_calls},
    {"captures of other devices", captures_of_other_devices},
    {"captured events", captured_events},
    {"streams that go", streams_that_go},
    {"launches into captures", launches_into_captures},
    {"a graph over nothing", graph_over_nothing},
    {"values order streams", values_order_streams},
    {"values of two writers", values_of_two_writers},
    {"values order graphs", values_order_graphs},
    {"a value over nothing", value_over_nothing},
    {"pools and the oracle", pools_and_the_oracle},
    {"pools that go", pools_that_go},
};

TEST_MAIN(cases)
