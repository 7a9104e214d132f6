// Which cards and policies would hold a recorded run.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "recorded_run.hpp"

namespace gpumem::cli {

/// The card's memory less `taken` bytes; 0 if `taken` is larger.
inline std::uint64_t rest_of(const capacity& card, std::uint64_t taken) {
  return card.bytes - (taken < card.bytes ? taken : card.bytes);
}

/// Runs the program with a row's settings on a card of that capacity. Nothing if it cannot be run so.
using served_run = std::function<std::optional<measured_peak>(const capacity& card, const std::string& settings)>;

/// Replays every policy within each capacity less the context. Adds one row for each, grouped by capacity: `native`
/// first, then the cheapest. Keys: capacity, capacity_bytes, policy, fits, peak_reserved_bytes, settings, by.
///
/// With `measure`, the peaks of policies whose replays cannot be exact (`varies_between_runs`) are measured.
status predict_all(const recording& recorded, const std::vector<capacity>& capacities, std::uint64_t context_bytes,
                   nlohmann::ordered_json& predictions, const served_run& measure = {});

}  // namespace gpumem::cli
