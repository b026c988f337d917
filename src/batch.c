/* SPDX-License-Identifier: MIT
 *
 * Batches: the transfers of one dispatch. Owns the pinned memory that its pieces are in. Small
 * pieces share a slab; those that also follow each other on the device become one copy.
 *
 * Every call looks first and acts then: what can fail (room in a table, pinned memory) comes before
 * anything that can be seen. Pinned memory goes back exactly once: uploads in the order of the
 * stream that they were sent on, outputs after they were seen complete, and what never reached a
 * stream at once. What a failed call may have given to a stream is only given back when it is seen
 * complete, or in the stream's order.
 *
 * No locks: a batch belongs to one thread at a time. */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "internal.h"

enum { SLAB_DEFAULT = 64 << 10, SLAB_MAX = 16 << 20, PIECE_ALIGNMENT = 64, TABLE_MIN = 8 };

/* ---- Tables ---- */

static bool table_resize(tarni_transfers *table, uint64_t capacity) {
  tarni_transfer *pieces = realloc(table->pieces, capacity * sizeof(*pieces));
  if (pieces == NULL) {
    return false;
  }
  table->pieces = pieces;
  tarni_copy *copies = realloc(table->copies, capacity * sizeof(*copies));
  if (copies == NULL) {
    return false;
  }
  table->copies = copies;
  table->capacity = (uint32_t)capacity;
  return true;
}

/* Room for so many pieces, or nothing has changed. */
static tarn_status table_reserve(tarni_transfers *table, uint64_t count, const char *operation) {
  if (count <= table->capacity) {
    return TARN_OK;
  }
  uint64_t capacity = tarni_max(count, tarni_max(TABLE_MIN, (uint64_t)table->capacity * 2));
  capacity = tarni_min(capacity, UINT32_MAX);
  if (count <= capacity && table_resize(table, capacity)) {
    return TARN_OK;
  }
  return tarni_fail(TARN_HOST_MEMORY, operation, NULL, "Split the batch.",
                    "no host memory for %llu transfers; it has %u", (unsigned long long)count,
                    table->count);
}

static tarn_status slab_add(tarn_batch *batch, tarni_transfers *table, uint64_t bytes) {
  const uint64_t guess = table->slabs != NULL ? 2 * table->slabs->bytes : table->usual_bytes;
  const uint64_t least = tarni_max(batch->staging_bytes, bytes);
  const uint64_t size = tarni_max(least, tarni_min(guess, SLAB_MAX));
  tarni_staging *slab;
  tarn_status status = tarni_staging_take(batch->copier, size, &slab);
  if ((status == TARN_LIMIT || status == TARN_HOST_MEMORY) && size > bytes) {
    status = tarni_staging_take(batch->copier, bytes, &slab);
  }
  TARN_TRY(status);
  slab->next = table->slabs;
  table->slabs = slab;
  table->used = 0;
  table->device_end = 0;
  return TARN_OK;
}

/* Finds a place for a piece, right behind the last one if it is so on the device. */
static tarn_status piece_place(tarn_batch *batch, tarni_transfers *table, tarni_transfer *piece) {
  const bool follows = table->slabs != NULL && piece->device == table->device_end;
  uint64_t start = follows ? table->used : tarni_align_up(table->used, PIECE_ALIGNMENT);
  if (table->slabs == NULL || start > table->slabs->bytes ||
      piece->transfer > table->slabs->bytes - start) {
    TARN_TRY(slab_add(batch, table, piece->transfer));
    start = 0;
  }
  piece->host = table->slabs->block + start;
  piece->is_joined = follows && start == table->used && start != 0;
  return TARN_OK;
}

static void piece_keep(tarni_transfers *table, const tarni_transfer *piece) {
  if (piece->host != NULL) {
    table->used = (uint64_t)(piece->host - table->slabs->block) + piece->transfer;
    table->device_end = piece->device + piece->transfer;
  }
  table->pieces[table->count++] = *piece;
}

/* Gives the pinned memory back: at once, or in the order of a stream. */
static void slabs_give(tarn_batch *batch, tarni_transfers *table, bool in_order,
                       tarn_stream stream) {
  if (table->slabs != NULL) {
    table->usual_bytes = table->used; /* those before the newest have no room for more */
    for (const tarni_staging *slab = table->slabs->next; slab != NULL; slab = slab->next) {
      table->usual_bytes += slab->bytes;
    }
  }
  while (table->slabs != NULL) {
    tarni_staging *slab = table->slabs;
    table->slabs = slab->next;
    if (in_order) {
      tarni_staging_give_on(batch->copier, slab, stream);
    } else {
      tarni_staging_give(batch->copier, slab);
    }
  }
  table->used = 0;
  table->device_end = 0;
}

/* Has the stream tell when it is done with what it was given so far. */
static tarn_status table_mark(tarn_batch *batch, tarni_transfers *table, tarn_stream stream) {
  tarni_mark_give(batch->copier, table->mark);
  table->mark = NULL;
  table->is_pending = true;
  table->stream = stream;
  table->thread = tarni_thread_of(stream);
  return tarni_mark_record(batch->copier, stream, &table->mark);
}

/* A call has failed, and a part may be with the stream. It is marked now, or waited for, since the
 * stream may go before the batch does. Returns the call's error. */
static tarn_status table_tear(tarn_batch *batch, tarni_transfers *table, tarn_stream stream) {
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  table->is_torn = true;
  if (table_mark(batch, table, stream) != TARN_OK &&
      tarni_staging_await(batch->copier, stream) == TARN_OK) {
    table->is_pending = false;
  }
  return tarni_fail_again(&error);
}

/* What the stream may be at is waited for; where that cannot be proven its memory is kept from
 * everybody. */
static void table_settle(tarn_batch *batch, tarni_transfers *table) {
  if (table->is_pending && table->mark != NULL && table->slabs != NULL) {
    TARNI_RELAXED(batch->copier->port);
    if (tarni_port_event_sync(batch->copier->port, table->mark->event) == TARN_OK) {
      table->is_pending = false;
    } else {
      tarni_staging_bury(batch->copier, table->slabs, table->stream, table->mark);
      table->slabs = NULL;
      table->mark = NULL;
    }
  }
  tarni_mark_give(batch->copier, table->mark);
  table->mark = NULL;
}

static void table_clear(tarn_batch *batch, tarni_transfers *table) {
  table_settle(batch, table);
  slabs_give(batch, table, table->is_pending, tarni_stream_here(table->stream, table->thread));
  table->count = 0;
  table->is_torn = false;
  table->is_pending = false;
}

/* ---- Making and unmaking ---- */

tarn_status tarn_batch_create(tarn_copier *copier, const tarn_batch_config *config,
                              tarn_batch **batch) {
  const char *operation = "tarn_batch_create";
  if (batch == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass an address for it.",
                      "the batch's address is NULL");
  }
  *batch = NULL;
  TARN_TRY(tarni_copier_given(copier, operation));
  tarn_batch_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), operation));
    TARN_TRY(TARNI_RESERVED(&known, reserved_bool, operation));
  }
  tarn_batch *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, operation, NULL, "Free host memory.",
                      "no host memory for a batch of %zu bytes", sizeof(*made));
  }
  made->copier = copier;
  made->way = known.by_engines ? TARNI_COPY_BY_ENGINES : TARNI_COPY_FAST;
  made->staging_bytes = known.staging_bytes != 0 ? known.staging_bytes : SLAB_DEFAULT;
  tarn_status status = table_reserve(&made->uploads, known.n_uploads, operation);
  if (status == TARN_OK) {
    status = table_reserve(&made->outputs, known.n_outputs, operation);
  }
  if (status != TARN_OK) {
    free(made->uploads.pieces);
    free(made->uploads.copies);
    free(made->outputs.pieces);
    free(made->outputs.copies);
    free(made);
    return status;
  }
  if (made->way == TARNI_COPY_FAST) {
    tarni_port_copy_prepare(copier->port);
  }
  tarni_copier_count(copier, &copier->stats.batches, 1);
  *batch = made;
  return TARN_OK;
}

tarn_status tarni_batch_given(const tarn_batch *batch, const char *operation) {
  if (batch == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_batch_create.",
                      "the batch is NULL");
  }
  return tarni_copier_given(batch->copier, operation);
}

tarn_status tarn_batch_reset(tarn_batch *batch) {
  TARN_TRY(tarni_batch_given(batch, "tarn_batch_reset"));
  table_clear(batch, &batch->uploads);
  table_clear(batch, &batch->outputs);
  batch->is_fetched = false;
  return TARN_OK;
}

tarn_status tarn_batch_destroy(tarn_batch *batch) {
  if (batch == NULL) {
    return TARN_OK;
  }
  TARN_TRY(tarn_batch_reset(batch));
  tarn_copier *copier = batch->copier;
  free(batch->uploads.pieces);
  free(batch->uploads.copies);
  free(batch->outputs.pieces);
  free(batch->outputs.copies);
  free(batch);
  tarni_lock_acquire(&copier->lock);
  tarn_assert(copier->stats.batches > 0);
  copier->stats.batches--;
  tarni_lock_release(&copier->lock);
  return TARN_OK;
}

/* ---- Naming ---- */

static tarn_status piece_check(const tarni_transfer *piece, const char *operation) {
  const tarni_facts facts = {.requested_bytes = piece->transfer};
  if (piece->transfer < piece->length) {
    return tarni_fail(TARN_RANGE, operation, &facts, "Transfer at least as much as there is.",
                      "%llu bytes do not fit into a transfer of %llu",
                      (unsigned long long)piece->length, (unsigned long long)piece->transfer);
  }
  if (piece->device == 0) {
    return tarni_fail(TARN_INVALID, operation, &facts, "Pass where it is on the device.",
                      "the device address is 0, for %llu bytes",
                      (unsigned long long)piece->transfer);
  }
  if (piece->transfer > PTRDIFF_MAX || piece->transfer > UINT64_MAX - piece->device) {
    return tarni_fail(TARN_OVERFLOWED, operation, &facts, "Check the size.",
                      "%llu bytes at 0x%llx end beyond the address space",
                      (unsigned long long)piece->transfer, (unsigned long long)piece->device);
  }
  return TARN_OK;
}

static tarn_status bytes_given(const void *bytes, uint64_t length, const char *operation) {
  if (bytes == NULL && length != 0) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the bytes, or a length of 0.",
                      "the source is NULL, and the length is %llu", (unsigned long long)length);
  }
  return TARN_OK;
}

/* Finds room for an upload in table and slab, and zeroes its padding. The caller copies its bytes
 * there and keeps it: nothing can fail any more. */
static tarn_status upload_begin(tarn_batch *batch, tarni_transfer *piece, const char *operation) {
  TARN_TRY(piece_check(piece, operation));
  TARN_TRY(table_reserve(&batch->uploads, (uint64_t)batch->uploads.count + 1, operation));
  TARN_TRY(piece_place(batch, &batch->uploads, piece));
  memset(piece->host + piece->length, 0, piece->transfer - piece->length);
  return TARN_OK;
}

static tarn_status upload_bytes(tarn_batch *batch, tarni_transfer piece, const void *bytes,
                                const char *operation) {
  TARN_TRY(tarni_batch_given(batch, operation));
  TARN_TRY(bytes_given(bytes, piece.length, operation));
  if (piece.length == 0) {
    return TARN_OK;
  }
  TARN_TRY(upload_begin(batch, &piece, operation));
  memcpy(piece.host, bytes, piece.length);
  piece_keep(&batch->uploads, &piece);
  return TARN_OK;
}

tarn_status tarn_batch_upload(tarn_batch *batch, tarn_ptr destination, const void *bytes,
                              uint64_t length) {
  const tarni_transfer piece = {.device = destination, .length = length, .transfer = length};
  return upload_bytes(batch, piece, bytes, "tarn_batch_upload");
}

tarn_status tarn_batch_upload_padded(tarn_batch *batch, tarn_ptr destination, const void *bytes,
                                     uint64_t length, uint64_t transfer_bytes) {
  const tarni_transfer piece = {
      .device = destination, .length = length, .transfer = transfer_bytes};
  return upload_bytes(batch, piece, bytes, "tarn_batch_upload_padded");
}

static void store_words(uint8_t *to, const uint32_t *words, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    to[4 * i] = (uint8_t)words[i];
    to[4 * i + 1] = (uint8_t)(words[i] >> 8);
    to[4 * i + 2] = (uint8_t)(words[i] >> 16);
    to[4 * i + 3] = (uint8_t)(words[i] >> 24);
  }
}

static tarn_status words_length(uint64_t count, const char *operation, uint64_t *length) {
  if (!tarni_mul(count, sizeof(uint32_t), length)) {
    return tarni_fail(TARN_OVERFLOWED, operation, NULL, "Check the count.",
                      "%llu words have more bytes than can be counted", (unsigned long long)count);
  }
  return TARN_OK;
}

/* piece.length is the number of words' bytes. */
static tarn_status upload_words(tarn_batch *batch, tarni_transfer piece, const uint32_t *words,
                                const char *operation) {
  TARN_TRY(tarni_batch_given(batch, operation));
  TARN_TRY(bytes_given(words, piece.length, operation));
  if (piece.length == 0) {
    return TARN_OK;
  }
  TARN_TRY(upload_begin(batch, &piece, operation));
  store_words(piece.host, words, piece.length / sizeof(*words));
  piece_keep(&batch->uploads, &piece);
  return TARN_OK;
}

tarn_status tarn_batch_upload_words(tarn_batch *batch, tarn_ptr destination, const uint32_t *words,
                                    uint64_t count) {
  const char *operation = "tarn_batch_upload_words";
  tarni_transfer piece = {.device = destination};
  TARN_TRY(words_length(count, operation, &piece.length));
  piece.transfer = piece.length;
  return upload_words(batch, piece, words, operation);
}

tarn_status tarn_batch_upload_words_padded(tarn_batch *batch, tarn_ptr destination,
                                           const uint32_t *words, uint64_t count,
                                           uint64_t transfer_bytes) {
  const char *operation = "tarn_batch_upload_words_padded";
  tarni_transfer piece = {.device = destination, .transfer = transfer_bytes};
  TARN_TRY(words_length(count, operation, &piece.length));
  return upload_words(batch, piece, words, operation);
}

static tarn_status output_add(tarn_batch *batch, tarni_transfer piece, const char *operation,
                              uint32_t *index) {
  if (index != NULL) {
    *index = UINT32_MAX;
  }
  TARN_TRY(tarni_batch_given(batch, operation));
  tarni_transfers *table = &batch->outputs;
  if (table->is_torn) {
    return tarni_fail(
        TARN_STATE, operation, NULL, "Fetch again on the same stream, or reset the batch.",
        "a part of the %u outputs may be with stream %p already, by a call that failed",
        table->count, table->stream);
  }
  if (batch->is_fetched) {
    return tarni_fail(TARN_STATE, operation, NULL, "Reset the batch first, or use another.",
                      "the %u outputs of the batch are fetched already", table->count);
  }
  if (piece.length != 0) {
    TARN_TRY(piece_check(&piece, operation));
  }
  TARN_TRY(table_reserve(table, (uint64_t)table->count + 1, operation));
  if (piece.length != 0) {
    TARN_TRY(piece_place(batch, table, &piece));
  }
  if (index != NULL) {
    *index = table->count;
  }
  piece_keep(table, &piece);
  return TARN_OK;
}

tarn_status tarn_batch_output(tarn_batch *batch, tarn_ptr source, uint64_t length,
                              uint32_t *index) {
  const tarni_transfer piece = {.device = source, .length = length, .transfer = length};
  return output_add(batch, piece, "tarn_batch_output", index);
}

tarn_status tarn_batch_output_padded(tarn_batch *batch, tarn_ptr source, uint64_t length,
                                     uint64_t transfer_bytes, uint32_t *index) {
  const tarni_transfer piece = {.device = source, .length = length, .transfer = transfer_bytes};
  return output_add(batch, piece, "tarn_batch_output_padded", index);
}

/* ---- Sending and fetching ---- */

/* Makes copies of the table's pieces: the fewest, or one of each. Returns their number. */
static uint32_t copies_make(tarni_transfers *table, bool is_out, bool is_apart) {
  uint32_t n = 0;
  bool may_join = false;
  for (uint32_t i = 0; i < table->count; i++) {
    const tarni_transfer *piece = &table->pieces[i];
    if (piece->host == NULL) {
      continue;
    }
    const tarn_ptr host = (uintptr_t)piece->host;
    if (may_join && piece->is_joined) {
      table->copies[n - 1].size += piece->transfer;
    } else {
      table->copies[n++] = (tarni_copy){.destination = is_out ? host : piece->device,
                                        .source = is_out ? piece->device : host,
                                        .size = piece->transfer};
    }
    may_join = !is_apart;
  }
  return n;
}

static tarn_status batch_stream_prepare(const tarn_batch *batch, const tarni_transfers *table,
                                        tarn_stream stream, const char *operation) {
  TARN_TRY(tarni_batch_given(batch, operation));
  if (table->is_torn && (table->stream != stream || table->thread != tarni_thread_of(stream))) {
    return tarni_fail(TARN_STATE, operation, NULL,
                      "Try again on the stream of the call that failed, or reset the batch.",
                      "a part of the batch may be with stream %p already, by a call that failed",
                      table->stream);
  }
  TARN_TRY(tarni_copier_refuse_capture(
      batch->copier, stream, operation,
      "Give the graph memory that it can rely on: tarn_copy_in_async and tarn_copy_out_async with "
      "pinned memory that is kept as long as the graph."));
  /* The stream that had a part may be gone, and its handle be another's. */
  return table->is_torn && table->mark != NULL
             ? tarni_port_event_wait(batch->copier->port, stream, table->mark->event)
             : TARN_OK;
}

/* Gives the table's copies to the stream. Pieces that lie side by side may be in two allocations of
 * the driver, which refuses a copy over both: then each is copied by itself, also from then on. */
static tarn_status copies_submit(tarn_batch *batch, tarni_transfers *table, tarn_stream stream) {
  tarni_port *port = batch->copier->port;
  const bool is_out = table == &batch->outputs;
  uint32_t n = copies_make(table, is_out, batch->is_apart);
  if (n == 0) {
    return TARN_OK;
  }
  tarn_status status = tarni_port_copy_batch(port, table->copies, n, stream, batch->way);
  if (status == TARN_INVALID && !batch->is_apart) {
    const uint32_t n_joined = n;
    n = copies_make(table, is_out, true);
    batch->is_apart = n != n_joined;
    status = batch->is_apart ? tarni_port_copy_batch(port, table->copies, n, stream, batch->way)
                             : status;
  }
  batch->n_copies += status == TARN_OK ? n : 0;
  return status;
}

tarn_status tarn_batch_send(tarn_batch *batch, tarn_stream stream) {
  const char *operation = "tarn_batch_send";
  TARN_TRY(tarni_batch_given(batch, operation));
  tarni_transfers *table = &batch->uploads;
  TARN_TRY(batch_stream_prepare(batch, table, stream, operation));
  if (table->count == 0) {
    return TARN_OK;
  }
  if (copies_submit(batch, table, stream) != TARN_OK) {
    return table_tear(batch, table, stream);
  }
  slabs_give(batch, table, true, stream);
  table_clear(batch, table);
  return TARN_OK;
}

tarn_status tarn_batch_fetch(tarn_batch *batch, tarn_stream stream, tarn_fence **fence) {
  const char *operation = "tarn_batch_fetch";
  if (fence != NULL) {
    *fence = NULL;
  }
  TARN_TRY(tarni_batch_given(batch, operation));
  tarni_transfers *table = &batch->outputs;
  if (batch->is_fetched) {
    return tarni_fail(TARN_STATE, operation, NULL, "Collect them, or reset the batch.",
                      "the %u outputs of the batch are fetched already", table->count);
  }
  TARN_TRY(batch_stream_prepare(batch, table, stream, operation));
  tarn_status status = copies_submit(batch, table, stream);
  if (status == TARN_OK) {
    status = table_mark(batch, table, stream);
  }
  if (status == TARN_OK && fence != NULL) {
    status = tarni_fence_make(batch->copier, stream, fence);
  }
  if (status != TARN_OK) {
    return table_tear(batch, table, stream);
  }
  batch->is_fetched = true;
  table->is_torn = false;
  return TARN_OK;
}
