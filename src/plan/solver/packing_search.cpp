/// Canonical placements and sections come from Moffitt, MiniMalloc (ASPLOS 2024); branching on the section with the
/// fewest choices, failure weights and the memory of dead nodes come from constraint solvers.
#include "packing_search.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "mixed_bits.hpp"

namespace gpumem::plan {
namespace {

constexpr std::uint32_t none_chosen = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t dead_places = std::size_t{1} << 20;

std::uint64_t hash_of(std::uint64_t value) { return mixed_bits(value + 0x9e3779b97f4a7c15U); }

}  // namespace

packing_search::packing_search(const problem& buffers, const sections& cut, std::uint64_t capacity, pruning how)
    : pruning_{how}, section_count_{cut.load.size()}, dead_(dead_places) {
  std::uint64_t unit = 0;
  for (const buffer& each : buffers) unit = std::gcd(unit, each.size);
  for (const buffer& each : buffers) unit = std::gcd(unit, unit % each.alignment == 0 ? unit : each.alignment);
  unit = std::max<std::uint64_t>(unit, 1);
  unit_bytes_ = static_cast<units>(unit);
  capacity_ = static_cast<units>(std::min(capacity, std::uint64_t{1} << 62) / unit);

  initial_load_.resize(section_count_);
  covering_.resize(section_count_);
  neighbours_.resize(buffers.size());
  for (index i = 0; i < buffers.size(); ++i) {
    const buffer& each = buffers[i];
    items_.push_back({cut.ranges[i], static_cast<units>(each.size / unit),
                      each.alignment <= unit ? 1 : static_cast<units>(each.alignment / unit)});
    for (index s = cut.ranges[i].first; s < cut.ranges[i].last; ++s) {
      initial_load_[s] += items_.back().size;
      covering_[s].push_back(i);
    }
  }
  for (index i = 0; i < items_.size(); ++i) {
    for (index k = 0; k < items_.size(); ++k) {
      if (i != k && items_[i].range.overlaps(items_[k].range)) neighbours_[i].push_back(k);
    }
  }
  lowest_.resize(section_count_);
  first_top_.resize(section_count_);
  first_top_of_.resize(section_count_);
  second_top_.resize(section_count_);
  choices_.resize(section_count_);
  failures_.resize(section_count_);
  least_.resize(items_.size());
  slips_below_.resize(items_.size());
  may_be_next_.resize(items_.size());
  offset_.resize(items_.size());
}

packing_search::outcome packing_search::run(const std::vector<std::uint32_t>& rank, rule branching,
                                            std::uint64_t most_nodes, search_budget& budget) {
  rank_ = rank;
  rule_ = branching;
  nodes_left_ = most_nodes;
  budget_ = &budget;
  stopped_ = false;
  for (double& each : failures_) each *= 0.5;  // failures of earlier runs decay
  trail_.clear();
  placed_.assign(items_.size(), 0);
  values_.assign(2 * section_count_ + items_.size(), 0);
  std::copy(initial_load_.begin(), initial_load_.end(), values_.begin() + static_cast<std::ptrdiff_t>(section_count_));

  part all{{}, {0, static_cast<index>(section_count_)}};
  all.items.resize(items_.size());
  std::iota(all.items.begin(), all.items.end(), index{0});
  if (descend(all)) return outcome::found;
  if (stopped_) return outcome::gave_up;
  return pruning_ == pruning::exact ? outcome::impossible : outcome::exhausted;
}

placement packing_search::offsets() const {
  placement found;
  found.reserve(offset_.size());
  for (const units each : offset_) found.push_back(static_cast<std::uint64_t>(each * unit_bytes_));
  return found;
}

void packing_search::set(units& value, units next_value) {
  trail_.emplace_back(static_cast<std::uint32_t>(&value - values_.data()), value);
  value = next_value;
}

void packing_search::rewind(std::size_t mark) {
  while (trail_.size() > mark) {
    values_[trail_.back().first] = trail_.back().second;
    trail_.pop_back();
  }
}

bool packing_search::out_of_budget(std::size_t open_items) {
  budget_->took(open_items);
  if (nodes_left_ == 0 || (nodes_left_ % 64 == 0 && budget_->spent())) stopped_ = true;
  if (!stopped_) --nodes_left_;
  return stopped_;
}

/// On success leaves a complete placement of `open`; on failure restores the state.
bool packing_search::descend(const part& open) {
  if (open.items.empty()) return true;
  if (std::vector<part> parts = split(open); parts.size() > 1) return descend_parts(parts);
  if (out_of_budget(open.items.size())) return false;
  const std::size_t mark = trail_.size();
  if (tighten(open)) {
    const std::uint64_t key = key_of(open);
    std::uint64_t& place_of_key = dead_[key % dead_places];
    if (place_of_key != key) {
      if (descend_choices(open, choose(open))) return true;
      if (!stopped_) place_of_key = key;
    }
  }
  rewind(mark);
  return false;
}

/// Splits `open` into parts that no open item connects; empty if there is only one.
std::vector<packing_search::part> packing_search::split(const part& open) const {
  const index first = open.range.first;
  std::vector<int> crossing(open.range.last - first + 1);  // by boundary below a section, as differences
  for (const index i : open.items) {
    ++crossing[items_[i].range.first + 1 - first];
    --crossing[items_[i].range.last - first];
  }
  std::vector<index> part_of(open.range.last - first);
  std::vector<part> parts;
  int across = 0;
  for (index s = first; s < open.range.last; ++s) {
    across += crossing[s - first];
    if (across == 0) parts.push_back({{}, {s, s}});
    parts.back().range.last = s + 1;
    part_of[s - first] = static_cast<index>(parts.size() - 1);
  }
  if (parts.size() == 1) return {};
  for (const index i : open.items) parts[part_of[items_[i].range.first - first]].items.push_back(i);
  std::erase_if(parts, [](const part& each) { return each.items.empty(); });
  if (parts.size() == 1) parts.push_back({});  // the part spans fewer sections: descend into it as a split
  return parts;
}

/// The part with the most failures comes first, because an impossible part decides the whole.
bool packing_search::descend_parts(std::vector<part>& parts) {
  const auto worst = [&](const part& each) {
    double most = 0;
    for (index s = each.range.first; s < each.range.last; ++s) most = std::max(most, failures_[s]);
    return most;
  };
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const part& lhs, const part& rhs) { return worst(lhs) > worst(rhs); });
  const std::size_t mark = trail_.size();
  for (std::size_t done = 0; done < parts.size(); ++done) {
    if (descend(parts[done])) continue;
    rewind(mark);
    for (std::size_t k = 0; k < done; ++k) {
      for (const index i : parts[k].items) placed_[i] = 0;
    }
    return false;
  }
  return true;
}

std::uint64_t packing_search::key_of(const part& open) const {
  std::uint64_t key = 0;
  for (const index i : open.items) key += hash_of(hash_of(i) ^ static_cast<std::uint64_t>(rest(i)));
  for (index s = open.range.first; s < open.range.last; ++s) {
    if (lowest_[s] != none) key += hash_of(~hash_of(s) ^ static_cast<std::uint64_t>(floor(s)));
  }
  return key == 0 ? 1 : key;
}

/// Chooses a section in which no item that another item would fit below lies on the floor. The section with the lowest
/// floor always qualifies, because nothing fits below its items.
packing_search::index packing_search::choose(const part& open) const {
  std::vector<char> blocked(open.range.last - open.range.first);
  for (const index i : open.items) {
    if (slips_below_[i] == 0) continue;
    for (index s = items_[i].range.first; s < items_[i].range.last; ++s) {
      if (rest(i) == floor(s)) blocked[s - open.range.first] = 1;
    }
  }
  section_range preferred{0, static_cast<index>(section_count_)};
  if (rule_ == rule::first_item) {
    index first = none_chosen;
    for (const index i : open.items) {
      if (may_be_next_[i] == 0) continue;
      if (first == none_chosen || rest(i) < rest(first) || (rest(i) == rest(first) && rank_[i] < rank_[first])) {
        first = i;
      }
    }
    if (first != none_chosen) preferred = items_[first].range;
  }
  index best = open.range.first;
  double best_score = std::numeric_limits<double>::infinity();
  for (index s = open.range.first; s < open.range.last; ++s) {
    if (lowest_[s] == none || blocked[s - open.range.first] != 0) continue;
    const double slack = static_cast<double>(capacity_ - floor(s) - open_load(s)) / static_cast<double>(capacity_);
    double score = choices_[s];
    switch (rule_) {
      case rule::fewest_choices:
        score += slack;
        break;
      case rule::least_slack:
        score *= slack + 0.01;
        break;
      case rule::most_failures:
        score *= (slack + 0.01) / (failures_[s] + 1);
        break;
      case rule::first_item:
      case rule::lowest_floor:
        score = static_cast<double>(floor(s)) + score / (score + 1);
        break;
    }
    if (!preferred.covers(s)) score += 2 * static_cast<double>(capacity_);
    if (score < best_score) {
      best_score = score;
      best = s;
    }
  }
  return best;
}

/// Tries the branches at `section`: each item that may be next, then none of them.
bool packing_search::descend_choices(const part& open, index section) {
  std::vector<index> next;
  units slipping = none;
  for (const index i : covering_[section]) {
    if (placed_[i] != 0) continue;
    if (may_be_next_[i] != 0) next.push_back(i);
    if (pruning_ == pruning::exact && slips_below_[i] != 0) slipping = std::min(slipping, rest(i));
  }
  std::sort(next.begin(), next.end(), [&](index lhs, index rhs) {
    return rest(lhs) != rest(rhs) ? rest(lhs) < rest(rhs) : rank_[lhs] < rank_[rhs];
  });
  const auto alike = [&](index lhs, index rhs) {
    return items_[lhs].range.first == items_[rhs].range.first && items_[lhs].range.last == items_[rhs].range.last &&
           items_[lhs].size == items_[rhs].size && items_[lhs].alignment == items_[rhs].alignment;
  };
  for (std::size_t k = 0; k < next.size(); ++k) {
    if (std::any_of(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(k),
                    [&](index earlier) { return alike(earlier, next[k]); })) {
      continue;
    }
    if (place(open, next[k])) return true;
    if (stopped_) return false;
  }
  return raise(open, section, slipping);
}

bool packing_search::place(const part& open, index candidate) {
  const std::size_t mark = trail_.size();
  const section_range range = items_[candidate].range;
  offset_[candidate] = rest(candidate);
  const units top = rest(candidate) + items_[candidate].size;
  placed_[candidate] = 1;
  bool fits = true;
  for (index s = range.first; s < range.last; ++s) {
    set(floor(s), top);
    set(open_load(s), open_load(s) - items_[candidate].size);
    if (top + open_load(s) > capacity_) {
      failures_[s] += 1;
      fits = false;
    }
  }
  if (fits) {
    for (const index k : neighbours_[candidate]) {
      if (placed_[k] == 0 && rest(k) < top) set(rest(k), aligned(top, items_[k].alignment));
    }
    part left{{}, open.range};
    left.items.reserve(open.items.size() - 1);
    for (const index k : open.items) {
      if (k != candidate) left.items.push_back(k);
    }
    if (descend(left)) return true;
  }
  rewind(mark);
  placed_[candidate] = 0;
  return false;
}

/// Returns the lowest place of an open item of `section` that rests on an item outside the section.
packing_search::units packing_search::next_level(index section) const {
  units level = none;
  for (const index i : covering_[section]) {
    if (placed_[i] != 0) continue;
    units lowest_end = none;
    for (const index k : neighbours_[i]) {
      if (placed_[k] == 0 && !items_[k].range.covers(section))
        lowest_end = std::min(lowest_end, rest(k) + items_[k].size);
    }
    if (lowest_end != none) level = std::min(level, aligned(std::max(lowest_end, rest(i)), items_[i].alignment));
  }
  return level;
}

/// Raises the floor of `section`, the branch in which no item is next. `slipping` is the lowest resting place of the
/// items that another item would fit below.
bool packing_search::raise(const part& open, index section, units slipping) {
  const units level = std::min(next_level(section), slipping);
  if (level == none || level + open_load(section) > capacity_) {
    failures_[section] += 1;
    return false;
  }
  const std::size_t mark = trail_.size();
  set(floor(section), level);
  for (const index i : covering_[section]) {
    if (placed_[i] == 0 && rest(i) < level) set(rest(i), aligned(level, items_[i].alignment));
  }
  if (descend(open)) return true;
  rewind(mark);
  return false;
}

}  // namespace gpumem::plan
