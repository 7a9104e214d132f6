/// A std::pmr memory resource in pinned memory, for host containers that are copied to and from a GPU asynchronously.
///
///   auto staging = gpumem::pinned_resource::open(gpu);
///   std::pmr::vector<float> batch{staging->get()};
///
/// A container does not know of copies and frees its memory when the host is done with it. Call `also_used_on` for each
/// stream that reads or writes the container; then its memory is reused only when that work is done. Blocks are
/// multiples of 512 bytes, so put a std::pmr::unsynchronized_pool_resource in front for many small ones. Any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

#include "gpumem/allocator.hpp"
#include "gpumem/pinned_device.hpp"

namespace gpumem {

class pinned_resource final : public std::pmr::memory_resource {
 public:
  /// A pool of pinned host memory for copies with `gpu`, which must outlive it; `capacity_bytes` as in pinned_device.
  /// By default idle segments are kept until memory runs short (policy `caching`).
  static result<std::unique_ptr<pinned_resource>> open(device& gpu, std::uint64_t capacity_bytes = 0) {
    settings options;
    if (status ok = options.set("policy", "caching"); !ok) return ok;
    return open(gpu, capacity_bytes, std::move(options));
  }
  /// The same with the caller's settings. Ignores the environment, because its settings are for device memory.
  static result<std::unique_ptr<pinned_resource>> open(device& gpu, std::uint64_t capacity_bytes, settings options) {
    options.reuse = stream_reuse::host;  // the device cannot make the host wait
    std::unique_ptr<pinned_resource> made{new pinned_resource{gpu, capacity_bytes}};
    device* const devices[]{&made->memory_};
    result<std::unique_ptr<allocator>> opened = allocator::open(devices, options);
    if (!opened) return opened.why();
    made->allocator_ = *std::move(opened);
    return result<std::unique_ptr<pinned_resource>>{std::move(made)};
  }

  /// Work on `stream` reads or writes the memory that `inside` points into.
  status also_used_on(const void* inside, stream_ref stream) {
    return allocator_->record_use(const_cast<void*>(inside), stream);  // only the address is used
  }

  /// The underlying allocator, for statistics, trim and limit.
  [[nodiscard]] allocator& pool() noexcept { return *allocator_; }

 private:
  pinned_resource(device& gpu, std::uint64_t capacity_bytes) : memory_{gpu, capacity_bytes} {}

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return allocator_->allocate({.bytes = std::max<std::size_t>(bytes, 1),
                                 .stream = pinned_device::host_stream(),
                                 .device = 0,
                                 .alignment = std::max(alignment, block_granularity)});
  }
  void do_deallocate(void* pointer, std::size_t bytes, std::size_t /*alignment*/) override {
    gpumem::free_args stated;
    stated.bytes = std::max<std::size_t>(bytes, 1);
    allocator_->deallocate(pointer, stated);
  }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& rhs) const noexcept override { return this == &rhs; }

  pinned_device memory_;
  std::unique_ptr<allocator> allocator_;  // destroyed before the memory
};

}  // namespace gpumem
