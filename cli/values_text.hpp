// The option `--values`, and the warnings about values that a simulated card did not compute.
#pragma once

#include <string>
#include <vector>

#include "cli_app.hpp"

namespace gpumem::cli {

struct simulated_outcome;

/// PyTorch's operations on tensors of up to so many elements are computed; 0: none.
inline constexpr int default_values = 16384;

/// The option `--values` of simulate and predict.
void add_values_option(CLI::App& app, int& elements);

/// The warning that the host read values that were never computed, with the lines; empty if it read none.
std::string untrue_values_warning(const simulated_outcome& ran);

/// `untrue_values_warning` first, then the reasons for which values were not computed. Empty if the host read none.
std::vector<std::string> values_warnings(const simulated_outcome& ran);

}  // namespace gpumem::cli
