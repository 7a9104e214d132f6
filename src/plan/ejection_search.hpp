/// Local search below a given capacity: a buffer that fits nowhere takes the place where it throws out least, and what
/// it threw out is placed anew.
///
/// Each time a buffer had to throw others out, its weight grows, so that those that are hard to place end up staying
/// where they are (the weights of constraint solvers; the loop is an ejection chain). For some thousand buffers: it
/// remembers all pairs that are alive together. Deterministic but for the budget's deadline. Not synchronised.
#pragma once

#include <cstdint>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "problem.hpp"
#include "search_budget.hpp"
#include "sections.hpp"

namespace gpumem::plan {

/// What a buffer weighs at first, and the number that starts the lots by which equally good places are drawn.
struct ejection_rule {
  bool weigh_by_size = true;
  std::uint64_t lot = 0;
};

class ejection_search {
 public:
  /// Requires a checked problem; keeps a reference to it.
  ejection_search(const problem& buffers, const sections& cut);

  /// How many pairs there would be to remember: 4 bytes each, twice.
  [[nodiscard]] static std::uint64_t pairs(const problem& buffers, const sections& cut);

  /// True where every buffer found a place that ends at or below `capacity` within `most_steps`. Buffers with a lower
  /// `rank` (by buffer) are placed first.
  bool run(std::uint64_t capacity, const std::vector<std::uint32_t>& rank, ejection_rule by, std::uint64_t most_steps,
           search_budget& budget);

  /// After a `run` that was true.
  [[nodiscard]] const placement& offsets() const noexcept { return at_; }

 private:
  struct spot {
    std::uint64_t at = 0;
    bool free = false;
  };
  using weighed = std::pair<std::uint64_t, double>;

  void look_around(std::uint32_t i, std::uint64_t capacity);
  [[nodiscard]] spot cheapest(const buffer& which);

  const problem& buffers_;
  std::vector<std::vector<std::uint32_t>> neighbours_;
  placement at_;
  std::vector<char> placed_;
  std::vector<double> weight_;
  std::vector<weighed> begins_;  ///< of the placed neighbours of the buffer in hand
  std::vector<weighed> ends_;
  std::vector<std::uint64_t> spots_;  ///< where it could go: against a neighbour, the floor or the ceiling
  std::mt19937_64 lot_;
};

}  // namespace gpumem::plan
