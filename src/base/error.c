/* SPDX-License-Identifier: MIT
 *
 * Status names and texts, and the thread's last error. Owns one thread-local struct; no locks. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* The analyzer's view of these two (error.h) is for their callers. */
#undef tarni_fail
#undef tarni_fail_again

static _Thread_local tarn_error last_error;

const char *tarn_status_name(tarn_status status) {
  switch (status) {
#define STATUS_NAME(name, number, text)                                                            \
  case TARN_##name:                                                                                \
    return "TARN_" #name;
    TARN_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
  }
  return "TARN_UNKNOWN";
}

const char *tarn_status_text(tarn_status status) {
  switch (status) {
#define STATUS_TEXT(name, number, text)                                                            \
  case TARN_##name:                                                                                \
    return text;
    TARN_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
  }
  return "a status that this version of tarn does not know";
}

const char *tarn_call_name(tarn_call call) {
  static const char *const names[TARN_CALL_COUNT] = {
#define CALL_NAME(name, text, entry) [TARN_CALL_##name] = text,
      TARN_CALL_MAP(CALL_NAME)
#undef CALL_NAME
  };
  return (unsigned)call < TARN_CALL_COUNT ? names[call] : "unknown";
}

#define VERSION_TEXT_(major, minor, patch) #major "." #minor "." #patch
#define VERSION_TEXT(major, minor, patch) VERSION_TEXT_(major, minor, patch)

const char *tarn_version(void) {
  return VERSION_TEXT(TARN_VERSION_MAJOR, TARN_VERSION_MINOR, TARN_VERSION_PATCH);
}

static void copy_text(char *destination, size_t capacity, const char *text) {
  (void)snprintf(destination, capacity, "%s", text != NULL ? text : "");
}

tarn_status tarni_fail(tarn_status status, const char *operation, const tarni_facts *facts,
                       const char *remedy, const char *what, ...) {
  tarn_assert(status != TARN_OK && operation != NULL && remedy != NULL);
  static const tarni_facts no_facts = {0};
  const tarni_facts *known = facts != NULL ? facts : &no_facts;
  tarn_error *error = &last_error;
  *error = (tarn_error){.size = sizeof(*error),
                        .status = status,
                        .driver_code = known->driver_code,
                        .requested_bytes = known->requested_bytes,
                        .available_bytes = known->available_bytes};
  copy_text(error->operation, sizeof(error->operation), operation);
  copy_text(error->device, sizeof(error->device), known->device);
  copy_text(error->driver_name, sizeof(error->driver_name), known->driver_name);

  char text[400];
  va_list arguments;
  va_start(arguments, what);
  (void)vsnprintf(text, sizeof(text), what, arguments);
  va_end(arguments);
  const int used = snprintf(error->message, sizeof(error->message), "%s: %s.", operation, text);
  if (used > 0 && (size_t)used < sizeof(error->message) && remedy[0] != '\0') {
    (void)snprintf(error->message + used, sizeof(error->message) - (size_t)used, " %s", remedy);
  }
  return status;
}

tarn_status tarni_fail_again(const tarn_error *error) {
  tarn_assert(error != NULL && error->status != TARN_OK);
  last_error = *error;
  return error->status;
}

tarn_status tarn_last_error(tarn_error *error) {
  if (error != NULL &&
      tarni_struct_out(error, &last_error, sizeof(last_error), "tarn_last_error") != TARN_OK) {
    return TARN_INVALID;
  }
  return last_error.status;
}

const char *tarn_last_message(void) {
  return last_error.message;
}

static size_t struct_size(const void *caller) {
  size_t size;
  memcpy(&size, caller, sizeof(size));
  return size;
}

static tarn_status struct_size_check(const void *caller, const char *operation) {
  if (caller == NULL) {
    return tarni_fail(TARN_INVALID, operation, NULL, "Pass the address of the struct.",
                      "a struct pointer is NULL");
  }
  if (struct_size(caller) < sizeof(size_t)) {
    return tarni_fail(TARN_INVALID, operation, NULL,
                      "Set its first field, size, to sizeof the struct before the call.",
                      "the struct's size field is %zu", struct_size(caller));
  }
  return TARN_OK;
}

tarn_status tarni_struct_out(void *caller, const void *full, size_t full_size,
                             const char *operation) {
  TARN_TRY(struct_size_check(caller, operation));
  const size_t asked = struct_size(caller);
  const size_t filled = asked < full_size ? asked : full_size;
  memcpy(caller, full, filled);
  memcpy(caller, &filled, sizeof(filled));
  return TARN_OK;
}

tarn_status tarni_struct_in(const void *caller, void *full, size_t full_size,
                            const char *operation) {
  TARN_TRY(struct_size_check(caller, operation));
  const size_t given = struct_size(caller);
  const unsigned char *bytes = caller;
  for (size_t i = full_size; i < given; i++) {
    if (bytes[i] != 0) {
      return tarni_fail(TARN_UNSUPPORTED, operation, NULL,
                        "Use the tarn version that this program was built for, or a newer one.",
                        "the struct has %zu bytes and sets byte %zu; this version of tarn knows "
                        "%zu bytes of it",
                        given, i, full_size);
    }
  }
  memset(full, 0, full_size);
  memcpy(full, caller, given < full_size ? given : full_size);
  memcpy(full, &full_size, sizeof(full_size));
  return TARN_OK;
}

tarn_status tarni_reserved_check(const void *field, size_t bytes, const char *name,
                                 const char *operation) {
  const unsigned char *given = field;
  for (size_t i = 0; i < bytes; i++) {
    if (given[i] != 0) {
      return tarni_fail(TARN_INVALID, operation, NULL,
                        "Leave it 0: set the whole struct to zero before its fields.",
                        "%s is set, which means nothing yet", name);
    }
  }
  return TARN_OK;
}
