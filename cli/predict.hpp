// `gpumem predict`: runs a program on a card with ample memory, and names the cards and policies that can hold it.
#pragma once

#include <string>
#include <vector>

#include "cli_app.hpp"
#include "recorded_run.hpp"

namespace gpumem::cli {

struct predict_options : recorded_run_options {
  std::vector<std::string> capacities;  ///< memory, or names of cards; empty: the memory of `card`
  bool once = false;                    ///< the peak of `expandable` is a replay's, too
  bool json = false;
};

void add_predict_command(CLI::App& app, predict_options& options);

/// Exit status: 0; 3 if nothing fits; the command's own status if that is not 0; 1 and 2 as for every subcommand.
int predict(const predict_options& options);

}  // namespace gpumem::cli
