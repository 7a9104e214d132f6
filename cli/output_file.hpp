// Checks that a result file can be written before the program runs, which may take hours.
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// Changes nothing. `replaced`: the file will be removed and created again, so it must be a regular file.
status check_output_file(const std::string& path, const char* option, bool replaced = false);

}  // namespace gpumem::cli
