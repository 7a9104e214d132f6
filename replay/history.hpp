/// A replay's memory over time, small enough to display: points that keep every extreme, and maps of the addresses.
///
/// Pure: computed from a log (memory_log.hpp). A history has some 2,000 points and `history_shape::frames` maps for a
/// replay of any length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory_log.hpp"

namespace gpumem::bench {

struct history_shape {
  std::uint64_t buckets = 500;  ///< groups of operations; each keeps the extremes of live and of reserved
  std::uint64_t frames = 160;
  std::uint64_t cells = 1024;  ///< cells of a map, approximately
};

/// The state after an operation.
struct history_point {
  std::uint64_t op = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t reserved_bytes = 0;
  friend bool operator==(const history_point&, const history_point&) = default;
};

/// The address space after an operation. A hole is free memory between two blocks, or between a block and the end of
/// its segment: the largest request that fits there, whichever stream freed it.
struct map_frame {
  std::uint64_t op = 0;
  std::uint64_t live_bytes = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t holes = 0;
  std::uint64_t largest_hole_bytes = 0;
  /// One letter a cell: `.` no memory is mapped, `a` all free, `b` to `h` increasingly live, `i` all live.
  std::string cells;

  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return reserved_bytes - live_bytes; }
  [[nodiscard]] double external_fragmentation() const noexcept;  ///< 1 - largest hole / free; 0 if nothing is free
  [[nodiscard]] double internal_fragmentation() const noexcept;  ///< 1 - requested / live
};

struct history {
  std::uint64_t ops = 0;
  std::uint64_t capacity_bytes = 0;  ///< sum of the limits of all pools; not in the log, set by the caller
  std::vector<history_point> points;
  std::uint64_t cell_bytes = 0;
  std::vector<std::uint64_t> piece_cells;  ///< by contiguous piece of address space, in order of address
  std::uint64_t never_used_bytes = 0;      ///< reserved above the last byte used in each piece; not on the map
  std::vector<map_frame> frames;
};

/// `ops` is the number of operations replayed.
history make_history(const memory_log& log, std::uint64_t ops, const history_shape& shape = {});

/// `aaaaab..` as `a5b1.2`: each letter and its run length.
std::string run_lengths(const std::string& cells);

}  // namespace gpumem::bench
