/* SPDX-License-Identifier: MIT
 *
 * What the files of the conformance suite share: the device under test, bytes that can be told
 * apart, gates that hold a stream, helper threads, and the tables of cases.
 *
 * The suite runs unchanged on every port, and makes the same number of checks on each: no check
 * stands in a branch or a loop that depends on the device or on timing. */
#ifndef TARN_CONFORM_H
#define TARN_CONFORM_H

#include "port/port.h"
#include "support/test.h"

/* ---- The device under test ------------------------------------------------------------------ */
extern tarni_port *conform_port; /* set by test_port.c before the first case */

bool conform_start(tarni_port *port); /* warms the device up: no later call may load code */
/* Closes the device; returns what the simulated GPU found at the close, such as leaks. */
uint64_t conform_stop(void);
bool conform_is_sim(void);
uint64_t conform_granule(void);

/* The simulated GPU's findings so far, each printed; 0 on a real GPU. */
uint64_t conform_findings(void);
/* For cases that misuse the port on purpose: forgets what the simulated GPU found. */
void conform_forgive(void);

/* True when the status is a failure and the thread's last error tells of it. */
bool conform_fails(tarn_status status);
/* Free bytes by the device's account; UINT64_MAX when it cannot be told. */
uint64_t conform_free_bytes(void);

/* ---- Bytes ---------------------------------------------------------------------------------- */
/* The pattern of a seed; different seeds differ nearly everywhere. */
void conform_pattern(void *bytes, uint64_t size, uint64_t seed);
/* How many bytes differ from the pattern, or from a value. */
uint64_t conform_differ(const void *bytes, uint64_t size, uint64_t seed);
uint64_t conform_differ_value(const void *bytes, uint64_t size, uint8_t value);
/* The same for memory that only the device need be able to reach, by synchronous copies.
 * UINT64_MAX when the copy fails. */
uint64_t conform_device_differ(tarn_ptr address, uint64_t size, uint64_t seed);
uint64_t conform_device_differ_value(tarn_ptr address, uint64_t size, uint8_t value);
tarn_status conform_device_pattern(tarn_ptr address, uint64_t size, uint64_t seed);

/* ---- Mapped memory -------------------------------------------------------------------------- */
typedef struct conform_mapping {
  tarn_ptr address;
  uint64_t size;
  tarni_chunk chunk;
} conform_mapping;

/* Reserves, creates, maps and gives access; and takes it all down again. */
tarn_status conform_map(uint64_t size, conform_mapping *mapping);
tarn_status conform_unmap(const conform_mapping *mapping);

/* ---- Gates ----------------------------------------------------------------------------------
 * A closed gate holds its stream: later work of the stream waits until the gate is opened. A gate
 * that nobody opens is opened by a watchdog after a while, so that a case which waits for what it
 * must not wait for fails and does not hang. */
typedef struct conform_gate conform_gate;
conform_gate *conform_gate_close(tarn_stream stream); /* NULL when the port refuses */
/* False when the gate was NULL or the watchdog had to open it. */
bool conform_gate_open(conform_gate *gate);
bool conform_gate_is_open(conform_gate *gate);
/* Opens it from another thread, later; join with conform_gate_join, which is false like open. */
void conform_gate_open_later(conform_gate *gate, unsigned milliseconds);
bool conform_gate_join(conform_gate *gate);

/* Runs the function on a thread of its own and returns its status. */
tarn_status conform_on_thread(tarn_status (*run)(void *), void *argument);

/* Pinned memory that lives as long as the suite, 64 KiB each, to be used by one case at a time. */
enum { CONFORM_PINNED_BYTES = 65536 };
extern uint8_t *conform_pinned_a;
extern uint8_t *conform_pinned_b;

/* ---- The cases, a table a file -------------------------------------------------------------- */
#define CONFORM_TOPICS(X)                                                                          \
  X(device)                                                                                        \
  X(address)                                                                                       \
  X(chunk)                                                                                         \
  X(plain)                                                                                         \
  X(pool)                                                                                          \
  X(host)                                                                                          \
  X(copy)                                                                                          \
  X(stream)                                                                                        \
  X(event)                                                                                         \
  X(rule)                                                                                          \
  X(capture)                                                                                       \
  X(graph)                                                                                         \
  X(thread)                                                                                        \
  X(child)

typedef struct conform_table {
  const test_case *cases;
  int count;
} conform_table;

#define CONFORM_DECLARE(topic) extern const conform_table conform_##topic;
CONFORM_TOPICS(CONFORM_DECLARE)
#undef CONFORM_DECLARE

#define CONFORM_TABLE(topic, cases)                                                                \
  const conform_table conform_##topic = {cases, (int)(sizeof(cases) / sizeof((cases)[0]))};

/* Runs one named misuse in this process, for conform_child.c, which starts the program again for
 * it: the device may be unusable afterwards. Returns the exit status. */
int conform_child_main(const char *name);

#endif
