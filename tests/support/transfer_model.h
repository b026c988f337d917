/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a sequence of calls on copiers, fences, batches, buffers and scopes, each compared
 * with a simple model of what it must do. The same for a test of many seeds and for libFuzzer. */
#ifndef TARN_TRANSFER_MODEL_H
#define TARN_TRANSFER_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* Failures are failed checks. */
void transfer_model_run(const uint8_t *data, size_t size);

#endif
