// The sums that a heap keeps of its blocks, by state and by class.
//
// A change of a block removes it, changes its record, and adds it again. The pool's lock guards everything.
#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"

namespace gpumem {

/// Bytes and blocks by state. The pool adds the rest of the statistics.
struct heap_totals {
  std::uint64_t live_bytes = 0;
  std::uint64_t cached_bytes = 0;
  std::uint64_t idle_bytes = 0;
  std::uint64_t fenced_bytes = 0;
  std::uint64_t leaked_bytes = 0;
  std::uint64_t segment_bytes = 0;   ///< without unbacked bytes
  std::uint64_t unbacked_bytes = 0;  ///< and vacating ones
  std::uint64_t live_blocks = 0;
  std::uint64_t free_blocks = 0;
  std::uint64_t fenced_blocks = 0;
  std::uint64_t leaked_blocks = 0;
  std::uint64_t segments = 0;  ///< without those that have no memory at all
  friend bool operator==(const heap_totals&, const heap_totals&) = default;
};

/// Bytes of one class's segments, and how many of them are cached or idle.
struct class_totals {
  std::uint64_t segment_bytes = 0;
  std::uint64_t free_bytes = 0;
  friend bool operator==(const class_totals&, const class_totals&) = default;
};

class heap_counters {
 public:
  explicit heap_counters(unsigned classes) : by_class_(classes) {}

  /// Adds a block of a segment. A block without memory that is a whole segment takes the segment out of `segments`.
  void add(const block& added) noexcept { count(added, 1); }
  void remove(const block& removed) noexcept { count(removed, std::uint64_t{0} - 1); }
  /// Adds a segment. Its blocks count on their own.
  void add_segment() noexcept { ++totals_.segments; }
  void remove_segment() noexcept { --totals_.segments; }
  /// Adds `bytes` (mod 2^64) to the memory of a class's segments.
  void add_memory(unsigned segment_class, std::uint64_t bytes) noexcept {
    totals_.segment_bytes += bytes;
    by_class_[segment_class].segment_bytes += bytes;
  }

  [[nodiscard]] const heap_totals& totals() const noexcept { return totals_; }
  [[nodiscard]] const class_totals& totals(unsigned segment_class) const noexcept { return by_class_[segment_class]; }
  friend bool operator==(const heap_counters&, const heap_counters&) = default;

 private:
  void count(const block& counted, std::uint64_t sign) noexcept {
    const std::uint64_t bytes = sign * counted.bytes;
    switch (counted.state) {
      case block_state::live:
        totals_.live_bytes += bytes;
        totals_.live_blocks += sign;
        break;
      case block_state::free:
        (counted.owner == idle_owner ? totals_.idle_bytes : totals_.cached_bytes) += bytes;
        totals_.free_blocks += sign;
        by_class_[counted.segment_class].free_bytes += bytes;
        break;
      case block_state::fenced:
        totals_.fenced_bytes += bytes;
        totals_.fenced_blocks += sign;
        break;
      case block_state::leaked:
        totals_.leaked_bytes += bytes;
        totals_.leaked_blocks += sign;
        break;
      case block_state::unbacked:
      case block_state::vacating:
        totals_.unbacked_bytes += bytes;
        if (counted.prev == no_block && counted.next == no_block) totals_.segments -= sign;
        break;
      case block_state::unused:
        break;
    }
  }

  heap_totals totals_;
  std::vector<class_totals> by_class_;
};

}  // namespace gpumem
