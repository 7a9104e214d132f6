// TensorFlow's BFC allocator over cudaMalloc, with its options for a GPU with memory growth: garbage collection of free
// regions is on. Retries are off, because they would wait ten seconds for another thread's free, and there is no other
// thread. scripts/peers builds this against the headers of an installed wheel. Supports one stream.
#include <cuda_runtime_api.h>

#include "over_runtime.hpp"
#include "xla/tsl/framework/bfc_allocator.h"

namespace {

/// Allocates regions from the device directly, as TensorFlow's GPU devices do.
class device_regions final : public tsl::SubAllocator {
 public:
  device_regions() : tsl::SubAllocator{{}, {}} {}
  void* Alloc(size_t /*alignment*/, size_t num_bytes, size_t* bytes_received) override {
    void* block = nullptr;
    *bytes_received = num_bytes;
    if (cudaMalloc(&block, num_bytes) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    reserved_ += num_bytes;
    return block;
  }
  void Free(void* block, size_t num_bytes) override {
    cudaFree(block);
    reserved_ -= num_bytes;
  }
  bool SupportsCoalescing() const override { return false; }
  tsl::AllocatorMemoryType GetMemoryType() const override { return tsl::AllocatorMemoryType::kDevice; }
  std::uint64_t reserved() const { return reserved_; }

 private:
  std::uint64_t reserved_ = 0;
};

class tensorflow_baseline final : public gpumem_baseline {
 public:
  explicit tensorflow_baseline(std::size_t total_bytes) {
    auto regions = std::make_unique<device_regions>();
    regions_ = regions.get();
    tsl::BFCAllocator::Options options;
    options.allow_growth = true;
    options.allow_retry_on_failure = false;
    options.garbage_collection = true;
    bfc_ = std::make_unique<tsl::BFCAllocator>(std::move(regions), total_bytes, "GPU_0_bfc", options);
  }
  cudaError_t allocate(void** block, std::size_t bytes, cudaStream_t /*stream*/) override {
    *block = bfc_->AllocateRaw(tsl::Allocator::kAllocatorAlignment, bytes);
    return *block != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
  }
  cudaError_t release(void* block, cudaStream_t /*stream*/) override {
    bfc_->DeallocateRaw(block);
    return cudaSuccess;
  }
  std::uint64_t reserved_bytes() override { return regions_->reserved(); }
  // A cached pair makes no runtime call.
  int runtime_calls_of_a_pair(cudaStream_t /*stream*/) override { return cudaSuccess; }

 private:
  device_regions* regions_;
  std::unique_ptr<tsl::BFCAllocator> bfc_;
};

gpumem_baseline* open_baseline(const char* /*kind*/, int device) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaSetDevice(device) != cudaSuccess || cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return nullptr;
  return new tensorflow_baseline{total_bytes};
}

}  // namespace
