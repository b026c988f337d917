/* SPDX-License-Identifier: MIT
 *
 * A batch: the transfers of one dispatch. Uploads are copied into pinned memory as they are named,
 * sent together on a stream, with as few copies as their places on the device allow; outputs are
 * named by where they are on the device, fetched together, and collected when they are there.
 *
 * All or nothing: a call that fails has changed no destination and used up no upload or output. A
 * piece of zero bytes takes no memory. A batch belongs to one thread at a time. */
#ifndef TARN_BATCH_H
#define TARN_BATCH_H

#include "tarn/buffer.h"
#include "tarn/copy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_batch tarn_batch;

typedef struct tarn_batch_config {
  size_t size;
  uint32_t n_uploads;     /* room for so many to begin with; more are welcome */
  uint32_t n_outputs;     /* likewise */
  uint64_t staging_bytes; /* of pinned memory that are taken at a time, where pieces are small; 0:
                             64 KiB to begin with */
  bool by_engines;        /* copies are made by copy engines alone, and never by a kernel */
  bool reserved_bool[7];
} tarn_batch_config;

/* Makes an empty batch. config may be NULL: all defaults.
 * On a GPU small copies that are not side by side are made by a kernel, several times faster than
 * by the copy engines. Like every kernel it waits while others keep the whole device busy; and the
 * first batch of a device compiles it, which can take a tenth of a second and waits for work that
 * is under way. Where a kernel runs that never ends, or that waits for the batch, set by_engines.
 */
TARN_API tarn_status tarn_batch_create(tarn_copier *copier, const tarn_batch_config *config,
                                       tarn_batch **batch);

/* Gives everything back, sent, collected or not; where outputs are on their way, or a call that
 * failed may have given a part of the batch to a stream, it waits for them. NULL is ignored. */
TARN_API tarn_status tarn_batch_destroy(tarn_batch *batch);

/* The same, but the batch stays: empty, with its tables. */
TARN_API tarn_status tarn_batch_reset(tarn_batch *batch);

/* ---- Uploads -------------------------------------------------------------------------------- */

/* Names `length` bytes for the device. They are copied, and may be changed, at once. */
TARN_API tarn_status tarn_batch_upload(tarn_batch *batch, tarn_ptr destination, const void *bytes,
                                       uint64_t length);
/* The same with zeroes behind them, `transfer_bytes` in all, which must not be less: TARN_RANGE. No
 * bytes at all are no upload, however long it would be. */
TARN_API tarn_status tarn_batch_upload_padded(tarn_batch *batch, tarn_ptr destination,
                                              const void *bytes, uint64_t length,
                                              uint64_t transfer_bytes);
/* The same for words of 32 bits, which reach the device lowest byte first on every machine. */
TARN_API tarn_status tarn_batch_upload_words(tarn_batch *batch, tarn_ptr destination,
                                             const uint32_t *words, uint64_t count);
TARN_API tarn_status tarn_batch_upload_words_padded(tarn_batch *batch, tarn_ptr destination,
                                                    const uint32_t *words, uint64_t count,
                                                    uint64_t transfer_bytes);

/* Gives all uploads named since the last sending to the stream, in no order among themselves. When
 * that fails they are still there; some may be with the stream already, and so the next attempt
 * must be on the same one (else TARN_STATE). */
TARN_API tarn_status tarn_batch_send(tarn_batch *batch, tarn_stream stream);

/* ---- Outputs -------------------------------------------------------------------------------- */

/* Names `length` bytes on the device to be fetched. Outputs are numbered in this order, from 0;
 * those of zero bytes have a number, too. index may be NULL. */
TARN_API tarn_status tarn_batch_output(tarn_batch *batch, tarn_ptr source, uint64_t length,
                                       uint32_t *index);
/* The same, but `transfer_bytes` are copied, which must not be less: TARN_RANGE. What is collected
 * is `length` bytes all the same. */
TARN_API tarn_status tarn_batch_output_padded(tarn_batch *batch, tarn_ptr source, uint64_t length,
                                              uint64_t transfer_bytes, uint32_t *index);

/* Has the stream copy all outputs to the host; no more can be named then. *fence tells when they
 * are there; fence may be NULL. When it fails the next attempt must be on the same stream. */
TARN_API tarn_status tarn_batch_fetch(tarn_batch *batch, tarn_stream stream, tarn_fence **fence);

/* Collecting waits for the outputs, and can be repeated. TARN_STATE before they are fetched.
 *
 * All of them, in order, into a list that gets exactly so many buffers. */
TARN_API tarn_status tarn_batch_collect(tarn_batch *batch, tarn_buffer_list *list);
/* All of them into the caller's buffers, one for each: TARN_INVALID, with both numbers, when there
 * are more or fewer, and when one of them is given twice. */
TARN_API tarn_status tarn_batch_collect_into(tarn_batch *batch, tarn_buffer *const *buffers,
                                             size_t count);
/* One of them. TARN_RANGE when there is no such output. */
TARN_API tarn_status tarn_batch_collect_one(tarn_batch *batch, uint32_t index, tarn_buffer *buffer);
/* A part of one. TARN_RANGE when it is not within the output, TARN_OVERFLOWED when it has no end.
 */
TARN_API tarn_status tarn_batch_collect_range(tarn_batch *batch, uint32_t index, uint64_t offset,
                                              uint64_t length, tarn_buffer *buffer);
/* One of them where it is, without a copy: valid until the batch is reset or destroyed. */
TARN_API tarn_status tarn_batch_view(tarn_batch *batch, uint32_t index, const void **bytes,
                                     uint64_t *length);

typedef struct tarn_batch_info {
  size_t size;
  uint32_t n_uploads; /* named and not sent */
  uint32_t n_outputs;
  uint64_t upload_bytes; /* of them, padding included */
  uint64_t output_bytes;
  uint64_t staged_bytes; /* pinned memory that the batch holds */
  uint64_t copies;       /* given to streams so far */
  bool is_fetched;
} tarn_batch_info;

TARN_API tarn_status tarn_batch_get_info(const tarn_batch *batch, tarn_batch_info *info);

#ifdef __cplusplus
}
#endif

#endif
