/// The size of the next segment when a pool grows on demand.
///
/// A large request gets a segment of its own size, because in a shared segment it would leave a hole that no later
/// large request fits. Large means at least clamp(pool / 96, 24 MiB, 32 MiB). All other requests share a segment of one
/// step:
///
/// | the pool holds   | a step                                    |
/// |------------------|-------------------------------------------|
/// | up to 512 MiB    | 16, 32, 64, 128 MiB: doubles, then 128 MiB |
/// | 512 to 768 MiB   | a quarter of the pool                     |
/// | 768 MiB to 6 GiB | 192 MiB                                   |
/// | more             | a thirty-second of the pool               |
///
/// As in TensorFlow's allow_growth, a step doubles until it covers the request, and a step that covers its request
/// without doubling doubles for the next request. Differences:
///
/// - The first step is 16 MiB, not 2 MiB: small first steps leave a row of segments too small for the next requests.
/// - Steps stop doubling, because most of the last step is wasted.
/// - A refused step changes nothing, so that one far too large request does not make the next small one take
/// everything.
///
/// docs/choosing.md has the figures for this policy, and the command that shows them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bits.hpp"

namespace gpumem {

/// Doubling steps as in TensorFlow's allow_growth (bfc_allocator.cc, Extend), except that a refused step changes
/// nothing.
class doubling_steps {
 public:
  static constexpr std::uint64_t tensorflow_first_bytes = 2 * mib;

  /// `first_bytes` is at least 1.
  explicit constexpr doubling_steps(std::uint64_t first_bytes) noexcept
      : first_bytes_{first_bytes}, step_bytes_{first_bytes}, offered_bytes_{first_bytes} {}

  /// The step for a request; at least `need_bytes`.
  constexpr std::uint64_t covering(std::uint64_t need_bytes) noexcept {
    offered_bytes_ = step_bytes_;
    while (offered_bytes_ < need_bytes) offered_bytes_ = doubled(offered_bytes_);
    return offered_bytes_;
  }

  /// States the bytes that the pool holds. The step never exceeds them by more than the first step, so after the pool
  /// returns memory, its steps are those of a pool of the new size.
  constexpr void pool_holds(std::uint64_t held_bytes) noexcept {
    while (step_bytes_ > first_bytes_ && step_bytes_ - first_bytes_ > held_bytes) step_bytes_ /= 2;
  }

  /// Call when the pool has taken the last offered step, in full or in part.
  constexpr void taken() noexcept {
    step_bytes_ = offered_bytes_ > step_bytes_ ? offered_bytes_ : doubled(step_bytes_);
    offered_bytes_ = step_bytes_;
  }

 private:
  static constexpr std::uint64_t doubled(std::uint64_t bytes) noexcept {
    return bytes <= UINT64_MAX / 2 ? bytes * 2 : UINT64_MAX;
  }

  std::uint64_t first_bytes_;
  std::uint64_t step_bytes_;
  std::uint64_t offered_bytes_;
};

class growth_steps {
 public:
  static constexpr std::uint64_t first_step_bytes = 16 * mib;
  // Largest step = max(128 MiB, min(pool / 4, 192 MiB), pool / 32).
  static constexpr std::uint64_t free_step_bytes = 128 * mib;
  static constexpr std::uint64_t small_pool_share = 4;
  static constexpr std::uint64_t small_pool_step_bytes = 192 * mib;
  static constexpr std::uint64_t large_pool_share = 32;

  // A request gets its own segment from clamp(pool / 96, 24 MiB, 32 MiB) on.
  static constexpr std::uint64_t own_segment_bytes = 24 * mib;
  static constexpr std::uint64_t own_segment_share = 96;
  static constexpr std::uint64_t most_shared_bytes = 32 * mib;
  static constexpr std::uint64_t own_segment_unit_bytes = 2 * mib;

  /// `first_bytes` is at least 1.
  explicit constexpr growth_steps(std::uint64_t first_bytes = first_step_bytes) noexcept : steps_{first_bytes} {}

  /// The size of the segment for a request by a pool that holds `held_bytes`; at least `need_bytes`.
  constexpr std::uint64_t covering(std::uint64_t need_bytes, std::uint64_t held_bytes) noexcept {
    offered_own_segment_ =
        need_bytes >= std::clamp(held_bytes / own_segment_share, own_segment_bytes, most_shared_bytes);
    if (offered_own_segment_) return checked_round_up(need_bytes, own_segment_unit_bytes).value_or(need_bytes);
    const std::uint64_t most = std::max({free_step_bytes, held_bytes / large_pool_share,
                                         std::min(held_bytes / small_pool_share, small_pool_step_bytes)});
    return std::max(need_bytes, std::min(steps_.covering(need_bytes), most));
  }

  /// Call when the pool has taken the last offered segment, in full or in part. A segment of its own is not a step.
  constexpr void taken() noexcept {
    if (!offered_own_segment_) steps_.taken();
  }

 private:
  doubling_steps steps_;
  bool offered_own_segment_ = false;
};

}  // namespace gpumem
