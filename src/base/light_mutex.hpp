/// A mutex for what is locked for nanoseconds and seldom met: it costs no atomic read-modify-write while one thread
/// alone takes it, and one, not two, else.
///
/// The first thread (`be_first`) only says that it is inside, until another one comes and ends that (Kawachiya, Koseki
/// and Onodera, "Lock Reservation", 2002); `unlock_to` begins it anew. While it is nobody's, unlocking is a plain
/// store: who sleeps counts itself first (Drepper's third mutex in "Futexes Are Tricky", 2011, has a read-modify-write
/// there). Both rest on the asymmetric fence: whoever comes second, or sleeps, has the kernel order what the other
/// thread just stored. Any thread; not recursive; a standard BasicLockable. A section that waits for something unlocks
/// it. Not fair, but whoever has slept for a millisecond comes next: who unlocks then waits for it (another one at
/// most), since a thread that locks again at once is there before any that is woken.
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
    if (alone_.load(std::memory_order_relaxed) && first_enters()) [[likely]]
      return;
    if (!take()) [[unlikely]]
      sleep_for_it();
    // Or again: then the first may be inside as well.
    if (alone_.load(std::memory_order_relaxed)) [[unlikely]]
      meet_first();
  }
  void unlock() noexcept {
    if (by_first_) [[likely]] {
      by_first_ = false;
      first_inside_.store(false, std::memory_order_release);
      return;
    }
    unlock_held();
  }
  /// No thread has got in but the first, or, where there is none, any. For who has it locked: true may turn false when
  /// another one waits, which is let in no earlier for that.
  [[nodiscard]] bool alone() const noexcept { return alone_.load(std::memory_order_relaxed); }

  // By who has it locked:
  /// The mark of the first thread, or null.
  [[nodiscard]] const char* first() const noexcept {
    const char* const mark = first_.load(std::memory_order_relaxed);
    return mark != &gone ? mark : nullptr;
  }
  /// This thread is the first, if there is none.
  void be_first() noexcept {
    if (first_.load(std::memory_order_relaxed) == nullptr) first_.store(&mark_of_thread, std::memory_order_relaxed);
  }
  /// This thread is not the first any more, if it was.
  void be_nobody() noexcept {
    if (first_.load(std::memory_order_relaxed) == &mark_of_thread)
      first_.store(by_first_ ? &gone : nullptr, std::memory_order_relaxed);
  }
  /// Instead of `unlock`: the thread of that mark is the first and alone, until another one comes; null: whoever is
  /// first by `be_first`. Requires that no other thread was first. No more than `unlock` by who is inside as the first,
  /// or where none is ever alone. The order of its two steps is in no test: there are but two instructions in between.
  void unlock_to(const char* mark) noexcept {
    if (by_first_) return unlock();
    first_.store(mark, std::memory_order_relaxed);
    // The last that is done inside: the first may be there, too, as soon as it sees this.
    alone_.store(free_fence_, std::memory_order_release);
    unlock_held();
  }

 private:
  void unlock_held() noexcept {
    if (free_fence_) [[likely]] {
      held_.store(0, std::memory_order_release);
      light_fence();
    } else {
      held_.exchange(0, std::memory_order_seq_cst);
    }
    if (sleepers_.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      wake();
  }
  [[nodiscard]] bool first_enters() noexcept {
    if (first_.load(std::memory_order_relaxed) != &mark_of_thread) return false;
    first_inside_.store(true, std::memory_order_relaxed);
    light_fence();
    if (alone_.load(std::memory_order_seq_cst)) [[likely]] {
      by_first_ = true;
      return true;
    }
    first_inside_.store(false, std::memory_order_release);
    return false;
  }
  [[nodiscard]] bool take() noexcept { return held_.exchange(1, std::memory_order_acquire) == 0; }
  void meet_first() noexcept;
  void sleep_for_it() noexcept;
  void wake() noexcept;

  static constexpr char gone = 0;  // its address: the first thread, which has ended and may be inside for the last time

  std::atomic<const char*> first_{nullptr};
  std::atomic<bool> first_inside_{false};
  bool by_first_ = false;  // how it is locked now
  const bool free_fence_;
  std::atomic<bool> alone_;
  std::atomic<std::uint32_t> held_{0};  // what sleepers wait for to change
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint32_t> starving_{0};  // of these, who has slept for long
};

}  // namespace gpumem
