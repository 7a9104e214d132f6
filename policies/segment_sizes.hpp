/// Sizes that every policy needs: what a pool may still take, and what a request needs, in whole granules.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bits.hpp"
#include "gpumem/policy.hpp"

namespace gpumem {

/// What a segment occupies; a device that names none counts single bytes.
[[nodiscard]] inline std::uint64_t granule_bytes(const pool_view& view) noexcept {
  return std::max<std::uint64_t>(view.granularity_bytes, 1);
}

/// What the pool may still take, in whole granules: 0 where it holds its limit or, after a lowered limit, more.
[[nodiscard]] inline std::uint64_t allowed_bytes(const pool_view& view) noexcept {
  if (view.limit_bytes <= view.reserved_bytes) return 0;
  return round_down(view.limit_bytes - view.reserved_bytes, granule_bytes(view));
}

/// `need_bytes` in whole granules; more than any device has (2^64 - 1) where that does not fit into 64 bits.
[[nodiscard]] inline std::uint64_t whole_granules(const pool_view& view, std::uint64_t need_bytes) noexcept {
  return checked_round_up(need_bytes, granule_bytes(view)).value_or(UINT64_MAX);
}

/// A request for `wanted_bytes`, as far as the limit goes, and for `need_bytes` whatever the limit says: the pool
/// is the one that refuses, so that the refusal carries its report.
[[nodiscard]] inline segment_request request_within_limit(const pool_view& view, std::uint64_t wanted_bytes,
                                                          std::uint64_t need_bytes) noexcept {
  const std::uint64_t least = whole_granules(view, need_bytes);
  return {.bytes = std::max(least, std::min(whole_granules(view, wanted_bytes), allowed_bytes(view))),
          .least_bytes = least};
}

}  // namespace gpumem
