// SPDX-License-Identifier: MIT
//
// cub::CachingDeviceAllocator as a peer of `tarn bench pair --peer build/peers/cub.so`, with the
// settings that it has by default. Built by scripts/peers where there is nvcc; nothing else needs it.
//
// A peer is a shared library with these three functions; 0 says that an allocation failed.
#include <cstdint>
#include <cub/util_allocator.cuh>

// Lives to the end of the process: memory is given back by the driver then.
static cub::CachingDeviceAllocator &allocator() {
  static auto *instance = new cub::CachingDeviceAllocator();
  return *instance;
}

extern "C" const char *peer_name() {
  return "cub";
}

extern "C" uint64_t peer_alloc(uint64_t bytes, void *stream) {
  void *block = nullptr;
  const cudaError_t code =
      allocator().DeviceAllocate(&block, bytes, static_cast<cudaStream_t>(stream));
  return code == cudaSuccess ? reinterpret_cast<uint64_t>(block) : 0;
}

extern "C" void peer_free(uint64_t block, void *stream) {
  (void)stream; // it frees on the stream of the allocation
  (void)allocator().DeviceFree(reinterpret_cast<void *>(block));
}
