/* SPDX-License-Identifier: MIT
 *
 * The oracle finds planted bugs. Each scenario is a piece of memory management with one mistake in
 * it that can be left out: with the mistake the oracle must report the expected finding, whatever
 * the timing; without it, nothing. */
#include <stdlib.h>
#include <string.h>

#include "port/port.h"
#include "support/test.h"
#include "tarn/sim.h"

enum { OWNER_A = 11, OWNER_B = 22, OWNER_C = 33 };

static const uint64_t granule = 2 << 20;
static const uint64_t block_bytes = 1 << 20;

typedef struct world {
  tarn_device *device;
  tarni_port *port;
  tarn_stream a, b, c;
  tarni_event event, other;
  tarn_ptr base; /* 8 granules reserved, the first 2 mapped to `chunk` */
  tarni_chunk chunk;
} world;

static void use(world *w, tarn_ptr address, uint64_t bytes, uint64_t owner, tarn_stream stream) {
  const tarn_sim_range range = {
      .address = address, .bytes = bytes, .owner = owner, .is_write = true};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  CHECK_OK(tarn_sim_launch(w->device, &kernel, stream));
}

static void read_only(world *w, tarn_ptr address, uint64_t bytes, tarn_stream stream) {
  const tarn_sim_range range = {.address = address, .bytes = bytes};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  CHECK_OK(tarn_sim_launch(w->device, &kernel, stream));
}

static void own(world *w, tarn_ptr address, uint64_t bytes, uint64_t owner) {
  CHECK_OK(tarn_sim_own(w->device, address, bytes, owner));
}

static void pass(world *w, tarni_event event, tarn_stream from, tarn_stream to) {
  CHECK_OK(tarni_port_event_record(w->port, event, from));
  CHECK_OK(tarni_port_event_wait(w->port, to, event));
}

/* ---- The scenarios ---- */

static void reuse_without_wait(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  if (!mistake) {
    pass(w, w->event, w->a, w->b);
  }
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->b);
}

static void event_on_wrong_stream(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  pass(w, w->event, mistake ? w->c : w->a, w->b);
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->b);
}

static void event_too_early(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  if (mistake) {
    CHECK_OK(tarni_port_event_record(w->port, w->event, w->a));
  }
  use(w, w->base, block_bytes, OWNER_A, w->a);
  if (!mistake) {
    CHECK_OK(tarni_port_event_record(w->port, w->event, w->a));
  }
  CHECK_OK(tarni_port_event_wait(w->port, w->b, w->event));
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->b);
}

/* The wait is issued before the event is recorded anew: it waits for the old record. */
static void wait_before_record(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  CHECK_OK(tarni_port_event_record(w->port, w->event, w->a));
  use(w, w->base, block_bytes, OWNER_A, w->a);
  if (mistake) {
    CHECK_OK(tarni_port_event_wait(w->port, w->b, w->event));
    CHECK_OK(tarni_port_event_record(w->port, w->event, w->a));
  } else {
    pass(w, w->event, w->a, w->b);
  }
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->b);
}

/* Two neighbours freed on two streams are merged; the merged block keeps one fence of the two. */
static void wait_lost_in_merge(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  own(w, w->base + block_bytes, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  use(w, w->base + block_bytes, block_bytes, OWNER_B, w->b);
  pass(w, w->event, w->a, w->c);
  if (!mistake) {
    pass(w, w->other, w->b, w->c);
  }
  own(w, w->base, 2 * block_bytes, OWNER_C);
  use(w, w->base, 2 * block_bytes, OWNER_C, w->c);
}

/* A block is split; the half that was put aside is handed out without the fence of the whole. */
static void wait_lost_in_split(world *w, bool mistake) {
  own(w, w->base, 2 * block_bytes, OWNER_A);
  use(w, w->base, 2 * block_bytes, OWNER_A, w->a);
  pass(w, w->event, w->a, w->b);
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->b);
  if (!mistake) {
    pass(w, w->other, w->a, w->c);
  }
  own(w, w->base + block_bytes, block_bytes, OWNER_C);
  use(w, w->base + block_bytes, block_bytes, OWNER_C, w->c);
}

/* c follows b, but b's event was recorded before b followed a: order does not carry through. */
static void order_not_carried(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  if (mistake) {
    CHECK_OK(tarni_port_event_record(w->port, w->other, w->b));
    pass(w, w->event, w->a, w->b);
    CHECK_OK(tarni_port_event_wait(w->port, w->c, w->other));
  } else {
    pass(w, w->event, w->a, w->b);
    pass(w, w->other, w->b, w->c);
  }
  own(w, w->base, block_bytes, OWNER_C);
  use(w, w->base, block_bytes, OWNER_C, w->c);
}

/* The host asks for completion, is told «not ready», and goes on all the same. */
static void not_ready_taken_for_done(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  CHECK_OK(tarni_port_event_record(w->port, w->event, w->a));
  if (!mistake) {
    while (tarni_port_event_query(w->port, w->event) == TARN_NOT_READY) {
    }
  }
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->b);
}

/* A second user of the block is forgotten: only the owner's stream is waited for. */
static void second_user_forgotten(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  pass(w, w->event, w->a, w->b);
  read_only(w, w->base, block_bytes, w->b);
  if (!mistake) {
    pass(w, w->other, w->b, w->a);
  }
  own(w, w->base, block_bytes, OWNER_C);
  use(w, w->base, block_bytes, OWNER_C, w->a);
}

/* A stream dies, its handle comes back as a new stream, and is taken for the old one. */
static void handle_taken_for_stream(world *w, bool mistake) {
  tarn_stream old, fresh;
  CHECK_OK(tarni_port_stream_create(w->port, &old));
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, old);
  if (!mistake) {
    CHECK_OK(tarni_port_stream_sync(w->port, old));
  }
  CHECK_OK(tarni_port_stream_destroy(w->port, old));
  CHECK_OK(tarni_port_stream_create(w->port, &fresh));
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, fresh);
  CHECK_OK(tarni_port_stream_sync(w->port, fresh));
  CHECK_OK(tarni_port_stream_destroy(w->port, fresh));
}

static void unmap_under_use(world *w, bool mistake) {
  use(w, w->base, block_bytes, 0, w->a);
  if (!mistake) {
    CHECK_OK(tarni_port_stream_sync(w->port, w->a));
  }
  CHECK_OK(tarni_port_unmap(w->port, w->base, 2 * granule));
  if (!mistake) {
    CHECK_OK(tarni_port_map(w->port, w->base, 2 * granule, w->chunk));
    CHECK_OK(tarni_port_access(w->port, w->base, 2 * granule));
  }
}

/* The chunk moves to a second address; the new use is not ordered after the old one. */
static void alias_in_flight(world *w, bool mistake) {
  const tarn_ptr second = w->base + 4 * granule;
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  CHECK_OK(tarni_port_map(w->port, second, 2 * granule, w->chunk));
  CHECK_OK(tarni_port_access(w->port, second, 2 * granule));
  if (!mistake) {
    pass(w, w->event, w->a, w->b);
  }
  own(w, second, block_bytes, OWNER_B);
  use(w, second, block_bytes, OWNER_B, w->b);
  CHECK_OK(tarni_port_stream_sync(w->port, w->a));
  CHECK_OK(tarni_port_stream_sync(w->port, w->b));
  CHECK_OK(tarni_port_unmap(w->port, second, 2 * granule));
}

static void write_after_free(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  if (mistake) {
    CHECK_OK(tarn_sim_disown(w->device, w->base, block_bytes));
  }
  use(w, w->base, block_bytes, OWNER_A, w->a);
}

/* Even in perfect order: the old owner has no business there any more. */
static void write_to_new_owners_block(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->a);
  if (mistake) {
    use(w, w->base + 4096, 256, OWNER_A, w->a);
  }
}

static void race_of_one_owner(world *w, bool mistake) {
  own(w, w->base, block_bytes, OWNER_A);
  use(w, w->base, block_bytes, OWNER_A, w->a);
  if (!mistake) {
    pass(w, w->event, w->a, w->b);
  }
  read_only(w, w->base + block_bytes / 2, 256, w->b);
}

/* Pinned memory goes back to its pool while the copy from it is under way. */
static void staging_reused_in_flight(world *w, bool mistake) {
  void *pinned;
  CHECK_OK(tarni_port_host_alloc(w->port, 4096, 0, &pinned));
  memset(pinned, 1, 4096);
  const tarn_ptr staging = (uintptr_t)pinned;
  own(w, staging, 4096, OWNER_A);
  CHECK_OK(tarni_port_copy(w->port, w->base, staging, 4096, w->a));
  if (!mistake) {
    CHECK_OK(tarni_port_stream_sync(w->port, w->a));
  }
  own(w, staging, 4096, OWNER_B);
  CHECK_OK(tarni_port_copy(w->port, w->base + block_bytes, staging, 4096, w->b));
  CHECK_OK(tarni_port_host_free(w->port, pinned));
}

/* What its owner has given back goes back to its pool on a stream that is not behind the use. */
static void pool_free_without_order(world *w, bool mistake) {
  tarni_pool pool;
  tarn_ptr block;
  CHECK_OK(tarni_port_pool_create(w->port, 0, &pool));
  CHECK_OK(tarni_port_pool_alloc(w->port, pool, block_bytes, w->a, &block));
  own(w, block, block_bytes, OWNER_A);
  use(w, block, block_bytes, OWNER_A, w->a);
  CHECK_OK(tarn_sim_disown(w->device, block, block_bytes));
  CHECK_OK(tarni_port_pool_free(w->port, block, mistake ? w->b : w->a));
  CHECK_OK(tarni_port_stream_sync(w->port, mistake ? w->b : w->a));
  CHECK_OK(tarni_port_pool_destroy(w->port, pool));
}

/* Two branches of a captured graph share memory though nothing orders them. */
static void graph_branches_share(world *w, bool mistake) {
  tarni_graph graph;
  tarni_graph_exec exec;
  CHECK_OK(tarni_port_capture_begin(w->port, w->a, TARNI_CAPTURE_RELAXED));
  pass(w, w->event, w->a, w->b);
  use(w, w->base, block_bytes, 0, w->a);
  use(w, mistake ? w->base : w->base + block_bytes, block_bytes, 0, w->b);
  pass(w, w->other, w->b, w->a);
  CHECK_OK(tarni_port_capture_end(w->port, w->a, &graph));
  CHECK_OK(tarni_port_graph_instantiate(w->port, graph, &exec));
  CHECK_OK(tarni_port_graph_launch(w->port, exec, w->a));
  CHECK_OK(tarni_port_graph_launch(w->port, exec, w->c));
  CHECK_OK(tarni_port_graph_destroy(w->port, graph, exec));
}

/* The memory of a graph that can still be launched is given to somebody else. */
static void graph_memory_reused(world *w, bool mistake) {
  tarni_graph graph;
  tarni_graph_exec exec;
  own(w, w->base, block_bytes, OWNER_A);
  CHECK_OK(tarni_port_capture_begin(w->port, w->a, TARNI_CAPTURE_THREAD_LOCAL));
  use(w, w->base, block_bytes, OWNER_A, w->a);
  CHECK_OK(tarni_port_capture_end(w->port, w->a, &graph));
  CHECK_OK(tarni_port_graph_instantiate(w->port, graph, &exec));
  CHECK_OK(tarni_port_graph_launch(w->port, exec, w->a));
  const tarn_ptr elsewhere = mistake ? w->base : w->base + block_bytes;
  own(w, elsewhere, block_bytes, OWNER_B);
  use(w, elsewhere, block_bytes, OWNER_B, w->a);
  CHECK_OK(tarni_port_graph_launch(w->port, exec, w->a));
  CHECK_OK(tarni_port_graph_destroy(w->port, graph, exec));
}

/* A graph is launched on one stream, and the stream beside it is believed to come after it. */
static void launch_not_waited_for(world *w, bool mistake) {
  tarni_graph graph;
  tarni_graph_exec exec;
  own(w, w->base, block_bytes, OWNER_A);
  CHECK_OK(tarni_port_capture_begin(w->port, w->a, TARNI_CAPTURE_GLOBAL));
  use(w, w->base, block_bytes, OWNER_A, w->a);
  CHECK_OK(tarni_port_capture_end(w->port, w->a, &graph));
  CHECK_OK(tarni_port_graph_instantiate(w->port, graph, &exec));
  CHECK_OK(tarni_port_graph_launch(w->port, exec, w->a));
  if (!mistake) {
    pass(w, w->event, w->a, w->b);
  }
  CHECK_OK(tarni_port_graph_destroy(w->port, graph, exec));
  own(w, w->base, block_bytes, OWNER_B);
  use(w, w->base, block_bytes, OWNER_B, w->b);
}

static void double_map(world *w, bool mistake) {
  tarni_chunk extra;
  CHECK_OK(tarni_port_create(w->port, granule, &extra));
  const tarn_ptr at = mistake ? w->base + granule : w->base + 2 * granule;
  CHECK_STATUS(tarni_port_map(w->port, at, granule, extra), mistake ? TARN_INVALID : TARN_OK);
  CHECK_OK(tarni_port_release(w->port, extra));
  if (!mistake) {
    CHECK_OK(tarni_port_unmap(w->port, at, granule));
  }
}

static void release_twice(world *w, bool mistake) {
  tarni_chunk extra;
  CHECK_OK(tarni_port_create(w->port, granule, &extra));
  CHECK_OK(tarni_port_release(w->port, extra));
  if (mistake) {
    CHECK_STATUS(tarni_port_release(w->port, extra), TARN_INVALID);
  }
}

static void use_of_unmapped(world *w, bool mistake) {
  use(w, mistake ? w->base + 3 * granule : w->base, block_bytes, 0, w->a);
}

static void use_without_access(world *w, bool mistake) {
  const tarn_ptr second = w->base + 4 * granule;
  CHECK_OK(tarni_port_map(w->port, second, 2 * granule, w->chunk));
  if (!mistake) {
    CHECK_OK(tarni_port_access(w->port, second, 2 * granule));
    use(w, second, block_bytes, 0, w->a);
    CHECK_OK(tarni_port_stream_sync(w->port, w->a));
  } else {
    CHECK_STATUS(tarni_port_fill(w->port, second, 1, block_bytes, w->a), TARN_INVALID);
  }
  CHECK_OK(tarni_port_unmap(w->port, second, 2 * granule));
}

/* ---- Running them ---- */

static bool world_open(world *w, const char *name) {
  *w = (world){0};
  if (!CHECK_OK(tarn_device_open(name, &w->device))) {
    return false;
  }
  w->port = (tarni_port *)w->device;
  return CHECK_OK(tarni_port_stream_create(w->port, &w->a)) &&
         CHECK_OK(tarni_port_stream_create(w->port, &w->b)) &&
         CHECK_OK(tarni_port_stream_create(w->port, &w->c)) &&
         CHECK_OK(tarni_port_event_create(w->port, &w->event)) &&
         CHECK_OK(tarni_port_event_create(w->port, &w->other)) &&
         CHECK_OK(tarni_port_reserve(w->port, 8 * granule, 0, &w->base)) &&
         CHECK_OK(tarni_port_create(w->port, 2 * granule, &w->chunk)) &&
         CHECK_OK(tarni_port_map(w->port, w->base, 2 * granule, w->chunk)) &&
         CHECK_OK(tarni_port_access(w->port, w->base, 2 * granule));
}

static void world_close(world *w) {
  CHECK_OK(tarni_port_stream_sync(w->port, w->a));
  CHECK_OK(tarni_port_stream_sync(w->port, w->b));
  CHECK_OK(tarni_port_stream_sync(w->port, w->c));
  CHECK_OK(tarni_port_unmap(w->port, w->base, 2 * granule));
  CHECK_OK(tarni_port_release(w->port, w->chunk));
  CHECK_OK(tarni_port_unreserve(w->port, w->base, 8 * granule));
  CHECK_OK(tarni_port_event_destroy(w->port, w->event));
  CHECK_OK(tarni_port_event_destroy(w->port, w->other));
  CHECK_OK(tarni_port_stream_destroy(w->port, w->a));
  CHECK_OK(tarni_port_stream_destroy(w->port, w->b));
  CHECK_OK(tarni_port_stream_destroy(w->port, w->c));
  tarn_device_close(w->device);
}

static void count_findings(const tarn_sim_finding *finding, void *user) {
  int *n = user;
  ++*n;
  test_note("found: %s", finding->message);
}

static void count_leaks(const tarn_sim_finding *finding, void *user) {
  int *n = user;
  *n += finding->kind == TARN_SIM_LEAK;
}

static void check_finding(world *w, tarn_sim_finding_kind kind) {
  uint64_t n = 0;
  bool is_found = false;
  CHECK_OK(tarn_sim_finding_count(w->device, &n));
  for (uint64_t i = 0; i < n && i < 64; i++) {
    tarn_sim_finding finding = {.size = sizeof(finding)};
    CHECK_OK(tarn_sim_finding_get(w->device, i, &finding));
    if (finding.kind == kind && !is_found) {
      is_found = true;
      CHECK(finding.message[0] != '\0');
      if (kind == TARN_SIM_REUSE || kind == TARN_SIM_RACE) {
        CHECK(finding.first.operation != NULL && finding.second.operation != NULL);
        CHECK(finding.first.stream_id != 0 && finding.second.stream_id != 0);
        CHECK(finding.bytes != 0 && finding.address != 0);
      }
    }
  }
  CHECK(is_found && "the oracle reports the planted mistake");
}

typedef void (*scenario)(world *w, bool mistake);

static void run_clean(scenario run, const char *name) {
  world w;
  if (!world_open(&w, name)) {
    return;
  }
  int n = 0;
  CHECK_OK(tarn_sim_set_on_finding(w.device, count_findings, &n));
  run(&w, false);
  world_close(&w);
  CHECK_EQ(n, 0);
}

/* A mistake may break the device, as it would a real one, so it is only closed. */
static void run_mistake(scenario run, const char *name, tarn_sim_finding_kind kind) {
  world w;
  if (!world_open(&w, name)) {
    return;
  }
  run(&w, true);
  check_finding(&w, kind);
  if (run == use_of_unmapped) {
    CHECK_STATUS(tarni_port_stream_sync(w.port, w.a), TARN_DEVICE_LOST);
    CHECK_STATUS(tarni_port_fill(w.port, w.base, 1, 16, w.a), TARN_DEVICE_LOST);
  }
  tarn_device_close(w.device);
}

static void run_all_orders(scenario run, tarn_sim_finding_kind kind) {
  static const char *const devices[] = {"sim:1G,order=eager", "sim:1G,order=lazy", "sim:1G,seed=1",
                                        "sim:1G,seed=2",      "sim:1G,seed=3",     "sim:1G,seed=4"};
  for (unsigned i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
    run_clean(run, devices[i]);
    run_mistake(run, devices[i], kind);
  }
}

#define SCENARIOS(X)                                                                               \
  X(reuse_without_wait, REUSE)                                                                     \
  X(event_on_wrong_stream, REUSE)                                                                  \
  X(event_too_early, REUSE)                                                                        \
  X(wait_before_record, REUSE)                                                                     \
  X(wait_lost_in_merge, REUSE)                                                                     \
  X(wait_lost_in_split, REUSE)                                                                     \
  X(order_not_carried, REUSE)                                                                      \
  X(not_ready_taken_for_done, REUSE)                                                               \
  X(second_user_forgotten, REUSE)                                                                  \
  X(handle_taken_for_stream, REUSE)                                                                \
  X(alias_in_flight, REUSE)                                                                        \
  X(staging_reused_in_flight, REUSE)                                                               \
  X(pool_free_without_order, REUSE)                                                                \
  X(launch_not_waited_for, REUSE)                                                                  \
  X(graph_branches_share, RACE)                                                                    \
  X(race_of_one_owner, RACE)                                                                       \
  X(graph_memory_reused, FREED)                                                                    \
  X(write_after_free, FREED)                                                                       \
  X(write_to_new_owners_block, FREED)                                                              \
  X(unmap_under_use, UNMAP_IN_USE)                                                                 \
  X(double_map, DOUBLE_MAP)                                                                        \
  X(release_twice, MISUSE)                                                                         \
  X(use_without_access, UNMAPPED)                                                                  \
  X(use_of_unmapped, UNMAPPED)

#define SCENARIO_TEST(name, kind)                                                                  \
  static void test_##name(void) {                                                                  \
    run_all_orders(name, TARN_SIM_##kind);                                                         \
  }
SCENARIOS(SCENARIO_TEST)

static void leak_at_close(void) {
  world w;
  if (!world_open(&w, "sim:1G,seed=5")) {
    return;
  }
  int n_leaks = 0;
  CHECK_OK(tarn_sim_set_on_finding(w.device, count_leaks, &n_leaks));
  tarni_pool pool;
  CHECK_OK(tarni_port_pool_create(w.port, 0, &pool));
  tarn_device_close(w.device);
  /* three streams, two events (one finding), a pool, the reservation, the chunk */
  CHECK_EQ(n_leaks, 7);
}

static const test_case cases[] = {
#define SCENARIO_CASE(name, kind) {#name, test_##name},
    SCENARIOS(SCENARIO_CASE){"leak_at_close", leak_at_close},
};

TEST_MAIN(cases)
