/* SPDX-License-Identifier: MIT
 *
 * Memory of the simulated GPU: the bytes, the mappings and the faults are real; capacity costs
 * nothing until it is written; no size or address is too large to be refused. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "port/port.h"
#include "port/sim/types.h"
#include "support/test.h"
#include "tarn/sim.h"

static const uint64_t granule = 2 << 20;
static const uint64_t gib = (uint64_t)1 << 30;
static const uint64_t tib = (uint64_t)1 << 40;

static tarn_device *device;
static tarni_port *port;
static int n_findings;

static void on_finding(const tarn_sim_finding *finding, void *user) {
  int *n = user;
  ++*n;
  test_note("found: %s", finding->message);
}

static bool open_device(const char *name) {
  n_findings = 0;
  const bool is_open = CHECK_OK(tarn_device_open(name, &device));
  port = (tarni_port *)device;
  return is_open && CHECK_OK(tarn_sim_set_on_finding(device, on_finding, &n_findings));
}

static void close_device(int want_findings) {
  tarn_device_close(device);
  CHECK_EQ(n_findings, want_findings);
}

static volatile uint8_t *bytes_at(tarn_ptr address) {
  return (volatile uint8_t *)(uintptr_t)address;
}

/* Whether a child that touches the byte dies of it. */
static bool touching_faults(tarn_ptr address) {
  (void)fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    (void)signal(SIGSEGV, SIG_DFL);
    (void)signal(SIGBUS, SIG_DFL);
    (void)*bytes_at(address);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void aliases_share_bytes(void) {
  tarn_ptr base;
  tarni_chunk chunk;
  REQUIRE(open_device("sim:1G"));
  REQUIRE_OK(tarni_port_reserve(port, 4 * granule, 0, &base));
  REQUIRE_OK(tarni_port_create(port, granule, &chunk));
  REQUIRE_OK(tarni_port_map(port, base, granule, chunk));
  REQUIRE_OK(tarni_port_map(port, base + 2 * granule, granule, chunk));
  REQUIRE_OK(tarni_port_access(port, base, granule));
  REQUIRE_OK(tarni_port_access(port, base + 2 * granule, granule));
  bytes_at(base)[77] = 42;
  CHECK_EQ(bytes_at(base + 2 * granule)[77], 42);
  CHECK_OK(tarni_port_fill_sync(port, base + 2 * granule + 100, 9, 50));
  CHECK_EQ(bytes_at(base)[100], 9);
  CHECK_EQ(bytes_at(base)[149], 9);
  CHECK_EQ(bytes_at(base)[150], 0);
  /* The chunk is released; its bytes live on at their last address. */
  CHECK_OK(tarni_port_release(port, chunk));
  CHECK_OK(tarni_port_unmap(port, base, granule));
  CHECK_EQ(bytes_at(base + 2 * granule)[77], 42);
  tarn_sim_state state = {.size = sizeof(state)};
  CHECK_OK(tarn_sim_get_state(device, &state));
  CHECK_EQ(state.created_bytes, granule);
  CHECK_EQ(state.mapped_bytes, granule);
  CHECK_OK(tarni_port_unmap(port, base + 2 * granule, granule));
  CHECK_OK(tarn_sim_get_state(device, &state));
  CHECK_EQ(state.created_bytes, 0);
  CHECK_EQ(state.mapped_bytes, 0);
  CHECK_OK(tarni_port_unreserve(port, base, 4 * granule));
  close_device(0);
}

static void what_is_not_there_faults(void) {
  tarn_ptr base, plain;
  tarni_chunk chunk;
  void *pinned;
  REQUIRE(open_device("sim:1G"));
  REQUIRE_OK(tarni_port_reserve(port, 2 * granule, 0, &base));
  REQUIRE_OK(tarni_port_create(port, granule, &chunk));
  CHECK(touching_faults(base));
  CHECK_OK(tarni_port_map(port, base, granule, chunk));
  CHECK(touching_faults(base)); /* mapped, but no access yet */
  CHECK_OK(tarni_port_access(port, base, granule));
  CHECK(!touching_faults(base));
  CHECK(!touching_faults(base + granule - 1));
  CHECK(touching_faults(base + granule));
  CHECK_OK(tarni_port_unmap(port, base, granule));
  CHECK(touching_faults(base));
  CHECK_OK(tarni_port_release(port, chunk));
  CHECK_OK(tarni_port_unreserve(port, base, 2 * granule));
  REQUIRE_OK(tarni_port_plain_alloc(port, 10000, &plain));
  CHECK(!touching_faults(plain + 9999));
  CHECK_OK(tarni_port_plain_free(port, plain));
  CHECK(touching_faults(plain));
  REQUIRE_OK(tarni_port_host_alloc(port, 4096, 0, &pinned));
  CHECK(!touching_faults((uintptr_t)pinned));
  CHECK_OK(tarni_port_host_free(port, pinned));
  CHECK(touching_faults((uintptr_t)pinned));
  close_device(0);
}

/* New memory is what a chunk of its own would be: nothing of an earlier owner shows. */
static void new_memory_is_empty(void) {
  tarn_ptr first, second;
  REQUIRE(open_device("sim:1G"));
  REQUIRE_OK(tarni_port_plain_alloc(port, 8192, &first));
  CHECK_OK(tarni_port_fill_sync(port, first, 0x5a, 8192));
  CHECK_OK(tarni_port_plain_free(port, first));
  REQUIRE_OK(tarni_port_plain_alloc(port, 8192, &second));
  CHECK_EQ(bytes_at(second)[0], 0);
  CHECK_EQ(bytes_at(second)[8191], 0);
  CHECK_OK(tarni_port_plain_free(port, second));
  close_device(0);
}

/* ---- Capacity ---- */

static void map_terabytes(uint64_t chunk_bytes, uint64_t total, tarn_ptr base) {
  for (uint64_t at = 0; at < total; at += chunk_bytes) {
    tarni_chunk chunk;
    CHECK_OK(tarni_port_create(port, chunk_bytes, &chunk));
    CHECK_OK(tarni_port_map(port, base + at, chunk_bytes, chunk));
    CHECK_OK(tarni_port_access(port, base + at, chunk_bytes));
    CHECK_OK(tarni_port_release(port, chunk));
    CHECK_OK(tarni_port_fill_sync(port, base + at + chunk_bytes / 2, 1, 4096));
    CHECK_OK(tarn_sim_own(device, base + at + chunk_bytes - 100, 100, 3));
  }
}

static void capacity_costs_nothing(void) {
  const uint64_t total = 8 * tib;
  tarn_ptr base;
  REQUIRE(open_device("sim:64T"));
  const uint64_t before = test_resident_bytes();
  const tarn_status status = tarni_port_reserve(port, total, 0, &base);
  if (status == TARN_ADDRESS_SPACE) {
    test_skip("this process has not enough addresses (a sanitizer, or ulimit -v)");
    close_device(0);
    return;
  }
  REQUIRE_OK(status);
  map_terabytes(tib, total, base);
  tarn_sim_state state = {.size = sizeof(state)};
  CHECK_OK(tarn_sim_get_state(device, &state));
  CHECK_EQ(state.created_bytes, total);
  CHECK_EQ(state.mapped_bytes, total);
  CHECK_EQ(bytes_at(base + tib / 2)[4095], 1);
  CHECK_EQ(bytes_at(base + tib / 2)[4096], 0);
  CHECK(test_resident_bytes() - before < 16 << 20);
  CHECK_OK(tarni_port_unmap(port, base, total));
  CHECK_OK(tarni_port_unreserve(port, base, total));
  close_device(0);
}

/* When nothing is left in the device's file it begins anew, and empty: it never comes to its end.
 */
static void memory_comes_and_goes(void) {
  enum { N = 4 };
  tarn_ptr plain;
  tarni_chunk chunks[N];
  int descriptor;
  REQUIRE(open_device("sim:1024T"));
  const sim_device *sim = (const sim_device *)device;
  for (int i = 0; i < 3; i++) {
    CHECK_EQ(sim->file_end, 0);
    REQUIRE_OK(tarni_port_plain_alloc(port, granule, &plain));
    CHECK_EQ(bytes_at(plain)[4095], 0);
    CHECK_OK(tarni_port_fill_sync(port, plain, 7, granule));
    for (int k = 0; k < N; k++) {
      REQUIRE_OK(tarni_port_create(port, tib, &chunks[k]));
    }
    CHECK_OK(tarni_port_plain_free(port, plain));
    CHECK(sim->file_end >= N * tib);
    /* One of them leaves the file as it is exported. */
    REQUIRE_OK(tarni_port_export(port, chunks[i], &descriptor));
    for (int k = 0; k < N; k++) {
      CHECK_OK(tarni_port_release(port, chunks[(k + i) % N]));
    }
    (void)close(descriptor);
  }
  CHECK_EQ(sim->file_end, 0);
  close_device(0);
}

static void capacity_is_kept(void) {
  tarni_chunk chunks[4], one_more;
  uint64_t free_bytes, total_bytes;
  tarn_ptr plain;
  REQUIRE(open_device("sim:8M"));
  for (int i = 0; i < 4; i++) {
    CHECK_OK(tarni_port_create(port, granule, &chunks[i]));
  }
  CHECK_STATUS(tarni_port_create(port, granule, &one_more), TARN_DEVICE_MEMORY);
  CHECK_EQ(one_more, 0);
  tarn_error error = {.size = sizeof(error)};
  CHECK_EQ(tarn_last_error(&error), TARN_DEVICE_MEMORY);
  CHECK_EQ(error.requested_bytes, granule);
  CHECK_EQ(error.available_bytes, 0);
  CHECK_STATUS(tarni_port_plain_alloc(port, 1, &plain), TARN_DEVICE_MEMORY);
  CHECK_OK(tarni_port_release(port, chunks[3]));
  CHECK_OK(tarni_port_info(port, &free_bytes, &total_bytes));
  CHECK_EQ(free_bytes, granule);
  CHECK_EQ(total_bytes, 8 << 20);
  CHECK_OK(tarni_port_plain_alloc(port, 1, &plain));
  CHECK_OK(tarni_port_plain_free(port, plain));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarni_port_release(port, chunks[i]));
  }
  close_device(0);
}

/* ---- Wrong sizes and addresses ---- */

static void huge_sizes_are_refused(void) {
  static const uint64_t sizes[] = {UINT64_MAX,           UINT64_MAX - 4094,
                                   UINT64_MAX - granule, (uint64_t)1 << 63,
                                   (uint64_t)1 << 52,    UINT64_MAX & ~(uint64_t)(granule - 1)};
  tarn_ptr plain, address;
  tarni_chunk chunk;
  tarni_pool pool;
  void *pinned;
  REQUIRE(open_device("sim:1G"));
  REQUIRE_OK(tarni_port_plain_alloc(port, 4096, &plain));
  REQUIRE_OK(tarni_port_pool_create(port, 0, &pool));
  for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
    const uint64_t size = sizes[i];
    CHECK(tarni_port_create(port, size, &chunk) != TARN_OK && chunk == 0);
    CHECK(tarni_port_reserve(port, size, 0, &address) != TARN_OK && address == 0);
    CHECK(tarni_port_plain_alloc(port, size, &address) == TARN_DEVICE_MEMORY && address == 0);
    CHECK(tarni_port_host_alloc(port, size, 0, &pinned) == TARN_HOST_MEMORY && pinned == NULL);
    CHECK(tarni_port_pool_alloc(port, pool, size, NULL, &address) != TARN_OK && address == 0);
    CHECK(tarni_port_host_register(port, &pinned, size) != TARN_OK);
    CHECK(tarni_port_fill(port, plain, 1, size, NULL) != TARN_OK);
    CHECK(tarni_port_copy(port, plain, plain, size, NULL) != TARN_OK);
    CHECK(tarni_port_copy_sync(port, plain, (uintptr_t)&pinned, size) != TARN_OK);
    CHECK(tarni_port_map(port, plain & ~(uint64_t)(granule - 1), size, 1) != TARN_OK);
    CHECK(tarni_port_access(port, granule, size) != TARN_OK);
    CHECK(tarni_port_unmap(port, granule, size) != TARN_OK);
    CHECK(tarni_port_unreserve(port, granule, size) != TARN_OK);
    CHECK_STATUS(tarn_sim_own(device, plain, size, 1), TARN_RANGE);
    CHECK_STATUS(tarn_sim_disown(device, plain, size), TARN_RANGE);
  }
  n_findings = 0;
  CHECK_OK(tarni_port_pool_destroy(port, pool));
  CHECK_OK(tarni_port_plain_free(port, plain));
  close_device(0);
}

/* A kernel whose range wraps around uses memory that is not there. */
static void kernel_range_wraps(void) {
  tarn_ptr plain;
  REQUIRE(open_device("sim:1G"));
  REQUIRE_OK(tarni_port_plain_alloc(port, 4096, &plain));
  const tarn_sim_range range = {.address = plain, .bytes = UINT64_MAX};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  CHECK_OK(tarn_sim_launch(device, &kernel, NULL));
  CHECK_EQ(n_findings, 1);
  CHECK_STATUS(tarni_port_stream_sync(port, NULL), TARN_DEVICE_LOST);
  close_device(1);
}

/* A range without bytes uses nothing, alone or beside another. */
static void empty_ranges(void) {
  tarn_ptr base;
  tarni_chunk chunk;
  REQUIRE(open_device("sim:1G,order=lazy"));
  REQUIRE_OK(tarni_port_create(port, granule, &chunk));
  REQUIRE_OK(tarni_port_reserve(port, granule, 0, &base));
  for (size_t n = 1; n <= 2; n++) {
    const tarn_sim_range ranges[2] = {{.address = base}, {.address = base}};
    const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = ranges, .n_ranges = n};
    REQUIRE_OK(tarni_port_map(port, base, granule, chunk));
    REQUIRE_OK(tarni_port_access(port, base, granule));
    CHECK_OK(tarn_sim_launch(device, &kernel, NULL));
    CHECK_OK(tarni_port_unmap(port, base, granule));
  }
  CHECK_OK(tarni_port_stream_sync(port, NULL));
  CHECK_OK(tarni_port_unreserve(port, base, granule));
  CHECK_OK(tarni_port_release(port, chunk));
  close_device(0);
}

/* Host memory that cannot be read is refused, wherever in the range it is. */
static void host_memory_that_cannot_be_read(void) {
  tarn_ptr block;
  char *memory = mmap(NULL, 12288, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED && mprotect(memory + 4096, 4096, PROT_NONE) == 0);
  const tarn_ptr source = (uintptr_t)memory;
  REQUIRE(open_device("sim:1G"));
  REQUIRE_OK(tarni_port_plain_alloc(port, 16384, &block));
  CHECK_OK(tarni_port_copy(port, block, source, 4096, NULL));
  CHECK_OK(tarni_port_copy(port, block, source + 8192, 4096, NULL));
  CHECK_STATUS(tarni_port_copy(port, block, source + 4095, 2, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_copy_sync(port, block, source, 12288), TARN_INVALID);
  CHECK_STATUS(tarni_port_copy(port, source + 4096, block, 1, NULL), TARN_INVALID);
  CHECK_STATUS(tarni_port_host_register(port, memory, 12288), TARN_INVALID);
  CHECK_OK(tarni_port_plain_free(port, block));
  close_device(3);
  CHECK(munmap(memory, 12288) == 0);
}

/* Ordinary memory that runs into registered memory: what is registered is watched. The host reads
 * it at once, so an order between the streams is not enough; and it has read it when the call is
 * over. */
static void copies_into_registered_memory(void) {
  static uint8_t memory[16384] __attribute__((aligned(4096)));
  const tarn_ptr all = (uintptr_t)memory, half = sizeof(memory) / 2;
  const tarn_sim_range range = {.address = all + half, .bytes = half, .is_write = true};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  tarn_stream stream, other;
  tarni_event event;
  tarn_ptr block;
  REQUIRE(open_device("sim:1G,order=lazy"));
  REQUIRE_OK(tarni_port_stream_create(port, &stream));
  REQUIRE_OK(tarni_port_stream_create(port, &other));
  REQUIRE_OK(tarni_port_event_create(port, &event));
  REQUIRE_OK(tarni_port_plain_alloc(port, sizeof(memory), &block));
  REQUIRE_OK(tarni_port_host_register(port, memory + half, half));
  CHECK_OK(tarn_sim_launch(device, &kernel, other));
  CHECK_OK(tarni_port_copy(port, block, all, half, stream));
  CHECK_EQ(n_findings, 0);
  CHECK_OK(tarni_port_copy(port, block, all, sizeof(memory), stream));
  CHECK_EQ(n_findings, 1);
  CHECK_OK(tarni_port_copy(port, all, block, sizeof(memory), stream));
  CHECK_EQ(n_findings, 2);
  CHECK_OK(tarn_sim_launch(device, &kernel, other));
  CHECK_OK(tarni_port_event_record(port, event, other));
  CHECK_OK(tarni_port_event_wait(port, stream, event));
  CHECK_OK(tarni_port_copy(port, block, all, sizeof(memory), stream));
  CHECK_EQ(n_findings, 3);
  CHECK_OK(tarni_port_stream_sync(port, other));
  memory[half] = 9;
  CHECK_OK(tarni_port_copy(port, block, all, sizeof(memory), stream));
  CHECK_OK(tarn_sim_launch(device, &kernel, other));
  CHECK_OK(tarni_port_stream_sync(port, stream));
  CHECK_EQ(bytes_at(block + half)[0], 9);
  CHECK_OK(tarni_port_stream_sync(port, other));
  CHECK_OK(tarni_port_host_unregister(port, memory + half));
  CHECK_OK(tarni_port_plain_free(port, block));
  CHECK_OK(tarni_port_event_destroy(port, event));
  CHECK_OK(tarni_port_stream_destroy(port, stream));
  CHECK_OK(tarni_port_stream_destroy(port, other));
  close_device(3);
}

/* Two reservations side by side are two: a range may not reach over both. */
static void ranges_over_two_reservations(void) {
  enum { N = 64 };
  tarn_ptr bases[N];
  tarni_chunk chunk;
  REQUIRE(open_device("sim:1G,granularity=4K"));
  REQUIRE_OK(tarni_port_create(port, 4096, &chunk));
  for (int i = 0; i < N; i++) {
    REQUIRE_OK(tarni_port_reserve(port, 4096, 0, &bases[i]));
    CHECK_OK(tarni_port_map(port, bases[i], 4096, chunk));
    CHECK_OK(tarni_port_access(port, bases[i], 4096));
  }
  int n_pairs = 0;
  for (int i = 0; i < N * N; i++) {
    const tarn_ptr low = bases[i / N], high = bases[i % N];
    if (high == low + 4096) {
      n_pairs++;
      CHECK_STATUS(tarni_port_unmap(port, low, 8192), TARN_INVALID);
      CHECK_STATUS(tarni_port_access(port, low, 8192), TARN_INVALID);
      CHECK_STATUS(tarni_port_unreserve(port, low, 8192), TARN_INVALID);
      CHECK_OK(tarni_port_fill(port, low, 1, 8192, NULL)); /* using both at once is no mistake */
    }
  }
  CHECK(n_pairs > 0);
  CHECK_EQ(n_findings, 3 * n_pairs);
  n_findings = 0;
  CHECK_OK(tarni_port_stream_sync(port, NULL));
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarni_port_unmap(port, bases[i], 4096));
    CHECK_OK(tarni_port_unreserve(port, bases[i], 4096));
  }
  CHECK_OK(tarni_port_release(port, chunk));
  close_device(0);
}

/* ---- Sharing ---- */

static void exported_memory_is_the_same(void) {
  tarn_device *other;
  tarn_ptr here, there;
  tarni_chunk chunk, twin;
  int descriptor, n_other = 0;
  REQUIRE(open_device("sim:4G,id=1"));
  REQUIRE_OK(tarn_device_open("sim:4G,id=2", &other));
  tarni_port *other_port = (tarni_port *)other;
  CHECK_OK(tarn_sim_set_on_finding(other, on_finding, &n_other));
  REQUIRE_OK(tarni_port_create(port, gib, &chunk));
  REQUIRE_OK(tarni_port_reserve(port, gib, 0, &here));
  REQUIRE_OK(tarni_port_map(port, here, gib, chunk));
  REQUIRE_OK(tarni_port_access(port, here, gib));
  CHECK_OK(tarni_port_fill_sync(port, here + gib - 4096, 7, 4096));
  const uint64_t before = test_resident_bytes();
  REQUIRE_OK(tarni_port_export(port, chunk, &descriptor));
  CHECK(test_resident_bytes() < before + (4 << 20)); /* only what was written has moved */
  CHECK_EQ(bytes_at(here + gib - 4096)[4095], 7);
  REQUIRE_OK(tarni_port_import(other_port, descriptor, &twin));
  (void)close(descriptor);
  REQUIRE_OK(tarni_port_reserve(other_port, gib, 0, &there));
  REQUIRE_OK(tarni_port_map(other_port, there, gib, twin));
  REQUIRE_OK(tarni_port_access(other_port, there, gib));
  CHECK_EQ(bytes_at(there + gib - 1)[0], 7);
  /* The oracle knows that both are the same memory: these two fills race. */
  CHECK_OK(tarni_port_fill(port, here, 1, 64, NULL));
  CHECK_OK(tarni_port_fill(other_port, there, 2, 64, NULL));
  CHECK_EQ(n_other, 1);
  n_other = 0;
  CHECK_OK(tarni_port_stream_sync(port, NULL));
  CHECK_OK(tarni_port_stream_sync(other_port, NULL));
  CHECK_OK(tarni_port_unmap(other_port, there, gib));
  CHECK_OK(tarni_port_unreserve(other_port, there, gib));
  CHECK_OK(tarni_port_release(other_port, twin));
  tarn_device_close(other);
  CHECK_EQ(n_other, 0);
  CHECK_OK(tarni_port_unmap(port, here, gib));
  CHECK_OK(tarni_port_unreserve(port, here, gib));
  CHECK_OK(tarni_port_release(port, chunk));
  close_device(0);
}

/* ---- A process that has all mappings it may have ---- */

enum { MAX_MAPPINGS = 1 << 17, MAX_PAGES = 64 };

static uint64_t mappings_allowed(void) {
  char text[32];
  FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
  const bool is_read = file != NULL && fgets(text, sizeof(text), file) != NULL;
  if (file != NULL) {
    (void)fclose(file);
  }
  return is_read ? strtoull(text, NULL, 10) : UINT64_MAX;
}

/* Maps a chunk at every other granule as long as that works. Returns how often it did. */
static uint64_t map_until_refused(tarn_ptr base, uint64_t n_most, tarni_chunk chunk) {
  uint64_t n = 0;
  for (tarn_status status = TARN_OK; status == TARN_OK && n < n_most;) {
    const tarn_ptr at = base + 2 * n * granule;
    CHECK_OK(tarni_port_map(port, at, granule, chunk));
    status = tarni_port_access(port, at, granule);
    if (status == TARN_OK) {
      n++;
    } else {
      CHECK_STATUS(status, TARN_HOST_MEMORY);
      CHECK_OK(tarni_port_unmap(port, at, granule));
    }
  }
  return n;
}

/* Takes what mappings are left, each unlike the one before, so that no two become one. */
static int take_the_rest(void *pages[MAX_PAGES]) {
  for (int n = 0; n < MAX_PAGES; n++) {
    const int protection = n % 2 == 0 ? PROT_READ : PROT_NONE;
    pages[n] = mmap(NULL, (size_t)getpagesize(), protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages[n] == MAP_FAILED) {
      return n;
    }
  }
  return MAX_PAGES;
}

static void unmapping_takes_no_mapping(void) {
  const uint64_t n_most = mappings_allowed() / 2 + 2;
  void *pages[MAX_PAGES];
  tarn_ptr base;
  tarni_chunk chunk;
  if (n_most > MAX_MAPPINGS) {
    test_skip("the process may have too many mappings to take them all (vm.max_map_count)");
    return;
  }
  if (!test_has_addresses(2 * n_most * granule)) {
    return;
  }
  REQUIRE(open_device("sim:1G"));
  REQUIRE_OK(tarni_port_create(port, granule, &chunk));
  REQUIRE_OK(tarni_port_reserve(port, 2 * n_most * granule, 0, &base));
  const uint64_t n = map_until_refused(base, n_most, chunk);
  const int n_pages = take_the_rest(pages);
  uint64_t n_unmapped = 0;
  for (uint64_t i = 0; i < n; i++) {
    n_unmapped += tarni_port_unmap(port, base + 2 * i * granule, granule) == TARN_OK;
  }
  for (int i = 0; i < n_pages; i++) {
    (void)munmap(pages[i], (size_t)getpagesize());
  }
  CHECK(n < n_most);
  CHECK(n_pages < MAX_PAGES);
  CHECK_EQ(n_unmapped, n);
  CHECK_OK(tarni_port_unreserve(port, base, 2 * n_most * granule));
  CHECK_OK(tarni_port_release(port, chunk));
  close_device(0);
}

static const test_case cases[] = {
    {"aliases share bytes", aliases_share_bytes},
    {"what is not there faults", what_is_not_there_faults},
    {"new memory is empty", new_memory_is_empty},
    {"capacity costs nothing", capacity_costs_nothing},
    {"memory comes and goes", memory_comes_and_goes},
    {"capacity is kept", capacity_is_kept},
    {"huge sizes are refused", huge_sizes_are_refused},
    {"a kernel's range wraps", kernel_range_wraps},
    {"empty ranges", empty_ranges},
    {"host memory that cannot be read", host_memory_that_cannot_be_read},
    {"copies into registered memory", copies_into_registered_memory},
    {"ranges over two reservations", ranges_over_two_reservations},
    {"exported memory is the same", exported_memory_is_the_same},
    {"unmapping takes no mapping", unmapping_takes_no_mapping},
};

TEST_MAIN(cases)
