/// Doubling steps as in TensorFlow's allow_growth (bfc_allocator.cc, Extend): a step doubles until it covers the
/// request, and a step that covers its request without doubling doubles for the next one. Unlike there, a refused step
/// changes nothing, so that one far too large request does not make the next small one take everything.
#pragma once

#include <cstdint>

#include "bits.hpp"

namespace gpumem {

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

}  // namespace gpumem
