/* SPDX-License-Identifier: MIT
 *
 * The list of status codes, the thread's last error, structs that grow. */
#include "base/error.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/test.h"

static void first_error_is_none(void) {
  tarn_error error = {.size = sizeof(error), .status = TARN_BUSY};
  CHECK_STATUS(tarn_last_error(&error), TARN_OK);
  CHECK_STATUS(error.status, TARN_OK);
  CHECK_TEXT(error.message, "");
  CHECK_TEXT(tarn_last_message(), "");
}

static void names_and_texts(void) {
  int count = 0;
#define CHECK_ENTRY(name, number, text)                                                            \
  CHECK_EQ(TARN_##name, number);                                                                   \
  CHECK_TEXT(tarn_status_name(TARN_##name), "TARN_" #name);                                        \
  CHECK_TEXT(tarn_status_text(TARN_##name), text);                                                 \
  count++;
  TARN_STATUS_MAP(CHECK_ENTRY)
#undef CHECK_ENTRY
  CHECK(count > 20);
  CHECK_TEXT(tarn_status_name((tarn_status)9999), "TARN_UNKNOWN");
  CHECK(strlen(tarn_status_text((tarn_status)9999)) > 0);
}

static void calls_have_names(void) {
  for (int call = 0; call < TARN_CALL_COUNT; call++) {
    CHECK(strlen(tarn_call_name((tarn_call)call)) > 0);
    CHECK(strcmp(tarn_call_name((tarn_call)call), "unknown") != 0);
  }
  CHECK_TEXT(tarn_call_name(TARN_CALL_CREATE), "create");
  CHECK_TEXT(tarn_call_name(TARN_CALL_COUNT), "unknown");
  CHECK_TEXT(tarn_call_name((tarn_call)-1), "unknown");
}

static void version(void) {
  char text[32];
  (void)snprintf(text, sizeof(text), "%d.%d.%d", TARN_VERSION_MAJOR, TARN_VERSION_MINOR,
                 TARN_VERSION_PATCH);
  CHECK_TEXT(tarn_version(), text);
}

static void all_facts_are_kept(void) {
  const tarni_facts facts = {"cuda:0", 4096, 1024, 2, "CUDA_ERROR_OUT_OF_MEMORY"};
  CHECK_STATUS(
      tarni_fail(TARN_DEVICE_MEMORY, "cuMemCreate", &facts, "Free some.", "%d and %s", 7, "seven"),
      TARN_DEVICE_MEMORY);
  tarn_error error = {.size = sizeof(error)};
  CHECK_STATUS(tarn_last_error(&error), TARN_DEVICE_MEMORY);
  CHECK_STATUS(error.status, TARN_DEVICE_MEMORY);
  CHECK_EQ(error.driver_code, 2);
  CHECK_EQ(error.requested_bytes, 4096);
  CHECK_EQ(error.available_bytes, 1024);
  CHECK_TEXT(error.operation, "cuMemCreate");
  CHECK_TEXT(error.device, "cuda:0");
  CHECK_TEXT(error.driver_name, "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_TEXT(error.message, "cuMemCreate: 7 and seven. Free some.");
  CHECK_TEXT(tarn_last_message(), error.message);
}

static void told_again(void) {
  CHECK_STATUS(tarni_fail(TARN_BUSY, "first", NULL, "Wait.", "one"), TARN_BUSY);
  tarn_error first = {.size = sizeof(first)};
  CHECK_STATUS(tarn_last_error(&first), TARN_BUSY);
  CHECK_STATUS(tarni_fail(TARN_RANGE, "second", NULL, "", "two"), TARN_RANGE);
  CHECK_TEXT(tarn_last_message(), "second: two.");
  CHECK_STATUS(tarni_fail_again(&first), TARN_BUSY);
  CHECK_TEXT(tarn_last_message(), "first: one. Wait.");
}

/* Nothing that is too long spills over; every text ends. */
static void long_texts_are_cut(void) {
  static char text[2000];
  memset(text, 'x', sizeof(text) - 1);
  const tarni_facts facts = {.device = text, .driver_name = text};
  CHECK_STATUS(tarni_fail(TARN_DRIVER, text, &facts, text, "%s", text), TARN_DRIVER);
  tarn_error error = {.size = sizeof(error)};
  CHECK_STATUS(tarn_last_error(&error), TARN_DRIVER);
  CHECK_EQ(strlen(error.operation), sizeof(error.operation) - 1);
  CHECK_EQ(strlen(error.device), sizeof(error.device) - 1);
  CHECK_EQ(strlen(error.driver_name), sizeof(error.driver_name) - 1);
  CHECK_EQ(strlen(error.message), sizeof(error.message) - 1);
}

static void *look_at_error(void *argument) {
  *(tarn_status *)argument = tarn_last_error(NULL);
  (void)tarni_fail(TARN_LIMIT, "thread", NULL, "", "there");
  return NULL;
}

static void one_error_a_thread(void) {
  (void)tarni_fail(TARN_BUSY, "here", NULL, "", "here");
  tarn_status seen = TARN_CORRUPT;
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, look_at_error, &seen) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_STATUS(seen, TARN_OK);
  CHECK_STATUS(tarn_last_error(NULL), TARN_BUSY);
}

typedef struct grown {
  size_t size;
  uint32_t a;
  uint32_t b;
  uint64_t later;
} grown;

static void structs_out(void) {
  const grown full = {sizeof(full), 1, 2, 3};
  grown caller = {.size = offsetof(grown, later), .later = 77};
  CHECK_OK(tarni_struct_out(&caller, &full, sizeof(full), "test"));
  CHECK_EQ(caller.size, offsetof(grown, later));
  CHECK_EQ(caller.b, 2);
  CHECK_EQ(caller.later, 77);
  caller.size = sizeof(caller);
  CHECK_OK(tarni_struct_out(&caller, &full, offsetof(grown, later), "test"));
  CHECK_EQ(caller.size, offsetof(grown, later));
  CHECK_EQ(caller.later, 77);
  caller.size = 0;
  CHECK_STATUS(tarni_struct_out(&caller, &full, sizeof(full), "test"), TARN_INVALID);
  CHECK_STATUS(tarni_struct_out(NULL, &full, sizeof(full), "test"), TARN_INVALID);
}

static void structs_in(void) {
  grown full;
  grown caller = {.size = offsetof(grown, later), .a = 1, .b = 2, .later = 77};
  CHECK_OK(tarni_struct_in(&caller, &full, sizeof(full), "test"));
  CHECK_EQ(full.size, sizeof(full));
  CHECK_EQ(full.b, 2);
  CHECK_EQ(full.later, 0);
  /* A newer caller that asks for nothing new is understood; one that does is told. */
  caller.size = sizeof(caller);
  CHECK_STATUS(tarni_struct_in(&caller, &full, offsetof(grown, later), "test"), TARN_UNSUPPORTED);
  caller.later = 0;
  CHECK_OK(tarni_struct_in(&caller, &full, offsetof(grown, later), "test"));
  caller.size = 3;
  CHECK_STATUS(tarni_struct_in(&caller, &full, sizeof(full), "test"), TARN_INVALID);
  CHECK_STATUS(tarni_struct_in(NULL, &full, sizeof(full), "test"), TARN_INVALID);
}

static const test_case cases[] = {
    {"error: there is none at first", first_error_is_none},
    {"error: names and texts of every status", names_and_texts},
    {"error: names of every driver call", calls_have_names},
    {"error: version", version},
    {"error: all facts are kept", all_facts_are_kept},
    {"error: told again", told_again},
    {"error: long texts are cut", long_texts_are_cut},
    {"error: one a thread", one_error_a_thread},
    {"error: structs out", structs_out},
    {"error: structs in", structs_in},
};
TEST_MAIN(cases)
