/// Measures cached allocate and free of gpumem, the baselines, and the floor of the machine in one run.
///
/// Google Benchmark runs in rounds. Each round has one repetition of every case in shuffled order, with the allocators
/// one after the other, so that a busy moment of the machine affects all of them alike. Times are CPU time and locks,
/// not GPU time: no work is enqueued. The figures, ratios and their texts need no Google Benchmark.
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

/// Many short repetitions, one a round: most fall between two interruptions even on a busy machine, which makes the
/// median reproducible.
inline constexpr int latency_repetitions = 41;
/// Repetitions of the longer cases, run in each fourth round: replays, `worst`, uncached pairs, and of a baseline every
/// case except its cached pairs on one thread and `driver_part`.
inline constexpr int latency_long_repetitions = 11;

/// The case `worst`: times of single operations, including the clock readings.
struct tail_times {
  double p50_us = 0;
  double p99_us = 0;
  double p99_9_us = 0;
  double p99_999_us = 0;
  double max_us = 0;
  /// Percentiles of each operation's median over the repetitions. All repetitions run the same walk.
  double p99_999_of_medians_us = 0;
  double max_of_medians_us = 0;
  std::uint64_t ops = 0;                    ///< number of operations in the figures above
  std::optional<std::uint64_t> device_ops;  ///< operations left out because they called the device; empty: unknown
  std::uint64_t preemptions = 0;            ///< involuntary context switches during the walk; the figures include them
};

/// The time of each operation in each repetition. The memory is touched at construction, so that adding causes no page
/// fault.
class operation_times {
 public:
  operation_times(std::size_t operations, std::size_t repetitions)
      : operations_{operations}, ns_(operations * repetitions, unknown) {}
  /// The next `add` belongs to the first operation. Drops operations and repetitions beyond the constructor's numbers.
  void begin_repetition() noexcept { next_ = begun_++ * operations_; }
  void add(std::chrono::nanoseconds took) noexcept {
    const auto ns = std::clamp<std::int64_t>(took.count(), 1, UINT32_MAX);
    if (next_ < std::min(ns_.size(), begun_ * operations_)) ns_[next_++] = static_cast<std::uint32_t>(ns);
  }
  void add_unknown() noexcept {
    if (next_ < std::min(ns_.size(), begun_ * operations_)) ++next_;
  }
  /// The times of all repetitions, in no order.
  [[nodiscard]] std::vector<std::uint32_t> all() const;
  /// Each operation's median over the repetitions begun, without operations that miss a time.
  [[nodiscard]] std::vector<std::uint32_t> medians() const;

 private:
  static constexpr std::uint32_t unknown = 0;
  std::size_t operations_;
  std::size_t begun_ = 0;
  std::size_t next_ = 0;
  std::vector<std::uint32_t> ns_;
};

/// A percentile is the least time that this share of the operations did not exceed.
tail_times tail_of(const operation_times& times, std::optional<std::uint64_t> device_ops);

enum class iteration_kind : std::uint8_t {
  pair,       ///< an allocate and a free
  operation,  ///< an allocate or a free, as the mean over a replay
  other,      ///< an iteration of the floor, or one pair of `worst` with its clock readings
};

/// The time of an iteration in one round, and the part of it spent in the simulated device or the simulated driver.
struct round_time {
  double ns = 0;
  double simulated_share_ns = 0;
};

struct latency_row {
  std::string allocator;  ///< `gpumem/<policy>`, a baseline, or `floor`
  std::string name;       ///< pair_4KiB, live_1e4, handoff, replay_lstm, worst, or one of the floor's cases
  unsigned threads = 1;
  iteration_kind iteration = iteration_kind::pair;
  bool oom = false;      ///< out of memory; the times are 0
  double median_ns = 0;  ///< time of an iteration; so are the next two
  double least_ns = 0;
  double most_ns = 0;
  double pairs_per_iteration = 1;  ///< in replays: the share of operations that are frees
  std::optional<double>
      simulated_share_ns;                ///< part of `median_ns` spent in the simulated device or the simulated driver
  std::optional<double> least_share_ns;  ///< the same part of `least_ns`
  /// Basis of the ratios; not printed. Empty entries are rounds that did not measure the row. May be empty.
  std::vector<std::optional<round_time>> rounds{};
  std::optional<tail_times> tail;  ///< only for `worst`
};

/// A figure with a bound. Not enforced, because the machine may be busy.
struct latency_ratio {
  std::string name;
  double value = 0;
  std::string bound;                 ///< such as `>= 10`; empty: none
  std::string allocator;             ///< the row's allocator
  std::string medians;               ///< the medians from which it is computed
  std::optional<double> of_least{};  ///< the ratio of the least times, which load on the machine affects less
  /// Ratio to CUB of the allocators' own code: the times less the simulated part. Has no bound.
  std::optional<double> own_code{};
};

/// Every trace is a case. `unsupported` if this build has no Google Benchmark.
result<std::vector<latency_row>> measure_latency(const std::vector<policy_row>& rows, const std::vector<trace>& traces,
                                                 const options& options);

/// The ratios of each gpumem row, in the order of the rows. A ratio is the median of the ratios (or differences) of two
/// figures measured in the same rounds.
std::vector<latency_ratio> latency_ratios(const std::vector<latency_row>& rows);

std::string latency_table(const std::vector<latency_row>& rows, const replay_setup& setup);
std::string latency_json(const std::vector<latency_row>& rows, const replay_setup& setup);

}  // namespace gpumem::bench
