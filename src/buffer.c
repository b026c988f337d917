/* SPDX-License-Identifier: MIT
 *
 * Byte buffers that grow, and lists of them. Owns their host memory and nothing else; knows no
 * device. Invariant: length <= capacity, and a call that fails has changed neither content nor
 * length nor capacity.
 *
 * Filling several buffers at once takes two steps: each is prepared for its new length, which can
 * fail and changes nothing that can be seen, and then all are filled, which cannot. No locks: a
 * buffer belongs to one thread at a time. */
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "transfer.h"

static tarn_status no_buffer_memory(const char *operation, size_t bytes) {
  const tarni_facts facts = {.requested_bytes = bytes};
  return tarni_fail(TARN_HOST_MEMORY, operation, &facts,
                    "Free host memory, or collect less at a time.",
                    "no host memory for %zu bytes; the content is as it was", bytes);
}

static tarn_status buffer_given(const tarn_buffer *buffer, const char *operation) {
  if (buffer == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Make one with tarn_buffer_create.",
                      "the buffer is NULL");
  }
  return TARN_OK;
}

tarn_status tarn_buffer_create(const tarn_buffer_config *config, tarn_buffer **buffer) {
  const char *operation = "tarn_buffer_create";
  if (buffer == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass an address for it.",
                      "the buffer's address is NULL");
  }
  *buffer = NULL;
  tarn_buffer_config known = {.size = sizeof(known)};
  if (config != NULL) {
    TARN_TRY(tarni_struct_in(config, &known, sizeof(known), operation));
  }
  tarn_buffer *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return no_buffer_memory(operation, sizeof(*made));
  }
  made->limit = known.limit_bytes;
  const tarn_status status = tarn_buffer_reserve(made, known.capacity_bytes);
  if (status != TARN_OK) {
    free(made);
    return status;
  }
  *buffer = made;
  return TARN_OK;
}

void tarn_buffer_destroy(tarn_buffer *buffer) {
  if (buffer != NULL) {
    free(buffer->bytes);
    free(buffer->fresh);
    free(buffer);
  }
}

const void *tarn_buffer_bytes(const tarn_buffer *buffer) {
  return buffer != NULL ? buffer->bytes : NULL;
}

size_t tarn_buffer_length(const tarn_buffer *buffer) {
  return buffer != NULL ? buffer->length : 0;
}

size_t tarn_buffer_capacity(const tarn_buffer *buffer) {
  return buffer != NULL ? buffer->capacity : 0;
}

/* What the buffer grows to when it has to hold so much: half as much again as it had, at least,
 * so that growing step by step is cheap, but never beyond the limit. */
static size_t grown_capacity(const tarn_buffer *buffer, size_t length) {
  const size_t ample = buffer->capacity + buffer->capacity / 2;
  const size_t capacity = ample > length && ample > buffer->capacity ? ample : length;
  return buffer->limit != 0 && capacity > buffer->limit ? buffer->limit : capacity;
}

static tarn_status check_limit(const tarn_buffer *buffer, size_t length, const char *operation) {
  if (buffer->limit != 0 && length > buffer->limit) {
    const tarni_facts facts = {.requested_bytes = length, .available_bytes = buffer->limit};
    return tarni_fail(TARN_LIMIT, operation, &facts, "Raise the buffer's limit.",
                      "%zu bytes are more than the limit of %zu; the content is as it was", length,
                      buffer->limit);
  }
  return TARN_OK;
}

tarn_status tarni_buffer_prepare(tarn_buffer *buffer, size_t length, const char *operation) {
  tarn_assert(!buffer->is_prepared && buffer->fresh == NULL);
  TARN_TRY(check_limit(buffer, length, operation));
  if (length > buffer->capacity) {
    const size_t capacity = grown_capacity(buffer, length);
    buffer->fresh = malloc(capacity);
    if (buffer->fresh == NULL) {
      return no_buffer_memory(operation, capacity);
    }
    buffer->fresh_capacity = capacity;
  }
  buffer->is_prepared = true;
  return TARN_OK;
}

void tarni_buffer_forget(tarn_buffer *buffer) {
  free(buffer->fresh);
  buffer->fresh = NULL;
  buffer->is_prepared = false;
}

void tarni_buffer_fill(tarn_buffer *buffer, const void *bytes, size_t length) {
  tarn_assert(buffer->is_prepared);
  buffer->is_prepared = false;
  if (buffer->fresh != NULL) {
    memcpy(buffer->fresh, bytes, length); /* before the old bytes go: these may be a part of them */
    free(buffer->bytes);
    buffer->bytes = buffer->fresh;
    buffer->capacity = buffer->fresh_capacity;
    buffer->fresh = NULL;
  } else if (length != 0) {
    memmove(buffer->bytes, bytes, length);
  }
  buffer->length = length;
}

tarn_status tarn_buffer_reserve(tarn_buffer *buffer, size_t capacity_bytes) {
  const char *operation = "tarn_buffer_reserve";
  TARN_TRY(buffer_given(buffer, operation));
  TARN_TRY(check_limit(buffer, capacity_bytes, operation));
  if (capacity_bytes <= buffer->capacity) {
    return TARN_OK;
  }
  void *bytes = realloc(buffer->bytes, capacity_bytes);
  if (bytes == NULL) {
    return no_buffer_memory(operation, capacity_bytes);
  }
  buffer->bytes = bytes;
  buffer->capacity = capacity_bytes;
  return TARN_OK;
}

tarn_status tarn_buffer_assign(tarn_buffer *buffer, const void *bytes, size_t length) {
  const char *operation = "tarn_buffer_assign";
  TARN_TRY(buffer_given(buffer, operation));
  if (bytes == NULL && length != 0) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the bytes, or a length of 0.",
                      "the bytes are NULL, and the length is %zu", length);
  }
  TARN_TRY(tarni_buffer_prepare(buffer, length, operation));
  tarni_buffer_fill(buffer, bytes, length);
  return TARN_OK;
}

tarn_status tarn_buffer_clear(tarn_buffer *buffer) {
  TARN_TRY(buffer_given(buffer, "tarn_buffer_clear"));
  buffer->length = 0;
  return TARN_OK;
}

/* ---- Lists ---- */

tarn_status tarn_buffer_list_create(tarn_buffer_list **list) {
  if (list == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_buffer_list_create", NULL, "Pass an address for it.",
                      "the list's address is NULL");
  }
  *list = calloc(1, sizeof(**list));
  return *list != NULL ? TARN_OK : no_buffer_memory("tarn_buffer_list_create", sizeof(**list));
}

static void list_cut(tarn_buffer_list *list, size_t count) {
  while (list->count > count) {
    tarn_buffer_destroy(list->buffers[--list->count]);
  }
}

void tarn_buffer_list_destroy(tarn_buffer_list *list) {
  if (list != NULL) {
    list_cut(list, 0);
    free(list->buffers);
    free(list);
  }
}

size_t tarn_buffer_list_count(const tarn_buffer_list *list) {
  return list != NULL ? list->count : 0;
}

tarn_buffer *tarn_buffer_list_at(const tarn_buffer_list *list, size_t index) {
  return list != NULL && index < list->count ? list->buffers[index] : NULL;
}

static tarn_status list_widen(tarn_buffer_list *list, size_t count) {
  uint64_t bytes;
  if (count <= list->capacity) {
    return TARN_OK;
  }
  tarn_buffer **buffers = tarni_mul(count, sizeof(void *), &bytes) && bytes <= PTRDIFF_MAX
                              ? realloc(list->buffers, bytes)
                              : NULL;
  if (buffers == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_buffer_list_resize", NULL, "Collect less at a time.",
                      "no host memory for a list of %zu buffers", count);
  }
  list->buffers = buffers;
  list->capacity = count;
  return TARN_OK;
}

tarn_status tarni_buffer_list_add(tarn_buffer_list *list, size_t count) {
  const size_t before = list->count;
  if (count <= before) {
    return TARN_OK;
  }
  TARN_TRY(list_widen(list, count));
  while (list->count < count) {
    const tarn_status status = tarn_buffer_create(NULL, &list->buffers[list->count]);
    if (status != TARN_OK) {
      list_cut(list, before);
      return status;
    }
    list->count++;
  }
  return TARN_OK;
}

tarn_status tarn_buffer_list_resize(tarn_buffer_list *list, size_t count) {
  if (list == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_buffer_list_resize", NULL,
                      "Make one with tarn_buffer_list_create.", "the list is NULL");
  }
  TARN_TRY(tarni_buffer_list_add(list, count));
  list_cut(list, count);
  return TARN_OK;
}
