// Converts NVML's description of the machine's cards for visibility and placement.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "card_placement.hpp"
#include "gpumem/gpu_usage.hpp"
#include "visible_cards.hpp"

namespace gpumem {

[[nodiscard]] std::vector<card> cards_of(std::span<const gpu_usage> usage);

/// The state of the card or MIG instance with this UUID; `known` is false if NVML does not list it. Ignores the UUID's
/// prefix, because CUDA's `GPU-x` may be NVML's `MIG-x`. `idle_bytes` is GPUMEM_IDLE_BYTES.
[[nodiscard]] card_state state_of(std::span<const gpu_usage> usage, std::string_view uuid,
                                  std::optional<std::uint64_t> idle_bytes = std::nullopt);

}  // namespace gpumem
