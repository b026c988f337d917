/* SPDX-License-Identifier: MIT
 *
 * Conformance: copies and fills between every two kinds of memory, on a stream and synchronous, of
 * odd sizes at odd places; words written and awaited. */
#include <stdlib.h>
#include <string.h>

#include "conform/conform.h"

enum { SPACE_BYTES = 1 << 17, N_SPACES = 5 };

/* One range of each kind of memory. */
typedef struct copy_spaces {
  tarn_ptr at[N_SPACES];
  tarn_stream stream;
  tarni_pool pool;
  conform_mapping mapping;
  void *ordinary;
  void *pinned;
} copy_spaces;

static tarn_status spaces_set_up(copy_spaces *spaces) {
  *spaces = (copy_spaces){0};
  spaces->ordinary = malloc(SPACE_BYTES);
  if (spaces->ordinary == NULL) {
    return TARN_HOST_MEMORY;
  }
  if (tarni_port_stream_create(conform_port, &spaces->stream) != TARN_OK ||
      tarni_port_pool_create(conform_port, UINT64_MAX, &spaces->pool) != TARN_OK ||
      tarni_port_host_alloc(conform_port, SPACE_BYTES, 0, &spaces->pinned) != TARN_OK ||
      tarni_port_plain_alloc(conform_port, SPACE_BYTES, &spaces->at[0]) != TARN_OK ||
      tarni_port_pool_alloc(conform_port, spaces->pool, SPACE_BYTES, spaces->stream,
                            &spaces->at[1]) != TARN_OK ||
      conform_map(conform_granule(), &spaces->mapping) != TARN_OK) {
    return tarn_last_error(NULL);
  }
  spaces->at[2] = spaces->mapping.address;
  spaces->at[3] = (uintptr_t)spaces->pinned;
  spaces->at[4] = (uintptr_t)spaces->ordinary;
  return tarni_port_stream_sync(conform_port, spaces->stream);
}

static void spaces_take_down(copy_spaces *spaces) {
  CHECK_OK(tarni_port_pool_free(conform_port, spaces->at[1], spaces->stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, spaces->stream));
  CHECK_OK(tarni_port_pool_destroy(conform_port, spaces->pool));
  CHECK_OK(tarni_port_plain_free(conform_port, spaces->at[0]));
  CHECK_OK(tarni_port_host_free(conform_port, spaces->pinned));
  CHECK_OK(conform_unmap(&spaces->mapping));
  CHECK_OK(tarni_port_stream_destroy(conform_port, spaces->stream));
  free(spaces->ordinary);
}

/* The bytes of any of the spaces, in `bytes`. */
static tarn_status read_space(const copy_spaces *spaces, int which, uint8_t *bytes) {
  if (which >= 3) {
    memcpy(bytes, which == 3 ? spaces->pinned : spaces->ordinary, SPACE_BYTES);
    return TARN_OK;
  }
  return tarni_port_copy_sync(conform_port, (uintptr_t)bytes, spaces->at[which], SPACE_BYTES);
}

static tarn_status write_space(const copy_spaces *spaces, int which, const uint8_t *bytes) {
  if (which >= 3) {
    memcpy(which == 3 ? spaces->pinned : spaces->ordinary, bytes, SPACE_BYTES);
    return TARN_OK;
  }
  return tarni_port_copy_sync(conform_port, spaces->at[which], (uintptr_t)bytes, SPACE_BYTES);
}

typedef struct copy_shape {
  uint64_t from;
  uint64_t to;
  uint64_t size;
} copy_shape;

static const copy_shape shapes[] = {
    {0, 0, SPACE_BYTES}, {0, 0, 1}, {1, 3, 4097}, {4096, 8192, 65536}, {77, SPACE_BYTES - 5, 5},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* Copies every shape from one space to another and returns how many bytes are wrong, those around
 * the destination counted too. */
static uint64_t copy_wrong_bytes(const copy_spaces *spaces, int source, int destination,
                                 bool is_sync) {
  static uint8_t pattern[SPACE_BYTES], expected[SPACE_BYTES], got[SPACE_BYTES];
  uint64_t n_wrong = 0;
  for (int i = 0; i < N_SHAPES; i++) {
    const copy_shape *shape = &shapes[i];
    const tarn_ptr from = spaces->at[source] + shape->from;
    const tarn_ptr to = spaces->at[destination] + shape->to;
    conform_pattern(pattern, SPACE_BYTES, (uint64_t)i);
    memset(expected, 0xee, SPACE_BYTES);
    if (write_space(spaces, source, pattern) != TARN_OK ||
        write_space(spaces, destination, expected) != TARN_OK) {
      return UINT64_MAX;
    }
    memcpy(expected + shape->to, pattern + shape->from, shape->size);
    const tarn_status status =
        is_sync ? tarni_port_copy_sync(conform_port, to, from, shape->size)
                : tarni_port_copy(conform_port, to, from, shape->size, spaces->stream);
    if (status != TARN_OK || tarni_port_stream_sync(conform_port, spaces->stream) != TARN_OK ||
        read_space(spaces, destination, got) != TARN_OK) {
      return UINT64_MAX;
    }
    for (int byte = 0; byte < SPACE_BYTES; byte++) {
      n_wrong += got[byte] != expected[byte];
    }
  }
  return n_wrong;
}

/* The ordinary space is one malloc: a copy within it needs a second. */
static void copies_between_all(bool is_sync) {
  copy_spaces spaces;
  REQUIRE_OK(spaces_set_up(&spaces));
  for (int source = 0; source < N_SPACES; source++) {
    for (int destination = 0; destination < N_SPACES; destination++) {
      if (source != destination) {
        CHECK_EQ(copy_wrong_bytes(&spaces, source, destination, is_sync), 0);
      }
    }
  }
  spaces_take_down(&spaces);
}

static void copies_on_a_stream(void) {
  copies_between_all(false);
}

static void copies_synchronous(void) {
  copies_between_all(true);
}

static uint64_t fill_wrong_bytes(const copy_spaces *spaces, int which, bool is_sync) {
  static uint8_t expected[SPACE_BYTES], got[SPACE_BYTES];
  uint64_t n_wrong = 0;
  for (int i = 0; i < N_SHAPES; i++) {
    const tarn_ptr to = spaces->at[which] + shapes[i].to;
    const uint8_t value = (uint8_t)(0x91 + i);
    conform_pattern(expected, SPACE_BYTES, 3);
    if (write_space(spaces, which, expected) != TARN_OK) {
      return UINT64_MAX;
    }
    memset(expected + shapes[i].to, value, shapes[i].size);
    const tarn_status status =
        is_sync ? tarni_port_fill_sync(conform_port, to, value, shapes[i].size)
                : tarni_port_fill(conform_port, to, value, shapes[i].size, spaces->stream);
    if (status != TARN_OK || tarni_port_stream_sync(conform_port, spaces->stream) != TARN_OK ||
        read_space(spaces, which, got) != TARN_OK) {
      return UINT64_MAX;
    }
    for (int byte = 0; byte < SPACE_BYTES; byte++) {
      n_wrong += got[byte] != expected[byte];
    }
  }
  return n_wrong;
}

/* Device memory and pinned memory; ordinary memory is out of a fill's reach. */
static void fills(void) {
  copy_spaces spaces;
  REQUIRE_OK(spaces_set_up(&spaces));
  for (int which = 0; which < 4; which++) {
    CHECK_EQ(fill_wrong_bytes(&spaces, which, false), 0);
    CHECK_EQ(fill_wrong_bytes(&spaces, which, true), 0);
  }
  spaces_take_down(&spaces);
}

static void zero_bytes(void) {
  const tarn_ptr nowhere = 0;
  const uint64_t calls = atomic_load(&conform_port->calls[TARN_CALL_COPY]);
  CHECK_OK(tarni_port_copy(conform_port, nowhere, nowhere, 0, NULL));
  CHECK_OK(tarni_port_copy_sync(conform_port, nowhere, nowhere, 0));
  CHECK_OK(tarni_port_fill(conform_port, nowhere, 1, 0, NULL));
  CHECK_OK(tarni_port_fill_sync(conform_port, nowhere, 1, 0));
  CHECK_EQ(atomic_load(&conform_port->calls[TARN_CALL_COPY]), calls);
  CHECK_STATUS(tarni_port_copy_sync(conform_port, nowhere, (uintptr_t)conform_pinned_a, 1),
               TARN_INVALID);
  CHECK_STATUS(tarni_port_copy_sync(conform_port, (uintptr_t)conform_pinned_a, nowhere, 1),
               TARN_INVALID);
  CHECK_STATUS(tarni_port_fill_sync(conform_port, nowhere, 1, 1), TARN_INVALID);
  CHECK_STATUS(tarni_port_fill_sync(conform_port, 4096, 1, UINT64_MAX), TARN_INVALID);
}

/* A long chain on one stream, with nothing but its order between the steps. */
static void stream_keeps_the_order(void) {
  enum { N = 200, SIZE = 4096 };
  tarn_stream stream;
  tarn_ptr first, second;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, SIZE, &first));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, SIZE, &second));
  for (int i = 0; i < N; i++) {
    CHECK_OK(tarni_port_fill(conform_port, first, (uint8_t)i, SIZE, stream));
    CHECK_OK(tarni_port_copy(conform_port, second, first, SIZE, stream));
    CHECK_OK(tarni_port_copy(conform_port, (uintptr_t)conform_pinned_b + (uint64_t)i * 256,
                             second + 128, 256, stream));
  }
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  uint64_t n_wrong = 0;
  for (uint64_t i = 0; i < N; i++) {
    n_wrong += conform_differ_value(conform_pinned_b + i * 256, 256, (uint8_t)i);
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarni_port_plain_free(conform_port, first));
  CHECK_OK(tarni_port_plain_free(conform_port, second));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

/* Neither form on a stream waits for pinned and device memory. */
static void work_does_not_wait(void) {
  tarn_stream stream;
  tarn_ptr block;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, CONFORM_PINNED_BYTES, &block));
  conform_pattern(conform_pinned_a, CONFORM_PINNED_BYTES, 8);
  memset(conform_pinned_b, 0, CONFORM_PINNED_BYTES);
  conform_gate *gate = conform_gate_close(stream);
  CHECK_OK(tarni_port_copy(conform_port, block, (uintptr_t)conform_pinned_a, CONFORM_PINNED_BYTES,
                           stream));
  CHECK_OK(tarni_port_fill(conform_port, block, 0x61, 100, stream));
  CHECK_OK(tarni_port_copy(conform_port, (uintptr_t)conform_pinned_b, block, CONFORM_PINNED_BYTES,
                           stream));
  CHECK_STATUS(tarni_port_stream_query(conform_port, stream), TARN_NOT_READY);
  CHECK_EQ(conform_differ_value(conform_pinned_b, CONFORM_PINNED_BYTES, 0), 0);
  CHECK(conform_gate_open(gate));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_EQ(conform_differ_value(conform_pinned_b, 100, 0x61), 0);
  conform_pattern(conform_pinned_b, 100, 8);
  CHECK_EQ(conform_differ(conform_pinned_b, CONFORM_PINNED_BYTES, 8), 0);
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static void words(void) {
  tarn_stream stream, other;
  uint64_t *cells = (uint64_t *)(void *)conform_pinned_a;
  memset(conform_pinned_a, 0, 64);
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_stream_create(conform_port, &other));
  /* A wait is over when the word is at least the value, and a stream's write is enough. */
  CHECK_OK(tarni_port_value_wait(conform_port, other, &cells[0], 5));
  CHECK_OK(tarni_port_value_write(conform_port, other, &cells[1], UINT64_MAX));
  CHECK_STATUS(tarni_port_stream_query(conform_port, other), TARN_NOT_READY);
  CHECK_OK(tarni_port_value_write(conform_port, stream, &cells[0], 4));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_STATUS(tarni_port_stream_query(conform_port, other), TARN_NOT_READY);
  CHECK_EQ(cells[0], 4);
  CHECK_OK(tarni_port_value_write(conform_port, stream, &cells[0], UINT64_C(1) << 40));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  if (!CHECK_EQ(cells[0], UINT64_C(1) << 40)) {
    __atomic_store_n(&cells[0], UINT64_C(1) << 40, __ATOMIC_RELEASE); /* fail, but do not hang */
  }
  CHECK_OK(tarni_port_stream_sync(conform_port, other));
  CHECK_EQ(cells[1], UINT64_MAX);
  CHECK_STATUS(
      tarni_port_value_write(conform_port, stream, (uint64_t *)(void *)(conform_pinned_a + 4), 1),
      TARN_INVALID);
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
  CHECK_OK(tarni_port_stream_destroy(conform_port, other));
}

enum { BATCH_COPIES = 300, BATCH_PIECE = 100 };

/* Odd pieces, each at its own place, and the bytes between them untouched. */
static void copies_in_batches(tarn_stream stream) {
  tarni_copy copies[BATCH_COPIES];
  tarn_ptr block;
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, CONFORM_PINNED_BYTES, &block));
  CHECK_OK(tarni_port_fill(conform_port, block, 0xee, CONFORM_PINNED_BYTES, stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  conform_pattern(conform_pinned_a, CONFORM_PINNED_BYTES, 21);
  for (uint64_t i = 0; i < BATCH_COPIES; i++) {
    copies[i] = (tarni_copy){.destination = block + i * 2 * BATCH_PIECE,
                             .source = (uintptr_t)conform_pinned_a + i * BATCH_PIECE,
                             .size = BATCH_PIECE - i % 3};
  }
  CHECK_OK(tarni_port_copy_batch(conform_port, copies, BATCH_COPIES, stream, TARNI_COPY_FAST));
  CHECK_OK(tarni_port_copy(conform_port, (uintptr_t)conform_pinned_b, block, CONFORM_PINNED_BYTES,
                           stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  uint64_t n_wrong = 0;
  for (uint64_t i = 0; i < BATCH_COPIES; i++) {
    const uint8_t *piece = conform_pinned_b + i * 2 * BATCH_PIECE;
    const uint64_t size = copies[i].size;
    n_wrong += memcmp(piece, conform_pinned_a + i * BATCH_PIECE, size) != 0;
    n_wrong += conform_differ_value(piece + size, 2 * BATCH_PIECE - size, 0xee);
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarni_port_plain_free(conform_port, block));
}

/* Sizes and places of every alignment, larger and smaller than what a port may treat apart, to the
 * device and back; every byte is compared, and those between pieces are untouched. */
static void copies_of_all_shapes(tarn_stream stream) {
  static const uint64_t sizes[] = {1,     2,     3,     4,     15,    16,   17,
                                   64,    252,   1000,  4096,  4097,  8188, 16383,
                                   16385, 16400, 65532, 65535, 65536, 65537};
  enum { SHAPES = 60, ROOM = 66 << 10 };
  tarni_copy up[SHAPES], down[SHAPES];
  tarn_ptr block;
  uint8_t *from, *back;
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, SHAPES * ROOM, &block));
  REQUIRE_OK(tarni_port_host_alloc(conform_port, SHAPES * ROOM, 0, (void **)&from));
  REQUIRE_OK(tarni_port_host_alloc(conform_port, SHAPES * ROOM, 0, (void **)&back));
  conform_pattern(from, SHAPES * ROOM, 23);
  memset(back, 0xee, SHAPES * ROOM);
  for (uint64_t i = 0; i < SHAPES; i++) {
    up[i] = (tarni_copy){.destination = block + i * ROOM + i / 20 * 4,
                         .source = (uintptr_t)from + i * ROOM + i / 20 * (i % 7),
                         .size = sizes[i % 20]};
    down[i] = (tarni_copy){.destination = (uintptr_t)back + i * ROOM + i % 3,
                           .source = up[i].destination,
                           .size = up[i].size};
  }
  CHECK_OK(tarni_port_copy_batch(conform_port, up, SHAPES, stream, TARNI_COPY_FAST));
  CHECK_OK(tarni_port_copy_batch(conform_port, down, SHAPES, stream, TARNI_COPY_FAST));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  uint64_t n_wrong = 0;
  for (uint64_t i = 0; i < SHAPES; i++) {
    const uint8_t *room = back + i * ROOM, *piece = room + i % 3;
    n_wrong += memcmp(piece, from + (up[i].source - (uintptr_t)from), up[i].size) != 0;
    n_wrong += conform_differ_value(room, i % 3, 0xee);
    n_wrong += conform_differ_value(piece + up[i].size, ROOM - i % 3 - up[i].size, 0xee);
  }
  CHECK_EQ(n_wrong, 0);
  CHECK_OK(tarni_port_host_free(conform_port, from));
  CHECK_OK(tarni_port_host_free(conform_port, back));
  CHECK_OK(tarni_port_plain_free(conform_port, block));
}

/* One bad address among many: refused, and the device still works. */
static void bad_copy_in_a_batch(tarn_stream stream) {
  tarni_copy copies[8];
  tarn_ptr block;
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, 4096, &block));
  for (uint64_t i = 0; i < 8; i++) {
    copies[i] = (tarni_copy){block + i * 100, (uintptr_t)conform_pinned_a + i * 100, 100};
  }
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK(tarni_port_copy_batch(conform_port, copies, 8, stream, TARNI_COPY_FAST) != TARN_OK);
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
}

static void batches(void) {
  tarn_stream stream;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  copies_in_batches(stream);
  copies_of_all_shapes(stream);
  tarni_port_copy_prepare(conform_port);
  copies_in_batches(stream);
  copies_of_all_shapes(stream);
  copies_of_all_shapes(TARNI_STREAM_PER_THREAD);
  bad_copy_in_a_batch(stream);
  copies_in_batches(NULL);
  copies_in_batches(TARNI_STREAM_PER_THREAD);
  CHECK_OK(tarni_port_copy_batch(conform_port, NULL, 0, stream, TARNI_COPY_FAST));
  tarni_copy bad[2] = {{(uintptr_t)conform_pinned_b, (uintptr_t)conform_pinned_a, 8},
                       {(uintptr_t)conform_pinned_b, (uintptr_t)conform_pinned_a, 0}};
  const uint64_t calls = atomic_load(&conform_port->calls[TARN_CALL_COPY_BATCH]);
  CHECK_STATUS(tarni_port_copy_batch(conform_port, bad, 2, stream, TARNI_COPY_FAST), TARN_INVALID);
  bad[1].size = UINT64_MAX;
  CHECK_STATUS(tarni_port_copy_batch(conform_port, bad, 2, stream, TARNI_COPY_FAST), TARN_INVALID);
  bad[1].source = 0;
  CHECK_STATUS(tarni_port_copy_batch(conform_port, bad, 2, stream, TARNI_COPY_FAST), TARN_INVALID);
  CHECK_STATUS(tarni_port_copy_batch(conform_port, bad, 1, stream, (tarni_copy_way)2),
               TARN_INVALID);
  CHECK_STATUS(tarni_port_copy_batch(conform_port, NULL, 2, stream, TARNI_COPY_FAST), TARN_INVALID);
  CHECK_EQ(atomic_load(&conform_port->calls[TARN_CALL_COPY_BATCH]), calls);
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

/* In a capture a batch becomes single copies, and runs with the graph. */
static void batches_in_a_capture(void) {
  tarn_stream stream;
  tarn_ptr block;
  tarni_graph graph = NULL;
  tarni_graph_exec exec = NULL;
  REQUIRE_OK(tarni_port_stream_create(conform_port, &stream));
  REQUIRE_OK(tarni_port_plain_alloc(conform_port, 4096, &block));
  const tarni_copy copies[2] = {{block, (uintptr_t)conform_pinned_a, 100},
                                {block + 200, (uintptr_t)conform_pinned_a + 100, 100}};
  CHECK_OK(tarni_port_capture_begin(conform_port, stream, TARNI_CAPTURE_THREAD_LOCAL));
  CHECK_OK(tarni_port_copy_batch(conform_port, copies, 2, stream, TARNI_COPY_FAST));
  CHECK_OK(tarni_port_capture_end(conform_port, stream, &graph));
  CHECK_OK(tarni_port_graph_instantiate(conform_port, graph, &exec));
  conform_pattern(conform_pinned_a, 200, 5); /* read at the launch */
  CHECK_OK(tarni_port_graph_launch(conform_port, exec, stream));
  CHECK_OK(tarni_port_stream_sync(conform_port, stream));
  CHECK_OK(tarni_port_copy_sync(conform_port, (uintptr_t)conform_pinned_b, block, 300));
  CHECK(memcmp(conform_pinned_b, conform_pinned_a, 100) == 0);
  CHECK(memcmp(conform_pinned_b + 200, conform_pinned_a + 100, 100) == 0);
  CHECK_OK(tarni_port_graph_destroy(conform_port, graph, exec));
  CHECK_OK(tarni_port_plain_free(conform_port, block));
  CHECK_OK(tarni_port_stream_destroy(conform_port, stream));
}

static const test_case copy_cases[] = {
    {"copy: between all kinds of memory, on a stream", copies_on_a_stream},
    {"copy: between all kinds of memory, synchronous", copies_synchronous},
    {"copy: fills of all kinds of memory", fills},
    {"copy: zero bytes, bad addresses", zero_bytes},
    {"copy: a stream keeps the order", stream_keeps_the_order},
    {"copy: work on a stream does not wait", work_does_not_wait},
    {"copy: words written and awaited", words},
    {"copy: many in one call", batches},
    {"copy: many in one call of a capture", batches_in_a_capture},
};
CONFORM_TABLE(copy, copy_cases)
