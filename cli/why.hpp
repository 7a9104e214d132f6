// `gpumem why`: explains why a recorded program ran out of memory: the live blocks, the cause, settings that serve it.
#pragma once

#include <string>

#include "cli_app.hpp"

namespace gpumem::cli {

struct why_options {
  std::string recording;  ///< a file, or the process ID of a program that records
  std::string capacity;   ///< bytes available to the program, if the recording does not say; empty: as recorded
  std::string json;       ///< a path, `-` for standard output; empty: none
  std::string html;       ///< a path; empty: none
};

/// Adds the subcommand; its arguments go into `options`.
void add_why_command(CLI::App& app, why_options& options);

/// Exit status: 0; 3 if no setting serves the refused request; 1 if there is no recording or a file cannot be written;
/// 2 for a usage error.
int why(const why_options& options);

}  // namespace gpumem::cli
