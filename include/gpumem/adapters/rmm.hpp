/// The bridge to RMM up to 26.04: a `device_memory_resource` that RMM's containers and RAPIDS take.
///
///   gpumem::rmm_resource memory{allocator};                           // or {allocator, device}
///   rmm::mr::set_current_device_resource(&memory);
///
/// RMM 26.06 has no such base any more: there a `gpumem::cuda_resource` (cuda_mr.hpp) is a resource as it is, and
/// `rmm::mr::set_current_device_resource` takes it. The allocator must outlive it, and it must outlive what is
/// allocated from it. Any thread.
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
    gpumem::release stated;
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
