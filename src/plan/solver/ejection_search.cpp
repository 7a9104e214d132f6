/// One loop: take the first open buffer, find its cheapest spot, eject the buffers there.
#include "ejection_search.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "bits.hpp"

namespace gpumem::plan {
namespace {

/// The rounding error allowed between equal sums of weights.
constexpr double same = 1e-9;

std::vector<std::uint32_t> by_first_section(const sections& cut) {
  std::vector<std::uint32_t> order(cut.ranges.size());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto lhs, auto rhs) { return cut.ranges[lhs].first < cut.ranges[rhs].first; });
  return order;
}

}  // namespace

std::uint64_t ejection_search::pairs(const problem& buffers, const sections& cut) {
  std::vector<std::uint64_t> starts(cut.load.size() + 1);  // before each section
  for (const section_range& each : cut.ranges) ++starts[each.first + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) sum += starts[cut.ranges[i].last] - starts[cut.ranges[i].first];
  return sum;
}

ejection_search::ejection_search(const problem& buffers, const sections& cut)
    : buffers_{buffers}, neighbours_(buffers.size()) {
  const std::vector<std::uint32_t> order = by_first_section(cut);
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::uint32_t last = cut.ranges[order[k]].last;
    for (std::size_t l = k + 1; l < order.size() && cut.ranges[order[l]].first < last; ++l) {
      neighbours_[order[k]].push_back(order[l]);
      neighbours_[order[l]].push_back(order[k]);
    }
  }
}

bool ejection_search::run(std::uint64_t capacity, const std::vector<std::uint32_t>& rank, ejection_rule rule,
                          std::uint64_t most_steps, search_budget& budget) {
  offsets_.assign(buffers_.size(), 0);
  placed_.assign(buffers_.size(), 0);
  lot_.seed(rule.lot + 1);
  std::vector<double> unit(buffers_.size(), 1);
  if (rule.weigh_by_size) {
    std::transform(buffers_.begin(), buffers_.end(), unit.begin(),
                   [&](const buffer& each) { return static_cast<double>(each.size) / static_cast<double>(capacity); });
  }
  weight_ = unit;
  using ranked = std::pair<std::uint32_t, std::uint32_t>;
  std::priority_queue<ranked, std::vector<ranked>, std::greater<>> open;
  for (std::uint32_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].size > capacity) return false;
    open.emplace(rank[i], i);
  }
  for (std::uint64_t step = 0; !open.empty(); ++step) {
    if (step >= most_steps || (step % 256 == 0 && budget.spent())) return false;
    const std::uint32_t i = open.top().second;
    open.pop();
    look_around(i, capacity);
    budget.took(neighbours_[i].size() + 1);
    const spot chosen = cheapest(buffers_[i]);
    if (!chosen.free) {
      for (const std::uint32_t k : neighbours_[i]) {
        if (placed_[k] == 0 || offsets_[k] >= chosen.offset + buffers_[i].size ||
            offsets_[k] + buffers_[k].size <= chosen.offset) {
          continue;
        }
        placed_[k] = 0;
        open.emplace(rank[k], k);
      }
      weight_[i] += unit[i];
    }
    placed_[i] = 1;
    offsets_[i] = chosen.offset;
  }
  return true;
}

void ejection_search::look_around(std::uint32_t index, std::uint64_t capacity) {
  const buffer& current = buffers_[index];
  begins_.clear();
  ends_.clear();
  spots_.assign({0, round_down(capacity - current.size, current.alignment)});
  for (const std::uint32_t k : neighbours_[index]) {
    if (placed_[k] == 0) continue;
    const std::uint64_t end = offsets_[k] + buffers_[k].size;
    begins_.emplace_back(offsets_[k], weight_[k]);
    ends_.emplace_back(end, weight_[k]);
    const std::uint64_t higher = round_up(end, current.alignment);
    if (higher <= capacity - current.size) spots_.push_back(higher);
    if (offsets_[k] >= current.size) spots_.push_back(round_down(offsets_[k] - current.size, current.alignment));
  }
  std::sort(begins_.begin(), begins_.end());
  std::sort(ends_.begin(), ends_.end());
  std::sort(spots_.begin(), spots_.end());
  spots_.erase(std::unique(spots_.begin(), spots_.end()), spots_.end());
}

/// The cost of a spot: the weight of buffers that begin below its end, less that of buffers that end by its begin.
ejection_search::spot ejection_search::cheapest(const buffer& current) {
  std::size_t begun = 0;
  std::size_t ended = 0;
  double begun_weight = 0;
  double ended_weight = 0;
  double least = std::numeric_limits<double>::infinity();
  std::uint64_t alike = 0;
  spot best;
  for (const std::uint64_t offset : spots_) {
    for (; begun < begins_.size() && begins_[begun].first < offset + current.size; ++begun) {
      begun_weight += begins_[begun].second;
    }
    for (; ended < ends_.size() && ends_[ended].first <= offset; ++ended) ended_weight += ends_[ended].second;
    if (begun == ended) return {offset, true};
    const double cost = begun_weight - ended_weight;
    if (cost < least - same) {
      least = cost;
      best.offset = offset;
      alike = 1;
    } else if (cost < least + same && lot_() % ++alike == 0) {
      best.offset = offset;
    }
  }
  return best;
}

}  // namespace gpumem::plan
