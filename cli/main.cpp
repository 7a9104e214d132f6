// The program `gpumem`. Exit status: 0; 1 if a requirement is missing; 2 for a usage error, in one line that says what
// was expected; `run` passes on the command's own status.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "devices.hpp"
#include "job_rank.hpp"
#include "leases.hpp"
#include "options.hpp"
#include "predict.hpp"
#include "run.hpp"
#include "simulate.hpp"
#include "text.hpp"
#include "top.hpp"

int main(int argc, char** argv) {
  using namespace gpumem;
  try {
    cli::options with;
    const auto text = cli::parse_command_line(argc, argv, with);
    if (!text) {
      fmt::print(stderr, "gpumem: {}{}\n", rank_prefix(), printable(text.why().message(), 8192));
      return 2;
    }
    if (*text) {
      fmt::print("{}", **text);
      return 0;
    }
    switch (with.what) {
      case cli::command::run:
        return cli::run_command(with.run);
      case cli::command::devices:
        return cli::show_devices(with.devices);
      case cli::command::top:
        return cli::show_top(with.top);
      case cli::command::lease:
        return cli::show_leases(with.lease);
      case cli::command::plan:
        return cli::make_plan(with.plan);
      case cli::command::advise:
        return cli::advise(with.advise);
      case cli::command::simulate:
        return cli::simulate(with.simulate);
      case cli::command::predict:
        return cli::predict(with.predict);
      case cli::command::convert:
        return cli::convert(with.convert);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "gpumem: {}{}\n", rank_prefix(), printable(e.what(), 8192));
  }
  return 1;
}
