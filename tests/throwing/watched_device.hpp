/// A device whose n-th call a test makes throw. Its own host memory never runs out.
#pragma once

#include <cstdint>
#include <new>
#include <optional>

#include "device_decorator.hpp"
#include "gpumem/sim_device.hpp"
#include "host_memory.hpp"

namespace gpumem::throwing {

class watched_device final : public device_decorator {
 public:
  using device_decorator::device_decorator;
  /// The n-th call from now on throws std::bad_alloc before the device sees it, once; 0: none does.
  void throw_at(std::uint64_t n) noexcept {
    left_ = n;
    thrown_ = false;
  }
  [[nodiscard]] bool thrown() const noexcept { return thrown_; }

 private:
  void before_call(device_call call) override {
    unwatched_.emplace();
    // An unmap must not throw, because its addresses would be lost (paging_test).
    if (call == device_call::unmap || left_ == 0 || --left_ != 0) return;
    thrown_ = true;
    unwatched_.reset();
    throw std::bad_alloc{};
  }
  void after_call(device_call /*call*/) noexcept override { unwatched_.reset(); }
  void do_drop(fence unused) noexcept override {
    const host_memory::unwatched its_own;
    device_decorator::do_drop(unused);
  }

  std::optional<host_memory::unwatched> unwatched_;
  std::uint64_t left_ = 0;
  bool thrown_ = false;
};

}  // namespace gpumem::throwing
