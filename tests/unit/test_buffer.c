/* SPDX-License-Identifier: MIT
 *
 * Buffers that grow: capacity and content that stay, limits, lists. */
#include "tarn/buffer.h"

#include <string.h>

#include "support/test.h"

static bool holds(const tarn_buffer *buffer, const char *text) {
  return tarn_buffer_length(buffer) == strlen(text) &&
         memcmp(tarn_buffer_bytes(buffer), text, strlen(text)) == 0;
}

static void capacity_is_reused(void) {
  const tarn_buffer_config config = {.size = sizeof(config), .capacity_bytes = 100};
  tarn_buffer *buffer = NULL;
  REQUIRE_OK(tarn_buffer_create(&config, &buffer));
  CHECK_EQ(tarn_buffer_capacity(buffer), 100);
  CHECK_EQ(tarn_buffer_length(buffer), 0);
  const void *bytes = tarn_buffer_bytes(buffer);
  CHECK_OK(tarn_buffer_assign(buffer, "some content", 12));
  CHECK_OK(tarn_buffer_assign(buffer, "other", 5));
  CHECK(holds(buffer, "other"));
  CHECK(tarn_buffer_bytes(buffer) == bytes);
  CHECK_EQ(tarn_buffer_capacity(buffer), 100);
  CHECK_OK(tarn_buffer_clear(buffer));
  CHECK_EQ(tarn_buffer_length(buffer), 0);
  CHECK_OK(tarn_buffer_assign(buffer, NULL, 0));
  CHECK_EQ(tarn_buffer_capacity(buffer), 100);
  CHECK(tarn_buffer_bytes(buffer) == bytes);
  tarn_buffer_destroy(buffer);
}

static void content_survives_failure(void) {
  const tarn_buffer_config config = {.size = sizeof(config), .limit_bytes = 16};
  tarn_buffer *buffer = NULL;
  REQUIRE_OK(tarn_buffer_create(&config, &buffer));
  REQUIRE_OK(tarn_buffer_assign(buffer, "last good", 9));
  const size_t capacity = tarn_buffer_capacity(buffer);
  char text[32];
  memset(text, 'x', sizeof(text));
  CHECK_STATUS(tarn_buffer_assign(buffer, text, 17), TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "17 bytes");
  CHECK_HAS(tarn_last_message(), "limit of 16");
  CHECK_STATUS(tarn_buffer_reserve(buffer, 17), TARN_LIMIT);
  CHECK_STATUS(tarn_buffer_assign(buffer, NULL, 3), TARN_INVALID);
  CHECK(holds(buffer, "last good"));
  CHECK_EQ(tarn_buffer_capacity(buffer), capacity);
  CHECK_OK(tarn_buffer_assign(buffer, text, 16));
  CHECK_EQ(tarn_buffer_length(buffer), 16);
  tarn_buffer_destroy(buffer);
  /* More than any machine has. */
  REQUIRE_OK(tarn_buffer_create(NULL, &buffer));
  REQUIRE_OK(tarn_buffer_assign(buffer, "last good", 9));
  CHECK_STATUS(tarn_buffer_reserve(buffer, PTRDIFF_MAX), TARN_HOST_MEMORY);
  CHECK(holds(buffer, "last good"));
  tarn_buffer_destroy(buffer);
}

/* Growing by little steps is not quadratic, and a buffer may be filled from itself. */
static void growth(void) {
  tarn_buffer *buffer = NULL;
  REQUIRE_OK(tarn_buffer_create(NULL, &buffer));
  static char bytes[4096];
  unsigned n_grown = 0;
  for (size_t n = 1; n <= sizeof(bytes); n++) {
    const size_t before = tarn_buffer_capacity(buffer);
    memset(bytes, (int)(n & 0x7f), n);
    CHECK_OK(tarn_buffer_assign(buffer, bytes, n));
    n_grown += tarn_buffer_capacity(buffer) != before;
  }
  CHECK(n_grown < 40);
  CHECK_OK(tarn_buffer_assign(buffer, "0123456789", 10));
  CHECK_OK(tarn_buffer_assign(buffer, (const char *)tarn_buffer_bytes(buffer) + 2, 5));
  CHECK(holds(buffer, "23456"));
  CHECK_OK(tarn_buffer_reserve(buffer, 100000));
  CHECK(holds(buffer, "23456"));
  CHECK_EQ(tarn_buffer_capacity(buffer), 100000);
  tarn_buffer_destroy(buffer);
}

static void lists(void) {
  tarn_buffer_list *list = NULL;
  REQUIRE_OK(tarn_buffer_list_create(&list));
  CHECK_EQ(tarn_buffer_list_count(list), 0);
  CHECK(tarn_buffer_list_at(list, 0) == NULL);
  REQUIRE_OK(tarn_buffer_list_resize(list, 3));
  CHECK_OK(tarn_buffer_assign(tarn_buffer_list_at(list, 1), "kept", 4));
  CHECK_OK(tarn_buffer_list_resize(list, 5));
  CHECK_EQ(tarn_buffer_list_count(list), 5);
  CHECK(holds(tarn_buffer_list_at(list, 1), "kept"));
  CHECK_EQ(tarn_buffer_length(tarn_buffer_list_at(list, 4)), 0);
  CHECK_OK(tarn_buffer_list_resize(list, 2));
  CHECK(holds(tarn_buffer_list_at(list, 1), "kept"));
  CHECK(tarn_buffer_list_at(list, 2) == NULL);
  CHECK_STATUS(tarn_buffer_list_resize(list, SIZE_MAX), TARN_HOST_MEMORY);
  CHECK_EQ(tarn_buffer_list_count(list), 2);
  tarn_buffer_list_destroy(list);
}

static void wrong_arguments(void) {
  CHECK_STATUS(tarn_buffer_create(NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_buffer_list_create(NULL), TARN_INVALID);
  CHECK_STATUS(tarn_buffer_assign(NULL, "x", 1), TARN_INVALID);
  CHECK_STATUS(tarn_buffer_reserve(NULL, 1), TARN_INVALID);
  CHECK_STATUS(tarn_buffer_clear(NULL), TARN_INVALID);
  CHECK_STATUS(tarn_buffer_list_resize(NULL, 1), TARN_INVALID);
  CHECK(tarn_buffer_bytes(NULL) == NULL);
  CHECK_EQ(tarn_buffer_length(NULL) + tarn_buffer_capacity(NULL) + tarn_buffer_list_count(NULL), 0);
  CHECK(tarn_buffer_list_at(NULL, 0) == NULL);
  tarn_buffer_destroy(NULL);
  tarn_buffer_list_destroy(NULL);
  const tarn_buffer_config config = {
      .size = sizeof(config), .capacity_bytes = 10, .limit_bytes = 9};
  tarn_buffer *buffer = (tarn_buffer *)(uintptr_t)1;
  CHECK_STATUS(tarn_buffer_create(&config, &buffer), TARN_LIMIT);
  CHECK(buffer == NULL);
}

static const test_case cases[] = {
    {"capacity_is_reused", capacity_is_reused},
    {"content_survives_failure", content_survives_failure},
    {"growth", growth},
    {"lists", lists},
    {"wrong_arguments", wrong_arguments},
};

TEST_MAIN(cases)
