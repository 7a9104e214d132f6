// Manual pages and completions for bash and zsh, from the same options as --help.
#pragma once

#include <string>

#include "cli_app.hpp"
#include "gpumem/status.hpp"

namespace gpumem::bench {

/// Writes pages and completions of the program into an existing folder: gpumem.1, a page for each subcommand
/// (gpumem-run.1), gpumem.bash and _gpumem.
status write_pages(const CLI::App& app, const std::string& version, const std::string& folder);

}  // namespace gpumem::bench
