/// Times a trace as a tight loop (replay_loop.hpp) over one allocator, without any work around a call.
///
/// Each operation is one call: `allocator::allocate` or `deallocate` of gpumem over the simulated device; `allocate` or
/// `release` of a baseline's plug-in over the simulated driver. Enqueues no work and moves no clock. The first pass
/// takes memory from the device and does not count; of the following passes the fastest counts. Subtracts from a
/// baseline's time the runtime calls that each cached pair makes in the simulated driver, timed alone between the
/// passes.
#pragma once

#include <optional>

#include "measure.hpp"

namespace gpumem::bench {

/// Nanoseconds of thread CPU time an operation. Empty if memory runs out, if the baseline caches nothing, or where
/// `time_without_calls` is.
result<std::optional<double>> measure_loop(const trace& recorded, const policy_row& row, const replay_setup& setup);

/// The rest of a loop's time. Empty if the calls took as long alone: the processor's speed changed meanwhile.
std::optional<double> time_without_calls(double loop_ns, double calls_ns);

}  // namespace gpumem::bench
