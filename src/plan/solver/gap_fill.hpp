/// Places buffers one by one, each into the lowest (or tightest) gap between those already placed.
///
/// Fast enough for 10^5 buffers: a tree over the sections finds the buffers in the way, so a placement costs
/// O(live log live). Not synchronised.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "problem.hpp"
#include "sections.hpp"

namespace gpumem::plan {

enum class fit : std::uint8_t { lowest, tightest };

class gap_fill {
 public:
  /// Keeps references to both, which must outlive it.
  gap_fill(const problem& buffers, const sections& cut);

  /// Places the buffers of `order` in turn. The buffers in `fixed` keep their offsets in `given`. No buffer is in both
  /// lists.
  [[nodiscard]] placement place(const std::vector<std::uint32_t>& order, fit rule, const placement& given = {},
                                const std::vector<std::uint32_t>& fixed = {});

 private:
  using range = std::pair<std::uint64_t, std::uint64_t>;

  void note(std::uint32_t buffer);
  void collect(section_range span, const placement& offsets);
  [[nodiscard]] std::uint64_t gap_for(const buffer& current, fit rule) const;

  const problem& buffers_;
  const sections& cut_;
  std::size_t leaves_ = 1;
  std::vector<std::vector<std::uint32_t>> covering_;  ///< by node of the tree: buffers alive in all of its sections
  std::vector<std::vector<std::uint32_t>> starting_;  ///< by section
  std::vector<range> taken_;                          ///< by buffers that are alive together with the current one
};

}  // namespace gpumem::plan
