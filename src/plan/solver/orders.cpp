/// Keys of the orders.
#include "orders.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace gpumem::plan {
namespace {

using key = std::array<double, 3>;

/// Returns the highest value in a range of sections in constant time: most buffers of a long trace span many sections.
class range_max {
 public:
  explicit range_max(const std::vector<double>& values) {
    levels_.push_back(values);
    for (std::size_t width = 1; 2 * width <= values.size(); width *= 2) {
      const std::vector<double>& previous = levels_.back();
      std::vector<double> level(values.size() - 2 * width + 1);
      for (std::size_t i = 0; i < level.size(); ++i) level[i] = std::max(previous[i], previous[i + width]);
      levels_.push_back(std::move(level));
    }
  }
  [[nodiscard]] double over(section_range range) const {
    std::size_t level = 0;
    while ((std::size_t{2} << level) <= range.last - range.first) ++level;
    return std::max(levels_[level][range.first], levels_[level][range.last - (std::size_t{1} << level)]);
  }

 private:
  std::vector<std::vector<double>> levels_;
};

}  // namespace

std::vector<std::uint32_t> ordered(const problem& buffers, const sections& cut, order_by criterion,
                                   const std::vector<double>& failures) {
  const range_max peak{std::vector<double>(cut.load.begin(), cut.load.end())};
  std::vector<double> known = failures;
  known.resize(cut.load.size());
  const range_max worst{known};
  std::vector<double> summed(known.size() + 1);
  std::partial_sum(known.begin(), known.end(), summed.begin() + 1);

  std::vector<key> keys;
  keys.reserve(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const section_range range = cut.ranges[i];
    const double size = static_cast<double>(buffers[i].size);
    const double lifetime = static_cast<double>(buffers[i].upper - buffers[i].lower);
    const double area = size * lifetime;
    const double failed = summed[range.last] - summed[range.first];
    switch (criterion) {
      case order_by::peak_then_lifetime:
        keys.push_back({peak.over(range), lifetime, area});
        break;
      case order_by::size:
        keys.push_back({size, lifetime, area});
        break;
      case order_by::peak_then_size:
        keys.push_back({peak.over(range), size, lifetime});
        break;
      case order_by::area:
        keys.push_back({area, size, lifetime});
        break;
      case order_by::lifetime:
        keys.push_back({lifetime, area, peak.over(range)});
        break;
      case order_by::peak_then_area:
        keys.push_back({peak.over(range), area, lifetime});
        break;
      case order_by::failures:
        keys.push_back({worst.over(range), area, lifetime});
        break;
      case order_by::summed_failures:
        keys.push_back({failed, area, lifetime});
        break;
      case order_by::failures_and_size:
        keys.push_back({failed * size, area, lifetime});
        break;
    }
  }
  std::vector<std::uint32_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto lhs, auto rhs) { return keys[lhs] > keys[rhs]; });
  return order;
}

std::vector<std::uint32_t> rank_of(const std::vector<std::uint32_t>& order) {
  std::vector<std::uint32_t> rank(order.size());
  for (std::uint32_t position = 0; position < order.size(); ++position) rank[order[position]] = position;
  return rank;
}

}  // namespace gpumem::plan
