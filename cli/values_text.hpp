// Which values of a program on simulated cards are true: the option, and what a report says.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace gpumem::cli {

struct simulated_outcome;

/// Elements up to which a tensor is small, so that PyTorch's operations on it are computed; 0: none is.
inline constexpr int default_values = 16384;

/// `--values` of simulate and predict.
void add_values_option(CLI::App& app, int& elements);

/// Says that the host read values that nothing had computed, and at which lines; empty if it read none.
std::string untrue_values_warning(const simulated_outcome& ran);

/// The same first, then why values are untrue that could have been true. Empty if the host read none.
std::vector<std::string> values_warnings(const simulated_outcome& ran);

}  // namespace gpumem::cli
