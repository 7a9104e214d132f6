/// The simulated device's page.
#pragma once

#include <cstdint>

#include "bits.hpp"

namespace gpumem {

inline constexpr std::uint64_t page = 2 * mib;

}  // namespace gpumem
