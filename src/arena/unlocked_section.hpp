// The lock of an arena, the lock given up for a driver call, and the one ticket to take memory.
//
// All of them end with their scope, on whatever way out of it, so that nothing that throws leaves the lock open or a
// ticket taken. `lock` is held when one is made, and when it has ended.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "checked_mutex.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

/// "The arena's lock is held", for Clang's analysis. No thread holds the locks of two arenas, so one name serves every
/// class that works under such a lock.
class GPUMEM_CAPABILITY arena_role {};
inline constexpr arena_role under_arena_lock{};
#define GPUMEM_UNDER_LOCK GPUMEM_REQUIRES(::gpumem::under_arena_lock)

/// The arena's mutex, with the number of the pool's generation.
///
/// Whatever a waiting request may profit from begins a new generation: memory that became free or went back to the
/// device, new memory, a fence that is done, another limit, a driver call of another thread that has ended. A request
/// that found nothing is refused only if the generation is still the one in which it looked.
class arena_mutex : public checked_mutex {
 public:
  /// Requires the lock.
  void begin_generation() noexcept {
    generation_.store(generation_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (waiting_ != 0) changed_.notify_all();
  }
  /// A count that is of the thread with the lock only: 0 for others while that thread has given the lock up.
  void keep_for_holder(unsigned& count) noexcept { of_holder_ = &count; }
  /// Any thread.
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 private:
  friend class arena_lock;
  std::atomic<std::uint64_t> generation_{0};
  std::uint32_t waiting_ = 0;  // threads that wait for the next generation; the lock guards it
  std::condition_variable changed_;
  unsigned nothing_ = 0;
  unsigned* of_holder_ = &nothing_;
};

/// The longest that one request waits on the host in all: for fences on the device's clock, for other threads' driver
/// calls on the host's.
class wait_deadline {
 public:
  static constexpr std::uint64_t forever = UINT64_MAX;
  /// `most_ns` from now on; 0: the request waits for no work, `forever`: as long as it takes.
  wait_deadline(const device& device, std::uint64_t most_ns)
      : device_{device}, most_ns_{most_ns}, begin_ns_{device.clock_ns()}, end_{end_of(most_ns)} {}

  [[nodiscard]] bool waits() const noexcept { return most_ns_ != 0; }
  /// On the device's clock; 0 once the time is over, `forever` without a limit.
  [[nodiscard]] std::uint64_t left_ns() const noexcept {
    if (most_ns_ == forever) return forever;
    const std::uint64_t waited_ns = device_.clock_ns() - begin_ns_;
    return waited_ns < most_ns_ && host_clock::now() < end_ ? most_ns_ - waited_ns : 0;
  }
  /// On the host's clock.
  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> end() const noexcept {
    return most_ns_ == forever ? std::nullopt : std::optional{end_};
  }

 private:
  using host_clock = std::chrono::steady_clock;
  static host_clock::time_point end_of(std::uint64_t most_ns) noexcept {
    constexpr std::chrono::nanoseconds longest = std::chrono::hours{24 * 365};
    const auto most = static_cast<std::uint64_t>(longest.count());
    return host_clock::now() + std::chrono::nanoseconds{std::min(most_ns, most)};
  }

  const device& device_;
  const std::uint64_t most_ns_;
  const std::uint64_t begin_ns_;
  const host_clock::time_point end_;
};

/// The arena's lock. A function that takes it by reference may give it up on the way: what was found before is to be
/// found again.
class GPUMEM_SCOPED arena_lock : public std::unique_lock<std::mutex> {
 public:
  explicit arena_lock(arena_mutex& mutex) GPUMEM_ACQUIRE(under_arena_lock)
      : std::unique_lock<std::mutex>{mutex}, mutex_{mutex} {}
  ~arena_lock() GPUMEM_RELEASE() {}
  arena_lock(const arena_lock&) = delete;
  arena_lock& operator=(const arena_lock&) = delete;

  /// Generations that other threads began while this one had given the lock up.
  [[nodiscard]] std::uint64_t changes_by_others() const noexcept { return changes_by_others_; }
  [[nodiscard]] arena_mutex& mutex() noexcept { return mutex_; }

  /// Gives the lock up until `done()` holds, which is asked with the lock and after each notification of `changed`.
  /// False where that is not so by `end`.
  template <typename Condition>
  bool wait(std::condition_variable& changed, std::optional<std::chrono::steady_clock::time_point> end,
            const Condition& done) {
    const counted_absence away{*this};
    if (end) return changed.wait_until(*this, *end, done);
    changed.wait(*this, done);
    return true;
  }
  /// Gives the lock up until there is a later generation than `seen`; false where there is none by `end`.
  bool wait_for_generation(std::uint64_t seen, std::optional<std::chrono::steady_clock::time_point> end) {
    ++mutex_.waiting_;
    const bool changed = wait(mutex_.changed_, end, [&] { return mutex_.generation() != seen; });
    --mutex_.waiting_;
    return changed;
  }

 private:
  friend class unlocked_section;
  /// Adds up what other threads do while it lives, during which the lock is given up.
  struct counted_absence {
    explicit counted_absence(arena_lock& given_up) noexcept
        : lock{given_up},
          begin{given_up.mutex_.generation()},
          of_holder{std::exchange(*given_up.mutex_.of_holder_, 0)} {}
    ~counted_absence() {
      lock.changes_by_others_ += lock.mutex_.generation() - begin;
      *lock.mutex_.of_holder_ = of_holder;
    }
    counted_absence(const counted_absence&) = delete;
    counted_absence& operator=(const counted_absence&) = delete;
    arena_lock& lock;
    const std::uint64_t begin;
    const unsigned of_holder;
  };

  arena_mutex& mutex_;
  std::uint64_t changes_by_others_ = 0;
};

/// The lock is free while this lives.
class GPUMEM_SCOPED unlocked_section {
 public:
  explicit unlocked_section(arena_lock& lock) noexcept GPUMEM_RELEASE(under_arena_lock) : away_{lock} { lock.unlock(); }
  ~unlocked_section() GPUMEM_RELEASE() { away_.lock.lock(); }
  unlocked_section(const unlocked_section&) = delete;
  unlocked_section& operator=(const unlocked_section&) = delete;

 private:
  arena_lock::counted_absence away_;
};

/// Driver calls of one kind, made without the arena's lock, which guards their number. No capture survives them.
class blocking_calls {
 public:
  /// What `call` returns. Requires that no capture is under way that it would invalidate.
  template <typename Call>
  auto run_unlocked(arena_lock& lock, const Call& call) GPUMEM_REQUIRES(under_arena_lock) {
    const counted_call counted{*this, lock.mutex()};
    const unlocked_section unlocked{lock};
    return call();
  }
  [[nodiscard]] bool any() const noexcept { return under_way_ != 0; }
  /// Waits until all of them have ended; false where they have not by `end`. A capture calls this once it has begun,
  /// which keeps further calls away.
  bool wait_for_none(arena_lock& lock, std::optional<std::chrono::steady_clock::time_point> end = std::nullopt) {
    return lock.wait(none_left_, end, [this] { return under_way_ == 0; });
  }

 private:
  struct counted_call {
    counted_call(blocking_calls& kind, arena_mutex& guard) noexcept : calls{kind}, mutex{guard} { ++calls.under_way_; }
    ~counted_call() {
      if (--calls.under_way_ == 0) calls.none_left_.notify_all();
      mutex.begin_generation();
    }
    counted_call(const counted_call&) = delete;
    counted_call& operator=(const counted_call&) = delete;
    blocking_calls& calls;
    arena_mutex& mutex;
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

/// Who may take memory from the device: one thread at a time, in the order in which they came. The arena's lock guards
/// it.
class growth_gate {
 public:
  [[nodiscard]] bool taken() const noexcept { return taken_; }
  /// Waits until the ticket is there to be taken; false where it is not by `end`. Whoever does not take it afterwards
  /// calls `pass_on`.
  [[nodiscard]] bool wait(arena_lock& lock, std::optional<std::chrono::steady_clock::time_point> end) {
    const bool free = lock.wait(returned_, end, [this] { return !taken_; });
    if (!free) pass_on();  // the notification may have been for this thread
    return free;
  }
  /// Wakes the next thread that waits. One is enough, since each of them takes the ticket or passes it on: with all of
  /// them awake, each would look through the pool only to wait again.
  void pass_on() noexcept { returned_.notify_one(); }

 private:
  friend class growth_ticket;
  bool taken_ = false;
  std::condition_variable returned_;
};

/// The right to take memory. Requires that the gate is free.
class growth_ticket {
 public:
  explicit growth_ticket(growth_gate& gate) noexcept : gate_{gate} { gate_.taken_ = true; }
  ~growth_ticket() {
    gate_.taken_ = false;
    gate_.pass_on();
  }
  growth_ticket(const growth_ticket&) = delete;
  growth_ticket& operator=(const growth_ticket&) = delete;

 private:
  growth_gate& gate_;
};

}  // namespace gpumem
