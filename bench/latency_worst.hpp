/// The case `worst`: how long the slowest operations of a random walk take, each of them timed by itself.
///
/// 10,000 blocks of 512 B to 64 KiB live. Times include two readings of the clock. An operation that called the device
/// is counted and left out where that is known: growing is not what a cached operation costs.
#pragma once

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <chrono>
#include <optional>
#include <vector>

#include "latency.hpp"
#include "latency_cases.hpp"

namespace gpumem::bench {

inline constexpr std::size_t worst_live = 10'000;
inline constexpr std::size_t worst_sizes = 128;
inline constexpr std::size_t worst_pairs = 200'000;  ///< in a repetition

template <typename subject>
class worst_case {
 public:
  worst_case(subject& of, int repetitions)
      : blocks_{of}, ns_(2 * worst_pairs * static_cast<std::size_t>(repetitions)) {}

  void run(benchmark::State& state) {
    if (!blocks_.fill(worst_live, worst_sizes)) {
      state.SkipWithError("out of memory");
      return;
    }
    subject& of = blocks_.of();
    const stream_ref s = of.stream(0);
    if constexpr (subject::counts_device_calls) calls_ = of.device_calls();
    const std::uint64_t preempted = preemptions();
    for (auto turn : state) {
      static_cast<void>(turn);
      const std::uint64_t number = blocks_.random.next();
      void*& p = blocks_.data()[cheap_random::below(number, worst_live)];
      const std::size_t bytes = cheap_random::bytes(number, worst_sizes);
      timed([&] { of.release(p, s); });
      timed([&] { p = of.allocate(bytes, s); });
      if (p == nullptr) {
        state.SkipWithError("out of memory");
        break;
      }
    }
    preempted_ += preemptions() - preempted;
  }
  /// Once, after the last repetition.
  [[nodiscard]] tail_times tail() {
    ns_.resize(used_);
    tail_times out = tail_of(ns_, subject::counts_device_calls ? std::optional{device_ops_} : std::nullopt);
    out.preemptions = preempted_;
    return out;
  }

 private:
  /// Of this thread, so far.
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
      const std::uint64_t calls = blocks_.of().device_calls();
      if (calls != std::exchange(calls_, calls)) {
        ++device_ops_;
        return;
      }
    }
    if (used_ == ns_.size()) return;
    const auto ns = std::chrono::nanoseconds{end - begin}.count();
    ns_[used_++] = static_cast<std::uint32_t>(std::min<std::int64_t>(ns, UINT32_MAX));
  }

  live_blocks<subject> blocks_;
  std::vector<std::uint32_t> ns_;  ///< written once before it is used, so that no page is missing
  std::size_t used_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t device_ops_ = 0;
  std::uint64_t preempted_ = 0;
};

}  // namespace gpumem::bench
