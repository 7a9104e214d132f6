// `gpumem plan`: computes an offline placement of a trace's step (for the policy `planned`) or of a static problem.
#pragma once

#include <string>

#include "cli_app.hpp"

namespace gpumem::cli {

struct plan_options {
  std::string trace;
  std::string static_file;
  std::string output;
  std::string capacity;  ///< bytes (1048576, 16GiB); empty: the lowest possible
  double time_limit_s = 50;
  bool share_streams = false;
  bool json = false;
};

/// Adds the subcommand; its arguments go into `options`.
void add_plan_command(CLI::App& app, plan_options& options);

/// Exit status: 0; 1 if the file has another format or nothing fits; 2 for contradictory options.
int make_plan(const plan_options& options);

}  // namespace gpumem::cli
