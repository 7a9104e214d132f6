/// Sizes that every policy needs, in whole granules: the bytes a pool may still take, and the need of a request.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bits.hpp"
#include "gpumem/policy.hpp"

namespace gpumem {

/// The unit of segment sizes; 1 byte if the device names none.
[[nodiscard]] inline std::uint64_t granule_bytes(const pool_view& view) noexcept {
  return std::max<std::uint64_t>(view.granularity_bytes, 1);
}

/// The bytes that the pool may still take, in whole granules; 0 at the limit, or above it after it was lowered.
[[nodiscard]] inline std::uint64_t allowed_bytes(const pool_view& view) noexcept {
  if (view.limit_bytes <= view.reserved_bytes) return 0;
  return round_down(view.limit_bytes - view.reserved_bytes, granule_bytes(view));
}

/// `need_bytes` in whole granules; 2^64 - 1, more than any device has, on overflow.
[[nodiscard]] inline std::uint64_t whole_granules(const pool_view& view, std::uint64_t need_bytes) noexcept {
  return checked_round_up(need_bytes, granule_bytes(view)).value_or(UINT64_MAX);
}

/// The bytes of addresses for a pool that maps pages: several times the device's memory, because the pool maps memory
/// that it takes after a return behind the addresses of the returned memory. Addresses cost nothing.
[[nodiscard]] inline std::uint64_t address_range_bytes(const pool_view& view) noexcept {
  return 4 * round_up(view.total_bytes, granule_bytes(view));
}

/// A request for `wanted_bytes`, cut to the limit. It asks for at least `need_bytes`, even beyond the limit: the pool
/// then refuses it with a report.
[[nodiscard]] inline segment_request request_within_limit(const pool_view& view, std::uint64_t wanted_bytes,
                                                          std::uint64_t need_bytes) noexcept {
  const std::uint64_t least = whole_granules(view, need_bytes);
  return {.bytes = std::max(least, std::min(whole_granules(view, wanted_bytes), allowed_bytes(view))),
          .least_bytes = least};
}

}  // namespace gpumem
