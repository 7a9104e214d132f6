/// Solves a static placement problem: what is quick first, then what is thorough, for as long as it may take.
///
/// 1 gap filling in several orders   2 for a given height, from the large buffers to all: ejection search, and
/// exhaustive search where there are few enough   3 the height halved between what was reached and what is known to be
/// too low. At any moment there is a whole placement; the lower bound rises from the peak load where the exhaustive
/// search proves that some of the buffers need more (height_bound.hpp). The same problem gives the same answer unless
/// the time limit cut it short.
#pragma once

#include <chrono>
#include <cstdint>

#include "problem.hpp"

namespace gpumem::plan {

struct solve_options {
  /// Stop at the first placement that ends at or below this; 0: as low as can be found.
  std::uint64_t capacity = 0;
  std::chrono::milliseconds time_limit{50'000};
  /// With a time limit that is never reached, the same answer on every machine.
  std::uint64_t most_steps = UINT64_MAX;
  /// Without a capacity: how far above the peak load is good enough, as a share of it.
  double tolerance = 0.003;
};

struct solution {
  placement offsets;
  std::uint64_t height = 0;
  load peak;
  std::uint64_t lower_bound = 0;  ///< no placement is lower
  window proof;                   ///< the buffers alive in it prove that
  std::chrono::microseconds took{0};
};

/// `invalid_argument` where `check` says so, `out_of_memory` where the capacity is proven to be too small. Otherwise a
/// placement, which may end above the capacity when the time is up, or where `lower_bound` does: look at `height`.
[[nodiscard]] result<solution> solve(const problem& buffers, const solve_options& with = {});

}  // namespace gpumem::plan
