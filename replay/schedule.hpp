/// The uses that a replay adds to the recorded operations: tenants that start later, and work on a second stream.
///
/// Built once per trace and then immutable, so that every row's replay can read it from its own thread.
#pragma once

#include <cstdint>
#include <vector>

#include "trace.hpp"

namespace gpumem::bench {

/// Work on a stream other than the block's own, between the block's allocation and its free.
struct second_use {
  std::size_t after_op = 0;  ///< the work is enqueued right after this operation
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;  ///< like `trace_op::stream`; `trace::streams.size()` means the extra stream
};

/// One use at a random operation for a share of the blocks (0 to 1), chosen by the seed. Sorted by `after_op`.
std::vector<second_use> plan_second_uses(const trace& recorded, double share, std::uint64_t seed);

/// Operations of the first tenant before tenant `k` starts.
[[nodiscard]] constexpr std::size_t tenant_offset(std::size_t ops, unsigned tenant) noexcept {
  return static_cast<std::size_t>(tenant) * ops / 2;
}

/// Peak live of `tenants` tenants together, each half a trace after the previous one; blocks rounded up to 512.
std::uint64_t peak_live_of(const trace& recorded, unsigned tenants);

}  // namespace gpumem::bench
