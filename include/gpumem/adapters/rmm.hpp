/// A memory resource for every version of RMM, its containers and RAPIDS.
///
///   gpumem::rmm_resource memory{allocator};                           // or {allocator, device}
///   rmm::mr::set_current_device_resource(memory);                     // up to 26.04: (&memory)
///
/// Up to 26.04 it is a `device_memory_resource`. From 26.06 on, where RMM has only `cuda::mr`, it is a `cuda_resource`
/// that throws RMM's own out-of-memory exception, which RMM's adaptors catch. The allocator must outlive the resource,
/// and the resource must outlive its allocations (26.06: RMM keeps a copy). Any thread.
#pragma once

#include <cstddef>
#include <rmm/error.hpp>
#if __has_include(<rmm/mr/device_memory_resource.hpp>)
#include <rmm/mr/device_memory_resource.hpp>
#define GPUMEM_RMM_HAS_BASE_CLASS
#elif __has_include(<rmm/mr/device/device_memory_resource.hpp>)
#include <rmm/mr/device/device_memory_resource.hpp>
#define GPUMEM_RMM_HAS_BASE_CLASS
#else
#include "gpumem/adapters/cuda_mr.hpp"
#endif

#include "gpumem/allocator.hpp"

namespace gpumem {

#ifdef GPUMEM_RMM_HAS_BASE_CLASS
class rmm_resource final : public rmm::mr::device_memory_resource {
 public:
  explicit rmm_resource(allocator& upstream, int device = 0) noexcept : upstream_{&upstream}, device_{device} {}

  [[nodiscard]] int device() const noexcept { return device_; }

 private:
  /// Throws `rmm::out_of_memory` with the whole report, as RMM's adaptors expect; null for 0 bytes, as RMM does.
  void* do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override {
    if (bytes == 0) return nullptr;
    try {
      return upstream_->allocate(bytes, stream_ref{stream.value()}, device_);
    } catch (const out_of_memory& why) {
      throw rmm::out_of_memory{why.what()};
    }
  }
  void do_deallocate(void* pointer, std::size_t bytes, rmm::cuda_stream_view stream) noexcept override {
    gpumem::free_args stated;
    stated.stream = stream_ref{stream.value()};
    stated.bytes = bytes;
    upstream_->deallocate(pointer, stated);
  }
  [[nodiscard]] bool do_is_equal(const rmm::mr::device_memory_resource& rhs) const noexcept override {
    const auto* const same = dynamic_cast<const rmm_resource*>(&rhs);
    return same != nullptr && same->upstream_ == upstream_ && same->device_ == device_;
  }

  allocator* upstream_;
  int device_;
};
#else
class rmm_resource {
 public:
  explicit rmm_resource(allocator& upstream, int device = 0) noexcept : memory_{upstream, device} {}

  [[nodiscard]] int device() const noexcept { return memory_.device(); }

  /// These throw `rmm::out_of_memory` with the whole report, or `bad_request`.
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = block_granularity) {
    return as_rmm([&] { return memory_.allocate(stream, bytes, alignment); });
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = block_granularity) {
    return as_rmm([&] { return memory_.allocate_sync(bytes, alignment); });
  }
  void deallocate(cuda::stream_ref stream, void* pointer, std::size_t bytes,
                  std::size_t alignment = block_granularity) noexcept {
    memory_.deallocate(stream, pointer, bytes, alignment);
  }
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t alignment = block_granularity) noexcept {
    memory_.deallocate_sync(pointer, bytes, alignment);
  }

  friend bool operator==(const rmm_resource&, const rmm_resource&) noexcept = default;
  friend void get_property(const rmm_resource&, cuda::mr::device_accessible) noexcept {}

 private:
  template <typename Allocate>
  static void* as_rmm(const Allocate& allocate) {
    try {
      return allocate();
    } catch (const out_of_memory& why) {
      throw rmm::out_of_memory{why.what()};
    }
  }

  cuda_resource memory_;
};
#endif

}  // namespace gpumem
