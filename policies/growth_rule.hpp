/// When a pool grows: the size of the next step, and whether an idle segment goes back first.
///
/// A pool spends device time to save bytes while that pays, at one exchange rate, with one more parameter: the least
/// step (growth_rule::least_step_bytes).
///
/// **Steps.** Small requests share a segment of one step. With steps of s bytes, a pool of R bytes takes R / s calls at
/// a price p each and wastes s / 2 on average at the rate r. Their sum is least at s = sqrt(2 p R / r), the economic
/// order quantity (Harris 1913), so a pool reaches R bytes in about sqrt(2 R r / p) steps. A step is at most half the
/// pool.
///
/// **Giving back** is ski rental (Karlin et al. 1988). To hold an idle segment costs its bytes at the rate, once; to
/// give it back and take such a segment anew costs two calls, each time. A segment goes back if the calls cost less
/// than the growth that it saves, and while all such calls together have cost less than the pool's bytes at the rate.
/// So the pool spends at most twice the cost of the better fixed choice (to give segments back always, or never) until
/// the program repeats its step; from then on none goes back, since the step would take it again each time. The bound
/// assumes the prices of call_prices.hpp, and that bytes cost only where the pool's peak rises.
///
/// **Merging** makes one segment of the idle ones (segment_merger.hpp), while the bytes held beyond the peak of live
/// memory, which are the most that it saves, are worth more than all such calls together have cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "bits.hpp"
#include "call_prices.hpp"

namespace gpumem {

class growth_rule {
 public:
  /// A pool grows by this much at least, and a request of this size gets a segment of its own.
  static constexpr std::uint64_t least_step_bytes = 16 * mib;
  static constexpr std::uint64_t default_exchange_rate = 96;

  /// `exchange_rate`: the device time, in microseconds, that the pool spends at most to hold one MiB less. At 0 memory
  /// is free: a step is half the pool, and nothing goes back.
  growth_rule(std::uint64_t exchange_rate, const call_prices& prices) noexcept
      : us_per_byte_{static_cast<double>(exchange_rate) / static_cast<double>(mib)}, prices_{prices} {}

  /// A step of a pool that holds `held_bytes`, in plain segments or in pages.
  [[nodiscard]] std::uint64_t step_bytes(std::uint64_t held_bytes, bool paged = false) const {
    const auto held = static_cast<double>(held_bytes);
    const double price = (paged ? prices_.map_run : prices_.take)(0);
    const double best = us_per_byte_ > 0 ? std::sqrt(2 * price * held / us_per_byte_) : held;
    return std::max(least_step_bytes, static_cast<std::uint64_t>(std::min(best, held / 2)));
  }

  /// The segment for a request that fits nowhere: a shared one, which requests of its size fill without a rest, or one
  /// of the request's own size.
  [[nodiscard]] std::uint64_t covering(std::uint64_t need_bytes, std::uint64_t held_bytes) const {
    if (need_bytes >= least_step_bytes || need_bytes == 0) return need_bytes;
    return round_down(step_bytes(held_bytes), need_bytes);
  }

  /// Whether an idle segment goes back if a pool of `held_bytes` then grows by `grow_bytes` less.
  [[nodiscard]] bool returns(std::uint64_t segment_bytes, std::uint64_t grow_bytes, std::uint64_t held_bytes) const {
    const double price = round_trip_us(segment_bytes);
    return price <= worth_us(std::min(segment_bytes, grow_bytes)) && spent_us_ + price <= worth_us(held_bytes);
  }

  /// Whether `segments` idle segments become one while the pool holds `beyond_bytes` beyond the peak of live memory.
  [[nodiscard]] bool merges(std::uint64_t idle_bytes, std::uint64_t segments, std::uint64_t beyond_bytes) const {
    const double each_us = round_trip_us(idle_bytes / std::max<std::uint64_t>(segments, 1));
    return spent_us_ + static_cast<double>(segments) * each_us <= worth_us(beyond_bytes);
  }

  /// Whether pages that moved one by one have cost as much as the pool's `held_bytes` are worth.
  [[nodiscard]] bool moves_cost(std::uint64_t moved_bytes, std::uint64_t held_bytes, std::uint64_t page_bytes) const {
    return static_cast<double>(moved_bytes / page_bytes) * prices_.map_run(page_bytes) >= worth_us(held_bytes);
  }

  /// Call when such a segment has gone.
  void returned(std::uint64_t segment_bytes) { spent_us_ += round_trip_us(segment_bytes); }

 private:
  [[nodiscard]] double worth_us(std::uint64_t bytes) const { return static_cast<double>(bytes) * us_per_byte_; }
  [[nodiscard]] double round_trip_us(std::uint64_t bytes) const {
    return prices_.give_back(bytes) + prices_.take(bytes);
  }

  double us_per_byte_;
  call_prices prices_;
  double spent_us_ = 0;  ///< on segments that went back before the pool grew
};

}  // namespace gpumem
