/* SPDX-License-Identifier: MIT
 *
 * Random programs by their seeds, of one thread or of several: what tests of them have in common.
 * With arguments: the first seed, and how many. */
#ifndef TARN_SEEDS_H
#define TARN_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

#include "support/test.h"

typedef void (*seeds_program)(uint64_t seed, bool is_alone);

/* Runs a program with all seeds until one fails, and tells how to run that one again. */
void seeds_run(seeds_program program, bool is_alone);
/* The same with one seed. */
void seeds_run_one(seeds_program program, uint64_t seed, bool is_alone);
/* For main: takes the seeds from the arguments, and runs the cases with the others. */
int seeds_main(const test_case *cases, int n_cases, uint64_t n_seeds, int argc, char **argv);

#endif
