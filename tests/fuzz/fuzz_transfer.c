/* SPDX-License-Identifier: MIT
 *
 * libFuzzer over sequences of transfers: any bytes, against the model. */
#include <stdlib.h>

#include "support/test.h"
#include "support/transfer_model.h"

/* NOLINTBEGIN(readability-identifier-naming): libFuzzer's own name */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  transfer_model_run(data, size);
  if (test_case_failed()) {
    abort();
  }
  return 0;
}
/* NOLINTEND(readability-identifier-naming) */
