/* SPDX-License-Identifier: MIT
 *
 * A watched heap with a pool of pinned memory and a copier beside it: what tests of transfers stand
 * on. */
#ifndef TARN_DOCK_H
#define TARN_DOCK_H

#include "support/rig.h"
#include "tarn/batch.h"
#include "tarn/copy.h"
#include "tarn/scope.h"

typedef struct dock {
  rig rig;
  tarn_pinned *pool;
  tarn_copier *copier;
} dock;

/* config may be NULL; pool_bytes is the pool's limit, 0: none of its own. */
bool dock_open(dock *d, const char *device, const tarn_copier_config *config, uint64_t pool_bytes,
               int n_streams);
/* Destroys everything and checks that nothing is left: no block of heap or pool, no finding. */
void dock_close(dock *d);

tarn_copier_stats dock_stats(const dock *d);
uint64_t dock_pinned_live(const dock *d); /* bytes of the pool that somebody holds */

/* Bytes that can be told apart, by seed, and how many of them differ from what they should be. */
void dock_pattern(void *bytes, uint64_t length, uint64_t seed);
uint64_t dock_differ(const void *bytes, uint64_t length, uint64_t seed);
/* The same of device memory; waits for the stream. UINT64_MAX where that fails. */
uint64_t dock_device_differ(const dock *d, tarn_ptr address, uint64_t length, uint64_t seed,
                            tarn_stream stream);

#endif
