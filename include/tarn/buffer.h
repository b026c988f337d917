/* SPDX-License-Identifier: MIT
 *
 * A byte buffer that grows: what transfers from a device are collected into, again and again. It
 * keeps its capacity, and where a call fails it keeps its content, too: the last good one. */
#ifndef TARN_BUFFER_H
#define TARN_BUFFER_H

#include "tarn/tarn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tarn_buffer tarn_buffer;

typedef struct tarn_buffer_config {
  size_t size;
  size_t capacity_bytes; /* to begin with */
  size_t limit_bytes;    /* it never grows beyond this; 0: no limit */
} tarn_buffer_config;

/* Makes an empty buffer. config may be NULL: no capacity, no limit. */
TARN_API tarn_status tarn_buffer_create(const tarn_buffer_config *config, tarn_buffer **buffer);
TARN_API void tarn_buffer_destroy(tarn_buffer *buffer); /* NULL is ignored */

/* The content: valid until the next call that changes the buffer. Of a NULL buffer, none. */
TARN_API const void *tarn_buffer_bytes(const tarn_buffer *buffer);
TARN_API size_t tarn_buffer_length(const tarn_buffer *buffer);
TARN_API size_t tarn_buffer_capacity(const tarn_buffer *buffer);

/* Makes room for `capacity_bytes` in all; content and length stay. TARN_LIMIT beyond the limit. */
TARN_API tarn_status tarn_buffer_reserve(tarn_buffer *buffer, size_t capacity_bytes);
/* Replaces the content. The bytes may be the buffer's own. */
TARN_API tarn_status tarn_buffer_assign(tarn_buffer *buffer, const void *bytes, size_t length);
/* Empties it; the capacity stays. */
TARN_API tarn_status tarn_buffer_clear(tarn_buffer *buffer);

/* A list of buffers that collecting makes as long as it has to be; what is in it already keeps its
 * capacity. It owns its buffers. */
typedef struct tarn_buffer_list tarn_buffer_list;

TARN_API tarn_status tarn_buffer_list_create(tarn_buffer_list **list);
TARN_API void tarn_buffer_list_destroy(tarn_buffer_list *list);
TARN_API size_t tarn_buffer_list_count(const tarn_buffer_list *list);
/* NULL when there is no such buffer. */
TARN_API tarn_buffer *tarn_buffer_list_at(const tarn_buffer_list *list, size_t index);
/* Makes it exactly `count` long: what is added is empty, what is cut off is destroyed. */
TARN_API tarn_status tarn_buffer_list_resize(tarn_buffer_list *list, size_t count);

#ifdef __cplusplus
}
#endif

#endif
