/// Sizes and lifetimes drawn from quantiles fitted to a recorded trace; the order of the recording is lost.
#include <algorithm>
#include <array>
#include <cmath>
#include <queue>

#include "workload.hpp"

namespace gpumem::bench {
namespace {

/// A distribution defined by 65 quantiles with geometric interpolation.
class quantiles {
 public:
  explicit quantiles(std::vector<std::uint64_t> values) {
    std::sort(values.begin(), values.end());
    for (std::size_t i = 0; i < points_.size(); ++i) {
      points_[i] = values.empty() ? 1.0 : static_cast<double>(values[i * (values.size() - 1) / (points_.size() - 1)]);
    }
  }
  [[nodiscard]] std::uint64_t at(double share) const {
    const double place = share * static_cast<double>(points_.size() - 1);
    const auto lower = static_cast<std::size_t>(place);
    const double low = points_[lower];
    const double high = points_[std::min(lower + 1, points_.size() - 1)];
    return static_cast<std::uint64_t>(std::llround(low * std::pow(high / low, place - static_cast<double>(lower))));
  }

 private:
  std::array<double, 65> points_{};
};

/// Lifetimes depend on sizes, so each of four classes of size has its own distribution.
struct fitted {
  static constexpr std::size_t classes = 4;
  quantiles sizes{{}};
  std::vector<quantiles> lifetimes;
};

fitted fit_to(const trace& like) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;  // size, lifetime in operations
  std::vector<std::size_t> begin(like.slots);
  std::vector<bool> live(like.slots);
  for (std::size_t i = 0; i < like.ops.size(); ++i) {
    const trace_op& op = like.ops[i];
    live[op.slot] = op.kind == op_kind::allocate;
    if (live[op.slot]) {
      begin[op.slot] = i;
    } else {
      blocks.emplace_back(op.bytes, i - begin[op.slot]);
    }
  }
  for (std::uint32_t slot = 0; slot < like.slots; ++slot) {
    if (live[slot]) blocks.emplace_back(like.ops[begin[slot]].bytes, like.ops.size() - begin[slot]);
  }
  std::sort(blocks.begin(), blocks.end());
  fitted model;
  std::vector<std::uint64_t> sizes;
  std::vector<std::vector<std::uint64_t>> lifetimes(fitted::classes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    sizes.push_back(blocks[i].first);
    lifetimes[i * fitted::classes / blocks.size()].push_back(std::max<std::uint64_t>(blocks[i].second, 1));
  }
  model.sizes = quantiles{sizes};
  for (auto& each : lifetimes) model.lifetimes.emplace_back(std::move(each));
  return model;
}

}  // namespace

trace random_workload(const workload_shape& shape, const trace& like) {
  const fitted model = fit_to(like);
  random_numbers random{shape.seed};
  // Scales sizes so that live memory comes near the requested peak.
  const double scale = static_cast<double>(shape.peak_bytes) / static_cast<double>(like.peak_live_bytes);
  trace_builder builder;
  using death = std::pair<std::uint64_t, std::uint32_t>;  // operation, slot
  std::priority_queue<death, std::vector<death>, std::greater<>> deaths;
  while (builder.ops() < shape.ops) {
    if (!deaths.empty() && deaths.top().first <= builder.ops()) {
      builder.free(deaths.top().second);
      deaths.pop();
      continue;
    }
    const double rank = random.share();
    const auto bytes = static_cast<std::uint64_t>(scale * static_cast<double>(model.sizes.at(rank)));
    const quantiles& lifetime = model.lifetimes[static_cast<std::size_t>(rank * fitted::classes)];
    while (!deaths.empty() &&
           builder.live_bytes() + bytes > shape.peak_bytes) {  // ends the next block early to make room
      builder.free(deaths.top().second);
      deaths.pop();
    }
    const std::uint32_t slot = builder.allocate(bytes);
    deaths.emplace(builder.ops() + lifetime.at(random.share()), slot);
  }
  return std::move(builder).done("random");
}

}  // namespace gpumem::bench
