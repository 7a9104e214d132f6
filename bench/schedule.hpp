/// What a replay does beyond the recorded operations: tenants out of step, and uses on a second stream.
///
/// Made once a trace and read by every row's replay, from several threads: plain values, nothing changes.
#pragma once

#include <cstdint>
#include <vector>

#include "trace.hpp"

namespace gpumem::bench {

/// Work on another stream than the block's own, between its allocation and its free.
struct second_use {
  std::size_t after_op = 0;  ///< right after this operation
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;  ///< as `trace_op::stream`; `trace::streams.size()` is an extra one
};

/// A share of the blocks (0 to 1), chosen by the seed, each with one use at a random place. In order of `after_op`.
std::vector<second_use> plan_second_uses(const trace& t, double share, std::uint64_t seed);

/// How many operations of the first tenant pass before tenant `k` starts.
[[nodiscard]] constexpr std::size_t tenant_offset(std::size_t ops, unsigned tenant) noexcept {
  return static_cast<std::size_t>(tenant) * ops / 2;
}

/// Of the sum over `tenants` tenants, each half a trace behind the last; blocks rounded up to 512.
std::uint64_t peak_live_of(const trace& t, unsigned tenants);

}  // namespace gpumem::bench
