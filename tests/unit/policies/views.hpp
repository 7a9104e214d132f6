/// The views of a pool that the policy tests start from.
#pragma once

#include "bits.hpp"
#include "gpumem/policy.hpp"

namespace gpumem::test {

/// A pool of an 80 GiB card with 2 MiB granules.
inline pool_view view_of(std::uint64_t limit_bytes, std::uint64_t reserved_bytes = 0) {
  return {.total_bytes = 80 * gib,
          .free_at_start_bytes = 80 * gib,
          .limit_bytes = limit_bytes,
          .reserved_bytes = reserved_bytes,
          .live_bytes = 0,
          .granularity_bytes = 2 * mib};
}

inline std::unique_ptr<policy> make(std::string_view name) {
  auto made = make_policy(
      name,
      {.total_bytes = 80 * gib, .free_at_start_bytes = 80 * gib, .compute_major = 9, .granularity_bytes = 2 * mib});
  return made ? std::move(*made) : nullptr;
}

}  // namespace gpumem::test
