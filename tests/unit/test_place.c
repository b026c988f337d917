/* SPDX-License-Identifier: MIT
 *
 * Places: a chunk's home stays what it is, and so does every other place where it was mapped until
 * addresses or mappings are short, or the chunk goes. A program that repeats itself makes no driver
 * call in the end. */
#include <unistd.h>

#include "base/rng.h"
#include "internal.h"
#include "support/rig.h"
#include "support/test.h"

enum { MIB = 1 << 20, N_BLOCKS = 24 };

/* Blocks of random sizes come and go, the same ones for the same seed. `live` bounds their sum. */
static void run_program(rig *r, uint64_t seed, int n_steps, uint64_t live, int n_streams) {
  tarni_rng rng = {seed};
  rig_block blocks[N_BLOCKS] = {{0}};
  tarn_stream streams[N_BLOCKS] = {NULL};
  uint64_t sum = 0;
  for (int step = 0; step < n_steps; step++) {
    const uint64_t at = tarni_rng_below(&rng, N_BLOCKS);
    rig_block *block = &blocks[at];
    const uint64_t bytes = (1 + tarni_rng_below(&rng, 60)) * (MIB / 4) * 5;
    tarn_stream stream = r->streams[tarni_rng_below(&rng, (uint64_t)n_streams)];
    if (block->address != 0) {
      sum -= block->bytes;
      CHECK_OK(rig_free(r, block, streams[at]));
    } else if (sum + bytes <= live) {
      CHECK_OK(rig_alloc(r, bytes, stream, block));
      streams[at] = stream;
      sum += block->bytes;
    }
  }
  for (int i = 0; i < N_BLOCKS; i++) {
    if (blocks[i].address != 0) {
      CHECK_OK(rig_free(r, &blocks[i], streams[i]));
    }
  }
}

static void repeats_without_calls(void) {
  const tarn_heap_config config = {.size = sizeof(config), .stealing = TARN_STEAL_ALWAYS};
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", &config, 1));
  uint64_t first = 0, last = 0;
  for (int pass = 0; pass < 12; pass++) {
    const uint64_t calls = rig_calls(&r);
    run_program(&r, 5, 400, (uint64_t)256 * MIB, 1);
    last = rig_calls(&r) - calls;
    first = pass == 0 ? last : first;
    CHECK(rig_is_sound(&r));
  }
  CHECK(first != 0);
  CHECK(last * 50 <= first); /* the kernels that use the blocks are no driver calls */
  CHECK(rig_stats(&r).reserved_peak_bytes <= (uint64_t)280 * MIB);
  rig_close(&r);
}

/* A block, or as much in small ones, comes and goes. */
static void fill_once(rig *r, bool is_large) {
  enum { SMALL = 500 << 10, N_SMALL = 112 };
  static rig_block blocks[N_SMALL];
  const int n = is_large ? 1 : N_SMALL;
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_alloc(r, is_large ? 56 * MIB : SMALL, r->streams[0], &blocks[i]));
  }
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
  rig_collect(r);
}

/* Chunks that have their home among large blocks, or among small ones; all of them are idle. */
static uint64_t idle_in_zone(rig *r, bool is_large) {
  uint64_t n = 0;
  tarni_lock_acquire(&r->heap->lock);
  const uint64_t small_units = tarni_unit_of(r->heap, r->heap->small_end);
  for (tarni_index i = 1; i < r->heap->n_chunks; i++) {
    const tarni_phys *chunk = &r->heap->chunks[i];
    if (chunk->places != 0) {
      CHECK_EQ(chunk->n_used, 0);
      n += (chunk->first_unit >= small_units) == is_large;
    }
  }
  tarni_lock_release(&r->heap->lock);
  return n;
}

/* Bytes that are lent. */
static uint64_t lent_bytes(rig *r) {
  uint64_t bytes = 0;
  tarni_lock_acquire(&r->heap->lock);
  for (uint32_t zone = 0; zone < TARNI_ZONES; zone++) {
    for (tarni_index i = r->heap->zones[zone].head; i != 0; i = r->heap->extents[i].next) {
      const tarni_extent *extent = &r->heap->extents[i];
      bytes += extent->kind == TARNI_EXTENT_LENT ? extent->size : 0;
    }
  }
  tarni_lock_release(&r->heap->lock);
  return bytes;
}

/* What small blocks had for a while large ones find again where they left it, and the other way:
 * next to no memory is made for it, and it stays at home. */
static void lend_to_the_other_zone(bool is_large) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 64 * MIB};
  rig r;
  REQUIRE(rig_open(&r, "sim:1G", &config, 1));
  fill_once(&r, is_large);
  const uint64_t n = idle_in_zone(&r, is_large);
  CHECK(n != 0);
  CHECK_EQ(r.heap->n_aliases, 0);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 56 * MIB);
  fill_once(&r, !is_large);
  CHECK(r.heap->n_aliases != 0);
  CHECK(rig_stats(&r).reserved_bytes <= 64 * MIB);
  CHECK_EQ(idle_in_zone(&r, is_large), n);
  CHECK_EQ(lent_bytes(&r), 0);
  CHECK(rig_is_sound(&r));
  const uint64_t calls = rig_calls(&r);
  for (int i = 0; i < 4; i++) {
    fill_once(&r, is_large == (i % 2 == 0));
  }
  CHECK_EQ(rig_calls(&r), calls); /* both find it where they had it */
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void lent_between_zones(void) {
  lend_to_the_other_zone(true);
  lend_to_the_other_zone(false);
}

enum { N_HOMES = 1024 };

/* The home of each chunk, and its size: 0 where there is none. */
static void homes_note(const rig *r, uint64_t homes[N_HOMES]) {
  for (tarni_index i = 1; i < N_HOMES; i++) {
    const tarni_phys *chunk = &r->heap->chunks[i];
    const bool is_there = i < r->heap->n_chunks && chunk->places != 0;
    homes[i] = is_there ? (uint64_t)chunk->first_unit << 32 | chunk->n_units : 0;
  }
}

/* Whatever is mapped elsewhere in the meantime, and used there: a chunk has the home that it was
 * made at until it goes, and all its places go with it. */
static void homes_stay(void) {
  static uint64_t before[N_HOMES], after[N_HOMES];
  rig r;
  uint32_t n_chunks = 0, n_several = 0;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 1));
  for (uint64_t seed = 0; seed < 12; seed++) {
    homes_note(&r, before);
    run_program(&r, seed, 100, (uint64_t)200 * MIB, 1);
    homes_note(&r, after);
    for (tarni_index i = 1; i < N_HOMES; i++) {
      CHECK(before[i] == 0 || after[i] == before[i]);
    }
  }
  rig_collect(&r);
  REQUIRE(r.heap->n_chunks < N_HOMES);
  for (tarni_index i = 1; i < r.heap->n_chunks; i++) {
    const tarni_phys *chunk = &r.heap->chunks[i];
    n_chunks += chunk->places != 0;
    n_several += chunk->n_mapped > 1;
  }
  CHECK(n_several > n_chunks / 2 && r.heap->n_aliases >= n_several);
  CHECK_EQ(lent_bytes(&r), 0);
  CHECK_OK(tarn_heap_trim(r.heap, 0)); /* wherever it is mapped, it goes */
  CHECK_EQ(r.heap->n_aliases, 0);
  CHECK_EQ(rig_state(&r).mapped_bytes, 0);
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  rig_close(&r);
}

/* ---- A host that has no memory for more than so many mappings ---- */

static tarni_port_table narrow;
static const tarni_port_table *wide;
static uint32_t n_mappings, max_mappings, n_refused;
static tarn_status refusal;     /* what the driver calls it */
static bool is_momentary;       /* once */
static uint32_t n_stuck;        /* so many accesses and unmaps fail, */
static bool is_stuck_unmapping; /* or unmaps alone */

static tarn_status narrow_map(tarni_port *port, tarn_ptr address, uint64_t size,
                              tarni_chunk chunk) {
  if (n_mappings >= max_mappings) {
    n_refused++;
    max_mappings = is_momentary ? UINT32_MAX : max_mappings;
    return tarni_fail(refusal, "cuMemMap", NULL, "Map less.", "%u are mapped", n_mappings);
  }
  const tarn_status status = wide->map(port, address, size, chunk);
  n_mappings += status == TARN_OK;
  return status;
}

static bool is_stuck(void) {
  const bool is = n_stuck != 0;
  n_stuck -= is;
  return is;
}

static tarn_status narrow_access(tarni_port *port, tarn_ptr address, uint64_t size) {
  return !is_stuck_unmapping && is_stuck()
             ? tarni_fail(TARN_DRIVER, "cuMemSetAccess", NULL, "Wait.", "it is stuck")
             : wide->access(port, address, size);
}

static tarn_status narrow_unmap(tarni_port *port, tarn_ptr address, uint64_t size) {
  if (is_stuck()) {
    return tarni_fail(TARN_DRIVER, "cuMemUnmap", NULL, "Wait.", "it is stuck");
  }
  const tarn_status status = wide->unmap(port, address, size);
  n_mappings -= status == TARN_OK;
  return status;
}

/* No event is seen to be complete before so many mappings were refused. */
static uint32_t n_blind;

static tarn_status narrow_query(tarni_port *port, tarni_event event) {
  return n_refused < n_blind ? TARN_NOT_READY : wide->event_query(port, event);
}

static void narrow_begin(rig *r, uint32_t most, tarn_status status) {
  wide = r->heap->port->table;
  narrow = *wide;
  narrow.map = narrow_map;
  narrow.access = narrow_access;
  narrow.unmap = narrow_unmap;
  narrow.event_query = narrow_query;
  n_mappings = n_refused = n_stuck = n_blind = 0;
  max_mappings = most;
  is_momentary = is_stuck_unmapping = false;
  refusal = status;
  r->heap->port->table = &narrow;
}

static void narrow_end(rig *r) {
  CHECK_OK(tarn_heap_trim(r->heap, 0));
  CHECK_EQ(n_mappings, 0);
  r->heap->port->table = wide;
}

/* Blocks of random sizes come and go; work on the stream uses each of them. */
static void run_narrow(rig *r, uint64_t seed, uint64_t live) {
  tarni_rng rng = {seed};
  tarn_ptr blocks[N_BLOCKS] = {0};
  uint64_t sizes[N_BLOCKS] = {0}, sum = 0;
  for (int step = 0; step < 200; step++) {
    const uint64_t at = tarni_rng_below(&rng, N_BLOCKS);
    const uint64_t bytes = (1 + tarni_rng_below(&rng, 60)) * (MIB / 4) * 5;
    if (blocks[at] != 0) {
      CHECK_OK(tarn_free(r->heap, blocks[at], r->streams[0]));
      sum -= sizes[at];
      blocks[at] = 0;
    } else if (sum + bytes <= live) {
      CHECK_OK(tarn_alloc(r->heap, bytes, r->streams[0], &blocks[at]));
      CHECK_OK(tarn_device_fill(r->device, blocks[at], 1, 4096, r->streams[0]));
      sizes[at] = bytes;
      sum += bytes;
    }
  }
  for (int i = 0; i < N_BLOCKS; i++) {
    CHECK_OK(tarn_free(r->heap, blocks[i], r->streams[0]));
  }
}

/* Mappings that nothing uses come back, and not so many are kept after that; also where work that
 * used them is not done, and whatever the driver says is short. */
static void mappings_come_back(void) {
  static const tarn_status statuses[] = {TARN_HOST_MEMORY, TARN_DEVICE_MEMORY};
  for (int i = 0; i < 2; i++) {
    rig r;
    REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 1));
    narrow_begin(&r, 200, statuses[i]);
    for (uint64_t seed = 0; seed < 20; seed++) {
      run_narrow(&r, seed, (uint64_t)160 * MIB);
      CHECK_OK(tarn_heap_check(r.heap));
    }
    CHECK(n_refused != 0);
    CHECK(r.heap->max_aliases < TARNI_MAX_ALIASES);
    CHECK(r.heap->rest.n_drops != 0);   /* so it may hold more (rest.c) */
    CHECK_EQ(r.heap->refused_bytes, 0); /* it was not the device's memory */
    narrow_end(&r);
    rig_close(&r);
  }
}

/* Mappings that were dropped before, and wait for their stream, are waited for, and a refusal or
 * two do not cost all aliases to come; also where the stream turns out to have done its work. */
static void wait_for_dropped(bool is_done) {
  enum { MAX_FILLS = 400, LARGE = 100 * MIB };
  static tarn_ptr fills[MAX_FILLS], blocks[2];
  int n_fills = 0;
  rig r;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 1));
  narrow_begin(&r, UINT32_MAX, TARN_HOST_MEMORY);
  run_narrow(&r, 3, (uint64_t)160 * MIB);
  run_narrow(&r, 4, (uint64_t)160 * MIB);
  while (r.heap->idle_bytes != 0 && n_fills < MAX_FILLS) { /* so that none can come from there */
    CHECK_OK(tarn_alloc(r.heap, 2 * MIB, r.streams[0], &fills[n_fills++]));
  }
  CHECK(r.heap->n_aliases > 40);
  is_momentary = true;
  max_mappings = 0;
  n_blind = is_done ? 2 : 0;
  CHECK_OK(tarn_alloc(r.heap, LARGE, r.streams[0], &blocks[0]));
  CHECK_EQ(n_refused, 1);
  CHECK_EQ(r.heap->n_aliases, 0);
  CHECK(r.heap->zombies != 0);
  if (is_done) {
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  }
  is_momentary = false;
  max_mappings = n_mappings;
  CHECK_OK(tarn_alloc(r.heap, LARGE, r.streams[0], &blocks[1]));
  CHECK(n_refused >= 2);
  CHECK(r.heap->max_aliases >= TARNI_MAX_ALIASES / 2);
  for (int i = 0; i < 2; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[0]));
  }
  while (n_fills != 0) {
    CHECK_OK(tarn_free(r.heap, fills[--n_fills], r.streams[0]));
  }
  CHECK_OK(tarn_heap_check(r.heap));
  narrow_end(&r);
  rig_close(&r);
}

static void dropped_ones_are_waited_for(void) {
  wait_for_dropped(false);
  wait_for_dropped(true);
}

/* Where one of them cannot be unmapped at first, or the driver has done all work already. */
static void dropped_ones_go_later(void) {
  for (uint32_t i = 0; i < 3; i++) {
    rig r;
    tarn_ptr block = 0;
    REQUIRE(rig_open(&r, "sim:1G", NULL, 1));
    narrow_begin(&r, UINT32_MAX, TARN_HOST_MEMORY);
    run_narrow(&r, 3, (uint64_t)160 * MIB);
    run_narrow(&r, 4, (uint64_t)160 * MIB);
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    max_mappings = n_mappings;
    is_stuck_unmapping = i != 0;
    n_stuck = i != 0;
    if (i == 2) {
      CHECK_OK(tarn_heap_reserve(r.heap, rig_stats(&r).reserved_bytes + (uint64_t)20 * MIB));
    } else {
      CHECK_OK(tarn_alloc(r.heap, (uint64_t)250 * MIB, r.streams[0], &block));
    }
    CHECK(n_refused != 0);
    CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
    CHECK_OK(tarn_heap_check(r.heap));
    narrow_end(&r);
    rig_close(&r);
  }
}

/* Until a growth has failed that goes on where a view ends, and could not be undone. */
static bool run_until_stuck(rig *r, tarn_ptr *block) {
  for (uint64_t seed = 0; seed < 200; seed++) {
    run_narrow(r, seed, (uint64_t)160 * MIB);
    n_stuck = 2;
    (void)tarn_alloc(r->heap, (20 + seed % 80) * MIB, r->streams[0], block);
    n_stuck = 0;
    uint32_t n_busy = 0;
    const tarni_index views = r->heap->zones[TARNI_ZONE_VIEWS].head;
    for (tarni_index i = views; i != 0; i = r->heap->extents[i].next) {
      const tarni_extent *extent = &r->heap->extents[i];
      n_busy += extent->kind == TARNI_EXTENT_BUSY &&
                r->heap->units[tarni_unit_of(r->heap, extent->offset)] != 0;
    }
    if (n_busy != 0) {
      return true;
    }
    CHECK_OK(tarn_free(r->heap, *block, r->streams[0]));
    *block = 0;
  }
  return false;
}

/* It has aliases again once it is undone: they go before the heap sleeps, or it does not. */
static void asleep_without_aliases(void) {
  rig r;
  tarn_ptr block = 0;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  CHECK_OK(tarn_heap_set_limit(r.heap, (uint64_t)200 * MIB));
  narrow_begin(&r, UINT32_MAX, TARN_HOST_MEMORY);
  REQUIRE(run_until_stuck(&r, &block));
  n_stuck = 1; /* the next one */
  CHECK_EQ(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP), TARN_DRIVER);
  CHECK_OK(tarn_heap_check(r.heap));
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP));
  CHECK_EQ(r.heap->n_aliases, 0);
  CHECK_EQ(n_mappings, 0);
  CHECK_OK(tarn_heap_check(r.heap));
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_OK(tarn_heap_check(r.heap));
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  narrow_end(&r);
  rig_close(&r);
}

/* A real device's mappings take memory of the host, and may not take much of it. */
static void as_the_host_has_memory(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_EQ(r.heap->max_aliases, TARNI_MAX_ALIASES);
  tarni_port real = {.device = r.heap->port->device};
  real.device.is_simulated = false;
  const uint64_t n = tarni_port_host_mappings(&real);
  const uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
  CHECK(n != 0);
  CHECK(n * (16 << 10) < pages / 16);
  rig_close(&r);
}

/* Where there are as many aliases as there may be those that nothing uses go, and others come: the
 * heap goes on to make views. */
static void no_more_than_there_may_be(void) {
  enum { MOST = 20 };
  rig r;
  uint32_t most = 0;
  REQUIRE(rig_open(&r, "sim:4G,order=lazy", NULL, 1)); /* chunks of 16 MiB: a view has few */
  r.heap->max_aliases = MOST;
  for (uint64_t seed = 0; seed < 20; seed++) {
    run_narrow(&r, seed, (uint64_t)160 * MIB);
    most = r.heap->n_aliases > most ? r.heap->n_aliases : most;
    CHECK(r.heap->n_aliases <= MOST);
    CHECK(rig_is_sound(&r));
  }
  CHECK(most > MOST / 2);
  CHECK(rig_stats(&r).moved_chunks > (uint64_t)10 * MOST);
  CHECK(r.heap->rest.n_drops != 0);
  rig_close(&r);
}

/* Addresses that chunks are mapped at come back when there are no others. */
static void addresses_come_back(void) {
  static const tarn_stealing policies[] = {TARN_STEAL_WHEN_SHORT, TARN_STEAL_NEVER,
                                           TARN_STEAL_ALWAYS};
  for (int i = 0; i < 3; i++) {
    const tarn_heap_config config = {.size = sizeof(config), .stealing = policies[i]};
    rig r;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 3));
    uint32_t most = 0;
    bool has_fallen = false;
    for (uint64_t seed = 0; seed < 80; seed++) {
      run_program(&r, seed, 200, (uint64_t)44 * MIB, policies[i] == TARN_STEAL_NEVER ? 1 : 3);
      has_fallen |= r.heap->n_aliases < most;
      most = r.heap->n_aliases > most ? r.heap->n_aliases : most;
      CHECK(rig_is_sound(&r));
    }
    CHECK(most != 0);
    CHECK(has_fallen);
    rig_close(&r);
  }
}

static const test_case cases[] = {
    {"mappings come back", mappings_come_back},
    {"those that were dropped are waited for", dropped_ones_are_waited_for},
    {"those that were dropped go later", dropped_ones_go_later},
    {"a heap sleeps without aliases", asleep_without_aliases},
    {"a program that repeats itself makes no driver call in the end", repeats_without_calls},
    {"homes stay, and all places go with them", homes_stay},
    {"lent to the other zone, and back", lent_between_zones},
    {"as the host has memory", as_the_host_has_memory},
    {"no more aliases than there may be", no_more_than_there_may_be},
    {"addresses come back when they are short", addresses_come_back},
};

TEST_MAIN(cases)
