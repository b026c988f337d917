/* SPDX-License-Identifier: MIT
 *
 * An allocator that fails when it is told to, in place of the C library's. */
#include "fault/fault_memory.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static _Thread_local bool is_counting;
static uint64_t n_left; /* until the first failure; 0: none */
static bool is_for_good;
static uint64_t n_struck;

static bool memory_strikes(void) {
  if (!is_counting || n_left == 0) {
    return false;
  }
  if (n_left > 1) {
    n_left--;
    return false;
  }
  n_left = is_for_good ? 1 : 0;
  n_struck++;
  errno = ENOMEM;
  return true;
}

/* The C library's own, under the names by which it offers them to those who replace them. */
/* NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming) */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
/* NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming) */

void *malloc(size_t size) {
  return memory_strikes() ? NULL : __libc_malloc(size);
}

void *calloc(size_t nmemb, size_t size) {
  return memory_strikes() ? NULL : __libc_calloc(nmemb, size);
}

void *realloc(void *ptr, size_t size) {
  return memory_strikes() ? NULL : __libc_realloc(ptr, size);
}

bool fault_memory_can_fail(void) {
  return true;
}

void fault_memory_inside(bool is_inside) {
  is_counting = is_inside;
}

void fault_memory_arm(uint64_t nth, bool for_good) {
  n_left = nth;
  is_for_good = for_good;
  n_struck = 0;
}

uint64_t fault_memory_disarm(void) {
  n_left = 0;
  return n_struck;
}

#else

bool fault_memory_can_fail(void) {
  return false;
}

void fault_memory_inside(bool is_inside) {
  (void)is_inside;
}

void fault_memory_arm(uint64_t nth, bool for_good) {
  (void)nth;
  (void)for_good;
}

uint64_t fault_memory_disarm(void) {
  return 0;
}

#endif
