// The sums that a heap keeps of its blocks.
#pragma once

#include <cstdint>

namespace gpumem {

/// Bytes and blocks by state. The pool adds the rest of the statistics.
struct heap_totals {
  std::uint64_t live_bytes = 0;
  std::uint64_t cached_bytes = 0;
  std::uint64_t idle_bytes = 0;
  std::uint64_t fenced_bytes = 0;
  std::uint64_t leaked_bytes = 0;
  std::uint64_t segment_bytes = 0;  ///< without unbacked bytes
  std::uint64_t unbacked_bytes = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t free_blocks = 0;
  std::uint64_t fenced_blocks = 0;
  std::uint64_t leaked_blocks = 0;
  std::uint64_t segments = 0;  ///< without those that have no memory at all
  friend bool operator==(const heap_totals&, const heap_totals&) = default;
};

}  // namespace gpumem
