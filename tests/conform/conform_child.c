/* SPDX-License-Identifier: MIT
 *
 * Conformance: misuse after which a device may be broken for good. Each is done by this program
 * started again as a child, which says by its exit status whether the misuse was refused. */
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conform/conform.h"

/* Exit statuses of the child. */
enum { CHILD_REFUSED = 40, CHILD_ACCEPTED = 41, CHILD_UNPREPARED = 42 };

/* Fills the range and waits: what either call says. */
static int fill_is_refused(tarn_ptr address, uint64_t size) {
  tarn_stream stream;
  if (tarni_port_stream_create(conform_port, &stream) != TARN_OK) {
    return CHILD_UNPREPARED;
  }
  const tarn_status filled = tarni_port_fill(conform_port, address, 1, size, stream);
  const tarn_status synced = tarni_port_stream_sync(conform_port, stream);
  return filled != TARN_OK || synced != TARN_OK ? CHILD_REFUSED : CHILD_ACCEPTED;
}

static int use_without_access(void) {
  const uint64_t size = conform_granule();
  tarn_ptr address;
  tarni_chunk chunk;
  if (tarni_port_reserve(conform_port, size, 0, &address) != TARN_OK ||
      tarni_port_create(conform_port, size, &chunk) != TARN_OK ||
      tarni_port_map(conform_port, address, size, chunk) != TARN_OK) {
    return CHILD_UNPREPARED;
  }
  return fill_is_refused(address, size);
}

static int use_after_unmap(void) {
  conform_mapping mapping;
  if (conform_map(conform_granule(), &mapping) != TARN_OK ||
      tarni_port_fill_sync(conform_port, mapping.address, 1, mapping.size) != TARN_OK ||
      tarni_port_unmap(conform_port, mapping.address, mapping.size) != TARN_OK) {
    return CHILD_UNPREPARED;
  }
  return fill_is_refused(mapping.address, mapping.size);
}

static int use_beyond_mapping(void) {
  tarn_ptr address;
  tarni_chunk chunk;
  const uint64_t granule = conform_granule();
  if (tarni_port_reserve(conform_port, granule * 2, 0, &address) != TARN_OK ||
      tarni_port_create(conform_port, granule, &chunk) != TARN_OK ||
      tarni_port_map(conform_port, address, granule, chunk) != TARN_OK ||
      tarni_port_access(conform_port, address, granule) != TARN_OK) {
    return CHILD_UNPREPARED;
  }
  return fill_is_refused(address, granule * 2);
}

typedef struct misuse {
  const char *name;
  int (*run)(void);
} misuse;

static const misuse misuses[] = {
    {"use-without-access", use_without_access},
    {"use-after-unmap", use_after_unmap},
    {"use-beyond-mapping", use_beyond_mapping},
};

int conform_child_main(const char *name) {
  for (size_t i = 0; i < sizeof(misuses) / sizeof(misuses[0]); i++) {
    if (strcmp(misuses[i].name, name) == 0) {
      return misuses[i].run();
    }
  }
  return CHILD_UNPREPARED;
}

/* The exit status of this program, run again for one misuse; -1 when it cannot be had. */
static int run_child(const char *name) {
  pid_t child;
  int result = -1;
  char *const arguments[] = {"test_port", NULL};
  if (setenv("TARN_TEST_CHILD", name, 1) != 0 ||
      posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) != 0) {
    return -1;
  }
  (void)unsetenv("TARN_TEST_CHILD");
  if (waitpid(child, &result, 0) != child || !WIFEXITED(result)) {
    return -1;
  }
  return WEXITSTATUS(result);
}

static void misuse_is_refused(void) {
  for (size_t i = 0; i < sizeof(misuses) / sizeof(misuses[0]); i++) {
    if (!CHECK_EQ(run_child(misuses[i].name), CHILD_REFUSED)) {
      test_note("the misuse was: %s", misuses[i].name);
    }
  }
}

static const test_case child_cases[] = {
    {"child: what is not mapped with access cannot be used", misuse_is_refused},
};
CONFORM_TABLE(child, child_cases)
