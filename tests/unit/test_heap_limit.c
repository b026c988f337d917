/* SPDX-License-Identifier: MIT
 *
 * Limits, reserving, trimming and shortage: what the heap holds, what it gives back, and what it
 * says when there is not enough. */
#include <string.h>

#include "support/rig.h"
#include "support/test.h"
#include "tarn/capture.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MAX_BLOCKS = 64 };

/* Allocates until the heap refuses; returns how many blocks there are. */
static int fill(rig *r, uint64_t bytes, tarn_status refusal, rig_block blocks[MAX_BLOCKS]) {
  for (int n = 0; n < MAX_BLOCKS; n++) {
    const tarn_status status = rig_alloc(r, bytes, r->streams[0], &blocks[n]);
    if (status != TARN_OK) {
      CHECK_STATUS(status, refusal);
      return n;
    }
  }
  return MAX_BLOCKS;
}

static void empty(rig *r, rig_block *blocks, int n) {
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_free(r, &blocks[i], r->streams[0]));
  }
}

/* ---- Limits ---- */

static void limit_with_the_numbers(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 9 * MIB};
  rig r;
  rig_block blocks[MAX_BLOCKS];
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  const int n = fill(&r, 2 * MIB, TARN_LIMIT, blocks);
  CHECK_EQ(n, 4);
  tarn_error error = {.size = sizeof(error)};
  CHECK_EQ(tarn_last_error(&error), TARN_LIMIT);
  CHECK_EQ(error.requested_bytes, 2 * MIB);
  CHECK_EQ(error.driver_code, 0);
  CHECK_TEXT(error.device, "sim:64M");
  CHECK_HAS(error.message, "no room for 2097152 bytes");
  CHECK_HAS(error.message, "live 8388608");
  CHECK_HAS(error.message, "cached 0");
  CHECK_HAS(error.message, "pending 0");
  CHECK_HAS(error.message, "held 8388608 of at most 9437184");
  CHECK_HAS(error.message, "raise the limit");
  CHECK(rig_stats(&r).reserved_bytes <= 9 * MIB);
  CHECK(rig_is_sound(&r));
  empty(&r, blocks, n);
  CHECK_EQ(fill(&r, 2 * MIB, TARN_LIMIT, blocks), 4); /* a refusal costs nothing */
  empty(&r, blocks, 4);
  rig_close(&r);
}

static void device_that_is_full(void) {
  rig r;
  rig_block blocks[MAX_BLOCKS];
  REQUIRE(rig_open(&r, "sim:16M", NULL, 1));
  const int n = fill(&r, 2 * MIB, TARN_DEVICE_MEMORY, blocks);
  CHECK_EQ(n, 8);
  CHECK_HAS(tarn_last_message(), "held 16777216 of at most 16777216");
  CHECK_HAS(tarn_last_message(), "Free blocks, or memory of others that use the device.");
  empty(&r, blocks, n);
  rig_close(&r);
}

/* Another heap has the memory: the driver's own word is in the error. */
static void device_that_others_fill(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:16M", NULL, 1));
  const tarn_heap_config config = {.size = sizeof(config), .device = "sim:16M"};
  tarn_heap *other;
  REQUIRE_OK(tarn_heap_create(&config, &other));
  CHECK_OK(tarn_heap_reserve(other, 12 * MIB));
  tarn_ptr block = 1;
  CHECK_STATUS(tarn_alloc(r.heap, 6 * MIB, r.streams[0], &block), TARN_DEVICE_MEMORY);
  CHECK_EQ(block, 0);
  tarn_error error = {.size = sizeof(error)};
  (void)tarn_last_error(&error);
  CHECK_EQ(error.driver_code, 2);
  CHECK_TEXT(error.driver_name, "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_HAS(error.message, "the driver said CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_STATUS(tarn_heap_reserve(r.heap, 6 * MIB), TARN_DEVICE_MEMORY);
  CHECK_HAS(tarn_last_message(), "tarn_heap_reserve: 6291456 bytes cannot be held: there are 0, of "
                                 "at most 16777216; the driver said CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_OK(tarn_heap_trim(other, 0));
  CHECK_OK(tarn_alloc(r.heap, 6 * MIB, r.streams[0], &block));
  CHECK_OK(tarn_free(r.heap, block, r.streams[0]));
  CHECK_OK(tarn_heap_destroy(other, NULL));
  rig_close(&r);
}

static void limit_raised_and_lowered(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 4 * MIB};
  rig r;
  rig_block blocks[MAX_BLOCKS], more[MAX_BLOCKS];
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_EQ(fill(&r, 2 * MIB, TARN_LIMIT, blocks), 2);
  CHECK_OK(tarn_heap_set_limit(r.heap, 10 * MIB));
  CHECK_EQ(rig_stats(&r).limit_bytes, 10 * MIB);
  CHECK_EQ(fill(&r, 2 * MIB, TARN_LIMIT, more), 3);
  /* Below what is live: nothing is taken away, and nothing more is given. */
  CHECK_OK(tarn_heap_set_limit(r.heap, 3 * MIB));
  CHECK_EQ(rig_stats(&r).live_bytes, 10 * MIB);
  CHECK_EQ(rig_stats(&r).limit_bytes, 3 * MIB);
  rig_block none;
  CHECK_STATUS(rig_alloc(&r, 2 * MIB, r.streams[0], &none), TARN_LIMIT);
  CHECK_STATUS(rig_alloc(&r, 100, r.streams[0], &none), TARN_LIMIT);
  CHECK(rig_is_sound(&r));
  /* What is held and free may still be used: the limit is on what is held. */
  CHECK_OK(rig_free(&r, &more[0], r.streams[0]));
  CHECK_OK(rig_alloc(&r, 2 * MIB, r.streams[0], &more[0]));
  empty(&r, more, 3);
  CHECK_OK(tarn_heap_set_limit(r.heap, 3 * MIB)); /* now it can be trimmed to what is live */
  CHECK_EQ(rig_stats(&r).reserved_bytes, 4 * MIB);
  empty(&r, blocks, 2);
  CHECK_OK(tarn_heap_set_limit(r.heap, 3 * MIB));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 2 * MIB);
  CHECK_OK(tarn_heap_set_limit(r.heap, 0));
  CHECK_EQ(rig_stats(&r).limit_bytes, 64 * MIB);
  CHECK_OK(tarn_heap_set_limit(r.heap, UINT64_MAX));
  CHECK_EQ(fill(&r, 10 * MIB, TARN_DEVICE_MEMORY, blocks), 6);
  empty(&r, blocks, 6);
  rig_close(&r);
}

static void limit_too_small_for_anything(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 1};
  rig r;
  rig_block none;
  REQUIRE(rig_open(&r, "sim:64M", &config, 1));
  CHECK_STATUS(rig_alloc(&r, 1, r.streams[0], &none), TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "Raise the limit: memory comes in chunks");
  CHECK_STATUS(rig_alloc(&r, 2 * MIB, r.streams[0], &none), TARN_LIMIT);
  CHECK_STATUS(rig_alloc(&r, UINT64_MAX, r.streams[0], &none), TARN_LIMIT);
  CHECK_HAS(tarn_last_message(), "more than the heap's limit (1)");
  CHECK_STATUS(tarn_heap_reserve(r.heap, 2), TARN_LIMIT);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* ---- Reserving ---- */

static uint64_t calls_but_ids(const rig *r) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(r->device, &counts));
  return rig_calls(r) - counts.calls[TARN_CALL_STREAM_ID];
}

static void reserved_memory_costs_no_call(void) {
  rig r;
  rig_block blocks[MAX_BLOCKS];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 2));
  CHECK_OK(tarn_heap_reserve(r.heap, 33 * MIB));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 34 * MIB);
  CHECK_EQ(rig_stats(&r).free_bytes, 34 * MIB);
  CHECK_OK(tarn_heap_reserve(r.heap, 20 * MIB)); /* it is there */
  CHECK_EQ(rig_stats(&r).reserved_bytes, 34 * MIB);
  const uint64_t before = calls_but_ids(&r);
  for (int i = 0; i < 8; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[i % 2], &blocks[i]));
  }
  CHECK_EQ(calls_but_ids(&r), before);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 34 * MIB);
  for (int i = 0; i < 8; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 2]));
  }
  rig_close(&r);
}

static void reserving_too_much(void) {
  rig r;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_STATUS(tarn_heap_reserve(r.heap, 65 * MIB), TARN_DEVICE_MEMORY);
  CHECK_HAS(tarn_last_message(), "68157440 bytes are more than the device has (67108864). "
                                 "Ask for less.");
  CHECK_STATUS(tarn_heap_reserve(r.heap, UINT64_MAX), TARN_DEVICE_MEMORY);
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_OK(tarn_heap_reserve(r.heap, 0));
  CHECK_OK(tarn_heap_reserve(r.heap, 64 * MIB));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 64 * MIB);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

/* ---- Trimming ---- */

/* A heap that holds no more than that goes on as if it had not been asked: no driver call, no wait,
 * and what threads keep they keep. */
static void trimming_nothing(void) {
  rig r;
  rig_block block, used;
  REQUIRE(rig_open(&r, "sim:64M,order=lazy", NULL, 2));
  CHECK_OK(rig_alloc(&r, 1000, r.streams[0], &used));
  CHECK_OK(rig_alloc(&r, 2000, r.streams[0], &block));
  CHECK_OK(tarn_use(r.heap, used.address, r.streams[1]));
  rig_order(&r, r.streams[0], r.streams[1]);
  rig_touch(&r, &used, r.streams[1], false);
  CHECK_OK(rig_free(&r, &used, r.streams[0]));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  const uint64_t n_pending = rig_state(&r).pending_operations;
  const uint64_t n_misses = rig_stats(&r).misses;
  CHECK(n_pending != 0);
  CHECK_OK(tarn_heap_trim(r.heap, rig_stats(&r).reserved_bytes));
  CHECK(rig_state(&r).pending_operations + 1 >= n_pending); /* a look at a fence does one */
  CHECK_OK(rig_alloc(&r, 2000, r.streams[0], &block));
  CHECK_EQ(rig_stats(&r).misses, n_misses);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void trimming_to(void) {
  rig r;
  rig_block blocks[MAX_BLOCKS];
  REQUIRE(rig_open(&r, "sim:1G", NULL, 1)); /* for chunks of 4 MiB */
  for (int i = 0; i < 16; i++) {
    CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[i]));
  }
  CHECK_OK(tarn_heap_set_limit(r.heap, 64 * MIB));
  CHECK_STATUS(rig_alloc(&r, 4 * MIB, r.streams[0], &blocks[16]), TARN_LIMIT);
  empty(&r, blocks + 4, 12);
  CHECK_OK(tarn_heap_trim(r.heap, 64 * MIB)); /* nothing to do */
  CHECK_EQ(rig_stats(&r).reserved_bytes, 64 * MIB);
  CHECK_OK(tarn_heap_trim(r.heap, 40 * MIB));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 40 * MIB);
  CHECK_OK(tarn_heap_trim(r.heap, 39 * MIB)); /* at most: each block has a chunk of its own */
  CHECK_EQ(rig_stats(&r).reserved_bytes, 36 * MIB);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 16 * MIB);
  CHECK_EQ(rig_state(&r).created_bytes, 16 * MIB);
  CHECK(rig_is_sound(&r));
  empty(&r, blocks, 4);
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_EQ(fill(&r, 4 * MIB, TARN_LIMIT, blocks), 16); /* and all of it comes back */
  empty(&r, blocks, 16);
  rig_close(&r);
}

/* Small blocks hold their slab, and it its chunk, until the last one is free. */
static void trimming_small_blocks(void) {
  rig r;
  rig_block blocks[MAX_BLOCKS];
  REQUIRE(rig_open(&r, "sim:64M", NULL, 3));
  for (int i = 0; i < 60; i++) {
    CHECK_OK(rig_alloc(&r, (uint64_t)(1 + i % 6) * 700, r.streams[i % 3], &blocks[i]));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).live_blocks, 60);
  for (int i = 1; i < 60; i++) {
    CHECK_OK(rig_free(&r, &blocks[i], r.streams[i % 3]));
  }
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 2 * MIB);
  CHECK(rig_is_sound(&r));
  CHECK_OK(rig_free(&r, &blocks[0], r.streams[0]));
  CHECK_OK(tarn_heap_trim(r.heap, 0));
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  CHECK_EQ(rig_state(&r).created_bytes, 0);
  rig_close(&r);
}

/* ---- The callback ---- */

typedef struct helper {
  rig *rig;
  rig_block blocks[MAX_BLOCKS];
  int n_blocks;
  int n_calls;
  int n_yes; /* how often it says: try again */
  bool raises;
  uint64_t bytes;
  tarn_heap *heap;
} helper;

static bool help(tarn_heap *heap, uint64_t bytes, void *user) {
  helper *h = user;
  h->n_calls++;
  h->heap = heap;
  h->bytes = bytes;
  if (h->n_calls > h->n_yes) {
    return false;
  }
  if (h->raises) {
    CHECK_OK(tarn_heap_set_limit(heap, 12 * MIB));
  } else if (h->n_blocks != 0) {
    CHECK_OK(rig_free(h->rig, &h->blocks[--h->n_blocks], h->rig->streams[0]));
  }
  return true;
}

static bool open_with_helper(rig *r, helper *h, tarn_stealing stealing) {
  *h = (helper){.rig = r};
  const tarn_heap_config config = {.size = sizeof(config),
                                   .limit_bytes = 8 * MIB,
                                   .stealing = stealing,
                                   .on_shortage = help,
                                   .on_shortage_user = h};
  if (!rig_open(r, "sim:64M", &config, 2)) {
    return false;
  }
  for (int i = 0; i < 4; i++) {
    CHECK_OK(rig_alloc(r, 2 * MIB, r->streams[0], &h->blocks[h->n_blocks++]));
  }
  CHECK_EQ(h->n_calls, 0);
  return true;
}

static void callback_that_refuses(void) {
  rig r;
  helper h;
  rig_block none;
  REQUIRE(open_with_helper(&r, &h, TARN_STEAL_WHEN_SHORT));
  CHECK_STATUS(rig_alloc(&r, 2 * MIB, r.streams[0], &none), TARN_LIMIT);
  CHECK_EQ(h.n_calls, 1);
  CHECK_EQ(h.bytes, 2 * MIB);
  CHECK(h.heap == r.heap);
  CHECK_STATUS(rig_alloc(&r, 100 * MIB, r.streams[0], &none), TARN_LIMIT);
  CHECK_EQ(h.n_calls, 2);
  empty(&r, h.blocks, h.n_blocks);
  rig_close(&r);
}

/* A stream that is gone keeps what it freed, and on a full device nothing can be waited for where
 * pinned memory is short, too: that is a shortage like any other, so the owner is asked; and told
 * of the stream where that is all. */
static void callback_beside_a_lost_stream(void) {
  static const tarn_backing backings[] = {TARN_BACKING_VMM, TARN_BACKING_PLAIN};
  for (int i = 0; i < 4 && !test_case_failed(); i++) {
    rig r;
    helper h = {.rig = &r, .n_yes = i / 2};
    const tarn_heap_config config = {.size = sizeof(config),
                                     .backing = backings[i % 2],
                                     .on_shortage = help,
                                     .on_shortage_user = &h};
    rig_block block, next = {0};
    tarn_stream stream;
    REQUIRE(rig_open(&r, "sim:16M,order=lazy", &config, 1));
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    CHECK_OK(rig_alloc(&r, 8 * MIB, stream, &block));
    CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &h.blocks[h.n_blocks++]));
    CHECK_OK(rig_free(&r, &block, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_HOST_ALLOC, 1, 0, 0));
    if (h.n_yes == 0) {
      CHECK_STATUS(rig_alloc(&r, 8 * MIB, r.streams[0], &next), TARN_STATE);
      CHECK_HAS(tarn_last_message(), "is gone or broken");
      CHECK_OK(rig_free(&r, &h.blocks[0], r.streams[0]));
    } else {
      CHECK_OK(rig_alloc(&r, 8 * MIB, r.streams[0], &next));
      CHECK_OK(rig_free(&r, &next, r.streams[0]));
    }
    CHECK_EQ(h.n_calls, 1);
    CHECK_EQ(h.bytes, 8 * MIB);
    CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
    CHECK(rig_is_sound(&r));
    CHECK_OK(tarn_heap_trim(r.heap, 0)); /* so that there is room to wait for all */
    CHECK_OK(tarn_heap_destroy(r.heap, NULL));
    CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
    tarn_device_close(r.device);
  }
}

/* What a stream freed that was destroyed without a word is waited for with the whole device: a trim
 * gives it back, and who asks for too much is told of the limit, with the numbers. */
static void stream_that_is_gone(void) {
  static const tarn_backing backings[] = {TARN_BACKING_VMM, TARN_BACKING_POOL, TARN_BACKING_PLAIN};
  for (int i = 0; i < 6 && !test_case_failed(); i++) {
    const tarn_heap_config config = {
        .size = sizeof(config), .limit_bytes = 64 * MIB, .backing = backings[i % 3]};
    const bool is_trimmed = i / 3 != 0;
    rig r;
    rig_block freed, kept, none = {0};
    tarn_stream stream;
    REQUIRE(rig_open(&r, "sim:1G,order=lazy", &config, 1));
    REQUIRE_OK(tarn_stream_create(r.device, &stream));
    CHECK_OK(rig_alloc(&r, 32 * MIB, stream, &freed));
    CHECK_OK(rig_free(&r, &freed, stream));
    CHECK_OK(tarn_stream_destroy(r.device, stream));
    if (is_trimmed) {
      CHECK_OK(tarn_heap_trim(r.heap, 0));
      CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
    } else {
      CHECK_OK(rig_alloc(&r, 16 * MIB, r.streams[0], &kept));
      CHECK_STATUS(rig_alloc(&r, 60 * MIB, r.streams[0], &none), TARN_LIMIT);
      CHECK_HAS(tarn_last_message(), "no room for 62914560 bytes: live 16777216");
      CHECK_OK(rig_free(&r, &kept, r.streams[0]));
    }
    CHECK(rig_is_sound(&r));
    CHECK_OK(tarn_heap_destroy(r.heap, NULL));
    CHECK_OK(tarn_stream_destroy(r.device, r.streams[0]));
    tarn_device_close(r.device);
  }
}

static void callback_that_helps(void) {
  rig r;
  helper h;
  rig_block block;
  REQUIRE(open_with_helper(&r, &h, TARN_STEAL_WHEN_SHORT));
  h.n_yes = 10;
  CHECK_OK(rig_alloc(&r, 5 * MIB, r.streams[1], &block)); /* three blocks have to go */
  CHECK_EQ(h.n_calls, 3);
  CHECK_EQ(h.n_blocks, 1);
  CHECK_OK(rig_free(&r, &block, r.streams[1]));
  empty(&r, h.blocks, h.n_blocks);
  CHECK(rig_is_sound(&r));
  rig_close(&r);
}

static void callback_that_helps_small_blocks(void) {
  rig r;
  helper h;
  rig_block block;
  REQUIRE(open_with_helper(&r, &h, TARN_STEAL_NEVER));
  h.n_yes = 10;
  CHECK_OK(rig_alloc(&r, 100, r.streams[0], &block));
  CHECK_EQ(h.n_calls, 1);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  empty(&r, h.blocks, h.n_blocks);
  rig_close(&r);
}

static void callback_that_raises_the_limit(void) {
  rig r;
  helper h;
  rig_block block;
  REQUIRE(open_with_helper(&r, &h, TARN_STEAL_WHEN_SHORT));
  h.n_yes = 1;
  h.raises = true;
  CHECK_OK(rig_alloc(&r, 4 * MIB, r.streams[0], &block));
  CHECK_EQ(h.n_calls, 1);
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  empty(&r, h.blocks, h.n_blocks);
  rig_close(&r);
}

/* ---- What is free is found ---- */

/* Every way in which memory can be free while an allocation on another stream needs it. */
static void all_that_is_free_is_used(void) {
  static const tarn_stealing policies[] = {TARN_STEAL_WHEN_SHORT, TARN_STEAL_NEVER,
                                           TARN_STEAL_ALWAYS};
  static const uint64_t sizes[] = {200, 5000, 60 << 10, 300 << 10, MIB, 3 * MIB, 8 * MIB};
  for (unsigned policy = 0; policy < 3; policy++) {
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
      const tarn_heap_config config = {
          .size = sizeof(config), .limit_bytes = 8 * MIB, .stealing = policies[policy]};
      rig r;
      rig_block blocks[MAX_BLOCKS], block;
      REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 2));
      for (int round = 0; round < 3; round++) {
        const int n = fill(&r, sizes[i], TARN_LIMIT, blocks);
        CHECK(n > 0);
        empty(&r, blocks, n);
        for (unsigned j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
          CHECK_OK(rig_alloc(&r, sizes[j], r.streams[1], &block));
          CHECK_OK(rig_free(&r, &block, r.streams[1]));
        }
      }
      CHECK(rig_is_sound(&r));
      rig_close(&r);
    }
  }
}

/* One free block among live ones: only its own class can have it. */
static void last_block_of_a_full_heap(void) {
  static const tarn_stealing policies[] = {TARN_STEAL_WHEN_SHORT, TARN_STEAL_NEVER,
                                           TARN_STEAL_ALWAYS};
  for (unsigned policy = 0; policy < 3; policy++) {
    for (int is_used = 0; is_used < 2; is_used++) {
      const tarn_heap_config config = {
          .size = sizeof(config), .limit_bytes = 2 * MIB, .stealing = policies[policy]};
      rig r;
      rig_block blocks[MAX_BLOCKS], block;
      REQUIRE(rig_open(&r, "sim:64M,order=lazy", &config, 3));
      const int n = fill(&r, 64 << 10, TARN_LIMIT, blocks);
      CHECK_EQ(n, 32);
      if (is_used) {
        CHECK_OK(tarn_stream_synchronize(r.device, r.streams[0]));
        CHECK_OK(tarn_use(r.heap, blocks[5].address, r.streams[1]));
        rig_touch(&r, &blocks[5], r.streams[1], false);
      }
      CHECK_OK(rig_free(&r, &blocks[5], r.streams[0]));
      for (int stream = 0; stream < 3; stream++) {
        if (CHECK_OK(rig_alloc(&r, 64 << 10, r.streams[stream], &block))) {
          CHECK_OK(rig_free(&r, &block, r.streams[stream]));
        }
      }
      for (int i = 0; i < n; i++) {
        if (i != 5) {
          CHECK_OK(rig_free(&r, &blocks[i], r.streams[0]));
        }
      }
      CHECK(rig_is_sound(&r));
      rig_close(&r);
    }
  }
}

/* Near the limit a window is made where it needs the least: with what is left over on a chunk that
 * is in use, behind void addresses or before them. */
static void leftovers_at_the_limit(void) {
  for (int before = 0; before < 2; before++) {
    const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 128 * MIB};
    rig r;
    rig_block low, rest = {0}, high, block;
    REQUIRE(rig_open(&r, "sim:1G", &config, 1));
    CHECK_OK(rig_alloc(&r, 48 * MIB, r.streams[0], &low));
    if (before != 0) { /* 1.5 MiB of the chunk where the high one begins; else 1 MiB behind it */
      CHECK_OK(rig_alloc(&r, 3 * MIB / 2, r.streams[0], &rest));
    }
    CHECK_OK(rig_alloc(&r, before != 0 ? 61 * MIB / 2 : 79 * MIB, r.streams[0], &high));
    CHECK_OK(rig_free(&r, &low, r.streams[0]));
    if (before != 0) {
      CHECK_OK(rig_free(&r, &rest, r.streams[0]));
    }
    CHECK_OK(tarn_heap_trim(r.heap, 0));
    const uint64_t held = rig_stats(&r).reserved_bytes;
    CHECK_EQ(held, (uint64_t)(before != 0 ? 32 : 80) * MIB);
    CHECK_OK(tarn_heap_set_limit(r.heap, held + 46 * MIB));
    CHECK_OK(rig_alloc(&r, before != 0 ? 95 * MIB / 2 : 47 * MIB, r.streams[0], &block));
    CHECK_OK(rig_free(&r, &block, r.streams[0]));
    CHECK_OK(rig_free(&r, &high, r.streams[0]));
    CHECK(rig_is_sound(&r));
    rig_close(&r);
  }
}

/* What a capture holds counts when a heap wakes, and when its limit falls. */
static void captures_count(void) {
  for (int is_asleep = 0; is_asleep < 2; is_asleep++) {
    const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = 100 * MIB};
    rig r;
    rig_block live, inside;
    REQUIRE(rig_open(&r, "sim:256M", &config, 2));
    CHECK_OK(rig_alloc(&r, 40 * MIB, r.streams[1], &live));
    tarn_capture *capture = rig_capture_begin(&r, NULL);
    CHECK_OK(rig_capture_alloc(&r, 40 * MIB, r.streams[0], &inside));
    CHECK_OK(tarn_free(r.heap, inside.address, r.streams[0]));
    tarn_graph *graph = rig_capture_end(capture);
    if (is_asleep != 0) {
      CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_SAVE));
      CHECK_OK(tarn_heap_set_limit(r.heap, 60 * MIB));
      CHECK_STATUS(tarn_heap_wake(r.heap), TARN_LIMIT);
      CHECK_OK(tarn_heap_set_limit(r.heap, 0));
      CHECK_OK(tarn_heap_wake(r.heap));
      CHECK_OK(rig_free(&r, &live, r.streams[1]));
    } else {
      CHECK_OK(rig_free(&r, &live, r.streams[1]));
      CHECK_OK(tarn_heap_set_limit(r.heap, 60 * MIB));
      CHECK(rig_stats(&r).reserved_bytes <= 60 * MIB); /* captures included */
      CHECK_EQ(rig_stats(&r).captured_bytes, 40 * MIB);
    }
    CHECK_OK(tarn_graph_destroy(graph));
    rig_close(&r);
  }
}

/* No limit, and more than there are addresses. */
static void reserves_beyond_all_addresses(void) {
  rig r;
  rig_block none;
  REQUIRE(rig_open(&r, "sim:64M", NULL, 1));
  CHECK_OK(tarn_heap_set_limit(r.heap, UINT64_MAX));
  CHECK_STATUS(tarn_heap_reserve(r.heap, UINT64_MAX - 5), TARN_DEVICE_MEMORY);
  CHECK_STATUS(tarn_heap_reserve(r.heap, UINT64_MAX), TARN_DEVICE_MEMORY);
  CHECK_HAS(tarn_last_message(), "more than the device has (67108864)");
  CHECK_STATUS(rig_alloc(&r, UINT64_MAX, r.streams[0], &none), TARN_DEVICE_MEMORY);
  CHECK_HAS(tarn_last_message(), "more than the device has (67108864)");
  CHECK_EQ(rig_stats(&r).reserved_bytes, 0);
  rig_close(&r);
}

/* A limit below what captures hold can be set while the heap sleeps: there is nothing to trim. */
static void lowered_asleep(void) {
  rig r;
  rig_block inside;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  tarn_capture *capture = rig_capture_begin(&r, NULL);
  CHECK_OK(rig_capture_alloc(&r, 40 * MIB, r.streams[0], &inside));
  CHECK_OK(tarn_free(r.heap, inside.address, r.streams[0]));
  tarn_graph *graph = rig_capture_end(capture);
  CHECK_OK(tarn_heap_sleep(r.heap, TARN_SLEEP_DROP));
  CHECK_OK(tarn_heap_set_limit(r.heap, 20 * MIB));
  CHECK_OK(tarn_heap_set_limit(r.heap, 0));
  CHECK_OK(tarn_heap_wake(r.heap));
  CHECK_OK(tarn_graph_destroy(graph));
  rig_close(&r);
}

/* What is on its way back to the device is not there to be used. */
static void reserves_anew(void) {
  rig r;
  rig_block block;
  REQUIRE(rig_open(&r, "sim:256M", NULL, 1));
  CHECK_OK(tarn_heap_reserve(r.heap, 100 * MIB));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_UNMAP, 1, 0, 999));
  CHECK(tarn_heap_trim(r.heap, 0) != TARN_OK);
  CHECK_OK(tarn_heap_reserve(r.heap, 100 * MIB));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_CREATE, 1, 0, 0));
  CHECK_OK(rig_alloc(&r, 100 * MIB, r.streams[0], &block));
  CHECK_OK(tarn_sim_fail(r.device, TARN_CALL_COUNT, 0, 0, 0));
  CHECK_OK(rig_free(&r, &block, r.streams[0]));
  rig_close(&r);
}

/* A young heap makes more than is asked for; not where an arena has nearly all that is left. */
static void young_beside_an_arena(void) {
  const tarn_heap_config config = {.size = sizeof(config), .limit_bytes = (uint64_t)1 << 30};
  rig r;
  rig_block blocks[MAX_BLOCKS];
  int n = 0;
  REQUIRE(rig_open(&r, "sim:2G", &config, 1));
  do {
    REQUIRE(n < MAX_BLOCKS);
    CHECK_OK(rig_alloc(&r, 3 * MIB, r.streams[0], &blocks[n++]));
  } while (rig_stats(&r).reserved_bytes < 80 * MIB || rig_stats(&r).free_bytes > 2 * MIB);
  const uint64_t left = config.limit_bytes - rig_stats(&r).reserved_bytes;
  const tarn_arena_config most = {.size = sizeof(most), .reserve_bytes = left - 2 * MIB};
  tarn_arena *arena;
  REQUIRE_OK(tarn_arena_create(r.heap, &most, &arena));
  rig_block more[MAX_BLOCKS];
  const int n_more = fill(&r, 2 * MIB, TARN_LIMIT, more);
  CHECK_EQ(rig_stats(&r).reserved_bytes, config.limit_bytes);
  empty(&r, more, n_more);
  empty(&r, blocks, n);
  CHECK_OK(tarn_arena_destroy(arena));
  rig_close(&r);
}

static const test_case cases[] = {
    {"a stream that is gone", stream_that_is_gone},
    {"reserves anew what is going", reserves_anew},
    {"lowered asleep", lowered_asleep},
    {"captures count", captures_count},
    {"a young heap beside an arena", young_beside_an_arena},
    {"reserves beyond all addresses", reserves_beyond_all_addresses},
    {"a limit, with the numbers", limit_with_the_numbers},
    {"a device that is full", device_that_is_full},
    {"a device that others fill", device_that_others_fill},
    {"a limit raised and lowered", limit_raised_and_lowered},
    {"a limit too small for anything", limit_too_small_for_anything},
    {"reserved memory costs no driver call", reserved_memory_costs_no_call},
    {"reserving too much", reserving_too_much},
    {"trimming to a size", trimming_to},
    {"trimming what holds no more does nothing", trimming_nothing},
    {"trimming small blocks", trimming_small_blocks},
    {"a callback that refuses", callback_that_refuses},
    {"a callback beside a lost stream", callback_beside_a_lost_stream},
    {"a callback that helps", callback_that_helps},
    {"a callback that helps small blocks", callback_that_helps_small_blocks},
    {"a callback that raises the limit", callback_that_raises_the_limit},
    {"all that is free is used", all_that_is_free_is_used},
    {"the last block of a full heap", last_block_of_a_full_heap},
    {"leftovers at the limit", leftovers_at_the_limit},
};

TEST_MAIN(cases)
