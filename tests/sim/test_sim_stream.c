/* SPDX-License-Identifier: MIT
 *
 * Streams and time of the simulated GPU: orders of completion by seed, determinism, default
 * streams, the price list, waiting, and handles that are gone. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "port/port.h"
#include "support/test.h"
#include "tarn/sim.h"

static int n_findings;

static void on_finding(const tarn_sim_finding *finding, void *user) {
  (void)user;
  n_findings++;
  test_note("found: %s", finding->message);
}

static tarn_device *open_device(const char *name) {
  tarn_device *device = NULL;
  n_findings = 0;
  CHECK_OK(tarn_device_open(name, &device));
  CHECK_OK(tarn_sim_set_on_finding(device, on_finding, NULL));
  return device;
}

static void close_device(tarn_device *device, int want_findings) {
  tarn_device_close(device);
  CHECK_EQ(n_findings, want_findings);
}

/* ---- Orders of completion ---- */

typedef struct order_log {
  char text[64];
  int n;
} order_log;

typedef struct order_mark {
  order_log *log;
  char letter;
} order_mark;

static void write_letter(void *user) {
  const order_mark *mark = user;
  mark->log->text[mark->log->n++] = mark->letter;
}

static void launch(tarn_device *device, tarn_stream stream, order_mark *mark) {
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .run = write_letter, .user = mark};
  CHECK_OK(tarn_sim_launch(device, &kernel, stream));
}

/* Three streams with two kernels each; the second of b comes after the first of a. */
static void run_order(const char *name, order_log *log, tarn_sim_state *state) {
  tarn_device *device = open_device(name);
  tarni_port *port = (tarni_port *)device;
  tarn_stream streams[3];
  tarni_event event;
  *log = (order_log){0};
  order_mark marks[6];
  for (int i = 0; i < 6; i++) {
    marks[i] = (order_mark){.log = log, .letter = (char)('a' + i)};
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarni_port_stream_create(port, &streams[i]));
  }
  CHECK_OK(tarni_port_event_create(port, &event));
  launch(device, streams[0], &marks[0]);
  CHECK_OK(tarni_port_event_record(port, event, streams[0]));
  launch(device, streams[0], &marks[1]);
  launch(device, streams[1], &marks[2]);
  CHECK_OK(tarni_port_event_wait(port, streams[1], event));
  launch(device, streams[1], &marks[3]);
  launch(device, streams[2], &marks[4]);
  launch(device, streams[2], &marks[5]);
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarni_port_stream_sync(port, streams[i]));
    CHECK_OK(tarni_port_stream_destroy(port, streams[i]));
  }
  CHECK_OK(tarni_port_event_destroy(port, event));
  *state = (tarn_sim_state){.size = sizeof(*state)};
  CHECK_OK(tarn_sim_get_state(device, state));
  close_device(device, 0);
}

static bool comes_before(const order_log *log, char first, char second) {
  return strchr(log->text, first) < strchr(log->text, second);
}

static void orders_by_seed(void) {
  int n_a_first = 0, n_e_first = 0, n_c_first = 0;
  for (int seed = 1; seed <= 64; seed++) {
    char name[32];
    order_log log;
    tarn_sim_state state;
    (void)snprintf(name, sizeof(name), "sim:1G,seed=%d", seed);
    run_order(name, &log, &state);
    CHECK_EQ(strlen(log.text), 6);
    CHECK(comes_before(&log, 'a', 'b') && comes_before(&log, 'c', 'd') &&
          comes_before(&log, 'e', 'f') && comes_before(&log, 'a', 'd'));
    n_a_first += comes_before(&log, 'a', 'e');
    n_e_first += comes_before(&log, 'e', 'a');
    n_c_first += comes_before(&log, 'c', 'a');
  }
  test_note("of 64: a before e %d, e before a %d, c before a %d", n_a_first, n_e_first, n_c_first);
  CHECK(n_a_first >= 3 && n_e_first >= 3 && n_c_first >= 3);
}

static void same_seed_same_everything(void) {
  static const char *const names[] = {"sim:1G,seed=5", "sim:1G,order=lazy", "sim:1G,order=eager"};
  for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    order_log first, again;
    tarn_sim_state state, state_again;
    run_order(names[i], &first, &state);
    run_order(names[i], &again, &state_again);
    CHECK_TEXT(first.text, again.text);
    CHECK_EQ(state.virtual_ns, state_again.virtual_ns);
    CHECK_EQ(state.operations, state_again.operations);
    CHECK_EQ(state.operations, 8); /* six kernels, a record, a wait */
    CHECK_EQ(state.pending_operations, 0);
  }
}

static void lazy_and_eager(void) {
  order_log log = {0};
  order_mark mark = {.log = &log, .letter = 'x'};
  tarn_device *lazy = open_device("sim:1G,order=lazy");
  tarn_sim_state state = {.size = sizeof(state)};
  for (int i = 0; i < 20; i++) {
    launch(lazy, NULL, &mark);
  }
  CHECK_EQ(log.n, 0);
  CHECK_OK(tarn_sim_get_state(lazy, &state));
  CHECK_EQ(state.pending_operations, 20);
  CHECK_OK(tarn_sim_progress(lazy, 5));
  CHECK_EQ(log.n, 5);
  CHECK_STATUS(tarni_port_stream_query((tarni_port *)lazy, NULL), TARN_NOT_READY);
  CHECK_OK(tarn_sim_progress(lazy, UINT64_MAX));
  CHECK_EQ(log.n, 20);
  CHECK_OK(tarni_port_stream_query((tarni_port *)lazy, NULL));
  close_device(lazy, 0);
  tarn_device *eager = open_device("sim:1G,order=eager");
  launch(eager, NULL, &mark);
  CHECK_EQ(log.n, 21);
  close_device(eager, 0);
}

/* ---- Time ---- */

static uint64_t cost_of(tarn_device *device, tarn_call call, tarn_call_counts *before) {
  tarn_call_counts now = {.size = sizeof(now)};
  CHECK_OK(tarn_device_get_calls(device, &now));
  CHECK_EQ(now.calls[call], before->calls[call] + 1);
  const uint64_t cost = now.nanoseconds[call] - before->nanoseconds[call];
  *before = now;
  return cost;
}

static void price_list(void) {
  const uint64_t mib = 1 << 20, granule = 2 << 20;
  tarn_device *device = open_device("sim:4G");
  tarni_port *port = (tarni_port *)device;
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(device, &counts));
  const uint64_t start = tarni_port_now_ns(port);
  tarn_ptr base, plain;
  tarni_chunk small, large;
  void *pinned;
  uint64_t sum = 0;
#define COST(call, expression, want)                                                               \
  do {                                                                                             \
    CHECK_OK(expression);                                                                          \
    CHECK_EQ(cost_of(device, TARN_CALL_##call, &counts), want);                                    \
    sum += (uint64_t)(want);                                                                       \
    CHECK_EQ(tarni_port_now_ns(port), start + sum);                                                \
  } while (0)
  COST(RESERVE, tarni_port_reserve(port, 258 * mib, 0, &base), 6500);
  COST(CREATE, tarni_port_create(port, granule, &small), 13000);
  COST(CREATE, tarni_port_create(port, 256 * mib, &large), 13000);
  COST(MAP, tarni_port_map(port, base, granule, small), 1500);
  COST(MAP, tarni_port_map(port, base + granule, 256 * mib, large), 1500);
  COST(ACCESS, tarni_port_access(port, base, 258 * mib), 2 * 33000);
  COST(UNMAP, tarni_port_unmap(port, base, 258 * mib), 2 * 22000);
  COST(RELEASE, tarni_port_release(port, small), 15000 + 2 * 400);
  COST(RELEASE, tarni_port_release(port, large), 15000 + 256 * 400);
  COST(UNRESERVE, tarni_port_unreserve(port, base, 258 * mib), 6500);
  COST(PLAIN_ALLOC, tarni_port_plain_alloc(port, 32 * mib, &plain), 32000 + 32 * 300);
  COST(PLAIN_FREE, tarni_port_plain_free(port, plain), 32000 + 32 * 300);
  COST(HOST_ALLOC, tarni_port_host_alloc(port, 64 * mib, 0, &pinned), 450000 + 64 * 540000);
  COST(HOST_FREE, tarni_port_host_free(port, pinned), 450000 + 64 * 35000);
#undef COST
  /* What fails costs its base. */
  CHECK_STATUS(tarni_port_host_alloc(port, UINT64_MAX - 8192, 0, &pinned), TARN_HOST_MEMORY);
  CHECK_EQ(cost_of(device, TARN_CALL_HOST_ALLOC, &counts), 450000);
  close_device(device, 0);
}

/* Waiting takes until the work is done; issuing it does not. */
static void work_takes_time(void) {
  tarn_device *device = open_device("sim:1G,order=lazy");
  tarni_port *port = (tarni_port *)device;
  tarn_stream a, b;
  CHECK_OK(tarni_port_stream_create(port, &a));
  CHECK_OK(tarni_port_stream_create(port, &b));
  const uint64_t start = tarni_port_now_ns(port);
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .nanoseconds = 1000000};
  CHECK_OK(tarn_sim_launch(device, &kernel, a));
  CHECK_OK(tarn_sim_launch(device, &kernel, a));
  CHECK_OK(tarn_sim_launch(device, &kernel, b)); /* beside them */
  CHECK_EQ(tarni_port_now_ns(port), start);
  CHECK_OK(tarni_port_stream_sync(port, b));
  CHECK_EQ(tarni_port_now_ns(port), start + 1000000);
  CHECK_OK(tarni_port_stream_sync(port, a));
  CHECK_EQ(tarni_port_now_ns(port), start + 2000000);
  CHECK_OK(tarni_port_stream_destroy(port, a));
  CHECK_OK(tarni_port_stream_destroy(port, b));
  close_device(device, 0);
}

/* Time ends where its numbers do; it does not begin anew. */
static void time_does_not_wrap(void) {
  tarn_device *device = open_device("sim:1G,order=lazy");
  tarni_port *port = (tarni_port *)device;
  tarn_stream stream;
  tarni_graph graph;
  tarni_graph_exec exec;
  tarn_sim_state state = {.size = sizeof(state)};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .nanoseconds = UINT64_MAX - 1000};
  CHECK_OK(tarni_port_stream_create(port, &stream));
  CHECK_OK(tarni_port_capture_begin(port, stream, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarn_sim_launch(device, &kernel, stream));
  CHECK_OK(tarni_port_capture_end(port, stream, &graph));
  CHECK_OK(tarni_port_graph_instantiate(port, graph, &exec));
  uint64_t before = 0;
  for (int i = 0; i < 4; i++) {
    CHECK_OK(i % 2 == 0 ? tarn_sim_launch(device, &kernel, stream)
                        : tarni_port_graph_launch(port, exec, stream));
    CHECK_OK(tarni_port_stream_sync(port, stream));
    CHECK_OK(tarn_sim_get_state(device, &state));
    CHECK(state.virtual_ns >= before);
    before = state.virtual_ns;
  }
  CHECK_EQ(before, UINT64_MAX);
  CHECK_OK(tarni_port_graph_destroy(port, graph, exec));
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  close_device(device, 0);
}

/* ---- Order ---- */

static void use(tarn_device *device, tarn_ptr address, tarn_stream stream) {
  const tarn_sim_range range = {.address = address, .bytes = 64, .is_write = true};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  CHECK_OK(tarn_sim_launch(device, &kernel, stream));
}

typedef struct thread_use {
  tarn_device *device;
  tarn_ptr address;
} thread_use;

static void *use_on_thread(void *argument) {
  const thread_use *what = argument;
  use(what->device, what->address, TARNI_STREAM_PER_THREAD);
  return NULL;
}

static void on_thread(thread_use *what) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, use_on_thread, what) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
}

/* Default streams follow the legacy one and are followed by it; two threads' do not follow each
 * other, even if the second thread is where the first one was. */
static void default_streams(void) {
  tarn_device *device = open_device("sim:1G,order=lazy");
  tarni_port *port = (tarni_port *)device;
  thread_use what = {.device = device};
  CHECK_OK(tarni_port_plain_alloc(port, 4096, &what.address));
  on_thread(&what);
  use(device, what.address, NULL);
  on_thread(&what);
  CHECK_EQ(n_findings, 0);
  on_thread(&what);
  CHECK_EQ(n_findings, 1);
  /* What the legacy stream waits for, the others wait for, too. */
  tarn_stream stream;
  tarni_event event;
  CHECK_OK(tarni_port_stream_create(port, &stream));
  CHECK_OK(tarni_port_event_create(port, &event));
  use(device, what.address + 1024, stream);
  CHECK_OK(tarni_port_event_record(port, event, stream));
  CHECK_OK(tarni_port_event_wait(port, NULL, event));
  use(device, what.address + 1024, TARNI_STREAM_PER_THREAD);
  CHECK_EQ(n_findings, 1);
  CHECK_OK(tarni_port_stream_sync(port, NULL)); /* and the threads' */
  CHECK_OK(tarni_port_stream_query(port, TARNI_STREAM_PER_THREAD));
  CHECK_OK(tarni_port_event_destroy(port, event));
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  CHECK_OK(tarni_port_plain_free(port, what.address));
  close_device(device, 1);
}

/* A free waits for the work of streams that are gone, and of those whose handles are in use again.
 */
static void free_waits_for_what_is_gone(void) {
  tarn_device *device = open_device("sim:1G,order=lazy");
  tarni_port *port = (tarni_port *)device;
  tarn_ptr block, other;
  tarn_stream old, fresh;
  CHECK_OK(tarni_port_plain_alloc(port, 4096, &block));
  CHECK_OK(tarni_port_plain_alloc(port, 4096, &other));
  CHECK_OK(tarni_port_stream_create(port, &old));
  use(device, block, old);
  CHECK_OK(tarni_port_stream_destroy(port, old));
  CHECK_OK(tarn_sim_progress(device, UINT64_MAX));
  CHECK_OK(tarni_port_stream_create(port, &fresh));
  CHECK(fresh == old);
  CHECK_OK(tarni_port_plain_free(port, other));
  use(device, block, fresh);
  CHECK_OK(tarni_port_plain_free(port, block));
  CHECK_OK(tarni_port_stream_destroy(port, fresh));
  close_device(device, 0);
}

/* Streams that wait and are gone: more queues than there are slots. */
static void many_waiting_queues(void) {
  tarn_device *device = open_device("sim:1G,order=lazy");
  tarni_port *port = (tarni_port *)device;
  tarn_stream held, waiting;
  tarni_event event;
  uint64_t *word;
  CHECK_OK(tarni_port_host_alloc(port, 4096, 0, (void **)&word));
  *word = 0;
  CHECK_OK(tarni_port_stream_create(port, &held));
  CHECK_OK(tarni_port_event_create(port, &event));
  CHECK_OK(tarni_port_value_wait(port, held, word, 1));
  CHECK_OK(tarni_port_event_record(port, event, held));
  for (int i = 0; i < 1000; i++) {
    CHECK_OK(tarni_port_stream_create(port, &waiting));
    CHECK_OK(tarni_port_event_wait(port, waiting, event));
    CHECK_OK(tarni_port_stream_destroy(port, waiting));
  }
  CHECK_STATUS(tarni_port_event_query(port, event), TARN_NOT_READY);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  CHECK_OK(tarni_port_event_sync(port, event));
  CHECK_OK(tarni_port_host_free(port, word));
  CHECK_OK(tarni_port_stream_destroy(port, held));
  CHECK_OK(tarni_port_event_destroy(port, event));
  close_device(device, 0);
}

/* A device that is closed while its work waits for nobody tells so and ends. */
static void closed_while_waiting(void) {
  tarn_device *device = open_device("sim:1G");
  tarni_port *port = (tarni_port *)device;
  tarn_stream stream;
  uint64_t *word;
  CHECK_OK(tarni_port_host_alloc(port, 4096, 0, (void **)&word));
  CHECK_OK(tarni_port_stream_create(port, &stream));
  CHECK_OK(tarni_port_value_wait(port, stream, word, 1));
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  close_device(device, 2); /* the work and the pinned memory */
}

/* ---- Several devices ---- */

static void devices_wait_for_each_other(void) {
  for (int seed = 1; seed <= 8; seed++) {
    char name[32];
    (void)snprintf(name, sizeof(name), "sim:1G,id=1,seed=%d", seed);
    tarn_device *a = open_device(name), *b = NULL;
    CHECK_OK(tarn_device_open("sim:1G,id=2,order=lazy", &b));
    CHECK_OK(tarn_sim_set_on_finding(b, on_finding, NULL));
    tarni_port *port_a = (tarni_port *)a, *port_b = (tarni_port *)b;
    tarn_stream stream_a, stream_b;
    tarni_event event_a, event_b;
    tarn_ptr block_a, block_b;
    CHECK_OK(tarni_port_stream_create(port_a, &stream_a));
    CHECK_OK(tarni_port_stream_create(port_b, &stream_b));
    CHECK_OK(tarni_port_event_create(port_a, &event_a));
    CHECK_OK(tarni_port_event_create(port_b, &event_b));
    CHECK_OK(tarni_port_plain_alloc(port_a, 4096, &block_a));
    CHECK_OK(tarni_port_plain_alloc(port_b, 4096, &block_b));
    /* a fills; b copies it over; a fills again, once b is done. */
    CHECK_OK(tarni_port_fill(port_a, block_a, 1, 4096, stream_a));
    CHECK_OK(tarni_port_event_record(port_a, event_a, stream_a));
    CHECK_OK(tarni_port_event_wait(port_b, stream_b, event_a));
    CHECK_OK(tarni_port_copy(port_b, block_b, block_a, 4096, stream_b));
    CHECK_OK(tarni_port_event_record(port_b, event_b, stream_b));
    CHECK_OK(tarni_port_event_wait(port_a, stream_a, event_b));
    CHECK_OK(tarni_port_fill(port_a, block_a, 2, 4096, stream_a));
    CHECK_EQ(n_findings, 0);
    CHECK_OK(tarni_port_stream_sync(port_a, stream_a));
    CHECK_EQ(((const uint8_t *)(uintptr_t)block_b)[4095], 1);
    CHECK_EQ(((const uint8_t *)(uintptr_t)block_a)[4095], 2);
    /* Without the wait it is a race, though the memory is the other device's. */
    CHECK_OK(tarni_port_fill(port_a, block_a, 3, 4096, stream_a));
    CHECK_OK(tarni_port_copy(port_b, block_b, block_a, 4096, stream_b));
    CHECK_EQ(n_findings, 1);
    /* Handles are of one device. */
    CHECK_STATUS(tarni_port_stream_sync(port_a, stream_b), TARN_INVALID);
    CHECK_STATUS(tarni_port_event_record(port_a, event_b, stream_a), TARN_INVALID);
    CHECK_EQ(n_findings, 3);
    CHECK_OK(tarni_port_plain_free(port_b, block_b));
    CHECK_OK(tarni_port_plain_free(port_a, block_a));
    CHECK_OK(tarni_port_event_destroy(port_a, event_a));
    CHECK_OK(tarni_port_event_destroy(port_b, event_b));
    CHECK_OK(tarni_port_stream_destroy(port_a, stream_a));
    CHECK_OK(tarni_port_stream_destroy(port_b, stream_b));
    tarn_device_close(b);
    close_device(a, 3);
  }
}

static void handles_that_are_gone(void) {
  tarn_device *device = open_device("sim:1G");
  tarni_port *port = (tarni_port *)device;
  tarn_stream stream;
  tarni_event event;
  tarni_graph graph;
  tarni_graph_exec exec;
  tarni_pool pool;
  tarn_ptr block;
  CHECK_OK(tarni_port_stream_create(port, &stream));
  CHECK_OK(tarni_port_capture_begin(port, stream, TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarni_port_capture_end(port, stream, &graph));
  CHECK_OK(tarni_port_graph_instantiate(port, graph, &exec));
  CHECK_OK(tarni_port_event_create(port, &event));
  CHECK_OK(tarni_port_pool_create(port, 0, &pool));
  CHECK_OK(tarni_port_pool_alloc(port, pool, 64, stream, &block));
  CHECK_OK(tarni_port_pool_free(port, block, stream));
  CHECK_STATUS(tarni_port_pool_free(port, block, stream), TARN_INVALID);
  CHECK_OK(tarni_port_graph_destroy(port, graph, exec));
  CHECK_OK(tarni_port_event_destroy(port, event));
  CHECK_OK(tarni_port_pool_destroy(port, pool));
  CHECK_STATUS(tarni_port_graph_launch(port, exec, stream), TARN_INVALID);
  CHECK_STATUS(tarni_port_graph_instantiate(port, graph, &exec), TARN_INVALID);
  CHECK_STATUS(tarni_port_graph_destroy(port, graph, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_record(port, event, stream), TARN_INVALID);
  CHECK_STATUS(tarni_port_event_destroy(port, event), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_alloc(port, pool, 64, stream, &block), TARN_INVALID);
  CHECK_STATUS(tarni_port_pool_destroy(port, pool), TARN_INVALID);
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  CHECK_STATUS(tarni_port_stream_sync(port, stream), TARN_INVALID);
  CHECK_STATUS(tarni_port_stream_destroy(port, stream), TARN_INVALID);
  close_device(device, 10);
}

static const test_case cases[] = {
    {"orders by seed", orders_by_seed},
    {"same seed, same everything", same_seed_same_everything},
    {"lazy and eager", lazy_and_eager},
    {"price list", price_list},
    {"work takes time", work_takes_time},
    {"time does not wrap", time_does_not_wrap},
    {"default streams", default_streams},
    {"a free waits for what is gone", free_waits_for_what_is_gone},
    {"many waiting queues", many_waiting_queues},
    {"closed while waiting", closed_while_waiting},
    {"devices wait for each other", devices_wait_for_each_other},
    {"handles that are gone", handles_that_are_gone},
};

TEST_MAIN(cases)
