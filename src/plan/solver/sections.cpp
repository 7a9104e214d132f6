/// Cutting time into sections, by one pass over starts and ends.
#include "sections.hpp"

#include <algorithm>
#include <utility>

namespace gpumem::plan {

sections cut_into_sections(const problem& buffers) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> starts;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ends;
  starts.reserve(buffers.size());
  ends.reserve(buffers.size());
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    starts.emplace_back(buffers[i].lower, i);
    ends.emplace_back(buffers[i].upper, i);
  }
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());

  sections cut;
  cut.ranges.resize(buffers.size());
  std::uint32_t section = 0;
  std::size_t ended = 0;
  std::uint64_t alive = 0;
  for (const auto& [time, i] : starts) {
    if (ends[ended].first <= time) {
      cut.load.push_back(alive);
      for (; ends[ended].first <= time; ++ended) {
        cut.ranges[ends[ended].second].last = section + 1;
        alive -= buffers[ends[ended].second].size;
      }
      ++section;
    }
    cut.ranges[i].first = section;
    alive += buffers[i].size;
  }
  for (; ended < ends.size(); ++ended) cut.ranges[ends[ended].second].last = section + 1;
  if (!buffers.empty()) cut.load.push_back(alive);
  return cut;
}

}  // namespace gpumem::plan
