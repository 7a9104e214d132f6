// Requests while caching is off: each is a driver call, within the limit, and in no statistics.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/env.h>

#include <map>
#include <mutex>
#include <utility>

#include "own_blocks.hpp"
#include "state.hpp"

/// PYTORCH_NO_CUDA_MEMORY_CACHING, for tools that look for bad accesses; parsed as PyTorch parses flags.
inline bool is_without_caches() {
  static const bool asked = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true;
  return asked;
}

class uncached_blocks {
  using guard = std::lock_guard<std::mutex>;

 public:
  /// `give_back` returns idle memory; null if the limit has no room even then.
  template <typename GiveBack>
  void* allocate(device_state& state, DeviceIndex device, std::size_t bytes, const GiveBack& give_back) {
    const std::size_t taken = own_blocks::rounded(bytes);
    if (!state.limit.reserve(taken, true) && !(give_back() && state.limit.reserve(taken, true))) return nullptr;
    void* ptr = nullptr;
    try {
      const c10::cuda::CUDAGuard current{device};
      C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
      const guard lock{mutex_};
      blocks_[ptr] = {device, taken};
    } catch (...) {
      state.limit.release(taken);
      throw;
    }
    return ptr;
  }
  /// False if it is no such block.
  bool free(adapter_state& state, void* ptr) {
    std::pair<DeviceIndex, std::size_t> freed;
    {
      const guard lock{mutex_};
      const auto found = blocks_.find(ptr);
      if (found == blocks_.end()) return false;
      freed = found->second;
      blocks_.erase(found);
    }
    if (in_forked_child) return true;
    const c10::cuda::CUDAGuard current{freed.first};
    C10_CUDA_CHECK(cudaFree(ptr));
    state.device_of(freed.first).limit.release(freed.second);
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::pair<DeviceIndex, std::size_t>> blocks_;
};
