// What a pool does while it waits: the lock given up for a driver call, and the one ticket to take memory.
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

/// The pool's lock. A function that takes it by reference may give it up on the way: what was found before is to be
/// found again.
class GPUMEM_SCOPED pool_lock : public std::unique_lock<std::mutex> {
 public:
  explicit pool_lock(checked_mutex& of) GPUMEM_ACQUIRE(of) : std::unique_lock<std::mutex>{of} {}
  ~pool_lock() GPUMEM_RELEASE() {}
  pool_lock(const pool_lock&) = delete;
  pool_lock& operator=(const pool_lock&) = delete;
};

/// The lock is free while this lives.
class GPUMEM_SCOPED unlocked_section {
 public:
  unlocked_section(pool_lock& lock, [[maybe_unused]] checked_mutex& of) noexcept GPUMEM_RELEASE(of) : lock_{lock} {
    lock_.unlock();
  }
  ~unlocked_section() GPUMEM_RELEASE() { lock_.lock(); }
  unlocked_section(const unlocked_section&) = delete;
  unlocked_section& operator=(const unlocked_section&) = delete;

 private:
  pool_lock& lock_;
};

/// How many driver calls that no capture survives are under way. The pool's lock guards it.
class blocking_calls {
 public:
  /// A capture waits here before it begins; that it has begun keeps further calls away.
  void wait_for_none(pool_lock& lock) {
    none_left_.wait(lock, [this] { return under_way_ == 0; });
  }

 private:
  friend class blocking_call;
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

/// Those that may last: waits of the host for work, and records of fences, which block while a queue is full.
struct lasting_calls {
  blocking_calls waits;
  blocking_calls records;
};

/// Such a call: the lock is free while this lives. Requires that no capture is under way that it would spoil.
class GPUMEM_SCOPED blocking_call {
 public:
  blocking_call(blocking_calls& all, pool_lock& lock, [[maybe_unused]] checked_mutex& of) noexcept GPUMEM_RELEASE(of)
      : all_{all}, lock_{lock} {
    ++all_.under_way_;
    lock_.unlock();
  }
  ~blocking_call() GPUMEM_RELEASE() {
    lock_.lock();
    if (--all_.under_way_ == 0) all_.none_left_.notify_all();
  }
  blocking_call(const blocking_call&) = delete;
  blocking_call& operator=(const blocking_call&) = delete;

 private:
  blocking_calls& all_;
  pool_lock& lock_;
};

/// Who may take memory from the device: one thread at a time. The pool's lock guards it.
class growth_gate {
 public:
  [[nodiscard]] bool taken() const noexcept { return taken_; }
  void wait_for_ticket(pool_lock& lock) {
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
