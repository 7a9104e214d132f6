// The limit on the bytes that a pool holds. Bytes are reserved before the driver is asked, and returned if it refuses.
//
// Two stages: the pool's own, lock-free, and its group's if it has one, which other processes share and which takes a
// lock for microseconds. A pool's `reserved() <= limit()` at every moment unless the limit was lowered below the bytes
// already held. Rule: every allocating driver call goes through `reserve`.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "group_ledger.hpp"

namespace gpumem {

class budget {
 public:
  explicit budget(std::uint64_t limit_bytes, std::shared_ptr<group_ledger> group = nullptr) noexcept
      : limit_{limit_bytes}, group_{std::move(group)} {}
  /// Returns the pool's remaining bytes to its group.
  ~budget() {
    if (group_) group_->give_back(reserved());
  }
  budget& operator=(budget&&) = delete;

  /// Takes all of `bytes`, or nothing. Reserving 0 bytes always succeeds, even beyond a lowered limit, because moving
  /// pages needs no new memory.
  [[nodiscard]] bool reserve(std::uint64_t bytes) noexcept {
    if (bytes == 0) return true;
    std::uint64_t held = reserved_.load(std::memory_order_relaxed);
    do {
      const std::uint64_t limit = limit_.load(std::memory_order_seq_cst);
      if (held > limit || bytes > limit - held) return false;
    } while (!reserved_.compare_exchange_weak(held, held + bytes, std::memory_order_seq_cst));
    if (!group_ || group_->reserve(bytes)) return true;
    reserved_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  void give_back(std::uint64_t bytes) noexcept {
    reserved_.fetch_sub(bytes, std::memory_order_relaxed);
    if (group_) group_->give_back(bytes);
  }

  [[nodiscard]] std::uint64_t reserved() const noexcept { return reserved_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t left() const noexcept {
    const std::uint64_t held = reserved();
    const std::uint64_t most = limit();
    const std::uint64_t own = held < most ? most - held : 0;
    return group_ ? std::min(own, group_->left()) : own;
  }
  /// The limit or the device refused to let the pool grow.
  void note_full() noexcept { full_at_.store(reserved(), std::memory_order_relaxed); }
  /// Whether the pool holds as much as when that last happened.
  [[nodiscard]] bool is_full() const noexcept { return reserved() == full_at_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool in_group() const noexcept { return group_ != nullptr; }
  void set_limit(std::uint64_t bytes) noexcept { limit_.store(bytes, std::memory_order_seq_cst); }

 private:
  std::atomic<std::uint64_t> limit_;
  std::atomic<std::uint64_t> reserved_{0};
  std::atomic<std::uint64_t> full_at_{UINT64_MAX};
  const std::shared_ptr<group_ledger> group_;
};

/// Returns freshly reserved bytes when it ends, unless `keep` was called.
class reservation {
 public:
  reservation(budget& budget, std::uint64_t bytes) noexcept : budget_{budget}, bytes_{bytes} {}
  ~reservation() {
    if (bytes_ != 0) budget_.give_back(bytes_);
  }
  reservation& operator=(reservation&&) = delete;
  /// Leaves `kept_bytes` to the pool and returns the rest now.
  void keep(std::uint64_t kept_bytes) noexcept {
    if (bytes_ != kept_bytes) budget_.give_back(bytes_ - kept_bytes);
    bytes_ = 0;
  }

 private:
  budget& budget_;
  std::uint64_t bytes_;
};

}  // namespace gpumem
