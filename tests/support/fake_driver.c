/* SPDX-License-Identifier: MIT
 *
 * Children with a stand-in for libcuda. TARN_FAKE_CUDA_PREFIX is the path of its modules up to
 * their version. */
#include "support/fake_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(TARN_FAKE_CUDA_PREFIX)
static const char *const fake_prefix = TARN_FAKE_CUDA_PREFIX;
#else
static const char *const fake_prefix = NULL;
#endif

fake_cuda *fake;

/* For everybody: the stand-in looks its own entries up, and the port's dlopen finds it by SONAME.
 */
static bool open_fake(const char *version) {
  char path[1024];
  (void)snprintf(path, sizeof(path), "%s%s.so", fake_prefix, version);
  void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (module == NULL) {
    test_note("%s", dlerror());
    return CHECK(module != NULL);
  }
  fake_cuda_state_function function;
  void *address = dlsym(module, "fake_cuda_state");
  memcpy(&function, &address, sizeof(function));
  fake = function();
  return CHECK(fake != NULL);
}

static void run_child(const char *version, void (*body)(void)) {
  (void)fflush(NULL);
  const pid_t child = fork();
  if (!CHECK(child >= 0)) {
    return;
  }
  if (child == 0) {
    const uint64_t checks_before = test_checks();
    if (version == NULL || open_fake(version)) {
      body();
    }
    CHECK(test_checks() > checks_before);
    exit(test_case_failed() ? 1 : 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_EQ(status, 0);
}

/* In a child: a driver that is loaded here would be found before the stand-in in every later one.
 */
bool fake_machine_has_driver(void) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != NULL ? 1 : 0);
  }
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

void fake_run_alone(void (*body)(void)) {
  run_child(NULL, body);
}

void fake_run(const char *version, void (*body)(void)) {
  if (fake_prefix == NULL) {
    test_skip("built without the stand-in for libcuda");
    return;
  }
  run_child(version, body);
}
