/// A static placement problem: assign offsets to buffers with known lifetimes, so that buffers that are alive at the
/// same time share no byte. Also known as dynamic storage allocation, or two-dimensional packing with fixed columns.
///
/// Times are half-open intervals of any numbers (event indices, cycles); only their order counts. Invariant of a
/// checked problem: every buffer has lower < upper, size > 0, a power of two as alignment, and a unique id; all sizes,
/// rounded up to their alignment, sum to at most 2^62.
#pragma once

#include <cstdint>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::plan {

struct buffer {
  std::uint64_t id = 0;
  std::uint64_t lower = 0;  ///< first moment of its life
  std::uint64_t upper = 0;  ///< first moment after its life
  std::uint64_t size = 0;
  std::uint64_t alignment = 1;
};

using problem = std::vector<buffer>;

/// Offsets in the order of the problem's buffers.
using placement = std::vector<std::uint64_t>;

/// `invalid_argument` names the first buffer that violates the invariant above.
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

/// From the first to the last moment with at least this many bytes alive. Requires a checked problem that has such a
/// moment.
[[nodiscard]] window busy_window(const problem& buffers, std::uint64_t bytes);

/// The unit of heights. In a placement where each buffer rests on another, heights are sums of sizes and paddings, and
/// so multiples of this.
[[nodiscard]] std::uint64_t height_unit(const problem& buffers);

/// Ok if `capacity` may suffice; `out_of_memory` names a buffer that is too large on its own, or a moment at which more
/// is alive.
[[nodiscard]] status may_fit(const problem& buffers, std::uint64_t capacity);

/// The end of the highest buffer.
[[nodiscard]] std::uint64_t height(const problem& buffers, const placement& offsets);

}  // namespace gpumem::plan
