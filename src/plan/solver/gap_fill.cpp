/// A buffer conflicts with those alive in its first section and with those that start in a later section of it.
#include "gap_fill.hpp"

#include <algorithm>

#include "bits.hpp"

namespace gpumem::plan {

gap_fill::gap_fill(const problem& buffers, const sections& cut) : buffers_{buffers}, cut_{cut} {
  while (leaves_ < cut.load.size()) leaves_ *= 2;
}

placement gap_fill::place(const std::vector<std::uint32_t>& order, fit rule, const placement& given,
                          const std::vector<std::uint32_t>& fixed) {
  covering_.assign(2 * leaves_, {});
  starting_.assign(cut_.load.size(), {});
  placement offsets = given;
  offsets.resize(buffers_.size());
  for (const std::uint32_t i : fixed) note(i);
  for (const std::uint32_t i : order) {
    collect(cut_.ranges[i], offsets);
    offsets[i] = gap_for(buffers_[i], rule);
    note(i);
  }
  return offsets;
}

void gap_fill::note(std::uint32_t buffer) {
  const section_range span = cut_.ranges[buffer];
  starting_[span.first].push_back(buffer);
  for (std::size_t a = leaves_ + span.first, b = leaves_ + span.last; a < b; a /= 2, b /= 2) {
    if (a % 2 == 1) covering_[a++].push_back(buffer);
    if (b % 2 == 1) covering_[--b].push_back(buffer);
  }
}

void gap_fill::collect(section_range span, const placement& offsets) {
  taken_.clear();
  const auto add = [&](const std::vector<std::uint32_t>& some) {
    for (const std::uint32_t k : some) taken_.emplace_back(offsets[k], offsets[k] + buffers_[k].size);
  };
  for (std::size_t node = leaves_ + span.first; node != 0; node /= 2) add(covering_[node]);
  for (std::uint32_t s = span.first + 1; s < span.last; ++s) add(starting_[s]);
  std::sort(taken_.begin(), taken_.end());
}

std::uint64_t gap_fill::gap_for(const buffer& current, fit rule) const {
  std::uint64_t end = 0;  // of the taken ranges so far, from the floor up
  std::uint64_t best = 0;
  std::uint64_t tightest = UINT64_MAX;
  for (const auto& [from, to] : taken_) {
    const std::uint64_t begin = round_up(end, current.alignment);
    if (from >= begin && from - begin >= current.size && from - begin < tightest) {
      if (rule == fit::lowest) return begin;
      best = begin;
      tightest = from - begin;
    }
    end = std::max(end, to);
  }
  return tightest != UINT64_MAX ? best : round_up(end, current.alignment);
}

}  // namespace gpumem::plan
