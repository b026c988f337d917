/* SPDX-License-Identifier: MIT
 *
 * tarn bench: finds the benchmark and runs it; without a name it lists them. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

static const tool_command benchmarks[] = {
    {"bench copy",
     "[--json] [--device NAME] [--rounds N] [--max BYTES] [--piece BYTES] [--threads N]",
     "Copies of ordinary memory to the device and back, by size, and of many small pieces, beside "
     "the driver's own.",
     bench_copy},
    {"bench pair", "[--json] [--device NAME] [--rounds N] [--peer LIBRARY]",
     "Nanoseconds for an allocation and its free, by size, by threads, and beside other "
     "allocators.",
     bench_pair},
    {"bench pinned", "[--json] [--device NAME] [--rounds N] [--bytes BYTES]",
     "Nanoseconds for a pinned block taken and given back, by size and threads, and how long "
     "pinned "
     "memory takes to be ready.",
     bench_pinned},
    {"bench random", "[--json] [--device NAME] [--case N:MIB] [--peer LIBRARY]",
     "The random_allocations workload of RMM: random sizes, random frees, up to 16000 MiB live.",
     bench_random},
};
enum { N_BENCHMARKS = sizeof(benchmarks) / sizeof(benchmarks[0]) };

static const char *short_name(const tool_command *benchmark) {
  return strchr(benchmark->name, ' ') + 1;
}

static void list_benchmarks(void) {
  for (size_t i = 0; i < N_BENCHMARKS; i++) {
    printf("tarn %s %s\n  %s\n", benchmarks[i].name, benchmarks[i].arguments,
           benchmarks[i].summary);
  }
}

int tool_bench(const tool_command *command, int argc, char **argv) {
  if (argc > 0 && argv[0][0] != '-') {
    for (size_t i = 0; i < N_BENCHMARKS; i++) {
      if (strcmp(short_name(&benchmarks[i]), argv[0]) == 0) {
        return benchmarks[i].run(&benchmarks[i], argc - 1, argv + 1);
      }
    }
    (void)fprintf(stderr, "tarn: there is no benchmark '%s'; `tarn bench` lists them\n", argv[0]);
    return TOOL_USAGE;
  }
  const int result = tool_parse(command, NULL, 0, argc, argv);
  if (result < 0 || result == TOOL_OK) {
    list_benchmarks();
    return TOOL_OK;
  }
  return result;
}
