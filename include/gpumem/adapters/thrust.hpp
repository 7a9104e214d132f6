/// A thrust::mr memory resource, and an allocator over it for Thrust's containers and algorithms.
///
///   gpumem::thrust_resource memory{allocator};                       // or {allocator, device, {stream}}
///   thrust::device_vector<float, gpumem::thrust_allocator<float>> v(n, &memory);
///   thrust::sort(thrust::cuda::par(gpumem::thrust_allocator<char>{&memory}), v.begin(), v.end());
///
/// Thrust frees in the order of the stream that it works on, so each resource serves one stream: by default the legacy
/// default stream, on which containers work. Needs only Thrust's headers; Thrust's C++ device system also works, over
/// memory that the host can access. Any thread.
#pragma once

#include <thrust/device_ptr.h>
#include <thrust/mr/allocator.h>
#include <thrust/mr/memory_resource.h>

#include <cstddef>

#include "gpumem/allocator.hpp"

namespace gpumem {

/// The allocator must outlive the resource, and the resource must outlive its allocations.
class thrust_resource final : public thrust::mr::memory_resource<thrust::device_ptr<void>> {
 public:
  explicit thrust_resource(allocator& upstream, int device = 0, stream_ref stream = {}) noexcept
      : upstream_{&upstream}, device_{device}, stream_{stream} {}

  /// Throws `out_of_memory` or `bad_request`, which are std::bad_alloc, as Thrust's own is.
  pointer do_allocate(std::size_t bytes, std::size_t alignment) override {
    return pointer{upstream_->allocate({.bytes = bytes == 0 ? 1 : bytes,
                                        .stream = stream_,
                                        .device = device_,
                                        .alignment = alignment > block_granularity ? alignment : block_granularity})};
  }
  void do_deallocate(pointer block, std::size_t /*bytes*/, std::size_t /*alignment*/) override {
    upstream_->deallocate(block.get());
  }

  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }

 private:
  allocator* upstream_;
  int device_;
  stream_ref stream_;
};

template <typename T>
using thrust_allocator = thrust::mr::allocator<T, thrust_resource>;

}  // namespace gpumem
