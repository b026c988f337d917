/* SPDX-License-Identifier: MIT
 *
 * Long random sequences of transfers against the model, by many seeds. */
#include "base/rng.h"
#include "support/test.h"
#include "support/transfer_model.h"

enum { N_SEEDS = 60, LENGTH = 3000 };

static void random_sequences(void) {
  static uint8_t data[LENGTH];
  for (uint64_t seed = 1; seed <= N_SEEDS && !test_case_failed(); seed++) {
    tarni_rng rng = {.state = seed};
    for (int i = 0; i < LENGTH; i++) {
      data[i] = (uint8_t)tarni_rng_next(&rng);
    }
    transfer_model_run(data, LENGTH);
    if (test_case_failed()) {
      test_note("the seed was %llu", (unsigned long long)seed);
    }
  }
}

static const test_case cases[] = {
    {"random_sequences", random_sequences},
};

TEST_MAIN(cases)
