/// A mutex for what is locked for nanoseconds and seldom met: it costs no atomic read-modify-write as long as one
/// thread alone takes it, and one, not two, from then on.
///
/// The first thread that takes it is its owner and only says that it is inside, until another one comes and ends that
/// for good (Kawachiya, Koseki and Onodera, "Lock Reservation", 2002). After that, unlocking is a plain store: who
/// sleeps counts itself first (Drepper's third mutex in "Futexes Are Tricky", 2011, has a read-modify-write there).
/// Both rest on the asymmetric fence: whoever comes second, or sleeps, has the kernel order what the other thread just
/// stored. Any thread; not recursive; a standard BasicLockable. A section that waits for something unlocks it. Not
/// fair, but whoever has slept for a millisecond comes next: who unlocks then waits for it (another one at most), since
/// a thread that locks again at once is there before any that is woken.
#pragma once

#include <atomic>
#include <cstdint>

#include "asymmetric_fence.hpp"

namespace gpumem {

/// Its address tells threads apart. The model keeps that two instructions in a shared library, too.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local char mark_of_thread = 0;

class light_mutex {
 public:
  light_mutex() noexcept : free_fence_{asymmetric_fences()}, alone_{free_fence_} {}
  light_mutex(const light_mutex&) = delete;
  light_mutex& operator=(const light_mutex&) = delete;

  void lock() noexcept {
    if (alone_.load(std::memory_order_relaxed)) [[likely]] {
      if (!owner_enters()) enter_as_first_or_second();
    } else if (!take()) [[unlikely]] {
      sleep_for_it();
    }
  }
  void unlock() noexcept {
    if (by_owner_) [[likely]] {
      by_owner_ = false;
      owner_inside_.store(false, std::memory_order_release);
      return;
    }
    if (free_fence_) [[likely]] {
      held_.store(0, std::memory_order_release);
      light_fence();
    } else {
      held_.exchange(0, std::memory_order_seq_cst);
    }
    if (sleepers_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      wake();
  }
  /// No thread but the first has taken it so far. Once false it stays so; true holds while the asker has it locked.
  [[nodiscard]] bool alone() const noexcept { return alone_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] bool owner_enters() noexcept {
    if (owner_.load(std::memory_order_relaxed) != &mark_of_thread) return false;
    owner_inside_.store(true, std::memory_order_relaxed);
    light_fence();
    if (alone_.load(std::memory_order_seq_cst)) [[likely]] {
      by_owner_ = true;
      return true;
    }
    owner_inside_.store(false, std::memory_order_release);
    return false;
  }
  [[nodiscard]] bool take() noexcept { return held_.exchange(1, std::memory_order_acquire) == 0; }
  void enter_as_first_or_second() noexcept;
  void sleep_for_it() noexcept;
  void wake() noexcept;

  std::atomic<const char*> owner_{nullptr};
  std::atomic<bool> owner_inside_{false};
  bool by_owner_ = false;  // how it is locked now
  const bool free_fence_;
  std::atomic<bool> alone_;
  std::atomic<std::uint32_t> held_{0};  // what sleepers wait for to change
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint32_t> starving_{0};  // of these, who has slept for long
};

}  // namespace gpumem
