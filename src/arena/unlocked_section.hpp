// The lock of an arena, the lock given up for a driver call, and the one ticket to take memory.
//
// All of them end with their scope, on whatever way out of it, so that nothing that throws leaves the lock open or a
// ticket taken. `lock` is held when one is made, and when it has ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "checked_mutex.hpp"

namespace gpumem {

/// "The arena's lock is held", for Clang's analysis. No thread holds the locks of two arenas, so one name serves every
/// class that works under such a lock.
class GPUMEM_CAPABILITY arena_role {};
inline constexpr arena_role under_arena_lock{};
#define GPUMEM_UNDER_LOCK GPUMEM_REQUIRES(::gpumem::under_arena_lock)

/// The arena's lock. A function that takes it by reference may give it up on the way: what was found before is to be
/// found again.
class GPUMEM_SCOPED arena_lock : public std::unique_lock<std::mutex> {
 public:
  explicit arena_lock(std::mutex& of) GPUMEM_ACQUIRE(under_arena_lock) : std::unique_lock<std::mutex>{of} {}
  ~arena_lock() GPUMEM_RELEASE() {}
  arena_lock(const arena_lock&) = delete;
  arena_lock& operator=(const arena_lock&) = delete;
};

/// The lock is free while this lives.
class GPUMEM_SCOPED unlocked_section {
 public:
  explicit unlocked_section(arena_lock& lock) noexcept GPUMEM_RELEASE(under_arena_lock) : lock_{lock} {
    lock_.unlock();
  }
  ~unlocked_section() GPUMEM_RELEASE() { lock_.lock(); }
  unlocked_section(const unlocked_section&) = delete;
  unlocked_section& operator=(const unlocked_section&) = delete;

 private:
  arena_lock& lock_;
};

/// Driver calls that no capture survives, made without the arena's lock, which guards their number.
class blocking_calls {
 public:
  /// What `call` returns. Requires that no capture is under way that it would spoil.
  template <typename Call>
  auto make(arena_lock& lock, const Call& call) GPUMEM_REQUIRES(under_arena_lock) {
    const counted one{*this};
    const unlocked_section waits{lock};
    return call();
  }
  /// A capture waits here before it begins; that it has begun keeps further calls away.
  void wait_for_none(arena_lock& lock) {
    none_left_.wait(lock, [this] { return under_way_ == 0; });
  }

 private:
  struct counted {
    explicit counted(blocking_calls& all) noexcept : of{all} { ++of.under_way_; }
    ~counted() {
      if (--of.under_way_ == 0) of.none_left_.notify_all();
    }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    blocking_calls& of;
  };
  std::uint32_t under_way_ = 0;
  std::condition_variable none_left_;
};

/// Records of fences by threads that do not hold the pool's lock, and the captures that forbid them.
class record_gate {
 public:
  /// True where one may be made, until `leave`.
  [[nodiscard]] bool enter() noexcept {
    under_way_.fetch_add(1, std::memory_order_seq_cst);  // before it looks, so that who closes sees one of the two
    if (closed_.load(std::memory_order_seq_cst) == 0) return true;
    leave();
    return false;
  }
  void leave() noexcept {
    if (under_way_.fetch_sub(1, std::memory_order_acq_rel) == 1) under_way_.notify_all();
  }
  void close() noexcept { closed_.fetch_add(1, std::memory_order_seq_cst); }
  void open() noexcept { closed_.fetch_sub(1, std::memory_order_release); }
  /// Of those that entered before it was closed.
  void wait_for_none() const noexcept {
    for (std::uint32_t n = under_way_.load(std::memory_order_seq_cst); n != 0; n = under_way_.load()) {
      under_way_.wait(n);
    }
  }

 private:
  std::atomic<std::uint32_t> under_way_{0};
  std::atomic<std::uint32_t> closed_{0};
};

/// Who may take memory from the device: one thread at a time. The arena's lock guards it.
class growth_gate {
 public:
  [[nodiscard]] bool taken() const noexcept { return taken_; }
  void wait_for_ticket(arena_lock& lock) {
    returned_.wait(lock, [this] { return !taken_; });
  }

 private:
  friend class growth_ticket;
  bool taken_ = false;
  std::condition_variable returned_;
};

/// The right to do so. Requires that it is not taken.
class growth_ticket {
 public:
  explicit growth_ticket(growth_gate& at) noexcept : at_{at} { at_.taken_ = true; }
  ~growth_ticket() {
    at_.taken_ = false;
    at_.returned_.notify_all();
  }
  growth_ticket(const growth_ticket&) = delete;
  growth_ticket& operator=(const growth_ticket&) = delete;

 private:
  growth_gate& at_;
};

}  // namespace gpumem
