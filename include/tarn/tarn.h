/* SPDX-License-Identifier: MIT
 *
 * tarn: a GPU memory manager. This header holds what everything else needs: the version, the
 * status codes, the detail of the last error, and devices. It includes libc headers only.
 *
 * Conventions, the same in every tarn header:
 * - Parameters come in the order object, inputs, stream, outputs. Outputs have a defined empty
 *   value when a call fails, and a call that failed changed nothing else.
 * - Every struct passed by pointer begins with `size` (set it to sizeof the struct). Zero is the
 *   default of every other field. Structs only ever grow at their end.
 * - All functions may be called from any thread unless their comment says otherwise.
 */
#ifndef TARN_TARN_H
#define TARN_TARN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TARN_VERSION_MAJOR 0
#define TARN_VERSION_MINOR 1
#define TARN_VERSION_PATCH 0

#if defined(_WIN32)
#define TARN_API
#else
#define TARN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---------------------------------------------------------------------------------
 * One list: name, number, text. Numbers are pinned and never reused: 1-19 the caller's mistake,
 * 20-39 something ran out, 40-59 the driver or the device, 60-79 timing, 80 and up tarn itself. */
#define TARN_STATUS_MAP(X)                                                                         \
  X(OK, 0, "success")                                                                              \
  X(INVALID, 1, "invalid argument")                                                                \
  X(UNSUPPORTED, 2, "not supported by this device, driver or build")                               \
  X(OPTION, 3, "an option has a bad value")                                                        \
  X(FOREIGN, 4, "the pointer does not belong to this heap")                                        \
  X(DOUBLE_FREE, 5, "the block is not live: it was freed before")                                  \
  X(INTERIOR, 6, "the pointer points inside a block, not at its start")                            \
  X(WRONG_SIZE, 7, "the size given does not match the block's size")                               \
  X(BUSY, 8, "the object is still in use")                                                         \
  X(RANGE, 9, "an index or a byte range is out of bounds")                                         \
  X(OVERFLOWED, 10, "the arithmetic on the given sizes overflows")                                 \
  X(STATE, 11, "the call is not allowed in the object's present state")                            \
  X(FORKED, 12, "the object was made by the parent process and cannot be used after fork")         \
  X(HOST_MEMORY, 20, "out of host memory")                                                         \
  X(DEVICE_MEMORY, 21, "out of device memory")                                                     \
  X(LIMIT, 22, "a configured limit is reached")                                                    \
  X(ADDRESS_SPACE, 23, "out of device address space")                                              \
  X(NO_DRIVER, 40, "no GPU driver could be loaded")                                                \
  X(NO_DEVICE, 41, "no such device")                                                               \
  X(DRIVER, 42, "the driver reported an error")                                                    \
  X(DRIVER_OLD, 43, "the driver is too old")                                                       \
  X(DEVICE_LOST, 44, "the device or its context is broken until it is reset")                      \
  X(CAPTURE, 45, "not allowed while a stream is being captured")                                   \
  X(NOT_READY, 60, "not complete yet")                                                             \
  X(CORRUPT, 80, "a structure does not agree with itself")

typedef enum tarn_status {
#define TARN_STATUS_ENUM(name, number, text) TARN_##name = number,
  TARN_STATUS_MAP(TARN_STATUS_ENUM)
#undef TARN_STATUS_ENUM
} tarn_status;

/* The name ("TARN_OK") and the text of a status. Static strings, never NULL, any value allowed. */
TARN_API const char *tarn_status_name(tarn_status status);
TARN_API const char *tarn_status_text(tarn_status status);

/* What the last failed call on this thread had to say. `message` is one or two sentences: what
 * happened, with the numbers, and what to do about it. */
typedef struct tarn_error {
  size_t size;
  tarn_status status;
  int driver_code;          /* the driver's own code, 0 when the driver had no part in it */
  uint64_t requested_bytes; /* what was asked for, 0 when no size had a part in it */
  uint64_t available_bytes; /* what there was instead, where it is known */
  char operation[48];       /* the call that failed: "tarn_alloc", "cuMemCreate" */
  char device[48];          /* "cuda:0", "sim"; empty when no device had a part in it */
  char driver_name[64];     /* the driver's own name: "CUDA_ERROR_OUT_OF_MEMORY" */
  char message[512];
} tarn_error;

/* Copies the detail of this thread's last error into *error and returns its status: TARN_OK, with
 * empty fields, if no call failed on this thread yet. A successful call does not clear it. */
TARN_API tarn_status tarn_last_error(tarn_error *error);

/* The message of the last error alone. Never NULL; valid until this thread's next failing call. */
TARN_API const char *tarn_last_message(void);

/* "0.1.0" */
TARN_API const char *tarn_version(void);

/* ---- Options --------------------------------------------------------------------------------
 * Every option is an environment variable TARN_NAME, read once, when tarn is first used. A bad
 * value makes that first call fail with TARN_OPTION and a message that names the variable, the
 * value and the range. */
typedef struct tarn_option {
  size_t size;
  const char *name;          /* "TARN_DEVICE" */
  const char *default_value; /* as it would be written in the environment */
  const char *range;         /* "0 to 16", "on or off", "any text" */
  const char *help;
  const char *value; /* the value in force, as text; valid for the life of the process */
  bool is_set;       /* it came from the environment */
} tarn_option;

/* Fills *option for the option of the given index; TARN_RANGE when there are no more. */
TARN_API tarn_status tarn_option_get(size_t index, tarn_option *option);

/* ---- Devices --------------------------------------------------------------------------------
 * A device is named by a string, in the API, the command and TARN_DEVICE alike:
 *   "cuda:0"           a GPU by its number
 *   "sim"              the simulated GPU; "sim:80G,seed=7" with options (docs/sim.md lists them)
 *   NULL               TARN_DEVICE where it is set, else the first GPU, else the simulated one
 * The same name opened twice is the same device. */
typedef uint64_t tarn_ptr; /* an address in device memory; the same number as a CUdeviceptr */
typedef void *tarn_stream; /* a CUstream or cudaStream_t as it is; NULL is the default stream */

typedef struct tarn_device tarn_device;

typedef struct tarn_device_info {
  size_t size;
  char name[128];             /* "cuda:0", "sim": what opens it; a longer one opens nothing */
  char model[96];             /* "NVIDIA H200" */
  uint64_t total_bytes;       /* memory of the device */
  uint64_t free_bytes;        /* of that, free now by the driver's account; 0 for a GPU not open */
  uint64_t granularity_bytes; /* physical chunks are multiples of this; 0 without VMM */
  uint32_t address_bits;      /* width of a device address */
  int32_t driver_version;     /* 13000 is 13.0; 0 for the simulated GPU */
  bool is_simulated;
  bool has_vmm;           /* virtual memory management: reserve, create, map */
  bool has_pool;          /* the driver's stream-ordered pools */
  bool has_export;        /* chunks can be exported to other processes */
  bool has_host_register; /* ordinary host memory can be pinned in place */
  bool has_batch_copy;    /* the driver takes many copies in one call */
  bool is_integrated;     /* shares its memory with the host */
  bool reserved_bool;
} tarn_device_info;

/* Lists the devices there are: GPUs first, then the simulated one. Writes at most `capacity` of
 * them into `infos` (which may be NULL when capacity is 0; infos[0].size gives the size of each)
 * and their number into *count. */
TARN_API tarn_status tarn_device_list(tarn_device_info *infos, size_t capacity, size_t *count);

TARN_API tarn_status tarn_device_open(const char *name, tarn_device **device);

/* Gives back what tarn_device_open gave. NULL is ignored. The device closes with its last user. */
TARN_API void tarn_device_close(tarn_device *device);

TARN_API tarn_status tarn_device_get_info(tarn_device *device, tarn_device_info *info);

/* A portable face for the few things a program needs beside memory, so that the same program runs
 * on a GPU and on the simulated one. A program with its own CUDA code needs none of these. */
TARN_API tarn_status tarn_stream_create(tarn_device *device, tarn_stream *stream);
TARN_API tarn_status tarn_stream_destroy(tarn_device *device, tarn_stream stream);
TARN_API tarn_status tarn_stream_synchronize(tarn_device *device, tarn_stream stream);

/* Copies between any two of host and device memory, in the order of the stream. Host memory that
 * is not pinned must stay valid until the stream has got there. Zero bytes: nothing, success. */
TARN_API tarn_status tarn_device_copy(tarn_device *device, tarn_ptr destination, tarn_ptr source,
                                      size_t bytes, tarn_stream stream);
TARN_API tarn_status tarn_device_fill(tarn_device *device, tarn_ptr destination, uint8_t value,
                                      size_t bytes, tarn_stream stream);

/* ---- Driver calls ---------------------------------------------------------------------------
 * Everything tarn asks of a driver, by kind: for statistics, for the price list of a device and
 * for the fault plan of the simulated GPU. Name, and the entry of the CUDA driver behind it. */
#define TARN_CALL_MAP(X)                                                                           \
  X(INFO, "info", "cuMemGetInfo")                                                                  \
  X(RESERVE, "reserve", "cuMemAddressReserve")                                                     \
  X(UNRESERVE, "unreserve", "cuMemAddressFree")                                                    \
  X(CREATE, "create", "cuMemCreate")                                                               \
  X(RELEASE, "release", "cuMemRelease")                                                            \
  X(MAP, "map", "cuMemMap")                                                                        \
  X(ACCESS, "access", "cuMemSetAccess")                                                            \
  X(UNMAP, "unmap", "cuMemUnmap")                                                                  \
  X(EXPORT, "export", "cuMemExportToShareableHandle")                                              \
  X(IMPORT, "import", "cuMemImportFromShareableHandle")                                            \
  X(PLAIN_ALLOC, "plain_alloc", "cuMemAlloc")                                                      \
  X(PLAIN_FREE, "plain_free", "cuMemFree")                                                         \
  X(POOL_CREATE, "pool_create", "cuMemPoolCreate")                                                 \
  X(POOL_DESTROY, "pool_destroy", "cuMemPoolDestroy")                                              \
  X(POOL_TRIM, "pool_trim", "cuMemPoolTrimTo")                                                     \
  X(POOL_ALLOC, "pool_alloc", "cuMemAllocFromPoolAsync")                                           \
  X(POOL_FREE, "pool_free", "cuMemFreeAsync")                                                      \
  X(HOST_ALLOC, "host_alloc", "cuMemHostAlloc")                                                    \
  X(HOST_FREE, "host_free", "cuMemFreeHost")                                                       \
  X(HOST_REGISTER, "host_register", "cuMemHostRegister")                                           \
  X(HOST_UNREGISTER, "host_unregister", "cuMemHostUnregister")                                     \
  X(STREAM_CREATE, "stream_create", "cuStreamCreate")                                              \
  X(STREAM_DESTROY, "stream_destroy", "cuStreamDestroy")                                           \
  X(STREAM_ID, "stream_id", "cuStreamGetId")                                                       \
  X(STREAM_QUERY, "stream_query", "cuStreamQuery")                                                 \
  X(STREAM_SYNC, "stream_sync", "cuStreamSynchronize")                                             \
  X(EVENT_CREATE, "event_create", "cuEventCreate")                                                 \
  X(EVENT_DESTROY, "event_destroy", "cuEventDestroy")                                              \
  X(EVENT_RECORD, "event_record", "cuEventRecord")                                                 \
  X(EVENT_QUERY, "event_query", "cuEventQuery")                                                    \
  X(EVENT_SYNC, "event_sync", "cuEventSynchronize")                                                \
  X(EVENT_WAIT, "event_wait", "cuStreamWaitEvent")                                                 \
  X(CAPTURE_STATE, "capture_state", "cuStreamGetCaptureInfo")                                      \
  X(CAPTURE_BEGIN, "capture_begin", "cuStreamBeginCapture")                                        \
  X(CAPTURE_END, "capture_end", "cuStreamEndCapture")                                              \
  X(GRAPH_INSTANTIATE, "graph_instantiate", "cuGraphInstantiate")                                  \
  X(GRAPH_LAUNCH, "graph_launch", "cuGraphLaunch")                                                 \
  X(GRAPH_DESTROY, "graph_destroy", "cuGraphExecDestroy")                                          \
  X(COPY, "copy", "cuMemcpyAsync")                                                                 \
  X(COPY_SYNC, "copy_sync", "cuMemcpy")                                                            \
  X(FILL, "fill", "cuMemsetD8Async")                                                               \
  X(FILL_SYNC, "fill_sync", "cuMemsetD8")                                                          \
  X(VALUE_WRITE, "value_write", "cuStreamWriteValue64")                                            \
  X(VALUE_WAIT, "value_wait", "cuStreamWaitValue64")                                               \
  X(COPY_BATCH, "copy_batch", "cuMemcpyBatchAsync")                                                \
  X(CAPTURE_NODES, "capture_nodes", "cuStreamGetCaptureInfo")                                      \
  X(NODE_BEFORE, "node_before", "cuGraphNodeGetDependencies")

typedef enum tarn_call {
#define TARN_CALL_ENUM(name, text, entry) TARN_CALL_##name,
  TARN_CALL_MAP(TARN_CALL_ENUM)
#undef TARN_CALL_ENUM
      TARN_CALL_COUNT
} tarn_call;

/* "create" for TARN_CALL_CREATE; "unknown" for a value that is none. Never NULL. */
TARN_API const char *tarn_call_name(tarn_call call);

/* How often each kind of driver call was made through this device and how long they took:
 * nanoseconds of the wall clock on a GPU, of the virtual clock on the simulated one. By tarn_call,
 * with room for kinds to come. */
enum { TARN_CALL_CAPACITY = 64 };

typedef struct tarn_call_counts {
  size_t size;
  uint64_t calls[TARN_CALL_CAPACITY];
  uint64_t nanoseconds[TARN_CALL_CAPACITY];
} tarn_call_counts;

TARN_API tarn_status tarn_device_get_calls(tarn_device *device, tarn_call_counts *counts);

/* ---- Probe ----------------------------------------------------------------------------------
 * Shows a device at work: everything that tarn asks of it is done a few times on a few megabytes,
 * every byte is compared, and every driver call is timed. Name, and what is done. */
#define TARN_PROBE_MAP(X)                                                                          \
  X(CHUNKS, "chunks", "chunks mapped side by side and at a second address")                        \
  X(SHARING, "sharing", "a chunk exported and imported again")                                     \
  X(PLAIN, "plain", "plain device memory")                                                         \
  X(POOL, "pool", "the driver's own pool, in stream order")                                        \
  X(PINNED, "pinned", "pinned host memory")                                                        \
  X(REGISTERED, "registered", "ordinary host memory pinned in place")                              \
  X(STREAMS, "streams", "two streams ordered by an event, one held by a word")                     \
  X(CAPTURE, "capture", "a captured graph replayed with changed input")

typedef enum tarn_probe_kind {
#define TARN_PROBE_ENUM(name, text, meaning) TARN_PROBE_##name,
  TARN_PROBE_MAP(TARN_PROBE_ENUM)
#undef TARN_PROBE_ENUM
      TARN_PROBE_COUNT
} tarn_probe_kind;

/* Room for more kinds than there are, so that the report can grow. */
enum { TARN_PROBE_CAPACITY = 16 };

typedef struct tarn_probe_result {
  bool is_tried;           /* false: the device does not have it */
  bool is_verified;        /* it worked, every time, and every byte was right */
  tarn_status status;      /* TARN_OK, or why not */
  uint64_t compared_bytes; /* how many were looked at */
  char message[256];       /* what failed; empty when nothing did */
} tarn_probe_result;

typedef struct tarn_probe_price {
  uint64_t calls;     /* that the median is of; 0: none */
  uint64_t median_ns; /* of the wall clock on a GPU, of the virtual clock on the simulated one */
} tarn_probe_price;

typedef struct tarn_probe_report {
  size_t size;
  tarn_probe_result results[TARN_PROBE_CAPACITY]; /* by tarn_probe_kind */
  tarn_probe_price prices[TARN_CALL_CAPACITY];    /* by tarn_call */
} tarn_probe_report;

/* Fills *report, also when something failed: then the status is that of the first failure. Needs
 * about 8 MiB of device memory; what it took it gives back. TARN_CAPTURE, and nothing is tried,
 * when a capture that was announced forbids it. */
TARN_API tarn_status tarn_device_probe(tarn_device *device, tarn_probe_report *report);

#ifdef __cplusplus
}
#endif

#include "tarn/heap.h" /* the heap: what most programs came for */

#endif
