// How much threads' caches may keep.
//
// A block in a cache cannot be merged with its neighbours, so what is placed meanwhile lies elsewhere than best fit has
// it, which near the limit costs utilization. So nothing is kept before the pool is calm: no new peak of live bytes,
// and no request for which the caches had to be emptied, for some time. From then on each thread keeps a share of what
// is free, and the less the fuller the segments are. The constants are those at which no recorded trace loses
// utilization. The pool's lock guards it.
#pragma once

#include <cstdint>

#include "cache_source.hpp"
#include "stream_cache.hpp"

namespace gpumem {

class retention {
 public:
  /// A request that no cache served, of so many bytes; `peak_live` bytes were live at most so far.
  void served_below(std::uint64_t bytes, std::uint64_t peak_live) noexcept {
    if (peak_live - peak_ > peak_live / risen) {
      peak_ = peak_live;
      pressure();
    }
    ++requests_;
    bytes_ += bytes;
  }
  /// A request for which caches had to be emptied: the count to calm begins anew. What threads keep goes back when
  /// memory is short. Each learns of its new limit at its next free that comes by the lock.
  void pressure() noexcept { requests_ = bytes_ = 0; }

  /// Bytes that one thread may keep of blocks of that size.
  [[nodiscard]] std::uint64_t may_keep(std::uint64_t bytes, const class_usage& usage) const noexcept {
    const bool is_small = !bin_index::is_limited(bytes / block_granularity);
    const bool turned_over = peak_ != 0 && bytes_ >= calm_before * peak_;
    if (usage.bytes == 0 || (!turned_over && !(is_small && requests_ >= small_calm))) return 0;
    const double share = peak_ <= usage.bytes / 2 ? roomy_share : tight_share;
    const auto free = static_cast<double>(usage.free_bytes);
    return static_cast<std::uint64_t>(share * free * free / static_cast<double>(usage.bytes));
  }

 private:
  static constexpr unsigned calm_before = 128;      // times the peak of live bytes, before large blocks are kept
  static constexpr std::uint64_t small_calm = 512;  // requests, before small blocks are
  static constexpr std::uint64_t risen = 64;        // a peak that is higher by that part: the program still grows
  // Of what is free, times the part that is free: where there is twice of what was ever live, and where there is less.
  static constexpr double roomy_share = 0.5;
  static constexpr double tight_share = 0.02;

  std::uint64_t peak_ = 0;      ///< of live bytes, as it was when the count began anew
  std::uint64_t requests_ = 0;  ///< since then
  std::uint64_t bytes_ = 0;     ///< asked for since then
};

}  // namespace gpumem
