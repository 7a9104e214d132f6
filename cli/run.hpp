// `gpumem run`: settles which card and how much of it, and becomes the command.
#pragma once

#include "options.hpp"

namespace gpumem::cli {

/// Returns only where the command is not run: 2 for a bad setting, 127 and 126 as shells, 1 for the rest.
int run_command(const run_options& with);

}  // namespace gpumem::cli
