// Handles of memory for other processes, in native's format for cudaMalloc memory, so that each allocator opens the
// other's: a version, a kind, and the runtime's handle of the whole segment.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "state.hpp"

class shared_handles {
 public:
  /// The handle of a block whose segment begins at `base`.
  static native::ShareableHandle share(const void* ptr, void* base) {
    cudaIpcMemHandle_t handle;
    const cudaError_t made = cudaIpcGetMemHandle(&handle, base);
    if (made != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      TORCH_CHECK(false, "gpumem: this block cannot be shared with another process (", cudaGetErrorString(made),
                  "): memory that is mapped page by page has no IPC handle. Use GPUMEM_POLICY=growth or caching with "
                  "GPUMEM_BACKING=plain, or share through the host.");
    }
    return {static_cast<const char*>(ptr) - static_cast<const char*>(base),
            std::string{head} + std::string{reinterpret_cast<const char*>(&handle), sizeof handle}};
  }
  /// Maps another process's segment, once for all holders of the handle.
  std::shared_ptr<void> open(const std::string& handle) {
    TORCH_CHECK(
        handle.size() == head.size() + sizeof(cudaIpcMemHandle_t) && handle.starts_with(head),
        "gpumem: cannot open this IPC handle: expected one of memory from cudaMalloc, and this one is of another "
        "kind (expandable segments in the process that shares it?)");
    const std::lock_guard lock{mutex_};
    if (auto open = opened_[handle].lock()) return open;
    cudaIpcMemHandle_t raw;
    std::copy_n(handle.data() + head.size(), sizeof raw, reinterpret_cast<char*>(&raw));
    void* base = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&base, raw, cudaIpcMemLazyEnablePeerAccess));
    const DeviceIndex device = c10::cuda::current_device();
    std::shared_ptr<void> mapping{base, [this, handle, device](void* p) {
                                    const std::lock_guard again{mutex_};
                                    const c10::cuda::CUDAGuard guard{device};
                                    C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(p));
                                    opened_.erase(handle);
                                  }};
    opened_[handle] = mapping;
    return mapping;
  }

 private:
  static constexpr std::string_view head{
      "\x01"
      "c"};
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<void>> opened_;
};
