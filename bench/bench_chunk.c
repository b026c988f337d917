/* SPDX-License-Identifier: MIT
 *
 * What chunks cost, by their size and by how many are done in one go: creating, mapping, giving
 * access in one call for all of them, unmapping in one call, releasing. Microseconds a chunk, the
 * median of several rounds. The device is TARN_DEVICE. */
#include <stdio.h>
#include <stdlib.h>

#include "port/port.h"

enum { N_ROUNDS = 9, N_STEPS = 5, MAX_CHUNKS = 64 };

static const char *const step_names[N_STEPS] = {"create", "map", "access", "unmap", "release"};

static void require(tarn_status status) {
  if (status != TARN_OK) {
    (void)fprintf(stderr, "bench_chunk: %s\n", tarn_last_message());
    exit(1);
  }
}

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void round_of(tarni_port *port, uint64_t size, int n, uint64_t ns[N_STEPS]) {
  tarni_chunk chunks[MAX_CHUNKS];
  tarn_ptr base;
  require(tarni_port_reserve(port, size * (uint64_t)n, 0, &base));
  uint64_t t[N_STEPS + 1];
  t[0] = tarni_port_now_ns(port);
  for (int i = 0; i < n; i++) {
    require(tarni_port_create(port, size, &chunks[i]));
  }
  t[1] = tarni_port_now_ns(port);
  for (int i = 0; i < n; i++) {
    require(tarni_port_map(port, base + (uint64_t)i * size, size, chunks[i]));
  }
  t[2] = tarni_port_now_ns(port);
  require(tarni_port_access(port, base, size * (uint64_t)n));
  t[3] = tarni_port_now_ns(port);
  require(tarni_port_unmap(port, base, size * (uint64_t)n));
  t[4] = tarni_port_now_ns(port);
  for (int i = 0; i < n; i++) {
    require(tarni_port_release(port, chunks[i]));
  }
  t[5] = tarni_port_now_ns(port);
  require(tarni_port_unreserve(port, base, size * (uint64_t)n));
  for (int i = 0; i < N_STEPS; i++) {
    ns[i] = t[i + 1] - t[i];
  }
}

int main(void) {
  tarni_port *port;
  require(tarni_port_open(NULL, &port));
  printf("# %s, %s: us a chunk\n%8s %6s", port->device.name, port->device.model, "MiB", "n");
  for (int i = 0; i < N_STEPS; i++) {
    printf(" %9s", step_names[i]);
  }
  printf("\n");
  const int sizes[] = {2, 4, 8, 16, 32, 64, 256}, counts[] = {1, 4, 16, 64};
  for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
    for (unsigned c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
      uint64_t ns[N_STEPS][N_ROUNDS], round[N_STEPS];
      for (int r = 0; r < N_ROUNDS; r++) {
        round_of(port, (uint64_t)sizes[s] << 20, counts[c], round);
        for (int i = 0; i < N_STEPS; i++) {
          ns[i][r] = round[i];
        }
      }
      printf("%8d %6d", sizes[s], counts[c]);
      for (int i = 0; i < N_STEPS; i++) {
        qsort(ns[i], N_ROUNDS, sizeof(ns[i][0]), compare);
        const uint64_t median = ns[i][N_ROUNDS / 2];
        printf(" %9.2f", (double)median / 1e3 / counts[c]);
      }
      printf("\n");
    }
  }
  tarni_port_close(port);
  return 0;
}
