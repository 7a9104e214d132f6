/// Divides time into the fewest sections such that two buffers are alive together exactly if their ranges of sections
/// overlap.
///
/// A new section begins where a buffer starts after another has ended. The sets of live buffers of the sections are the
/// maximal cliques of the interval graph.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace gpumem::plan {

struct section_range {
  std::uint32_t first = 0;
  std::uint32_t last = 0;  ///< one past the end

  [[nodiscard]] bool covers(std::uint32_t section) const noexcept { return first <= section && section < last; }
  [[nodiscard]] bool overlaps(section_range range) const noexcept { return first < range.last && range.first < last; }
};

struct sections {
  std::vector<section_range> ranges;  ///< by buffer
  std::vector<std::uint64_t> load;    ///< by section: bytes alive
};

[[nodiscard]] sections cut_into_sections(const problem& buffers);

}  // namespace gpumem::plan
