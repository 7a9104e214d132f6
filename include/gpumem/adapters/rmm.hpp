/// A `device_memory_resource` for RMM up to 26.04, its containers and RAPIDS.
///
///   gpumem::rmm_resource memory{allocator};                           // or {allocator, device}
///   rmm::mr::set_current_device_resource(&memory);
///
/// RMM 26.06 removed this base class; pass a `gpumem::cuda_resource` (cuda_mr.hpp) to
/// `rmm::mr::set_current_device_resource` there. The allocator must outlive the resource, and the resource must outlive
/// its allocations. Any thread.
#pragma once

#include <cstddef>
#include <rmm/error.hpp>
#if __has_include(<rmm/mr/device_memory_resource.hpp>)
#include <rmm/mr/device_memory_resource.hpp>
#else
#include <rmm/mr/device/device_memory_resource.hpp>
#endif

#include "gpumem/allocator.hpp"

namespace gpumem {

class rmm_resource final : public rmm::mr::device_memory_resource {
 public:
  explicit rmm_resource(allocator& from, int device = 0) noexcept : from_{&from}, device_{device} {}

  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  /// Throws `rmm::out_of_memory` with the whole report, as RMM's adaptors expect; null for 0 bytes, as RMM does.
  void* do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override {
    if (bytes == 0) return nullptr;
    try {
      return from_->allocate(bytes, stream_ref{stream.value()}, device_);
    } catch (const out_of_memory& why) {
      throw rmm::out_of_memory{why.what()};
    }
  }
  void do_deallocate(void* p, std::size_t bytes, rmm::cuda_stream_view stream) noexcept override {
    gpumem::free_args stated;
    stated.stream = stream_ref{stream.value()};
    stated.bytes = bytes;
    from_->deallocate(p, stated);
  }
  [[nodiscard]] bool do_is_equal(const rmm::mr::device_memory_resource& other) const noexcept override {
    const auto* const same = dynamic_cast<const rmm_resource*>(&other);
    return same != nullptr && same->from_ == from_ && same->device_ == device_;
  }

  allocator* from_;
  int device_;
};

}  // namespace gpumem
