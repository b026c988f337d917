/* SPDX-License-Identifier: MIT
 *
 * A watched heap on a simulated GPU, for tests. */
#include "support/rig.h"

#include <string.h>

#include "internal.h"
#include "support/test.h"

static void note_finding(const tarn_sim_finding *finding, void *user) {
  rig *r = user;
  if (r->n_findings++ < 3) {
    test_note("found: %s", finding->message);
  }
}

bool rig_open_device(rig *r, const char *device, int n_streams) {
  *r = (rig){0};
  if (!CHECK_OK(tarn_device_open(device, &r->device)) ||
      !CHECK_OK(tarn_sim_set_on_finding(r->device, note_finding, r))) {
    return false;
  }
  for (int i = 0; i < n_streams; i++) {
    if (!CHECK_OK(tarn_stream_create(r->device, &r->streams[i]))) {
      return false;
    }
    r->n_streams++;
  }
  return true;
}

bool rig_open(rig *r, const char *device, const tarn_heap_config *config, int n_streams) {
  tarn_heap_config known = {.size = sizeof(known)};
  if (config != NULL) {
    known = *config;
  }
  known.device = device;
  if (!rig_open_device(r, device, n_streams) || !CHECK_OK(tarn_heap_create(&known, &r->heap))) {
    return false;
  }
  r->has_buckets = r->heap->buckets != NULL;
  r->is_rounded = r->has_buckets && r->heap->buckets->settings.backing != TARN_BACKING_VMM;
  return true;
}

void rig_close_live(rig *r, uint64_t n_live) {
  uint64_t n = UINT64_MAX;
  CHECK_OK(tarn_heap_destroy(r->heap, &n));
  CHECK_EQ(n, n_live);
  r->heap = NULL;
  for (int i = 0; i < r->n_streams; i++) {
    if (r->streams[i] != NULL) {
      CHECK_OK(tarn_stream_destroy(r->device, r->streams[i]));
    }
  }
  tarn_device_close(r->device);
  r->device = NULL;
  CHECK_EQ(r->n_findings, 0);
}

void rig_close(rig *r) {
  rig_close_live(r, 0);
}

void rig_touch(const rig *r, const rig_block *block, tarn_stream stream, bool is_write) {
  const tarn_sim_range range = {.address = block->address,
                                .bytes = block->bytes,
                                .owner = block->owner,
                                .is_write = is_write};
  const tarn_sim_kernel kernel = {.size = sizeof(kernel), .ranges = &range, .n_ranges = 1};
  const tarn_status status = tarn_sim_launch(r->device, &kernel, stream);
  CHECK(status == TARN_OK || status == TARN_DEVICE_LOST);
}

void rig_own(rig *r, tarn_ptr address, uint64_t bytes, rig_block *block) {
  *block = (rig_block){.address = address, .bytes = bytes, .owner = ++r->last_owner};
  CHECK_OK(tarn_sim_own(r->device, address, bytes, block->owner));
}

tarn_status rig_alloc(rig *r, uint64_t bytes, tarn_stream stream, rig_block *block) {
  tarn_ptr address = 1;
  *block = (rig_block){0};
  const tarn_status status = tarn_alloc(r->heap, bytes, stream, &address);
  if (status != TARN_OK) {
    CHECK_EQ(address, 0);
    return status;
  }
  CHECK(address != 0);
  CHECK_EQ(address % 256, 0);
  rig_own(r, address, bytes, block);
  rig_touch(r, block, stream, true);
  return TARN_OK;
}

tarn_status rig_free(rig *r, rig_block *block, tarn_stream stream) {
  CHECK_OK(tarn_sim_disown(r->device, block->address, block->bytes));
  const tarn_status status = tarn_free(r->heap, block->address, stream);
  if (status != TARN_OK) {
    CHECK_OK(tarn_sim_own(r->device, block->address, block->bytes, block->owner));
    return status;
  }
  *block = (rig_block){0};
  return TARN_OK;
}

/* Word by word through volatile pointers: a call of memset would be the sanitizer's own. */
__attribute__((no_sanitize("thread"))) void rig_host_fill(void *memory, uint8_t value,
                                                          uint64_t bytes) {
  volatile uint8_t *at = memory;
  const uint64_t word = value * UINT64_C(0x0101010101010101);
  for (; bytes != 0 && (uintptr_t)at % sizeof(word) != 0; bytes--) {
    *at++ = value;
  }
  for (; bytes >= sizeof(word); bytes -= sizeof(word), at += sizeof(word)) {
    *(volatile uint64_t *)(volatile void *)at = word;
  }
  for (; bytes != 0; bytes--) {
    *at++ = value;
  }
}

__attribute__((no_sanitize("thread"))) bool rig_host_is(const void *memory, uint8_t value,
                                                        uint64_t bytes) {
  const volatile uint8_t *at = memory;
  for (uint64_t i = 0; i < bytes; i++) {
    if (at[i] != value) {
      return false;
    }
  }
  return true;
}

void rig_touch_early(const rig *r, const rig_block *block, tarn_stream stream) {
  const tarn_sim_range range = {
      .address = block->address, .bytes = block->bytes, .owner = block->owner, .is_write = true};
  const tarn_sim_kernel kernel = {
      .size = sizeof(kernel), .ranges = &range, .n_ranges = 1, .is_early = true};
  CHECK_OK(tarn_sim_launch(r->device, &kernel, stream));
}

tarn_capture *rig_capture_begin(rig *r, const tarn_capture_config *config) {
  tarn_capture *capture = NULL;
  CHECK_OK(tarn_capture_begin(r->heap, config, r->streams[0], &capture));
  return capture;
}

tarn_graph *rig_capture_end(tarn_capture *capture) {
  tarn_graph *graph = NULL;
  CHECK_OK(tarn_capture_end(&capture, &graph));
  CHECK(capture == NULL);
  return graph;
}

tarn_status rig_capture_alloc(rig *r, uint64_t bytes, tarn_stream stream, rig_block *block) {
  tarn_ptr address = 1;
  *block = (rig_block){0};
  const tarn_status status = tarn_alloc(r->heap, bytes, stream, &address);
  if (status != TARN_OK) {
    CHECK_EQ(address, 0);
    return status;
  }
  CHECK(address != 0);
  CHECK_EQ(address % 256, 0);
  *block = (rig_block){.address = address, .bytes = bytes};
  rig_touch(r, block, stream, true);
  return TARN_OK;
}

void rig_order(const rig *r, tarn_stream before, tarn_stream after) {
  tarni_port *port = (tarni_port *)r->device;
  tarni_event event;
  if (CHECK_OK(tarni_port_event_create(port, &event))) {
    CHECK_OK(tarni_port_event_record(port, event, before));
    CHECK_OK(tarni_port_event_wait(port, after, event));
    CHECK_OK(tarni_port_event_destroy(port, event));
  }
}

uint64_t rig_calls(const rig *r) {
  tarn_call_counts counts = {.size = sizeof(counts)};
  CHECK_OK(tarn_device_get_calls(r->device, &counts));
  uint64_t sum = 0;
  for (int i = 0; i < TARN_CALL_COUNT; i++) {
    sum += counts.calls[i];
  }
  return sum;
}

tarn_heap_stats rig_stats(const rig *r) {
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_heap_get_stats(r->heap, &stats));
  return stats;
}

bool rig_same_stats(const tarn_heap_stats *a, const tarn_heap_stats *b) {
  const unsigned char *bytes = (const unsigned char *)a, *others = (const unsigned char *)b;
  return memcmp(bytes, others, sizeof(*a)) == 0;
}

tarn_sim_state rig_state(const rig *r) {
  tarn_sim_state state = {.size = sizeof(state)};
  CHECK_OK(tarn_sim_get_state(r->device, &state));
  return state;
}

void rig_collect(const rig *r) {
  tarni_lock_acquire(&r->heap->lock);
  tarni_cache_empty_all_locked(r->heap, 0, false);
  tarni_slab_collect_all_locked(r->heap);
  tarni_lock_release(&r->heap->lock);
}

bool rig_is_sound(const rig *r) {
  if (!CHECK_OK(tarn_heap_check(r->heap))) {
    return false;
  }
  const tarn_heap_stats stats = rig_stats(r);
  return CHECK_EQ(stats.live_bytes + stats.cached_bytes + stats.pending_bytes + stats.free_bytes +
                      stats.captured_bytes,
                  stats.reserved_bytes + stats.asleep_bytes) &&
         (r->is_rounded ? CHECK(rig_state(r).created_bytes >= stats.reserved_bytes)
                        : CHECK_EQ(rig_state(r).created_bytes, stats.reserved_bytes)) &&
         CHECK(stats.quarantined_bytes <= stats.reserved_bytes + stats.asleep_bytes);
}
