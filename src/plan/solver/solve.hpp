/// Solves a static placement problem: quick methods first, then thorough ones, within a budget.
///
/// 1. Gap filling in several orders.
/// 2. For a target height, from the large buffers to all: ejection search, and exhaustive search for few buffers.
/// 3. Bisection of the target between the best height and the highest bound.
///
/// A complete placement exists at any moment. The lower bound starts at the peak load and rises when the exhaustive
/// search proves that some buffers need more (height_bound.hpp). Deterministic unless the time limit cuts it short.
#pragma once

#include <chrono>
#include <cstdint>

#include "problem.hpp"

namespace gpumem::plan {

struct solve_options {
  /// Stops at the first placement within this capacity; 0: searches for the lowest one.
  std::uint64_t capacity = 0;
  std::chrono::milliseconds time_limit{50'000};
  /// If the time limit is never reached, the answer is the same on every machine.
  std::uint64_t most_steps = UINT64_MAX;
  /// Without a capacity: the accepted distance above the peak load, as a share of it.
  double tolerance = 0.003;
};

struct solution {
  placement offsets;
  std::uint64_t height = 0;
  load peak;
  std::uint64_t lower_bound = 0;  ///< no placement is lower
  window proof;                   ///< the buffers alive in it prove the bound
  std::chrono::microseconds took{0};
};

/// `invalid_argument` if `check` refuses, `out_of_memory` if the capacity is proven too small. Otherwise a placement,
/// which may exceed the capacity if the time is up or `lower_bound` exceeds it: compare `height`.
[[nodiscard]] result<solution> solve(const problem& buffers, const solve_options& options = {});

}  // namespace gpumem::plan
