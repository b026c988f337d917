/* SPDX-License-Identifier: MIT
 *
 * The test harness: runs a table of cases and prints TAP. Checks may come from several threads. */
#include "support/test.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "tarn/tarn.h"

static atomic_uint_fast64_t n_checks;
static atomic_bool case_failed;
static const char *skip_reason;

#if defined(__SANITIZE_ADDRESS__)
static pid_t own_process;

__attribute__((constructor)) static void note_process(void) {
  own_process = getpid();
}

/* A search for leaks takes seconds. What a test's children share with it is searched at its end. */
__attribute__((visibility("default"))) int
__lsan_is_turned_off(void) { /* NOLINT(bugprone-reserved-identifier,cert-dcl37-c) */
  return getpid() != own_process;
}
#endif

uint64_t test_checks(void) {
  return atomic_load(&n_checks);
}

bool test_case_failed(void) {
  return atomic_load(&case_failed);
}

void test_skip(const char *reason) {
  skip_reason = reason;
}

/* Asked by raw system calls: a sanitizer ends the process where its own mmap finds none. */
bool test_has_addresses(uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
  const bool is_too_much = bytes > (uint64_t)1 << 40; /* what tables take goes by its own mmap */
#else
  const bool is_too_much = false;
#endif
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const long address = is_too_much ? -1 : syscall(SYS_mmap, NULL, bytes, PROT_NONE, flags, -1, 0);
  if (address == -1) {
    test_skip("the process has too few addresses for it");
    return false;
  }
  (void)syscall(SYS_munmap, address, bytes);
  return true;
}

/* The kernel's count of the process's pages: all addresses first, what is resident second. */
static uint64_t process_bytes(bool is_resident) {
  char text[128] = "";
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file != NULL && fgets(text, sizeof(text), file) != NULL);
  if (file != NULL) {
    (void)fclose(file);
  }
  char *rest = text;
  const uint64_t all = strtoull(text, &rest, 10), resident = strtoull(rest, NULL, 10);
  return (is_resident ? resident : all) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t test_addresses_taken(void) {
  return process_bytes(false);
}

uint64_t test_resident_bytes(void) {
  return process_bytes(true);
}

void test_note(const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  printf("# %s\n", text);
  (void)fflush(stdout);
}

static bool count_check(bool passed) {
  atomic_fetch_add(&n_checks, 1);
  if (!passed) {
    atomic_store(&case_failed, true);
  }
  return passed;
}

bool test_true(bool passed, const char *text, const char *file, int line) {
  if (!count_check(passed)) {
    test_note("%s:%d: failed: %s", file, line, text);
  }
  return passed;
}

bool test_equal_u64(uint64_t a, uint64_t b, const char *text, const char *file, int line) {
  if (!count_check(a == b)) {
    test_note("%s:%d: failed: %s: %llu and %llu", file, line, text, (unsigned long long)a,
              (unsigned long long)b);
  }
  return a == b;
}

bool test_equal_text(const char *a, const char *b, const char *text, const char *file, int line) {
  const bool passed = a != NULL && b != NULL && strcmp(a, b) == 0;
  if (!count_check(passed)) {
    test_note("%s:%d: failed: %s: '%s' and '%s'", file, line, text, a != NULL ? a : "(null)",
              b != NULL ? b : "(null)");
  }
  return passed;
}

bool test_has_text(const char *whole, const char *part, const char *text, const char *file,
                   int line) {
  const bool passed = whole != NULL && strstr(whole, part) != NULL;
  if (!count_check(passed)) {
    test_note("%s:%d: failed: %s: '%s' lacks '%s'", file, line, text,
              whole != NULL ? whole : "(null)", part);
  }
  return passed;
}

bool test_status(int got, int want, const char *text, const char *file, int line) {
  if (!count_check(got == want)) {
    test_note("%s:%d: failed: %s: got %s, want %s; last error: %s", file, line, text,
              tarn_status_name((tarn_status)got), tarn_status_name((tarn_status)want),
              tarn_last_message());
  }
  return got == want;
}

static bool is_selected(const char *name, int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    if (strstr(name, argv[i]) != NULL) {
      return true;
    }
  }
  return argc < 2;
}

int test_run(const test_case *cases, int count, int argc, char **argv) {
  int n_run = 0, n_failed = 0, n_skipped = 0;
  for (int i = 0; i < count; i++) {
    if (!is_selected(cases[i].name, argc, argv)) {
      continue;
    }
    n_run++;
    skip_reason = NULL;
    atomic_store(&case_failed, false);
    const uint64_t before = test_checks();
    cases[i].run();
    const bool is_empty = test_checks() == before && skip_reason == NULL;
    if (is_empty) {
      test_note("%s made no check: a test that asserts nothing fails", cases[i].name);
    }
    const bool failed = test_case_failed() || is_empty;
    n_failed += failed;
    n_skipped += !failed && skip_reason != NULL;
    printf("%s %d - %s%s%s\n", failed ? "not ok" : "ok", n_run, cases[i].name,
           !failed && skip_reason != NULL ? " # SKIP " : "",
           !failed && skip_reason != NULL ? skip_reason : "");
    (void)fflush(stdout);
  }
  printf("1..%d\n# %llu checks\n%d passed, %d failed, %d skipped\n", n_run,
         (unsigned long long)test_checks(), n_run - n_failed - n_skipped, n_failed, n_skipped);
  if (n_failed != 0 || n_run == 0) {
    return 1;
  }
  return n_skipped == n_run ? 77 : 0;
}
