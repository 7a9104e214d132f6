/// The case `handoff`: one thread allocates and another one frees, as a forward and an autograd thread do.
#pragma once

#include <benchmark/benchmark.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <semaphore>
#include <thread>

#include "bits.hpp"
#include "gpumem/device.hpp"

namespace gpumem::bench {

inline constexpr std::size_t handoff_batch = 4096;  ///< pairs in one turn

/// Keeps the calling thread where it runs while this lives, and names another processor that the process may use: the
/// kernel would leave both threads on one, for a while or for good, and nothing would travel. Where there is but one,
/// nothing is kept.
class own_processor {
 public:
  static constexpr std::size_t any = CPU_SETSIZE;

  own_processor() {
    const int running_on = ::sched_getcpu();
    if (running_on < 0 || ::sched_getaffinity(0, sizeof before_, &before_) != 0 || CPU_COUNT(&before_) < 2) return;
    const auto here = static_cast<std::size_t>(running_on);
    if (!CPU_ISSET(here, &before_)) return;
    other_ = here;
    do {
      other_ = (other_ + 1) % CPU_SETSIZE;
    } while (!CPU_ISSET(other_, &before_));
    move_to(here);
  }
  ~own_processor() {
    if (other_ != any) ::sched_setaffinity(0, sizeof before_, &before_);
  }
  own_processor(const own_processor&) = delete;
  own_processor& operator=(const own_processor&) = delete;
  [[nodiscard]] std::size_t other() const { return other_; }
  /// The calling thread, from here on.
  static void move_to(std::size_t processor) {
    if (processor == any) return;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(processor, &only);
    ::sched_setaffinity(0, sizeof only, &only);
  }

 private:
  cpu_set_t before_{};
  std::size_t other_ = any;
};

/// One producer and one consumer: plain stores, published and taken in chunks.
class pointer_ring {
 public:
  static constexpr std::size_t chunk = 64;

  /// Waits while the ring is full. What was put is seen by the other thread after a whole chunk.
  void put(void* p) {
    slots_[put_ % slots_.size()] = p;
    if (++put_ % chunk == 0) publish();
  }
  /// Whatever was put and not taken, one after the other; false: nothing was there.
  template <typename Take>
  bool take(Take&& each) {
    const std::size_t end = published_.load(std::memory_order_acquire);
    if (taken_here_ == end) return false;
    while (taken_here_ != end) {
      // Read at once: a free's atomic operation would keep the processor from fetching what comes behind it.
      std::array<void*, chunk> here;
      const std::size_t some = std::min(chunk, end - taken_here_);
      for (std::size_t i = 0; i < some; ++i) here[i] = slots_[(taken_here_ + i) % slots_.size()];
      for (std::size_t i = 0; i < some; ++i) each(here[i]);
      taken_here_ += some;
      taken_.store(taken_here_, std::memory_order_release);
    }
    return true;
  }
  /// All that was put is seen, and taken when this returns.
  void drain() {
    published_.store(put_, std::memory_order_release);
    while (taken_.load(std::memory_order_acquire) != put_) std::this_thread::yield();
  }

 private:
  void publish() {
    published_.store(put_, std::memory_order_release);
    while (put_ + chunk - taken_.load(std::memory_order_acquire) > slots_.size()) std::this_thread::yield();
  }

  std::array<void*, 1024> slots_{};
  alignas(64) std::size_t put_ = 0;  ///< the producer's
  alignas(64) std::atomic<std::size_t> published_ = 0;
  alignas(64) std::size_t taken_here_ = 0;  ///< the consumer's
  alignas(64) std::atomic<std::size_t> taken_ = 0;
};

/// One allocator, and the thread that frees: it lives as long as this does, like those of a program, and sleeps while
/// nothing is measured here.
template <typename subject>
class handed_over {
 public:
  explicit handed_over(subject& of) : of_{&of} {}
  ~handed_over() {
    if (!other_.joinable()) return;
    ends_ = true;
    begin_.release();
    other_.join();
  }
  handed_over(const handed_over&) = delete;
  handed_over& operator=(const handed_over&) = delete;

  /// From here on the thread that frees is there, and has used the allocator: what else is measured of that one in the
  /// same run is then not of a thread that is alone in some rounds and not in others.
  void begin() {
    other_ = std::thread{[this] { free_what_comes(); }};
    paused_.acquire();
  }
  /// Requires `begin`. A turn is a batch of pairs. A batch comes first that is not measured: it wakes the other thread.
  void run(benchmark::State& state) {
    const own_processor here;
    processor_.store(here.other(), std::memory_order_relaxed);
    pauses_.store(false, std::memory_order_relaxed);
    begin_.release();
    bool enough = batch();
    for (auto turn : state) {
      static_cast<void>(turn);
      enough = enough && batch();
      if (enough) continue;
      state.SkipWithError("out of memory");
      break;
    }
    pauses_.store(true, std::memory_order_release);
    paused_.acquire();
  }

 private:
  bool batch() {
    const stream_ref s = of_->stream(0);
    bool enough = true;
    for (std::size_t i = 0; i < handoff_batch && enough; ++i) {
      void* const p = of_->allocate(4 * kib, s);
      enough = p != nullptr;
      if (enough) ring_.put(p);
    }
    ring_.drain();
    return enough;
  }
  void free_what_comes() {
    of_->enter_thread();
    const stream_ref s = of_->stream(0);
    if (void* const p = of_->allocate(4 * kib, s)) of_->release(p, s);
    paused_.release();
    for (;;) {
      begin_.acquire();
      if (ends_) return;
      own_processor::move_to(processor_.load(std::memory_order_relaxed));
      for (;;) {
        const bool last = pauses_.load(std::memory_order_acquire);
        if (ring_.take([&](void* p) { of_->release(p, s); })) continue;
        if (last) break;
        std::this_thread::yield();
      }
      paused_.release();
    }
  }

  subject* of_;
  pointer_ring ring_;
  std::atomic<bool> pauses_{false};
  std::atomic<bool> ends_{false};
  std::atomic<std::size_t> processor_{own_processor::any};  ///< of the thread that frees
  std::binary_semaphore begin_{0};
  std::binary_semaphore paused_{0};
  std::thread other_;
};

}  // namespace gpumem::bench
