/// Replays a trace through an allocator over the simulated device, or over CUDA streams (cuda_stage.hpp).
///
/// Each operation takes the host 5 us of virtual time, or until the trace's own time. An allocation enqueues work on
/// its block, and so does a free just before it: the device lags behind the host, and a block that comes back is
/// still in use for `lag_ns`. A free on another stream than the block's counts as a use there.
/// One thread; several replays may run at once, each on a device of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "gpumem/statistics.hpp"
#include "gpumem/status.hpp"
#include "memory_log.hpp"
#include "schedule.hpp"
#include "trace.hpp"

namespace gpumem::bench {

class cuda_stage;

/// What to replay. Tenant k starts k * ops / 2 operations after the first and has streams of its own; it allocates
/// from logical device k, or from the only one there is.
struct replay_plan {
  const trace* recorded = nullptr;
  std::vector<second_use> second_uses;
  unsigned tenants = 1;
  std::uint64_t lag_ns = 1'000'000;
  std::size_t most_ops = SIZE_MAX;  ///< of the trace; the rest is left out
  std::size_t trim_every = 0;       ///< idle segments are given back after so many operations; 0: never
  memory_log* log = nullptr;        ///< is told of every block by a checked replay, where there is one
};

/// Of all pools together, at the moment when, with reserved at its peak, most was live.
struct fragmentation {
  double external = 0;  ///< 1 - largest free / free, each summed over the pools; 0 where nothing is free
  double internal = 0;  ///< 1 - requested / live
  std::uint64_t largest_free_bytes = 0;
};

struct replay_outcome {
  std::uint64_t ops = 0;              ///< done
  std::uint64_t elapsed_ns = 0;       ///< processor time of the operations alone
  std::uint64_t peak_live_bytes = 0;  ///< requests rounded up to 512; checked replays only, as what follows
  fragmentation at_peak;
  bool oom = false;  ///< stopped at operation `ops`, which is not counted
  oom_cause cause = oom_cause::none;
};

/// With the referee told of every block, and every pool's `check` at the end. An error is a defect of the allocator
/// (a refused free, an invariant that does not hold); running out of memory is an outcome.
result<replay_outcome> replay_checked(const replay_plan& plan, allocator& over, sim_device& on);

/// The same operations and nothing else; `elapsed_ns` is what they took.
result<replay_outcome> replay_timed(const replay_plan& plan, allocator& over, sim_device& on);

/// The same on CUDA streams. What is timed there is wall-clock time: a driver call may really wait.
result<replay_outcome> replay_checked(const replay_plan& plan, allocator& over, cuda_stage& on);
result<replay_outcome> replay_timed(const replay_plan& plan, allocator& over, cuda_stage& on);

}  // namespace gpumem::bench
