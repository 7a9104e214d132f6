// `gpumem advise`: which policy and settings a recorded program fits in, best first, with the variables to set.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace gpumem::cli {

struct advise_options {
  std::string trace;
  std::string capacity;  ///< bytes (52GiB) that the program may take; empty: no limit
  bool json = false;
};

/// Adds the subcommand, whose words go into `into`.
CLI::App* add_advise_command(CLI::App& to, advise_options& into);

/// Exit status: 0, also where nothing fits, which is an answer; 1 where the trace is no such thing; 2 for bad words.
int advise(const advise_options& with);

}  // namespace gpumem::cli
