// PyTorch's caching allocator, by the entry points that its own extensions use. scripts/peers builds this against the
// headers of an installed wheel. Its settings (PYTORCH_ALLOC_CONF) are read when the library is loaded, so "torch" and
// "torch_expandable" are one plug-in in two environments.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <cstdio>

#include "over_runtime.hpp"

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

class torch_baseline final : public gpumem_baseline {
 public:
  explicit torch_baseline(int device) : device_{static_cast<c10::DeviceIndex>(device)} {
    c10::cuda::detail::init_p2p_access_cache(device + 1);  // expandable segments read this cache
    caching::init(device + 1);
  }
  ~torch_baseline() override {
    try {
      caching::emptyCache();
    } catch (const std::exception&) {
      // An earlier call reported the broken device.
    }
  }
  torch_baseline& operator=(torch_baseline&&) = delete;

  cudaError_t allocate(void** block, std::size_t bytes, cudaStream_t stream) override {
    try {
      *block = caching::raw_alloc_with_stream(bytes, stream);
      return cudaSuccess;
    } catch (const c10::OutOfMemoryError&) {
      return cudaErrorMemoryAllocation;
    } catch (const c10::Error& error) {
      return error_of(error);
    }
  }
  cudaError_t release(void* block, cudaStream_t /*stream*/) override {
    try {
      caching::raw_delete(block);
      return cudaSuccess;
    } catch (const c10::Error& error) {
      return error_of(error);
    }
  }
  std::uint64_t reserved_bytes() override {
    return static_cast<std::uint64_t>(caching::getDeviceStats(device_).reserved_bytes[0].current);
  }
  // raw_alloc_with_stream queries the current device.
  int runtime_calls_of_a_pair(cudaStream_t /*stream*/) override {
    int device = 0;
    return cudaGetDevice(&device);
  }

 private:
  static cudaError_t error_of(const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return cudaErrorUnknown;
  }

  c10::DeviceIndex device_;
};

gpumem_baseline* open_baseline(const char* /*kind*/, int device) {
  if (cudaSetDevice(device) != cudaSuccess) return nullptr;
  return new torch_baseline{device};
}

}  // namespace
