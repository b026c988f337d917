/* SPDX-License-Identifier: MIT
 *
 * How fast the simulated GPU is: stream operations a second on one core, watched by the oracle.
 * One round is a kernel that writes a block, an event recorded, another stream that waits for it,
 * and a kernel there that takes the block over: 4 stream operations. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "port/port.h"
#include "tarn/sim.h"

enum { N_STREAMS = 8, N_BLOCKS = 4096, BLOCK = 64 << 10 };

static double now_s(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void require(tarn_status status) {
  if (status != TARN_OK) {
    (void)fprintf(stderr, "bench_sim: %s\n", tarn_last_message());
    exit(1);
  }
}

static void launch(tarn_device *device, tarn_ptr address, tarn_stream stream) {
  const tarn_sim_range range = {.address = address, .bytes = BLOCK, .is_write = true};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  require(tarn_sim_launch(device, &kernel, stream));
}

static void run(tarn_device *device, tarn_ptr base, uint64_t n_rounds) {
  tarni_port *port = (tarni_port *)device;
  tarn_stream streams[N_STREAMS];
  tarni_event events[N_STREAMS];
  for (int i = 0; i < N_STREAMS; i++) {
    require(tarni_port_stream_create(port, &streams[i]));
    require(tarni_port_event_create(port, &events[i]));
  }
  for (uint64_t i = 0; i < n_rounds; i++) {
    const uint64_t from = i % N_STREAMS, to = (i * 5 + 1) % N_STREAMS;
    const tarn_ptr block = base + i * 2654435761u % N_BLOCKS * BLOCK;
    /* A block comes back after N_BLOCKS rounds; by then the host has seen its last use complete. */
    for (int j = 0; j < N_STREAMS && i % 64 == 0; j++) {
      require(tarni_port_stream_sync(port, streams[j]));
    }
    require(tarn_sim_own(device, block, BLOCK, 2 * i + 1));
    launch(device, block, streams[from]);
    require(tarni_port_event_record(port, events[from], streams[from]));
    require(tarni_port_event_wait(port, streams[to], events[from]));
    require(tarn_sim_own(device, block, BLOCK, 2 * i + 2));
    launch(device, block, streams[to]);
  }
  for (int i = 0; i < N_STREAMS; i++) {
    require(tarni_port_stream_sync(port, streams[i]));
    require(tarni_port_stream_destroy(port, streams[i]));
    require(tarni_port_event_destroy(port, events[i]));
  }
}

int main(int argc, char **argv) {
  const uint64_t n_operations = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
  const uint64_t size = (uint64_t)N_BLOCKS * BLOCK;
  tarn_device *device;
  tarni_chunk chunk;
  tarn_ptr base;
  require(tarn_device_open("sim:8G,seed=3", &device));
  tarni_port *port = (tarni_port *)device;
  require(tarni_port_reserve(port, size, 0, &base));
  require(tarni_port_create(port, size, &chunk));
  require(tarni_port_map(port, base, size, chunk));
  require(tarni_port_access(port, base, size));
  const double start = now_s();
  run(device, base, n_operations / 4);
  const double seconds = now_s() - start;
  uint64_t n_findings;
  require(tarn_sim_finding_count(device, &n_findings));
  printf(
      "{\"bench\": \"sim\", \"operations\": %llu, \"seconds\": %.3f, \"ns_per_operation\": %.1f, "
      "\"findings\": %llu}\n",
      (unsigned long long)n_operations, seconds, seconds * 1e9 / (double)n_operations,
      (unsigned long long)n_findings);
  if (n_findings != 0) {
    tarn_sim_finding finding = {.size = sizeof(finding)};
    require(tarn_sim_finding_get(device, 0, &finding));
    printf("%s\n", finding.message);
  }
  require(tarni_port_unmap(port, base, size));
  require(tarni_port_release(port, chunk));
  require(tarni_port_unreserve(port, base, size));
  tarn_device_close(device);
  return 0;
}
