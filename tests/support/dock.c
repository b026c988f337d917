/* SPDX-License-Identifier: MIT
 *
 * A watched heap with pinned memory and a copier, for tests. */
#include "support/dock.h"

#include <string.h>

#include "support/test.h"

bool dock_open(dock *d, const char *device, const tarn_copier_config *config, uint64_t pool_bytes,
               int n_streams) {
  *d = (dock){.pool = NULL};
  const tarn_pinned_config pool = {
      .size = sizeof(pool), .device = device, .limit_bytes = pool_bytes, .region_bytes = 2 << 20};
  return rig_open(&d->rig, device, NULL, n_streams) &&
         CHECK_OK(tarn_pinned_create(&pool, &d->pool)) &&
         CHECK_OK(tarn_copier_create(d->pool, config, &d->copier));
}

void dock_close(dock *d) {
  for (int i = 0; i < d->rig.n_streams; i++) {
    CHECK_OK(tarn_copier_stream_retire(d->copier, d->rig.streams[i]));
  }
  CHECK_EQ(dock_stats(d).quarantined_bytes, 0);
  CHECK_OK(tarn_copier_destroy(d->copier));
  CHECK_OK(tarn_pinned_check(d->pool));
  uint64_t n_live = 1;
  CHECK_OK(tarn_pinned_destroy(d->pool, &n_live));
  CHECK_EQ(n_live, 0);
  rig_close(&d->rig);
}

tarn_copier_stats dock_stats(const dock *d) {
  tarn_copier_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_copier_get_stats(d->copier, &stats));
  return stats;
}

uint64_t dock_pinned_live(const dock *d) {
  tarn_heap_stats stats = {.size = sizeof(stats)};
  CHECK_OK(tarn_pinned_get_stats(d->pool, &stats));
  return stats.live_bytes;
}

/* Values only: this is most of what a test of contents does, and sanitizers make it slow. */
static inline uint64_t word_of(uint64_t seed, uint64_t index) {
  const uint64_t mixed = (seed * 0x9e3779b97f4a7c15u + index + 1) * 0xbf58476d1ce4e5b9u;
  return mixed ^ mixed >> 29;
}

void dock_pattern(void *bytes, uint64_t length, uint64_t seed) {
  uint8_t *to = bytes;
  for (uint64_t i = 0; i < length; i += 8) {
    const uint64_t word = word_of(seed, i);
    memcpy(to + i, &word, length - i < 8 ? length - i : 8);
  }
}

uint64_t dock_differ(const void *bytes, uint64_t length, uint64_t seed) {
  const uint8_t *from = bytes;
  uint64_t n = 0;
  for (uint64_t i = 0; i < length; i += 8) {
    const uint64_t word = word_of(seed, i);
    const uint64_t n_bytes = length - i < 8 ? length - i : 8;
    n += memcmp(from + i, &word, n_bytes) != 0 ? n_bytes : 0;
  }
  return n;
}

/* The simulated GPU's memory can be read once its work is done. */
uint64_t dock_device_differ(const dock *d, tarn_ptr address, uint64_t length, uint64_t seed,
                            tarn_stream stream) {
  if (!CHECK_OK(tarn_stream_synchronize(d->rig.device, stream))) {
    return UINT64_MAX;
  }
  return dock_differ((const void *)(uintptr_t)address, length, seed);
}
