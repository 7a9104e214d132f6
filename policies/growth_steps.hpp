/// How large the next segment is when a pool grows on demand.
///
/// As in TensorFlow's allow_growth (bfc_allocator.cc, Extend) a step doubles until it covers the request, and a step
/// that did not have to be doubled for its request is doubled after it was taken. Unlike there
///  - the first step is 16 MiB and not 2: requests of a few MiB would otherwise leave a row of segments too small
///    for the next ones;
///  - beyond 128 MiB a step is at most a quarter of what the pool holds: a step that doubles the pool leaves half of
///    it empty at worst, this one a fifth; the number of segments stays logarithmic in the pool's size;
///  - a step that was refused leaves no trace: one request that is far too large must not make the next small one
///    take everything.
/// The three numbers were chosen by `gpumem_bench compare` over the bundled and the recorded GPU traces.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bits.hpp"

namespace gpumem {

class growth_steps {
 public:
  static constexpr std::uint64_t first_step_bytes = 16 * mib;
  static constexpr std::uint64_t free_step_bytes = 128 * mib;  ///< up to here a step only doubles
  static constexpr std::uint64_t share_of_pool = 4;            ///< beyond it, one part in so many

  /// `first_bytes` is at least 1.
  explicit constexpr growth_steps(std::uint64_t first_bytes = first_step_bytes) noexcept
      : step_bytes_{first_bytes}, offered_bytes_{first_bytes} {}

  /// The step for a request by a pool that holds `held_bytes`; at least `need_bytes`.
  constexpr std::uint64_t covering(std::uint64_t need_bytes, std::uint64_t held_bytes) noexcept {
    offered_bytes_ = step_bytes_;
    while (offered_bytes_ < need_bytes) offered_bytes_ = doubled(offered_bytes_);
    const std::uint64_t most = std::max(free_step_bytes, held_bytes / share_of_pool);
    return std::max(need_bytes, std::min(offered_bytes_, most));
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
