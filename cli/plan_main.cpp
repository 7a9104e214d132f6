// A program with the one command `plan`, for its tests and where the others are not built.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "plan.hpp"

int main(int argc, char** argv) {
  try {
    gpumem::cli::plan_options with;
    CLI::App app{"Offline placement.", "gpumem"};
    gpumem::cli::add_plan_command(app, with);
    app.require_subcommand(1);
    try {
      app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      fmt::print("{}", app.help());
      return 0;
    } catch (const CLI::Error& wrong) {
      const std::string why = wrong.what();
      fmt::print(stderr, "gpumem: {} (--help lists what there is)\n", why.substr(0, why.find('\n')));
      return 2;
    }
    return gpumem::cli::make_plan(with);
  } catch (const std::exception& e) {
    fmt::print(stderr, "gpumem: {}\n", e.what());
  }
  return 1;
}
