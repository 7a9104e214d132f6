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
  std::sort(by_start.begin(), by_start.end(), [&](auto a, auto b) { return buffers[a].lower < buffers[b].lower; });
  std::sort(by_end.begin(), by_end.end(), [&](auto a, auto b) { return buffers[a].upper < buffers[b].upper; });

  std::map<std::uint64_t, std::size_t> alive;  // by offset
  const auto collide = [&](std::size_t a, std::size_t b) {
    return status{errc::corrupt, fmt::format("buffers {} at {} and {} at {} are alive at the same time and overlap",
                                             buffers[a].id, offsets[a], buffers[b].id, offsets[b])};
  };
  std::size_t ended = 0;
  for (const std::size_t i : by_start) {
    for (; buffers[by_end[ended]].upper <= buffers[i].lower; ++ended) alive.erase(offsets[by_end[ended]]);
    const auto [at, entered] = alive.emplace(offsets[i], i);
    if (!entered) return collide(at->second, i);
    if (at != alive.begin()) {
      const std::size_t below = std::prev(at)->second;
      if (offsets[below] + buffers[below].size > offsets[i]) return collide(below, i);
    }
    const auto above = std::next(at);
    if (above != alive.end() && offsets[i] + buffers[i].size > above->first) return collide(i, above->second);
  }
  return {};
}

}  // namespace gpumem::plan
