// The driver calls of one paging step: creates new runs, unmaps idle runs, and maps both where memory is missing. A run
// whose old addresses have pending work is mapped at the new ones as well, and unmapped at the old ones later.
//
// The pool plans a step and accounts for it under its lock; `execute` makes the calls without the lock. On failure,
// too, it stores the outcome of every run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpumem/device.hpp"
#include "page_map.hpp"
#include "page_place.hpp"
#include "segment_observers.hpp"

namespace gpumem {

struct remap_batch {
  enum class outcome : std::uint8_t {
    untouched,  ///< not moved, and mapped at its source only; a new run was not created
    arrived,    ///< mapped at its target
    destroyed,  ///< returned to the device
    stranded,   ///< mapped at its target but inaccessible; unmapped later, when no capture forbids it
    lost,       ///< the driver failed to unmap or destroy it, so its memory is unusable
  };
  struct run {
    mapped_run source;  ///< the run before the step; of a new run, only `bytes`
    address target = 0;
    bool moves = false;
    bool stays_mapped = false;  ///< moves, but stays mapped at its source, too
    outcome state = outcome::untouched;
  };
  bool may_unmap = true;               ///< false while a stream captures; then no run moves
  owner_id owner = idle_owner;         ///< of the free blocks with the runs that stay mapped
  std::uint64_t epoch = 0;             ///< these were freed up to this epoch of `owner`; then they may be unmapped
  std::vector<unbacked_piece> pieces;  ///< the addresses that the step backs, lowest first
  std::vector<run> runs;  ///< cover the pieces; first the idle runs, then the others that move, each by source address
  std::uint64_t new_bytes = 0;      ///< planned bytes of new runs
  std::uint64_t made_bytes = 0;     ///< bytes of new runs that the device created, whatever their outcome
  std::uint64_t refused_bytes = 0;  ///< bytes of the new run that the device refused
};

/// Executes `step` and stores each run's outcome in it. Changes nothing if the device refuses a new run, for example
/// with `out_of_memory`. Notifies `observers`, if not null, before an unmap and after a map.
status execute(device& gpu, remap_batch& step, const segment_observers* observers = nullptr);

/// Unmaps a range. Notifies `observers`, if not null, before that; if it fails, reports the memory as added again.
status unmap_observed(device& gpu, address begin, std::uint64_t bytes, const segment_observers* observers);

/// The result of `return_runs`.
struct returned_runs {
  status why;                   ///< of the first call that failed
  bool unmapped = true;         ///< if false, nothing has changed
  std::uint64_t destroyed = 0;  ///< bytes returned to the device
};
/// Unmaps and destroys adjacent runs. Notifies `observers`, if not null, before that.
returned_runs return_runs(device& gpu, std::span<const mapped_run> runs, const segment_observers* observers = nullptr);

}  // namespace gpumem
