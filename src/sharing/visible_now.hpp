// The cards that a program started from here would see, in CUDA's order, and what they are doing; no context is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card_placement.hpp"
#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"

namespace gpumem {

struct visible_now {
  std::vector<card_state> cards;    ///< by CUDA's ordinal
  std::vector<std::string> hidden;  ///< the others, and why
  std::vector<gpu_usage> usage;     ///< as NVML told it of the machine's cards; empty where it does not
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
  std::vector<card_lease> leases;  ///< of `auto`, and claims, to be kept as long as the program runs
};

/// Room that a program waits for: `with.limit` in bytes or as a share of a card, else a card that nobody uses.
[[nodiscard]] bool names_room(const settings& with) noexcept;

/// Logs what was not done as it was asked for, and with `with.verbose` what was chosen and why. Requires
/// `with.devices`. Claims what `with.limit` allows of each card. With `must_have_room`, `auto` chooses among the cards
/// that have the room, and named ones must have it: `out_of_memory` otherwise.
result<chosen_cards> choose_cards(const settings& with, visible_by whose, bool must_have_room = false);

}  // namespace gpumem
