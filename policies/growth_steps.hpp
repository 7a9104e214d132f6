/// How large the next segment is when a pool grows in doubling steps.
///
/// TensorFlow's rule (bfc_allocator.cc, Extend): start at 2 MiB; double until the step covers the request; a step
/// that did not have to be doubled for its request is doubled after it was taken. So segments get larger at every
/// growth, and their number stays logarithmic in the pool's size. Unlike there, a step that was refused leaves no
/// trace: one request that is far too large must not make the next small one take everything.
#pragma once

#include <cstdint>

#include "bits.hpp"

namespace gpumem {

class growth_steps {
 public:
  /// `first_bytes` is at least 1.
  explicit constexpr growth_steps(std::uint64_t first_bytes = 2 * mib) noexcept
      : step_bytes_{first_bytes}, offered_bytes_{first_bytes} {}

  /// The step for a request, at least `need_bytes`.
  constexpr std::uint64_t covering(std::uint64_t need_bytes) noexcept {
    offered_bytes_ = step_bytes_;
    while (offered_bytes_ < need_bytes) offered_bytes_ = doubled(offered_bytes_);
    return offered_bytes_;
  }

  /// The step offered last was taken, in full or as far as it went.
  constexpr void taken() noexcept {
    step_bytes_ = offered_bytes_ > step_bytes_ ? offered_bytes_ : doubled(step_bytes_);
    offered_bytes_ = step_bytes_;
  }

 private:
  static constexpr std::uint64_t doubled(std::uint64_t bytes) noexcept {
    return bytes <= UINT64_MAX / 2 ? bytes * 2 : UINT64_MAX;
  }

  std::uint64_t step_bytes_;
  std::uint64_t offered_bytes_;
};

}  // namespace gpumem
