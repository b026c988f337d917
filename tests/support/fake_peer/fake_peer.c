/* SPDX-License-Identifier: MIT
 *
 * A peer for `tarn bench pair --peer` that can only be loaded where there is room for its
 * thread-local variable among those that a program begins with, as with jemalloc. */
#include <stdint.h>

enum { ROOM = 16 << 10 };

#define EXPORT __attribute__((visibility("default")))
EXPORT const char *peer_name(void);
EXPORT uint64_t peer_alloc(uint64_t bytes, void *stream);
EXPORT void peer_free(uint64_t block, void *stream);

static _Thread_local char room[ROOM] __attribute__((tls_model("initial-exec")));

const char *peer_name(void) {
  return "roomy";
}

uint64_t peer_alloc(uint64_t bytes, void *stream) {
  (void)stream;
  room[bytes % ROOM]++;
  return bytes;
}

void peer_free(uint64_t block, void *stream) {
  (void)stream;
  room[block % ROOM]--;
}
