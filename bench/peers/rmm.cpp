// RMM's pool over cudaMalloc: 64 MiB at first, no maximum. scripts/peers builds this with RMM's sources. RMM needs the
// size of a freed block, so this file keeps the sizes; their cost is part of the calls subtracted from a pair's time.
#include <exception>
#include <new>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <unordered_map>

#include "over_runtime.hpp"

namespace {

constexpr std::size_t initial_bytes = std::size_t{64} << 20;
constexpr std::size_t alignment = 256;

class rmm_baseline final : public gpumem_baseline {
 public:
  cudaError_t allocate(void** block, std::size_t bytes, cudaStream_t stream) override {
    try {
      *block = pool_.allocate(cuda::stream_ref{stream}, bytes, alignment);
    } catch (const std::bad_alloc&) {  // base class of rmm::out_of_memory
      return cudaErrorMemoryAllocation;
    } catch (const std::exception&) {
      return cudaErrorUnknown;
    }
    sizes_.emplace(*block, bytes);
    return cudaSuccess;
  }
  cudaError_t release(void* block, cudaStream_t stream) override {
    const auto found = sizes_.find(block);
    if (found == sizes_.end()) return cudaErrorInvalidValue;
    pool_.deallocate(cuda::stream_ref{stream}, block, found->second, alignment);
    sizes_.erase(found);
    return cudaSuccess;
  }
  std::uint64_t reserved_bytes() override { return pool_.pool_size(); }
  // A free records the stream's event.
  int runtime_calls_of_a_pair(cudaStream_t stream) override {
    if (event_ == nullptr) cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    sizes_.emplace(this, alignment);
    sizes_.erase(sizes_.find(this));
    return cudaEventRecord(event_, stream);
  }

 private:
  rmm::mr::cuda_memory_resource device_;
  rmm::mr::pool_memory_resource pool_{device_, initial_bytes};
  std::unordered_map<void*, std::size_t> sizes_;
  cudaEvent_t event_ = nullptr;  // never destroyed
};

gpumem_baseline* open_baseline(const char* /*kind*/, int device) {
  if (cudaSetDevice(device) != cudaSuccess) return nullptr;
  try {
    return new rmm_baseline;
  } catch (const std::exception&) {
    return nullptr;  // fails on devices of less than 64 MiB
  }
}

}  // namespace
