/* SPDX-License-Identifier: MIT
 *
 * Captures on heaps whose blocks are the driver's own allocations: what only such heaps can get
 * wrong. All else is shared, and its tests run on these heaps, too (cmake/tests.cmake). */
#include <pthread.h>

#include "internal.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20, ROUNDS = 200 };

static const tarn_backing backings[] = {TARN_BACKING_PLAIN, TARN_BACKING_POOL, TARN_BACKING_VMM};

#define EACH_BACKING(name)                                                                         \
  for (size_t name = 0; name < sizeof(backings) / sizeof(backings[0]) && !test_case_failed();      \
       name++)

static bool open_with(rig *r, const char *device, tarn_backing backing, tarn_stealing stealing) {
  const tarn_heap_config config = {.size = sizeof(config),
                                   .backing = backing,
                                   .rounding = TARN_ROUNDING_EXACT,
                                   .stealing = stealing};
  return rig_open(r, device, &config, 3);
}

static tarn_capture *begin(rig *r, tarn_capture_mode mode) {
  const tarn_capture_config config = {.size = sizeof(config), .mode = mode};
  tarn_capture *capture = NULL;
  CHECK_OK(tarn_capture_begin(r->heap, &config, r->streams[0], &capture));
  return capture;
}

static void end(tarn_capture *capture) {
  tarn_graph *graph = NULL;
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_destroy(graph));
}

/* What a captured stream has freed cannot be waited for: others do without, and it is there again
 * when the capture is over. */
static void captured_streams_keep_what_they_freed(void) {
  EACH_BACKING(i) {
    rig r;
    rig_block kept, other;
    REQUIRE(open_with(&r, "sim:256M,order=lazy", backings[i], TARN_STEAL_ALWAYS));
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[1], &kept));
    const tarn_ptr address = kept.address;
    CHECK_OK(rig_free(&r, &kept, r.streams[1]));
    tarn_capture *capture = begin(&r, TARN_CAPTURE_THREAD_LOCAL);
    rig_order(&r, r.streams[0], r.streams[1]);
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[2], &other));
    CHECK(other.address != address);
    CHECK(rig_is_sound(&r));
    rig_order(&r, r.streams[1], r.streams[0]);
    end(capture);
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[2], &kept));
    CHECK_EQ(kept.address, address);
    CHECK_OK(rig_free(&r, &kept, r.streams[2]));
    CHECK_OK(rig_free(&r, &other, r.streams[2]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* It cannot be given back to the driver either: that is shortage, and not an error of its own. */
static void shortage_beside_a_captured_stream(void) {
  EACH_BACKING(i) {
    rig r;
    rig_block kept, other;
    REQUIRE(open_with(&r, "sim:16M,order=lazy", backings[i], TARN_STEAL_WHEN_SHORT));
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[1], &kept));
    CHECK_OK(rig_free(&r, &kept, r.streams[1]));
    tarn_capture *capture = begin(&r, TARN_CAPTURE_THREAD_LOCAL);
    rig_order(&r, r.streams[0], r.streams[1]);
    CHECK_STATUS(rig_alloc(&r, 12 * MIB, r.streams[2], &other), TARN_DEVICE_MEMORY);
    CHECK(rig_is_sound(&r));
    CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
    rig_order(&r, r.streams[1], r.streams[0]);
    end(capture);
    CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[2], &other));
    CHECK_OK(rig_free(&r, &other, r.streams[2]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* A graph that waits for its last launch goes when its memory is needed. */
static void parked_graphs_make_room(void) {
  EACH_BACKING(i) {
    rig r;
    rig_block a, large;
    REQUIRE(open_with(&r, "sim:16M", backings[i], TARN_STEAL_WHEN_SHORT));
    tarn_capture *capture = begin(&r, TARN_CAPTURE_RELAXED);
    tarn_graph *graph = NULL;
    CHECK_OK(rig_capture_alloc(&r, 8 * MIB, r.streams[0], &a));
    CHECK_OK(tarn_free(r.heap, a.address, r.streams[0]));
    CHECK_OK(tarn_capture_end(&capture, &graph));
    CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
    CHECK_OK(tarn_graph_destroy(graph));
    CHECK_EQ(rig_stats(&r).captured_bytes, 8 * MIB);
    CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
    CHECK_OK(rig_alloc(&r, 12 * MIB, r.streams[1], &large));
    CHECK_EQ(rig_stats(&r).captured_bytes, 0);
    CHECK_OK(rig_free(&r, &large, r.streams[1]));
    rig_close(&r);
  }
}

typedef struct racer {
  rig *r;
  tarn_ptr block;
  tarn_stream stream;
  _Atomic int *n_freed, *n_ready;
} racer;

static void *race_to_free(void *user) {
  const racer *own = user;
  atomic_fetch_add(own->n_ready, 1);
  while (atomic_load(own->n_ready) < 2) {
  }
  const tarn_status status = tarn_free(own->r->heap, own->block, own->stream);
  CHECK(status == TARN_OK || status == TARN_DOUBLE_FREE || status == TARN_FOREIGN);
  atomic_fetch_add(own->n_freed, status == TARN_OK);
  return NULL;
}

/* Two threads free one block, on a captured stream and on another: one of them is told. */
static void one_of_two_frees_counts(void) {
  rig r;
  REQUIRE(open_with(&r, "sim:256M", TARN_BACKING_POOL, TARN_STEAL_WHEN_SHORT));
  for (int round = 0; round < ROUNDS && !test_case_failed(); round++) {
    tarn_ptr block;
    _Atomic int n_freed = 0, n_ready = 0;
    pthread_t threads[2];
    racer racers[2];
    CHECK_OK(tarn_alloc(r.heap, 1000, r.streams[0], &block));
    if (round % 2 != 0) {
      CHECK_OK(tarn_use(r.heap, block, r.streams[2]));
    }
    tarn_capture *capture = begin(&r, TARN_CAPTURE_RELAXED);
    for (int i = 0; i < 2; i++) {
      racers[i] = (racer){&r, block, r.streams[i], &n_freed, &n_ready};
      REQUIRE(pthread_create(&threads[i], NULL, race_to_free, &racers[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
      CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    CHECK_EQ(n_freed, 1);
    end(capture);
    CHECK_EQ(rig_stats(&r).live_blocks, 0);
    CHECK(rig_is_sound(&r));
  }
  rig_close(&r);
}

/* Without virtual memory an arena has none of its own, but the program's will do. */
static void without_virtual_memory(void) {
  rig r;
  rig_block a, b;
  tarn_ptr whole;
  const tarn_heap_config config = {.size = sizeof(config), .preset = TARN_PRESET_POWER_BUCKETS};
  REQUIRE(rig_open(&r, "sim:64M,vmm=off", &config, 2));
  tarn_capture *capture = NULL;
  CHECK_STATUS(tarn_capture_begin(r.heap, NULL, r.streams[0], &capture), TARN_UNSUPPORTED);
  CHECK(capture == NULL);
  CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &whole));
  const tarn_arena_config own = {.size = sizeof(own), .memory = whole, .memory_bytes = 4 * MIB};
  tarn_capture_config with = {.size = sizeof(with), .placement = TARN_PLACE_MONOTONE};
  CHECK_OK(tarn_arena_create(r.heap, &own, &with.arena));
  CHECK_OK(tarn_capture_begin(r.heap, &with, r.streams[0], &capture));
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &a));
  CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &b));
  CHECK_EQ(b.address, a.address + MIB);
  CHECK_OK(tarn_free_sized(r.heap, a.address, MIB, r.streams[0]));
  CHECK_STATUS(tarn_free_sized(r.heap, b.address, MIB / 2, r.streams[0]), TARN_WRONG_SIZE);
  CHECK_OK(tarn_free(r.heap, b.address, r.streams[0]));
  tarn_graph *graph = NULL;
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_launch(graph, r.streams[1]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_trim(r.heap, UINT64_MAX)); /* waits for the launch */
  CHECK_OK(tarn_arena_clear(with.arena));
  CHECK_OK(tarn_arena_destroy(with.arena));
  CHECK_OK(tarn_free(r.heap, whole, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A stream in a capture of which nobody told gets no new memory, and its capture stays whole. */
static void nobody_told(void) {
  EACH_BACKING(i) {
    rig r;
    rig_block kept, other;
    tarni_graph graph;
    REQUIRE(open_with(&r, "sim:256M", backings[i], TARN_STEAL_WHEN_SHORT));
    tarni_port *port = (tarni_port *)r.device;
    CHECK_OK(rig_alloc(&r, MIB, r.streams[0], &kept));
    CHECK_OK(rig_free(&r, &kept, r.streams[0]));
    CHECK_OK(tarni_port_capture_begin(port, r.streams[0], TARNI_CAPTURE_GLOBAL));
    tarn_ptr none;
    CHECK_STATUS(tarn_alloc(r.heap, 3 * MIB, r.streams[0], &none), TARN_CAPTURE);
    CHECK_EQ(none, 0);
    CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[1], &other)); /* others do not notice */
    CHECK_OK(rig_free(&r, &other, r.streams[1]));
    CHECK_OK(tarni_port_capture_end(port, r.streams[0], &graph));
    CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* A driver that captures a block, by another thread, while it is asked for memory. */
static struct {
  rig *r;
  tarni_port_table table;
  const tarni_port_table *own;
  tarn_ptr block;
} meanwhile;

static void *capture_meanwhile(void *user) {
  (void)user;
  CHECK_STATUS(tarn_alloc(meanwhile.r->heap, 16 * MIB, meanwhile.r->streams[0], &meanwhile.block),
               TARN_LIMIT);
  return NULL;
}

static void let_it_capture(void) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, capture_meanwhile, NULL) == 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
}

static tarn_status plain_meanwhile(tarni_port *port, uint64_t size, tarn_ptr *address) {
  let_it_capture();
  return meanwhile.own->plain_alloc(port, size, address);
}

static tarn_status pool_meanwhile(tarni_port *port, tarni_pool pool, uint64_t size,
                                  tarn_stream stream, tarn_ptr *address) {
  let_it_capture();
  return meanwhile.own->pool_alloc(port, pool, size, stream, address);
}

/* What is being made counts against the limit by then. */
static void limits_count_what_is_made(void) {
  for (int i = 0; i < 2 && !test_case_failed(); i++) {
    rig r;
    tarn_ptr block = 0;
    REQUIRE(open_with(&r, "sim:256M", backings[i], TARN_STEAL_WHEN_SHORT));
    CHECK_OK(tarn_heap_set_limit(r.heap, 24 * MIB));
    tarn_capture *capture = begin(&r, TARN_CAPTURE_RELAXED);
    meanwhile.r = &r;
    meanwhile.own = r.heap->port->table;
    meanwhile.table = *meanwhile.own;
    meanwhile.table.plain_alloc = plain_meanwhile;
    meanwhile.table.pool_alloc = pool_meanwhile;
    r.heap->port->table = &meanwhile.table;
    CHECK_OK(tarn_alloc(r.heap, 16 * MIB, r.streams[1], &block));
    r.heap->port->table = meanwhile.own;
    CHECK_EQ(rig_stats(&r).reserved_peak_bytes, 16 * MIB);
    CHECK_OK(tarn_alloc(r.heap, 8 * MIB, r.streams[0], &meanwhile.block));
    CHECK_OK(tarn_free(r.heap, meanwhile.block, r.streams[0]));
    end(capture);
    CHECK_OK(tarn_free(r.heap, block, r.streams[1]));
    rig_close(&r);
  }
}

static const test_case cases[] = {
    {"captured streams keep what they freed", captured_streams_keep_what_they_freed},
    {"shortage beside a captured stream", shortage_beside_a_captured_stream},
    {"parked graphs make room", parked_graphs_make_room},
    {"one of two frees counts", one_of_two_frees_counts},
    {"without virtual memory", without_virtual_memory},
    {"nobody told", nobody_told},
    {"limits count what is made", limits_count_what_is_made},
};

TEST_MAIN(cases)
