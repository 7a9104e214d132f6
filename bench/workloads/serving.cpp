/// Serving: each request has a contiguous cache that grows by a quarter when full, by a copy into a larger block.
/// Requests begin and end at random.
#include <algorithm>

#include "workload.hpp"

namespace gpumem::bench {

trace serving_workload(const workload_shape& shape) {
  struct request_state {
    std::uint32_t cache = 0;
    std::uint64_t bytes = 0;
    std::uint64_t growths = 0;  ///< remaining growth steps
  };
  random_numbers random{shape.seed};
  trace_builder builder;
  builder.allocate(shape.peak_bytes / 4);  // the weights
  const std::uint64_t first_bytes = std::max<std::uint64_t>(shape.peak_bytes / 512, 4096);
  std::vector<request_state> running;
  while (builder.ops() < shape.ops) {
    const std::uint64_t workspace_bytes = first_bytes / 8 * (1 + random.below(8));
    const std::uint32_t workspace = builder.allocate(workspace_bytes);
    if (running.size() < 64 && (running.empty() || random.below(4) == 0)) {
      const std::uint64_t bytes = first_bytes / 4 * (1 + random.below(6));  // depends on the length of the prompt
      if (builder.live_bytes() + bytes < shape.peak_bytes)
        running.push_back({builder.allocate(bytes), bytes, random.below(8)});
    }
    if (!running.empty()) {
      const std::size_t chosen = random.below(running.size());
      request_state& each = running[chosen];
      const std::uint64_t larger = each.bytes + each.bytes / 4 + 512;
      if (each.growths > 0 && builder.live_bytes() + larger < shape.peak_bytes) {
        const std::uint32_t cache = builder.allocate(larger);
        builder.free(each.cache);
        each = {cache, larger, each.growths - 1};
      } else {
        builder.free(each.cache);
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(chosen));
      }
    }
    builder.free(workspace);
  }
  return std::move(builder).done("serving");
}

}  // namespace gpumem::bench
