/* SPDX-License-Identifier: MIT
 *
 * The heap and streams: what one frees reaches others only in order, retired streams leave
 * everything behind, handles are used again, and default streams are streams like others. The
 * oracle looks at every use. */
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

/* ---- Retiring ---- */

/* What a retired stream held is everybody's, by a wait of nobody, once its work is complete. */
static void retired_memory_goes_to_all(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 16 * MIB, .stealing = TARN_STEAL_NEVER};
  rig r;
  rig_block small[20], large[3], block;
  REQUIRE(rig_open(&r, "sim:64M,order=eager", &config, 2));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_alloc(&r, 60 * KIB, r.streams[0], &small[i]));
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &large[i]));
  }
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_free(&r, &small[i], r.streams[0]));
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(rig_free(&r, &large[i], r.streams[0]));
  }
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[1], &block));
  CHECK_EQ(rig_stats(&r).waits, 0);
  CHECK(rig_stats(&r).reserved_bytes <= 16 * MIB);
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_alloc(&r, 60 * KIB, r.streams[1], &small[i]));
  }
  CHECK(rig_is_sound(&r));
  for (int i = 0; i < 20; i++) {
    CHECK_OK(rig_free(&r, &small[i], r.streams[1]));
  }
  rig_close(&r);
}

/* Slabs of which a retired stream had a part are put together again, and nothing is lost. */
static void retired_parts_come_together(void) {
  rig r;
  rig_block blocks[40];
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  for (int round = 0; round < 5; round++) {
    tarn_stream stream;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    for (int i = 0; i < 40; i++) {
      CHECK_OK(rig_alloc(&r, 5 * KIB, stream, &blocks[i]));
    }
    CHECK_OK(tarn_stream_synchronize(r.device, stream)); /* so that others may free its blocks */
    for (int i = 0; i < 40; i++) {
      CHECK_OK(rig_free(&r, &blocks[i], i % 3 == 0 ? r.streams[0] : stream));
    }
    CHECK_OK(tarn_stream_retire(r.heap, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    rig_block large; /* looks through everything */
    CHECK_OK(rig_alloc(&r, 60 * MIB, r.streams[1], &large));
    CHECK_OK(rig_free(&r, &large, r.streams[1]));
    CHECK(rig_is_sound(&r));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
  rig_close(&r);
}

/* Far more streams than the heap keeps records of, most with the handle of an earlier one. */
static void many_streams_one_after_another(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 0));
  static tarn_stream seen[3000];
  uint64_t n_reused = 0;
  for (int i = 0; i < 3000; i++) {
    tarn_stream stream;
    rig_block small, large;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    for (int j = 0; j < i; j++) {
      if (seen[j] == stream) {
        n_reused++;
        break;
      }
    }
    seen[i] = stream;
    CHECK_OK(rig_alloc(&r, 700, stream, &small));
    CHECK_OK(rig_alloc(&r, 3 * MIB, stream, &large));
    CHECK_OK(rig_free(&r, &small, stream));
    CHECK_OK(rig_free(&r, &large, stream));
    CHECK_OK(tarn_stream_retire(r.heap, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    if (test_case_failed()) {
      return;
    }
  }
  CHECK(n_reused > 1000);
  CHECK(rig_stats(&r).reserved_bytes <= 64 * MIB);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* Streams that only ever free or use, and never need memory themselves. */
static void many_streams_that_only_free(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  for (int i = 0; i < 2500; i++) {
    tarn_stream stream;
    rig_block block;
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    CHECK_OK(rig_alloc(&r, 700, r.streams[0], &block));
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    if (i % 2 == 0) {
      CHECK_OK(tarn_use(r.heap, block.address, stream));
      rig_touch(&r, &block, stream, false);
      CHECK_OK(rig_free(&r, &block, r.streams[0]));
    } else {
      CHECK_OK(rig_free(&r, &block, stream));
    }
    CHECK_OK(tarn_stream_retire(r.heap, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    if (test_case_failed()) {
      return;
    }
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* More streams at once than the heap has records for: an allocation is refused with what to do, a
 * free is not. */
static void too_many_streams_at_once(void) {
  enum { N = 1100 };
  static tarn_stream streams[N];
  static rig_block blocks[N];
  rig r;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_status status = TARN_OK;
  int n = 0;
  for (; n < N && status == TARN_OK; n++) {
    REQUIRE_OK(tarn_stream_create(r.device, &streams[n]));
    status = rig_alloc(&r, 300, streams[n], &blocks[n]);
  }
  CHECK_STATUS(status, TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "tarn_stream_retire");
  tarn_stream unknown = streams[--n];
  CHECK_OK(tarn_stream_synchronize(r.device, streams[0]));
  CHECK_OK(rig_free(&r, &blocks[0], unknown)); /* waits, and goes through */
  rig_block large;
  CHECK_OK(rig_alloc(&r, 3 * MIB, streams[1], &large));
  CHECK_OK(tarn_stream_synchronize(r.device, streams[1]));
  CHECK_OK(tarn_use(r.heap, large.address, streams[2]));
  CHECK_OK(rig_free(&r, &large, unknown));
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_stream_retire(r.heap, streams[0])); /* one goes, one comes */
  CHECK_OK(rig_alloc(&r, 300, unknown, &blocks[0]));
  CHECK_OK(rig_free(&r, &blocks[0], unknown));
  for (int i = 1; i < n; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], streams[i]));
  }
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  r.heap = NULL;
  for (int i = 0; i <= n; i++) {
    CHECK_OK(tarn_stream_destroy(r.device, streams[i]));
  }
  rig_close(&r);
}

static void retiring_the_unknown(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  rig_block block;
  CHECK_OK(rig_alloc(&r, 700, r.streams[0], &block)); /* and it may be used all the same */
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(tarn_stream_retire(r.heap, r.streams[0]));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A stream that was destroyed without being retired: what waits for it is not used again, and the
 * end of the heap waits for everything. */
static void destroyed_without_being_retired(void) {
  const tarn_heap_config config = {
      .size = sizeof(config), .limit_bytes = 8 * MIB, .stealing = TARN_STEAL_WHEN_SHORT};
  rig r;
  rig_block block, next;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 1));
  tarn_stream stream;
  REQUIRE_OK(tarn_stream_create(r.device, &stream));
  CHECK_OK(rig_alloc(&r, 6 * MIB, stream, &block));
  CHECK_OK(rig_free(&r, &block, stream));
  CHECK_OK(tarn_stream_destroy(r.device, stream));
  const tarn_status status = rig_alloc(&r, 4 * MIB, r.streams[0], &next);
  CHECK(status == TARN_OK || status == TARN_STATE || status == TARN_LIMIT);
  if (status == TARN_OK) {
    CHECK_OK(rig_free(&r, &next, r.streams[0]));
  }
  CHECK_EQ(rig_stats(&r).quarantined_bytes != 0, status != TARN_OK);
  CHECK(r.n_findings > 0); /* of the misuse, and of nothing else */
  for (size_t i = 0; i < r.n_findings; i++) {
    tarn_sim_finding finding = {.size = sizeof(finding)};
    CHECK_OK(tarn_sim_finding_get(r.device, i, &finding));
    CHECK_EQ(finding.kind, TARN_SIM_MISUSE);
  }
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
  tarn_device_close(r.device);
}

/* The same where what was taken to wait for everything cannot be given back: it is out of use until
 * it can, and not lost. */
static void waiting_loses_nothing(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  tarn_stream stream;
  REQUIRE_OK(tarn_stream_create(r.device, &stream));
  CHECK_OK(rig_alloc(&r, 6 * MIB, stream, &block));
  CHECK_OK(rig_free(&r, &block, stream));
  CHECK_OK(tarn_stream_destroy(r.device, stream));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_PLAIN_FREE, 1, 2, 1));
  for (int i = 0; i < 2; i++) {
    CHECK(tarn_heap_destroy(r.heap, NULL) != TARN_OK);
    CHECK_EQ(rig_state(&r).created_bytes, 8 * MIB);
    CHECK_EQ(rig_stats(&r).reserved_bytes, 8 * MIB);
    CHECK_EQ(rig_stats(&r).quarantined_bytes, 8 * MIB); /* and what the lost stream freed */
    CHECK(rig_is_sound(&r));
  }
  CHECK_OK(tarn_heap_destroy(r.heap, NULL));
  const size_t n_findings = r.n_findings;
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
  tarn_device_close(r.device);
  CHECK_EQ(r.n_findings, n_findings);
}

/* A trim gives it back, too, where the heap has no more to wait for. */
static void trim_returns_what_waiting_took(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 1));
  CHECK_OK(rig_alloc(&r, 6 * MIB, r.streams[0], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_PLAIN_FREE, 1, 1, 1));
  tarni_lock_acquire(&r.heap->grow);
  CHECK_STATUS(tarni_device_await(r.heap), TARN_INVALID);
  tarni_lock_release(&r.heap->grow);
  CHECK_EQ(rig_stats(&r).quarantined_bytes, 2 * MIB);
  CHECK_EQ(rig_state(&r).created_bytes, rig_stats(&r).reserved_bytes);
  CHECK(rig_is_sound(&r));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  CHECK(rig_is_sound(&r));
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

/* A stream that was destroyed without a word: the first trim learns of it, and trims go on. */
static void trims_after_a_stream_is_gone(void) {
  for (int policy = TARN_STEAL_WHEN_SHORT; policy <= TARN_STEAL_ALWAYS; policy++) {
    const tarn_heap_config config = {.size = sizeof(config), .stealing = (tarn_stealing)policy};
    rig r;
    rig_block a, b, next;
    tarn_stream gone;
    REQUIRE(rig_open(&r, "sim:64M", &config, 2));
    REQUIRE_OK(tarn_stream_create(r.device, &gone));
    CHECK_OK(rig_alloc(&r, 20 * MIB, r.streams[1], &a));
    CHECK_OK(rig_alloc(&r, 30 * MIB, gone, &b));
    CHECK_OK(rig_free(&r, &b, gone));
    CHECK_OK(rig_free(&r, &a, r.streams[1]));
    CHECK_OK(tarn_stream_synchronize(r.device, gone));
    CHECK_OK(tarn_stream_destroy(r.device, gone));
    (void)tarn_heap_trim(r.heap, 0); /* it may say so */
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
    CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[0], &next));
    CHECK_OK(rig_free(&r, &next, r.streams[0]));
    CHECK_OK(tarn_heap_destroy(r.heap, NULL));
    for (int i = 0; i < 2; i++) {
      CHECK_OK(tarn_stream_destroy(r.device, r.streams[i]));
    }
    tarn_device_close(r.device);
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

static const test_case cases[] = {
    {"threads that go late", threads_that_go_late},
    {"threads come and go", threads_come_and_go},
    {"threads that only use", threads_that_only_use},
    {"freed by many streams", freed_by_many_streams},
    {"trims after a stream is gone", trims_after_a_stream_is_gone},
    {"the same stream gets it at once", same_stream_at_once},
    {"another stream gets other memory", other_stream_gets_other_memory},
    {"policies", policies},
    {"a use delays reuse", use_delays_reuse},
    {"a use waits for nobody", use_waits_for_nobody},
    {"a use on its own stream", use_on_its_own_stream},
    {"a user retired first", user_retired_first},
    {"an owner retired first", owner_retired_first},
    {"memory of a retired stream goes to all", retired_memory_goes_to_all},
    {"parts of retired streams come together", retired_parts_come_together},
    {"many streams one after another", many_streams_one_after_another},
    {"many streams that only free", many_streams_that_only_free},
    {"too many streams at once", too_many_streams_at_once},
    {"retiring what is not known", retiring_the_unknown},
    {"destroyed without being retired", destroyed_without_being_retired},
    {"waiting loses nothing", waiting_loses_nothing},
    {"a trim returns what waiting took", trim_returns_what_waiting_took},
    {"the legacy default stream", legacy_default_stream},
    {"per-thread default streams", per_thread_default_streams},
};

TEST_MAIN(cases)
