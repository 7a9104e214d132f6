// `gpumem fit`: runs a program once on a simulated card with ample memory, and names the smallest card that holds it.
#pragma once

#include "cli_app.hpp"
#include "recorded_run.hpp"

namespace gpumem::cli {

struct fit_options : recorded_run_options {
  bool json = false;
};

void add_fit_command(CLI::App& app, fit_options& options);

/// Exit status: as for `predict`.
int fit(const fit_options& options);

}  // namespace gpumem::cli
