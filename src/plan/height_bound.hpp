/// How high a placement has to be at least: by proof, above the peak load.
///
/// Exhaustive search for a placement of some of the buffers: where those find none, all do not. Buffers are left out
/// that are small, or cut to a window of time, outside of which less is alive; neither needs more room for it. What is
/// alive all through a window may be taken to lie on the floor: nothing ever lies in its place, so it can be taken out,
/// what is above let fall, and put below the rest. It only adds its size, and the rest is a smaller problem.
#pragma once

#include <cstdint>

#include "problem.hpp"
#include "search_budget.hpp"

namespace gpumem::plan {

/// What is proven already, and how far a proof could lead.
struct height_range {
  std::uint64_t bound = 0;   ///< no placement is lower
  std::uint64_t height = 0;  ///< there is one as low as this, or no more is asked
};

struct proven_height {
  std::uint64_t bytes = 0;
  window during;  ///< the buffers alive in it are the proof; empty where nothing was proven beyond what was known
};

/// `known.bound`, or more. Searches longer with each `effort`; the same call gives the same answer unless the budget's
/// deadline cuts it short. Requires a checked problem.
[[nodiscard]] proven_height raised_bound(const problem& buffers, height_range known, unsigned effort,
                                         search_budget& budget);

}  // namespace gpumem::plan
