// `gpumem dump`: writes the latest events of a served process to a file.
#pragma once

#include <string>

#include "cli_app.hpp"
#include "gpumem/status.hpp"

namespace gpumem::cli {

struct dump_options {
  unsigned pid = 0;
  std::string output;  ///< a path; empty: named after the process, or standard output for `events`
  std::string format;  ///< `trace`, `snapshot` or `events`; empty: chosen by the output's name
};

/// Adds the subcommand; its arguments go into `options`.
void add_dump_command(CLI::App& app, dump_options& options);

/// Writes the dump and returns the path of its first file, `-` for standard output. An error message is one line that
/// says what to do; `invalid_argument` if the process cannot give a dump.
result<std::string> write_dump_of_process(const dump_options& options);

/// Exit status: 0; 1 if the output cannot be written; 2 if the process cannot give a dump.
int dump(const dump_options& options);

}  // namespace gpumem::cli
