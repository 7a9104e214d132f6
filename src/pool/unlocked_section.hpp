// The arena's lock, sections without it for driver calls, and the ticket for taking memory.
//
// All are RAII types, so an exception leaves neither the lock released nor the ticket taken. The arena's lock is held
// when such an object is created and after it ends.
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

/// "The arena's lock is held", for Clang's analysis. No thread holds two arenas' locks, so one capability serves every
/// class that works under such a lock.
class GPUMEM_CAPABILITY arena_role {};
inline constexpr arena_role under_arena_lock{};
#define GPUMEM_UNDER_LOCK GPUMEM_REQUIRES(::gpumem::under_arena_lock)

/// The arena's mutex, with the pool's generation number.
///
/// Any event that may help a waiting request begins a new generation: memory freed, taken or given back, a fence done,
/// a new limit, the end of another thread's driver call. A request that found nothing is refused only if the generation
/// has not changed since it searched.
class arena_mutex : public checked_mutex {
 public:
  /// Requires the lock.
  void begin_generation() noexcept {
    generation_.store(generation_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (waiting_ != 0) changed_.notify_all();
  }
  /// Registers a count that belongs to the thread with the lock: it is 0 while that thread has released the lock, and
  /// has its value again afterwards.
  void keep_for_holder(unsigned& count) noexcept { of_holder_ = &count; }
  /// Any thread.
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 private:
  friend class arena_lock;
  std::atomic<std::uint64_t> generation_{0};
  std::uint32_t waiting_ = 0;  // threads that wait for the next generation; guarded by the lock
  std::condition_variable changed_;
  unsigned nothing_ = 0;
  unsigned* of_holder_ = &nothing_;
};

/// Bounds the total time that one request waits on the host: on the device's clock for fences, on the host's for other
/// threads' driver calls.
class wait_deadline {
 public:
  static constexpr std::uint64_t forever = UINT64_MAX;
  /// Starts now. `most_ns` 0: the request waits for no work; `forever`: no limit.
  wait_deadline(const device& device, std::uint64_t most_ns)
      : device_{device}, most_ns_{most_ns}, begin_ns_{device.clock_ns()}, end_{end_of(most_ns)} {}

  [[nodiscard]] bool waits() const noexcept { return most_ns_ != 0; }
  /// Time left on the device's clock; 0 after the deadline, `forever` without one.
  [[nodiscard]] std::uint64_t left_ns() const noexcept {
    if (most_ns_ == forever) return forever;
    const std::uint64_t waited_ns = device_.clock_ns() - begin_ns_;
    return waited_ns < most_ns_ && host_clock::now() < end_ ? most_ns_ - waited_ns : 0;
  }
  /// The deadline on the host's clock.
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

/// The arena's lock. A function that takes it by reference may release it, so the caller must search again.
class GPUMEM_SCOPED arena_lock : public std::unique_lock<std::mutex> {
 public:
  explicit arena_lock(arena_mutex& mutex) GPUMEM_ACQUIRE(under_arena_lock)
      : std::unique_lock<std::mutex>{mutex}, mutex_{mutex} {}
  ~arena_lock() GPUMEM_RELEASE() {}
  arena_lock& operator=(arena_lock&&) = delete;

  /// Generations that other threads began while this thread had released the lock.
  [[nodiscard]] std::uint64_t changes_by_others() const noexcept { return changes_by_others_; }
  [[nodiscard]] arena_mutex& mutex() noexcept { return mutex_; }

  /// Releases the lock until `done()` holds. Calls `done` with the lock, at first and after each notification of
  /// `changed`. False if it does not hold by `end`.
  template <typename Condition>
  bool wait(std::condition_variable& changed, std::optional<std::chrono::steady_clock::time_point> end,
            const Condition& done) {
    const counted_absence away{*this};
    if (end) return changed.wait_until(*this, *end, done);
    changed.wait(*this, done);
    return true;
  }
  /// Releases the lock until the generation is later than `seen`; false if it is not by `end`.
  bool wait_for_generation(std::uint64_t seen, std::optional<std::chrono::steady_clock::time_point> end) {
    ++mutex_.waiting_;
    const bool changed = wait(mutex_.changed_, end, [&] { return mutex_.generation() != seen; });
    --mutex_.waiting_;
    return changed;
  }

 private:
  friend class unlocked_section;
  /// Counts other threads' generations while it lives, during which the lock is released.
  struct counted_absence {
    explicit counted_absence(arena_lock& given_up) noexcept
        : lock{given_up},
          begin{given_up.mutex_.generation()},
          of_holder{std::exchange(*given_up.mutex_.of_holder_, 0)} {}
    ~counted_absence() {
      lock.changes_by_others_ += lock.mutex_.generation() - begin;
      *lock.mutex_.of_holder_ = of_holder;
    }
    counted_absence& operator=(counted_absence&&) = delete;
    arena_lock& lock;
    const std::uint64_t begin;
    const unsigned of_holder;
  };

  arena_mutex& mutex_;
  std::uint64_t changes_by_others_ = 0;
};

/// Releases the lock while it lives.
class GPUMEM_SCOPED unlocked_section {
 public:
  explicit unlocked_section(arena_lock& lock) noexcept GPUMEM_RELEASE(under_arena_lock) : away_{lock} { lock.unlock(); }
  ~unlocked_section() GPUMEM_RELEASE() { away_.lock.lock(); }
  unlocked_section& operator=(unlocked_section&&) = delete;

 private:
  arena_lock::counted_absence away_;
};

/// Driver calls of one kind, made without the arena's lock, which guards their count. A capture waits for the kinds
/// that would invalidate it.
class blocking_calls {
 public:
  /// Makes the call without the lock and returns its result. Requires that no capture is under way that it would
  /// invalidate.
  template <typename Call>
  auto run_unlocked(arena_lock& lock, const Call& call) GPUMEM_REQUIRES(under_arena_lock) {
    const counted_call counted{*this, lock.mutex()};
    const unlocked_section unlocked{lock};
    return call();
  }
  [[nodiscard]] bool any() const noexcept { return under_way_ != 0; }
  /// Waits until no call is under way; false if some are at `end`. Called after the capture's effect began
  /// (`capture_counts`), so no further call starts.
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
    counted_call& operator=(counted_call&&) = delete;
    blocking_calls& calls;
    arena_mutex& mutex;
  };
  std::uint32_t under_way_ = 0;
  std::condition_variable none_left_;
};

/// Lets threads record fences without the pool's lock, unless a capture forbids it.
class record_gate {
 public:
  /// True if the thread may record, until `leave`.
  [[nodiscard]] bool enter() noexcept {
    under_way_.fetch_add(1, std::memory_order_seq_cst);  // first: `close` or this thread then sees the other
    if (closed_.load(std::memory_order_seq_cst) == 0) return true;
    leave();
    return false;
  }
  void leave() noexcept {
    if (under_way_.fetch_sub(1, std::memory_order_acq_rel) == 1) under_way_.notify_all();
  }
  void close() noexcept { closed_.fetch_add(1, std::memory_order_seq_cst); }
  void open() noexcept { closed_.fetch_sub(1, std::memory_order_release); }
  /// Waits for threads that entered before the gate was closed.
  void wait_for_none() const noexcept {
    for (std::uint32_t n = under_way_.load(std::memory_order_seq_cst); n != 0; n = under_way_.load()) {
      under_way_.wait(n);
    }
  }

 private:
  std::atomic<std::uint32_t> under_way_{0};
  std::atomic<std::uint32_t> closed_{0};
};

/// Lets one thread at a time take memory from the device. The arena's lock guards it.
class growth_gate {
 public:
  [[nodiscard]] bool taken() const noexcept { return taken_; }
  /// Waits until the ticket is free; false if it is not by `end`. A caller that then does not take it calls `pass_on`.
  [[nodiscard]] bool wait(arena_lock& lock, std::optional<std::chrono::steady_clock::time_point> end) {
    const bool free = lock.wait(returned_, end, [this] { return !taken_; });
    if (!free) pass_on();  // the notification may have been for this thread
    return free;
  }
  /// Wakes the next waiting thread. One is enough, because each takes the ticket or passes it on; if all woke, each
  /// would search the pool only to wait again.
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
  growth_ticket& operator=(growth_ticket&&) = delete;

 private:
  growth_gate& gate_;
};

}  // namespace gpumem
