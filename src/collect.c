/* SPDX-License-Identifier: MIT
 *
 * Collecting the outputs of a batch. Reads the batch, owns nothing. Every destination is prepared
 * before the first is filled, so that either all of them have the new content or none has changed.
 */
#include <string.h>

#include "base/bits.h"
#include "base/error.h"
#include "batch.h"

/* Waits until the outputs are there. */
static tarn_status outputs_ready(tarn_batch *batch, const char *operation) {
  TARN_TRY(tarni_batch_given(batch, operation));
  if (!batch->is_fetched) {
    return tarni_fail(TARN_STATE, operation, NULL, "Call tarn_batch_fetch first.",
                      "the %u outputs of the batch have not been fetched", batch->outputs.count);
  }
  if (batch->outputs.is_pending) {
    TARNI_RELAXED(batch->copier->port);
    TARN_TRY(tarni_port_event_sync(batch->copier->port, batch->outputs.mark->event));
    batch->outputs.is_pending = false;
  }
  return TARN_OK;
}

static tarn_status output_find(const tarn_batch *batch, uint32_t index, const char *operation,
                               const tarni_transfer **piece) {
  if (index >= batch->outputs.count) {
    return tarni_fail(TARN_RANGE, operation, NULL, "Pass a number that naming an output gave.",
                      "output %u of a batch that has %u", index, batch->outputs.count);
  }
  *piece = &batch->outputs.pieces[index];
  return TARN_OK;
}

/* ---- All ---- */

static void forget_all(tarn_buffer *const *buffers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    tarni_buffer_forget(buffers[i]);
  }
}

static tarn_status buffer_usable(tarn_buffer *const *buffers, size_t i, const char *operation) {
  if (buffers[i] == NULL || buffers[i]->is_prepared) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass a buffer of its own for each output.",
                      "the buffer for output %zu is %s", i,
                      buffers[i] == NULL ? "NULL" : "there for an earlier one already");
  }
  return TARN_OK;
}

static tarn_status prepare_all(const tarn_batch *batch, tarn_buffer *const *buffers,
                               const char *operation) {
  for (uint32_t i = 0; i < batch->outputs.count; i++) {
    tarn_status status = buffer_usable(buffers, i, operation);
    if (status == TARN_OK) {
      status = tarni_buffer_prepare(buffers[i], batch->outputs.pieces[i].length, operation);
    }
    if (status != TARN_OK) {
      forget_all(buffers, i);
      return status;
    }
  }
  return TARN_OK;
}

static tarn_status fill_all(const tarn_batch *batch, tarn_buffer *const *buffers,
                            const char *operation) {
  TARN_TRY(prepare_all(batch, buffers, operation));
  for (uint32_t i = 0; i < batch->outputs.count; i++) {
    const tarni_transfer *piece = &batch->outputs.pieces[i];
    tarni_buffer_fill(buffers[i], piece->host, piece->length);
  }
  return TARN_OK;
}

tarn_status tarn_batch_collect_into(tarn_batch *batch, tarn_buffer *const *buffers, size_t count) {
  const char *operation = "tarn_batch_collect_into";
  TARN_TRY(outputs_ready(batch, operation));
  if (count != batch->outputs.count || (buffers == NULL && count != 0)) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass one buffer for each output.",
                      "%zu buffers%s for %u outputs", count, buffers == NULL ? ", at NULL," : "",
                      batch->outputs.count);
  }
  return fill_all(batch, buffers, operation);
}

tarn_status tarn_batch_collect(tarn_batch *batch, tarn_buffer_list *list) {
  const char *operation = "tarn_batch_collect";
  TARN_TRY(outputs_ready(batch, operation));
  if (list == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_buffer_list_create.",
                      "the list is NULL");
  }
  const size_t before = list->count;
  TARN_TRY(tarni_buffer_list_add(list, batch->outputs.count));
  const tarn_status status = fill_all(batch, list->buffers, operation);
  return tarn_buffer_list_resize(list, status == TARN_OK ? batch->outputs.count : before) == TARN_OK
             ? status
             : TARN_CORRUPT;
}

/* ---- One ---- */

static tarn_status collect_part(const tarni_transfer *piece, uint64_t offset, uint64_t length,
                                tarn_buffer *buffer, const char *operation) {
  if (buffer == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_buffer_create.",
                      "the buffer is NULL");
  }
  TARN_TRY(tarni_buffer_prepare(buffer, length, operation));
  tarni_buffer_fill(buffer, length != 0 ? piece->host + offset : NULL, length);
  return TARN_OK;
}

tarn_status tarn_batch_collect_one(tarn_batch *batch, uint32_t index, tarn_buffer *buffer) {
  const char *operation = "tarn_batch_collect_one";
  TARN_TRY(outputs_ready(batch, operation));
  const tarni_transfer *piece = NULL;
  TARN_TRY(output_find(batch, index, operation, &piece));
  return collect_part(piece, 0, piece->length, buffer, operation);
}

tarn_status tarn_batch_collect_range(tarn_batch *batch, uint32_t index, uint64_t offset,
                                     uint64_t length, tarn_buffer *buffer) {
  const char *operation = "tarn_batch_collect_range";
  TARN_TRY(outputs_ready(batch, operation));
  const tarni_transfer *piece = NULL;
  TARN_TRY(output_find(batch, index, operation, &piece));
  const tarni_facts facts = {.requested_bytes = length, .available_bytes = piece->length};
  uint64_t end;
  if (!tarni_add(offset, length, &end)) {
    return tarni_fail(TARN_OVERFLOWED, operation, &facts, "Check offset and length.",
                      "%llu bytes from %llu on have no end that can be counted",
                      (unsigned long long)length, (unsigned long long)offset);
  }
  if (end > piece->length) {
    return tarni_fail(TARN_RANGE, operation, &facts, "Stay within the output.",
                      "bytes [%llu, %llu) of output %u, which has %llu", (unsigned long long)offset,
                      (unsigned long long)end, index, (unsigned long long)piece->length);
  }
  return collect_part(piece, offset, length, buffer, operation);
}

tarn_status tarn_batch_view(tarn_batch *batch, uint32_t index, const void **bytes,
                            uint64_t *length) {
  const char *operation = "tarn_batch_view";
  if (bytes == NULL || length == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass addresses for both.",
                      "the address of an output of the call is NULL");
  }
  *bytes = NULL;
  *length = 0;
  TARN_TRY(outputs_ready(batch, operation));
  const tarni_transfer *piece = NULL;
  TARN_TRY(output_find(batch, index, operation, &piece));
  *bytes = piece->host;
  *length = piece->length;
  return TARN_OK;
}

tarn_status tarn_batch_get_info(const tarn_batch *batch, tarn_batch_info *info) {
  const char *operation = "tarn_batch_get_info";
  tarn_batch_info full = {.size = sizeof(full)};
  TARN_TRY(tarni_struct_out(info, &full, sizeof(full), operation));
  TARN_TRY(tarni_batch_given(batch, operation));
  const tarni_transfers *tables[2] = {&batch->uploads, &batch->outputs};
  uint64_t sums[2] = {0, 0};
  for (int i = 0; i < 2; i++) {
    for (uint32_t k = 0; k < tables[i]->count; k++) {
      sums[i] += tables[i]->pieces[k].host != NULL ? tables[i]->pieces[k].transfer : 0;
    }
    for (const tarni_staging *slab = tables[i]->slabs; slab != NULL; slab = slab->next) {
      full.staged_bytes += slab->bytes;
    }
  }
  full.n_uploads = batch->uploads.count;
  full.n_outputs = batch->outputs.count;
  full.upload_bytes = sums[0];
  full.output_bytes = sums[1];
  full.copies = batch->n_copies;
  full.is_fetched = batch->is_fetched;
  return tarni_struct_out(info, &full, sizeof(full), operation);
}
