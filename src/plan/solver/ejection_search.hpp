/// Local search for a placement within a capacity: a buffer that fits nowhere ejects the cheapest set of placed
/// buffers, which are then placed again.
///
/// Each ejection increases the weight of the ejecting buffer, so that buffers that are hard to place end up staying (an
/// ejection chain with the weights of constraint solvers). For some thousand buffers, because it stores all pairs that
/// are alive together. Deterministic except for the budget's deadline. Not synchronised.
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

/// A buffer's initial weight, and the seed for random choices among equally good places.
struct ejection_rule {
  bool weigh_by_size = true;
  std::uint64_t lot = 0;
};

class ejection_search {
 public:
  /// Requires a checked problem; keeps a reference to it.
  ejection_search(const problem& buffers, const sections& cut);

  /// The number of pairs to store; each takes 2 x 4 bytes.
  [[nodiscard]] static std::uint64_t pairs(const problem& buffers, const sections& cut);

  /// True if every buffer was placed within `capacity` in at most `most_steps`. Buffers with a lower `rank` (by buffer)
  /// are placed first.
  bool run(std::uint64_t capacity, const std::vector<std::uint32_t>& rank, ejection_rule rule, std::uint64_t most_steps,
           search_budget& budget);

  /// Requires a `run` that returned true.
  [[nodiscard]] const placement& offsets() const noexcept { return offsets_; }

 private:
  struct spot {
    std::uint64_t offset = 0;
    bool free = false;
  };
  using weighed = std::pair<std::uint64_t, double>;

  void look_around(std::uint32_t index, std::uint64_t capacity);
  [[nodiscard]] spot cheapest(const buffer& current);

  const problem& buffers_;
  std::vector<std::vector<std::uint32_t>> neighbours_;
  placement offsets_;
  std::vector<char> placed_;
  std::vector<double> weight_;
  std::vector<weighed> begins_;  ///< of the placed neighbours of the current buffer
  std::vector<weighed> ends_;
  std::vector<std::uint64_t> spots_;  ///< candidate places: against a neighbour, the floor or the ceiling
  std::mt19937_64 lot_;
};

}  // namespace gpumem::plan
