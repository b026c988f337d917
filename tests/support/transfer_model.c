/* SPDX-License-Identifier: MIT
 *
 * Sequences of transfers against a model: the device's memory as an array, the batch as a list of
 * pieces, the buffers as strings of bytes, the scope as an array of flags. All work goes to one
 * stream of a simulated GPU, in its order; when it completes, the seed decides. */
#include "support/transfer_model.h"

#include <stdlib.h>
#include <string.h>

#include "support/dock.h"
#include "support/test.h"

enum {
  MEMORY = 400 << 10, /* of the device */
  MAX_PENDING = 4,    /* copies out that are not finished */
  MAX_PIECES = 24,
  N_SLOTS = 4,
  N_KINDS = 14,
};

typedef struct pending_copy {
  tarn_fence *fence; /* NULL: none */
  uint8_t *got;
  uint8_t *expected;
  uint64_t length;
} pending_copy;

typedef struct piece {
  uint64_t at, length, transfer;
} piece;

typedef struct model {
  const uint8_t *data;
  size_t left;
  dock dock;
  tarn_stream stream;
  tarn_ptr block;
  uint8_t memory[MEMORY]; /* what the device's memory is when the stream is done */
  uint8_t scratch[MEMORY], other[MEMORY];
  pending_copy pending[MAX_PENDING];
  tarn_batch *batch;
  piece uploads[MAX_PIECES], outputs[MAX_PIECES];
  uint8_t staged[MAX_PIECES][2048];
  uint8_t fetched[MAX_PIECES][2048];
  uint32_t n_uploads, n_outputs;
  bool is_fetched;
  tarn_buffer_list *list;
  tarn_scope *scope;
  bool is_filled[N_SLOTS + 1];
} model;

/* ---- Numbers from the data ---- */

static uint64_t take(model *m, uint64_t bound) {
  uint64_t value = 0;
  for (int i = 0; i < 3 && m->left != 0; i++, m->left--) {
    value = value << 8 | *m->data++;
  }
  return value % bound;
}

/* A range of the device's memory: mostly little, sometimes nearly all of it. */
static void take_range(model *m, uint64_t *at, uint64_t *length) {
  const uint64_t most = take(m, 4) == 0 ? MEMORY : 5000;
  *length = take(m, most);
  *at = take(m, MEMORY - *length);
}

static void take_bytes(model *m, uint8_t *bytes, uint64_t length) {
  dock_pattern(bytes, length, take(m, 1 << 20));
}

/* ---- Copies ---- */

static void do_copy_in(model *m) {
  uint64_t at, length;
  take_range(m, &at, &length);
  take_bytes(m, m->memory + at, length);
  memcpy(m->scratch, m->memory + at, length);
  tarn_fence *fence = NULL;
  if (take(m, 2) == 0) {
    CHECK_OK(tarn_copy_in(m->dock.copier, m->block + at, m->scratch, length, m->stream));
  } else {
    CHECK_OK(
        tarn_copy_in_async(m->dock.copier, m->block + at, m->scratch, length, m->stream, &fence));
    memset(m->scratch, 0x77, length);
  }
  tarn_fence_destroy(fence);
}

static void do_copy_out(model *m) {
  uint64_t at, length;
  take_range(m, &at, &length);
  memset(m->scratch, 0x55, length + 1);
  CHECK_OK(tarn_copy_out(m->dock.copier, m->scratch, m->block + at, length, m->stream));
  CHECK(memcmp(m->scratch, m->memory + at, length) == 0);
  CHECK_EQ(m->scratch[length], 0x55);
}

static void pending_end(pending_copy *copy) {
  tarn_fence_destroy(copy->fence);
  free(copy->got);
  free(copy->expected);
  *copy = (pending_copy){0};
}

static void do_copy_out_async(model *m) {
  pending_copy *copy = &m->pending[take(m, MAX_PENDING)];
  uint64_t at, length;
  take_range(m, &at, &length);
  pending_end(copy);
  copy->got = malloc(length + 1);
  copy->expected = malloc(length + 1);
  copy->length = length;
  memcpy(copy->expected, m->memory + at, length);
  CHECK_OK(tarn_copy_out_async(m->dock.copier, copy->got, m->block + at, length, m->stream,
                               &copy->fence));
  CHECK_EQ(copy->fence != NULL, length != 0);
}

static void do_pending(model *m) {
  pending_copy *copy = &m->pending[take(m, MAX_PENDING)];
  const uint64_t what = take(m, 3);
  if (copy->fence == NULL) {
    return;
  }
  if (what == 0) {
    pending_end(copy);
    return;
  }
  const tarn_status status =
      what == 1 ? tarn_fence_wait(copy->fence) : tarn_fence_query(copy->fence);
  CHECK(status == TARN_OK || (what == 2 && status == TARN_NOT_READY));
  if (status == TARN_OK) {
    CHECK(memcmp(copy->got, copy->expected, copy->length) == 0);
  }
}

static void do_fill(model *m) {
  uint64_t at, length;
  take_range(m, &at, &length);
  const uint8_t value = (uint8_t)take(m, 256);
  memset(m->memory + at, value, length);
  CHECK_OK(tarn_device_fill(m->dock.rig.device, m->block + at, value, length, m->stream));
}

/* ---- The batch ---- */

/* Pieces of one sending must not overlap: nobody says which comes first. */
static bool is_apart(const piece *pieces, uint32_t count, uint64_t at, uint64_t length) {
  for (uint32_t i = 0; i < count; i++) {
    if (at < pieces[i].at + pieces[i].transfer && pieces[i].at < at + length) {
      return false;
    }
  }
  return true;
}

static void do_upload(model *m) {
  const uint64_t length = take(m, 1000), padding = take(m, 3) == 0 ? take(m, 1000) : 0;
  const bool is_words = take(m, 2) == 0;
  const uint64_t bytes = is_words ? length / 4 * 4 : length;
  const uint64_t transfer = bytes + padding;
  const bool follows = m->n_uploads != 0 && take(m, 2) == 0;
  const piece *last = follows ? &m->uploads[m->n_uploads - 1] : NULL;
  const uint64_t at = follows ? last->at + last->transfer : take(m, MEMORY - 2000);
  if (m->n_uploads == MAX_PIECES || at + transfer > MEMORY ||
      !is_apart(m->uploads, m->n_uploads, at, transfer)) {
    return;
  }
  uint8_t *to = m->staged[m->n_uploads];
  uint32_t words[256];
  take_bytes(m, to, bytes);
  for (uint64_t i = 0; i < bytes / 4; i++) {
    words[i] = (uint32_t)to[4 * i] | (uint32_t)to[4 * i + 1] << 8 | (uint32_t)to[4 * i + 2] << 16 |
               (uint32_t)to[4 * i + 3] << 24;
  }
  memset(to + bytes, 0, padding);
  CHECK_OK(is_words
               ? tarn_batch_upload_words_padded(m->batch, m->block + at, words, bytes / 4, transfer)
               : tarn_batch_upload_padded(m->batch, m->block + at, to, bytes, transfer));
  if (bytes != 0) {
    m->uploads[m->n_uploads++] = (piece){at, bytes, transfer};
  }
}

static void do_send(model *m) {
  CHECK_OK(tarn_batch_send(m->batch, m->stream));
  for (uint32_t i = 0; i < m->n_uploads; i++) {
    memcpy(m->memory + m->uploads[i].at, m->staged[i], m->uploads[i].transfer);
  }
  m->n_uploads = 0;
}

static void do_output(model *m) {
  const uint64_t length = take(m, 1000), padding = take(m, 3) == 0 ? take(m, 1000) : 0;
  const uint64_t at = take(m, MEMORY - 2000);
  uint32_t index = 5;
  if (m->n_outputs == MAX_PIECES) {
    return;
  }
  const tarn_status status =
      tarn_batch_output_padded(m->batch, m->block + at, length, length + padding, &index);
  if (m->is_fetched) {
    CHECK_STATUS(status, TARN_STATE);
    CHECK_EQ(index, UINT32_MAX);
    return;
  }
  CHECK_OK(status);
  CHECK_EQ(index, m->n_outputs);
  m->outputs[m->n_outputs++] = (piece){at, length, length + padding};
}

static void do_fetch(model *m) {
  const tarn_status status = tarn_batch_fetch(m->batch, m->stream, NULL);
  CHECK_STATUS(status, m->is_fetched ? TARN_STATE : TARN_OK);
  for (uint32_t i = 0; i < m->n_outputs && !m->is_fetched; i++) {
    memcpy(m->fetched[i], m->memory + m->outputs[i].at, m->outputs[i].length);
  }
  m->is_fetched = true;
}

static void do_collect(model *m) {
  const size_t before = tarn_buffer_list_count(m->list);
  const tarn_status status = tarn_batch_collect(m->batch, m->list);
  CHECK_STATUS(status, m->is_fetched ? TARN_OK : TARN_STATE);
  CHECK_EQ(tarn_buffer_list_count(m->list), m->is_fetched ? m->n_outputs : before);
  for (uint32_t i = 0; i < m->n_outputs && status == TARN_OK; i++) {
    const tarn_buffer *buffer = tarn_buffer_list_at(m->list, i);
    const uint64_t length = m->outputs[i].length;
    CHECK(tarn_buffer_length(buffer) == length &&
          (length == 0 || memcmp(tarn_buffer_bytes(buffer), m->fetched[i], length) == 0));
  }
}

static tarn_status range_status(const model *m, uint64_t index, uint64_t offset, uint64_t length) {
  if (!m->is_fetched) {
    return TARN_STATE;
  }
  if (index >= m->n_outputs) {
    return TARN_RANGE;
  }
  if (length > UINT64_MAX - offset) {
    return TARN_OVERFLOWED;
  }
  return offset + length <= m->outputs[index].length ? TARN_OK : TARN_RANGE;
}

static void do_collect_range(model *m) {
  const uint64_t index = take(m, MAX_PIECES);
  const uint64_t offset = take(m, 1100);
  const uint64_t length = take(m, 50) == 0 ? UINT64_MAX - take(m, 2000) : take(m, 1100);
  tarn_buffer *buffer = NULL;
  CHECK_OK(tarn_buffer_create(NULL, &buffer));
  CHECK_OK(tarn_buffer_assign(buffer, "old", 3));
  const tarn_status status =
      tarn_batch_collect_range(m->batch, (uint32_t)index, offset, length, buffer);
  CHECK_STATUS(status, range_status(m, index, offset, length));
  const uint8_t *expected = status == TARN_OK ? m->fetched[index] + offset : (const uint8_t *)"old";
  const uint64_t n = status == TARN_OK ? length : 3;
  CHECK(tarn_buffer_length(buffer) == n &&
        (n == 0 || memcmp(tarn_buffer_bytes(buffer), expected, n) == 0));
  tarn_buffer_destroy(buffer);
}

static void do_reset(model *m) {
  CHECK_OK(tarn_batch_reset(m->batch));
  m->n_uploads = 0;
  m->n_outputs = 0;
  m->is_fetched = false;
}

/* ---- The scope ---- */

static uint32_t slot_of(uint64_t number) {
  return number == N_SLOTS ? TARN_SCOPE_PARAMETERS : (uint32_t)number;
}

static void do_scope(model *m) {
  const uint64_t number = take(m, N_SLOTS + 2); /* one too many */
  const uint64_t bytes = take(m, 3) == 0 ? take(m, 300000) : take(m, 2000);
  if (number == N_SLOTS + 1) {
    CHECK_STATUS(tarn_scope_alloc(m->scope, N_SLOTS, bytes, NULL), TARN_RANGE);
    return;
  }
  tarn_ptr block = 0;
  if (m->is_filled[number] && take(m, 2) == 0) {
    CHECK_OK(tarn_scope_take(m->scope, slot_of(number), &block));
    CHECK_OK(tarn_free(m->dock.rig.heap, block, m->stream));
    m->is_filled[number] = false;
    return;
  }
  CHECK_STATUS(tarn_scope_alloc(m->scope, slot_of(number), bytes, &block),
               m->is_filled[number] ? TARN_STATE : TARN_OK);
  m->is_filled[number] = true;
}

static void do_release(model *m) {
  tarn_fence *fence = NULL;
  if (take(m, 2) == 0) {
    CHECK_OK(tarn_scope_release(m->scope, m->stream));
  } else {
    CHECK_OK(tarn_fence_record(m->dock.copier, m->stream, &fence));
    CHECK_OK(tarn_scope_release_after(m->scope, fence, m->stream));
  }
  tarn_fence_destroy(fence);
  memset(m->is_filled, 0, sizeof(m->is_filled));
}

/* ---- Runs ---- */

static bool model_open(model *m) {
  static const char *const devices[] = {"sim:64M,seed=1", "sim:64M,seed=2", "sim:64M,order=lazy",
                                        "sim:64M,order=eager"};
  const char *device = devices[take(m, 4)];
  const uint32_t n_helpers = (uint32_t)take(m, 3);
  const tarn_copier_config config = {.size = sizeof(config),
                                     .piece_bytes = (uint64_t)4096 << take(m, 5),
                                     .n_threads = n_helpers,
                                     .has_no_threads = n_helpers == 0};
  if (!dock_open(&m->dock, device, &config, take(m, 3) == 0 ? 4 << 20 : 0, 1)) {
    return false;
  }
  m->stream = m->dock.rig.streams[0];
  return CHECK_OK(tarn_alloc(m->dock.rig.heap, MEMORY, m->stream, &m->block)) &&
         CHECK_OK(tarn_device_fill(m->dock.rig.device, m->block, 0, MEMORY, m->stream)) &&
         CHECK_OK(tarn_batch_create(m->dock.copier, NULL, &m->batch)) &&
         CHECK_OK(tarn_buffer_list_create(&m->list)) &&
         CHECK_OK(tarn_scope_create(m->dock.rig.heap, N_SLOTS, m->stream, &m->scope));
}

static void model_close(model *m) {
  for (int i = 0; i < MAX_PENDING; i++) {
    pending_end(&m->pending[i]);
  }
  CHECK_OK(tarn_batch_destroy(m->batch));
  tarn_buffer_list_destroy(m->list);
  CHECK_OK(tarn_scope_destroy(m->scope));
  CHECK_OK(tarn_copy_out(m->dock.copier, m->scratch, m->block, MEMORY, m->stream));
  CHECK(memcmp(m->scratch, m->memory, MEMORY) == 0);
  CHECK_OK(tarn_free(m->dock.rig.heap, m->block, m->stream));
  CHECK_EQ(dock_pinned_live(&m->dock), 0);
  dock_close(&m->dock);
}

void transfer_model_run(const uint8_t *data, size_t size) {
  static void (*const kinds[N_KINDS])(model *) = {
      do_copy_in, do_copy_out, do_copy_out_async, do_pending,      do_fill,
      do_upload,  do_send,     do_output,         do_fetch,        do_collect,
      do_reset,   do_scope,    do_release,        do_collect_range};
  static model m;
  memset(&m, 0, sizeof(m));
  m.data = data;
  m.left = size;
  if (!model_open(&m)) {
    return;
  }
  while (m.left != 0 && !test_case_failed()) {
    const uint8_t kind = *m.data % N_KINDS;
    m.data++;
    m.left--;
    kinds[kind](&m);
  }
  model_close(&m);
}
