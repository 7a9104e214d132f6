/// The additions of a replay to the recorded operations: tenants out of step, and uses on a second stream.
///
/// Built once a trace and then immutable, so that every row's replay can read it from its own thread.
#pragma once

#include <cstdint>
#include <vector>

#include "trace.hpp"

namespace gpumem::bench {

/// Work on a stream other than the block's own, between its allocation and its free.
struct second_use {
  std::size_t after_op = 0;  ///< runs right after this operation
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;  ///< as `trace_op::stream`; `trace::streams.size()` is the extra stream
};

/// One use at a random place for a share of the blocks (0 to 1), chosen by the seed. In order of `after_op`.
std::vector<second_use> plan_second_uses(const trace& recorded, double share, std::uint64_t seed);

/// Operations of the first tenant before tenant `k` starts.
[[nodiscard]] constexpr std::size_t tenant_offset(std::size_t ops, unsigned tenant) noexcept {
  return static_cast<std::size_t>(tenant) * ops / 2;
}

/// Peak live of `tenants` tenants together, each half a trace after the previous one; blocks rounded up to 512.
std::uint64_t peak_live_of(const trace& recorded, unsigned tenants);

}  // namespace gpumem::bench
