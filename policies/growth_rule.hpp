/// When a pool grows in plain segments: the size of the next one, and whether an idle one goes back first.
///
/// The rule weighs device time against memory at one exchange rate, in microseconds per MiB. It has three parameters:
///
/// | parameter        |                                                                                  |
/// |------------------|----------------------------------------------------------------------------------|
/// | `exchange_rate`  | the device time that the pool spends at most to hold one MiB less                |
/// | first step       | a pool grows by 32 MiB at least                                                  |
/// | small pool       | up to 256 MiB, requests of less than a step share segments; above, of half a first step |
///
/// **Steps.** Small requests share a segment of one step. With steps of s bytes, a pool of R bytes takes R / s calls at
/// a price p each and wastes s / 2 on average at the rate r. Their sum is least at s = sqrt(2 p R / r), the economic
/// order quantity (Harris 1913), so a pool reaches R bytes in about sqrt(2 R r / p) steps. A step is at most half the
/// pool.
///
/// **Giving back** is ski rental (Karlin et al. 1988). To hold an idle segment costs its bytes at the rate, once; to
/// give it back and take such a segment anew costs two calls, each time. A segment goes back if the calls cost less
/// than the growth that it saves, and while all such calls together have cost less than the pool's bytes at the rate.
/// So the pool spends at most that much in addition to growing, and requests that return in each step soon keep their
/// segments. The bound assumes that calls cost what call_prices.hpp says.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "bits.hpp"
#include "call_prices.hpp"

namespace gpumem {

class growth_rule {
 public:
  static constexpr std::uint64_t default_exchange_rate = 24;
  static constexpr std::uint64_t first_step_bytes = 32 * mib;
  static constexpr std::uint64_t small_pool_bytes = 256 * mib;

  /// `exchange_rate` is in microseconds per MiB. At 0 memory is free: a step is half the pool, and no segment goes
  /// back.
  explicit growth_rule(std::uint64_t exchange_rate = default_exchange_rate) noexcept
      : us_per_byte_{static_cast<double>(exchange_rate) / static_cast<double>(mib)} {}

  /// The segment shared by small requests, in a pool that holds `held_bytes`.
  [[nodiscard]] std::uint64_t step_bytes(std::uint64_t held_bytes) const noexcept {
    const double price_us = price_of_taking(0);
    const auto held = static_cast<double>(held_bytes);
    const double best = us_per_byte_ > 0 ? std::sqrt(2 * price_us * held / us_per_byte_) : held;
    return std::max(first_step_bytes, static_cast<std::uint64_t>(std::min(best, held / 2)));
  }

  /// The segment for a request that fits nowhere: a shared one, or one of the request's own size.
  [[nodiscard]] std::uint64_t covering(std::uint64_t need_bytes, std::uint64_t held_bytes) const noexcept {
    const std::uint64_t step = step_bytes(held_bytes);
    const std::uint64_t own_from = held_bytes < small_pool_bytes ? step : first_step_bytes / 2;
    return need_bytes >= own_from ? need_bytes : step;
  }

  /// Whether an idle segment goes back before a pool of `held_bytes` grows by `grow_bytes`.
  [[nodiscard]] bool returns(std::uint64_t segment_bytes, std::uint64_t grow_bytes,
                             std::uint64_t held_bytes) const noexcept {
    const double price_us = price_of_returning(segment_bytes) + price_of_taking(segment_bytes);
    return price_us <= worth_us(std::min(segment_bytes, grow_bytes)) && spent_us_ + price_us <= worth_us(held_bytes);
  }

  /// Call when such a segment has gone.
  void returned(std::uint64_t segment_bytes) noexcept {
    spent_us_ += price_of_returning(segment_bytes) + price_of_taking(segment_bytes);
  }

 private:
  [[nodiscard]] double worth_us(std::uint64_t bytes) const noexcept {
    return static_cast<double>(bytes) * us_per_byte_;
  }

  double us_per_byte_;
  double spent_us_ = 0;  ///< on segments that went back before the pool grew
};

}  // namespace gpumem
