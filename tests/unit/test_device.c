/* SPDX-License-Identifier: MIT
 *
 * The public face of devices and streams, and the probe, on the simulated GPU. */
#include <pthread.h>
#include <string.h>

#include "port/port.h"
#include "support/test.h"
#include "tarn/capture.h"
#include "tarn/sim.h"
#include "tarn/tarn.h"

static tarn_device *open_sim(const char *name) {
  tarn_device *device = NULL;
  CHECK_OK(tarn_device_open(name, &device));
  return device;
}

static void listing(void) {
  static tarn_device_info infos[64];
  size_t count = 0;
  REQUIRE_OK(tarn_device_list(NULL, 0, &count));
  REQUIRE(count >= 1 && count + 2 <= 64);
  infos[0].size = sizeof(*infos);
  size_t again = 0;
  CHECK_OK(tarn_device_list(infos, count + 2, &again));
  CHECK_EQ(again, count);
  for (size_t i = 0; i < count; i++) {
    CHECK_EQ(infos[i].size, sizeof(*infos));
    CHECK(strlen(infos[i].name) > 0 && strlen(infos[i].model) > 0);
    CHECK(infos[i].total_bytes > 0);
    CHECK_EQ(infos[i].is_simulated, i == count - 1);
  }
  CHECK_TEXT(infos[count - 1].name, "sim");
  CHECK_EQ(infos[count].size, 0);
}

/* Only as much as there is room for, in elements of the caller's own size. */
static void listing_into_little_room(void) {
  struct {
    tarn_device_info info;
    uint64_t guard;
  } wide[2] = {{.info = {.size = sizeof(wide[0])}, .guard = 77}, {.guard = 78}};
  size_t count = 0;
  CHECK_OK(tarn_device_list(&wide[0].info, 1, &count));
  CHECK(count >= 1);
  CHECK(strlen(wide[0].info.name) > 0);
  CHECK_EQ(wide[0].guard, 77);
  CHECK_EQ(strlen(wide[1].info.name), 0);
  tarn_device_info info = {.size = sizeof(info)};
  CHECK_STATUS(tarn_device_list(&info, 1, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_device_list(NULL, 1, &count), TARN_INVALID);
  CHECK_EQ(count, 0);
  info.size = 0;
  CHECK_STATUS(tarn_device_list(&info, 1, &count), TARN_INVALID);
  info.size = 13;
  CHECK_STATUS(tarn_device_list(&info, 1, &count), TARN_INVALID);
}

static void opening(void) {
  tarn_device *first = open_sim("sim:4G");
  tarn_device *second = open_sim("sim:4G");
  REQUIRE(first != NULL);
  CHECK(first == second);
  tarn_device_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_device_get_info(first, &info));
  CHECK_EQ(info.total_bytes, UINT64_C(4) << 30);
  CHECK_EQ(info.free_bytes, UINT64_C(4) << 30);
  CHECK(info.is_simulated && info.has_vmm && info.has_pool);
  tarn_device_close(first);
  CHECK_OK(tarn_device_get_info(second, &info));
  tarn_device_close(second);
  tarn_device_close(NULL);
}

static void wrong_arguments(void) {
  tarn_device *device = (tarn_device *)&device;
  CHECK_STATUS(tarn_device_open("sim", NULL), TARN_INVALID);
  CHECK_STATUS(tarn_device_open("no such device", &device), TARN_INVALID);
  CHECK(device == NULL);
  CHECK_HAS(tarn_last_message(), "no such device");
  CHECK_HAS(tarn_last_message(), "\"sim\"");
  tarn_device_info info = {.size = sizeof(info), .total_bytes = 5};
  CHECK_STATUS(tarn_device_get_info(NULL, &info), TARN_INVALID);
  CHECK_EQ(info.total_bytes, 0);
  tarn_call_counts counts = {.size = sizeof(counts), .calls = {5}};
  CHECK_STATUS(tarn_device_get_calls(NULL, &counts), TARN_INVALID);
  CHECK_EQ(counts.calls[0], 0);
  tarn_stream stream = &device;
  CHECK_STATUS(tarn_stream_create(NULL, &stream), TARN_INVALID);
  CHECK(stream == NULL);
  CHECK_STATUS(tarn_stream_destroy(NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_stream_synchronize(NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_device_copy(NULL, 1, 1, 1, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_device_fill(NULL, 1, 1, 1, NULL), TARN_INVALID);
  tarn_probe_report report = {.size = sizeof(report)};
  CHECK_STATUS(tarn_device_probe(NULL, &report), TARN_INVALID);
}

/* Host memory to host memory by way of a stream. */
static void streams_and_work(void) {
  enum { SIZE = 10000 };
  static uint8_t source[SIZE], destination[SIZE];
  tarn_device *device = open_sim("sim:1G");
  tarn_stream stream;
  REQUIRE(device != NULL);
  REQUIRE_OK(tarn_stream_create(device, &stream));
  memset(source, 0x5b, SIZE);
  CHECK_OK(tarn_device_copy(device, (uintptr_t)destination, (uintptr_t)source, SIZE, stream));
  CHECK_OK(tarn_stream_synchronize(device, stream));
  CHECK(memcmp(source, destination, SIZE) == 0);
  CHECK_OK(tarn_device_copy(device, 0, 0, 0, stream));
  CHECK_OK(tarn_device_fill(device, 0, 1, 0, stream));
  CHECK_STATUS(tarn_device_fill(device, 0, 1, 1, stream), TARN_INVALID);
  CHECK_OK(tarn_stream_destroy(device, stream));
  tarn_device_close(device);
}

static void counted_calls(void) {
  tarn_device *device = open_sim("sim:1G,seed=9");
  tarn_stream stream;
  tarn_call_counts counts = {.size = sizeof(counts)};
  REQUIRE(device != NULL);
  CHECK_OK(tarn_device_get_calls(device, &counts));
  CHECK_EQ(counts.calls[TARN_CALL_STREAM_CREATE], 0);
  REQUIRE_OK(tarn_stream_create(device, &stream));
  CHECK_OK(tarn_stream_destroy(device, stream));
  CHECK_OK(tarn_device_get_calls(device, &counts));
  CHECK_EQ(counts.calls[TARN_CALL_STREAM_CREATE], 1);
  CHECK_EQ(counts.calls[TARN_CALL_STREAM_DESTROY], 1);
  CHECK(counts.nanoseconds[TARN_CALL_STREAM_CREATE] > 0);
  tarn_device_close(device);
}

/* ---- Probe ---------------------------------------------------------------------------------- */

static void probe_verifies_everything(void) {
  tarn_device *device = open_sim("sim:1G,seed=5");
  REQUIRE(device != NULL);
  static tarn_probe_report report;
  report.size = sizeof(report);
  CHECK_OK(tarn_device_probe(device, &report));
  for (int i = 0; i < TARN_PROBE_COUNT; i++) {
    CHECK(report.results[i].is_tried && report.results[i].is_verified);
    CHECK_STATUS(report.results[i].status, TARN_OK);
    CHECK(report.results[i].compared_bytes > 0);
    CHECK_TEXT(report.results[i].message, "");
  }
  for (int call = 0; call < TARN_CALL_COUNT; call++) {
    if (!CHECK(report.prices[call].calls > 0 && report.prices[call].median_ns > 0)) {
      test_note("%s has no price", tarn_call_name((tarn_call)call));
    }
  }
  tarn_sim_state state = {.size = sizeof(state)};
  CHECK_OK(tarn_sim_get_state(device, &state));
  CHECK_EQ(state.created_bytes, 0);
  CHECK_EQ(state.mapped_bytes, 0);
  uint64_t n_findings = 1;
  CHECK_OK(tarn_sim_finding_count(device, &n_findings));
  CHECK_EQ(n_findings, 0);
  tarn_device_close(device);
}

static void probe_tells_what_is_missing(void) {
  tarn_device *device = open_sim("sim:1G,vmm=off,pool=off,register=off");
  REQUIRE(device != NULL);
  static tarn_probe_report report;
  report.size = sizeof(report);
  CHECK_OK(tarn_device_probe(device, &report));
  CHECK(!report.results[TARN_PROBE_CHUNKS].is_tried);
  CHECK_STATUS(report.results[TARN_PROBE_CHUNKS].status, TARN_UNSUPPORTED);
  CHECK(!report.results[TARN_PROBE_POOL].is_tried);
  CHECK(!report.results[TARN_PROBE_REGISTERED].is_tried);
  CHECK(report.results[TARN_PROBE_PLAIN].is_verified);
  CHECK_EQ(report.prices[TARN_CALL_CREATE].calls, 0);
  tarn_device_close(device);
}

/* True when the fault reached a call and the probe told of it. */
static bool probe_notices(tarn_device *device, uint64_t nth, tarn_probe_report *report) {
  CHECK_OK(tarn_sim_fail(device, TARN_CALL_COUNT, nth, 1, 2));
  const tarn_status status = tarn_device_probe(device, report);
  uint64_t n_failed = 0;
  CHECK_OK(tarn_sim_failed(device, &n_failed));
  CHECK_OK(tarn_sim_fail(device, TARN_CALL_COUNT, 0, 0, 0));
  if (n_failed == 0) {
    return false;
  }
  int n_unverified = 0;
  for (int i = 0; i < TARN_PROBE_COUNT; i++) {
    n_unverified += !report->results[i].is_verified && report->results[i].message[0] != '\0';
  }
  CHECK(status != TARN_OK);
  CHECK_EQ(n_unverified, 1);
  return true;
}

/* The n-th driver call fails, for many n: the probe says so, and the next one finds all well. */
static void probe_survives_faults(void) {
  static tarn_probe_report report;
  uint64_t n_noticed = 0;
  for (uint64_t nth = 1; nth < 4000; nth += nth < 20 ? 1 : 67) {
    tarn_device *device = open_sim("sim:1G,seed=6");
    REQUIRE(device != NULL);
    report.size = sizeof(report);
    const bool has_noticed = probe_notices(device, nth, &report);
    n_noticed += has_noticed;
    report.size = sizeof(report);
    CHECK_OK(tarn_device_probe(device, &report));
    tarn_device_close(device);
    if (!has_noticed) {
      break;
    }
  }
  CHECK(n_noticed > 30);
}

typedef struct probing {
  tarn_device *device;
  tarn_status status;
} probing;

static void *probe_from_thread(void *user) {
  static tarn_probe_report report;
  probing *at = user;
  report.size = sizeof(report);
  at->status = tarn_device_probe(at->device, &report);
  return NULL;
}

static tarn_status probe_elsewhere(tarn_device *device) {
  probing at = {.device = device, .status = TARN_CORRUPT};
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, probe_from_thread, &at), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  return at.status;
}

/* A capture in the driver's global mode is not broken by another thread's probe: it does without
 * what breaks captures, and is refused where it knows of one. */
static void probe_during_a_capture(void) {
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:256M"};
  const tarn_capture_config global = {.size = sizeof(global), .mode = TARN_CAPTURE_GLOBAL};
  tarn_heap *heap = NULL;
  tarn_stream stream = NULL;
  tarni_graph driver_graph = NULL;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE_OK(tarn_heap_create(&config, &heap));
  tarn_device *device = tarn_heap_device(heap);
  REQUIRE_OK(tarn_stream_create(device, &stream));
  REQUIRE_OK(tarni_port_capture_begin((tarni_port *)device, stream, TARNI_CAPTURE_GLOBAL));
  CHECK_OK(probe_elsewhere(device));
  CHECK_OK(tarni_port_capture_end((tarni_port *)device, stream, &driver_graph));
  CHECK_OK(tarni_port_graph_destroy((tarni_port *)device, driver_graph, NULL));
  REQUIRE_OK(tarn_capture_begin(heap, &global, stream, &capture));
  CHECK_STATUS(probe_elsewhere(device), TARN_CAPTURE);
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(probe_elsewhere(device));
  CHECK_OK(tarn_stream_retire(heap, stream));
  CHECK_OK(tarn_stream_destroy(device, stream));
  CHECK_OK(tarn_heap_destroy(heap, NULL));
}

static const test_case cases[] = {
    {"device: listing", listing},
    {"device: listing into little room", listing_into_little_room},
    {"device: opening", opening},
    {"device: wrong arguments", wrong_arguments},
    {"device: streams and work", streams_and_work},
    {"device: calls are counted", counted_calls},
    {"device: the probe verifies everything", probe_verifies_everything},
    {"device: the probe tells what is missing", probe_tells_what_is_missing},
    {"device: the probe survives faults", probe_survives_faults},
    {"device: the probe leaves captures alone", probe_during_a_capture},
};
TEST_MAIN(cases)
