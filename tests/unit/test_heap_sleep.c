/* SPDX-License-Identifier: MIT
 *
 * Sleep and wake: the device has all memory back while the heap sleeps, every address stays, and
 * content is as it was where it was to be saved. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20, N_BLOCKS = 24 };

typedef struct scene {
  rig rig;
  rig_block blocks[N_BLOCKS];
} scene;

static uint8_t mark_of(int index) {
  return (uint8_t)(index * 7 + 3);
}

/* Blocks of many sizes on two streams, each full of its own mark. */
static bool scene_open(scene *s, const char *device) {
  if (!rig_open(&s->rig, device, NULL, 3)) {
    return false;
  }
  rig *r = &s->rig;
  for (int i = 0; i < N_BLOCKS; i++) {
    const uint64_t bytes = (uint64_t)(i % 6 == 5 ? 3 * MIB : 256 << (i % 6 * 2)) + (uint64_t)i * 40;
    CHECK_OK(rig_alloc(r, bytes, r->streams[i % 2], &s->blocks[i]));
    CHECK_OK(
        tarn_device_fill(r->device, s->blocks[i].address, mark_of(i), bytes, r->streams[i % 2]));
  }
  return !test_case_failed();
}

static bool is_marked(const rig_block *block, uint8_t mark) {
  const uint8_t *bytes = (const uint8_t *)(uintptr_t)block->address;
  for (uint64_t i = 0; i < block->bytes; i++) {
    if (bytes[i] != mark) {
      return false;
    }
  }
  return true;
}

static void check_asleep(const scene *s, uint64_t live_blocks) {
  const tarn_heap_stats stats = rig_stats(&s->rig);
  CHECK(stats.is_asleep);
  CHECK_EQ(stats.reserved_bytes, 0);
  CHECK_EQ(stats.live_blocks, live_blocks);
  CHECK(stats.asleep_bytes >= stats.live_bytes);
  CHECK_EQ(rig_state(&s->rig).created_bytes, 0);
  CHECK(rig_is_sound(&s->rig));
}

/* Memory that came back is new: the oracle does not know its owners. */
static void own_again(const scene *s) {
  for (int i = 0; i < N_BLOCKS; i++) {
    if (s->blocks[i].address != 0) {
      CHECK_OK(tarn_sim_own(s->rig.device, s->blocks[i].address, s->blocks[i].bytes,
                            s->blocks[i].owner));
    }
  }
}

static void free_all(scene *s) {
  for (int i = 0; i < N_BLOCKS; i++) {
    if (s->blocks[i].address != 0) {
      CHECK_OK(rig_free(&s->rig, &s->blocks[i], s->rig.streams[i % 2]));
    }
  }
}

static void content_is_saved(void) {
  static scene s;
  REQUIRE(scene_open(&s, "sim:64M,order=lazy"));
  rig *r = &s.rig;
  const uint64_t live = rig_stats(r).live_bytes;
  for (int round = 0; round < 3; round++) {
    CHECK_OK(tarn_heap_sleep(r->heap, TARN_SLEEP_SAVE));
    check_asleep(&s, N_BLOCKS);
    CHECK_OK(tarn_heap_wake(r->heap));
    own_again(&s);
    CHECK(!rig_stats(r).is_asleep);
    CHECK_EQ(rig_stats(r).asleep_bytes, 0);
    CHECK_EQ(rig_stats(r).live_bytes, live);
    CHECK(rig_is_sound(r));
    for (int i = 0; i < N_BLOCKS; i++) {
      CHECK(is_marked(&s.blocks[i], mark_of(i)));
      rig_touch(r, &s.blocks[i], r->streams[i % 2], true);
    }
  }
  rig_block more;
  CHECK_OK(rig_alloc(r, 4 * MIB, r->streams[2], &more));
  CHECK_OK(rig_free(r, &more, r->streams[2]));
  free_all(&s);
  rig_close(r);
}

static void content_is_dropped(void) {
  static scene s;
  REQUIRE(scene_open(&s, "sim:64M,seed=5"));
  rig *r = &s.rig;
  tarn_call_counts before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
  CHECK_OK(tarn_heap_get_calls(r->heap, &before));
  CHECK_OK(tarn_heap_sleep(r->heap, TARN_SLEEP_DROP));
  check_asleep(&s, N_BLOCKS);
  CHECK_OK(tarn_heap_wake(r->heap));
  own_again(&s);
  CHECK_OK(tarn_heap_get_calls(r->heap, &after));
  CHECK_EQ(after.calls[TARN_CALL_COPY], before.calls[TARN_CALL_COPY]);
  for (int i = 0; i < N_BLOCKS; i++) {
    rig_touch(r, &s.blocks[i], r->streams[i % 2], true);
  }
  free_all(&s);
  CHECK_OK(tarn_heap_reset(r->heap));
  rig_close(r);
}

/* Free memory does not come back. */
static void only_what_is_live_comes_back(void) {
  rig r;
  rig_block large, small, kept;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(rig_alloc(&r, 30 * MIB, r.streams[0], &large));
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &kept));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &small));
  CHECK_OK(rig_free(&r, &large, r.streams[0]));
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
  CHECK_EQ(rig_stats(&r).asleep_bytes, 4 * MIB);
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 4 * MIB);
  CHECK_OK(rig_free(&r, &kept, r.streams[0]));
  CHECK_OK(rig_free(&r, &small, r.streams[0]));
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE)); /* nothing is live */
  CHECK_EQ(rig_stats(&r).asleep_bytes, 0);
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

static void calls_while_asleep(void) {
  static scene s;
  REQUIRE(scene_open(&s, "sim:64M"));
  rig *r = &s.rig;
  CHECK_STATUS(tarn_heap_wake(r->heap), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "awake");
  CHECK_OK(tarn_heap_sleep(r->heap, TARN_SLEEP_SAVE));
  static const uint64_t sizes[] = {1, 256, 70 * KIB, 3 * MIB};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    tarn_ptr block = 1;
    CHECK_STATUS(tarn_alloc(r->heap, sizes[i], r->streams[i % 3], &block), TARN_STATE);
    CHECK_HAS(tarn_last_message(), "asleep");
    CHECK_HAS(tarn_last_message(), "tarn_heap_wake");
    CHECK_EQ(block, 0);
    block = 1;
    CHECK_STATUS(tarn_alloc_aligned(r->heap, sizes[i], 64 * KIB, r->streams[0], &block),
                 TARN_STATE);
    CHECK_EQ(block, 0);
  }
  CHECK_STATUS(tarn_use(r->heap, s.blocks[0].address, r->streams[2]), TARN_STATE);
  CHECK_STATUS(tarn_heap_reserve(r->heap, 8 * MIB), TARN_STATE);
  CHECK_STATUS(tarn_heap_trim(r->heap, 0), TARN_STATE);
  CHECK_STATUS(tarn_heap_sleep(r->heap, TARN_SLEEP_SAVE), TARN_STATE);
  tarn_block_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_block_get_info(r->heap, s.blocks[3].address + 5, &info));
  CHECK_EQ(info.address, s.blocks[3].address);
  CHECK_STATUS(tarn_free(r->heap, s.blocks[3].address + 256, r->streams[0]), TARN_INTERIOR);
  /* Freed while asleep: gone for good, and not brought back. */
  for (int i = 0; i < N_BLOCKS; i += 2) {
    CHECK_OK(tarn_free(r->heap, s.blocks[i].address, r->streams[0]));
    CHECK_STATUS(tarn_free(r->heap, s.blocks[i].address, r->streams[0]), TARN_DOUBLE_FREE);
    s.blocks[i].address = 0;
  }
  CHECK_OK(tarn_stream_retire(r->heap, r->streams[0]));
  check_asleep(&s, N_BLOCKS / 2);
  CHECK_STATUS(tarn_heap_reset(r->heap), TARN_BUSY);
  CHECK_OK(tarn_heap_wake(r->heap));
  for (int i = 1; i < N_BLOCKS; i += 2) {
    CHECK(is_marked(&s.blocks[i], mark_of(i)));
  }
  CHECK(rig_is_sound(r));
  free_all(&s);
  /* All freed while asleep: waking needs nothing. */
  rig_block block;
  CHECK_OK(rig_alloc(r, 20 * MIB, r->streams[1], &block));
  CHECK_OK(tarn_heap_sleep(r->heap, TARN_SLEEP_DROP));
  CHECK_OK(tarn_free(r->heap, block.address, r->streams[1]));
  CHECK_STATUS(tarn_heap_reset(r->heap), TARN_STATE);
  CHECK_OK(tarn_heap_wake(r->heap));
  CHECK_EQ(rig_stats(r).reserved_bytes, 0);
  CHECK(rig_is_sound(r));
  rig_close(r);
}

/* Another heap has taken the memory: nothing is lost, and the next try succeeds. */
static void no_memory_to_wake(void) {
  static scene s;
  REQUIRE(scene_open(&s, "sim:32M"));
  rig *r = &s.rig;
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:32M"};
  tarn_heap *other;
  REQUIRE_OK(tarn_heap_create(&config, &other));
  CHECK_OK(tarn_heap_sleep(r->heap, TARN_SLEEP_SAVE));
  CHECK_OK(tarn_heap_reserve(other, 30 * MIB));
  for (int i = 0; i < 3; i++) {
    CHECK_STATUS(tarn_heap_wake(r->heap), TARN_DEVICE_MEMORY);
    CHECK(rig_stats(r).is_asleep);
    CHECK_EQ(rig_stats(r).reserved_bytes, 0);
    CHECK_OK(tarn_heap_check(r->heap));
  }
  CHECK_OK(tarn_heap_trim(other, 0));
  CHECK_OK(tarn_heap_set_limit(r->heap, 4 * MIB));
  CHECK_STATUS(tarn_heap_wake(r->heap), TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "limit is 4194304");
  CHECK_OK(tarn_heap_set_limit(r->heap, 0));
  CHECK_OK(tarn_heap_wake(r->heap));
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK(is_marked(&s.blocks[i], mark_of(i)));
  }
  CHECK_OK(tarn_heap_destroy(other, NULL));
  free_all(&s);
  rig_close(r);
}

static void destroyed_while_asleep(void) {
  static const tarn_sleep_content contents[] = {TARN_SLEEP_SAVE, TARN_SLEEP_DROP};
  for (int i = 0; i < 2; i++) {
    static scene s;
    REQUIRE(scene_open(&s, "sim:64M"));
    CHECK_OK(tarn_heap_sleep(s.rig.heap, contents[i]));
    rig_close_live(&s.rig, N_BLOCKS);
  }
}

static void captures_are_refused(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &block));
  CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_GLOBAL));
  CHECK_STATUS(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE), TARN_CAPTURE);
  CHECK_HAS(tarn_last_message(), "being captured");
  CHECK(!rig_stats(&r).is_asleep);
  tarni_graph graph = NULL;
  CHECK_OK(tarni_port_capture_end(port, r.streams[0], &graph)); /* the capture was not harmed */
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

static void heaps_that_cannot(void) {
  CHECK_STATUS(tarn_heap_sleep(NULL, TARN_SLEEP_SAVE), TARN_INVALID);
  CHECK_STATUS(tarn_heap_wake(NULL), TARN_INVALID);
  const tarn_heap_config config = {.size = sizeof(config), .backing = TARN_BACKING_PLAIN};
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_STATUS(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE), TARN_UNSUPPORTED);
  CHECK_STATUS(tarn_heap_wake(r.heap), TARN_STATE);
  CHECK_STATUS(tarn_heap_sleep(r.heap, (tarn_sleep_content)7), TARN_INVALID);
  rig_close(&r);
}

/* Work on a stream that the heap has never met, and a stream that is gone: both are waited for. */
static void work_of_unknown_streams(void) {
  rig r;
  rig_block block, lost;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &block));
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[2], &lost));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  rig_touch(&r, &block, r.streams[1], true);
  CHECK_OK(rig_free(&r, &lost, r.streams[2]));
  CHECK_OK(tarn_stream_destroy(r.device, r.streams[2]));
  r.streams[2] = NULL;
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_OK(tarn_sim_own(r.device, block.address, block.bytes, block.owner));
  rig_touch(&r, &block, r.streams[0], true);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_reset(r.heap));
  CHECK(r.n_findings != 0); /* the heap asked about the stream that is gone; nothing else */
  for (size_t i = 0; i < r.n_findings; i++) {
    tarn_sim_finding finding = {.size = sizeof(finding)};
    CHECK_OK(tarn_sim_finding_get(r.device, i, &finding));
    CHECK_EQ(finding.kind, TARN_SIM_MISUSE);
  }
  r.n_findings = 0;
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  r.heap = NULL;
  r.n_findings = 0;
  rig_close(&r);
}

typedef struct sleepers {
  rig rig;
  atomic_int n_threads;
  atomic_bool is_over;
  atomic_ulong n_refused, n_served;
  pthread_rwlock_t calls; /* written while the heap falls asleep or wakes */
} sleepers;

/* Allocates and frees without any work on the blocks, whether the heap sleeps or not. */
static void *restless(void *user) {
  sleepers *shared = user;
  rig *r = &shared->rig;
  const tarn_stream stream = r->streams[atomic_fetch_add(&shared->n_threads, 1)];
  for (uint64_t i = 0; !atomic_load(&shared->is_over); i++) {
    tarn_ptr block = 0;
    const uint64_t bytes = i % 3 == 0 ? 2 * MIB : (i % 50 + 1) * 900;
    (void)pthread_rwlock_rdlock(&shared->calls);
    const tarn_status status = tarn_alloc(r->heap, bytes, stream, &block);
    (void)pthread_rwlock_unlock(&shared->calls);
    CHECK(status == TARN_OK || (status == TARN_STATE && block == 0));
    atomic_fetch_add(status == TARN_OK ? &shared->n_served : &shared->n_refused, 1);
    (void)pthread_rwlock_rdlock(&shared->calls); /* it may sleep by now */
    if (block != 0) {
      CHECK_OK(tarn_free(r->heap, block, stream));
    }
    (void)pthread_rwlock_unlock(&shared->calls);
  }
  return NULL;
}

static void change_sleep(sleepers *shared, int round, bool is_waking) {
  tarn_heap *heap = shared->rig.heap;
  (void)pthread_rwlock_wrlock(&shared->calls);
  if (is_waking) {
    CHECK_OK(tarn_heap_wake(heap));
  } else {
    CHECK_OK(tarn_heap_sleep(heap, round % 2 == 0 ? TARN_SLEEP_SAVE : TARN_SLEEP_DROP));
  }
  (void)pthread_rwlock_unlock(&shared->calls);
}

/* One that does not keep its writer waiting for ever, as threads that take turns under valgrind
 * otherwise do. */
static bool calls_open(pthread_rwlock_t *calls) {
  pthread_rwlockattr_t kind;
  const bool is_open =
      pthread_rwlockattr_init(&kind) == 0 &&
      pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP) == 0 &&
      pthread_rwlock_init(calls, &kind) == 0;
  (void)pthread_rwlockattr_destroy(&kind);
  return is_open;
}

static void beside_other_threads(void) {
  static sleepers shared;
  rig *r = &shared.rig;
  rig_block block;
  REQUIRE(rig_open(r, "sim:64M", NULL, 3));
  CHECK_OK(rig_alloc(r, 100 * KIB, r->streams[2], &block));
  CHECK_OK(tarn_device_fill(r->device, block.address, 9, block.bytes, r->streams[2]));
  pthread_t threads[2];
  REQUIRE(calls_open(&shared.calls));
  for (int i = 0; i < 2; i++) {
    REQUIRE(pthread_create(&threads[i], NULL, restless, &shared) == 0);
  }
  for (int i = 0; i < 40; i++) {
    change_sleep(&shared, i, false);
    const unsigned long n_refused = atomic_load(&shared.n_refused);
    while (atomic_load(&shared.n_refused) < n_refused + 10) {
      (void)sched_yield();
    }
    change_sleep(&shared, i, true);
    if (i % 2 == 0) {
      CHECK(is_marked(&block, 9));
    }
    CHECK_OK(tarn_device_fill(r->device, block.address, 9, block.bytes, r->streams[2]));
    if (test_case_failed()) {
      break;
    }
  }
  atomic_store(&shared.is_over, true);
  for (int i = 0; i < 2; i++) {
    CHECK_EQ(pthread_join(threads[i], NULL), 0);
  }
  CHECK(rig_is_sound(r));
  CHECK_EQ(pthread_rwlock_destroy(&shared.calls), 0);
  CHECK_OK(rig_free(r, &block, r->streams[2]));
  rig_close(r);
}

/* Guards are written anew, and that fails: all that was got for it goes back. */
static void wakes_in_vain(void) {
  const tarn_heap_config config = {.size = sizeof(config), .guard_bytes = 64};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:256M", &config, 1));
  CHECK_OK(rig_alloc(&r, 100 * MIB, r.streams[0], &block));
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_FILL, 1, 1, 999));
  CHECK(tarn_heap_wake(r.heap) != TARN_OK);
  CHECK(rig_stats(&r).is_asleep);
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

static const test_case cases[] = {
    {"a wake that fails at the end", wakes_in_vain},
    {"content is saved", content_is_saved},
    {"content is dropped", content_is_dropped},
    {"only what is live comes back", only_what_is_live_comes_back},
    {"calls while asleep", calls_while_asleep},
    {"no memory to wake", no_memory_to_wake},
    {"destroyed while asleep", destroyed_while_asleep},
    {"captures are refused", captures_are_refused},
    {"heaps that cannot", heaps_that_cannot},
    {"work of unknown streams", work_of_unknown_streams},
    {"beside other threads", beside_other_threads},
};

TEST_MAIN(cases)
