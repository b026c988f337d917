/* SPDX-License-Identifier: MIT
 *
 * The bytes behind the simulated memory: a sparse memory file per device, mapped at real addresses,
 * so that mapping, aliasing, unmapping and faults are real. The only file of the simulated GPU that
 * talks to the operating system or touches simulated memory. Memory that was never written costs
 * nothing. Mappings are made by raw system calls: a sanitizer must not clear or walk its own shadow
 * for ranges of this size. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bits.h"
#include "port/sim/sim.h"

static void *raw_mmap(void *address, uint64_t size, int protection, int flags, int file,
                      uint64_t offset) {
  const long result = syscall(SYS_mmap, address, size, protection, flags, file, (off_t)offset);
  return result == -1 ? MAP_FAILED : (void *)(uintptr_t)result;
}

int tarni_sim_bytes_file(void) {
  return memfd_create("tarn-sim", MFD_CLOEXEC);
}

bool tarni_sim_bytes_grow(int file, uint64_t size) {
  return size <= INT64_MAX && ftruncate(file, (off_t)size) == 0;
}

void *tarni_sim_bytes_reserve(uint64_t size, uint64_t alignment) {
  uint64_t padded;
  if (!tarni_add(size, alignment, &padded)) {
    return NULL;
  }
  char *address =
      raw_mmap(NULL, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
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

bool tarni_sim_bytes_unreserve(void *address, uint64_t size) {
  return syscall(SYS_munmap, address, size) == 0;
}

bool tarni_sim_bytes_map(void *address, uint64_t size, int file, uint64_t offset) {
  return raw_mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset) ==
         address;
}

/* The range stays reserved. */
bool tarni_sim_bytes_unmap(void *address, uint64_t size) {
  return raw_mmap(address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                  -1, 0) == address;
}

void tarni_sim_bytes_discard(int file, uint64_t offset, uint64_t size) {
  (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);
}

/* Copies a file's range to the start of another, through a mapping of each. */
bool tarni_sim_bytes_transfer(int from, uint64_t offset, int to, uint64_t size) {
  void *source = raw_mmap(NULL, size, PROT_READ, MAP_SHARED, from, offset);
  void *destination = raw_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, to, 0);
  const bool is_good = source != MAP_FAILED && destination != MAP_FAILED;
  if (is_good) {
    memcpy(destination, source, size);
  }
  if (source != MAP_FAILED) {
    (void)syscall(SYS_munmap, source, size);
  }
  if (destination != MAP_FAILED) {
    (void)syscall(SYS_munmap, destination, size);
  }
  return is_good;
}

static void *pointer_of(tarn_ptr address) {
  return (void *)(uintptr_t)address;
}

bool tarni_sim_bytes_is_host(tarn_ptr address, uint64_t size) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  const uint64_t first = tarni_align_down(address, page);
  return address != 0 && msync(pointer_of(first), address + size - first, MS_ASYNC) == 0;
}

void tarni_sim_bytes_copy(tarn_ptr destination, tarn_ptr source, uint64_t size) {
  memmove(pointer_of(destination), pointer_of(source), size);
}

void tarni_sim_bytes_fill(tarn_ptr destination, uint8_t value, uint64_t size) {
  memset(pointer_of(destination), value, size);
}
