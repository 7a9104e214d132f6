// Serves a request from free memory: the smallest block that fits, or for large requests to a paged pool, the lowest.
#pragma once

#include <cstdint>

#include "heap.hpp"

namespace gpumem {

/// How a request uses idle memory beside its owner's free blocks.
enum class idle_memory : std::uint8_t {
  alike,   ///< as the owner's own
  joined,  ///< likewise, and a large request first merges the owner's free blocks with idle neighbours
  last,    ///< only if no block of the owner fits, so that other owners find it
  none,    ///< not at all
};

struct placement_request {
  owner_id owner = idle_owner;  ///< may use its own free blocks and idle ones
  unsigned segment_class = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 512;
  idle_memory idle = idle_memory::joined;
  bool may_divide = false;  ///< also segments that should stay whole
};

/// The rules of `page_rules` (gpumem/policy.hpp); without them, the smallest block that fits, at its lower end.
struct best_fit {
  /// Requests of this size and more take the lowest block that fits. Requests below `upper_end_bytes` take the upper
  /// end of their block, while the heap holds less than `upper_end_pool_bytes`.
  std::uint64_t lowest_fit_bytes = UINT64_MAX;
  std::uint64_t upper_end_bytes = 0;
  std::uint64_t upper_end_pool_bytes = 0;
  /// In a pool with several streams, once it grew although a free block of another stream, where work was pending,
  /// would have held the request (in a pool of segments, once the program also repeats its step): from then on streams
  /// take their own free memory before idle memory. Else a stream whose blocks have one large neighbour takes over all
  /// idle memory bit by bit: free blocks that merge are as pending as the latest of them, so other streams never find
  /// that memory done, and the pool grows at each repetition.
  bool idle_last = false;
  /// A request that would be in the way of large ones in the best fitting segment (whole_segments.hpp) takes the next
  /// best block, or that segment if another such segment of its size or more is wholly free, or nothing.
  bool keeps_segments_whole = false;

  /// Carves a live block from free memory; `no_block` if nothing fits.
  [[nodiscard]] block_index take(heap& pool_heap, const placement_request& request) const;

 private:
  [[nodiscard]] static block_index not_in_the_way(const heap& pool_heap, const placement_request& request,
                                                  block_index found) noexcept;
};

}  // namespace gpumem
