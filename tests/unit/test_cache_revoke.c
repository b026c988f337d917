/* SPDX-License-Identifier: MIT
 *
 * How others reach into a thread's cache: never while its owner is inside, also on systems without
 * membarrier and for threads that are bound to processors; and what it does without them. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

typedef struct contest {
  rig *rig;
  tarni_cache *cache;
  uint64_t value; /* only whoever is inside may touch it */
  atomic_bool is_ready, is_over;
  uint64_t n_in, n_out;
} contest;

static void *go_in_and_out(void *user) {
  contest *c = user;
  CHECK_OK(tarni_cache_find(c->rig->heap, c->rig->streams[0], &c->cache));
  atomic_store(&c->is_ready, true);
  while (!atomic_load_explicit(&c->is_over, memory_order_relaxed)) {
    if (tarni_cache_enter(c->cache)) {
      c->value++;
      c->n_in++;
      tarni_cache_leave(c->cache);
    } else {
      c->n_out++;
    }
  }
  return NULL;
}

/* The owner and those who revoke it are never inside together: no increment is lost. */
static void contend(uint64_t n_rounds) {
  rig r;
  pthread_t thread;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  contest c = {.rig = &r};
  REQUIRE(pthread_create(&thread, NULL, go_in_and_out, &c) == 0);
  while (!atomic_load(&c.is_ready)) {
  }
  for (uint64_t i = 0; i < n_rounds; i++) {
    tarni_lock_acquire(&r.heap->lock);
    tarni_caches_revoke_locked(r.heap);
    const uint64_t before = c.value;
    for (volatile int spin = 0; spin < 200; spin++) {
    }
    c.value = before + 1;
    tarni_caches_allow_locked(r.heap);
    tarni_lock_release(&r.heap->lock);
  }
  atomic_store(&c.is_over, true);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK(c.n_in != 0);
  CHECK_EQ(c.value, c.n_in + n_rounds);
  test_note("%llu times inside, %llu times kept out", (unsigned long long)c.n_in,
            (unsigned long long)c.n_out);
  rig_close(&r);
}

static void enter_against_revoke(void) {
  contend(3000);
}

/* ---- Hits ---- */

typedef struct turns {
  rig *rig;
  sem_t is_ready, may_go, is_done;
} turns;

static void *work_in_turns(void *user) {
  turns *t = user;
  tarn_ptr last = 0;
  for (int i = 0; i < 20; i++) {
    tarn_ptr block = 0;
    if (i == 4) {
      CHECK_EQ(sem_post(&t->is_ready), 0);
      CHECK_EQ(sem_wait(&t->may_go), 0);
    }
    CHECK_OK(tarn_alloc(t->rig->heap, 4096, t->rig->streams[i % 2], &block));
    CHECK_OK(tarn_free(t->rig->heap, last, t->rig->streams[(i + 1) % 2]));
    last = block;
  }
  CHECK_EQ(sem_post(&t->is_done), 0);
  CHECK_OK(tarn_free(t->rig->heap, last, t->rig->streams[1]));
  return NULL;
}

/* A thread does its work up to a point, and from there on while somebody has the heap's lock. */
static void without_lock(void *(*work)(void *)) {
  rig r;
  pthread_t thread;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 2));
  turns t = {.rig = &r};
  CHECK(sem_init(&t.is_ready, 0, 0) == 0 && sem_init(&t.may_go, 0, 0) == 0 &&
        sem_init(&t.is_done, 0, 0) == 0);
  REQUIRE(pthread_create(&thread, NULL, work, &t) == 0);
  CHECK_EQ(sem_wait(&t.is_ready), 0);
  tarni_lock_acquire(&r.heap->lock);
  CHECK_EQ(sem_post(&t.may_go), 0);
  struct timespec until;
  CHECK_EQ(clock_gettime(CLOCK_REALTIME, &until), 0);
  until.tv_sec += 20;
  CHECK_EQ(sem_timedwait(&t.is_done, &until), 0);
  tarni_lock_release(&r.heap->lock);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_EQ(sem_destroy(&t.is_ready), 0);
  CHECK_EQ(sem_destroy(&t.may_go), 0);
  CHECK_EQ(sem_destroy(&t.is_done), 0);
  rig_close(&r);
}

/* A thread that works on two streams in turn hits in both caches: nobody's lock keeps it. */
static void hits_on_two_streams(void) {
  without_lock(work_in_turns);
}

enum { BIG = 500 << 10, N_BIG = 64 }; /* of which a stack has few */

static void bigs_get(rig *r, rig_block *blocks) {
  for (int i = 0; i < N_BIG; i++) {
    CHECK_OK(rig_alloc(r, BIG, r->streams[0], &blocks[i]));
  }
}

static void bigs_put(rig *r, rig_block *blocks) {
  for (int i = 0; i < N_BIG; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
}

static void *work_in_heaps(void *user) {
  turns *t = user;
  rig_block blocks[N_BIG];
  bigs_get(t->rig, blocks);
  CHECK_EQ(sem_post(&t->is_ready), 0);
  CHECK_EQ(sem_wait(&t->may_go), 0);
  bigs_put(t->rig, blocks);
  bigs_get(t->rig, blocks);
  CHECK_EQ(sem_post(&t->is_done), 0);
  bigs_put(t->rig, blocks);
  return NULL;
}

/* Nor one that has more free blocks than its stacks hold, as long as the stream is its own. */
static void more_than_stacks_hold(void) {
  without_lock(work_in_heaps);
}

/* ---- Without membarrier ---- */

/* From here on the process has no membarrier, as under an old kernel. */
static bool forbid_membarrier(void) {
  struct sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {.len = sizeof(steps) / sizeof(steps[0]), .filter = steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) == -1;
}

/* Binds the calling thread to the first of its processors. */
static bool bind_to_one(cpu_set_t *one) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof(all), &all) != 0) {
    return false;
  }
  size_t cpu = 0;
  while (!CPU_ISSET(cpu, &all)) {
    cpu++;
  }
  CPU_ZERO(one);
  CPU_SET(cpu, one);
  return sched_setaffinity(0, sizeof(*one), one) == 0;
}

static int bound_and_without(void) {
  cpu_set_t one, after;
  if (!forbid_membarrier()) {
    return 77;
  }
  CHECK(bind_to_one(&one));
  contend(50); /* each takes milliseconds: it waits for its turn on every processor */
  CHECK_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  CHECK(CPU_EQUAL(&one, &after)); /* it was moved, and is back */
  return test_case_failed() ? 1 : 0;
}

/* In a child: what is forbidden is forbidden for good. */
static void in_child(int (*run)(void)) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(run());
  }
  int status = 0;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    test_skip("this system does not let a process forbid itself a call, or has one processor");
    return;
  }
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void without_membarrier(void) {
  in_child(bound_and_without);
}

/* How often this thread has left a processor. */
static long switches(void) {
  struct rusage usage;
  CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* A sandbox that is closed when the first cache is there: others are kept out by the other way. */
static int forbidden_later(void) {
  rig r;
  rig_block block;
  if (!rig_open(&r, "sim:64M", NULL, 1)) {
    return 1;
  }
  CHECK_OK(rig_alloc(&r, 100, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  if (!forbid_membarrier() || sysconf(_SC_NPROCESSORS_ONLN) == 1) {
    return 77;
  }
  tarni_lock_acquire(&r.heap->lock);
  const long before = switches();
  tarni_caches_revoke_locked(r.heap);
  CHECK(switches() != before); /* it went over all of them */
  tarni_caches_allow_locked(r.heap);
  tarni_lock_release(&r.heap->lock);
  rig_close(&r);
  return test_case_failed() ? 1 : 0;
}

static void membarrier_forbidden_later(void) {
  in_child(forbidden_later);
}

static const test_case cases[] = {
    {"without membarrier, bound to a processor", without_membarrier}, /* before any cache is made */
    {"with a membarrier that is forbidden later", membarrier_forbidden_later},
    {"entering against revoking", enter_against_revoke},
    {"hits on two streams in turn", hits_on_two_streams},
    {"more than stacks hold", more_than_stacks_hold},
};

TEST_MAIN(cases)
