/* SPDX-License-Identifier: MIT
 *
 * What chunks cost, by their size and by how many are done in one go: creating, mapping, giving
 * access in one call for all of them, unmapping in one call, releasing. Microseconds a chunk, the
 * median of several rounds. Then what many mappings of few chunks cost, each with access of its
 * own: microseconds, and memory of the device and of the host, which is what it has less of for
 * others. The device is TARN_DEVICE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "port/port.h"

enum { N_ROUNDS = 9, N_STEPS = 5, MAX_CHUNKS = 64, MAX_MAPPINGS = 60000 };

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

/* KiB, by the line of that name in a file of /proc. */
static double host_kib(const char *path, const char *name) {
  FILE *file = fopen(path, "r");
  char line[256];
  unsigned long long kib = 0;
  while (file != NULL && kib == 0 && fgets(line, sizeof(line), file) != NULL) {
    if (strncmp(line, name, strlen(name)) == 0) {
      kib = strtoull(line + strlen(name), NULL, 10);
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return (double)kib;
}

typedef struct memory {
  double device, host, resident; /* KiB: that are free, free, and the process's */
} memory;

static memory memory_now(tarni_port *port) {
  uint64_t free_bytes, total_bytes;
  require(tarni_port_info(port, &free_bytes, &total_bytes));
  return (memory){.device = (double)free_bytes / 1024,
                  .host = host_kib("/proc/meminfo", "MemAvailable:"),
                  .resident = host_kib("/proc/self/status", "VmRSS:")};
}

/* Twice as many each time, in a place of its own each. */
static void many_mappings(tarni_port *port) {
  tarni_chunk chunks[MAX_CHUNKS];
  tarn_ptr base;
  const uint64_t size = (uint64_t)2 << 20;
  require(tarni_port_reserve(port, size * MAX_MAPPINGS, 0, &base));
  for (int i = 0; i < MAX_CHUNKS; i++) {
    require(tarni_port_create(port, size, &chunks[i]));
  }
  printf("\n# many mappings of %d chunks of 2 MiB: us a mapping, and KiB\n%8s %9s %9s %9s %9s\n",
         MAX_CHUNKS, "n", "map", "device", "host", "resident");
  const memory before = memory_now(port);
  uint64_t start_ns = tarni_port_now_ns(port);
  for (uint64_t i = 0, next = 1875, first = 0; i < MAX_MAPPINGS;) {
    const tarn_ptr address = base + i * size;
    require(tarni_port_map(port, address, size, chunks[i % MAX_CHUNKS]));
    require(tarni_port_access(port, address, size));
    if (++i == next) {
      const uint64_t ns = tarni_port_now_ns(port) - start_ns;
      const memory now = memory_now(port);
      const double n = (double)i;
      printf("%8llu %9.2f %9.2f %9.2f %9.2f\n", (unsigned long long)i,
             (double)ns / 1e3 / (double)(i - first), (before.device - now.device) / n,
             (before.host - now.host) / n, (now.resident - before.resident) / n);
      first = i;
      next *= 2;
      start_ns = tarni_port_now_ns(port);
    }
  }
  start_ns = tarni_port_now_ns(port);
  for (uint64_t i = 0; i < MAX_MAPPINGS; i++) {
    require(tarni_port_unmap(port, base + i * size, size));
  }
  printf("%8s %9.2f\n", "unmap", (double)(tarni_port_now_ns(port) - start_ns) / 1e3 / MAX_MAPPINGS);
  for (int i = 0; i < MAX_CHUNKS; i++) {
    require(tarni_port_release(port, chunks[i]));
  }
  require(tarni_port_unreserve(port, base, size * MAX_MAPPINGS));
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
  many_mappings(port);
  tarni_port_close(port);
  return 0;
}
