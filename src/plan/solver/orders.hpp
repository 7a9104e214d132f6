/// Orders in which solvers place buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"
#include "sections.hpp"

namespace gpumem::plan {

enum class order_by : std::uint8_t {
  peak_then_lifetime,  ///< the highest load during a buffer's lifetime, then lifetime
  size,
  peak_then_size,
  area,  ///< size times lifetime
  lifetime,
  peak_then_area,
  failures,           ///< failures of a search in the buffer's sections
  summed_failures,    ///< the same, summed over the lifetime
  failures_and_size,  ///< summed failures times size
};
inline constexpr int order_count = 9;
/// The orders that need no failures come first.
inline constexpr int plain_order_count = 6;

/// Buffers by descending key; equal ones stay in order. `failures` by section may be empty.
[[nodiscard]] std::vector<std::uint32_t> ordered(const problem& buffers, const sections& cut, order_by criterion,
                                                 const std::vector<double>& failures = {});

/// The position of each buffer in an order.
[[nodiscard]] std::vector<std::uint32_t> rank_of(const std::vector<std::uint32_t>& order);

}  // namespace gpumem::plan
