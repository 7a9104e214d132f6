// The program `gpumem`. Exit status: 0; 1 where something that is needed is not there; 2 for anything wrong with the
// words, in one line that says what was expected; of `run`, the command's own.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "devices.hpp"
#include "options.hpp"
#include "run.hpp"
#include "text.hpp"
#include "top.hpp"

int main(int argc, char** argv) {
  using namespace gpumem;
  try {
    cli::options with;
    const auto text = cli::parse_command_line(argc, argv, with);
    if (!text) {
      fmt::print(stderr, "gpumem: {}\n", printable(text.why().message(), 8192));
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
      case cli::command::plan:
        return cli::make_plan(with.plan);
      case cli::command::advise:
        return cli::advise(with.advise);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "gpumem: {}\n", printable(e.what(), 8192));
  }
  return 1;
}
