/// The case `worst`: the slowest operations of a random walk, each timed on its own.
///
/// 10,000 blocks of 512 B to 64 KiB are live. Times include two clock readings. If the subject counts device calls,
/// operations that made one are counted and left out, because growth is not a cost of a cached operation. Every
/// repetition runs the same walk; for gpumem on a new allocator. A slow operation is slow in all repetitions, while
/// interruptions hit a different one each time. So an operation's median over the repetitions is the allocator's own
/// time.
#pragma once

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "latency.hpp"
#include "latency_cases.hpp"

namespace gpumem::bench {

inline constexpr std::size_t worst_live = 10'000;
inline constexpr std::size_t worst_sizes = 128;
inline constexpr std::size_t worst_pairs = 200'000;  ///< in a repetition

template <typename subject>
class worst_case {
 public:
  using opener = std::function<result<std::unique_ptr<subject>>()>;

  worst_case(opener opens, std::size_t repetitions) : opens_{std::move(opens)}, times_{2 * worst_pairs, repetitions} {}

  void run(benchmark::State& state) {
    if (subject::opened_anew || subject_ == nullptr) {
      subject_.reset();
      result<std::unique_ptr<subject>> opened = opens_();
      if (!opened) {
        state.SkipWithError(opened.why().message().c_str());
        return;
      }
      subject_ = *std::move(opened);
    }
    live_blocks<subject> blocks{*subject_};
    if (!blocks.fill(worst_live, worst_sizes)) {
      state.SkipWithError("out of memory");
      return;
    }
    const stream_ref s = subject_->stream(0);
    if constexpr (subject::counts_device_calls) calls_ = subject_->device_calls();
    times_.begin_repetition();
    const std::uint64_t preempted = preemptions();
    for (auto iteration : state) {
      static_cast<void>(iteration);
      const std::uint64_t number = blocks.random.next();
      void*& p = blocks.data()[cheap_random::below(number, worst_live)];
      const std::size_t bytes = cheap_random::bytes(number, worst_sizes);
      timed([&] { subject_->release(p, s); });
      timed([&] { p = subject_->allocate(bytes, s); });
      if (p == nullptr) {
        state.SkipWithError("out of memory");
        break;
      }
    }
    preempted_ += preemptions() - preempted;
  }
  /// Call after the last repetition.
  [[nodiscard]] tail_times tail() {
    tail_times times = tail_of(times_, subject::counts_device_calls ? std::optional{device_ops_} : std::nullopt);
    times.preemptions = preempted_;
    return times;
  }

 private:
  /// Involuntary context switches of this thread so far.
  static std::uint64_t preemptions() {
    rusage used{};
    return getrusage(RUSAGE_THREAD, &used) == 0 ? static_cast<std::uint64_t>(used.ru_nivcsw) : 0;
  }
  template <typename Operation>
  void timed(Operation&& operation) {
    using clock = std::chrono::steady_clock;
    const clock::time_point begin = clock::now();
    operation();
    const clock::time_point end = clock::now();
    if constexpr (subject::counts_device_calls) {
      const std::uint64_t calls = subject_->device_calls();
      if (calls != std::exchange(calls_, calls)) {
        ++device_ops_;
        times_.add_unknown();
        return;
      }
    }
    times_.add(std::chrono::nanoseconds{end - begin});
  }

  opener opens_;
  std::unique_ptr<subject> subject_;
  operation_times times_;
  std::uint64_t calls_ = 0;
  std::uint64_t device_ops_ = 0;
  std::uint64_t preempted_ = 0;
};

}  // namespace gpumem::bench
