/* SPDX-License-Identifier: MIT
 *
 * The model of a batch, for batch.c, which fills and sends it, and collect.c, which reads it. */
#ifndef TARNI_BATCH_H
#define TARNI_BATCH_H

#include "transfer.h"

typedef struct tarni_transfer {
  tarn_ptr device;
  uint8_t *host;     /* in pinned memory; NULL for zero bytes */
  uint64_t length;   /* of the caller's bytes */
  uint64_t transfer; /* with padding: what is copied */
  bool is_joined;    /* follows the piece before it on both sides: one copy */
} tarni_transfer;

/* Pieces that go one way, and the pinned memory they are in. */
typedef struct tarni_transfers {
  tarni_transfer *pieces;
  tarni_copy *copies; /* room to make copies of the pieces */
  uint32_t count, capacity;
  tarni_staging *slabs; /* the newest first */
  uint64_t used;        /* of the newest */
  uint64_t usual_bytes; /* of all slabs when they were last given back: one will do next time */
  tarn_ptr device_end;  /* where the last piece ends on the device, and in the newest slab */
  bool is_torn;         /* a part of it may be with the stream, by a call that failed */
  bool is_pending;      /* the stream may be at it still */
  tarn_stream stream;   /* of both */
  const void *thread;   /* tarni_thread_of it */
  tarni_mark *mark;     /* what proves that it is not, also when it is gone; or NULL */
} tarni_transfers;

struct tarn_batch {
  tarn_copier *copier;
  uint64_t staging_bytes;
  tarni_copy_way way;
  tarni_transfers uploads, outputs;
  uint64_t n_copies;
  bool is_apart; /* pieces side by side are copied one by one */
  bool is_fetched;
};

/* ---- batch.c ---- */
tarn_status tarni_batch_given(const tarn_batch *batch, const char *operation);

#endif
