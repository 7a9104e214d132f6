// GPUMEM_DEVICES against the cards that are visible: which of them, in which order, and what to say about it.
//
// `auto` takes cards that nobody uses first, then those with fewest programs on them, by free memory among equals, and
// holds a lease on each, so that programs which start together do not all take the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "card_lease.hpp"
#include "gpumem/settings.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

/// A visible card and what it is doing.
struct card_state {
  std::string uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::size_t processes = 0;
  unsigned busy_percent = 0;
  bool known = false;                ///< whether the last four are
  unsigned claims = 0;               ///< of other programs that were given this card
  std::uint64_t promised_bytes = 0;  ///< to them, of what is free: they do not use it yet
  [[nodiscard]] bool idle() const noexcept { return known && processes == 0 && busy_percent == 0; }
};

struct placement {
  std::vector<std::size_t> cards;     ///< in the list of visible cards
  std::vector<card_lease> leases;     ///< of `auto`
  std::vector<std::string> warnings;  ///< what was not done as it was asked for
  std::vector<std::string> notes;     ///< for GPUMEM_VERBOSE
};

/// `visible` is by CUDA's ordinal. With `soft` a card that does not exist is replaced by the next best one, or by none,
/// with a warning; otherwise it is a `bad_setting`.
result<placement> place_on_cards(const device_choice& asked, std::span<const card_state> visible, bool soft);

}  // namespace gpumem
