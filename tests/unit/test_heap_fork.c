/* SPDX-License-Identifier: MIT
 *
 * Processes and the heap: a child of fork is told that the heap is its parent's and changes nothing
 * for it; a process may end with live blocks and work under way. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/copy.h"

enum { MIB = 1 << 20, CHILD_SECONDS = 20 };

/* A sanitizer's malloc, unlike glibc's, may be locked for ever in the child of a process of several
 * threads: there the child asks for no memory. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool has_malloc = false;
#else
static const bool has_malloc = true;
#endif

/* Runs the function in a child; its exit status, or -1 when it did not end by itself. */
static int in_child(int (*run)(rig *r), rig *r) {
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(CHILD_SECONDS); /* a hang is an end by a signal */
    const int status = run(r);
    if (!has_malloc) {
      _exit(status);
    }
    exit(status);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
    return -1;
  }
  return WEXITSTATUS(status);
}

/* ---- Fork ---- */

/* How many calls did not say TARN_FORKED. */
static int use_parents_heap(rig *r) {
  tarn_ptr block = 1;
  tarn_heap_stats stats = {.size = sizeof(stats)};
  tarn_block_info info = {.size = sizeof(info)};
  uint64_t n_live = 9;
  int n = 0;
  n += tarn_alloc(r->heap, 256, r->streams[0], &block) != TARN_FORKED || block != 0;
  n += strstr(tarn_last_message(), "parent") == NULL;
  n += tarn_alloc(r->heap, 3 * MIB, r->streams[0], &block) != TARN_FORKED;
  n += tarn_alloc_aligned(r->heap, 3, 4096, r->streams[0], &block) != TARN_FORKED;
  n += tarn_free(r->heap, 4096, r->streams[0]) != TARN_FORKED;
  n += tarn_free_sized(r->heap, 4096, 1, r->streams[0]) != TARN_FORKED;
  n += tarn_use(r->heap, 4096, r->streams[0]) != TARN_FORKED;
  n += tarn_stream_retire(r->heap, r->streams[0]) != TARN_FORKED;
  n += tarn_heap_reserve(r->heap, 1) != TARN_FORKED;
  n += tarn_heap_trim(r->heap, 0) != TARN_FORKED;
  n += tarn_heap_set_limit(r->heap, 1) != TARN_FORKED;
  n += tarn_heap_get_stats(r->heap, &stats) != TARN_FORKED;
  n += tarn_heap_check(r->heap) != TARN_FORKED;
  n += tarn_block_get_info(r->heap, 4096, &info) != TARN_FORKED;
  n += tarn_heap_destroy(r->heap, &n_live) != TARN_FORKED || n_live != 0;
  return n;
}

static void tell_child(const tarn_heap_config *config) {
  rig r;
  rig_block small, large;
  REQUIRE(rig_open(&r, "sim:64M", config, 1));
  CHECK_OK(rig_alloc(&r, 256, r.streams[0], &small));
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &large));
  CHECK_OK(rig_free(&r, &small, r.streams[0])); /* the thread's cache is warm */
  CHECK_OK(tarn_device_fill(r.device, large.address, 0x5a, 3 * MIB, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  const tarn_heap_stats before = rig_stats(&r);
  CHECK_EQ(in_child(use_parents_heap, &r), 0);
  const tarn_heap_stats after = rig_stats(&r);
  CHECK(rig_same_stats(&before, &after));
  const uint8_t *bytes = (const uint8_t *)(uintptr_t)large.address;
  CHECK(bytes[0] == 0x5a && bytes[3 * MIB - 1] == 0x5a);
  CHECK(rig_is_sound(&r));
  CHECK_OK(rig_alloc(&r, 256, r.streams[0], &small));
  CHECK_OK(rig_free(&r, &small, r.streams[0]));
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  rig_close(&r);
}

static void child_is_told(void) {
  tell_child(NULL);
}

/* The same of heaps whose blocks are the driver's own allocations. */
static void child_is_told_of_grants(void) {
  for (int preset = TARN_PRESET_POWER_BUCKETS; preset <= TARN_PRESET_EXACT_POOL; preset++) {
    const tarn_heap_config config = {.size = sizeof(config), .preset = (tarn_preset)preset};
    tell_child(&config);
  }
}

/* A heap of its own works in the child, on a device of the same name. */
static int make_own_heap(rig *r) {
  (void)r;
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M"};
  tarn_heap *heap;
  tarn_ptr blocks[4] = {0};
  int n = tarn_heap_create(&config, &heap) != TARN_OK;
  for (int i = 0; i < 4 && n == 0; i++) {
    n += tarn_alloc(heap, (uint64_t)3 * MIB, NULL, &blocks[i]) != TARN_OK;
    n += tarn_device_fill(tarn_heap_device(heap), blocks[i], 0xff, 3 * MIB, NULL) != TARN_OK;
  }
  for (int i = 0; i < 4 && n == 0; i++) {
    n += tarn_free(heap, blocks[i], NULL) != TARN_OK;
  }
  n += n == 0 && tarn_heap_check(heap) != TARN_OK;
  n += n == 0 && tarn_heap_destroy(heap, NULL) != TARN_OK;
  return n;
}

static void child_with_its_own_heap(void) {
  rig r;
  rig_block large;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[0], &large));
  CHECK_OK(tarn_device_fill(r.device, large.address, 0x5a, 20 * MIB, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_EQ(in_child(make_own_heap, &r), 0);
  const uint8_t *bytes = (const uint8_t *)(uintptr_t)large.address;
  uint64_t n_wrong = 0;
  for (uint64_t i = 0; i < 20 * MIB; i++) {
    n_wrong += bytes[i] != 0x5a;
  }
  CHECK_EQ(n_wrong, 0);
  CHECK(rig_is_sound(&r));
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  rig_close(&r);
}

static tarn_pinned *parents_pool;

static int use_parents_pool(rig *r) {
  (void)r;
  tarn_copier *copier = (tarn_copier *)(uintptr_t)1;
  const int n = tarn_copier_create(parents_pool, NULL, &copier) != TARN_FORKED;
  return n + (copier != NULL);
}

/* Nothing is made of a parent's pool that would fail at its first use. */
static void child_with_its_parents_pool(void) {
  const tarn_pinned_config config = {.size = sizeof(config), .device = "sim:64M"};
  REQUIRE_OK(tarn_pinned_create(&config, &parents_pool));
  CHECK_EQ(in_child(use_parents_pool, NULL), 0);
  CHECK_OK(tarn_pinned_destroy(parents_pool, NULL));
}

/* How many calls of the parent's simulated GPU did not say TARN_FORKED, and what went wrong on one
 * of the child's own. */
static int work_on_own_device(rig *r) {
  const tarn_sim_kernel kernel = {.size = sizeof(kernel)};
  int n = tarn_sim_launch(r->device, &kernel, r->streams[0]) != TARN_FORKED;
  n += tarn_sim_progress(r->device, 1) != TARN_FORKED;
  rig own;
  rig_block block;
  if (!rig_open(&own, "sim:64M,order=lazy,id=7", NULL, 1) ||
      rig_alloc(&own, MIB, own.streams[0], &block) != TARN_OK) {
    return 99;
  }
  n += tarn_sim_progress(own.device, 1000) != TARN_OK;
  n += tarn_stream_synchronize(own.device, own.streams[0]) != TARN_OK;
  n += rig_free(&own, &block, own.streams[0]) != TARN_OK;
  rig_close(&own);
  return n + test_case_failed();
}

/* What a parent's simulated GPU has still to do is not done by the child, on memory of both. */
static void pending_work_is_the_parents(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &block));
  CHECK_OK(tarn_device_fill(r.device, block.address, 0x5a, MIB, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarn_device_fill(r.device, block.address, 0xa5, MIB, r.streams[0]));
  const uint8_t *bytes = (const uint8_t *)(uintptr_t)block.address;
  CHECK_EQ(bytes[0], 0x5a);
  CHECK_EQ(in_child(work_on_own_device, &r), 0);
  CHECK_EQ(bytes[0], 0x5a);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_EQ(bytes[0], 0xa5);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

typedef struct busy {
  rig *rig;
  atomic_bool is_over;
} busy;

static int is_forbidden(rig *r) {
  (void)r;
  return tarni_capture_forbids();
}

/* What a parent's capture forbids a child may do: there nobody ends that capture. */
static void forked_in_a_capture(void) {
  const tarn_capture_config config = {.size = sizeof(config), .mode = TARN_CAPTURE_GLOBAL};
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  CHECK_OK(tarn_capture_begin(r.heap, &config, r.streams[0], &capture));
  CHECK(tarni_capture_forbids());
  CHECK_EQ(in_child(is_forbidden, &r), 0);
  CHECK(tarni_capture_forbids());
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK(!tarni_capture_forbids());
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

static void *work_on(void *user) {
  busy *b = user;
  while (!atomic_load(&b->is_over)) {
    tarn_ptr block;
    tarn_device *device;
    CHECK_OK(tarn_alloc(b->rig->heap, 70000, NULL, &block));
    CHECK_OK(tarn_free(b->rig->heap, block, NULL));
    CHECK_OK(tarn_heap_trim(b->rig->heap, 0));
    CHECK_OK(tarn_device_open("sim:16M,seed=9", &device));
    tarn_device_close(device);
  }
  return NULL;
}

/* What is its parent's is refused to it, and what is its own works. */
static int use_both(rig *r) {
  const int n = use_parents_heap(r);
  return n != 0 || !has_malloc ? n : make_own_heap(r);
}

/* At a fork in the middle of other threads' work their locks may be held for ever: the child does
 * not wait for them. */
static void forked_while_others_work(void) {
  rig r;
  busy b = {.rig = &r};
  pthread_t thread;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  REQUIRE(pthread_create(&thread, NULL, work_on, &b) == 0);
  for (int i = 0; i < 30; i++) {
    CHECK_EQ(in_child(use_both, &r), 0);
  }
  atomic_store(&b.is_over, true);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* ---- The end of a process ---- */

static int end_in_the_middle(rig *unused) {
  (void)unused;
  static rig r;
  static busy b = {.rig = &r};
  static rig_block blocks[20];
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:64M,order=lazy"};
  pthread_t thread;
  if (!rig_open_device(&r, config.device, 2) || tarn_heap_create(&config, &r.heap) != TARN_OK) {
    return 1;
  }
  for (int i = 0; i < 20; i++) { /* kernels that have not begun yet */
    if (rig_alloc(&r, (uint64_t)(i + 1) * 100000, r.streams[i % 2], &blocks[i]) != TARN_OK) {
      return 2;
    }
  }
  if (tarn_use(r.heap, blocks[3].address, r.streams[0]) != TARN_OK ||
      rig_free(&r, &blocks[3], r.streams[1]) != TARN_OK ||
      pthread_create(&thread, NULL, work_on, &b) != 0) {
    return 3;
  }
  (void)usleep(2000);
  return test_case_failed() ? 4 : 0; /* exit, with the other thread at work */
}

static void process_that_ends_in_the_middle(void) {
  for (int i = 0; i < 10; i++) {
    CHECK_EQ(in_child(end_in_the_middle, NULL), 0);
  }
}

static const test_case cases[] = {
    {"forked in a capture", forked_in_a_capture},
    {"a child is told that the heap is its parent's", child_is_told},
    {"a child, and heaps of driver allocations", child_is_told_of_grants},
    {"a child with a heap of its own", child_with_its_own_heap},
    {"a child with its parent's pool", child_with_its_parents_pool},
    {"work that a parent left pending is its own", pending_work_is_the_parents},
    {"forked while others work", forked_while_others_work},
    {"a process that ends in the middle", process_that_ends_in_the_middle},
};

TEST_MAIN(cases)
