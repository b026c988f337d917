/* SPDX-License-Identifier: MIT
 *
 * The bytes behind the simulated memory: a sparse memory file per device, mapped at real addresses,
 * so that mapping, aliasing, unmapping and faults are real. The only file of the simulated GPU that
 * talks to the operating system or touches simulated memory. Memory that was never written costs
 * nothing. Mappings are made by raw system calls: a sanitizer must not clear or walk its own shadow
 * for ranges of this size. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bits.h"
#include "port/sim/sim.h"

enum {
  BYTES_PAGES = 512,  /* that are asked for at a time */
  BYTES_BALLAST = 17, /* pages that are mappings of their own, each unlike the next one */
};

static void *raw_mmap(void *address, uint64_t size, int protection, int flags, int file,
                      uint64_t offset) {
  const long result = syscall(SYS_mmap, address, size, protection, flags, file, (off_t)offset);
  return result == -1 ? MAP_FAILED : (void *)(uintptr_t)result;
}

uint64_t tarni_sim_bytes_page(void) {
  static uint64_t page; /* the same whoever finds it out */
  if (__atomic_load_n(&page, __ATOMIC_RELAXED) == 0) {
    __atomic_store_n(&page, tarni_max(4096, (uint64_t)sysconf(_SC_PAGESIZE)), __ATOMIC_RELAXED);
  }
  return __atomic_load_n(&page, __ATOMIC_RELAXED);
}

int tarni_sim_bytes_file(void) {
  return tarni_sim_store_strikes() ? -1 : memfd_create("tarn-sim", MFD_CLOEXEC);
}

bool tarni_sim_bytes_grow(int file, uint64_t size) {
  return !tarni_sim_store_strikes() && size <= INT64_MAX && ftruncate(file, (off_t)size) == 0;
}

/* pre: nothing of it is mapped. */
bool tarni_sim_bytes_empty(int file) {
  return ftruncate(file, 0) == 0;
}

static char *reserve_anywhere(uint64_t size) {
  void *address =
      raw_mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address != MAP_FAILED ? address : NULL;
}

/* Reserves more than is needed and gives back what is left over. */
static void *reserve_padded(uint64_t size, uint64_t alignment) {
  uint64_t padded;
  char *address = tarni_add(size, alignment, &padded) ? reserve_anywhere(padded) : NULL;
  if (address == NULL) {
    return NULL;
  }
  char *aligned = address + (tarni_align_up((uintptr_t)address, alignment) - (uintptr_t)address);
  const uint64_t before = (uint64_t)(aligned - address);
  if (before != 0) {
    (void)syscall(SYS_munmap, address, before);
  }
  if (before != alignment) {
    (void)syscall(SYS_munmap, aligned + size, alignment - before);
  }
  return aligned;
}

void *tarni_sim_bytes_reserve(uint64_t size, uint64_t alignment) {
  char *address = tarni_sim_store_strikes() ? NULL : reserve_anywhere(size);
  if (address == NULL || tarni_is_aligned((uintptr_t)address, alignment)) {
    return address;
  }
  (void)syscall(SYS_munmap, address, size);
  return reserve_padded(size, alignment);
}

void *tarni_sim_bytes_pinned(uint64_t size) {
  void *address = tarni_sim_store_strikes()
                      ? MAP_FAILED
                      : raw_mmap(NULL, size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address != MAP_FAILED ? address : NULL;
}

bool tarni_sim_bytes_unreserve(void *address, uint64_t size) {
  return syscall(SYS_munmap, address, size) == 0;
}

/* ---- Mappings ---- */

/* A process that has all mappings it may have can make none, and that is how one is taken away
 * whose addresses stay reserved. So some are kept that are of no use, and thrown off then. */
static void *ballast;

static bool ballast_drop(void) {
  void *dropped = __atomic_exchange_n(&ballast, NULL, __ATOMIC_ACQ_REL);
  return dropped != NULL &&
         syscall(SYS_munmap, dropped, BYTES_BALLAST * tarni_sim_bytes_page()) == 0;
}

/* False: there is no room for it. */
static bool ballast_make(void) {
  const uint64_t page = tarni_sim_bytes_page();
  if (__atomic_load_n(&ballast, __ATOMIC_ACQUIRE) != NULL) {
    return true;
  }
  char *made = reserve_anywhere(BYTES_BALLAST * page);
  bool is_made = made != NULL;
  for (uint64_t i = 1; is_made && i < BYTES_BALLAST; i += 2) {
    is_made = syscall(SYS_mprotect, made + i * page, page, PROT_READ) == 0;
  }
  void *expected = NULL;
  const bool is_kept = is_made && __atomic_compare_exchange_n(&ballast, &expected, made, false,
                                                              __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  if (made != NULL && !is_kept) {
    (void)syscall(SYS_munmap, made, BYTES_BALLAST * page);
  }
  return is_made;
}

bool tarni_sim_bytes_map(void *address, uint64_t size, int file, uint64_t offset) {
  return !tarni_sim_store_strikes() && ballast_make() &&
         raw_mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset) ==
             address;
}

static bool reserve_again(void *address, uint64_t size) {
  return raw_mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                  -1, 0) == address;
}

/* The range stays reserved. */
bool tarni_sim_bytes_unmap(void *address, uint64_t size) {
  return !tarni_sim_store_strikes() &&
         (reserve_again(address, size) || (ballast_drop() && reserve_again(address, size)));
}

void tarni_sim_bytes_discard(int file, uint64_t offset, uint64_t size) {
  (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);
}

static bool transfer_piece(int from, off_t at, int to, off_t to_at, uint64_t size) {
  char buffer[16384];
  while (size != 0) {
    const size_t want = size < sizeof(buffer) ? (size_t)size : sizeof(buffer);
    const ssize_t got = pread(from, buffer, want, at);
    if (got <= 0 || pwrite(to, buffer, (size_t)got, to_at) != got) {
      return false;
    }
    at += got;
    to_at += got;
    size -= (uint64_t)got;
  }
  return true;
}

/* Copies a file's range to the start of another; what was never written is skipped. */
bool tarni_sim_bytes_transfer(int from, uint64_t offset, int to, uint64_t size) {
  const off_t first = (off_t)offset, end = (off_t)(offset + size);
  off_t at = tarni_sim_store_strikes() ? -1 : lseek(from, first, SEEK_DATA);
  if (at < 0) {
    return errno == ENXIO && !tarni_sim_store_has_failed(); /* nothing was ever written */
  }
  while (at >= 0 && at < end) {
    const off_t hole = lseek(from, at, SEEK_HOLE);
    const off_t stop = hole < 0 || hole > end ? end : hole;
    if (!transfer_piece(from, at, to, at - first, (uint64_t)(stop - at))) {
      return false;
    }
    at = lseek(from, stop, SEEK_DATA);
  }
  return true;
}

static void *pointer_of(tarn_ptr address) {
  return (void *)(uintptr_t)address;
}

/* Whether a byte of each of some pages can be read: the system tries it, so that no fault is to be
 * caught. Where it may not, whether they are there. */
static bool pages_are_readable(tarn_ptr first, uint64_t n, uint64_t page) {
  unsigned char bytes[BYTES_PAGES];
  struct iovec to = {.iov_base = bytes, .iov_len = n}, from[BYTES_PAGES];
  for (uint64_t i = 0; i < n; i++) {
    from[i] = (struct iovec){.iov_base = pointer_of(first + i * page), .iov_len = 1};
  }
  const ssize_t n_read = process_vm_readv(getpid(), &to, 1, from, n, 0);
  if (n_read < 0 && (errno == EPERM || errno == ENOSYS)) {
    return mincore(pointer_of(first), n * page, bytes) == 0;
  }
  return n_read == (ssize_t)n;
}

bool tarni_sim_bytes_is_host(tarn_ptr address, uint64_t size) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t end = 0;
  bool is_host = address != 0 && tarni_add(address, size, &end);
  for (uint64_t at = tarni_align_down(address, page); is_host && at < end;) {
    const uint64_t n = tarni_min((end - at - 1) / page + 1, BYTES_PAGES);
    is_host = pages_are_readable(at, n, page);
    at += n * page;
  }
  return is_host;
}

void tarni_sim_bytes_copy(tarn_ptr destination, tarn_ptr source, uint64_t size) {
  memmove(pointer_of(destination), pointer_of(source), size);
}

void tarni_sim_bytes_fill(tarn_ptr destination, uint8_t value, uint64_t size) {
  memset(pointer_of(destination), value, size);
}
