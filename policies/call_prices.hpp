/// The prices of the driver's calls, by kind of card, in microseconds of the host on an idle device.
///
/// They are constants, never measured in the process that uses them, so that a policy is a function of the requests,
/// the card and the limit, and a simulated run equals the real one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

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

struct call_prices {
  std::string_view card;  ///< a part of the card's name
  int compute_major;
  call_price take;       ///< a plain segment
  call_price give_back;  ///< a plain segment
  call_price map_run;    ///< creates, maps and opens a run of pages
};

/// A100: from published figures, which src/device/sim/sim_costs.cpp names; the simulated card takes the same.
/// H100: measured, bench/results/h100/costs.json, as a line through the calls for 2 MiB and 1 GiB.
inline constexpr std::array<call_prices, 3> known_prices{{
    {"A100", 8, {58.75, 14.4}, {72.4, 4.334}, {87.3, 7.307}},
    {"simulated", 9, {58.75, 14.4}, {72.4, 4.334}, {87.3, 7.307}},
    {"H100", 9, {57.3, .185}, {37.4, .657}, {42.9, .11}},
}};

/// The prices of the card of that name; null if none are known.
[[nodiscard]] inline const call_prices* prices_by_name(std::string_view card) noexcept {
  const auto* const found = std::ranges::find_if(
      known_prices, [card](const call_prices& each) { return card.find(each.card) != std::string_view::npos; });
  return found == known_prices.end() ? nullptr : found;
}

/// The prices of the card of that name, otherwise those of the real card nearest in compute capability.
[[nodiscard]] inline const call_prices& prices_of(std::string_view card, int compute_major) noexcept {
  if (const call_prices* const known = prices_by_name(card)) return *known;
  return compute_major < known_prices.back().compute_major ? known_prices.front() : known_prices.back();
}

}  // namespace gpumem
