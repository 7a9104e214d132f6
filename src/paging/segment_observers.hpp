// The observers of one pool's segments. Any thread may add one at any time. The pool keeps them until it closes, and
// so can call them without a lock.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "gpumem/segment_observer.hpp"

namespace gpumem {

class segment_observers {
 public:
  /// `device` is the pool's logical device.
  explicit segment_observers(int device) noexcept : device_{device} {}
  ~segment_observers() {
    for (const entry* each = latest_; each != nullptr;) delete std::exchange(each, each->earlier);
  }
  segment_observers& operator=(segment_observers&&) = delete;

  void add(std::shared_ptr<segment_observer> observer) {
    auto* const made = new entry{std::move(observer), latest_.load(std::memory_order_relaxed)};
    while (!latest_.compare_exchange_weak(made->earlier, made, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  /// Call after the driver call that maps or allocates the memory.
  void added(address begin, std::uint64_t bytes, bool paged) const noexcept {
    tell_each(&segment_observer::segment_added, {device_, begin, bytes, paged});
  }
  /// Call before the driver call that unmaps or frees the memory.
  void removing(address begin, std::uint64_t bytes, bool paged) const noexcept {
    tell_each(&segment_observer::segment_removing, {device_, begin, bytes, paged});
  }

 private:
  struct entry {
    std::shared_ptr<segment_observer> observer;
    entry* earlier;
  };
  void tell_each(void (segment_observer::*call)(const segment_extent&), const segment_extent& extent) const noexcept;

  const int device_;
  std::atomic<entry*> latest_{nullptr};
};

}  // namespace gpumem
