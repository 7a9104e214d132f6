// Checks a file of the result before the program runs, which may take hours.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// `replaced`: the file is removed and made again, so it has to be a regular one. Changes nothing.
status check_output_file(const std::string& path, const char* option, bool replaced = false);

}  // namespace gpumem::cli
