/// The memory that stays free on a device for the context and the program's libraries.
#include "bits.hpp"
#include "gpumem/policy.hpp"

namespace gpumem {

std::uint64_t default_reserve_bytes(std::uint64_t free_bytes, int compute_major) noexcept {
  if (free_bytes < 2 * gib) return 225 * mib;
  if (compute_major <= 6) return 500 * mib;
  if (compute_major == 7) return 1050 * mib;
  if (compute_major == 8) return 1536 * mib;
  return 1800 * mib;
}

}  // namespace gpumem
