// The cards that a program started from here would see, in CUDA's order, and what they are doing; no context is made.
#pragma once

#include <string>
#include <vector>

#include "card_placement.hpp"

namespace gpumem::cli {

struct visible_now {
  std::vector<card_state> cards;    ///< by CUDA's ordinal
  std::vector<std::string> hidden;  ///< the others, and why
};

/// The driver is asked where there is one, in a process that ends with its answer; otherwise NVML's cards, with
/// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER applied here. `unsupported` where there is neither.
result<visible_now> cards_visible_now();

}  // namespace gpumem::cli
