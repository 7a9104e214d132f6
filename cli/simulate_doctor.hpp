// `gpumem simulate --doctor`: checks the requirements of a simulated run.
#pragma once

#include <string>
#include <vector>

namespace gpumem::cli {

/// Prints a line for each need, of the Python that `command` names (or python3). 0: nothing is missing; else 1.
int diagnose(const std::vector<std::string>& command);

}  // namespace gpumem::cli
