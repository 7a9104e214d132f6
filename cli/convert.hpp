// `gpumem convert`: converts a recording, and reads the result back to compare the two.
#pragma once

#include <string>

#include "cli_app.hpp"

namespace gpumem::cli {

struct convert_options {
  std::string input;
  std::string output;
  bool json = false;  ///< prints sizes and reading times of both files
};

/// Adds the subcommand; its arguments go into `options`.
void add_convert_command(CLI::App& app, convert_options& options);

/// Exit status: 0; 1 if the input is not a recording or the output cannot be written; 2 for contradictory options.
int convert(const convert_options& options);

}  // namespace gpumem::cli
