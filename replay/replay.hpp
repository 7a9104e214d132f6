/// Replays a trace through an allocator over the simulated device, or over CUDA streams (cuda_replay_device.hpp).
///
/// The host starts an operation 5 us of virtual time after the previous one, or at the trace's time if later. Work on a
/// block is enqueued after its allocation and just before its free. The device lags behind the host, so a freed block
/// is still in use for `lag_ns`. A free on a stream other than the block's counts as a use there. One thread; several
/// replays may run at once, each on its own device.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "gpumem/statistics.hpp"
#include "gpumem/status.hpp"
#include "memory_log.hpp"
#include "schedule.hpp"
#include "trace.hpp"

namespace gpumem::bench {

class cuda_replay_device;

/// The input of a replay. Tenant k starts k * ops / 2 operations after the first, with its own streams. It allocates
/// from logical device k, or from the only one.
struct replay_plan {
  const trace* recorded = nullptr;
  std::vector<second_use> second_uses;
  unsigned tenants = 1;
  std::uint64_t lag_ns = 1'000'000;
  std::size_t most_ops = SIZE_MAX;  ///< operations of the trace to replay; the rest is left out
  std::size_t trim_every = 0;       ///< trims idle segments after this many operations; 0: never
  std::function<void()> at_half{};  ///< called in the middle of the replay; may be empty
  bool sample_peak = true;          ///< for `replay_outcome::at_peak`; takes longer than the operations
  memory_log* log = nullptr;        ///< receives every block of a checked replay; may be null
};

/// Sums over all pools at the peak of reserved memory; of several such moments, at the one with the most live memory.
struct fragmentation {
  double external = 0;  ///< 1 - largest free / free, each summed over the pools; 0 if nothing is free
  double internal = 0;  ///< 1 - requested / live
  std::uint64_t largest_free_bytes = 0;
};

struct replay_outcome {
  std::uint64_t ops = 0;              ///< completed operations
  std::uint64_t elapsed_ns = 0;       ///< CPU time of the operations only
  std::uint64_t peak_live_bytes = 0;  ///< requests rounded up to 512; this and the fields below only in checked replays
  fragmentation at_peak;
  bool oom = false;  ///< stopped at operation `ops`, which is not counted
  oom_cause cause = oom_cause::none;
};

/// Reports every block to the referee, and runs every pool's `check` at the end. An error is a defect of the allocator
/// (a refused free, a broken invariant); running out of memory is an outcome.
result<replay_outcome> replay_checked(const replay_plan& plan, allocator& memory, sim_device& device);

/// Runs the operations without the checks; `elapsed_ns` is their time.
result<replay_outcome> replay_timed(const replay_plan& plan, allocator& memory, sim_device& device);

/// On CUDA streams. Times on a GPU are wall-clock, because driver calls may really wait.
result<replay_outcome> replay_checked(const replay_plan& plan, allocator& memory, cuda_replay_device& device);
result<replay_outcome> replay_timed(const replay_plan& plan, allocator& memory, cuda_replay_device& device);

}  // namespace gpumem::bench
