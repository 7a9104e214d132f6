/// Proven lower bounds of a placement's height, above the peak load.
///
/// The proof is an exhaustive search over some of the buffers: if they have no placement, all of them have none. The
/// search leaves out small buffers, or cuts buffers to a window of time; neither can increase the needed height. A
/// buffer that is alive throughout a window may be assumed to lie on the floor: no other buffer ever uses its place, so
/// removing it, dropping the buffers above it, and reinserting it at the bottom gives a placement of the same height.
/// It only adds its size, and the rest is a smaller problem.
#pragma once

#include <cstdint>

#include "problem.hpp"
#include "search_budget.hpp"

namespace gpumem::plan {

/// The proven bound and the best placement so far.
struct height_range {
  std::uint64_t bound = 0;   ///< no placement is lower
  std::uint64_t height = 0;  ///< a placement of this height exists, or a higher bound is not needed
};

struct proven_height {
  std::uint64_t bytes = 0;
  window during;  ///< the buffers alive in it prove the bound; empty if no higher bound was proven
};

/// A bound of at least `known.bound`. A higher `effort` searches longer. Deterministic unless the budget's deadline
/// cuts it short. Requires a checked problem.
[[nodiscard]] proven_height raised_bound(const problem& buffers, height_range known, unsigned effort,
                                         search_budget& budget);

}  // namespace gpumem::plan
