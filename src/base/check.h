/* SPDX-License-Identifier: MIT
 *
 * Assertions. What can be checked is an assert, not a comment. The debug level is a constant, so
 * checks are always compiled and fold away where the level is too low:
 *   level 0  release: none
 *   level 1  cheap asserts
 *   level 2  asserts that walk structures, lock order
 */
#ifndef TARNI_CHECK_H
#define TARNI_CHECK_H

#ifndef TARN_DEBUG_LEVEL
#define TARN_DEBUG_LEVEL 0
#endif

enum { TARNI_DEBUG_LEVEL = TARN_DEBUG_LEVEL };

#define TARNI_LIKELY(x) __builtin_expect(!!(x), 1)
#define TARNI_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* A slow path: kept out of the hot function, so that this one needs no stack frame. */
#define TARNI_SLOW __attribute__((noinline, cold))

/* Prints the failed condition and aborts: tarn is wrong about itself and must not go on. */
__attribute__((noreturn, cold)) void tarni_check_failed(const char *condition, const char *file,
                                                        int line);

#define tarn_assert(condition)                                                                     \
  do {                                                                                             \
    if (TARNI_DEBUG_LEVEL >= 1 && TARNI_UNLIKELY(!(condition))) {                                  \
      tarni_check_failed(#condition, __FILE__, __LINE__);                                          \
    }                                                                                              \
  } while (0)

#define tarn_assert_full(condition)                                                                \
  do {                                                                                             \
    if (TARNI_DEBUG_LEVEL >= 2 && TARNI_UNLIKELY(!(condition))) {                                  \
      tarni_check_failed(#condition, __FILE__, __LINE__);                                          \
    }                                                                                              \
  } while (0)

#endif
