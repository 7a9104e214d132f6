#include "refused.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bits.hpp"
#include "gpumem/settings.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

constexpr unsigned streams = 12;

/// Most blocks are small, and a few hold most of the memory.
std::uint64_t draw_bytes(random_numbers& random) {
  const std::uint64_t kind = random.below(100);
  if (kind < 70) return 512 + random.below(64 * kib);
  if (kind < 95) return 64 * kib + random.below(mib);
  return mib + random.below(12 * mib);
}

}  // namespace

trace draw_refused(std::uint64_t ops, random_numbers& random) {
  trace_builder builder{streams};
  std::vector<std::uint32_t> blocks;
  const auto take = [&] {
    return builder.allocate(draw_bytes(random), static_cast<std::uint16_t>(random.below(streams)));
  };
  while (builder.ops() < ops / 5 * 2) blocks.push_back(take());
  while (builder.ops() + 2 <= ops) {
    std::uint32_t& replaced = blocks[random.below(blocks.size())];
    builder.free(replaced);
    replaced = take();
  }
  const std::uint64_t live = builder.live_bytes();
  trace made = std::move(builder).done(fmt::format("refused-b{}-s{}", blocks.size(), streams));
  const std::uint64_t asked = round_up(live / 16, mib);
  made.refused.push_back({made.ops.size(), made.ops.back().time_ns, asked, 0});
  made.refusing_policy = settings{}.policy;
  const std::uint64_t needed = std::max(live + asked, made.peak_live_bytes);
  made.refused_within_bytes = round_up(needed / 100 * (101 + random.below(33)), mib);
  return made;
}

}  // namespace gpumem::bench
