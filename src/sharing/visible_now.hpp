// The cards that a program started from here would see, in CUDA's order, and what they are doing; no context is made.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "card_placement.hpp"
#include "gpumem/settings.hpp"

namespace gpumem {

struct visible_now {
  std::vector<card_state> cards;    ///< by CUDA's ordinal
  std::vector<std::string> hidden;  ///< the others, and why
};

/// Who says which cards a program sees.
enum class visible_by : std::uint8_t {
  driver,  ///< the driver where there is one, in a process that ends with its answer; otherwise the rule
  rule,    ///< NVML's cards, with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER applied here
};

/// `unsupported` where neither can be asked.
result<visible_now> cards_visible_now(visible_by whose);

/// What a program is given as CUDA_VISIBLE_DEVICES so that it has what `with.devices` chooses.
struct chosen_cards {
  std::string list;                ///< UUIDs, with ',' between them
  std::vector<card_lease> leases;  ///< of `auto`, to be kept as long as the program runs
};
/// Logs what was not done as it was asked for, and with `with.verbose` what was chosen and why. Requires
/// `with.devices`. With `has_room`, `auto` chooses among the cards that have room, and named ones must have it:
/// `out_of_memory` otherwise.
result<chosen_cards> choose_cards(const settings& with, visible_by whose,
                                  const std::function<bool(const card_state&)>& has_room = nullptr);

}  // namespace gpumem
