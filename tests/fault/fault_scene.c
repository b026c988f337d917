/* SPDX-License-Identifier: MIT
 *
 * Scenes of a heap's life, on small simulated GPUs: growing, moving chunks, stealing, uses, streams
 * that go, trimming, limits, threads. */
#include "fault/fault_scene.h"

#include <pthread.h>

#include "support/test.h"

/* A call of the heap, announced to whoever makes it fail. */
#define PASSED(w, call) (call_begin(w), call_end((w), (call)))

/* Whether an allocation may fail so: with the driver's own word, or, where the driver lets nothing
 * be given back for good, because what is left is too little. */
static bool is_excused(const fault_world *w, tarn_status status) {
  const bool is_no_address = status == TARN_ADDRESS_SPACE && w->expected == TARN_DEVICE_MEMORY;
  const bool is_no_pinned = status == TARN_HOST_MEMORY && w->expected == TARN_DEVICE_MEMORY;
  return status == w->expected || is_no_pinned ||
         is_no_address || /* addresses run out under their own name */
         (w->is_for_good && (status == TARN_LIMIT || status == TARN_DEVICE_MEMORY ||
                             status == TARN_ADDRESS_SPACE || status == TARN_STATE));
}

/* Whether the call succeeded; if not, it failed as the fault lets it. */
bool fault_passed(fault_world *w, tarn_status status) {
  if (status == TARN_OK) {
    return true;
  }
  if (!w->is_armed || w->is_lost) {
    CHECK_STATUS(status, w->is_lost ? TARN_DEVICE_LOST : TARN_OK);
    return false;
  }
  if (!is_excused(w, status)) {
    CHECK_STATUS(status, w->expected);
  }
  tarn_error error = {.size = sizeof(error)};
  CHECK_EQ(tarn_last_error(&error), status);
  CHECK(error.message[0] != '\0');
  if (w->expected != TARN_DEVICE_LOST && !w->checks_call) {
    CHECK(rig_is_sound(&w->rig));
  }
  return false;
}

static void call_begin(const fault_world *w) {
  if (w->on_call != NULL) {
    w->on_call(true);
  }
}

static bool call_end(fault_world *w, tarn_status status) {
  if (w->on_call != NULL) {
    w->on_call(false);
  }
  return fault_passed(w, status);
}

/* ---- Steps ---- */

/* As rig_alloc and rig_free do it, but only the heap's own call is announced. */
static bool obtain(fault_world *w, uint64_t bytes, tarn_stream stream, rig_block *block) {
  tarn_ptr address = 1;
  if (!PASSED(w, tarn_alloc(w->rig.heap, bytes, stream, &address))) {
    CHECK_EQ(address, 0);
    return false;
  }
  rig_own(&w->rig, address, bytes, block);
  rig_touch(&w->rig, block, stream, true);
  return true;
}

static bool release(fault_world *w, rig_block *block, tarn_stream stream) {
  const bool is_asleep = rig_stats(&w->rig).is_asleep; /* then there is nothing to own */
  if (!is_asleep) {
    CHECK_OK(tarn_sim_disown(w->rig.device, block->address, block->bytes));
  }
  if (!PASSED(w, tarn_free(w->rig.heap, block->address, stream))) {
    if (is_asleep) {
      return false;
    }
    CHECK_OK(tarn_sim_own(w->rig.device, block->address, block->bytes, block->owner));
    return false;
  }
  return true;
}

static void take(fault_world *w, uint64_t bytes, int stream) {
  rig_block *block = &w->blocks[w->n_blocks];
  w->streams[w->n_blocks] = w->rig.streams[stream];
  w->n_blocks += obtain(w, bytes, w->rig.streams[stream], block);
}

static void give(fault_world *w, int index) {
  if (index < w->n_blocks && release(w, &w->blocks[index], w->streams[index])) {
    w->blocks[index] = w->blocks[--w->n_blocks];
    w->streams[index] = w->streams[w->n_blocks];
  }
}

void fault_give_all(fault_world *w) {
  for (int i = w->n_blocks; i-- != 0;) {
    give(w, i);
  }
}

/* Another stream reads the block, after all that its own stream has been given. */
static void use(fault_world *w, int index, int stream) {
  if (index >= w->n_blocks ||
      !PASSED(w, tarn_stream_synchronize(w->rig.device, w->streams[index]))) {
    return;
  }
  if (PASSED(w, tarn_use(w->rig.heap, w->blocks[index].address, w->rig.streams[stream]))) {
    rig_touch(&w->rig, &w->blocks[index], w->rig.streams[stream], false);
  }
}

/* ---- Scenes ---- */

static void grow(fault_world *w) {
  for (int i = 0; i < 6; i++) {
    take(w, (uint64_t)300 << i, 0);
    take(w, (uint64_t)(3 * i + 2) * FAULT_MIB / 2, 0);
  }
  give(w, 3);
  give(w, 0);
  take(w, 5 * FAULT_MIB, 0);
  take(w, 700 << 10, 0);
  fault_give_all(w);
}

/* Memory that is free in pieces is brought together. */
static void move(fault_world *w) {
  for (int i = 0; i < 7; i++) {
    take(w, 4 * FAULT_MIB, 0);
  }
  for (int i = 6; i >= 0; i -= 2) {
    give(w, i);
  }
  take(w, 12 * FAULT_MIB, 0);
  take(w, 1 * FAULT_MIB, 0);
  take(w, 200 << 10, 0);
  fault_give_all(w);
  take(w, 24 * FAULT_MIB, 0);
  fault_give_all(w);
}

static void steal(fault_world *w) {
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 4; i++) {
      take(w, 3 * FAULT_MIB, round);
      take(w, 100 << 10, round);
    }
    fault_give_all(w);
  }
  take(w, 14 * FAULT_MIB, 3);
  fault_give_all(w);
}

static void share(fault_world *w) {
  for (int i = 0; i < 3; i++) {
    take(w, 2 * FAULT_MIB, 0);
    take(w, 40 << 10, 0);
  }
  for (int i = 0; i < 6; i++) {
    use(w, i, 1);
    use(w, i, i % 3);
  }
  fault_give_all(w);
  take(w, 6 * FAULT_MIB, 2);
  take(w, 40 << 10, 0);
  take(w, 3 * FAULT_MIB, 0);
  fault_give_all(w);
}

static void retire(fault_world *w) {
  for (int i = 0; i < 3; i++) {
    take(w, 2 * FAULT_MIB, i);
    take(w, 5 << 10, i);
    take(w, 300 << 10, i);
  }
  use(w, 1, 1);
  give(w, 4);
  give(w, 1);
  for (int i = 0; i < 3; i++) {
    (void)PASSED(w, tarn_stream_retire(w->rig.heap, w->rig.streams[i]));
  }
  take(w, 7 * FAULT_MIB, 3);
  take(w, 5 << 10, 3);
  fault_give_all(w);
  (void)PASSED(w, tarn_stream_retire(w->rig.heap, w->rig.streams[3]));
  take(w, 12 * FAULT_MIB, 0);
  fault_give_all(w);
}

static void trim(fault_world *w) {
  for (int i = 0; i < 3; i++) {
    take(w, 3 * FAULT_MIB, i);
    take(w, 30 << 10, i);
  }
  give(w, 4);
  give(w, 0);
  (void)PASSED(w, tarn_heap_trim(w->rig.heap, 4 * FAULT_MIB));
  fault_give_all(w);
  if (PASSED(w, tarn_heap_trim(w->rig.heap, 0)) && !w->is_armed) {
    CHECK_EQ(rig_stats(&w->rig).reserved_bytes, 0);
  }
}

static void limit(fault_world *w) {
  if (!w->rig.has_buckets && PASSED(w, tarn_heap_reserve(w->rig.heap, 10 * FAULT_MIB))) {
    CHECK(rig_stats(&w->rig).reserved_bytes >= 10 * FAULT_MIB);
  }
  take(w, 3 * FAULT_MIB, 0);
  take(w, 3 * FAULT_MIB, 1);
  take(w, 3 << 10, 1);
  give(w, 0);
  (void)PASSED(w, tarn_heap_set_limit(w->rig.heap, 6 * FAULT_MIB));
  CHECK_EQ(rig_stats(&w->rig).limit_bytes, 6 * FAULT_MIB);
  fault_give_all(w);
  take(w, 4 * FAULT_MIB, 2);
  (void)PASSED(w, tarn_heap_set_limit(w->rig.heap, 0));
  take(w, 8 * FAULT_MIB, 2);
  fault_give_all(w);
}

static void reset(fault_world *w) {
  for (int i = 0; i < 3; i++) {
    take(w, 3 * FAULT_MIB, i);
    take(w, 30 << 10, i);
    take(w, 200 << 10, i);
  }
  use(w, 2, 1);
  use(w, 3, 0);
  give(w, 7);
  if (w->n_blocks != 0) {
    call_begin(w);
    const tarn_status status = tarn_heap_reset(w->rig.heap);
    (void)call_end(w, TARN_OK);
    CHECK_STATUS(status, TARN_BUSY);
  }
  fault_give_all(w);
  (void)PASSED(w, tarn_stream_retire(w->rig.heap, w->rig.streams[2]));
  if (w->n_blocks == 0 && PASSED(w, tarn_heap_reset(w->rig.heap))) {
    CHECK_EQ(rig_stats(&w->rig).reserved_bytes, 0);
  }
  take(w, 5 * FAULT_MIB, 2);
  take(w, 30 << 10, 1);
  fault_give_all(w);
}

/* Fills all blocks with marks. */
static bool put_marks(fault_world *w) {
  bool is_marked = true;
  for (int i = 0; i < w->n_blocks; i++) {
    const rig_block *block = &w->blocks[i];
    const tarn_status status = tarn_device_fill(w->rig.device, block->address,
                                                (uint8_t)block->owner, block->bytes, w->streams[i]);
    is_marked = fault_passed(w, status) && is_marked;
  }
  return is_marked;
}

/* Memory that came back is new: the oracle does not know its owners. */
static void own_again(const fault_world *w) {
  for (int i = 0; i < w->n_blocks; i++) {
    const rig_block *block = &w->blocks[i];
    CHECK_OK(tarn_sim_own(w->rig.device, block->address, block->bytes, block->owner));
  }
}

/* Whether all blocks still hold their marks. */
static void check_marks(const fault_world *w) {
  for (int i = 0; i < w->n_blocks; i++) {
    const uint8_t *bytes = (const uint8_t *)(uintptr_t)w->blocks[i].address;
    const uint8_t mark = (uint8_t)w->blocks[i].owner;
    CHECK(bytes[0] == mark && bytes[w->blocks[i].bytes / 2] == mark &&
          bytes[w->blocks[i].bytes - 1] == mark);
  }
}

static bool is_broken(const fault_world *w) {
  uint64_t n = 0;
  CHECK_OK(tarn_sim_failed(w->rig.device, &n));
  return w->is_lost || (n != 0 && w->expected == TARN_DEVICE_LOST);
}

static void sleep_and_wake(fault_world *w, tarn_sleep_content content) {
  if (rig_stats(&w->rig).is_asleep && !PASSED(w, tarn_heap_wake(w->rig.heap))) {
    return; /* it went to sleep before the fault was over */
  }
  for (int i = 0; i < 3; i++) {
    take(w, 3 * FAULT_MIB, i);
    take(w, 30 << 10, i);
    take(w, 200 << 10, i);
  }
  const bool is_marked = put_marks(w);
  use(w, 2, 1);
  use(w, 3, 0);
  give(w, 7);
  give(w, 2);
  const bool has_slept = PASSED(w, tarn_heap_sleep(w->rig.heap, content)); /* all work is done */
  if (rig_stats(&w->rig).is_asleep) {
    give(w, 0);
    give(w, 3);
    if (!w->is_armed) {
      CHECK_EQ(rig_state(&w->rig).created_bytes, 0);
    }
    for (int i = 0; i < 2 && rig_stats(&w->rig).is_asleep; i++) {
      (void)PASSED(w, tarn_heap_wake(w->rig.heap));
    }
  }
  if (!rig_stats(&w->rig).is_asleep && !is_broken(w)) {
    own_again(w);
    CHECK(w->is_armed || w->n_blocks == 5);
    if (is_marked && has_slept && content == TARN_SLEEP_SAVE) {
      check_marks(w);
    }
    take(w, 5 * FAULT_MIB, 1);
    take(w, 30 << 10, 1);
    fault_give_all(w);
  }
}

static void sleep_save(fault_world *w) {
  sleep_and_wake(w, TARN_SLEEP_SAVE);
}

static void sleep_drop(fault_world *w) {
  sleep_and_wake(w, TARN_SLEEP_DROP);
}

static void debug(fault_world *w) {
  w->checks_call = true;
  for (int i = 0; i < 3; i++) {
    take(w, 5 << 10, i);
    take(w, 200 << 10, i);
  }
  use(w, 1, 2);
  use(w, 2, 0);
  give(w, 4);
  give(w, 1);
  take(w, 2 * FAULT_MIB, 0);
  fault_give_all(w);
  (void)PASSED(w, tarn_stream_retire(w->rig.heap, w->rig.streams[2]));
  (void)PASSED(w, tarn_heap_trim(w->rig.heap, 0));
}

static void debug_sleep(fault_world *w) {
  w->checks_call = true;
  if (rig_stats(&w->rig).is_asleep && !PASSED(w, tarn_heap_wake(w->rig.heap))) {
    return;
  }
  take(w, 5 << 10, 0);
  take(w, 200 << 10, 1);
  take(w, 2 * FAULT_MIB, 1);
  give(w, 1);
  (void)PASSED(w, tarn_heap_sleep(w->rig.heap, TARN_SLEEP_DROP));
  for (int i = 0; i < 2 && rig_stats(&w->rig).is_asleep; i++) {
    (void)PASSED(w, tarn_heap_wake(w->rig.heap));
  }
  if (!rig_stats(&w->rig).is_asleep && !is_broken(w)) {
    own_again(w);
    fault_give_all(w);
  }
}

static void *thread_work(void *user) {
  fault_world *w = user;
  for (int i = 0; i < 2; i++) {
    w->streams[w->n_blocks] = NULL; /* the legacy stream follows the threads' ones */
    w->n_blocks +=
        obtain(w, i == 0 ? 2 * FAULT_MIB : 9 << 10, (tarn_stream)2, &w->blocks[w->n_blocks]);
  }
  rig_block block;
  if (obtain(w, 6 * FAULT_MIB, (tarn_stream)2, &block) && !release(w, &block, (tarn_stream)2)) {
    w->streams[w->n_blocks] = NULL;
    w->blocks[w->n_blocks++] = block;
  }
  return NULL;
}

/* Each thread on its own default stream; what one leaves behind the other takes. */
static void threads(fault_world *w) {
  for (int i = 0; i < 2; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, thread_work, w) == 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    (void)thread_work(w);
  }
  fault_give_all(w);
}

void fault_live_a_little(fault_world *w) {
  move(w);
  share(w);
  take(w, 3 * FAULT_MIB, 1);
  take(w, 3 << 10, 1);
  use(w, 0, 2);
  use(w, 1, 2);
  give(w, 0);
  take(w, 5 * FAULT_MIB, 3);
  (void)PASSED(w, tarn_stream_retire(w->rig.heap, w->rig.streams[0]));
}

#define SCENE(scene_device, function, ...)                                                         \
  {                                                                                                \
    .device = (scene_device), .play = (function), .config = {                                      \
      .size = sizeof(tarn_heap_config),                                                            \
      __VA_ARGS__                                                                                  \
    }                                                                                              \
  }

const fault_scene fault_scenes[FAULT_SCENES] = {
    [FAULT_GROW] = SCENE("sim:64M,order=lazy", grow, .stealing = TARN_STEAL_WHEN_SHORT),
    [FAULT_MOVE] = SCENE("sim:64M,order=lazy", move, .limit_bytes = 32 * FAULT_MIB),
    [FAULT_MOVE_ANY] =
        SCENE("sim:64M,seed=3", move, .limit_bytes = 32 * FAULT_MIB, .stealing = TARN_STEAL_ALWAYS),
    [FAULT_STEAL_SHORT] = SCENE("sim:16M,order=lazy", steal, .stealing = TARN_STEAL_WHEN_SHORT),
    [FAULT_STEAL_ALWAYS] = SCENE("sim:16M,seed=5", steal, .stealing = TARN_STEAL_ALWAYS),
    [FAULT_STEAL_NEVER] = SCENE("sim:16M,order=lazy", steal, .stealing = TARN_STEAL_NEVER),
    [FAULT_SHARE] = SCENE("sim:64M,order=lazy", share, .limit_bytes = 12 * FAULT_MIB),
    [FAULT_RETIRE] = SCENE("sim:64M,order=lazy", retire, .limit_bytes = 24 * FAULT_MIB),
    [FAULT_TRIM] = SCENE("sim:64M,order=lazy", trim, .stealing = TARN_STEAL_WHEN_SHORT),
    [FAULT_LIMIT] = SCENE("sim:64M,order=lazy", limit, .stealing = TARN_STEAL_WHEN_SHORT),
    [FAULT_RESET] = SCENE("sim:64M,order=lazy", reset, .limit_bytes = 24 * FAULT_MIB),
    [FAULT_SLEEP_SAVE] = SCENE("sim:64M,order=lazy", sleep_save, .limit_bytes = 24 * FAULT_MIB),
    [FAULT_SLEEP_DROP] = SCENE("sim:64M,order=lazy", sleep_drop, .limit_bytes = 24 * FAULT_MIB),
    [FAULT_DEBUG] = SCENE("sim:64M,order=lazy", debug, .limit_bytes = 24 * FAULT_MIB,
                          .fill_alloc = 0x11, .fill_free = 0x22, .guard_bytes = 300,
                          .quarantine_bytes = FAULT_MIB / 4, .stack_depth = 4),
    [FAULT_DEBUG_SLEEP] = SCENE("sim:64M,order=lazy", debug_sleep, .limit_bytes = 24 * FAULT_MIB,
                                .guard_bytes = 256, .quarantine_bytes = 8 * FAULT_MIB),
    [FAULT_SECURE] =
        SCENE("sim:64M,order=lazy", retire, .limit_bytes = 24 * FAULT_MIB, .is_secure = true),
    [FAULT_SECURE_SLEEP] =
        SCENE("sim:64M,order=lazy", sleep_save, .limit_bytes = 24 * FAULT_MIB, .is_secure = true),
    [FAULT_THREADS] = SCENE("sim:64M,order=lazy", threads, .limit_bytes = 24 * FAULT_MIB),
};
