/// A static placement problem: buffers with known lifetimes, to be given offsets such that no two that are alive at the
/// same time share a byte. Also known as dynamic storage allocation; two-dimensional packing with fixed columns.
///
/// Times are half-open and may be any numbers (event indices, cycles); only their order counts. Nothing here knows a
/// device. Invariant of a checked problem: every buffer has lower < upper, size > 0, an alignment that is a power of
/// two, an id of its own, and all sizes rounded up to their alignment sum to at most 2^62.
#pragma once

#include <cstdint>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::plan {

struct buffer {
  std::uint64_t id = 0;
  std::uint64_t lower = 0;  ///< first moment at which it is alive
  std::uint64_t upper = 0;  ///< first moment at which it no longer is
  std::uint64_t size = 0;
  std::uint64_t alignment = 1;
};

using problem = std::vector<buffer>;

/// Offsets in the order of the problem's buffers.
using placement = std::vector<std::uint64_t>;

/// `invalid_argument` names the first buffer that breaks the invariant above.
[[nodiscard]] status check(const problem& buffers);

struct load {
  std::uint64_t bytes = 0;
  std::uint64_t time = 0;  ///< the first moment with this load
};

/// The most bytes alive at once: no placement can be lower. Requires a checked problem.
[[nodiscard]] load peak_load(const problem& buffers);

/// Moments from `lower` to before `upper`.
struct window {
  std::uint64_t lower = 0;
  std::uint64_t upper = 0;
};

/// From the first moment to the last at which so many bytes are alive. Requires a checked problem that has such a
/// moment.
[[nodiscard]] window busy_window(const problem& buffers, std::uint64_t bytes);

/// Every placement can be let fall until each buffer rests on another one, so heights are sums of sizes and paddings:
/// multiples of this.
[[nodiscard]] std::uint64_t height_unit(const problem& buffers);

/// Ok where nothing speaks against `capacity`; `out_of_memory` names the buffer that alone is too large, or the moment
/// at which more is alive.
[[nodiscard]] status may_fit(const problem& buffers, std::uint64_t capacity);

/// The end of the highest buffer.
[[nodiscard]] std::uint64_t height(const problem& buffers, const placement& offsets);

}  // namespace gpumem::plan
