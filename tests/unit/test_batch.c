/* SPDX-License-Identifier: MIT
 *
 * Batches: what is sent, byte for byte, with how many copies; what is collected, and that a call
 * that fails changes nothing. */
#include "tarn/batch.h"

#include <stdlib.h>
#include <string.h>

#include "support/dock.h"
#include "support/test.h"

#define DEVICE "sim:256M,order=lazy"

typedef struct scene {
  dock dock;
  tarn_stream stream;
  tarn_ptr block; /* 1 MiB of 0xee */
  tarn_batch *batch;
} scene;

enum { BLOCK = 1 << 20 };

static bool scene_open(scene *s, const char *device) {
  *s = (scene){0};
  if (!dock_open(&s->dock, device, NULL, 0, 2)) {
    return false;
  }
  s->stream = s->dock.rig.streams[0];
  return CHECK_OK(tarn_alloc(s->dock.rig.heap, BLOCK, s->stream, &s->block)) &&
         CHECK_OK(tarn_device_fill(s->dock.rig.device, s->block, 0xee, BLOCK, s->stream)) &&
         CHECK_OK(tarn_batch_create(s->dock.copier, NULL, &s->batch));
}

static void scene_close(scene *s) {
  CHECK_OK(tarn_batch_destroy(s->batch));
  CHECK_EQ(dock_stats(&s->dock).batches, 0);
  CHECK_OK(tarn_free(s->dock.rig.heap, s->block, s->stream));
  CHECK_OK(tarn_stream_synchronize(s->dock.rig.device, s->stream));
  dock_close(&s->dock);
}

static tarn_batch_info info_of(const scene *s) {
  tarn_batch_info info = {.size = sizeof(info)};
  CHECK_OK(tarn_batch_get_info(s->batch, &info));
  return info;
}

/* The device's bytes, once the stream is done. */
static const uint8_t *device_bytes(const scene *s, uint64_t offset) {
  CHECK_OK(tarn_stream_synchronize(s->dock.rig.device, s->stream));
  return (const uint8_t *)(uintptr_t)(s->block + offset);
}

static bool holds(const tarn_buffer *buffer, const void *bytes, size_t length) {
  return tarn_buffer_length(buffer) == length &&
         (length == 0 || memcmp(tarn_buffer_bytes(buffer), bytes, length) == 0);
}

/* ---- Uploads ---- */

static void uploads(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  char text[] = "some bytes";
  CHECK_OK(tarn_batch_upload(s.batch, s.block + 3, text, 10));
  memset(text, 'x', 10); /* they have been copied */
  CHECK_OK(tarn_batch_upload(s.batch, s.block + 5000, "more", 4));
  CHECK_EQ(info_of(&s).n_uploads, 2);
  CHECK_EQ(info_of(&s).upload_bytes, 14);
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  CHECK_EQ(info_of(&s).n_uploads, 0);
  CHECK_EQ(info_of(&s).staged_bytes, 0); /* given back in the order of the stream */
  const uint8_t *bytes = device_bytes(&s, 0);
  CHECK(memcmp(bytes + 3, "some bytes", 10) == 0);
  CHECK_EQ(bytes[2], 0xee);
  CHECK_EQ(bytes[13], 0xee);
  CHECK(memcmp(bytes + 5000, "more", 4) == 0);
  CHECK_OK(tarn_batch_send(s.batch, s.stream)); /* nothing to send */
  CHECK_OK(tarn_batch_upload(s.batch, s.block, "again", 5));
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  CHECK(memcmp(device_bytes(&s, 0), "againbytes", 5) == 0);
  scene_close(&s);
}

/* The tail is zeroes up to the length of the transfer, whatever was in that memory before. */
static void padded_tails_are_zero(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  uint8_t rubbish[4096], zeroes[1000] = {0};
  memset(rubbish, 0x5a, sizeof(rubbish));
  for (int i = 0; i < 40; i++) {
    CHECK_OK(tarn_batch_upload(s.batch, s.block + 8192, rubbish, sizeof(rubbish)));
    CHECK_OK(tarn_batch_send(s.batch, s.stream));
    (void)device_bytes(&s, 0);
    CHECK_OK(tarn_batch_upload_padded(s.batch, s.block, "abc", 3, 1000));
    CHECK_OK(tarn_batch_send(s.batch, s.stream));
    const uint8_t *bytes = device_bytes(&s, 0);
    CHECK(memcmp(bytes, "abc", 3) == 0);
    CHECK(memcmp(bytes + 3, zeroes, 997) == 0);
    CHECK_EQ(bytes[1000], 0xee);
  }
  CHECK_STATUS(tarn_batch_upload_padded(s.batch, s.block, rubbish, 65, 64), TARN_RANGE);
  CHECK_HAS(tarn_last_message(), "65 bytes");
  CHECK_HAS(tarn_last_message(), "transfer of 64");
  CHECK_OK(tarn_batch_upload_padded(s.batch, s.block, rubbish, 64, 64));
  CHECK_EQ(info_of(&s).n_uploads, 1);
  scene_close(&s);
}

static void words_are_little_endian(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  static const uint32_t words[] = {0x04030201, 0xfffefdfc, 7};
  static const uint8_t expected[] = {1, 2, 3, 4, 0xfc, 0xfd, 0xfe, 0xff, 7, 0, 0, 0, 0, 0, 0, 0};
  CHECK_OK(tarn_batch_upload_words(s.batch, s.block, words, 3));
  CHECK_OK(tarn_batch_upload_words_padded(s.batch, s.block + 100, words, 3, 16));
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  const uint8_t *bytes = device_bytes(&s, 0);
  CHECK(memcmp(bytes, expected, 12) == 0);
  CHECK_EQ(bytes[12], 0xee);
  CHECK(memcmp(bytes + 100, expected, 16) == 0);
  CHECK_EQ(bytes[116], 0xee);
  CHECK_STATUS(tarn_batch_upload_words(s.batch, s.block, words, UINT64_MAX / 2), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_batch_upload_words_padded(s.batch, s.block, words, 3, 11), TARN_RANGE);
  CHECK_HAS(tarn_last_message(), "12 bytes");
  CHECK_EQ(info_of(&s).n_uploads, 0);
  scene_close(&s);
}

/* Nothing is taken for nothing, not even from a pool that has nothing to give. */
static void zero_bytes_take_nothing(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  const uint64_t calls = rig_calls(&s.dock.rig);
  uint32_t index = 77;
  CHECK_OK(tarn_batch_upload(s.batch, s.block, NULL, 0));
  CHECK_OK(tarn_batch_upload_padded(s.batch, s.block, NULL, 0, 4096));
  CHECK_OK(tarn_batch_upload_words(s.batch, 0, NULL, 0));
  CHECK_OK(tarn_batch_upload_words_padded(s.batch, s.block, NULL, 0, 16));
  CHECK_OK(tarn_batch_output(s.batch, 0, 0, &index));
  CHECK_EQ(index, 0);
  CHECK_OK(tarn_batch_output_padded(s.batch, s.block, 0, 64, &index));
  CHECK_EQ(index, 1);
  CHECK_EQ(info_of(&s).staged_bytes, 0);
  CHECK_EQ(info_of(&s).n_uploads, 0);
  CHECK_EQ(info_of(&s).n_outputs, 2);
  CHECK_EQ(rig_calls(&s.dock.rig), calls);
  CHECK_EQ(dock_pinned_live(&s.dock), 0);
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  CHECK_OK(tarn_batch_fetch(s.batch, s.stream, NULL));
  CHECK_EQ(info_of(&s).copies, 0);
  /* Collected, an output of nothing empties its buffer and leaves the capacity. */
  const tarn_buffer_config config = {.size = sizeof(config), .capacity_bytes = 64};
  tarn_buffer *buffers[2];
  REQUIRE_OK(tarn_buffer_create(&config, &buffers[0]));
  REQUIRE_OK(tarn_buffer_create(&config, &buffers[1]));
  CHECK_OK(tarn_buffer_assign(buffers[0], "stale", 5));
  CHECK_OK(tarn_batch_collect_into(s.batch, buffers, 2));
  CHECK_EQ(tarn_buffer_length(buffers[0]), 0);
  CHECK_EQ(tarn_buffer_capacity(buffers[0]), 64);
  CHECK_OK(tarn_batch_collect_range(s.batch, 0, 0, 0, buffers[0]));
  CHECK_STATUS(tarn_batch_collect_range(s.batch, 0, 0, 1, buffers[0]), TARN_RANGE);
  CHECK_STATUS(tarn_batch_collect_range(s.batch, 0, 1, 0, buffers[0]), TARN_RANGE);
  tarn_buffer_destroy(buffers[0]);
  tarn_buffer_destroy(buffers[1]);
  scene_close(&s);
}

/* Pieces that follow each other on the device become one copy; others share one call. */
/* A driver refuses a copy over two of its allocations, even where they lie side by side: then each
 * piece is copied by itself. */
static void side_by_side_in_two_allocations(void) {
  enum { REFUSED = 1 }; /* CUDA_ERROR_INVALID_VALUE */
  scene s;
  static uint8_t bytes[4][1000];
  uint64_t n_failed = 0;
  REQUIRE(scene_open(&s, "sim:256M,seed=5"));
  for (uint64_t round = 1; round <= 2; round++) {
    for (uint64_t i = 0; i < 4; i++) {
      dock_pattern(bytes[i], sizeof(bytes[i]), 4 * round + i);
      CHECK_OK(tarn_batch_upload(s.batch, s.block + i * 1000, bytes[i], 1000));
    }
    CHECK_OK(tarn_sim_fail(s.dock.rig.device, TARN_CALL_COPY, 1, 1, REFUSED));
    CHECK_OK(tarn_batch_send(s.batch, s.stream));
    CHECK_OK(tarn_sim_failed(s.dock.rig.device, &n_failed));
    CHECK_EQ(n_failed, 1); /* the second time nothing is joined */
    CHECK_EQ(info_of(&s).copies, 4 * round);
    CHECK(memcmp(device_bytes(&s, 0), bytes, sizeof(bytes)) == 0);
  }
  /* Refused for another reason: it is the caller's, and nothing is joined after it either. */
  CHECK_OK(tarn_batch_upload(s.batch, s.block, bytes[0], 1000));
  CHECK_OK(tarn_batch_upload(s.batch, s.block + 1000, bytes[1], 1000));
  CHECK_OK(tarn_sim_fail(s.dock.rig.device, TARN_CALL_COPY_BATCH, 1, 1, REFUSED));
  CHECK_STATUS(tarn_batch_send(s.batch, s.stream), TARN_INVALID);
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  CHECK_EQ(info_of(&s).copies, 8 + 2);
  CHECK_OK(tarn_sim_fail(s.dock.rig.device, TARN_CALL_COUNT, 0, 0, 0));
  scene_close(&s);
}

static void few_copies(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:256M,seed=5"));
  static uint8_t bytes[64][1024];
  for (uint64_t i = 0; i < 64; i++) {
    dock_pattern(bytes[i], sizeof(bytes[i]), i);
    CHECK_OK(tarn_batch_upload(s.batch, s.block + i * 1000, bytes[i], 1000));
  }
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  CHECK_EQ(info_of(&s).copies, 1);
  for (uint64_t i = 0; i < 64; i++) {
    CHECK(memcmp(device_bytes(&s, i * 1000), bytes[i], 1000) == 0);
    CHECK_OK(tarn_batch_upload(s.batch, s.block + (63 - i) * 2048, bytes[i], 1000));
  }
  tarn_call_counts before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
  CHECK_OK(tarn_device_get_calls(s.dock.rig.device, &before));
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  CHECK_OK(tarn_device_get_calls(s.dock.rig.device, &after));
  CHECK_EQ(info_of(&s).copies, 65);
  CHECK_EQ(after.calls[TARN_CALL_COPY], before.calls[TARN_CALL_COPY]);
  CHECK_EQ(after.calls[TARN_CALL_COPY_BATCH], before.calls[TARN_CALL_COPY_BATCH] + 1);
  for (uint64_t i = 0; i < 64; i++) {
    CHECK(memcmp(device_bytes(&s, (63 - i) * 2048), bytes[i], 1000) == 0);
  }
  /* Outputs likewise. */
  for (uint64_t i = 0; i < 64; i++) {
    CHECK_OK(tarn_batch_output(s.batch, s.block + (i < 32 ? i * 10 : 4096 + i * 100), 10, NULL));
  }
  CHECK_OK(tarn_batch_fetch(s.batch, s.stream, NULL));
  CHECK_EQ(info_of(&s).copies, 65 + 1 + 32);
  scene_close(&s);
}

/* Pieces larger than a slab, more of them than the tables were made for. */
/* A batch that has needed several slabs needs one the next time: pieces side by side are one copy.
 */
static void one_slab_the_next_time(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  static uint8_t bytes[64][4096];
  static const uint64_t copies[] = {3, 1, 1};
  for (int round = 0; round < 3; round++) {
    const uint64_t before = info_of(&s).copies;
    for (uint64_t i = 0; i < 64; i++) {
      dock_pattern(bytes[i], sizeof(bytes[i]), i + (uint64_t)round);
      CHECK_OK(tarn_batch_upload(s.batch, s.block + i * 4096, bytes[i], 4096));
    }
    CHECK_OK(tarn_batch_send(s.batch, s.stream));
    CHECK_EQ(info_of(&s).copies - before, copies[round]);
    CHECK(memcmp(device_bytes(&s, 0), bytes, sizeof(bytes)) == 0);
    CHECK_OK(tarn_batch_reset(s.batch));
  }
  scene_close(&s);
}

static void many_and_large(void) {
  scene s;
  REQUIRE(scene_open(&s, "sim:256M,seed=6"));
  static uint8_t bytes[300 << 10];
  dock_pattern(bytes, sizeof(bytes), 1);
  for (uint64_t i = 0; i < 3; i++) {
    CHECK_OK(tarn_batch_upload(s.batch, s.block + i * sizeof(bytes), bytes, sizeof(bytes)));
  }
  for (uint64_t i = 0; i < 1000; i++) {
    CHECK_OK(tarn_batch_upload_words(s.batch, s.block + 3 * sizeof(bytes) + i * 8,
                                     (const uint32_t[]){(uint32_t)i}, 1));
  }
  CHECK_OK(tarn_batch_send(s.batch, s.stream));
  for (uint64_t i = 0; i < 3; i++) {
    CHECK_EQ(dock_differ(device_bytes(&s, i * sizeof(bytes)), sizeof(bytes), 1), 0);
  }
  for (uint64_t i = 0; i < 1000; i++) {
    CHECK_EQ(device_bytes(&s, 3 * sizeof(bytes) + i * 8)[0], i & 0xff);
  }
  scene_close(&s);
}

/* ---- Outputs ---- */

/* Three outputs, one of them padded, one of nothing. */
static void name_outputs(const scene *s) {
  uint32_t index = 9;
  static const char *const texts[] = {"first", "", "third and last"};
  CHECK_OK(tarn_batch_upload(s->batch, s->block, texts[0], 5));
  CHECK_OK(tarn_batch_upload(s->batch, s->block + 512, texts[2], 14));
  CHECK_OK(tarn_batch_send(s->batch, s->stream));
  CHECK_OK(tarn_batch_output(s->batch, s->block, 5, &index));
  CHECK_EQ(index, 0);
  CHECK_OK(tarn_batch_output(s->batch, s->block, 0, &index));
  CHECK_EQ(index, 1);
  CHECK_OK(tarn_batch_output_padded(s->batch, s->block + 512, 14, 64, &index));
  CHECK_EQ(index, 2);
  CHECK_EQ(info_of(s).output_bytes, 5 + 64);
}

static void outputs(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  name_outputs(&s);
  uint32_t index = 9;
  CHECK_STATUS(tarn_batch_output_padded(s.batch, s.block, 65, 64, &index), TARN_RANGE);
  CHECK_EQ(index, UINT32_MAX);
  tarn_buffer_list *list = NULL;
  REQUIRE_OK(tarn_buffer_list_create(&list));
  CHECK_STATUS(tarn_batch_collect(s.batch, list), TARN_STATE);
  tarn_fence *fence = NULL;
  CHECK_OK(tarn_batch_fetch(s.batch, s.stream, &fence));
  CHECK_STATUS(tarn_fence_query(fence), TARN_NOT_READY);
  CHECK_STATUS(tarn_batch_fetch(s.batch, s.stream, NULL), TARN_STATE);
  CHECK_STATUS(tarn_batch_output(s.batch, s.block, 5, &index), TARN_STATE);
  /* What the stream does later comes too late to be seen. */
  CHECK_OK(tarn_device_fill(s.dock.rig.device, s.block, 0, BLOCK, s.stream));
  CHECK_OK(tarn_batch_collect(s.batch, list));
  CHECK_OK(tarn_fence_wait(fence));
  CHECK_EQ(tarn_buffer_list_count(list), 3);
  CHECK(holds(tarn_buffer_list_at(list, 0), "first", 5));
  CHECK(holds(tarn_buffer_list_at(list, 1), "", 0));
  CHECK(holds(tarn_buffer_list_at(list, 2), "third and last", 14)); /* no padding */
  const void *bytes = NULL;
  uint64_t length = 0;
  CHECK_OK(tarn_batch_view(s.batch, 2, &bytes, &length));
  CHECK(length == 14 && memcmp(bytes, "third and last", 14) == 0);
  CHECK_OK(tarn_batch_collect(s.batch, list)); /* as often as one likes */
  CHECK(holds(tarn_buffer_list_at(list, 0), "first", 5));
  tarn_fence_destroy(fence);
  tarn_buffer_list_destroy(list);
  CHECK_OK(tarn_batch_reset(s.batch));
  CHECK_EQ(info_of(&s).n_outputs, 0);
  CHECK_EQ(info_of(&s).staged_bytes, 0);
  name_outputs(&s); /* and again */
  scene_close(&s);
}

/* The list keeps what its buffers have, and gets exactly as many as there are outputs. */
static void lists_keep_their_capacity(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  name_outputs(&s);
  REQUIRE_OK(tarn_batch_fetch(s.batch, s.stream, NULL));
  tarn_buffer_list *list = NULL;
  REQUIRE_OK(tarn_buffer_list_create(&list));
  for (size_t before = 1; before < 8; before += 3) {
    REQUIRE_OK(tarn_buffer_list_resize(list, before));
    REQUIRE_OK(tarn_buffer_reserve(tarn_buffer_list_at(list, 0), 5000));
    const void *bytes = tarn_buffer_bytes(tarn_buffer_list_at(list, 0));
    CHECK_OK(tarn_batch_collect(s.batch, list));
    CHECK_EQ(tarn_buffer_list_count(list), 3);
    CHECK(holds(tarn_buffer_list_at(list, 0), "first", 5));
    CHECK_EQ(tarn_buffer_capacity(tarn_buffer_list_at(list, 0)), 5000);
    CHECK(tarn_buffer_bytes(tarn_buffer_list_at(list, 0)) == bytes);
  }
  tarn_buffer_list_destroy(list);
  scene_close(&s);
}

/* Makes buffers that hold "old", the last of them with a limit. */
static bool make_buffers(tarn_buffer **buffers, int count, size_t last_limit) {
  bool is_made = true;
  for (int i = 0; i < count; i++) {
    const tarn_buffer_config config = {.size = sizeof(config),
                                       .limit_bytes = i == count - 1 ? last_limit : 0};
    is_made = is_made && CHECK_OK(tarn_buffer_create(&config, &buffers[i])) &&
              CHECK_OK(tarn_buffer_assign(buffers[i], "old", 3));
  }
  return is_made;
}

static void collecting_is_all_or_nothing(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  name_outputs(&s);
  REQUIRE_OK(tarn_batch_fetch(s.batch, s.stream, NULL));
  tarn_buffer *buffers[4];
  REQUIRE(make_buffers(buffers, 4, 10)); /* too little for the third output */
  tarn_buffer *const wrong[][3] = {{buffers[0], buffers[1], buffers[3]},
                                   {buffers[0], NULL, buffers[2]},
                                   {buffers[0], buffers[1], buffers[0]}};
  static const tarn_status statuses[] = {TARN_LIMIT, TARN_INVALID, TARN_INVALID};
  for (int i = 0; i < 3; i++) {
    const size_t capacity = tarn_buffer_capacity(buffers[0]);
    CHECK_STATUS(tarn_batch_collect_into(s.batch, wrong[i], 3), statuses[i]);
    for (int k = 0; k < 4; k++) {
      CHECK(holds(buffers[k], "old", 3));
    }
    CHECK_EQ(tarn_buffer_capacity(buffers[0]), capacity);
  }
  static const size_t counts[] = {0, 2, 4};
  for (int i = 0; i < 3; i++) {
    CHECK_STATUS(tarn_batch_collect_into(s.batch, buffers, counts[i]), TARN_INVALID);
    CHECK_HAS(tarn_last_message(), "for 3 outputs");
    CHECK(holds(buffers[0], "old", 3));
  }
  CHECK_STATUS(tarn_batch_collect_into(s.batch, NULL, 3), TARN_INVALID);
  CHECK_OK(tarn_batch_collect_into(s.batch, buffers, 3)); /* nothing was used up */
  CHECK(holds(buffers[0], "first", 5));
  CHECK(holds(buffers[1], "", 0));
  CHECK(holds(buffers[2], "third and last", 14));
  for (int i = 0; i < 4; i++) {
    tarn_buffer_destroy(buffers[i]);
  }
  scene_close(&s);
}

static void one_and_parts_of_one(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  name_outputs(&s);
  REQUIRE_OK(tarn_batch_fetch(s.batch, s.stream, NULL));
  tarn_buffer *buffer;
  REQUIRE(make_buffers(&buffer, 1, 64));
  REQUIRE_OK(tarn_buffer_reserve(buffer, 64));
  const void *bytes = tarn_buffer_bytes(buffer);
  CHECK_OK(tarn_batch_collect_range(s.batch, 2, 6, 3, buffer));
  CHECK(holds(buffer, "and", 3));
  CHECK(tarn_buffer_bytes(buffer) == bytes && tarn_buffer_capacity(buffer) == 64);
  CHECK_OK(tarn_batch_collect_one(s.batch, 0, buffer));
  CHECK(holds(buffer, "first", 5));
  /* The padding is not a part of the output, though it is there. */
  CHECK_STATUS(tarn_batch_collect_range(s.batch, 2, 10, 5, buffer), TARN_RANGE);
  CHECK_HAS(tarn_last_message(), "[10, 15) of output 2, which has 14");
  CHECK_STATUS(tarn_batch_collect_range(s.batch, 2, 15, 0, buffer), TARN_RANGE);
  CHECK_STATUS(tarn_batch_collect_range(s.batch, 2, UINT64_MAX, 2, buffer), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_batch_collect_one(s.batch, 3, buffer), TARN_RANGE);
  CHECK_HAS(tarn_last_message(), "output 3 of a batch that has 3");
  CHECK_STATUS(tarn_batch_collect_range(s.batch, UINT32_MAX, 0, 0, buffer), TARN_RANGE);
  CHECK_STATUS(tarn_batch_collect_one(s.batch, 0, NULL), TARN_INVALID);
  const void *seen = bytes;
  uint64_t length = 5;
  CHECK_STATUS(tarn_batch_view(s.batch, 3, &seen, &length), TARN_RANGE);
  CHECK(seen == NULL && length == 0);
  CHECK(holds(buffer, "first", 5));
  CHECK_OK(tarn_batch_collect_range(s.batch, 2, 14, 0, buffer));
  CHECK_EQ(tarn_buffer_length(buffer), 0);
  CHECK_EQ(tarn_buffer_capacity(buffer), 64);
  tarn_buffer_destroy(buffer);
  scene_close(&s);
}

/* ---- Failures ---- */

/* A sending that stops in the middle: what has reached the stream is safe, the rest not lost. */
static void torn_sending(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  tarn_stream other = s.dock.rig.streams[1];
  CHECK_OK(tarn_batch_upload(s.batch, s.block, "one", 3));
  CHECK_OK(tarn_batch_upload(s.batch, s.block + 900, "two", 3));
  /* On the default stream the copies are single ones: the second fails. */
  CHECK_OK(tarn_sim_fail(s.dock.rig.device, TARN_CALL_COPY, 2, 1, 1));
  CHECK_OK(tarn_stream_synchronize(s.dock.rig.device, s.stream));
  CHECK_STATUS(tarn_batch_send(s.batch, NULL), TARN_INVALID);
  CHECK_EQ(info_of(&s).n_uploads, 2);
  CHECK_STATUS(tarn_batch_send(s.batch, other), TARN_STATE);
  CHECK_HAS(tarn_last_message(), "stream of the call that failed");
  CHECK_OK(tarn_batch_send(s.batch, NULL));
  CHECK_EQ(info_of(&s).n_uploads, 0);
  CHECK_OK(tarn_stream_synchronize(s.dock.rig.device, NULL));
  CHECK(memcmp(device_bytes(&s, 0), "one", 3) == 0);
  CHECK(memcmp(device_bytes(&s, 900), "two", 3) == 0);
  /* Torn and given up: its memory is not used again before the stream is done with it. */
  CHECK_OK(tarn_batch_upload(s.batch, s.block, "three", 5));
  CHECK_OK(tarn_batch_upload(s.batch, s.block + 900, "four", 4));
  CHECK_OK(tarn_sim_fail(s.dock.rig.device, TARN_CALL_COPY, 2, 1, 1));
  CHECK_STATUS(tarn_batch_send(s.batch, NULL), TARN_INVALID);
  CHECK_OK(tarn_batch_reset(s.batch));
  for (int i = 0; i < 100; i++) {
    CHECK_OK(tarn_batch_upload(s.batch, s.block + 4096, "xxxxxxxx", 8));
  }
  CHECK_OK(tarn_stream_synchronize(s.dock.rig.device, NULL));
  CHECK(memcmp(device_bytes(&s, 0), "three", 5) == 0);
  CHECK(memcmp(device_bytes(&s, 900), "two", 3) == 0);
  CHECK_OK(tarn_copier_stream_retire(s.dock.copier, NULL));
  scene_close(&s);
}

static void torn_fetching(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  name_outputs(&s);
  tarn_fence *fence = NULL;
  static const tarn_call calls[] = {TARN_CALL_COPY_BATCH, TARN_CALL_EVENT_CREATE,
                                    TARN_CALL_EVENT_RECORD};
  for (int i = 0; i < 3; i++) {
    CHECK_OK(tarn_sim_fail(s.dock.rig.device, calls[i], 1, 1, 1));
    CHECK_STATUS(tarn_batch_fetch(s.batch, s.stream, &fence), TARN_INVALID);
    CHECK(fence == NULL);
    CHECK(!info_of(&s).is_fetched);
    CHECK_EQ(info_of(&s).n_outputs, 3);
  }
  CHECK_STATUS(tarn_batch_fetch(s.batch, s.dock.rig.streams[1], &fence), TARN_STATE);
  CHECK_OK(tarn_batch_fetch(s.batch, s.stream, &fence));
  tarn_buffer *buffers[3];
  REQUIRE(make_buffers(buffers, 3, 0));
  CHECK_OK(tarn_sim_fail(s.dock.rig.device, TARN_CALL_EVENT_SYNC, 1, 1, 1));
  CHECK_STATUS(tarn_batch_collect_into(s.batch, buffers, 3), TARN_INVALID);
  CHECK(holds(buffers[0], "old", 3));
  CHECK_OK(tarn_batch_collect_into(s.batch, buffers, 3));
  CHECK(holds(buffers[0], "first", 5));
  for (int i = 0; i < 3; i++) {
    tarn_buffer_destroy(buffers[i]);
  }
  tarn_fence_destroy(fence);
  scene_close(&s);
}

/* Dropped in every state. dock_close counts what is left of pinned memory: nothing. */
static void dropped_anywhere(void) {
  for (int state = 0; state < 5; state++) {
    scene s;
    REQUIRE(scene_open(&s, DEVICE));
    CHECK_OK(tarn_batch_upload(s.batch, s.block, "bytes", 5));
    CHECK_OK(tarn_batch_output(s.batch, s.block, 5, NULL));
    if (state >= 1) {
      CHECK_OK(tarn_batch_send(s.batch, s.stream));
    }
    if (state >= 2) {
      CHECK_OK(tarn_batch_fetch(s.batch, s.stream, NULL));
    }
    if (state >= 3) {
      CHECK_OK(tarn_batch_upload(s.batch, s.block, "more", 4));
    }
    if (state >= 4) {
      CHECK_OK(tarn_stream_synchronize(s.dock.rig.device, s.stream));
    }
    scene_close(&s);
  }
}

/* No pinned memory: the call fails, and what was named before stays. */
static void pool_runs_out(void) {
  dock d;
  REQUIRE(dock_open(&d, DEVICE, NULL, 2 << 20, 1));
  tarn_batch *batch = NULL;
  tarn_batch_info info = {.size = sizeof(info)};
  tarn_ptr block = 0;
  static uint8_t bytes[1 << 20];
  REQUIRE_OK(tarn_alloc(d.rig.heap, 8 << 20, d.rig.streams[0], &block));
  REQUIRE_OK(tarn_batch_create(d.copier, NULL, &batch));
  tarn_status status = TARN_OK;
  uint32_t n = 0;
  while (status == TARN_OK && n < 8) {
    status = tarn_batch_upload(batch, block + n * sizeof(bytes), bytes, sizeof(bytes));
    n += status == TARN_OK;
  }
  CHECK(n > 0 && n < 8);
  CHECK_STATUS(status, TARN_LIMIT);
  CHECK_OK(tarn_batch_get_info(batch, &info));
  CHECK_EQ(info.n_uploads, n);
  uint32_t index = 5;
  CHECK_STATUS(tarn_batch_output(batch, block, sizeof(bytes), &index), TARN_LIMIT);
  CHECK_EQ(index, UINT32_MAX);
  CHECK_OK(tarn_batch_send(batch, d.rig.streams[0]));
  CHECK_OK(tarn_stream_synchronize(d.rig.device, d.rig.streams[0]));
  CHECK_OK(tarn_batch_upload(batch, block, bytes, sizeof(bytes)));
  CHECK_OK(tarn_batch_destroy(batch));
  CHECK_OK(tarn_free(d.rig.heap, block, d.rig.streams[0]));
  dock_close(&d);
}

static void wrong_arguments(void) {
  scene s;
  REQUIRE(scene_open(&s, DEVICE));
  uint8_t some[8] = {0};
  tarn_batch *batch = (tarn_batch *)(uintptr_t)1;
  CHECK_STATUS(tarn_batch_create(NULL, NULL, &batch), TARN_INVALID);
  CHECK(batch == NULL);
  CHECK_STATUS(tarn_batch_create(s.dock.copier, NULL, NULL), TARN_INVALID);
  const tarn_batch_config huge = {.size = sizeof(huge), .n_uploads = UINT32_MAX};
  const tarn_status status = tarn_batch_create(s.dock.copier, &huge, &batch);
  CHECK(status == TARN_OK || status == TARN_HOST_MEMORY);
  CHECK_OK(tarn_batch_destroy(batch));
  CHECK_STATUS(tarn_batch_upload(s.batch, 0, some, 8), TARN_INVALID);
  CHECK_STATUS(tarn_batch_upload(s.batch, s.block, NULL, 8), TARN_INVALID);
  CHECK_STATUS(tarn_batch_upload(s.batch, UINT64_MAX - 3, some, 8), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_batch_upload_padded(s.batch, s.block, some, 8, UINT64_MAX), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_batch_upload_words(s.batch, s.block, NULL, 1), TARN_INVALID);
  CHECK_STATUS(tarn_batch_output(s.batch, 0, 8, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_batch_output_padded(s.batch, s.block, 8, UINT64_MAX, NULL), TARN_OVERFLOWED);
  CHECK_STATUS(tarn_batch_upload(NULL, s.block, some, 8), TARN_INVALID);
  CHECK_STATUS(tarn_batch_output(NULL, s.block, 8, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_batch_send(NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_batch_fetch(NULL, NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_batch_collect(NULL, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_batch_reset(NULL), TARN_INVALID);
  CHECK_OK(tarn_batch_destroy(NULL));
  CHECK_EQ(info_of(&s).n_uploads + info_of(&s).n_outputs, 0);
  CHECK_EQ(info_of(&s).staged_bytes, 0);
  CHECK_OK(tarn_batch_fetch(s.batch, s.stream, NULL));
  CHECK_STATUS(tarn_batch_collect(s.batch, NULL), TARN_INVALID);
  CHECK_STATUS(tarn_copier_destroy(s.dock.copier), TARN_BUSY);
  CHECK_HAS(tarn_last_message(), "1 batches");
  scene_close(&s);
}

static const test_case cases[] = {
    {"uploads", uploads},
    {"padded_tails_are_zero", padded_tails_are_zero},
    {"words_are_little_endian", words_are_little_endian},
    {"zero_bytes_take_nothing", zero_bytes_take_nothing},
    {"side_by_side_in_two_allocations", side_by_side_in_two_allocations},
    {"few_copies", few_copies},
    {"one_slab_the_next_time", one_slab_the_next_time},
    {"many_and_large", many_and_large},
    {"outputs", outputs},
    {"lists_keep_their_capacity", lists_keep_their_capacity},
    {"collecting_is_all_or_nothing", collecting_is_all_or_nothing},
    {"one_and_parts_of_one", one_and_parts_of_one},
    {"torn_sending", torn_sending},
    {"torn_fetching", torn_fetching},
    {"dropped_anywhere", dropped_anywhere},
    {"pool_runs_out", pool_runs_out},
    {"wrong_arguments", wrong_arguments},
};

TEST_MAIN(cases)
