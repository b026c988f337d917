/* SPDX-License-Identifier: MIT
 *
 * Room for large reservations under the thread sanitizer, part of every program of that
 * profile. On 64-bit ARM the sanitizer fills nearly all of the address space with inaccessible
 * mappings and leaves at most 16 GiB in one piece, less than one simulated GPU reserves. Before
 * main a part of the largest such mapping is taken away again, so that the kernel can place
 * reservations there. Accesses outside the sanitizer's ranges share its shadow with others (the
 * address is masked), which can hide a race and can not crash. Does nothing where the largest free
 * piece is large already, where there is no such mapping, and on other machines. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __aarch64__
enum { IS_ARM = 1 };
#else
enum { IS_ARM = 0 };
#endif

static const uint64_t wanted_bytes = UINT64_C(1) << 45;

/* The largest anonymous mapping that nobody may touch; its bytes, and where it begins. */
static uint64_t largest_guard(uint64_t *begin) {
  FILE *maps = fopen("/proc/self/maps", "r");
  if (maps == NULL) {
    return 0;
  }
  uint64_t largest = 0, first, last;
  char line[512], protection[8], rest[256];
  while (fgets(line, sizeof(line), maps) != NULL) {
    rest[0] = '\0';
    const int n_fields = sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %*s %255s", &first,
                                &last, protection, rest);
    if (n_fields == 3 && strcmp(protection, "---p") == 0 && last - first > largest) {
      largest = last - first;
      *begin = first;
    }
  }
  (void)fclose(maps);
  return largest;
}

__attribute__((constructor)) static void make_room(void) {
  void *piece = (void *)syscall(SYS_mmap, NULL, wanted_bytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (piece != MAP_FAILED) {
    (void)syscall(SYS_munmap, piece, wanted_bytes);
    return;
  }
  uint64_t begin = 0;
  if (IS_ARM && largest_guard(&begin) > 2 * wanted_bytes) {
    /* From the middle: what lies near its ends may be near something. */
    const uint64_t middle = begin + wanted_bytes / 2;
    (void)syscall(SYS_munmap, (void *)(uintptr_t)middle, wanted_bytes);
  }
}
