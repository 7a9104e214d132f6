// Lists the cards that a program started from this process would see, in CUDA's order, and their use. Creates no
// context in this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card_placement.hpp"
#include "claim_table.hpp"
#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"

namespace gpumem {

struct visible_now {
  std::vector<card_state> cards;    ///< by CUDA's ordinal
  std::vector<std::string> hidden;  ///< a line per hidden card, with the reason
  std::vector<gpu_usage> usage;     ///< NVML's figures for the machine's cards; empty without NVML
};

/// The source of the list of visible cards.
enum class visible_by : std::uint8_t {
  driver,  ///< the driver, in a process that ends with its answer; without a driver, the rule
  rule,    ///< NVML's cards, filtered by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
};

/// `unsupported` without driver and NVML.
result<visible_now> cards_visible_now(visible_by source, const settings& options);

/// The value of CUDA_VISIBLE_DEVICES that gives a program the cards chosen by `options.devices`.
struct chosen_cards {
  std::string list;    ///< UUIDs separated by `,`
  held_claims claims;  ///< leases of `auto` and claims; keep them while the program runs
};

/// A program's place in the queue for each card that it waits for.
struct waiting_program {
  std::uint64_t since_ns = boot_time_ns();
  held_claims claims;
};

/// Whether a program waits for an amount of memory: `options.limit` in bytes or as a share. If not, it waits for an
/// unused card.
[[nodiscard]] bool names_room(const settings& options) noexcept;

/// Chooses cards by `options.devices`, which must be set, and claims `options.limit` on each. Logs requests that could
/// not be followed exactly, and with `options.verbose` the choice and its reasons. With `wait`, `auto` chooses among
/// cards with enough room, and named cards must have it; otherwise returns `out_of_memory`, and `wait` keeps the
/// program's place in the queue for the next call.
result<chosen_cards> choose_cards(const settings& options, visible_by source, waiting_program* wait = nullptr);

}  // namespace gpumem
