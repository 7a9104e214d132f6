// The cap: bytes a pool may hold. Reserved before the driver is asked, returned when it refuses.
//
// Lock-free; `reserved() <= limit()` at every moment unless the limit was lowered below what was already held.
// Rule: no path to the driver's allocating calls goes around `reserve`.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpumem {

class budget {
 public:
  explicit budget(std::uint64_t limit_bytes) noexcept : limit_{limit_bytes} {}

  /// Takes `bytes` of what is left, or nothing.
  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept {
    std::uint64_t held = reserved_.load(std::memory_order_relaxed);
    do {
      const std::uint64_t limit = limit_.load(std::memory_order_seq_cst);
      if (held > limit || bytes > limit - held) return false;
    } while (!reserved_.compare_exchange_weak(held, held + bytes, std::memory_order_seq_cst));
    return true;
  }
  void give_back(std::uint64_t bytes) noexcept { reserved_.fetch_sub(bytes, std::memory_order_relaxed); }

  [[nodiscard]] std::uint64_t reserved() const noexcept { return reserved_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t left() const noexcept {
    const std::uint64_t held = reserved();
    const std::uint64_t most = limit();
    return held < most ? most - held : 0;
  }
  void set_limit(std::uint64_t bytes) noexcept { limit_.store(bytes, std::memory_order_seq_cst); }

 private:
  std::atomic<std::uint64_t> limit_;
  std::atomic<std::uint64_t> reserved_{0};
};

}  // namespace gpumem
