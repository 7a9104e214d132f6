// Applies GPUMEM_DEVICES to the visible cards: chooses cards and their order, and explains the choice.
//
// `auto` prefers unused cards, then those with the fewest programs, then those with the most free memory. Each card
// gets a place for a lease, so that programs that start together do not all take the same card.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpumem/settings.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

/// A visible card and its current use.
struct card_state {
  std::string uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::size_t processes = 0;
  unsigned busy_percent = 0;
  bool known = false;                ///< whether the four fields above are known
  unsigned claims = 0;               ///< other programs' claims on this card
  std::uint64_t promised_bytes = 0;  ///< free memory claimed by other programs but not used yet
  std::uint64_t claimed_bytes = 0;   ///< claimed by other programs, used or not
  unsigned next_place = 0;           ///< the first place without a lease; 0: no other program holds one
  /// The memory left to this program after the requests of earlier waiting programs; empty if no program waits.
  std::optional<std::uint64_t> left_beside_waiters = std::nullopt;
  bool holds_memory = false;  ///< uses more memory than an unused card
  bool memory_known = true;   ///< if `known`: whether the memory figures are known
  [[nodiscard]] bool idle() const noexcept { return known && processes == 0 && busy_percent == 0 && !holds_memory; }
};

struct placement {
  std::vector<std::size_t> cards;               ///< indexes into the list of visible cards
  std::vector<std::optional<unsigned>> places;  ///< for the leases of `auto`; one for each card
  std::vector<std::string> warnings;            ///< requests that could not be followed exactly
  std::vector<std::string> notes;               ///< for GPUMEM_VERBOSE
};

/// Chooses among `visible`, which is ordered by CUDA's ordinal. With `soft`, replaces a missing card by the next best
/// one, or by none, with a warning; otherwise returns `bad_setting`.
result<placement> place_on_cards(const device_choice& asked, std::span<const card_state> visible, bool soft);

}  // namespace gpumem
