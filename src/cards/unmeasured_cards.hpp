// Measures the memory of cards for which NVML does not, such as GB10.
#pragma once

#include <string>
#include <vector>

#include "gpumem/gpu_usage.hpp"

namespace gpumem {

/// Fills in the figures of cards of unknown memory. An integrated GPU shares its memory with the host: its total is the
/// device's, its free memory the available memory of the host. For another card, a child process creates a context and
/// asks the driver, at most once in 10 s per card for all processes that share `folder`, and never on a card in an
/// exclusive mode. A card without room for the context is full. Cards that the driver does not know stay unknown.
///
/// Forks: call it from a program with one thread that has not used the driver.
void measure_cards(std::vector<gpu_usage>& usage, const std::string& folder);

}  // namespace gpumem
