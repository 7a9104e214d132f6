// A simulated program that only reads values and takes no more memory: a training whose figures are complete, or a loop
// that waits for a value which never comes, since nothing is computed.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "simulated_run.hpp"

namespace gpumem::cli {

class quiescence_detector {
 public:
  using clock = std::chrono::steady_clock;
  /// Reads of values without which a program is only slow.
  static constexpr std::uint64_t least_reads = 1000;

  /// `longest_s`: how long the figures may stay the same; 0: for ever.
  explicit quiescence_detector(double longest_s) : longest_s_{longest_s}, since_{clock::now()} {}
  /// Looks at the records. True: the figures are as they were for that long, and values were read all the while.
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
