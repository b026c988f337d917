/* SPDX-License-Identifier: MIT
 *
 * The probe: shows a device at work through the checked calls of the port, compares every byte and
 * times every call. Everything that a round makes hangs on one struct, which is taken down in one
 * place whether the round succeeded or not. Owns nothing between calls; no locks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/check.h"
#include "base/error.h"
#include "internal.h"
#include "port/port.h"
#include "tarn/tarn.h"

enum {
  N_ROUNDS = 9,         /* of every kind: enough for a median */
  N_SAMPLES = 64,       /* the most that are kept of a call */
  PROBE_BYTES = 1 << 16 /* that a round writes and compares at a time */
};

_Static_assert((int)TARN_PROBE_COUNT <= (int)TARN_PROBE_CAPACITY,
               "the report has room for every kind");
_Static_assert((int)TARN_CALL_COUNT <= (int)TARN_CALL_CAPACITY,
               "the report has room for every call");

/* What a round made and has not taken down yet. Zero: nothing. */
typedef struct probe_things {
  tarn_stream streams[2];
  tarni_event event;
  tarni_graph graph;
  tarni_graph_exec exec;
  bool is_capturing; /* streams[0] */
  tarn_ptr reservation;
  uint64_t reserved_bytes;
  tarni_chunk chunks[3];
  tarn_ptr mappings[3];
  tarn_ptr plain;
  tarni_pool pool;
  tarn_ptr pool_block;
  uint8_t *pinned; /* two halves of PROBE_BYTES */
  uint64_t *gate;  /* a word in pinned memory that a stream waits for */
  void *ordinary;
  bool is_registered;
} probe_things;

typedef struct probe {
  tarni_port *port;
  uint64_t start_ns;
  uint64_t compared_bytes;
  tarn_error first_error; /* of all kinds */
  probe_things things;
  tarn_probe_report report;
  uint64_t samples[TARN_CALL_COUNT][N_SAMPLES];
} probe;

/* ---- Prices --------------------------------------------------------------------------------- */

static tarn_status note_price(probe *p, tarn_call call, tarn_status status) {
  const uint64_t duration_ns = tarni_port_now_ns(p->port) - p->start_ns;
  tarn_probe_price *price = &p->report.prices[call];
  const bool is_done = status == TARN_OK || status == TARN_NOT_READY; /* else it cost nothing */
  if (is_done && price->calls < N_SAMPLES) {
    p->samples[call][price->calls++] = duration_ns;
  }
  return status;
}

/* One call of the port, timed; its status. */
#define TIMED(p, call, expression)                                                                 \
  ((p)->start_ns = tarni_port_now_ns((p)->port), note_price((p), TARN_CALL_##call, (expression)))

static int compare_durations(const void *a, const void *b) {
  const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
  return (left > right) - (left < right);
}

static void take_medians(probe *p) {
  for (int call = 0; call < TARN_CALL_COUNT; call++) {
    tarn_probe_price *price = &p->report.prices[call];
    if (price->calls > 0) {
      qsort(p->samples[call], price->calls, sizeof(p->samples[call][0]), compare_durations);
      price->median_ns = p->samples[call][price->calls / 2];
    }
  }
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

static uint8_t expected_byte(uint64_t i, uint8_t seed) {
  return (uint8_t)((i * 131 + (i >> 8) * 31 + seed) & 0xff);
}

static void write_pattern(uint8_t *bytes, uint64_t size, uint8_t seed) {
  for (uint64_t i = 0; i < size; i++) {
    bytes[i] = expected_byte(i, seed);
  }
}

static tarn_status wrong_device(const probe *p, const char *what) {
  const tarni_facts facts = {.device = p->port->device.name};
  return tarni_fail(TARN_CORRUPT, "tarn_device_probe", &facts,
                    "The device, its driver or tarn is wrong: do not use the device, and report "
                    "this with the output of `tarn info`.",
                    "%s", what);
}

static tarn_status differing_byte(const probe *p, uint64_t i, unsigned got, unsigned want) {
  char text[80];
  (void)snprintf(text, sizeof(text), "byte %llu is 0x%02x, not 0x%02x", (unsigned long long)i, got,
                 want);
  return wrong_device(p, text);
}

static tarn_status compare_pattern(probe *p, const uint8_t *bytes, uint64_t size, uint8_t seed) {
  for (uint64_t i = 0; i < size; i++) {
    if (bytes[i] != expected_byte(i, seed)) {
      return differing_byte(p, i, bytes[i], expected_byte(i, seed));
    }
  }
  p->compared_bytes += size;
  return TARN_OK;
}

static tarn_status compare_value(probe *p, const uint8_t *bytes, uint64_t size, uint8_t value) {
  for (uint64_t i = 0; i < size; i++) {
    if (bytes[i] != value) {
      return differing_byte(p, i, bytes[i], value);
    }
  }
  p->compared_bytes += size;
  return TARN_OK;
}

/* Pinned memory to the device and back to the other half, in the order of the first stream. */
static tarn_status round_trip(probe *p, tarn_ptr block, uint8_t seed) {
  const probe_things *things = &p->things;
  const tarn_ptr out = (uintptr_t)things->pinned, back = out + PROBE_BYTES;
  write_pattern(things->pinned, PROBE_BYTES, seed);
  memset(things->pinned + PROBE_BYTES, 0, PROBE_BYTES);
  TARN_TRY(TIMED(p, COPY, tarni_port_copy(p->port, block, out, PROBE_BYTES, things->streams[0])));
  TARN_TRY(TIMED(p, COPY, tarni_port_copy(p->port, back, block, PROBE_BYTES, things->streams[0])));
  TARN_TRY(TIMED(p, STREAM_SYNC, tarni_port_stream_sync(p->port, things->streams[0])));
  return compare_pattern(p, things->pinned + PROBE_BYTES, PROBE_BYTES, seed);
}

/* ---- The kinds ------------------------------------------------------------------------------ */

/* Three slots; two chunks, the first mapped in slots 0 and 2, the second in slot 1. */
static tarn_status map_chunks(probe *p, uint64_t granule) {
  probe_things *things = &p->things;
  TARN_TRY(TIMED(p, RESERVE, tarni_port_reserve(p->port, granule * 3, 0, &things->reservation)));
  things->reserved_bytes = granule * 3;
  for (uint64_t i = 0; i < 3; i++) {
    const uint64_t which = i % 2;
    const tarn_ptr slot = things->reservation + i * granule;
    if (things->chunks[which] == 0) {
      TARN_TRY(TIMED(p, CREATE, tarni_port_create(p->port, granule, &things->chunks[which])));
    }
    TARN_TRY(TIMED(p, MAP, tarni_port_map(p->port, slot, granule, things->chunks[which])));
    things->mappings[i] = slot;
  }
  return TIMED(p, ACCESS, tarni_port_access(p->port, things->reservation, granule * 3));
}

/* Writes across the border of the two chunks, and reads what the first one got through slot 2. */
static tarn_status try_chunks(probe *p) {
  const probe_things *things = &p->things;
  const uint64_t granule = p->port->device.granularity_bytes;
  TARN_TRY(map_chunks(p, granule));
  const uint64_t half = tarni_min(granule, PROBE_BYTES / 2);
  const tarn_ptr border = things->reservation + granule;
  const tarn_ptr back = (uintptr_t)things->pinned;
  TARN_TRY(
      TIMED(p, FILL, tarni_port_fill(p->port, border - half, 0x5a, half * 2, things->streams[0])));
  TARN_TRY(
      TIMED(p, COPY, tarni_port_copy(p->port, back, border - half, half * 2, things->streams[0])));
  TARN_TRY(TIMED(p, STREAM_SYNC, tarni_port_stream_sync(p->port, things->streams[0])));
  TARN_TRY(compare_value(p, things->pinned, half * 2, 0x5a));
  TARN_TRY(TIMED(p, FILL_SYNC, tarni_port_fill_sync(p->port, border - half, 0xa5, half)));
  const tarn_ptr alias = things->mappings[2] + granule - half;
  TARN_TRY(TIMED(p, COPY_SYNC, tarni_port_copy_sync(p->port, back, alias, half)));
  return compare_value(p, things->pinned, half, 0xa5);
}

static tarn_status import_again(probe *p) {
  probe_things *things = &p->things;
  int descriptor;
  TARN_TRY(TIMED(p, EXPORT, tarni_port_export(p->port, things->chunks[0], &descriptor)));
  const tarn_status status =
      TIMED(p, IMPORT, tarni_port_import(p->port, descriptor, &things->chunks[2]));
  tarni_port_close_descriptor(descriptor);
  return status;
}

static tarn_status try_sharing(probe *p) {
  probe_things *things = &p->things;
  const uint64_t granule = p->port->device.granularity_bytes;
  const uint64_t size = tarni_min(granule, PROBE_BYTES);
  TARN_TRY(tarni_port_reserve(p->port, granule * 2, 0, &things->reservation));
  things->reserved_bytes = granule * 2;
  TARN_TRY(tarni_port_create(p->port, granule, &things->chunks[0]));
  TARN_TRY(import_again(p));
  for (uint64_t i = 0; i < 2; i++) {
    const tarn_ptr slot = things->reservation + i * granule;
    TARN_TRY(tarni_port_map(p->port, slot, granule, things->chunks[i * 2]));
    things->mappings[i] = slot;
  }
  TARN_TRY(tarni_port_access(p->port, things->reservation, granule * 2));
  TARN_TRY(tarni_port_fill_sync(p->port, things->mappings[0], 0x77, size));
  TARN_TRY(tarni_port_copy_sync(p->port, (uintptr_t)things->pinned, things->mappings[1], size));
  return compare_value(p, things->pinned, size, 0x77);
}

static tarn_status try_plain(probe *p) {
  TARN_TRY(TIMED(p, PLAIN_ALLOC, tarni_port_plain_alloc(p->port, PROBE_BYTES, &p->things.plain)));
  return round_trip(p, p->things.plain, 3);
}

static tarn_status try_pool(probe *p) {
  probe_things *things = &p->things;
  TARN_TRY(TIMED(p, POOL_CREATE, tarni_port_pool_create(p->port, UINT64_MAX, &things->pool)));
  for (uint8_t i = 0; i < 2; i++) {
    TARN_TRY(TIMED(p, POOL_ALLOC,
                   tarni_port_pool_alloc(p->port, things->pool, PROBE_BYTES, things->streams[0],
                                         &things->pool_block)));
    TARN_TRY(round_trip(p, things->pool_block, i));
    const tarn_ptr block = things->pool_block;
    TARN_TRY(TIMED(p, POOL_FREE, tarni_port_pool_free(p->port, block, things->streams[0])));
    things->pool_block = 0;
  }
  TARN_TRY(tarni_port_stream_sync(p->port, things->streams[0]));
  return TIMED(p, POOL_TRIM, tarni_port_pool_trim(p->port, things->pool, 0));
}

/* Both halves are pinned: one is copied to the other with no device memory between. */
static tarn_status try_pinned(probe *p) {
  const probe_things *things = &p->things;
  const tarn_ptr out = (uintptr_t)things->pinned, back = out + PROBE_BYTES;
  write_pattern(things->pinned, PROBE_BYTES, 5);
  memset(things->pinned + PROBE_BYTES, 0, PROBE_BYTES);
  const uint64_t half = PROBE_BYTES / 2;
  const tarni_copy copies[2] = {{back, out, half}, {back + half, out + half, half}};
  TARN_TRY(TIMED(p, COPY_BATCH,
                 tarni_port_copy_batch(p->port, copies, 2, things->streams[0], TARNI_COPY_FAST)));
  TARN_TRY(TIMED(p, STREAM_SYNC, tarni_port_stream_sync(p->port, things->streams[0])));
  return compare_pattern(p, things->pinned + PROBE_BYTES, PROBE_BYTES, 5);
}

static tarn_status try_registered(probe *p) {
  probe_things *things = &p->things;
  things->ordinary = aligned_alloc(4096, PROBE_BYTES);
  if (things->ordinary == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_device_probe", NULL, "Free host memory.",
                      "no host memory for %d bytes", (int)PROBE_BYTES);
  }
  write_pattern(things->ordinary, PROBE_BYTES, 6);
  TARN_TRY(
      TIMED(p, HOST_REGISTER, tarni_port_host_register(p->port, things->ordinary, PROBE_BYTES)));
  things->is_registered = true;
  TARN_TRY(tarni_port_copy(p->port, (uintptr_t)things->pinned, (uintptr_t)things->ordinary,
                           PROBE_BYTES, things->streams[0]));
  TARN_TRY(tarni_port_stream_sync(p->port, things->streams[0]));
  return compare_pattern(p, things->pinned, PROBE_BYTES, 6);
}

/* The first stream waits for a word, fills, records; the second waits for that and copies back. */
static tarn_status order_streams(probe *p, uint64_t *words) {
  probe_things *things = &p->things;
  const tarn_ptr back = (uintptr_t)things->pinned + PROBE_BYTES;
  TARN_TRY(TIMED(p, VALUE_WAIT, tarni_port_value_wait(p->port, things->streams[0], &words[0], 1)));
  things->gate = &words[0];
  TARN_TRY(TIMED(p, FILL,
                 tarni_port_fill(p->port, things->plain, 0x3c, PROBE_BYTES, things->streams[0])));
  TARN_TRY(
      TIMED(p, EVENT_RECORD, tarni_port_event_record(p->port, things->event, things->streams[0])));
  TARN_TRY(TIMED(p, EVENT_WAIT, tarni_port_event_wait(p->port, things->streams[1], things->event)));
  TARN_TRY(TIMED(p, COPY,
                 tarni_port_copy(p->port, back, things->plain, PROBE_BYTES, things->streams[1])));
  return TIMED(p, VALUE_WRITE, tarni_port_value_write(p->port, things->streams[1], &words[1], 7));
}

/* While the first stream is held nothing behind it may have happened. */
static tarn_status expect_pending(const probe *p, tarn_status status) {
  if (status == TARN_OK) {
    return wrong_device(p, "work that waits for a word was complete before the word was written");
  }
  return status == TARN_NOT_READY ? TARN_OK : status;
}

static tarn_status try_streams(probe *p) {
  probe_things *things = &p->things;
  uint64_t *words = (uint64_t *)(void *)things->pinned;
  uint64_t ids[2];
  memset(things->pinned, 0, (size_t)PROBE_BYTES * 2);
  TARN_TRY(TIMED(p, STREAM_CREATE, tarni_port_stream_create(p->port, &things->streams[1])));
  TARN_TRY(TIMED(p, STREAM_ID, tarni_port_stream_id(p->port, things->streams[0], &ids[0])));
  TARN_TRY(TIMED(p, STREAM_ID, tarni_port_stream_id(p->port, things->streams[1], &ids[1])));
  TARN_TRY(TIMED(p, EVENT_CREATE, tarni_port_event_create(p->port, &things->event)));
  TARN_TRY(tarni_port_plain_alloc(p->port, PROBE_BYTES, &things->plain));
  TARN_TRY(order_streams(p, words));
  TARN_TRY(expect_pending(
      p, TIMED(p, STREAM_QUERY, tarni_port_stream_query(p->port, things->streams[1]))));
  TARN_TRY(
      expect_pending(p, TIMED(p, EVENT_QUERY, tarni_port_event_query(p->port, things->event))));
  __atomic_store_n(things->gate, 1, __ATOMIC_RELEASE);
  TARN_TRY(TIMED(p, EVENT_SYNC, tarni_port_event_sync(p->port, things->event)));
  TARN_TRY(TIMED(p, STREAM_SYNC, tarni_port_stream_sync(p->port, things->streams[1])));
  if (ids[0] == ids[1]) {
    return wrong_device(p, "two streams have the same id");
  }
  if (words[1] != 7) {
    return wrong_device(p, "a word that a stream was to write was not written");
  }
  return compare_value(p, things->pinned + PROBE_BYTES, PROBE_BYTES, 0x3c);
}

/* The last node follows one: the copy before it. A driver that cannot tell is a good one, too. */
static tarn_status capture_look_back(probe *p, tarn_stream stream) {
  tarni_edge edge = {0};
  uint32_t count;
  tarn_status status =
      TIMED(p, CAPTURE_NODES, tarni_port_capture_nodes(p->port, stream, &edge, 1, &count));
  if (status == TARN_UNSUPPORTED) {
    return TARN_OK;
  }
  if (status == TARN_OK && count == 1) {
    status = TIMED(p, NODE_BEFORE, tarni_port_node_before(p->port, edge.node, &edge, 1, &count));
  }
  if (status == TARN_OK && count != 1) {
    return wrong_device(p, "two copies of one stream are not a line in the captured graph");
  }
  return status;
}

static tarn_status capture_round_trip(probe *p) {
  probe_things *things = &p->things;
  tarn_stream stream = things->streams[0];
  const tarn_ptr out = (uintptr_t)things->pinned, back = out + PROBE_BYTES;
  tarni_capture_state state;
  TARN_TRY(TIMED(p, CAPTURE_BEGIN,
                 tarni_port_capture_begin(p->port, stream, TARNI_CAPTURE_THREAD_LOCAL)));
  things->is_capturing = true;
  TARN_TRY(TIMED(p, CAPTURE_STATE, tarni_port_capture_state(p->port, stream, &state)));
  TARN_TRY(tarni_port_copy(p->port, things->plain, out, PROBE_BYTES, stream));
  TARN_TRY(tarni_port_copy(p->port, back, things->plain, PROBE_BYTES, stream));
  TARN_TRY(capture_look_back(p, stream));
  TARN_TRY(TIMED(p, CAPTURE_END, tarni_port_capture_end(p->port, stream, &things->graph)));
  things->is_capturing = false;
  return TIMED(p, GRAPH_INSTANTIATE,
               tarni_port_graph_instantiate(p->port, things->graph, &things->exec));
}

static tarn_status try_capture(probe *p) {
  probe_things *things = &p->things;
  TARN_TRY(tarni_port_plain_alloc(p->port, PROBE_BYTES, &things->plain));
  TARN_TRY(capture_round_trip(p));
  for (uint8_t seed = 1; seed <= 3; seed++) {
    write_pattern(things->pinned, PROBE_BYTES, seed);
    TARN_TRY(
        TIMED(p, GRAPH_LAUNCH, tarni_port_graph_launch(p->port, things->exec, things->streams[0])));
    TARN_TRY(tarni_port_stream_sync(p->port, things->streams[0]));
    TARN_TRY(compare_pattern(p, things->pinned + PROBE_BYTES, PROBE_BYTES, seed));
  }
  return TARN_OK;
}

/* ---- A round -------------------------------------------------------------------------------- */

static tarn_status set_up_round(probe *p) {
  uint64_t free_bytes, total_bytes;
  void *pinned;
  TARN_TRY(TIMED(p, INFO, tarni_port_info(p->port, &free_bytes, &total_bytes)));
  TARN_TRY(TIMED(p, STREAM_CREATE, tarni_port_stream_create(p->port, &p->things.streams[0])));
  TARN_TRY(
      TIMED(p, HOST_ALLOC, tarni_port_host_alloc(p->port, (uint64_t)PROBE_BYTES * 2, 0, &pinned)));
  p->things.pinned = pinned;
  return TARN_OK;
}

/* Keeps the first of two statuses that is a failure. */
static tarn_status first_of(tarn_status first, tarn_status second) {
  return first != TARN_OK ? first : second;
}

/* Ends whatever the streams still do, so that nothing is taken down under their feet. */
static tarn_status quiesce(probe *p) {
  probe_things *things = &p->things;
  tarn_status status = TARN_OK;
  if (things->gate != NULL) {
    __atomic_store_n(things->gate, 1, __ATOMIC_RELEASE);
  }
  if (things->is_capturing) {
    (void)tarni_port_capture_end(p->port, things->streams[0], &things->graph);
  }
  for (int i = 0; i < 2; i++) {
    if (things->streams[i] != NULL) {
      status = first_of(status, tarni_port_stream_sync(p->port, things->streams[i]));
    }
  }
  return status;
}

static tarn_status drop_mappings(probe *p) {
  probe_things *things = &p->things;
  const uint64_t granule = p->port->device.granularity_bytes;
  tarn_status status = TARN_OK;
  for (int i = 0; i < 3; i++) {
    if (things->mappings[i] != 0) {
      status = first_of(status,
                        TIMED(p, UNMAP, tarni_port_unmap(p->port, things->mappings[i], granule)));
    }
  }
  for (int i = 0; i < 3; i++) {
    if (things->chunks[i] != 0) {
      status = first_of(status, TIMED(p, RELEASE, tarni_port_release(p->port, things->chunks[i])));
    }
  }
  if (things->reservation != 0) {
    status = first_of(
        status, TIMED(p, UNRESERVE,
                      tarni_port_unreserve(p->port, things->reservation, things->reserved_bytes)));
  }
  return status;
}

/* Memory that the driver still holds pinned must not become somebody else's: then it is left. */
static tarn_status drop_ordinary(probe *p) {
  probe_things *things = &p->things;
  tarn_status status = TARN_OK;
  if (things->is_registered) {
    status = TIMED(p, HOST_UNREGISTER, tarni_port_host_unregister(p->port, things->ordinary));
    if (status != TARN_OK && tarni_port_host_unregister(p->port, things->ordinary) != TARN_OK) {
      return status;
    }
  }
  free(things->ordinary);
  return status;
}

static tarn_status drop_memory(probe *p) {
  probe_things *things = &p->things;
  tarn_status status = drop_mappings(p);
  if (things->pool_block != 0) {
    status =
        first_of(status, tarni_port_pool_free(p->port, things->pool_block, things->streams[0]));
    status = first_of(status, tarni_port_stream_sync(p->port, things->streams[0]));
  }
  if (things->pool != NULL) {
    status =
        first_of(status, TIMED(p, POOL_DESTROY, tarni_port_pool_destroy(p->port, things->pool)));
  }
  if (things->plain != 0) {
    status = first_of(status, TIMED(p, PLAIN_FREE, tarni_port_plain_free(p->port, things->plain)));
  }
  status = first_of(status, drop_ordinary(p));
  if (things->pinned != NULL) {
    status = first_of(status, TIMED(p, HOST_FREE, tarni_port_host_free(p->port, things->pinned)));
  }
  return status;
}

/* Takes down everything that the round made; goes on when a part of it fails. */
static tarn_status take_down_round(probe *p) {
  probe_things *things = &p->things;
  tarn_status status = quiesce(p);
  if (things->graph != NULL || things->exec != NULL) {
    status =
        first_of(status, TIMED(p, GRAPH_DESTROY,
                               tarni_port_graph_destroy(p->port, things->graph, things->exec)));
  }
  status = first_of(status, drop_memory(p));
  if (things->event != NULL) {
    status =
        first_of(status, TIMED(p, EVENT_DESTROY, tarni_port_event_destroy(p->port, things->event)));
  }
  for (int i = 0; i < 2; i++) {
    if (things->streams[i] != NULL) {
      status = first_of(
          status, TIMED(p, STREAM_DESTROY, tarni_port_stream_destroy(p->port, things->streams[i])));
    }
  }
  *things = (probe_things){0};
  return status;
}

/* ---- The probe ------------------------------------------------------------------------------ */

typedef tarn_status (*probe_try)(probe *p);

static const probe_try probe_tries[TARN_PROBE_COUNT] = {
    [TARN_PROBE_CHUNKS] = try_chunks,   [TARN_PROBE_SHARING] = try_sharing,
    [TARN_PROBE_PLAIN] = try_plain,     [TARN_PROBE_POOL] = try_pool,
    [TARN_PROBE_PINNED] = try_pinned,   [TARN_PROBE_REGISTERED] = try_registered,
    [TARN_PROBE_STREAMS] = try_streams, [TARN_PROBE_CAPTURE] = try_capture,
};

/* The first failure counts: what taking down says after it is not told. */
static tarn_status run_round(probe *p, probe_try try_it) {
  tarn_error error = {.size = sizeof(error)};
  tarn_status status = set_up_round(p);
  if (status == TARN_OK) {
    status = try_it(p);
  }
  if (status != TARN_OK) {
    (void)tarn_last_error(&error);
  }
  const tarn_status after = take_down_round(p);
  return status != TARN_OK ? tarni_fail_again(&error) : after;
}

static void run_kind(probe *p, tarn_probe_kind kind) {
  tarn_probe_result *result = &p->report.results[kind];
  p->compared_bytes = 0;
  for (int round = 0; round < N_ROUNDS && result->status == TARN_OK; round++) {
    result->status = run_round(p, probe_tries[kind]);
  }
  result->is_tried = result->status != TARN_UNSUPPORTED;
  result->is_verified = result->status == TARN_OK;
  result->compared_bytes = p->compared_bytes;
  if (result->status == TARN_OK) {
    return;
  }
  const size_t length = strlen(tarn_last_message());
  const size_t kept = tarni_min(length, sizeof(result->message) - 1);
  memcpy(result->message, tarn_last_message(), kept);
  if (result->is_tried && p->first_error.status == TARN_OK) {
    p->first_error.size = sizeof(p->first_error);
    (void)tarn_last_error(&p->first_error);
  }
}

tarn_status tarn_device_probe(tarn_device *device, tarn_probe_report *report) {
  static const tarn_probe_report empty = {.size = sizeof(empty)};
  TARN_TRY(tarni_struct_out(report, &empty, sizeof(empty), "tarn_device_probe"));
  if (device == NULL) {
    return tarni_fail(TARN_INVALID, "tarn_device_probe", NULL, "Open one with tarn_device_open.",
                      "the device is NULL");
  }
  TARN_TRY(tarni_capture_allows("tarn_device_probe"));
  TARNI_RELAXED((tarni_port *)device); /* nor is a capture broken of which nobody told */
  probe *p = calloc(1, sizeof(*p));
  if (p == NULL) {
    return tarni_fail(TARN_HOST_MEMORY, "tarn_device_probe", NULL, "Free host memory.",
                      "no host memory for %zu bytes", sizeof(*p));
  }
  p->port = (tarni_port *)device;
  p->report.size = sizeof(p->report);
  for (int kind = 0; kind < TARN_PROBE_COUNT; kind++) {
    run_kind(p, (tarn_probe_kind)kind);
  }
  take_medians(p);
  tarn_status status = tarni_struct_out(report, &p->report, sizeof(p->report), "tarn_device_probe");
  if (p->first_error.status != TARN_OK) {
    status = tarni_fail_again(&p->first_error);
  }
  free(p);
  return status;
}
