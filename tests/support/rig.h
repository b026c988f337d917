/* SPDX-License-Identifier: MIT
 *
 * A simulated GPU with a heap and streams on it, watched from its opening to its end: what tests of
 * the heap stand on. Blocks are named to the oracle and used by kernels, so that memory which is
 * handed out too early is found in every run. */
#ifndef TARN_RIG_H
#define TARN_RIG_H

#include <stdatomic.h>

#include "tarn/capture.h"
#include "tarn/heap.h"
#include "tarn/sim.h"

enum { RIG_STREAMS = 8 };

typedef struct rig {
  tarn_device *device;
  tarn_heap *heap;
  tarn_stream streams[RIG_STREAMS];
  int n_streams;
  bool has_buckets; /* the heap's blocks are the driver's own allocations */
  bool is_rounded;  /* the device holds more than was asked for: whole pages, and its own pool */
  _Atomic uint64_t last_owner;
  uint64_t n_findings; /* of the oracle, those at the device's end included */
} rig;

typedef struct rig_block {
  tarn_ptr address; /* 0: none */
  uint64_t bytes;
  uint64_t owner;
} rig_block;

/* Opens the device and makes streams, then the heap; config may be NULL, its device is not looked
 * at. Failures are failed checks, and false. */
bool rig_open(rig *r, const char *device, const tarn_heap_config *config, int n_streams);
/* The same without the heap. */
bool rig_open_device(rig *r, const char *device, int n_streams);

/* Destroys what is there and checks that it went well: no live block, no finding, no leak. */
void rig_close(rig *r);
/* The same for a heap with so many live blocks. */
void rig_close_live(rig *r, uint64_t n_live);

/* Allocates, names the owner, and writes the block by a kernel. */
tarn_status rig_alloc(rig *r, uint64_t bytes, tarn_stream stream, rig_block *block);
/* Tells the oracle that the block is given back, and frees it. On failure it is as it was. */
tarn_status rig_free(rig *r, rig_block *block, tarn_stream stream);
/* Names the owner of a block that was allocated otherwise. */
void rig_own(rig *r, tarn_ptr address, uint64_t bytes, rig_block *block);
/* Uses the block by a kernel on the stream. */
void rig_touch(const rig *r, const rig_block *block, tarn_stream stream, bool is_write);

/* Writes and compares host memory that the thread sanitizer does not know about, and must not be
 * asked about: memory of the simulated GPU and of pinned pools. */
void rig_host_fill(void *memory, uint8_t value, uint64_t bytes);
bool rig_host_is(const void *memory, uint8_t value, uint64_t bytes);
/* The same by a programmatic launch, in a capture. */
void rig_touch_early(const rig *r, const rig_block *block, tarn_stream stream);
/* A capture of the first stream, and its end: both must succeed. */
tarn_capture *rig_capture_begin(rig *r, const tarn_capture_config *config);
tarn_graph *rig_capture_end(tarn_capture *capture);
/* Allocates on a capturing stream and writes the block by a captured kernel. Its owner has no name,
 * because replays come after its end: but every use of it is a write, and must be ordered. */
tarn_status rig_capture_alloc(rig *r, uint64_t bytes, tarn_stream stream, rig_block *block);
/* Makes a stream wait for another, in a capture or not. */
void rig_order(const rig *r, tarn_stream before, tarn_stream after);

uint64_t rig_calls(const rig *r); /* driver calls so far, of all kinds */
tarn_heap_stats rig_stats(const rig *r);
/* Whether nothing has changed, to the last bit. */
bool rig_same_stats(const tarn_heap_stats *a, const tarn_heap_stats *b);
tarn_sim_state rig_state(const rig *r);
/* What the caches of all threads keep goes back, and slabs without a live block. */
void rig_collect(const rig *r);
/* The heap's own check, and the device's account of memory against the heap's. */
bool rig_is_sound(const rig *r);

#endif
