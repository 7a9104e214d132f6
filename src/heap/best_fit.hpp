// Finds a free block for a request: the smallest that fits, or for large requests to a paged pool, the lowest.
//
// Reads the heap and changes nothing; the caller carves the block.
#pragma once

#include <cstdint>

#include "gpumem/policy.hpp"
#include "heap.hpp"

namespace gpumem {

struct placement_request {
  owner_id owner = idle_owner;  ///< may use its own free blocks and idle ones
  unsigned segment_class = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 512;
};

/// The free block to carve the request from, and at which end.
struct free_place {
  block_index block = no_block;  ///< `no_block` if no free block fits
  bool upper_end = false;
};

class best_fit {
 public:
  best_fit() = default;
  explicit best_fit(const page_rules& rules) : rules_{rules} {}

  [[nodiscard]] free_place find(const heap& pool_heap, const placement_request& request) const noexcept;
  /// True if a request of `bytes` takes the lowest place. The caller should merge the owner's free blocks with idle
  /// neighbours first, to make large holes.
  [[nodiscard]] bool takes_lowest(std::uint64_t bytes) const noexcept { return bytes >= rules_.lowest_fit_bytes; }
  /// True if the request takes the upper end of its block, so that small and large blocks share fewer pages.
  [[nodiscard]] bool takes_upper_end(const heap& pool_heap, std::uint64_t bytes,
                                     std::uint64_t alignment) const noexcept {
    return bytes < rules_.upper_end_bytes && alignment == 512 &&
           pool_heap.totals().segment_bytes < rules_.upper_end_pool_bytes;
  }

 private:
  page_rules rules_;
};

}  // namespace gpumem
