/* SPDX-License-Identifier: MIT
 *
 * How a failure is made: one call that sets the thread's last error and returns the status, so
 * that every failing path reads `return tarni_fail(...)`. Knows nothing about memory. */
#ifndef TARNI_ERROR_H
#define TARNI_ERROR_H

#include "tarn/tarn.h"

/* What a failure knows besides its text. Zero means: no part in it. */
typedef struct tarni_facts {
  const char *device;
  uint64_t requested_bytes;
  uint64_t available_bytes;
  int driver_code;
  const char *driver_name;
} tarni_facts;

/* Sets the last error of this thread and returns `status`.
 * pre: status is not TARN_OK; operation and remedy are not NULL; facts may be NULL.
 * The message becomes "<operation>: <what>. <remedy>". Allocates nothing. */
__attribute__((cold, format(printf, 5, 6))) tarn_status
tarni_fail(tarn_status status, const char *operation, const tarni_facts *facts, const char *remedy,
           const char *what, ...);

/* Makes an earlier error, as tarn_last_error gave it, the last one again and returns its status:
 * for failures that are told to several callers, and for clean-up that must not hide the first
 * error. pre: its status is not TARN_OK. */
tarn_status tarni_fail_again(const tarn_error *error);

#ifdef __clang_analyzer__
/* An analyzer that sees one file at a time must be told that a failure is never TARN_OK. */
#define tarni_fail(status, ...) ((void)(tarni_fail)((status), __VA_ARGS__), (status))
#define tarni_fail_again(error) ((void)(tarni_fail_again)(error), TARN_CORRUPT)
#endif

/* Returns from the calling function when the expression is not TARN_OK. */
#define TARN_TRY(expression)                                                                       \
  do {                                                                                             \
    const tarn_status try_status_ = (expression);                                                  \
    if (try_status_ != TARN_OK) {                                                                  \
      return try_status_;                                                                          \
    }                                                                                              \
  } while (0)

/* Copies `bytes` of a public struct whose caller knows `caller_size` of it: fills what fits.
 * pre: both structs begin with a size_t size. post: the caller's size is what was filled. */
tarn_status tarni_struct_out(void *caller, const void *full, size_t full_size,
                             const char *operation);

/* Reads a caller's struct over zeroed defaults. A caller that is newer than the library is accepted
 * only when what the library does not know is zero: nothing asked for is ever ignored. */
tarn_status tarni_struct_in(const void *caller, void *full, size_t full_size,
                            const char *operation);

/* Whether a reserved field of such a struct is 0: else the error, for the same reason. */
tarn_status tarni_reserved_check(const void *field, size_t bytes, const char *name,
                                 const char *operation);
#define TARNI_RESERVED(known, field, operation)                                                    \
  tarni_reserved_check(&(known)->field, sizeof((known)->field), #field, operation)

#endif
