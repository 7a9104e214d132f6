/// Measures a cached allocate and free of gpumem, the baselines, and the floor of the machine, in turn in one run.
///
/// Google Benchmark measures in rounds. Each round has a repetition of every case, in its own order, with the
/// allocators one after the other, so that a busy moment of the machine affects all alike. Times are of processor and
/// lock, not of a GPU: nothing is enqueued. The figures, the ratios and their texts are plain values and need no Google
/// Benchmark.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "policy_row.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// Many short repetitions, one a round: on a busy machine most of them then fall between two interruptions, and a
/// median of so many is the same in the next run.
inline constexpr int latency_repetitions = 41;
/// Of what takes longer than some milliseconds, in each fourth round: replays, `worst`, pairs that no cache serves, and
/// of a baseline all but its cached pairs on one thread and `driver_part`.
inline constexpr int latency_long_repetitions = 11;

/// Of the case `worst`: single operations, clock readings included.
struct tail_times {
  double p50_us = 0;
  double p99_us = 0;
  double p99_9_us = 0;
  double p99_999_us = 0;
  double max_us = 0;
  /// Of the median time of each operation over the repetitions, which are the same walk.
  double p99_999_of_medians_us = 0;
  double max_of_medians_us = 0;
  std::uint64_t ops = 0;                    ///< timed and in the figures above
  std::optional<std::uint64_t> device_ops;  ///< left out of them, since they called the device; none: not known
  std::uint64_t preemptions = 0;  ///< how often the thread lost its processor meanwhile: each is in the figures
};

/// How long each operation took in each repetition; memory that was written to before, so that no page is missing.
class operation_times {
 public:
  operation_times(std::size_t operations, std::size_t repetitions)
      : operations_{operations}, ns_(operations * repetitions, unknown) {}
  /// What is added next is the first operation's. What exceeds the repetitions or the operations is not kept.
  void begin_repetition() noexcept { next_ = begun_++ * operations_; }
  void add(std::chrono::nanoseconds took) noexcept {
    const auto ns = std::clamp<std::int64_t>(took.count(), 1, UINT32_MAX);
    if (next_ < std::min(ns_.size(), begun_ * operations_)) ns_[next_++] = static_cast<std::uint32_t>(ns);
  }
  void add_unknown() noexcept {
    if (next_ < std::min(ns_.size(), begun_ * operations_)) ++next_;
  }
  /// Of all repetitions, in no order.
  [[nodiscard]] std::vector<std::uint32_t> all() const;
  /// Of each operation over the repetitions that were begun, where all of them have it.
  [[nodiscard]] std::vector<std::uint32_t> medians() const;

 private:
  static constexpr std::uint32_t unknown = 0;
  std::size_t operations_;
  std::size_t begun_ = 0;
  std::size_t next_ = 0;
  std::vector<std::uint32_t> ns_;
};

/// A percentile is the least time that so many of the operations did not exceed.
tail_times tail_of(const operation_times& times, std::optional<std::uint64_t> device_ops);

enum class turn_kind : std::uint8_t {
  pair,       ///< an allocate and a free
  operation,  ///< one of them, in the mean over a replay
  other,      ///< a turn of the floor, or one pair of `worst` with its clock readings
};

/// What a turn took in one round, and of that the simulated device or the double of the driver.
struct round_time {
  double ns = 0;
  double double_share_ns = 0;
};

struct latency_row {
  std::string allocator;  ///< `gpumem/<policy>`, a baseline, or `floor`
  std::string name;       ///< the case: pair_4KiB, live_1e4, handoff, replay_lstm, worst, or one of the floor's
  unsigned threads = 1;
  turn_kind turn = turn_kind::pair;
  bool oom = false;      ///< memory ran out, and there is no time
  double median_ns = 0;  ///< a turn
  double least_ns = 0;
  double most_ns = 0;
  double pairs_per_turn = 1;              ///< of replays the share of the operations that are frees
  std::optional<double> double_share_ns;  ///< of it, what the simulated device or the double of the driver takes
  std::optional<double> least_share_ns;   ///< the same of `least_ns`
  /// Which the ratios are made of. Without a time where a round did not measure it; may be empty, and is not printed.
  std::vector<std::optional<round_time>> rounds{};
  std::optional<tail_times> tail;  ///< of `worst`
};

/// A figure that is compared with a bound. Whether it holds is for the reader: the machine may be busy.
struct latency_ratio {
  std::string name;
  double value = 0;
  std::string bound;                 ///< such as `>= 10`; empty: none, of a row that asks the device
  std::string of;                    ///< the allocator
  std::string from;                  ///< the medians of the figures it is made of
  std::optional<double> of_least{};  ///< the same of the least times, which a busy machine disturbs less
};

/// `unsupported` where this build has no Google Benchmark. Every trace is a case.
result<std::vector<latency_row>> measure_latency(const std::vector<policy_row>& rows, const std::vector<trace>& traces,
                                                 const options& with);

/// For each row of gpumem what there are figures for, in the order of the rows: of two figures that were measured in
/// the same rounds, the median of their ratios (or differences) in each.
std::vector<latency_ratio> latency_ratios(const std::vector<latency_row>& rows);

std::string latency_table(const std::vector<latency_row>& rows, const replay_setup& setup);
std::string latency_json(const std::vector<latency_row>& rows, const replay_setup& setup);

}  // namespace gpumem::bench
