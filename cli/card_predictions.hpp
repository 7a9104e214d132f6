// Which cards and policies would hold a recorded run.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "recorded_run.hpp"

namespace gpumem::cli {

struct capacity {
  std::string name;
  std::uint64_t bytes = 0;
};

/// The card's memory less `taken` bytes; 0 if `taken` is larger.
inline std::uint64_t rest_of(const capacity& card, std::uint64_t taken) {
  return card.bytes - (taken < card.bytes ? taken : card.bytes);
}

/// Replays every policy within each capacity less the context. Adds one row for each, grouped by capacity: `native`
/// first, then the cheapest. Keys: capacity, capacity_bytes, policy, fits, peak_reserved_bytes, settings, by.
status predict_all(const recording& recorded, const std::vector<capacity>& capacities, std::uint64_t context_bytes,
                   nlohmann::ordered_json& predictions);

}  // namespace gpumem::cli
