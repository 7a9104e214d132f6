// The folder of the simulated libraries: finds it and checks that it is complete.
#pragma once

#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::cli {

/// The folder next to the program: in the build tree, installed, or in a Python package.
result<std::string> find_simulated_driver();

/// The files that a run needs and that `folder` lacks.
std::vector<std::string> missing_files(const std::string& folder);

/// Returns the commands that complete an incomplete folder: of a Python package, a build tree, or an installation.
std::string how_to_complete();

/// The libraries in `folder`, by their names with a version: libcuda.so.1. Sorted paths.
std::vector<std::string> libraries_in(const std::string& folder);

/// Creates links without a version (libcuda.so) in `links` to the libraries of `folder` that have none beside them, as
/// in a Python package. Two files of one library would be loaded twice.
void link_plain_names(const std::string& folder, const std::string& links);

}  // namespace gpumem::cli
