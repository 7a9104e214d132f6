/// The sweep: at each moment, first the ending buffers leave, then the beginning ones enter between their neighbours.
#include "validate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace gpumem::plan {

status validate(const problem& buffers, const placement& offsets, std::uint64_t capacity) {
  if (offsets.size() != buffers.size()) {
    return {errc::corrupt, fmt::format("{} offsets for {} buffers", offsets.size(), buffers.size())};
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (offsets[i] > capacity || buffers[i].size > capacity - offsets[i]) {
      return {errc::corrupt, fmt::format("buffer {} at {} with {} bytes ends above {}", buffers[i].id, offsets[i],
                                         buffers[i].size, capacity)};
    }
    if (offsets[i] % buffers[i].alignment != 0) {
      return {errc::corrupt,
              fmt::format("buffer {} at {} is not aligned to {}", buffers[i].id, offsets[i], buffers[i].alignment)};
    }
  }
  std::vector<std::size_t> by_start(buffers.size());
  std::iota(by_start.begin(), by_start.end(), std::size_t{0});
  std::vector<std::size_t> by_end = by_start;
  std::sort(by_start.begin(), by_start.end(),
            [&](auto lhs, auto rhs) { return buffers[lhs].lower < buffers[rhs].lower; });
  std::sort(by_end.begin(), by_end.end(), [&](auto lhs, auto rhs) { return buffers[lhs].upper < buffers[rhs].upper; });

  std::map<std::uint64_t, std::size_t> alive;  // by offset
  const auto collide = [&](std::size_t first, std::size_t second) {
    return status{errc::corrupt, fmt::format("buffers {} at {} and {} at {} are alive at the same time and overlap",
                                             buffers[first].id, offsets[first], buffers[second].id, offsets[second])};
  };
  std::size_t ended = 0;
  for (const std::size_t i : by_start) {
    for (; buffers[by_end[ended]].upper <= buffers[i].lower; ++ended) alive.erase(offsets[by_end[ended]]);
    const auto [at, entered] = alive.emplace(offsets[i], i);
    if (!entered) return collide(at->second, i);
    if (at != alive.begin()) {
      const std::size_t lower_neighbour = std::prev(at)->second;
      if (offsets[lower_neighbour] + buffers[lower_neighbour].size > offsets[i]) return collide(lower_neighbour, i);
    }
    const auto upper_neighbour = std::next(at);
    if (upper_neighbour != alive.end() && offsets[i] + buffers[i].size > upper_neighbour->first)
      return collide(i, upper_neighbour->second);
  }
  return {};
}

}  // namespace gpumem::plan
