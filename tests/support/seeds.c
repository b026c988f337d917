/* SPDX-License-Identifier: MIT
 *
 * Seeds from the command line, one program after the other. */
#include "support/seeds.h"

#include <inttypes.h>
#include <stdlib.h>

static uint64_t first = 1, count;

void seeds_run_one(seeds_program program, uint64_t seed, bool is_alone) {
  program(seed, is_alone);
  if (test_case_failed()) {
    test_note("seed %" PRIu64 " failed (%s): run this program with arguments %" PRIu64 " 1", seed,
              is_alone ? "one thread" : "several threads", seed);
  }
}

void seeds_run(seeds_program program, bool is_alone) {
  for (uint64_t i = 0; i < count && !test_case_failed(); i++) {
    seeds_run_one(program, first + i, is_alone);
  }
}

int seeds_main(const test_case *cases, int n_cases, uint64_t n_seeds, int argc, char **argv) {
  count = n_seeds;
  if (argc > 2) {
    first = strtoull(argv[1], NULL, 10);
    count = strtoull(argv[2], NULL, 10);
    argv[2] = argv[0];
    argc -= 2;
    argv += 2;
  }
  return test_run(cases, n_cases, argc, argv);
}
