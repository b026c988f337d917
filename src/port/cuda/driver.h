/* SPDX-License-Identifier: MIT
 *
 * What tarn knows of the CUDA driver: the few types, constants and entry points that the port
 * uses, declared here so that no toolkit is needed to build. tests/unit/test_cuda_abi.c compares
 * all of it with cuda.h where there is one: each entry's parameters are part of the list below, so
 * that the test can read them with cuda.h's own types in place of these.
 *
 * Every entry is asked for with the version whose signature is written here, never with the newest:
 * the driver keeps old versions for good, and a newer one may have other parameters.
 *
 * Locks: one pthread_once. The table is immutable once it is loaded. */
#ifndef TARNI_CUDA_DRIVER_H
#define TARNI_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tarn/tarn.h"

/* The driver's enums have the size of an int, and its handles are pointers to nothing we know. */
typedef int tarni_cu_result;
typedef int tarni_cu_device;
typedef int tarni_cu_attribute;
typedef int tarni_cu_handle_type;
typedef int tarni_cu_granularity_option;
typedef int tarni_cu_pool_attribute;
typedef int tarni_cu_capture_status;
typedef int tarni_cu_capture_mode;
typedef int tarni_cu_pointer_attribute;
typedef int tarni_cu_lookup; /* what cuGetProcAddress found */
typedef uint64_t tarni_cu_address;
typedef uint64_t tarni_cu_chunk;
typedef uint64_t tarni_cu_word;
typedef uint64_t tarni_cu_flags;
typedef struct tarni_cu_context_object *tarni_cu_context;
typedef struct tarni_cu_stream_object *tarni_cu_stream;
typedef struct tarni_cu_event_object *tarni_cu_event;
typedef struct tarni_cu_pool_object *tarni_cu_pool;
typedef struct tarni_cu_graph_object *tarni_cu_graph;
typedef struct tarni_cu_exec_object *tarni_cu_exec;
typedef struct tarni_cu_node_object *tarni_cu_node;
typedef struct tarni_cu_module_object *tarni_cu_module;
typedef struct tarni_cu_function_object *tarni_cu_function;

/* All zero: what comes after begins when the node is complete. */
typedef struct tarni_cu_edge {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
} tarni_cu_edge;

typedef struct tarni_cu_location {
  int type;
  int id;
} tarni_cu_location;

typedef struct tarni_cu_copy_attributes {
  int order; /* in which the source may be read */
  tarni_cu_location source;
  tarni_cu_location destination;
  unsigned flags;
} tarni_cu_copy_attributes;

typedef struct tarni_cu_chunk_properties {
  int type;
  int handle_types;
  tarni_cu_location location;
  void *windows_metadata;
  struct {
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
} tarni_cu_chunk_properties;

typedef struct tarni_cu_access {
  tarni_cu_location location;
  int flags;
} tarni_cu_access;

typedef struct tarni_cu_pool_properties {
  int type;
  int handle_types;
  tarni_cu_location location;
  void *windows_attributes;
  size_t max_bytes;
  unsigned short usage;
  unsigned char reserved[54];
} tarni_cu_pool_properties;

enum {
  TARNI_CU_MEMORY_PINNED = 1,
  TARNI_CU_LOCATION_DEVICE = 1,
  TARNI_CU_HANDLE_NONE = 0,
  TARNI_CU_HANDLE_DESCRIPTOR = 1,
  TARNI_CU_GRANULARITY_MINIMUM = 0,
  TARNI_CU_ACCESS_READ_WRITE = 3,
  TARNI_CU_POINTER_ACCESS = 16,
  TARNI_CU_POOL_THRESHOLD = 4,
  TARNI_CU_HOST_PORTABLE = 1,
  TARNI_CU_HOST_MAPPED = 2,
  TARNI_CU_HOST_WRITE_COMBINED = 4,
  TARNI_CU_STREAM_NON_BLOCKING = 1,
  TARNI_CU_EVENT_NO_TIMING = 2,
  TARNI_CU_WAIT_AT_LEAST = 0,
  TARNI_CU_WRITE_DEFAULT = 0,
  TARNI_CU_COPY_IN_STREAM_ORDER = 1,
  TARNI_CU_LOOKUP_LEGACY_STREAM = 1,
  TARNI_CU_LOOKUP_FOUND = 0,
};

enum {
  TARNI_CU_ATTRIBUTE_INTEGRATED = 18,
  TARNI_CU_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  TARNI_CU_ATTRIBUTE_COMPUTE_MAJOR = 75,
  TARNI_CU_ATTRIBUTE_REGISTERED_AT_HOST_POINTER = 91,
  TARNI_CU_ATTRIBUTE_HOST_REGISTER = 99,
  TARNI_CU_ATTRIBUTE_VMM = 102,
  TARNI_CU_ATTRIBUTE_EXPORT_DESCRIPTOR = 103,
  TARNI_CU_ATTRIBUTE_POOLS = 115,
  TARNI_CU_ATTRIBUTE_VALUES_64 = 122,
};

/* The codes that mean something to tarn: our name, the driver's. */
#define TARNI_CU_CODES(X)                                                                          \
  X(SUCCESS, 0)                                                                                    \
  X(INVALID_VALUE, 1)                                                                              \
  X(OUT_OF_MEMORY, 2)                                                                              \
  X(NOT_INITIALIZED, 3)                                                                            \
  X(DEINITIALIZED, 4)                                                                              \
  X(STUB_LIBRARY, 34)                                                                              \
  X(DEVICE_UNAVAILABLE, 46)                                                                        \
  X(NO_DEVICE, 100)                                                                                \
  X(INVALID_DEVICE, 101)                                                                           \
  X(INVALID_CONTEXT, 201)                                                                          \
  X(ECC_UNCORRECTABLE, 214)                                                                        \
  X(NVLINK_UNCORRECTABLE, 220)                                                                     \
  X(CONTAINED, 226)                                                                                \
  X(OPERATING_SYSTEM, 304)                                                                         \
  X(INVALID_HANDLE, 400)                                                                           \
  X(ILLEGAL_STATE, 401)                                                                            \
  X(NOT_FOUND, 500)                                                                                \
  X(NOT_READY, 600)                                                                                \
  X(ILLEGAL_ADDRESS, 700)                                                                          \
  X(LAUNCH_TIMEOUT, 702)                                                                           \
  X(CONTEXT_IS_DESTROYED, 709)                                                                     \
  X(ASSERT, 710)                                                                                   \
  X(HOST_MEMORY_ALREADY_REGISTERED, 712)                                                           \
  X(HOST_MEMORY_NOT_REGISTERED, 713)                                                               \
  X(HARDWARE_STACK_ERROR, 714)                                                                     \
  X(ILLEGAL_INSTRUCTION, 715)                                                                      \
  X(MISALIGNED_ADDRESS, 716)                                                                       \
  X(INVALID_ADDRESS_SPACE, 717)                                                                    \
  X(INVALID_PC, 718)                                                                               \
  X(LAUNCH_FAILED, 719)                                                                            \
  X(TENSOR_MEMORY_LEAK, 721)                                                                       \
  X(NOT_PERMITTED, 800)                                                                            \
  X(NOT_SUPPORTED, 801)                                                                            \
  X(SYSTEM_NOT_READY, 802)                                                                         \
  X(SYSTEM_DRIVER_MISMATCH, 803)                                                                   \
  X(COMPAT_NOT_SUPPORTED_ON_DEVICE, 804)                                                           \
  X(MPS_CLIENT_TERMINATED, 810)                                                                    \
  X(STREAM_CAPTURE_UNSUPPORTED, 900)                                                               \
  X(STREAM_CAPTURE_INVALIDATED, 901)                                                               \
  X(STREAM_CAPTURE_IMPLICIT, 906)                                                                  \
  X(STREAM_CAPTURE_WRONG_THREAD, 908)                                                              \
  X(EXTERNAL_DEVICE, 911)

enum {
#define TARNI_CU_CODE_ENUM(name, number) TARNI_CU_##name = number,
  TARNI_CU_CODES(TARNI_CU_CODE_ENUM)
#undef TARNI_CU_CODE_ENUM
};

/* Entries that stand or fall together, and what happens without them. */
#define TARNI_CU_GROUPS(X)                                                                         \
  X(CORE, 7000, "none: the driver is refused as too old")                                          \
  X(OPTIONAL, 0, "stated at each entry")                                                           \
  X(VMM, 10020, "the device has no chunks; the backings pool and plain remain")                    \
  X(POOL, 11020, "the device has no pools; the backings vmm and plain remain")                     \
  X(CAPTURE, 10010, "no stream is ever being captured, and none can be")                           \
  X(NODES, 12030, "the order inside a capture is unknown; its memory is not used again")           \
  X(GRAPH, 11000, "graphs cannot be instantiated or launched")                                     \
  X(VALUE, 11070, "streams cannot write or await words; events remain")                            \
  X(KERNEL, 4000, "small copies of a batch are left to the driver")

typedef enum tarni_cu_group {
#define TARNI_CU_GROUP_ENUM(name, version, fallback) TARNI_CU_GROUP_##name,
  TARNI_CU_GROUPS(TARNI_CU_GROUP_ENUM)
#undef TARNI_CU_GROUP_ENUM
      TARNI_CU_GROUP_COUNT
} tarni_cu_group;

/* Every entry: member, group, name and version for cuGetProcAddress, symbol for dlsym where that is
 * missing, parameters. All return a tarni_cu_result. The fallbacks of the OPTIONAL ones:
 *   primary_release      primary_release_old, the same call before 11.0; one of them is CORE
 *   instantiate          instantiate_old, the same with an error log; one of them is in GRAPH
 *   primary_state        a caller's context is taken to be no primary one
 *   stream_id            the handle's own value, which the driver may use again
 *   copy_batch           one copy a call */
#define TARNI_CU_ENTRIES(X)                                                                        \
  X(init, CORE, cuInit, 2000, cuInit, (unsigned flags))                                            \
  X(driver_version, CORE, cuDriverGetVersion, 2020, cuDriverGetVersion, (int *version))            \
  X(error_name, CORE, cuGetErrorName, 6000, cuGetErrorName,                                        \
    (tarni_cu_result code, const char **name))                                                     \
  X(device_count, CORE, cuDeviceGetCount, 2000, cuDeviceGetCount, (int *count))                    \
  X(device_get, CORE, cuDeviceGet, 2000, cuDeviceGet, (tarni_cu_device * device, int ordinal))     \
  X(device_name, CORE, cuDeviceGetName, 2000, cuDeviceGetName,                                     \
    (char *name, int capacity, tarni_cu_device device))                                            \
  X(device_memory, CORE, cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2,                              \
    (size_t * bytes, tarni_cu_device device))                                                      \
  X(device_attribute, CORE, cuDeviceGetAttribute, 2000, cuDeviceGetAttribute,                      \
    (int *value, tarni_cu_attribute attribute, tarni_cu_device device))                            \
  X(primary_retain, CORE, cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain,                \
    (tarni_cu_context * context, tarni_cu_device device))                                          \
  X(primary_release, OPTIONAL, cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2,     \
    (tarni_cu_device device))                                                                      \
  X(primary_release_old, OPTIONAL, cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease,     \
    (tarni_cu_device device))                                                                      \
  X(primary_state, OPTIONAL, cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState,         \
    (tarni_cu_device device, unsigned *flags, int *active))                                        \
  X(context_current, CORE, cuCtxGetCurrent, 4000, cuCtxGetCurrent, (tarni_cu_context * context))   \
  X(context_push, CORE, cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2, (tarni_cu_context context))   \
  X(context_pop, CORE, cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2, (tarni_cu_context * context))    \
  X(context_device, CORE, cuCtxGetDevice, 2000, cuCtxGetDevice, (tarni_cu_device * device))        \
  X(memory_info, CORE, cuMemGetInfo, 3020, cuMemGetInfo_v2, (size_t * free, size_t * total))       \
  X(granularity, VMM, cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity,         \
    (size_t * bytes, const tarni_cu_chunk_properties *properties,                                  \
     tarni_cu_granularity_option option))                                                          \
  X(reserve, VMM, cuMemAddressReserve, 10020, cuMemAddressReserve,                                 \
    (tarni_cu_address * address, size_t size, size_t alignment, tarni_cu_address wish,             \
     tarni_cu_flags flags))                                                                        \
  X(unreserve, VMM, cuMemAddressFree, 10020, cuMemAddressFree,                                     \
    (tarni_cu_address address, size_t size))                                                       \
  X(create, VMM, cuMemCreate, 10020, cuMemCreate,                                                  \
    (tarni_cu_chunk * chunk, size_t size, const tarni_cu_chunk_properties *properties,             \
     tarni_cu_flags flags))                                                                        \
  X(release, VMM, cuMemRelease, 10020, cuMemRelease, (tarni_cu_chunk chunk))                       \
  X(map, VMM, cuMemMap, 10020, cuMemMap,                                                           \
    (tarni_cu_address address, size_t size, size_t offset, tarni_cu_chunk chunk,                   \
     tarni_cu_flags flags))                                                                        \
  X(access, VMM, cuMemSetAccess, 10020, cuMemSetAccess,                                            \
    (tarni_cu_address address, size_t size, const tarni_cu_access *access, size_t count))          \
  X(unmap, VMM, cuMemUnmap, 10020, cuMemUnmap, (tarni_cu_address address, size_t size))            \
  X(export_chunk, VMM, cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle,          \
    (void *shareable, tarni_cu_chunk chunk, tarni_cu_handle_type type, tarni_cu_flags flags))      \
  X(import_chunk, VMM, cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle,      \
    (tarni_cu_chunk * chunk, void *shareable, tarni_cu_handle_type type))                          \
  X(plain_alloc, CORE, cuMemAlloc, 3020, cuMemAlloc_v2, (tarni_cu_address * address, size_t size)) \
  X(plain_free, CORE, cuMemFree, 3020, cuMemFree_v2, (tarni_cu_address address))                   \
  X(pool_create, POOL, cuMemPoolCreate, 11020, cuMemPoolCreate,                                    \
    (tarni_cu_pool * pool, const tarni_cu_pool_properties *properties))                            \
  X(pool_destroy, POOL, cuMemPoolDestroy, 11020, cuMemPoolDestroy, (tarni_cu_pool pool))           \
  X(pool_trim, POOL, cuMemPoolTrimTo, 11020, cuMemPoolTrimTo,                                      \
    (tarni_cu_pool pool, size_t keep_bytes))                                                       \
  X(pool_set, POOL, cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute,                           \
    (tarni_cu_pool pool, tarni_cu_pool_attribute attribute, void *value))                          \
  X(pool_alloc, POOL, cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync,                     \
    (tarni_cu_address * address, size_t size, tarni_cu_pool pool, tarni_cu_stream stream))         \
  X(pool_free, POOL, cuMemFreeAsync, 11020, cuMemFreeAsync,                                        \
    (tarni_cu_address address, tarni_cu_stream stream))                                            \
  X(host_alloc, CORE, cuMemHostAlloc, 2020, cuMemHostAlloc,                                        \
    (void **pointer, size_t size, unsigned flags))                                                 \
  X(host_free, CORE, cuMemFreeHost, 2000, cuMemFreeHost, (void *pointer))                          \
  X(host_register, CORE, cuMemHostRegister, 6050, cuMemHostRegister_v2,                            \
    (void *pointer, size_t size, unsigned flags))                                                  \
  X(host_unregister, CORE, cuMemHostUnregister, 4000, cuMemHostUnregister, (void *pointer))        \
  X(host_address, CORE, cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2,             \
    (tarni_cu_address * address, void *pointer, unsigned flags))                                   \
  X(stream_create, CORE, cuStreamCreate, 2000, cuStreamCreate,                                     \
    (tarni_cu_stream * stream, unsigned flags))                                                    \
  X(stream_destroy, CORE, cuStreamDestroy, 4000, cuStreamDestroy_v2, (tarni_cu_stream stream))     \
  X(stream_id, OPTIONAL, cuStreamGetId, 12000, cuStreamGetId,                                      \
    (tarni_cu_stream stream, tarni_cu_flags * id))                                                 \
  X(stream_query, CORE, cuStreamQuery, 2000, cuStreamQuery, (tarni_cu_stream stream))              \
  X(stream_sync, CORE, cuStreamSynchronize, 2000, cuStreamSynchronize, (tarni_cu_stream stream))   \
  X(event_create, CORE, cuEventCreate, 2000, cuEventCreate,                                        \
    (tarni_cu_event * event, unsigned flags))                                                      \
  X(event_destroy, CORE, cuEventDestroy, 4000, cuEventDestroy_v2, (tarni_cu_event event))          \
  X(event_record, CORE, cuEventRecord, 2000, cuEventRecord,                                        \
    (tarni_cu_event event, tarni_cu_stream stream))                                                \
  X(event_query, CORE, cuEventQuery, 2000, cuEventQuery, (tarni_cu_event event))                   \
  X(event_sync, CORE, cuEventSynchronize, 2000, cuEventSynchronize, (tarni_cu_event event))        \
  X(event_wait, CORE, cuStreamWaitEvent, 3020, cuStreamWaitEvent,                                  \
    (tarni_cu_stream stream, tarni_cu_event event, unsigned flags))                                \
  X(capture_state, CAPTURE, cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo,                 \
    (tarni_cu_stream stream, tarni_cu_capture_status * status, tarni_cu_word * id))                \
  X(capture_begin, CAPTURE, cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2,                  \
    (tarni_cu_stream stream, tarni_cu_capture_mode mode))                                          \
  X(capture_end, CAPTURE, cuStreamEndCapture, 10000, cuStreamEndCapture,                           \
    (tarni_cu_stream stream, tarni_cu_graph * graph))                                              \
  X(thread_mode, OPTIONAL, cuThreadExchangeStreamCaptureMode, 10010,                               \
    cuThreadExchangeStreamCaptureMode, (tarni_cu_capture_mode * mode))                             \
  X(capture_nodes, NODES, cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3,                \
    (tarni_cu_stream stream, tarni_cu_capture_status * status, tarni_cu_word * id,                 \
     tarni_cu_graph * graph, const tarni_cu_node **nodes, const tarni_cu_edge **edges,             \
     size_t *count))                                                                               \
  X(node_before, NODES, cuGraphNodeGetDependencies, 12030, cuGraphNodeGetDependencies_v2,          \
    (tarni_cu_node node, tarni_cu_node * nodes, tarni_cu_edge * edges, size_t * count))            \
  X(instantiate, OPTIONAL, cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags,        \
    (tarni_cu_exec * exec, tarni_cu_graph graph, tarni_cu_flags flags))                            \
  X(instantiate_old, OPTIONAL, cuGraphInstantiate, 11000, cuGraphInstantiate_v2,                   \
    (tarni_cu_exec * exec, tarni_cu_graph graph, tarni_cu_node * error_node, char *log,            \
     size_t log_bytes))                                                                            \
  X(graph_launch, GRAPH, cuGraphLaunch, 10000, cuGraphLaunch,                                      \
    (tarni_cu_exec exec, tarni_cu_stream stream))                                                  \
  X(exec_destroy, GRAPH, cuGraphExecDestroy, 10000, cuGraphExecDestroy, (tarni_cu_exec exec))      \
  X(graph_destroy, GRAPH, cuGraphDestroy, 10000, cuGraphDestroy, (tarni_cu_graph graph))           \
  X(copy, CORE, cuMemcpyAsync, 4000, cuMemcpyAsync,                                                \
    (tarni_cu_address destination, tarni_cu_address source, size_t size, tarni_cu_stream stream))  \
  X(copy_sync, CORE, cuMemcpy, 4000, cuMemcpy,                                                     \
    (tarni_cu_address destination, tarni_cu_address source, size_t size))                          \
  X(copy_batch, OPTIONAL, cuMemcpyBatchAsync, 12080, cuMemcpyBatchAsync,                           \
    (tarni_cu_address * destinations, tarni_cu_address * sources, size_t * sizes, size_t count,    \
     tarni_cu_copy_attributes * attributes, size_t * first, size_t attribute_count,                \
     size_t * failed, tarni_cu_stream stream))                                                     \
  X(module_load, KERNEL, cuModuleLoadData, 2000, cuModuleLoadData,                                 \
    (tarni_cu_module * module, const void *text))                                                  \
  X(module_function, KERNEL, cuModuleGetFunction, 2000, cuModuleGetFunction,                       \
    (tarni_cu_function * function, tarni_cu_module module, const char *name))                      \
  X(launch, KERNEL, cuLaunchKernel, 4000, cuLaunchKernel,                                          \
    (tarni_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,                \
     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,                  \
     tarni_cu_stream stream, void **parameters, void **extra))                                     \
  X(address_range, KERNEL, cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2,                    \
    (tarni_cu_address * first, size_t * bytes, tarni_cu_address address))                          \
  X(pointer_attribute, KERNEL, cuPointerGetAttribute, 4000, cuPointerGetAttribute,                 \
    (void *value, tarni_cu_pointer_attribute attribute, tarni_cu_address address))                 \
  X(fill, CORE, cuMemsetD8Async, 3020, cuMemsetD8Async,                                            \
    (tarni_cu_address destination, unsigned char value, size_t size, tarni_cu_stream stream))      \
  X(fill_sync, CORE, cuMemsetD8, 3020, cuMemsetD8_v2,                                              \
    (tarni_cu_address destination, unsigned char value, size_t size))                              \
  X(value_write, VALUE, cuStreamWriteValue64, 11070, cuStreamWriteValue64_v2,                      \
    (tarni_cu_stream stream, tarni_cu_address address, tarni_cu_word value, unsigned flags))       \
  X(value_wait, VALUE, cuStreamWaitValue64, 11070, cuStreamWaitValue64_v2,                         \
    (tarni_cu_stream stream, tarni_cu_address address, tarni_cu_word value, unsigned flags))

typedef struct tarni_cu_driver {
#define TARNI_CU_MEMBER(member, group, name, version, symbol, parameters)                          \
  tarni_cu_result(*member) parameters;
  TARNI_CU_ENTRIES(TARNI_CU_MEMBER)
#undef TARNI_CU_MEMBER
  bool has[TARNI_CU_GROUP_COUNT]; /* all entries of the group are there; OPTIONAL is always true */
  int version;                    /* 13000 is 13.0 */
  void *library;
} tarni_cu_driver;

/* The two shapes of cuGetProcAddress: since 12.0, and from 11.3. */
typedef tarni_cu_result (*tarni_cu_lookup_v12000)(const char *name, void **entry, int version,
                                                  tarni_cu_word flags, tarni_cu_lookup *found);
typedef tarni_cu_result (*tarni_cu_lookup_v11030)(const char *name, void **entry, int version,
                                                  tarni_cu_word flags);

/* The driver, loaded and initialised by the first call in the process; what that call found is
 * what every later one gets. TARN_NO_DRIVER where there is no library, TARN_DRIVER_OLD where it
 * lacks a CORE entry, TARN_NO_DEVICE where it finds no GPU, TARN_FORKED in the child of a process
 * that had loaded it, the mapped code where cuInit failed otherwise; *driver is then NULL. */
tarn_status tarni_cu_driver_get(const char *operation, const tarni_cu_driver **driver);

/* Whether it could be loaded: the status that tarni_cu_driver_get would give, without an error. */
tarn_status tarni_cu_driver_status(void);

/* The driver's own name of a code; "unknown" where it has none. Never NULL. */
const char *tarni_cu_code_name(tarni_cu_result code);

/* Whether this process is the child of one that had loaded the driver. One relaxed load. */
bool tarni_cu_forked(void);

/* The version and the fallback of a group, for messages. */
int tarni_cu_group_version(tarni_cu_group group);
const char *tarni_cu_group_fallback(tarni_cu_group group);

#endif
