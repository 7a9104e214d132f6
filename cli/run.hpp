// `gpumem run`: chooses cards and limits, and runs the command.
#pragma once

#include "options.hpp"

namespace gpumem::cli {

/// The command's own status; if it is not run, 2 for a bad setting, 127 and 126 as in shells, 1 for other errors.
int run_command(const run_options& options);

/// The path of libgpumem_preload.so: beside the program, in the installation's library folder, or in the build tree.
result<std::string> find_preload();

}  // namespace gpumem::cli
