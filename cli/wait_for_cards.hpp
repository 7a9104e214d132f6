// `gpumem run --wait`: waits until cards have room.
#pragma once

#include "visible_now.hpp"

namespace gpumem::cli {

/// The room is `config.limit`, in bytes or as a share of the card; without such a limit, an unused card. Says once on
/// stderr what it waits for. `unsupported` after `longest_s`.
result<chosen_cards> wait_for_cards(const settings& config, double longest_s);

}  // namespace gpumem::cli
