/// The card of a one-card experiment: the card that --device names, or a simulated one.
///
/// Bytes taken are the decrease of the device's free memory since the card was opened. On a GPU other processes may
/// change that figure; on a simulated card none do.
#pragma once

#include <memory>
#include <string_view>

#include "claim.hpp"

namespace gpumem::bench {

struct experiment_card {
  std::unique_ptr<device> gpu;
  sim_device* simulated = nullptr;  ///< the same device if simulated, else null
  std::uint64_t free_bytes = 0;     ///< at opening, after the context was created

  [[nodiscard]] std::uint64_t taken_bytes() const;
  /// The bytes that the process uses on the card now, including its context, from NVML. Without NVML, all memory in use
  /// on the card.
  [[nodiscard]] std::uint64_t context_bytes() const;
};
/// `simulated` configures the simulated card, used if the setup names no GPU.
result<experiment_card> open_card(const claim_setup& setup, const sim_config& simulated);

/// A process as an experiment models it: a card and an allocator over it. The allocator is destroyed first.
struct process {
  experiment_card card;
  std::unique_ptr<allocator> memory;
};
result<process> start_process(const claim_setup& setup, const sim_config& simulated, std::string_view row_text);

/// `wanted`, or an eighth of the free memory on a small card.
std::uint64_t sized_for(const experiment_card& card, std::uint64_t wanted);

}  // namespace gpumem::bench
