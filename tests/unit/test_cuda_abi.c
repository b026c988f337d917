/* SPDX-License-Identifier: MIT
 *
 * tarn's own declarations of the CUDA driver against the toolkit's: types, structs, constants,
 * codes, and the signature of every entry at the very version that tarn asks for. All of it fails
 * at compile time, and is counted once more at run time. Skipped where no cuda.h was found. */
#include "port/cuda/driver.h"
#include "port/port.h"
#include "support/test.h"

#if defined(TARN_HAVE_CUDA_H)
/* Old versions of an entry are declared only for those who ask. */
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#if CUDA_VERSION >= 12080
#define COMPARE_WITH_CUDA_H 1
#include <cudaTypedefs.h>
#endif
#endif

#if defined(COMPARE_WITH_CUDA_H)

#define SAME(a, b)                                                                                 \
  do {                                                                                             \
    _Static_assert((unsigned long long)(a) == (unsigned long long)(b), #a " and " #b);             \
    CHECK_EQ(a, b);                                                                                \
  } while (0)

static void test_types(void) {
#define SAME_TYPE(ours, theirs)                                                                    \
  SAME(sizeof(ours), sizeof(theirs));                                                              \
  SAME(_Alignof(ours), _Alignof(theirs))
  SAME_TYPE(tarni_cu_result, CUresult);
  SAME_TYPE(tarni_cu_device, CUdevice);
  SAME_TYPE(tarni_cu_attribute, CUdevice_attribute);
  SAME_TYPE(tarni_cu_handle_type, CUmemAllocationHandleType);
  SAME_TYPE(tarni_cu_granularity_option, CUmemAllocationGranularity_flags);
  SAME_TYPE(tarni_cu_pool_attribute, CUmemPool_attribute);
  SAME_TYPE(tarni_cu_capture_status, CUstreamCaptureStatus);
  SAME_TYPE(tarni_cu_capture_mode, CUstreamCaptureMode);
  SAME_TYPE(tarni_cu_lookup, CUdriverProcAddressQueryResult);
  SAME_TYPE(tarni_cu_address, CUdeviceptr);
  SAME_TYPE(tarni_cu_chunk, CUmemGenericAllocationHandle);
  SAME_TYPE(tarni_cu_word, cuuint64_t);
  SAME_TYPE(tarni_cu_flags, unsigned long long);
  SAME_TYPE(tarni_cu_context, CUcontext);
  SAME_TYPE(tarni_cu_stream, CUstream);
  SAME_TYPE(tarni_cu_event, CUevent);
  SAME_TYPE(tarni_cu_pool, CUmemoryPool);
  SAME_TYPE(tarni_cu_graph, CUgraph);
  SAME_TYPE(tarni_cu_exec, CUgraphExec);
  SAME_TYPE(tarni_cu_node, CUgraphNode);
  SAME_TYPE(tarni_cu_module, CUmodule);
  SAME_TYPE(tarni_cu_function, CUfunction);
  SAME_TYPE(tarni_cu_pointer_attribute, CUpointer_attribute);
#undef SAME_TYPE
}

static void test_structs(void) {
#define SAME_STRUCT(ours, theirs)                                                                  \
  SAME(sizeof(ours), sizeof(theirs));                                                              \
  SAME(_Alignof(ours), _Alignof(theirs))
#define SAME_FIELD(ours, our_field, theirs, their_field)                                           \
  SAME(offsetof(ours, our_field), offsetof(theirs, their_field));                                  \
  SAME(sizeof(((ours *)NULL)->our_field), sizeof(((theirs *)NULL)->their_field))
  SAME_STRUCT(tarni_cu_location, CUmemLocation);
  SAME_FIELD(tarni_cu_location, type, CUmemLocation, type);
  SAME_FIELD(tarni_cu_location, id, CUmemLocation, id);
  SAME_STRUCT(tarni_cu_access, CUmemAccessDesc);
  SAME_FIELD(tarni_cu_access, location, CUmemAccessDesc, location);
  SAME_FIELD(tarni_cu_access, flags, CUmemAccessDesc, flags);
  SAME_STRUCT(tarni_cu_copy_attributes, CUmemcpyAttributes);
  SAME_FIELD(tarni_cu_copy_attributes, order, CUmemcpyAttributes, srcAccessOrder);
  SAME_FIELD(tarni_cu_copy_attributes, source, CUmemcpyAttributes, srcLocHint);
  SAME_FIELD(tarni_cu_copy_attributes, destination, CUmemcpyAttributes, dstLocHint);
  SAME_FIELD(tarni_cu_copy_attributes, flags, CUmemcpyAttributes, flags);
  SAME_STRUCT(tarni_cu_chunk_properties, CUmemAllocationProp);
  SAME_FIELD(tarni_cu_chunk_properties, type, CUmemAllocationProp, type);
  SAME_FIELD(tarni_cu_chunk_properties, handle_types, CUmemAllocationProp, requestedHandleTypes);
  SAME_FIELD(tarni_cu_chunk_properties, location, CUmemAllocationProp, location);
  SAME_FIELD(tarni_cu_chunk_properties, windows_metadata, CUmemAllocationProp, win32HandleMetaData);
  SAME_FIELD(tarni_cu_chunk_properties, flags, CUmemAllocationProp, allocFlags);
  SAME_FIELD(tarni_cu_chunk_properties, flags.compression, CUmemAllocationProp,
             allocFlags.compressionType);
  SAME_FIELD(tarni_cu_chunk_properties, flags.rdma, CUmemAllocationProp,
             allocFlags.gpuDirectRDMACapable);
  SAME_FIELD(tarni_cu_chunk_properties, flags.usage, CUmemAllocationProp, allocFlags.usage);
  SAME_STRUCT(tarni_cu_edge, CUgraphEdgeData);
  SAME_FIELD(tarni_cu_edge, from_port, CUgraphEdgeData, from_port);
  SAME_FIELD(tarni_cu_edge, to_port, CUgraphEdgeData, to_port);
  SAME_FIELD(tarni_cu_edge, type, CUgraphEdgeData, type);
  SAME_STRUCT(tarni_cu_pool_properties, CUmemPoolProps);
  SAME_FIELD(tarni_cu_pool_properties, type, CUmemPoolProps, allocType);
  SAME_FIELD(tarni_cu_pool_properties, handle_types, CUmemPoolProps, handleTypes);
  SAME_FIELD(tarni_cu_pool_properties, location, CUmemPoolProps, location);
  SAME_FIELD(tarni_cu_pool_properties, windows_attributes, CUmemPoolProps, win32SecurityAttributes);
  SAME_FIELD(tarni_cu_pool_properties, max_bytes, CUmemPoolProps, maxSize);
  SAME_FIELD(tarni_cu_pool_properties, usage, CUmemPoolProps, usage);
#undef SAME_STRUCT
#undef SAME_FIELD
}

static void test_constants(void) {
  SAME(TARNI_CU_MEMORY_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
  SAME(TARNI_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
  SAME(TARNI_CU_HANDLE_NONE, CU_MEM_HANDLE_TYPE_NONE);
  SAME(TARNI_CU_HANDLE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  SAME(TARNI_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  SAME(TARNI_CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  SAME(TARNI_CU_POINTER_ACCESS, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
  SAME(TARNI_CU_POOL_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
  SAME(TARNI_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
  SAME(TARNI_CU_HOST_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP);
  SAME(TARNI_CU_HOST_WRITE_COMBINED, CU_MEMHOSTALLOC_WRITECOMBINED);
  SAME(TARNI_CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
  SAME(TARNI_CU_HOST_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP);
  SAME(TARNI_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
  SAME(TARNI_CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
  SAME(TARNI_CU_WAIT_AT_LEAST, CU_STREAM_WAIT_VALUE_GEQ);
  SAME(TARNI_CU_WRITE_DEFAULT, CU_STREAM_WRITE_VALUE_DEFAULT);
  SAME(TARNI_CU_COPY_IN_STREAM_ORDER, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  SAME(TARNI_CU_LOOKUP_LEGACY_STREAM, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
  SAME(TARNI_CU_LOOKUP_FOUND, CU_GET_PROC_ADDRESS_SUCCESS);
  SAME(TARNI_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
  SAME(TARNI_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  SAME(TARNI_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
  SAME(TARNI_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
  SAME(TARNI_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  SAME(TARNI_CAPTURE_INVALIDATED, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(TARNI_STREAM_LEGACY == (tarn_stream)CU_STREAM_LEGACY);
  CHECK(TARNI_STREAM_PER_THREAD == (tarn_stream)CU_STREAM_PER_THREAD);
}

static void test_attributes(void) {
  SAME(TARNI_CU_ATTRIBUTE_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
  SAME(TARNI_CU_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
  SAME(TARNI_CU_ATTRIBUTE_COMPUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  SAME(TARNI_CU_ATTRIBUTE_REGISTERED_AT_HOST_POINTER,
       CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  SAME(TARNI_CU_ATTRIBUTE_HOST_REGISTER, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
  SAME(TARNI_CU_ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  SAME(TARNI_CU_ATTRIBUTE_EXPORT_DESCRIPTOR,
       CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  SAME(TARNI_CU_ATTRIBUTE_POOLS, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
  SAME(TARNI_CU_ATTRIBUTE_VALUES_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
}

static void test_codes(void) {
#define CUDA_ERROR_SUCCESS CUDA_SUCCESS
#define SAME_CODE(name, number) SAME(TARNI_CU_##name, CUDA_ERROR_##name);
  TARNI_CU_CODES(SAME_CODE)
#undef SAME_CODE
#undef CUDA_ERROR_SUCCESS
}

/* From here on the parameters in driver.h are read with cuda.h's types. */
#define tarni_cu_result CUresult
#define tarni_cu_device CUdevice
#define tarni_cu_attribute CUdevice_attribute
#define tarni_cu_handle_type CUmemAllocationHandleType
#define tarni_cu_granularity_option CUmemAllocationGranularity_flags
#define tarni_cu_pool_attribute CUmemPool_attribute
#define tarni_cu_capture_status CUstreamCaptureStatus
#define tarni_cu_capture_mode CUstreamCaptureMode
#define tarni_cu_lookup CUdriverProcAddressQueryResult
#define tarni_cu_address CUdeviceptr
#define tarni_cu_chunk CUmemGenericAllocationHandle
#define tarni_cu_word cuuint64_t
#define tarni_cu_flags unsigned long long
#define tarni_cu_context CUcontext
#define tarni_cu_stream CUstream
#define tarni_cu_event CUevent
#define tarni_cu_pool CUmemoryPool
#define tarni_cu_graph CUgraph
#define tarni_cu_exec CUgraphExec
#define tarni_cu_node CUgraphNode
#define tarni_cu_module CUmodule
#define tarni_cu_function CUfunction
#define tarni_cu_pointer_attribute CUpointer_attribute
#define tarni_cu_edge CUgraphEdgeData
#define tarni_cu_access CUmemAccessDesc
#define tarni_cu_chunk_properties CUmemAllocationProp
#define tarni_cu_pool_properties CUmemPoolProps
#define tarni_cu_copy_attributes CUmemcpyAttributes

static void test_signatures(void) {
#define SAME_SIGNATURE(member, group, name, version, symbol, parameters)                           \
  SAME(__builtin_types_compatible_p(tarni_cu_result(*) parameters, PFN_##name##_v##version), 1);
  TARNI_CU_ENTRIES(SAME_SIGNATURE)
#undef SAME_SIGNATURE
  typedef CUresult (*lookup_v12000)(const char *, void **, int, cuuint64_t,
                                    CUdriverProcAddressQueryResult *);
  SAME(__builtin_types_compatible_p(lookup_v12000, PFN_cuGetProcAddress_v12000), 1);
  SAME(sizeof(tarni_cu_lookup_v12000), sizeof(PFN_cuGetProcAddress_v12000));
  typedef CUresult (*lookup_v11030)(const char *, void **, int, cuuint64_t);
  SAME(__builtin_types_compatible_p(lookup_v11030, PFN_cuGetProcAddress_v11030), 1);
  SAME(sizeof(tarni_cu_lookup_v11030), sizeof(PFN_cuGetProcAddress_v11030));
}

#else

static void skip_comparison(void) {
  test_skip("no cuda.h of CUDA 12.8 or newer was found when this was built");
}

static void test_types(void) {
  skip_comparison();
}

static void test_structs(void) {
  skip_comparison();
}

static void test_constants(void) {
  skip_comparison();
}

static void test_attributes(void) {
  skip_comparison();
}

static void test_codes(void) {
  skip_comparison();
}

static void test_signatures(void) {
  skip_comparison();
}

#endif

static const test_case cases[] = {
    {"types", test_types},           {"structs", test_structs}, {"constants", test_constants},
    {"attributes", test_attributes}, {"codes", test_codes},     {"signatures", test_signatures},
};

TEST_MAIN(cases)
