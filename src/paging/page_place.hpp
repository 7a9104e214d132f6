// Finds the place in a paged segment for a request that no free block fits.
//
// A span is the free and unbacked addresses between two blocks in use. A request may lie anywhere in a span that is
// long enough. It takes the place with the fewest missing bytes, and among equals the lowest. Reads the heap and
// changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bits.hpp"
#include "heap.hpp"

namespace gpumem {

/// Unbacked addresses, whole pages.
struct unbacked_piece {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// The page-aligned range of the pages that an address range touches.
struct page_span {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
[[nodiscard]] constexpr page_span pages_of(std::uint64_t begin, std::uint64_t bytes,
                                           std::uint64_t page_bytes) noexcept {
  return {round_down(begin, page_bytes), round_up(begin + bytes, page_bytes)};
}

struct page_place {
  std::uint64_t begin = 0;  ///< of the request
  block_index first = no_block;
  std::uint64_t missing_bytes = 0;
};

/// Returns the cheapest place for `bytes` at `alignment` in spans of `segment_class` that are unbacked, free for
/// `owner`, or idle. Empty if no span with an unbacked block is long enough. Requires unbacked blocks of whole pages.
std::optional<page_place> cheapest_place(const heap& pool_heap, unsigned segment_class, owner_id owner,
                                         std::uint64_t bytes, std::uint64_t alignment, std::uint64_t page_bytes);

/// Returns the unbacked pieces of the pages that `bytes` at `place` touch, lowest first; their sum is `missing_bytes`.
std::vector<unbacked_piece> missing_pieces(const heap& pool_heap, const page_place& place, std::uint64_t bytes,
                                           std::uint64_t page_bytes);

}  // namespace gpumem
