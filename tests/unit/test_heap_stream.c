/* SPDX-License-Identifier: MIT
 *
 * The heap and streams: what one frees reaches others only in order, blocks may be used by several,
 * and default streams are streams like others, those of threads that end included. The oracle looks
 * at every use. */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

#define LEGACY ((tarn_stream)NULL)
#define ALSO_LEGACY ((tarn_stream)1)
#define PER_THREAD ((tarn_stream)2)

/* ---- One stream ---- */

/* What a stream frees is its own at once: no call, no wait, the same memory. */
static void same_stream_at_once(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  static const uint64_t sizes[] = {256, 5 * KIB, 100 * KIB, MIB, 3 * MIB, 30 * MIB};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    rig_block block;
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &block));
    const tarn_ptr first = block.address;
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    const uint64_t before = rig_calls(&r);
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &block));
    CHECK_EQ(block.address, first);
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK_EQ(rig_calls(&r), before);
  }
  CHECK_EQ(rig_stats(&r).waits, 0);
  rig_close(&r);
}

/* ---- Two streams ---- */

static void other_stream_gets_other_memory(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  static const uint64_t sizes[] = {256, 5 * KIB, 100 * KIB, MIB, 3 * MIB};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    rig_block first, second;
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &first));
    const tarn_ptr address = first.address;
    CHECK_OK(rig_free(&r, &first, r.streams[0]));
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[1], &second));
    CHECK(second.address != address);
    CHECK_OK(rig_free(&r, &second, r.streams[1]));
  }
  CHECK_EQ(rig_stats(&r).waits, 0); /* there is enough for both */
  rig_close(&r);
}

/* How much is held and waited for when one stream after the other needs all of it. */
static void policies(void) {
  static const struct {
    tarn_stealing stealing;
    uint64_t held;
    bool waits;
  } expected[] = {{TARN_STEAL_WHEN_SHORT, 32 * MIB, true},
                  {TARN_STEAL_ALWAYS, 16 * MIB, true},
                  {TARN_STEAL_NEVER, 32 * MIB, false}};
  for (int i = 0; i < 3; i++) {
    const tarn_heap_config config = {
        .size = sizeof(config), .limit_bytes = 32 * MIB, .stealing = expected[i].stealing};
    rig r;
    rig_block block;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 4));
    for (int j = 0; j < 4; j++) {
      CHECK_OK(rig_alloc(&r, 16 * MIB, r.streams[j], &block));
      CHECK_OK(rig_free(&r, &block, r.streams[j]));
    }
    CHECK_EQ(rig_stats(&r).reserved_peak_bytes, expected[i].held);
    CHECK_EQ(rig_stats(&r).waits != 0, expected[i].waits);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* ---- Blocks that several streams use ---- */

static void use_delays_reuse(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
  static const uint64_t sizes[] = {256, 100 * KIB, 3 * MIB};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    rig_block block, next;
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &block));
    const tarn_ptr address = block.address;
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    for (int j = 1; j < 3; j++) {
      CHECK_OK(tarn_use(r.heap, block.address, r.streams[j]));
      CHECK_OK(tarn_use(r.heap, block.address, r.streams[j])); /* said twice */
      rig_touch(&r, &block, r.streams[j], false);
    }
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK(rig_stats(&r).pending_bytes != 0);
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &next)); /* its own stream must wait, too */
    CHECK(next.address != address);
    CHECK_OK(rig_free(&r, &next, r.streams[0]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[2]));
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).pending_bytes, 0);
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  }
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Named for the stream that frees it: nothing else is waited for. */
typedef struct free_call {
  rig *r;
  rig_block block;
  sem_t is_done;
} free_call;

static void *free_used(void *user) {
  free_call *call = user;
  CHECK_OK(rig_free(call->r, &call->block, call->r->streams[0]));
  CHECK_EQ(sem_post(&call->is_done), 0);
  return NULL;
}

/* Who holds heap->grow may wait for the GPU: a free does not wait for that, and its fences come
 * later. */
static void use_waits_for_nobody(void) {
  static const tarn_backing backings[] = {TARN_BACKING_VMM, TARN_BACKING_PLAIN};
  for (int i = 0; i < 2; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .backing = backings[i]};
    rig r;
    free_call call = {.r = &r};
    pthread_t thread;
    struct timespec late;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
    CHECK_EQ(sem_init(&call.is_done, 0, 0), 0);
    CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &call.block));
    CHECK_OK(tarn_use(r.heap, call.block.address, r.streams[1]));
    tarni_lock_acquire(&r.heap->grow);
    REQUIRE(pthread_create(&thread, NULL, free_used, &call) == 0);
    CHECK_EQ(clock_gettime(CLOCK_REALTIME, &late), 0);
    late.tv_sec += 5;
    CHECK_EQ(sem_timedwait(&call.is_done, &late), 0);
    tarni_lock_release(&r.heap->grow);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(rig_stats(&r).pending_bytes != 0);
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).pending_bytes, 0);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static void use_on_its_own_stream(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  rig_block block, next;
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &block));
  CHECK_OK(tarn_use(r.heap, block.address, r.streams[0]));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  const uint64_t held = rig_stats(&r).reserved_bytes;
  CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &next));
  CHECK_EQ(rig_stats(&r).reserved_bytes, held);
  CHECK_OK(rig_free(&r, &next, r.streams[0]));
  rig_close(&r);
}

/* The user of the block is retired before the block is freed. */
static void user_retired_first(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  static const uint64_t sizes[] = {256, 100 * KIB, 3 * MIB};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    tarn_stream user;
    rig_block block;
    REQUIRE_OK(tarn_stream_create(r.device, &user));
    CHECK_OK(rig_alloc(&r, sizes[i], r.streams[0], &block));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_OK(tarn_use(r.heap, block.address, user));
    rig_touch(&r, &block, user, false);
    CHECK_OK(tarn_stream_retire(r.heap, user));
    CHECK_OK(tarn_stream_destroy(r.device, user));
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  }
  rig_close(&r);
}

/* The stream that freed the block is retired, and its record another's, before the use ends. */
static void owner_retired_first(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  static const uint64_t sizes[] = {256, 100 * KIB, 3 * MIB};
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    tarn_stream owner, next;
    rig_block block, other;
    REQUIRE_OK(tarn_stream_create(r.device, &owner));
    CHECK_OK(rig_alloc(&r, sizes[i], owner, &block));
    CHECK_OK(tarn_stream_synchronize(r.device, owner));
    CHECK_OK(tarn_use(r.heap, block.address, r.streams[1]));
    rig_touch(&r, &block, r.streams[1], false);
    CHECK_OK(rig_free(&r, &block, owner));
    CHECK_OK(tarn_stream_retire(r.heap, owner));
    CHECK_OK(tarn_stream_destroy(r.device, owner));
    REQUIRE_OK(tarn_stream_create(r.device, &next));
    CHECK_OK(rig_alloc(&r, sizes[i], next, &other));
    CHECK(rig_is_sound(&r));
    CHECK_OK(rig_free(&r, &other, next));
    CHECK_OK(tarn_stream_retire(r.heap, next));
    CHECK_OK(tarn_stream_destroy(r.device, next));
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  }
  rig_close(&r);
}

/* ---- Default streams ---- */

static void legacy_default_stream(void) {
  rig r;
  rig_block block, next;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 0));
  CHECK_OK(rig_alloc(&r, 3 * MIB, LEGACY, &block));
  const tarn_ptr address = block.address;
  CHECK_OK(rig_free(&r, &block, ALSO_LEGACY)); /* two names of one stream */
  CHECK_OK(rig_alloc(&r, 3 * MIB, ALSO_LEGACY, &next));
  CHECK_EQ(next.address, address);
  CHECK_OK(rig_free(&r, &next, LEGACY));
  CHECK_EQ(rig_stats(&r).waits, 0);
  CHECK_OK(tarn_stream_retire(r.heap, LEGACY));
  CHECK_OK(rig_alloc(&r, 3 * MIB, LEGACY, &next));
  CHECK_OK(rig_free(&r, &next, LEGACY));
  rig_close(&r);
}

typedef struct pair {
  rig *rig;
  sem_t go, done;
  rig_block kept;
} pair;

static void *own_default_stream(void *user) {
  pair *p = user;
  rig_block block;
  CHECK_OK(rig_alloc(p->rig, 6 * MIB, PER_THREAD, &block));
  CHECK_OK(rig_alloc(p->rig, 9 * KIB, PER_THREAD, &p->kept));
  CHECK_OK(rig_free(p->rig, &block, PER_THREAD));
  CHECK_EQ(sem_post(&p->done), 0);
  CHECK_EQ(sem_wait(&p->go), 0); /* the thread is there, idle, when others take its memory */
  CHECK_OK(rig_free(p->rig, &p->kept, PER_THREAD));
  return NULL;
}

/* The same name is another stream in each thread: one's memory is not the other's at once. */
static void per_thread_default_streams(void) {
  static const tarn_stealing all[] = {TARN_STEAL_WHEN_SHORT, TARN_STEAL_ALWAYS, TARN_STEAL_NEVER};
  for (int i = 0; i < 3; i++) {
    const tarn_heap_config config = {
        .size = sizeof(config), .limit_bytes = 10 * MIB, .stealing = all[i]};
    rig r;
    rig_block block;
    pthread_t thread;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 0));
    pair p = {.rig = &r};
    CHECK_EQ(sem_init(&p.go, 0, 0) + sem_init(&p.done, 0, 0), 0);
    REQUIRE(pthread_create(&thread, NULL, own_default_stream, &p) == 0);
    CHECK_EQ(sem_wait(&p.done), 0);
    CHECK_OK(rig_alloc(&r, 6 * MIB, PER_THREAD, &block)); /* only by taking the other's */
    CHECK_OK(tarn_use(r.heap, block.address, LEGACY));
    CHECK_OK(rig_free(&r, &block, PER_THREAD));
    CHECK_EQ(sem_post(&p.go), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK_OK(tarn_stream_retire(r.heap, PER_THREAD));
    CHECK(rig_is_sound(&r));
    CHECK_EQ(sem_destroy(&p.go) + sem_destroy(&p.done), 0);
    rig_close(&r);
  }
}

/* More streams have freed blocks of each slab than an order can name. Once their work is complete
 * there is room, whatever the policy. */
static void freed_by_many_streams(void) {
  enum { MANY = 2048 };
  static rig_block blocks[MANY];
  for (int policy = TARN_STEAL_WHEN_SHORT; policy <= TARN_STEAL_ALWAYS; policy++) {
    const tarn_heap_config config = {.size = sizeof(config), .stealing = (tarn_stealing)policy};
    rig r;
    rig_block large;
    int n = 0;
    REQUIRE(rig_open(&r, "sim:64M", &config, 6));
    while (n < MANY && rig_alloc(&r, 60 * KIB, r.streams[0], &blocks[n]) == TARN_OK) {
      n++;
    }
    CHECK(n > 500 && n < MANY); /* the device is full */
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    for (int i = 0; i < n; i++) {
      CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 6]));
    }
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &large));
    CHECK_OK(rig_free(&r, &large, r.streams[0]));
    rig_close(&r);
  }
}

static void *pair_on_own_stream(void *user) {
  const rig *r = user;
  tarn_ptr block = 0;
  CHECK_OK(tarn_alloc(r->heap, 1000, PER_THREAD, &block));
  CHECK_OK(tarn_free(r->heap, block, PER_THREAD));
  return NULL;
}

static tarn_ptr used_by_all;

static void *use_on_own_stream(void *user) {
  const rig *r = user;
  CHECK_OK(tarn_use(r->heap, used_by_all, PER_THREAD));
  return NULL;
}

/* More threads come and go, each with its own default stream, than a heap knows streams. */
static void come_and_go(const tarn_heap_config *config, void *(*visit)(void *user)) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", config, 1));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &block));
  for (int i = 0; i < 1100 && !test_case_failed(); i++) {
    pthread_t thread;
    if (i % 100 == 0) {
      CHECK_OK(rig_free(&r, &block, r.streams[0]));
      CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &block));
      used_by_all = block.address;
    }
    REQUIRE(pthread_create(&thread, NULL, visit, &r) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 1000, LEGACY, &block)); /* nor is another stream kept out */
  CHECK_OK(rig_free(&r, &block, LEGACY));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void threads_come_and_go(void) {
  const tarn_heap_config plain = {.size = sizeof(plain), .backing = TARN_BACKING_PLAIN};
  come_and_go(NULL, pair_on_own_stream);
  come_and_go(&plain, pair_on_own_stream);
}

static void threads_that_only_use(void) {
  const tarn_heap_config plain = {.size = sizeof(plain), .backing = TARN_BACKING_PLAIN};
  come_and_go(NULL, use_on_own_stream);
  come_and_go(&plain, use_on_own_stream);
}

static pthread_key_t late_key;
static sem_t late_there, late_go;

/* The thread's caches are given up by then, and it goes on. */
static void use_late(void *user) {
  rig *r = user;
  rig_block block;
  CHECK_OK(rig_alloc(r, 6 * MIB, PER_THREAD, &block));
  CHECK_EQ(sem_post(&late_there), 0);
  CHECK_EQ(sem_wait(&late_go), 0);
  rig_touch(r, &block, PER_THREAD, true);
  CHECK_OK(rig_free(r, &block, PER_THREAD));
}

static void *use_and_leave(void *user) {
  (void)pair_on_own_stream(user);
  CHECK(pthread_setspecific(late_key, user) == 0);
  return NULL;
}

/* A thread that allocates while it exits, after its caches are gone: its stream's record is not
 * another's, however short records are. */
static void threads_that_go_late(void) {
  enum { ALL = 1023 }; /* streams that a heap knows */
  static tarn_stream streams[ALL];
  rig r;
  rig_block block;
  pthread_t thread;
  int n = 0;
  REQUIRE(rig_open(&r, "sim:256M,order=lazy", NULL, 1));
  CHECK_EQ(sem_init(&late_there, 0, 0) + sem_init(&late_go, 0, 0), 0);
  CHECK_OK(rig_alloc(&r, 300, r.streams[0], &block)); /* makes the key of the caches */
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  REQUIRE(pthread_key_create(&late_key, use_late) == 0);
  REQUIRE(pthread_create(&thread, NULL, use_and_leave, &r) == 0);
  CHECK_EQ(sem_wait(&late_there), 0);
  for (; n < ALL; n++) {
    REQUIRE_OK(tarn_stream_create(r.device, &streams[n]));
    if (rig_alloc(&r, 300, streams[n], &block) != TARN_OK) {
      break;
    }
    CHECK_OK(rig_free(&r, &block, streams[n]));
  }
  CHECK_EQ(n, ALL - 2); /* one is the rig's, one the thread's */
  CHECK_EQ(sem_post(&late_go), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_OK(rig_alloc(&r, 6 * MIB, streams[0], &block));
  rig_touch(&r, &block, streams[0], true);
  CHECK_OK(rig_free(&r, &block, streams[0]));
  CHECK_OK(rig_alloc(&r, 300, streams[n], &block)); /* now there is a record */
  CHECK_OK(rig_free(&r, &block, streams[n]));
  for (int i = 0; i <= n; i++) {
    CHECK_OK(tarn_stream_retire(r.heap, streams[i]));
    CHECK_OK(tarn_stream_destroy(r.device, streams[i]));
  }
  CHECK(pthread_key_delete(late_key) == 0);
  rig_close(&r);
}

/* However many blocks have uses, each is found among a few. */
static void many_blocks_with_uses(void) {
  enum { N = 20000 };
  static tarn_ptr blocks[N];
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 2));
  const uint32_t before = r.heap->uses_capacity;
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_alloc(r.heap, 300, r.streams[0], &blocks[i]));
    CHECK_OK(tarn_use(r.heap, blocks[i], r.streams[1]));
  }
  CHECK(before < N && r.heap->uses_capacity >= N);
  CHECK_EQ(r.heap->n_uses, N);
  CHECK(rig_is_sound(&r));
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  CHECK_EQ(r.heap->n_uses, 0);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

static const test_case cases[] = {
    {"many blocks with uses", many_blocks_with_uses},
    {"threads that go late", threads_that_go_late},
    {"threads come and go", threads_come_and_go},
    {"threads that only use", threads_that_only_use},
    {"freed by many streams", freed_by_many_streams},
    {"the same stream gets it at once", same_stream_at_once},
    {"another stream gets other memory", other_stream_gets_other_memory},
    {"policies", policies},
    {"a use delays reuse", use_delays_reuse},
    {"a use waits for nobody", use_waits_for_nobody},
    {"a use on its own stream", use_on_its_own_stream},
    {"a user retired first", user_retired_first},
    {"an owner retired first", owner_retired_first},
    {"the legacy default stream", legacy_default_stream},
    {"per-thread default streams", per_thread_default_streams},
};

TEST_MAIN(cases)
