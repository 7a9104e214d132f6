// libgpumem_runtime.so: the served calls under names of our own, for programs that are relinked with --wrap
// (runtime_wrap.cpp) or recompiled with -include gpumem/cuda_override.h. Only those calls are served; the driver, and
// how libraries use it, stay unchanged, so gpumem must query streams and captures (GPUMEM_STREAM_IDS=query).
//
// The results are those of the runtime: the driver's errors that can occur here have the same numbers there.
#include "is_preloaded.hpp"
#include "served.hpp"

namespace gpumem::preload {
const bool is_preloaded = false;
}  // namespace gpumem::preload

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

CUdeviceptr number_of(const void* ptr) { return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(ptr)); }

template <typename Call>
int pointer_from(void** ptr, Call&& call) {
  CUdeviceptr address = 0;
  const CUresult e = call(&address);
  *ptr = e == CUDA_SUCCESS ? reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)) : nullptr;
  return e;
}

}  // namespace

using namespace gpumem::preload;  // NOLINT: the exported names are global

EXPORTED int gpumem_runtime_malloc(void** dev_ptr, std::size_t bytes) {
  return pointer_from(dev_ptr,
                      [bytes](CUdeviceptr* dptr) { return bytes == 0 ? CUDA_SUCCESS : mem_alloc(dptr, bytes); });
}
EXPORTED int gpumem_runtime_malloc_pitch(void** dev_ptr, std::size_t* pitch, std::size_t width, std::size_t height) {
  return pointer_from(dev_ptr, [&](CUdeviceptr* dptr) { return mem_alloc_pitch(dptr, pitch, width, height, 4); });
}
EXPORTED int gpumem_runtime_free(void* dev_ptr) { return mem_free(number_of(dev_ptr)); }
EXPORTED int gpumem_runtime_malloc_async(void** dev_ptr, std::size_t bytes, void* stream, int per_thread) {
  return pointer_from(dev_ptr, [&](CUdeviceptr* dptr) {
    return per_thread != 0 ? mem_alloc_async_ptsz(dptr, bytes, static_cast<CUstream>(stream))
                           : mem_alloc_async(dptr, bytes, static_cast<CUstream>(stream));
  });
}
EXPORTED int gpumem_runtime_free_async(void* dev_ptr, void* stream, int per_thread) {
  return per_thread != 0 ? mem_free_async_ptsz(number_of(dev_ptr), static_cast<CUstream>(stream))
                         : mem_free_async(number_of(dev_ptr), static_cast<CUstream>(stream));
}
EXPORTED int gpumem_runtime_mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  return mem_get_info(free_bytes, total_bytes);
}
/// Call before cudaStreamBeginCapture. Call capture_is_over after cudaStreamEndCapture, or if the begin failed.
EXPORTED void gpumem_runtime_capture_begins(void* stream, int per_thread) {
  capture_begins(stream == nullptr && per_thread != 0 ? CU_STREAM_PER_THREAD : static_cast<CUstream>(stream));
}
EXPORTED void gpumem_runtime_capture_is_over(void* stream, int per_thread) {
  capture_is_over(stream == nullptr && per_thread != 0 ? CU_STREAM_PER_THREAD : static_cast<CUstream>(stream));
}
/// Call before cudaDeviceReset, for the current device.
EXPORTED void gpumem_runtime_forget_device(int device) { forget_device(device); }
