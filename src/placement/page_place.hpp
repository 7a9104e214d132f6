// Where in a paged segment a request goes that fits nowhere in what has memory behind it.
//
// Between two blocks in use, all is free or unbacked: a span. A request may lie anywhere in a span that is long enough;
// it goes where the fewest pages are missing, and of equals to the lowest place. Reads the heap and changes nothing.
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

/// The pages that a stretch of addresses touches.
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

/// The cheapest place for `bytes` at `alignment` among what is unbacked, free for `owner` or idle in segments of the
/// class; none where no span with something unbacked is long enough. Requires that unbacked blocks are whole pages.
std::optional<page_place> cheapest_place(const heap& pool_heap, unsigned segment_class, owner_id owner,
                                         std::uint64_t bytes, std::uint64_t alignment, std::uint64_t page_bytes);

/// What is unbacked behind `bytes` at the place, in the order of addresses; together `missing_bytes`.
std::vector<unbacked_piece> missing_pieces(const heap& pool_heap, const page_place& place, std::uint64_t bytes,
                                           std::uint64_t page_bytes);

}  // namespace gpumem
