/* SPDX-License-Identifier: MIT
 *
 * The allocators of the pair benchmark that need no GPU: tarn, the floor (a thread's own stack of
 * blocks, popped and pushed), glibc, and allocators in shared libraries. A library that is not
 * there is a peer that says why. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_loop.h"
#include "tool.h"

/* ---- tarn ----------------------------------------------------------------------------------- */

BENCH_INLINE uint64_t tarn_peer_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  tarn_ptr block;
  (void)tarn_alloc(state, bytes, stream, &block);
  return block;
}

BENCH_INLINE void tarn_peer_free(void *state, uint64_t block, tarn_stream stream) {
  (void)tarn_free(state, block, stream);
}

BENCH_LOOPS(tarn_peer, tarn_peer_alloc, tarn_peer_free)

void bench_peer_tarn(bench_peer *peer, const char *name, tarn_heap *heap) {
  *peer = (bench_peer){.state = heap, .has_streams = true, BENCH_LOOPS_OF(tarn_peer)};
  (void)snprintf(peer->name, sizeof(peer->name), "%s", name);
}

/* ---- The floor ------------------------------------------------------------------------------ */

enum { FLOOR_BLOCKS = 2048 };

/* What an allocator cannot do without: a store that belongs to the thread, and a block out of it
 * and into it. A block is its number. */
static _Thread_local struct {
  uint32_t n;
  uint32_t blocks[FLOOR_BLOCKS];
} floor_store;

BENCH_INLINE uint64_t floor_peer_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  (void)state;
  (void)bytes;
  (void)stream;
  return floor_store.n > 0 ? floor_store.blocks[--floor_store.n] : 2;
}

BENCH_INLINE void floor_peer_free(void *state, uint64_t block, tarn_stream stream) {
  (void)state;
  (void)stream;
  if (floor_store.n < FLOOR_BLOCKS) {
    floor_store.blocks[floor_store.n++] = (uint32_t)block;
  }
}

BENCH_LOOPS(floor_peer, floor_peer_alloc, floor_peer_free)

void bench_peer_floor(bench_peer *peer) {
  *peer = (bench_peer){.name = "floor", BENCH_LOOPS_OF(floor_peer)};
}

/* ---- glibc ---------------------------------------------------------------------------------- */

BENCH_INLINE uint64_t glibc_peer_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  (void)state;
  (void)stream;
  return (uint64_t)(uintptr_t)malloc(bytes);
}

BENCH_INLINE void glibc_peer_free(void *state, uint64_t block, tarn_stream stream) {
  (void)state;
  (void)stream;
  free((void *)(uintptr_t)block); /* NOLINT(performance-no-int-to-ptr): it was one */
}

BENCH_LOOPS(glibc_peer, glibc_peer_alloc, glibc_peer_free)

void bench_peer_glibc(bench_peer *peer) {
  *peer = (bench_peer){.name = "malloc", BENCH_LOOPS_OF(glibc_peer)};
}

/* ---- Shared libraries ----------------------------------------------------------------------- */

/* jemalloc wants its thread-local variables among those that a program begins with. glibc keeps
 * little room there for libraries that come later, unless it is told to at the start: so the
 * program is started again, and tells it. */
static void start_with_room(void) {
  if (tool_command_line != NULL && getenv("GLIBC_TUNABLES") == NULL &&
      setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536", 1) == 0) {
    (void)execv("/proc/self/exe", tool_command_line); /* returns where that cannot be done */
  }
}

/* A library; NULL, and the reason, when it cannot be loaded. That one is not there is no reason
 * where another one is. */
static void *load(bench_peer *peer, const char *file) {
  static const char *const missing = "No such file";
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library != NULL) {
    return library;
  }
  char *reason = dlerror();
  if (strstr(reason, "static TLS") != NULL) {
    start_with_room();
  }
  if (peer->absent[0] == '\0' || strstr(reason, missing) == NULL) {
    (void)snprintf(peer->absent, sizeof(peer->absent), "%s", reason);
  }
  return NULL;
}

/* Loads the first library that is there. The handle is never closed: threads may still hold the
 * library's memory when they end. */
static void *load_first(bench_peer *peer, const char *const files[]) {
  void *library = NULL;
  for (size_t i = 0; files[i] != NULL && library == NULL; i++) {
    library = load(peer, files[i]);
  }
  if (library != NULL) {
    peer->absent[0] = '\0';
  }
  return library;
}

/* A function by its name; NULL, and the reason, when the library has none. The copy is how POSIX
 * wants a data pointer to become one to a function. */
static void find_function(bench_peer *peer, void *library, const char *name, void *function) {
  void *symbol = library != NULL ? dlsym(library, name) : NULL;
  if (library != NULL && symbol == NULL) {
    (void)snprintf(peer->absent, sizeof(peer->absent), "it has no function %s", name);
  }
  memcpy(function, &symbol, sizeof(symbol));
}

typedef struct host_functions {
  void *(*alloc)(size_t bytes);
  void (*free)(void *block);
} host_functions;

BENCH_INLINE uint64_t host_peer_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  (void)stream;
  return (uint64_t)(uintptr_t)((const host_functions *)state)->alloc(bytes);
}

BENCH_INLINE void host_peer_free(void *state, uint64_t block, tarn_stream stream) {
  (void)stream;
  /* NOLINTNEXTLINE(performance-no-int-to-ptr): it was a pointer */
  ((const host_functions *)state)->free((void *)(uintptr_t)block);
}

BENCH_LOOPS(host_peer, host_peer_alloc, host_peer_free)

void bench_peer_host(bench_peer *peer, const char *name, const char *const files[],
                     const char *alloc_name, const char *free_name) {
  static host_functions functions[BENCH_MAX_PEERS];
  static uint32_t n_functions;
  host_functions *own = &functions[n_functions++ % BENCH_MAX_PEERS];
  *peer = (bench_peer){.state = own, BENCH_LOOPS_OF(host_peer)};
  (void)snprintf(peer->name, sizeof(peer->name), "%s", name);
  void *library = load_first(peer, files);
  find_function(peer, library, alloc_name, &own->alloc);
  find_function(peer, library, free_name, &own->free);
}

/* ---- bench/peers ---------------------------------------------------------------------------- */

typedef struct file_functions {
  const char *(*name)(void);
  uint64_t (*alloc)(uint64_t bytes, void *stream);
  void (*free)(uint64_t block, void *stream);
} file_functions;

BENCH_INLINE uint64_t file_peer_alloc(void *state, uint64_t bytes, tarn_stream stream) {
  return ((const file_functions *)state)->alloc(bytes, stream);
}

BENCH_INLINE void file_peer_free(void *state, uint64_t block, tarn_stream stream) {
  ((const file_functions *)state)->free(block, stream);
}

BENCH_LOOPS(file_peer, file_peer_alloc, file_peer_free)

void bench_peer_file(bench_peer *peer, const char *path) {
  static file_functions functions;
  const char *const files[] = {path, NULL};
  *peer = (bench_peer){
      .name = "peer", .state = &functions, .has_streams = true, BENCH_LOOPS_OF(file_peer)};
  void *library = load_first(peer, files);
  find_function(peer, library, "peer_name", &functions.name);
  find_function(peer, library, "peer_alloc", &functions.alloc);
  find_function(peer, library, "peer_free", &functions.free);
  if (functions.name != NULL) {
    (void)snprintf(peer->name, sizeof(peer->name), "%s", functions.name());
  }
}

/* ---- All of them ---------------------------------------------------------------------------- */

uint32_t bench_find_peers(bench_peer peers[BENCH_MAX_PEERS], tarn_heap *heap,
                          const tarn_device_info *device, const char *file) {
  static const char *const mimalloc_files[] = {"libmimalloc.so.3", "libmimalloc.so.2",
                                               "libmimalloc.so.1", "libmimalloc.so", NULL};
  static const char *const jemalloc_files[] = {"libjemalloc.so.2", "libjemalloc.so", NULL};
  uint32_t n = 0;
  bench_peer_tarn(&peers[n++], "tarn", heap);
  bench_peer_floor(&peers[n++]);
  bench_peer_glibc(&peers[n++]);
  bench_peer_host(&peers[n++], "mimalloc", mimalloc_files, "mi_malloc", "mi_free");
  bench_peer_host(&peers[n++], "jemalloc", jemalloc_files, "malloc", "free");
  if (!device->is_simulated) {
    int ordinal = 0;
    (void)sscanf(device->name, "cuda:%d", &ordinal); /* NOLINT(cert-err34-c): tarn's own name */
    bench_peer_cuda(&peers[n], &peers[n + 1], ordinal);
    n += 2;
  }
  if (file != NULL) {
    bench_peer_file(&peers[n++], file);
  }
  return n;
}

void bench_print_absent(const bench_peer peers[], uint32_t n_peers, bool is_json) {
  for (uint32_t i = 0; i < n_peers; i++) {
    if (peers[i].absent[0] != '\0') {
      (void)fprintf(is_json ? stderr : stdout, "%s%s is not here: %s\n", is_json ? "tarn: " : "",
                    peers[i].name, peers[i].absent);
    }
  }
}
