/// The price of the driver's calls for plain memory, in microseconds of the host, on an idle device.
///
/// They are the figures of the simulated device (src/device/sim/sim_costs.cpp, which names their sources: an A100 and
/// an H100). Every card takes them. They are constants, never measured in a process, so that a policy is a function of
/// the requests, the card and the limit, and a simulated run equals the real one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bits.hpp"

namespace gpumem {

/// A call for up to `unit_bytes` costs `first_us`, each further unit `further_us`.
struct call_price {
  static constexpr std::uint64_t unit_bytes = 2 * mib;
  double first_us;
  double further_us;

  [[nodiscard]] constexpr double operator()(std::uint64_t bytes) const noexcept {
    const std::uint64_t further = bytes - std::min(bytes, unit_bytes);
    return first_us + further_us * static_cast<double>(further) / static_cast<double>(unit_bytes);
  }
};

inline constexpr call_price price_of_taking{.first_us = 58.75, .further_us = 14.4};
inline constexpr call_price price_of_returning{.first_us = 72.4, .further_us = 4.334};

}  // namespace gpumem
