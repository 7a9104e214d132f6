/// Reads a static problem in the format of the published benchmarks: `id,lower,upper,size`, one buffer per line.
#pragma once

#include <string>
#include <string_view>

#include "problem.hpp"

namespace gpumem::plan {

/// `corrupt` names line and reason. The header may hold the four columns in any order; others are ignored.
[[nodiscard]] result<problem> parse_problem(std::string_view text);

/// The same for a file, checked; messages begin with its name.
[[nodiscard]] result<problem> read_problem(const std::string& path);

}  // namespace gpumem::plan
