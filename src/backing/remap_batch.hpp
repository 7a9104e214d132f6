// One step of paging as driver calls: new runs are made, idle ones unmapped, both mapped where memory is missing.
//
// The pool plans it and takes it into account under its lock; `execute` makes the calls without one. Whatever fails,
// it says of every run what has become of it.
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
    untouched,  ///< where it was; a new run does not exist
    arrived,    ///< behind the address it was meant for
    destroyed,  ///< given back to the device
    stranded,   ///< mapped where it was to go and not accessible; it is unmapped when no capture forbids it
    lost,       ///< the driver failed on it: nobody's
  };
  struct run {
    mapped_run source;  ///< of a run that moves, where it is; of a new one, `bytes` only
    address target = 0;
    bool moves = false;
    outcome state = outcome::untouched;
  };
  bool may_unmap = true;               ///< false while something captures: then no run moves
  std::vector<unbacked_piece> pieces;  ///< what has memory behind it in the end, lowest first
  std::vector<run> runs;               ///< which cover the pieces; those that move by where they are
  std::uint64_t new_bytes = 0;         ///< of new runs, as planned
  std::uint64_t made_bytes = 0;        ///< of new runs that the device gave, whatever became of them
  std::uint64_t refused_bytes = 0;     ///< of the new run that the device had too little for
};

/// `out_of_memory` where the device had too little: then nothing has changed. Every run says what it has become.
/// `observers`, if not null, are told of what moves before it goes and after it arrived.
status execute(device& gpu, remap_batch& step, const segment_observers* observers = nullptr);

/// What became of runs that were to go.
struct returned_runs {
  status why;                   ///< of the first call that failed
  bool unmapped = true;         ///< else nothing has changed
  std::uint64_t destroyed = 0;  ///< bytes that the device has again
};
/// Unmaps and destroys runs that lie side by side. `observers`, if not null, are told before.
returned_runs return_runs(device& gpu, std::span<const mapped_run> runs, const segment_observers* observers = nullptr);

}  // namespace gpumem
