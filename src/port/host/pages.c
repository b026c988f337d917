/* SPDX-License-Identifier: MIT
 *
 * Memory of the operating system for the host port: reserved as addresses, filled with pages by
 * several threads at once, dropped again. How much there is: room.c.
 * Mappings are made by raw system calls: a sanitizer must not clear or walk its own shadow for
 * ranges of this size. Owns nothing, takes no lock. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bits.h"
#include "port/host/host.h"

enum {
  PAGES_MAX_THREADS = 16,
  PAGES_PIECE = 4 << 20, /* what a thread fills at a time */
  PAGES_BIND = 2,        /* MPOL_BIND */
  PAGES_MAX_NODES = 1024,
};

static void *raw_mmap(void *address, uint64_t size, int protection, int flags) {
  const long result = syscall(SYS_mmap, address, size, protection, flags, -1, (off_t)0);
  return result == -1 ? MAP_FAILED : (void *)(uintptr_t)result;
}

/* ---- Nodes ---- */

bool tarni_host_pages_has_node(uint32_t node) {
  char path[64];
  (void)snprintf(path, sizeof(path), "/sys/devices/system/node/node%u", node);
  return node < PAGES_MAX_NODES && (access(path, F_OK) == 0 || node == 0);
}

static bool pages_bind(void *address, uint64_t size, uint32_t node) {
  unsigned long mask[PAGES_MAX_NODES / (8 * sizeof(unsigned long))] = {0};
  const uint32_t bits = 8 * sizeof(mask[0]);
  mask[node / bits] = 1ul << (node % bits);
  return syscall(SYS_mbind, address, size, PAGES_BIND, mask, (unsigned long)PAGES_MAX_NODES, 0) ==
         0;
}

void *tarni_host_pages_one(uint64_t *size) {
  *size = (uint64_t)sysconf(_SC_PAGESIZE);
  void *page = raw_mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  return page != MAP_FAILED ? page : NULL;
}

bool tarni_host_pages_can_bind(uint32_t node) {
  uint64_t size;
  void *page = tarni_host_pages_one(&size);
  if (page == NULL) {
    return false;
  }
  const bool can = pages_bind(page, size, node);
  (void)tarni_host_pages_unreserve(page, size);
  return can;
}

/* ---- Addresses ---- */

static char *reserve_raw(uint64_t size) {
  void *address = raw_mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  return address != MAP_FAILED ? address : NULL;
}

/* More than is needed is reserved, and what is left over given back. */
void *tarni_host_pages_reserve(uint64_t size, uint64_t alignment) {
  uint64_t padded;
  char *address = tarni_add(size, alignment, &padded) ? reserve_raw(padded) : NULL;
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

bool tarni_host_pages_unreserve(void *address, uint64_t size) {
  return syscall(SYS_munmap, address, size) == 0;
}

bool tarni_host_pages_drop(void *address, uint64_t size) {
  return raw_mmap(address, size, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED) == address;
}

/* ---- Filling ---- */

typedef struct fill_work {
  char *address;
  uint64_t size, page;
  _Atomic uint64_t next; /* offset of the first piece that nobody has taken */
} fill_work;

/* A page is there once it was written to. Asking the system for many at a go (MADV_POPULATE_WRITE)
 * takes five times as long with sixteen threads: it keeps them from each other. */
static void *fill_some(void *user) {
  fill_work *work = user;
  for (;;) {
    const uint64_t start =
        atomic_fetch_add_explicit(&work->next, PAGES_PIECE, memory_order_relaxed);
    if (start >= work->size) {
      return NULL;
    }
    const uint64_t end = tarni_min(start + PAGES_PIECE, work->size);
    for (uint64_t at = start; at < end; at += work->page) {
      *(volatile char *)(work->address + at) = 0;
    }
  }
}

/* Threads that take no signals: those are for the program's own. */
static uint32_t threads_start(pthread_t *threads, uint32_t n, fill_work *work) {
  sigset_t all, before;
  (void)sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) {
    return 0;
  }
  uint32_t n_started = 0;
  while (n_started < n && pthread_create(&threads[n_started], NULL, fill_some, work) == 0) {
    n_started++;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  return n_started;
}

/* The caller works, too: it is enough where no thread can be had. */
static void fill_all(void *address, uint64_t size) {
  fill_work work = {.address = address, .size = size, .page = (uint64_t)sysconf(_SC_PAGESIZE)};
  const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
  const uint64_t n_pieces = (size + PAGES_PIECE - 1) / PAGES_PIECE;
  const uint64_t n_wanted =
      tarni_min(tarni_min(n_pieces, n_cores > 0 ? (uint64_t)n_cores : 1), PAGES_MAX_THREADS);
  pthread_t threads[PAGES_MAX_THREADS];
  const uint32_t n = threads_start(threads, (uint32_t)n_wanted - 1, &work);
  (void)fill_some(&work);
  for (uint32_t i = 0; i < n; i++) {
    (void)pthread_join(threads[i], NULL);
  }
}

host_pages_result tarni_host_pages_fill(void *address, uint64_t size,
                                        const tarni_host_config *config) {
  /* Where memory runs out under a page that is written to, the system ends a process. */
  if (!tarni_host_room_has(size, config)) {
    return HOST_PAGES_SHORT;
  }
  if (raw_mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED) !=
      address) {
    (void)tarni_host_pages_drop(address, size); /* an old system has given up what was there */
    return HOST_PAGES_SHORT;
  }
  if (config->has_node && !pages_bind(address, size, config->node)) {
    (void)tarni_host_pages_drop(address, size);
    return HOST_PAGES_REFUSED;
  }
  if (!config->has_small_pages) {
    (void)madvise(address, size, MADV_HUGEPAGE); /* faster where it is allowed */
  }
  /* A child would share pages that the device reads and writes behind its parent's back. */
  (void)madvise(address, size, MADV_DONTFORK);
  fill_all(address, size);
  return HOST_PAGES_OK;
}
