// Limits how much threads' caches keep.
//
// A cached block cannot be merged with its neighbours, so later blocks lie elsewhere than best fit would put them,
// which costs utilization near the limit. So nothing is kept before the pool is calm: no new peak of live bytes, and no
// request for which the caches had to be emptied, for some time. From then on each thread keeps a share of the free
// memory, which is smaller the fuller the segments are. With these constants no recorded trace loses utilization. The
// pool's lock guards it.
#pragma once

#include <cstdint>

#include "cache_source.hpp"
#include "stream_cache.hpp"

namespace gpumem {

class retention {
 public:
  /// Counts a request of `bytes` that no cache served; at most `peak_live` bytes were live so far.
  void served_below(std::uint64_t bytes, std::uint64_t peak_live) noexcept {
    if (peak_live - peak_ > peak_live / risen) {
      peak_ = peak_live;
      pressure();
    }
    ++requests_;
    bytes_ += bytes;
  }
  /// The caches had to be emptied for a request: the count to calm restarts. Cached blocks go back when memory is
  /// short. Each thread learns of its new limit at its next free under the lock.
  void pressure() noexcept { requests_ = bytes_ = 0; }

  /// The bytes of blocks of that size that one thread may keep.
  [[nodiscard]] std::uint64_t may_keep(std::uint64_t bytes, const class_usage& usage) const noexcept {
    const bool is_small = !bin_index::is_limited(bytes / block_granularity);
    const bool turned_over = peak_ != 0 && bytes_ >= calm_before * peak_;
    if (usage.bytes == 0 || (!turned_over && !(is_small && requests_ >= small_calm))) return 0;
    const double share = peak_ <= usage.bytes / 2 ? roomy_share : tight_share;
    const auto free = static_cast<double>(usage.free_bytes);
    return static_cast<std::uint64_t>(share * free * free / static_cast<double>(usage.bytes));
  }

 private:
  static constexpr unsigned calm_before = 128;      // requested bytes per peak byte before large blocks are kept
  static constexpr std::uint64_t small_calm = 512;  // requests before small blocks are kept
  static constexpr std::uint64_t risen = 64;        // a peak higher by 1/64 means that the program still grows
  // Share of the free bytes, times their fraction: roomy if the segments are twice the peak of live bytes, else tight.
  static constexpr double roomy_share = 0.5;
  static constexpr double tight_share = 0.02;

  std::uint64_t peak_ = 0;      ///< of live bytes, when the count restarted
  std::uint64_t requests_ = 0;  ///< since then
  std::uint64_t bytes_ = 0;     ///< requested since then
};

}  // namespace gpumem
