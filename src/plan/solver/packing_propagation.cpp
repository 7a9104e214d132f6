/// Propagates the open items of a node: which items may be next, the lowest possible place of each, and the floors that
/// these raise.
#include <algorithm>

#include "packing_search.hpp"

namespace gpumem::plan {

/// Propagates floors and resting places until nothing changes; false if the node is dead.
bool packing_search::tighten(const part& open) {
  for (bool again = true; again;) {
    if (!weigh(open) || !raise_floors(open, again)) return false;
  }
  return true;
}

/// Decides which items may be next, that is, below all open items that overlap them in time. An item may be next only
/// if no such item would fit below it, and if it wastes no more than the slack of each of its sections. Every other
/// item finally rests on an item that may be next. A third item may keep out an item that would fit below. Bold pruning
/// ignores these few placements; exact pruning keeps the item's resting place.
bool packing_search::weigh(const part& open) {
  for (index s = open.range.first; s < open.range.last; ++s) {
    lowest_[s] = first_top_[s] = second_top_[s] = none;
    first_top_of_[s] = 0;
    choices_[s] = 0;
  }
  for (const index i : open.items) {
    const units top = rest(i) + items_[i].size;
    for (index s = items_[i].range.first; s < items_[i].range.last; ++s) {
      if (top < first_top_[s]) {
        second_top_[s] = first_top_[s];
        first_top_[s] = top;
        first_top_of_[s] = i;
      } else if (top < second_top_[s]) {
        second_top_[s] = top;
      }
    }
  }
  waiting_.clear();
  for (const index i : open.items) {
    const section_range range = items_[i].range;
    units lift = none;
    units most_load = 0;
    for (index s = range.first; s < range.last; ++s) {
      lift = std::min(lift, first_top_of_[s] == i ? second_top_[s] : first_top_[s]);
      most_load = std::max(most_load, open_load(s));
    }
    slips_below_[i] = lift <= rest(i) ? 1 : 0;
    may_be_next_[i] = rest(i) < lift && rest(i) + most_load <= capacity_ ? 1 : 0;
    const bool may_rest = may_be_next_[i] != 0 || (pruning_ == pruning::exact && slips_below_[i] != 0);
    least_[i] = may_rest ? rest(i) : none;
    if (least_[i] == none) waiting_.push_back(i);
  }
  return settle_waiting(open);
}

/// Finds the lowest possible place of each item that cannot be next: on any other open item.
bool packing_search::settle_waiting(const part& open) {
  std::vector<units>& least_top = second_top_;  // reuses the storage
  std::fill(least_top.begin() + open.range.first, least_top.begin() + open.range.last, none);
  for (const index i : open.items) {
    if (least_[i] == none) continue;
    for (index s = items_[i].range.first; s < items_[i].range.last; ++s) {
      least_top[s] = std::min(least_top[s], rest(i) + items_[i].size);
      lowest_[s] = std::min(lowest_[s], rest(i));
      if (may_be_next_[i] != 0) ++choices_[s];
    }
  }
  for (bool again = !waiting_.empty(); again;) {
    again = false;
    for (const index i : waiting_) {
      const section_range range = items_[i].range;
      units level = none;
      for (index s = range.first; s < range.last; ++s) level = std::min(level, least_top[s]);
      if (level == none) continue;
      level = aligned(std::max(level, rest(i)), items_[i].alignment);
      if (level >= least_[i]) continue;
      least_[i] = level;
      again = true;
      for (index s = range.first; s < range.last; ++s) {
        least_top[s] = std::min(least_top[s], level + items_[i].size);
        lowest_[s] = std::min(lowest_[s], level);
      }
    }
  }
  return std::all_of(waiting_.begin(), waiting_.end(), [&](index candidate) {
    return least_[candidate] != none && least_[candidate] + items_[candidate].size <= capacity_;
  });
}

bool packing_search::raise_floors(const part& open, bool& again) {
  for (index s = open.range.first; s < open.range.last; ++s) {
    if (lowest_[s] == none) continue;
    if (lowest_[s] + open_load(s) > capacity_) {
      failures_[s] += 1;
      return false;
    }
    if (lowest_[s] > floor(s)) set(floor(s), lowest_[s]);
  }
  again = false;
  for (const index i : open.items) {
    units level = rest(i);
    for (index s = items_[i].range.first; s < items_[i].range.last; ++s) level = std::max(level, floor(s));
    if (level > rest(i)) {
      set(rest(i), aligned(level, items_[i].alignment));
      again = true;
    }
  }
  return true;
}

}  // namespace gpumem::plan
