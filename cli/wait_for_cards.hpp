// `gpumem run --wait`: waits until cards have room.
#pragma once

#include "visible_now.hpp"

namespace gpumem::cli {

/// Waits for `config.limit` free bytes (or that share of the card); without such a limit, for an unused card. Logs the
/// reason once. `unsupported` after `longest_s`.
result<chosen_cards> wait_for_cards(const settings& config, double longest_s);

}  // namespace gpumem::cli
