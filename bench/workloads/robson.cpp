/// J. M. Robson, "Bounds for some functions concerning dynamic storage allocation" (Journal of the ACM 21(3), 1974):
/// his adversary makes every allocator that moves nothing need M (log2(n) / 2 + 1) - n + 1 units for M live units and
/// blocks of up to n. The adversary depends on the addresses of blocks. Here an allocator with one region chooses them
/// by best fit, lowest address first.
#include <algorithm>
#include <bit>
#include <map>

#include "workload.hpp"

namespace gpumem::bench {
namespace {

/// The adversary's model of the allocator: best fit in an unbounded region, in units.
class best_fit_region {
 public:
  std::uint64_t place(std::uint64_t units) {
    auto best = free_.end();
    for (auto each = free_.begin(); each != free_.end(); ++each) {
      if (each->second >= units && (best == free_.end() || each->second < best->second)) best = each;
    }
    if (best == free_.end()) {
      std::uint64_t begin = end_;
      if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == end_) {
        begin = std::prev(free_.end())->first;  // the last hole has no end
        free_.erase(std::prev(free_.end()));
      }
      end_ = begin + units;
      return begin;
    }
    const auto [at, size] = *best;
    free_.erase(best);
    if (size > units) free_.emplace(at + units, size - units);
    return at;
  }

  void release(std::uint64_t begin, std::uint64_t units) {
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && begin + units == next->first) {
      units += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == begin) {
      std::prev(next)->second += units;
    } else {
      free_.emplace(begin, units);
    }
  }

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  ///< begin to size
  std::uint64_t end_ = 0;
};

struct placed {
  std::uint64_t begin = 0;
  std::uint64_t units = 0;
  std::uint32_t slot = 0;
};

/// Whether an address of the block is `offset` modulo `step`.
bool pins(const placed& block, std::uint64_t offset, std::uint64_t step) {
  return (offset + step - block.begin % step) % step < block.units;
}

}  // namespace

trace robson_workload(const workload_shape& shape) {
  // The largest M within the requested operations: about four operations a unit.
  const std::uint64_t units = std::bit_floor(std::clamp<std::uint64_t>(shape.ops / 4, 64, 4096));
  const std::uint64_t unit_bytes = std::max<std::uint64_t>(shape.peak_bytes / units / 512 * 512, 512);
  const std::uint64_t largest = units / 8;
  trace_builder builder;
  best_fit_region region;
  std::vector<placed> live;
  std::uint64_t live_units = 0;
  const auto fill = [&](std::uint64_t size) {
    for (; live_units + size <= units; live_units += size) {
      live.push_back({region.place(size), size, builder.allocate(size * unit_bytes)});
    }
  };
  fill(1);
  std::uint64_t offset = 0;
  for (std::uint64_t step = 2; step <= largest; step *= 2) {
    // Chooses the offset whose pinned blocks waste more.
    std::uint64_t waste[2]{};
    for (const placed& each : live) {
      for (const std::uint64_t other : {0U, 1U}) {
        if (pins(each, offset + other * step / 2, step)) waste[other] += step - std::min(step, each.units);
      }
    }
    if (waste[1] > waste[0]) offset += step / 2;
    std::vector<placed> kept;
    for (const placed& each : live) {
      if (pins(each, offset, step)) {
        kept.push_back(each);
      } else {
        region.release(each.begin, each.units);
        builder.free(each.slot);
        live_units -= each.units;
      }
    }
    live = std::move(kept);
    fill(step);
  }
  for (const placed& each : live) builder.free(each.slot);
  return std::move(builder).done("robson");
}

}  // namespace gpumem::bench
