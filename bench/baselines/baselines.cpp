// The baselines over the CUDA runtime. CUB is a host-only header here, so no nvcc is needed.
#include <cub/util_allocator.cuh>
#include <map>
#include <memory>
#include <string_view>

#include "over_runtime.hpp"

namespace {

/// CUB's allocator. `every_size` configures it to cache every size: powers of two from 512 bytes, no upper bound. Calls
/// pass no device, which saves one cudaSetDevice a free; each thread has set the device as its current one.
class cub_baseline final : public gpumem_baseline {
 public:
  cub_baseline(int device, bool every_size)
      : device_{device},
        allocator_{every_size ? std::make_unique<cub::CachingDeviceAllocator>(2, 9, 40)
                              : std::make_unique<cub::CachingDeviceAllocator>()} {}
  cudaError_t allocate(void** block, std::size_t bytes, cudaStream_t stream) override {
    return allocator_->DeviceAllocate(block, bytes, stream);
  }
  cudaError_t release(void* block, cudaStream_t /*s*/) override { return allocator_->DeviceFree(block); }
  std::uint64_t reserved_bytes() override {
    const auto found = allocator_->cached_bytes.find(device_);
    return found == allocator_->cached_bytes.end() ? 0 : found->second.free + found->second.live;
  }
  // DeviceAllocate queries the current device; DeviceFree does too, and records the block's event.
  int runtime_calls_of_a_pair(cudaStream_t stream) override {
    int device = 0;
    if (event_ == nullptr) cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaGetDevice(&device);
    cudaGetDevice(&device);
    return cudaEventRecord(event_, stream);
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;  // used by `runtime_calls_of_a_pair`; never destroyed
  std::unique_ptr<cub::CachingDeviceAllocator> allocator_;
};

/// cudaFree synchronizes the device, so any stream may get the block next.
class malloc_baseline final : public gpumem_baseline {
 public:
  cudaError_t allocate(void** block, std::size_t bytes, cudaStream_t /*s*/) override {
    const cudaError_t done = cudaMalloc(block, bytes);
    if (done == cudaSuccess) reserved_ += sizes_[*block] = bytes;
    return done;
  }
  cudaError_t release(void* block, cudaStream_t /*s*/) override {
    const cudaError_t done = cudaFree(block);
    if (done != cudaSuccess) return done;
    reserved_ -= sizes_[block];
    sizes_.erase(block);
    return done;
  }
  std::uint64_t reserved_bytes() override { return reserved_; }

 private:
  std::map<void*, std::size_t> sizes_;
  std::uint64_t reserved_ = 0;
};

/// The driver's default pool. Its release threshold is set to keep all memory, as its users are advised to do.
class async_baseline final : public gpumem_baseline {
 public:
  static std::unique_ptr<async_baseline> open(int device) {
    auto made = std::make_unique<async_baseline>();
    std::uint64_t keep = UINT64_MAX;
    if (cudaDeviceGetDefaultMemPool(&made->pool_, device) != cudaSuccess) return nullptr;
    if (cudaMemPoolSetAttribute(made->pool_, cudaMemPoolAttrReleaseThreshold, &keep) != cudaSuccess) return nullptr;
    return made;
  }
  ~async_baseline() override {
    cudaDeviceSynchronize();
    cudaMemPoolTrimTo(pool_, 0);
  }
  async_baseline() = default;
  cudaError_t allocate(void** block, std::size_t bytes, cudaStream_t stream) override {
    return cudaMallocAsync(block, bytes, stream);
  }
  cudaError_t release(void* block, cudaStream_t stream) override { return cudaFreeAsync(block, stream); }
  std::uint64_t reserved_bytes() override {
    std::uint64_t bytes = 0;
    return cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &bytes) == cudaSuccess ? bytes : 0;
  }

 private:
  cudaMemPool_t pool_ = nullptr;
};

gpumem_baseline* open_baseline(const char* kind, int device) {
  const std::string_view name{kind};
  if (cudaSetDevice(device) != cudaSuccess) return nullptr;
  if (name == "cub") return new cub_baseline{device, true};
  if (name == "cub_default") return new cub_baseline{device, false};
  if (name == "cuda_malloc") return new malloc_baseline;
  if (name == "cuda_malloc_async") return async_baseline::open(device).release();
  return nullptr;
}

}  // namespace
