/* SPDX-License-Identifier: MIT
 *
 * The test harness. A test file lists its cases in one table and ends in TEST_MAIN; every CHECK is
 * counted, and a failed one prints its values and fails the case. Output is TAP. A program given
 * arguments runs only the cases whose names contain one of them. Exit status: 0 passed, 1 failed,
 * 77 everything skipped. */
#ifndef TARN_TEST_H
#define TARN_TEST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct test_case {
  const char *name;
  void (*run)(void);
} test_case;

int test_run(const test_case *cases, int count, int argc, char **argv);

/* Marks the running case as skipped, with the reason. Return from the case after it. */
void test_skip(const char *reason);

/* Whether the process can have so many bytes of addresses in one piece: a sanitizer or valgrind
 * leaves it few. If not, the running case is marked as skipped. */
bool test_has_addresses(uint64_t bytes);

/* Bytes of addresses that the process has taken, and of memory that it has. */
uint64_t test_addresses_taken(void);
uint64_t test_resident_bytes(void);

/* The number of checks made so far, and whether the running case has failed. */
uint64_t test_checks(void);
bool test_case_failed(void);

void test_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool test_true(bool passed, const char *text, const char *file, int line);
bool test_equal_u64(uint64_t a, uint64_t b, const char *text, const char *file, int line);
bool test_equal_text(const char *a, const char *b, const char *text, const char *file, int line);
bool test_has_text(const char *whole, const char *part, const char *text, const char *file,
                   int line);
/* Compares two tarn_status values; prints tarn_last_message when they differ. */
bool test_status(int got, int want, const char *text, const char *file, int line);

#define CHECK(condition) test_true((condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(a, b)                                                                             \
  test_equal_u64((uint64_t)(a), (uint64_t)(b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_TEXT(a, b) test_equal_text((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_HAS(whole, part)                                                                     \
  test_has_text((whole), (part), #whole " has " #part, __FILE__, __LINE__)
#define CHECK_OK(expression) test_status((int)(expression), 0, #expression, __FILE__, __LINE__)
#define CHECK_STATUS(expression, want)                                                             \
  test_status((int)(expression), (int)(want), #expression, __FILE__, __LINE__)

/* For what the rest of a case stands on: leaves the case when it fails. */
#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!CHECK(condition)) {                                                                       \
      return;                                                                                      \
    }                                                                                              \
  } while (0)
#define REQUIRE_OK(expression)                                                                     \
  do {                                                                                             \
    if (!CHECK_OK(expression)) {                                                                   \
      return;                                                                                      \
    }                                                                                              \
  } while (0)

#define TEST_MAIN(cases)                                                                           \
  int main(int argc, char **argv) {                                                                \
    return test_run(cases, (int)(sizeof(cases) / sizeof((cases)[0])), argc, argv);                 \
  }

#endif
