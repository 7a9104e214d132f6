/// What an experiment about one card runs on: the card that --device names, or a simulated one.
///
/// What is taken from it is what the device itself says is less free than when it was opened. On a GPU others may take
/// and give back meanwhile; nobody does on a simulated card.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "claim.hpp"

namespace gpumem::bench {

struct experiment_card {
  std::unique_ptr<device> on;
  sim_device* simulated = nullptr;  ///< the same, where it is one
  std::uint64_t free_bytes = 0;     ///< when it was opened, with the context made

  [[nodiscard]] result<std::uint64_t> taken_bytes() const;
  /// What the process has on it now beside what was taken since: its context. NVML's word; without it all that is used.
  [[nodiscard]] result<std::uint64_t> context_bytes() const;
};
/// `simulated` is of the card that is made where the setup names none.
result<experiment_card> open_card(const claim_setup& setup, const sim_config& simulated);

/// A process as an experiment sees it: a card, and an allocator over it, which goes first.
struct process {
  experiment_card card;
  std::unique_ptr<allocator> memory;
};
result<process> start_process(const claim_setup& setup, const sim_config& simulated, std::string_view row_text);

/// `wanted`, or on a small card an eighth of what is free.
std::uint64_t sized_for(const experiment_card& card, std::uint64_t wanted);

}  // namespace gpumem::bench
