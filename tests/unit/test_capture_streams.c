/* SPDX-License-Identifier: MIT
 *
 * Whose stream it is: captures with more streams than a capture keeps apart, with default streams
 * of several threads, which have one name and are not one stream, and arenas on memory that was
 * another's before. The oracle watches every use. */
#include <pthread.h>
#include <string.h>

#include "internal.h"
#include "port/port.h"
#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { MIB = 1 << 20, N_STREAMS = 40 };
#define OWN TARNI_STREAM_PER_THREAD

static const tarn_capture_config relaxed = {.size = sizeof(relaxed), .mode = TARN_CAPTURE_RELAXED};

/* Each stream writes a block and frees it inside; the graph holds all of them, and writes them
 * again at its launch. */
static void many_streams(void) {
  tarn_capture_config holding = relaxed;
  holding.holds_freed = true;
  rig r;
  rig_block blocks[N_STREAMS], others[N_STREAMS];
  tarn_stream streams[N_STREAMS];
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  for (int i = 0; i < N_STREAMS; i++) {
    CHECK_OK(tarn_stream_create(r.device, &streams[i]));
    blocks[i] = (rig_block){.bytes = MIB};
    CHECK_OK(tarn_alloc(r.heap, MIB, streams[i], &blocks[i].address));
  }
  CHECK_OK(tarn_capture_begin(r.heap, &holding, r.streams[0], &capture));
  for (int i = 0; i < N_STREAMS; i++) {
    rig_order(&r, r.streams[0], streams[i]);
    rig_touch(&r, &blocks[i], streams[i], true);
    CHECK_OK(tarn_free(r.heap, blocks[i].address, streams[i]));
    rig_order(&r, streams[i], r.streams[0]);
  }
  CHECK_OK(tarn_capture_end(&capture, &graph));
  for (int i = 0; i < N_STREAMS; i++) {
    CHECK_OK(rig_alloc(&r, MIB, r.streams[1], &others[i]));
  }
  CHECK_OK(tarn_graph_launch(graph, r.streams[0]));
  for (int i = 0; i < N_STREAMS; i++) {
    CHECK_OK(rig_free(&r, &others[i], r.streams[1]));
  }
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  for (int i = 0; i < N_STREAMS; i++) {
    CHECK_OK(tarn_stream_retire(r.heap, streams[i]));
    CHECK_OK(tarn_stream_destroy(r.device, streams[i]));
  }
  rig_close(&r);
}

/* ---- Two threads ---- */

typedef struct pair {
  rig rig;
  rig_block block;
  tarni_event forked, joined;
  pthread_barrier_t turn;
  pthread_t thread;
} pair;

static void turn(pair *p) {
  (void)pthread_barrier_wait(&p->turn);
}

static bool pair_open(pair *p, const tarn_heap_config *config, void *(*run)(void *)) {
  return CHECK(rig_open(&p->rig, "sim:256M,order=lazy", config, 3)) &&
         CHECK(pthread_barrier_init(&p->turn, NULL, 2) == 0) &&
         CHECK(pthread_create(&p->thread, NULL, run, p) == 0);
}

static void pair_close(pair *p) {
  CHECK(pthread_join(p->thread, NULL) == 0);
  (void)pthread_barrier_destroy(&p->turn);
  rig_close(&p->rig);
}

static void *allocate_beside(void *user) {
  pair *p = user;
  rig_block other;
  turn(p);
  CHECK_OK(rig_alloc(&p->rig, MIB, OWN, &other));
  CHECK_OK(rig_free(&p->rig, &other, OWN));
  turn(p);
  return NULL;
}

/* A capture that the heap has found on one thread's default stream goes on, whatever another
 * thread's one does. */
static void found_by_its_own_thread(void) {
  const tarn_heap_config config = {.size = sizeof(config), .is_asking_captures = true};
  static pair p;
  rig_block inside;
  tarn_graph *graph = NULL;
  tarni_graph raw = NULL;
  tarni_capture_state state;
  REQUIRE(pair_open(&p, &config, allocate_beside));
  tarni_port *port = (tarni_port *)p.rig.device;
  CHECK_OK(rig_alloc(&p.rig, MIB, OWN, &p.block));
  rig_touch(&p.rig, &p.block, OWN, true);
  CHECK_OK(tarni_port_capture_begin(port, OWN, TARNI_CAPTURE_RELAXED));
  CHECK_OK(rig_capture_alloc(&p.rig, MIB, OWN, &inside));
  CHECK_OK(rig_free(&p.rig, &p.block, OWN));
  turn(&p);
  turn(&p);
  CHECK_OK(tarni_port_capture_state(port, OWN, &state));
  CHECK_STATUS(tarn_graph_find(p.rig.heap, state.id, &graph), TARN_FOREIGN); /* not yet */
  CHECK_OK(tarn_free(p.rig.heap, inside.address, OWN));
  CHECK_OK(tarni_port_capture_end(port, OWN, &raw));
  CHECK_OK(tarni_port_graph_destroy(port, raw, NULL));
  pair_close(&p);
}

static void *join_and_free(void *user) {
  pair *p = user;
  tarni_port *port = (tarni_port *)p->rig.device;
  CHECK_OK(rig_alloc(&p->rig, MIB, OWN, &p->block));
  rig_touch(&p->rig, &p->block, OWN, true);
  turn(p);
  turn(p);
  CHECK_OK(tarni_port_event_wait(port, OWN, p->forked));
  CHECK_OK(rig_free(&p->rig, &p->block, OWN));
  CHECK_OK(tarni_port_event_record(port, p->joined, OWN));
  turn(p);
  turn(p);
  return NULL;
}

/* Another thread's default stream joins and frees a block that its own work still uses. */
static void freed_by_anothers_stream(void) {
  static pair p;
  rig_block after;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE(pair_open(&p, NULL, join_and_free));
  tarni_port *port = (tarni_port *)p.rig.device;
  CHECK_OK(tarni_port_event_create(port, &p.forked));
  CHECK_OK(tarni_port_event_create(port, &p.joined));
  turn(&p);
  CHECK_OK(tarn_capture_begin(p.rig.heap, &relaxed, OWN, &capture));
  CHECK_OK(tarni_port_event_record(port, p.forked, OWN));
  turn(&p);
  turn(&p);
  CHECK_OK(tarni_port_event_wait(port, OWN, p.joined));
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(rig_alloc(&p.rig, MIB, OWN, &after));
  CHECK_OK(rig_free(&p.rig, &after, OWN));
  CHECK_OK(tarn_graph_destroy(graph));
  turn(&p);
  CHECK_OK(tarni_port_event_destroy(port, p.forked));
  CHECK_OK(tarni_port_event_destroy(port, p.joined));
  pair_close(&p);
}

static void *free_and_ask(void *user) {
  pair *p = user;
  rig_block mine, next;
  CHECK_OK(rig_alloc(&p->rig, 2 * MIB, OWN, &mine));
  turn(p);
  turn(p);
  CHECK_OK(rig_free(&p->rig, &p->block, p->rig.streams[1]));
  CHECK_OK(tarn_stream_synchronize(p->rig.device, p->rig.streams[1]));
  CHECK_OK(tarn_stream_synchronize(p->rig.device, OWN));
  CHECK_OK(rig_alloc(&p->rig, 4 * MIB, p->rig.streams[1], &next));
  CHECK_OK(rig_free(&p->rig, &next, p->rig.streams[1]));
  CHECK_OK(rig_free(&p->rig, &mine, OWN));
  turn(p);
  return NULL;
}

/* A use that is named on a captured default stream is that thread's, not the other's. */
static void used_by_its_own_stream(void) {
  static pair p;
  rig_block mine;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE(pair_open(&p, NULL, free_and_ask));
  rig *r = &p.rig;
  CHECK_OK(rig_alloc(r, MIB, OWN, &mine));
  CHECK_OK(rig_alloc(r, 4 * MIB, r->streams[1], &p.block));
  turn(&p);
  rig_order(r, r->streams[1], OWN);
  rig_touch(r, &p.block, OWN, true);
  CHECK_OK(tarn_capture_begin(r->heap, &relaxed, r->streams[0], &capture));
  rig_order(r, r->streams[0], OWN);
  CHECK_OK(tarn_use(r->heap, p.block.address, OWN));
  turn(&p);
  turn(&p);
  rig_order(r, OWN, r->streams[0]);
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(rig_free(r, &mine, OWN));
  CHECK_OK(tarn_heap_trim(r->heap, 0));
  pair_close(&p);
}

static void *join_and_use(void *user) {
  pair *p = user;
  tarni_port *port = (tarni_port *)p->rig.device;
  turn(p);
  CHECK_OK(tarni_port_event_wait(port, OWN, p->forked));
  rig_touch(&p->rig, &p->block, OWN, true);
  CHECK_OK(tarn_use(p->rig.heap, p->block.address, OWN));
  turn(p);
  turn(p);
  CHECK_OK(tarni_port_event_record(port, p->joined, OWN));
  turn(p);
  return NULL;
}

/* A captured block that another thread's default stream uses, freed by a thread whose own default
 * stream has nothing to do with it. */
static void captured_block_used_by_anothers(void) {
  static pair p;
  rig_block next;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  REQUIRE(pair_open(&p, NULL, join_and_use));
  rig *r = &p.rig;
  tarni_port *port = (tarni_port *)r->device;
  CHECK_OK(tarni_port_event_create(port, &p.forked));
  CHECK_OK(tarni_port_event_create(port, &p.joined));
  CHECK_OK(tarn_capture_begin(r->heap, &relaxed, r->streams[0], &capture));
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &p.block));
  CHECK_OK(tarni_port_event_record(port, p.forked, r->streams[0]));
  turn(&p);
  turn(&p);
  CHECK_OK(tarn_free(r->heap, p.block.address, r->streams[0]));
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &next));
  rig_touch(r, &next, r->streams[0], true);
  CHECK(next.address != p.block.address);
  CHECK_OK(tarn_free(r->heap, next.address, r->streams[0]));
  turn(&p);
  turn(&p);
  CHECK_OK(tarni_port_event_wait(port, r->streams[0], p.joined));
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_launch(graph, r->streams[0]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarni_port_event_destroy(port, p.forked));
  CHECK_OK(tarni_port_event_destroy(port, p.joined));
  pair_close(&p);
}

static void *write_join_and_free(void *user) {
  pair *p = user;
  tarni_port *port = (tarni_port *)p->rig.device;
  rig_block mine;
  CHECK_OK(rig_alloc(&p->rig, MIB, OWN, &mine)); /* so that the heap knows the stream */
  rig_touch(&p->rig, &p->block, OWN, true);
  turn(p);
  turn(p);
  CHECK_OK(tarni_port_event_wait(port, OWN, p->forked));
  CHECK_OK(tarn_free(p->rig.heap, p->block.address, OWN));
  CHECK_OK(tarni_port_event_record(port, p->joined, OWN));
  turn(p);
  turn(p);
  CHECK_OK(rig_free(&p->rig, &mine, OWN));
  return NULL;
}

/* An earlier graph's block, written by another thread's default stream before that joins a capture
 * and frees it there: its memory stays until the write is done. */
static void earlier_block_freed_by_anothers(void) {
  static pair p;
  tarn_capture *capture = NULL;
  tarn_graph *earlier = NULL, *graph = NULL;
  REQUIRE(CHECK(rig_open(&p.rig, "sim:256M,order=lazy", NULL, 3)));
  rig *r = &p.rig;
  tarni_port *port = (tarni_port *)r->device;
  CHECK_OK(tarn_capture_begin(r->heap, &relaxed, r->streams[0], &capture));
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &p.block));
  CHECK_OK(tarn_capture_end(&capture, &earlier));
  CHECK_OK(tarni_port_event_create(port, &p.forked));
  CHECK_OK(tarni_port_event_create(port, &p.joined));
  REQUIRE(pthread_barrier_init(&p.turn, NULL, 2) == 0);
  REQUIRE(pthread_create(&p.thread, NULL, write_join_and_free, &p) == 0);
  turn(&p);
  CHECK_OK(tarn_capture_begin(r->heap, &relaxed, OWN, &capture));
  CHECK_OK(tarni_port_event_record(port, p.forked, OWN));
  turn(&p);
  turn(&p);
  CHECK_OK(tarni_port_event_wait(port, OWN, p.joined));
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_graph_destroy(earlier));
  turn(&p);
  CHECK_OK(tarni_port_event_destroy(port, p.forked));
  CHECK_OK(tarni_port_event_destroy(port, p.joined));
  pair_close(&p);
}

/* ---- Memory that was an arena's ---- */

/* A graph in an arena on the caller's block, launched, and both gone. */
static void arena_lived(rig *r, tarn_ptr memory, uint64_t bytes) {
  const tarn_arena_config own = {.size = sizeof(own), .memory = memory, .memory_bytes = bytes};
  tarn_capture_config in_it = relaxed;
  rig_block inside;
  tarn_capture *capture = NULL;
  tarn_graph *graph = NULL;
  CHECK_OK(tarn_arena_create(r->heap, &own, &in_it.arena));
  CHECK_OK(tarn_capture_begin(r->heap, &in_it, r->streams[0], &capture));
  CHECK_OK(rig_capture_alloc(r, MIB, r->streams[0], &inside));
  CHECK_OK(tarn_free(r->heap, inside.address, r->streams[0]));
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK_OK(tarn_graph_launch(graph, r->streams[1]));
  CHECK_OK(tarn_graph_destroy(graph));
  CHECK_OK(tarn_arena_destroy(in_it.arena));
}

static void arena_after_arena(void) {
  rig r;
  tarn_ptr memory;
  tarn_arena *again = NULL;
  REQUIRE(rig_open(&r, "sim:256M,order=lazy", NULL, 2));
  CHECK_OK(tarn_alloc(r.heap, 4 * MIB, r.streams[0], &memory));
  arena_lived(&r, memory, 4 * MIB);
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[1]));
  const tarn_arena_config own = {.size = sizeof(own), .memory = memory, .memory_bytes = 4 * MIB};
  CHECK_OK(tarn_arena_create(r.heap, &own, &again)); /* nothing uses it any more */
  CHECK_OK(tarn_arena_destroy(again));
  CHECK_OK(tarn_free(r.heap, memory, r.streams[0]));
  rig_close(&r);
}

/* Blocks of the heap where an arena was that waits for its last launch are blocks of the heap. */
static void blocks_after_an_arena(void) {
  rig r;
  tarn_ptr memory, blocks[3];
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
  CHECK_OK(tarn_alloc(r.heap, 32 * MIB, r.streams[1], &memory));
  arena_lived(&r, memory, 32 * MIB);
  CHECK_OK(tarn_free(r.heap, memory, r.streams[1]));
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_alloc(r.heap, 8 * MIB, r.streams[1], &blocks[i]));
    CHECK_OK(tarn_use(r.heap, blocks[i], r.streams[2]));
  }
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_free(r.heap, blocks[i], r.streams[1]));
  }
  rig_close(&r);
}

/* ---- Streams of which the heap hears in a capture for the first time ---- */

static void end_driver_capture(const rig *r, tarn_stream stream) {
  tarni_port *port = (tarni_port *)r->device;
  tarni_graph graph;
  CHECK_OK(tarni_port_capture_end(port, stream, &graph));
  CHECK_OK(tarni_port_graph_destroy(port, graph, NULL));
}

/* Nobody told of the capture, and the first that the heap hears of the stream is a free. */
static void freed_by_unknown(bool is_retired) {
  const tarn_heap_config configs[] = {
      {.size = sizeof(configs[0]), .is_asking_captures = true},
      {.size = sizeof(configs[0]), .is_asking_captures = true, .backing = TARN_BACKING_PLAIN},
      {.size = sizeof(configs[0]), .is_asking_captures = true, .backing = TARN_BACKING_POOL},
  };
  for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
    rig r;
    rig_block small, large;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &configs[i], 2));
    CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &small));
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &large));
    rig_order(&r, r.streams[0], r.streams[1]);
    CHECK_OK(
        tarni_port_capture_begin((tarni_port *)r.device, r.streams[1], TARNI_CAPTURE_THREAD_LOCAL));
    CHECK_OK(rig_free(&r, &small, r.streams[1]));
    CHECK_OK(rig_free(&r, &large, r.streams[1]));
    CHECK_EQ(rig_stats(&r).live_blocks, 0);
    CHECK(rig_is_sound(&r));
    CHECK_STATUS(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP),
                 r.has_buckets ? TARN_UNSUPPORTED : TARN_CAPTURE);
    CHECK(r.has_buckets || strstr(tarn_last_message(), "stream with the handle 0x") != NULL);
    end_driver_capture(&r, r.streams[1]);
    if (is_retired) { /* the last that is heard of it */
      CHECK_OK(tarn_stream_retire(r.heap, r.streams[1]));
      CHECK_OK(tarn_stream_destroy(r.device, r.streams[1]));
      r.n_streams = 1;
    }
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

static void freed_by_an_unknown_stream(void) {
  freed_by_unknown(false);
}

static void freed_by_a_stream_that_goes(void) {
  freed_by_unknown(true);
}

/* A heap has found a capture, and hears no more: once it is over other heaps can wait again. */
static void found_and_forgotten(void) {
  const tarn_heap_config asking = {.size = sizeof(asking), .is_asking_captures = true};
  rig r;
  rig_block block;
  tarn_ptr address = 0;
  tarn_heap *other = NULL;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &asking, 2));
  const tarn_heap_config plain = {.size = sizeof(plain), .device = "sim:64M,order=lazy"};
  CHECK_OK(tarn_heap_create(&plain, &other));
  CHECK_OK(tarn_alloc(other, 8 * MIB, r.streams[0], &address));
  rig_own(&r, address, 8 * MIB, &block);
  rig_touch(&r, &block, r.streams[0], true);
  CHECK_OK(tarni_port_capture_begin((tarni_port *)r.device, r.streams[1], TARNI_CAPTURE_GLOBAL));
  tarn_ptr captured = 0;
  CHECK_OK(tarn_alloc(r.heap, MIB, r.streams[1], &captured));
  CHECK_OK(tarn_sim_disown(r.device, address, 8 * MIB));
  CHECK_OK(tarn_free(other, address, r.streams[0]));
  CHECK_STATUS(tarn_heap_trim(other, 0), TARN_CAPTURE);
  end_driver_capture(&r, r.streams[1]);
  CHECK_OK(tarn_heap_trim(other, 0));
  CHECK_OK(tarn_heap_destroy(other, NULL));
  CHECK_OK(tarn_free(r.heap, captured, r.streams[1]));
  rig_close(&r);
}

/* The second stream is captured: nobody told, and NULL, or it has joined the third one's, which was
 * announced. */
static tarn_capture *second_begin(rig *r, bool is_untold) {
  tarn_capture *capture = NULL;
  if (is_untold) {
    CHECK_OK(
        tarni_port_capture_begin((tarni_port *)r->device, r->streams[1], TARNI_CAPTURE_RELAXED));
  } else {
    CHECK_OK(tarn_capture_begin(r->heap, &relaxed, r->streams[2], &capture));
    rig_order(r, r->streams[2], r->streams[1]);
  }
  return capture;
}

static void second_end(rig *r, tarn_capture *capture) {
  if (capture == NULL) {
    end_driver_capture(r, r->streams[1]);
  } else {
    rig_order(r, r->streams[1], r->streams[2]);
    CHECK_OK(tarn_capture_abort(&capture));
  }
}

/* What the stream was given before the capture may use the block, although it is named only now. */
static void used_by_an_unknown_stream(void) {
  for (int i = 0; i < 2; i++) {
    rig r;
    rig_block block, other;
    tarn_capture *capture = NULL;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 3));
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &block));
    rig_order(&r, r.streams[0], r.streams[1]);
    rig_touch(&r, &block, r.streams[1], true);
    capture = second_begin(&r, i == 0);
    CHECK_OK(tarn_use(r.heap, block.address, r.streams[1]));
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &other)); /* not the same memory */
    CHECK_OK(rig_free(&r, &other, r.streams[0]));
    CHECK(rig_is_sound(&r));
    second_end(&r, capture);
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    CHECK_EQ(rig_stats(&r).quarantined_bytes, 0);
    rig_close(&r);
  }
}

/* An earlier graph's block, written by a stream of which the heap hears only when that frees it in
 * a capture: its memory stays until the write is done. */
static void captured_block_freed_by_an_unknown_stream(void) {
  for (int i = 0; i < 8; i++) {
    const tarn_heap_config config = {.size = sizeof(config),
                                     .is_verifying_streams = i / 2 % 2 != 0};
    rig r;
    rig_block block;
    tarn_capture *capture = NULL;
    REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 3));
    CHECK_OK(tarn_capture_begin(r.heap, &relaxed, r.streams[0], &capture));
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
    tarn_graph *earlier = rig_capture_end(capture);
    CHECK_OK(tarn_graph_launch(earlier, r.streams[0]));
    rig_order(&r, r.streams[0], r.streams[1]);
    rig_touch(&r, &block, r.streams[1], true);
    capture = second_begin(&r, i % 2 == 0);
    CHECK_OK(tarn_free(r.heap, block.address, r.streams[1]));
    CHECK_EQ(r.heap->n_lanes, 2 + (i % 2 != 0)); /* streams may come and go without a word */
    if (i < 4) {
      CHECK_OK(tarn_graph_destroy(earlier));
      CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0])); /* the launch is complete */
      CHECK_OK(tarn_heap_trim(r.heap, 0));
    } else { /* or it is launched again */
      CHECK_OK(tarn_graph_launch(earlier, r.streams[0]));
      CHECK_OK(tarn_graph_destroy(earlier));
    }
    second_end(&r, capture);
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    CHECK_EQ(rig_stats(&r).captured_bytes, 0);
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* The same again and again: what has been kept is given back where memory is short. */
static void captured_blocks_freed_by_new_streams(int how) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M,order=eager", NULL, 2));
  for (int i = 0; i < 60 && !test_case_failed(); i++) {
    rig_block block;
    tarn_stream side;
    tarn_arena *arena = NULL;
    tarn_capture_config config = relaxed;
    const tarn_arena_config reserving = {.size = sizeof(reserving), .reserve_bytes = MIB};
    config.reserve_bytes = how == 1 ? MIB : 0;
    if (how == 2) {
      CHECK_OK(tarn_arena_create(r.heap, &reserving, &arena));
      config.arena = arena;
    }
    CHECK_OK(tarn_stream_create(r.device, &side));
    tarn_capture *capture = rig_capture_begin(&r, &config);
    CHECK_OK(rig_capture_alloc(&r, MIB, r.streams[0], &block));
    tarn_graph *graph = rig_capture_end(capture);
    CHECK_OK(tarn_arena_destroy(arena));
    capture = rig_capture_begin(&r, &relaxed);
    rig_order(&r, r.streams[0], side);
    CHECK_OK(tarn_free(r.heap, block.address, side));
    rig_order(&r, side, r.streams[0]);
    CHECK_OK(tarn_capture_abort(&capture));
    CHECK_OK(tarn_stream_synchronize(r.device, side));
    CHECK_OK(tarn_stream_retire(r.heap, side));
    CHECK_OK(tarn_stream_destroy(r.device, side));
    CHECK_OK(tarn_graph_destroy(graph));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).captured_bytes, 0);
  rig_close(&r);
}

static void freed_by_new_streams(void) {
  captured_blocks_freed_by_new_streams(0);
}

static void freed_by_new_streams_with_a_reserve(void) {
  captured_blocks_freed_by_new_streams(1);
}

static void freed_by_new_streams_in_an_arena(void) {
  captured_blocks_freed_by_new_streams(2);
}

/* The stream goes without a word, and another has its handle: where streams are verified what the
 * first one freed is not the second one's. */
static void freed_by_a_stream_that_is_replaced(void) {
  const tarn_heap_config verifying = {.size = sizeof(verifying), .is_verifying_streams = true};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M,order=eager", &verifying, 2));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &block));
  rig_order(&r, r.streams[0], r.streams[1]);
  rig_touch(&r, &block, r.streams[1], true);
  CHECK_OK(tarni_port_capture_begin(port, r.streams[1], TARNI_CAPTURE_RELAXED));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  end_driver_capture(&r, r.streams[1]);
  const tarn_stream before = r.streams[1];
  CHECK_OK(tarn_stream_destroy(r.device, before));
  CHECK_OK(tarn_stream_create(r.device, &r.streams[1]));
  CHECK(r.streams[1] == before);
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[1], &block));
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* The same again and again: streams that have joined a capture are new, and go after it. */
static void used_by_many_new_streams(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:1G,order=lazy", NULL, 2));
  for (int i = 0; i < 40; i++) {
    rig_block block;
    tarn_stream side;
    tarn_capture *capture = NULL;
    CHECK_OK(tarn_stream_create(r.device, &side));
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &block));
    CHECK_OK(tarn_capture_begin(r.heap, &relaxed, r.streams[1], &capture));
    rig_order(&r, r.streams[1], side);
    CHECK_OK(tarn_use(r.heap, block.address, side));
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    rig_order(&r, side, r.streams[1]);
    CHECK_OK(tarn_capture_abort(&capture));
    CHECK_OK(tarn_stream_retire(r.heap, side));
    CHECK_OK(tarn_stream_destroy(r.device, side));
  }
  CHECK(rig_stats(&r).reserved_bytes < 40 * MIB);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* A heap that fills what is freed does so also behind such a use. */
static void filled_behind_a_new_stream(void) {
  const tarn_heap_config filling = {.size = sizeof(filling), .fill_free = 0x55};
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:64M", &filling, 2));
  tarni_port *port = (tarni_port *)r.device;
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_OK(tarni_port_capture_begin(port, r.streams[1], TARNI_CAPTURE_RELAXED));
  CHECK_OK(tarn_use(r.heap, block.address, r.streams[1]));
  end_driver_capture(&r, r.streams[1]);
  const tarn_ptr address = block.address;
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
  CHECK(rig_host_is((const void *)(uintptr_t)address, 0x55, 4 * MIB));
  rig_close(&r);
}

static void *capture_and_exit(void *user) {
  rig *r = user;
  tarn_ptr block = 0;
  CHECK_OK(tarni_port_capture_begin((tarni_port *)r->device, OWN, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_OK(tarn_alloc(r->heap, MIB, OWN, &block));
  CHECK_OK(tarn_free(r->heap, block, OWN));
  end_driver_capture(r, OWN);
  return NULL;
}

/* A capture of a thread's own stream is over when the thread is gone. */
static void found_in_a_thread_that_goes(void) {
  const tarn_heap_config asking = {.size = sizeof(asking), .is_asking_captures = true};
  rig r;
  rig_block block;
  pthread_t thread;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", &asking, 1));
  CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &block));
  REQUIRE(pthread_create(&thread, NULL, capture_and_exit, &r) == 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, rig_stats(&r).captured_bytes); /* the graph's */
  rig_close(&r);
}

static const test_case cases[] = {
    {"more streams than are kept apart", many_streams},
    {"found by its own thread", found_by_its_own_thread},
    {"freed by another thread's stream", freed_by_anothers_stream},
    {"used by its own stream", used_by_its_own_stream},
    {"a captured block used by another thread's stream", captured_block_used_by_anothers},
    {"an earlier block freed by another thread's stream", earlier_block_freed_by_anothers},
    {"an arena after an arena", arena_after_arena},
    {"blocks after an arena", blocks_after_an_arena},
    {"freed by a stream that is new", freed_by_an_unknown_stream},
    {"freed by a stream that is new, and goes", freed_by_a_stream_that_goes},
    {"freed by a stream that is new, and replaced", freed_by_a_stream_that_is_replaced},
    {"found by a heap that hears no more", found_and_forgotten},
    {"found in a thread that goes", found_in_a_thread_that_goes},
    {"a captured block freed by a stream that is new", captured_block_freed_by_an_unknown_stream},
    {"captured blocks freed by new streams", freed_by_new_streams},
    {"the same with memory that is reserved", freed_by_new_streams_with_a_reserve},
    {"the same with an arena", freed_by_new_streams_in_an_arena},
    {"used by a stream that is new", used_by_an_unknown_stream},
    {"used by many streams that are new", used_by_many_new_streams},
    {"filled behind a stream that is new", filled_behind_a_new_stream},
};

TEST_MAIN(cases)
