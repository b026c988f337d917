/* SPDX-License-Identifier: MIT
 *
 * Runs a body of checks in a child process of its own, with or without the stand-in for libcuda
 * (tests/support/fake_cuda): the driver is loaded once in a process, so each body that needs one in
 * a certain state needs a process too. A failed check in the child fails the case. */
#ifndef TARN_FAKE_DRIVER_H
#define TARN_FAKE_DRIVER_H

#include "support/fake_cuda/fake_cuda.h"
#include "support/test.h"

/* The state of the stand-in, in a body that runs with it. */
extern fake_cuda *fake;

/* Whether there is a libcuda.so.1 without the stand-in. Does not load it into this process. */
bool fake_machine_has_driver(void);

void fake_run_alone(void (*body)(void));

/* libcuda.so.1 is the stand-in of the given version, "13000". Skips the case where the tests were
 * built without it. */
void fake_run(const char *version, void (*body)(void));

#endif
