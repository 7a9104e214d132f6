// Where a request goes among what is free: the smallest block that fits, or on a paged pool, for large ones, the
// lowest.
//
// Reads the heap and changes nothing; the caller cuts the block out.
#pragma once

#include <cstdint>

#include "gpumem/policy.hpp"
#include "heap.hpp"

namespace gpumem {

struct placement_request {
  owner_id owner = idle_owner;  ///< whose free blocks may serve, besides the idle ones
  unsigned segment_class = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 512;
};

/// A block to cut the request out of: at its lower end, or at its upper one.
struct free_place {
  block_index block = no_block;  ///< `no_block`: nothing that is free fits
  bool upper_end = false;
};

class best_fit {
 public:
  best_fit() = default;
  explicit best_fit(const page_rules& rules) : rules_{rules} {}

  [[nodiscard]] free_place find(const heap& pool_heap, const placement_request& request) const noexcept;
  /// Of such a request the lowest place is taken, where large holes count: idle memory beside the owner's own should be
  /// merged with it first.
  [[nodiscard]] bool takes_lowest(std::uint64_t bytes) const noexcept { return bytes >= rules_.lowest_fit_bytes; }
  /// Such a request takes the upper end of its place: small blocks and large ones then share fewer pages.
  [[nodiscard]] bool takes_upper_end(const heap& pool_heap, std::uint64_t bytes,
                                     std::uint64_t alignment) const noexcept {
    return bytes < rules_.upper_end_bytes && alignment == 512 &&
           pool_heap.totals().segment_bytes < rules_.upper_end_pool_bytes;
  }

 private:
  page_rules rules_;
};

}  // namespace gpumem
