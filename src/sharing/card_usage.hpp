// What NVML tells of the machine's cards, in the forms that visibility and placement work on.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "card_placement.hpp"
#include "gpumem/gpu_usage.hpp"
#include "visible_cards.hpp"

namespace gpumem {

[[nodiscard]] std::vector<card> cards_of(std::span<const gpu_usage> usage);

/// The state of the card, or of the MIG instance, with this UUID; `known` is false where NVML has none of it. What CUDA
/// calls `GPU-x` may be NVML's `MIG-x`: the prefix does not count.
[[nodiscard]] card_state state_of(std::span<const gpu_usage> usage, std::string_view uuid);

}  // namespace gpumem
