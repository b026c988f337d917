/* SPDX-License-Identifier: MIT
 *
 * The simulated GPU, for programs that test themselves on it. Every call takes a device that was
 * opened as "sim..."; on another device it fails with TARN_UNSUPPORTED.
 *
 * The simulated GPU keeps real bytes: a tarn_ptr is an ordinary address of this process, and the
 * bytes behind it can be read once the work that writes them is synchronised. Work completes late
 * and in an order chosen by the seed. The oracle watches every use of memory: it knows which order
 * streams, events and the host really give, and reports each use that this order does not cover,
 * in every run, without luck. */
#ifndef TARN_SIM_H
#define TARN_SIM_H

#include "tarn/tarn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Kernels --------------------------------------------------------------------------------
 * A kernel is a list of byte ranges that it reads or writes, and optionally a function that runs on
 * the host at the time when the simulated GPU gets there. */
typedef struct tarn_sim_range {
  tarn_ptr address;
  uint64_t bytes;
  uint64_t owner; /* who the kernel works for; 0: whoever owns the range now */
  bool is_write;
} tarn_sim_range;

typedef struct tarn_sim_kernel {
  size_t size;
  const tarn_sim_range *ranges;
  size_t n_ranges;
  void (*run)(void *user); /* may be NULL; must not call tarn */
  void *user;
  uint64_t nanoseconds; /* of GPU time on the virtual clock; 0: 2000 */
  bool is_early; /* in a capture: a programmatic launch, which follows what the stream has done so
                    far by no order that memory can rely on; elsewhere it means nothing */
} tarn_sim_kernel;

TARN_API tarn_status tarn_sim_launch(tarn_device *device, const tarn_sim_kernel *kernel,
                                     tarn_stream stream);

/* ---- Owners ---------------------------------------------------------------------------------
 * Says who owns a range from now on: any number but 0. Two uses of one byte on behalf of different
 * owners must be ordered, whatever they do; under one owner only when one of them writes.
 * A range whose owner is 0 (given back) may not be used at all. Memory that was never named has one
 * nameless owner. */
TARN_API tarn_status tarn_sim_own(tarn_device *device, tarn_ptr address, uint64_t bytes,
                                  uint64_t owner);
TARN_API tarn_status tarn_sim_disown(tarn_device *device, tarn_ptr address, uint64_t bytes);

/* ---- The oracle's findings ------------------------------------------------------------------ */
#define TARN_SIM_FINDING_MAP(X)                                                                    \
  X(REUSE, "reuse", "memory used by a new owner with no order after the old owner's use")          \
  X(RACE, "race", "two uses of the same bytes, one of them a write, with no order between them")   \
  X(FREED, "freed", "memory used after its owner gave it back")                                    \
  X(UNMAPPED, "unmapped", "memory used where nothing is mapped or no access was given")            \
  X(UNMAP_IN_USE, "unmap-in-use",                                                                  \
    "memory unmapped or freed while work that uses it may still run")                              \
  X(DOUBLE_MAP, "double-map", "a range mapped over an existing mapping")                           \
  X(LEAK, "leak", "something still existed when the device was closed")                            \
  X(MISUSE, "misuse", "a handle or an address the device does not know")

typedef enum tarn_sim_finding_kind {
#define TARN_SIM_FINDING_ENUM(name, text, meaning) TARN_SIM_##name,
  TARN_SIM_FINDING_MAP(TARN_SIM_FINDING_ENUM)
#undef TARN_SIM_FINDING_ENUM
      TARN_SIM_FINDING_COUNT
} tarn_sim_finding_kind;

/* One use of memory, as a finding names it. */
typedef struct tarn_sim_use {
  const char *operation; /* "kernel", "copy", "fill", "pool_alloc", "pool_free"; NULL: none */
  uint64_t stream_id;
  uint64_t sequence; /* the how-manieth operation of its stream */
  uint64_t owner;
  bool is_write;
} tarn_sim_use;

typedef struct tarn_sim_finding {
  size_t size;
  tarn_sim_finding_kind kind;
  tarn_ptr address; /* first byte concerned */
  uint64_t bytes;
  tarn_sim_use first;  /* the earlier use */
  tarn_sim_use second; /* the use that is not ordered after it */
  char message[256];
  uint64_t owner; /* who owned the range then; 0: nobody, or it was never named */
} tarn_sim_finding;

/* The number of findings so far, and one of the first 64 of them, by index. */
TARN_API tarn_status tarn_sim_finding_count(tarn_device *device, uint64_t *count);
TARN_API tarn_status tarn_sim_finding_get(tarn_device *device, size_t index,
                                          tarn_sim_finding *finding);
/* Forgets the findings so far: for tests that provoke them. */
TARN_API tarn_status tarn_sim_finding_clear(tarn_device *device);

/* Called for every finding as it is made, from inside the call that makes it, also while the
 * device is being closed. It must not call tarn. NULL: none. */
typedef void (*tarn_sim_on_finding)(const tarn_sim_finding *finding, void *user);
TARN_API tarn_status tarn_sim_set_on_finding(tarn_device *device, tarn_sim_on_finding callback,
                                             void *user);

/* ---- Faults ---------------------------------------------------------------------------------
 * Makes a driver call fail: the `nth` (1 is the next) of the given kind, or of any kind for
 * TARN_CALL_COUNT, then `times` in all (0: from then on, for good), with this CUDA result code (0:
 * out of memory; 600, not ready, only for queries). A code that breaks a GPU breaks this one: from
 * then on every call fails with it.
 * A call that fails by the plan is counted and costs its base price, and changes nothing else. A
 * new plan replaces the old one; nth 0 ends it. */
TARN_API tarn_status tarn_sim_fail(tarn_device *device, tarn_call call, uint64_t nth,
                                   uint64_t times, int driver_code);
/* How many calls have failed by the plan so far. */
TARN_API tarn_status tarn_sim_failed(tarn_device *device, uint64_t *count);

/* ---- Time and memory ------------------------------------------------------------------------ */
typedef struct tarn_sim_state {
  size_t size;
  uint64_t virtual_ns;    /* the virtual clock: what the calls so far would have cost the host */
  uint64_t created_bytes; /* physical memory that exists: chunks, plain memory, pools */
  uint64_t peak_bytes;    /* its peak */
  uint64_t mapped_bytes;  /* sum of all mappings */
  uint64_t pending_operations;
  uint64_t operations; /* stream operations so far */
} tarn_sim_state;

TARN_API tarn_status tarn_sim_get_state(tarn_device *device, tarn_sim_state *state);

/* Lets the simulated GPU do up to `operations` of its pending work, in an order of its choice. */
TARN_API tarn_status tarn_sim_progress(tarn_device *device, uint64_t operations);

#ifdef __cplusplus
}
#endif

#endif
