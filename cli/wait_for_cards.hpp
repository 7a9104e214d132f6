// `gpumem run --wait`: the cards, once they have room.
#pragma once

#include "visible_now.hpp"

namespace gpumem::cli {

/// Room is what `with.limit` asks for, in bytes or as a share of the card; without such a limit, a card that nobody
/// uses. Says on stderr what it waits for, once. `unsupported` when `longest_s` are over.
result<chosen_cards> wait_for_cards(const settings& with, double longest_s);

}  // namespace gpumem::cli
