// `gpumem run`: settles which card and how much of it, and runs the command.
#pragma once

#include "options.hpp"

namespace gpumem::cli {

/// The command's own status; where it is not run 2 for a bad setting, 127 and 126 as shells, 1 for the rest.
int run_command(const run_options& with);

/// libgpumem_preload.so: beside the program, or where an installation puts libraries; the build tree has it where it is
/// made.
result<std::string> find_preload();

}  // namespace gpumem::cli
