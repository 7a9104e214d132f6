// `gpumem convert`: a recording in another format, read again and compared before it counts as written.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace gpumem::cli {

struct convert_options {
  std::string input;
  std::string output;
  bool json = false;  ///< sizes and reading times of both files
};

/// Adds the subcommand, whose words go into `into`.
CLI::App* add_convert_command(CLI::App& to, convert_options& into);

/// Exit status: 0; 1 where the input is no recording or the output cannot be written; 2 for words that do not go
/// together.
int convert(const convert_options& with);

}  // namespace gpumem::cli
