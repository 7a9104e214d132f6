// Writes a dump as a memory snapshot of PyTorch, for `torch.cuda._memory_viz`.
//
// A dump has no stacks and no segments. A segment of the snapshot is a contiguous address range that the dump's blocks
// covered; blocks that are not live at the end are inactive in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpumem::cli {

enum class dumped_action : std::uint8_t { allocated, freed, refused };

struct dumped_row {
  std::uint64_t time_us = 0;
  std::uint64_t address = 0;  ///< of a refused request: the most bytes that the pool could have held
  std::uint64_t bytes = 0;
  std::uint64_t stream = 0;
  dumped_action action = dumped_action::allocated;
};

/// The rows of one pool. The blocks that were live before the events come first.
struct dumped_pool {
  std::vector<dumped_row> live_before;
  std::vector<dumped_row> events;
};

/// The contents of the file; each pool is a device of the snapshot.
[[nodiscard]] std::string snapshot_of(const std::vector<dumped_pool>& pools);

}  // namespace gpumem::cli
