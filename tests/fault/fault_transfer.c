/* SPDX-License-Identifier: MIT
 *
 * Transfers while something fails. Every call either succeeds, and then its bytes are right, or
 * fails as the fault lets it, and then nothing that it names has changed. */
#include "fault/fault_transfer.h"

#include <string.h>

#include "support/test.h"

enum {
  SMALL = 3000,
  LARGE = 300 << 10,
  N_PIECES = 5,
  POOL_BYTES = 256 << 20, /* at most: a pool whose device is lost keeps its addresses */
};

/* A call, announced to whoever makes it fail. */
#define PASSED(t, call) (call_begin(t), call_end((t), (call)))

static void call_begin(const fault_transfers *t) {
  if (t->on_call != NULL) {
    t->on_call(true);
  }
}

static bool is_excused(const fault_transfers *t, tarn_status status) {
  return status == t->expected ||
         (t->is_for_good && (status == TARN_LIMIT || status == TARN_STATE ||
                             status == TARN_HOST_MEMORY || status == TARN_DEVICE_MEMORY));
}

static bool call_end(fault_transfers *t, tarn_status status) {
  if (t->on_call != NULL) {
    t->on_call(false);
  }
  if (status == TARN_OK) {
    return true;
  }
  t->n_failed++;
  if (!t->is_armed || !is_excused(t, status)) {
    CHECK_STATUS(status, t->is_armed ? t->expected : TARN_OK);
  }
  tarn_error error = {.size = sizeof(error)};
  CHECK_EQ(tarn_last_error(&error), status);
  CHECK(error.message[0] != '\0');
  return false;
}

bool fault_transfers_open(fault_transfers *t, const char *device, uint32_t n_helpers) {
  const tarn_copier_config config = {.size = sizeof(config),
                                     .piece_bytes = 32 << 10,
                                     .n_threads = n_helpers,
                                     .has_no_threads = n_helpers == 0};
  return dock_open(&t->dock, device, &config, POOL_BYTES, 2);
}

/* ---- Copies ---- */

static void copy_and_back(fault_transfers *t, tarn_ptr block, uint64_t length) {
  static uint8_t out[LARGE], back[LARGE];
  tarn_stream stream = t->dock.rig.streams[0];
  dock_pattern(out, length, length);
  memset(back, 0, length);
  const bool is_there = PASSED(t, tarn_copy_in(t->dock.copier, block, out, length, stream));
  if (PASSED(t, tarn_copy_out(t->dock.copier, back, block, length, stream)) && is_there) {
    CHECK_EQ(dock_differ(back, length, length), 0);
  }
}

static void copy_and_back_async(fault_transfers *t, tarn_ptr block, uint64_t length) {
  static uint8_t out[LARGE], back[LARGE];
  tarn_stream stream = t->dock.rig.streams[0];
  tarn_fence *in = (tarn_fence *)(uintptr_t)1, *fence = (tarn_fence *)(uintptr_t)1;
  dock_pattern(out, length, length + 1);
  memset(back, 0, length);
  const bool is_there =
      PASSED(t, tarn_copy_in_async(t->dock.copier, block, out, length, stream, &in));
  memset(out, 0, length);
  CHECK(is_there == (in != NULL));
  if (!PASSED(t, tarn_copy_out_async(t->dock.copier, back, block, length, stream, &fence))) {
    CHECK(fence == NULL);
  } else if (PASSED(t, tarn_fence_wait(fence)) && is_there) {
    CHECK_EQ(dock_differ(back, length, length + 1), 0);
  }
  tarn_fence_destroy(in);
  tarn_fence_destroy(fence);
}

/* ---- A batch ---- */

static bool batch_holds_old(tarn_buffer *const *buffers) {
  bool is_old = true;
  for (int i = 0; i < N_PIECES; i++) {
    is_old = is_old && tarn_buffer_length(buffers[i]) == 3 &&
             memcmp(tarn_buffer_bytes(buffers[i]), "old", 3) == 0;
  }
  return is_old;
}

static void batch_collect(fault_transfers *t, tarn_batch *batch, uint32_t n_outputs, bool is_sent) {
  tarn_buffer *buffers[N_PIECES] = {NULL};
  for (int i = 0; i < N_PIECES; i++) {
    CHECK_OK(tarn_buffer_create(NULL, &buffers[i]));
    CHECK_OK(tarn_buffer_assign(buffers[i], "old", 3));
  }
  if (!PASSED(t, tarn_batch_collect_into(batch, buffers, n_outputs))) {
    CHECK(batch_holds_old(buffers));
  } else if (is_sent) {
    for (uint32_t i = 0; i < n_outputs; i++) {
      CHECK_EQ(tarn_buffer_length(buffers[i]), 100);
      CHECK_EQ(dock_differ(tarn_buffer_bytes(buffers[i]), 100, i), 0);
    }
  }
  for (int i = 0; i < N_PIECES; i++) {
    tarn_buffer_destroy(buffers[i]);
  }
}

/* Names pieces until one fails; how many there are then is what the batch says, too. */
static uint32_t batch_fill(fault_transfers *t, tarn_batch *batch, tarn_ptr block) {
  uint32_t n = 0;
  uint8_t bytes[100];
  for (; n < N_PIECES; n++) {
    dock_pattern(bytes, sizeof(bytes), n);
    if (!PASSED(t, tarn_batch_upload(batch, block + n * 1000, bytes, sizeof(bytes)))) {
      break;
    }
  }
  uint32_t n_outputs = 0;
  while (n_outputs < n &&
         PASSED(t, tarn_batch_output_padded(batch, block + n_outputs * 1000, 100, 112, NULL))) {
    n_outputs++;
  }
  tarn_batch_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_batch_get_info(batch, &info));
  CHECK_EQ(info.n_uploads, n);
  CHECK_EQ(info.n_outputs, n_outputs);
  return n_outputs;
}

static void play_batch(fault_transfers *t, tarn_ptr block) {
  tarn_stream stream = t->dock.rig.streams[1];
  tarn_batch *batch = NULL;
  tarn_fence *fence = NULL;
  if (!PASSED(t, tarn_batch_create(t->dock.copier, NULL, &batch))) {
    CHECK(batch == NULL);
    return;
  }
  const uint32_t n_outputs = batch_fill(t, batch, block);
  bool is_sent = PASSED(t, tarn_batch_send(batch, stream));
  if (!is_sent) { /* once more, on the same stream */
    is_sent = PASSED(t, tarn_batch_send(batch, stream));
  }
  if (PASSED(t, tarn_batch_fetch(batch, stream, &fence))) {
    batch_collect(t, batch, n_outputs, is_sent);
  } else {
    CHECK(fence == NULL);
  }
  tarn_fence_destroy(fence);
  CHECK_OK(tarn_batch_destroy(batch));
}

/* ---- A scope ---- */

static void scope_end(fault_transfers *t) {
  if (t->scope != NULL && PASSED(t, tarn_scope_destroy(t->scope))) {
    t->scope = NULL;
  }
}

static void play_scope(fault_transfers *t) {
  tarn_stream stream = t->dock.rig.streams[0];
  tarn_fence *fence = NULL;
  if (t->scope != NULL || !PASSED(t, tarn_scope_create(t->dock.rig.heap, 3, stream, &t->scope))) {
    return;
  }
  for (uint32_t i = 0; i < 3; i++) {
    (void)PASSED(t, tarn_scope_alloc(t->scope, i, (uint64_t)5000 << (4 * i), NULL));
  }
  if (PASSED(t, tarn_fence_record(t->dock.copier, stream, &fence))) {
    (void)PASSED(t, tarn_scope_release_after(t->scope, fence, t->dock.rig.streams[1]));
  }
  tarn_fence_destroy(fence);
  scope_end(t);
}

/* ---- All ---- */

static void blocks_free(fault_transfers *t) {
  for (int i = 0; i < 2; i++) {
    if (PASSED(t, tarn_free(t->dock.rig.heap, t->blocks[i], t->dock.rig.streams[i]))) {
      t->blocks[i] = 0;
    }
  }
}

void fault_transfers_play(fault_transfers *t) {
  for (int i = 0; i < 2; i++) {
    if (t->blocks[i] == 0) {
      (void)PASSED(t, tarn_alloc(t->dock.rig.heap, LARGE, t->dock.rig.streams[i], &t->blocks[i]));
    }
  }
  if (t->blocks[0] != 0) {
    copy_and_back(t, t->blocks[0], SMALL);
    copy_and_back(t, t->blocks[0], LARGE);
    copy_and_back_async(t, t->blocks[0], SMALL);
    copy_and_back_async(t, t->blocks[0], LARGE);
  }
  if (t->blocks[1] != 0) {
    play_batch(t, t->blocks[1]);
  }
  play_scope(t);
  blocks_free(t);
}

void fault_transfers_close(fault_transfers *t) {
  scope_end(t);
  blocks_free(t);
  dock_close(&t->dock);
}

void fault_transfers_bury(fault_transfers *t) {
  CHECK_OK(tarn_scope_destroy(t->scope));
  CHECK_OK(tarn_copier_destroy(t->dock.copier));
  CHECK_OK(tarn_pinned_destroy(t->dock.pool, NULL));
  CHECK_OK(tarn_heap_destroy(t->dock.rig.heap, NULL));
  tarn_device_close(t->dock.rig.device);
  CHECK_EQ(t->dock.rig.n_findings, 0);
}
