/* SPDX-License-Identifier: MIT
 *
 * A stand-in for libcuda, to test the cuda port where there is no GPU: it does no work, but keeps a
 * stack of contexts for each thread, counts its calls, notes the context of each, and fails on
 * demand. One module is built for each driver version (FAKE_CUDA_VERSION), with the entries that
 * such a driver has. It carries libcuda's SONAME: once a test has opened it by its path, whoever
 * opens libcuda.so.1 gets it. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "port/cuda/driver.h"

typedef enum fake_entry {
#define FAKE_ENTRY_ENUM(member, group, name, version, symbol, parameters) FAKE_##member,
  TARNI_CU_ENTRIES(FAKE_ENTRY_ENUM)
#undef FAKE_ENTRY_ENUM
      FAKE_ENTRY_COUNT
} fake_entry;

enum {
  FAKE_DEVICE_COUNT = 2,
  FAKE_ATTRIBUTE_COUNT = 128,
  FAKE_NODE_COUNT = 100,
  FAKE_GRANULARITY = 2 << 20
};

struct tarni_cu_context_object {
  tarni_cu_device device;
  int n_retained; /* of a primary context */
};

typedef struct fake_cuda {
  /* Set by the test: */
  tarni_cu_result fail_with[FAKE_ENTRY_COUNT]; /* what the entry answers; 0: success */
  bool gives_null;                             /* success, and nothing in the output */
  int attributes[FAKE_ATTRIBUTE_COUNT];        /* of every device */
  int n_devices;
  int refused_handle_type; /* chunks with this handle type are not permitted */
  uint64_t address_offset; /* device address of pinned memory minus its host address */
  uint64_t misalignment;   /* of reserved addresses */
  uint64_t granularity;    /* 0: FAKE_GRANULARITY */
  tarni_cu_capture_status capture_status;
  tarni_cu_capture_mode thread_mode;
  tarni_cu_node nodes[FAKE_NODE_COUNT]; /* that a capturing stream and every node follow */
  tarni_cu_edge edges[FAKE_NODE_COUNT];
  size_t n_nodes;
  uint64_t known_first, known_bytes; /* the one range of addresses that the driver knows */
  unsigned access;                   /* of the device to it */
  /* Noted by the driver: */
  struct tarni_cu_context_object primary[FAKE_DEVICE_COUNT];
  uint64_t n_calls[FAKE_ENTRY_COUNT];
  tarni_cu_context last_context; /* that was current at the last call that needs one */
  uint64_t n_lookups_new;        /* by cuGetProcAddress_v2 */
  uint64_t n_lookups_old;        /* by cuGetProcAddress of 11.3 */
  uint64_t last_flags;           /* of the last call that has any */
  uint64_t last_value;           /* the last number, size or address given */
  int last_handle_type;          /* of the last chunk */
  unsigned last_grid[3];         /* of the last kernel */
  uint64_t last_list[6];         /* the first words of its parameter */
} fake_cuda;

/* The state of the module, by dlsym: a `fake_cuda *(*)(void)` named fake_cuda_state. */
typedef fake_cuda *(*fake_cuda_state_function)(void);

#endif
