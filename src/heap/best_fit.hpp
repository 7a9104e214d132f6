// Serves a request from free memory: the smallest block that fits, or for large requests to a paged pool, the lowest.
#pragma once

#include <cstdint>

#include "heap.hpp"

namespace gpumem {

struct placement_request {
  owner_id owner = idle_owner;  ///< may use its own free blocks and idle ones
  unsigned segment_class = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 512;
  bool idle_apart = false;  ///< idle memory must not join the owner's free blocks
};

/// The fields are those of `page_rules` (gpumem/policy.hpp).
struct best_fit {
  std::uint64_t lowest_fit_bytes = UINT64_MAX;
  std::uint64_t upper_end_bytes = 0;
  std::uint64_t upper_end_pool_bytes = 0;

  /// Carves a live block from free memory; `no_block` if nothing fits.
  [[nodiscard]] block_index take(heap& pool_heap, const placement_request& request) const;
};

}  // namespace gpumem
