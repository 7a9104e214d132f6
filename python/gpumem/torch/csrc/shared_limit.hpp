// The limit of one GPU, which gpumem's memory shares with memory from other sources.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "gpumem_memory.hpp"

/// gpumem's own limit is what remains beside memory from other sources.
class shared_limit {
 public:
  void open(int logical, std::uint64_t limit) {
    logical_ = logical;
    limit_ = at_start_ = limit;
  }
  [[nodiscard]] std::uint64_t at_start() const noexcept { return at_start_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return limit_; }
  /// Bytes reserved for memory from other sources.
  [[nodiscard]] std::uint64_t reserved() const noexcept { return reserved_; }

  void set(std::uint64_t limit) {
    const std::lock_guard lock{mutex_};
    const gpumem::result<gpumem::limit_result> applied = apply(limit, reserved_);
    TORCH_CHECK(applied.ok(), "gpumem: ", applied.why().message());
    limit_ = limit;
  }
  /// False if the bytes do not fit beside gpumem's memory. `gives_back` allows returning idle segments first, which
  /// calls the driver: pass false within a capture, because gpumem learns of a capture only by its first request.
  bool reserve(std::uint64_t bytes, bool gives_back) {
    const std::lock_guard lock{mutex_};
    const std::uint64_t wanted = reserved_ + bytes;
    if (wanted > limit_) return false;
    if (!gives_back) {
      const gpumem::result<gpumem::statistics> statistics = memory().stats(logical_);
      if (!statistics || statistics->reserved_bytes + wanted > limit_) return false;
    }
    const gpumem::result<gpumem::limit_result> applied = apply(limit_, wanted);
    if (applied && applied->reserved_bytes + wanted <= limit_) {
      reserved_ = wanted;
      return true;
    }
    static_cast<void>(apply(limit_, reserved_));
    return false;
  }
  void release(std::uint64_t bytes) noexcept {
    const std::lock_guard lock{mutex_};
    reserved_ -= bytes;
    static_cast<void>(apply(limit_, reserved_));
  }

 private:
  gpumem::result<gpumem::limit_result> apply(std::uint64_t limit, std::uint64_t reserved) const {
    return memory().set_limit(logical_, std::max<std::uint64_t>(1, limit - std::min(limit, reserved)));
  }

  int logical_ = -1;
  std::uint64_t at_start_ = 0;
  std::atomic<std::uint64_t> limit_ = 0;
  std::atomic<std::uint64_t> reserved_ = 0;
  std::mutex mutex_;  // serializes changes
};
