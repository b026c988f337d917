/* SPDX-License-Identifier: MIT
 *
 * Names of threads: no two have the same, and who has exited is known to be gone. */
#include <pthread.h>

#include "base/thread.h"
#include "support/test.h"

static void *tell_name(void *user) {
  const void **name = user;
  *name = tarni_thread();
  CHECK(tarni_thread() == *name);
  CHECK(!tarni_thread_is_gone(*name));
  return NULL;
}

static void one_after_another(void) {
  const void *mine = tarni_thread(), *before = NULL;
  for (int i = 0; i < 5000 && !test_case_failed(); i++) { /* more than can be there at once */
    const void *name = NULL;
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, tell_name, (void *)&name) == 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(name != NULL && name != mine && name != before);
    CHECK(tarni_thread_is_gone(name));
    CHECK(before == NULL || tarni_thread_is_gone(before));
    before = name;
  }
  CHECK(tarni_thread() == mine);
  CHECK(!tarni_thread_is_gone(mine));
}

static const test_case cases[] = {
    {"one after another", one_after_another},
};

TEST_MAIN(cases)
