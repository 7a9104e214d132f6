#include "range_set.hpp"

#include <algorithm>

namespace gpumem {

std::size_t range_set::first_ending_behind(address position) const noexcept {
  const auto found = std::upper_bound(ranges_.begin(), ranges_.end(), position,
                                      [](address value, const range& candidate) { return value < candidate.end; });
  return static_cast<std::size_t>(found - ranges_.begin());
}

void range_set::insert(address begin, address end) {
  const auto next = ranges_.begin() + static_cast<std::ptrdiff_t>(first_ending_behind(begin));
  const bool joins_next = next != ranges_.end() && next->begin == end;
  const bool joins_previous = next != ranges_.begin() && std::prev(next)->end == begin;
  if (joins_previous && joins_next) {
    std::prev(next)->end = next->end;
    ranges_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->end = end;
  } else if (joins_next) {
    next->begin = begin;
  } else {
    ranges_.insert(next, {begin, end});
  }
}

void range_set::erase(address begin, address end) {
  auto entry = ranges_.begin() + static_cast<std::ptrdiff_t>(first_ending_behind(begin));
  if (entry != ranges_.end() && entry->begin < begin) {
    const range left{entry->begin, begin};
    if (entry->end > end) {
      entry->begin = end;
      ranges_.insert(entry, left);
      return;
    }
    *entry = left;
    ++entry;
  }
  auto last = entry;
  while (last != ranges_.end() && last->end <= end) ++last;
  if (last != ranges_.end() && last->begin < end) last->begin = end;
  ranges_.erase(entry, last);
}

bool range_set::covers(address begin, address end) const noexcept {
  const std::size_t i = first_ending_behind(begin);
  return begin < end && i < ranges_.size() && ranges_[i].begin <= begin && ranges_[i].end >= end;
}

std::optional<address> range_set::first_fit(std::uint64_t bytes, std::uint64_t alignment) const noexcept {
  for (const range& r : ranges_) {
    const std::uint64_t past = r.begin % alignment;
    const std::uint64_t padding = past == 0 ? 0 : alignment - past;
    const std::uint64_t room = r.end - r.begin;
    if (room >= padding && room - padding >= bytes) return r.begin + padding;
  }
  return std::nullopt;
}

}  // namespace gpumem
