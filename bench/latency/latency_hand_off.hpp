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

inline constexpr std::size_t handoff_batch = 4096;  ///< pairs in one iteration

/// Pins the calling thread to its processor during its lifetime, and names another processor for the second thread. On
/// one processor no block would move between processors. Does nothing if the process may use only one.
class own_processor {
 public:
  static constexpr std::size_t any = CPU_SETSIZE;

  own_processor() {
    const int running_on = ::sched_getcpu();
    if (running_on < 0 || ::sched_getaffinity(0, sizeof before_, &before_) != 0 || CPU_COUNT(&before_) < 2) return;
    const auto processor = static_cast<std::size_t>(running_on);
    if (!CPU_ISSET(processor, &before_)) return;
    other_processor_ = processor;
    do {
      other_processor_ = (other_processor_ + 1) % CPU_SETSIZE;
    } while (!CPU_ISSET(other_processor_, &before_));
    move_to(processor);
  }
  ~own_processor() {
    if (other_processor_ != any) ::sched_setaffinity(0, sizeof before_, &before_);
  }
  own_processor& operator=(own_processor&&) = delete;
  [[nodiscard]] std::size_t other() const { return other_processor_; }
  /// Pins the calling thread to `processor`.
  static void move_to(std::size_t processor) {
    if (processor == any) return;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(processor, &only);
    ::sched_setaffinity(0, sizeof only, &only);
  }

 private:
  cpu_set_t before_{};
  std::size_t other_processor_ = any;
};

/// A ring for one producer and one consumer: plain stores, published and consumed in chunks.
class pointer_ring {
 public:
  static constexpr std::size_t chunk = 64;

  /// Waits while the ring is full. The consumer sees the pointers after a whole chunk.
  void put(void* block) {
    slots_[put_ % slots_.size()] = block;
    if (++put_ % chunk == 0) publish();
  }
  /// Passes every published pointer to `each`. False if there was none.
  template <typename Take>
  bool take(Take&& each) {
    const std::size_t end = published_.load(std::memory_order_acquire);
    if (taken_here_ == end) return false;
    while (taken_here_ != end) {
      // Loads a chunk first: the atomic operation of a free would stop the processor from fetching the next pointers.
      std::array<void*, chunk> taken;
      const std::size_t some = std::min(chunk, end - taken_here_);
      for (std::size_t i = 0; i < some; ++i) taken[i] = slots_[(taken_here_ + i) % slots_.size()];
      for (std::size_t i = 0; i < some; ++i) each(taken[i]);
      taken_here_ += some;
      taken_.store(taken_here_, std::memory_order_release);
    }
    return true;
  }
  /// Publishes everything and waits until the consumer has taken it.
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
  alignas(64) std::size_t put_ = 0;  ///< used by the producer
  alignas(64) std::atomic<std::size_t> published_ = 0;
  alignas(64) std::size_t taken_here_ = 0;  ///< used by the consumer
  alignas(64) std::atomic<std::size_t> taken_ = 0;
};

/// One allocator and its freeing thread. The thread exists as long as this object and sleeps between measurements.
template <typename subject>
class handed_over {
 public:
  explicit handed_over(subject& measured) : subject_{&measured} {}
  ~handed_over() {
    if (!consumer_.joinable()) return;
    ends_ = true;
    begin_.release();
    consumer_.join();
  }
  handed_over& operator=(handed_over&&) = delete;

  /// Starts the freeing thread and makes it use the allocator once, so that the allocator serves two threads in all
  /// rounds and in all other cases of the run.
  void begin() {
    consumer_ = std::thread{[this] { free_published(); }};
    paused_.acquire();
  }
  /// An iteration is a batch of pairs. A first batch wakes the other thread and is not measured. Requires `begin`.
  void run(benchmark::State& state) {
    const own_processor pinned;
    processor_.store(pinned.other(), std::memory_order_relaxed);
    pauses_.store(false, std::memory_order_relaxed);
    begin_.release();
    bool enough = batch();
    for (auto iteration : state) {
      static_cast<void>(iteration);
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
    const stream_ref s = subject_->stream(0);
    bool enough = true;
    for (std::size_t i = 0; i < handoff_batch && enough; ++i) {
      void* const p = subject_->allocate(4 * kib, s);
      enough = p != nullptr;
      if (enough) ring_.put(p);
    }
    ring_.drain();
    return enough;
  }
  void free_published() {
    subject_->enter_thread();
    const stream_ref s = subject_->stream(0);
    if (void* const p = subject_->allocate(4 * kib, s)) subject_->release(p, s);
    paused_.release();
    for (;;) {
      begin_.acquire();
      if (ends_) return;
      own_processor::move_to(processor_.load(std::memory_order_relaxed));
      for (;;) {
        const bool last = pauses_.load(std::memory_order_acquire);
        if (ring_.take([&](void* block) { subject_->release(block, s); })) continue;
        if (last) break;
        std::this_thread::yield();
      }
      paused_.release();
    }
  }

  subject* subject_;
  pointer_ring ring_;
  std::atomic<bool> pauses_{false};
  std::atomic<bool> ends_{false};
  std::atomic<std::size_t> processor_{own_processor::any};  ///< where the freeing thread runs
  std::binary_semaphore begin_{0};
  std::binary_semaphore paused_{0};
  std::thread consumer_;
};

}  // namespace gpumem::bench
