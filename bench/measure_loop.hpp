/// Times a trace as a tight loop (replay_loop.hpp) over one allocator, to compare allocators without the work around a
/// call.
///
/// Each operation is one call: `allocator::allocate` and `deallocate` of gpumem, over the simulated device; `allocate`
/// and `release` of a baseline's plug-in, over the driver's double. No work is enqueued and no clock moves. The first
/// pass takes memory from the device and does not count; of the next ones the fastest does. From a baseline's time the
/// double's share is taken out: the runtime calls that each pair of a cached block makes.
#pragma once

#include <optional>

#include "measure.hpp"

namespace gpumem::bench {

/// Nanoseconds of the thread's processor time an operation; none where memory runs out, or a baseline caches nothing.
result<std::optional<double>> measure_loop(const trace& t, const policy_row& row, const replay_setup& setup);

}  // namespace gpumem::bench
