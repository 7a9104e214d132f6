// Detects a simulated program that only reads values and takes no more memory: a training run whose figures are
// complete, or a loop that waits for a value that is never computed.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "simulated_run.hpp"

namespace gpumem::cli {

class quiescence_detector {
 public:
  using clock = std::chrono::steady_clock;
  /// A program that reads fewer values than this meanwhile is slow, not settled.
  static constexpr std::uint64_t least_reads = 1000;

  /// `longest_s` is how long the figures may stay the same; 0: no limit.
  explicit quiescence_detector(double longest_s) : longest_s_{longest_s}, since_{clock::now()} {}
  /// True if the figures have not changed for `longest_s` and at least `least_reads` values were read meanwhile.
  bool look(const std::vector<simulated_process>& processes, clock::time_point moment = clock::now());
  [[nodiscard]] std::uint64_t reads() const noexcept { return reads_ - reads_before_; }

 private:
  double longest_s_;
  clock::time_point since_;
  std::uint64_t figures_ = 0;
  std::uint64_t reads_ = 0;
  std::uint64_t reads_before_ = 0;  ///< at `since_`
};

}  // namespace gpumem::cli
