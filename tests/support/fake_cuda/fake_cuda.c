/* SPDX-License-Identifier: MIT
 *
 * The stand-in for libcuda: see fake_cuda.h. Owns one state for the process and one stack of
 * contexts for each thread. Its counters are for tests with one thread at work; the entries that
 * tests call from several threads at once (loading, counting devices) go through a lock. */
#include "support/fake_cuda/fake_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_CUDA_VERSION
#define FAKE_CUDA_VERSION 13000
#endif

/* The names and parameters are the driver's. */
/* NOLINTBEGIN(readability-identifier-naming, readability-non-const-parameter) */
/* NOLINTBEGIN(readability-function-size) */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define FAKE_API __attribute__((visibility("default")))

enum { STACK_CAPACITY = 16, FIRST_HANDLE = 0x1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local tarni_cu_context stack[STACK_CAPACITY];
static _Thread_local int depth;
static uint64_t next_handle = FIRST_HANDLE;

static fake_cuda state = {
    .attributes = {[TARNI_CU_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
                   [TARNI_CU_ATTRIBUTE_COMPUTE_MAJOR] = 9,
                   [TARNI_CU_ATTRIBUTE_REGISTERED_AT_HOST_POINTER] = 1,
                   [TARNI_CU_ATTRIBUTE_HOST_REGISTER] = 1,
                   [TARNI_CU_ATTRIBUTE_VMM] = 1,
                   [TARNI_CU_ATTRIBUTE_EXPORT_DESCRIPTOR] = 1,
                   [TARNI_CU_ATTRIBUTE_POOLS] = 1,
                   [TARNI_CU_ATTRIBUTE_VALUES_64] = 1},
    .n_devices = FAKE_DEVICE_COUNT,
    .primary = {{.device = 0}, {.device = 1}},
};

FAKE_API fake_cuda *fake_cuda_state(void) {
  return &state;
}

static tarni_cu_result note_call(fake_entry entry) {
  (void)pthread_mutex_lock(&lock);
  state.n_calls[entry]++;
  const tarni_cu_result code = state.fail_with[entry];
  (void)pthread_mutex_unlock(&lock);
  return code;
}

/* Leaves the calling entry where it is to fail, or where it needs a context and there is none. */
#define ENTER(member)                                                                              \
  do {                                                                                             \
    const tarni_cu_result code_ = note_call(FAKE_##member);                                        \
    if (code_ != TARNI_CU_SUCCESS) {                                                               \
      return code_;                                                                                \
    }                                                                                              \
  } while (0)
#define ENTER_CONTEXT(member)                                                                      \
  do {                                                                                             \
    state.last_context = depth > 0 ? stack[depth - 1] : NULL;                                      \
    ENTER(member);                                                                                 \
    if (depth == 0) {                                                                              \
      return TARNI_CU_INVALID_CONTEXT;                                                             \
    }                                                                                              \
  } while (0)

static tarni_cu_result give_number(uint64_t *output) {
  *output = state.gives_null ? 0 : next_handle++;
  return TARNI_CU_SUCCESS;
}

/* Handles are never followed: any number that is not 0 will do. */
static void *new_handle(void) {
  return state.gives_null ? NULL : (void *)(uintptr_t)next_handle++;
}

/* ---- Driver, devices, contexts -------------------------------------------------------------- */

FAKE_API tarni_cu_result cuInit(unsigned flags) {
  ENTER(init);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuDriverGetVersion(int *version) {
  ENTER(driver_version);
  *version = FAKE_CUDA_VERSION;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuGetErrorName(tarni_cu_result code, const char **name) {
  ENTER(error_name);
  switch (code) {
#define CODE_NAME(text, number)                                                                    \
  case number:                                                                                     \
    *name = "CUDA_ERROR_" #text;                                                                   \
    return TARNI_CU_SUCCESS;
    TARNI_CU_CODES(CODE_NAME)
#undef CODE_NAME
  default:
    *name = NULL;
    return TARNI_CU_INVALID_VALUE;
  }
}

FAKE_API tarni_cu_result cuDeviceGetCount(int *count) {
  ENTER(device_count);
  *count = state.n_devices;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuDeviceGet(tarni_cu_device *device, int ordinal) {
  ENTER(device_get);
  *device = ordinal;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuDeviceGetName(char *name, int capacity, tarni_cu_device device) {
  ENTER(device_name);
  strncpy(name, "Fake GPU", (size_t)capacity);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuDeviceTotalMem_v2(size_t *bytes, tarni_cu_device device) {
  ENTER(device_memory);
  *bytes = (size_t)8 << 30;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuDeviceGetAttribute(int *value, tarni_cu_attribute attribute,
                                              tarni_cu_device device) {
  ENTER(device_attribute);
  if (attribute < 0 || attribute >= FAKE_ATTRIBUTE_COUNT) {
    return TARNI_CU_INVALID_VALUE;
  }
  *value = state.attributes[attribute];
  return TARNI_CU_SUCCESS;
}

#if FAKE_CUDA_VERSION >= 7000
FAKE_API tarni_cu_result cuDevicePrimaryCtxRetain(tarni_cu_context *context,
                                                  tarni_cu_device device) {
  ENTER(primary_retain);
  state.primary[device].n_retained++;
  *context = &state.primary[device];
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuDevicePrimaryCtxRelease(tarni_cu_device device) {
  ENTER(primary_release_old);
  state.primary[device].n_retained--;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuDevicePrimaryCtxGetState(tarni_cu_device device, unsigned *flags,
                                                    int *active) {
  ENTER(primary_state);
  *flags = 0;
  *active = state.primary[device].n_retained > 0;
  return TARNI_CU_SUCCESS;
}
#endif

#if FAKE_CUDA_VERSION >= 11000
FAKE_API tarni_cu_result cuDevicePrimaryCtxRelease_v2(tarni_cu_device device) {
  ENTER(primary_release);
  state.primary[device].n_retained--;
  return TARNI_CU_SUCCESS;
}
#endif

FAKE_API tarni_cu_result cuCtxGetCurrent(tarni_cu_context *context) {
  ENTER(context_current);
  *context = depth > 0 ? stack[depth - 1] : NULL;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuCtxPushCurrent_v2(tarni_cu_context context) {
  ENTER(context_push);
  if (depth == STACK_CAPACITY) {
    return TARNI_CU_INVALID_VALUE;
  }
  stack[depth++] = context;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuCtxPopCurrent_v2(tarni_cu_context *context) {
  ENTER(context_pop);
  if (depth == 0) {
    return TARNI_CU_INVALID_CONTEXT;
  }
  *context = stack[--depth];
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuCtxGetDevice(tarni_cu_device *device) {
  ENTER_CONTEXT(context_device);
  *device = stack[depth - 1]->device;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  ENTER_CONTEXT(memory_info);
  *free_bytes = (size_t)7 << 30;
  *total_bytes = state.gives_null ? 0 : (size_t)8 << 30;
  return TARNI_CU_SUCCESS;
}

/* ---- Chunks --------------------------------------------------------------------------------- */

#if FAKE_CUDA_VERSION >= 10020
FAKE_API tarni_cu_result cuMemGetAllocationGranularity(size_t *bytes,
                                                       const tarni_cu_chunk_properties *properties,
                                                       tarni_cu_granularity_option option) {
  ENTER(granularity);
  if (!state.gives_null) {
    *bytes = state.granularity != 0 ? state.granularity : FAKE_GRANULARITY;
  }
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemAddressReserve(tarni_cu_address *address, size_t size,
                                             size_t alignment, tarni_cu_address wish,
                                             tarni_cu_flags flags) {
  ENTER_CONTEXT(reserve);
  const size_t unit = alignment > FAKE_GRANULARITY ? alignment : FAKE_GRANULARITY;
  *address = state.gives_null ? 0 : unit * 16 + state.misalignment;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemAddressFree(tarni_cu_address address, size_t size) {
  ENTER_CONTEXT(unreserve);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemCreate(tarni_cu_chunk *chunk, size_t size,
                                     const tarni_cu_chunk_properties *properties,
                                     tarni_cu_flags flags) {
  ENTER_CONTEXT(create);
  state.last_handle_type = properties->handle_types;
  if (properties->handle_types != 0 && properties->handle_types == state.refused_handle_type) {
    return TARNI_CU_NOT_PERMITTED;
  }
  return give_number(chunk);
}

FAKE_API tarni_cu_result cuMemRelease(tarni_cu_chunk chunk) {
  ENTER_CONTEXT(release);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemMap(tarni_cu_address address, size_t size, size_t offset,
                                  tarni_cu_chunk chunk, tarni_cu_flags flags) {
  ENTER_CONTEXT(map);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemSetAccess(tarni_cu_address address, size_t size,
                                        const tarni_cu_access *access, size_t count) {
  ENTER_CONTEXT(access);
  state.last_flags = (uint64_t)access->flags;
  state.last_value = (uint64_t)access->location.id;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemUnmap(tarni_cu_address address, size_t size) {
  ENTER_CONTEXT(unmap);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemExportToShareableHandle(void *shareable, tarni_cu_chunk chunk,
                                                      tarni_cu_handle_type type,
                                                      tarni_cu_flags flags) {
  ENTER_CONTEXT(export_chunk);
  const int descriptor = state.gives_null ? -1 : 77;
  memcpy(shareable, &descriptor, sizeof(descriptor));
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemImportFromShareableHandle(tarni_cu_chunk *chunk, void *shareable,
                                                        tarni_cu_handle_type type) {
  ENTER_CONTEXT(import_chunk);
  state.last_value = (uintptr_t)shareable;
  return give_number(chunk);
}
#endif

/* ---- Plain memory, pools, pinned memory ----------------------------------------------------- */

FAKE_API tarni_cu_result cuMemAlloc_v2(tarni_cu_address *address, size_t size) {
  ENTER_CONTEXT(plain_alloc);
  return give_number(address);
}

FAKE_API tarni_cu_result cuMemFree_v2(tarni_cu_address address) {
  ENTER_CONTEXT(plain_free);
  return TARNI_CU_SUCCESS;
}

#if FAKE_CUDA_VERSION >= 11020
FAKE_API tarni_cu_result cuMemPoolCreate(tarni_cu_pool *pool,
                                         const tarni_cu_pool_properties *properties) {
  ENTER_CONTEXT(pool_create);
  *pool = new_handle();
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemPoolDestroy(tarni_cu_pool pool) {
  ENTER_CONTEXT(pool_destroy);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemPoolTrimTo(tarni_cu_pool pool, size_t keep_bytes) {
  ENTER_CONTEXT(pool_trim);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemPoolSetAttribute(tarni_cu_pool pool,
                                               tarni_cu_pool_attribute attribute, void *value) {
  ENTER_CONTEXT(pool_set);
  state.last_flags = (uint64_t)attribute;
  memcpy(&state.last_value, value, sizeof(state.last_value));
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemAllocFromPoolAsync(tarni_cu_address *address, size_t size,
                                                 tarni_cu_pool pool, tarni_cu_stream stream) {
  ENTER_CONTEXT(pool_alloc);
  return give_number(address);
}

FAKE_API tarni_cu_result cuMemFreeAsync(tarni_cu_address address, tarni_cu_stream stream) {
  ENTER_CONTEXT(pool_free);
  return TARNI_CU_SUCCESS;
}
#endif

FAKE_API tarni_cu_result cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
  ENTER_CONTEXT(host_alloc);
  state.last_flags = flags;
  *pointer = new_handle();
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemFreeHost(void *pointer) {
  ENTER_CONTEXT(host_free);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags) {
  ENTER_CONTEXT(host_register);
  state.last_flags = flags;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemHostUnregister(void *pointer) {
  ENTER_CONTEXT(host_unregister);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemHostGetDevicePointer_v2(tarni_cu_address *address, void *pointer,
                                                      unsigned flags) {
  ENTER_CONTEXT(host_address);
  *address = (uintptr_t)pointer + state.address_offset;
  return TARNI_CU_SUCCESS;
}

/* ---- Streams, events, captures, graphs ------------------------------------------------------ */

FAKE_API tarni_cu_result cuStreamCreate(tarni_cu_stream *stream, unsigned flags) {
  ENTER_CONTEXT(stream_create);
  state.last_flags = flags;
  *stream = new_handle();
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuStreamDestroy_v2(tarni_cu_stream stream) {
  ENTER_CONTEXT(stream_destroy);
  return TARNI_CU_SUCCESS;
}

#if FAKE_CUDA_VERSION >= 12000
FAKE_API tarni_cu_result cuStreamGetId(tarni_cu_stream stream, tarni_cu_flags *id) {
  ENTER_CONTEXT(stream_id);
  return give_number(id);
}
#endif

FAKE_API tarni_cu_result cuStreamQuery(tarni_cu_stream stream) {
  ENTER_CONTEXT(stream_query);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuStreamSynchronize(tarni_cu_stream stream) {
  ENTER_CONTEXT(stream_sync);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuEventCreate(tarni_cu_event *event, unsigned flags) {
  ENTER_CONTEXT(event_create);
  state.last_flags = flags;
  *event = new_handle();
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuEventDestroy_v2(tarni_cu_event event) {
  ENTER_CONTEXT(event_destroy);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuEventRecord(tarni_cu_event event, tarni_cu_stream stream) {
  ENTER_CONTEXT(event_record);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuEventQuery(tarni_cu_event event) {
  ENTER_CONTEXT(event_query);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuEventSynchronize(tarni_cu_event event) {
  ENTER_CONTEXT(event_sync);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuStreamWaitEvent(tarni_cu_stream stream, tarni_cu_event event,
                                           unsigned flags) {
  ENTER_CONTEXT(event_wait);
  return TARNI_CU_SUCCESS;
}

#if FAKE_CUDA_VERSION >= 10010
FAKE_API tarni_cu_result cuStreamGetCaptureInfo(tarni_cu_stream stream,
                                                tarni_cu_capture_status *status,
                                                tarni_cu_word *id) {
  ENTER_CONTEXT(capture_state);
  *status = state.capture_status;
  *id = 42; /* also without a capture: a caller may not take it for one */
  return TARNI_CU_SUCCESS;
}

#if FAKE_CUDA_VERSION >= 12030
FAKE_API tarni_cu_result cuStreamGetCaptureInfo_v3(tarni_cu_stream stream,
                                                   tarni_cu_capture_status *status,
                                                   tarni_cu_word *id, tarni_cu_graph *graph,
                                                   const tarni_cu_node **nodes,
                                                   const tarni_cu_edge **edges, size_t *count) {
  ENTER_CONTEXT(capture_nodes);
  *status = state.capture_status;
  *id = 42;
  *graph = (tarni_cu_graph)(uintptr_t)43;
  *nodes = state.nodes;
  *edges = state.edges;
  *count = state.n_nodes;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuGraphNodeGetDependencies_v2(tarni_cu_node node, tarni_cu_node *nodes,
                                                       tarni_cu_edge *edges, size_t *count) {
  ENTER_CONTEXT(node_before);
  for (size_t i = 0; nodes != NULL && i < state.n_nodes && i < *count; i++) {
    nodes[i] = state.nodes[i];
    edges[i] = state.edges[i];
  }
  *count = nodes != NULL && *count < state.n_nodes ? *count : state.n_nodes;
  return TARNI_CU_SUCCESS;
}
#endif

FAKE_API tarni_cu_result cuStreamBeginCapture_v2(tarni_cu_stream stream,
                                                 tarni_cu_capture_mode mode) {
  ENTER_CONTEXT(capture_begin);
  state.last_flags = (uint64_t)mode;
  return TARNI_CU_SUCCESS;
}

/* Belongs to no context. */
FAKE_API tarni_cu_result cuThreadExchangeStreamCaptureMode(tarni_cu_capture_mode *mode) {
  ENTER(thread_mode);
  const tarni_cu_capture_mode before = state.thread_mode;
  state.thread_mode = *mode;
  *mode = before;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuStreamEndCapture(tarni_cu_stream stream, tarni_cu_graph *graph) {
  ENTER_CONTEXT(capture_end);
  *graph = new_handle();
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuGraphLaunch(tarni_cu_exec exec, tarni_cu_stream stream) {
  ENTER_CONTEXT(graph_launch);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuGraphExecDestroy(tarni_cu_exec exec) {
  ENTER_CONTEXT(exec_destroy);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuGraphDestroy(tarni_cu_graph graph) {
  ENTER_CONTEXT(graph_destroy);
  return TARNI_CU_SUCCESS;
}
#endif

#if FAKE_CUDA_VERSION >= 11040
FAKE_API tarni_cu_result cuGraphInstantiateWithFlags(tarni_cu_exec *exec, tarni_cu_graph graph,
                                                     tarni_cu_flags flags) {
  ENTER_CONTEXT(instantiate);
  *exec = new_handle();
  return TARNI_CU_SUCCESS;
}
#endif

#if FAKE_CUDA_VERSION >= 11000
FAKE_API tarni_cu_result cuGraphInstantiate_v2(tarni_cu_exec *exec, tarni_cu_graph graph,
                                               tarni_cu_node *error_node, char *log,
                                               size_t log_bytes) {
  ENTER_CONTEXT(instantiate_old);
  *exec = new_handle();
  return TARNI_CU_SUCCESS;
}
#endif

/* ---- Work ----------------------------------------------------------------------------------- */

FAKE_API tarni_cu_result cuMemcpyAsync(tarni_cu_address destination, tarni_cu_address source,
                                       size_t size, tarni_cu_stream stream) {
  ENTER_CONTEXT(copy);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemcpy(tarni_cu_address destination, tarni_cu_address source,
                                  size_t size) {
  ENTER_CONTEXT(copy_sync);
  return TARNI_CU_SUCCESS;
}

#if FAKE_CUDA_VERSION >= 12080
FAKE_API tarni_cu_result cuMemcpyBatchAsync(tarni_cu_address *destinations,
                                            tarni_cu_address *sources, size_t *sizes, size_t count,
                                            tarni_cu_copy_attributes *attributes, size_t *first,
                                            size_t attribute_count, size_t *failed,
                                            tarni_cu_stream stream) {
  ENTER_CONTEXT(copy_batch);
  /* One set of attributes, in stream order, for all copies from the first on. */
  const bool is_right = attribute_count == 1 && first[0] == 0 && attributes[0].order == 1;
  return is_right ? TARNI_CU_SUCCESS : TARNI_CU_INVALID_VALUE;
}
#endif

FAKE_API tarni_cu_result cuModuleLoadData(tarni_cu_module *module, const void *text) {
  ENTER_CONTEXT(module_load);
  *module = new_handle();
  return strstr(text, ".entry tarn_scatter") != NULL ? TARNI_CU_SUCCESS : TARNI_CU_INVALID_VALUE;
}

FAKE_API tarni_cu_result cuModuleGetFunction(tarni_cu_function *function, tarni_cu_module module,
                                             const char *name) {
  ENTER_CONTEXT(module_function);
  *function = new_handle();
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuLaunchKernel(tarni_cu_function function, unsigned grid_x,
                                        unsigned grid_y, unsigned grid_z, unsigned block_x,
                                        unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                        tarni_cu_stream stream, void **parameters, void **extra) {
  ENTER_CONTEXT(launch);
  state.last_grid[0] = grid_x;
  state.last_grid[1] = grid_y;
  state.last_grid[2] = grid_z;
  memcpy(state.last_list, parameters[0], sizeof(state.last_list));
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemGetAddressRange_v2(tarni_cu_address *first, size_t *bytes,
                                                 tarni_cu_address address) {
  ENTER_CONTEXT(address_range);
  if (address < state.known_first || address - state.known_first >= state.known_bytes) {
    return TARNI_CU_NOT_FOUND;
  }
  *first = state.known_first;
  *bytes = state.known_bytes;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuPointerGetAttribute(void *value, tarni_cu_pointer_attribute attribute,
                                               tarni_cu_address address) {
  ENTER_CONTEXT(pointer_attribute);
  if (attribute != TARNI_CU_POINTER_ACCESS) {
    return TARNI_CU_INVALID_VALUE;
  }
  memcpy(value, &state.access, sizeof(state.access));
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemsetD8Async(tarni_cu_address destination, unsigned char value,
                                         size_t size, tarni_cu_stream stream) {
  ENTER_CONTEXT(fill);
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuMemsetD8_v2(tarni_cu_address destination, unsigned char value,
                                       size_t size) {
  ENTER_CONTEXT(fill_sync);
  return TARNI_CU_SUCCESS;
}

#if FAKE_CUDA_VERSION >= 11070
FAKE_API tarni_cu_result cuStreamWriteValue64_v2(tarni_cu_stream stream, tarni_cu_address address,
                                                 tarni_cu_word value, unsigned flags) {
  ENTER_CONTEXT(value_write);
  state.last_value = address;
  return TARNI_CU_SUCCESS;
}

FAKE_API tarni_cu_result cuStreamWaitValue64_v2(tarni_cu_stream stream, tarni_cu_address address,
                                                tarni_cu_word value, unsigned flags) {
  ENTER_CONTEXT(value_wait);
  state.last_value = address;
  return TARNI_CU_SUCCESS;
}
#endif

/* ---- Looking entries up --------------------------------------------------------------------- */

#if FAKE_CUDA_VERSION >= 11030
/* The newest entry of the name that is no newer than asked for, as the driver does it. The module
 * is open for everybody, so its own symbols can be asked for. */
static void *find_entry(const char *name, int version) {
  static const struct {
    const char *name;
    const char *symbol;
    int version;
  } entries[] = {
#define ENTRY(member, group, entry_name, entry_version, symbol, parameters)                        \
  {#entry_name, #symbol, entry_version},
      TARNI_CU_ENTRIES(ENTRY)
#undef ENTRY
  };
  const char *best = NULL;
  int best_version = 0;
  for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
    if (strcmp(entries[i].name, name) == 0 && entries[i].version <= version &&
        entries[i].version <= FAKE_CUDA_VERSION && entries[i].version > best_version) {
      best = entries[i].symbol;
      best_version = entries[i].version;
    }
  }
  return best != NULL ? dlsym(RTLD_DEFAULT, best) : NULL;
}

FAKE_API tarni_cu_result cuGetProcAddress(const char *name, void **entry, int version,
                                          tarni_cu_word flags) {
  state.n_lookups_old++;
  state.last_flags = flags;
  *entry = find_entry(name, version);
  return *entry != NULL ? TARNI_CU_SUCCESS : TARNI_CU_NOT_FOUND;
}
#endif

#if FAKE_CUDA_VERSION >= 12000
FAKE_API tarni_cu_result cuGetProcAddress_v2(const char *name, void **entry, int version,
                                             tarni_cu_word flags, tarni_cu_lookup *found) {
  state.n_lookups_new++;
  state.last_flags = flags;
  *entry = find_entry(name, version);
  *found = *entry != NULL ? TARNI_CU_LOOKUP_FOUND : 1;
  return TARNI_CU_SUCCESS;
}
#endif
/* NOLINTEND(readability-function-size) */
/* NOLINTEND(readability-identifier-naming, readability-non-const-parameter) */
